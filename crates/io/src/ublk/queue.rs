//! A queue of requests, which one core serves.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::EventfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use sarsen_block::{Buffer, Data};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::SECTOR_SHIFT;
use super::commands::{encoded, in_entry};

/// UBLK_U_IO_FETCH_REQ and UBLK_U_IO_COMMIT_AND_FETCH_REQ.
const FETCH: u32 = encoded(true, 0x20, size_of::<IoCommand>());
const COMMIT_AND_FETCH: u32 = encoded(true, 0x21, size_of::<IoCommand>());
/// UBLKSRV_IO_BUF_OFFSET, UBLK_TAG_OFF, UBLK_QID_OFF: where the data of a request is in the device's file.
const DATA_OFFSET: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;
const QUEUE_SHIFT: u32 = 41;
/// UBLK_MAX_QUEUE_DEPTH.
const MAXIMUM_DEPTH: usize = 4096;
/// UBLK_IO_F_FUA, UBLK_IO_F_NOUNMAP.
const FUA: u32 = 1 << 13;
const KEEPS_SPACE: u32 = 1 << 15;
const IORING_ENTER_GETEVENTS: u32 = 1;

/// struct ublksrv_io_cmd.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct IoCommand {
    queue: u16,
    tag: u16,
    result: i32,
    address: u64,
}

const _: () = assert!(size_of::<IoCommand>() == 16);

/// struct ublksrv_io_desc.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
struct Descriptor {
    operation_and_flags: u32,
    sectors: u32,
    first_sector: u64,
    address: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 24);

/// The kinds of request (UBLK_IO_OP_…).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationCode {
    /// Return data.
    Read,
    /// Write data.
    Write,
    /// Make completed writes durable.
    Flush,
    /// Deallocate space.
    Discard,
    /// Write zeroes.
    WriteZeroes,
    /// An operation that the device has not offered.
    Other(u8),
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Identifies the request in its queue until it is completed.
    pub tag: u16,
    /// Its kind.
    pub operation: OperationCode,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Whether the write must be durable when it is completed.
    pub durable: bool,
    /// Whether zeroes must use space.
    pub keeps_space: bool,
}

/// A queue. It belongs to the thread that opened it.
pub struct Queue {
    channel: Arc<File>,
    index: u16,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// Signalled by completions of the ring.
    signal: AsyncFd<OwnedFd>,
    descriptors: Descriptors,
    ready: VecDeque<u16>,
    /// Number of tags that the kernel has not given back for good.
    tags: u16,
}

/// The descriptors of the requests, which the kernel writes.
struct Descriptors {
    first: NonNull<Descriptor>,
    bytes: usize,
}

