//! One logical unit over several paths and over all logins of their sessions: commands that can be repeated are repeated after a
//! lost connection.
//!
//! For a read that is harmless. For a write it is harmless too, because a repeated write never overwrites a later write to
//! the same blocks that was acknowledged:
//!
//! - No write is sent while another write to some of the same blocks may still be carried out ([`WriteRangeLocks`]). So when a
//!   write is repeated, no later write to its blocks was sent yet.
//! - A write is sent again only after the next login of the session in which it was sent: the target ended all tasks of the old
//!   login before it granted that one ([`Instance::generation`]). A target that was restarted has no old tasks.
//! - A write that is carried out twice leaves the same data in its blocks. Commands for which that is not true, such as
//!   COMPARE AND WRITE, are not repeated: their callers get the loss.
//!
//! A target that lost power may have lost data that it acknowledged and had only in its cache. So all writes since the last
//! flush are kept. After a new login they are written again, in the order in which they were sent, before any other command
//! ([`Unflushed`]), unless another path shows that the target has lived since the loss (`keeper.rs`). If the unit reports a reset
//! within a login, that login ends. Writing again must not undo a write that was acknowledged later. So a write that is stable at
//! once is kept, too, while an older write to its blocks is kept. Before a command of another kind changes blocks, all kept
//! writes are flushed.

mod choice;
mod keeper;
mod portals;

use std::io;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use sarsen_block::{Buffer, LocalFuture, StoreStatus};
use sarsen_io::time;
use sarsen_proto::iscsi::initiator::Completion;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::connections::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::error::{Sense, SenseKey, SessionError, is_aborted, is_busy};
use crate::instance::{Hold, Instance, lost};
use crate::kept_writes::{Answer, UnansweredWrite, Unflushed, VolatileWrite};
use crate::options::SessionOptions;
use crate::remote_disk::{PathStatus, notified};
use crate::session::Session;
use crate::unit::{
    AccessState, Capacity, Command, MEDIUM_MAY_HAVE_CHANGED, PreparedCommand, TransferRequest,
    UNIT_ATTENTION_LIMIT, Unit, commands, good, prepare,
};
use crate::url::{Portal, Url};
use crate::write_ranges::{LockedBlocks, WriteRangeLocks};
use choice::{Choices, InFlight};

/// A command fails that loses so many connections, and for longer than the limit of its store: the command itself may break them.
const REPEAT_LIMIT: u32 = 8;
/// Maximum number of times that a command is repeated because the target has aborted it.
const ABORT_LIMIT: u32 = 5;
/// ADDITIONAL SENSE CODE of "invalid command operation code".
const INVALID_OPERATION_CODE: u8 = 0x20;
/// "Mode parameters changed".
const MODE_HAS_CHANGED: (u8, u8) = (0x2a, 0x01);
/// "Asymmetric access state changed".
const ACCESS_HAS_CHANGED: (u8, u8) = (0x2a, 0x06);
/// "Capacity data has changed".
const CAPACITY_HAS_CHANGED: (u8, u8) = (0x2a, 0x09);
/// "Inquiry data has changed" and "reported LUNs data has changed".
const INQUIRY_HAS_CHANGED: (u8, u8) = (0x3f, 0x03);
const LUNS_HAVE_CHANGED: (u8, u8) = (0x3f, 0x0e);

/// The properties by which a unit is recognised: on other paths, and after a new login.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fingerprint {
    naa: Option<String>,
    serial: Option<String>,
    block_length: u32,
}

impl Fingerprint {
    /// Returns whether the unit has no identifier: only its size is left to recognise it.
    const fn is_nameless(&self) -> bool {
        self.naa.is_none() && self.serial.is_none()
    }
}

/// See the module. The tasks that keep its paths end when it is dropped.
pub(crate) struct PathSet {
    core: Arc<Core>,
    keepers: Vec<JoinHandle<()>>,
}

