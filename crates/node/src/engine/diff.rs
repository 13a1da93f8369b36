//! What there is to do so that what runs becomes what is desired. Whatever has not changed is looked at
//! once, and compared.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use sarsen_scsi::AccessState;

use super::volumes::{Volume, identity, places};
use super::{ChangeError, Running};
use crate::access::{Object, TargetLoss};
use crate::config::{Config, StoreConfig, TargetConfig, VolumeConfig, render_size};

/// A volume that stays open.
pub(super) struct Stay {
    /// Its name until now.
    pub(super) running: String,
    pub(super) desired: VolumeConfig,
    /// Bytes, where it is to be larger.
    pub(super) grows_to: Option<u64>,
}

/// What becomes of the volumes. Those that stay as they are are not in it.
#[derive(Default)]
pub(super) struct VolumeSteps {
    pub(super) stays: Vec<Stay>,
    pub(super) opens: Vec<VolumeConfig>,
    /// They are opened when those that have what they want are closed.
    pub(super) late: Vec<VolumeConfig>,
    pub(super) closes: BTreeSet<String>,
    /// Those of them that are closed before the late ones are opened.
    pub(super) closes_first: Vec<String>,
}

/// What becomes of a volume that is desired and has a running counterpart.
enum Fate {
    Stays(Option<u64>),
    Replaced,
}

/// The target of each volume that is in one.
pub(super) fn scopes(config: &Config) -> HashMap<&str, &str> {
    let mut scopes = HashMap::with_capacity(config.volumes.len());
    for target in &config.targets {
        scopes.extend(target.luns.values().map(|name| (name.as_str(), target.name.as_str())));
    }
    scopes
}

impl VolumeSteps {
    pub(super) fn between(
        running: &BTreeMap<String, Volume>,
        desired: &Config,
        scopes: &HashMap<&str, &str>,
        machine: &str,
    ) -> Result<Self, ChangeError> {
        let mut steps = Self::default();
        let mut used = HashSet::with_capacity(running.len());
        let mut unmatched = Vec::new();
        for volume in &desired.volumes {
            match running.get(&volume.name) {
                Some(old) if old.config.identity.serial == volume.identity.serial => {
                    used.insert(volume.name.as_str());
                    let scope = scopes.get(volume.name.as_str()).copied();
                    steps.take(old, volume, scope, machine)?;
                }
                _ => unmatched.push(volume),
            }
        }
        if !unmatched.is_empty() {
            let left = running.values().filter(|old| !used.contains(old.config.name.as_str()));
            let mut by_serial: HashMap<&str, &Volume> = left
                .filter_map(|old| Some((old.config.identity.serial.as_deref()?, old)))
                .collect();
            for volume in unmatched {
                let serial = volume.identity.serial.as_deref();
                // What has another name and another identity with it is another volume.
                let renamed =
                    serial.and_then(|serial| by_serial.get(serial)).copied().filter(|old| {
                        let renamed = identity(volume, None, machine);
                        *old.unit.identity()
                            == sarsen_scsi::Identity {
                                volume: old.unit.identity().volume.clone(),
                                ..renamed
                            }
                    });
                match renamed.zip(serial) {
                    Some((old, serial)) => {
                        by_serial.remove(serial);
                        used.insert(old.config.name.as_str());
                        let scope = scopes.get(volume.name.as_str()).copied();
                        steps.take(old, volume, scope, machine)?;
                    }
                    None => steps.opens.push(volume.clone()),
                }
            }
        }
        if used.len() < running.len() {
            let gone = running.keys().filter(|name| !used.contains(name.as_str()));
            steps.closes.extend(gone.cloned());
        }
        steps.put_off(running);
        Ok(steps)
    }

