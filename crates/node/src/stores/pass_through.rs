//! A real SCSI device of this machine, which receives the commands unchanged.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sarsen_block::Io;
use sarsen_io::sg::{self, Device};
use sarsen_scsi::pass_through::{self as scsi, PassThrough, Passed, Transfer};
use tokio::sync::Semaphore;
use tracing::warn;

use super::StoreError;
use crate::config::{StoreKind, VolumeConfig};

/// Maximum duration of a command. Rewinding a tape or formatting a medium takes minutes.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of commands in progress for one device. Files need threads of the pool as well.
const IN_FLIGHT: usize = 8;

/// See the module.
struct RealDevice {
    name: String,
    device: Device,
    turns: Arc<Semaphore>,
}

/// Opens the device of a volume. Returns `None` if the volume is not a device.
pub(crate) fn open(volume: &VolumeConfig) -> Result<Option<scsi::Device>, StoreError> {
    let (StoreKind::Sg, Some(path)) = (volume.store, &volume.path) else { return Ok(None) };
    let device = Device::open(path).map_err(|source| unfit(path, source))?;
    warn!(
        volume = volume.name, path = %path.display(),
        "every command of every initiator goes to this device as it is"
    );
    let turns = Arc::new(Semaphore::new(IN_FLIGHT));
    let connection = RealDevice { name: volume.name.clone(), device, turns };
    Ok(Some(scsi::Device::new(Arc::new(connection))))
}

fn unfit(path: &Path, source: io::Error) -> StoreError {
    match source.kind() {
        io::ErrorKind::NotFound => StoreError::unfit(
            path,
            "does not exist: write the SCSI device, such as /dev/sg0 (lsscsi -g names them)",
        ),
        io::ErrorKind::ResourceBusy => StoreError::InUse { path: path.to_owned() },
        io::ErrorKind::InvalidInput => {
            StoreError::unfit(path, "takes no SCSI commands: write a SCSI device, such as /dev/sg0")
        }
        _ => StoreError::system(path, "open it")(source),
    }
}

impl PassThrough for RealDevice {
    fn execute(&self, cdb: Vec<u8>, transfer: Transfer) -> Io<io::Result<Passed>> {
        let transfer = match transfer {
            Transfer::None => sg::Transfer::None,
            Transfer::In(length) => sg::Transfer::In(length),
            Transfer::Out(data) => sg::Transfer::Out(data),
        };
        let (device, turns, volume) = (self.device.clone(), self.turns.clone(), self.name.clone());
        Io::pending(async move {
            // The semaphore is never closed.
            let _turn = turns.acquire().await.map_err(io::Error::other)?;
            match device.execute(cdb, transfer, TIMEOUT).wait().await {
                Ok(sg::CommandResult { status, data_in, sense }) => {
                    Ok(Passed { status, data_in, sense })
                }
                Err(error) => {
                    warn!(volume, %error, "a command did not reach the device or its end");
                    Err(error)
                }
            }
        })
    }
}
