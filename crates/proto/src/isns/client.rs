//! The client: one connection to the name server, one request at a time.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use sarsen_wire::isns::{FROM_CLIENT, Function, REPLACE, Status, Tag};

use super::answer::{Answer, Notice, answer};
use super::message::{Inbox, Message, MessageError, Payload, attributes, number, status};
use super::registration::Entity;

/// Maximum time for an answer. After it the connection is closed.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Maximum time between refreshes of the registration. It also applies where the server has no registration period.
const IDLE_REFRESH: Duration = Duration::from_secs(600);
/// Minimum time between refreshes.
const SHORTEST_REFRESH: Duration = Duration::from_secs(5);

/// Delay between a change notification of the server and the refresh.
const CHANGE_PAUSE: Duration = Duration::from_secs(1);

/// The events of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The whole entity is registered.
    Registered,
    /// The server does not support inquiries. The client continues without them.
    WithoutInquiries,
    /// The server does not send change notifications. The client continues without them.
    WithoutChanges(Status),
    /// The server has lost the registration. The client registers again.
    Restored,
    /// The entity was deregistered on request.
    Departed,
}

/// The reason why a connection cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server sent an invalid message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The server did not answer in time.
    #[error("the name server does not answer")]
    Silent,
    /// The server rejects the registration.
    #[error("the name server refuses the registration: {0:?} (RFC 4171 §5.4)")]
    Refused(Status),
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Register,
    /// The last request of a registration.
    Complete,
    Remove,
    Subscribe,
    Depart,
}

struct Request {
    purpose: Purpose,
    function: Function,
    flags: u16,
    payload: Payload,
}

struct Waiting {
    purpose: Purpose,
    function: Function,
    transaction: u16,
    deadline: Instant,
}

/// A client of an iSNS server. See the module.
pub struct Client {
    entity: Entity,
    inbox: Inbox,
    output: Vec<u8>,
    queue: VecDeque<Request>,
    waiting: Option<Waiting>,
    events: VecDeque<Event>,
    transaction: u16,
    is_connected: bool,
    /// The names that are registered, if the registration is complete.
    registered: Option<BTreeSet<String>>,
    /// The names that will be registered when the queue is empty.
    promised: BTreeSet<String>,
    /// The registration period of the server.
    period: Duration,
    refresh_at: Option<Instant>,
    has_inquiries: bool,
    /// Whether the registration was restarted because the server does not know the entity.
    is_second_attempt: bool,
    is_departing: bool,
}

impl Client {
    /// Creates a client for this entity. It is idle until a connection is open.
    pub fn new(entity: Entity) -> Self {
        Self {
            period: Duration::from_secs(entity.registration_period.into()),
            promised: BTreeSet::new(),
            entity,
            inbox: Inbox::default(),
            output: Vec::new(),
            queue: VecDeque::new(),
            waiting: None,
            events: VecDeque::new(),
            transaction: 0,
            is_connected: false,
            registered: None,
            refresh_at: None,
            has_inquiries: true,
            is_second_attempt: false,
            is_departing: false,
        }
    }

    /// Handles a new connection to the server, which replaces any earlier one. The registration of this entity is
    /// replaced.
    pub fn handle_connected(&mut self, now: Instant) {
        self.handle_disconnected();
        self.is_connected = true;
        self.register(REPLACE);
        self.go_on(now);
    }

    /// Handles the loss of the connection.
    pub fn handle_disconnected(&mut self) {
        self.is_connected = false;
        self.inbox = Inbox::default();
        self.output.clear();
        self.queue.clear();
        self.waiting = None;
        self.registered = None;
        self.refresh_at = None;
        self.is_second_attempt = false;
    }

    /// Handles a change of the entity: added or removed targets. Its identifier must be the same.
    pub fn update(&mut self, entity: Entity, now: Instant) {
        if entity == self.entity || self.is_departing {
            return;
        }
        let (had, has) = (self.entity.names(), entity.names());
        self.entity = entity;
        if !self.is_connected {
            return;
        }
        // The registration in progress is not cancelled. The requests after it correct it.
        let gone: Vec<String> = had.difference(&has).cloned().collect();
        if !gone.is_empty() {
            for payload in Entity::removal(&gone) {
                self.push(Purpose::Remove, Function::Deregister, 0, payload);
            }
        }
        self.register(0);
        self.go_on(now);
    }

    /// Deregisters the entity. [`Event::Departed`] reports the end of the deregistration.
    pub fn depart(&mut self, now: Instant) {
        if self.is_departing {
            return;
        }
        self.is_departing = true;
        self.queue.clear();
        self.refresh_at = None;
        if !self.is_connected {
            self.events.push_back(Event::Departed);
            return;
        }
        let payload = self.entity.departure();
        self.push(Purpose::Depart, Function::Deregister, 0, payload);
        self.go_on(now);
    }

    /// Handles a notice from a connection that the server opened.
    pub fn handle_notice(&mut self, notice: &Notice, now: Instant) {
        match notice {
            Notice::Inquiry => {}
            Notice::Change(names) => {
                let is_ours = names.iter().any(|name| self.promised.contains(name));
                // A notice that our own registration causes is ignored.
                if is_ours && self.registered.is_some() && !self.is_departing {
                    // The refresh is delayed: any host can connect, and changes often arrive together.
                    let soon = now + CHANGE_PAUSE;
                    self.refresh_at = Some(self.refresh_at.map_or(soon, |at| at.min(soon)));
                }
            }
        }
    }

