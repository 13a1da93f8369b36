//! The whole engine without system calls: a connection's driver, its machine, the device server and a disk in memory,
//! over a stream of prepared requests. `cargo xtask instructions` counts the instructions of two runs of different
//! length. The difference is the cost of the I/Os.
//!
//! `instructions read 1024` reads 4 KiB 1024 times, `write` writes. `pool-read` and `pool-write` use a volume of 1 TiB in a
//! pool, `device-read` and `device-write` the device of such a pool, without it. The program fails unless the answers
//! have the expected length; an error's answer does not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use parking_lot::Mutex;
use sarsen_block::{
    Allocation, AllocationRun, BlockSize, Buffer, Characteristics, Data, Durability, Extent,
    Geometry, InvalidRequest, Io, LocalFuture, Payload, Piece, Reply, Space, Store, StoreStatus,
};
use sarsen_io::net::Stream;
use sarsen_io::simulation::{SimulatedStream, seed_randomness};
use sarsen_node::SimulatedPortal;
use sarsen_node::stores::RamStore;
use sarsen_pool::{Label, NewPool, NewVolume, Pool, Tasks};
use sarsen_proto::iscsi::target::Settings;
use sarsen_scsi::{Host, Identity, LogicalUnit, Lun, Parts, Work};
use sarsen_volume::{self as volume, Volume};
use sarsen_wire::iscsi::pdu::IMMEDIATE;
use sarsen_wire::iscsi::{
    BASIC_HEADER_LENGTH, BasicHeader, Isid, LoginRequest, LoginResponse, Opcode, RawHeader,
    ScsiCommand, SerialNumber, U24, padding,
};
use sarsen_wire::scsi::cdb::Block16;
use sarsen_wire::scsi::opcode;
use tokio::task::LocalSet;
use zerocopy::transmute;

const TARGET: &str = "iqn.2026-11.test:instructions";
const BLOCK: usize = 512;
/// Bytes of an I/O.
const LENGTH: usize = 4096;
/// I/Os that are requested at once, as with this queue depth.
const DEPTH: usize = 32;
/// Number of I/Os before the same blocks are used again.
const PLACES: usize = 1024;
/// Consecutive blocks of so many I/Os are in one chunk of a pool.
const PLACES_PER_CHUNK: usize = 16;
/// Bytes from the beginning of a chunk that is used to the next one: each is in another leaf of the map.
const CHUNK_DISTANCE: usize = 16 << 30;
/// Bytes of a volume in a pool. Its map has three levels.
const POOL_VOLUME_BYTES: u64 = 1 << 40;
/// Bytes of the device of a pool: enough that the first writes need no checkpoint, for which the connection would wait.
const DEVICE_BYTES: usize = 64 << 20;
/// Maximum number of commands that can receive a unit attention of a new nexus.
const ATTENTIONS: usize = 8;

/// The next requests and their expected answers.
struct Step {
    requests: Vec<u8>,
    /// Number of bytes of the answers; `None` accepts any number.
    expected: Option<usize>,
}

#[derive(Clone, Copy)]
enum InstructionKind {
    Ready,
    Read,
    Write,
}

/// What serves the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backing {
    Ram,
    Device,
    Pool,
}

impl Backing {
    /// Returns the first byte of an I/O.
    const fn offset(self, place: usize) -> usize {
        match self {
            Self::Ram | Self::Device => place * LENGTH,
            Self::Pool => {
                place / PLACES_PER_CHUNK * CHUNK_DISTANCE + place % PLACES_PER_CHUNK * LENGTH
            }
        }
    }

    async fn open(self) -> io::Result<Arc<dyn Store>> {
        match self {
            Self::Ram => {
                Ok(Arc::new(RamStore::new(BlockSize::B512, (PLACES * LENGTH / BLOCK) as u64)?))
            }
            Self::Device => Ok(Device::new()),
            Self::Pool => open_pool().await.map_err(io::Error::other),
        }
    }
}

