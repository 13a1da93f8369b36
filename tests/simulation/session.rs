//! The actions of an initiator in a session: commands and task management functions over all of its connections. Each
//! result is compared with the model.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use sarsen_io::time;
use sarsen_proto::iscsi::initiator::{
    Completion, Event, Residual, TaskAttribute, TaskManagement, Token,
};
use sarsen_scsi::Lun;
use sarsen_wire::iscsi::{AsyncEvent, LogoutResponse, TaskManagementResponse};

use crate::command::{Command, CommandKind, is_miscompare};
use crate::connections::Connections;
use crate::initiator::{Initiator, LOGIN_LIMIT};
use crate::link::{Link, Lost, News};
use crate::model::{CommandPosition, Outcome, Violation};
use crate::stamp;
use crate::world::World;

/// The initiator aborts a command after this time.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// The initiator closes a connection that does not answer a task management function within this time.
const MANAGEMENT_LIMIT: Duration = Duration::from_secs(25);

/// A command in progress.
pub(crate) struct Open {
    pub(crate) operation: u64,
    command: Command,
    deadline: Instant,
    is_aborting: bool,
}

/// The state of one session.
pub(crate) struct Session {
    number: u64,
    pub(crate) link: Link,
    pub(crate) level: u32,
    pub(crate) connections: Connections,
    pub(crate) open: BTreeMap<u64, Open>,
    management: BTreeMap<u64, (TaskManagement, Instant)>,
    /// Number of commands that were sent in the session.
    sent: u64,
    next_step: Instant,
    /// Number of commands after which the session ends.
    limit: u64,
    /// Both ends detect changed bytes.
    pub(crate) is_guarded: bool,
    /// The initiator does not know whether the target has ended a command.
    pub(crate) has_lost_abort: bool,
    /// The target has requested a logout, and the initiator complies.
    is_asked_to_go: bool,
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.link.machine.parameters().max_connections;
        write!(f, "{} of level {}, {most} connections at most", self.number, self.level)
    }
}

impl Session {
    pub(crate) fn new(world: &World, link: Link, limit: u64, is_guarded: bool) -> Self {
        let parameters = link.machine.parameters();
        let level = parameters.error_recovery_level;
        world.count(format_args!("sessions of level {level}"));
        world.count(format_args!("sessions of up to {} connections", parameters.max_connections));
        Self {
            number: world.next_session(),
            level,
            connections: Connections::new(parameters),
            link,
            open: BTreeMap::new(),
            management: BTreeMap::new(),
            sent: 0,
            next_step: time::now(),
            limit,
            is_guarded,
            has_lost_abort: false,
            is_asked_to_go: false,
        }
    }
}

impl Initiator {
    pub(crate) async fn work(&mut self, session: &mut Session) -> Result<(), Lost> {
        loop {
            let is_done = self.left == 0 || session.sent >= session.limit;
            let is_over = is_done || session.is_asked_to_go;
            if is_over && (session.open.is_empty() || self.rng.chance(3)) {
                return self.leave(session).await;
            }
            self.check_deadlines(session);
            let next = self.keep_connections(session).await?;
            if !is_over && time::now() >= session.next_step {
                self.step(session).await;
            }
            let open = session.open.values().filter(|open| !open.is_aborting);
            let deadlines = open.map(|open| open.deadline);
            let deadlines = deadlines.chain(session.management.values().map(|(_, limit)| *limit));
            let mut deadline = deadlines.chain(next).min().unwrap_or(time::now() + LOGIN_LIMIT);
            if !is_over && session.open.len() < self.depth {
                deadline = deadline.min(session.next_step);
            }
            match session.link.turn(deadline).await {
                Some(News::Event(event)) => self.handle(session, event)?,
                Some(News::Loss(loss)) => self.handle_loss(session, loss)?,
                None => {}
            }
        }
    }

    /// Aborts commands that take too long, and closes a connection that does not answer the abort.
    fn check_deadlines(&mut self, session: &mut Session) {
        let now = time::now();
        if session.management.values().any(|(_, deadline)| *deadline <= now) {
            // The initiator does not know which connection failed, so it closes them one after another.
            if let Some(connection) = session.link.quietest() {
                session.link.give_up(connection);
            }
            let later = now + MANAGEMENT_LIMIT;
            session.management.values_mut().for_each(|(_, deadline)| *deadline = later);
            return;
        }
        let late =
            session.open.iter().filter(|(_, open)| open.deadline <= now && !open.is_aborting);
        let late: Vec<u64> = late.map(|(&token, _)| token).collect();
        for token in late {
            self.manage(session, TaskManagement::AbortTask(Token(token)));
        }
    }

