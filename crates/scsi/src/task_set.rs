//! The tasks of a logical unit: their order, their maximum number, and the tasks that end together (SAM-5 5.9, 8.5 to
//! 8.8).
//!
//! While all tasks are SIMPLE and none waits, the server needs only their number for each nexus. A [`NexusTasks`]
//! counts them without shared memory between cores. When a task must wait, or other tasks must wait for it, the set is
//! closed: new commands must request a slot from its [`queue`].

mod policy;
mod queue;
#[cfg(test)]
mod tests;

pub(crate) use policy::{Interlock, OnError, Policy};
pub(crate) use queue::{Access, Refusal, WaitingCommand};

use crate::hung_commands::HungCommandCounts;
use crate::nexus_id::NexusId;
use crate::{AbortedTasks, Completion, Status, TaskAttribute};
use parking_lot::{Mutex, MutexGuard};
use queue::Queue;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The maximum number of tasks of a unit, from all nexuses: hundreds of sessions with full command windows.
pub(crate) const MAXIMUM_TASKS: u32 = 1 << 16;
/// The number of task slots that a nexus reserves at a time.
const SHARE: u32 = 64;

/// The tasks of one logical unit.
pub(crate) struct TaskSet {
    /// The bytes of the policy.
    policy: AtomicU32,
    /// True if every command must request a slot. Changes only while the state is locked.
    closed: AtomicBool,
    /// The number of free slots that neither a tally has reserved nor the queue uses. Decreases only while the state is
    /// locked.
    room: AtomicU32,
    state: Mutex<TaskSetState>,
    unfinished: HungCommandCounts,
}

#[derive(Default)]
struct TaskSetState {
    queue: Queue,
    tallies: Vec<Weak<NexusTasks>>,
}

/// The tally of one nexus: its tasks that did not request a slot.
#[repr(align(64))]
pub(crate) struct NexusTasks {
    set: Arc<TaskSet>,
    nexus: NexusId,
    /// The number of tasks in the low half; the number of reserved slots in the high half.
    tasks: AtomicU64,
}

const fn running(tasks: u64) -> u32 {
    tasks as u32
}

const fn room(tasks: u64) -> u32 {
    (tasks >> 32) as u32
}

const fn tally(running: u32, room: u32) -> u64 {
    (room as u64) << 32 | running as u64
}

/// The result of a request for a slot.
pub(crate) enum Entry {
    /// The tally counts the task, and the task need not wait.
    Plain,
    /// The queue contains the task. It may begin, or waits for [`TaskSlot::turn`].
    Queued(TaskSlot),
}

impl Default for TaskSet {
    fn default() -> Self {
        Self {
            policy: AtomicU32::new(u32::from_be_bytes(Policy::default().to_bytes())),
            closed: AtomicBool::new(false),
            room: AtomicU32::new(MAXIMUM_TASKS),
            state: Mutex::default(),
            unfinished: HungCommandCounts::default(),
        }
    }
}

impl TaskSet {
    /// Returns the commands that the store does not end.
    #[inline]
    pub(crate) fn unfinished(&self) -> &HungCommandCounts {
        &self.unfinished
    }