    /// Takes a desired volume with the one that runs in its place.
    fn take(
        &mut self,
        old: &Volume,
        desired: &VolumeConfig,
        scope: Option<&str>,
        machine: &str,
    ) -> Result<(), ChangeError> {
        let has_other_identity = old.config.identity.serial.is_none()
            && old.scope.as_deref() != scope
            && *old.unit.identity() != identity(desired, scope, machine);
        if old.config == *desired && !has_other_identity {
            return Ok(());
        }
        match fate(old, desired, has_other_identity)? {
            Fate::Stays(grows_to) => self.stays.push(Stay {
                running: old.config.name.clone(),
                desired: desired.clone(),
                grows_to,
            }),
            Fate::Replaced => {
                self.closes.insert(old.config.name.clone());
                self.opens.push(desired.clone());
            }
        }
        Ok(())
    }

    /// What wants a file that another volume still has is opened after that one is closed.
    fn put_off(&mut self, running: &BTreeMap<String, Volume>) {
        let mut holders: HashMap<PathBuf, &str> = HashMap::new();
        for name in &self.closes {
            let places = running.get(name).map(|old| places(&old.config)).unwrap_or_default();
            holders.extend(places.into_iter().map(|place| (place, name.as_str())));
        }
        if holders.is_empty() {
            return;
        }
        let mut first = BTreeSet::new();
        let (late, opens) = std::mem::take(&mut self.opens).into_iter().partition(|volume| {
            let places = places(volume);
            let before = first.len();
            first.extend(places.iter().filter_map(|place| holders.get(place).copied()));
            first.len() > before || places.iter().any(|place| holders.contains_key(place))
        });
        (self.late, self.opens) = (late, opens);
        self.closes_first = first.into_iter().map(str::to_owned).collect();
    }
}

/// Bytes that a volume is to have, if that is said.
fn size_of(config: &VolumeConfig) -> Option<u64> {
    match &config.store {
        StoreConfig::Ram { size, .. } | StoreConfig::Null { size } => Some(*size),
        StoreConfig::File { size, .. } => *size,
        StoreConfig::Sg { .. } | StoreConfig::Iso { .. } => None,
    }
}

/// The configuration of a volume with what can change of it while it is open, as `other` has it.
fn with_live_part_of(config: &VolumeConfig, other: &VolumeConfig) -> VolumeConfig {
    let mut config = config.clone();
    config.name.clone_from(&other.name);
    config.qos.clone_from(&other.qos);
    match (&mut config.store, &other.store) {
        (StoreConfig::Ram { size, .. }, StoreConfig::Ram { size: other, .. })
        | (StoreConfig::Null { size }, StoreConfig::Null { size: other }) => *size = *other,
        (StoreConfig::File { size, .. }, StoreConfig::File { size: other, .. }) => *size = *other,
        _ => {}
    }
    config
}

fn fate(
    old: &Volume,
    desired: &VolumeConfig,
    has_other_identity: bool,
) -> Result<Fate, ChangeError> {
    let volume = &desired.name;
    let refuse = |why: String| Err(ChangeError::Impossible { volume: volume.clone(), why });
    let now = old.size();
    let wanted = size_of(desired).unwrap_or(now);
    let is_same_place = places(&old.config) == places(desired);
    let in_memory = matches!(old.config.store, StoreConfig::Ram { .. });
    if wanted < now && (is_same_place || in_memory) {
        return refuse(format!(
            "has {} and cannot become smaller ({}): make another volume and copy what it holds",
            render_size(now),
            render_size(wanted)
        ));
    }
    let stays_open = with_live_part_of(&old.config, desired) == *desired;
    if !stays_open || has_other_identity {
        if in_memory {
            return refuse(
                "is in memory, and what it holds would be lost with this change: remove it and make \
                 another one"
                    .into(),
            );
        }
        return Ok(Fate::Replaced);
    }
    if wanted == now {
        return Ok(Fate::Stays(None));
    }
    if desired.protection.is_some() || desired.read_only {
        let why = if desired.read_only { "is read-only" } else { "has protection information" };
        return refuse(format!("{why} and cannot grow while it is served"));
    }
    Ok(Fate::Stays(Some(wanted)))
}

