//! Deletes the references to a deleted object. No initiator may gain access by that: the administrator must change an
//! access condition that would lose its last entry.

use std::sync::Arc;

use super::Invalid;
use crate::model::document::{Rule, ShownLuns, Target};
use crate::model::{Key, Object, ObjectKind, Objects};

/// Deletes all references to `key`. A target that loses its last volume is deleted, too.
pub(super) fn remove_references(objects: &mut Objects, key: &Key) -> Result<(), Invalid> {
    let mut empty = Vec::new();
    for (other, object) in objects.iter_mut() {
        let mut changed = (**object).clone();
        match (&mut changed, key.kind) {
            (Object::Target(target), ObjectKind::Volume) => {
                take_volume_out(target, &key.name);
            }
            (Object::Target(target), ObjectKind::Account | ObjectKind::Host) => {
                take_rules_out(target, key, other)?;
            }
            (Object::Volume(volume), ObjectKind::Pool)
                if volume.pool.as_ref() == Some(&key.name) =>
            {
                let message = format!(
                    "volume {} is in pool {}; delete the volume first",
                    volume.name, key.name
                );
                return Err(Invalid::new(other.clone(), "pool", message));
            }
            (Object::Volume(volume), ObjectKind::Account)
                if volume.remote.iter().any(|url| url.accounts().any(|name| name == key.name)) =>
            {
                let message = format!(
                    "volume {} logs in with account {}; give its URL another account, or delete the volume first",
                    volume.name, key.name
                );
                return Err(Invalid::new(other.clone(), "remote", message));
            }
            (Object::Pool(pool), ObjectKind::Account)
                if pool.remotes().iter().any(|url| url.accounts().any(|name| name == key.name)) =>
            {
                let message = format!(
                    "pool {} logs in with account {}; delete the pool, or replace its device, first",
                    pool.name, key.name
                );
                return Err(Invalid::new(other.clone(), "devices", message));
            }
            (Object::Discovery(discovery), ObjectKind::Account) => {
                take_account_out(&mut discovery.chap, &mut discovery.own_account, key, other)?;
            }
            (Object::Host(host), ObjectKind::Account)
                if host.account.as_ref() == Some(&key.name) =>
            {
                let message = format!(
                    "host {} logs in with account {}; give the host another account, or delete the host first",
                    host.name, key.name
                );
                return Err(Invalid::new(other.clone(), "account", message));
            }
            _ => {}
        }
        if changed != **object {
            if matches!(&changed, Object::Target(target) if target.luns.is_empty()) {
                empty.push(other.clone());
            }
            *object = Arc::new(changed);
        }
    }
    if key.kind == ObjectKind::Volume {
        empty.iter().for_each(|target| drop(objects.remove(target)));
    }
    Ok(())
}

/// Deletes a volume from a target. Rules that showed only this volume stay, and show no units.
fn take_volume_out(target: &mut Target, volume: &str) {
    target.luns.retain(|_, name| name != volume);
    let luns = &target.luns;
    for rule in &mut target.allow {
        match &mut rule.luns {
            Some(ShownLuns::Volumes(shown)) => shown.retain(|_, name| name != volume),
            Some(ShownLuns::Numbers(shown)) => shown.retain(|lun| luns.contains_key(lun)),
            None => {}
        }
    }
}

fn take_rules_out(target: &mut Target, key: &Key, of: &Key) -> Result<(), Invalid> {
    let speaks = |rule: &Rule| match key.kind {
        ObjectKind::Host => rule.host.as_ref() == Some(&key.name),
        _ => rule.account.as_ref() == Some(&key.name),
    };
    let rules = target.allow.len();
    target.allow.retain(|rule| !speaks(rule));
    if target.allow.is_empty() && rules > 0 {
        return Err(last(key, of, "allow"));
    }
    match key.kind {
        ObjectKind::Account => take_account_out(&mut target.chap, &mut target.own_account, key, of),
        _ => Ok(()),
    }
}

fn take_account_out(
    chap: &mut Vec<String>,
    own_account: &mut Option<String>,
    key: &Key,
    of: &Key,
) -> Result<(), Invalid> {
    let accounts = chap.len();
    chap.retain(|name| *name != key.name);
    if chap.is_empty() && accounts > 0 {
        return Err(last(key, of, "chap"));
    }
    own_account.take_if(|name| *name == key.name);
    Ok(())
}

