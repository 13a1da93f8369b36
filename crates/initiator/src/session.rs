//! A session with a logical unit.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use sarsen_block::Buffer;
use sarsen_io::time;
use sarsen_proto::iscsi::Parameters;
use sarsen_proto::iscsi::initiator::{
    CommandRequest, Completion, Event, ReadLanding, Residual, SessionTarget, TaskAttribute,
    TaskManagement, Transfer,
};
use sarsen_proto::iscsi::output::Payload;
use sarsen_wire::iscsi::TaskManagementResponse;

use crate::capacity::Capacity;
use crate::connections::{self, Route};
use crate::error::{Sense, SenseKey, SessionError};
use crate::establish::{Established, LoginTimes, establish, in_time, spawn};
use crate::options::SessionOptions;
use crate::reconnect::{
    FIRST_PAUSE, Fingerprint, LONGEST_PAUSE, LockedBlocks, REPEAT_LIMIT, Reconnection,
    VolatileWrite,
};
use crate::shared::{SessionGuard, Shared};
use crate::url::{Portal, Url};

/// Maximum of unit attentions before one command is carried out.
const UNIT_ATTENTION_LIMIT: u32 = 16;
/// The additional sense code of "not ready to ready change, medium may have changed" (SPC-4 annex D).
const MEDIUM_MAY_HAVE_CHANGED: u8 = 0x28;
/// "Power on, reset, or bus device reset occurred" and "power on occurred", with their qualifiers.
const POWER_ON_OR_RESET: (u8, u8) = (0x29, 0x00);
const POWER_ON: (u8, u8) = (0x29, 0x01);

/// The data of a [`Command`].
#[derive(Debug)]
pub enum TransferRequest {
    /// None.
    None,
    /// From the target, with this maximum of bytes.
    Read(u32),
    /// To the target.
    Write(Buffer),
}

/// A SCSI command of any kind.
#[derive(Debug)]
pub struct Command {
    /// CDB, padded with zeroes.
    pub cdb: [u8; 16],
    /// Data.
    pub transfer: TransferRequest,
    /// Task attribute, which sets the order.
    pub attribute: TaskAttribute,
    /// The command has the same effect when it is carried out twice, so it may be repeated after a lost connection.
    pub repeatable: bool,
    /// Maximum duration, counted from the request. After that the command is aborted and ends with
    /// [`SessionError::CommandTimedOut`].
    pub time_limit: Option<Duration>,
}

impl Command {
    /// Creates a command that may run in any order. A CDB of more than 16 bytes is an error of the caller, and is cut.
    pub fn new(cdb: &[u8], transfer: TransferRequest) -> Self {
        let mut whole = [0; 16];
        let length = cdb.len().min(whole.len());
        whole[..length].copy_from_slice(&cdb[..length]);
        let attribute = TaskAttribute::Simple;
        Self { cdb: whole, transfer, attribute, repeatable: false, time_limit: None }
    }

    /// Creates a command that is repeated after a lost connection.
    pub(crate) fn repeatable(cdb: &[u8], transfer: TransferRequest) -> Self {
        Self { repeatable: true, ..Self::new(cdb, transfer) }
    }
}

/// A session with one logical unit. Dropping it closes the connection; [`Session::logout`] logs out first. A future
/// that is dropped discards the answer, not the command.
///
/// It lives on the current-thread runtime (a `LocalRuntime` or `LocalSet`) that connected it.
pub struct Session {
    live: RefCell<SessionGuard>,
    pub(crate) reconnection: Option<Reconnection>,
    portal: Portal,
    target: String,
    lun: [u8; 8],
    capacity: Cell<Capacity>,
    /// Time limit of commands that no disk delays: the logout.
    answer_limit: Duration,
}

