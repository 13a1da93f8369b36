//! The attachments of this machine: a folder each, with a record. The process that serves an attachment holds a lock on its folder.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sarsen_io::record::{AtomicFile, LockedFolder};
use serde::{Deserialize, Serialize};

use super::config::{AttachmentConfig, DiskKind, check_name};
use super::{AttachError, LOCK_LIMIT};
use crate::model::words;
use crate::stores::now;

/// The folder of the attachments of the system.
const SYSTEM_FOLDER: &str = "/run/sarsen-attachments";
/// A variable of the environment that names another folder.
const FOLDER_VARIABLE: &str = "SARSEN_ATTACHMENTS";
const RECORD: &str = "attachment.json";
const RECORD_LIMIT: usize = 1 << 20;

/// What is attached.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Record {
    /// The configuration with which it was attached last.
    pub config: AttachmentConfig,
    /// The kind of the disk.
    #[serde(rename = "as", with = "words")]
    pub kind: DiskKind,
    /// The number of the block device.
    pub number: Option<u32>,
    /// Recognises the block device: the kernel uses numbers again.
    pub device_tag: u64,
    /// Number of the queues of a disk as ublk.
    pub queues: u16,
    /// The portals of its paths. The next process uses them, too: it ends the sessions that this one has through them.
    #[serde(default)]
    pub portals: Vec<String>,
    /// The identifier of the unit.
    pub unit_identifier: Option<String>,
    /// The size of the disk.
    pub size_bytes: u64,
    /// The process that serves the disk, or that did so last.
    pub process: u32,
    /// The problem of the disk or of its paths, if there is one.
    pub problem: Option<String>,
    /// Why the last writes are not durable, if the process ended so.
    #[serde(default)]
    pub lost_writes: Option<String>,
}

/// An attachment, and whether a process serves it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The attachment.
    pub record: Record,
    /// Whether a process serves it.
    pub is_served: bool,
}

impl Record {
    pub(super) fn new(
        config: &AttachmentConfig,
        kind: DiskKind,
        device_tag: u64,
        queues: u16,
        unit_identifier: Option<String>,
    ) -> Self {
        let config = config.clone();
        let process = std::process::id();
        Self {
            config,
            kind,
            number: None,
            device_tag,
            queues,
            portals: Vec::new(),
            unit_identifier,
            size_bytes: 0,
            process,
            problem: None,
            lost_writes: None,
        }
    }

    /// Refuses to continue the disk of another unit, or one of another kind.
    pub(super) fn check_continued(&self, config: &AttachmentConfig) -> Result<(), AttachError> {
        let differs = |difference: String| {
            Err(AttachError::Differs { name: config.name.clone(), difference })
        };
        let earlier = &self.config;
        if !earlier.url.is_same_place(&config.url) {
            return differs(format!("its disk is that of {}, not of {}", earlier.url, config.url));
        }
        if let Some(kind) = config.kind
            && kind != self.kind
        {
            return differs(format!("its disk is {}, not {}", self.kind.name(), kind.name()));
        }
        if earlier.read_only != config.read_only {
            let is = if earlier.read_only { "read-only" } else { "writable" };
            return differs(format!("its disk is {is}"));
        }
        if config.only_these_portals && !earlier.only_these_portals {
            return differs("its disk also uses portals that the target reported".to_owned());
        }
        if self.kind.is_socket() && earlier.socket != config.socket {
            return differs(format!("its socket is {}", self.path().display()));
        }
        Ok(())
    }

    /// Refuses another unit at the same URL.
    pub(super) fn check_unit(&self, unit: Option<&str>) -> Result<(), AttachError> {
        if self.unit_identifier.as_deref() == unit {
            return Ok(());
        }
        let shown = |unit: Option<&str>| unit.unwrap_or("without identifier").to_owned();
        let difference = format!(
            "{} is another unit now ({}) than that of its disk ({})",
            self.config.url,
            shown(unit),
            shown(self.unit_identifier.as_deref())
        );
        Err(AttachError::Differs { name: self.config.name.clone(), difference })
    }
}

