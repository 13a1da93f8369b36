//! A change of what is in force. It is prepared without a lock: volumes are opened and portals are bound. Then it is
//! checked, stored and put into force ([`make`]) at once. [`super::tasks`] do what is left.

mod demands;
mod make;
mod pending;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sarsen_io::time;

use self::pending::{defer_gains, refuse_changed_growth};
use super::backings::{SpaceReservation, overcommitments};
use super::claims::{Claim, flush};
use super::diff::{Differences, Known, TargetSteps, VolumeSteps};
use super::disk_threads::DiskThread;
use super::missing::{MissingObjects, MissingVolume};
use super::portals::PortalSteps;
use super::tasks::{Begun, Erasure};
use super::volumes::{NewFiles, OpenPlan, Opening};
use super::{AffectedSession, ChangeError, DeferredGain, Engine, Interruption, Running};
use crate::access::{Losses, Object, Policy, Previous, SecretSource, TargetLoss, Units};
use crate::config::{Config, Portal as PortalConfig, VolumeConfig, target_port_groups};
use crate::model::ByteSize;
use crate::portal::Portal;
use crate::sessions::SessionInfo;
use crate::stores::{OpenMode, OpenPool};

/// Maximum time to open a volume, and to check or flush one, before a change is stored.
pub(super) const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// A prepared change. If it is dropped, what was created for it is removed.
pub struct Prepared {
    engine: Arc<Engine>,
    desired: Config,
    /// What was desired before, if the change leaves it as it is.
    unchanged: Option<Arc<Config>>,
    /// All secrets were read again.
    reads_all: bool,
    reattached: Option<String>,
    /// The server starts with a state, so that all volumes are known and may be missing.
    is_managed_start: bool,
    /// The server starts. Logical units of other servers may be missing.
    is_start: bool,
    portals: PortalSteps,
    /// The portals to which `portals` fits.
    served: Vec<(PortalConfig, Arc<Portal>)>,
    policy: Arc<Policy>,
    /// The policy to which `policy` fits.
    policy_before: Arc<Policy>,
    opened: BTreeMap<String, Opening>,
    /// The pools that were opened for it, until it is in force.
    pools: Vec<Arc<OpenPool>>,
    /// The files that were created for volumes that are opened later, and the claims on them.
    new_files: Vec<(NewFiles, Option<Claim>)>,
    /// The lengths of the files of new volumes that are opened later, by the names of the volumes.
    late_lengths: BTreeMap<String, u64>,
    /// The volumes that could not be opened, and may be missing.
    failed: BTreeMap<String, String>,
    /// The flush of the re-attached volume failed.
    is_unflushed: bool,
    interrupts: Vec<Interruption>,
    warnings: Vec<String>,
}

/// The result of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeOutcome {
    /// Changed keys of the configuration that take effect with the next start.
    pub needs_restart: Vec<&'static str>,
    /// Number of sessions that were terminated because they are not permitted any more.
    pub sessions_ended: usize,
    /// Parts of the change that are stored and not in force, with the reasons. The server tries them again.
    pub problems: Vec<String>,
    /// A volume was re-attached that could not be flushed before: acknowledged writes may be lost.
    pub is_unflushed: bool,
}

/// The cause of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The server starts. A server with a state knows all of its volumes, and starts without unavailable ones.
    Start(Option<Managed>),
    /// A client requested other objects.
    Edit,
    /// The server rereads everything, including secrets.
    Reload,
    /// The server closes this volume and opens it again.
    Reattach(String),
    /// Objects that were pending or missing may be ready now. Only portals are opened for it, and no secret is read.
    Converge,
    /// The same, for the regular attempts. Missing secrets are read, and missing portals are bound.
    Retry,
}

/// The parts of a configuration that come from the server's state. If an object outside of it cannot be opened, the
/// start fails, because the administrator named it at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Managed {
    /// Number of managed portals. They are the last ones.
    pub(crate) portals: usize,
    /// Number of managed accounts. They are the last ones.
    pub(crate) accounts: usize,
    /// Current lengths of files that are to grow and may not have grown yet, by the serial numbers of their volumes.
    pub(crate) length_before_growth: BTreeMap<String, u64>,
}

/// The sessions that a change may log out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Force {
    Nobody,
    /// The sessions that are not permitted any more. The change does not wait for them.
    Revoked,
    Everybody(Duration),
}

