//! The socket of a session of the load, plain or encrypted.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};
use sarsen_block::Piece;
use sarsen_initiator::Portal;
use sarsen_io::tls::Machine;
use sarsen_io::wake_ups;
use sarsen_proto::iscsi::initiator::Connection;

use super::LoadError;

/// Maximum number of pieces of one vectored send.
const PIECE_LIMIT: usize = 512;
/// The congestion control with the lowest CPU cost over a short path.
const CONGESTION: &str = "cubic";

/// The part of the pending output that the kernel accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendProgress {
    Complete,
    /// The send buffer of the socket is full, and output is pending.
    Partial,
}

pub(super) struct Socket {
    tcp: TcpStream,
    machine: Option<Box<Machine>>,
}

impl Socket {
    /// Connects, with TLS if the portal requires it. `limit` applies to each step.
    pub(super) fn connect(
        portal: &Portal,
        address: SocketAddr,
        limit: Duration,
    ) -> Result<Self, LoadError> {
        let tcp = TcpStream::connect_timeout(&address, limit).map_err(connect_error)?;
        tcp.set_nodelay(true).map_err(connect_error)?;
        // The kernel may not support this algorithm or may permit it to root only; then the default remains.
        let _ = sockopt::set_tcp_congestion(&tcp, CONGESTION);
        let mut socket = Self { tcp, machine: None };
        socket.set_read_timeout(limit)?;
        if let Some(tls) = &portal.tls {
            let mut machine = tls.machine(&portal.host)?;
            let tcp = &socket.tcp;
            machine.shake_hands(reading(tcp, true), writing(tcp, SendFlags::empty())).map_err(
                |error| match error.kind() {
                    ErrorKind::WouldBlock => LoadError::Stalled(limit),
                    _ => tls.failure(&portal.host, &error).into(),
                },
            )?;
            socket.machine = Some(Box::new(machine));
        }
        Ok(socket)
    }

    pub(super) fn set_read_timeout(&self, limit: Duration) -> Result<(), LoadError> {
        self.tcp.set_read_timeout(Some(limit)).map_err(connect_error)
    }

    /// Returns the socket to wait for.
    pub(super) const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Receives once, waiting for data if `wait` is set. Returns `None` if there was no data, zero at the end of the
    /// stream.
    pub(super) fn receive(
        &mut self,
        scratch: &mut [u8],
        wait: bool,
    ) -> Result<Option<usize>, LoadError> {
        let result = match &mut self.machine {
            None => reading(&self.tcp, wait)(scratch),
            Some(machine) => receive_decrypted(machine, &self.tcp, scratch, wait),
        };
        match result {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(source) => Err(LoadError::System { what: "receive", source }),
        }
    }

    /// Whether the TLS machine has buffered input that the kernel does not report.
    pub(super) fn keeps_more(&mut self) -> bool {
        self.machine.as_mut().is_some_and(|machine| machine.has_input())
    }

    /// Sends the pending output.
    pub(super) fn send(
        &mut self,
        connection: &mut Connection,
        flags: SendFlags,
    ) -> Result<SendProgress, LoadError> {
        let mut write = writing(&self.tcp, flags);
        let output = connection.output();
        while !output.is_empty() {
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, PIECE_LIMIT);
            let result = match &mut self.machine {
                None => write(&slices(&pieces)),
                Some(machine) => machine.send(&pieces, &mut write),
            };
            drop(pieces);
            match result {
                Ok(count) => output.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(SendProgress::Partial);
                }
                Err(source) => return Err(send_error(source)),
            }
        }
        let is_flushed = match &mut self.machine {
            None => true,
            Some(machine) => machine.flush(write).map_err(send_error)?,
        };
        Ok(if is_flushed { SendProgress::Complete } else { SendProgress::Partial })
    }
}

const fn connect_error(source: io::Error) -> LoadError {
    LoadError::System { what: "connect", source }
}

const fn send_error(source: io::Error) -> LoadError {
    LoadError::System { what: "send", source }
}

/// Closes TLS: without a close message, the target would regard the session as truncated.
impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.close();
            let _ = machine.flush(writing(&self.tcp, SendFlags::DONTWAIT));
        }
    }
}

/// Receives and decrypts. If `wait` is set, it continues until a whole record has arrived.
fn receive_decrypted(
    machine: &mut Machine,
    tcp: &TcpStream,
    scratch: &mut [u8],
    wait: bool,
) -> io::Result<usize> {
    loop {
        let mut read = reading(tcp, wait);
        let mut came = 0;
        let result = machine.receive(&mut [], scratch, |bytes| {
            let count = read(bytes)?;
            came += count;
            Ok(count)
        });
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock && wait && came > 0 => {}
            other => return other,
        }
    }
}

/// Returns a function that reads. Only its first call waits, and only if `wait` is set.
fn reading(tcp: &TcpStream, wait: bool) -> impl FnMut(&mut [u8]) -> io::Result<usize> {
    let mut flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    move |bytes| {
        let (count, _) = wake_ups::wait(|| retry_on_intr(|| recv(tcp, &mut *bytes, flags)))?;
        flags = RecvFlags::DONTWAIT;
        Ok(count)
    }
}

fn writing(tcp: &TcpStream, flags: SendFlags) -> impl FnMut(&[IoSlice<'_>]) -> io::Result<usize> {
    move |slices| {
        let mut control = SendAncillaryBuffer::default();
        let flags = flags | SendFlags::NOSIGNAL;
        Ok(retry_on_intr(|| sendmsg(tcp, slices, &mut control, flags))?)
    }
}

fn slices<'a>(pieces: &[Piece<'a>]) -> Vec<IoSlice<'a>> {
    let bytes = pieces.iter().filter_map(|piece| match piece {
        Piece::Bytes(bytes) => Some(IoSlice::new(bytes)),
        // The initiator never sends shared memory of a store.
        Piece::Shared { .. } => None,
    });
    bytes.collect()
}
