//! The identity of this installation.

use std::fs;
use std::path::Path;

use tracing::warn;

/// The file with the identity of this installation (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";

/// Returns the identity of this installation. Two machines must never offer two disks under one identity, or multipath
/// would treat them as one.
pub(crate) fn machine_identity() -> String {
    match fs::read_to_string(Path::new(MACHINE_ID)) {
        Ok(id) if !id.trim().is_empty() => id.trim().to_owned(),
        _ => {
            warn!(
                "there is no {MACHINE_ID}: identities of volumes without a serial hold for this run only; \
                 give each volume a serial"
            );
            format!("{:016x}{:016x}", sarsen_io::random::number(), sarsen_io::random::number())
        }
    }
}
