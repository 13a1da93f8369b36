//! An operation on the whole medium, SANITIZE or FORMAT UNIT. It may continue long after the end of its command.
//!
//! Before the operation changes anything, the server saves the state that a failure would leave. It removes the record
//! after the whole operation is durable. Therefore a unit whose operation was interrupted restarts in the failed state.
//! The operation waits for earlier commands at the write gate. Later commands are rejected.

use crate::phase::{self, Phase};
use crate::task::Task;
use crate::work::{Promise, outlive, outlive_abort};
use crate::{AdditionalSense, Completion, LogicalUnit, MetadataKind, Sense, SenseKey};
use sarsen_block::{Allocation, BlockError, Buffer, Durability, Extent, InvalidRequest, Io};
use sarsen_volume::Regions;
use std::sync::Arc;
use std::task::Poll;

/// The size in bytes of a piece that is written.
const PIECE_BYTES: u64 = 1 << 20;
/// The size in bytes of a piece that is unmapped.
const RELEASE_BYTES: u64 = 256 << 20;

/// The kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    /// FORMAT UNIT.
    Format,
    /// SANITIZE. With AUSE, EXIT FAILURE MODE may end its failure.
    Sanitize { may_exit: bool },
}

impl OperationKind {
    const fn phase(self) -> Phase {
        match self {
            Self::Format => Phase::Formatting,
            Self::Sanitize { .. } => Phase::Sanitizing,
        }
    }

    const fn failure(self) -> Phase {
        match self {
            Self::Format => Phase::FormatFailed,
            Self::Sanitize { may_exit: false } => Phase::SanitizeFailed,
            Self::Sanitize { may_exit: true } => Phase::SanitizeFailedMayExit,
        }
    }

    /// Returns whether the operation may begin. Only SANITIZE can end the failure of SANITIZE (SBC-3 4.11.4).
    const fn may_begin(self, phase: Phase) -> bool {
        match self {
            Self::Format => matches!(phase, Phase::Usual | Phase::FormatFailed),
            Self::Sanitize { .. } => matches!(phase, Phase::Usual) || phase.is_failure(),
        }
    }
}

/// The operation on every block in one step. Each step is durable before the next one begins.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Writes this block everywhere.
    Overwrite(Arc<[u8]>),
    /// Writes zeroes to allocated blocks.
    Wipe,
    /// Replaces the key that encrypts all blocks.
    ForgetKey,
    /// Unmaps all blocks, or writes zeroes if the store cannot unmap.
    Release,
}

/// An operation and its steps.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) kind: OperationKind,
    pub(crate) steps: Vec<Step>,
    /// The command ends when the operation has begun (IMMED).
    pub(crate) is_immediate: bool,
}

impl Operation {
    /// Starts the operation, if the state of the medium permits it.
    pub(crate) fn start(self, task: &Task<'_>) -> Result<Io<Completion>, Sense> {
        let unit = task.unit;
        let medium = unit.medium_phase();
        let before = loop {
            let phase = medium.current();
            if !self.kind.may_begin(phase) {
                return Err(phase::sense(medium).unwrap_or(Sense::none()));
            }
            if medium.change(phase, self.kind.phase()) {
                break phase;
            }
        };
        medium.set_progress(0, 1);
        let worker = Arc::clone(unit);
        Ok(outlive_abort(task, move |promise| self.carry_out(worker, before, promise)))
    }

    async fn carry_out(self, unit: Arc<LogicalUnit>, before: Phase, promise: Promise) {
        let (during, failure) = (self.kind.phase(), self.kind.failure());
        let medium = unit.medium_phase();
        if keep(&unit, failure).await.is_err() {
            // The record now contains one of the two states. Both mean that the blocks are not valid.
            let _ = keep(&unit, before).await;
            medium.change(during, before);
            return promise.answer(Err(not_kept()));
        }
        if self.is_immediate {
            promise.answer(Ok(()));
        }
        let _guard = unit.volume().write_gate().exclusive(Regions::ALL).await;
        if medium.current() != during {
            // An atomic write failed before this operation changed anything.
            let _ = keep(&unit, before).await;
            return promise.answer(Err(phase::sense(medium).unwrap_or(Sense::none())));
        }
        let done = match run(&unit, &self.steps).await {
            Ok(()) => keep(&unit, Phase::Usual).await.is_ok(),
            Err(_) => false,
        };
        medium.set(if done { Phase::Usual } else { failure });
        promise.answer(phase::sense(medium).map_or(Ok(()), Err));
    }
}

