//! The common parts of this crate's tests: a target with one unit over a store that can be slow or fail, and a loop
//! that polls futures.

use crate::pass_through;
use crate::{
    Array, Cdb, Command, Completion, DeviceType, Host, Identity, InitiatorPort, LogicalUnit, Lun,
    MetadataKind, MetadataStore, NexusHandle, Parts, Protected, ProtectionType, Sense, Status,
    TargetDevice, Work,
};
use sarsen_block::layers::{ForgetKey, ProtectedStore};
use sarsen_block::{
    BlockError, BlockSize, Buffer, Characteristics, Direction, Durability, Io, Layer, Lba,
    LocalFuture, MemoryStore, Reply, Request, Store, UnmapSupport,
};
use sarsen_volume::{self as volume, Volume};
use std::collections::{BTreeMap, HashMap};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

pub(crate) const BLOCKS: u64 = 4096;

/// A memory store that can delay or fail requests, and that counts some of them.
pub(crate) struct TestStore {
    inner: Arc<dyn Store>,
    pub(crate) characteristics: Characteristics,
    /// Every result is delayed by this number of polls.
    pub(crate) delay_polls: AtomicUsize,
    /// Reads and writes of this block fail.
    pub(crate) bad_block: Mutex<Option<u64>>,
    pub(crate) is_full: AtomicBool,
    pub(crate) flushes: AtomicUsize,
    pub(crate) durable_writes: AtomicUsize,
}

impl TestStore {
    pub(crate) fn new(block_size: BlockSize) -> Self {
        let characteristics = Characteristics {
            volatile_cache: true,
            read_only: false,
            unmap: Some(UnmapSupport { granularity_blocks: 1, anchors: true, tells_space: true }),
            physical_block_exponent: 0,
            optimal_transfer: None,
            protection: false,
            is_lasting: true,
        };
        Self::around(Arc::new(MemoryStore::new(block_size, BLOCKS)), characteristics)
    }

    /// Creates a store of `block_count` blocks with protection information.
    pub(crate) fn protected(block_size: BlockSize, block_count: u64) -> Self {
        let bytes = ProtectedStore::required_inner_bytes(block_size, block_count).unwrap();
        let below = Arc::new(MemoryStore::new(BlockSize::B512, bytes / 512));
        let inner = ProtectedStore::new(below, block_size).unwrap();
        let characteristics = inner.characteristics();
        Self::around(Arc::new(inner), characteristics)
    }

    /// Creates this store over another one.
    pub(crate) fn around(inner: Arc<dyn Store>, characteristics: Characteristics) -> Self {
        Self {
            inner,
            characteristics,
            delay_polls: AtomicUsize::new(0),
            bad_block: Mutex::new(None),
            is_full: AtomicBool::new(false),
            flushes: AtomicUsize::new(0),
            durable_writes: AtomicUsize::new(0),
        }
    }

    fn fault(&self, request: Request) -> Option<BlockError> {
        let (extent, direction) = match request {
            Request::Read(extent) | Request::ReadProtected(extent) => (extent, Direction::Read),
            Request::Write { extent, durability }
            | Request::WriteProtected { extent, durability } => {
                if durability == Durability::Durable {
                    self.durable_writes.fetch_add(1, Ordering::Relaxed);
                }
                (extent, Direction::Write)
            }
            Request::Flush => {
                self.flushes.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            _ => return None,
        };
        if direction == Direction::Write && self.is_full.load(Ordering::Relaxed) {
            return Some(BlockError::NoSpace { lba: extent.lba });
        }
        let bad = self
            .bad_block
            .lock()
            .unwrap()
            .filter(|&lba| (extent.lba.0..extent.saturating_end()).contains(&lba))?;
        let source = std::io::Error::from_raw_os_error(5);
        Some(BlockError::medium(Lba(bad), direction, source))
    }
}

impl Layer for TestStore {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn adapt(&self, _: Characteristics) -> Characteristics {
        self.characteristics
    }

