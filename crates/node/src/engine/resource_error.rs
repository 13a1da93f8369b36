//! Errors of resources that the configuration names.

use std::io;
use std::net::SocketAddr;

use crate::config::ConfigError;
use crate::error_class::ErrorClass;
use crate::stores::StoreError;
use crate::tls::TlsError;

/// The reason why a configuration cannot be put into force.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A volume could not be opened.
    #[error("volume {volume}: {source}")]
    Store {
        /// The name of the volume.
        volume: String,
        /// The problem and its remedy.
        source: StoreError,
    },
    /// A pool could not be opened.
    #[error("{0}")]
    Pool(StoreError),
    /// A portal could not be opened.
    #[error("cannot listen on {address}: {source}{}", remedy(source))]
    Listen {
        /// The portal.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A portal's certificates cannot be used.
    #[error("portal {address}: {source}")]
    Tls {
        /// The portal.
        address: SocketAddr,
        /// The problem and its file.
        source: TlsError,
    },
}

impl ResourceError {
    /// Returns the class of the error, if it has one.
    pub fn error_class(&self) -> Option<ErrorClass> {
        match self {
            Self::Store { source, .. } | Self::Pool(source) if source.is_in_use() => {
                Some(ErrorClass::Taken)
            }
            Self::Store { source, .. } | Self::Pool(source) if source.is_not_found() => {
                Some(ErrorClass::Missing)
            }
            other => ErrorClass::below(other),
        }
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            " (another program, or a portal or the API of this server, uses it: choose another address, at the start \
             with --listen or --listen-nbd)"
        }
        io::ErrorKind::PermissionDenied => " (choose a port from 1024 on)",
        io::ErrorKind::AddrNotAvailable => " (this machine does not have that address)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use sarsen_io::tls::pem::PemError;

    use super::*;
    use crate::ChangeError;

    #[test]
    fn error_class_is_found_below_context() {
        let path = "/nowhere/a.img".as_ref();
        let system = |kind: ErrorKind| StoreError::system(path, "make it")(kind.into());
        let store = |source| ResourceError::Store { volume: "a".into(), source };
        let address = ([127, 0, 0, 1], 3260).into();
        let pem = PemError::Unreadable { path: "c".into(), source: ErrorKind::NotFound.into() };
        let listen = ResourceError::Listen { address, source: ErrorKind::AddrInUse.into() };
        for (error, error_class) in [
            (store(system(ErrorKind::NotFound)), Some(ErrorClass::Missing)),
            (store(system(ErrorKind::PermissionDenied)), None),
            (store(StoreError::NotFound { path: "a".into() }), Some(ErrorClass::Missing)),
            (store(StoreError::InUse { path: "a".into() }), Some(ErrorClass::Taken)),
            (ResourceError::Tls { address, source: TlsError::Pem(pem) }, Some(ErrorClass::Missing)),
            (listen, Some(ErrorClass::Taken)),
            (ConfigError::new("f:1", "x").into(), None),
        ] {
            let reported = format!("{error:?}");
            assert_eq!(ChangeError::from(error).error_class(), error_class, "{reported}");
        }
        assert_eq!(ChangeError::UnderWay.error_class(), Some(ErrorClass::Taken));
        assert_eq!(ChangeError::ServerEnds.error_class(), None);
    }
}
