//! MODE SENSE and MODE SELECT of a CD (MMC-6 6.12, 6.13, 7): pages that describe the drive. Their fields cannot be
//! changed, and there is no block descriptor.

use super::configuration::SPEED;
use crate::task::{Task, parameter_data};
use crate::{Cdb, Completion, LogicalUnit, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::cdb as wire;
use sarsen_wire::scsi::mode::{self as page, PageHeader};
use sarsen_wire::scsi::multimedia as layout;
use zerocopy::{FromBytes, IntoBytes};

/// The supported pages, in ascending order.
const PAGES: [u8; 4] = [
    layout::PAGE_READ_ERROR_RECOVERY,
    layout::PAGE_POWER_CONDITION,
    layout::PAGE_TIMEOUT_AND_PROTECT,
    layout::PAGE_CAPABILITIES,
];
/// PC values.
const CHANGEABLE: u8 = 1;
const SAVED: u8 = 3;

/// DVD-ROM, CD-RW and CD-R.
const READS: u8 = 0x08 | 0x02 | 0x01;
/// A tray, EJECT and LOCK; LOCK STATE while removal is prevented.
const MECHANISM: u8 = 0x20 | 0x08 | 0x01;
const LOCKED: u8 = 0x02;

/// Returns the bytes of a page; `None` for an unsupported page.
fn page_bytes(page_code: u8, unit: &LogicalUnit) -> Option<Vec<u8>> {
    let header = |page_length| PageHeader { page_code, page_length };
    Some(match page_code {
        layout::PAGE_READ_ERROR_RECOVERY => layout::ReadErrorRecoveryPage {
            header: header(0x0a),
            parameter: 0,
            read_retry_count: 0,
            reserved: [0; 8],
        }
        .as_bytes()
        .to_vec(),
        layout::PAGE_POWER_CONDITION => layout::PowerConditionPage {
            header: header(0x0a),
            reserved: 0,
            flags: 0,
            idle_timer: 0.into(),
            standby_timer: 0.into(),
        }
        .as_bytes()
        .to_vec(),
        layout::PAGE_TIMEOUT_AND_PROTECT => layout::TimeoutAndProtectPage {
            header: header(0x08),
            reserved: [0; 2],
            flags: 0,
            reserved_5: 0,
            group_1: 0.into(),
            group_2: 0.into(),
        }
        .as_bytes()
        .to_vec(),
        layout::PAGE_CAPABILITIES => layout::CapabilitiesPage {
            header: header(0x1e),
            reads: READS,
            writes: 0,
            plays: 0,
            audio: 0,
            mechanism: MECHANISM | if unit.medium().is_prevented() { LOCKED } else { 0 },
            changer: 0,
            maximum_read_speed: SPEED.into(),
            volume_levels: 0.into(),
            buffer_size: 0.into(),
            current_read_speed: SPEED.into(),
            reserved: [0; 6],
            copy_management_revision: 0.into(),
            reserved_24: [0; 8],
        }
        .as_bytes()
        .to_vec(),
        _ => return None,
    })
}

/// Returns the pages that MODE SENSE requests.
fn pages(page_byte: u8, subpage_code: u8, unit: &LogicalUnit) -> Result<Vec<u8>, Sense> {
    let page_control = page_byte >> 6;
    if page_control == SAVED {
        return Err(Sense::saving_parameters_not_supported());
    }
    let page_code = page_byte & page::PAGE_CODE;
    if !matches!(subpage_code, 0 | page::SUBPAGE_ALL) {
        return Err(Sense::invalid_field_in_cdb(3));
    }
    let codes = match page_code {
        page::PAGE_ALL => &PAGES[..],
        _ => &[page_code],
    };
    let mut bytes = Vec::new();
    for &code in codes {
        let mut page = page_bytes(code, unit).ok_or(Sense::invalid_bit_in_cdb(2, 5))?;
        if page_control == CHANGEABLE {
            page[size_of::<PageHeader>()..].fill(0);
        }
        bytes.extend(page);
    }
    Ok(bytes)
}

pub(super) fn sense_6(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Short6>();
    let pages = pages(fields.page, fields.subpage, task.unit)?;
    let header = page::Header6 {
        mode_data_length: (3 + pages.len()) as u8,
        medium_type: 0,
        device_specific: 0,
        block_descriptor_length: 0,
    };
    let bytes = [header.as_bytes(), &pages].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.length.into())))
}

