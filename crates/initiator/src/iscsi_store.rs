//! A logical unit as a store.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sarsen_block::{
    Allocation, AllocationRun, BlockError, BlockSize, Buffer, Characteristics, Data, Direction,
    Durability, Extent, Geometry, InvalidRequest, Io, Lba, LocalFuture, OptimalTransfer, Payload,
    Reply, StopCause, Store, StoreStatus, UnmapSupport,
};
use sarsen_proto::iscsi::initiator::Completion;

use crate::error::{Sense, SenseKey, SessionError};
use crate::flush_failure::FlushFailure;
use crate::options::SessionOptions;
use crate::path_set::PathSet;
use crate::remote_disk::{PathStatus, RemoteDisk};
use crate::unit::{BlockLimits, Command, Provisioning, Unit, commands};
use crate::url::Url;

/// Maximum length of the data of a command to a unit that reports no maximum.
const PIECE_LENGTH: u32 = 4 << 20;
/// PROVISIONING STATUS (SBC-3 5.4.3).
const STATUS_DEALLOCATED: u8 = 1;
const STATUS_ANCHORED: u8 = 2;
/// SAM-5 5.3.1.
const RESERVATION_CONFLICT: u8 = 0x18;

/// A logical unit as a [`Store`]. With [`SessionOptions::reconnect_limit`] it survives lost connections, and uses all portals of its
/// URL as paths.
///
/// The core that connected it drives its session (see [`crate::Session`]); every core can use it.
pub struct IscsiStore {
    inner: Arc<Inner>,
}

struct Inner {
    paths: PathSet,
    block_size: BlockSize,
    limits: BlockLimits,
    provisioning: Provisioning,
    physical_block_exponent: u8,
    volatile_cache: bool,
    fua: bool,
    read_only: bool,
    /// The unit has not rejected WRITE SAME, GET LBA STATUS.
    has_write_same: AtomicBool,
    has_lba_status: AtomicBool,
    flush_failure: FlushFailure,
}

impl IscsiStore {
    /// Logs in through all portals, and examines the unit.
    pub async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        let paths = PathSet::connect(url, options).await?;
        let unit = paths.unit();
        let block_length = unit.capacity().block_length;
        let sizes = [BlockSize::B512, BlockSize::B2048, BlockSize::B4096];
        let block_size = sizes.into_iter().find(|size| size.bytes() == block_length as usize);
        let block_size = block_size.ok_or(SessionError::BlockLength { block_length })?;
        let limits = unit.block_limits().await?;
        let provisioning = unit.provisioning().await?;
        let physical_block_exponent = unit.physical_block_exponent().await?;
        // A unit without the page may have a cache.
        let caching = unit.caching().await?;
        let inner = Inner {
            block_size,
            limits,
            provisioning,
            physical_block_exponent,
            volatile_cache: caching.is_none_or(|caching| caching.write_cache),
            fua: caching.is_some_and(|caching| caching.fua),
            read_only: caching.is_some_and(|caching| caching.read_only),
            has_write_same: AtomicBool::new(true),
            has_lba_status: AtomicBool::new(provisioning.thin && provisioning.reads_zero),
            flush_failure: FlushFailure::default(),
            paths,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the unit, for commands that change no blocks.
    pub fn unit(&self) -> &Unit {
        self.inner.paths.unit()
    }

    /// Waits until each path is logged in or has failed, up to `limit`.
    pub async fn attempt_paths(&self, limit: Duration) {
        self.inner.paths.attempt_all(limit).await;
    }

    /// Ends the sessions that an earlier run with the same ISID may still have through portals that cannot be logged in. Call it before the
    /// first write, with what the store was connected with.
    pub async fn end_earlier_sessions(&self, url: &Url, options: &SessionOptions) {
        self.inner.paths.end_earlier_sessions(url, options).await;
    }

    /// Carries out a command of any kind, once: if its connection is lost, its caller gets the loss. A command that may
    /// change blocks waits for all writes before it, and later writes wait for it.
    pub async fn command(&self, command: Command) -> Result<Completion, SessionError> {
        self.inner.paths.command(command).await
    }

    /// Logs out.
    pub async fn logout(&self) -> Result<(), SessionError> {
        self.inner.paths.logout().await
    }

    /// Starts a request that is valid.
    fn start<T, F>(
        &self,
        checked: Result<(), BlockError>,
        carry_out: impl FnOnce(Arc<Inner>) -> F,
    ) -> Reply<T>
    where
        F: Future<Output = Result<T, BlockError>> + 'static,
    {
        if let Err(error) = checked {
            return Io::Ready(Err(error));
        }
        Io::started(carry_out(self.inner.clone()))
    }
}

impl Inner {
    fn check(&self, extent: Extent) -> Result<(), BlockError> {
        extent.check(self.paths.status().block_count())
    }

