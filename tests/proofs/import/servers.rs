//! The servers to import from, and this program with their imported configurations.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_proof::managed::Managed;
use sarsen_proof::process::{self, Daemon};
use sarsen_proof::program;

use super::attempt::{Attempt, Known};
use crate::client::LIMIT;

/// The port of a server, and the process that serves it.
pub(crate) struct Peer {
    pub(crate) port: u16,
    _daemon: Daemon,
}

pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts another server; tries again if another process has taken the port meanwhile.
pub(crate) fn peer(
    program: &str,
    log: &Path,
    configure: impl Fn(&mut Command, u16) -> Result<()>,
) -> Result<Peer> {
    for _ in 0..5 {
        let port = free_port()?;
        let (out, errors) = (File::create(log)?, File::options().append(true).open(log)?);
        let mut prepared = Ok(());
        let daemon = Daemon::start(&[], Path::new(program), |command| {
            prepared = configure(command.stdout(out).stderr(errors), port);
        })?;
        prepared?;
        let pid = daemon.pid();
        let ready = daemon
            .wait_until(LIMIT, || Ok::<_, process::ProcessError>(process::listens(pid, port)));
        if ready.is_ok() {
            return Ok(Peer { port, _daemon: daemon });
        }
    }
    bail!("{program} does not listen: {}", fs::read_to_string(log)?)
}

/// Imports a configuration and serves it on another port.
pub(crate) fn moved(folder: &Path, from: &str, file: &Path) -> Result<Peer> {
    let out = folder.join("imported.toml");
    let mut import = Command::new(program::path()?);
    process::output(import.args(["import", from]).arg(file).arg("--out").arg(&out), LIMIT)?;
    let mode = fs::metadata(&out)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "secrets are in a file of mode {mode:o}");
    let path = folder.join("sarsen.toml");
    fs::write(&path, as_configuration(folder, &fs::read_to_string(&out)?)?)?;
    let (announced, log) = (folder.join("announced"), folder.join("sarsen.log"));
    let (stdout, errors) = (File::create(&announced)?, File::create(&log)?);
    let daemon = Daemon::start(&[], &program::path()?, |command| {
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]).arg(&path);
        command.stdout(stdout).stderr(errors);
    })?;
    let mut said = String::new();
    let ready = daemon.wait_until(LIMIT, || -> Result<bool> {
        said = fs::read_to_string(&announced)?;
        Ok(said.ends_with('\n'))
    });
    ready.with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
    let announcement: serde_json::Value = serde_json::from_str(&said)?;
    let portal = announcement["portals"][0].as_str().context("a portal")?;
    let port = portal.rsplit_once(':').context("its port")?.1.parse()?;
    Ok(Peer { port, _daemon: daemon })
}

/// Returns a document as a configuration file: secrets are in separate files, and the portals are left out.
fn as_configuration(folder: &Path, document: &str) -> Result<String> {
    let mut text = String::new();
    let mut in_portal = false;
    for (number, line) in document.lines().enumerate() {
        in_portal = line == "[[portal]]" || in_portal && !line.starts_with('[');
        if in_portal {
            continue;
        }
        let Some(secret) = line.strip_prefix("secret = \"") else {
            text += &format!("{line}\n");
            continue;
        };
        let path = folder.join(format!("secret-{number}"));
        fs::write(&path, secret.trim_end_matches('"'))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        text += &format!("secret-file = \"{}\"\n", path.display());
    }
    Ok(text)
}

pub(crate) fn images(folder: &Path, names: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let image = |name: &&str| {
        let path = folder.join(format!("{name}.img"));
        File::create(&path)?.set_len(8 << 20)?;
        Ok(((*name).to_owned(), path))
    };
    names.iter().map(image).collect()
}

/// Repeats each attempt; returns the number of successful logins.
pub(crate) fn compare(
    before: &[Option<Known>],
    attempts: &[Attempt],
    ports: &[u16],
) -> Result<usize> {
    for (attempt, before) in attempts.iter().zip(before) {
        let after = attempt.carry_out(ports)?;
        ensure!(*before == after, "{}: {before:#?} before, {after:#?} now", attempt.reported());
    }
    Ok(before.iter().flatten().count())
}

/// Returns the results of all attempts.
pub(crate) fn carry_out(attempts: &[Attempt], ports: &[u16]) -> Result<Vec<Option<Known>>> {
    attempts.iter().map(|attempt| attempt.carry_out(ports)).collect()
}

/// A server that started empty and received a configuration, and its output.
pub(crate) struct Applied {
    _server: Managed,
    pub(crate) ports: Vec<u16>,
    pub(crate) said: String,
}

/// Applies a configuration to a running server: `text` creates it for free ports. Tries again if another process has
/// taken a port meanwhile.
pub(crate) fn applied(
    folder: &Path,
    from: &str,
    name: &str,
    count: usize,
    text: impl Fn(&[u16]) -> String,
) -> Result<Applied> {
    const DEGRADED: i32 = 5;
    let own = folder.join(format!("{from}-server"));
    fs::create_dir_all(&own)?;
    let server = Managed::start(&own)?;
    let file = own.join(name);
    let mut said = String::new();
    for _ in 0..5 {
        let mut ports = (0..count).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
        fs::write(&file, text(&ports))?;
        let path = file.to_str().context("a path of text")?;
        let planned = server.command(&["import", from, path, "--apply", "--dry-run"])?.output()?;
        let plan = String::from_utf8(planned.stdout)?;
        ensure!(
            plan.ends_with("nothing was changed: this is a preview\n"),
            "{plan}: {}",
            server.log()
        );
        let output = server.command(&["import", from, path, "--apply"])?.output()?;
        said = String::from_utf8(output.stderr)?;
        if matches!(output.status.code(), Some(0 | DEGRADED)) {
            let done = String::from_utf8(output.stdout)?;
            ensure!(done.ends_with("done: revision 1\n"), "{done}");
            // If the file names no portal, the server's own portal serves it.
            if ports.is_empty() {
                let (_, port) = server.portal()?.rsplit_once(':').context("a port")?;
                ports.push(port.parse()?);
            }
            return Ok(Applied { _server: server, ports, said });
        }
    }
    bail!("it is not taken: {said}{}", server.log())
}
