//! What the connections of a session have in common: the command window, the requests that came
//! above a gap, and the order in which commands reach the layer above.
//!
//! A session that can only ever have one connection owns its [`SessionState`]; one that may have more, or
//! another after the first, shares it. The way of a command is the same: [`SharedHold::with`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use sarsen_wire::iscsi::SerialNumber;

use super::tasks::{TaskId, is_same_unit};
use super::window::{CmdSnPosition, CommandWindow};
use crate::iscsi::Parameters;

/// Task attributes that have a place of their own (RFC 7143 §11.3.1).
const ORDERED: u8 = 2;
const HEAD_OF_QUEUE: u8 = 3;
const ACA: u8 = 4;

/// Names a connection of a session. Unlike its CID, it is never used twice.
pub type MemberId = u32;

/// Data that the connections of a session share. Created by [`super::Connection::establish`], and returned to joining
/// connections by [`super::Environment::session`].
#[derive(Debug)]
pub struct Session {
    state: Mutex<SessionState>,
    /// What the leading login agreed on.
    parameters: Parameters,
}

impl Session {
    /// What the leading login agreed on.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn with<R>(&self, f: impl FnOnce(&mut SessionState) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A command that the layer above does not have yet.
#[derive(Clone, Copy, Debug)]
struct Undelivered {
    sequence: u64,
    lun: [u8; 8],
    attribute: u8,
    member: MemberId,
    /// It waits for one before it.
    waits: bool,
}

/// A request above a gap.
#[derive(Clone, Copy, Debug)]
struct Received {
    cmd_sn: SerialNumber,
    member: MemberId,
    /// Logical unit and attribute, if it is a command.
    command: Option<([u8; 8], u8)>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) window: CommandWindow,
    last_sequence: u64,
    last_member: MemberId,
    /// Requests above a gap that have come.
    received: Vec<Received>,
    /// Commands that were above a gap, and have their place in the order, before their connection
    /// begins them: their CmdSNs and sequences.
    reserved: Vec<(SerialNumber, u64)>,
    /// CmdSNs above a gap that count as received: an ABORT TASK named them.
    skipped: Vec<SerialNumber>,
    /// In the order of their CmdSN.
    undelivered: VecDeque<Undelivered>,
    /// How many of those are ORDERED. While there are none, nobody waits.
    ordered_count: usize,
    /// Who waits until everything before a CmdSN has come.
    awaiting: Vec<(SerialNumber, MemberId)>,
    /// Who has something to go on with.
    wakes: Vec<MemberId>,
}

impl SessionState {
    fn new(window: CommandWindow) -> Self {
        Self {
            window,
            last_sequence: 0,
            last_member: 0,
            received: Vec::new(),
            reserved: Vec::new(),
            skipped: Vec::new(),
            undelivered: VecDeque::new(),
            ordered_count: 0,
            awaiting: Vec::new(),
            wakes: Vec::new(),
        }
    }

    fn join(&mut self) -> MemberId {
        self.last_member += 1;
        self.last_member
    }

    /// How a request stands that has not come before.
    pub(super) fn standing(&self, cmd_sn: SerialNumber) -> CmdSnPosition {
        match self.window.standing(cmd_sn) {
            CmdSnPosition::AboveGap
                if self.skipped.contains(&cmd_sn)
                    || self.received.iter().any(|received| received.cmd_sn == cmd_sn) =>
            {
                CmdSnPosition::Outside
            }
            standing => standing,
        }
    }

    /// A request has come whole. Above a gap, it is that connection's to keep.
    pub(super) fn arrive(
        &mut self,
        cmd_sn: SerialNumber,
        command: Option<([u8; 8], u8)>,
        member: MemberId,
    ) -> CmdSnPosition {
        let standing = self.standing(cmd_sn);
        match standing {
            CmdSnPosition::Next => self.advance(cmd_sn, command, member),
            CmdSnPosition::AboveGap => self.received.push(Received { cmd_sn, member, command }),
            CmdSnPosition::Outside => {}
        }
        standing
    }

    /// The expected request has come, and with it those above that were waiting for it.
    pub(super) fn advance(
        &mut self,
        cmd_sn: SerialNumber,
        command: Option<([u8; 8], u8)>,
        member: MemberId,
    ) {
        self.window.advance();
        if self.skipped.is_empty() && self.received.is_empty() && self.awaiting.is_empty() {
            return;
        }
        if let Some((lun, attribute)) = command {
            // Its place is before those of the ones above.
            let sequence = self.enqueue(lun, attribute, member);
            self.reserved.push((cmd_sn, sequence));
        }
        self.close_gap();
    }

