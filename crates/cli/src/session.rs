//! `sarsen session`.

use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;
use clap::Subcommand;
use sarsen_io::time;
use sarsen_node::control::path_segment;
use sarsen_node::schema::{DrainSession, Drained, Session, SessionKind, SessionList};

use crate::control::{ServerOptions, report_drain, table};
use crate::disk::on_a_core;
use crate::output::print_line;

/// Verbs of `sarsen session`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List the sessions of a running server.
    List {
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Write the traffic of a session to a pcap file, for Wireshark, until the session ends or this is interrupted.
    /// The file contains the data of the disks. Traffic of TLS portals is decrypted.
    Trace {
        /// The session's TSIH: see `sarsen session list`.
        #[arg(required_unless_present = "initiator")]
        tsih: Option<u16>,
        /// Trace this initiator instead, from its next login on. Login secrets are masked.
        #[arg(long, value_name = "NAME", conflicts_with = "tsih")]
        initiator: Option<String>,
        /// With --initiator: do not mask login secrets.
        #[arg(long, requires = "initiator")]
        secrets: bool,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// End the trace after this number of seconds.
        #[arg(long, value_name = "SECONDS")]
        seconds: Option<u64>,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Ask a session's initiator to log out, and terminate the session after the grace period.
    Drain {
        /// The session's TSIH: see `sarsen session list`.
        tsih: u16,
        /// Grace period: seconds that the initiator has to log out. The server then terminates the session.
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        grace: u16,
        #[command(flatten)]
        options: ServerOptions,
    },
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::List { options } => {
            let client = options.client()?;
            let list: SessionList = on_a_core(async { Ok(client.get("/sessions").await?) })?;
            if options.json {
                return print_line(&serde_json::to_string(&list)?);
            }
            let now = time::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            print_line(&render(&list.sessions, now))
        }
        Verb::Trace { tsih, initiator, secrets, out, seconds, options } => {
            let path = match (tsih, initiator) {
                (Some(tsih), _) => format!("/sessions/{tsih}/trace"),
                (None, initiator) => {
                    let name = path_segment(&initiator.unwrap_or_default());
                    format!("/trace?initiator={name}&secrets={secrets}")
                }
            };
            trace(&path, &out, seconds, &options)
        }
        Verb::Drain { tsih, grace, options } => {
            let client = options.client()?;
            let request = DrainSession { grace_seconds: Some(grace) };
            let path = format!("/sessions/{tsih}/drain");
            let drained: Drained = on_a_core(async { Ok(client.post(&path, &request).await?) })?;
            report_drain(&drained, options.json)
        }
    }
}

/// Writes a trace until it ends.
fn trace(
    path: &str,
    out: &Path,
    seconds: Option<u64>,
    options: &ServerOptions,
) -> anyhow::Result<()> {
    let mut file = File::create(out).with_context(|| format!("{}", out.display()))?;
    let client = options.client()?;
    let mut count = 0;
    let mut outcome = Ok(());
    on_a_core(async {
        let reported = client.stream(path, |piece| {
            count += piece.len();
            outcome = file.write_all(piece);
            match outcome {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        let over = async {
            match seconds {
                Some(seconds) => {
                    time::sleep_until(time::now() + Duration::from_secs(seconds)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            reported = reported => reported?,
            () = over => {}
            interrupted = tokio::signal::ctrl_c() => interrupted?,
        }
        Ok(())
    })?;
    outcome.with_context(|| format!("{}", out.display()))?;
    if options.json {
        print_line(&serde_json::json!({ "bytes": count }).to_string())
    } else {
        print_line(&format!("{count} bytes in {}", out.display()))
    }
}

fn render(sessions: &[Session], now: u64) -> String {
    let row = |session: &Session| {
        let peers: Vec<_> =
            session.connections.iter().map(|connection| connection.peer.as_str()).collect();
        let target = match (&session.target, session.kind) {
            (_, SessionKind::Discovery) => "(discovery)".to_owned(),
            (target, _) => target.clone().unwrap_or_default(),
        };
        [
            session.tsih.to_string(),
            age(now.saturating_sub(session.since_unix_seconds)),
            session.initiator.clone(),
            session.account.clone().unwrap_or_else(|| "-".to_owned()),
            session.protocol.name().to_owned(),
            target,
            session.volume.clone().unwrap_or_else(|| "-".to_owned()),
            peers.join(" "),
        ]
    };
    let rows: Vec<_> = sessions.iter().map(row).collect();
    table(["TSIH", "AGE", "INITIATOR", "ACCOUNT", "PROTOCOL", "TARGET", "VOLUME", "PEERS"], &rows)
}

/// Formats a duration with its two largest units.
fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use sarsen_node::config::Protocol;

    use super::*;

    #[test]
    fn a_session_is_one_line() {
        let session = Session {
            tsih: 7,
            protocol: Protocol::Iscsi,
            initiator: "iqn.2026-01.x:host".into(),
            isid: Some("0x800000000001".into()),
            target: Some("iqn.2026-01.x:disk".into()),
            volume: None,
            kind: SessionKind::Normal,
            account: None,
            since_unix_seconds: 100,
            connections: Vec::new(),
        };
        let discovery =
            Session { tsih: 8, target: None, kind: SessionKind::Discovery, ..session.clone() };
        let nbd = Session {
            protocol: Protocol::Nbd,
            initiator: "nbd:10.0.0.1".into(),
            isid: None,
            volume: Some("disk".into()),
            ..session.clone()
        };
        let text = render(&[session, discovery, nbd], 175);
        let lines: Vec<Vec<_>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let head = ["TSIH", "AGE", "INITIATOR", "ACCOUNT", "PROTOCOL", "TARGET", "VOLUME", "PEERS"];
        assert_eq!(lines[0], head);
        let target = "iqn.2026-01.x:disk";
        assert_eq!(lines[1], ["7", "1m15s", "iqn.2026-01.x:host", "-", "iscsi", target, "-"]);
        assert_eq!(lines[2][5], "(discovery)");
        assert_eq!(lines[3], ["7", "1m15s", "nbd:10.0.0.1", "-", "nbd", target, "disk"]);
    }

    #[test]
    fn an_age_has_two_units() {
        let ages = [0, 59, 60, 3599, 3600, 86_399, 86_400, 200_000].map(age);
        assert_eq!(ages, ["0s", "59s", "1m0s", "59m59s", "1h0m", "23h59m", "1d0h", "2d7h"]);
    }
}
