//! `sarsen disk`: verbs for a disk of any iSCSI target or NBD server, without attaching it.

mod end;
mod image;
mod info;
mod progress;

use std::fmt::Display;
use std::io::{BufRead, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use sarsen_initiator::transfer::{
    self, Changes, Disk, Erasure, NbdDisk, Sink, Source, Stream, TransferError, Transferred,
};
use sarsen_initiator::{DigestOffer, PathSelector, SessionOptions, Url};
use sarsen_io::cores::{self, FileEngine};
use sarsen_io::time;
use sarsen_node::config::{parse_size, render_size};
use serde::Serialize;

use crate::exit::UsageError;
use crate::output::{ask, note, print_line};
use end::EndUrl;
pub(crate) use progress::Bar;

/// How long a target may be unreachable before a verb fails: a restart takes less.
const RECONNECT_LIMIT: Duration = Duration::from_secs(60);

/// Verbs for disks. A URL is `iscsi://[user[%secret]@]host[:port]/target/lun`. More portals of the target may follow the
/// first one after commas; otherwise those that the target reports are used as well. For mutual CHAP, add
/// `?target_user=U&target_password=P`. Missing parts are taken from `LIBISCSI_CHAP_USERNAME`,
/// `LIBISCSI_CHAP_PASSWORD`, `LIBISCSI_CHAP_TARGET_USERNAME` and `LIBISCSI_CHAP_TARGET_PASSWORD`. `read`, `write`, `copy`
/// and `verify` also take exports of NBD servers: `nbd://host[:port]/export`, `nbds://` with `?ca=FILE`, or
/// `nbd+unix:///export?socket=PATH`.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Show the properties of a disk and the negotiated parameters.
    Info(InfoArguments),
    /// Copy a disk, or a part of it, to a file or a qcow2 image. Long runs of zeroes use no space.
    Read(ReadArguments),
    /// Copy a file or the content of a disk image to a disk, which overwrites its data. A disk with a file system or
    /// the like is only overwritten with --destroy.
    Write(WriteArguments),
    /// Copy a disk to another disk of the same or another server, which overwrites its data. A disk with a file
    /// system or the like is only overwritten with --destroy. With --since, copy only what has changed.
    Copy(CopyArguments),
    /// Compare a disk with a file, a disk image or another disk, and report the first byte that differs.
    Verify(VerifyArguments),
    /// Erase a whole disk: its data is lost, and it reads as zeroes. If the disk guarantees zeroes for
    /// unmapped blocks, they are unmapped; otherwise zeroes are written. This is no secure wipe: the medium may still
    /// hold old data.
    Erase(EraseArguments),
}

