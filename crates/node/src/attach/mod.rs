//! Logical units of other servers as disks of this machine: see docs/decisions/0022-attaching.md.
//!
//! [`Attached::start`] opens a unit and creates its disk, or continues the disk of a process that has ended. [`AttachmentConfig`]
//! describes an attachment, [`record`] lists those of this machine.

mod config;
mod detach;
mod disk;
mod link;
mod nbd;
pub mod record;
mod ublk;
mod vhost_user;

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use sarsen_block::layers::ReadOnly;
use sarsen_block::{StatusListener, Store};
use sarsen_io::cores::{Cores, FileEngine};
use sarsen_io::spin::Spin;
use sarsen_io::{random, threads, time};
use sarsen_volume::{self as volume, Aspect, Parts, Volume, VolumeHealth};
use tokio::sync::Notify;
use tracing::{info, warn};

pub use self::config::{AttachmentConfig, DiskKind, parse_file};
pub use self::detach::detach;
use self::disk::{Access, Disk, Ending, Tasks};
use self::record::{AttachmentFolder, Record};

use crate::machine::machine_identity;
use crate::stores::{RemoteAccess, RemoteStore, RemoteUnit, StoreCores, StoreError};

/// Maximum number of cores of an attachment, each with a queue or a connection of the disk.
const CORES: usize = 4;
/// Maximum time for the requests that a process has when it ends, and again for its last flush.
const FLUSH_LIMIT: Duration = Duration::from_secs(30);
const LOGOUT_LIMIT: Duration = Duration::from_secs(5);
/// Maximum wait for the lock of an attachment that no process should serve.
pub(crate) const LOCK_LIMIT: Duration = Duration::from_secs(2);

/// The reason why nothing was attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The configuration is wrong.
    #[error("{0}")]
    Invalid(String),
    /// A process serves the attachment already.
    #[error(
        "attachment {name}: it is attached already ({device}); to attach it again, detach it first: sarsen detach {name}"
    )]
    Attached {
        /// Its name.
        name: String,
        /// Its disk.
        device: String,
    },
    /// There is no such attachment.
    #[error("there is no attachment {name}; `sarsen attachments` lists them")]
    NotFound {
        /// The name or the device.
        name: String,
    },
    /// The disk that waits for its process is another one.
    #[error("attachment {name}: {difference}; `sarsen detach {name}` removes the old disk")]
    Differs {
        /// Its name.
        name: String,
        /// The difference.
        difference: String,
    },
    /// The kernel provides no such disk.
    #[error(
        "a disk as {kind} is not possible: {problem}. `--as nbd-socket --socket PATH` needs neither root nor a module"
    )]
    NoDevice {
        /// The kind of the disk.
        kind: &'static str,
        /// The problem, and the remedy.
        problem: String,
    },
    /// The disk is in use.
    #[error(
        "{device} is in use: {user}; unmount it, or end that program or virtual machine, or use --force"
    )]
    InUse {
        /// The disk.
        device: String,
        /// Its user.
        user: String,
    },
    /// The unit cannot be used.
    #[error(transparent)]
    Unit(#[from] StoreError),
    /// The last writes are lost, or will be with the server of the unit.
    #[error(
        "attachment {name}: the last writes are not durable: {reason}; check the server of the unit, and the file system"
    )]
    LostWrites {
        /// Its name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The system cannot do it.
    #[error("{what}: {source}")]
    System {
        /// What failed, and what to do.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl AttachError {
    /// Returns a function that adds what failed to an error of the system.
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::System { what: what.into(), source }
    }
}

/// The problem of a disk whose flush failed.
const FLUSH_FAILED: &str = "takes no writes: a flush failed, and writes since the last one that succeeded may be lost. Detach it, check the \
                            server and the file system, and attach it again";

/// An attachment that this process serves.
pub struct Attached {
    folder: Arc<AttachmentFolder>,
    record: Record,
    cores: Arc<Cores>,
    remote: Arc<RemoteStore>,
    access: Arc<Access>,
    tasks: Tasks,
    size_watch: Arc<SizeWatch>,
}

/// Wakes a watcher of the size.
#[derive(Default)]
struct SizeWatch(Notify);

