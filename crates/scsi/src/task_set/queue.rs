//! The order of the tasks that requested a slot: their beginning (SAM-5 8.6), their blocking by an auto contingent
//! allegiance (5.9), and their abort before they begin.
//!
//! Tasks that only a tally counts ([`super::NexusTasks`]) began before all queued ones: while a task waits, every new
//! command must request a slot.

use super::Policy;
use crate::nexus_id::NexusId;
use crate::{Status, TaskAttribute};
use sarsen_block::Extent;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::task::{Poll, Waker};

/// The access of a command to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) writes: bool,
    /// The accessed blocks, if they are known before the execution.
    pub(crate) extent: Option<Extent>,
}

impl Access {
    /// Returns whether the order of the two commands affects the data.
    fn conflicts_with(self, other: Self) -> bool {
        let overlap = match (self.extent, other.extent) {
            (Some(one), Some(two)) => {
                one.lba.0 < two.saturating_end() && two.lba.0 < one.saturating_end()
            }
            _ => true,
        };
        (self.writes || other.writes) && overlap
    }
}

/// A command that requests a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingCommand {
    /// The transport's identifier of the command.
    pub(crate) name: u64,
    pub(crate) nexus: NexusId,
    pub(crate) attribute: TaskAttribute,
    /// True if the failure of the command establishes an auto contingent allegiance (NACA).
    pub(crate) naca: bool,
    /// True if the command is executed during another nexus's auto contingent allegiance.
    pub(crate) passes_aca: bool,
    /// The access to the medium; `None` for a command without one.
    pub(crate) access: Option<Access>,
}

/// The reason why a command does not become a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Status(Status),
    /// The ACA attribute without an auto contingent allegiance.
    NoAca,
}

enum Progress {
    Waiting(Option<Waker>),
    Begun,
    /// The task never begins. The transport will end it and chooses the response.
    Doomed(Option<Waker>),
    /// The task has ended before it began.
    Aborted,
}

struct Entry {
    entrant: WaitingCommand,
    progress: Progress,
}

/// The tasks of one nexus, or of all nexuses, that have begun.
#[derive(Default)]
struct Begun {
    count: usize,
    ordered_count: usize,
    head_of_queue_count: usize,
    /// Their accesses to the medium, by number.
    accesses: BTreeMap<u64, Access>,
}

impl Begun {
    fn add(&mut self, entrant: &WaitingCommand) {
        self.count += 1;
        self.ordered_count += usize::from(entrant.attribute == TaskAttribute::Ordered);
        self.head_of_queue_count += usize::from(entrant.attribute == TaskAttribute::HeadOfQueue);
    }

    fn remove(&mut self, entrant: &WaitingCommand) {
        self.count -= 1;
        self.ordered_count -= usize::from(entrant.attribute == TaskAttribute::Ordered);
        self.head_of_queue_count -= usize::from(entrant.attribute == TaskAttribute::HeadOfQueue);
    }
}

/// The tasks that requested a slot. Their numbers ascend in the order of arrival.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) policy: Policy,
    entries: BTreeMap<u64, Entry>,
    last_number: u64,
    waiting: BTreeSet<u64>,
    /// Nexus, name and number of the tasks that have not begun, including doomed ones.
    not_begun: BTreeSet<(NexusId, u64, u64)>,
    begun: Begun,
    begun_of: HashMap<NexusId, Begun>,
    /// The number of tasks that are not SIMPLE and that wait or have begun.
    special_count: usize,
    /// The nexuses with an auto contingent allegiance.
    faulted: Vec<NexusId>,
    /// The wakers of tasks that have begun, are not executed yet, and wait for the end of an allegiance.
    held_up: Vec<Waker>,
}

/// The tasks that wait before a task in its task set.
#[derive(Default)]
struct Before {
    any: bool,
    ordered: bool,
    accesses: Vec<(NexusId, Access)>,
}

