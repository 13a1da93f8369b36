//! The archive: all runs of this machine, in one SQLite file that other tools can read.
//!
//! Each sample is committed when it is taken, so that an interruption of a run loses one measurement. Each row has a
//! checksum: a damaged figure is never shown.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, params};
use sarsen_node::database::{self, CHECKSUM_LENGTH, DatabaseError, Schema, checksum};

use crate::record::{Run, Sample, Scale, Setting};

const FILE_NAME: &str = "lab.sqlite";
/// The state folder of the packaged service.
const SERVICE_FOLDER: &str = "/var/lib/sarsen";
const FILE_MODE: u32 = 0o644;
/// The version of the tables, which the file must have; each change of the tables increases it.
const VERSION: i32 = 2;
/// Maximum time for which another process may lock the file.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

const SCHEMA: Schema = Schema {
    version: VERSION,
    tables: &[
        "CREATE TABLE run (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            study TEXT NOT NULL,
            scale TEXT NOT NULL,
            command TEXT NOT NULL,
            targets_under_test TEXT NOT NULL,
            began_at INTEGER NOT NULL,
            ended_at INTEGER,
            setting TEXT NOT NULL,
            checksum BLOB NOT NULL
        ) STRICT",
        "CREATE TABLE sample (
            run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            labels TEXT NOT NULL,
            repetition INTEGER NOT NULL,
            ended_at INTEGER NOT NULL,
            outcome TEXT NOT NULL,
            checksum BLOB NOT NULL,
            PRIMARY KEY (run, position)
        ) STRICT, WITHOUT ROWID",
    ],
};
/// The columns of a run, in the order of [`Columns`].
const COLUMNS: &str =
    "id, study, scale, command, targets_under_test, began_at, ended_at, setting, checksum";

/// A reason why the archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Its folder cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The content differs from what was written.
    #[error(
        "the archive {} is damaged: {what}; restore it from a backup, or move it away: the next run \
         then creates a new archive", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// SQLite reports an error.
    #[error("the archive {}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        source: rusqlite::Error,
    },
    /// The file belongs to a newer or another program.
    #[error(
        "the archive {} has version {found}, and this program supports version {VERSION}; move it \
         away, or use the program that created it", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i32,
    },
    /// A row differs from what was written.
    #[error("the archive {}: {what} cannot be read: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The part of the archive.
        what: &'static str,
        /// The damage.
        #[source]
        source: serde_json::Error,
    },
    /// The run does not exist.
    #[error("the archive {} has no run {id}", path.display())]
    NoSuchRun {
        /// The file.
        path: PathBuf,
        /// The requested run.
        id: i64,
    },
    /// Another process uses the run.
    #[error("run {id} of the archive {} is in progress in another process; wait until it has ended", path.display())]
    Held {
        /// The file.
        path: PathBuf,
        /// The requested run.
        id: i64,
    },
    /// The lock of a run failed.
    #[error("cannot lock {}: {source}", path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// The lock of a run: no other process adds to the run or removes it. The lock ends with the process.
#[derive(Debug)]
pub struct RunLock {
    /// A file next to the archive, because SQLite locks the archive itself.
    path: PathBuf,
    /// The locked file.
    _file: File,
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // The remaining file is empty; a later process locks it again.
        let _ = fs::remove_file(&self.path);
    }
}

/// An open archive.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    connection: Connection,
}

/// The result of a change of one run.
enum RunChange {
    Applied,
    NoSuchRun,
}

