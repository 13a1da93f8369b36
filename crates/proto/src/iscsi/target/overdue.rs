//! Initiators that use memory and do not move their data. A write has its memory before its data arrives, and a read
//! until its data is sent, so such an initiator could take the memory of all others for ever. While commands wait for
//! memory, its connection is closed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::tasks::{Progress, Task};

/// Maximum time in which the initiator sends nothing of a write, or receives nothing.
const LIMIT: Duration = Duration::from_secs(30);
/// The time in addition for each byte of all writes whose data is awaited: 64 KiB/s.
const MINIMUM_RATE: usize = 64 << 10;

/// What the initiator owes, at the last check.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// The time since which the data of each write is awaited.
    since: HashMap<u64, Instant>,
    /// The time since which the initiator receives nothing.
    unsent_since: Option<Instant>,
    has_sent: bool,
}

impl Overdue {
    /// Notes that the initiator received bytes.
    #[inline]
    pub(super) fn note_sent(&mut self) {
        self.has_sent = true;
    }

    /// Checks the tasks of the connection, and the bytes that wait to be sent. Returns whether one of them is overdue.
    pub(super) fn check<'a>(
        &mut self,
        tasks: impl Iterator<Item = &'a Task>,
        unsent: usize,
        now: Instant,
    ) -> bool {
        let mut owed = 0;
        let mut since = HashMap::new();
        for task in tasks.filter(|task| awaits_data(task)) {
            let id = task.id.number();
            since.insert(id, *self.since.get(&id).unwrap_or(&now));
            owed += task.collection.capacity;
        }
        self.since = since;
        let has_sent = std::mem::take(&mut self.has_sent);
        self.unsent_since =
            if unsent == 0 || has_sent { None } else { self.unsent_since.or(Some(now)) };
        let timeout = LIMIT + Duration::from_secs((owed / MINIMUM_RATE) as u64);
        self.since.values().any(|&since| now >= since + timeout)
            || self.unsent_since.is_some_and(|since| now >= since + LIMIT)
    }
}

/// Returns whether a task has memory for data that the initiator has to send.
fn awaits_data(task: &Task) -> bool {
    task.progress == Progress::Collecting
        && task.grant.is_some()
        && !task.awaits_room()
        && !task.collection.is_complete()
}
