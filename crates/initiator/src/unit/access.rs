//! Asymmetric logical unit access (SPC-4 5.16): the access states of a unit's target port groups.

use sarsen_block::Buffer;
use sarsen_wire::scsi::cdb::MaintenanceIn;
use sarsen_wire::scsi::inquiry::{
    DesignationHeader, NumberDesignator, PAGE_DEVICE_IDENTIFICATION, StandardInquiry, TPGS_BOTH,
    TPGS_EXPLICIT,
};
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::target_port_groups::{
    GroupDescriptor, PortDescriptor, ReportHeader, SetDescriptor, SetHeader, SetTargetPortGroups,
};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::{Command, TransferRequest, Unit};
use crate::error::{Sense, SenseKey, SessionError};

/// ASSOCIATION: the target port; DESIGNATOR TYPE: target port group (SPC-4 7.8.6.8).
const DESIGNATOR_GROUP: u8 = 0x15;
const DESIGNATOR_KIND: u8 = 0x3f;
/// ASYMMETRIC ACCESS STATE in a group descriptor.
const ACCESS_STATE: u8 = 0x0f;

/// ASYMMETRIC ACCESS STATE (SPC-4 6.37). A better state is less than a worse one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AccessState {
    /// Active/optimized, also of units without asymmetric access.
    #[default]
    Optimized,
    /// Active/non-optimized, or logical block dependent.
    NonOptimized,
    /// Transition from one state to another.
    Transitioning,
    /// Standby.
    Standby,
    /// Unavailable.
    Unavailable,
    /// Offline.
    Offline,
}

impl AccessState {
    const fn of(code: u8) -> Self {
        match code {
            0x0 => Self::Optimized,
            0x1 | 0x4 => Self::NonOptimized,
            0x2 => Self::Standby,
            0x3 => Self::Unavailable,
            0xf => Self::Transitioning,
            _ => Self::Offline,
        }
    }

    /// Returns whether the blocks can be read and written.
    pub(crate) const fn is_active(self) -> bool {
        matches!(self, Self::Optimized | Self::NonOptimized)
    }

    /// Returns the state because of which a command was not carried out ("logical unit not accessible", SPC-4 5.16.2.4).
    pub(crate) fn denied(sense: &Sense) -> Option<Self> {
        match (sense.key, sense.asc, sense.ascq) {
            (SenseKey::NotReady, 0x04, 0x0a) => Some(Self::Transitioning),
            (SenseKey::NotReady, 0x04, 0x0b) => Some(Self::Standby),
            (SenseKey::NotReady, 0x04, 0x0c) => Some(Self::Unavailable),
            _ => None,
        }
    }
}

/// The access of a unit through the port of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access {
    /// The target port group of the port; `None` if the unit reports none.
    pub(crate) group: Option<u16>,
    /// The state of each group that the unit reports.
    pub(crate) states: Vec<(u16, AccessState)>,
    /// Initiators may change the states (explicit asymmetric access).
    pub(crate) is_explicit: bool,
}

impl Access {
    /// Returns the state of a target port group.
    pub(crate) fn state_of(&self, group: Option<u16>) -> AccessState {
        let own = self.states.iter().find(|(other, _)| Some(*other) == group);
        own.map_or(AccessState::Optimized, |(_, state)| *state)
    }
}

impl Unit {
    /// Returns the access of the unit. It has no groups if the unit has no asymmetric access.
    pub(crate) async fn access(&self) -> Result<Access, SessionError> {
        let inquiry = self.inquiry_data(None).await?;
        let flags = inquiry.get(std::mem::offset_of!(StandardInquiry, flags_5));
        let flags = flags.copied().unwrap_or_default() & TPGS_BOTH;
        if flags == 0 {
            return Ok(Access::default());
        }
        let group = self.page(PAGE_DEVICE_IDENTIFICATION).await?.and_then(|list| group(&list));
        const LENGTH: u32 = 4096;
        let cdb = MaintenanceIn {
            operation_code: opcode::MAINTENANCE_IN,
            service_action: opcode::SA_REPORT_TARGET_PORT_GROUPS,
            options: 0,
            requested_operation_code: 0,
            requested_service_action: U16::ZERO,
            allocation_length: U32::new(LENGTH),
            reserved: 0,
            control: 0,
        };
        let states = states(&self.fetch(cdb.as_bytes(), LENGTH).await?);
        Ok(Access { group, states, is_explicit: flags & TPGS_EXPLICIT != 0 })
    }
}

