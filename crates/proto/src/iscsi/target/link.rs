//! The data that every phase of a connection needs: the output, the events for the layer above, the sequence numbers of
//! each PDU, and the negotiated parameters.

use std::collections::VecDeque;

use sarsen_wire::iscsi::{
    AsyncEvent, AsyncMessage, Opcode, RESERVED_TAG, RawHeader, Reject, RejectReason, ScsiCommand,
    SerialNumber,
};

use super::Event;
use super::recovery::{SentData, UnacknowledgedPdus};
use super::session::SharedHold;
use super::window::CmdSnPosition;
use crate::command_memory::{CommandMemory, Grant};
use crate::iscsi::{Output, Parameters};

/// Unsent headers and short payloads are charged if they need more memory than this.
const ARENA_UNCHARGED: usize = 64 << 10;

pub(super) struct Link {
    pub(super) output: Output,
    pub(super) events: VecDeque<Event>,
    pub(super) parameters: Parameters,
    pub(super) session: SharedHold,
    stat_sn: SerialNumber,
    pub(super) kept: UnacknowledgedPdus,
    /// Memory for the data and the answers of the connection's commands.
    pub(super) room: CommandMemory,
    /// The charge for the memory of headers and short payloads.
    arena: Option<(usize, Grant)>,
    /// The connection is lost, or was removed for recovery: new output is not sent, and no data is requested.
    pub(super) is_lost: bool,
    /// The initiator has removed the connection: the pending output is still sent, and no later output.
    pub(super) parting: Option<Output>,
}

/// StatSN, ExpCmdSN and MaxCmdSN of one PDU.
pub(super) struct SequenceNumbers {
    pub(super) stat_sn: u32,
    pub(super) exp_cmd_sn: u32,
    pub(super) max_cmd_sn: u32,
}

impl Link {
    pub(super) fn new(window: u32, room: CommandMemory) -> Self {
        Self {
            output: Output::default(),
            events: VecDeque::new(),
            parameters: Parameters::default(),
            session: SharedHold::new(SerialNumber(0), window),
            stat_sn: SerialNumber(0),
            kept: UnacknowledgedPdus::default(),
            room,
            arena: None,
            is_lost: false,
            parting: None,
        }
    }

    /// Takes the sequence numbers of the first login request.
    pub(super) fn begin(&mut self, cmd_sn: SerialNumber, stat_sn: SerialNumber, window: u32) {
        self.session = SharedHold::new(cmd_sn, window);
        self.stat_sn = stat_sn;
    }

    /// Returns whether the initiator may request sent PDUs again.
    pub(super) const fn keeps_sent_pdus(&self) -> bool {
        self.parameters.error_recovery_level > 0
    }

    /// Returns the next StatSN.
    pub(super) const fn next_stat_sn(&self) -> SerialNumber {
        self.stat_sn
    }

    /// Sends a PDU that took a StatSN. If the initiator may request it again, keeps it until it is acknowledged.
    pub(super) fn answer(&mut self, header: impl Into<RawHeader>, segment: &[u8]) {
        let header = header.into();
        if self.keeps_sent_pdus() {
            self.kept.push(header, segment, &self.room);
        }
        self.output.push(header, segment);
    }

    /// Charges the current memory of headers and short payloads.
    #[inline]
    pub(super) fn charge_arena(&mut self) {
        let memory = self.output.arena_memory();
        if memory > ARENA_UNCHARGED || self.arena.is_some() {
            self.charge_large_arena(memory);
        }
    }

    #[cold]
    fn charge_large_arena(&mut self, memory: usize) {
        match self.arena.take() {
            Some((charged, grant)) if charged == memory => self.arena = Some((charged, grant)),
            charged => {
                if let Some((_, grant)) = charged {
                    self.room.give_back(grant);
                }
                if memory > ARENA_UNCHARGED {
                    self.arena = Some((memory, self.room.charge_unasked(memory)));
                }
            }
        }
    }

    /// Returns whether unsent answers use so much memory that the connection must not receive further requests.
    #[inline]
    pub(super) fn is_full(&self, limit: usize) -> bool {
        let length = self.parting.as_ref().unwrap_or(&self.output).len();
        length >= limit || (length >= ARENA_UNCHARGED && self.room.budget().is_short())
    }

    /// Keeps the data with the answer that was just sent.
    pub(super) fn keep_data(&mut self, data: SentData) {
        self.kept.attach(data);
    }

    /// Returns a new tag by which the initiator acknowledges data.
    pub(super) fn next_data_ack_tag(&mut self) -> u32 {
        self.kept.next_tag()
    }

    /// Removes the connection for recovery (RFC 7143 §11.14): its tasks wait for another connection, and it sends
    /// nothing for them any more.
    pub(super) fn detach_for_recovery(&mut self) {
        self.parting = Some(std::mem::take(&mut self.output));
        self.is_lost = true;
    }

