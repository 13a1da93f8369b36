//! An initiator: sessions one after another, in each of them commands of all kinds, and whatever
//! ends badly is begun again.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::dice::Dice;
use sarsen_io::time;
use sarsen_proto::iscsi::initiator::{
    Completion, ConnectionError, DigestOffer, Event, LoginError, LoginOptions, Residual,
    SessionTarget, TaskAttribute, TaskManagement, Token,
};
use sarsen_scsi::Lun;
use sarsen_wire::iscsi::{Isid, LogoutResponse, TaskManagementResponse};

use crate::command::{Command, Kind, Taste, is_miscompare};
use crate::link::{Link, Lost};
use crate::model::{Outcome, Place, Violation};
use crate::network::Weather;
use crate::server::TARGET;
use crate::stamp;
use crate::world::{Mutation, World};

/// A login or logout is given up after so long.
const LOGIN_LIMIT: Duration = Duration::from_secs(20);
/// A command is aborted after so long.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// A connection that does not answer a task management function is given up after so long.
const MANAGEMENT_LIMIT: Duration = Duration::from_secs(25);

/// A command that was sent.
struct Open {
    operation: u64,
    command: Command,
    deadline: Instant,
    is_aborting: bool,
}

/// See the module.
pub(crate) struct Initiator {
    world: Rc<World>,
    name: String,
    isid: Isid,
    dice: Dice,
    weather: Weather,
    taste: Taste,
    depth: usize,
    /// Commands that are to be sent yet.
    left: u64,
    next_token: u64,
    /// What the sessions before this one left open.
    stale: Vec<u64>,
}

/// One session's state.
struct Session {
    number: u64,
    link: Link,
    open: BTreeMap<u64, Open>,
    management: BTreeMap<u64, (TaskManagement, Instant)>,
    /// Commands that were sent in it.
    sent: u64,
    next_step: Instant,
    /// After so many commands it is over.
    limit: u64,
    /// What changes on the way is noticed.
    is_guarded: bool,
}

impl Initiator {
    pub(crate) fn new(world: Rc<World>, number: u8, mut dice: Dice) -> Self {
        Self {
            name: format!("iqn.2026-11.test:initiator-{number}"),
            isid: Isid([0x80, 0, 0, 0, 0, number]),
            weather: world.plan.weather.clone(),
            taste: Taste::draw(&mut dice),
            depth: 1 + dice.below(24) as usize,
            left: world.plan.commands_each,
            next_token: 0,
            stale: Vec::new(),
            world,
            dice,
        }
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.world.note(&self.name, what);
    }

    async fn pause(&mut self, limit_ms: u64) {
        let pause = Duration::from_millis(self.dice.below(limit_ms));
        time::sleep_until(time::now() + pause).await;
    }

    /// Sends all commands, in as many sessions as it takes. Gives those of which it does not know how
    /// they ended.
    pub(crate) async fn run(mut self) -> Vec<u64> {
        while self.left > 0 {
            if self.dice.chance(10) {
                let lost = self.discover().await;
                self.note(format_args!("discovery: {lost:?}"));
            }
            let end = self.session().await;
            self.note(format_args!("the session ended: {end:?}"));
            if let Err(Lost::Machine(error)) = end {
                self.judge(error);
            }
            self.pause(2_000).await;
        }
        self.stale
    }

    /// Whether the target may have caused this.
    fn judge(&self, error: ConnectionError) {
        let may_flip = self.weather.flips_per_mille > 0;
        match error {
            ConnectionError::Login(LoginError::Unavailable { .. }) => {}
            ConnectionError::DataDigest(_) | ConnectionError::Framing(_) if may_flip => {}
            error => panic!("{}: {error}", self.name),
        }
    }

