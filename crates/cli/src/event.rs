//! `sarsen event`.

use std::ops::ControlFlow;

use clap::{Subcommand, ValueEnum};
use sarsen_node::control::path_segment;
use sarsen_node::schema::events::{Event, EventList};

use crate::control::ServerOptions;
use crate::disk::on_a_core;
use crate::output::{one_line, print_line};

/// Verbs of `sarsen event`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List the events of a running server: logins and refusals with their remedies, ends of sessions, changes,
    /// problems.
    List(List),
}

/// Flags of `sarsen event list`.
#[derive(clap::Args)]
pub(crate) struct List {
    /// Continue with new events until interrupted.
    #[arg(long)]
    follow: bool,
    /// Only events of this kind, such as login_refused.
    #[arg(long)]
    kind: Option<String>,
    /// Only events about this initiator, target, volume, account, peer or object.
    #[arg(long)]
    subject: Option<String>,
    /// Only events of this severity or above.
    #[arg(long, value_enum)]
    severity: Option<MinimumSeverity>,
    /// Maximum number of events; the newest are listed.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    options: ServerOptions,
}

#[derive(Clone, Copy, ValueEnum)]
enum MinimumSeverity {
    Info,
    Warning,
    Error,
}

impl List {
    /// Returns the query as the end of a path.
    fn query(&self) -> String {
        let severity = self.severity.map(|least| match least {
            MinimumSeverity::Info => "info",
            MinimumSeverity::Warning => "warning",
            MinimumSeverity::Error => "error",
        });
        let given = [
            ("kind", self.kind.as_deref()),
            ("subject", self.subject.as_deref()),
            ("severity", severity),
        ];
        let mut query = format!("?limit={}", self.limit);
        for (key, value) in given.iter().filter_map(|(key, value)| Some((key, (*value)?))) {
            query += &format!("&{key}={}", path_segment(value));
        }
        query
    }
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    let Verb::List(list) = verb;
    let (client, query) = (list.options.client()?, list.query());
    on_a_core(async {
        let found: EventList = client.get(&format!("/events{query}")).await?;
        if !list.follow {
            return show_all(&found, list.options.json);
        }
        found.events.iter().try_for_each(|event| show(event, list.options.json))?;
        let after = found.events.last().map_or(String::new(), |last| format!("&after={}", last.id));
        let mut rest = Vec::new();
        let mut outcome = Ok(());
        let path = format!("/live{query}{after}");
        let reported = client.stream(&path, |piece| {
            rest.extend_from_slice(piece);
            while let Some(end) = rest.windows(2).position(|pair| pair == b"\n\n") {
                let message: Vec<u8> = rest.drain(..end + 2).collect();
                if let Some(event) = event(&message) {
                    outcome = show(&event, list.options.json);
                }
            }
            match outcome {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        reported.await?;
        outcome
    })
}

/// Returns the event in a message of the server's stream, if it has one.
fn event(message: &[u8]) -> Option<Event> {
    let text = std::str::from_utf8(message).ok()?;
    let of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    if of("event: ")? != "event" {
        return None;
    }
    serde_json::from_str(of("data: ")?).ok()
}

fn show_all(list: &EventList, json: bool) -> anyhow::Result<()> {
    if json {
        print_line(&serde_json::to_string(list)?)
    } else {
        list.events.iter().try_for_each(|event| show(event, false))
    }
}

fn show(event: &Event, json: bool) -> anyhow::Result<()> {
    if json { print_line(&serde_json::to_string(event)?) } else { print_line(&render(event)) }
}

fn render(event: &Event) -> String {
    let severity = format!("{:?}", event.severity).to_lowercase();
    let time = utc(event.unix_ms);
    let mut text = format!("{time}  {severity:<7}  {}: {}", event.kind, one_line(&event.message));
    if let Some(remedy) = &event.remedy {
        text += &format!("\n{:22}what to do: {}", "", one_line(remedy));
    }
    text
}

/// Formats a time as `2026-01-31 23:59:59Z`, by the proleptic Gregorian calendar.
fn utc(unix_ms: u64) -> String {
    let (days, second) = (unix_ms / 86_400_000, unix_ms / 1000 % 86_400);
    // Years begin in March here, so that a leap day is the last day of a year. 719,468 is the number of days from the
    // first of March of year 0 to 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sarsen_node::schema::events::Severity;

    use super::*;

    #[test]
    fn event_and_remedy_are_separate_lines() {
        let event = Event {
            id: 1,
            unix_ms: 1_790_000_000_000,
            severity: Severity::Warning,
            kind: "login_refused".into(),
            message: "no".into(),
            remedy: Some("this".into()),
            subject: BTreeMap::new(),
            names: Vec::new(),
        };
        assert_eq!(
            render(&event),
            "2026-09-21 14:13:20Z  warning  login_refused: no\n                      what to do: this"
        );
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let day = |days: u64| utc(days * 86_400_000);
        assert_eq!(day(0), "1970-01-01 00:00:00Z");
        assert_eq!(day(11_016), "2000-02-29 00:00:00Z");
        assert_eq!(day(11_017), "2000-03-01 00:00:00Z");
        assert_eq!(day(20_453), "2025-12-31 00:00:00Z");
        assert_eq!(utc(4_102_444_799_999), "2099-12-31 23:59:59Z");
    }

    #[test]
    fn of_the_stream_events_alone_are_shown() {
        let statistics = b"event: statistics\ndata: {}\n\n";
        assert!(event(statistics).is_none());
        let reported = br#"event: event
id: 7
data: {"id":7,"unix_ms":1,"severity":"info","kind":"k","message":"m","remedy":null,"subject":{}}

"#;
        assert_eq!(event(reported).expect("an event").id, 7);
    }
}
