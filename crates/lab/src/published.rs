//! The figures that five studies published, for comparison with the results of this program.
//!
//! The figures are files in `crates/lab/published`. The README there lists the source of each figure and the
//! contradictions within them; the figures are not corrected. They are part of the program, which parses them at their
//! first use. One study shows its figures in charts only: [`aravindan`] has the figures of its text.

mod access_specs;
pub mod aravindan;
mod lu_du;
mod lunden;
mod novell;
mod trinkle;

use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize as _, Serialize};

pub use access_specs::{AccessSpecRow, access_named, access_specs};
pub use lu_du::{LU_DU_TRACE, LuDuRow, TraceFacts, lu_du, lu_du_value};
pub use lunden::{LUNDEN_RUNS, LundenRow, lunden, lunden_row, lunden_setups};
pub use novell::{NovellRow, novell, novell_mb_per_s};
pub use trinkle::{
    AlignmentGain, TRINKLE_ALIGNMENT_GAINS, TRINKLE_LOCAL_MB_PER_S, TRINKLE_NETWORK_MB_PER_S,
    TrinkleRow, trinkle, trinkle_inconsistent, trinkle_mean, trinkle_row,
};

/// A study by other authors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// Its author.
    pub author: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Its publisher.
    pub publisher: &'static str,
    /// Its year, if stated.
    pub year: Option<u16>,
    /// The location of the figures in the study.
    pub places: &'static str,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { author, title, publisher, year, places } = self;
        write!(f, "{author}, {title}, {publisher}")?;
        if let Some(year) = year {
            write!(f, ", {year}")?;
        }
        write!(f, " ({places})")
    }
}

/// Four targets under ESXi: [`trinkle()`] and [`access_specs()`].
pub const TRINKLE: Source = Source {
    author: "Trinkle",
    title: "A Comparative Analysis of Open Source Storage Area Networks with ESXi 5.1",
    publisher: "Purdue University",
    year: Some(2013),
    places: "tables 3.3 and G.1 to G.16, sections 2.2 and 4.1",
};

/// Block sizes, cables and adapters: [`novell()`].
pub const NOVELL: Source = Source {
    author: "Novell",
    title: "iSCSI Performance Factors (SLES 10 SP1, NetWare 6.5 SP7)",
    publisher: "Novell",
    year: None,
    places: "test runs and tables 1 to 7",
};

/// Session set-up phases, loads, a trace, files: [`lu_du()`].
pub const LU_DU: Source = Source {
    author: "Lu and Du",
    title: "Performance Study of iSCSI-Based Storage Subsystems",
    publisher: "IEEE Communications Magazine",
    year: Some(2003),
    places: "text, tables 2 to 5, figure 2",
};

/// bonnie++ on four kinds of storage: [`lunden()`].
pub const LUNDEN: Source = Source {
    author: "Lunden",
    title: "Evaluation of Different SAN Technologies for Virtual Machine Hosting",
    publisher: "Oslo",
    year: Some(2009),
    places: "tables 4.1 to 4.9",
};

/// Multipath and targets under virtualization: [`aravindan`].
pub const ARAVINDAN: Source = Source {
    author: "Aravindan",
    title: "Performance Analysis of an iSCSI Block Device in Virtualized Environment",
    publisher: "Tampere",
    year: Some(2014),
    places: "the text; its charts have no numbers",
};

/// Parses the rows of a file that is part of the program.
fn rows<T: DeserializeOwned>(file: &str, text: &str) -> Vec<T> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    // A test reads each of these files: an error here is a fault of the program.
    let row = |row: csv::Result<T>| row.unwrap_or_else(|error| panic!("{file}: {error}"));
    reader.deserialize().map(row).collect()
}

/// Parses a number of bytes: `512`, `64K`, `4M`.
fn bytes(text: &str) -> Option<u32> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |number| (number, 1 << 20)),
    };
    number.parse::<u32>().ok()?.checked_mul(unit)
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let text = String::deserialize(deserializer)?;
    bytes(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no size")))
}

fn size_if_any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    bytes(&text).map(Some).ok_or_else(|| D::Error::custom(format!("{text:?} is no size")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes() {
        assert_eq!(bytes("512"), Some(512));
        assert_eq!(bytes("64K"), Some(65536));
        assert_eq!(bytes("4M"), Some(4 << 20));
        for wrong in ["", "K", "1G", "-1", "4096M"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_source_is_written_as_it_is_cited() {
        let text = TRINKLE.to_string();
        assert!(text.starts_with("Trinkle, A Comparative") && text.contains(", 2013 (tables"));
    }

    #[test]
    #[should_panic(expected = "a.csv: CSV deserialize error: record 1")]
    fn a_row_that_does_not_parse_is_named() {
        #[derive(serde::Deserialize)]
        struct Row {
            #[serde(rename = "value")]
            _value: f64,
        }
        rows::<Row>("a.csv", "value\nx\n");
    }
}
