//! The tiers of an open pool, and the pace at which its data is copied.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sarsen_block::LocalFuture;
use sarsen_io::time;
use sarsen_pool::{CopyReason, Pool, Tasks, Tier, TierUse, Tiers};

use super::devices::NamedDevices;
use crate::config::PoolConfig;

/// After this time, requests count half as much for what belongs on fast devices.
const HALF_LIFE: Duration = Duration::from_mins(5);

/// A rate of copies: none may be ahead of it.
#[derive(Default)]
struct Pace {
    bytes_per_second: Option<u64>,
    /// When more may be copied.
    next: Option<Instant>,
}

impl Pace {
    /// Returns when more may be copied after these bytes.
    fn after(&mut self, bytes: u64, now: Instant) -> Option<Instant> {
        let rate = self.bytes_per_second?;
        let copying = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let next = self.next.map_or(now, |next| next.max(now)) + copying;
        self.next = Some(next);
        Some(next)
    }
}

/// Continues requests of a pool on the core of their caller, and copies within its rates.
#[derive(Default)]
pub(super) struct PacedTasks {
    moves: Mutex<Pace>,
    repairs: Mutex<Pace>,
}

impl PacedTasks {
    pub(super) fn adopt(&self, config: &PoolConfig) {
        self.moves.lock().bytes_per_second = Some(config.move_rate());
        self.repairs.lock().bytes_per_second = config.repair_rate();
    }
}

impl Tasks for PacedTasks {
    fn finish(&self, future: LocalFuture<()>) {
        tokio::task::spawn_local(future);
    }

    fn pause(&self, reason: CopyReason, bytes: u64) -> LocalFuture<()> {
        let pace = match reason {
            CopyReason::Move => &self.moves,
            CopyReason::Repair => &self.repairs,
        };
        let next = pace.lock().after(bytes, time::now());
        Box::pin(async move {
            if let Some(next) = next {
                time::sleep_until(next).await;
            }
        })
    }
}

/// What the server does for the tiers of a pool.
pub(super) struct Balancing {
    has_tiers: bool,
    decay_at: Instant,
}

impl Balancing {
    pub(super) fn new() -> Self {
        Self { has_tiers: false, decay_at: time::now() + HALF_LIFE }
    }

    /// Applies the settings, and lets slabs move where they belong.
    pub(super) fn balance(&mut self, pool: &Pool, config: &PoolConfig, devices: &NamedDevices) {
        if !self.has_tiers && config.fast_devices.is_empty() {
            return;
        }
        self.has_tiers = !config.fast_devices.is_empty();
        let identifiers = devices.identifiers(&config.fast_devices);
        let infos = pool.devices().into_iter();
        let fast = infos.filter(|info| identifiers.contains(&info.identifier));
        let fast = fast.map(|info| info.number).collect();
        pool.set_tiers(&Tiers { fast, new_data: config.new_data() });
        let now = time::now();
        if now >= self.decay_at {
            self.decay_at = now + HALF_LIFE;
            pool.decay_heat();
        }
        // What can be moved until the next time, in a second.
        pool.balance_tiers(config.move_rate());
    }
}

/// Returns the use of both tiers, if a pool has two.
pub(crate) fn use_of(pool: &Pool) -> Option<[(Tier, TierUse); 2]> {
    let of = |tier| Some((tier, pool.tier_use(tier)?));
    Some([of(Tier::Fast)?, of(Tier::Slow)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_never_ahead_of_their_rate() {
        let start = time::now();
        let mut pace = Pace { bytes_per_second: Some(1 << 20), next: None };
        let second = Duration::from_secs(1);
        assert_eq!(pace.after(1 << 20, start), Some(start + second));
        assert_eq!(pace.after(1 << 19, start + second / 2), Some(start + second * 3 / 2));
        // What was not copied meanwhile is lost.
        assert_eq!(pace.after(1 << 20, start + 9 * second), Some(start + 10 * second));
        pace.bytes_per_second = None;
        assert_eq!(pace.after(1 << 30, start), None);
    }
}