    /// Returns whether this CmdSN is the expected one.
    pub(super) fn is_next(&mut self, cmd_sn: SerialNumber) -> bool {
        self.session.with(|state| state.standing(cmd_sn)) == CmdSnPosition::Next
    }

    /// Takes the turn of a command that has its place in the order already. Returns false if the command is not, or no
    /// longer, the expected one.
    pub(super) fn take_late_turn(&mut self, cmd_sn: SerialNumber) -> bool {
        let member = self.session.member();
        self.session.with(|state| {
            let is_next = state.standing(cmd_sn) == CmdSnPosition::Next;
            if is_next {
                state.advance(cmd_sn, None, member);
            }
            is_next
        })
    }

    /// Takes the turn of a command if the command is the expected one. Returns whether it is.
    #[inline]
    pub(super) fn take_turn(&mut self, command: &ScsiCommand) -> bool {
        let cmd_sn = SerialNumber(command.cmd_sn.get());
        let attribute = command.flags & ScsiCommand::ATTRIBUTE;
        let member = self.session.member();
        self.session.with(|state| {
            let is_next = state.standing(cmd_sn) == CmdSnPosition::Next;
            if is_next {
                state.advance(cmd_sn, Some((command.lun, attribute)), member);
            }
            is_next
        })
    }

    /// Returns the numbers for a PDU that carries status and takes a StatSN.
    pub(super) fn stamp(&mut self) -> SequenceNumbers {
        let stamp = self.peek();
        self.stat_sn = self.stat_sn.next();
        stamp
    }

    /// Returns the numbers for a PDU that carries no status: its StatSN is the next one.
    #[inline]
    pub(super) fn peek(&mut self) -> SequenceNumbers {
        let (exp_cmd_sn, max_cmd_sn) =
            self.session.with(|state| (state.window.exp_cmd_sn().0, state.window.max_cmd_sn().0));
        SequenceNumbers { stat_sn: self.stat_sn.0, exp_cmd_sn, max_cmd_sn }
    }

    /// Rejects a PDU (RFC 7143 §11.17). The data segment of the Reject is the rejected header.
    pub(super) fn reject(&mut self, reason: RejectReason, rejected: &RawHeader) {
        self.reject_with(reason, rejected, 0);
    }

    /// Rejects a PDU with a DataSN or R2TSN: the number of the next such PDU of the task (RFC 7143 §11.17.2).
    pub(super) fn reject_with(&mut self, reason: RejectReason, rejected: &RawHeader, data_sn: u32) {
        let stamp = self.stamp();
        let mut reject = Reject::from(RawHeader::with_opcode(Opcode::Reject));
        reject.reason = reason.0;
        reject.initiator_task_tag = RESERVED_TAG.into();
        reject.reserved_tag = 0.into();
        reject.stat_sn = stamp.stat_sn.into();
        reject.exp_cmd_sn = stamp.exp_cmd_sn.into();
        reject.max_cmd_sn = stamp.max_cmd_sn.into();
        reject.data_sn = data_sn.into();
        self.answer(reject, &rejected.0);
    }

    /// Sends a SCSI event with its sense data (RFC 7143 §11.9.1, event 0).
    pub(super) fn scsi_event(&mut self, lun: [u8; 8], sense: &[u8]) {
        let length = (sense.len() as u16).to_be_bytes();
        let segment = [&length, sense].concat();
        self.push_asynchronous(AsyncEvent::ScsiEvent, lun, [0; 3], &segment);
    }

    /// Sends an event without sense data (RFC 7143 §11.9).
    pub(super) fn asynchronous_message(&mut self, event: AsyncEvent, parameters: [u16; 3]) {
        self.push_asynchronous(event, [0; 8], parameters, &[]);
    }

    fn push_asynchronous(
        &mut self,
        event: AsyncEvent,
        lun: [u8; 8],
        parameters: [u16; 3],
        segment: &[u8],
    ) {
        let stamp = self.stamp();
        let mut message = AsyncMessage::from(RawHeader::with_opcode(Opcode::AsyncMessage));
        message.initiator_task_tag = RESERVED_TAG.into();
        message.reserved_tag = 0.into();
        message.stat_sn = stamp.stat_sn.into();
        message.exp_cmd_sn = stamp.exp_cmd_sn.into();
        message.max_cmd_sn = stamp.max_cmd_sn.into();
        message.event = event.0;
        message.lun = lun;
        let [parameter1, parameter2, parameter3] = parameters;
        message.parameter1 = parameter1.into();
        message.parameter2 = parameter2.into();
        message.parameter3 = parameter3.into();
        self.answer(message, segment);
    }
}
