//! INQUIRY, REPORT LUNS, REQUEST SENSE, TEST UNIT READY (SPC-4 6.6, 6.33, 6.39, 6.47).

use super::{Task, parameter_data, vital_product_data};
use crate::designators::padded;
use crate::target::Nexus;
use crate::{Cdb, Completion, DeviceType, Identity, Sense, UnitAttention, phase};
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
/// NORMACA, HISUP and RESPONSE DATA FORMAT 2.
const NORMACA_HISUP_FORMAT_2: u8 = 0x20 | 0x12;
/// DESC in REQUEST SENSE.
const DESC: u8 = 0x01;

pub(crate) fn test_unit_ready(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    match task.unit.store_sense() {
        None => Ok(Io::Ready(Completion::good())),
        Some(sense) => Err(sense),
    }
}

pub(crate) fn request_sense(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    // SPC-4 6.39: REQUEST SENSE reports a pending unit attention and clears it.
    let sense = match task.attentions.take() {
        Some(attention) => attention.sense(),
        None => {
            let unit = task.unit;
            let not_ready = task.nexus.target_port.not_ready();
            let not_usual = not_ready.or_else(|| phase::sense(unit.medium_phase()));
            not_usual
                .or_else(|| unit.medium().check().err())
                .or_else(|| unit.store_sense())
                .unwrap_or(Sense::none())
        }
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
    // SPC-4 6.33: the minimum is sixteen bytes.
    if allocation_length < 16 {
        return Err(Sense::invalid_field_in_cdb(6));
    }
    let luns: Vec<[u8; 8]> = match fields.select_report {
        0 | 2 => nexus.attached().keys().map(|lun| lun.to_wire()).collect(),
        // There are no well-known logical units.
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
    let bytes = if evpd {
        vital_product_data::page(&task, fields.page_code)?
    } else {
        of_unit(&task).as_bytes().to_vec()
    };
    Ok(Io::Ready(parameter_data(&bytes, fields.allocation_length.get().into())))
}

/// Returns standard data for a LUN without a unit (SPC-4 6.6.2).
pub(crate) fn inquiry_without_unit(cdb: &Cdb) -> Result<Completion, Sense> {
    let fields = cdb.view::<wire::Inquiry>();
    let bytes = match (check_inquiry(fields)?, fields.page_code) {
        (false, _) => {
            let nobody = Identity::new("", "");
            standard_inquiry(page::PERIPHERAL_NONE, page::DESCRIPTOR_SBC_3, &nobody)
                .as_bytes()
                .to_vec()
        }
        (true, page::PAGE_SUPPORTED) => vital_product_data::supported_without_unit(),
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

fn of_unit(task: &Task<'_>) -> StandardInquiry {
    let (command_set, copies) = match task.unit.device_type() {
        DeviceType::Disk => (page::DESCRIPTOR_SBC_3, page::THIRD_PARTY_COPY),
        DeviceType::Cd => (page::DESCRIPTOR_MMC_6, 0),
    };
    let groups = task.nexus.device.target_port_groups();
    let has_several_ports = groups.all().len() > 1;
    let protect = if task.unit.protected().is_some() { page::FLAGS_5_PROTECT } else { 0 };
    StandardInquiry {
        // A single group reports ALUA too: it has a state, supports both commands and notifies its initiators of
        // changes. Multipath managers recognise the unit's paths by it.
        flags_5: groups.alua() as u8 | copies | protect,
        flags_6: if has_several_ports { page::MULTIP } else { 0 },
        removable: if task.unit.medium().is_removable() { page::REMOVABLE } else { 0 },
        ..standard_inquiry(task.peripheral(), command_set, task.unit.identity())
    }
}

fn standard_inquiry(peripheral: u8, command_set: u16, identity: &Identity) -> StandardInquiry {
    let mut version_descriptors = [U16::ZERO; 8];
    let claimed =
        [page::DESCRIPTOR_SAM_5, page::DESCRIPTOR_SPC_4, command_set, page::DESCRIPTOR_ISCSI];
    for (descriptor, claim) in version_descriptors.iter_mut().zip(claimed) {
        *descriptor = claim.into();
    }
    StandardInquiry {
        peripheral,
        removable: 0,
        version: page::VERSION_SPC_4,
        response_data_format: NORMACA_HISUP_FORMAT_2,
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
