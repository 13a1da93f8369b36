//! PERSISTENT RESERVE IN and PERSISTENT RESERVE OUT (SPC-4 6.15, 6.16).

use super::{Task, parameter_data};
use crate::medium::RemovalPrevention;
use crate::refusal::Refusal;
use crate::reservations::refusal;
use crate::reservations::transport_id::{self, Problem, TransportId};
use crate::{AbortedTasks, AdditionalSense, Cdb, Completion, LogicalUnit, Sense, SenseKey, Status};
use sarsen_block::{Buffer, Io};
use sarsen_volume::reservations::{
    Action, InvalidType, NexusName, REGISTRATIONS_LIMIT, Register, Reservation, ReservationError,
    ReservationState, Type,
};
use sarsen_wire::scsi::reservation as wire;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// The maximum length of a parameter list: space for some hundreds of TransportIDs.
const PARAMETER_LIST_LIMIT: u32 = 128 << 10;
/// The mask of SCOPE. Only LU_SCOPE, the whole unit, is supported.
const SCOPE: u8 = 0xf0;
const TYPE: u8 = 0x0f;
/// ALLOW COMMANDS: TEST UNIT READY and the commands that report on copies are permitted under every reservation.
/// Commands that read the unit's parameters are permitted under Write Exclusive (SPC-4 table 208).
const ALLOW_COMMANDS: u8 = 0b100;
/// Length of the field TRANSPORTID PARAMETER DATA LENGTH, which follows the basic list.
const LENGTH_OF_IDS: usize = 4;

// PERSISTENT RESERVE IN

/// Responds with the header and the bytes that `content` builds from the state. Only REPORT CAPABILITIES has no such
/// header.
fn read(
    task: &Task<'_>,
    content: impl FnOnce(&ReservationState) -> Vec<u8>,
) -> Result<Io<Completion>, Sense> {
    let state = match task.unit.volume().persistent_reservations() {
        Ok(state) => state,
        Err(error) => return refused(error),
    };
    let content = content(&state);
    let header = wire::ReserveInHeader {
        generation: state.generation.into(),
        additional_length: (content.len() as u32).into(),
    };
    Ok(answer(task, &[header.as_bytes(), &content].concat()))
}

fn answer(task: &Task<'_>, bytes: &[u8]) -> Io<Completion> {
    let allocation_length = task.cdb.view::<wire::PersistentReserveIn>().allocation_length.get();
    Io::Ready(parameter_data(bytes, usize::from(allocation_length)))
}

fn refused(error: ReservationError) -> Result<Io<Completion>, Sense> {
    match refusal(error, None) {
        Refusal::Sense(sense) => Err(sense),
        Refusal::ReservationConflict => {
            Ok(Io::Ready(Completion::with_status(Status::ReservationConflict)))
        }
    }
}

pub(crate) fn read_keys(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    read(&task, |state| {
        state.registrations.iter().flat_map(|known| known.key.to_be_bytes()).collect()
    })
}

pub(crate) fn read_reservation(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    read(&task, |state| {
        let Some(Reservation { holder, reservation_type }) = &state.reservation else {
            return Vec::new();
        };
        // SPC-4 5.12.10: an all registrants reservation has no key.
        let key = holder.as_ref().and_then(|holder| state.key_of(holder)).unwrap_or(0);
        let descriptor = wire::ReservationDescriptor {
            reservation_key: key.into(),
            scope_and_type: *reservation_type as u8,
            ..Default::default()
        };
        descriptor.as_bytes().to_vec()
    })
}

