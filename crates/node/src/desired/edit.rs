//! Edits of the desired state.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sarsen_io::random;
use sarsen_scsi::Naa;

use super::ChangeRefused;
use super::cascade::remove_references;
use crate::config::nearest;
use crate::model::document::{Account, Document, ShownLuns, Target, Volume};
use crate::model::{Key, Object, ObjectKind, Objects, StoreKind, serial};

/// The extension of the folders of records in the state folder.
pub(super) const RECORDS: &str = "state";

/// An edit of the desired state.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Adds an object, or replaces the object of this name.
    Put(Object),
    /// Adds an object. An object of this name must not exist.
    Add(Object),
    /// Applies a JSON merge patch (RFC 7396) to an object. A new name renames the object.
    Patch(Key, serde_json::Value),
    /// Deletes an object.
    Remove(Key),
    /// Deletes an object and all references to it. A target that loses its last volume is deleted, too.
    RemoveEverywhere(Key),
    /// Adds all objects of a document. None of their names may exist.
    Create(Document),
    /// Adds or replaces all objects of a document.
    Apply(Document),
    /// Adds or replaces all objects of a document, and deletes all others.
    Replace(Document),
}

impl Edit {
    /// Applies the edit. Files of volumes without a path are placed under `folder`.
    pub(super) fn carry_out(
        self,
        objects: &mut Objects,
        folder: &VolumeFolder<'_>,
    ) -> Result<(), ChangeRefused> {
        match self {
            Self::Put(object) => drop(apply(objects, Document::of([&object]), folder)?),
            Self::Add(object) if objects.contains_key(&object.key()) => {
                return Err(ChangeRefused::Exists(object.key()));
            }
            Self::Add(object) => put(objects, object, folder),
            Self::Remove(key) => {
                find(objects, &key)?;
                objects.remove(&key);
            }
            Self::RemoveEverywhere(key) => {
                find(objects, &key)?;
                remove_references(objects, &key)?;
                objects.remove(&key);
            }
            Self::Patch(key, patch) => self::patch(objects, &key, &patch, folder)?,
            Self::Create(document) => {
                for object in document.into_objects() {
                    Self::Add(object).carry_out(objects, folder)?;
                }
            }
            Self::Apply(document) => drop(apply(objects, document, folder)?),
            Self::Replace(document) => {
                let listed = apply(objects, document, folder)?;
                objects.retain(|key, _| listed.contains(key));
            }
        }
        Ok(())
    }
}

fn find<'a>(objects: &'a Objects, key: &Key) -> Result<&'a Arc<Object>, ChangeRefused> {
    objects.get(key).ok_or_else(|| {
        let names = objects.keys().filter(|other| other.kind == key.kind);
        let hint = nearest(&key.name, names.map(|key| key.name.as_str()));
        ChangeRefused::NotFound(key.clone(), hint)
    })
}

/// Adds or replaces the objects of a document. Returns their keys.
fn apply(
    objects: &mut Objects,
    document: Document,
    folder: &VolumeFolder<'_>,
) -> Result<BTreeSet<Key>, ChangeRefused> {
    let all: Vec<Object> = document.into_objects().collect();
    let mut listed = BTreeSet::new();
    for key in all.iter().map(Object::key) {
        if let Some(key) = listed.replace(key) {
            let message = format!("{} {} is listed twice: remove one", key.kind.word(), key.name);
            return Err(super::Invalid::new(key, "", message).into());
        }
    }
    let unlisted = objects.iter().filter(|(key, _)| !listed.contains(key));
    // If two imported volumes have the same serial number, it identifies neither of them.
    let mut by_serial: HashMap<String, Option<Key>> = HashMap::new();
    for (key, serial) in unlisted.filter_map(|(key, object)| Some((key, serial(object)?))) {
        let known = by_serial.entry(serial.to_owned());
        known.and_modify(|known| *known = None).or_insert_with(|| Some(key.clone()));
    }
    for mut object in all {
        let new = object.key();
        // The serial number identifies a volume, whatever its name.
        if !objects.contains_key(&new)
            && let Some(old) = serial(&object).and_then(|serial| by_serial.remove(serial)?)
            && objects.get(&old).is_some_and(|old| has_same_naa(&object, old))
        {
            rename(objects, &old, &new.name);
        }
        if let Some(before) = objects.get(&new) {
            keep_format(&mut object, before);
        }
        put(objects, object, folder);
    }
    Ok(listed)
}

