//! A session over one connection or several, with recovery within and of connections
//! (RFC 7143 §4.2.2, §7).
//!
//! The owner has a socket for each connection and tells them apart by their [`Cid`]s. The first
//! one, [`LEADING`], negotiates for the session; [`Session::join`] adds further ones. When a
//! connection is lost the owner says so ([`Session::lose`]). At level 2 its commands wait; the owner
//! has the target let it go, over another connection ([`Session::remove`]) or by a new one of the
//! same CID ([`Session::reinstate`]), and the commands go on there: those that the target has are
//! reassigned and continue where their data stands, those that it never got are sent again under
//! their own numbers. Below level 2 the session is over with the first connection that is lost.

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
use super::task::{Command, Movement, RequestKind, Tasks};

/// The connection that a session begins with.
pub const LEADING: Cid = Cid(0);
/// A command that was moved so often is given up: it may be what breaks the connections.
const MOVE_LIMIT: u32 = 8;

/// A connection that is gone, while the target may still think otherwise.
struct Lost {
    cid: u16,
    exp_stat_sn: SerialNumber,
    /// The connection over which the target is asked to let it go.
    removed_over: Option<u16>,
}

/// See the module.
pub struct Session {
    core: Core,
    options: LoginOptions,
    links: Vec<Link>,
    lost: Vec<Lost>,
    parameters: Parameters,
    tsih: u16,
    next_cid: u16,
    /// Where the search for a connection for the next command begins.
    turn: usize,
}

impl Session {
    /// Begins the login of the leading connection: its first request waits in its output.
    pub fn new(options: LoginOptions) -> Self {
        let core = Core::new(Tasks::default());
        let link = Link::new(options.clone(), None, Parameters::default(), &core);
        // Each login has an authentication of its own.
        let options = LoginOptions { authentication: None, ..options };
        Self {
            core,
            options,
            links: vec![link],
            lost: Vec::new(),
            parameters: Parameters::default(),
            tsih: 0,
            next_cid: LEADING.0 + 1,
            turn: 0,
        }
    }

    /// What the leading login negotiated; the defaults of the standard before that.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Whether commands can be sent, or will be when a lost connection is replaced.
    pub fn is_full_feature(&self) -> bool {
        let waits = !self.lost.is_empty();
        !self.core.logged_out && (waits || self.links.iter().any(Link::is_full_feature))
    }

    /// Whether a logout of the session was answered: the target will close its connections.
    pub const fn is_logged_out(&self) -> bool {
        self.core.logged_out
    }

    /// Why the session cannot go on although connections are left.
    pub fn failure(&self) -> Option<&ConnectionError> {
        self.core.failed.as_ref()
    }

    /// The connections that are there, those that log in included.
    pub fn connections(&self) -> impl Iterator<Item = Cid> {
        self.links.iter().map(|link| Cid(link.cid))
    }

    /// Whether the connection can carry commands.
    pub fn is_connected(&self, connection: Cid) -> bool {
        self.links.iter().any(|link| link.cid == connection.0 && link.is_full_feature())
    }

    /// Whether the connection was lost and the target has not let it go yet.
    pub fn is_lost(&self, connection: Cid) -> bool {
        self.lost.iter().any(|lost| lost.cid == connection.0)
    }

    /// Whether the target is asked to let it go at this moment.
    pub fn is_being_removed(&self, connection: Cid) -> bool {
        self.lost.iter().any(|lost| lost.cid == connection.0 && lost.removed_over.is_some())
    }

    /// Bytes to send over a connection; `None` if it is gone.
    pub fn output(&mut self, connection: Cid) -> Option<&mut Output> {
        Some(&mut self.link(connection)?.output)
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.core.events.pop_front()
    }

    /// Requests that have no answer yet.
    pub fn open_requests(&self) -> usize {
        self.core.tasks.open_count()
    }

    /// How many commands can be sent now.
    pub fn window(&self) -> u32 {
        let ready = self.links.iter().any(Link::takes_commands);
        if ready && !self.core.logged_out { self.core.window() } else { 0 }
    }

    /// Memory that the next bytes of a connection's stream may be received into.
    pub fn landing(&mut self, connection: Cid) -> Option<&mut [u8]> {
        self.link(connection)?.framer.landing()
    }

