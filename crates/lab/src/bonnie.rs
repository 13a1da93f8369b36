//! The output of bonnie++: a line of comma-separated values for each run, in the layout of 1.03 or in that of 1.9x and
//! 2.00 (`bon_csv2txt(1)` lists the fields of the latter).
//!
//! The heading that bonnie++ 2.00 prints with `-x` has two fields less, so the parser identifies fields by their position
//! and never by a heading. Names of machines are not quoted: a comma in one shifts all other fields. The parser
//! corrects this.

use std::fmt;

/// The operations, in the order of the fields.
pub static OPERATIONS: [Operation; 12] = [
    Operation { name: "putc", unit: Unit::KibPerSecond },
    Operation { name: "put_block", unit: Unit::KibPerSecond },
    Operation { name: "rewrite", unit: Unit::KibPerSecond },
    Operation { name: "getc", unit: Unit::KibPerSecond },
    Operation { name: "get_block", unit: Unit::KibPerSecond },
    Operation { name: "seeks", unit: Unit::SeeksPerSecond },
    Operation { name: "seq_create", unit: Unit::FilesPerSecond },
    Operation { name: "seq_stat", unit: Unit::FilesPerSecond },
    Operation { name: "seq_del", unit: Unit::FilesPerSecond },
    Operation { name: "ran_create", unit: Unit::FilesPerSecond },
    Operation { name: "ran_stat", unit: Unit::FilesPerSecond },
    Operation { name: "ran_del", unit: Unit::FilesPerSecond },
];

/// The operations that read and write one large file; the others use many small ones.
pub const ON_ONE_FILE: usize = 6;
/// Number of fields of 1.03: name, size, rates of the file with CPU time, number of files, rates of the files with CPU
/// time.
const FIELDS_OF_1_03: usize = 27;
/// Number of fields of formats before 1.98, which do not have the numbers of seeks and of seekers.
const FIELDS_OF_1_9X: usize = 48;
/// Number of fields of 1.98, which 2.00 prints.
const FIELDS_OF_1_98: usize = 50;

/// An operation that bonnie++ measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// bonnie++'s name for the field of the rate.
    pub name: &'static str,
    /// The unit of the rate.
    pub unit: Unit,
}

/// The unit of a rate. A K of bonnie++ is 1024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// KiB/s.
    KibPerSecond,
    /// Seeks a second, each with a read and sometimes a write.
    SeeksPerSecond,
    /// Files a second.
    FilesPerSecond,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KibPerSecond => "KiB/s",
            Self::SeeksPerSecond => "seeks/s",
            Self::FilesPerSecond => "files/s",
        })
    }
}

/// A field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A figure.
    Number(f64),
    /// `+++++`: the operation took less than half a second, and bonnie++ prints no figure.
    TooQuick,
    /// Empty: the operation was not requested.
    LeftOut,
}

impl Value {
    /// Returns the figure, if there is one.
    pub fn number(self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(number),
            Self::TooQuick | Self::LeftOut => None,
        }
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Rate, in the operation's unit.
    pub rate: Value,
    /// CPU time in percent of the elapsed time.
    pub cpu: Value,
    /// Maximum latency in µs. 1.03 does not measure it.
    pub latency_us: Option<f64>,
}

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its line in the file, from 1.
    pub number: usize,
    /// Version of bonnie++; those before 1.9 do not print it.
    pub version: Option<String>,
    /// The machine's name.
    pub machine: String,
    /// The size of the file, followed by a colon and the size of the pieces if that is not the default: `300M`,
    /// `2G:32k`. Empty without a file.
    pub size: String,
    /// Number of files in units of 1024. Empty without files.
    pub files: String,
    /// The result of each of [`OPERATIONS`].
    pub measured: [Measured; 12],
}

/// A line that is not a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct BonnieError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The error.
    pub what: String,
    /// True if the line has enough fields for a run.
    pub damaged: bool,
}

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// The runs.
    pub lines: Vec<Line>,
    /// Number of lines that are neither runs, nor empty, nor comments, nor headings.
    pub others: Vec<BonnieError>,
}

/// Parses a file's text; `file` is its name in errors.
pub fn parse(file: &str, text: &str) -> Contents {
    let mut contents = Contents::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || is_heading(line) {
            continue;
        }
        match parse_line(number, line) {
            Ok(run) => contents.lines.push(run),
            Err(what) => {
                let damaged = line.matches(',').count() > ON_ONE_FILE;
                contents.others.push(BonnieError {
                    file: file.into(),
                    line: number,
                    what,
                    damaged,
                });
            }
        }
    }
    contents
}

/// The first words of the heading that `-x` prints.
fn is_heading(line: &str) -> bool {
    let line = line.strip_prefix("format_version,bonnie_version,").unwrap_or(line);
    line.starts_with("name,") && line.contains(",putc,putc_cpu,")
}

