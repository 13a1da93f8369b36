//! TLS on a connection: the machine of rustls ([`Machine`]) between the caller's plain bytes and any socket, and its
//! use by [`crate::net::Stream`] (`stream`). Certificates and keys come from PEM files ([`pem`]).
//!
//! The data that is kept for a peer is bounded: outgoing, [`SEND_LIMIT`] and the frames of its records; incoming, one
//! incomplete record and one record that did not fit into the caller's buffers.

pub mod pem;
pub(crate) mod stream;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use sarsen_block::{Buffer, Piece};

/// Maximum of plain bytes that are encrypted at once; further bytes wait until all of them were sent.
pub const SEND_LIMIT: usize = 128 * 1024;
/// Maximum of encrypted bytes that one call takes from the socket.
const RECEIVE_LENGTH: usize = 64 * 1024;
/// The same until the handshake has ended. Later data in the same bytes is kept.
const HANDSHAKE_RECEIVE_LENGTH: usize = 4096;
/// Maximum of receptions in a row without data for the caller (RFC 8446 §5.1 allows empty records, §4.6 messages after
/// the handshake), so that a peer that sends only those does not occupy the core.
const EMPTY_LIMIT: u32 = 4;

thread_local! {
    static ENCRYPTED: RefCell<Box<[u8]>> = RefCell::new(vec![0; RECEIVE_LENGTH].into());
}

/// Returns the error of rustls, if the error of a stream contains one.
pub fn cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// One end of a TLS connection. The caller passes functions that read from and write to the socket in the lower layer;
/// they may block or return WouldBlock.
pub struct Machine {
    connection: Connection,
}

impl Machine {
    /// Creates the end that accepted the connection.
    pub fn server(config: Arc<ServerConfig>) -> io::Result<Self> {
        Ok(Self::new(ServerConnection::new(config).map_err(wrong)?))
    }

    /// Creates the end that connects; the other end must present a certificate for `name`.
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<Self> {
        Ok(Self::new(ClientConnection::new(config, name).map_err(wrong)?))
    }

    fn new(connection: impl Into<Connection>) -> Self {
        let mut connection = connection.into();
        connection.set_buffer_limit(Some(SEND_LIMIT));
        Self { connection }
    }

