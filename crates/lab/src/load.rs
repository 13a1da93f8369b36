//! A load generator: keeps a number of I/Os open on a number of sessions and measures them.
//!
//! Over iSCSI, one thread drives the protocol machines directly on sockets. It receives all available data, processes
//! all of it, issues the next I/Os, and sends them in one call. Therefore the generator costs far less CPU time per I/O
//! than a target and is not the bottleneck. The generator counts and discards the data that it reads. All writes send
//! the same buffer, unless the load verifies data: then the generator creates and checks each block.
//!
//! The loop is closed (an I/O starts when another one ends) or open ([`LoadOptions::rate`]). In an open loop, a latency
//! starts at the time at which the I/O should have started. Thus a target that stalls is also charged for the I/Os that
//! were due during the stall.
//!
//! The same load runs on any store: memory, a file or a device, without a protocol, or a unit over several paths.

mod client;
mod endpoint;
mod guard;
mod iscsi;
mod ledger;
mod plan;
mod process;
mod replay;
mod result;
mod socket;
mod stores;
mod tally;
mod work;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use sarsen_initiator::nbd::NbdError;
use sarsen_initiator::signature::Occupied;
use sarsen_initiator::transfer::TransferError;
use sarsen_initiator::{SessionError, TlsError, UrlError};
use sarsen_node::stores::StoreError;
use sarsen_proto::iscsi::initiator::ConnectionError;

use crate::access::AccessPattern;
use crate::distribution::Distribution;
use crate::fio::Amount;
use crate::mix::Mix;
use crate::trace::TraceError;
pub use endpoint::{Endpoint, EndpointError, OpenStore};
pub use guard::look;
pub use ledger::{Mismatch, MismatchKind};
use replay::Feed;
pub use replay::Requests;
pub use result::{DirectionResult, LoadResult};
use work::Shared;

/// Maximum duration of a wait before the engine reads the clock again.
const WAIT_LIMIT: Duration = Duration::from_millis(50);
/// Permitted rates, in I/Os per second.
const RATES: std::ops::RangeInclusive<f64> = 0.001..=1e8;
/// Number of bytes of one read when the load reads all written blocks again.
const READ_BACK_LENGTH: u32 = 256 * 1024;
/// Maximum time in which sessions complete their open I/Os and log out.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// A load and its endpoint.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The endpoint of the I/Os.
    pub endpoint: Endpoint,
    /// The access pattern of each session.
    pub access: AccessPattern,
    /// I/Os of several sizes, or with their own alignment, that replace `access`.
    pub mix: Option<Mix>,
    /// The distribution of the addresses of random I/Os.
    pub distribution: Distribution,
    /// The start of the part of the logical unit that the I/Os use.
    pub offset: Amount,
    /// The length of that part. If absent or too long, the part extends to the end of the unit.
    pub size: Option<Amount>,
    /// Minimum size of the unit in bytes; a smaller unit is rejected.
    pub least: u64,
    /// I/Os per second of all sessions together, for an open loop. The queue depth then limits the number of open I/Os.
    pub rate: Option<f64>,
    /// Whether the load compares the data that it reads with the data that it wrote, and reads all written blocks again
    /// at the end.
    pub verify: bool,
    /// Whether the load writes even if the endpoint holds a file system, a partition table or similar data.
    pub destroy: bool,
    /// Number of sessions, each with one connection. Over several paths, all of them use the same paths.
    pub sessions: u32,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub duration: Duration,
    /// Whether the login requires CRC32C header digests.
    pub header_digest: bool,
    /// Whether the login requires CRC32C data digests.
    pub data_digest: bool,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength, in bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength, in bytes.
    pub max_burst_length: u32,
    /// FirstBurstLength, in bytes.
    pub first_burst_length: u32,
    /// The target's processes, if they run on this machine: the load measures their CPU time and memory.
    pub target_pids: Vec<u32>,
    /// Seed of the random numbers: the same seed produces the same sequence of I/Os in each session.
    pub seed: u64,
    /// Maximum time without a response; then the load fails.
    pub stall_limit: Duration,
}

impl From<StoreError> for LoadError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound { path } => Self::NoFile { path },
            error => Self::Store(error),
        }
    }
}

impl LoadOptions {
    /// Returns options for one session of three seconds whose login offers permit the target its best performance.
    pub fn new(endpoint: impl Into<Endpoint>, access: AccessPattern) -> Self {
        Self {
            endpoint: endpoint.into(),
            access,
            mix: None,
            distribution: Distribution::Uniform,
            offset: Amount::Bytes(0),
            size: None,
            least: 0,
            rate: None,
            verify: false,
            destroy: false,
            sessions: 1,
            warm_up: Duration::from_millis(300),
            duration: Duration::from_secs(3),
            header_digest: false,
            data_digest: false,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 1024 * 1024,
            max_burst_length: 16 * 1024 * 1024 - 512,
            first_burst_length: 256 * 1024,
            target_pids: Vec::new(),
            seed: 1,
            stall_limit: Duration::from_secs(10),
        }
    }

    /// Whether this is a closed loop of one I/O size with uniformly distributed addresses and without verification.
    fn is_plain(&self) -> bool {
        let even = self.distribution == Distribution::Uniform;
        self.mix.is_none() && even && self.rate.is_none() && !self.verify
    }

    /// Whether the load never writes. A replay is not considered.
    pub fn only_reads(&self) -> bool {
        match &self.mix {
            Some(mix) => mix.parts.iter().all(|part| part.read_percent == 100),
            None => self.access.read_percent == 100,
        }
    }

    fn queue_depth(&self) -> u32 {
        self.mix.as_ref().map_or(self.access.queue_depth, |mix| mix.queue_depth)
    }

