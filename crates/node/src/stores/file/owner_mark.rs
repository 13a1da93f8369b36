//! The mark of a volume's file: an extended attribute with the volume's serial number. It distinguishes the volume's file
//! from the file of another volume. Copies that preserve attributes (`cp --archive`, `rsync --xattrs`) have the mark as
//! well. A file without a mark is accepted: its file system may support none, or a backup may have lost it.

use std::path::Path;

use sarsen_io::file::{File, is_unsupported};
use tracing::warn;

use super::FileOptions;
use crate::stores::{MarkRule, OpenMode, StoreError};

const NAME: &str = "user.sarsen.volume";

/// Refuses a file that is marked for another volume, unless the volume may take it. Returns the mark that the file still
/// needs. Several volumes may read one file, so read-only volumes neither check nor mark it.
pub(super) fn check(
    file: &File,
    options: &FileOptions,
    open_mode: OpenMode,
) -> Result<Option<String>, StoreError> {
    let rule = open_mode.mark_rule();
    let serial = options.serial.clone().filter(|_| !options.read_only && !file.is_block_device());
    let Some(serial) = serial.filter(|_| rule != MarkRule::Ignore) else { return Ok(None) };
    let found = file.attribute(NAME).map_err(StoreError::system(&options.path, "read its mark"))?;
    match found {
        Some(mark) if mark == serial.as_bytes() => Ok(None),
        Some(mark) if rule == MarkRule::Check => {
            let problem = format!(
                "is marked as the file of another volume, with the serial number {}: put the volume's own file there, \
                 or run `sarsen volume reattach` for the volume to confirm this file",
                String::from_utf8_lossy(&mark).escape_debug()
            );
            Err(StoreError::unfit(&options.path, problem))
        }
        Some(_) | None => Ok(Some(serial)),
    }
}

/// Marks a file. A file that cannot be marked is served without a mark.
pub(super) fn write(file: &File, path: &Path, mark: &str) {
    if let Err(error) = file.set_attribute(NAME, mark.as_bytes())
        && !is_unsupported(&error)
    {
        warn!(path = %path.display(), %error, "cannot mark the file; the volume is served without a mark");
    }
}
