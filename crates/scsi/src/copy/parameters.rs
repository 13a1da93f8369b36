//! The parameter list of EXTENDED COPY(LID1) (SPC-4 6.5). The server checks the whole list before it copies anything.

use super::operation::ListId;
use super::{MAXIMUM_CSCDS, MAXIMUM_DESCRIPTOR_BYTES, MAXIMUM_SEGMENTS};
use crate::{AdditionalSense, Sense};
use sarsen_wire::scsi::copy::{
    self as wire, BlockToBlock, BlockToBlockWithOffset, ExtendedCopyHeader, IdentificationCscd,
    SegmentHeader, VerifyCscd,
};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// The maximum length of the list. Inline data is not supported.
pub(super) const MAXIMUM_LENGTH: usize = size_of::<ExtendedCopyHeader>() + MAXIMUM_DESCRIPTOR_BYTES;

/// A unit that the list names.
pub(super) struct Cscd {
    pub(super) descriptor: IdentificationCscd,
    /// Offset of its descriptor in the list.
    pub(super) offset: u16,
}

/// A segment descriptor.
pub(super) struct Segment {
    pub(super) action: SegmentOperation,
    /// DC and CAT, as flags.
    pub(super) flags: u8,
    /// Offset of the descriptor in the list.
    pub(super) offset: u16,
}

/// The operation of a segment.
pub(super) enum SegmentOperation {
    Copy(BlockToBlock),
    CopyWithOffset(BlockToBlockWithOffset),
    Verify(VerifyCscd),
}

/// A list that passed the checks.
pub(super) struct Parameters {
    pub(super) id: Option<ListId>,
    /// True if the record of the operation is kept after its end.
    pub(super) is_kept: bool,
    pub(super) cscds: Vec<Cscd>,
    pub(super) segments: Vec<Segment>,
}

impl Parameters {
    pub(super) fn parse(list: &[u8]) -> Result<Self, Sense> {
        let Ok((header, rest)) = ExtendedCopyHeader::ref_from_prefix(list) else {
            return Err(Sense::parameter_list_length_error());
        };
        let (id, is_kept) = list_id(header)?;
        let cscd_bytes = usize::from(header.cscd_list_length.get());
        let segment_bytes = header.segment_list_length.get() as usize;
        let inline = header.inline_data_length.get();
        let descriptor_bytes = cscd_bytes.saturating_add(segment_bytes);
        if descriptor_bytes > MAXIMUM_DESCRIPTOR_BYTES {
            return Err(Sense::parameter_list_length_error());
        }
        if inline > 0 {
            let byte = offset_of!(ExtendedCopyHeader, inline_data_length) as u16;
            let code = AdditionalSense::INLINE_DATA_LENGTH_EXCEEDED;
            return Err(Sense::in_parameter_list(code, byte));
        }
        if rest.len() < descriptor_bytes {
            return Err(Sense::parameter_list_length_error());
        }
        let (cscds, segments) = rest[..descriptor_bytes].split_at(cscd_bytes);
        let start = size_of::<ExtendedCopyHeader>();
        Ok(Self {
            id,
            is_kept,
            cscds: parse_cscds(cscds, start)?,
            segments: parse_segments(segments, start + cscd_bytes)?,
        })
    }
}

/// Returns the list identifier and whether the record is kept (SPC-4 6.5.2).
fn list_id(header: &ExtendedCopyHeader) -> Result<(Option<ListId>, bool), Sense> {
    let id = Some(ListId::Short(header.list_identifier));
    match header.flags & wire::LIST_ID_USAGE {
        wire::LIST_ID_HOLDS => Ok((id, true)),
        wire::LIST_ID_HOLDS_NOTHING => Ok((id, false)),
        wire::LIST_ID_NONE if header.list_identifier == 0 => Ok((None, false)),
        wire::LIST_ID_NONE => Err(Sense::invalid_field_in_parameter_list(0)),
        _ => Err(Sense::invalid_bit_in_parameter_list(1, 4)),
    }
}

fn parse_cscds(bytes: &[u8], start: usize) -> Result<Vec<Cscd>, Sense> {
    const LENGTH: usize = size_of::<IdentificationCscd>();
    if !bytes.len().is_multiple_of(LENGTH) {
        let byte = offset_of!(ExtendedCopyHeader, cscd_list_length) as u16;
        return Err(Sense::invalid_field_in_parameter_list(byte));
    }
    let mut cscds = Vec::with_capacity(bytes.len() / LENGTH);
    for (index, bytes) in bytes.chunks_exact(LENGTH).enumerate() {
        let offset = (start + index * LENGTH) as u16;
        if index == MAXIMUM_CSCDS {
            let code = AdditionalSense::TOO_MANY_TARGET_DESCRIPTORS;
            return Err(Sense::in_parameter_list(code, offset));
        }
        let descriptor = view::<IdentificationCscd>(bytes)?;
        if descriptor.descriptor_type != wire::CSCD_IDENTIFICATION {
            let code = AdditionalSense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE;
            return Err(Sense::in_parameter_list(code, offset));
        }
        if usize::from(descriptor.designator_length) > descriptor.designator.len() {
            let byte = offset_of!(IdentificationCscd, designator_length) as u16;
            return Err(Sense::invalid_field_in_parameter_list(offset + byte));
        }
        cscds.push(Cscd { descriptor, offset });
    }
    Ok(cscds)
}

fn parse_segments(bytes: &[u8], start: usize) -> Result<Vec<Segment>, Sense> {
    let mut segments = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let offset = (start + bytes.len() - rest.len()) as u16;
        let Ok((header, after)) = SegmentHeader::ref_from_prefix(rest) else {
            return Err(Sense::parameter_list_length_error());
        };
        if segments.len() == MAXIMUM_SEGMENTS {
            let code = AdditionalSense::TOO_MANY_SEGMENT_DESCRIPTORS;
            return Err(Sense::in_parameter_list(code, offset));
        }
        let length = usize::from(header.descriptor_length.get());
        let expected = match header.descriptor_type {
            wire::SEGMENT_BLOCK_TO_BLOCK => size_of::<BlockToBlock>(),
            wire::SEGMENT_BLOCK_TO_BLOCK_WITH_OFFSET => size_of::<BlockToBlockWithOffset>(),
            wire::SEGMENT_VERIFY => size_of::<VerifyCscd>(),
            _ => {
                let code = AdditionalSense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE;
                return Err(Sense::in_parameter_list(code, offset));
            }
        };
        if length != expected {
            let byte = offset_of!(SegmentHeader, descriptor_length) as u16;
            return Err(Sense::invalid_field_in_parameter_list(offset + byte));
        }
        let Some((body, next)) = after.split_at_checked(length) else {
            return Err(Sense::parameter_list_length_error());
        };
        let action = match header.descriptor_type {
            wire::SEGMENT_BLOCK_TO_BLOCK => SegmentOperation::Copy(view(body)?),
            wire::SEGMENT_VERIFY => SegmentOperation::Verify(view(body)?),
            _ => SegmentOperation::CopyWithOffset(view(body)?),
        };
        segments.push(Segment { action, flags: header.flags, offset });
        rest = next;
    }
    Ok(segments)
}

fn view<T: FromBytes + KnownLayout + Immutable + Copy>(bytes: &[u8]) -> Result<T, Sense> {
    T::read_from_bytes(bytes).map_err(|_| Sense::parameter_list_length_error())
}
