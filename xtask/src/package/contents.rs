//! The files of a package and their paths on a machine, for every kind of package.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::shell;

/// Files of the repository, and their paths.
const FILES: &[(&str, &str)] = &[
    ("packaging/multipath/sarsen.conf", "etc/multipath/conf.d/sarsen.conf"),
    ("packaging/attach.toml", "etc/sarsen/attach.toml"),
    ("packaging/sarsen.toml", "etc/sarsen/sarsen.toml"),
    ("packaging/systemd/sarsen.service", "usr/lib/systemd/system/sarsen.service"),
    ("packaging/systemd/sarsen-attach@.service", "usr/lib/systemd/system/sarsen-attach@.service"),
    ("packaging/systemd/sarsen.socket", "usr/lib/systemd/system/sarsen.socket"),
    ("packaging/systemd/devices.conf", "usr/share/doc/sarsen/examples/devices.conf"),
    ("README.md", "usr/share/doc/sarsen/README.md"),
    ("CHANGELOG.md", "usr/share/doc/sarsen/CHANGELOG.md"),
];
/// Folders of the repository that are copied whole, if they exist.
const FOLDERS: &[(&str, &str)] = &[
    ("docs", "usr/share/doc/sarsen/docs"),
    ("packaging/grafana", "usr/share/sarsen/grafana"),
    ("packaging/prometheus", "usr/share/sarsen/prometheus"),
];
/// Shells with completion, and the paths of their files.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/sarsen"),
    ("zsh", "usr/share/zsh/vendor-completions/_sarsen"),
    ("fish", "usr/share/fish/vendor_completions.d/sarsen.fish"),
];
/// Secrets belong to root: systemd passes them to the service.
const SECRETS: &str = "etc/sarsen/secrets";
const PAGES: &str = "usr/share/man";

/// Installs all files under `root`: the program, and the files that it generates.
pub(super) fn lay(program: &Path, root: &Path) -> Result<()> {
    lay_file(program, &root.join("usr/bin/sarsen"), 0o755)?;
    let installed = root.join("usr/bin/sarsen");
    shell::run(Command::new("strip").arg("--strip-unneeded").arg(&installed))?;
    for (from, to) in FILES {
        lay_file(Path::new(from), &root.join(to), 0o644)?;
    }
    for (from, to) in FOLDERS {
        if Path::new(from).is_dir() {
            lay_folder(Path::new(from), &root.join(to))?;
        }
    }
    for (shell_name, to) in COMPLETIONS {
        let script = shell::output(Command::new(program).args(["completions", shell_name]))?;
        write(&root.join(to), script.as_bytes())?;
    }
    let pages = root.join(PAGES);
    shell::run(Command::new(program).args(["man", "--out"]).arg(&pages))?;
    for page in files(&pages)? {
        let page = pages.join(page);
        set_mode(&page, 0o644)?;
        shell::run(Command::new("gzip").args(["-9", "--no-name"]).arg(&page))?;
    }
    let secrets = root.join(SECRETS);
    fs::create_dir_all(&secrets)?;
    set_mode(&secrets, 0o700)
}

fn lay_folder(from: &Path, to: &Path) -> Result<()> {
    for path in entries(from)? {
        let name = path.file_name().context("an entry has a name")?;
        if path.is_dir() {
            lay_folder(&path, &to.join(name))?
        } else {
            lay_file(&path, &to.join(name), 0o644)?
        }
    }
    Ok(())
}

fn lay_file(from: &Path, to: &Path, mode: u32) -> Result<()> {
    make_folder_of(to)?;
    fs::copy(from, to).with_context(|| format!("{} to {}", from.display(), to.display()))?;
    set_mode(to, mode)
}

/// Writes a file that every user may read.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<()> {
    make_folder_of(path)?;
    fs::write(path, content).with_context(|| path.display().to_string())?;
    set_mode(path, 0o644)
}

fn make_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().context("it has a folder")?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

pub(super) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Returns the entries of a folder, by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns every regular file in a folder, relative to it.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for path in entries(&next)? {
            if path.is_dir() {
                folders.push(path)
            } else {
                found.push(path.strip_prefix(folder)?.to_owned())
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packaged_files_are_in_repository() {
        for (from, to) in FILES {
            assert!(shell::root().join(from).is_file(), "{from} (for {to}) is not there");
        }
    }

    #[test]
    fn the_service_is_started_again_however_often_it_fails() {
        let path = shell::root().join("packaging/systemd/sarsen.service");
        let unit = fs::read_to_string(path).expect("the unit");
        let (general, service) = unit.split_once("[Service]").expect("two sections");
        assert!(general.lines().any(|line| line == "StartLimitIntervalSec=0"));
        assert!(service.lines().any(|line| line == "Restart=on-failure"));
    }

    #[test]
    fn a_folder_is_carried_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        write(&from.join("a/b.json"), b"{}").expect("written");
        write(&from.join("c"), b"").expect("written");
        lay_folder(&from, &to).expect("carried");
        assert_eq!(files(&to).expect("files"), [Path::new("a/b.json"), Path::new("c")]);
    }
}
