//! A report as a document without a format: sections of tables, charts and notes. A study creates it from a [`Run`];
//! the submodules write it in a format.

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
pub mod package;
#[cfg(test)]
mod sample;
pub mod terminal;
mod words;

use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::record::Run;
pub use words::{duration, one_line, utc};

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One page with charts that loads no other files.
    Html,
    /// Markdown for code forges and static pages.
    Markdown,
    /// CSV: the samples as one long table; see [`csv`].
    Csv,
    /// JSON: the run and the report, for other programs.
    Json,
    /// A LaTeX document with booktabs and pgfplots.
    Latex,
}

/// The error for a name that is not a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a report format; write html, markdown, csv, json or latex")]
pub struct FormatError {
    text: String,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Html, Self::Markdown, Self::Csv, Self::Json, Self::Latex];

    /// Returns the extension of the format's files, without the dot.
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

    /// Parses the name of a format or the extension of its files.
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

/// Writes a report, and the method of its run, in a format.
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
    /// A few sentences about the measurement and its main results.
    pub summary: Vec<String>,
    /// The sections.
    pub sections: Vec<Section>,
}

impl Report {
    /// Removes what a run of a part of the cells leaves empty: rows, tables, charts, and sections of nothing else.
    pub(crate) fn remove_empty_parts(&mut self) {
        self.sections.retain_mut(|section| {
            let count = section.blocks.len();
            section.blocks.retain_mut(|block| !block.is_emptied());
            let removed = section.blocks.len() < count;
            let is_text = |block: &Block| matches!(block, Block::Text(_));
            !(section.blocks.is_empty() || removed && section.blocks.iter().all(is_text))
        });
    }
}

/// A part with a heading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Heading.
    pub heading: String,
    /// Its content.
    pub blocks: Vec<Block>,
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// The items of a list, about one sentence each.
    List(Vec<String>),
    /// Commands that were run or that the reader can run.
    Commands(Vec<String>),
    /// A table.
    Table(Table),
    /// A bar chart with groups, similar to the studies' figures.
    Bars(Bars),
    /// A line chart with a common axis: time series, sweeps, latency distributions.
    Lines(Lines),
}

impl Block {
    /// Removes empty rows of a table. Returns whether a table or a chart has no content.
    fn is_emptied(&mut self) -> bool {
        match self {
            Self::Text(_) | Self::List(_) | Self::Commands(_) => false,
            Self::Table(table) => {
                // The first cell of a row is its name.
                let is_empty = |row: &[Cell]| {
                    row.len() > 1 && row[1..].iter().all(|cell| *cell == Cell::Empty)
                };
                table.rows.retain(|row| !is_empty(row));
                table.rows.is_empty()
            }
            Self::Bars(bars) => {
                bars.series.iter().flat_map(|series| &series.values).all(Option::is_none)
            }
            Self::Lines(lines) => lines.series.iter().all(|series| series.points.is_empty()),
        }
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Its subject, with the unit if all cells have the same.
    pub caption: String,
    /// The headings of the columns.
    pub columns: Vec<String>,
    /// The rows; each has as many cells as `columns`.
    pub rows: Vec<Vec<Cell>>,
    /// Notes that explain it, about one sentence each; shown below it.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Whether it is a heat map: the writers shade cells with numbers, and the largest number of the table most.
    #[serde(default)]
    pub heat: bool,
}

impl Table {
    /// Whether it has published figures and no others.
    fn is_published(&self) -> bool {
        let cells = || self.rows.iter().flatten();
        let is_published = |cell: &Cell| matches!(cell, Cell::Published { .. });
        let is_own =
            |cell: &Cell| !matches!(cell, Cell::Text(_) | Cell::Empty) && !is_published(cell);
        cells().any(is_published) && !cells().any(is_own)
    }
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Text.
    Text(String),
    /// A number and its significant decimal places.
    Number {
        /// The value.
        value: f64,
        /// Decimal places.
        decimals: u8,
    },
    /// A mean and half the width of its confidence interval.
    Interval {
        /// The mean.
        mean: f64,
        /// Half the width of the 95 % confidence interval; absent for a single value.
        half_width: Option<f64>,
        /// Decimal places.
        decimals: u8,
    },
    /// A percentage: 12.5 is 12.5 %.
    Percent {
        /// The value, in percent.
        value: f64,
        /// Decimal places.
        decimals: u8,
    },
    /// A relative difference: 12.5 is +12.5 %.
    Change {
        /// The difference, in percent of the reference value.
        percent: f64,
        /// Decimal places.
        decimals: u8,
    },
    /// A figure that others published.
    Published {
        /// The value.
        value: f64,
        /// Decimal places.
        decimals: u8,
    },
    /// The measurement failed, for this reason.
    Failed(String),
    /// The value was not measured, for this reason.
    NotMeasured(String),
    /// An empty cell.
    Empty,
}

/// A bar chart: for each group, a bar of each series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bars {
    /// Its subject.
    pub caption: String,
    /// The unit of the values.
    pub unit: String,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// The series; each has a value for each group.
    pub series: Vec<BarSeries>,
    /// Notes that explain it, about one sentence each; shown below it.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The bars of one target under test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BarSeries {
    /// Its name.
    pub name: String,
    /// Whether others published these figures.
    pub published: bool,
    /// A value for each group; absent if not measured.
    pub values: Vec<Option<f64>>,
    /// Half the width of each value's confidence interval, if there is one.
    pub half_widths: Vec<Option<f64>>,
}

/// A line chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    /// Its subject.
    pub caption: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub series: Vec<LineSeries>,
    /// Notes that explain it, about one sentence each; shown below it.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Its quantity, with the unit.
    pub label: String,
    /// Whether the axis is logarithmic.
    pub logarithmic: bool,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LineSeries {
    /// Its name.
    pub name: String,
    /// Whether others published these figures.
    pub published: bool,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Half the height of each point's confidence interval, if there is one; may be empty.
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

    #[test]
    fn what_was_not_planned_leaves_no_empty_parts() {
        let text = |text: &str| Cell::Text(text.into());
        let table = |rows| Block::Table(Table { rows, ..Table::default() });
        let bars = |value| {
            let series = vec![BarSeries { values: vec![value], ..BarSeries::default() }];
            Block::Bars(Bars { series, ..Bars::default() })
        };
        let section = |heading: &str, blocks| Section { heading: heading.into(), blocks };
        let empty = vec![text("none"), Cell::Empty];
        let failed = vec![text("unsafe"), Cell::Failed("it ended".into())];
        let paragraph = || Block::Text("The modes:".into());
        let mut report = Report {
            title: String::new(),
            summary: Vec::new(),
            sections: vec![
                section("nothing", Vec::new()),
                section("text", vec![paragraph()]),
                section("a row", vec![table(vec![empty.clone(), failed.clone()]), bars(None)]),
                section("introduction", vec![paragraph(), table(vec![empty]), bars(None)]),
                section("a chart", vec![bars(Some(0.0))]),
            ],
        };
        report.remove_empty_parts();
        let expected = [
            section("text", vec![paragraph()]),
            section("a row", vec![table(vec![failed])]),
            section("a chart", vec![bars(Some(0.0))]),
        ];
        assert_eq!(report.sections, expected);
    }
}
