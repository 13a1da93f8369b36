//! The store of the desired state: two files with the same records ([`records`]) in the server's state folder, the
//! state and its copy. A change is one transaction in each, first in the state, and is acknowledged when both are on
//! disk. If one file is damaged or missing, the other one has all acknowledged changes. The server checks both
//! completely when it starts. It renames and replaces a damaged file, and reports this with an event. It refuses to
//! start if it cannot decide which file is right.

mod records;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;
use sarsen_io::file::{FileIdentity, lock_within};
use tokio::sync::watch;
use tracing::{error, warn};

use self::records::{Base, Head, RecordKind, Row};
use crate::database::{self, DatabaseError, Journal};
use crate::events::Occurrence;
use crate::model::{Key, Object, Objects, Revision};
use crate::private::VOLUMES;
use crate::stores::LOCK_TIMEOUT;

pub(super) const FILE: &str = "state.sqlite";
const COPY: &str = "state-copy.sqlite";
const STATE_JOURNAL: Journal = Journal::WriteAhead;
/// Between changes the copy is complete without any other file. If the log of the state is deleted after a crash, the copy
/// has all acknowledged changes.
const COPY_JOURNAL: Journal = Journal::Rollback;
/// Files of early development versions.
const OLD_FILE: &str = "state.redb";
/// Traces of an earlier state in a folder.
const TRACES: [&str; 5] = ["events.sqlite", "api.token", "api.pem", "api.key", VOLUMES];
const RESTORE: &str =
    "restore it, or its copy, from a backup, or apply an exported file in an empty folder";
const FOLDER_MODE: u32 = 0o700;
/// Number of revisions in the history.
const HISTORY: u64 = 10_000;

/// The reason why the state could not be opened, or why a change could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The folder or the file cannot be made or opened.
    #[error("{}: {source} (the server must be able to write to the state folder)", path.display())]
    Open {
        /// The folder or the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another server uses the folder.
    #[error("{} is used by another server: stop it, or choose another --state", .0.display())]
    InUse(PathBuf),
    /// The file is damaged, and its copy cannot replace it.
    #[error("{}: the state cannot be used: {what}; {remedy}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// The state has another revision than expected.
    #[error(
        "the state is at revision {current}, not {expected}; look again, and repeat the change"
    )]
    Conflict {
        /// The expected revision.
        expected: u64,
        /// The current revision.
        current: u64,
    },
    /// The change could not be written. The state is unchanged.
    #[error(
        "the change is not kept, and nothing was changed: {}: {what} (see whether its disk is full, \
         read-only or broken)", path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
}

/// An object to write, or to delete.
pub(super) type Write<'a> = (&'a Key, Option<&'a Object>);

/// A change of the stored state.
pub(super) struct Writes<'a> {
    /// The new revision, or `None` if only lengths of files change.
    pub(super) revision: Option<&'a Revision>,
    /// The objects that differ from the previous revision.
    pub(super) objects: Vec<Write<'a>>,
    /// All objects of the new revision.
    pub(super) all: &'a Objects,
    /// Current lengths of files that are to grow and may not have grown yet, by the serial numbers of their volumes.
    pub(super) length_before_growth: &'a BTreeMap<String, u64>,
}

/// The storage of the state.
pub(super) trait StateStore: Send {
    /// Stores a change as a whole, if the state is at the expected revision. The change is on disk when this returns.
    /// Returns an event if the copy of the state was lost or written again.
    fn commit(
        &self,
        expected_revision: u64,
        writes: &Writes<'_>,
    ) -> Result<Option<Occurrence>, StateError>;

    /// Returns a receiver of the revision, which is notified of each new one.
    fn watch(&self) -> watch::Receiver<u64>;

    /// Returns the changes before this revision, the latest first. Does not wait for a change.
    fn history(&self) -> Box<dyn History>;
}

/// A reader of the history of changes.
pub(super) trait History: Send + Sync {
    /// Returns the changes before this revision, the latest first.
    fn before(&self, revision: u64, limit: usize) -> Result<Vec<Revision>, StateError>;
}

/// The two files.
pub(super) struct Store {
    files: Arc<Mutex<Files>>,
    revision: watch::Sender<u64>,
}

/// The history of changes in the files.
struct FileHistory {
    files: Arc<Mutex<Files>>,
}

/// The content of the state at its opening.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) revision: u64,
    pub(super) objects: Objects,
    /// Current lengths of files that are to grow and may not have grown yet, by the serial numbers of their volumes.
    pub(super) length_before_growth: BTreeMap<String, u64>,
    /// The state was just created.
    pub(super) is_new: bool,
    /// The repairs at the opening.
    pub(super) repairs: Vec<Occurrence>,
}