impl Session {
    /// Logs in, follows redirections, clears the unit attentions that a new session gets, and asks for the capacity.
    pub async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        let session = Self::connect_unit(url, options).await?;
        session.clear_unit_attentions().await?;
        session.read_capacity().await?;
        session.remember().await?;
        Ok(session)
    }

    /// Logs in without a command: the caller sees the first unit attentions of the unit. Reads and writes need a
    /// [`Session::read_capacity`] before them.
    pub async fn connect_unit(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        Ok(Self::open(url, options).await?.0)
    }

    /// Logs in, and returns how long that took.
    pub(crate) async fn open(
        url: &Url,
        options: &SessionOptions,
    ) -> Result<(Self, LoginTimes), SessionError> {
        let identity = url.chap.identity()?.or_else(|| options.identity.clone());
        let target = SessionTarget::Named(url.target.clone());
        let Established { link, machine, portal, algorithms, times } =
            establish(&url.portal, &target, options, identity.as_ref()).await?;
        let live = spawn(link, machine);
        let answer_limit = options.answer_limit;
        let way = Route { portal: portal.clone(), identity, algorithms, answer_limit };
        connections::maintain(&live.shared, way, options.connections).await;
        let session = Self {
            live: RefCell::new(live),
            reconnection: options
                .reconnect_limit
                .map(|limit| Reconnection::new(url, options, limit)),
            portal,
            target: url.target.clone(),
            lun: url.lun_field(),
            capacity: Cell::default(),
            answer_limit: options.answer_limit,
        };
        Ok((session, times))
    }

    /// Clears all pending unit attentions, whatever they report: the session has sent no command before.
    pub(crate) async fn clear_unit_attentions(&self) -> Result<(), SessionError> {
        let mut result = Ok(());
        for _ in 0..UNIT_ATTENTION_LIMIT {
            result = self.test_unit_ready().await;
            match result.as_ref().err().and_then(SessionError::sense) {
                Some(Sense { key: SenseKey::UnitAttention, .. }) => {}
                _ => return result,
            }
        }
        result
    }

    pub(crate) fn shared(&self) -> Rc<Shared> {
        self.live.borrow().shared.clone()
    }

    /// Returns the portal of the session, after redirections.
    pub const fn portal(&self) -> &Portal {
        &self.portal
    }

    /// Returns the target's name.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the unit's capacity at the login or at the last query.
    pub const fn capacity(&self) -> Capacity {
        self.capacity.get()
    }

    pub(crate) fn note_capacity(&self, capacity: Capacity) {
        self.capacity.set(capacity);
    }

    /// Returns the negotiated parameters.
    pub fn parameters(&self) -> Parameters {
        self.shared().machine.borrow().parameters().clone()
    }

    /// Returns the reason why the session ended, if it has ended.
    pub fn ended(&self) -> Option<SessionError> {
        self.shared().ended()
    }

    /// Carries a command out and returns its completion, whatever the status. Waits while the target's window is full.
    pub async fn execute(&self, command: Command) -> Result<Completion, SessionError> {
        let (order, _alone) = self.order(command).await?;
        self.carry_out(&order).await
    }

    /// Returns the command in the form that is sent. The guard delays writes meanwhile if the command may change
    /// blocks.
    async fn order(
        &self,
        command: Command,
    ) -> Result<(PreparedCommand, Option<LockedBlocks<'_>>), SessionError> {
        let Command { cdb, transfer, attribute, repeatable, time_limit } = command;
        let changes = match &transfer {
            TransferRequest::Read(_) => false,
            TransferRequest::Write(_) => true,
            TransferRequest::None => !repeatable,
        };
        let alone = match &self.reconnection {
            Some(reconnection) if changes => Some(self.write_alone(reconnection).await?),
            _ => None,
        };
        let transfer = match transfer {
            TransferRequest::None => PreparedData::None,
            TransferRequest::Read(length) => PreparedData::Read(length),
            TransferRequest::Write(buffer) => {
                let (payload, length) = self.payload(buffer)?;
                PreparedData::Write(payload, length)
            }
        };
        Ok((PreparedCommand { cdb, transfer, attribute, repeatable, time_limit }, alone))
    }

    /// Returns the data of a write, which its repetitions share.
    pub(crate) fn payload(&self, buffer: Buffer) -> Result<(Payload, u32), SessionError> {
        let length = u32::try_from(buffer.len())
            .map_err(|_| SessionError::TooLong { blocks: buffer.len() as u64, block_length: 1 })?;
        Ok((self.shared().machine.borrow().payload(buffer), length))
    }

    /// Carries a command out, over as many connections as it needs.
    pub(crate) async fn carry_out(
        &self,
        order: &PreparedCommand,
    ) -> Result<Completion, SessionError> {
        for attempt in 1.. {
            let generation = self.reconnection.as_ref().map(|all| all.generation.get());
            let shared = self.shared();
            // A command that was not sent may always be sent again.
            let unsent = shared.ended().is_some();
            let error = match self.attempt(&shared, order).await {
                Err(error) if error.is_connection_lost() => error,
                result => return result,
            };
            let Some((reconnection, generation)) = self.reconnection.as_ref().zip(generation)
            else {
                return Err(error);
            };
            if attempt == REPEAT_LIMIT || !(order.repeatable || unsent) {
                return Err(error);
            }
            // Boxed, because the new login carries commands out, too.
            Box::pin(self.reconnect(reconnection, generation, &error)).await?;
        }
        unreachable!("the attempts are counted")
    }

    /// Does the same, but sends a command again that ended with a unit attention (SAM-5 5.14: the unit did not carry it
    /// out).
    async fn carry_out_attentively(
        &self,
        order: &PreparedCommand,
    ) -> Result<Completion, SessionError> {
        for _ in 0..UNIT_ATTENTION_LIMIT {
            let completion = self.carry_out(order).await?;
            match Sense::of(&completion) {
                Some(sense)
                    if sense.key == SenseKey::UnitAttention && self.goes_on_after(sense) =>
                {
                    tracing::debug!(%sense, operation_code = order.cdb[0], "unit attention");
                }
                _ => return Ok(completion),
            }
        }
        self.carry_out(order).await
    }

    /// Returns whether commands have the same meaning after this unit attention. Another medium is another disk. A unit
    /// that was switched on may have lost writes that this session keeps to send again after a new login.
    fn goes_on_after(&self, attention: Sense) -> bool {
        let keeps_writes = || {
            let reconnection = self.reconnection.as_ref();
            reconnection.is_some_and(|reconnection| !reconnection.unflushed.answered().is_empty())
        };
        match (attention.asc, attention.ascq) {
            (MEDIUM_MAY_HAVE_CHANGED, _) => false,
            POWER_ON_OR_RESET | POWER_ON => !keeps_writes(),
            _ => true,
        }
    }

    async fn attempt(
        &self,
        shared: &Shared,
        order: &PreparedCommand,
    ) -> Result<Completion, SessionError> {
        let transfer = match &order.transfer {
            PreparedData::None => Transfer::None,
            PreparedData::Read(length) => {
                Transfer::Read { length: *length, landing: ReadLanding::Buffer }
            }
            PreparedData::Write(payload, length) => {
                Transfer::Write { payload: payload.clone(), length: *length }
            }
        };
        let PreparedCommand { cdb, attribute, .. } = *order;
        let request = CommandRequest { lun: self.lun, cdb, attribute, transfer };
        let token = shared.token();
        let answer = shared.wait_for_event(token, |shared| shared.enqueue(request, token));
        let Some(limit) = order.time_limit else { return completion(answer.await?) };
        let mut answer = pin!(answer);
        if let Ok(event) = tokio::time::timeout(limit, answer.as_mut()).await {
            return completion(event?);
        }
        let timed_out = SessionError::CommandTimedOut { operation_code: cdb[0], after: limit };
        if shared.withdraw(token) {
            return Err(timed_out);
        }
        tracing::warn!(operation_code = cdb[0], ?limit, "a command has no answer: aborting it");
        for request in
            [TaskManagement::AbortTask(token), TaskManagement::LogicalUnitReset(self.lun)]
        {
            let asked = manage(shared, request);
            match tokio::time::timeout(self.answer_limit, asked).await {
                // The completion of the command was delivered before, whatever it was.
                Ok(Ok(response)) if ended_by(request, response) => {
                    return match answer.await? {
                        Event::Completed(completion) => Ok(completion),
                        _ => Err(timed_out),
                    };
                }
                Ok(Err(error)) if error.is_connection_lost() => return Err(error),
                _ => {}
            }
        }
        // Later actions of the target on the command must not reach this session.
        shared.abandon();
        Err(timed_out)
    }

    /// Carries a command out, and sends it again after a unit attention; any status but GOOD is an error.
    pub async fn command(&self, command: Command) -> Result<Completion, SessionError> {
        let (order, _alone) = self.order(command).await?;
        judge(self.carry_out_attentively(&order).await?)
    }

    /// Resets the logical unit: all commands of all initiators end.
    pub async fn reset_unit(&self) -> Result<TaskManagementResponse, SessionError> {
        self.task_management(TaskManagement::LogicalUnitReset(self.lun)).await
    }

    /// Aborts all commands of this session: they end with [`SessionError::Aborted`].
    pub async fn abort_all(&self) -> Result<TaskManagementResponse, SessionError> {
        self.task_management(TaskManagement::AbortTaskSet(self.lun)).await
    }

    /// Sends a task management function on a whole unit, which needs no open command.
    async fn task_management(
        &self,
        request: TaskManagement,
    ) -> Result<TaskManagementResponse, SessionError> {
        manage(&self.shared(), request).await
    }

    /// Checks that the target responds.
    pub async fn ping(&self) -> Result<(), SessionError> {
        let shared = self.shared();
        let token = shared.token();
        shared.wait_for_event(token, |shared| shared.machine.borrow_mut().ping(token)).await?;
        Ok(())
    }

    /// Logs the session out. Commands that wait end with [`SessionError::LoggedOut`].
    pub async fn logout(self) -> Result<(), SessionError> {
        let shared = self.shared();
        in_time(&self.portal, self.answer_limit, shared.leave()).await
    }
}

