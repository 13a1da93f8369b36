//! Moves bytes between a socket and a client machine, and sends answers to the waiting callers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sarsen_block::Piece;
use sarsen_io::local::LocalStream;
use sarsen_io::net::Stream;
use sarsen_proto::nbd::client::{self, Client, Event, Export, Request, RequestError};
use tokio::sync::{Notify, oneshot};

use super::{NbdError, NbdPlace, NbdUrl};
use crate::driver::SendProgress;
use crate::instance::Hold;
use crate::tls::TlsError;
use crate::url::Portal;

/// Length of the scratch memory, for received bytes that are not read directly into their buffers.
const SCRATCH_LENGTH: usize = 64 * 1024;
/// Maximum of pieces in one vectored send.
const PIECE_LIMIT: usize = 256;
/// A flush may take so many times the limit: it writes everything that the cache of the server holds.
const FLUSH_FACTOR: u32 = 10;

/// The reason why a request was not carried out.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server returned an error.
    Refused(RequestError),
    /// The connection has ended.
    Ended(NbdError),
}

type Answer = Result<client::Answer, Failure>;
type Machine = Client<Waiter>;

/// A caller that waits for an answer.
pub(super) struct Waiter {
    sender: oneshot::Sender<Answer>,
    /// Kept until the answer, even if the caller is gone.
    _hold: Option<Hold>,
}

/// The state that a store and its driver share.
pub(super) struct Shared {
    state: Mutex<DriverState>,
    /// There is data to send, or the end was requested.
    wake: Notify,
    /// Number of flushes without an answer.
    open_flushes: Arc<AtomicUsize>,
    ended: AtomicBool,
    /// Notified once, at the end.
    end: Notify,
}

struct DriverState {
    client: Machine,
    /// How long open requests may have no progress, and the name of the server for the error.
    limit: Option<(Duration, String)>,
    /// No more requests are accepted.
    closing: bool,
    /// The disconnect request was sent.
    left: bool,
    /// Why the connection is to end at once.
    aborted: Option<NbdError>,
    /// The reason why the connection ended.
    over: Option<NbdError>,
}

impl Shared {
    pub(super) fn new(client: Machine) -> Self {
        Self {
            state: Mutex::new(DriverState {
                client,
                limit: None,
                closing: false,
                left: false,
                aborted: None,
                over: None,
            }),
            wake: Notify::new(),
            open_flushes: Arc::default(),
            ended: AtomicBool::new(false),
            end: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock()
    }

    /// Ends the connection from now on if open requests have no progress for this time.
    pub(super) fn limit_waits(&self, limit: Duration, place: String) {
        self.state().limit = Some((limit, place));
        self.wake.notify_one();
    }

    /// Sends a flush now; the future waits for the answer.
    pub(super) fn flush(&self) -> impl Future<Output = Answer> + use<> {
        self.request(Request::Flush, Some(Arc::new(OpenFlush::new(&self.open_flushes))))
    }

    /// Sends the request now; the future waits for the answer. `hold` is kept until then.
    pub(super) fn request(
        &self,
        request: Request,
        hold: Option<Hold>,
    ) -> impl Future<Output = Answer> + use<> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state();
        let over = match &state.over {
            Some(error) => Some(error.clone()),
            None if state.closing => Some(NbdError::Closed),
            None => {
                state.client.request(request, Waiter { sender, _hold: hold });
                self.wake.notify_one();
                None
            }
        };
        drop(state);
        async move {
            match over {
                Some(error) => Err(Failure::Ended(error)),
                // A driver that does not exist any more ended with its runtime.
                None => receiver.await.unwrap_or(Err(Failure::Ended(NbdError::Closed))),
            }
        }
    }

    /// Accepts no more requests: open requests are answered, then the store disconnects.
    pub(super) fn close(&self) {
        self.state().closing = true;
        self.wake.notify_one();
    }

    /// Ends the connection now. What was not sent yet is never sent.
    pub(super) fn abort(&self, error: NbdError) {
        self.state().aborted.get_or_insert(error);
        self.wake.notify_one();
    }

    /// Returns the number of requests without an answer.
    pub(super) fn open_requests(&self) -> usize {
        self.state().client.open_requests()
    }