    /// Handles bytes from the connection.
    pub fn handle_input(&mut self, bytes: &[u8], now: Instant) -> Result<(), ClientError> {
        self.inbox.push(bytes);
        while let Some(message) = self.inbox.next()? {
            match answer(&message)? {
                Some(Answer { bytes, notice }) => {
                    self.output.extend(bytes);
                    if let Some(notice) = notice {
                        self.handle_notice(&notice, now);
                    }
                }
                None => self.handle_response(&message, now)?,
            }
        }
        Ok(())
    }

    fn handle_response(&mut self, message: &Message, now: Instant) -> Result<(), ClientError> {
        let is_awaited = |waiting: &mut Waiting| {
            waiting.transaction == message.transaction
                && waiting.function.response() == message.function
        };
        let Some(Waiting { purpose, .. }) = self.waiting.take_if(is_awaited) else {
            // The client does not wait for this response any more.
            return Ok(());
        };
        let (status, rest) = status(&message.payload)?;
        match (purpose, status) {
            (Purpose::Register | Purpose::Complete, Status::Success) => {
                self.take_period(rest)?;
                if purpose == Purpose::Complete {
                    self.is_second_attempt = false;
                    if self.registered.replace(self.promised.clone()).is_none() {
                        self.events.push_back(Event::Registered);
                    }
                }
            }
            (Purpose::Register | Purpose::Complete, Status::InquiryNotAvailable)
                if self.has_inquiries =>
            {
                self.has_inquiries = false;
                self.events.push_back(Event::WithoutInquiries);
                self.begin_anew();
            }
            // The server has lost the registration, or never had it.
            (
                Purpose::Register | Purpose::Complete,
                Status::SourceUnknown | Status::NoSuchEntry | Status::InvalidUpdate,
            ) if self.registered.is_some() && !self.is_second_attempt => {
                self.is_second_attempt = true;
                self.events.push_back(Event::Restored);
                self.begin_anew();
            }
            (Purpose::Register | Purpose::Complete, refusal) => {
                return Err(ClientError::Refused(refusal));
            }
            // A node that the server does not know need not be removed.
            (Purpose::Remove | Purpose::Subscribe, Status::Success) | (Purpose::Remove, _) => {}
            (Purpose::Subscribe, refusal) => {
                self.events.push_back(Event::WithoutChanges(refusal));
            }
            (Purpose::Depart, _) => {
                self.registered = None;
                self.events.push_back(Event::Departed);
            }
        }
        self.go_on(now);
        Ok(())
    }

    /// Adopts the registration period of the response. RFC 4171 §6.2.6: the server may choose another period.
    fn take_period(&mut self, payload: &[u8]) -> Result<(), MessageError> {
        for attribute in attributes(payload) {
            if let (Tag::RegistrationPeriod, value) = attribute?
                && let Some(seconds) = number(value)
            {
                self.period = Duration::from_secs(seconds.into());
            }
        }
        Ok(())
    }

    fn refresh_interval(&self) -> Duration {
        match self.period {
            Duration::ZERO => IDLE_REFRESH,
            // If one refresh is lost, there is time for another.
            period => (period / 3).clamp(SHORTEST_REFRESH, IDLE_REFRESH),
        }
    }

    fn begin_anew(&mut self) {
        if self.is_departing {
            return;
        }
        self.queue.clear();
        self.registered = None;
        self.register(REPLACE);
    }

    /// Queues the registration of the whole entity.
    fn register(&mut self, flags: u16) {
        if self.is_departing {
            return;
        }
        self.refresh_at = None;
        self.promised = self.entity.names();
        let payloads = self.entity.registrations(self.has_inquiries);
        let last = payloads.len() - 1;
        for (index, payload) in payloads.into_iter().enumerate() {
            let purpose = if index == last { Purpose::Complete } else { Purpose::Register };
            let flags = if index == 0 { flags } else { 0 };
            self.push(purpose, Function::Register, flags, payload);
        }
        let is_reported = self.entity.portals.iter().any(|portal| portal.notice_port.is_some());
        if is_reported && self.has_inquiries {
            let payload = self.entity.subscription();
            self.push(Purpose::Subscribe, Function::RegisterForChanges, 0, payload);
        }
    }

    fn push(&mut self, purpose: Purpose, function: Function, flags: u16, payload: Payload) {
        self.queue.push_back(Request { purpose, function, flags, payload });
    }

    /// Sends the next request, if no request waits for an answer.
    fn go_on(&mut self, now: Instant) {
        if self.waiting.is_some() {
            return;
        }
        let Some(request) = self.queue.pop_front() else {
            if self.registered.is_some() && self.refresh_at.is_none() {
                self.refresh_at = Some(now + self.refresh_interval());
            }
            return;
        };
        let Request { purpose, function, flags, payload } = request;
        self.transaction = self.transaction.wrapping_add(1);
        let transaction = self.transaction;
        self.output.extend(payload.message(function, flags | FROM_CLIENT, transaction));
        let deadline = now + ANSWER_LIMIT;
        self.waiting = Some(Waiting { purpose, function, transaction, deadline });
    }

    /// Returns the bytes to send.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Notes that `count` bytes of the output were sent.
    pub fn sent(&mut self, count: usize) {
        self.output.drain(..count);
    }

    /// Returns the next event, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the latest time for the call of [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|waiting| waiting.deadline).or(self.refresh_at)
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), ClientError> {
        if self.waiting.as_ref().is_some_and(|waiting| waiting.deadline <= now) {
            return Err(ClientError::Silent);
        }
        if self.waiting.is_none() && self.refresh_at.is_some_and(|at| at <= now) {
            self.register(0);
            self.go_on(now);
        }
        Ok(())
    }
}
