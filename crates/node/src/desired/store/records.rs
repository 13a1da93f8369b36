//! One file of the state: a SQLite database of records. Each record has a checksum. A head has the count and the sum of
//! all of them, and is written in the same transaction. A damaged, missing or old record is found when the file is
//! opened.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};

use crate::database::{self, CHECKSUM_LENGTH, DatabaseError, Journal, Schema, checksum};

const SCHEMA: Schema = Schema {
    version: 1,
    tables: &[
        "CREATE TABLE head (revision INTEGER NOT NULL, commits INTEGER NOT NULL, records INTEGER NOT NULL, \
         digest BLOB NOT NULL, checksum BLOB NOT NULL) STRICT",
        "CREATE TABLE record (kind TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL, checksum BLOB NOT NULL, \
         PRIMARY KEY (kind, name)) STRICT, WITHOUT ROWID",
    ],
};

type Checksum = [u8; CHECKSUM_LENGTH];

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// An object of the document, by its key, as JSON.
    Object,
    /// A revision of the history, by its [name](revision_name), as JSON.
    Revision,
    /// The current length of a file that is to grow, by its volume's serial number, as decimal digits.
    Growth,
}

impl RecordKind {
    const ALL: [Self; 3] = [Self::Object, Self::Revision, Self::Growth];

    const fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Revision => "revision",
            Self::Growth => "growth",
        }
    }
}

/// Returns the name of a revision's record. Names sort in the order of revision numbers.
pub(super) fn revision_name(revision: u64) -> String {
    format!("{revision:020}")
}

/// Summary of the whole file. Two files with the same head have the same records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The revision of the state.
    pub(super) revision: u64,
    /// Transactions since the file was created.
    pub(super) commits: u64,
    records: u64,
    /// The sum of all checksums.
    digest: u128,
}

impl Head {
    fn checksum(&self) -> Checksum {
        let Self { revision, commits, records, digest } = *self;
        let numbers = [revision, commits, records].map(u64::to_le_bytes);
        checksum(&[b"head", numbers.as_flattened(), &digest.to_le_bytes()])
    }

    fn add(&mut self, checksum: Checksum) {
        self.records = self.records.wrapping_add(1);
        self.digest = self.digest.wrapping_add(u128::from_le_bytes(checksum));
    }

    fn subtract(&mut self, checksum: Checksum) {
        self.records = self.records.wrapping_sub(1);
        self.digest = self.digest.wrapping_sub(u128::from_le_bytes(checksum));
    }
}

/// A record to write, or to delete if it has no body.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) kind: RecordKind,
    pub(super) name: String,
    pub(super) body: Option<Vec<u8>>,
}

/// The content that a transaction expects.
#[derive(Clone, Copy, Debug)]
pub(super) enum Base<'a> {
    /// Only a file with this head.
    Head(&'a Head),
    /// Any file: the written records replace all others, except the history.
    Any,
}

/// Creates a file without records.
pub(super) fn create(path: &Path) -> Result<(), DatabaseError> {
    database::create(path, SCHEMA, |connection| write_head(connection, &Head::default()))
}

/// Opens a file and checks all of it. Passes each record to `each`.
pub(super) fn open(
    path: &Path,
    journal: Journal,
    mut each: impl FnMut(RecordKind, &str, &[u8]) -> Result<(), String>,
) -> Result<(Connection, Head), DatabaseError> {
    let connection = database::open(path, SCHEMA, journal)?;
    let head = check(&connection, &mut each)?;
    Ok((connection, head))
}

/// Opens a file that this program has checked before.
pub(super) fn reopen(path: &Path, journal: Journal) -> Result<Connection, DatabaseError> {
    database::open(path, SCHEMA, journal)
}

/// Returns the head of a damaged file, if the head itself is intact.
pub(super) fn head_of_damaged(path: &Path) -> Option<Head> {
    let connection = database::open_damaged(path).ok()?;
    read_head(&connection).ok()
}

fn check(
    connection: &Connection,
    each: &mut impl FnMut(RecordKind, &str, &[u8]) -> Result<(), String>,
) -> Result<Head, DatabaseError> {
    let damaged = |name: &str, what: &str| DatabaseError::Damaged(format!("{name}: {what}"));
    let head = read_head(connection)?;
    let mut found = Head { revision: head.revision, commits: head.commits, ..Head::default() };
    let mut statement = connection.prepare("SELECT kind, name, body, checksum FROM record")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, name, body) = (row.get_ref(0)?, row.get_ref(1)?, row.get_ref(2)?);
        let (kind, name) = (text(kind)?, text(name)?);
        let body = body.as_blob().map_err(rusqlite::Error::from)?;
        let known = RecordKind::ALL.into_iter().find(|known| known.name() == kind);
        let known = known.ok_or_else(|| damaged(name, "its kind is unknown"))?;
        let kept: Checksum = row.get(3)?;
        if kept != record_checksum(known, name, body) {
            return Err(damaged(name, "its checksum is wrong"));
        }
        found.add(kept);
        each(known, name, body).map_err(|what| damaged(name, &what))?;
    }
    if found == head {
        Ok(head)
    } else {
        Err(DatabaseError::Damaged(format!(
            "it has {} records instead of {}, or some of them are old",
            found.records, head.records
        )))
    }
}

