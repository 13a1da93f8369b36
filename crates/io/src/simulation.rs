//! Replacements for the kernel in a simulation: byte streams that the simulation creates, randomness from a seed, and
//! the time of a runtime whose clock is paused ([`crate::time::now`]). The simulation defines how streams behave; this
//! module only connects them to the program.
//!
//! A thread that uses none of these has the real kernel, as without this module.

use std::cell::RefCell;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use sarsen_block::Rng;
use sarsen_block::{LocalFuture, Piece};

use crate::cores::Cores;
use crate::socket::{SocketListener, SocketStream};

/// One end of a connection that a simulation creates. The functions are those of [`SocketStream`].
pub trait SimulatedStream {
    /// Returns the other end's address.
    fn peer_addr(&self) -> SocketAddr;
    /// Returns this end's address.
    fn local_addr(&self) -> SocketAddr;
    /// Waits until there may be data to receive.
    fn readable(&self) -> LocalFuture<io::Result<()>>;
    /// Waits until there may be space to send.
    fn writable(&self) -> LocalFuture<io::Result<()>>;
    /// Receives the available data.
    fn try_receive(&self, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize>;
    /// Sends as much as there is space for.
    fn try_send(&self, pieces: &[Piece<'_>]) -> io::Result<usize>;
    /// Shuts down one direction, or both.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
}

/// A connection of the program: real or simulated.
pub struct Stream(StreamKind);

enum StreamKind {
    Socket(SocketStream),
    Simulated(Box<dyn SimulatedStream>),
}

impl From<SocketStream> for Stream {
    fn from(socket: SocketStream) -> Self {
        Self(StreamKind::Socket(socket))
    }
}

impl Stream {
    /// Creates a simulated connection.
    pub fn simulated(end: impl SimulatedStream + 'static) -> Self {
        Self(StreamKind::Simulated(Box::new(end)))
    }

    /// See [`SocketStream::from_std`].
    pub fn from_std(socket: TcpStream) -> io::Result<Self> {
        SocketStream::from_std(socket).map(Self::from)
    }

    /// See [`SocketStream::connect`].
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let simulated = CONNECTOR.with_borrow(|connector| Some(connector.as_ref()?(address)));
        match simulated {
            Some(simulated) => simulated.await,
            None => SocketStream::connect(address).await.map(Self::from),
        }
    }

    /// See [`SocketStream::give_up_after`]. Simulated streams do not give up.
    pub fn give_up_after(&self, keepalive: Duration, user_timeout: Duration) -> io::Result<()> {
        match &self.0 {
            StreamKind::Socket(socket) => socket.give_up_after(keepalive, user_timeout),
            StreamKind::Simulated(_) => Ok(()),
        }
    }

    /// See [`SocketStream::reset_on_close`]. Simulated streams are reset when they are dropped.
    pub fn reset_on_close(&self) -> io::Result<()> {
        match &self.0 {
            StreamKind::Socket(socket) => socket.reset_on_close(),
            StreamKind::Simulated(_) => Ok(()),
        }
    }

    /// See [`SocketStream::accept_tls`]. Simulated streams are not encrypted.
    pub async fn accept_tls(self, config: Arc<ServerConfig>) -> io::Result<Self> {
        self.into_socket()?.accept_tls(config).await.map(Self::from)
    }

    /// See [`SocketStream::connect_tls`]. Simulated streams are not encrypted.
    pub async fn connect_tls(
        self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        self.into_socket()?.connect_tls(config, name).await.map(Self::from)
    }

    /// See [`SocketStream::register_at`]. Simulated streams have only one core.
    pub fn register_at(&mut self, cores: &Cores, core: usize) -> io::Result<SocketStream> {
        match &mut self.0 {
            StreamKind::Socket(socket) => socket.register_at(cores, core),
            StreamKind::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn into_socket(self) -> io::Result<SocketStream> {
        match self.0 {
            StreamKind::Socket(socket) => Ok(socket),
            StreamKind::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// See [`SocketStream::is_encrypted`].
    pub fn is_encrypted(&self) -> bool {
        matches!(&self.0, StreamKind::Socket(socket) if socket.is_encrypted())
    }

    /// See [`SocketStream::peer_certificates`].
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        match &self.0 {
            StreamKind::Socket(socket) => socket.peer_certificates(),
            StreamKind::Simulated(_) => Vec::new(),
        }
    }

    /// See [`SocketStream::peer_addr`].
    pub fn peer_addr(&self) -> SocketAddr {
        match &self.0 {
            StreamKind::Socket(socket) => socket.peer_addr(),
            StreamKind::Simulated(end) => end.peer_addr(),
        }
    }

    /// See [`SocketStream::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            StreamKind::Socket(socket) => socket.local_addr(),
            StreamKind::Simulated(end) => Ok(end.local_addr()),
        }
    }

    /// See [`SocketStream::readable`].
    pub async fn readable(&self) -> io::Result<()> {
        match &self.0 {
            StreamKind::Socket(socket) => socket.readable().await,
            StreamKind::Simulated(end) => end.readable().await,
        }
    }

    /// See [`SocketStream::writable`].
    pub async fn writable(&self) -> io::Result<()> {
        match &self.0 {
            StreamKind::Socket(socket) => socket.writable().await,
            StreamKind::Simulated(end) => end.writable().await,
        }
    }

    /// See [`SocketStream::try_receive`].
    pub fn try_receive(&self, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            StreamKind::Socket(socket) => socket.try_receive(landing, scratch),
            StreamKind::Simulated(end) => end.try_receive(landing, scratch),
        }
    }

    /// See [`SocketStream::try_send`].
    pub fn try_send(&self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        match &self.0 {
            StreamKind::Socket(socket) => socket.try_send(pieces),
            StreamKind::Simulated(end) => end.try_send(pieces),
        }
    }

    /// See [`SocketStream::shutdown`].
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.0 {
            StreamKind::Socket(socket) => socket.shutdown(how),
            StreamKind::Simulated(end) => end.shutdown(how),
        }
    }

    /// See [`SocketStream::close`].
    pub async fn close(&self) {
        if let StreamKind::Socket(socket) = &self.0 {
            socket.close().await;
        }
    }
}

/// A listener: a socket, or only an address on a thread whose randomness has a seed. The functions are those of
/// [`SocketListener`].
pub struct Listener(Listening);

enum Listening {
    Socket(SocketListener),
    Simulated(SocketAddr),
}

impl Listener {
    fn open(
        address: SocketAddr,
        open: impl FnOnce(SocketAddr) -> io::Result<SocketListener>,
    ) -> io::Result<Self> {
        Ok(Self(if SEEDED.with_borrow(Option::is_some) {
            Listening::Simulated(address)
        } else {
            Listening::Socket(open(address)?)
        }))
    }

