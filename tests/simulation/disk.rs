//! Disks that delay requests, fail, and lose their volatile data at a crash.
//!
//! A [`Disk`] outlives the servers that open it. Each server uses it through an [`Opened`], which has no effect after
//! the crash of its server.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use sarsen_block::{
    Allocation, AllocationRun, BlockError, BlockSize, Buffer, Characteristics, Data, Direction,
    Durability, Extent, Geometry, Io, Lba, Payload, Reply, Request, Rng, StopCause, Store,
    StoreStatus, UnmapSupport,
};
use sarsen_io::time;
use sarsen_scsi::{MetadataKind, MetadataStore};

use crate::stamp;

/// The properties of a seed's disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskTraits {
    pub(crate) block_count: u64,
    /// The disk acknowledges writes that are not durable yet.
    pub(crate) is_volatile: bool,
    /// Maximum duration of a request, and again maximum delay of its answer.
    pub(crate) delay_max_ms: u64,
    /// Number of requests of 1000 that take 1000 times as long.
    pub(crate) hiccups_per_mille: u64,
    /// Number of requests of 1000 that fail.
    pub(crate) errors_per_mille: u64,
    /// A request that failed may succeed when it is repeated.
    pub(crate) errors_are_transient: bool,
    /// Number of flushes of 1000 that fail. The disk then stops until the server starts again.
    pub(crate) stops_per_mille: u64,
}

impl DiskTraits {
    /// Draws the properties for a seed.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self {
            block_count: if rng.chance(80) { 24 + rng.below(40) } else { 512 },
            is_volatile: rng.chance(70),
            delay_max_ms: if rng.chance(30) { 0 } else { 1 + rng.below(30) },
            hiccups_per_mille: if rng.chance(70) { 0 } else { rng.below(10) },
            errors_per_mille: if rng.chance(60) { 0 } else { rng.below(20) },
            errors_are_transient: false,
            stops_per_mille: if rng.chance(80) { 0 } else { rng.below(50) },
        }
    }
}

/// A defect of a disk. The tests prove that the model detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskDefect {
    /// The disk acknowledges one write and does not execute it.
    LosesWrite,
    /// The disk acknowledges flushes and makes nothing durable.
    IgnoresFlush,
    /// The disk ignores FUA.
    IgnoresDurability,
    /// Some reads return the previous content.
    ReadsStale,
    /// The disk repeats a write after later writes.
    WritesAgain,
    /// The disk loses its records at a crash.
    ForgetsRecords,
}

type Content = Arc<[u8]>;

/// A block: its durable content, and later contents, oldest first.
struct Block {
    durable: Content,
    cached: Vec<(u64, Content)>,
}

impl Block {
    fn newest(&self) -> &Content {
        self.cached.last().map_or(&self.durable, |(_, content)| content)
    }
}

struct DiskState {
    /// Number of the server that has the disk open.
    life: u64,
    blocks: Vec<Block>,
    /// Number of changes. A flush uses it to find the changes before it.
    changes: u64,
    under_way: usize,
    has_stopped: bool,
    may_fail: bool,
    rng: Rng,
    lie: Option<DiskDefect>,
    /// Block and stamp of every write that the disk received.
    written: BTreeSet<(u64, u64)>,
    /// Block and stamp of a write that the disk received twice.
    written_twice: Option<(u64, u64)>,
    /// The stored records, by name.
    records: BTreeMap<&'static str, Vec<u8>>,
}

/// A simulated disk (see the module).
pub(crate) struct Disk {
    nature: DiskTraits,
    state: Mutex<DiskState>,
}

