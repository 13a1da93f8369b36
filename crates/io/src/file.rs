//! Regular files and block devices: whole transfers at an offset, by the calling core's ring or pool.
//!
//! An operation starts when its function is called, not when its answer is first polled. Buffers belong to the
//! operation while the kernel may use them, so a caller may drop an answer at any time. This module continues
//! interrupted and short transfers. On a thread that is not a core, the call itself blocks and the answer is ready. The
//! same is true for reads and writes of a file on tmpfs.
//!
//! The ring gets operations that the kernel can carry out without a waiting thread: direct I/O (RWF_NOWAIT), reads
//! through the page cache, and buffered writes if the file system copies them at once. The file's queue of the pool gets
//! the other operations. The workers of io_uring itself are not used: all files of a ring share them, so one disk that
//! does not respond would stop the others.

mod attribute;
mod extents;
mod standing;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt as _};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use sarsen_block::{Buffer, Io, Payload};

pub use self::extents::{Run, RunState, Space};
pub use self::standing::{FileIdentity, FileStatus, Inspection, PathComparison};
use crate::cores::CoreContext;
use crate::pool::FileQueue;
use crate::ring::{Completion, Operation, OperationKind};

/// Interval of the attempts to take a lock that another process holds: the kernel does not announce its release.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The type of tmpfs in statfs(2).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// File systems whose buffered writes are tried without waiting (RWF_NOWAIT): XFS and btrfs. Other file systems reject
/// every such write, and io_uring reports that as if the write had to wait.
const WRITE_WITHOUT_WAITING: [rustix::fs::FsWord; 2] = [0x5846_5342, 0x9123_683E];

/// Maximum of reads through the page cache that one file has in rings at once; its queue gets further ones. Starting a
/// read may wait for space in the device's queue, and a device that does not respond never frees space.
const RING_READS_MAX: u32 = 64;

/// Length of the pieces in which zeroes are written if the file system cannot create them.
const ZEROES_AT_ONCE: u64 = 1 << 20;

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Open only for reading. A block device that is opened for writing is opened exclusively (O_EXCL); the kernel
    /// rejects this for a mounted device.
    pub read_only: bool,
    /// Create the file (with access only for its owner) if it is missing.
    pub create: bool,
    /// Bypass the page cache (O_DIRECT).
    pub direct: bool,
}

/// An open file; a clone is the same open file.
#[derive(Clone)]
pub struct File {
    opened: Arc<Opened>,
    block_device: bool,
}

/// The state that operations in flight keep alive.
pub(crate) struct Opened {
    pub(crate) fd: OwnedFd,
    /// I/O uses the page cache.
    buffered: bool,
    /// It is useful to try reads from the page cache without waiting.
    try_cached: AtomicBool,
    /// The file system supports RWF_DSYNC.
    durable_writes: AtomicBool,
    /// It is useful to try direct I/O, or a buffered write, without waiting.
    try_without_waiting: AtomicBool,
    /// The file is in memory: reads and writes are copies that never wait.
    in_memory: bool,
    /// Number of buffered reads in rings.
    ring_reads: AtomicU32,
    /// The queue in which its operations wait for threads.
    queue: Arc<FileQueue>,
}

impl Opened {
    pub(crate) fn new(fd: OwnedFd, buffered: bool) -> Self {
        // Device files are on a separate tmpfs, which does not have the properties of the device.
        let is_regular = rustix::fs::fstat(&fd).is_ok_and(|reported| {
            FileType::from_raw_mode(reported.st_mode) == FileType::RegularFile
        });
        let file_system = rustix::fs::fstatfs(&fd).ok().filter(|_| is_regular);
        let is_one_of = |numbers: &[rustix::fs::FsWord]| {
            file_system.is_some_and(|reported| numbers.contains(&reported.f_type))
        };
        Self {
            fd,
            buffered,
            try_cached: AtomicBool::new(buffered),
            durable_writes: AtomicBool::new(true),
            try_without_waiting: AtomicBool::new(!buffered || is_one_of(&WRITE_WITHOUT_WAITING)),
            in_memory: is_one_of(&[TMPFS_MAGIC]),
            ring_reads: AtomicU32::new(0),
            queue: Arc::default(),
        }
    }
}

