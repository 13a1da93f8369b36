//! One segment of EXTENDED COPY (SPC-4 6.4.6): the bytes that it copies, and the errors that it reports.

use super::MAXIMUM_SEGMENT_BYTES;
use super::operation::Operation;
use super::parameters::{Cscd, Parameters, Segment, SegmentOperation};
use super::reach::{AccessDenial, Reached, Requester};
use super::transfer::{Failure, Fault, PieceChecks, Source, Transfer, begins_within};
use crate::designators::unit_designators;
use crate::flags::Flags;
use crate::{AdditionalSense, LogicalUnit};
use sarsen_block::Extent;
use sarsen_wire::scsi::copy::{
    self as wire, BlockToBlock, BlockToBlockWithOffset, IdentificationCscd, SegmentHeader,
    VerifyCscd,
};
use std::mem::offset_of;

/// The reason why a segment failed, and the byte of the list that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentError {
    pub(super) additional: AdditionalSense,
    pub(super) byte: Option<u16>,
}

impl SegmentError {
    const fn at(additional: AdditionalSense, byte: u16) -> Self {
        Self { additional, byte: Some(byte) }
    }
}

/// A unit that a segment names.
struct SegmentUnit<'a> {
    reached: Reached,
    /// The descriptor of the unit; `None` for the unit to which the command was addressed.
    cscd: Option<&'a Cscd>,
}

impl SegmentUnit<'_> {
    fn unit(&self) -> &LogicalUnit {
        &self.reached.unit
    }

    fn pads(&self) -> bool {
        self.cscd.is_some_and(|cscd| cscd.descriptor.flags & wire::CSCD_PAD != 0)
    }

    fn trouble(&self, fault: &Fault) -> SegmentError {
        let additional = match fault {
            Fault::Barrier(AccessDenial::Unreachable) => {
                AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE
            }
            Fault::Barrier(AccessDenial::ReservationConflict | AccessDenial::State(_))
            | Fault::Block(_) => AdditionalSense::THIRD_PARTY_DEVICE_FAILURE,
        };
        SegmentError { additional, byte: self.cscd.map(|cscd| cscd.offset) }
    }
}

/// The bytes of a segment, with offsets in bytes from the start of each unit.
struct Span {
    source_offset: u64,
    destination_offset: u64,
    byte_count: u64,
    pads: bool,
}

/// The context in which segments are executed.
pub(super) struct Context<'a> {
    pub(super) parameters: &'a Parameters,
    pub(super) requester: &'a Requester,
    pub(super) operation: &'a Operation,
}

impl<'a> Context<'a> {
    pub(super) async fn carry_out(&self, segment: &Segment) -> Result<(), SegmentError> {
        // Offsets of a segment's fields are relative to the end of its header.
        let body = segment.offset + size_of::<SegmentHeader>() as u16;
        match &segment.action {
            SegmentOperation::Copy(copy) => self.copy(copy, segment.flags, body).await,
            SegmentOperation::CopyWithOffset(copy) => self.copy_with_offset(copy, body).await,
            SegmentOperation::Verify(verify) => {
                let party = self.party(
                    verify.source.get(),
                    Flags::READ_COMMAND,
                    body + offset_of!(VerifyCscd, source) as u16,
                )?;
                if verify.flags & wire::SEGMENT_TUR == 0 {
                    return Ok(());
                }
                let admitted = party.reached.admit(Flags::READ_COMMAND);
                admitted.map_err(|barrier| party.trouble(&Fault::Barrier(barrier)))
            }
        }
    }

