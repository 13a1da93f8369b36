//! READ and WRITE (SBC-3 5.10 to 5.14, 5.32 to 5.36), and the fields that all block CDBs share.

use super::Task;
use super::tagged::Tagged;
use crate::protection::{CdbTags, ProtectField};
use crate::{Cdb, Command, Completion, LogicalUnit, ProtectionType, Sense};
use sarsen_block::{BlockError, Data, Extent, Geometry, Io, PROTECTION_BYTES};
use sarsen_wire::scsi::{cdb as wire, opcode};
use std::sync::Arc;

/// The maximum number of bytes that one command transfers.
pub(crate) const TRANSFER_LIMIT: usize = 16 << 20;

/// The common fields of READ, WRITE, VERIFY, WRITE SAME and similar commands, for every CDB length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockCdb {
    pub(crate) extent: Extent,
    pub(crate) flags: u8,
    /// Offset of the length in the CDB.
    pub(crate) length_field: u16,
    /// Offset of the flags in the CDB.
    pub(crate) flags_field: u16,
    /// The PROTECT field, after the unit has accepted it.
    pub(crate) protect: ProtectField,
    /// The expected tags in a CDB of 32 bytes.
    pub(crate) tags: Option<CdbTags>,
}

impl BlockCdb {
    /// Creates a command without tags and with its flags in byte 1.
    pub(crate) const fn new(extent: Extent, flags: u8, length_field: u16) -> Self {
        let protect = ProtectField::NONE;
        Self { extent, flags, length_field, flags_field: 1, protect, tags: None }
    }

    /// Reads the fields. The group code of the operation code determines their offsets.
    #[inline]
    pub(crate) fn parse(cdb: &Cdb) -> Result<Self, Sense> {
        let operation_code = cdb.operation_code();
        let (lba, block_count, flags, length_field) = match opcode::cdb_length(operation_code) {
            Some(6) => {
                let fields = cdb.view::<wire::Block6>();
                let block_count = match fields.block_count {
                    0 => 256,
                    block_count => u64::from(block_count),
                };
                (fields.lba(), block_count, 0, 4)
            }
            Some(10) => {
                let fields = cdb.view::<wire::Block10>();
                (fields.lba.get().into(), fields.block_count.get().into(), fields.flags, 7)
            }
            Some(12) => {
                let fields = cdb.view::<wire::Block12>();
                (fields.lba.get().into(), fields.block_count.get().into(), fields.flags, 6)
            }
            Some(_) => {
                let fields = cdb.view::<wire::Block16>();
                (fields.lba.get(), fields.block_count.get().into(), fields.flags, 10)
            }
            None => return Self::parse_32(cdb),
        };
        Ok(Self::new(Extent::new(lba, block_count), flags, length_field))
    }

    fn parse_32(cdb: &Cdb) -> Result<Self, Sense> {
        let fields = cdb.view_long::<wire::Block32>()?;
        let extent = Extent::new(fields.lba.get(), fields.block_count.get().into());
        let tags = Some(CdbTags::of(fields));
        Ok(Self { flags_field: 10, tags, ..Self::new(extent, fields.flags, 28) })
    }

    /// Adds the PROTECT field if the unit is formatted with protection information (SBC-3 4.22.2, 5.10).
    pub(crate) fn protected_for(self, unit: &LogicalUnit) -> Result<Self, Sense> {
        if self.flags & wire::FLAGS_PROTECT == 0 {
            return Ok(self);
        }
        let refused = Sense::invalid_bit_in_cdb(self.flags_field, 7);
        match (unit.protection_type(), ProtectField::of(self.flags)) {
            // SBC-3 4.22.2.4: type 2 transfers protection information only with commands of 32 bytes.
            (Some(ProtectionType::Type2), _) if self.tags.is_none() => {
                Err(Sense::invalid_operation_code())
            }
            (Some(_), Some(protect)) => Ok(Self { protect, ..self }),
            (None, _) | (_, None) => Err(refused),
        }
    }

    /// Parses a transfer and checks it against the limits and the medium.
    pub(crate) fn parse_transfer(cdb: &Cdb, unit: &LogicalUnit) -> Result<Self, Sense> {
        Self::parse_within(cdb, unit, unit.geometry())
    }

    fn parse_within(cdb: &Cdb, unit: &LogicalUnit, geometry: Geometry) -> Result<Self, Sense> {
        let transfer = Self::parse(cdb)?.protected_for(unit)?;
        if transfer.extent.block_count > unit.limits().maximum_transfer_blocks.into() {
            return Err(Sense::invalid_field_in_cdb(transfer.length_field));
        }
        if transfer.extent.fits(geometry.block_count) {
            Ok(transfer)
        } else {
            Err(Sense::lba_out_of_range())
        }
    }

    pub(crate) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the sense data that rejects a flag, or a field whose highest bit is `bit`.
    pub(crate) const fn refused_bit(&self, bit: u8) -> Sense {
        Sense::invalid_bit_in_cdb(self.flags_field, bit)
    }

    /// Returns the number of bytes that `block_count` blocks need in the transfer.
    pub(crate) fn byte_count(&self, unit: &LogicalUnit, block_count: u64) -> usize {
        self.byte_count_in(unit.geometry(), block_count)
    }

    fn byte_count_in(&self, geometry: Geometry, block_count: u64) -> usize {
        let tags = if self.protect.is_transferred() { PROTECTION_BYTES } else { 0 };
        ((block_count as usize) << geometry.block_size.shift()) + block_count as usize * tags
    }

