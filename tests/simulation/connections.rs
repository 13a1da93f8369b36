//! How an initiator manages the connections of its session. Further connections join. At level 2 the initiator recovers
//! lost connections (RFC 7143 §7.2), in most cases in time.

use std::time::{Duration, Instant};

use sarsen_io::time;
use sarsen_proto::iscsi::Parameters;
use sarsen_proto::iscsi::initiator::{Cid, ConnectionError, LoginError, RecoveryError};
use sarsen_wire::iscsi::LoginStatus;

use crate::initiator::{Initiator, LOGIN_LIMIT};
use crate::link::{Loss, Lost};
use crate::session::Session;

/// The effects of a completed recovery are visible after this time.
const AFTERMATH: Duration = Duration::from_secs(60);
/// Delay after the target's retention time. A recovery that starts so late finds no tasks.
const TOO_LATE: Duration = Duration::from_secs(5);

/// A connection that was lost at level 2.
struct Recovery {
    connection: Cid,
    /// The target keeps the tasks at least until this time.
    kept_until: Instant,
    /// Time of the next attempt, or the deadline of the current attempt.
    next: Instant,
    ended: Option<Instant>,
}

/// The connections of a session (see the module).
pub(crate) struct Connections {
    /// Number of connections that the session needs.
    wanted: usize,
    next_join: Instant,
    wait: Duration,
    retain: Duration,
    /// Logins in progress, with their deadlines.
    logins: Vec<(Cid, Instant)>,
    recoveries: Vec<Recovery>,
    /// Connections whose logout is pending.
    leaving: Vec<Cid>,
    /// A connection may have ended without the machine's knowledge.
    has_lost_any: bool,
}

impl Connections {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Self {
            wanted: parameters.max_connections as usize,
            next_join: time::now(),
            wait: seconds(parameters.default_time2wait),
            retain: seconds(parameters.default_time2retain),
            logins: Vec::new(),
            recoveries: Vec::new(),
            leaving: Vec::new(),
            has_lost_any: false,
        }
    }

    /// Returns whether the target may have discarded tasks because the initiator was late.
    fn is_late(&self) -> bool {
        let now = time::now();
        self.recoveries.iter().any(|recovery| now > recovery.kept_until)
    }
}

impl Initiator {
    /// Joins and recovers connections. Returns the time of the next action.
    pub(crate) async fn keep_connections(
        &mut self,
        session: &mut Session,
    ) -> Result<Option<Instant>, Lost> {
        let now = time::now();
        let late = session.connections.logins.iter().filter(|(_, limit)| *limit <= now);
        for connection in late.map(|(connection, _)| *connection).collect::<Vec<_>>() {
            session.link.give_up(connection);
        }
        session.connections.logins.retain(|(_, limit)| *limit > now);
        let connections = &mut session.connections;
        connections.recoveries.retain(|one| one.ended.is_none_or(|ended| now < ended + AFTERMATH));
        for at in 0..session.connections.recoveries.len() {
            let Recovery { connection, next, ended, .. } = session.connections.recoveries[at];
            if ended.is_none() && next <= now {
                self.recover(session, at, connection).await?;
            }
        }
        if !session.link.machine.is_full_feature() {
            // The last connections were logging out when they were lost.
            return Err(Lost::Silence);
        }
        let present = session.link.machine.connections().count();
        let Connections { wanted, next_join, recoveries, .. } = &session.connections;
        let pending = recoveries.iter().filter(|one| one.ended.is_none());
        let next = pending.clone().map(|one| one.next).min();
        if present + pending.count() >= *wanted {
            return Ok(self.when(session, next));
        }
        if *next_join > now {
            let next = next.into_iter().chain([*next_join]).min();
            return Ok(self.when(session, next));
        }
        self.join(session).await;
        Ok(Some(time::now()))
    }

    fn when(&self, session: &Session, next: Option<Instant>) -> Option<Instant> {
        let logins = session.connections.logins.iter().map(|(_, limit)| *limit);
        logins.chain(next).min()
    }

    async fn join(&mut self, session: &mut Session) {
        let pause = Duration::from_millis(100 + self.rng.below(5_000));
        session.connections.next_join = time::now() + pause;
        let side = self.world.server.connect(&mut self.rng, &self.weather, session.is_guarded);
        let Ok(side) = side.await else { return };
        let Some(connection) = session.link.machine.join(None) else { return };
        self.note(format_args!("{connection:?} is to join"));
        session.link.add(connection, side);
        session.connections.logins.push((connection, time::now() + LOGIN_LIMIT));
    }

    /// Recovers the tasks of a lost connection over another connection or a new connection.
    async fn recover(
        &mut self,
        session: &mut Session,
        at: usize,
        connection: Cid,
    ) -> Result<(), Lost> {
        let machine = &mut session.link.machine;
        if machine.is_being_removed(connection)
            || machine.connections().any(|one| one == connection)
        {
            // The recovery took too long.
            return Err(Lost::Silence);
        }
        session.connections.recoveries[at].next = time::now() + LOGIN_LIMIT;
        if self.rng.chance(60) && machine.remove(connection) {
            self.note(format_args!("{connection:?} is to be removed"));
            return Ok(());
        }
        let side = self.world.server.connect(&mut self.rng, &self.weather, session.is_guarded);
        if let Ok(side) = side.await
            && session.link.machine.reinstate(connection, None)
        {
            self.note(format_args!("{connection:?} is to be reinstated"));
            session.link.add(connection, side);
            session.connections.logins.push((connection, time::now() + LOGIN_LIMIT));
            return Ok(());
        }
        let recovery = &mut session.connections.recoveries[at];
        recovery.next = time::now() + Duration::from_millis(500);
        if time::now() > recovery.kept_until { Err(Lost::Silence) } else { Ok(()) }
    }

