//! The timestamp of a logical unit (SPC-4 5.2): the host's clock until an initiator sets another time, and afterwards
//! the host's clock with the resulting offset.

use parking_lot::Mutex;

use crate::Host;

/// The mask of TIMESTAMP's 48 bits.
pub(crate) const TIMESTAMP_MASK: u64 = (1 << 48) - 1;

/// The timestamp of one unit.
#[derive(Default)]
pub(crate) struct Timestamp {
    /// The offset to the host's clock, modulo 2^48; `None` if no initiator set the timestamp.
    beside: Mutex<Option<u64>>,
}

impl Timestamp {
    /// Returns milliseconds since 1970, and whether an initiator set them.
    pub(crate) fn now(&self, host: &dyn Host) -> (u64, bool) {
        let beside = *self.beside.lock();
        let now = host.unix_time_ms().wrapping_add(beside.unwrap_or(0));
        (now & TIMESTAMP_MASK, beside.is_some())
    }

    /// Sets the timestamp, which advances from now on.
    pub(crate) fn set(&self, host: &dyn Host, timestamp: u64) {
        let beside = timestamp.wrapping_sub(host.unix_time_ms()) & TIMESTAMP_MASK;
        *self.beside.lock() = Some(beside);
    }
}