    /// Removes the blocks of a READ that the initiator does not expect, since memory is charged for the expected ones
    /// only. Returns their length, which the initiator receives as the residual (RFC 7143 §11.4.5).
    fn leave_out_unexpected(&mut self, expected: Option<u64>, geometry: Geometry) -> u64 {
        let whole = self.byte_count_in(geometry, self.extent.block_count) as u64;
        match expected {
            Some(expected) if expected < whole => {
                let block = self.byte_count_in(geometry, 1) as u64;
                self.extent.block_count = expected.div_ceil(block);
                whole - self.extent.block_count * block
            }
            Some(_) | None => 0,
        }
    }
}

/// Returns the blocks of a READ or WRITE; `None` for commands whose blocks are not all in their CDB.
pub(crate) fn extent(cdb: &Cdb) -> Option<Extent> {
    match cdb.operation_code() {
        opcode::READ_6
        | opcode::WRITE_6
        | opcode::READ_10
        | opcode::WRITE_10
        | opcode::READ_12
        | opcode::WRITE_12
        | opcode::READ_16
        | opcode::WRITE_16 => BlockCdb::parse(cdb).ok().map(|transfer| transfer.extent),
        _ => None,
    }
}

/// Returns the number of Data-Out bytes of a command.
pub(crate) fn sent_bytes(command: &Command, _: &LogicalUnit) -> u64 {
    command.data_out.as_ref().map_or(0, |data| data.len() as u64)
}

/// Returns the number of bytes of the blocks of a READ or VERIFY, whatever length the initiator expects to receive; 0
/// for commands that will be rejected.
pub(crate) fn transferred_bytes(command: &Command, unit: &LogicalUnit) -> u64 {
    let transfer = BlockCdb::parse_transfer(&command.cdb, unit);
    let bytes = |transfer: BlockCdb| transfer.byte_count(unit, transfer.extent.block_count) as u64;
    transfer.map_or(0, bytes).max(sent_bytes(command, unit))
}

/// Returns the number of bytes that the initiator sends and expects, for commands whose CDB does not tell.
pub(crate) fn expected_bytes(command: &Command, unit: &LogicalUnit) -> u64 {
    sent_bytes(command, unit) + command.expected_data_in_length.min(TRANSFER_LIMIT as u64)
}

pub(crate) fn read(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let geometry = unit.geometry();
    let mut transfer = BlockCdb::parse_within(&task.cdb, unit, geometry)?;
    let unread_length = transfer.leave_out_unexpected(task.expected_data_in_length, geometry);
    let complete = move |data| Completion { unread_length, ..Completion::data(data) };
    if transfer.extent.block_count == 0 {
        return Ok(Io::Ready(complete(Data::empty())));
    }
    // SBC-3 5.11: with FUA the data is read from the medium, so a volatile cache is written first.
    let flushes = transfer.has(wire::FLAGS_FUA) && unit.characteristics().volatile_cache;
    if flushes || unit.medium_phase().guards_reads() {
        let reader = Arc::clone(unit);
        return Ok(unit.complete_after(async move {
            if flushes {
                reader.store().flush().wait().await?;
            }
            Ok(complete(read_guarded(&transfer, &reader).await?))
        }));
    }
    match read_blocks(&transfer, unit) {
        Io::Ready(read) => Ok(Io::Ready(complete(read?))),
        Io::Pending(reading) => {
            let reader = Arc::clone(unit);
            Ok(unit.complete_after(async move {
                let data = reading.await?;
                // The unit's first atomic write may have happened meanwhile.
                Ok(complete(if reader.medium_phase().guards_reads() {
                    read_guarded(&transfer, &reader).await?
                } else {
                    data
                }))
            }))
        }
    }
}

/// Reads so that no atomic write in progress is seen partially. The result is a copy, since a store's memory may change
/// before it is sent.
async fn read_guarded(transfer: &BlockCdb, unit: &LogicalUnit) -> Result<Data, Sense> {
    let guard = unit.guard_read(transfer.extent).await?;
    let data = read_blocks(transfer, unit).wait().await?;
    Ok(match guard {
        Some(_) => Data::Buffer(data.into_buffer()),
        None => data,
    })
}

fn read_blocks(transfer: &BlockCdb, unit: &LogicalUnit) -> Io<Result<Data, BlockError>> {
    match Tagged::of(transfer, unit) {
        Some(tagged) => tagged.read(transfer.extent),
        None => unit.store().read(transfer.extent),
    }
}

pub(crate) fn write(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let geometry = unit.geometry();
    let transfer = BlockCdb::parse_within(&task.cdb, unit, geometry)?;
    let block_bytes = transfer.byte_count_in(geometry, 1);
    let (extent, data) = task.take_blocks(transfer.extent, block_bytes)?;
    if extent.block_count == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    unit.thresholds().note(extent.block_count);
    let force_unit_access = transfer.has(wire::FLAGS_FUA);
    if let Some(tagged) = Tagged::of(&transfer, unit).filter(Tagged::is_transferred) {
        tagged.check_data_out(extent, &data)?;
        return Ok(unit.write_shared(extent, move |unit| {
            tagged.write(extent, data, unit.durability(force_unit_access))
        }));
    }
    Ok(unit.write_shared(extent, move |unit| {
        unit.store().write(extent, data.into(), unit.durability(force_unit_access))
    }))
}

pub(crate) fn write_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    let geometry = unit.geometry();
    let transfer = BlockCdb::parse_within(cdb, unit, geometry)?;
    Ok(transfer.byte_count_in(geometry, transfer.extent.block_count))
}
