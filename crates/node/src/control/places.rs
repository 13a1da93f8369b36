//! Which files of the server's machine a change may name. Whoever may name any reads and writes any that the
//! server may open, so that is for its owner: he comes by the control socket, or shows the token.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::ApiError;
use crate::desired::{Edit, Key, Kind, Object, Objects, VOLUMES};

/// How their files end.
const IMAGE: &str = "img";

/// Keys of a thing whose values are files, or variables, of the server's.
const fn fields(kind: Kind) -> &'static [&'static [&'static str]] {
    match kind {
        Kind::Volume => &[&["path"], &["state"]],
        Kind::Account => &[&["secret-file"], &["secret-env"]],
        Kind::Portal => &[&["tls", "certificate"], &["tls", "key"], &["tls", "client-ca"]],
        Kind::Host | Kind::Target | Kind::Discovery | Kind::Limits => &[],
    }
}

/// A file, or a variable, that a change names and that the thing has not had.
struct Named {
    kind: Kind,
    field: &'static [&'static str],
    value: String,
}

impl Named {
    fn field(&self) -> String {
        self.field.join(".")
    }
}

/// Refuses what names a file that nobody, or not this client, may name. Blocks the thread.
pub(super) fn check(
    edits: &[Edit],
    current: &Objects,
    state: &Path,
    is_trusted: bool,
) -> Result<(), ApiError> {
    for named in edits.iter().flat_map(|edit| of_edit(edit, current)) {
        if !is_trusted {
            let field = named.field();
            let message = format!(
                "{field}: whoever is on this machine asks here, and files and variables of the server are \
                 named by its owner: use the control socket, as `sarsen` does, or give the API a token-file; \
                 a volume without a path lies in the state folder"
            );
            return Err(ApiError::forbidden_field(&field, message));
        }
        if named.kind == Kind::Volume && is_servers_own(Path::new(&named.value), state) {
            let field = named.field();
            let message = format!(
                "{field}: {} belongs to the server's state: leave {field} out, or name another",
                named.value
            );
            return Err(ApiError::invalid(Some(&field), message));
        }
    }
    Ok(())
}

fn of_edit(edit: &Edit, current: &Objects) -> Vec<Named> {
    let of_object = |object: Object| {
        let value = serde_json::to_value(&object).expect("our own types are JSON");
        of_value(&object.key(), &value, current)
    };
    match edit {
        Edit::Put(object) | Edit::Add(object) => of_object(object.clone()),
        Edit::Patch(key, patch) => of_value(key, patch, current),
        Edit::Create(document) | Edit::Apply(document) | Edit::Replace(document) => {
            document.clone().into_objects().flat_map(of_object).collect()
        }
        Edit::Remove(_) | Edit::RemoveEverywhere(_) => Vec::new(),
    }
}

fn of_value(key: &Key, value: &Value, current: &Objects) -> Vec<Named> {
    let fields = fields(key.kind).iter().filter_map(|field| Some((*field, at(value, field)?)));
    let mut named = fields.peekable();
    if named.peek().is_none() {
        return Vec::new();
    }
    let before = current.get(key).and_then(|object| serde_json::to_value(&**object).ok());
    let is_new = |field, value| before.as_ref().and_then(|before| at(before, field)) != Some(value);
    let new = named.filter(|(field, value)| is_new(field, value));
    new.map(|(field, value)| Named { kind: key.kind, field, value: value.to_owned() }).collect()
}

fn at<'a>(value: &'a Value, field: &[&str]) -> Option<&'a str> {
    field.iter().try_fold(value, |value, name| value.get(name))?.as_str()
}

/// Whether a path leads into the state folder to what is no volume.
fn is_servers_own(path: &Path, state: &Path) -> bool {
    let Ok(state) = fs::canonicalize(state) else { return false };
    let real = real(path).unwrap_or_else(|| path.to_owned());
    let is_volume = real.parent() == Some(&state.join(VOLUMES))
        && real.extension().is_some_and(|extension| extension == IMAGE);
    real.starts_with(&state) && !is_volume
}

