//! The order in which commands reach the layer above.
//!
//! That layer orders tasks from the moment it has them (SAM-5 8.6), but a command whose data is not
//! complete has not reached it. So an ORDERED command waits here for the data of those before it,
//! and those after it wait for its own: they ask for no data, and take no room, until then.

use std::collections::VecDeque;

use super::Event;
use super::full_feature::FullFeature;
use super::link::Link;
use super::tasks::{Progress, TaskId, is_same_unit};

/// Task attributes that have a place of their own (RFC 7143 §11.3.1).
const ORDERED: u8 = 2;
const HEAD_OF_QUEUE: u8 = 3;
const ACA: u8 = 4;

/// See the module.
#[derive(Default)]
pub(super) struct Order {
    /// ORDERED commands that have not reached the layer above. While there are none, nobody waits.
    ordered_count: usize,
    held_back: Vec<TaskId>,
}

impl Order {
    /// A command became a task.
    pub(super) fn begins(&mut self, attribute: u8) {
        self.ordered_count += usize::from(attribute == ORDERED);
    }

    /// It reached the layer above, or ended.
    pub(super) fn ends(&mut self, attribute: u8) {
        self.ordered_count -= usize::from(attribute == ORDERED);
    }
}

impl FullFeature {
    /// Whether a command has to wait for others.
    pub(super) fn holds_back(&mut self, id: TaskId) -> bool {
        if self.order.ordered_count == 0 || !self.is_overtaking(id) {
            return false;
        }
        if !self.order.held_back.contains(&id) {
            self.order.held_back.push(id);
        }
        true
    }

    fn is_overtaking(&mut self, id: TaskId) -> bool {
        let Some(task) = self.tasks.by_tag(id.initiator_task_tag) else { return false };
        let (lun, attribute) = (task.lun, task.attribute());
        // One with a fault is not carried out at all.
        if matches!(attribute, HEAD_OF_QUEUE | ACA) || task.fault.is_some() {
            return false;
        }
        self.tasks.iter().any(|other| {
            other.progress == Progress::Collecting
                && other.id.sequence < id.sequence
                && (attribute == ORDERED || other.attribute() == ORDERED)
                && is_same_unit(other.lun, lun)
        })
    }

    /// Lets go on those that need not wait any more. Says whether there were any.
    pub(super) fn release_held_back(
        &mut self,
        link: &mut Link,
        events: &mut VecDeque<Event>,
    ) -> bool {
        if self.order.held_back.is_empty() {
            return false;
        }
        let mut held_back = std::mem::take(&mut self.order.held_back);
        let count = held_back.len();
        held_back.sort_unstable_by_key(|id| id.sequence);
        for id in held_back {
            // It may be gone, and its tag another one's.
            if self.tasks.by_tag(id.initiator_task_tag).is_some_and(|task| task.id == id) {
                self.advance_task(link, id, events);
            }
        }
        self.order.held_back.len() < count
    }
}
