//! The steps from the running objects to the desired ones. Unchanged objects are compared once and need no further
//! work.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use sarsen_scsi::{AccessState, Identity};

use super::claims::{Holding, Mark, holdings};
use super::pools::is_same_pool;
use super::volumes::{Volume, identity};
use super::{ChangeError, Running};
use crate::access::{Object, TargetLoss};
use crate::config::{Config, Different, StoreKind, TargetConfig, VolumeConfig, render_size};
use crate::model::ByteSize;
use crate::stores::{MarkRule, OpenMode, PoolBacking};

/// A volume that stays open.
pub(super) struct RetainedVolume {
    /// Its current name.
    pub(super) running: String,
    pub(super) desired: VolumeConfig,
    /// Its new size in bytes, if it grows.
    pub(super) grows_to: Option<u64>,
}

/// The steps for volumes. Unchanged volumes are not in it.
#[derive(Default)]
pub(super) struct VolumeSteps {
    pub(super) stays: Vec<RetainedVolume>,
    pub(super) opens: Vec<VolumeConfig>,
    /// Volumes that are opened after others that hold their files or their identity are closed.
    pub(super) late: Vec<VolumeConfig>,
    pub(super) closes: BTreeSet<String>,
    /// Those of `closes` that hold what the late ones need.
    pub(super) closes_first: BTreeSet<String>,
}

/// The transition of a running volume to its desired configuration.
enum VolumeTransition {
    Stays(Option<u64>),
    Replaced,
}

/// The differences between two configurations.
pub(super) struct Differences<'a> {
    pub(super) volumes: Different<'a, VolumeConfig>,
    pub(super) targets: Different<'a, TargetConfig>,
    desired: &'a Config,
    /// The new names of pools, by their current names.
    pools: HashMap<&'a str, &'a str>,
    /// The new targets of volumes in changed targets; `None` for a volume that left its target.
    scopes: HashMap<&'a str, Option<&'a str>>,
}

impl<'a> Differences<'a> {
    pub(super) fn between(running: &'a Config, desired: &'a Config) -> Self {
        let targets = Different::between(&running.targets, &desired.targets);
        let mut scopes = HashMap::new();
        for target in &targets.old {
            scopes.extend(target.luns.values().map(|volume| (volume.as_str(), None)));
        }
        for (_, target) in &targets.new {
            let scope = Some(target.name.as_str());
            scopes.extend(target.luns.values().map(|volume| (volume.as_str(), scope)));
        }
        let volumes = Different::between(&running.volumes, &desired.volumes);
        let mut pools = HashMap::new();
        for pool in &running.pools {
            let same = desired.pools.iter().find(|desired| is_same_pool(pool, desired));
            pools.extend(same.map(|same| (pool.name.as_str(), same.name.as_str())));
        }
        Self { volumes, targets, desired, pools, scopes }
    }

    /// Returns the target from which a volume's identity is derived, if it has no serial number.
    pub(super) fn scope(&self, running: &'a Running, volume: &VolumeConfig) -> Option<&'a str> {
        if volume.serial.is_some() {
            return None;
        }
        let volume = volume.name.as_str();
        self.scopes.get(volume).copied().unwrap_or_else(|| {
            let target = running.config.targets.iter();
            let mut target = target.filter(|target| target.luns.values().any(|one| one == volume));
            target.next().map(|target| target.name.as_str())
        })
    }
}

/// The previous volumes. A volume that is to be opened may be one of them.
pub(super) struct Known<'a> {
    running: &'a Running,
    by_serial: HashMap<&'a str, Vec<&'a VolumeConfig>>,
    by_place: HashMap<&'a Path, &'a VolumeConfig>,
}

impl<'a> Known<'a> {
    pub(super) fn new(running: &'a Running, different: &Differences<'a>) -> Self {
        let absent = running.absent.volumes.iter().map(|absent| &absent.config);
        let mut known = Self { running, by_serial: HashMap::new(), by_place: HashMap::new() };
        for volume in different.volumes.old.iter().copied().chain(absent) {
            if let Some(serial) = &volume.serial {
                known.by_serial.entry(serial).or_default().push(volume);
            }
            known.by_place.extend(data_place(volume).map(|place| (place, volume)));
        }
        known
    }

