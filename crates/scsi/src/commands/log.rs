//! LOG SENSE and LOG SELECT (SPC-4 6.7, 6.8, 7.3): one row and one function for each page. All parameters are lists, so
//! PC, which distinguishes thresholds from counts, is not checked.

use super::provisioning::tells_space;
use super::{Task, parameter_data};
use crate::self_test::{LOGGED_SELF_TESTS, Outcome};
use crate::{Cdb, Completion, DeviceType, LogicalUnit, Sense, UnitAttention, thresholds};
use sarsen_block::{Geometry, Io, Space};
use sarsen_wire::scsi::log as wire;
use zerocopy::{FromBytes, IntoBytes};

/// The temperature is unknown, since there is no sensor (SPC-4 7.3.21).
const UNKNOWN_TEMPERATURE: u8 = 0xff;

/// A log parameter: its code and the bytes after its header.
type Parameter = (u16, Vec<u8>);

/// A log page.
struct Page {
    code: u8,
    /// 0 for pages in page_0 format.
    subpage: u8,
    content: Content,
    /// Returns whether a unit has the page.
    condition: fn(&LogicalUnit) -> bool,
    /// Resets the resettable values of the page. Returns whether that changed anything.
    reset: Option<fn(&LogicalUnit) -> bool>,
}

enum Content {
    /// Parameters in ascending order of their codes.
    Parameters(fn(&Task<'_>) -> Vec<Parameter>),
    /// Parameters that are computed from the space that the store reports.
    OfSpace(fn(Space, Geometry) -> Vec<Parameter>),
    /// The supported pages, with their subpages or without.
    Supported { with_subpages: bool },
}

impl Page {
    const fn supported(subpage: u8) -> Self {
        let content = Content::Supported { with_subpages: subpage != 0 };
        Self { code: wire::PAGE_SUPPORTED, subpage, content, condition: always, reset: None }
    }

    const fn new(code: u8, parameters: fn(&Task<'_>) -> Vec<Parameter>) -> Self {
        let content = Content::Parameters(parameters);
        Self { code, subpage: 0, content, condition: is_disk, reset: None }
    }

    const fn of_space(code: u8, parameters: fn(Space, Geometry) -> Vec<Parameter>) -> Self {
        let content = Content::OfSpace(parameters);
        Self { code, subpage: 0, content, condition: tells_space, reset: None }
    }

    const fn with_reset(self, reset: fn(&LogicalUnit) -> bool) -> Self {
        Self { reset: Some(reset), ..self }
    }
}

/// All pages, by page code and subpage code.
static PAGES: &[Page] = &[
    Page::supported(0),
    Page::supported(wire::SUBPAGE_ALL),
    Page::of_space(wire::PAGE_LOGICAL_BLOCK_PROVISIONING, logical_block_provisioning),
    Page::new(wire::PAGE_TEMPERATURE, temperature),
    Page::new(wire::PAGE_START_STOP, start_stop_cycles),
    Page::new(wire::PAGE_SELF_TEST_RESULTS, self_test_results).with_reset(forget_self_tests),
    Page::new(wire::PAGE_INFORMATIONAL_EXCEPTIONS, informational_exceptions),
];

fn always(_unit: &LogicalUnit) -> bool {
    true
}

fn is_disk(unit: &LogicalUnit) -> bool {
    unit.device_type() == DeviceType::Disk
}

fn pages_of(unit: &LogicalUnit) -> impl Iterator<Item = &'static Page> {
    PAGES.iter().filter(|page| (page.condition)(unit))
}

/// Returns the page that a CDB requests.
fn find(unit: &LogicalUnit, page: u8, subpage: u8) -> Result<&'static Page, Sense> {
    let code = page & wire::PAGE_CODE;
    let found = pages_of(unit).find(|page| page.code == code && page.subpage == subpage);
    found.ok_or_else(|| {
        if pages_of(unit).any(|page| page.code == code) {
            Sense::invalid_field_in_cdb(3)
        } else {
            Sense::invalid_bit_in_cdb(2, 5)
        }
    })
}

pub(crate) fn sense(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::LogSense>();
    if fields.flags & wire::FLAGS_SAVE != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 0));
    }
    let page = find(task.unit, fields.page, fields.subpage)?;
    let pointer = fields.parameter_pointer.get();
    let allocation_length = fields.allocation_length.get().into();
    let whole = move |flags: u8, body: &[u8]| {
        parameter_data(&page_bytes(page, flags, body), allocation_length)
    };
    match page.content {
        Content::Supported { .. } if pointer != 0 => Err(Sense::invalid_field_in_cdb(5)),
        Content::Supported { with_subpages } => {
            Ok(Io::Ready(whole(0, &supported(task.unit, with_subpages))))
        }
        Content::Parameters(parameters) => {
            let body = parameter_bytes(&parameters(&task), pointer)?;
            Ok(Io::Ready(whole(wire::DISABLE_SAVE, &body)))
        }
        Content::OfSpace(parameters) => {
            let unit = task.unit.clone();
            Ok(task.unit.complete_after(async move {
                let space = unit.store().space().wait().await?;
                let body = parameter_bytes(&parameters(space, unit.geometry()), pointer)?;
                Ok(whole(wire::DISABLE_SAVE, &body))
            }))
        }
    }
}

