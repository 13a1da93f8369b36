//! PERSISTENT RESERVE IN and OUT, and the commands that reservations permit.

use crate::testing::{
    Fixture, TestMetadataStore, TestParts, TestStore, additional, bytes, open, run,
};
use crate::{
    Completion, FieldPointer, InitiatorPort, Lun, NexusHandle, Sense, Status, TargetDevice,
    TargetPort, UnitAttention,
};
use sarsen_block::BlockSize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;

const WRITE_EXCLUSIVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
const EXCLUSIVE_ACCESS_REGISTRANTS: u8 = 6;
const WRITE_EXCLUSIVE_ALL: u8 = 7;
const EXCLUSIVE_ACCESS_ALL: u8 = 8;

const SPEC_I_PT: u8 = 8;
const ALL_TG_PT: u8 = 4;
const APTPL: u8 = 1;

/// Three initiators of one unit, and a fourth one without a registration.
struct Cluster {
    fixture: Fixture,
    nexuses: [NexusHandle; 4],
}

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const ONLOOKER: usize = 3;

fn port(index: usize) -> String {
    format!("iqn.2026-01.example:node{index},i,0x00000000000{index}")
}

impl Cluster {
    fn new() -> Self {
        Self::of(Fixture::new())
    }

    fn of(fixture: Fixture) -> Self {
        let nexuses = [A, B, C, ONLOOKER].map(|index| {
            let mut nexus = session(&fixture, index);
            assert_eq!(additional(&run(&mut nexus, &[0], &[])), Some(0x2900));
            nexus
        });
        Self { fixture, nexuses }
    }

    /// Returns the same volume after a restart of the program.
    fn restarted(&self) -> Self {
        let (store, metadata) = (self.fixture.store.clone(), self.fixture.metadata.clone());
        Self::of(Fixture::of(store, metadata, |_| {}))
    }

    fn run(&mut self, who: usize, cdb: &[u8], data_out: &[u8]) -> Completion {
        run(&mut self.nexuses[who], cdb, data_out)
    }

    fn out(&mut self, who: usize, action: u8, kind: u8, list: &[u8]) -> Completion {
        let length = (list.len() as u32).to_be_bytes();
        let cdb = [&[0x5f, action, kind, 0, 0], &length[..], &[0]].concat();
        self.run(who, &cdb, list)
    }

    /// Executes a service action with the basic list. Returns its status.
    fn ask(&mut self, who: usize, action: u8, kind: u8, key: u64, other: u64) -> Status {
        self.out(who, action, kind, &list(key, other, 0)).status
    }

    #[track_caller]
    fn done(&mut self, who: usize, action: u8, kind: u8, key: u64, other: u64) {
        assert_eq!(self.ask(who, action, kind, key, other), Status::Good);
    }

    /// Registers the key of each of these nexuses.
    fn register(&mut self, all: &[usize]) {
        for &who in all {
            self.done(who, REGISTER, 0, 0, key(who));
        }
    }

    fn read(&mut self, who: usize, action: u8) -> Vec<u8> {
        let completion = self.run(who, &[0x5e, action, 0, 0, 0, 0, 0, 0x20, 0, 0], &[]);
        assert_eq!(completion.status, Status::Good);
        bytes(completion)
    }

    fn generation(&mut self) -> u32 {
        u32::from_be_bytes(self.read(ONLOOKER, 0)[..4].try_into().unwrap())
    }

    fn keys(&mut self) -> Vec<u64> {
        let data = self.read(ONLOOKER, 0);
        assert_eq!(data[4..8], (data.len() as u32 - 8).to_be_bytes());
        data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
    }

    /// Returns the key and the type.
    fn reservation(&mut self) -> Option<(u64, u8)> {
        let data = self.read(ONLOOKER, 1);
        match data[7] {
            0 => None,
            length => {
                assert_eq!((length, data.len()), (16, 24));
                Some((u64::from_be_bytes(data[8..16].try_into().unwrap()), data[21]))
            }
        }
    }

    fn may_read(&mut self, who: usize) -> bool {
        self.passes(who, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[])
    }

