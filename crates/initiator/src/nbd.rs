//! Exports of NBD servers, each offered as a [`Store`] over one connection.
//!
//! The protocol is in `sarsen_proto::nbd::client`; this module holds the socket, the futures, and the translation of
//! store requests to NBD. [`Store::unmap`] becomes WRITE_ZEROES that may punch holes, because NBD does not define the
//! data that is read after a TRIM.

mod driver;
mod url;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sarsen_block::{
    Allocation, AllocationRun, BlockError, BlockSize, Buffer, Characteristics, Data, Direction,
    Durability, Extent, Geometry, InvalidRequest, Io, Lba, Payload, Reply, StopCause, Store,
    StoreStatus, UnmapSupport,
};
use sarsen_io::local::LocalStream;
use sarsen_io::net::Stream;
use sarsen_proto::nbd::client::{self, Answer, Export, RequestError};
use sarsen_wire::nbd::{ErrorCode, transmission};

pub use self::url::{NbdPlace, NbdUrl, NbdUrlError};
use driver::{Failure, Link, Shared};
pub use sarsen_proto::nbd::ClientError;
pub use sarsen_proto::nbd::client::StatusExtent;
pub use sarsen_wire::nbd::ReplyCode;

/// Zeroes are written in pieces of this many bytes, so that one piece does not occupy a server for too long: a slow
/// server without holes writes them within [`NbdStore::limit_waits`].
const ZEROES_LENGTH: u64 = 64 << 20;
/// The same for servers that receive zeroes as data.
const WRITTEN_ZEROES_LENGTH: u64 = 1 << 20;

/// Errors of a connection to an NBD server.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NbdError {
    /// The host's name has no address.
    #[error("{place}: cannot find the host: {source}")]
    Resolve {
        /// The server.
        place: String,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// No server accepts the connection.
    #[error("{place}: cannot connect: {source}")]
    Connect {
        /// The server.
        place: String,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// The server did not answer.
    #[error("{place}: no answer within {limit:?}")]
    TimedOut {
        /// The server.
        place: String,
        /// The time limit.
        limit: Duration,
    },
    /// The connection was lost.
    #[error("the connection was lost: {0}")]
    Lost(#[source] Arc<io::Error>),
    /// The server violated the protocol, or rejected the request.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The export cannot be used as a disk with blocks of 512 or 4,096 bytes.
    #[error(
        "{url}: an export of {bytes} bytes with blocks of {minimum_block} bytes cannot be used as a disk"
    )]
    Unfit {
        /// The export.
        url: Box<NbdUrl>,
        /// The server's smallest block.
        minimum_block: u32,
        /// Size of the export.
        bytes: u64,
    },
    /// The store itself closed the connection.
    #[error("the connection has been closed")]
    Closed,
}

/// An export over one connection. Dropping it disconnects from the server, if its runtime still runs;
/// [`NbdStore::disconnect`] waits for that.
///
/// It works on the current-thread runtime (a `LocalRuntime` or `LocalSet`) that connected it.
pub struct NbdStore {
    shared: Arc<Shared>,
    geometry: Geometry,
    status: Arc<StoreStatus>,
    export: Export,
    /// The metadata contexts that the server has selected.
    contexts: Vec<String>,
    /// A flush failed: see [`StopCause::FlushFailed`].
    stopped: Arc<AtomicBool>,
}

impl NbdStore {
    /// Connects and selects the export, all within `limit`.
    pub async fn connect(url: &NbdUrl, limit: Duration) -> Result<Self, NbdError> {
        Self::connect_with_contexts(url, &[], limit).await
    }

    /// Does the same, and selects those of these metadata contexts that the export has: [`Self::contexts`].
    pub async fn connect_with_contexts(
        url: &NbdUrl,
        contexts: &[&str],
        limit: Duration,
    ) -> Result<Self, NbdError> {
        Self::establish(socket(url), url, contexts, limit).await
    }

    /// Does the same over a connection to a socket of this machine. Errors name it by `url`.
    pub async fn connect_over(
        stream: LocalStream,
        url: &NbdUrl,
        limit: Duration,
    ) -> Result<Self, NbdError> {
        Self::establish(async { Ok(driver::Socket::Local(stream)) }, url, &[], limit).await
    }

