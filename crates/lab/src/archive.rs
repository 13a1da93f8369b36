//! The archive: every run that was made here, in one SQLite file that other tools can read.
//!
//! A sample is committed when it is made, so that what breaks a run off costs one measurement.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::record::{Run, Sample, Scale, Setting};

/// What the file must say of itself; raised with the tables.
const VERSION: i64 = 1;
/// How long another process may hold the file.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

const TABLES: &str = "
    CREATE TABLE run (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        study TEXT NOT NULL,
        scale TEXT NOT NULL,
        command TEXT NOT NULL,
        contestants TEXT NOT NULL,
        began_at INTEGER NOT NULL,
        ended_at INTEGER,
        setting TEXT NOT NULL
    ) STRICT;
    CREATE TABLE sample (
        run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        labels TEXT NOT NULL,
        repetition INTEGER NOT NULL,
        ended_at INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        PRIMARY KEY (run, position)
    ) STRICT, WITHOUT ROWID;
";

/// Why the archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Its folder cannot be made.
    #[error("cannot make {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// SQLite says no.
    #[error("the archive {}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What it says.
        #[source]
        source: rusqlite::Error,
    },
    /// The file is of a newer program, or of another one.
    #[error("the archive {} is of version {found}; this program knows {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// What is in it is not what was put there.
    #[error("the archive {}: {what} cannot be read: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: &'static str,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// There is no such run.
    #[error("the archive {} has no run {id}", path.display())]
    NoSuchRun {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        id: i64,
    },
    /// Somebody is at it.
    #[error("run {id} of the archive {} is being made by another process: wait until it has ended", path.display())]
    Held {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        id: i64,
    },
    /// It cannot be seen to that nobody else adds to a run.
    #[error("cannot lock {}: {source}", path.display())]
    Lock {
        /// The file that is locked.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}

/// A run that nobody else adds to or removes while this is there. It ends with the process, too.
#[derive(Debug)]
pub struct Hold {
    /// Beside the archive, which is SQLite's to lock.
    path: PathBuf,
    /// Locked.
    _file: File,
}

impl Drop for Hold {
    fn drop(&mut self) {
        // What stays behind is empty, and is locked again by whoever goes on.
        let _ = fs::remove_file(&self.path);
    }
}

/// An open archive.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    connection: Connection,
}

impl Archive {
    /// Where it is unless somebody says otherwise: `$XDG_STATE_HOME/sarsen/lab.sqlite`, or the same
    /// under `~/.local/state`; in the current folder for somebody without a home.
    pub fn usual_path() -> PathBuf {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        variable("XDG_STATE_HOME")
            .filter(|folder| folder.is_absolute())
            .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
            .unwrap_or_default()
            .join("sarsen/lab.sqlite")
    }

