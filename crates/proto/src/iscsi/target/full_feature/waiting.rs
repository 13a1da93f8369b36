//! Tasks that wait for memory, or until other tasks of the session have reached the layer above.

use sarsen_wire::iscsi::RESERVED_TAG;

use super::super::link::Link;
use super::super::session::ORDERED;
use super::super::tasks::Task;
use super::FullFeature;
use crate::command_memory::Grant;

impl FullFeature {
    /// Returns whether tasks wait for other tasks or for memory.
    pub(super) fn has_waiting(&self) -> bool {
        !self.held_back.is_empty() || !self.waiting.is_empty()
    }

    /// Continues the waiting tasks that need not wait any more.
    #[inline]
    pub(in crate::iscsi::target) fn start_waiting(&mut self, link: &mut Link) {
        while self.has_waiting() && (self.release_held_back(link) || self.give_room(link)) {}
        if self.waiting.is_empty() {
            link.room.stop_waiting();
        }
    }

    /// Pings the initiator if unacknowledged answers use memory that commands wait for. Its reply acknowledges them.
    pub(super) fn ping_for_acknowledgement(&mut self, link: &mut Link) {
        if link.kept.bytes() > 0 && self.ping_tag == RESERVED_TAG {
            self.ping(link);
        }
    }

    /// Takes the memory of a whole write of which only the first part is unsolicited, if it is free now. Then the data is
    /// received into the store's buffer from the first byte. A command that waits for others must have no memory, so that
    /// those find it: see [`SessionState::holds_back`](super::super::session::SessionState::holds_back).
    pub(super) fn take_room_early(
        &self,
        link: &mut Link,
        attribute: u8,
        bytes: usize,
    ) -> Option<Grant> {
        let never_waits = attribute != ORDERED && !link.session.with(|state| state.has_ordered());
        (never_waits && self.waiting.is_empty()).then(|| link.room.admit_now(bytes)).flatten()
    }

    /// Continues the tasks that need not wait for other tasks any more. Returns whether there were any.
    fn release_held_back(&mut self, link: &mut Link) -> bool {
        if self.held_back.is_empty() {
            return false;
        }
        let mut held_back = std::mem::take(&mut self.held_back);
        let count = held_back.len();
        held_back.sort_unstable_by_key(|id| id.sequence);
        for id in held_back {
            // The task may have ended, and another task may have its tag.
            if self.tasks.by_tag(id.initiator_task_tag).is_some_and(|task| task.id == id) {
                self.advance_task(link, id);
            }
        }
        self.held_back.len() < count
    }

    /// Continues the tasks for which there is memory. Returns whether there were any.
    #[cold]
    fn give_room(&mut self, link: &mut Link) -> bool {
        let mut any = false;
        while let Some(&id) = self.waiting.front()
            && let Some(task) = self.tasks.by_tag(id.initiator_task_tag)
            && admit(task, link)
        {
            self.waiting.pop_front();
            self.advance_task(link, id);
            any = true;
        }
        any
    }
}

/// Gives a waiting task its memory, if there is enough. Returns whether there is.
#[inline(always)]
pub(super) fn admit(task: &mut Task, link: &Link) -> bool {
    let Some(grant) = link.room.admit(task.needed_memory()) else { return false };
    if task.collection.wanted > 0 {
        task.collection.enlarge();
    }
    task.has_room = true;
    if let Some(part) = task.grant.replace(grant) {
        link.room.give_back(part);
    }
    true
}
