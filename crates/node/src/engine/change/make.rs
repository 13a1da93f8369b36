//! The moment that puts a change into force, all of it at once.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sarsen_scsi::{LogicalUnit, Lun, TargetDevice};
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::super::diff::RetainedVolume;
use super::super::portals::{Bound, NextPortal, Served};
use super::super::tasks::{Begun, Closing, Erasure, Part, Task, close};
use super::super::volumes::{Growth, Opening};
use super::super::{Engine, Running, target_ports};
use super::{Affected, ChangeOutcome, Force, Prepared, Steps};
use crate::config::{Config, Rates, TargetConfig, VolumeConfig};
use crate::stores::PoolRename;
use crate::targets::Target;

impl Prepared {
    /// Puts the steps into force, all at once, and starts the tasks that are left.
    pub(super) fn put_in_force(
        &mut self,
        running: &mut Running,
        mut steps: Steps,
        force: Force,
        affected: Affected,
        lengths: BTreeMap<String, u64>,
        mut erasures: BTreeMap<String, Erasure>,
    ) -> Begun {
        let engine = self.engine.clone();
        let front = &engine.front;
        let is_qos_changed = self.changes_qos(running, &steps);
        let (leaving, grace) = match force {
            Force::Everybody(grace) if !affected.sessions.is_empty() => {
                let asked = front.access.begin_leaving(&front.sessions, &affected.sessions);
                (Some((affected, asked)), grace)
            }
            Force::Nobody | Force::Revoked | Force::Everybody(_) => (None, Duration::ZERO),
        };
        self.new_files.drain(..).for_each(|(mut files, _)| files.keep());
        let is_unflushed = Arc::new(AtomicBool::new(self.is_unflushed));
        let (reports, received) = mpsc::unbounded_channel();
        let erased = |volume: &String, erasure: &Erasure| Part::Erasure {
            volume: volume.clone(),
            what: erasure.what.clone(),
        };
        let mut closings = Vec::new();
        for name in &steps.volumes.closes {
            let Some(volume) = running.volumes.remove(name) else { continue };
            let is_reattached = self.reattached.as_ref() == Some(name);
            let erasure = erasures.remove(name);
            let part = erasure.as_ref().map(|erasure| erased(name, erasure));
            let (config, store) = (&volume.config, volume.store.clone());
            closings.push(Closing {
                claim: engine.claims.closing(config, store, erasure.is_some()),
                is_unflushed: is_reattached.then(|| is_unflushed.clone()),
                erasure,
                part: part.unwrap_or_else(|| Part::Closing(name.clone())),
                reports: reports.clone(),
                volume,
            });
        }
        let mut pending: BTreeSet<Part> =
            closings.iter().map(|closing| closing.part.clone()).collect();
        let mut tasks: Vec<(Part, Task)> = erasures
            .into_iter()
            .map(|(volume, erasure)| {
                let claim = engine.claims.erasing(&volume, &erasure.paths);
                (erased(&volume, &erasure), Task::Erase { erasure, claim })
            })
            .collect();
        let are_names_gone = !steps.volumes.closes.is_empty()
            || steps.volumes.stays.iter().any(|stay| stay.running != stay.desired.name);
        let mut renames = Vec::new();
        tasks.extend(self.keep_volumes(running, &mut steps, &mut pending, &mut renames));
        let opened = self.take_opened(running, &steps.taken, &mut tasks, &mut renames);
        tasks.extend(Task::renames(renames));
        tasks.extend(std::mem::take(&mut steps.late).into_iter().map(|plan| {
            (
                Part::Volume(plan.config.name.clone()),
                Task::Open { plan: plan.into(), was_missing: false },
            )
        }));
        // A volume that is smaller than desired has its actual size in what is in force.
        for config in &mut steps.ready.volumes {
            let Some(volume) = running.volumes.get_mut(&config.name) else { continue };
            match volume.growth {
                Growth::None => {}
                // The growth that failed is not desired any more.
                Growth::Failed(_) if config.size == volume.config.size => {
                    volume.growth = Growth::None
                }
                Growth::Failed(_) | Growth::UnderWay(_) => config.clone_from(&volume.config),
            }
        }
        let mut needs_restart = keep_what_was_started(&running.config, &mut steps.ready);
        if engine.pools.has_other_cache(&self.desired.pools) {
            needs_restart.push("pool.cache");
        }
        if steps.ready.limits != running.config.limits {
            front.set_limits(&steps.ready.limits);
        }
        let access = |config: &Config, name: &str| {
            let target = config.targets.iter().find(|one| one.name == name).cloned();
            target.map(|TargetConfig { luns, allow, chap, .. }| (luns, allow, chap))
        };
        let is_asked_for =
            |name: &str| access(&running.desired, name) != access(&self.desired, name);
        let deferred = steps.deferred.iter().filter(|(target, _)| is_asked_for(target));
        let deferred = deferred.cloned().collect();
        running.desired = Arc::new(self.desired.clone());
        running.config = Arc::new(std::mem::take(&mut steps.ready));
        running.absent = std::mem::take(&mut steps.absent);
        running.settle(lengths, &opened);
        if are_names_gone {
            let volumes = &running.config.volumes;
            let names: HashSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
            front.access.metrics.statistics.keep(|name| names.contains(name));
        }
        if is_qos_changed {
            front.qos.apply(&running.config);
        }
        // Units are removed before access widens, and added after access narrows.
        let left = front.sessions.leaving_nexuses();
        steps.narrow_targets(&engine, running, &left);
        let sessions_ended = front.access.replace(
            steps.policy.clone(),
            &front.sessions,
            &front.targets,
            &steps.losses,
            leaving.as_ref().map_or(&Default::default(), |(affected, _)| &affected.sessions),
        );
        steps.make_targets(&engine, running, &left);
        // The targets and rules for clients of new portals are in force before the portals open.
        let closed = self.make_portals(running);
        if !self.portals.late.is_empty() {
            let late = self.portals.late.iter().map(|portal| format!("portal {}", portal.address));
            let names: Vec<_> = late.collect();
            tasks.push((Part::Portals(names.join(", ")), Task::ClosePortals(closed)));
        }
        let leave = leaving.map(|(_, sessions)| (Part::Sessions, Task::Leave { sessions, grace }));
        pending.extend(leave.iter().map(|(part, _)| part.clone()));
        let access = engine.remote_access(&running.desired.accounts);
        engine.pools.apply(&running.desired.pools, &access);
        engine.show(running);
        pending.extend(tasks.iter().map(|(part, _)| part.clone()));
        close(closings, engine.cores.clone(), engine.disk_permits.clone());
        // Other tasks may hang on a thread that they share.
        engine.begin_tasks(leave.into_iter().collect(), reports.clone());
        engine.begin_tasks(tasks, reports);
        front.targets.tell();
        running.deferred = std::mem::take(&mut steps.deferred);
        let outcome = ChangeOutcome { needs_restart, sessions_ended, ..ChangeOutcome::default() };
        Begun { engine, pending, reports: received, is_unflushed, deferred, outcome, failure: None }
    }