/// The steps of a change, which depend on what is in force.
struct Steps {
    policy: Arc<Policy>,
    /// The configuration that can be in force now: without missing and pending objects.
    ready: Config,
    absent: MissingObjects,
    volumes: VolumeSteps,
    /// The opened volumes that the change uses.
    taken: HashSet<String>,
    /// The volumes that are opened when claims have ended.
    late: Vec<OpenPlan>,
    targets: TargetSteps,
    losses: Losses,
    /// What is not in force before leaving sessions have ended.
    deferred: BTreeSet<DeferredGain>,
}

/// The sessions that lose something.
#[derive(Default)]
pub(super) struct Affected {
    pub(super) interrupts: Vec<Interruption>,
    /// The sessions, with the units that they have.
    pub(super) sessions: HashMap<u16, Units>,
}

impl Engine {
    /// Opens the objects that are in `desired`, a finished configuration, and not in force, and finds the sessions that
    /// would lose something. Clients do not see any of it. Blocks the thread, which must not be a core.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        desired: Config,
        cause: Cause,
    ) -> Result<Prepared, ChangeError> {
        self.prepare_with(Some(desired), cause)
    }

    /// Prepares to bring what is desired already into force.
    pub(crate) fn prepare_again(self: &Arc<Self>, cause: Cause) -> Result<Prepared, ChangeError> {
        self.prepare_with(None, cause)
    }

    fn prepare_with(
        self: &Arc<Self>,
        desired: Option<Config>,
        cause: Cause,
    ) -> Result<Prepared, ChangeError> {
        if self.is_ending() {
            return Err(ChangeError::ServerEnds);
        }
        let reads_all = matches!(cause, Cause::Start(_) | Cause::Reload);
        let opens = !matches!(cause, Cause::Converge | Cause::Retry);
        let is_start = matches!(cause, Cause::Start(_));
        let reads_none = cause == Cause::Converge;
        let (managed, reattached) = match cause {
            Cause::Start(managed) => (managed, None),
            Cause::Reattach(volume) => (None, Some(volume)),
            Cause::Edit | Cause::Reload | Cause::Converge | Cause::Retry => (None, None),
        };
        let first_managed =
            |all: usize, managed: Option<usize>| managed.map_or(usize::MAX, |one| all - one);
        // All of it is from one moment.
        let (served, absent, policy_before, desired_now) = {
            let mut running = self.running();
            if let Some(managed) = &managed {
                running.length_before_growth.clone_from(&managed.length_before_growth);
            }
            let policy = self.front.access.policy();
            (running.served(), running.absent.clone(), policy, running.desired.clone())
        };
        let unchanged = desired.is_none().then(|| desired_now.clone());
        let desired = desired.unwrap_or_else(|| (*desired_now).clone());
        let first =
            first_managed(desired.listen.len(), managed.as_ref().map(|managed| managed.portals));
        // Ports are opened before files: if a port is in use, no new file is created, not even for a moment.
        let may_lack =
            |place: usize, portal: &PortalConfig| place >= first || absent.has_portal(portal);
        let portals = PortalSteps::prepare(&served, &desired.listen, &desired.limits, may_lack)?;
        let previous = Previous {
            policy: &policy_before,
            secrets: match (reads_all, reads_none) {
                (true, _) => SecretSource::All,
                (false, true) => SecretSource::Known(&policy_before),
                (false, false) => SecretSource::Missing,
            },
            may_lack_from: first_managed(
                desired.accounts.len(),
                managed.as_ref().map(|managed| managed.accounts),
            ),
        };
        let policy = Arc::new(Policy::compile(&desired, Some(&previous))?);
        let mut prepared = Prepared {
            engine: self.clone(),
            desired,
            unchanged,
            reads_all,
            reattached,
            is_managed_start: managed.is_some(),
            is_start,
            portals,
            served,
            policy,
            policy_before,
            opened: BTreeMap::new(),
            pools: Vec::new(),
            new_files: Vec::new(),
            late_lengths: BTreeMap::new(),
            failed: BTreeMap::new(),
            is_unflushed: false,
            interrupts: Vec::new(),
            warnings: Vec::new(),
        };
        if opens {
            let demands = prepared.demands(&self.running())?;
            prepared.meet(demands)?;
            let running = self.running();
            let steps = prepared.steps(&running, &self.front.sessions.leaving_units())?;
            prepared.warnings = prepared.overcommitments(&running, &steps);
            prepared.interrupts = steps.affected(self, &running, Force::Nobody).interrupts;
        }
        Ok(prepared)
    }
}

