//! Missing objects, such as a volume whose disk is unavailable or a portal whose address does not exist. The server
//! runs without them and reports them. It tries them again with each change, and at regular intervals.

use std::collections::{BTreeMap, BTreeSet};

use sarsen_io::time;

use super::volumes::{Growth, Volume};
use crate::config::{Config, Portal, PortalRequirement, VolumeConfig};
use crate::problem::{MissingObject, Problem};
use crate::stores::OpenMode;

/// A desired volume that is not in force.
#[derive(Clone)]
pub(super) struct MissingVolume {
    pub(super) config: VolumeConfig,
    /// The reason, or `None` while it is pending, which is no problem yet.
    pub(super) why: Option<String>,
    /// A task brings it into force.
    pub(super) has_task: bool,
    /// Each attempt opens it in this mode.
    pub(super) open_mode: OpenMode,
}

/// Missing objects, with the reasons.
#[derive(Clone, Default)]
pub(super) struct MissingObjects {
    /// Portals that cannot be opened, and pending ones without a reason.
    pub(super) portals: Vec<(Portal, Option<String>)>,
    pub(super) volumes: Vec<MissingVolume>,
    /// Targets with needs that no portal meets.
    pub(super) targets: BTreeMap<String, String>,
    /// The portal groups without a portal that targets name. Targets keep their ports for them, as for missing portals.
    pub(super) groups: BTreeSet<u16>,
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

    /// Returns the missing volume with this configuration.
    pub(super) fn volume(&self, config: &VolumeConfig) -> Option<&MissingVolume> {
        self.volumes.iter().find(|missing| missing.config == *config)
    }

    /// The same, to change it.
    pub(super) fn volume_mut(&mut self, config: &VolumeConfig) -> Option<&mut MissingVolume> {
        self.volumes.iter_mut().find(|missing| missing.config == *config)
    }

    /// Returns whether a volume with this configuration is missing.
    pub(super) fn knows(&self, config: &VolumeConfig) -> bool {
        self.volume(config).is_some()
    }

    pub(super) fn has_portal(&self, portal: &Portal) -> bool {
        self.portals.iter().any(|(absent, _)| absent == portal)
    }

    /// Returns all missing objects, the accounts whose secrets could not be read, and the volumes that did not grow.
    pub(super) fn lacking(
        &self,
        unread: &BTreeMap<String, String>,
        volumes: &BTreeMap<String, Volume>,
    ) -> Vec<(MissingObject, String)> {
        let portal = |(portal, why): &(Portal, Option<String>)| {
            Some((MissingObject::Portal(portal.address()), why.clone()?))
        };
        let account =
            |(name, why): (&String, &String)| (MissingObject::Account(name.clone()), why.clone());
        let target =
            |(name, why): (&String, &String)| (MissingObject::Target(name.clone()), why.clone());
        let volume = |MissingVolume { config, why, .. }: &MissingVolume| {
            Some((MissingObject::Volume(config.name.clone()), why.clone()?))
        };
        let growth = |(name, volume): (&String, &Volume)| match &volume.growth {
            Growth::Failed(why) => {
                Some((MissingObject::Volume(name.clone()), not_grown(name, why)))
            }
            Growth::None | Growth::UnderWay(_) => None,
        };
        let all = self.portals.iter().filter_map(portal).chain(unread.iter().map(account));
        let all = all.chain(self.targets.iter().map(target));
        all.chain(self.volumes.iter().filter_map(volume))
            .chain(volumes.iter().filter_map(growth))
            .collect()
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
pub(super) fn not_grown(volume: &str, why: &str) -> String {
    format!("volume {volume} could not be made larger: {why}")
}
