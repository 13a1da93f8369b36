//! Permissions of the state folder: only the owner may read and write its files. The program creates new files with
//! these permissions. This module corrects files that an earlier version left open to other users.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tracing::{info, warn};

/// The subfolder of the state folder for volumes without a configured path.
pub(crate) const VOLUMES: &str = "volumes";

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// Permissions of other users on a file.
const OTHERS: u32 = 0o077;
/// Prefixes of the names of the server's own files. The server must not change other files in the folder.
const OWN: [&str; 4] = ["state.", "state-copy.", "events.", "api."];

/// Removes the permissions of other users on the server's files in this folder. If a file cannot be changed, the server
/// logs it and leaves the file unchanged.
pub(crate) fn restrict_to_owner(folder: &Path) {
    let Ok(metadata) = fs::symlink_metadata(folder) else { return };
    let mut changed = 0;
    let is_own = |name: &str| name == VOLUMES || OWN.iter().any(|own| name.starts_with(own));
    if let Err(error) = each(folder, &mut |path, metadata| {
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(is_own) {
            close_all(path, metadata, &mut changed);
        }
    }) {
        warn!(folder = %folder.display(), %error, "the modes of the state's files cannot be read");
    }
    if changed > 0 {
        info!(folder = %folder.display(), changed, "removed the permissions of other users from files of the state");
    }
    if metadata.permissions().mode() & OTHERS != 0 {
        warn!(
            folder = %folder.display(),
            "the state folder is readable by others: chmod 700 it, unless it holds something else as well"
        );
    }
}

fn each(folder: &Path, see: &mut dyn FnMut(&Path, &Metadata)) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // A file that was deleted meanwhile is skipped.
        if let Ok(metadata) = fs::symlink_metadata(&path) {
            see(&path, &metadata);
        }
    }
    Ok(())
}

fn close_all(path: &Path, metadata: &Metadata, changed: &mut usize) {
    let kind = metadata.file_type();
    let mode = match (kind.is_dir(), kind.is_file()) {
        (true, _) => FOLDER_MODE,
        (_, true) => FILE_MODE,
        // A symbolic link may point outside the folder.
        _ => return,
    };
    let outcome = match metadata.permissions().mode() & OTHERS {
        0 => Ok(()),
        _ => fs::set_permissions(path, Permissions::from_mode(mode)).inspect(|()| *changed += 1),
    };
    let mut within = || {
        if kind.is_dir() {
            each(path, &mut |path, metadata| close_all(path, metadata, changed))
        } else {
            Ok(())
        }
    };
    if let Err(error) = outcome.and_then(|()| within()) {
        warn!(path = %path.display(), %error, "a file of the state is readable by others");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o777
    }

    #[test]
    fn only_private_files_are_closed_to_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("volumes/a.img.state")).expect("made");
        fs::create_dir_all(at("other")).expect("made");
        let own = [
            "state.sqlite",
            "state-copy.sqlite",
            "events.sqlite",
            "api.pem",
            "volumes/a.img",
            "volumes/a.img.state/r",
        ];
        let others = ["notes.txt", "other/state.sqlite"];
        for name in own.iter().chain(&others) {
            fs::write(at(name), "").expect("written");
            fs::set_permissions(at(name), Permissions::from_mode(0o644)).expect("set");
        }
        let folders = ["volumes", "volumes/a.img.state"];
        for name in folders {
            fs::set_permissions(at(name), Permissions::from_mode(0o755)).expect("set");
        }
        std::os::unix::fs::symlink(at("notes.txt"), at("volumes/link.img")).expect("linked");
        fs::set_permissions(at("api.pem"), Permissions::from_mode(0o400)).expect("set");
        restrict_to_owner(folder.path());
        for name in own {
            let expected = if name == "api.pem" { 0o400 } else { 0o600 };
            assert_eq!(mode(&at(name)), expected, "{name}");
        }
        folders.iter().for_each(|name| assert_eq!(mode(&at(name)), 0o700, "{name}"));
        others.iter().for_each(|name| assert_eq!(mode(&at(name)), 0o644, "{name}"));
        restrict_to_owner(&at("is not there"));
    }
}
