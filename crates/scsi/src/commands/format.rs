//! FORMAT UNIT (SBC-3 5.3, SBC-4 5.4). The block length cannot change, since MODE SELECT accepts no other one. The
//! medium has no defects: defect lists are checked, and the listed blocks are formatted like all others.

use super::Task;
use super::sanitize::repeated;
use crate::operation::{Operation, OperationKind, Step};
use crate::{Cdb, Completion, LogicalUnit, ProtectionType, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::medium as wire;
use zerocopy::FromBytes;

/// The maximum length of a defect list in bytes.
const MAXIMUM_DEFECT_LIST_BYTES: usize = 64 << 10;
/// INITIALIZATION PATTERN TYPE: the device's default, or a repeated pattern.
const PATTERN_DEFAULT: u8 = 0x00;
const PATTERN_REPEATED: u8 = 0x01;

/// The supported values of DEFECT LIST FORMAT, which address logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DefectFormat {
    ShortBlock,
    LongBlock,
}

impl DefectFormat {
    const fn entry_length(self) -> usize {
        match self {
            Self::ShortBlock => 4,
            Self::LongBlock => 8,
        }
    }
}

/// Returns FMTPINFO and PROTECTION FIELD USAGE of the current format (SBC-3 table 38). Other values are rejected, since
/// the configuration of the volume defines its protection.
fn protection_of(unit: &LogicalUnit) -> (u8, u8) {
    match unit.protection_type() {
        None => (0x00, 0),
        Some(ProtectionType::Type1) => (0x80, 0),
        Some(ProtectionType::Type2) => (0xc0, 0),
        Some(ProtectionType::Type3) => (0xc0, 1),
    }
}

/// The properties of the parameter list that the CDB defines.
struct List {
    has_long_header: bool,
    protection_field_usage: u8,
    defects: DefectFormat,
}

impl List {
    /// Returns `None` if there is no parameter list.
    fn parse(cdb: &Cdb, unit: &LogicalUnit) -> Result<Option<Self>, Sense> {
        let fields = cdb.view::<wire::FormatUnit>();
        let (fmtpinfo, protection_field_usage) = protection_of(unit);
        let has_list = fields.flags & wire::FORMAT_FMTDATA != 0;
        if fields.flags & wire::FORMAT_FMTPINFO != fmtpinfo
            || !has_list && protection_field_usage != 0
        {
            return Err(Sense::invalid_bit_in_cdb(1, 7));
        }
        if fields.fast_format & wire::FORMAT_FFMT == 0x03 {
            return Err(Sense::invalid_bit_in_cdb(4, 1));
        }
        let format = fields.flags & wire::FORMAT_DEFECT_LIST_FORMAT;
        if !has_list {
            return match (fields.flags & wire::FORMAT_CMPLST, format) {
                (0, 0) => Ok(None),
                (0, _) => Err(Sense::invalid_bit_in_cdb(1, 2)),
                _ => Err(Sense::invalid_bit_in_cdb(1, 3)),
            };
        }
        let defects = match format {
            0 => DefectFormat::ShortBlock,
            3 => DefectFormat::LongBlock,
            // Physical addresses, which a volume does not have.
            _ => return Err(Sense::invalid_bit_in_cdb(1, 2)),
        };
        let has_long_header = fields.flags & wire::FORMAT_LONGLIST != 0;
        Ok(Some(Self { has_long_header, protection_field_usage, defects }))
    }

    const fn header_length(&self) -> usize {
        if self.has_long_header {
            size_of::<wire::FormatLongHeader>()
        } else {
            size_of::<wire::FormatShortHeader>()
        }
    }

    /// Returns the flags, the offset of the defect list's length, and that length.
    fn header(&self, list: &[u8]) -> Result<(u8, u16, usize), Sense> {
        let short = || Sense::parameter_list_length_error();
        let (usage, flags, field, length) = if self.has_long_header {
            let (header, _) = wire::FormatLongHeader::ref_from_prefix(list).map_err(|_| short())?;
            if header.protection_interval != 0 {
                return Err(Sense::invalid_field_in_parameter_list(3));
            }
            let length = header.defect_list_length.get() as usize;
            (header.protection_field_usage, header.flags, 4, length)
        } else {
            let (header, _) =
                wire::FormatShortHeader::ref_from_prefix(list).map_err(|_| short())?;
            let length = header.defect_list_length.get().into();
            (header.protection_field_usage, header.flags, 2, length)
        };
        if usage & wire::LIST_PROTECTION_FIELD_USAGE != self.protection_field_usage {
            return Err(Sense::invalid_bit_in_parameter_list(0, 2));
        }
        // SBC-3 5.3.2.2: without FOV the device uses its defaults, and the other bits must be 0.
        if flags & wire::LIST_FOV == 0 && flags & wire::LIST_NEEDS_FOV != 0 {
            return Err(Sense::invalid_bit_in_parameter_list(1, 7));
        }
        Ok((flags, field, length))
    }

