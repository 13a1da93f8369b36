//! Problems: objects that are not in their desired state.

use std::fmt;
use std::net::SocketAddr;
use std::time::SystemTime;

use crate::model::{Key, ObjectKind};
use crate::schema;

/// An object that is not as desired.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MissingObject {
    /// No initiator can connect through it.
    Portal(SocketAddr),
    /// No initiator can authenticate as it, because its secret cannot be read.
    Account(String),
    /// A target needs a portal that does not exist.
    Target(String),
    /// A pool that cannot be opened, or that needs attention.
    Pool(String),
    /// A volume that is not served, or that is smaller than desired.
    Volume(String),
}

impl MissingObject {
    /// Returns its kind and name.
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::Portal(address) => Key::new(ObjectKind::Portal, &address.to_string()),
            Self::Account(name) => Key::new(ObjectKind::Account, name),
            Self::Target(name) => Key::new(ObjectKind::Target, name),
            Self::Pool(name) => Key::new(ObjectKind::Pool, name),
            Self::Volume(name) => Key::new(ObjectKind::Volume, name),
        }
    }
}

/// Displays it as in a message.
impl fmt::Display for MissingObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { kind, name } = self.key();
        write!(f, "{} {name}", kind.word())
    }
}

/// A problem of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) lacking: MissingObject,
    /// The problem and its remedy.
    pub(crate) why: String,
    pub(crate) since: SystemTime,
}

impl From<&Problem> for schema::Problem {
    fn from(problem: &Problem) -> Self {
        let Key { kind, name } = problem.lacking.key();
        Self {
            kind,
            name,
            problem: problem.why.clone(),
            since_unix_seconds: schema::unix_seconds(problem.since),
        }
    }
}
