//! What `GET /v1/events` and `GET /v1/live` tell.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Oldest first. The newest that there are; with `after`, those that follow it.
    pub events: Vec<Event>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number: higher than that of any before it.
    pub id: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// How much it matters.
    pub severity: Severity,
    /// What kind of thing, such as `login_refused`.
    pub kind: String,
    /// In a sentence.
    pub message: String,
    /// What to do about it, if there is anything to be done.
    pub remedy: Option<String>,
    /// What it is about: `initiator`, `target`, `volume`, `peer`, `account`, `tsih` and others.
    pub subject: BTreeMap<String, String>,
    /// Of a change, what else it names: the first of the things that are not the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Info,
    /// Somebody may want to look at it.
    Warning,
    /// Somebody has to.
    Error,
}