    async fn establish(
        socket: impl Future<Output = Result<driver::Socket, NbdError>>,
        url: &NbdUrl,
        contexts: &[&str],
        limit: Duration,
    ) -> Result<Self, NbdError> {
        let deadline = sarsen_io::time::now() + limit;
        let timed_out = || NbdError::TimedOut { place: url.to_string(), limit };
        let established = async {
            let mut link = Link::new(socket.await?);
            let client = client::Client::with_contexts(&url.export, contexts)?;
            let (client, export) = link.shake_hands(client).await?;
            Ok::<_, NbdError>((link, client, export))
        };
        let (link, client, export) = tokio::select! {
            biased;
            established = established => established?,
            () = sarsen_io::time::sleep_until(deadline) => return Err(timed_out()),
        };
        let geometry = geometry(url, &export)?;
        let contexts = client.contexts().map(str::to_owned).collect();
        let shared = Arc::new(Shared::new(client));
        tokio::task::spawn_local(driver::serve(link, shared.clone()));
        Ok(Self {
            shared,
            geometry,
            status: StoreStatus::new(geometry.block_count),
            export,
            contexts,
            stopped: Arc::default(),
        })
    }

    /// Limits how long the server may leave requests without any progress, from now on: then the connection ends, and
    /// all requests fail. NBD has no message that asks a server whether it still works. A flush may take ten times as
    /// long. Errors name the server by `url`.
    pub fn limit_waits(&self, limit: Duration, url: &NbdUrl) {
        self.shared.limit_waits(limit, url.to_string());
    }

    /// Returns the server's description of the export.
    pub const fn export(&self) -> &Export {
        &self.export
    }

    /// Returns the names of the selected metadata contexts, in the order in which they were requested.
    pub fn contexts(&self) -> &[String] {
        &self.contexts
    }

    /// Returns the status of the blocks in each of [`Self::contexts`], of which there must be one or more: extents from
    /// the first block on. They cover at least one byte, and perhaps not all blocks. The blocks must be less than 4 GiB.
    pub async fn block_status(&self, extent: Extent) -> Result<Vec<Vec<StatusExtent>>, BlockError> {
        self.check(extent)?;
        let length = extent.byte_count(self.geometry.block_size);
        let length = u32::try_from(length).ok().filter(|&length| length > 0);
        let length = length.filter(|_| !self.contexts.is_empty());
        let length = length.ok_or(InvalidRequest::Unsupported)?;
        let offset = extent.byte_offset(self.geometry.block_size);
        match self.shared.request(client::Request::Status { offset, length }).await {
            Ok(Answer::Status(status)) => Ok(status),
            Ok(Answer::Done | Answer::Data(_)) => unreachable!("the machine checks the answer"),
            Err(failure) => Err(block_error(failure, extent, Direction::Read)),
        }
    }

    /// Disconnects after all open requests are answered, and waits for the end, up to `limit`. Later requests fail.
    pub async fn disconnect(&self, limit: Duration) {
        self.shared.close();
        let deadline = sarsen_io::time::now() + limit;
        tokio::select! {
            biased;
            () = self.shared.wait_for_end() => {}
            () = sarsen_io::time::sleep_until(deadline) => {}
        }
    }

    fn check(&self, extent: Extent) -> Result<(), BlockError> {
        extent.check(self.geometry.block_count)
    }

    fn check_writable(&self, extent: Extent) -> Result<(), BlockError> {
        self.check(extent)?;
        if self.export.has(transmission::READ_ONLY) {
            return Err(InvalidRequest::ReadOnly.into());
        }
        if self.stopped.load(Ordering::Acquire) {
            return Err(StopCause::FlushFailed.into());
        }
        Ok(())
    }

    /// Checks that the server accepts a payload of this length.
    fn check_length(&self, extent: Extent) -> Result<u32, BlockError> {
        let length = extent.byte_count(self.geometry.block_size);
        let limit = self.export.maximum_payload;
        u32::try_from(length).ok().filter(|length| *length <= limit).ok_or_else(|| {
            let message =
                format!("the request has {length} bytes; the maximum of the NBD server is {limit}");
            InvalidRequest::Rejected(io::Error::new(io::ErrorKind::InvalidInput, message)).into()
        })
    }

    fn try_read(&self, extent: Extent) -> Result<Reply<Data>, BlockError> {
        self.check(extent)?;
        if extent.block_count == 0 {
            return Ok(Io::Ready(Ok(Data::empty())));
        }
        let length = self.check_length(extent)?;
        let offset = extent.byte_offset(self.geometry.block_size);
        let answer = self.shared.request(client::Request::Read { offset, length });
        Ok(Io::pending(async move {
            match answer.await {
                Ok(Answer::Data(data)) => Ok(Data::Buffer(data)),
                Ok(Answer::Done | Answer::Status(_)) => {
                    unreachable!("the machine checks the answer")
                }
                Err(failure) => Err(block_error(failure, extent, Direction::Read)),
            }
        }))
    }

