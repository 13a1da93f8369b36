//! Memory for the data of commands. Every byte is charged to one [`Budget`] before it is allocated.
//!
//! A connection borrows from the budget through its [`CommandMemory`]: a small reserve for its whole life, and more
//! while its commands need more. The more urgent a need is, the more of the budget it may use ([`Need`]), so that data
//! which can wait never displaces data which cannot.
//!
//! A command that finds no memory waits in the budget's queue. The first of that queue may proceed without memory
//! from the budget, one at a time ([`ChargeKind::Alone`]). The budget does not cover this one command. So every command
//! proceeds in the end, however large it is.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

/// Memory that a connection retains from the budget between commands, so that short commands use no data that cores
/// share.
const RESERVE: usize = 64 << 10;
/// All reserves together may use a maximum of this fraction (1/16) of the budget. Further connections have no reserve.
const RESERVES_PART: usize = 16;
/// While much memory is left, a loan is a multiple of this.
const CHUNK: usize = 1 << 20;
/// Number of waiting connections that try again when memory is returned. The others try again when they are first.
const LOOKED_AT: usize = 64;
/// The reserve of a connection: enough for one write whose data is all in the first burst.
const FIRST: usize = 264 << 10;
/// No place in the queue.
const NO_TICKET: u64 = u64::MAX;

/// The urgency of a need for memory. It determines how much of the budget may be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// A command that can wait may use three quarters of the budget. One loan may use a maximum of half of the
    /// remainder, so that short commands proceed where long ones find no memory.
    Solicited,
    /// Unsolicited data, which is rejected if there is no memory, may use seven eighths.
    Unasked,
    /// A connection that has almost nothing may use all.
    First,
}

impl Need {
    /// Returns the memory that this need may take of a budget of `limit` bytes, of which `lent` bytes are lent.
    const fn most(self, limit: usize, lent: usize) -> usize {
        match self {
            Self::Solicited => (limit / 4 * 3).saturating_sub(lent) / 2,
            Self::Unasked => (limit / 8 * 7).saturating_sub(lent),
            Self::First => limit.saturating_sub(lent),
        }
    }
}

/// Memory that the commands of all connections share.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicUsize,
    lent: AtomicUsize,
    /// The part of the lent memory that belongs to reserves.
    reserved: AtomicUsize,
    /// Memory of the command that proceeds outside the budget.
    alone: AtomicUsize,
    /// Memory of connections that receive requests without permission.
    unasked: AtomicUsize,
    /// Whether one of these connections proceeds although no memory is left.
    has_exception: AtomicBool,
    waits: AtomicUsize,
    refusals: AtomicUsize,
    /// Length of the queue.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
    /// Charged memory of each connection.
    accounts: Mutex<Vec<Weak<AtomicUsize>>>,
}

#[derive(Debug, Default)]
struct Queue {
    last: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Whether a command proceeds outside the budget.
    has_alone: bool,
}

/// A connection whose next command waits for memory.
#[derive(Debug)]
struct Waiting {
    need: Need,
    bytes: usize,
    /// Whether the connection is to try again.
    is_called: bool,
    waker: Option<Waker>,
}

impl Waiting {
    fn call(&mut self) {
        self.is_called = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let [lent, reserved, alone, unasked, waits, refusals, waiting] =
            [const { AtomicUsize::new(0) }; 7];
        Self {
            limit: AtomicUsize::new(limit),
            lent,
            reserved,
            alone,
            unasked,
            has_exception: AtomicBool::new(false),
            waits,
            refusals,
            waiting,
            queue: Mutex::default(),
            accounts: Mutex::default(),
        }
    }

