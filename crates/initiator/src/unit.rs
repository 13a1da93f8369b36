//! One logical unit of a session.

mod access;
mod capacity;
pub(crate) mod commands;
mod pages;

use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use sarsen_block::Buffer;
use sarsen_proto::iscsi::initiator::{
    CommandRequest, Completion, Event, ReadLanding, TaskAttribute, TaskManagement, Transfer,
};
use sarsen_proto::iscsi::output::Payload;
use sarsen_wire::iscsi::TaskManagementResponse;

use crate::error::{Sense, SenseKey, SessionError};
use crate::instance::{Hold, Instance, State};
use crate::options::SessionOptions;
use crate::session::Session;
use crate::url::Url;

pub(crate) use access::{Access, AccessState, activation};
pub use capacity::Capacity;
pub use commands::Inquiry;
pub use pages::{BlockLimits, Caching, Provisioning};

/// Maximum of unit attentions before one command is carried out.
pub(crate) const UNIT_ATTENTION_LIMIT: u32 = 16;
/// The additional sense code of "not ready to ready change, medium may have changed" (SPC-4 annex D).
pub(crate) const MEDIUM_MAY_HAVE_CHANGED: u8 = 0x28;

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
    /// Maximum duration, counted from the request. After that the command ends with [`SessionError::CommandTimedOut`]. The initiator
    /// sends ABORT TASK, then LOGICAL UNIT RESET, which ends the commands of all initiators, and then closes the session, until
    /// one of them has ended the command.
    pub time_limit: Option<Duration>,
}

impl Command {
    /// Creates a command that may run in any order. A CDB of more than 16 bytes is an error of the caller, and is cut.
    pub fn new(cdb: &[u8], transfer: TransferRequest) -> Self {
        let mut whole = [0; 16];
        let length = cdb.len().min(whole.len());
        whole[..length].copy_from_slice(&cdb[..length]);
        Self { cdb: whole, transfer, attribute: TaskAttribute::Simple, time_limit: None }
    }
}

/// A command that can be sent again: its data is instance.
#[derive(Clone)]
pub(crate) struct PreparedCommand {
    pub(crate) cdb: [u8; 16],
    pub(crate) data: PreparedData,
    pub(crate) attribute: TaskAttribute,
    pub(crate) time_limit: Option<Duration>,
}

impl PreparedCommand {
    /// Returns the number of bytes that the command moves.
    pub(crate) fn data_length(&self) -> u64 {
        match self.data {
            PreparedData::None => 0,
            PreparedData::Read(length) | PreparedData::Write(_, length) => length.into(),
        }
    }
}

/// The data of a prepared command, and its number of bytes.
#[derive(Clone)]
pub(crate) enum PreparedData {
    None,
    Read(u32),
    Write(Payload, u32),
}

/// A logical unit of a session. A future that is dropped discards the answer, not the command.
///
/// After a lost connection no command is sent again: it ends with an error, and may have been carried out.
/// [`crate::IscsiStore`] repeats what can be repeated. After a unit attention a command is sent again, except by
/// [`Unit::execute`].
pub struct Unit {
    session: Session,
    lun: [u8; 8],
    capacity: Mutex<Capacity>,
}

impl Unit {
    /// Returns a unit of the session's target by its LUN, in the form that commands carry (SAM-5 4.7). It may not exist.
    pub fn new(session: &Session, lun: [u8; 8]) -> Self {
        Self { session: session.clone(), lun, capacity: Mutex::default() }
    }

