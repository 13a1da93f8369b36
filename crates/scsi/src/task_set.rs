//! The tasks of a logical unit: which may run beside which, how many there are, and which end with
//! which (SAM-5 5.9, 8.5 to 8.8).
//!
//! While all tasks are SIMPLE and none waits, nobody needs to know more of them than how many of
//! each nexus run: a [`NexusTasks`] counts them, which no other core touches. As soon as one task must
//! wait, or must be waited for, the set is closed: new commands ask its [`queue`].

mod policy;
mod queue;
#[cfg(test)]
mod tests;

pub(crate) use policy::{Interlock, OnError, Policy};
pub(crate) use queue::{Access, Refusal, WaitingCommand};

use crate::logical_unit::NexusId;
use crate::unended::UnfinishedCommands;
use crate::{Abort, Completion, Status, TaskAttribute};
use queue::Queue;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Tasks that a unit has at most, of all nexuses together: hundreds of sessions whose command
/// windows are full.
pub(crate) const MAXIMUM_TASKS: u32 = 1 << 16;
/// A nexus takes room for so many tasks at a time.
const SHARE: u32 = 64;

/// See the module.
pub(crate) struct TaskSet {
    /// The bytes of the policy.
    policy: AtomicU32,
    /// Every command has to ask. Changes only while the state is held.
    closed: AtomicBool,
    /// Tasks that may come beyond those for which a tally has room and those of the queue. Falls
    /// only while the state is held.
    room: AtomicU32,
    state: Mutex<TaskSetState>,
    unended: UnfinishedCommands,
}

#[derive(Default)]
struct TaskSetState {
    queue: Queue,
    tallies: Vec<Weak<NexusTasks>>,
}

/// The tasks of one nexus that did not have to ask.
#[repr(align(64))]
pub(crate) struct NexusTasks {
    set: Arc<TaskSet>,
    nexus: NexusId,
    /// How many run, in the low half; how many there is room for, in the high half.
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

/// How a command that had to ask became a task.
pub(crate) enum Entry {
    /// As one that need not ask: it is in the tally.
    Plain,
    /// It may begin, or waits for [`TaskSlot::turn`].
    Queued(TaskSlot),
}

impl Default for TaskSet {
    fn default() -> Self {
        Self {
            policy: AtomicU32::new(u32::from_be_bytes(Policy::default().to_bytes())),
            closed: AtomicBool::new(false),
            room: AtomicU32::new(MAXIMUM_TASKS),
            state: Mutex::default(),
            unended: UnfinishedCommands::default(),
        }
    }
}

impl TaskSet {
    /// Commands that the store does not end.
    #[inline]
    pub(crate) fn unended(&self) -> &UnfinishedCommands {
        &self.unended
    }

    fn state(&self) -> MutexGuard<'_, TaskSetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Begins to count the tasks of a nexus.
    pub(crate) fn join(self: &Arc<Self>, nexus: NexusId) -> Arc<NexusTasks> {
        let tally = Arc::new(NexusTasks { set: Arc::clone(self), nexus, tasks: AtomicU64::new(0) });
        let mut state = self.state();
        state.tallies.retain(|tally| tally.strong_count() > 0);
        state.tallies.push(Arc::downgrade(&tally));
        tally
    }

    /// I_T nexus loss: what waits never begins.
    pub(crate) fn leave(&self, nexus: NexusId) {
        let mut state = self.state();
        state.queue.abort(nexus, None);
        state.queue.clear_aca(nexus);
        self.settle(&mut state);
    }

    /// Closes or opens the set, and lets begin what may.
    fn settle(&self, state: &mut TaskSetState) {
        // Whoever enters counts himself and then looks; here it is the other way round. So one of
        // the two sees the other.
        self.closed.store(!state.queue.is_open(), Ordering::SeqCst);
        let TaskSetState { queue, tallies, .. } = state;
        queue.advance(|nexus| {
            tallies.iter().filter_map(Weak::upgrade).any(|tally| {
                nexus.is_none_or(|nexus| tally.nexus == nexus)
                    && running(tally.tasks.load(Ordering::SeqCst)) > 0
            })
        });
        self.closed.store(!queue.is_open(), Ordering::SeqCst);
    }

    /// CLEAR TASK SET by a nexus, whose own tasks have ended: which others end. None of those that
    /// wait will begin.
    pub(crate) fn clear(&self, by: NexusId) -> Abort {
        match self.policy().set_for_each_nexus {
            true => Abort { nexuses: Vec::new(), answered: false },
            false => self.clear_all(by),
        }
    }

    /// The same before a reset, which has no regard for whose task set it is.
    pub(crate) fn clear_all(&self, by: NexusId) -> Abort {
        let mut state = self.state();
        let mut nexuses = state.nexuses();
        nexuses.retain(|&nexus| nexus != by);
        state.queue.doom(&nexuses, None);
        self.settle(&mut state);
        Abort { nexuses, answered: state.queue.policy.task_aborted_status }
    }

    /// The transport ends tasks of a nexus: those that have not begun never will.
    pub(crate) fn abort(&self, nexus: NexusId, names: &[u64]) {
        let mut state = self.state();
        for &name in names {
            state.queue.abort(nexus, Some(name));
        }
        self.settle(&mut state);
    }

