//! The NBD front. A connection is a session with one connection: it is registered, listed, limited and ended like the
//! sessions of other protocols. The export of a volume has the volume's name and the access rules of its target.
//!
//! One task receives until the socket is empty, carries out the requests, and answers with one send.

mod execution;
mod exports;
mod memory;
mod moving;
mod requests;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use sarsen_block::StoreStatus;
use sarsen_io::net::{PIECES_MAX, Stream};
use sarsen_io::{spin, time};
use sarsen_proto::iscsi::target::RefusalReason;
use sarsen_proto::nbd::server::{Event, Server, ServerError, Settings, Tls};
use sarsen_volume::Attachment;
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

pub(crate) use self::execution::{RequestError, execute, failed};
pub(crate) use self::exports::export_of;
use self::exports::{ChosenExport, VisibleExports};
use self::memory::{ChargedMemory, maximum_payload};
use self::requests::{PendingRequest, Requests, Started};
use super::Front;
use super::handshake::shake_hands;
use super::placement::Place;
use super::sources::ConnectionPermit;
use crate::events::{Occurrence, Subject};
use crate::mailbox::ConnectionRequest;
use crate::portal::Portal;
use crate::sessions::{Login, Origin, SessionMember};

/// Size of the receive buffer of a thread. An idle connection has no buffer.
const SCRATCH_LENGTH: usize = 64 * 1024;
/// Maximum number of bytes that a turn receives before it answers.
const TURN_RECEIVE_LIMIT: usize = 256 * 1024;
/// Maximum number of open requests of a connection.
const REQUESTS: usize = 128;
/// Maximum time in which a client can receive the last replies of a connection that the server ends.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum time in which a client sends nothing within a request. Meanwhile the request uses memory.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Minimum rate at which a client sends a request, in bytes per second. A slower one exceeds [`STALL_LIMIT`] at last.
const MINIMUM_RATE: u32 = 64 << 10;
/// While memory is short, a connection with requests to receive checks for memory at this interval.
const MEMORY_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time that the end of a session waits for its requests. A store that hangs must not hold up others, such as
/// the shutdown of the server.
const ENDING_LIMIT: Duration = Duration::from_secs(5);

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_LENGTH].into());
}

/// The reason why a connection ends.
enum End {
    /// The client disconnected, or the server asked it to leave.
    InGoodOrder,
    Protocol(ServerError),
    Socket(io::Error),
    /// The session could not begin.
    Refused {
        reason: RefusalReason,
        target: String,
    },
    /// The client has not selected an export, sent a request or received a reply in time.
    TimedOut,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InGoodOrder => f.write_str("the client disconnected"),
            Self::Protocol(error) => error.fmt(f),
            Self::Socket(error) => error.fmt(f),
            Self::Refused { reason, .. } => reason.fmt(f),
            Self::TimedOut => {
                f.write_str("the client selected no export, sent no complete request, or received no reply in time")
            }
        }
    }
}

/// The session of a connection that has selected an export.
struct Session {
    requests: Requests,
    status: Arc<StoreStatus>,
    /// The generation of the status whose size the machine has.
    known_generation: Option<u64>,
    target: String,
    subject: Subject,
    member: SessionMember,
}

struct Driver {
    front: Arc<Front>,
    /// `None` only during a TLS handshake.
    stream: Option<Stream>,
    machine: Server,
    exports: VisibleExports,
    connection_permit: ConnectionPermit,
    mailbox: mpsc::UnboundedSender<ConnectionRequest>,
    session: Option<Session>,
    pending: FuturesUnordered<PendingRequest>,
    /// Received bytes that the machine could not handle yet.
    held: Vec<u8>,
    used: ChargedMemory,
    /// The time until which the client must send more of a request.
    stall_deadline: Instant,
    /// The time at which the client received bytes last.
    last_sent: Instant,
    /// The server ends the connection as soon as no request is open.
    is_leaving: bool,
    /// The time until which open requests may end, if the server has ended the session.
    ending_deadline: Option<Instant>,
    /// Dropped when the session's last request has ended.
    terminated: Vec<oneshot::Sender<()>>,
    place: Place,
}

