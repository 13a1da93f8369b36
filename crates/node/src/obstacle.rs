//! What stands in the way of a server or a change, for who answers with a code: what was named is not there, or
//! somebody else has it.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::iter::successors;

use crate::desired::StateError;
use crate::{ChangeError, StartError};

/// What can be told apart without reading a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A file, a folder or a device that was named is not there.
    Missing,
    /// Somebody else has it.
    Taken,
}

impl Obstacle {
    /// What the system's own error says, wherever it is among the sources of `error`.
    pub fn below(error: &(dyn Error + 'static)) -> Option<Self> {
        let chain = successors(Some(error), |error| (*error).source());
        match chain.filter_map(|error| error.downcast_ref::<io::Error>()).last()?.kind() {
            ErrorKind::NotFound => Some(Self::Missing),
            ErrorKind::AddrInUse | ErrorKind::AlreadyExists => Some(Self::Taken),
            _ => None,
        }
    }
}

impl StartError {
    /// What stands in the way, if it is one of these.
    pub fn obstacle(&self) -> Option<Obstacle> {
        match self {
            Self::Store { source, .. } if source.is_in_use() => Some(Obstacle::Taken),
            Self::Store { source, .. } if source.is_not_found() => Some(Obstacle::Missing),
            Self::State(StateError::InUse(_)) => Some(Obstacle::Taken),
            other => Obstacle::below(other),
        }
    }
}

impl ChangeError {
    /// What stands in the way, if it is one of these.
    pub fn obstacle(&self) -> Option<Obstacle> {
        match self {
            Self::Open(error) => error.obstacle(),
            Self::InUse(_) | Self::Busy(_) | Self::UnderWay => Some(Obstacle::Taken),
            Self::Impossible { .. } | Self::Unflushed(_) | Self::BrokeOff | Self::ServerEnds => {
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sarsen_io::tls::pem::PemError;

    use super::*;
    use crate::stores::StoreError;
    use crate::{ConfigError, TlsError};

    #[test]
    fn what_is_missing_or_taken_is_seen_below_whatever_tells_of_it() {
        let system = |kind: ErrorKind| StoreError::System {
            path: "/nowhere/a.img".into(),
            what: "make it",
            source: kind.into(),
        };
        let store = |source| StartError::Store { volume: "a".into(), source };
        let address = ([127, 0, 0, 1], 3260).into();
        let pem = PemError::Unreadable { path: "c".into(), source: ErrorKind::NotFound.into() };
        let listen = StartError::Listen { address, source: ErrorKind::AddrInUse.into() };
        for (error, obstacle) in [
            (store(system(ErrorKind::NotFound)), Some(Obstacle::Missing)),
            (store(system(ErrorKind::PermissionDenied)), None),
            (store(StoreError::NotFound { path: "a".into() }), Some(Obstacle::Missing)),
            (store(StoreError::InUse { path: "a".into() }), Some(Obstacle::Taken)),
            (StateError::InUse("s".into()).into(), Some(Obstacle::Taken)),
            (StartError::Tls { address, source: TlsError::Pem(pem) }, Some(Obstacle::Missing)),
            (listen, Some(Obstacle::Taken)),
            (ConfigError::new("f:1", "x").into(), None),
        ] {
            let told = format!("{error:?}");
            assert_eq!(ChangeError::from(error).obstacle(), obstacle, "{told}");
        }
        assert_eq!(ChangeError::Busy("a".into()).obstacle(), Some(Obstacle::Taken));
        assert_eq!(ChangeError::ServerEnds.obstacle(), None);
    }
}