/// A target that stays and changes.
pub(super) struct TargetChange {
    /// Where it is among the desired ones.
    pub(super) index: usize,
    /// Groups whose access state is another one than was configured.
    pub(super) access: Vec<(u16, AccessState)>,
}

/// What becomes of the targets. Those that stay as they are are not in it.
#[derive(Default)]
pub(super) struct TargetSteps {
    /// Where they are among the desired ones.
    pub(super) added: Vec<usize>,
    pub(super) changed: Vec<TargetChange>,
    pub(super) removed: Vec<String>,
    pub(super) losses: BTreeMap<String, TargetLoss>,
}

impl TargetSteps {
    pub(super) fn between(running: &Running, desired: &Config, volumes: &VolumeSteps) -> Self {
        let old_by_name: HashMap<&str, &TargetConfig> =
            running.config.targets.iter().map(|target| (target.name.as_str(), target)).collect();
        let opened: HashSet<&str> =
            volumes.opens.iter().chain(&volumes.late).map(|volume| volume.name.as_str()).collect();
        // By the name that is desired, the one that it had.
        let stays: HashMap<&str, &str> = volumes
            .stays
            .iter()
            .map(|stay| (stay.desired.name.as_str(), stay.running.as_str()))
            .collect();
        let groups_before = running.groups();
        let groups: BTreeSet<u16> = desired.listen.iter().map(|portal| portal.group).collect();
        let mut steps = Self::default();
        let mut found = 0;
        for (index, target) in desired.targets.iter().enumerate() {
            let Some(old) = old_by_name.get(target.name.as_str()) else {
                steps.added.push(index);
                continue;
            };
            found += 1;
            let has_new_unit = || target.luns.values().any(|name| opened.contains(name.as_str()));
            if *old == target && groups == groups_before && !has_new_unit() {
                continue;
            }
            let reached = |target: &TargetConfig, groups: &BTreeSet<u16>| -> BTreeSet<u16> {
                groups.iter().copied().filter(|group| target.is_reached_through(*group)).collect()
            };
            let lost_groups = &reached(old, &groups_before) - &reached(target, &groups);
            let is_same_unit = |lun: &u16, name: &str| {
                target.luns.get(lun).is_some_and(|new| {
                    !opened.contains(new.as_str())
                        && *stays.get(new.as_str()).unwrap_or(&new.as_str()) == name
                })
            };
            let lost = old.luns.iter().filter(|(lun, name)| !is_same_unit(lun, name));
            let luns: BTreeMap<u16, Object> = lost
                .map(|(&lun, name)| match volumes.closes.contains(name) {
                    true => (lun, Object::Volume(name.clone())),
                    false => (lun, Object::Lun { target: target.name.clone(), lun }),
                })
                .collect();
            if !luns.is_empty() || !lost_groups.is_empty() {
                let loss = TargetLoss::Part { groups: lost_groups, luns };
                steps.losses.insert(target.name.clone(), loss);
            }
            let state = |target: &TargetConfig, group| {
                target.access.get(&group).copied().unwrap_or(AccessState::Optimized)
            };
            let named = old.access.keys().chain(target.access.keys()).copied();
            let named: BTreeSet<u16> = named.filter(|group| groups.contains(group)).collect();
            let access = named
                .into_iter()
                .filter(|&group| target.is_reached_through(group))
                .filter(|&group| state(old, group) != state(target, group))
                .map(|group| (group, state(target, group)))
                .collect();
            steps.changed.push(TargetChange { index, access });
        }
        if found < old_by_name.len() {
            let names: HashSet<&str> =
                desired.targets.iter().map(|target| target.name.as_str()).collect();
            let gone = running.config.targets.iter().filter(|old| !names.contains(&*old.name));
            for target in gone {
                steps.removed.push(target.name.clone());
                steps.losses.insert(target.name.clone(), TargetLoss::All);
            }
        }
        steps
    }
}
