//! The target end of a connection (RFC 7143): login, then the full feature phase.
//!
//! The layer above gives a [`Connection`] the received bytes ([`Connection::handle_input`]) and its own answers
//! ([`Connection::establish`], [`Connection::complete`], …). The connection returns [`Event`]s and
//! [`Connection::output`]. It calls the [`Environment`] for facts that it needs at once.
//!
//! Files: `login` negotiates, `authentication` authenticates the initiator and the target; `full_feature` parses
//! requests; `tasks` holds commands and their data; `session` has the data that several connections share;
//! `data_out` collects data, `data_in` sends it, `recovery` sends it again; `allegiance` moves tasks between
//! connections; `management` ends tasks; `text` answers text requests; `window` counts commands.

mod allegiance;
mod authentication;
mod data_in;
mod data_out;
mod environment;
mod event;
mod full_feature;
mod link;
mod login;
mod management;
mod recovery;
mod refusal;
mod session;
mod stalled;
mod tasks;
#[cfg(test)]
mod tests;
mod text;
mod window;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sarsen_wire::iscsi::{AsyncEvent, LogoutResponse, TaskManagementResponse};

pub use self::allegiance::{Adoption, ReassignReply, Released};
pub use self::environment::{Admission, AuthRequirement, Environment, LoginContext, TargetRecord};
pub use self::event::{Cdb, CloseReason, Command, Completion, Event, Logout, Management};
use self::full_feature::{AfterRequest, FullFeature};
use self::link::Link;
use self::login::{Login, LoginStep};
pub use self::refusal::{Refusal, RefusalReason};
pub use self::session::{MemberId, Session};
use self::stalled::StallCheck;
pub use self::tasks::{Ending, TaskId};
use super::keys::TargetOffer;
use super::{Frame, Framer, Landing, Output, Parameters, Segment};
use crate::Budget;
use crate::command_memory::CommandMemory;

/// The settings of a target's connections.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The values that the target offers in negotiations.
    pub offer: TargetOffer,
    /// Maximum number of outstanding commands of a session.
    pub command_window: u32,
    /// Maximum number of outstanding immediate commands, in addition to `command_window`.
    pub immediate_limit: usize,
    /// Maximum duration of a login.
    pub login_timeout: Duration,
    /// Maximum bytes of text of one login request or text request, over all PDUs that the C bit joins.
    pub text_limit: usize,
    /// Maximum memory in bytes for the tasks of one connection that read, or that request data by R2T. One such task
    /// may always proceed.
    pub room_limit: usize,
    /// Memory for the data of all commands, of all connections together.
    pub budget: Arc<Budget>,
    /// Maximum bytes of unsent output. Above it, the connection receives and executes no further request, and rejects
    /// text requests.
    pub output_limit: usize,
    /// The connection pings a peer that was silent for this time.
    pub ping_interval: Duration,
    /// The connection closes if the peer does not answer a ping within this time.
    pub ping_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            offer: TargetOffer::default(),
            command_window: 128,
            immediate_limit: 32,
            login_timeout: Duration::from_secs(15),
            text_limit: 64 << 10,
            room_limit: 32 << 20,
            budget: Arc::new(Budget::new(1 << 30)),
            output_limit: 1 << 20,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(30),
        }
    }
}

enum Phase {
    Login(Box<Login>),
    /// The layer above prepares the session.
    Establishing(Box<Login>),
    FullFeature(Box<FullFeature>),
    /// Sends the remaining output, then closes.
    Closing(CloseReason),
}

/// A connection, from its first byte.
pub struct Connection {
    settings: Arc<Settings>,
    framer: Framer,
    link: Link,
    phase: Phase,
    /// The time of the last input from the peer.
    last_heard: Instant,
    login_deadline: Instant,
    ping_sent: Option<Instant>,
    stall_check: StallCheck,
}