    /// Returns the previous form of a volume: one with the same file, or with the same serial number and the same NAA
    /// identifier or name.
    fn of(&self, volume: &VolumeConfig) -> Option<&'a VolumeConfig> {
        let serial = volume.serial.as_deref();
        let mut same = serial.and_then(|serial| self.by_serial.get(serial)).into_iter().flatten();
        let is_it = |known: &&&VolumeConfig| known.naa == volume.naa || known.name == volume.name;
        let in_place = data_place(volume).and_then(|place| self.by_place.get(place));
        in_place.or_else(|| same.find(is_it)).copied()
    }

    /// Returns the mode in which a volume is to be opened. If a server `starts` with a state, all volumes count as
    /// known.
    pub(super) fn open_mode(&self, volume: &VolumeConfig, starts: bool) -> OpenMode {
        let known = self.of(volume);
        let serial = volume.serial.as_deref();
        let length_before_growth =
            serial.and_then(|serial| self.running.length_before_growth.get(serial)).copied();
        if known.is_none() && !starts {
            return match self.running.config.state {
                Some(_) => OpenMode::Create,
                None => OpenMode::OpenOrCreate,
            };
        }
        let in_place = known.filter(|known| data_place(known) == data_place(volume));
        let open = in_place.and_then(|known| self.running.volumes.get(&known.name));
        let has_state = known.is_none_or(|known| state_folder(known) == state_folder(volume));
        OpenMode::Existing {
            length_before_growth: open.and_then(Volume::file_length).or(length_before_growth),
            has_state,
            had: in_place
                .and_then(|known| self.running.absent.volume(known))
                .and_then(|missing| missing.open_mode.had()),
            mark: match known {
                _ if !starts && self.running.config.state.is_none() => MarkRule::Ignore,
                Some(known) if known.serial != volume.serial || in_place.is_none() => {
                    MarkRule::Give
                }
                Some(_) | None => MarkRule::Check,
            },
        }
    }

    /// Returns the mode for a volume that is closed only to be opened again: nothing is created, and the length of its
    /// file stays.
    pub(super) fn reattachment(&self, volume: &VolumeConfig) -> OpenMode {
        let serial = volume.serial.as_deref();
        let length_before_growth =
            serial.and_then(|serial| self.running.length_before_growth.get(serial)).copied();
        let open = self.running.volumes.get(&volume.name);
        let had = open.and_then(Volume::file_length);
        OpenMode::Existing {
            length_before_growth: length_before_growth.or(had),
            has_state: true,
            had,
            mark: match self.running.config.state {
                // A unit is remembered by the volume's own records.
                None if volume.remote.is_none() => MarkRule::Ignore,
                Some(_) | None => MarkRule::Confirm,
            },
        }
    }

    /// Refuses another block size for the file of a missing volume.
    fn refuse_other_blocks(&self, volume: &VolumeConfig) -> Result<(), ChangeError> {
        let known = data_place(volume).and_then(|place| self.by_place.get(place));
        let is_same = |known: &&&VolumeConfig| {
            let serial = &volume.serial;
            known.name == volume.name || serial.is_some() && known.serial == *serial
        };
        known.filter(is_same).map_or(Ok(()), |known| refuse_other_blocks(known, volume))
    }
}

/// Returns the path of a volume's blocks.
pub(super) fn data_place(config: &VolumeConfig) -> Option<&Path> {
    config.path.as_deref()
}

/// Returns the configured folder of its state.
fn state_folder(config: &VolumeConfig) -> Option<&Path> {
    config.state.as_deref()
}

fn refuse_other_blocks(known: &VolumeConfig, desired: &VolumeConfig) -> Result<(), ChangeError> {
    if known.block_size() == desired.block_size() {
        return Ok(());
    }
    let why = format!(
        "was written in blocks of {} bytes, and would be something else in blocks of {}: leave block-size as it is",
        known.block_size().bytes(),
        desired.block_size().bytes()
    );
    Err(ChangeError::impossible(&desired.name, why))
}

