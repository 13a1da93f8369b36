//! The files that new volumes name. A look at them may hang with their disk, so no lock is held meanwhile.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sarsen_io::file::FileIdentity;

use super::Invalid;
use super::edit::RECORDS;
use super::store::FILE as STATE_FILE;
use crate::model::{Key, Object, Objects, differences, metadata_folder};
use crate::private::VOLUMES;

/// The extension of volumes' files in the state folder.
const IMAGE: &str = "img";

/// A file, a folder or a device of an object that no object had before.
#[derive(Clone, Debug)]
pub(super) struct NewFile {
    pub(super) object: Key,
    field: &'static str,
    pub(super) path: PathBuf,
}

/// Returns the files, folders and devices that objects name after a change, and not before it.
pub(super) fn between(before: &Objects, after: &Objects) -> Vec<NewFile> {
    let different: Vec<_> = differences(before, after).collect();
    let known: HashSet<&Path> = different
        .iter()
        .filter_map(|one| one.before)
        .flat_map(|object| named(object).into_iter().map(|(_, path)| path))
        .collect();
    let new = different.iter().filter_map(|one| Some((one.key, one.after?)));
    let new = new.flat_map(|(key, object)| {
        named(object).into_iter().map(move |(field, path)| (key, field, path))
    });
    let new = new.filter(|(_, _, path)| !known.contains(path));
    new.map(|(key, field, path)| NewFile { object: key.clone(), field, path: path.to_owned() })
        .collect()
}

fn named(object: &Arc<Object>) -> Vec<(&'static str, &Path)> {
    match &**object {
        Object::Volume(volume) => {
            let paths = [
                ("path", volume.path.as_deref()),
                ("state", volume.state.as_deref()),
                ("image", volume.image.as_deref()),
            ];
            let paths = paths.into_iter();
            paths.filter_map(|(field, path)| Some((field, path?))).collect()
        }
        Object::Pool(pool) => pool.devices.iter().map(|path| ("devices", path.as_path())).collect(),
        _ => Vec::new(),
    }
}

/// Refuses a file of the server itself. Returns whether the file is a volume's in the state folder, and exists. Blocks the
/// thread.
pub(super) fn look_at(file: &NewFile, state: &Path) -> Result<bool, Invalid> {
    let NewFile { object, field, path } = file;
    if is_servers_own(path, state) {
        let message = format!(
            "{field}: {} is in the state folder of a server, which is not for volumes; choose another path, or remove \
             {field}",
            path.display()
        );
        return Err(Invalid::new(object.clone(), *field, message));
    }
    let is_in_volumes = path.parent() == Some(&state.join(VOLUMES));
    Ok(is_in_volumes && (path.exists() || metadata_folder(path).exists()))
}

/// Returns whether a path leads into the state folder, and not to the file or the records of a volume. Devices and inodes are compared,
/// because a hard link or a bind mount gives a file another path.
fn is_servers_own(path: &Path, state: &Path) -> bool {
    let real = real(path).unwrap_or_else(|| path.to_owned());
    let Some(state_id) = FileIdentity::of_path(state) else { return false };
    if real.ancestors().any(|folder| FileIdentity::of_path(folder) == Some(state_id)) {
        let is_image =
            real.extension().is_some_and(|extension| extension == IMAGE || extension == RECORDS);
        let is_in_volumes = real.parent().and_then(FileIdentity::of_path)
            == FileIdentity::of_path(&state.join(VOLUMES));
        return !(is_image && is_in_volumes);
    }
    // Nor the files of another server.
    if real.parent().is_some_and(|folder| folder.join(STATE_FILE).exists()) {
        return true;
    }
    let Some(file) = FileIdentity::of_path(&real) else { return false };
    let Ok(entries) = fs::read_dir(state) else { return false };
    entries.flatten().any(|entry| FileIdentity::of_path(&entry.path()) == Some(file))
}

/// Returns the canonical form of a path. The file need not exist.
fn real(path: &Path) -> Option<PathBuf> {
    if let Ok(real) = fs::canonicalize(path) {
        return Some(real);
    }
    let folder = match path.parent()? {
        folder if folder.as_os_str().is_empty() => Path::new("."),
        folder => folder,
    };
    Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::document::Document;

    fn objects(path: &Path) -> Objects {
        let volume = json!({ "volume": [{ "name": "b", "path": path.display().to_string() }] });
        let document: Document = serde_json::from_value(volume).expect("a document");
        document.into_objects().map(|object| (object.key(), Arc::new(object))).collect()
    }

    #[test]
    fn files_of_server_cannot_be_volumes() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        fs::create_dir_all(state.join(VOLUMES)).expect("made");
        fs::write(state.join("api.token"), "secret").expect("written");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(state.join("api.token"), &link).expect("linked");
        let named = |path: &Path| {
            let after = objects(path);
            assert!(between(&after, &after).is_empty(), "the volume had it before");
            let new = between(&Objects::new(), &after);
            look_at(&new[0], &state)
        };
        for own in ["api.token", "state.sqlite", "volumes/../new.img", "volumes/a/b.img", "volumes"]
        {
            let refused = named(&state.join(own)).expect_err(own);
            assert_eq!(refused.place().as_deref(), Some("volume/b.path"));
        }
        assert!(named(&link).is_err());
        let hard_link = folder.path().join("hard-link.img");
        fs::hard_link(state.join("api.token"), &hard_link).expect("linked");
        assert!(named(&hard_link).is_err());
        let other = folder.path().join("other");
        fs::create_dir(&other).expect("made");
        fs::write(other.join(STATE_FILE), "another server's").expect("written");
        assert!(named(&other.join("events.sqlite")).is_err());
        let image = state.join("volumes/b.img");
        for volume in [image.clone(), folder.path().join("b.img")] {
            assert!(!named(&volume).expect("a volume"));
        }
        fs::write(&image, "data").expect("written");
        assert!(named(&image).expect("a volume"));
    }
}