impl Prepared {
    /// Returns the objects in use that the change would close. If there are none, clients do not notice the change.
    pub fn interrupts(&self) -> &[Interruption] {
        &self.interrupts
    }

    /// Returns warnings for the author of the change, for example that volumes may need more space than there is.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// Puts the change into force. The sessions that lose something are asked to log out within `grace`, and are
    /// terminated then. Without `grace`, the change is refused if there are any. Returns when the change is in force, or
    /// with what is pending.
    pub async fn make(mut self, grace: Option<Duration>) -> Result<ChangeOutcome, ChangeError> {
        let force = grace.map_or(Force::Nobody, Force::Everybody);
        self.flush_replaced().await?;
        let begun = self.commit(None, force, BTreeMap::new(), |_| Ok::<_, ChangeError>(()))?;
        Ok(begun.finish().await)
    }

    /// Puts the configuration of a starting server into force, which has no sessions. Blocks the thread.
    pub(crate) fn start(mut self) -> Result<(), ChangeError> {
        let mut thread = DiskThread::new(&self.engine.disk_permits);
        for (name, mut opening) in std::mem::take(&mut self.opened) {
            if opening.is_complete() {
                self.opened.insert(name, opening);
                continue;
            }
            let config = opening.volume.config.clone();
            let completed = thread.run(&config, OPEN_LIMIT, move || {
                opening.complete()?;
                Ok(opening)
            });
            match completed {
                Ok(opening) => drop(self.opened.insert(name, opening)),
                Err(error) => drop(self.failed.insert(name, error.to_string())),
            }
        }
        self.commit(None, Force::Nobody, BTreeMap::new(), |_| Ok::<_, ChangeError>(()))?;
        Ok(())
    }

    /// Returns the known volume that is re-attached.
    fn again(&self) -> Option<&VolumeConfig> {
        let again = self.reattached.as_deref()?;
        self.desired.volumes.iter().find(|volume| volume.name == again)
    }