pub(crate) fn report_capabilities(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let state = match task.unit.volume().persistent_reservations() {
        Ok(state) => state,
        Err(error) => return refused(error),
    };
    let mut capable = wire::CAPABLE_REPLACE_LOST_RESERVATION
        | wire::CAPABLE_COMPATIBLE_RESERVATION_HANDLING
        | wire::CAPABLE_SPECIFY_INITIATOR_PORTS
        | wire::CAPABLE_ALL_TARGET_PORTS;
    let mut flags = wire::TYPE_MASK_VALID | ALLOW_COMMANDS << wire::ALLOW_COMMANDS_SHIFT;
    if task.unit.metadata().is_some() {
        capable |= wire::CAPABLE_PERSIST_THROUGH_POWER_LOSS;
    }
    if state.aptpl {
        flags |= wire::PERSIST_THROUGH_POWER_LOSS_ACTIVATED;
    }
    let types = Type::ALL.into_iter().fold(0u16, |mask, known| mask | 1 << known as u8);
    let capabilities = wire::ReserveCapabilities {
        length: (size_of::<wire::ReserveCapabilities>() as u16).into(),
        capable,
        flags,
        type_mask: types.to_le_bytes(),
        reserved: [0; 2],
    };
    Ok(answer(&task, capabilities.as_bytes()))
}

pub(crate) fn read_full_status(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    read(&task, |state| {
        let mut bytes = Vec::new();
        for known in &state.registrations {
            let held = state.reservation.as_ref().filter(|_| state.is_holder(&known.nexus));
            let id = transport_id::to_bytes(&known.nexus.initiator_port);
            let descriptor = wire::FullStatusDescriptor {
                reservation_key: known.key.into(),
                flags: if held.is_some() { wire::FULL_STATUS_R_HOLDER } else { 0 },
                scope_and_type: held.map_or(0, |held| held.reservation_type as u8),
                relative_target_port: known.nexus.target_port.into(),
                additional_descriptor_length: (id.len() as u32).into(),
                ..Default::default()
            };
            bytes.extend_from_slice(descriptor.as_bytes());
            bytes.extend_from_slice(&id);
        }
        bytes
    })
}

// PERSISTENT RESERVE OUT

/// Returns the length of the parameter list. A list above the maximum is rejected before it is sent.
pub(crate) fn data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    match cdb.view::<wire::PersistentReserveOut>().parameter_list_length.get() {
        length @ 0..=PARAMETER_LIST_LIMIT => Ok(length as usize),
        _ => Err(Sense::parameter_list_length_error()),
    }
}

fn take_list(task: &mut Task<'_>) -> Result<Buffer, Sense> {
    let length = data_out(&task.cdb, task.unit)?;
    task.take_data_out(length)
}

/// Reads the basic list of a service action without TransportIDs.
fn take_basic_list(task: &mut Task<'_>) -> Result<wire::BasicList, Sense> {
    let bytes = take_list(task)?;
    let (list, rest) = wire::BasicList::read_from_prefix(&bytes)
        .map_err(|_| Sense::parameter_list_length_error())?;
    if list.flags & wire::SPEC_I_PT != 0 {
        return Err(Sense::invalid_bit_in_parameter_list(20, 3));
    }
    if rest.is_empty() { Ok(list) } else { Err(Sense::parameter_list_length_error()) }
}

/// Checks SCOPE and TYPE, for the service actions that use them.
fn reservation_type(cdb: &Cdb) -> Result<Type, Sense> {
    let scope_and_type = cdb.view::<wire::PersistentReserveOut>().scope_and_type;
    if scope_and_type & SCOPE != 0 {
        return Err(Sense::invalid_bit_in_cdb(2, 7));
    }
    Type::from_code(scope_and_type & TYPE).ok_or(Sense::invalid_bit_in_cdb(2, 3))
}

