//! The work of one session, for all protocols: its next I/O and the results.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use super::ledger::Ledger;
use super::plan::{Io, ReadBack, Source, Unit};
use super::replay::{Feed, LENGTH_LIMIT};
use super::{LoadError, LoadOptions, READ_BACK_LENGTH};

/// The state that the sessions of one load share.
#[derive(Default)]
pub(super) struct Shared {
    /// The record of the written blocks, if the load verifies.
    pub(super) ledger: Option<Rc<RefCell<Ledger>>>,
    /// The trace of a replay.
    pub(super) feed: Option<Rc<RefCell<Feed>>>,
    /// The values that the first session negotiated.
    pub(super) parameters: BTreeMap<String, String>,
    /// The blocks that are still to be read again.
    pub(super) left: ReadBack,
    /// Number of blocks of the read-back.
    pub(super) read_back: u64,
}

impl Shared {
    /// Returns the length of the longest I/O in bytes.
    pub(super) fn longest(&self, options: &LoadOptions) -> u32 {
        if self.feed.is_some() { LENGTH_LIMIT } else { options.longest() }
    }

    /// Starts the read-back of all written blocks. The caller ensures that no I/O is open.
    pub(super) fn begin_read_back(&mut self) {
        let Some(ledger) = &self.ledger else { return };
        let ledger = ledger.borrow();
        let runs = ledger.known((READ_BACK_LENGTH / ledger.block_length()).max(1));
        self.read_back = runs.iter().map(|&(_, blocks)| u64::from(blocks)).sum();
        *self.left.borrow_mut() = runs;
    }
}

/// Fills a buffer with the data of writes that are not verified.
pub(super) fn fill_pattern(bytes: &mut [u8]) {
    bytes.iter_mut().zip(0usize..).for_each(|(byte, at)| *byte = (at * 7) as u8);
}

/// The I/Os of one session on its logical unit.
pub(super) struct Work {
    source: Source,
    unit: Unit,
    ledger: Option<Rc<RefCell<Ledger>>>,
}

impl Work {
    /// Creates the work of session `index` on a unit with this number of blocks and block length.
    pub(super) fn new(
        options: &LoadOptions,
        (blocks, block_length): (u64, u32),
        index: u32,
        shared: &mut Shared,
    ) -> Result<Self, LoadError> {
        let (bytes, least) = (blocks.saturating_mul(block_length.into()), options.least);
        if bytes < least {
            return Err(LoadError::TooSmall { bytes, least });
        }
        let unit = Unit::new(options, blocks, block_length);
        for block_bytes in options.block_sizes() {
            unit.check(block_bytes)?;
        }
        if options.verify && shared.ledger.is_none() {
            let ledger = Ledger::new(sarsen_io::random::number(), block_length).ok_or(
                LoadError::Options("the blocks of the unit are too small for verification"),
            )?;
            shared.ledger = Some(Rc::new(RefCell::new(ledger)));
        }
        let source = match &shared.feed {
            Some(feed) => Source::Replay(feed.clone()),
            None => Source::new(options, unit, index),
        };
        Ok(Self { source, unit, ledger: shared.ledger.clone() })
    }

    /// Whether an I/O may start at another time than the end of the previous one.
    pub(super) fn is_timed(&self) -> bool {
        self.ledger.is_some() || matches!(self.source, Source::Replay(_)) || self.due().is_some()
    }

    /// Returns the due time of the next I/O. `None` means that its start does not depend on time.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.source {
            Source::Plain(_) | Source::ReadBack(_) => None,
            Source::Mixed(mixed) => mixed.due(),
            Source::Replay(feed) => feed.borrow().due(),
        }
    }

    /// Returns the number of I/Os that are due and have not started.
    pub(super) fn backlog(&self, now: Instant) -> u64 {
        match &self.source {
            Source::Mixed(mixed) => mixed.backlog(now),
            Source::Plain(_) | Source::Replay(_) | Source::ReadBack(_) => 0,
        }
    }

    /// Whether the load verifies the data that it reads.
    #[inline]
    pub(super) const fn verifies(&self) -> bool {
        self.ledger.is_some()
    }

    /// Returns the next I/O if it may start now.
    #[inline]
    pub(super) fn next(&mut self, now: Instant) -> Result<Option<Io>, LoadError> {
        if let Source::Plain(plan) = &mut self.source {
            return Ok(Some(plan.next(now)));
        }
        self.draw(now)
    }

    #[inline(never)]
    fn draw(&mut self, now: Instant) -> Result<Option<Io>, LoadError> {
        match (&mut self.source, &self.ledger) {
            (Source::Plain(plan), _) => Ok(Some(plan.next(now))),
            (Source::Mixed(mixed), None) => Ok(mixed.next(now, |_| true)),
            (Source::Mixed(mixed), Some(ledger)) => {
                Ok(mixed.next(now, |io| ledger.borrow_mut().admit(io.lba, io.blocks, io.reads)))
            }
            (Source::Replay(feed), _) => feed.borrow_mut().next(now, self.unit),
            (Source::ReadBack(left), ledger) => {
                let Some((lba, blocks)) = left.borrow_mut().pop_front() else { return Ok(None) };
                if let Some(ledger) = ledger {
                    let admitted = ledger.borrow_mut().admit(lba, blocks, true);
                    assert!(admitted, "the read-back does not write");
                }
                let bytes = blocks * self.unit.block_length;
                Ok(Some(Io { reads: true, lba, blocks, bytes, intended: now }))
            }
        }
    }

    /// Limits the work to reads of these blocks from now on.
    pub(super) fn limit_to_reads_of(&mut self, left: ReadBack) {
        self.source = Source::ReadBack(left);
    }

    /// Fills a buffer with the data of an open write that [`Self::next`] returned, if the load verifies it.
    pub(super) fn fill(&self, lba: u64, data: &mut [u8]) {
        if let Some(ledger) = &self.ledger {
            ledger.borrow().fill(lba, data);
        }
    }

    /// Records the end of an I/O: whether it succeeded, and the data of a successful read.
    pub(super) fn end(&self, io: &Io, good: bool, data: Option<&[u8]>) {
        let Some(ledger) = &self.ledger else { return };
        let mut ledger = ledger.borrow_mut();
        if io.reads {
            ledger.end_read(io.lba, io.blocks, data.filter(|_| good));
            if let (Source::ReadBack(left), 2.., false) = (&self.source, io.blocks, good) {
                // Read each block alone: one bad block must not hide the others.
                let blocks = io.lba..io.lba + u64::from(io.blocks);
                left.borrow_mut().extend(blocks.map(|block| (block, 1)));
            }
        } else {
            ledger.end_write(io.lba, io.blocks, good);
        }
    }
}