    /// See [`SocketListener::bind`].
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::open(address, SocketListener::bind)
    }

    /// See [`SocketListener::inherit_or_bind`].
    pub fn inherit_or_bind(address: SocketAddr) -> io::Result<Self> {
        Self::open(address, SocketListener::inherit_or_bind)
    }

    /// See [`SocketListener::give_up_after`].
    pub fn give_up_after(&self, keepalive: Duration, user_timeout: Duration) -> io::Result<()> {
        match &self.0 {
            Listening::Socket(socket) => socket.give_up_after(keepalive, user_timeout),
            Listening::Simulated(_) => Ok(()),
        }
    }

    /// See [`SocketListener::local_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            Listening::Socket(socket) => socket.local_addr(),
            Listening::Simulated(address) => Ok(*address),
        }
    }

    /// See [`SocketListener::accept`]. The simulation itself hands simulated connections to the server.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match &self.0 {
            Listening::Socket(socket) => socket.accept().await,
            Listening::Simulated(_) => std::future::pending().await,
        }
    }
}

/// Opens a simulated connection to an address.
type Connector = Box<dyn Fn(SocketAddr) -> LocalFuture<io::Result<Stream>>>;

thread_local! {
    /// Opens the connections of the thread, if the simulation does.
    static CONNECTOR: RefCell<Option<Connector>> = const { RefCell::new(None) };
}

/// Makes the simulation open all connections of this thread from here on.
pub fn set_connector(connect: impl Fn(SocketAddr) -> LocalFuture<io::Result<Stream>> + 'static) {
    CONNECTOR.set(Some(Box::new(connect)));
}

thread_local! {
    /// The generator, if the thread's randomness has a seed.
    static SEEDED: RefCell<Option<Rng>> = const { RefCell::new(None) };
}

/// Makes the thread's [`crate::random`] follow from `seed` from here on. It is then not secure: anyone with the seed
/// can predict it.
pub fn seed_randomness(seed: u64) {
    SEEDED.set(Some(Rng::new(seed)));
}

/// Returns whether the thread's randomness has a seed, so that everything on it must follow from the seed.
pub(crate) fn is_seeded() -> bool {
    SEEDED.with_borrow(Option::is_some)
}

/// Fills `into` if the thread's randomness has a seed.
pub(crate) fn fill(into: &mut [u8]) -> bool {
    SEEDED.with_borrow_mut(|seeded| {
        let Some(rng) = seeded else { return false };
        rng.fill(into);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn seed_repeats_random_numbers_of_its_thread() {
        assert_eq!(draw_after_seed(7), draw_after_seed(7));
        assert_ne!(draw_after_seed(7), draw_after_seed(8));
        let elsewhere = crate::threads::spawn("elsewhere", random::number).expect("a thread");
        let elsewhere = elsewhere.join().expect("no panic");
        assert_ne!(elsewhere, draw_after_seed(7).1, "another thread has the kernel's");
    }

    fn draw_after_seed(seed: u64) -> ([u8; 13], u64) {
        seed_randomness(seed);
        let mut bytes = [0; 13];
        random::fill(&mut bytes);
        (bytes, random::number())
    }
}