struct Files {
    path: PathBuf,
    copy_path: PathBuf,
    /// `None` after an error, until it is opened again.
    main: Option<Connection>,
    /// `None` while there is no copy.
    copy: Option<Connection>,
    main_identity: Option<FileIdentity>,
    copy_identity: Option<FileIdentity>,
    /// The head of both files.
    head: Head,
    length_before_growth: BTreeMap<String, u64>,
    /// The state folder, locked against other servers.
    _lock: fs::File,
}

/// The result of checking a file.
enum Found {
    Whole(Connection, Head),
    Missing,
    Damaged(String),
}

impl History for FileHistory {
    fn before(&self, before: u64, limit: usize) -> Result<Vec<Revision>, StateError> {
        let mut files = self.files.lock();
        let path = files.path.clone();
        let bodies = files.main().and_then(|main| records::revisions(main, before, limit));
        let bodies = bodies.map_err(|error| needs_repair(&path, &error))?;
        let revisions = bodies.iter().map(|body| serde_json::from_slice(body));
        revisions.collect::<Result<_, _>>().map_err(|error| needs_repair(&path, &error))
    }
}

impl Store {
    /// Opens the state in this folder, or creates it. Only the owner of the folder can read it.
    pub(super) fn open(folder: &Path) -> Result<(Self, Contents), StateError> {
        let wrong = |source| StateError::Open { path: folder.to_owned(), source };
        for folder in [folder, &folder.join(VOLUMES)] {
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(wrong)?;
        }
        let (path, copy_path) = (folder.join(FILE), folder.join(COPY));
        let lock = fs::File::open(folder).map_err(wrong)?;
        if !lock_within(&lock, true, LOCK_TIMEOUT).map_err(wrong)? {
            return Err(StateError::InUse(folder.to_owned()));
        }
        if folder.join(OLD_FILE).exists() {
            return Err(StateError::Damaged {
                path: folder.join(OLD_FILE),
                what: "an early development version wrote it".into(),
                remedy: "export it with that version, and apply the file in an empty folder".into(),
            });
        }
        let mut contents = Contents::default();
        let (main, copy, head) = settle(&path, &copy_path, &mut contents)?;
        contents.revision = head.revision;
        let length_before_growth = contents.length_before_growth.clone();
        let (main_identity, copy_identity) =
            (FileIdentity::of_path(&path), FileIdentity::of_path(&copy_path));
        let files = Files {
            path,
            copy_path,
            main: Some(main),
            copy,
            main_identity,
            copy_identity,
            head,
            length_before_growth,
            _lock: lock,
        };
        let revision = watch::Sender::new(head.revision);
        Ok((Self { files: Arc::new(Mutex::new(files)), revision }, contents))
    }
}

impl StateStore for Store {
    fn commit(
        &self,
        expected_revision: u64,
        writes: &Writes<'_>,
    ) -> Result<Option<Occurrence>, StateError> {
        let mut files = self.files.lock();
        let current = files.head.revision;
        if current != expected_revision {
            return Err(StateError::Conflict { expected: expected_revision, current });
        }
        let event = files.keep(writes)?;
        let revision = files.head.revision;
        drop(files);
        self.revision.send_if_modified(|known| std::mem::replace(known, revision) != revision);
        Ok(event)
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    fn history(&self) -> Box<dyn History> {
        Box::new(FileHistory { files: self.files.clone() })
    }
}

impl Files {
    /// Returns the connection to the state. Opens it again if an error has closed it.
    fn main(&mut self) -> Result<&mut Connection, DatabaseError> {
        match &mut self.main {
            Some(main) => Ok(main),
            closed => Ok(closed.insert(records::reopen(&self.path, STATE_JOURNAL)?)),
        }
    }

