//! A store in a regular file or on a block device.

mod backing;
mod owner_mark;
#[cfg(test)]
mod tests;

use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use sarsen_block::{
    Allocation, AllocationRun, BlockError, BlockSize, Characteristics, Data, Direction, Durability,
    Extent, Geometry, InvalidRequest, Io, Lba, Payload, Reply, Space, StopCause, Store,
    StoreStatus, UnmapSupport,
};
use sarsen_io::file::{self, File, FileIdentity, OpenOptions, RunState};
use sarsen_volume::Health;
use tracing::{error, info, warn};

pub(crate) use self::backing::BackingSpace;
use super::latch::{FlushClaim, FlushFailureLatch};
use super::{CacheMode, LOCK_TIMEOUT, OpenMode, StoreError};

/// The file to open, and the options for it.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The file or device.
    pub path: PathBuf,
    /// Size in bytes. A missing file is created, and a smaller one grows. Default: the size of the file.
    pub size: Option<u64>,
    /// Logical block size.
    pub block_size: BlockSize,
    /// Cache mode.
    pub cache: CacheMode,
    /// Refuses writes, and shares the file with other read-only users.
    pub read_only: bool,
    /// The serial number of the volume, if it has one. It marks the file.
    pub serial: Option<String>,
}

/// See the module. The file is locked against other servers until this is dropped.
pub struct FileStore {
    file: File,
    state: Arc<FileState>,
    /// The header that must be written at the beginning of the file.
    header: Mutex<Option<Vec<u8>>>,
    /// The part of its mark that the file still needs.
    mark: Mutex<owner_mark::Mark>,
    block_size: BlockSize,
    cache: CacheMode,
    characteristics: Characteristics,
}

/// The state that requests in flight update.
struct FileState {
    path: PathBuf,
    status: Arc<StoreStatus>,
    /// Closed after a flush or durable write has failed. The data in the page cache may be lost, and a later flush
    /// would not report it.
    latch: Arc<FlushFailureLatch>,
    /// The store reports here that the file cannot be used.
    health: Arc<Health>,
    /// Minimum length of the file in bytes, or 0 while it is not known.
    whole: AtomicU64,
    /// The file has been shorter than its minimum length.
    is_truncated: AtomicBool,
    /// Bytes that the file system has allocated to the file, and its free bytes, at the last check.
    allocated: AtomicU64,
    free: AtomicU64,
    identity: FileIdentity,
}

impl FileStore {
    /// Opens or creates a file, locks it, and grows it to its volume's size.
    pub fn open(options: &FileOptions) -> Result<Self, StoreError> {
        let store = Self::prepare(options, OpenMode::OpenOrCreate)?;
        store.settle()?;
        Ok(store)
    }

