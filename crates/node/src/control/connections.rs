//! Connections to the API's port. Clients may be unauthenticated, so each wait for a client has a limit, and so has the
//! number of connections.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, MutexGuard};
use sarsen_io::net::Listener;
use sarsen_io::time;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, error, warn};

use super::UNREAD_TIME;
use crate::tls::Tls;

/// The TCP keepalive time and the TCP user timeout of connections, after which a silent client is disconnected.
const SILENCE: Duration = Duration::from_secs(60);

/// The limits of clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum number of connections. A browser opens six for each of its windows.
    pub(super) connections: usize,
    /// Maximum time for the TLS handshake.
    pub(super) handshake: Duration,
    /// Maximum time for the head of a request, from the end of the previous request.
    pub(super) head: Duration,
    /// Maximum time for the body of a request.
    pub(super) body: Duration,
    /// Maximum time until the client reads more of its response.
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

/// The slots of all connections. When they are all in use, a new client gets the slot of the connection that has waited
/// longest for its own client: for a handshake, a request or the body of one.
struct Slots {
    free: Arc<Semaphore>,
    waiting: Arc<Mutex<WaitingConnections>>,
}

/// The connections that wait for their clients, longest first.
#[derive(Default)]
struct WaitingConnections {
    last_number: u64,
    by_number: BTreeMap<u64, Arc<Notify>>,
    /// Notified when another connection waits.
    added: Arc<Notify>,
}

impl Slots {
    fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), waiting: Arc::default() }
    }

    /// Waits for a slot: for one that is free, or for one whose connection is closed for this client.
    async fn take(&self) -> ConnectionSlot {
        let added = locked(&self.waiting).added.clone();
        let acquire = || self.free.clone().acquire_owned();
        let permit = loop {
            if let Ok(permit) = self.free.clone().try_acquire_owned() {
                break permit;
            }
            let longest = locked(&self.waiting).by_number.pop_first();
            if let Some((_, evicted)) = longest {
                evicted.notify_one();
                break acquire().await.expect("it is never closed");
            }
            tokio::select! {
                permit = acquire() => break permit.expect("it is never closed"),
                () = added.notified() => {}
            }
        };
        let slot = ConnectionSlot {
            evicted: Arc::default(),
            waiting: self.waiting.clone(),
            state: Arc::new(Mutex::new(SlotState { permit: Some(permit), number: None })),
        };
        slot.wait_for_client();
        slot
    }
}

/// A connection's slot. Its requests have it as an extension.
#[derive(Clone)]
pub(super) struct ConnectionSlot {
    evicted: Arc<Notify>,
    waiting: Arc<Mutex<WaitingConnections>>,
    state: Arc<Mutex<SlotState>>,
}

struct SlotState {
    permit: Option<OwnedSemaphorePermit>,
    /// Its number among the waiting connections, while it waits for its client.
    number: Option<u64>,
}

impl ConnectionSlot {
    /// Frees the slot: this connection has become a stream, and streams have their own limit.
    pub(super) fn leave(&self) {
        self.wait_for_server();
        locked(&self.state).permit = None;
    }

    /// Marks the connection as waiting for its client: a new client may get its slot.
    fn wait_for_client(&self) {
        self.wait_for_server();
        let mut state = locked(&self.state);
        if state.permit.is_some() {
            let mut waiting = locked(&self.waiting);
            waiting.last_number += 1;
            let number = waiting.last_number;
            waiting.by_number.insert(number, self.evicted.clone());
            waiting.added.notify_one();
            state.number = Some(number);
        }
    }

