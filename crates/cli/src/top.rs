//! `sarsen top`: load and latency of volumes, sessions and initiators, updated every second.

mod screen;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, EventStream};
use crossterm::style::Print;
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use futures_util::StreamExt as _;
use futures_util::future::select_all;
use sarsen_io::time;
use sarsen_node::control::Client;
use sarsen_node::schema::statistics::{SessionVolume, Statistics, VolumeStatistics};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use self::screen::Screen;
use crate::control::{ServerOptions, table};
use crate::disk::on_a_core;
use crate::output::print_document;

const NANOSECONDS: f64 = 1e9;

/// Flags of `sarsen top`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Seconds between refreshes.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    interval: u16,
    /// Number of refreshes. Default: without a terminal 1, otherwise unlimited.
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<u64>,
    /// Number of lines. On a terminal: as many as fit.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    lines: usize,
    #[command(flatten)]
    options: ServerOptions,
}

/// One refresh: the stable format of `--json`.
#[derive(Debug, PartialEq, Serialize)]
struct Sample {
    unix_seconds: u64,
    /// The busiest are first.
    volumes: Vec<Row>,
    /// The busiest are first.
    sessions: Vec<Row>,
}

/// The activity of a volume, or of a session on a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Row {
    volume: String,
    /// The initiator of a session; not for a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    initiator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tsih: Option<u16>,
    reads_per_second: f64,
    writes_per_second: f64,
    read_bytes_per_second: f64,
    write_bytes_per_second: f64,
    /// Mean latency of reads and writes.
    latency_microseconds: f64,
    /// 99th percentile of a volume over the last ten seconds: the larger one of reads and writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_microseconds: Option<f64>,
    queue_depth: u64,
    errors: u64,
}

/// Counters of reads and writes: commands, bytes, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reads: [u64; 3],
    writes: [u64; 3],
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { interval, count, lines, options } = arguments;
    let client = options.client()?;
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    on_a_core(async {
        let looks = Samples::begin(client, Duration::from_secs((*interval).into())).await?;
        if is_terminal && !options.json {
            watch(looks, *count).await
        } else {
            tell(looks, count.unwrap_or(1), *lines, options.json).await
        }
    })
}

/// Reads a server's figures at an interval.
struct Samples {
    client: Client,
    interval: Duration,
    before: Statistics,
    then: Instant,
}

impl Samples {
    async fn begin(client: Client, interval: Duration) -> anyhow::Result<Self> {
        let before = client.get("/statistics").await?;
        Ok(Self { client, interval, before, then: time::now() })
    }

    /// Returns the next figures. Dropping the future loses none.
    async fn next(&mut self) -> anyhow::Result<Sample> {
        time::sleep_until(self.then + self.interval).await;
        let after: Statistics = self.client.get("/statistics").await?;
        let now = time::now();
        let seconds = now.duration_since(self.then).as_secs_f64();
        let look = Sample::between(&self.before, &after, seconds);
        (self.before, self.then) = (after, now);
        Ok(look)
    }
}

/// Prints a number of refreshes.
async fn tell(mut looks: Samples, count: u64, lines: usize, json: bool) -> anyhow::Result<()> {
    for _ in 0..count {
        let look = looks.next().await?;
        if json {
            print_document(&format!("{}\n", serde_json::to_string(&look)?))?
        } else {
            print_document(&look.render(lines))?
        }
    }
    Ok(())
}

/// The terminal's alternate screen, without echo. Dropping this restores the terminal, and so does a panic.
struct Terminal;

impl Terminal {
    fn take() -> anyhow::Result<Self> {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        let taken = Self;
        terminal::enable_raw_mode()
            .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, Hide))
            .context("this terminal is not supported; use --count or --json")?;
        Ok(taken)
    }

    /// Draws the screen in the terminal's present size, in one write.
    fn draw(&self, screen: &mut Screen) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let mut text = Vec::new();
        queue!(text, BeginSynchronizedUpdate)?;
        for (row, line) in (0..).zip(screen.draw(width.into(), height.into())) {
            queue!(text, MoveTo(0, row), Clear(ClearType::UntilNewLine), Print(line))?;
        }
        queue!(text, EndSynchronizedUpdate)?;
        let mut out = io::stdout().lock();
        out.write_all(&text).and_then(|()| out.flush())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // Nothing more can be done for a terminal that takes no output.
    let _ = terminal::disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}