    /// Opens or creates a file, and locks it. The file keeps its length until it is [settled](Self::settle).
    pub(crate) fn prepare(options: &FileOptions, open_mode: OpenMode) -> Result<Self, StoreError> {
        let path = &options.path;
        let system = |what| StoreError::system(path, what);
        let unfit = |problem| StoreError::unfit(path, problem);
        let file = open_file(options, open_mode)?;
        let locked = file.lock_within(!options.read_only, LOCK_TIMEOUT);
        if !locked.map_err(system("lock it"))? {
            return Err(StoreError::InUse { path: path.clone() });
        }
        let block = options.block_size.bytes() as u64;
        let device = check_blocks(&file, options)?;
        let mark = owner_mark::check(&file, options, open_mode)?;
        let length = wanted_length(&file, options, open_mode)?;
        if matches!(open_mode, OpenMode::Existing { had: Some(_), .. }) {
            // The volume has just been closed, and its flush may have failed: reads must return the blocks on disk.
            if !options.read_only {
                file.sync_data_now().map_err(system("flush it"))?;
            }
            file.forget_cached().map_err(system("forget what is cached of it"))?;
        }
        if length == 0 || !length.is_multiple_of(block) {
            return Err(unfit(format!(
                "has {length} bytes, which is not a multiple of the block size, {block}: \
                 give it a size, or another block size"
            )));
        }
        // A read-only file reports its holes, but punching a hole cannot be tried.
        let unmap = if options.read_only {
            device.is_none()
        } else {
            file.can_punch_holes().map_err(system("find out whether it is sparse"))?
        };
        let identity = file.identity().map_err(system("find its file system"))?;
        let granularity = file.allocation_unit().map_err(system("find its allocation unit"))?;
        let anchors = file.tells_reserved_room();
        // The physical block is the allocation unit of a file: a smaller write causes a read first.
        let physical = device.map_or(granularity, |(_, physical)| physical.into());
        let exponent = (physical / block).checked_ilog2().unwrap_or(0) as u8;
        if options.cache == CacheMode::Unsafe {
            warn!(path = %path.display(), "cache mode unsafe: flushes are ignored, a power cut loses data");
        }
        let status = StoreStatus::new(length / block);
        let store = Self {
            file,
            state: Arc::new(FileState {
                path: path.clone(),
                status: status.clone(),
                latch: Arc::default(),
                health: Arc::new(Health::new(status)),
                whole: AtomicU64::new(0),
                is_truncated: AtomicBool::new(false),
                allocated: AtomicU64::new(0),
                free: AtomicU64::new(0),
                identity,
            }),
            header: Mutex::default(),
            mark: Mutex::new(mark),
            block_size: options.block_size,
            cache: options.cache,
            characteristics: Characteristics {
                volatile_cache: options.cache.is_volatile(),
                read_only: options.read_only,
                unmap: unmap.then(|| UnmapSupport {
                    granularity_blocks: (granularity / block).clamp(1, u64::from(u32::MAX)) as u32,
                    anchors,
                    tells_space: device.is_none(),
                }),
                physical_block_exponent: exponent,
                optimal_transfer: None,
                protection: false,
                is_lasting: true,
            },
        };
        // This determines the space. The other values are not known yet.
        store.inspect();
        Ok(store)
    }

