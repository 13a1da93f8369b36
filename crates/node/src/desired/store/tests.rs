use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::model::document::Host;

fn host(name: &str) -> Object {
    Object::Host(Host { name: name.to_owned(), ..Host::default() })
}

fn revision(number: u64) -> Revision {
    Revision {
        revision: number,
        at_unix_seconds: 0,
        author: "test".into(),
        summary: vec![format!("change {number}")],
    }
}

fn all(list: &[&Object]) -> Objects {
    list.iter().map(|object| (object.key(), Arc::new((*object).clone()))).collect()
}

/// Stores a change of these objects, so that the state has `all` of these.
fn commit(
    store: &Store,
    number: u64,
    objects: Vec<Write<'_>>,
    all: &Objects,
    length_before_growth: &BTreeMap<String, u64>,
) -> Result<Option<Occurrence>, StateError> {
    let revision = revision(number);
    let writes = Writes { revision: Some(&revision), objects, all, length_before_growth };
    store.commit(number - 1, &writes)
}

/// Stores each of the names in turn as the only host, each in its own revision.
fn keep(store: &Store, from: u64, names: &[&str]) {
    for (number, name) in (from..).zip(names) {
        let host = host(name);
        let key = host.key();
        let reported =
            commit(store, number, vec![(&key, Some(&host))], &all(&[&host]), &BTreeMap::new());
        assert!(reported.expect("kept").is_none());
    }
}

fn opened(folder: &Path) -> (Store, Contents) {
    Store::open(folder).expect("opened")
}

fn refusal(folder: &Path) -> String {
    Store::open(folder).err().expect("refused").to_string()
}

fn kinds(contents: &Contents) -> Vec<&str> {
    let repairs = contents.repairs.iter().map(|repair| match repair {
        Occurrence::StateRepaired { .. } => "repaired",
        Occurrence::StateCopyReplaced { .. } => "copy replaced",
        other => panic!("{other:?}"),
    });
    repairs.collect()
}

#[test]
fn stored_state_is_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    let (store, contents) = opened(&path);
    assert!(contents.is_new && contents.objects.is_empty() && contents.revision == 0);
    let (a, b) = (host("a"), host("b"));
    let (first, second) = (a.key(), b.key());
    let both = vec![(&first, Some(&a)), (&second, Some(&b))];
    let (none, mut revisions) = (BTreeMap::new(), store.watch());
    commit(&store, 1, both, &all(&[&a, &b]), &none).expect("kept");
    let outdated = commit(&store, 1, vec![(&first, None)], &all(&[&b]), &none);
    assert!(matches!(outdated, Err(StateError::Conflict { expected: 0, current: 1 })));
    commit(&store, 2, vec![(&first, None)], &all(&[&b]), &none).expect("kept");
    assert!(revisions.has_changed().expect("the store is there"));
    assert_eq!(*revisions.borrow_and_update(), 2);
    assert!(matches!(Store::open(&path), Err(StateError::InUse(_))), "it is locked");
    drop(store);
    let (store, contents) = opened(&path);
    assert_eq!((contents.revision, contents.objects), (2, all(&[&b])));
    assert!(!contents.is_new && contents.repairs.is_empty());
    let history = store.history().before(u64::MAX, 5).expect("read");
    assert_eq!(history, [revision(2), revision(1)]);
    assert_eq!(store.history().before(2, 5).expect("read"), [revision(1)]);
    for entry in fs::read_dir(&path).expect("a folder").flatten() {
        let metadata = entry.metadata().expect("a file");
        let mode = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{entry:?} holds secrets");
    }
}

