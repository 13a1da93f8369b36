//! INQUIRY, REPORT LUNS, REQUEST SENSE, TEST UNIT READY (SPC-4 6.6, 6.33, 6.39, 6.47) and the
//! vital product data pages (SPC-4 7.8, SBC-3 6.6).

use super::{Task, parameter_data};
use crate::nexus::Nexus;
use crate::{Cdb, Completion, Identity, LogicalUnit, Sense, UnitAttention};
use sarsen_block::Io;
use sarsen_wire::scsi::cdb as wire;
use sarsen_wire::scsi::inquiry::{self as page, StandardInquiry};
use sarsen_wire::scsi::report::LunListHeader;
use zerocopy::IntoBytes;
use zerocopy::big_endian::U16;

/// EVPD and the obsolete CMDDT.
const EVPD: u8 = 0x01;
const CMDDT: u8 = 0x02;
/// CMDQUE: commands are queued.
const CMDQUE: u8 = 0x02;
/// HISUP and RESPONSE DATA FORMAT 2.
const HISUP_FORMAT_2: u8 = 0x12;
/// DESC in REQUEST SENSE.
const DESC: u8 = 0x01;
/// The pages that exist, in order.
const PAGES: [u8; 6] = [
    page::PAGE_SUPPORTED,
    page::PAGE_UNIT_SERIAL_NUMBER,
    page::PAGE_DEVICE_IDENTIFICATION,
    page::PAGE_BLOCK_LIMITS,
    page::PAGE_BLOCK_DEVICE_CHARACTERISTICS,
    page::PAGE_LOGICAL_BLOCK_PROVISIONING,
];
/// MEDIUM ROTATION RATE of a medium that does not rotate.
const NON_ROTATING: u16 = 1;
/// LBPU, LBPWS, LBPWS10 and LBPRZ: UNMAP and both WRITE SAMEs deallocate; such blocks read as zero.
const PROVISIONING_FLAGS: u8 = 0x80 | 0x40 | 0x20 | 0x04;
/// PROVISIONING TYPE: thin.
const THIN: u8 = 2;
/// UGAVALID.
const UNMAP_GRANULARITY_ALIGNMENT_VALID: u32 = 0x8000_0000;

pub(crate) fn test_unit_ready(_task: Task<'_>) -> Result<Io<Completion>, Sense> {
    Ok(Io::Ready(Completion::good()))
}

pub(crate) fn request_sense(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    // SPC-4 6.39: a pending unit attention is told here, and with that has been told.
    let sense = match task.attentions.take() {
        Some(attention) => attention.sense(),
        None if task.unit.is_stopped() => Sense::stopped(),
        None => Sense::none(),
    };
    Ok(Io::Ready(sense_parameter_data(&task.cdb, sense)))
}

pub(crate) fn sense_parameter_data(cdb: &Cdb, sense: Sense) -> Completion {
    let fields = cdb.view::<wire::Short6>();
    let sense = sense.in_descriptor_format(fields.flags & DESC != 0);
    parameter_data(&sense.to_bytes(), fields.length.into())
}

pub(crate) fn report_luns(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let completion = luns_data(task.nexus, &task.cdb)?;
    task.nexus.clear(UnitAttention::ReportedLunsDataHasChanged);
    Ok(Io::Ready(completion))
}

pub(crate) fn luns_data(nexus: &Nexus, cdb: &Cdb) -> Result<Completion, Sense> {
    let fields = cdb.view::<wire::ReportLuns>();
    let allocation_length = fields.allocation_length.get() as usize;
    // SPC-4 6.33: sixteen bytes at least.
    if allocation_length < 16 {
        return Err(Sense::invalid_field_in_cdb(6));
    }
    let luns: Vec<[u8; 8]> = match fields.select_report {
        0 | 2 => nexus.device.luns().keys().map(|lun| lun.to_wire()).collect(),
        // Well-known logical units: none.
        1 => Vec::new(),
        _ => return Err(Sense::invalid_field_in_cdb(2)),
    };
    let header =
        LunListHeader { lun_list_length: (8 * luns.len() as u32).into(), reserved: [0; 4] };
    let bytes = [header.as_bytes(), luns.as_flattened()].concat();
    Ok(parameter_data(&bytes, allocation_length))
}

