//! The state that the connections of a session share: the command window, the requests above a gap, and the order in
//! which commands reach the layer above. A gap consists of CmdSNs that have not arrived.
//!
//! If a session can have only one connection, that connection owns the [`SessionState`]. If a session may have more
//! connections, or another one after the first, they share it. Both use [`SharedHold::with`].

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use sarsen_wire::iscsi::SerialNumber;

use super::tasks::{TaskId, is_same_unit};
use super::window::{CmdSnPosition, CommandWindow};
use crate::iscsi::Parameters;

/// Task attributes that affect the order of commands (RFC 7143 §11.3.1).
pub(super) const ORDERED: u8 = 2;
const HEAD_OF_QUEUE: u8 = 3;
const ACA: u8 = 4;

/// The identifier of a connection in its session. Unlike a CID, it is never used again.
pub type MemberId = u32;

/// Data that the connections of a session share. Created by [`super::Connection::establish`], and returned to joining
/// connections by [`super::Environment::session`].
#[derive(Debug)]
pub struct Session {
    state: Mutex<SessionState>,
    /// The parameters that the leading login negotiated.
    parameters: Parameters,
}

impl Session {
    /// Returns the parameters that the leading login negotiated.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn with<R>(&self, f: impl FnOnce(&mut SessionState) -> R) -> R {
        f(&mut self.state.lock())
    }
}

/// A command that has not reached the layer above.
#[derive(Clone, Copy, Debug)]
struct Undelivered {
    sequence: u64,
    lun: [u8; 8],
    attribute: u8,
    member: MemberId,
    /// It waits for an earlier command.
    waits: bool,
}

/// A received request above a gap.
#[derive(Clone, Copy, Debug)]
struct Received {
    cmd_sn: SerialNumber,
    member: MemberId,
    /// The LUN and the task attribute, if the request is a command.
    command: Option<([u8; 8], u8)>,
}

/// The state that the connections of a session share.
#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) window: CommandWindow,
    last_sequence: u64,
    last_member: MemberId,
    /// Received requests above a gap.
    received: Vec<Received>,
    /// CmdSNs and sequences of commands that were above a gap. They have their place in the order, but their connection
    /// has not begun them yet.
    reserved: Vec<(SerialNumber, u64)>,
    /// CmdSNs above a gap that count as received, because an ABORT TASK named them.
    skipped: Vec<SerialNumber>,
    /// Commands in the order of their CmdSNs.
    undelivered: VecDeque<Undelivered>,
    /// Number of ORDERED commands in `undelivered`. If it is 0, no command waits.
    ordered_count: usize,
    /// Connections that wait until all requests before a CmdSN have arrived.
    awaiting: Vec<(SerialNumber, MemberId)>,
    /// Connections that can continue.
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

    /// Returns the position of a request. The position of a request that arrived before is `Outside`.
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

    /// Notes that a request has arrived completely. Its connection keeps it while it is above a gap.
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

    /// Notes that the expected request has arrived. The requests above it that waited for it may continue.
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
            // Its place in the order is before the requests above it.
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
                    // Later commands may arrive before its connection wakes.
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

    /// Counts the CmdSN of a command that has not arrived as received, because an ABORT TASK named it.
    pub(super) fn skip(&mut self, cmd_sn: SerialNumber) {
        self.received.retain(|received| received.cmd_sn != cmd_sn);
        if self.standing(cmd_sn) != CmdSnPosition::Outside {
            self.skipped.push(cmd_sn);
            self.close_gap();
        }
    }

    /// Returns whether earlier requests are still missing. If so, the connection is woken when they have arrived.
    pub(super) fn awaits(&mut self, cmd_sn: SerialNumber, member: MemberId) -> bool {
        let waits = self.window.exp_cmd_sn().is_before(cmd_sn);
        // The caller may ask many times, but the request is entered once.
        if waits && !self.awaiting.contains(&(cmd_sn, member)) {
            self.awaiting.push((cmd_sn, member));
        }
        waits
    }

    /// Removes a lost or closed connection: its requests above a gap count as not received, and it no longer waits.
    /// Returns ExpCmdSN: earlier requests have been acknowledged.
    pub(super) fn forget(&mut self, member: MemberId) -> SerialNumber {
        self.received.retain(|received| received.member != member);
        self.awaiting.retain(|(_, of)| *of != member);
        self.window.exp_cmd_sn()
    }

    /// Moves a task to another connection.
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

    /// Begins a task for a command. `cmd_sn` is `None` for an immediate command.
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

    /// Frees the place in the order of a command that was above a gap, if the command did not become a task.
    pub(super) fn give_up_place(&mut self, cmd_sn: SerialNumber) {
        if let Some(sequence) = self.take_reserved(cmd_sn) {
            self.remove_undelivered(TaskId { initiator_task_tag: 0, sequence });
        }
    }

    /// Returns whether an ORDERED command still has to reach the layer above.
    pub(super) fn has_ordered(&self) -> bool {
        self.ordered_count > 0
    }

    /// Returns whether a command has to wait for others. The layer above orders the tasks that it has (SAM-5 8.6), but
    /// a command whose data is not complete has not reached it. So an ORDERED command waits here for earlier commands,
    /// and later commands wait for the ORDERED command. A waiting command requests no data and takes no memory.
    #[inline]
    pub(super) fn holds_back(&mut self, id: TaskId) -> bool {
        if !self.has_ordered() {
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

    /// Removes a command that has reached the layer above, or has ended before that.
    pub(super) fn remove_undelivered(&mut self, id: TaskId) {
        let is_it = |one: &mut Undelivered| one.sequence == id.sequence;
        // The command is nearly always the newest or the oldest.
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

/// A connection's access to the state of its session.
pub(super) enum SharedHold {
    /// No other connection can join the session.
    Sole(SessionState),
    /// Other connections can join the session.
    Shared {
        session: Arc<Session>,
        member: MemberId,
        /// Other members that can continue.
        wakes: Vec<MemberId>,
    },
}

impl SharedHold {
    pub(super) fn new(first_cmd_sn: SerialNumber, window: u32) -> Self {
        Self::Sole(SessionState::new(CommandWindow::new(first_cmd_sn, window)))
    }

    /// Joins an existing session.
    pub(super) fn join(session: &Arc<Session>) -> Self {
        let member = session.with(SessionState::join);
        Self::Shared { session: session.clone(), member, wakes: Vec::new() }
    }

    /// Makes the session available to other connections. Returns the session that they join.
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
                // A sole connection checks for itself which requests can continue.
                state.wakes.clear();
                result
            }
            Self::Shared { session, member, wakes } => {
                Self::with_shared(session, *member, wakes, f)
            }
        }
    }

    /// Not inlined, so that the path of a sole connection is short.
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
