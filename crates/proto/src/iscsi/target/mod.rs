//! The target end of a connection (RFC 7143): login, then the full feature phase.
//!
//! [`Connection`] takes bytes ([`Connection::handle_input`]) and answers of the layer above
//! ([`Connection::establish`], [`Connection::complete`], …), and gives [`Event`]s and
//! [`Connection::output`]. What it has to know of its surroundings at once, it asks the
//! [`Environment`].
//!
//! Files: `login` negotiates, `authentication` authenticates the initiator and the target; `full_feature` takes
//! requests apart; `tasks` holds commands and their data; `session` has the data that several connections share;
//! `data_out` collects data, `data_in` sends it, `recovery` sends it again; `allegiance` moves tasks between
//! connections; `management` ends tasks; `text` answers text requests; `window` counts commands.

mod allegiance;
mod authentication;
mod data_in;
mod data_out;
mod full_feature;
mod link;
mod login;
mod management;
mod recovery;
mod refusal;
mod session;
mod tasks;
#[cfg(test)]
mod tests;
mod text;
mod window;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sarsen_block::{Buffer, Data};
use sarsen_wire::iscsi::{
    AsyncEvent, Isid, LogoutResponse, SerialNumber, TaskManagementFunction, TaskManagementResponse,
};

pub use self::allegiance::{Adoption, Claim, Released};
use self::full_feature::FullFeature;
use self::link::Link;
use self::login::{Login, LoginStep};
pub use self::refusal::{Refusal, RefusalReason};
pub use self::session::{MemberId, Session};
pub use self::tasks::{Ending, TaskId};
use super::chap::{Algorithm, Credentials, Secret};
pub use super::command_memory::Budget;
use super::command_memory::CommandMemory;
use super::keys::{SessionType, TargetOffer};
use super::{Frame, Framer, FramingError, Landing, Output, Parameters, Segment};

/// What a target's connections are set up with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is offered in negotiations.
    pub offer: TargetOffer,
    /// Commands that a session may have outstanding.
    pub command_window: u32,
    /// Immediate commands that may be outstanding beside them.
    pub immediate_limit: usize,
    /// A login must be done by then.
    pub login_timeout: Duration,
    /// The most text of one login, or of one text request, over all PDUs that the C bit joins.
    pub text_limit: usize,
    /// Tasks that data was asked for, or that read, take at most this much memory together on each
    /// connection; one may always.
    pub room_limit: usize,
    /// Memory for the data of all commands, of all connections together.
    pub budget: Arc<Budget>,
    /// With more than this waiting to be sent, what is not urgent and would add much is refused.
    pub output_limit: usize,
    /// A peer that was silent for so long is pinged.
    pub ping_interval: Duration,
    /// A peer that leaves a ping unanswered for so long is given up.
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

/// Who wants in, as far as the first login request tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// InitiatorName.
    pub initiator_name: String,
    /// The initiator's name for its end of the session.
    pub isid: Isid,
    /// The session that the connection wants to join, or 0 for a new one.
    pub tsih: u16,
    /// The connection's id within the session.
    pub cid: u16,
    /// Kind of session.
    pub session_type: SessionType,
    /// TargetName; always there for a normal session.
    pub target_name: Option<String>,
    /// CHAP_N, once the proof was right and [`Environment::authorize`] let the account in; `None`
    /// before, and where nothing has to be proven.
    pub account: Option<String>,
}

/// What the initiator is told of the target during login.
#[derive(Clone, Debug, Default)]
pub struct LoginContext {
    /// TargetPortalGroupTag of the portal that was connected to.
    pub portal_group_tag: u16,
    /// TargetAlias.
    pub alias: Option<String>,
    /// What the initiator has to prove.
    pub requirement: AuthRequirement,
}

/// What a login has to prove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuthRequirement {
    /// Nothing: AuthMethod=None is enough.
    #[default]
    Nothing,
    /// Who it is, by CHAP with one of these algorithms: the first of the initiator's list that is among
    /// them. The initiator may ask us for proof, too, where [`Environment::own_credentials`] has any.
    Chap(Vec<Algorithm>),
}

