//! The mark of a volume's file: an extended attribute with the volume's serial number. It tells the file that the volume
//! had from another volume's file of the same size. Copies that preserve attributes (`cp --archive`, `rsync --xattrs`)
//! have the mark as well. A file without a mark is accepted: its file system may support none, or a backup may have lost
//! it.

use std::path::Path;

use sarsen_io::file::File;
use tracing::warn;

use super::FileOptions;
use crate::stores::{OpenMode, StoreError};

const NAME: &str = "user.sarsen.volume";

/// Returns the mark of the file of this volume: the serial number. Without a state there is none, because the
/// configuration alone says which file a volume has.
pub(super) fn of(file: &File, options: &FileOptions, open_mode: OpenMode) -> Option<String> {
    let has_mark = open_mode != OpenMode::OpenOrCreate && !file.is_block_device();
    options.serial.clone().filter(|_| has_mark)
}

/// Refuses the file of another volume. A new volume takes over whatever file it is given, and so does a volume whose
/// file an administrator has confirmed.
pub(super) fn check(
    file: &File,
    options: &FileOptions,
    open_mode: OpenMode,
) -> Result<(), StoreError> {
    let OpenMode::Existing { is_confirmed: false, .. } = open_mode else { return Ok(()) };
    let Some(own) = of(file, options, open_mode) else { return Ok(()) };
    let found = file.attribute(NAME).map_err(StoreError::system(&options.path, "read its mark"))?;
    match found.filter(|mark| mark != own.as_bytes()) {
        None => Ok(()),
        Some(other) => {
            let problem = format!(
                "is marked as the file of another volume, with the serial number {}: put the volume's own file there, \
                 or confirm this one with `sarsen volume reattach NAME`",
                String::from_utf8_lossy(&other).escape_debug()
            );
            Err(StoreError::unfit(&options.path, problem))
        }
    }
}

/// Marks a file. A file that cannot be marked is served without a mark.
pub(super) fn set(file: &File, path: &Path, mark: &str) {
    let is_set =
        file.attribute(NAME).map(|found| found.is_some_and(|found| found == mark.as_bytes()));
    let set = match is_set {
        Ok(false) => file.set_attribute(NAME, mark.as_bytes()),
        other => other,
    };
    if let Err(error) = set {
        warn!(path = %path.display(), %error, "the file cannot be marked as that of its volume");
    }
}
