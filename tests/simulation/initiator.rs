//! An initiator. It opens one session after another, sends commands of all kinds in each, and starts again after each
//! failure. `session` describes its actions within a session, `connections` those on connections.

use std::rc::Rc;
use std::time::Duration;

use sarsen_block::Rng;
use sarsen_io::time;
use sarsen_proto::iscsi::initiator::{
    ConnectionError, DigestOffer, Event, LoginError, LoginOptions, SessionTarget, TaskAttribute,
    Token,
};
use sarsen_wire::iscsi::Isid;

use crate::command::{Command, CommandKind, CommandMix};
use crate::fencing::Action;
use crate::link::{Link, Lost, News};
use crate::model::Outcome;
use crate::network::NetworkTraits;
use crate::server::TARGET;
use crate::session::{COMMAND_LIMIT, Session};
use crate::stamp;
use crate::world::{Mutation, World};

/// Maximum duration of a login or logout.
pub(crate) const LOGIN_LIMIT: Duration = Duration::from_secs(20);
/// Number of attempts of the final check for each disk, and the pause between two attempts.
const READY_ATTEMPTS: u32 = 1000;
const READY_PAUSE: Duration = Duration::from_secs(1);

/// A simulated initiator (see the module).
pub(crate) struct Initiator {
    pub(crate) world: Rc<World>,
    pub(crate) name: String,
    /// Number that identifies the initiator for reservations; its port never changes.
    pub(crate) number: u8,
    pub(crate) rng: Rng,
    pub(crate) weather: NetworkTraits,
    pub(crate) taste: CommandMix,
    pub(crate) depth: usize,
    /// Number of commands that the initiator still has to send.
    pub(crate) left: u64,
    pub(crate) next_token: u64,
    /// Commands that the previous sessions left open.
    pub(crate) stale: Vec<u64>,
}

impl Initiator {
    pub(crate) fn new(world: Rc<World>, number: u8, mut rng: Rng) -> Self {
        Self {
            name: format!("iqn.2026-11.test:initiator-{number}"),
            number,
            weather: world.plan.weather.clone(),
            taste: CommandMix::draw(&mut rng),
            depth: 1 + rng.below(24) as usize,
            left: world.plan.commands_each,
            next_token: 0,
            stale: Vec::new(),
            world,
            rng,
        }
    }

    pub(crate) fn note(&self, what: std::fmt::Arguments<'_>) {
        self.world.note(&self.name, what);
    }

    pub(crate) async fn pause(&mut self, limit_ms: u64) {
        let pause = Duration::from_millis(self.rng.below(limit_ms));
        time::sleep_until(time::now() + pause).await;
    }

    /// Sends all commands, in as many sessions as necessary. Returns the commands with an unknown outcome.
    pub(crate) async fn run(mut self) -> Vec<u64> {
        while self.left > 0 {
            if self.rng.chance(10) {
                let lost = self.discover().await;
                self.note(format_args!("discovery: {lost:?}"));
            }
            let end = self.session().await;
            self.note(format_args!("the session ended: {end:?}"));
            self.pause(2_000).await;
        }
        self.stale
    }

    fn options(&mut self, target: SessionTarget) -> LoginOptions {
        let isid = Isid([0x80, 0, 0, 0, 0, self.number]);
        let rng = &mut self.rng;
        let mut options = LoginOptions::new(self.name.clone(), target, isid);
        let burst = |rng: &mut Rng| 512 << rng.below(10);
        options.initial_r2t = rng.chance(50);
        options.immediate_data = rng.chance(50);
        options.max_burst_length = burst(rng);
        options.first_burst_length = burst(rng);
        options.max_recv_data_segment_length = burst(rng);
        options.max_outstanding_r2t = 1 + rng.below(8) as u32;
        options.max_connections = if rng.chance(40) { 1 } else { 2 + rng.below(3) as u32 };
        options.error_recovery_level = rng.below(3) as u32;
        options.header_digest = draw_digest(rng);
        options.data_digest = draw_digest(rng);
        match self.world.mutation {
            Some(Mutation::FlipsUnnoticed) => {
                options.header_digest = DigestOffer::Require;
                options.data_digest = DigestOffer::None;
            }
            _ if self.weather.flips_per_mille > 0 && rng.chance(70) => {
                options.header_digest = DigestOffer::Require;
                options.data_digest = DigestOffer::Require;
            }
            _ => {}
        }
        options
    }

    /// Returns a connection after its login, and whether both ends detect changed bytes.
    async fn log_in(&mut self, target: SessionTarget) -> Result<(Link, bool), Lost> {
        let options = self.options(target);
        let required = [options.header_digest, options.data_digest] == [DigestOffer::Require; 2];
        let is_guarded = required || self.world.mutation == Some(Mutation::FlipsUnnoticed);
        let side = self.world.server.connect(&mut self.rng, &self.weather, is_guarded).await;
        let side = side.map_err(|error| Lost::Stream(error.kind()))?;
        let mut link = Link::new(side, options, self.world.server.life());
        let deadline = time::now() + LOGIN_LIMIT;
        loop {
            match link.turn(deadline).await {
                Some(News::Event(Event::LoggedIn)) => return Ok((link, is_guarded)),
                Some(News::Event(Event::SecurityPassed)) => {}
                Some(News::Event(event)) => panic!("{}: {event:?} during the login", self.name),
                Some(News::Loss(loss)) => {
                    if let Lost::Machine(error) = &loss.why {
                        let is_busy =
                            matches!(error, ConnectionError::Login(LoginError::Unavailable { .. }));
                        assert!(is_busy, "{}: {error}", self.name);
                    }
                    return Err(loss.why);
                }
                None => return Err(Lost::Silence),
            }
        }
    }

