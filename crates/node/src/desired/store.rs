//! Where the desired state is kept: one redb file in the server's state folder. A change is one transaction, so
//! that after kill -9 the state is the one before it or the one after it.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, PoisonError, RwLock};

use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};
use serde::{Deserialize, Serialize};
use tracing::warn;
use utoipa::ToSchema;

use super::object::{Key, Object, Objects};

/// Under the state folder, where volumes are whose place nobody names.
pub(crate) const VOLUMES: &str = "volumes";
const FILE: &str = "state.redb";
const FOLDER_MODE: u32 = 0o700;
/// What this version writes.
const FORMAT: u64 = 1;
/// Revisions whose history is kept.
const HISTORY: u64 = 10_000;

const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
/// How long the files of volumes are that are to become longer and may not have yet, by serial number.
const OWED: TableDefinition<'_, &str, u64> = TableDefinition::new("owed");
const REVISIONS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("revisions");

/// Why the state could not be opened, or a change not be kept.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The folder or the file cannot be made or opened.
    #[error("{}: {source} (the state folder has to be one that the server can write)", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another server has it.
    #[error("{} is used by another server: stop it, or choose another --state", .0.display())]
    InUse(PathBuf),
    /// It is not what this program wrote.
    #[error(
        "{} cannot be understood: {what} (restore it from a backup, or move it away and apply an \
         exported file)", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It could not be written; what was there before is there.
    #[error(
        "the change is not kept, and nothing was changed: {}: {what} (see whether its disk is full, \
         read-only or broken)", path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        what: String,
    },
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Revision {
    /// They count from 1 on.
    pub revision: u64,
    /// When, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// Who made it, as he says.
    pub author: String,
    /// What was done, a line each; of many, the first.
    pub summary: Vec<String>,
}

/// A thing that is put in its place, or taken away.
pub(super) type Write<'a> = (&'a Key, Option<&'a Object>);

/// The file.
pub struct Store {
    file: File,
}

/// What changes left in the file, for who reads it while another one is made.
pub(super) struct History {
    file: File,
}

#[derive(Clone)]
struct File {
    path: PathBuf,
    /// None after an error of the disk, until it is opened again. Who only uses it does not exclude others.
    database: Arc<RwLock<Option<Database>>>,
}

impl File {
    /// Does something with the database, which is opened again where an error has closed it.
    fn with<T>(&self, work: impl FnOnce(&Database) -> T) -> Result<T, StateError> {
        let read = || self.database.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = &*read() {
            return Ok(work(database));
        }
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if database.is_none() {
            // Who closed it has told why.
            *database = Some(open(&self.path, || {})?);
        }
        Ok(work(database.as_ref().expect("just opened")))
    }

