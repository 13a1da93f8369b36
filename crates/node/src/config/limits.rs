//! What initiators may take of the server, all of them and each: the table `[limits]`.
//!
//! ```toml
//! [limits]
//! # A login must be done by then; the connection is closed.
//! login-timeout = "15s"
//! # Open connections, in all and from one source: an IPv4 address, or an IPv6 network of 64 bits.
//! # Those beyond are closed as they come.
//! connections = 20000
//! connections-per-source = 12000
//! # Connections from one source whose login is not done. Those beyond are closed as they come.
//! logins-per-source = 1024
//! # Sessions, in all and of one target: a login beyond is refused with status 0302h. And connections
//! # of one session (MaxConnections): one beyond is refused with 0206h.
//! sessions = 16384
//! sessions-per-target = 16384
//! connections-per-session = 16
//! # Commands that a session may have outstanding (the window that MaxCmdSN tells; what is above it is
//! # dropped), and those for immediate delivery or of task management beside them (rejected, reason 06h).
//! commands = 128
//! immediate-commands = 32
//! # Commands of all sessions that are carried out at once where volumes or hosts have a share or a
//! # minimum; those beyond wait, and go by these.
//! in-service = 64
//! # Memory for the data of commands: of each connection, and of all together. Commands beyond wait.
//! # One command of each connection may pass the first limit, and one of all the second. A write whose
//! # unsolicited data finds no memory is answered with TASK SET FULL or BUSY.
//! memory-per-connection = "32MiB"
//! memory = "1GiB"
//! # Text of one request of a login (refused with 0302h) or after it (rejected, reason 0Ah).
//! text = "64KiB"
//! # Answers that wait to be sent. A peer that does not take them is not listened to beyond that.
//! unsent = "1MiB"
//! # A silent initiator is pinged after ping-interval, and given up when it leaves that unanswered for
//! # ping-timeout.
//! ping-interval = "30s"
//! ping-timeout = "30s"
//! # TCP: when a silent connection is probed, and when one is given up whose peer acknowledges nothing.
//! keepalive = "60s"
//! user-timeout = "60s"
//! ```

use std::sync::Arc;
use std::time::Duration;

use sarsen_proto::iscsi::keys::TargetOffer;
use sarsen_proto::iscsi::target::{Budget, Settings};

use super::size::{parse_size, render_size};
use super::{ConfigError, Setting, nearest};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A login must be done by then.
    pub login_timeout: Duration,
    /// Open connections in all.
    pub connections: usize,
    /// Open connections from one source.
    pub connections_per_source: usize,
    /// Connections from one source whose login is not done.
    pub logins_per_source: usize,
    /// Sessions in all.
    pub sessions: usize,
    /// Sessions of one target.
    pub sessions_per_target: usize,
    /// Connections of one session: MaxConnections.
    pub connections_per_session: usize,
    /// Commands that a session may have outstanding.
    pub commands: usize,
    /// Immediate commands beside them.
    pub immediate_commands: usize,
    /// Commands that are carried out at once, of all sessions, where it matters who goes first.
    pub in_service: usize,
    /// Bytes for the data of one connection's commands.
    pub memory_per_connection: usize,
    /// Bytes for the data of all commands.
    pub memory: usize,
    /// Bytes of text of one request.
    pub text: usize,
    /// Bytes of answers that wait to be sent.
    pub unsent: usize,
    /// An initiator that was silent for so long is pinged.
    pub ping_interval: Duration,
    /// One that leaves a ping unanswered for so long is given up.
    pub ping_timeout: Duration,
    /// A TCP connection that was silent for so long is probed.
    pub keepalive: Duration,
    /// A TCP connection whose peer acknowledges nothing for so long is given up.
    pub user_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            login_timeout: Duration::from_secs(15),
            connections: 20_000,
            connections_per_source: 12_000,
            logins_per_source: 1024,
            sessions: 16_384,
            sessions_per_target: 16_384,
            connections_per_session: 16,
            commands: 128,
            immediate_commands: 32,
            in_service: 64,
            memory_per_connection: 32 << 20,
            memory: 1 << 30,
            text: 64 << 10,
            unsent: 1 << 20,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(30),
            keepalive: Duration::from_secs(60),
            user_timeout: Duration::from_secs(60),
        }
    }
}

