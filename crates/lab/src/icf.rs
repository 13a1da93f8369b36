//! Iometer configuration files (`.icf`): parses and writes access specifications.
//!
//! Such a file has lines of text in sections; a line that begins with `'` names the fields of the next ones. The parser
//! reads what affects the measurement (specifications, run time, ramp-up, outstanding I/Os), and ignores managers,
//! disks and the display.

use std::fmt::Write as _;
use std::time::Duration;

use crate::access::NamedPattern;
use crate::mix::{Mix, Part};

/// Maximum number of specifications in one file.
const SPECIFICATION_LIMIT: usize = 1000;
/// Maximum number of lines of one specification, as in Iometer.
const LINE_LIMIT: usize = 100;

/// One line of a specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Size of an I/O in bytes.
    pub size: u32,
    /// Percentage of I/Os that this line describes.
    pub of_size: u8,
    /// Percentage of reads among the I/Os of this line.
    pub reads: u8,
    /// Percentage of I/Os of this line at random positions.
    pub random: u8,
    /// Time between bursts in milliseconds.
    pub delay_ms: u32,
    /// Number of I/Os in a burst.
    pub burst: u32,
    /// Alignment of I/Os in bytes; 0 is the device's own block.
    pub align: u32,
    /// Size of a reply in bytes, on networks.
    pub reply: u32,
}

/// An access specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Specification {
    /// Name.
    pub name: String,
    /// Workers that get it by default: `NONE`, `ALL`, `DISK` or `NET`.
    pub default_assignment: String,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// The measurement that a file describes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Run time of each specification; 0 runs until it is stopped.
    pub run_time: Duration,
    /// Time before the measurement.
    pub ramp_up: Duration,
    /// Outstanding I/Os of the first worker.
    pub outstanding: Option<u32>,
    /// The access specifications.
    pub specifications: Vec<Specification>,
}

/// A reason why a text is not an Iometer configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct IcfError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The error.
    pub what: String,
}

impl Specification {
    /// Returns the mix that the generator runs, and what it does not support.
    pub fn to_mix(&self, queue_depth: u32) -> (Mix, Vec<&'static str>) {
        let parts = self.lines.iter().filter(|line| line.of_size > 0).map(|line| Part {
            weight: line.of_size.into(),
            block_bytes: line.size,
            read_percent: line.reads,
            random_percent: line.random,
        });
        let align = self.lines.first().map_or(0, |line| line.align);
        let mut left_out = Vec::new();
        if self.lines.iter().any(|line| line.delay_ms > 0 || line.burst > 1) {
            left_out.push("transfer delay and burst length: I/Os follow one another at once");
        }
        if self.lines.iter().any(|line| line.reply > 0) {
            left_out.push("reply size: it concerns network workers");
        }
        if self.lines.iter().any(|line| line.align != align) {
            left_out.push("alignments that differ between lines: the first line's is used");
        }
        // 0 is the device's own block. Its length is known only at the device; 512 is the smallest.
        let align_bytes = if align == 0 { 512 } else { align };
        (Mix { parts: parts.collect(), align_bytes: Some(align_bytes), queue_depth }, left_out)
    }
}

impl From<&NamedPattern> for Specification {
    fn from(named: &NamedPattern) -> Self {
        Self::from_mix(named.name, &named.access.into())
    }
}

impl Specification {
    /// Returns the mix in Iometer's form; shares become whole percentages with the sum 100.
    pub fn from_mix(name: &str, mix: &Mix) -> Self {
        let total: u64 = mix.parts.iter().map(|part| u64::from(part.weight)).sum();
        let (mut before, mut given) = (0, 0);
        let lines = mix.parts.iter().map(|part| {
            before += u64::from(part.weight);
            let until = (before * 100).checked_div(total).unwrap_or(0);
            let of_size = (until - given) as u8;
            given = until;
            Line {
                size: part.block_bytes,
                of_size,
                reads: part.read_percent,
                random: part.random_percent,
                delay_ms: 0,
                burst: 1,
                align: mix.align_bytes.unwrap_or(part.block_bytes),
                reply: 0,
            }
        });
        let name = name.replace([',', '\n', '\r'], " ");
        Self { name, default_assignment: "NONE".into(), lines: lines.collect() }
    }
}