    fn close_gap(&mut self) {
        loop {
            let next = self.window.exp_cmd_sn();
            if let Some(index) = self.skipped.iter().position(|&skipped| skipped == next) {
                self.skipped.swap_remove(index);
            } else if let Some(index) = self.received.iter().position(|one| one.cmd_sn == next) {
                let Received { cmd_sn, member, command } = self.received.swap_remove(index);
                if let Some((lun, attribute)) = command {
                    // Those after it may come before its connection is awake.
                    let sequence = self.enqueue(lun, attribute, member);
                    self.reserved.push((cmd_sn, sequence));
                }
                self.wakes.push(member);
            } else {
                break;
            }
            self.window.advance();
        }
        let next = self.window.exp_cmd_sn();
        let wakes = &mut self.wakes;
        self.awaiting.retain(|&(cmd_sn, member)| {
            let waits = next.is_before(cmd_sn);
            if !waits {
                wakes.push(member);
            }
            waits
        });
    }

    /// An ABORT TASK named a command that has not come: its number counts as received.
    pub(super) fn skip(&mut self, cmd_sn: SerialNumber) {
        self.received.retain(|received| received.cmd_sn != cmd_sn);
        if self.standing(cmd_sn) != CmdSnPosition::Outside {
            self.skipped.push(cmd_sn);
            self.close_gap();
        }
    }

    /// Whether requests before this one are still to come; the connection is woken when they have.
    pub(super) fn awaits(&mut self, cmd_sn: SerialNumber, member: MemberId) -> bool {
        let waits = self.window.exp_cmd_sn().is_before(cmd_sn);
        // Asked again whenever something has moved: it waits once.
        if waits && !self.awaiting.contains(&(cmd_sn, member)) {
            self.awaiting.push((cmd_sn, member));
        }
        waits
    }

    /// A connection is gone: what it brought above a gap counts as not received, and it waits for
    /// nothing any more. Gives ExpCmdSN: what came before that has been acknowledged.
    pub(super) fn forget(&mut self, member: MemberId) -> SerialNumber {
        self.received.retain(|received| received.member != member);
        self.awaiting.retain(|(_, of)| *of != member);
        self.window.exp_cmd_sn()
    }

    /// A task has another connection now.
    pub(super) fn hand_over(&mut self, id: TaskId, member: MemberId) {
        for one in self.undelivered.iter_mut().filter(|one| one.sequence == id.sequence) {
            one.member = member;
        }
    }

    fn enqueue(&mut self, lun: [u8; 8], attribute: u8, member: MemberId) -> u64 {
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.ordered_count += usize::from(attribute == ORDERED);
        self.undelivered.push_back(Undelivered { sequence, lun, attribute, member, waits: false });
        sequence
    }

    fn take_reserved(&mut self, cmd_sn: SerialNumber) -> Option<u64> {
        let index = self.reserved.iter().position(|(reserved, _)| *reserved == cmd_sn)?;
        Some(self.reserved.swap_remove(index).1)
    }

    /// A command becomes a task; one without a CmdSN of its own is immediate.
    pub(super) fn begin(
        &mut self,
        initiator_task_tag: u32,
        cmd_sn: Option<SerialNumber>,
        lun: [u8; 8],
        attribute: u8,
        member: MemberId,
    ) -> TaskId {
        if cmd_sn.is_some() {
            self.window.begin();
        }
        let reserved = cmd_sn.and_then(|cmd_sn| self.take_reserved(cmd_sn));
        let sequence = reserved.unwrap_or_else(|| self.enqueue(lun, attribute, member));
        TaskId { initiator_task_tag, sequence }
    }

    /// A command that was above a gap has been looked at: if it did not become a task, its place in
    /// the order is free.
    pub(super) fn give_up_place(&mut self, cmd_sn: SerialNumber) {
        if let Some(sequence) = self.take_reserved(cmd_sn) {
            self.deliver(TaskId { initiator_task_tag: 0, sequence });
        }
    }