    /// Opens the archive, and makes it if it is not there.
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|source| ArchiveError::Folder { path: folder.into(), source })?;
        }
        let database = |source| ArchiveError::Database { path: path.into(), source };
        let mut connection = Connection::open(path).map_err(database)?;
        let found = prepare(&mut connection).map_err(database)?;
        if found != VERSION {
            return Err(ArchiveError::Version { path: path.into(), found });
        }
        Ok(Self { path: path.into(), connection })
    }

    /// Notes that a run begins, and gives it a number. Its `id`, `ended_at` and `samples` do not count.
    pub fn begin(&self, run: &Run) -> Result<i64, ArchiveError> {
        let setting = self.json(&run.setting, "its setting")?;
        let contestants = self.json(&run.contestants, "its contestants")?;
        let scale = run.scale.to_string();
        self.connection
            .execute(
                "INSERT INTO run (study, scale, command, contestants, began_at, setting)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![run.study, scale, run.command, contestants, run.began_at as i64, setting],
            )
            .map_err(|source| self.database(source))?;
        Ok(self.connection.last_insert_rowid())
    }

    /// Keeps what has become known of a run's setting.
    pub fn set_setting(&self, id: i64, setting: &Setting) -> Result<(), ArchiveError> {
        let setting = self.json(setting, "its setting")?;
        self.change("UPDATE run SET setting = ?2 WHERE id = ?1", params![id, setting], id)
    }

    /// Keeps a sample.
    pub fn add(&self, id: i64, sample: &Sample) -> Result<(), ArchiveError> {
        let labels = self.json(&sample.labels, "a sample's labels")?;
        let outcome = self.json(&sample.outcome, "a sample's outcome")?;
        self.change(
            "INSERT INTO sample (run, position, labels, repetition, ended_at, outcome)
             VALUES (?1, (SELECT coalesce(max(position) + 1, 0) FROM sample WHERE run = ?1), ?2, ?3, ?4, ?5)",
            params![id, labels, sample.repetition, sample.ended_at as i64, outcome],
            id,
        )
    }

    /// Notes that a run is complete.
    pub fn end(&self, id: i64, ended_at: u64) -> Result<(), ArchiveError> {
        let ended_at = ended_at as i64;
        self.change("UPDATE run SET ended_at = ?2 WHERE id = ?1", params![id, ended_at], id)
    }

    /// Keeps others from a run.
    pub fn hold(&self, id: i64) -> Result<Hold, ArchiveError> {
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
            // Whoever held it may have removed it meanwhile: then others lock another file.
            let ours = file.metadata().map_err(failed)?.ino();
            if fs::metadata(&path).is_ok_and(|metadata| metadata.ino() == ours) {
                return Ok(Hold { path, _file: file });
            }
        }
    }

    /// Forgets what failed in a run and what could not be measured, so that it is tried again.
    pub fn forget_failures(&self, id: i64) -> Result<(), ArchiveError> {
        self.connection
            .execute(
                "DELETE FROM sample WHERE run = ?1 AND outcome NOT LIKE '{\"measured\":%'",
                params![id],
            )
            .map_err(|source| self.database(source))?;
        Ok(())
    }

    /// Forgets a run that nobody is at.
    pub fn remove(&self, id: i64) -> Result<(), ArchiveError> {
        let _hold = self.hold(id)?;
        self.change("DELETE FROM run WHERE id = ?1", params![id], id)
    }

    /// A run with its samples.
    pub fn run(&self, id: i64) -> Result<Run, ArchiveError> {
        let mut runs = self.select("WHERE id = ?1", params![id])?;
        let mut run =
            runs.pop().ok_or_else(|| ArchiveError::NoSuchRun { path: self.path.clone(), id })?;
        run.samples = self.samples(id)?;
        Ok(run)
    }

    /// All runs, the oldest first, without their samples.
    pub fn runs(&self) -> Result<Vec<Run>, ArchiveError> {
        self.select("ORDER BY id", params![])
    }

    /// The newest run of a study that has not ended, of this scale and these contestants.
    pub fn unfinished(
        &self,
        study: &str,
        scale: Scale,
        contestants: &[String],
    ) -> Result<Option<i64>, ArchiveError> {
        let contestants = self.json(&contestants, "contestants")?;
        self.connection
            .query_row(
                "SELECT id FROM run WHERE study = ?1 AND scale = ?2 AND contestants = ?3
                 AND ended_at IS NULL ORDER BY id DESC LIMIT 1",
                params![study, scale.to_string(), contestants],
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
        let text = format!(
            "SELECT id, study, scale, command, contestants, began_at, ended_at, setting FROM run {clause}"
        );
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
        let text = |column| row.get::<_, String>(column).map_err(|source| self.database(source));
        let time =
            |column| row.get::<_, Option<i64>>(column).map_err(|source| self.database(source));
        Ok(Run {
            id: row.get(0).map_err(|source| self.database(source))?,
            study: text(1)?,
            scale: self.parse(&format!("{:?}", text(2)?), "the scale of a run")?,
            command: text(3)?,
            contestants: self.parse(&text(4)?, "the contestants of a run")?,
            began_at: time(5)?.unwrap_or(0).max(0) as u64,
            ended_at: time(6)?.map(|at| at.max(0) as u64),
            setting: self.parse(&text(7)?, "the setting of a run")?,
            samples: Vec::new(),
        })
    }

    fn samples(&self, id: i64) -> Result<Vec<Sample>, ArchiveError> {
        let database = |source| self.database(source);
        let mut statement = self
            .connection
            .prepare(
                "SELECT labels, repetition, ended_at, outcome FROM sample WHERE run = ?1
                 ORDER BY position",
            )
            .map_err(database)?;
        let mut rows = statement.query(params![id]).map_err(database)?;
        let mut samples = Vec::new();
        while let Some(row) = rows.next().map_err(database)? {
            let labels: String = row.get(0).map_err(database)?;
            let outcome: String = row.get(3).map_err(database)?;
            samples.push(Sample {
                labels: self.parse(&labels, "the labels of a sample")?,
                repetition: row.get(1).map_err(database)?,
                ended_at: row.get::<_, i64>(2).map_err(database)?.max(0) as u64,
                outcome: self.parse(&outcome, "the outcome of a sample")?,
            });
        }
        Ok(samples)
    }

    /// A change that must meet exactly one row.
    fn change(
        &self,
        text: &str,
        values: &[&dyn rusqlite::ToSql],
        id: i64,
    ) -> Result<(), ArchiveError> {
        match self.connection.execute(text, values).map_err(|source| self.database(source))? {
            0 => Err(ArchiveError::NoSuchRun { path: self.path.clone(), id }),
            _ => Ok(()),
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
        ArchiveError::Database { path: self.path.clone(), source }
    }

    fn content(&self, what: &'static str, source: serde_json::Error) -> ArchiveError {
        ArchiveError::Content { path: self.path.clone(), what, source }
    }
}

/// Makes the tables in an empty file; gives the version.
fn prepare(connection: &mut Connection) -> rusqlite::Result<i64> {
    connection.busy_timeout(BUSY_LIMIT)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let mut version: i64 =
        transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if version == 0 && tables == 0 {
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        version = VERSION;
    }
    transaction.commit()?;
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Labels, Measures, Outcome};

    fn run() -> Run {
        Run {
            id: 0,
            study: "trinkle".into(),
            scale: Scale::Quick,
            command: "sarsen lab run trinkle".into(),
            contestants: vec!["sarsen".into(), "tgt".into()],
            began_at: 1_700_000_000,
            ended_at: None,
            setting: Setting { seed: 7, ..Setting::default() },
            samples: Vec::new(),
        }
    }

    fn sample(repetition: u32) -> Sample {
        let mut measures = Measures::default();
        measures.figures.insert("iops".into(), 1234.5);
        let labels = Labels::new().with("target", "tgt").with("mtu", 1500);
        let outcome = Outcome::Measured(measures);
        Sample { labels, repetition, ended_at: 1_700_000_001, outcome }
    }

    #[test]
    fn what_was_kept_is_there_when_it_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/lab.sqlite");
        let archive = Archive::open(&path).unwrap();
        let id = archive.begin(&run()).unwrap();
        archive.add(id, &sample(1)).unwrap();
        archive.add(id, &Sample { outcome: Outcome::Failed("gone".into()), ..sample(2) }).unwrap();
        drop(archive);

        let archive = Archive::open(&path).unwrap();
        let contestants = ["sarsen".to_owned(), "tgt".into()];
        let unfinished = |scale| archive.unfinished("trinkle", scale, &contestants).unwrap();
        assert_eq!((unfinished(Scale::Quick), unfinished(Scale::Full)), (Some(id), None));
        let unable = Outcome::NotMeasured("no network namespaces".into());
        archive.add(id, &Sample { outcome: unable, ..sample(3) }).unwrap();
        archive.forget_failures(id).unwrap();
        archive.add(id, &Sample { outcome: Outcome::Failed("lost".into()), ..sample(2) }).unwrap();
        archive.end(id, 1_700_000_009).unwrap();
        assert_eq!(unfinished(Scale::Quick), None);
        let read = archive.run(id).unwrap();
        let samples =
            vec![sample(1), Sample { outcome: Outcome::Failed("lost".into()), ..sample(2) }];
        assert_eq!(read, Run { id, ended_at: Some(1_700_000_009), samples, ..run() });
        assert_eq!(archive.runs().unwrap().len(), 1);
        archive.remove(id).unwrap();
        assert!(matches!(archive.run(id), Err(ArchiveError::NoSuchRun { .. })));
        assert!(archive.add(id, &sample(1)).is_err());
    }

    #[test]
    fn a_run_is_one_process_to_add_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lab.sqlite");
        let archive = Archive::open(&path).unwrap();
        let id = archive.begin(&run()).unwrap();
        let hold = archive.hold(id).unwrap();
        // Locks of files are between descriptions, not between processes.
        let other = Archive::open(&path).unwrap();
        assert!(matches!(other.hold(id), Err(ArchiveError::Held { .. })));
        assert!(matches!(other.remove(id), Err(ArchiveError::Held { .. })));
        drop(other.hold(id + 1).unwrap());
        drop(hold);
        other.remove(id).unwrap();
        let names = std::fs::read_dir(folder.path()).unwrap().flatten().map(|it| it.file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["lab.sqlite"]);
    }

    #[test]
    fn files_that_are_no_archive_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        std::fs::write(&path, "not a database, but long enough to be taken for a header".repeat(9))
            .unwrap();
        assert!(matches!(Archive::open(&path), Err(ArchiveError::Database { .. })));
        let newer = folder.path().join("newer");
        let connection = Connection::open(&newer).unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        drop(connection);
        assert!(matches!(Archive::open(&newer), Err(ArchiveError::Version { found: 99, .. })));
        let foreign = folder.path().join("foreign");
        Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
        assert!(matches!(Archive::open(&foreign), Err(ArchiveError::Version { found: 0, .. })));
    }
}
