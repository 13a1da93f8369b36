//! The limits of initiators: what they may use of the server, together and each. A limit is one row below, with its
//! meaning, its range and its default.

use std::sync::Arc;
use std::time::Duration;

use sarsen_proto::Budget;
use sarsen_proto::iscsi::keys::TargetOffer;
use sarsen_proto::iscsi::target::Settings;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::quantity::{Bytes, Count, Milliseconds, Quantity, Unit};

const HOUR: u64 = 3_600_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A quantity from `LOW` to `HIGH`, and `DEFAULT` unless it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent, bound = "U: Unit")]
pub struct Limit<U: Unit, const LOW: u64, const HIGH: u64, const DEFAULT: u64>(
    Option<Quantity<U, LOW, HIGH>>,
);

type CountLimit<const LOW: u64, const HIGH: u64, const DEFAULT: u64> =
    Limit<Count, LOW, HIGH, DEFAULT>;
type SizeLimit<const LOW: u64, const HIGH: u64, const DEFAULT: u64> =
    Limit<Bytes, LOW, HIGH, DEFAULT>;
/// In milliseconds.
type TimeLimit<const LOW: u64, const HIGH: u64, const DEFAULT: u64> =
    Limit<Milliseconds, LOW, HIGH, DEFAULT>;

impl<U: Unit, const LOW: u64, const HIGH: u64, const DEFAULT: u64> Default
    for Limit<U, LOW, HIGH, DEFAULT>
{
    fn default() -> Self {
        Self(None)
    }
}

impl<U: Unit, const LOW: u64, const HIGH: u64, const DEFAULT: u64> Limit<U, LOW, HIGH, DEFAULT> {
    /// Creates a limit; `None` outside its range.
    pub fn new(value: u64) -> Option<Self> {
        Quantity::new(value).map(|value| Self(Some(value)))
    }

    /// Returns its number.
    pub fn get(self) -> usize {
        usize::try_from(self.number()).unwrap_or(usize::MAX)
    }

    fn number(self) -> u64 {
        self.0.map_or(DEFAULT, Quantity::get)
    }

    fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// Returns what its schema says. JSON Schema has no range for a text, so that is `x-range`.
    fn facts() -> Value {
        if U::IS_NUMBER {
            json!({ "type": "integer", "minimum": LOW, "maximum": HIGH, "default": DEFAULT })
        } else {
            json!({ "default": U::render(DEFAULT), "x-range": Quantity::<U, LOW, HIGH>::range() })
        }
    }
}

impl<const LOW: u64, const HIGH: u64, const DEFAULT: u64> TimeLimit<LOW, HIGH, DEFAULT> {
    /// Returns its duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.number())
    }
}