    fn keep(&mut self, writes: &Writes<'_>) -> Result<Option<Occurrence>, StateError> {
        let &Writes { revision, ref objects, all, length_before_growth } = writes;
        let mut rows: Vec<Row> =
            objects.iter().map(|(key, object)| object_row(key, *object)).collect();
        let settled = self
            .length_before_growth
            .keys()
            .filter(|serial| !length_before_growth.contains_key(*serial));
        rows.extend(settled.map(|serial| owed_row(serial, None)));
        let pending = length_before_growth
            .iter()
            .filter(|(serial, length)| self.length_before_growth.get(*serial) != Some(length));
        rows.extend(pending.map(|(serial, length)| owed_row(serial, Some(*length))));
        rows.extend(revision.into_iter().flat_map(revision_rows));
        let number = revision.map(|revision| revision.revision);
        let before = self.head;
        if FileIdentity::of_path(&self.path) != self.main_identity {
            let what = "it was moved, deleted or replaced while the server ran: put it back, or start the server again";
            return Err(StateError::Write { path: self.path.clone(), what: what.into() });
        }
        // A change that was answered with an error may be on disk nevertheless. Then the rows do not fit the file, and
        // all records are written.
        let written = self.main().and_then(|main| {
            match records::write(main, Base::Head(&before), number, &rows)? {
                Some(head) => Ok(head),
                None if revision.is_none() => {
                    Err(DatabaseError::damaged("the last change is not known"))
                }
                None => {
                    let objects = all.iter().map(|(key, object)| object_row(key, Some(object)));
                    let length_before_growth = length_before_growth
                        .iter()
                        .map(|(serial, length)| owed_row(serial, Some(*length)));
                    let revision = revision.into_iter().flat_map(revision_rows);
                    let whole: Vec<Row> =
                        objects.chain(length_before_growth).chain(revision).collect();
                    let written = records::write(main, Base::Any, number, &whole)?;
                    written.ok_or_else(|| DatabaseError::damaged("it was not written"))
                }
            }
        });
        match written {
            Ok(head) => self.head = head,
            Err(error) => {
                self.main = None;
                return Err(StateError::Write { path: self.path.clone(), what: error.to_string() });
            }
        }
        self.length_before_growth.clone_from(length_before_growth);
        Ok(self.keep_copy(&before, number, &rows))
    }

    /// Updates the copy to the state. If that fails, the copy is deleted: an older copy must never replace the state.
    /// Returns the event to report.
    fn keep_copy(
        &mut self,
        before: &Head,
        revision: Option<u64>,
        rows: &[Row],
    ) -> Option<Occurrence> {
        if FileIdentity::of_path(&self.copy_path) != self.copy_identity {
            self.copy = None;
        }
        let write = |copy| records::write(copy, Base::Head(before), revision, rows);
        let why = match self.copy.as_mut().map(write) {
            Some(Ok(Some(head))) if head == self.head => return None,
            // All records of the state were written.
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some("it was missing or replaced".to_owned()),
        };
        let was_lost = self.copy.take().is_none() && self.copy_identity.is_none();
        self.copy_identity = None;
        let path = self.copy_path.display().to_string();
        if let Err(error) = database::remove(&self.copy_path) {
            error!(path, %error, "an old copy of the state cannot be deleted: delete it");
        }
        match (self.make_copy(), why) {
            (Ok(()), None) => None,
            (Ok(()), Some(why)) => Some(Occurrence::StateCopyReplaced { path, why }),
            // An event has reported this already.
            (Err(_), _) if was_lost => None,
            (Err(error), _) => Some(Occurrence::StateCopyLost { path, error: error.to_string() }),
        }
    }

