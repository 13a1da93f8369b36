//! One row for each command: its name, its handler, the bits of its CDB that the server checks, and its conditions of
//! execution. REPORT SUPPORTED OPERATION CODES is answered from this table.
//!
//! Reserved bits of a CDB are not rejected, since common initiators set some of them (SCSI-2's LUN in byte 1). The
//! handler rejects a bit that would change the effect on data.

mod report;

use crate::atomic::has_atomic_writes;
use crate::commands::{
    atomic, block, buffer, cache, capacity, defects, diagnostic, format, identifying_information,
    inquiry, log, medium, mode, persistent_reservation, provisioning, reservation, sanitize,
    security, target_port_groups, timestamp, verify,
};
use crate::copy::{extended, offload, results};
pub use crate::flags::Flags;
use crate::multimedia;
use crate::row::*;
pub use crate::row::{CommandDeviceTypes, Row};
use crate::{AllowedStates, Cdb, DeviceType, LogicalUnit, ProtectionType, Sense};
use sarsen_volume::Operation;
use sarsen_volume::OperationKind::{Flush, Other, Read, Unmap, Write};
use sarsen_wire::scsi::opcode::{self, *};

impl Row {
    /// Returns the row of a CDB, or sense data if the device type does not support the command.
    #[inline]
    pub fn of(cdb: &Cdb, device_type: DeviceType) -> Result<&'static Self, Sense> {
        let operation_code = cdb.operation_code();
        let first = usize::from(FIRST_ROW[usize::from(operation_code)]);
        let rows = TABLE.get(first..).unwrap_or(&[]);
        let mut rows = rows
            .iter()
            .take_while(|row| row.operation_code == operation_code)
            .filter(|row| row.devices.include(device_type));
        let Some(first) = rows.next() else { return Err(Sense::invalid_operation_code()) };
        if first.service_action.is_none() {
            return Ok(first);
        }
        let action = Some(cdb.service_action());
        let row = std::iter::once(first).chain(rows).find(|row| row.service_action == action);
        row.ok_or(Self::no_such_action(operation_code))
    }
}

/// Returns the command with this CDB as limits and statistics see it.
#[inline]
pub fn operation(cdb: &Cdb, device_type: DeviceType) -> Operation {
    Row::of(cdb, device_type).map_or_else(|_| other_operation(cdb), |row| row.operation)
}

/// Returns the same for a command that the device type does not support: a real device may support it.
#[cold]
fn other_operation(cdb: &Cdb) -> Operation {
    match (Row::of(cdb, DeviceType::Disk), cdb.operation_code()) {
        (Ok(row), _) => row.operation,
        (Err(_), READ_CD | READ_CD_MSF) => Operation::of(Read),
        (Err(_), VARIABLE_LENGTH | THIRD_PARTY_COPY_OUT) => Operation::OTHER,
        (Err(_), _) => Operation::QUERY,
    }
}

/// Returns whether the unit supports commands of 32 bytes. SBC-3 4.22.2.4: they are only for type 2.
fn is_type_2(unit: &LogicalUnit) -> bool {
    unit.protection_type() == Some(ProtectionType::Type2)
}

/// Returns the usage map of a block command of 32 bytes, with its flags in byte 10.
const fn long(service_action: u8, flags: u8) -> [u8; 31] {
    let mut usage = [ALL; 31];
    usage[0] = CTL;
    let mut reserved = 1;
    while reserved <= 4 {
        usage[reserved] = 0;
        reserved += 1;
    }
    usage[5] = GRP;
    usage[7] = 0;
    usage[8] = service_action;
    usage[9] = flags;
    usage[10] = 0;
    usage
}

