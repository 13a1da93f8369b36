//! MODE SENSE (SPC-4 6.11, 6.12).

use super::super::{Task, parameter_data};
use super::pages::{Page, pages_of};
use crate::{Completion, DeviceType, LogicalUnit, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::cdb as wire;
use sarsen_wire::scsi::mode as page;
use zerocopy::IntoBytes;

/// PC (SPC-4 6.11.1).
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageControl {
    Current,
    Changeable,
    Default,
    Saved,
}

impl PageControl {
    fn of(byte: u8, unit: &LogicalUnit) -> Result<Self, Sense> {
        match byte >> 6 {
            0 => Ok(Self::Current),
            1 => Ok(Self::Changeable),
            2 => Ok(Self::Default),
            _ if unit.metadata().is_some() => Ok(Self::Saved),
            _ => Err(Sense::saving_parameters_not_supported()),
        }
    }
}

struct Request {
    page_control: PageControl,
    page_code: u8,
    subpage_code: u8,
    with_block_descriptor: bool,
    long_lba: bool,
}

impl Request {
    fn new(page: u8, subpage_code: u8, flags: u8, unit: &LogicalUnit) -> Result<Self, Sense> {
        // An unsupported page is rejected before an unsupported PC.
        let request = Self {
            page_control: PageControl::Current,
            page_code: page & page::PAGE_CODE,
            subpage_code,
            with_block_descriptor: flags & page::FLAGS_DBD == 0
                && unit.device_type() == DeviceType::Disk,
            long_lba: flags & page::FLAGS_LLBAA != 0,
        };
        request.check(unit)?;
        Ok(Self { page_control: PageControl::of(page, unit)?, ..request })
    }

    /// Returns whether the request includes a page. Subpage FFh means all subpages; page 3Fh means all pages, with
    /// subpage FFh also all their subpages (SPC-4 6.11.1).
    fn includes(&self, page: &Page) -> bool {
        let all_pages = self.page_code == page::PAGE_ALL;
        (all_pages || page.code == self.page_code)
            && (self.subpage_code == page::SUBPAGE_ALL || page.subpage == self.subpage_code)
    }

    fn check(&self, unit: &LogicalUnit) -> Result<(), Sense> {
        if pages_of(unit).any(|page| self.includes(page)) {
            // Page 3Fh has no subpages but 00h and FFh.
            let one_of_all = self.page_code == page::PAGE_ALL
                && !matches!(self.subpage_code, 0 | page::SUBPAGE_ALL);
            return if one_of_all { Err(Sense::invalid_field_in_cdb(3)) } else { Ok(()) };
        }
        let page_exists = self.page_code == page::PAGE_ALL
            || pages_of(unit).any(|page| page.code == self.page_code);
        if page_exists {
            Err(Sense::invalid_field_in_cdb(3))
        } else {
            Err(Sense::invalid_bit_in_cdb(2, 5))
        }
    }

    fn pages(&self, unit: &LogicalUnit) -> Vec<u8> {
        let modes = unit.modes();
        let mut bytes = Vec::new();
        for page in pages_of(unit).filter(|page| self.includes(page)) {
            let mut content = match self.page_control {
                PageControl::Current => page.bytes(&modes.current()),
                PageControl::Changeable => page.changeable(unit),
                PageControl::Default => page.bytes(&modes.default()),
                PageControl::Saved => page.bytes(&modes.saved()),
            };
            if unit.metadata().is_some() && page.is_changeable(unit) {
                content[0] |= page::PARAMETERS_SAVEABLE;
            }
            bytes.extend(content);
        }
        bytes
    }

    fn block_descriptor(&self, unit: &LogicalUnit) -> Vec<u8> {
        let geometry = unit.geometry();
        let block_length = geometry.block_size.bytes() as u32;
        let block_count = match self.page_control {
            PageControl::Changeable => 0,
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

/// Returns WP and DPOFUA (SBC-3 6.5.1). The medium is write-protected if no initiator may write now, or not this one.
fn device_specific(task: &Task<'_>) -> u8 {
    let is_protected = task.read_only || task.unit.check_writable().is_err();
    page::DEVICE_SPECIFIC_DPOFUA | if is_protected { page::DEVICE_SPECIFIC_WP } else { 0 }
}

pub(crate) fn sense_6(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Short6>();
    let flags = fields.flags & !page::FLAGS_LLBAA;
    let request = Request::new(fields.page, fields.subpage, flags, task.unit)?;
    let pages = request.pages(task.unit);
    let descriptor = request.block_descriptor(task.unit);
    let header = page::Header6 {
        mode_data_length: u8::try_from(3 + descriptor.len() + pages.len()).unwrap_or(u8::MAX),
        medium_type: 0,
        device_specific: device_specific(&task),
        block_descriptor_length: descriptor.len() as u8,
    };
    let bytes = [header.as_bytes(), &descriptor, &pages].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.length.into())))
}

pub(crate) fn sense_10(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Mode10>();
    let request = Request::new(fields.page, fields.subpage, fields.flags, task.unit)?;
    let pages = request.pages(task.unit);
    let descriptor = request.block_descriptor(task.unit);
    let is_long = request.long_lba && !descriptor.is_empty();
    let header = page::Header10 {
        mode_data_length: ((6 + descriptor.len() + pages.len()) as u16).into(),
        medium_type: 0,
        device_specific: device_specific(&task),
        long_lba: if is_long { page::LONG_LBA } else { 0 },
        reserved: 0,
        block_descriptor_length: (descriptor.len() as u16).into(),
    };
    let bytes = [header.as_bytes(), &descriptor, &pages].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.length.get().into())))
}
