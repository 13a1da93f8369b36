//! One logical unit across the logins of its session: commands that can be repeated are repeated after a lost connection.
//!
//! For a read that is harmless. For a write it is harmless too, because a repeated write never overwrites a later write to
//! the same blocks that was acknowledged:
//!
//! - No write is sent while another write to some of the same blocks waits for its answer ([`WriteRangeLocks`]). So when a
//!   write is repeated, no later write to its blocks was sent yet.
//! - The earlier copy of the write cannot be carried out later either: the target ended all tasks of the old login before it
//!   granted the new one ([`Login::generation`]). A target that was restarted has no old tasks.
//! - A write that is carried out twice leaves the same data in its blocks. Commands for which that is not true, such as
//!   COMPARE AND WRITE, are not repeated: their callers get the loss.
//!
//! A target that lost power may have lost data that it acknowledged and had only in its cache. So all writes since the last
//! flush are kept. After a new login they are written again, in the order in which they were sent, before any other command
//! ([`Unflushed`]). If the unit reports "power on" within a login, that login is ended. Writing again must not undo a write that
//! was acknowledged later. So a write that is stable at once is kept, too, while an older write to its blocks is kept. Before a
//! command of another kind changes blocks, all kept writes are flushed.

mod kept;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sarsen_block::{Buffer, StoreStatus, Usability};
use sarsen_io::time;
use sarsen_proto::iscsi::initiator::Completion;

use crate::connections::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::error::{Sense, SenseKey, SessionError, is_busy};
use crate::options::SessionOptions;
use crate::session::Login;
use crate::shared::lost;
use crate::unit::{
    Capacity, Command, PreparedCommand, TransferRequest, Unit, commands, good, prepare,
};
use crate::url::Url;
use kept::{LockedBlocks, Unflushed, VolatileWrite, WriteRangeLocks};

/// A command fails that loses so many connections, and for longer than the session tries to log in: the command itself may break
/// them.
const REPEAT_LIMIT: u32 = 8;
/// "Power on, reset, or bus device reset occurred" and "power on occurred", with their qualifiers.
const POWER_ON_OR_RESET: (u8, u8) = (0x29, 0x00);
const POWER_ON: (u8, u8) = (0x29, 0x01);
/// "Capacity data has changed".
const CAPACITY_HAS_CHANGED: (u8, u8) = (0x2a, 0x09);

/// The properties by which a unit is recognised after a new login.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fingerprint {
    naa: Option<String>,
    serial: Option<String>,
    block_length: u32,
}

/// See the module.
pub(crate) struct Paths {
    unit: Unit,
    /// How long a unit that is not ready after a new login is tried again. `None` if nothing is repeated.
    limit: Option<Duration>,
    fingerprint: Fingerprint,
    /// The latest login in which the unit was recognised and has all kept writes, plus one.
    resumed: AtomicU64,
    /// One task resumes; the others wait.
    gate: tokio::sync::Mutex<()>,
    /// The reason why the unit is given up.
    gave_up: Mutex<Option<SessionError>>,
    ranges: WriteRangeLocks,
    unflushed: Unflushed,
    status: Arc<StoreStatus>,
}

