//! Asymmetric logical unit access: two ports of one target.

use crate::command_table::{Row, TABLE};
use crate::testing::*;
use crate::{
    AccessError, AccessState, AllowedStates, Alua, Completion, DeviceType, FieldPointer, Identity,
    InitiatorPort, Lun, NexusHandle, SenseKey, Status, TargetDevice, TargetPort,
};
use sarsen_block::BlockSize;
use sarsen_wire::scsi::opcode::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const TARGET: &str = "iqn.2026-01.example:paths";
const NOT_SETTLED: [AccessState; 3] =
    [AccessState::Standby, AccessState::Unavailable, AccessState::Offline];

/// A unit behind ports 1 and 2, with a nexus through each, and without pending unit attentions.
struct Paths {
    fixture: Fixture,
    device: Arc<TargetDevice>,
    one: NexusHandle,
    two: NexusHandle,
}

impl Paths {
    fn new() -> Self {
        Self::of(DeviceType::Disk)
    }

    fn of(device_type: DeviceType) -> Self {
        let store = Arc::new(TestStore::new(BlockSize::B512));
        let fixture = Fixture::of(store, Arc::default(), |parts| parts.device_type = device_type);
        let store = Arc::new(TestStore::new(BlockSize::B512));
        let beside = disk(Identity::new("beside", TARGET), store);
        let luns = BTreeMap::from([(Lun(0), fixture.unit.clone()), (Lun(1), beside)]);
        let ports = vec![
            TargetPort { is_preferred: true, ..TargetPort::of_portal_group(TARGET, 1) },
            TargetPort::of_portal_group(TARGET, 2),
        ];
        let device = TargetDevice::with_ports(&fixture.array, TARGET.into(), luns, ports);
        let open = |name: &str, port| {
            let name = format!("iqn.2026-01.example:{name},i,0x1");
            let mut nexus = device.open_nexus(InitiatorPort::new(name), port).expect("a port");
            for lun in [0, 1] {
                assert_eq!(additional(&test_unit_ready(&mut nexus, lun)), Some(0x2900));
            }
            nexus
        };
        let (one, two) = (open("one", 1), open("two", 2));
        Self { device, one, two, fixture }
    }

    fn set(&mut self, descriptors: &[[u8; 4]]) -> Completion {
        set(&mut self.one, &list(descriptors))
    }

    fn states(&self) -> [AccessState; 2] {
        [1, 2].map(|group| self.device.access_state(group).expect("a group"))
    }
}

fn test_unit_ready(nexus: &mut NexusHandle, lun: u16) -> Completion {
    block_on(nexus.execute(Some(Lun(lun)), command(&[0], &[])))
}

fn list(descriptors: &[[u8; 4]]) -> Vec<u8> {
    [&[0; 4], descriptors.as_flattened()].concat()
}

fn set(nexus: &mut NexusHandle, list: &[u8]) -> Completion {
    run(nexus, &set_cdb(list.len() as u32), list)
}

fn set_cdb(length: u32) -> [u8; 12] {
    let [a, b, c, d] = length.to_be_bytes();
    [0xa4, 0x0a, 0, 0, 0, 0, a, b, c, d, 0, 0]
}