    async fn copy(&self, copy: &BlockToBlock, flags: u8, body: u16) -> Result<(), SegmentError> {
        let field = |offset: usize| body + offset as u16;
        let source = self.party(
            copy.source.get(),
            Flags::READ_COMMAND,
            field(offset_of!(BlockToBlock, source)),
        )?;
        let destination = self.party(
            copy.destination.get(),
            Flags::WRITE_COMMAND,
            field(offset_of!(BlockToBlock, destination)),
        )?;
        let lengths = (block(source.unit()), block(destination.unit()));
        let count = u64::from(copy.block_count.get());
        let byte_count = match flags & wire::SEGMENT_DC {
            0 => count * lengths.0,
            _ => count * lengths.1,
        };
        let source_blocks = byte_count.div_ceil(lengths.0);
        check_range(
            source.unit(),
            Extent::new(copy.source_lba.get(), source_blocks),
            field(offset_of!(BlockToBlock, source_lba)),
        )?;
        let is_exact = byte_count.is_multiple_of(lengths.0) && byte_count.is_multiple_of(lengths.1);
        if !is_exact && (flags & wire::SEGMENT_CAT != 0 || !source.pads() && !destination.pads()) {
            // SPC-4 5.17.7.3: residual data is not carried over to the next segment.
            let code = AdditionalSense::UNEXPECTED_INEXACT_SEGMENT;
            return Err(SegmentError::at(code, body - size_of::<SegmentHeader>() as u16));
        }
        let pads = !is_exact && destination.pads();
        let byte_count = if pads { byte_count } else { byte_count - byte_count % lengths.1 };
        check_range(
            destination.unit(),
            Extent::new(copy.destination_lba.get(), byte_count.div_ceil(lengths.1)),
            field(offset_of!(BlockToBlock, destination_lba)),
        )?;
        let span = Span {
            source_offset: copy.source_lba.get() * lengths.0,
            destination_offset: copy.destination_lba.get() * lengths.1,
            byte_count,
            pads,
        };
        self.transfer(&source, &destination, span).await
    }

    async fn copy_with_offset(
        &self,
        copy: &BlockToBlockWithOffset,
        body: u16,
    ) -> Result<(), SegmentError> {
        let field = |offset: usize| body + offset as u16;
        let source = self.party(
            copy.source.get(),
            Flags::READ_COMMAND,
            field(offset_of!(BlockToBlockWithOffset, source)),
        )?;
        let destination = self.party(
            copy.destination.get(),
            Flags::WRITE_COMMAND,
            field(offset_of!(BlockToBlockWithOffset, destination)),
        )?;
        let byte_count = u64::from(copy.byte_count.get());
        if byte_count > MAXIMUM_SEGMENT_BYTES {
            let byte = field(offset_of!(BlockToBlockWithOffset, byte_count));
            return Err(SegmentError::at(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST, byte));
        }
        // SPC-4 6.4.6.12: an offset lies within the first block.
        let place = |unit: &LogicalUnit, lba: u64, offset: u16, lba_field, offset_field| {
            let length = block(unit);
            let offset = u64::from(offset);
            if offset >= length {
                let code = AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST;
                return Err(SegmentError::at(code, field(offset_field)));
            }
            let blocks = (offset + byte_count).div_ceil(length);
            check_range(unit, Extent::new(lba, blocks), field(lba_field))?;
            Ok(lba * length + offset)
        };
        let span = Span {
            source_offset: place(
                source.unit(),
                copy.source_lba.get(),
                copy.source_offset.get(),
                offset_of!(BlockToBlockWithOffset, source_lba),
                offset_of!(BlockToBlockWithOffset, source_offset),
            )?,
            destination_offset: place(
                destination.unit(),
                copy.destination_lba.get(),
                copy.destination_offset.get(),
                offset_of!(BlockToBlockWithOffset, destination_lba),
                offset_of!(BlockToBlockWithOffset, destination_offset),
            )?,
            byte_count,
            pads: false,
        };
        self.transfer(&source, &destination, span).await
    }