    /// Changes the limit. Memory that is lent beyond it is returned as commands end.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::SeqCst);
        self.call_waiting();
    }

    /// Returns the maximum number of bytes that may be lent.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns whether at least `bytes` are available. Connections of protocols without flow control stop receiving
    /// requests if they are not.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.limit().saturating_sub(self.lent.load(Ordering::Relaxed)) >= bytes
    }

    /// Permits a connection to proceed although no memory is left, one at a time, so that every connection proceeds in
    /// the end. Returns whether it may. [`Self::end_exception`] follows.
    pub fn begin_exception(&self) -> bool {
        !self.has_exception.swap(true, Ordering::Relaxed)
    }

    /// Ends the exception of the connection that has it.
    pub fn end_exception(&self) {
        self.has_exception.store(false, Ordering::Relaxed);
    }

    /// Replaces a charge of `before` bytes by `bytes`, for requests that were received without permission. The charge can
    /// exceed the limit.
    pub fn adjust_charge(&self, before: usize, bytes: usize) {
        self.unasked.fetch_add(bytes, Ordering::Relaxed);
        self.unasked.fetch_sub(before, Ordering::Relaxed);
        match bytes.checked_sub(before) {
            Some(more) => _ = self.lent.fetch_add(more, Ordering::SeqCst),
            None => self.give_back(before - bytes),
        }
    }

    /// Returns the bytes that are charged for commands' data now. The maximum is the limit, plus the largest transfer
    /// of one command, plus the memory that `CommandMemory::charge` and [`Self::adjust_charge`] add.
    pub fn charged(&self) -> usize {
        let accounts = self.accounts.lock();
        let charged: usize = accounts
            .iter()
            .filter_map(Weak::upgrade)
            .map(|account| account.load(Ordering::Relaxed))
            .sum();
        charged + self.alone.load(Ordering::Relaxed) + self.unasked.load(Ordering::Relaxed)
    }

    /// Returns the bytes that connections have borrowed, including the memory that they retain for later commands.
    #[cfg(test)]
    pub(crate) fn lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    /// Returns how often a command had to wait for the commands of other connections.
    pub fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    /// Returns how often unsolicited data was discarded and its command rejected.
    pub fn refusals(&self) -> usize {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Returns whether no memory is left for data that can wait.
    pub(crate) fn is_short(&self) -> bool {
        let (limit, lent) = (self.limit.load(Ordering::Relaxed), self.lent.load(Ordering::Relaxed));
        Need::Solicited.most(limit, lent) == 0
    }

    /// Returns whether commands wait for memory, or would have to.
    pub(crate) fn has_demand(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 || self.is_short()
    }

    pub(crate) fn note_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Lends a chunk if much memory is left, else `bytes`, else nothing.
    fn lend(&self, need: Need, bytes: usize) -> Option<usize> {
        let limit = self.limit.load(Ordering::Relaxed);
        let mut lent = self.lent.load(Ordering::SeqCst);
        loop {
            let most = need.most(limit, lent);
            if bytes > most {
                return None;
            }
            let loan = if CHUNK <= most / 16 { bytes.next_multiple_of(CHUNK) } else { bytes };
            let loan = loan.min(most);
            match self.lent.compare_exchange_weak(
                lent,
                lent + loan,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return Some(loan),
                Err(now) => lent = now,
            }
        }
    }

    /// Lends a reserve, if there are not too many of them.
    fn lend_reserve(&self) -> bool {
        let most = self.limit.load(Ordering::Relaxed) / RESERVES_PART;
        let reserved = self.reserved.fetch_add(RESERVE, Ordering::Relaxed);
        let is_lent = reserved + RESERVE <= most && {
            let lent = self.lent.fetch_add(RESERVE, Ordering::SeqCst);
            let fits = lent + RESERVE <= self.limit.load(Ordering::Relaxed);
            if !fits {
                self.lent.fetch_sub(RESERVE, Ordering::SeqCst);
            }
            fits
        };
        if !is_lent {
            self.reserved.fetch_sub(RESERVE, Ordering::Relaxed);
        }
        is_lent
    }

    fn give_back(&self, loan: usize) {
        // This store has to precede the read of the queue: see [`CommandMemory::admit`].
        self.lent.fetch_sub(loan, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.call_waiting();
        }
    }

    /// Wakes the connections for which there is memory now, and the first one if it may proceed outside the budget.
    #[cold]
    fn call_waiting(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        let mut lent = self.lent.load(Ordering::SeqCst);
        let mut queue = self.queue();
        let mut may_go_alone = !queue.has_alone;
        for waiting in queue.waiting.values_mut().take(LOOKED_AT) {
            let fits = waiting.bytes <= waiting.need.most(limit, lent);
            if fits {
                lent += waiting.bytes;
            }
            if fits || std::mem::take(&mut may_go_alone) {
                waiting.call();
            }
        }
    }

    /// Passes the permission to proceed outside the budget to the first of the queue.
    fn go_alone(&self, ticket: u64, bytes: usize) -> bool {
        let mut queue = self.queue();
        let is_first = queue.waiting.first_key_value().is_some_and(|(first, _)| *first == ticket);
        if !is_first || queue.has_alone {
            return false;
        }
        queue.has_alone = true;
        self.alone.store(bytes, Ordering::Relaxed);
        true
    }

    fn end_alone(&self) {
        self.alone.store(0, Ordering::Relaxed);
        self.queue().has_alone = false;
        self.call_waiting();
    }

    /// Queues a request for this many bytes, at the end of the queue or in the place that the connection already has.
    fn join_queue(&self, ticket: Option<u64>, need: Need, bytes: usize) -> u64 {
        let mut queue = self.queue();
        let ticket = ticket.unwrap_or_else(|| {
            self.waits.fetch_add(1, Ordering::Relaxed);
            queue.last += 1;
            queue.last
        });
        queue.waiting.insert(ticket, Waiting { need, bytes, is_called: false, waker: None });
        self.waiting.store(queue.waiting.len(), Ordering::SeqCst);
        ticket
    }

    fn leave_queue(&self, ticket: u64) {
        let mut queue = self.queue();
        let was_first = queue.waiting.first_key_value().is_some_and(|(first, _)| *first == ticket);
        queue.waiting.remove(&ticket);
        self.waiting.store(queue.waiting.len(), Ordering::SeqCst);
        drop(queue);
        if was_first {
            self.call_waiting();
        }
    }
}