impl Disk {
    pub(crate) fn new(nature: DiskTraits, rng: &mut Rng, lie: Option<DiskDefect>) -> Arc<Self> {
        let zero: Content = vec![0; stamp::BLOCK].into();
        let blocks = (0..nature.block_count)
            .map(|_| Block { durable: zero.clone(), cached: Vec::new() })
            .collect();
        let state = DiskState {
            life: 0,
            blocks,
            changes: 0,
            under_way: 0,
            has_stopped: false,
            may_fail: true,
            rng: Rng::new(rng.bits()),
            lie,
            written: BTreeSet::new(),
            written_twice: None,
            records: BTreeMap::new(),
        };
        Arc::new(Self { nature, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock()
    }

    /// Opens the disk for the server that starts now.
    pub(crate) fn open(self: &Arc<Self>) -> Arc<Opened> {
        let status = StoreStatus::new(self.nature.block_count);
        Arc::new(Opened { disk: self.clone(), life: self.state().life, status })
    }

    /// Simulates a power failure. Of each block one version survives that is not older than the durable one.
    pub(crate) fn crash(&self) {
        let mut state = self.state();
        let DiskState { blocks, rng, .. } = &mut *state;
        let mood = rng.below(4);
        for block in blocks {
            let versions = block.cached.len() as u64;
            let kept = match mood {
                0 => 0,
                1 => versions,
                _ => rng.below(versions + 1),
            };
            if let Some((_, content)) = block.cached.drain(..).take(kept as usize).next_back() {
                block.durable = content;
            }
        }
        if state.lie == Some(DiskDefect::ForgetsRecords) {
            state.records.clear();
        }
        state.life += 1;
        state.under_way = 0;
        state.has_stopped = false;
    }

    /// Ends the injection of faults and restarts a stopped disk.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.may_fail = false;
        state.has_stopped = false;
    }

    /// Returns the number of unanswered requests.
    pub(crate) fn under_way(&self) -> usize {
        self.state().under_way
    }

    /// Returns whether a flush failed.
    pub(crate) fn has_stopped(&self) -> bool {
        self.state().has_stopped
    }

    /// Returns the block and the stamp of a repeated write, if there is one.
    pub(crate) fn written_twice(&self) -> Option<(u64, u64)> {
        self.state().written_twice
    }
}

impl DiskState {
    fn change(&mut self, lba: u64, content: Content, is_durable: bool) {
        self.changes += 1;
        let change = self.changes;
        let Some(block) = self.blocks.get_mut(lba as usize) else { return };
        if is_durable {
            block.cached.clear();
            block.durable = content;
        } else {
            block.cached.push((change, content));
        }
    }

    /// Makes the changes up to `change` durable.
    fn settle(&mut self, change: u64) {
        for block in &mut self.blocks {
            let count = block.cached.iter().take_while(|(of, _)| *of <= change).count();
            if let Some((_, content)) = block.cached.drain(..count).next_back() {
                block.durable = content;
            }
        }
    }

    fn read(&mut self, extent: Extent) -> Buffer {
        let stale = self.lie == Some(DiskDefect::ReadsStale) && self.rng.chance(10);
        let mut buffer = Buffer::zeroed(extent.block_count as usize * stamp::BLOCK);
        let blocks = &self.blocks[extent.lba.0 as usize..extent.end() as usize];
        for (block, into) in blocks.iter().zip(buffer.chunks_exact_mut(stamp::BLOCK)) {
            into.copy_from_slice(if stale { &block.durable } else { block.newest() });
        }
        buffer
    }
}

/// A disk that one server has open.
pub(crate) struct Opened {
    disk: Arc<Disk>,
    life: u64,
    status: Arc<StoreStatus>,
}

/// The fate of a request, drawn at its arrival.
struct Course {
    before: Duration,
    after: Duration,
    fails: bool,
    /// Number of parts into which the disk splits a change.
    parts: u64,
    /// Number of changes before the request was submitted.
    changes: u64,
}

impl Opened {
    /// Returns the same open disk, for a task that goes on when its caller has gone.
    fn again(&self) -> Self {
        Self { disk: self.disk.clone(), life: self.life, status: self.status.clone() }
    }

    /// Returns the state of the disk while this server has it open.
    fn state(&self) -> Option<MutexGuard<'_, DiskState>> {
        Some(self.disk.state()).filter(|state| state.life == self.life)
    }

