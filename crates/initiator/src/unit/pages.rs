//! The optional pages of a logical unit: data beyond its identification and its size. Here a missing page is not an
//! error.

use sarsen_wire::scsi::inquiry::{
    self, LogicalBlockProvisioning, PAGE_BLOCK_LIMITS, PAGE_DEVICE_IDENTIFICATION,
    PAGE_LOGICAL_BLOCK_PROVISIONING, PAGE_UNIT_SERIAL_NUMBER, VpdHeader,
};
use sarsen_wire::scsi::mode::{
    CACHING_WCE, CachingPage, DEVICE_SPECIFIC_DPOFUA, DEVICE_SPECIFIC_WP, FLAGS_DBD, Header6,
    PAGE_CACHING, PAGE_CODE,
};
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::report::{CAPACITY_LBPME, CAPACITY_LBPRZ};
use zerocopy::{FromBytes, IntoBytes};

use super::Unit;
use crate::error::{SenseKey, SessionError};

/// DESIGNATOR TYPE: NAA (SPC-4 7.8.6.6).
const DESIGNATOR_NAA: u8 = 3;
/// ASSOCIATION and DESIGNATOR TYPE; association 0 is the logical unit.
const DESIGNATOR_KIND: u8 = 0x3f;
/// LBPU, LBPWS and LBPRZ of the provisioning page (SBC-3 6.6.5).
const LBPU: u8 = 0x80;
const LBPWS: u8 = 0x40;
const LBPRZ: u8 = 0x1c;

/// Whether and how blocks can be deallocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provisioning {
    /// LBPME: not every block is allocated.
    pub thin: bool,
    /// LBPU: UNMAP deallocates blocks.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) deallocates blocks.
    pub write_same_unmaps: bool,
    /// LBPRZ: deallocated blocks read as zero.
    pub reads_zero: bool,
}

/// The limits of one command (SBC-3 6.6.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// Maximum blocks of a READ or WRITE; 0 if the unit reports none.
    pub transfer_blocks: u32,
    /// Maximum blocks of an UNMAP; 0 if the unit does not support UNMAP.
    pub unmap_blocks: u32,
    /// Maximum blocks of a WRITE SAME; 0 if the unit reports none.
    pub write_same_blocks: u64,
    /// OPTIMAL UNMAP GRANULARITY; 0 if the unit reports none.
    pub unmap_granularity: u32,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY and OPTIMAL TRANSFER LENGTH; 0 if the unit reports none.
    pub optimal_granularity: u16,
    /// See above.
    pub optimal_blocks: u32,
}

/// The caching mode page, and the write protection from its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// WCE: a write may be acknowledged before it is on stable storage.
    pub write_cache: bool,
    /// WP: the unit is write protected.
    pub read_only: bool,
    /// DPOFUA: the unit accepts FUA.
    pub fua: bool,
}

/// Returns `None` for a page that the unit does not support.
fn optional<T>(result: Result<T, SessionError>) -> Result<Option<T>, SessionError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(SessionError::CheckCondition(sense)) if sense.key == SenseKey::IllegalRequest => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the first bytes of `from`, padded with zeroes.
fn padded<T: FromBytes + IntoBytes>(from: &[u8]) -> T {
    let mut whole = T::new_zeroed();
    let length = from.len().min(size_of::<T>());
    whole.as_mut_bytes()[..length].copy_from_slice(&from[..length]);
    whole
}

/// Returns the data after a page's header, if it is that page.
fn page_body(page: u8, data: &[u8]) -> Option<&[u8]> {
    let (header, body) = VpdHeader::ref_from_prefix(data).ok()?;
    let length = usize::from(header.page_length.get()).min(body.len());
    (header.page_code == page).then(|| &body[..length])
}