    /// Whether a command has to wait for others. That layer orders tasks from the moment it has
    /// them (SAM-5 8.6), but a command whose data is not complete has not reached it. So an ORDERED
    /// command waits here for those before it, and those after it wait for its own: they ask for no
    /// data, and take no room, until then.
    pub(super) fn holds_back(&mut self, id: TaskId) -> bool {
        if self.ordered_count == 0 {
            return false;
        }
        let Some(index) = self.undelivered.iter().position(|one| one.sequence == id.sequence)
        else {
            return false;
        };
        let one = self.undelivered[index];
        let waits = !matches!(one.attribute, HEAD_OF_QUEUE | ACA)
            && self.undelivered.iter().take(index).any(|other| {
                (one.attribute == ORDERED || other.attribute == ORDERED)
                    && is_same_unit(other.lun, one.lun)
            });
        self.undelivered[index].waits = waits;
        waits
    }

    /// A command reached the layer above, or ended before that.
    pub(super) fn deliver(&mut self, id: TaskId) {
        let is_it = |one: &mut Undelivered| one.sequence == id.sequence;
        // Nearly always the newest or the oldest.
        let ends = &mut self.undelivered;
        let ended = ends.pop_back_if(is_it).or_else(|| ends.pop_front_if(is_it)).or_else(|| {
            let index = ends.iter().position(|one| one.sequence == id.sequence)?;
            ends.remove(index)
        });
        let Some(Undelivered { attribute, .. }) = ended else { return };
        if self.ordered_count > 0 {
            let waiting = self.undelivered.iter().filter(|one| one.waits).map(|one| one.member);
            self.wakes.extend(waiting);
        }
        self.ordered_count -= usize::from(attribute == ORDERED);
    }
}

/// A connection's hold on what it shares, or would share, with others.
pub(super) enum SharedHold {
    /// No other connection can come into the session.
    Sole(SessionState),
    /// Others may.
    Shared {
        session: Arc<Session>,
        member: MemberId,
        /// Other members that have something to go on with.
        wakes: Vec<MemberId>,
    },
}

impl SharedHold {
    pub(super) fn new(first_cmd_sn: SerialNumber, window: u32) -> Self {
        Self::Sole(SessionState::new(CommandWindow::new(first_cmd_sn, window)))
    }

    /// Becomes a member of a session that stands.
    pub(super) fn join(session: &Arc<Session>) -> Self {
        let member = session.with(SessionState::join);
        Self::Shared { session: session.clone(), member, wakes: Vec::new() }
    }

    /// From here on others may join; gives what they join by.
    pub(super) fn share(&mut self, parameters: &Parameters) -> Arc<Session> {
        match self {
            Self::Shared { session, .. } => session.clone(),
            Self::Sole(state) => {
                let window = CommandWindow::new(SerialNumber(0), 1);
                let state = Mutex::new(std::mem::replace(state, SessionState::new(window)));
                let session = Arc::new(Session { state, parameters: parameters.clone() });
                *self = Self::join(&session);
                session
            }
        }
    }

    pub(super) const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared { .. })
    }

    pub(super) const fn member(&self) -> MemberId {
        match self {
            Self::Sole(_) => 0,
            Self::Shared { member, .. } => *member,
        }
    }

    #[inline]
    pub(super) fn with<R>(&mut self, f: impl FnOnce(&mut SessionState) -> R) -> R {
        match self {
            Self::Sole(state) => {
                let result = f(state);
                // Who is alone looks for himself what has become possible.
                state.wakes.clear();
                result
            }
            Self::Shared { session, member, wakes } => {
                Self::with_shared(session, *member, wakes, f)
            }
        }
    }

    /// Apart, so that the connection that is alone has a short way.
    #[inline(never)]
    fn with_shared<R>(
        session: &Session,
        member: MemberId,
        wakes: &mut Vec<MemberId>,
        f: impl FnOnce(&mut SessionState) -> R,
    ) -> R {
        session.with(|state| {
            let result = f(state);
            for woken in state.wakes.drain(..) {
                if woken != member && !wakes.contains(&woken) {
                    wakes.push(woken);
                }
            }
            result
        })
    }

    #[cfg(test)]
    pub(super) fn awaiting_count(&mut self) -> usize {
        self.with(|state| state.awaiting.len())
    }

    pub(super) fn next_wake(&mut self) -> Option<MemberId> {
        match self {
            Self::Sole(_) => None,
            Self::Shared { wakes, .. } => wakes.pop(),
        }
    }
}
