//! Protection information (SBC-3 4.22): the meaning of a block's eight bytes, the checks of commands, and the generated
//! values if an initiator sends none.
//!
//! [`Protected`] is a layer above a store with protection information. It checks and generates the information in plain
//! reads and writes. Commands that transfer protection information use its other functions.

mod fields;
mod store;

use sarsen_block::{
    BlockError, BlockSize, Extent, Lba, MediumProblem, PROTECTION_BYTES, ProtectionField,
};
use sarsen_wire::scsi::protection::ProtectionInformation;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) use fields::{CdbTags, Checks, Expected, ProtectField};
pub use store::Protected;
pub(crate) use store::{read_inspected, without_tags};

/// The type of protection information that a unit is formatted with (SBC-3 4.22.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectionType {
    /// Type 1: the reference tag is the low 32 bits of the block's address.
    Type1,
    /// Type 2: the reference tag is incremented from a value in the command.
    Type2,
    /// Type 3: the initiators define the reference tag.
    Type3,
}

impl ProtectionType {
    /// Returns P_TYPE (SBC-3 5.16.2).
    pub(crate) const fn p_type(self) -> u8 {
        match self {
            Self::Type1 => 0,
            Self::Type2 => 1,
            Self::Type3 => 2,
        }
    }

    /// Returns whether this block is not checked when it is read (SBC-3 4.22.2).
    const fn is_escaped(self, tags: &ProtectionInformation) -> bool {
        let application = tags.application_tag.get() == ESCAPE_APPLICATION_TAG;
        match self {
            Self::Type1 | Self::Type2 => application,
            Self::Type3 => application && tags.reference_tag.get() == ESCAPE_REFERENCE_TAG,
        }
    }
}

/// LOGICAL BLOCK APPLICATION TAG of a block that is not checked in a read.
const ESCAPE_APPLICATION_TAG: u16 = 0xffff;
/// LOGICAL BLOCK REFERENCE TAG that must accompany it with type 3. Blocks of types 2 and 3 also get it if the initiator
/// sent no protection information.
const ESCAPE_REFERENCE_TAG: u32 = 0xffff_ffff;

/// Returns LOGICAL BLOCK GUARD of a block (SBC-3 4.22.4): CRC-16 with polynomial 8BB7h.
pub(crate) fn guard(block: &[u8]) -> u16 {
    // The CRC has sixteen bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc16T10Dif, block) as u16
}

/// Returns the size of a block with its protection information in bytes.
pub(crate) const fn protected_bytes(block_size: BlockSize) -> usize {
    block_size.bytes() + PROTECTION_BYTES
}

/// Splits a block into its data and its protection information.
pub(crate) fn split(block: &[u8]) -> (&[u8], &ProtectionInformation) {
    let (data, tags) = block.split_at(block.len() - PROTECTION_BYTES);
    match ProtectionInformation::ref_from_bytes(tags) {
        Ok(tags) => (data, tags),
        Err(_) => unreachable!("eight bytes without alignment"),
    }
}

/// The checks of blocks against their protection information.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inspection {
    pub(crate) protection_type: ProtectionType,
    pub(crate) block_size: BlockSize,
    pub(crate) extent: Extent,
    pub(crate) checks: Checks,
    pub(crate) expected: Expected,
    /// True if the blocks were read, so that blocks with an escape tag are not checked.
    pub(crate) from_medium: bool,
}

impl Inspection {
    /// Returns an error for the first wrong field of the first wrong block.
    pub(crate) fn inspect(&self, blocks: &[u8]) -> Result<(), BlockError> {
        if self.checks == Checks::NONE {
            return Ok(());
        }
        let blocks = blocks.chunks_exact(protected_bytes(self.block_size));
        for (index, block) in (0..self.extent.block_count).zip(blocks) {
            if let Some(field) = self.fault(index, block) {
                let lba = Lba(self.extent.lba.0 + index);
                return Err(BlockError::Medium { lba, problem: MediumProblem::Protection(field) });
            }
        }
        Ok(())
    }

    fn fault(&self, index: u64, block: &[u8]) -> Option<ProtectionField> {
        let (data, tags) = split(block);
        if self.from_medium && self.protection_type.is_escaped(tags) {
            return None;
        }
        if self.checks.guard && guard(data) != tags.guard.get() {
            return Some(ProtectionField::Guard);
        }
        if self.checks.application
            && let Some(expected) = self.expected.application
            && !expected.matches(tags.application_tag.get())
        {
            return Some(ProtectionField::ApplicationTag);
        }
        if self.checks.reference
            && let Some(first) = self.expected.reference
            && first.wrapping_add(index as u32) != tags.reference_tag.get()
        {
            return Some(ProtectionField::ReferenceTag);
        }
        None
    }
}

/// The generated protection information of a block, if the initiator sent none (SBC-3 5.32).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProtectionGenerator {
    pub(crate) protection_type: ProtectionType,
    /// ATO: the initiators define the application tag.
    pub(crate) application_tag_owned: bool,
}

impl ProtectionGenerator {
    /// Writes the protection information of block `lba` after its data.
    pub(crate) fn put(self, lba: Lba, block: &mut [u8]) {
        let (data, tags) = block.split_at_mut(block.len() - PROTECTION_BYTES);
        tags.copy_from_slice(self.tags(lba, data).as_bytes());
    }

    fn tags(self, lba: Lba, data: &[u8]) -> ProtectionInformation {
        let escaped = self.application_tag_owned || self.protection_type == ProtectionType::Type2;
        let reference_tag = match self.protection_type {
            ProtectionType::Type1 => lba.0 as u32,
            ProtectionType::Type2 | ProtectionType::Type3 => ESCAPE_REFERENCE_TAG,
        };
        ProtectionInformation {
            guard: guard(data).into(),
            // If the server may choose the tag, it is 0, so that the guard is checked. With type 2 the server does not
            // know the reference tag that a reader expects, so those blocks are not checked.
            application_tag: if escaped { ESCAPE_APPLICATION_TAG } else { 0 }.into(),
            reference_tag: reference_tag.into(),
        }
    }
}