/// Refuses another format of the data of an open volume. It would not open again.
fn refuse_other_format(open: &VolumeConfig, desired: &VolumeConfig) -> Result<(), ChangeError> {
    refuse_other_blocks(open, desired)?;
    let field = if open.encrypted != desired.encrypted {
        "encrypted"
    } else if open.protection != desired.protection {
        "protection"
    } else {
        return Ok(());
    };
    let why = format!(
        "has data that was written with another value of {field}: leave {field} as it is, or copy the data to another \
         volume"
    );
    Err(ChangeError::impossible(&desired.name, why))
}

impl VolumeSteps {
    pub(super) fn between(
        running: &Running,
        different: &Differences<'_>,
        known: &Known<'_>,
        again: Option<&VolumeConfig>,
        machine: &str,
        is_claimed: impl Fn(&[Holding]) -> bool,
    ) -> Result<Self, ChangeError> {
        let mut steps = Self::default();
        let mut left: HashMap<&str, &Volume> = different
            .volumes
            .old
            .iter()
            .filter_map(|old| Some((old.name.as_str(), running.volumes.get(&old.name)?)))
            .collect();
        let scope = |volume| different.scope(running, volume);
        let mut unmatched = Vec::new();
        for (_, volume) in &different.volumes.new {
            let found = left.get(volume.name.as_str()).copied();
            match found.filter(|old| old.config.serial == volume.serial) {
                Some(old) => {
                    left.remove(volume.name.as_str());
                    steps.take(old, volume, different, scope(volume), machine)?;
                }
                None => unmatched.push(*volume),
            }
        }
        let mut by_serial: HashMap<&str, &Volume> = if unmatched.is_empty() {
            HashMap::new()
        } else {
            left.values().filter_map(|old| Some((old.config.serial.as_deref()?, *old))).collect()
        };
        for volume in unmatched {
            let serial = volume.serial.as_deref();
            let old = serial.and_then(|serial| by_serial.get(serial)).copied();
            match old.filter(|old| is_renamed(old, volume, machine)) {
                Some(old) => {
                    by_serial.remove(serial.unwrap_or_default());
                    left.remove(old.config.name.as_str());
                    steps.take(old, volume, different, scope(volume), machine)?;
                }
                None => steps.opens.push(volume.clone()),
            }
        }
        for volume in &steps.opens {
            known.refuse_other_blocks(volume)?;
            if let Some(old) = left.get(volume.name.as_str()) {
                refuse_loss_of_memory(old, volume)?;
                refuse_other_serial(old, volume)?;
            }
        }
        steps.closes.extend(left.into_keys().map(str::to_owned));
        steps.take_moved(running, different, machine)?;
        again.map_or(Ok(()), |volume| steps.reopen(volume, running))?;
        steps.put_off(&running.volumes, is_claimed);
        Ok(steps)
    }

    /// Closes and reopens a volume without a change of its configuration.
    fn reopen(&mut self, volume: &VolumeConfig, running: &Running) -> Result<(), ChangeError> {
        let Some(old) = running.volumes.get(&volume.name) else { return Ok(()) };
        refuse_loss_of_memory(old, volume)?;
        self.stays.retain(|stay| stay.running != volume.name);
        if self.closes.insert(volume.name.clone()) {
            self.opens.push(volume.clone());
        }
        Ok(())
    }

    /// Handles unchanged volumes that moved to another target. The identity of some of them is derived from the target.
    fn take_moved(
        &mut self,
        running: &Running,
        different: &Differences<'_>,
        machine: &str,
    ) -> Result<(), ChangeError> {
        let changed: HashSet<&str> =
            different.volumes.old.iter().map(|volume| volume.name.as_str()).collect();
        for (name, scope) in &different.scopes {
            let moved = running
                .volumes
                .get(*name)
                .filter(|old| old.config.serial.is_none() && !changed.contains(name));
            if let Some(old) = moved {
                self.take(old, &old.config, different, *scope, machine)?;
            }
        }
        Ok(())
    }