    /// After an error of its disk, a database wants to be opened again.
    fn close(&self) {
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl History {
    /// The changes before the one of that number, the last of them first.
    pub(super) fn history(&self, before: u64, limit: usize) -> Result<Vec<Revision>, StateError> {
        let read = |database: &Database| -> Result<Vec<Revision>, String> {
            let transaction = database.begin_read().map_err(text)?;
            let table = transaction.open_table(REVISIONS).map_err(text)?;
            let entries = table.range(..before).map_err(text)?.rev().take(limit);
            let revision = |entry: Result<(_, redb::AccessGuard<'_, &[u8]>), _>| {
                let (_, body) = entry.map_err(text)?;
                serde_json::from_slice(body.value()).map_err(text)
            };
            entries.map(revision).collect()
        };
        self.file.with(read)?.map_err(|what| damaged(&self.file.path, what))
    }
}

impl Store {
    /// The state in this folder, which is made if there is none; nobody but its owner reads it.
    pub fn open(folder: &Path) -> Result<Self, StateError> {
        let wrong = |source| StateError::Open { path: folder.to_owned(), source };
        for folder in [folder, &folder.join(VOLUMES)] {
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(wrong)?;
        }
        let path = folder.join(FILE);
        let told = Once::new();
        let warn = || warn!("the state was not closed in good order and is looked through");
        let database = open(&path, move || told.call_once(warn))?;
        let store = Self { file: File { path, database: Arc::new(RwLock::new(Some(database))) } };
        store.check_format()?;
        Ok(store)
    }

    /// Reads what changes left beside this.
    pub(super) fn reader(&self) -> History {
        History { file: self.file.clone() }
    }

    fn check_format(&self) -> Result<(), StateError> {
        let path = &self.file.path;
        let check = |database: &Database| {
            let numbers = read_numbers(database).map_err(|error| damaged(path, error))?;
            match numbers.format {
                None => begin(database).map_err(|error| write_error(path, error)),
                Some(FORMAT) => Ok(()),
                Some(format) => Err(damaged(
                    path,
                    format!(
                        "it is of format {format}, and this version writes {FORMAT}: use a newer one"
                    ),
                )),
            }
        };
        self.file.with(check)?
    }

    /// All that is kept, and its revision.
    pub fn load(&self) -> Result<(Objects, u64), StateError> {
        let read = |database: &Database| -> Result<(Objects, u64), String> {
            let numbers = read_numbers(database)?;
            let transaction = database.begin_read().map_err(text)?;
            let table = transaction.open_table(OBJECTS).map_err(text)?;
            let mut objects = Objects::new();
            for entry in table.iter().map_err(text)? {
                let (key, body) = entry.map_err(text)?;
                let name = key.value();
                let wrong = |what: String| format!("{name}: {what}");
                let key = Key::parse(name).ok_or_else(|| wrong("an unknown kind".into()))?;
                let object = Object::from_json(key.kind, body.value());
                let object = object.map_err(|error| wrong(error.to_string()))?;
                objects.insert(key, Arc::new(object));
            }
            Ok((objects, numbers.revision))
        };
        self.file.with(read)?.map_err(|what| damaged(&self.file.path, what))
    }

    /// How long files are that are to become longer and may not have yet, by the serial numbers of their volumes.
    pub(super) fn owed(&self) -> Result<BTreeMap<String, u64>, StateError> {
        let read = |database: &Database| -> Result<BTreeMap<String, u64>, String> {
            let transaction = database.begin_read().map_err(text)?;
            let table = match transaction.open_table(OWED) {
                Ok(table) => table,
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
                Err(error) => return Err(text(error)),
            };
            let entry =
                |entry: Result<(redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, u64>), _>| {
                    let (serial, length) = entry.map_err(text)?;
                    Ok((serial.value().to_owned(), length.value()))
                };
            table.iter().map_err(text)?.map(entry).collect()
        };
        self.file.with(read)?.map_err(|what| damaged(&self.file.path, what))
    }

    /// Keeps that so much is owed, soon: it is on disk with the next change at the latest.
    pub(super) fn keep_owed(&self, owed: &BTreeMap<String, u64>) -> Result<(), StateError> {
        let keep = |database: &Database| -> Result<(), redb::Error> {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::None)?;
            write_owed(&transaction, owed)?;
            Ok(transaction.commit()?)
        };
        let result = self.file.with(keep)?;
        if result.is_err() {
            self.file.close();
        }
        result.map_err(|error| write_error(&self.file.path, error))
    }

    /// Keeps a change, whole; it is on disk when this returns. `writes` make of the revision before it `all` that
    /// there is with it, and `owed` is what files are short of until it is made.
    pub(super) fn commit(
        &self,
        revision: &Revision,
        writes: &[Write<'_>],
        all: &Objects,
        owed: &BTreeMap<String, u64>,
    ) -> Result<(), StateError> {
        let result = self.file.with(|database| keep(database, revision, writes, all, owed))?;
        if result.is_err() {
            self.file.close();
        }
        result.map_err(|error| write_error(&self.file.path, error))
    }
}

/// Opens it, or makes it. `repairing` is called, more than once, where it was not closed.
fn open(path: &Path, repairing: impl Fn() + 'static) -> Result<Database, StateError> {
    let wrong = |source| StateError::Open { path: path.to_owned(), source };
    let told = |error| match error {
        DatabaseError::DatabaseAlreadyOpen => StateError::InUse(path.to_owned()),
        DatabaseError::Storage(redb::StorageError::Io(source))
            if source.kind() != io::ErrorKind::InvalidData =>
        {
            wrong(source)
        }
        other => damaged(path, other),
    };
    if !path.exists() {
        make(path)?;
    }
    let file = OpenOptions::new().read(true).write(true).open(path);
    let database = Database::builder()
        .set_repair_callback(move |_| repairing())
        .create_with_backend(FileBackend::new(file.map_err(wrong)?).map_err(told)?);
    database.map_err(told)
}

/// An empty state, which is there whole and durably or not at all: half of one would be taken for a damaged one.
fn make(path: &Path) -> Result<(), StateError> {
    let wrong = |source| StateError::Open { path: path.to_owned(), source };
    let folder = path.parent().unwrap_or(Path::new("."));
    let new = tempfile::Builder::new().prefix(".new-state-").tempfile_in(folder).map_err(wrong)?;
    let whole = || -> Result<(), redb::Error> {
        let backend = FileBackend::new(new.reopen()?)?;
        begin(&Database::builder().create_with_backend(backend)?)
    };
    whole().map_err(|error| wrong(io::Error::other(error)))?;
    match new.persist_noclobber(path) {
        // Another server was quicker.
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
        persisted => drop(persisted.map_err(|error| wrong(error.error))?),
    }
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(wrong)
}

struct Numbers {
    format: Option<u64>,
    revision: u64,
}

fn read_numbers(database: &Database) -> Result<Numbers, String> {
    let transaction = database.begin_read().map_err(text)?;
    let table = match transaction.open_table(NUMBERS) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => {
            return Ok(Numbers { format: None, revision: 0 });
        }
        Err(error) => return Err(text(error)),
    };
    let number = |name| -> Result<Option<u64>, String> {
        Ok(table.get(name).map_err(text)?.map(|value| value.value()))
    };
    Ok(Numbers { format: number("format")?, revision: number("revision")?.unwrap_or(0) })
}

/// An empty state.
fn begin(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(OBJECTS)?;
    transaction.open_table(REVISIONS)?;
    transaction.open_table(NUMBERS)?.insert("format", FORMAT)?;
    transaction.commit()?;
    Ok(())
}

fn keep(
    database: &Database,
    revision: &Revision,
    writes: &[Write<'_>],
    all: &Objects,
    owed: &BTreeMap<String, u64>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    write_owed(&transaction, owed)?;
    {
        let mut numbers = transaction.open_table(NUMBERS)?;
        let kept = numbers.get("revision")?.map_or(0, |revision| revision.value());
        let mut objects = transaction.open_table(OBJECTS)?;
        // A change that was answered with an error may be on the disk all the same: then what is there is not
        // what the writes are made for.
        let whole: Vec<Write<'_>>;
        let writes = match kept + 1 == revision.revision {
            true => writes,
            false => {
                objects.retain(|_, _| false)?;
                whole = all.iter().map(|(key, object)| (key, Some(&**object))).collect();
                &whole
            }
        };
        for (key, object) in writes {
            let key = key.to_string();
            match object {
                Some(object) => {
                    let body = serde_json::to_vec(object).expect("our own types are JSON");
                    objects.insert(key.as_str(), body.as_slice())?;
                }
                None => {
                    objects.remove(key.as_str())?;
                }
            }
        }
        let mut revisions = transaction.open_table(REVISIONS)?;
        let body = serde_json::to_vec(revision).expect("our own types are JSON");
        revisions.insert(revision.revision, body.as_slice())?;
        if let Some(old) = revision.revision.checked_sub(HISTORY) {
            revisions.remove(old)?;
        }
        numbers.insert("revision", revision.revision)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Has the table say this.
fn write_owed(
    transaction: &WriteTransaction,
    owed: &BTreeMap<String, u64>,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(OWED)?;
    table.retain(|serial, _| owed.contains_key(serial))?;
    for (serial, length) in owed {
        table.insert(serial.as_str(), length)?;
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn damaged(path: &Path, what: impl std::fmt::Display) -> StateError {
    StateError::Damaged { path: path.to_owned(), what: what.to_string() }
}

fn write_error(path: &Path, error: redb::Error) -> StateError {
    StateError::Write { path: path.to_owned(), what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::document::Host;
    use super::*;

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

    #[test]
    fn what_was_kept_is_there_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let store = Store::open(&path).expect("opened");
        assert_eq!(store.load().expect("read"), (Objects::new(), 0));
        let (a, b) = (host("a"), host("b"));
        let all = |list: &[&Object]| -> Objects {
            list.iter().map(|object| (object.key(), Arc::new((*object).clone()))).collect()
        };
        let both = [(&a.key(), Some(&a)), (&b.key(), Some(&b))];
        store.commit(&revision(1), &both, &all(&[&a, &b]), &BTreeMap::new()).expect("kept");
        store
            .commit(&revision(2), &[(&a.key(), None)], &all(&[&b]), &BTreeMap::new())
            .expect("kept");
        assert!(matches!(Store::open(&path), Err(StateError::InUse(_))), "it is locked");
        drop(store);
        let store = Store::open(&path).expect("opened again");
        let (objects, number) = store.load().expect("read");
        assert_eq!((number, objects.len()), (2, 1));
        assert_eq!(*objects[&b.key()], b);
        let history = store.reader().history(u64::MAX, 5).expect("read");
        assert_eq!(history, [revision(2), revision(1)]);
        assert_eq!(store.reader().history(2, 5).expect("read"), [revision(1)]);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(path.join(FILE)).expect("a file").permissions(),
        );
        assert_eq!(mode & 0o777, 0o600, "it holds secrets");
    }

    #[test]
    fn a_change_that_was_kept_and_answered_with_an_error_is_not_half_of_the_next_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("opened");
        let (a, b) = (host("a"), host("b"));
        let only = |object: &Object| Objects::from([(object.key(), Arc::new(object.clone()))]);
        // Who asked for it was told that it is not kept.
        store
            .commit(&revision(1), &[(&a.key(), Some(&a))], &only(&a), &BTreeMap::new())
            .expect("kept");
        store
            .commit(&revision(1), &[(&b.key(), Some(&b))], &only(&b), &BTreeMap::new())
            .expect("kept");
        assert_eq!(store.load().expect("read"), (only(&b), 1));
    }

    #[test]
    fn the_history_is_read_while_a_change_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("opened");
        let a = host("a");
        let all = Objects::from([(a.key(), Arc::new(a.clone()))]);
        store.commit(&revision(1), &[(&a.key(), Some(&a))], &all, &BTreeMap::new()).expect("kept");
        let history = store.reader();
        let meanwhile = store.file.with(|database| {
            let _changing = database.begin_write().expect("begun");
            history.history(u64::MAX, 5)
        });
        assert_eq!(meanwhile.expect("open").expect("read"), [revision(1)]);
    }

    #[test]
    fn what_files_are_short_of_is_kept_with_the_change_and_forgotten_when_they_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, owed) = (host("a"), BTreeMap::from([("serial".to_owned(), 512)]));
        let store = Store::open(folder.path()).expect("a store");
        assert_eq!(store.owed().expect("read"), BTreeMap::new());
        let objects = Objects::from([(a.key(), Arc::new(a.clone()))]);
        store.commit(&revision(1), &[(&a.key(), Some(&a))], &objects, &owed).expect("kept");
        drop(store);
        let store = Store::open(folder.path()).expect("a store");
        assert_eq!(store.owed().expect("read"), owed);
        store.keep_owed(&BTreeMap::new()).expect("kept");
        assert_eq!(store.owed().expect("read"), BTreeMap::new());
    }

    #[test]
    fn what_is_no_state_is_told_with_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(FILE), b"something else").expect("written");
        let message = Store::open(folder.path()).err().expect("refused").to_string();
        assert!(message.contains("state.redb cannot be understood"), "{message}");
        let nowhere = Store::open(&folder.path().join(FILE).join("x")).err().expect("refused");
        assert!(matches!(nowhere, StateError::Open { .. }), "{nowhere}");
    }
}
