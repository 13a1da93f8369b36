//! The SQLite databases of the server. A database is created completely or not at all, opened with all checks of
//! SQLite, copied, and renamed if it is damaged. SQLite stores no checksums: the owner of the database adds a
//! [`checksum`] to each record.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use sha2::{Digest as _, Sha256};

/// Bytes of a [`checksum`].
pub const CHECKSUM_LENGTH: usize = 16;
/// Maximum number of damaged files that are kept for one database. Older ones are deleted.
const ASIDE_COUNT: usize = 3;
/// Prefix of the names of incomplete files.
const NEW_PREFIX: &str = ".new-database-";
/// Pages after which the write-ahead log is moved into the database, and maximum bytes of the log after that.
const CHECKPOINT_PAGES: i64 = 256;
const LOG_BYTES: i64 = 1 << 20;
/// The suffixes that SQLite appends to the name of a database for its own files.
const COMPANIONS: [&str; 2] = ["-wal", "-journal"];

/// The reason why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The operating system reports an error on creating, opening or renaming a file.
    #[error("{0}")]
    System(#[from] io::Error),
    /// Another program has it open.
    #[error("another program uses it")]
    InUse,
    /// The file does not contain the data that was written.
    #[error("{0}")]
    Damaged(String),
    /// The database cannot be read or written now; its content is not in doubt.
    #[error("{0}")]
    Failed(rusqlite::Error),
}

impl DatabaseError {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        let code = match &error {
            rusqlite::Error::SqliteFailure(failure, _) => Some(failure.code),
            _ => None,
        };
        match code {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::InUse,
            _ if is_damage(&error) => Self::Damaged(error.to_string()),
            _ => Self::Failed(error),
        }
    }
}

/// Returns whether an error reports that a database does not contain the data that was written.
pub fn is_damage(error: &rusqlite::Error) -> bool {
    let code = match error {
        rusqlite::Error::SqliteFailure(failure, _) => failure.code,
        rusqlite::Error::SqlInputError { error, .. } => error.code,
        // A value has another type, length or encoding than the written value.
        _ => return true,
    };
    // The statements are constant: if SQLite does not understand one, the tables are not those that were created.
    matches!(
        code,
        ErrorCode::DatabaseCorrupt
            | ErrorCode::NotADatabase
            | ErrorCode::Unknown
            | ErrorCode::TooBig
            | ErrorCode::ConstraintViolation
            | ErrorCode::TypeMismatch
            | ErrorCode::SchemaChanged
    )
}

/// The tables of a database, and the version of its content.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// Increases with each change of the tables.
    pub version: i32,
    /// The statements, which SQLite stores word for word.
    pub tables: &'static [&'static str],
}

/// The journal that protects transactions against a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    /// A write-ahead log, which is the fastest. If the end of the log is damaged, the last transactions are missing
    /// without an error. The owner must detect that.
    WriteAhead,
    /// A rollback journal. While nothing is written, the database is the only file.
    Rollback,
}

/// Returns a record's checksum: the truncated SHA-256 of its parts and their lengths.
pub fn checksum(parts: &[&[u8]]) -> [u8; CHECKSUM_LENGTH] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut cut = [0; CHECKSUM_LENGTH];
    cut.copy_from_slice(&hash.finalize()[..CHECKSUM_LENGTH]);
    cut
}

/// Configures SQLite to distrust the file. It runs no code from a schema, checks cells when it reads pages, and maps no
/// memory, where a truncated file would kill the process.
pub fn harden(connection: &Connection) -> rusqlite::Result<()> {
    for (setting, value) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
    ] {
        connection.set_db_config(setting, value)?;
    }
    connection.execute_batch("PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;")
}

/// Checks the structure of the whole database.
pub fn check_integrity(connection: &Connection) -> Result<(), DatabaseError> {
    let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    match found.as_str() {
        "ok" => Ok(()),
        _ => Err(DatabaseError::Damaged(found.replace('\n', " "))),
    }
}

/// Creates an empty database that only its owner can access, completely and durably or not at all. An existing one
/// stays. `fill` writes its first records.
pub fn create(
    path: &Path,
    schema: Schema,
    fill: impl FnOnce(&Connection) -> Result<(), DatabaseError>,
) -> Result<(), DatabaseError> {
    let new = new_file(path)?;
    let connection = connect(new.path())?;
    // The file is synchronised before it gets its name.
    connection.execute_batch("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; BEGIN;")?;
    schema.tables.iter().try_for_each(|table| connection.execute_batch(table))?;
    connection.pragma_update(None, "user_version", schema.version)?;
    fill(&connection)?;
    connection.execute_batch("COMMIT")?;
    drop(connection);
    new.as_file().sync_all()?;
    match new.persist_noclobber(path) {
        // Another server has created it meanwhile.
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
        persisted => drop(persisted.map_err(|error| error.error)?),
    }
    Ok(sync_folder(path)?)
}