    fn handle<T: 'static>(
        &self,
        request: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        let reply = match self.fault(request) {
            Some(error) => Io::Ready(Err(error)),
            None => submit(&*self.inner),
        };
        let mut polls = self.delay_polls.load(Ordering::Relaxed);
        if polls == 0 {
            return reply;
        }
        Io::pending(async move {
            std::future::poll_fn(|context| {
                polls = polls.saturating_sub(1);
                context.waker().wake_by_ref();
                if polls == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            reply.wait().await
        })
    }
}

/// Polls until the result is ready. A test that would wait forever fails instead.
pub(crate) fn block_on<T>(io: Io<T>) -> T {
    let mut future = pin!(io.wait());
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
    panic!("a future that nothing completes");
}

/// Polls the future once.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// A host whose clock the test sets, whose random bytes are consecutive numbers, and whose work the test runs.
#[derive(Default)]
pub(crate) struct TestHost {
    pub(crate) unix_time_ms: AtomicU64,
    random: AtomicU8,
    work: Mutex<Vec<Work>>,
}

impl TestHost {
    /// Returns the work that has waited longest, for a test that runs it step by step.
    pub(crate) fn take_work(&self) -> Option<LocalFuture<()>> {
        let mut waiting = self.work.lock().unwrap();
        (!waiting.is_empty()).then(|| waiting.remove(0)())
    }

    /// Runs all waiting work, and the work that it starts.
    pub(crate) fn run_work(&self) {
        loop {
            let Some(work) = self.work.lock().unwrap().pop() else { return };
            block_on(Io::Pending(work()));
        }
    }
}

impl Host for TestHost {
    fn unix_time_ms(&self) -> u64 {
        self.unix_time_ms.load(Ordering::Relaxed)
    }

    fn fill_random(&self, into: &mut [u8]) {
        into.fill_with(|| self.random.fetch_add(1, Ordering::Relaxed));
    }

    fn spawn(&self, work: Work) {
        self.work.lock().unwrap().push(work);
    }
}

/// Stores records in memory. If two units share it, they are one volume before and after a restart.
#[derive(Default)]
pub(crate) struct TestMetadataStore {
    pub(crate) records: Mutex<HashMap<MetadataKind, Vec<u8>>>,
    /// If true, every save fails.
    pub(crate) is_broken: AtomicBool,
}

impl MetadataStore for TestMetadataStore {
    fn load(&self, record: MetadataKind) -> std::io::Result<Option<Vec<u8>>> {
        Ok(self.records.lock().unwrap().get(&record).cloned())
    }

    fn save(&self, record: MetadataKind, content: Vec<u8>) -> Io<std::io::Result<()>> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Io::Ready(Err(std::io::Error::from_raw_os_error(5)));
        }
        let mut records = self.records.lock().unwrap();
        if content.is_empty() {
            drop(records.remove(&record))
        } else {
            drop(records.insert(record, content))
        }
        Io::Ready(Ok(()))
    }
}

/// The parts of a unit and of its volume.
pub(crate) struct TestParts {
    pub(crate) identity: Identity,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metadata: Option<Arc<dyn MetadataStore>>,
    pub(crate) protection: Option<ProtectionType>,
    pub(crate) device_type: DeviceType,
    pub(crate) removable: bool,
    pub(crate) eraser: Option<Arc<dyn ForgetKey>>,
    pub(crate) pass_through: Option<pass_through::Device>,
}

impl TestParts {
    /// Returns the parts of a disk without records.
    pub(crate) fn disk(identity: Identity, store: Arc<dyn Store>) -> Self {
        Self {
            identity,
            store,
            metadata: None,
            protection: None,
            device_type: DeviceType::Disk,
            removable: false,
            eraser: None,
            pass_through: None,
        }
    }

    /// Creates the volume and the unit.
    pub(crate) fn unit(self) -> std::io::Result<Arc<LogicalUnit>> {
        let Self { identity, store, metadata, protection, .. } = self;
        let protected = Protected::over(&store, protection);
        let store = protected.clone().map_or(store, |protected| protected);
        let parts = volume::Parts { metadata, ..volume::Parts::new(&identity.volume, store) };
        LogicalUnit::of_parts(Parts {
            device_type: self.device_type,
            removable: self.removable,
            protected,
            eraser: self.eraser,
            pass_through: self.pass_through,
            ..Parts::disk(identity, Volume::open(parts)?)
        })
    }
}

/// Returns a disk without records.
pub(crate) fn disk(identity: Identity, store: Arc<dyn Store>) -> Arc<LogicalUnit> {
    TestParts::disk(identity, store).unit().unwrap()
}

