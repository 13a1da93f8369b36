//! The table `[limits]`: what initiators may use of the server, together and each.

use std::sync::Arc;
use std::time::Duration;

use sarsen_proto::Budget;
use sarsen_proto::iscsi::keys::TargetOffer;
use sarsen_proto::iscsi::target::Settings;

use super::reference::KeyReference;
use super::{AtPlace, ConfigError, Setting, nearest, parse_size, render_size};
use crate::model::{Milliseconds, Unit};

/// The limits of initiators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum duration of a login.
    pub login_timeout: Duration,
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum number of open connections from one source.
    pub connections_per_source: usize,
    /// Maximum number of connections from one source whose login is not complete.
    pub logins_per_source: usize,
    /// Maximum number of sessions.
    pub sessions: usize,
    /// Maximum number of sessions of one target.
    pub sessions_per_target: usize,
    /// Maximum number of connections of one session: MaxConnections.
    pub connections_per_session: usize,
    /// Maximum number of outstanding commands of a session.
    pub commands: usize,
    /// Maximum number of immediate commands in addition to them.
    pub immediate_commands: usize,
    /// Maximum number of commands of all sessions that are executed at once while volumes or hosts have QoS claims.
    pub in_service: usize,
    /// Maximum memory in bytes for the data of one connection's commands.
    pub memory_per_connection: usize,
    /// Maximum memory in bytes for the data of all commands.
    pub memory: usize,
    /// Maximum bytes of text of one request.
    pub text: usize,
    /// Maximum bytes of unsent answers.
    pub unsent: usize,
    /// The server pings an initiator that was silent for this time.
    pub ping_interval: Duration,
    /// The server closes the connection of an initiator that does not answer a ping within this time.
    pub ping_timeout: Duration,
    /// TCP probes a connection that was silent for this time.
    pub keepalive: Duration,
    /// TCP closes a connection whose peer acknowledges nothing for this time.
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

/// A key of the table.
struct Limit {
    key: &'static str,
    range: LimitRange,
    text: &'static str,
}

/// The smallest and the largest value of a limit, and its field.
enum LimitRange {
    Count(usize, usize, fn(&mut Limits) -> &mut usize),
    Bytes(usize, usize, fn(&mut Limits) -> &mut usize),
    /// In milliseconds.
    Time(u64, u64, fn(&mut Limits) -> &mut Duration),
}

/// A time as the file writes it.
pub(crate) const TIME_PATTERN: &str = "^[0-9]+(ms|s)$";
const HOUR: u64 = 3_600_000;
const GIB: usize = 1 << 30;

const LIMITS: [Limit; 18] = [
    Limit {
        key: "login-timeout",
        range: LimitRange::Time(100, HOUR, |limits| &mut limits.login_timeout),
        text: "The time that a login may take. The server closes the connection after it.",
    },
    Limit {
        key: "connections",
        range: LimitRange::Count(1, 1_000_000, |limits| &mut limits.connections),
        text: "Maximum number of open connections. The server closes further ones at once.",
    },
    Limit {
        key: "connections-per-source",
        range: LimitRange::Count(1, 1_000_000, |limits| &mut limits.connections_per_source),
        text: "Maximum number of open connections from one source: an IPv4 address, or an IPv6 network of 64 \
               bits. The \
               server closes further ones at once.",
    },
    Limit {
        key: "logins-per-source",
        range: LimitRange::Count(1, 1_000_000, |limits| &mut limits.logins_per_source),
        text: "Maximum number of connections from one source whose login is not complete. The server closes further \
               ones at once.",
    },
    // TSIHs, which are not 0.
    Limit {
        key: "sessions",
        range: LimitRange::Count(1, 65_535, |limits| &mut limits.sessions),
        text: "Maximum number of sessions. Further logins are refused with status 0302h.",
    },
    Limit {
        key: "sessions-per-target",
        range: LimitRange::Count(1, 65_535, |limits| &mut limits.sessions_per_target),
        text: "Maximum number of sessions of one target. Further logins are refused with status 0302h.",
    },
    // RFC 7143 13.2 has 65535; each connection is looked at when another one joins.
    Limit {
        key: "connections-per-session",
        range: LimitRange::Count(1, 1024, |limits| &mut limits.connections_per_session),
        text: "MaxConnections, the maximum number of connections of one session. Further ones are refused with \
               status \
               0206h.",
    },
    Limit {
        key: "commands",
        range: LimitRange::Count(1, 4096, |limits| &mut limits.commands),
        text: "Maximum number of outstanding commands of a session: the window up to MaxCmdSN. Commands above the \
               window are dropped.",
    },
    Limit {
        key: "immediate-commands",
        range: LimitRange::Count(1, 4096, |limits| &mut limits.immediate_commands),
        text: "Maximum number of immediate commands and task management functions of a session, beside the window. \
               Further ones are rejected with reason 06h.",
    },
    Limit {
        key: "in-service",
        range: LimitRange::Count(1, 65_536, |limits| &mut limits.in_service),
        text: "Maximum number of commands of all sessions that run at the same time, if a volume or a host has a \
               weight or a reserved rate. Further commands wait, and start in the order of these.",
    },
    Limit {
        key: "memory-per-connection",
        range: LimitRange::Bytes(1 << 20, 64 * GIB, |limits| &mut limits.memory_per_connection),
        text: "Maximum memory for the data of one connection's commands. Further commands wait. One command may \
               exceed \
               this limit.",
    },
    Limit {
        key: "memory",
        range: LimitRange::Bytes(1 << 20, 1024 * GIB, |limits| &mut limits.memory),
        text: "Maximum memory for the data of all commands. Further commands wait. One command may exceed this \
               limit. \
               A write whose unsolicited data finds no memory ends with TASK SET FULL or BUSY.",
    },
    Limit {
        key: "text",
        range: LimitRange::Bytes(8 << 10, 16 << 20, |limits| &mut limits.text),
        text: "Maximum length of the text of one request. A longer one is refused with status 0302h during the \
               login, \
               and rejected with reason 0Ah after it.",
    },
    Limit {
        key: "unsent",
        range: LimitRange::Bytes(64 << 10, GIB, |limits| &mut limits.unsent),
        text: "Maximum size of the responses that wait until the initiator reads them. Beyond it, the server \
               reads no \
               more requests from this connection.",
    },
    Limit {
        key: "ping-interval",
        range: LimitRange::Time(1_000, HOUR, |limits| &mut limits.ping_interval),
        text: "The server sends a NOP-In after this time of silence.",
    },
    Limit {
        key: "ping-timeout",
        range: LimitRange::Time(1_000, HOUR, |limits| &mut limits.ping_timeout),
        text: "The server closes the connection if the NOP-In is not answered within this time.",
    },
    Limit {
        key: "keepalive",
        range: LimitRange::Time(1_000, HOUR, |limits| &mut limits.keepalive),
        text: "TCP probes a silent connection after this time.",
    },
    Limit {
        key: "user-timeout",
        range: LimitRange::Time(1_000, HOUR, |limits| &mut limits.user_timeout),
        text: "TCP closes a connection whose peer acknowledges nothing for this time.",
    },
];

