//! Combines the rules of several portal groups into rules of their target. In sarsen, a rule applies at all portals of
//! a target. It must not permit or show anything that one of the groups did not.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::DraftRule;
use sarsen_node::config::NamePattern;
use sarsen_node::model::document::Rule;

/// Returns rules that permit the initiators that all lists permit. An empty result permits no initiator.
pub(super) fn common_rules(lists: &[Vec<Rule>]) -> Vec<Rule> {
    let mut common: Vec<Rule> = Vec::new();
    for rule in lists.iter().flatten() {
        let is_in_all = lists.iter().all(|list| list.iter().any(|other| covers(other, rule)));
        if is_in_all && !common.contains(rule) {
            common.push(rule.clone());
        }
    }
    common
}

/// Returns whether all initiators that match `narrow` also match `wide`.
fn covers(wide: &Rule, narrow: &Rule) -> bool {
    fn covers<T: PartialEq>(wide: &Option<T>, narrow: &Option<T>) -> bool {
        wide.is_none() || wide == narrow
    }
    covers(&wide.initiator, &narrow.initiator)
        && covers(&wide.address, &narrow.address)
        && covers(&wide.account, &narrow.account)
}

/// The access of one initiator, or of all initiators without a rule of their own.
pub(super) enum CommonAccess {
    /// All portal groups show the initiator the same units.
    Same(DraftRule),
    /// The initiator is shown the units that all portal groups show.
    Less(DraftRule),
    /// A portal group does not permit the initiator, or requires another authentication.
    NoInitiator {
        /// The place of a rule for the initiator.
        place: String,
        /// The initiator's name; `None` for all others.
        initiator: Option<NamePattern>,
    },
}

/// Returns the combined rules of portal groups. In each group, an initiator's own rule precedes the rule for all
/// others.
pub(super) fn common_showings(mut groups: Vec<Vec<DraftRule>>) -> Vec<CommonAccess> {
    if groups.len() == 1 {
        return groups.remove(0).into_iter().map(CommonAccess::Same).collect();
    }
    let mut known = BTreeSet::new();
    let all = groups.iter().flatten();
    let each = all.filter(|showing| known.insert(showing.rule.initiator.clone()));
    each.map(|showing| common_showing(&groups, showing)).collect()
}

fn common_showing(groups: &[Vec<DraftRule>], showing: &DraftRule) -> CommonAccess {
    let initiator = &showing.rule.initiator;
    let mut shown: BTreeMap<u16, String> = showing.shown.clone();
    let mut protected = showing.protected.clone();
    for group in groups {
        let other = showing_for(group, initiator);
        let Some(other) = other.filter(|other| other.rule.account == showing.rule.account) else {
            return CommonAccess::NoInitiator {
                place: showing.place.clone(),
                initiator: initiator.clone(),
            };
        };
        shown.retain(|lun, volume| other.shown.get(lun) == Some(volume));
        protected.extend(&other.protected);
    }
    let is_same = groups.iter().all(|group| {
        let other = showing_for(group, initiator);
        other.is_some_and(|other| other.shown == shown && other.protected == protected)
    });
    if shown.is_empty() && !is_same {
        return CommonAccess::NoInitiator {
            place: showing.place.clone(),
            initiator: initiator.clone(),
        };
    }
    protected.retain(|lun| shown.contains_key(lun));
    let (place, rule) = (showing.place.clone(), showing.rule.clone());
    let showing = DraftRule { place, rule, shown, protected };
    if is_same { CommonAccess::Same(showing) } else { CommonAccess::Less(showing) }
}

/// Returns what a portal group shows an initiator: by its own rule, or else by the rule for all others.
fn showing_for<'a>(
    group: &'a [DraftRule],
    initiator: &Option<NamePattern>,
) -> Option<&'a DraftRule> {
    let own = group.iter().find(|showing| showing.rule.initiator == *initiator);
    own.or_else(|| group.iter().find(|showing| showing.rule.initiator.is_none()))
}
