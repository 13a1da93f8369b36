//! A report as a document without a format: sections of tables, charts and notes. A study makes
//! one of a [`Run`]; the modules below write it in a format.

mod chart;
pub mod csv;
mod data;
mod footnotes;
mod html;
mod json;
mod latex;
mod markdown;
mod method;
mod numbers;
#[cfg(test)]
mod sample;
pub mod terminal;
mod words;

use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::record::Run;
pub use words::{one_line, utc};

/// What a report is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One page with charts, which loads nothing.
    Html,
    /// For forges and static pages.
    Markdown,
    /// The samples as one long table; see [`csv`].
    Csv,
    /// The run and the report for other programs.
    Json,
    /// A document with booktabs and pgfplots.
    Latex,
}

/// A name that is no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a report format; write html, markdown, csv, json or latex")]
pub struct FormatError {
    text: String,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Html, Self::Markdown, Self::Csv, Self::Json, Self::Latex];

    /// How the name of such a file ends, without the dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Markdown => "md",
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Latex => "tex",
        }
    }
}

impl FromStr for Format {
    type Err = FormatError;

    /// A format's name, or the ending of its files.
    fn from_str(text: &str) -> Result<Self, FormatError> {
        match text {
            "markdown" => Ok(Self::Markdown),
            "latex" => Ok(Self::Latex),
            _ => {
                let mut all = Self::ALL.into_iter();
                let found = all.find(|format| format.extension() == text);
                found.ok_or_else(|| FormatError { text: text.into() })
            }
        }
    }
}

/// Writes a report, and how its run was measured, in a format.
pub fn write(
    format: Format,
    report: &Report,
    run: &Run,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    match format {
        Format::Html => html::write(report, run, out),
        Format::Markdown => markdown::write(report, run, out),
        Format::Csv => csv::write(run, out),
        Format::Json => json::write(report, run, out),
        Format::Latex => latex::write(report, run, out),
    }
}

/// A report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its title.
    pub title: String,
    /// A few sentences: what was measured and what stands out.
    pub summary: Vec<String>,
    /// The sections.
    pub sections: Vec<Section>,
}

/// A part with a heading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Heading.
    pub heading: String,
    /// What is in it.
    pub blocks: Vec<Block>,
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// Points of a list, a sentence or so each.
    List(Vec<String>),
    /// Commands, as they were or can be given.
    Commands(Vec<String>),
    /// A table.
    Table(Table),
    /// Bars in groups, in the manner of the studies' figures.
    Bars(Bars),
    /// Lines over a common axis: time series, sweeps, latency distributions.
    Lines(Lines),
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What it shows, with the unit if all cells have one.
    pub caption: String,
    /// The heads of the columns.
    pub columns: Vec<String>,
    /// The rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
    /// What must be known to read it, a sentence or so each; shown below it.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Whether it is a heat map: the cells with numbers are shaded, the table's greatest the most.
    #[serde(default)]
    pub heat: bool,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Words.
    Text(String),
    /// A number and how many digits after the point matter.
    Number {
        /// The value.
        value: f64,
        /// Digits after the point.
        decimals: u8,
    },
    /// A mean and half the width of its confidence interval.
    Interval {
        /// The mean.
        mean: f64,
        /// Half the width of the 95 % confidence interval; absent for a single value.
        half_width: Option<f64>,
        /// Digits after the point.
        decimals: u8,
    },
    /// A share: 12.5 is 12.5 %.
    Percent {
        /// The value, in percent.
        value: f64,
        /// Digits after the point.
        decimals: u8,
    },
    /// How much something differs from something else: 12.5 is +12.5 %.
    Change {
        /// The difference, in percent of what it is compared with.
        percent: f64,
        /// Digits after the point.
        decimals: u8,
    },
    /// What somebody else published.
    Published {
        /// The value.
        value: f64,
        /// Digits after the point.
        decimals: u8,
    },
    /// It failed: the reason.
    Failed(String),
    /// It was not measured: the reason.
    NotMeasured(String),
    /// Nothing belongs here.
    Empty,
}

/// A bar chart: for each group, a bar of each series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bars {
    /// What it shows.
    pub caption: String,
    /// The unit of the values.
    pub unit: String,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// The series, each with a value for each group.
    pub series: Vec<BarSeries>,
    /// What must be known to read it, a sentence or so each; shown below it.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The bars of one target under test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BarSeries {
    /// Its name.
    pub name: String,
    /// Whether these figures are somebody else's.
    pub published: bool,
    /// A value for each group; absent where nothing was measured.
    pub values: Vec<Option<f64>>,
    /// Half the width of each value's confidence interval, where there is one.
    pub half_widths: Vec<Option<f64>>,
}

/// A line chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    /// What it shows.
    pub caption: String,
    /// What the horizontal axis counts, with its unit.
    pub x: Axis,
    /// What the vertical axis counts, with its unit.
    pub y: Axis,
    /// The lines.
    pub series: Vec<LineSeries>,
    /// What must be known to read it, a sentence or so each; shown below it.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// What it counts, with its unit.
    pub label: String,
    /// Whether equal distances are equal factors.
    pub logarithmic: bool,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LineSeries {
    /// Its name.
    pub name: String,
    /// Whether these figures are somebody else's.
    pub published: bool,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Half the height of each point's confidence interval, where there is one; may be empty.
    #[serde(default)]
    pub half_widths: Vec<Option<f64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_names_and_endings() {
        for format in Format::ALL {
            assert_eq!(format.extension().parse(), Ok(format));
        }
        assert_eq!("markdown".parse(), Ok(Format::Markdown));
        assert_eq!("latex".parse(), Ok(Format::Latex));
        let error = "pdf".parse::<Format>().unwrap_err().to_string();
        assert!(error.contains("\"pdf\"") && error.contains("html"), "{error}");
    }
}
