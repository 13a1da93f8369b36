//! `sarsen attach`, `sarsen detach` and `sarsen attachments`: disks of other servers as disks of this machine.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use sarsen_initiator::PathSelector;
use sarsen_io::process;
use sarsen_node::attach::record::{self, Listed, Record};
use sarsen_node::attach::{self, Attached, AttachmentConfig, DiskKind};
use sarsen_node::config::render_size;
use sarsen_node::model::{PathWait, RemoteUrl, Words};
use sd_notify::NotifyState;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::control::table;
use crate::exit::{NotFoundError, UsageError};
use crate::output::{note, print_line};
use crate::serve::service_manager;

/// The file that lists the attachments of this machine.
const DEFAULT_FILE: &str = "/etc/sarsen/attach.toml";
/// Maximum length of the file.
const FILE_LIMIT: u64 = 1 << 20;

/// Flags of `sarsen attach`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The URL of the disk, `iscsi://[USER@]HOST[:PORT][,HOST[:PORT]...]/TARGET/LUN` or `nbd://HOST[:PORT]/EXPORT` (or `nbds://`,
    /// `nbd+unix://`), or the name of an attachment: one of the file, or one whose process has ended, whose disk then continues. The
    /// secret of USER is in a file, or in `LIBISCSI_CHAP_PASSWORD`.
    #[arg(value_name = "URL|NAME")]
    url_or_name: String,
    /// Name of the attachment. /dev/sarsen/NAME leads to its block device. Default: the end of the name of the target or of the export.
    #[arg(long)]
    name: Option<String>,
    /// Kind of the disk: `ublk` or `nbd` (block devices of the kernel, which need root), `vhost-user-blk` (a socket for a virtual machine
    /// of QEMU or cloud-hypervisor), or `nbd-socket` (a socket for NBD clients). Default: ublk if the kernel has it, otherwise nbd.
    #[arg(long = "as", value_name = "KIND", value_parser = word::<DiskKind>)]
    kind: Option<DiskKind>,
    /// Path of the socket, in an existing folder. Required for nbd-socket and vhost-user-blk.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Reject writes.
    #[arg(long)]
    read_only: bool,
    /// File with the secret of the URL's user, which other users must not be able to read.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// File with the secret of the URL's target_user (mutual CHAP).
    #[arg(long, value_name = "FILE")]
    target_secret_file: Option<PathBuf>,
    /// iSCSI name of this machine. Default: a name that follows from the identity of this machine.
    #[arg(long, value_name = "IQN")]
    initiator_name: Option<String>,
    /// Use only the portals in the URL, not those that the target reports.
    #[arg(long)]
    only_these_portals: bool,
    /// How the path of each command is chosen, if the disk has several: service-time, queue-depth or round-robin.
    #[arg(long, value_name = "NAME")]
    path_selector: Option<PathSelector>,
    /// How long requests wait while no path works, before they fail, in ms or s. Default: 120s.
    #[arg(long, value_name = "DURATION")]
    path_wait: Option<PathWait>,
    /// File with the attachments of this machine.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    file: PathBuf,
    /// Serve the disk in this process until it is detached. SIGTERM ends the process, and the disk waits for the next one.
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Flags of `sarsen detach`.
#[derive(clap::Args)]
pub(crate) struct DetachArguments {
    /// Name, device or socket of the attachment.
    #[arg(value_name = "NAME|DEVICE")]
    attachment: String,
    /// Detach the disk even if it is in use: its requests fail. Those of a virtual machine at a socket wait until it ends.
    #[arg(long)]
    force: bool,
}

/// Flags of `sarsen attachments`.
#[derive(clap::Args)]
pub(crate) struct ListArguments {
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The stable format of `--json`.
#[derive(Serialize)]
struct Described<'a> {
    name: &'a str,
    #[serde(rename = "as")]
    kind: &'static str,
    device: PathBuf,
    size_bytes: u64,
    url: String,
    read_only: bool,
    process: u32,
    /// Whether a process serves the disk.
    served: bool,
    /// The problem of the paths, if they have one.
    problem: Option<&'a str>,
    /// Why the last writes are not durable, if the process ended so.
    lost_writes: Option<&'a str>,
}

