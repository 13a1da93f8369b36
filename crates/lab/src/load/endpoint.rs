//! The endpoints of a load and their syntax.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use sarsen_block::{BlockSize, Store};
use sarsen_initiator::nbd::{NbdUrl, NbdUrlError};
use sarsen_initiator::{Url, UrlError};
use sarsen_node::stores::{CacheMode, RamStore};

/// The endpoint of the I/Os.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A logical unit over iSCSI.
    Iscsi(Url),
    /// An export over NBD.
    Nbd(NbdUrl),
    /// Memory of this program, without a protocol.
    Memory(OpenStore),
    /// A file or a block device, without a protocol.
    File {
        /// Path of the file or device.
        path: PathBuf,
        /// Whether I/Os use the page cache, and when writes are durable.
        cache: CacheMode,
    },
}

/// A store that is open in this program.
#[derive(Clone)]
pub struct OpenStore(Arc<dyn Store>);

impl OpenStore {
    /// Creates an endpoint from any store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// Creates a disk of zeros in memory, with blocks of 512 bytes.
    pub fn ram(bytes: u64) -> std::io::Result<Self> {
        let size = BlockSize::B512;
        Ok(Self(Arc::new(RamStore::new(size, bytes >> size.shift())?)))
    }

    /// Returns the store.
    pub fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }
}

impl fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenStore({} bytes)", self.0.geometry().byte_count())
    }
}

impl Endpoint {
    /// Returns the endpoint of a file or a block device that uses the page cache.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self::File { path: path.into(), cache: CacheMode::default() }
    }

    /// Whether a protocol carries the I/Os. Otherwise this program carries them out itself.
    pub(crate) const fn has_protocol(&self) -> bool {
        matches!(self, Self::Iscsi(_) | Self::Nbd(_))
    }
}

impl From<Url> for Endpoint {
    fn from(url: Url) -> Self {
        Self::Iscsi(url)
    }
}

impl From<NbdUrl> for Endpoint {
    fn from(url: NbdUrl) -> Self {
        Self::Nbd(url)
    }
}

/// The reason for which a text is not a valid endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// An invalid iSCSI URL.
    #[error(transparent)]
    Iscsi(#[from] UrlError),
    /// An invalid NBD URL.
    #[error(transparent)]
    Nbd(#[from] NbdUrlError),
    /// A URL with an unknown scheme.
    #[error(
        "{0:?} is no endpoint: write iscsi://host[:port]/target/lun, nbd://host[:port]/export, \
         nbd+unix:///export?socket=PATH, or the path of a file or block device"
    )]
    Scheme(String),
    /// An empty text.
    #[error("not an endpoint; write iscsi://…, nbd://…, or the path of a file or block device")]
    Empty,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// Parses `iscsi://…`, `nbd://…`, `nbds://…`, `nbd+unix://…`, or a path.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        match text.split_once("://") {
            Some(("iscsi" | "iscsis", _)) => Ok(Self::Iscsi(text.parse()?)),
            Some(("nbd" | "nbds" | "nbd+unix", _)) => Ok(Self::Nbd(text.parse()?)),
            // The error omits the rest of the URL: text before an @ may be a password.
            Some((scheme, _)) if !scheme.contains('/') => {
                Err(EndpointError::Scheme(format!("{scheme}://")))
            }
            _ if text.is_empty() => Err(EndpointError::Empty),
            _ => Ok(Self::path(text)),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iscsi(url) => url.fmt(f),
            Self::Nbd(url) => url.fmt(f),
            Self::Memory(store) => {
                write!(f, "{} bytes of memory", store.0.geometry().byte_count())
            }
            Self::File { path, .. } => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_selects_endpoint_and_other_text_is_path() {
        let url = "iscsi://127.0.0.1:3260/iqn.2026-01.invalid.example:a/0";
        assert_eq!(url.parse::<Endpoint>().unwrap().to_string(), url);
        let url = "nbd+unix:///disk?socket=/run/nbd.sock";
        assert_eq!(url.parse::<Endpoint>().unwrap().to_string(), url);
        assert!(matches!("nbd://h:0".parse::<Endpoint>(), Err(EndpointError::Nbd(_))));
        for path in ["/dev/sda", "disk.img", "./a://b"] {
            let endpoint: Endpoint = path.parse().unwrap();
            assert!(
                matches!(&endpoint, Endpoint::File { path: found, .. } if found.as_os_str() == path)
            );
        }
        assert_eq!("".parse::<Endpoint>().unwrap_err(), EndpointError::Empty);
        let error = "http://user:secret@host/".parse::<Endpoint>().unwrap_err().to_string();
        assert!(error.contains("\"http://\"") && !error.contains("secret"), "{error}");
        assert!(matches!("iscsi://h".parse::<Endpoint>(), Err(EndpointError::Iscsi(_))));
    }
}