    /// Returns the step that the list requests, and IMMED.
    fn parse_content(&self, list: &[u8], unit: &LogicalUnit) -> Result<(Step, bool), Sense> {
        let (flags, field, defect_list_length) = self.header(list)?;
        let mut position = self.header_length();
        let mut step = Step::Release;
        if flags & wire::LIST_IP != 0 {
            let (pattern, end) = parse_pattern(list, position, unit)?;
            step = pattern.unwrap_or(step);
            position = end;
        }
        if !defect_list_length.is_multiple_of(self.defects.entry_length())
            || defect_list_length > MAXIMUM_DEFECT_LIST_BYTES
        {
            return Err(Sense::invalid_field_in_parameter_list(field));
        }
        let Some(defects) = list.get(position..position + defect_list_length) else {
            return Err(Sense::parameter_list_length_error());
        };
        self.check_defects(defects, position, unit)?;
        Ok((step, flags & wire::LIST_IMMED != 0))
    }

    /// Checks that defects are in ascending order and within the medium (SBC-3 5.3.2.4).
    fn check_defects(
        &self,
        defects: &[u8],
        position: usize,
        unit: &LogicalUnit,
    ) -> Result<(), Sense> {
        let block_count = unit.geometry().block_count;
        let mut least = 0;
        let entries = defects.chunks_exact(self.defects.entry_length());
        for (index, entry) in entries.enumerate() {
            let lba = entry.iter().fold(0, |lba, &byte| lba << 8 | u64::from(byte));
            if lba < least || lba >= block_count {
                let offset = position + index * self.defects.entry_length();
                return Err(Sense::invalid_parameter_at(offset));
            }
            least = lba + 1;
        }
        Ok(())
    }
}

/// Parses the initialization pattern descriptor (SBC-3 5.3.2.3). Returns the requested pattern, unless it is the
/// device's default, and the offset of the descriptor's end.
fn parse_pattern(
    list: &[u8],
    position: usize,
    unit: &LogicalUnit,
) -> Result<(Option<Step>, usize), Sense> {
    let at = |offset| Sense::invalid_field_in_parameter_list(position as u16 + offset);
    let rest = list.get(position..).unwrap_or_default();
    let Ok((header, rest)) = wire::InitializationPattern::ref_from_prefix(rest) else {
        return Err(Sense::parameter_list_length_error());
    };
    // IP MODIFIER wrote addresses into the blocks; obsolete since SBC-3.
    if header.flags & 0xc0 != 0 {
        return Err(at(0));
    }
    let length = usize::from(header.pattern_length.get());
    let fits = match header.pattern_type {
        PATTERN_DEFAULT => length == 0,
        PATTERN_REPEATED => length > 0 && length <= unit.byte_count(1),
        _ => return Err(at(1)),
    };
    if !fits {
        return Err(at(2));
    }
    let Some(pattern) = rest.get(..length) else {
        return Err(Sense::parameter_list_length_error());
    };
    let end = position + size_of::<wire::InitializationPattern>() + length;
    let step = (length > 0).then(|| Step::Overwrite(repeated(pattern, unit.byte_count(1))));
    Ok((step, end))
}

pub(crate) fn format_unit(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let (step, is_immediate) = match List::parse(&task.cdb, unit)? {
        None => (Step::Release, false),
        Some(format) => format.parse_content(&task.take_all_data_out(), unit)?,
    };
    Operation { kind: OperationKind::Format, steps: vec![step], is_immediate }.start(&task)
}

/// Returns the maximum length of the list, since the CDB does not contain the length.
pub(crate) fn format_unit_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    Ok(List::parse(cdb, unit)?.map_or(0, |list| {
        let pattern = size_of::<wire::InitializationPattern>() + unit.byte_count(1);
        list.header_length() + pattern + MAXIMUM_DEFECT_LIST_BYTES
    }))
}
