//! Commands that transfer protection information, or whose CDB contains the expected tags (SBC-3 4.22.5).

use super::block::BlockCdb;
use crate::protection::{
    Checks, Expected, Inspection, ProtectField, Protected, ProtectionType, protected_bytes,
    read_inspected, split, without_tags,
};
use crate::{Completion, LogicalUnit, Sense, SenseKey};
use sarsen_block::{
    BlockError, Buffer, Data, Durability, Extent, Io, PROTECTION_BYTES, ProtectionField, Store,
};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The maximum size in bytes of a piece that is read back or filled with the same block.
const PIECE_BYTES: u64 = 1 << 20;

/// A command that processes protection information beyond the default of the unit's store.
#[derive(Clone)]
pub(crate) struct Tagged {
    store: Arc<dyn Store>,
    protected: Arc<Protected>,
    protection_type: ProtectionType,
    protect: ProtectField,
    extent: Extent,
    expected: Expected,
}

impl Tagged {
    /// Creates it from a block command whose PROTECT field the unit accepts.
    pub(crate) fn of(command: &BlockCdb, unit: &LogicalUnit) -> Option<Self> {
        if !command.protect.is_transferred() && command.tags.is_none() {
            return None;
        }
        let protected = unit.protected()?.clone();
        let protection_type = protected.protection_type()?;
        let expected = match command.tags {
            Some(tags) => Expected::of_cdb(tags, protected.is_application_tag_owned()),
            None => Expected::of_address(protection_type, command.extent.lba),
        };
        let (protect, extent) = (command.protect, command.extent);
        let store = unit.store().clone();
        Some(Self { store, protected, protection_type, protect, extent, expected })
    }

    /// Returns whether each block is transferred with its protection information.
    pub(crate) fn is_transferred(&self) -> bool {
        self.protect.is_transferred()
    }

    /// Returns the inspection of a part of the command's blocks.
    fn inspection(&self, part: Extent, checks: Checks, from_medium: bool) -> Inspection {
        let expected = self.expected.after(part.lba.0 - self.extent.lba.0);
        self.protected.inspection(self.protection_type, part, checks, expected, from_medium)
    }

    /// Returns the checks for blocks on the medium.
    fn medium_checks(&self) -> Checks {
        if !self.is_transferred() && self.protected.is_unchecked_when_zero() {
            Checks::NONE
        } else {
            self.protect.checks()
        }
    }

    /// Reads a part of the command's blocks in the form in which they are transferred.
    pub(crate) fn read(&self, part: Extent) -> Io<Result<Data, BlockError>> {
        let inspection = self.inspection(part, self.medium_checks(), true);
        let (size, strip) = (inspection.block_size.bytes(), !self.is_transferred());
        read_inspected(&self.store, inspection).map(move |blocks| {
            let blocks = blocks?;
            Ok(if strip { without_tags(blocks, size) } else { blocks }.into())
        })
    }

    /// Rejects blocks from the initiator with wrong protection information. `part` is their destination.
    pub(crate) fn check_data_out(&self, part: Extent, blocks: &[u8]) -> Result<(), Sense> {
        if self.is_transferred() {
            Ok(self.inspection(part, self.protect.checks(), false).inspect(blocks)?)
        } else {
            Ok(())
        }
    }

    /// Writes blocks with the protection information from the initiator.
    pub(crate) fn write(
        &self,
        part: Extent,
        blocks: Buffer,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        self.store.write_protected(part, blocks.into(), durability)
    }

    /// Reads the command's blocks and checks them.
    pub(crate) async fn verify_blocks(&self) -> Result<Completion, Sense> {
        for part in self.parts() {
            self.read(part).wait().await?;
        }
        Ok(Completion::good())
    }

