//! Hosts: named groups of initiators, which access rules can name.
//!
//! ```toml
//! [[host]]
//! name = "web1"
//! initiators = ["iqn.1993-08.org.debian:01:web1"]   # default: any; each may end with *
//! address = "10.0.0.0/8"
//! account = "web1"                                  # it authenticates with its secret
//! certificate = "web1.example"
//! iops = 5000                                       # of all its initiators together: see `qos`
//!
//! [[target]]
//! name = "iqn.2026-11.example:disks"
//! luns = ["a"]
//! chap = ["web1"]
//! allow = [{ host = "web1" }]
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::certificate::CertificatePattern;
use super::invalid::FieldError;
use super::names::NamePattern;
use super::network::Network;
use super::qos::{self, BurstWindow, Rates, Weight};
use super::quantity::{Bandwidth, Rate};
use super::{document, text};

/// A named group of initiators, for access rules and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Host {
    /// Unique name.
    pub name: String,
    /// Names of its initiators, each of which may end with `*`. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "text::list")]
    #[schema(value_type = Vec<String>)]
    pub initiators: Vec<NamePattern>,
    /// The initiator's address, or a network such as `10.0.0.0/8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<Network>,
    /// The account with which it authenticates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The client certificate: one of its names, or `sha256:HASH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub certificate: Option<CertificatePattern>,
    /// Maximum number of commands a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub iops: Option<Rate>,
    /// Maximum number of bytes a second, such as `200MiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub bandwidth: Option<Bandwidth>,
    /// The burst window: for how long unused commands and bytes are saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub burst: Option<BurstWindow>,
    /// The weight of its commands, relative to others, while more commands wait than the server runs at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub weight: Option<Weight>,
    /// Commands a second that start before those of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub reserved_iops: Option<Rate>,
}

impl Host {
    pub(crate) fn check(&self) -> Result<(), FieldError> {
        if self.name.is_empty() || self.name.contains(char::is_control) {
            return Err(FieldError::new("", "the host has no name: add it"));
        }
        qos::check(&self.qos())
    }

    /// Returns its QoS limits: those of all its initiators together.
    pub fn qos(&self) -> Rates {
        let Self { iops, bandwidth, burst, weight, reserved_iops, .. } = *self;
        qos::rates(iops, bandwidth, burst, weight, reserved_iops)
    }
}
