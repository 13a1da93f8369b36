//! Accounts: the names and secrets with which initiators and targets authenticate. A configuration file is displayed and
//! copied, so it never contains a secret: secrets are in files, in environment variables, or in the server's state.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sarsen_io::file::open_to_read;
use sarsen_proto::iscsi::chap::Secret;
use sarsen_wire::iscsi::text::MAX_VALUE_LENGTH;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use super::invalid::{FieldError, Invalid};
use super::{Key, ObjectKind, values};

/// The permitted lengths of a secret. RFC 7143 §9.2.1 requires at least 96 random bits. Longer secrets than the maximum
/// are not portable.
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 12..=255;
/// The permission bits that a secret file must not grant to group and others.
const OTHERS: u32 = 0o077;

/// An account: a name and a secret for CHAP. The secret is in a file, in a variable, or in the server's state.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Account {
    /// Unique name: CHAP_N.
    pub name: String,
    /// The secret, 12 to 255 bytes. It can be set, and is only shown by an export with secrets.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "values::secret")]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<Secret>,
    /// A file of the server with the secret. Other users must not be able to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub secret_file: Option<PathBuf>,
    /// An environment variable of the server with the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
}

/// Formats without the secret.
impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Account {
    pub(crate) fn check(&self) -> Result<(), FieldError> {
        let Self { name, secret, secret_file, secret_env } = self;
        if !(1..=MAX_VALUE_LENGTH).contains(&name.len()) || name.contains(char::is_control) {
            let message = format!(
                "account name {name:?}: 1 to {MAX_VALUE_LENGTH} bytes without control characters"
            );
            return Err(FieldError::new("name", message));
        }
        match (secret, secret_file, secret_env) {
            (None, None, None) => {
                Err(FieldError::new("", "the account has no secret-file: add it"))
            }
            (Some(secret), None, None) => check_length(stripped(&secret.0), "the server's state")
                .map_err(|message| FieldError::new("secret", format!("account {name}: {message}"))),
            (None, Some(_), None) | (None, None, Some(_)) => Ok(()),
            (None, ..) => {
                let message =
                    "secret-file and secret-env: only one of them is possible; remove the other";
                Err(FieldError::new("secret-env", message))
            }
            (Some(_), ..) => {
                let message = "give secret, secret-file or secret-env, one of them";
                Err(FieldError::new("secret", message))
            }
        }
    }

    /// Reads the secret. The secret may change at any time, so callers must not keep it longer than they use it.
    pub fn read_secret(&self) -> Result<Secret, Invalid> {
        // Every buffer that held the secret is zeroed.
        let (secret, field, origin) = match (&self.secret_file, &self.secret_env, &self.secret) {
            (Some(path), ..) => {
                let wrong = |what: String| {
                    self.wrong("secret-file", &format!("{}: {what}", path.display()))
                };
                let bytes = read_private(path).map_err(wrong)?;
                let text = std::str::from_utf8(&bytes).map_err(|_| wrong("is not text".into()))?;
                (Zeroizing::new(text.to_owned()), "secret-file", path.display().to_string())
            }
            (_, Some(name), _) => {
                let text = std::env::var(name).map_err(|_| {
                    let what = format!("the variable {name} is not set: set it to the secret");
                    self.wrong("secret-env", &what)
                })?;
                (Zeroizing::new(text), "secret-env", name.clone())
            }
            (.., Some(Secret(text))) => {
                (Zeroizing::new(text.clone()), "secret", "the server's state".to_owned())
            }
            (None, None, None) => return Err(self.wrong("", "it has no secret: set one")),
        };
        let secret = stripped(&secret);
        check_length(secret, &origin).map_err(|message| self.wrong(field, &message))?;
        Ok(Secret(secret.to_owned()))
    }

    /// Returns whether both have their secret at the same place.
    pub(crate) fn has_same_source(&self, other: &Self) -> bool {
        let Self { name: _, secret, secret_file, secret_env } = self;
        *secret == other.secret
            && *secret_file == other.secret_file
            && *secret_env == other.secret_env
    }

    pub(crate) fn wrong(&self, field: &str, message: &str) -> Invalid {
        let key = Key::new(ObjectKind::Account, &self.name);
        Invalid::new(key, field, format!("account {}: {message}", self.name))
    }
}