/// A command that can be repeated.
pub(crate) struct PreparedCommand {
    pub(crate) cdb: [u8; 16],
    pub(crate) transfer: PreparedData,
    pub(crate) attribute: TaskAttribute,
    pub(crate) repeatable: bool,
    pub(crate) time_limit: Option<Duration>,
}

/// The data of an order, and its number of bytes.
pub(crate) enum PreparedData {
    None,
    Read(u32),
    Write(Payload, u32),
}

fn completion(event: Event) -> Result<Completion, SessionError> {
    match event {
        Event::Completed(completion) => Ok(completion),
        Event::Rejected { reason, .. } => Err(SessionError::Rejected(reason)),
        _ => Err(SessionError::Aborted),
    }
}

/// Requests a task management function on an object that exists.
async fn manage(
    shared: &Shared,
    request: TaskManagement,
) -> Result<TaskManagementResponse, SessionError> {
    let token = shared.token();
    let start = |shared: &Shared| {
        shared.machine.borrow_mut().task_management(request, token);
    };
    match shared.wait_for_event(token, start).await? {
        Event::TaskManagementDone { response, .. } => Ok(response),
        Event::Rejected { reason, .. } => Err(SessionError::Rejected(reason)),
        _ => Err(SessionError::Aborted),
    }
}