    fn may_write(&mut self, who: usize) -> bool {
        self.passes(who, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512])
    }

    #[track_caller]
    fn passes(&mut self, who: usize, cdb: &[u8], data_out: &[u8]) -> bool {
        match self.run(who, cdb, data_out).status {
            Status::ReservationConflict => false,
            Status::Good => true,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the pending unit attentions of a nexus.
    fn reported(&mut self, who: usize) -> Vec<u16> {
        std::iter::from_fn(|| additional(&self.run(who, &[0], &[]))).collect()
    }
}

fn session(fixture: &Fixture, index: usize) -> NexusHandle {
    let device = &fixture.device;
    device.open_nexus(InitiatorPort::new(port(index)), 1).expect("port 1")
}

fn key(who: usize) -> u64 {
    0x1111_0000_0000_0000 + who as u64
}

fn list(key: u64, other: u64, flags: u8) -> Vec<u8> {
    [&key.to_be_bytes()[..], &other.to_be_bytes(), &[0, 0, 0, 0, flags, 0, 0, 0]].concat()
}

fn transport_id(format: u8, name: &str) -> Vec<u8> {
    let length = (name.len() + 1).next_multiple_of(4).max(20);
    let mut id = vec![format << 6 | 5, 0, 0, length as u8];
    id.extend_from_slice(name.as_bytes());
    id.resize(4 + length, 0);
    id
}

fn with_ids(key: u64, other: u64, flags: u8, ids: &[Vec<u8>]) -> Vec<u8> {
    let ids = ids.concat();
    [list(key, other, flags | SPEC_I_PT), (ids.len() as u32).to_be_bytes().to_vec(), ids].concat()
}

fn move_list(key: u64, new_key: u64, flags: u8, target_port: u16, id: &[u8]) -> Vec<u8> {
    let mut bytes = [key.to_be_bytes(), new_key.to_be_bytes()].concat();
    bytes.extend_from_slice(&[0, flags]);
    bytes.extend_from_slice(&target_port.to_be_bytes());
    bytes.extend_from_slice(&(id.len() as u32).to_be_bytes());
    [&bytes, id].concat()
}

#[track_caller]
fn refused_at(completion: &Completion, code: u16, byte: u16, bit: Option<u8>) {
    let sense = completion.sense.as_ref().expect("a CHECK CONDITION");
    assert_eq!(sense.additional().0, code);
    let in_cdb = code == 0x2400;
    assert_eq!(sense.field(), Some(FieldPointer { byte, bit, in_cdb }));
}

const PREEMPTED: u16 = 0x2a03;
const RELEASED: u16 = 0x2a04;
const REGISTRATIONS_PREEMPTED: u16 = 0x2a05;

#[test]
fn spc4_5_12_7_registering_by_table_67() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.ask(A, REGISTER, 0, 5, 6), Status::ReservationConflict);
    cluster.done(A, REGISTER, 0, 0, 0);
    assert_eq!((cluster.keys(), cluster.generation()), (vec![], 0), "nothing was done");

    cluster.done(A, REGISTER, 0, 0, 5);
    assert_eq!((cluster.keys(), cluster.generation()), (vec![5], 1));
    assert_eq!(cluster.ask(A, REGISTER, 0, 0, 6), Status::ReservationConflict);
    assert_eq!(cluster.ask(A, REGISTER, 0, 6, 7), Status::ReservationConflict);
    cluster.done(A, REGISTER, 0, 5, 6);
    cluster.done(B, REGISTER, 0, 0, 6);
    assert_eq!((cluster.keys(), cluster.generation()), (vec![6, 6], 3), "keys may be alike");
    cluster.done(A, REGISTER, 0, 6, 0);
    assert_eq!((cluster.keys(), cluster.generation()), (vec![6], 4));
}

#[test]
fn spc4_5_12_7_registering_and_ignoring_by_table_68() {
    let mut cluster = Cluster::new();
    cluster.done(A, REGISTER_AND_IGNORE, 0, 99, 0);
    assert_eq!(cluster.generation(), 0);
    cluster.done(A, REGISTER_AND_IGNORE, 0, 99, 5);
    cluster.done(A, REGISTER_AND_IGNORE, 0, 98, 6);
    assert_eq!((cluster.keys(), cluster.generation()), (vec![6], 2));
    cluster.done(A, REGISTER_AND_IGNORE, 0, 97, 0);
    assert_eq!((cluster.keys(), cluster.generation()), (vec![], 3));
}

#[test]
fn spc4_6_16_3_specified_initiator_ports_are_registered_all_or_none() {
    let mut cluster = Cluster::new();
    let elsewhere = "iqn.2026-01.example:elsewhere,i,0x00023d000001";
    let ids = [transport_id(1, &port(B)), transport_id(1, elsewhere)];
    let register = with_ids(0, 9, 0, &ids);
    assert_eq!(cluster.out(A, REGISTER, 0, &register).status, Status::Good);
    assert_eq!((cluster.keys(), cluster.generation()), (vec![9, 9, 9], 1));

    // Table 67: rejected from a registered nexus, and for a registered nexus.
    refused_at(&cluster.out(A, REGISTER, 0, &with_ids(9, 9, 0, &ids)), 0x2600, 20, Some(3));
    let of_b = with_ids(0, 9, 0, &[transport_id(1, "iqn.x:y,i,0x1"), transport_id(1, &port(B))]);
    refused_at(&cluster.out(C, REGISTER, 0, &of_b), 0x2600, 28, None);
    refused_at(&cluster.out(C, REGISTER_AND_IGNORE, 0, &register), 0x2600, 20, Some(3));
    assert_eq!(cluster.keys().len(), 3);

    // All known ports of a device; then an unknown device.
    cluster.done(A, CLEAR, 0, 9, 0);
    let (device, _) = cluster_device(C);
    let all_ports = with_ids(0, 8, ALL_TG_PT, &[transport_id(0, &device)]);
    assert_eq!(cluster.out(A, REGISTER, 0, &all_ports).status, Status::Good);
    assert_eq!(cluster.keys(), [8, 8]);
    cluster.done(A, CLEAR, 0, 8, 0);
    let unknown = with_ids(0, 8, 0, &[transport_id(0, "iqn.2026-01.example:nobody")]);
    refused_at(&cluster.out(A, REGISTER, 0, &unknown), 0x2600, 32, None);
    assert!(cluster.keys().is_empty());
}