impl SizeWatch {
    /// Waits until the size may have changed.
    async fn changed(&self) {
        self.0.notified().await;
    }
}

impl StatusListener for SizeWatch {
    fn status_changed(&self) {
        self.0.notify_one();
    }
}

impl Attached {
    /// Opens the unit, and creates its disk or continues the one that waits for a process. Blocks the thread, which must not be a core.
    pub fn start(config: &AttachmentConfig) -> Result<Self, AttachError> {
        config.check()?;
        let folder = Arc::new(AttachmentFolder::claim(&config.name)?);
        let earlier = folder.read()?;
        let is_new = earlier.is_none();
        let started = Self::start_in(&folder, earlier, config);
        if started.is_err() && is_new {
            folder.remove();
        }
        started
    }

    fn start_in(
        folder: &Arc<AttachmentFolder>,
        earlier: Option<Record>,
        config: &AttachmentConfig,
    ) -> Result<Self, AttachError> {
        if let Some(earlier) = &earlier {
            earlier.check_continued(config)?;
        }
        record::refuse_socket_of_other(config)?;
        let kind = match &earlier {
            Some(earlier) => earlier.kind,
            None => disk::choose(config)?,
        };
        let count = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(CORES);
        let cores = Cores::start(NonZeroUsize::new(count), FileEngine::Pool, Spin::Auto);
        let cores = Arc::new(cores.map_err(AttachError::system("cannot start threads"))?);
        let access = RemoteAccess {
            cores: StoreCores(Arc::downgrade(&cores)),
            machine: machine_identity(),
            accounts: Arc::new(parking_lot::Mutex::new(config.accounts())),
        };
        let identity = format!("attachment {}", config.name);
        let known_portals = earlier.as_ref().map_or(&[][..], |earlier| &earlier.portals);
        let url = config.url.with_portals(known_portals);
        let unit = RemoteUnit {
            url: &url,
            identity: &identity,
            initiator_name: config.initiator_name.as_deref(),
            only_these_portals: config.only_these_portals,
            path_selector: config.path_selector,
            path_wait: Some(config.path_wait()),
            read_only: config.read_only,
        };
        let (remote, health) = RemoteStore::open(&unit, &access)?;
        let unit = remote.identifier();
        if let Some(earlier) = &earlier {
            earlier.check_unit(unit.as_deref())?;
        }
        record::refuse_unit_of_other(&config.name, unit.as_deref())?;
        let mut store: Arc<dyn Store> = remote.clone();
        if config.read_only {
            store = Arc::new(ReadOnly::new(store));
        }
        let parts = Parts { health, ..Parts::new(&config.name, store) };
        let volume = Volume::open(parts).map_err(AttachError::system("cannot open the unit"))?;
        let client = volume::Attachment::new(volume, config.read_only);
        let access = Access::new(client);
        let mut record = match earlier {
            Some(earlier) => Record {
                config: config.clone(),
                process: std::process::id(),
                lost_writes: None,
                ..earlier
            },
            None => Record::new(config, kind, random::number(), count as u16, unit),
        };
        record.portals = remote.paths().into_iter().map(|path| path.portal).collect();
        record.problem = text_of(&remote.path_health());
        let size_watch = Arc::new(SizeWatch::default());
        let listener: Weak<SizeWatch> = Arc::downgrade(&size_watch);
        remote.status().subscribe(listener);
        // The size may have changed while no process served the disk.
        size_watch.0.notify_one();
        let tasks = Tasks::start(&cores, &access, &mut record, folder)?;
        link::create(&record);
        let folder = folder.clone();
        Ok(Self { folder, record, cores, remote, access, tasks, size_watch })
    }

    /// Returns its record.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Follows the size of the unit and the health of its paths, until the disk is detached.
    pub async fn serve(&mut self) -> Result<(), AttachError> {
        let size_watch = self.size_watch.clone();
        loop {
            let paths_changed = self.remote.paths_changed();
            self.note_problem();
            tokio::select! {
                ending = self.tasks.ended() => return ending,
                () = paths_changed => {}
                () = size_watch.changed() => self.follow_size().await,
            }
        }
    }

