//! Volumes that are filled from an image while they are used.
//!
//! A chunk of such a volume that has anything in the pool has all of its contents there. A chunk without anything in the
//! pool reads from the image. So the map of the volume shows what is filled, and an interrupted filling goes on after the
//! mapped chunks. For that, a chunk gets its first contents by one write of the whole chunk: one record maps all of it, and
//! a record is durable only with all records before it. Until the end of the filling, nothing is removed from the map:
//! zeroes are written. Chunks after the end of the image belong to the volume from the beginning.
//!
//! A request that gives a chunk its first contents holds the lock of the chunk. Requests to chunks that have contents take no
//! lock.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sarsen_block::{
    Allocation, AllocationRun, BlockError, Buffer, Characteristics, Data, Direction, Durability,
    Extent, Geometry, InvalidRequest, Io, Lba, Payload, Reply, Space, Store, StoreStatus,
};

use crate::format::{FILLING, IS_VOLUME};
use crate::locks::FillLocks;
use crate::pool::live;
use crate::request::Bytes;
use crate::shared::Shared;
use crate::state::State;
use crate::tasks::CopyReason;
use crate::{Pool, PoolError, PoolVolume, VolumeId};

/// Maximum number of bytes that one step fills.
const STEP: u64 = 1 << 20;
/// Maximum number of chunks that are looked up together.
const RUN_MAX: u64 = 1024;
/// Number of bytes of the image after which the volume is flushed. An interruption loses no more of the filling.
const FLUSHED: u64 = 256 << 20;

/// The disk in an image, which does not change.
pub trait Image: Send + Sync {
    /// Returns the bytes of the disk.
    fn size(&self) -> u64;

    /// Reads bytes of the disk.
    fn read(&self, offset: u64, length: usize) -> Io<io::Result<Data>>;

    /// Returns the first byte of the disk from `offset` on, which is within it, that may not be zero, if there is one.
    fn next_data(&self, offset: u64) -> Io<io::Result<Option<u64>>>;
}