/// Executes a service action.
fn change(task: &Task<'_>, action: Action, aborts: bool) -> Io<Completion> {
    let unit = Arc::clone(task.unit);
    let nexus = task.nexus.name.clone();
    let invalid_type = reservation_type(&task.cdb).err();
    task.unit.complete_after(async move {
        let answered = unit.modes().current().tasks.task_aborted_status;
        let changed = unit.volume().change_reservations(nexus, action).await;
        match changed.map_err(|error| refusal(error, invalid_type)) {
            Ok(changed) if aborts => {
                // SPC-4 5.12.11.2.6: the preempted nexuses no longer prevent medium removal.
                for &nexus in &changed.preempted {
                    unit.medium().set_removal(nexus, RemovalPrevention::Allowed);
                }
                // A copy writes without a task of this unit that could be waited for. Writes behind the gate end first;
                // later ones see the reservation.
                unit.volume().write_gate().wait_for_writes().await;
                let abort = AbortedTasks { nexuses: changed.preempted, answered };
                Ok(Completion { abort: Some(Box::new(abort)), ..Completion::good() })
            }
            Ok(_) => Ok(Completion::good()),
            Err(Refusal::Sense(sense)) => Err(sense),
            Err(Refusal::ReservationConflict) => {
                Ok(Completion::with_status(Status::ReservationConflict))
            }
        }
    })
}

/// Returns APTPL. Rejects it, in bit 0 of `byte`, if the unit has no metadata store.
fn aptpl(task: &Task<'_>, flags: u8, byte: u16) -> Result<bool, Sense> {
    match (flags & wire::APTPL != 0, task.unit.metadata()) {
        (true, None) => Err(Sense::invalid_bit_in_parameter_list(byte, 0)),
        (asked, _) => Ok(asked),
    }
}

/// Returns all target ports if ALL_TG_PT is set, else the port of the command.
fn target_ports(task: &Task<'_>, all: bool) -> Vec<u16> {
    let ports = task.nexus.device.target_port_groups();
    if all {
        ports.all().iter().map(|port| port.number).collect()
    } else {
        vec![task.nexus.name.target_port]
    }
}

fn registration(
    task: &Task<'_>,
    list: &wire::BasicList,
    ignores_key: bool,
    specified: Option<Vec<Arc<str>>>,
) -> Result<Io<Completion>, Sense> {
    let register = Register {
        key: (!ignores_key).then(|| list.reservation_key.get()),
        new_key: list.service_action_reservation_key.get(),
        aptpl: aptpl(task, list.flags, 20)?,
        target_ports: target_ports(task, list.flags & wire::ALL_TG_PT != 0),
        specified,
    };
    Ok(change(task, Action::Register(register), false))
}

pub(crate) fn register(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let bytes = take_list(&mut task)?;
    let (list, rest) = wire::BasicList::read_from_prefix(&bytes)
        .map_err(|_| Sense::parameter_list_length_error())?;
    let specified = match list.flags & wire::SPEC_I_PT {
        0 if rest.is_empty() => None,
        0 => return Err(Sense::parameter_list_length_error()),
        _ => Some(specified_ports(task.unit, rest)?),
    };
    registration(&task, &list, false, specified)
}

/// Returns the initiator ports that follow a list with SPEC_I_PT.
fn specified_ports(unit: &LogicalUnit, bytes: &[u8]) -> Result<Vec<Arc<str>>, Sense> {
    let length_error = Sense::parameter_list_length_error();
    let (length, mut ids) = bytes.split_first_chunk::<LENGTH_OF_IDS>().ok_or(length_error)?;
    if u32::from_be_bytes(*length) as usize != ids.len() {
        return Err(length_error);
    }
    let mut ports = Vec::new();
    let mut offset = size_of::<wire::BasicList>() + LENGTH_OF_IDS;
    while !ids.is_empty() {
        let (named, length) = named_ports(unit, ids, offset)?;
        // One identifier may name many ports, and a list may have thousands of identifiers.
        if ports.len() + named.len() > REGISTRATIONS_LIMIT {
            let additional = AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES;
            return Err(Sense::new(SenseKey::IllegalRequest, additional));
        }
        ports.extend(named);
        ids = &ids[length..];
        offset += length;
    }
    Ok(ports)
}

