//! A session with one or several connections, with recovery within connections and of lost connections
//! (RFC 7143 §4.2.2, §7).
//!
//! The owner has a socket for each connection and identifies each by its [`Cid`]. The first connection, [`LEADING`],
//! negotiates for the session; [`Session::join`] adds further ones. When a connection is lost, the owner calls
//! [`Session::mark_lost`]. At level 2 the commands of that connection then wait. The owner makes the target remove the lost
//! connection, either over another connection ([`Session::remove`]) or by a new connection with the same CID
//! ([`Session::reinstate`]). The commands continue there. Commands that the target has received are reassigned and
//! continue at their data offset. Commands that the target never received are sent again with their own numbers. Below
//! level 2 the loss of one connection ends the session.

use sarsen_block::Data;
use sarsen_wire::iscsi::{DataIn, Opcode, SerialNumber};

use super::super::output::Payload;
use super::super::{Output, Parameters};
use super::authentication::Authentication;
use super::core::Core;
use super::event::{ConnectionError, Event, RecoveryError};
use super::link::{Link, Phase};
use super::options::{Join, LoginOptions};
use super::request::{Cid, CommandRequest, TaskManagement, Token};
use super::task::{Command, DataTransfer, RequestKind, Tasks};

/// The first connection of a session.
pub const LEADING: Cid = Cid(0);
/// Maximum number of moves of a command. After more moves the session fails: the command itself may break the
/// connections.
const MOVE_LIMIT: u32 = 8;

/// A lost connection that the target may still consider open.
struct Lost {
    cid: u16,
    exp_stat_sn: SerialNumber,
    /// The connection over which the initiator requests its removal.
    removed_over: Option<u16>,
}

/// A session with one or several connections. See the module.
pub struct Session {
    core: Core,
    options: LoginOptions,
    links: Vec<Link>,
    lost: Vec<Lost>,
    parameters: Parameters,
    tsih: u16,
    portal_group: Option<u16>,
    next_cid: u16,
    /// Index at which the search for the connection of the next command begins.
    turn: usize,
}

impl Session {
    /// Begins the login of the leading connection. Its output contains the first request.
    pub fn new(options: LoginOptions) -> Self {
        let core = Core::new(Tasks::default());
        let link = Link::new(options.clone(), None, Parameters::default(), &core);
        // Each login needs its own authentication.
        let options = LoginOptions { authentication: None, ..options };
        Self {
            core,
            options,
            links: vec![link],
            lost: Vec::new(),
            parameters: Parameters::default(),
            tsih: 0,
            portal_group: None,
            next_cid: LEADING.0 + 1,
            turn: 0,
        }
    }

    /// Returns the parameters of the leading login, or the defaults of the standard before the negotiation.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns the tag of the portal group through which the session was logged in, if the target declared it.
    pub const fn portal_group(&self) -> Option<u16> {
        self.portal_group
    }

    /// Returns whether commands can be sent now, or after the replacement of a lost connection.
    pub fn is_full_feature(&self) -> bool {
        let waits = !self.lost.is_empty();
        !self.core.logged_out && (waits || self.links.iter().any(Link::is_full_feature))
    }

    /// Returns whether a logout of the session was answered. The target will close its connections.
    pub const fn is_logged_out(&self) -> bool {
        self.core.logged_out
    }

    /// Returns the reason why the session cannot continue although connections are left.
    pub fn failure(&self) -> Option<&ConnectionError> {
        self.core.failed.as_ref()
    }

    /// Returns the existing connections, including those that log in.
    pub fn connections(&self) -> impl Iterator<Item = Cid> {
        self.links.iter().map(|link| Cid(link.cid))
    }

    /// Returns whether the connection can carry commands.
    pub fn is_connected(&self, connection: Cid) -> bool {
        self.links.iter().any(|link| link.cid == connection.0 && link.is_full_feature())
    }

    /// Returns whether the connection was lost and the target has not removed it yet.
    pub fn is_lost(&self, connection: Cid) -> bool {
        self.lost.iter().any(|lost| lost.cid == connection.0)
    }

    /// Returns whether a request to remove the lost connection is open.
    pub fn is_being_removed(&self, connection: Cid) -> bool {
        self.lost.iter().any(|lost| lost.cid == connection.0 && lost.removed_over.is_some())
    }

