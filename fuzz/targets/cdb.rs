//! The device server with arbitrary commands and data: each command ends, within the limits. Sense data occurs only
//! with CHECK CONDITION, and a read returns the data of a GOOD write.
#![no_main]

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::layers::ProtectedStore;
use sarsen_block::{BlockSize, Buffer, Io, MemoryStore, Store};
use sarsen_scsi::command_table::TABLE;
use sarsen_scsi::{
    Array, Cdb, Command, Completion, DeviceType, Host, Identity, InitiatorPort, LogicalUnit, Lun,
    MetadataKind, MetadataStore, NexusHandle, Parts, Protected, ProtectionType, SenseKey, Status,
    TargetDevice, TaskAttribute, Work,
};
use sarsen_volume::{self as volume, Volume};
use sarsen_wire::scsi::opcode::VARIABLE_LENGTH;

const BLOCK_COUNT: u64 = 256;
/// Maximum data that the device server receives and returns with one command.
const LARGEST_DATA: usize = 16 << 20;

/// A host without randomness or real time.
struct StillHost;

impl Host for StillHost {
    fn unix_time_ms(&self) -> u64 {
        1_000
    }

    fn fill_random(&self, into: &mut [u8]) {
        into.fill(7);
    }

    fn spawn(&self, work: Work) {
        poll(work());
    }
}

/// Keeps records in memory.
#[derive(Default)]
struct MemoryMetadataStore(Mutex<HashMap<MetadataKind, Vec<u8>>>);

impl MemoryMetadataStore {
    fn records(&self) -> MutexGuard<'_, HashMap<MetadataKind, Vec<u8>>> {
        self.0.lock()
    }
}

impl MetadataStore for MemoryMetadataStore {
    fn load(&self, record: MetadataKind) -> std::io::Result<Option<Vec<u8>>> {
        Ok(self.records().get(&record).cloned())
    }

    fn save(&self, record: MetadataKind, content: Vec<u8>) -> Io<std::io::Result<()>> {
        self.records().insert(record, content);
        Io::Ready(Ok(()))
    }
}

/// Returns a disk that may have protection information, a disk with a removable medium that keeps records, and a CD.
fn units(kind: u8) -> BTreeMap<Lun, Arc<LogicalUnit>> {
    let block_size = if kind & 1 == 0 { BlockSize::B512 } else { BlockSize::B4096 };
    let protection = match kind >> 1 & 3 {
        0 => None,
        1 => Some(ProtectionType::Type1),
        2 => Some(ProtectionType::Type2),
        _ => Some(ProtectionType::Type3),
    };
    let memory = |block_size, block_count| Arc::new(MemoryStore::new(block_size, block_count));
    let plain: Arc<dyn Store> = memory(block_size, BLOCK_COUNT);
    let below =
        ProtectedStore::required_inner_bytes(block_size, BLOCK_COUNT).expect("few blocks") / 512;
    let protected = || ProtectedStore::new(memory(BlockSize::B512, below), block_size);
    let store = match protection {
        Some(_) => Arc::new(protected().expect("large enough")),
        None => plain,
    };
    let protected = Protected::over(&store, protection);
    let store = protected.clone().map_or(store, |protected| protected);
    let open = |parts| Volume::open(parts).expect("nothing is kept yet");
    let disk = open(volume::Parts::new("data", store));
    let disk = Parts { protected, ..Parts::disk(Identity::new("data", "fuzz"), disk) };
    let removable = open(volume::Parts {
        metadata: Some(Arc::new(MemoryMetadataStore::default())),
        ..volume::Parts::new("removable", memory(BlockSize::B512, BLOCK_COUNT))
    });
    let removable =
        Parts { removable: true, ..Parts::disk(Identity::new("removable", "fuzz"), removable) };
    let disc = open(volume::Parts::new("disc", memory(BlockSize::B2048, BLOCK_COUNT)));
    let disc =
        Parts { device_type: DeviceType::Cd, ..Parts::disk(Identity::new("disc", "fuzz"), disc) };
    let unit = |parts| LogicalUnit::of_parts(parts).expect("nothing is kept yet");
    (0..).map(Lun).zip([disk, removable, disc].map(unit)).collect()
}

/// Returns the CDB of the row that the byte names, or one with any opcode, and further bytes.
fn cdb(row: u8, bytes: &[u8], extension: &[u8]) -> Cdb {
    let mut cdb = [0; 16];
    cdb[1..=bytes.len()].copy_from_slice(bytes);
    let row = TABLE.get(usize::from(row)).ok_or(row);
    cdb[0] = row.map_or_else(|byte| byte, |row| row.operation_code);
    match row.ok().and_then(|row| row.service_action) {
        Some(action) if cdb[0] == VARIABLE_LENGTH => {
            cdb[7] = 0x18;
            cdb[8..10].copy_from_slice(&action.to_be_bytes());
            let mut rest = [0; 16];
            let length = extension.len().min(16);
            rest[..length].copy_from_slice(&extension[..length]);
            return Cdb::with_extension(&cdb, &rest);
        }
        Some(action) => cdb[1] = cdb[1] & 0xe0 | action as u8,
        None => {}
    }
    Cdb::new(&cdb)
}