/// The state of the parser.
enum ReaderState {
    Outside,
    Specifications,
}

/// Parses the text of a file; `file` is its name in errors.
pub fn parse(file: &str, text: &str) -> Result<Configuration, IcfError> {
    let mut found = Configuration::default();
    let mut state = ReaderState::Outside;
    let mut heading = "";
    let mut last = 0;
    for (number, line) in (1..).zip(text.lines()) {
        last = number;
        let wrong = |what: String| IcfError { file: file.into(), line: number, what };
        let line = line.trim();
        if number == 1 && !line.starts_with("Version") {
            return Err(wrong("the first line of an Iometer file is `Version …`".into()));
        }
        if let Some(comment) = line.strip_prefix('\'') {
            heading = comment.trim();
            if heading.starts_with("ACCESS SPECIFICATIONS") {
                state = ReaderState::Specifications;
            } else if heading.starts_with("END access specifications") {
                end_specification(&found).map_err(&wrong)?;
                state = ReaderState::Outside;
            }
            continue;
        }
        if line.is_empty() {
            continue;
        }
        match state {
            ReaderState::Specifications if heading.starts_with("Access specification name") => {
                end_specification(&found).map_err(&wrong)?;
                if found.specifications.len() == SPECIFICATION_LIMIT {
                    return Err(wrong(format!("more than {SPECIFICATION_LIMIT} specifications")));
                }
                found.specifications.push(parse_name(line));
            }
            ReaderState::Specifications if heading.starts_with("size,") => {
                let parsed = parse_line(line).map_err(&wrong)?;
                let Some(specification) = found.specifications.last_mut() else {
                    return Err(wrong("a line of a specification that has no name yet".into()));
                };
                if specification.lines.len() == LINE_LIMIT {
                    return Err(wrong(format!("a specification of more than {LINE_LIMIT} lines")));
                }
                specification.lines.push(parsed);
            }
            ReaderState::Specifications => {
                return Err(wrong(format!("{line:?} belongs to no specification")));
            }
            ReaderState::Outside => parse_setting(&mut found, heading, line).map_err(&wrong)?,
        }
    }
    if matches!(state, ReaderState::Specifications) {
        let what = "the file ends within its access specifications".into();
        return Err(IcfError { file: file.into(), line: last, what });
    }
    Ok(found)
}

/// Checks that a specification is complete before the next one begins.
fn end_specification(found: &Configuration) -> Result<(), String> {
    let Some(Specification { name, lines, .. }) = found.specifications.last() else {
        return Ok(());
    };
    let sum: u32 = lines.iter().map(|line| u32::from(line.of_size)).sum();
    match sum {
        _ if lines.is_empty() => Err(format!("specification {name:?} has no lines")),
        100 => Ok(()),
        _ => Err(format!("the shares of specification {name:?} add up to {sum}, not to 100 %")),
    }
}

/// The name can contain commas; the assignment cannot.
fn parse_name(line: &str) -> Specification {
    let (name, assignment) = match line.rsplit_once(',') {
        Some((name, last)) if ["NONE", "ALL", "DISK", "NET"].contains(&last.trim()) => {
            (name.trim(), last.trim())
        }
        _ => (line.trim_end_matches(','), "NONE"),
    };
    Specification { name: name.into(), default_assignment: assignment.into(), lines: Vec::new() }
}

