//! Nobody takes more than is his, and whoever needs more than he gets is served before those who get
//! more than they need: limits of volumes and hosts, which commands wait for, and an order for what is
//! asked for beyond what the server carries out at once.
//!
//! A command waits as a task of its unit ([`sarsen_scsi::NexusHandle::begin_after`]), so that order and
//! aborts are as they would be. It keeps its place in its session's command window and its memory; where
//! a session uses several units, one of them cannot take up all of that with what waits: beyond three
//! quarters the answer is TASK SET FULL.
//!
//! Who is not limited and has no claims is asked nothing, unless somebody has claims: then all are.

mod account;
mod bucket;
mod dispatch;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sarsen_io::time;
use tokio::sync::Notify;

pub(crate) use self::account::{Account, Cost};
use self::account::{Charge, ChargedAccounts};
use self::dispatch::{DispatchSlot, Dispatcher};
use crate::config::{Config, HostConfig, QosConfig};
use crate::tls::ClientCertificate;

/// A command weighs one, and one more for so many bytes.
const BYTES_OF_WEIGHT: u64 = 32 << 10;

/// See the module.
#[derive(Default)]
pub(crate) struct Qos {
    dispatcher: Arc<Dispatcher>,
    /// Told to those that wait when limits have changed.
    changed: Arc<Notify>,
    /// Counts the changes of hosts.
    generation: AtomicU64,
    state: RwLock<QosState>,
}

#[derive(Default)]
struct QosState {
    by_volume: BTreeMap<String, QosConfig>,
    /// Of those that are used.
    volumes: BTreeMap<String, Arc<Account>>,
    /// Those that have anything to say, in the configuration's order.
    hosts: Vec<(HostConfig, Arc<Account>)>,
    /// Every command has to ask, whatever its volume.
    is_general: bool,
}

/// Who a connection is with, as far as hosts go by that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer<'a> {
    pub(crate) initiator: &'a str,
    pub(crate) address: IpAddr,
    pub(crate) account: Option<&'a str>,
    pub(crate) certificate: Option<&'a ClientCertificate>,
}

/// What waits of a session.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    commands: AtomicUsize,
    bytes: AtomicUsize,
}

/// How much of a session's window and memory may be taken up by what waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimit {
    pub(crate) commands: usize,
    pub(crate) bytes: usize,
}

impl QueueLimit {
    /// Three quarters of all that there is.
    pub(crate) const fn of(commands: usize, bytes: usize) -> Self {
        Self { commands: commands - commands / 4, bytes: bytes - bytes / 4 }
    }
}

/// One that waits of a [`Queue`].
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

/// What becomes of a command that has to ask.
pub(crate) enum Admit {
    /// It is carried out now.
    Now,
    /// Too many wait already.
    Full,
    /// It waits; see [`Wait::ended`].
    After(Wait),
}

/// What a command waits for.
pub(crate) struct Wait {
    charges: Vec<Charge>,
    parties: ChargedAccounts,
    cost: Cost,
    dispatcher: Arc<Dispatcher>,
    changed: Arc<Notify>,
    _queued: Queued,
}

impl Wait {
    /// Waits until the command may be carried out; what is given is to be kept until it has been.
    pub(crate) async fn ended(self) -> Option<DispatchSlot> {
        let Self { charges, parties, cost, dispatcher, changed, _queued } = self;
        loop {
            // Hears of every change from here on.
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
        let place = match dispatcher.is_on() {
            true => dispatcher.place(&parties, cost.weight()).await,
            false => None,
        };
        charges.into_iter().for_each(Charge::spend);
        place
    }
}

fn longest(charges: &[Charge], now: std::time::Instant) -> Duration {
    charges.iter().map(|charge| charge.left(now)).max().unwrap_or_default()
}

impl Cost {
    const fn weight(self) -> u64 {
        1 + self.bytes / BYTES_OF_WEIGHT
    }
}

impl Qos {
    /// What the configuration says holds from here on, also for what waits.
    pub(crate) fn apply(&self, config: &Config) {
        let volumes = config.volumes.iter().map(|volume| (volume.name.clone(), volume.qos));
        self.set(volumes.collect(), &config.hosts, config.limits.in_service);
    }

    /// The same, piece by piece.
    pub(crate) fn set(
        &self,
        by_volume: BTreeMap<String, QosConfig>,
        hosts: &[HostConfig],
        places: usize,
    ) {
        let now = time::now();
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
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
        // What waits for those that are no longer limited, or are gone, is free to go.
        known.iter().for_each(|(_, account)| account.set(&QosConfig::default(), now));
        let claims = by_volume.values().chain(hosts.iter().map(|host| &host.qos));
        let has_claims = { claims }.any(QosConfig::has_claims);
        state.is_general = has_claims || !state.hosts.is_empty();
        state.by_volume = by_volume;
        let QosState { by_volume, volumes, is_general, .. } = &mut *state;
        // Others hold those that are used.
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

    /// A volume's account.
    pub(crate) fn volume(&self, name: &str) -> Arc<Account> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
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

    /// Another number whenever [`Self::host`] may answer otherwise.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The account of the first host that a peer is of, if it has anything to say.
    pub(crate) fn host(&self, peer: &Peer<'_>) -> Option<Arc<Account>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let Peer { initiator, address, account, certificate } = *peer;
        let of =
            |(host, _): &&(HostConfig, _)| host.is_of(initiator, address, account, certificate);
        state.hosts.iter().find(of).map(|(_, account)| account.clone())
    }

    /// What becomes of a command to a volume whose commands have to ask. Where others are to have `room`
    /// beside what waits, there may be no more of it than that.
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