#[test]
fn spc4_6_16_3_all_target_ports_are_registered_as_if_each_had_been_asked() {
    let fixture = Fixture::new();
    let name = "iqn.2026-01.example:two";
    let ports = [1, 2].map(|tag| TargetPort::of_portal_group(name, tag)).into();
    let luns = BTreeMap::from([(Lun(0), fixture.unit.clone())]);
    let device = TargetDevice::with_ports(&fixture.array, name.into(), luns, ports);
    let mut cluster = Cluster::of(fixture);
    for (who, target_port) in [(A, 1), (B, 2)] {
        let name = port(A);
        let nexus = device.open_nexus(InitiatorPort::new(name), target_port);
        cluster.nexuses[who] = nexus.expect("there is such a port");
        cluster.reported(who);
    }
    assert_eq!(cluster.out(A, REGISTER, 0, &list(0, 5, ALL_TG_PT)).status, Status::Good);
    assert_eq!((cluster.keys(), cluster.generation()), (vec![5, 5], 1));
    cluster.done(B, RESERVE, WRITE_EXCLUSIVE, 5, 0);
    assert!(!cluster.may_write(A), "another nexus holds it");
    assert_eq!(cluster.read(C, 3)[26..28], [0, 1]);
    cluster.done(B, REGISTER, 0, 5, 6);
    let all = |key, new_key| list(key, new_key, ALL_TG_PT);
    assert_eq!(cluster.out(A, REGISTER, 0, &all(5, 7)).status, Status::ReservationConflict);
    assert_eq!(cluster.out(A, REGISTER_AND_IGNORE, 0, &all(0, 7)).status, Status::Good);
    assert_eq!(cluster.reservation(), Some((7, WRITE_EXCLUSIVE)));
    // The reservation moves to the other port of another initiator.
    let to = move_list(7, 8, 0, 1, &transport_id(1, &port(C)));
    assert_eq!(cluster.out(B, REGISTER_AND_MOVE, 0, &to).status, Status::Good);
    assert_eq!(cluster.reservation(), Some((8, WRITE_EXCLUSIVE)));
    assert!(cluster.may_write(C));
    assert_eq!(cluster.out(A, REGISTER, 0, &all(7, 0)).status, Status::Good);
    assert_eq!(cluster.keys(), [8]);
}

fn cluster_device(index: usize) -> (String, String) {
    let port = port(index);
    let (device, isid) = port.split_once(",i,").unwrap();
    (device.to_owned(), isid.to_owned())
}

#[test]
fn spc4_6_16_1_lists_of_a_wrong_length_are_refused() {
    let mut cluster = Cluster::new();
    let basic = list(0, 5, 0);
    for length in [0, 1, 23] {
        for action in 0..=8 {
            let completion = cluster.out(A, action, WRITE_EXCLUSIVE, &basic[..length]);
            assert_eq!(additional(&completion), Some(0x1a00), "{action} {length}");
        }
    }
    let longer = [&basic[..], &[0]].concat();
    for action in [REGISTER, RESERVE, RELEASE, CLEAR, PREEMPT, REGISTER_AND_IGNORE, 8] {
        let completion = cluster.out(A, action, WRITE_EXCLUSIVE, &longer);
        assert_eq!(additional(&completion), Some(0x1a00), "{action}");
    }
    let whole = with_ids(0, 5, 0, &[transport_id(1, &port(B))]);
    for length in 25..whole.len() {
        let mut cut = whole[..length].to_vec();
        assert_eq!(additional(&cluster.out(A, REGISTER, 0, &cut)), Some(0x1a00), "{length}");
        if length >= 29 {
            // The length of the list is correct, but a TransportID is truncated.
            cut[24..28].copy_from_slice(&((length - 28) as u32).to_be_bytes());
            assert_eq!(additional(&cluster.out(A, REGISTER, 0, &cut)), Some(0x1a00), "{length}");
        }
    }
    let huge = [0x5f, REGISTER, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0];
    assert_eq!(additional(&cluster.run(A, &huge, &basic)), Some(0x1a00));
    assert!(cluster.keys().is_empty());
}

#[test]
fn spc4_5_12_7_registrations_have_a_limit() {
    let mut cluster = Cluster::new();
    let most = with_ids(0, 5, 0, &transport_ids(0..511));
    assert_eq!(cluster.out(A, REGISTER, 0, &most).status, Status::Good);
    assert_eq!(cluster.keys().len(), 512);
    let completion = cluster.out(B, REGISTER, 0, &list(0, 6, 0));
    assert_eq!(additional(&completion), Some(0x5504));
    cluster.done(A, REGISTER, 0, 5, 0);
    let two = with_ids(0, 6, 0, &transport_ids(600..601));
    assert_eq!(additional(&cluster.out(B, REGISTER, 0, &two)), Some(0x5504));
    assert_eq!(cluster.keys(), [5; 511], "none of them");
    cluster.done(B, REGISTER, 0, 0, 6);
}

/// Returns one TransportID for each number.
fn transport_ids(numbers: Range<usize>) -> Vec<Vec<u8>> {
    numbers.map(|number| transport_id(1, &format!("iqn.2026-01.example:{number},i,0x1"))).collect()
}