    /// Returns the bytes to send over a connection, or `None` if the connection does not exist.
    pub fn output(&mut self, connection: Cid) -> Option<&mut Output> {
        Some(&mut self.link(connection)?.output)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.core.events.pop_front()
    }

    /// Returns the number of requests without an answer.
    pub fn open_requests(&self) -> usize {
        self.core.tasks.open_count()
    }

    /// Returns how many commands can be sent now.
    pub fn window(&self) -> u32 {
        let ready = self.links.iter().any(Link::takes_commands);
        if ready && !self.core.logged_out { self.core.window() } else { 0 }
    }

    /// Returns memory into which the driver may receive the next bytes of a connection's stream.
    pub fn landing(&mut self, connection: Cid) -> Option<&mut [u8]> {
        self.link(connection)?.framer.landing()
    }

    /// Notes that `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, connection: Cid, count: usize) {
        if let Some(link) = self.link(connection) {
            link.framer.landed(count);
        }
    }

    /// Prepares data for [`super::Transfer::Write`]. Many commands may use clones of it.
    pub fn payload(&self, data: impl Into<Data>) -> Payload {
        // Any connection may have a data digest, now or later.
        match data.into() {
            data @ Data::Shared { .. } => {
                Output::default().payload(Data::Buffer(data.into_buffer()))
            }
            data => Output::default().payload(data),
        }
    }

    fn link(&mut self, connection: Cid) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.cid == connection.0)
    }

    /// Handles bytes that a connection received after those in [`Self::landing`]. An error ends the connection: the
    /// owner then calls [`Self::mark_lost`]. If [`Self::failure`] returns an error, it ends the session.
    pub fn handle_input(&mut self, connection: Cid, input: &[u8]) -> Result<(), ConnectionError> {
        let Some(at) = self.links.iter().position(|link| link.cid == connection.0) else {
            return Ok(());
        };
        let link = &mut self.links[at];
        let logged_in = link.is_full_feature();
        let result = link.handle_input(&mut self.core, input);
        if !logged_in && link.is_full_feature() {
            self.note_login(at);
        }
        while let Some((lost, over)) = self.core.removed.pop() {
            self.note_removal(lost, over);
        }
        let link = &mut self.links[at];
        link.leave_when_idle(&mut self.core);
        result?;
        self.core.failed.clone().map_or(Ok(()), Err)
    }

    fn note_login(&mut self, at: usize) {
        let link = &self.links[at];
        if self.tsih == 0 {
            (self.tsih, self.portal_group) = (link.tsih, link.portal_group);
            self.parameters = link.parameters.clone();
            let Parameters { max_connections, error_recovery_level, .. } = self.parameters;
            self.core.tolerant = max_connections > 1 || error_recovery_level > 0;
            return;
        }
        let cid = link.cid;
        if self.is_lost(Cid(cid)) {
            // RFC 7143 §6.3.4: the login logged the previous connection out.
            self.lost.retain(|lost| lost.cid != cid);
            self.move_tasks(cid, cid);
        }
    }

    fn note_removal(&mut self, lost: Cid, over: Cid) {
        self.lost.retain(|other| other.cid != lost.0);
        self.core.events.push_back(Event::Removed { connection: lost });
        self.move_tasks(lost.0, over.0);
    }

    /// Continues the commands of a connection that the target has removed.
    fn move_tasks(&mut self, from: u16, to: u16) {
        let Some(at) = self.links.iter().position(|link| link.cid == to) else { return };
        let (tags, _) = self.core.tasks.of_connection(from);
        let mut never_arrived = Vec::new();
        for tag in tags {
            let exp_cmd_sn = self.core.exp_cmd_sn;
            let Some(task) = self.core.tasks.find(tag) else { continue };
            // If the new connection is lost, too, before it has the task, the task's connection is known.
            task.allegiance = to;
            let RequestKind::Command(Command { cmd_sn, recovery: Some(recovery), .. }) =
                &mut task.kind
            else {
                continue;
            };
            recovery.moves += 1;
            if recovery.moves > MOVE_LIMIT {
                self.core.failed = Some(RecoveryError::MovedTooOften.into());
                return;
            }
            // The target received its commands over the lost connection. No more of them arrive from there.
            if !SerialNumber(*cmd_sn).is_before(exp_cmd_sn) {
                never_arrived.push(tag);
            } else if let Some(recovery) = &mut self.links[at].recovery {
                recovery.to_reassign.push_back(tag);
            }
        }
        let link = &mut self.links[at];
        // These commands are sent first: the target waits for their numbers.
        never_arrived.into_iter().for_each(|tag| link.retry(&mut self.core, tag));
        if !link.is_reassigning {
            link.reassign_next(&mut self.core);
        }
    }

    /// Begins the login of a further connection, if the session may have one. [`Event::Joined`] reports the end of the
    /// login.
    pub fn join(&mut self, authentication: Option<Authentication>) -> Option<Cid> {
        let taken = self.links.len() + self.lost.len();
        if !self.is_full_feature() || taken >= self.parameters.max_connections as usize {
            return None;
        }
        while self.connections().any(|used| used.0 == self.next_cid)
            || self.is_lost(Cid(self.next_cid))
        {
            self.next_cid = self.next_cid.wrapping_add(1);
        }
        let cid = self.next_cid;
        self.next_cid = cid.wrapping_add(1);
        self.log_in(cid, SerialNumber(0), authentication);
        Some(Cid(cid))
    }

    /// Begins the login of a connection that replaces a lost one (RFC 7143 §6.3.4). Returns false if that connection is
    /// not lost, or is being removed.
    pub fn reinstate(&mut self, lost: Cid, authentication: Option<Authentication>) -> bool {
        let Some(Lost { exp_stat_sn, removed_over: None, .. }) =
            self.lost.iter().find(|other| other.cid == lost.0)
        else {
            return false;
        };
        let exp_stat_sn = *exp_stat_sn;
        if self.link(lost).is_some() {
            return false;
        }
        self.log_in(lost.0, exp_stat_sn, authentication);
        true
    }

    fn log_in(
        &mut self,
        cid: u16,
        exp_stat_sn: SerialNumber,
        authentication: Option<Authentication>,
    ) {
        let options = LoginOptions { authentication, ..self.options.clone() };
        let join = Join { tsih: self.tsih, cid, exp_stat_sn: exp_stat_sn.0 };
        let link = Link::new(options, Some(join), self.parameters.clone(), &self.core);
        self.links.push(link);
    }

    /// Requests over another connection that the target remove a lost one (RFC 7143 §7.2.2). Its commands then continue
    /// on the other connection, and [`Event::Removed`] reports this. Returns false if there is no other connection.
    pub fn remove(&mut self, lost: Cid) -> bool {
        let Some(at) = self.lost.iter().position(|other| other.cid == lost.0) else { return false };
        let Some(over) = self.choose() else { return false };
        let (link, lost) = (&mut self.links[over], &mut self.lost[at]);
        if lost.removed_over.is_none() && lost.cid != link.cid {
            lost.removed_over = Some(link.cid);
            link.remove_other(&mut self.core, lost.cid, lost.exp_stat_sn.0);
        }
        true
    }

    /// Records that a connection was lost or abandoned. Returns false if this ends the session.
    pub fn mark_lost(&mut self, connection: Cid) -> bool {
        let Some(at) = self.links.iter().position(|link| link.cid == connection.0) else {
            return self.core.failed.is_none();
        };
        let mut link = self.links.remove(at);
        self.put_back(&mut link);
        for lost in &mut self.lost {
            lost.removed_over = lost.removed_over.filter(|over| *over != link.cid);
        }
        // A connection that was never established, or that was logged out, has no tasks.
        if matches!(link.phase, Phase::Login(_)) || (link.is_logged_out() && !self.is_logged_out())
        {
            return self.tsih != 0 && self.core.failed.is_none();
        }
        let (commands, others) = self.core.tasks.of_connection(link.cid);
        for tag in others {
            let Some(task) = self.core.tasks.remove(tag) else { continue };
            if !matches!(task.kind, RequestKind::Reassign { .. } | RequestKind::Removal { .. }) {
                self.core.events.push_back(Event::Lost { token: task.token });
            }
        }
        let level = self.parameters.error_recovery_level;
        if self.is_logged_out() || (level < 2 && link.is_leaving && commands.is_empty()) {
            return self.core.failed.is_none();
        }
        // A connection with a failed login is not part of the session, unless it was to replace a lost one.
        if !link.was_full_feature {
            return self.tsih != 0 && self.core.failed.is_none();
        }
        if level < 2 {
            let error = RecoveryError::Level { level };
            self.core.failed.get_or_insert(error.into());
            return false;
        }
        let (cid, exp_stat_sn) = (link.cid, link.exp_stat_sn);
        self.lost.push(Lost { cid, exp_stat_sn, removed_over: None });
        self.core.failed.is_none()
    }

    /// Returns the buffer that the lost connection was filling to its read command.
    fn put_back(&mut self, link: &mut Link) {
        let Some(filling) = link.framer.take_memory() else { return };
        let header = link.framer.header();
        let tag = DataIn::view(header).initiator_task_tag.get();
        if header.basic().opcode() == Opcode::DataIn
            && let Some(Command { movement: DataTransfer::Read { buffer, expected, .. }, .. }) =
                self.core.tasks.command(tag, link.cid)
            && filling.len() == *expected as usize
        {
            buffer.get_or_insert(filling);
        }
    }

    /// Chooses the connection for the next request: the one with the least data to send, in rotation.
    fn choose(&mut self) -> Option<usize> {
        let count = self.links.len();
        let turn = self.turn;
        let chosen = (0..count)
            .map(|step| (turn + step) % count)
            .filter(|at| self.links[*at].takes_commands())
            .min_by_key(|at| self.links[*at].output.len())?;
        self.turn = chosen + 1;
        Some(chosen)
    }

    /// Sends a command over one of the connections and returns its tag. Returns the request instead when the window is
    /// full or there is no connection.
    pub fn command(
        &mut self,
        request: CommandRequest,
        token: Token,
    ) -> Result<u32, CommandRequest> {
        if self.core.window() == 0 || self.core.logged_out {
            return Err(request);
        }
        match self.choose() {
            Some(at) => Ok(self.links[at].command(&mut self.core, request, token)),
            None => Err(request),
        }
    }

    /// Sends a request over one connection, or reports it as lost.
    fn over_one(&mut self, token: Token, send: impl FnOnce(&mut Link, &mut Core)) {
        match self.choose() {
            Some(at) => send(&mut self.links[at], &mut self.core),
            None => self.core.events.push_back(Event::Lost { token }),
        }
    }

    /// Sends a ping to the target. The answer is [`Event::Pong`].
    pub fn ping(&mut self, token: Token) {
        self.over_one(token, |link, core| link.ping(core, token));
    }

    /// Sends a ping over this connection, unless it is not logged in.
    pub fn ping_over(&mut self, connection: Cid, token: Token) {
        let link = self.links.iter_mut().find(|link| link.cid == connection.0);
        if let Some(link) = link.filter(|link| link.is_full_feature()) {
            link.ping(&mut self.core, token);
        }
    }

    /// Sends text: pairs of keys and values, each terminated by a zero byte. Maximum: 8 KiB.
    pub fn text(&mut self, text: &[u8], token: Token) {
        self.over_one(token, |link, core| link.text(core, text, token));
    }

    /// Requests a task management function. Returns false and sends nothing if the task that it concerns has already
    /// ended, or waits for a connection.
    pub fn task_management(&mut self, request: TaskManagement, token: Token) -> bool {
        let at = match request {
            // RFC 7143 §4.2.4: the request uses the task's own connection.
            TaskManagement::AbortTask(task) => {
                let allegiance = self.core.tasks.command_of(task).map(|(_, cid, _)| cid);
                self.links
                    .iter()
                    .position(|link| Some(link.cid) == allegiance && link.is_full_feature())
            }
            _ => self.choose(),
        };
        at.is_some_and(|at| self.links[at].task_management(&mut self.core, request, token))
    }

    /// Requests to end the session. The answer is [`Event::LoggedOut`]. If the request is lost, [`Event::Lost`] returns
    /// `token`.
    pub fn logout(&mut self, token: Token) {
        self.over_one(token, |link, core| link.logout(core, token));
    }

    /// Logs one connection out when its last command has ended. It gets no further commands. [`Event::Left`] reports
    /// the end of the logout.
    pub fn logout_connection(&mut self, connection: Cid) {
        let Some(at) = self.links.iter().position(|link| link.cid == connection.0) else { return };
        let link = &mut self.links[at];
        link.is_leaving = true;
        link.leave_when_idle(&mut self.core);
    }
}