/// Locks an open file or folder, exclusively or shared, and retries for `timeout`. The kernel closes the files of a
/// killed process only when it has ended the operations in its rings, a moment after the process has ended. A process
/// that was just forked keeps its parent's open files until it executes another program. Blocks the thread.
pub fn lock_within(fd: impl AsFd, exclusive: bool, timeout: Duration) -> io::Result<bool> {
    let operation = if exclusive {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    let deadline = crate::time::now() + timeout;
    loop {
        let locked = try_lock(fd.as_fd(), operation)?;
        if locked || crate::time::now() >= deadline {
            return Ok(locked);
        }
        crate::time::pause(LOCK_POLL_INTERVAL);
    }
}

fn try_lock(fd: BorrowedFd<'_>, operation: FlockOperation) -> io::Result<bool> {
    match rustix::fs::flock(fd, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Opens a regular file or a block device to read it. Never waits for another program, as opening a pipe would. Other
/// kinds of file are InvalidInput.
pub fn open_to_read(path: &Path) -> io::Result<fs::File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if metadata.is_file() || metadata.file_type().is_block_device() {
        Ok(file)
    } else {
        Err(unfit())
    }
}

fn unfit() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device")
}

impl File {
    /// Opens a regular file or a block device; blocks the thread meanwhile. Other kinds of file are InvalidInput, and
    /// so is a file system that rejects O_DIRECT.
    pub fn open(path: &Path, options: OpenOptions) -> io::Result<Self> {
        let mut flags = OFlags::CLOEXEC;
        flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        flags.set(OFlags::CREATE, options.create);
        flags.set(OFlags::DIRECT, options.direct);
        // O_EXCL means exclusive use only for block devices.
        let is_device = |metadata: &fs::Metadata| metadata.file_type().is_block_device();
        let expect_device = fs::metadata(path).is_ok_and(|metadata| is_device(&metadata));
        if expect_device {
            flags.remove(OFlags::CREATE);
            flags.set(OFlags::EXCL, !options.read_only);
        }
        // Opening a pipe without a writer would block for ever.
        let fd = rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fcntl_setfl(&fd, flags & OFlags::DIRECT)?;
        let file = fs::File::from(fd);
        let metadata = file.metadata()?;
        if is_device(&metadata) != expect_device || !(metadata.is_file() || is_device(&metadata)) {
            return Err(unfit());
        }
        let opened = Opened::new(file.into(), !options.direct);
        Ok(Self { opened: Arc::new(opened), block_device: expect_device })
    }

    /// Takes the exclusive lock; returns false if another open file has an exclusive or a shared lock. The lock is held
    /// until the file is closed.
    pub fn try_lock_exclusive(&self) -> io::Result<bool> {
        self.try_lock(FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes a shared lock; returns false if another open file has the exclusive lock.
    pub fn try_lock_shared(&self) -> io::Result<bool> {
        self.try_lock(FlockOperation::NonBlockingLockShared)
    }

    /// Takes the lock, exclusive or shared, as [`lock_within`] does. Blocks the thread.
    pub fn lock_within(&self, exclusive: bool, timeout: Duration) -> io::Result<bool> {
        lock_within(&self.opened.fd, exclusive, timeout)
    }

    fn try_lock(&self, operation: FlockOperation) -> io::Result<bool> {
        try_lock(self.opened.fd.as_fd(), operation)
    }

    /// Returns whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// Returns the current bytes of the file or the device.
    pub fn length(&self) -> io::Result<u64> {
        if self.block_device {
            Ok(rustix::fs::seek(&self.opened.fd, SeekFrom::End(0))?)
        } else {
            Ok(rustix::fs::fstat(&self.opened.fd)?.st_size.unsigned_abs())
        }
    }

    /// Returns the unit in which the file system or the device allocates, in bytes.
    pub fn allocation_unit(&self) -> io::Result<u64> {
        match self.discard_limits()? {
            Some((granularity, _)) => Ok(granularity.max(512)),
            None => Ok(rustix::fs::fstat(&self.opened.fd)?.st_blksize.max(512).unsigned_abs()),
        }
    }

    /// Returns the sizes of a block device's logical and physical blocks in bytes; `None` for files.
    pub fn device_block_sizes(&self) -> io::Result<Option<(u32, u32)>> {
        if !self.block_device {
            return Ok(None);
        }
        let logical = rustix::fs::ioctl_blksszget(&self.opened.fd)?;
        let physical = rustix::fs::ioctl_blkpbszget(&self.opened.fd)?;
        Ok(Some((logical, physical.max(logical))))
    }

    /// Returns whether [`File::punch_hole`] deallocates space: tries it beyond the end of a file, or reads the limits
    /// of a device.
    pub fn can_punch_holes(&self) -> io::Result<bool> {
        if let Some((_, most)) = self.discard_limits()? {
            return Ok(most > 0);
        }
        let unit = self.allocation_unit()?;
        let end = self.length()?.next_multiple_of(unit);
        match rustix::fs::fallocate(
            &self.opened.fd,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            end,
            unit,
        ) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF | Errno::PERM) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a device's granularity of a discard, and the maximum bytes that it discards and zeroes at once: punching
    /// a hole into a device does both, or fails. The maximum is zero if the device supports neither.
    fn discard_limits(&self) -> io::Result<Option<(u64, u64)>> {
        if !self.block_device {
            return Ok(None);
        }
        let device = fs::File::from(self.opened.fd.try_clone()?).metadata()?.rdev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let limit = |name: &str| {
            // A partition has the limits of its disk.
            ["queue", "../queue"].iter().find_map(|queue| {
                let path = format!("/sys/dev/block/{major}:{minor}/{queue}/{name}");
                fs::read_to_string(path).ok()?.trim().parse().ok()
            })
        };
        let granularity = limit("discard_granularity").unwrap_or(0);
        let most =
            ["discard_max_bytes", "write_zeroes_max_bytes"].map(|name| limit(name).unwrap_or(0));
        Ok(Some((granularity, most[0].min(most[1]))))
    }

    /// Returns the multiple that offsets and lengths must have if the file was opened with [`OpenOptions::direct`].
    pub fn direct_alignment(&self) -> io::Result<u32> {
        let reported = rustix::fs::statx(
            &self.opened.fd,
            "",
            rustix::fs::AtFlags::EMPTY_PATH,
            StatxFlags::DIOALIGN,
        );
        if let Ok(reported) = reported
            && reported.stx_mask & StatxFlags::DIOALIGN.bits() != 0
            && reported.stx_dio_offset_align != 0
        {
            return Ok(reported.stx_dio_offset_align);
        }
        if let Some((logical, _)) = self.device_block_sizes()? {
            return Ok(logical);
        }
        // Kernels before 6.1 do not report it, so read the smallest block.
        let mut sector = Buffer::for_overwrite(512);
        match rustix::io::pread(&self.opened.fd, &mut sector[..], 0) {
            Ok(_) => Ok(512),
            Err(Errno::INVAL) => Ok(4096),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads `length` bytes. Bytes beyond the end of the file are an UnexpectedEof: a disk whose file was truncated has
    /// lost them.
    pub fn read_at(&self, offset: u64, length: usize) -> Io<io::Result<Buffer>> {
        let mut buffer = Buffer::for_overwrite(length);
        let mut done = 0;
        if length == 0 {
            return Io::Ready(Ok(buffer));
        }
        if self.opened.in_memory {
            let mut operation = self.operation(OperationKind::Read { buffer, done, offset });
            let read = operation.perform_whole();
            let OperationKind::Read { buffer, .. } = operation.kind else {
                unreachable!("a read came back as something else");
            };
            return Io::Ready(read.map(|()| buffer));
        }
        if self.opened.try_cached.load(Ordering::Relaxed) {
            let mut into = [IoSliceMut::new(&mut buffer)];
            match rustix::io::preadv2(&self.opened.fd, &mut into, offset, ReadWriteFlags::NOWAIT) {
                Ok(count) if count == length => return Io::Ready(Ok(buffer)),
                Ok(count) => done = count,
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    self.opened.try_cached.store(false, Ordering::Relaxed);
                }
                // The data is not in the cache. Other errors occur again in the operation, which reports them.
                Err(_) => {}
            }
        }
        let read = OperationKind::Read { buffer, done, offset };
        let mut started = Started::new(self.operation(read));
        let answer = async move {
            loop {
                let (operation, moved) = started.settled().await;
                let moved = moved? as usize;
                let Some(Operation {
                    file,
                    kind: OperationKind::Read { buffer, done, offset },
                    ..
                }) = operation
                else {
                    unreachable!("a read came back as something else");
                };
                if moved == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let done = done + moved;
                if done >= buffer.len() {
                    return Ok(buffer);
                }
                let kind = OperationKind::Read { buffer, done, offset };
                started = Started::new(Operation::new(file, kind));
            }
        };
        Io::pending(answer)
    }

    /// Writes all of the data. If `durable`, the data survives a loss of power after this returns.
    ///
    /// An error for which [`is_full`] holds means that there was no space for this write, and does not affect
    /// earlier writes. Any other failure of a durable write may be the failure of earlier writes on their way to the
    /// disk.
    pub fn write_at(&self, offset: u64, data: Payload, durable: bool) -> Io<io::Result<()>> {
        if data.is_empty() {
            return if durable { self.sync_data() } else { Io::Ready(Ok(())) };
        }
        let in_memory = self.opened.in_memory;
        let at_once = durable && !in_memory && self.opened.durable_writes.load(Ordering::Relaxed);
        let write = OperationKind::Write { data, done: 0, offset, durable: at_once };
        if in_memory {
            return Io::Ready(self.operation(write).perform_whole());
        }
        let started = Started::new(self.operation(write));
        let file = self.clone();
        Io::pending(async move {
            let (operation, result) = write_all(started).await;
            match result {
                Ok(()) if durable && !at_once => file.sync_data().wait().await,
                Err(error) if at_once && error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    file.opened.durable_writes.store(false, Ordering::Relaxed);
                    let Some(operation) = operation else { return Err(error) };
                    write_all(Started::new(operation.volatile())).await.1?;
                    file.sync_data().wait().await
                }
                Err(error) if at_once && is_full(&error) => {
                    // Was there no space for this write, or for data that was cached before it? The same write without
                    // durability fails only in the first case.
                    let Some(operation) = operation else { return Err(error) };
                    match write_all(Started::new(operation.volatile())).await.1 {
                        Ok(()) => Err(of_cached_data(error)),
                        again => again,
                    }
                }
                other => other,
            }
        })
    }

    /// Makes all written data durable, with the file's size. Its errors are those of data that was written already:
    /// [`is_full`] holds for none.
    pub fn sync_data(&self) -> Io<io::Result<()>> {
        self.simple(OperationKind::SyncData).map(|synced| synced.map_err(of_cached_data))
    }

    /// Deallocates the space of a range; it then reads as zero. Unsupported if the file system or the device cannot do
    /// it.
    pub fn punch_hole(&self, offset: u64, length: u64) -> Io<io::Result<()>> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.simple(OperationKind::Allocate { mode: mode.bits() as i32, offset, length })
    }

    /// Makes a range read as zero and keeps its space. Writes zeroes if there is no faster method.
    pub fn zero_range(&self, offset: u64, length: u64) -> Io<io::Result<()>> {
        if length == 0 {
            return Io::Ready(Ok(()));
        }
        let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let quick =
            self.simple(OperationKind::Allocate { mode: mode.bits() as i32, offset, length });
        let file = self.clone();
        Io::pending(async move {
            match quick.wait().await {
                Err(error) if is_unsupported(&error) => {}
                other => return other,
            }
            let mut done = 0;
            while done < length {
                let count = (length - done).min(ZEROES_AT_ONCE);
                let zeroes = Buffer::zeroed(count as usize);
                file.write_at(offset + done, zeroes.into(), false).wait().await?;
                done += count;
            }
            Ok(())
        })
    }

    /// Extends a file with zeroes that occupy no space, or truncates it.
    pub fn set_length(&self, length: u64) -> Io<io::Result<()>> {
        let file = self.clone();
        blocking(&self.opened.queue, move || file.set_length_now(length))
    }

    /// Does [`File::set_length`] on the calling thread, which waits for it: for opening a store.
    pub fn set_length_now(&self, length: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&self.opened.fd, length)?)
    }

    /// Writes the data and the length to the disk, as [`sync_data`](Self::sync_data) does. Blocks the thread.
    pub fn sync_data_now(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.opened.fd)?)
    }

    /// Creates a file with this length, all of whose space is allocated. Blocks the thread. If it fails, there is no file.
    pub fn create_allocated(path: &Path, length: u64) -> io::Result<()> {
        let file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let allocated = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length);
        let durable = || {
            file.sync_all()?;
            // Its name is durable with its folder (fsync(2)).
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        if let Err(error) = allocated.map_err(io::Error::from).and_then(|()| durable()) {
            // The error of the allocation is the one to report.
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        Ok(())
    }

    fn operation(&self, kind: OperationKind) -> Operation {
        Operation::new(self.opened.clone(), kind)
    }

    fn simple(&self, kind: OperationKind) -> Io<io::Result<()>> {
        let started = Started::new(self.operation(kind));
        Io::pending(async move { started.settled().await.1.map(drop) })
    }
}