fn usual_path(
    variable: impl Fn(&str) -> Option<PathBuf>,
    is_root: bool,
    exists: &dyn Fn(&Path) -> bool,
) -> PathBuf {
    // systemd sets this variable for the service only.
    let folders = variable("STATE_DIRECTORY").unwrap_or_default();
    if let Some(folder) = std::env::split_paths(&folders).find(|folder| folder.is_absolute()) {
        return folder.join(FILE_NAME);
    }
    let own = variable("XDG_STATE_HOME")
        .filter(|folder| folder.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_default()
        .join("sarsen")
        .join(FILE_NAME);
    let service = Path::new(SERVICE_FOLDER);
    let shared = service.join(FILE_NAME);
    // If root has an archive already, it stays in use.
    if is_root && exists(service) && (exists(&shared) || !exists(&own)) { shared } else { own }
}

impl Archive {
    /// The path of the archive unless an argument names another. For the packaged service, and for root on a machine
    /// with that service, the archive is in the service's state folder, so that the console shows root's
    /// measurements. For other users it is `$XDG_STATE_HOME/sarsen/lab.sqlite`, or the same under `~/.local/state`;
    /// for a user without a home it is in the current folder.
    pub fn usual_path() -> PathBuf {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let is_root = sarsen_io::machine::effective_user() == 0;
        usual_path(variable, is_root, &|path| path.exists())
    }

    /// Opens the archive; creates it if it is missing.
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|source| ArchiveError::Folder { path: folder.into(), source })?;
        }
        if !path.exists() {
            database::create(path, SCHEMA, |_| Ok(())).map_err(|error| not_used(path, error))?;
            // The archive holds no secrets: the service shows root's measurements.
            fs::set_permissions(path, fs::Permissions::from_mode(FILE_MODE))
                .map_err(|source| ArchiveError::Folder { path: path.into(), source })?;
        }
        // SQLite would take an empty file for a new database.
        if fs::metadata(path).is_ok_and(|file| file.len() == 0) {
            return Err(ArchiveError::Damaged { path: path.into(), what: "it is empty".into() });
        }
        let (connection, found) = connect(path).map_err(|error| not_used(path, error.into()))?;
        if found != VERSION {
            return Err(ArchiveError::Version { path: path.into(), found });
        }
        database::check_integrity(&connection).map_err(|error| not_used(path, error))?;
        Ok(Self { path: path.into(), connection })
    }

    /// Stores the begin of a run and returns its number. Ignores its `id`, `ended_at` and `samples`.
    pub fn begin(&self, run: &Run) -> Result<i64, ArchiveError> {
        let setting = self.json(&run.setting, "its setting")?;
        let targets_under_test = self.json(&run.targets_under_test, "its targets under test")?;
        let scale = run.scale.to_string();
        let columns = Columns {
            id: 0,
            study: run.study.clone(),
            scale,
            command: run.command.clone(),
            targets_under_test,
            began_at: run.began_at as i64,
            ended_at: None,
            setting,
        };
        let begun = self.transaction(|transaction| {
            let row = format!(
                "INSERT INTO run ({COLUMNS}) VALUES (nullif(?1, 0), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
            );
            columns.write(transaction, &row)?;
            // The checksum includes the run's number, which is known only now.
            let id = transaction.last_insert_rowid();
            Columns { id, ..columns }.write(transaction, UPDATE)?;
            Ok(id)
        });
        begun.map_err(|source| self.database(source))
    }

    /// Stores the setting of a run.
    pub fn set_setting(&self, id: i64, setting: &Setting) -> Result<(), ArchiveError> {
        let setting = self.json(setting, "its setting")?;
        self.amend(id, |run| run.setting = setting)
    }

    /// Stores a sample.
    pub fn add(&self, id: i64, sample: &Sample) -> Result<(), ArchiveError> {
        let labels = self.json(&sample.labels, "a sample's labels")?;
        let outcome = self.json(&sample.outcome, "a sample's outcome")?;
        let Sample { repetition, ended_at, .. } = *sample;
        let ended_at = ended_at as i64;
        let added = self.transaction(|transaction| {
            if Columns::read(transaction, id)?.is_none() {
                return Ok(RunChange::NoSuchRun);
            }
            let position: i64 = transaction.query_row(
                "SELECT coalesce(max(position) + 1, 0) FROM sample WHERE run = ?1",
                [id],
                |row| row.get(0),
            )?;
            let sum = sample_sum((id, position), &labels, repetition, ended_at, &outcome);
            transaction.execute(
                "INSERT INTO sample VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![id, position, labels, repetition, ended_at, outcome, sum],
            )?;
            Ok(RunChange::Applied)
        });
        self.check_applied(id, added)
    }

    /// Marks a run as complete.
    pub fn end(&self, id: i64, ended_at: u64) -> Result<(), ArchiveError> {
        self.amend(id, |run| run.ended_at = Some(ended_at as i64))
    }

    /// Locks a run.
    pub fn hold(&self, id: i64) -> Result<RunLock, ArchiveError> {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".run-{id}"));
        let path = PathBuf::from(path);
        let failed = |source| ArchiveError::Lock { path: path.clone(), source };
        loop {
            let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(ArchiveError::Held { path: self.path.clone(), id });
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
            // The previous owner of the lock can have removed the file; other processes then lock another file.
            let ours = file.metadata().map_err(failed)?.ino();
            if fs::metadata(&path).is_ok_and(|metadata| metadata.ino() == ours) {
                return Ok(RunLock { path, _file: file });
            }
        }
    }

    /// Deletes the failed and unmeasured samples of a run, so that they are measured again.
    pub fn forget_failures(&self, id: i64) -> Result<(), ArchiveError> {
        self.connection
            .execute(
                "DELETE FROM sample WHERE run = ?1 AND outcome NOT LIKE '{\"measured\":%'",
                params![id],
            )
            .map_err(|source| self.database(source))?;
        Ok(())
    }

    /// Deletes a run that no process uses.
    pub fn remove(&self, id: i64) -> Result<(), ArchiveError> {
        let _hold = self.hold(id)?;
        let removed = self.connection.execute("DELETE FROM run WHERE id = ?1", [id]);
        let removed = removed.map(|rows| match rows {
            0 => RunChange::NoSuchRun,
            _ => RunChange::Applied,
        });
        self.check_applied(id, removed)
    }

    /// Returns a run with its samples.
    pub fn run(&self, id: i64) -> Result<Run, ArchiveError> {
        let mut runs = self.select("WHERE id = ?1", params![id])?;
        let mut run =
            runs.pop().ok_or_else(|| ArchiveError::NoSuchRun { path: self.path.clone(), id })?;
        run.samples = self.samples(id)?;
        Ok(run)
    }

    /// Returns all runs, the oldest first, without their samples.
    pub fn runs(&self) -> Result<Vec<Run>, ArchiveError> {
        self.select("ORDER BY id", params![])
    }

    /// Returns the newest unfinished run of a study with this scale and these targets under test.
    pub fn unfinished(
        &self,
        study: &str,
        scale: Scale,
        targets_under_test: &[String],
    ) -> Result<Option<i64>, ArchiveError> {
        let targets_under_test = self.json(&targets_under_test, "targets under test")?;
        self.connection
            .query_row(
                "SELECT id FROM run WHERE study = ?1 AND scale = ?2 AND targets_under_test = ?3
                 AND ended_at IS NULL ORDER BY id DESC LIMIT 1",
                params![study, scale.to_string(), targets_under_test],
                |row| row.get(0),
            )
            .optional()
            .map_err(|source| self.database(source))
    }

    fn select(
        &self,
        clause: &str,
        values: &[&dyn rusqlite::ToSql],
    ) -> Result<Vec<Run>, ArchiveError> {
        let text = format!("SELECT {COLUMNS} FROM run {clause}");
        let mut statement =
            self.connection.prepare(&text).map_err(|source| self.database(source))?;
        let mut rows = statement.query(values).map_err(|source| self.database(source))?;
        let mut runs = Vec::new();
        while let Some(row) = rows.next().map_err(|source| self.database(source))? {
            runs.push(self.read_run(row)?);
        }
        Ok(runs)
    }

    fn read_run(&self, row: &Row<'_>) -> Result<Run, ArchiveError> {
        let columns = Columns::of(row).map_err(|source| self.database(source))?;
        Ok(Run {
            id: columns.id,
            scale: self.parse(&format!("{:?}", columns.scale), "the scale of a run")?,
            targets_under_test: self
                .parse(&columns.targets_under_test, "the targets under test of a run")?,
            began_at: columns.began_at.max(0) as u64,
            ended_at: columns.ended_at.map(|at| at.max(0) as u64),
            setting: self.parse(&columns.setting, "the setting of a run")?,
            study: columns.study,
            command: columns.command,
            samples: Vec::new(),
        })
    }

    fn samples(&self, id: i64) -> Result<Vec<Sample>, ArchiveError> {
        let database = |source| self.database(source);
        let mut statement = self
            .connection
            .prepare(
                "SELECT labels, repetition, ended_at, outcome, position, checksum FROM sample
                 WHERE run = ?1 ORDER BY position",
            )
            .map_err(database)?;
        let mut rows = statement.query(params![id]).map_err(database)?;
        let mut samples = Vec::new();
        while let Some(row) = rows.next().map_err(database)? {
            let labels: String = row.get(0).map_err(database)?;
            let outcome: String = row.get(3).map_err(database)?;
            let repetition = row.get(1).map_err(database)?;
            let ended_at: i64 = row.get(2).map_err(database)?;
            let position = row.get(4).map_err(database)?;
            let sum = sample_sum((id, position), &labels, repetition, ended_at, &outcome);
            if row.get::<_, [u8; CHECKSUM_LENGTH]>(5).map_err(database)? != sum {
                return Err(self.database(wrong_sum()));
            }
            samples.push(Sample {
                labels: self.parse(&labels, "the labels of a sample")?,
                repetition,
                ended_at: ended_at.max(0) as u64,
                outcome: self.parse(&outcome, "the outcome of a sample")?,
            });
        }
        Ok(samples)
    }

    /// Changes a run after checking that the stored run is intact.
    fn amend(&self, id: i64, change: impl FnOnce(&mut Columns)) -> Result<(), ArchiveError> {
        let amended = self.transaction(|transaction| {
            let Some(mut run) = Columns::read(transaction, id)? else {
                return Ok(RunChange::NoSuchRun);
            };
            change(&mut run);
            run.write(transaction, UPDATE)?;
            Ok(RunChange::Applied)
        });
        self.check_applied(id, amended)
    }

    fn transaction<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let behavior = rusqlite::TransactionBehavior::Immediate;
        let transaction = Transaction::new_unchecked(&self.connection, behavior)?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }

    fn check_applied(
        &self,
        id: i64,
        change: rusqlite::Result<RunChange>,
    ) -> Result<(), ArchiveError> {
        match change.map_err(|source| self.database(source))? {
            RunChange::Applied => Ok(()),
            RunChange::NoSuchRun => Err(ArchiveError::NoSuchRun { path: self.path.clone(), id }),
        }
    }

    fn json(
        &self,
        value: &impl serde::Serialize,
        what: &'static str,
    ) -> Result<String, ArchiveError> {
        serde_json::to_string(value).map_err(|source| self.content(what, source))
    }

    fn parse<T: serde::de::DeserializeOwned>(
        &self,
        text: &str,
        what: &'static str,
    ) -> Result<T, ArchiveError> {
        serde_json::from_str(text).map_err(|source| self.content(what, source))
    }

    fn database(&self, source: rusqlite::Error) -> ArchiveError {
        failed(&self.path, source)
    }

    fn content(&self, what: &'static str, source: serde_json::Error) -> ArchiveError {
        ArchiveError::Content { path: self.path.clone(), what, source }
    }
}

