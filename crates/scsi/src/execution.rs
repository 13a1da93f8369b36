//! The execution of a command, from its slot in the task set to its end.

use crate::attention::Attentions;
use crate::command_table::Row;
use crate::commands::block;
use crate::flags::Flags;
use crate::refusal;
use crate::reservations::needed;
use crate::target::{AttachedUnit, Nexus, admit_state};
use crate::task::Task;
use crate::task_set::{Access, Entry, Interlock, NexusTasks, Refusal, TaskSlot, WaitingCommand};
use crate::thresholds;
use crate::work::CancelToken;
use crate::{
    AdditionalSense, Cdb, Command, Completion, LogicalUnit, Sense, SenseKey, Status, TaskAttribute,
    UnitAttention,
};
use sarsen_block::{Io, LocalFuture};
use sarsen_wire::scsi::{CONTROL_NACA, opcode};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The state of a command after its start.
pub enum Execution {
    /// It has ended.
    Ended(Completion),
    /// It is executed, or waits.
    UnderWay(UnderWay),
}

/// A command that has not ended.
pub struct UnderWay {
    /// Declared before `place`, so that its resources are released first.
    pub(crate) answer: LocalFuture<Completion>,
    pub(crate) place: SlotOwner,
}

/// The owner of the slot of a command that has not ended.
pub(crate) enum SlotOwner {
    Slot(TaskSlot),
    /// The answer future owns it.
    InAnswer(Arc<NexusTasks>),
    /// Released when the answer arrived.
    Ended,
}

impl Future for UnderWay {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        let completion = ready!(self.answer.as_mut().poll(context));
        Poll::Ready(match std::mem::replace(&mut self.place, SlotOwner::Ended) {
            SlotOwner::Slot(place) => place.end(completion),
            SlotOwner::InAnswer(_) | SlotOwner::Ended => completion,
        })
    }
}

/// Returns whether a CDB requests an auto contingent allegiance if it fails (SAM-5 5.2).
fn has_naca(cdb: &Cdb) -> bool {
    let control = match (cdb.operation_code(), opcode::cdb_length(cdb.operation_code())) {
        (opcode::VARIABLE_LENGTH, _) => 1,
        (_, Some(length)) => length - 1,
        (_, None) => return false,
    };
    cdb.byte(control) & CONTROL_NACA != 0
}

/// Begins a command that the tally counts.
#[inline]
pub(crate) fn begin_unqueued(
    command: Command,
    attachment: &AttachedUnit,
    nexus: &Arc<Nexus>,
) -> Execution {
    let naca = has_naca(&command.cdb);
    match carry_out(command, attachment, nexus) {
        Io::Ready(mut completion) => {
            attachment.tally.end(None, naca, &mut completion);
            attachment.tally.leave();
            Execution::Ended(completion)
        }
        Io::Pending(answer) => {
            let place = SlotOwner::Slot(TaskSlot::in_tally(&attachment.tally, naca));
            Execution::UnderWay(UnderWay { answer, place })
        }
    }
}

/// Begins a command that must request a slot.
pub(crate) fn begin_through_queue(
    command: Command,
    attachment: &AttachedUnit,
    nexus: &Arc<Nexus>,
) -> Execution {
    let entrant = entrant(&command, &attachment.unit, nexus);
    let place = match attachment.tally.ask(entrant) {
        Ok(Entry::Plain) => return begin_unqueued(command, attachment, nexus),
        Ok(Entry::Queued(place)) => place,
        Err(refusal) => return Execution::Ended(refuse(refusal, entrant.naca, attachment)),
    };
    if place.has_begun() {
        return match carry_out(command, attachment, nexus) {
            Io::Ready(completion) => Execution::Ended(place.end(completion)),
            Io::Pending(answer) => {
                Execution::UnderWay(UnderWay { answer, place: SlotOwner::Slot(place) })
            }
        };
    }
    let (attachment, nexus) = (attachment.clone(), nexus.clone());
    let held = SlotOwner::InAnswer(attachment.tally.clone());
    let answer = Box::pin(async move {
        if !place.turn().await {
            return Completion::with_status(Status::TaskAborted);
        }
        place.end(carry_out(command, &attachment, &nexus).wait().await)
    });
    Execution::UnderWay(UnderWay { answer, place: held })
}