#[test]
fn spc4_5_12_1_each_reservation_type_permits_its_holders() {
    // Type; whether a registrant and an unregistered nexus may read and write.
    for (kind, registrant, stranger) in [
        (WRITE_EXCLUSIVE, (true, false), (true, false)),
        (EXCLUSIVE_ACCESS, (false, false), (false, false)),
        (WRITE_EXCLUSIVE_REGISTRANTS, (true, true), (true, false)),
        (EXCLUSIVE_ACCESS_REGISTRANTS, (true, true), (false, false)),
        (WRITE_EXCLUSIVE_ALL, (true, true), (true, false)),
        (EXCLUSIVE_ACCESS_ALL, (true, true), (false, false)),
    ] {
        let mut cluster = Cluster::new();
        cluster.register(&[A, B]);
        cluster.done(A, RESERVE, kind, key(A), 0);
        assert_eq!((cluster.may_read(A), cluster.may_write(A)), (true, true), "{kind}");
        assert_eq!((cluster.may_read(B), cluster.may_write(B)), registrant, "{kind}");
        assert_eq!((cluster.may_read(C), cluster.may_write(C)), stranger, "{kind}");
        let holder = if kind >= WRITE_EXCLUSIVE_ALL { 0 } else { key(A) };
        assert_eq!(cluster.reservation(), Some((holder, kind)));
        // The reservation also applies to a later session.
        let mut late = session(&cluster.fixture, 4);
        assert_eq!(additional(&run(&mut late, &[0], &[])), Some(0x2900));
        let write = run(&mut late, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]);
        assert_eq!(write.status, Status::ReservationConflict);
        cluster.done(A, RELEASE, kind, key(A), 0);
        assert!(cluster.reservation().is_none());
        assert_eq!(cluster.generation(), 2, "reserving and releasing do not count");
    }
}

#[test]
fn spc4_table_65_and_sbc3_table_13_permitted_commands() {
    let passes_all: &[&[u8]] = &[
        &[0x00],
        &[0x12, 0, 0, 0, 36],
        &[0x03, 0, 0, 0, 18],
        &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16],
        &[0x25],
        &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32],
        &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8],
        &[0x1b, 0, 0, 0, 1],
        &[0x1e],
    ];
    let passes_write_exclusive: &[&[u8]] = &[
        &[0x1a, 0, 0x0a, 0, 255],
        &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4],
        &[0x2f],
        &[0x34],
        &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24],
    ];
    let conflicts: &[&[u8]] = &[
        &[0x35],
        &[0x1b, 0, 0, 0, 0],
        &[0x1b, 0, 0, 0, 0x11],
        &[0x1e, 0, 0, 0, 1],
        &[0x42],
        &[0x15],
        &[0x16],
        &[0x17],
        &[0x41, 0, 0, 0, 0, 0, 0, 0, 1],
    ];
    let mut cluster = Cluster::new();
    cluster.register(&[A]);
    for kind in [WRITE_EXCLUSIVE, EXCLUSIVE_ACCESS] {
        cluster.done(A, RESERVE, kind, key(A), 0);
        for cdb in passes_all {
            assert!(cluster.passes(B, cdb, &[]), "{cdb:x?}");
        }
        for cdb in passes_write_exclusive {
            assert_eq!(cluster.passes(B, cdb, &[]), kind == WRITE_EXCLUSIVE, "{cdb:x?}");
        }
        for cdb in conflicts {
            assert!(!cluster.passes(B, cdb, &[]), "{cdb:x?}");
        }
        cluster.done(A, RELEASE, kind, key(A), 0);
    }
}

#[test]
fn spc4_5_12_9_reserving() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.ask(A, RESERVE, WRITE_EXCLUSIVE, 0, 0), Status::ReservationConflict);
    cluster.register(&[A, B]);
    assert_eq!(cluster.ask(A, RESERVE, WRITE_EXCLUSIVE, 4, 0), Status::ReservationConflict);
    for (kind, bit) in [(0, 3), (2, 3), (4, 3), (9, 3), (15, 3), (0x11, 7), (0x21, 7)] {
        let completion = cluster.out(A, RESERVE, kind, &list(key(A), 0, 0));
        refused_at(&completion, 0x2400, 2, Some(bit));
        // The key is checked first.
        assert_eq!(cluster.ask(A, RESERVE, kind, 4, 0), Status::ReservationConflict);
    }
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE, key(A), 0);
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE, key(A), 0);
    let other_type = cluster.ask(A, RESERVE, EXCLUSIVE_ACCESS, key(A), 0);
    assert_eq!(other_type, Status::ReservationConflict);
    assert_eq!(cluster.ask(B, RESERVE, WRITE_EXCLUSIVE, key(B), 0), Status::ReservationConflict);
    cluster.done(A, RELEASE, WRITE_EXCLUSIVE, key(A), 0);
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE_ALL, key(A), 0);
    cluster.done(B, RESERVE, WRITE_EXCLUSIVE_ALL, key(B), 0);
}

#[test]
fn spc4_5_12_11_2_2_releasing() {
    let mut cluster = Cluster::new();
    cluster.register(&[A, B, C]);
    cluster.done(A, RELEASE, WRITE_EXCLUSIVE, key(A), 0);
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE_REGISTRANTS, key(A), 0);
    cluster.done(B, RELEASE, WRITE_EXCLUSIVE_REGISTRANTS, key(B), 0);
    assert_eq!(cluster.ask(A, RELEASE, WRITE_EXCLUSIVE, 4, 0), Status::ReservationConflict);
    let wrong = cluster.out(A, RELEASE, WRITE_EXCLUSIVE, &list(key(A), 0, 0));
    assert_eq!(additional(&wrong), Some(0x2604));
    assert!(cluster.reservation().is_some());
    cluster.done(A, RELEASE, WRITE_EXCLUSIVE_REGISTRANTS, key(A), 0);
    assert_eq!(
        (cluster.reported(A), cluster.reported(B), cluster.reported(C)),
        (vec![], vec![RELEASED], vec![RELEASED])
    );
    // Types without access for other registrants cause no unit attention.
    cluster.done(A, RESERVE, EXCLUSIVE_ACCESS, key(A), 0);
    cluster.done(A, RELEASE, EXCLUSIVE_ACCESS, key(A), 0);
    assert!(cluster.reported(B).is_empty());
    // Each registrant may release an all registrants reservation.
    cluster.done(A, RESERVE, EXCLUSIVE_ACCESS_ALL, key(A), 0);
    cluster.done(B, RELEASE, EXCLUSIVE_ACCESS_ALL, key(B), 0);
    assert_eq!((cluster.reported(A), cluster.reported(C)), (vec![RELEASED], vec![RELEASED]));
}

