//! An initiator that logs in with right, wrong and no credentials, lists its units, and reads and writes. Each result
//! is compared with the rules that were in force during the operation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sarsen_block::Buffer;
use sarsen_block::Rng;
use sarsen_initiator::{Algorithm, Sense, SenseKey};
use sarsen_io::time;
use sarsen_proto::iscsi::chap::{self, Challenge, Secret};
use sarsen_proto::iscsi::initiator::{
    Authentication, CommandRequest, Completion, ConnectionError, Event, LoginError, LoginOptions,
    ReadLanding, SessionTarget, TargetProof, TaskAttribute, Token, Transfer,
};
use sarsen_scsi::Lun;
use sarsen_wire::iscsi::{Isid, LoginStatus};
use sarsen_wire::scsi::cdb::{Inquiry, ReportLuns};
use sarsen_wire::scsi::opcode;
use zerocopy::FromZeros;

use super::rules::{Answer, Attempt, Credentials, Unit, View};
use super::{World, draw};
use crate::command::{block_10, padded};
use crate::link::{Link, Lost, News};
use crate::stamp;

/// A running server answers within this time.
const LIMIT: Duration = Duration::from_secs(30);
/// After a change, a session may continue for this time before its termination.
const TERMINATION: Duration = Duration::from_millis(500);
/// Maximum number of consecutive unit attentions of a command.
const ATTENTIONS_MAX: usize = 20;
/// Number of blocks that are read and written.
const SPAN: u64 = 8;
/// Maximum length of a command's data.
const LENGTH: u32 = 4_096;

/// The result of a login.
enum Login {
    Done(Box<Link>),
    Denied(LoginStatus),
    /// The initiator ended the login.
    Mistrusted,
    Lost,
}

/// A session that ended before its logout.
struct Ended;

/// The kind of a command.
#[derive(Clone, Copy, Debug)]
enum CommandKind {
    ReportLuns,
    Serial(u16),
    Read(u16, u64),
    Write(u16, u64),
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Luns(BTreeSet<u16>),
    Serial(String),
    Done,
    ReadOnly,
    NoUnit,
}

struct Session {
    number: u64,
    attempt: Attempt,
    link: Box<Link>,
    since: Instant,
    next_token: u64,
    is_asked_to_go: bool,
}

impl Session {
    /// Returns the time since which rules may decide on a command that begins now.
    fn views_since(&self, begun: Instant) -> Instant {
        self.since.max(begun.checked_sub(TERMINATION).unwrap_or(begun))
    }
}

/// The initiator (see the module).
pub(super) struct Client {
    world: Rc<World>,
    name: String,
    rng: Rng,
}

impl Client {
    pub(super) fn new(world: Rc<World>, name: String, rng: Rng) -> Self {
        Self { world, name, rng }
    }

    fn note(&self, what: fmt::Arguments<'_>) {
        self.world.note(&self.name, what);
    }

    async fn pause(&mut self, limit_ms: u64) {
        let pause = Duration::from_millis(self.rng.below(limit_ms));
        time::sleep_until(time::now() + pause).await;
    }

    /// Logs in repeatedly until the seed's steps are complete.
    pub(super) async fn run(mut self) {
        while !self.world.is_over() {
            let count = self.rng.below(12);
            self.try_once(count).await;
            self.pause(250).await;
        }
    }

    /// Tries to log in, and sends `count` commands.
    pub(super) async fn try_once(&mut self, count: u64) {
        let attempt = draw::attempt(&mut self.rng, self.world.history.current().document());
        let (number, begun) = (self.world.next_number(), time::now());
        let life = self.world.server.life();
        self.note(format_args!("{number}: {attempt:?}"));
        self.world.history.begin(number, &attempt);
        let login = self.log_in(number, &attempt).await;
        if life != self.world.server.life() {
            self.note(format_args!("{number}: the server has started again"));
            return;
        }
        self.check_login(number, &attempt, &login, begun);
        let Login::Done(link) = login else {
            self.world.history.end(number);
            return;
        };
        self.world.history.establish(number);
        let since = time::now();
        let mut session =
            Session { number, attempt, link, since, next_token: 0, is_asked_to_go: false };
        let end = match session.attempt.target {
            Some(_) => self.use_units(&mut session, count).await,
            None => self.list_targets(&mut session).await,
        };
        if end.is_err() {
            let may_end = life != self.world.server.life()
                || self.world.history.may_have_ended(&session.attempt, begun);
            assert!(may_end, "{}: the server ended {:?} for no reason", self.name, session.attempt);
            self.world.count("sessions that were terminated");
        }
        self.note(format_args!("{number}: over"));
        if life == self.world.server.life() {
            self.world.history.end(number);
        }
    }

