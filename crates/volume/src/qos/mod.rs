//! Quality of service: maximum rates of volumes and hosts, and weights and reserved rates for the time when more
//! commands wait than the server runs at once.
//!
//! A command occupies its session's command window and memory while it waits. If a session uses several units, the
//! waiting commands of one unit may occupy three quarters of both; further ones are rejected ([`Admit::Full`]).
//!
//! A command skips all of this if neither its volume nor its host has a limit, and no volume or host has a weight or a
//! reserved rate.

mod account;
mod bucket;
mod dispatch;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tokio::sync::Notify;

pub use self::account::{Account, Cost};
use self::account::{Charge, ChargedAccounts};
pub use self::dispatch::DispatchSlot;
use self::dispatch::Dispatcher;
use crate::Clock;

/// A command costs one unit, and one more for each of so many bytes.
const BYTES_OF_UNIT: u64 = 32 << 10;

/// The weight of volumes and hosts without one.
pub const DEFAULT_WEIGHT: u64 = 100;
/// The default burst window.
const BURST: Duration = Duration::from_secs(1);

/// The quality of service of a volume or a host. The default has no limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Maximum number of commands a second.
    pub iops: Option<NonZeroU64>,
    /// Maximum number of bytes a second.
    pub bandwidth: Option<NonZeroU64>,
    /// The burst window: for how long unused commands and bytes are saved.
    pub burst: Option<Duration>,
    /// The weight, relative to others.
    pub weight: Option<NonZeroU64>,
    /// Commands a second that start before those of others.
    pub reserved_iops: Option<NonZeroU64>,
}

impl Rates {
    /// Returns whether there is a maximum rate.
    pub fn has_limits(&self) -> bool {
        self.iops.is_some() || self.bandwidth.is_some()
    }

    /// Returns whether there is a weight or a reserved rate.
    pub fn has_claims(&self) -> bool {
        self.weight.is_some() || self.reserved_iops.is_some()
    }

    /// Returns the burst window.
    fn burst(&self) -> Duration {
        self.burst.unwrap_or(BURST)
    }
}

/// See the module.
pub struct Qos {
    clock: Arc<dyn Clock>,
    dispatcher: Arc<Dispatcher>,
    /// Wakes waiting commands when limits have changed.
    changed: Arc<Notify>,
    /// Counts the changes of hosts.
    generation: AtomicU64,
    state: RwLock<QosState>,
}

#[derive(Default)]
struct QosState {
    by_volume: BTreeMap<String, Rates>,
    /// The accounts of volumes that are in use.
    volumes: BTreeMap<String, Arc<Account>>,
    /// The hosts that have a limit, a weight or a reserved rate, in the order of [`Qos::set`].
    hosts: Vec<(String, Arc<Account>)>,
    /// Every command must be admitted, whatever its volume.
    is_general: bool,
}

/// The waiting commands of a session.
#[derive(Debug, Default)]
pub struct Queue {
    commands: AtomicUsize,
    bytes: AtomicUsize,
}

/// The part of a session's window and memory that waiting commands may occupy.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimit {
    /// Maximum number of commands.
    pub commands: usize,
    /// Maximum number of bytes.
    pub bytes: usize,
}

impl QueueLimit {
    /// Three quarters of the window and of the memory.
    pub const fn three_quarters_of(commands: usize, bytes: usize) -> Self {
        Self { commands: commands - commands / 4, bytes: bytes - bytes / 4 }
    }
}

/// A waiting command of a [`Queue`].
struct Queued {
    queue: Arc<Queue>,
    bytes: usize,
}

impl Queued {
    fn new(queue: Arc<Queue>, bytes: usize) -> Self {
        queue.commands.fetch_add(1, Ordering::Relaxed);
        queue.bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { queue, bytes }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.queue.commands.fetch_sub(1, Ordering::Relaxed);
        self.queue.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The decision about a command that must be admitted.
pub enum Admit {
    /// It runs now.
    Now,
    /// Too many commands wait already.
    Full,
    /// It waits; see [`Wait::wait_until_runnable`].
    After(Wait),
}

/// The wait of a command for its limits and for a slot.
pub struct Wait {
    charges: Vec<Charge>,
    parties: ChargedAccounts,
    cost: Cost,
    clock: Arc<dyn Clock>,
    dispatcher: Arc<Dispatcher>,
    changed: Arc<Notify>,
    _queued: Queued,
}

impl Wait {
    /// Waits until the command may run. The caller keeps the slot until the command has ended.
    pub async fn wait_until_runnable(self) -> Option<DispatchSlot> {
        let Self { charges, parties, cost, clock, dispatcher, changed, _queued } = self;
        loop {
            // Registered before the limits are read, so that no change is missed.
            let changed = changed.notified();
            let now = clock.now();
            let left = longest(&charges, now);
            if left.is_zero() {
                break;
            }
            tokio::select! {
                () = clock.sleep_until(now + left) => {}
                () = changed => {}
            }
        }
        let place = if dispatcher.is_on() {
            dispatcher.acquire_slot(&parties, cost.units()).await
        } else {
            None
        };
        charges.into_iter().for_each(Charge::spend);
        place
    }
}

fn longest(charges: &[Charge], now: Instant) -> Duration {
    charges.iter().map(|charge| charge.left(now)).max().unwrap_or_default()
}

impl Cost {
    const fn units(self) -> u64 {
        1 + self.bytes / BYTES_OF_UNIT
    }
}

impl Qos {
    /// Creates limits without any rate.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            dispatcher: Arc::new(Dispatcher::new(clock.clone())),
            clock,
            changed: Arc::default(),
            generation: AtomicU64::new(0),
            state: RwLock::default(),
        }
    }

