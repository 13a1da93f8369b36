//! A command during its execution.

use std::sync::Arc;

use sarsen_block::{Buffer, Data, Extent, Io};
use sarsen_wire::scsi::inquiry::PERIPHERAL_NOT_CONNECTED;

use crate::attention::Attentions;
use crate::target::{AttachedUnit, Nexus};
use crate::{Cdb, Command, Completion, LogicalUnit, Sense};

/// The function that a row of the command table calls.
pub(crate) type Handler = for<'a> fn(Task<'a>) -> Result<Io<Completion>, Sense>;

/// A command during its execution by a handler.
pub(crate) struct Task<'a> {
    pub(crate) cdb: Cdb,
    /// The transport's identifier of the command.
    pub(crate) name: u64,
    pub(crate) unit: &'a Arc<LogicalUnit>,
    pub(crate) attentions: &'a Attentions,
    pub(crate) nexus: &'a Arc<Nexus>,
    /// True if this initiator may not write.
    pub(crate) read_only: bool,
    data_out: Option<Buffer>,
    expected_data_out_length: Option<u64>,
    pub(crate) expected_data_in_length: Option<u64>,
}

impl<'a> Task<'a> {
    pub(crate) fn new(
        command: Command,
        attachment: &'a AttachedUnit,
        nexus: &'a Arc<Nexus>,
    ) -> Self {
        let Command { cdb, name, data_out, expected_data_out_length, .. } = command;
        let expected_data_in_length =
            expected_data_out_length.map(|_| command.expected_data_in_length);
        let &AttachedUnit { ref unit, ref attentions, read_only, .. } = attachment;
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

    /// Returns PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE. Through an unavailable port the unit is not connected
    /// (SPC-4 5.16.2.4.5).
    pub(crate) fn peripheral(&self) -> u8 {
        let qualifier =
            if self.nexus.target_port.is_cut_off() { PERIPHERAL_NOT_CONNECTED } else { 0 };
        qualifier | self.unit.device_type() as u8
    }

    /// Returns the first `length` bytes of Data-Out. Rejects the command if fewer arrived.
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

    /// Returns all Data-Out that arrived, for a command whose CDB does not contain its length.
    pub(crate) fn take_all_data_out(&mut self) -> Buffer {
        self.data_out.take().unwrap_or_else(|| Buffer::for_overwrite(0))
    }

    /// Returns the Data-Out of a write and the blocks that it fills. The initiator may have announced fewer bytes than
    /// the CDB needs. Then the server writes the whole blocks and the transport reports the overflow (FCP-4 9.4.2 a, as
    /// Debian's libiscsi 1.19 expects). A partial block is rejected, and so is a shortage that the transport cannot
    /// explain. A block has `block_bytes`.
    pub(crate) fn take_blocks(
        &mut self,
        extent: Extent,
        block_bytes: usize,
    ) -> Result<(Extent, Buffer), Sense> {
        let arrived = self.data_out.as_ref().map_or(0, |data| data.len());
        let promised = self.expected_data_out_length == Some(arrived as u64);
        let block_count = if promised && arrived.is_multiple_of(block_bytes) {
            extent.block_count.min((arrived / block_bytes) as u64)
        } else {
            extent.block_count
        };
        let data = self.take_data_out(block_count as usize * block_bytes)?;
        Ok((Extent { block_count, ..extent }, data))
    }

    /// Returns the first `length` bytes of Data-Out, and rejects any other length. A surplus means that the initiator
    /// and the server read the length in the CDB, which begins in byte `length_field`, differently. An example is
    /// COMPARE AND WRITE of 256 blocks, a number that does not fit its one byte.
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

/// Returns GOOD with parameter data, truncated to the allocation length.
pub(crate) fn parameter_data(bytes: &[u8], allocation_length: usize) -> Completion {
    let length = bytes.len().min(allocation_length);
    Completion::data(Data::Buffer(Buffer::copy_of(&bytes[..length])))
}
