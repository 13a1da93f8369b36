//! Connections to the API's port. Who connects need not have shown who he is, so nobody stays for saying
//! nothing, and there is an end to how many there are: others wait until one goes.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sarsen_io::net::Listener;
use sarsen_io::time;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, error, warn};

use super::UNREAD_TIME;
use crate::tls::Tls;

/// A client that has gone without a word is given up after so long.
const SILENCE: Duration = Duration::from_secs(60);

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// At once. A browser takes six for each of its windows.
    pub(super) connections: usize,
    /// For the handshake of TLS.
    pub(super) handshake: Duration,
    /// For the head of a request, from the end of the one before it.
    pub(super) head: Duration,
    /// For its body.
    pub(super) body: Duration,
    /// Time that the client has to read more of its response.
    pub(super) unread: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            body: Duration::from_secs(120),
            unread: UNREAD_TIME,
        }
    }
}

/// A connection's place among all connections. Its requests have it as an extension.
#[derive(Clone)]
pub(super) struct ConnectionSlot(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl ConnectionSlot {
    /// Gives the place to another connection: this connection has become a stream, and streams have their own limit.
    pub(super) fn leave(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// The peer of a request's connection, which each request has as an extension.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Answers whoever comes. Does not end.
pub(super) async fn serve(
    listener: Listener,
    tls: Option<Arc<Tls>>,
    router: Router,
    limits: Limits,
) {
    if let Err(error) = listener.give_up_after(SILENCE, SILENCE) {
        warn!(%error, "clients of the API that have gone without a word keep their places");
    }
    let in_time = move |request, next| body_in_time(request, next, limits.body);
    let router = router.layer(middleware::from_fn(in_time));
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        // Others wait in the backlog.
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        let place = ConnectionSlot(Arc::new(Mutex::new(Some(place))));
        let (stream, peer) = next_connection(&listener).await;
        let (tls, router) = (tls.clone(), router.clone());
        tokio::spawn(async move {
            match tls {
                None => answer(stream, peer, place, router, limits).await,
                Some(tls) => {
                    if let Some(stream) = shake_hands(stream, peer, &tls, limits).await {
                        answer(stream, peer, place, router, limits).await;
                    }
                }
            }
        });
    }
}

async fn shake_hands(
    stream: TcpStream,
    peer: SocketAddr,
    tls: &Tls,
    limits: Limits,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    let acceptor = TlsAcceptor::from(tls.current(time::now()).server.clone());
    tokio::select! {
        shaken = acceptor.accept(stream) => match shaken {
            Ok(stream) => return Some(stream),
            Err(error) => debug!(%peer, %error, "a handshake with the API failed"),
        },
        () = time::sleep_until(time::now() + limits.handshake) => {
            debug!(%peer, "a handshake with the API took too long");
        }
    }
    None
}

/// Answers one client's requests.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    place: ConnectionSlot,
    router: Router,
    limits: Limits,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<_>| {
        request.extensions_mut().insert(place.clone());
        request.extensions_mut().insert(Peer(peer));
        router.call(request)
    });
    let stream = TokioIo::new(Timed::new(stream, limits.unread));
    if let Err(error) = builder.serve_connection(stream, service).await {
        debug!(%peer, %error, "a client of the API broke off");
    }
}

/// A stream that fails when its peer has read nothing for some time.
pub(super) struct Timed<S> {
    stream: S,
    limit: Duration,
    /// Set while data waits because the peer has no room for it.
    until: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S> Timed<S> {
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, until: None }
    }

    fn in_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let limit = self.limit;
        let until = || Box::pin(time::sleep_until(time::now() + limit)) as _;
        ready!(self.until.get_or_insert_with(until).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.in_time(cx, shut)
    }
}

/// A body that does not come breaks off.
async fn body_in_time(request: Request, next: Next, limit: Duration) -> Response {
    let deadline = time::now() + limit;
    let request = request.map(|body| {
        Body::from_stream(unfold(body.into_data_stream(), move |mut body| async move {
            let part = tokio::select! {
                part = body.next() => part?,
                () = time::sleep_until(deadline) => {
                    Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut)))
                }
            };
            Some((part, body))
        }))
    });
    next.run(request).await
}

async fn next_connection(listener: &Listener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => match nonblocking(socket) {
                Ok(stream) => return (stream, peer),
                Err(error) => debug!(%peer, %error, "a client of the API ended as it began"),
            },
            Err(error) => {
                error!(%error, "the API's port accepts nobody any more");
                std::future::pending::<()>().await;
            }
        }
    }
}

