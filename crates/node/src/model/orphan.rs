//! Files of deleted or unknown volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A file that belongs to no volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphan {
    /// Its name in the state's folder of volumes.
    pub name: String,
    /// Its path.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes that its file system has allocated to it.
    pub allocated_bytes: u64,
    /// The folder of its volume's records also exists, and is deleted with the file.
    pub has_state: bool,
}