/// Declares the limits: the struct, and what the schema says about each key.
macro_rules! limits {
    ($($(#[$text:meta])+ $field:ident: $limit:ty,)+) => {
        /// What initiators may use of the server. `sarsen apply` and SIGHUP change the limits while the server runs. A
        /// number may be written without quotes; a size and a duration have a unit.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
        pub struct Limits {
            $(
                $(#[$text])+
                #[serde(skip_serializing_if = "Limit::is_default")]
                #[schema(value_type = String)]
                pub $field: $limit,
            )+
        }

        impl Limits {
            /// Returns what the schema says about each key.
            pub(crate) fn facts() -> Vec<(String, Value)> {
                vec![$((stringify!($field).replace('_', "-"), <$limit>::facts())),+]
            }
        }
    };
}

limits! {
    /// The time that a login may take. The server closes the connection after it.
    login_timeout: TimeLimit<100, HOUR, 15_000>,
    /// Maximum number of open connections. The server closes further ones at once.
    connections: CountLimit<1, 1_000_000, 20_000>,
    /// Maximum number of open connections from one source: an IPv4 address, or an IPv6 network of 64 bits. The server
    /// closes further ones at once.
    connections_per_source: CountLimit<1, 1_000_000, 12_000>,
    /// Maximum number of connections from one source whose login is not complete. The server closes further ones at
    /// once.
    logins_per_source: CountLimit<1, 1_000_000, 1024>,
    // TSIHs, which are not 0.
    /// Maximum number of sessions. Further logins are refused with status 0302h.
    sessions: CountLimit<1, 65_535, 16_384>,
    /// Maximum number of sessions of one target. Further logins are refused with status 0302h.
    sessions_per_target: CountLimit<1, 65_535, 16_384>,
    // RFC 7143 13.2 has 65535; each connection is looked at when another one joins.
    /// MaxConnections, the maximum number of connections of one session. Further ones are refused with status 0206h.
    connections_per_session: CountLimit<1, 1024, 16>,
    /// Maximum number of outstanding commands of a session: the window up to MaxCmdSN. Commands above the window are
    /// dropped.
    commands: CountLimit<1, 4096, 128>,
    /// Maximum number of immediate commands and task management functions of a session, beside the window. Further ones
    /// are rejected with reason 06h.
    immediate_commands: CountLimit<1, 4096, 32>,
    /// Maximum number of commands of all sessions that run at the same time, if a volume or a host has a weight or a
    /// reserved rate. Further commands wait, and start in the order of these.
    in_service: CountLimit<1, 65_536, 64>,
    /// Maximum memory for the data of one connection's commands. Further commands wait. One command may exceed this
    /// limit.
    memory_per_connection: SizeLimit<MIB, { 64 * GIB }, { 32 * MIB }>,
    /// Maximum memory for the data of all commands. Further commands wait. One command may exceed this limit. A write
    /// whose unsolicited data finds no memory ends with TASK SET FULL or BUSY.
    memory: SizeLimit<MIB, { 1024 * GIB }, GIB>,
    /// Maximum length of the text of one request. A longer one is refused with status 0302h during the login, and
    /// rejected with reason 0Ah after it.
    text: SizeLimit<{ 8 * KIB }, { 16 * MIB }, { 64 * KIB }>,
    /// Maximum size of the responses that wait until the initiator reads them. Beyond it, the server reads no more
    /// requests from this connection.
    unsent: SizeLimit<{ 64 * KIB }, GIB, MIB>,
    /// The server sends a NOP-In after this time of silence.
    ping_interval: TimeLimit<1_000, HOUR, 30_000>,
    /// The server closes the connection if the NOP-In is not answered within this time.
    ping_timeout: TimeLimit<1_000, HOUR, 30_000>,
    /// TCP probes a silent connection after this time.
    keepalive: TimeLimit<1_000, HOUR, 60_000>,
    /// TCP closes a connection whose peer acknowledges nothing for this time.
    user_timeout: TimeLimit<1_000, HOUR, 60_000>,
}

impl Limits {
    /// Returns the limits of each connection's machine.
    pub(crate) fn settings(&self) -> Settings {
        self.settings_with(Arc::new(Budget::new(self.memory.get())))
    }

    /// Returns the settings with an existing memory budget.
    pub(crate) fn settings_with(&self, budget: Arc<Budget>) -> Settings {
        Settings {
            offer: TargetOffer {
                max_connections: self.connections_per_session.get() as u32,
                ..TargetOffer::default()
            },
            command_window: self.commands.get() as u32,
            immediate_limit: self.immediate_commands.get(),
            login_timeout: self.login_timeout.duration(),
            text_limit: self.text.get(),
            room_limit: self.memory_per_connection.get(),
            budget,
            output_limit: self.unsent.get(),
            ping_interval: self.ping_interval.duration(),
            ping_timeout: self.ping_timeout.duration(),
        }
    }
}

#[cfg(test)]
impl<U: Unit, const LOW: u64, const HIGH: u64, const DEFAULT: u64> Limit<U, LOW, HIGH, DEFAULT> {
    /// Creates a limit that may be outside its range.
    pub(crate) const fn unchecked(value: u64) -> Self {
        Self(Some(Quantity::unchecked(value)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, parse_file};
    use crate::model::from_json;

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
    fn every_limit_has_a_range_and_reports_it() {
        for (key, facts) in Limits::facts() {
            let range = match facts["x-range"].as_str() {
                Some(range) => range.to_owned(),
                None => format!("number from {} to {}", facts["minimum"], facts["maximum"]),
            };
            let (_, high) = range.rsplit_once(" to ").expect(&range);
            let number: String = high.chars().take_while(char::is_ascii_digit).collect();
            let unit = &high[number.len()..];
            let too_high = format!("{}{unit}", number.parse::<u64>().expect("a number") + 1);
            for wrong in ["0", "-1", "1.5", "much", "", &too_high] {
                let text = json!({ key.as_str(): wrong }).to_string();
                let message = from_json::<Limits>(text.as_bytes()).expect_err(&text).to_string();
                let expected = format!("{key}: {wrong:?} is not a {range}; write ");
                assert!(message.starts_with(&expected), "{message}");
            }
            let text = json!({ key: high }).to_string();
            let limits: Limits = from_json(text.as_bytes()).expect(&text);
            assert_eq!(serde_json::to_value(&limits).expect("JSON"), shown(&text));
        }
    }

    /// Returns the JSON with a number in place of its text.
    fn shown(text: &str) -> Value {
        let mut shown: serde_json::Map<String, Value> = serde_json::from_str(text).expect("JSON");
        for value in shown.values_mut() {
            if let Some(number) = value.as_str().and_then(|text| text.parse::<u64>().ok()) {
                *value = number.into();
            }
        }
        shown.into()
    }

    #[test]
    fn a_mistake_names_the_line_and_the_nearest_key() {
        for (text, reported) in [
            ("[limits]\nconections = 3", "sarsen.toml:2: unknown key conections; did you mean"),
            (
                "[limits]\n\nsessions = 65536",
                "sarsen.toml:3: sessions: \"65536\" is not a number from 1 to 65535; write",
            ),
            (
                "[limits]\nmemory = \"1KiB\"",
                "sarsen.toml:2: memory: \"1KiB\" is not a size from 1MiB to 1TiB; write it",
            ),
            (
                "[limits]\nkeepalive = \"3h\"",
                "sarsen.toml:2: keepalive: \"3h\" is not a duration from 1s to 3600s; write it",
            ),
            ("limits = 3", "sarsen.toml:1: limits is to be a table: write [limits]"),
        ] {
            let message = parse(text).expect_err(reported);
            assert!(message.contains(reported), "{message}");
        }
    }
}