pub(crate) fn inquiry(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Inquiry>();
    let evpd = check_inquiry(fields)?;
    let bytes = match evpd {
        true => vital_product_data(&task, fields.page_code)?,
        false => standard_inquiry(page::PERIPHERAL_DISK, task.unit.identity()).as_bytes().to_vec(),
    };
    Ok(Io::Ready(parameter_data(&bytes, fields.allocation_length.get().into())))
}

/// SPC-4 6.6.2: standard data for a number where no unit is.
pub(crate) fn inquiry_without_unit(cdb: &Cdb) -> Result<Completion, Sense> {
    let fields = cdb.view::<wire::Inquiry>();
    let bytes = match (check_inquiry(fields)?, fields.page_code) {
        (false, _) => {
            let nobody = Identity::new("", "");
            standard_inquiry(page::PERIPHERAL_NONE, &nobody).as_bytes().to_vec()
        }
        (true, page::PAGE_SUPPORTED) => {
            vpd_page(page::PERIPHERAL_NONE, page::PAGE_SUPPORTED, &[page::PAGE_SUPPORTED])
        }
        (true, _) => return Err(Sense::invalid_field_in_cdb(2)),
    };
    Ok(parameter_data(&bytes, fields.allocation_length.get().into()))
}

fn check_inquiry(fields: &wire::Inquiry) -> Result<bool, Sense> {
    let evpd = fields.flags & EVPD != 0;
    if fields.flags & CMDDT != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 1));
    }
    if !evpd && fields.page_code != 0 {
        return Err(Sense::invalid_field_in_cdb(2));
    }
    Ok(evpd)
}

fn standard_inquiry(peripheral: u8, identity: &Identity) -> StandardInquiry {
    let mut version_descriptors = [U16::ZERO; 8];
    let claimed = [
        page::DESCRIPTOR_SAM_5,
        page::DESCRIPTOR_SPC_4,
        page::DESCRIPTOR_SBC_3,
        page::DESCRIPTOR_ISCSI,
    ];
    for (descriptor, claim) in version_descriptors.iter_mut().zip(claimed) {
        *descriptor = claim.into();
    }
    StandardInquiry {
        peripheral,
        removable: 0,
        version: page::VERSION_SPC_4,
        response_data_format: HISUP_FORMAT_2,
        additional_length: (size_of::<StandardInquiry>() - 5) as u8,
        flags_5: 0,
        flags_6: 0,
        flags_7: CMDQUE,
        vendor: padded(&identity.vendor),
        product: padded(&identity.product),
        revision: padded(&identity.revision),
        vendor_specific: [0; 20],
        reserved_56: [0; 2],
        version_descriptors,
        reserved_74: [0; 22],
    }
}

/// Left-aligned printable ASCII, filled with spaces (SPC-4 4.4.1).
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (byte, source) in field.iter_mut().zip(text.bytes()) {
        *byte = if matches!(source, 0x20..=0x7e) { source } else { b'?' };
    }
    field
}

fn vpd_page(peripheral: u8, page_code: u8, body: &[u8]) -> Vec<u8> {
    let header = page::VpdHeader { peripheral, page_code, page_length: (body.len() as u16).into() };
    [header.as_bytes(), body].concat()
}

fn vital_product_data(task: &Task<'_>, page_code: u8) -> Result<Vec<u8>, Sense> {
    let unit = task.unit;
    let body = match page_code {
        page::PAGE_SUPPORTED => PAGES.to_vec(),
        page::PAGE_UNIT_SERIAL_NUMBER => unit.identity().serial.clone().into_bytes(),
        page::PAGE_DEVICE_IDENTIFICATION => device_identification(unit.identity(), task.nexus),
        page::PAGE_BLOCK_LIMITS => block_limits(unit).as_bytes().to_vec(),
        page::PAGE_BLOCK_DEVICE_CHARACTERISTICS => page::BlockDeviceCharacteristics {
            medium_rotation_rate: NON_ROTATING.into(),
            product_type: 0,
            form_factor: 0,
            flags: 0,
            reserved: [0; 55],
        }
        .as_bytes()
        .to_vec(),
        page::PAGE_LOGICAL_BLOCK_PROVISIONING => {
            let thin = unit.characteristics().unmap.is_some();
            page::LogicalBlockProvisioning {
                threshold_exponent: 0,
                flags: if thin { PROVISIONING_FLAGS } else { 0 },
                provisioning_type: if thin { THIN } else { 0 },
                reserved: 0,
            }
            .as_bytes()
            .to_vec()
        }
        _ => return Err(Sense::invalid_field_in_cdb(2)),
    };
    Ok(vpd_page(page::PERIPHERAL_DISK, page_code, &body))
}