#[test]
fn spc4_5_12_11_2_3_a_holder_that_unregisters_releases() {
    for (kind, reported) in [
        (WRITE_EXCLUSIVE, vec![]),
        (EXCLUSIVE_ACCESS, vec![]),
        (WRITE_EXCLUSIVE_REGISTRANTS, vec![RELEASED]),
        (EXCLUSIVE_ACCESS_REGISTRANTS, vec![RELEASED]),
    ] {
        let mut cluster = Cluster::new();
        cluster.register(&[A, B]);
        cluster.done(A, RESERVE, kind, key(A), 0);
        cluster.done(A, REGISTER, 0, key(A), 0);
        assert!(cluster.reservation().is_none());
        assert_eq!(cluster.reported(B), reported, "{kind}");
        assert!(cluster.may_write(C));
    }
    let mut cluster = Cluster::new();
    cluster.register(&[A, B]);
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE_ALL, key(A), 0);
    cluster.done(A, REGISTER, 0, key(A), 0);
    assert_eq!(cluster.reservation(), Some((0, WRITE_EXCLUSIVE_ALL)), "another is left");
    assert!(!cluster.may_write(A));
    cluster.done(B, REGISTER, 0, key(B), 0);
    assert!(cluster.reservation().is_none());
    assert!(cluster.reported(B).is_empty());
}

#[test]
fn spc4_5_12_11_2_4_3_preempting_the_holder() {
    let mut cluster = Cluster::new();
    cluster.register(&[A, B, C]);
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE_REGISTRANTS, key(A), 0);
    let bad = cluster.out(B, PREEMPT, 2, &list(key(B), key(A), 0));
    refused_at(&bad, 0x2400, 2, Some(3));
    cluster.done(B, PREEMPT, WRITE_EXCLUSIVE_REGISTRANTS, key(B), key(A));
    assert_eq!(cluster.reservation(), Some((key(B), WRITE_EXCLUSIVE_REGISTRANTS)));
    assert_eq!((cluster.keys(), cluster.generation()), (vec![key(B), key(C)], 4));
    assert_eq!(cluster.reported(A), [REGISTRATIONS_PREEMPTED]);
    assert!(cluster.reported(C).is_empty(), "the type is the same");
    assert!(!cluster.may_write(A));

    cluster.done(B, PREEMPT, EXCLUSIVE_ACCESS, key(B), key(B));
    assert_eq!(cluster.reservation(), Some((key(B), EXCLUSIVE_ACCESS)), "a holder by itself");
    assert_eq!((cluster.reported(B), cluster.reported(C)), (vec![], vec![RELEASED]));
    let zero = cluster.out(C, PREEMPT, EXCLUSIVE_ACCESS, &list(key(C), 0, 0));
    refused_at(&zero, 0x2600, 8, None);
}

#[test]
fn spc4_5_12_11_2_5_preempting_removes_registrations() {
    let mut cluster = Cluster::new();
    cluster.register(&[A, B, C]);
    assert_eq!(cluster.ask(A, PREEMPT, 0, key(A), 77), Status::ReservationConflict);
    assert_eq!(cluster.ask(A, PREEMPT, 0, key(A), 0), Status::ReservationConflict);
    assert_eq!(cluster.ask(A, PREEMPT, 0, 77, key(B)), Status::ReservationConflict);
    // SCOPE and TYPE are not checked.
    cluster.done(A, PREEMPT, 0xff, key(A), key(B));
    assert_eq!(cluster.keys(), [key(A), key(C)]);
    assert_eq!(
        (cluster.reported(A), cluster.reported(B), cluster.reported(C)),
        (vec![], vec![REGISTRATIONS_PREEMPTED], vec![])
    );
    // A nexus preempts its own registration, without a unit attention. The reservation of another nexus stays.
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE, key(A), 0);
    cluster.done(C, PREEMPT, 0, key(C), key(C));
    assert!(cluster.reported(C).is_empty());
    assert_eq!((cluster.keys(), cluster.reservation()), (vec![key(A)], Some((key(A), 1))));
}

#[test]
fn spc4_5_12_11_2_4_all_registrants_are_preempted_by_zero() {
    let mut cluster = Cluster::new();
    cluster.register(&[A, B, C]);
    cluster.done(A, RESERVE, EXCLUSIVE_ACCESS_ALL, key(A), 0);
    cluster.done(B, PREEMPT, 0, key(B), key(A));
    assert_eq!(cluster.reservation(), Some((0, EXCLUSIVE_ACCESS_ALL)), "removed, not preempted");
    cluster.done(B, PREEMPT, EXCLUSIVE_ACCESS, key(B), 0);
    assert_eq!((cluster.keys(), cluster.reservation()), (vec![key(B)], Some((key(B), 3))));
    assert_eq!(
        (cluster.reported(A), cluster.reported(C)),
        (vec![REGISTRATIONS_PREEMPTED], vec![REGISTRATIONS_PREEMPTED])
    );
    // The last registration is removed, and with it the all registrants reservation.
    cluster.done(B, RELEASE, EXCLUSIVE_ACCESS, key(B), 0);
    cluster.done(B, RESERVE, EXCLUSIVE_ACCESS_ALL, key(B), 0);
    cluster.done(B, PREEMPT, 0, key(B), key(B));
    assert_eq!((cluster.keys(), cluster.reservation()), (vec![], None));
}