/// Creates a pool, and opens a volume in it.
async fn open_pool() -> Result<Arc<dyn Store>, sarsen_pool::PoolError> {
    let label = |name: &str| Label { name: name.into(), identifier: [2; 16], created: 0 };
    let new = NewPool {
        has_tiers: false,
        identifier: [1; 16],
        name: "instructions".into(),
        chunk_size: (PLACES_PER_CHUNK * LENGTH) as u32,
        devices: vec![(Device::new(), [3; 16])],
    };
    let pool = Pool::create(&new, Arc::new(CallersTasks)).await?;
    let new = NewVolume {
        label: label("volume"),
        size: POOL_VOLUME_BYTES,
        block_size: BlockSize::B512,
        copies: 1,
        stripes: 1,
        has_checksums: false,
        image_size: None,
    };
    let id = pool.create_volume(&new).await?;
    Ok(pool.open_volume(id).await?)
}

/// Continues requests of a pool on the only thread.
struct CallersTasks;

impl Tasks for CallersTasks {
    fn finish(&self, future: LocalFuture<()>) {
        tokio::task::spawn_local(future);
    }
}

/// A device in memory that answers as a file on tmpfs does: each read has a buffer of its own.
struct Device {
    bytes: Mutex<Vec<u8>>,
    status: Arc<StoreStatus>,
}

impl Device {
    fn new() -> Arc<Self> {
        let status = StoreStatus::new((DEVICE_BYTES / BLOCK) as u64);
        Arc::new(Self { bytes: Mutex::new(vec![0; DEVICE_BYTES]), status })
    }

    fn within<T>(&self, extent: Extent, action: impl FnOnce(&mut [u8]) -> T) -> Reply<T> {
        let start = extent.byte_offset(BlockSize::B512) as usize;
        let end = start + extent.byte_count(BlockSize::B512) as usize;
        Io::Ready(
            extent
                .check(self.status.block_count())
                .map(|()| action(&mut self.bytes.lock()[start..end])),
        )
    }
}

impl Store for Device {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: BlockSize::B512, block_count: self.status.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: true,
            read_only: false,
            unmap: None,
            physical_block_exponent: 3,
            optimal_transfer: None,
            protection: false,
            is_lasting: true,
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.within(extent, |bytes| Data::Buffer(Buffer::copy_of(bytes)))
    }

    fn write(&self, extent: Extent, data: Payload, _: Durability) -> Reply<()> {
        self.within(extent, |bytes| bytes.copy_from_slice(&data))
    }

    fn flush(&self) -> Reply<()> {
        Io::Ready(Ok(()))
    }

    fn unmap(&self, _: Extent) -> Reply<()> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }

    fn write_zeroes(&self, extent: Extent, _: Durability) -> Reply<()> {
        self.within(extent, |bytes| bytes.fill(0))
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        let run = |_: &mut [u8]| AllocationRun {
            block_count: extent.block_count,
            allocation: Allocation::Mapped,
        };
        self.within(extent, run)
    }

    fn space(&self) -> Reply<Space> {
        let used_blocks = self.status.block_count();
        Io::Ready(Ok(Space { used_blocks, available_blocks: 0 }))
    }

    fn resize(&self, _: u64) -> Reply<()> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }
}

/// An initiator that sends and counts bytes only.
struct Initiator {
    step: Step,
    taken: usize,
    answered: usize,
    /// The remaining steps, with their numbers of repetitions; the last entry is the next step.
    plan: Vec<(usize, InstructionKind)>,
    cmd_sn: SerialNumber,
    exp_stat_sn: SerialNumber,
    place: usize,
    backing: Backing,
    is_over: bool,
}

impl Initiator {
    /// Returns an initiator that logs in and then carries out the plan.
    fn new(plan: Vec<(usize, InstructionKind)>, backing: Backing) -> Self {
        Self {
            step: Step { requests: login(), expected: None },
            taken: 0,
            answered: 0,
            plan,
            cmd_sn: SerialNumber(1),
            exp_stat_sn: SerialNumber(0),
            place: 0,
            backing,
            is_over: false,
        }
    }