/// A target as SendTargets tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// iSCSI name.
    pub name: String,
    /// `host:port,portal group tag`, one for each portal.
    pub addresses: Vec<String>,
}

/// What a connection asks of its surroundings and needs to know at once.
pub trait Environment {
    /// Whether this initiator may try to log in to that target, and what it has to prove.
    fn admit(&mut self, admission: &Admission) -> Result<LoginContext, Refusal>;
    /// What the account CHAP_N has to know here; `None` if there is no such account.
    fn secret_of(&mut self, admission: &Admission, account: &str) -> Option<Secret>;
    /// With what we prove who we are, if the initiator asks for it. Asked when its own proof was right.
    fn own_credentials(&mut self, admission: &Admission) -> Option<Credentials>;
    /// Whether who proved to be `account` (or had to prove nothing) is let in. Asked once in each login
    /// that comes so far.
    fn authorize(&mut self, admission: &Admission, account: Option<&str>) -> Result<(), Refusal>;
    /// The session that the connection wants to join, by its TSIH. Called when authentication and negotiation are
    /// complete.
    fn session(&mut self, admission: &Admission) -> Result<Arc<Session>, Refusal>;
    /// Unpredictable bytes, for challenges.
    fn fill_random(&mut self, bytes: &mut [u8]);
    /// The targets that this initiator may see, all or the one that is named.
    fn targets(&mut self, admission: &Admission, only: Option<&str>) -> Vec<TargetRecord>;
    /// How many bytes of Data-Out the command will take, of those that the initiator has `promised`
    /// to send: its expected data transfer length, if it writes.
    fn data_out_length(&mut self, lun: [u8; 8], cdb: &Cdb, promised: usize) -> usize;
    /// Whether there is a logical unit.
    fn unit_exists(&mut self, lun: [u8; 8]) -> bool;
}

/// A CDB as it came: sixteen bytes, and the rest of a longer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cdb {
    /// The first sixteen bytes.
    pub head: [u8; 16],
    /// What an extended CDB header adds.
    pub extension: Option<Box<[u8]>>,
}

/// A command whose data is here and whose turn it is.
#[derive(Debug)]
pub struct Command {
    /// To name it when it is done.
    pub task: TaskId,
    /// Logical unit.
    pub lun: [u8; 8],
    /// Command descriptor block.
    pub cdb: Cdb,
    /// Task attribute (RFC 7143 §11.3.1).
    pub attribute: u8,
    /// What the initiator sent; shorter than the command needs only if it announced less.
    pub data_out: Option<Buffer>,
    /// The expected data transfer length of a write. `None` if the command has the flag R, or moves data and has no
    /// flag: a command that takes data must not be carried out then.
    pub expected_data_out_length: Option<u32>,
    /// What it takes: the expected data transfer length of a read, else 0.
    pub expected_data_in_length: u32,
}

/// A task management function that reaches beyond this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Management {
    /// To name it in [`Connection::respond`].
    pub initiator_task_tag: u32,
    /// What is asked. The tasks of this session that it names have ended.
    pub function: TaskManagementFunction,
    /// Logical unit.
    pub lun: [u8; 8],
}

/// What a connection tells the layer above.
#[derive(Debug)]
pub enum Event {
    /// The negotiation is done. Make room for the session (ending the one that it reinstates,
    /// RFC 7143 §6.3.5), then call [`Connection::establish`] or [`Connection::refuse`].
    Establish(Admission),
    /// Carry out the command, then call [`Connection::complete`].
    Command(Command),
    /// Commands are to end. What of them has not begun must not begin any more; then call
    /// [`Connection::complete`] as for every other, with whatever became of it.
    Aborted(Vec<TaskId>),
    /// Carry out the function, then call [`Connection::respond`].
    Management(Management),
    /// The tasks that [`Connection::abort_tasks`] named with this token have ended.
    TasksEnded(u64),
    /// [`Connection::resume`] is to be called on another connection of the session.
    Wake(MemberId),
    /// See [`Adoption`].
    Adopt(Adoption),
    /// The session is to end, or another connection of it; the tasks of this one have ended if it is
    /// the session. Then call [`Connection::log_out`].
    Logout(Logout),
}

