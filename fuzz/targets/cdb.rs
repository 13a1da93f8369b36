//! The device server with arbitrary commands and data: each ends, within the limits, sense comes
//! with CHECK CONDITION alone, and what a GOOD write wrote is what a read gives.
#![no_main]

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use sarsen_block::{BlockSize, Buffer, Io, MemoryStore};
use sarsen_scsi::command_table::TABLE;
use sarsen_scsi::{
    Array, Cdb, Command, Completion, Host, Identity, InitiatorPort, LogicalUnit, Lun, NexusHandle,
    Status, TargetDevice, Work,
};

const BLOCK_COUNT: u64 = 256;
/// The device server takes and gives no more than this with one command.
const LARGEST_DATA: usize = 16 << 20;

/// A world in which nothing happens by chance.
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

fuzz_target!(|input: &[u8]| {
    let Some((&kind, mut input)) = input.split_first() else { return };
    let block_size = if kind & 1 == 0 { BlockSize::B512 } else { BlockSize::B4096 };
    let store = Arc::new(MemoryStore::new(block_size, BLOCK_COUNT));
    let unit = LogicalUnit::new(Identity::new("data", "fuzz"), store);
    let array = Array::new(Arc::new(StillHost));
    let luns = BTreeMap::from([(Lun(0), unit)]);
    let device = TargetDevice::new(&array, "iqn.2026-11.fuzz:t".into(), luns);
    let open = |name: &str| {
        let initiator = InitiatorPort { name: format!("iqn.2026-11.fuzz:{name},i,0x1") };
        device.open_nexus(initiator, 1).expect("the one port")
    };
    let mut nexuses = [open("one"), open("two")];
    while let [who, row, length, rest @ ..] = input {
        let (bytes, rest) = rest.split_at(rest.len().min(15));
        let (data, rest) = rest.split_at(rest.len().min((*length).into()));
        input = rest;
        let mut cdb = [0; 16];
        cdb[1..=bytes.len()].copy_from_slice(bytes);
        match TABLE.get(usize::from(*row)) {
            Some(row) => {
                cdb[0] = row.operation_code;
                if let Some(action) = row.service_action {
                    cdb[1] = cdb[1] & 0xe0 | action as u8;
                }
            }
            None => cdb[0] = *row,
        }
        let nexus = &mut nexuses[usize::from(who & 1)];
        match who >> 1 {
            0x7f => drop(nexus.logical_unit_reset(Lun(0))),
            0x7e => nexus.target_reset(false),
            0x7d => drop(nexus.clear_task_set(Lun(0))),
            0x7b => nexus.clear_aca(Lun(0)),
            0x7c => *nexus = open("again"),
            _ => command(nexus, &cdb, data, who & 2 != 0, block_size),
        }
    }
});

/// Data that repeats, and says where it is.
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
    bytes: &[u8; 16],
    data: &[u8],
    exact: bool,
    block_size: BlockSize,
) {
    let cdb = Cdb::new(bytes);
    let length = nexus.data_out_length(Some(Lun(0)), &cdb);
    assert!(length <= LARGEST_DATA, "{length} bytes for one command");
    let data_out = if exact { repeat(data, length) } else { repeat(data, data.len().min(length)) };
    let sent = data_out[..].to_vec();
    let completion = run(nexus, Command::with_data_out(cdb.clone(), data_out));
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
    let Some((lba, count)) = written.filter(|_| completion.status == Status::Good && exact) else {
        return;
    };
    assert!(lba + count <= BLOCK_COUNT, "a write beyond the end was GOOD");
    assert_eq!(sent.len() as u64, count * block_size.bytes() as u64);
    let mut read = [0; 16];
    read[0] = 0x88;
    read[2..10].copy_from_slice(&lba.to_be_bytes());
    read[10..14].copy_from_slice(&(count as u32).to_be_bytes());
    let answer = run(nexus, Command::new(Cdb::new(&read)));
    assert_eq!(answer.status, Status::Good);
    assert_eq!(answer.data_in.into_buffer()[..], sent[..]);
}

fn run(nexus: &mut NexusHandle, command: Command) -> Completion {
    match nexus.execute(Some(Lun(0)), command) {
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