    fn next_step(&mut self) {
        let Some((times, kind)) = self.plan.last_mut() else {
            self.is_over = true;
            return;
        };
        let kind = *kind;
        *times -= 1;
        if *times == 0 {
            self.plan.pop();
        }
        let (count, answer) = match kind {
            InstructionKind::Ready => (1, None),
            InstructionKind::Read => (DEPTH, Some(BASIC_HEADER_LENGTH + LENGTH)),
            InstructionKind::Write => (DEPTH, Some(BASIC_HEADER_LENGTH)),
        };
        (self.taken, self.answered) = (0, 0);
        self.step.expected = answer.map(|length| length * count);
        self.step.requests.clear();
        for tag in 0..count {
            self.request(tag as u32, kind);
        }
        self.exp_stat_sn = self.exp_stat_sn.plus(count as u32);
    }

    fn request(&mut self, tag: u32, kind: InstructionKind) {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.initiator_task_tag = tag.into();
        command.cmd_sn = self.cmd_sn.post_increment().0.into();
        command.exp_stat_sn = self.exp_stat_sn.0.into();
        let (flag, operation_code, data) = match kind {
            InstructionKind::Ready => (0, opcode::TEST_UNIT_READY, 0),
            InstructionKind::Read => (ScsiCommand::READ, opcode::READ_16, 0),
            InstructionKind::Write => (ScsiCommand::WRITE, opcode::WRITE_16, LENGTH),
        };
        let length = if flag == 0 { 0 } else { LENGTH };
        command.flags |= flag;
        command.expected_data_transfer_length = (length as u32).into();
        command.data_segment_length = U24::new(data as u32);
        if length > 0 {
            let lba = (self.backing.offset(self.place) / BLOCK) as u64;
            self.place = (self.place + 1) % PLACES;
            command.cdb = transmute!(Block16 {
                operation_code,
                flags: 0,
                lba: lba.into(),
                block_count: ((LENGTH / BLOCK) as u32).into(),
                group: 0,
                control: 0,
            });
        }
        let requests = &mut self.step.requests;
        requests.extend_from_slice(&RawHeader::from(command).0);
        requests.resize(requests.len() + data, 0x5a);
    }

    /// Copies the available bytes of the requests into the buffer.
    fn hand_out(&mut self, into: &mut [u8]) -> usize {
        let left = &self.step.requests[self.taken..];
        let count = left.len().min(into.len());
        into[..count].copy_from_slice(&left[..count]);
        self.taken += count;
        count
    }

