//! Classes of errors, for callers that return an error code: an object does not exist, or it is in use.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::iter::successors;

use crate::desired::StateError;
use crate::{ChangeError, StartError};

/// A class of errors that a caller can distinguish without the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// A named file, folder or device does not exist.
    Missing,
    /// Another party uses the object.
    Taken,
}

impl ErrorClass {
    /// Returns the class of the system's error among the sources of `error`.
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
    /// Returns the class of the error, if it has one.
    pub fn error_class(&self) -> Option<ErrorClass> {
        match self {
            Self::Store { source, .. } if source.is_in_use() => Some(ErrorClass::Taken),
            Self::Store { source, .. } if source.is_not_found() => Some(ErrorClass::Missing),
            Self::State(StateError::InUse(_)) => Some(ErrorClass::Taken),
            other => ErrorClass::below(other),
        }
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
            Self::InUse(_) | Self::Busy(_) | Self::UnderWay => Some(ErrorClass::Taken),
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
    fn error_class_is_found_below_context() {
        let path = "/nowhere/a.img".as_ref();
        let system = |kind: ErrorKind| StoreError::system(path, "make it")(kind.into());
        let store = |source| StartError::Store { volume: "a".into(), source };
        let address = ([127, 0, 0, 1], 3260).into();
        let pem = PemError::Unreadable { path: "c".into(), source: ErrorKind::NotFound.into() };
        let listen = StartError::Listen { address, source: ErrorKind::AddrInUse.into() };
        for (error, error_class) in [
            (store(system(ErrorKind::NotFound)), Some(ErrorClass::Missing)),
            (store(system(ErrorKind::PermissionDenied)), None),
            (store(StoreError::NotFound { path: "a".into() }), Some(ErrorClass::Missing)),
            (store(StoreError::InUse { path: "a".into() }), Some(ErrorClass::Taken)),
            (StateError::InUse("s".into()).into(), Some(ErrorClass::Taken)),
            (StartError::Tls { address, source: TlsError::Pem(pem) }, Some(ErrorClass::Missing)),
            (listen, Some(ErrorClass::Taken)),
            (ConfigError::new("f:1", "x").into(), None),
        ] {
            let reported = format!("{error:?}");
            assert_eq!(ChangeError::from(error).error_class(), error_class, "{reported}");
        }
        assert_eq!(ChangeError::Busy("a".into()).error_class(), Some(ErrorClass::Taken));
        assert_eq!(ChangeError::ServerEnds.error_class(), None);
    }
}
