//! The plan: the steps from one state to another one. The server shows it before a change, and stores it as the summary
//! of the change.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::config::DEFAULT_PORTAL;
use crate::model::{Difference, Key, Object, ObjectKind, Objects, StoreKind, differences, serial};

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The name of the object.
    pub name: String,
    /// The new name of a renamed object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_name: Option<String>,
    /// The changed fields of a changed object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FieldChange>,
}

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The object is created.
    Add,
    /// The object is renamed.
    Rename,
    /// Fields of the object are changed.
    Change,
    /// The object is deleted.
    Remove,
}

/// A change of a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldChange {
    /// The key of the field.
    pub field: String,
    /// Its previous value; absent if it had none.
    pub from: Option<Value>,
    /// Its new value; absent if it has none.
    pub to: Option<Value>,
}

/// Returns the change of the default portal, which is open while no other portal is configured. It is closed when the
/// first portal is configured, and opened when the last one is deleted.
pub(super) fn default_portal(before: &Objects, after: &Objects) -> Option<Step> {
    let address = DEFAULT_PORTAL.to_string();
    let count =
        |objects: &Objects| objects.keys().filter(|key| key.kind == ObjectKind::Portal).count();
    let stays = |objects: &Objects| objects.contains_key(&Key::new(ObjectKind::Portal, &address));
    let action = match (count(before), count(after)) {
        (0, 1..) if !stays(after) => Action::Remove,
        (1.., 0) if !stays(before) => Action::Add,
        _ => return None,
    };
    let changes = vec![FieldChange {
        field: "default".to_owned(),
        from: (action == Action::Remove).then_some(Value::Bool(true)),
        to: (action == Action::Add).then_some(Value::Bool(true)),
    }];
    Some(Step { action, kind: ObjectKind::Portal, name: address, new_name: None, changes })
}

/// Returns a warning that names the targets which a change opens to every initiator, if there are any.
pub(super) fn open_targets(before: &Objects, after: &Objects) -> Option<String> {
    let is_open = |object: Option<&Arc<Object>>| match object.map(|object| &**object) {
        Some(Object::Target(target)) => target.permits_everybody(),
        _ => false,
    };
    let opened =
        differences(before, after).filter(|one| is_open(one.after) && !is_open(one.before));
    let names: Vec<&str> = opened.map(|one| one.key.name.as_str()).collect();
    let (first, others) = names.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        count => format!(" and {count} other targets"),
    };
    Some(format!(
        "every initiator that reaches a portal is permitted to use {first}{others}: `allow` and `chap` restrict that"
    ))
}

/// Returns a note that names the files and the volumes in pools which stay when a change deletes their volumes, if there are
/// any.
pub(super) fn remaining_files(
    before: &Objects,
    after: &Objects,
    is_erased: impl Fn(&str) -> bool,
) -> Option<String> {
    #[derive(PartialEq, Eq, Hash)]
    enum Place<'a> {
        File(&'a Path),
        Pool { pool: &'a str, serial: &'a str },
    }
    fn place_of(object: &Arc<Object>) -> Option<Place<'_>> {
        match &**object {
            Object::Volume(volume) if volume.store == StoreKind::File => {
                volume.path.as_deref().map(Place::File)
            }
            Object::Volume(volume) if volume.snapshot.is_none() => {
                // A renamed volume has its serial number.
                let (pool, serial) = (volume.pool.as_deref()?, volume.serial.as_deref()?);
                Some(Place::Pool { pool, serial })
            }
            _ => None,
        }
    }
    let deleted: Vec<_> = differences(before, after)
        .filter_map(|one| {
            let before = one.before.filter(|_| one.after.is_none())?;
            Some((one.key.name.as_str(), place_of(before)?))
        })
        .filter(|(name, _)| !is_erased(name))
        .collect();
    // A renamed volume has its file.
    if deleted.is_empty() {
        return None;
    }
    let used: HashSet<_> = after.values().filter_map(place_of).collect();
    let mut remaining = deleted.into_iter().filter(|(_, place)| !used.contains(place));
    let (name, place) = remaining.next()?;
    let others = remaining.count();
    Some(match place {
        Place::Pool { pool, serial } => {
            let data =
                format!("the data of volume {name} remains in pool {pool}, with serial {serial}");
            match others {
                0 => data,
                others => format!("{data}, and that of {others} others"),
            }
        }
        Place::File(path) => {
            let path = path.display();
            match others {
                0 => format!("the file of volume {name} remains: {path}"),
                1 => format!("the files of volume {name} ({path}) and of another one remain"),
                others => {
                    format!("the files of volume {name} ({path}) and of {others} others remain")
                }
            }
        }
    })
}