/// How a limit is written, its range, and where it is kept.
enum LimitKind {
    Count(usize, usize, fn(&mut Limits) -> &mut usize),
    Bytes(usize, usize, fn(&mut Limits) -> &mut usize),
    /// In milliseconds.
    Time(u64, u64, fn(&mut Limits) -> &mut Duration),
}

const HOUR: u64 = 3_600_000;
const GIB: usize = 1 << 30;

/// One row a key.
const ROWS: [(&str, LimitKind); 18] = [
    ("login-timeout", LimitKind::Time(100, HOUR, |limits| &mut limits.login_timeout)),
    ("connections", LimitKind::Count(1, 1_000_000, |limits| &mut limits.connections)),
    (
        "connections-per-source",
        LimitKind::Count(1, 1_000_000, |limits| &mut limits.connections_per_source),
    ),
    ("logins-per-source", LimitKind::Count(1, 1_000_000, |limits| &mut limits.logins_per_source)),
    // TSIHs, which are not 0.
    ("sessions", LimitKind::Count(1, 65_535, |limits| &mut limits.sessions)),
    ("sessions-per-target", LimitKind::Count(1, 65_535, |limits| &mut limits.sessions_per_target)),
    // RFC 7143 §13.2 has 65535; each costs the others a look.
    (
        "connections-per-session",
        LimitKind::Count(1, 1024, |limits| &mut limits.connections_per_session),
    ),
    ("commands", LimitKind::Count(1, 4096, |limits| &mut limits.commands)),
    ("immediate-commands", LimitKind::Count(1, 4096, |limits| &mut limits.immediate_commands)),
    ("in-service", LimitKind::Count(1, 65_536, |limits| &mut limits.in_service)),
    (
        "memory-per-connection",
        LimitKind::Bytes(1 << 20, 64 * GIB, |limits| &mut limits.memory_per_connection),
    ),
    ("memory", LimitKind::Bytes(1 << 20, 1024 * GIB, |limits| &mut limits.memory)),
    ("text", LimitKind::Bytes(8 << 10, 16 << 20, |limits| &mut limits.text)),
    ("unsent", LimitKind::Bytes(64 << 10, GIB, |limits| &mut limits.unsent)),
    ("ping-interval", LimitKind::Time(1_000, HOUR, |limits| &mut limits.ping_interval)),
    ("ping-timeout", LimitKind::Time(1_000, HOUR, |limits| &mut limits.ping_timeout)),
    ("keepalive", LimitKind::Time(1_000, HOUR, |limits| &mut limits.keepalive)),
    ("user-timeout", LimitKind::Time(1_000, HOUR, |limits| &mut limits.user_timeout)),
];

impl Limits {
    /// The table's settings over what holds unless given.
    pub(super) fn from_settings(settings: Vec<Setting>) -> Result<Self, ConfigError> {
        let mut limits = Self::default();
        for Setting { key, value, place } in settings {
            let Some((_, kind)) = ROWS.iter().find(|(name, _)| *name == key) else {
                let names = || ROWS.iter().map(|(name, _)| *name);
                let (hint, known) = (nearest(&key, names()), names().collect::<Vec<_>>());
                let message = format!("unknown key {key}{hint} (known: {})", known.join(", "));
                return Err(ConfigError::new(place, message));
            };
            limits
                .set(kind, &value)
                .map_err(|wrong| ConfigError::new(place, format!("{key} = {value:?}: {wrong}")))?;
        }
        Ok(limits)
    }

    fn set(&mut self, kind: &LimitKind, value: &str) -> Result<(), String> {
        match *kind {
            LimitKind::Count(low, high, field) => {
                let number = value.parse().ok().filter(|number| (low..=high).contains(number));
                *field(self) =
                    number.ok_or_else(|| format!("write a number from {low} to {high}"))?;
            }
            LimitKind::Bytes(low, high, field) => {
                let size = parse_size(value).ok().and_then(|size| usize::try_from(size).ok());
                let size = size.filter(|size| (low..=high).contains(size));
                *field(self) = size.ok_or_else(|| {
                    let [low, high] = [low, high].map(|size| render_size(size as u64));
                    format!("write a size from {low} to {high}, such as 64MiB")
                })?;
            }
            LimitKind::Time(low, high, field) => {
                let time = parse_time(value).filter(|time| (low..=high).contains(time));
                *field(self) = Duration::from_millis(time.ok_or_else(|| {
                    format!("write a time from {low}ms to {}s, such as 15s", high / 1000)
                })?);
            }
        }
        Ok(())
    }