    fn volume_steps<'a>(
        &'a self,
        running: &'a Running,
        desired: &'a Config,
    ) -> Result<(Differences<'a>, VolumeSteps, Vec<OpenPlan>, Vec<OpenPlan>), ChangeError> {
        let files = self.new_files.iter().filter_map(|(_, claim)| claim.as_ref());
        let own = self.opened.values().map(|one| &one.claim).chain(files);
        let own: Vec<u64> = own.map(Claim::number).collect();
        let different = Differences::between(&running.config, desired);
        let known = Known::new(running, &different);
        let volumes = VolumeSteps::between(
            running,
            &different,
            &known,
            self.again(),
            &self.engine.machine,
            |needed| self.engine.claims.stage_of(needed, &own).is_some(),
        )?;
        let plan = |config: &VolumeConfig| OpenPlan {
            config: config.clone(),
            pool: desired.pool_of(config),
            accounts: desired.accounts_of(config),
            scope: different.scope(running, config).map(str::to_owned),
            open_mode: if Some(config) == self.again() {
                known.reattachment(config)
            } else {
                known.open_mode(config, self.is_managed_start)
            },
        };
        let opens = volumes.opens.iter().map(plan).collect();
        let late = volumes.late.iter().map(plan).collect();
        Ok((different, volumes, opens, late))
    }

    /// Flushes the volumes that the change closes and opens again: a store that is opened again knows nothing of failed
    /// writes.
    pub(crate) async fn flush_replaced(&mut self) -> Result<(), ChangeError> {
        let engine = self.engine.clone();
        let replaced: Vec<_> = {
            let running = engine.running();
            let (_, volumes, ..) = self.volume_steps(&running, &self.desired)?;
            let store = |name: &String| {
                let volume = running.volumes.get(name)?;
                let remote = volume.backing.remote.as_ref();
                let is_due = remote.is_none_or(|remote| !remote.has_nothing_to_flush());
                is_due.then(|| (name.clone(), volume.store.clone()))
            };
            volumes.closes_first.iter().filter_map(store).collect()
        };
        for (name, store) in replaced {
            let deadline = Some(time::now() + OPEN_LIMIT);
            if flush(&engine.cores, vec![(name.clone(), store)], deadline).await {
                continue;
            }
            if self.reattached.as_ref() != Some(&name) {
                return Err(ChangeError::Unflushed(name));
            }
            self.is_unflushed = true;
        }
        Ok(())
    }

    /// Returns the steps to what is desired, as far as it can be in force now. Leaving sessions still write the units
    /// `held`: no client gains access to these.
    fn steps(&self, running: &Running, held: &Units) -> Result<Steps, ChangeError> {
        let mut absent = MissingObjects::of_unmet_needs(&self.desired);
        // The groups include those of missing portals: a target has its ports as configured, whether its portals exist
        // or not.
        let mut groups = target_port_groups(&self.desired.listen);
        groups.extend(absent.groups.iter().copied());
        let mut ready = self.desired.clone();
        ready.listen.clone_from(&self.portals.listen);
        let late = self.portals.late.iter().map(|portal| (portal.clone(), None));
        let lacking = self.portals.absent.iter();
        let lacking = lacking.map(|(portal, why)| (portal.clone(), Some(why.clone())));
        absent.portals = lacking.chain(late).collect();
        refuse_changed_growth(running, &ready)?;
        let (_, volumes, opens, late) = self.volume_steps(running, &ready)?;
        let (restricted, mut deferred) = defer_gains(&mut ready, running, &volumes, held);
        let different = Differences::between(&running.config, &ready);
        let mut targets = TargetSteps::between(running, &ready, groups, &different, &volumes);
        let losses = Losses {
            portals: self.portals.lost.clone(),
            targets: std::mem::take(&mut targets.losses),
            deferred_at: None,
        };
        let (mut taken, mut tasks) = (HashSet::new(), Vec::new());
        let opens = opens.into_iter().map(|plan| (plan, false));
        for (mut plan, is_late) in opens.chain(late.into_iter().map(|plan| (plan, true))) {
            let opening = self.opened.get(&plan.config.name);
            let opening = opening.filter(|one| {
                !is_late && one.volume.config == plan.config && one.volume.scope == plan.scope
            });
            let length = match opening {
                Some(one) => one.length_before_growth.or_else(|| one.volume.file_length()),
                None => self.late_lengths.get(&plan.config.name).copied().filter(|_| is_late),
            };
            if let (Some(_), OpenMode::OpenOrCreate | OpenMode::Create) = (length, plan.open_mode) {
                // Its file exists from now on, and no attempt creates another one.
                plan.open_mode = OpenMode::Existing {
                    length_before_growth: length,
                    has_state: true,
                    had: None,
                    mark: plan.open_mode.mark_rule(),
                };
            }
            let config = &plan.config;
            let pending = |has_task| MissingVolume {
                config: config.clone(),
                why: None,
                has_task,
                open_mode: plan.open_mode,
            };
            if let Some(opening) = opening {
                taken.insert(config.name.clone());
                if !opening.is_complete() {
                    absent.volumes.push(pending(true));
                }
            } else if let Some(why) = self.failed.get(&config.name) {
                let why = Some(why.clone());
                let open_mode = plan.open_mode.after_failure();
                absent.volumes.push(MissingVolume { why, open_mode, ..pending(false) });
            } else if let Some(known) = running.absent.volume(config) {
                absent.volumes.push(known.clone());
            } else if is_late && !self.is_undecided(config) {
                absent.volumes.push(pending(true));
                tasks.push(plan);
            } else {
                // What is in force has changed since the change was prepared.
                return Err(ChangeError::UnderWay);
            }
        }
        if !absent.volumes.is_empty() {
            let missing: HashSet<&str> =
                absent.volumes.iter().map(|missing| missing.config.name.as_str()).collect();
            ready.volumes.retain(|volume| !missing.contains(volume.name.as_str()));
        }
        let policy = if restricted.is_empty() {
            self.policy.clone()
        } else {
            Arc::new(self.policy.without_gains(&self.policy_before, &restricted))
        };
        deferred.extend(policy.restricted().map(|target| {
            let why = format!(
                "target {target}: new access is deferred until the sessions that lose it end; wait, or end them"
            );
            (target.to_owned(), why)
        }));
        Ok(Steps { policy, ready, absent, volumes, taken, late: tasks, targets, losses, deferred })
    }

    fn overcommitments(&self, running: &Running, steps: &Steps) -> Vec<String> {
        let goes = |name: &String| steps.volumes.closes.contains(name);
        let grows_to = |name: &String| {
            let mut stays = steps.volumes.stays.iter();
            stays.find(|stay| stay.running == *name).and_then(|stay| stay.grows_to)
        };
        let stays = running.volumes.iter().filter(|(name, _)| !goes(name));
        let stays = stays.filter_map(|(name, one)| {
            let grows_to = grows_to(name);
            SpaceReservation::of(one, grows_to, grows_to.is_some())
        });
        let new = self.opened.values();
        let new = new.filter_map(|one| SpaceReservation::of(&one.volume, None, true));
        overcommitments(stays.chain(new))
    }

    /// Checks the change once more, stores it by `keep` and puts it into force, in one step. With `desired`, the
    /// document has changed since the change was prepared. `keep` receives the current lengths of files that the change
    /// will grow, by their volumes' serial numbers. `erasures` belong to volumes that the change closes. If it fails
    /// with [`ChangeError::UnderWay`], the change no longer fits what is in force and can be prepared again.
    pub(crate) fn commit<E: From<ChangeError>>(
        &mut self,
        desired: Option<Config>,
        force: Force,
        erasures: BTreeMap<String, Erasure>,
        keep: impl FnOnce(&BTreeMap<String, u64>) -> Result<(), E>,
    ) -> Result<Begun, E> {
        let engine = self.engine.clone();
        let mut guard = engine.running();
        let running = &mut *guard;
        if engine.is_ending() {
            return Err(ChangeError::ServerEnds.into());
        }
        let is_same_portals = |(one, other): (&(PortalConfig, Arc<Portal>), &super::Served)| {
            one.0 == other.configured && Arc::ptr_eq(&one.1, &other.portal)
        };
        if self.served.len() != running.portals.len()
            || !self.served.iter().zip(&running.portals).all(is_same_portals)
        {
            return Err(ChangeError::UnderWay.into());
        }
        if self.unchanged.as_ref().is_some_and(|one| !Arc::ptr_eq(one, &running.desired)) {
            return Err(ChangeError::UnderWay.into());
        }
        let policy_now = engine.front.access.policy();
        if desired.is_some() || !Arc::ptr_eq(&self.policy_before, &policy_now) {
            if let Some(desired) = desired {
                if desired.listen != self.desired.listen {
                    return Err(ChangeError::UnderWay.into());
                }
                self.desired = desired;
            }
            if self.reads_all {
                return Err(ChangeError::UnderWay.into());
            }
            // The disk of a secret may hang, so none is read here.
            let secrets = SecretSource::Known(&self.policy);
            let previous = Previous { policy: &policy_now, secrets, may_lack_from: usize::MAX };
            let policy = Policy::compile(&self.desired, Some(&previous));
            self.policy = Arc::new(policy.map_err(|_| ChangeError::UnderWay)?);
            self.policy_before = policy_now;
        }
        let mut held = engine.front.sessions.leaving_units();
        let mut steps = self.steps(running, &held)?;
        steps.check(&engine, running, force)?;
        steps.hide(&engine);
        // A session may have logged in since the first check.
        let affected = steps.check(&engine, running, force);
        let affected = affected.and_then(|affected| {
            // Revoked sessions are terminated at once.
            if matches!(force, Force::Everybody(_)) && !affected.sessions.is_empty() {
                held.extend(affected.sessions.values().flatten().cloned());
                let hidden_at = steps.losses.deferred_at;
                steps = self.steps(running, &held)?;
                steps.losses.deferred_at = hidden_at;
            }
            Ok(affected)
        });
        let lengths = self.lengths_before_growth(running, &steps);
        let kept = affected.map_err(E::from).and_then(|affected| {
            keep(&lengths)?;
            Ok(affected)
        });
        match kept {
            Ok(affected) => {
                Ok(self.put_in_force(running, steps, force, affected, lengths, erasures))
            }
            Err(error) => {
                steps.show_again(&engine, running);
                Err(error)
            }
        }
    }

    /// Returns the current lengths of files that the change will grow, by their volumes' serial numbers.
    fn lengths_before_growth(&self, running: &Running, steps: &Steps) -> BTreeMap<String, u64> {
        let serial = |config: &VolumeConfig| config.serial.clone();
        let stays = steps.volumes.stays.iter().filter(|stay| stay.grows_to.is_some());
        let grow = stays.filter_map(|stay| {
            let volume = running.volumes.get(&stay.running)?;
            Some((serial(&volume.config)?, volume.file_length()?))
        });
        let opened = self.opened.values().filter_map(|opening| {
            Some((serial(&opening.volume.config)?, opening.length_before_growth?))
        });
        let late = steps.late.iter().filter_map(|plan| {
            let length = plan.open_mode.length_before_growth()?;
            let size = plan.config.file().and(plan.config.size).map(ByteSize::get);
            let grows = size.is_some_and(|size| size > length);
            Some((serial(&plan.config).filter(|_| grows)?, length))
        });
        grow.chain(opened).chain(late).collect()
    }

    /// Adds an open volume.
    pub(super) fn bring(&mut self, opening: Option<Opening>) {
        self.opened.extend(opening.map(|one| (one.volume.config.name.clone(), one)));
    }

    /// Takes back the open volume, if the change was not stored.
    pub(super) fn take_back(&mut self) -> Option<Opening> {
        self.opened.pop_first().map(|(_, opening)| opening)
    }

    /// Returns whether the change would change nothing.
    pub(crate) fn is_idle(&self) -> bool {
        let running = self.engine.running();
        let held = self.engine.front.sessions.leaving_units();
        let Ok(steps) = self.steps(&running, &held) else { return false };
        let before = self.engine.front.access.policy();
        self.opened.is_empty()
            && steps.volumes.stays.is_empty()
            && steps.volumes.closes.is_empty()
            && self.portals.is_idle()
            && steps.deferred == running.deferred
            && self.policy.unreadable_secrets().keys().eq(before.unreadable_secrets().keys())
    }
}