#[test]
fn a_change_that_was_kept_and_answered_with_an_error_is_not_half_of_the_next_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = opened(folder.path());
    let (a, b) = (host("a"), host("b"));
    let before = store.files.lock().head;
    keep(&store, 1, &["a"]);
    // The client received an error, so the store still expects the previous head.
    store.files.lock().head = before;
    let key = b.key();
    let reported = commit(&store, 1, vec![(&key, Some(&b))], &all(&[&b]), &BTreeMap::new());
    assert!(reported.expect("kept").is_none());
    drop(store);
    let (_, contents) = opened(folder.path());
    assert_eq!((contents.objects, contents.revision), (all(&[&b]), 1));
    assert!(contents.repairs.is_empty() && !all(&[&a]).is_empty());
}

#[test]
fn missing_length_of_files_is_stored_until_they_have_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (a, length_before_growth) = (host("a"), BTreeMap::from([("serial".to_owned(), 512)]));
    let (store, _) = opened(folder.path());
    let key = a.key();
    commit(&store, 1, vec![(&key, Some(&a))], &all(&[&a]), &length_before_growth).expect("kept");
    drop(store);
    let (store, contents) = opened(folder.path());
    assert_eq!(contents.length_before_growth, length_before_growth);
    let (objects, none) = (all(&[&a]), BTreeMap::new());
    let lengths =
        Writes { revision: None, objects: Vec::new(), all: &objects, length_before_growth: &none };
    store.commit(1, &lengths).expect("kept");
    drop(store);
    assert_eq!(opened(folder.path()).1.length_before_growth, BTreeMap::new());
}

#[test]
fn invalid_state_without_copy_is_refused_with_path() {
    let folder = tempfile::tempdir().expect("a folder");
    for (content, reported) in [("something else", "not a database"), ("", "it is empty")] {
        fs::write(folder.path().join(FILE), content).expect("written");
        let message = refusal(folder.path());
        assert!(message.contains("state.sqlite: the state cannot be used"), "{message}");
        assert!(message.contains(reported) && message.contains("from a backup"), "{message}");
        assert_eq!(fs::read(folder.path().join(FILE)).expect("read"), content.as_bytes());
    }
    let nowhere = Store::open(&folder.path().join(FILE).join("x")).err().expect("refused");
    assert!(matches!(nowhere, StateError::Open { .. }), "{nowhere}");
    fs::remove_file(folder.path().join(FILE)).expect("removed");
    fs::write(folder.path().join(OLD_FILE), "old").expect("written");
    assert!(refusal(folder.path()).contains("early development version"));
}

#[test]
fn a_folder_that_has_had_a_state_gets_no_empty_one() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join(VOLUMES)).expect("made");
    drop(opened(folder.path()));
    let remove = || {
        for file in [FILE, COPY] {
            let _ = fs::remove_file(folder.path().join(file));
        }
    };
    for trace in ["events.sqlite", "api.token", "volumes/data.img"] {
        remove();
        fs::write(folder.path().join(trace), "x").expect("written");
        let message = refusal(folder.path());
        assert!(message.contains("it is missing") && message.contains("shows"), "{message}");
        fs::remove_file(folder.path().join(trace)).expect("removed");
    }
    assert!(opened(folder.path()).1.is_new);
}

#[test]
fn a_state_that_is_damaged_or_missing_is_repaired_from_its_copy_and_put_aside() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(FILE);
    let (store, _) = opened(folder.path());
    keep(&store, 1, &["a", "b"]);
    drop(store);
    let whole = fs::read(&path).expect("read");
    let mut damages: Vec<Vec<u8>> =
        vec![Vec::new(), b"text".to_vec(), whole[..whole.len() / 2].to_vec()];
    // Damages the header of SQLite, and then each occurrence of a text: SQLite leaves old copies of a text in the file.
    for place in [18, 28, 100] {
        let mut damaged = whole.clone();
        damaged[place] ^= 0x01;
        damages.push(damaged);
    }
    let mut damaged = whole.clone();
    let places = whole.windows(8).enumerate().filter(|(_, bytes)| *bytes == b"change 2");
    places.for_each(|(place, _)| damaged[place + 7] = b'3');
    assert_ne!(damaged, whole);
    damages.push(damaged);
    for (number, damage) in damages.iter().enumerate() {
        fs::write(&path, damage).expect("written");
        let (store, contents) = opened(folder.path());
        assert_eq!(kinds(&contents), ["repaired"], "{number}");
        assert_eq!((contents.revision, contents.objects), (2, all(&[&host("b"), &host("a")])));
        drop(store);
        assert!(opened(folder.path()).1.repairs.is_empty());
    }
    fs::remove_file(&path).expect("removed");
    assert_eq!(kinds(&opened(folder.path()).1), ["repaired"]);
    let names = fs::read_dir(folder.path()).expect("a folder").flatten();
    let aside = names.filter(|entry| entry.file_name().to_string_lossy().contains("damaged"));
    assert_eq!(aside.count(), 3, "there is an end to how many are kept");
}

