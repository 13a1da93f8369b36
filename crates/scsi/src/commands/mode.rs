//! MODE SENSE and MODE SELECT (SPC-4 6.11 to 6.14, 7.5; SBC-3 6.5): caching, control and
//! informational exceptions pages. Pages are built from the unit's mode parameters and, where
//! they are selected, compared with what they were.

use super::{Task, parameter_data};
use crate::logical_unit::ModeParameters;
use crate::task_set::Policy;
use crate::{Cdb, Completion, LogicalUnit, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::cdb as wire;
use sarsen_wire::scsi::mode::{self as page, PageHeader};
use zerocopy::{FromBytes, IntoBytes};

/// The pages that exist, in order.
const PAGES: [u8; 3] =
    [page::PAGE_CACHING, page::PAGE_CONTROL, page::PAGE_INFORMATIONAL_EXCEPTIONS];
/// BUSY TIMEOUT PERIOD: unlimited.
const UNLIMITED: u16 = 0xffff;
/// PC values.
const CURRENT: u8 = 0;
const CHANGEABLE: u8 = 1;
const DEFAULT: u8 = 2;

/// A page's bytes for these parameters; `None` for a page that does not exist.
fn page_bytes(page_code: u8, parameters: ModeParameters) -> Option<Vec<u8>> {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let header = |page_length| PageHeader { page_code, page_length };
    Some(match page_code {
        page::PAGE_CACHING => page::CachingPage {
            header: header(0x12),
            flags: bit(parameters.write_cache_enabled, page::CACHING_WCE),
            retention_priority: 0,
            disable_prefetch_transfer_length: 0.into(),
            minimum_prefetch: 0.into(),
            maximum_prefetch: 0.into(),
            maximum_prefetch_ceiling: 0.into(),
            flags_12: 0,
            cache_segment_count: 0,
            cache_segment_size: 0.into(),
            reserved: [0; 4],
        }
        .as_bytes()
        .to_vec(),
        page::PAGE_CONTROL => {
            let [flags_2, queueing, flags_4, flags_5] = parameters.tasks.to_bytes();
            page::ControlPage {
                header: header(0x0a),
                flags_2: flags_2 | bit(parameters.descriptor_sense, page::CONTROL_D_SENSE),
                queueing,
                flags_4: flags_4 | bit(parameters.software_write_protect, page::CONTROL_SWP),
                flags_5,
                obsolete: [0; 2],
                busy_timeout_period: UNLIMITED.into(),
                extended_self_test_completion_time: 0.into(),
            }
            .as_bytes()
            .to_vec()
        }
        page::PAGE_INFORMATIONAL_EXCEPTIONS => page::InformationalExceptionsPage {
            header: header(0x0a),
            flags: 0,
            method_of_reporting: 0,
            interval_timer: 0.into(),
            report_count: 0.into(),
        }
        .as_bytes()
        .to_vec(),
        _ => return None,
    })
}

/// The bits of a page that MODE SELECT may change: those in which two extremes differ. WCE can be
/// cleared only where there is a cache to switch off.
fn changeable_bytes(page_code: u8, unit: &LogicalUnit) -> Option<Vec<u8>> {
    let all = |set| ModeParameters {
        write_cache_enabled: set && unit.characteristics().volatile_cache,
        software_write_protect: set,
        descriptor_sense: set,
        tasks: if set { Policy::OPPOSITE } else { Policy::default() },
    };
    let mut low = page_bytes(page_code, all(false))?;
    let high = page_bytes(page_code, all(true))?;
    for (low, high) in low.iter_mut().zip(high).skip(size_of::<PageHeader>()) {
        *low ^= high;
    }
    Some(low)
}

struct SenseRequest {
    page_control: u8,
    page_code: u8,
    subpage_code: u8,
    with_block_descriptor: bool,
    long_lba: bool,
}

impl SenseRequest {
    fn pages(&self, unit: &LogicalUnit) -> Result<Vec<u8>, Sense> {
        let codes: &[u8] = match (self.page_code, self.subpage_code) {
            (page::PAGE_ALL, 0 | page::SUBPAGE_ALL) => &PAGES,
            (page::PAGE_ALL, _) => return Err(Sense::invalid_field_in_cdb(3)),
            (_, 0 | page::SUBPAGE_ALL) => &[self.page_code],
            _ => return Err(Sense::invalid_field_in_cdb(3)),
        };
        let mut bytes = Vec::new();
        for &page_code in codes {
            let page = match self.page_control {
                CURRENT => page_bytes(page_code, unit.mode_parameters()),
                CHANGEABLE => changeable_bytes(page_code, unit),
                DEFAULT => page_bytes(page_code, unit.default_mode_parameters()),
                _ => return Err(Sense::saving_parameters_not_supported()),
            };
            bytes.extend(page.ok_or(Sense::invalid_bit_in_cdb(2, 5))?);
        }
        Ok(bytes)
    }

    fn block_descriptor(&self, unit: &LogicalUnit) -> Vec<u8> {
        let geometry = unit.geometry();
        let block_length = geometry.block_size.bytes() as u32;
        let block_count = match self.page_control {
            CHANGEABLE => 0,
            _ => geometry.block_count,
        };
        match (self.with_block_descriptor, self.long_lba) {
            (false, _) => Vec::new(),
            (true, false) => page::ShortBlockDescriptor {
                block_count: u32::try_from(block_count).unwrap_or(u32::MAX).into(),
                block_length: block_length.into(),
            }
            .as_bytes()
            .to_vec(),
            (true, true) => page::LongBlockDescriptor {
                block_count: block_count.into(),
                reserved: [0; 4],
                block_length: block_length.into(),
            }
            .as_bytes()
            .to_vec(),
        }
    }
}

fn device_specific(unit: &LogicalUnit) -> u8 {
    let write_protected = if unit.check_writable().is_err() { page::DEVICE_SPECIFIC_WP } else { 0 };
    page::DEVICE_SPECIFIC_DPOFUA | write_protected
}

pub(crate) fn sense_6(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Short6>();
    let request = SenseRequest {
        page_control: fields.page >> 6,
        page_code: fields.page & page::PAGE_CODE,
        subpage_code: fields.subpage,
        with_block_descriptor: fields.flags & page::FLAGS_DBD == 0,
        long_lba: false,
    };
    let pages = request.pages(task.unit)?;
    let descriptor = request.block_descriptor(task.unit);
    let header = page::Header6 {
        mode_data_length: (3 + descriptor.len() + pages.len()) as u8,
        medium_type: 0,
        device_specific: device_specific(task.unit),
        block_descriptor_length: descriptor.len() as u8,
    };
    let bytes = [header.as_bytes(), &descriptor, &pages].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.length.into())))
}