    fn state(&self) -> MutexGuard<'_, TaskSetState> {
        self.state.lock()
    }

    pub(crate) fn policy(&self) -> Policy {
        let bytes = self.policy.load(Ordering::Relaxed).to_be_bytes();
        Policy::from_bytes(bytes).unwrap_or_default()
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        let mut state = self.state();
        self.policy.store(u32::from_be_bytes(policy.to_bytes()), Ordering::Relaxed);
        state.queue.policy = policy;
        self.settle(&mut state);
    }

    /// Creates the tally of a nexus.
    pub(crate) fn join(self: &Arc<Self>, nexus: NexusId) -> Arc<NexusTasks> {
        let tally = Arc::new(NexusTasks { set: Arc::clone(self), nexus, tasks: AtomicU64::new(0) });
        let mut state = self.state();
        state.tallies.retain(|tally| tally.strong_count() > 0);
        state.tallies.push(Arc::downgrade(&tally));
        tally
    }

    /// Aborts the queued tasks of a lost I_T nexus. They never begin.
    pub(crate) fn leave(&self, nexus: NexusId) {
        let mut state = self.state();
        state.queue.abort(nexus, None);
        state.queue.clear_aca(nexus);
        self.settle(&mut state);
    }

    /// Closes or opens the set, and begins the tasks that may begin.
    fn settle(&self, state: &mut TaskSetState) {
        // A new task first counts itself and then reads `closed`. This function does the reverse, so that at least one
        // of the two sees the other.
        self.closed.store(!state.queue.allows_bypass(), Ordering::SeqCst);
        let TaskSetState { queue, tallies, .. } = state;
        queue.advance(|nexus| {
            tallies.iter().filter_map(Weak::upgrade).any(|tally| {
                nexus.is_none_or(|nexus| tally.nexus == nexus)
                    && running(tally.tasks.load(Ordering::SeqCst)) > 0
            })
        });
        self.closed.store(!queue.allows_bypass(), Ordering::SeqCst);
    }

    /// Executes CLEAR TASK SET by a nexus whose own tasks have ended. Returns the nexuses whose tasks end. Their queued
    /// tasks never begin.
    pub(crate) fn clear(&self, by: NexusId) -> AbortedTasks {
        if self.policy().set_for_each_nexus {
            AbortedTasks { nexuses: Vec::new(), answered: false }
        } else {
            self.clear_all(by)
        }
    }

    /// Does the same before a reset, which affects the task sets of all nexuses.
    pub(crate) fn clear_all(&self, by: NexusId) -> AbortedTasks {
        let mut state = self.state();
        let mut nexuses = state.nexuses();
        nexuses.retain(|&nexus| nexus != by);
        state.queue.doom(&nexuses, None);
        self.settle(&mut state);
        AbortedTasks { nexuses, answered: state.queue.policy.task_aborted_status }
    }

    /// Aborts tasks of a nexus on request of the transport. Those that have not begun never begin.
    pub(crate) fn abort(&self, nexus: NexusId, names: &[u64]) {
        let mut state = self.state();
        for &name in names {
            state.queue.abort(nexus, Some(name));
        }
        self.settle(&mut state);
    }

    /// Aborts all tasks of a nexus.
    pub(crate) fn abort_all(&self, nexus: NexusId) {
        let mut state = self.state();
        state.queue.abort(nexus, None);
        self.settle(&mut state);
    }

    /// Executes CLEAR ACA (SAM-5 7.4).
    pub(crate) fn clear_aca(&self, nexus: NexusId) {
        let mut state = self.state();
        state.queue.clear_aca(nexus);
        self.settle(&mut state);
    }

    /// Ends every auto contingent allegiance, for a reset.
    pub(crate) fn reset(&self) {
        let mut state = self.state();
        state.queue.clear_all_aca();
        self.settle(&mut state);
    }

    /// Reserves slots for up to `wanted` tasks. If no slot is free, takes unused slots from the tallies.
    fn take_room(&self, state: &TaskSetState, wanted: u32) -> u32 {
        if self.room.load(Ordering::Relaxed) == 0 {
            let tallies = state.tallies.iter().filter_map(Weak::upgrade);
            let spare = tallies.map(|tally| tally.give_back_room()).sum();
            self.room.fetch_add(spare, Ordering::Relaxed);
        }
        let taken = wanted.min(self.room.load(Ordering::Relaxed));
        self.room.fetch_sub(taken, Ordering::Relaxed);
        taken
    }

    fn remove(&self, number: u64) {
        let mut state = self.state();
        state.queue.remove(number);
        self.room.fetch_add(1, Ordering::Relaxed);
        self.settle(&mut state);
    }
}

impl TaskSetState {
    fn nexuses(&self) -> Vec<NexusId> {
        let tallies = self.tallies.iter().filter_map(Weak::upgrade);
        let mut nexuses: Vec<NexusId> = tallies.map(|tally| tally.nexus).collect();
        nexuses.sort_unstable();
        nexuses.dedup();
        nexuses
    }
}

impl NexusTasks {
    /// Returns the task set of the unit.
    pub(crate) fn set(&self) -> &Arc<TaskSet> {
        &self.set
    }

    /// Counts a new task in the usual case: a SIMPLE command among SIMPLE ones. Returns true if the command is a task,
    /// until [`Self::leave`].
    pub(crate) fn enter(&self) -> bool {
        let tasks = self.tasks.fetch_add(1, Ordering::SeqCst);
        if !self.set.closed.load(Ordering::SeqCst) && running(tasks) < room(tasks) {
            return true;
        }
        self.leave();
        false
    }

    /// Removes an ended task from the tally.
    #[inline]
    pub(crate) fn leave(&self) {
        self.tasks.fetch_sub(1, Ordering::SeqCst);
        if self.set.closed.load(Ordering::SeqCst) {
            self.set.settle(&mut self.set.state());
        }
    }

    /// Requests a slot, for all other commands.
    pub(crate) fn ask(self: &Arc<Self>, entrant: WaitingCommand) -> Result<Entry, Refusal> {
        let mut state = self.set.state();
        state.queue.admit(&entrant)?;
        if entrant.attribute == TaskAttribute::Simple && state.queue.allows_bypass() {
            return if self.enter_with_room(&state) {
                Ok(Entry::Plain)
            } else {
                Err(self.full(&state))
            };
        }
        if self.set.take_room(&state, 1) == 0 {
            return Err(self.full(&state));
        }
        let number = state.queue.push(entrant);
        self.set.settle(&mut state);
        drop(state);
        let is_aca = entrant.attribute == TaskAttribute::Aca;
        Ok(Entry::Queued(TaskSlot {
            tally: Arc::clone(self),
            number: Some(number),
            naca: entrant.naca,
            is_aca,
        }))
    }

    /// Returns the status for a command without a free slot (SAM-5 5.3.1).
    fn full(&self, state: &TaskSetState) -> Refusal {
        let has_tasks =
            running(self.tasks.load(Ordering::SeqCst)) > 0 || state.queue.has_tasks_of(self.nexus);
        Refusal::Status(if has_tasks { Status::TaskSetFull } else { Status::Busy })
    }