    /// Returns whether the change affects QoS settings.
    fn changes_qos(&self, running: &Running, steps: &Steps) -> bool {
        let has_say = |volume: &VolumeConfig| volume.qos() != Rates::default();
        let volumes = &steps.volumes;
        let touched = volumes.closes.iter().chain(volumes.stays.iter().map(|stay| &stay.running));
        let mut before = touched.filter_map(|name| running.volumes.get(name));
        let mut stays = volumes.stays.iter().map(|stay| &stay.desired);
        steps.ready.hosts != running.config.hosts
            || steps.ready.limits != running.config.limits
            || before.any(|volume| has_say(&volume.config))
            || self.opened.values().any(|opening| has_say(&opening.volume.config))
            || stays.any(has_say)
    }

    /// Renames volumes that stay open, and begins their growth.
    fn keep_volumes(
        &self,
        running: &mut Running,
        steps: &mut Steps,
        pending: &mut BTreeSet<Part>,
        renames: &mut Vec<PoolRename>,
    ) -> Vec<(Part, Task)> {
        let stays = std::mem::take(&mut steps.volumes.stays).into_iter();
        let renamed: Vec<_> =
            stays.filter_map(|stay| Some((running.volumes.remove(&stay.running)?, stay))).collect();
        let mut tasks = Vec::new();
        for (mut volume, RetainedVolume { running: old, desired, grows_to }) in renamed {
            if old != desired.name {
                info!(volume = old, new_name = desired.name, "the volume is renamed");
                renames.extend(volume.backing.pool.as_ref().map(|one| one.renamed(&desired.name)));
            }
            volume.unit.volume().rename(&desired.name);
            volume.config = desired;
            match grows_to {
                None => volume.growth = Growth::None,
                Some(bytes) => {
                    // A growth that an earlier change has begun is not awaited.
                    if !matches!(volume.growth, Growth::UnderWay(_)) {
                        let name = volume.config.name.clone();
                        pending.insert(Part::Volume(name.clone()));
                        volume.growth = Growth::UnderWay(bytes);
                        let grown = Box::pin(volume.grow(bytes, &self.engine.cores));
                        let store = volume.store.clone();
                        tasks.push((
                            Part::Volume(name.clone()),
                            Task::Grow { volume: name, store, grown },
                        ));
                    }
                    volume.adopt_actual_size();
                }
            }
            running.volumes.insert(volume.config.name.clone(), volume);
        }
        tasks
    }