fn failed(path: &Path, source: rusqlite::Error) -> ArchiveError {
    if database::is_damage(&source) {
        ArchiveError::Damaged { path: path.into(), what: source.to_string() }
    } else {
        ArchiveError::Database { path: path.into(), source }
    }
}

fn not_used(path: &Path, error: DatabaseError) -> ArchiveError {
    match error {
        DatabaseError::Failed(source) => ArchiveError::Database { path: path.into(), source },
        DatabaseError::System(source) => ArchiveError::Folder { path: path.into(), source },
        other => ArchiveError::Damaged { path: path.into(), what: other.to_string() },
    }
}

/// Opens an existing file and returns the version of its tables.
fn connect(path: &Path) -> rusqlite::Result<(Connection, i32)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    database::harden(&connection)?;
    connection.busy_timeout(BUSY_LIMIT)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok((connection, version))
}

/// A row of a run.
struct Columns {
    id: i64,
    study: String,
    scale: String,
    command: String,
    targets_under_test: String,
    began_at: i64,
    ended_at: Option<i64>,
    setting: String,
}

const UPDATE: &str = "UPDATE run SET study = ?2, scale = ?3, command = ?4, targets_under_test = ?5, began_at = ?6, \
                      ended_at = ?7, setting = ?8, checksum = ?9 WHERE id = ?1";

