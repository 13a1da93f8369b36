//! Errors of pools as sentences, with their remedies.

use std::path::PathBuf;

use sarsen_pool::{PoolError, PoolProblem};

use crate::model::Textual as _;
use crate::schema::pools::PoolLoss;
use crate::stores::StoreError;

/// Returns the error of a pool, with the path of the device that it concerns.
pub(super) fn failed(pool: &str, devices: &[PathBuf], error: PoolError) -> StoreError {
    StoreError::pool(pool, problem_of(devices, error))
}

fn problem_of(devices: &[PathBuf], error: PoolError) -> String {
    match error {
        PoolError::Unfit { device, problem } => {
            let path = devices.get(device).map(|path| path.display().to_string());
            format!("{}: {problem}", path.unwrap_or_else(|| format!("device {device}")))
        }
        PoolError::Device { source, .. } if devices.len() == 1 => {
            format!("{}: {source}", devices[0].display())
        }
        other => other.to_string(),
    }
}

/// Returns how a pool can be opened that could not be opened with these losses, if another loss lets it go on.
fn remedy(pool: &str, error: &PoolError, accepted: &[PoolLoss]) -> String {
    let recovery = |loss| recovery(pool, accepted, loss);
    match error {
        PoolError::DamagedJournal { .. } => format!(
            ". A missing device may have the frame: connect it first. Otherwise restore the devices from a backup, or open the \
             pool as it was before the damage: {}",
            recovery(PoolLoss::DamagedJournal)
        ),
        PoolError::Unfit { problem: PoolProblem::Short { .. }, .. } => format!(
            ". Restore its size. If that is not possible, go on without the data that is only there: {}",
            recovery(PoolLoss::MissingDevices)
        ),
        PoolError::Unfit { problem: PoolProblem::Missing { .. }, .. } => format!(
            ". If the others are lost for good, go on without the data that is only there: {}",
            recovery(PoolLoss::MissingDevices)
        ),
        _ => String::new(),
    }
}

/// Returns the error of a pool that could not be opened with these losses, and how it can be.
pub(super) fn not_opened(
    pool: &str,
    devices: &[PathBuf],
    error: PoolError,
    accepted: &[PoolLoss],
) -> StoreError {
    let remedy = remedy(pool, &error, accepted);
    StoreError::pool(pool, problem_of(devices, error) + &remedy)
}

/// Returns how to open a pool with one more loss than those that were accepted.
pub(super) fn recovery(pool: &str, accepted: &[PoolLoss], more: PoolLoss) -> String {
    let losses = accepted.iter().filter(|&&loss| loss != more).chain([&more]);
    let flags: String = losses.map(|loss| format!(" --lose {}", loss.render())).collect();
    format!(
        "`sarsen pool recover {pool}{flags}` (preview it with --dry-run; for a server without a state folder, add --offline and \
         --device PATH for each available device)"
    )
}