/// The use of charged memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeKind {
    /// Unsolicited data.
    Unasked,
    /// Data that the target requested by R2T, or that a command reads.
    Solicited,
    /// The same data, outside the budget.
    Alone,
}

/// Memory that is charged to a connection. It must be returned to the same [`CommandMemory`].
#[derive(Debug)]
#[must_use = "memory that is not given back is lost to all"]
pub(crate) struct Grant {
    bytes: usize,
    kind: ChargeKind,
}

/// The memory of one connection's commands.
#[derive(Clone, Debug)]
pub(crate) struct CommandMemory(Arc<Inner>);

/// A number that only the thread of its connection uses. It is atomic because the connection may move to another thread.
#[derive(Debug, Default)]
struct Count(AtomicUsize);

impl Count {
    #[inline]
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, value: usize) {
        self.0.store(value, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Inner {
    budget: Arc<Budget>,
    /// Maximum memory of all commands together that can wait. A single command may always proceed.
    limit: usize,
    /// Charged bytes of the loan. Other threads only read them.
    taken: Arc<AtomicUsize>,
    /// Bytes of commands that can wait, including memory outside the budget.
    solicited: Count,
    /// Bytes borrowed from the budget, including the reserve.
    loan: Count,
    reserve: Count,
    /// Whether a command of the connection proceeds outside the budget.
    is_alone: AtomicBool,
    /// The place in the budget's queue, or [`NO_TICKET`].
    ticket: AtomicU64,
}

impl CommandMemory {
    /// Creates the memory of a connection. Commands that can wait may take `limit` bytes of the budget, and a little
    /// more because buffers are aligned.
    pub(crate) fn new(budget: Arc<Budget>, limit: usize) -> Self {
        let taken: Arc<AtomicUsize> = Arc::default();
        let limit = limit + limit / 32;
        let mut accounts = budget.accounts.lock();
        if accounts.len() == accounts.capacity() {
            accounts.retain(|account| account.strong_count() > 0);
        }
        accounts.push(Arc::downgrade(&taken));
        drop(accounts);
        Self(Arc::new(Inner {
            budget,
            limit,
            taken,
            solicited: Count::default(),
            loan: Count::default(),
            reserve: Count::default(),
            is_alone: AtomicBool::new(false),
            ticket: AtomicU64::new(NO_TICKET),
        }))
    }

    /// Takes memory for unsolicited data, if there is any.
    #[inline]
    pub(crate) fn take_unasked(&self, bytes: usize) -> Option<Grant> {
        let kind = ChargeKind::Unasked;
        self.0.take(Need::Unasked, bytes).then_some(Grant { bytes, kind })
    }

    /// Takes memory for a command that can wait. If the connection uses its share, the command waits for other
    /// commands of the connection. If the budget has no memory, the connection joins the budget's queue, and
    /// [`Self::poll`] reports when to try again.
    #[inline]
    pub(crate) fn admit(&self, bytes: usize) -> Option<Grant> {
        let inner = &*self.0;
        let mut grant = self.admit_now(bytes);
        // The first of the queue must not wait for commands of its own connection.
        if grant.is_none() && !inner.exceeds_share(bytes) {
            let kind = inner.admit_waiting(bytes)?;
            inner.solicited.set(inner.solicited.get() + bytes);
            grant = Some(Grant { bytes, kind });
        }
        self.stop_waiting();
        grant
    }

    /// Takes memory for a command that can wait, if there is any now.
    #[inline]
    pub(crate) fn admit_now(&self, bytes: usize) -> Option<Grant> {
        let inner = &*self.0;
        if inner.exceeds_share(bytes) || !inner.take(Need::Solicited, bytes) {
            return None;
        }
        inner.solicited.set(inner.solicited.get() + bytes);
        Some(Grant { bytes, kind: ChargeKind::Solicited })
    }

    /// Removes the connection from the budget's queue.
    #[inline]
    pub(crate) fn stop_waiting(&self) {
        if let Some(ticket) = self.0.ticket() {
            self.0.ticket.store(NO_TICKET, Ordering::Relaxed);
            self.0.budget.leave_queue(ticket);
        }
    }

    /// Returns whether the connection is in the budget's queue.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.0.ticket().is_some()
    }

    /// Returns ready when the command that waits for the budget is to try again.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(ticket) = self.0.ticket() else { return Poll::Pending };
        let mut queue = self.0.budget.queue();
        let Some(waiting) = queue.waiting.get_mut(&ticket) else { return Poll::Pending };
        if std::mem::take(&mut waiting.is_called) {
            return Poll::Ready(());
        }
        waiting.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Returns memory.
    #[inline]
    pub(crate) fn give_back(&self, Grant { bytes, kind }: Grant) {
        self.0.give_back(bytes, kind);
    }

    /// Charges memory that exists already, even beyond the budget: memory of a task that another connection returned,
    /// or of a response that is longer than expected.
    pub(crate) fn charge(&self, bytes: usize) -> Grant {
        let Grant { bytes, .. } = self.charge_unasked(bytes);
        self.0.solicited.set(self.0.solicited.get() + bytes);
        Grant { bytes, kind: ChargeKind::Solicited }
    }

    /// Charges existing memory like [`Self::charge`], but the connection's commands need not wait for this memory.
    pub(crate) fn charge_unasked(&self, bytes: usize) -> Grant {
        let inner = &*self.0;
        if !inner.take(Need::Solicited, bytes) {
            inner.budget.lent.fetch_add(bytes, Ordering::SeqCst);
            inner.loan.set(inner.loan.get() + bytes);
            inner.taken.store(inner.taken() + bytes, Ordering::Relaxed);
        }
        Grant { bytes, kind: ChargeKind::Unasked }
    }

    /// Keeps `bytes` of a command's memory for its response, until the response is dropped.
    #[inline]
    pub(crate) fn keep(&self, grant: Option<Grant>, bytes: usize) -> Option<Charge> {
        if bytes == 0 {
            if let Some(grant) = grant {
                self.give_back(grant);
            }
            return None;
        }
        let grant = match grant {
            // The place outside the budget stays taken until the data has been sent.
            Some(grant) if grant.kind == ChargeKind::Alone && bytes <= grant.bytes => grant,
            Some(Grant { bytes: had, kind: ChargeKind::Solicited }) if bytes <= had => {
                self.0.give_back(had - bytes, ChargeKind::Solicited);
                Grant { bytes, kind: ChargeKind::Solicited }
            }
            other => {
                let longer = self.charge(bytes);
                if let Some(grant) = other {
                    self.give_back(grant);
                }
                longer
            }
        };
        Some(self.charge_of(grant))
    }

    /// Converts a grant into a charge, which is returned when it is dropped.
    pub(crate) fn charge_of(&self, grant: Grant) -> Charge {
        Charge { room: self.clone(), bytes: grant.bytes, kind: grant.kind }
    }

    /// Returns the budget that all connections share.
    pub(crate) fn budget(&self) -> &Budget {
        &self.0.budget
    }
}

impl Inner {
    #[inline]
    fn ticket(&self) -> Option<u64> {
        let ticket = self.ticket.load(Ordering::Relaxed);
        (ticket != NO_TICKET).then_some(ticket)
    }

    #[inline]
    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns whether commands that can wait would take more than the connection's share.
    #[inline]
    fn exceeds_share(&self, bytes: usize) -> bool {
        let solicited = self.solicited.get();
        solicited > 0 && solicited.saturating_add(bytes) > self.limit
    }

    #[inline(always)]
    fn take(&self, need: Need, bytes: usize) -> bool {
        let sum = self.taken().saturating_add(bytes);
        if sum > self.loan.get() && !self.borrow(need, sum) {
            return false;
        }
        self.taken.store(sum, Ordering::Relaxed);
        true
    }

    /// Borrows the missing bytes up to `sum`.
    fn borrow(&self, need: Need, sum: usize) -> bool {
        let need = if sum <= FIRST { Need::First } else { need };
        if self.reserve.get() == 0 && self.budget.lend_reserve() {
            self.reserve.set(RESERVE);
            self.loan.set(self.loan.get() + RESERVE);
        }
        let missing = sum.saturating_sub(self.loan.get());
        if missing > 0 {
            let Some(loan) = self.budget.lend(need, missing) else { return false };
            self.loan.set(self.loan.get() + loan);
        }
        true
    }

    /// Waits for the budget, or proceeds outside it.
    #[cold]
    fn admit_waiting(&self, bytes: usize) -> Option<ChargeKind> {
        let sum = self.taken().saturating_add(bytes);
        let need = if sum <= FIRST { Need::First } else { Need::Solicited };
        let missing = sum.saturating_sub(self.loan.get());
        let ticket = self.budget.join_queue(self.ticket(), need, missing);
        self.ticket.store(ticket, Ordering::Relaxed);
        // Memory that was returned before this connection joined the queue has woken no connection.
        if self.take(Need::Solicited, bytes) {
            return Some(ChargeKind::Solicited);
        }
        let goes_alone = self.budget.go_alone(ticket, bytes);
        self.is_alone.store(goes_alone, Ordering::Relaxed);
        goes_alone.then_some(ChargeKind::Alone)
    }

    #[inline]
    fn give_back(&self, bytes: usize, kind: ChargeKind) {
        if kind != ChargeKind::Unasked {
            debug_assert!(bytes <= self.solicited.get());
            self.solicited.set(self.solicited.get().saturating_sub(bytes));
        }
        if kind == ChargeKind::Alone {
            self.is_alone.store(false, Ordering::Relaxed);
            return self.budget.end_alone();
        }
        let taken = self.taken();
        debug_assert!(bytes <= taken);
        let taken = taken.saturating_sub(bytes);
        self.taken.store(taken, Ordering::Relaxed);
        if self.loan.get() > self.reserve.get() {
            self.repay(taken);
        }
    }

    /// Returns unused loans: all of them at the end of the last command; otherwise large parts, or memory for which
    /// other connections wait.
    fn repay(&self, taken: usize) {
        let loan = self.loan.get();
        let needed = taken.max(self.reserve.get());
        let surplus = loan.saturating_sub(needed);
        let repays = taken == 0
            || surplus > 2 * CHUNK
            || (surplus > 0 && self.budget.waiting.load(Ordering::Relaxed) > 0);
        if repays {
            self.loan.set(needed);
            self.budget.give_back(surplus);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket() {
            self.budget.leave_queue(ticket);
        }
        if self.is_alone.load(Ordering::Relaxed) {
            self.budget.end_alone();
        }
        self.budget.reserved.fetch_sub(self.reserve.get(), Ordering::Relaxed);
        self.budget.give_back(self.loan.get());
    }
}

/// Memory that is returned when it is dropped: the memory of a response, until the response has been sent and is no
/// longer retained.
#[derive(Debug)]
pub(crate) struct Charge {
    room: CommandMemory,
    bytes: usize,
    kind: ChargeKind,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.room.0.give_back(self.bytes, self.kind);
    }
}