/// A logout that reaches beyond its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logout {
    /// To name it in [`Connection::log_out`].
    pub initiator_task_tag: u32,
    /// The connection that is to end; `None` for all.
    pub cid: Option<u16>,
    /// Its tasks are to be kept for others to take over (RFC 7143 §11.14.1, reason 2).
    pub for_recovery: bool,
}

/// The end of a command.
#[derive(Debug)]
pub struct Completion<'a> {
    /// SCSI status.
    pub status: u8,
    /// Data for the initiator; more than it expects is cut off and told as overflow.
    pub data_in: Data,
    /// Bytes after it that were not read, since the initiator does not expect them.
    pub unread_length: usize,
    /// Sense data.
    pub sense: &'a [u8],
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The initiator logged out, or the login was refused and the answer says why.
    #[error("logged out")]
    InGoodOrder,
    /// A login took too long.
    #[error("the login timed out")]
    LoginTimeout,
    /// A ping was not answered.
    #[error("the initiator stopped answering")]
    Silent,
    /// The byte stream makes no sense.
    #[error(transparent)]
    Framing(#[from] FramingError),
    /// A PDU with an impossible format. It ends all connections of the session (RFC 7143 §7.7).
    #[error("{what} (RFC 7143 {clause})")]
    Format {
        /// The format error.
        what: &'static str,
        /// The clause of the RFC that the PDU violates.
        clause: &'static str,
    },
    /// The initiator removed the connection; its tasks wait for another connection (RFC 7143 §11.14.1).
    #[error("its initiator removed it for recovery")]
    Removed,
    /// The peer broke the protocol in a way that ends the connection.
    #[error("{what} (RFC 7143 {clause})")]
    Protocol {
        /// What happened.
        what: &'static str,
        /// Where it says otherwise.
        clause: &'static str,
    },
    /// A login was refused.
    #[error("login refused: {0}")]
    LoginRefused(Refusal),
}

impl CloseReason {
    fn protocol(what: &'static str, clause: &'static str) -> Self {
        Self::Protocol { what, clause }
    }
}

enum Phase {
    Login(Box<Login>),
    /// The layer above is making room for the session.
    Establishing(Box<Login>),
    FullFeature(Box<FullFeature>),
    /// Send what is left, then close.
    Closing(CloseReason),
}

/// One connection, from its first byte.
pub struct Connection {
    settings: Arc<Settings>,
    framer: Framer,
    link: Link,
    phase: Phase,
    events: VecDeque<Event>,
    /// When the phase or the peer's silence runs out.
    last_heard: Instant,
    login_deadline: Instant,
    ping_sent: Option<Instant>,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(settings: Arc<Settings>, now: Instant) -> Self {
        Self {
            login_deadline: now + settings.login_timeout,
            framer: Framer::default(),
            link: Link::new(
                SerialNumber(0),
                SerialNumber(0),
                settings.command_window,
                CommandMemory::new(settings.budget.clone(), settings.room_limit),
            ),
            phase: Phase::Login(Box::default()),
            events: VecDeque::new(),
            last_heard: now,
            ping_sent: None,
            settings,
        }
    }

    /// Whether nothing of a PDU has come that has not come whole.
    pub fn is_between_pdus(&self) -> bool {
        self.framer.is_between_pdus()
    }

    /// Memory into which the next bytes may be received directly; see [`Framer::landing`].
    pub fn landing(&mut self) -> Option<&mut [u8]> {
        self.framer.landing()
    }