    /// Waits for the end of the driver, and returns its reason.
    pub(super) async fn wait_for_end(&self) -> NbdError {
        let end = self.end.notified();
        if !self.ended.load(Ordering::Acquire) {
            end.await;
        }
        self.state().over.clone().unwrap_or(NbdError::Closed)
    }
}

/// A flush without an answer.
struct OpenFlush(Arc<AtomicUsize>);

impl OpenFlush {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::AcqRel);
        Self(open.clone())
    }
}

impl Drop for OpenFlush {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection over TCP or a local socket.
pub(super) enum Socket {
    Tcp(Stream),
    Local(LocalStream),
}

impl Socket {
    /// Sets when a connection to a machine that is silent ends. A socket of this machine needs no such limit.
    pub(super) fn give_up_after(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.give_up_after(limit, limit),
            Self::Local(_) => Ok(()),
        }
    }

    /// Lets the end of the connection discard the data that was not sent yet.
    fn reset_on_close(&self) {
        if let Self::Tcp(stream) = self {
            // If it fails, the connection ends as any other.
            let _ = stream.reset_on_close();
        }
    }

    /// Performs the TLS handshake with a host.
    async fn encrypt(self, portal: &Portal) -> Result<Self, TlsError> {
        match (self, &portal.tls) {
            (Self::Tcp(stream), Some(tls)) => {
                tls.shake_hands(&portal.host, stream).await.map(Self::Tcp)
            }
            (socket, _) => Ok(socket),
        }
    }

    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Local(stream) => stream.readable().await,
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Local(stream) => stream.writable().await,
        }
    }

    fn try_receive(&self, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_receive(landing, scratch),
            Self::Local(stream) => stream.try_receive(landing, scratch),
        }
    }

    fn try_send(&self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_send(pieces),
            Self::Local(stream) => stream.try_send(pieces),
        }
    }
}

/// A socket with its scratch memory.
pub(super) struct Link {
    socket: Socket,
    scratch: Vec<u8>,
    /// Bytes that were sent and received.
    moved: u64,
}