    fn course(&self, request: Request) -> Option<Course> {
        let nature = &self.disk.nature;
        let mut state = self.state()?;
        let changes = state.changes;
        let may_fail = state.may_fail;
        let rng = &mut state.rng;
        let is_stuck = rng.below(1_000) < nature.hiccups_per_mille;
        let hiccup = if is_stuck && may_fail { 1_000 } else { 1 };
        let mut delay = || Duration::from_millis(rng.below(nature.delay_max_ms + 1) * hiccup);
        let (before, after) = (delay(), delay());
        let fails = match request {
            Request::Flush => rng.below(1_000) < nature.stops_per_mille,
            _ => rng.below(1_000) < nature.errors_per_mille,
        };
        let parts = if nature.delay_max_ms == 0 { 1 } else { 1 + rng.below(3) };
        Some(Course { before, after, fails: fails && may_fail, parts, changes })
    }

    /// Replaces a record while this server has the disk open.
    fn replace(&self, record: MetadataKind, content: Vec<u8>) -> Option<()> {
        let mut state = self.state()?;
        if content.is_empty() {
            state.records.remove(record.name())
        } else {
            state.records.insert(record.name(), content)
        };
        Some(())
    }

    fn read_now(&self, extent: Extent, fails: bool) -> Result<Data, BlockError> {
        let mut state = self.state().ok_or(StopCause::FlushFailed)?;
        if fails {
            Err(self.error(extent.lba, Direction::Read))
        } else {
            Ok(Data::Buffer(state.read(extent)))
        }
    }

    fn flush_now(&self, course: &Course) -> Result<(), BlockError> {
        let mut state = self.state().ok_or(StopCause::FlushFailed)?;
        if course.fails {
            state.has_stopped = true;
            return Err(self.error(Lba(0), Direction::Write));
        }
        if state.lie != Some(DiskDefect::IgnoresFlush) {
            state.settle(course.changes);
        }
        Ok(())
    }

    /// Changes blocks part by part; other requests may see the parts. A change that fails stops after any part.
    async fn change(
        self: Arc<Self>,
        extent: Extent,
        contents: Vec<Content>,
        durability: Durability,
        course: Course,
    ) -> Result<(), BlockError> {
        let length = (extent.block_count / course.parts).max(1) as usize;
        let mut lba = extent.lba.0;
        let mut again = None;
        for part in contents.chunks(length) {
            if lba > extent.lba.0 {
                time::sleep_until(time::now() + course.before).await;
            }
            let mut state = self.state().ok_or(StopCause::FlushFailed)?;
            if state.has_stopped {
                return Err(StopCause::FlushFailed.into());
            }
            if course.fails && state.rng.chance(60) {
                return Err(self.error(Lba(lba), Direction::Write));
            }
            let lied = state.lie.filter(|_| state.rng.chance(10));
            let is_durable = !self.disk.nature.is_volatile
                || (durability == Durability::Durable
                    && state.lie != Some(DiskDefect::IgnoresDurability));
            for content in part {
                match lied {
                    Some(DiskDefect::LosesWrite) => {}
                    Some(DiskDefect::WritesAgain) => {
                        again = Some((lba, content.clone()));
                        state.change(lba, content.clone(), is_durable);
                    }
                    _ => state.change(lba, content.clone(), is_durable),
                }
                lba += 1;
            }
        }
        if let Some((lba, content)) = again {
            let opened = self.clone();
            tokio::task::spawn_local(async move {
                time::sleep_until(time::now() + Duration::from_millis(200)).await;
                if let Some(mut state) = opened.state() {
                    state.change(lba, content, false);
                }
            });
        }
        if course.fails { Err(self.error(extent.lba, Direction::Write)) } else { Ok(()) }
    }

    fn error(&self, lba: Lba, direction: Direction) -> BlockError {
        let fault = io::Error::other("a fault of the simulation's");
        if self.disk.nature.errors_are_transient {
            BlockError::Transient(fault)
        } else {
            BlockError::medium(lba, direction, fault)
        }
    }

