//! Plans the I/Os of a session.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::replay::Feed;
use super::{LoadError, LoadOptions};
use crate::access::AccessPattern;
use crate::distribution::PositionSampler;
use crate::fio::Amount;
use crate::mix::Mix;
use sarsen_block::Rng;

/// An I/O.
#[derive(Clone, Copy)]
pub(super) struct Io {
    pub(super) reads: bool,
    pub(super) lba: u64,
    /// Number of logical blocks.
    pub(super) blocks: u32,
    pub(super) bytes: u32,
    /// Due time of the I/O: its latency starts here.
    pub(super) intended: Instant,
}

/// The part of the logical unit that the I/Os use.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// First block of that part.
    pub(super) base: u64,
    /// Number of blocks of that part.
    pub(super) blocks: u64,
    pub(super) block_length: u32,
}

impl Unit {
    /// Returns the part that the options select of a unit of `blocks` blocks.
    pub(super) fn new(options: &LoadOptions, blocks: u64, block_length: u32) -> Self {
        let whole = blocks.saturating_mul(block_length.into());
        let bytes = |amount| match amount {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(percent) => {
                (u128::from(whole) * u128::from(percent) / 100).min(u64::MAX.into()) as u64
            }
        };
        let length = u64::from(block_length.max(1));
        let base = (bytes(options.offset) / length).min(blocks);
        let wanted = options.size.map_or(u64::MAX, |size| bytes(size) / length);
        Self { base, blocks: wanted.min(blocks - base), block_length }
    }

    /// Checks that I/Os of `block_bytes` bytes fit into the unit.
    pub(super) fn check(self, block_bytes: u32) -> Result<(), LoadError> {
        let Self { blocks, block_length, .. } = self;
        let fits = block_length > 0
            && block_bytes.is_multiple_of(block_length)
            && u64::from(block_bytes / block_length) <= blocks;
        if fits { Ok(()) } else { Err(LoadError::Unit { block_bytes, blocks, block_length }) }
    }
}

/// The source of the I/Os.
pub(super) enum Source {
    /// One size, uniformly distributed addresses, a closed loop: the source with the lowest cost.
    Plain(Plan),
    /// All other generated loads.
    Mixed(Box<Mixed>),
    /// A trace, shared by all sessions.
    Replay(Rc<RefCell<Feed>>),
    /// The written blocks, which the sessions together read again when the load is over.
    ReadBack(ReadBack),
}

/// Runs of blocks that are still to be read: the first block and the number of blocks.
pub(super) type ReadBack = Rc<RefCell<VecDeque<(u64, u32)>>>;

impl Source {
    /// Returns the source of session `index`. The caller has checked every I/O size against the unit.
    pub(super) fn new(options: &LoadOptions, unit: Unit, index: u32) -> Self {
        let seed = options.seed.wrapping_add(u64::from(index));
        let first = unit.blocks / u64::from(options.sessions) * u64::from(index);
        if options.is_plain() {
            let blocks = options.access.block_bytes / unit.block_length;
            let units = unit.blocks / u64::from(blocks);
            let next_unit = first / u64::from(blocks);
            let rng = Rng::new(seed);
            Self::Plain(Plan { access: options.access, unit, blocks, units, next_unit, rng })
        } else {
            Self::Mixed(Box::new(Mixed::new(options, unit, index, first, seed)))
        }
    }
}

/// The plan of a closed loop with one I/O size.
pub(super) struct Plan {
    access: AccessPattern,
    unit: Unit,
    /// Number of logical blocks of an I/O.
    blocks: u32,
    /// Number of I/Os that fit into the unit without overlap.
    units: u64,
    next_unit: u64,
    rng: Rng,
}

impl Plan {
    #[inline]
    pub(super) fn next(&mut self, now: Instant) -> Io {
        let reads = self.rng.chance(self.access.read_percent.into());
        let unit = if self.rng.chance(self.access.random_percent.into()) {
            self.rng.below(self.units)
        } else {
            self.next_unit
        };
        self.next_unit = if unit + 1 == self.units { 0 } else { unit + 1 };
        let lba = self.unit.base + unit * u64::from(self.blocks);
        Io { reads, lba, blocks: self.blocks, bytes: self.access.block_bytes, intended: now }
    }
}