/// Stores revisions 1 and 2. Returns the content of the file after the first.
fn superseded(folder: &Path, path: &Path) -> Vec<u8> {
    let (store, _) = opened(folder);
    keep(&store, 1, &["a"]);
    drop(store);
    let old = fs::read(path).expect("read");
    let (store, _) = opened(folder);
    keep(&store, 2, &["b"]);
    drop(store);
    old
}

#[test]
fn a_copy_that_is_damaged_missing_or_behind_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(COPY);
    let old = superseded(folder.path(), &path);
    // The copy is behind, as after a kill between the two transactions: no event.
    for (content, repairs) in [
        (Some(old), vec![]),
        (Some(b"x".to_vec()), vec!["copy replaced"]),
        (None, vec!["copy replaced"]),
    ] {
        match content {
            Some(content) => fs::write(&path, content).expect("written"),
            None => fs::remove_file(&path).expect("removed"),
        }
        let (_, contents) = opened(folder.path());
        assert_eq!((contents.revision, kinds(&contents)), (2, repairs));
        assert!(opened(folder.path()).1.repairs.is_empty());
    }
}

#[test]
fn an_older_state_in_the_place_of_the_last_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(FILE);
    let old = superseded(folder.path(), &path);
    fs::write(&path, old).expect("written");
    let message = refusal(folder.path());
    assert!(message.contains("revision 1") && message.contains("revision 2"), "{message}");
    assert!(message.contains("to keep the later changes, move "), "{message}");
    // The remedy of the message.
    fs::remove_file(&path).expect("removed");
    assert_eq!(opened(folder.path()).1.revision, 2);
}

#[test]
fn a_damaged_state_that_is_later_than_its_copy_is_not_replaced_by_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join(FILE), folder.path().join(COPY));
    let (store, _) = opened(folder.path());
    keep(&store, 1, &["a"]);
    drop(store);
    let old = fs::read(&copy).expect("read");
    let (store, _) = opened(folder.path());
    keep(&store, 2, &["b"]);
    drop(store);
    fs::write(&copy, old).expect("written");
    let mut damaged = fs::read(&path).expect("read");
    let name = damaged.windows(8).position(|bytes| bytes == b"change 2").expect("it is there");
    damaged[name + 7] = b'3';
    fs::write(&path, damaged).expect("written");
    let message = refusal(folder.path());
    assert!(message.contains("its checksum is wrong"), "{message}");
    assert!(message.contains("it was at revision 2") && message.contains("is at 1"), "{message}");
    fs::remove_file(&path).expect("removed");
    assert_eq!(opened(folder.path()).1.revision, 1);
}

/// Returns the folder as it is after a kill.
fn after_a_kill(folder: &Path) -> tempfile::TempDir {
    let killed = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), killed.path().join(entry.file_name())).expect("copied");
        }
    }
    killed
}