    /// Sends a command or request when its time has come.
    async fn step(&mut self, session: &mut Session) {
        let think = if self.rng.chance(60) { 0 } else { self.rng.below(50) };
        session.next_step = time::now() + Duration::from_millis(think);
        if self.rng.chance(1) {
            // During the pause the initiator does not receive.
            self.pause(5_000).await;
        }
        let sets = session.management.values();
        let ends_many = |one: &TaskManagement| !matches!(one, TaskManagement::AbortTask(_));
        if { sets }.any(|(one, _)| ends_many(one)) {
            // The outcome of a command that is sent now would be unknown: the function may end it or not.
            session.next_step = time::now() + Duration::from_millis(100);
            return;
        }
        if self.rng.chance(self.world.plan.management_percent) {
            let request = self.some_management(session);
            return self.manage(session, request);
        }
        if self.rng.chance(2) {
            session.link.machine.ping(Token(0));
        }
        if self.rng.chance(1) && session.link.machine.connections().count() > 1 {
            self.let_one_go(session);
        }
        if session.open.len() < self.depth && session.link.machine.window() > 0 {
            let command = self.world.command(&self.taste, self.number, &mut self.rng);
            self.send(session, command);
        } else {
            session.next_step = time::now() + Duration::from_millis(5);
        }
    }

    pub(crate) fn send(&mut self, session: &mut Session, command: Command) {
        let position = CommandPosition {
            nexus: self.number,
            session: session.number,
            number: session.sent,
            is_ordered: command.attribute == TaskAttribute::Ordered,
            is_head: command.attribute == TaskAttribute::HeadOfQueue,
        };
        let request = command.request(&session.link.machine);
        let (writes, action) = (command.writes(), command.action());
        let operation = self.world.model.borrow_mut().begin(command.disk, position, writes, action);
        self.next_token += 1;
        let token = self.next_token;
        self.note(format_args!("{operation} is {token}: {command:?}"));
        let sent = session.link.machine.command(request, Token(token));
        assert!(sent.is_ok(), "the window was open");
        let deadline = time::now() + COMMAND_LIMIT;
        let open = Open { operation, command, deadline, is_aborting: false };
        session.open.insert(token, open);
        session.sent += 1;
        self.left = self.left.saturating_sub(1);
        self.world.issued();
    }

    fn some_management(&mut self, session: &Session) -> TaskManagement {
        let disks = self.world.plan.natures.len() as u64;
        let lun = Lun(self.rng.below(disks) as u16).to_wire();
        let task = self.rng.below(session.open.len() as u64) as usize;
        match (self.rng.below(100), session.open.keys().nth(task)) {
            (..50, Some(&token)) => TaskManagement::AbortTask(Token(token)),
            (..65, _) => TaskManagement::AbortTaskSet(lun),
            (..75, _) => TaskManagement::ClearTaskSet(lun),
            (..94, _) => TaskManagement::LogicalUnitReset(lun),
            (..98, _) => TaskManagement::TargetWarmReset,
            _ => TaskManagement::TargetColdReset,
        }
    }

    fn manage(&mut self, session: &mut Session, request: TaskManagement) {
        let aborted = match request {
            TaskManagement::AbortTask(Token(token)) => session.open.get_mut(&token),
            _ => None,
        };
        if aborted.as_ref().is_some_and(|open| open.is_aborting) {
            return;
        }
        self.next_token += 1;
        let token = self.next_token;
        let is_sent = session.link.machine.task_management(request, Token(token));
        if let Some(open) = aborted {
            open.is_aborting = is_sent;
            // From now on the deadline is that of the function. After the loss of its connection, the command is
            // aborted again over another connection.
            open.deadline = time::now() + MANAGEMENT_LIMIT / 5;
        }
        self.note(format_args!("{token}: {request:?}, {}", if is_sent { "sent" } else { "not" }));
        if is_sent {
            session.management.insert(token, (request, time::now() + MANAGEMENT_LIMIT));
        }
    }