/// Shows refreshes on the terminal and handles keys, until one of them quits.
async fn watch(mut looks: Samples, count: Option<u64>) -> anyhow::Result<()> {
    let has_colour = std::env::var_os("NO_COLOR").is_none();
    let mut screen = Screen::new(looks.client.address().to_string(), has_colour);
    let mut ends = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::quit())?,
    ];
    let terminal = Terminal::take()?;
    let mut keys = EventStream::new();
    let mut done = 0;
    while count.is_none_or(|count| done < count) {
        terminal.draw(&mut screen)?;
        tokio::select! {
            look = looks.next() => {
                screen.show(look?);
                done += 1;
            }
            event = keys.next() => match event.transpose()? {
                Some(Event::Key(key)) if screen.press(key).is_break() => break,
                // A new size takes effect when the screen is drawn.
                Some(_) => {}
                None => break,
            },
            _ = select_all(ends.iter_mut().map(|end| Box::pin(end.recv()))) => break,
        }
    }
    Ok(())
}

impl Sample {
    fn between(before: &Statistics, after: &Statistics, seconds: f64) -> Self {
        let old: BTreeMap<&str, &VolumeStatistics> =
            before.volumes.iter().map(|volume| (volume.volume.as_str(), volume)).collect();
        let volumes = after.volumes.iter().map(|volume| {
            let counts = old.get(volume.volume.as_str()).map(|old| of_volume(old));
            let row = row(counts.unwrap_or_default(), of_volume(volume), seconds);
            Row {
                volume: volume.volume.clone(),
                p99_microseconds: p99(volume),
                queue_depth: volume.queue_depth,
                errors: errors(&volume.errors),
                ..row
            }
        });
        let old: BTreeMap<(u16, &str), &SessionVolume> = before
            .sessions
            .iter()
            .flat_map(|session| {
                session
                    .volumes
                    .iter()
                    .map(|volume| ((session.tsih, volume.volume.as_str()), volume))
            })
            .collect();
        let sessions = after.sessions.iter().flat_map(|session| {
            session.volumes.iter().map(|volume| {
                let counts = old.get(&(session.tsih, volume.volume.as_str()));
                let counts = counts.map(|old| of_session(old)).unwrap_or_default();
                Row {
                    volume: volume.volume.clone(),
                    initiator: Some(session.initiator.clone()),
                    tsih: Some(session.tsih),
                    queue_depth: volume.queue_depth,
                    errors: errors(&volume.errors),
                    ..row(counts, of_session(volume), seconds)
                }
            })
        });
        let (mut volumes, mut sessions): (Vec<_>, Vec<_>) = (volumes.collect(), sessions.collect());
        for rows in [&mut volumes, &mut sessions] {
            rows.sort_by(|a, b| b.iops().total_cmp(&a.iops()));
        }
        Self { unix_seconds: after.unix_seconds, volumes, sessions }
    }

    fn render(&self, lines: usize) -> String {
        let of_volumes: Vec<_> =
            self.volumes.iter().take(lines).map(Row::cells_of_volume).collect();
        let of_sessions: Vec<_> =
            self.sessions.iter().take(lines).map(Row::cells_of_session).collect();
        let volumes = table(
            ["READ/S", "WRITE/S", "READ MB/S", "WRITE MB/S", "µs", "P99 µs", "DEPTH", "VOLUME"],
            &of_volumes,
        );
        let sessions = table(
            ["READ/S", "WRITE/S", "READ MB/S", "WRITE MB/S", "µs", "DEPTH", "SESSION", "VOLUME"],
            &of_sessions,
        );
        format!(
            "{}  {} volumes, {} sessions in use\n\n{volumes}\n\n{sessions}\n",
            crate::control::utc(self.unix_seconds),
            self.volumes.len(),
            self.sessions.len(),
        )
    }
}

impl Row {
    fn rates(&self) -> [String; 5] {
        let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
        [
            format!("{:.0}", self.reads_per_second),
            format!("{:.0}", self.writes_per_second),
            megabytes(self.read_bytes_per_second),
            megabytes(self.write_bytes_per_second),
            format!("{:.0}", self.latency_microseconds),
        ]
    }

    fn iops(&self) -> f64 {
        self.reads_per_second + self.writes_per_second
    }

    /// Bytes a second, reads and writes together.
    fn bandwidth(&self) -> f64 {
        self.read_bytes_per_second + self.write_bytes_per_second
    }

    /// The TSIH and the initiator.
    fn session(&self) -> String {
        let initiator = self.initiator.as_deref().unwrap_or_default();
        format!("{} {initiator}", self.tsih.unwrap_or_default())
    }

    fn cells_of_volume(&self) -> [String; 8] {
        let [a, b, c, d, e] = self.rates();
        let p99 = self.p99_microseconds.map_or("-".to_owned(), |p99| format!("{p99:.0}"));
        [a, b, c, d, e, p99, self.queue_depth.to_string(), self.volume.clone()]
    }