    fn try_write(
        &self,
        extent: Extent,
        data: Payload,
        durability: Durability,
    ) -> Result<Reply<()>, BlockError> {
        self.check_writable(extent)?;
        assert_eq!(data.len() as u64, extent.byte_count(self.geometry.block_size));
        if extent.block_count == 0 {
            return Ok(Io::Ready(Ok(())));
        }
        self.check_length(extent)?;
        let offset = extent.byte_offset(self.geometry.block_size);
        let (fua, flush) = self.durability(durability);
        let data = data.into_buffer();
        let answer = self.shared.request(client::Request::Write { offset, data, durable: fua });
        let then = flush.then(|| self.flushing());
        Ok(Io::pending(async move {
            let written = answer.await;
            written.map_err(|failure| block_error(failure, extent, Direction::Write))?;
            match then {
                Some(flushing) => flushing.carry_out().await,
                None => Ok(()),
            }
        }))
    }

    /// Returns how a write becomes durable: by FUA, or by a flush after it.
    fn durability(&self, durability: Durability) -> (bool, bool) {
        let durable = durability == Durability::Durable;
        let fua = durable && self.export.has(transmission::SEND_FUA);
        (fua, durable && !fua && self.export.has(transmission::SEND_FLUSH))
    }

    fn try_flush(&self) -> Result<Reply<()>, BlockError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(StopCause::FlushFailed.into());
        }
        // A server without FLUSH has no volatile cache.
        if !self.export.has(transmission::SEND_FLUSH) {
            return Ok(Io::Ready(Ok(())));
        }
        Ok(Io::pending(self.flushing().carry_out()))
    }

    fn flushing(&self) -> Flushing {
        Flushing { shared: self.shared.clone(), stopped: self.stopped.clone() }
    }

    /// Writes zeroes; the server may deallocate their space if `may_punch`. If the server has no command for zeroes,
    /// they are ordinary writes.
    fn zero(
        &self,
        extent: Extent,
        durability: Durability,
        may_punch: bool,
    ) -> Result<Reply<()>, BlockError> {
        self.check_writable(extent)?;
        let by_command = self.export.has(transmission::SEND_WRITE_ZEROES);
        if may_punch && !by_command {
            return Err(InvalidRequest::Unsupported.into());
        }
        let size = self.geometry.block_size;
        let (first, end) = (extent.byte_offset(size), extent.end() << size.shift());
        let step = if by_command {
            ZEROES_LENGTH
        } else {
            let (block, most) = (size.bytes() as u64, u64::from(self.export.maximum_payload));
            (most.min(WRITTEN_ZEROES_LENGTH) / block).max(1) * block
        };
        let (durable, flush) = self.durability(durability);
        let shared = self.shared.clone();
        let then = flush.then(|| self.flushing());
        Ok(Io::pending(async move {
            let mut offset = first;
            while offset < end {
                let length = (end - offset).min(step) as u32;
                let request = if by_command {
                    client::Request::WriteZeroes { offset, length, durable, may_punch }
                } else {
                    let data = Buffer::zeroed(length as usize);
                    client::Request::Write { offset, data, durable }
                };
                let zeroed = shared.request(request).await;
                zeroed.map_err(|failure| block_error(failure, extent, Direction::Write))?;
                offset += u64::from(length);
            }
            match then {
                Some(flushing) => flushing.carry_out().await,
                None => Ok(()),
            }
        }))
    }
}

/// A flush that will be sent.
struct Flushing {
    shared: Arc<Shared>,
    stopped: Arc<AtomicBool>,
}

impl Flushing {
    async fn carry_out(self) -> Result<(), BlockError> {
        match self.shared.flush().await {
            Ok(_) if self.stopped.load(Ordering::Acquire) => Err(StopCause::FlushFailed.into()),
            Ok(_) => Ok(()),
            Err(failure) => {
                self.stopped.store(true, Ordering::Release);
                // Whatever the reason, no later flush can make up for this one.
                Err(match failure {
                    Failure::Refused(error) => {
                        BlockError::medium(Lba(0), Direction::Write, system_error(&error))
                    }
                    Failure::Ended(error) => unreachable_server(&error),
                })
            }
        }
    }
}

async fn socket(url: &NbdUrl) -> Result<driver::Socket, NbdError> {
    let failed = |source| NbdError::Connect { place: url.to_string(), source: Arc::new(source) };
    match &url.place {
        NbdPlace::Socket(path) => {
            Ok(driver::Socket::Local(LocalStream::connect(path).await.map_err(failed)?))
        }
        NbdPlace::Host(portal) => {
            let place = || url.to_string();
            let found = tokio::net::lookup_host((portal.host.as_str(), portal.port)).await;
            let addresses: Vec<SocketAddr> = found
                .map_err(|source| NbdError::Resolve { place: place(), source: Arc::new(source) })?
                .collect();
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            for address in addresses {
                match Stream::connect(address).await {
                    Ok(stream) => return Ok(driver::Socket::Tcp(stream)),
                    Err(error) => last = error,
                }
            }
            Err(failed(last))
        }
    }
}

