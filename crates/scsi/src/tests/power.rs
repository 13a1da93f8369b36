//! A disk that can lose its power, or fail, at any step.

use crate::{MetadataKind, MetadataStore};
use sarsen_block::{
    AllocationRun, BlockError, BlockSize, Buffer, Characteristics, Data, Direction, Durability,
    Extent, Geometry, Io, Payload, Reply, Store, StoreStatus, UnmapSupport,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

/// The initial value of every byte.
pub(super) const OLD: u8 = 0x0f;

/// The event during the selected request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A power loss in the middle of the request.
    Cut,
    /// An error after half of the request. Later requests succeed.
    Fail,
}

/// A disk and its records. Every request is one step. A power loss may discard blocks in the cache.
pub(super) struct Machine {
    trouble: Trouble,
    /// Steps until the event.
    left: usize,
    /// Selects the half of an incomplete request that is kept.
    keeps_first: bool,
    is_off: bool,
    disk: Vec<u8>,
    cache: BTreeMap<u64, Vec<u8>>,
    pub(super) record: Option<Vec<u8>>,
}

pub(super) const MACHINE_BLOCKS: u64 = 16;

/// The outcome of a step.
enum Step {
    Whole,
    Half(Trouble),
    Never,
}

impl Machine {
    pub(super) fn new(trouble: Trouble, left: usize, keeps_first: bool) -> Self {
        let disk = vec![OLD; MACHINE_BLOCKS as usize * 512];
        let (is_off, cache, record) = (false, BTreeMap::new(), None);
        Self { trouble, left, keeps_first, is_off, disk, cache, record }
    }

    fn step(&mut self) -> Step {
        if self.is_off {
            return Step::Never;
        }
        match self.left.checked_sub(1) {
            None => Step::Whole,
            Some(0) => {
                // Steps after a failed one succeed.
                self.left = usize::MAX;
                self.is_off = self.trouble == Trouble::Cut;
                Step::Half(self.trouble)
            }
            Some(left) => {
                self.left = left;
                Step::Whole
            }
        }
    }

    /// Restores the power.
    pub(super) fn restart(&mut self, left: usize) {
        let cache = std::mem::take(&mut self.cache);
        for (lba, block) in cache {
            // Some blocks of the cache had reached the disk.
            if (lba % 2 == 0) == self.keeps_first {
                self.disk[lba as usize * 512..][..512].copy_from_slice(&block);
            }
        }
        self.is_off = false;
        self.left = left;
    }

    fn put(&mut self, extent: Extent, data: &[u8], durability: Durability) {
        for (lba, block) in (extent.lba.0..).zip(data.chunks(512)) {
            match durability {
                Durability::Volatile => drop(self.cache.insert(lba, block.to_vec())),
                Durability::Durable => {
                    self.cache.remove(&lba);
                    self.disk[lba as usize * 512..][..512].copy_from_slice(block);
                }
            }
        }
    }

    /// Writes every other block.
    fn put_half(&mut self, extent: Extent, data: &[u8]) {
        for (lba, block) in (extent.lba.0..).zip(data.chunks(512)) {
            if (lba % 2 == 0) == self.keeps_first {
                self.put(Extent::new(lba, 1), block, Durability::Durable);
            }
        }
    }
}

fn trouble<T: 'static>(trouble: Trouble) -> Reply<T> {
    let source = io::Error::from_raw_os_error(5);
    let (lba, direction) = (sarsen_block::Lba(0), Direction::Write);
    match trouble {
        Trouble::Cut => Io::pending(std::future::pending()),
        Trouble::Fail => Io::Ready(Err(BlockError::medium(lba, direction, source))),
    }
}

pub(super) struct Disk(Arc<Mutex<Machine>>, Arc<StoreStatus>);
pub(super) struct Records(pub(super) Arc<Mutex<Machine>>);

impl Disk {
    pub(super) fn new(machine: &Arc<Mutex<Machine>>) -> Self {
        Self(machine.clone(), StoreStatus::new(MACHINE_BLOCKS))
    }

    /// Takes one step. `action` gets the machine, and whether the step is a complete one.
    fn step<T: 'static>(&self, action: impl FnOnce(&mut Machine, bool) -> T) -> Reply<T> {
        let mut machine = self.0.lock().unwrap();
        let outcome = match machine.step() {
            Step::Whole => None,
            Step::Half(trouble) => Some(trouble),
            Step::Never => return Io::pending(std::future::pending()),
        };
        let reply = action(&mut machine, outcome.is_none());
        outcome.map_or(Io::Ready(Ok(reply)), trouble)
    }
}

impl Store for Disk {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: BlockSize::B512, block_count: MACHINE_BLOCKS }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: true,
            read_only: false,
            unmap: Some(UnmapSupport { granularity_blocks: 1, anchors: false, tells_space: false }),
            physical_block_exponent: 0,
            optimal_transfer: None,
            protection: false,
            is_lasting: true,
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.1
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.step(|machine, _| {
            let mut buffer = Buffer::zeroed(extent.block_count as usize * 512);
            for (lba, block) in (extent.lba.0..).zip(buffer.chunks_mut(512)) {
                let cached = machine.cache.get(&lba).map(Vec::as_slice);
                block.copy_from_slice(cached.unwrap_or(&machine.disk[lba as usize * 512..][..512]));
            }
            Data::Buffer(buffer)
        })
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        self.step(|machine, is_whole| {
            if is_whole {
                machine.put(extent, &data, durability);
            } else {
                machine.put_half(extent, &data);
            }
        })
    }

    fn flush(&self) -> Reply<()> {
        self.step(|machine, is_whole| {
            let cache = std::mem::take(&mut machine.cache);
            if is_whole {
                for (lba, block) in cache {
                    machine.put(Extent::new(lba, 1), &block, Durability::Durable);
                }
            }
        })
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        let zeroes = vec![0; extent.block_count as usize * 512];
        self.step(|machine, _| machine.put(extent, &zeroes, Durability::Volatile))
    }

    fn write_zeroes(&self, _: Extent, _: Durability) -> Reply<()> {
        panic!("not requested by the test")
    }

    fn allocation(&self, _: Extent) -> Reply<AllocationRun> {
        panic!("not requested by the test")
    }
}

impl MetadataStore for Records {
    fn load(&self, record: MetadataKind) -> io::Result<Option<Vec<u8>>> {
        let machine = self.0.lock().unwrap();
        Ok(machine.record.clone().filter(|_| record == MetadataKind::AtomicWrite))
    }

    fn save(&self, record: MetadataKind, content: Vec<u8>) -> Io<io::Result<()>> {
        assert_eq!(record, MetadataKind::AtomicWrite);
        let mut machine = self.0.lock().unwrap();
        let content = (!content.is_empty()).then_some(content);
        match machine.step() {
            Step::Whole => machine.record = content,
            Step::Half(trouble) => {
                // The record is either the old one or the new one.
                if machine.keeps_first {
                    machine.record = content;
                }
                return match trouble {
                    Trouble::Cut => Io::pending(std::future::pending()),
                    Trouble::Fail => Io::Ready(Err(io::Error::from_raw_os_error(28))),
                };
            }
            Step::Never => return Io::pending(std::future::pending()),
        }
        Io::Ready(Ok(()))
    }
}