impl Columns {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let columns = Self {
            id: row.get(0)?,
            study: row.get(1)?,
            scale: row.get(2)?,
            command: row.get(3)?,
            targets_under_test: row.get(4)?,
            began_at: row.get(5)?,
            ended_at: row.get(6)?,
            setting: row.get(7)?,
        };
        if row.get::<_, [u8; CHECKSUM_LENGTH]>(8)? == columns.sum() {
            Ok(columns)
        } else {
            Err(wrong_sum())
        }
    }

    fn read(transaction: &Transaction<'_>, id: i64) -> rusqlite::Result<Option<Self>> {
        let text = format!("SELECT {COLUMNS} FROM run WHERE id = ?1");
        transaction.query_row(&text, [id], Self::of).optional()
    }

    fn write(&self, transaction: &Transaction<'_>, text: &str) -> rusqlite::Result<()> {
        let Self { id, study, scale, command, targets_under_test, began_at, ended_at, setting } =
            self;
        transaction.execute(
            text,
            params![
                id,
                study,
                scale,
                command,
                targets_under_test,
                began_at,
                ended_at,
                setting,
                self.sum()
            ],
        )?;
        Ok(())
    }

    fn sum(&self) -> [u8; CHECKSUM_LENGTH] {
        let Self { id, study, scale, command, targets_under_test, began_at, ended_at, setting } =
            self;
        let ended = ended_at.map(i64::to_le_bytes);
        checksum(&[
            &id.to_le_bytes(),
            study.as_bytes(),
            scale.as_bytes(),
            command.as_bytes(),
            targets_under_test.as_bytes(),
            &began_at.to_le_bytes(),
            ended.as_ref().map_or(&[][..], |ended| ended),
            setting.as_bytes(),
        ])
    }
}

fn sample_sum(
    (run, position): (i64, i64),
    labels: &str,
    repetition: u32,
    ended_at: i64,
    outcome: &str,
) -> [u8; CHECKSUM_LENGTH] {
    let numbers = [run, position, repetition.into(), ended_at].map(i64::to_le_bytes);
    checksum(&[numbers.as_flattened(), labels.as_bytes(), outcome.as_bytes()])
}

/// Returns the error that SQLite would return if it had checksums.
fn wrong_sum() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT),
        Some("the checksum of a row is wrong".into()),
    )
}

#[cfg(test)]
mod tests;
