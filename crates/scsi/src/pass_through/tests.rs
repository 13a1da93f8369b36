//! A unit whose commands are passed to a real device: the forwarded commands, the responses, and the server's own ones.

use super::{Device, PassThrough, Passed, Transfer};
use crate::testing::*;
use crate::{Completion, Identity, LogicalUnit, Lun, Parts, Status};
use sarsen_block::{BlockSize, Buffer, Io};
use sarsen_volume::{self as volume, Volume};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// A device that records its requests and responds as the test specifies.
#[derive(Default)]
struct Recorder {
    asked: Mutex<Vec<(Vec<u8>, String)>>,
    answer: Mutex<Option<io::Result<Passed>>>,
}

impl PassThrough for Recorder {
    fn execute(&self, cdb: Vec<u8>, transfer: Transfer) -> Io<io::Result<Passed>> {
        let transfer = match transfer {
            Transfer::None => "none".into(),
            Transfer::In(length) => format!("in {length}"),
            Transfer::Out(data) => format!("out {:?}", &data[..]),
        };
        self.asked.lock().unwrap().push((cdb, transfer));
        let good = Passed { status: 0, data_in: Buffer::zeroed(0), sense: Vec::new() };
        Io::Ready(self.answer.lock().unwrap().take().unwrap_or(Ok(good)))
    }
}

fn fixture() -> (Arc<Recorder>, Fixture) {
    let device = Arc::new(Recorder::default());
    let store = Arc::new(TestStore::new(BlockSize::B512));
    let fixture = Fixture::of(store, Arc::default(), |parts| {
        parts.pass_through = Some(Device::new(device.clone()));
    });
    (device, fixture)
}

fn asked(device: &Recorder) -> Vec<(Vec<u8>, String)> {
    std::mem::take(&mut device.asked.lock().unwrap())
}

fn execute(fixture: &mut Fixture, cdb: &[u8], data_in: u64, data_out: &[u8]) -> Completion {
    let mut command = command(cdb, data_out);
    command.expected_data_out_length = Some(data_out.len() as u64);
    command.expected_data_in_length = data_in;
    block_on(fixture.nexus.execute(Some(Lun(0)), command))
}

#[test]
fn a_command_reaches_the_device_as_it_was_sent() {
    let (device, mut fixture) = fixture();
    assert!(asked(&device).is_empty(), "the unit attention of power on is our own");
    let variable = [0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 9, 0, 0, 0, 0, 0, 0];
    for (cdb, data_in, data_out, length, transfer) in [
        (&[0x00][..], 0, &[][..], 6, "none"),
        (&[0x12, 0, 0, 0, 36, 0], 36, &[], 6, "in 36"),
        (&[0x2a, 0, 0, 0, 0, 5, 0, 0, 1, 0], 0, &[1, 2, 3], 10, "out [1, 2, 3]"),
        (&[0xa8], 2048, &[], 12, "in 2048"),
        (&[0x88], 512, &[], 16, "in 512"),
        // Commands of a tape and of a vendor, which are not in the command table.
        (&[0x01], 0, &[], 6, "none"),
        (&[0xc1, 7], 8, &[], 10, "in 8"),
        (&variable, 0, &[], 16, "none"),
    ] {
        assert_eq!(execute(&mut fixture, cdb, data_in, data_out).status, Status::Good);
        let [(reached, how)] = &asked(&device)[..] else { panic!("{cdb:02x?} once") };
        assert_eq!((reached.len(), how.as_str()), (length, transfer), "{cdb:02x?}");
        assert_eq!(reached[..cdb.len()], *cdb);
    }
}

#[test]
fn device_response_is_passed_through_unchanged() {
    let (device, mut fixture) = fixture();
    let sense = vec![0x72, 0x0b, 0x47, 0x03, 0, 0, 0, 4, 0x80, 2, 1, 2];
    for status in [0x02, 0x18, 0x28, 0x00] {
        let passed = Passed { status, data_in: Buffer::copy_of(&[9; 4]), sense: sense.clone() };
        *device.answer.lock().unwrap() = Some(Ok(passed));
        let completion = execute(&mut fixture, &[0x12], 36, &[]);
        assert_eq!(completion.status as u8, status);
        assert_eq!(completion.raw_sense.as_deref(), Some(&sense[..]));
        assert!(completion.sense.is_none());
        assert_eq!(bytes(completion), [9; 4]);
    }
}

