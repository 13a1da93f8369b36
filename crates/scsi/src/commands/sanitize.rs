//! SANITIZE (SBC-3 4.11, 5.24). CRYPTOGRAPHIC ERASE is supported if the store encrypts its blocks with a replaceable
//! key.

use super::Task;
use crate::operation::{Operation, OperationKind, Step, exit_failure};
use crate::{Cdb, Completion, LogicalUnit, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::medium as wire;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Rejects reserved fields, since the destroyed data cannot be restored.
fn check_reserved(fields: &wire::Sanitize) -> Result<(), Sense> {
    if fields.flags & wire::SANITIZE_RESERVED != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 6));
    }
    match fields.reserved.iter().position(|&byte| byte != 0) {
        Some(position) => Err(Sense::invalid_field_in_cdb(2 + position as u16)),
        None => Ok(()),
    }
}

fn check_without_list(cdb: &Cdb) -> Result<&wire::Sanitize, Sense> {
    let fields = cdb.view::<wire::Sanitize>();
    check_reserved(fields)?;
    match fields.parameter_list_length.get() {
        0 => Ok(fields),
        _ => Err(Sense::invalid_field_in_cdb(7)),
    }
}

fn begin(task: &Task<'_>, flags: u8, steps: Vec<Step>) -> Result<Io<Completion>, Sense> {
    let kind = OperationKind::Sanitize { may_exit: flags & wire::SANITIZE_AUSE != 0 };
    let is_immediate = flags & wire::SANITIZE_IMMED != 0;
    Operation { kind, steps, is_immediate }.start(task)
}

/// Returns the passes that a parameter list requests (SBC-3 5.24.2.2).
fn parse_passes(list: &[u8], unit: &LogicalUnit) -> Result<Vec<Step>, Sense> {
    let Ok((header, pattern)) = wire::OverwriteHeader::ref_from_prefix(list) else {
        return Err(Sense::parameter_list_length_error());
    };
    if header.flags & wire::OVERWRITE_TEST != 0 {
        return Err(Sense::invalid_bit_in_parameter_list(0, 6));
    }
    let count = header.flags & wire::OVERWRITE_COUNT;
    if count == 0 {
        return Err(Sense::invalid_bit_in_parameter_list(0, 4));
    }
    let length = usize::from(header.pattern_length.get());
    let pattern = match pattern.get(..length) {
        Some(pattern) if length > 0 => pattern,
        _ => return Err(Sense::invalid_field_in_parameter_list(2)),
    };
    let inverts = header.flags & wire::OVERWRITE_INVERT != 0;
    let plain = repeated(pattern, unit.byte_count(1));
    let inverted: Arc<[u8]> = plain.iter().map(|byte| !byte).collect();
    let pass = |index| if inverts && index % 2 == 1 { &inverted } else { &plain };
    Ok((0..count).map(|index| Step::Overwrite(pass(index).clone())).collect())
}

/// Fills a block with copies of a pattern. The last copy may be truncated.
pub(super) fn repeated(pattern: &[u8], length: usize) -> Arc<[u8]> {
    pattern.iter().copied().cycle().take(length).collect()
}

pub(crate) fn overwrite(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let length = overwrite_data_out(&task.cdb, unit)?;
    let list = task.take_data_out(length)?;
    let steps = parse_passes(&list, unit)?;
    let flags = task.cdb.view::<wire::Sanitize>().flags;
    begin(&task, flags, steps)
}

pub(crate) fn overwrite_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    let fields = cdb.view::<wire::Sanitize>();
    check_reserved(fields)?;
    let length = usize::from(fields.parameter_list_length.get());
    let header = size_of::<wire::OverwriteHeader>();
    if length > header && length <= header + unit.byte_count(1) {
        Ok(length)
    } else {
        Err(Sense::invalid_field_in_cdb(7))
    }
}

/// Overwrites allocated blocks before it unmaps them, since a file system does not erase the blocks that it frees.
pub(crate) fn block_erase(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let flags = check_without_list(&task.cdb)?.flags;
    begin(&task, flags, vec![Step::Wipe, Step::Release])
}

/// Returns whether the store encrypts its blocks.
pub(crate) fn has_key(unit: &LogicalUnit) -> bool {
    unit.eraser().is_some()
}

/// Unmaps all blocks after the key change, so that they read as zeroes. Without the key they contain only noise. The
/// unmap also revokes their tokens.
pub(crate) fn cryptographic_erase(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let flags = check_without_list(&task.cdb)?.flags;
    begin(&task, flags, vec![Step::ForgetKey, Step::Release])
}

pub(crate) fn exit_failure_mode(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    check_without_list(&task.cdb)?;
    exit_failure(&task)
}
