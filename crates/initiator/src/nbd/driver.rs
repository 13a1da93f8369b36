//! Moves bytes between a socket and a client machine, and sends answers to the waiting callers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sarsen_block::Piece;
use sarsen_io::local::LocalStream;
use sarsen_io::net::Stream;
use sarsen_proto::nbd::client::{self, Client, Event, Export, Request, RequestError};
use tokio::sync::{Notify, oneshot};

use super::NbdError;
use crate::driver::SendProgress;

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
type Machine = Client<oneshot::Sender<Answer>>;

/// The state that a store and its driver share.
pub(super) struct Shared {
    state: Mutex<DriverState>,
    /// There is data to send, or the end was requested.
    wake: Notify,
    ended: AtomicBool,
    /// Notified once, at the end.
    end: Notify,
}

struct DriverState {
    client: Machine,
    /// How long open requests may have no progress, and the name of the server for the error.
    limit: Option<(Duration, String)>,
    /// Number of flushes whose callers wait.
    flushes: usize,
    /// No more requests are accepted.
    closing: bool,
    /// The disconnect request was sent.
    left: bool,
    /// The reason why the connection ended.
    over: Option<NbdError>,
}

impl Shared {
    pub(super) fn new(client: Machine) -> Self {
        Self {
            state: Mutex::new(DriverState {
                client,
                limit: None,
                flushes: 0,
                closing: false,
                left: false,
                over: None,
            }),
            wake: Notify::new(),
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
    pub(super) fn flush(self: &Arc<Self>) -> impl Future<Output = Answer> + use<> {
        self.state().flushes += 1;
        let open = OpenFlush(self.clone());
        let answer = self.request(Request::Flush);
        async move {
            let _open = open;
            answer.await
        }
    }

    /// Sends the request now; the future waits for the answer.
    pub(super) fn request(&self, request: Request) -> impl Future<Output = Answer> + use<> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state();
        let over = match &state.over {
            Some(error) => Some(error.clone()),
            None if state.closing => Some(NbdError::Closed),
            None => {
                state.client.request(request, sender);
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

    /// Waits for the end of the driver.
    pub(super) async fn wait_for_end(&self) {
        let end = self.end.notified();
        if !self.ended.load(Ordering::Acquire) {
            end.await;
        }
    }
}

/// A flush whose caller waits.
struct OpenFlush(Arc<Shared>);

impl Drop for OpenFlush {
    fn drop(&mut self) {
        self.0.state().flushes -= 1;
    }
}

/// A connection over TCP or a local socket.
pub(super) enum Socket {
    Tcp(Stream),
    Local(LocalStream),
}

impl Socket {
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

    /// Performs the handshake until an export is selected.
    pub(super) async fn shake_hands(
        &mut self,
        mut client: Machine,
    ) -> Result<(Machine, Export), NbdError> {
        loop {
            let progress = self.send(&mut client)?;
            self.receive(&mut client)?;
            if let Some(Event::Ready(export)) = client.poll_event() {
                return Ok((client, export));
            }
            if progress == SendProgress::Blocked || client.output().is_empty() {
                self.ready(progress).await?;
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
        loop {
            let landing = client.landing().unwrap_or_default();
            let wanted = landing.len();
            match self.socket.try_receive(landing, &mut self.scratch) {
                Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.moved += count as u64;
                    let landed = count.min(wanted);
                    client.landed(landed);
                    client.handle_input(&self.scratch[..count - landed])?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(lost(error)),
            }
        }
    }

    /// Sends and receives all available data. An error ends the connection.
    fn serve_once(&mut self, shared: &Shared) -> Result<SendProgress, NbdError> {
        let mut state = shared.state();
        let mut progress = self.send(&mut state.client)?;
        let received = self.receive(&mut state.client);
        while let Some(event) = state.client.poll_event() {
            if let Event::Completed { token, result } = event {
                // A caller that no longer waits has dropped its future, and its answer is dropped, too.
                let _ = token.send(result.map_err(Failure::Refused));
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
        let limit = if state.flushes > 0 { *limit * FLUSH_FACTOR } else { *limit };
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
    end(&shared, error);
}

/// Returns the error to all waiting requests, and to later ones.
fn end(shared: &Shared, error: NbdError) {
    let mut state = shared.state();
    for waiter in state.client.abandon() {
        let _ = waiter.send(Err(Failure::Ended(error.clone())));
    }
    state.over = Some(error);
    drop(state);
    shared.ended.store(true, Ordering::Release);
    shared.end.notify_waiters();
}

fn lost(error: io::Error) -> NbdError {
    NbdError::Lost(Arc::new(error))
}
