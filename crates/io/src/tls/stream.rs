//! TLS over a socket that a core watches.
//!
//! What was encrypted and found no room waits in the machine. Whoever waits on the stream, for
//! either direction, sends it on meanwhile.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use sarsen_block::Piece;
use tokio::net::TcpStream;

use super::{Machine, cause};
use crate::{net, time};

/// How long a peer has to take the last bytes, and to say that it has them.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes of a peer that was refused, which are thrown away for so long.
const REFUSED_LIMIT: usize = 64 * 1024;

/// The machine of one stream, whose socket is handed to each call.
pub(crate) struct Encrypted {
    machine: RefCell<Machine>,
}

impl Encrypted {
    /// Shakes hands. A peer that is refused is told why: its connection is not cut before it can
    /// have seen that.
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
            match machine.has_output() {
                true => socket.writable().await?,
                false => socket.readable().await?,
            }
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
            // The peer is told what was wrong, if it listens.
            let _ = machine.flush(writing(socket));
        }
        result
    }

    pub(crate) fn try_send(&self, socket: &TcpStream, pieces: &[Piece<'_>]) -> io::Result<usize> {
        self.machine.borrow_mut().send(pieces, writing(socket))
    }

    /// Sends what waits. Whether that is all.
    fn flush(&self, socket: &TcpStream) -> io::Result<bool> {
        self.machine.borrow_mut().flush(writing(socket))
    }

    /// Says that nothing more will come, as far as there is room for it.
    pub(crate) fn say_end(&self, socket: &TcpStream) {
        self.machine.borrow_mut().close();
        let _ = self.flush(socket);
    }

    /// The same, and waits until all has gone, or a moment.
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

/// Takes and forgets what the peer still sends, so that the kernel does not cut it off before it
/// has read what it was told.
async fn refuse(socket: &TcpStream) {
    let _ = socket2::SockRef::from(socket).shutdown(std::net::Shutdown::Write);
    let deadline = time::now() + LINGER;
    let mut buffer = [0; 4096];
    let mut taken = 0;
    while taken < REFUSED_LIMIT {
        match net::receive(socket, &mut buffer, &mut []) {
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
    |bytes| net::receive(socket, bytes, &mut [])
}

fn writing(socket: &TcpStream) -> impl FnMut(&[IoSlice<'_>]) -> io::Result<usize> {
    |slices| {
        let pieces: Vec<_> = slices.iter().map(|slice| Piece::Bytes(slice)).collect();
        net::send(socket, &pieces)
    }
}
