//! Who is served next while more is asked for than the server carries out at once. Below that nobody
//! waits here. Above it, whoever has not had his minimum goes first; the others go by start-time fair
//! queuing over so many places: whose share is twice another's is served twice as much, and none that
//! waits is passed by for ever.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sarsen_io::time;
use tokio::sync::oneshot;

use super::account::Parties;

/// See the module.
#[derive(Default)]
pub(super) struct Dispatcher {
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Commands that are carried out at once.
    places: usize,
    taken: usize,
    /// What waits, by those whom it is for. None is empty.
    flows: BTreeMap<(u64, u64), Flow>,
    /// The tag of what was begun last.
    now_served: u64,
}

struct Flow {
    parties: Parties,
    queue: VecDeque<Waiting>,
}

struct Waiting {
    tag: u64,
    go: oneshot::Sender<Place>,
}

/// A command's leave to be carried out; when this is dropped, another may.
#[derive(Debug)]
pub(crate) struct Place(Option<Arc<Dispatcher>>);

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dispatcher")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(dispatcher) = self.0.take() {
            dispatcher.state().taken -= 1;
            dispatcher.serve(time::now());
        }
    }
}

impl Dispatcher {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// From here on so many commands are carried out at once; without a number, all of them.
    pub(super) fn set(self: &Arc<Self>, places: Option<usize>, now: Instant) {
        self.is_on.store(places.is_some(), Ordering::Relaxed);
        self.state().places = places.unwrap_or(usize::MAX);
        self.serve(now);
    }

    /// Asks for a place for a command of that weight; gives it, or what it will come by.
    pub(super) fn enter(
        self: &Arc<Self>,
        parties: &Parties,
        weight: u64,
        now: Instant,
    ) -> Result<Place, oneshot::Receiver<Place>> {
        let mut state = self.state();
        let tag = parties.take_tag(state.now_served, weight);
        if state.taken < state.places && state.flows.is_empty() {
            state.taken += 1;
            state.now_served = state.now_served.max(tag);
            parties.take_minimum(now);
            return Ok(Place(Some(self.clone())));
        }
        let (go, waiting) = oneshot::channel();
        let flow = state
            .flows
            .entry(parties.key())
            .or_insert_with(|| Flow { parties: parties.clone(), queue: VecDeque::new() });
        flow.queue.push_back(Waiting { tag, go });
        drop(state);
        // Those that were to go may have gone away meanwhile.
        self.serve(now);
        Err(waiting)
    }

    /// Gives places to those that wait.
    fn serve(self: &Arc<Self>, now: Instant) {
        loop {
            let mut state = self.state();
            let Some(next) = state.next(now) else { return };
            state.taken += 1;
            drop(state);
            // One that was aborted does not take it.
            if let Err(mut place) = next.go.send(Place(Some(self.clone()))) {
                place.0 = None;
                self.state().taken -= 1;
            }
        }
    }
}

impl State {
    fn next(&mut self, now: Instant) -> Option<Waiting> {
        if self.taken >= self.places {
            return None;
        }
        let tag = |flow: &Flow| flow.queue.front().map_or(u64::MAX, |first| first.tag);
        let flows = || self.flows.iter();
        let has_claim = |flow: &Flow| flow.parties.has_minimum(now);
        let claimed = flows().filter(|(_, flow)| has_claim(flow)).min_by_key(|(_, flow)| tag(flow));
        let (&key, _) = claimed.or_else(|| flows().min_by_key(|(_, flow)| tag(flow)))?;
        let flow = self.flows.get_mut(&key)?;
        let next = flow.queue.pop_front()?;
        flow.parties.take_minimum(now);
        if flow.queue.is_empty() {
            self.flows.remove(&key);
        }
        self.now_served = self.now_served.max(next.tag);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::super::account::Account;
    use super::*;
    use crate::config::QosConfig;

    fn parties(share: u64, minimum: u64, now: Instant) -> Parties {
        let account = Account::new(now);
        let qos = QosConfig {
            share: NonZeroU64::new(share),
            minimum_iops: NonZeroU64::new(minimum),
            ..QosConfig::default()
        };
        account.set(&qos, now);
        Parties::new(Arc::new(account), None)
    }

    fn of_places(count: usize, now: Instant) -> Arc<Dispatcher> {
        let dispatcher: Arc<Dispatcher> = Arc::default();
        dispatcher.set(Some(count), now);
        dispatcher
    }

    type Waiters = Vec<(usize, oneshot::Receiver<Place>)>;

    /// Who goes next, when one of those that are served has ended.
    fn next(waiting: &mut Waiters, served: Place) -> (usize, Place) {
        drop(served);
        let arrived = |(_, waiter): &mut (usize, oneshot::Receiver<Place>)| waiter.try_recv().ok();
        let found = waiting.iter_mut().enumerate().find_map(|(at, one)| Some((at, arrived(one)?)));
        let (at, place) = found.expect("somebody goes");
        (waiting.swap_remove(at).0, place)
    }

    #[test]
    fn nobody_waits_while_there_are_places() {
        let now = time::now();
        let dispatcher = of_places(2, now);
        let one = parties(100, 0, now);
        let first = dispatcher.enter(&one, 1, now).expect("a place");
        let _second = dispatcher.enter(&one, 1, now).expect("a place");
        let mut third = dispatcher.enter(&one, 1, now).expect_err("none is left");
        assert!(third.try_recv().is_err());
        drop(first);
        assert!(third.try_recv().is_ok());
    }

    #[test]
    fn what_waits_is_served_by_share_however_much_of_it_there_is() {
        let now = time::now();
        let dispatcher = of_places(1, now);
        let shares = [(100, 0), (300, 0)].map(|(share, minimum)| parties(share, minimum, now));
        let mut place = dispatcher.enter(&parties(100, 0, now), 1, now).expect("the first");
        let mut waiting: Waiters = Vec::new();
        for _ in 0..400 {
            waiting.push((0, dispatcher.enter(&shares[0], 1, now).expect_err("it waits")));
        }
        for _ in 0..100 {
            waiting.push((1, dispatcher.enter(&shares[1], 1, now).expect_err("it waits")));
        }
        let mut served = [0, 0];
        for _ in 0..80 {
            let (who, next) = next(&mut waiting, place);
            served[who] += 1;
            place = next;
        }
        assert!((58..=62).contains(&served[1]), "{served:?}");
    }

    #[test]
    fn a_minimum_goes_ahead_of_others_and_no_further() {
        let now = time::now();
        let mut state = State { places: usize::MAX, ..State::default() };
        for (parties, count) in [(parties(10_000, 0, now), 2000), (parties(1, 1000, now), 500)] {
            let waiting = |_| Waiting { tag: parties.take_tag(0, 1), go: oneshot::channel().0 };
            let queue = (0..count).map(waiting).collect();
            state.flows.insert(parties.key(), Flow { parties, queue });
        }
        let quiet = *state.flows.keys().next_back().expect("two");
        // A store that carries out 10,000 a second, for a tenth of one.
        for command in 0..1000 {
            assert!(state.next(now + Duration::from_micros(100) * command).is_some());
        }
        let served = 500 - state.flows[&quiet].queue.len();
        assert!((105..=115).contains(&served), "{served}: a hundred, and what was saved");
    }

    #[test]
    fn what_is_aborted_takes_no_place_and_all_go_when_it_is_turned_off() {
        let now = time::now();
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
