//! Decides by its header what a PDU is for, and where its data goes.

use sarsen_block::Buffer;
use sarsen_wire::iscsi::pdu::FINAL;
use sarsen_wire::iscsi::{
    DataOut, NopOut, Opcode, RESERVED_TAG, RawHeader, RejectReason, ScsiCommand, SerialNumber, ahs,
};

use super::super::link::Link;
use super::super::tasks::{DataOutCollection, Fault, Progress, Task, TaskId};
use super::super::{Cdb, CloseReason, Environment, data_out};
use super::{FullFeature, Incoming};
use crate::iscsi::keys::SessionType;
use crate::iscsi::{DigestKind, Landing};

/// A data segment that is collected in its own memory is charged if it is longer than this. Short pings and text
/// always find memory.
const UNCHARGED_SEGMENT: usize = 8192;

impl FullFeature {
    /// Decides the use of a PDU whose header is complete, and the memory for its data.
    pub(in crate::iscsi::target) fn place(
        &mut self,
        link: &mut Link,
        header: &RawHeader,
        additional_headers: &[u8],
        environment: &mut dyn Environment,
    ) -> Result<Landing, CloseReason> {
        let basic = header.basic();
        let length = basic.data_segment_length.value() as usize;
        let immediate = basic.is_immediate();
        // All requests carry CmdSN in the same place.
        let cmd_sn = SerialNumber(NopOut::view(header).cmd_sn.get());
        self.incoming = match basic.opcode() {
            Opcode::DataOut => return Ok(self.place_data_out(link, DataOut::view(header))),
            Opcode::ScsiCommand => {
                let command = ScsiCommand::view(header);
                match self.refusal(command, immediate) {
                    // RFC 7143 §7.3: the CmdSN of a command that is rejected does not count.
                    Some(reason) => self.refuse_command(link, header, reason)?,
                    None if length > 0 && link.parameters.data_digest == DigestKind::Crc32c => {
                        if immediate || link.is_next(cmd_sn) {
                            Incoming::Unproven(self.begin_command(
                                link,
                                header,
                                additional_headers,
                                false,
                                environment,
                            ))
                        } else {
                            self.expect_request(link, cmd_sn)?
                        }
                    }
                    None if immediate || link.take_turn(command) => Incoming::Command(
                        self.begin_command(link, header, additional_headers, false, environment),
                    ),
                    None => self.expect_request(link, cmd_sn)?,
                }
            }
            _ => self.place_request(link, header)?,
        };
        if length > 0
            && let Incoming::Command(id) | Incoming::Unproven(id) = self.incoming
            && let Some(task) = self.tasks.by_tag(id.initiator_task_tag)
        {
            let landing = data_out::landing(task, length);
            return Ok(self.charge_landing(link, landing, length));
        }
        if let Incoming::Numbered = self.incoming {
            self.incoming_ahs = additional_headers.to_vec();
        }
        Ok(match self.incoming {
            Incoming::Dropped | Incoming::Rejected => Landing::Discard,
            _ if length == 0 => Landing::Collect,
            _ => self.charge_landing(link, Landing::Collect, length),
        })
    }

    /// Decides about a request other than a command.
    fn place_request(&self, link: &mut Link, header: &RawHeader) -> Result<Incoming, CloseReason> {
        let basic = header.basic();
        let opcode = basic.opcode();
        let is_known = match opcode {
            Opcode::NopOut
            | Opcode::TaskManagementRequest
            | Opcode::LogoutRequest
            | Opcode::SnackRequest => {
                // RFC 7143 §7.7: the boundaries of the following PDUs cannot be trusted.
                if !basic.is_final() {
                    return Err(CloseReason::Format {
                        what: "a request without its final bit",
                        clause: "§11.2.1.3",
                    });
                }
                true
            }
            Opcode::TextRequest | Opcode::LoginRequest => true,
            _ => false,
        };
        if !is_known {
            link.reject(RejectReason::CommandNotSupported, header);
            return Ok(Incoming::Rejected);
        }
        let incoming = if basic.is_immediate() || opcode == Opcode::SnackRequest {
            Incoming::Request
        } else {
            self.expect_request(link, SerialNumber(NopOut::view(header).cmd_sn.get()))?
        };
        let is_refused = self.admission.session_type == SessionType::Discovery
            && matches!(opcode, Opcode::TaskManagementRequest | Opcode::SnackRequest)
            && !matches!(incoming, Incoming::Dropped);
        if is_refused {
            // RFC 7143 §4.3: a discovery session accepts only text and a logout.
            link.reject(RejectReason::ProtocolError, header);
            return Ok(Incoming::Rejected);
        }
        Ok(incoming)
    }

    /// Charges a data segment that is collected in its own memory. Without memory the segment is discarded.
    #[inline]
    fn charge_landing(&mut self, link: &Link, landing: Landing, length: usize) -> Landing {
        match landing {
            Landing::Collect if length > UNCHARGED_SEGMENT => self.charge_collected(link, length),
            landing => landing,
        }
    }

    fn charge_collected(&mut self, link: &Link, length: usize) -> Landing {
        self.incoming_grant = link.room.take_unasked(Buffer::memory_for(length));
        if self.incoming_grant.is_some() {
            return Landing::Collect;
        }
        self.lacks_memory = true;
        link.room.budget().note_refusal();
        if let Incoming::Command(id) | Incoming::Unproven(id) | Incoming::Data(id) = self.incoming
            && let Some(task) = self.tasks.by_tag(id.initiator_task_tag)
        {
            task.fault.get_or_insert(Fault::NoMemory);
        }
        Landing::Discard
    }

