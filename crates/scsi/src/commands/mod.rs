//! The handlers, by family. A handler checks its CDB and parameter list completely before it has
//! any effect; what it needs from the store it waits for.

pub(crate) mod atomic;
pub(crate) mod block;
pub(crate) mod buffer;
pub(crate) mod cache;
pub(crate) mod capacity;
pub(crate) mod defects;
pub(crate) mod diagnostic;
pub(crate) mod format;
pub(crate) mod identifying_information;
pub(crate) mod inquiry;
pub(crate) mod log;
pub(crate) mod medium;
pub(crate) mod mode;
pub(crate) mod multimedia;
pub(crate) mod persistent_reservation;
pub(crate) mod provisioning;
pub(crate) mod report;
pub(crate) mod reservation;
pub(crate) mod sanitize;
pub(crate) mod security;
pub(crate) mod tagged;
pub(crate) mod target_port_groups;
pub(crate) mod timestamp;
pub(crate) mod verify;
mod vital_product_data;

pub(crate) use vital_product_data::unit_designators;

use crate::attention::Attentions;
use crate::nexus::{Attachment, Nexus};
use crate::{Cdb, Command, Completion, LogicalUnit, Lun, Sense};
use sarsen_block::{Buffer, Data, Extent, Io};
use sarsen_wire::scsi::inquiry::PERIPHERAL_NOT_CONNECTED;
use sarsen_wire::scsi::opcode;
use std::sync::Arc;

/// What a row of the command table calls.
pub(crate) type Handler = for<'a> fn(Task<'a>) -> Result<Io<Completion>, Sense>;

/// A command on its way through a handler.
pub(crate) struct Task<'a> {
    pub(crate) cdb: Cdb,
    /// The transport's name for it.
    pub(crate) name: u64,
    pub(crate) unit: &'a Arc<LogicalUnit>,
    pub(crate) attentions: &'a Attentions,
    pub(crate) nexus: &'a Arc<Nexus>,
    /// This initiator may not write.
    pub(crate) read_only: bool,
    data_out: Option<Buffer>,
    expected_data_out_length: Option<u64>,
    pub(crate) expected_data_in_length: Option<u64>,
}

impl<'a> Task<'a> {
    pub(crate) fn new(command: Command, attachment: &'a Attachment, nexus: &'a Arc<Nexus>) -> Self {
        let Command { cdb, name, data_out, expected_data_out_length, .. } = command;
        let expected_data_in_length =
            expected_data_out_length.map(|_| command.expected_data_in_length);
        let &Attachment { ref unit, ref attentions, read_only, .. } = attachment;
        Self {
            cdb,
            name,
            unit,
            attentions,
            nexus,
            read_only,
            data_out,
            expected_data_out_length,
            expected_data_in_length,
        }
    }

    /// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE. Through a port that is unavailable, the unit
    /// is not connected (SPC-4 5.15.2.4.5).
    pub(crate) fn peripheral(&self) -> u8 {
        let qualifier = match self.nexus.target_port.is_cut_off() {
            true => PERIPHERAL_NOT_CONNECTED,
            false => 0,
        };
        qualifier | self.unit.device_type() as u8
    }

    /// The first `length` bytes of Data-Out; refused where fewer arrived.
    pub(crate) fn take_data_out(&mut self, length: usize) -> Result<Buffer, Sense> {
        let mut data = match self.data_out.take() {
            Some(data) => data,
            None if length == 0 => Buffer::for_overwrite(0),
            None => return Err(Sense::invalid_field_in_command_information_unit()),
        };
        if data.len() < length {
            return Err(Sense::invalid_field_in_command_information_unit());
        }
        data.truncate(length);
        Ok(data)
    }

    /// All Data-Out that arrived, of a command whose CDB does not say how much there is.
    pub(crate) fn take_all_data_out(&mut self) -> Buffer {
        self.data_out.take().unwrap_or_else(|| Buffer::for_overwrite(0))
    }

    /// The Data-Out of a write, and the blocks that it fills. Where the initiator promised fewer
    /// bytes than the CDB needs, whole blocks are written and the transport tells the overflow
    /// (FCP-4 9.4.2 a, as Debian's libiscsi 1.19 expects); a part of a block is refused, and so is
    /// a shortage that the transport cannot explain. A block has `block_bytes`.
    pub(crate) fn take_blocks(
        &mut self,
        extent: Extent,
        block_bytes: usize,
    ) -> Result<(Extent, Buffer), Sense> {
        let arrived = self.data_out.as_ref().map_or(0, |data| data.len());
        let promised = self.expected_data_out_length == Some(arrived as u64);
        let block_count = match promised && arrived.is_multiple_of(block_bytes) {
            true => extent.block_count.min((arrived / block_bytes) as u64),
            false => extent.block_count,
        };
        let data = self.take_data_out(block_count as usize * block_bytes)?;
        Ok((Extent { block_count, ..extent }, data))
    }

    /// The same as [`Self::take_data_out`] for commands whose Data-Out must be exactly so long: a surplus means that the
    /// initiator and we read the length in the CDB, which begins in byte `length_field`,
    /// differently. COMPARE AND WRITE of 256 blocks, which its one byte cannot say, is such a case.
    pub(crate) fn take_data_out_exactly(
        &mut self,
        length: usize,
        length_field: u16,
    ) -> Result<Buffer, Sense> {
        match self.expected_data_out_length {
            Some(expected) if expected > length as u64 => {
                Err(Sense::invalid_field_in_cdb(length_field))
            }
            Some(_) | None => self.take_data_out(length),
        }
    }
}

/// GOOD with parameter data, cut to the allocation length.
pub(crate) fn parameter_data(bytes: &[u8], allocation_length: usize) -> Completion {
    let length = bytes.len().min(allocation_length);
    Completion::data(Data::Buffer(Buffer::copy_of(&bytes[..length])))
}

/// Commands to a number where no unit is (SPC-4 6.6.2, 6.33, 6.39; SAM-5 5.11).
pub(crate) fn without_unit(
    nexus: &Nexus,
    lun: Option<Lun>,
    cdb: &Cdb,
) -> Result<Completion, Sense> {
    match cdb.operation_code() {
        opcode::INQUIRY => inquiry::inquiry_without_unit(cdb),
        opcode::REQUEST_SENSE => {
            Ok(inquiry::sense_parameter_data(cdb, Sense::logical_unit_not_supported()))
        }
        // LUN 0 answers for the target even where it has no unit 0.
        opcode::REPORT_LUNS if lun == Some(Lun::ZERO) => inquiry::luns_data(nexus, cdb),
        _ => Err(Sense::logical_unit_not_supported()),
    }
}