    fn block_sizes(&self) -> Vec<u32> {
        match &self.mix {
            Some(mix) => mix.parts.iter().map(|part| part.block_bytes).collect(),
            None => vec![self.access.block_bytes],
        }
    }

    fn longest(&self) -> u32 {
        self.mix.as_ref().map_or(self.access.block_bytes, Mix::longest)
    }
}

/// The reason for which a load failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The options are invalid.
    #[error("{0}")]
    Options(&'static str),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The login failed or the target violated the protocol.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The credentials in the URL, of the user or of the target, are invalid.
    #[error(transparent)]
    Identity(#[from] UrlError),
    /// TLS with the target failed.
    #[error("TLS failed: {0}")]
    Tls(#[from] TlsError),
    /// The target closed a connection or requested its closure.
    #[error("the target closed a connection; see the target's log")]
    Closed,
    /// The target rejected a PDU.
    #[error("the target rejected a PDU: {0}")]
    Rejected(String),
    /// The target did not respond.
    #[error("the target did not respond for {0:?}")]
    Stalled(Duration),
    /// A command that prepares the load failed.
    #[error("{command} failed with status {status:02X}h")]
    Preparation {
        /// The name of the command.
        command: &'static str,
        /// SCSI status.
        status: u8,
    },
    /// The unit is smaller than one I/O, or the I/O is not a whole number of its blocks.
    #[error("I/Os of {block_bytes} bytes do not fit a unit of {blocks} blocks of {block_length}")]
    Unit {
        /// Number of bytes of an I/O.
        block_bytes: u32,
        /// Number of logical blocks of the unit.
        blocks: u64,
        /// Number of bytes of a logical block.
        block_length: u32,
    },
    /// The unit is smaller than [`LoadOptions::least`].
    #[error("the unit has {bytes} bytes; a comparison needs at least {least}")]
    TooSmall {
        /// Size of the unit in bytes.
        bytes: u64,
        /// Minimum size in bytes.
        least: u64,
    },
    /// The trace is unreadable or invalid.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The check of the disk's content failed.
    #[error(transparent)]
    Look(#[from] TransferError),
    /// The endpoint holds data that writes would destroy, and [`LoadOptions::destroy`] is not set.
    #[error(transparent)]
    Occupied(#[from] Occupied),
    /// The file or device does not exist.
    #[error("{path} does not exist")]
    NoFile {
        /// Its path.
        path: PathBuf,
    },
    /// The file or device cannot be opened.
    #[error(transparent)]
    Store(StoreError),
    /// The target does not provide the unit over any path.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The NBD server does not provide the export.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// The measurement of a process failed.
    #[error("process {pid} cannot be measured: {source}")]
    Process {
        /// The process ID.
        pid: u32,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(Errno) -> LoadError {
    move |source| LoadError::System { what, source: source.into() }
}

/// Runs the load and measures it. Blocks the calling thread until the load ends.
pub fn run(options: &LoadOptions) -> Result<LoadResult, LoadError> {
    put_on(options, Shared::default())
}

/// Replays a trace and measures it. With `speed`, the times of the trace divided by `speed` apply. Without it, the
/// replay is as fast as the queue depth permits. The replay ends with the trace and ignores the options' sizes,
/// addresses, rate and durations. Blocks the calling thread until the replay ends.
pub fn replay(
    options: &LoadOptions,
    requests: Requests,
    speed: Option<f64>,
) -> Result<LoadResult, LoadError> {
    if speed.is_some_and(|speed| !(speed.is_finite() && speed > 0.0)) {
        return Err(LoadError::Options("the speed must be above 0"));
    }
    if options.verify {
        return Err(LoadError::Options("a replay is not verified: its writes may overlap"));
    }
    let feed = Rc::new(RefCell::new(Feed::new(requests, speed)));
    put_on(options, Shared { feed: Some(feed), ..Shared::default() })
}

fn put_on(options: &LoadOptions, shared: Shared) -> Result<LoadResult, LoadError> {
    check(options)?;
    match &shared.feed {
        _ if options.destroy => {}
        // Only the replay shows whether the trace contains writes.
        Some(feed) => feed.borrow_mut().occupied = look(options)?,
        None if options.only_reads() => {}
        None => look(options)?.map_or(Ok(()), |occupied| Err(LoadError::Occupied(occupied)))?,
    }
    match &options.endpoint {
        Endpoint::Iscsi(url) if url.portals.len() == 1 => iscsi::put_on(options, url, shared),
        Endpoint::Iscsi(_) | Endpoint::Nbd(_) | Endpoint::Memory(_) | Endpoint::File { .. } => {
            stores::put_on(options, shared)
        }
    }
}

fn check(options: &LoadOptions) -> Result<(), LoadError> {
    let access = &options.access;
    let sizes = options.block_sizes();
    let empty = sizes.is_empty() || sizes.contains(&0);
    if empty || options.queue_depth() == 0 || options.sessions == 0 {
        return Err(LoadError::Options("block size, queue depth and sessions must not be 0"));
    }
    let percentages = |reads, random| reads <= 100 && random <= 100;
    let parts = options.mix.iter().flat_map(|mix| &mix.parts);
    if !percentages(access.read_percent, access.random_percent)
        || !parts.clone().all(|part| percentages(part.read_percent, part.random_percent))
    {
        return Err(LoadError::Options("percentages must be from 0 to 100"));
    }
    if options.mix.is_some() && parts.clone().all(|part| part.weight == 0) {
        return Err(LoadError::Options("a mix without weights has no I/Os"));
    }
    if options.rate.is_some_and(|rate| !(RATES.contains(&rate))) {
        return Err(LoadError::Options("the rate must be from 0.001 to 100 million I/Os a second"));
    }
    Ok(())
}
