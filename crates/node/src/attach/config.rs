//! The configuration of an attachment, and the file that lists those of a machine.

use std::path::{Path, PathBuf};

use sarsen_initiator::{Chap, PathSelector, Url};
use serde::{Deserialize, Serialize};

use super::AttachError;
use crate::config::AccountConfig;
use crate::model::{PathWait, RemotePlace, RemoteUrl, Words, words};

/// How long requests wait for a path by default, before they fail: as long as those of open-iscsi.
const DEFAULT_PATH_WAIT_MS: u64 = 120_000;
/// Variables of the environment with secrets, if no file is named. They are those of `sarsen disk`.
const SECRET_VARIABLE: &str = "LIBISCSI_CHAP_PASSWORD";
const TARGET_SECRET_VARIABLE: &str = "LIBISCSI_CHAP_TARGET_PASSWORD";

/// The kind of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// A block device of the kernel's ublk driver.
    Ublk,
    /// A block device of the kernel's NBD client.
    Nbd,
    /// A socket for NBD clients.
    NbdSocket,
    /// A socket at which a virtual machine has a virtio block device.
    VhostUserBlk,
}

impl Words for DiskKind {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("ublk", Self::Ublk),
        ("nbd", Self::Nbd),
        ("nbd-socket", Self::NbdSocket),
        ("vhost-user-blk", Self::VhostUserBlk),
    ];
}

impl DiskKind {
    /// Returns its word.
    pub fn name(self) -> &'static str {
        let named = Self::WORDS.iter().find(|(_, kind)| *kind == self);
        named.map_or("", |(word, _)| word)
    }

    /// Returns whether the disk is a socket. The others are block devices of the kernel.
    pub fn is_socket(self) -> bool {
        match self {
            Self::NbdSocket | Self::VhostUserBlk => true,
            Self::Ublk | Self::Nbd => false,
        }
    }
}

/// An attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AttachmentConfig {
    /// Its name: letters, digits, `.`, `_` and `-`, up to 64.
    pub name: String,
    /// The URL of the unit or of the export, without secrets.
    pub url: RemoteUrl,
    /// The kind of the disk. Default: ublk if the kernel has it, otherwise nbd.
    #[serde(
        rename = "as",
        default,
        skip_serializing_if = "Option::is_none",
        with = "words::option"
    )]
    pub kind: Option<DiskKind>,
    /// The path of the socket, for nbd-socket and vhost-user-blk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Whether writes are rejected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// A file with the secret of the URL's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// A file with the secret of the URL's target_user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_secret_file: Option<PathBuf>,
    /// The iSCSI name with which the unit is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator_name: Option<String>,
    /// Whether the portals that the target reports are left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_these_portals: bool,
    /// How a path is chosen for each command.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    pub path_selector: Option<PathSelector>,
    /// How long requests wait while no path works, before they fail. Default: 120s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_wait: Option<PathWait>,
}

impl AttachmentConfig {
    /// Returns an attachment of a unit, with the default for everything else.
    pub fn new(url: RemoteUrl) -> Self {
        Self {
            name: default_name(&url),
            url,
            kind: None,
            socket: None,
            read_only: false,
            secret_file: None,
            target_secret_file: None,
            initiator_name: None,
            only_these_portals: false,
            path_selector: None,
            path_wait: None,
        }
    }

    /// Returns an error with the first mistake.
    pub fn check(&self) -> Result<(), AttachError> {
        check_name(&self.name)?;
        let no_users = Chap::default();
        let chap = self.url.iscsi().map_or(&no_users, |url| &url.chap);
        let problem = match self {
            Self { kind: Some(kind), socket: None, .. } if kind.is_socket() => {
                "socket: a disk of this kind needs a path; add --socket PATH, or socket = \"PATH\" in the file"
            }
            Self { kind, socket: Some(_), .. } if !kind.is_some_and(DiskKind::is_socket) => {
                "socket: only a disk as nbd-socket or vhost-user-blk has one; add --as KIND, or as = \"KIND\" in the file"
            }
            Self { socket: Some(socket), .. } if !socket.is_absolute() => {
                "socket: the path must be absolute"
            }
            Self { secret_file, target_secret_file, .. }
                if self.url.iscsi().is_none()
                    && (secret_file.is_some() || target_secret_file.is_some()) =>
            {
                "secret-file, target-secret-file: an export of an NBD server has no users; remove the key"
            }
            Self { secret_file: Some(_), .. } if chap.user.is_none() => {
                "secret-file: the URL names no user; write iscsi://USER@HOST/TARGET/LUN"
            }
            Self { target_secret_file: Some(_), .. } if chap.target_user.is_none() => {
                "target-secret-file: the URL names no target_user; add ?target_user=USER"
            }
            Self { initiator_name, only_these_portals, path_selector, .. }
                if self.url.iscsi().is_none()
                    && (initiator_name.is_some()
                        || *only_these_portals
                        || path_selector.is_some()) =>
            {
                "initiator-name, only-these-portals and path-selector are for units of iSCSI targets; an export of an NBD server has none of them"
            }
            _ => return Ok(()),
        };
        Err(AttachError::Invalid(format!("attachment {}: {problem}", self.name)))
    }

