//! The disk of an attachment, whatever its kind is.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sarsen_block::{BlockError, BlockSize, Io};
use sarsen_io::cores::Cores;
use sarsen_io::local::LocalListener;
use sarsen_io::{nbd_device, time, ublk as device};
use sarsen_proto::nbd::server::{Export, Operation, Outcome};
use sarsen_volume::Attachment;
use sarsen_wire::nbd::ErrorCode;
use tokio::sync::{mpsc, watch};
use tracing::warn;

use super::record::{AttachmentFolder, Record};
use super::{AttachError, AttachmentConfig, DiskKind, nbd, ublk, vhost_user};
use crate::fronts::nbd::{RequestError, execute, export_of, failed};

const UBLK_MODULE: &str = "ublk_drv";
const NBD_MODULE: &str = "nbd";
/// Minimum time between two lines about failed requests.
const FAILURE_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum length of the data of a request.
pub(super) const MAXIMUM_PAYLOAD: u32 = 32 << 20;

/// The access of the disk to the volume.
pub(super) struct Access {
    client: Arc<Attachment>,
    block_size: BlockSize,
    /// Never changes to true: open requests are completed before their process ends.
    cancelled: watch::Sender<bool>,
    failures: Mutex<FailureLog>,
}

/// The log of failed requests: a file system may send many in vain, and the log of an attachment is in memory.
#[derive(Default)]
struct FailureLog {
    written_at: Option<Instant>,
    left_out: u64,
}

impl FailureLog {
    fn note(&mut self, error: &dyn Display) {
        let now = time::now();
        if self.written_at.is_some_and(|written_at| now < written_at + FAILURE_INTERVAL) {
            self.left_out += 1;
            return;
        }
        let left_out = std::mem::take(&mut self.left_out);
        warn!(%error, left_out, "a request of the disk failed");
        self.written_at = Some(now);
    }
}

impl Access {
    pub(super) fn new(client: Attachment) -> Arc<Self> {
        let block_size = client.volume().geometry().block_size;
        let (cancelled, failures) = (watch::Sender::new(false), Mutex::default());
        Arc::new(Self { client: Arc::new(client), block_size, cancelled, failures })
    }

    /// Returns the current size.
    pub(super) fn bytes(&self) -> u64 {
        self.client.volume().geometry().byte_count()
    }

    pub(super) fn block_size(&self) -> BlockSize {
        self.block_size
    }

    pub(super) fn volume(&self) -> &sarsen_volume::Volume {
        self.client.volume()
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.client.is_read_only()
    }

    /// Returns the disk as an export.
    pub(super) fn export(&self) -> Export {
        export_of(self.volume(), self.is_read_only(), MAXIMUM_PAYLOAD)
    }

    /// Starts a request, whose range is aligned to blocks.
    pub(super) fn execute(
        self: &Arc<Self>,
        operation: Operation,
    ) -> Io<Result<Outcome, ErrorCode>> {
        let executed =
            execute(&self.client, self.block_size, operation, || self.cancelled.subscribe());
        let access = self.clone();
        executed.map(move |result| {
            result.map_err(|error| {
                if let RequestError::Block(error) = &error {
                    access.note_failure(error);
                }
                failed(&error).1
            })
        })
    }

    pub(super) fn note_failure(&self, error: &dyn Display) {
        self.failures.lock().note(error);
    }

    pub(super) async fn flush(&self) -> Result<(), BlockError> {
        // A unit that was not written has nothing to flush, and may not accept that.
        if self.is_read_only() {
            return Ok(());
        }
        self.client.flush().wait().await
    }
}

/// How a task of a disk ended.
pub(super) enum Ending {
    /// The disk was detached.
    Detached,
    /// The process ends.
    Stopped,
    Failed(io::Error),
}

/// Changes to true when the tasks of a disk are to end.
pub(super) type Stop = watch::Receiver<bool>;
/// What a task of a disk reports when it ends.
pub(super) type Report = mpsc::UnboundedSender<Ending>;

/// What the start of a disk needs. It writes the record when it knows the device, and before others can use the disk.
pub(super) struct Start<'a> {
    pub(super) cores: &'a Arc<Cores>,
    pub(super) access: &'a Arc<Access>,
    pub(super) record: &'a mut Record,
    pub(super) folder: &'a AttachmentFolder,
    pub(super) stop: watch::Sender<bool>,
    pub(super) report: Report,
}

/// The tasks that serve a disk, one for each of its queues or connections.
pub(super) struct Tasks {
    stop: watch::Sender<bool>,
    endings: mpsc::UnboundedReceiver<Ending>,
}

impl Tasks {
    /// Creates or continues the disk of a record, and starts to serve it.
    pub(super) fn start(
        cores: &Arc<Cores>,
        access: &Arc<Access>,
        record: &mut Record,
        folder: &AttachmentFolder,
    ) -> Result<Self, AttachError> {
        let (report, endings) = mpsc::unbounded_channel();
        let stop = watch::Sender::new(false);
        let tasks = Self { stop: stop.clone(), endings };
        let kind = record.kind;
        let start = Start { cores, access, record, folder, stop, report };
        match kind {
            DiskKind::Ublk => ublk::start(start)?,
            DiskKind::Nbd => nbd::start_device(start)?,
            DiskKind::NbdSocket => nbd::start_socket(start)?,
            DiskKind::VhostUserBlk => vhost_user::start(start)?,
        }
        Ok(tasks)
    }

