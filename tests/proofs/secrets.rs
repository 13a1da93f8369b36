//! The server protects its secrets: other users cannot read its files, and core dumps do not contain its memory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;
use sarsen_proof::program;

/// The user nobody, who owns no files.
const OTHER: u32 = 65534;

/// Starts a server whose parent process has an open umask: the server itself must protect the files that it creates.
fn start(folder: &Path) -> Result<Managed> {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 022; exec \"$0\" \"$@\""]).arg(program::path()?);
    command.args(["serve", "--listen", "127.0.0.1:0", "--logout-grace", "1", "--json"]);
    Managed::start_command(command, folder, &["--api", "0.0.0.0:0"])
}

/// Returns each path below a folder, with its mode.
fn modes(folder: &Path) -> Result<Vec<(String, bool, u32)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        let mode = metadata.permissions().mode() & 0o7777;
        found.push((path.display().to_string(), metadata.is_dir(), mode));
        if metadata.is_dir() {
            found.extend(modes(&path)?);
        }
    }
    Ok(found)
}

fn is_closed(state: &Path) -> Result<()> {
    let found = modes(state)?;
    for name in
        ["/api.token", "/api.key", "/api.pem", "/volumes/data.img", "/volumes/hidden.img.state/key"]
    {
        ensure!(found.iter().any(|(path, ..)| path.ends_with(name)), "{name} is not in {found:?}");
    }
    ensure!(found.iter().any(|(path, ..)| path.contains("/events.")), "{found:?}");
    for (path, is_folder, mode) in &found {
        let wanted = if *is_folder { 0o700 } else { 0o600 };
        ensure!(*mode == wanted, "{path}: {mode:04o}");
    }
    let folder = fs::metadata(state)?.permissions().mode() & 0o7777;
    ensure!(folder == 0o700, "{folder:04o}");
    Ok(())
}

#[test]
fn server_files_are_readable_by_owner_only() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let server = start(folder.path())?;
    server.run(&["volume", "create", "data", "1MiB", "--export", "--chap", "vm"])?;
    server.run(&["volume", "create", "hidden", "1MiB", "--encrypted"])?;
    is_closed(&state)?;
    server.stop()?;
    // An earlier version created the files with these modes.
    for (path, is_folder, _) in modes(&state)? {
        // The server refuses a key that other users can read, whichever program created it.
        if !path.ends_with(".token") && !path.ends_with("key") {
            let mode = if is_folder { 0o755 } else { 0o644 };
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
    }
    let server = start(folder.path())?;
    is_closed(&state)?;
    server.stop()
}

/// The files in /proc of a process belong to its user if the process may be dumped, and otherwise to root (proc(5)).
#[test]
fn no_core_dump_and_no_other_process_has_its_memory() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let is_root = rustix::process::geteuid().is_root();
    let mut command = if is_root {
        chown(folder.path(), Some(OTHER), Some(OTHER))?;
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(program::path()?);
        command
    } else {
        Command::new(program::path()?)
    };
    command.args(["serve", "--listen", "127.0.0.1:0", "--logout-grace", "1", "--json"]);
    let server = Managed::start_command(command, folder.path(), &[])?;
    let process = Path::new("/proc").join(server.pid().to_string());
    let status = fs::read_to_string(process.join("status"))?;
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:")).context("its user")?;
    ensure!(!user.split_whitespace().any(|id| id == "0"), "it runs as {user}");
    for file in ["maps", "mem", "environ"] {
        let owner = fs::metadata(process.join(file))?.uid();
        ensure!(owner == 0, "{file} is readable for user {owner}");
    }
    server.stop()
}

#[test]
fn secret_that_cannot_be_printed_is_an_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let full = || fs::OpenOptions::new().write(true).open("/dev/full");
    for arguments in [&["account", "create", "vm"][..], &["account", "secret", "vm"]] {
        let status = server.command(arguments)?.stderr(full()?).status()?;
        ensure!(status.code() == Some(1), "{arguments:?}: {status}");
    }
    server.run(&["account", "secret", "vm"])?;
    server.stop()
}
