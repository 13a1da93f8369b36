//! Commands to send, and the data of writes (RFC 7143 §4.2.5.2, §11.3, §11.7, §11.8).

use sarsen_wire::iscsi::pdu::FINAL;
use sarsen_wire::iscsi::{DataOut, Opcode, R2t, RESERVED_TAG, RawHeader, ScsiCommand};

use super::super::output::Payload;
use super::core::Core;
use super::event::{ConnectionError, ProtocolError};
use super::link::Link;
use super::reception::{Reception, Run};
use super::request::{CommandRequest, Token, Transfer};
use super::task::{Command, CommandRecovery, DataTransfer, R2T_SN_UNKNOWN, RequestKind, Task};

impl Link {
    /// Sends a command for which the window has room. Returns its tag.
    pub(super) fn command(
        &mut self,
        core: &mut Core,
        request: CommandRequest,
        token: Token,
    ) -> u32 {
        let CommandRequest { lun, cdb, attribute, transfer } = request;
        let cmd_sn = core.cmd_sn.post_increment().0;
        let recovery =
            self.recovery.is_some().then(|| Box::new(CommandRecovery::new(cdb, attribute)));
        let mut header = ScsiCommand::from(RawHeader::ZERO);
        header.opcode_byte = Opcode::ScsiCommand.0;
        header.flags = FINAL | attribute.bits();
        header.lun = lun;
        header.cmd_sn = cmd_sn.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        header.cdb = cdb;
        let (movement, payload) = match transfer {
            Transfer::None => (DataTransfer::None, None),
            Transfer::Read { length, landing } => {
                header.flags |= ScsiCommand::READ;
                header.expected_data_transfer_length = length.into();
                (DataTransfer::Read { expected: length, received: 0, landing, buffer: None }, None)
            }
            Transfer::Write { payload, length } => {
                header.flags |= ScsiCommand::WRITE;
                header.expected_data_transfer_length = length.into();
                let solicited = self.unsolicited(length);
                (DataTransfer::Write { payload: payload.clone(), length, solicited }, Some(payload))
            }
        };
        let kind = RequestKind::Command(Command { lun, cmd_sn, movement, recovery });
        let tag = core.tasks.insert(Task { token, allegiance: self.cid, kind });
        header.initiator_task_tag = tag.into();
        match payload {
            None => self.output.push(header, &[]),
            Some(payload) => self.push_write(header, &payload),
        }
        tag
    }

    /// Sends a command that the target never received once more, with its own number and tag (RFC 7143 §7.2.1).
    pub(super) fn retry(&mut self, core: &mut Core, tag: u32) {
        let Some(Task { kind: RequestKind::Command(command), allegiance, .. }) =
            core.tasks.find(tag)
        else {
            return;
        };
        let Some(recovery) = &mut command.recovery else { return };
        *allegiance = self.cid;
        let mut header = ScsiCommand::from(RawHeader::ZERO);
        header.opcode_byte = Opcode::ScsiCommand.0;
        header.flags = FINAL | recovery.attribute.bits();
        header.lun = command.lun;
        header.initiator_task_tag = tag.into();
        header.cmd_sn = command.cmd_sn.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        header.cdb = recovery.cdb;
        recovery.start_over();
        match &mut command.movement {
            DataTransfer::None => self.output.push(header, &[]),
            DataTransfer::Read { expected, received, .. } => {
                *received = 0;
                header.flags |= ScsiCommand::READ;
                header.expected_data_transfer_length = (*expected).into();
                self.output.push(header, &[]);
            }
            DataTransfer::Write { payload, length, solicited } => {
                header.flags |= ScsiCommand::WRITE;
                header.expected_data_transfer_length = (*length).into();
                *solicited = self.unsolicited(*length);
                let payload = payload.clone();
                self.push_write(header, &payload);
            }
        }
    }

    fn immediate(&self, length: u32) -> u32 {
        let parameters = &self.parameters;
        if !parameters.immediate_data {
            return 0;
        }
        length.min(parameters.first_burst_length).min(parameters.peer_max_recv_data_segment_length)
    }

    /// Returns the number of unsolicited bytes of a write of `length`.
    fn unsolicited(&self, length: u32) -> u32 {
        if self.parameters.initial_r2t {
            self.immediate(length)
        } else {
            length.min(self.parameters.first_burst_length)
        }
    }

    fn push_write(&mut self, mut header: ScsiCommand, payload: &Payload) {
        let length = header.expected_data_transfer_length.get();
        let (immediate, unsolicited) = (self.immediate(length), self.unsolicited(length));
        if immediate < unsolicited {
            // RFC 7143 §11.3.1: the final bit says that no unsolicited Data-Out follows.
            header.flags &= !FINAL;
        }
        self.output.push_payload(header, payload, 0, immediate as usize);
        if immediate < unsolicited {
            let tag = header.initiator_task_tag.get();
            self.push_data_out(header.lun, tag, RESERVED_TAG, payload, immediate, unsolicited);
        }
    }