    /// Handles a desired volume and its running counterpart.
    fn take(
        &mut self,
        old: &Volume,
        desired: &VolumeConfig,
        different: &Differences<'_>,
        scope: Option<&str>,
        machine: &str,
    ) -> Result<(), ChangeError> {
        let has_other_identity = old.config.serial.is_none()
            && old.scope.as_deref() != scope
            && *old.unit.identity() != identity(desired, scope, machine);
        if old.config == *desired && !has_other_identity {
            return Ok(());
        }
        if let (Some(pool), Some(desired_pool)) = (&old.config.pool, &desired.pool)
            && different.pools.get(pool.as_str()) != Some(&desired_pool.as_str())
        {
            let why = format!(
                "is in pool {pool}: leave pool as it is, or copy its data to a volume of another pool"
            );
            return Err(ChangeError::impossible(&desired.name, why));
        }
        match fate(old, desired, different, has_other_identity)? {
            VolumeTransition::Stays(grows_to) => self.stays.push(RetainedVolume {
                running: old.config.name.clone(),
                desired: desired.clone(),
                grows_to,
            }),
            VolumeTransition::Replaced => {
                self.closes.insert(old.config.name.clone());
                self.opens.push(desired.clone());
            }
        }
        Ok(())
    }

    /// Postpones the opening of volumes that need what a volume holds that is still to be closed.
    fn put_off(
        &mut self,
        running: &BTreeMap<String, Volume>,
        is_claimed: impl Fn(&[Holding]) -> bool,
    ) {
        let mut holders: HashMap<Mark, Vec<(Holding, &str)>> = HashMap::new();
        for name in &self.closes {
            let Some(old) = running.get(name) else { continue };
            for held in holdings(&old.config) {
                holders.entry(held.mark.clone()).or_default().push((held, name));
            }
        }
        for volume in std::mem::take(&mut self.opens) {
            let needed = holdings(&volume);
            let in_the_way = needed.iter().flat_map(|needed| {
                let holders = holders.get(&needed.mark).into_iter().flatten();
                holders.filter(|(held, _)| held.excludes(needed)).map(|(_, name)| *name)
            });
            let in_the_way: Vec<_> = in_the_way.collect();
            if in_the_way.is_empty() && !is_claimed(&needed) {
                self.opens.push(volume);
            } else {
                self.closes_first.extend(in_the_way.into_iter().map(str::to_owned));
                self.late.push(volume);
            }
        }
    }
}

/// Returns whether a volume only has a new name. If its identity differs too, it is another volume.
fn is_renamed(old: &Volume, desired: &VolumeConfig, machine: &str) -> bool {
    let before = old.unit.identity();
    let renamed = identity(desired, None, machine);
    *before == Identity { volume: before.volume.clone(), ..renamed }
}

/// Returns the configured size in bytes.
fn size_of(config: &VolumeConfig) -> Option<u64> {
    config.size.map(ByteSize::get)
}

/// Returns the configuration with those settings of `other` that can change while the volume is open.
fn with_live_part_of(config: &VolumeConfig, other: &VolumeConfig) -> VolumeConfig {
    let VolumeConfig { size, iops, bandwidth, burst, weight, reserved_iops, .. } = *other;
    VolumeConfig {
        name: other.name.clone(),
        pool: other.pool.clone(),
        remote: match (&config.remote, &other.remote) {
            // Another name of an account is used when the volume is opened again.
            (Some(open), Some(desired)) if open.is_same_place(desired) => other.remote.clone(),
            _ => config.remote.clone(),
        },
        clone_of: other.clone_of.clone(),
        image: other.image.clone(),
        image_format: other.image_format,
        snapshot_schedule: other.snapshot_schedule.clone(),
        mirror: other.mirror,
        stripes: other.stripes,
        checksums: other.checksums,
        size,
        iops,
        bandwidth,
        burst,
        weight,
        reserved_iops,
        ..config.clone()
    }
}