impl Connection {
    /// Creates a connection that was just accepted.
    pub fn new(settings: Arc<Settings>, now: Instant) -> Self {
        Self {
            login_deadline: now + settings.login_timeout,
            framer: Framer::default(),
            link: Link::new(
                settings.command_window,
                CommandMemory::new(settings.budget.clone(), settings.room_limit),
            ),
            phase: Phase::Login(Box::default()),
            last_heard: now,
            ping_sent: None,
            stall_check: StallCheck::default(),
            settings,
        }
    }

    /// Returns whether no PDU is partly received.
    pub fn is_between_pdus(&self) -> bool {
        self.framer.is_between_pdus()
    }

    /// Returns memory into which the next bytes may be received directly; see [`Framer::landing`].
    pub fn landing(&mut self) -> Option<&mut [u8]> {
        self.framer.landing()
    }

    /// Notes that `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, count: usize) {
        self.framer.landed(count);
    }

    /// Takes all bytes of `input`, which come from the stream.
    pub fn handle_input(
        &mut self,
        mut input: &[u8],
        now: Instant,
        environment: &mut dyn Environment,
    ) -> Result<(), CloseReason> {
        self.last_heard = now;
        self.ping_sent = None;
        loop {
            match &self.phase {
                Phase::Closing(_) => return Ok(()),
                Phase::FullFeature(_) if self.link.parting.is_some() => return Ok(()),
                // The target has not answered the last login request.
                Phase::Establishing(_) if !input.is_empty() => {
                    return Err(CloseReason::protocol("bytes before the login's answer", "§6.3"));
                }
                _ => {}
            }
            match self.framer.advance(&mut input)? {
                Frame::Starved => return Ok(()),
                Frame::Header => {
                    let landing = self.place(environment)?;
                    self.framer.place(landing);
                }
                Frame::Segment { segment, digest_valid } => {
                    self.handle_pdu(segment, digest_valid, environment)?;
                }
            }
        }
    }

    fn place(&mut self, environment: &mut dyn Environment) -> Result<Landing, CloseReason> {
        match &mut self.phase {
            Phase::FullFeature(full_feature) => {
                let (header, ahs) = (self.framer.header(), self.framer.additional_headers());
                full_feature.place(&mut self.link, header, ahs, environment)
            }
            Phase::Login(_) | Phase::Establishing(_) | Phase::Closing(_) => Ok(Landing::Collect),
        }
    }

    fn handle_pdu(
        &mut self,
        segment: Segment,
        digest_valid: bool,
        environment: &mut dyn Environment,
    ) -> Result<(), CloseReason> {
        let header = self.framer.header();
        match &mut self.phase {
            Phase::Login(login) => {
                let step = login.handle_pdu(
                    header,
                    segment.bytes(),
                    &self.settings,
                    &mut self.link,
                    environment,
                )?;
                match step {
                    LoginStep::Continue => {}
                    LoginStep::Establish(admission) => {
                        self.link.events.push_back(Event::Establish(admission));
                        let Phase::Login(login) = std::mem::replace(
                            &mut self.phase,
                            Phase::Closing(CloseReason::InGoodOrder),
                        ) else {
                            unreachable!("the phase was just matched")
                        };
                        self.phase = Phase::Establishing(login);
                    }
                    LoginStep::Refused(refusal) => {
                        self.phase = Phase::Closing(CloseReason::LoginRefused(refusal));
                    }
                }
                Ok(())
            }
            Phase::FullFeature(full_feature) => {
                let link = &mut self.link;
                let after =
                    full_feature.handle_pdu(link, header, segment, digest_valid, environment)?;
                link.charge_arena();
                if after == AfterRequest::Close {
                    self.phase = Phase::Closing(CloseReason::InGoodOrder);
                }
                Ok(())
            }
            Phase::Establishing(_) | Phase::Closing(_) => Ok(()),
        }
    }

    /// Returns the next event, in order.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.link.events.pop_front().or_else(|| self.link.session.next_wake().map(Event::Wake))
    }

    /// Returns the number of events that wait to be polled.
    pub fn event_count(&self) -> usize {
        self.link.events.len()
    }

    /// Returns the output that waits to be sent.
    pub fn output(&mut self) -> &mut Output {
        self.link.parting.as_mut().unwrap_or(&mut self.link.output)
    }

    /// Removes `count` sent bytes from the output. Commands that waited for their memory continue.
    pub fn sent(&mut self, count: usize) {
        self.stall_check.note_sent(count);
        self.output().sent(count);
        self.go_on_after_output();
    }

    /// Drops the output, because the connection is lost.
    pub fn discard_output(&mut self) {
        self.output().clear();
        self.go_on_after_output();
    }

    #[inline]
    fn go_on_after_output(&mut self) {
        if let Phase::FullFeature(full_feature) = &mut self.phase {
            full_feature.sent(&mut self.link);
        }
    }

    /// Returns whether so much output waits that the caller must not receive or execute further requests.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.link.is_full(self.settings.output_limit)
    }

    /// Returns whether commands wait for memory that other connections use: see [`Self::poll_room`].
    #[inline]
    pub fn awaits_room(&self) -> bool {
        self.link.room.is_waiting()
    }

    /// Is ready when the caller must call [`Self::resume`], because there may be memory for waiting commands.
    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        self.link.room.poll(context)
    }

    /// Returns the reason for which the caller must close the connection after the output is sent.
    pub fn closing(&self) -> Option<&CloseReason> {
        match &self.phase {
            Phase::Closing(reason) => Some(reason),
            _ if self.link.parting.is_some() => Some(&CloseReason::Removed),
            _ => None,
        }
    }

    /// Returns the negotiated parameters, which are valid after the login.
    pub fn parameters(&self) -> &Parameters {
        &self.link.parameters
    }

    /// Returns whether the connection is in the full feature phase.
    pub fn is_established(&self) -> bool {
        matches!(self.phase, Phase::FullFeature(_))
    }

    /// Answers [`Event::Establish`] with the TSIH of the session. If the session can have other connections, returns
    /// the session data that they share, and the id of this connection in it.
    pub fn establish(&mut self, tsih: u16) -> Option<(Arc<Session>, MemberId)> {
        let phase = std::mem::replace(&mut self.phase, Phase::Closing(CloseReason::InGoodOrder));
        let Phase::Establishing(login) = phase else {
            self.phase = phase;
            return None;
        };
        let admission = login.finish(tsih, &mut self.link);
        let parameters = &self.link.parameters;
        let header_digest = parameters.header_digest == super::DigestKind::Crc32c;
        let data_digest = parameters.data_digest == super::DigestKind::Crc32c;
        self.framer.set_digests(header_digest, data_digest);
        self.framer.set_max_data_segment_length(parameters.local_max_recv_data_segment_length);
        self.link.output.set_digests(header_digest, data_digest);
        let outlives = parameters.max_connections > 1 || parameters.error_recovery_level == 2;
        let shared = outlives.then(|| {
            let session = self.link.session.share(parameters);
            (session, self.link.session.member())
        });
        self.phase =
            Phase::FullFeature(Box::new(FullFeature::new(admission, self.settings.clone())));
        shared
    }

    /// Continues requests that waited for other connections of the session or for memory. Called after [`Event::Wake`]
    /// of another connection, or when [`Self::poll_room`] is ready.
    pub fn resume(&mut self, environment: &mut dyn Environment) -> Result<(), CloseReason> {
        if let Phase::FullFeature(full_feature) = &mut self.phase
            && full_feature.resume(&mut self.link, environment)? == AfterRequest::Close
        {
            self.phase = Phase::Closing(CloseReason::InGoodOrder);
        }
        Ok(())
    }

    /// Notes that the layer above has begun a command. Commands that must not overtake it may follow.
    #[inline]
    pub fn begun(&mut self, task: TaskId) {
        if let Phase::FullFeature(full_feature) = &mut self.phase {
            full_feature.begun(&mut self.link, task);
        }
    }

    /// Keeps the tasks of a lost connection at error recovery level 2, so that other connections of the session can
    /// take them over ([`Self::release`]). Its later output is not sent. Returns whether the tasks are kept.
    pub fn mark_lost(&mut self, environment: &mut dyn Environment) -> bool {
        if self.link.parameters.error_recovery_level < 2 {
            return false;
        }
        let Phase::FullFeature(full_feature) = &mut self.phase else { return false };
        self.link.parting = None;
        full_feature.mark_lost(&mut self.link, self.framer.abandon());
        // Acknowledged requests begin, even if their turn has come only now.
        let lives_on = self.resume(environment).is_ok();
        self.discard_output();
        lives_on
    }

    /// Releases a task to another connection of the session, if this connection is lost.
    pub fn release(&mut self, initiator_task_tag: u32) -> ReassignReply {
        match &mut self.phase {
            Phase::FullFeature(full_feature) => {
                full_feature.release(&mut self.link, initiator_task_tag)
            }
            _ => ReassignReply::Unknown,
        }
    }

    /// Answers [`Event::Adopt`] with the claim of the other connections.
    pub fn adopt(&mut self, adoption: Adoption, claim: ReassignReply) {
        if let Phase::FullFeature(full_feature) = &mut self.phase
            && full_feature.adopt(&mut self.link, adoption, claim) == AfterRequest::Close
        {
            self.phase = Phase::Closing(CloseReason::InGoodOrder);
        }
    }

    /// Removes the tasks of a connection that ends, so that they do not delay those of other connections. The caller
    /// polls events once more.
    pub fn leave(&mut self) {
        if let Phase::FullFeature(full_feature) = &mut self.phase {
            full_feature.leave(&mut self.link);
            // Commands that have not begun are dropped. The layer above ends those that have begun.
            self.link
                .events
                .retain(|event| !matches!(event, Event::Command(_) | Event::Aborted(_)));
        }
    }

    /// Answers [`Event::Logout`]. A logout of the session closes this connection, too.
    pub fn log_out(&mut self, logout: Logout, response: LogoutResponse) {
        if let Phase::FullFeature(_) = &self.phase {
            let Logout { initiator_task_tag, cid, for_recovery } = logout;
            let link = &mut self.link;
            full_feature::push_logout_response(link, initiator_task_tag, response, for_recovery);
            if cid.is_none() {
                self.phase = Phase::Closing(CloseReason::InGoodOrder);
            }
        }
    }

    /// Answers [`Event::Establish`] with a refusal.
    pub fn refuse(&mut self, refusal: impl Into<Refusal>) {
        let refusal = refusal.into();
        if let Phase::Establishing(login) = &mut self.phase {
            login.refuse(&refusal, &mut self.link);
            self.phase = Phase::Closing(CloseReason::LoginRefused(refusal));
        }
    }

    /// Ends a command with its result. A command that was aborted before ends in the way that the abort chose.
    #[inline]
    pub fn complete(&mut self, task: TaskId, completion: Completion<'_>) {
        if let Phase::FullFeature(full_feature) = &mut self.phase
            && full_feature.complete(&mut self.link, task, completion) == AfterRequest::Close
        {
            self.phase = Phase::Closing(CloseReason::InGoodOrder);
        }
    }

    /// Answers [`Event::Management`].
    pub fn respond(&mut self, initiator_task_tag: u32, response: TaskManagementResponse) {
        if let Phase::FullFeature(full_feature) = &mut self.phase {
            full_feature.handed_over = full_feature.handed_over.saturating_sub(1);
            management::push_response(&mut self.link, initiator_task_tag, response);
        }
    }

    /// Defers the answer of an ended command until other commands have ended. The caller calls [`Self::complete`]
    /// later. From now on, an abort of this command does not wait for it. Returns its LUN, or `None` for a command that
    /// was aborted already, which the caller completes at once.
    pub fn withhold(&mut self, task: TaskId) -> Option<[u8; 8]> {
        match &mut self.phase {
            Phase::FullFeature(full_feature) => full_feature.withhold(task),
            _ => None,
        }
    }

    /// Aborts tasks on behalf of another session or of the layer above. `ending` decides for each task and LUN whether
    /// and how. When the executing tasks of them have ended, [`Event::TasksEnded`] follows with `token`. Returns the
    /// LUNs of the tasks that this call aborted.
    pub fn abort_tasks(
        &mut self,
        token: u64,
        ending: impl FnMut(TaskId, [u8; 8]) -> Option<Ending>,
    ) -> Vec<[u8; 8]> {
        match &mut self.phase {
            Phase::FullFeature(full_feature) => {
                full_feature.abort_for_others(&mut self.link, token, ending)
            }
            _ => {
                self.link.events.push_back(Event::TasksEnded(token));
                Vec::new()
            }
        }
    }

    /// Returns the number of tasks that the layer above executes.
    pub fn running_tasks(&self) -> usize {
        match &self.phase {
            Phase::FullFeature(full_feature) => full_feature.running_tasks(),
            _ => 0,
        }
    }

    /// Sends the initiator an asynchronous message about an event of a unit (RFC 7143 §11.9.1, event 0).
    pub fn report_scsi_event(&mut self, lun: [u8; 8], sense: &[u8]) {
        if self.is_established() {
            self.link.scsi_event(lun, sense);
        }
    }

    /// Asks the initiator to log out within `seconds` seconds (RFC 7143 §11.9.1, event 1).
    pub fn request_logout(&mut self, seconds: u16) {
        if self.is_established() {
            self.link.asynchronous_message(AsyncEvent::LogoutRequest, [0, 0, seconds]);
        }
    }

    /// Closes without a message, because another connection logged this one out.
    pub fn close(&mut self) {
        self.leave();
        self.phase = Phase::Closing(CloseReason::InGoodOrder);
    }

    /// Notifies the initiator that the session is dropped, and closes (RFC 7143 §11.9.1, event 3).
    pub fn drop_session(&mut self) {
        if self.is_established() {
            let time2wait = self.link.parameters.default_time2wait as u16;
            self.link.asynchronous_message(AsyncEvent::SessionDrop, [0, time2wait, 0]);
        }
        self.leave();
        self.phase = Phase::Closing(CloseReason::InGoodOrder);
    }

    /// Returns the time at which the caller must call [`Self::handle_timeout`] at the latest. Input from the peer
    /// changes it, but a driver need not read it again before its timer expires.
    pub fn poll_timeout(&self) -> Instant {
        match (&self.phase, self.ping_sent) {
            (Phase::FullFeature(_), None) => self.last_heard + self.settings.ping_interval,
            (Phase::FullFeature(_), Some(sent)) => sent + self.settings.ping_timeout,
            _ => self.login_deadline,
        }
    }

    /// Checks whether the initiator uses memory that others wait for, and does not move its data. The caller calls this every
    /// few seconds.
    pub fn check_stalled(&mut self, now: Instant) -> Result<(), CloseReason> {
        let has_output = !self.output().is_empty();
        let Phase::FullFeature(full_feature) = &mut self.phase else { return Ok(()) };
        self.stall_check.note_data_out(std::mem::take(&mut full_feature.data_received));
        let is_stalled = self.stall_check.check(full_feature.tasks.iter(), has_output, now);
        if is_stalled && self.link.room.budget().has_demand() {
            return Err(CloseReason::Stalled);
        }
        Ok(())
    }

    /// Pings or closes the connection if the time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), CloseReason> {
        if now < self.poll_timeout() {
            return Ok(());
        }
        match (&mut self.phase, self.ping_sent) {
            (Phase::FullFeature(full_feature), None) => {
                full_feature.ping(&mut self.link);
                self.ping_sent = Some(now);
                Ok(())
            }
            (Phase::FullFeature(_), Some(_)) => Err(CloseReason::Silent),
            (Phase::Closing(reason), _) => Err(reason.clone()),
            (Phase::Login(_) | Phase::Establishing(_), _) => Err(CloseReason::LoginTimeout),
        }
    }
}
