//! Other people's targets, each in a private folder on a free port, gone when dropped: what the
//! benchmark compares with, and the control experiment of the proofs.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{self, Daemon};
use crate::serving::{Backing, Url, Volume};

/// From the command to answering.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// One administration command.
const ADMIN_LIMIT: Duration = Duration::from_secs(20);
/// Another process may take a port between our look and the peer's bind.
const PORT_ATTEMPTS: usize = 5;

/// Memory that looks like files.
const MEMORY_FOLDER: &str = "/dev/shm";

/// Debian's tgt: user space, one event loop and a pool of threads.
#[derive(Debug)]
pub struct Tgt {
    daemon: Daemon,
    folder: TempDir,
    control_port: String,
}

/// Debian's istgt: user space, a thread or two for each connection and LUN.
#[derive(Debug)]
pub struct Istgt {
    daemon: Daemon,
    folder: TempDir,
}

impl Tgt {
    /// Serves each of `volumes` as LUN 1 of a target of its own (LUN 0 is tgt's controller).
    pub fn start(volumes: &[Volume]) -> Result<(Self, Vec<(String, Url)>)> {
        retry_ports(|port| Self::start_on(volumes, port))
    }

    /// The process, for its CPU time.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Runs `tgtadm` with these arguments; the first volume's target is `--tid 1`.
    pub fn administer(&self, arguments: &[&str]) -> Result<()> {
        let finished = admin(self.folder.path(), &self.control_port, arguments)?;
        finished.success().with_context(|| format!("tgtadm {}", arguments.join(" ")))?;
        Ok(())
    }

    fn start_on(volumes: &[Volume], port: u16) -> Result<(Self, Vec<(String, Url)>)> {
        let folder = memory_folder()?;
        let socket = folder.path().join("control");
        // Numbers the control socket; tgtd takes no more than fifteen bits.
        let control_port = (port & 0x7fff).to_string();
        let log = File::create(folder.path().join("log"))?;
        let daemon = Daemon::start(Path::new("tgtd"), |command| {
            command.arg("-f").arg("--iscsi").arg(format!("portal=127.0.0.1:{port}"));
            command.args(["-C", &control_port]).env("TGT_IPC_SOCKET", &socket);
            command.stdout(log.try_clone().map_or(std::process::Stdio::null(), Into::into));
            command.stderr(log);
        })?;
        let mut tgt = Self { daemon, folder, control_port };
        let (folder, control_port) = (tgt.folder.path(), &tgt.control_port);
        let shown = tgt.daemon.wait_until(READY_LIMIT, || {
            let shown = admin(folder, control_port, &["--op", "show", "--mode", "sys"])?;
            Ok(shown.status.is_some_and(|status| status.success()))
        });
        shown.with_context(|| log_of(&tgt.folder))?;
        let mut urls = Vec::new();
        for (tid, volume) in (1..).zip(volumes) {
            let tid: u32 = tid;
            let iqn = format!("iqn.2026-11.peer.tgt:{}", volume.name);
            let path = backing_file(tgt.folder.path(), volume)?;
            let path = path.to_str().context("a path in UTF-8")?;
            let id = tid.to_string();
            let target = ["--mode", "target", "--tid", &id];
            let unit = ["--mode", "logicalunit", "--tid", &id, "--lun", "1"];
            let block_size = volume.block_size.to_string();
            const BOTH: &str = "CRC32C,None";
            let steps = [
                [&["--op", "new"], &target[..], &["--targetname", &iqn]].concat(),
                [
                    &["--op", "new"],
                    &unit[..],
                    &["--backing-store", path, "--blocksize", &block_size],
                ]
                .concat(),
                [&["--op", "update"], &unit[..], &["--params", "thin_provisioning=1"]].concat(),
                // Digests stay the initiator's choice.
                [&["--op", "update"], &target[..], &["--name", "HeaderDigest", "--value", BOTH]]
                    .concat(),
                [&["--op", "update"], &target[..], &["--name", "DataDigest", "--value", BOTH]]
                    .concat(),
                [&["--op", "bind"], &target[..], &["--initiator-address", "ALL"]].concat(),
            ];
            for step in steps {
                tgt.administer(&step)?;
            }
            let url = Url { portal: format!("127.0.0.1:{port}"), iqn, lun: 1 };
            urls.push((volume.name.clone(), url));
        }
        Ok((tgt, urls))
    }
}

fn admin(folder: &Path, control_port: &str, arguments: &[&str]) -> Result<process::Finished> {
    let mut command = Command::new("tgtadm");
    command.args(["-C", control_port, "--lld", "iscsi"]).args(arguments);
    command.env("TGT_IPC_SOCKET", folder.join("control"));
    process::finish(&mut command, ADMIN_LIMIT)
}

/// Who may use a peer (CHAP), and how it proves itself.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    /// The initiator's user and secret.
    pub user: (&'a str, &'a str),
    /// The target's.
    pub target: (&'a str, &'a str),
}

