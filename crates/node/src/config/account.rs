//! Accounts: the names and secrets with which initiators and targets authenticate. The text of the configuration is
//! displayed and copied, so it never contains a secret: secrets are in files or environment variables.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use sarsen_io::file::open_to_read;
use sarsen_proto::iscsi::chap::Secret;
use sarsen_wire::iscsi::text::MAX_VALUE_LENGTH;
use zeroize::Zeroizing;

use super::ConfigError;
use super::file::{Setting, unknown_key};

const KEYS: &[&str] = &["name", "secret-file", "secret-env"];
/// The permitted lengths of a secret. RFC 7143 §9.2.1 requires at least 96 random bits. Longer secrets than the maximum
/// are not portable.
const SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 12..=255;
/// The permission bits that a secret file must not grant to group and others.
const OTHERS: u32 = 0o077;

/// An account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountConfig {
    /// Unique name: CHAP_N.
    pub name: String,
    /// The place of its secret.
    pub secret: SecretSource,
    /// The place in the configuration.
    pub place: String,
}

/// The place of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// In a file that only its owner can read.
    File(PathBuf),
    /// In an environment variable of this name.
    Environment(String),
    /// In the server's state.
    Kept(Secret),
}

impl AccountConfig {
    /// Creates an account. Its name must be valid as CHAP_N.
    pub(crate) fn new(
        name: String,
        secret: SecretSource,
        place: &str,
    ) -> Result<Self, ConfigError> {
        let valid =
            (1..=MAX_VALUE_LENGTH).contains(&name.len()) && !name.contains(char::is_control);
        if valid {
            Ok(AccountConfig { name, secret, place: place.to_owned() })
        } else {
            Err(ConfigError::new(
                place,
                format!(
                    "account name {name:?}: 1 to {MAX_VALUE_LENGTH} bytes without control characters"
                ),
            ))
        }
    }

    /// Reads the secret. The secret may change at any time, so callers must not keep it longer than they use it.
    pub fn read_secret(&self) -> Result<Secret, ConfigError> {
        // Every buffer that held the secret is zeroed.
        let (secret, origin) = match &self.secret {
            SecretSource::File(path) => {
                let wrong = |what: String| self.wrong(&format!("{}: {what}", path.display()));
                let bytes = read_private(path).map_err(wrong)?;
                let text = std::str::from_utf8(&bytes).map_err(|_| wrong("is not text".into()))?;
                (Zeroizing::new(text.to_owned()), path.display().to_string())
            }
            SecretSource::Environment(name) => {
                let text = std::env::var(name).map_err(|_| {
                    self.wrong(&format!("the variable {name} is not set: set it to the secret"))
                })?;
                (Zeroizing::new(text), name.clone())
            }
            SecretSource::Kept(Secret(text)) => {
                (Zeroizing::new(text.clone()), "the server's state".to_owned())
            }
        };
        let secret = secret.strip_suffix('\n').unwrap_or(&secret);
        let secret = secret.strip_suffix('\r').unwrap_or(secret);
        let (shortest, longest) = SECRET_LENGTHS.into_inner();
        if !SECRET_LENGTHS.contains(&secret.len()) {
            return Err(self.wrong(&format!(
                "the secret in {origin} has {} bytes: write {shortest} to {longest}",
                secret.len()
            )));
        }
        Ok(Secret(secret.to_owned()))
    }

    pub(crate) fn wrong(&self, message: &str) -> ConfigError {
        ConfigError::new(&self.place, format!("account {}: {message}", self.name))
    }
}

/// Reads a file that only its owner can access. Reading stops at the maximum length of a secret.
pub(crate) fn read_private(path: &std::path::Path) -> Result<Zeroizing<Vec<u8>>, String> {
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

/// Parses the `NAME=FILE` of a flag.
pub fn parse_account(text: &str) -> Result<AccountConfig, ConfigError> {
    let place = format!("--account {text}");
    let Some((name, path)) = text.split_once('=').filter(|(_, path)| !path.is_empty()) else {
        return Err(ConfigError::new(place, "write NAME=FILE, the file with the secret"));
    };
    AccountConfig::new(name.to_owned(), SecretSource::File(path.into()), &place)
}

/// Parses a table of the file.
pub(super) fn account_from_settings(
    settings: Vec<Setting>,
    place: &str,
) -> Result<AccountConfig, ConfigError> {
    let (mut name, mut secret) = (None, None);
    for Setting { key, value, place } in settings {
        let source = match key.as_str() {
            "name" => {
                name = Some(value);
                continue;
            }
            "secret-file" => SecretSource::File(value.into()),
            "secret-env" => SecretSource::Environment(value),
            "secret" => {
                return Err(ConfigError::new(
                    place,
                    "secret: this file may not contain secrets; write secret-file = PATH or secret-env = NAME",
                ));
            }
            _ => return Err(unknown_key(&place, &key, KEYS)),
        };
        if secret.replace(source).is_some() {
            return Err(ConfigError::new(
                place,
                "secret-file and secret-env: only one of them is possible; remove the other",
            ));
        }
    }
    let missing = |key| ConfigError::missing(place, "the account", key);
    let name = name.ok_or_else(|| missing("name"))?;
    AccountConfig::new(name, secret.ok_or_else(|| missing("secret-file"))?, place)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    fn secret_file(content: &[u8], mode: u32) -> (tempfile::TempDir, AccountConfig) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
        let account = parse_account(&format!("host={}", path.display())).expect("an account");
        (folder, account)
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
            assert!(message.starts_with("--account host=") && !message.contains("twelve bytes"));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
        assert!(made.success());
        // A blocking open of the pipe would wait forever for a writer.
        let account = parse_account(&format!("host={}", pipe.display())).expect("an account");
        let message = account.read_secret().expect_err("no file").to_string();
        assert!(message.contains("neither a regular file"), "{message}");
        let nowhere = parse_account("host=/nonexistent/secret").expect("an account");
        let message = nowhere.read_secret().expect_err("no file").to_string();
        assert!(message.contains("cannot read the secret: "), "{message}");
        let variable = SecretSource::Environment("SARSEN_TEST_NO_SUCH_VARIABLE".into());
        let account = AccountConfig { secret: variable, ..nowhere };
        let message = account.read_secret().expect_err("no variable").to_string();
        assert!(message.contains("SARSEN_TEST_NO_SUCH_VARIABLE is not set"), "{message}");
    }

    #[test]
    fn a_flag_names_account_and_file() {
        let account = parse_account("a=b=/x=y").expect("an account");
        assert_eq!(
            (account.name.as_str(), account.secret),
            ("a", SecretSource::File("b=/x=y".into()))
        );
        for text in ["host", "host=", "=/x", "a\tb=/x"] {
            let message = parse_account(text).expect_err(text).to_string();
            assert!(message.starts_with(&format!("--account {text}: ")), "{message}");
        }
    }
}