    /// Returns whether the caller's data cannot be sent yet.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns the peer's certificates, its own certificate first. The configuration decides whether they were
    /// verified.
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.connection.peer_certificates()
    }

    /// Returns whether data waits for the socket.
    pub fn has_output(&self) -> bool {
        self.connection.wants_write()
    }

    /// Returns whether [`Machine::receive`] has data, or the end, without the socket.
    pub fn has_input(&mut self) -> bool {
        match self.connection.reader().into_first_chunk() {
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            Ok(_) => true,
        }
    }

    /// Continues the handshake to its end, or until the socket would block (WouldBlock). On an error the peer got an
    /// alert, if the socket took it.
    pub fn shake_hands(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        loop {
            let is_flushed = self.flush(&mut write)?;
            if !self.is_handshaking() {
                return Ok(());
            }
            if !is_flushed {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            match self.pull(HANDSHAKE_RECEIVE_LENGTH, &mut ReceiveBuffers::default(), &mut read) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => {
                    if cause(&error).is_some() {
                        let _ = self.flush(write);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// See [`crate::net::Stream::try_receive`]. A stream that ends without the peer's close_notify was cut, which is
    /// UnexpectedEof.
    pub fn receive(
        &mut self,
        landing: &mut [u8],
        scratch: &mut [u8],
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut room = ReceiveBuffers { landing, scratch, filled: 0 };
        if room.left() == 0 {
            return Ok(0);
        }
        if room.take(&mut self.connection)? != Taken::Nothing {
            return Ok(room.filled);
        }
        let mut empty = 0;
        // Never more than fits: the rest of one record is the only data that may not fit.
        while room.left() > 0 && empty < EMPTY_LIMIT {
            let filled = room.filled;
            let wanted = room.left().min(RECEIVE_LENGTH);
            let moved = match self.pull(wanted, &mut room, &mut read) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && filled > 0 => break,
                other => other?,
            };
            if room.take(&mut self.connection)? == Taken::End && room.filled == 0 {
                return Ok(0);
            }
            if moved < wanted {
                break;
            }
            empty += u32::from(room.filled == filled);
        }
        match room.filled {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            filled => Ok(filled),
        }
    }

    /// See [`crate::net::Stream::try_send`]. Bytes that it reports as sent may wait for [`Machine::flush`].
    pub fn send(
        &mut self,
        pieces: &[Piece<'_>],
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if !self.flush(&mut write)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut parts = Vec::with_capacity(pieces.len());
        let mut left = SEND_LIMIT;
        for piece in pieces {
            if left == 0 {
                break;
            }
            let part = Part::of(piece, left);
            left -= part.bytes().len();
            parts.push(part);
        }
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part.bytes())).collect();
        let taken = self.connection.writer().write_vectored(&slices)?;
        self.flush(write)?;
        Ok(taken)
    }

    /// Sends the waiting data. Returns whether the socket took all of it.
    pub fn flush(
        &mut self,
        write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<bool> {
        let mut socket = Socket(write);
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut socket) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Ends the outgoing stream (RFC 8446 §6.1); the next flush sends that.
    pub fn close(&mut self) {
        self.connection.send_close_notify();
    }

    /// Receives once from the socket. Returns the number of encrypted bytes; zero is the end.
    fn pull(
        &mut self,
        limit: usize,
        room: &mut ReceiveBuffers<'_>,
        read: &mut impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        ENCRYPTED.with_borrow_mut(|encrypted| {
            let limit = limit.min(encrypted.len());
            let count = read(&mut encrypted[..limit])?;
            let mut rest = &encrypted[..count];
            loop {
                let taken = self.connection.read_tls(&mut rest)?;
                self.connection.process_new_packets().map_err(wrong)?;
                // After the peer's own end, further data is ignored.
                if rest.is_empty() || taken == 0 {
                    return Ok(count);
                }
                room.take(&mut self.connection)?;
            }
        })
    }
}

fn wrong(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The buffers for received bytes: `landing` is filled first.
#[derive(Default)]
struct ReceiveBuffers<'a> {
    landing: &'a mut [u8],
    scratch: &'a mut [u8],
    filled: usize,
}

impl ReceiveBuffers<'_> {
    fn left(&self) -> usize {
        self.landing.len() + self.scratch.len() - self.filled
    }

    /// Takes the decrypted data, as much as there is room for.
    fn take(&mut self, connection: &mut Connection) -> io::Result<Taken> {
        while self.left() > 0 {
            let into = match self.landing.get_mut(self.filled..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => &mut self.scratch[self.filled - self.landing.len()..],
            };
            match connection.reader().read(into) {
                Ok(0) => return Ok(Taken::End),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The error is reported again after all data before it.
                Err(_) if self.filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(if self.filled > 0 { Taken::Bytes } else { Taken::Nothing })
    }
}

/// What the buffers have received so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The stream continues with data that has not arrived.
    Nothing,
    Bytes,
    /// The end of the stream, after the bytes in the buffers.
    End,
}

/// Bytes to be encrypted.
enum Part<'a> {
    Lent(&'a [u8]),
    /// Shared memory that may change meanwhile is copied before encryption.
    Copied(Buffer),
}

impl<'a> Part<'a> {
    fn of(piece: &Piece<'a>, limit: usize) -> Self {
        match piece {
            Piece::Bytes(bytes) => Self::Lent(&bytes[..bytes.len().min(limit)]),
            Piece::Shared { memory, offset, length } => {
                let mut copy = Buffer::for_overwrite(limit.min(*length));
                memory.copy_out(*offset, &mut copy);
                Self::Copied(copy)
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Copied(buffer) => buffer,
        }
    }
}

/// The socket, as rustls writes to it.
struct Socket<W>(W);

impl<W: FnMut(&[IoSlice<'_>]) -> io::Result<usize>> io::Write for Socket<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
