//! Copy operations with a list identifier: their progress, their results, and their abort (SPC-4 5.17.4).

use super::MAXIMUM_OPERATIONS;
use crate::nexus_id::NexusId;
use crate::task::Task;
use crate::work::EndEarly;
use crate::{AdditionalSense, Completion, Sense, SenseKey, Status};
use parking_lot::{Mutex, MutexGuard};
use sarsen_wire::scsi::copy::RodToken;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// LIST IDENTIFIER. Identifiers of the two kinds are never equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListId {
    /// One byte, in EXTENDED COPY(LID1).
    Short(u8),
    /// Four bytes, in the token commands.
    Long(u32),
}

/// The phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its command has not ended.
    Foreground,
    /// Its command has ended, and the operation continues.
    Background,
    /// It ended successfully.
    Completed,
    /// It ended with this sense data.
    Failed(Sense),
    /// It was aborted.
    Terminated,
}

impl Phase {
    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed(_) | Self::Terminated)
    }
}

/// An operation. The task that executes it and the commands that ask about it share it.
pub(super) struct Operation {
    pub(super) service_action: u8,
    phase: Mutex<Phase>,
    token: Mutex<Option<Box<RodToken>>>,
    bytes: AtomicU64,
    pieces: AtomicU16,
    segments: AtomicU16,
    is_aborted: AtomicBool,
    /// True if its command was aborted, which also aborts the operation.
    is_command_aborted: AtomicBool,
}

impl EndEarly for Operation {
    fn end_early(&self) {
        self.is_command_aborted.store(true, Ordering::Relaxed);
        self.abort();
    }
}

impl Operation {
    fn new(service_action: u8) -> Arc<Self> {
        Arc::new(Self {
            service_action,
            phase: Mutex::new(Phase::Foreground),
            token: Mutex::default(),
            bytes: AtomicU64::new(0),
            pieces: AtomicU16::new(0),
            segments: AtomicU16::new(0),
            is_aborted: AtomicBool::new(false),
            is_command_aborted: AtomicBool::new(false),
        })
    }

    pub(super) fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    /// Returns the number of bytes that were written, without a gap.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.pieces.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of copied pieces. The counter wraps (SPC-4 6.24).
    pub(super) fn pieces(&self) -> u16 {
        self.pieces.load(Ordering::Relaxed)
    }

    pub(super) fn segments(&self) -> u16 {
        self.segments.load(Ordering::Relaxed)
    }

    pub(super) fn segment_done(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn token(&self) -> Option<Box<RodToken>> {
        lock(&self.token).clone()
    }

    pub(super) fn give_token(&self, token: RodToken) {
        *lock(&self.token) = Some(Box::new(token));
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Relaxed)
    }

    pub(super) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Relaxed);
    }
}

/// A guard for the execution of an operation. If it is dropped before the end, the operation was terminated.
pub(super) struct Running(Arc<Operation>);

impl Running {
    /// Notes that the command ends now and the operation continues.
    pub(super) fn goes_on_in_background(&self) {
        *lock(&self.0.phase) = Phase::Background;
    }

    /// Makes an abort of the command end the operation before its next piece.
    pub(super) fn abort_with(&self, task: &Task<'_>) {
        task.unit.long_commands().add(task.nexus.id, task.name, self.0.clone());
    }

    /// Records the result, and returns the completion of the command.
    pub(super) fn answer(self, result: Result<(), Sense>) -> Result<Completion, Sense> {
        let is_aborted = self.0.is_command_aborted.load(Ordering::Relaxed);
        self.finish(&result);
        match result {
            Err(_) if is_aborted => Ok(Completion::with_status(Status::TaskAborted)),
            result => result.map(|()| Completion::good()),
        }
    }

    /// Records the result.
    pub(super) fn finish(self, result: &Result<(), Sense>) {
        let phase = match result {
            Ok(()) => Phase::Completed,
            Err(_) if self.0.is_aborted() => Phase::Terminated,
            Err(sense) => Phase::Failed(*sense),
        };
        *lock(&self.0.phase) = phase;
    }
}

impl std::ops::Deref for Running {
    type Target = Operation;
    fn deref(&self) -> &Operation {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut phase = lock(&self.0.phase);
        if !phase.is_over() {
            *phase = Phase::Terminated;
        }
    }
}

struct Entry {
    nexus: NexusId,
    id: ListId,
    /// True if the record of the operation is kept after its end.
    is_kept: bool,
    operation: Arc<Operation>,
}

impl Entry {
    fn is_forgotten(&self) -> bool {
        !self.is_kept && self.operation.phase().is_over()
    }
}

/// The operations that commands to one unit started.
#[derive(Default)]
pub(crate) struct Operations(Mutex<Vec<Entry>>);

impl Operations {
    /// Starts an operation. An identifier replaces the previous operation with the same identifier. If that operation
    /// is still in progress, the new one is rejected.
    pub(super) fn begin(
        &self,
        nexus: NexusId,
        id: Option<ListId>,
        is_kept: bool,
        service_action: u8,
    ) -> Result<Running, Sense> {
        let operation = Operation::new(service_action);
        let Some(id) = id else { return Ok(Running(operation)) };
        let mut entries = lock(&self.0);
        entries.retain(|entry| !entry.is_forgotten());
        let is_same = |entry: &Entry| entry.nexus == nexus && entry.id == id;
        if entries.iter().any(|entry| is_same(entry) && !entry.operation.phase().is_over()) {
            let code = AdditionalSense::OPERATION_IN_PROGRESS;
            return Err(Sense::new(SenseKey::IllegalRequest, code));
        }
        entries.retain(|entry| !is_same(entry));
        if entries.iter().filter(|entry| entry.nexus == nexus).count() >= MAXIMUM_OPERATIONS {
            let oldest = entries
                .iter()
                .position(|entry| entry.nexus == nexus && entry.operation.phase().is_over());
            let Some(oldest) = oldest else {
                let code = AdditionalSense::INSUFFICIENT_RESOURCES;
                return Err(Sense::new(SenseKey::IllegalRequest, code));
            };
            entries.remove(oldest);
        }
        entries.push(Entry { nexus, id, is_kept, operation: operation.clone() });
        Ok(Running(operation))
    }

    /// Returns the operation of an identifier.
    pub(super) fn find(&self, nexus: NexusId, id: ListId) -> Option<Arc<Operation>> {
        let entries = lock(&self.0);
        let mut known = entries.iter().filter(|entry| !entry.is_forgotten());
        let entry = known.find(|entry| entry.nexus == nexus && entry.id == id)?;
        Some(entry.operation.clone())
    }

    /// Deletes the record of an operation.
    pub(super) fn forget(&self, operation: &Arc<Operation>) {
        lock(&self.0).retain(|entry| !Arc::ptr_eq(&entry.operation, operation));
    }

    /// Aborts the operations of a lost I_T nexus and deletes their records.
    pub(crate) fn end_of(&self, nexus: NexusId) {
        lock(&self.0).retain(|entry| {
            if entry.nexus == nexus {
                entry.operation.abort();
            }
            entry.nexus != nexus
        });
    }

    /// Aborts all operations, for a logical unit reset.
    pub(crate) fn end_all(&self) {
        for entry in lock(&self.0).drain(..) {
            entry.operation.abort();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
