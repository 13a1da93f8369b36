//! All output of verbs: standard output for results, standard error for notes and the log.
//!
//! Names and sentences may come from an initiator, a target, a disk or a file. Characters that control a terminal
//! (escape sequences), and characters that make text look like other text (bidirectional marks, invisible
//! characters), are printed as `\u001b`. [`printable`] is the one function that does this. JSON parsers read the
//! escape as the same text.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};

use anyhow::Context as _;
use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;

/// The format of the log.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// One readable line for each event.
    Text,
    /// One JSON object per line, for programs.
    Json,
}

/// The reader of the output closed it, as `head` does: the program ends without an error.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct OutputClosed;

/// Returns the error of a failed print. A closed standard output is an error of its own.
pub(crate) fn printed(outcome: io::Result<()>) -> anyhow::Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        outcome => outcome.context("cannot write to standard output"),
    }
}

/// Prints one or several lines on standard output.
pub(crate) fn print_line(line: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    printed(writeln!(out, "{}", printable(line)).and_then(|()| out.flush()))
}

/// Prints a document as it is, for a file or a program; on a terminal as [`print_line`] does.
pub(crate) fn print_document(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { printable(text) } else { Cow::Borrowed(text) };
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints one or several lines on standard error. A verb continues if standard error cannot be written.
pub(crate) fn note(text: impl fmt::Display) {
    let _ = print_note(text);
}

/// Prints one or several lines on standard error.
pub(crate) fn print_note(text: impl fmt::Display) -> io::Result<()> {
    let text = text.to_string();
    writeln!(io::stderr().lock(), "{}", printable(&text))
}

/// Asks a question on standard error. The user types the answer on the same line.
pub(crate) fn ask(question: &str) -> io::Result<()> {
    let mut out = io::stderr().lock();
    write!(out, "{}", printable(question))?;
    out.flush()
}

/// Escapes text of several lines, so that it neither controls a terminal nor looks like other text.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe(c) && c != '\n' && c != '\t')
}

/// Escapes text of one line: a name, a cell of a table, a field of the log.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe)
}

/// Returns whether `c` is a control character (line ends included), a bidirectional mark or a character without width.
fn is_unsafe(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
    ) || c.is_control()
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_escaped(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing into a `String` does not fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Sends logs to standard error; `RUST_LOG` chooses the level. The log of a server is `queued`, so that the server does
/// not wait for a reader.
pub(crate) fn start_logging(default_level: LevelFilter, format: LogFormat, queued: bool) {
    let writer = match sarsen_io::log::standard_error() {
        Ok(log) if queued => {
            flush_at_a_panic();
            BoxMakeWriter::new(move || log)
        }
        _ => BoxMakeWriter::new(io::stderr),
    };
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // A subscriber that an earlier caller has set stays, as in a test.
    let _ =
        tracing::subscriber::set_global_default(subscriber(default_level, format, colour, writer));
}

fn subscriber(
    default_level: LevelFilter,
    format: LogFormat,
    colour: bool,
    writer: BoxMakeWriter,
) -> Box<dyn Subscriber + Send + Sync> {
    let asked = std::env::var("RUST_LOG").ok().and_then(|asked| asked.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(default_level));
    let logs = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_target(false)
        // The subscriber itself reports a failed write with `eprintln!`, which panics.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let fields = debug_fn(write_field).delimited(" ");
            let logs = logs.with_ansi(colour).with_writer(writer).fmt_fields(fields);
            Box::new(logs.finish().with(filter))
        }
        LogFormat::Json => {
            let writer = BoxMakeWriter::new(EscapingMaker(writer));
            let logs = logs.json().flatten_event(true).with_writer(writer);
            Box::new(logs.finish().with(filter))
        }
    }
}

/// Flushes the log in case of a panic, so that the lines before the panic are not lost.
fn flush_at_a_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        sarsen_io::log::flush();
        usual(panic);
    }));
}

fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = format!("{value:?}");
    match field.name() {
        "message" => write!(writer, "{}", one_line(&value)),
        name => write!(writer, "{name}={}", one_line(&value)),
    }
}

/// Creates writers that escape the characters that JSON leaves unescaped.
struct EscapingMaker(BoxMakeWriter);

impl<'a> MakeWriter<'a> for EscapingMaker {
    type Writer = Escaping<<BoxMakeWriter as MakeWriter<'a>>::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Escaping(self.0.make_writer())
    }
}

struct Escaping<W>(W);

impl<W: io::Write> io::Write for Escaping<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) => self.0.write_all(printable(text).as_bytes())?,
            // serde_json never writes these characters.
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// The text sets the clipboard, deletes the line, and shows `moc.live` as `evil.com`.
    const HOSTILE: &str = "iqn.x:\u{1b}]52;c;cm0=\u{7}\u{9b}2K\r\nroot\u{202e}moc.live\u{200b}é";

    fn is_plain(text: &str) -> bool {
        text.chars().all(|c| c == '\n' || c == '\t' || !is_unsafe(c))
    }

    #[test]
    fn control_characters_are_not_sent_to_terminal() {
        let text = printable(HOSTILE);
        assert_eq!(
            text,
            "iqn.x:\\u001b]52;c;cm0=\\u0007\\u009b2K\\u000d\nroot\\u202emoc.live\\u200bé"
        );
        assert!(is_plain(&text) && !one_line(HOSTILE).contains('\n'));
        assert!(matches!(printable("two\n\tlines, é, 漢字, 🙂"), Cow::Borrowed(_)));
        assert_eq!(printable("\u{e0041}"), "\\udb40\\udc41");
    }

    #[test]
    fn printed_json_equals_value() {
        let json = serde_json::json!({ "initiator": HOSTILE, HOSTILE: 1 });
        let text = json.to_string();
        let text = printable(&text);
        assert!(is_plain(&text), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).ok(), Some(json));
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Logs a hostile name in a message, in fields and in a span, and returns the log.
    fn logged(format: LogFormat, colour: bool) -> String {
        let written = Written::default();
        let writer = written.clone();
        let writer = BoxMakeWriter::new(move || writer.clone());
        let subscriber = subscriber(LevelFilter::INFO, format, colour, writer);
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("session", initiator = HOSTILE);
            let _entered = span.enter();
            tracing::warn!(name = %HOSTILE, quoted = ?HOSTILE, "it says {HOSTILE}");
        });
        let bytes = written.0.lock().expect("not poisoned").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn a_record_of_the_log_is_one_plain_line() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let text = logged(format, false);
            assert_eq!((text.lines().count(), text.ends_with('\n')), (1, true), "{text:?}");
            assert!(is_plain(&text), "{text:?}");
        }
        let json: serde_json::Value =
            serde_json::from_str(&logged(LogFormat::Json, false)).expect("JSON");
        assert_eq!((&json["name"], &json["span"]["initiator"]), (&HOSTILE.into(), &HOSTILE.into()));
        // The subscriber's own colours are escape sequences.
        let coloured = logged(LogFormat::Text, true);
        assert!(coloured.contains('\u{1b}'), "{coloured:?}");
        assert!(!coloured.contains("\u{1b}]") && coloured.lines().count() == 1, "{coloured:?}");
    }
}