impl Descriptors {
    fn map(channel: &File, index: u16, depth: u16) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let bytes = (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(page);
        let area = (MAXIMUM_DEPTH * size_of::<Descriptor>()).next_multiple_of(page);
        let offset = u64::from(index) * area as u64;
        let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping, which nothing else refers to.
        let first = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, channel, offset)?
        };
        let first = NonNull::new(first.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { first, bytes })
    }

    fn get(&self, tag: u16) -> Descriptor {
        assert!(
            (usize::from(tag) + 1) * size_of::<Descriptor>() <= self.bytes,
            "a tag of the queue"
        );
        // SAFETY: within the mapping. The kernel has written the descriptor before it completed the fetch of this tag, and does not
        // write it again before the next one.
        unsafe { self.first.add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which no reference exists.
        let _ = unsafe { rustix::mm::munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

impl Queue {
    pub(super) fn open(channel: Arc<File>, index: u16, depth: u16) -> io::Result<Self> {
        let build = |defers: bool| {
            let mut builder = IoUring::builder();
            builder.setup_clamp();
            if defers {
                builder.setup_single_issuer().setup_defer_taskrun();
            }
            builder.build(depth.into())
        };
        let ring: IoUring<squeue::Entry128, cqueue::Entry> =
            build(true).or_else(|_| build(false))?;
        let signal = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(signal.as_raw_fd())?;
        // SAFETY: the watcher owns the descriptor, which is closed only after the registration ends.
        let signal = unsafe { AsyncFd::register_with_interest(signal, Interest::READABLE) };
        let mut queue = Self {
            descriptors: Descriptors::map(&channel, index, depth)?,
            signal: signal.map_err(|error| io::Error::other(error.to_string()))?,
            channel,
            index,
            ring,
            ready: VecDeque::with_capacity(depth.into()),
            tags: depth,
        };
        for tag in 0..depth {
            queue.push(FETCH, tag, 0);
        }
        queue.turn()?;
        Ok(queue)
    }

    /// Waits for the next request; `None` when the device is removed and the caller has completed all requests. Dropping the future
    /// loses no request.
    pub async fn next(&mut self) -> io::Result<Option<Request>> {
        loop {
            self.turn()?;
            if let Some(tag) = self.ready.pop_front() {
                return Ok(Some(self.request(tag)));
            }
            if self.tags == 0 {
                return Ok(None);
            }
            let mut guard = self.signal.readable().await?;
            match rustix::io::read(guard.get_inner(), &mut [0; 8]) {
                Ok(_) | Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn request(&self, tag: u16) -> Request {
        let Descriptor { operation_and_flags: code, sectors, first_sector, .. } =
            self.descriptors.get(tag);
        let operation = match code as u8 {
            0 => OperationCode::Read,
            1 => OperationCode::Write,
            2 => OperationCode::Flush,
            3 => OperationCode::Discard,
            5 => OperationCode::WriteZeroes,
            other => OperationCode::Other(other),
        };
        Request {
            tag,
            operation,
            offset: first_sector << SECTOR_SHIFT,
            length: u64::from(sectors) << SECTOR_SHIFT,
            durable: code & FUA != 0,
            keeps_space: code & KEEPS_SPACE != 0,
        }
    }

    /// Returns the data of a write.
    pub fn read_data(&self, request: &Request) -> io::Result<Buffer> {
        let mut buffer = Buffer::for_overwrite(request.length as usize);
        self.channel.read_exact_at(&mut buffer, self.place(request.tag))?;
        Ok(buffer)
    }

    /// Passes the data of a read to the kernel.
    pub fn write_data(&self, tag: u16, data: Data) -> io::Result<()> {
        self.channel.write_all_at(&data.into_buffer(), self.place(tag))
    }

    fn place(&self, tag: u16) -> u64 {
        DATA_OFFSET + (u64::from(self.index) << QUEUE_SHIFT) + (u64::from(tag) << TAG_SHIFT)
    }

    /// Completes a request: with the number of bytes that it read or wrote, or a negative error of the system. The kernel gets it in
    /// the next turn of [`Self::next`].
    pub fn complete(&mut self, tag: u16, result: i32) {
        self.push(COMMIT_AND_FETCH, tag, result);
    }

    fn push(&mut self, code: u32, tag: u16, result: i32) {
        let command = IoCommand { queue: self.index, tag, result, address: 0 };
        let channel = types::Fd(self.channel.as_raw_fd());
        let entry = opcode::UringCmd80::new(channel, code).cmd(in_entry(command.as_bytes()));
        let entry = entry.build().user_data(tag.into());
        // SAFETY: the entry has no address, and the descriptor is open as long as the queue.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(
            pushed.is_ok(),
            "each tag has at most one entry, and the queue has room for all tags"
        );
    }

    /// Passes completed requests to the kernel, and leaves the queue to it until the process ends. If a queue is closed earlier, Linux
    /// 6.12 can lose a request that arrives in the same moment, and the device never recovers.
    pub fn leave(mut self) -> io::Result<()> {
        let submitted = self.turn();
        std::mem::forget(self);
        submitted
    }

    /// Submits entries, and takes completions.
    fn turn(&mut self) -> io::Result<()> {
        loop {
            let entries = self.ring.submission().len() as u32;
            let submitter = self.ring.submitter();
            // SAFETY: no argument is passed.
            let entered = unsafe {
                submitter.enter::<libc::sigset_t>(entries, 0, IORING_ENTER_GETEVENTS, None)
            };
            match entered {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                Err(error) => return Err(error),
            }
            if self.ring.submission().is_empty() {
                break;
            }
        }
        for completion in self.ring.completion() {
            let tag = completion.user_data() as u16;
            match completion.result() {
                0 => self.ready.push_back(tag),
                // The device is removed.
                error if -error == libc::ENODEV => self.tags -= 1,
                error => return Err(io::Error::from_raw_os_error(-error)),
            }
        }
        Ok(())
    }
}