    /// The same for all tasks of a nexus.
    pub(crate) fn abort_all(&self, nexus: NexusId) {
        let mut state = self.state();
        state.queue.abort(nexus, None);
        self.settle(&mut state);
    }

    /// CLEAR ACA (SAM-5 7.3).
    pub(crate) fn clear_aca(&self, nexus: NexusId) {
        let mut state = self.state();
        state.queue.clear_aca(nexus);
        self.settle(&mut state);
    }

    /// A reset ends every auto contingent allegiance.
    pub(crate) fn reset(&self) {
        let mut state = self.state();
        state.queue.clear_all_aca();
        self.settle(&mut state);
    }

    /// Takes room for at most `wanted` tasks, from tallies that have more than they use where
    /// there is no other.
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
    /// The tasks of the unit.
    pub(crate) fn set(&self) -> &Arc<TaskSet> {
        &self.set
    }

    /// The way of almost all commands, which are SIMPLE among SIMPLE ones: true makes it a task,
    /// until [`Self::leave`].
    pub(crate) fn enter(&self) -> bool {
        let tasks = self.tasks.fetch_add(1, Ordering::SeqCst);
        if !self.set.closed.load(Ordering::SeqCst) && running(tasks) < room(tasks) {
            return true;
        }
        self.leave();
        false
    }

    /// A task of the tally has ended.
    #[inline]
    pub(crate) fn leave(&self) {
        self.tasks.fetch_sub(1, Ordering::SeqCst);
        if self.set.closed.load(Ordering::SeqCst) {
            self.set.settle(&mut self.set.state());
        }
    }

    /// The way of all other commands.
    pub(crate) fn ask(self: &Arc<Self>, entrant: WaitingCommand) -> Result<Entry, Refusal> {
        let mut state = self.set.state();
        state.queue.admit(&entrant)?;
        if entrant.attribute == TaskAttribute::Simple && state.queue.is_open() {
            return match self.enter_with_room(&state) {
                true => Ok(Entry::Plain),
                false => Err(self.full(&state)),
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

    /// SAM-5 5.3.1: what a nexus is told for which there is no room.
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

    /// Gives up the room that it does not use.
    fn give_back_room(&self) -> u32 {
        let mut spare = 0;
        // The closure always gives a value, so the update cannot fail.
        let _ = self.tasks.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |tasks| {
            let used = running(tasks).min(room(tasks));
            spare = room(tasks) - used;
            Some(tally(running(tasks), used))
        });
        spare
    }

    /// What the end of a task does to others: QERR, auto contingent allegiance, and what a command
    /// itself ends. To be called before the task leaves, so that nothing begins in between.
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
            // SAM-5 5.9.5: a command with the ACA attribute that fails ends what it was sent for.
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
                completion.abort = Some(Box::new(Abort { nexuses, answered }));
            }
        }
        if let Some(abort) = &completion.abort {
            let own = place.and_then(|place| place.number);
            state.queue.doom(&abort.nexuses, own);
            // SAM-5 5.9.5: PREEMPT AND ABORT frees a set from the nexus that it was held up for.
            for &nexus in abort.nexuses.iter().filter(|&&nexus| nexus != self.nexus && !failed) {
                state.queue.clear_aca(nexus);
            }
        }
        set.settle(&mut state);
    }
}

impl Drop for NexusTasks {
    fn drop(&mut self) {
        // Not under the lock: this may be the end of one that was looked at under it.
        self.set.room.fetch_add(room(*self.tasks.get_mut()), Ordering::Relaxed);
    }
}

/// A task's place in its set, until this is dropped.
pub(crate) struct TaskSlot {
    tally: Arc<NexusTasks>,
    /// Its number in the queue, where it had to ask.
    number: Option<u64>,
    naca: bool,
    is_aca: bool,
}

impl TaskSlot {
    /// The tasks of the unit.
    pub(crate) fn set(&self) -> &Arc<TaskSet> {
        &self.tally.set
    }

    /// The place of a task that is in the tally already.
    pub(crate) fn in_tally(tally: &Arc<NexusTasks>, naca: bool) -> Self {
        Self { tally: Arc::clone(tally), number: None, naca, is_aca: false }
    }

    /// Whether it may begin at once.
    pub(crate) fn has_begun(&self) -> bool {
        self.number.is_none_or(|number| self.tally.set.state().queue.has_begun(number))
    }

    /// Waits until it may begin (true), or was ended before that (false).
    pub(crate) async fn turn(&self) -> bool {
        let Some(number) = self.number else { return true };
        std::future::poll_fn(|context| {
            self.tally.set.state().queue.poll_turn(number, context.waker())
        })
        .await
    }

    /// Waits until no auto contingent allegiance holds the task up that was established since it began.
    pub(crate) async fn unblocked(&self, entrant: &WaitingCommand) {
        std::future::poll_fn(|context| {
            self.tally.set.state().queue.poll_unblocked(entrant, context.waker())
        })
        .await;
    }

    /// The task has ended, with this.
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
