//! Commands that a store does not end: the responses of the unit meanwhile, and the fence that prevents their late
//! effects after later commands.
//!
//! An aborted task ends when its command has ended. If the store does not end the command in time, the transport writes
//! it off: the task ends, and the command continues with its buffers outside the task set. Until the last of them has
//! ended, the unit is not ready and begins no command that uses the medium. Therefore the unit acknowledges no command
//! whose effect a late write could undo.

use crate::execution::{SlotOwner, UnderWay};
use crate::task_set::TaskSet;
use crate::{AdditionalSense, Cdb, Completion, LogicalUnit, Sense, SenseKey};
use sarsen_block::LocalFuture;
use sarsen_wire::scsi::opcode;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

/// The numbers of stalled and of abandoned commands of a unit. See the module.
#[derive(Default)]
pub(crate) struct HungCommandCounts {
    stalled: AtomicU32,
    abandoned: AtomicU32,
}

impl HungCommandCounts {
    /// Checks whether a command that uses the medium may begin.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Sense> {
        match self.abandoned.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(not_ready()),
        }
    }

    /// Checks whether a command to a real device may begin.
    pub(crate) fn check_device(&self, cdb: &Cdb) -> Result<(), Sense> {
        match cdb.operation_code() {
            opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE => Ok(()),
            _ => self.check(),
        }
    }

    fn are_none(&self) -> bool {
        self.stalled.load(Ordering::Acquire) == 0 && self.abandoned.load(Ordering::Acquire) == 0
    }
}

#[cold]
fn not_ready() -> Sense {
    Sense::new(SenseKey::NotReady, AdditionalSense::LOGICAL_UNIT_NOT_READY_CAUSE_NOT_REPORTABLE)
}

impl LogicalUnit {
    /// Returns whether the store ends its commands: false while a [`Stall`] or a [`Abandoned`] of this unit exists.
    pub fn responds(&self) -> bool {
        self.tasks().unfinished().are_none()
    }
}

/// Reports that a command takes too long, until this is dropped.
pub struct Stall(Arc<TaskSet>);

impl Drop for Stall {
    fn drop(&mut self) {
        self.0.unfinished().stalled.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A command without its task. The transport must poll it to its end. Dropping it earlier releases its fence, which is
/// permitted only at the end of the program.
pub struct Abandoned {
    /// Declared before the fence, so that its resources are released first.
    answer: LocalFuture<Completion>,
    _fence: Fence,
}

struct Fence(Arc<TaskSet>);

impl Drop for Fence {
    fn drop(&mut self) {
        self.0.unfinished().abandoned.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Future for Abandoned {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.answer.as_mut().poll(context).map(drop)
    }
}

impl UnderWay {
    fn set(&self) -> Option<&Arc<TaskSet>> {
        match &self.place {
            SlotOwner::Slot(place) => Some(place.set()),
            SlotOwner::InAnswer(tally) => Some(tally.set()),
            SlotOwner::Ended => None,
        }
    }

    /// Reports that the command takes too long. Returns `None` if the command has ended.
    pub fn report_stall(&self) -> Option<Stall> {
        let set = self.set()?;
        set.unfinished().stalled.fetch_add(1, Ordering::AcqRel);
        Some(Stall(set.clone()))
    }

    /// Removes the command from its task, which ends now. The caller has aborted it before with
    /// [`NexusHandle::abort`](crate::NexusHandle::abort), since otherwise a queued command would not end. From now on
    /// the unit is not ready, until the command has ended. Returns `None` if the command has ended.
    pub fn abandon(self) -> Option<Abandoned> {
        let set = self.set()?.clone();
        set.unfinished().abandoned.fetch_add(1, Ordering::AcqRel);
        let fence = Fence(set);
        // The fence is raised before the task leaves the set, since other commands may begin then.
        drop(self.place);
        Some(Abandoned { answer: self.answer, _fence: fence })
    }
}
