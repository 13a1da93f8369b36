//! The link `/dev/sarsen/NAME` to the block device of an attachment: its number changes from boot to boot, its name does not.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tracing::warn;

use super::record::Record;

const FOLDER: &str = "/dev/sarsen";

fn path(record: &Record) -> Option<PathBuf> {
    (!record.kind.is_socket()).then(|| PathBuf::from(FOLDER).join(&record.config.name))
}

/// Creates the link, or replaces an old one.
pub(super) fn create(record: &Record) {
    let Some(path) = path(record) else { return };
    let created = fs::create_dir_all(FOLDER).and_then(|()| {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(record.path(), &path)
    });
    if let Err(error) = created {
        warn!(link = %path.display(), %error, "the link to the disk cannot be created: use its device");
    }
}

/// Removes the link.
pub(super) fn remove(record: &Record) {
    if let Some(path) = path(record) {
        // It may be missing.
        let _ = fs::remove_file(path);
    }
}