/// The parameters of the login, and the format of the result.
#[derive(clap::Args)]
pub(crate) struct DiskOptions {
    /// Require header digests (CRC32C).
    #[arg(long)]
    header_digest: bool,
    /// Require data digests (CRC32C).
    #[arg(long)]
    data_digest: bool,
    /// Number of connections of the session, if the target permits it. Commands are spread over them.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=65535))]
    connections: u32,
    /// Maximum ErrorRecoveryLevel, if the target permits it. At level 1, damaged PDUs are sent again. At level 2,
    /// lost connections are replaced as well.
    #[arg(long, value_name = "LEVEL", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(..=2))]
    recovery_level: u8,
    /// How the path of each command is chosen, if the disk has several: service-time, queue-depth or round-robin.
    #[arg(long, value_name = "NAME", default_value_t)]
    path_selector: PathSelector,
    /// Use only the portals in the URL, not those that the target reports.
    #[arg(long)]
    only_these_portals: bool,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

impl DiskOptions {
    /// Returns the options for one disk. Two disks of one target need an ISID each, or one session replaces the other
    /// (RFC 7143 §6.3.5).
    fn options(&self) -> SessionOptions {
        let offer = |wanted| if wanted { DigestOffer::Require } else { DigestOffer::None };
        SessionOptions {
            header_digest: offer(self.header_digest),
            data_digest: offer(self.data_digest),
            reconnect_limit: Some(RECONNECT_LIMIT),
            connections: self.connections,
            error_recovery_level: self.recovery_level,
            path_selector: self.path_selector,
            discovers_portals: !self.only_these_portals,
            ..SessionOptions::default()
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct InfoArguments {
    /// URL of the disk: `iscsi://HOST[:PORT][,HOST[:PORT]…]/TARGET/LUN`.
    url: String,
    #[command(flatten)]
    options: DiskOptions,
}

#[derive(clap::Args)]
pub(crate) struct ReadArguments {
    /// URL of the disk: `iscsi://HOST[:PORT][,HOST[:PORT]…]/TARGET/LUN`, or `nbd://HOST[:PORT]/EXPORT`.
    url: String,
    /// The file, which is created or overwritten; - is standard output.
    file: PathBuf,
    /// Offset of the first byte on the disk.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    offset: u64,
    /// Number of bytes. Default: to the end of the disk.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    length: Option<u64>,
    /// Format of the file.
    #[arg(long, default_value = "raw")]
    format: image::NewFormat,
    #[command(flatten)]
    options: DiskOptions,
}

#[derive(clap::Args)]
pub(crate) struct WriteArguments {
    /// File; - is standard input.
    file: PathBuf,
    /// URL of the disk: `iscsi://HOST[:PORT][,HOST[:PORT]…]/TARGET/LUN`, or `nbd://HOST[:PORT]/EXPORT`.
    url: String,
    /// Offset of the first byte on the disk: a multiple of its block size.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    offset: u64,
    /// Overwrite the disk even if it has a file system, a partition table, swap or the like.
    #[arg(long)]
    destroy: bool,
    #[command(flatten)]
    image: image::ImageOptions,
    #[command(flatten)]
    options: DiskOptions,
}

#[derive(clap::Args)]
pub(crate) struct CopyArguments {
    /// URL of the disk to copy from.
    #[arg(value_name = "FROM")]
    url: String,
    /// URL of the disk to copy to, of the same size or larger.
    #[arg(value_name = "TO")]
    other: String,
    /// Overwrite the disk even if it has a file system, a partition table, swap or the like.
    #[arg(long, conflicts_with = "since")]
    destroy: bool,
    /// Copy only what has changed since this older snapshot of the volume, or in this dirty bitmap of QEMU. FROM is an
    /// export of an NBD server, and TO has the contents of the older snapshot: it is compared at some places first.
    #[arg(long, value_name = "SNAPSHOT")]
    since: Option<String>,
    #[command(flatten)]
    options: DiskOptions,
}

#[derive(clap::Args)]
pub(crate) struct VerifyArguments {
    /// URL of the disk: `iscsi://HOST[:PORT][,HOST[:PORT]…]/TARGET/LUN`, or `nbd://HOST[:PORT]/EXPORT`.
    url: String,
    /// A file, or the URL of another disk. All of the file is compared, or all of the first disk. Surplus bytes of
    /// the first disk or of the other disk are ignored.
    #[arg(value_name = "FILE|URL")]
    other: String,
    #[command(flatten)]
    image: image::ImageOptions,
    #[command(flatten)]
    options: DiskOptions,
}

#[derive(clap::Args)]
pub(crate) struct EraseArguments {
    /// URL of the disk: `iscsi://HOST[:PORT][,HOST[:PORT]…]/TARGET/LUN`.
    url: String,
    /// Only unmap the blocks. The target decides which data unmapped blocks return.
    #[arg(long, conflicts_with = "zero")]
    unmap: bool,
    /// Write zeroes to all blocks, and unmap none.
    #[arg(long)]
    zero: bool,
    /// Do not ask for confirmation, and erase the disk even if it has a file system, a partition table, swap or the
    /// like.
    #[arg(long)]
    destroy: bool,
    #[command(flatten)]
    options: DiskOptions,
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Info(arguments) => {
            let url = parse(&arguments.url)?;
            on_a_core(info::run(&url, &arguments.options.options(), arguments.options.json))
        }
        Verb::Read(arguments) => on_a_core(read(arguments)),
        Verb::Write(arguments) => on_a_core(write(arguments)),
        Verb::Copy(arguments) => on_a_core(copy(arguments)),
        Verb::Verify(arguments) => on_a_core(verify(arguments)),
        Verb::Erase(arguments) => erase(&arguments),
    }
}

/// Runs a future with sessions and files.
pub(crate) fn on_a_core<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    cores::block_on(FileEngine::Auto, future)?
}

/// Parses a URL and completes it from the environment. The usage error does not repeat a secret.
fn parse(url: &str) -> anyhow::Result<Url> {
    if url.starts_with("nbd") && EndUrl::is_meant(url) {
        let message =
            format!("{url}: this verb needs a disk over iSCSI: iscsi://HOST[:PORT]/TARGET/LUN");
        return Err(UsageError(message).into());
    }
    let mut url: Url = url.parse().map_err(|error| {
        UsageError(format!(
            "{error}; a disk is named iscsi://HOST[:PORT][,HOST[:PORT]…]/TARGET/LUN"
        ))
    })?;
    url.chap.complete(variable);
    Ok(url)
}

/// Reads a variable of the environment. Text that is not UTF-8 is an error.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

async fn read(arguments: ReadArguments) -> anyhow::Result<()> {
    let url = EndUrl::parse(&arguments.url)?;
    let to_stdout = is_dash(&arguments.file);
    if to_stdout && arguments.options.json {
        let message = "standard output cannot have both the disk and --json; name a file";
        return Err(UsageError(message.into()).into());
    }
    let disk = url.open(&arguments.options.options()).await?;
    let source = disk.source();
    let length = match arguments.length {
        Some(length) => length,
        None => disk.length().saturating_sub(arguments.offset),
    };
    // Checked before the file is created, so that a mistake leaves no file.
    source.check_range(arguments.offset, length)?;
    let sink = if arguments.format == image::NewFormat::Qcow2 {
        if to_stdout {
            let message = "a qcow2 image needs a file, not standard output; name one";
            return Err(UsageError(message.into()).into());
        }
        transfer::create_qcow2(&arguments.file, length).await?
    } else if to_stdout {
        let stdout = std::io::stdout().as_fd().try_clone_to_owned()?;
        Sink::Stream(Stream::writing(stdout.into(), "standard output"))
    } else {
        Sink::create(&arguments.file)?
    };
    let moved = timed(Some(length), |reported| async move {
        transfer::copy(&source, arguments.offset, Some(length), &sink, 0, reported.as_ref()).await
    })
    .await?;
    disk.close().await?;
    moved.tell("read", to_stdout, arguments.options.json)
}

async fn write(arguments: WriteArguments) -> anyhow::Result<()> {
    let url = EndUrl::parse(&arguments.url)?;
    let source = if is_dash(&arguments.file) {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
        let stream = Source::Stream(Stream::reading(stdin.into(), "standard input")?);
        arguments.image.check(&stream).await?;
        stream
    } else {
        arguments.image.open(&arguments.file).await?
    };
    let disk = url.open(&arguments.options.options()).await?;
    if !arguments.destroy {
        disk.check_vacant().await?;
    }
    let sink = disk.sink();
    let moved = timed(source.length(), |reported| async move {
        transfer::copy(&source, 0, None, &sink, arguments.offset, reported.as_ref()).await
    })
    .await?;
    disk.close().await?;
    moved.tell("written", false, arguments.options.json)
}

async fn copy(arguments: CopyArguments) -> anyhow::Result<()> {
    let (from, to) = (EndUrl::parse(&arguments.url)?, EndUrl::parse(&arguments.other)?);
    if from.is_same(&to) {
        return Err(UsageError(format!("{from} cannot be copied to itself")).into());
    }
    if let Some(older) = &arguments.since {
        let options = arguments.options.options();
        return copy_changes(&from, older, &to, &options, arguments.options.json).await;
    }
    let from = from.open(&arguments.options.options()).await?;
    let to = to.open(&arguments.options.options()).await?;
    if !arguments.destroy {
        to.check_vacant().await?;
    }
    if from.block_length() != to.block_length() {
        note(format_args!(
            "sarsen: the disks have blocks of {} and of {} bytes; a partition table counts blocks, so adapt it \
             after the copy",
            from.block_length(),
            to.block_length()
        ));
    }
    let (source, sink) = (from.source(), to.sink());
    let moved = timed(source.length(), |reported| async move {
        transfer::copy(&source, 0, None, &sink, 0, reported.as_ref()).await
    })
    .await?;
    from.close().await?;
    to.close().await?;
    moved.tell("copied", false, arguments.options.json)
}

#[derive(Serialize)]
struct ChangesJson {
    bytes: u64,
    disk_bytes: u64,
    seconds: f64,
}

/// Copies what has changed since an older snapshot.
async fn copy_changes(
    from: &EndUrl,
    older: &str,
    to: &EndUrl,
    options: &SessionOptions,
    json: bool,
) -> anyhow::Result<()> {
    let EndUrl::Nbd(from) = from else {
        return Err(UsageError(format!(
            "{from}: iSCSI does not report what has changed; serve the snapshot at an NBD portal (`sarsen portal create \
             ADDRESS --protocol nbd`) and copy from nbd://HOST/VOLUME"
        ))
        .into());
    };
    let from = NbdDisk::open_with_changes(from, older, options.reconnect_limit).await?;
    let to = to.open(options).await?;
    let (copy, sink) = (to.source(), to.sink());
    let source = &from;
    let Moved { transferred: changes, elapsed } =
        timed(Some(from.length()), |reported| async move {
            transfer::copy_changes(source, &copy, &sink, reported.as_ref()).await
        })
        .await?;
    from.close().await;
    to.close().await?;
    let Changes { bytes, disk_bytes } = changes;
    if json {
        let changes = ChangesJson { bytes, disk_bytes, seconds: elapsed.as_secs_f64() };
        return print_line(&serde_json::to_string(&changes)?);
    }
    let (changed, whole) = (render_size(bytes), render_size(disk_bytes));
    print_line(&format!("{changed} of {whole} had changed, copied in {}", rate(bytes, elapsed)))
}

#[derive(Serialize)]
struct Verified {
    equal: bool,
    compared_bytes: u64,
    first_difference: Option<u64>,
    sha256: Option<String>,
}

async fn verify(arguments: VerifyArguments) -> anyhow::Result<()> {
    let (left, other) = (EndUrl::parse(&arguments.url)?, &arguments.other);
    let file = if EndUrl::is_meant(other) {
        arguments.image.check_unused()?;
        None
    } else {
        Some(arguments.image.open(other.as_ref()).await?)
    };
    let left = left.open(&arguments.options.options()).await?;
    let second = match file {
        Some(_) => None,
        None => Some(EndUrl::parse(other)?.open(&arguments.options.options()).await?),
    };
    // The compared length is that of the first disk, or of the file. The other side may be larger.
    let left_source = left.source();
    let (right_source, wanted, room) = match (&second, file) {
        (Some(disk), _) => (disk.source(), left.length(), disk.length()),
        (None, Some(file)) => {
            let place = file.place().to_owned();
            let length = file.length().with_context(|| {
                UsageError(format!(
                    "{place}: the length of a stream is unknown; copy it to a file first"
                ))
            })?;
            (file, length, left.length())
        }
        (None, None) => unreachable!("one of the two must be a file"),
    };
    let length = wanted.min(room);
    let bar = Bar::new(Some(length));
    let reported = |done| bar.tell(done);
    let found = transfer::compare(&left_source, &right_source, length, &reported).await;
    bar.end();
    let found = found?;
    let equal = found.first_difference.is_none() && wanted <= room;
    if arguments.options.json {
        let verified = Verified {
            equal,
            compared_bytes: length,
            first_difference: found.first_difference.or((!equal).then_some(length)),
            sha256: found.sha256.as_ref().map(|sum| hex(sum)),
        };
        print_line(&serde_json::to_string(&verified)?)?;
    }
    let (left_place, right_place) = (left.place().to_owned(), right_source.place().to_owned());
    drop(right_source);
    left.close().await?;
    if let Some(disk) = second {
        disk.close().await?;
    }
    if let Some(offset) = found.first_difference {
        return Err(anyhow!("{left_place} and {right_place} differ, first at byte {offset}"));
    }
    if !equal {
        return Err(anyhow!(
            "{left_place} and {right_place} are equal up to byte {room}, where one of them ends; the other one \
             ends at byte {wanted}"
        ));
    }
    if !arguments.options.json {
        let sum = found.sha256.as_ref().map(|sum| hex(sum)).unwrap_or_default();
        print_line(&format!("equal: {}\nSHA-256 {sum}", render_size(length)))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Erased {
    bytes: u64,
    seconds: f64,
}

fn erase(arguments: &EraseArguments) -> anyhow::Result<()> {
    let url = parse(&arguments.url)?;
    let options = arguments.options.options();
    if !arguments.destroy {
        // The session is closed while the user answers.
        let question = on_a_core(async {
            let disk = Disk::open(&url, &options).await?;
            disk.check_vacant().await?;
            let question = info::describe(&disk).await?;
            disk.close().await?;
            Ok(question)
        })?;
        if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            let message = format!("this erases all of {url}; confirm with --destroy");
            return Err(UsageError(message).into());
        }
        if !confirmed(&question, &url)? {
            return Err(anyhow!("nothing was erased"));
        }
    }
    let how = match (arguments.unmap, arguments.zero) {
        (true, _) => Erasure::Unmap,
        (_, true) => Erasure::Zero,
        _ => Erasure::Best,
    };
    let (bytes, elapsed) = on_a_core(async {
        let disk = Disk::open(&url, &options).await?;
        let bar = Bar::new(Some(disk.length()));
        let begun = time::now();
        let reported = |done| bar.tell(done);
        let erased = transfer::erase(&disk, how, &reported).await;
        bar.end();
        let result = (erased?, time::now().duration_since(begun));
        disk.close().await?;
        Ok(result)
    })?;
    if arguments.options.json {
        let erased = Erased { bytes, seconds: elapsed.as_secs_f64() };
        return print_line(&serde_json::to_string(&erased)?);
    }
    let done = if arguments.unmap { "unmapped" } else { "erased" };
    print_line(&format!("{} {done} in {}", render_size(bytes), rate(bytes, elapsed)))
}

/// Asks for confirmation of a loss of data at the terminal. Without a terminal, --destroy confirms it.
pub(crate) fn confirm_loss(loss: &str, what: &str) -> anyhow::Result<()> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(UsageError(format!("{loss}; confirm with --destroy")).into());
    }
    if !confirmed(loss, &what)? {
        return Err(anyhow!("nothing was changed"));
    }
    Ok(())
}

/// Asks for confirmation at the terminal.
pub(crate) fn confirmed(description: &str, what: &dyn Display) -> anyhow::Result<bool> {
    note(format_args!("This erases {what}\n  {description}"));
    ask("Type yes to continue: ")?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

/// The result of a transfer, and its duration.
struct Moved<T = Transferred> {
    transferred: T,
    elapsed: Duration,
}

#[derive(Serialize)]
struct MovedJson {
    bytes: u64,
    seconds: f64,
    sha256: String,
}

/// Runs a transfer with a progress bar.
async fn timed<T, F>(
    length: Option<u64>,
    transfer: impl FnOnce(Box<dyn Fn(u64)>) -> F,
) -> anyhow::Result<Moved<T>>
where
    F: Future<Output = Result<T, TransferError>>,
{
    let bar = Bar::new(length);
    let begun = time::now();
    let reported = bar.clone();
    let result = transfer(Box::new(move |done| reported.tell(done))).await;
    bar.end();
    Ok(Moved { transferred: result?, elapsed: time::now().duration_since(begun) })
}

impl Moved {
    fn tell(&self, done: &str, on_stderr: bool, json: bool) -> anyhow::Result<()> {
        let Transferred { bytes, sha256 } = self.transferred;
        let sha256 = hex(&sha256);
        if json {
            let moved = MovedJson { bytes, seconds: self.elapsed.as_secs_f64(), sha256 };
            return print_line(&serde_json::to_string(&moved)?);
        }
        let rate = rate(bytes, self.elapsed);
        let text = format!("{} {done} in {rate}\nSHA-256 {sha256}", render_size(bytes));
        if on_stderr {
            note(text);
            return Ok(());
        }
        print_line(&text)
    }
}

/// Formats a rate as `1.25 s (860 MB/s)`.
fn rate(bytes: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    format!("{seconds:.2} s ({:.0} MB/s)", bytes as f64 / 1e6 / seconds.max(1e-6))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
