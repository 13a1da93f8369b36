//! TCP sockets of the kernel, plain or encrypted.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use sarsen_block::Piece;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::cores::Cores;
use crate::handover;
use crate::tls::Machine;
use crate::tls::stream::Encrypted;
use crate::vectored::{receive, send};

/// Maximum of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// How long accepting pauses when the process or the system is out of descriptors or memory.
const STARVED_PAUSE: Duration = Duration::from_millis(50);
/// Number of unanswered probes before a silent connection is closed.
const PROBES: u32 = 3;
/// Measured against the other algorithms that kernels use by default: bbr costs 50 % more on large reads over a
/// short path.
const CONGESTION: &[u8] = b"cubic";

/// Accepts connections.
pub struct SocketListener {
    socket: Arc<TcpListener>,
    /// The same socket, as the accepting core watches it.
    watched: OnceLock<AsyncFd<TcpListener>>,
    /// Descriptors or memory are exhausted, and that was logged.
    starved: AtomicBool,
}

impl SocketListener {
    /// Listens on `address`; port 0 selects a free port. An IPv6 address accepts only IPv6.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        Self::listen(socket)
    }

    /// Takes the socket that listens at `address` from the process that started this program, or binds one. Both can be
    /// handed over ([`handover::listening_sockets`]).
    pub fn inherit_or_bind(address: SocketAddr) -> io::Result<Self> {
        let listener = match handover::take(address) {
            Some(socket) => Self::listen(socket.into())?,
            None => Self::bind(address)?,
        };
        handover::remember(&listener.socket);
        Ok(listener)
    }

    fn listen(socket: Socket) -> io::Result<Self> {
        // Accepted sockets inherit both settings.
        socket.set_tcp_nodelay(true)?;
        let _ = socket.set_tcp_congestion(CONGESTION);
        socket.set_nonblocking(true)?;
        // For a socket that listens already, this only sets the backlog.
        socket.listen(BACKLOG)?;
        Ok(Self {
            socket: Arc::new(socket.into()),
            watched: OnceLock::new(),
            starved: AtomicBool::new(false),
        })
    }

    /// Sets when silent connections are closed, for connections that are accepted from now on. The kernel probes them
    /// after `keepalive` of silence (three times, a third of `user_timeout` apart). It closes them if the peer
    /// acknowledges nothing for `user_timeout`.
    pub fn give_up_after(&self, keepalive: Duration, user_timeout: Duration) -> io::Result<()> {
        // Accepted sockets inherit all of this (tcp(7)).
        give_up_after(socket2::SockRef::from(&*self.socket), keepalive, user_timeout)
    }

    /// Returns its address, with the selected port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the next connection, for use on any core. The first call binds the listener to its core.
    ///
    /// Connections that ended before they were accepted are skipped. If descriptors or memory are exhausted, this waits
    /// a moment and tries again; meanwhile the client waits in the backlog.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let watched = match self.watched.get() {
            Some(watched) => watched,
            None => {
                let socket = self.socket.try_clone()?;
                // SAFETY: the watcher owns the watched descriptor and never passes it on: the descriptor is closed only
                // with the registration.
                #[allow(unsafe_code)]
                let watched =
                    unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
                self.watched.get_or_init(|| watched)
            }
        };
        loop {
            match watched.async_io(Interest::READABLE, TcpListener::accept).await {
                Ok(accepted) => {
                    self.starved.store(false, Ordering::Relaxed);
                    return Ok(accepted);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        if !self.starved.swap(true, Ordering::Relaxed) {
                            tracing::warn!(
                                %error,
                                "cannot accept connections for now: raise the limit of open files (ulimit -n)"
                            );
                        }
                        crate::time::sleep_until(crate::time::now() + STARVED_PAUSE).await;
                    }
                    // Errors of the new connection, which Linux reports here (accept(2)).
                    Some(
                        libc::ECONNABORTED
                        | libc::EINTR
                        | libc::EPERM
                        | libc::EPROTO
                        | libc::ENETDOWN
                        | libc::ENOPROTOOPT
                        | libc::EHOSTDOWN
                        | libc::ENONET
                        | libc::EHOSTUNREACH
                        | libc::EOPNOTSUPP
                        | libc::ENETUNREACH,
                    ) => tracing::debug!(%error, "a connection ended before it was accepted"),
                    _ => return Err(error),
                },
            }
        }
    }
}