    /// Returns the health, to which the store reports that its file cannot be used.
    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.state.health
    }

    /// Sets the header of the file, which is written when the file is [imprinted](Self::imprint).
    pub(super) fn begin_with(&self, header: Vec<u8>) {
        *self.header.lock() = Some(header);
    }

    /// Returns whether the file still needs its header.
    pub(crate) fn is_blank(&self) -> bool {
        self.header.lock().is_some()
    }

    /// Writes the header durably, if it has not been written. Blocks the thread.
    pub(crate) fn imprint(&self) -> Result<(), StoreError> {
        let mut header = self.header.lock();
        let Some(bytes) = &*header else { return Ok(()) };
        let path = &self.state.path;
        let write = || -> io::Result<()> {
            let file = std::fs::OpenOptions::new().write(true).open(path)?;
            file.write_all_at(bytes, 0)?;
            file.sync_all()
        };
        write().map_err(StoreError::system(path, "write its header"))?;
        *header = None;
        Ok(())
    }

    /// Returns whether the file still needs its mark.
    pub(crate) fn is_unmarked(&self) -> bool {
        !self.mark.lock().is_empty()
    }

    /// Marks the file as that of its volume, if it is not marked yet. Blocks the thread.
    pub(crate) fn write_mark(&self) {
        let mark = std::mem::take(&mut *self.mark.lock());
        owner_mark::write(&self.file, &self.state.path, &mark);
    }

    /// Returns the length of the file if it is shorter than the volume. Blocks the thread briefly.
    pub(crate) fn short(&self) -> Option<u64> {
        self.file.length().ok().filter(|length| *length < self.geometry().byte_count())
    }

    /// Grows the file to the size of its volume, durably. Blocks the thread.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        let path = &self.state.path;
        let length = self.file.length().map_err(StoreError::system(path, "find its length"))?;
        let wanted = self.geometry().byte_count();
        let settled = if length >= wanted {
            Ok(())
        } else {
            if length > 0 {
                info!(path = %path.display(), from = length, to = wanted, "the file grows to its volume's size");
            }
            self.file.set_length_now(wanted).and_then(|()| self.file.sync_data_now())
        };
        let settled = settled.map_err(|source| {
            // The volume has only the blocks that the file has.
            self.state.status.set_block_count(length >> self.block_size.shift());
            StoreError::system(path, "make it as large as it is to be")(source)
        });
        self.state.whole.store(self.geometry().byte_count(), Ordering::Release);
        self.inspect();
        settled
    }

    /// Rejects changes of these blocks that are not permitted now.
    fn check_change(&self, extent: Extent) -> Result<(), BlockError> {
        if self.characteristics.read_only {
            return Err(InvalidRequest::ReadOnly.into());
        }
        if self.state.latch.is_closed() {
            return Err(StopCause::FlushFailed.into());
        }
        self.state.check_backing(&self.file)?;
        self.state.check(extent)
    }

    /// Returns whether a write must be durable before it is acknowledged.
    fn is_durable(&self, durability: Durability) -> bool {
        match self.cache {
            CacheMode::WriteThrough | CacheMode::DirectSync => true,
            CacheMode::WriteBack | CacheMode::None => durability == Durability::Durable,
            CacheMode::Unsafe => false,
        }
    }

    /// Changes the storage of a range, and makes the change durable if `durable` is set.
    fn change(
        &self,
        extent: Extent,
        durable: bool,
        change: impl FnOnce(&File, u64, u64) -> Io<io::Result<()>>,
    ) -> Reply<()> {
        match self.check_change(extent) {
            Err(error) => return Io::Ready(Err(error)),
            Ok(()) if extent.block_count == 0 => return Io::Ready(Ok(())),
            Ok(()) => {}
        }
        let offset = extent.byte_offset(self.block_size);
        let changed = change(&self.file, offset, extent.byte_count(self.block_size));
        let (state, file) = (self.state.clone(), self.file.clone());
        Io::pending(async move {
            let changed = changed.wait().await;
            changed.map_err(|source| state.failed(extent.lba, Direction::Write, source))?;
            if durable {
                let claim = state.latch.claim();
                let synced = file.sync_data().wait().await;
                state.persist_durable(claim, synced, extent.lba).await?;
            }
            Ok(())
        })
    }
}

impl FileState {
    fn check(&self, extent: Extent) -> Result<(), BlockError> {
        extent.check(self.status.block_count())
    }

    /// Returns the result of a write that is not durable yet.
    fn settle(&self, result: io::Result<()>, lba: Lba) -> Result<(), BlockError> {
        result.map_err(|source| self.transfer_failed(lba, Direction::Write, source))
    }

    /// Returns the result of a flush or durable write. A failure stops the store, unless the cause is a lack of space.
    async fn persist_durable(
        &self,
        claim: FlushClaim,
        result: io::Result<()>,
        lba: Lba,
    ) -> Result<(), BlockError> {
        let Err(source) = result else {
            return if claim.confirm().await { Ok(()) } else { Err(StopCause::FlushFailed.into()) };
        };
        if file::is_full(&source) {
            return Err(BlockError::NoSpace { lba });
        }
        if claim.fail() {
            let place = self.path.display();
            if self.health.report_failed_flush(&place.to_string(), &source) {
                error!(%place, error = %source, "a flush failed: the volume takes no writes until it is re-attached");
            }
        }
        Err(BlockError::medium(lba, Direction::Write, source))
    }

    /// Returns the error of a request that the file system or the device may not support.
    fn failed(&self, lba: Lba, direction: Direction, source: io::Error) -> BlockError {
        if file::is_unsupported(&source) {
            return InvalidRequest::Unsupported.into();
        }
        self.transfer_failed(lba, direction, source)
    }

    /// Returns the error of a read or a write. All files support these: ENODEV means that the device is missing.
    fn transfer_failed(&self, lba: Lba, direction: Direction, source: io::Error) -> BlockError {
        if file::is_full(&source) {
            return BlockError::NoSpace { lba };
        }
        if file::is_transient(&source) {
            return BlockError::Transient(source);
        }
        BlockError::medium(lba, direction, source)
    }
}