    /// Records the blocks of a write; no write may arrive twice.
    fn note(&self, extent: Extent, contents: &[Content]) {
        let Some(mut state) = self.state() else { return };
        for (lba, content) in (extent.lba.0..).zip(contents) {
            if let Some(stamp) = stamp::of(lba, content).filter(|&stamp| stamp != stamp::ZERO)
                && !state.written.insert((lba, stamp))
            {
                state.written_twice = Some((lba, stamp));
            }
        }
    }

    /// Executes a request within its course. `action` is its effect on the disk.
    fn perform<T: 'static, F: Future<Output = Result<T, BlockError>> + 'static>(
        &self,
        request: Request,
        action: impl FnOnce(Arc<Self>, Course) -> F + 'static,
    ) -> Reply<T> {
        if let Some(extent) = request.extent()
            && let Err(error) = extent.check(self.disk.nature.block_count)
        {
            return Io::Ready(Err(error));
        }
        let Some(course) = self.course(request) else {
            return Io::Ready(Err(StopCause::FlushFailed.into()));
        };
        let opened = Arc::new(self.again());
        // A submitted request continues when the caller stops waiting.
        self.disk.state().under_way += 1;
        let task = tokio::task::spawn_local(async move {
            let (before, after) = (course.before, course.after);
            if !before.is_zero() {
                time::sleep_until(time::now() + before).await;
            }
            let reply = action(opened.clone(), course).await;
            if !after.is_zero() {
                time::sleep_until(time::now() + after).await;
            }
            if let Some(mut state) = opened.state() {
                state.under_way -= 1;
            }
            reply
        });
        Io::pending(async move { task.await.unwrap_or(Err(StopCause::FlushFailed.into())) })
    }
}

fn zeroes(extent: Extent) -> Vec<Content> {
    vec![vec![0; stamp::BLOCK].into(); extent.block_count as usize]
}

impl MetadataStore for Opened {
    fn load(&self, record: MetadataKind) -> io::Result<Option<Vec<u8>>> {
        Ok(self.state().and_then(|state| state.records.get(record.name()).cloned()))
    }

    fn save(&self, record: MetadataKind, content: Vec<u8>) -> Io<io::Result<()>> {
        let course = self.course(Request::Flush);
        let opened = self.again();
        let lost = || io::Error::other("the power has failed");
        // Like a request, this task continues when the caller stops waiting.
        let task = tokio::task::spawn_local(async move {
            let course = course.ok_or_else(lost)?;
            time::sleep_until(time::now() + course.before).await;
            opened.replace(record, content).ok_or_else(lost)?;
            time::sleep_until(time::now() + course.after).await;
            opened.state().map(drop).ok_or_else(lost)
        });
        Io::pending(async move { task.await.unwrap_or_else(|_| Err(io::Error::other("lost"))) })
    }
}

impl Store for Opened {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: BlockSize::B512, block_count: self.disk.nature.block_count }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: self.disk.nature.is_volatile,
            read_only: false,
            unmap: Some(UnmapSupport { granularity_blocks: 1, anchors: false, tells_space: false }),
            physical_block_exponent: 0,
            optimal_transfer: None,
            protection: false,
            is_lasting: true,
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.perform(Request::Read(extent), move |opened, course| async move {
            opened.read_now(extent, course.fails)
        })
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        let request = Request::Write { extent, durability };
        self.perform(request, move |opened, course| async move {
            let contents: Vec<Content> = data.chunks_exact(stamp::BLOCK).map(Into::into).collect();
            opened.note(extent, &contents);
            opened.change(extent, contents, durability, course).await
        })
    }

    fn flush(&self) -> Reply<()> {
        self.perform(Request::Flush, |opened, course| async move { opened.flush_now(&course) })
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        self.perform(Request::Unmap(extent), move |opened, course| {
            opened.change(extent, zeroes(extent), Durability::Volatile, course)
        })
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        let request = Request::WriteZeroes { extent, durability };
        self.perform(request, move |opened, course| {
            opened.change(extent, zeroes(extent), durability, course)
        })
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        self.perform(Request::Allocation(extent), move |_, _| async move {
            let (block_count, allocation) = (extent.block_count, Allocation::Mapped);
            Ok(AllocationRun { block_count, allocation })
        })
    }
}