/// Where a path leads, be there a file yet or not.
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
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::desired::Document;

    fn document(value: Value) -> Document {
        serde_json::from_value(value).expect("a document")
    }

    /// What a server has, of which its owner has named the files.
    fn current() -> Objects {
        let document = document(json!({
            "volume": [{ "name": "a", "path": "/dev/vg/a" }],
            "account": [{ "name": "u", "secret-file": "/etc/u" }],
        }));
        let objects = document.into_objects();
        objects.map(|object| (object.key(), Arc::new(object))).collect()
    }

    fn refusal(edit: Edit, state: &Path, is_trusted: bool) -> Option<String> {
        let refused = check(&[edit], &current(), state, is_trusted).err()?;
        Some(format!("{refused:?}"))
    }

    #[test]
    fn who_has_not_shown_who_he_is_names_no_files() {
        let state = Path::new("/nonexistent");
        for (field, listed) in [
            ("path", json!({ "volume": [{ "name": "b", "path": "/etc/shadow" }] })),
            ("path", json!({ "volume": [{ "name": "a", "path": "/dev/sda" }] })),
            ("state", json!({ "volume": [{ "name": "b", "state": "/etc" }] })),
            ("secret-file", json!({ "account": [{ "name": "x", "secret-file": "/etc/u" }] })),
            ("secret-env", json!({ "account": [{ "name": "u", "secret-env": "HOME" }] })),
            (
                "tls.certificate",
                json!({ "portal": [{ "address": "0.0.0.0:1",
                    "tls": { "certificate": "/x", "key": "/y" } }] }),
            ),
        ] {
            for edit in [Edit::Apply, Edit::Create, Edit::Replace]
                .map(|edit| edit(document(listed.clone())))
            {
                let told = refusal(edit.clone(), state, false).expect(field);
                let field = format!("field: Some({field:?})");
                assert!(told.contains("Forbidden") && told.contains(&field), "{told}");
                assert_eq!(refusal(edit, state, true), None);
            }
        }
        let patch = |name, patch| Edit::Patch(Key::new(Kind::Volume, name), patch);
        assert!(refusal(patch("a", json!({ "path": "/dev/sda" })), state, false).is_some());
        assert!(refusal(patch("a", json!({ "name": "c", "path": "/x" })), state, false).is_some());
        for allowed in [
            patch("a", json!({ "name": "c", "size": "2GiB" })),
            patch("a", json!({ "path": "/dev/vg/a" })),
            Edit::Apply(document(json!({ "volume": [{ "name": "b", "size": "1GiB" }] }))),
            // As an export says it.
            Edit::Apply(document(json!({ "volume": [{ "name": "a", "path": "/dev/vg/a" }] }))),
            Edit::Remove(Key::new(Kind::Volume, "a")),
        ] {
            assert_eq!(refusal(allowed, state, false), None);
        }
    }

    #[test]
    fn what_the_server_keeps_for_itself_is_nobodys_volume() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        fs::create_dir_all(state.join(VOLUMES)).expect("made");
        fs::write(state.join("api.token"), "secret").expect("written");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(state.join("api.token"), &link).expect("linked");
        let named = |path: &Path| {
            let path = path.display().to_string();
            let volume = json!({ "volume": [{ "name": "b", "path": path }] });
            refusal(Edit::Apply(document(volume)), &state, true)
        };
        for own in ["api.token", "state.redb", "volumes/../new.img", "volumes/a/b.img", "volumes"] {
            let told = named(&state.join(own)).expect(own);
            assert!(told.contains("field: Some(\"path\")"), "{told}");
        }
        assert!(named(&link).is_some());
        for volume in [state.join("volumes/b.img"), folder.path().join("b.img")] {
            assert_eq!(named(&volume), None);
        }
    }
}
