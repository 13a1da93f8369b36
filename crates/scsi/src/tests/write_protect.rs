//! A write-protected medium: by its store, or by SWP (SBC-3 4.12).

use super::mode::select_control;
use crate::command_table::{Row, TABLE};
use crate::flags::Flags;
use crate::testing::*;
use crate::{Cdb, Command, Lun, SenseKey, Status};
use sarsen_block::BlockSize;
use sarsen_wire::scsi::opcode::VARIABLE_LENGTH;

/// Returns the command with only operation code and service action in its CDB.
fn bare(row: &Row) -> Command {
    let mut bytes = vec![0; row.cdb_length().max(16)];
    bytes[0] = row.operation_code;
    match row.service_action.map(u16::to_be_bytes) {
        Some(action) if row.operation_code == VARIABLE_LENGTH => {
            bytes[8..10].copy_from_slice(&action);
        }
        Some([_, action]) => bytes[1] = action,
        None => {}
    }
    let (fixed, extension) = bytes.split_first_chunk::<16>().expect("sixteen bytes");
    Command::new(Cdb::with_extension(fixed, extension))
}

/// Checks that every command that changes the medium is rejected with this code, and that no other command is.
fn check(fixture: &mut Fixture, code: u16) {
    let mut refused = Vec::new();
    for row in TABLE.iter().filter(|row| row.is_supported_by(&fixture.unit)) {
        // The loop includes START STOP UNIT.
        fixture.unit.medium().set_stopped(false).unwrap();
        let completion = block_on(fixture.nexus.execute(Some(Lun(0)), bare(row)));
        let sense = completion.sense.filter(|sense| sense.key() == SenseKey::DataProtect);
        assert_eq!(sense.is_some(), row.flags.contains(Flags::WRITES), "{row:?}");
        if let Some(sense) = sense {
            assert_eq!(sense.additional().0, code, "{row:?}");
            refused.push(row.operation_code);
        }
    }
    fixture.unit.medium().set_stopped(false).unwrap();
    for operation_code in [0x07, 0x0a, 0x2a, 0x2e, 0x41, 0x42, 0x89, 0x8a, 0x8e, 0x93, 0xaa, 0xae] {
        assert!(refused.contains(&operation_code), "{operation_code:02x}");
    }
}

/// Returns DEVICE-SPECIFIC PARAMETER from the headers of MODE SENSE(6) and MODE SENSE(10).
fn device_specific(fixture: &mut Fixture) -> [u8; 2] {
    let short = bytes(fixture.run(&[0x1a, 0, 0x3f, 0, 255, 0], &[]));
    let long = bytes(fixture.run(&[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 255, 0], &[]));
    [short[2], long[3]]
}

#[test]
fn sbc3_4_12_a_store_that_takes_no_writes_is_write_protected() {
    let mut store = TestStore::new(BlockSize::B512);
    store.characteristics.read_only = true;
    let mut fixture = Fixture::over(store);
    check(&mut fixture, 0x2700);
    assert_eq!(device_specific(&mut fixture), [0x90; 2]);
    // The store has precedence over SWP, which can be set and cleared without effect.
    assert_eq!(select_control(&mut fixture, 0, 0x08).status, Status::Good);
    assert_eq!(additional(&fixture.write(0, &[0; 512])), Some(0x2700));
    assert_eq!(select_control(&mut fixture, 0, 0).status, Status::Good);
    assert_eq!(device_specific(&mut fixture), [0x90; 2]);
}

#[test]
fn spc4_7_5_8_swp_protects_until_it_is_cleared() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.write(3, &[9; 512]).status, Status::Good);
    assert_eq!(device_specific(&mut fixture), [0x10; 2]);
    assert_eq!(select_control(&mut fixture, 0, 0x08).status, Status::Good);
    check(&mut fixture, 0x2702);
    assert_eq!(device_specific(&mut fixture), [0x90; 2]);
    assert_eq!(fixture.read(3, 1), [9; 512]);
    assert_eq!(select_control(&mut fixture, 0, 0).status, Status::Good);
    assert_eq!(fixture.write(3, &[8; 512]).status, Status::Good);
    assert_eq!(fixture.read(3, 1), [8; 512]);
}