/// Serves a connection of a portal, until the connection and its requests have ended.
pub(super) async fn serve(
    stream: Stream,
    portal: Arc<Portal>,
    front: Arc<Front>,
    connection_permit: ConnectionPermit,
    place: Place,
) {
    let Ok(local) = stream.local_addr() else { return };
    let peer = stream.peer_addr();
    // Until everything has ended, those who send messages here wait for an answer.
    let (mailbox, messages) = mpsc::unbounded_channel();
    let limits = front.settings();
    let tls = if portal.certificates().is_some() { Tls::Required } else { Tls::Unavailable };
    let settings = Settings {
        tls,
        maximum_payload: maximum_payload(&limits.budget),
        maximum_requests: REQUESTS,
        maximum_memory: limits.room_limit,
    };
    let origin = Origin { peer, local, certificate: None, portal };
    let driver = Driver {
        front: front.clone(),
        stream: Some(stream),
        machine: Server::new(settings),
        exports: VisibleExports::new(front.clone(), origin),
        connection_permit,
        mailbox,
        session: None,
        pending: FuturesUnordered::new(),
        held: Vec::new(),
        used: ChargedMemory::new(limits.budget.clone()),
        stall_deadline: time::now(),
        last_sent: time::now(),
        is_leaving: false,
        ending_deadline: None,
        terminated: Vec::new(),
        place,
    };
    serve_to_the_end(driver, messages).await;
}

/// Serves a connection until it has ended, or until it continues on another core.
async fn serve_to_the_end(
    mut driver: Driver,
    mut messages: mpsc::UnboundedReceiver<ConnectionRequest>,
) {
    let end = loop {
        match driver.run(&mut messages).await {
            Ok(core) => match driver.move_to(core, messages) {
                None => return,
                Some((same, unread)) => (driver, messages) = (*same, unread),
            },
            Err(end) => break end,
        }
    };
    driver.report_end(&end);
    driver.finish().await;
}

impl Driver {
    /// Serves the connection on this core. Returns the core on which it continues, or the reason why it has ended.
    async fn run(
        &mut self,
        messages: &mut mpsc::UnboundedReceiver<ConnectionRequest>,
    ) -> Result<usize, End> {
        let limit = time::now() + self.front.settings().login_timeout;
        let mut login = Box::pin(time::sleep_until(limit));
        let mut linger = None;
        loop {
            let is_busy = match self.turn().await {
                Ok(is_busy) => is_busy,
                Err(end) => {
                    // The machine may have queued a reply for the message that caused this.
                    let _ = self.send();
                    return Err(end);
                }
            };
            if is_busy {
                // A busy connection yields to the other connections of its core.
                tokio::task::yield_now().await;
            }
            if let Some(core) = self.destination() {
                return Ok(core);
            }
            let sending = !self.machine.output().is_empty();
            if self.is_leaving && self.pending.is_empty() && !sending {
                return Err(End::InGoodOrder);
            }
            if self.is_leaving && self.pending.is_empty() && linger.is_none() {
                linger = Some(Box::pin(time::sleep_until(time::now() + LINGER)));
            }
            let receiving = self.is_receiving() && self.held.is_empty();
            let lacks_memory = self.machine.waits_for_memory();
            let is_within_request = self.machine.payload_missing().is_some();
            let ending = self.ending_deadline;
            let Some(stream) = &self.stream else { return Err(End::InGoodOrder) };
            tokio::select! {
                biased;
                // Messages are first, and rare: others wait for the answer, even if this connection is busy.
                Some(message) = messages.recv() => self.open(message),
                ready = stream.writable(), if sending => ready?,
                Some((task, result)) = self.pending.next(), if !self.pending.is_empty() => {
                    self.complete(task, result);
                    self.complete_ready();
                }
                ready = stream.readable(), if receiving => ready?,
                () = &mut login, if self.session.is_none() => return Err(End::TimedOut),
                () = async { linger.as_mut().expect("checked").await }, if linger.is_some() => {
                    return Err(End::InGoodOrder);
                }
                () = time::sleep_until(self.stall_deadline), if is_within_request => {
                    return Err(End::TimedOut);
                }
                () = time::sleep_until(self.last_sent + STALL_LIMIT), if sending => {
                    if self.used.allowance() < usize::MAX {
                        return Err(End::TimedOut);
                    }
                    // Its replies may wait while there is memory.
                    self.last_sent = time::now();
                }
                () = time::sleep_until(ending.unwrap_or_else(time::now)), if ending.is_some() => {
                    return Err(End::InGoodOrder);
                }
                () = time::sleep_until(time::now() + MEMORY_INTERVAL), if lacks_memory => {
                    self.used.try_exception();
                }
                () = std::future::ready(()), if is_busy => {}
            }
        }
    }