    /// Logs in, clears the unit attentions that a new session gets, and asks for the capacity.
    pub async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        let unit = Self::log_in(url, options).await?;
        unit.clear_unit_attentions().await?;
        unit.read_capacity().await?;
        Ok(unit)
    }

    /// Logs in without a command: the caller sees the first unit attentions of the unit. Reads and writes need a
    /// [`Unit::read_capacity`] before them.
    pub async fn log_in(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        Ok(Self::new(&Session::log_in(url, options).await?, url.lun_field()))
    }

    /// Clears all pending unit attentions, whatever they report: the login has sent no command before.
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

    /// Returns the session.
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the capacity that [`Self::read_capacity`] returned last; without one, zero blocks of zero bytes.
    pub fn capacity(&self) -> Capacity {
        *self.capacity.lock()
    }

    /// Carries a command out and returns its completion, whatever the status. Waits while the target's window is full.
    pub async fn execute(&self, command: Command) -> Result<Completion, SessionError> {
        let instance = self.session.instance();
        let command = prepare(&instance, command)?;
        self.carry_out(&instance, &command, None).await
    }

    /// Carries a command out, and sends it again after a unit attention; any status but GOOD is an error.
    pub async fn command(&self, command: Command) -> Result<Completion, SessionError> {
        let instance = self.session.instance();
        let command = prepare(&instance, command)?;
        good(self.carry_out_attentively(&instance, &command).await?)
    }

    /// Does the same as [`Self::execute`], and sends a command again that ended with a unit attention (SAM-5 5.14: the unit did not
    /// carry it out). Another medium is another disk: the command has another meaning there.
    pub(crate) async fn carry_out_attentively(
        &self,
        instance: &Instance,
        command: &PreparedCommand,
    ) -> Result<Completion, SessionError> {
        for _ in 0..UNIT_ATTENTION_LIMIT {
            let completion = self.carry_out(instance, command, None).await?;
            match Sense::of(&completion) {
                Some(sense)
                    if sense.key == SenseKey::UnitAttention
                        && sense.asc != MEDIUM_MAY_HAVE_CHANGED =>
                {
                    tracing::debug!(%sense, operation_code = command.cdb[0], "unit attention");
                }
                _ => return Ok(completion),
            }
        }
        self.carry_out(instance, command, None).await
    }

    /// Carries a command out in an instance of the session. `hold` lasts until the command can no longer be carried out, even if the
    /// returned future is dropped.
    pub(crate) async fn carry_out(
        &self,
        instance: &Instance,
        command: &PreparedCommand,
        hold: Option<&Hold>,
    ) -> Result<Completion, SessionError> {
        let transfer = match &command.data {
            PreparedData::None => Transfer::None,
            PreparedData::Read(length) => {
                Transfer::Read { length: *length, landing: ReadLanding::Buffer }
            }
            PreparedData::Write(payload, length) => {
                Transfer::Write { payload: payload.clone(), length: *length }
            }
        };
        let PreparedCommand { cdb, attribute, .. } = *command;
        let request = CommandRequest { lun: self.lun, cdb, attribute, transfer };
        let token = instance.token();
        let answer =
            instance.wait_with_hold(token, hold.cloned(), |state| state.enqueue(request, token));
        let Some(limit) = command.time_limit else { return completion(answer.await?) };
        let mut answer = pin!(answer);
        if let Ok(event) = tokio::time::timeout(limit, answer.as_mut()).await {
            return completion(event?);
        }
        let timed_out = SessionError::CommandTimedOut { operation_code: cdb[0], after: limit };
        if instance.withdraw(token) {
            return Err(timed_out);
        }
        tracing::warn!(operation_code = cdb[0], ?limit, "a command has no answer: aborting it");
        for request in
            [TaskManagement::AbortTask(token), TaskManagement::LogicalUnitReset(self.lun)]
        {
            let asked = manage(instance, request);
            match tokio::time::timeout(self.session.answer_limit(), asked).await {
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
        instance.abandon();
        Err(timed_out)
    }

    /// Resets the logical unit: all commands of all initiators end.
    pub async fn reset(&self) -> Result<TaskManagementResponse, SessionError> {
        manage(&self.session.instance(), TaskManagement::LogicalUnitReset(self.lun)).await
    }

    /// Aborts all commands of this session to the unit: they end with [`SessionError::Aborted`].
    pub async fn abort_all(&self) -> Result<TaskManagementResponse, SessionError> {
        manage(&self.session.instance(), TaskManagement::AbortTaskSet(self.lun)).await
    }

    /// Logs the session out, with all its units.
    pub async fn logout(self) -> Result<(), SessionError> {
        self.session.logout().await
    }
}

/// Returns the command in the form that is sent.
pub(crate) fn prepare(
    instance: &Instance,
    command: Command,
) -> Result<PreparedCommand, SessionError> {
    let Command { cdb, transfer, attribute, time_limit } = command;
    let data = match transfer {
        TransferRequest::None => PreparedData::None,
        TransferRequest::Read(length) => PreparedData::Read(length),
        TransferRequest::Write(buffer) => {
            let length = u32::try_from(buffer.len()).map_err(|_| SessionError::TooLong {
                blocks: buffer.len() as u64,
                block_length: 1,
            })?;
            PreparedData::Write(instance.state().machine.payload(buffer), length)
        }
    };
    Ok(PreparedCommand { cdb, data, attribute, time_limit })
}

fn completion(event: Event) -> Result<Completion, SessionError> {
    match event {
        Event::Completed(completion) => Ok(completion),
        Event::Rejected { reason, .. } => Err(SessionError::Rejected(reason)),
        _ => Err(SessionError::Aborted),
    }
}

/// Returns an error for any status but GOOD.
pub(crate) fn good(completion: Completion) -> Result<Completion, SessionError> {
    if completion.response != 0 {
        return Err(SessionError::TargetFailure(completion.response));
    }
    match (completion.status, Sense::of(&completion)) {
        (0, _) => Ok(completion),
        (_, Some(sense)) => Err(SessionError::CheckCondition(sense)),
        (status, None) => Err(SessionError::Status(status)),
    }
}

/// Requests a task management function on an object that exists.
async fn manage(
    instance: &Instance,
    request: TaskManagement,
) -> Result<TaskManagementResponse, SessionError> {
    let token = instance.token();
    let start = |state: &mut State| {
        state.machine.task_management(request, token);
    };
    match instance.wait_for_event(token, start).await? {
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