/// Returns SET TARGET PORT GROUPS, which makes a target port group active/optimized (SPC-4 6.45).
pub(crate) fn activation(group: u16) -> Command {
    let list = SetDescriptor { access_state: 0, reserved: 0, number: group.into() };
    let list = [[0; size_of::<SetHeader>()].as_slice(), list.as_bytes()].concat();
    let cdb = SetTargetPortGroups {
        operation_code: opcode::MAINTENANCE_OUT,
        service_action: opcode::SA_SET_TARGET_PORT_GROUPS,
        reserved_2: [0; 4],
        parameter_list_length: U32::new(list.len() as u32),
        reserved_10: 0,
        control: 0,
    };
    Command::new(cdb.as_bytes(), TransferRequest::Write(Buffer::copy_of(&list)))
}

/// Returns the target port group of the port from the designators of page 83h.
fn group(mut designators: &[u8]) -> Option<u16> {
    while let Ok((header, rest)) = DesignationHeader::ref_from_prefix(designators) {
        let designator = rest.get(..usize::from(header.designator_length))?;
        if header.designator_type & DESIGNATOR_KIND == DESIGNATOR_GROUP {
            let (group, _) = NumberDesignator::ref_from_prefix(designator).ok()?;
            return Some(group.number.get());
        }
        designators = &rest[designator.len()..];
    }
    None
}

/// Returns the states of the groups from the data of REPORT TARGET PORT GROUPS.
fn states(data: &[u8]) -> Vec<(u16, AccessState)> {
    let Ok((header, rest)) = ReportHeader::ref_from_prefix(data) else { return Vec::new() };
    let mut rest = &rest[..rest.len().min(header.return_data_length.get() as usize)];
    let mut states = Vec::new();
    while let Ok((group, after)) = GroupDescriptor::ref_from_prefix(rest) {
        let state = AccessState::of(group.access_state & ACCESS_STATE);
        states.push((group.target_port_group.get(), state));
        let ports = usize::from(group.target_port_count) * size_of::<PortDescriptor>();
        rest = after.get(ports..).unwrap_or_default();
    }
    states
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spc4_6_37_the_states_of_all_groups_are_read() {
        let data = [
            [0, 0, 0, 32].as_slice(),
            &[0x80, 0xff, 1, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2], // preferred, with two ports
            &[0x0f, 0xff, 0, 3, 0, 0, 0, 0],
            &[0x04, 0xff, 0, 4, 0, 0, 0, 0],
            &[0x0e, 0xff, 0, 5, 0, 0, 0, 0], // beyond the length
        ]
        .concat();
        let found = [
            (0x102, AccessState::Optimized),
            (3, AccessState::Transitioning),
            (4, AccessState::NonOptimized),
        ];
        assert_eq!(states(&data), found);
        assert_eq!(states(&data[..22]), found[..1], "cut short");
        assert_eq!(states(&[0, 0]), []);
        let access = Access { group: Some(3), states: found.to_vec(), is_explicit: false };
        assert_eq!(access.state_of(Some(3)), AccessState::Transitioning);
        assert_eq!(access.state_of(None), AccessState::Optimized);
    }

    #[test]
    fn spc4_6_45_an_activation_names_the_group_and_its_state() {
        let Command { cdb, transfer, .. } = activation(0x102);
        assert_eq!(cdb[..12], [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]);
        let TransferRequest::Write(list) = transfer else { panic!("it has a parameter list") };
        assert_eq!(*list, [0, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn spc4_7_8_6_8_the_group_of_the_port_is_found_behind_other_designators() {
        let list = [
            [0x01, 0x03, 0, 2, 0x60, 0x01].as_slice(), // NAA, of the unit
            &[0x01, 0x05, 0, 4, 0, 0, 9, 9],           // a group, but of the unit
            &[0x51, 0x95, 0, 4, 0, 0, 1, 2],           // the group of the port
        ]
        .concat();
        assert_eq!(group(&list), Some(0x102));
        assert_eq!(group(&list[..list.len() - 1]), None, "cut short");
    }
}
