//! The history of rules and sessions. The results of logins, and the ends of sessions, are checked against it. During a
//! change of the rules, either of the two sets may have decided.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use sarsen_io::time;

use super::rules::{Attempt, Rules};

/// The server may count an ended session for this time.
const CLOSING: Duration = Duration::from_secs(2);

/// A login in progress, or a session.
struct Session {
    attempt: Attempt,
    begun: Instant,
    established: Option<Instant>,
    ended: Option<Instant>,
}

/// A change of the rules.
struct Change {
    begun: Instant,
    ended: Option<Instant>,
    rules: Rc<Rules>,
}

/// The history (see the module).
#[derive(Default)]
pub(super) struct History {
    /// The sets of rules, each with the time from which it is in force.
    versions: RefCell<Vec<(Instant, Rc<Rules>)>>,
    /// Rules that a change in progress may have put into force, with its begin and its end.
    changes: RefCell<Vec<Change>>,
    /// Begin and end of each period in which a change or a restart terminated sessions.
    upheavals: RefCell<Vec<(Instant, Option<Instant>)>>,
    sessions: RefCell<BTreeMap<u64, Session>>,
    /// Initiators that may have had sessions since the last start, by name and target.
    were_in: RefCell<BTreeSet<(String, Option<String>)>>,
}

impl History {
    /// Records that these rules are in force from now on.
    pub(super) fn enforce(&self, rules: Rules) {
        self.versions.borrow_mut().push((time::now(), Rc::new(rules)));
    }

    /// Records that a change to these rules begins: from now on they may be in force.
    pub(super) fn begin_change(&self, rules: Rules) {
        let change = Change { begun: time::now(), ended: None, rules: Rc::new(rules) };
        self.changes.borrow_mut().push(change);
    }

    /// Records that the change in progress has ended.
    pub(super) fn end_change(&self) {
        if let Some(Change { ended: ended @ None, .. }) = self.changes.borrow_mut().last_mut() {
            *ended = Some(time::now());
        }
    }

    /// Returns the rules in force.
    pub(super) fn current(&self) -> Rc<Rules> {
        self.versions.borrow().last().expect("a server was started").1.clone()
    }

    /// Returns all rules that were in force at any moment of this period.
    pub(super) fn during(&self, from: Instant, to: Instant) -> Vec<Rc<Rules>> {
        let versions = self.versions.borrow();
        let ends = versions.iter().skip(1).map(|(since, _)| Some(*since)).chain([None]);
        let all = versions.iter().zip(ends);
        let meant =
            all.filter(|((since, _), end)| *since <= to && end.is_none_or(|end| end >= from));
        let changes = self.changes.borrow();
        let begun = changes.iter().filter(|Change { begun, ended, .. }| {
            *begun <= to && ended.is_none_or(|ended| ended >= from)
        });
        let begun = begun.map(|change| change.rules.clone());
        meant.map(|((_, rules), _)| rules.clone()).chain(begun).collect()
    }

    /// Records that from now on sessions are terminated, and logins may be refused, whatever the rules say.
    pub(super) fn begin_upheaval(&self) {
        self.upheavals.borrow_mut().push((time::now(), None));
    }

    pub(super) fn end_upheaval(&self) {
        if let Some((_, until)) = self.upheavals.borrow_mut().last_mut() {
            *until = Some(time::now());
        }
    }

    /// Records that the server has started again.
    pub(super) fn forget_sessions(&self) {
        self.sessions.borrow_mut().clear();
        self.were_in.borrow_mut().clear();
    }

    /// Returns whether the rules alone decide during this period.
    pub(super) fn is_settled(&self, from: Instant, to: Instant) -> bool {
        let upheavals = self.upheavals.borrow();
        !upheavals.iter().any(|(since, until)| *since <= to && until.is_none_or(|end| end >= from))
    }

    /// Records the begin of an attempt.
    pub(super) fn begin(&self, number: u64, attempt: &Attempt) {
        let attempt = attempt.clone();
        let session = Session { attempt, begun: time::now(), established: None, ended: None };
        self.sessions.borrow_mut().insert(number, session);
    }

    /// Records that an attempt has opened a session.
    pub(super) fn establish(&self, number: u64) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(&number) {
            session.established = Some(time::now());
        }
    }

    /// Records that a session has ended or an attempt has failed.
    pub(super) fn end(&self, number: u64) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(&number) {
            session.ended = Some(time::now());
        }
    }

    /// Records that the server may have permitted an attempt, whether or not the initiator received the response.
    pub(super) fn note_permission(&self, attempt: &Attempt) {
        let known = (attempt.initiator.clone(), attempt.target.clone());
        self.were_in.borrow_mut().insert(known);
    }

    /// Returns whether the server may report its refusal as a revocation.
    pub(super) fn was_in(&self, attempt: &Attempt) -> bool {
        self.were_in.borrow().contains(&(attempt.initiator.clone(), attempt.target.clone()))
    }

    /// Returns whether the rules are unchanged since the attempt. The server has a session before the initiator knows
    /// it.
    fn is_undisturbed(&self, session: &Session) -> bool {
        let now = time::now();
        self.during(session.begun, now).len() == 1 && self.is_settled(session.begun, now)
    }

    /// Returns the minimum and the maximum of the number of other sessions of a target.
    pub(super) fn neighbours(&self, number: u64, from: Instant) -> (u64, u64) {
        let sessions = self.sessions.borrow();
        let Some(own) = sessions.get(&number) else { return (0, u64::MAX) };
        let others = sessions
            .iter()
            .filter(|(other, one)| **other != number && one.attempt.target == own.attempt.target);
        let (mut least, mut most) = (0, 0);
        for (_, one) in others {
            most += u64::from(one.ended.is_none_or(|end| end + CLOSING >= from));
            let is_there = one.established.is_some_and(|since| since <= from);
            let is_there = is_there && one.ended.is_none() && self.is_undisturbed(one);
            least += u64::from(is_there);
        }
        (least, most)
    }

    /// Returns whether the rules, or a restart, may have terminated a session that began at `since`.
    pub(super) fn may_have_ended(&self, attempt: &Attempt, since: Instant) -> bool {
        let versions = self.during(since, time::now());
        let first = &versions[0];
        !self.is_settled(since, time::now())
            || versions.iter().any(|rules| is_loss(first, rules, attempt))
    }

    /// Returns whether these rules would take access from a session, which may be about to begin or to end.
    pub(super) fn may_be_in_use(&self, rules: &Rules) -> bool {
        let (now, current) = (time::now(), self.current());
        let sessions = self.sessions.borrow();
        let mut open =
            sessions.values().filter(|one| one.ended.is_none_or(|end| end + CLOSING >= now));
        open.any(|one| is_loss(&current, rules, &one.attempt))
    }

    /// Returns a session that certainly exists and that these rules do not permit.
    pub(super) fn certain_loser(&self, rules: &Rules) -> Option<String> {
        let sessions = self.sessions.borrow();
        let mut certain = sessions.values().filter(|one| {
            one.ended.is_none() && one.established.is_some() && self.is_undisturbed(one)
        });
        let loser = certain.find(|one| rules.session(&one.attempt).is_none())?;
        Some(format!("{:?} since {:?}", loser.attempt, loser.begun))
    }
}

/// Returns whether a session that one set of rules permits may have to end with the other set.
fn is_loss(before: &Rules, after: &Rules, attempt: &Attempt) -> bool {
    before.session(attempt) != after.session(attempt)
        || before.grant(attempt) != after.grant(attempt)
        || !before.has_same_units(after, attempt.target.as_deref())
}
