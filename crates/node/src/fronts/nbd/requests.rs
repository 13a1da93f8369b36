//! The requests of a session: their limits, their execution on the volume, and their statistics.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use sarsen_block::{Allocation, BlockError, BlockSize, Data, Durability, Extent, Io, LocalFuture};
use sarsen_io::time;
use sarsen_proto::nbd::server::{MAXIMUM_EXTENTS, Operation, Outcome, StatusExtent};
use sarsen_volume::Attachment;
use sarsen_wire::nbd::{ErrorCode, allocation};

use crate::access::Origin;
use crate::events::EventLog;
use crate::fronts::iscsi::Front;
use crate::qos::{Account, Admit, Cost, Peer, Qos, Queue};
use crate::statistics::{self, Failure, Metered};

/// Ranges are zeroed, deallocated and read ahead in pieces of so many bytes, so that one request does not occupy a core
/// or a store for too long.
const ZERO_PIECE: u64 = 32 << 20;
const UNMAP_PIECE: u64 = 1 << 30;
const CACHE_PIECE: u64 = 1 << 20;
/// Maximum number of queries to the store for one request for the allocation of a range.
const STATUS_QUERIES: usize = 1024;

/// The result of a request for the machine.
pub(super) type Answer = Result<Outcome, ErrorCode>;

/// A request that has ended, with the values that its statistics need.
pub(super) struct Completed {
    begun: Begun,
    result: Result<Outcome, RequestError>,
}

/// The reason why a request failed.
enum RequestError {
    Block(BlockError),
    /// Zeroes could not be written faster than data.
    NotFast,
}

impl From<BlockError> for RequestError {
    fn from(error: BlockError) -> Self {
        Self::Block(error)
    }
}

#[derive(Clone, Copy)]
struct Begun {
    /// Nanoseconds since the session began.
    at: u64,
    kind: statistics::Operation,
    /// Number of bytes that a success transfers.
    bytes: u64,
}

/// A pending request.
pub(super) struct Carried {
    task: u64,
    begun: Begun,
    answer: LocalFuture<Result<Outcome, RequestError>>,
}

impl Future for Carried {
    type Output = (u64, Completed);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (task, begun) = (self.task, self.begun);
        self.answer.as_mut().poll(context).map(|result| (task, Completed { begun, result }))
    }
}

/// See the module.
pub(super) struct Requests {
    volume: Arc<Attachment>,
    block_size: BlockSize,
    volume_name: String,
    client: String,
    from: Origin,
    meter: Metered,
    events: Arc<EventLog>,
    qos: Arc<Qos>,
    account: Arc<Account>,
    host: Option<Arc<Account>>,
    /// The generation of the hosts when the host was found.
    generation: Option<u64>,
    queue: Arc<Queue>,
    /// The start of the session.
    origin: Instant,
    /// The arrival time of the current requests, in nanoseconds since the origin.
    arrived: u64,
    /// The request that [`Self::start`] left pending.
    pending: Option<Carried>,
    /// Requests whose replies are ready to be sent.
    answered: Vec<Begun>,
}

impl Requests {
    pub(super) fn new(
        front: &Front,
        volume: Arc<Attachment>,
        volume_name: &str,
        (client, from): (String, Origin),
        (session, queue): (u16, Arc<Queue>),
    ) -> Self {
        let statistics = &front.access.metrics.statistics;
        Self {
            block_size: volume.volume().geometry().block_size,
            volume,
            volume_name: volume_name.to_owned(),
            meter: statistics.meter(volume_name, &client, session),
            client,
            from,
            events: front.access.events.clone(),
            qos: front.qos.clone(),
            account: front.qos.volume(volume_name),
            host: None,
            generation: None,
            queue,
            origin: time::now(),
            arrived: 0,
            pending: None,
            answered: Vec::new(),
        }
    }

