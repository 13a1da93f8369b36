//! The reasons why a change of the desired state was refused.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::StateError;
use crate::engine::{self, ChangeError};
use crate::model::{Invalid, Key, ObjectKind};

/// An object that is in use, and that the change would close.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Interruption {
    /// The object: `volume data`.
    pub object: String,
    /// The initiators that use it.
    pub initiators: Vec<String>,
}

impl Interruption {
    pub(super) fn of(interruption: &engine::Interruption) -> Self {
        let sessions = interruption.sessions.iter();
        let initiators: BTreeSet<_> = sessions.map(|session| session.initiator.clone()).collect();
        Self {
            object: interruption.object.to_string(),
            initiators: initiators.into_iter().collect(),
        }
    }
}

/// The reason why a change was refused. The server applied no part of it.
#[derive(Debug, thiserror::Error)]
pub enum ChangeRefused {
    /// The change is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The named object does not exist.
    #[error("there is no {} {}{}", .0.kind.word(), .0.name, .1)]
    NotFound(Key, String),
    /// An object of this name exists already.
    #[error("there is {} {} already", article(.0.kind), .0.name)]
    Exists(Key),
    /// Remaining objects refer to an object that the change would delete.
    #[error("{} {} is {}: {}", .key.kind.word(), .key.name, .by.join(", "), remedy(.key, *.is_left_out))]
    Referred {
        /// The object that would be deleted.
        key: Key,
        /// The references: `LUN 1 of iqn…`.
        by: Vec<String>,
        /// The reason of the deletion is that a document does not list the object.
        is_left_out: bool,
    },
    /// Another client has changed the state meanwhile.
    #[error(
        "the state is at revision {current}, and this change was made for {expected}: look again, and \
         repeat it if it still fits"
    )]
    Conflict {
        /// The expected revision.
        expected: u64,
        /// The current revision.
        current: u64,
    },
    /// Clients use what it takes away.
    #[error("{}: use --force to log them out first", reported(.0))]
    InUse(Vec<Interruption>),
    /// The volume has no file of its own to erase.
    #[error("volume {volume}: {why}")]
    NotErasable {
        /// The name of the volume.
        volume: String,
        /// The reason and the remedy.
        why: String,
    },
    /// A store, a portal or a secret prevents it.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The change could not be stored.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Returns `a volume`, `an account`.
fn article(kind: ObjectKind) -> String {
    let article = if kind == ObjectKind::Account { "an" } else { "a" };
    format!("{article} {}", kind.word())
}

/// Returns the remedy for an object to which others refer.
fn remedy(key: &Key, is_left_out: bool) -> &'static str {
    match (is_left_out, key.kind) {
        (true, _) => "the document leaves it out: list it, or change that, too",
        (false, ObjectKind::Pool) => "delete its volumes first",
        (false, ObjectKind::Volume) => "detach it first, or give --cascade",
        // A cascade does not delete the account of a host, nor the last account of a list.
        (false, ObjectKind::Account) => "take it out of there first",
        (false, _) => "take it out of there first, or give --cascade",
    }
}

fn reported(interruptions: &[Interruption]) -> String {
    let sentences = interruptions.iter().map(|Interruption { object, initiators }| {
        format!("{object} is used by {}", initiators.join(", "))
    });
    sentences.collect::<Vec<_>>().join("; ")
}
