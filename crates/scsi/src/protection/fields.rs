//! The RDPROTECT, WRPROTECT, VRPROTECT and ORPROTECT fields, and the tags that a command expects.

use super::ProtectionType;
use sarsen_block::{Lba, ProtectionField};
use sarsen_wire::scsi::cdb::{Block32, FLAGS_PROTECT};

/// Which fields are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checks {
    pub(crate) guard: bool,
    pub(crate) application: bool,
    pub(crate) reference: bool,
}

impl Checks {
    pub(crate) const NONE: Self = Self { guard: false, application: false, reference: false };
    pub(crate) const ALL: Self = Self { guard: true, application: true, reference: true };

    /// Whether a field is among them.
    pub(crate) const fn has(self, field: ProtectionField) -> bool {
        match field {
            ProtectionField::Guard => self.guard,
            ProtectionField::ApplicationTag => self.application,
            ProtectionField::ReferenceTag => self.reference,
        }
    }
}

/// A PROTECT field, none of its reserved values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtectField(u8);

impl ProtectField {
    /// No protection information is transferred.
    pub(crate) const NONE: Self = Self(0);

    /// The field in the flags of a block command; `None` where its value is reserved.
    pub(crate) const fn of(flags: u8) -> Option<Self> {
        match (flags & FLAGS_PROTECT) >> 5 {
            code @ 0..=5 => Some(Self(code)),
            _ => None,
        }
    }

    /// Whether each block comes with its protection information.
    pub(crate) const fn is_transferred(self) -> bool {
        self.0 != 0
    }

    /// What is checked of blocks that are read, and, unless nothing is transferred, of blocks that
    /// come from the initiator (SBC-3 5.10, 5.29 and 5.32; what may be checked is).
    pub(crate) const fn checks(self) -> Checks {
        match self.0 {
            0 | 1 | 5 => Checks::ALL,
            2 => Checks { guard: false, ..Checks::ALL },
            4 => Checks { guard: true, ..Checks::NONE },
            _ => Checks::NONE,
        }
    }

    /// What is compared between the initiator's blocks and the medium's (SBC-3 5.29). The
    /// application tag is, where it is the initiators'; so is type 3's reference tag.
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

/// An application tag, and the bits of it that count.
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

/// The tags that a command of 32 bytes names.
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

/// What is known of tags before they are looked at; what is not known is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The reference tag of the first block; each further block has the next.
    pub(crate) reference: Option<u32>,
    /// The application tag of all blocks.
    pub(crate) application: Option<TagMask>,
}

impl Expected {
    /// What a command of 32 bytes says, of which the application tag counts where it is the
    /// initiators' (ATO).
    pub(crate) fn of_cdb(tags: CdbTags, application_tag_owned: bool) -> Self {
        Self {
            reference: Some(tags.reference),
            application: application_tag_owned.then_some(tags.application),
        }
    }

    /// What follows from the address of the first block.
    pub(crate) const fn of_address(protection_type: ProtectionType, lba: Lba) -> Self {
        let reference = match protection_type {
            ProtectionType::Type1 => Some(lba.0 as u32),
            ProtectionType::Type2 | ProtectionType::Type3 => None,
        };
        Self { reference, application: None }
    }

    /// The same for a run that begins so many blocks later.
    pub(crate) fn after(self, block_count: u64) -> Self {
        let reference = self.reference.map(|first| first.wrapping_add(block_count as u32));
        Self { reference, ..self }
    }
}