/// Returns whether the command of a task management function has ended.
fn ended_by(request: TaskManagement, response: TaskManagementResponse) -> bool {
    response == TaskManagementResponse::FunctionComplete
        || (response == TaskManagementResponse::TaskDoesNotExist
            && matches!(request, TaskManagement::AbortTask(_)))
}

/// The handling of a lost connection; see `reconnect.rs`.
impl Session {
    /// Reads the unit's identity, to recognise the unit again.
    async fn remember(&self) -> Result<(), SessionError> {
        let Some(reconnection) = &self.reconnection else { return Ok(()) };
        let unit = self.fingerprint().await?;
        reconnection.unit.replace(Some(unit));
        reconnection.unflushed.set_write_through(self.is_stable().await?);
        Ok(())
    }

    /// Returns whether the unit reports that acknowledged data is on stable storage.
    async fn is_stable(&self) -> Result<bool, SessionError> {
        Ok(self.caching().await?.is_some_and(|caching| !caching.write_cache))
    }

    async fn fingerprint(&self) -> Result<Fingerprint, SessionError> {
        let (naa, serial) = (self.naa().await?, self.serial().await?);
        Ok(Fingerprint { capacity: self.capacity(), naa, serial })
    }

    /// Logs in again, unless another task has since `generation`.
    async fn reconnect(
        &self,
        reconnection: &Reconnection,
        generation: u64,
        lost: &SessionError,
    ) -> Result<(), SessionError> {
        let _gate = reconnection.gate.lock().await;
        if reconnection.generation.get() != generation {
            return Ok(());
        }
        if let Some(error) = reconnection.gave_up.borrow().clone() {
            return Err(error);
        }
        tracing::warn!(portal = %self.portal, %lost, "logging in again");
        let deadline = time::now() + reconnection.limit;
        // RFC 7143 §13.15: for this long a target may still treat the connection as alive. The value may be an hour.
        let first = Duration::from_secs(self.parameters().default_time2wait.into());
        let first = first.min(reconnection.limit);
        let (mut wait, mut pause) = (first, FIRST_PAUSE);
        loop {
            time::sleep_until(time::now() + wait).await;
            let Err(error) = self.log_in_again(reconnection).await else { break };
            if !error.is_transient() || time::now() + pause > deadline {
                reconnection.gave_up.replace(Some(error.clone()));
                return Err(error);
            }
            tracing::debug!(%error, "not yet");
            wait = pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        reconnection.generation.set(generation + 1);
        tracing::info!(portal = %self.portal, "logged in again");
        Ok(())
    }

    async fn log_in_again(&self, reconnection: &Reconnection) -> Result<(), SessionError> {
        let fresh = Self::connect_unit(&reconnection.url, &reconnection.options).await?;
        let ask = async {
            fresh.clear_unit_attentions().await?;
            fresh.read_capacity().await?;
            Ok((fresh.fingerprint().await?, fresh.is_stable().await?))
        };
        let (unit, stable) = in_time(&self.portal, self.answer_limit, ask).await?;
        if reconnection.unit.borrow().as_ref().is_some_and(|known| *known != unit) {
            return Err(SessionError::UnitChanged);
        }
        for kept in reconnection.unflushed.all() {
            let order = PreparedCommand {
                cdb: kept.cdb,
                transfer: PreparedData::Write(kept.payload, kept.length),
                attribute: TaskAttribute::Simple,
                repeatable: false,
                time_limit: None,
            };
            judge(fresh.carry_out_attentively(&order).await?)?;
        }
        reconnection.unflushed.set_write_through(stable);
        std::mem::swap(&mut *self.live.borrow_mut(), &mut *fresh.live.borrow_mut());
        Ok(())
    }

    /// Carries out a command that changes the blocks from `first` to before `end`. Returns the difference between the
    /// target's count of bytes and the initiator's.
    pub(crate) async fn change(
        &self,
        cdb: &[u8; 16],
        data: Buffer,
        (first, end): (u64, u64),
        fua: bool,
    ) -> Result<Residual, SessionError> {
        let Some(reconnection) = &self.reconnection else {
            let command = Command::new(cdb, TransferRequest::Write(data));
            return Ok(self.command(command).await?.residual);
        };
        let _held = reconnection.extents.claim(first, end).await;
        let memory = data.memory();
        let (payload, length) = self.payload(data)?;
        let kept = reconnection.unflushed.keep(VolatileWrite {
            cdb: *cdb,
            payload: payload.clone(),
            length,
            extent: (first, end),
            memory,
            answered: false,
        });
        let order = PreparedCommand {
            cdb: *cdb,
            transfer: PreparedData::Write(payload, length),
            attribute: TaskAttribute::Simple,
            repeatable: true,
            time_limit: None,
        };
        let residual = judge(self.carry_out_attentively(&order).await?)?.residual;
        kept.note_answer(fua);
        if reconnection.unflushed.is_full() {
            self.flush_kept(reconnection).await?;
        }
        Ok(residual)
    }

    /// Waits for all writes, flushes the kept ones, and delays new ones until the returned guard is dropped. Any
    /// command may change blocks, and repeating an earlier write to them must not undo that change.
    async fn write_alone<'a>(
        &self,
        reconnection: &'a Reconnection,
    ) -> Result<LockedBlocks<'a>, SessionError> {
        let held = reconnection.extents.claim(0, u64::MAX).await;
        if !reconnection.unflushed.is_empty() {
            // Boxed, because a flush is a command, too.
            Box::pin(self.flush_kept(reconnection)).await?;
        }
        Ok(held)
    }

    async fn flush_kept(&self, reconnection: &Reconnection) -> Result<(), SessionError> {
        match self.flush().await {
            // A unit without the command has no cache.
            Err(SessionError::CheckCondition(sense)) if sense.key == SenseKey::IllegalRequest => {
                reconnection.unflushed.set_write_through(true);
                Ok(())
            }
            result => result,
        }
    }
}

/// Returns an error for any status but GOOD.
fn judge(completion: Completion) -> Result<Completion, SessionError> {
    if completion.response != 0 {
        return Err(SessionError::TargetFailure(completion.response));
    }
    match (completion.status, Sense::of(&completion)) {
        (0, _) => Ok(completion),
        (_, Some(sense)) => Err(SessionError::CheckCondition(sense)),
        (status, None) => Err(SessionError::Status(status)),
    }
}