/// Begins a command that is a task from now on. It is executed after its turn has come and `wait` has ended. The output
/// of `wait` is kept until the command has ended.
pub(crate) fn begin_after<P: 'static>(
    command: Command,
    attachment: &AttachedUnit,
    nexus: &Arc<Nexus>,
    wait: impl Future<Output = P> + 'static,
) -> Execution {
    let entrant = entrant(&command, &attachment.unit, nexus);
    let in_tally = || TaskSlot::in_tally(&attachment.tally, entrant.naca);
    let place = if command.attribute == TaskAttribute::Simple && attachment.tally.enter() {
        in_tally()
    } else {
        match attachment.tally.ask(entrant) {
            Ok(Entry::Plain) => in_tally(),
            Ok(Entry::Queued(place)) => place,
            Err(refusal) => return Execution::Ended(refuse(refusal, entrant.naca, attachment)),
        }
    };
    let cancel_token: Arc<CancelToken> = Arc::default();
    attachment.unit.long_commands().add(nexus.id, command.name, cancel_token.clone());
    let (attachment, nexus) = (attachment.clone(), nexus.clone());
    let held = SlotOwner::InAnswer(attachment.tally.clone());
    let answer = Box::pin(async move {
        if !place.turn().await {
            return Completion::with_status(Status::TaskAborted);
        }
        let wait = async {
            let permit = wait.await;
            place.unblocked(&entrant).await;
            permit
        };
        let Some(permit) = unless(cancel_token.ended(), wait).await else {
            return place.end(Completion::with_status(Status::TaskAborted));
        };
        drop(cancel_token);
        let completion = carry_out(command, &attachment, &nexus).wait().await;
        drop(permit);
        place.end(completion)
    });
    Execution::UnderWay(UnderWay { answer, place: held })
}

/// Returns the output of `wait`, or `None` if `ended` completes first.
async fn unless<P>(ended: impl Future<Output = ()>, wait: impl Future<Output = P>) -> Option<P> {
    let (mut ended, mut wait) = (pin!(ended), pin!(wait));
    poll_fn(|context| match ended.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => wait.as_mut().poll(context).map(Some),
    })
    .await
}

/// Returns TASK SET FULL for a command that the transport cannot queue.
pub(crate) fn refuse_full(attachment: &AttachedUnit) -> Completion {
    refuse(Refusal::Status(Status::TaskSetFull), false, attachment)
}

fn entrant(command: &Command, unit: &LogicalUnit, nexus: &Nexus) -> WaitingCommand {
    let cdb = &command.cdb;
    let row = Row::of(cdb, unit.device_type()).ok();
    let flags = row.map_or(Flags::NONE, |row| row.flags);
    let attribute = match command.attribute {
        // SPC-4 5.5: commands that report on the unit and its state do not wait for the medium.
        TaskAttribute::Simple | TaskAttribute::Ordered
            if flags.contains(Flags::IGNORES_UNIT_ATTENTION) =>
        {
            TaskAttribute::HeadOfQueue
        }
        attribute => attribute,
    };
    let writes = flags.contains(Flags::WRITES);
    let touches_medium = writes || flags.contains(Flags::NEEDS_MEDIUM);
    WaitingCommand {
        name: command.name,
        nexus: nexus.id,
        attribute,
        naca: has_naca(cdb),
        passes_aca: flags.contains(Flags::PASSES_ACA),
        access: touches_medium.then(|| Access { writes, extent: block::extent(cdb) }),
    }
}