/// Returns a geometry with the smallest blocks that the server accepts. Bytes after the last whole block are not used.
fn geometry(url: &NbdUrl, export: &Export) -> Result<Geometry, NbdError> {
    let sizes = [BlockSize::B512, BlockSize::B4096];
    let fitting = sizes.into_iter().find(|size| size.bytes() >= export.minimum_block as usize);
    let unfit = || NbdError::Unfit {
        url: Box::new(url.clone()),
        minimum_block: export.minimum_block,
        bytes: export.bytes,
    };
    let block_size = fitting.ok_or_else(unfit)?;
    let block_count = export.bytes >> block_size.shift();
    // No file has offsets beyond this (off_t).
    if block_count == 0 || export.bytes > i64::MAX as u64 {
        return Err(unfit());
    }
    Ok(Geometry { block_size, block_count })
}

fn block_error(failure: Failure, extent: Extent, direction: Direction) -> BlockError {
    let lba = extent.lba;
    let error = match failure {
        Failure::Refused(error) => error,
        Failure::Ended(error) => return unreachable_server(&error),
    };
    match error.code {
        ErrorCode::Io => BlockError::medium(lba, direction, system_error(&error)),
        ErrorCode::NoSpace => BlockError::NoSpace { lba },
        ErrorCode::NoMemory => BlockError::Transient(system_error(&error)),
        ErrorCode::Shutdown => BlockError::Unreachable(system_error(&error)),
        // The store does not send writes to a read-only export.
        ErrorCode::NotPermitted => BlockError::Fenced,
        ErrorCode::NotSupported => InvalidRequest::Unsupported.into(),
        // An unknown number is treated as EINVAL ("Error values").
        _ => InvalidRequest::Rejected(system_error(&error)).into(),
    }
}

fn unreachable_server(error: &NbdError) -> BlockError {
    BlockError::Unreachable(io::Error::new(io::ErrorKind::NotConnected, error.to_string()))
}

/// Returns an error of the server as one of the system. The numbers are those of Linux.
fn system_error(error: &RequestError) -> io::Error {
    let system = system_error_of(error.code);
    if error.message.is_empty() {
        return system;
    }
    io::Error::new(system.kind(), format!("the NBD server says {:?} ({system})", error.message))
}

fn system_error_of(code: ErrorCode) -> io::Error {
    match code {
        ErrorCode::NotPermitted
        | ErrorCode::Io
        | ErrorCode::NoMemory
        | ErrorCode::Invalid
        | ErrorCode::NoSpace
        | ErrorCode::Overflow
        | ErrorCode::NotSupported
        | ErrorCode::Shutdown => io::Error::from_raw_os_error(code.0 as i32),
        code => io::Error::other(format!("the NBD server returned the error {code:?}")),
    }
}

impl Store for NbdStore {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn characteristics(&self) -> Characteristics {
        let preferred =
            self.export.preferred_block.unwrap_or(0) / self.geometry.block_size.bytes() as u32;
        let zeroes = self.export.has(transmission::SEND_WRITE_ZEROES);
        let read_only = self.export.has(transmission::READ_ONLY);
        Characteristics {
            volatile_cache: self.export.has(transmission::SEND_FLUSH),
            read_only,
            unmap: (zeroes && !read_only).then_some(UnmapSupport {
                granularity_blocks: 1,
                anchors: false,
                tells_space: false,
            }),
            physical_block_exponent: preferred.checked_ilog2().unwrap_or(0) as u8,
            optimal_transfer: None,
            protection: false,
            is_lasting: true,
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        started(self.try_read(extent))
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        started(self.try_write(extent, data, durability))
    }

    fn flush(&self) -> Reply<()> {
        started(self.try_flush())
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        started(self.zero(extent, Durability::Volatile, true))
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        started(self.zero(extent, durability, false))
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        let (block_count, allocation) = (extent.block_count, Allocation::Mapped);
        Io::Ready(self.check(extent).map(|()| AllocationRun { block_count, allocation }))
    }

    fn resize(&self, _: u64) -> Reply<()> {
        let read_only = self.export.has(transmission::READ_ONLY);
        Io::Ready(Err(if read_only {
            BlockError::Invalid(InvalidRequest::ReadOnly)
        } else {
            BlockError::Invalid(InvalidRequest::Unsupported)
        }))
    }
}

/// Returns the reply of a request, which may have been rejected before its start.
fn started<T>(reply: Result<Reply<T>, BlockError>) -> Reply<T> {
    reply.unwrap_or_else(|error| Io::Ready(Err(error)))
}

impl Drop for NbdStore {
    fn drop(&mut self) {
        self.shared.close();
    }
}

#[cfg(test)]
mod tests;
