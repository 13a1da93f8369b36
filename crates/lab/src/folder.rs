//! A private folder that is removed when this process ends, even if it is killed.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Prefix of the folders of a run, to find the remains of a killed run.
pub(crate) const RUN_PREFIX: &str = "sarsen-lab-";

/// A folder that is removed with its content when this is dropped, and also when this process is killed: a shell waits
/// for the end of a pipe that only this process holds.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    keeper: Child,
}

impl PrivateFolder {
    /// Creates a folder in `parent`; its name begins with `prefix`. Only its owner can read it.
    pub fn new(parent: &Path, prefix: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let keeper = Command::new("sh")
            .args(["-c", r#"read -r nothing; rm -rf -- "$0""#])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Signals of the terminal to this process do not reach the shell.
            .process_group(0)
            .spawn()?;
        Ok(Self { path: folder.keep(), keeper })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // `wait` closes the pipe first. If the shell has ended already, this removes the folder.
        let removed = self.keeper.wait().is_ok_and(|status| status.success());
        if !removed {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_removed_with_content() {
        let parent = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::new(parent.path(), "it's private ").unwrap();
        std::fs::create_dir(folder.path().join("deeper")).unwrap();
        std::fs::write(folder.path().join("deeper/file"), "x").unwrap();
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists() && parent.path().exists());
    }

    #[test]
    fn folder_is_removed_without_its_shell() {
        let parent = tempfile::tempdir().unwrap();
        let mut folder = PrivateFolder::new(parent.path(), "private-").unwrap();
        folder.keeper.kill().unwrap();
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
