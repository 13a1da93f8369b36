//! A unit whose commands are passed to a real SCSI device unchanged. The server itself handles only the list of units,
//! its own unit attentions, and the state of the port. The device handles everything else.

#[cfg(test)]
mod tests;

use crate::commands::block::TRANSFER_LIMIT;
use crate::commands::inquiry;
use crate::target::{AttachedUnit, Nexus};
use crate::{AdditionalSense, Cdb, Command, Completion, Sense, SenseKey, Status};
use sarsen_block::{Buffer, Data, Io};
use sarsen_wire::scsi::opcode;
use std::io;
use std::sync::Arc;

/// The data transfer of a command.
#[derive(Debug)]
pub enum Transfer {
    /// Nothing.
    None,
    /// A transfer from the device of this many bytes at most.
    In(usize),
    /// A transfer of these bytes to the device.
    Out(Buffer),
}

/// The result of a command from the device.
#[derive(Debug)]
pub struct Passed {
    /// The unmodified status.
    pub status: u8,
    /// The data from the device.
    pub data_in: Buffer,
    /// The unmodified sense data.
    pub sense: Vec<u8>,
}

/// The connection to a real device. Errors concern the connection: `TimedOut`, `NotConnected`, `ResourceBusy`,
/// `InvalidInput` for an unsupported request, and others.
pub trait PassThrough: Send + Sync {
    /// Passes a command to the device. Dropping the result does not undo the command.
    fn execute(&self, cdb: Vec<u8>, transfer: Transfer) -> Io<io::Result<Passed>>;
}

/// The real device of a unit.
pub struct Device(Arc<dyn PassThrough>);

impl Device {
    /// Creates the device of a unit from the connection to it.
    pub fn new(connection: Arc<dyn PassThrough>) -> Self {
        Self(connection)
    }

    /// Executes a command, unless the server itself answers it.
    pub(crate) fn execute(
        &self,
        attachment: &AttachedUnit,
        nexus: &Nexus,
        mut command: Command,
    ) -> Io<Completion> {
        let refuse = |sense| Io::Ready(Completion::check_condition(sense));
        match answer_ourselves(attachment, nexus, &command.cdb) {
            Some(Ok(completion)) => return Io::Ready(completion),
            Some(Err(sense)) => return refuse(sense),
            None => {}
        }
        match transfer(&mut command) {
            Ok(transfer) => self.0.execute(cdb_bytes(&command.cdb), transfer).map(complete),
            Err(sense) => refuse(sense),
        }
    }
}

/// Returns the bytes of a CDB. Groups 6 and 7 are vendor specific; their length is the one that Linux drivers assume.
fn cdb_bytes(cdb: &Cdb) -> Vec<u8> {
    let all = cdb.as_bytes();
    let length = match (opcode::cdb_length(cdb.operation_code()), cdb.operation_code()) {
        (Some(length), _) => length,
        (None, opcode::VARIABLE_LENGTH) => usize::from(all[7]) + 8,
        (None, code) if code >> 5 == 3 => 12,
        (None, _) => 10,
    };
    all[..length.min(all.len())].to_vec()
}

/// Returns the server's own response, if the command does not reach the device.
fn answer_ourselves(
    attachment: &AttachedUnit,
    nexus: &Nexus,
    cdb: &Cdb,
) -> Option<Result<Completion, Sense>> {
    let attentions = &attachment.attentions;
    match cdb.operation_code() {
        opcode::REPORT_LUNS => return Some(inquiry::luns_data(nexus, cdb)),
        opcode::INQUIRY => return None,
        // The device's own copy manager could access other devices of this host, to which the initiator has no
        // permission.
        opcode::THIRD_PARTY_COPY_OUT | opcode::THIRD_PARTY_COPY_IN => {
            return Some(Err(Sense::invalid_operation_code()));
        }
        opcode::REQUEST_SENSE => {
            let attention = attentions.is_waiting().then(|| attentions.take()).flatten()?;
            return Some(Ok(inquiry::sense_parameter_data(cdb, attention.sense())));
        }
        _ => {}
    }
    if attentions.is_waiting()
        && let Some(attention) = attentions.take()
    {
        return Some(Err(attention.sense()));
    }
    nexus.target_port.not_ready().map(Err)
}

/// Returns the data transfer of a command. Its direction and its length come from the transport, not from the CDB.
fn transfer(command: &mut Command) -> Result<Transfer, Sense> {
    let wrong = Sense::invalid_field_in_command_information_unit();
    let arrived = command.data_out.take();
    let out = match (command.expected_data_out_length, &arrived) {
        (Some(promised), _) => promised,
        (None, Some(data)) => data.len() as u64,
        (None, None) => 0,
    };
    match (out, command.expected_data_in_length, arrived) {
        (0, 0, _) => Ok(Transfer::None),
        (0, wanted, _) if wanted <= TRANSFER_LIMIT as u64 => Ok(Transfer::In(wanted as usize)),
        // All data arrived.
        (out, 0, Some(data)) if data.len() as u64 == out => Ok(Transfer::Out(data)),
        // Too much data, too little data, or both directions at once.
        _ => Err(wrong),
    }
}

fn complete(result: io::Result<Passed>) -> Completion {
    let passed = match result {
        Ok(passed) => passed,
        Err(error) => return of_the_way(error.kind()),
    };
    let Some(status) = Status::from_byte(passed.status) else {
        return of_the_way(io::ErrorKind::Other);
    };
    Completion {
        data_in: Data::Buffer(passed.data_in),
        raw_sense: (!passed.sense.is_empty()).then(|| passed.sense.into()),
        ..Completion::with_status(status)
    }
}

/// Returns the response if the device did not report a result.
fn of_the_way(kind: io::ErrorKind) -> Completion {
    let sense = match kind {
        io::ErrorKind::ResourceBusy => return Completion::with_status(Status::Busy),
        io::ErrorKind::InvalidInput => Sense::invalid_field_in_command_information_unit(),
        io::ErrorKind::TimedOut => Sense::new(SenseKey::AbortedCommand, AdditionalSense::NONE),
        _ => Sense::new(SenseKey::HardwareError, AdditionalSense::INTERNAL_TARGET_FAILURE),
    };
    Completion::check_condition(sense)
}