    fn options(&mut self, target: SessionTarget) -> LoginOptions {
        let dice = &mut self.dice;
        let mut options = LoginOptions::new(self.name.clone(), target, self.isid);
        let burst = |dice: &mut Dice| 512 << dice.below(10);
        options.initial_r2t = dice.chance(50);
        options.immediate_data = dice.chance(50);
        options.max_burst_length = burst(dice);
        options.first_burst_length = burst(dice);
        options.max_recv_data_segment_length = burst(dice);
        options.max_outstanding_r2t = 1 + dice.below(8) as u32;
        let digest = |dice: &mut Dice| match dice.below(3) {
            0 => DigestOffer::None,
            1 => DigestOffer::Prefer,
            _ => DigestOffer::Require,
        };
        options.header_digest = digest(dice);
        options.data_digest = digest(dice);
        match self.world.mutation {
            Some(Mutation::FlipsUnnoticed) => {
                options.header_digest = DigestOffer::Require;
                options.data_digest = DigestOffer::None;
            }
            _ if self.weather.flips_per_mille > 0 && dice.chance(70) => {
                options.header_digest = DigestOffer::Require;
                options.data_digest = DigestOffer::Require;
            }
            _ => {}
        }
        options
    }

    /// A connection that has logged in, and whether flips on it are noticed.
    async fn log_in(&mut self, target: SessionTarget) -> Result<(Link, bool), Lost> {
        let options = self.options(target);
        let required = [options.header_digest, options.data_digest] == [DigestOffer::Require; 2];
        let is_guarded = required || self.world.mutation == Some(Mutation::FlipsUnnoticed);
        let side = self.world.server.connect(&mut self.dice, &self.weather).await;
        let side = side.map_err(|error| Lost::Stream(error.kind()))?;
        let mut link = Link::new(side, options);
        let deadline = time::now() + LOGIN_LIMIT;
        loop {
            match link.turn(deadline).await? {
                Some(Event::LoggedIn) => break,
                Some(Event::SecurityPassed) => {}
                Some(event) => panic!("{}: {event:?} during the login", self.name),
                None => return Err(Lost::Silence),
            }
        }
        if is_guarded {
            link.allow_flips();
        }
        Ok((link, is_guarded))
    }

