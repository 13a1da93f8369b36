//! What a load can be put on, and how it is written.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use sarsen_block::{BlockSize, Store};
use sarsen_initiator::nbd::{NbdUrl, NbdUrlError};
use sarsen_initiator::{Url, UrlError};
use sarsen_node::stores::{CacheMode, RamStore};

/// What I/Os go to.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A logical unit over iSCSI.
    Iscsi(Url),
    /// An export over NBD.
    Nbd(NbdUrl),
    /// No protocol: memory of this program.
    Memory(OpenStore),
    /// No protocol: a file or a block device.
    File {
        /// Where it is.
        path: PathBuf,
        /// Through the page cache or past it, and when writes are durable.
        cache: CacheMode,
    },
}

/// A store that is open in this program.
#[derive(Clone)]
pub struct OpenStore(Arc<dyn Store>);

impl OpenStore {
    /// Any store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// A disk of zeroes in memory, of whole blocks of 512 bytes.
    pub fn ram(bytes: u64) -> std::io::Result<Self> {
        let size = BlockSize::B512;
        Ok(Self(Arc::new(RamStore::new(size, bytes >> size.shift())?)))
    }

    /// The store.
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
    /// A file or a block device through the page cache.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self::File { path: path.into(), cache: CacheMode::default() }
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

/// Why a text names nothing that a load can be put on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// An iSCSI URL with a mistake.
    #[error(transparent)]
    Iscsi(#[from] UrlError),
    /// An NBD URL with a mistake.
    #[error(transparent)]
    Nbd(#[from] NbdUrlError),
    /// A URL of another kind.
    #[error(
        "{0:?} is no endpoint: write iscsi://host[:port]/target/lun, nbd://host[:port]/export, \
         nbd+unix:///export?socket=PATH, or the path of a file or block device"
    )]
    Scheme(String),
    /// Nothing at all.
    #[error("not an endpoint; write iscsi://…, nbd://…, or the path of a file or block device")]
    Empty,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// `iscsi://…`, `nbd://…`, `nbd+unix://…`, or a path.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        match text.split_once("://") {
            Some(("iscsi" | "iscsis", _)) => Ok(Self::Iscsi(text.parse()?)),
            Some(("nbd" | "nbd+unix", _)) => Ok(Self::Nbd(text.parse()?)),
            // What stands before an @ may be a secret, so it is not repeated.
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
    fn a_url_is_what_its_scheme_says_and_all_else_is_a_path() {
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
