//! Volumes on offer: the fixture that every proof begins with.
//!
//! Usually the program under test serves them. With `PROOF_TARGET=tgt` Debian's tgt does: the
//! control experiment that shows whether a failing proof is the program's fault or its own.

use std::fmt::{self, Display};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::peers::Tgt;
use crate::process::Daemon;
use crate::program;

/// Names who serves: `sarsen` (the default) or `tgt`.
pub const TARGET_VARIABLE: &str = "PROOF_TARGET";

/// From the command to the ready line.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// From SIGTERM to the end.
const STOP_LIMIT: Duration = Duration::from_secs(20);

const MIB: u64 = 1 << 20;

/// Where a volume's blocks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Memory.
    Ram,
    /// A file, made if it is absent.
    File(PathBuf),
    /// Nowhere.
    Null,
}

/// A volume to be served.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its name on the command line.
    pub name: String,
    /// Where its blocks are.
    pub backing: Backing,
    /// Size, a multiple of 1 MiB.
    pub byte_count: u64,
    /// Logical block, in bytes.
    pub block_size: u32,
    /// Further `key=value` options.
    pub options: Vec<String>,
}

impl Volume {
    /// A volume of 512-byte blocks.
    pub fn new(name: &str, backing: Backing, byte_count: u64) -> Self {
        assert!(byte_count.is_multiple_of(MIB), "sizes are written in MiB");
        Self { name: name.into(), backing, byte_count, block_size: 512, options: Vec::new() }
    }

    /// With another block size.
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = bytes;
        self
    }

    /// With an option such as `cache=none`.
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.into());
        self
    }

    /// What follows `--volume`.
    fn argument(&self) -> String {
        let mebibytes = self.byte_count / MIB;
        let mut argument = match &self.backing {
            Backing::Ram => format!("{}=ram:{mebibytes}MiB", self.name),
            Backing::Null => format!("{}=null:{mebibytes}MiB", self.name),
            Backing::File(path) => {
                format!("{}=file:{},size={mebibytes}MiB", self.name, path.display())
            }
        };
        if self.block_size != 512 {
            argument += &format!(",block-size={}", self.block_size);
        }
        for option in &self.options {
            argument += &format!(",{option}");
        }
        argument
    }
}

/// `iscsi://PORTAL/IQN/LUN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Address and port.
    pub portal: String,
    /// Target name.
    pub iqn: String,
    /// Logical unit number.
    pub lun: u32,
}

impl Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iscsi://{}/{}/{}", self.portal, self.iqn, self.lun)
    }
}

impl FromStr for Url {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.strip_prefix("iscsi://").map(|rest| rest.split('/').collect::<Vec<_>>());
        match parts.as_deref() {
            Some([portal, iqn, lun]) if !portal.is_empty() && !iqn.is_empty() => Ok(Self {
                portal: (*portal).into(),
                iqn: (*iqn).into(),
                lun: lun.parse().with_context(|| format!("the LUN of {text}"))?,
            }),
            _ => bail!("{text} is not iscsi://PORTAL/IQN/LUN"),
        }
    }
}

impl Url {
    /// The port of the portal.
    pub fn port(&self) -> Result<u16> {
        let port = self.portal.rsplit_once(':').map_or("3260", |(_, port)| port);
        port.parse().with_context(|| format!("the port of {self}"))
    }
}

/// Volumes on offer until this is dropped.
#[derive(Debug)]
pub struct Serving {
    server: Server,
    urls: Vec<(String, Url)>,
}

#[derive(Debug)]
enum Server {
    Sarsen { daemon: Daemon, folder: TempDir },
    Tgt(Tgt),
}

impl Serving {
    /// Serves `volumes` on a free port of 127.0.0.1.
    pub fn start(volumes: &[Volume]) -> Result<Self> {
        match std::env::var(TARGET_VARIABLE).as_deref() {
            Err(_) | Ok("sarsen") => Self::start_with(volumes, &[]),
            Ok("tgt") => {
                let (tgt, urls) = Tgt::start(volumes)?;
                Ok(Self { server: Server::Tgt(tgt), urls })
            }
            Ok(other) => bail!("{TARGET_VARIABLE} is {other}; it may be sarsen or tgt"),
        }
    }

    /// Starts `sarsen serve` with more arguments.
    pub fn start_with(volumes: &[Volume], arguments: &[&str]) -> Result<Self> {
        Self::start_under(&[], volumes, arguments)
    }

