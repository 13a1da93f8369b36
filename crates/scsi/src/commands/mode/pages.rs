//! The mode pages. Each page has one row and two functions: one builds its bytes, one applies a MODE SELECT.
//!
//! There is no disconnect-reconnect page (02h), since iSCSI negotiates burst lengths by text keys. There are no
//! protocol specific pages (18h, 19h), since iSCSI defines none.

use crate::commands::provisioning::tells_space;
use crate::modes::ModeParameters;
use crate::self_test::EXTENDED_SELF_TEST_S;
use crate::task_set::Policy;
use crate::thresholds::Threshold;
use crate::{DeviceType, LogicalUnit};
use sarsen_wire::scsi::log;
use sarsen_wire::scsi::mode::{self as page, PageHeader, SubpageHeader};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// BUSY TIMEOUT PERIOD: unlimited.
const UNLIMITED: u16 = 0xffff;
/// TCMOS and SCSIP: the host's clock sets the timestamp, until an initiator sets another time.
const TCMOS_SCSIP: u8 = 0x04 | 0x02;

/// A field of a page for which the selected value is invalid. The highest bit of the field identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedField {
    /// Offset in the page.
    pub(crate) byte: usize,
    /// Number of the bit.
    pub(crate) bit: u8,
}

/// Returns the bytes of a page for the given parameters.
type Bytes = fn(&ModeParameters) -> Vec<u8>;
/// Applies a page to the parameters. The caller has checked its length and its unchangeable bits.
type Accept = fn(&[u8], &mut ModeParameters) -> Result<(), RefusedField>;

/// A mode page.
pub(crate) struct Page {
    /// PAGE CODE.
    pub(crate) code: u8,
    /// SUBPAGE CODE; 0 for pages in page_0 format.
    pub(crate) subpage: u8,
    bytes: Bytes,
    accept: Accept,
    condition: fn(&LogicalUnit) -> bool,
}

const fn row(
    code: u8,
    subpage: u8,
    bytes: Bytes,
    accept: Accept,
    condition: fn(&LogicalUnit) -> bool,
) -> Page {
    Page { code, subpage, bytes, accept, condition }
}

/// All pages, by page code and subpage code.
#[rustfmt::skip]
static PAGES: &[Page] = &[
    row(page::PAGE_READ_WRITE_ERROR_RECOVERY, 0, read_write_error_recovery, accept_read_write_error_recovery, is_disk),
    row(page::PAGE_VERIFY_ERROR_RECOVERY, 0, verify_error_recovery, nothing, is_disk),
    row(page::PAGE_CACHING, 0, caching, accept_caching, is_disk),
    row(page::PAGE_CONTROL, 0, control, accept_control, always),
    row(page::PAGE_CONTROL, page::SUBPAGE_CONTROL_EXTENSION, control_extension, nothing, always),
    row(page::PAGE_POWER_CONDITION, 0, power_condition, nothing, is_disk),
    row(page::PAGE_INFORMATIONAL_EXCEPTIONS, 0, informational_exceptions, nothing, is_disk),
    row(page::PAGE_INFORMATIONAL_EXCEPTIONS, page::SUBPAGE_LOGICAL_BLOCK_PROVISIONING, provisioning, accept_provisioning, tells_space),
];

fn always(_unit: &LogicalUnit) -> bool {
    true
}

fn is_disk(unit: &LogicalUnit) -> bool {
    unit.device_type() == DeviceType::Disk
}

/// Returns the pages that a unit supports.
pub(crate) fn pages_of(unit: &LogicalUnit) -> impl Iterator<Item = &'static Page> {
    PAGES.iter().filter(|page| (page.condition)(unit))
}

impl Page {
    /// Returns the bytes of the page, without PS.
    pub(crate) fn bytes(&self, parameters: &ModeParameters) -> Vec<u8> {
        (self.bytes)(parameters)
    }

    /// Returns the length of the page's header.
    pub(crate) const fn header_length(&self) -> usize {
        match self.subpage {
            0 => size_of::<PageHeader>(),
            _ => size_of::<SubpageHeader>(),
        }
    }

    /// Returns a mask of the bits that MODE SELECT may change. The header in front of it is not a mask.
    pub(crate) fn changeable(&self, unit: &LogicalUnit) -> Vec<u8> {
        let [low, high] = ModeParameters::extremes(unit.characteristics());
        let mut mask = self.bytes(&low);
        for (byte, high) in mask.iter_mut().zip(self.bytes(&high)).skip(self.header_length()) {
            *byte ^= high;
        }
        mask
    }

    /// Returns whether the page has any changeable bit. Only such a page can be saved.
    pub(crate) fn is_changeable(&self, unit: &LogicalUnit) -> bool {
        self.changeable(unit)[self.header_length()..].iter().any(|&byte| byte != 0)
    }

