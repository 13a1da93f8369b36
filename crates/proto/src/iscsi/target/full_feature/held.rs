//! Requests above a gap in CmdSN. They wait until the requests before them have arrived (RFC 7143 §4.2.2.1).

use sarsen_wire::iscsi::{Opcode, RawHeader, ScsiCommand, SerialNumber};

use super::super::link::Link;
use super::super::window::CmdSnPosition;
use super::super::{CloseReason, Environment};
use super::{AfterRequest, FullFeature, Incoming};
use crate::command_memory::Grant;
use crate::iscsi::Segment;

/// Maximum immediate data in bytes of all requests above a gap in CmdSN together.
const HELD_BYTES_LIMIT: usize = 4 << 20;

/// A request that is complete before its turn.
pub(super) struct Held {
    pub(super) cmd_sn: SerialNumber,
    pub(super) header: RawHeader,
    pub(super) additional_headers: Vec<u8>,
    pub(super) data: Vec<u8>,
    /// The charge for the memory of `data`.
    pub(super) grant: Option<Grant>,
    /// There was no memory for its data.
    pub(super) lacks_data: bool,
}

impl Held {
    /// Returns the logical unit and the attribute, if the request is a command.
    pub(super) fn command(&self) -> Option<([u8; 8], u8)> {
        let command = ScsiCommand::view(&self.header);
        let attribute = command.flags & ScsiCommand::ATTRIBUTE;
        (self.header.basic().opcode() == Opcode::ScsiCommand).then_some((command.lun, attribute))
    }
}

impl FullFeature {
    /// Compares a request's CmdSN with the window, before its data has arrived.
    pub(super) fn expect_request(
        &self,
        link: &mut Link,
        cmd_sn: SerialNumber,
    ) -> Result<Incoming, CloseReason> {
        match link.session.with(|state| state.standing(cmd_sn)) {
            CmdSnPosition::Next => Ok(Incoming::Numbered),
            CmdSnPosition::Outside => Ok(Incoming::Dropped),
            CmdSnPosition::AboveGap => {
                let held: usize = self.held.iter().map(|held| held.data.len()).sum();
                if held > HELD_BYTES_LIMIT {
                    return Err(CloseReason::protocol("too much data above a gap", "§4.2.2.1"));
                }
                Ok(Incoming::Numbered)
            }
        }
    }

    /// Handles requests whose turn has come because the gap before them closed.
    pub(super) fn release_held(
        &mut self,
        link: &mut Link,
        environment: &mut dyn Environment,
    ) -> Result<AfterRequest, CloseReason> {
        while !self.held.is_empty() {
            let next = link.session.with(|state| state.window.exp_cmd_sn());
            let due = (0..self.held.len())
                .filter(|&index| self.held[index].cmd_sn.is_before(next))
                .reduce(|first, other| {
                    if self.held[other].cmd_sn.is_before(self.held[first].cmd_sn) {
                        other
                    } else {
                        first
                    }
                });
            let Some(index) = due else { break };
            let request = self.held.swap_remove(index);
            if self.handle_held(link, request, environment)? == AfterRequest::Close {
                return Ok(AfterRequest::Close);
            }
        }
        Ok(AfterRequest::StayOpen)
    }

    /// Handles a complete request whose turn has come.
    pub(super) fn handle_held(
        &mut self,
        link: &mut Link,
        Held { cmd_sn, header, additional_headers, data, grant, lacks_data }: Held,
        environment: &mut dyn Environment,
    ) -> Result<AfterRequest, CloseReason> {
        if let Some(grant) = grant {
            // The retained part is charged separately.
            link.room.give_back(grant);
        }
        if header.basic().opcode() != Opcode::ScsiCommand {
            return self.handle_request(link, &header, &data, environment);
        }
        if let Some(reason) = self.refusal(ScsiCommand::view(&header), false) {
            link.reject(reason, &header);
            link.session.with(|state| state.give_up_place(cmd_sn));
            return Ok(AfterRequest::StayOpen);
        }
        let id = self.begin_command(link, &header, &additional_headers, lacks_data, environment);
        let segment = match self.tasks.by_tag(id.initiator_task_tag) {
            Some(task) if task.collection.capacity > 0 && !data.is_empty() => {
                let useful = data.len().min(task.collection.capacity);
                let mut buffer = task.collection.take_buffer();
                buffer[..useful].copy_from_slice(&data[..useful]);
                Segment::Placed { buffer, range: 0..useful }
            }
            _ => Segment::Nothing,
        };
        drop(data);
        let length = header.basic().data_segment_length.value() as usize;
        self.finish_command(link, id, segment, length);
        Ok(AfterRequest::StayOpen)
    }

    pub(super) fn forget_data_of(&self, link: &Link, held: Held) {
        if let Some(grant) = held.grant {
            link.room.give_back(grant);
        }
    }

    /// Returns the requests that wait for an earlier CmdSN.
    pub(in crate::iscsi::target) fn held_requests(
        &self,
    ) -> impl Iterator<Item = (SerialNumber, &RawHeader)> {
        self.held.iter().map(|held| (held.cmd_sn, &held.header))
    }

    #[cfg(test)]
    pub(in crate::iscsi::target) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// Drops a command that a task management function aborted before its turn. Its CmdSN counts as received.
    pub(in crate::iscsi::target) fn forget_expected(
        &mut self,
        link: &mut Link,
        cmd_sn: SerialNumber,
    ) {
        for held in self.held.extract_if(.., |held| held.cmd_sn == cmd_sn) {
            if let Some(grant) = held.grant {
                link.room.give_back(grant);
            }
        }
        link.session.with(|state| state.skip(cmd_sn));
    }
}