/// Returns the folder of all attachments: that of the environment, otherwise that of the system for root, and the user's for others.
pub fn folder() -> PathBuf {
    if let Some(named) = std::env::var_os(FOLDER_VARIABLE) {
        return named.into();
    }
    if sarsen_io::process::is_root() {
        return SYSTEM_FOLDER.into();
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    own.map_or_else(|| SYSTEM_FOLDER.into(), |own| own.join("sarsen-attachments"))
}

/// The folder of one attachment, which this process has locked.
pub(super) struct AttachmentFolder {
    path: PathBuf,
    /// It keeps the folder locked.
    file: AtomicFile,
}

impl AttachmentFolder {
    /// Creates and locks the folder. [`AttachError::Attached`]: a process has it.
    pub(super) fn claim(name: &str) -> Result<Self, AttachError> {
        let path = folder().join(name);
        let what = || format!("cannot create {}", path.display());
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&path).map_err(AttachError::system(what()))?;
        // The process leaves the folder of its caller.
        let path = fs::canonicalize(&path).map_err(AttachError::system(what()))?;
        Self::lock(name, path.clone(), LOCK_LIMIT)
    }

    /// Locks the folder of an attachment without a process, or of one whose process ends within `limit`.
    pub(super) fn lock(name: &str, path: PathBuf, limit: Duration) -> Result<Self, AttachError> {
        let folder = match LockedFolder::new(path.clone(), limit) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                let record = read(&path).ok().flatten();
                let device = record.map(|record| record.path().display().to_string());
                let device = device.unwrap_or_else(|| "no disk yet".to_owned());
                return Err(AttachError::Attached { name: name.to_owned(), device });
            }
            folder => {
                folder.map_err(AttachError::system(format!("cannot lock {}", path.display())))?
            }
        };
        let folder = Arc::new(folder);
        let file = AtomicFile::within(&folder, RECORD);
        Ok(Self { path, file })
    }

    pub(super) fn read(&self) -> Result<Option<Record>, AttachError> {
        read(&self.path)
    }

    pub(super) fn write(&self, record: &Record) -> Result<(), AttachError> {
        let mut text = serde_json::to_vec_pretty(record).unwrap_or_default();
        text.push(b'\n');
        let written = now(self.file.replace(Some(text)));
        written.map_err(AttachError::system(format!("cannot write {}", self.file.path().display())))
    }

    /// Removes the folder, whose lock remains until this is dropped.
    pub(super) fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "the folder of the attachment was not removed");
        }
    }
}

/// Returns the record in a folder; `None` if there is none.
fn read(path: &Path) -> Result<Option<Record>, AttachError> {
    let file = AtomicFile::new(path.join(RECORD));
    // Anything else, such as a pipe, might never answer.
    match fs::symlink_metadata(file.path()) {
        Ok(found) if !found.is_file() => {
            let what = format!("{} is no file; remove it", file.path().display());
            return Err(AttachError::System { what, source: io::ErrorKind::InvalidData.into() });
        }
        _ => {}
    }
    let what = |problem: &str| format!("{}: {problem}", file.path().display());
    let content =
        file.read_now(RECORD_LIMIT).map_err(AttachError::system(what("cannot be read")))?;
    let Some(content) = content else { return Ok(None) };
    let record = serde_json::from_slice(&content).map_err(io::Error::other);
    Ok(Some(record.map_err(AttachError::system(what(
        "is no record of an attachment; end its process, if it has one, and remove the folder",
    )))?))
}

/// Returns the attachments, in the order of their names.
pub fn list() -> Result<Vec<Listed>, AttachError> {
    let folder = folder();
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => {
            entries.map_err(AttachError::system(format!("cannot read {}", folder.display())))?
        }
    };
    let mut listed = Vec::new();
    for entry in entries.flatten() {
        match read(&entry.path()) {
            Ok(Some(record)) => {
                let is_served = is_locked(&entry.path());
                listed.push(Listed { record, is_served });
            }
            // An attachment may begin or end meanwhile.
            Ok(None) => {}
            Err(error) => tracing::warn!("{error}"),
        }
    }
    listed.sort_by(|one, other| one.record.config.name.cmp(&other.record.config.name));
    Ok(listed)
}

fn is_locked(path: &Path) -> bool {
    let locked = LockedFolder::new(path.to_owned(), Duration::ZERO);
    matches!(locked, Err(error) if error.kind() == io::ErrorKind::ResourceBusy)
}

/// Returns the attachment with this name, device or socket.
pub fn find(name: &str) -> Result<Listed, AttachError> {
    let resolved = fs::canonicalize(name).ok();
    let is_meant = |listed: &Listed| {
        let path = listed.record.path();
        listed.record.config.name == name
            || path == Path::new(name)
            || Some(&path) == resolved.as_ref()
    };
    if !name.contains('/') {
        check_name(name)?;
    }
    let found = list()?.into_iter().find(is_meant);
    found.ok_or_else(|| AttachError::NotFound { name: name.to_owned() })
}

/// Refuses the socket of another attachment, although no process may serve that now: a virtual machine or a client connects to it again, and
/// would continue with another disk.
pub(super) fn refuse_socket_of_other(config: &AttachmentConfig) -> Result<(), AttachError> {
    let has_socket = |listed: &Listed| {
        let other = &listed.record.config;
        other.name != config.name && config.socket.is_some() && other.socket == config.socket
    };
    let Some(Listed { record, .. }) = list()?.into_iter().find(has_socket) else { return Ok(()) };
    let (socket, other) = (record.path(), &record.config.name);
    Err(AttachError::Invalid(format!(
        "attachment {}: socket: {} belongs to the attachment {other}; choose another path, or detach that one: sarsen detach {other}",
        config.name,
        socket.display()
    )))
}

/// Refuses a unit whose disk another attachment has, although no process serves that now.
pub(super) fn refuse_unit_of_other(name: &str, unit: Option<&str>) -> Result<(), AttachError> {
    let has_unit = |listed: &Listed| {
        let record = &listed.record;
        record.config.name != name && unit.is_some() && record.unit_identifier.as_deref() == unit
    };
    match list()?.into_iter().find(has_unit) {
        Some(Listed { record, .. }) => {
            let device = record.path().display().to_string();
            Err(AttachError::Attached { name: record.config.name, device })
        }
        None => Ok(()),
    }
}