#[test]
fn spc4_5_12_11_2_6_preempting_and_aborting_names_whose_tasks_end() {
    let mut cluster = Cluster::new();
    cluster.register(&[A, B, C]);
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE, key(A), 0);
    let preempt = list(key(C), key(A), 0);
    let completion = cluster.out(C, PREEMPT_AND_ABORT, WRITE_EXCLUSIVE, &preempt);
    assert_eq!(completion.status, Status::Good);
    let abort = completion.abort.expect("tasks end");
    assert_eq!((abort.nexuses, abort.answered), (vec![cluster.nexuses[A].id()], false));
    let completion = cluster.out(C, PREEMPT_AND_ABORT, WRITE_EXCLUSIVE, &list(key(C), 4, 0));
    assert_eq!((completion.status, completion.abort), (Status::ReservationConflict, None));
    assert!(cluster.out(C, PREEMPT, 0, &list(key(C), key(B), 0)).abort.is_none());
}

#[test]
fn spc4_5_12_11_2_7_clearing() {
    let mut cluster = Cluster::new();
    cluster.register(&[A, B]);
    cluster.done(A, RESERVE, EXCLUSIVE_ACCESS, key(A), 0);
    assert_eq!(cluster.ask(C, CLEAR, 0, 0, 0), Status::ReservationConflict);
    cluster.done(B, CLEAR, 0xff, key(B), 0);
    assert_eq!((cluster.keys(), cluster.reservation()), (vec![], None));
    assert_eq!(cluster.generation(), 3);
    assert_eq!(
        (cluster.reported(A), cluster.reported(B), cluster.reported(C)),
        (vec![PREEMPTED], vec![], vec![])
    );
}

#[test]
fn spc4_5_12_8_registering_and_moving() {
    let mut cluster = Cluster::new();
    let to_b = transport_id(1, &port(B));
    let ask =
        |cluster: &mut Cluster, who, list: &[u8]| cluster.out(who, REGISTER_AND_MOVE, 0, list);
    let unregistered = ask(&mut cluster, A, &move_list(0, 5, 0, 1, &to_b));
    assert_eq!(unregistered.status, Status::ReservationConflict);
    cluster.register(&[A, C]);
    let whole = move_list(key(A), 5, 0, 1, &to_b);
    refused_at(&ask(&mut cluster, A, &whole), 0x2400, 1, Some(4));
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE_ALL, key(A), 0);
    assert_eq!(ask(&mut cluster, A, &whole).status, Status::ReservationConflict);
    cluster.done(A, RELEASE, WRITE_EXCLUSIVE_ALL, key(A), 0);
    cluster.reported(C);
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE, key(A), 0);
    for (list, byte) in [
        (move_list(key(A), 0, 0, 1, &to_b), 8),
        (move_list(key(A), 5, 0, 2, &to_b), 18),
        (move_list(key(A), 5, 0, 1, &transport_id(1, &port(A))), 24),
        (move_list(key(A), 5, 0, 1, &transport_id(0, "iqn.2026-01.example:nobody")), 28),
        (move_list(key(A), 5, 0, 1, &[&to_b[..], &to_b].concat()), 20),
        (move_list(key(A), 5, 0, 1, &[&[0x46], &to_b[1..]].concat()), 24),
    ] {
        refused_at(&ask(&mut cluster, A, &list), 0x2600, byte, None);
    }
    for length in 24..whole.len() {
        let mut cut = whole[..length].to_vec();
        assert_eq!(additional(&ask(&mut cluster, A, &cut)), Some(0x1a00));
        cut[20..24].copy_from_slice(&((length - 24) as u32).to_be_bytes());
        assert_eq!(additional(&ask(&mut cluster, A, &cut)), Some(0x1a00));
    }
    let not_the_holder = ask(&mut cluster, C, &move_list(key(C), 5, 0, 1, &to_b));
    assert_eq!(not_the_holder.status, Status::ReservationConflict);

    let generation = cluster.generation();
    assert_eq!(ask(&mut cluster, A, &whole).status, Status::Good);
    assert_eq!(cluster.generation(), generation + 1);
    assert_eq!((cluster.keys(), cluster.reservation()), (vec![key(A), key(C), 5], Some((5, 1))));
    assert!(cluster.may_write(B) && !cluster.may_write(A));
    // Moves it back and unregisters. The TransportID contains only the device name.
    let (device, _) = cluster_device(A);
    let back = move_list(5, 6, 2, 1, &transport_id(0, &device));
    assert_eq!(ask(&mut cluster, B, &back).status, Status::Good);
    assert_eq!((cluster.keys(), cluster.reservation()), (vec![6, key(C)], Some((6, 1))));
    assert!(cluster.reported(B).is_empty());
}

#[test]
fn spc4_5_12_11_3_nothing_is_ever_lost() {
    let mut cluster = Cluster::new();
    let completion = cluster.out(A, 8, WRITE_EXCLUSIVE, &list(0, 5, 0));
    assert_eq!(additional(&completion), Some(0x2604));
    refused_at(&cluster.out(A, 9, WRITE_EXCLUSIVE, &list(0, 5, 0)), 0x2400, 1, Some(4));
}