    async fn transfer(
        &self,
        source: &SegmentUnit<'_>,
        destination: &SegmentUnit<'_>,
        span: Span,
    ) -> Result<(), SegmentError> {
        let supervisor = PieceChecks {
            operation: self.operation,
            pieces: self.requester.array.copy_permits(),
            source: Some(&source.reached),
            token: None,
            destination: &destination.reached,
        };
        let whole = [Extent::new(0, source.unit().geometry().block_count)];
        let transfer = Transfer {
            source: Source { unit: source.unit(), extents: &whole },
            source_offset: span.source_offset,
            destination: destination.unit(),
            destination_offset: span.destination_offset,
            byte_count: span.byte_count,
            pads: span.pads,
        };
        let is_backward = begins_within(
            (&source.reached.unit, span.source_offset),
            (&destination.reached.unit, span.destination_offset),
            span.byte_count,
        );
        let result = async {
            supervisor.before_piece()?;
            if is_backward {
                transfer.run_backward(&supervisor).await
            } else {
                transfer.run(&supervisor).await
            }
        };
        result.await.map_err(|failure| match failure {
            Failure::Source(fault) => source.trouble(&fault),
            Failure::Destination(fault) => destination.trouble(&fault),
            Failure::Token(_) | Failure::Aborted => {
                SegmentError { additional: AdditionalSense::NONE, byte: None }
            }
        })
    }

    /// Returns the unit of a CSCD DESCRIPTOR ID, if it may be used with `flags`. `field` is the offset of the
    /// identifier.
    fn party(&self, id: u16, flags: Flags, field: u16) -> Result<SegmentUnit<'a>, SegmentError> {
        if id == wire::CSCD_ID_THIS_UNIT {
            return Ok(SegmentUnit { reached: self.requester.this_unit(), cscd: None });
        }
        let Some(cscd) = self.parameters.cscds.get(usize::from(id)) else {
            return Err(SegmentError::at(AdditionalSense::UNREACHABLE_COPY_TARGET, field));
        };
        let is_named = |unit: &LogicalUnit| names(&cscd.descriptor, unit);
        let Some(reached) = self.requester.find(is_named, flags) else {
            let code = AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE;
            return Err(SegmentError::at(code, cscd.offset));
        };
        let unit = &reached.unit;
        let device_type = cscd.descriptor.device_type & wire::CSCD_DEVICE_TYPE;
        if device_type != unit.device_type() as u8 {
            let byte = cscd.offset + offset_of!(IdentificationCscd, device_type) as u16;
            return Err(SegmentError::at(AdditionalSense::INCORRECT_COPY_TARGET_DEVICE_TYPE, byte));
        }
        let [high, middle, low] = cscd.descriptor.block_length;
        let block_length = u64::from(u32::from_be_bytes([0, high, middle, low]));
        if block_length != 0 && block_length != block(unit) {
            let byte = cscd.offset + offset_of!(IdentificationCscd, block_length) as u16;
            return Err(SegmentError::at(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST, byte));
        }
        Ok(SegmentUnit { reached, cscd: Some(cscd) })
    }
}

/// Returns the block size of a unit in bytes.
fn block(unit: &LogicalUnit) -> u64 {
    unit.byte_count(1) as u64
}

/// Checks that the blocks of a segment are within the unit.
fn check_range(unit: &LogicalUnit, extent: Extent, byte: u16) -> Result<(), SegmentError> {
    if extent.fits(unit.geometry().block_count) {
        Ok(())
    } else {
        Err(SegmentError::at(AdditionalSense::NONE, byte))
    }
}

/// Returns whether a descriptor contains one of the designators of the unit.
fn names(descriptor: &IdentificationCscd, unit: &LogicalUnit) -> bool {
    let length = usize::from(descriptor.designator_length);
    let Some(designator) = descriptor.designator.get(..length) else { return false };
    // The descriptor may not have had enough space for the zeroes that pad a SCSI name string.
    let is_same = |shown: &[u8], is_text: bool| {
        if is_text {
            trimmed(shown).eq_ignore_ascii_case(trimmed(designator))
        } else {
            shown == designator
        }
    };
    unit_designators(unit.identity()).iter().any(|(code_set, designator_type, shown)| {
        // ASSOCIATION is 0 in both: a logical unit.
        descriptor.designator_type & 0x3f == *designator_type
            && descriptor.code_set & 0x0f == *code_set
            && is_same(shown, *designator_type == wire::DESIGNATOR_SCSI_NAME)
    })
}

fn trimmed(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    &text[..end]
}