    fn make_copy(&mut self) -> Result<(), DatabaseError> {
        let (path, head) = (self.copy_path.clone(), self.head);
        database::copy(self.main()?, &path)?;
        self.copy = Some(copied(&path, &head)?);
        self.copy_identity = FileIdentity::of_path(&path);
        Ok(())
    }
}

/// Opens the new copy, and checks that it equals the state.
fn copied(path: &Path, head: &Head) -> Result<Connection, DatabaseError> {
    match records::open(path, COPY_JOURNAL, |_, _, _| Ok(()))? {
        (copy, found) if found == *head => Ok(copy),
        _ => Err(DatabaseError::damaged("it is not what was copied")),
    }
}

/// Opens the state and its copy, and repairs them where possible.
fn settle(
    path: &Path,
    copy_path: &Path,
    contents: &mut Contents,
) -> Result<(Connection, Option<Connection>, Head), StateError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    database::sweep(folder).map_err(|source| StateError::Open { path: folder.into(), source })?;
    let had_log = database::has_log(path);
    let each = |kind, name: &str, body: &[u8]| contents.add(kind, name, body);
    let main = match records::open(path, STATE_JOURNAL, each) {
        Ok((main, head)) => Found::Whole(main, head),
        Err(DatabaseError::Damaged(what)) => Found::Damaged(what),
        Err(DatabaseError::System(error)) if error.kind() == io::ErrorKind::NotFound => {
            Found::Missing
        }
        Err(error) => return Err(not_opened(path, error)),
    };
    // A server starts even if it cannot read the copy.
    let copy = match records::open(copy_path, COPY_JOURNAL, |_, _, _| Ok(())) {
        Ok((copy, head)) => Found::Whole(copy, head),
        Err(DatabaseError::System(error)) if error.kind() == io::ErrorKind::NotFound => {
            Found::Missing
        }
        Err(error) => Found::Damaged(error.to_string()),
    };
    let refused = |what: String, remedy: String| {
        Err(StateError::Damaged { path: path.to_owned(), what, remedy })
    };
    let shown = copy_path.display();
    let why = match (main, copy) {
        (Found::Whole(main, head), Found::Whole(copy, copied)) if head == copied => {
            return Ok((main, Some(copy), head));
        }
        // The server was killed between the two transactions.
        (Found::Whole(main, head), Found::Whole(_, copied)) if head.commits > copied.commits => {
            return Ok(with_copy(main, head, copy_path, None, contents));
        }
        (Found::Whole(main, head), Found::Missing) => {
            let why = Some("it was missing".to_owned());
            return Ok(with_copy(main, head, copy_path, why, contents));
        }
        (Found::Whole(main, head), Found::Damaged(why)) => {
            let later = records::head_of_damaged(copy_path);
            if let Some(copied) = later.filter(|copied| copied.commits > head.commits) {
                let what = format!(
                    "it is at revision {}, and its copy {shown}, which is at revision {}, is damaged: {why}",
                    head.revision, copied.revision
                );
                let remedy =
                    format!("{RESTORE}; or move the copy away to continue without its changes");
                return refused(what, remedy);
            }
            return Ok(with_copy(main, head, copy_path, Some(why), contents));
        }
        (Found::Whole(_, head), Found::Whole(_, copied))
            if had_log && head.commits < copied.commits =>
        {
            "the end of its write-ahead log is missing".to_owned()
        }
        (Found::Whole(_, head), Found::Whole(_, copied)) => {
            let what = format!(
                "it is at revision {} (transaction {}) and its copy {shown} at revision {} (transaction {}): an \
                 older file replaced it, or its write-ahead log was deleted",
                head.revision, head.commits, copied.revision, copied.commits
            );
            let (path, later) = (path.display(), copied.commits > head.commits);
            let remedy = if later {
                format!(
                    "to keep the later changes, move {path} away; to drop them, move {shown} away"
                )
            } else {
                format!("move the wrong file away: {path} or {shown}")
            };
            return refused(what, remedy);
        }
        (Found::Damaged(why), Found::Whole(_, copied)) => {
            let later = records::head_of_damaged(path);
            if let Some(head) = later.filter(|head| head.commits > copied.commits) {
                let what = format!(
                    "{why}; it was at revision {}, and its copy {shown} is at {}",
                    head.revision, copied.revision
                );
                return refused(what, "move it away to continue with its copy".into());
            }
            why
        }
        (Found::Missing, Found::Whole(..)) => "it was missing".to_owned(),
        (Found::Missing, Found::Missing) => {
            if let Some(trace) = trace(folder) {
                let what =
                    format!("it is missing, and {} shows that there was one", trace.display());
                return refused(what, format!("{RESTORE}, or choose an empty folder"));
            }
            contents.is_new = true;
            records::create(path).map_err(|error| not_opened(path, error))?;
            let opened = records::open(path, STATE_JOURNAL, |_, _, _| Ok(()));
            let (main, head) = opened.map_err(|error| not_opened(path, error))?;
            return Ok(with_copy(main, head, copy_path, None, contents));
        }
        (Found::Missing, Found::Damaged(why)) => {
            return refused(
                format!("it is missing, and its copy {shown} is damaged: {why}"),
                RESTORE.into(),
            );
        }
        (Found::Damaged(why), Found::Missing) => {
            return refused(format!("{why}; its copy {shown} is missing"), RESTORE.into());
        }
        (Found::Damaged(why), Found::Damaged(copy)) => {
            return refused(format!("{why}; its copy {shown}: {copy}"), RESTORE.into());
        }
    };
    repair(path, copy_path, why, contents).map_err(|error| not_opened(path, error))
}

