//! REPORT TARGET PORT GROUPS and SET TARGET PORT GROUPS (SPC-4 6.37, 6.45).

use super::{Task, parameter_data};
use crate::target_port_groups::{MAXIMUM_TARGET_PORTS, TargetPortGroup};
use crate::{AccessState, Alua, Cdb, Completion, LogicalUnit, Sense, TargetDevice};
use sarsen_block::Io;
use sarsen_wire::scsi::{cdb, target_port_groups as wire};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// T_SUP, O_SUP, U_SUP, S_SUP, AN_SUP and AO_SUP: all states except the one that depends on blocks.
const SUPPORTED: u8 = 0x80 | 0x40 | 0x08 | 0x04 | 0x02 | 0x01;
/// IMPLICIT TRANSITION TIME: the time that initiators use by convention if none is reported.
const IMPLICIT_TRANSITION_TIME_S: u8 = 60;
/// ASYMMETRIC ACCESS STATE, without the reserved bits of its byte.
const ACCESS_STATE: u8 = 0x0f;
/// The maximum length of the list. A longer list would contain a group twice.
const MAXIMUM_LIST_LENGTH: usize =
    size_of::<wire::SetHeader>() + MAXIMUM_TARGET_PORTS * size_of::<wire::SetDescriptor>();

pub(crate) fn report(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<cdb::MaintenanceIn>();
    let is_extended = match fields.service_action & wire::REPORT_FORMAT {
        0 => false,
        wire::REPORT_FORMAT_EXTENDED => true,
        _ => return Err(Sense::invalid_bit_in_cdb(1, 7)),
    };
    let mut body = Vec::new();
    if is_extended {
        let header = wire::ExtendedHeader {
            format: wire::EXTENDED_RETURN_DATA_FORMAT,
            implicit_transition_time_s: IMPLICIT_TRANSITION_TIME_S,
            reserved: [0; 2],
        };
        body.extend_from_slice(header.as_bytes());
    }
    let groups = task.nexus.device.target_port_groups();
    let held = groups.hold();
    for group in groups.all().iter() {
        body.extend_from_slice(group_descriptor(group).as_bytes());
        let port =
            wire::PortDescriptor { obsolete: [0; 2], relative_target_port: group.number.into() };
        body.extend_from_slice(port.as_bytes());
    }
    drop(held);
    let header = wire::ReportHeader { return_data_length: (body.len() as u32).into() };
    let bytes = [header.as_bytes(), &body].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.allocation_length.get() as usize)))
}

/// Returns the descriptor of a group. An offline port is reported in the descriptor of its own group instead of a
/// secondary group, since initiators expect it there.
fn group_descriptor(group: &TargetPortGroup) -> wire::GroupDescriptor {
    let preferred = if group.is_preferred() { wire::GROUP_PREF } else { 0 };
    wire::GroupDescriptor {
        access_state: preferred | group.state() as u8,
        supported: SUPPORTED,
        target_port_group: group.number.into(),
        reserved: 0,
        status_code: group.status_code(),
        vendor_specific: 0,
        target_port_count: 1,
    }
}

pub(crate) fn set_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    let fields = cdb.view::<wire::SetTargetPortGroups>();
    let length = fields.parameter_list_length.get() as usize;
    if length > MAXIMUM_LIST_LENGTH { Err(Sense::invalid_field_in_cdb(6)) } else { Ok(length) }
}

pub(crate) fn set(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    if task.nexus.device.target_port_groups().alua() == Alua::Implicit {
        return Err(Sense::invalid_bit_in_cdb(1, 4));
    }
    let length = set_data_out(&task.cdb, task.unit)?;
    let list = task.take_data_out(length)?;
    let states = parse(&task.nexus.device, &list)?;
    // The state of a group applies to all units of the target. An initiator that sees only some of them may not change
    // it.
    if !task.nexus.has_whole_target() {
        return Err(Sense::no_access_rights());
    }
    task.nexus.device.set_explicitly(&states, task.nexus.id, task.unit)?;
    Ok(Io::Ready(Completion::good()))
}

/// Returns the requested state changes. An empty list, or no list, requests nothing.
fn parse(
    device: &TargetDevice,
    list: &[u8],
) -> Result<Vec<(Arc<TargetPortGroup>, AccessState)>, Sense> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let (_, rest) =
        wire::SetHeader::ref_from_prefix(list).map_err(|_| Sense::parameter_list_length_error())?;
    let descriptors = <[wire::SetDescriptor]>::ref_from_bytes(rest)
        .map_err(|_| Sense::parameter_list_length_error())?;
    let mut states: Vec<(Arc<TargetPortGroup>, AccessState)> = Vec::new();
    for (index, descriptor) in descriptors.iter().enumerate() {
        let offset =
            (size_of::<wire::SetHeader>() + index * size_of::<wire::SetDescriptor>()) as u16;
        let state = AccessState::of(descriptor.access_state & ACCESS_STATE)
            .filter(|state| *state != AccessState::Transitioning)
            .ok_or(Sense::invalid_bit_in_parameter_list(offset, 3))?;
        // For the offline state this is a relative target port identifier, which is the same number.
        let group = device
            .target_port_groups()
            .find(descriptor.number.get())
            .ok_or(Sense::invalid_field_in_parameter_list(offset + 2))?;
        if states.iter().any(|(other, _)| Arc::ptr_eq(other, &group)) {
            return Err(Sense::invalid_field_in_parameter_list(offset + 2));
        }
        states.push((group, state));
    }
    Ok(states)
}