fn text(value: rusqlite::types::ValueRef<'_>) -> Result<&str, DatabaseError> {
    Ok(value.as_str().map_err(rusqlite::Error::from)?)
}

/// Writes rows in one transaction, which is on disk when this returns. Returns `None` if the file has another head.
pub(super) fn write(
    connection: &mut Connection,
    base: Base<'_>,
    revision: Option<u64>,
    rows: &[Row],
) -> Result<Option<Head>, DatabaseError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut head = read_head(&transaction)?;
    match base {
        Base::Head(expected) if *expected != head => return Ok(None),
        Base::Head(_) => {}
        Base::Any => clear(&transaction, &mut head)?,
    }
    rows.iter().try_for_each(|row| put(&transaction, &mut head, row))?;
    head.commits += 1;
    head.revision = revision.unwrap_or(head.revision);
    write_head(&transaction, &head)?;
    transaction.commit()?;
    Ok(Some(head))
}

/// Returns the revisions before a given one, the latest first.
pub(super) fn revisions(
    connection: &Connection,
    before: u64,
    limit: usize,
) -> Result<Vec<Vec<u8>>, DatabaseError> {
    let mut statement = connection.prepare_cached(
        "SELECT name, body, checksum FROM record WHERE kind = ?1 AND name < ?2 ORDER BY name DESC LIMIT ?3",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = params![RecordKind::Revision.name(), revision_name(before), limit];
    let mut rows = statement.query(found)?;
    let mut bodies = Vec::new();
    while let Some(row) = rows.next()? {
        let (name, body): (String, Vec<u8>) = (row.get(0)?, row.get(1)?);
        if row.get::<_, Checksum>(2)? != record_checksum(RecordKind::Revision, &name, &body) {
            return Err(DatabaseError::Damaged(format!("revision {name}: its checksum is wrong")));
        }
        bodies.push(body);
    }
    Ok(bodies)
}

fn record_checksum(kind: RecordKind, name: &str, body: &[u8]) -> Checksum {
    checksum(&[kind.name().as_bytes(), name.as_bytes(), body])
}

/// Deletes all records except the history.
fn clear(transaction: &Transaction<'_>, head: &mut Head) -> Result<(), DatabaseError> {
    let history = RecordKind::Revision.name();
    let mut statement = transaction.prepare("SELECT checksum FROM record WHERE kind <> ?1")?;
    for checksum in statement.query_map([history], |row| row.get(0))? {
        head.subtract(checksum?);
    }
    transaction.execute("DELETE FROM record WHERE kind <> ?1", [history])?;
    Ok(())
}

fn put(
    transaction: &Transaction<'_>,
    head: &mut Head,
    Row { kind, name, body }: &Row,
) -> Result<(), DatabaseError> {
    let key = params![kind.name(), name];
    let old: Option<Checksum> = transaction
        .prepare_cached("SELECT checksum FROM record WHERE kind = ?1 AND name = ?2")?
        .query_row(key, |row| row.get(0))
        .optional()?;
    if let Some(old) = old {
        head.subtract(old);
    }
    match body {
        Some(body) => {
            let checksum = record_checksum(*kind, name, body);
            transaction
                .prepare_cached("INSERT OR REPLACE INTO record VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![kind.name(), name, body, checksum])?;
            head.add(checksum);
        }
        None => {
            transaction
                .prepare_cached("DELETE FROM record WHERE kind = ?1 AND name = ?2")?
                .execute(key)?;
        }
    }
    Ok(())
}

fn read_head(connection: &Connection) -> Result<Head, DatabaseError> {
    let mut statement =
        connection.prepare("SELECT revision, commits, records, digest, checksum FROM head")?;
    let mut rows = statement.query([])?;
    let row = rows.next()?.ok_or_else(|| DatabaseError::damaged("its head is missing"))?;
    let head = Head {
        revision: row.get(0)?,
        commits: row.get(1)?,
        records: row.get(2)?,
        digest: u128::from_le_bytes(row.get(3)?),
    };
    if row.get::<_, Checksum>(4)? != head.checksum() {
        return Err(DatabaseError::damaged("the checksum of its header is wrong"));
    }
    match rows.next()? {
        Some(_) => Err(DatabaseError::damaged("it has two heads")),
        None => Ok(head),
    }
}

fn write_head(connection: &Connection, head: &Head) -> Result<(), DatabaseError> {
    let Head { revision, commits, records, digest } = head;
    connection.execute("DELETE FROM head", [])?;
    connection.execute(
        "INSERT INTO head VALUES (?1, ?2, ?3, ?4, ?5)",
        params![revision, commits, records, digest.to_le_bytes(), head.checksum()],
    )?;
    Ok(())
}