/// Opens a database exclusively, and checks its structure. Its owner must check the content of its records.
pub(crate) fn open(
    path: &Path,
    schema: Schema,
    journal: Journal,
) -> Result<Connection, DatabaseError> {
    if !fs::metadata(path)?.is_file() {
        return Err(DatabaseError::damaged("it is not a regular file"));
    }
    // SQLite would open a read-only file for reading, and treat an empty file as a new database.
    if OpenOptions::new().read(true).write(true).open(path)?.metadata()?.len() == 0 {
        return Err(DatabaseError::damaged("it is empty"));
    }
    let connection = connect(path)?;
    // Exclusive mode avoids a file of shared memory, which SQLite would map.
    connection.execute_batch("PRAGMA locking_mode = EXCLUSIVE")?;
    let wanted = match journal {
        Journal::WriteAhead => "wal",
        Journal::Rollback => "truncate",
    };
    let mode = connection
        .pragma_update_and_check(None, "journal_mode", wanted, |row| row.get::<_, String>(0))?;
    if mode != wanted || connection.is_readonly("main")? {
        return Err(DatabaseError::damaged("its header says that it cannot be written"));
    }
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY;")?;
    for (name, value) in
        [("wal_autocheckpoint", CHECKPOINT_PAGES), ("journal_size_limit", LOG_BYTES)]
    {
        connection.pragma_update_and_check(None, name, value, |_| Ok(()))?;
    }
    check_schema(&connection, schema)?;
    check_integrity(&connection)?;
    Ok(connection)
}

/// Replaces the database at `path` by a copy of another one, durably.
pub(crate) fn copy(connection: &Connection, path: &Path) -> Result<(), DatabaseError> {
    let new = new_file(path)?;
    let target =
        new.path().to_str().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
    connection.execute("VACUUM INTO ?1", [target])?;
    new.as_file().sync_all()?;
    // The files that SQLite kept for the old database do not belong to the new one.
    remove_companions(path)?;
    new.persist(path).map_err(|error| error.error)?;
    Ok(sync_folder(path)?)
}

/// Deletes a database, durably.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    remove_if_there(path)?;
    remove_companions(path)?;
    sync_folder(path)
}

/// Renames a damaged database to `NAME.damaged-N`, durably, and returns its new name. Only the latest damaged files are
/// kept.
pub(crate) fn put_aside(path: &Path) -> io::Result<PathBuf> {
    let mut prefix = path.file_stem().unwrap_or_default().to_owned();
    prefix.push(".damaged-");
    let mut numbers: Vec<u64> = fs::read_dir(folder_of(path))?
        .flatten()
        .filter_map(|entry| {
            entry.file_name().to_str()?.strip_prefix(prefix.to_str()?)?.parse().ok()
        })
        .collect();
    numbers.sort_unstable();
    let aside = |number: u64| {
        let mut name = prefix.clone();
        name.push(number.to_string());
        path.with_file_name(name)
    };
    let excess = (numbers.len() + 1).saturating_sub(ASIDE_COUNT);
    for number in &numbers[..excess] {
        remove_if_there(&aside(*number))?;
        remove_companions(&aside(*number))?;
    }
    let new = aside(numbers.last().map_or(1, |last| last.saturating_add(1)));
    for companion in COMPANIONS {
        let (from, to) = (with_suffix(path, companion), with_suffix(&new, companion));
        match fs::metadata(&from) {
            Ok(empty) if empty.len() == 0 => fs::remove_file(from)?,
            Ok(_) => fs::rename(from, to)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    fs::rename(path, &new)?;
    sync_folder(path)?;
    Ok(new)
}

/// Opens a database without checks, to read the remaining data.
pub(crate) fn open_damaged(path: &Path) -> Result<Connection, DatabaseError> {
    let connection = connect(path)?;
    connection.execute_batch("PRAGMA locking_mode = EXCLUSIVE")?;
    Ok(connection)
}

/// Deletes incomplete databases that a killed server left in a folder.
pub(crate) fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(NEW_PREFIX) {
            remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}

/// Returns whether the write-ahead log has changes that are not in the database yet.
pub(crate) fn has_log(path: &Path) -> bool {
    fs::metadata(with_suffix(path, COMPANIONS[0])).is_ok_and(|log| log.len() != 0)
}

fn connect(path: &Path) -> Result<Connection, DatabaseError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    harden(&connection)?;
    Ok(connection)
}

fn check_schema(connection: &Connection, schema: Schema) -> Result<(), DatabaseError> {
    let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != schema.version {
        return Err(DatabaseError::Damaged(format!(
            "it has version {version}, and this program needs version {}",
            schema.version
        )));
    }
    let mut statement = connection.prepare("SELECT sql FROM sqlite_schema ORDER BY rowid")?;
    let tables = statement.query_map([], |row| row.get::<_, Option<String>>(0))?;
    let tables: Vec<_> = tables.collect::<Result<_, _>>()?;
    if tables.iter().map(Option::as_deref).eq(schema.tables.iter().map(|table| Some(*table))) {
        Ok(())
    } else {
        Err(DatabaseError::damaged("its tables are not those that were created"))
    }
}

/// Creates an empty file that only its owner can access, in the folder of `path`. It is deleted unless it is persisted
/// under a name.
fn new_file(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    tempfile::Builder::new().prefix(NEW_PREFIX).tempfile_in(folder_of(path))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    name.into()
}

fn remove_companions(path: &Path) -> io::Result<()> {
    COMPANIONS.iter().try_for_each(|companion| remove_if_there(&with_suffix(path, companion)))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
