//! Checks which files of the server's machine a change may name. A client that names files reads and writes every file
//! that the server can open. So only the server's owner may name them, at the control socket or with the token.

use std::ffi::OsStr;

use serde_json::Value;

use super::error::ApiError;
use crate::desired::Edit;
use crate::model::document::{Account, Document, Portal, Volume};
use crate::model::{Key, Object, ObjectKind, Objects};

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

/// Refuses edits of a client that may not name files or variables, if they name new ones.
pub(super) fn check(edits: &[Edit], current: &Objects) -> Result<(), ApiError> {
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
        let mut new = new.filter(|((_, value), _)| value.is_some());
        new.next().map_or(Ok(()), |((field, _), _)| Err(refused(field)))
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

fn refused(field: &str) -> ApiError {
    let message = format!(
        "{field}: requests without a token cannot name files and variables of the server: use the control socket, as \
         `sarsen` does, or give the API a token-file; a volume without a path is in the state folder"
    );
    ApiError::forbidden_field(field, message)
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