    /// Sets the arrival time of requests.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.arrived = (now - self.origin).as_nanos() as u64;
    }

    /// Starts a request. If the result is pending, [`Self::take_pending`] returns the request.
    pub(super) fn start(&mut self, task: u64, operation: Operation) -> Poll<Answer> {
        self.meter.begin();
        let begun = self.begun(&operation);
        if self.account.is_governed() {
            self.find_host();
            let cost = || Cost { bytes: begun.bytes };
            let admit = self.qos.admit(&self.account, self.host.as_ref(), cost, &self.queue, None);
            if let Admit::After(wait) = admit {
                self.meter.limited();
                let (volume, block_size) = (self.volume.clone(), self.block_size);
                let answer = Box::pin(async move {
                    let slot = wait.wait_until_runnable().await;
                    let result = execute(&volume, block_size, operation).wait().await;
                    drop(slot);
                    result
                });
                self.pending = Some(Carried { task, begun, answer });
                return Poll::Pending;
            }
        }
        match execute(&self.volume, self.block_size, operation) {
            Io::Ready(result) => Poll::Ready(self.end(Completed { begun, result })),
            Io::Pending(answer) => {
                self.pending = Some(Carried { task, begun, answer });
                Poll::Pending
            }
        }
    }

    /// Finds the account of the client's host, if the hosts have changed.
    fn find_host(&mut self) {
        let generation = self.qos.generation();
        if self.generation != Some(generation) {
            self.host = self.qos.host(&Peer {
                initiator: &self.client,
                address: self.from.peer.ip(),
                account: None,
                certificate: self.from.certificate.as_ref(),
            });
            self.generation = Some(generation);
        }
    }

    /// Returns the request that [`Self::start`] left pending.
    pub(super) fn take_pending(&mut self) -> Carried {
        self.pending.take().unwrap_or_else(|| unreachable!("called after a pending start"))
    }

    fn begun(&self, operation: &Operation) -> Begun {
        use statistics::Operation as Kind;
        let (kind, bytes) = match operation {
            Operation::Read { length, .. } => (Kind::Read, *length),
            Operation::Write { data, .. } => (Kind::Write, data.len() as u64),
            Operation::Flush => (Kind::Flush, 0),
            Operation::Trim { .. } => (Kind::Unmap, 0),
            Operation::WriteZeroes { .. } => (Kind::Write, 0),
            Operation::Cache { .. } | Operation::BlockStatus { .. } => (Kind::Other, 0),
        };
        Begun { at: self.arrived, kind, bytes }
    }

    /// Counts a request that has ended, and returns its result for the machine.
    pub(super) fn end(&mut self, completed: Completed) -> Answer {
        let Completed { mut begun, result } = completed;
        let result = result.map_err(|error| {
            let (failure, code) = failed(&error);
            self.meter.fail(failure);
            self.events.tell_failure(&self.volume_name, &self.client, failure);
            begun.bytes = 0;
            code
        });
        self.answered.push(begun);
        result
    }

    /// Counts the requests whose replies are about to be sent.
    pub(super) fn count_sent(&mut self) {
        if self.answered.is_empty() {
            return;
        }
        let now = (time::now() - self.origin).as_nanos() as u64;
        for Begun { at, kind, bytes } in self.answered.drain(..) {
            self.meter.end(kind, now.saturating_sub(at), 1, bytes);
        }
    }
}

/// Returns how statistics and the client see an error ("Error values").
fn failed(error: &RequestError) -> (Failure, ErrorCode) {
    let RequestError::Block(error) = error else {
        return (Failure::IllegalRequest, ErrorCode::NotSupported);
    };
    match error {
        // A volume may have shrunk. The machine has checked the request against the earlier size.
        BlockError::OutOfRange { .. } => (Failure::IllegalRequest, ErrorCode::NoSpace),
        BlockError::NoSpace { .. } => (Failure::NoSpace, ErrorCode::NoSpace),
        BlockError::Medium { .. } | BlockError::Protection { .. } | BlockError::Stopped => {
            (Failure::MediumError, ErrorCode::Io)
        }
        BlockError::ReadOnly => (Failure::DataProtect, ErrorCode::NotPermitted),
        BlockError::OutOfService => (Failure::NotReady, ErrorCode::Io),
        BlockError::Fenced => (Failure::ReservationConflict, ErrorCode::NotPermitted),
        BlockError::Unsupported => (Failure::IllegalRequest, ErrorCode::NotSupported),
    }
}

const fn durability(durable: bool) -> Durability {
    if durable { Durability::Durable } else { Durability::Volatile }
}