fn give_up_after(
    socket: socket2::SockRef<'_>,
    keepalive: Duration,
    user_timeout: Duration,
) -> io::Result<()> {
    // The kernel counts whole seconds.
    let second = Duration::from_secs(1);
    let interval = (user_timeout / PROBES).max(second);
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(keepalive.max(second))
        .with_interval(interval)
        .with_retries(PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(user_timeout))
}

/// A TCP connection on the core that created it, plain or encrypted.
pub struct SocketStream {
    socket: tokio::net::TcpStream,
    peer: SocketAddr,
    encrypted: Option<Box<Encrypted>>,
}

impl SocketStream {
    /// Moves a connection to the calling core.
    pub fn from_std(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let peer = socket.peer_addr()?;
        Ok(Self { socket: tokio::net::TcpStream::from_std(socket)?, peer, encrypted: None })
    }

    /// Connects to `address`.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = tokio::net::TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let _ = socket2::SockRef::from(&socket).set_tcp_congestion(CONGESTION);
        Ok(Self { socket, peer: address, encrypted: None })
    }

    /// Sets when a silent connection ends, as [`SocketListener::give_up_after`] does.
    pub fn give_up_after(&self, keepalive: Duration, user_timeout: Duration) -> io::Result<()> {
        give_up_after(socket2::SockRef::from(&self.socket), keepalive, user_timeout)
    }

    /// Lets the end of the connection reset it: data that was not sent yet is discarded, instead of being sent for minutes.
    pub fn reset_on_close(&self) -> io::Result<()> {
        socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO))
    }

    /// Encrypts an accepted connection that was not used yet: the TLS handshake. The caller limits how long it may
    /// take. [`crate::tls::cause`] returns the peer's error.
    pub async fn accept_tls(mut self, config: Arc<ServerConfig>) -> io::Result<Self> {
        self.encrypt(Machine::server(config)?).await?;
        Ok(self)
    }

    /// Does the same on an outgoing connection. The server must have a certificate for `name`.
    pub async fn connect_tls(
        mut self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        self.encrypt(Machine::client(config, name)?).await?;
        Ok(self)
    }

    /// Registers the connection at another core, where the returned stream continues it. After an error, this stream is
    /// unchanged. After success, the caller may only drop this stream.
    pub fn register_at(&mut self, cores: &Cores, core: usize) -> io::Result<Self> {
        let socket = self.socket.as_fd().try_clone_to_owned()?.into();
        let socket = cores.register(core, socket)?;
        Ok(Self { socket, peer: self.peer, encrypted: self.encrypted.take() })
    }

    async fn encrypt(&mut self, machine: Machine) -> io::Result<()> {
        let encrypted = Encrypted::shake_hands(machine, &self.socket).await?;
        self.encrypted = Some(Box::new(encrypted));
        Ok(())
    }

    /// Returns whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted.is_some()
    }

    /// Returns the peer's certificates from the TLS handshake, its own certificate first.
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        self.encrypted.as_ref().map(|tls| tls.peer_certificates()).unwrap_or_default()
    }

    /// Returns the address of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits until there may be data, or the end of the stream, to receive.
    pub async fn readable(&self) -> io::Result<()> {
        match &self.encrypted {
            None => self.socket.readable().await,
            Some(tls) => tls.readable(&self.socket).await,
        }
    }

    /// Waits until there may be space to send.
    pub async fn writable(&self) -> io::Result<()> {
        match &self.encrypted {
            None => self.socket.writable().await,
            Some(tls) => tls.writable(&self.socket).await,
        }
    }

    /// Receives into `landing` first, then `scratch`, and returns the number of bytes. Zero means that the peer ended
    /// the stream (or that both buffers are empty). WouldBlock means to wait for [`SocketStream::readable`]. An
    /// encrypted stream that was cut before its end is UnexpectedEof.
    pub fn try_receive(&self, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize> {
        match &self.encrypted {
            None => receive(&self.socket, landing, scratch),
            Some(tls) => tls.try_receive(&self.socket, landing, scratch),
        }
    }

    /// Sends from the front of `pieces`, a maximum of [`crate::net::PIECES_MAX`], in one call, and returns the number of bytes.
    /// WouldBlock means to wait for [`SocketStream::writable`]. An encrypted stream may take data that it cannot send
    /// yet: it sends the rest while a task waits on the stream, and in [`SocketStream::close`].
    ///
    /// A store's memory that is a [`crate::memory::Region`] is sent by address; other shared memory is copied.
    pub fn try_send(&self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        match &self.encrypted {
            None => send(&self.socket, pieces),
            Some(tls) => tls.try_send(&self.socket, pieces),
        }
    }

    /// Shuts down one direction, or both. Data that an encrypted stream has not sent yet is lost.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if let Some(tls) = &self.encrypted
            && how != Shutdown::Read
        {
            tls.say_end(&self.socket);
        }
        socket2::SockRef::from(&self.socket).shutdown(how)
    }

    /// Waits until an encrypted stream has sent all its data and its end, for a maximum of one second. For a plain
    /// stream the kernel does this.
    pub async fn close(&self) {
        if let Some(tls) = &self.encrypted {
            tls.close(&self.socket).await;
        }
    }
}

