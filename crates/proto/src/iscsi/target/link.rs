//! What every phase of a connection needs: the way out, the numbers that each PDU carries, and
//! what was negotiated.

use sarsen_wire::iscsi::{
    AsyncEvent, AsyncMessage, Opcode, RESERVED_TAG, RawHeader, Reject, RejectReason, ScsiCommand,
    SerialNumber,
};

use super::recovery::{Kept, SentData};
use super::session::Hold;
use super::window::Standing;
use crate::iscsi::{Output, Parameters};

pub(super) struct Link {
    pub(super) output: Output,
    pub(super) parameters: Parameters,
    pub(super) session: Hold,
    stat_sn: SerialNumber,
    pub(super) kept: Kept,
    /// The connection is lost: what is sent goes nowhere, and no data is asked for.
    pub(super) is_parked: bool,
}

/// StatSN, ExpCmdSN and MaxCmdSN of one PDU.
pub(super) struct Stamp {
    pub(super) stat_sn: u32,
    pub(super) exp_cmd_sn: u32,
    pub(super) max_cmd_sn: u32,
}

impl Link {
    pub(super) fn new(first_cmd_sn: SerialNumber, stat_sn: SerialNumber, window: u32) -> Self {
        Self {
            output: Output::default(),
            parameters: Parameters::default(),
            session: Hold::new(first_cmd_sn, window),
            stat_sn,
            kept: Kept::default(),
            is_parked: false,
        }
    }

    /// Whether what was sent may be asked for again.
    pub(super) const fn keeps(&self) -> bool {
        self.parameters.error_recovery_level > 0
    }

    /// The next StatSN.
    pub(super) const fn next_stat_sn(&self) -> SerialNumber {
        self.stat_sn
    }

    /// Sends a PDU that took a StatSN, and keeps it until it is acknowledged.
    pub(super) fn answer(&mut self, header: impl Into<RawHeader>, segment: &[u8]) {
        let header = header.into();
        if self.keeps() {
            self.kept.push(header, segment);
        }
        self.output.push(header, segment);
    }

    /// The answer that was just sent belongs to this data.
    pub(super) fn keep_data(&mut self, data: SentData) {
        self.kept.attach(data);
    }

    /// A tag by which the initiator acknowledges data.
    pub(super) fn acknowledge_tag(&mut self) -> u32 {
        self.kept.next_tag()
    }

    /// Whether a command's turn has come; if so, it is taken.
    pub(super) fn take_turn(&mut self, command: &ScsiCommand) -> bool {
        let cmd_sn = SerialNumber(command.cmd_sn.get());
        let attribute = command.flags & ScsiCommand::ATTRIBUTE;
        let member = self.session.member();
        self.session.with(|state| {
            let is_next = state.standing(cmd_sn) == Standing::Next;
            if is_next {
                state.advance(cmd_sn, Some((command.lun, attribute)), member);
            }
            is_next
        })
    }

    /// Numbers for a PDU that carries status and takes a StatSN.
    pub(super) fn stamp(&mut self) -> Stamp {
        let stamp = self.peek();
        self.stat_sn = self.stat_sn.next();
        stamp
    }

    /// Numbers for a PDU that carries no status: StatSN is the next one.
    #[inline]
    pub(super) fn peek(&mut self) -> Stamp {
        let (exp_cmd_sn, max_cmd_sn) =
            self.session.with(|state| (state.window.exp_cmd_sn().0, state.window.max_cmd_sn().0));
        Stamp { stat_sn: self.stat_sn.0, exp_cmd_sn, max_cmd_sn }
    }

    /// RFC 7143 §11.17. The rejected header is the data.
    pub(super) fn reject(&mut self, reason: RejectReason, rejected: &RawHeader) {
        let stamp = self.stamp();
        let mut reject = Reject::from(RawHeader::with_opcode(Opcode::Reject));
        reject.reason = reason.0;
        reject.initiator_task_tag = RESERVED_TAG.into();
        reject.reserved_tag = 0.into();
        reject.stat_sn = stamp.stat_sn.into();
        reject.exp_cmd_sn = stamp.exp_cmd_sn.into();
        reject.max_cmd_sn = stamp.max_cmd_sn.into();
        self.answer(reject, &rejected.0);
    }

    /// RFC 7143 §11.9.1, event 0: what happened is in the sense data.
    pub(super) fn scsi_event(&mut self, lun: [u8; 8], sense: &[u8]) {
        let length = (sense.len() as u16).to_be_bytes();
        let segment = [&length, sense].concat();
        self.push_asynchronous(AsyncEvent::ScsiEvent, lun, [0; 3], &segment);
    }

    /// RFC 7143 §11.9, for events without sense data.
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
