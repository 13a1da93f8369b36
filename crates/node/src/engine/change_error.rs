//! The reasons why a change of the running objects was not made, and the sessions that it would have interrupted.

use super::ResourceError;
use crate::access::Object;
use crate::config::ConfigError;
use crate::error_class::ErrorClass;
use crate::model::Key;

/// The reason why a change was not made. The running objects are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// A desired object cannot be opened.
    #[error(transparent)]
    Open(#[from] ResourceError),
    /// A volume cannot be changed as desired.
    #[error("volume {volume} {why}")]
    Impossible {
        /// The name of the volume.
        volume: String,
        /// The reason and the remedy.
        why: String,
    },
    /// Sessions use an object that would be closed.
    #[error("{} in use: {}", Listed(.0), "log its initiators out first, or force the change")]
    InUse(Vec<Interruption>),
    /// Another change of the same objects is being made.
    #[error("another change of the same objects is in progress; try again later")]
    UnderWay,
    /// A disk does not respond.
    #[error(
        "{} {}: its disk does not respond; check the disk or the file server that it is on", .0.kind.word(), .0.name
    )]
    Hangs(Key),
    /// A volume waits for another one that cannot be closed.
    #[error("volume {volume} waits for the file or the identity of another volume: {why}")]
    Stuck {
        /// The name of the volume.
        volume: String,
        /// The reason.
        why: String,
    },
    /// The change is stored, and its object is not in force yet.
    #[error("{0}")]
    Pending(String),
    /// Sessions that were terminated still wait for their disks.
    #[error("{0} sessions have not ended: their disks do not respond")]
    SessionsStay(usize),
    /// A volume could not be made larger.
    #[error("{0}")]
    NotGrown(String),
    /// The file of a deleted volume could not be erased.
    #[error("not erased: {0}")]
    NotErased(String),
    /// A volume that must be closed has writes that are not on the disk.
    #[error(
        "volume {0} has writes that could not be brought to disk, and would forget that if it were closed for this \
         change: look at its disk and at the log, and end the server first"
    )]
    Unflushed(String),
    /// It stumbled over an error of its own.
    #[error("the change was aborted; see the log")]
    BrokeOff,
    /// The server ends.
    #[error("the server stops; nothing was changed")]
    ServerEnds,
}

impl From<ConfigError> for ChangeError {
    fn from(error: ConfigError) -> Self {
        Self::Open(error.into())
    }
}

impl ChangeError {
    pub(crate) fn impossible(volume: &str, why: impl Into<String>) -> Self {
        Self::Impossible { volume: volume.to_owned(), why: why.into() }
    }

    /// Returns the class of the error, if it has one.
    pub fn error_class(&self) -> Option<ErrorClass> {
        match self {
            Self::Open(error) => error.error_class(),
            Self::InUse(_) | Self::UnderWay => Some(ErrorClass::Taken),
            Self::Impossible { .. }
            | Self::Hangs(_)
            | Self::Stuck { .. }
            | Self::SessionsStay(_)
            | Self::Pending(_)
            | Self::NotGrown(_)
            | Self::NotErased(_)
            | Self::Unflushed(_)
            | Self::BrokeOff
            | Self::ServerEnds => None,
        }
    }
}

/// An object that is in use, and that the change would close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interruption {
    /// The object.
    pub object: Object,
    /// The sessions that use it.
    pub sessions: Vec<AffectedSession>,
}

/// A session that a change would terminate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffectedSession {
    /// Its TSIH.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
}

/// Displays interruptions as in a message.
struct Listed<'a>(&'a [Interruption]);

impl std::fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, Interruption { object, sessions }) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let plural = if sessions.len() == 1 { "" } else { "s" };
            write!(f, "{separator}{object} ({} session{plural})", sessions.len())?;
        }
        f.write_str(if self.0.len() == 1 { " is" } else { " are" })
    }
}