impl Store for FileStore {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.block_size, block_count: self.state.status.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        self.characteristics
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.state.status
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        if let Err(error) = self.state.check(extent) {
            return Io::Ready(Err(error));
        }
        let offset = extent.byte_offset(self.block_size);
        let length = extent.byte_count(self.block_size) as usize;
        let state = self.state.clone();
        let (file, shift) = (self.file.clone(), self.block_size.shift());
        self.file.read_at(offset, length).map(move |read| match read {
            Ok(buffer) => Ok(Data::Buffer(buffer)),
            Err(source) => {
                // The first missing block, if the file was truncated while it was served.
                let first = match (source.kind(), file.length()) {
                    (io::ErrorKind::UnexpectedEof, Ok(length)) => {
                        // From now on all operations are refused.
                        let _ = state.check_backing(&file);
                        extent.lba.0.max(length >> shift)
                    }
                    _ => extent.lba.0,
                };
                Err(state.transfer_failed(Lba(first), Direction::Read, source))
            }
        })
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        if let Err(error) = self.check_change(extent) {
            return Io::Ready(Err(error));
        }
        assert_eq!(data.len() as u64, extent.byte_count(self.block_size));
        let durable = self.is_durable(durability);
        let claim = durable.then(|| self.state.latch.claim());
        let (state, is_direct) = (self.state.clone(), self.cache.is_direct());
        let offset = extent.byte_offset(self.block_size);
        let written = self.file.write_at(offset, data, durable);
        match claim {
            None => written.map(move |written| state.settle(written, extent.lba)),
            Some(claim) => Io::pending(async move {
                match written.wait().await {
                    // Direct I/O reports an error only to the write that caused it.
                    Ok(()) if is_direct => Ok(()),
                    written => state.persist_durable(claim, written, extent.lba).await,
                }
            }),
        }
    }

    fn flush(&self) -> Reply<()> {
        match self.check_change(Extent::new(0, 0)) {
            Err(BlockError::Invalid(InvalidRequest::ReadOnly)) => return Io::Ready(Ok(())),
            Err(error) => return Io::Ready(Err(error)),
            Ok(()) => {}
        }
        if self.cache == CacheMode::Unsafe {
            return Io::Ready(Ok(()));
        }
        let (state, claim) = (self.state.clone(), self.state.latch.claim());
        let synced = self.file.sync_data();
        Io::pending(async move { state.persist_durable(claim, synced.wait().await, Lba(0)).await })
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        if self.characteristics.unmap.is_none() && !self.characteristics.read_only {
            return Io::Ready(Err(InvalidRequest::Unsupported.into()));
        }
        self.change(extent, self.is_durable(Durability::Volatile), File::punch_hole)
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        self.change(extent, self.is_durable(durability), File::zero_range)
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        if let Err(error) = self.state.check(extent) {
            return Io::Ready(Err(error));
        }
        let offset = extent.byte_offset(self.block_size);
        let shift = self.block_size.shift();
        let state = self.state.clone();
        let run = self.file.allocation(offset, extent.byte_count(self.block_size));
        run.map(move |run| {
            let run = run.map_err(|source| state.failed(extent.lba, Direction::Read, source))?;
            let whole_blocks = run.length >> shift;
            let (block_count, allocation) = match run.state {
                // A run that ends within a block leaves that block mapped.
                RunState::Hole | RunState::Reserved if whole_blocks == 0 => (1, Allocation::Mapped),
                RunState::Hole => (whole_blocks, Allocation::Deallocated),
                RunState::Reserved => (whole_blocks, Allocation::Anchored),
                RunState::Data => (run.length.div_ceil(1 << shift), Allocation::Mapped),
            };
            let block_count = block_count.min(extent.block_count);
            Ok(AllocationRun { block_count, allocation })
        })
    }

    fn space(&self) -> Reply<Space> {
        let (state, shift) = (self.state.clone(), self.block_size.shift());
        self.file.space().map(move |space| {
            let space = space.map_err(|source| state.failed(Lba(0), Direction::Read, source))?;
            let space = space.ok_or(InvalidRequest::Unsupported)?;
            let (used_blocks, available_blocks) = (space.used >> shift, space.available >> shift);
            Ok(Space { used_blocks, available_blocks })
        })
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        if let Err(error) = self.check_change(Extent::new(0, 0)) {
            return Io::Ready(Err(error));
        }
        let Some(bytes) = block_count.checked_mul(self.block_size.bytes() as u64) else {
            return Io::Ready(Err(InvalidRequest::Unsupported.into()));
        };
        let state = self.state.clone();
        if self.file.is_block_device() {
            // The server cannot change the size of a device. A resize succeeds if the device is large enough.
            let fits = self.file.length().is_ok_and(|length| bytes <= length);
            if fits {
                state.status.set_block_count(block_count);
            }
            let reply = if fits { Ok(()) } else { Err(InvalidRequest::Unsupported.into()) };
            return Io::Ready(reply);
        }
        let old = state.status.block_count();
        if block_count < old {
            // Requests beyond the new end must fail before the file is truncated.
            state.status.set_block_count(block_count);
            state.whole.fetch_min(bytes, Ordering::AcqRel);
        }
        // A write in progress at an earlier truncation may have left bytes beyond the end.
        let cut = self.file.set_length(bytes.min(old << self.block_size.shift()));
        let file = self.file.clone();
        Io::pending(async move {
            let resized = match cut.wait().await {
                Ok(()) => file.set_length(bytes).wait().await,
                error => error,
            };
            match resized {
                Ok(()) => {
                    state.status.set_block_count(block_count);
                    // While its length is not determined, the file may have any length.
                    if state.whole.load(Ordering::Acquire) != 0 {
                        state.whole.store(bytes, Ordering::Release);
                    }
                    Ok(())
                }
                Err(source) => {
                    state.status.set_block_count(old);
                    Err(state.failed(Lba(block_count), Direction::Write, source))
                }
            }
        })
    }
}

