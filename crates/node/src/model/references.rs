//! References between objects. An object can be deleted when no remaining object refers to it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::document::{Rule, ShownLuns};
use super::object::{Key, Object, ObjectKind, Objects};
use super::remote::RemoteUrl;

/// Maximum number of references to an object that an error lists.
const REPORTED_MAX: usize = 3;

/// The place of a reference.
enum Role {
    /// The object is this unit of a target.
    Lun(u16),
    /// The object is the pool of a volume.
    Pool,
    /// The object's name is in this key.
    In(&'static str),
}

/// Returns the references of an object to others.
fn references(object: &Object) -> Vec<(ObjectKind, Cow<'_, str>, Role)> {
    if let Object::Pool(pool) = object {
        let of_account =
            |name: &str| (ObjectKind::Account, Cow::from(name.to_owned()), Role::In("devices"));
        let remotes = pool.remotes();
        return remotes.iter().flat_map(RemoteUrl::accounts).map(of_account).collect();
    }
    let named: Vec<(ObjectKind, &str, Role)> = match object {
        Object::Target(target) => {
            let luns = target.luns.iter();
            let luns = luns.map(|(lun, name)| (ObjectKind::Volume, name.as_str(), Role::Lun(*lun)));
            let accounts = accounts(&target.chap, target.own_account.as_deref());
            luns.chain(accounts).chain(target.allow.iter().flat_map(of_rule)).collect()
        }
        Object::Discovery(discovery) => {
            accounts(&discovery.chap, discovery.own_account.as_deref()).collect()
        }
        Object::Host(host) => host
            .account
            .iter()
            .map(|name| (ObjectKind::Account, name.as_str(), Role::In("account")))
            .collect(),
        Object::Volume(volume) => {
            let pool = volume.pool.iter();
            let pool = pool.map(|name| (ObjectKind::Pool, name.as_str(), Role::Pool));
            let accounts = volume.remote.iter().flat_map(|url| url.accounts());
            let of_account = |name| (ObjectKind::Account, name, Role::In("remote"));
            pool.chain(accounts.map(of_account)).collect()
        }
        Object::Portal(_) | Object::Account(_) | Object::Pool(_) | Object::Limits(_) => Vec::new(),
    };
    named.into_iter().map(|(kind, name, role)| (kind, Cow::from(name), role)).collect()
}

fn accounts<'a>(
    chap: &'a [String],
    own_account: Option<&'a str>,
) -> impl Iterator<Item = (ObjectKind, &'a str, Role)> {
    let chap = chap.iter().map(|name| (name.as_str(), Role::In("chap")));
    let all = chap.chain(own_account.map(|name| (name, Role::In("own-account"))));
    all.map(|(name, role)| (ObjectKind::Account, name, role))
}

fn of_rule(rule: &Rule) -> impl Iterator<Item = (ObjectKind, &str, Role)> {
    let host = rule.host.iter().map(|name| (ObjectKind::Host, name));
    let account = rule.account.iter().map(|name| (ObjectKind::Account, name));
    let volumes = match &rule.luns {
        Some(ShownLuns::Volumes(volumes)) => Some(volumes),
        _ => None,
    };
    let volumes =
        volumes.into_iter().flat_map(BTreeMap::values).map(|name| (ObjectKind::Volume, name));
    let all = host.chain(account).chain(volumes);
    all.map(|(kind, name)| (kind, name.as_str(), Role::In("allow")))
}

/// Returns the first of `gone` to which an object in `objects` refers, with the references: `LUN 1 of iqn…`,
/// `in chap of iqn…`.
pub(crate) fn referred(objects: &Objects, gone: &BTreeSet<Key>) -> Option<(Key, Vec<String>)> {
    let mut found: BTreeMap<Key, Vec<String>> = BTreeMap::new();
    for (of, object) in objects {
        for (kind, name, role) in references(object) {
            let Some(key) = gone.get(&Key::new(kind, &name)) else { continue };
            found.entry(key.clone()).or_default().push(match role {
                Role::Lun(lun) => format!("LUN {lun} of {}", of.name),
                Role::Pool => reported(of),
                Role::In(field) => format!("in {field} of {}", reported(of)),
            });
        }
    }
    let (key, mut by) = found.pop_first()?;
    if key.kind == ObjectKind::Pool {
        by[0] = format!("used by {}", by[0]);
    }
    if by.len() > REPORTED_MAX {
        let more = by.len() - REPORTED_MAX;
        by.truncate(REPORTED_MAX);
        by.push(format!("{more} more"));
    }
    Some((key, by))
}

/// Returns the displayed name of an object, such as `host web` or `discovery`; for a target, its name alone.
fn reported(key: &Key) -> String {
    match key.kind {
        ObjectKind::Target => key.name.clone(),
        kind if key.name.is_empty() => kind.word().to_owned(),
        kind => format!("{} {}", kind.word(), key.name),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::document::Document;
    use super::*;

    const ALL: &str = r#"
        [discovery]
        chap = ["x"]
        own-account = "own"
        [[host]]
        name = "web"
        account = "x"
        [[target]]
        name = "iqn.x:a"
        luns = { 1 = "a", 7 = "b" }
        chap = ["x", "y"]
        allow = [{ host = "web" }, { account = "y", luns = { 0 = "b" } }]
        [[volume]]
        name = "a"
        pool = "p"
        [[volume]]
        name = "c"
        remote = "iscsi://z@h/iqn.x:c/0"
        [[pool]]
        name = "q"
        devices = ["/dev/a", "iscsi://w@h/iqn.x:d/0"]
        [[target]]
        name = "iqn.x:b"
        chap = ["x"]
    "#;

    fn referred_of(kind: ObjectKind, name: &str) -> Option<String> {
        let document: Document = toml::from_str(ALL).expect("a document");
        let objects = document.into_objects();
        let objects: Objects = objects.map(|object| (object.key(), Arc::new(object))).collect();
        referred(&objects, &[Key::new(kind, name)].into()).map(|(_, by)| by.join(", "))
    }

    #[test]
    fn references_are_found_with_their_field() {
        for (kind, name, by) in [
            (ObjectKind::Volume, "a", "LUN 1 of iqn.x:a"),
            (ObjectKind::Volume, "b", "LUN 7 of iqn.x:a, in allow of iqn.x:a"),
            (ObjectKind::Account, "y", "in chap of iqn.x:a, in allow of iqn.x:a"),
            (ObjectKind::Account, "z", "in remote of volume c"),
            (ObjectKind::Account, "w", "in devices of pool q"),
            (ObjectKind::Account, "own", "in own-account of discovery"),
            (
                ObjectKind::Account,
                "x",
                "in account of host web, in chap of iqn.x:a, in chap of iqn.x:b, 1 more",
            ),
            (ObjectKind::Host, "web", "in allow of iqn.x:a"),
            (ObjectKind::Pool, "p", "used by volume a"),
        ] {
            assert_eq!(referred_of(kind, name).as_deref(), Some(by));
        }
        // An account may have the same name as a volume.
        for (kind, name) in
            [(ObjectKind::Volume, "x"), (ObjectKind::Account, "a"), (ObjectKind::Host, "nobody")]
        {
            assert_eq!(referred_of(kind, name), None);
        }
    }
}
