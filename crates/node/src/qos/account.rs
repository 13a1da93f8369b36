//! What a volume, or a host, has used and may use.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sarsen_io::time;

use super::bucket::{Bucket, Ticket};
use crate::config::{DEFAULT_SHARE, QosConfig};

/// The minimum of so long goes ahead in one go.
const MINIMUM_BURST: Duration = Duration::from_millis(10);
/// What one command of the least weight moves a tag by, at the default share.
const TAG_STEP: u64 = DEFAULT_SHARE << 10;

/// See the module. Its lock is held for some additions, by those alone that are limited.
pub(crate) struct Account {
    number: u64,
    /// Commands have to ask.
    is_governed: AtomicBool,
    /// It may not use all that it wants.
    is_limited: AtomicBool,
    standing: Mutex<Standing>,
}

struct Standing {
    commands: Bucket,
    bytes: Bucket,
    minimum: Bucket,
    share: u64,
    /// The tag that it comes to by all that it has asked for.
    tag: u64,
}

/// What a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) bytes: u64,
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

impl Account {
    /// One that may use all.
    pub(super) fn new(now: Instant) -> Self {
        let bucket = || Bucket::new(now);
        Self {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            is_governed: AtomicBool::new(false),
            is_limited: AtomicBool::new(false),
            standing: Mutex::new(Standing {
                commands: bucket(),
                bytes: bucket(),
                minimum: bucket(),
                share: DEFAULT_SHARE,
                tag: 0,
            }),
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What holds from here on, also for what waits.
    pub(super) fn set(&self, qos: &QosConfig, now: Instant) {
        self.is_limited.store(qos.has_limits(), Ordering::Relaxed);
        let mut standing = self.standing();
        standing.commands.set(qos.iops, qos.burst(), 1, now);
        standing.bytes.set(qos.bandwidth, qos.burst(), 0, now);
        standing.minimum.set(qos.minimum_iops, MINIMUM_BURST, 1, now);
        standing.share = qos.share.map_or(DEFAULT_SHARE, |share| share.get());
    }

    /// Whether its commands have to ask.
    #[inline]
    pub(crate) fn is_governed(&self) -> bool {
        self.is_governed.load(Ordering::Relaxed)
    }

    /// Whether it may not use all that it wants.
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    pub(super) fn govern(&self, is_governed: bool) {
        self.is_governed.store(is_governed, Ordering::Relaxed);
    }
}

/// What a command has taken of an account; dropped before it is [spent](Self::spend), it is given back.
pub(super) struct Charge {
    account: Arc<Account>,
    cost: Cost,
    commands: Ticket,
    bytes: Ticket,
    is_spent: bool,
}

impl Charge {
    pub(super) fn new(account: Arc<Account>, cost: Cost, now: Instant) -> Self {
        let mut standing = account.standing();
        let commands = standing.commands.take(1, now);
        let bytes = standing.bytes.take(cost.bytes, now);
        drop(standing);
        Self { account, cost, commands, bytes, is_spent: false }
    }

    /// How long the command has to wait.
    pub(super) fn left(&self, now: Instant) -> Duration {
        let mut standing = self.account.standing();
        let commands = standing.commands.left(self.commands, now);
        commands.max(standing.bytes.left(self.bytes, now))
    }

    /// The command is carried out.
    pub(super) fn spend(mut self) {
        self.is_spent = true;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !self.is_spent {
            let now = time::now();
            let mut standing = self.account.standing();
            standing.commands.give_back(self.commands, 1, now);
            standing.bytes.give_back(self.bytes, self.cost.bytes, now);
        }
    }
}

/// Those whom a command is for: its volume, and its initiator's host if that has anything to say.
#[derive(Clone)]
pub(super) struct ChargedAccounts {
    volume: Arc<Account>,
    host: Option<Arc<Account>>,
}

impl ChargedAccounts {
    pub(super) fn new(volume: Arc<Account>, host: Option<Arc<Account>>) -> Self {
        Self { volume, host }
    }

    pub(super) fn accounts(&self) -> impl Iterator<Item = &Arc<Account>> {
        [Some(&self.volume), self.host.as_ref()].into_iter().flatten()
    }

    pub(super) fn key(&self) -> (u64, u64) {
        (self.volume.number, self.host.as_ref().map_or(0, |host| host.number))
    }

    /// The volume, by its number.
    pub(super) fn volume(&self) -> u64 {
        self.volume.number
    }

    /// The tag of a command: where it starts by what the volume, or the host, has asked for already,
    /// whichever is later. Each moves on from its own start alone, or a busy volume would put its
    /// hosts behind on all others.
    pub(super) fn take_tag(&self, now_served: u64, weight: u64) -> u64 {
        let start = |account: &Arc<Account>| {
            let mut standing = account.standing();
            let start = standing.tag.max(now_served);
            standing.tag = start + weight * TAG_STEP / standing.share;
            start
        };
        self.accounts().map(start).max().unwrap_or(now_served)
    }

    /// Whether one of them has not had its minimum.
    pub(super) fn has_minimum(&self, now: Instant) -> bool {
        self.accounts().any(|account| account.standing().minimum.has_saved(now))
    }

    /// A command goes: that counts for the minimum.
    pub(super) fn take_minimum(&self, now: Instant) {
        for account in self.accounts() {
            account.standing().minimum.take_saved(now);
        }
    }
}
