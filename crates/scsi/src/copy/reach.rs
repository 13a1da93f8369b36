//! Which units a copy may touch: those that the initiator itself reaches at this moment.
//!
//! A designator says nothing about who sends it. A copy manager that takes it as it comes lets an
//! initiator read and write units of others (CVE-2020-28374), so that a unit counts only where the
//! same initiator, which has proved to be the same, has a nexus that shows it.

use crate::command_table::Flags;
use crate::commands::Task;
use crate::nexus::{Initiator, Nexus, Refusal, admit_access};
use crate::{Access, Array, LogicalUnit, Sense};
use std::sync::{Arc, Weak};

/// Who asked for a copy.
#[derive(Clone)]
pub(super) struct Requester {
    pub(super) array: Arc<Array>,
    pub(super) initiator: Initiator,
    nexus: Weak<Nexus>,
    unit: Arc<LogicalUnit>,
}

impl Requester {
    pub(super) fn of(task: &Task<'_>) -> Self {
        Self {
            array: task.nexus.device.array().clone(),
            initiator: task.nexus.initiator(),
            nexus: Arc::downgrade(task.nexus),
            unit: task.unit.clone(),
        }
    }

    /// The unit that the command was addressed to.
    pub(super) fn this_unit(&self) -> Reached {
        Reached { unit: self.unit.clone(), nexus: self.nexus.clone() }
    }

    /// The unit of that name, through the command's own nexus if it can be, else through one that
    /// lets it be used so, else through any.
    pub(super) fn find(
        &self,
        is_named: impl Fn(&LogicalUnit) -> bool,
        flags: Flags,
    ) -> Option<Reached> {
        let own = self.nexus.upgrade();
        let others = self.array.devices().into_iter().flat_map(|device| device.nexuses());
        let mut found = None;
        for nexus in own.into_iter().chain(others) {
            if nexus.initiator() != self.initiator {
                continue;
            }
            let attached = nexus.attached();
            // What a real device holds is not behind its unit's store.
            let mut units = attached.values().filter(|one| one.unit.pass_through().is_none());
            let Some(attachment) = units.find(|one| is_named(&one.unit)) else { continue };
            let reached = Reached { unit: attachment.unit.clone(), nexus: Arc::downgrade(&nexus) };
            if admit_access(flags, Access::Active, attachment, &nexus).is_ok() {
                return Some(reached);
            }
            found.get_or_insert(reached);
        }
        found
    }
}

/// A unit, and the nexus that leads to it.
#[derive(Clone)]
pub(super) struct Reached {
    pub(super) unit: Arc<LogicalUnit>,
    nexus: Weak<Nexus>,
}

/// Why a unit cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Barrier {
    /// The nexus is gone, or the unit is no longer behind it.
    Unreachable,
    /// Another nexus has reserved it.
    ReservationConflict,
    /// It is not in a state for this.
    State(Sense),
}

impl Reached {
    /// What admission would say of a command with these flags now.
    pub(super) fn admit(&self, flags: Flags) -> Result<(), Barrier> {
        let nexus = self.nexus.upgrade().ok_or(Barrier::Unreachable)?;
        let attached = nexus.attached();
        let attachment = attached.values().find(|one| Arc::ptr_eq(&one.unit, &self.unit));
        let attachment = attachment.ok_or(Barrier::Unreachable)?;
        admit_access(flags, Access::Active, attachment, &nexus).map_err(|refusal| match refusal {
            Refusal::Sense(sense) => Barrier::State(sense),
            Refusal::ReservationConflict => Barrier::ReservationConflict,
        })
    }
}
