//! MODE SELECT (SPC-4 6.9, 6.10). The server checks the whole list, then saves the parameters if SP requests it, and
//! then applies all changes.

use super::super::Task;
use super::pages::{Listed, pages_of};
use super::saved;
use crate::modes::ModeParameters;
use crate::{Cdb, Completion, LogicalUnit, Sense};
use sarsen_block::{Buffer, Io};
use sarsen_wire::scsi::cdb as wire;
use sarsen_wire::scsi::mode as page;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Checks PF, RTD and SP. PF is required, since there are no vendor specific pages. RTD excludes a list. SP needs a
/// metadata store.
fn check_flags(flags: u8, length_field: u16, length: u16, unit: &LogicalUnit) -> Result<(), Sense> {
    let has = |flag| flags & flag != 0;
    if has(page::FLAGS_SAVE_PAGES) && unit.metadata().is_none() {
        return Err(Sense::invalid_bit_in_cdb(1, 0));
    }
    match (has(page::FLAGS_REVERT_TO_DEFAULTS), has(page::FLAGS_PAGE_FORMAT)) {
        (true, _) if length != 0 => Err(Sense::invalid_field_in_cdb(length_field)),
        (true, _) | (false, true) => Ok(()),
        (false, false) => Err(Sense::invalid_bit_in_cdb(1, 4)),
    }
}

pub(crate) fn select_6_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    let fields = cdb.view::<wire::Short6>();
    check_flags(fields.flags, 4, fields.length.into(), unit)?;
    Ok(fields.length.into())
}

pub(crate) fn select_10_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    let fields = cdb.view::<wire::Mode10>();
    check_flags(fields.flags, 7, fields.length.get(), unit)?;
    Ok(fields.length.get().into())
}

pub(crate) fn select_6(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let list = task.take_data_out(select_6_data_out(&task.cdb, task.unit)?)?;
    let list = match (page::Header6::ref_from_prefix(&list), list.is_empty()) {
        (_, true) => None,
        (Ok((header, _)), _) => {
            let descriptor_length = header.block_descriptor_length.into();
            let header_length = size_of::<page::Header6>();
            Some(List { bytes: list, header_length, descriptor_length, long_lba: false })
        }
        (Err(_), _) => return Err(Sense::parameter_list_length_error()),
    };
    Ok(select(&task, list))
}

pub(crate) fn select_10(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let list = task.take_data_out(select_10_data_out(&task.cdb, task.unit)?)?;
    let list = match (page::Header10::ref_from_prefix(&list), list.is_empty()) {
        (_, true) => None,
        (Ok((header, _)), _) => {
            let descriptor_length = header.block_descriptor_length.get().into();
            let header_length = size_of::<page::Header10>();
            let long_lba = header.long_lba & page::LONG_LBA != 0;
            Some(List { bytes: list, header_length, descriptor_length, long_lba })
        }
        (Err(_), _) => return Err(Sense::parameter_list_length_error()),
    };
    Ok(select(&task, list))
}

/// A mode parameter list with a valid header.
struct List {
    bytes: Buffer,
    header_length: usize,
    descriptor_length: usize,
    long_lba: bool,
}

fn select(task: &Task<'_>, list: Option<List>) -> Io<Completion> {
    let flags = task.cdb.byte(1);
    let (unit, nexus) = (Arc::clone(task.unit), task.nexus.id);
    task.unit.complete_after(async move {
        let (before, after) = {
            let _turn = unit.modes().selecting.lock().await;
            let before = unit.modes().current();
            let after = match &list {
                _ if flags & page::FLAGS_REVERT_TO_DEFAULTS != 0 => unit.modes().default(),
                Some(list) => list.parameters(&unit, before)?,
                None => before,
            };
            let save = flags & page::FLAGS_SAVE_PAGES != 0;
            if save {
                saved::save(&unit, &after).await?;
            }
            unit.change_modes(nexus, after, save);
            (before, after)
        };
        // SBC-3 6.5.5: when the cache is disabled, its content is written before GOOD.
        if before.write_cache_enabled && !after.write_cache_enabled {
            unit.write_out_cache().await
        } else {
            Ok(Completion::good())
        }
    })
}

impl List {
    /// Returns the parameters that the list requests.
    fn parameters(
        &self,
        unit: &LogicalUnit,
        before: ModeParameters,
    ) -> Result<ModeParameters, Sense> {
        let rest = &self.bytes[self.header_length..];
        let Some((descriptor, pages)) = rest.split_at_checked(self.descriptor_length) else {
            return Err(Sense::parameter_list_length_error());
        };
        check_block_descriptor(unit, descriptor, self.long_lba)
            .map_err(|()| Sense::invalid_field_in_parameter_list(self.header_length as u16))?;
        let mut after = before;
        let mut pages = pages;
        while !pages.is_empty() {
            let offset = self.bytes.len() - pages.len();
            pages = select_page(unit, pages, &before, &mut after, offset)?;
        }
        Ok(after)
    }
}

/// Checks that a block descriptor contains only the current values, since MODE SELECT cannot format the medium.
fn check_block_descriptor(unit: &LogicalUnit, descriptor: &[u8], long_lba: bool) -> Result<(), ()> {
    let geometry = unit.geometry();
    let (block_count, block_length, everything) = if descriptor.is_empty() {
        return Ok(());
    } else if long_lba {
        let fields = page::LongBlockDescriptor::ref_from_bytes(descriptor).map_err(|_| ())?;
        (fields.block_count.get(), fields.block_length.get(), u64::MAX)
    } else {
        let fields = page::ShortBlockDescriptor::ref_from_bytes(descriptor).map_err(|_| ())?;
        let block_length = fields.block_length.get() & 0x00ff_ffff;
        (fields.block_count.get().into(), block_length, u32::MAX.into())
    };
    let same_count = [0, everything, geometry.block_count].contains(&block_count);
    let same_length = block_length as usize == geometry.block_size.bytes();
    if same_count && same_length { Ok(()) } else { Err(()) }
}

/// Applies the page at `offset` of the list to `after`. Returns the remaining bytes.
fn select_page<'a>(
    unit: &LogicalUnit,
    pages: &'a [u8],
    before: &ModeParameters,
    after: &mut ModeParameters,
    offset: usize,
) -> Result<&'a [u8], Sense> {
    let refused = |byte: usize| Sense::invalid_field_in_parameter_list((offset + byte) as u16);
    let Some(listed) = Listed::first_of(pages) else {
        return Err(Sense::parameter_list_length_error());
    };
    let Some(page) = pages_of(unit).find(|page| listed.is(page)) else {
        let code_exists = pages_of(unit).any(|page| page.code == listed.code);
        return Err(match (code_exists, listed.subpage) {
            (false, _) => Sense::invalid_bit_in_parameter_list(offset as u16, 5),
            (true, Some(_)) => refused(1),
            (true, None) => Sense::invalid_bit_in_parameter_list(offset as u16, 6),
        });
    };
    if listed.length != page.bytes(before).len() {
        return Err(refused(if listed.subpage.is_some() { 2 } else { 1 }));
    }
    let Some((wanted, rest)) = pages.split_at_checked(listed.length) else {
        return Err(Sense::parameter_list_length_error());
    };
    page.accept(unit, wanted, before, after).map_err(|field| {
        Sense::invalid_bit_in_parameter_list((offset + field.byte) as u16, field.bit)
    })?;
    Ok(rest)
}