/// Returns whether both volumes have the same NAA identifier. A missing one counts as the same.
fn has_same_naa(object: &Object, before: &Object) -> bool {
    match (object, before) {
        (Object::Volume(volume), Object::Volume(before)) => {
            volume.naa.is_none() || volume.naa == before.naa
        }
        _ => false,
    }
}

fn put(objects: &mut Objects, mut object: Object, folder: &VolumeFolder<'_>) {
    let key = object.key();
    let before = objects.get(&key);
    match (&mut object, before.map(|before| &**before)) {
        (Object::Volume(volume), Some(Object::Volume(before))) => {
            keep_identity(volume, before);
            complete(volume, folder);
        }
        (Object::Volume(volume), _) => complete(volume, folder),
        (Object::Account(account), Some(Object::Account(before))) => keep_secret(account, before),
        _ => {}
    }
    if before.is_none_or(|before| **before != object) {
        objects.insert(key, Arc::new(object));
    }
}

/// Sets the permanent properties of a new volume.
fn complete(volume: &mut Volume, folder: &VolumeFolder<'_>) {
    // A pass-through device has its own identity.
    if volume.store != StoreKind::Sg {
        volume.serial.get_or_insert_with(|| format!("{:016x}", random::number()));
        // 3h: locally assigned.
        let naa = || Naa::Eight((3 << 60 | random::number() >> 4).to_be_bytes());
        volume.naa.get_or_insert_with(naa);
    }
    let has_records = match volume.store {
        StoreKind::Pool => !volume.is_read_only(),
        StoreKind::Remote => true,
        _ => false,
    };
    if has_records && volume.state.is_none() {
        let serial = volume.serial.as_deref().unwrap_or_default();
        volume.state = Some(folder.records(serial).display().to_string().into());
    }
    if volume.store == StoreKind::File && volume.path.is_none() {
        // A document is text.
        volume.path = Some(folder.place(&volume.name).display().to_string().into());
    }
}

/// The folder of the files of volumes that name none.
pub(super) struct VolumeFolder<'a> {
    path: &'a Path,
    /// The files that exist there without a volume, as far as they are known.
    taken: &'a BTreeSet<PathBuf>,
    /// The objects before the change, and the files of their volumes.
    before: &'a Objects,
    used: OnceCell<HashSet<&'a Path>>,
}

impl<'a> VolumeFolder<'a> {
    pub(super) fn new(path: &'a Path, taken: &'a BTreeSet<PathBuf>, before: &'a Objects) -> Self {
        Self { path, taken, before, used: OnceCell::new() }
    }

    /// Returns the folder for the records of a volume in a pool, which has this serial number.
    fn records(&self, serial: &str) -> PathBuf {
        let name = records_name(serial);
        self.path.join(name.unwrap_or_else(|| format!("{:016x}.{RECORDS}", random::number())))
    }

    /// Returns the file of a new volume with this name. A renamed volume keeps the file of its earlier name.
    fn place(&self, name: &str) -> PathBuf {
        let path = self.path.join(format!("{name}.img"));
        let used = self.used.get_or_init(|| {
            let path_of = |object: &'a Arc<Object>| match &**object {
                Object::Volume(volume) => volume.path.as_deref(),
                _ => None,
            };
            self.before.values().filter_map(path_of).collect()
        });
        if self.taken.contains(&path) || used.contains(&*path) {
            self.path.join(format!("{name}-{:016x}.img", random::number()))
        } else {
            path
        }
    }
}

/// Returns the name of the folder for the records of a volume in a pool, if its serial number can be a part of it.
pub(super) fn records_name(serial: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let fits = !serial.is_empty() && serial.bytes().all(is_plain);
    fits.then(|| format!("{serial}.{RECORDS}"))
}