fuzz_target!(|input: &[u8]| {
    let Some((&kind, mut input)) = input.split_first() else { return };
    let array = Array::new(Arc::new(StillHost));
    let device = TargetDevice::new(&array, "iqn.2026-11.fuzz:t".into(), units(kind));
    let open = |name: &str| {
        let initiator = InitiatorPort::new(format!("iqn.2026-11.fuzz:{name},i,0x1"));
        device.open_nexus(initiator, 1).expect("the one port")
    };
    let mut nexuses = [open("one"), open("two")];
    while let [who, where_and_how, row, length, rest @ ..] = input {
        let (bytes, rest) = rest.split_at(rest.len().min(15));
        let (data, rest) = rest.split_at(rest.len().min((*length).into()));
        input = rest;
        let nexus = &mut nexuses[usize::from(who & 1)];
        let lun = Lun(u16::from(where_and_how & 3));
        match who >> 1 {
            0x7f => drop(nexus.logical_unit_reset(lun)),
            0x7e => nexus.target_reset(false),
            0x7d => drop(nexus.clear_task_set(lun)),
            0x7b => nexus.clear_aca(lun),
            0x7c => *nexus = open("again"),
            _ => {
                let attribute = match where_and_how >> 2 & 3 {
                    0 => TaskAttribute::Simple,
                    1 => TaskAttribute::Ordered,
                    2 => TaskAttribute::HeadOfQueue,
                    _ => TaskAttribute::Aca,
                };
                let cdb = cdb(*row, bytes, data);
                let block_bytes = if kind & 1 == 0 { 512 } else { 4096 };
                // The transfer of a protected unit has more bytes than its blocks.
                let reads_back = lun == Lun(0) && kind >> 1 & 3 == 0;
                let block_bytes = reads_back.then_some(block_bytes);
                command(nexus, lun, (cdb, attribute), data, who & 2 != 0, block_bytes);
            }
        }
    }
});

/// Returns data that repeats a pattern and contains its position.
fn repeat(pattern: &[u8], length: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(length);
    if !pattern.is_empty() {
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern[at % pattern.len()] ^ (at / 512) as u8;
        }
    }
    buffer
}

fn command(
    nexus: &mut NexusHandle,
    lun: Lun,
    (cdb, attribute): (Cdb, TaskAttribute),
    data: &[u8],
    exact: bool,
    reads_back: Option<u64>,
) {
    let bytes = cdb.as_bytes().to_vec();
    let length = nexus.data_out_length(Some(lun), &cdb);
    assert!(length <= LARGEST_DATA, "{length} bytes for one command");
    let data_out = if exact { repeat(data, length) } else { repeat(data, data.len().min(length)) };
    let sent = data_out[..].to_vec();
    let request = Command { attribute, ..Command::with_data_out(cdb, data_out) };
    let completion = run(nexus, lun, request);
    assert_eq!(completion.status == Status::CheckCondition, completion.sense.is_some());
    assert!(completion.data_in.len() <= LARGEST_DATA);
    if let Some(sense) = &completion.sense {
        assert!(sense.to_bytes().len() >= 8);
        assert_eq!(completion.data_in.len(), 0, "data beside sense");
    }
    let big_endian = |range: std::ops::Range<usize>| {
        bytes[range].iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
    };
    // WRITE(10), (12), (16).
    let written = match bytes[0] {
        0x2a => Some((big_endian(2..6), big_endian(7..9))),
        0xaa => Some((big_endian(2..6), big_endian(6..10))),
        0x8a => Some((big_endian(2..10), big_endian(10..14))),
        _ => None,
    };
    let written = written.filter(|_| completion.status == Status::Good && exact);
    let (Some((lba, count)), Some(block_bytes)) = (written, reads_back) else { return };
    assert!(lba + count <= BLOCK_COUNT, "a write beyond the end was GOOD");
    assert_eq!(sent.len() as u64, count * block_bytes);
    let mut read = [0; 16];
    read[0] = 0x88;
    read[2..10].copy_from_slice(&lba.to_be_bytes());
    read[10..14].copy_from_slice(&(count as u32).to_be_bytes());
    let answer = loop {
        let answer = run(nexus, lun, Command::new(Cdb::new(&read)));
        // A unit attention that the write caused, such as a threshold that it passed.
        if answer.sense.as_ref().is_none_or(|sense| sense.key() != SenseKey::UnitAttention) {
            break answer;
        }
    };
    // A reservation may permit this nexus to write but not to read; ACA may be in force.
    if answer.status == Status::Good {
        assert_eq!(answer.data_in.into_buffer()[..], sent[..]);
    } else {
        assert!(matches!(answer.status, Status::AcaActive | Status::ReservationConflict));
    }
}

fn run(nexus: &mut NexusHandle, lun: Lun, command: Command) -> Completion {
    match nexus.execute(Some(lun), command) {
        Io::Ready(completion) => completion,
        Io::Pending(future) => poll(future),
    }
}

fn poll<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
    }
    panic!("something that nothing ends");
}
