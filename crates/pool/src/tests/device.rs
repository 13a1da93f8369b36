//! A device with a volatile cache: requests end in random order, and a power failure keeps any part of what was not
//! flushed.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use sarsen_block::{
    AllocationRun, BlockError, BlockSize, Buffer, Characteristics, Data, Direction, Durability,
    Extent, Geometry, InvalidRequest, Io, Lba, Payload, Reply, Rng, Store, StoreStatus,
};
use tokio::sync::oneshot;

const SECTOR: usize = 512;

pub(super) struct SimulatedDevice {
    status: Arc<StoreStatus>,
    inner: Mutex<Inner>,
}

struct Inner {
    rng: Rng,
    /// What reads return.
    image: Vec<u8>,
    /// What survives in any case.
    lasting: Vec<u8>,
    /// Writes that ended, in their order: offset, data, and whether they must survive.
    cached: Vec<(usize, Vec<u8>, bool)>,
    waiting: Vec<Waiting>,
    /// Offsets and lengths of all reads.
    reads: Vec<(usize, usize)>,
    /// One of so many requests fails, if this is not 0.
    failing: u64,
    has_failed: bool,
    /// Writes of these bytes fail.
    unwritable: Range<usize>,
}

enum Waiting {
    Read {
        offset: usize,
        length: usize,
        done: oneshot::Sender<Buffer>,
    },
    Write {
        offset: usize,
        data: Vec<u8>,
        durable: bool,
        done: oneshot::Sender<()>,
    },
    /// With the number of writes that ended before it began.
    Flush {
        cached: usize,
        done: oneshot::Sender<()>,
    },
}

impl SimulatedDevice {
    pub(super) fn new(bytes: usize, seed: u64) -> Arc<Self> {
        // Two of them, which need no memory before they are written.
        Self::with(vec![0; bytes], vec![0; bytes], seed)
    }

