//! The socket of a session of the load, plain or encrypted.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};
use sarsen_block::Piece;
use sarsen_initiator::Portal;
use sarsen_io::tls::Machine;
use sarsen_proto::iscsi::initiator::Connection;

use super::LoadError;

/// Pieces of one vectored send.
const PIECE_LIMIT: usize = 512;
/// The congestion control that costs least over a short path.
const CONGESTION: &str = "cubic";

pub(super) struct Socket {
    tcp: TcpStream,
    machine: Option<Box<Machine>>,
}

impl Socket {
    /// Connects, by TLS where the portal is spoken to so. Each step may take this long.
    pub(super) fn connect(
        portal: &Portal,
        address: SocketAddr,
        limit: Duration,
    ) -> Result<Self, LoadError> {
        let io_error = |source| LoadError::System { what: "connect", source };
        let tcp = TcpStream::connect_timeout(&address, limit).map_err(io_error)?;
        tcp.set_nodelay(true).map_err(io_error)?;
        // A kernel may lack it, or reserve it for root: then it is as it is.
        let _ = sockopt::set_tcp_congestion(&tcp, CONGESTION);
        let mut socket = Self { tcp, machine: None };
        socket.set_read_timeout(limit)?;
        if let Some(tls) = &portal.tls {
            let mut machine = tls.machine(portal)?;
            let tcp = &socket.tcp;
            machine.shake_hands(reading(tcp, true), writing(tcp, SendFlags::empty())).map_err(
                |error| match error.kind() {
                    ErrorKind::WouldBlock => LoadError::Stalled(limit),
                    _ => tls.failure(portal, &error).into(),
                },
            )?;
            socket.machine = Some(Box::new(machine));
        }
        Ok(socket)
    }

    pub(super) fn set_read_timeout(&self, limit: Duration) -> Result<(), LoadError> {
        let io_error = |source| LoadError::System { what: "connect", source };
        self.tcp.set_read_timeout(Some(limit)).map_err(io_error)
    }

    /// What is waited on.
    pub(super) const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Receives once, with or without waiting for something; `None` if nothing came, zero at the
    /// end.
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

    /// Whether there is more to receive of which the system knows nothing.
    pub(super) fn keeps_more(&mut self) -> bool {
        self.machine.as_mut().is_some_and(|machine| machine.has_input())
    }

    /// Sends what is ready. False if the system took less.
    pub(super) fn send(
        &mut self,
        connection: &mut Connection,
        flags: SendFlags,
    ) -> Result<bool, LoadError> {
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
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(source) => return Err(LoadError::System { what: "send", source }),
            }
        }
        match &mut self.machine {
            None => Ok(true),
            Some(machine) => {
                machine.flush(write).map_err(|source| LoadError::System { what: "send", source })
            }
        }
    }
}

/// The target would take an encrypted session that just ends for one that was cut.
impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.close();
            let _ = machine.flush(writing(&self.tcp, SendFlags::DONTWAIT));
        }
    }
}

/// Bytes that are less than a whole record are not what is waited for.
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

/// Waits, if it does, before the first bytes alone.
fn reading(tcp: &TcpStream, wait: bool) -> impl FnMut(&mut [u8]) -> io::Result<usize> {
    let mut flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    move |bytes| {
        let (count, _) = retry_on_intr(|| recv(tcp, &mut *bytes, flags))?;
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
        // Nothing that is written here is a store's memory.
        Piece::Shared { .. } => None,
    });
    bytes.collect()
}