    /// Looks which targets there are.
    async fn discover(&mut self) -> Result<(), Lost> {
        let (mut link, _) = self.log_in(SessionTarget::Discovery).await?;
        link.machine.text(b"SendTargets=All\0", Token(1));
        let deadline = time::now() + LOGIN_LIMIT;
        loop {
            match link.turn(deadline).await? {
                Some(Event::TextDone { text, .. }) => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    assert!(text.contains(TARGET), "SendTargets was answered with {text:?}");
                    link.machine.logout();
                }
                Some(Event::LoggedOut { .. }) => return Ok(()),
                Some(_) => {}
                None => return Err(Lost::Silence),
            }
        }
    }

    /// A session from its login to its end. In order that is a logout.
    async fn session(&mut self) -> Result<(), Lost> {
        let (link, is_guarded) = self.log_in(SessionTarget::Named(TARGET.into())).await?;
        // RFC 7143 §6.3.5: what was left of the session before this one has ended.
        self.forget_stale();
        let limit = if self.dice.chance(50) { u64::MAX } else { 1 + self.dice.below(60) };
        let mut session = Session {
            number: self.world.next_session(),
            link,
            open: BTreeMap::new(),
            management: BTreeMap::new(),
            sent: 0,
            next_step: time::now(),
            limit,
            is_guarded,
        };
        self.note(format_args!("session {}", session.number));
        let end = self.work(&mut session).await;
        self.stale.extend(session.open.values().map(|open| open.operation));
        if end.is_ok() {
            // They ended before the logout was answered.
            self.forget_stale();
        }
        end
    }

    fn forget_stale(&mut self) {
        let mut model = self.world.model.borrow_mut();
        for operation in self.stale.drain(..) {
            self.world.hold(model.end(operation, Outcome::Unknown));
        }
    }

    async fn work(&mut self, session: &mut Session) -> Result<(), Lost> {
        loop {
            let is_over = self.left == 0 || session.sent >= session.limit;
            if is_over && (session.open.is_empty() || self.dice.chance(3)) {
                return self.leave(session).await;
            }
            self.check_deadlines(session)?;
            if !is_over && time::now() >= session.next_step {
                self.step(session).await;
            }
            let deadlines = session.open.values().map(|open| open.deadline);
            let deadlines = deadlines.chain(session.management.values().map(|(_, limit)| *limit));
            let mut deadline = deadlines.min().unwrap_or(time::now() + LOGIN_LIMIT);
            if !is_over && session.open.len() < self.depth {
                deadline = deadline.min(session.next_step);
            }
            if let Some(event) = session.link.turn(deadline).await? {
                self.handle(session, event)?;
            }
        }
    }

    /// Aborts what takes too long, and gives up a connection that does not even answer that.
    fn check_deadlines(&mut self, session: &mut Session) -> Result<(), Lost> {
        let now = time::now();
        if session.management.values().any(|(_, deadline)| *deadline <= now) {
            return Err(Lost::Silence);
        }
        let late =
            session.open.iter().filter(|(_, open)| open.deadline <= now && !open.is_aborting);
        let late: Vec<u64> = late.map(|(&token, _)| token).collect();
        for token in late {
            self.manage(session, TaskManagement::AbortTask(Token(token)));
        }
        Ok(())
    }

    /// Sends something, if the time is right.
    async fn step(&mut self, session: &mut Session) {
        let think = if self.dice.chance(60) { 0 } else { self.dice.below(50) };
        session.next_step = time::now() + Duration::from_millis(think);
        if self.dice.chance(1) {
            // It does not even look at what it receives.
            self.pause(5_000).await;
        }
        let sets = session.management.values();
        let ends_many = |one: &TaskManagement| !matches!(one, TaskManagement::AbortTask(_));
        if { sets }.any(|(one, _)| ends_many(one)) {
            // What is sent now would be ended by it or not: nobody could tell.
            session.next_step = time::now() + Duration::from_millis(100);
            return;
        }
        if self.dice.chance(self.world.plan.management_percent) {
            let request = self.some_management(session);
            return self.manage(session, request);
        }
        if self.dice.chance(2) {
            session.link.machine.ping(Token(0));
        }
        if session.open.len() < self.depth && session.link.machine.window() > 0 {
            let command = self.world.command(&self.taste, &mut self.dice);
            self.send(session, command);
        } else {
            session.next_step = time::now() + Duration::from_millis(5);
        }
    }

    fn send(&mut self, session: &mut Session, command: Command) {
        let place = Place {
            session: session.number,
            number: session.sent,
            is_ordered: command.attribute == TaskAttribute::Ordered,
            is_head: command.attribute == TaskAttribute::HeadOfQueue,
        };
        let request = command.request(&session.link.machine);
        let operation = self.world.model.borrow_mut().begin(command.disk, place, command.writes());
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
        let lun = Lun(self.dice.below(disks) as u16).to_wire();
        let task = self.dice.below(session.open.len() as u64) as usize;
        match (self.dice.below(100), session.open.keys().nth(task)) {
            (..50, Some(&token)) => TaskManagement::AbortTask(Token(token)),
            (..65, _) => TaskManagement::AbortTaskSet(lun),
            (..75, _) => TaskManagement::ClearTaskSet(lun),
            (..94, _) => TaskManagement::LogicalUnitReset(lun),
            (..98, _) => TaskManagement::TargetWarmReset,
            _ => TaskManagement::TargetColdReset,
        }
    }

    fn manage(&mut self, session: &mut Session, request: TaskManagement) {
        if let TaskManagement::AbortTask(Token(token)) = request
            && let Some(open) = session.open.get_mut(&token)
        {
            if open.is_aborting {
                return;
            }
            open.is_aborting = true;
            // From here on it is the function that has to be answered in time.
            open.deadline = time::now() + 2 * MANAGEMENT_LIMIT;
        }
        self.next_token += 1;
        let token = self.next_token;
        self.note(format_args!("{token}: {request:?}"));
        if session.link.machine.task_management(request, Token(token)) {
            session.management.insert(token, (request, time::now() + MANAGEMENT_LIMIT));
        }
    }

    fn handle(&mut self, session: &mut Session, event: Event) -> Result<(), Lost> {
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
            Event::Rejected { reason, .. } => {
                self.note(format_args!("a PDU was rejected: {reason:?}"));
                assert!(session.is_guarded, "{}: rejected: {reason:?}", self.name);
                // At level 0 the session starts anew.
                return Err(Lost::Silence);
            }
            Event::AsyncMessage { event, .. } => self.note(format_args!("told of {event:?}")),
            event => self.note(format_args!("{event:?}")),
        }
        Ok(())
    }

    /// Holds the end of a command against the model.
    fn finish(&mut self, open: &Open, completion: &Completion) -> Result<(), Violation> {
        let Open { operation, command, .. } = open;
        let operation = *operation;
        let outcome = command.outcome(completion)?;
        self.note(format_args!("{operation} ended: {outcome:?}"));
        self.world.ended();
        let mut model = self.world.model.borrow_mut();
        let is_done = matches!(outcome, Outcome::Done { .. });
        match command.kind {
            Kind::Read if is_done => {
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
            Kind::Swap { expected } if is_done => {
                let content = stamp::block(command.lba, expected);
                model.found(operation, command.lba, &content)?;
                model.swapped(operation, command.lba, expected)?;
            }
            Kind::Swap { expected } if is_miscompare(completion) => {
                model.missed(operation, command.lba, expected)?;
            }
            Kind::Flush if is_done => {
                model.flushed(operation, command.lba, command.block_count);
            }
            _ => {}
        }
        model.end(operation, outcome)
    }

    /// Ends the session, mostly in order.
    async fn leave(&mut self, session: &mut Session) -> Result<(), Lost> {
        if self.dice.chance(20) {
            // Like a process that was killed.
            return Err(Lost::Silence);
        }
        session.link.machine.logout();
        let deadline = time::now() + LOGIN_LIMIT;
        while let Some(event) = session.link.turn(deadline).await? {
            match event {
                Event::LoggedOut { response: LogoutResponse::Closed } => return Ok(()),
                Event::LoggedOut { response } => {
                    panic!("{}: the logout was answered with {response:?}", self.name)
                }
                event => self.handle(session, event)?,
            }
        }
        Err(Lost::Silence)
    }

    /// Reads all disks, which nothing keeps it from, and holds every block against the model.
    pub(crate) async fn verify(mut self) {
        self.weather = Weather::fair();
        let (link, is_guarded) =
            self.log_in(SessionTarget::Named(TARGET.into())).await.expect("nothing is in the way");
        let number = self.world.next_session();
        let (open, management) = (BTreeMap::new(), BTreeMap::new());
        let (next_step, limit) = (time::now(), u64::MAX);
        let mut session =
            Session { number, link, open, management, sent: 0, next_step, limit, is_guarded };
        let disks: Vec<u64> = self.world.plan.natures.iter().map(|one| one.block_count).collect();
        for (disk, block_count) in disks.into_iter().enumerate() {
            // The unit attentions of a new session, of which there are not more.
            for kind in [Kind::TestUnitReady, Kind::TestUnitReady, Kind::TestUnitReady, Kind::Read]
            {
                let command = Command {
                    kind,
                    disk,
                    lba: 0,
                    block_count,
                    is_durable: false,
                    attribute: TaskAttribute::Simple,
                    stamp: stamp::ZERO,
                };
                let is_read = kind == Kind::Read;
                self.send(&mut session, command);
                while !session.open.is_empty() {
                    let event = session.link.turn(time::now() + COMMAND_LIMIT).await;
                    let event = event.expect("nothing is in the way").expect("in time");
                    if let Event::Completed(completion) = &event {
                        assert!(completion.is_good() || !is_read, "{completion:?}");
                    }
                    self.handle(&mut session, event).expect("nothing is in the way");
                }
            }
        }
        session.link.machine.logout();
        while !session.link.machine.is_logged_out() {
            let event = session.link.turn(time::now() + LOGIN_LIMIT).await;
            event.expect("nothing is in the way").expect("in time");
        }
    }
}