    /// Discovers the targets.
    async fn discover(&mut self) -> Result<(), Lost> {
        let (mut link, is_guarded) = self.log_in(SessionTarget::Discovery).await?;
        link.machine.text(b"SendTargets=All\0", Token(1));
        let deadline = time::now() + LOGIN_LIMIT;
        loop {
            match link.turn(deadline).await {
                Some(News::Event(Event::TextDone { text, .. })) => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    assert!(text.contains(TARGET), "SendTargets was answered with {text:?}");
                    link.machine.logout(Token(0));
                }
                Some(News::Event(Event::LoggedOut { .. })) => return Ok(()),
                Some(News::Event(_)) => {}
                Some(News::Loss(loss)) => {
                    let may_be_changed = is_guarded && self.weather.flips_per_mille > 0;
                    match loss.why {
                        Lost::Machine(error) if !may_be_changed => {
                            panic!("{}: discovery: {error}", self.name)
                        }
                        why => return Err(why),
                    }
                }
                None => return Err(Lost::Silence),
            }
        }
    }

    /// Runs one session from its login to its end. The orderly end is a logout.
    async fn session(&mut self) -> Result<(), Lost> {
        let (link, is_guarded) = self.log_in(SessionTarget::Named(TARGET.into())).await?;
        // RFC 7143 §6.3.5: the tasks of the previous session have ended.
        self.forget_stale();
        let limit = if self.rng.chance(50) { u64::MAX } else { 1 + self.rng.below(60) };
        let mut session = Session::new(&self.world, link, limit, is_guarded);
        self.note(format_args!("session {session}"));
        let end = self.work(&mut session).await;
        self.stale.extend(session.open.values().map(|open| open.operation));
        if end.is_ok() {
            // The open commands ended before the logout response.
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

    /// Reads all disks without faults and compares every block with the model.
    pub(crate) async fn verify(mut self) {
        self.weather = NetworkTraits::fair();
        let (link, is_guarded) =
            self.log_in(SessionTarget::Named(TARGET.into())).await.expect("nothing is in the way");
        let mut session = Session::new(&self.world, link, u64::MAX, is_guarded);
        let disks: Vec<u64> = self.world.plan.natures.iter().map(|one| one.block_count).collect();
        for (disk, block_count) in disks.into_iter().enumerate() {
            let command = |kind| Command {
                kind,
                disk,
                lba: 0,
                block_count,
                is_durable: false,
                attribute: TaskAttribute::Simple,
                stamp: stamp::ZERO,
            };
            let key = self.world.next_stamp();
            // A new session receives a few unit attentions. A unit is not ready until its disk has ended the abandoned
            // commands.
            let mut attempts = 0;
            while self.complete(&mut session, command(CommandKind::TestUnitReady)).await.is_err() {
                attempts += 1;
                assert!(attempts <= READY_ATTEMPTS, "disk {disk} does not become ready");
                time::sleep_until(time::now() + READY_PAUSE).await;
            }
            // Removes all reservations that could prevent the read.
            for action in [Action::Register { key }, Action::Clear { key }] {
                let command = self.world.reservation(disk, action);
                let _ = self.complete(&mut session, command).await;
            }
            let read = self.complete(&mut session, command(CommandKind::Read)).await;
            assert_eq!(read, Ok(()), "disk {disk}");
        }
        session.link.machine.logout(Token(0));
        while !session.link.machine.is_logged_out() {
            let news = session.link.turn(time::now() + LOGIN_LIMIT).await;
            assert!(matches!(news, Some(News::Event(_))), "{news:?}");
        }
    }

    /// Sends one command and waits for its completion, which is the error if the status is not GOOD.
    async fn complete(&mut self, session: &mut Session, command: Command) -> Result<(), String> {
        self.send(session, command);
        let mut result = Ok(());
        while !session.open.is_empty() {
            let news = session.link.turn(time::now() + COMMAND_LIMIT).await;
            let Some(News::Event(event)) = news else { panic!("{news:?}") };
            if let Event::Completed(completion) = &event
                && !completion.is_good()
            {
                result = Err(format!("{completion:?}"));
            }
            self.handle(session, event).expect("nothing is in the way");
        }
        result
    }
}

fn draw_digest(rng: &mut Rng) -> DigestOffer {
    match rng.below(3) {
        0 => DigestOffer::None,
        1 => DigestOffer::Prefer,
        _ => DigestOffer::Require,
    }
}