impl Queue {
    /// Returns whether a SIMPLE command need not request a slot.
    pub(super) fn allows_bypass(&self) -> bool {
        self.special_count == 0
            && self.waiting.is_empty()
            && self.faulted.is_empty()
            && !self.policy.restricted_reordering
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.waiting.is_empty()
            && self.not_begun.is_empty()
            && self.begun.count == 0
            && self.begun_of.is_empty()
            && self.special_count == 0
    }

    pub(super) fn has_tasks_of(&self, nexus: NexusId) -> bool {
        self.begun_of.contains_key(&nexus) || self.not_begun_of(nexus, None).next().is_some()
    }

    /// Checks whether the auto contingent allegiances permit a command (SAM-5 5.9.3, 5.9.4).
    pub(super) fn admit(&self, entrant: &WaitingCommand) -> Result<(), Refusal> {
        let WaitingCommand { nexus, attribute, naca, passes_aca, .. } = *entrant;
        let is_aca = attribute == TaskAttribute::Aca;
        if self.faulted.contains(&nexus) {
            let one_is_there = self.entries.values().any(|entry| {
                let WaitingCommand { nexus: its_nexus, attribute, .. } = entry.entrant;
                its_nexus == nexus && attribute == TaskAttribute::Aca
            });
            return if is_aca && !one_is_there {
                Ok(())
            } else {
                Err(Refusal::Status(Status::AcaActive))
            };
        }
        if self.is_blocked(nexus) && !passes_aca {
            let status = if naca { Status::AcaActive } else { Status::Busy };
            return Err(Refusal::Status(status));
        }
        if is_aca { Err(Refusal::NoAca) } else { Ok(()) }
    }

