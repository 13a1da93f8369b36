//! A row of the command table: one command, its handler, its conditions of execution and its CDB usage map. Each device
//! type with commands of its own lists them in rows like these.

use crate::commands::block;
use crate::flags::Flags;
use crate::task::Handler;
use crate::{AllowedStates, Cdb, Command, DeviceType, LogicalUnit, Sense};
use sarsen_volume::{Operation, OperationKind};
use sarsen_wire::scsi::opcode::{SANITIZE, VARIABLE_LENGTH};
use std::fmt;

/// Returns the number of Data-Out bytes that a CDB needs, or an error if the CDB will be rejected.
pub(crate) type DataOut = fn(&Cdb, &LogicalUnit) -> Result<usize, Sense>;

/// Returns the number of bytes that a command transfers, compares or fills.
pub(crate) type MovedBytes = fn(&Command, &LogicalUnit) -> u64;

/// Returns whether a unit supports a command that its device type allows.
pub(crate) type Condition = fn(&LogicalUnit) -> bool;

/// The device types that support a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandDeviceTypes {
    /// Disks only.
    Disk,
    /// CDs only.
    Cd,
    /// Disks and CDs.
    Both,
}

impl CommandDeviceTypes {
    pub(crate) const fn include(self, device_type: DeviceType) -> bool {
        matches!(
            (self, device_type),
            (Self::Both, _) | (Self::Disk, DeviceType::Disk) | (Self::Cd, DeviceType::Cd)
        )
    }
}

/// One command.
#[derive(Clone, Copy)]
pub struct Row {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SERVICE ACTION, for operation codes that have them.
    pub service_action: Option<u16>,
    /// The name in the standard.
    pub name: &'static str,
    /// The conditions of execution.
    pub flags: Flags,
    /// The CDB usage map: the bits that the server checks, without the operation code itself (SPC-4 6.35.3).
    pub usage: &'static [u8],
    /// The device types that support it.
    pub devices: CommandDeviceTypes,
    /// The asymmetric access states in which it is executed, beyond the active ones.
    pub access: AllowedStates,
    pub(crate) handler: Handler,
    pub(crate) data_out: Option<DataOut>,
    /// The command, as limits and statistics see it.
    pub operation: Operation,
    pub(crate) moved_bytes: MovedBytes,
    condition: Condition,
    passes_persistent: fn(&Cdb) -> bool,
}

impl Row {
    /// Returns the sense data for an operation code without such a service action.
    pub(crate) const fn no_such_action(operation_code: u8) -> Sense {
        match operation_code {
            VARIABLE_LENGTH => Sense::invalid_field_in_cdb(8),
            _ => Sense::invalid_bit_in_cdb(1, 4),
        }
    }

    /// Returns the sense data of a unit that does not support the command, but may support other commands of its
    /// operation code.
    pub(crate) const fn unsupported(&self) -> Sense {
        match self.operation_code {
            SANITIZE => Self::no_such_action(SANITIZE),
            _ => Sense::invalid_operation_code(),
        }
    }

    /// Returns the length of the command's CDB in bytes.
    pub const fn cdb_length(&self) -> usize {
        self.usage.len() + 1
    }

    /// Returns the offset of CONTROL in the command's CDB.
    pub const fn control_offset(&self) -> usize {
        match self.operation_code {
            VARIABLE_LENGTH => 1,
            _ => self.usage.len(),
        }
    }

    /// Returns whether this unit supports the command.
    pub fn is_supported_by(&self, unit: &LogicalUnit) -> bool {
        self.devices.include(unit.device_type()) && (self.condition)(unit)
    }

    /// Returns whether the command is permitted under reservations that need these flags.
    pub(crate) fn passes(&self, cdb: &Cdb, needed: Flags) -> bool {
        self.flags.contains(needed)
            || (!needed.contains(Flags::ALLOWED_WHEN_RESERVED) && (self.passes_persistent)(cdb))
    }

    /// Sets the function that computes the Data-Out length.
    pub(crate) const fn with_data_out(self, data_out: DataOut) -> Self {
        Self { data_out: Some(data_out), ..self }
    }

