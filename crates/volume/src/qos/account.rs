//! The account of a volume or a host: its rates, its weight, and what it has used of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::bucket::{Bucket, Ticket};
use super::{DEFAULT_WEIGHT, Rates};
use crate::Clock;

/// The burst window of a reserved rate.
const RESERVED_BURST: Duration = Duration::from_millis(10);
/// By how much a command of one unit advances the tag of an account with the default weight.
const TAG_STEP: u64 = DEFAULT_WEIGHT << 10;

/// See the module. Its lock is held for a few additions, and only for accounts with limits.
pub struct Account {
    number: u64,
    clock: Arc<dyn Clock>,
    /// Commands must be admitted.
    is_governed: AtomicBool,
    /// It has a maximum rate.
    is_limited: AtomicBool,
    standing: Mutex<Standing>,
}

struct Standing {
    commands: Bucket,
    bytes: Bucket,
    reserved: Bucket,
    weight: u64,
    /// The start tag of its next command.
    tag: u64,
}

/// The cost of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Number of bytes that it transfers, compares or fills.
    pub bytes: u64,
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

impl Account {
    /// Creates an account without limits.
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Self {
        let now = clock.now();
        let bucket = || Bucket::new(now);
        Self {
            clock: clock.clone(),
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            is_governed: AtomicBool::new(false),
            is_limited: AtomicBool::new(false),
            standing: Mutex::new(Standing {
                commands: bucket(),
                bytes: bucket(),
                reserved: bucket(),
                weight: DEFAULT_WEIGHT,
                tag: 0,
            }),
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock()
    }

    /// Applies rates and weight, to waiting commands as well.
    pub(super) fn set(&self, rates: &Rates, now: Instant) {
        self.is_limited.store(rates.has_limits(), Ordering::Relaxed);
        let mut standing = self.standing();
        standing.commands.set(rates.iops, rates.burst(), 1, now);
        standing.bytes.set(rates.bandwidth, rates.burst(), 0, now);
        standing.reserved.set(rates.reserved_iops, RESERVED_BURST, 1, now);
        standing.weight = rates.weight.map_or(DEFAULT_WEIGHT, |weight| weight.get());
    }

    /// Returns whether its commands must be admitted.
    #[inline]
    pub fn is_governed(&self) -> bool {
        self.is_governed.load(Ordering::Relaxed)
    }

    /// Returns whether it has a maximum rate.
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    pub(super) fn govern(&self, is_governed: bool) {
        self.is_governed.store(is_governed, Ordering::Relaxed);
    }
}

/// The charge of a command to an account. Dropping it before it is [spent](Self::spend) refunds it.
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

    /// Returns the time that the command has to wait.
    pub(super) fn left(&self, now: Instant) -> Duration {
        let mut standing = self.account.standing();
        let commands = standing.commands.left(self.commands, now);
        commands.max(standing.bytes.left(self.bytes, now))
    }

    /// Makes the charge final: the command runs.
    pub(super) fn spend(mut self) {
        self.is_spent = true;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !self.is_spent {
            let now = self.account.clock.now();
            let mut standing = self.account.standing();
            standing.commands.give_back(self.commands, 1, now);
            standing.bytes.give_back(self.bytes, self.cost.bytes, now);
        }
    }
}

/// The accounts that a command is charged to: its volume's, and its host's if that has any.
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

    /// Returns the number of the volume's account.
    pub(super) fn volume(&self) -> u64 {
        self.volume.number
    }

    /// Returns the start tag of a command: the later one of its volume and its host. Each account advances from its own
    /// tag. Otherwise a busy volume would delay its hosts' commands to all other volumes.
    pub(super) fn take_tag(&self, now_served: u64, units: u64) -> u64 {
        let start = |account: &Arc<Account>| {
            let mut standing = account.standing();
            let start = standing.tag.max(now_served);
            standing.tag = start + units * TAG_STEP / standing.weight;
            start
        };
        self.accounts().map(start).max().unwrap_or(now_served)
    }

    /// Returns whether one of the accounts has some of its reserved rate left.
    pub(super) fn has_reserved(&self, now: Instant) -> bool {
        self.accounts().any(|account| account.standing().reserved.has_saved(now))
    }

    /// Charges a command to the reserved rates.
    pub(super) fn take_reserved(&self, now: Instant) {
        for account in self.accounts() {
            account.standing().reserved.take_saved(now);
        }
    }
}