/// Returns a secret without the end of its line.
fn stripped(secret: &str) -> &str {
    let secret = secret.strip_suffix('\n').unwrap_or(secret);
    secret.strip_suffix('\r').unwrap_or(secret)
}

fn check_length(secret: &str, origin: &str) -> Result<(), String> {
    if SECRET_LENGTHS.contains(&secret.len()) {
        return Ok(());
    }
    let (shortest, longest) = SECRET_LENGTHS.into_inner();
    let length = secret.len();
    Err(format!("the secret in {origin} has {length} bytes: write {shortest} to {longest}"))
}

/// Reads a file that only its owner can access. Reading stops at the maximum length of a secret.
pub(crate) fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let remedy = |error: std::io::Error| format!("cannot read the secret: {error}");
    let file = open_to_read(path).map_err(remedy)?;
    // The mode is that of the open file: a file that replaces it meanwhile is not read.
    let mode = file.metadata().map_err(remedy)?.permissions().mode();
    if mode & OTHERS != 0 {
        return Err(format!(
            "users other than the owner can read this secret (mode {:04o}); run chmod 600 {}",
            mode & 0o7777,
            path.display()
        ));
    }
    // The limit includes the end of the line.
    let limit = *SECRET_LENGTHS.end() as u64 + 2;
    // A growing buffer would leave copies of the secret in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(4 * SECRET_LENGTHS.end()));
    file.take(limit + 1).read_to_end(&mut bytes).map_err(remedy)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    fn secret_file(content: &[u8], mode: u32) -> (tempfile::TempDir, Account) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
        (folder, in_file(path))
    }

    fn in_file(path: impl Into<PathBuf>) -> Account {
        let secret_file = Some(path.into());
        Account { name: "host".into(), secret_file, ..Account::default() }
    }

    #[test]
    fn a_secret_is_the_line_that_its_file_holds() {
        for (content, secret) in [
            (&b"twelve bytes"[..], "twelve bytes"),
            (b"twelve bytes\n", "twelve bytes"),
            (b"twelve bytes \r\n", "twelve bytes "),
            (b"twelve bytes\n\n", "twelve bytes\n"),
            (&[b'x'; 255], &"x".repeat(255)),
        ] {
            let (_folder, account) = secret_file(content, 0o400);
            assert_eq!(account.read_secret().expect("a secret"), Secret(secret.into()));
        }
    }

    #[test]
    fn rfc7143_9_2_1_a_secret_that_others_know_or_guess_is_refused_with_the_remedy() {
        for (content, mode, reported) in [
            (
                &b"twelve bytes"[..],
                0o640,
                "users other than the owner can read this secret (mode 0640); run chmod 600 ",
            ),
            (b"twelve bytes", 0o604, "(mode 0604)"),
            (b"eleven byte\n", 0o600, "has 11 bytes: write 12 to 255"),
            (&[b'x'; 256], 0o600, "has 256 bytes"),
            (&[b'x'; 4096], 0o600, "bytes: write 12 to 255"),
            (&[0xff; 20], 0o600, "is not text"),
        ] {
            let (_folder, account) = secret_file(content, mode);
            let message = account.read_secret().expect_err(reported).to_string();
            assert!(message.contains(reported), "{message}");
            assert!(message.starts_with("account/host.secret-file: account host: "), "{message}");
            assert!(!message.contains("twelve bytes"), "{message}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
        assert!(made.success());
        // A blocking open of the pipe would wait forever for a writer.
        let account = in_file(pipe);
        let message = account.read_secret().expect_err("no file").to_string();
        assert!(message.contains("neither a regular file"), "{message}");
        let nowhere = in_file("/nonexistent/secret");
        let message = nowhere.read_secret().expect_err("no file").to_string();
        assert!(message.contains("cannot read the secret: "), "{message}");
        let secret_env = Some("SARSEN_TEST_NO_SUCH_VARIABLE".into());
        let account = Account { secret_file: None, secret_env, ..nowhere };
        let message = account.read_secret().expect_err("no variable").to_string();
        assert!(message.contains("SARSEN_TEST_NO_SUCH_VARIABLE is not set"), "{message}");
    }
}