impl<'a> Described<'a> {
    fn of(record: &'a Record, served: bool) -> Self {
        let config = &record.config;
        Self {
            name: &config.name,
            kind: record.kind.name(),
            device: record.path(),
            size_bytes: record.size_bytes,
            url: config.url.to_string(),
            read_only: config.read_only,
            process: record.process,
            served,
            problem: record.problem.as_deref(),
            lost_writes: record.lost_writes.as_deref(),
        }
    }
}

fn word<T: Words + Send + Sync>(text: &str) -> Result<T, String> {
    let found = T::WORDS.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    let words = || T::WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("use one of {}", words()))
}

impl Arguments {
    /// Returns the attachment that the arguments describe or name.
    fn config(&self) -> anyhow::Result<AttachmentConfig> {
        if !self.url_or_name.contains("://") {
            self.refuse_changes()?;
            return self.named();
        }
        let url: RemoteUrl = self.url_or_name.parse().map_err(|problem: String| {
            if problem.contains("has no secret") {
                return UsageError(
                    "the URL must not contain the secret, which others could read: use --secret-file, or LIBISCSI_CHAP_PASSWORD"
                        .to_owned(),
                );
            }
            UsageError(problem)
        })?;
        let mut config = AttachmentConfig::new(url);
        if let Some(name) = &self.name {
            config.name.clone_from(name);
        }
        Ok(AttachmentConfig {
            kind: self.kind,
            socket: self.socket.as_deref().map(std::path::absolute).transpose()?,
            read_only: self.read_only,
            secret_file: self.secret_file.as_deref().map(std::path::absolute).transpose()?,
            target_secret_file: self
                .target_secret_file
                .as_deref()
                .map(std::path::absolute)
                .transpose()?,
            initiator_name: self.initiator_name.clone(),
            only_these_portals: self.only_these_portals,
            path_selector: self.path_selector,
            path_wait: self.path_wait,
            ..config
        })
    }

    /// A named attachment has its options in the file, or keeps those that it had.
    fn refuse_changes(&self) -> Result<(), UsageError> {
        let Self { name, kind, socket, read_only, secret_file, target_secret_file, .. } = self;
        let Self { initiator_name, only_these_portals, path_selector, path_wait, .. } = self;
        let has_options = name.is_some()
            || kind.is_some()
            || socket.is_some()
            || *read_only
            || secret_file.is_some()
            || target_secret_file.is_some()
            || initiator_name.is_some()
            || *only_these_portals
            || path_selector.is_some()
            || path_wait.is_some();
        if !has_options {
            return Ok(());
        }
        let remedy = if self.url_or_name.contains('/') {
            "a URL begins with iscsi://"
        } else {
            "change them in its file, or detach it and attach its URL with them"
        };
        Err(UsageError(format!(
            "{}: options cannot be given with the name of an attachment; {remedy}",
            self.url_or_name
        )))
    }

    fn named(&self) -> anyhow::Result<AttachmentConfig> {
        let name = &self.url_or_name;
        let listed = read_file(&self.file)?;
        if let Some(found) = listed.into_iter().find(|attachment| attachment.name == *name) {
            return Ok(found);
        }
        let attached = record::list()?.into_iter().map(|listed| listed.record.config);
        if let Some(found) = attached.into_iter().find(|config| config.name == *name) {
            return Ok(found);
        }
        Err(NotFoundError(format!(
            "there is no attachment {name}, neither in {} nor attached; a disk is named iscsi://HOST/TARGET/LUN",
            self.file.display()
        ))
        .into())
    }
}

/// Reads the file with the attachments of this machine, if it exists.
fn read_file(path: &Path) -> anyhow::Result<Vec<AttachmentConfig>> {
    let text = match File::open(path) {
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && path == Path::new(DEFAULT_FILE) =>
        {
            return Ok(Vec::new());
        }
        file => {
            let mut text = String::new();
            let read = file.and_then(|file| file.take(FILE_LIMIT).read_to_string(&mut text));
            read.with_context(|| format!("cannot read {}", path.display()))?;
            text
        }
    };
    Ok(attach::parse_file(path, &text)?)
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = arguments.config()?;
    config.check()?;
    if arguments.foreground {
        return serve(&config, arguments.json);
    }
    start(&config, arguments.json)
}