    fn options(&mut self, number: u64, attempt: &Attempt) -> LoginOptions {
        let target = match &attempt.target {
            Some(name) => SessionTarget::Named(name.clone()),
            None => SessionTarget::Discovery,
        };
        let [.., a, b, c] = number.to_be_bytes();
        let isid = Isid([0x80, 0, 0, a, b, c]);
        let mut options = LoginOptions::new(attempt.initiator.clone(), target, isid);
        let credentials = |one: &Credentials| chap::Credentials {
            name: one.name.clone(),
            secret: Secret(one.secret.clone()),
        };
        let mut random = [0; 1 + chap::CHALLENGE_LENGTH];
        random.iter_mut().for_each(|byte| *byte = self.rng.bits() as u8);
        let challenge = Challenge::new(random);
        options.authentication = attempt.proof.as_ref().map(|proof| Authentication {
            credentials: credentials(proof),
            algorithms: Algorithm::ALL.to_vec(),
            target: attempt
                .expects
                .as_ref()
                .map(|expected| TargetProof { credentials: credentials(expected), challenge }),
        });
        options
    }

    async fn log_in(&mut self, number: u64, attempt: &Attempt) -> Login {
        let options = self.options(number, attempt);
        let Some(side) = self.world.server.connect(attempt.address, attempt.portal) else {
            return Login::Lost;
        };
        let mut link = Link::new(side, options, self.world.server.life());
        let deadline = time::now() + LIMIT;
        loop {
            let loss = match link.turn(deadline).await {
                Some(News::Event(Event::LoggedIn)) => return Login::Done(Box::new(link)),
                Some(News::Event(Event::SecurityPassed)) => continue,
                Some(News::Event(event)) => panic!("{}: {event:?} during the login", self.name),
                Some(News::Loss(loss)) => loss.why,
                None => return Login::Lost,
            };
            let Lost::Machine(ConnectionError::Login(error)) = loss else {
                assert!(!matches!(loss, Lost::Machine(_)), "{}: {loss:?}", self.name);
                return Login::Lost;
            };
            return match error {
                LoginError::Denied { status, .. }
                | LoginError::NotFound { status }
                | LoginError::Unavailable { status }
                | LoginError::Refused { status } => Login::Denied(status),
                LoginError::Authentication(_) => Login::Mistrusted,
                error => panic!("{}: {error}", self.name),
            };
        }
    }