    fn check_writable(&self, extent: Extent) -> Result<(), BlockError> {
        self.check(extent)?;
        if self.read_only {
            return Err(InvalidRequest::ReadOnly.into());
        }
        self.flush_failure.check()
    }

    /// Returns the parts of an extent of at most `limit` blocks; 0 is the maximum of a command.
    fn parts(extent: Extent, limit: u64) -> impl Iterator<Item = (u64, u32)> {
        let limit = if limit == 0 { u32::MAX.into() } else { limit.min(u32::MAX.into()) };
        let (mut lba, end) = (extent.lba.0, extent.end());
        std::iter::from_fn(move || {
            let first = lba;
            let blocks = limit.min(end - first) as u32;
            lba += u64::from(blocks);
            (blocks > 0).then_some((first, blocks))
        })
    }

    /// Returns the parts that one READ or WRITE each moves.
    fn pieces(&self, extent: Extent) -> impl Iterator<Item = (u64, u32)> + use<> {
        let limit = match self.limits.transfer_blocks {
            0 => PIECE_LENGTH >> self.block_size.shift(),
            limit => limit,
        };
        Self::parts(extent, limit.into())
    }

    async fn read(&self, extent: Extent) -> Result<Data, BlockError> {
        let mut pieces = self.pieces(extent).peekable();
        let mut whole = None;
        let mut at = 0;
        while let Some((lba, blocks)) = pieces.next() {
            let read = self.paths.read(lba, blocks).await;
            let data = read.map_err(|error| block_error(error, extent, Direction::Read))?;
            if whole.is_none() && pieces.peek().is_none() {
                return Ok(Data::Buffer(data));
            }
            let length = extent.byte_count(self.block_size) as usize;
            let whole = whole.get_or_insert_with(|| Buffer::for_overwrite(length));
            whole[at..at + data.len()].copy_from_slice(&data);
            at += data.len();
        }
        Ok(whole.map_or_else(Data::empty, Data::Buffer))
    }

    /// Returns whether a write must be on stable storage when it is answered. If the unit had no volatile cache when the store was
    /// connected, callers rely on that, even if the unit has one by now.
    fn must_be_durable(&self, durability: Durability) -> bool {
        durability == Durability::Durable || !self.volatile_cache
    }