pub(crate) fn sense_10(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Mode10>();
    let request = SenseRequest {
        page_control: fields.page >> 6,
        page_code: fields.page & page::PAGE_CODE,
        subpage_code: fields.subpage,
        with_block_descriptor: fields.flags & page::FLAGS_DBD == 0,
        long_lba: fields.flags & page::FLAGS_LLBAA != 0,
    };
    let pages = request.pages(task.unit)?;
    let descriptor = request.block_descriptor(task.unit);
    let is_long = request.long_lba && !descriptor.is_empty();
    let header = page::Header10 {
        mode_data_length: ((6 + descriptor.len() + pages.len()) as u16).into(),
        medium_type: 0,
        device_specific: device_specific(task.unit),
        long_lba: if is_long { page::LONG_LBA } else { 0 },
        reserved: 0,
        block_descriptor_length: (descriptor.len() as u16).into(),
    };
    let bytes = [header.as_bytes(), &descriptor, &pages].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.length.get().into())))
}

/// PF is required, since no vendor's format is known; nothing can be saved.
fn check_select_flags(flags: u8) -> Result<(), Sense> {
    match (flags & page::FLAGS_PAGE_FORMAT != 0, flags & page::FLAGS_SAVE_PAGES != 0) {
        (true, false) => Ok(()),
        (false, _) => Err(Sense::invalid_bit_in_cdb(1, 4)),
        (true, true) => Err(Sense::invalid_bit_in_cdb(1, 0)),
    }
}

pub(crate) fn select_6_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    let fields = cdb.view::<wire::Short6>();
    check_select_flags(fields.flags)?;
    Ok(fields.length.into())
}

pub(crate) fn select_10_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    let fields = cdb.view::<wire::Mode10>();
    check_select_flags(fields.flags)?;
    Ok(fields.length.get().into())
}