    /// Logs one connection out; its commands continue. Another connection joins in its place.
    pub(crate) fn let_one_go(&mut self, session: &mut Session) {
        let machine = &mut session.link.machine;
        let ready: Vec<Cid> =
            machine.connections().filter(|one| machine.is_connected(*one)).collect();
        if ready.len() > 1 {
            let connection = ready[self.rng.below(ready.len() as u64) as usize];
            machine.logout_connection(connection);
            session.connections.leaving.push(connection);
            self.note(format_args!("{connection:?} is to go"));
        }
    }

    pub(crate) fn note_joined(&mut self, session: &mut Session, connection: Cid) {
        session.connections.logins.retain(|(login, _)| *login != connection);
        if self.end_recovery(session, connection) {
            self.world.count(format_args!("connections reinstated"))
        } else {
            self.world.count(format_args!("connections that joined"))
        }
        self.note(format_args!("{connection:?} joined"));
    }

    pub(crate) fn note_removed(&mut self, session: &mut Session, connection: Cid) {
        self.end_recovery(session, connection);
        self.world.count(format_args!("connections removed for recovery"));
        self.note(format_args!("{connection:?} was removed"));
    }

    fn end_recovery(&mut self, session: &mut Session, connection: Cid) -> bool {
        let mut recoveries = session.connections.recoveries.iter_mut();
        let pending = recoveries.find(|one| one.connection == connection && one.ended.is_none());
        let Some(recovery) = pending else { return false };
        recovery.ended = Some(time::now());
        if !session.open.is_empty() {
            self.world.count(format_args!("recoveries with commands open"));
        }
        true
    }

    /// Handles the loss of a connection.
    pub(crate) fn handle_loss(&mut self, session: &mut Session, loss: Loss) -> Result<(), Lost> {
        self.note(format_args!("{:?} is lost: {:?}", loss.connection, loss.why));
        self.admit(session, &loss);
        let Loss { connection, why, since, goes_on, .. } = loss;
        let was_login = session.connections.logins.iter().any(|(login, _)| *login == connection);
        session.connections.logins.retain(|(login, _)| *login != connection);
        session.connections.has_lost_any = true;
        let is_unknown = LoginError::Refused { status: LoginStatus::SessionDoesNotExist };
        let is_unknown =
            matches!(&why, Lost::Machine(ConnectionError::Login(error)) if *error == is_unknown);
        if !goes_on || is_unknown {
            return Err(why);
        }
        if !session.link.machine.is_lost(connection) {
            // The initiator joins again later.
            return Ok(());
        }
        let soon = Duration::from_millis(self.rng.below(2_000));
        if was_login {
            let mut recoveries = session.connections.recoveries.iter_mut();
            if let Some(recovery) =
                recoveries.find(|one| one.connection == connection && one.ended.is_none())
            {
                recovery.next = time::now() + soon;
                return if recovery.next > recovery.kept_until { Err(why) } else { Ok(()) };
            }
        }
        self.world.count(format_args!("connections lost at level 2"));
        let Connections { wait, retain, recoveries, .. } = &mut session.connections;
        let delay = match self.rng.below(100) {
            // This initiator behaves like a killed process.
            0..8 => return Err(why),
            8..16 => {
                self.world.count(format_args!("recoveries left until it is too late"));
                *retain + TOO_LATE
            }
            _ => soon,
        };
        recoveries.push(Recovery {
            connection,
            kept_until: since + *wait + *retain,
            next: time::now() + *wait + delay,
            ended: None,
        });
        Ok(())
    }

    /// Checks that the target may have caused this loss.
    fn admit(&self, session: &Session, loss: &Loss) {
        let may_change = session.is_guarded && self.weather.flips_per_mille > 0;
        let is_mended = session.level > 0 && self.weather.spares_headers;
        let connections = &session.connections;
        // Causes other than the network that end tasks or connections.
        let has_excuse = connections.is_late()
            || session.has_lost_abort
            || self.world.server.life() != session.link.life
            || self.world.server.is_over()
            || self.world.plan.ends_tasks();
        let is_tolerable = match &loss.why {
            Lost::Silence => true,
            Lost::Stream(_) => {
                let is_other_end =
                    session.level < 2 && (connections.has_lost_any || session.link.is_harmed());
                let is_wanted = connections.leaving.contains(&loss.connection);
                let is_changed = may_change && !is_mended;
                loss.was_harmed || has_excuse || is_other_end || is_wanted || is_changed
            }
            Lost::Machine(error) => match error {
                ConnectionError::Login(LoginError::Unavailable { .. }) => true,
                ConnectionError::Login(LoginError::Refused { status }) => match *status {
                    LoginStatus::TooManyConnections => true,
                    LoginStatus::SessionDoesNotExist => has_excuse || session.level < 2,
                    _ => false,
                },
                ConnectionError::DataDigest(_)
                | ConnectionError::Framing(_)
                | ConnectionError::NotRepeated => may_change && !is_mended,
                ConnectionError::Unrecoverable(RecoveryError::Level { .. }) => session.level < 2,
                ConnectionError::Unrecoverable(
                    RecoveryError::Reassignment { .. } | RecoveryError::MovedTooOften,
                ) => has_excuse,
                _ => false,
            },
        };
        assert!(is_tolerable, "{}: session {session}: {loss:?}", self.name);
    }
}