fn parse_line(line: &str) -> Result<Line, String> {
    let mut fields = Vec::with_capacity(8);
    for field in line.split(',') {
        let number = field.trim().parse::<u32>();
        fields.push(number.map_err(|_| format!("{field:?} is not a whole number"))?);
    }
    let [size, of_size, reads, random, delay_ms, burst, align, reply] = fields[..] else {
        let count = fields.len();
        return Err(format!(
            "{count} fields instead of 8 (size, % of size, % reads, % random, delay, burst, \
             align, reply)"
        ));
    };
    if size == 0 {
        return Err("I/Os of 0 bytes".into());
    }
    Ok(Line {
        size,
        of_size: percentage(of_size, "% of size")?,
        reads: percentage(reads, "% reads")?,
        random: percentage(random, "% random")?,
        delay_ms,
        burst,
        align,
        reply,
    })
}

fn percentage(value: u32, what: &str) -> Result<u8, String> {
    match u8::try_from(value) {
        Ok(value) if value <= 100 => Ok(value),
        _ => Err(format!("{what} is {value}: write a percentage from 0 to 100")),
    }
}

/// Parses the settings outside the specifications.
fn parse_setting(found: &mut Configuration, heading: &str, line: &str) -> Result<(), String> {
    let first = |what: &str| -> Result<u32, String> {
        let field = line.split(',').next().unwrap_or_default().trim();
        field.parse().map_err(|_| format!("{field:?} is no {what}"))
    };
    // A heading has only one line; further lines have their own heading.
    if heading.starts_with("hours") {
        let mut seconds = 0_u64;
        let mut fields = line.split_ascii_whitespace();
        for factor in [3600, 60, 1] {
            let field = fields.next().unwrap_or_default();
            let number: u32 = field.parse().map_err(|_| format!("{field:?} is no run time"))?;
            seconds += u64::from(number) * factor;
        }
        found.run_time = Duration::from_secs(seconds);
    } else if heading.starts_with("Ramp Up Time") {
        found.ramp_up = Duration::from_secs(first("ramp-up time")?.into());
    } else if heading.starts_with("Number of outstanding IOs") && found.outstanding.is_none() {
        found.outstanding = Some(first("number of outstanding I/Os")?);
    }
    Ok(())
}

/// Returns the text of a file with these specifications and run times. Iometer adds the managers and disks of its
/// machine when it opens the file.
pub fn render(configuration: &Configuration) -> String {
    let rule = |title: &str| format!("'{title} {:=<width$}\n", "", width = 79 - title.len());
    let mut text = String::from("Version 1.1.0 \n");
    text += &rule("TEST SETUP");
    let seconds = configuration.run_time.as_secs();
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let ramp_up = configuration.ramp_up.as_secs();
    text += "'Test Description\n\t\n'Run Time\n'\thours      minutes    seconds\n";
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\t{hours:<10} {minutes:<10} {}", seconds % 60);
    let _ = writeln!(text, "'Ramp Up Time (s)\n\t{ramp_up}");
    text += "'Default Disk Workers to Spawn\n\tNUMBER_OF_CPUS\n";
    text += "'Default Network Workers to Spawn\n\t0\n'Record Results\n\tALL\n";
    text += "'Worker Cycling\n'\tstart      step       step type\n\t1          1          LINEAR\n";
    text += "'Disk Cycling\n'\tstart      step       step type\n\t1          1          LINEAR\n";
    text += "'Queue Depth Cycling\n'\tstart      end        step       step type\n";
    text += "\t1          32         2          EXPONENTIAL\n'Test Type\n\tNORMAL\n";
    text += "'END test setup\n";
    text += &rule("ACCESS SPECIFICATIONS");
    for Specification { name, default_assignment, lines } in &configuration.specifications {
        let _ = writeln!(text, "'Access specification name,default assignment");
        let _ = writeln!(text, "\t{name},{default_assignment}");
        text += "'size,% of size,% reads,% random,delay,burst,align,reply\n";
        for line in lines {
            let Line { size, of_size, reads, random, delay_ms, burst, align, reply } = line;
            let _ = writeln!(
                text,
                "\t{size},{of_size},{reads},{random},{delay_ms},{burst},{align},{reply}"
            );
        }
    }
    text += "'END access specifications\nVersion 1.1.0 \n";
    text
}

#[cfg(test)]
mod tests;