fn report(nexus: &mut NexusHandle, format: u8) -> Completion {
    run(nexus, &[0xa3, 0x0a | format, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[])
}

fn field(completion: &Completion) -> Option<FieldPointer> {
    completion.sense.as_ref().and_then(|sense| sense.field())
}

/// Returns the states in which a command is executed (SPC-4 5.16.2.4.4 and following). READ CAPACITY and the reports of
/// operation codes are additions of this server: initiators also set up a disk on a path in standby.
fn access(row: &Row) -> AllowedStates {
    match (row.operation_code, row.service_action) {
        (INQUIRY | REPORT_LUNS | REQUEST_SENSE | READ_BUFFER | WRITE_BUFFER, _) => {
            AllowedStates::Transition
        }
        (MAINTENANCE_IN, Some(0x0a)) => AllowedStates::Transition,
        (MAINTENANCE_OUT, Some(0x0a)) => AllowedStates::Unavailable,
        (LOG_SELECT | LOG_SENSE | MODE_SELECT_6 | MODE_SENSE_6, _) => AllowedStates::Standby,
        (MODE_SELECT_10 | MODE_SENSE_10, _) => AllowedStates::Standby,
        (RECEIVE_DIAGNOSTIC_RESULTS | SEND_DIAGNOSTIC, _) => AllowedStates::Standby,
        (PERSISTENT_RESERVE_IN | PERSISTENT_RESERVE_OUT, _) => AllowedStates::Standby,
        (READ_CAPACITY_10, _) => AllowedStates::Standby,
        (SERVICE_ACTION_IN_16, Some(0x10)) => AllowedStates::Standby,
        (MAINTENANCE_IN, Some(0x0c | 0x0d)) => AllowedStates::Standby,
        _ => AllowedStates::Active,
    }
}

fn bare_cdb(row: &Row) -> Vec<u8> {
    let mut cdb = vec![0; row.cdb_length()];
    cdb[0] = row.operation_code;
    match row.service_action {
        Some(action) if row.operation_code == VARIABLE_LENGTH => {
            cdb[8..10].copy_from_slice(&action.to_be_bytes());
        }
        Some(action) => cdb[1] = action as u8,
        None => {}
    }
    cdb
}

#[test]
fn spc4_5_16_2_4_each_command_in_each_state() {
    const BEYOND: [(AccessState, u16, AllowedStates); 4] = [
        (AccessState::Standby, 0x040b, AllowedStates::Standby),
        (AccessState::Unavailable, 0x040c, AllowedStates::Unavailable),
        (AccessState::Offline, 0x0412, AllowedStates::Unavailable),
        (AccessState::Transitioning, 0x040a, AllowedStates::Transition),
    ];
    for (device_type, (state, code, wanted)) in
        [DeviceType::Disk, DeviceType::Cd].into_iter().flat_map(|kind| BEYOND.map(|b| (kind, b)))
    {
        for row in TABLE {
            let mut paths = Paths::of(device_type);
            if !row.is_supported_by(&paths.fixture.unit) {
                continue;
            }
            let transition = match state {
                AccessState::Transitioning => Some(paths.device.begin_transition(2).unwrap()),
                _ => {
                    paths.device.set_access_state(2, state).unwrap();
                    // The unit attention is cleared, so that it does not block the command.
                    assert_eq!(additional(&run(&mut paths.two, &[0], &[])), Some(0x2a06));
                    None
                }
            };
            let bytes = bare_cdb(row);
            let (head, extension) = bytes.split_at(bytes.len().min(16));
            let mut fixed = [0; 16];
            fixed[..head.len()].copy_from_slice(head);
            let cdb = crate::Cdb::with_extension(&fixed, extension);
            let completion =
                block_on(paths.two.execute(Some(Lun(0)), crate::Command::new(cdb.clone())));
            let sense = completion.sense.filter(|sense| sense.key() == SenseKey::NotReady);
            let reported = sense.map(|sense| sense.additional().0);
            let expected = (access(row) < wanted).then_some(code);
            assert_eq!(reported, expected, "{row:?} in {state:?}: see Row::even_in");
            drop(transition);
        }
    }
}

#[test]
fn spc4_5_16_2_4_active_states_carry_out_everything_and_the_other_path_goes_on() {
    let mut paths = Paths::new();
    assert_eq!(paths.set(&[[1, 0, 0, 1]]).status, Status::Good);
    assert_eq!(run(&mut paths.one, &[0], &[]).status, Status::Good);
    assert_eq!(paths.set(&[[2, 0, 0, 2]]).status, Status::Good);
    // One unit attention for both changes, before the state of the port (SAM-5 5.14).
    assert_eq!(additional(&run(&mut paths.two, &[0], &[])), Some(0x2a06));
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(additional(&run(&mut paths.two, &read, &[])), Some(0x040b));
    assert_eq!(run(&mut paths.one, &read, &[]).status, Status::Good);
    assert_eq!(set(&mut paths.two, &list(&[[0, 0, 0, 2]])).status, Status::Good);
    assert_eq!(run(&mut paths.two, &read, &[]).status, Status::Good);
    assert_eq!(additional(&run(&mut paths.one, &read, &[])), Some(0x2a06));
}

#[test]
fn sam5_5_3_3_a_reservation_conflict_comes_before_an_access_state() {
    let mut paths = Paths::new();
    assert_eq!(run(&mut paths.one, &[0x16, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    paths.device.set_access_state(2, AccessState::Standby).unwrap();
    for nexus in [&mut paths.one, &mut paths.two] {
        assert_eq!(additional(&run(nexus, &[0], &[])), Some(0x2a06));
    }
    assert_eq!(run(&mut paths.two, &[0], &[]).status, Status::ReservationConflict);
    assert_eq!(additional(&run(&mut paths.two, &[0xff], &[])), Some(0x2000));
    assert_eq!(run(&mut paths.one, &[0x17, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    // The state of the port has precedence over the state of the unit.
    assert_eq!(run(&mut paths.one, &[0x1b, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(additional(&run(&mut paths.one, &[0], &[])), Some(0x0402));
    assert_eq!(additional(&run(&mut paths.two, &[0], &[])), Some(0x040b));
}

#[test]
fn spc4_6_37_reports_groups_states_and_cause_of_change() {
    let mut paths = Paths::new();
    let data = bytes(report(&mut paths.one, 0));
    assert_eq!(data[..4], 24u32.to_be_bytes());
    assert_eq!(data[4..16], [0x80, 0xcf, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(data[16..], [0x00, 0xcf, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
    paths.set(&[[1, 0, 0, 1]]);
    paths.device.set_access_state(2, AccessState::Unavailable).unwrap();
    assert_eq!(additional(&report(&mut paths.two, 0)), Some(0x2a06));
    let data = bytes(report(&mut paths.two, 0x20));
    assert_eq!(data[..8], [0, 0, 0, 28, 0x10, 60, 0, 0]);
    assert_eq!((data[8], data[13]), (0x81, 1), "by SET TARGET PORT GROUPS");
    assert_eq!((data[20], data[25]), (0x03, 2), "implicitly");
    let refused = report(&mut paths.two, 0x40);
    assert_eq!(additional(&refused), Some(0x2400));
    assert_eq!(field(&refused), Some(FieldPointer { byte: 1, bit: Some(7), in_cdb: true }));
    let short = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0];
    assert_eq!(bytes(run(&mut paths.two, &short, &[])), [0, 0, 0, 24]);
}

#[test]
fn spc4_6_45_every_wrong_parameter_list_is_refused_and_changes_nothing() {
    let mut paths = Paths::new();
    let at = |byte, bit| Some(FieldPointer { byte, bit, in_cdb: false });
    for (descriptors, pointer) in [
        (vec![[0x04, 0, 0, 2]], at(4, Some(3))),
        (vec![[0x0d, 0, 0, 2]], at(4, Some(3))),
        (vec![[0x0f, 0, 0, 2]], at(4, Some(3))),
        (vec![[0x02, 0, 0, 0]], at(6, None)),
        (vec![[0x02, 0, 0, 3]], at(6, None)),
        (vec![[0x02, 0, 1, 2]], at(6, None)),
        // The first descriptor alone would be valid.
        (vec![[0x02, 0, 0, 2], [0x05, 0, 0, 1]], at(8, Some(3))),
        (vec![[0x02, 0, 0, 2], [0x02, 0, 0, 9]], at(10, None)),
        (vec![[0x02, 0, 0, 2], [0x01, 0, 0, 2]], at(10, None)),
    ] {
        let refused = paths.set(&descriptors);
        assert_eq!(additional(&refused), Some(0x2600), "{descriptors:?}");
        assert_eq!(field(&refused), pointer, "{descriptors:?}");
    }
    for length in [1, 3, 5, 7, 9] {
        let cut = &list(&[[2, 0, 0, 2], [2, 0, 0, 1]])[..length];
        assert_eq!(additional(&set(&mut paths.one, cut)), Some(0x1a00), "{length} bytes");
    }
    let short = run(&mut paths.one, &set_cdb(12), &list(&[[2, 0, 0, 2]]));
    assert_eq!(additional(&short), Some(0x0e03));
    for length in [4 + 4 * 128 + 1, u32::MAX] {
        let long = crate::Cdb::new(cdb(&set_cdb(length)).as_bytes().first_chunk().unwrap());
        assert_eq!(paths.one.data_out_length(Some(Lun(0)), &long), 0);
        let refused = run(&mut paths.one, &set_cdb(length), &[]);
        assert_eq!(additional(&refused), Some(0x2400));
        assert_eq!(field(&refused).map(|field| field.byte), Some(6));
    }
    for nothing in [&[][..], &[0; 4]] {
        assert_eq!(set(&mut paths.one, nothing).status, Status::Good);
    }
    assert_eq!(paths.states(), [AccessState::Optimized; 2]);
    assert_eq!(run(&mut paths.two, &[0], &[]).status, Status::Good, "nothing to tell");
}

#[test]
fn spc4_6_45_all_groups_that_are_named_change_together() {
    let mut paths = Paths::new();
    assert_eq!(paths.set(&[[0xe, 0, 0, 2], [1, 0, 0, 1]]).status, Status::Good);
    assert_eq!(paths.states(), [AccessState::NonOptimized, AccessState::Offline]);
    assert_eq!(paths.set(&[[3, 0, 0, 1], [0, 0, 0, 2]]).status, Status::Good);
    assert_eq!(paths.states(), [AccessState::Unavailable, AccessState::Optimized]);
    // The change is possible through an unavailable path.
    assert_eq!(paths.set(&[[0, 0, 0, 1]]).status, Status::Good);
    assert_eq!(paths.states(), [AccessState::Optimized; 2]);
}

#[test]
fn spc4_5_16_2_8_explicit_change_is_reported_to_others_implicit_to_all() {
    let mut paths = Paths::new();
    paths.set(&[[1, 0, 0, 2]]);
    assert_eq!(run(&mut paths.one, &[0], &[]).status, Status::Good, "who asked knows");
    // On the target's other unit, which did not receive the command, the nexus gets the unit attention too.
    assert_eq!(additional(&test_unit_ready(&mut paths.one, 1)), Some(0x2a06));
    assert_eq!(additional(&test_unit_ready(&mut paths.two, 1)), Some(0x2a06));
    assert_eq!(additional(&run(&mut paths.two, &[0], &[])), Some(0x2a06));
    // No change.
    paths.set(&[[1, 0, 0, 2]]);
    paths.device.set_access_state(2, AccessState::NonOptimized).unwrap();
    assert_eq!(run(&mut paths.two, &[0], &[]).status, Status::Good);
    paths.device.set_access_state(2, AccessState::Optimized).unwrap();
    for nexus in [&mut paths.one, &mut paths.two] {
        assert_eq!(additional(&run(nexus, &[0], &[])), Some(0x2a06));
        assert_eq!(run(nexus, &[0], &[]).status, Status::Good);
    }
    // A nexus of another target with the same unit uses other ports.
    assert_eq!(paths.fixture.run(&[0], &[]).status, Status::Good);
}

#[test]
fn spc4_5_16_2_7_a_transition_is_seen_ends_or_fails() {
    let mut paths = Paths::new();
    let transition = paths.device.begin_transition(2).unwrap();
    assert_eq!(bytes(report(&mut paths.two, 0))[16], 0x0f);
    assert_eq!(additional(&run(&mut paths.two, &[0], &[])), Some(0x040a));
    let in_transition = AccessError::InTransition { target: TARGET.into(), group: 2 };
    let set_too = paths.device.set_access_state(2, AccessState::Standby);
    assert_eq!(set_too, Err(in_transition.clone()));
    assert_eq!(paths.device.begin_transition(2).err(), Some(in_transition));
    // Through the other path, together with a group that could change.
    assert_eq!(additional(&paths.set(&[[1, 0, 0, 1], [0, 0, 0, 2]])), Some(0x040a));
    assert_eq!(paths.states(), [AccessState::Optimized, AccessState::Transitioning]);
    assert_eq!(paths.set(&[[1, 0, 0, 1]]).status, Status::Good);
    transition.complete(AccessState::Standby).unwrap();
    assert_eq!(paths.states(), [AccessState::NonOptimized, AccessState::Standby]);
    for nexus in [&mut paths.one, &mut paths.two] {
        assert_eq!(additional(&run(nexus, &[0], &[])), Some(0x2a06));
    }
    paths.device.begin_transition(2).unwrap().fail();
    assert_eq!(paths.states()[1], AccessState::Standby);
    for nexus in [&mut paths.one, &mut paths.two] {
        assert_eq!(additional(&run(nexus, &[0], &[])), Some(0x2a07));
    }
}

#[test]
fn invalid_states_and_groups_are_refused() {
    let paths = Paths::new();
    let no_group = AccessError::NoGroup { target: TARGET.into(), group: 3 };
    let set = |group, state| paths.device.set_access_state(group, state);
    assert_eq!(set(3, AccessState::Standby), Err(no_group.clone()));
    assert_eq!(set(1, AccessState::Transitioning), Err(AccessError::Transitioning));
    assert_eq!(paths.device.begin_transition(3).err(), Some(no_group));
    let transition = paths.device.begin_transition(1).unwrap();
    let ended = transition.complete(AccessState::Transitioning);
    assert_eq!(ended, Err(AccessError::Transitioning));
    assert_eq!(paths.device.access_state(1), Some(AccessState::Optimized));
    let initiator = InitiatorPort::new("iqn.2026-01.example:x,i,0x1");
    assert!(paths.device.open_nexus(initiator, 3).is_none());
}

#[test]
fn spc4_7_8_nexus_gets_its_own_port_and_all_ports() {
    let mut paths = Paths::new();
    let page = |nexus: &mut NexusHandle, page| bytes(run(nexus, &[0x12, 1, page, 1, 0, 0], &[]));
    let standard = bytes(run(&mut paths.two, &[0x12, 0, 0, 0, 96, 0], &[]));
    assert_eq!(standard[5..7], [0x38, 0x10], "TPGS, 3PC and MULTIP");
    for (nexus, number) in [(&mut paths.one, 1), (&mut paths.two, 2)] {
        let data = page(nexus, 0x83);
        let named = |kind: u8| [0x51, 0x80 | kind, 0, 4, 0, 0, 0, number];
        for kind in [0x14, 0x15] {
            assert!(data.windows(8).any(|bytes| bytes == named(kind)), "{data:02x?}");
        }
        let port = format!("{TARGET},t,0x000{number}\0");
        assert!(String::from_utf8_lossy(&data).contains(&port));
        let data = page(nexus, 0x88);
        let mut rest = &data[4..];
        for number in [1, 2] {
            let length = usize::from(rest[11]);
            assert_eq!(rest[..11], [0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(rest[12..14], [0x53, 0x98]);
            let port = format!("{TARGET},t,0x000{number}\0");
            assert!(rest[16..12 + length].starts_with(port.as_bytes()));
            rest = &rest[12 + length..];
        }
        assert!(rest.is_empty());
    }
}

#[test]
fn spc4_5_16_2_4_5_a_unit_that_is_cut_off_says_so() {
    let mut paths = Paths::new();
    for (state, code) in NOT_SETTLED.into_iter().zip([0x0b, 0x0c, 0x12]) {
        paths.device.set_access_state(2, state).unwrap();
        let qualifier = if state == AccessState::Standby { 0 } else { 0x20 };
        for cdb in [[0x12, 0, 0, 0, 96, 0], [0x12, 1, 0x80, 0, 96, 0]] {
            assert_eq!(bytes(run(&mut paths.two, &cdb, &[]))[0], qualifier);
            assert_eq!(bytes(run(&mut paths.one, &cdb, &[]))[0], 0);
        }
        let mut sense = || bytes(run(&mut paths.two, &[3, 0, 0, 0, 18, 0], &[]));
        assert_eq!(sense()[12..14], [0x2a, 0x06]);
        let reported = sense();
        assert_eq!((reported[2], &reported[12..14]), (2, &[0x04, code][..]));
    }
}

#[test]
fn spc4_5_16_2_7_ports_come_and_go_while_the_others_keep_their_states() {
    let mut paths = Paths::new();
    paths.device.set_access_state(2, AccessState::NonOptimized).expect("set");
    for nexus in [&mut paths.one, &mut paths.two] {
        assert_eq!(additional(&test_unit_ready(nexus, 0)), Some(0x2a06));
    }
    let port = |number| TargetPort::of_portal_group(TARGET, number);
    let preferred = TargetPort { is_preferred: true, ..port(2) };
    // Port 1 is preferred as before: nothing has changed.
    let as_before = TargetPort { is_preferred: true, ..port(1) };
    paths.device.set_ports(vec![as_before, port(2)]);
    assert_eq!(test_unit_ready(&mut paths.one, 0).status, Status::Good);
    paths.device.set_ports(vec![preferred, port(7)]);
    for nexus in [&mut paths.one, &mut paths.two] {
        assert_eq!(additional(&test_unit_ready(nexus, 0)), Some(0x3f03));
        assert_eq!(additional(&test_unit_ready(nexus, 0)), Some(0x2a06));
        assert_eq!(test_unit_ready(nexus, 0).status, Status::Good);
    }
    let states = [1, 2, 7].map(|group| paths.device.access_state(group));
    assert_eq!(states, [None, Some(AccessState::NonOptimized), Some(AccessState::Optimized)]);
    let initiator = || InitiatorPort::new("iqn.2026-01.example:late,i,0x1");
    assert!(paths.device.open_nexus(initiator(), 1).is_none());
    assert!(paths.device.open_nexus(initiator(), 7).is_some());
}

#[test]
fn spc4_6_45_a_target_whose_alua_is_implicit_has_no_set_target_port_groups() {
    let mut paths = Paths::new();
    let tpgs = |nexus: &mut NexusHandle| bytes(run(nexus, &[0x12, 0, 0, 0, 96, 0], &[]))[5] & 0x30;
    let one_command = [0xa3, 0x0c, 2, 0xa4, 0, 0x0a, 0, 0, 1, 0, 0, 0];
    let support = |nexus: &mut NexusHandle| bytes(run(nexus, &one_command, &[]))[1] & 7;
    let all = [0xa3, 0x0c, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let commands = |nexus: &mut NexusHandle| (bytes(run(nexus, &all, &[])).len() - 4) / 8;
    let supported = commands(&mut paths.one);
    assert_eq!(tpgs(&mut paths.one), 0x30);
    paths.device.set_alua(Alua::Implicit);
    // One unit attention: the second call changes nothing.
    paths.device.set_alua(Alua::Implicit);
    for nexus in [&mut paths.one, &mut paths.two] {
        assert_eq!(additional(&test_unit_ready(nexus, 0)), Some(0x3f03));
        assert_eq!(test_unit_ready(nexus, 0).status, Status::Good);
        assert_eq!(tpgs(nexus), 0x10);
    }
    let refused = paths.set(&[[1, 0, 0, 2]]);
    assert_eq!(additional(&refused), Some(0x2400));
    assert_eq!(paths.states(), [AccessState::Optimized; 2]);
    assert_eq!(support(&mut paths.one), 1);
    assert_eq!(commands(&mut paths.one), supported - 1);
    paths.device.set_access_state(2, AccessState::Standby).expect("the server may");
    paths.device.set_alua(Alua::Both);
    for ascq in [0x3f03, 0x2a06] {
        assert_eq!(additional(&test_unit_ready(&mut paths.one, 0)), Some(ascq));
    }
    assert_eq!(support(&mut paths.one), 3);
}
