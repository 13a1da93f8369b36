//! An export as a store that survives lost connections.
//!
//! The rules for repeated and for kept writes are those of `path_set.rs`, with one exception: NBD has no sessions, so nothing tells when
//! a write of a lost connection can no longer be carried out. A write is sent again at once: see docs/decisions/0023-nbd-remotes.md.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use sarsen_block::{
    Allocation, AllocationRun, BlockError, Buffer, Characteristics, Data, Durability, Extent,
    Geometry, InvalidRequest, Io, LocalFuture, Payload, Reply, Store, StoreStatus,
};
use sarsen_io::time;
use sarsen_proto::nbd::client::Export;
use sarsen_wire::nbd::transmission;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::connection::{self, unreachable_server};
use super::connection_group::{BlockWrite, ConnectionGroup, WriteKind};
use super::{NbdError, NbdPlace, NbdUrl};
use crate::connections::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::flush_failure::FlushFailure;
use crate::instance::Hold;
use crate::kept_writes::{Answer, Unflushed, VolatileWrite, independent};
use crate::remote_disk::{PathStatus, RemoteDisk, notified};
use crate::write_ranges::{LockedBlocks, WriteRangeLocks};

/// A request fails after this number of lost connections, if the reconnect limit has passed as well: the request itself may break them.
const REPEAT_LIMIT: u32 = 8;
/// The minimum time between two flushes while kept writes are written again.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// After connections that were lost sooner, the next attempt waits.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The time limits of an [`NbdStore`].
#[derive(Clone, Copy, Debug)]
pub struct NbdOptions {
    /// How long connecting may take, with the handshakes.
    pub connect_limit: Duration,
    /// How long requests wait for a connection after a loss, before they fail.
    pub reconnect_limit: Duration,
    /// How long the server may leave requests without any progress before the connection counts as lost.
    pub answer_limit: Duration,
    /// How long the machine of the server may acknowledge nothing before the connection counts as lost.
    pub silence_limit: Duration,
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self {
            connect_limit: Duration::from_secs(5),
            reconnect_limit: Duration::from_secs(30),
            answer_limit: Duration::from_secs(30),
            silence_limit: Duration::from_secs(5),
        }
    }
}

/// An export as a [`Store`] that survives lost connections: requests wait for the next one, and are repeated. It has several connections
/// at once if the server permits that.
///
/// The core that connected it drives its connections; every core can use it.
pub struct NbdStore {
    core: Arc<Core>,
    keeper: JoinHandle<()>,
}

struct Core {
    url: NbdUrl,
    options: NbdOptions,
    export: Export,
    geometry: Geometry,
    characteristics: Characteristics,
    status: Arc<StoreStatus>,
    state: Mutex<State>,
    /// There are connections now, or none any more.
    changed: Arc<Notify>,
    ranges: Arc<WriteRangeLocks>,
    unflushed: Unflushed<BlockWrite>,
    flush_failure: FlushFailure,
}

#[derive(Default)]
struct State {
    /// Connections to a server that has all kept writes.
    connections: Option<Arc<ConnectionGroup>>,
    /// Why there are none.
    failure: Option<NbdError>,
    /// When the first request after the loss began to wait.
    down_since: Option<Instant>,
    is_closed: bool,
}

impl NbdStore {
    /// Connects and selects the export.
    pub async fn connect(url: &NbdUrl, options: NbdOptions) -> Result<Self, NbdError> {
        let connections = Arc::new(ConnectionGroup::connect(url, &options).await?);
        let (export, first) = (*connections.export(), connections.least_busy());
        let geometry = first.geometry();
        let core = Arc::new(Core {
            url: url.clone(),
            options,
            export,
            geometry,
            characteristics: first.characteristics(),
            status: StoreStatus::new(geometry.block_count),
            state: Mutex::default(),
            changed: Arc::default(),
            ranges: Arc::default(),
            unflushed: Unflushed::default(),
            flush_failure: FlushFailure::default(),
        });
        // A server without FLUSH has no volatile cache.
        core.unflushed.set_write_through(!export.has(transmission::SEND_FLUSH));
        core.state.lock().connections = Some(connections.clone());
        let own = core.clone();
        let keeper = tokio::task::spawn_local(async move { own.keep(connections).await });
        Ok(Self { core, keeper })
    }
}