    /// `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, connection: Cid, count: usize) {
        if let Some(link) = self.link(connection) {
            link.framer.landed(count);
        }
    }

    /// Prepares data for [`super::Transfer::Write`]; clones of it may serve many commands.
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

    /// Takes bytes that a connection received, after those that landed. An error ends the
    /// connection, to be followed by [`Self::lose`]; with [`Self::failure`] it ends the session.
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
            self.tsih = link.tsih;
            self.parameters = link.parameters.clone();
            let Parameters { max_connections, error_recovery_level, .. } = self.parameters;
            self.core.tolerant = max_connections > 1 || error_recovery_level > 0;
            return;
        }
        let cid = link.cid;
        if self.is_lost(Cid(cid)) {
            // RFC 7143 §6.3.4: the login was the logout of the one before.
            self.lost.retain(|lost| lost.cid != cid);
            self.move_tasks(cid, cid);
        }
    }

    fn note_removal(&mut self, lost: Cid, over: Cid) {
        self.lost.retain(|other| other.cid != lost.0);
        self.core.events.push_back(Event::Removed { connection: lost });
        self.move_tasks(lost.0, over.0);
    }

    /// Goes on with the commands of a connection that the target has let go.
    fn move_tasks(&mut self, from: u16, to: u16) {
        let Some(at) = self.links.iter().position(|link| link.cid == to) else { return };
        let (tags, _) = self.core.tasks.of_connection(from);
        let mut never_arrived = Vec::new();
        for tag in tags {
            let exp_cmd_sn = self.core.exp_cmd_sn;
            let Some(task) = self.core.tasks.find(tag) else { continue };
            // If that connection is lost, too, before it has the task, it is known where it was to
            // go.
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
            // What the target has by now it had from the lost connection: nothing comes from
            // there any more.
            if !SerialNumber(*cmd_sn).is_before(exp_cmd_sn) {
                never_arrived.push(tag);
            } else if let Some(recovery) = &mut self.links[at].recovery {
                recovery.to_reassign.push_back(tag);
            }
        }
        let link = &mut self.links[at];
        // These first: the target waits for their numbers.
        never_arrived.into_iter().for_each(|tag| link.retry(&mut self.core, tag));
        if !link.is_reassigning {
            link.reassign_next(&mut self.core);
        }
    }

    /// Begins the login of a further connection, if the session may have one. [`Event::Joined`]
    /// tells that it is over.
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

    /// Begins the login of a connection that takes the place of a lost one (RFC 7143 §6.3.4).
    /// False if that is not lost, or being removed.
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

    /// Asks the target over another connection to let a lost one go (RFC 7143 §7.2.2); its
    /// commands then go on there, and [`Event::Removed`] tells so. False if there is no other
    /// connection.
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

    /// A connection is gone, or is given up. False if the session is over with it.
    pub fn lose(&mut self, connection: Cid) -> bool {
        let Some(at) = self.links.iter().position(|link| link.cid == connection.0) else {
            return self.core.failed.is_none();
        };
        let mut link = self.links.remove(at);
        self.put_back(&mut link);
        for lost in &mut self.lost {
            lost.removed_over = lost.removed_over.filter(|over| *over != link.cid);
        }
        // One that never was, or that both sides have left, has no tasks.
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
        // A login that failed half-way has no place in the session, unless it was to take one.
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

    /// Gives a read its buffer back, which the lost connection was filling.
    fn put_back(&mut self, link: &mut Link) {
        let Some(filling) = link.framer.take_memory() else { return };
        let header = link.framer.header();
        let tag = DataIn::view(header).initiator_task_tag.get();
        if header.basic().opcode() == Opcode::DataIn
            && let Some(Command { movement: Movement::Read { buffer, expected, .. }, .. }) =
                self.core.tasks.command(tag, link.cid)
            && filling.len() == *expected as usize
        {
            buffer.get_or_insert(filling);
        }
    }

    /// The connection for the next request: the next one in turn that has nothing to send.
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

    /// Sends a command over one of the connections, or gives it back when the window is full or
    /// there is no connection. Returns its tag.
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

    /// Does something over one connection, or tells that it is lost.
    fn over_one(&mut self, token: Token, send: impl FnOnce(&mut Link, &mut Core)) {
        match self.choose() {
            Some(at) => send(&mut self.links[at], &mut self.core),
            None => self.core.events.push_back(Event::Lost { token }),
        }
    }

    /// Asks whether the target is there; [`Event::Pong`] is the answer.
    pub fn ping(&mut self, token: Token) {
        self.over_one(token, |link, core| link.ping(core, token));
    }

    /// Sends text: pairs of keys and values, each ended by a zero byte, of 8 KiB at most.
    pub fn text(&mut self, text: &[u8], token: Token) {
        self.over_one(token, |link, core| link.text(core, text, token));
    }

    /// Asks for a task management function. False, and nothing is sent, if the task that it is
    /// about is over already, or waits for a connection.
    pub fn task_management(&mut self, request: TaskManagement, token: Token) -> bool {
        let at = match request {
            // RFC 7143 §4.2.4: it goes over the task's own connection.
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

    /// Asks to end the session; [`Event::LoggedOut`] is the answer. `token` is told if the request
    /// is lost.
    pub fn logout(&mut self, token: Token) {
        self.over_one(token, |link, core| link.logout(core, token));
    }

    /// Lets one connection go when its last command has ended; no further ones go there.
    /// [`Event::Left`] tells that it is closed.
    pub fn leave(&mut self, connection: Cid) {
        let Some(at) = self.links.iter().position(|link| link.cid == connection.0) else { return };
        let link = &mut self.links[at];
        link.is_leaving = true;
        link.leave_when_idle(&mut self.core);
    }
}