/// The reason why the filling of a volume cannot go on. It can be tried again.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// The image cannot be read.
    #[error("its image cannot be read: {0}")]
    Image(#[source] io::Error),
    /// The pool does not take the data.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

fn pool_failed(error: BlockError) -> FillError {
    FillError::Pool(match error {
        BlockError::NoSpace { .. } => PoolError::NoSpace,
        source => PoolError::Volume { source },
    })
}

impl Pool {
    /// Opens a volume that is filled from an image, by [`FillingVolume::fill_some`].
    pub async fn open_filling(
        &self,
        id: VolumeId,
        image: Arc<dyn Image>,
    ) -> Result<FillingVolume, PoolError> {
        let row = live(&self.shared.state.read(), id)?;
        if row.kind != IS_VOLUME || row.flags & FILLING == 0 {
            return Err(PoolError::Invalid("the volume is not being filled from an image"));
        }
        if row.size_to_be.get() != image.size() {
            return Err(PoolError::Invalid("the disk in the image has another size than before"));
        }
        let volume = self.open_object(id).await?;
        let shift = self.shared.state.read().shape().chunk_shift;
        let chunks = image.size().div_ceil(1 << shift);
        Ok(FillingVolume(Arc::new(Filling {
            pool: self.clone(),
            volume,
            id,
            shift,
            chunks,
            size: image.size(),
            image: Mutex::new(Some(image)),
            locks: self.shared.fill_locks(id),
            reached: AtomicU64::new(0),
        })))
    }

    /// Ends the filling of a volume durably. All that belongs in it was flushed.
    async fn end_filling(&self, id: VolumeId) -> Result<(), PoolError> {
        let wanted = |state: &mut State| {
            let mut row = live(state, id)?;
            row.flags &= !FILLING;
            row.size_to_be = 0.into();
            Ok(row)
        };
        self.change_row(wanted).await
    }
}

/// An open volume that is filled from an image, until it has all of it.
pub struct FillingVolume(Arc<Filling>);

struct Filling {
    pool: Pool,
    volume: Arc<PoolVolume>,
    id: VolumeId,
    /// log2 of the bytes of a chunk.
    shift: u8,
    /// Number of chunks that the image reaches.
    chunks: u64,
    /// Bytes of the disk in the image.
    size: u64,
    /// It is closed when the volume is filled.
    image: Mutex<Option<Arc<dyn Image>>>,
    locks: Arc<FillLocks>,
    /// The chunk that the filling has reached.
    reached: AtomicU64,
}

impl Shared {
    fn fill_locks(&self, id: VolumeId) -> Arc<FillLocks> {
        let mut known = self.fill_locks.lock();
        known.retain(|_, locks| locks.strong_count() > 0);
        known.get(&id.0).and_then(Weak::upgrade).unwrap_or_else(|| {
            let locks = Arc::default();
            known.insert(id.0, Arc::downgrade(&locks));
            locks
        })
    }
}

impl FillingVolume {
    /// Returns the number of bytes of its image that the filling has passed, and of all of it, until it is filled.
    pub fn progress(&self) -> Option<(u64, u64)> {
        let reached = self.0.reached.load(Ordering::Relaxed) << self.0.shift;
        (!self.0.is_filled()).then_some((reached.min(self.0.size), self.0.size))
    }

    /// Copies some of what the volume does not have yet. Returns whether there is more; otherwise, the filling has ended. After
    /// an error, it can be called again. It is called once at a time.
    pub async fn fill_some(&self) -> Result<bool, FillError> {
        let Some(image) = self.0.image() else {
            *self.0.image.lock() = None;
            return Ok(false);
        };
        let from = self.0.reached.load(Ordering::Relaxed);
        let mut chunk = from;
        let next = Filling::next_data(&*image, chunk << self.0.shift).await;
        if let Some(next) = next.map_err(FillError::Image)? {
            chunk = chunk.max(next >> self.0.shift);
            let end = (chunk + (STEP >> self.0.shift).max(1)).min(self.0.chunks);
            let filling = self.0.clone();
            let step = async move { filling.fill_chunks(&*image, chunk..end).await };
            let shared = &self.0.volume.shared;
            let copied = shared.finishing(step).wait().await?;
            let flushed = FLUSHED >> self.0.shift;
            if end / flushed > from / flushed {
                self.0.volume.flush().wait().await.map_err(pool_failed)?;
            }
            self.0.reached.store(end, Ordering::Relaxed);
            shared.tasks.pause(CopyReason::Repair, copied).await;
            tokio::task::yield_now().await;
            return Ok(true);
        }
        self.0.volume.flush().wait().await.map_err(pool_failed)?;
        {
            let _ending = self.0.locks.ending.write().await;
            if !self.0.is_filled() {
                self.0.volume.flush().wait().await.map_err(pool_failed)?;
                self.0.pool.end_filling(self.0.id).await?;
                self.0.locks.is_filled.store(true, Ordering::Release);
            }
        }
        *self.0.image.lock() = None;
        // Programs of older versions can open the pool from now on.
        self.0.pool.checkpoint().await?;
        Ok(false)
    }

    /// Returns whether all chunks of an extent belong to the volume.
    fn has_all(&self, extent: Extent) -> bool {
        let filling = &self.0;
        if filling.is_filled() {
            return true;
        }
        let bytes = filling.volume.bytes(extent);
        let state = filling.volume.shared.state.read();
        filling.chunks_of(bytes).all(|chunk| {
            let mapping = || state.mapping(filling.id.0, chunk);
            chunk >= filling.chunks || mapping().is_ok_and(|mapping| mapping.own != 0)
        })
    }

    fn change(&self, extent: Extent, change: Change) -> Reply<()> {
        if let Err(error) = extent.check(self.0.volume.status().block_count()) {
            return Io::Ready(Err(error));
        }
        let filling = self.0.clone();
        self.0.volume.shared.finishing(async move { filling.change(extent, change).await })
    }
}

/// A change of blocks.
enum Change {
    Write(Payload, Durability),
    Zero(Durability),
}

impl Filling {
    fn is_filled(&self) -> bool {
        self.locks.is_filled.load(Ordering::Acquire)
    }

    /// Returns the image, if the volume is not filled. It is not filled as long as the caller holds the lock of the end.
    fn image(&self) -> Option<Arc<dyn Image>> {
        let image = self.image.lock().clone();
        image.filter(|_| !self.is_filled())
    }

    /// Returns the chunks that a range touches.
    fn chunks_of(&self, bytes: Bytes) -> Range<u64> {
        bytes.start >> self.shift..((bytes.end - 1) >> self.shift) + 1
    }

    /// Returns the bytes of chunks, as far as the volume has them.
    fn bytes_of(&self, chunks: Range<u64>) -> Bytes {
        let geometry = self.volume.geometry();
        Bytes {
            volume: self.id.0,
            start: chunks.start << self.shift,
            end: (chunks.end << self.shift).min(geometry.byte_count()),
            block_shift: geometry.block_size.shift(),
        }
    }

    /// Returns whether a chunk belongs to the volume, and not to the image.
    async fn has(&self, chunk: u64) -> Result<bool, BlockError> {
        if chunk >= self.chunks {
            return Ok(true);
        }
        loop {
            let mapping = self.volume.shared.state.read().mapping(self.id.0, chunk);
            match mapping {
                Ok(mapping) => return Ok(mapping.own != 0),
                Err(blocked) => {
                    let resolved = self.volume.shared.resolve(blocked).await;
                    resolved.map_err(|error| self.bytes_of(chunk..chunk + 1).pool_error(error))?;
                }
            }
        }
    }

    /// Returns some of the first chunks of a range, which is not empty, that all belong to the volume, or all to the image.
    async fn run(&self, chunks: Range<u64>) -> Result<(Range<u64>, bool), BlockError> {
        let is_own = self.has(chunks.start).await?;
        let mut end = chunks.start + 1;
        let limit = chunks.end.min(chunks.start + RUN_MAX);
        while end < limit && self.has(end).await? == is_own {
            end += 1;
        }
        Ok((chunks.start..end, is_own))
    }

    fn failed(bytes: Bytes) -> impl Fn(io::Error) -> BlockError {
        move |error| BlockError::medium(bytes.lba(bytes.start), Direction::Read, error)
    }

    /// Reads bytes of the image, and zeroes behind it.
    async fn read_image(image: &dyn Image, bytes: Bytes) -> io::Result<Buffer> {
        let length = bytes.end.min(image.size()).saturating_sub(bytes.start) as usize;
        let mut buffer = Buffer::zeroed(bytes.length() as usize);
        if length > 0 {
            let data = image.read(bytes.start, length).wait().await?;
            data.copy_out(0, &mut buffer[..length]);
        }
        Ok(buffer)
    }

    /// Returns the first byte from `offset` on that may not be zero in the image, if there is one.
    async fn next_data(image: &dyn Image, offset: u64) -> io::Result<Option<u64>> {
        if offset < image.size() { image.next_data(offset).wait().await } else { Ok(None) }
    }

    async fn read(&self, extent: Extent) -> Result<Data, BlockError> {
        let _ending = self.locks.ending.read().await;
        let Some(image) = self.image() else { return self.volume.read(extent).wait().await };
        let bytes = self.volume.bytes(extent);
        let mut buffer = Buffer::zeroed(bytes.length() as usize);
        let (mut chunk, end) = (bytes.start >> self.shift, self.chunks_of(bytes).end);
        while chunk < end {
            let (run, is_own) = self.run(chunk..end).await?;
            chunk = run.end;
            let whole = self.bytes_of(run);
            let (start, end) = (bytes.start.max(whole.start), bytes.end.min(whole.end));
            let part = Bytes { start, end, ..bytes };
            let into = &mut buffer[(start - bytes.start) as usize..(end - bytes.start) as usize];
            if is_own {
                self.volume.read(extent_of(part)).wait().await?.copy_out(0, into);
            } else {
                let data = Self::read_image(&*image, part).await.map_err(Self::failed(part))?;
                into.copy_from_slice(&data);
            }
        }
        Ok(buffer.into())
    }

    /// Gives a chunk all of its contents, unless it has them. The caller holds its lock.
    async fn copy_from_image(&self, image: &dyn Image, chunk: u64) -> Result<(), BlockError> {
        if self.has(chunk).await? {
            return Ok(());
        }
        let bytes = self.bytes_of(chunk..chunk + 1);
        let data = Self::read_image(image, bytes).await.map_err(Self::failed(bytes))?;
        self.volume.write(extent_of(bytes), data.into(), Durability::Volatile).wait().await
    }

    async fn change(&self, extent: Extent, change: Change) -> Result<(), BlockError> {
        match change {
            Change::Write(data, durability) => {
                let _ending = self.locks.ending.read().await;
                let Some(image) = self.image() else {
                    return self.volume.write(extent, data, durability).wait().await;
                };
                let bytes = self.volume.bytes(extent);
                let chunks = self.chunks_of(bytes);
                let _locked = self.locks.chunks.lock(self.id.0, chunks.clone()).await;
                // Only the first and the last one may be written in part. The write maps each other one as a whole.
                for chunk in [chunks.start, chunks.end - 1] {
                    let whole = self.bytes_of(chunk..chunk + 1);
                    if whole.start < bytes.start || whole.end > bytes.end {
                        self.copy_from_image(&*image, chunk).await?;
                    }
                }
                self.volume.write(extent, data, durability).wait().await
            }
            Change::Zero(durability) => {
                let bytes = self.volume.bytes(extent);
                for chunk in self.chunks_of(bytes).start..self.chunks_of(bytes).end.min(self.chunks)
                {
                    let whole = self.bytes_of(chunk..chunk + 1);
                    let (start, end) = (bytes.start.max(whole.start), bytes.end.min(whole.end));
                    self.zero(chunk, Bytes { start, end, ..bytes }).await?;
                    tokio::task::yield_now().await;
                }
                let start = bytes.start.max(self.chunks << self.shift);
                if start < bytes.end {
                    self.volume.unmap(extent_of(Bytes { start, ..bytes })).wait().await?;
                }
                match durability {
                    Durability::Durable => self.volume.flush().wait().await,
                    Durability::Volatile => Ok(()),
                }
            }
        }
    }

    /// Writes zeroes to a part of a chunk.
    async fn zero(&self, chunk: u64, part: Bytes) -> Result<(), BlockError> {
        let _ending = self.locks.ending.read().await;
        let Some(image) = self.image() else {
            return self.volume.unmap(extent_of(part)).wait().await;
        };
        let _locked = self.locks.chunks.lock(self.id.0, chunk..chunk + 1).await;
        if !self.has(chunk).await? {
            let next = Self::next_data(&*image, part.start).await.map_err(Self::failed(part))?;
            if next.is_none_or(|next| next >= part.end) {
                return Ok(());
            }
            if part.length() < self.bytes_of(chunk..chunk + 1).length() {
                self.copy_from_image(&*image, chunk).await?;
            }
        }
        let zeroes = Buffer::zeroed(part.length() as usize);
        self.volume.write(extent_of(part), zeroes.into(), Durability::Volatile).wait().await
    }

    /// Copies chunks that are not filled, and that are not zero in the image. Returns the number of bytes that were copied.
    async fn fill_chunks(&self, image: &dyn Image, chunks: Range<u64>) -> Result<u64, FillError> {
        let _ending = self.locks.ending.read().await;
        let _locked = self.locks.chunks.lock(self.id.0, chunks.clone()).await;
        let (mut chunk, mut copied) = (chunks.start, 0);
        if self.is_filled() {
            return Ok(0);
        }
        while chunk < chunks.end {
            let (run, is_own) = self.run(chunk..chunks.end).await.map_err(pool_failed)?;
            chunk = run.end;
            if is_own {
                continue;
            }
            let bytes = self.bytes_of(run.clone());
            let data = Self::read_image(image, bytes).await.map_err(FillError::Image)?;
            // The volume may grow meanwhile.
            let part_of = |chunks: Range<u64>| {
                let part = self.bytes_of(chunks);
                Bytes { end: part.end.min(bytes.end), ..part }
            };
            let content = |chunk: u64| {
                let part = part_of(chunk..chunk + 1);
                &data[(part.start - bytes.start) as usize..(part.end - bytes.start) as usize]
            };
            let is_zero = |chunk: &u64| content(*chunk).iter().all(|&byte| byte == 0);
            let all: Vec<u64> = run.collect();
            for same in all.chunk_by(|one, next| is_zero(one) == is_zero(next)) {
                if is_zero(&same[0]) {
                    continue;
                }
                let part = part_of(same[0]..same[0] + same.len() as u64);
                let from = (part.start - bytes.start) as usize;
                let data = Buffer::copy_of(&data[from..from + part.length() as usize]);
                let written = self.volume.write(extent_of(part), data.into(), Durability::Volatile);
                written.wait().await.map_err(pool_failed)?;
                copied += part.length();
            }
        }
        Ok(copied)
    }

    async fn allocation(&self, extent: Extent) -> Result<AllocationRun, BlockError> {
        let bytes = self.volume.bytes(extent);
        let chunk = bytes.start >> self.shift;
        let _ending = self.locks.ending.read().await;
        let image = self.image();
        let Some(image) = image.filter(|_| chunk < self.chunks) else {
            return self.volume.allocation(extent).wait().await;
        };
        let chunks = chunk..self.chunks_of(bytes).end.min(self.chunks);
        let (run, is_own) = self.run(chunks).await?;
        let part = Bytes { end: bytes.end.min(self.bytes_of(run).end), ..bytes };
        if is_own {
            return self.volume.allocation(extent_of(part)).wait().await;
        }
        let next = Self::next_data(&*image, part.start).await.map_err(Self::failed(part))?;
        // A block in which data begins has data.
        let next = next.unwrap_or(part.end).min(part.end) >> part.block_shift;
        let start = part.start >> part.block_shift;
        Ok(if next > start {
            AllocationRun { block_count: next - start, allocation: Allocation::Deallocated }
        } else {
            AllocationRun {
                block_count: extent_of(part).block_count,
                allocation: Allocation::Mapped,
            }
        })
    }
}

fn extent_of(bytes: Bytes) -> Extent {
    Extent::new(bytes.start >> bytes.block_shift, bytes.length() >> bytes.block_shift)
}

impl Store for FillingVolume {
    fn geometry(&self) -> Geometry {
        self.0.volume.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        self.0.volume.characteristics()
    }

    fn status(&self) -> &Arc<StoreStatus> {
        self.0.volume.status()
    }

    #[inline]
    fn read(&self, extent: Extent) -> Reply<Data> {
        let block_count = self.0.volume.status().block_count();
        let is_empty = extent.block_count == 0 || extent.check(block_count).is_err();
        if is_empty || self.has_all(extent) {
            return self.0.volume.read(extent);
        }
        let filling = self.0.clone();
        Io::pending(async move { filling.read(extent).await })
    }

    #[inline]
    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        let block_count = self.0.volume.status().block_count();
        let is_empty = extent.block_count == 0 || extent.check(block_count).is_err();
        if is_empty || self.has_all(extent) {
            return self.0.volume.write(extent, data, durability);
        }
        self.change(extent, Change::Write(data, durability))
    }

    fn flush(&self) -> Reply<()> {
        self.0.volume.flush()
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        if self.0.is_filled() || extent.block_count == 0 {
            return self.0.volume.unmap(extent);
        }
        self.change(extent, Change::Zero(Durability::Volatile))
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        if self.0.is_filled() || extent.block_count == 0 {
            return self.0.volume.write_zeroes(extent, durability);
        }
        self.change(extent, Change::Zero(durability))
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        let block_count = self.0.volume.status().block_count();
        let is_empty = extent.block_count == 0 || extent.check(block_count).is_err();
        if self.0.is_filled() || is_empty {
            return self.0.volume.allocation(extent);
        }
        let filling = self.0.clone();
        Io::pending(async move { filling.allocation(extent).await })
    }

    fn shareable(&self) -> Option<&dyn Any> {
        if self.0.is_filled() { self.0.volume.shareable() } else { None }
    }

    fn share(&self, source: &Arc<dyn Store>, extent: Extent, to: Lba) -> Reply<u64> {
        if self.0.is_filled() { self.0.volume.share(source, extent, to) } else { Io::Ready(Ok(0)) }
    }

    fn space(&self) -> Reply<Space> {
        self.0.volume.space()
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        if !self.0.is_filled() && block_count < self.0.volume.status().block_count() {
            let error = io::Error::other(PoolError::Filling.to_string());
            return Io::Ready(Err(InvalidRequest::Rejected(error).into()));
        }
        self.0.volume.resize(block_count)
    }
}