    fn take(&mut self, pieces: &[Piece<'_>]) -> usize {
        let asked = self.step.requests[0] & !IMMEDIATE;
        if asked == Opcode::LoginRequest.0
            && let [Piece::Bytes(bytes), ..] = pieces
            && let Some(header) = bytes.first_chunk()
        {
            let stat_sn = LoginResponse::view(&RawHeader(*header)).stat_sn.get();
            self.exp_stat_sn = SerialNumber(stat_sn).next();
        }
        let mut count = 0;
        for piece in pieces {
            count += match piece {
                Piece::Bytes(bytes) => bytes.len(),
                Piece::Shared { length, .. } => *length,
            };
        }
        self.answered += count;
        if self.step.expected.is_none_or(|expected| self.answered == expected) {
            self.next_step();
        }
        count
    }
}

/// Returns one login request, from the operational stage to the full feature phase.
fn login() -> Vec<u8> {
    let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
    request.opcode_byte |= IMMEDIATE;
    request.flags = 0x87;
    request.isid = Isid([0x80, 0, 0, 0, 0, 1]);
    request.reserved = 0.into();
    request.cmd_sn = 1.into();
    let keys = format!(
        "InitiatorName=iqn.2026-11.test:initiator\0TargetName={TARGET}\0SessionType=Normal\0\
         InitialR2T=Yes\0ImmediateData=Yes\0MaxRecvDataSegmentLength=262144\0"
    );
    let mut header = BasicHeader::from(RawHeader::from(request));
    header.data_segment_length = U24::new(keys.len() as u32);
    let mut bytes = RawHeader::from(header).0.to_vec();
    bytes.extend_from_slice(keys.as_bytes());
    bytes.resize(bytes.len() + padding(keys.len()), 0);
    bytes
}

/// The server's end of the connection.
struct Requests(Rc<RefCell<Initiator>>);

impl SimulatedStream for Requests {
    fn peer_addr(&self) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 2], 1024))
    }

    fn local_addr(&self) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], 3260))
    }

    fn readable(&self) -> LocalFuture<io::Result<()>> {
        let initiator = self.0.borrow();
        let is_ready = initiator.is_over || initiator.taken < initiator.step.requests.len();
        Box::pin(async move {
            // No other event would produce the missing answer.
            if is_ready { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
        })
    }

    fn writable(&self) -> LocalFuture<io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn try_receive(&self, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize> {
        let mut initiator = self.0.borrow_mut();
        if initiator.is_over {
            return Ok(0);
        }
        let count = initiator.hand_out(landing);
        let count = count + initiator.hand_out(scratch);
        match count {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn try_send(&self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        Ok(self.0.borrow_mut().take(pieces))
    }

    fn shutdown(&self, _: Shutdown) -> io::Result<()> {
        Ok(())
    }
}

/// A host that does nothing; reads and writes do not need it.
struct Nothing;

impl Host for Nothing {
    fn unix_time_ms(&self) -> u64 {
        0
    }

    fn fill_random(&self, into: &mut [u8]) {
        into.fill(0);
    }

    fn spawn(&self, _: Work) {}
}

/// Carries out the plan. Returns whether all answers were as expected.
fn run(plan: Vec<(usize, InstructionKind)>, backing: Backing) -> io::Result<bool> {
    seed_randomness(1);
    // The clock is paused, so that reading it is not a system call.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build()?;
    let tasks = LocalSet::new();
    let store = tasks.block_on(&runtime, backing.open())?;
    let identity = Identity::new("instructions", "0");
    let volume = Volume::open(volume::Parts::new("instructions", store))?;
    let unit = LogicalUnit::of_parts(Parts::disk(identity, volume))?;
    let initiator = Rc::new(RefCell::new(Initiator::new(plan, backing)));
    let requests = Requests(initiator.clone());
    let settings = Settings::default();
    let address = requests.local_addr();
    let units = BTreeMap::from([(Lun(0), unit)]);
    let portal = SimulatedPortal::new(settings, address, Arc::new(Nothing), TARGET, units);
    tasks.block_on(&runtime, portal.serve(Stream::simulated(requests)));
    let is_over = initiator.borrow().is_over;
    Ok(is_over)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = match &arguments[..] {
        [kind, count, ..] => {
            let times = count.parse().ok().map(|count: usize| count / DEPTH);
            let (backing, kind) = match kind.split_once('-') {
                None => (Some(Backing::Ram), &**kind),
                Some(("device", kind)) => (Some(Backing::Device), kind),
                Some(("pool", kind)) => (Some(Backing::Pool), kind),
                Some(_) => (None, ""),
            };
            let kind = match kind {
                "read" => Some(InstructionKind::Read),
                "write" => Some(InstructionKind::Write),
                _ => None,
            };
            backing.zip(times.filter(|&times| times > 0)).zip(kind)
        }
        _ => None,
    };
    let Some(((backing, times), kind)) = asked else {
        eprintln!(
            "usage: instructions [device-|pool-]read|write COUNT, which is a multiple of {DEPTH}"
        );
        return ExitCode::FAILURE;
    };
    // In reverse order: first the unit attentions of a new nexus, then one write to every page, then the measured I/Os.
    let asked = (times, kind);
    let plan =
        vec![asked, (PLACES / DEPTH, InstructionKind::Write), (ATTENTIONS, InstructionKind::Ready)];
    match run(plan, backing) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("not everything was answered as expected");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
