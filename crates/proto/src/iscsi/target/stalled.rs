//! Initiators that use memory and do not move its data. A write has its memory before its data arrives, and a read until
//! its data is sent. Such an initiator could use the memory of all others without an end. While commands wait for
//! memory, its connection is closed.

use std::time::{Duration, Instant};

use super::tasks::{Progress, Task};

/// Maximum time in which an initiator that has data to send or to receive moves none of it.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum rate in bytes per second: a slower initiator exceeds [`STALL_TIMEOUT`] at last.
const MINIMUM_RATE: u32 = 64 << 10;

/// The data in one direction.
#[derive(Debug, Default)]
struct Flow {
    /// The time until which the initiator must move more. It does not depend on single commands, which an initiator
    /// could abort and send again.
    deadline: Option<Instant>,
    /// Bytes that it has moved since the last check.
    moved: usize,
}

impl Flow {
    #[inline]
    fn note(&mut self, count: usize) {
        self.moved = self.moved.saturating_add(count);
    }

    /// Returns whether the data that is `pending` is late.
    fn check(&mut self, pending: bool, now: Instant) -> bool {
        let (moved, latest) = (std::mem::take(&mut self.moved), now + STALL_TIMEOUT);
        let earned = Duration::from_secs(1) * u32::try_from(moved).unwrap_or(u32::MAX);
        let deadline = self.deadline.map_or(latest, |before| before + earned / MINIMUM_RATE);
        self.deadline = pending.then_some(deadline.min(latest));
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
}

/// The data that an initiator has to send and to receive.
#[derive(Debug, Default)]
pub(super) struct StallCheck {
    data_out: Flow,
    output: Flow,
}

impl StallCheck {
    /// Notes that the initiator sent data of writes.
    pub(super) fn note_data_out(&mut self, count: usize) {
        self.data_out.note(count);
    }

    /// Notes that the initiator received bytes.
    #[inline]
    pub(super) fn note_sent(&mut self, count: usize) {
        self.output.note(count);
    }

    /// Checks the tasks of the connection, and whether output waits to be sent. Returns whether some data is late.
    pub(super) fn check<'a>(
        &mut self,
        mut tasks: impl Iterator<Item = &'a Task>,
        has_output: bool,
        now: Instant,
    ) -> bool {
        let is_data_late = self.data_out.check(tasks.any(awaits_data), now);
        self.output.check(has_output, now) || is_data_late
    }
}

/// Returns whether a task has memory for data that was requested from the initiator, or that it sends unsolicited.
fn awaits_data(task: &Task) -> bool {
    let collection = &task.collection;
    task.progress == Progress::Collecting
        && task.grant.is_some()
        && (collection.unsolicited || !collection.r2ts.is_empty())
}
