//! The objects that a change withdraws from sessions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use sarsen_scsi::{LogicalUnit, Lun, LunView};

use super::{Access, Policy, moved, narrowed, terminate};
use crate::mailbox::Mailbox;
use crate::portal::Portal;
use crate::sessions::{Login, PermittedConnection, Sessions};

/// An object that is closed or changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A portal.
    Portal(SocketAddr),
    /// A target, or its access through a portal group.
    Target(String),
    /// A volume.
    Volume(String),
    /// A logical unit of a target, whose volume stays open.
    Lun {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
    },
    /// Access to a target, or to discovery.
    Access(Option<String>),
}

/// Displays the object as in a message.
impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Portal(address) => write!(f, "portal {address}"),
            Self::Target(name) => write!(f, "target {name}"),
            Self::Volume(name) => write!(f, "volume {name}"),
            Self::Lun { target, lun } => write!(f, "LUN {lun} of {target}"),
            Self::Access(Some(target)) => write!(f, "the access to {target}"),
            Self::Access(None) => write!(f, "the access to discovery"),
        }
    }
}

/// All objects that a change withdraws. The default withdraws none.
#[derive(Default)]
pub(crate) struct Losses {
    pub(crate) portals: Vec<Arc<Portal>>,
    pub(crate) targets: BTreeMap<String, TargetLoss>,
    /// The number of the last connection when the units were withheld. Later connections never had these units.
    pub(crate) deferred_at: Option<u64>,
}

/// The withdrawn part of a target.
#[derive(Debug)]
pub(crate) enum TargetLoss {
    All,
    Part { groups: BTreeSet<u16>, luns: BTreeMap<u16, Object> },
}

impl Losses {
    /// Returns the object that a connection would lose. This ignores the policy.
    pub(super) fn of(&self, connection: &PermittedConnection<'_>) -> Option<Object> {
        let Login { portal, target, .. } = connection.login;
        if self.portals.iter().any(|lost| Arc::ptr_eq(lost, portal)) {
            return Some(Object::Portal(portal.address));
        }
        let target = target.as_ref()?;
        match self.targets.get(target)? {
            TargetLoss::All => Some(Object::Target(target.clone())),
            TargetLoss::Part { groups, .. } if groups.contains(&portal.group) => {
                Some(Object::Target(target.clone()))
            }
            TargetLoss::Part { luns, .. } => {
                let had_it = self.deferred_at.is_none_or(|last| connection.number <= last);
                let mut lost =
                    luns.iter().filter(|(lun, _)| had_it && shows(connection.view, **lun));
                lost.next().map(|(_, object)| object.clone())
            }
        }
    }
}

/// Returns whether a view shows a LUN of the target.
pub(crate) fn shows(view: &LunView, own: u16) -> bool {
    view.numbers.as_ref().is_none_or(|numbers| numbers.values().any(|lun| *lun == Lun(own)))
}

impl Access {
    /// Returns the sessions that would lose something by these losses, or if this policy replaced the current one, each
    /// with the first lost object and the units that it is shown. A leaving session has lost objects before, so it counts only if it also loses its
    /// permission, or if leaving sessions are `asked_again`.
    pub(crate) fn affected_sessions(
        &self,
        sessions: &Sessions,
        losses: &Losses,
        policy: &Policy,
        asked_again: bool,
    ) -> HashMap<u16, (Object, LunView)> {
        let state = self.state();
        let mut losers = HashMap::new();
        sessions.visit_permitted(|connection| {
            let Login { target, .. } = connection.login;
            let counts = !connection.is_leaving || asked_again;
            let lost = losses.of(&connection).filter(|_| counts).or_else(|| {
                let is_let_out = !policy.is_same_for(&state.policy, target.as_deref())
                    && is_let_out(policy, &connection)
                    && !(connection.is_leaving && is_let_out(&state.policy, &connection));
                is_let_out.then(|| Object::Access(target.clone()))
            });
            if let Some(object) = lost {
                let view = connection.view.clone();
                losers.entry(connection.tsih).or_insert((object, view));
            }
        });
        losers
    }

    /// Lets these sessions keep their units until they end, and returns the mailboxes of their connections. A connection whose login is not complete has none yet, and
    /// is terminated.
    pub(crate) fn begin_leaving(
        &self,
        sessions: &Sessions,
        leaving: &HashMap<u16, Units>,
    ) -> Vec<Vec<Mailbox>> {
        // No connection is permitted meanwhile, and none joins these sessions afterwards.
        let _state = self.state();
        sessions.visit_permitted(|connection| {
            let Login { target, only, .. } = connection.login;
            let has_none = target.is_some() && only.is_none() && connection.nexus.is_none();
            if has_none && leaving.contains_key(&connection.tsih) {
                terminate(&connection, "configuration changed", "its login was not complete");
            }
        });
        leaving.iter().filter_map(|(&tsih, units)| sessions.begin_leaving(tsih, units)).collect()
    }
}

/// Units that a leaving session keeps.
pub(crate) type Units = Vec<Weak<LogicalUnit>>;

/// Returns whether a policy takes units or rights from a session, or the whole access.
pub(super) fn is_let_out(policy: &Policy, connection: &PermittedConnection<'_>) -> bool {
    let Login { client, target, only, .. } = connection.login;
    match policy.permit(target.as_deref(), client) {
        Err(_) => true,
        Ok(view) => narrowed(view, *only).is_none_or(|view| takes_away(connection.view, &view)),
    }
}

/// Returns whether a changed view shows fewer units than before, permits less, or shows another unit at any LUN.
fn takes_away(before: &LunView, after: &LunView) -> bool {
    let is_less = match (shown_units(before), shown_units(after)) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(before), Some(after)) => !before.is_subset(&after),
    };
    is_less || after.read_only && !before.read_only || moved(before, after).is_some()
}

/// Returns the target's own LUNs that a view shows, or `None` if it shows all of them.
fn shown_units(view: &LunView) -> Option<HashSet<Lun>> {
    let numbers = view.numbers.as_ref()?;
    Some(numbers.values().copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<const N: usize>(numbers: [(u16, u16); N]) -> LunView {
        let numbers = numbers.map(|(shown, own)| (Lun(shown), Lun(own)));
        LunView { numbers: Some(BTreeMap::from(numbers)), read_only: false }
    }

    #[test]
    fn fewer_luns_or_rights_count_as_loss() {
        let all = LunView::default;
        let read_only = LunView { read_only: true, ..all() };
        for (before, after, is_less) in [
            (all(), all(), false),
            (view([(0, 0)]), all(), false),
            (view([(0, 0)]), view([(0, 0), (1, 1)]), false),
            (all(), view([(0, 0)]), true),
            (view([(0, 0), (1, 1)]), view([(0, 0)]), true),
            (view([(0, 0)]), view([(0, 1), (1, 0)]), true),
            (all(), read_only.clone(), true),
            (read_only, all(), false),
        ] {
            assert_eq!(takes_away(&before, &after), is_less, "{before:?} {after:?}");
        }
    }
}
