//! The order of commands while more wait than the server has slots. With a free slot no command waits here. Otherwise
//! commands within a reserved rate start first. The others follow start-time fair queuing by weight: twice the weight
//! gets twice the service, and no command waits for ever.
//!
//! A store that is slow or hangs delays only its own volume. No volume can use all slots, and a command that runs for
//! long releases its slot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::account::ChargedAccounts;
use crate::Clock;

/// One slot of so many, and at least one, is reserved for other volumes than the one that uses the rest.
const LEFT_TO_OTHERS: usize = 8;
/// A command that runs for so long releases its slot: its store may hang.
const LONG: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Dispatcher {
    clock: Arc<dyn Clock>,
    is_on: AtomicBool,
    state: Mutex<DispatcherState>,
}

#[derive(Default)]
struct DispatcherState {
    /// Number of slots.
    slots: usize,
    /// The commands that occupy a slot: start time and number of each.
    taken: BTreeSet<(Instant, u64)>,
    last_number: u64,
    /// Number of running commands of each volume, those without a slot included.
    under_way: BTreeMap<u64, usize>,
    /// The waiting commands by volume and host. No flow is empty.
    flows: BTreeMap<(u64, u64), Flow>,
    /// The start tag of the command that started last.
    now_served: u64,
}

struct Flow {
    parties: ChargedAccounts,
    queue: VecDeque<Waiting>,
}

struct Waiting {
    tag: u64,
    go: oneshot::Sender<DispatchSlot>,
}

/// The slot of a running command. Dropping it releases the slot and starts the next command.
#[derive(Debug)]
pub struct DispatchSlot {
    dispatcher: Option<Arc<Dispatcher>>,
    volume: u64,
    begun: (Instant, u64),
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dispatcher")
    }
}

impl DispatchSlot {
    /// Releases the slot without starting another command.
    fn forget(mut self) {
        if let Some(dispatcher) = self.dispatcher.take() {
            dispatcher.state().end(self.volume, self.begun);
        }
    }
}

impl Drop for DispatchSlot {
    fn drop(&mut self) {
        if let Some(dispatcher) = self.dispatcher.take() {
            dispatcher.state().end(self.volume, self.begun);
            dispatcher.serve(dispatcher.clock.now());
        }
    }
}

impl Dispatcher {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, is_on: AtomicBool::new(false), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, DispatcherState> {
        self.state.lock()
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Sets the number of slots. `None` turns the order off.
    pub(super) fn set(self: &Arc<Self>, slots: Option<usize>, now: Instant) {
        self.is_on.store(slots.is_some(), Ordering::Relaxed);
        self.state().slots = slots.unwrap_or(usize::MAX);
        self.serve(now);
    }

    /// Requests a slot for a command of so many units. Returns the slot, or the channel that will deliver it.
    fn enter(
        self: &Arc<Self>,
        parties: &ChargedAccounts,
        units: u64,
        now: Instant,
    ) -> Result<DispatchSlot, oneshot::Receiver<DispatchSlot>> {
        let mut state = self.state();
        let tag = parties.take_tag(state.now_served, units);
        state.forget_long(now);
        if state.flows.is_empty() && state.has_room(parties, now) {
            return Ok(self.take(&mut state, parties, tag, now));
        }
        let (go, waiting) = oneshot::channel();
        let flow = state
            .flows
            .entry(parties.key())
            .or_insert_with(|| Flow { parties: parties.clone(), queue: VecDeque::new() });
        flow.queue.push_back(Waiting { tag, go });
        drop(state);
        // Commands at the head of the queue may have been aborted meanwhile.
        self.serve(now);
        Err(waiting)
    }

    /// Waits for a slot for a command of so many units.
    pub(super) async fn acquire_slot(
        self: &Arc<Self>,
        parties: &ChargedAccounts,
        units: u64,
    ) -> Option<DispatchSlot> {
        let mut waiting = match self.enter(parties, units, self.clock.now()) {
            Ok(slot) => return Some(slot),
            Err(waiting) => waiting,
        };
        loop {
            tokio::select! {
                biased;
                slot = &mut waiting => return slot.ok(),
                // If all running commands hang, none of them ends and starts the next one.
                () = self.clock.sleep_until(self.clock.now() + LONG) => self.serve(self.clock.now()),
            }
        }
    }

    fn take(
        self: &Arc<Self>,
        state: &mut DispatcherState,
        parties: &ChargedAccounts,
        tag: u64,
        now: Instant,
    ) -> DispatchSlot {
        let volume = parties.volume();
        state.now_served = state.now_served.max(tag);
        state.last_number += 1;
        let begun = (now, state.last_number);
        state.taken.insert(begun);
        *state.under_way.entry(volume).or_default() += 1;
        parties.take_reserved(now);
        DispatchSlot { dispatcher: Some(self.clone()), volume, begun }
    }

