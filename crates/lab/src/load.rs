//! A load generator: keeps a number of I/Os open on a number of sessions and measures.
//!
//! Over iSCSI, one thread drives the protocol machines straight on sockets: it receives what there
//! is, takes all of it, issues the replacements, and sends them in one call. So it costs far less for each
//! I/O than a target does, and is not what limits. Data that is read is counted and thrown away;
//! data that is written comes from one buffer for all, unless it is to be verified: then each
//! block is made and looked at.
//!
//! The loop is closed (a new I/O when one has ended), or open ([`LoadOptions::rate`]): then
//! latencies count from when an I/O should have begun, so that a target that stands still for a
//! while is not excused from what it would have been asked meanwhile.
//!
//! The same load can be put on any store: on memory, a file or a device without a protocol.

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
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use sarsen_initiator::nbd::NbdError;
use sarsen_initiator::signature::Occupied;
use sarsen_initiator::transfer::TransferError;
use sarsen_initiator::{TlsError, UrlError};
use sarsen_node::stores::StoreError;
use sarsen_proto::iscsi::initiator::ConnectionError;

use crate::access::Access;
use crate::distribution::Distribution;
use crate::fio::Amount;
use crate::mix::Mix;
use crate::trace::TraceError;
pub use endpoint::{Endpoint, EndpointError, OpenStore};
pub use guard::look;
pub use ledger::{Mismatch, MismatchKind};
use replay::Feed;
pub use replay::Requests;
pub use result::{Latency, LoadResult};
use work::Shared;

/// How long a wait may last before the clock is looked at again.
const WAIT_LIMIT: Duration = Duration::from_millis(50);
/// Arrivals a second that make sense.
const RATES: std::ops::RangeInclusive<f64> = 0.001..=1e8;
/// Bytes of one read when what was written is read once more.
const READ_BACK_LENGTH: u32 = 256 * 1024;
/// How long sessions may take to end what is open and log out.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// A load and where it goes.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// What the I/Os go to.
    pub endpoint: Endpoint,
    /// What each session does.
    pub access: Access,
    /// I/Os of several sizes, or of an alignment of their own, in the place of `access`.
    pub mix: Option<Mix>,
    /// Where random I/Os go.
    pub distribution: Distribution,
    /// Where the part of the unit begins that the I/Os go to.
    pub offset: Amount,
    /// How long that part is; all that is behind the offset if it is absent or longer.
    pub size: Option<Amount>,
    /// A unit of fewer bytes is refused.
    pub least: u64,
    /// I/Os a second of all sessions together: an open loop. The queue depth is then the limit of
    /// what is open.
    pub rate: Option<f64>,
    /// Hold what is read against what this run has written, and read all of that once more at the
    /// end.
    pub verify: bool,
    /// Write even if the endpoint holds a file system, a partition table or the like.
    pub destroy: bool,
    /// Sessions, each with one connection.
    pub sessions: u32,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub duration: Duration,
    /// Ask for CRC32C header digests, or fail.
    pub header_digest: bool,
    /// Ask for CRC32C data digests, or fail.
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
    /// The target's processes, if they run here: their CPU time and memory are measured.
    pub target_pids: Vec<u32>,
    /// The same seed makes the same sequence of I/Os in each session.
    pub seed: u64,
    /// With no answer for so long, the target is given up.
    pub stall_limit: Duration,
}

impl LoadOptions {
    /// One session for three seconds, with offers that give a target its best.
    pub fn new(endpoint: impl Into<Endpoint>, access: Access) -> Self {
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

    /// Whether this is the plain closed loop over even places.
    fn is_plain(&self) -> bool {
        let even = self.distribution == Distribution::Uniform;
        self.mix.is_none() && even && self.rate.is_none() && !self.verify
    }

    /// Whether nothing is ever written, a replay apart.
    pub(crate) fn only_reads(&self) -> bool {
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

/// Why a load could not be put on.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The options make no load.
    #[error("{0}")]
    Options(&'static str),
    /// A call to the system failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The login failed or the target broke the protocol.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The URL's user, or the target's, cannot be one.
    #[error(transparent)]
    Identity(#[from] UrlError),
    /// No TLS with the target.
    #[error("no TLS: {0}")]
    Tls(#[from] TlsError),
    /// The target closed a connection, or asked for it to be closed.
    #[error("the target ended a connection")]
    Closed,
    /// The target rejected a PDU.
    #[error("the target rejected a PDU: {0}")]
    Rejected(String),
    /// No answer came.
    #[error("no answer for {0:?}")]
    Stalled(Duration),
    /// A command before the load failed.
    #[error("{command} failed with status {status:02X}h")]
    Preparation {
        /// The command.
        command: &'static str,
        /// SCSI status.
        status: u8,
    },
    /// The unit is smaller than one I/O or its blocks do not divide it.
    #[error("I/Os of {block_bytes} bytes do not fit a unit of {blocks} blocks of {block_length}")]
    Unit {
        /// Bytes of an I/O.
        block_bytes: u32,
        /// Logical blocks.
        blocks: u64,
        /// Bytes of a block.
        block_length: u32,
    },
    /// The unit is smaller than [`LoadOptions::least`].
    #[error("it has {bytes} bytes, but at least {least} are needed for a comparison")]
    TooSmall {
        /// Its size.
        bytes: u64,
        /// What was wanted.
        least: u64,
    },
    /// The trace cannot be read on.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The disk cannot be looked at.
    #[error(transparent)]
    Look(#[from] TransferError),
    /// Something is there that writes would destroy, and [`LoadOptions::destroy`] was not given.
    #[error(transparent)]
    Occupied(#[from] Occupied),
    /// The file or device cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The NBD server does not give the export.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// A process that is to be measured cannot be.
    #[error("process {pid} cannot be measured: {source}")]
    Process {
        /// Which.
        pid: u32,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(Errno) -> LoadError {
    move |source| LoadError::System { what, source: source.into() }
}

/// Puts the load on and measures it. Takes the thread until it is done.
pub fn run(options: &LoadOptions) -> Result<LoadResult, LoadError> {
    put_on(options, Shared::default())
}

/// Asks of the target what a trace asks, and measures it: with the trace's own times divided by
/// `speed`, or without one as fast as the queue depth allows. Ends with the trace; the options'
/// sizes, places, rate and times are not used. Takes the thread until it is done.
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
        // It shows as it goes on whether a trace has writes.
        Some(feed) => feed.borrow_mut().occupied = look(options)?,
        None if options.only_reads() => {}
        None => look(options)?.map_or(Ok(()), |occupied| Err(LoadError::Occupied(occupied)))?,
    }
    match &options.endpoint {
        Endpoint::Iscsi(url) => iscsi::put_on(options, url, shared),
        Endpoint::Nbd(_) | Endpoint::Memory(_) | Endpoint::File { .. } => {
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
        return Err(LoadError::Options("percentages end at 100"));
    }
    if options.mix.is_some() && parts.clone().all(|part| part.weight == 0) {
        return Err(LoadError::Options("a mix without weights has no I/Os"));
    }
    if options.rate.is_some_and(|rate| !(RATES.contains(&rate))) {
        return Err(LoadError::Options("the rate must be from 0.001 to 100 million I/Os a second"));
    }
    Ok(())
}