impl Limits {
    /// Applies the table's settings to the defaults.
    pub(super) fn from_settings(settings: Vec<Setting>) -> Result<Self, ConfigError> {
        let mut limits = Self::default();
        for Setting { key, value, place } in settings {
            let Some(limit) = LIMITS.iter().find(|limit| limit.key == key) else {
                let names = || LIMITS.iter().map(|limit| limit.key);
                let (hint, known) = (nearest(&key, names()), names().collect::<Vec<_>>());
                let message = format!("unknown key {key}{hint} (known: {})", known.join(", "));
                return Err(ConfigError::new(place, message));
            };
            let set = limits.set(&limit.range, &value);
            set.map_err(|wrong| format!("{key} = {value:?}: {wrong}")).at(place)?;
        }
        Ok(limits)
    }

    fn set(&mut self, range: &LimitRange, value: &str) -> Result<(), String> {
        match *range {
            LimitRange::Count(low, high, field) => {
                let number = value.parse().ok().filter(|number| (low..=high).contains(number));
                *field(self) =
                    number.ok_or_else(|| format!("write a number from {low} to {high}"))?;
            }
            LimitRange::Bytes(low, high, field) => {
                let size = parse_size(value).ok().and_then(|size| usize::try_from(size).ok());
                let size = size.filter(|size| (low..=high).contains(size));
                *field(self) = size.ok_or_else(|| {
                    let [low, high] = [low, high].map(|size| render_size(size as u64));
                    format!("write a size from {low} to {high}, such as 64MiB")
                })?;
            }
            LimitRange::Time(low, high, field) => {
                let time = Milliseconds::parse(value).filter(|time| (low..=high).contains(time));
                *field(self) = Duration::from_millis(time.ok_or_else(|| {
                    format!("write a duration from {low}ms to {}s, such as 15s", high / 1000)
                })?);
            }
        }
        Ok(())
    }

    /// The keys of the table with their ranges and defaults.
    pub(super) fn reference() -> Vec<KeyReference> {
        let mut defaults = Self::default();
        let of_limit = |limit: &Limit| {
            let size = |bytes: usize| render_size(bytes as u64).replace(' ', "");
            let (values, default) = match limit.range {
                LimitRange::Count(low, high, field) => {
                    (format!("number from {low} to {high}"), field(&mut defaults).to_string())
                }
                LimitRange::Bytes(low, high, field) => {
                    let values = format!("size from {} to {}", size(low), size(high));
                    (values, size(*field(&mut defaults)))
                }
                LimitRange::Time(low, high, field) => {
                    let values = format!(
                        "time from {} to {}",
                        Milliseconds::render(low),
                        Milliseconds::render(high)
                    );
                    (values, Milliseconds::render(field(&mut defaults).as_millis() as u64))
                }
            };
            KeyReference {
                name: limit.key.to_owned(),
                values,
                default: Some(format!("`{default}`")),
                is_required: false,
                text: limit.text.to_owned(),
            }
        };
        LIMITS.iter().map(of_limit).collect()
    }

    /// What these come to for each connection's machine.
    pub(crate) fn settings(&self) -> Settings {
        self.settings_with(Arc::new(Budget::new(self.memory)))
    }

    /// Returns the settings with an existing memory budget.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Config, parse_file};
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        parse_file(Path::new("sarsen.toml"), text).map_err(|error| error.to_string())
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
        for Limit { key, range, .. } in &LIMITS {
            let mut limits = Limits::default();
            let value = match range {
                LimitRange::Count(_, high, _) | LimitRange::Bytes(_, high, _) => {
                    (high + 1).to_string()
                }
                LimitRange::Time(_, high, _) => format!("{}ms", high + 1),
            };
            for wrong in ["0", "-1", "1.5", "much", "", &value] {
                let message = limits.set(range, wrong).expect_err(key);
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
            ("[limits]\nkeepalive = \"3h\"", "write a duration from 1000ms to 3600s, such as 15s"),
            ("limits = 3", "sarsen.toml:1: limits is to be a table: write [limits]"),
        ] {
            let message = parse(text).expect_err(reported);
            assert!(message.contains(reported), "{message}");
        }
    }
}
