//! Revisions of the state.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Revision {
    /// Its number, counted from 1.
    pub revision: u64,
    /// Its time, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// The author of the change, by its own statement.
    pub author: String,
    /// The first steps of the change, a line each.
    pub summary: Vec<String>,
}