impl Paths {
    /// Logs in, and examines the unit.
    pub(crate) async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        let unit = Unit::connect(url, options).await?;
        let paths = Self {
            limit: options.reconnect_limit,
            fingerprint: fingerprint(&unit).await?,
            resumed: AtomicU64::new(1),
            gate: tokio::sync::Mutex::default(),
            gave_up: Mutex::default(),
            ranges: WriteRangeLocks::default(),
            unflushed: Unflushed::default(),
            status: StoreStatus::new(unit.capacity().blocks),
            unit,
        };
        paths.unflushed.set_write_through(is_stable(&paths.unit).await?);
        Ok(paths)
    }

    /// Returns the unit, for commands that are not repeated and change no blocks.
    pub(crate) const fn unit(&self) -> &Unit {
        &self.unit
    }

    pub(crate) const fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    /// Logs out.
    pub(crate) async fn logout(&self) -> Result<(), SessionError> {
        self.unit.session().clone().logout().await
    }

    /// Carries out a command that changes no blocks, and repeats it.
    pub(crate) async fn ask(&self, command: Command) -> Result<Completion, SessionError> {
        let command = self.prepare(command)?;
        good(self.carry_out(&command, true).await?)
    }

    /// Reads blocks: see [`Unit::read`].
    pub(crate) async fn read(&self, lba: u64, blocks: u32) -> Result<Buffer, SessionError> {
        let block_length = self.fingerprint.block_length;
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
        let (length, block_length) = (data.len(), self.fingerprint.block_length);
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
        let command = self.prepare(command)?;
        if self.limit.is_none() {
            return good(self.carry_out(&command, false).await?);
        }
        let _held = self.ranges.claim(first, end).await;
        let kept = self.unflushed.keep(VolatileWrite {
            command: command.clone(),
            extent: (first, end),
            memory,
            answered: false,
        });
        let completion = good(self.carry_out(&command, true).await?)?;
        kept.note_answer(stable);
        if self.unflushed.is_full() {
            self.flush().await?;
        }
        Ok(completion)
    }

    fn prepare(&self, command: Command) -> Result<PreparedCommand, SessionError> {
        prepare(&self.unit.session().login().shared, command)
    }

    /// Carries out a command of any kind, once: if its connection is lost, its caller gets the loss. If it may change blocks,
    /// it has the unit to itself.
    pub(crate) async fn command(&self, command: Command) -> Result<Completion, SessionError> {
        let changes = !matches!(command.transfer, TransferRequest::Read(_));
        let _alone =
            if changes && self.limit.is_some() { Some(self.write_alone().await?) } else { None };
        let command = self.prepare(command)?;
        good(self.carry_out(&command, false).await?)
    }

    /// Brings all written data to stable storage.
    pub(crate) async fn flush(&self) -> Result<(), SessionError> {
        let answered = self.unflushed.answered();
        match self.ask(commands::synchronize_cache()).await {
            Ok(_) => self.unflushed.forget(&answered),
            // A unit without the command has no cache.
            Err(SessionError::CheckCondition(sense)) if sense.key == SenseKey::IllegalRequest => {
                self.unflushed.set_write_through(true);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Waits for all writes, flushes the kept ones, and delays new ones until the returned guard is dropped. Any
    /// command may change blocks, and repeating an earlier write to them must not undo that change.
    async fn write_alone(&self) -> Result<LockedBlocks<'_>, SessionError> {
        let held = self.ranges.claim(0, u64::MAX).await;
        if !self.unflushed.is_empty() {
            self.flush().await?;
        }
        Ok(held)
    }

    /// Carries a command out, over as many logins as it needs.
    async fn carry_out(
        &self,
        command: &PreparedCommand,
        repeats: bool,
    ) -> Result<Completion, SessionError> {
        let deadline = time::now() + self.limit.unwrap_or_default();
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let login = self.unit.session().login();
            let mut is_sent = false;
            let result = match self.resume(&login).await {
                Ok(()) => {
                    is_sent = login.shared.ended().is_none();
                    self.carry_out_in(&login, command).await
                }
                Err(error) => Err(error),
            };
            let error = match result {
                Err(error) if error.is_connection_lost() => error,
                Ok(completion) if repeats && is_busy(&completion) && time::now() < deadline => {
                    time::sleep_until(time::now() + pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
                result => return result,
            };
            // A command that was not sent may always be sent again.
            let is_hopeless = attempt >= REPEAT_LIMIT && time::now() >= deadline;
            if is_hopeless || (is_sent && !repeats) {
                return Err(error);
            }
            let next = self.unit.session().next_login(login.generation, error).await;
            next.inspect_err(|_| self.status.set_usability(Usability::OutOfService))?;
        }
        unreachable!("the attempts are counted")
    }

    async fn carry_out_in(
        &self,
        login: &Login,
        command: &PreparedCommand,
    ) -> Result<Completion, SessionError> {
        let (capacity_changed, cache_lost) = (Cell::new(false), Cell::new(false));
        let goes_on = |attention: Sense| {
            let attention = (attention.asc, attention.ascq);
            capacity_changed.set(capacity_changed.get() || attention == CAPACITY_HAS_CHANGED);
            // A write may have been answered although its caller has not noted that yet.
            cache_lost.set(
                matches!(attention, POWER_ON_OR_RESET | POWER_ON) && !self.unflushed.is_empty(),
            );
            !cache_lost.get()
        };
        let completion = self.unit.carry_out_attentively(login, command, goes_on).await?;
        if cache_lost.get() {
            // The unit did not carry the command out, and may have lost kept writes. Only a new login ends all other commands
            // before these are written again.
            let error =
                lost(io::Error::other("the unit may have lost its cache (power on or reset)"));
            login.shared.end(error.clone());
            return Err(error);
        }
        if capacity_changed.get() {
            // The command has ended, whatever happens to this one. After a lost connection, the next login asks again.
            match self.unit.read_capacity().await {
                Ok(capacity) => self.note_capacity(capacity)?,
                Err(error) => tracing::warn!(%error, "the new capacity of a unit is not known"),
            }
        }
        Ok(completion)
    }

    fn note_capacity(&self, capacity: Capacity) -> Result<(), SessionError> {
        if capacity.block_length != self.fingerprint.block_length {
            return Err(self.give_up(SessionError::UnitChanged));
        }
        self.status.set_block_count(capacity.blocks);
        Ok(())
    }

    fn give_up(&self, error: SessionError) -> SessionError {
        let error = self.gave_up.lock().get_or_insert(error).clone();
        self.status.set_usability(Usability::OutOfService);
        error
    }

    /// Makes the unit ready in a new login: it must be the same unit, and gets the kept writes again.
    async fn resume(&self, login: &Login) -> Result<(), SessionError> {
        let is_resumed = || self.resumed.load(Ordering::Acquire) > login.generation;
        if let Some(error) = &*self.gave_up.lock() {
            return Err(error.clone());
        }
        if is_resumed() {
            return Ok(());
        }
        let _gate = self.gate.lock().await;
        if is_resumed() {
            return Ok(());
        }
        let deadline = time::now() + self.limit.unwrap_or_default();
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.resume_once(login).await {
                Ok(()) => break,
                Err(error) if error.is_connection_lost() => return Err(error),
                Err(error) => error,
            };
            if !error.is_transient() || time::now() + pause > deadline {
                return Err(self.give_up(error));
            }
            tracing::debug!(%error, "the unit is not ready yet");
            time::sleep_until(time::now() + pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.resumed.store(login.generation + 1, Ordering::Release);
        Ok(())
    }

    async fn resume_once(&self, login: &Login) -> Result<(), SessionError> {
        let session = self.unit.session();
        let examine = async {
            self.unit.clear_unit_attentions().await?;
            let capacity = self.unit.read_capacity().await?;
            Ok((fingerprint(&self.unit).await?, capacity, is_stable(&self.unit).await?))
        };
        let limit = session.answer_limit();
        let (found, capacity, stable) =
            crate::establish::in_time(session.portal(), limit, examine).await?;
        // Without any identifier, only the size is left.
        let is_nameless = found.naa.is_none() && found.serial.is_none();
        let has_other_size = capacity.blocks != self.status.block_count();
        if found != self.fingerprint || (is_nameless && has_other_size) {
            return Err(SessionError::UnitChanged);
        }
        for write in self.unflushed.all() {
            let written = self.unit.carry_out_attentively(login, &write.command, |_| true).await?;
            good(written)?;
        }
        self.unflushed.set_write_through(stable);
        self.note_capacity(capacity)
    }
}

/// Returns whether the unit reports that acknowledged data is on stable storage.
async fn is_stable(unit: &Unit) -> Result<bool, SessionError> {
    Ok(unit.caching().await?.is_some_and(|caching| !caching.write_cache))
}

async fn fingerprint(unit: &Unit) -> Result<Fingerprint, SessionError> {
    let (naa, serial) = (unit.naa().await?, unit.serial().await?);
    Ok(Fingerprint { naa, serial, block_length: unit.capacity().block_length })
}