    pub(crate) fn handle(&mut self, session: &mut Session, event: Event) -> Result<(), Lost> {
        match event {
            Event::Completed(completion) => {
                let token = completion.token.0;
                let Some(open) = session.open.remove(&token) else {
                    panic!("{}: command {token} was answered again", self.name)
                };
                let finished = self.finish(&open, &completion);
                self.world.hold(finished);
            }
            Event::Aborted { token } => {
                let Some(open) = session.open.remove(&token.0) else {
                    panic!("{}: command {token:?} ended again", self.name)
                };
                self.note(format_args!("{} was aborted", open.operation));
                let mut model = self.world.model.borrow_mut();
                self.world.hold(model.end(open.operation, Outcome::Unknown));
            }
            Event::TaskManagementDone { token, response } => {
                let done = session.management.remove(&token.0);
                self.note(format_args!("{token:?} was answered: {response:?}"));
                let is_abort = matches!(done, Some((TaskManagement::AbortTask(_), _)));
                match response {
                    TaskManagementResponse::FunctionComplete => {}
                    TaskManagementResponse::TaskDoesNotExist if is_abort => {}
                    _ => panic!("{}: {done:?} was answered with {response:?}", self.name),
                }
            }
            Event::Lost { token } => {
                self.note(format_args!("{token:?} went down with its connection"));
                if let Some((TaskManagement::AbortTask(aborted), _)) =
                    session.management.remove(&token.0)
                    && let Some(open) = session.open.get_mut(&aborted.0)
                {
                    open.is_aborting = false;
                    open.deadline = time::now() + MANAGEMENT_LIMIT / 5;
                    session.has_lost_abort = true;
                }
            }
            Event::Rejected { reason, .. } => {
                self.note(format_args!("a PDU was rejected: {reason:?}"));
                assert!(session.is_guarded, "{}: rejected: {reason:?}", self.name);
                // Only commands and their data have data segments.
                let is_mended = session.level > 0 && self.weather.spares_headers;
                assert!(!is_mended, "{}: rejected: {reason:?}", self.name);
                // At level 0 the session starts again.
                return Err(Lost::Silence);
            }
            Event::Left { connection } => {
                self.world.count(format_args!("connections logged out alone"));
                session.link.give_up(connection);
            }
            Event::Joined { connection } => self.note_joined(session, connection),
            Event::Removed { connection } => self.note_removed(session, connection),
            Event::AsyncMessage { event, .. } => {
                self.note(format_args!("told of {event:?}"));
                // The target sends the message over each of several connections.
                if event == AsyncEvent::LogoutRequest && !session.is_asked_to_go {
                    session.is_asked_to_go = self.rng.chance(50);
                }
            }
            event => self.note(format_args!("{event:?}")),
        }
        Ok(())
    }

    /// Compares the result of a command with the model.
    fn finish(&mut self, open: &Open, completion: &Completion) -> Result<(), Violation> {
        let Open { operation, command, .. } = open;
        let operation = *operation;
        let outcome = command.outcome(completion)?;
        self.note(format_args!("{operation} ended: {outcome:?}"));
        self.world.ended();
        self.world.count_end(command, outcome);
        let mut model = self.world.model.borrow_mut();
        let is_done = matches!(outcome, Outcome::Done { .. });
        match command.kind {
            CommandKind::Read if is_done => {
                let data = completion.data.as_deref().unwrap_or_default();
                let length = command.block_count as usize * stamp::BLOCK;
                if data.len() != length || completion.residual != Residual::None {
                    let (got, residual) = (data.len(), completion.residual);
                    let what = format!("{command:?} gave {got} bytes of {length}, {residual:?}");
                    return Err(Violation(what));
                }
                for (lba, content) in (command.lba..).zip(data.chunks_exact(stamp::BLOCK)) {
                    model.found(operation, lba, content)?;
                }
            }
            CommandKind::Swap { expected } if is_done => {
                let content = stamp::block(command.lba, expected);
                model.found(operation, command.lba, &content)?;
                model.swapped(operation, command.lba, expected)?;
            }
            CommandKind::Swap { expected } if is_miscompare(completion) => {
                model.missed(operation, command.lba, expected)?;
            }
            CommandKind::Flush if is_done => {
                model.flushed(operation, command.lba, command.block_count);
            }
            _ => {}
        }
        model.end(operation, outcome)
    }

    /// Ends the session, in most cases gracefully.
    async fn leave(&mut self, session: &mut Session) -> Result<(), Lost> {
        if self.rng.chance(20) {
            // This initiator behaves like a killed process.
            return Err(Lost::Silence);
        }
        session.link.machine.logout(Token(0));
        let deadline = time::now() + LOGIN_LIMIT;
        while let Some(news) = session.link.turn(deadline).await {
            match news {
                News::Event(Event::LoggedOut { response: LogoutResponse::Closed }) => {
                    if session.is_asked_to_go {
                        self.world.count(format_args!("logouts that were asked for"));
                    }
                    return Ok(());
                }
                News::Event(Event::LoggedOut { response }) => {
                    panic!("{}: the logout was answered with {response:?}", self.name)
                }
                News::Event(Event::Lost { token: Token(0) }) => return Err(Lost::Silence),
                News::Event(event) => self.handle(session, event)?,
                // The target closes the other connections before it answers.
                News::Loss(loss) if session.link.is_bare() => return Err(loss.why),
                News::Loss(_) => {}
            }
        }
        Err(Lost::Silence)
    }
}
