//! The import of other target programs' configurations, as a [`Document`] and a list of settings that could not be
//! imported. The caller passes the text; included files are read by [`Files`]. The import changes nothing.
//!
//! Each program has its own parser, and its own rules for the identity of a disk: multipath maps, udev's links and VMFS
//! depend on serial numbers and designators. `draft` is the common part.

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
pub(crate) use self::draft::denied_initiator;
pub use self::tgt::{set_tgtd_identity, show_as_tgt};
use sarsen_node::model::Document;

/// Maximum number of reasons in the error of an import without a result.
const REASONS: usize = 3;
/// Maximum length of a key. The keys of all programs are shorter.
const LONGEST_KEY: usize = 40;

/// The program that wrote a configuration.
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
    /// Returns the name of its file, for a sentence.
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

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// The imported configuration.
    pub document: Document,
    /// The settings that could not be imported, in the order of the file.
    pub complaints: Vec<Complaint>,
    /// The file does not specify the portals, so the document has none.
    pub assumes_portals: bool,
}

impl Imported {
    /// Returns whether clients notice settings that could not be imported.
    pub fn is_degraded(&self) -> bool {
        self.complaints.iter().any(|complaint| complaint.weight == ComplaintSeverity::Loss)
    }
}

/// A setting that could not be imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Complaint {
    /// The weight of the complaint.
    pub weight: ComplaintSeverity,
    /// File and line, or file and path of the field.
    pub place: String,
    /// The setting.
    pub what: String,
    /// The consequence, and the remedy.
    pub remedy: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.what, self.remedy)
    }
}

/// The weight of a complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComplaintSeverity {
    /// Clients do not notice it.
    Note,
    /// A client sees something else than before, or is not permitted.
    Loss,
}

/// The reason why a file cannot be read as a configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct ImportError {
    /// File and line.
    pub place: String,
    /// The problem and its remedy.
    pub message: String,
}

impl ImportError {
    fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into() }
    }
}

/// The files that a configuration includes.
pub trait Files {
    /// Reads the text of a file.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// Returns the files that match a shell pattern, in order.
    fn matching(&self, pattern: &str) -> Vec<PathBuf>;
}

/// Imports the text of a configuration. `path` is for messages, and the base of relative paths.
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
        let lost = imported.complaints.iter().filter(|one| one.weight == ComplaintSeverity::Loss);
        lost.take(REASONS).for_each(|one| message += &format!("\n  {one}"));
        return Err(ImportError::new(path.display().to_string(), message));
    }
    Ok(imported)
}

/// Returns a key for messages. A text that is not a key, as in a file of another kind, may be a secret.
fn shown_key(key: &str) -> &str {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if (1..=LONGEST_KEY).contains(&key.len()) && key.bytes().all(allowed) {
        key
    } else {
        "an invalid key"
    }
}

#[cfg(test)]
mod tests;