/// Connections over which kept writes are being written again. If that does not come to its end, what was not sent is never sent.
struct Unfinished(Option<Arc<ConnectionGroup>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(connections) = &self.0 {
            connections.abort(&NbdError::Closed);
        }
    }
}

impl Drop for NbdStore {
    fn drop(&mut self) {
        self.keeper.abort();
        self.core.close();
    }
}

impl Core {
    /// Lets later requests fail, and returns the connections.
    fn close(&self) -> Option<Arc<ConnectionGroup>> {
        let mut state = self.state.lock();
        state.is_closed = true;
        let connections = state.connections.take();
        drop(state);
        self.changed.notify_waiters();
        connections
    }

    /// Replaces lost connections.
    async fn keep(&self, mut connections: Arc<ConnectionGroup>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = time::now();
            let error = connections.ended().await;
            self.withdraw(&connections, &error);
            // The end of the last one discards what it has not sent.
            connections.all_ended().await;
            if time::now() - begun < SHORT_LIFE {
                time::sleep_until(time::now() + pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            } else {
                pause = FIRST_PAUSE;
            }
            connections = loop {
                match self.reconnect().await {
                    Ok(connections) => break connections,
                    Err(error) => {
                        tracing::debug!(export = %self.url, %error, "no connection yet");
                        self.state.lock().failure = Some(error);
                        self.changed.notify_waiters();
                        time::sleep_until(time::now() + pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            };
        }
    }

    /// Uses connections no longer: one of them is lost.
    fn withdraw(&self, connections: &Arc<ConnectionGroup>, error: &NbdError) {
        connections.abort(error);
        let mut state = self.state.lock();
        if state.connections.as_ref().is_some_and(|present| Arc::ptr_eq(present, connections)) {
            tracing::warn!(export = %self.url, %error, "the connection to an export is lost");
            state.connections = None;
            state.failure = Some(error.clone());
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Connects again, writes the kept writes again, and offers the connections to requests.
    async fn reconnect(&self) -> Result<Arc<ConnectionGroup>, NbdError> {
        let connections = ConnectionGroup::connect(&self.url, &self.options).await?;
        let export = connections.export();
        let geometry = connection::geometry(&self.url, export)?;
        let is_same = (geometry.block_size, export.flags)
            == (self.geometry.block_size, self.export.flags)
            && export.maximum_payload >= self.export.maximum_payload;
        if !is_same {
            return Err(NbdError::ExportChanged);
        }
        let connections = Arc::new(connections);
        let mut unfinished = Unfinished(Some(connections.clone()));
        if let Err(error) = self.write_again(&connections).await {
            drop(unfinished);
            connections.all_ended().await;
            return Err(error);
        }
        {
            let mut state = self.state.lock();
            if state.is_closed {
                return Err(NbdError::Closed);
            }
            unfinished.0 = None;
            state.connections = Some(connections.clone());
            state.failure = None;
            state.down_since = None;
        }
        self.status.set_block_count(geometry.block_count);
        self.changed.notify_waiters();
        tracing::info!(export = %self.url, "connected to an export again");
        Ok(connections)
    }

    /// Writes the kept writes again: those to different blocks at the same time, those to the same blocks in their order. If that
    /// takes long, flushes meanwhile, so that the next attempt begins after these writes.
    async fn write_again(&self, connections: &ConnectionGroup) -> Result<(), NbdError> {
        let writes = self.unflushed.sent();
        let refused = |error| NbdError::NotWrittenAgain(Arc::new(error));
        let mut flushed_at = time::now();
        let mut rest = &writes[..];
        while !rest.is_empty() {
            let (together, later) = rest.split_at(independent(rest));
            let send = async |write: &VolatileWrite<BlockWrite>| {
                connections.write(&write.command, Durability::Volatile, None)?.wait().await
            };
            let answers = join_all(together.iter().map(|(_, write)| send(write))).await;
            for ((number, write), answer) in together.iter().zip(answers) {
                match answer {
                    Ok(()) => {}
                    Err(error) if is_loss(&error) => return Err(loss_of(&error)),
                    Err(error) if matches!(write.answer, Answer::Good) => {
                        return Err(refused(error));
                    }
                    // Its caller repeats it, and gets an answer of its own.
                    Err(_) if matches!(write.answer, Answer::Awaited) => {}
                    Err(_) => self.unflushed.forget(&[*number]),
                }
            }
            if let Some((last, _)) = together.last()
                && time::now() - flushed_at >= FLUSH_INTERVAL
            {
                let mut written = self.unflushed.flushable();
                written.retain(|number| number <= last);
                match connections.least_busy().try_flush().map_err(refused)?.wait().await {
                    Ok(()) => self.unflushed.forget(&written),
                    Err(error) if is_loss(&error) => return Err(loss_of(&error)),
                    Err(error) => return Err(refused(error)),
                }
                flushed_at = time::now();
            }
            rest = later;
        }
        Ok(())
    }

    /// Returns the connections, as soon as there are some.
    async fn connections(&self) -> Result<Arc<ConnectionGroup>, BlockError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = time::now();
            let (until, failure) = {
                let mut state = self.state.lock();
                match &state.connections {
                    Some(connections) => return Ok(connections.clone()),
                    None if state.is_closed => return Err(unreachable_server(&NbdError::Closed)),
                    None => {}
                }
                let since = *state.down_since.get_or_insert(now);
                let failure = state.failure.clone().unwrap_or(NbdError::Closed);
                (since + self.options.reconnect_limit, failure)
            };
            if until <= now {
                self.changed.notify_waiters();
                return Err(unreachable_server(&failure));
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = time::sleep_until(until) => {}
            }
        }
    }

    /// Carries a request out, over as many connections as it needs.
    async fn carry_out<T>(
        &self,
        send: impl Fn(&ConnectionGroup) -> Result<Reply<T>, BlockError>,
    ) -> Result<T, BlockError> {
        let deadline = time::now() + self.options.reconnect_limit;
        let mut losses = 0;
        loop {
            let connections = self.connections().await?;
            let error = match send(&connections)?.wait().await {
                Err(error) if is_loss(&error) => error,
                result => return result,
            };
            self.withdraw(&connections, &loss_of(&error));
            losses += 1;
            if losses >= REPEAT_LIMIT && time::now() >= deadline {
                return Err(error);
            }
        }
    }

    fn check(&self, extent: Extent) -> Result<(), BlockError> {
        extent.check(self.status.block_count())
    }

    /// Returns the parts of an extent of which a request can move the data.
    fn parts(&self, extent: Extent) -> impl Iterator<Item = Extent> + use<> {
        let most = u64::from(self.export.maximum_payload) >> self.geometry.block_size.shift();
        let (mut lba, end) = (extent.lba.0, extent.end());
        std::iter::from_fn(move || {
            let part = Extent::new(lba, most.max(1).min(end - lba));
            lba = part.end();
            (part.block_count > 0).then_some(part)
        })
    }

    async fn read(&self, extent: Extent) -> Result<Data, BlockError> {
        let mut whole: Option<Buffer> = None;
        let mut at = 0;
        for part in self.parts(extent) {
            let data =
                self.carry_out(|connections| connections.least_busy().try_read(part)).await?;
            if part == extent {
                return Ok(data);
            }
            let length = extent.byte_count(self.geometry.block_size) as usize;
            let whole = whole.get_or_insert_with(|| Buffer::for_overwrite(length));
            data.copy_out(0, &mut whole[at..at + data.len()]);
            at += data.len();
        }
        Ok(whole.map_or_else(Data::empty, Data::Buffer))
    }

    async fn write(
        &self,
        extent: Extent,
        data: Payload,
        durability: Durability,
    ) -> Result<(), BlockError> {
        let mut at = 0;
        let mut data = data;
        for part in self.parts(extent) {
            let length = part.byte_count(self.geometry.block_size) as usize;
            let piece = if part == extent {
                std::mem::replace(&mut data, Buffer::zeroed(0).into()).into_shared()
            } else {
                Arc::new(Buffer::copy_of(&data[at..at + length]))
            };
            let memory = piece.memory();
            let write = BlockWrite { extent: part, kind: WriteKind::Data(piece) };
            self.carry_out_write(write, memory, durability).await?;
            at += length;
        }
        Ok(())
    }

    /// Carries a write out, and keeps it until a flush.
    async fn carry_out_write(
        &self,
        write: BlockWrite,
        memory: usize,
        durability: Durability,
    ) -> Result<(), BlockError> {
        let extent = (write.extent.lba.0, write.extent.end());
        let must_be_durable = durability == Durability::Durable;
        let has_fua = self.export.has(transmission::SEND_FUA);
        let durability = if has_fua { durability } else { Durability::Volatile };
        let hold: Hold = Arc::new(self.claim(extent).await?);
        let kept = VolatileWrite { command: write.clone(), extent, memory, answer: Answer::Unsent };
        let kept = self.unflushed.keep(kept, &hold);
        let answer = self.carry_out(|connections| {
            kept.note_sent();
            connections.write(&write, durability, Some(hold.clone()))
        });
        match answer.await {
            Ok(()) => kept.note_answer(durability == Durability::Durable),
            Err(error) => {
                if !is_loss(&error) {
                    kept.note_failure();
                }
                return Err(error);
            }
        }
        drop(hold);
        if (must_be_durable && !has_fua) || self.unflushed.is_full() {
            self.flush().await?;
        }
        Ok(())
    }

    /// Waits until no other write can still be carried out in these blocks.
    async fn claim(&self, (first, end): (u64, u64)) -> Result<LockedBlocks, BlockError> {
        let deadline = time::now() + self.options.reconnect_limit;
        let claim = pin!(self.ranges.claim(first, end));
        tokio::select! {
            biased;
            locked = claim => Ok(locked),
            () = time::sleep_until(deadline) => {
                let earlier = "an earlier write to the same blocks has no answer yet";
                Err(BlockError::Unreachable(io::Error::new(io::ErrorKind::TimedOut, earlier)))
            }
        }
    }

    async fn flush(&self) -> Result<(), BlockError> {
        // A server without FLUSH has no volatile cache.
        if !self.export.has(transmission::SEND_FLUSH) {
            return Ok(());
        }
        let flushable = self.unflushed.flushable();
        match self.carry_out(|connections| connections.least_busy().try_flush()).await {
            Ok(()) => {
                self.unflushed.forget(&flushable);
                self.flush_failure.check()
            }
            Err(error) => {
                // After a lost connection the writes are kept until a later flush. Otherwise no later flush makes up for this one.
                if !is_loss(&error) {
                    self.flush_failure.note();
                }
                Err(error)
            }
        }
    }

    fn check_writable(&self, extent: Extent) -> Result<(), BlockError> {
        self.check(extent)?;
        if self.export.has(transmission::READ_ONLY) {
            return Err(InvalidRequest::ReadOnly.into());
        }
        self.flush_failure.check()
    }
}

/// Returns whether the connection is lost, or its server ends.
const fn is_loss(error: &BlockError) -> bool {
    matches!(error, BlockError::Unreachable(_))
}

/// Returns why the connection is lost.
fn loss_of(error: &BlockError) -> NbdError {
    let BlockError::Unreachable(source) = error else { return NbdError::Closed };
    let known = source.get_ref().and_then(|source| source.downcast_ref::<NbdError>());
    let unknown = || NbdError::Lost(Arc::new(io::Error::new(source.kind(), source.to_string())));
    known.cloned().unwrap_or_else(unknown)
}

impl NbdStore {
    /// Starts a request that is valid.
    fn start<T: 'static, F>(
        &self,
        checked: Result<(), BlockError>,
        carry_out: impl FnOnce(Arc<Core>) -> F,
    ) -> Reply<T>
    where
        F: Future<Output = Result<T, BlockError>> + 'static,
    {
        match checked {
            Ok(()) => Io::started(carry_out(self.core.clone())),
            Err(error) => Io::Ready(Err(error)),
        }
    }

    fn zero(&self, extent: Extent, durability: Durability, may_punch: bool) -> Reply<()> {
        let checked = self.core.check_writable(extent).and_then(|()| {
            let is_possible = !may_punch || self.core.characteristics.unmap.is_some();
            if is_possible { Ok(()) } else { Err(InvalidRequest::Unsupported.into()) }
        });
        self.start(checked, |core| async move {
            let write = BlockWrite { extent, kind: WriteKind::Zeroes { may_punch } };
            core.carry_out_write(write, 0, durability).await
        })
    }
}

impl Store for NbdStore {
    fn geometry(&self) -> Geometry {
        Geometry { block_count: self.core.status.block_count(), ..self.core.geometry }
    }

    fn characteristics(&self) -> Characteristics {
        self.core.characteristics
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.core.status
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.start(self.core.check(extent), |core| async move { core.read(extent).await })
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        let checked = self.core.check_writable(extent);
        if checked.is_ok() {
            assert_eq!(data.len() as u64, extent.byte_count(self.core.geometry.block_size));
        }
        self.start(checked, |core| async move { core.write(extent, data, durability).await })
    }

    fn flush(&self) -> Reply<()> {
        self.start(self.core.flush_failure.check(), |core| async move { core.flush().await })
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        self.zero(extent, Durability::Volatile, true)
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        self.zero(extent, durability, false)
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        let (block_count, allocation) = (extent.block_count, Allocation::Mapped);
        Io::Ready(self.core.check(extent).map(|()| AllocationRun { block_count, allocation }))
    }

    fn resize(&self, _: u64) -> Reply<()> {
        let read_only = self.core.export.has(transmission::READ_ONLY);
        let refused =
            if read_only { InvalidRequest::ReadOnly } else { InvalidRequest::Unsupported };
        Io::Ready(Err(refused.into()))
    }
}

impl RemoteDisk for NbdStore {
    fn paths(&self) -> Vec<PathStatus> {
        let state = self.core.state.lock();
        let place = match &self.core.url.place {
            NbdPlace::Host(portal) => portal.to_string(),
            NbdPlace::Socket(path) => path.display().to_string(),
        };
        vec![PathStatus {
            entry: state.connections.is_some().then(|| place.clone()),
            portal: place,
            is_active: state.connections.is_some(),
            failure: state.failure.as_ref().map(NbdError::reason),
        }]
    }

    fn paths_changed(&self) -> LocalFuture<()> {
        notified(&self.core.changed)
    }

    fn is_down(&self) -> bool {
        let state = self.core.state.lock();
        let until = state.down_since.map(|since| since + self.core.options.reconnect_limit);
        let is_over = until.is_some_and(|until| until <= time::now());
        state.is_closed || (state.connections.is_none() && is_over)
    }

    fn has_kept_writes(&self) -> bool {
        !self.core.unflushed.is_empty()
    }

    /// NBD has no identifiers.
    fn identifier(&self) -> Option<String> {
        None
    }

    fn leave(&self) -> LocalFuture<()> {
        self.keeper.abort();
        let (connections, limit) = (self.core.close(), self.core.options.connect_limit);
        Box::pin(async move {
            if let Some(connections) = connections {
                connections.disconnect(limit).await;
                // Another store may write next: what a hung server has not received must not follow.
                connections.abort(&NbdError::Closed);
            }
        })
    }
}
