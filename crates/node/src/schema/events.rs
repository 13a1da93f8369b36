//! The responses of `GET /v1/events` and `GET /v1/live`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// The matching events, oldest first. Above the limit: the newest ones, or with `after` the oldest ones.
    pub events: Vec<Event>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number, which is higher than that of all earlier events.
    pub id: u64,
    /// Its time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Its severity.
    pub severity: Severity,
    /// Its kind, such as `login_refused`.
    pub kind: String,
    /// The message, a sentence.
    pub message: String,
    /// The remedy, if the event needs one.
    pub remedy: Option<String>,
    /// The parties of the event: `initiator`, `target`, `volume`, `peer`, `account`, `tsih` and others.
    pub subject: BTreeMap<String, String>,
    /// The first of the objects that a change affects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Normal operation.
    Info,
    /// An administrator should check it.
    Warning,
    /// An administrator must act.
    Error,
}