#[test]
fn spc4_6_15_4_capabilities_are_true() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.read(A, 2), [0, 8, 0x9d, 0xc0, 0xea, 0x01, 0, 0]);
    assert_eq!(cluster.out(A, REGISTER, 0, &list(0, 5, APTPL)).status, Status::Good);
    assert_eq!(cluster.read(A, 2), [0, 8, 0x9d, 0xc1, 0xea, 0x01, 0, 0]);

    let store = Arc::new(TestStore::new(BlockSize::B512));
    let nothing_kept = |parts: &mut TestParts| parts.metadata = None;
    let mut cluster = Cluster::of(Fixture::of(store, Arc::default(), nothing_kept));
    assert_eq!(cluster.read(A, 2), [0, 8, 0x9c, 0xc0, 0xea, 0x01, 0, 0]);
    for action in [REGISTER, REGISTER_AND_IGNORE] {
        refused_at(&cluster.out(A, action, 0, &list(0, 5, APTPL)), 0x2600, 20, Some(0));
    }
    let to = move_list(5, 5, APTPL, 1, &transport_id(1, &port(B)));
    refused_at(&cluster.out(A, REGISTER_AND_MOVE, 0, &to), 0x2600, 17, Some(0));
    assert!(cluster.keys().is_empty());
}

#[test]
fn spc4_6_15_5_full_status() {
    let mut cluster = Cluster::new();
    cluster.register(&[A, B]);
    cluster.done(B, RESERVE, EXCLUSIVE_ACCESS, key(B), 0);
    let data = cluster.read(C, 3);
    let mut expected = vec![0, 0, 0, 2];
    expected.extend_from_slice(&(data.len() as u32 - 8).to_be_bytes());
    for (who, flags, scope_and_type) in [(A, 0, 0), (B, 1, EXCLUSIVE_ACCESS)] {
        let id = transport_id(1, &port(who));
        expected.extend_from_slice(&key(who).to_be_bytes());
        expected.extend_from_slice(&[0, 0, 0, 0, flags, scope_and_type, 0, 0, 0, 0, 0, 1]);
        expected.extend_from_slice(&(id.len() as u32).to_be_bytes());
        expected.extend_from_slice(&id);
    }
    assert_eq!(data, expected);
    // The reported lengths do not depend on the allocation length.
    let cut = bytes(cluster.run(A, &[0x5e, 3, 0, 0, 0, 0, 0, 0, 8, 0], &[]));
    assert_eq!(cut, expected[..8]);
}

#[test]
fn spc4_5_12_5_a_registration_outlives_its_session_and_resets() {
    let mut cluster = Cluster::new();
    cluster.register(&[A, B]);
    cluster.done(B, RESERVE, WRITE_EXCLUSIVE, key(B), 0);
    cluster.nexuses[B] = open(&cluster.fixture.device, "stranger");
    assert_eq!(cluster.keys(), [key(A), key(B)]);
    assert!(!cluster.may_write(A));
    cluster.nexuses[A].logical_unit_reset(Lun(0));
    cluster.reported(A);
    cluster.nexuses[A].target_reset(true);
    cluster.reported(A);
    cluster.reported(ONLOOKER);
    assert_eq!(cluster.reservation(), Some((key(B), WRITE_EXCLUSIVE)));

    // The preempted initiator gets the unit attention in its next session.
    cluster.done(A, CLEAR, 0, key(A), 0);
    cluster.nexuses[B] = session(&cluster.fixture, B);
    assert_eq!(cluster.reported(B), [0x2900, PREEMPTED]);
    cluster.nexuses[B] = session(&cluster.fixture, B);
    assert_eq!(cluster.reported(B), [0x2900], "once");
}

#[test]
fn spc4_5_12_5_a_new_session_of_the_same_port_is_the_holder() {
    let mut cluster = Cluster::new();
    cluster.register(&[B]);
    cluster.done(B, RESERVE, EXCLUSIVE_ACCESS, key(B), 0);
    cluster.nexuses[B] = session(&cluster.fixture, B);
    cluster.reported(B);
    assert!(cluster.may_write(B) && !cluster.may_write(A));
    // The same initiator, another port.
    let name = port(B).replace("0x00000000000", "0x80000000000");
    cluster.nexuses[B] =
        cluster.fixture.device.open_nexus(InitiatorPort::new(name), 1).expect("port 1");
    cluster.reported(B);
    assert!(!cluster.may_write(B));
}