    /// The same by another program, which takes the command as its last arguments and becomes it.
    pub fn start_under(wrapper: &[&str], volumes: &[Volume], arguments: &[&str]) -> Result<Self> {
        let program = program::path()?;
        let first = wrapper.first().map_or(program.as_path(), |name| Path::new(name));
        let folder = tempfile::tempdir()?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        let mut daemon = Daemon::start(first, |command| {
            if let [_, rest @ ..] = wrapper {
                command.args(rest).arg(&program);
            }
            command.args(["serve", "--json", "--listen", "127.0.0.1:0"]);
            for volume in volumes {
                command.arg("--volume").arg(volume.argument());
            }
            command.args(arguments).stdout(Stdio::piped()).stderr(log);
        })?;
        let ready = ready_line(&mut daemon);
        let serving = Self { server: Server::Sarsen { daemon, folder }, urls: Vec::new() };
        let urls = ready.and_then(|line| urls(&line)).with_context(|| serving.log())?;
        for volume in volumes {
            ensure!(
                urls.iter().any(|(name, _)| *name == volume.name),
                "the ready line has no volume {}",
                volume.name
            );
        }
        Ok(Self { urls, ..serving })
    }

    /// The URL of a volume.
    pub fn url(&self, name: &str) -> &Url {
        match self.urls.iter().find(|(other, _)| other == name) {
            Some((_, url)) => url,
            None => panic!("{name} was not asked to be served"),
        }
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        match &self.server {
            Server::Sarsen { daemon, .. } => daemon.pid(),
            Server::Tgt(tgt) => tgt.pid(),
        }
    }

    /// What the server wrote to its standard error.
    pub fn log(&self) -> String {
        match &self.server {
            Server::Sarsen { folder, .. } => {
                let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
                format!("the server's log:\n{log}")
            }
            Server::Tgt(_) => "tgt keeps no log here".into(),
        }
    }

    /// Ends the server in order; an error unless it goes with exit status 0.
    pub fn stop(self) -> Result<()> {
        match self.server {
            Server::Sarsen { daemon, folder } => {
                let status = daemon.terminate(STOP_LIMIT)?;
                let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
                ensure!(status.success(), "SIGTERM ended it with {status}; its log:\n{log}");
                Ok(())
            }
            // tgtd has no orderly end while targets are configured.
            Server::Tgt(_) => Ok(()),
        }
    }
}

/// The first line of standard output; a thread reads on so that the pipe never fills.
fn ready_line(daemon: &mut Daemon) -> Result<String> {
    let stdout = daemon.child().stdout.take().context("its standard output")?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Nobody listens after the first line.
            let _ = sender.send(line);
        }
    });
    match receiver.recv_timeout(READY_LIMIT) {
        Ok(line) => Ok(line),
        Err(mpsc::RecvTimeoutError::Disconnected) => bail!("it ended before it was ready"),
        Err(mpsc::RecvTimeoutError::Timeout) => bail!("it was not ready within {READY_LIMIT:?}"),
    }
}

fn urls(line: &str) -> Result<Vec<(String, Url)>> {
    let ready: serde_json::Value =
        serde_json::from_str(line).with_context(|| format!("the ready line {line:?}"))?;
    let volumes = ready["volumes"].as_array().context("`volumes` in the ready line")?;
    volumes
        .iter()
        .map(|volume| {
            let name = volume["name"].as_str().context("a volume's `name`")?;
            let url = volume["url"].as_str().context("a volume's `url`")?;
            Ok((name.to_owned(), url.parse()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_written_as_the_command_line_wants_it() {
        let ram = Volume::new("scratch", Backing::Ram, 1 << 30).block_size(4096);
        assert_eq!(ram.argument(), "scratch=ram:1024MiB,block-size=4096");
        let file = Volume::new("data", Backing::File("/srv/d.img".into()), 2 << 20);
        let file = file.option("cache=none");
        assert_eq!(file.argument(), "data=file:/srv/d.img,size=2MiB,cache=none");
    }

    #[test]
    fn the_ready_line_gives_every_url() {
        let line = r#"{"volumes":[{"name":"a","url":"iscsi://127.0.0.1:3260/iqn.x:a/0"}]}"#;
        let urls = urls(line).unwrap();
        assert_eq!(urls[0].0, "a");
        assert_eq!(urls[0].1.to_string(), "iscsi://127.0.0.1:3260/iqn.x:a/0");
        assert_eq!(urls[0].1.port().unwrap(), 3260);
    }

    #[test]
    fn what_is_no_ready_line_is_refused() {
        assert!(urls("listening").is_err());
        assert!(urls("{}").is_err());
        assert!(urls(r#"{"volumes":[{"name":"a","url":"iscsi://x"}]}"#).is_err());
    }
}
