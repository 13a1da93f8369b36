//! Missing objects, such as a volume whose disk is unavailable or a portal whose address does not exist. The server
//! runs without them and reports them. It tries them again with each change, and at regular intervals.

use std::collections::{BTreeMap, BTreeSet};

use sarsen_io::time;

use crate::config::{Config, Portal, PortalRequirement, VolumeConfig};
use crate::problem::{MissingObject, Problem};

/// Missing objects, with the reasons.
#[derive(Clone, Default)]
pub(super) struct MissingObjects {
    pub(super) portals: Vec<(Portal, String)>,
    pub(super) volumes: Vec<(VolumeConfig, String)>,
    /// Targets with needs that no portal meets.
    pub(super) targets: BTreeMap<String, String>,
    /// The portal groups without a portal that targets name. Targets keep their ports for them, as for missing portals.
    pub(super) groups: BTreeSet<u16>,
    /// Open volumes that are smaller than desired.
    pub(super) growths: Vec<(String, String)>,
}

impl MissingObjects {
    /// Returns the needs of targets in a configuration that no portal meets.
    pub(super) fn of_unmet_needs(desired: &Config) -> Self {
        let mut absent = Self::default();
        for unmet in desired.unmet_needs() {
            if let PortalRequirement::Group(group) = unmet.need {
                absent.groups.insert(group);
            }
            let why = absent.targets.entry(unmet.target.to_owned()).or_default();
            if why.is_empty() {
                *why = format!("target {}: {}", unmet.target, unmet.message())
            } else {
                *why = format!("{why}; {}", unmet.message())
            }
        }
        absent
    }

    pub(super) fn has_portal(&self, portal: &Portal) -> bool {
        self.portals.iter().any(|(absent, _)| absent == portal)
    }

    /// Returns all missing objects, and the accounts whose secrets could not be read.
    pub(super) fn lacking(
        &self,
        unread: &BTreeMap<String, String>,
    ) -> Vec<(MissingObject, String)> {
        let portal = |(portal, why): &(Portal, String)| {
            (MissingObject::Portal(portal.address()), why.clone())
        };
        let account =
            |(name, why): (&String, &String)| (MissingObject::Account(name.clone()), why.clone());
        let target =
            |(name, why): (&String, &String)| (MissingObject::Target(name.clone()), why.clone());
        let volume = |(volume, why): &(VolumeConfig, String)| {
            (MissingObject::Volume(volume.name.clone()), why.clone())
        };
        let growth =
            |one: &(String, String)| (MissingObject::Volume(one.0.clone()), not_grown(one));
        let all = self.portals.iter().map(portal).chain(unread.iter().map(account));
        let all = all.chain(self.targets.iter().map(target));
        all.chain(self.volumes.iter().map(volume)).chain(self.growths.iter().map(growth)).collect()
    }
}

/// Returns missing objects as problems, in order, one for each object: the last of them. A problem that existed
/// `before` keeps its time.
pub(super) fn problems(
    lacking: impl Iterator<Item = (MissingObject, String)>,
    before: &[Problem],
) -> Vec<Problem> {
    let all: BTreeMap<MissingObject, String> = lacking.collect();
    let problem = |(lacking, why)| {
        let since =
            place_of(&lacking, before).map_or_else(time::wall_clock, |place| before[place].since);
        Problem { lacking, why, since }
    };
    all.into_iter().map(problem).collect()
}

fn place_of(lacking: &MissingObject, problems: &[Problem]) -> Option<usize> {
    problems.binary_search_by(|problem| problem.lacking.cmp(lacking)).ok()
}

/// Returns the problems of objects that are not among `others`.
pub(super) fn without<'a>(
    some: &'a [Problem],
    others: &'a [Problem],
) -> impl Iterator<Item = &'a Problem> {
    some.iter().filter(|one| place_of(&one.lacking, others).is_none())
}

/// Returns the message for a volume that did not grow.
pub(super) fn not_grown((volume, why): &(String, String)) -> String {
    format!("volume {volume} could not be made larger: {why}")
}
