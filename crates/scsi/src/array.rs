//! A storage array: all target devices of one server, and the services that they need from the host.

use crate::TargetDevice;
use crate::copy::{PIECES, Tokens};
use async_lock::Semaphore;
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::LocalFuture;
use std::sync::{Arc, Weak};

/// Work that outlives the command that began it. The future is created on the thread that runs it.
pub type Work = Box<dyn FnOnce() -> LocalFuture<()> + Send>;

/// The services that the host provides to the device servers.
pub trait Host: Send + Sync {
    /// Returns the wall clock, in milliseconds since 1970 (UTC). It may jump.
    fn unix_time_ms(&self) -> u64;
    /// Fills `into` with unpredictable bytes.
    fn fill_random(&self, into: &mut [u8]);
    /// Runs work to its end, or until the host ends.
    fn spawn(&self, work: Work);
}

/// The state that all target devices of one server share.
pub struct Array {
    host: Arc<dyn Host>,
    begun_ms: u64,
    devices: Mutex<Devices>,
    tokens: Tokens,
    pieces: Semaphore,
}

/// The registered target devices. Some of them may have been dropped.
#[derive(Default)]
struct Devices {
    all: Vec<Weak<TargetDevice>>,
    /// The length of `all` at which dropped devices are removed. It grows with the number of live devices, so that the
    /// cost of a registration stays constant on average.
    sweep_at: usize,
}

impl Array {
    /// Creates an array without targets.
    pub fn new(host: Arc<dyn Host>) -> Arc<Self> {
        let begun_ms = host.unix_time_ms();
        let (tokens, pieces) = (Tokens::default(), Semaphore::new(PIECES));
        Arc::new(Self { host, begun_ms, devices: Mutex::default(), tokens, pieces })
    }

    /// Returns the services of the host.
    pub fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// Returns ACCUMULATED POWER ON HOURS: the age of the array in hours, maximum FFFFh.
    pub(crate) fn power_on_hours(&self) -> u16 {
        let ms = self.host.unix_time_ms().saturating_sub(self.begun_ms);
        u16::try_from(ms / 3_600_000).unwrap_or(u16::MAX)
    }

    /// Returns the target devices that exist now.
    pub fn devices(&self) -> Vec<Arc<TargetDevice>> {
        self.registered().all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the ROD tokens of the array's units.
    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Returns the limit of pieces that copies hold in memory. A copy acquires one permit for each piece.
    pub(crate) fn copy_permits(&self) -> &Semaphore {
        &self.pieces
    }

    /// Adds a device to the array. The entry is weak: it does not keep the device alive.
    pub(crate) fn register(&self, device: &Arc<TargetDevice>) {
        let mut devices = self.registered();
        if devices.all.len() >= devices.sweep_at {
            devices.all.retain(|device| device.strong_count() > 0);
            devices.sweep_at = 2 * devices.all.len() + 1;
        }
        devices.all.push(Arc::downgrade(device));
    }

    fn registered(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock()
    }
}