impl Link {
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket, scratch: vec![0; SCRATCH_LENGTH], moved: 0 }
    }

    /// Performs the handshake until an export is selected; with TLS if the URL's host has it.
    pub(super) async fn shake_hands(
        mut self,
        mut client: Machine,
        url: &NbdUrl,
    ) -> Result<(Self, Machine, Export), NbdError> {
        loop {
            let progress = self.send(&mut client)?;
            let received = self.receive_once(&mut client)?;
            match (client.poll_event(), &url.place) {
                (Some(Event::Ready(export)), _) => return Ok((self, client, export)),
                (Some(Event::StartTls), NbdPlace::Host(portal)) => {
                    let Self { socket, scratch, moved } = self;
                    let encrypted = socket.encrypt(portal).await;
                    let socket = encrypted.map_err(|source| no_tls(url, source))?;
                    self = Self { socket, scratch, moved };
                }
                (Some(Event::StartTls | Event::Completed { .. }), _) => {
                    unreachable!("only a host has TLS, and there are no requests yet")
                }
                (None, _) if received => {}
                (None, _) if progress == SendProgress::Blocked || client.output().is_empty() => {
                    self.ready(progress).await?;
                }
                (None, _) => {}
            }
        }
    }

    /// Waits until the socket has data or, if it was full, has space.
    async fn ready(&self, progress: SendProgress) -> Result<(), NbdError> {
        let result = match progress {
            SendProgress::Complete => self.socket.readable().await,
            SendProgress::Blocked => tokio::select! {
                biased;
                result = self.socket.readable() => result,
                result = self.socket.writable() => result,
            },
        };
        result.map_err(lost)
    }

    /// Sends the data that is ready.
    fn send(&mut self, client: &mut Machine) -> Result<SendProgress, NbdError> {
        let output = client.output();
        while !output.is_empty() {
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, PIECE_LIMIT);
            let result = self.socket.try_send(&pieces);
            drop(pieces);
            match result {
                Ok(count) => {
                    output.sent(count);
                    self.moved += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(SendProgress::Blocked);
                }
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(SendProgress::Complete)
    }

    /// Receives until no data is left.
    fn receive(&mut self, client: &mut Machine) -> Result<(), NbdError> {
        while self.receive_once(client)? {}
        Ok(())
    }

    /// Receives what one call returns. Returns whether there was data.
    fn receive_once(&mut self, client: &mut Machine) -> Result<bool, NbdError> {
        let landing = client.landing().unwrap_or_default();
        let wanted = landing.len();
        match self.socket.try_receive(landing, &mut self.scratch) {
            Ok(0) => Err(lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                self.moved += count as u64;
                let landed = count.min(wanted);
                client.landed(landed);
                client.handle_input(&self.scratch[..count - landed])?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(lost(error)),
        }
    }

    /// Sends and receives all available data. An error ends the connection.
    fn serve_once(&mut self, shared: &Shared) -> Result<SendProgress, NbdError> {
        let mut state = shared.state();
        if let Some(error) = state.aborted.take() {
            return Err(error);
        }
        let mut progress = self.send(&mut state.client)?;
        let received = self.receive(&mut state.client);
        while let Some(event) = state.client.poll_event() {
            if let Event::Completed { token, result } = event {
                // A caller that no longer waits has dropped its future, and its answer is dropped, too.
                let _ = token.sender.send(result.map_err(Failure::Refused));
            }
        }
        received?;
        if state.closing && state.client.open_requests() == 0 {
            if !state.left {
                state.left = true;
                state.client.disconnect();
                progress = self.send(&mut state.client)?;
            }
            if progress == SendProgress::Complete {
                return Err(NbdError::Closed);
            }
        }
        Ok(progress)
    }
}

/// The last progress of a connection.
struct Progress {
    moved: u64,
    at: Instant,
}

impl Progress {
    /// Returns when the open requests have waited too long, and the error.
    fn deadline(&mut self, link: &Link, shared: &Shared) -> Option<(Instant, NbdError)> {
        let state = shared.state();
        let (limit, place) = state.limit.as_ref()?;
        if link.moved != self.moved || state.client.open_requests() == 0 {
            *self = Self { moved: link.moved, at: sarsen_io::time::now() };
        }
        if state.client.open_requests() == 0 {
            return None;
        }
        let limit = if shared.open_flushes.load(Ordering::Acquire) > 0 {
            *limit * FLUSH_FACTOR
        } else {
            *limit
        };
        Some((self.at + limit, NbdError::TimedOut { place: place.clone(), limit }))
    }
}

/// Serves a connection until it ends.
pub(super) async fn serve(mut link: Link, shared: Arc<Shared>) {
    let mut last = Progress { moved: link.moved, at: sarsen_io::time::now() };
    let error = loop {
        match link.serve_once(&shared) {
            Ok(progress) => {
                let deadline = last.deadline(&link, &shared);
                let too_long = async {
                    match deadline {
                        Some((deadline, error)) => {
                            sarsen_io::time::sleep_until(deadline).await;
                            Err(error)
                        }
                        None => std::future::pending().await,
                    }
                };
                let result = tokio::select! {
                    biased;
                    result = link.ready(progress) => result,
                    () = shared.wake.notified() => Ok(()),
                    result = too_long => result,
                };
                if let Err(error) = result {
                    break error;
                }
            }
            Err(error) => break error,
        }
    };
    // Only after a disconnect request, no request is left.
    if !shared.state().left {
        link.socket.reset_on_close();
    }
    // Callers send their requests again when they learn of the end.
    drop(link);
    end(&shared, error);
}

/// Returns the error to all waiting requests, and to later ones.
fn end(shared: &Shared, error: NbdError) {
    let mut state = shared.state();
    for waiter in state.client.abandon() {
        let _ = waiter.sender.send(Err(Failure::Ended(error.clone())));
    }
    state.over = Some(error);
    drop(state);
    shared.ended.store(true, Ordering::Release);
    shared.end.notify_waiters();
}

fn no_tls(url: &NbdUrl, source: TlsError) -> NbdError {
    NbdError::Tls { place: url.to_string(), source: Arc::new(source) }
}

fn lost(error: io::Error) -> NbdError {
    NbdError::Lost(Arc::new(error))
}