/// Keeps the identity, the path and the sizes of a volume where the new version omits them.
fn keep_identity(volume: &mut Volume, before: &Volume) {
    if !is_same_volume(volume, before) {
        return;
    }
    keep(&mut volume.path, &before.path);
    keep(&mut volume.pool, &before.pool);
    keep(&mut volume.remote, &before.remote);
    keep(&mut volume.clone_of, &before.clone_of);
    keep(&mut volume.image, &before.image);
    keep(&mut volume.image_format, &before.image_format);
    keep(&mut volume.snapshot, &before.snapshot);
    keep(&mut volume.mirror, &before.mirror);
    keep(&mut volume.stripes, &before.stripes);
    keep(&mut volume.checksums, &before.checksums);
    keep(&mut volume.serial, &before.serial);
    keep(&mut volume.naa, &before.naa);
    keep(&mut volume.state, &before.state);
    keep(&mut volume.size, &before.size);
    keep(&mut volume.block_size, &before.block_size);
}

/// Keeps the properties of a volume's data that a document omits.
fn keep_format(object: &mut Object, before: &Object) {
    if let (Object::Volume(volume), Object::Volume(before)) = (object, before)
        && is_same_volume(volume, before)
    {
        keep(&mut volume.protection, &before.protection);
        volume.encrypted |= before.encrypted;
    }
}

/// Returns whether both are the same volume. With another store or another serial number, it is a different one.
fn is_same_volume(volume: &Volume, before: &Volume) -> bool {
    volume.store == before.store && (volume.serial.is_none() || volume.serial == before.serial)
}

/// Sets a property that the new version omits to its previous value.
fn keep<T: Clone>(own: &mut Option<T>, before: &Option<T>) {
    if own.is_none() {
        own.clone_from(before);
    }
}

/// Keeps the secret of an account where the new version omits it, as exported documents do.
fn keep_secret(account: &mut Account, before: &Account) {
    let Account { secret, secret_file, secret_env, .. } = account;
    if secret.is_none() && secret_file.is_none() && secret_env.is_none() {
        *account = before.clone();
    }
}

fn patch(
    objects: &mut Objects,
    key: &Key,
    patch: &serde_json::Value,
    folder: &VolumeFolder<'_>,
) -> Result<(), ChangeRefused> {
    let invalid = |message: String| super::Invalid::new(key.clone(), "", message);
    let before = find(objects, key)?;
    if !patch.is_object() {
        return Err(
            invalid("a merge patch is an object, such as { \"size\": \"20GiB\" }".into()).into()
        );
    }
    let mut value = serde_json::to_value(&**before).expect("our own types are JSON");
    merge(&mut value, patch);
    let text = serde_json::to_vec(&value).expect("it is JSON");
    let object = Object::from_json(key.kind, &text);
    let object = object.map_err(|misfit| {
        super::Invalid::new(key.clone(), misfit.key.unwrap_or_default(), misfit.message)
    })?;
    let new = object.key();
    if new != *key {
        if objects.contains_key(&new) {
            return Err(ChangeRefused::Exists(new));
        }
        rename(objects, key, &new.name);
    }
    put(objects, object, folder);
    Ok(())
}

/// Applies a JSON merge patch (RFC 7396).
fn merge(value: &mut serde_json::Value, patch: &serde_json::Value) {
    let serde_json::Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = serde_json::Value::Object(serde_json::Map::new());
    }
    let fields = value.as_object_mut().expect("it was made one");
    for (name, patch) in patch {
        if patch.is_null() {
            drop(fields.remove(name))
        } else {
            merge(fields.entry(name).or_insert(serde_json::Value::Null), patch)
        }
    }
}