    /// Applies the rates of volumes and hosts, by name, and the number of slots, to waiting commands as well.
    pub fn set(&self, by_volume: BTreeMap<String, Rates>, hosts: &[(String, Rates)], slots: usize) {
        let now = self.clock.now();
        let mut state = self.state.write();
        let is_used = |(_, rates): &&(_, Rates)| rates.has_limits() || rates.has_claims();
        let mut known = std::mem::take(&mut state.hosts);
        state.hosts = hosts
            .iter()
            .filter(is_used)
            .map(|(name, rates)| {
                let same = known.iter().position(|(other, _)| other == name);
                let account = same.map(|same| known.swap_remove(same).1);
                let account = account.unwrap_or_else(|| Arc::new(Account::new(&self.clock)));
                account.set(rates, now);
                (name.clone(), account)
            })
            .collect();
        // Commands that wait for a host that was deleted, or has no limit any more, may run.
        known.iter().for_each(|(_, account)| account.set(&Rates::default(), now));
        let claims = by_volume.values().chain(hosts.iter().map(|(_, rates)| rates));
        let has_claims = { claims }.any(Rates::has_claims);
        state.is_general = has_claims || !state.hosts.is_empty();
        state.by_volume = by_volume;
        let QosState { by_volume, volumes, is_general, .. } = &mut *state;
        // Accounts in use are referenced by connections.
        volumes
            .retain(|name, account| by_volume.contains_key(name) || Arc::strong_count(account) > 1);
        for (name, account) in volumes {
            let rates = by_volume.get(name).copied().unwrap_or_default();
            account.set(&rates, now);
            account.govern(*is_general || rates.has_limits());
        }
        drop(state);
        self.generation.fetch_add(1, Ordering::Release);
        self.dispatcher.set(has_claims.then_some(slots), now);
        self.changed.notify_waiters();
    }

    /// Returns a volume's account.
    pub fn volume(&self, name: &str) -> Arc<Account> {
        let mut state = self.state.write();
        let QosState { by_volume, volumes, is_general, .. } = &mut *state;
        let account = volumes.entry(name.to_owned()).or_insert_with(|| {
            let rates = by_volume.get(name).copied().unwrap_or_default();
            let account = Account::new(&self.clock);
            account.set(&rates, self.clock.now());
            account.govern(*is_general || rates.has_limits());
            Arc::new(account)
        });
        account.clone()
    }

    /// Returns a number that changes whenever the result of [`Self::host`] may change.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the account of the first host whose name meets a condition.
    pub fn host(&self, is_of: impl Fn(&str) -> bool) -> Option<Arc<Account>> {
        let state = self.state.read();
        state.hosts.iter().find(|(name, _)| is_of(name)).map(|(_, account)| account.clone())
    }

    /// Decides about a command to a volume whose commands must be admitted. With `room`, waiting commands may occupy no
    /// more than that.
    pub fn admit(
        &self,
        volume: &Arc<Account>,
        host: Option<&Arc<Account>>,
        cost: impl FnOnce() -> Cost,
        queue: &Arc<Queue>,
        room: Option<QueueLimit>,
    ) -> Admit {
        if host.is_none() && !volume.is_limited() && !self.dispatcher.is_on() {
            return Admit::Now;
        }
        let (cost, now) = (cost(), self.clock.now());
        let parties = ChargedAccounts::new(volume.clone(), host.cloned());
        let charge = |account: &Arc<Account>| Charge::new(account.clone(), cost, now);
        let charges: Vec<Charge> = parties.accounts().map(charge).collect();
        if longest(&charges, now).is_zero() && !self.dispatcher.is_on() {
            charges.into_iter().for_each(Charge::spend);
            return Admit::Now;
        }
        let bytes = usize::try_from(cost.bytes).unwrap_or(usize::MAX);
        let is_full = |room: QueueLimit| {
            let commands = queue.commands.load(Ordering::Relaxed);
            let held = queue.bytes.load(Ordering::Relaxed);
            commands >= room.commands || commands > 0 && held.saturating_add(bytes) > room.bytes
        };
        if room.is_some_and(is_full) {
            return Admit::Full;
        }
        let _queued = Queued::new(queue.clone(), bytes);
        let (clock, dispatcher) = (self.clock.clone(), self.dispatcher.clone());
        let changed = self.changed.clone();
        Admit::After(Wait { charges, parties, cost, clock, dispatcher, changed, _queued })
    }
}
