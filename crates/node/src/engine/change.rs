//! A change of the running objects, from its preparation to its end. [`make`] puts it into force.

mod make;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sarsen_io::time;
use sarsen_scsi::LogicalUnit;
use tracing::{info, warn};

use super::ResourceError;
use super::backings::{SpaceReservation, overcommitments};
use super::closings::{Stores, flush};
use super::diff::{Differences, Known, RetainedVolume, TargetSteps, VolumeSteps};
use super::missing::MissingObjects;
use super::portals::{NextPortal, PortalSteps, Served, bind};
use super::volumes::{NewFiles, Volume, check_not_just_written};
use super::{AffectedSession, ChangeError, ChangeTurn, Engine, Interruption, not_opened};
use crate::access::{Losses, Object, Policy, Previous, TargetLoss};
use crate::config::{Config, Portal, VolumeConfig, target_port_groups};
use crate::drain::send_away;
use crate::mailbox::Mailbox;
use crate::sessions::SessionInfo;
use crate::stores::OpenMode;

/// Maximum time for the commands of a volume to end after its sessions have logged out.
const ENDING_LIMIT: Duration = Duration::from_secs(30);

/// A prepared change. A dropped one is undone.
pub struct Prepared {
    change: Change,
    interrupts: Vec<Interruption>,
}

/// A change whose affected sessions have ended. A dropped one is undone.
pub struct Ready {
    change: Change,
}

/// The result of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeOutcome {
    /// Changed keys of the configuration that take effect with the next start.
    pub needs_restart: Vec<&'static str>,
    /// Number of sessions that were terminated because they are not permitted any more.
    pub sessions_ended: usize,
    /// Parts of the change that failed although they are stored. The next change tries them again.
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

struct Change {
    desired: Config,
    policy: Arc<Policy>,
    portals: PortalSteps,
    volumes: VolumeSteps,
    /// The targets and open modes of the late volumes.
    late: Vec<(Option<String>, OpenMode)>,
    targets: TargetSteps,
    losses: Losses,
    /// The opened volumes, by their desired names.
    opened: BTreeMap<String, Volume>,
    /// The objects that could not be opened. The change is made without them.
    absent: MissingObjects,
    new_files: Vec<NewFiles>,
    /// Access to the objects to be closed is withheld.
    is_held: bool,
    /// The volumes that were closed to free resources for others.
    closed: Vec<Closed>,
    is_made: bool,
    /// The volume to re-attach: it is closed even if it cannot be flushed.
    reattached: Option<String>,
    /// The flush failed.
    is_unflushed: bool,
    /// The last field: no other change begins until this one is undone.
    turn: ChangeTurn,
}

/// A volume that was closed or is being closed, and the values that open it again.
struct Closed {
    config: VolumeConfig,
    scope: Option<String>,
    /// The previous length of its file.
    had: Option<u64>,
}