    /// Compares the command's blocks with the blocks from the initiator, or with its single block, as the PROTECT field
    /// requests (SBC-3 5.29).
    pub(crate) async fn compare(&self, wanted: &[u8]) -> Result<Completion, Sense> {
        let owned = self.protected.is_application_tag_owned();
        let compared = self.protect.compared(self.protection_type, owned);
        for part in self.parts() {
            let inspection = self.inspection(part, Checks::NONE, true);
            let step = protected_bytes(inspection.block_size);
            let found = read_inspected(&self.store, inspection).wait().await?;
            let first = part.lba.0 - self.extent.lba.0;
            for (index, found) in (first..).zip(found.chunks_exact(step)) {
                let offset = index as usize * step;
                let position = offset % wanted.len();
                let ahead = (offset - position) / step;
                let wanted = &wanted[position..position + step];
                self.compare_block(found, wanted, ahead as u32, compared)
                    .map_err(|difference| difference.sense(offset))?;
            }
        }
        Ok(Completion::good())
    }

    fn compare_block(
        &self,
        found: &[u8],
        wanted: &[u8],
        ahead: u32,
        compared: Checks,
    ) -> Result<(), Difference> {
        let ((found, found_tags), (wanted, wanted_tags)) = (split(found), split(wanted));
        if let Some(at) = found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
            return Err(Difference::Data(at));
        }
        let reference = self.reference_tag(wanted_tags.reference_tag.get(), ahead);
        let fields = [
            (ProtectionField::Guard, found_tags.guard == wanted_tags.guard),
            (
                ProtectionField::ApplicationTag,
                found_tags.application_tag == wanted_tags.application_tag,
            ),
            (ProtectionField::ReferenceTag, found_tags.reference_tag.get() == reference),
        ];
        match fields.into_iter().find(|&(field, same)| compared.has(field) && !same) {
            Some((field, _)) => Err(Difference::Tags { field, at: found.len() }),
            None => Ok(()),
        }
    }

    /// Writes the single block from the initiator to all of the command's blocks. Its reference tag is incremented for
    /// each block, except with type 3 (SBC-3 5.41).
    pub(crate) async fn write_same(
        &self,
        block: &[u8],
        durability: Durability,
    ) -> Result<(), BlockError> {
        for part in self.parts() {
            let mut blocks = Buffer::for_overwrite(part.block_count as usize * block.len());
            let first = part.lba.0 - self.extent.lba.0;
            for (index, copy) in (first..).zip(blocks.chunks_exact_mut(block.len())) {
                copy.copy_from_slice(block);
                self.count_on(copy, index as u32);
            }
            self.write(part, blocks, durability).wait().await?;
        }
        Ok(())
    }

    fn count_on(&self, block: &mut [u8], ahead: u32) {
        let (_, tags) = split(block);
        let mut tags = *tags;
        tags.reference_tag = self.reference_tag(tags.reference_tag.get(), ahead).into();
        let at = block.len() - PROTECTION_BYTES;
        block[at..].copy_from_slice(tags.as_bytes());
    }

    /// Returns the reference tag of the block that is `ahead` blocks after a block with the tag `first`.
    fn reference_tag(&self, first: u32, ahead: u32) -> u32 {
        match self.protection_type {
            ProtectionType::Type1 | ProtectionType::Type2 => first.wrapping_add(ahead),
            ProtectionType::Type3 => first,
        }
    }

    fn parts(&self) -> impl Iterator<Item = Extent> + use<> {
        let (whole, size) =
            (self.extent, self.inspection(self.extent, Checks::NONE, true).block_size);
        let most = PIECE_BYTES >> size.shift();
        (0..whole.block_count)
            .step_by(most as usize)
            .map(move |done| Extent::new(whole.lba.0 + done, most.min(whole.block_count - done)))
    }
}

/// The first difference between a block of the medium and the initiator's block.
enum Difference {
    /// The data differs in this byte.
    Data(usize),
    /// A field of the protection information differs. It begins at offset `at`.
    Tags { field: ProtectionField, at: usize },
}

impl Difference {
    /// Returns the sense data. `offset` is the position of the block in the Data-Out.
    fn sense(self, offset: usize) -> Sense {
        match self {
            Self::Data(at) => Sense::miscompare((offset + at) as u64),
            Self::Tags { field, at } => {
                let sense = Sense::protection(SenseKey::Miscompare, field);
                sense.with_information((offset + at) as u64)
            }
        }
    }
}