/// Returns the initiator ports of the TransportID at `offset` of the parameter list, and the length of the TransportID.
fn named_ports(
    unit: &LogicalUnit,
    bytes: &[u8],
    offset: usize,
) -> Result<(Vec<Arc<str>>, usize), Sense> {
    let (id, length) = transport_id::parse(bytes).map_err(|problem| match problem {
        Problem::Truncated => Sense::parameter_list_length_error(),
        Problem::Invalid(byte) => Sense::invalid_parameter_at(offset + usize::from(byte)),
    })?;
    let ports = match id {
        TransportId::Port(port) => vec![port],
        TransportId::Device(device) => unit.known_initiator_ports(&device),
    };
    if ports.is_empty() {
        Err(Sense::invalid_parameter_at(offset + size_of::<wire::TransportIdHeader>()))
    } else {
        Ok((ports, length))
    }
}

pub(crate) fn register_and_ignore_existing_key(
    mut task: Task<'_>,
) -> Result<Io<Completion>, Sense> {
    let list = take_basic_list(&mut task)?;
    registration(&task, &list, true, None)
}

pub(crate) fn reserve(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let key = take_basic_list(&mut task)?.reservation_key.get();
    let reservation_type = reservation_type(&task.cdb).map_err(|_| InvalidType);
    Ok(change(&task, Action::Reserve { key, reservation_type }, false))
}

pub(crate) fn release(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let key = take_basic_list(&mut task)?.reservation_key.get();
    let reservation_type = reservation_type(&task.cdb).map_err(|_| InvalidType);
    Ok(change(&task, Action::Release { key, reservation_type }, false))
}

pub(crate) fn clear(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let key = take_basic_list(&mut task)?.reservation_key.get();
    Ok(change(&task, Action::Clear { key }, false))
}

fn preemption(task: &mut Task<'_>) -> Result<Action, Sense> {
    let list = take_basic_list(task)?;
    Ok(Action::Preempt {
        key: list.reservation_key.get(),
        victim: list.service_action_reservation_key.get(),
        reservation_type: reservation_type(&task.cdb).map_err(|_| InvalidType),
    })
}

pub(crate) fn preempt(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let action = preemption(&mut task)?;
    Ok(change(&task, action, false))
}

pub(crate) fn preempt_and_abort(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let action = preemption(&mut task)?;
    Ok(change(&task, action, true))
}

pub(crate) fn register_and_move(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let bytes = take_list(&mut task)?;
    let (list, id) = wire::RegisterAndMoveList::ref_from_prefix(&bytes)
        .map_err(|_| Sense::parameter_list_length_error())?;
    if list.transport_id_length.get() as usize != id.len() {
        return Err(Sense::parameter_list_length_error());
    }
    let offset = size_of::<wire::RegisterAndMoveList>();
    let (ports, length) = named_ports(task.unit, id, offset)?;
    if length != id.len() {
        return Err(Sense::invalid_field_in_parameter_list(20));
    }
    // A reservation can be moved to one nexus only.
    let [initiator_port] = <[Arc<str>; 1]>::try_from(ports)
        .map_err(|_| Sense::invalid_field_in_parameter_list(offset as u16))?;
    let target_port = list.relative_target_port.get();
    if !target_ports(&task, true).contains(&target_port) {
        return Err(Sense::invalid_field_in_parameter_list(18));
    }
    let action = Action::RegisterAndMove {
        key: list.reservation_key.get(),
        new_key: list.service_action_reservation_key.get(),
        unregister: list.flags & wire::UNREG != 0,
        aptpl: aptpl(&task, list.flags, 17)?,
        to: NexusName { initiator_port, target_port },
    };
    Ok(change(&task, action, false))
}

/// Rejects the command, since no reservation is ever lost (SPC-4 5.12.11.3). If a record is damaged, the unit does not
/// start.
pub(crate) fn replace_lost_reservation(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    take_basic_list(&mut task)?;
    if let Err(error) = task.unit.volume().persistent_reservations() {
        return refused(error);
    }
    let additional = AdditionalSense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION;
    Err(Sense::new(SenseKey::IllegalRequest, additional))
}