    /// Applies the page `wanted` to `parameters`. The caller has checked its length. Only changeable bits may differ
    /// from `before`.
    pub(crate) fn accept(
        &self,
        unit: &LogicalUnit,
        wanted: &[u8],
        before: &ModeParameters,
        parameters: &mut ModeParameters,
    ) -> Result<(), RefusedField> {
        let (current, changeable) = (self.bytes(before), self.changeable(unit));
        let fields = wanted.iter().zip(&current).zip(&changeable).enumerate();
        for (byte, ((wanted, current), changeable)) in fields.skip(self.header_length()) {
            let refused = (wanted ^ current) & !changeable;
            if let Some(bit) = refused.checked_ilog2() {
                return Err(RefusedField { byte, bit: bit as u8 });
            }
        }
        (self.accept)(wanted, parameters)
    }
}

/// The header of a page in a parameter list.
pub(super) struct Listed {
    /// PAGE CODE.
    pub(super) code: u8,
    /// SUBPAGE CODE, where the page has one (SPF).
    pub(super) subpage: Option<u8>,
    /// Length of the whole page in bytes.
    pub(super) length: usize,
}

impl Listed {
    /// Returns the header of the first page in `bytes`; `None` if they end within it.
    pub(super) fn first_of(bytes: &[u8]) -> Option<Self> {
        let (header, _) = PageHeader::ref_from_prefix(bytes).ok()?;
        let code = header.page_code & page::PAGE_CODE;
        if header.page_code & page::SUBPAGE_FORMAT == 0 {
            let length = size_of::<PageHeader>() + usize::from(header.page_length);
            return Some(Self { code, subpage: None, length });
        }
        let (header, _) = SubpageHeader::ref_from_prefix(bytes).ok()?;
        let length = size_of::<SubpageHeader>() + usize::from(header.page_length.get());
        Some(Self { code, subpage: Some(header.subpage_code), length })
    }

    /// Returns whether this is the header of `page`. A page with subpage code 00h is not in page_0 format.
    pub(super) fn is(&self, page: &Page) -> bool {
        let subpage = (page.subpage != 0).then_some(page.subpage);
        (page.code, subpage) == (self.code, self.subpage)
    }
}

const fn header(page_code: u8, page_length: u8) -> PageHeader {
    PageHeader { page_code, page_length }
}