    fn note_problem(&mut self) {
        let text = match self.access.volume().health().of(Aspect::Flush) {
            VolumeHealth::Online => text_of(&self.remote.path_health()),
            VolumeHealth::Degraded { .. } | VolumeHealth::OutOfService { .. } => {
                Some(FLUSH_FAILED.to_owned())
            }
        };
        if text == self.record.problem {
            return;
        }
        match &text {
            Some(problem) => warn!(attachment = self.record.config.name, "the disk {problem}"),
            None => info!(attachment = self.record.config.name, "all paths of the disk work"),
        }
        self.record.problem = text;
        self.write_record();
    }

    async fn follow_size(&mut self) {
        let bytes = self.access.bytes();
        if bytes == self.record.size_bytes {
            return;
        }
        let disk = Disk::of(&self.record);
        let resized = threads::run_detached("resize", move || disk.resize(bytes)).await;
        let name = self.record.config.name.as_str();
        match resized.flatten() {
            Ok(()) => info!(attachment = name, bytes, "the size of the disk has changed"),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                warn!(
                    attachment = name,
                    bytes,
                    "this kernel cannot change the size of the disk: detach it and attach it again"
                );
                return;
            }
            Err(error) => {
                warn!(attachment = name, bytes, %error, "the size of the disk was not changed");
                return;
            }
        }
        self.record.size_bytes = bytes;
        self.write_record();
    }

    fn write_record(&self) {
        if let Err(error) = self.folder.write(&self.record) {
            warn!(attachment = self.record.config.name, %error, "the state of the attachment cannot be written");
        }
    }

    /// Ends the process of the disk, which waits for the next one: completes the requests that were begun, makes them durable, and logs
    /// out.
    pub fn suspend(self) -> Result<(), AttachError> {
        self.tasks.stop();
        self.end(false)
    }

    /// Ends after the disk was detached: makes all writes durable and logs out.
    pub fn finish(self) -> Result<(), AttachError> {
        self.end(true)
    }

    fn end(self, is_detached: bool) -> Result<(), AttachError> {
        let Self { folder, record, cores, remote, access, mut tasks, .. } = self;
        let limit = time::now() + FLUSH_LIMIT;
        let (done, answer) = mpsc::channel();
        let flushed = access.clone();
        cores.spawn_on(0, move || async move {
            tasks.wait_for_all(limit).await;
            drop(done.send(flushed.flush().await));
        });
        let flushed = answer.recv_timeout(FLUSH_LIMIT * 2);
        if flushed.is_err() {
            // A core that does not answer may never end, and this process must.
            std::mem::forget(cores.clone());
        }
        let has_lost_nothing = !remote.has_kept_writes();
        let mut logged_out = remote.logged_out();
        drop((access, remote));
        let (done, answer) = mpsc::channel();
        cores.spawn_on(0, move || async move {
            let _ = logged_out.wait_for(|is_done| *is_done).await;
            let _ = done.send(());
        });
        let _ = answer.recv_timeout(LOGOUT_LIMIT);
        let lost = match flushed {
            Ok(Ok(())) => None,
            _ if has_lost_nothing => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the last flush did not end in time".to_owned()),
        };
        if is_detached {
            link::remove(&record);
        }
        match lost {
            None => {
                if is_detached {
                    folder.remove();
                }
                Ok(())
            }
            // `sarsen detach`, or the next process, finds the record.
            Some(reason) => {
                let name = record.config.name.clone();
                folder.write(&Record { lost_writes: Some(reason.clone()), ..record })?;
                Err(AttachError::LostWrites { name, reason })
            }
        }
    }
}

/// Returns the problem of a disk, if it has one.
fn text_of(health: &VolumeHealth) -> Option<String> {
    match health {
        VolumeHealth::Online => None,
        VolumeHealth::Degraded { reason } | VolumeHealth::OutOfService { reason } => {
            Some(reason.clone())
        }
    }
}

impl Ending {
    fn into_result(self) -> Result<(), AttachError> {
        match self {
            Self::Detached | Self::Stopped => Ok(()),
            Self::Failed(source) => Err(AttachError::System {
                what: "the kernel's side of the disk failed".into(),
                source,
            }),
        }
    }
}

impl Record {
    /// Returns the path of the block device or of the socket.
    pub fn path(&self) -> PathBuf {
        Disk::of(self).path()
    }
}
