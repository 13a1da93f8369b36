//! Files of deleted or unknown volumes, and their volumes in pools.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A file, or a volume or snapshot in a pool, that belongs to no volume of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphan {
    /// Its name in the state's folder of volumes, or `POOL/NAME`.
    pub name: String,
    /// Its path, or its pool.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes that its file system or its pool has allocated to it.
    pub allocated_bytes: u64,
    /// The folder of its volume's records also exists, and is deleted with the file.
    pub has_state: bool,
}
