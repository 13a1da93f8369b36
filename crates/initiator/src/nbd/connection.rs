//! An export over one connection: the socket, the futures, and the translation of store requests to NBD.
//!
//! The protocol is in `sarsen_proto::nbd::client`. [`Store::unmap`] becomes WRITE_ZEROES that may punch holes, because NBD does not
//! define the data that is read after a TRIM.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sarsen_block::{
    Allocation, AllocationRun, BlockError, BlockSize, Buffer, Characteristics, Data, Direction,
    Durability, Extent, Geometry, InvalidRequest, Io, Lba, Payload, Reply, Store, StoreStatus,
    UnmapSupport,
};
use sarsen_io::local::LocalStream;
use sarsen_io::net::Stream;
use sarsen_proto::nbd::client::{self, Answer, Export, RequestError, StatusExtent};
use sarsen_wire::nbd::{ErrorCode, transmission};

use super::driver::{self, Failure, Link, Shared};
use super::{NbdError, NbdOptions, NbdPlace, NbdUrl};
use crate::flush_failure::FlushFailure;
use crate::instance::Hold;
use crate::tls::{self, TlsError};

/// Zeroes are written in pieces of this many bytes, so that one piece does not occupy a server for too long: a slow
/// server without holes writes them within [`NbdConnection::limit_waits`].
const ZEROES_LENGTH: u64 = 64 << 20;
/// The same for servers that receive zeroes as data.
const WRITTEN_ZEROES_LENGTH: u64 = 1 << 20;

/// An export over one connection, which is not replaced when it is lost. Dropping it disconnects from the server, if its runtime still runs;
/// [`NbdConnection::disconnect`] waits for that.
///
/// It works on the current-thread runtime (a `LocalRuntime` or `LocalSet`) that connected it.
pub struct NbdConnection {
    shared: Arc<Shared>,
    geometry: Geometry,
    status: Arc<StoreStatus>,
    export: Export,
    /// The metadata contexts that the server has selected.
    contexts: Vec<String>,
    flush_failure: Arc<FlushFailure>,
}

impl NbdConnection {
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

    /// Connects, with all limits of a store.
    pub(super) async fn connect_with_limits(
        url: &NbdUrl,
        options: &NbdOptions,
    ) -> Result<Self, NbdError> {
        let silence_limit = options.silence_limit;
        let socket = async {
            let socket = socket(url).await?;
            socket.give_up_after(silence_limit).map_err(|error| NbdError::Lost(Arc::new(error)))?;
            Ok(socket)
        };
        let connection = Self::establish(socket, url, &[], options.connect_limit).await?;
        connection.limit_waits(options.answer_limit, url);
        Ok(connection)
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
            let link = Link::new(socket.await?);
            let mut client = client::Client::with_contexts(&url.export, contexts)?;
            if url.tls().is_some() {
                client.require_tls();
            }
            link.shake_hands(client, url).await.map_err(|error| refusal(url, error))
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
            flush_failure: Arc::default(),
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
        match self.shared.request(client::Request::Status { offset, length }, None).await {
            Ok(Answer::Status(status)) => Ok(status),
            Ok(Answer::Done | Answer::Data(_)) => unreachable!("the machine checks the answer"),
            Err(failure) => Err(block_error(failure, extent, Direction::Read)),
        }
    }

    /// Ends the connection now: requests fail, and what was not sent yet is never sent.
    pub(super) fn abort(&self, error: NbdError) {
        self.shared.abort(error);
    }

    /// Waits for the end of the connection, and returns its reason.
    pub(super) async fn ended(&self) -> NbdError {
        self.shared.wait_for_end().await
    }

    /// Returns the number of requests without an answer.
    pub(super) fn open_requests(&self) -> usize {
        self.shared.open_requests()
    }