#[test]
fn no_change_is_lost_if_the_logs_are_deleted_after_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = opened(folder.path());
    keep(&store, 1, &["a", "b"]);
    let killed = after_a_kill(folder.path());
    for entry in fs::read_dir(killed.path()).expect("a folder").flatten() {
        if entry.path().extension().is_none_or(|extension| extension != "sqlite") {
            fs::remove_file(entry.path()).expect("removed");
        }
    }
    let message = refusal(killed.path());
    assert!(message.contains("revision 0") && message.contains("revision 2"), "{message}");
    // A copy that was also being written is no reason to take the older state.
    let copy = killed.path().join(COPY);
    let whole = fs::read(&copy).expect("read");
    let mut damaged = whole.clone();
    let name = damaged.windows(8).position(|bytes| bytes == b"change 2").expect("it is there");
    damaged[name + 7] = b'3';
    fs::write(&copy, damaged).expect("written");
    let message = refusal(killed.path());
    assert!(message.contains("its checksum is wrong"), "{message}");
    fs::write(&copy, whole).expect("written");
    // The remedy of the message.
    fs::remove_file(killed.path().join(FILE)).expect("removed");
    assert_eq!(opened(killed.path()).1.revision, 2);
}

#[test]
fn no_change_is_written_to_a_file_that_has_lost_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = opened(folder.path());
    keep(&store, 1, &["a"]);
    let (path, copy) = (folder.path().join(FILE), folder.path().join(COPY));
    let aside = folder.path().join("aside");
    fs::rename(&path, &aside).expect("renamed");
    let b = host("b");
    let key = b.key();
    let keep_b = |number| {
        let objects = vec![(&key, Some(&b))];
        commit(&store, number, objects, &all(&[&b]), &BTreeMap::new())
    };
    for other in [false, true] {
        if other {
            fs::copy(&aside, &path).expect("copied");
        }
        let refused = keep_b(2).expect_err("it would be lost").to_string();
        assert!(refused.contains("moved, deleted or replaced"), "{refused}");
    }
    fs::rename(&aside, &path).expect("renamed");
    fs::remove_file(&copy).expect("removed");
    assert!(matches!(keep_b(2), Ok(Some(Occurrence::StateCopyReplaced { .. }))));
    drop(store);
    let (_, contents) = opened(folder.path());
    assert!(contents.revision == 2 && contents.repairs.is_empty());
}

#[test]
fn a_log_that_is_cut_off_after_a_kill_is_made_good_by_the_copy() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = opened(folder.path());
    keep(&store, 1, &["a", "b"]);
    let killed = after_a_kill(folder.path());
    let log = killed.path().join("state.sqlite-wal");
    let mut bytes = fs::read(&log).expect("a log");
    let last = bytes.len() - 1;
    bytes[last] ^= 0x80;
    fs::write(&log, bytes).expect("written");
    let (_, contents) = opened(killed.path());
    assert_eq!((contents.revision, kinds(&contents)), (2, vec!["repaired"]));
}

#[test]
fn a_copy_that_cannot_be_written_is_not_left_behind_to_be_taken_for_the_last_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = opened(folder.path());
    keep(&store, 1, &["a"]);
    // A folder at the path of the copy prevents a new copy.
    store.files.lock().copy = Some(Connection::open_in_memory().expect("opened"));
    let copy = folder.path().join(COPY);
    fs::remove_file(&copy).expect("removed");
    fs::create_dir(&copy).expect("made");
    fs::write(copy.join("x"), "").expect("written");
    let b = host("b");
    let key = b.key();
    let keep_b = |number| {
        let objects = vec![(&key, Some(&b))];
        commit(&store, number, objects, &all(&[&b]), &BTreeMap::new()).expect("kept")
    };
    assert!(matches!(keep_b(2), Some(Occurrence::StateCopyLost { .. })));
    assert!(keep_b(3).is_none(), "it is told once");
    fs::remove_dir_all(&copy).expect("removed");
    assert!(matches!(keep_b(4), Some(Occurrence::StateCopyReplaced { .. })));
    drop(store);
    let (_, contents) = opened(folder.path());
    assert!(contents.revision == 4 && contents.repairs.is_empty());
}