/// A target with a unit at LUN 0, and a nexus without pending unit attention.
#[allow(dead_code)]
pub(crate) struct Fixture {
    pub(crate) host: Arc<TestHost>,
    pub(crate) metadata: Arc<TestMetadataStore>,
    pub(crate) array: Arc<Array>,
    pub(crate) store: Arc<TestStore>,
    pub(crate) unit: Arc<LogicalUnit>,
    pub(crate) device: Arc<TargetDevice>,
    pub(crate) nexus: NexusHandle,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::over(TestStore::new(BlockSize::B512))
    }

    pub(crate) fn over(store: TestStore) -> Self {
        Self::of(Arc::new(store), Arc::default(), |_| {})
    }

    /// Creates it over this store and these records. `change` may modify the parts of the unit.
    pub(crate) fn of(
        store: Arc<TestStore>,
        metadata: Arc<TestMetadataStore>,
        change: impl FnOnce(&mut TestParts),
    ) -> Self {
        let host = Arc::new(TestHost::default());
        let array = Array::new(host.clone());
        let identity = Identity::new("data", "iqn.2026-01.example:t");
        let metadata_store = Some(metadata.clone() as _);
        let mut parts =
            TestParts { metadata: metadata_store, ..TestParts::disk(identity, store.clone()) };
        change(&mut parts);
        let unit = parts.unit().unwrap();
        let luns = BTreeMap::from([(Lun(0), unit.clone())]);
        let device = TargetDevice::new(&array, "iqn.2026-01.example:t".into(), luns);
        let nexus = open(&device, "one");
        let mut fixture = Self { host, metadata, array, store, unit, device, nexus };
        fixture.host.run_work();
        assert_eq!(additional(&fixture.run(&[0], &[])), Some(0x2900));
        fixture
    }

    pub(crate) fn run(&mut self, cdb: &[u8], data_out: &[u8]) -> Completion {
        self.execute(command(cdb, data_out))
    }

    /// Executes the command. If it waits for work that it started, executes that work too.
    pub(crate) fn execute(&mut self, command: Command) -> Completion {
        let earlier = self.host.work.lock().unwrap().len();
        let mut answer = Box::pin(self.nexus.execute(Some(Lun(0)), command).wait());
        for _ in 0..10_000 {
            if let Some(completion) = poll(&mut answer) {
                return completion;
            }
        }
        let begun = self.host.work.lock().unwrap().split_off(earlier);
        begun.into_iter().for_each(|work| block_on(Io::Pending(work())));
        block_on(Io::Pending(answer))
    }

    pub(crate) fn read(&mut self, lba: u8, block_count: u8) -> Vec<u8> {
        let completion = self.run(&[0x28, 0, 0, 0, 0, lba, 0, 0, block_count, 0], &[]);
        assert_eq!(completion.status, Status::Good);
        bytes(completion)
    }

    pub(crate) fn write(&mut self, lba: u8, data: &[u8]) -> Completion {
        let block_count = (data.len() / 512) as u8;
        self.run(&[0x2a, 0, 0, 0, 0, lba, 0, 0, block_count, 0], data)
    }
}

pub(crate) fn open(device: &Arc<TargetDevice>, initiator: &str) -> NexusHandle {
    let name = format!("iqn.2026-01.example:{initiator},i,0x1");
    device.open_nexus(InitiatorPort::new(name), 1).unwrap()
}

pub(crate) fn cdb(bytes: &[u8]) -> Cdb {
    if let Some((fixed, extension)) = bytes.split_first_chunk() {
        return Cdb::with_extension(fixed, extension);
    }
    let mut fixed = [0; 16];
    fixed[..bytes.len()].copy_from_slice(bytes);
    Cdb::new(&fixed)
}

pub(crate) fn command(cdb_bytes: &[u8], data_out: &[u8]) -> Command {
    let cdb = cdb(cdb_bytes);
    match data_out {
        [] => Command::new(cdb),
        data_out => Command::with_data_out(cdb, Buffer::copy_of(data_out)),
    }
}

pub(crate) fn run(nexus: &mut NexusHandle, cdb: &[u8], data_out: &[u8]) -> Completion {
    block_on(nexus.execute(Some(Lun(0)), command(cdb, data_out)))
}

pub(crate) fn bytes(completion: Completion) -> Vec<u8> {
    completion.data_in.into_buffer().to_vec()
}

/// Returns the additional sense code of a CHECK CONDITION.
pub(crate) fn additional(completion: &Completion) -> Option<u16> {
    assert_eq!(completion.status == Status::CheckCondition, completion.sense.is_some());
    completion.sense.as_ref().map(|sense: &Sense| sense.additional().0)
}