fn page_bytes(page: &Page, flags: u8, body: &[u8]) -> Vec<u8> {
    let format = if page.subpage == 0 { 0 } else { wire::SUBPAGE_FORMAT };
    let header = wire::PageHeader {
        page_code: flags | format | page.code,
        subpage_code: page.subpage,
        page_length: (body.len() as u16).into(),
    };
    [header.as_bytes(), body].concat()
}

fn supported(unit: &LogicalUnit, with_subpages: bool) -> Vec<u8> {
    if with_subpages {
        pages_of(unit).flat_map(|page| [page.code, page.subpage]).collect()
    } else {
        pages_of(unit).filter(|page| page.subpage == 0).map(|page| page.code).collect()
    }
}

/// Returns the parameters from the code `pointer` on. At least one must exist (SPC-4 6.8.1).
fn parameter_bytes(parameters: &[Parameter], pointer: u16) -> Result<Vec<u8>, Sense> {
    if parameters.last().is_none_or(|(code, _)| *code < pointer) {
        return Err(Sense::invalid_field_in_cdb(5));
    }
    let mut bytes = Vec::new();
    for (code, content) in parameters.iter().filter(|(code, _)| *code >= pointer) {
        let header = wire::ParameterHeader {
            parameter_code: (*code).into(),
            control: wire::CONTROL_BINARY_LIST,
            parameter_length: content.len() as u8,
        };
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content);
    }
    Ok(bytes)
}

/// Returns the available and used space in threshold sets (SBC-3 6.4.5).
fn logical_block_provisioning(space: Space, geometry: Geometry) -> Vec<Parameter> {
    let parameter = |blocks: u64, scope| {
        let sets = u32::try_from(blocks >> thresholds::exponent(geometry)).unwrap_or(u32::MAX);
        let count = wire::ResourceCount { resource_count: sets.into(), scope, reserved: [0; 3] };
        count.as_bytes().to_vec()
    };
    vec![
        (wire::AVAILABLE_RESOURCES, parameter(space.available_blocks, wire::SCOPE_NOT_DEDICATED)),
        (wire::USED_RESOURCES, parameter(space.used_blocks, wire::SCOPE_DEDICATED)),
    ]
}

/// Returns the temperature and the reference temperature.
fn temperature(_task: &Task<'_>) -> Vec<Parameter> {
    vec![(0, vec![0, UNKNOWN_TEMPERATURE]), (1, vec![0, UNKNOWN_TEMPERATURE])]
}

/// Returns ACCUMULATED START-STOP CYCLES (SPC-4 7.3.20), since the unit was created.
fn start_stop_cycles(task: &Task<'_>) -> Vec<Parameter> {
    vec![(4, task.unit.medium().start_stop_cycles().to_be_bytes().to_vec())]
}

/// Reports no exception and no temperature. The next byte is the threshold, by convention (SPC-4 7.3.8).
fn informational_exceptions(_task: &Task<'_>) -> Vec<Parameter> {
    vec![(0, vec![0, 0, UNKNOWN_TEMPERATURE, UNKNOWN_TEMPERATURE])]
}