/// Renames an object, and changes all references to it.
fn rename(objects: &mut Objects, key: &Key, new: &str) {
    if let Some(object) = objects.remove(key) {
        objects.insert(Key::new(key.kind, new), object);
    }
    let old = key.name.as_str();
    let change = |name: &mut String| {
        if name == old {
            *name = new.to_owned();
        }
    };
    for object in objects.values_mut() {
        let mut changed = (**object).clone();
        match (&mut changed, key.kind) {
            (Object::Target(target), kind) => rename_in_target(target, kind, &change),
            (Object::Discovery(discovery), ObjectKind::Account) => {
                discovery.chap.iter_mut().chain(&mut discovery.own_account).for_each(change);
            }
            (Object::Host(host), ObjectKind::Account) => host.account.iter_mut().for_each(change),
            (Object::Volume(volume), ObjectKind::Pool) => volume.pool.iter_mut().for_each(change),
            (Object::Pool(pool), ObjectKind::Account) => pool.rename_account(old, new),
            (Object::Volume(volume), ObjectKind::Account) => {
                volume.remote.iter_mut().for_each(|url| url.rename_account(old, new));
            }
            (Object::Volume(volume), ObjectKind::Volume) => {
                let snapshots = volume.clone_of.iter_mut().chain(&mut volume.snapshot);
                snapshots.for_each(|snapshot| change(&mut snapshot.volume));
            }
            _ => {}
        }
        if changed != **object {
            *object = Arc::new(changed);
        }
    }
}

