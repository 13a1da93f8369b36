//! The protocols by which volumes are served.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The protocol of a portal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// iSCSI (RFC 7143).
    #[default]
    Iscsi,
    /// NBD.
    Nbd,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 2] = [Self::Iscsi, Self::Nbd];

    /// Returns the name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi",
            Self::Nbd => "nbd",
        }
    }

    /// Returns the port that IANA assigned.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Iscsi => sarsen_wire::iscsi::DEFAULT_PORT,
            Self::Nbd => sarsen_wire::nbd::DEFAULT_PORT,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|protocol| protocol.name() == text);
        named.ok_or_else(|| format!("{text:?} is not a protocol: write iscsi or nbd"))
    }
}
