//! Commands that compare: VERIFY, WRITE AND VERIFY, COMPARE AND WRITE (SBC-3 5.2, 5.29 to 5.31, 5.38 to 5.40).

use super::Task;
use super::block::BlockCdb;
use super::tagged::Tagged;
use crate::{Cdb, Completion, LogicalUnit, Sense};
use sarsen_block::{BlockError, BlockSize, Buffer, Direction, Extent, Io, Store};
use sarsen_wire::scsi::cdb as wire;
use std::sync::Arc;

/// The maximum size in bytes of a piece that is read back.
const VERIFY_PIECE_BYTES: u64 = 1 << 20;

/// The values of the BYTCHK field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteCheck {
    /// The server reads the medium without a comparison.
    MediumOnly,
    /// Each block is compared with its own block of Data-Out.
    EachBlock,
    /// Each block is compared with the single block of Data-Out.
    OneBlock,
}

impl ByteCheck {
    fn of(command: &BlockCdb) -> Result<Self, Sense> {
        match (command.flags & wire::FLAGS_BYTCHK) >> 1 {
            0 => Ok(Self::MediumOnly),
            1 => Ok(Self::EachBlock),
            3 => Ok(Self::OneBlock),
            _ => Err(command.refused_bit(2)),
        }
    }

    fn data_out_blocks(self, block_count: u64) -> u64 {
        match self {
            Self::MediumOnly => 0,
            Self::EachBlock => block_count,
            Self::OneBlock => block_count.min(1),
        }
    }
}

/// Reads the extent, and compares it if there is data to compare with.
async fn check_medium(
    store: &dyn Store,
    extent: Extent,
    expected: Option<&[u8]>,
) -> Result<Completion, Sense> {
    let block_size = store.geometry().block_size;
    match first_difference(store, extent, expected, block_size).await? {
        Some(offset) => Err(Sense::miscompare(offset)),
        None => Ok(Completion::good()),
    }
}

/// Returns the offset of the first difference. `expected` is repeated until the end of the extent.
async fn first_difference(
    store: &dyn Store,
    extent: Extent,
    expected: Option<&[u8]>,
    block_size: BlockSize,
) -> Result<Option<u64>, BlockError> {
    let piece_blocks = VERIFY_PIECE_BYTES >> block_size.shift();
    let mut done = 0;
    while done < extent.block_count {
        let block_count = piece_blocks.min(extent.block_count - done);
        let data = store.read(Extent::new(extent.lba.0 + done, block_count)).wait().await?;
        let offset = done << block_size.shift();
        if let Some(expected) = expected.filter(|expected| !expected.is_empty()) {
            let data = data.into_buffer();
            let wanted = &expected[offset as usize % expected.len()..];
            if let Some(position) = difference(&data, wanted, expected) {
                return Ok(Some(offset + position as u64));
            }
        }
        done += block_count;
    }
    Ok(None)
}

/// Returns the first offset at which `data` differs from `wanted` followed by repetitions of `repeated`.
fn difference(data: &[u8], wanted: &[u8], repeated: &[u8]) -> Option<usize> {
    let mut position = 0;
    let mut wanted = wanted;
    while position < data.len() {
        let length = wanted.len().min(data.len() - position);
        let (left, right) = (&data[position..position + length], &wanted[..length]);
        if left != right {
            let within = left.iter().zip(right).position(|(left, right)| left != right);
            return within.map(|within| position + within);
        }
        position += length;
        wanted = repeated;
    }
    None
}

pub(crate) fn verify(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let transfer = BlockCdb::parse_transfer(&task.cdb, unit)?;
    let check = ByteCheck::of(&transfer)?;
    let data_out_blocks = check.data_out_blocks(transfer.extent.block_count);
    let expected = task.take_data_out(transfer.byte_count(unit, data_out_blocks))?;
    if let Some(tagged) = Tagged::of(&transfer, unit) {
        let sent = Extent { block_count: data_out_blocks, ..transfer.extent };
        tagged.check_data_out(sent, &expected)?;
        let reader = Arc::clone(unit);
        return Ok(unit.complete_after(async move {
            let _guard = reader.guard_read(transfer.extent).await?;
            match (check, tagged.is_transferred()) {
                (ByteCheck::MediumOnly, _) => tagged.verify_blocks().await,
                (_, true) => tagged.compare(&expected).await,
                (_, false) => {
                    tagged.verify_blocks().await?;
                    check_medium(&**reader.store(), transfer.extent, Some(&expected)).await
                }
            }
        }));
    }
    let reader = Arc::clone(unit);
    Ok(unit.complete_after(async move {
        let expected = (check != ByteCheck::MediumOnly).then_some(&*expected);
        let _guard = reader.guard_read(transfer.extent).await?;
        check_medium(&**reader.store(), transfer.extent, expected).await
    }))
}

pub(crate) fn verify_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    let transfer = BlockCdb::parse_transfer(cdb, unit)?;
    let check = ByteCheck::of(&transfer)?;
    Ok(transfer.byte_count(unit, check.data_out_blocks(transfer.extent.block_count)))
}