/// Displays the step as `+ volume data`, `~ volume data: size 1GiB -> 2GiB`, `- target iqn…`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, kind, name, new_name, changes } = self;
        let sign = match action {
            Action::Add => '+',
            Action::Rename | Action::Change => '~',
            Action::Remove => '-',
        };
        write!(f, "{sign} {}", kind.word())?;
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if let Some(new_name) = new_name {
            write!(f, " -> {new_name}")?;
        }
        for (index, change) in changes.iter().enumerate() {
            let separator = if index == 0 { ":" } else { "," };
            write!(f, "{separator} {change}")?;
        }
        Ok(())
    }
}

/// Displays the change as `size 1GiB -> 2GiB`, or for long lists and tables as the number of changes:
/// `luns 3 added, 1 gone`.
impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, from, to } = self;
        let (before, after) = (render_value(from), render_value(to));
        if before.len().max(after.len()) > LONGEST_VALUE
            && let Some(counted) = counted(from.as_ref(), to.as_ref())
        {
            return write!(f, "{field} {counted}");
        }
        write!(f, "{field} {} -> {}", cut(before), cut(after))
    }
}

fn render_value(value: &Option<Value>) -> String {
    match value {
        None => "(unset)".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

/// Maximum bytes of a displayed value.
const LONGEST_VALUE: usize = 200;

fn cut(mut text: String) -> String {
    if text.len() > LONGEST_VALUE {
        text.truncate(text.floor_char_boundary(LONGEST_VALUE));
        text.push('…');
    }
    text
}

/// Returns the number of differences between two lists or tables; `None` for other values.
fn counted(from: Option<&Value>, to: Option<&Value>) -> Option<String> {
    let (before, after) = (entries(from)?, entries(to)?);
    let added = after.keys().filter(|key| !before.contains_key(*key)).count();
    let gone = before.keys().filter(|key| !after.contains_key(*key)).count();
    let changed = after.iter().filter(|(key, value)| before.get(*key).is_some_and(|b| b != *value));
    let counts = [(added, "added"), (changed.count(), "changed"), (gone, "gone")];
    let reported = counts.iter().filter(|(count, _)| *count != 0);
    let reported: Vec<String> = reported.map(|(count, what)| format!("{count} {what}")).collect();
    Some(if reported.is_empty() { "in another order".to_owned() } else { reported.join(", ") })
}

/// Returns the values of a table by key, or the values of a list as keys.
fn entries(value: Option<&Value>) -> Option<BTreeMap<String, String>> {
    match value {
        None => Some(BTreeMap::new()),
        Some(Value::Object(table)) => {
            Some(table.iter().map(|(key, value)| (key.clone(), value.to_string())).collect())
        }
        Some(Value::Array(list)) => {
            Some(list.iter().map(|value| (value.to_string(), String::new())).collect())
        }
        Some(_) => None,
    }
}

/// Returns the steps from `current` to `desired`: first renamings, then new objects, then changes, and last deletions.
pub fn plan(current: &Objects, desired: &Objects) -> Vec<Step> {
    let different: Vec<_> = differences(current, desired).collect();
    let mut gone: BTreeMap<&Key, &Arc<Object>> = BTreeMap::new();
    let mut by_serial: BTreeMap<&str, &Key> = BTreeMap::new();
    for Difference { key, before, .. } in different.iter().filter(|one| one.after.is_none()) {
        let before = before.expect("a difference has two sides, or one");
        gone.insert(key, before);
        by_serial.extend(serial(before).map(|serial| (serial, *key)));
    }
    let mut steps = Vec::new();
    for Difference { key, before, after } in different {
        let Some(after) = after else { continue };
        let step = |action| Step {
            action,
            kind: key.kind,
            name: key.name.clone(),
            new_name: None,
            changes: Vec::new(),
        };
        match before {
            Some(before) => {
                steps.push(Step { changes: changes(before, after), ..step(Action::Change) });
            }
            // The serial number identifies a volume, whatever its name.
            None => match serial(after).and_then(|serial| by_serial.remove(serial)) {
                Some(old) => {
                    let before = gone.remove(old).expect("it is one of those that go");
                    steps.push(Step {
                        name: old.name.clone(),
                        new_name: Some(key.name.clone()),
                        changes: changes(before, after),
                        ..step(Action::Rename)
                    });
                }
                None => steps.push(step(Action::Add)),
            },
        }
    }
    steps.extend(gone.keys().map(|key| Step {
        action: Action::Remove,
        kind: key.kind,
        name: key.name.clone(),
        new_name: None,
        changes: Vec::new(),
    }));
    steps.sort_by_key(|step| match step.action {
        Action::Rename => 0,
        Action::Add => 1,
        Action::Change => 2,
        Action::Remove => 3,
    });
    steps
}

/// Returns the changes of each field except the name.
fn changes(before: &Object, after: &Object) -> Vec<FieldChange> {
    let (before, after) = (fields(before), fields(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed =
        names.into_iter().filter(|name| *name != "name" && before.get(*name) != after.get(*name));
    changed
        .map(|name| {
            // The plan shows that a secret has changed, but not the secret.
            let shown = |value: Option<&Value>| match (name.as_str(), value) {
                ("secret", Some(_)) => Some(Value::String("(hidden)".into())),
                (_, value) => value.cloned(),
            };
            let (from, to) = (shown(before.get(name)), shown(after.get(name)));
            FieldChange { field: name.clone(), from, to }
        })
        .collect()
}

fn fields(object: &Object) -> serde_json::Map<String, Value> {
    match serde_json::to_value(object) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    }
}

/// Maximum lines of a plan that are stored with its revision.
const SUMMARY_LINES: usize = 20;

/// Returns the first lines of the plan.
pub(super) fn summary(steps: &[Step]) -> Vec<String> {
    let mut lines: Vec<String> = steps.iter().take(SUMMARY_LINES).map(Step::to_string).collect();
    if steps.len() > SUMMARY_LINES {
        lines.push(format!("and {} more", steps.len() - SUMMARY_LINES));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document::{Account, Document};

    fn objects(text: &str) -> Objects {
        let document: Document = toml::from_str(text).expect("a document");
        let objects = document.into_objects();
        objects.map(|object| (object.key(), Arc::new(object))).collect()
    }

    fn lines(current: &str, desired: &str) -> Vec<String> {
        plan(&objects(current), &objects(desired)).iter().map(Step::to_string).collect()
    }

    #[test]
    fn equal_objects_need_no_step() {
        let a = "[[volume]]\nname = \"a\"\nsize = \"1GiB\"\nserial = \"s1\"\n";
        assert!(lines(a, a).is_empty());
        assert_eq!(lines("", a), ["+ volume a"]);
        assert_eq!(lines(a, ""), ["- volume a"]);
        let grown = a.replace("1GiB", "2GiB").replace("serial", "read-only = true\nserial");
        assert_eq!(lines(a, &grown), ["~ volume a: read-only (unset) -> true, size 1GiB -> 2GiB"]);
        let other = "[[host]]\nname = \"h\"\n[limits]\nsessions = 4\n";
        assert_eq!(lines(a, other), ["+ host h", "+ limits", "- volume a"]);
    }

    #[test]
    fn files_of_deleted_volumes_are_named_unless_they_are_erased_or_used() {
        let remaining = |before: &str, after: &str, erased: &str| {
            remaining_files(&objects(before), &objects(after), |name| name == erased)
        };
        let a = "[[volume]]\nname = \"a\"\npath = \"/a.img\"\n";
        let both = format!("{a}[[volume]]\nname = \"b\"\npath = \"/b.img\"\n");
        let renamed = a.replace("name = \"a\"", "name = \"c\"");
        assert_eq!(remaining(a, a, ""), None);
        assert_eq!(remaining(a, "", "a"), None);
        assert_eq!(remaining(a, &renamed, ""), None);
        let note = remaining(&both, a, "").expect("a note");
        assert_eq!(note, "the file of volume b remains: /b.img");
        let note = remaining(&both, "", "").expect("a note");
        assert_eq!(note, "the files of volume a (/a.img) and of another one remain");
    }

    fn default_portal_step(before: &str, after: &str) -> Option<String> {
        default_portal(&objects(before), &objects(after)).map(|step| step.to_string())
    }

    #[test]
    fn the_default_portal_is_closed_for_another_one_and_opened_for_the_last_that_goes() {
        let portal = |address: &str| format!("[[portal]]\naddress = \"{address}\"\n");
        let (one, two) = (portal("192.0.2.1:3260"), portal("192.0.2.2:3260"));
        let own = portal("127.0.0.1:3260");
        let closed = "- portal 127.0.0.1:3260: default true -> (unset)";
        assert_eq!(default_portal_step("", &one).as_deref(), Some(closed));
        let opened = "+ portal 127.0.0.1:3260: default (unset) -> true";
        assert_eq!(default_portal_step(&one, "").as_deref(), Some(opened));
        let both = one.clone() + &two;
        for (before, after) in [("", ""), (&one, &both), (&both, &one), ("", &own), (&own, "")] {
            assert_eq!(default_portal_step(before, after), None, "{before} {after}");
        }
    }

    #[test]
    fn a_volume_is_the_same_under_another_name() {
        let a = "[[volume]]\nname = \"a\"\nserial = \"s1\"\n";
        let b = a.replace("\"a\"", "\"b\"");
        assert_eq!(lines(a, &b), ["~ volume a -> b"]);
        let stranger = b.replace("s1", "s2");
        assert_eq!(lines(a, &stranger), ["+ volume b", "- volume a"]);
    }

    fn target(luns: std::ops::Range<u16>, alias: &str) -> String {
        let luns: Vec<String> = luns.map(|lun| format!("{lun} = \"v{lun}\"")).collect();
        format!(
            "[[target]]\nname = \"iqn.x:t\"\nalias = \"{alias}\"\n[target.luns]\n{}\n",
            luns.join("\n")
        )
    }

    #[test]
    fn stored_change_has_size_limit() {
        let few = lines(&target(0..1, "a"), &target(1..2, "a"));
        assert_eq!(few, [r#"~ target iqn.x:t: luns {"0":"v0"} -> {"1":"v1"}"#]);
        let many = lines(&target(1..10_000, "a"), &target(0..9_998, "a"));
        assert_eq!(many, ["~ target iqn.x:t: luns 1 added, 2 gone"]);
        let long = lines(&target(0..1, "a"), &target(0..1, &"ä".repeat(5000)));
        let reported = format!("~ target iqn.x:t: alias a -> {}…", "ä".repeat(100));
        assert_eq!(long, [reported]);
    }

    fn account(secret: &str) -> Objects {
        let secret = Some(secret.to_owned().into());
        let account = Object::Account(Account { name: "a".into(), secret, ..Account::default() });
        Objects::from([(account.key(), Arc::new(account))])
    }

    #[test]
    fn secret_is_not_in_steps() {
        let steps = plan(&account("secret number one"), &account("secret number two"));
        assert_eq!(steps[0].to_string(), "~ account a: secret (hidden) -> (hidden)");
        assert!(!serde_json::to_string(&steps).expect("JSON").contains("number"));
    }
}
