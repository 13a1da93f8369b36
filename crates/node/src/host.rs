//! The services of the host for the device servers: the clock, randomness, and cores that execute work.

use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};

use sarsen_io::cores::Cores;
use sarsen_io::{random, time};
use sarsen_scsi::{Host, Work};

/// The services of the host. They do not keep the cores running: work that is unfinished at the end of the cores is
/// dropped.
pub(crate) struct ServerHost {
    cores: Weak<Cores>,
}

impl ServerHost {
    pub(crate) fn new(cores: &Arc<Cores>) -> Self {
        Self { cores: Arc::downgrade(cores) }
    }
}

impl Host for ServerHost {
    fn unix_time_ms(&self) -> u64 {
        let since = time::wall_clock().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        since.as_millis() as u64
    }

    fn fill_random(&self, into: &mut [u8]) {
        random::fill(into);
    }

    fn spawn(&self, work: Work) {
        let Some(cores) = self.cores.upgrade() else { return };
        let core = random::number() % cores.len() as u64;
        cores.spawn_on(core as usize, work);
    }
}
