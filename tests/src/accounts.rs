//! Accounts for the program under test: secrets in files that other users cannot read, and the configuration that names
//! them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::Result;
use tempfile::TempDir;

/// Files of secrets that are deleted when this is dropped.
#[derive(Debug)]
pub struct Accounts {
    folder: TempDir,
    tables: String,
}

impl Accounts {
    /// Creates accounts from names and secrets.
    pub fn new(accounts: &[(&str, &str)]) -> Result<Self> {
        let mut made = Self { folder: tempfile::tempdir()?, tables: String::new() };
        for (name, secret) in accounts {
            let path = made.secret_file(name);
            // QEMU treats a newline as a part of the secret.
            fs::write(&path, secret)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            let path = path.display();
            made.tables += &format!("[[account]]\nname = \"{name}\"\nsecret-file = \"{path}\"\n");
        }
        Ok(made)
    }

    /// Returns the path of an account's secret.
    pub fn secret_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.secret"))
    }

    /// Writes a configuration of these accounts and `tables`; returns its path.
    pub fn configuration(&self, tables: &str) -> Result<String> {
        let path = self.folder.path().join("sarsen.toml");
        fs::write(&path, format!("{}{tables}", self.tables))?;
        Ok(path.display().to_string())
    }
}
