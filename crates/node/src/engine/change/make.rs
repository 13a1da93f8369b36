//! The moment that puts a change into force, all of it at once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use sarsen_scsi::{LogicalUnit, Lun, TargetDevice};
use tracing::{info, warn};

use super::super::diff::RetainedVolume;
use super::super::missing::{self, MissingObjects};
use super::super::portals::{Bound, NextPortal, Served};
use super::super::volumes::{NewFiles, Volume, grow};
use super::super::{Running, target_ports};
use super::{Change, ChangeOutcome};
use crate::config::{Config, Rates, VolumeConfig};
use crate::targets::Target;

impl Change {
    pub(super) fn make(mut self) -> ChangeOutcome {
        self.is_made = true;
        self.new_files.drain(..).for_each(NewFiles::keep);
        let engine = self.engine().clone();
        let front = &engine.front;
        let mut running = engine.running();
        let running = &mut *running;
        let is_fairness_changed = self.changes_fairness(running);
        let mut stays = self.volumes.stays.iter();
        let are_names_gone =
            !self.volumes.closes.is_empty() || stays.any(|stay| stay.running != stay.desired.name);
        let owes = self.lengths_before_growth(running);
        let opened = self.opened.values();
        let opened = opened.filter_map(|volume| volume.config.identity.serial.clone()).collect();
        let (gone, not_grown, not_made) = self.make_volumes(&mut running.volumes);
        let needs_restart = keep_what_was_started(&running.config, &mut self.desired);
        if self.desired.limits != running.config.limits {
            front.set_limits(&self.desired.limits);
        }
        for (name, _) in &not_grown {
            // The next change tries the growth again.
            let is = |volume: &&mut VolumeConfig| volume.name == *name;
            if let (Some(volume), Some(config)) =
                (running.volumes.get_mut(name), self.desired.volumes.iter_mut().find(is))
            {
                volume.adopt_actual_size();
                config.clone_from(&volume.config);
            }
        }
        let problems = not_grown.iter().map(missing::not_grown);
        let problems = problems.chain(not_made).collect();
        running.config = Arc::new(std::mem::take(&mut self.desired));
        running.absent = MissingObjects { growths: not_grown, ..std::mem::take(&mut self.absent) };
        running.settle(owes, &opened);
        if are_names_gone {
            let volumes = &running.config.volumes;
            let names: HashSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
            front.access.metrics.statistics.keep(|name| names.contains(name));
        }
        if is_fairness_changed {
            front.qos.apply(&running.config);
        }
        // Units are removed before access widens, and added after access narrows.
        self.narrow_targets(running);
        let sessions_ended = front.access.replace(
            self.policy.clone(),
            &front.sessions,
            &front.targets,
            &self.losses,
        );
        self.make_targets(running);
        // The targets and rules for clients of new portals are in force before the portals open.
        self.make_portals(&mut running.portals, &running.config);
        engine.show(running);
        engine.closings.begin(gone, engine.cores.clone());
        front.targets.tell();
        ChangeOutcome { needs_restart, sessions_ended, problems, is_unflushed: self.is_unflushed }
    }

    /// Returns whether the change affects QoS settings.
    fn changes_fairness(&self, running: &Running) -> bool {
        let has_say = |volume: &VolumeConfig| volume.qos != Rates::default();
        let steps = &self.volumes;
        let touched = steps.closes.iter().chain(steps.stays.iter().map(|stay| &stay.running));
        let mut before = touched.filter_map(|name| running.volumes.get(name));
        let stays = steps.stays.iter().map(|stay| &stay.desired);
        self.desired.hosts != running.config.hosts
            || self.desired.limits != running.config.limits
            || before.any(|volume| has_say(&volume.config))
            || self.opened.values().any(|volume| has_say(&volume.config))
            || { stays }.any(has_say)
    }

    /// Applies the steps for volumes. Returns the closed volumes, those that did not grow, and the reasons why others
    /// cannot be used.
    fn make_volumes(
        &mut self,
        volumes: &mut BTreeMap<String, Volume>,
    ) -> (Vec<Volume>, Vec<(String, String)>, Vec<String>) {
        let closes = self.volumes.closes.iter();
        let gone = closes.filter_map(|name| volumes.remove(name)).collect();
        let stays = std::mem::take(&mut self.volumes.stays).into_iter();
        let renamed: Vec<_> =
            stays.filter_map(|stay| Some((volumes.remove(&stay.running)?, stay))).collect();
        let mut growths = Vec::new();
        for (mut volume, RetainedVolume { running, desired, grows_to }) in renamed {
            if running != desired.name {
                info!(volume = running, new_name = desired.name, "the volume is renamed");
            }
            volume.unit.rename(&desired.name);
            volume.config = desired;
            growths.extend(grows_to.map(|bytes| volume.growth(bytes)));
            volumes.insert(volume.config.name.clone(), volume);
        }
        let mut not_grown = grow(&self.engine().cores, growths);
        let (mut not_made, mut problems) = (Vec::new(), Vec::new());
        for (name, volume) in &mut self.opened {
            match volume.grow_file() {
                Err(error) if volume.has_unwritten_metadata() => {
                    not_made.push((name.clone(), error))
                }
                Err(error) => not_grown.push((name.clone(), error.to_string())),
                Ok(()) => {
                    let imprinted = volume.imprint();
                    not_made.extend(imprinted.err().map(|error| (name.clone(), error)));
                }
            }
        }
        for (name, error) in not_made {
            self.desired.volumes.retain(|volume| volume.name != name);
            let why = format!("volume {name}: {error}");
            if let Some(volume) = self.opened.remove(&name) {
                self.absent.volumes.push((volume.config, why.clone()));
            }
            problems.push(why);
        }
        volumes.append(&mut self.opened);
        (gone, not_grown, problems)
    }

