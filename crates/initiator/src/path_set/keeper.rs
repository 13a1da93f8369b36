//! The tasks that keep the paths of a set: each one logs in, examines the unit, writes the kept writes again if the target may have
//! lost them, and then offers its path to commands. All of them run on the core that connected the set.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use sarsen_io::time;
use sarsen_wire::iscsi::Isid;
use sarsen_wire::scsi::opcode;
use tokio::task::JoinHandle;

use super::{Core, Fingerprint, Path};
use crate::connections::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::error::{Sense, SenseKey, SessionError, is_busy};
use crate::establish::{dial, in_time};
use crate::instance::{Instance, lost};
use crate::kept_writes::{Answer, VolatileWrite, independent};
use crate::options::SessionOptions;
use crate::session::Session;
use crate::unit::{
    Access, AccessState, Capacity, Command, PreparedCommand, TransferRequest, Unit, activation,
    commands, good, prepare,
};
use crate::url::{Portal, Url};

/// How often the access of a unit is asked for while it is not active on a path.
const ACCESS_PAUSE: Duration = Duration::from_millis(100);
/// How long connecting may wait for an active path, if there is one that is not active.
const FIRST_ACTIVATION_LIMIT: Duration = Duration::from_secs(5);
/// The shortest and the longest time between attempts to return to the own portal of a path.
const FIRST_RETURN: Duration = Duration::from_secs(1);
const LONGEST_RETURN: Duration = Duration::from_secs(60);

/// The constants of the hash FNV-1a.
const FNV_BASIS: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// The minimum time between two flushes while kept writes are written again.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// How long the first unit that is recognised may wait for that of the first path.
const PRECEDENCE: Duration = Duration::from_secs(1);

/// The result of an examination.
struct Examined {
    fingerprint: Fingerprint,
    capacity: Capacity,
    /// The unit reports that acknowledged data is on stable storage.
    is_stable: bool,
    access: Access,
    /// Number of requests before it.
    requests: u64,
}

/// Starts the keepers of all paths. Each session has an ISID of its own.
pub(super) fn start(core: &Arc<Core>, url: &Url, options: &SessionOptions) -> Vec<JoinHandle<()>> {
    let keeper = |(number, path): (usize, &Path)| {
        let isid = isid_of(options.isid, &path.portal);
        let options = SessionOptions { isid, ..options.clone() };
        let (core, url) = (core.clone(), url.through(&path.portal));
        tokio::task::spawn_local(async move { core.keep(number, &url, &options).await })
    };
    core.paths.iter().enumerate().map(keeper).collect()
}

/// Returns the ISID of a path, from that of the options. It depends on the portal alone: a program that is started again with the
/// same options ends the sessions of its earlier run by its logins.
fn isid_of(base: Isid, portal: &Portal) -> Isid {
    let mut hash = portal
        .to_string()
        .bytes()
        .fold(FNV_BASIS, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME));
    let mut isid = base;
    for byte in &mut isid.0[2..] {
        *byte ^= hash as u8;
        hash >>= 8;
    }
    isid
}

/// Returns whether a unit cannot be examined because of its access state.
fn is_denied(failure: Option<&SessionError>) -> bool {
    failure.and_then(SessionError::sense).as_ref().and_then(AccessState::denied).is_some()
}

impl Core {
    /// Ends the sessions that an earlier run with the same ISIDs may still have through portals that cannot be logged in: by a login through
    /// a portal of each portal group that works (RFC 7143 §6.3.5). What such a session has on its way could otherwise arrive later than
    /// the commands of this run. In other portal groups than these, nothing can end it.
    pub(super) async fn end_earlier_sessions(&self, url: &Url, options: &SessionOptions) {
        let recognised = self.choices.lock().recognised();
        let missing = self.paths.iter().filter(|path| path.unit.get().is_none());
        for Path { portal, .. } in missing {
            let isid = isid_of(options.isid, portal);
            let reconnect_limit = None;
            let options =
                SessionOptions { isid, reconnect_limit, connections: 1, ..options.clone() };
            let mut ended_in = Vec::new();
            for path in &recognised {
                let group = self.unit(*path).session().instance().portal_group();
                if ended_in.contains(&group) {
                    continue;
                }
                let entry = &self.paths[*path].portal;
                match Session::log_in(&url.through(entry), &options).await {
                    Ok(session) => {
                        ended_in.push(group);
                        // The login has ended the earlier session. This one has no commands.
                        let _ = session.logout().await;
                    }
                    Err(error) => {
                        tracing::warn!(%portal, %entry, %error, "a session of an earlier run may still have commands on its way");
                    }
                }
            }
        }
    }

