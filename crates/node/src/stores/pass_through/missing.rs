//! Real SCSI devices in a program without the feature `pass-through`: they are refused.

use sarsen_scsi::pass_through::Device;

use super::StoreError;
use crate::config::{StoreKind, VolumeConfig};
use crate::missing_feature::MissingFeature;

/// Refuses the device of a volume. Returns `None` if the volume is not a device.
pub(crate) fn open(volume: &VolumeConfig) -> Result<Option<Device>, StoreError> {
    let source = MissingFeature("pass-through");
    match volume.store {
        StoreKind::Sg => Err(StoreError::MissingFeature { store: "sg", source }),
        StoreKind::File
        | StoreKind::Ram
        | StoreKind::Null
        | StoreKind::Iso
        | StoreKind::Pool
        | StoreKind::Remote => Ok(None),
    }
}
