//! The memory that the requests of connections use, as a part of the memory of all commands.

use std::sync::Arc;

use sarsen_proto::Budget;

/// Maximum payload of one request. Clients that do not request the sizes of an export send up to 32 MiB; the test client
/// of the NBD project sends more.
const PAYLOAD: usize = 64 << 20;
/// The smallest maximum payload.
const SMALLEST_PAYLOAD: usize = 64 << 10;
/// One request may use a maximum of this fraction (1/8) of the budget. The commands of iSCSI leave at least as much.
const PAYLOAD_PART: usize = 8;

/// Memory of a connection while less than the largest payload is left.
const SMALL_PART: usize = 256 << 10;

/// Returns the maximum payload of a new connection.
pub(super) fn maximum_payload(budget: &Budget) -> u32 {
    (budget.limit() / PAYLOAD_PART).clamp(SMALLEST_PAYLOAD, PAYLOAD) as u32
}

/// The memory that is charged to one connection. The charge ends when this is dropped.
pub(super) struct ChargedMemory {
    budget: Arc<Budget>,
    bytes: usize,
    /// Whether the connection proceeds although there is no memory.
    is_exception: bool,
}

impl ChargedMemory {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, bytes: 0, is_exception: false }
    }

    /// Sets the number of bytes. Those of the exception are not charged, so that others keep what is left.
    pub(super) fn set(&mut self, bytes: usize) {
        if self.is_exception && bytes >= SMALL_PART {
            return;
        }
        if std::mem::take(&mut self.is_exception) {
            self.budget.end_exception();
        }
        if bytes != self.bytes {
            self.budget.adjust_charge(self.bytes, bytes);
            self.bytes = bytes;
        }
    }

    /// Returns the memory that the connection may use. While little is left, each connection has a small part, so that a
    /// few connections cannot keep the memory from all others.
    pub(super) fn allowance(&self) -> usize {
        if self.is_exception || self.budget.has_room(maximum_payload(&self.budget) as usize) {
            usize::MAX
        } else if self.budget.has_room(SMALL_PART) {
            SMALL_PART
        } else {
            0
        }
    }

    /// Makes a connection whose next request waits for memory the exception, if there is none. This ends with its open
    /// requests.
    pub(super) fn try_exception(&mut self) {
        if self.bytes < SMALL_PART && !self.is_exception {
            self.is_exception = self.budget.begin_exception();
        }
    }
}

impl Drop for ChargedMemory {
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
        let [mut one, mut other, mut third] =
            std::array::from_fn(|_| ChargedMemory::new(budget.clone()));
        one.set(130 << 20);
        assert_eq!(other.allowance(), usize::MAX);
        one.set(141 << 20);
        assert_eq!((one.allowance(), other.allowance()), (SMALL_PART, SMALL_PART));
        third.try_exception();
        third.set(20 << 20);
        assert_eq!(other.allowance(), SMALL_PART, "the exception takes nothing from others");
        third.set(0);
        one.set(160 << 20);
        one.try_exception();
        assert_eq!((one.allowance(), other.allowance()), (0, 0), "it uses memory already");
        other.try_exception();
        third.try_exception();
        assert_eq!((other.allowance(), third.allowance()), (usize::MAX, 0), "one at a time");
        other.set(20 << 20);
        assert_eq!(other.allowance(), usize::MAX, "until its requests have ended");
        other.set(0);
        third.try_exception();
        assert_eq!((other.allowance(), third.allowance()), (0, usize::MAX));
        drop(third);
        drop(one);
        assert_eq!(other.allowance(), usize::MAX);
        budget.set_limit(1 << 20);
        assert_eq!(maximum_payload(&budget), 128 << 10);
    }
}
