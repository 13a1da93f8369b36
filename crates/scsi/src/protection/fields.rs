//! The RDPROTECT, WRPROTECT, VRPROTECT and ORPROTECT fields, and the tags that a command expects.

use super::ProtectionType;
use sarsen_block::{Lba, ProtectionField};
use sarsen_wire::scsi::cdb::{Block32, FLAGS_PROTECT};

/// The fields that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checks {
    pub(crate) guard: bool,
    pub(crate) application: bool,
    pub(crate) reference: bool,
}

impl Checks {
    pub(crate) const NONE: Self = Self { guard: false, application: false, reference: false };
    pub(crate) const ALL: Self = Self { guard: true, application: true, reference: true };

    /// Returns whether a field is checked.
    pub(crate) const fn has(self, field: ProtectionField) -> bool {
        match field {
            ProtectionField::Guard => self.guard,
            ProtectionField::ApplicationTag => self.application,
            ProtectionField::ReferenceTag => self.reference,
        }
    }
}

/// A PROTECT field with a valid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtectField(u8);

impl ProtectField {
    /// No protection information is transferred.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the field in the flags of a block command; `None` for a reserved value.
    pub(crate) const fn of(flags: u8) -> Option<Self> {
        match (flags & FLAGS_PROTECT) >> 5 {
            code @ 0..=5 => Some(Self(code)),
            _ => None,
        }
    }

    /// Returns whether each block is transferred with its protection information.
    pub(crate) const fn is_transferred(self) -> bool {
        self.0 != 0
    }

    /// Returns the checks for blocks that are read. If protection information is transferred, they also apply to blocks
    /// from the initiator (SBC-3 5.10, 5.29 and 5.32). Optional checks are included.
    pub(crate) const fn checks(self) -> Checks {
        match self.0 {
            0 | 1 | 5 => Checks::ALL,
            2 => Checks { guard: false, ..Checks::ALL },
            4 => Checks { guard: true, ..Checks::NONE },
            _ => Checks::NONE,
        }
    }

    /// Returns the fields that are compared between the initiator's blocks and the medium (SBC-3 5.29). The application
    /// tag, and type 3's reference tag, are compared only if the initiators define them.
    pub(crate) const fn compared(
        self,
        protection_type: ProtectionType,
        application_tag_owned: bool,
    ) -> Checks {
        let reference = application_tag_owned || !matches!(protection_type, ProtectionType::Type3);
        let tags = Checks { guard: true, application: application_tag_owned, reference };
        match self.0 {
            1 | 3 | 5 => tags,
            2 => Checks { guard: false, ..tags },
            4 => Checks { guard: true, ..Checks::NONE },
            _ => Checks::NONE,
        }
    }
}

/// An application tag, and a mask of its checked bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TagMask {
    tag: u16,
    mask: u16,
}

impl TagMask {
    pub(crate) const fn matches(self, tag: u16) -> bool {
        (tag ^ self.tag) & self.mask == 0
    }
}

/// The tags in a command of 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CdbTags {
    reference: u32,
    application: TagMask,
}

impl CdbTags {
    pub(crate) fn of(fields: &Block32) -> Self {
        let (tag, mask) = (fields.expected_application_tag, fields.application_tag_mask);
        Self {
            reference: fields.expected_initial_reference_tag.get(),
            application: TagMask { tag: tag.get(), mask: mask.get() },
        }
    }
}

/// The expected tags. Unknown tags are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The reference tag of the first block. It is incremented for each further block.
    pub(crate) reference: Option<u32>,
    /// The application tag of all blocks.
    pub(crate) application: Option<TagMask>,
}

impl Expected {
    /// Returns the tags in a command of 32 bytes. The application tag counts only if the initiators define it (ATO).
    pub(crate) fn of_cdb(tags: CdbTags, application_tag_owned: bool) -> Self {
        Self {
            reference: Some(tags.reference),
            application: application_tag_owned.then_some(tags.application),
        }
    }

    /// Returns the tags that follow from the address of the first block.
    pub(crate) const fn of_address(protection_type: ProtectionType, lba: Lba) -> Self {
        let reference = match protection_type {
            ProtectionType::Type1 => Some(lba.0 as u32),
            ProtectionType::Type2 | ProtectionType::Type3 => None,
        };
        Self { reference, application: None }
    }

    /// Returns the tags for a run that begins `block_count` blocks later.
    pub(crate) fn after(self, block_count: u64) -> Self {
        let reference = self.reference.map(|first| first.wrapping_add(block_count as u32));
        Self { reference, ..self }
    }
}