fn block_limits(unit: &LogicalUnit) -> page::BlockLimits {
    let limits = unit.limits();
    let characteristics = unit.characteristics();
    let granularity = 1u16 << characteristics.physical_block_exponent.min(15);
    let unmap = characteristics.unmap;
    page::BlockLimits {
        flags: 0,
        maximum_compare_and_write_length: limits.maximum_compare_and_write_blocks,
        optimal_transfer_length_granularity: granularity.into(),
        maximum_transfer_length: limits.maximum_transfer_blocks.into(),
        optimal_transfer_length: limits.optimal_transfer_blocks.into(),
        maximum_prefetch_length: 0.into(),
        maximum_unmap_lba_count: unmap.map_or(0, |_| limits.maximum_unmap_blocks).into(),
        maximum_unmap_block_descriptor_count: unmap
            .map_or(0, |_| limits.maximum_unmap_descriptors)
            .into(),
        optimal_unmap_granularity: unmap.map_or(0, |unmap| unmap.granularity_blocks).into(),
        unmap_granularity_alignment: unmap.map_or(0, |_| UNMAP_GRANULARITY_ALIGNMENT_VALID).into(),
        maximum_write_same_length: limits.maximum_write_same_blocks.into(),
        reserved: [0; 20],
    }
}

/// CODE SET.
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const UTF_8: u8 = 3;
/// ASSOCIATION, with PIV where the protocol matters.
const OF_LOGICAL_UNIT: u8 = 0x00;
const OF_TARGET_PORT: u8 = 0x80 | 0x10;
const OF_TARGET_DEVICE: u8 = 0x80 | 0x20;
/// PROTOCOL IDENTIFIER 5h: iSCSI.
const ISCSI: u8 = 0x50;
/// DESIGNATOR TYPE.
const T10_VENDOR_ID: u8 = 1;
const NAA: u8 = 3;
const RELATIVE_TARGET_PORT: u8 = 4;
const TARGET_PORT_GROUP: u8 = 5;
const SCSI_NAME_STRING: u8 = 8;
/// All ports are in one group until there is asymmetric access.
const ONLY_TARGET_PORT_GROUP: u16 = 1;

fn device_identification(identity: &Identity, nexus: &Nexus) -> Vec<u8> {
    let vendor_id = [&padded::<8>(&identity.vendor)[..], identity.serial.as_bytes()].concat();
    let number = |number: u16| {
        page::NumberDesignator { reserved: [0; 2], number: number.into() }.as_bytes().to_vec()
    };
    let designators = [
        (BINARY, OF_LOGICAL_UNIT | NAA, identity.naa.to_be_bytes().to_vec()),
        (ASCII, OF_LOGICAL_UNIT | T10_VENDOR_ID, vendor_id),
        (
            UTF_8,
            OF_LOGICAL_UNIT | SCSI_NAME_STRING,
            name_string(&format!("naa.{:016X}", identity.naa)),
        ),
        (ISCSI | BINARY, OF_TARGET_PORT | RELATIVE_TARGET_PORT, number(nexus.relative_target_port)),
        (ISCSI | BINARY, OF_TARGET_PORT | TARGET_PORT_GROUP, number(ONLY_TARGET_PORT_GROUP)),
        (ISCSI | UTF_8, OF_TARGET_PORT | SCSI_NAME_STRING, name_string(&nexus.target_port_name)),
        (ISCSI | UTF_8, OF_TARGET_DEVICE | SCSI_NAME_STRING, name_string(nexus.device.name())),
    ];
    let mut bytes = Vec::new();
    for (code_set, designator_type, designator) in designators {
        let header = page::DesignationHeader {
            code_set,
            designator_type,
            reserved: 0,
            designator_length: designator.len() as u8,
        };
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&designator);
    }
    bytes
}

/// A SCSI name string: ended by zeroes to a multiple of four bytes (SPC-4 7.8.6.11), and never
/// longer than its length field can say.
fn name_string(name: &str) -> Vec<u8> {
    let mut end = name.len().min(251);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = name.as_bytes()[..end].to_vec();
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
