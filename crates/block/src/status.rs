//! The part of a store that changes while the store is open, in one cell that all its layers share.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The requests that a store carries out now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Usability {
    /// All requests.
    #[default]
    Usable = 0,
    /// No writes and no flushes: [`crate::StopCause::FlushFailed`].
    WritesStopped = 1,
    /// None: [`crate::StopCause::OutOfService`].
    OutOfService = 2,
}

/// A component that reports a changed status to its clients.
pub trait StatusListener: Send + Sync {
    /// Called after each change, by the thread that made it. It must not block.
    fn status_changed(&self);
}

/// The size and the usability of a store. The lowest store creates the cell, and each layer returns the cell of the
/// store below it.
pub struct StoreStatus {
    block_count: AtomicU64,
    usability: AtomicU8,
    generation: AtomicU64,
    listeners: Mutex<Vec<Weak<dyn StatusListener>>>,
}

impl StoreStatus {
    /// Creates the status of a usable store.
    pub fn new(block_count: u64) -> Arc<Self> {
        Arc::new(Self {
            block_count: AtomicU64::new(block_count),
            usability: AtomicU8::new(Usability::Usable as u8),
            generation: AtomicU64::new(0),
            listeners: Mutex::default(),
        })
    }

    /// Returns the number of blocks of the lowest store. A layer may have another one: see [`crate::Store::geometry`].
    #[inline]
    pub fn block_count(&self) -> u64 {
        self.block_count.load(Ordering::Acquire)
    }

    /// Sets the number of blocks of the lowest store. Only that store calls this, and holds no lock meanwhile that its
    /// other methods take.
    pub fn set_block_count(&self, block_count: u64) {
        if self.block_count.swap(block_count, Ordering::AcqRel) != block_count {
            self.changed();
        }
    }

    /// Returns the requests that the store carries out now.
    #[inline]
    pub fn usability(&self) -> Usability {
        match self.usability.load(Ordering::Acquire) {
            0 => Usability::Usable,
            1 => Usability::WritesStopped,
            _ => Usability::OutOfService,
        }
    }

    /// Sets the requests that the store carries out from now on.
    pub fn set_usability(&self, usability: Usability) {
        if self.usability.swap(usability as u8, Ordering::AcqRel) != usability as u8 {
            self.changed();
        }
    }

    /// Returns a number that each change increases. A caller that remembers it finds out with one load whether it knows
    /// the current status.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Adds a listener, until it is dropped.
    pub fn subscribe(&self, listener: Weak<dyn StatusListener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let listeners: Vec<_> = self.listeners.lock().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.status_changed());
    }
}