    /// Adds the opened volumes that clients can use, and begins to complete the others. Returns the serial numbers of
    /// the former.
    fn take_opened(
        &mut self,
        running: &mut Running,
        taken: &HashSet<String>,
        tasks: &mut Vec<(Part, Task)>,
        renames: &mut Vec<PoolRename>,
    ) -> HashSet<String> {
        let mut serials = HashSet::new();
        for (name, mut opening) in std::mem::take(&mut self.opened) {
            if !taken.contains(&name) {
                // It is not desired any more. It closes when the lock is released.
                self.opened.insert(name, opening);
            } else if opening.is_complete() {
                let Opening { mut volume, mut new_files, .. } = opening;
                new_files.keep();
                if volume.growth != Growth::None {
                    volume.adopt_actual_size();
                }
                serials.extend(volume.config.serial.clone());
                let in_pool = volume.backing.pool.as_ref();
                let in_pool = in_pool.filter(|_| volume.config.snapshot.is_none());
                renames.extend(in_pool.map(|one| one.renamed(&name)));
                running.volumes.insert(name, volume);
            } else {
                opening.new_files.keep();
                opening.claim.decide();
                tasks.push((Part::Volume(name), Task::Complete(Box::new(opening))));
            }
        }
        serials
    }

    /// Returns the portals that were closed.
    fn make_portals(&mut self, running: &mut Running) -> Vec<Served> {
        let (engine, portals) = (&self.engine, &mut running.portals);
        let mut old: Vec<Option<Served>> = std::mem::take(portals).into_iter().map(Some).collect();
        let next = std::mem::take(&mut self.portals.next).into_iter();
        for (next, configured) in next.zip(&running.config.listen) {
            let configured = configured.clone();
            let mut take = |number: usize| old[number].take();
            let served = match next {
                NextPortal::Kept(number) => take(number),
                NextPortal::Renewed(number, encryption) => take(number).map(|served| {
                    served.portal.set_encryption(Some(encryption));
                    Served { configured, ..served }
                }),
                NextPortal::Changed(number, portal) => take(number).map(|served| {
                    let (listener, _) = served.socket;
                    Served::open(configured, Bound { portal, listener }, &engine.acceptor)
                }),
                NextPortal::New(bound) => Some(Served::open(configured, bound, &engine.acceptor)),
                NextPortal::Late(_) => unreachable!("late portals are not among the next ones"),
            };
            portals.extend(served);
        }
        let limits = &running.config.limits;
        for Served { socket: (listener, _), .. } in portals.iter() {
            if let Err(error) =
                listener.give_up_after(limits.keepalive.duration(), limits.user_timeout.duration())
            {
                warn!(%error, "a portal's connections are given up as before");
            }
        }
        engine.front.portals.replace(portals.iter().map(|one| one.portal.clone()).collect());
        old.into_iter().flatten().collect()
    }
}

impl Steps {
    /// Takes units out of targets that do not have them any more.
    fn narrow_targets(&self, engine: &Engine, running: &Running, leaving: &HashSet<u64>) {
        for change in &self.targets.changed {
            let target = &running.config.targets[change.index];
            let Some(found) = engine.front.targets.find(&target.name) else { continue };
            let (before, after) = (found.device.luns(), running.luns(target));
            let stays = |(lun, unit): &(&Lun, &Arc<LogicalUnit>)| {
                after.get(lun).is_some_and(|after| Arc::ptr_eq(after, unit))
            };
            let kept = before.iter().filter(stays).map(|(lun, unit)| (*lun, unit.clone()));
            let kept: BTreeMap<_, _> = kept.collect();
            if kept.len() < before.len() {
                found.device.set_luns_except(kept, |nexus| leaving.contains(&nexus));
            }
        }
    }

    fn make_targets(&self, engine: &Engine, running: &Running, leaving: &HashSet<u64>) {
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
            device.set_luns_except(running.luns(target), |nexus| leaving.contains(&nexus));
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