/// Returns whether a volume that serves a snapshot serves the same one, whose volume perhaps gets another name.
fn is_same_snapshot(old: &Volume, desired: &VolumeConfig, config: &Config) -> bool {
    let (Some(after), Some(PoolBacking { pool, id, .. })) = (&desired.snapshot, &old.backing.pool)
    else {
        return false;
    };
    let volume = pool.find_volume(&after.volume, config.serial_of(&after.volume));
    let snapshot = volume.and_then(|volume| pool.find_snapshot(volume.id, &after.snapshot));
    snapshot.is_some_and(|snapshot| snapshot.id == *id)
}

/// Refuses another serial number for a volume in a pool, which the pool knows by it.
fn refuse_other_serial(old: &Volume, desired: &VolumeConfig) -> Result<(), ChangeError> {
    if old.config.pool.is_none() || old.config.pool != desired.pool || old.config.snapshot.is_some()
    {
        return Ok(());
    }
    let why = "is known by its serial number in its pool: leave serial as it is";
    Err(ChangeError::impossible(&desired.name, why))
}

/// Refuses other copies, stripes or checksums for a volume in a pool, which has those with which it was created.
fn refuse_other_layout(old: &Volume, desired: &VolumeConfig) -> Result<(), ChangeError> {
    let Some(PoolBacking { pool, id, .. }) = &old.backing.pool else { return Ok(()) };
    let Some(known) = pool.pool.find(|one| one.id == *id) else { return Ok(()) };
    match desired.other_layout((known.copies, known.stripes, known.has_checksums)) {
        None => Ok(()),
        Some((key, has)) => {
            let why = format!(
                "was created with {key} = {has}: leave {key} as it is, or copy its data to a new volume"
            );
            Err(ChangeError::impossible(&desired.name, why))
        }
    }
}

/// Refuses a change that would lose the data of a volume in memory, such as its replacement by another volume with its
/// name.
fn refuse_loss_of_memory(old: &Volume, desired: &VolumeConfig) -> Result<(), ChangeError> {
    if old.config.store != StoreKind::Ram {
        return Ok(());
    }
    let why = "is in memory, and what it holds would be lost with this change: remove it and make another one";
    Err(ChangeError::impossible(&desired.name, why))
}

fn fate(
    old: &Volume,
    desired: &VolumeConfig,
    different: &Differences<'_>,
    has_other_identity: bool,
) -> Result<VolumeTransition, ChangeError> {
    let refuse = |why| Err(ChangeError::impossible(&desired.name, why));
    let now = old.size();
    let wanted = size_of(desired).unwrap_or(now);
    let is_same_place = data_place(&old.config) == data_place(desired);
    let in_memory = old.config.store == StoreKind::Ram;
    if wanted < now && (is_same_place || in_memory) {
        return refuse(format!(
            "has {} and cannot become smaller ({}): make another volume and copy what it holds",
            render_size(now),
            render_size(wanted)
        ));
    }
    if is_same_place && !in_memory {
        refuse_other_format(&old.config, desired)?;
    }
    refuse_other_layout(old, desired)?;
    let mut kept = with_live_part_of(&old.config, desired);
    if is_same_snapshot(old, desired, different.desired) {
        kept.snapshot.clone_from(&desired.snapshot);
    }
    let stays_open = kept == *desired;
    if !stays_open || has_other_identity {
        refuse_loss_of_memory(old, desired)?;
        return Ok(VolumeTransition::Replaced);
    }
    if wanted == now {
        return Ok(VolumeTransition::Stays(None));
    }
    if desired.protection.is_some() || desired.is_read_only() {
        let why =
            if desired.is_read_only() { "is read-only" } else { "has protection information" };
        return refuse(format!("{why} and cannot grow while it is served"));
    }
    Ok(VolumeTransition::Stays(Some(wanted)))
}

/// A changed target that stays.
pub(super) struct TargetChange {
    /// Its index in the desired targets.
    pub(super) index: usize,
    /// The groups whose configured access state changes, with the new states.
    pub(super) access: Vec<(u16, AccessState)>,
}

/// The steps for targets. Unchanged targets are not in it.
#[derive(Default)]
pub(super) struct TargetSteps {
    /// The indices of new targets in the desired targets.
    pub(super) added: Vec<usize>,
    pub(super) changed: Vec<TargetChange>,
    pub(super) removed: Vec<String>,
    pub(super) losses: BTreeMap<String, TargetLoss>,
}

