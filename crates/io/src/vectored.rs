//! Vectored calls of sockets: each moves as many pieces as the kernel takes.

use std::any::Any;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use sarsen_block::{Buffer, Piece};
use tokio::io::Interest;

use crate::memory::Region;
use crate::spin;

/// The kernel's maximum of pieces in one call (IOV_MAX).
pub const PIECES_MAX: usize = 1024;

/// A socket that the runtime watches.
pub(crate) trait Watched: AsFd {
    /// Runs `io` if the socket may be ready. If the result is WouldBlock, the runtime marks the socket as not ready.
    fn try_io(
        &self,
        interest: Interest,
        io: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize>;
}

impl Watched for tokio::net::TcpStream {
    fn try_io(
        &self,
        interest: Interest,
        io: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.try_io(interest, io)
    }
}

/// See [`crate::net::Stream::try_receive`].
pub(crate) fn receive(
    socket: &impl Watched,
    landing: &mut [u8],
    scratch: &mut [u8],
) -> io::Result<usize> {
    let room = landing.len() + scratch.len();
    attempt(socket, Interest::READABLE, room, || {
        let mut both = [IoSliceMut::new(landing), IoSliceMut::new(scratch)];
        let from = usize::from(both[0].is_empty());
        loop {
            match rustix::io::readv(socket, &mut both[from..]) {
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    })
}

/// See [`crate::net::Stream::try_send`].
pub(crate) fn send(socket: &impl Watched, pieces: &[Piece<'_>]) -> io::Result<usize> {
    let mut vectors = Vectors::new();
    // The copies must exist until the call has ended.
    let copies = foreign_copies(pieces);
    let mut copied = copies.iter();
    for piece in pieces.iter().take(PIECES_MAX) {
        match piece {
            Piece::Bytes(bytes) => vectors.push(bytes.as_ptr(), bytes.len()),
            Piece::Shared { memory, offset, length } => match as_region(&***memory) {
                Some(region) => vectors.push(region.address(*offset, *length), *length),
                None => {
                    let Some(copy) = copied.next() else { break };
                    vectors.push(copy.as_ptr(), copy.len());
                }
            },
        }
    }
    attempt(socket, Interest::WRITABLE, vectors.total, || vectors.send(socket))
}

/// Runs `transfer`. A transfer of less than `wanted` bytes has emptied (or filled) the socket, so the next wait is for
/// a new edge; that saves a call that would find nothing. The runtime records the end of a stream separately, so it is
/// not lost.
fn attempt(
    socket: &impl Watched,
    interest: Interest,
    wanted: usize,
    transfer: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut partial = None;
    let result = socket.try_io(interest, || match transfer() {
        Ok(moved) if moved > 0 && moved < wanted => {
            partial = Some(moved);
            Err(io::ErrorKind::WouldBlock.into())
        }
        other => other,
    });
    let result = partial.map_or(result, Ok);
    if interest.is_readable() && result.as_ref().is_ok_and(|moved| *moved > 0) {
        spin::note_activity();
    }
    result
}

fn as_region(memory: &dyn sarsen_block::SharedMemory) -> Option<&Region> {
    (memory as &dyn Any).downcast_ref()
}

/// Returns copies of the pieces whose memory is not a [`Region`], in order. Usually there are none.
fn foreign_copies(pieces: &[Piece<'_>]) -> Vec<Buffer> {
    let mut copies = Vec::new();
    for piece in pieces.iter().take(PIECES_MAX) {
        if let Piece::Shared { memory, offset, length } = piece
            && as_region(&***memory).is_none()
        {
            let mut copy = Buffer::for_overwrite(*length);
            memory.copy_out(*offset, &mut copy);
            copies.push(copy);
        }
    }
    copies
}

/// The addresses for one vectored send. The kernel gets them; this code never reads them.
struct Vectors {
    entries: [MaybeUninit<libc::iovec>; PIECES_MAX],
    count: usize,
    total: usize,
}

impl Vectors {
    fn new() -> Self {
        Self { entries: [const { MaybeUninit::uninit() }; PIECES_MAX], count: 0, total: 0 }
    }

    fn push(&mut self, address: *const u8, length: usize) {
        if length > 0 {
            let base = address.cast_mut().cast();
            self.entries[self.count].write(libc::iovec { iov_base: base, iov_len: length });
            self.count += 1;
            self.total += length;
        }
    }

    #[allow(unsafe_code)]
    fn send(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        // SAFETY: all zeroes is a valid msghdr: null pointers with zero lengths.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.entries.as_mut_ptr().cast();
        message.msg_iovlen = self.count as _;
        let socket = socket.as_fd().as_raw_fd();
        loop {
            // SAFETY: the first `count` entries are initialised. Their memory is borrowed or owned by the caller of
            // `try_send` until after this call. The kernel only reads. Shared memory may change meanwhile, which its
            // users expect.
            let sent = unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL) };
            if let Ok(sent) = usize::try_from(sent) {
                return Ok(sent);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}