fn nonblocking(socket: std::net::TcpStream) -> io::Result<TcpStream> {
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as Client;

    use axum::body::Bytes;
    use axum::routing::get;
    use sarsen_io::threads;
    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    /// Clients of a port that answers until they have done.
    fn with(
        router: Router,
        tls: Option<Arc<Tls>>,
        limits: Limits,
        clients: impl FnOnce(SocketAddr),
    ) {
        let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let address = listener.local_addr().expect("bound");
        let (done, end) = oneshot::channel::<()>();
        let thread = threads::spawn_runtime("api", move || async move {
            tokio::select! {
                () = serve(listener, tls, router, limits) => {}
                _ = end => {}
            }
        });
        clients(address);
        drop(done);
        thread.expect("a thread").join().expect("it ends well");
    }

    fn client(address: SocketAddr, says: &str) -> Client {
        let mut client = Client::connect(address).expect("connected");
        client.set_read_timeout(Some(LONG)).expect("set");
        client.write_all(says.as_bytes()).expect("sent");
        client
    }

    fn rest(mut client: Client) -> String {
        let mut rest = String::new();
        client.read_to_string(&mut rest).expect("it is ended");
        rest
    }

    const REQUEST: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

    /// An answer's first bytes, which are all of it.
    fn asked(client: &mut Client) {
        client.write_all(REQUEST.as_bytes()).expect("sent");
        let mut answer = [0; 4096];
        let length = client.read(&mut answer).expect("an answer");
        assert!(answer[..length].starts_with(b"HTTP/1.1 200"));
    }

    fn limits() -> Limits {
        Limits { connections: 8, handshake: LONG, head: LONG, body: LONG, unread: LONG }
    }

    #[test]
    fn who_says_nothing_is_ended() {
        let router =
            || Router::new().route("/", get(|| async { "ok" }).post(|body: Bytes| async { body }));
        with(router(), None, Limits { head: SHORT, ..limits() }, |address| {
            assert_eq!(rest(client(address, "")), "");
            assert_eq!(rest(client(address, "GET / HTTP/1.1\r\nho")), "");
            let after_one = rest(client(address, REQUEST));
            assert!(after_one.ends_with("ok"), "{after_one}");
        });
        with(router(), None, Limits { body: SHORT, ..limits() }, |address| {
            let half = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nhalf";
            let reported = rest(client(address, half));
            assert!(reported.starts_with("HTTP/1.1 400"), "{reported}");
        });
        let folder = tempfile::tempdir().expect("a folder");
        let certificate =
            crate::control::web::own_certificate(folder.path(), [127, 0, 0, 1].into())
                .expect("made");
        let tls = Some(Arc::new(Tls::open(&certificate).expect("it can be used")));
        with(router(), tls, Limits { handshake: SHORT, ..limits() }, |address| {
            assert_eq!(rest(client(address, "")), "");
        });
    }

    #[test]
    fn who_is_told_what_happens_stays() {
        let (happens, happened) = oneshot::channel::<&str>();
        let happened = Arc::new(std::sync::Mutex::new(Some(happened)));
        let stream = move || {
            let happened = happened.lock().expect("held").take().expect("asked once");
            let reported = futures_util::stream::once(happened);
            async { Body::from_stream(reported) }
        };
        let router = Router::new().route("/", get(stream));
        with(router, None, Limits { head: SHORT, body: SHORT, ..limits() }, |address| {
            let mut listener =
                client(address, &REQUEST.replace("host:", "connection: close\r\nhost:"));
            let mut first = [0; 15];
            listener.read_exact(&mut first).expect("a head");
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            // Others' time is over meanwhile.
            assert_eq!(rest(client(address, "")), "");
            happens.send("it happened").expect("somebody listens");
            let reported = rest(listener);
            assert!(reported.contains("it happened"), "{reported}");
        });
    }

    #[test]
    fn more_than_there_are_places_wait_for_one() {
        let router = Router::new().route("/", get(|| async { "ok" }));
        with(router, None, Limits { connections: 1, ..limits() }, |address| {
            let mut first = client(address, "");
            asked(&mut first);
            let mut second = client(address, REQUEST);
            (0..100).for_each(|_| asked(&mut first));
            second.set_nonblocking(true).expect("set");
            let nothing = second.read(&mut [0; 1]).expect_err("nobody answers").kind();
            assert_eq!(nothing, io::ErrorKind::WouldBlock);
            second.set_nonblocking(false).expect("set");
            drop(first);
            let mut answer = [0; 15];
            second.read_exact(&mut answer).expect("there is a place");
            assert_eq!(&answer, b"HTTP/1.1 200 OK");
        });
    }

    #[test]
    fn who_does_not_read_is_ended() {
        let endless = || async {
            let piece = || Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 1 << 16]));
            Body::from_stream(futures_util::stream::repeat_with(piece))
        };
        let router = Router::new().route("/", get(endless));
        let limits = Limits { connections: 1, unread: SHORT, ..limits() };
        with(router, None, limits, |address| {
            let idle = client(address, REQUEST);
            // The server ends the idle connection and gives its place to the other one. The idle client sees the end
            // after the data that was sent before.
            let mut other = client(address, REQUEST);
            let mut answer = [0; 15];
            other.read_exact(&mut answer).expect("there is a place");
            assert_eq!(&answer, b"HTTP/1.1 200 OK");
            drop(idle);
        });
    }

    #[test]
    fn a_connection_that_left_its_place_is_not_counted() {
        let stream = |axum::Extension(place): axum::Extension<ConnectionSlot>| async move {
            place.leave();
            let reported =
                futures_util::stream::once(async { Ok::<_, io::Error>(Bytes::from("x")) });
            Body::from_stream(reported.chain(futures_util::stream::pending()))
        };
        let router = Router::new().route("/", get(stream));
        with(router, None, Limits { connections: 1, ..limits() }, |address| {
            let clients = [0; 5].map(|_| {
                let mut client = client(address, REQUEST);
                let mut answer = [0; 15];
                client.read_exact(&mut answer).expect("there is a place");
                client
            });
            drop(clients);
        });
    }
}
