//! Tiers: fast and slow devices, and which slabs move between them. `docs/decisions/0018-tiers.md` gives the reasons.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use crate::tasks::CopyReason;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// It is not one of the fast devices.
    Slow,
    /// Data that is used most belongs on it.
    Fast,
}

impl Tier {
    pub(crate) const fn at(self) -> usize {
        self as usize
    }
}

/// Which devices of a pool are fast, and where new data goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// The numbers of the fast devices.
    pub fast: Vec<u8>,
    /// The devices to which new data goes while they have room.
    pub new_data: Tier,
}

/// The use of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUse {
    /// Bytes for slabs of its devices that take part.
    pub size_bytes: u64,
    /// Bytes of its slabs.
    pub used_bytes: u64,
    /// Requests for data in this tier since the pool was opened.
    pub requests: u64,
    /// Bytes that were moved to it since the pool was opened.
    pub moved_bytes: u64,
}

/// The tiers of a space. Without fast and slow devices, there is only one, and nothing moves.
#[derive(Default)]
pub(crate) struct Tiering {
    pub(crate) is_on: bool,
    pub(crate) is_new_data_fast: bool,
    /// The slabs that move, and to which tier.
    pub(crate) moves: BTreeMap<u32, Tier>,
    pub(crate) requests: [AtomicU64; 2],
    pub(crate) moved: [u64; 2],
}

impl Tiering {
    /// Returns the tier to which a slab moves.
    pub(crate) fn destination(&self, slab: u32) -> Option<Tier> {
        self.moves.get(&slab).copied()
    }

    /// Notes that a slab does not move any more.
    pub(crate) fn end_move(&mut self, slab: u32) {
        self.moves.remove(&slab);
    }

    /// Notes that nothing moves any more.
    pub(crate) fn end_all_moves(&mut self) {
        self.moves.clear();
    }

    /// Returns why a slab is copied.
    pub(crate) fn copy_reason(&self, slab: u32) -> CopyReason {
        if self.moves.contains_key(&slab) { CopyReason::Move } else { CopyReason::Repair }
    }
}