impl Steps {
    /// Returns the sessions that would lose something.
    fn affected(&self, engine: &Engine, running: &Running, force: Force) -> Affected {
        let front = &engine.front;
        let asked_again = matches!(force, Force::Everybody(_));
        let losers = front.access.affected_sessions(
            &front.sessions,
            &self.losses,
            &self.policy,
            asked_again,
        );
        if losers.is_empty() {
            return Affected::default();
        }
        let mut by_object: BTreeMap<Object, Vec<AffectedSession>> = BTreeMap::new();
        let mut affected = Affected::default();
        for session in front.sessions.session_infos() {
            let SessionInfo { tsih, client, target, .. } = session;
            let Some((object, view)) = losers.get(&tsih) else { continue };
            let initiator = client.name;
            by_object.entry(object.clone()).or_default().push(AffectedSession { tsih, initiator });
            affected.sessions.insert(tsih, running.units_in(target.as_deref(), view));
        }
        let interruption = |(object, sessions)| Interruption { object, sessions };
        affected.interrupts = by_object.into_iter().map(interruption).collect();
        affected
    }

    /// Returns the sessions that lose something, or an error if `force` does not permit that.
    fn check(
        &self,
        engine: &Engine,
        running: &Running,
        force: Force,
    ) -> Result<Affected, ChangeError> {
        let affected = self.affected(engine, running, force);
        let may_be = |interruption: &Interruption| match force {
            Force::Nobody => false,
            Force::Revoked => matches!(interruption.object, Object::Access(_)),
            Force::Everybody(_) => true,
        };
        if affected.interrupts.iter().all(may_be) {
            Ok(affected)
        } else {
            Err(ChangeError::InUse(affected.interrupts))
        }
    }