fn parse_write_and_verify(cdb: &Cdb, unit: &LogicalUnit) -> Result<(BlockCdb, ByteCheck), Sense> {
    let transfer = BlockCdb::parse_transfer(cdb, unit)?;
    match ByteCheck::of(&transfer)? {
        // SBC-3 5.38: this value is reserved in WRITE AND VERIFY.
        ByteCheck::OneBlock => Err(transfer.refused_bit(2)),
        check => Ok((transfer, check)),
    }
}

pub(crate) fn write_and_verify(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let (transfer, check) = parse_write_and_verify(&task.cdb, unit)?;
    let block_bytes = transfer.byte_count(unit, 1);
    let (extent, data) = task.take_blocks(transfer.extent, block_bytes)?;
    let writer = Arc::clone(unit);
    let tagged = Tagged::of(&BlockCdb { extent, ..transfer }, unit);
    if let Some(tagged) = &tagged {
        tagged.check_data_out(extent, &data)?;
    }
    // The verification reads the medium, so the write is durable first. No other write of these blocks happens in between.
    let durability = unit.durability(true);
    Ok(unit.complete_after(async move {
        if extent.block_count == 0 {
            return Ok(Completion::good());
        }
        let _guard = writer.lock_writes_exclusive(extent).await?;
        let store = &**writer.store();
        let expected = (check == ByteCheck::EachBlock).then(|| Buffer::copy_of(&data));
        if let Some(tagged) = tagged.filter(Tagged::is_transferred) {
            tagged.write(extent, data, durability).wait().await?;
            return match expected {
                Some(expected) => tagged.compare(&expected).await,
                None => tagged.verify_blocks().await,
            };
        }
        store.write(extent, data.into(), durability).wait().await?;
        check_medium(store, extent, expected.as_deref()).await
    }))
}

pub(crate) fn write_and_verify_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    let (transfer, _) = parse_write_and_verify(cdb, unit)?;
    Ok(transfer.byte_count(unit, transfer.extent.block_count))
}

fn parse_compare_and_write(cdb: &Cdb, unit: &LogicalUnit) -> Result<BlockCdb, Sense> {
    let fields = cdb.view::<wire::CompareAndWrite>();
    let extent = Extent::new(fields.lba.get(), fields.block_count.into());
    let command = BlockCdb::new(extent, fields.flags, 13).protected_for(unit)?;
    if fields.block_count > unit.limits().maximum_compare_and_write_blocks {
        return Err(Sense::invalid_field_in_cdb(13));
    }
    unit.check_range(extent)?;
    Ok(command)
}

/// Compares and writes. The locks of ESXi are one block each, and survive a crash whole without the record of WRITE
/// ATOMIC. After a kill of the program, the page cache contains either the old block or the new one: the kernel copies
/// the block within one page. After a power loss, the sector is either old or new. Devices promise this for a physical
/// block, so it is true if a logical block is not larger.
pub(crate) fn compare_and_write(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let command = parse_compare_and_write(&task.cdb, unit)?;
    let extent = command.extent;
    let half = command.byte_count(unit, extent.block_count);
    let data = task.take_data_out_exactly(2 * half, 13)?;
    let tagged = Tagged::of(&command, unit);
    if let Some(tagged) = &tagged {
        tagged.check_data_out(extent, &data[..half])?;
        tagged.check_data_out(extent, &data[half..])?;
    }
    let writer = Arc::clone(unit);
    Ok(unit.complete_after(async move {
        if extent.block_count == 0 {
            return Ok(Completion::good());
        }
        let (expected, new) = data.split_at(half);
        // SBC-3 5.2: no other write of these blocks happens between the comparison and the write.
        let _guard = writer.lock_writes_exclusive(extent).await?;
        let new = Buffer::copy_of(new);
        let durability = || writer.durability(command.has(wire::FLAGS_FUA));
        if let Some(tagged) = tagged {
            tagged.compare(expected).await?;
            let written = tagged.write(extent, new, durability()).wait().await;
            written.map_err(|error| not_repeatable(error, extent))?;
            return Ok(Completion::good());
        }
        let store = writer.store();
        check_medium(&**store, extent, Some(expected)).await?;
        let written = store.write(extent, new.into(), durability()).wait().await;
        written.map_err(|error| not_repeatable(error, extent))?;
        Ok(Completion::good())
    }))
}

/// Returns the error of a write that may have changed a part of the blocks. A repeated COMPARE AND WRITE would find its own
/// blocks and report a miscompare, so the initiator must not repeat it.
fn not_repeatable(error: BlockError, extent: Extent) -> BlockError {
    match error {
        BlockError::Transient(source) => BlockError::medium(extent.lba, Direction::Write, source),
        other => other,
    }
}

pub(crate) fn compare_and_write_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    let command = parse_compare_and_write(cdb, unit)?;
    Ok(2 * command.byte_count(unit, command.extent.block_count))
}