#[test]
fn a_failure_of_the_way_has_sense_data_of_ours() {
    let (device, mut fixture) = fixture();
    for (kind, key, code) in [
        (io::ErrorKind::TimedOut, 0x0b, 0x0000),
        (io::ErrorKind::InvalidInput, 0x05, 0x0e03),
        (io::ErrorKind::NotConnected, 0x04, 0x4400),
        (io::ErrorKind::Other, 0x04, 0x4400),
    ] {
        *device.answer.lock().unwrap() = Some(Err(kind.into()));
        let completion = execute(&mut fixture, &[0x00], 0, &[]);
        assert_eq!(additional(&completion), Some(code), "{kind}");
        assert_eq!(completion.sense.unwrap().to_bytes()[2], key);
    }
    *device.answer.lock().unwrap() = Some(Err(io::ErrorKind::ResourceBusy.into()));
    assert_eq!(execute(&mut fixture, &[0x00], 0, &[]).status, Status::Busy);
    let obsolete = Passed { status: 0x22, data_in: Buffer::zeroed(0), sense: Vec::new() };
    *device.answer.lock().unwrap() = Some(Ok(obsolete));
    assert_eq!(additional(&execute(&mut fixture, &[0x00], 0, &[])), Some(0x4400));
}

#[test]
fn the_list_of_units_and_unit_attentions_are_ours_and_come_first() {
    let (device, mut fixture) = fixture();
    let luns = execute(&mut fixture, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]);
    assert_eq!(bytes(luns).len(), 16);
    fixture.nexus.logical_unit_reset(Lun(0));
    assert_eq!(execute(&mut fixture, &[0x12], 36, &[]).status, Status::Good);
    assert_eq!(asked(&device).len(), 1, "INQUIRY, which tells no unit attention");
    assert_eq!(additional(&execute(&mut fixture, &[0x00], 0, &[])), Some(0x2903));
    fixture.nexus.logical_unit_reset(Lun(0));
    let sense = bytes(execute(&mut fixture, &[0x03, 0, 0, 0, 18, 0], 18, &[]));
    assert_eq!((sense[2], sense[12]), (6, 0x29));
    assert!(asked(&device).is_empty());
    execute(&mut fixture, &[0x03, 0, 0, 0, 18, 0], 18, &[]);
    assert_eq!(asked(&device).len(), 1, "and then the device's");
}

#[test]
fn transfers_are_bounded_and_whole_and_go_one_way() {
    const LIMIT: usize = 16 << 20;
    let (device, mut fixture) = fixture();
    let write = cdb(&[0x2a]);
    for (promised, taken) in [(0, 0), (700, 700), (LIMIT, LIMIT), (usize::MAX, LIMIT)] {
        let length = fixture.nexus.data_out_length_within(Some(Lun(0)), &write, promised);
        assert_eq!(length, taken);
    }
    assert_refused(&mut fixture, 5, 0, &[1; 4]);
    assert_refused(&mut fixture, 5, 0, &[]);
    assert_refused(&mut fixture, 4, 4, &[1; 4]);
    assert_refused(&mut fixture, 0, LIMIT as u64 + 1, &[]);
    assert!(asked(&device).is_empty());
}

/// Asserts that a WRITE(10) with these lengths fails with INVALID FIELD IN COMMAND INFORMATION UNIT.
fn assert_refused(
    fixture: &mut Fixture,
    expected_data_out: u64,
    expected_data_in: u64,
    data_out: &[u8],
) {
    let mut command = command(&[0x2a], data_out);
    command.expected_data_out_length = Some(expected_data_out);
    command.expected_data_in_length = expected_data_in;
    let completion = block_on(fixture.nexus.execute(Some(Lun(0)), command));
    assert_eq!(additional(&completion), Some(0x0e03));
}

#[test]
fn a_copy_that_could_reach_other_devices_of_the_host_does_not_reach_this_one() {
    let (device, mut fixture) = fixture();
    for operation_code in [0x83, 0x84] {
        let completion = execute(&mut fixture, &[operation_code], 0, &[]);
        assert_eq!(additional(&completion), Some(0x2000));
    }
    assert!(asked(&device).is_empty());
}

/// Records whether the device has been dropped, when it is dropped itself.
struct Companion(Weak<Recorder>, Arc<AtomicBool>);

impl Drop for Companion {
    fn drop(&mut self) {
        self.1.store(self.0.strong_count() == 0, Ordering::Relaxed);
    }
}

/// The end of a volume says that its device can be opened again.
#[test]
fn a_volume_ends_after_the_device_of_its_unit() {
    let device = Arc::new(Recorder::default());
    let is_after = Arc::new(AtomicBool::new(false));
    let companion = Companion(Arc::downgrade(&device), is_after.clone());
    let store = Arc::new(TestStore::new(BlockSize::B512));
    let volume = Volume::open(volume::Parts {
        companion: Some(Box::new(companion)),
        ..volume::Parts::new("data", store)
    });
    let parts = Parts {
        pass_through: Some(Device::new(device)),
        ..Parts::disk(Identity::new("data", "scope"), volume.unwrap())
    };
    drop(LogicalUnit::of_parts(parts).unwrap());
    assert!(is_after.load(Ordering::Relaxed));
}