/// Returns all entries that the log can hold, the latest test first.
fn self_test_results(task: &Task<'_>) -> Vec<Parameter> {
    let log = task.unit.self_tests().log();
    let mut parameters = Vec::new();
    for index in 0..LOGGED_SELF_TESTS {
        let mut result = wire::SelfTestResult::default();
        if let Some(entry) = log.get(index) {
            let (code, failure) = match entry.outcome {
                Outcome::Passed => (0x0, None),
                Outcome::Aborted => (0x1, None),
                Outcome::Interrupted => (0x2, None),
                Outcome::Failed(sense) => (0x7, Some(sense)),
                Outcome::Running => (0xf, None),
            };
            result.code_and_result = entry.code << 5 | code;
            result.power_on_hours = entry.power_on_hours.into();
            let address = failure.and_then(|sense| sense.information());
            result.address_of_first_failure = address.unwrap_or(u64::MAX).into();
            if let Some(sense) = failure {
                result.sense_key = sense.key() as u8;
                result.additional_sense = sense.additional().0.into();
            }
        }
        parameters.push((index as u16 + 1, result.as_bytes().to_vec()));
    }
    parameters
}

fn forget_self_tests(unit: &LogicalUnit) -> bool {
    unit.self_tests().forget()
}

/// Checks the fields of the CDB.
fn check_select(cdb: &Cdb) -> Result<&wire::LogSelect, Sense> {
    let fields = cdb.view::<wire::LogSelect>();
    let length = fields.parameter_list_length.get();
    if fields.flags & wire::FLAGS_SAVE != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 0));
    }
    // SPC-4 6.7.1: PCR excludes a parameter list, and a list contains its page codes itself.
    if fields.flags & wire::FLAGS_RESET != 0 && length != 0 {
        return Err(Sense::invalid_field_in_cdb(7));
    }
    match (fields.page & wire::PAGE_CODE, fields.subpage) {
        (0, 0) => Ok(fields),
        _ if length == 0 => Ok(fields),
        (0, _) => Err(Sense::invalid_field_in_cdb(3)),
        _ => Err(Sense::invalid_bit_in_cdb(2, 5)),
    }
}

pub(crate) fn select_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    Ok(check_select(cdb)?.parameter_list_length.get().into())
}

pub(crate) fn select(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = *check_select(&task.cdb)?;
    let unit = task.unit;
    let list = task.take_data_out(fields.parameter_list_length.get().into())?;
    check_list(unit, &list)?;
    if fields.flags & wire::FLAGS_RESET == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    let code = fields.page & wire::PAGE_CODE;
    let all = (code, fields.subpage) == (0, 0);
    if !all {
        find(unit, code, fields.subpage)?;
    }
    let named = |page: &&Page| all || (page.code, page.subpage) == (code, fields.subpage);
    let mut has_changed = false;
    for reset in pages_of(unit).filter(named).filter_map(|page| page.reset) {
        has_changed |= reset(unit);
    }
    if has_changed {
        unit.raise_except(task.nexus.id, UnitAttention::LogParametersChanged);
    }
    Ok(Io::Ready(Completion::good()))
}

/// Checks a parameter list. It may name pages, but no parameter can be set.
fn check_list(unit: &LogicalUnit, list: &[u8]) -> Result<(), Sense> {
    let mut rest = list;
    while !rest.is_empty() {
        let offset = (list.len() - rest.len()) as u16;
        let Ok((header, after)) = wire::PageHeader::ref_from_prefix(rest) else {
            return Err(Sense::parameter_list_length_error());
        };
        let code = header.page_code & wire::PAGE_CODE;
        if !pages_of(unit).any(|page| page.code == code) {
            return Err(Sense::invalid_bit_in_parameter_list(offset, 5));
        }
        let subpage = header.subpage_code;
        if !pages_of(unit).any(|page| (page.code, page.subpage) == (code, subpage)) {
            return Err(Sense::invalid_field_in_parameter_list(offset + 1));
        }
        let Some((parameters, after)) = after.split_at_checked(header.page_length.get().into())
        else {
            return Err(Sense::parameter_list_length_error());
        };
        if !parameters.is_empty() {
            return Err(Sense::invalid_field_in_parameter_list(offset + 4));
        }
        rest = after;
    }
    Ok(())
}