/// Executes EXIT FAILURE MODE. Succeeds if it ends a failure, or if there was none (SBC-3 5.24.2.5).
pub(crate) fn exit_failure(task: &Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    match unit.medium_phase().current() {
        Phase::SanitizeFailedMayExit => {}
        Phase::SanitizeFailed => return Err(Sense::invalid_bit_in_cdb(1, 4)),
        _ => return Ok(Io::Ready(Completion::good())),
    }
    let worker = Arc::clone(unit);
    let host = task.nexus.device.array().host();
    Ok(outlive(host, unit, async move |promise: Promise| {
        // The record is removed first, so that a crash leaves the failure.
        if keep(&worker, Phase::Usual).await.is_err() {
            return promise.answer(Err(not_kept()));
        }
        worker.medium_phase().change(Phase::SanitizeFailedMayExit, Phase::Usual);
        promise.answer(Ok(()));
    }))
}

const fn not_kept() -> Sense {
    Sense::new(SenseKey::HardwareError, AdditionalSense::INTERNAL_TARGET_FAILURE)
}

/// Saves the record of a phase for the next run of the unit.
async fn keep(unit: &LogicalUnit, phase: Phase) -> std::io::Result<()> {
    match unit.metadata() {
        Some(metadata) => metadata.save(MetadataKind::Operation, phase.record()).wait().await,
        None => Ok(()),
    }
}

async fn run(unit: &LogicalUnit, steps: &[Step]) -> Result<(), BlockError> {
    let end = unit.geometry().block_count;
    let shift = unit.geometry().block_size.shift();
    let total = end.saturating_mul(steps.len() as u64);
    for (index, step) in steps.iter().enumerate() {
        let before = end.saturating_mul(index as u64);
        let mut lba = 0;
        while lba < end {
            let piece_bytes = match step {
                Step::Overwrite(_) | Step::Wipe => PIECE_BYTES,
                Step::Release => RELEASE_BYTES,
                Step::ForgetKey => u64::MAX,
            };
            let extent = Extent::new(lba, (piece_bytes >> shift).min(end - lba));
            lba += apply(unit, step, extent).await?;
            unit.medium_phase().set_progress(before.saturating_add(lba), total);
            give_way().await;
        }
        unit.store().flush().wait().await?;
    }
    Ok(())
}

/// Applies a step to the extent. Returns the number of blocks that are done, from its beginning.
async fn apply(unit: &LogicalUnit, step: &Step, extent: Extent) -> Result<u64, BlockError> {
    let store = unit.store();
    match step {
        Step::Overwrite(block) => {
            let mut data = Buffer::for_overwrite(unit.byte_count(extent.block_count));
            for copy in data.chunks_exact_mut(block.len()) {
                copy.copy_from_slice(block);
            }
            store.write(extent, data.into(), Durability::Volatile).wait().await?;
        }
        Step::Wipe => {
            let rest = unit.geometry().block_count.saturating_sub(extent.lba.0);
            let ahead = Extent { block_count: rest.max(extent.block_count), ..extent };
            let run = store.allocation(ahead).wait().await?;
            if run.allocation == Allocation::Deallocated && run.block_count > 0 {
                return Ok(run.block_count.min(rest));
            }
            let block_count = run.block_count.clamp(1, extent.block_count);
            let extent = Extent { block_count, ..extent };
            let zeroes = Buffer::zeroed(unit.byte_count(block_count));
            store.write(extent, zeroes.into(), Durability::Volatile).wait().await?;
            return Ok(block_count);
        }
        Step::ForgetKey => {
            let eraser = unit.eraser().ok_or(InvalidRequest::Unsupported)?;
            eraser.forget_key().wait().await?;
        }
        Step::Release if unit.characteristics().unmap.is_some() => {
            store.unmap(extent).wait().await?;
        }
        Step::Release => store.write_zeroes(extent, Durability::Volatile).wait().await?,
    }
    Ok(extent.block_count)
}

/// Yields to other tasks of the core, since a memory store never waits.
async fn give_way() {
    let mut has_waited = false;
    std::future::poll_fn(|context| {
        if has_waited {
            return Poll::Ready(());
        }
        has_waited = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