/// Converts the error of a flush. If there was no space for data that was written already (a thin device, a network
/// file system), the data is lost, as on any other failure. That is not the lack of space that a new write may meet.
fn of_cached_data(error: io::Error) -> io::Error {
    if is_full(&error) {
        io::Error::other(format!("written data found no room on its way to the disk: {error}"))
    } else {
        error
    }
}

/// Returns whether an error means that the file system has no space left, or that a file has reached its maximum size.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Returns whether an error means that the system lacked memory or other resources for a moment.
pub fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN))
}

/// Returns whether an error means that the file system or device does not support this.
pub fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV))
}

/// An operation and the count or error that it ended with. The operation is lost only if its thread is lost.
type Outcome = (Option<Operation>, io::Result<u32>);

/// An operation under way.
enum Started {
    Ring(Completion),
    Pool(Pin<Box<dyn Future<Output = Outcome>>>),
    Done(Outcome),
}

/// A buffered read that is in a ring, until this is dropped.
pub(crate) struct RingRead(Arc<Opened>);

impl Drop for RingRead {
    fn drop(&mut self) {
        self.0.ring_reads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Started {
    fn new(mut operation: Operation) -> Self {
        CoreContext::with(|here| match here {
            Some(CoreContext { ring: Some(ring), .. })
                if ring.is_usable() && operation.suits_ring() =>
            {
                operation.count_ring_read();
                Self::Ring(ring.start(operation))
            }
            _ => Self::in_pool(here, operation),
        })
    }

    fn in_pool(here: Option<&CoreContext>, mut operation: Operation) -> Self {
        match here {
            None => {
                let result = operation.perform();
                Self::Done((Some(operation), result))
            }
            Some(here) => {
                let queue = operation.file.queue.clone();
                let answer = here.pool.run(&queue, move || {
                    let result = operation.perform();
                    Ok((operation, result))
                });
                Self::Pool(Box::pin(async move {
                    match answer.await {
                        Ok((operation, result)) => (Some(operation), result),
                        Err(error) => (None, Err(error)),
                    }
                }))
            }
        }
    }

    async fn settled(mut self) -> Outcome {
        loop {
            let (operation, result, was_in_ring) = match self {
                Self::Ring(completion) => {
                    let (mut operation, result) = completion.await;
                    if let Some(operation) = &mut operation {
                        operation.ring_read = None;
                    }
                    (operation, result, true)
                }
                Self::Pool(answer) => {
                    let (operation, result) = answer.await;
                    (operation, result, false)
                }
                Self::Done(outcome) => return outcome,
            };
            let number = result.as_ref().err().and_then(io::Error::raw_os_error);
            self = match (operation, number) {
                (Some(operation), Some(libc::EINTR)) => Self::new(operation),
                // The operation would block.
                (Some(operation), Some(libc::EAGAIN)) if was_in_ring => {
                    CoreContext::with(|here| Self::in_pool(here, operation))
                }
                (Some(operation), Some(libc::EOPNOTSUPP))
                    if was_in_ring && operation.avoids_waiting() =>
                {
                    // The file system or the device always waits, or it does not support RWF_DSYNC. The same operation
                    // without RWF_NOWAIT shows which.
                    operation.file.try_without_waiting.store(false, Ordering::Relaxed);
                    CoreContext::with(|here| Self::in_pool(here, operation))
                }
                (operation, _) => return (operation, result),
            };
        }
    }
}

async fn write_all(mut started: Started) -> (Option<Operation>, io::Result<()>) {
    loop {
        let (operation, moved) = started.settled().await;
        let moved = match moved {
            Ok(0) => return (operation, Err(io::ErrorKind::WriteZero.into())),
            Ok(moved) => moved as usize,
            Err(error) => return (operation, Err(error)),
        };
        let Some(mut operation) = operation else {
            unreachable!("an operation that succeeded comes back");
        };
        let OperationKind::Write { data, done, .. } = &mut operation.kind else {
            unreachable!("a write came back as something else");
        };
        *done += moved;
        if *done >= data.len() {
            return (Some(operation), Ok(()));
        }
        started = Started::new(operation);
    }
}

/// Carries out a blocking operation as one of the queue's operations.
pub(crate) fn blocking<T: Send + 'static>(
    queue: &Arc<FileQueue>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Io<io::Result<T>> {
    CoreContext::with(|here| match here {
        None => Io::Ready(work()),
        Some(here) => Io::pending(here.pool.run(queue, work)),
    })
}

impl Operation {
    pub(crate) fn new(file: Arc<Opened>, kind: OperationKind) -> Self {
        Self { file, kind, ring_read: None }
    }

    /// Returns whether the ring gets the operation with RWF_NOWAIT.
    pub(crate) fn avoids_waiting(&self) -> bool {
        match self.kind {
            OperationKind::Read { .. } => !self.file.buffered,
            OperationKind::Write { .. } => true,
            OperationKind::SyncData | OperationKind::Allocate { .. } | OperationKind::Nothing => {
                false
            }
        }
    }

    /// Returns whether the ring may be able to carry out the operation without a waiting thread.
    fn suits_ring(&self) -> bool {
        let is_worth_a_try = || self.file.try_without_waiting.load(Ordering::Relaxed);
        match self.kind {
            OperationKind::Read { .. } if self.file.buffered => {
                self.file.try_cached.load(Ordering::Relaxed)
                    && self.file.ring_reads.load(Ordering::Relaxed) < RING_READS_MAX
            }
            // A durable write through the page cache waits for the disk.
            OperationKind::Write { durable: true, .. } if self.file.buffered => false,
            OperationKind::Read { .. } | OperationKind::Write { .. } => is_worth_a_try(),
            OperationKind::SyncData | OperationKind::Allocate { .. } => false,
            OperationKind::Nothing => true,
        }
    }

    /// Counts a buffered read until it leaves the ring.
    fn count_ring_read(&mut self) {
        if matches!(self.kind, OperationKind::Read { .. }) && self.file.buffered {
            self.file.ring_reads.fetch_add(1, Ordering::Relaxed);
            self.ring_read = Some(RingRead(self.file.clone()));
        }
    }

    /// Returns the same operation from the start, without durability.
    fn volatile(mut self) -> Self {
        if let OperationKind::Write { done, durable, .. } = &mut self.kind {
            *done = 0;
            *durable = false;
        }
        self
    }

    /// Moves the whole buffer on the calling thread.
    fn perform_whole(&mut self) -> io::Result<()> {
        loop {
            let moved = match self.perform() {
                Ok(moved) => moved as usize,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let (length, done, nothing_moved) = match &mut self.kind {
                OperationKind::Read { buffer, done, .. } => {
                    (buffer.len(), done, io::ErrorKind::UnexpectedEof)
                }
                OperationKind::Write { data, done, .. } => {
                    (data.len(), done, io::ErrorKind::WriteZero)
                }
                OperationKind::SyncData
                | OperationKind::Allocate { .. }
                | OperationKind::Nothing => return Ok(()),
            };
            *done += moved;
            match (*done >= length, moved) {
                (true, _) => return Ok(()),
                (false, 0) => return Err(nothing_moved.into()),
                (false, _) => {}
            }
        }
    }

    /// Carries the operation out on the calling thread.
    fn perform(&mut self) -> io::Result<u32> {
        let fd = &self.file.fd;
        match &mut self.kind {
            OperationKind::Read { buffer, done, offset } => {
                let count = rustix::io::pread(fd, &mut buffer[*done..], *offset + *done as u64)?;
                Ok(count as u32)
            }
            OperationKind::Write { data, done, offset, durable } => {
                let flags = if *durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                let from = [IoSlice::new(&data[*done..])];
                let count = rustix::io::pwritev2(fd, &from, *offset + *done as u64, flags)?;
                Ok(count as u32)
            }
            OperationKind::SyncData => Ok(rustix::fs::fdatasync(fd).map(|()| 0)?),
            OperationKind::Allocate { mode, offset, length } => {
                let mode = FallocateFlags::from_bits_retain(mode.unsigned_abs());
                Ok(rustix::fs::fallocate(fd, mode, *offset, *length).map(|()| 0)?)
            }
            OperationKind::Nothing => Ok(0),
        }
    }
}
