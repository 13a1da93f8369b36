//! TLS over a socket that a core watches.
//!
//! Encrypted data that the socket cannot take waits in the machine. Any task that waits on the stream, for either
//! direction, sends it meanwhile.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use sarsen_block::Piece;
use tokio::net::TcpStream;

use super::{Machine, cause};
use crate::{time, vectored};

/// Time limit for a peer to receive the last bytes, and to acknowledge them.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum bytes of a rejected peer that are read and discarded.
const REFUSED_LIMIT: usize = 64 * 1024;

/// The machine of one stream; each call gets its socket.
pub(crate) struct Encrypted {
    machine: RefCell<Machine>,
}

impl Encrypted {
    /// Performs the handshake. A rejected peer gets an alert: its connection stays open until it could read the alert.
    pub(crate) async fn shake_hands(mut machine: Machine, socket: &TcpStream) -> io::Result<Self> {
        loop {
            match machine.shake_hands(reading(socket), writing(socket)) {
                Ok(()) => return Ok(Self { machine: RefCell::new(machine) }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    if cause(&error).is_some() {
                        refuse(socket).await;
                    }
                    return Err(error);
                }
            }
            if machine.has_output() { socket.writable().await? } else { socket.readable().await? }
        }
    }

    pub(crate) async fn readable(&self, socket: &TcpStream) -> io::Result<()> {
        loop {
            if self.machine.borrow_mut().has_input() {
                return Ok(());
            }
            if !self.machine.borrow().has_output() {
                return socket.readable().await;
            }
            tokio::select! {
                biased;
                ready = socket.readable() => return ready,
                ready = socket.writable() => {
                    ready?;
                    self.flush(socket)?;
                }
            }
        }
    }

    pub(crate) async fn writable(&self, socket: &TcpStream) -> io::Result<()> {
        loop {
            socket.writable().await?;
            if self.flush(socket)? {
                return Ok(());
            }
        }
    }

    pub(crate) fn try_receive(
        &self,
        socket: &TcpStream,
        landing: &mut [u8],
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        let mut machine = self.machine.borrow_mut();
        let result = machine.receive(landing, scratch, reading(socket));
        if result.as_ref().is_err_and(|error| cause(error).is_some()) {
            // The peer gets the alert, if it still receives.
            let _ = machine.flush(writing(socket));
        }
        result
    }

    pub(crate) fn try_send(&self, socket: &TcpStream, pieces: &[Piece<'_>]) -> io::Result<usize> {
        self.machine.borrow_mut().send(pieces, writing(socket))
    }

    /// Sends the waiting data. Returns whether all of it was sent.
    fn flush(&self, socket: &TcpStream) -> io::Result<bool> {
        self.machine.borrow_mut().flush(writing(socket))
    }

    /// Sends the end of the stream, if the socket has space for it.
    pub(crate) fn say_end(&self, socket: &TcpStream) {
        self.machine.borrow_mut().close();
        let _ = self.flush(socket);
    }

    /// Does the same, and waits until all data is sent, for a limited time.
    pub(crate) async fn close(&self, socket: &TcpStream) {
        self.machine.borrow_mut().close();
        tokio::select! {
            _ = self.writable(socket) => {}
            () = time::sleep_until(time::now() + LINGER) => {}
        }
    }

    pub(crate) fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        self.machine.borrow().peer_certificates().unwrap_or_default().to_vec()
    }
}

/// Reads and discards the peer's data, so that the kernel does not reset the connection before the peer has read the
/// alert.
async fn refuse(socket: &TcpStream) {
    let _ = socket2::SockRef::from(socket).shutdown(std::net::Shutdown::Write);
    let deadline = time::now() + LINGER;
    let mut buffer = [0; 4096];
    let mut taken = 0;
    while taken < REFUSED_LIMIT {
        match vectored::receive(socket, &mut buffer, &mut []) {
            Ok(0) => return,
            Ok(count) => taken += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::select! {
                    ready = socket.readable() => if ready.is_err() { return },
                    () = time::sleep_until(deadline) => return,
                }
            }
            Err(_) => return,
        }
    }
}

fn reading(socket: &TcpStream) -> impl FnMut(&mut [u8]) -> io::Result<usize> {
    |bytes| vectored::receive(socket, bytes, &mut [])
}

fn writing(socket: &TcpStream) -> impl FnMut(&[IoSlice<'_>]) -> io::Result<usize> {
    |slices| {
        let pieces: Vec<_> = slices.iter().map(|slice| Piece::Bytes(slice)).collect();
        vectored::send(socket, &pieces)
    }
}