    /// `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, count: usize) {
        self.framer.landed(count);
    }

    /// Takes bytes from the stream, all of them.
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
                // The answer to the last login request has not been sent.
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
                        self.events.push_back(Event::Establish(admission));
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
                let closing = full_feature.handle_pdu(
                    &mut self.link,
                    header,
                    segment,
                    digest_valid,
                    &mut self.events,
                    environment,
                )?;
                self.link.charge_arena();
                if closing {
                    self.phase = Phase::Closing(CloseReason::InGoodOrder);
                }
                Ok(())
            }
            Phase::Establishing(_) | Phase::Closing(_) => Ok(()),
        }
    }

    /// What happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| self.link.session.next_wake().map(Event::Wake))
    }

    /// Events that wait to be polled.
    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    /// What is to be sent.
    pub fn output(&mut self) -> &mut Output {
        self.link.parting.as_mut().unwrap_or(&mut self.link.output)
    }

    /// `count` bytes of the output were sent: commands that waited for their memory continue.
    pub fn sent(&mut self, count: usize) {
        self.output().sent(count);
        self.go_on_after_output();
    }

    /// Drops the output, since the connection is lost.
    pub fn discard_output(&mut self) {
        self.output().clear();
        self.go_on_after_output();
    }

    #[inline]
    fn go_on_after_output(&mut self) {
        if let Phase::FullFeature(full_feature) = &mut self.phase {
            full_feature.sent(&mut self.link, &mut self.events);
        }
    }

    /// Whether so much output waits that no request is to be received or carried out.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.link.is_full(self.settings.output_limit)
    }

    /// Whether commands wait for memory that other connections use: see [`Self::poll_room`].
    #[inline]
    pub fn awaits_room(&self) -> bool {
        self.link.room.is_waiting()
    }

    /// Ready when [`Self::resume`] is to be called: there may be memory for commands that wait.
    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        self.link.room.poll(context)
    }

    /// Once the output is sent, the connection is to be closed for this reason.
    pub fn closing(&self) -> Option<&CloseReason> {
        match &self.phase {
            Phase::Closing(reason) => Some(reason),
            _ if self.link.parting.is_some() => Some(&CloseReason::Removed),
            _ => None,
        }
    }

    /// What was negotiated, once the login is done.
    pub fn parameters(&self) -> &Parameters {
        &self.link.parameters
    }

    /// Whether the login is done and the connection serves.
    pub fn is_established(&self) -> bool {
        matches!(self.phase, Phase::FullFeature(_))
    }

    /// Answers [`Event::Establish`]: the session has this TSIH. Gives what other connections join it
    /// by, if there can be any, and by what they know this one.
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

    /// Goes on with what waited for other connections of the session: one of them said
    /// [`Event::Wake`].
    pub fn resume(&mut self, environment: &mut dyn Environment) -> Result<(), CloseReason> {
        if let Phase::FullFeature(full_feature) = &mut self.phase
            && full_feature.resume(&mut self.link, &mut self.events, environment)?
        {
            self.phase = Phase::Closing(CloseReason::InGoodOrder);
        }
        Ok(())
    }

    /// The layer above has begun a command: those that are not to overtake it may come.
    #[inline]
    pub fn begun(&mut self, task: TaskId) {
        if let Phase::FullFeature(full_feature) = &mut self.phase {
            full_feature.begun(&mut self.link, task);
        }
    }

    /// The connection is lost. At level 2 its tasks are kept for other connections of the session to
    /// take over ([`Self::release`]), and what the machine sends goes nowhere. Says whether it is
    /// so.
    pub fn park(&mut self, environment: &mut dyn Environment) -> bool {
        if self.link.parameters.error_recovery_level < 2 {
            return false;
        }
        let Phase::FullFeature(full_feature) = &mut self.phase else { return false };
        self.link.parting = None;
        full_feature.park(&mut self.link, self.framer.abandon());
        // What was acknowledged is begun, though its turn came only now.
        let lives_on = self.resume(environment).is_ok();
        self.discard_output();
        lives_on
    }

    /// Another connection of the session asks for a task.
    pub fn release(&mut self, initiator_task_tag: u32) -> Claim {
        match &mut self.phase {
            Phase::FullFeature(full_feature) => {
                full_feature.release(&mut self.link, initiator_task_tag)
            }
            _ => Claim::Unknown,
        }
    }

    /// Answers [`Event::Adopt`] with what the other connections said.
    pub fn adopt(&mut self, adoption: Adoption, claim: Claim) {
        if let Phase::FullFeature(full_feature) = &mut self.phase
            && full_feature.adopt(&mut self.link, adoption, claim, &mut self.events)
        {
            self.phase = Phase::Closing(CloseReason::InGoodOrder);
        }
    }

    /// The connection ends: its tasks make way for those of others. Poll events once more.
    pub fn leave(&mut self) {
        if let Phase::FullFeature(full_feature) = &mut self.phase {
            full_feature.leave(&mut self.link);
            // What has not begun does not begin any more; what has, is the layer above's to end.
            self.events.retain(|event| !matches!(event, Event::Command(_) | Event::Aborted(_)));
        }
    }

    /// Answers [`Event::Logout`]. That of the session closes this connection, too.
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

    /// Answers [`Event::Establish`]: there is no session to be had.
    pub fn refuse(&mut self, refusal: impl Into<Refusal>) {
        let refusal = refusal.into();
        if let Phase::Establishing(login) = &mut self.phase {
            login.refuse(&refusal, &mut self.link);
            self.phase = Phase::Closing(CloseReason::LoginRefused(refusal));
        }
    }

    /// Ends a command. A task that was aborted meanwhile ends as the abort said.
    pub fn complete(&mut self, task: TaskId, completion: Completion<'_>) {
        if let Phase::FullFeature(full_feature) = &mut self.phase
            && full_feature.complete(&mut self.link, task, completion, &mut self.events)
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

    /// A command has ended, and its answer waits for others to end: [`Self::complete`] comes later.
    /// From here on nobody has to wait for it who ends it himself. Gives its LUN; `None` for a
    /// command that was aborted already, which is to be completed at once.
    pub fn withhold(&mut self, task: TaskId) -> Option<[u8; 8]> {
        match &mut self.phase {
            Phase::FullFeature(full_feature) => full_feature.withhold(task),
            _ => None,
        }
    }

    /// Aborts tasks on behalf of another session or of the layer above: `ending` says of each LUN
    /// whether, and how. When those that are being carried out have ended,
    /// [`Event::TasksEnded`] comes with `token`. Gives the LUNs of all that ended by it.
    pub fn abort_tasks(
        &mut self,
        token: u64,
        ending: impl FnMut(TaskId, [u8; 8]) -> Option<Ending>,
    ) -> Vec<[u8; 8]> {
        match &mut self.phase {
            Phase::FullFeature(full_feature) => {
                full_feature.abort_for_others(&mut self.link, token, &mut self.events, ending)
            }
            _ => {
                self.events.push_back(Event::TasksEnded(token));
                Vec::new()
            }
        }
    }

    /// Tasks that are being carried out by the layer above.
    pub fn running_tasks(&self) -> usize {
        match &self.phase {
            Phase::FullFeature(full_feature) => full_feature.running_tasks(),
            _ => 0,
        }
    }

    /// Tells the initiator what happened to a unit, without its asking (RFC 7143 §11.9.1, event 0).
    pub fn report_scsi_event(&mut self, lun: [u8; 8], sense: &[u8]) {
        if self.is_established() {
            self.link.scsi_event(lun, sense);
        }
    }

    /// Asks the initiator to log out within so many seconds (RFC 7143 §11.9.1, event 1).
    pub fn request_logout(&mut self, seconds: u16) {
        if self.is_established() {
            self.link.asynchronous_message(AsyncEvent::LogoutRequest, [0, 0, seconds]);
        }
    }

    /// Closes without a word: another connection logged this one out.
    pub fn close(&mut self) {
        self.leave();
        self.phase = Phase::Closing(CloseReason::InGoodOrder);
    }

    /// Tells that the session is dropped, and closes (RFC 7143 §11.9.1, event 3).
    pub fn drop_session(&mut self) {
        if self.is_established() {
            let time2wait = self.link.parameters.default_time2wait as u16;
            self.link.asynchronous_message(AsyncEvent::SessionDrop, [0, time2wait, 0]);
        }
        self.leave();
        self.phase = Phase::Closing(CloseReason::InGoodOrder);
    }

    /// When [`Self::handle_timeout`] is to be called at the latest. Moves with the peer's
    /// signs of life, so that a driver may look at it only when its timer ends.
    pub fn poll_timeout(&self) -> Instant {
        match (&self.phase, self.ping_sent) {
            (Phase::FullFeature(_), None) => self.last_heard + self.settings.ping_interval,
            (Phase::FullFeature(_), Some(sent)) => sent + self.settings.ping_timeout,
            _ => self.login_deadline,
        }
    }

    /// Time has passed.
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
