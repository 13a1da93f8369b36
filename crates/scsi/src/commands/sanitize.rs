//! SANITIZE (SBC-3 4.11, 5.24). CRYPTOGRAPHIC ERASE is there where a store has a key to forget.

use super::Task;
use crate::operation::{Operation, OperationKind, Step, exit_failure};
use crate::{Cdb, Completion, LogicalUnit, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::medium as wire;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Reserved fields are refused here: what this command destroys does not come back.
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

/// The passes that a parameter list asks for (SBC-3 5.24.2.2).
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

/// A block that is filled with a pattern, whose last copy may be cut.
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
    match length > header && length <= header + unit.byte_count(1) {
        true => Ok(length),
        false => Err(Sense::invalid_field_in_cdb(7)),
    }
}

/// What takes up room is overwritten before it is given back: a file system that gets blocks back
/// leaves their content where it was.
pub(crate) fn block_erase(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let flags = check_without_list(&task.cdb)?.flags;
    begin(&task, flags, vec![Step::Wipe, Step::Release])
}

/// Whether blocks are kept encrypted.
pub(crate) fn has_key(unit: &LogicalUnit) -> bool {
    unit.eraser().is_some()
}

/// What is noise after the key was forgotten is given back, so that it reads as zeroes: nobody
/// takes it for data, and the tokens of it are revoked.
pub(crate) fn cryptographic_erase(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let flags = check_without_list(&task.cdb)?.flags;
    begin(&task, flags, vec![Step::ForgetKey, Step::Release])
}

pub(crate) fn exit_failure_mode(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    check_without_list(&task.cdb)?;
    exit_failure(&task)
}
