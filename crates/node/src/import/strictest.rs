//! Rules of single portal groups become those of a target: here a rule holds at all of a target's portals, so that
//! it may let in nobody, and show nothing, that one of them did not.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::DraftRule;
use crate::desired::document::Rule;

/// Rules that let in whom each of the lists lets in; no rule lets in nobody.
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

/// Whoever fits one fits the other.
fn covers(wide: &Rule, narrow: &Rule) -> bool {
    let covers = |wide: &Option<String>, narrow: &Option<String>| wide.is_none() || wide == narrow;
    covers(&wide.initiator, &narrow.initiator)
        && covers(&wide.address, &narrow.address)
        && covers(&wide.account, &narrow.account)
}

/// What becomes of an initiator, or of everybody initiators without a rule.
pub(super) enum Common {
    /// He is shown the same through all portal groups.
    Same(DraftRule),
    /// He is shown what all of them do.
    Less(DraftRule),
    /// Some do not let him in, or want another proof of him.
    Nobody {
        /// Where one of them speaks of him.
        place: String,
        /// His name, unless it is everybody.
        initiator: Option<String>,
    },
}

/// What is common to the portal groups, in each of which a rule of one's own comes before that for everybody.
pub(super) fn common_showings(mut groups: Vec<Vec<DraftRule>>) -> Vec<Common> {
    if groups.len() == 1 {
        return groups.remove(0).into_iter().map(Common::Same).collect();
    }
    let mut known = BTreeSet::new();
    let all = groups.iter().flatten();
    let each = all.filter(|showing| known.insert(showing.rule.initiator.clone()));
    each.map(|showing| common_showing(&groups, showing)).collect()
}

fn common_showing(groups: &[Vec<DraftRule>], showing: &DraftRule) -> Common {
    let initiator = &showing.rule.initiator;
    let of = |group: &Vec<DraftRule>, initiator: &Option<String>| {
        group.iter().position(|other| other.rule.initiator == *initiator)
    };
    let mut shown: BTreeMap<u16, String> = showing.shown.clone();
    let mut protected = showing.protected.clone();
    for group in groups {
        let other = of(group, initiator).or_else(|| of(group, &None)).map(|at| &group[at]);
        let Some(other) = other.filter(|other| other.rule.account == showing.rule.account) else {
            return Common::Nobody { place: showing.place.clone(), initiator: initiator.clone() };
        };
        shown.retain(|lun, volume| other.shown.get(lun) == Some(volume));
        protected.extend(&other.protected);
    }
    let is_same = groups.iter().all(|group| {
        let other = of(group, initiator).or_else(|| of(group, &None)).map(|at| &group[at]);
        other.is_some_and(|other| other.shown == shown && other.protected == protected)
    });
    if shown.is_empty() && !is_same {
        return Common::Nobody { place: showing.place.clone(), initiator: initiator.clone() };
    }
    protected.retain(|lun| shown.contains_key(lun));
    let (place, rule) = (showing.place.clone(), showing.rule.clone());
    let showing = DraftRule { place, rule, shown, protected };
    if is_same { Common::Same(showing) } else { Common::Less(showing) }
}