    /// Disconnects after all open requests are answered, and waits for the end, up to `limit`. Later requests fail.
    pub async fn disconnect(&self, limit: Duration) {
        self.shared.close();
        let deadline = sarsen_io::time::now() + limit;
        tokio::select! {
            biased;
            _ = self.shared.wait_for_end() => {}
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
        self.flush_failure.check()
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

    pub(super) fn try_read(&self, extent: Extent) -> Result<Reply<Data>, BlockError> {
        self.check(extent)?;
        if extent.block_count == 0 {
            return Ok(Io::Ready(Ok(Data::empty())));
        }
        let length = self.check_length(extent)?;
        let offset = extent.byte_offset(self.geometry.block_size);
        let answer = self.shared.request(client::Request::Read { offset, length }, None);
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

    /// Writes. `hold` is kept until the server has answered, even if the caller is gone.
    pub(super) fn try_write(
        &self,
        extent: Extent,
        data: Payload,
        durability: Durability,
        hold: Option<Hold>,
    ) -> Result<Reply<()>, BlockError> {
        self.check_writable(extent)?;
        assert_eq!(data.len() as u64, extent.byte_count(self.geometry.block_size));
        if extent.block_count == 0 {
            return Ok(Io::Ready(Ok(())));
        }
        self.check_length(extent)?;
        let offset = extent.byte_offset(self.geometry.block_size);
        let (fua, flush) = self.durability(durability);
        let request = client::Request::Write { offset, data, durable: fua };
        let answer = self.shared.request(request, hold);
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

    pub(super) fn try_flush(&self) -> Result<Reply<()>, BlockError> {
        self.flush_failure.check()?;
        // A server without FLUSH has no volatile cache.
        if !self.export.has(transmission::SEND_FLUSH) {
            return Ok(Io::Ready(Ok(())));
        }
        Ok(Io::pending(self.flushing().carry_out()))
    }

    fn flushing(&self) -> Flushing {
        Flushing { shared: self.shared.clone(), flush_failure: self.flush_failure.clone() }
    }

    /// Writes zeroes; the server may deallocate their space if `may_punch`. If the server has no command for zeroes,
    /// they are ordinary writes. `hold` is kept until the server has answered, even if the caller is gone.
    pub(super) fn zero(
        &self,
        extent: Extent,
        durability: Durability,
        may_punch: bool,
        hold: Option<Hold>,
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
                    let data = Buffer::zeroed(length as usize).into();
                    client::Request::Write { offset, data, durable }
                };
                let zeroed = shared.request(request, hold.clone()).await;
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
    flush_failure: Arc<FlushFailure>,
}

impl Flushing {
    async fn carry_out(self) -> Result<(), BlockError> {
        match self.shared.flush().await {
            Ok(_) => self.flush_failure.check(),
            // The connection is over: nothing can be written over it either.
            Err(Failure::Ended(error)) => Err(unreachable_server(&error)),
            Err(Failure::Refused(error)) if error.code == ErrorCode::Shutdown => {
                Err(BlockError::Unreachable(system_error(&error)))
            }
            Err(Failure::Refused(error)) => {
                self.flush_failure.note();
                Err(BlockError::medium(Lba(0), Direction::Write, system_error(&error)))
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

/// Returns the error for a connection that ended during its handshake.
fn refusal(url: &NbdUrl, error: NbdError) -> NbdError {
    let (NbdError::Lost(source), NbdPlace::Host(portal), Some(options)) =
        (&error, &url.place, url.tls())
    else {
        return error;
    };
    let source = match &options.identity {
        _ if tls::is_refusal(source) => options.failure(&portal.host, source),
        // Servers may close the connection in the place of an alert.
        None => TlsError::Refused(format!(
            "the connection ended ({source}); if the server requires a certificate, add &certificate=FILE&key=FILE"
        )),
        Some(_) => return error,
    };
    NbdError::Tls { place: url.to_string(), source: Arc::new(source) }
}

/// Returns a geometry with the smallest blocks that the server accepts. Bytes after the last whole block are not used.
pub(super) fn geometry(url: &NbdUrl, export: &Export) -> Result<Geometry, NbdError> {
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

pub(super) fn unreachable_server(error: &NbdError) -> BlockError {
    BlockError::Unreachable(io::Error::new(io::ErrorKind::NotConnected, error.clone()))
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

impl Store for NbdConnection {
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
        started(self.try_write(extent, data, durability, None))
    }

    fn flush(&self) -> Reply<()> {
        started(self.try_flush())
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        started(self.zero(extent, Durability::Volatile, true, None))
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        started(self.zero(extent, durability, false, None))
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

impl Drop for NbdConnection {
    fn drop(&mut self) {
        self.shared.close();
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