    fn place_data_out(&mut self, link: &Link, header: &DataOut) -> Landing {
        let length = header.data_segment_length.value() as usize;
        let tag = header.initiator_task_tag.get();
        let Some(task) =
            self.tasks.by_tag(tag).filter(|task| task.progress == Progress::Collecting)
        else {
            // The initiator sent this data before its task was aborted.
            self.incoming = Incoming::Dropped;
            return Landing::Discard;
        };
        self.incoming = Incoming::Data(task.id);
        let landing = data_out::landing(task, length);
        self.charge_landing(link, landing, length)
    }

    /// Returns the reason why a command may not become a task, if there is one.
    pub(super) fn refusal(&self, command: &ScsiCommand, immediate: bool) -> Option<RejectReason> {
        let tag = command.initiator_task_tag.get();
        if self.admission.session_type == SessionType::Discovery {
            Some(RejectReason::ProtocolError)
        } else if tag == RESERVED_TAG {
            Some(RejectReason::InvalidPduField)
        } else if self.tasks.contains(tag) {
            Some(RejectReason::TaskInProgress)
        } else if immediate && self.tasks.immediate_count() >= self.settings.immediate_limit {
            Some(RejectReason::ImmediateCommandReject)
        } else {
            None
        }
    }

    /// Rejects a command whose turn it is. A command above a gap is checked again in its turn.
    fn refuse_command(
        &self,
        link: &mut Link,
        header: &RawHeader,
        reason: RejectReason,
    ) -> Result<Incoming, CloseReason> {
        let cmd_sn = SerialNumber(ScsiCommand::view(header).cmd_sn.get());
        if !header.basic().is_immediate() && !link.is_next(cmd_sn) {
            return self.expect_request(link, cmd_sn);
        }
        link.reject(reason, header);
        Ok(Incoming::Rejected)
    }

    /// Creates a task for a command. `lacks_data` means that its immediate data arrived before its turn and found no
    /// memory.
    pub(super) fn begin_command(
        &mut self,
        link: &mut Link,
        header: &RawHeader,
        additional_headers: &[u8],
        lacks_data: bool,
        environment: &mut dyn Environment,
    ) -> TaskId {
        let command = ScsiCommand::view(header);
        let tag = command.initiator_task_tag.get();
        let immediate = header.basic().is_immediate();
        let cdb = Cdb {
            head: command.cdb,
            extension: ahs::extended_cdb(additional_headers).map(Box::from),
        };
        let expected = command.expected_data_transfer_length.get();
        let writes = command.flags & ScsiCommand::WRITE != 0;
        let promised = if writes { expected as usize } else { 0 };
        // A command that only reads sends no data, and its residual count does not report any.
        let data_out_length = match command.flags & (ScsiCommand::READ | ScsiCommand::WRITE) {
            ScsiCommand::READ => 0,
            _ => environment.data_out_length(command.lun, &cdb, promised),
        };
        let wanted = data_out_length.min(promised);
        let is_final = command.flags & FINAL != 0;
        let length = command.data_segment_length.value();
        let limit = link.parameters.first_burst_length.min(expected);
        let mut fault = if length > 0 && (!writes || !link.parameters.immediate_data) {
            Some(Fault::UnexpectedUnsolicitedData)
        } else if length > limit {
            Some(Fault::IncorrectAmountOfData)
        } else if !is_final && (!writes || link.parameters.initial_r2t) {
            Some(Fault::UnexpectedUnsolicitedData)
        } else if lacks_data {
            Some(Fault::NoMemory)
        } else {
            None
        };
        // Unsolicited data cannot wait for memory. Often it is all of a write's data, and is received directly into
        // the store's buffer.
        let unasked = match fault {
            Some(_) => 0,
            None if is_final => wanted.min(length as usize),
            None => wanted.min(limit as usize),
        };
        let attribute = command.flags & ScsiCommand::ATTRIBUTE;
        let only_writes = command.flags & ScsiCommand::READ == 0;
        let is_all = unasked == wanted && only_writes;
        let (mut grant, mut has_room) = (None, false);
        if unasked > 0 {
            let whole = Buffer::memory_for(wanted);
            grant = match only_writes {
                true if is_all => link.room.take_unasked(whole),
                true => self.take_room_early(link, attribute, whole),
                false => None,
            };
            has_room = grant.is_some();
            if !is_all && !has_room {
                grant = link.room.take_unasked(unasked);
            }
            if grant.is_none() {
                link.room.budget().note_refusal();
                fault = Some(Fault::NoMemory);
            }
        }
        let capacity = match grant {
            None => 0,
            Some(_) if has_room => wanted,
            Some(_) => unasked,
        };
        let cmd_sn = (!immediate).then(|| SerialNumber(command.cmd_sn.get()));
        let member = link.session.member();
        let id =
            link.session.with(|state| state.begin(tag, cmd_sn, command.lun, attribute, member));
        self.tasks.insert(Task {
            id,
            lun: command.lun,
            cdb,
            flags: command.flags,
            immediate,
            expected_data_transfer_length: expected,
            data_out_length,
            has_room,
            grant,
            collection: DataOutCollection {
                capacity,
                wanted,
                // RFC 7143 §11.3.1: only commands that write send data.
                unsolicited: writes && !is_final,
                ..DataOutCollection::default()
            },
            progress: Progress::Collecting,
            fault,
        });
        id
    }
}