    fn cells_of_session(&self) -> [String; 8] {
        let [a, b, c, d, e] = self.rates();
        [a, b, c, d, e, self.queue_depth.to_string(), self.session(), self.volume.clone()]
    }
}

/// Returns the number of failed commands. A unit attention does not count: the initiator sends the command again.
fn errors(by_kind: &BTreeMap<String, u64>) -> u64 {
    by_kind.iter().filter(|(kind, _)| *kind != "unit_attention").map(|(_, count)| count).sum()
}

fn row(before: Counts, after: Counts, seconds: f64) -> Row {
    let reads = differences(before.reads, after.reads);
    let writes = differences(before.writes, after.writes);
    let commands = reads[0] + writes[0];
    let latency = if commands > 0.0 { (reads[2] + writes[2]) / commands } else { 0.0 };
    Row {
        reads_per_second: reads[0] / seconds,
        writes_per_second: writes[0] / seconds,
        read_bytes_per_second: reads[1] / seconds,
        write_bytes_per_second: writes[1] / seconds,
        latency_microseconds: latency / (NANOSECONDS / 1e6),
        ..Row::default()
    }
}

fn differences(before: [u64; 3], after: [u64; 3]) -> [f64; 3] {
    std::array::from_fn(|index| after[index].saturating_sub(before[index]) as f64)
}

fn of_volume(volume: &VolumeStatistics) -> Counts {
    counts(
        volume
            .operations
            .iter()
            .map(|of| (of.operation.as_str(), [of.count, of.bytes, of.total_nanoseconds])),
    )
}

fn of_session(volume: &SessionVolume) -> Counts {
    counts(
        volume
            .operations
            .iter()
            .map(|of| (of.operation.as_str(), [of.count, of.bytes, of.total_nanoseconds])),
    )
}

fn counts<'a>(operations: impl Iterator<Item = (&'a str, [u64; 3])>) -> Counts {
    let mut counts = Counts::default();
    for (operation, of) in operations {
        match operation {
            "read" => counts.reads = of,
            "write" => counts.writes = of,
            _ => {}
        }
    }
    counts
}

fn p99(volume: &VolumeStatistics) -> Option<f64> {
    let of_both = volume.operations.iter().filter(|of| matches!(&*of.operation, "read" | "write"));
    let p99 = of_both.filter_map(|of| Some(of.recent.as_ref()?.latency.p99_nanoseconds)).max()?;
    Some(p99 as f64 / (NANOSECONDS / 1e6))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn statistics(reads: u64, writes: u64) -> Statistics {
        let latency =
            json!({ "p50_nanoseconds": 1, "p99_nanoseconds": 90_000, "p999_nanoseconds": 3 });
        let operation = |name: &str, count: u64| {
            json!({
                "operation": name, "count": count, "bytes": count * 4096,
                "total_nanoseconds": count * 50_000, "buckets": [], "latency": latency,
                "recent": { "count": count, "bytes": 0, "latency": latency },
            })
        };
        let operations = [operation("read", reads), operation("write", writes)];
        let volume = json!({
            "volume": "a", "queue_depth": 3, "operations": operations, "errors": { "x": 2, "unit_attention": 40 }, "limited": 0,
            "recent_seconds": 10.0,
        });
        let session = json!({
            "tsih": 7, "initiator": "iqn.x:h", "target": "iqn.x:t", "volumes": [volume],
        });
        let all = json!({
            "unix_seconds": 0, "bucket_bounds_nanoseconds": [], "volumes": [volume],
            "sessions": [session],
        });
        serde_json::from_value(all).expect("statistics")
    }

    #[test]
    fn a_look_is_the_difference_of_two() {
        let look = Sample::between(&statistics(100, 10), &statistics(300, 20), 2.0);
        let row = &look.volumes[0];
        assert_eq!((row.reads_per_second, row.writes_per_second), (100.0, 5.0));
        assert_eq!(row.read_bytes_per_second, 409_600.0);
        assert_eq!((row.latency_microseconds, row.p99_microseconds), (50.0, Some(90.0)));
        assert_eq!((look.sessions[0].tsih, look.sessions[0].errors), (Some(7), 2));
        let text = look.render(5);
        assert!(text.starts_with("1970-01-01T00:00:00Z  1 volumes, 1 sessions in use\n"), "{text}");
        assert!(text.contains("50   90       3      a\n"), "{text}");
        assert!(text.contains("7 iqn.x:h"), "{text}");
    }
}
