//! Memory for commands' data: what a connection may take, and what all may take together.
//!
//! A connection takes a little without asking anybody. What is beyond that it borrows from the
//! [`Budget`] in large chunks and gives back when its last command with room has ended, so that a
//! command seldom touches what all cores share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::tasks::Task;

/// What each connection may take beside the budget.
const FREE: usize = 64 * 1024;
/// A loan is a multiple of this, where there is so much left.
const CHUNK: usize = 4 << 20;

/// Memory that the commands of all connections share.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicUsize,
    lent: AtomicUsize,
    /// How often there was not enough.
    refused: AtomicUsize,
}

impl Budget {
    /// So many bytes.
    pub const fn new(limit: usize) -> Self {
        let [lent, refused] = [const { AtomicUsize::new(0) }; 2];
        Self { limit: AtomicUsize::new(limit), lent, refused }
    }

    /// From here on so many bytes. What is lent beyond that comes back in its time.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes that are lent now. Each connection's largest command may be among them though the
    /// budget is used up.
    pub fn lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    /// How often a command had to wait because others had it all.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// A chunk if there is one, else just what is wanted, else nothing. One command may always.
    fn borrow(&self, wanted: usize, always: bool) -> Option<usize> {
        let mut lent = self.lent.load(Ordering::Relaxed);
        loop {
            let left = self.limit.load(Ordering::Relaxed).saturating_sub(lent);
            let loan = match wanted.next_multiple_of(CHUNK) {
                chunk if chunk <= left => chunk,
                _ if wanted <= left || always => wanted,
                _ => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
            };
            let exchanged = self.lent.compare_exchange_weak(
                lent,
                lent + loan,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match exchanged {
                Ok(_) => return Some(loan),
                Err(now) => lent = now,
            }
        }
    }

    fn give_back(&self, loan: usize) {
        self.lent.fetch_sub(loan, Ordering::Relaxed);
    }
}

/// What one connection's commands take.
#[derive(Debug)]
pub(super) struct Room {
    budget: Arc<Budget>,
    limit: usize,
    taken: usize,
    loan: usize,
}

impl Room {
    pub(super) const fn new(budget: Arc<Budget>, limit: usize) -> Self {
        Self { budget, limit, taken: 0, loan: 0 }
    }

    /// Takes so many bytes if they are there. Who has nothing always gets them: a command that is
    /// larger than any limit goes on alone.
    fn take(&mut self, bytes: usize) -> bool {
        let sum = self.taken.saturating_add(bytes);
        let alone = self.taken == 0;
        if sum > self.limit && !alone {
            return false;
        }
        let there = FREE + self.loan;
        if sum > there {
            let Some(loan) = self.budget.borrow(sum - there, alone) else { return false };
            self.loan += loan;
        }
        self.taken = sum;
        true
    }

    /// Gives a task what it needs, if that is there beside what is `kept` until the initiator
    /// acknowledges it.
    pub(super) fn admit(&mut self, task: &mut Task, kept: usize) -> bool {
        task.has_room = kept <= self.limit && self.take(task.room());
        task.has_room
    }

    pub(super) fn give_back(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.taken);
        self.taken = self.taken.saturating_sub(bytes);
        if self.taken == 0 && self.loan > 0 {
            self.budget.give_back(std::mem::take(&mut self.loan));
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.give_back(self.loan);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn room(budget: &Arc<Budget>) -> Room {
        Room::new(budget.clone(), 32 * MIB)
    }

    #[test]
    fn small_commands_touch_nothing_that_is_shared() {
        let budget = Arc::new(Budget::new(0));
        let mut room = room(&budget);
        for _ in 0..16 {
            assert!(room.take(4096));
        }
        assert_eq!((budget.lent(), budget.refused()), (0, 0));
    }

    #[test]
    fn a_loan_is_large_and_ends_with_the_last_command() {
        let budget = Arc::new(Budget::new(64 * MIB));
        let mut one = room(&budget);
        assert!(one.take(MIB));
        assert_eq!(budget.lent(), CHUNK);
        assert!(one.take(MIB) && one.take(MIB));
        assert_eq!(budget.lent(), CHUNK, "there was some left of the chunk");
        one.give_back(MIB);
        assert_eq!(budget.lent(), CHUNK);
        one.give_back(2 * MIB);
        assert_eq!(budget.lent(), 0);
        assert!(one.take(MIB));
        drop(one);
        assert_eq!(budget.lent(), 0, "a connection that is gone owes nothing");
    }

    #[test]
    fn beyond_either_limit_one_command_goes_on_alone() {
        let budget = Arc::new(Budget::new(6 * MIB));
        let (mut one, mut other) = (room(&budget), room(&budget));
        assert!(one.take(40 * MIB), "larger than any limit, but alone");
        assert!(!one.take(MIB), "above the connection's own");
        assert!(other.take(MIB), "the first of its connection");
        assert!(!other.take(MIB), "there is nothing left");
        assert_eq!(budget.refused(), 1);
        one.give_back(40 * MIB);
        assert!(other.take(MIB), "now there is");
        other.give_back(2 * MIB);
        assert_eq!(budget.lent(), 0);
    }

    #[test]
    fn what_is_left_of_a_chunk_is_lent_to_the_byte() {
        let budget = Arc::new(Budget::new(CHUNK + MIB));
        let (mut one, mut other) = (room(&budget), room(&budget));
        assert!(one.take(MIB) && other.take(MIB + FREE));
        assert_eq!(budget.lent(), CHUNK + MIB);
        assert!(!other.take(1));
    }
}
