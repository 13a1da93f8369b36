//! Quality of service: maximum rates of volumes and hosts, and weights and reserved rates for the time when more
//! commands wait than the server runs at once.
//!
//! A command waits as a task of its logical unit ([`sarsen_scsi::NexusHandle::begin_after`]), so that the task
//! attributes and task management apply to it. It occupies its session's command window and memory while it waits. If a
//! session uses several units, the waiting commands of one unit may occupy three quarters of both. The response to
//! further ones is TASK SET FULL.
//!
//! A command skips all of this if neither its volume nor its host has a limit, and no volume or host has a weight or a
//! reserved rate.

mod account;
mod bucket;
mod dispatch;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use sarsen_io::time;
use tokio::sync::Notify;

pub(crate) use self::account::{Account, Cost};
use self::account::{Charge, ChargedAccounts};
use self::dispatch::{DispatchSlot, Dispatcher};
use crate::config::{Config, HostConfig, QosConfig};
use crate::tls::ClientCertificate;

/// A command costs one unit, and one more for each of so many bytes.
const BYTES_OF_UNIT: u64 = 32 << 10;

/// See the module.
#[derive(Default)]
pub(crate) struct Qos {
    dispatcher: Arc<Dispatcher>,
    /// Wakes waiting commands when limits have changed.
    changed: Arc<Notify>,
    /// Counts the changes of hosts.
    generation: AtomicU64,
    state: RwLock<QosState>,
}

#[derive(Default)]
struct QosState {
    by_volume: BTreeMap<String, QosConfig>,
    /// The accounts of volumes that are in use.
    volumes: BTreeMap<String, Arc<Account>>,
    /// The hosts that have a limit, a weight or a reserved rate, in the configuration's order.
    hosts: Vec<(HostConfig, Arc<Account>)>,
    /// Every command must be admitted, whatever its volume.
    is_general: bool,
}

/// The properties of a connection's initiator by which hosts are found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer<'a> {
    pub(crate) initiator: &'a str,
    pub(crate) address: IpAddr,
    pub(crate) account: Option<&'a str>,
    pub(crate) certificate: Option<&'a ClientCertificate>,
}

/// The waiting commands of a session.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    commands: AtomicUsize,
    bytes: AtomicUsize,
}

/// The part of a session's window and memory that waiting commands may occupy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimit {
    pub(crate) commands: usize,
    pub(crate) bytes: usize,
}

impl QueueLimit {
    /// Three quarters of the window and of the memory.
    pub(crate) const fn three_quarters_of(commands: usize, bytes: usize) -> Self {
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
pub(crate) enum Admit {
    /// It runs now.
    Now,
    /// Too many commands wait already.
    Full,
    /// It waits; see [`Wait::wait_until_runnable`].
    After(Wait),
}

/// The wait of a command for its limits and for a slot.
pub(crate) struct Wait {
    charges: Vec<Charge>,
    parties: ChargedAccounts,
    cost: Cost,
    dispatcher: Arc<Dispatcher>,
    changed: Arc<Notify>,
    _queued: Queued,
}

impl Wait {
    /// Waits until the command may run. The caller keeps the slot until the command has ended.
    pub(crate) async fn wait_until_runnable(self) -> Option<DispatchSlot> {
        let Self { charges, parties, cost, dispatcher, changed, _queued } = self;
        loop {
            // Registered before the limits are read, so that no change is missed.
            let changed = changed.notified();
            let now = time::now();
            let left = longest(&charges, now);
            if left.is_zero() {
                break;
            }
            tokio::select! {
                () = time::sleep_until(now + left) => {}
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

fn longest(charges: &[Charge], now: std::time::Instant) -> Duration {
    charges.iter().map(|charge| charge.left(now)).max().unwrap_or_default()
}

impl Cost {
    const fn units(self) -> u64 {
        1 + self.bytes / BYTES_OF_UNIT
    }
}

impl Qos {
    /// Applies a configuration, to waiting commands as well.
    pub(crate) fn apply(&self, config: &Config) {
        let volumes = config.volumes.iter().map(|volume| (volume.name.clone(), volume.qos));
        self.set(volumes.collect(), &config.hosts, config.limits.in_service);
    }

    /// Applies limits, weights and reserved rates, and the number of slots.
    pub(crate) fn set(
        &self,
        by_volume: BTreeMap<String, QosConfig>,
        hosts: &[HostConfig],
        places: usize,
    ) {
        let now = time::now();
        let mut state = self.state.write();
        let has_say = |host: &&HostConfig| host.qos.has_limits() || host.qos.has_claims();
        let mut known = std::mem::take(&mut state.hosts);
        state.hosts = hosts
            .iter()
            .filter(has_say)
            .map(|host| {
                let same = known.iter().position(|(other, _)| other.name == host.name);
                let account = same.map(|same| known.swap_remove(same).1);
                let account = account.unwrap_or_else(|| Arc::new(Account::new(now)));
                account.set(&host.qos, now);
                (host.clone(), account)
            })
            .collect();
        // Commands that wait for a host that was deleted, or has no limit any more, may run.
        known.iter().for_each(|(_, account)| account.set(&QosConfig::default(), now));
        let claims = by_volume.values().chain(hosts.iter().map(|host| &host.qos));
        let has_claims = { claims }.any(QosConfig::has_claims);
        state.is_general = has_claims || !state.hosts.is_empty();
        state.by_volume = by_volume;
        let QosState { by_volume, volumes, is_general, .. } = &mut *state;
        // Accounts in use are referenced by logical units.
        volumes
            .retain(|name, account| by_volume.contains_key(name) || Arc::strong_count(account) > 1);
        for (name, account) in volumes {
            let qos = by_volume.get(name).copied().unwrap_or_default();
            account.set(&qos, now);
            account.govern(*is_general || qos.has_limits());
        }
        drop(state);
        self.generation.fetch_add(1, Ordering::Release);
        self.dispatcher.set(has_claims.then_some(places), now);
        self.changed.notify_waiters();
    }

    /// Returns a volume's account.
    pub(crate) fn volume(&self, name: &str) -> Arc<Account> {
        let mut state = self.state.write();
        let QosState { by_volume, volumes, is_general, .. } = &mut *state;
        let account = volumes.entry(name.to_owned()).or_insert_with(|| {
            let (now, qos) = (time::now(), by_volume.get(name).copied().unwrap_or_default());
            let account = Account::new(now);
            account.set(&qos, now);
            account.govern(*is_general || qos.has_limits());
            Arc::new(account)
        });
        account.clone()
    }

    /// Returns a number that changes whenever the result of [`Self::host`] may change.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the account of the first host that matches a peer.
    pub(crate) fn host(&self, peer: &Peer<'_>) -> Option<Arc<Account>> {
        let state = self.state.read();
        let Peer { initiator, address, account, certificate } = *peer;
        let of =
            |(host, _): &&(HostConfig, _)| host.is_of(initiator, address, account, certificate);
        state.hosts.iter().find(of).map(|(_, account)| account.clone())
    }

    /// Decides about a command to a volume whose commands must be admitted. With `room`, waiting commands may occupy no
    /// more than that.
    pub(crate) fn admit(
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
        let (cost, now) = (cost(), time::now());
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
        let (dispatcher, changed) = (self.dispatcher.clone(), self.changed.clone());
        Admit::After(Wait { charges, parties, cost, dispatcher, changed, _queued })
    }
}