fn last(key: &Key, of: &Key, field: &str) -> Invalid {
    let what = if of.name.is_empty() { "discovery" } else { &of.name };
    let message = format!(
        "{} {} is the last one that {what} permits; without it every initiator would be permitted; permit another \
         one first, or delete {what} first",
        key.kind.word(),
        key.name
    );
    Invalid::new(of.clone(), field, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document::Document;

    const BEGIN: &str = r#"
        [[account]]
        name = "x"
        [[account]]
        name = "y"
        [[host]]
        name = "h"
        [[host]]
        name = "of-y"
        account = "y"
        [[volume]]
        name = "a"
        [[volume]]
        name = "b"
        [[target]]
        name = "iqn.x:alone"
        luns = ["a"]
        [[target]]
        name = "iqn.x:both"
        luns = { 0 = "a", 7 = "b" }
        chap = ["x", "y"]
        own-account = "x"
        allow = [
            { host = "h", luns = { 3 = "a" } },
            { account = "x", luns = [0, 7] },
            { initiator = "iqn.2026-11.x:z" },
        ]
        [[target]]
        name = "iqn.x:other"
        luns = ["b"]
        chap = ["y"]
        [[target]]
        name = "iqn.x:third"
        allow = [{ host = "h" }]
    "#;

    fn after(kind: ObjectKind, name: &str) -> Result<Document, Invalid> {
        let document: Document = toml::from_str(BEGIN).expect("a document");
        let objects = document.into_objects();
        let mut objects: Objects = objects.map(|object| (object.key(), Arc::new(object))).collect();
        remove_references(&mut objects, &Key::new(kind, name))?;
        Ok(Document::of(objects.values().map(|object| &**object)))
    }

    fn names(document: &Document) -> Vec<&str> {
        document.target.iter().map(|target| target.name.as_str()).collect()
    }

    #[test]
    fn a_volume_goes_out_of_targets_and_rules_and_a_target_that_had_no_other_goes() {
        let document = after(ObjectKind::Volume, "a").expect("nobody is let in by it");
        // The third target had no volumes before, so it stays.
        assert_eq!(names(&document), ["iqn.x:both", "iqn.x:other", "iqn.x:third"]);
        let both = &document.target[0];
        assert_eq!(both.luns.values().collect::<Vec<_>>(), ["b"]);
        assert_eq!(both.allow.len(), 3, "a rule that shows nothing lets nobody see more");
        assert_eq!(both.allow[0].luns, Some(ShownLuns::Volumes(Default::default())));
        assert_eq!(both.allow[1].luns, Some(ShownLuns::Numbers(vec![7])));
        let before: Document = toml::from_str(BEGIN).expect("a document");
        assert_eq!(document.target[1..], before.target[2..], "who does not speak of it stays");
    }

    #[test]
    fn an_account_goes_out_of_targets_and_rules() {
        let document = after(ObjectKind::Account, "x").expect("others are let in");
        let both = &document.target[1];
        assert_eq!((both.chap.as_slice(), &both.own_account), (&["y".to_owned()][..], &None));
        assert_eq!(both.allow.len(), 2);
    }

    #[test]
    fn deletion_permits_no_further_initiator() {
        for (kind, name, field, reported) in [
            (ObjectKind::Account, "y", "host/of-y.account", "give the host another account"),
            (
                ObjectKind::Host,
                "h",
                "target/iqn.x:third.allow",
                "every initiator would be permitted",
            ),
        ] {
            let refused = after(kind, name).expect_err(reported);
            assert_eq!(refused.place().as_deref(), Some(field), "{refused}");
            assert!(refused.message.contains(reported), "{refused}");
        }
        let mut target =
            Target { name: "iqn.x:t".into(), chap: vec!["y".into()], ..Target::default() };
        let (account, of) =
            (Key::new(ObjectKind::Account, "y"), Key::new(ObjectKind::Target, "iqn.x:t"));
        let refused = take_rules_out(&mut target, &account, &of).expect_err("the last account");
        assert_eq!(refused.place().as_deref(), Some("target/iqn.x:t.chap"));
    }
}