/// Returns the unit's NAA designator in hexadecimal digits.
fn naa(mut designators: &[u8]) -> Option<String> {
    while let Ok((header, rest)) = inquiry::DesignationHeader::ref_from_prefix(designators) {
        let length = usize::from(header.designator_length);
        let designator = rest.get(..length)?;
        if header.designator_type & DESIGNATOR_KIND == DESIGNATOR_NAA {
            return Some(designator.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        designators = &rest[length..];
    }
    None
}

/// Returns the caching page from MODE SENSE(6) data.
fn caching(data: &[u8]) -> Option<Caching> {
    let (header, rest) = Header6::ref_from_prefix(data).ok()?;
    let page = rest.get(usize::from(header.block_descriptor_length)..)?;
    let page: CachingPage = padded(page);
    (page.header.page_code & PAGE_CODE == PAGE_CACHING).then_some(Caching {
        write_cache: page.flags & CACHING_WCE != 0,
        read_only: header.device_specific & DEVICE_SPECIFIC_WP != 0,
        fua: header.device_specific & DEVICE_SPECIFIC_DPOFUA != 0,
    })
}

impl Unit {
    pub(super) async fn page(&self, page: u8) -> Result<Option<Vec<u8>>, SessionError> {
        let data = optional(self.inquiry_data(Some(page)).await)?;
        Ok(data.and_then(|data| page_body(page, &data).map(<[u8]>::to_vec)))
    }

    /// Returns the unit serial number.
    pub async fn serial(&self) -> Result<Option<String>, SessionError> {
        let page = self.page(PAGE_UNIT_SERIAL_NUMBER).await?;
        let serial = page.map(|text| String::from_utf8_lossy(&text).trim().to_owned());
        Ok(serial.filter(|serial| !serial.is_empty()))
    }

    /// Returns the unit's NAA identifier in hexadecimal digits.
    pub async fn naa(&self) -> Result<Option<String>, SessionError> {
        let page = self.page(PAGE_DEVICE_IDENTIFICATION).await?;
        Ok(page.and_then(|designators| naa(&designators)))
    }

    /// Returns the block limits page; a missing value is 0.
    pub async fn block_limits(&self) -> Result<BlockLimits, SessionError> {
        let page = self.page(PAGE_BLOCK_LIMITS).await?.unwrap_or_default();
        let page: inquiry::BlockLimits = padded(&page);
        Ok(BlockLimits {
            transfer_blocks: page.maximum_transfer_length.get(),
            unmap_blocks: page.maximum_unmap_lba_count.get(),
            write_same_blocks: page.maximum_write_same_length.get(),
            unmap_granularity: page.optimal_unmap_granularity.get(),
            optimal_granularity: page.optimal_transfer_length_granularity.get(),
            optimal_blocks: page.optimal_transfer_length.get(),
        })
    }

    /// Returns the provisioning from READ CAPACITY(16) and the provisioning page.
    pub async fn provisioning(&self) -> Result<Provisioning, SessionError> {
        let Some(capacity) = optional(self.read_capacity_16().await)? else {
            return Ok(Provisioning::default());
        };
        let bits = capacity.provisioning.get();
        if bits & CAPACITY_LBPME == 0 {
            return Ok(Provisioning::default());
        }
        let page = self.page(PAGE_LOGICAL_BLOCK_PROVISIONING).await?.unwrap_or_default();
        let page: LogicalBlockProvisioning = padded(&page);
        Ok(Provisioning {
            thin: true,
            unmap: page.flags & LBPU != 0,
            write_same_unmaps: page.flags & LBPWS != 0,
            reads_zero: bits & CAPACITY_LBPRZ != 0 || page.flags & LBPRZ == 0x04,
        })
    }

    /// Returns log2 of the number of logical blocks in a physical block (READ CAPACITY(16)); 0 if the unit does not report it.
    pub async fn physical_block_exponent(&self) -> Result<u8, SessionError> {
        let capacity = optional(self.read_capacity_16().await)?;
        Ok(capacity.map_or(0, |capacity| capacity.exponents & 0x0f))
    }

    /// Returns the caching mode page; `None` if the unit has none.
    pub async fn caching(&self) -> Result<Option<Caching>, SessionError> {
        const LENGTH: u8 = 255;
        let cdb = sarsen_wire::scsi::cdb::Short6 {
            operation_code: opcode::MODE_SENSE_6,
            flags: FLAGS_DBD,
            page: PAGE_CACHING,
            subpage: 0,
            length: LENGTH,
            control: 0,
        };
        let data = optional(self.fetch(cdb.as_bytes(), LENGTH.into()).await)?;
        Ok(data.and_then(|data| caching(&data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spc4_7_8_6_the_units_naa_is_found_behind_other_designators() {
        let list = [
            [0x02, 0x01, 0, 2, b'a', b'b'].as_slice(), // T10 vendor, of the unit
            &[0x01, 0x13, 0, 1, 0xee],                 // NAA, of the port
            &[0x01, 0x03, 0, 3, 0x60, 0x01, 0xff],     // NAA, of the unit
        ]
        .concat();
        assert_eq!(naa(&list).as_deref(), Some("6001ff"));
        assert_eq!(naa(&list[..list.len() - 1]), None, "cut short");
        assert_eq!(naa(&[]), None);
    }

    #[test]
    fn sbc3_6_5_5_the_caching_page_stands_behind_block_descriptors() {
        let mut data = vec![0x20, 0, 0x90, 8];
        data.extend([0; 8]);
        data.extend([0x88, 0x12, 0x04]);
        assert_eq!(caching(&data), Some(Caching { write_cache: true, read_only: true, fua: true }));
        data[3] = 0;
        assert_eq!(caching(&data), None, "another page");
        assert_eq!(caching(&[0x20, 0, 0, 200, 8]), None);
    }

    #[test]
    fn page_with_another_code_is_rejected() {
        assert_eq!(page_body(0x80, &[0, 0x80, 0, 2, b'x', b'y', b'z']), Some(b"xy".as_slice()));
        assert_eq!(page_body(0x80, &[0, 0x80, 0, 9, b'x']), Some(b"x".as_slice()));
        assert_eq!(page_body(0x80, &[0, 0x83, 0, 1, b'x']), None);
        assert_eq!(page_body(0x80, &[0, 0x80]), None);
    }
}
