//! REPORT IDENTIFYING INFORMATION and SET IDENTIFYING INFORMATION (SPC-4 6.32, 6.43), for units with a metadata store.

use super::{Task, parameter_data};
use crate::identifying_information::{InformationKind, encode};
use crate::{Cdb, Completion, LogicalUnit, MetadataKind, Sense, UnitAttention};
use sarsen_block::Io;
use sarsen_wire::scsi::maintenance as wire;
use std::sync::Arc;

/// IDENTIFYING INFORMATION TYPE: the list of supported types.
const SUPPORTED: u8 = 0x7f;

/// Returns whether the unit can store identifying information.
pub(crate) fn is_kept(unit: &LogicalUnit) -> bool {
    unit.metadata().is_some()
}

pub(crate) fn report(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Maintenance12>();
    let content =
        match (fields.information_type >> 1, InformationKind::of(fields.information_type >> 1)) {
            (SUPPORTED, _) => InformationKind::ALL.iter().flat_map(supported).collect(),
            (_, Some(kind)) => task.unit.identifying_information().values()[kind as usize].clone(),
            (_, None) => return Err(Sense::invalid_bit_in_cdb(10, 7)),
        };
    let [high, low] = (content.len() as u16).to_be_bytes();
    let bytes = [&[0, 0, high, low], &*content].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.length.get() as usize)))
}

/// Returns the descriptor of a type and of its maximum length.
fn supported(kind: &InformationKind) -> [u8; 4] {
    let [high, low] = (kind.maximum_length() as u16).to_be_bytes();
    [kind.code() << 1, 0, high, low]
}

fn check_set(cdb: &Cdb) -> Result<(InformationKind, usize), Sense> {
    let fields = cdb.view::<wire::Maintenance12>();
    let kind = InformationKind::of(fields.information_type >> 1)
        .ok_or(Sense::invalid_bit_in_cdb(10, 7))?;
    match fields.length.get() as usize {
        length if length > kind.maximum_length() => Err(Sense::invalid_field_in_cdb(6)),
        length => Ok((kind, length)),
    }
}

pub(crate) fn set_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    Ok(check_set(cdb)?.1)
}

pub(crate) fn set(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let (kind, length) = check_set(&task.cdb)?;
    let value = task.take_data_out(length)?.to_vec();
    if kind == InformationKind::Text {
        check_text(&value)?;
    }
    let (unit, nexus) = (Arc::clone(task.unit), task.nexus.id);
    Ok(task.unit.complete_after(async move {
        let Some(metadata) = unit.metadata() else { return Err(Sense::invalid_operation_code()) };
        let information = unit.identifying_information();
        let _turn = information.setting.lock().await;
        let mut values = information.values();
        values[kind as usize] = value;
        let record = encode(&values);
        let saved = metadata.save(MetadataKind::IdentifyingInformation, record).wait().await;
        saved.map_err(|_| Sense::save_failed())?;
        information.replace(values);
        unit.raise_except(nexus, UnitAttention::DeviceIdentifierChanged);
        Ok(Completion::good())
    }))
}

/// Checks for UTF-8 that ends with its only zero byte (SPC-4 4.4.2). An empty value deletes the information.
fn check_text(value: &[u8]) -> Result<(), Sense> {
    let Some((end, text)) = value.split_last() else { return Ok(()) };
    if *end != 0 {
        return Err(Sense::invalid_field_in_parameter_list(text.len() as u16));
    }
    let wrong = match std::str::from_utf8(text) {
        Ok(text) => text.find('\0'),
        Err(error) => Some(error.valid_up_to()),
    };
    wrong.map_or(Ok(()), |byte| Err(Sense::invalid_field_in_parameter_list(byte as u16)))
}