/// Starts a process that serves the disk, and waits until the disk can be used.
fn start(config: &AttachmentConfig, json: bool) -> anyhow::Result<()> {
    let folder = record::folder().join(&config.name);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).with_context(|| {
        format!(
            "cannot create {}; run this as root, or set SARSEN_ATTACHMENTS to a folder of yours",
            folder.display()
        )
    })?;
    let path = folder.join("log");
    let mut log =
        OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&path)?;
    let begin = log.metadata()?.len();
    let program = std::env::current_exe().context("the path of this program is unknown")?;
    let given = std::env::args_os().skip(1).filter(|argument| argument != "--json");
    let arguments = given.chain(["--foreground", "--json"].map(OsString::from));
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?);
    // The terminal's signals are for the programs in its foreground.
    command.process_group(0);
    // A lock or a pipe of the caller would stay in use as long as the disk. Old kernels cannot do it.
    let _ = process::keep_descriptors_private();
    let mut child = command.spawn().context("cannot start the process of the disk")?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.is_empty() {
        let status = child.wait()?;
        io::Seek::seek(&mut log, io::SeekFrom::Start(begin))?;
        let mut text = String::new();
        log.read_to_string(&mut text)?;
        // The process has reported its error, with its exit code.
        for line in text.lines().filter(|line| !line.contains(" INFO ")) {
            note(format_args!("{line}"));
        }
        std::process::exit(status.code().unwrap_or(1));
    }
    if json {
        return print_line(line.trim_end());
    }
    let described: serde_json::Value = serde_json::from_str(&line)?;
    print_line(described["device"].as_str().unwrap_or_default())
}

/// Serves the disk until it is detached, or a signal ends this process.
fn serve(config: &AttachmentConfig, json: bool) -> anyhow::Result<()> {
    process::keep_files_private();
    if let Err(error) = process::keep_memory_private() {
        warn!(%error, "a core dump of this process would hold secrets");
    }
    let mut attached = Attached::start(config)?;
    // No folder of the caller stays in use.
    std::env::set_current_dir("/")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        announce(attached.record(), json);
        service_manager::tell(&[NotifyState::Ready]);
        loop {
            tokio::select! {
                ended = attached.serve() => {
                    ended?;
                    return anyhow::Ok(true);
                }
                _ = terminate.recv() => return Ok(false),
                _ = interrupt.recv() => return Ok(false),
                // The terminal of the command has closed.
                _ = hang_up.recv() => {}
            }
        }
    });
    service_manager::tell(&[NotifyState::Stopping]);
    match ended {
        Ok(true) => {
            info!("the disk was detached");
            attached.finish()?;
        }
        Ok(false) => {
            info!("ending on a signal; `sarsen attach` continues the disk");
            attached.suspend()?;
        }
        Err(error) => {
            if let Err(error) = attached.suspend() {
                warn!(%error, "the disk was not ended in order");
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Prints the disk. Standard output may have no reader.
fn announce(record: &Record, json: bool) {
    let text = if json {
        serde_json::to_string(&Described::of(record, true)).unwrap_or_default()
    } else {
        record.path().display().to_string()
    };
    let mut out = io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        warn!(%error, "the disk cannot be written to standard output");
    }
}

pub(crate) fn detach(arguments: &DetachArguments) -> anyhow::Result<()> {
    let listed = record::find(&arguments.attachment)?;
    attach::detach(&listed, arguments.force)?;
    Ok(())
}

pub(crate) fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let listed = record::list()?;
    let described =
        listed.iter().map(|Listed { record, is_served }| Described::of(record, *is_served));
    if arguments.json {
        return print_line(&serde_json::to_string(&described.collect::<Vec<_>>())?);
    }
    if listed.is_empty() {
        note(format_args!("sarsen: nothing is attached; see `sarsen attach --help`"));
        return Ok(());
    }
    let rows: Vec<[String; 5]> = described
        .map(|described| {
            let state = match (described.served, described.problem) {
                (false, _) if described.lost_writes.is_some() => format!(
                    "its last writes are not durable; continue it: sarsen attach {}",
                    described.name
                ),
                (false, _) => format!("waits for its process: sarsen attach {}", described.name),
                (true, Some(problem)) => problem.to_owned(),
                (true, None) => "in service".to_owned(),
            };
            let device = described.device.display().to_string();
            let size = render_size(described.size_bytes);
            [described.name.to_owned(), device, size, described.url, state]
        })
        .collect();
    print_line(&table(["NAME", "DEVICE", "SIZE", "URL", "STATE"], &rows))
}