    /// What these come to for each connection's machine.
    pub(crate) fn settings(&self) -> Settings {
        self.settings_with(Arc::new(Budget::new(self.memory)))
    }

    /// The same with memory that is lent already.
    pub(crate) fn settings_with(&self, budget: Arc<Budget>) -> Settings {
        Settings {
            offer: TargetOffer {
                max_connections: self.connections_per_session as u32,
                ..TargetOffer::default()
            },
            command_window: self.commands as u32,
            immediate_limit: self.immediate_commands,
            login_timeout: self.login_timeout,
            text_limit: self.text,
            room_limit: self.memory_per_connection,
            budget,
            output_limit: self.unsent,
            ping_interval: self.ping_interval,
            ping_timeout: self.ping_timeout,
        }
    }
}

/// Milliseconds of `20ms`, or `2s`.
pub(super) fn parse_time(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Config, parse_file};
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        parse_file(Path::new("sarsen.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_of_the_module_says_what_holds_unless_given() {
        let text = include_str!("limits.rs");
        let example = text.split("```").nth(1).expect("an example").trim_start_matches("toml");
        let example: String =
            example.lines().map(|line| format!("{}\n", line.trim_start_matches("//! "))).collect();
        let keys = example.lines().filter(|line| !line.starts_with('#') && line.contains(" = "));
        assert!(keys.map(|line| line.split(' ').next().expect("a key")).eq(ROWS.map(|row| row.0)));
        assert_eq!(parse(&example.replace("//!", "")).expect("valid").limits, Limits::default());
    }

    #[test]
    fn a_limit_reaches_the_machines() {
        let text = "[limits]\ncommands = 7\nimmediate-commands = 3\nlogin-timeout = \"500ms\"\n\
                    memory-per-connection = \"2MiB\"\ntext = 8192\nunsent = \"64KiB\"\n\
                    connections-per-session = 2\nping-interval = \"5s\"\nping-timeout = \"6s\"";
        let settings = parse(text).expect("valid").limits.settings();
        assert_eq!((settings.command_window, settings.immediate_limit), (7, 3));
        assert_eq!(settings.login_timeout, Duration::from_millis(500));
        assert_eq!((settings.room_limit, settings.text_limit), (2 << 20, 8192));
        assert_eq!((settings.output_limit, settings.offer.max_connections), (64 << 10, 2));
        assert_eq!(settings.ping_interval + settings.ping_timeout, Duration::from_secs(11));
    }

    #[test]
    fn defaults_are_the_machines_own() {
        let (ours, theirs) = (Limits::default().settings(), Settings::default());
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn every_limit_has_a_range_and_tells_it() {
        for (name, kind) in &ROWS {
            let mut limits = Limits::default();
            let value = match kind {
                LimitKind::Count(_, high, _) | LimitKind::Bytes(_, high, _) => {
                    (high + 1).to_string()
                }
                LimitKind::Time(_, high, _) => format!("{}ms", high + 1),
            };
            for wrong in ["0", "-1", "1.5", "much", "", &value] {
                let message = limits.set(kind, wrong).expect_err(name);
                assert!(message.contains("write a ") && message.contains(" to "), "{message}");
            }
            assert_eq!(limits, Limits::default());
        }
    }

    #[test]
    fn a_mistake_names_the_line_and_the_nearest_key() {
        for (text, reported) in [
            ("[limits]\nconections = 3", "sarsen.toml:2: unknown key conections; did you mean"),
            ("[limits]\n\nsessions = 65536", "sarsen.toml:3: sessions = \"65536\": write a number"),
            ("[limits]\nmemory = \"1KiB\"", "write a size from 1 MiB to 1 TiB"),
            ("[limits]\nkeepalive = \"3h\"", "write a time from 1000ms to 3600s, such as 15s"),
            ("limits = 3", "sarsen.toml:1: limits is to be a table: write [limits]"),
        ] {
            let message = parse(text).expect_err(reported);
            assert!(message.contains(reported), "{message}");
        }
    }
}
