//! A storage array: all target devices of one server, and what they need of the world beneath.

use crate::TargetDevice;
use crate::copy::{PIECES, Tokens};
use async_lock::Semaphore;
use sarsen_block::LocalFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Work that outlives the command that began it; it is made where it will run.
pub type Work = Box<dyn FnOnce() -> LocalFuture<()> + Send>;

/// The world beneath the device servers.
pub trait Host: Send + Sync {
    /// The wall clock, in milliseconds since 1970 (UTC). It may jump.
    fn unix_time_ms(&self) -> u64;
    /// Bytes that nobody can guess.
    fn fill_random(&self, into: &mut [u8]);
    /// Runs work to its end, or until the host ends.
    fn spawn(&self, work: Work);
}

/// See the module.
pub struct Array {
    host: Arc<dyn Host>,
    begun_ms: u64,
    devices: Mutex<Devices>,
    tokens: Tokens,
    pieces: Semaphore,
}

/// The target devices, and some that have gone.
#[derive(Default)]
struct Devices {
    all: Vec<Weak<TargetDevice>>,
    /// Those that have gone are swept out when there are as many: ten thousand that come one by one
    /// are not looked at ten thousand times.
    sweep_at: usize,
}

impl Array {
    /// An array without targets.
    pub fn new(host: Arc<dyn Host>) -> Arc<Self> {
        let begun_ms = host.unix_time_ms();
        let (tokens, pieces) = (Tokens::default(), Semaphore::new(PIECES));
        Arc::new(Self { host, begun_ms, devices: Mutex::default(), tokens, pieces })
    }

    /// The world beneath.
    pub fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// ACCUMULATED POWER ON HOURS: how long it has been there, as far as sixteen bits go.
    pub(crate) fn power_on_hours(&self) -> u16 {
        let ms = self.host.unix_time_ms().saturating_sub(self.begun_ms);
        u16::try_from(ms / 3_600_000).unwrap_or(u16::MAX)
    }

    /// The target devices there are.
    pub fn devices(&self) -> Vec<Arc<TargetDevice>> {
        self.registered().all.iter().filter_map(Weak::upgrade).collect()
    }

    /// The ROD tokens of its units.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// What a copy takes one of for each piece that it holds in memory.
    pub(crate) fn pieces(&self) -> &Semaphore {
        &self.pieces
    }

    /// A device became part of it, until it is dropped.
    pub(crate) fn register(&self, device: &Arc<TargetDevice>) {
        let mut devices = self.registered();
        if devices.all.len() >= devices.sweep_at {
            devices.all.retain(|device| device.strong_count() > 0);
            devices.sweep_at = 2 * devices.all.len() + 1;
        }
        devices.all.push(Arc::downgrade(device));
    }

    fn registered(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
