//! Commands that a store does not end: the unit's responses meanwhile, and the fence that prevents their late effects
//! after later commands.
//!
//! A task that was aborted ends when its command has. Where the store does not end the command in time, the transport
//! writes it off: the task ends, and the command, with its buffers, goes on outside the task set. Until the last of
//! them has ended, the unit is not ready: no command that uses the medium begins, so that the unit acknowledges no
//! command whose effect a late write could undo.

use crate::execution::{Held, UnderWay};
use crate::task_set::TaskSet;
use crate::{AdditionalSense, Cdb, Completion, LogicalUnit, Sense, SenseKey};
use sarsen_block::LocalFuture;
use sarsen_wire::scsi::opcode;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

/// The number of such commands of a unit. See the module.
#[derive(Default)]
pub(crate) struct UnfinishedCommands {
    stalled: AtomicU32,
    written_off: AtomicU32,
}

impl UnfinishedCommands {
    /// Whether a command that uses the medium may begin.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Sense> {
        match self.written_off.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(not_ready()),
        }
    }

    /// Whether a command may begin that a real device carries out.
    pub(crate) fn check_device(&self, cdb: &Cdb) -> Result<(), Sense> {
        match cdb.operation_code() {
            opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE => Ok(()),
            _ => self.check(),
        }
    }

    fn are_none(&self) -> bool {
        self.stalled.load(Ordering::Acquire) == 0 && self.written_off.load(Ordering::Acquire) == 0
    }
}

#[cold]
fn not_ready() -> Sense {
    Sense::new(SenseKey::NotReady, AdditionalSense::LOGICAL_UNIT_NOT_READY_CAUSE_NOT_REPORTABLE)
}

impl LogicalUnit {
    /// Whether the store ends its commands: false while a [`Stall`] or a [`WrittenOff`] of this unit
    /// exists.
    pub fn responds(&self) -> bool {
        self.tasks().unended().are_none()
    }
}

/// Reports that a command takes too long, until this is dropped.
pub struct Stall(Arc<TaskSet>);

impl Drop for Stall {
    fn drop(&mut self) {
        self.0.unended().stalled.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A command without its task. It has to be driven to its end: dropping it earlier releases its fence, and is only
/// for the end of the program.
pub struct WrittenOff {
    /// Declared before the fence, so that its resources are released first.
    answer: LocalFuture<Completion>,
    _fence: Fence,
}

struct Fence(Arc<TaskSet>);

impl Drop for Fence {
    fn drop(&mut self) {
        self.0.unended().written_off.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Future for WrittenOff {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.answer.as_mut().poll(context).map(drop)
    }
}

impl UnderWay {
    fn set(&self) -> Option<&Arc<TaskSet>> {
        match &self.place {
            Held::Slot(place) => Some(place.set()),
            Held::InAnswer(tally) => Some(tally.set()),
            Held::Ended => None,
        }
    }

    /// Reports that the command takes too long. `None` if the command has ended.
    pub fn stall(&self) -> Option<Stall> {
        let set = self.set()?;
        set.unended().stalled.fetch_add(1, Ordering::AcqRel);
        Some(Stall(set.clone()))
    }

    /// Takes the command out of its task, which ends now and was aborted before with
    /// [`NexusHandle::abort`](crate::NexusHandle::abort): a command that only waits for its turn would not end
    /// otherwise. From now on the unit is not ready, until the command has ended. `None` if the command has ended.
    pub fn write_off(self) -> Option<WrittenOff> {
        let set = self.set()?.clone();
        set.unended().written_off.fetch_add(1, Ordering::AcqRel);
        let fence = Fence(set);
        // The fence is raised before the task leaves the set, which lets other commands begin.
        drop(self.place);
        Some(WrittenOff { answer: self.answer, _fence: fence })
    }
}