#[test]
fn spc4_5_12_3_reserve_beside_persistent_reservations() {
    let (reserve, release): (&[u8], &[u8]) = (&[0x16], &[0x17]);
    let mut cluster = Cluster::new();
    cluster.register(&[A, B]);
    for who in [A, C] {
        assert!(!cluster.passes(who, reserve, &[]), "SPC-2: registered, and no reservation");
        assert!(!cluster.passes(who, release, &[]));
    }
    cluster.done(A, RESERVE, WRITE_EXCLUSIVE, key(A), 0);
    assert!(cluster.passes(A, reserve, &[]) && cluster.passes(A, release, &[]));
    assert!(!cluster.passes(B, reserve, &[]) && !cluster.passes(B, release, &[]));
    cluster.done(A, RELEASE, WRITE_EXCLUSIVE, key(A), 0);
    cluster.done(A, RESERVE, EXCLUSIVE_ACCESS_REGISTRANTS, key(A), 0);
    assert!(cluster.passes(B, reserve, &[]) && cluster.passes(B, release, &[]));
    assert!(!cluster.passes(C, reserve, &[]) && !cluster.passes(C, release, &[]));
    assert!(cluster.may_write(A), "nothing was reserved by it");
    cluster.done(A, CLEAR, 0, key(A), 0);
    cluster.reported(B);

    // SPC-2 5.5.1: PERSISTENT RESERVE commands conflict with the reservation, even those of its holder.
    assert!(cluster.passes(A, reserve, &[]));
    for who in [A, B] {
        for action in 0..4 {
            assert!(!cluster.passes(who, &[0x5e, action, 0, 0, 0, 0, 0, 1, 0, 0], &[]));
        }
        assert_eq!(cluster.ask(who, REGISTER, 0, 0, 5), Status::ReservationConflict);
        assert_eq!(cluster.ask(who, 8, 1, 0, 5), Status::ReservationConflict);
    }
    assert!(cluster.passes(A, release, &[]));
    cluster.register(&[A]);
}

#[test]
fn spc4_5_12_5_1_aptpl_preserves_reservations() {
    let mut cluster = Cluster::new();
    cluster.register(&[A]);
    assert!(cluster.restarted().keys().is_empty(), "without it nothing is kept");
    assert_eq!(cluster.out(B, REGISTER, 0, &list(0, key(B), APTPL)).status, Status::Good);
    cluster.done(B, RESERVE, WRITE_EXCLUSIVE_REGISTRANTS, key(B), 0);

    let mut after = cluster.restarted();
    assert_eq!((after.keys(), after.generation()), (vec![key(A), key(B)], 0));
    assert_eq!(after.reservation(), Some((key(B), WRITE_EXCLUSIVE_REGISTRANTS)));
    assert!(after.may_write(A) && after.may_write(B) && !after.may_write(C));
    assert_eq!(after.read(A, 2)[3] & 1, 1, "PTPL_A");
    after.done(A, PREEMPT, WRITE_EXCLUSIVE, key(A), key(B));
    assert_eq!(after.restarted().reservation(), Some((key(A), WRITE_EXCLUSIVE)));

    // The last valid APTPL applies, from any initiator.
    after.done(C, REGISTER, 0, 0, key(C));
    assert!(after.restarted().keys().is_empty());
    assert_eq!(after.out(C, REGISTER_AND_IGNORE, 0, &list(0, 9, APTPL)).status, Status::Good);
    assert_eq!(after.restarted().keys(), [key(A), 9]);
    after.done(A, CLEAR, 0, key(A), 0);
    assert!(after.fixture.metadata.records.lock().unwrap().is_empty());
}

#[test]
fn spc4_5_12_5_1_unstorable_reservation_is_refused_without_effect() {
    let mut cluster = Cluster::new();
    cluster.fixture.metadata.is_broken.store(true, Ordering::Relaxed);
    let completion = cluster.out(A, REGISTER, 0, &list(0, 5, APTPL));
    assert_eq!(additional(&completion), Some(0x4400));
    assert_eq!((cluster.keys(), cluster.generation()), (vec![], 0));
    // The content of the record is unknown now, so it must be possible to remove it.
    assert_eq!(additional(&cluster.out(A, REGISTER, 0, &list(0, 5, 0))), Some(0x4400));

    cluster.fixture.metadata.is_broken.store(false, Ordering::Relaxed);
    cluster.done(A, REGISTER, 0, 0, 5);
    assert_eq!(cluster.out(A, REGISTER, 0, &list(5, 5, APTPL)).status, Status::Good);
    cluster.fixture.metadata.is_broken.store(true, Ordering::Relaxed);
    for (action, list) in [
        (RESERVE, list(5, 0, 0)),
        (CLEAR, list(5, 0, 0)),
        (REGISTER, list(5, 6, 0)),
        (PREEMPT, list(5, 5, 0)),
    ] {
        let completion = cluster.out(A, action, EXCLUSIVE_ACCESS, &list);
        assert_eq!(additional(&completion), Some(0x4400), "{action}");
        assert_eq!((cluster.keys(), cluster.reservation()), (vec![5], None));
    }
    assert_eq!(cluster.restarted().keys(), [5]);
}

#[test]
fn unreadable_record_fails_creation_of_unit() {
    let metadata = Arc::new(TestMetadataStore::default());
    for record in
        [&b"junk"[..], &[0; 16], &[0, 0, 0, 9, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]]
    {
        metadata.records.lock().unwrap().insert(crate::MetadataKind::Reservations, record.to_vec());
        let store = Arc::new(TestStore::new(BlockSize::B512));
        let mut parts = TestParts::disk(crate::Identity::new("data", "scope"), store);
        parts.metadata = Some(metadata.clone());
        let error = parts.unit().expect_err("is refused").to_string();
        assert!(error.contains("remove the record"), "{error}");
    }
}

#[test]
fn spc4_5_11_the_attentions_have_their_codes() {
    for (attention, code) in [
        (UnitAttention::ReservationsPreempted, PREEMPTED),
        (UnitAttention::ReservationsReleased, RELEASED),
        (UnitAttention::RegistrationsPreempted, REGISTRATIONS_PREEMPTED),
    ] {
        let sense: Sense = attention.sense();
        assert_eq!(sense.additional().0, code);
    }
}
