//! Which nexus may write to a disk. The model derives this from the acknowledged registrations, reservations and
//! preemptions (SPC-4 5.12).
//!
//! Each action takes effect at one moment between its request and its latest moment, like a change of a block. After
//! its acknowledgement the action is certain. A nexus is fenced off at a moment if two facts are certain: a reservation
//! exists, and the nexus is not registered. No later action can have ended the reservation or registered the nexus. A
//! fenced nexus must not write, whatever the type of the reservation. Each registration has a unique key, so the model
//! knows the victim of a preemption.

use crate::model::Moment;

/// An action of PERSISTENT RESERVE OUT, with the registered key of the nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Registers a key for the requesting nexus and replaces its previous key.
    Register {
        key: u64,
    },
    Unregister {
        key: u64,
    },
    Reserve {
        key: u64,
    },
    Release {
        key: u64,
    },
    Clear {
        key: u64,
    },
    /// PREEMPT, or PREEMPT AND ABORT, of the nexus that registered the victim.
    Preempt {
        key: u64,
        victim: u64,
        aborts: bool,
    },
}

impl Action {
    /// Returns whether the action may end a reservation.
    pub(crate) const fn releases(self) -> bool {
        matches!(self, Self::Unregister { .. } | Self::Release { .. } | Self::Clear { .. })
    }

    /// Returns whether the action may permit a fenced nexus again.
    pub(crate) const fn admits(self) -> bool {
        self.releases() || matches!(self, Self::Register { .. })
    }
}

/// The requesting initiator port, and thus an I_T nexus with the only target port.
pub(crate) type Nexus = u8;

struct Change {
    operation: u64,
    nexus: Nexus,
    action: Action,
    invoked: Moment,
    /// `None` while the action may still take effect.
    latest: Option<Moment>,
    is_certain: bool,
}

impl Change {
    fn may_lie_within(&self, from: Moment, to: Moment) -> bool {
        self.invoked <= to && self.latest.is_none_or(|latest| latest >= from)
    }

    fn is_before(&self, moment: Moment) -> bool {
        self.is_certain && self.latest.is_some_and(|latest| latest < moment)
    }

    fn registers(&self, nexus: Nexus) -> bool {
        self.nexus == nexus && matches!(self.action, Action::Register { .. })
    }
}

/// The reservations of one disk.
#[derive(Default)]
pub(crate) struct Fencing {
    changes: Vec<Change>,
}

impl Fencing {
    /// Records that an initiator is about to send an action.
    pub(crate) fn begin(&mut self, operation: u64, nexus: Nexus, action: Action, now: Moment) {
        let (invoked, latest, is_certain) = (now, None, false);
        self.changes.push(Change { operation, nexus, action, invoked, latest, is_certain });
    }

    /// Records the end of an action: `Some(true)` if it succeeded, `Some(false)` if it had no effect, `None` if
    /// unknown.
    pub(crate) fn end(&mut self, operation: u64, is_done: Option<bool>, now: Moment) {
        if is_done == Some(false) {
            return self.changes.retain(|change| change.operation != operation);
        }
        let ended = self.changes.iter_mut().find(|change| change.operation == operation);
        if let Some(change) = ended {
            change.latest = change.latest.or(Some(now));
            change.is_certain = is_done == Some(true);
        }
    }

    /// Simulates a restart of the server. With `persists` the server restores the reservations. An action with an
    /// unknown outcome may have been stored although it was not in force.
    pub(crate) fn crash(&mut self, persists: bool, now: Moment) {
        if !persists {
            return self.changes.clear();
        }
        for change in self.changes.iter_mut().filter(|change| !change.is_certain) {
            change.latest = Some(now);
        }
    }

    /// Returns whether the nexus was certainly fenced off during the whole interval.
    pub(crate) fn is_fenced(&self, nexus: Nexus, from: Moment, to: Moment) -> bool {
        self.is_reserved(from, to) && self.is_unregistered(nexus, from, to)
    }

    /// Returns whether a reservation certainly existed during the whole interval. Preemption transfers a reservation
    /// and does not end it, because the preempting nexus is registered.
    fn is_reserved(&self, from: Moment, to: Moment) -> bool {
        let is_held = |reserve: &Change| {
            let mut others = self.changes.iter();
            !others.any(|one| one.action.releases() && one.may_lie_within(reserve.invoked, to))
        };
        let mut reserves =
            self.changes.iter().filter(|change| matches!(change.action, Action::Reserve { .. }));
        reserves.any(|reserve| reserve.is_before(from) && is_held(reserve))
    }

    fn is_unregistered(&self, nexus: Nexus, from: Moment, to: Moment) -> bool {
        let registered_since = |since, but: Option<u64>| {
            let mut registers = self.changes.iter().filter(|change| change.registers(nexus));
            registers
                .any(|one| one.may_lie_within(since, to) && Some(one.action) != but.map(register))
        };
        // Initiators know only keys that an initiator sent.
        let removes = |change: &Change| match change.action {
            Action::Clear { .. } => Some(None),
            Action::Unregister { .. } if change.nexus == nexus => Some(None),
            Action::Preempt { victim, .. } if self.owner(victim) == Some(nexus) => {
                // The victim was registered before the preemption, even if the model has no certainty about it.
                Some(Some(victim))
            }
            _ => None,
        };
        !registered_since(0, None)
            || self.changes.iter().any(|change| {
                change.is_before(from)
                    && removes(change).is_some_and(|but| !registered_since(change.invoked, but))
            })
    }

    /// Returns whether the nexus was certainly registered during the whole interval.
    fn is_registered(&self, nexus: Nexus, from: Moment, to: Moment) -> bool {
        let is_kept = |registration: &Change| {
            !self.changes.iter().any(|one| {
                let removes = match one.action {
                    Action::Clear { .. } => true,
                    Action::Unregister { .. } => one.nexus == nexus,
                    Action::Preempt { victim, .. } => self.owner(victim) == Some(nexus),
                    _ => false,
                };
                removes && one.may_lie_within(registration.invoked, to)
            })
        };
        let mut registrations = self.changes.iter().filter(|change| change.registers(nexus));
        registrations.any(|one| one.is_before(from) && is_kept(one))
    }

    /// Returns whether a reservation may have denied a nexus access during the interval. With `registrants` all
    /// registered nexuses have access, otherwise only the holder.
    pub(crate) fn may_refuse(
        &self,
        nexus: Nexus,
        registrants: bool,
        from: Moment,
        to: Moment,
    ) -> bool {
        let reserves = |change: &Change| {
            matches!(change.action, Action::Reserve { .. }) && change.invoked <= to
        };
        let is_admitted = registrants && self.is_registered(nexus, from, to);
        self.changes.iter().any(reserves) && !is_admitted
    }

    /// Returns the nexus that has registered the key, now or earlier.
    pub(crate) fn owner(&self, key: u64) -> Option<Nexus> {
        let registration = self.changes.iter().find(|change| change.action == register(key));
        registration.map(|change| change.nexus)
    }

    /// Returns the newest key of each nexus that may be registered.
    pub(crate) fn keys(&self) -> Vec<(Nexus, u64)> {
        let mut keys: Vec<(Nexus, u64)> = Vec::new();
        for change in &self.changes {
            if let Action::Register { key } = change.action {
                keys.retain(|(nexus, _)| *nexus != change.nexus);
                keys.push((change.nexus, key));
            }
        }
        keys
    }
}

const fn register(key: u64) -> Action {
    Action::Register { key }
}