    fn make_portals(&mut self, portals: &mut Vec<Served>, config: &Config) {
        let engine = self.turn.0.clone();
        let mut old: Vec<Option<Served>> = std::mem::take(portals).into_iter().map(Some).collect();
        let next = std::mem::take(&mut self.portals.next).into_iter();
        for (next, configured) in next.zip(&config.listen) {
            let configured = configured.clone();
            let mut take = |number: usize| old[number].take();
            let served = match next {
                NextPortal::Kept(number) => take(number),
                NextPortal::Renewed(number, encryption) => take(number).map(|served| {
                    served.portal.set_encryption(Some(encryption));
                    Served { configured, ..served }
                }),
                NextPortal::Changed(number, portal) => take(number).and_then(|served| {
                    let (listener, _) = served.socket?;
                    let bound = Bound { portal, listener };
                    Some(Served::open(configured, bound, &engine.acceptor))
                }),
                NextPortal::New(bound) => Some(Served::open(configured, bound, &engine.acceptor)),
                NextPortal::Late(_) => {
                    unreachable!("late portals are bound after the removed ones are closed")
                }
            };
            portals.extend(served);
        }
        let limits = &config.limits;
        for (listener, _) in portals.iter().filter_map(|served| served.socket.as_ref()) {
            if let Err(error) = listener.give_up_after(limits.keepalive, limits.user_timeout) {
                warn!(%error, "a portal's connections are given up as before");
            }
        }
        engine.front.portals.replace(portals.iter().map(|one| one.portal.clone()).collect());
    }

    /// Returns the current lengths of files that the change will grow, by their volumes' serial numbers.
    pub(super) fn lengths_before_growth(&self, running: &Running) -> BTreeMap<String, u64> {
        let stays = self.volumes.stays.iter().filter(|stay| stay.grows_to.is_some());
        let grow = stays.filter_map(|stay| {
            let volume = running.volumes.get(&stay.running)?;
            Some((volume, volume.file_length()?))
        });
        let opened = self
            .opened
            .values()
            .filter_map(|volume| Some((volume, volume.length_before_growth()?)));
        let lengths = grow
            .chain(opened)
            .filter_map(|(volume, length)| Some((volume.config.identity.serial.clone()?, length)));
        lengths.collect()
    }

    /// Takes units out of targets that do not have them any more.
    fn narrow_targets(&self, running: &Running) {
        for change in &self.targets.changed {
            let target = &running.config.targets[change.index];
            let Some(found) = self.engine().front.targets.find(&target.name) else { continue };
            let (before, after) = (found.device.luns(), running.luns(target));
            let stays = |(lun, unit): &(&Lun, &Arc<LogicalUnit>)| {
                after.get(lun).is_some_and(|after| Arc::ptr_eq(after, unit))
            };
            let kept = before.iter().filter(stays).map(|(lun, unit)| (*lun, unit.clone()));
            let kept: BTreeMap<_, _> = kept.collect();
            if kept.len() < before.len() {
                found.device.set_luns(kept);
            }
        }
    }

    fn make_targets(&self, running: &Running) {
        let engine = self.engine();
        let front = &engine.front;
        let groups = running.groups();
        let targets = &running.config.targets;
        let found = |device, index: usize| Target {
            device,
            alias: targets[index].alias.clone(),
            groups: targets[index].groups.clone(),
            redirect: targets[index].redirect.clone(),
        };
        let mut come = Vec::with_capacity(self.targets.added.len() + self.targets.changed.len());
        let mut changed = HashSet::new();
        for change in &self.targets.changed {
            let target = &targets[change.index];
            let Some(Target { device, .. }) = front.targets.find(&target.name) else { continue };
            device.set_ports(target_ports(target, &groups));
            device.set_alua(target.alua.unwrap_or_default());
            for &(group, state) in &change.access {
                if let Err(error) = device.set_access_state(group, state) {
                    warn!(%error, "the access state stays as it is");
                }
            }
            device.set_luns(running.luns(target));
            changed.insert(target.name.as_str());
            come.push(found(device, change.index));
        }
        for &index in &self.targets.added {
            let target = &targets[index];
            let (luns, ports) = (running.luns(target), target_ports(target, &groups));
            let name = target.name.clone();
            let device = TargetDevice::with_ports(&engine.array, name, luns, ports);
            device.set_alua(target.alua.unwrap_or_default());
            come.push(found(device, index));
        }
        front.targets.change(come, &self.targets.removed);
        self.targets.removed.iter().for_each(|name| front.drains.forget(name));
        if !changed.is_empty() {
            front.sessions.refresh(&changed);
        }
    }
}

/// Keeps the running values of settings that are read only at the start. Returns the keys that differ.
fn keep_what_was_started(running: &Config, desired: &mut Config) -> Vec<&'static str> {
    let mut keys = Vec::new();
    let mut keep = |key, is_same: bool| {
        if !is_same {
            keys.push(key);
        }
    };
    keep("cores", running.cores == desired.cores);
    keep("io-engine", running.io_engine == desired.io_engine);
    keep("spin", running.spin == desired.spin);
    keep("control", running.control == desired.control);
    keep("isns", running.isns == desired.isns);
    keep("state", running.state == desired.state);
    keep("api", running.api == desired.api);
    desired.cores = running.cores;
    desired.io_engine = running.io_engine;
    desired.spin = running.spin;
    desired.control.clone_from(&running.control);
    desired.isns.clone_from(&running.isns);
    desired.state.clone_from(&running.state);
    desired.api.clone_from(&running.api);
    keys
}
