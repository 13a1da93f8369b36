//! The memory that the requests of connections use, as a part of the memory of all commands.

use std::sync::Arc;

use sarsen_proto::iscsi::target::Budget;

/// Maximum payload of one request. Clients that do not request the sizes of an export send up to 32 MiB; the test client
/// of the NBD project sends more.
const PAYLOAD: usize = 64 << 20;
/// The smallest maximum payload.
const SMALLEST_PAYLOAD: usize = 64 << 10;
/// One request may use a maximum of this fraction (1/8) of the budget. The commands of iSCSI leave at least as much.
const PAYLOAD_PART: usize = 8;

/// Returns the maximum payload of a new connection.
pub(super) fn maximum_payload(budget: &Budget) -> u32 {
    (budget.limit() / PAYLOAD_PART).clamp(SMALLEST_PAYLOAD, PAYLOAD) as u32
}

/// The memory that one connection uses. It is returned when this is dropped.
pub(super) struct Used {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Used {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Sets the number of bytes.
    pub(super) fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.budget.recharge(self.bytes, bytes);
            self.bytes = bytes;
        }
    }

    /// Returns whether there is memory for another request with the largest payload.
    pub(super) fn has_room(&self) -> bool {
        self.budget.has_room(maximum_payload(&self.budget) as usize)
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
        let budget = Arc::new(Budget::new(160 << 20));
        assert_eq!(maximum_payload(&budget), 20 << 20);
        let (mut one, other) = (Used::new(budget.clone()), Used::new(budget.clone()));
        one.set(130 << 20);
        assert!(other.has_room());
        one.set(141 << 20);
        assert!(!other.has_room() && !one.has_room());
        drop(one);
        assert!(other.has_room());
        budget.set_limit(1 << 20);
        assert_eq!(maximum_payload(&budget), 128 << 10);
    }
}
