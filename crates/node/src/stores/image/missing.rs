//! Images of CDs in a program without the feature `multimedia`: they are refused.

use std::path::Path;

use super::{FileStore, StoreError};
use crate::missing_feature::MissingFeature;

/// Refuses an image.
pub(super) fn open(_path: &Path) -> Result<FileStore, StoreError> {
    Err(StoreError::MissingFeature { store: "iso", source: MissingFeature("multimedia") })
}