fn rename_in_target(target: &mut Target, kind: ObjectKind, change: &impl Fn(&mut String)) {
    match kind {
        ObjectKind::Volume => {
            target.luns.values_mut().for_each(change);
            for rule in &mut target.allow {
                if let Some(ShownLuns::Volumes(volumes)) = &mut rule.luns {
                    volumes.values_mut().for_each(change);
                }
            }
        }
        ObjectKind::Account => {
            target.chap.iter_mut().chain(&mut target.own_account).for_each(change);
            target.allow.iter_mut().filter_map(|rule| rule.account.as_mut()).for_each(change);
        }
        ObjectKind::Host => {
            target.allow.iter_mut().filter_map(|rule| rule.host.as_mut()).for_each(change);
        }
        ObjectKind::Portal
        | ObjectKind::Pool
        | ObjectKind::Target
        | ObjectKind::Discovery
        | ObjectKind::Limits => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Rate;

    fn document(text: &str) -> Document {
        toml::from_str(text).expect("a document")
    }

    fn after(objects: &mut Objects, edit: Edit) -> Result<String, String> {
        let (before, taken) = (objects.clone(), BTreeSet::new());
        let folder = VolumeFolder::new(Path::new("/state/volumes"), &taken, &before);
        edit.carry_out(objects, &folder).map_err(|refused| refused.to_string())?;
        let document = Document::of(objects.values().map(|object| &**object));
        Ok(toml::to_string(&document).expect("TOML"))
    }

    const BEGIN: &str = "[[volume]]\nname = \"a\"\n[[account]]\nname = \"x\"\nsecret = \"twelve bytes\"\n\
        [[host]]\nname = \"h\"\naccount = \"x\"\n\
        [[target]]\nname = \"iqn.2026-11.x:t\"\nluns = [\"a\"]\nchap = [\"x\"]\n\
        allow = [{ host = \"h\" }, { account = \"x\", luns = { 0 = \"a\" } }]\n";

    fn begun() -> Objects {
        let mut objects = Objects::new();
        after(&mut objects, Edit::Apply(document(BEGIN))).expect("valid");
        objects
    }

    #[test]
    fn a_document_with_a_known_serial_number_renames_and_keeps_all_that_the_data_need() {
        let mut objects = begun();
        let known = volume(&objects, "a");
        let serial = known.serial.clone().expect("one was made");
        let text = format!("[[volume]]\nname = \"b\"\nserial = \"{serial}\"\n");
        let all = after(&mut objects, Edit::Apply(document(&text))).expect("valid");
        assert_eq!(volume(&objects, "b"), Volume { name: "b".into(), ..known });
        assert!(!all.contains("\"a\"") && all.contains("0 = \"b\""), "{all}");
    }

    #[test]
    fn a_serial_number_that_two_volumes_have_renames_none() {
        let mut objects = Objects::new();
        let volume_of = |name: &str| format!("[[volume]]\nname = \"{name}\"\nserial = \"s\"\n");
        let both = volume_of("a") + &volume_of("b");
        after(&mut objects, Edit::Apply(document(&both))).expect("valid");
        let known = [volume(&objects, "a"), volume(&objects, "b")];
        after(&mut objects, Edit::Apply(document(&volume_of("c")))).expect("valid");
        assert_eq!([volume(&objects, "a"), volume(&objects, "b")], known);
        assert!(known.iter().all(|known| known.path != volume(&objects, "c").path));
    }

    #[test]
    fn creation_properties_of_volume_stay_until_it_is_replaced() {
        let mut objects = Objects::new();
        let made = "[[volume]]\nname = \"a\"\nblock-size = 4096\nstate = \"/s\"\nprotection = 1\nencrypted = true\n";
        after(&mut objects, Edit::Apply(document(made))).expect("valid");
        let known = volume(&objects, "a");
        let said_less = "[[volume]]\nname = \"a\"\niops = 5\n";
        after(&mut objects, Edit::Apply(document(said_less))).expect("valid");
        assert_eq!(volume(&objects, "a"), Volume { iops: Rate::new(5), ..known.clone() });
        let other = "[[volume]]\nname = \"a\"\nserial = \"other\"\n";
        after(&mut objects, Edit::Apply(document(other))).expect("valid");
        let other = volume(&objects, "a");
        assert!(other.naa != known.naa && other.block_size.is_none(), "{other:?}");
    }

    #[test]
    fn two_volumes_whose_names_change_hands_keep_their_files() {
        let mut objects = Objects::new();
        for [first, second] in [["a", "b"], ["b", "a"]] {
            let both = document(&format!(
                "[[volume]]\nname = \"{first}\"\nserial = \"s1\"\npath = \"/1\"\n\
                 [[volume]]\nname = \"{second}\"\nserial = \"s2\"\npath = \"/2\"\n"
            ));
            after(&mut objects, Edit::Apply(both)).expect("valid");
        }
        let of = |name: &str| (volume(&objects, name).serial, volume(&objects, name).path);
        assert_eq!(of("b"), (Some("s1".into()), Some("/1".into())));
        assert_eq!(of("a"), (Some("s2".into()), Some("/2".into())));
    }

    fn volume(objects: &Objects, name: &str) -> Volume {
        match &*objects[&Key::new(ObjectKind::Volume, name)] {
            Object::Volume(volume) => (**volume).clone(),
            other => panic!("{other:?} is no volume"),
        }
    }

    #[test]
    fn a_new_volume_gets_a_place_and_an_identity_which_it_keeps() {
        let mut objects = begun();
        let new = volume(&objects, "a");
        assert_eq!(new.path.as_deref(), Some("/state/volumes/a.img".as_ref()));
        assert!(matches!(new.naa, Some(Naa::Eight([first, ..])) if first >> 4 == 3));
        let grown = document("[[volume]]\nname = \"a\"\nsize = \"2GiB\"");
        after(&mut objects, Edit::Apply(grown)).expect("valid");
        let kept = volume(&objects, "a");
        assert_eq!((&kept.serial, &kept.naa, &kept.path), (&new.serial, &new.naa, &new.path));
        assert_eq!(kept.size.expect("a size").to_string(), "2GiB");
        let renamed = Edit::Patch(Key::new(ObjectKind::Volume, "a"), json!({ "name": "b" }));
        let text = after(&mut objects, renamed).expect("valid");
        let kept = volume(&objects, "b");
        assert_eq!((&kept.serial, &kept.path), (&new.serial, &new.path));
        assert!(!text.contains("\"a\"") && text.matches("0 = \"b\"").count() == 2, "{text}");
    }

    #[test]
    fn document_changes_listed_objects_and_prunes_on_request() {
        let mut objects = begun();
        let before = objects.clone();
        let alike = document("[[account]]\nname = \"x\"\n[[volume]]\nname = \"a\"");
        after(&mut objects, Edit::Apply(alike.clone())).expect("valid");
        assert_eq!(objects, before, "the secret and the identity stay");
        after(&mut objects, Edit::Replace(alike)).expect("valid");
        assert_eq!(objects.len(), 2);
        let twice = document("[[host]]\nname = \"h\"\n[[host]]\nname = \"h\"");
        let refused = after(&mut objects, Edit::Apply(twice)).expect_err("twice");
        assert!(refused.contains("host h is listed twice"), "{refused}");
    }

    #[test]
    fn rename_updates_references() {
        let mut objects = begun();
        let patch =
            |kind, from: &str, to: &str| Edit::Patch(Key::new(kind, from), json!({ "name": to }));
        after(&mut objects, patch(ObjectKind::Account, "x", "y")).expect("valid");
        let text = after(&mut objects, patch(ObjectKind::Host, "h", "web")).expect("valid");
        assert!(!text.contains("\"x\"") && !text.contains("\"h\""), "{text}");
        assert!(text.contains("chap = [\"y\"]") && text.contains("host = \"web\""), "{text}");
        assert!(text.contains("secret = \"twelve bytes\""), "{text}");
        let taken = after(&mut objects, Edit::Add(Object::Host(Default::default())));
        taken.expect("an empty name is refused where all is checked");
    }

    #[test]
    fn missing_and_existing_names_are_reported() {
        let mut objects = begun();
        let key = |name| Key::new(ObjectKind::Volume, name);
        let add =
            Edit::Add(Object::Volume(Volume { name: "a".into(), ..Volume::default() }.into()));
        let x = Account { name: "x".into(), ..Account::default() };
        for (edit, reported) in [
            (Edit::Remove(key("b")), "there is no volume b"),
            (Edit::Remove(Key::new(ObjectKind::Host, "hh")), "did you mean h?"),
            (add, "there is a volume a already"),
            (Edit::Add(Object::Account(x)), "there is an account x already"),
            (Edit::Patch(key("a"), json!({ "sise": 1 })), "unknown key sise; did you mean size?"),
            (
                Edit::Patch(key("a"), json!({ "iops": "abc" })),
                "volume/a.iops: \"abc\" is not a number from 1",
            ),
            (Edit::Patch(key("a"), json!([])), "a merge patch is an object"),
        ] {
            let refused = after(&mut objects, edit).expect_err(reported);
            assert!(refused.contains(reported), "{refused}");
        }
        let before = Arc::clone(&objects[&key("a")]);
        let same = Edit::Patch(key("a"), json!({ "store": "file", "read-only": false }));
        after(&mut objects, same).expect("valid");
        assert!(Arc::ptr_eq(&before, &objects[&key("a")]), "what it is already is no change");
        let patched = Edit::Patch(key("a"), json!({ "size": "1GiB", "serial": null }));
        after(&mut objects, patched).expect("valid");
        assert!(volume(&objects, "a").serial.is_some(), "identity is not taken away");
        let serial = volume(&objects, "a").serial;
        let patch = json!({ "name": "b", "serial": null, "naa": null });
        after(&mut objects, Edit::Patch(key("a"), patch)).expect("valid");
        assert_eq!(volume(&objects, "b").serial, serial, "nor with the name");
        let memory = document("[[volume]]\nname = \"b\"\nstore = \"ram\"\nsize = \"1MiB\"");
        after(&mut objects, Edit::Apply(memory)).expect("valid");
        let memory = volume(&objects, "b");
        assert!(memory.path.is_none() && memory.serial.is_some() && memory.serial != serial);
    }

    #[test]
    fn a_new_volume_does_not_get_the_data_of_one_that_had_its_name() {
        let place = |taken: &[&str], before: &Objects| {
            let taken = taken.iter().map(PathBuf::from).collect();
            let folder = VolumeFolder::new(Path::new("/volumes"), &taken, before);
            let mut objects = before.clone();
            let new = Edit::Apply(document("[[volume]]\nname = \"a\"\nsize = \"1MiB\""));
            new.carry_out(&mut objects, &folder).expect("valid");
            volume(&objects, "a").path.expect("a path").display().to_string()
        };
        assert_eq!(place(&[], &Objects::new()), "/volumes/a.img");
        let renamed = document("[[volume]]\nname = \"b\"\npath = \"/volumes/a.img\"");
        let renamed = renamed.into_objects().map(|object| (object.key(), Arc::new(object)));
        for path in [place(&["/volumes/a.img"], &Objects::new()), place(&[], &renamed.collect())] {
            assert!(path.ends_with(".img") && path.starts_with("/volumes/a-"), "{path}");
        }
    }
}
