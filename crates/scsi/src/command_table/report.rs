//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 6.35,
//! 6.36), answered from the command table.

use super::{Row, TABLE};
use crate::task::{Task, parameter_data};
use crate::{Alua, Completion, LogicalUnit, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::{cdb as wire, opcode, report};
use zerocopy::IntoBytes;

/// RCTD and REPD.
const TIMEOUTS: u8 = 0x80;
/// SUPPORT: not supported, or supported as the standard specifies.
const SUPPORT_NONE: u8 = 0x01;
const SUPPORT_STANDARD: u8 = 0x03;

/// No recommended timeouts: the duration of a command depends on the store.
const NO_TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const _: () = assert!(NO_TIMEOUTS.len() == size_of::<report::CommandTimeouts>());

pub(crate) fn supported_operation_codes(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::MaintenanceIn>();
    let with_timeouts = fields.options & TIMEOUTS != 0;
    let operation_code = fields.requested_operation_code;
    let service_action = fields.requested_service_action.get();
    let bytes = match fields.options & 0x07 {
        0 => all_commands(&task, with_timeouts),
        option @ 1..=3 => {
            let row = requested(task.unit, option, operation_code, service_action)?;
            let row = row.filter(|row| is_supported(&task, row));
            one_command(row, with_timeouts)
        }
        _ => return Err(Sense::invalid_bit_in_cdb(2, 2)),
    };
    Ok(Io::Ready(parameter_data(&bytes, fields.allocation_length.get() as usize)))
}

/// Returns the row that REPORTING OPTIONS 001b, 010b or 011b request.
fn requested(
    unit: &LogicalUnit,
    option: u8,
    operation_code: u8,
    service_action: u16,
) -> Result<Option<&'static Row>, Sense> {
    let mut rows = TABLE.iter().filter(|row| {
        row.operation_code == operation_code && row.devices.include(unit.device_type())
    });
    let has_actions = rows.clone().any(|row| row.service_action.is_some());
    match (option, has_actions) {
        (1, true) => Err(Sense::invalid_field_in_cdb(3)),
        (2, false) if rows.clone().next().is_some() => Err(Sense::invalid_field_in_cdb(4)),
        (_, true) => Ok(rows.find(|row| row.service_action == Some(service_action))),
        // 011b: a command without service actions is supported for service action 0 only.
        (3, false) if service_action != 0 => Ok(None),
        (_, false) => Ok(rows.next()),
    }
}

fn is_supported(task: &Task<'_>, row: &Row) -> bool {
    // ALUA may be implicit alone.
    let sets_groups = (row.operation_code, row.service_action)
        == (opcode::MAINTENANCE_OUT, Some(opcode::SA_SET_TARGET_PORT_GROUPS.into()));
    let changes_groups = || task.nexus.device.target_port_groups().alua() == Alua::Both;
    row.is_supported_by(task.unit) && (!sets_groups || changes_groups())
}

fn all_commands(task: &Task<'_>, with_timeouts: bool) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for row in TABLE.iter().filter(|row| is_supported(task, row)) {
        let action = row.service_action.map_or(0, |_| report::COMMAND_SERVACTV);
        let timeouts = if with_timeouts { report::COMMAND_CTDP } else { 0 };
        let descriptor = report::CommandDescriptor {
            operation_code: row.operation_code,
            reserved_1: 0,
            service_action: row.service_action.unwrap_or(0).into(),
            reserved_4: 0,
            flags: action | timeouts,
            cdb_length: (row.cdb_length() as u16).into(),
        };
        bytes.extend_from_slice(descriptor.as_bytes());
        if with_timeouts {
            bytes.extend_from_slice(&NO_TIMEOUTS);
        }
    }
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

fn one_command(row: Option<&Row>, with_timeouts: bool) -> Vec<u8> {
    let timeouts = if with_timeouts { report::ONE_COMMAND_CTDP } else { 0 };
    let Some(row) = row else {
        return vec![0, SUPPORT_NONE, 0, 0];
    };
    let header = report::OneCommandHeader {
        reserved: 0,
        support: SUPPORT_STANDARD | timeouts,
        cdb_size: (row.cdb_length() as u16).into(),
    };
    let mut bytes = [header.as_bytes(), &[row.operation_code], row.usage].concat();
    if with_timeouts {
        bytes.extend_from_slice(&NO_TIMEOUTS);
    }
    bytes
}

/// ABORT TASK, ABORT TASK SET, CLEAR ACA, CLEAR TASK SET, LOGICAL UNIT RESET and the obsolete TARGET RESET, which iSCSI
/// still defines.
const ATS_ATSS_CACAS_CTSS_LURS_TRS: u8 = 0x80 | 0x40 | 0x20 | 0x10 | 0x08 | 0x02;

pub(crate) fn supported_task_management_functions(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::MaintenanceIn>();
    let allocation_length = fields.allocation_length.get() as usize;
    // SPC-4 6.36: shorter allocation lengths are rejected.
    if allocation_length < 4 {
        return Err(Sense::invalid_field_in_cdb(6));
    }
    let functions = report::TaskManagementFunctions {
        flags_0: ATS_ATSS_CACAS_CTSS_LURS_TRS,
        flags_1: 0,
        reserved: 0,
        additional_length: 0,
    };
    let mut bytes = functions.as_bytes().to_vec();
    if fields.options & TIMEOUTS != 0 {
        // The extended format reports that no timeouts are known.
        bytes[3] = 0x0c;
        bytes.extend_from_slice(&[0; 12]);
    }
    Ok(Io::Ready(parameter_data(&bytes, allocation_length)))
}
