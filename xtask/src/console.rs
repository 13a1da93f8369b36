//! `cargo xtask console`: builds the console with npm. The result is committed, so that the program builds with cargo
//! alone. The full gate checks that the committed files match the source.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::shell::{self, Finished};
use anyhow::{Context as _, Result, ensure};

const SOURCE: &str = "console";
const BUILT: &str = "console/dist";
/// Time limit to fetch a few packages over a slow line.
const PACKAGES_LIMIT: Duration = Duration::from_secs(300);

/// Builds the console.
pub(crate) fn build() -> Result<()> {
    fetch()?.success()?;
    shell::run(npm().args(["run", "build"]))
}

/// Checks that the committed files match the source, if npm is available.
pub(crate) fn check() -> Result<()> {
    if !shell::succeeds(Command::new("npm").arg("--version")) {
        println!("not checked: npm is not there (the packages nodejs and npm bring it)");
        return Ok(());
    }
    let fetched = fetch()?;
    if ["ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED"].iter().any(|why| fetched.output.contains(why)) {
        println!("not checked: the registry of npm's packages cannot be reached from here");
        return Ok(());
    }
    fetched.success()?;
    let folder = tempfile::tempdir()?;
    shell::run(npm().args(["run", "build", "--", "--emptyOutDir", "--outDir"]).arg(folder.path()))?;
    let (source, committed) = (files(folder.path())?, files(Path::new(BUILT))?);
    ensure!(
        source == committed,
        "{BUILT} is not what {SOURCE} gives: run `cargo xtask console` and commit it"
    );
    Ok(())
}

fn npm() -> Command {
    let mut command = Command::new("npm");
    command.args(["--prefix", SOURCE]);
    command
}

/// Fetches the packages that the lock file names.
fn fetch() -> Result<Finished> {
    shell::finish(npm().args(["ci", "--no-audit", "--no-fund"]), PACKAGES_LIMIT)
}

/// Returns the contents of a folder, by path.
fn files(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder)?.to_owned(), fs::read(&path)?);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_alike_when_their_files_are() {
        let folders = [tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two")];
        for folder in &folders {
            fs::create_dir(folder.path().join("assets")).expect("made");
            fs::write(folder.path().join("assets/a"), "a").expect("written");
        }
        let read = || folders.each_ref().map(|folder| files(folder.path()).expect("read"));
        let [one, two] = read();
        assert_eq!(one, two);
        assert!(one.contains_key(Path::new("assets/a")));
        fs::write(folders[0].path().join("assets/a"), "b").expect("written");
        let [one, two] = read();
        assert_ne!(one, two);
    }
}