    /// Checks the result of a login against the rules.
    fn check_login(&self, number: u64, attempt: &Attempt, login: &Login, begun: Instant) {
        let (history, now) = (&self.world.history, time::now());
        let versions = history.during(begun, now);
        let answers: Vec<Answer> = versions.iter().map(|rules| rules.login(attempt)).collect();
        let is_settled = history.is_settled(begun, now);
        // If a login began before a change and ended after it, either set of rules may have decided each part.
        let is_mixed = versions.len() > 1;
        let is_proven = versions.iter().any(|rules| rules.knows(attempt.proof.as_ref()));
        let is_permitted = answers.iter().any(|answer| matches!(answer, Answer::Permitted(_)))
            || is_mixed
                && is_proven
                && versions.iter().any(|rules| rules.session(attempt).is_some());
        let limits = versions.iter().map(|rules| rules.sessions_per_target());
        let limits: Vec<u64> = limits.filter(|_| attempt.target.is_some()).collect();
        let (least, most) = history.neighbours(number, begun);
        if is_permitted {
            history.note_permission(attempt);
        }
        let is_right = match login {
            Login::Done(_) => {
                let limit = limits.iter().max().copied().unwrap_or(u64::MAX);
                is_permitted && least < limit
            }
            Login::Denied(LoginStatus::OutOfResources) => {
                !is_settled || limits.iter().any(|limit| most >= *limit)
            }
            Login::Denied(status) => {
                let is_said = |answer: &Answer| match answer {
                    Answer::Denied(LoginStatus::AuthenticationFailure) => {
                        *status == LoginStatus::AuthenticationFailure || is_mixed
                    }
                    Answer::Denied(said) => {
                        let is_revocation =
                            *status == LoginStatus::AuthorizationFailure && history.was_in(attempt);
                        said == status || is_revocation || is_mixed
                    }
                    _ => false,
                };
                !is_settled || answers.iter().any(is_said)
            }
            Login::Mistrusted => is_mixed || answers.contains(&Answer::Mistrusted),
            Login::Lost => !is_settled,
        };
        let what = match login {
            Login::Done(_) => "logged in".to_owned(),
            Login::Denied(status) => format!("{status:?}"),
            Login::Mistrusted => "the target was not trusted".to_owned(),
            Login::Lost => "no answer".to_owned(),
        };
        self.note(format_args!("{number}: {what}"));
        self.world.count(&format!("logins: {what}"));
        if let (Login::Done(_), None) = (login, &attempt.target) {
            self.world.count("discovery sessions");
        }
        if let (Login::Done(_), Some(_)) = (login, &attempt.expects) {
            self.world.count("logins in which both sides authenticated themselves");
        }
        assert!(
            is_right,
            "{}: {attempt:?} ended with {what}, and the rules say {answers:?}, with {least} to {most} other sessions \
             of {limits:?}",
            self.name
        );
    }

    /// Requests the list of all targets.
    async fn list_targets(&mut self, session: &mut Session) -> Result<(), Ended> {
        let begun = time::now();
        session.link.machine.text(b"SendTargets=All\0", Token(1));
        loop {
            match self.event(session).await? {
                Event::TextDone { text, .. } => {
                    let found = listed(&String::from_utf8_lossy(&text));
                    let (history, now) = (&self.world.history, time::now());
                    let versions = history.during(begun, now);
                    let expected =
                        versions.iter().map(|rules| rules.send_targets(&session.attempt));
                    let expected: Vec<_> = expected.collect();
                    let is_right = !history.is_settled(begun, now) || expected.contains(&found);
                    assert!(is_right, "SendTargets: {found:?}, and the rules say {expected:?}");
                    self.note(format_args!("{}: {found:?}", session.number));
                    return self.log_out(session).await;
                }
                Event::AsyncMessage { .. } => {}
                event => panic!("{}: {event:?}", self.name),
            }
        }
    }

    /// Inspects all units, and sends `count` commands to some of them.
    async fn use_units(&mut self, session: &mut Session, count: u64) -> Result<(), Ended> {
        self.carry_out(session, CommandKind::ReportLuns).await?;
        let shown: Vec<u16> = self.shown(session).into_iter().flatten().collect();
        for &lun in &shown {
            self.carry_out(session, CommandKind::Serial(lun)).await?;
        }
        for _ in 0..count {
            if session.is_asked_to_go && self.rng.chance(40) {
                break;
            }
            // Some commands go to a unit that may not be visible.
            let lun = match shown.get(self.rng.below(shown.len() as u64) as usize) {
                Some(&lun) if !self.rng.chance(15) => lun,
                _ => self.rng.below(9) as u16,
            };
            let lba = self.rng.below(SPAN);
            let kind = match self.rng.below(100) {
                0..40 => CommandKind::Read(lun, lba),
                40..80 => CommandKind::Write(lun, lba),
                80..92 => CommandKind::Serial(lun),
                _ => CommandKind::ReportLuns,
            };
            self.carry_out(session, kind).await?;
            if self.rng.chance(50) {
                self.pause(150).await;
            }
        }
        if self.rng.chance(15) {
            // This initiator behaves like a killed process.
            return Ok(());
        }
        self.log_out(session).await
    }

    /// Returns the LUNs that the current rules show.
    fn shown(&self, session: &Session) -> Option<Vec<u16>> {
        let view = self.world.history.current().session(&session.attempt)?;
        Some(view.into_keys().collect())
    }

