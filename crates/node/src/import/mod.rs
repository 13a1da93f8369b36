//! Moving in: what another target program was configured to be, as a [`Document`], and a list of what could not
//! be carried. The text goes in, nothing else is touched; what a file includes is asked of [`Files`].
//!
//! Each program has its parser and its rules of how it derives what clients know a disk by: serial numbers and
//! designators hang on multipath maps, udev's links and VMFS. `draft` is what they have in common.

mod apache;
mod ctld;
mod draft;
mod istgt;
mod json;
mod lio;
mod portals;
mod scst;
mod strictest;
mod tgt;
mod ucl;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use self::draft::DENIED_INITIATOR;
pub use self::tgt::{show_as_tgt, tgt_unit};
use crate::desired::Document;

/// Of why nothing is carried, so many are told.
const REASONS: usize = 3;
/// The longest that any of the programs has is shorter.
const LONGEST_KEY: usize = 40;

/// Whose configuration it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The Linux kernel's target: `saveconfig.json`, as targetcli writes it.
    Lio,
    /// tgt: `targets.conf`.
    Tgt,
    /// SCST: `scst.conf`, as scstadmin writes it.
    Scst,
    /// FreeBSD: `ctl.conf`, in its own and in UCL's notation.
    Ctld,
    /// istgt: `istgt.conf`.
    Istgt,
}

impl Origin {
    /// What its file is called, in a sentence.
    fn file(self) -> &'static str {
        match self {
            Self::Lio => "a saveconfig.json",
            Self::Tgt => "a targets.conf",
            Self::Scst => "an scst.conf",
            Self::Ctld => "a ctl.conf",
            Self::Istgt => "an istgt.conf",
        }
    }
}

/// What became of a configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// What the server is to be.
    pub document: Document,
    /// What could not be carried, in the order of the file.
    pub complaints: Vec<Complaint>,
    /// The file does not say where the program listened: the document has no portal.
    pub assumes_portals: bool,
}

impl Imported {
    /// Whether clients notice what could not be carried.
    pub fn is_degraded(&self) -> bool {
        self.complaints.iter().any(|complaint| complaint.weight == Weight::Loss)
    }
}

/// Something that could not be carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Complaint {
    /// How much it matters.
    pub weight: Weight,
    /// File and line, or file and the way to the field.
    pub place: String,
    /// What it was.
    pub what: String,
    /// What that means, and what to do instead.
    pub remedy: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.what, self.remedy)
    }
}

/// How much a complaint matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// Clients do not notice.
    Note,
    /// A client finds something else than before, or does not get in.
    Loss,
}

/// Why a file cannot be read as a configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct ImportError {
    /// File and line.
    pub place: String,
    /// What is wrong there, and what to do.
    pub message: String,
}

impl ImportError {
    fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into() }
    }
}

/// The files that a configuration includes.
pub trait Files {
    /// The text of one.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// Those that a pattern of a shell names, in order.
    fn matching(&self, pattern: &str) -> Vec<PathBuf>;
}

/// Reads the text of a configuration; `path` is for messages, and for what is named relative to it.
pub fn import(
    origin: Origin,
    path: &Path,
    text: &str,
    files: &dyn Files,
) -> Result<Imported, ImportError> {
    let imported = match origin {
        Origin::Lio => lio::import(path, text),
        Origin::Tgt => tgt::import(path, text, files),
        Origin::Scst => scst::import(path, text),
        Origin::Ctld => ctld::import(path, text, files),
        Origin::Istgt => istgt::import(path, text, files),
    }?;
    if imported.document.target.is_empty() && imported.document.volume.is_empty() {
        let mut message =
            format!("it has neither a target nor a volume; check that it is {}", origin.file());
        let lost = imported.complaints.iter().filter(|one| one.weight == Weight::Loss);
        lost.take(REASONS).for_each(|one| message += &format!("\n  {one}"));
        return Err(ImportError::new(path.display().to_string(), message));
    }
    Ok(imported)
}

/// A key for messages. What is none, as in a file of another kind, may be a secret.
fn shown_key(key: &str) -> &str {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    match (1..=LONGEST_KEY).contains(&key.len()) && key.bytes().all(allowed) {
        true => key,
        false => "an invalid key",
    }
}

#[cfg(test)]
mod tests;
