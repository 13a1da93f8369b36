//! Tiers: fast and slow devices, and which slabs move between them. `docs/decisions/0018-tiers.md` gives the reasons.

use std::sync::atomic::AtomicU64;

/// Whether a device is fast.
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
    /// Bytes of all slabs for which its devices have room, of those that are online and get new slabs.
    pub size_bytes: u64,
    /// Bytes of its slabs.
    pub used_bytes: u64,
    /// Reads and writes of this tier since the pool was opened. One that is in several slabs counts for each.
    pub requests: u64,
    /// Bytes of the slabs that were moved to it since the pool was opened, whatever is in them.
    pub moved_bytes: u64,
}

/// The tiers of a space. Without fast and slow devices, there is only one, and nothing moves.
#[derive(Default)]
pub(crate) struct Tiering {
    /// Where new data goes, if there are two.
    pub(crate) new_data: Option<Tier>,
    /// The slab that moves, and to which tier.
    pub(crate) moving: Option<(u32, Tier)>,
    /// Bytes of slabs that may begin to move.
    pub(crate) allowance: u64,
    pub(crate) requests: [AtomicU64; 2],
    pub(crate) moved: [u64; 2],
}

impl Tiering {
    pub(crate) const fn is_on(&self) -> bool {
        self.new_data.is_some()
    }

    /// Returns the tier to which a slab moves.
    pub(crate) fn destination(&self, slab: u32) -> Option<Tier> {
        self.moving.filter(|&(moving, _)| moving == slab).map(|(_, tier)| tier)
    }

    /// Notes that a slab does not move any more.
    pub(crate) fn end_move(&mut self, slab: u32) {
        self.moving = self.moving.filter(|&(moving, _)| moving != slab);
    }
}
