//! The mark of a volume's file: extended attributes with the volume's serial number, and with the length of the file if
//! no size is configured. It distinguishes the volume's file from the file of another volume and from a truncated one.
//! Copies that preserve attributes (`cp --archive`, `rsync --xattrs`) have the mark as well. A file without a mark is
//! accepted: its file system may support none, or a backup may have lost it.

use std::path::Path;

use sarsen_io::file::{File, is_unsupported};
use tracing::warn;

use super::FileOptions;
use crate::stores::{MarkRule, OpenMode, StoreError};

const SERIAL: &str = "user.sarsen.volume";
/// Bytes, as decimal digits.
const LENGTH: &str = "user.sarsen.length";

/// The attributes that a file still needs, with their values.
pub(super) type Mark = Vec<(&'static str, String)>;

/// Refuses a file that is marked for another volume, unless the volume may take it, and a file that has become shorter.
/// Returns the attributes that the file still needs. Several volumes may read one file, so read-only volumes neither check
/// nor mark it.
pub(super) fn check(
    file: &File,
    options: &FileOptions,
    open_mode: OpenMode,
) -> Result<Mark, StoreError> {
    let rule = open_mode.mark_rule();
    let serial = options.serial.clone().filter(|_| !options.read_only && !file.is_block_device());
    let Some(serial) = serial.filter(|_| rule != MarkRule::Ignore) else { return Ok(Mark::new()) };
    let path = &options.path;
    let read = |name| file.attribute(name).map_err(StoreError::system(path, "read its mark"));
    let found = read(SERIAL)?;
    let is_own = found.as_deref() == Some(serial.as_bytes());
    if let Some(other) = found.filter(|_| !is_own && rule == MarkRule::Check) {
        let problem = format!(
            "is marked as the file of another volume, with the serial number {}: put the volume's own file there, \
             or run `sarsen volume reattach` for the volume to confirm this file",
            String::from_utf8_lossy(&other).escape_debug()
        );
        return Err(StoreError::unfit(path, problem));
    }
    let length = file.length().map_err(StoreError::system(path, "find its length"))?;
    let known = read(LENGTH)?.filter(|_| is_own);
    let known: Option<u64> = known.and_then(|digits| str::from_utf8(&digits).ok()?.parse().ok());
    if let Some(had) = known.filter(|&had| options.size.is_none() && length < had) {
        let problem = format!(
            "has {length} bytes of the {had} that it had: restore its data; or, to serve what is left, set the size of \
             the volume to {length}"
        );
        return Err(StoreError::unfit(path, problem));
    }
    let mut mark = Mark::new();
    // A configured size replaces the length.
    let wanted = options.size.unwrap_or(length);
    if known.map_or(options.size.is_none(), |known| known != wanted) {
        mark.push((LENGTH, wanted.to_string()));
    }
    if !is_own {
        mark.push((SERIAL, serial));
    }
    Ok(mark)
}

/// Marks a file. A file that cannot be marked is served without a mark.
pub(super) fn write(file: &File, path: &Path, mark: &Mark) {
    for (name, value) in mark {
        if let Err(error) = file.set_attribute(name, value.as_bytes())
            && !is_unsupported(&error)
        {
            warn!(path = %path.display(), %error, "cannot mark the file; the volume is served without a mark");
        }
    }
}