    /// Starts waiting commands while there are slots.
    fn serve(self: &Arc<Self>, now: Instant) {
        loop {
            let mut state = self.state();
            state.forget_long(now);
            let Some((parties, next)) = state.next(now) else { return };
            let slot = self.take(&mut state, &parties, next.tag, now);
            drop(state);
            // The command was aborted just now.
            if let Err(slot) = next.go.send(slot) {
                slot.forget();
            }
        }
    }
}

impl DispatcherState {
    fn end(&mut self, volume: u64, begun: (Instant, u64)) {
        self.taken.remove(&begun);
        if let Some(count) = self.under_way.get_mut(&volume) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&volume);
            }
        }
    }

    /// Releases the slots of commands that run for long.
    fn forget_long(&mut self, now: Instant) {
        while self.taken.first().is_some_and(|(begun, _)| *begun + LONG <= now) {
            self.taken.pop_first();
        }
    }

    /// Returns whether a command of these accounts may start. With a reserved rate, one may start without a slot.
    fn has_room(&self, parties: &ChargedAccounts, now: Instant) -> bool {
        let under_way = self.under_way.get(&parties.volume()).copied().unwrap_or(0);
        let most = self.slots - (self.slots / LEFT_TO_OTHERS).max(1);
        under_way < most.max(1)
            && (self.taken.len() < self.slots || under_way == 0 && parties.has_reserved(now))
    }

    /// Removes and returns the command that starts next. Aborted commands are skipped.
    fn next(&mut self, now: Instant) -> Option<(ChargedAccounts, Waiting)> {
        self.flows.retain(|_, flow| {
            while flow.queue.front().is_some_and(|first| first.go.is_closed()) {
                flow.queue.pop_front();
            }
            !flow.queue.is_empty()
        });
        let tag = |flow: &Flow| flow.queue.front().map_or(u64::MAX, |first| first.tag);
        let flows = || self.flows.iter().filter(|(_, flow)| self.has_room(&flow.parties, now));
        let has_claim = |flow: &Flow| flow.parties.has_reserved(now);
        let claimed = flows().filter(|(_, flow)| has_claim(flow)).min_by_key(|(_, flow)| tag(flow));
        let (&key, _) = claimed.or_else(|| flows().min_by_key(|(_, flow)| tag(flow)))?;
        let flow = self.flows.get_mut(&key)?;
        Some((flow.parties.clone(), flow.queue.pop_front()?))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::super::Rates;
    use super::super::account::Account;
    use super::*;
    use crate::testing::{clock, now};

    fn parties(weight: u64, minimum: u64, now: Instant) -> ChargedAccounts {
        let account = Account::new(&clock());
        let rates = Rates {
            weight: NonZeroU64::new(weight),
            reserved_iops: NonZeroU64::new(minimum),
            ..Rates::default()
        };
        account.set(&rates, now);
        ChargedAccounts::new(Arc::new(account), None)
    }

    fn account() -> Arc<Account> {
        Arc::new(Account::new(&clock()))
    }

    fn of_places(count: usize, now: Instant) -> Arc<Dispatcher> {
        let dispatcher = Arc::new(Dispatcher::new(clock()));
        dispatcher.set(Some(count), now);
        dispatcher
    }

    type Waiters = Vec<(usize, oneshot::Receiver<DispatchSlot>)>;

    /// Who goes next, when one of those that are served has ended.
    fn next(waiting: &mut Waiters, served: DispatchSlot) -> (usize, DispatchSlot) {
        drop(served);
        let arrived =
            |(_, waiter): &mut (usize, oneshot::Receiver<DispatchSlot>)| waiter.try_recv().ok();
        let found = waiting.iter_mut().enumerate().find_map(|(at, one)| Some((at, arrived(one)?)));
        let (at, place) = found.expect("somebody goes");
        (waiting.swap_remove(at).0, place)
    }

    #[test]
    fn commands_do_not_wait_while_slots_are_free() {
        let now = now();
        let dispatcher = of_places(2, now);
        let [one, other] = [0; 2].map(|_| parties(100, 0, now));
        let first = dispatcher.enter(&one, 1, now).expect("a place");
        let _second = dispatcher.enter(&other, 1, now).expect("a place");
        let mut third = dispatcher.enter(&one, 1, now).expect_err("none is left");
        assert!(third.try_recv().is_err());
        drop(first);
        assert!(third.try_recv().is_ok());
    }

    #[test]
    fn waiting_commands_are_served_by_weight() {
        let now = now();
        let dispatcher = of_places(1, now);
        let weights = [(100, 0), (300, 0)].map(|(weight, minimum)| parties(weight, minimum, now));
        let mut place = dispatcher.enter(&parties(100, 0, now), 1, now).expect("the first");
        let mut waiting: Waiters = Vec::new();
        for _ in 0..400 {
            waiting.push((0, dispatcher.enter(&weights[0], 1, now).expect_err("it waits")));
        }
        for _ in 0..100 {
            waiting.push((1, dispatcher.enter(&weights[1], 1, now).expect_err("it waits")));
        }
        let mut served = [0, 0];
        for _ in 0..80 {
            let (who, next) = next(&mut waiting, place);
            served[who] += 1;
            place = next;
        }
        assert!((58..=62).contains(&served[1]), "{served:?}");
    }

    fn charged(volume: &Arc<Account>, host: &Arc<Account>) -> ChargedAccounts {
        ChargedAccounts::new(volume.clone(), Some(host.clone()))
    }

    #[test]
    fn a_command_to_a_busy_volume_does_not_put_its_host_behind_on_others() {
        let now = now();
        let dispatcher = of_places(1, now);
        let [busy, idle, host, other] = std::array::from_fn(|_| account());
        let mut place = dispatcher.enter(&charged(&busy, &other), 1, now).expect("the first");
        let mut waiting: Waiters = Vec::new();
        let mut wait = |who: usize, parties: ChargedAccounts| {
            waiting.push((who, dispatcher.enter(&parties, 1, now).expect_err("it waits")));
        };
        (0..100).for_each(|_| wait(0, charged(&busy, &other)));
        wait(1, charged(&busy, &host));
        (0..10).for_each(|_| wait(2, charged(&idle, &host)));
        let mut served = [0; 3];
        for _ in 0..30 {
            let (who, next) = next(&mut waiting, place);
            served[who] += 1;
            place = next;
        }
        assert_eq!(served[2], 10, "{served:?}");
    }

    #[test]
    fn reserved_iops_precede_others_up_to_their_rate() {
        let now = now();
        let mut state = DispatcherState { slots: usize::MAX, ..DispatcherState::default() };
        let mut waiters = Vec::new();
        for (parties, count) in [(parties(10_000, 0, now), 2000), (parties(1, 1000, now), 500)] {
            let waiting = |_| {
                let (go, waiter) = oneshot::channel();
                waiters.push(waiter);
                Waiting { tag: parties.take_tag(0, 1), go }
            };
            let queue = (0..count).map(waiting).collect();
            state.flows.insert(parties.key(), Flow { parties, queue });
        }
        let quiet = *state.flows.keys().next_back().expect("two");
        // A store that carries out 10,000 a second, for a tenth of one.
        for command in 0..1000 {
            let now = now + Duration::from_micros(100) * command;
            let (parties, _) = state.next(now).expect("all wait");
            parties.take_reserved(now);
        }
        let served = 500 - state.flows[&quiet].queue.len();
        assert!((105..=115).contains(&served), "{served}: a hundred, and what was saved");
    }

    #[test]
    fn aborted_command_uses_no_reserved_iops() {
        let claims = parties(1, 100, now());
        let now = now();
        let dispatcher = of_places(1, now);
        let _first = dispatcher.enter(&parties(100, 0, now), 1, now).expect("the first");
        claims.take_reserved(now);
        for _ in 0..3 {
            drop(dispatcher.enter(&claims, 1, now).expect_err("it waits"));
        }
        let later = now + Duration::from_millis(10);
        dispatcher.serve(later);
        assert!(claims.has_reserved(later), "one has come in since");
    }

    #[test]
    fn no_volume_has_all_places() {
        let now = now();
        let dispatcher = of_places(8, now);
        let [hung, other, third] = [0; 3].map(|_| parties(100, 0, now));
        let _held: Vec<_> =
            (0..7).map(|_| dispatcher.enter(&hung, 1, now).expect("a place")).collect();
        let mut waiting = dispatcher.enter(&hung, 1, now).expect_err("the last is left to others");
        let mut gone = dispatcher.enter(&other, 1, now).expect_err("others wait");
        let place = gone.try_recv().expect("it need not wait");
        assert!(waiting.try_recv().is_err());
        let mut late = dispatcher.enter(&third, 1, now).expect_err("none is left");
        assert!(late.try_recv().is_err());
        dispatcher.serve(now + LONG);
        assert!(late.try_recv().is_ok(), "what takes long takes no place");
        assert!(waiting.try_recv().is_err(), "its volume has as many as it may");
        drop(place);
    }

    #[test]
    fn aborted_command_takes_no_slot_and_disabling_releases_all() {
        let now = now();
        let dispatcher = of_places(1, now);
        let one = parties(100, 0, now);
        let first = dispatcher.enter(&one, 1, now).expect("a place");
        drop(dispatcher.enter(&one, 1, now).expect_err("it waits"));
        let mut third = dispatcher.enter(&one, 1, now).expect_err("it waits");
        let mut fourth = dispatcher.enter(&one, 1, now).expect_err("it waits");
        drop(first);
        let _third = third.try_recv().expect("after the one that is gone");
        assert!(fourth.try_recv().is_err());
        dispatcher.set(None, now);
        assert!(fourth.try_recv().is_ok());
        assert!(!dispatcher.is_on());
    }
}