impl Istgt {
    /// Serves one volume of 512-byte blocks as LUN 0.
    pub fn start(volume: &Volume) -> Result<(Self, Url)> {
        ensure!(volume.block_size == 512, "istgt is started with 512-byte blocks alone");
        retry_ports(|port| Self::start_on(volume, port, None))
    }

    /// The same for one account, in discovery, too.
    pub fn start_with_account(volume: &Volume, account: Account<'_>) -> Result<(Self, Url)> {
        retry_ports(|port| Self::start_on(volume, port, Some(account)))
    }

    /// The process, for its CPU time.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn start_on(volume: &Volume, port: u16, account: Option<Account<'_>>) -> Result<(Self, Url)> {
        let folder = memory_folder()?;
        let path = backing_file(folder.path(), volume)?;
        let base = "iqn.2026-11.peer.istgt";
        let file = |name: &str| folder.path().join(name);
        let mut configuration = istgt_configuration(folder.path(), base, port, &path);
        let mut accounts = String::new();
        let mut inquiry = Command::new("iscsi-inq");
        if let Some(Account { user, target }) = account {
            configuration = configuration
                .replace("AuthMethod None", "AuthMethod CHAP")
                .replace("AuthGroup None", "AuthGroup AuthGroup1");
            accounts = format!(
                "[AuthGroup1]\n  Auth \"{}\" \"{}\" \"{}\" \"{}\"\n",
                user.0, user.1, target.0, target.1
            );
            inquiry.env("LIBISCSI_CHAP_USERNAME", user.0).env("LIBISCSI_CHAP_PASSWORD", user.1);
        }
        fs::write(file("auth.conf"), accounts)?;
        fs::write(file("istgt.conf"), configuration)?;
        let log = File::create(file("log"))?;
        let daemon = Daemon::start(Path::new("istgt"), |command| {
            command.arg("-D").arg("-c").arg(file("istgt.conf"));
            command.stdout(log.try_clone().map_or(std::process::Stdio::null(), Into::into));
            command.stderr(log);
        })?;
        let url = Url { portal: format!("127.0.0.1:{port}"), iqn: format!("{base}:disk"), lun: 0 };
        inquiry.arg(url.to_string());
        let mut istgt = Self { daemon, folder };
        // It says nothing when it is ready: a client is asked until it gets an answer.
        let answered = istgt.daemon.wait_until(READY_LIMIT, || {
            let asked = process::finish(&mut inquiry, ADMIN_LIMIT)?;
            Ok(asked.status.is_some_and(|status| status.success()))
        });
        answered.with_context(|| log_of(&istgt.folder))?;
        Ok((istgt, url))
    }
}

fn retry_ports<T>(mut start: impl FnMut(u16) -> Result<T>) -> Result<T> {
    let mut attempt = 1;
    loop {
        match start(free_port()?) {
            Err(_) if attempt < PORT_ATTEMPTS => attempt += 1,
            answer => return answer,
        }
    }
}

/// A port that was free a moment ago; these peers cannot be given port 0.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn memory_folder() -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("sarsen-peer-")
        .tempdir_in(MEMORY_FOLDER)
        .with_context(|| format!("a private folder in {MEMORY_FOLDER}"))
}

fn log_of(folder: &TempDir) -> String {
    let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    format!("the peer's log:\n{log}")
}

fn backing_file(folder: &Path, volume: &Volume) -> Result<PathBuf> {
    let path = match &volume.backing {
        Backing::Ram => folder.join(format!("{}.img", volume.name)),
        Backing::File(path) => path.clone(),
        Backing::Null => bail!("this peer has no null volume"),
    };
    let file = File::options().create(true).truncate(false).write(true).open(&path)?;
    file.set_len(volume.byte_count)?;
    Ok(path)
}

fn istgt_configuration(folder: &Path, base: &str, port: u16, image: &Path) -> String {
    let folder = folder.display();
    let image = image.display();
    format!(
        r#"[Global]
  NodeBase "{base}"
  PidFile "{folder}/pid"
  AuthFile "{folder}/auth.conf"
  MediaDirectory "{folder}"
  LogFacility "local7"
  Timeout 30
  NopInInterval 20
  DiscoveryAuthMethod None
  DiscoveryAuthGroup None
  MaxSessions 64
  MaxConnections 4
  MaxR2T 32
  MaxOutstandingR2T 16
  FirstBurstLength 262144
  MaxBurstLength 1048576
  MaxRecvDataSegmentLength 262144
  InitialR2T Yes
  ImmediateData Yes
  DataPDUInOrder Yes
  DataSequenceInOrder Yes
  ErrorRecoveryLevel 0

[UnitControl]
  AuthMethod None
  AuthGroup None

[PortalGroup1]
  Portal DA1 127.0.0.1:{port}

[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask 127.0.0.0/8

[LogicalUnit1]
  TargetName "disk"
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod None
  AuthGroup None
  UseDigest Auto
  UnitType Disk
  QueueDepth 64
  LUN0 Storage "{image}" Auto
"#
    )
}