/// Returns the response to a command that did not become a task.
fn refuse(refusal: Refusal, naca: bool, attachment: &AttachedUnit) -> Completion {
    match refusal {
        Refusal::Status(status) => {
            let completion = Completion::with_status(status);
            interlock(&attachment.unit, &attachment.attentions, &completion);
            completion
        }
        Refusal::NoAca => {
            // SAM-5 8.6.5.
            let sense =
                Sense::new(SenseKey::IllegalRequest, AdditionalSense::INVALID_MESSAGE_ERROR);
            let mut completion = attachment.unit.complete(Err(sense));
            attachment.tally.end(None, naca, &mut completion);
            completion
        }
    }
}

fn carry_out(command: Command, attachment: &AttachedUnit, nexus: &Arc<Nexus>) -> Io<Completion> {
    let unit = &attachment.unit;
    if let Some(device) = unit.pass_through() {
        if let Err(sense) = unit.tasks().unfinished().check_device(&command.cdb) {
            return Io::Ready(unit.complete(Err(sense)));
        }
        return device.execute(attachment, nexus, command);
    }
    match admit(&command.cdb, attachment, nexus) {
        Ok(row) => {
            let task = Task::new(command, attachment, nexus);
            let answer =
                (row.handler)(task).unwrap_or_else(|sense| Io::Ready(unit.complete(Err(sense))));
            if row.flags.contains(Flags::WRITES) {
                thresholds::look_when_due(unit, nexus);
            }
            answer
        }
        Err(refusal::Refusal::Sense(sense)) => Io::Ready(unit.complete(Err(sense))),
        Err(refusal::Refusal::ReservationConflict) => {
            let completion = Completion::with_status(Status::ReservationConflict);
            interlock(unit, &attachment.attentions, &completion);
            Io::Ready(completion)
        }
    }
}

/// Reports a status again by a unit attention if UA_INTLCK_CTRL is 11b, since the initiator may have overlooked it.
fn interlock(unit: &LogicalUnit, attentions: &Attentions, completion: &Completion) {
    if unit.tasks().policy().interlock != Interlock::HoldsStatuses {
        return;
    }
    match completion.status {
        Status::Busy => attentions.raise_once(UnitAttention::PreviousBusyStatus),
        Status::TaskSetFull => attentions.raise_once(UnitAttention::PreviousTaskSetFullStatus),
        Status::ReservationConflict => {
            attentions.raise_once(UnitAttention::PreviousReservationConflictStatus);
        }
        Status::Good
        | Status::CheckCondition
        | Status::ConditionMet
        | Status::AcaActive
        | Status::TaskAborted => {}
    }
}

/// Checks whether a command may be executed by its handler. The order of the checks is the precedence of SPC-4.
fn admit(
    cdb: &Cdb,
    attachment: &AttachedUnit,
    nexus: &Nexus,
) -> Result<&'static Row, refusal::Refusal> {
    let unit = &attachment.unit;
    let row = Row::of(cdb, unit.device_type())
        .and_then(|row| if row.is_supported_by(unit) { Ok(row) } else { Err(row.unsupported()) });
    let flags = row.as_ref().map_or(Flags::NONE, |row| row.flags);
    if attachment.attentions.is_waiting()
        && !flags.contains(Flags::IGNORES_UNIT_ATTENTION)
        && let Some(attention) = next_attention(attachment)
    {
        return Err(attention.sense().into());
    }
    let row = row?;
    // SAM-5 5.3.3: RESERVATION CONFLICT has precedence over other statuses. The state of the port is checked next, and
    // then the state of the unit.
    if !row.passes(cdb, needed(attachment.permission.get())) {
        return Err(refusal::Refusal::ReservationConflict);
    }
    nexus.target_port.check(row.access)?;
    attachment.check_writable(flags)?;
    admit_state(flags, unit)?;
    Ok(row)
}

/// Returns the unit attention to report. With an interlock it stays pending until REQUEST SENSE (SPC-4 7.5.8).
fn next_attention(attachment: &AttachedUnit) -> Option<UnitAttention> {
    match attachment.unit.tasks().policy().interlock {
        Interlock::None => attachment.attentions.take(),
        Interlock::Holds | Interlock::HoldsStatuses => attachment.attentions.first(),
    }
}