/// Returns the state with a new copy, if that can be created. Without a reason, only the log reports the new copy.
fn with_copy(
    main: Connection,
    head: Head,
    path: &Path,
    why: Option<String>,
    contents: &mut Contents,
) -> (Connection, Option<Connection>, Head) {
    let shown = path.display().to_string();
    let made = database::copy(&main, path).and_then(|()| copied(path, &head));
    match (&made, why) {
        (Ok(_), None) => {}
        (Ok(_), Some(why)) => {
            warn!(path = shown, why, "the copy of the state was replaced");
            contents.repairs.push(Occurrence::StateCopyReplaced { path: shown, why });
        }
        (Err(error), _) => {
            error!(path = shown, %error, "the state has no copy");
            let error = error.to_string();
            contents.repairs.push(Occurrence::StateCopyLost { path: shown, error });
            // An old copy could later be taken for the last acknowledged state.
            if let Err(error) = database::remove(path) {
                error!(path = %path.display(), %error, "an old copy of the state cannot be deleted: delete it");
            }
        }
    }
    (main, made.ok(), head)
}

/// Replaces the state with its intact copy.
fn repair(
    path: &Path,
    copy_path: &Path,
    why: String,
    contents: &mut Contents,
) -> Result<(Connection, Option<Connection>, Head), DatabaseError> {
    let aside = path.exists().then(|| database::put_aside(path)).transpose()?;
    let aside = aside.map(|aside| aside.display().to_string());
    let (copy, copied) = records::open(copy_path, COPY_JOURNAL, |_, _, _| Ok(()))?;
    database::copy(&copy, path)?;
    *contents = Contents::default();
    let each = |kind, name: &str, body: &[u8]| contents.add(kind, name, body);
    let (main, head) = records::open(path, STATE_JOURNAL, each)?;
    if head != copied {
        return Err(DatabaseError::damaged("it is not what was copied"));
    }
    let (path, revision) = (path.display().to_string(), head.revision);
    warn!(path, why, aside, revision, "the state was repaired from its copy");
    contents.repairs.push(Occurrence::StateRepaired { path, why, aside, revision });
    Ok((main, Some(copy), head))
}

/// Returns a trace of an earlier state in a folder.
fn trace(folder: &Path) -> Option<PathBuf> {
    TRACES.iter().map(|name| folder.join(name)).find(|path| is_filled(path))
}

/// Returns whether there is a file, or a folder that is not empty.
fn is_filled(path: &Path) -> bool {
    match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => path.exists(),
    }
}

impl Contents {
    fn add(&mut self, kind: RecordKind, name: &str, body: &[u8]) -> Result<(), String> {
        match kind {
            RecordKind::Object => {
                let key = Key::parse(name).ok_or("its kind is unknown")?;
                let object =
                    Object::from_json(key.kind, body).map_err(|error| error.to_string())?;
                self.objects.insert(key, Arc::new(object));
            }
            RecordKind::Growth => {
                let length = std::str::from_utf8(body).ok().and_then(|digits| digits.parse().ok());
                self.length_before_growth.insert(name.to_owned(), length.ok_or("it is no number")?);
            }
            RecordKind::Revision => {}
        }
        Ok(())
    }
}

fn object_row(key: &Key, object: Option<&Object>) -> Row {
    let body = object.map(|object| serde_json::to_vec(object).expect("our own types are JSON"));
    Row { kind: RecordKind::Object, name: key.to_string(), body }
}

fn owed_row(serial: &str, length: Option<u64>) -> Row {
    let body = length.map(|length| length.to_string().into_bytes());
    Row { kind: RecordKind::Growth, name: serial.to_owned(), body }
}

/// Returns the rows that write a revision, and delete one that is too old.
fn revision_rows(revision: &Revision) -> impl Iterator<Item = Row> {
    let body = serde_json::to_vec(revision).expect("our own types are JSON");
    let old = revision.revision.checked_sub(HISTORY).map(|old| revision_row(old, None));
    [Some(revision_row(revision.revision, Some(body))), old].into_iter().flatten()
}

fn revision_row(revision: u64, body: Option<Vec<u8>>) -> Row {
    Row { kind: RecordKind::Revision, name: records::revision_name(revision), body }
}

fn needs_repair(path: &Path, error: &dyn std::error::Error) -> StateError {
    StateError::Damaged {
        path: path.to_owned(),
        what: error.to_string(),
        remedy: "start the server again, which repairs the state from its copy".into(),
    }
}

fn not_opened(path: &Path, error: DatabaseError) -> StateError {
    let path = path.to_owned();
    match error {
        DatabaseError::InUse => StateError::InUse(path),
        DatabaseError::System(source) => StateError::Open { path, source },
        DatabaseError::Failed(error) => StateError::Open { path, source: io::Error::other(error) },
        DatabaseError::Damaged(what) => StateError::Damaged { path, what, remedy: RESTORE.into() },
    }
}

#[cfg(test)]
mod tests;