    /// Returns the users of the URL with their secrets.
    pub(super) fn accounts(&self) -> Vec<AccountConfig> {
        let account = |name: &Option<String>, file: &Option<PathBuf>, variable: &str| {
            let name = name.clone()?;
            let secret_env = file.is_none().then(|| variable.to_owned());
            Some(AccountConfig {
                name,
                secret_file: file.clone(),
                secret_env,
                ..AccountConfig::default()
            })
        };
        let Some(chap) = self.url.iscsi().map(|url| &url.chap) else { return Vec::new() };
        let user = account(&chap.user, &self.secret_file, SECRET_VARIABLE);
        let target = account(&chap.target_user, &self.target_secret_file, TARGET_SECRET_VARIABLE);
        user.into_iter().chain(target).collect()
    }

    pub(super) fn path_wait(&self) -> PathWait {
        let default = || PathWait::new(DEFAULT_PATH_WAIT_MS).expect("within the range");
        self.path_wait.unwrap_or_else(default)
    }
}

/// Returns the last part of the name of the target or of the export, with the LUN if it is not 0.
fn default_name(url: &RemoteUrl) -> String {
    let (name, lun) = match url.place() {
        RemotePlace::Iscsi(Url { target, lun, .. }) => (target, lun.to_string()),
        RemotePlace::Nbd(url) => (&url.export, String::from("0")),
    };
    let last = name.rsplit([':', '/']).next().filter(|last| !last.is_empty()).unwrap_or("nbd");
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = last.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect();
    match lun.as_str() {
        "0" => name,
        lun => format!("{name}-{lun}"),
    }
}

/// Refuses a name that cannot be the name of a folder.
pub(super) fn check_name(name: &str) -> Result<(), AttachError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=64).contains(&name.len()) && name.chars().all(is_allowed) && !name.starts_with('.') {
        return Ok(());
    }
    Err(AttachError::Invalid(format!(
        "{name:?} is not a name of an attachment: use 1 to 64 letters, digits, '.', '_' and '-', and no '.' at the beginning"
    )))
}

/// The document of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    attachment: Vec<AttachmentConfig>,
}

/// Parses the file that lists the attachments of a machine: a table `[[attachment]]` for each.
pub fn parse_file(path: &Path, text: &str) -> Result<Vec<AttachmentConfig>, AttachError> {
    let wrong = |problem: String| AttachError::Invalid(format!("{}: {problem}", path.display()));
    let document: Document = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let mut names = std::collections::BTreeSet::new();
    for attachment in &document.attachment {
        attachment.check().map_err(|error| wrong(error.to_string()))?;
        if !names.insert(&attachment.name) {
            return Err(wrong(format!(
                "attachment {}: two have this name; rename one",
                attachment.name
            )));
        }
    }
    Ok(document.attachment)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/etc/sarsen/attach.toml";

    #[test]
    fn file_lists_attachments_and_reports_mistakes_with_their_place() {
        let parse = |text: &str| parse_file(Path::new(FILE), text);
        let text = "[[attachment]]\nname = \"data\"\nurl = \"iscsi://me@h/iqn.2026-01.x:a/0\"\nas = \"nbd\"\nsecret-file = \"/s\"\n";
        let attachments = parse(text).unwrap();
        assert_eq!((attachments.len(), attachments[0].kind), (1, Some(DiskKind::Nbd)));
        assert_eq!(attachments[0].accounts()[0].secret_file.as_deref(), Some(Path::new("/s")));
        for (from, to, part) in [
            ("as = \"nbd\"", "as = \"scsi\"", "ublk"),
            ("as = \"nbd\"", "as = \"nbd-socket\"", "needs a path"),
            ("as = \"nbd\"", "socket = \"/run/x\"", "only a disk as nbd-socket"),
            ("me@", "", "names no user"),
            ("me@", "me%twelve-bytes@", "no secret"),
            ("name = \"data\"", "name = \"../data\"", "not a name"),
            ("name = \"data\"", "name = \"data\"\nnane = \"x\"", "nane"),
        ] {
            let error = parse(&text.replace(from, to)).expect_err(to).to_string();
            assert!(error.starts_with(FILE) && error.contains(part), "{error}");
        }
        let error = parse(&format!("{text}{text}")).expect_err("two").to_string();
        assert!(error.contains("two have this name"), "{error}");
    }

    #[test]
    fn default_name_is_the_end_of_the_targets_name() {
        for (url, name) in [
            ("iscsi://h/iqn.2026-01.x:data/0", "data"),
            ("iscsi://h/iqn.2026-01.x:data/3", "data-3"),
            ("iscsi://h/iqn.2026-01.x/0", "iqn.2026-01.x"),
            ("nbd://h/a/disk", "disk"),
            ("nbd://h", "nbd"),
        ] {
            assert_eq!(default_name(&url.parse().unwrap()), name);
        }
    }
}
