//! Checks which files of the server's machine, and which other servers, a change may name. A client that names files
//! reads and writes every file that the server can open, and one that names servers reaches all that the server's
//! machine reaches. So only the server's owner may name them, at the control socket or with the token.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;

use super::error::ApiError;
use crate::desired::Edit;
use crate::model::document::{Account, Portal, Volume};
use crate::model::{Key, Object, ObjectKind, Objects};

/// The values of an object that name files or variables of the server, or other servers, each with its key.
type Named<'a> = Vec<(&'static str, &'a OsStr)>;

fn of_object(object: &Object) -> Named<'_> {
    fn value(of: &Option<impl AsRef<OsStr>>) -> Option<&OsStr> {
        of.as_ref().map(AsRef::as_ref)
    }
    let named = match object {
        Object::Pool(pool) => {
            return pool.devices.iter().map(|path| ("devices", path.as_os_str())).collect();
        }
        Object::Volume(volume) => {
            let Volume { path, state, image, remote, .. } = &**volume;
            vec![
                ("remote", remote.as_deref().map(|url| OsStr::new(url.as_str()))),
                ("path", value(path)),
                ("state", value(state)),
                ("image", image.as_deref().map(Path::as_os_str)),
            ]
        }
        Object::Account(Account { secret_file, secret_env, .. }) => {
            vec![("secret-file", value(secret_file)), ("secret-env", value(secret_env))]
        }
        Object::Portal(Portal { tls: Some(tls), .. }) => vec![
            ("tls.certificate", Some(tls.certificate.as_os_str())),
            ("tls.key", Some(tls.key.as_os_str())),
            ("tls.client-ca", value(&tls.client_ca)),
        ],
        Object::Portal(_)
        | Object::Host(_)
        | Object::Target(_)
        | Object::Discovery(_)
        | Object::Limits(_) => Vec::new(),
    };
    named.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// Returns the values that a merge patch sets for the same keys.
fn of_patch(kind: ObjectKind, patch: &Value) -> Named<'_> {
    let keys: &[&'static str] = match kind {
        ObjectKind::Pool => &["devices"],
        ObjectKind::Volume => &["path", "state", "image", "remote"],
        ObjectKind::Account => &["secret-file", "secret-env"],
        ObjectKind::Portal => &["tls.certificate", "tls.key", "tls.client-ca"],
        ObjectKind::Host | ObjectKind::Target | ObjectKind::Discovery | ObjectKind::Limits => &[],
    };
    let values = keys.iter().flat_map(|key| {
        let value = key.split('.').try_fold(patch, |value, name| value.get(name));
        let values: Vec<&Value> = match value {
            Some(Value::Array(list)) => list.iter().collect(),
            other => other.into_iter().collect(),
        };
        let texts = values.into_iter().filter_map(Value::as_str);
        texts.map(|text| (*key, OsStr::new(text)))
    });
    values.collect()
}

/// Refuses edits of a client that may not name files or variables, if they name new ones.
pub(super) fn check(edits: &[Edit], current: &Objects) -> Result<(), ApiError> {
    let check = |kind, name: &str, named: Named<'_>| {
        let current = current.get(&Key::new(kind, name));
        let before = current.map_or(Vec::new(), |object| of_object(object));
        let new = named.into_iter().find(|value| !before.contains(value));
        new.map_or(Ok(()), |(field, _)| Err(refused(field)))
    };
    for edit in edits {
        match edit {
            Edit::Put(object) | Edit::Add(object) => {
                check(object.kind(), object.name(), of_object(object))?;
            }
            Edit::Patch(key, patch) => check(key.kind, &key.name, of_patch(key.kind, patch))?,
            Edit::Create(document) | Edit::Apply(document) | Edit::Replace(document) => {
                for object in document.clone().into_objects() {
                    check(object.kind(), object.name(), of_object(&object))?;
                }
            }
            Edit::Remove(_) | Edit::RemoveEverywhere(_) => {}
        }
    }
    Ok(())
}

fn refused(field: &str) -> ApiError {
    let message = format!(
        "{field}: requests without a token cannot name files and variables of the server, nor other servers: use the \
         control socket, as `sarsen` does, or give the API a token-file; a volume without a path is in the state folder"
    );
    ApiError::forbidden_field(field, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::model::Document;

    fn document(value: Value) -> Document {
        serde_json::from_value(value).expect("a document")
    }

    /// Returns a server's objects, whose files its owner has named.
    fn current() -> Objects {
        let document = document(json!({
            "volume": [{ "name": "a", "path": "/dev/vg/a" }],
            "account": [{ "name": "u", "secret-file": "/etc/u" }],
            "pool": [{ "name": "p", "devices": ["/dev/a"] }],
        }));
        let objects = document.into_objects();
        objects.map(|object| (object.key(), Arc::new(object))).collect()
    }

    fn refusal(edit: Edit) -> Option<String> {
        let refused = check(&[edit], &current()).err()?;
        Some(format!("{refused:?}"))
    }

    #[test]
    fn unauthenticated_client_cannot_name_files() {
        for (field, listed) in [
            ("path", json!({ "volume": [{ "name": "b", "path": "/etc/shadow" }] })),
            ("path", json!({ "volume": [{ "name": "a", "path": "/dev/sda" }] })),
            ("state", json!({ "volume": [{ "name": "b", "state": "/etc" }] })),
            ("image", json!({ "volume": [{ "name": "b", "image": "/etc/shadow" }] })),
            ("devices", json!({ "pool": [{ "name": "p", "devices": ["/dev/a", "/dev/b"] }] })),
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
                let reported = refusal(edit).expect(field);
                let field = format!("field: Some({field:?})");
                assert!(reported.contains("Forbidden") && reported.contains(&field), "{reported}");
            }
        }
        let of_pool =
            |devices| Edit::Patch(Key::new(ObjectKind::Pool, "p"), json!({ "devices": devices }));
        assert!(refusal(of_pool(json!(["/dev/a", "/dev/b"]))).is_some());
        assert_eq!(refusal(of_pool(json!(["/dev/a"]))), None);
        let patch = |name, patch| Edit::Patch(Key::new(ObjectKind::Volume, name), patch);
        assert!(refusal(patch("a", json!({ "path": "/dev/sda" }))).is_some());
        assert!(refusal(patch("a", json!({ "name": "c", "path": "/x" }))).is_some());
        for allowed in [
            patch("a", json!({ "name": "c", "size": "2GiB" })),
            patch("a", json!({ "path": "/dev/vg/a" })),
            Edit::Apply(document(json!({ "volume": [{ "name": "b", "size": "1GiB" }] }))),
            // An export contains the path in this form.
            Edit::Apply(document(json!({ "volume": [{ "name": "a", "path": "/dev/vg/a" }] }))),
            Edit::Remove(Key::new(ObjectKind::Volume, "a")),
        ] {
            assert_eq!(refusal(allowed), None);
        }
    }
}
