//! The command handlers, by family. A handler checks its CDB and parameter list completely before it has any effect. It
//! waits for results that it needs from the store.

pub(crate) mod atomic;
pub(crate) mod block;
pub(crate) mod buffer;
pub(crate) mod cache;
pub(crate) mod capacity;
pub(crate) mod defects;
pub(crate) mod diagnostic;
pub(crate) mod format;
pub(crate) mod identifying_information;
pub(crate) mod inquiry;
pub(crate) mod log;
pub(crate) mod medium;
pub(crate) mod mode;
pub(crate) mod persistent_reservation;
pub(crate) mod provisioning;
pub(crate) mod reservation;
pub(crate) mod sanitize;
pub(crate) mod security;
pub(crate) mod tagged;
pub(crate) mod target_port_groups;
pub(crate) mod timestamp;
pub(crate) mod verify;
mod vital_product_data;

use crate::target::Nexus;
use crate::task::{Task, parameter_data};
use crate::{Cdb, Completion, Lun, Sense};
use sarsen_wire::scsi::opcode;

/// Executes a command to a LUN without a unit (SPC-4 6.6.2, 6.33, 6.39; SAM-5 5.11).
pub(crate) fn without_unit(
    nexus: &Nexus,
    lun: Option<Lun>,
    cdb: &Cdb,
) -> Result<Completion, Sense> {
    match cdb.operation_code() {
        opcode::INQUIRY => inquiry::inquiry_without_unit(cdb),
        opcode::REQUEST_SENSE => {
            Ok(inquiry::sense_parameter_data(cdb, Sense::logical_unit_not_supported()))
        }
        // LUN 0 reports the LUNs of the target even if there is no unit 0.
        opcode::REPORT_LUNS if lun == Some(Lun::ZERO) => inquiry::luns_data(nexus, cdb),
        _ => Err(Sense::logical_unit_not_supported()),
    }
}