pub(crate) fn select_6(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let length = select_6_data_out(&task.cdb, task.unit)?;
    let list = task.take_data_out(length)?;
    if list.is_empty() {
        return Ok(Io::Ready(Completion::good()));
    }
    let Ok((header, rest)) = page::Header6::ref_from_prefix(&list) else {
        return Err(Sense::parameter_list_length_error());
    };
    select(&task, &list, rest, header.block_descriptor_length.into(), false)
}

pub(crate) fn select_10(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let length = select_10_data_out(&task.cdb, task.unit)?;
    let list = task.take_data_out(length)?;
    if list.is_empty() {
        return Ok(Io::Ready(Completion::good()));
    }
    let Ok((header, rest)) = page::Header10::ref_from_prefix(&list) else {
        return Err(Sense::parameter_list_length_error());
    };
    let long_lba = header.long_lba & page::LONG_LBA != 0;
    select(&task, &list, rest, header.block_descriptor_length.get().into(), long_lba)
}

/// Checks the whole list, then changes all that it changes.
fn select(
    task: &Task<'_>,
    list: &[u8],
    rest: &[u8],
    block_descriptor_length: usize,
    long_lba: bool,
) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let Some((descriptor, mut pages)) = rest.split_at_checked(block_descriptor_length) else {
        return Err(Sense::parameter_list_length_error());
    };
    let offset_of = |part: &[u8]| (list.len() - part.len()) as u16;
    check_block_descriptor(unit, descriptor, long_lba)
        .map_err(|()| Sense::invalid_field_in_parameter_list(offset_of(rest)))?;
    let (before, after) = unit.change_mode_parameters(task.nexus.id, |before| {
        let mut after = before;
        while !pages.is_empty() {
            pages = select_page(unit, pages, before, &mut after, offset_of(pages))?;
        }
        Ok(after)
    })?;
    // SBC-3 6.5.5: what is in the cache when it is switched off is written before GOOD.
    match before.write_cache_enabled && !after.write_cache_enabled {
        true => Ok(unit.flush_after_writes()),
        false => Ok(Io::Ready(Completion::good())),
    }
}

/// The medium cannot be formatted: a block descriptor may only say what is already so.
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

/// Takes one page of the list into `after`; returns the bytes behind it.
fn select_page<'a>(
    unit: &LogicalUnit,
    pages: &'a [u8],
    before: ModeParameters,
    after: &mut ModeParameters,
    offset: u16,
) -> Result<&'a [u8], Sense> {
    let Ok((header, _)) = PageHeader::ref_from_prefix(pages) else {
        return Err(Sense::parameter_list_length_error());
    };
    let page_code = header.page_code & page::PAGE_CODE;
    let is_subpage = header.page_code & page::SUBPAGE_FORMAT != 0;
    let (Some(current), Some(changeable), false) =
        (page_bytes(page_code, before), changeable_bytes(page_code, unit), is_subpage)
    else {
        return Err(Sense::invalid_field_in_parameter_list(offset));
    };
    if header.page_length != current[1] {
        return Err(Sense::invalid_field_in_parameter_list(offset + 1));
    }
    let Some((wanted, rest)) = pages.split_at_checked(current.len()) else {
        return Err(Sense::parameter_list_length_error());
    };
    let fields = wanted.iter().zip(&current).zip(&changeable);
    for (index, ((wanted, current), changeable)) in fields.enumerate().skip(2) {
        if (wanted ^ current) & !changeable != 0 {
            return Err(Sense::invalid_field_in_parameter_list(offset + index as u16));
        }
    }
    if let Ok(caching) = page::CachingPage::ref_from_bytes(wanted)
        && page_code == page::PAGE_CACHING
    {
        after.write_cache_enabled = caching.flags & page::CACHING_WCE != 0;
    }
    if let Ok(control) = page::ControlPage::ref_from_bytes(wanted)
        && page_code == page::PAGE_CONTROL
    {
        after.descriptor_sense = control.flags_2 & page::CONTROL_D_SENSE != 0;
        after.software_write_protect = control.flags_4 & page::CONTROL_SWP != 0;
        after.tasks = Policy::of_page(control)
            .map_err(|(byte, bit)| Sense::invalid_bit_in_parameter_list(offset + byte, bit))?;
    }
    Ok(rest)
}