    /// Sends one sequence of Data-Out: the bytes of `payload` from `offset` to `end`.
    fn push_data_out(
        &mut self,
        lun: [u8; 8],
        tag: u32,
        transfer_tag: u32,
        payload: &Payload,
        mut offset: u32,
        end: u32,
    ) {
        let mut header = DataOut::from(RawHeader::ZERO);
        header.opcode_byte = Opcode::DataOut.0;
        header.lun = lun;
        header.initiator_task_tag = tag.into();
        header.target_transfer_tag = transfer_tag.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        for data_sn in 0.. {
            let length = (end - offset).min(self.parameters.peer_max_recv_data_segment_length);
            header.data_sn = data_sn.into();
            header.buffer_offset = offset.into();
            header.flags = if offset + length == end { FINAL } else { 0 };
            self.output.push_payload(header, payload, offset as usize, length as usize);
            offset += length;
            if offset == end {
                return;
            }
        }
    }

    pub(super) fn handle_r2t(&mut self, core: &mut Core, r2t: &R2t) -> Result<(), ConnectionError> {
        if self.recovery.is_none() {
            return self.answer_r2t(core, r2t);
        }
        self.note_next_status(r2t.stat_sn.get())?;
        let tag = r2t.initiator_task_tag.get();
        let most = self.parameters.max_outstanding_r2t as usize;
        let (mut ready, mut gap) = (vec![*r2t], None);
        let r2t_sn = r2t.r2t_sn.get();
        if let Some(Command { lun, recovery: Some(recovery), .. }) =
            core.tasks.command(tag, self.cid)
        {
            if r2t_sn > recovery.r2t_sn {
                if recovery.held_r2ts.len() >= most {
                    return Err(ProtocolError::TooManyMissing.into());
                }
                let held = recovery.held_r2ts.iter().map(|held| R2t::view(held).r2t_sn.get());
                // R2Ts before a held one were requested when that one arrived.
                let first = held.max().map_or(recovery.r2t_sn, |held| held + 1);
                if r2t_sn > first {
                    gap = Some((*lun, Run { first, count: r2t_sn - first }));
                }
                recovery.held_r2ts.push((*r2t).into());
                ready.clear();
            } else if r2t_sn == recovery.r2t_sn && r2t_sn != R2T_SN_UNKNOWN {
                recovery.r2t_sn += 1;
                recovery.held_r2ts.sort_by_key(|held| R2t::view(held).r2t_sn.get());
                while let Some(next) = recovery.held_r2ts.first()
                    && R2t::view(next).r2t_sn.get() == recovery.r2t_sn
                {
                    ready.push(*R2t::view(next));
                    recovery.held_r2ts.remove(0);
                    recovery.r2t_sn += 1;
                }
            }
            // An older R2T requests Data-Out that was lost. It is answered once more.
        }
        if let Some((lun, run)) = gap {
            self.ask_for_data(lun, tag, run)?;
        }
        ready.iter().try_for_each(|r2t| self.answer_r2t(core, r2t))
    }

    fn answer_r2t(&mut self, core: &mut Core, r2t: &R2t) -> Result<(), ConnectionError> {
        let tag = r2t.initiator_task_tag.get();
        let (offset, wanted) = (r2t.buffer_offset.get(), r2t.desired_data_transfer_length.get());
        let max_burst_length = self.parameters.max_burst_length;
        let unknown = ProtocolError::UnknownTask { opcode: Opcode::R2t, tag };
        let Some(command) = core.tasks.command(tag, self.cid) else {
            return if core.tolerant { Ok(()) } else { Err(unknown.into()) };
        };
        let DataTransfer::Write { payload, length, solicited } = &mut command.movement else {
            return Err(unknown.into());
        };
        // The R2Ts are in order, so that the target requests no byte twice, except for lost ones. After this check
        // `offset` does not exceed `length`.
        let repeats = offset < *solicited;
        if (repeats && command.recovery.is_none())
            || wanted == 0
            || wanted > max_burst_length
            || offset > *length
            || wanted > *length - offset
        {
            let total = *length;
            return Err(ProtocolError::R2tRange { offset, length: wanted, total }.into());
        }
        *solicited = (*solicited).max(offset + wanted);
        let (lun, payload) = (command.lun, payload.clone());
        let transfer_tag = r2t.target_transfer_tag.get();
        self.push_data_out(lun, tag, transfer_tag, &payload, offset, offset + wanted);
        Ok(())
    }
}

impl CommandRecovery {
    /// Resets the recovery state: the target never executed any part of the command.
    fn start_over(&mut self) {
        self.reception = Reception::default();
        self.to_acknowledge = None;
        self.end = None;
        self.r2t_sn = 0;
        self.held_r2ts.clear();
    }
}
