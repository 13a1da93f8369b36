//! Traces: the recorded requests of other programs to their disks.
//!
//! A trace is an iterator over a file and has only one line in memory. A line that does not follow the format ends the
//! trace with an error, which names the file and the line.

mod formats;
mod synthetic;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

pub use synthetic::Synthetic;

/// Maximum length of a line in bytes.
const LINE_LIMIT: u64 = 64 * 1024;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its time since the start of the trace.
    pub at: Duration,
    /// Whether it is a read; otherwise it is a write.
    pub reads: bool,
    /// Its address in bytes.
    pub offset: u64,
    /// Its length in bytes; not 0.
    pub length: u32,
}

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The block traces of Microsoft Research Cambridge, as SNIA publishes them:
    /// `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, with the timestamp in units of 100 ns, and offset
    /// and size in bytes.
    Msr,
    /// The default output of `blkparse`; the requests are the queued ones (`Q`).
    Blkparse,
    /// `time_s,op,offset,length`, with offset and length in bytes.
    Csv,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "msr" => Ok(Self::Msr),
            "blkparse" => Ok(Self::Blkparse),
            "csv" => Ok(Self::Csv),
            _ => Err(format!("{text:?} is not a trace format; use msr, blkparse or csv")),
        }
    }
}

/// The error that ended a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line does not follow the format.
    #[error("{}:{line}: {what}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The error in the line.
        what: String,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// The content of a line.
enum Content {
    Request(Request),
    /// A heading, a comment or an event of another type.
    Nothing,
    /// The start of the summary, which follows the requests.
    End,
}

/// The requests of a file.
pub struct Trace<R> {
    file: PathBuf,
    input: R,
    format: Format,
    buffer: Vec<u8>,
    line: u64,
    /// The first timestamp, at which the time of the trace is 0.
    origin: Option<u64>,
    ended: bool,
}

/// Opens a trace. If `format` is `None`, the first line that is not a comment determines it.
pub fn open(path: &Path, format: Option<Format>) -> Result<Trace<BufReader<File>>, TraceError> {
    let read_error = |source| TraceError::Read { file: path.into(), source };
    let format = match format {
        Some(format) => format,
        None => {
            let mut first = BufReader::new(File::open(path).map_err(read_error)?);
            detect(path, &mut first)?
        }
    };
    let file = File::open(path).map_err(read_error)?;
    Ok(Trace::new(path, BufReader::new(file), format))
}

/// Returns the format of a text, which the first line determines that is not a comment.
fn detect(path: &Path, input: &mut impl BufRead) -> Result<Format, TraceError> {
    let mut buffer = Vec::new();
    let mut number = 0;
    loop {
        number += 1;
        let read = read_line(input, &mut buffer)
            .map_err(|source| TraceError::Read { file: path.into(), source })?;
        let line = String::from_utf8_lossy(&buffer);
        let line = line.trim();
        if read.is_continue() && (line.is_empty() || line.starts_with('#')) {
            continue;
        }
        return formats::detect(line).ok_or_else(|| TraceError::Line {
            file: path.into(),
            line: number,
            what: "the trace has no known format; specify the format".into(),
        });
    }
}

/// Reads the next line into `into`, without its line end. Breaks at the end of the input.
fn read_line(input: &mut impl BufRead, into: &mut Vec<u8>) -> io::Result<ControlFlow<()>> {
    into.clear();
    let count = Read::by_ref(input).take(LINE_LIMIT + 1).read_until(b'\n', into)?;
    while into.last().is_some_and(|byte| b"\r\n".contains(byte)) {
        into.pop();
    }
    Ok(if count > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
}

impl<R: BufRead> Trace<R> {
    /// Creates the trace of `input`; errors contain the name `file`.
    pub fn new(file: impl Into<PathBuf>, input: R, format: Format) -> Self {
        let file = file.into();
        Self { file, input, format, buffer: Vec::new(), line: 0, origin: None, ended: false }
    }

    fn parse_line(&mut self) -> Result<Content, String> {
        if self.buffer.len() as u64 > LINE_LIMIT {
            return Err(format!("a line of more than {LINE_LIMIT} bytes"));
        }
        let text = std::str::from_utf8(&self.buffer).map_err(|_| "the line is not UTF-8 text")?;
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return Ok(Content::Nothing);
        }
        match self.format {
            Format::Msr => formats::msr(text, self.line == 1, &mut self.origin),
            Format::Blkparse => formats::blkparse(text, &mut self.origin),
            Format::Csv => formats::csv(text, self.line == 1),
        }
    }
}

impl<R: BufRead> Iterator for Trace<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            self.line += 1;
            let error = match read_line(&mut self.input, &mut self.buffer) {
                Ok(ControlFlow::Break(())) => {
                    self.ended = true;
                    break;
                }
                Ok(ControlFlow::Continue(())) => match self.parse_line() {
                    Ok(Content::Request(request)) => return Some(Ok(request)),
                    Ok(Content::Nothing) => continue,
                    Ok(Content::End) => {
                        self.ended = true;
                        break;
                    }
                    Err(what) => {
                        TraceError::Line { file: self.file.clone(), line: self.line, what }
                    }
                },
                Err(source) => TraceError::Read { file: self.file.clone(), source },
            };
            self.ended = true;
            return Some(Err(error));
        }
        None
    }
}

#[cfg(test)]
mod tests;
