//! Vital product data (SPC-4 7.8, SBC-3 6.6): one row and one function for each page.

use super::{provisioning, sanitize};
use crate::atomic::has_atomic_writes;
use crate::copy::page::third_party_copy;
use crate::designators::{
    BINARY, ISCSI, OF_TARGET_DEVICE, OF_TARGET_PORT, RELATIVE_TARGET_PORT, SCSI_NAME_STRING,
    TARGET_PORT_GROUP, UTF_8, name_string, unit_designators,
};
use crate::self_test::EXTENDED_SELF_TEST_S;
use crate::task::Task;
use crate::thresholds;
use crate::{DeviceType, LogicalUnit, ProtectionType, Sense};
use sarsen_block::{BlockSize, UnmapSupport};
use sarsen_wire::scsi::mode::{PAGE_ALL, SUBPAGE_ALL};
use sarsen_wire::scsi::{inquiry as page, target_port_groups as ports};
use zerocopy::IntoBytes;

/// A page: its code, the function that builds the bytes after its header, and the units that support it.
struct Page {
    code: u8,
    body: fn(&Task<'_>) -> Vec<u8>,
    condition: fn(&LogicalUnit) -> bool,
}

const fn row(
    code: u8,
    body: fn(&Task<'_>) -> Vec<u8>,
    condition: fn(&LogicalUnit) -> bool,
) -> Page {
    Page { code, body, condition }
}

/// All pages, by code.
#[rustfmt::skip]
static PAGES: &[Page] = &[
    row(page::PAGE_SUPPORTED, supported, always),
    row(page::PAGE_UNIT_SERIAL_NUMBER, unit_serial_number, always),
    row(page::PAGE_DEVICE_IDENTIFICATION, device_identification, always),
    row(page::PAGE_EXTENDED_INQUIRY, extended_inquiry, always),
    row(page::PAGE_MODE_PAGE_POLICY, mode_page_policy, always),
    row(page::PAGE_SCSI_PORTS, scsi_ports, always),
    row(page::PAGE_THIRD_PARTY_COPY, |task| third_party_copy(task.unit), is_disk),
    row(page::PAGE_BLOCK_LIMITS, block_limits, is_disk),
    row(page::PAGE_BLOCK_DEVICE_CHARACTERISTICS, block_device_characteristics, is_disk),
    row(page::PAGE_LOGICAL_BLOCK_PROVISIONING, logical_block_provisioning, is_disk),
];

/// SPC-4 7.8.15: the list of pages is in ascending order, and so is the table.
const _: () = {
    let mut index = 1;
    while index < PAGES.len() {
        assert!(PAGES[index - 1].code < PAGES[index].code);
        index += 1;
    }
};

fn always(_unit: &LogicalUnit) -> bool {
    true
}

fn is_disk(unit: &LogicalUnit) -> bool {
    unit.device_type() == DeviceType::Disk
}

/// Returns the page that INQUIRY requests.
pub(super) fn page(task: &Task<'_>, page_code: u8) -> Result<Vec<u8>, Sense> {
    let mut pages = pages_of(task.unit);
    let page = pages.find(|page| page.code == page_code).ok_or(Sense::invalid_field_in_cdb(2))?;
    Ok(with_header(task.peripheral(), page_code, &(page.body)(task)))
}

/// Returns the list of supported pages for a LUN without a unit.
pub(super) fn supported_without_unit() -> Vec<u8> {
    with_header(page::PERIPHERAL_NONE, page::PAGE_SUPPORTED, &[page::PAGE_SUPPORTED])
}

fn pages_of(unit: &LogicalUnit) -> impl Iterator<Item = &'static Page> {
    PAGES.iter().filter(|page| (page.condition)(unit))
}

fn with_header(peripheral: u8, page_code: u8, body: &[u8]) -> Vec<u8> {
    let header = page::VpdHeader { peripheral, page_code, page_length: (body.len() as u16).into() };
    [header.as_bytes(), body].concat()
}

fn supported(task: &Task<'_>) -> Vec<u8> {
    pages_of(task.unit).map(|page| page.code).collect()
}

fn unit_serial_number(task: &Task<'_>) -> Vec<u8> {
    task.unit.identity().serial.clone().into_bytes()
}

/// MEDIUM ROTATION RATE of a medium that does not rotate.
const NON_ROTATING: u16 = 1;
/// LBPU, LBPWS, LBPWS10 and LBPRZ: UNMAP and both WRITE SAME commands deallocate. Deallocated blocks read as zeroes.
const PROVISIONING_FLAGS: u8 = 0x80 | 0x40 | 0x20 | 0x04;
/// ANC_SUP.
const ANCHORS: u8 = 0x02;
/// PROVISIONING TYPE: thin.
const THIN: u8 = 2;
/// UGAVALID.
const UNMAP_GRANULARITY_ALIGNMENT_VALID: u32 = 0x8000_0000;

/// Returns OPTIMAL UNMAP GRANULARITY in blocks; `None` reports nothing, which SBC-3 6.6.4 allows.
///
/// QEMU (7.2 and before) builds a map of allocated clusters from a reported granularity of 4 KiB to 16 MiB, and then
/// asks for the status of a range that is aligned only to 512 bytes: with larger blocks it aborts. If the granularity
/// is not reported, initiators use the physical block size instead, which READ CAPACITY (16) reports.
fn reported_unmap_granularity(unit: &LogicalUnit, unmap: UnmapSupport) -> Option<u32> {
    (unit.geometry().block_size == BlockSize::B512).then_some(unmap.granularity_blocks)
}

/// Returns OPTIMAL TRANSFER LENGTH GRANULARITY and OPTIMAL TRANSFER LENGTH in blocks: those of the store, or the
/// physical block and the unit's own length.
fn optimal_transfer(unit: &LogicalUnit) -> (u16, u32) {
    let (limits, characteristics) = (unit.limits(), unit.characteristics());
    let of_store = characteristics.optimal_transfer.and_then(|optimal| {
        let granularity = u16::try_from(optimal.granularity_blocks).ok()?;
        // SBC-3 6.6.4: commands above MAXIMUM TRANSFER LENGTH are terminated.
        let maximum = limits.maximum_transfer_blocks;
        let longest = maximum - maximum % u32::from(granularity);
        // Without stripes, the length is the unit's own: Linux before 6.11 sends no longer commands than this.
        let length = if optimal.length_blocks == optimal.granularity_blocks {
            limits.optimal_transfer_blocks.next_multiple_of(granularity.into())
        } else {
            optimal.length_blocks
        };
        (longest > 0).then_some((granularity, length.min(longest)))
    });
    let physical_block = 1 << characteristics.physical_block_exponent.min(15);
    of_store.unwrap_or((physical_block, limits.optimal_transfer_blocks))
}

fn block_limits(task: &Task<'_>) -> Vec<u8> {
    let unit = task.unit;
    let limits = unit.limits();
    let characteristics = unit.characteristics();
    let (optimal_granularity, optimal_length) = optimal_transfer(unit);
    let unmap = characteristics.unmap;
    let unmap_granularity = unmap.and_then(|unmap| reported_unmap_granularity(unit, unmap));
    let atomic_blocks = if has_atomic_writes(unit) { limits.maximum_atomic_blocks } else { 0 };
    page::BlockLimits {
        flags: 0,
        maximum_compare_and_write_length: limits.maximum_compare_and_write_blocks,
        optimal_transfer_length_granularity: optimal_granularity.into(),
        maximum_transfer_length: limits.maximum_transfer_blocks.into(),
        optimal_transfer_length: optimal_length.into(),
        maximum_prefetch_length: 0.into(),
        maximum_unmap_lba_count: unmap.map_or(0, |_| limits.maximum_unmap_blocks).into(),
        maximum_unmap_block_descriptor_count: unmap
            .map_or(0, |_| limits.maximum_unmap_descriptors)
            .into(),
        optimal_unmap_granularity: unmap_granularity.unwrap_or(0).into(),
        unmap_granularity_alignment: unmap_granularity
            .map_or(0, |_| UNMAP_GRANULARITY_ALIGNMENT_VALID)
            .into(),
        maximum_write_same_length: limits.maximum_write_same_blocks.into(),
        maximum_atomic_transfer_length: atomic_blocks.into(),
        atomic_alignment: 0.into(),
        atomic_transfer_length_granularity: 0.into(),
        maximum_atomic_transfer_length_with_atomic_boundary: atomic_blocks.into(),
        maximum_atomic_boundary_size: atomic_blocks.into(),
    }
    .as_bytes()
    .to_vec()
}

/// Returns the page. Cleared bits mean no support: no groups, no priorities, no WRITE UNCORRECTABLE, no microcode.
fn extended_inquiry(task: &Task<'_>) -> Vec<u8> {
    let characteristics = task.unit.characteristics();
    let supported = task.unit.protection_type().map(|protection_type| match protection_type {
        ProtectionType::Type1 => page::EXTENDED_SPT_1,
        ProtectionType::Type2 => page::EXTENDED_SPT_2,
        ProtectionType::Type3 => page::EXTENDED_SPT_3,
    });
    page::ExtendedInquiry {
        protection: supported.map_or(0, |supported| supported | page::EXTENDED_GRD_APP_REF_CHK),
        tasks: page::EXTENDED_HEADSUP_ORDSUP_SIMPSUP,
        cache: if characteristics.volatile_cache { page::EXTENDED_V_SUP } else { 0 },
        flags_8: page::EXTENDED_RTD_SUP,
        extended_self_test_completion_minutes: EXTENDED_SELF_TEST_S.div_ceil(60).into(),
        ..page::ExtendedInquiry::default()
    }
    .as_bytes()
    .to_vec()
}

/// Reports that all initiators share all pages, through all ports.
fn mode_page_policy(_task: &Task<'_>) -> Vec<u8> {
    page::ModePagePolicy {
        page_code: PAGE_ALL,
        subpage_code: SUBPAGE_ALL,
        policy: page::POLICY_SHARED,
        reserved: 0,
    }
    .as_bytes()
    .to_vec()
}

fn block_device_characteristics(task: &Task<'_>) -> Vec<u8> {
    let unit = task.unit;
    let block_erase = if provisioning::is_thin(unit) { page::WABEREQ_READS } else { 0 };
    let cryptographic_erase = if sanitize::has_key(unit) { page::WACEREQ_READS } else { 0 };
    page::BlockDeviceCharacteristics {
        medium_rotation_rate: NON_ROTATING.into(),
        product_type: 0,
        form_factor: block_erase | cryptographic_erase,
        flags: page::CHARACTERISTICS_FUAB | page::CHARACTERISTICS_VBULS,
        reserved: [0; 55],
    }
    .as_bytes()
    .to_vec()
}

fn logical_block_provisioning(task: &Task<'_>) -> Vec<u8> {
    let (flags, provisioning_type) = match task.unit.characteristics().unmap {
        Some(unmap) if unmap.anchors => (PROVISIONING_FLAGS | ANCHORS, THIN),
        Some(_) => (PROVISIONING_FLAGS, THIN),
        None => (0, 0),
    };
    // SBC-3 6.6.5: zero means that there are no thresholds.
    let threshold_exponent = if provisioning::tells_space(task.unit) {
        thresholds::exponent(task.unit.geometry())
    } else {
        0
    };
    page::LogicalBlockProvisioning { threshold_exponent, flags, provisioning_type, reserved: 0 }
        .as_bytes()
        .to_vec()
}

fn device_identification(task: &Task<'_>) -> Vec<u8> {
    let (identity, nexus) = (task.unit.identity(), task.nexus);
    let designators = [
        (
            ISCSI | BINARY,
            OF_TARGET_PORT | RELATIVE_TARGET_PORT,
            number_designator(nexus.relative_target_port),
        ),
        (
            ISCSI | BINARY,
            OF_TARGET_PORT | TARGET_PORT_GROUP,
            number_designator(nexus.target_port.number),
        ),
        (
            ISCSI | UTF_8,
            OF_TARGET_PORT | SCSI_NAME_STRING,
            name_string(&nexus.target_port.port_name),
        ),
        (ISCSI | UTF_8, OF_TARGET_DEVICE | SCSI_NAME_STRING, name_string(nexus.device.name())),
    ];
    let of_unit = unit_designators(identity);
    of_unit
        .iter()
        .chain(&designators)
        .map(|(set, kind, bytes)| designation(*set, *kind, bytes))
        .collect::<Vec<_>>()
        .concat()
}

fn number_designator(number: u16) -> Vec<u8> {
    page::NumberDesignator { reserved: [0; 2], number: number.into() }.as_bytes().to_vec()
}

fn designation(code_set: u8, designator_type: u8, designator: &[u8]) -> Vec<u8> {
    let header = page::DesignationHeader {
        code_set,
        designator_type,
        reserved: 0,
        designator_length: designator.len() as u8,
    };
    [header.as_bytes(), designator].concat()
}

/// Lists every port of the target device, independently of the port of the nexus (SPC-4 7.8.14).
fn scsi_ports(task: &Task<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for port in task.nexus.device.target_port_groups().all().iter() {
        let kind = OF_TARGET_PORT | SCSI_NAME_STRING;
        let name = designation(ISCSI | UTF_8, kind, &name_string(&port.port_name));
        let header = ports::ScsiPort {
            reserved_0: [0; 2],
            relative_port: port.number.into(),
            reserved_4: [0; 2],
            initiator_transport_id_length: 0.into(),
            reserved_8: [0; 2],
            target_port_descriptors_length: (name.len() as u16).into(),
        };
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&name);
    }
    bytes
}