impl TargetSteps {
    pub(super) fn between(
        running: &Running,
        desired: &Config,
        groups: BTreeSet<u16>,
        different: &Differences<'_>,
        volumes: &VolumeSteps,
    ) -> Self {
        let opened: HashSet<&str> =
            volumes.opens.iter().chain(&volumes.late).map(|volume| volume.name.as_str()).collect();
        // The current name of each volume that stays, by its desired name.
        let stays: HashMap<&str, &str> = volumes
            .stays
            .iter()
            .map(|stay| (stay.desired.name.as_str(), stay.running.as_str()))
            .collect();
        let groups_before = running.groups();
        let all_change = groups != groups_before;
        let old_by_name: HashMap<&str, &TargetConfig> = if all_change {
            running.config.targets.iter().map(|old| (old.name.as_str(), old)).collect()
        } else {
            different.targets.old.iter().map(|old| (old.name.as_str(), *old)).collect()
        };
        let mut candidates: Vec<(usize, &TargetConfig, Option<&TargetConfig>)> = if all_change {
            let all = desired.targets.iter().enumerate();
            all.map(|(index, one)| (index, one, old_by_name.get(&*one.name).copied())).collect()
        } else {
            let new = different.targets.new.iter();
            new.map(|&(index, one)| (index, one, old_by_name.get(&*one.name).copied())).collect()
        };
        // The names that denote another unit than before.
        let renamed = stays.iter().filter(|(desired, running)| desired != running);
        let mut other_units: HashSet<&str> = opened.clone();
        other_units.extend(renamed.map(|(desired, _)| *desired));
        for (_, target, _) in &candidates {
            for name in target.luns.values() {
                other_units.remove(name.as_str());
            }
        }
        if !other_units.is_empty() {
            // A volume is in one target, so the targets of the remaining volumes are not in `candidates`.
            let all = desired.targets.iter().enumerate();
            let renewed = all.filter(|(_, target)| {
                target.luns.values().any(|name| other_units.contains(name.as_str()))
            });
            candidates.extend(renewed.map(|(index, target)| (index, target, Some(target))));
        }
        let mut steps = Self::default();
        let mut found = HashSet::new();
        for (index, target, old) in candidates {
            let Some(old) = old else {
                steps.added.push(index);
                continue;
            };
            found.insert(old.name.as_str());
            let lost_groups = &old.reached_groups(&groups_before) - &target.reached_groups(&groups);
            let is_same_unit = |lun: &u16, name: &str| {
                target.luns.get(lun).is_some_and(|new| {
                    !opened.contains(new.as_str())
                        && *stays.get(new.as_str()).unwrap_or(&new.as_str()) == name
                })
            };
            // No session loses anything with a volume that could not be opened.
            let served = old.luns.iter().filter(|(_, name)| running.volumes.contains_key(*name));
            let lost = served.filter(|(lun, name)| !is_same_unit(lun, name));
            let luns: BTreeMap<u16, Object> = lost
                .map(|(&lun, name)| {
                    if volumes.closes.contains(name) {
                        (lun, Object::Volume(name.clone()))
                    } else {
                        (lun, Object::Lun { target: target.name.clone(), lun })
                    }
                })
                .collect();
            if !luns.is_empty() || !lost_groups.is_empty() {
                let loss = TargetLoss::Part { groups: lost_groups, luns };
                steps.losses.insert(target.name.clone(), loss);
            }
            let named = old.access.keys().chain(target.access.keys()).copied();
            let named: BTreeSet<u16> = named.filter(|group| groups.contains(group)).collect();
            let access = named
                .into_iter()
                .filter(|&group| target.is_reached_through(group))
                .filter(|&group| old.access_state(group) != target.access_state(group))
                .map(|group| (group, target.access_state(group)))
                .collect();
            steps.changed.push(TargetChange { index, access });
        }
        for target in old_by_name.values().filter(|old| !found.contains(old.name.as_str())) {
            steps.removed.push(target.name.clone());
            steps.losses.insert(target.name.clone(), TargetLoss::All);
        }
        steps
    }
}
