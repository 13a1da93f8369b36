//! What a link and a medium can do without any target, which no target passes: the first thing to
//! know of a measurement, and what `iperf` and `hdparm` are otherwise asked for.
//!
//! [`network()`] for a [`Link`], [`medium()`] for a [`Medium`].

mod medium;
mod network;

pub use medium::medium;
pub use network::network;

use crate::record::{Measures, figure};
#[cfg(doc)]
use crate::{network::Link, target_under_test::Medium};

/// What a link can do: the best that TCP made of it in any part of the measurement, over one
/// connection or several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkLimit {
    /// Millions of bytes a second towards the targets' side.
    pub mb_per_s_to_target: f64,
    /// Millions of bytes a second from the targets' side.
    pub mb_per_s_from_target: f64,
    /// Median time of a small message there and back, µs.
    pub round_trip_us: f64,
    /// TCP segments that were sent again meanwhile; unknown on loopback, where others' count, too.
    pub retransmits: Option<u64>,
}

/// What a medium can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreLimit {
    /// Millions of bytes a second, large reads in order.
    pub sequential_read_mb_per_s: f64,
    /// Millions of bytes a second, large writes in order, until they are durable.
    pub sequential_write_mb_per_s: f64,
    /// Random reads of 4 KiB a second, one after the other.
    pub random_read_iops: f64,
    /// The same with 32 under way; nothing of the kind in memory.
    pub random_read_iops_32: Option<f64>,
    /// How it was reached.
    pub path: MediumPath,
}

/// How a medium is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumPath {
    /// Past the page cache (O_DIRECT).
    Direct,
    /// Through the page cache, since the file system has no other way: the figures are the
    /// memory's as much as the medium's.
    Buffered,
    /// Copies from and to memory.
    Memory,
}

impl MediumPath {
    /// In a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Memory => "memory",
        }
    }
}

/// Why a limit is not known.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The link could not be made.
    #[error("the network link was not created: {0}")]
    NoLink(String),
    /// There is too little room for a file.
    #[error("{folder} has room for {free} bytes, and {needed} are needed")]
    NoRoom {
        /// Where.
        folder: String,
        /// What there is.
        free: u64,
        /// What there should be.
        needed: u64,
    },
    /// A call to the system failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> LimitError {
    move |source| LimitError::System { what, source }
}

impl NetworkLimit {
    /// As a sample's figures.
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
    /// As a sample's figures; the text `path` is the [`MediumPath`].
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
