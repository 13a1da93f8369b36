//! Checks which files of the server's machine a change may name. A client that names files reads and writes every file
//! that the server can open. So only the server's owner may name them, at the control socket or with the token.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::ApiError;
use crate::desired::Edit;
use crate::model::document::{Account, Document, Portal, Volume};
use crate::model::{Key, Object, ObjectKind, Objects};
use crate::private::VOLUMES;

/// The extension of volumes' files in the state folder.
const IMAGE: &str = "img";

/// Keys of an object whose values name files or variables of the server, with the object's values of these keys.
type Named<'a> = [(&'static str, Option<&'a OsStr>); 3];

/// No keys.
const NOTHING: Named<'static> = [("", None); 3];

fn of_volume(volume: &Volume) -> Named<'_> {
    let Volume { path, state, .. } = volume;
    [("path", path.as_ref().map(OsStr::new)), ("state", state.as_ref().map(OsStr::new)), ("", None)]
}

fn of_account(account: &Account) -> Named<'_> {
    let Account { secret_file, secret_env, .. } = account;
    let (file, variable) = (secret_file.as_ref(), secret_env.as_ref());
    [
        ("secret-file", file.map(|path| path.as_os_str())),
        ("secret-env", variable.map(OsStr::new)),
        ("", None),
    ]
}

fn of_portal(portal: &Portal) -> Named<'_> {
    let tls = portal.tls.as_ref();
    [
        ("tls.certificate", tls.map(|tls| tls.certificate.as_os_str())),
        ("tls.key", tls.map(|tls| tls.key.as_os_str())),
        ("tls.client-ca", tls.and_then(|tls| Some(tls.client_ca.as_ref()?.as_os_str()))),
    ]
}

fn of_object(object: &Object) -> Named<'_> {
    match object {
        Object::Volume(volume) => of_volume(volume),
        Object::Account(account) => of_account(account),
        Object::Portal(portal) => of_portal(portal),
        Object::Host(_) | Object::Target(_) | Object::Discovery(_) | Object::Limits(_) => NOTHING,
    }
}

/// Returns the values that a merge patch sets for the same keys.
fn of_patch(kind: ObjectKind, patch: &Value) -> Named<'_> {
    let fields = match kind {
        ObjectKind::Volume => of_volume(&Volume::default()).map(|(field, _)| field),
        ObjectKind::Account => of_account(&Account::default()).map(|(field, _)| field),
        ObjectKind::Portal => of_portal(&Portal::default()).map(|(field, _)| field),
        ObjectKind::Host | ObjectKind::Target | ObjectKind::Discovery | ObjectKind::Limits => {
            return NOTHING;
        }
    };
    fields.map(|field| {
        let value = field.split('.').try_fold(patch, |value, name| value.get(name));
        (field, value.and_then(Value::as_str).map(OsStr::new))
    })
}

/// Refuses edits that name a file which no client, or not this client, may name. Blocks the thread.
pub(super) fn check(
    edits: &[Edit],
    current: &Objects,
    state: &Path,
    is_trusted: bool,
) -> Result<(), ApiError> {
    let current = |kind, name: &str| {
        let object = current.get(&Key::new(kind, name));
        object.map_or(NOTHING, |object| of_object(object))
    };
    let check = |kind, name: &str, named: Named<'_>| {
        if named.iter().all(|(_, value)| value.is_none()) {
            return Ok(());
        }
        let before = current(kind, name);
        let new = named.into_iter().zip(before).filter(|(after, before)| after.1 != before.1);
        let mut new = new.filter_map(|((field, value), _)| Some((field, value?)));
        new.try_for_each(|(field, value)| check_one(kind, field, value, state, is_trusted))
    };
    for edit in edits {
        match edit {
            Edit::Put(object) | Edit::Add(object) => {
                check(object.kind(), object.name(), of_object(object))?;
            }
            Edit::Patch(key, patch) => check(key.kind, &key.name, of_patch(key.kind, patch))?,
            Edit::Create(document) | Edit::Apply(document) | Edit::Replace(document) => {
                let Document { volume, account, portal, .. } = document;
                volume
                    .iter()
                    .try_for_each(|one| check(ObjectKind::Volume, &one.name, of_volume(one)))?;
                account
                    .iter()
                    .try_for_each(|one| check(ObjectKind::Account, &one.name, of_account(one)))?;
                portal.iter().try_for_each(|one| {
                    check(ObjectKind::Portal, one.address.as_str(), of_portal(one))
                })?;
            }
            Edit::Remove(_) | Edit::RemoveEverywhere(_) => {}
        }
    }
    Ok(())
}