    /// Adds a command. HEAD OF QUEUE and ACA begin at once, and so do commands that are permitted during another
    /// nexus's allegiance. Others wait until [`Self::advance`] begins them.
    pub(super) fn push(&mut self, entrant: WaitingCommand) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        self.special_count += usize::from(entrant.attribute != TaskAttribute::Simple);
        self.waiting.insert(number);
        self.not_begun.insert((entrant.nexus, entrant.name, number));
        self.entries.insert(number, Entry { entrant, progress: Progress::Waiting(None) });
        let passes = entrant.passes_aca && self.is_blocked(entrant.nexus);
        if passes || matches!(entrant.attribute, TaskAttribute::HeadOfQueue | TaskAttribute::Aca) {
            self.begin(number);
        }
        number
    }

    /// Removes a task that has ended, or whose answer was dropped.
    pub(super) fn remove(&mut self, number: u64) {
        let Some(Entry { entrant, progress }) = self.entries.remove(&number) else { return };
        match progress {
            Progress::Waiting(_) => self.stops_waiting(number, &entrant),
            Progress::Begun => {
                self.special_count -= usize::from(entrant.attribute != TaskAttribute::Simple);
                self.begun.remove(&entrant);
                if let Some(begun) = self.begun_of.get_mut(&entrant.nexus) {
                    begun.remove(&entrant);
                    begun.accesses.remove(&number);
                    if begun.count == 0 {
                        self.begun_of.remove(&entrant.nexus);
                    }
                }
            }
            Progress::Doomed(_) | Progress::Aborted => {}
        }
        self.not_begun.remove(&(entrant.nexus, entrant.name, number));
    }

    /// Removes a waiting task that will not begin, so that other tasks do not wait for it.
    fn stops_waiting(&mut self, number: u64, entrant: &WaitingCommand) {
        self.waiting.remove(&number);
        self.special_count -= usize::from(entrant.attribute != TaskAttribute::Simple);
    }

    /// Returns whether the task may begin (true) or was aborted before (false).
    pub(super) fn poll_turn(&mut self, number: u64, waker: &Waker) -> Poll<bool> {
        let Some(entry) = self.entries.get_mut(&number) else { return Poll::Ready(false) };
        match &mut entry.progress {
            Progress::Begun => Poll::Ready(true),
            Progress::Aborted => Poll::Ready(false),
            Progress::Waiting(kept) | Progress::Doomed(kept) => {
                *kept = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    pub(super) fn has_begun(&self, number: u64) -> bool {
        self.entries.get(&number).is_some_and(|entry| matches!(entry.progress, Progress::Begun))
    }

    /// Begins the tasks that may begin. `others_run` returns whether tasks run that did not request a slot, of one
    /// nexus or of all.
    pub(super) fn advance(&mut self, others_run: impl Fn(Option<NexusId>) -> bool) {
        let Begun { ordered_count, head_of_queue_count, .. } = self.begun;
        let all_wait = ordered_count + head_of_queue_count > 0 || !self.faulted.is_empty();
        if self.waiting.is_empty() || (all_wait && !self.policy.set_for_each_nexus) {
            return;
        }
        let mut sets: HashMap<Option<NexusId>, Before> = HashMap::new();
        let mut begins = Vec::new();
        // A task that begins in this pass counts at once for the tasks after it.
        for &number in &self.waiting {
            let Some(Entry { entrant, .. }) = self.entries.get(&number) else { continue };
            let set = self.policy.set_for_each_nexus.then_some(entrant.nexus);
            let before = sets.entry(set).or_default();
            if self.may_begin(entrant, set, before, &others_run) {
                begins.push(number);
            } else if set.is_none() && entrant.attribute == TaskAttribute::Ordered {
                // No task after it may begin.
                break;
            }
            before.any = true;
            before.ordered |= entrant.attribute == TaskAttribute::Ordered;
            if let Some(access) = entrant.access.filter(|_| self.policy.restricted_reordering) {
                before.accesses.push((entrant.nexus, access));
            }
        }
        for number in begins {
            self.begin(number);
        }
    }

    fn begin(&mut self, number: u64) {
        let Some(Entry { entrant, progress }) = self.entries.get_mut(&number) else { return };
        if let Progress::Waiting(Some(waker)) = std::mem::replace(progress, Progress::Begun) {
            waker.wake();
        }
        self.begun.add(entrant);
        let begun = self.begun_of.entry(entrant.nexus).or_default();
        begun.add(entrant);
        if let Some(access) = entrant.access {
            begun.accesses.insert(number, access);
        }
        self.waiting.remove(&number);
        self.not_begun.remove(&(entrant.nexus, entrant.name, number));
    }

    /// Returns whether a task may begin (SAM-5 8.6.2 to 8.6.5). An ORDERED task that has begun is older than all
    /// waiting tasks, since otherwise they would have prevented its beginning.
    fn may_begin(
        &self,
        entrant: &WaitingCommand,
        set: Option<NexusId>,
        before: &Before,
        others_run: impl Fn(Option<NexusId>) -> bool,
    ) -> bool {
        if self.is_blocked(entrant.nexus) {
            return false;
        }
        let nothing = Begun::default();
        let begun = match set {
            Some(nexus) => self.begun_of.get(&nexus).unwrap_or(&nothing),
            None => &self.begun,
        };
        match entrant.attribute {
            TaskAttribute::HeadOfQueue | TaskAttribute::Aca => true,
            TaskAttribute::Ordered => begun.count == 0 && !before.any && !others_run(set),
            TaskAttribute::Simple => {
                begun.head_of_queue_count == 0
                    && begun.ordered_count == 0
                    && !before.ordered
                    && !self.overlaps(entrant, before, others_run)
            }
        }
    }

    /// Returns whether restricted reordering (SPC-4 7.5.8) makes a task wait for another one.
    fn overlaps(
        &self,
        entrant: &WaitingCommand,
        before: &Before,
        others_run: impl Fn(Option<NexusId>) -> bool,
    ) -> bool {
        let Some(access) = entrant.access.filter(|_| self.policy.restricted_reordering) else {
            return false;
        };
        let conflicts = |other: &Access| access.conflicts_with(*other);
        let begun = self.begun_of.get(&entrant.nexus);
        begun.is_some_and(|begun| begun.accesses.values().any(conflicts))
            || before.accesses.iter().any(|(nexus, other)| {
                *nexus == entrant.nexus && access.conflicts_with(*other)
            })
            // These tasks began before the restriction, so their blocks are unknown.
            || others_run(Some(entrant.nexus))
    }

    /// Returns whether an auto contingent allegiance blocks the tasks of a nexus.
    fn is_blocked(&self, nexus: NexusId) -> bool {
        if self.policy.set_for_each_nexus {
            self.faulted.contains(&nexus)
        } else {
            !self.faulted.is_empty()
        }
    }

    pub(super) fn establish_aca(&mut self, nexus: NexusId) {
        if !self.faulted.contains(&nexus) {
            self.faulted.push(nexus);
        }
    }

    pub(super) fn clear_aca(&mut self, nexus: NexusId) {
        self.faulted.retain(|&faulted| faulted != nexus);
        self.held_up.drain(..).for_each(Waker::wake);
    }

    pub(super) fn clear_all_aca(&mut self) {
        self.faulted.clear();
        self.held_up.drain(..).for_each(Waker::wake);
    }

    /// Waits until a task that waited for something else may be executed: until no allegiance blocks it that was
    /// established meanwhile (SAM-5 5.9.3).
    pub(super) fn poll_unblocked(&mut self, entrant: &WaitingCommand, waker: &Waker) -> Poll<()> {
        let WaitingCommand { nexus, attribute, passes_aca, .. } = *entrant;
        let passes = passes_aca && !self.faulted.contains(&nexus);
        if passes || attribute == TaskAttribute::Aca || !self.is_blocked(nexus) {
            return Poll::Ready(());
        }
        if !self.held_up.iter().any(|known| known.will_wake(waker)) {
            self.held_up.push(waker.clone());
        }
        Poll::Pending
    }

    /// Returns the numbers of a nexus's tasks that have not begun: all, or those of one name.
    fn not_begun_of(&self, nexus: NexusId, name: Option<u64>) -> impl Iterator<Item = u64> {
        let (first, last) = name.map_or((0, u64::MAX), |name| (name, name));
        let range = (nexus, first, 0)..=(nexus, last, u64::MAX);
        self.not_begun.range(range).map(|(_, _, number)| *number)
    }

    /// Dooms the waiting tasks of these nexuses, except `spared`: they never begin, and the transport ends them.
    pub(super) fn doom(&mut self, nexuses: &[NexusId], spared: Option<u64>) {
        for &nexus in nexuses {
            let numbers: Vec<u64> = self.not_begun_of(nexus, None).collect();
            for number in numbers.into_iter().filter(|&number| spared != Some(number)) {
                self.end_before_it_began(number, Progress::Doomed);
            }
        }
    }

    /// Aborts tasks of a nexus on request of the transport, all or those of one name. Tasks that have not begun end at
    /// once.
    pub(super) fn abort(&mut self, nexus: NexusId, name: Option<u64>) {
        let numbers: Vec<u64> = self.not_begun_of(nexus, name).collect();
        for number in numbers {
            self.end_before_it_began(number, |waker| {
                if let Some(waker) = waker {
                    waker.wake();
                }
                Progress::Aborted
            });
        }
    }

    fn end_before_it_began(&mut self, number: u64, end: impl FnOnce(Option<Waker>) -> Progress) {
        let Some(Entry { entrant, progress }) = self.entries.get_mut(&number) else { return };
        let entrant = *entrant;
        match progress {
            Progress::Waiting(waker) => {
                *progress = end(waker.take());
                self.stops_waiting(number, &entrant);
            }
            Progress::Doomed(waker) => *progress = end(waker.take()),
            Progress::Begun | Progress::Aborted => {}
        }
    }
}