    /// Asks all tasks to end when their requests are complete.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for the end of one task. The caller then ends the others.
    pub(super) async fn ended(&mut self) -> Result<(), AttachError> {
        self.endings.recv().await.unwrap_or(Ending::Detached).into_result()
    }

    /// Waits for the end of all tasks.
    pub(super) async fn wait_for_all(&mut self, limit: Instant) {
        self.stop();
        let all = async { while self.endings.recv().await.is_some() {} };
        tokio::select! {
            () = all => {}
            () = time::sleep_until(limit) => warn!("requests of the disk have not ended"),
        }
    }
}

/// The disk of a record.
pub(super) struct Disk {
    kind: DiskKind,
    number: u32,
    tag: u64,
    backend: String,
    socket: PathBuf,
}

impl Disk {
    pub(super) fn of(record: &Record) -> Self {
        Self {
            kind: record.kind,
            number: record.number.unwrap_or(0),
            tag: record.device_tag,
            backend: backend(record),
            socket: record.config.socket.clone().unwrap_or_default(),
        }
    }

    /// Returns its path.
    pub(super) fn path(&self) -> PathBuf {
        match self.kind {
            DiskKind::Ublk => device::path(self.number),
            DiskKind::Nbd => nbd_device::Device::with_number(self.number).path(),
            DiskKind::NbdSocket | DiskKind::VhostUserBlk => self.socket.clone(),
        }
    }

    /// Changes its size. The connections of a socket see to it themselves.
    pub(super) fn resize(&self, bytes: u64) -> io::Result<()> {
        match self.kind {
            DiskKind::Ublk => device::Device::existing(self.number, self.tag)?.resize(bytes),
            DiskKind::Nbd => {
                nbd_device::Device::with_number(self.number).resize(&self.backend, bytes)
            }
            DiskKind::NbdSocket | DiskKind::VhostUserBlk => Ok(()),
        }
    }

    /// Removes the block device. A socket has none. That of ublk is removed when its process has closed its queues.
    pub(super) fn remove_device(&self) -> io::Result<()> {
        match self.kind {
            DiskKind::Ublk => device::Device::existing(self.number, self.tag)?.delete(),
            DiskKind::Nbd if nbd::exists(self.number, &self.backend) => {
                nbd_device::Device::with_number(self.number).disconnect()
            }
            DiskKind::Nbd => Err(io::ErrorKind::NotFound.into()),
            DiskKind::NbdSocket | DiskKind::VhostUserBlk => Ok(()),
        }
    }
}

/// Writes the record of a disk that is a socket, and listens there.
pub(super) fn listen(
    access: &Access,
    record: &mut Record,
    folder: &AttachmentFolder,
) -> Result<LocalListener, AttachError> {
    record.size_bytes = access.bytes();
    folder.write(record)?;
    let path = record.config.socket.clone().unwrap_or_default();
    LocalListener::bind(&path).map_err(AttachError::system(format!(
        "cannot listen at {}: choose a path in an existing folder, where no other file is",
        path.display()
    )))
}

/// Returns the text that identifies a device of the kernel's NBD client.
pub(super) fn backend(record: &Record) -> String {
    format!("sarsen {} {:016x}", record.config.name, record.device_tag)
}

/// Returns the kind of a new disk: the configured one if the kernel has it, otherwise the best one that it has.
pub(super) fn choose(config: &AttachmentConfig) -> Result<DiskKind, AttachError> {
    let ublk = || with_module(UBLK_MODULE, device::Device::probe);
    let nbd = || with_module(NBD_MODULE, nbd_device::Device::probe);
    match config.kind {
        Some(kind @ (DiskKind::NbdSocket | DiskKind::VhostUserBlk)) => Ok(kind),
        Some(DiskKind::Ublk) => {
            ublk().map(|()| DiskKind::Ublk).map_err(|error| missing("ublk", UBLK_MODULE, error))
        }
        Some(DiskKind::Nbd) => {
            nbd().map(|()| DiskKind::Nbd).map_err(|error| missing("nbd", NBD_MODULE, error))
        }
        None if ublk().is_ok() => Ok(DiskKind::Ublk),
        None => nbd()
            .map(|()| DiskKind::Nbd)
            .map_err(|error| missing("ublk or nbd", "ublk_drv or nbd", error)),
    }
}

fn missing(kind: &'static str, module: &'static str, error: io::Error) -> AttachError {
    let problem = match error.kind() {
        io::ErrorKind::PermissionDenied => "it needs root".to_owned(),
        io::ErrorKind::NotFound => {
            format!("this kernel does not have it: load its module, {module}")
        }
        _ => error.to_string(),
    };
    AttachError::NoDevice { kind, problem }
}

/// Tries whether the kernel has a driver, and loads its module if it has not.
fn with_module(module: &str, probe: impl Fn() -> io::Result<()>) -> io::Result<()> {
    match probe() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut modprobe = Command::new("modprobe");
            modprobe.args(["-q", module]).stdin(Stdio::null()).stdout(Stdio::null());
            // Without the program or the module, the second attempt says so.
            let _ = modprobe.stderr(Stdio::null()).status();
            probe()
        }
        probed => probed,
    }
}