impl Engine {
    /// Opens the objects that are in `desired`, a finished configuration, and not running, and finds the sessions that
    /// would lose something. Clients do not see any of it. Blocks the thread, which must not be a core.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        mut desired: Config,
        cause: Cause,
    ) -> Result<Prepared, ChangeError> {
        let turn = ChangeTurn::take(self)?;
        let mut running = self.running();
        let reads_all = matches!(cause, Cause::Start(_) | Cause::Reload);
        let (managed, reattached) = match cause {
            Cause::Start(managed) => (managed, None),
            Cause::Reattach(volume) => (None, Some(volume)),
            Cause::Edit | Cause::Reload => (None, None),
        };
        if let Some(managed) = &managed {
            running.length_before_growth.clone_from(&managed.length_before_growth);
        }
        let first_managed =
            |all: usize, managed: Option<usize>| managed.map_or(usize::MAX, |one| all - one);
        // Ports are opened before files: if a port is in use, no new file is created, not even for a moment.
        let first =
            first_managed(desired.listen.len(), managed.as_ref().map(|managed| managed.portals));
        let may_lack =
            |place: usize, portal: &Portal| place >= first || running.absent.has_portal(portal);
        let (listen, limits) = (&desired.listen, &desired.limits);
        let mut portals = PortalSteps::prepare(&running.portals, listen, limits, may_lack)?;
        let mut absent = MissingObjects::of_unmet_needs(&desired);
        // The groups include those of missing portals: a target has its ports as configured, whether its portals exist
        // or not.
        let mut groups = target_port_groups(listen);
        groups.extend(absent.groups.iter().copied());
        desired.listen = std::mem::take(&mut portals.listen);
        absent.portals = std::mem::take(&mut portals.absent);
        let different = Differences::between(&running.config, &desired);
        let previous = Previous {
            policy: &self.front.access.policy(),
            reads_all,
            may_lack_from: first_managed(
                desired.accounts.len(),
                managed.as_ref().map(|managed| managed.accounts),
            ),
        };
        let policy = Arc::new(Policy::compile(&desired, Some(&previous))?);
        let known = Known::new(&running, &different);
        let again = reattached.as_deref();
        let again = desired.volumes.iter().find(|volume| Some(volume.name.as_str()) == again);
        let volumes = VolumeSteps::between(&running, &different, &known, again, &self.machine)?;
        let mut targets = TargetSteps::between(&running, &desired, groups, &different, &volumes);
        let losses = Losses {
            portals: portals.lost.clone(),
            targets: std::mem::take(&mut targets.losses),
            deferred_at: None,
        };
        for RetainedVolume { running: name, desired, grows_to } in &volumes.stays {
            if let (Some(bytes), Some(volume)) = (grows_to, running.volumes.get(name)) {
                let checked = volume.check_growth(*bytes);
                // A growth that is pending already does not prevent other changes.
                if !running
                    .absent
                    .growths
                    .iter()
                    .any(|(length_before_growth, _)| length_before_growth == name)
                {
                    checked.map_err(not_opened(&desired.name))?;
                }
            }
        }
        let scope = |volume: &VolumeConfig| different.scope(&running, volume).map(str::to_owned);
        let how = |config: &VolumeConfig| {
            let open_mode = if Some(config) == again {
                known.reattachment(config)
            } else {
                known.open_mode(config, managed.is_some())
            };
            (scope(config), open_mode)
        };
        let opens: Vec<_> = volumes.opens.iter().map(how).collect();
        let late = volumes.late.iter().map(how).collect();
        let was_absent: HashMap<String, VolumeConfig> = running
            .absent
            .volumes
            .iter()
            .map(|(absent, _)| (absent.name.clone(), absent.clone()))
            .collect();
        drop(running);
        let mut new_files = Vec::new();
        let mut opened = BTreeMap::new();
        for (config, (scope, open_mode)) in volumes.opens.iter().zip(opens) {
            let is_reattached = reattached.as_ref() == Some(&config.name);
            let was_missing = was_absent.get(&config.name) == Some(config);
            let is_settled = if was_missing && !is_reattached {
                check_not_just_written(config).map_err(not_opened(&config.name))
            } else {
                Ok(())
            };
            let mut open = || self.open_volume(config, scope.as_deref(), open_mode, &mut new_files);
            match is_settled.and_then(|()| open()) {
                Ok(volume) => drop(opened.insert(config.name.clone(), volume)),
                // One unavailable disk does not prevent the service or the change of other volumes.
                Err(error) if is_reattached => return Err(error.into()),
                Err(error) if managed.is_some() || was_missing => {
                    absent.volumes.push((config.clone(), error.to_string()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        if !absent.volumes.is_empty() {
            let names: HashSet<&str> =
                absent.volumes.iter().map(|(volume, _)| volume.name.as_str()).collect();
            desired.volumes.retain(|volume| !names.contains(volume.name.as_str()));
        }
        let change = Change {
            turn,
            desired,
            policy,
            portals,
            volumes,
            late,
            targets,
            losses,
            opened,
            absent,
            new_files,
            is_held: false,
            closed: Vec::new(),
            is_made: false,
            reattached,
            is_unflushed: false,
        };
        let (interrupts, _) = change.interruptions();
        Ok(Prepared { change, interrupts })
    }

    fn open_volume(
        &self,
        config: &VolumeConfig,
        scope: Option<&str>,
        open_mode: OpenMode,
        new_files: &mut Vec<NewFiles>,
    ) -> Result<Volume, ResourceError> {
        let mut files = NewFiles::missing_of(config, open_mode);
        let opened = Volume::open(config, scope, &self.machine, &*self.layer, open_mode);
        files.note();
        new_files.push(files);
        opened.map_err(not_opened(&config.name))
    }
}

impl Prepared {
    /// Returns the objects in use that the change would close. If there are none, clients do not notice the change.
    pub fn interrupts(&self) -> &[Interruption] {
        &self.interrupts
    }

    /// Returns warnings for the author of the change, for example that volumes may need more space than there is.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let Change { volumes, opened, .. } = &self.change;
        let running = self.change.engine().running();
        let goes = |name: &String| volumes.closes.contains(name);
        let grows_to = |name: &String| {
            volumes.stays.iter().find(|stay| stay.running == *name).and_then(|stay| stay.grows_to)
        };
        let stays = running.volumes.iter().filter(|(name, _)| !goes(name));
        let stays = stays.filter_map(|(name, one)| {
            let grows_to = grows_to(name);
            SpaceReservation::of(one, grows_to, grows_to.is_some())
        });
        let new = opened.values().filter_map(|one| SpaceReservation::of(one, None, true));
        overcommitments(stays.chain(new))
    }

    /// Returns whether the change would change nothing.
    pub(crate) fn is_idle(&self) -> bool {
        let Change { opened, volumes, portals, policy, .. } = &self.change;
        let before = self.change.engine().front.access.policy();
        opened.is_empty()
            && volumes.stays.is_empty()
            && volumes.late.is_empty()
            && portals.next.iter().all(|next| matches!(next, NextPortal::Kept(_)))
            && policy.unreadable_secrets().keys().eq(before.unreadable_secrets().keys())
    }

    /// Takes objects that are to be closed out of service, and closes those that hold resources of others. Their
    /// sessions are asked to log out within `grace`, and are logged out then. Without `grace`, the change fails if a
    /// session uses them.
    pub async fn log_out_sessions(self, grace: Option<Duration>) -> Result<Ready, ChangeError> {
        self.clear_by(grace.map_or(Force::Nobody, Force::Everybody)).await
    }

    pub(crate) async fn clear_by(self, force: Force) -> Result<Ready, ChangeError> {
        let mut change = self.change;
        change.check(force)?;
        change.hold();
        // A session may have logged in since the first check.
        let sessions = change.check(force)?;
        if let Force::Everybody(grace) = force
            && !sessions.is_empty()
        {
            info!(
                sessions = sessions.len(),
                "sessions are asked to log out, because the change removes what they use"
            );
            let engine = change.engine().clone();
            tokio::select! {
                _ = send_away(&sessions, grace, std::future::pending()) => {}
                () = engine.ending() => return Err(ChangeError::ServerEnds),
            }
        }
        change.close_portals().await?;
        change.close_volumes().await?;
        change.open_late()?;
        Ok(Ready { change })
    }

    /// Skips the logouts, for a server without sessions.
    pub(crate) fn into_ready(self) -> Ready {
        Ready { change: self.change }
    }
}

impl Ready {
    /// Returns the current lengths of files that the change will grow, by their volumes' serial numbers.
    pub(crate) fn lengths_before_growth(&self) -> BTreeMap<String, u64> {
        self.change.lengths_before_growth(&self.change.engine().running())
    }

    /// Puts the change into force. Blocks the thread for a moment, which must not be a core.
    pub fn make(self) -> ChangeOutcome {
        self.change.make()
    }
}

impl Change {
    fn engine(&self) -> &Arc<Engine> {
        &self.turn.0
    }

    /// Returns the interruptions, and the mailboxes of their sessions.
    fn interruptions(&self) -> (Vec<Interruption>, Vec<Vec<Mailbox>>) {
        let front = &self.engine().front;
        let losers: HashMap<u16, Object> =
            front.access.affected_sessions(&front.sessions, &self.losses, &self.policy);
        if losers.is_empty() {
            return Default::default();
        }
        let mut by_object: BTreeMap<Object, Vec<AffectedSession>> = BTreeMap::new();
        let mut mailboxes = Vec::new();
        for session in front.sessions.session_infos() {
            let SessionInfo { tsih, client, mailboxes: of_session, .. } = session;
            let Some(object) = losers.get(&tsih) else { continue };
            let sessions = by_object.entry(object.clone()).or_default();
            sessions.push(AffectedSession { tsih, initiator: client.name });
            mailboxes.push(of_session);
        }
        let interruption = |(object, sessions)| Interruption { object, sessions };
        (by_object.into_iter().map(interruption).collect(), mailboxes)
    }

    /// Returns the sessions that must log out, if `force` permits it.
    fn check(&self, force: Force) -> Result<Vec<Vec<Mailbox>>, ChangeError> {
        let (interrupts, sessions) = self.interruptions();
        let may_be = |interruption: &Interruption| match force {
            Force::Nobody => false,
            Force::Revoked => matches!(interruption.object, Object::Access(_)),
            Force::Everybody(_) => true,
        };
        if interrupts.iter().all(may_be) {
            Ok(sessions)
        } else {
            Err(ChangeError::InUse(interrupts))
        }
    }

    /// Withholds the objects that are to be closed from new sessions.
    fn hold(&mut self) {
        self.is_held = true;
        let front = &self.turn.0.front;
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

    /// Closes removed portals whose addresses other portals need.
    async fn close_portals(&mut self) -> Result<(), ChangeError> {
        if !self.portals.has_deferred_portals() {
            return Ok(());
        }
        let sockets: Vec<_> = {
            let mut running = self.turn.0.running();
            let removed = self.portals.removed.iter();
            removed.filter_map(|&number| running.portals[number].socket.take()).collect()
        };
        for socket in sockets {
            Served::close(socket).await;
        }
        let (next, listen) = (&mut self.portals.next, &self.desired.listen);
        for (next, portal) in next.iter_mut().zip(listen) {
            if let NextPortal::Late(encryption) = next {
                *next = NextPortal::New(bind(portal, encryption.clone(), &self.desired.limits)?);
            }
        }
        Ok(())
    }

    /// Closes the volumes whose files other volumes need.
    async fn close_volumes(&mut self) -> Result<(), ChangeError> {
        let engine = self.engine().clone();
        for name in std::mem::take(&mut self.volumes.closes_first) {
            // The flush precedes the closing: a store that is opened again knows nothing of failed writes.
            let store = engine.running().volumes.get(&name).map(|volume| volume.store.clone());
            if let Some(store) = store
                && !flush(&engine.cores, vec![(name.clone(), store)]).await
            {
                if self.reattached.as_ref() != Some(&name) {
                    return Err(ChangeError::Unflushed(name));
                }
                warn!(
                    volume = name,
                    "the volume is re-attached: writes that were not flushed may be lost"
                );
                self.is_unflushed = true;
            }
            let Some(volume) = self.take_out(&engine, &name) else { continue };
            let had = volume.file_length();
            let Volume { config, scope, unit, store, backing, mut ended, .. } = volume;
            let still_there: Weak<LogicalUnit> = Arc::downgrade(&unit);
            drop(unit);
            tokio::select! {
                _ = &mut ended => {}
                () = time::sleep_until(time::now() + ENDING_LIMIT) => {}
                () = engine.ending() => {}
            }
            if let Some(unit) = still_there.upgrade() {
                engine.running().volumes.insert(
                    name.clone(),
                    Volume::undo_close(config, scope, unit, store, backing, ended),
                );
                return Err(ChangeError::Busy(name));
            }
            drop(backing);
            self.closed.push(Closed { config, scope, had });
            if !self.is_unflushed {
                // No session has written since, so no initiator can receive the error; the log has it.
                let stores: Stores = vec![(name, store)];
                flush(&engine.cores, stores).await;
            }
        }
        Ok(())
    }

    /// Takes a volume's unit out of its target. The sessions that used it have ended.
    fn take_out(&self, engine: &Engine, name: &str) -> Option<Volume> {
        let mut running = engine.running();
        let volume = running.volumes.remove(name)?;
        let target = running
            .config
            .targets
            .iter()
            .find(|target| target.luns.values().any(|lun| lun == name));
        if let Some(target) = target
            && let Some(found) = engine.front.targets.find(&target.name)
        {
            let luns = found.device.luns();
            let others = luns.iter().filter(|(_, unit)| !Arc::ptr_eq(unit, &volume.unit));
            found.device.set_luns(others.map(|(lun, unit)| (*lun, unit.clone())).collect());
            engine.front.sessions.refresh(&HashSet::from([target.name.as_str()]));
        }
        Some(volume)
    }

    fn open_late(&mut self) -> Result<(), ChangeError> {
        let engine = self.engine().clone();
        for (config, (scope, open_mode)) in self.volumes.late.iter().zip(&self.late) {
            let volume =
                engine.open_volume(config, scope.as_deref(), *open_mode, &mut self.new_files)?;
            self.opened.insert(config.name.clone(), volume);
        }
        Ok(())
    }

    /// Undoes the change: puts back all withheld and closed objects.
    fn put_back(&mut self) {
        let engine = self.engine().clone();
        // Opened objects may hold the resources of those that are put back.
        self.opened.clear();
        self.new_files.clear();
        self.portals.next.clear();
        let mut running = engine.running();
        for Closed { config, scope, had } in std::mem::take(&mut self.closed) {
            let serial = config.identity.serial.as_deref();
            let length_before_growth =
                serial.and_then(|serial| running.length_before_growth.get(serial)).copied();
            let open_mode = OpenMode::Existing { length_before_growth, has_state: true, had };
            let (machine, layer) = (&engine.machine, &*engine.layer);
            match Volume::open(&config, scope.as_deref(), machine, layer, open_mode) {
                Ok(volume) => drop(running.volumes.insert(config.name.clone(), volume)),
                Err(error) => {
                    let volumes = &mut Arc::make_mut(&mut running.config).volumes;
                    volumes.retain(|volume| volume.name != config.name);
                    let why = format!("volume {} could not be opened again: {error}", config.name);
                    running.absent.volumes.push((config, why));
                }
            }
        }
        let limits = running.config.limits.clone();
        let running = &mut *running;
        for served in running.portals.iter_mut().filter(|served| served.socket.is_none()) {
            if let Err(error) = served.reopen(&limits, &engine.acceptor) {
                running.absent.portals.push((served.configured.clone(), error.to_string()));
            }
        }
        let (portals, config) = (&mut running.portals, Arc::make_mut(&mut running.config));
        portals.retain(|served| served.socket.is_some());
        config.listen = portals.iter().map(|served| served.configured.clone()).collect();
        engine.front.portals.replace(portals.iter().map(|one| one.portal.clone()).collect());
        self.losses.portals.iter().for_each(|portal| portal.set_open(true));
        for target in &running.config.targets {
            match self.losses.targets.get(&target.name) {
                Some(TargetLoss::All) => engine.front.drains.release(&target.name),
                Some(TargetLoss::Part { .. }) => {}
                None => continue,
            }
            if let Some(found) = engine.front.targets.find(&target.name) {
                found.device.set_luns(running.luns(target));
            }
        }
        engine.show(running);
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if self.is_held && !self.is_made {
            self.put_back();
        }
    }
}