    /// Waits until the first path is offered, or until none can be. A path whose access state does not permit that is made active.
    pub(super) async fn wait_for_first(&self) -> Result<(), SessionError> {
        let deadline = time::now() + FIRST_ACTIVATION_LIMIT;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = time::now();
            {
                let mut choices = self.choices.lock();
                if choices.paths.iter().any(|state| state.instance.is_some()) {
                    return Ok(());
                }
                let is_denied = choices.paths.iter().any(|state| is_denied(state.failure.as_ref()));
                if is_denied {
                    choices.down_since.get_or_insert(now);
                }
                let is_over = !is_denied || now >= deadline;
                if is_over && choices.paths.iter().all(|state| state.failure.is_some()) {
                    return Err(choices.failure());
                }
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = time::sleep_until(deadline), if now < deadline => {}
            }
        }
    }

    /// Keeps a path until it cannot be used any more.
    async fn keep(&self, path: usize, url: &Url, options: &SessionOptions) {
        if let Err(error) = self.keep_while_usable(path, url, options).await {
            self.reject(path, error).await;
        }
        self.changed.notify_waiters();
    }

    async fn keep_while_usable(
        &self,
        path: usize,
        url: &Url,
        options: &SessionOptions,
    ) -> Result<(), SessionError> {
        let mut pause = FIRST_PAUSE;
        let session = loop {
            match Session::log_in(url, options).await {
                Ok(session) => break session,
                Err(error) if error.is_permanent() => return Err(error),
                Err(error) => self.note_delay(path, error),
            }
            time::sleep_until(time::now() + pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        self.join(path, &session, url.lun_field());
        let mut instance = session.instance();
        let mut next_return = FIRST_RETURN;
        loop {
            pause = FIRST_PAUSE;
            // A unit may be available only some time after its target.
            while let Err(error) = self.offer_examined(path, &instance).await {
                if error.is_connection_lost() {
                    instance.end(error);
                    break;
                }
                // Its session has a later instance, from which the error may be: only that one can be activated.
                if instance.ended().is_some() {
                    break;
                }
                let is_denied = is_denied(Some(&error));
                self.note_failure(path, error)?;
                if is_denied {
                    self.activate(path, &instance).await;
                }
                time::sleep_until(time::now() + if is_denied { ACCESS_PAUSE } else { pause }).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            let lost = self.watch(path, &instance, &mut next_return).await?;
            self.withdraw(path, &instance, &lost);
            if instance.has_lost_cache() {
                // A path that is about to be offered is one of them.
                let _settling = self.settling.lock().await;
                self.end_others(path);
            }
            instance = session.next_instance(&instance).await?;
            if instance.entry == self.paths[path].portal {
                next_return = FIRST_RETURN;
            }
        }
    }

    /// Notes why a path is not usable now. Returns the error if it will not pass.
    fn note_failure(&self, path: usize, error: SessionError) -> Result<(), SessionError> {
        if !error.is_transient() {
            return Err(error);
        }
        self.note_delay(path, error);
        Ok(())
    }

    /// Notes why a path is not usable now.
    fn note_delay(&self, path: usize, error: SessionError) {
        tracing::debug!(portal = %self.paths[path].portal, %error, "a path is not usable yet");
        self.choices.lock().paths[path].failure = Some(error);
        self.changed.notify_waiters();
    }

    /// Notes the session of a path.
    pub(super) fn join(&self, path: usize, session: &Session, lun: [u8; 8]) {
        let _ = self.paths[path].unit.set(Unit::new(session, lun));
    }

    /// Makes all portals of a portal group portals of each of its sessions, if the unit was recognised through them: a login through
    /// any of them with the ISID of the session ends the tasks of its earlier logins (RFC 7143 §6.3.5).
    fn share_portals(&self, path: usize, instance: &Instance) {
        let group = instance.portal_group();
        let others = self.choices.lock().recognised();
        for other in others.into_iter().filter(|other| *other != path && group.is_some()) {
            let session = self.unit(other).session();
            if session.instance().portal_group() == group {
                self.unit(path).session().add_portal(&self.paths[other].portal);
                session.add_portal(&self.paths[path].portal);
            }
        }
    }

    /// Gives a path up. Its commands move to the other paths.
    async fn reject(&self, path: usize, error: SessionError) {
        let portal = &self.paths[path].portal;
        tracing::warn!(%portal, %error, "a path is given up");
        {
            let state = &mut self.choices.lock().paths[path];
            state.instance = None;
            state.is_rejected = true;
            state.is_recognised = false;
            state.failure = Some(error.clone());
        }
        let sessions = self.paths.iter().filter_map(|path| path.unit.get()).map(Unit::session);
        sessions.for_each(|session| session.remove_portal(portal));
        if let Some(unit) = self.paths[path].unit.get() {
            unit.session().close(error).await;
        }
    }

    /// Examines the unit in an instance that has sent no other command, and offers the path to commands.
    pub(super) async fn offer_examined(
        &self,
        path: usize,
        instance: &Arc<Instance>,
    ) -> Result<(), SessionError> {
        let unit = self.unit(path);
        let examine = async {
            unit.clear_unit_attentions().await?;
            self.examine(unit, instance).await
        };
        let found = in_time(&instance.entry, unit.session().answer_limit(), examine).await?;
        if self.repeats() {
            instance.end_at_reset();
        }
        if self.paths.len() > 1 {
            instance.adapt_silence();
        }
        self.give_precedence(path).await;
        let mut settling = self.settling.lock().await;
        if let Some(lost) = instance.ended() {
            return Err(lost);
        }
        self.recognise(path, &found)?;
        self.share_portals(path, instance);
        // A write of an attempt that was not completed must not arrive after a later write.
        if let Some((other, begun)) = &*settling
            && !Arc::ptr_eq(begun, instance)
        {
            begun.end(lost(std::io::Error::other("another path writes the kept writes again")));
            self.unit(*other).session().next_instance(begun).await?;
        }
        if !self.unflushed.is_empty() && !self.another_lives(path).await {
            self.end_others(path);
            *settling = Some((path, instance.clone()));
            if let Err(error) = self.write_again(unit, instance).await {
                if !error.is_connection_lost() {
                    // The unit has answered: nothing is on its way.
                    *settling = None;
                }
                return Err(error);
            }
        }
        *settling = None;
        self.offer(path, instance, &found);
        Ok(())
    }

    /// If no unit was recognised yet, waits a little for the first path: its unit is that of the set.
    async fn give_precedence(&self, path: usize) {
        let decided = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                let is_decided = {
                    let first = &self.choices.lock().paths[0];
                    first.instance.is_some() || first.failure.is_some()
                };
                if is_decided || self.fingerprint.get().is_some() {
                    return;
                }
                changed.await;
            }
        };
        if path > 0 {
            let _ = tokio::time::timeout(PRECEDENCE, decided).await;
        }
    }

    /// Writes the kept writes again: those to different blocks at the same time, those to the same blocks in their order. If that
    /// takes long, flushes meanwhile, so that the next attempt begins after these writes.
    async fn write_again(&self, unit: &Unit, instance: &Instance) -> Result<(), SessionError> {
        let writes = self.unflushed.sent();
        let count = writes.len();
        tracing::info!(portal = %instance.entry, count, "writing kept writes again");
        let mut flushed_at = time::now();
        let mut rest = &writes[..];
        while !rest.is_empty() {
            let (together, later) = rest.split_at(independent(rest));
            let send = async |write: &VolatileWrite<PreparedCommand>| {
                unit.carry_out_attentively(instance, &write.command).await
            };
            let answers = join_all(together.iter().map(|(_, write)| send(write))).await;
            // Whatever else has failed, a write without an answer may still be carried out.
            let mut failures = answers.iter().filter_map(|answer| answer.as_ref().err());
            if let Some(lost) = failures.find(|error| error.is_connection_lost()) {
                return Err(lost.clone());
            }
            for ((number, write), answer) in together.iter().zip(answers) {
                let mut completion = answer?;
                if is_busy(&completion) {
                    // The unit has no room for so many commands.
                    completion = send(write).await?;
                }
                match good(completion) {
                    Ok(_) => {}
                    Err(error) if error.is_transient() || matches!(write.answer, Answer::Good) => {
                        return Err(error);
                    }
                    // Its caller repeats it, and gets an answer of its own.
                    Err(_) if matches!(write.answer, Answer::Awaited) => {}
                    Err(_) => self.unflushed.forget(&[*number]),
                }
            }
            if let Some((last, _)) = together.last()
                && time::now() - flushed_at >= FLUSH_INTERVAL
            {
                self.flush_again(unit, instance, *last).await?;
                flushed_at = time::now();
            }
            rest = later;
        }
        Ok(())
    }

    /// Flushes the unit, and forgets the kept writes up to the number `last` that have an answer. All of them were written again. If
    /// the unit refuses to flush, they remain kept.
    async fn flush_again(
        &self,
        unit: &Unit,
        instance: &Instance,
        last: u64,
    ) -> Result<(), SessionError> {
        let mut written = self.unflushed.flushable();
        written.retain(|number| *number <= last);
        let command = self.prepare(commands::synchronize_cache())?;
        let completion = unit.carry_out_attentively(instance, &command).await?;
        let _ = self.note_flush(completion, instance, &written);
        Ok(())
    }

    /// Examines the unit, again if it reports a change meanwhile.
    async fn examine(&self, unit: &Unit, instance: &Instance) -> Result<Examined, SessionError> {
        loop {
            let requests = self.choices.lock().requests;
            let changes = instance.changes();
            let capacity = unit.read_capacity().await?;
            let (naa, serial) = (unit.naa().await?, unit.serial().await?);
            let found = Examined {
                fingerprint: Fingerprint { naa, serial, block_length: capacity.block_length },
                capacity,
                is_stable: unit.caching().await?.is_some_and(|caching| !caching.write_cache),
                access: unit.access().await?,
                requests,
            };
            if instance.changes() == changes {
                return Ok(found);
            }
        }
    }

    /// Returns an error if the unit is not that of the set.
    fn recognise(&self, path: usize, found: &Examined) -> Result<(), SessionError> {
        let (first, fingerprint) =
            self.fingerprint.get_or_init(|| (path, found.fingerprint.clone()));
        let blocks = self.status.block_count();
        let has_other_size = blocks != 0 && found.capacity.blocks != blocks;
        let was_recognised = self.choices.lock().paths[path].is_recognised;
        let is_other = found.fingerprint != *fingerprint
            || (fingerprint.is_nameless() && (has_other_size || path != *first));
        if is_other && was_recognised {
            return Err(SessionError::UnitChanged);
        }
        // Servers without a state give volumes of one name one identifier.
        if is_other || (has_other_size && !was_recognised) {
            return Err(SessionError::OtherUnit { portal: self.paths[path].portal.clone() });
        }
        self.choices.lock().paths[path].is_recognised = true;
        Ok(())
    }

    /// Returns whether another path shows that the unit has kept its cache since it was lost on this one. The other paths get a TEST
    /// UNIT READY now: a target that was just restarted would look alive otherwise, on every path whose loss is not known yet,
    /// and a unit that was reset reports that.
    async fn another_lives(&self, path: usize) -> bool {
        let others = self.choices.lock().others(path);
        let mut answers: FuturesUnordered<_> =
            others.iter().map(|(other, instance)| self.is_alive(*other, instance)).collect();
        while let Some(is_alive) = answers.next().await {
            if is_alive {
                return true;
            }
        }
        false
    }

    async fn is_alive(&self, path: usize, instance: &Arc<Instance>) -> bool {
        let unit = self.unit(path);
        let command =
            Command::new(&[opcode::TEST_UNIT_READY, 0, 0, 0, 0, 0], TransferRequest::None);
        let Ok(command) = prepare(instance, command) else { return false };
        let answer = unit.carry_out(instance, &command, None);
        let limit = unit.session().answer_limit();
        let Ok(completion) = in_time(&instance.entry, limit, answer).await else { return false };
        if let Some(sense) = Sense::of(&completion)
            && sense.key == SenseKey::UnitAttention
            && let Err(error) = self.handle_attention(path, sense).await
        {
            instance.end(error);
        }
        instance.ended().is_none()
    }

    /// Ends the logins of all other paths: the target may have lost writes that they acknowledged.
    fn end_others(&self, path: usize) {
        let reason = "the target may have lost its cache, as another path shows";
        let error = lost(std::io::Error::other(reason));
        let others = self.choices.lock().others(path);
        for (other, instance) in others {
            self.withdraw(other, &instance, &error);
        }
    }

    fn offer(&self, path: usize, instance: &Arc<Instance>, found: &Examined) {
        self.status.set_block_count(found.capacity.blocks);
        let inactive = {
            let mut choices = self.choices.lock();
            let is_outdated = choices.requests != found.requests;
            // Its cache may be volatile by now.
            self.unflushed.set_write_through(found.is_stable && !is_outdated);
            let state = &mut choices.paths[path];
            state.instance = Some(instance.clone());
            state.is_suspended &= is_outdated;
            state.failure = None;
            state.group = found.access.group;
            state.access = found.access.state_of(found.access.group);
            let inactive = choices.set_access(&found.access);
            if choices.is_usable() {
                choices.down_since = None;
            }
            inactive
        };
        // Each of them polls its access from now on.
        inactive.into_iter().for_each(|path| self.paths[path].examine.notify_one());
        self.changed.notify_waiters();
    }

    /// Waits until an offered instance has ended, and returns the reason. Meanwhile the unit is examined again when it has changed, and
    /// the path returns to its own portal. An error means that the path cannot be used any more.
    async fn watch(
        &self,
        path: usize,
        instance: &Arc<Instance>,
        next_return: &mut Duration,
    ) -> Result<SessionError, SessionError> {
        let (unit, own) = (self.unit(path), &self.paths[path]);
        let mut own_portal = std::pin::pin!(self.own_portal_answers(path, instance, *next_return));
        loop {
            let is_active = self.choices.lock().paths[path].access.is_active();
            let later = async {
                if is_active {
                    std::future::pending::<()>().await;
                }
                time::sleep_until(time::now() + ACCESS_PAUSE).await;
            };
            tokio::select! {
                biased;
                lost = instance.wait_for_end() => return Ok(lost),
                () = own.examine.notified() => {}
                () = instance.reported.notified() => {}
                () = later => self.activate(path, instance).await,
                () = &mut own_portal => {
                    *next_return = (*next_return * 2).min(LONGEST_RETURN);
                    self.drain(path).await;
                    let reason = "the path returns to its own portal";
                    instance.end(lost(std::io::Error::other(reason)));
                    continue;
                }
            }
            let limit = unit.session().answer_limit();
            match in_time(&instance.entry, limit, self.examine(unit, instance)).await {
                Ok(found) => {
                    let _settling = self.settling.lock().await;
                    self.recognise(path, &found)?;
                    if instance.ended().is_none() {
                        self.offer(path, instance, &found);
                    }
                }
                Err(error) if error.is_connection_lost() => instance.end(error),
                Err(error) => {
                    let is_denied = is_denied(Some(&error));
                    self.note_failure(path, error)?;
                    if is_denied {
                        self.activate(path, instance).await;
                    }
                    own.examine.notify_one();
                    time::sleep_until(time::now() + ACCESS_PAUSE).await;
                }
            }
        }
    }

    /// Makes the target port group of a path active, if commands wait because no path is, and initiators may do that.
    async fn activate(&self, path: usize, instance: &Instance) {
        if !self.choices.lock().begin_activation(time::now()) {
            return;
        }
        let (unit, portal) = (self.unit(path), &self.paths[path].portal);
        let activate = async {
            let access = unit.access().await?;
            let group = access.group.filter(|_| access.is_explicit);
            let state = access.state_of(group);
            let Some(group) = group.filter(|_| state != AccessState::Transitioning) else {
                return Ok(());
            };
            let command = self.prepare(activation(group))?;
            good(unit.carry_out_attentively(instance, &command).await?)?;
            tracing::info!(%portal, group, "the target port group was made active");
            Ok(())
        };
        if let Err(error) = in_time(&instance.entry, unit.session().answer_limit(), activate).await
        {
            tracing::debug!(%portal, %error, "cannot make the target port group active");
        }
    }

    /// Waits until the own portal of a path accepts connections, if the path is logged in through another one.
    async fn own_portal_answers(&self, path: usize, instance: &Instance, mut pause: Duration) {
        let own = &self.paths[path].portal;
        if instance.entry == *own {
            return std::future::pending().await;
        }
        loop {
            time::sleep_until(time::now() + pause).await;
            let limit = self.unit(path).session().answer_limit();
            if in_time(own, limit, dial(own)).await.is_ok() {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits until no command is in flight on a path, up to the time limit of an answer. The path gets no new ones.
    async fn drain(&self, path: usize) {
        self.choices.lock().paths[path].is_suspended = true;
        let idle = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if self.choices.lock().paths[path].is_idle() {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(self.unit(path).session().answer_limit(), idle).await;
    }
}
