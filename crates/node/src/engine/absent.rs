//! What is desired and is not there, such as a volume whose disk is away or a portal whose address is. The server
//! does without it, tells so, and tries it again: with each change, and every now and then.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::SystemTime;

use sarsen_io::time;

use crate::config::{Portal, VolumeConfig};
use crate::desired::{Key, Kind};

/// Which thing is not as it is desired.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lacking {
    /// Nobody can come through it.
    Portal(SocketAddr),
    /// Nobody can prove to be it.
    Account(String),
    /// It is not served, or smaller than it is to be.
    Volume(String),
}

impl Lacking {
    /// Of which kind it is, and its name.
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::Portal(address) => Key::new(Kind::Portal, &address.to_string()),
            Self::Account(name) => Key::new(Kind::Account, name),
            Self::Volume(name) => Key::new(Kind::Volume, name),
        }
    }
}

/// As a message names it.
impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { kind, name } = self.key();
        write!(f, "{} {name}", kind.word())
    }
}

/// Something that is not as it is desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) lacking: Lacking,
    /// What is wrong, and what to do.
    pub(crate) why: String,
    pub(crate) since: SystemTime,
}

/// What the server does without, and why.
#[derive(Clone, Default)]
pub(super) struct Absent {
    pub(super) portals: Vec<(Portal, String)>,
    pub(super) volumes: Vec<(VolumeConfig, String)>,
    /// Volumes that are there and are not as large as they are to be.
    pub(super) growths: Vec<(String, String)>,
}

impl Absent {
    pub(super) fn has_portal(&self, portal: &Portal) -> bool {
        self.portals.iter().any(|(absent, _)| absent == portal)
    }

    /// All of it, in order, with what accounts lack. What was wrong `before` has been since then.
    pub(super) fn problems(
        &self,
        unread: &BTreeMap<String, String>,
        before: &[Problem],
    ) -> Vec<Problem> {
        let portal =
            |(portal, why): &(Portal, String)| (Lacking::Portal(portal.address), why.clone());
        let account =
            |(name, why): (&String, &String)| (Lacking::Account(name.clone()), why.clone());
        let volume = |(volume, why): &(VolumeConfig, String)| {
            (Lacking::Volume(volume.name.clone()), why.clone())
        };
        let growth = |one: &(String, String)| (Lacking::Volume(one.0.clone()), not_grown(one));
        let all = self.portals.iter().map(portal).chain(unread.iter().map(account));
        let all = all.chain(self.volumes.iter().map(volume)).chain(self.growths.iter().map(growth));
        let mut problems: Vec<Problem> = all
            .map(|(lacking, why)| {
                let since = place_of(&lacking, before)
                    .map_or_else(time::wall_clock, |place| before[place].since);
                Problem { lacking, why, since }
            })
            .collect();
        problems.sort_by(|one, other| one.lacking.cmp(&other.lacking));
        problems
    }
}

fn place_of(lacking: &Lacking, problems: &[Problem]) -> Option<usize> {
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
