//! Who is measured: our own target, others' targets that are installed here, targets that run
//! somewhere, and the bare medium without any of them.
//!
//! A contestant is started with the volumes of a study in a private folder, on a free port of the
//! targets' side of the [`Network`], and is gone without a trace when its [`Running`] is dropped.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sarsen_initiator::Url;
use sarsen_node::stores::CacheMode;

use crate::load::Endpoint;
use crate::network::{Link, Network};

/// A kind of contestant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// This program.
    Sarsen,
    /// Debian's tgt.
    Tgt,
    /// Debian's istgt.
    Istgt,
    /// nbdkit: the NBD protocol.
    Nbdkit,
    /// An iSCSI target that somebody else runs. Only one volume, and only as it is.
    Iscsi(Url),
    /// An NBD export that somebody else runs: `nbd://host[:port][/export]`.
    Nbd(String),
    /// No protocol: the medium itself.
    Direct,
    /// No protocol: this file or block device.
    DirectPath(PathBuf),
}

/// What a volume's blocks are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Memory.
    Ram,
    /// A file in the run's folder on disk.
    Disk,
}

/// A volume that a study wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Its name within the study: lower-case letters, digits and hyphens.
    pub name: String,
    /// What it is on.
    pub medium: Medium,
    /// Its size.
    pub bytes: u64,
    /// How a disk's volume is cached.
    pub cache: CacheMode,
}

/// Why a contestant does not take part, or not in this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContestantError {
    /// It cannot do what is asked, which is no failure: the cell is not measured.
    #[error("{0}")]
    Unable(String),
    /// It should have worked.
    #[error("{0}")]
    Failed(String),
}

/// A contestant that answers. It ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    name: String,
    url: Url,
}

impl Contestant {
    /// Starts it with these volumes; `folder` is for files of volumes on disk.
    pub fn start(
        &self,
        _network: &Network,
        _volumes: &[VolumeSpec],
        _folder: &Path,
    ) -> Result<Running, ContestantError> {
        match self {
            Self::Iscsi(url) => Ok(Running { name: self.to_string(), url: url.clone() }),
            _ => Err(ContestantError::Unable("not started by the lab".into())),
        }
    }
}

impl Running {
    /// Its name in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says of its version, if it does.
    pub fn version(&self) -> Option<&str> {
        None
    }

    /// The commands that started and configured it.
    pub fn commands(&self) -> &[String] {
        &[]
    }

    /// Its processes on this machine.
    pub fn pids(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Where a volume answers over a link.
    pub fn endpoint(&self, _volume: &str, _link: &Link) -> Result<Endpoint, ContestantError> {
        Ok(Endpoint::Iscsi(self.url.clone()))
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sarsen => f.write_str("sarsen"),
            Self::Tgt => f.write_str("tgt"),
            Self::Istgt => f.write_str("istgt"),
            Self::Nbdkit => f.write_str("nbdkit"),
            Self::Iscsi(url) => write!(f, "{}", url.target),
            Self::Nbd(url) => f.write_str(url),
            Self::Direct => f.write_str("direct"),
            Self::DirectPath(path) => write!(f, "direct:{}", path.display()),
        }
    }
}

impl FromStr for Contestant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "sarsen" => Self::Sarsen,
            "tgt" => Self::Tgt,
            "istgt" => Self::Istgt,
            "nbdkit" => Self::Nbdkit,
            "direct" => Self::Direct,
            _ => {
                if let Some(path) = text.strip_prefix("direct:") {
                    Self::DirectPath(path.into())
                } else if text.starts_with("nbd://") {
                    Self::Nbd(text.into())
                } else {
                    Self::Iscsi(text.parse().map_err(|error| {
                        format!(
                            "{text:?} is no contestant ({error}): write sarsen, tgt, istgt, nbdkit, \
                             direct, direct:PATH, iscsi://… or nbd://…"
                        )
                    })?)
                }
            }
        })
    }
}