fn parse_line(number: usize, line: &str) -> Result<Line, String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() < FIELDS_OF_1_03 {
        return Err(format!(
            "{} fields: a run of bonnie++'s has {FIELDS_OF_1_03} (1.03), {FIELDS_OF_1_9X} (up to \
             1.97) or {FIELDS_OF_1_98} (2.00)",
            fields.len()
        ));
    }
    if fields.len() < FIELDS_OF_1_9X {
        parse_1_03(number, &fields)
    } else {
        parse_1_9x(number, &fields)
    }
}

fn parse_1_03(number: usize, fields: &[&str]) -> Result<Line, String> {
    let (machine, rest) = split_name(fields, FIELDS_OF_1_03);
    let (on_file, rest) = rest[1..].split_at(2 * ON_ONE_FILE);
    let no_latencies = [""; OPERATIONS.len()];
    Ok(Line {
        number,
        version: None,
        machine,
        size: fields[fields.len() - FIELDS_OF_1_03 + 1].into(),
        files: rest[0].into(),
        measured: parse_measured(on_file, &rest[1..], &no_latencies)?,
    })
}

fn parse_1_9x(number: usize, fields: &[&str]) -> Result<Line, String> {
    // The version of bonnie++ follows the version of the format.
    let format = match fields[0].parse::<f64>() {
        Ok(format) if (1.9..3.0).contains(&format) => format,
        _ => return Err(format!("{:?} is no version of bonnie++'s format", fields[0])),
    };
    let (count, seeks) = if format < 1.98 { (FIELDS_OF_1_9X, 0) } else { (FIELDS_OF_1_98, 2) };
    if fields.len() < count {
        return Err(format!("{} fields, where format {format} has {count}", fields.len()));
    }
    let (machine, rest) = split_name(&fields[2..], count - 2);
    // Concurrency and seed precede the size; the numbers of seeks and of seekers follow it.
    let (size, piece) = (rest[2], rest[3]);
    let (on_file, rest) = rest[4 + seeks..].split_at(2 * ON_ONE_FILE);
    let (files, rest) = rest.split_at(5);
    let (on_files, latencies) = rest.split_at(2 * (OPERATIONS.len() - ON_ONE_FILE));
    Ok(Line {
        number,
        version: Some(fields[1].into()),
        machine,
        size: if piece.is_empty() { size.into() } else { format!("{size}:{piece}") },
        files: files[0].into(),
        measured: parse_measured(on_file, on_files, latencies)?,
    })
}

/// Returns the machine's name, which contains all surplus fields, and the fields after it.
fn split_name<'a, 'b>(fields: &'a [&'b str], count: usize) -> (String, &'a [&'b str]) {
    let (name, rest) = fields.split_at(fields.len() - count + 1);
    (name.join(","), rest)
}

fn parse_measured(
    on_file: &[&str],
    on_files: &[&str],
    latencies: &[&str],
) -> Result<[Measured; 12], String> {
    const NOTHING: Measured =
        Measured { rate: Value::LeftOut, cpu: Value::LeftOut, latency_us: None };
    let mut measured = [NOTHING; OPERATIONS.len()];
    let pairs = on_file.chunks_exact(2).chain(on_files.chunks_exact(2));
    for (index, (pair, latency)) in pairs.zip(latencies).enumerate() {
        let name = OPERATIONS[index].name;
        measured[index] = Measured {
            rate: value(pair[0]).ok_or_else(|| format!("{name}: {:?} is no rate", pair[0]))?,
            cpu: value(pair[1]).ok_or_else(|| format!("{name}: {:?} is no CPU share", pair[1]))?,
            latency_us: match *latency {
                "" => None,
                latency => Some(
                    latency_us(latency)
                        .ok_or_else(|| format!("{name}: {latency:?} is no latency"))?,
                ),
            },
        };
    }
    Ok(measured)
}

fn value(field: &str) -> Option<Value> {
    if field.is_empty() {
        return Some(Value::LeftOut);
    }
    if field.len() >= 3 && field.bytes().all(|byte| byte == b'+') {
        return Some(Value::TooQuick);
    }
    number(field).map(Value::Number)
}

/// Parses `93us`, `1024ms` or `120s`.
fn latency_us(field: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let (digits, factor) =
        units.iter().find_map(|(unit, factor)| Some((field.strip_suffix(unit)?, factor)))?;
    number(digits).map(|number| number * factor).filter(|us| us.is_finite())
}

/// Parses digits with at most one point: no sign, exponent or other syntax of `f64`.
fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|number: &f64| plain && number.is_finite())
}

#[cfg(test)]
mod tests;