const fn bit(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

/// Returns the page as its layout. The caller has checked the length.
fn view<T: FromBytes + KnownLayout + Immutable + Unaligned>(wanted: &[u8]) -> &T {
    match T::ref_from_bytes(wanted) {
        Ok(layout) => layout,
        Err(_) => unreachable!("a page is as long as its layout"),
    }
}

/// Accepts a page without changeable fields.
fn nothing(_wanted: &[u8], _parameters: &mut ModeParameters) -> Result<(), RefusedField> {
    Ok(())
}

/// Reports no retries and no reallocations by the unit (SBC-3 6.5.7). The lower layers make their own.
fn read_write_error_recovery(parameters: &ModeParameters) -> Vec<u8> {
    page::ErrorRecoveryPage {
        header: header(page::PAGE_READ_WRITE_ERROR_RECOVERY, 0x0a),
        provisioning: bit(parameters.provisioning.error_reporting, page::ERROR_RECOVERY_LBPERE),
        ..page::ErrorRecoveryPage::default()
    }
    .as_bytes()
    .to_vec()
}

fn accept_read_write_error_recovery(
    wanted: &[u8],
    parameters: &mut ModeParameters,
) -> Result<(), RefusedField> {
    let wanted = view::<page::ErrorRecoveryPage>(wanted);
    parameters.provisioning.error_reporting =
        wanted.provisioning & page::ERROR_RECOVERY_LBPERE != 0;
    Ok(())
}

/// Reports the same as for reads and writes (SBC-3 6.5.9).
fn verify_error_recovery(_parameters: &ModeParameters) -> Vec<u8> {
    page::ErrorRecoveryPage {
        header: header(page::PAGE_VERIFY_ERROR_RECOVERY, 0x0a),
        ..page::ErrorRecoveryPage::default()
    }
    .as_bytes()
    .to_vec()
}

fn caching(parameters: &ModeParameters) -> Vec<u8> {
    page::CachingPage {
        header: header(page::PAGE_CACHING, 0x12),
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
    .to_vec()
}

fn accept_caching(wanted: &[u8], parameters: &mut ModeParameters) -> Result<(), RefusedField> {
    let caching = view::<page::CachingPage>(wanted);
    parameters.write_cache_enabled = caching.flags & page::CACHING_WCE != 0;
    Ok(())
}

fn control(parameters: &ModeParameters) -> Vec<u8> {
    let [flags_2, queueing, flags_4, flags_5] = parameters.tasks.to_bytes();
    page::ControlPage {
        header: header(page::PAGE_CONTROL, 0x0a),
        flags_2: flags_2
            | bit(parameters.unchecked_when_zero, page::CONTROL_DPICZ)
            | bit(parameters.descriptor_sense, page::CONTROL_D_SENSE),
        queueing,
        flags_4: flags_4 | bit(parameters.software_write_protect, page::CONTROL_SWP),
        flags_5: flags_5 | bit(parameters.application_tag_owned, page::CONTROL_ATO),
        obsolete: [0; 2],
        busy_timeout_period: UNLIMITED.into(),
        extended_self_test_completion_time: EXTENDED_SELF_TEST_S.into(),
    }
    .as_bytes()
    .to_vec()
}

fn accept_control(wanted: &[u8], parameters: &mut ModeParameters) -> Result<(), RefusedField> {
    let control = view::<page::ControlPage>(wanted);
    parameters.unchecked_when_zero = control.flags_2 & page::CONTROL_DPICZ != 0;
    parameters.application_tag_owned = control.flags_5 & page::CONTROL_ATO != 0;
    parameters.descriptor_sense = control.flags_2 & page::CONTROL_D_SENSE != 0;
    parameters.software_write_protect = control.flags_4 & page::CONTROL_SWP != 0;
    parameters.tasks =
        Policy::of_page(control).map_err(|(byte, bit)| RefusedField { byte: byte.into(), bit })?;
    Ok(())
}

/// Returns the control extension page (SPC-4 7.5.9). MAXIMUM SENSE DATA LENGTH 0 means no limit.
fn control_extension(_parameters: &ModeParameters) -> Vec<u8> {
    page::ControlExtensionPage {
        header: SubpageHeader {
            page_code: page::SUBPAGE_FORMAT | page::PAGE_CONTROL,
            subpage_code: page::SUBPAGE_CONTROL_EXTENSION,
            page_length: 0x1c.into(),
        },
        flags: TCMOS_SCSIP,
        initial_command_priority: 0,
        maximum_sense_data_length: 0,
        reserved: [0; 25],
    }
    .as_bytes()
    .to_vec()
}

/// Reports that no timer starts a power condition (SPC-4 7.5.13).
fn power_condition(_parameters: &ModeParameters) -> Vec<u8> {
    page::PowerConditionPage {
        header: header(page::PAGE_POWER_CONDITION, 0x26),
        ..page::PowerConditionPage::default()
    }
    .as_bytes()
    .to_vec()
}

fn informational_exceptions(_parameters: &ModeParameters) -> Vec<u8> {
    page::InformationalExceptionsPage {
        header: header(page::PAGE_INFORMATIONAL_EXCEPTIONS, 0x0a),
        flags: 0,
        method_of_reporting: 0,
        interval_timer: 0.into(),
        report_count: 0.into(),
    }
    .as_bytes()
    .to_vec()
}

/// THRESHOLD ARMING.
const DECREASING: u8 = 0;
const INCREASING: u8 = 1;

fn provisioning(parameters: &ModeParameters) -> Vec<u8> {
    let provisioning = &parameters.provisioning;
    page::ProvisioningPage {
        header: SubpageHeader {
            page_code: page::SUBPAGE_FORMAT | page::PAGE_INFORMATIONAL_EXCEPTIONS,
            subpage_code: page::SUBPAGE_LOGICAL_BLOCK_PROVISIONING,
            page_length: 0x1c.into(),
        },
        flags: bit(provisioning.single_initiator, page::PROVISIONING_SITUA),
        reserved: [0; 11],
        thresholds: [
            threshold_descriptor(
                provisioning.available,
                log::AVAILABLE_RESOURCES as u8,
                DECREASING,
            ),
            threshold_descriptor(provisioning.used, log::USED_RESOURCES as u8, INCREASING),
        ],
    }
    .as_bytes()
    .to_vec()
}

fn threshold_descriptor(
    threshold: Threshold,
    resource: u8,
    arming: u8,
) -> page::ThresholdDescriptor {
    page::ThresholdDescriptor {
        flags: bit(threshold.enabled, page::THRESHOLD_ENABLED) | arming,
        resource,
        reserved: [0; 2],
        count: threshold.count.into(),
    }
}

fn accept_provisioning(wanted: &[u8], parameters: &mut ModeParameters) -> Result<(), RefusedField> {
    let wanted = view::<page::ProvisioningPage>(wanted);
    let [available, used] = &wanted.thresholds;
    let provisioning = &mut parameters.provisioning;
    provisioning.single_initiator = wanted.flags & page::PROVISIONING_SITUA != 0;
    (provisioning.available, provisioning.used) = (available.into(), used.into());
    Ok(())
}

impl From<&page::ThresholdDescriptor> for Threshold {
    fn from(descriptor: &page::ThresholdDescriptor) -> Self {
        Self {
            enabled: descriptor.flags & page::THRESHOLD_ENABLED != 0,
            count: descriptor.count.get(),
        }
    }
}