    /// Sets the kind of a command that uses the medium. Limits apply to it.
    pub(crate) const fn counted_as(self, kind: OperationKind) -> Self {
        Self { operation: Operation::of(kind), ..self }
    }

    /// Sets the function that computes the bytes that limits count, if they are not those of Data-Out.
    pub(crate) const fn moving(self, moved_bytes: MovedBytes) -> Self {
        Self { moved_bytes, ..self }
    }

    /// Limits the command to units that meet `condition`.
    pub(crate) const fn only_where(self, condition: Condition) -> Self {
        Self { condition, ..self }
    }

    /// Sets the asymmetric access states in which the command is executed.
    pub(crate) const fn even_in(self, access: AllowedStates) -> Self {
        Self { access, ..self }
    }

    /// Permits the command under every persistent reservation if `holds` returns true, regardless of its flags.
    pub(crate) const fn passing_where(self, holds: fn(&Cdb) -> bool) -> Self {
        Self { passes_persistent: holds, ..self }
    }

    /// Adds CDs to the device types.
    pub(crate) const fn also_on_cd(self) -> Self {
        Self { devices: CommandDeviceTypes::Both, ..self }
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:02x}h)", self.name, self.operation_code)
    }
}

/// Creates the row of a command of disks without further properties.
pub(crate) const fn row(
    operation_code: u8,
    name: &'static str,
    handler: Handler,
    flags: Flags,
    usage: &'static [u8],
) -> Row {
    Row {
        operation_code,
        service_action: None,
        name,
        flags,
        usage,
        devices: CommandDeviceTypes::Disk,
        access: AllowedStates::Active,
        handler,
        data_out: None,
        operation: Operation::QUERY,
        moved_bytes: block::sent_bytes,
        condition: |_| true,
        passes_persistent: |_| false,
    }
}

/// Creates the same for a service action.
pub(crate) const fn action(
    operation_code: u8,
    service_action: u8,
    name: &'static str,
    handler: Handler,
    flags: Flags,
    usage: &'static [u8],
) -> Row {
    let service_action = Some(service_action as u16);
    Row { service_action, ..row(operation_code, name, handler, flags, usage) }
}

/// Executed despite unit attentions and reservations.
pub(crate) const ANY: Flags = Flags::IGNORES_UNIT_ATTENTION.and(HELD).and(OPEN);
/// Executed also during an operation on the whole medium.
pub(crate) const ALWAYS: Flags = ANY.and(Flags::ALLOWED_DURING_OPERATION);
/// Permitted under SPC-2 reservations.
pub(crate) const HELD: Flags = Flags::ALLOWED_WHEN_RESERVED;
/// Permitted under persistent reservations of every type.
pub(crate) const OPEN: Flags = SHARED.and(Flags::ALLOWED_UNDER_EXCLUSIVE_ACCESS);
/// Permitted under persistent reservations that allow other nexuses to read.
pub(crate) const SHARED: Flags = Flags::ALLOWED_UNDER_WRITE_EXCLUSIVE;
pub(crate) const NONE: Flags = Flags::NONE;
pub(crate) const MEDIUM: Flags = Flags::NEEDS_MEDIUM;
pub(crate) const READS: Flags = Flags::READ_COMMAND;
pub(crate) const WRITES: Flags = Flags::WRITE_COMMAND;
/// Writes the medium and is permitted after a failed operation, so that it can end the failure.
pub(crate) const MENDS: Flags = WRITES.and(Flags::ALLOWED_AFTER_FAILURE);
pub(crate) const CAPACITY: Flags = HELD.and(OPEN).and(MEDIUM).and(Flags::ALLOWED_AFTER_FAILURE);

pub(crate) const ALL: u8 = 0xff;
/// CONTROL: the server checks NACA.
pub(crate) const CTL: u8 = 0x04;
/// GROUP NUMBER: accepted, but there are no statistics for groups.
pub(crate) const GRP: u8 = 0x1f;