/// Creates an empty file with a durable name, if it is missing.
pub(super) fn create(options: &FileOptions) -> Result<(), StoreError> {
    let file = open_file(options, OpenMode::Create)?;
    let length = file.length().map_err(StoreError::system(&options.path, "find its length"))?;
    if length == 0 { sync_name(&options.path) } else { Ok(()) }
}

/// Checks, without a lock, whether a file that exists can be opened. Returns its length, and the one that it is to have.
pub(crate) fn trial(options: &FileOptions, open_mode: OpenMode) -> Result<(u64, u64), StoreError> {
    let known = match open_mode {
        OpenMode::OpenOrCreate | OpenMode::Create => open_mode,
        OpenMode::Existing { length_before_growth, mark, .. } => {
            OpenMode::Existing { length_before_growth, has_state: false, had: None, mark }
        }
    };
    // The volume that has a block device has it exclusively, and nothing is created.
    let read_only = FileOptions { read_only: true, ..options.clone() };
    let file = open_file(&read_only, known)?;
    check_blocks(&file, options)?;
    owner_mark::check(&file, options, known)?;
    let length = file.length().map_err(StoreError::system(&options.path, "find its length"))?;
    Ok((length, wanted_length(&file, options, known)?))
}

/// Checks whether the device and the cache mode permit the block size.
fn check_blocks(file: &File, options: &FileOptions) -> Result<Option<(u32, u32)>, StoreError> {
    let path = &options.path;
    let system = |what| StoreError::system(path, what);
    let block = options.block_size.bytes() as u64;
    let device = file.device_block_sizes().map_err(system("find its block sizes"))?;
    if let Some((logical, _)) = device.filter(|&(logical, _)| u64::from(logical) > block) {
        // The page cache would accept smaller writes, but no device deallocates less than a block.
        let problem = format!("has blocks of {logical} bytes: set block-size = {logical}");
        return Err(StoreError::unfit(path, problem));
    }
    if options.cache.is_direct() {
        let alignment = file.direct_alignment().map_err(system("find its alignment"))?;
        if u64::from(alignment) > block {
            let problem = format!(
                "takes direct I/O in units of {alignment} bytes only: \
                 set block-size = 4096, or a cache mode with page cache"
            );
            return Err(StoreError::unfit(path, problem));
        }
    }
    Ok(device)
}