/// A part of the mix, in blocks of this unit.
struct Drawn {
    /// The sum of the weights of all parts up to and including this part.
    until: u64,
    read_percent: u32,
    random_percent: u32,
    blocks: u32,
    /// Number of blocks between two permitted start addresses.
    grid: u64,
    places: PositionSampler,
}

/// I/Os of several sizes, over a distribution, at a rate.
pub(super) struct Mixed {
    parts: Vec<Drawn>,
    unit: Unit,
    /// The block after the last I/O.
    cursor: u64,
    rng: Rng,
    pace: Option<Pace>,
}

/// Arrivals at a fixed rate.
struct Pace {
    interval: Duration,
    offset: Duration,
    /// The time of the next arrival; unknown before the first turn.
    next: Option<Instant>,
}

impl Mixed {
    fn new(options: &LoadOptions, unit: Unit, index: u32, first: u64, seed: u64) -> Self {
        let mix = options.mix.clone().unwrap_or_else(|| Mix::from(options.access));
        let mut until = 0;
        let parts = mix.parts.iter().map(|part| {
            until += u64::from(part.weight);
            let blocks = part.block_bytes / unit.block_length;
            let align = mix.align_bytes.unwrap_or(part.block_bytes);
            let grid = u64::from(align.div_ceil(unit.block_length).max(1));
            let count = (unit.blocks - u64::from(blocks)) / grid + 1;
            Drawn {
                until,
                read_percent: part.read_percent.into(),
                random_percent: part.random_percent.into(),
                blocks,
                grid,
                places: PositionSampler::new(options.distribution, count),
            }
        });
        let parts = parts.collect();
        let pace = options.rate.map(|rate| {
            let interval = Duration::from_secs_f64(f64::from(options.sessions) / rate);
            Pace { interval, offset: interval / options.sessions * index, next: None }
        });
        Self { parts, unit, cursor: first, rng: Rng::new(seed), pace }
    }

    /// Returns the due time of the next I/O; `None` means as soon as possible.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pace.as_ref().and_then(|pace| pace.next)
    }

    /// Returns the number of I/Os that were due before `now` and have not started.
    pub(super) fn backlog(&self, now: Instant) -> u64 {
        let Some(Pace { interval, next: Some(next), .. }) = self.pace else { return 0 };
        match now.checked_duration_since(next) {
            Some(late) => (late.as_nanos() / interval.as_nanos().max(1)) as u64 + 1,
            None => 0,
        }
    }

    /// Returns the next I/O if it is due. `admit` returns whether the I/O may be open together with the others. If it
    /// rejects 16 I/Os, this function returns `None`.
    pub(super) fn next(&mut self, now: Instant, mut admit: impl FnMut(&Io) -> bool) -> Option<Io> {
        const DRAWS: u32 = 16;
        let mut intended = now;
        if let Some(pace) = &mut self.pace {
            intended = *pace.next.get_or_insert(now + pace.offset);
            if intended > now {
                return None;
            }
        }
        let io = (0..DRAWS).find_map(|_| {
            let io = self.draw(intended);
            admit(&io).then_some(io)
        })?;
        if let Some(pace) = &mut self.pace {
            pace.next = Some(intended + pace.interval);
        }
        Some(io)
    }

    fn draw(&mut self, intended: Instant) -> Io {
        let total = self.parts.last().map_or(0, |part| part.until);
        let choice = if self.parts.len() == 1 { 0 } else { self.rng.below(total) };
        let index = self.parts.partition_point(|part| part.until <= choice);
        let part = &self.parts[index];
        let reads = self.rng.chance(part.read_percent);
        let at = if self.rng.chance(part.random_percent) {
            part.places.draw(&mut self.rng) * part.grid
        } else {
            let at = self.cursor.next_multiple_of(part.grid);
            if at + u64::from(part.blocks) > self.unit.blocks { 0 } else { at }
        };
        self.cursor = at + u64::from(part.blocks);
        let bytes = part.blocks * self.unit.block_length;
        Io { reads, lba: self.unit.base + at, blocks: part.blocks, bytes, intended }
    }
}

#[cfg(test)]
mod tests;