    async fn log_out(&mut self, session: &mut Session) -> Result<(), Ended> {
        self.world.history.end(session.number);
        session.link.machine.logout(Token(0));
        while !session.link.machine.is_logged_out() {
            self.event(session).await?;
        }
        Ok(())
    }

    async fn event(&mut self, session: &mut Session) -> Result<Event, Ended> {
        match session.link.turn(time::now() + LIMIT).await {
            Some(News::Event(event)) => {
                if matches!(event, Event::AsyncMessage { .. }) {
                    session.is_asked_to_go = true;
                }
                Ok(event)
            }
            Some(News::Loss(loss)) => {
                self.note(format_args!("{}: lost: {:?}", session.number, loss.why));
                let is_lawful = !matches!(loss.why, Lost::Machine(_));
                assert!(is_lawful, "{}: {:?}", self.name, loss.why);
                Err(Ended)
            }
            None => Err(Ended),
        }
    }

    /// Carries out a command, and checks its result against the rules.
    async fn carry_out(&mut self, session: &mut Session, kind: CommandKind) -> Result<(), Ended> {
        for _ in 0..ATTENTIONS_MAX {
            let begun = time::now();
            let completion = self.send(session, kind).await?;
            let sense = Sense::of(&completion);
            if sense.is_some_and(|sense| sense.key == SenseKey::UnitAttention) {
                continue;
            }
            let from = session.views_since(begun);
            let (history, now) = (&self.world.history, time::now());
            let views: Vec<Option<View>> = history
                .during(from, now)
                .iter()
                .map(|rules| rules.session(&session.attempt))
                .collect();
            let what = format!("{kind:?} of {:?} ended with {completion:?}", session.attempt);
            let found = self.found(kind, &completion, &views);
            self.note(format_args!("{}: {kind:?}: {found:?}", session.number));
            let expected: Vec<_> =
                views.iter().flatten().map(|view| expected(kind, view)).collect();
            let is_settled = history.is_settled(from, now);
            let is_right = found.as_ref().is_some_and(|found| expected.contains(found));
            assert!(!is_settled || is_right, "{what}, and the rules say {expected:?}");
            if let Some(found) = found {
                self.world.count(match (kind, found) {
                    (_, Found::Done) => "reads and writes",
                    (_, Found::ReadOnly) => "writes that were denied",
                    (_, Found::NoUnit) => "commands to units that are not shown",
                    (_, Found::Luns(_) | Found::Serial(_)) => "looks at what is shown",
                });
            }
            return Ok(());
        }
        panic!("{}: {kind:?} meets one unit attention after another", self.name)
    }

    async fn send(
        &mut self,
        session: &mut Session,
        kind: CommandKind,
    ) -> Result<Completion, Ended> {
        let (lun, cdb, length) = match kind {
            CommandKind::ReportLuns => {
                let mut cdb = ReportLuns::new_zeroed();
                cdb.operation_code = opcode::REPORT_LUNS;
                cdb.allocation_length = LENGTH.into();
                (0, padded(&cdb), LENGTH)
            }
            CommandKind::Serial(lun) => {
                let mut cdb = Inquiry::new_zeroed();
                (cdb.operation_code, cdb.flags, cdb.page_code) = (opcode::INQUIRY, 1, 0x80);
                cdb.allocation_length = (LENGTH as u16).into();
                (lun, padded(&cdb), LENGTH)
            }
            CommandKind::Read(lun, lba) => {
                (lun, block_10(opcode::READ_10, 0, lba, 1), stamp::BLOCK as u32)
            }
            CommandKind::Write(lun, lba) => (lun, block_10(opcode::WRITE_10, 0, lba, 1), 0),
        };
        let transfer = match kind {
            CommandKind::Write(lun, lba) => {
                // During a change, the number may be that of one volume or of another: zeroes are right for both.
                let rules =
                    self.world.history.during(session.views_since(time::now()), time::now());
                let mut serials = rules.iter().map(|rules| {
                    rules.session(&session.attempt)?.get(&lun).map(|unit| unit.serial.clone())
                });
                let serial = serials.next().flatten();
                let is_certain = serials.all(|other| other == serial);
                let data = match serial.filter(|_| is_certain) {
                    Some(serial) => content(&serial, lba),
                    None => [0; stamp::BLOCK].into(),
                };
                let length = data.len() as u32;
                let payload = session.link.machine.payload(Buffer::copy_of(&data));
                Transfer::Write { payload, length }
            }
            _ => Transfer::Read { length, landing: ReadLanding::Buffer },
        };
        let attribute = TaskAttribute::Simple;
        let request = CommandRequest { lun: Lun(lun).to_wire(), cdb, attribute, transfer };
        session.next_token += 1;
        let token = session.next_token;
        let sent = session.link.machine.command(request, Token(token));
        assert!(sent.is_ok(), "one command is in the window");
        loop {
            match self.event(session).await? {
                Event::Completed(completion) => return Ok(completion),
                Event::AsyncMessage { .. } => {}
                event => panic!("{}: {event:?}", self.name),
            }
        }
    }