fn open_file(options: &FileOptions, open_mode: OpenMode) -> Result<File, StoreError> {
    let path = &options.path;
    let may_make = options.size.is_some() && !options.read_only;
    let open_options = OpenOptions {
        read_only: options.read_only,
        create: may_make && !matches!(open_mode, OpenMode::Existing { .. }),
        direct: options.cache.is_direct(),
    };
    File::open(path, open_options).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound if matches!(open_mode, OpenMode::Existing { .. }) => {
            StoreError::Gone { path: path.clone() }
        }
        io::ErrorKind::NotFound if options.size.is_none() => {
            StoreError::NotFound { path: path.clone() }
        }
        io::ErrorKind::ResourceBusy => StoreError::InUse { path: path.clone() },
        io::ErrorKind::InvalidInput if options.cache.is_direct() => StoreError::unfit(
            path,
            "cannot be opened past the page cache: choose cache = writeback or writethrough",
        ),
        _ => StoreError::system(path, "open it")(source),
    })
}

/// Returns the length that a file must have, after checking that this length is possible.
fn wanted_length(
    file: &File,
    options: &FileOptions,
    open_mode: OpenMode,
) -> Result<u64, StoreError> {
    let path = &options.path;
    let length = file.length().map_err(StoreError::system(path, "find its length"))?;
    if let OpenMode::Existing { had: Some(had), .. } = open_mode
        && length < had
    {
        return Err(cut_short(path, length, had));
    }
    let Some(size) = options.size.filter(|&size| size != length) else { return Ok(length) };
    if let OpenMode::Existing { length_before_growth, .. } = open_mode
        && length < size
        && length_before_growth != Some(length)
        && !file.is_block_device()
    {
        return Err(cut_short(path, length, size));
    }
    let is_others = open_mode == OpenMode::Create && length != 0;
    if length > size || is_others || options.read_only || file.is_block_device() {
        let problem = format!("has {length} bytes, not {size}: correct the size or leave it out");
        return Err(StoreError::unfit(path, problem));
    }
    check_growth(path, size)?;
    if length == 0 {
        sync_name(path)?;
    }
    Ok(size)
}

/// Makes the name of a file durable: a flush of the file does not (fsync(2)).
fn sync_name(path: &Path) -> Result<(), StoreError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::File::open(folder.unwrap_or(Path::new(".")));
    let synced = folder.and_then(|folder| folder.sync_all());
    synced.map_err(StoreError::system(path, "make its name durable"))
}

/// Returns the error for a file that has lost some of its bytes.
fn cut_short(path: &Path, length: u64, had: u64) -> StoreError {
    let problem = format!(
        "has {length} bytes of the {had} that it had: if a restore is in progress, the server uses the file when it \
         is complete; otherwise the file was truncated"
    );
    StoreError::unfit(path, problem)
}

/// Checks whether a file can have this length, or whether a device has it. Changes nothing.
pub(crate) fn check_growth(path: &Path, bytes: u64) -> Result<(), StoreError> {
    let system = |what| StoreError::system(path, what);
    let opened = std::fs::OpenOptions::new().write(true).open(path);
    let mut file = opened.map_err(system("open it to make it larger"))?;
    let is_file = file.metadata().map_err(system("find out what it is"))?.is_file();
    let length = file.seek(SeekFrom::End(0)).map_err(system("find its length"))?;
    if !is_file && length < bytes {
        let problem = format!("has {length} bytes, not {bytes}: make the device larger first");
        return Err(StoreError::unfit(path, problem));
    }
    // A seek fails if the file system does not support files of this length (lseek(2), EINVAL).
    file.seek(SeekFrom::Start(bytes)).map_err(system("make it so large"))?;
    Ok(())
}
