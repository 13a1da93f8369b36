//! The whole engine without system calls: a connection's driver, its machine, the device server and a disk in memory,
//! over a stream of prepared requests. `cargo xtask instructions` counts the instructions of two runs of different
//! length. The difference is the cost of the I/Os.
//!
//! `instructions read 1024` reads 4 KiB 1024 times, `write` writes. The program fails unless the answers have the
//! expected length; an error's answer does not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use sarsen_block::{BlockSize, LocalFuture, Piece};
use sarsen_io::net::Stream;
use sarsen_io::simulation::{SimulatedStream, seed_randomness};
use sarsen_node::SimulatedPortal;
use sarsen_node::stores::RamStore;
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
    is_over: bool,
}

impl Initiator {
    /// Returns an initiator that logs in and then carries out the plan.
    fn new(plan: Vec<(usize, InstructionKind)>) -> Self {
        Self {
            step: Step { requests: login(), expected: None },
            taken: 0,
            answered: 0,
            plan,
            cmd_sn: SerialNumber(1),
            exp_stat_sn: SerialNumber(0),
            place: 0,
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
            let lba = (self.place * LENGTH / BLOCK) as u64;
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
fn run(plan: Vec<(usize, InstructionKind)>) -> io::Result<bool> {
    seed_randomness(1);
    let store = RamStore::new(BlockSize::B512, (PLACES * LENGTH / BLOCK) as u64)?;
    let identity = Identity::new("instructions", "0");
    let volume = Volume::open(volume::Parts::new("instructions", Arc::new(store)))?;
    let unit = LogicalUnit::of_parts(Parts::disk(identity, volume))?;
    let initiator = Rc::new(RefCell::new(Initiator::new(plan)));
    let requests = Requests(initiator.clone());
    let settings = Settings::default();
    let address = requests.local_addr();
    let units = BTreeMap::from([(Lun(0), unit)]);
    let portal = SimulatedPortal::new(settings, address, Arc::new(Nothing), TARGET, units);
    // The clock is paused, so that reading it is not a system call.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build()?;
    LocalSet::new().block_on(&runtime, portal.serve(Stream::simulated(requests)));
    let is_over = initiator.borrow().is_over;
    Ok(is_over)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = match &arguments[..] {
        [kind, count, ..] => {
            let times = count.parse().ok().map(|count: usize| count / DEPTH);
            match (&**kind, times) {
                ("read", Some(times @ 1..)) => Some((times, InstructionKind::Read)),
                ("write", Some(times @ 1..)) => Some((times, InstructionKind::Write)),
                _ => None,
            }
        }
        _ => None,
    };
    let Some(asked) = asked else {
        eprintln!("usage: instructions read|write COUNT, which is a multiple of {DEPTH}");
        return ExitCode::FAILURE;
    };
    // In reverse order: first the unit attentions of a new nexus, then one write to every page, then the measured I/Os.
    let plan =
        vec![asked, (PLACES / DEPTH, InstructionKind::Write), (ATTENTIONS, InstructionKind::Ready)];
    match run(plan) {
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
