//! What is desired and is not there, such as a volume whose disk is away or a portal whose address is. The server
//! does without it, tells so, and tries it again: with each change, and every now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::SystemTime;

use sarsen_io::time;

use crate::config::{Config, Portal, PortalRequirement, VolumeConfig};
use crate::desired::{Key, ObjectKind};

/// Which thing is not as it is desired.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MissingObject {
    /// Nobody can come through it.
    Portal(SocketAddr),
    /// Nobody can prove to be it.
    Account(String),
    /// A target needs a portal that does not exist.
    Target(String),
    /// It is not served, or smaller than it is to be.
    Volume(String),
}

impl MissingObject {
    /// Of which kind it is, and its name.
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::Portal(address) => Key::new(ObjectKind::Portal, &address.to_string()),
            Self::Account(name) => Key::new(ObjectKind::Account, name),
            Self::Target(name) => Key::new(ObjectKind::Target, name),
            Self::Volume(name) => Key::new(ObjectKind::Volume, name),
        }
    }
}

/// As a message names it.
impl fmt::Display for MissingObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { kind, name } = self.key();
        write!(f, "{} {name}", kind.word())
    }
}

/// Something that is not as it is desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) lacking: MissingObject,
    /// The problem and its remedy.
    pub(crate) why: String,
    pub(crate) since: SystemTime,
}

/// Missing objects, and why.
#[derive(Clone, Default)]
pub(super) struct Absent {
    pub(super) portals: Vec<(Portal, String)>,
    pub(super) volumes: Vec<(VolumeConfig, String)>,
    /// Targets with needs that no portal meets.
    pub(super) targets: BTreeMap<String, String>,
    /// The portal groups without a portal that they name: targets keep their ports for them, as for missing portals.
    pub(super) groups: BTreeSet<u16>,
    /// Volumes that are there and are not as large as they are to be.
    pub(super) growths: Vec<(String, String)>,
}

impl Absent {
    /// Needs of targets in a configuration that no portal meets.
    pub(super) fn of_portals(desired: &Config) -> Self {
        let mut absent = Self::default();
        for unmet in desired.unmet_needs() {
            if let PortalRequirement::Group(group) = unmet.need {
                absent.groups.insert(group);
            }
            let why = absent.targets.entry(unmet.target.to_owned()).or_default();
            match why.is_empty() {
                true => *why = format!("target {}: {}", unmet.target, unmet.what()),
                false => *why = format!("{why}; {}", unmet.what()),
            }
        }
        absent
    }

    pub(super) fn has_portal(&self, portal: &Portal) -> bool {
        self.portals.iter().any(|(absent, _)| absent == portal)
    }

    /// All missing objects, and the secrets that accounts lack.
    pub(super) fn lacking(
        &self,
        unread: &BTreeMap<String, String>,
    ) -> Vec<(MissingObject, String)> {
        let portal =
            |(portal, why): &(Portal, String)| (MissingObject::Portal(portal.address), why.clone());
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

/// Missing objects as problems, in order, one for each object: the last of them. A problem that existed `before`
/// keeps its time.
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

/// Those of some problems that are not among others.
pub(super) fn without<'a>(
    some: &'a [Problem],
    others: &'a [Problem],
) -> impl Iterator<Item = &'a Problem> {
    some.iter().filter(|one| place_of(&one.lacking, others).is_none())
}

/// A volume that did not grow, and why not, as it is told.
pub(super) fn not_grown((volume, why): &(String, String)) -> String {
    format!("volume {volume} could not be made larger: {why}")
}