    async fn write(
        &self,
        extent: Extent,
        data: Payload,
        durability: Durability,
    ) -> Result<(), BlockError> {
        let must_be_durable = self.must_be_durable(durability);
        let fua = must_be_durable && self.fua && !self.paths.is_write_through();
        let failed = |error| block_error(error, extent, Direction::Write);
        let mut pieces = self.pieces(extent);
        match (pieces.next(), pieces.next()) {
            (None, _) => {}
            (Some((lba, _)), None) => {
                self.paths.write(lba, data.into_buffer(), fua).await.map_err(failed)?;
            }
            _ => {
                let mut at = 0;
                for (lba, blocks) in self.pieces(extent) {
                    let length = (blocks as usize) << self.block_size.shift();
                    let piece = Buffer::copy_of(&data[at..at + length]);
                    self.paths.write(lba, piece, fua).await.map_err(failed)?;
                    at += length;
                }
            }
        }
        // The unit may have reported a cache meanwhile.
        if must_be_durable && !fua && !self.paths.is_write_through() {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), BlockError> {
        match self.paths.flush().await {
            Ok(()) => self.flush_failure.check(),
            Err(error) => {
                let error = block_error(error, Extent::new(0, 0), Direction::Write);
                // After a lost connection the writes are kept until a later flush. Otherwise no later flush makes up for this one.
                if !matches!(error, BlockError::Unreachable(_)) {
                    self.flush_failure.note();
                }
                Err(error)
            }
        }
    }

    /// Writes zeroes. The unit may deallocate their space if `may_unmap`.
    async fn zero(
        &self,
        extent: Extent,
        durability: Durability,
        may_unmap: bool,
    ) -> Result<(), BlockError> {
        let failed = |error| block_error(error, extent, Direction::Write);
        let block_length = self.block_size.bytes();
        let mut rest = extent;
        for (lba, blocks) in Self::parts(extent, self.limits.write_same_blocks) {
            if !self.has_write_same.load(Ordering::Relaxed) {
                break;
            }
            let zeroes = Buffer::zeroed(block_length);
            match self.paths.write_same(lba, blocks, zeroes, may_unmap).await {
                Ok(()) => {
                    let end = lba + u64::from(blocks);
                    rest = Extent::new(end, extent.end() - end);
                }
                Err(SessionError::CheckCondition(Sense {
                    key: SenseKey::IllegalRequest, ..
                })) => self.has_write_same.store(false, Ordering::Relaxed),
                Err(error) => return Err(failed(error)),
            }
        }
        for (lba, blocks) in self.pieces(rest) {
            let zeroes = Buffer::zeroed(blocks as usize * block_length);
            self.paths.write(lba, zeroes, false).await.map_err(failed)?;
        }
        // WRITE SAME has no FUA.
        let must_be_durable = self.must_be_durable(durability) && extent.block_count > 0;
        if must_be_durable && !self.paths.is_write_through() {
            self.flush().await?;
        }
        Ok(())
    }

    async fn allocation(&self, extent: Extent) -> Result<AllocationRun, BlockError> {
        let mapped =
            AllocationRun { block_count: extent.block_count, allocation: Allocation::Mapped };
        if extent.block_count == 0 || !self.has_lba_status.load(Ordering::Relaxed) {
            return Ok(mapped);
        }
        let lba = extent.lba.0;
        let completion = match self.paths.ask(commands::lba_status(lba)).await {
            Ok(completion) => completion,
            Err(SessionError::CheckCondition(Sense { key: SenseKey::IllegalRequest, .. })) => {
                self.has_lba_status.store(false, Ordering::Relaxed);
                return Ok(mapped);
            }
            Err(error) => return Err(block_error(error, extent, Direction::Read)),
        };
        let run = completion.data.as_deref().and_then(commands::first_run);
        // The first run contains the block, but may begin before it.
        let run = run.and_then(|run| {
            let end = run.lba.get().saturating_add(run.block_count.get().into());
            let blocks = end.checked_sub(lba).filter(|blocks| *blocks > 0)?;
            (run.lba.get() <= lba).then_some((blocks, run.provisioning_status))
        });
        let Some((blocks, status)) = run else { return Ok(mapped) };
        let allocation = match status {
            STATUS_DEALLOCATED => Allocation::Deallocated,
            STATUS_ANCHORED => Allocation::Anchored,
            _ => Allocation::Mapped,
        };
        Ok(AllocationRun { block_count: blocks.min(extent.block_count), allocation })
    }
}

impl RemoteDisk for IscsiStore {
    /// The paths are in the order of the portals.
    fn paths(&self) -> Vec<PathStatus> {
        self.inner.paths.paths()
    }

    fn paths_changed(&self) -> LocalFuture<()> {
        self.inner.paths.changed()
    }

    fn is_down(&self) -> bool {
        self.inner.paths.is_down()
    }

    fn has_kept_writes(&self) -> bool {
        self.inner.paths.has_kept_writes()
    }

    /// The identifier is the NAA identifier of the unit, or else its serial number.
    fn identifier(&self) -> Option<String> {
        self.inner.paths.identifier()
    }