    /// Returns the result that a completion reports; `None` if no rule permits it.
    fn found(
        &self,
        kind: CommandKind,
        completion: &Completion,
        views: &[Option<View>],
    ) -> Option<Found> {
        let data = completion.data.as_deref().unwrap_or_default();
        match (Sense::of(completion), kind) {
            (None, _) if !completion.is_good() => None,
            (None, CommandKind::ReportLuns) => {
                let luns = data.get(8..).unwrap_or_default().as_chunks().0.iter();
                Some(Found::Luns(luns.filter_map(Lun::from_wire).map(|lun| lun.0).collect()))
            }
            // PERIPHERAL QUALIFIER 011b: no unit has this number.
            (None, CommandKind::Serial(_)) if data.first() == Some(&0x7f) => Some(Found::NoUnit),
            (None, CommandKind::Serial(_)) => {
                let serial = data.get(4..).unwrap_or_default();
                Some(Found::Serial(String::from_utf8_lossy(serial).trim().to_owned()))
            }
            (None, CommandKind::Read(lun, lba)) => {
                let units = views.iter().flatten().filter_map(|view| view.get(&lun));
                let mut contents = units.map(|unit| content(&unit.serial, lba));
                let is_own = data == [0; stamp::BLOCK] || contents.any(|content| content == data);
                assert!(is_own, "{}: {kind:?} gives another volume's data", self.name);
                Some(Found::Done)
            }
            (None, CommandKind::Write(..)) => Some(Found::Done),
            (Some(sense), _) => match (sense.key, sense.asc) {
                (SenseKey::DataProtect, _) => Some(Found::ReadOnly),
                // LOGICAL UNIT NOT SUPPORTED.
                (SenseKey::IllegalRequest, 0x25) => Some(Found::NoUnit),
                // INVALID FIELD IN CDB: such a number has no pages.
                (SenseKey::IllegalRequest, 0x24) if matches!(kind, CommandKind::Serial(_)) => {
                    Some(Found::NoUnit)
                }
                _ => None,
            },
        }
    }
}

/// Returns the result of a command that these rules require.
fn expected(kind: CommandKind, view: &View) -> Found {
    let (CommandKind::Serial(lun) | CommandKind::Read(lun, _) | CommandKind::Write(lun, _)) = kind
    else {
        return Found::Luns(view.keys().copied().collect());
    };
    match (kind, view.get(&lun)) {
        (_, None) => Found::NoUnit,
        (CommandKind::Serial(_), Some(unit)) => Found::Serial(unit.serial.clone()),
        (CommandKind::Write(..), Some(Unit { is_read_only: true, .. })) => Found::ReadOnly,
        (_, Some(_)) => Found::Done,
    }
}

/// Returns the content that is written to a volume; it identifies the volume.
fn content(serial: &str, lba: u64) -> Vec<u8> {
    stamp::block(lba, u64::from_str_radix(serial, 16).unwrap_or_default() >> 1)
}

/// Parses the response to SendTargets.
fn listed(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut targets: Vec<(String, Vec<String>)> = Vec::new();
    for pair in text.split_terminator('\0') {
        match (pair.split_once('='), targets.last_mut()) {
            (Some(("TargetName", name)), _) => targets.push((name.to_owned(), Vec::new())),
            (Some(("TargetAddress", address)), Some((_, all))) => all.push(address.to_owned()),
            _ => panic!("SendTargets was answered with {pair:?}"),
        }
    }
    targets.into_iter().collect()
}
