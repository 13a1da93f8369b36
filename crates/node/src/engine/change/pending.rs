//! Parts of a change that must wait: units that leaving sessions still write, and other sizes of files that are being
//! given one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sarsen_scsi::Lun;

use super::super::diff::VolumeSteps;
use super::super::volumes::Growth;
use super::super::{ChangeError, DeferredGain, Running};
use crate::access::Units;
use crate::config::{Config, VolumeConfig, render_size};

/// Refuses another size while a volume grows or is being opened. Its file may still get the earlier size.
pub(super) fn refuse_changed_growth(
    running: &Running,
    desired: &Config,
) -> Result<(), ChangeError> {
    let begun = running.volumes.values().filter_map(|volume| match volume.growth {
        Growth::UnderWay(bytes) => Some((&volume.config, bytes)),
        Growth::None | Growth::Failed(_) => None,
    });
    let opened = running.absent.volumes.iter().filter(|missing| missing.has_task);
    let opened = opened.filter_map(|one| Some((&one.config, one.config.size?.get())));
    let all: Vec<_> = begun.chain(opened).collect();
    if all.is_empty() {
        return Ok(());
    }
    for volume in &desired.volumes {
        let is_it = |other: &VolumeConfig| {
            let is_same = other.serial.is_some() && other.serial == volume.serial;
            other.path == volume.path && (is_same || other.name == volume.name)
        };
        let changed = all.iter().find(|(other, bytes)| {
            is_it(other) && volume.size.is_some_and(|size| size.get() != *bytes)
        });
        if let Some((_, bytes)) = changed {
            let why = format!(
                "is being given {}: change its size again when that has ended",
                render_size(*bytes)
            );
            return Err(ChangeError::impossible(&volume.name, why));
        }
    }
    Ok(())
}

/// Removes added units from the targets of a configuration while leaving sessions still use these units. Returns the
/// targets that have such a unit already, and the removed gains.
pub(super) fn defer_gains(
    ready: &mut Config,
    running: &Running,
    volumes: &VolumeSteps,
    held: &Units,
) -> (BTreeSet<String>, BTreeSet<DeferredGain>) {
    let (mut restricted, mut gains) = (BTreeSet::new(), BTreeSet::new());
    if held.is_empty() {
        return (restricted, gains);
    }
    let stays = volumes.stays.iter();
    let renamed: HashMap<&str, &str> =
        stays.map(|stay| (stay.desired.name.as_str(), stay.running.as_str())).collect();
    let before = running.config.targets.iter();
    let before: HashMap<&str, _> =
        before.map(|target| (target.name.as_str(), running.luns(target))).collect();
    for target in &mut ready.targets {
        let before = before.get(target.name.as_str());
        let is_held = |lun: u16, volume: &String| {
            let name = renamed.get(volume.as_str()).copied().unwrap_or(volume);
            let unit = &running.volumes.get(name).filter(|_| !volumes.closes.contains(name))?.unit;
            let is_held = held.iter().any(|held| std::ptr::eq(held.as_ptr(), Arc::as_ptr(unit)));
            let had = before.and_then(|luns| luns.get(&Lun(lun)));
            is_held.then(|| had.is_some_and(|had| Arc::ptr_eq(had, unit)))
        };
        let mut deferred = BTreeSet::new();
        for (&lun, volume) in target.luns.iter() {
            match is_held(lun, volume) {
                Some(true) => drop(restricted.insert(target.name.clone())),
                Some(false) => {
                    deferred.insert(lun);
                    let why = format!(
                        "LUN {lun} of {}: volume {volume} is deferred until the sessions that lose it end; wait, or end them",
                        target.name
                    );
                    gains.insert((target.name.clone(), why));
                }
                None => {}
            }
        }
        if !deferred.is_empty() {
            let luns = target.luns.iter().filter(|(lun, _)| !deferred.contains(lun));
            target.luns =
                luns.map(|(lun, volume)| (*lun, volume.clone())).collect::<BTreeMap<_, _>>().into();
        }
    }
    (restricted, gains)
}