/// Executes a request, whose range is aligned to blocks.
fn execute(
    volume: &Arc<Attachment>,
    block_size: BlockSize,
    operation: Operation,
) -> Io<Result<Outcome, RequestError>> {
    let shift = block_size.shift();
    let extent = |offset: u64, length: u64| Extent::new(offset >> shift, length >> shift);
    let done = |done: Result<(), BlockError>| Ok(done.map(|()| Outcome::Done)?);
    match operation {
        Operation::Read { offset, length } => {
            let read = |data: Result<Data, BlockError>| Ok(data.map(Outcome::Data)?);
            volume.read(extent(offset, length)).map(read)
        }
        Operation::Write { offset, data, durable } => {
            let extent = extent(offset, data.len() as u64);
            volume.write(extent, data.into(), durability(durable)).map(done)
        }
        Operation::Flush => volume.flush().map(done),
        Operation::Trim { offset, length, durable } => {
            Io::pending(unmap(volume.clone(), extent(offset, length), shift, durable))
        }
        Operation::WriteZeroes { offset, length, durable, may_punch, fast } => {
            let can_unmap = volume.volume().store().characteristics().unmap.is_some();
            let extent = extent(offset, length);
            if may_punch && can_unmap {
                Io::pending(unmap(volume.clone(), extent, shift, durable))
            } else if fast {
                Io::Ready(Err(RequestError::NotFast))
            } else {
                Io::pending(zero(volume.clone(), extent, shift, durability(durable)))
            }
        }
        Operation::Cache { offset, length } => {
            Io::pending(read_ahead(volume.clone(), extent(offset, length), shift))
        }
        Operation::BlockStatus { offset, length, one } => {
            let queries = if one { 1 } else { STATUS_QUERIES };
            Io::pending(status(volume.clone(), extent(offset, length), shift, queries))
        }
    }
}

/// Returns the parts of an extent with a maximum of `bytes` each.
fn pieces(extent: Extent, bytes: u64, shift: u32) -> impl Iterator<Item = Extent> {
    let step = (bytes >> shift).max(1);
    let starts = (extent.lba.0..extent.end()).step_by(step as usize);
    starts.map(move |lba| Extent::new(lba, step.min(extent.end() - lba)))
}

async fn unmap(
    volume: Arc<Attachment>,
    extent: Extent,
    shift: u32,
    durable: bool,
) -> Result<Outcome, RequestError> {
    for piece in pieces(extent, UNMAP_PIECE, shift) {
        volume.unmap(piece).wait().await?;
        tokio::task::yield_now().await;
    }
    if durable {
        volume.flush().wait().await?;
    }
    Ok(Outcome::Done)
}

async fn zero(
    volume: Arc<Attachment>,
    extent: Extent,
    shift: u32,
    durability: Durability,
) -> Result<Outcome, RequestError> {
    for piece in pieces(extent, ZERO_PIECE, shift) {
        volume.write_zeroes(piece, durability).wait().await?;
        tokio::task::yield_now().await;
    }
    Ok(Outcome::Done)
}

async fn read_ahead(
    volume: Arc<Attachment>,
    extent: Extent,
    shift: u32,
) -> Result<Outcome, RequestError> {
    for piece in pieces(extent, CACHE_PIECE, shift) {
        volume.read(piece).wait().await?;
        tokio::task::yield_now().await;
    }
    Ok(Outcome::Done)
}

async fn status(
    volume: Arc<Attachment>,
    mut rest: Extent,
    shift: u32,
    queries: usize,
) -> Result<Outcome, RequestError> {
    let mut extents: Vec<StatusExtent> = Vec::new();
    for _ in 0..queries {
        let run = volume.allocation(rest).wait().await?;
        let flags = match run.allocation {
            Allocation::Mapped => 0,
            Allocation::Anchored => allocation::ZERO,
            Allocation::Deallocated => allocation::HOLE | allocation::ZERO,
        };
        extents.push(StatusExtent { length: run.block_count << shift, flags });
        rest = Extent::new(rest.lba.0 + run.block_count, rest.block_count - run.block_count);
        if rest.block_count == 0 || extents.len() == MAXIMUM_EXTENTS {
            break;
        }
    }
    Ok(Outcome::Status(extents))
}