    fn is_receiving(&self) -> bool {
        !self.is_leaving && self.machine.wants_input()
    }

    /// Charges the memory of the connection to the budget, and obtains its allowance.
    fn charge(&mut self) {
        self.used.set(self.machine.memory());
        self.machine.set_allowance(self.used.allowance());
    }

    /// Each received byte extends the time that the client has for the rest of a request.
    fn extend_stall_deadline(&mut self, count: usize, now: Instant) {
        let latest = now + STALL_LIMIT;
        let earned = Duration::from_secs(1) * count as u32 / MINIMUM_RATE;
        let is_within_request = self.machine.payload_missing().is_some();
        let deadline = if is_within_request { self.stall_deadline + earned } else { latest };
        self.stall_deadline = deadline.min(latest);
    }

    /// Receives up to the limit of a turn, carries out all requests, and sends the ready replies as far as the socket
    /// accepts them. Returns whether there may be more to receive at once.
    async fn turn(&mut self) -> Result<bool, End> {
        let is_busy = self.receive()?;
        let mut count = 0;
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::StartTls => self.start_tls().await?,
                Event::Selected(export) => self.begin_session(&export.name).await?,
                Event::Request { task, operation } => {
                    let Some(session) = &mut self.session else { return Err(End::InGoodOrder) };
                    count += 1;
                    match session.requests.start(task, operation) {
                        Started::Ended(answer) => self.machine.complete(task, answer),
                        Started::Pending(request) => self.pending.push(request),
                    }
                }
                Event::Disconnected => self.is_leaving = true,
            }
        }
        spin::begin(count);
        self.send()?;
        self.charge();
        Ok(is_busy || (!self.held.is_empty() && self.is_receiving()))
    }

    /// Passes received bytes to the machine, as long as it can handle more. Returns whether the socket may have more.
    fn receive(&mut self) -> Result<bool, End> {
        let now = time::now();
        if let Some(session) = &mut self.session {
            session.requests.arrived(now);
            let generation = session.status.generation();
            if session.known_generation != Some(generation) {
                session.known_generation = Some(generation);
                self.machine.set_bytes(session.requests.volume().geometry().byte_count());
            }
        }
        // Other connections may have returned memory.
        self.machine.set_allowance(self.used.allowance());
        if !self.held.is_empty() || self.machine.waits_for_memory() {
            self.extend_stall_deadline(0, now);
            let consumed = handle(&mut self.machine, &self.held, &mut self.exports)?;
            self.held.drain(..consumed);
            self.charge();
            if !self.held.is_empty() {
                return Ok(false);
            }
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut received = 0;
            while received < TURN_RECEIVE_LIMIT && self.is_receiving() {
                let Some(stream) = &self.stream else { return Ok(false) };
                let landing = self.machine.landing().unwrap_or_default();
                let landing_length = landing.len();
                let offered = landing_length + scratch.len();
                let count = match stream.try_receive(landing, scratch) {
                    Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error.into()),
                };
                received += count;
                self.extend_stall_deadline(count, now);
                let landed = count.min(landing_length);
                self.machine.landed(landed);
                let rest = &scratch[..count - landed];
                let consumed = handle(&mut self.machine, rest, &mut self.exports)?;
                self.held.extend_from_slice(&rest[consumed..]);
                self.charge();
                if count < offered {
                    return Ok(false);
                }
            }
            Ok(self.is_receiving())
        })
    }

    /// Sends the ready output, as far as the socket accepts it.
    fn send(&mut self) -> Result<(), End> {
        if let Some(session) = &mut self.session {
            session.requests.count_sent();
        }
        self.charge();
        let Some(stream) = &self.stream else { return Ok(()) };
        if self.machine.output().is_empty() {
            return Ok(());
        }
        let now = time::now();
        while !self.machine.output().is_empty() {
            let mut pieces = Vec::with_capacity(16);
            self.machine.output().pieces(&mut pieces, PIECES_MAX);
            match stream.try_send(&pieces) {
                Ok(count) => {
                    drop(pieces);
                    self.machine.output().sent(count);
                    self.last_sent = now;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends the reply to STARTTLS, and runs the TLS handshake.
    async fn start_tls(&mut self) -> Result<(), End> {
        let limit = time::now() + self.front.settings().login_timeout;
        loop {
            self.send()?;
            let Some(stream) = &self.stream else { return Err(End::InGoodOrder) };
            if self.machine.output().is_empty() {
                break;
            }
            tokio::select! {
                ready = stream.writable() => ready?,
                () = time::sleep_until(limit) => return Err(End::TimedOut),
            }
        }
        let certificates = self.exports.origin.portal.certificates();
        let (Some(stream), Some(tls)) = (self.stream.take(), certificates) else {
            return Err(End::InGoodOrder);
        };
        // A failed handshake was reported.
        let shaken = shake_hands(stream, &tls, &self.front).await.ok_or(End::InGoodOrder)?;
        let (stream, certificate) = shaken;
        self.stream = Some(stream);
        self.exports.origin.certificate = certificate;
        self.machine.tls_started();
        Ok(())
    }

    /// Begins the session of the client with the export that it has selected.
    async fn begin_session(&mut self, name: &str) -> Result<(), End> {
        // The access may have changed since the machine looked the export up.
        let Some(ChosenExport { path, lun, volume, .. }) = self.exports.choose(name) else {
            let (reason, target) = self.exports.refusal_of(name);
            return Err(End::Refused { reason, target });
        };
        let target = path.target().to_owned();
        let refused = |reason| Err(End::Refused { reason, target: target.clone() });
        let login = Login { only: Some(lun), ..self.exports.login(Some(target.clone())) };
        let member = match self.front.sessions.begin(&login, &self.mailbox).await {
            Ok(member) => member,
            Err(reason) => return refused(reason),
        };
        if let Some(refusal) = self.front.rejects(&target) {
            return refused(refusal.reason);
        }
        if !path.is_active() {
            return refused(RefusalReason::NotInService);
        }
        let view = match self.front.access.enter(&member, &login) {
            Ok(view) => view,
            Err(reason) => return refused(reason),
        };
        self.connection_permit.logged_in();
        member.establish(None);
        let volume_name = volume.name();
        info!(
            session = member.tsih,
            client = login.client.name,
            volume = &*volume_name,
            peer = %login.client.peer,
            certificate = login.client.certificate.as_ref().map(tracing::field::display),
            "NBD session established"
        );
        let subject = Subject { tsih: Some(member.tsih), ..Subject::of(&login) };
        self.front
            .access
            .events
            .tell(&Occurrence::LoggedIn { subject: subject.clone(), joins: false });
        let status = volume.store().status().clone();
        let attachment = Attachment::new(volume, view.read_only);
        let requests = Requests::new(
            &self.front,
            (Arc::new(attachment), path),
            &volume_name,
            login.client,
            (member.tsih, member.queue()),
        );
        let session = Session { requests, status, known_generation: None, target, subject, member };
        self.session = Some(session);
        Ok(())
    }

    fn complete(&mut self, task: u64, result: requests::Completed) {
        if let Some(session) = &mut self.session {
            let result = session.requests.end(result);
            self.machine.complete(task, result);
        }
    }

    /// Completes all requests that have ended already.
    fn complete_ready(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some((task, result))) = self.pending.poll_next_unpin(&mut context) {
            self.complete(task, result);
        }
    }

    fn open(&mut self, message: ConnectionRequest) {
        match message {
            // NBD has no request to log out. Clients that can reconnect do so when the connection ends in order.
            ConnectionRequest::RequestLogout { .. } => self.leave(),
            ConnectionRequest::Terminate { ended } | ConnectionRequest::LogOut { ended } => {
                self.terminated.push(ended);
                self.end_session();
            }
            ConnectionRequest::Refresh => {
                let is_there = self.session.as_ref().is_none_or(Session::has_unit(&self.front));
                if !is_there {
                    self.end_session();
                }
            }
            ConnectionRequest::Trace { writer: _ } => {
                warn!(peer = %self.exports.origin.peer, "tracing supports only iSCSI sessions");
            }
            // These concern the tasks of iSCSI sessions.
            ConnectionRequest::Abort { .. }
            | ConnectionRequest::Respond { .. }
            | ConnectionRequest::ScsiEvent { .. }
            | ConnectionRequest::LoggedOut { .. }
            | ConnectionRequest::Wake
            | ConnectionRequest::MarkLost { .. }
            | ConnectionRequest::Claim { .. }
            | ConnectionRequest::Adopted { .. }
            | ConnectionRequest::Completed { .. } => {}
        }
    }

    /// Asks the client to leave: open requests are completed, and all others are refused.
    fn leave(&mut self) {
        self.is_leaving = true;
        self.machine.shutdown();
    }

    /// Ends the session: open requests that wait, or that have more parts, end as well.
    fn end_session(&mut self) {
        self.leave();
        self.ending_deadline.get_or_insert_with(|| time::now() + ENDING_LIMIT);
        if let Some(session) = &mut self.session {
            session.requests.cancel();
        }
    }

    fn report_end(&mut self, end: &End) {
        let peer = self.exports.origin.peer;
        let Some(session) = &self.session else {
            match end {
                End::Refused { reason, target } => {
                    self.exports.report_refusal(target.clone(), *reason)
                }
                End::Protocol(error) => self.front.access.log_rate_limited(peer, || {
                    warn!(%peer, %error, "NBD connection refused during the handshake");
                }),
                end => debug!(%peer, %end, "NBD connection closed during the handshake"),
            }
            return;
        };
        let subject = session.subject.clone();
        let session = session.member.tsih;
        let occurrence = match end {
            End::InGoodOrder => {
                debug!(%peer, session, "NBD connection closed");
                Occurrence::LoggedOut { subject }
            }
            end => {
                info!(%peer, session, %end, "NBD connection lost");
                Occurrence::ConnectionLost { subject, why: end.to_string() }
            }
        };
        self.front.access.events.tell(&occurrence);
    }

    /// Ends the connection. Its requests end before it leaves its session, so that no other client finds one of its
    /// writes in progress.
    async fn finish(mut self) {
        self.end_session();
        let limit = self.ending_deadline.unwrap_or_else(time::now);
        while !self.pending.is_empty() {
            tokio::select! {
                Some((task, result)) = self.pending.next() => self.complete(task, result),
                () = time::sleep_until(limit) => break,
            }
        }
        if let Some(mut session) = self.session.take() {
            session.requests.count_sent();
            if !self.pending.is_empty() {
                let (peer, requests) = (self.exports.origin.peer, self.pending.len());
                warn!(%peer, requests, "requests of an NBD session have not ended: check the volume's store");
                // They hold the volume until they have ended.
                let mut pending = std::mem::take(&mut self.pending);
                let held = (session.requests, self.used);
                tokio::task::spawn_local(async move {
                    while pending.next().await.is_some() {}
                    drop(held);
                });
            }
        }
        self.terminated.clear();
        // Only the peer waits for this.
        if let Some(stream) = &self.stream {
            stream.close().await;
        }
    }
}

impl Session {
    /// Returns a function that checks whether the target still has the unit of a session.
    fn has_unit(front: &Front) -> impl Fn(&Self) -> bool {
        |session| {
            let target = front.targets.find(&session.target);
            target.is_some_and(|target| {
                let volume = session.requests.volume();
                target.device.luns().values().any(|unit| Arc::ptr_eq(unit.volume(), volume))
            })
        }
    }
}

fn handle(machine: &mut Server, input: &[u8], exports: &mut VisibleExports) -> Result<usize, End> {
    machine.handle_input(input, exports).map_err(End::Protocol)
}