    fn leave(&self) -> LocalFuture<()> {
        let inner = self.inner.clone();
        Box::pin(async move {
            if let Err(error) = inner.paths.logout().await {
                tracing::warn!(%error, "a session did not log out");
            }
        })
    }
}

impl Store for IscsiStore {
    fn geometry(&self) -> Geometry {
        let Inner { paths, block_size, .. } = &*self.inner;
        Geometry { block_size: *block_size, block_count: paths.status().block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        let Inner { limits, provisioning, read_only, .. } = &*self.inner;
        // An UNMAP may keep data; only WRITE SAME says what is read afterwards.
        let unmaps = provisioning.write_same_unmaps && provisioning.reads_zero && !read_only;
        let granularity = u32::from(limits.optimal_granularity.max(1));
        Characteristics {
            volatile_cache: self.inner.volatile_cache,
            read_only: *read_only,
            unmap: unmaps.then_some(UnmapSupport {
                granularity_blocks: limits.unmap_granularity.max(1),
                anchors: false,
                tells_space: false,
            }),
            physical_block_exponent: self.inner.physical_block_exponent,
            optimal_transfer: (limits.optimal_blocks > 0).then(|| OptimalTransfer {
                granularity_blocks: granularity,
                length_blocks: (limits.optimal_blocks / granularity).max(1) * granularity,
            }),
            protection: false,
            is_lasting: true,
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        self.inner.paths.status()
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        let checked = self.inner.check(extent);
        self.start(checked, |inner| async move { inner.read(extent).await })
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        let checked = self.inner.check_writable(extent);
        self.start(checked, |inner| async move { inner.write(extent, data, durability).await })
    }

    fn flush(&self) -> Reply<()> {
        let checked = self.inner.flush_failure.check();
        self.start(checked, |inner| async move { inner.flush().await })
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        let unmaps = self.characteristics().unmap.is_some();
        let checked = self
            .inner
            .check_writable(extent)
            .and_then(|()| if unmaps { Ok(()) } else { Err(InvalidRequest::Unsupported.into()) });
        self.start(
            checked,
            |inner| async move { inner.zero(extent, Durability::Volatile, true).await },
        )
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        let checked = self.inner.check_writable(extent);
        self.start(checked, |inner| async move { inner.zero(extent, durability, false).await })
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        let checked = self.inner.check(extent);
        self.start(checked, |inner| async move { inner.allocation(extent).await })
    }

    fn resize(&self, _: u64) -> Reply<()> {
        let read_only = self.inner.read_only;
        let reason = if read_only { InvalidRequest::ReadOnly } else { InvalidRequest::Unsupported };
        Io::Ready(Err(reason.into()))
    }
}

/// Returns the error of a request whose command failed.
fn block_error(error: SessionError, extent: Extent, direction: Direction) -> BlockError {
    let lba = extent.lba;
    let system = |kind| io::Error::new(kind, error.to_string());
    match &error {
        SessionError::CheckCondition(sense) => match sense.key {
            SenseKey::MediumError | SenseKey::HardwareError => {
                // Bad blocks are reported with the first one.
                let first = sense.information.map(Lba).filter(|first| first.0 >= lba.0);
                BlockError::medium(first.unwrap_or(lba), direction, system(io::ErrorKind::Other))
            }
            _ if sense.is_out_of_space() => BlockError::NoSpace { lba },
            SenseKey::DataProtect => InvalidRequest::ReadOnly.into(),
            SenseKey::NotReady | SenseKey::UnitAttention | SenseKey::AbortedCommand => {
                BlockError::Transient(system(io::ErrorKind::Other))
            }
            _ => InvalidRequest::Rejected(system(io::ErrorKind::InvalidInput)).into(),
        },
        SessionError::Status(RESERVATION_CONFLICT) => BlockError::Fenced,
        SessionError::Status(_)
        | SessionError::Aborted
        | SessionError::CommandTimedOut { .. }
        | SessionError::TargetFailure(_) => BlockError::Transient(system(io::ErrorKind::Other)),
        SessionError::UnitChanged | SessionError::OtherUnit { .. } => {
            StopCause::OutOfService.into()
        }
        SessionError::ShortTransfer { .. } | SessionError::MalformedAnswer { .. } => {
            BlockError::medium(lba, direction, system(io::ErrorKind::InvalidData))
        }
        SessionError::Rejected(_)
        | SessionError::TooLong { .. }
        | SessionError::BlockLength { .. }
        | SessionError::Identity(_) => {
            InvalidRequest::Rejected(system(io::ErrorKind::InvalidInput)).into()
        }
        SessionError::Connect { .. }
        | SessionError::Tls { .. }
        | SessionError::TimedOut { .. }
        | SessionError::RedirectedTooOften { .. }
        | SessionError::RedirectedNowhere { .. }
        | SessionError::Connection(_)
        | SessionError::Lost(_)
        | SessionError::LoggedOut => BlockError::Unreachable(system(io::ErrorKind::NotConnected)),
    }
}