/// Refuses a new file or variable if the client may not name any, or if a volume's file is one of the server's own.
fn check_one(
    kind: ObjectKind,
    field: &str,
    value: &OsStr,
    state: &Path,
    is_trusted: bool,
) -> Result<(), ApiError> {
    if !is_trusted {
        let message = format!(
            "{field}: requests without a token cannot name files and variables of the server: use the control \
             socket, as `sarsen` does, or give the API a token-file; a volume without a path is in the state \
             folder"
        );
        return Err(ApiError::forbidden_field(field, message));
    }
    if kind == ObjectKind::Volume && is_servers_own(Path::new(value), state) {
        let message = format!(
            "{field}: {} is in the server's state folder, which is not for volumes; choose another path, or remove {field}",
            Path::new(value).display()
        );
        return Err(ApiError::invalid(Some(field), message));
    }
    Ok(())
}

/// Returns whether a path leads into the state folder, and not to the file of a volume.
fn is_servers_own(path: &Path, state: &Path) -> bool {
    let Ok(state) = fs::canonicalize(state) else { return false };
    let real = real(path).unwrap_or_else(|| path.to_owned());
    let is_volume = real.parent() == Some(&state.join(VOLUMES))
        && real.extension().is_some_and(|extension| extension == IMAGE);
    real.starts_with(&state) && !is_volume
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
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn document(value: Value) -> Document {
        serde_json::from_value(value).expect("a document")
    }

    /// Returns a server's objects, whose files its owner has named.
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
    fn unauthenticated_client_cannot_name_files() {
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
                let reported = refusal(edit.clone(), state, false).expect(field);
                let field = format!("field: Some({field:?})");
                assert!(reported.contains("Forbidden") && reported.contains(&field), "{reported}");
                assert_eq!(refusal(edit, state, true), None);
            }
        }
        let patch = |name, patch| Edit::Patch(Key::new(ObjectKind::Volume, name), patch);
        assert!(refusal(patch("a", json!({ "path": "/dev/sda" })), state, false).is_some());
        assert!(refusal(patch("a", json!({ "name": "c", "path": "/x" })), state, false).is_some());
        for allowed in [
            patch("a", json!({ "name": "c", "size": "2GiB" })),
            patch("a", json!({ "path": "/dev/vg/a" })),
            Edit::Apply(document(json!({ "volume": [{ "name": "b", "size": "1GiB" }] }))),
            // An export contains the path in this form.
            Edit::Apply(document(json!({ "volume": [{ "name": "a", "path": "/dev/vg/a" }] }))),
            Edit::Remove(Key::new(ObjectKind::Volume, "a")),
        ] {
            assert_eq!(refusal(allowed, state, false), None);
        }
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
            let path = path.display().to_string();
            let volume = json!({ "volume": [{ "name": "b", "path": path }] });
            refusal(Edit::Apply(document(volume)), &state, true)
        };
        for own in ["api.token", "state.sqlite", "volumes/../new.img", "volumes/a/b.img", "volumes"]
        {
            let reported = named(&state.join(own)).expect(own);
            assert!(reported.contains("field: Some(\"path\")"), "{reported}");
        }
        assert!(named(&link).is_some());
        for volume in [state.join("volumes/b.img"), folder.path().join("b.img")] {
            assert_eq!(named(&volume), None);
        }
    }
}
