//! SECURITY PROTOCOL IN (SPC-4 6.40, 7.7). The only supported protocol is the one that lists the supported protocols.

use super::{Task, parameter_data};
use crate::{Completion, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::maintenance as wire;

/// SECURITY PROTOCOL: information about security protocols.
const INFORMATION: u8 = 0x00;
/// The unit of lengths with INC_512.
const UNIT: usize = 512;

pub(crate) fn security_protocol_in(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::SecurityProtocolIn>();
    if fields.protocol != INFORMATION {
        return Err(Sense::invalid_field_in_cdb(1));
    }
    let mut bytes = match fields.protocol_specific.get() {
        // Six reserved bytes, the length of the list, the list.
        0x0000 => vec![0, 0, 0, 0, 0, 0, 0, 1, INFORMATION],
        // Two reserved bytes, the length of a certificate, which is 0.
        0x0001 => vec![0; 4],
        _ => return Err(Sense::invalid_field_in_cdb(2)),
    };
    let mut allocation_length = fields.allocation_length.get() as usize;
    if fields.flags & wire::SECURITY_INC_512 != 0 {
        allocation_length = allocation_length.saturating_mul(UNIT);
        bytes.resize(bytes.len().next_multiple_of(UNIT), 0);
    }
    Ok(Io::Ready(parameter_data(&bytes, allocation_length)))
}