/// Dropping an encrypted stream sends its end. Otherwise its peer would report a cut stream.
impl Drop for SocketStream {
    fn drop(&mut self) {
        if let Some(tls) = &self.encrypted {
            tls.say_end(&self.socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::Region;
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use sarsen_block::SharedMemory;

    use super::*;
    use crate::cores::{FileEngine, block_on};
    use crate::spin::Spin;

    struct Foreign(Vec<u8>);

    impl SharedMemory for Foreign {
        fn length(&self) -> usize {
            self.0.len()
        }
        fn copy_out(&self, offset: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.0[offset..offset + into.len()]);
        }
    }

    async fn pair(address: &str) -> (SocketStream, SocketStream) {
        let listener = SocketListener::bind(address.parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(SocketStream::connect(address), listener.accept());
        let (socket, peer) = accepted.unwrap();
        let client = client.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        (client, SocketStream::from_std(socket).unwrap())
    }

    async fn receive(
        stream: &SocketStream,
        landing: &mut [u8],
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        loop {
            stream.readable().await?;
            match stream.try_receive(landing, scratch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    #[test]
    fn pieces_of_every_kind_arrive_in_order_on_ipv4_and_ipv6() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            if address.starts_with('[') && SocketListener::bind(address.parse().unwrap()).is_err() {
                continue; // no IPv6 here
            }
            block_on(FileEngine::Pool, async {
                let (client, server) = pair(address).await;
                let region = Region::new(8192).unwrap();
                region.write(100, b"shared");
                let region: Arc<dyn SharedMemory> = region;
                let foreign: Arc<dyn SharedMemory> = Arc::new(Foreign(b"xforeign".to_vec()));
                let sent = client
                    .try_send(&[
                        Piece::Bytes(b"bytes "),
                        Piece::Bytes(b""),
                        Piece::Shared { memory: &region, offset: 100, length: 6 },
                        Piece::Shared { memory: &foreign, offset: 1, length: 7 },
                    ])
                    .unwrap();
                assert_eq!(sent, 19);
                let (mut landing, mut scratch) = ([0; 8], [0; 64]);
                assert_eq!(receive(&server, &mut landing, &mut scratch).await.unwrap(), 19);
                assert_eq!(&landing, b"bytes sh");
                assert_eq!(&scratch[..11], b"aredforeign");
                client.shutdown(Shutdown::Write).unwrap();
                assert_eq!(receive(&server, &mut [], &mut scratch).await.unwrap(), 0);
                assert_eq!(server.peer_addr(), client.local_addr().unwrap());
            })
            .unwrap();
        }
    }

    #[test]
    fn more_than_the_socket_holds_arrives_whole() {
        const TOTAL: usize = 32 << 20;
        let pattern = |position: usize| (position * 7 + position / 4096) as u8;
        block_on(FileEngine::Pool, async {
            let (client, server) = pair("127.0.0.1:0").await;
            let data: Vec<u8> = (0..TOTAL).map(pattern).collect();
            let send = async {
                let mut sent = 0;
                while sent < TOTAL {
                    client.writable().await.unwrap();
                    let pieces: Vec<_> =
                        data[sent..].chunks(1000).take(2000).map(Piece::Bytes).collect();
                    match client.try_send(&pieces) {
                        Ok(count) => sent += count,
                        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                    }
                }
                client.shutdown(Shutdown::Write).unwrap();
            };
            let collect = async {
                let mut position = 0;
                let (mut landing, mut scratch) = (vec![0; 333], vec![0; 65536]);
                loop {
                    let count = receive(&server, &mut landing, &mut scratch).await.unwrap();
                    if count == 0 {
                        return position;
                    }
                    for byte in landing.iter().chain(&scratch).take(count) {
                        assert_eq!(*byte, pattern(position));
                        position += 1;
                    }
                }
            };
            assert_eq!(tokio::join!(send, collect).1, TOTAL);
        })
        .unwrap();
    }

    #[test]
    fn a_connection_continues_on_another_core() {
        let cores = Cores::start(NonZeroUsize::new(1), FileEngine::Pool, Spin::Never).unwrap();
        block_on(FileEngine::Pool, async {
            let (client, mut server) = pair("127.0.0.1:0").await;
            client.writable().await.unwrap();
            client.try_send(&[Piece::Bytes(b"before")]).unwrap();
            server.readable().await.unwrap();
            let moved = server.register_at(&cores, 0).unwrap();
            drop(server);
            let (done, peer) = tokio::sync::oneshot::channel();
            cores.spawn_on(0, move || async move {
                let mut scratch = [0; 16];
                assert_eq!(receive(&moved, &mut [], &mut scratch).await.unwrap(), 6);
                assert_eq!(&scratch[..6], b"before");
                moved.writable().await.unwrap();
                moved.try_send(&[Piece::Bytes(b"after")]).unwrap();
                done.send(moved.peer_addr()).unwrap();
            });
            let mut scratch = [0; 16];
            assert_eq!(receive(&client, &mut [], &mut scratch).await.unwrap(), 5);
            assert_eq!(peer.await.unwrap(), client.local_addr().unwrap());
        })
        .unwrap();
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_and_not_a_signal() {
        block_on(FileEngine::Pool, async {
            let (client, server) = pair("127.0.0.1:0").await;
            drop(client);
            let mut scratch = [0; 16];
            assert_eq!(receive(&server, &mut [], &mut scratch).await.unwrap(), 0);
            let error = loop {
                server.writable().await.unwrap();
                if let Err(error) = server.try_send(&[Piece::Bytes(b"x")])
                    && error.kind() != io::ErrorKind::WouldBlock
                {
                    break error;
                }
            };
            assert!(
                matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset),
                "{error}"
            );
        })
        .unwrap();
    }

    #[test]
    fn port_in_use_is_reported() {
        let listener = SocketListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = SocketListener::bind(listener.local_addr().unwrap()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
    #[test]
    fn accepted_connections_inherit_when_to_give_up() {
        let listener = SocketListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let seconds = Duration::from_secs;
        listener.give_up_after(seconds(70), seconds(45)).unwrap();
        block_on(FileEngine::Pool, async {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            let accepted = socket2::SockRef::from(&accepted);
            assert!(accepted.keepalive().unwrap());
            assert_eq!(accepted.tcp_keepalive_time().unwrap(), seconds(70));
            assert_eq!(accepted.tcp_keepalive_interval().unwrap(), seconds(15));
            assert_eq!(accepted.tcp_keepalive_retries().unwrap(), PROBES);
            assert_eq!(accepted.tcp_user_timeout().unwrap(), Some(seconds(45)));
            drop(client);
        })
        .unwrap();
    }
}
