//! The tables of a qcow2 image, checked before any of its data is used.
//!
//! The library and QEMU read what a truncated file has lost as zeroes. Here, each cluster of the disk must be in the
//! file. No table is read twice, so the check takes no longer than reading the file.

use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U64;

use super::super::ImageError;
use super::header::{Header, Reading};

/// Maximum length of the L1 table in bytes, which QEMU has too.
const MAXIMUM_L1_LENGTH: u64 = 32 << 20;
/// Bytes of an entry of a table.
const ENTRY_LENGTH: u64 = 8;
/// The bits of an entry that are an offset in the file.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
/// The cluster is compressed.
const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeroes, whatever its offset is.
const ZERO: u64 = 1 << 0;
/// The unit in which the length of a compressed cluster counts.
const SECTOR_LENGTH: u64 = 512;

/// Checks that the L1 table covers the disk, and that all L2 tables and all data are in the file, or in the file with
/// the data (of `data_length` bytes).
pub(super) fn check(
    reading: &Reading<'_>,
    header: &Header,
    data_length: u64,
) -> Result<(), ImageError> {
    let cluster = header.cluster_length;
    let covered = cluster * (cluster / ENTRY_LENGTH);
    let needed = header.size.div_ceil(covered);
    let Header { l1_entries, l1_offset, .. } = *header;
    if needed > l1_entries {
        let reason = format!("its L1 table has {l1_entries} entries, and its disk needs {needed}");
        return Err(reading.malformed(reason));
    }
    let length = l1_entries * ENTRY_LENGTH;
    if length > MAXIMUM_L1_LENGTH {
        return Err(reading.malformed(format!("its L1 table has {l1_entries} entries")));
    }
    if !is_within(l1_offset, length, reading.file_length) {
        return Err(missing(reading, "L1 table", l1_offset));
    }
    let mut l1_table = vec![U64::ZERO; needed as usize];
    reading.bytes(l1_offset, l1_table.as_mut_bytes(), "L1 table")?;
    check_distinct(reading, &l1_table)?;
    let mut l2_table = vec![U64::ZERO; (cluster / ENTRY_LENGTH) as usize];
    for (begin, entry) in (0_u64..).step_by(covered as usize).zip(l1_table) {
        let offset = entry.get() & OFFSET_MASK;
        if offset == 0 {
            continue;
        }
        if !is_within(offset, cluster, reading.file_length) {
            return Err(missing(reading, "L2 table", offset));
        }
        reading.bytes(offset, l2_table.as_mut_bytes(), "L2 table")?;
        for (begin, entry) in (begin..header.size).step_by(cluster as usize).zip(&l2_table) {
            let length = cluster.min(header.size - begin);
            if let Some(offset) = lost(entry.get(), length, header, data_length) {
                return Err(missing(reading, "data", offset));
            }
        }
    }
    Ok(())
}

/// Two parts of a disk never share an L2 table. A small file with such tables could describe a disk whose check takes
/// years.
fn check_distinct(reading: &Reading<'_>, l1_table: &[U64]) -> Result<(), ImageError> {
    let offsets = l1_table.iter().map(|entry| entry.get() & OFFSET_MASK);
    let mut offsets: Vec<u64> = offsets.filter(|&offset| offset != 0).collect();
    offsets.sort_unstable();
    match offsets.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            Err(reading.malformed(format!("its L2 table at byte {} is used twice", pair[0])))
        }
    }
}

/// Returns the offset of a cluster's data if it is not in the file. `length` is the part of the cluster that the disk
/// has.
fn lost(entry: u64, length: u64, header: &Header, data_length: u64) -> Option<u64> {
    if entry & COMPRESSED != 0 {
        let offset_bits = 62 - (header.cluster_length.trailing_zeros() - 8);
        let descriptor = entry & (COMPRESSED - 1);
        let offset = descriptor & ((1 << offset_bits) - 1);
        let sectors = (descriptor >> offset_bits) + 1;
        let end = (offset / SECTOR_LENGTH + sectors) * SECTOR_LENGTH;
        // The last sector need not be complete.
        let exists = offset < data_length && end <= data_length.next_multiple_of(SECTOR_LENGTH);
        return (!exists).then_some(offset);
    }
    let offset = entry & OFFSET_MASK;
    let allocated = offset != 0 && entry & ZERO == 0;
    (allocated && !is_within(offset, length, data_length)).then_some(offset)
}

fn is_within(offset: u64, length: u64, file_length: u64) -> bool {
    offset.checked_add(length).is_some_and(|end| end <= file_length)
}

fn missing(reading: &Reading<'_>, what: &str, offset: u64) -> ImageError {
    let length = reading.file_length;
    reading.malformed(format!(
        "the {what} at byte {offset} is beyond the end of the file, which has {length} bytes; it may be truncated"
    ))
}