pub(super) fn sense_10(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Mode10>();
    let pages = pages(fields.page, fields.subpage, task.unit)?;
    let header = page::Header10 {
        mode_data_length: ((6 + pages.len()) as u16).into(),
        medium_type: 0,
        device_specific: 0,
        long_lba: 0,
        reserved: 0,
        block_descriptor_length: 0.into(),
    };
    let bytes = [header.as_bytes(), &pages].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.length.get().into())))
}

/// Checks PF and SP. PF is required, since there are no vendor specific pages. Nothing can be saved.
fn check_select_flags(flags: u8) -> Result<(), Sense> {
    match (flags & page::FLAGS_PAGE_FORMAT != 0, flags & page::FLAGS_SAVE_PAGES != 0) {
        (true, false) => Ok(()),
        (false, _) => Err(Sense::invalid_bit_in_cdb(1, 4)),
        (true, true) => Err(Sense::invalid_bit_in_cdb(1, 0)),
    }
}

pub(super) fn select_6_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    let fields = cdb.view::<wire::Short6>();
    check_select_flags(fields.flags)?;
    Ok(fields.length.into())
}

pub(super) fn select_10_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    let fields = cdb.view::<wire::Mode10>();
    check_select_flags(fields.flags)?;
    Ok(fields.length.get().into())
}

pub(super) fn select_6(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let length = select_6_data_out(&task.cdb, task.unit)?;
    let list = task.take_data_out(length)?;
    if list.is_empty() {
        return Ok(Io::Ready(Completion::good()));
    }
    let Ok((header, _)) = page::Header6::ref_from_prefix(&list) else {
        return Err(Sense::parameter_list_length_error());
    };
    match header.block_descriptor_length {
        0 => check_pages(task.unit, &list, size_of::<page::Header6>()),
        _ => Err(Sense::invalid_field_in_parameter_list(3)),
    }
}

pub(super) fn select_10(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let length = select_10_data_out(&task.cdb, task.unit)?;
    let list = task.take_data_out(length)?;
    if list.is_empty() {
        return Ok(Io::Ready(Completion::good()));
    }
    let Ok((header, _)) = page::Header10::ref_from_prefix(&list) else {
        return Err(Sense::parameter_list_length_error());
    };
    match header.block_descriptor_length.get() {
        0 => check_pages(task.unit, &list, size_of::<page::Header10>()),
        _ => Err(Sense::invalid_field_in_parameter_list(6)),
    }
}

/// Checks that the pages contain only the current values.
fn check_pages(
    unit: &LogicalUnit,
    list: &[u8],
    mut offset: usize,
) -> Result<Io<Completion>, Sense> {
    while let [page_code, rest @ ..] = &list[offset..] {
        let current = page_bytes(page_code & page::PAGE_CODE, unit)
            .filter(|_| page_code & page::SUBPAGE_FORMAT == 0)
            .ok_or(Sense::invalid_field_in_parameter_list(offset as u16))?;
        if rest.first().is_some_and(|length| *length != current[1]) {
            return Err(Sense::invalid_field_in_parameter_list(offset as u16 + 1));
        }
        let Some(wanted) = list[offset..].get(..current.len()) else {
            return Err(Sense::parameter_list_length_error());
        };
        // PS is reserved here.
        let differs = wanted.iter().zip(&current).skip(2).position(|(one, other)| one != other);
        if let Some(index) = differs {
            return Err(Sense::invalid_field_in_parameter_list((offset + 2 + index) as u16));
        }
        offset += current.len();
    }
    Ok(Io::Ready(Completion::good()))
}
