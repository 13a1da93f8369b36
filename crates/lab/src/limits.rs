//! The limits of a link and of a medium without any target, which no target exceeds. They replace measurements with
//! `iperf` and `hdparm`.
//!
//! [`network()`] measures a [`Link`], [`medium()`] a [`Medium`].

mod medium;
mod network;

pub use medium::medium;
pub use network::network;

use crate::record::{Measures, figure};
#[cfg(doc)]
use crate::{network::Link, target_under_test::Medium};

/// The limits of a link: the best values of TCP in any part of the measurement, over one connection or several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkLimit {
    /// Millions of bytes per second to the targets' side.
    pub mb_per_s_to_target: f64,
    /// Millions of bytes per second from the targets' side.
    pub mb_per_s_from_target: f64,
    /// Median round-trip time of a small message, µs.
    pub round_trip_us: f64,
    /// Number of TCP segments that were retransmitted during the measurement; absent on loopback, where the counter
    /// includes other programs.
    pub retransmits: Option<u64>,
}

/// The limits of a medium.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreLimit {
    /// Millions of bytes per second of large sequential reads.
    pub sequential_read_mb_per_s: f64,
    /// Millions of bytes per second of large sequential writes to blocks that were written before; through the page cache,
    /// until they are durable.
    pub sequential_write_mb_per_s: f64,
    /// Random reads of 4 KiB per second, one after the other.
    pub random_read_iops: f64,
    /// The same with 32 outstanding reads; absent for memory.
    pub random_read_iops_32: Option<f64>,
    /// The path to the medium.
    pub path: MediumPath,
}

/// The path to a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumPath {
    /// Without the page cache (O_DIRECT).
    Direct,
    /// Through the page cache, because the file system does not support direct I/O: the figures depend on memory as much
    /// as on the medium.
    Buffered,
    /// Copies to and from memory.
    Memory,
}

impl MediumPath {
    /// Returns its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Memory => "memory",
        }
    }
}

/// The reason why a limit is unknown.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The link was not created.
    #[error("the network link was not created: {0}")]
    NoLink(String),
    /// There is too little free space for a file.
    #[error(
        "{folder} has {free} free bytes and needs {needed}; free some space or choose another \
             folder"
    )]
    NoRoom {
        /// The folder.
        folder: String,
        /// Free bytes.
        free: u64,
        /// Required bytes.
        needed: u64,
    },
    /// A call to the system failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> LimitError {
    move |source| LimitError::System { what, source }
}

impl NetworkLimit {
    /// Returns the limits as figures of a sample.
    pub fn measures(&self) -> Measures {
        let mut measures = Measures::default();
        let mut add = |name: &str, value| measures.figures.insert(name.into(), value);
        add(figure::LINK_TO_TARGET_MB_PER_S, self.mb_per_s_to_target);
        add(figure::LINK_FROM_TARGET_MB_PER_S, self.mb_per_s_from_target);
        add(figure::LINK_ROUND_TRIP_US, self.round_trip_us);
        if let Some(retransmits) = self.retransmits {
            add(figure::LINK_RETRANSMITS, retransmits as f64);
        }
        measures
    }
}

impl StoreLimit {
    /// Returns the limits as figures of a sample; its text `path` is the [`MediumPath`].
    pub fn measures(&self) -> Measures {
        let mut measures = Measures::default();
        let mut add = |name: &str, value| measures.figures.insert(name.into(), value);
        add(figure::MEDIUM_READ_MB_PER_S, self.sequential_read_mb_per_s);
        add(figure::MEDIUM_WRITE_MB_PER_S, self.sequential_write_mb_per_s);
        add(figure::MEDIUM_RANDOM_READ_IOPS, self.random_read_iops);
        if let Some(iops) = self.random_read_iops_32 {
            add(figure::MEDIUM_RANDOM_READ_IOPS_32, iops);
        }
        measures.texts.insert("path".into(), self.path.as_str().into());
        measures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_figures_are_omitted() {
        let limit = NetworkLimit {
            mb_per_s_to_target: 1.0,
            mb_per_s_from_target: 2.0,
            round_trip_us: 3.0,
            retransmits: None,
        };
        let figures = limit.measures().figures;
        assert_eq!(figures.len(), 3);
        assert_eq!(figures[figure::LINK_FROM_TARGET_MB_PER_S], 2.0);
        let figures = NetworkLimit { retransmits: Some(4), ..limit }.measures().figures;
        assert_eq!(figures[figure::LINK_RETRANSMITS], 4.0);

        let limit = StoreLimit {
            sequential_read_mb_per_s: 1.0,
            sequential_write_mb_per_s: 2.0,
            random_read_iops: 3.0,
            random_read_iops_32: None,
            path: MediumPath::Memory,
        };
        let measures = limit.measures();
        assert_eq!(measures.figures.len(), 3);
        assert_eq!(measures.texts["path"], "memory");
        let deep = StoreLimit { random_read_iops_32: Some(5.0), ..limit }.measures();
        assert_eq!(deep.figures[figure::MEDIUM_RANDOM_READ_IOPS_32], 5.0);
    }
}