/// The part that the set shares with the tasks that keep its paths.
struct Core {
    paths: Vec<Path>,
    /// How long commands wait for a path, and for the next login after a loss. `None` if nothing is repeated.
    limit: Option<Duration>,
    /// The unit of the set, and the path on which it was examined first.
    fingerprint: OnceLock<(usize, Fingerprint)>,
    choices: Mutex<Choices>,
    /// A path was offered, failed or has no commands left.
    changed: Arc<Notify>,
    /// One keeper writes the kept writes again; the others wait. It has the path and the instance in which this was begun and not
    /// completed.
    settling: tokio::sync::Mutex<Option<(usize, Arc<Instance>)>>,
    ranges: Arc<WriteRangeLocks>,
    unflushed: Unflushed<PreparedCommand>,
    status: Arc<StoreStatus>,
}

/// A path to the unit.
struct Path {
    portal: Portal,
    /// Set by the first login.
    unit: OnceLock<Unit>,
    /// The unit may have changed.
    examine: Notify,
}

/// How a command may be sent more than once.
enum Repetition<'a> {
    /// Not at all, once it was sent.
    Never(Option<&'a Hold>),
    /// Over any path, at once.
    Read,
    /// As a read, but not after the target has aborted it: what it was to write may be lost, which a second flush would not report.
    Flush,
    /// After the next login of the session in which it was sent.
    Write(&'a Hold, &'a UnansweredWrite<'a, PreparedCommand>),
}

impl PathSet {
    /// Logs in through all portals of the URL or, if it names one, also through those that the target reports. Waits until the unit
    /// was examined through one of them. If none works, the error is that of the first portal.
    pub(crate) async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        let repeats = options.reconnect_limit.is_some();
        // Without repetition there is one session, through the first portal that answers.
        let portals =
            if repeats { portals::portals(url, options).await } else { vec![url.portal().clone()] };
        let path = |portal: &Portal| Path {
            portal: portal.clone(),
            unit: OnceLock::new(),
            examine: Notify::new(),
        };
        let core = Arc::new(Core {
            paths: portals.iter().map(path).collect(),
            limit: options.reconnect_limit,
            fingerprint: OnceLock::new(),
            choices: Mutex::new(Choices::new(portals.len(), options.path_selector)),
            changed: Arc::default(),
            settling: tokio::sync::Mutex::default(),
            ranges: Arc::default(),
            unflushed: Unflushed::default(),
            status: StoreStatus::new(0),
        });
        let mut set = Self { core: core.clone(), keepers: Vec::new() };
        if !repeats {
            let session = Session::log_in(url, options).await?;
            core.join(0, &session, url.lun_field());
            core.offer_examined(0, &session.instance()).await?;
            return Ok(set);
        }
        set.keepers = keeper::start(&core, url, options);
        core.wait_for_first().await?;
        Ok(set)
    }

    /// Returns the unit on a path that was examined, for commands that are not repeated and change no blocks.
    pub(crate) fn unit(&self) -> &Unit {
        let core = &self.core;
        let offered = {
            let choices = core.choices.lock();
            choices.paths.iter().position(|state| state.instance.is_some())
        };
        let examined = || core.paths.iter().find_map(|path| path.unit.get());
        let unit = offered.and_then(|path| core.paths[path].unit.get()).or_else(examined);
        unit.expect("a path was offered before the set was returned")
    }

    /// Waits until each path is logged in or has failed, up to `limit`.
    pub(crate) async fn attempt_all(&self, limit: Duration) {
        let all = async {
            loop {
                let mut changed = pin!(self.core.changed.notified());
                changed.as_mut().enable();
                if self.paths().iter().all(|path| path.entry.is_some() || path.failure.is_some()) {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
    }

    /// See [`crate::IscsiStore::end_earlier_sessions`].
    pub(crate) async fn end_earlier_sessions(&self, url: &Url, options: &SessionOptions) {
        self.core.end_earlier_sessions(url, options).await;
    }

    /// Waits for the next change of a path.
    pub(crate) fn changed(&self) -> LocalFuture<()> {
        notified(&self.core.changed)
    }

    /// Returns the NAA identifier or the serial number of the unit.
    pub(crate) fn identifier(&self) -> Option<String> {
        let (_, fingerprint) = self.core.fingerprint.get()?;
        let naa = fingerprint.naa.as_ref().map(|naa| format!("naa.{naa}"));
        naa.or_else(|| fingerprint.serial.as_ref().map(|serial| format!("serial number {serial}")))
    }

    /// Returns whether commands fail at once, because no path has been usable for the limit or none will be.
    pub(crate) fn is_down(&self) -> bool {
        let choices = self.core.choices.lock();
        let is_over = self.core.down_from(&choices).is_some_and(|from| from <= time::now());
        !choices.is_usable() && (is_over || choices.is_given_up())
    }

    /// Returns whether writes may have to be written again.
    pub(crate) fn has_kept_writes(&self) -> bool {
        !self.core.unflushed.is_empty()
    }

    /// Returns whether the unit brings each write to stable storage before it answers, as far as that is known now.
    pub(crate) fn is_write_through(&self) -> bool {
        self.core.unflushed.is_write_through()
    }

    /// Returns the status of each path, in the order of the portals.
    pub(crate) fn paths(&self) -> Vec<PathStatus> {
        let choices = self.core.choices.lock();
        let both = self.core.paths.iter().zip(&choices.paths);
        both.map(|(path, state)| PathStatus {
            portal: path.portal.to_string(),
            entry: state.instance.as_ref().map(|instance| instance.entry.to_string()),
            is_active: state.is_usable(),
            // The last attempt says more than the loss before it.
            failure: state.failure.clone().map(|failure| {
                let session = path.unit.get().map(Unit::session);
                session.and_then(Session::last_failure).unwrap_or(failure).to_string()
            }),
        })
        .collect()
    }

    pub(crate) fn status(&self) -> &Arc<StoreStatus> {
        &self.core.status
    }

    /// Logs out on all paths. If commands are repeated, a path that is lost meanwhile is no error.
    pub(crate) async fn logout(&self) -> Result<(), SessionError> {
        self.keepers.iter().for_each(JoinHandle::abort);
        let units = self.core.paths.iter().filter_map(|path| path.unit.get());
        let sessions: Vec<_> = units.map(|unit| unit.session().clone()).collect();
        let results: Result<Vec<()>, _> =
            join_all(sessions.into_iter().map(Session::logout)).await.into_iter().collect();
        if self.core.repeats() { Ok(()) } else { results.map(drop) }
    }

    /// Carries out a command that changes no blocks, and repeats it.
    pub(crate) async fn ask(&self, command: Command) -> Result<Completion, SessionError> {
        let command = self.core.prepare(command)?;
        good(self.core.carry_out(&command, Repetition::Read).await?.0)
    }

    /// Reads blocks: see [`Unit::read`].
    pub(crate) async fn read(&self, lba: u64, blocks: u32) -> Result<Buffer, SessionError> {
        let block_length = self.core.block_length();
        let command = commands::read(lba, blocks, block_length)?;
        commands::received(self.ask(command).await?, blocks * block_length)
    }

    /// Writes blocks: see [`Unit::write`].
    pub(crate) async fn write(
        &self,
        lba: u64,
        data: Buffer,
        fua: bool,
    ) -> Result<(), SessionError> {
        let (length, block_length) = (data.len(), self.core.block_length());
        let end = lba.saturating_add(length as u64 / u64::from(block_length.max(1)));
        let command = commands::write(lba, data, block_length, fua)?;
        commands::moved(&self.set(command, (lba, end), fua).await?, length)
    }

    /// Writes the same data to blocks: see [`Unit::write_same`].
    pub(crate) async fn write_same(
        &self,
        lba: u64,
        blocks: u32,
        block: Buffer,
        unmap: bool,
    ) -> Result<(), SessionError> {
        // Zero blocks means all blocks that follow (SBC-4 5.50).
        let end = if blocks == 0 { u64::MAX } else { lba.saturating_add(blocks.into()) };
        let command = commands::write_same(lba, blocks, block, unmap);
        self.set(command, (lba, end), false).await?;
        Ok(())
    }

    /// Deallocates blocks: see [`Unit::unmap`].
    pub(crate) async fn unmap(&self, lba: u64, blocks: u32) -> Result<(), SessionError> {
        let end = lba.saturating_add(blocks.into());
        self.set(commands::unmap(&[(lba, blocks)])?, (lba, end), false).await?;
        Ok(())
    }

    /// Carries out a command that sets the blocks from `first` to before `end` to its data, and repeats it. With `stable` they
    /// are on stable storage afterwards.
    async fn set(
        &self,
        command: Command,
        (first, end): (u64, u64),
        stable: bool,
    ) -> Result<Completion, SessionError> {
        let memory = match &command.transfer {
            TransferRequest::Write(data) => data.memory(),
            TransferRequest::None | TransferRequest::Read(_) => 0,
        };
        let core = &self.core;
        let command = core.prepare(command)?;
        if !core.repeats() {
            return good(core.carry_out(&command, Repetition::Never(None)).await?.0);
        }
        let hold: Hold = Arc::new(core.claim(first, end).await?);
        let write = VolatileWrite {
            command: command.clone(),
            extent: (first, end),
            memory,
            answer: Answer::Unsent,
        };
        let kept = core.unflushed.keep(write, &hold);
        let (completion, _) = core.carry_out(&command, Repetition::Write(&hold, &kept)).await?;
        let completion = match good(completion) {
            Ok(completion) => completion,
            Err(error) => {
                kept.note_failure();
                return Err(error);
            }
        };
        kept.note_answer(stable);
        if core.unflushed.is_full() {
            self.flush().await?;
        }
        Ok(completion)
    }

    /// Carries out a command of any kind, once: if its connection is lost, its caller gets the loss. If it may change blocks,
    /// it has the unit to itself.
    pub(crate) async fn command(&self, command: Command) -> Result<Completion, SessionError> {
        let changes = !matches!(command.transfer, TransferRequest::Read(_));
        let hold: Option<Hold> = if changes && self.core.repeats() {
            Some(Arc::new(self.write_alone().await?))
        } else {
            None
        };
        let command = self.core.prepare(command)?;
        let repetition = Repetition::Never(hold.as_ref());
        let completion = good(self.core.carry_out(&command, repetition).await?.0)?;
        if hold.is_some() && !self.core.unflushed.is_write_through() {
            // The change cannot be repeated, so it must not be lost with the cache. A unit that refuses to flush has still carried
            // it out, and refuses its caller's flush as well.
            match self.flush().await {
                Err(error) if error.is_connection_lost() => return Err(error),
                _ => {}
            }
        }
        Ok(completion)
    }

    /// Brings all written data to stable storage.
    pub(crate) async fn flush(&self) -> Result<(), SessionError> {
        let core = &self.core;
        let command = core.prepare(commands::synchronize_cache())?;
        loop {
            let flushable = core.unflushed.flushable();
            let (completion, instance) = core.carry_out(&command, Repetition::Flush).await?;
            if core.note_flush(completion, &instance, &flushable)? {
                return Ok(());
            }
        }
    }

    /// Waits for all writes, flushes the kept ones, and delays new ones until the returned locks are dropped. Any
    /// command may change blocks, and repeating an earlier write to them must not undo that change.
    async fn write_alone(&self) -> Result<LockedBlocks, SessionError> {
        let held = self.core.claim(0, u64::MAX).await?;
        if !self.core.unflushed.is_empty() {
            self.flush().await?;
        }
        Ok(held)
    }
}

impl Drop for PathSet {
    fn drop(&mut self) {
        self.keepers.iter().for_each(JoinHandle::abort);
        self.core.changed.notify_waiters();
    }
}

impl Core {
    const fn repeats(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns the time until which something that begins now may last.
    fn deadline(&self) -> Instant {
        time::now() + self.limit.unwrap_or_default()
    }

    fn block_length(&self) -> u32 {
        self.fingerprint.get().map_or(0, |(_, fingerprint)| fingerprint.block_length)
    }

    fn prepare(&self, command: Command) -> Result<PreparedCommand, SessionError> {
        // The data is prepared for every connection, whatever its digests are.
        let unit = self.paths.iter().find_map(|path| path.unit.get());
        let unit = unit.ok_or(SessionError::LoggedOut)?;
        prepare(&unit.session().instance(), command)
    }

    /// Waits until no other write can still be carried out in these blocks.
    async fn claim(&self, first: u64, end: u64) -> Result<LockedBlocks, SessionError> {
        let claim = pin!(self.ranges.claim(first, end));
        tokio::select! {
            biased;
            locked = claim => Ok(locked),
            () = time::sleep_until(self.deadline()) => {
                let earlier = "an earlier write to the same blocks may still be carried out";
                Err(lost(io::Error::new(io::ErrorKind::TimedOut, earlier)))
            }
        }
    }

    /// Carries a command out, over as many paths and logins as it needs. Also returns the instance that answered it.
    async fn carry_out(
        &self,
        command: &PreparedCommand,
        repetition: Repetition<'_>,
    ) -> Result<(Completion, Arc<Instance>), SessionError> {
        let deadline = self.deadline();
        let (mut losses, mut attentions, mut denials, mut aborts) = (0, 0, 0, 0);
        let mut pause = FIRST_PAUSE;
        let hold = match &repetition {
            Repetition::Never(hold) => *hold,
            Repetition::Read | Repetition::Flush => None,
            Repetition::Write(hold, _) => Some(*hold),
        };
        loop {
            let mut flight = self.choose(command.data_length()).await?;
            let (path, instance) = (flight.command.path, flight.command.instance.clone());
            let unit = self.unit(path);
            let is_sent = instance.ended().is_none();
            if let (true, Repetition::Write(_, kept)) = (is_sent, &repetition) {
                kept.note_sent();
            }
            let answer = unit.carry_out(&instance, command, hold).await;
            flight.answered = answer.is_ok();
            drop(flight);
            let completion = match answer {
                Ok(completion) => completion,
                Err(error)
                    if self.repeats()
                        && (error.is_connection_lost() || error.is_digest_rejection()) =>
                {
                    self.withdraw(path, &instance, &error);
                    losses += 1;
                    let is_hopeless = losses >= REPEAT_LIMIT && time::now() >= deadline;
                    match repetition {
                        _ if is_hopeless => return Err(error),
                        // A command that was not sent may always be sent again.
                        Repetition::Never(_) if is_sent => return Err(error),
                        Repetition::Write(..) if is_sent => {
                            self.wait_for_fence(unit, &instance, error).await?;
                        }
                        _ => {}
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let sense = Sense::of(&completion);
            match sense {
                Some(sense) if sense.key == SenseKey::UnitAttention => {
                    attentions += 1;
                    if sense.asc == MEDIUM_MAY_HAVE_CHANGED || attentions > UNIT_ATTENTION_LIMIT {
                        return Ok((completion, instance));
                    }
                    // The unit did not carry the command out (SAM-5 5.14).
                    tracing::debug!(%sense, operation_code = command.cdb[0], "unit attention");
                    self.handle_attention(path, sense).await?;
                }
                Some(sense)
                    if self.repeats()
                        && AccessState::denied(&sense).is_some()
                        && time::now() < deadline =>
                {
                    self.note_access(path, AccessState::denied(&sense).unwrap_or_default());
                    denials += 1;
                    // The unit may report an active state and deny commands even so.
                    if denials > self.paths.len() {
                        time::sleep_until(time::now() + pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
                // What a write has changed before it was aborted, its repetition writes again: no other write gets at these blocks meanwhile.
                Some(sense)
                    if matches!(repetition, Repetition::Read | Repetition::Write(..))
                        && is_aborted(sense)
                        && aborts < ABORT_LIMIT =>
                {
                    aborts += 1;
                    tracing::debug!(%sense, operation_code = command.cdb[0], "aborted command");
                    time::sleep_until(time::now() + pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                _ if !matches!(repetition, Repetition::Never(_))
                    && is_busy(&completion)
                    && time::now() < deadline =>
                {
                    time::sleep_until(time::now() + pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                _ => return Ok((completion, instance)),
            }
        }
    }

    /// Chooses a path, as soon as one is usable.
    async fn choose(&self, bytes: u64) -> Result<Flight<'_>, SessionError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = time::now();
            let (until, failure) = {
                let mut choices = self.choices.lock();
                if let Some(command) = choices.begin(bytes, now) {
                    return Ok(Flight { core: self, command, answered: false });
                }
                choices.down_since.get_or_insert(now);
                (self.down_from(&choices).unwrap_or(now), choices.failure())
            };
            if until <= now {
                self.changed.notify_waiters();
                return Err(failure);
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = time::sleep_until(until) => {}
            }
        }
    }

    /// Returns the time from which on commands fail at once, if they wait for a path or no path will be usable any more.
    fn down_from(&self, choices: &Choices) -> Option<Instant> {
        let since = choices.down_since?;
        let wait = self.limit.filter(|_| !choices.is_given_up()).unwrap_or_default();
        Some(since + wait)
    }

    /// Waits until a write that was sent in this instance can no longer be carried out.
    async fn wait_for_fence(
        &self,
        unit: &Unit,
        instance: &Instance,
        lost: SessionError,
    ) -> Result<(), SessionError> {
        tokio::select! {
            biased;
            next = unit.session().next_instance(instance) => next.map(drop),
            () = time::sleep_until(self.deadline()) => Err(lost),
        }
    }

    /// Notes the answer to a flush of these kept writes. Returns whether they are on stable storage.
    fn note_flush(
        &self,
        completion: Completion,
        instance: &Instance,
        flushed: &[u64],
    ) -> Result<bool, SessionError> {
        match good(completion) {
            // The unit may have been reset between the writes and the flush.
            Ok(_) if instance.has_lost_cache() => Ok(false),
            Ok(_) => {
                self.unflushed.forget(flushed);
                Ok(true)
            }
            // A unit without the command has no cache.
            Err(SessionError::CheckCondition(sense))
                if (sense.key, sense.asc) == (SenseKey::IllegalRequest, INVALID_OPERATION_CODE) =>
            {
                self.unflushed.set_write_through(true);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the unit of a path that has been offered.
    fn unit(&self, path: usize) -> &Unit {
        self.paths[path].unit.get().expect("a path with an instance has a unit")
    }

    async fn handle_attention(&self, path: usize, sense: Sense) -> Result<(), SessionError> {
        match (sense.asc, sense.ascq) {
            CAPACITY_HAS_CHANGED => match self.unit(path).read_capacity().await {
                Ok(capacity) => self.note_capacity(capacity)?,
                // After a lost connection, the keeper asks again.
                Err(error) => tracing::warn!(%error, "the new capacity of a unit is not known"),
            },
            ACCESS_HAS_CHANGED => self.examine_all(),
            MODE_HAS_CHANGED => {
                self.examine_all();
                // The unit may have a volatile cache now. Examinations that began before do not report that.
                self.unflushed.set_write_through(false);
            }
            INQUIRY_HAS_CHANGED | LUNS_HAVE_CHANGED if self.repeats() => {
                self.choices.lock().suspend_all();
                self.examine_all();
            }
            _ => {}
        }
        Ok(())
    }

    /// Requests that each path examines the unit again.
    fn examine_all(&self) {
        self.choices.lock().requests += 1;
        self.paths.iter().for_each(|path| path.examine.notify_one());
    }

    fn note_access(&self, path: usize, state: AccessState) {
        self.choices.lock().paths[path].access = state;
        self.paths[path].examine.notify_one();
    }

    fn note_capacity(&self, capacity: Capacity) -> Result<(), SessionError> {
        if capacity.block_length != self.block_length() {
            return Err(SessionError::UnitChanged);
        }
        self.status.set_block_count(capacity.blocks);
        Ok(())
    }

    /// Offers a path no longer, because this instance has ended.
    fn withdraw(&self, path: usize, instance: &Arc<Instance>, error: &SessionError) {
        instance.end(error.clone());
        let mut choices = self.choices.lock();
        let state = &mut choices.paths[path];
        if state.instance.as_ref().is_some_and(|offered| Arc::ptr_eq(offered, instance)) {
            state.instance = None;
            state.failure = Some(error.clone());
            drop(choices);
            self.changed.notify_waiters();
        }
    }
}

/// A command on a path. Its weight on the path ends with it.
struct Flight<'a> {
    core: &'a Core,
    command: InFlight,
    answered: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut choices = self.core.choices.lock();
        choices.end(&self.command, self.answered, time::now());
        let state = &choices.paths[self.command.path];
        if state.is_suspended && state.is_idle() {
            self.core.changed.notify_waiters();
        }
    }
}
