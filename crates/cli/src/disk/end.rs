//! The disks of the verbs: logical units over iSCSI, and exports of NBD servers.

use std::fmt;

use sarsen_initiator::nbd::NbdUrl;
use sarsen_initiator::transfer::{Disk, NbdDisk, Sink, Source, TransferError};
use sarsen_initiator::{SessionOptions, Url};

use super::parse;
use crate::exit::UsageError;

/// The name of a disk.
#[derive(Clone, Debug)]
pub(super) enum EndUrl {
    Iscsi(Url),
    Nbd(NbdUrl),
}

impl EndUrl {
    /// Returns whether a text is meant as a URL, and not as the name of a file.
    pub(super) fn is_meant(text: &str) -> bool {
        let schemes = ["iscsi", "iscsis", "nbd", "nbds", "nbd+unix", "nbds+unix"];
        text.split_once("://").is_some_and(|(scheme, _)| schemes.contains(&scheme))
    }

    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        match text.split_once("://") {
            Some((scheme, _)) if scheme.starts_with("nbd") => {
                let url = text.parse::<NbdUrl>();
                Ok(Self::Nbd(url.map_err(|error| UsageError(error.to_string()))?))
            }
            _ => Ok(Self::Iscsi(parse(text)?)),
        }
    }

    /// Returns whether both name the same disk. Different names can also be one disk.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Iscsi(one), Self::Iscsi(other)) => {
                let shares_a_portal = one.portals.iter().any(|one| other.portals.contains(one));
                shares_a_portal && (&one.target, one.lun) == (&other.target, other.lun)
            }
            (Self::Nbd(one), Self::Nbd(other)) => one == other,
            (Self::Iscsi(_), Self::Nbd(_)) | (Self::Nbd(_), Self::Iscsi(_)) => false,
        }
    }

    pub(super) async fn open(&self, options: &SessionOptions) -> Result<End, TransferError> {
        Ok(match self {
            Self::Iscsi(url) => End::Iscsi(Box::new(Disk::open(url, options).await?)),
            Self::Nbd(url) => End::Nbd(NbdDisk::open(url, options.reconnect_limit).await?),
        })
    }
}

impl fmt::Display for EndUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iscsi(url) => url.fmt(f),
            Self::Nbd(url) => url.fmt(f),
        }
    }
}

/// An open disk.
pub(super) enum End {
    Iscsi(Box<Disk>),
    Nbd(NbdDisk),
}

impl End {
    pub(super) fn place(&self) -> &str {
        match self {
            Self::Iscsi(disk) => disk.place(),
            Self::Nbd(disk) => disk.place(),
        }
    }

    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Iscsi(disk) => disk.length(),
            Self::Nbd(disk) => disk.length(),
        }
    }

    pub(super) const fn block_length(&self) -> u64 {
        match self {
            Self::Iscsi(disk) => disk.block_length(),
            Self::Nbd(disk) => disk.block_length(),
        }
    }

    pub(super) const fn source(&self) -> Source<'_> {
        match self {
            Self::Iscsi(disk) => Source::Disk(disk),
            Self::Nbd(disk) => Source::Nbd(disk),
        }
    }

    pub(super) const fn sink(&self) -> Sink<'_> {
        match self {
            Self::Iscsi(disk) => Sink::Disk(disk),
            Self::Nbd(disk) => Sink::Nbd(disk),
        }
    }

    pub(super) async fn check_vacant(&self) -> Result<(), TransferError> {
        match self {
            Self::Iscsi(disk) => disk.check_vacant().await,
            Self::Nbd(disk) => disk.check_vacant().await,
        }
    }

    pub(super) async fn close(self) -> Result<(), TransferError> {
        match self {
            Self::Iscsi(disk) => disk.close().await,
            Self::Nbd(disk) => {
                disk.close().await;
                Ok(())
            }
        }
    }
}