/// The commands of disks, by operation code and service action. CDs support some of them.
#[rustfmt::skip]
const DISK_COMMANDS: &[Row] = &[
    row(TEST_UNIT_READY, "TEST UNIT READY", inquiry::test_unit_ready, MEDIUM.and(OPEN), &[0, 0, 0, 0, CTL]).also_on_cd(),
    row(REQUEST_SENSE, "REQUEST SENSE", inquiry::request_sense, ALWAYS, &[0x01, 0, 0, ALL, CTL]).also_on_cd().even_in(AllowedStates::Transition),
    row(FORMAT_UNIT, "FORMAT UNIT", format::format_unit, MENDS, &[0xff, 0, 0, 0x03, CTL]).with_data_out(format::format_unit_data_out),
    row(REASSIGN_BLOCKS, "REASSIGN BLOCKS", defects::reassign_blocks, WRITES, &[0x03, 0, 0, 0, CTL]).with_data_out(defects::reassign_blocks_data_out),
    row(READ_6, "READ(6)", block::read, READS, &[0x1f, ALL, ALL, ALL, CTL]).counted_as(Read).moving(block::transferred_bytes),
    row(WRITE_6, "WRITE(6)", block::write, WRITES, &[0x1f, ALL, ALL, ALL, CTL]).with_data_out(block::write_data_out).counted_as(Write),
    row(INQUIRY, "INQUIRY", inquiry::inquiry, ALWAYS, &[0x01, ALL, ALL, ALL, CTL]).also_on_cd().even_in(AllowedStates::Transition),
    row(MODE_SELECT_6, "MODE SELECT(6)", mode::select_6, NONE, &[0x13, 0, 0, ALL, CTL]).with_data_out(mode::select_6_data_out).even_in(AllowedStates::Standby),
    row(RESERVE_6, "RESERVE(6)", reservation::reserve, OPEN, &[0x01, 0, 0, 0, CTL]),
    row(RELEASE_6, "RELEASE(6)", reservation::release, HELD.and(OPEN), &[0x01, 0, 0, 0, CTL]),
    row(MODE_SENSE_6, "MODE SENSE(6)", mode::sense_6, SHARED, &[0x08, ALL, ALL, ALL, CTL]).even_in(AllowedStates::Standby),
    row(START_STOP_UNIT, "START STOP UNIT", medium::start_stop_unit, NONE, &[0x01, 0, 0x0f, 0xf7, CTL]).passing_where(medium::only_starts).also_on_cd(),
    row(RECEIVE_DIAGNOSTIC_RESULTS, "RECEIVE DIAGNOSTIC RESULTS", diagnostic::receive_diagnostic_results, SHARED, &[0x01, ALL, ALL, ALL, CTL]).even_in(AllowedStates::Standby),
    row(SEND_DIAGNOSTIC, "SEND DIAGNOSTIC", diagnostic::send_diagnostic, NONE, &[0xe4, 0, ALL, ALL, CTL]).with_data_out(diagnostic::send_diagnostic_data_out).even_in(AllowedStates::Standby),
    row(PREVENT_ALLOW_MEDIUM_REMOVAL, "PREVENT ALLOW MEDIUM REMOVAL", medium::prevent_allow_medium_removal, NONE, &[0, 0, 0, 0x03, CTL]).passing_where(medium::only_allows_removal).also_on_cd(),
    row(READ_CAPACITY_10, "READ CAPACITY(10)", capacity::read_capacity_10, CAPACITY, &[0, 0, 0, 0, 0, 0, 0, 0, CTL]).even_in(AllowedStates::Standby).also_on_cd(),
    row(READ_10, "READ(10)", block::read, READS, &[0xfa, ALL, ALL, ALL, ALL, GRP, ALL, ALL, CTL]).also_on_cd().counted_as(Read).moving(block::transferred_bytes),
    row(WRITE_10, "WRITE(10)", block::write, WRITES, &[0xfa, ALL, ALL, ALL, ALL, GRP, ALL, ALL, CTL]).with_data_out(block::write_data_out).counted_as(Write),
    row(WRITE_AND_VERIFY_10, "WRITE AND VERIFY(10)", verify::write_and_verify, WRITES, &[0xf6, ALL, ALL, ALL, ALL, GRP, ALL, ALL, CTL]).with_data_out(verify::write_and_verify_data_out).counted_as(Write),
    row(VERIFY_10, "VERIFY(10)", verify::verify, READS, &[0xf6, ALL, ALL, ALL, ALL, GRP, ALL, ALL, CTL]).with_data_out(verify::verify_data_out).counted_as(Other).moving(block::transferred_bytes),
    row(PRE_FETCH_10, "PRE-FETCH(10)", cache::pre_fetch, READS, &[0x02, ALL, ALL, ALL, ALL, GRP, ALL, ALL, CTL]).counted_as(Other),
    row(SYNCHRONIZE_CACHE_10, "SYNCHRONIZE CACHE(10)", cache::synchronize_cache, MEDIUM, &[0x02, ALL, ALL, ALL, ALL, GRP, ALL, ALL, CTL]).also_on_cd().counted_as(Flush),
    row(READ_DEFECT_DATA_10, "READ DEFECT DATA(10)", defects::read_defect_data_10, SHARED, &[0, 0x1f, 0, 0, 0, 0, ALL, ALL, CTL]),
    row(WRITE_BUFFER, "WRITE BUFFER", buffer::write_buffer, NONE, &[0x1f, ALL, ALL, ALL, ALL, ALL, ALL, ALL, CTL]).with_data_out(buffer::write_buffer_data_out).even_in(AllowedStates::Transition),
    row(READ_BUFFER, "READ BUFFER(10)", buffer::read_buffer, SHARED, &[0x1f, ALL, ALL, ALL, ALL, ALL, ALL, ALL, CTL]).even_in(AllowedStates::Transition),
    row(WRITE_SAME_10, "WRITE SAME(10)", provisioning::write_same, WRITES, &[0xf8, ALL, ALL, ALL, ALL, GRP, ALL, ALL, CTL]).with_data_out(provisioning::write_same_data_out).counted_as(Write).moving(provisioning::filled_bytes),
    row(UNMAP, "UNMAP", provisioning::unmap, WRITES, &[0x01, 0, 0, 0, 0, GRP, ALL, ALL, CTL]).with_data_out(provisioning::unmap_data_out).only_where(provisioning::is_thin).counted_as(Unmap),
    action(SANITIZE, SA_SANITIZE_OVERWRITE, "SANITIZE OVERWRITE", sanitize::overwrite, MENDS, &[0xe1, ALL, ALL, ALL, ALL, ALL, ALL, ALL, CTL]).with_data_out(sanitize::overwrite_data_out),
    action(SANITIZE, SA_SANITIZE_BLOCK_ERASE, "SANITIZE BLOCK ERASE", sanitize::block_erase, MENDS, &[0xe2, ALL, ALL, ALL, ALL, ALL, ALL, ALL, CTL]).only_where(provisioning::is_thin),
    action(SANITIZE, SA_SANITIZE_CRYPTOGRAPHIC_ERASE, "SANITIZE CRYPTOGRAPHIC ERASE", sanitize::cryptographic_erase, MENDS, &[0xe3, ALL, ALL, ALL, ALL, ALL, ALL, ALL, CTL]).only_where(sanitize::has_key),
    action(SANITIZE, SA_SANITIZE_EXIT_FAILURE_MODE, "SANITIZE EXIT FAILURE MODE", sanitize::exit_failure_mode, NONE, &[0x5f, ALL, ALL, ALL, ALL, ALL, ALL, ALL, CTL]),
    row(LOG_SELECT, "LOG SELECT", log::select, NONE, &[0x03, 0x3f, ALL, 0, 0, 0, ALL, ALL, CTL]).with_data_out(log::select_data_out).even_in(AllowedStates::Standby),
    row(LOG_SENSE, "LOG SENSE", log::sense, HELD.and(OPEN), &[0x01, 0x3f, ALL, 0, ALL, ALL, ALL, ALL, CTL]).even_in(AllowedStates::Standby),
    row(MODE_SELECT_10, "MODE SELECT(10)", mode::select_10, NONE, &[0x13, 0, 0, 0, 0, 0, ALL, ALL, CTL]).with_data_out(mode::select_10_data_out).even_in(AllowedStates::Standby),
    row(RESERVE_10, "RESERVE(10)", reservation::reserve, OPEN, &[0x11, 0, 0, 0, 0, 0, 0, 0, CTL]),
    row(RELEASE_10, "RELEASE(10)", reservation::release, HELD.and(OPEN), &[0x11, 0, 0, 0, 0, 0, 0, 0, CTL]),
    row(MODE_SENSE_10, "MODE SENSE(10)", mode::sense_10, SHARED, &[0x18, ALL, ALL, 0, 0, 0, ALL, ALL, CTL]).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_IN, 0x00, "PERSISTENT RESERVE IN (READ KEYS)", persistent_reservation::read_keys, OPEN, &[0x00, 0, 0, 0, 0, 0, ALL, ALL, CTL]).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_IN, 0x01, "PERSISTENT RESERVE IN (READ RESERVATION)", persistent_reservation::read_reservation, OPEN, &[0x01, 0, 0, 0, 0, 0, ALL, ALL, CTL]).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_IN, 0x02, "PERSISTENT RESERVE IN (REPORT CAPABILITIES)", persistent_reservation::report_capabilities, OPEN, &[0x02, 0, 0, 0, 0, 0, ALL, ALL, CTL]).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_IN, 0x03, "PERSISTENT RESERVE IN (READ FULL STATUS)", persistent_reservation::read_full_status, OPEN, &[0x03, 0, 0, 0, 0, 0, ALL, ALL, CTL]).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_OUT, 0x00, "PERSISTENT RESERVE OUT (REGISTER)", persistent_reservation::register, OPEN, &[0x00, 0, 0, 0, ALL, ALL, ALL, ALL, CTL]).with_data_out(persistent_reservation::data_out).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_OUT, 0x01, "PERSISTENT RESERVE OUT (RESERVE)", persistent_reservation::reserve, OPEN, &[0x01, ALL, 0, 0, ALL, ALL, ALL, ALL, CTL]).with_data_out(persistent_reservation::data_out).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_OUT, 0x02, "PERSISTENT RESERVE OUT (RELEASE)", persistent_reservation::release, OPEN, &[0x02, ALL, 0, 0, ALL, ALL, ALL, ALL, CTL]).with_data_out(persistent_reservation::data_out).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_OUT, 0x03, "PERSISTENT RESERVE OUT (CLEAR)", persistent_reservation::clear, OPEN, &[0x03, 0, 0, 0, ALL, ALL, ALL, ALL, CTL]).with_data_out(persistent_reservation::data_out).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_OUT, 0x04, "PERSISTENT RESERVE OUT (PREEMPT)", persistent_reservation::preempt, OPEN, &[0x04, ALL, 0, 0, ALL, ALL, ALL, ALL, CTL]).with_data_out(persistent_reservation::data_out).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_OUT, 0x05, "PERSISTENT RESERVE OUT (PREEMPT AND ABORT)", persistent_reservation::preempt_and_abort, OPEN.and(Flags::PASSES_ACA), &[0x05, ALL, 0, 0, ALL, ALL, ALL, ALL, CTL]).with_data_out(persistent_reservation::data_out).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_OUT, 0x06, "PERSISTENT RESERVE OUT (REGISTER AND IGNORE EXISTING KEY)", persistent_reservation::register_and_ignore_existing_key, OPEN, &[0x06, 0, 0, 0, ALL, ALL, ALL, ALL, CTL]).with_data_out(persistent_reservation::data_out).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_OUT, 0x07, "PERSISTENT RESERVE OUT (REGISTER AND MOVE)", persistent_reservation::register_and_move, OPEN, &[0x07, 0, 0, 0, ALL, ALL, ALL, ALL, CTL]).with_data_out(persistent_reservation::data_out).even_in(AllowedStates::Standby),
    action(PERSISTENT_RESERVE_OUT, 0x08, "PERSISTENT RESERVE OUT (REPLACE LOST RESERVATION)", persistent_reservation::replace_lost_reservation, OPEN, &[0x08, ALL, 0, 0, ALL, ALL, ALL, ALL, CTL]).with_data_out(persistent_reservation::data_out).even_in(AllowedStates::Standby),
    action(VARIABLE_LENGTH, SA_READ_32, "READ(32)", block::read, READS, &long(SA_READ_32, 0xfa)).only_where(is_type_2).counted_as(Read).moving(block::transferred_bytes),
    action(VARIABLE_LENGTH, SA_VERIFY_32, "VERIFY(32)", verify::verify, READS, &long(SA_VERIFY_32, 0xf6)).with_data_out(verify::verify_data_out).only_where(is_type_2).counted_as(Other).moving(block::transferred_bytes),
    action(VARIABLE_LENGTH, SA_WRITE_32, "WRITE(32)", block::write, WRITES, &long(SA_WRITE_32, 0xfa)).with_data_out(block::write_data_out).only_where(is_type_2).counted_as(Write),
    action(VARIABLE_LENGTH, SA_WRITE_AND_VERIFY_32, "WRITE AND VERIFY(32)", verify::write_and_verify, WRITES, &long(SA_WRITE_AND_VERIFY_32, 0xf6)).with_data_out(verify::write_and_verify_data_out).only_where(is_type_2).counted_as(Write),
    action(VARIABLE_LENGTH, SA_WRITE_SAME_32, "WRITE SAME(32)", provisioning::write_same, WRITES, &long(SA_WRITE_SAME_32, 0xf9)).with_data_out(provisioning::write_same_data_out).only_where(is_type_2).counted_as(Write).moving(provisioning::filled_bytes),
    action(THIRD_PARTY_COPY_OUT, SA_EXTENDED_COPY_LID1, "EXTENDED COPY(LID1)", extended::extended_copy, NONE, &[0, 0, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]).with_data_out(extended::extended_copy_data_out).counted_as(Other),
    action(THIRD_PARTY_COPY_OUT, SA_POPULATE_TOKEN, "POPULATE TOKEN", offload::populate_token, READS, &[0x10, 0, 0, 0, 0, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(offload::populate_token_data_out).counted_as(Other),
    action(THIRD_PARTY_COPY_OUT, SA_WRITE_USING_TOKEN, "WRITE USING TOKEN", offload::write_using_token, WRITES, &[0x11, 0, 0, 0, 0, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(offload::write_using_token_data_out).counted_as(Other),
    action(THIRD_PARTY_COPY_OUT, SA_COPY_OPERATION_ABORT, "COPY OPERATION ABORT", results::copy_operation_abort, NONE, &[0x1c, ALL, ALL, ALL, ALL, 0, 0, 0, 0, 0, 0, 0, 0, 0, CTL]).counted_as(Other),
    action(THIRD_PARTY_COPY_IN, SA_RECEIVE_COPY_STATUS_LID1, "RECEIVE COPY STATUS(LID1)", results::copy_status_lid1, OPEN, &[0, ALL, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]),
    action(THIRD_PARTY_COPY_IN, SA_RECEIVE_COPY_DATA_LID1, "RECEIVE COPY DATA(LID1)", results::copy_data_lid1, OPEN, &[0x01, ALL, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]),
    action(THIRD_PARTY_COPY_IN, SA_RECEIVE_COPY_OPERATING_PARAMETERS, "RECEIVE COPY OPERATING PARAMETERS", results::operating_parameters, OPEN, &[0x03, 0, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]),
    action(THIRD_PARTY_COPY_IN, SA_RECEIVE_COPY_FAILURE_DETAILS_LID1, "RECEIVE COPY FAILURE DETAILS(LID1)", results::failure_details_lid1, OPEN, &[0x04, ALL, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]),
    action(THIRD_PARTY_COPY_IN, SA_RECEIVE_COPY_STATUS_LID4, "RECEIVE COPY STATUS(LID4)", results::copy_status_lid4, OPEN, &[0x05, ALL, ALL, ALL, ALL, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]),
    action(THIRD_PARTY_COPY_IN, SA_RECEIVE_ROD_TOKEN_INFORMATION, "RECEIVE ROD TOKEN INFORMATION", results::rod_token_information, OPEN, &[0x07, ALL, ALL, ALL, ALL, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]),
    action(THIRD_PARTY_COPY_IN, SA_REPORT_ALL_ROD_TOKENS, "REPORT ALL ROD TOKENS", results::report_all_rod_tokens, OPEN, &[0x08, 0, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]),
    row(READ_16, "READ(16)", block::read, READS, &[0xfa, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).also_on_cd().counted_as(Read).moving(block::transferred_bytes),
    row(COMPARE_AND_WRITE, "COMPARE AND WRITE", verify::compare_and_write, WRITES, &[0xfa, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, 0, 0, ALL, GRP, CTL]).with_data_out(verify::compare_and_write_data_out).counted_as(Write),
    row(WRITE_16, "WRITE(16)", block::write, WRITES, &[0xfa, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(block::write_data_out).counted_as(Write),
    row(ORWRITE_16, "ORWRITE(16)", atomic::or_write, WRITES, &[0xfa, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(atomic::or_write_data_out).counted_as(Write),
    row(WRITE_AND_VERIFY_16, "WRITE AND VERIFY(16)", verify::write_and_verify, WRITES, &[0xf6, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(verify::write_and_verify_data_out).counted_as(Write),
    row(VERIFY_16, "VERIFY(16)", verify::verify, READS, &[0xf6, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(verify::verify_data_out).counted_as(Other).moving(block::transferred_bytes),
    row(PRE_FETCH_16, "PRE-FETCH(16)", cache::pre_fetch, READS, &[0x02, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).counted_as(Other),
    row(SYNCHRONIZE_CACHE_16, "SYNCHRONIZE CACHE(16)", cache::synchronize_cache, MEDIUM, &[0x02, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).counted_as(Flush),
    row(WRITE_SAME_16, "WRITE SAME(16)", provisioning::write_same, WRITES, &[0xf9, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(provisioning::write_same_data_out).counted_as(Write).moving(provisioning::filled_bytes),
    row(WRITE_ATOMIC_16, "WRITE ATOMIC(16)", atomic::write_atomic, WRITES, &[0xf8, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(atomic::write_atomic_data_out).only_where(has_atomic_writes).counted_as(Write),
    action(SERVICE_ACTION_IN_16, SA_READ_CAPACITY_16, "READ CAPACITY(16)", capacity::read_capacity_16, CAPACITY, &[0x10, 0, 0, 0, 0, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]).even_in(AllowedStates::Standby).also_on_cd(),
    action(SERVICE_ACTION_IN_16, SA_GET_LBA_STATUS, "GET LBA STATUS", provisioning::get_lba_status, READS, &[0x12, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CTL]),
    row(REPORT_LUNS, "REPORT LUNS", inquiry::report_luns, ALWAYS, &[0, ALL, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]).also_on_cd().even_in(AllowedStates::Transition),
    row(SECURITY_PROTOCOL_IN, "SECURITY PROTOCOL IN", security::security_protocol_in, HELD.and(SHARED), &[ALL, ALL, ALL, 0x80, 0, ALL, ALL, ALL, ALL, 0, CTL]),
    action(MAINTENANCE_IN, SA_REPORT_IDENTIFYING_INFORMATION, "REPORT IDENTIFYING INFORMATION", identifying_information::report, HELD.and(OPEN), &[0x05, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0xfe, CTL]).only_where(identifying_information::is_kept),
    action(MAINTENANCE_IN, SA_REPORT_TARGET_PORT_GROUPS, "REPORT TARGET PORT GROUPS", target_port_groups::report, HELD.and(OPEN), &[0xea, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]).also_on_cd().even_in(AllowedStates::Transition),
    action(MAINTENANCE_IN, SA_REPORT_SUPPORTED_OPERATION_CODES, "REPORT SUPPORTED OPERATION CODES", report::supported_operation_codes, HELD.and(SHARED), &[0x0c, 0x87, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0, CTL]).also_on_cd().even_in(AllowedStates::Standby),
    action(MAINTENANCE_IN, SA_REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", report::supported_task_management_functions, HELD.and(SHARED), &[0x0d, 0x80, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]).even_in(AllowedStates::Standby).also_on_cd(),
    action(MAINTENANCE_IN, SA_REPORT_TIMESTAMP, "REPORT TIMESTAMP", timestamp::report, HELD.and(OPEN), &[0x0f, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]),
    action(MAINTENANCE_OUT, SA_SET_IDENTIFYING_INFORMATION, "SET IDENTIFYING INFORMATION", identifying_information::set, NONE, &[0x06, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0xfe, CTL]).with_data_out(identifying_information::set_data_out).only_where(identifying_information::is_kept),
    action(MAINTENANCE_OUT, SA_SET_TARGET_PORT_GROUPS, "SET TARGET PORT GROUPS", target_port_groups::set, NONE, &[0x0a, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]).with_data_out(target_port_groups::set_data_out).also_on_cd().even_in(AllowedStates::Unavailable),
    action(MAINTENANCE_OUT, SA_SET_TIMESTAMP, "SET TIMESTAMP", timestamp::set, NONE, &[0x0f, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]).with_data_out(timestamp::set_data_out),
    row(READ_12, "READ(12)", block::read, READS, &[0xfa, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).also_on_cd().counted_as(Read).moving(block::transferred_bytes),
    row(WRITE_12, "WRITE(12)", block::write, WRITES, &[0xfa, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(block::write_data_out).counted_as(Write),
    row(WRITE_AND_VERIFY_12, "WRITE AND VERIFY(12)", verify::write_and_verify, WRITES, &[0xf6, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(verify::write_and_verify_data_out).counted_as(Write),
    row(VERIFY_12, "VERIFY(12)", verify::verify, READS, &[0xf6, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, GRP, CTL]).with_data_out(verify::verify_data_out).counted_as(Other).moving(block::transferred_bytes),
    row(READ_DEFECT_DATA_12, "READ DEFECT DATA(12)", defects::read_defect_data_12, SHARED, &[0x1f, 0, 0, 0, 0, ALL, ALL, ALL, ALL, 0, CTL]),
];

/// Merges two lists of commands. Of the same operation code, rows of the first list come first.
const fn merge<const COUNT: usize>(first: &[Row], second: &[Row]) -> [Row; COUNT] {
    let mut rows = [first[0]; COUNT];
    let (mut from_first, mut from_second) = (0, 0);
    while from_first + from_second < COUNT {
        let is_second = from_first == first.len()
            || (from_second < second.len()
                && second[from_second].operation_code < first[from_first].operation_code);
        let index = from_first + from_second;
        if is_second {
            rows[index] = second[from_second];
            from_second += 1;
        } else {
            rows[index] = first[from_first];
            from_first += 1;
        }
    }
    rows
}

/// All commands, by operation code and service action.
pub static TABLE: &[Row] = &merge::<{ DISK_COMMANDS.len() + multimedia::COMMANDS.len() }>(
    DISK_COMMANDS,
    multimedia::COMMANDS,
);

/// The index of the first row of each operation code; the table's length if there is none.
static FIRST_ROW: [u8; 256] = {
    let mut first = [u8::MAX; 256];
    let mut index = TABLE.len();
    while index > 0 {
        index -= 1;
        first[TABLE[index].operation_code as usize] = index as u8;
    }
    first
};

/// Checks that the table is sorted and that each CDB has the length that its operation code requires.
const _: () = {
    assert!(TABLE.len() < u8::MAX as usize);
    let mut index = 0;
    while index < TABLE.len() {
        let row = &TABLE[index];
        match opcode::cdb_length(row.operation_code) {
            Some(length) => assert!(length == row.cdb_length()),
            None => assert!(row.operation_code == VARIABLE_LENGTH && row.cdb_length() == 32),
        }
        assert!(index == 0 || TABLE[index - 1].operation_code <= row.operation_code);
        index += 1;
    }
};