    fn enter_with_room(&self, state: &TaskSetState) -> bool {
        let mut more = 0;
        loop {
            let tasks = self.tasks.load(Ordering::SeqCst);
            let (running, room) = (running(tasks), room(tasks));
            if running >= room + more {
                more = self.set.take_room(state, SHARE);
                if more == 0 {
                    return false;
                }
                continue;
            }
            let with_one = tally(running + 1, room + more);
            let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
            if self.tasks.compare_exchange(tasks, with_one, success, failure).is_ok() {
                return true;
            }
        }
    }

    /// Releases the slots that it does not use.
    fn give_back_room(&self) -> u32 {
        let mut spare = 0;
        // The closure always returns a value, so the update cannot fail.
        let _ = self.tasks.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |tasks| {
            let used = running(tasks).min(room(tasks));
            spare = room(tasks) - used;
            Some(tally(running(tasks), used))
        });
        spare
    }

    /// Applies the effects of a task's end on other tasks: QERR, auto contingent allegiance, and tasks that the command
    /// itself ends. The caller calls it before the task leaves the set, so that no task begins in between.
    #[inline]
    pub(crate) fn end(&self, place: Option<&TaskSlot>, naca: bool, completion: &mut Completion) {
        if completion.status == Status::CheckCondition || completion.abort.is_some() {
            self.end_others(place, naca, completion);
        }
    }

    fn end_others(&self, place: Option<&TaskSlot>, naca: bool, completion: &mut Completion) {
        let failed = completion.status == Status::CheckCondition;
        let set = &self.set;
        let is_aca = place.is_some_and(|place| place.is_aca);
        let on_error = set.policy().on_error;
        if completion.abort.is_none() && !naca && !is_aca && on_error == OnError::Continue {
            return;
        }
        let mut state = set.state();
        if failed {
            // SAM-5 5.9.5: a failing command with the ACA attribute ends the allegiance that it was sent for.
            if is_aca {
                state.queue.clear_aca(self.nexus);
            }
            if naca {
                state.queue.establish_aca(self.nexus);
            }
            let for_each = state.queue.policy.set_for_each_nexus;
            let nexuses = match on_error {
                OnError::Continue => Vec::new(),
                OnError::EndAll if !for_each => state.nexuses(),
                OnError::EndAll | OnError::EndOwn => vec![self.nexus],
            };
            if !nexuses.is_empty() {
                let answered = state.queue.policy.task_aborted_status;
                completion.abort = Some(Box::new(AbortedTasks { nexuses, answered }));
            }
        }
        if let Some(abort) = &completion.abort {
            let own = place.and_then(|place| place.number);
            state.queue.doom(&abort.nexuses, own);
            // SAM-5 5.9.5: PREEMPT AND ABORT ends the allegiance of a preempted nexus.
            for &nexus in abort.nexuses.iter().filter(|&&nexus| nexus != self.nexus && !failed) {
                state.queue.clear_aca(nexus);
            }
        }
        set.settle(&mut state);
    }
}

impl Drop for NexusTasks {
    fn drop(&mut self) {
        // No lock here: the tally may have been dropped while the state is locked.
        self.set.room.fetch_add(room(*self.tasks.get_mut()), Ordering::Relaxed);
    }
}

/// The slot of a task in its set, until it is dropped.
pub(crate) struct TaskSlot {
    tally: Arc<NexusTasks>,
    /// The number of the task in the queue, if it requested a slot.
    number: Option<u64>,
    naca: bool,
    is_aca: bool,
}

impl TaskSlot {
    /// Returns the task set of the unit.
    pub(crate) fn set(&self) -> &Arc<TaskSet> {
        &self.tally.set
    }

    /// Creates the slot of a task that the tally counts already.
    pub(crate) fn in_tally(tally: &Arc<NexusTasks>, naca: bool) -> Self {
        Self { tally: Arc::clone(tally), number: None, naca, is_aca: false }
    }

    /// Returns whether the task may begin at once.
    pub(crate) fn has_begun(&self) -> bool {
        self.number.is_none_or(|number| self.tally.set.state().queue.has_begun(number))
    }

    /// Waits until the task may begin (true) or was aborted before (false).
    pub(crate) async fn turn(&self) -> bool {
        let Some(number) = self.number else { return true };
        std::future::poll_fn(|context| {
            self.tally.set.state().queue.poll_turn(number, context.waker())
        })
        .await
    }

    /// Waits until no auto contingent allegiance blocks the task that was established after its beginning.
    pub(crate) async fn unblocked(&self, entrant: &WaitingCommand) {
        std::future::poll_fn(|context| {
            self.tally.set.state().queue.poll_unblocked(entrant, context.waker())
        })
        .await;
    }

    /// Ends the task with this completion.
    pub(crate) fn end(self, mut completion: Completion) -> Completion {
        self.tally.end(Some(&self), self.naca, &mut completion);
        completion
    }
}

impl Drop for TaskSlot {
    fn drop(&mut self) {
        match self.number {
            Some(number) => self.tally.set.remove(number),
            None => self.tally.leave(),
        }
    }
}
