//! The memory that the requests of all NBD connections use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config::Limits;

/// Maximum payload of one request. Clients that do not request the sizes of an export send up to 32 MiB; the test client
/// of the NBD project sends more.
const PAYLOAD: usize = 64 << 20;
/// The smallest maximum payload.
const SMALLEST_PAYLOAD: usize = 64 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RequestMemory {
    used: AtomicUsize,
    limit: AtomicUsize,
}

impl RequestMemory {
    /// Sets the limit of all connections together.
    pub(crate) fn set_limit(&self, limits: &Limits) {
        self.limit.store(limits.memory, Ordering::Relaxed);
    }

    /// Returns the bytes that all connections use.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the maximum payload of a new connection.
    pub(in crate::fronts) fn maximum_payload(&self) -> u32 {
        let limit = self.limit.load(Ordering::Relaxed);
        (limit / 4).clamp(SMALLEST_PAYLOAD, PAYLOAD) as u32
    }
}

/// The memory that one connection uses. It is returned when this is dropped.
pub(in crate::fronts) struct Used {
    memory: Arc<RequestMemory>,
    bytes: usize,
}

impl Used {
    pub(in crate::fronts) fn new(memory: Arc<RequestMemory>) -> Self {
        Self { memory, bytes: 0 }
    }

    /// Sets the number of bytes.
    pub(in crate::fronts) fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.memory.used.fetch_add(bytes, Ordering::Relaxed);
            self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
            self.bytes = bytes;
        }
    }

    /// Returns whether there is memory for another request with the largest payload.
    pub(in crate::fronts) fn has_room(&self) -> bool {
        let used = self.memory.used.load(Ordering::Relaxed);
        let room = self.memory.limit.load(Ordering::Relaxed).saturating_sub(used);
        room >= self.memory.maximum_payload() as usize
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_connections_is_shared_and_returned() {
        let memory: Arc<RequestMemory> = Arc::default();
        memory.set_limit(&Limits { memory: 100 << 20, ..Limits::default() });
        assert_eq!(memory.maximum_payload(), 25 << 20);
        let (mut one, other) = (Used::new(memory.clone()), Used::new(memory.clone()));
        one.set(70 << 20);
        assert!(other.has_room());
        one.set(80 << 20);
        assert!(!other.has_room() && !one.has_room());
        drop(one);
        assert!(other.has_room());
        memory.set_limit(&Limits { memory: 1 << 20, ..Limits::default() });
        assert_eq!(memory.maximum_payload(), 256 << 10);
    }
}