    /// Withholds the objects that are to be closed from new sessions, until the change is in force or put back.
    fn hide(&mut self, engine: &Engine) {
        let front = &engine.front;
        for (name, loss) in &self.losses.targets {
            match loss {
                TargetLoss::All => front.drains.reject_sessions(name),
                TargetLoss::Part { luns, .. } => {
                    let Some(target) = front.targets.find(name) else { continue };
                    let kept = target.device.luns();
                    let kept = kept.iter().filter(|(lun, _)| !luns.contains_key(&lun.0));
                    let kept = kept.map(|(lun, unit)| (*lun, unit.clone())).collect();
                    target.device.set_luns_for_new(kept);
                }
            }
        }
        self.losses.portals.iter().for_each(|portal| portal.set_open(false));
        self.losses.deferred_at = Some(front.sessions.last_permitted());
    }

    /// Shows the hidden objects to new sessions again.
    fn show_again(&self, engine: &Engine, running: &Running) {
        let front = &engine.front;
        self.losses.portals.iter().for_each(|portal| portal.set_open(true));
        let leaving = front.sessions.leaving_nexuses();
        for target in &running.config.targets {
            match self.losses.targets.get(&target.name) {
                Some(TargetLoss::All) => front.drains.release(&target.name),
                Some(TargetLoss::Part { .. }) => {
                    let Some(found) = front.targets.find(&target.name) else { continue };
                    let luns = running.luns(target);
                    found.device.set_luns_except(luns, |nexus| leaving.contains(&nexus));
                }
                None => {}
            }
        }
    }
}
