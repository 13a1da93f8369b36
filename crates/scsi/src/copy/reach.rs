//! The units that a copy may access: those that the initiator itself can access at this moment.
//!
//! A designator does not authenticate its sender. A copy manager that trusts it lets an initiator read and write units
//! of other initiators (CVE-2020-28374). Therefore a unit is accepted only if a nexus of the same authenticated
//! initiator shows it.

use crate::flags::Flags;
use crate::refusal::Refusal;
use crate::target::{InitiatorDevice, Nexus, admit_access};
use crate::task::Task;
use crate::{AllowedStates, Array, LogicalUnit, Sense};
use std::sync::{Arc, Weak};

/// The initiator that requested a copy, with its nexus and unit.
#[derive(Clone)]
pub(super) struct Requester {
    pub(super) array: Arc<Array>,
    pub(super) initiator: InitiatorDevice,
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

    /// Returns the unit to which the command was addressed.
    pub(super) fn this_unit(&self) -> Reached {
        Reached { unit: self.unit.clone(), nexus: self.nexus.clone() }
    }

    /// Returns the unit that `is_named` accepts, through the first nexus of the same initiator that permits commands
    /// with `flags`; else through the first nexus that shows it. The command's own nexus is tried first.
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
            // The store of a pass-through unit does not contain the data of the real device.
            let mut units = attached.values().filter(|one| one.unit.pass_through().is_none());
            let Some(attachment) = units.find(|one| is_named(&one.unit)) else { continue };
            let reached = Reached { unit: attachment.unit.clone(), nexus: Arc::downgrade(&nexus) };
            if admit_access(flags, AllowedStates::Active, attachment, &nexus).is_ok() {
                return Some(reached);
            }
            found.get_or_insert(reached);
        }
        found
    }
}

/// A unit, and the nexus through which the initiator reaches it.
#[derive(Clone)]
pub(super) struct Reached {
    pub(super) unit: Arc<LogicalUnit>,
    nexus: Weak<Nexus>,
}

/// The reason why a unit cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessDenial {
    /// The nexus was lost, or it no longer shows the unit.
    Unreachable,
    /// Another nexus has reserved the unit.
    ReservationConflict,
    /// The state of the unit does not permit it.
    State(Sense),
}

impl Reached {
    /// Checks whether the unit would now admit a command with these flags.
    pub(super) fn admit(&self, flags: Flags) -> Result<(), AccessDenial> {
        let nexus = self.nexus.upgrade().ok_or(AccessDenial::Unreachable)?;
        let attached = nexus.attached();
        let attachment = attached.values().find(|one| Arc::ptr_eq(&one.unit, &self.unit));
        let attachment = attachment.ok_or(AccessDenial::Unreachable)?;
        admit_access(flags, AllowedStates::Active, attachment, &nexus).map_err(|refusal| {
            match refusal {
                Refusal::Sense(sense) => AccessDenial::State(sense),
                Refusal::ReservationConflict => AccessDenial::ReservationConflict,
            }
        })
    }
}