    /// Marks the request as complete: the connection keeps its slot until the request is answered.
    fn wait_for_server(&self) {
        if let Some(number) = locked(&self.state).number.take() {
            locked(&self.waiting).by_number.remove(&number);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// The peer of a request's connection, which each request has as an extension.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Serves the clients. It does not return.
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
    let slots = Slots::new(limits.connections);
    loop {
        let (stream, peer) = next_connection(&listener).await;
        // Meanwhile, other clients wait in the backlog.
        let slot = slots.take().await;
        let (tls, router) = (tls.clone(), router.clone());
        tokio::spawn(async move {
            let evicted = slot.evicted.clone();
            let answered = async {
                match tls {
                    None => answer(stream, peer, slot.clone(), router, limits).await,
                    Some(tls) => {
                        if let Some(stream) = shake_hands(stream, peer, &tls, limits).await {
                            answer(stream, peer, slot.clone(), router, limits).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = answered => {}
                () = evicted.notified() => debug!(%peer, "the connection is closed for a new client"),
            }
            slot.leave();
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
    slot: ConnectionSlot,
    router: Router,
    limits: Limits,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<_>| {
        request.extensions_mut().insert(slot.clone());
        request.extensions_mut().insert(Peer(peer));
        let (response, slot) = (router.call(request), slot.clone());
        async move {
            let response = response.await;
            slot.wait_for_client();
            response
        }
    });
    let stream = TokioIo::new(WriteTimeoutStream::new(stream, limits.unread));
    if let Err(error) = builder.serve_connection(stream, service).await {
        debug!(%peer, %error, "a client of the API broke off");
    }
}

/// A stream that fails when its peer has read nothing for the time limit.
pub(super) struct WriteTimeoutStream<S> {
    stream: S,
    limit: Duration,
    /// The end of the time limit, while data waits because the peer does not read.
    until: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S> WriteTimeoutStream<S> {
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

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
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

/// Ends the body of a request with an error if it does not arrive in time.
async fn body_in_time(request: Request, next: Next, limit: Duration) -> Response {
    let deadline = time::now() + limit;
    let slot = request.extensions().get::<ConnectionSlot>().cloned();
    let arrived = move || slot.iter().for_each(ConnectionSlot::wait_for_server);
    if request.body().is_end_stream() {
        arrived();
        return next.run(request).await;
    }
    let request = request.map(|body| {
        let state = (body.into_data_stream(), arrived);
        Body::from_stream(unfold(state, move |(mut body, arrived)| async move {
            let part = tokio::select! {
                part = body.next() => {
                    if part.is_none() {
                        arrived();
                    }
                    part?
                }
                () = time::sleep_until(deadline) => {
                    Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut)))
                }
            };
            Some((part, (body, arrived)))
        }))
    });
    next.run(request).await
}

async fn next_connection(listener: &Listener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => match nonblocking(socket) {
                Ok(stream) => return (stream, peer),
                Err(error) => {
                    debug!(%peer, %error, "a connection to the API failed before its first request")
                }
            },
            Err(error) => {
                error!(%error, "the API accepts no more connections");
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

    /// Runs clients of a port that is served until they return.
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

    /// Sends a request and reads its response, which fits one buffer.
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
    fn silent_connection_is_closed() {
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
    fn connection_that_follows_events_stays_open() {
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
            // Meanwhile, the time of another connection expires.
            assert_eq!(rest(client(address, "")), "");
            happens.send("it happened").expect("somebody listens");
            let reported = rest(listener);
            assert!(reported.contains("it happened"), "{reported}");
        });
    }

    #[test]
    fn the_connection_that_has_waited_longest_is_closed_for_a_new_client() {
        let router =
            || Router::new().route("/", get(|| async { "ok" }).post(|body: Bytes| async { body }));
        let half = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nhalf";
        for beginning in ["", "GET / HTTP/1.1\r\nho", half] {
            with(router(), None, Limits { connections: 3, ..limits() }, |address| {
                let mut idle = client(address, "");
                asked(&mut idle);
                let mut slow = client(address, beginning);
                // The server accepts it after the slow one.
                let mut third = client(address, "");
                asked(&mut third);
                asked(&mut idle);
                asked(&mut client(address, ""));
                let end = slow.read(&mut [0; 1]).map_err(|error| error.kind());
                assert!(matches!(end, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{end:?}");
                asked(&mut idle);
            });
        }
    }

    #[test]
    fn a_request_in_progress_keeps_its_slot() {
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let ended = Arc::new(Mutex::new(Some(ended)));
        let slow = move || {
            let (begin, ended) = (begin.clone(), locked(&ended).take());
            async move {
                begin.send(()).expect("the test waits");
                if let Some(ended) = ended {
                    ended.await.expect("the test ends it");
                }
                "ok"
            }
        };
        let router = Router::new().route("/", get(slow));
        with(router, None, Limits { connections: 1, ..limits() }, |address| {
            let mut first = client(address, REQUEST);
            begun.recv().expect("it begins");
            let mut second = client(address, REQUEST);
            second.set_nonblocking(true).expect("set");
            let nothing = second.read(&mut [0; 1]).expect_err("nobody answers").kind();
            assert_eq!(nothing, io::ErrorKind::WouldBlock);
            second.set_nonblocking(false).expect("set");
            end.send(()).expect("it waits");
            let mut answer = [0; 15];
            first.read_exact(&mut answer).expect("its request was in progress");
            second.read_exact(&mut answer).expect("the first connection is idle");
            assert_eq!(&answer, b"HTTP/1.1 200 OK");
        });
    }

    async fn endless() -> Body {
        Body::from_stream(futures_util::stream::repeat_with(|| {
            Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 1 << 16]))
        }))
    }

    #[test]
    fn connection_that_does_not_read_is_closed() {
        let router = Router::new().route("/", get(endless));
        let limits = Limits { connections: 1, unread: SHORT, ..limits() };
        with(router, None, limits, |address| {
            let idle = client(address, REQUEST);
            // The server closes the idle connection and gives its slot to the other one. The idle client sees the end
            // after the data that was sent before.
            let mut other = client(address, REQUEST);
            let mut answer = [0; 15];
            other.read_exact(&mut answer).expect("there is a place");
            assert_eq!(&answer, b"HTTP/1.1 200 OK");
            drop(idle);
        });
    }

    async fn leave_slot(axum::Extension(slot): axum::Extension<ConnectionSlot>) -> Body {
        slot.leave();
        let reported = futures_util::stream::once(async { Ok::<_, io::Error>(Bytes::from("x")) });
        Body::from_stream(reported.chain(futures_util::stream::pending()))
    }

    #[test]
    fn a_connection_that_left_its_place_is_not_counted() {
        let router = Router::new().route("/", get(leave_slot));
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