    fn with(image: Vec<u8>, lasting: Vec<u8>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            status: StoreStatus::new((image.len() / SECTOR) as u64),
            inner: Mutex::new(Inner {
                rng: Rng::new(seed),
                image,
                lasting,
                cached: Vec::new(),
                waiting: Vec::new(),
                reads: Vec::new(),
                failing: 0,
                has_failed: false,
                unwritable: 0..0,
            }),
        })
    }

    /// Returns another device with the first bytes of this one, and zeroes behind them.
    pub(super) fn copy(&self, bytes: usize) -> Arc<Self> {
        let mut image = self.inner.lock().image.clone();
        image.resize(bytes, 0);
        Self::with(image.clone(), image, 0)
    }

    /// Damages a byte.
    pub(super) fn flip(&self, offset: usize) {
        self.edit(offset, 1, |byte| byte[0] ^= 1);
    }

    /// Returns the number of its bytes.
    pub(super) fn length(&self) -> usize {
        self.inner.lock().image.len()
    }

    /// Returns the first offset behind another one that has this content.
    pub(super) fn find(&self, behind: usize, content: &[u8]) -> Option<usize> {
        let inner = self.inner.lock();
        let parts = inner.image[behind..].chunks_exact(content.len());
        let at = parts.into_iter().position(|part| part == content)?;
        Some(behind + at * content.len())
    }

    /// Changes bytes, which a power failure does not bring back.
    pub(super) fn edit(&self, offset: usize, length: usize, edit: impl FnOnce(&mut [u8])) {
        let inner = &mut *self.inner.lock();
        let range = offset..offset + length;
        edit(&mut inner.image[range.clone()]);
        inner.lasting[range.clone()].copy_from_slice(&inner.image[range]);
    }

    /// Returns the offsets and lengths of all reads since the last call.
    pub(super) fn take_reads(&self) -> Vec<(usize, usize)> {
        std::mem::take(&mut self.inner.lock().reads)
    }

    /// Lets one of so many requests fail, or none.
    pub(super) fn fail_one_of(&self, requests: u64) {
        let mut inner = self.inner.lock();
        (inner.failing, inner.has_failed) = (requests, false);
    }

    /// Lets writes of these bytes fail.
    pub(super) fn fail_writes(&self, bytes: Range<usize>) {
        self.inner.lock().unwritable = bytes;
    }

    /// Returns whether a request has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.inner.lock().has_failed
    }

    /// Carries out one of the waiting requests. Returns whether there was one.
    pub(super) fn step(&self) -> bool {
        let inner = &mut *self.inner.lock();
        if inner.waiting.is_empty() {
            return false;
        }
        let chosen = inner.rng.below(inner.waiting.len() as u64) as usize;
        let waiting = inner.waiting.swap_remove(chosen);
        let unwritable = &inner.unwritable;
        let is_unwritable = matches!(&waiting, Waiting::Write { offset, data, .. }
            if *offset < unwritable.end && unwritable.start < offset + data.len());
        if is_unwritable || inner.failing > 0 && inner.rng.below(inner.failing) == 0 {
            inner.has_failed = true;
            // Any part of a failed write may be there. The sender of its result is dropped.
            if let Waiting::Write { offset, data, .. } = waiting {
                for (number, sector) in data.chunks(SECTOR).enumerate() {
                    if inner.rng.chance(50) {
                        let at = offset + number * SECTOR;
                        inner.image[at..at + SECTOR].copy_from_slice(sector);
                        inner.cached.push((at, sector.to_vec(), false));
                    }
                }
            }
            return true;
        }
        match waiting {
            Waiting::Read { offset, length, done } => {
                inner.reads.push((offset, length));
                let _dropped = done.send(Buffer::copy_of(&inner.image[offset..offset + length]));
            }
            Waiting::Write { offset, data, durable, done } => {
                inner.image[offset..offset + data.len()].copy_from_slice(&data);
                inner.cached.push((offset, data, durable));
                let _dropped = done.send(());
            }
            Waiting::Flush { cached, done } => {
                // A later write may be in the cache with these; the order of the writes decides.
                for (.., lasts) in &mut inner.cached[..cached] {
                    *lasts = true;
                }
                let first = inner.cached.iter().position(|(.., lasts)| !lasts);
                let count = first.unwrap_or(inner.cached.len());
                for (offset, data, _) in inner.cached.drain(..count) {
                    inner.lasting[offset..offset + data.len()].copy_from_slice(&data);
                }
                for other in &mut inner.waiting {
                    if let Waiting::Flush { cached, .. } = other {
                        *cached = cached.saturating_sub(count);
                    }
                }
                let _dropped = done.send(());
            }
        }
        true
    }

    /// Cuts the power. Each sector of a write that was not flushed survives or not. Often nothing survives, or everything.
    pub(super) fn crash(&self) {
        let percent = [0, 30, 50, 90, 100][self.inner.lock().rng.below(5) as usize];
        self.crash_with(percent);
    }

    /// Cuts the power. This part of the sectors that were written and not flushed survives.
    pub(super) fn crash_with(&self, percent: u32) {
        let inner = &mut *self.inner.lock();
        let waiting = std::mem::take(&mut inner.waiting).into_iter().filter_map(|one| match one {
            Waiting::Write { offset, data, .. } => Some((offset, data, false)),
            Waiting::Read { .. } | Waiting::Flush { .. } => None,
        });
        let cached: Vec<_> = inner.cached.drain(..).chain(waiting).collect();
        for (offset, data, lasts) in &cached {
            for (number, sector) in data.chunks(SECTOR).enumerate() {
                if *lasts || inner.rng.chance(percent) {
                    let at = offset + number * SECTOR;
                    inner.lasting[at..at + SECTOR].copy_from_slice(sector);
                }
            }
        }
        for (offset, data, _) in &cached {
            let range = *offset..offset + data.len();
            inner.image[range.clone()].copy_from_slice(&inner.lasting[range]);
        }
    }

    fn wait<T: 'static>(
        &self,
        waiting: impl FnOnce(&Inner, oneshot::Sender<T>) -> Waiting,
    ) -> Reply<T> {
        let (sender, done) = oneshot::channel();
        let mut inner = self.inner.lock();
        let waiting = waiting(&inner, sender);
        inner.waiting.push(waiting);
        Io::pending(async {
            let failed = || std::io::Error::other("the device failed");
            done.await.map_err(|_| BlockError::medium(Lba(0), Direction::Write, failed()))
        })
    }
}

impl Store for SimulatedDevice {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: BlockSize::B512, block_count: self.status.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: true,
            read_only: false,
            unmap: None,
            physical_block_exponent: 3,
            optimal_transfer: None,
            protection: false,
            is_lasting: true,
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        if let Err(error) = extent.check(self.status.block_count()) {
            return Io::Ready(Err(error));
        }
        let offset = extent.byte_offset(BlockSize::B512) as usize;
        let length = extent.byte_count(BlockSize::B512) as usize;
        self.wait(|_, done| Waiting::Read { offset, length, done })
            .map(|read| read.map(Data::Buffer))
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        if let Err(error) = extent.check(self.status.block_count()) {
            return Io::Ready(Err(error));
        }
        let offset = extent.byte_offset(BlockSize::B512) as usize;
        let (data, durable) = (data.to_vec(), durability == Durability::Durable);
        self.wait(|_, done| Waiting::Write { offset, data, durable, done })
    }

    fn flush(&self) -> Reply<()> {
        self.wait(|inner, done| Waiting::Flush { cached: inner.cached.len(), done })
    }

    fn unmap(&self, _: Extent) -> Reply<()> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }

    fn write_zeroes(&self, _: Extent, _: Durability) -> Reply<()> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }

    fn allocation(&self, _: Extent) -> Reply<AllocationRun> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }
}
