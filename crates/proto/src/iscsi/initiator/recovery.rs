//! Recovery within a connection, at level 1 and above: the initiator requests damaged and lost PDUs again
//! (RFC 7143 §7.5, §7.8, §11.16).

use std::collections::VecDeque;

use sarsen_wire::iscsi::pdu::FINAL;
use sarsen_wire::iscsi::{
    DataIn, NopIn, Opcode, RESERVED_TAG, RawHeader, SerialNumber, SnackRequest,
};

use super::super::Segment;
use super::core::Core;
use super::event::{ConnectionError, ProtocolError};
use super::link::{Link, note_window_of};
use super::reads::complete;
use super::reception::{Arrival, Run};
use super::request::ReadLanding;
use super::status_order::{StatSnPosition, StatusOrder, TooMany};
use super::task::{Command, DataTransfer};

/// Maximum number of consecutive requests for repetition without success. More failures mean that the connection is
/// bad, not the PDU.
const FAILURE_LIMIT: u32 = 64;

/// Kinds of SNACK (RFC 7143 §11.16.1).
const SNACK_DATA: u8 = 0;
const SNACK_STATUS: u8 = 1;
const SNACK_DATA_ACKNOWLEDGEMENT: u8 = 2;

/// Recovery state of a connection, at level 1 and above.
pub(super) struct LinkRecovery {
    order: StatusOrder,
    /// Number of requests for repetition since the last success.
    failures: u32,
    /// Commands of lost connections that are still to be reassigned to this connection.
    pub(super) to_reassign: VecDeque<u32>,
}

impl LinkRecovery {
    pub(super) const fn new(next: SerialNumber) -> Self {
        Self { order: StatusOrder::new(next), failures: 0, to_reassign: VecDeque::new() }
    }
}

impl From<TooMany> for ConnectionError {
    fn from(TooMany: TooMany) -> Self {
        ProtocolError::TooManyMissing.into()
    }
}

impl Link {
    /// Records a status. The caller ignores a duplicate.
    pub(super) fn note_status(&mut self, stat_sn: u32) -> Result<StatSnPosition, ConnectionError> {
        let stat_sn = SerialNumber(stat_sn);
        let Some(recovery) = &mut self.recovery else {
            self.exp_stat_sn = stat_sn.next();
            return Ok(StatSnPosition::Fresh);
        };
        let before = recovery.order.expected();
        let (position, gap) = recovery.order.note(stat_sn)?;
        self.exp_stat_sn = recovery.order.expected();
        if gap.is_none() && self.exp_stat_sn != before {
            recovery.failures = 0;
        }
        gap.map_or(Ok(()), |gap| self.ask_for_status(gap))?;
        Ok(position)
    }

    /// Records that the next status will have this number.
    pub(super) fn note_next_status(&mut self, stat_sn: u32) -> Result<(), ConnectionError> {
        let Some(recovery) = &mut self.recovery else { return Ok(()) };
        let gap = recovery.order.note_next(SerialNumber(stat_sn))?;
        self.exp_stat_sn = recovery.order.expected();
        gap.map_or(Ok(()), |gap| self.ask_for_status(gap))
    }

    /// Records a status that the initiator must not acknowledge yet.
    pub(super) fn hold_status(&mut self, stat_sn: u32) {
        let Some(recovery) = &mut self.recovery else { return };
        recovery.order.hold(SerialNumber(stat_sn));
        self.exp_stat_sn = recovery.order.expected();
    }

    /// Records a damaged status. Returns it if it is missing now.
    fn lose_status(&mut self, stat_sn: u32) -> Result<Option<Run>, ConnectionError> {
        let Some(recovery) = &mut self.recovery else { return Ok(None) };
        let (missing, gap) = recovery.order.note_damaged(SerialNumber(stat_sn))?;
        self.exp_stat_sn = recovery.order.expected();
        gap.map_or(Ok(()), |gap| self.ask_for_status(gap))?;
        Ok(missing.then_some(Run { first: stat_sn, count: 1 }))
    }

    /// Handles a PDU with damaged data. The header is valid: it has a digest of its own.
    pub(super) fn handle_damaged(
        &mut self,
        core: &mut Core,
        raw: &RawHeader,
        segment: Segment,
    ) -> Result<(), ConnectionError> {
        note_window_of(core, raw);
        // StatSN is at the same offset in all of these PDUs.
        let stat_sn = NopIn::view(raw).stat_sn.get();
        match raw.basic().opcode() {
            Opcode::DataIn => {
                let header = DataIn::view(raw);
                let tag = header.initiator_task_tag.get();
                if header.flags & DataIn::STATUS != 0 {
                    // The target repeats the status with the data.
                    self.lose_status(stat_sn)?;
                }
                let Some(command) = core.tasks.command(tag, self.cid) else { return Ok(()) };
                if let (
                    Segment::Placed { buffer: landed, .. },
                    DataTransfer::Read { landing: ReadLanding::Buffer, buffer, .. },
                ) = (segment, &mut command.movement)
                    && buffer.is_none()
                {
                    *buffer = Some(landed);
                }
                self.note_data(core, raw, false)
            }
            Opcode::NopIn if NopIn::view(raw).initiator_task_tag.get() == RESERVED_TAG => Ok(()),
            Opcode::ScsiResponse
            | Opcode::TextResponse
            | Opcode::TaskManagementResponse
            | Opcode::LogoutResponse
            | Opcode::AsyncMessage
            | Opcode::Reject
            | Opcode::NopIn => {
                if let Some(missing) = self.lose_status(stat_sn)? {
                    self.ask_for_status(missing)?;
                }
                Ok(())
            }
            other => Err(ConnectionError::DataDigest(other)),
        }
    }

    /// Records a Data-In PDU of a command of this connection, intact or damaged. Requests missing PDUs, and ends the
    /// command if nothing is missing any more.
    pub(super) fn note_data(
        &mut self,
        core: &mut Core,
        raw: &RawHeader,
        intact: bool,
    ) -> Result<(), ConnectionError> {
        let header = DataIn::view(raw);
        let tag = header.initiator_task_tag.get();
        let Some(Command { lun, recovery: Some(recovery), movement, .. }) =
            core.tasks.command(tag, self.cid)
        else {
            return Ok(());
        };
        let DataTransfer::Read { received, .. } = movement else { return Ok(()) };
        let arrival = Arrival {
            data_sn: header.data_sn.get(),
            offset: header.buffer_offset.get(),
            length: header.data_segment_length.value(),
        };
        if recovery.reception.is_duplicate(arrival.data_sn) {
            return Ok(());
        }
        let fills = intact && !recovery.reception.is_whole();
        let missing = recovery.reception.arrive(arrival, intact, received);
        if header.flags & DataIn::ACKNOWLEDGE != 0 {
            recovery.to_acknowledge = Some(*raw);
        }
        let whole = recovery.reception.is_whole();
        let first_missing = recovery.reception.first_missing();
        let acknowledged = recovery.to_acknowledge.take_if(|_| whole);
        let end = recovery.end.take_if(|_| whole);
        let lun = *lun;
        if let Some(run) = missing {
            self.ask_for_data(lun, tag, run)?;
        } else if fills {
            self.note_help();
        }
        if let Some(asked) = acknowledged {
            self.acknowledge_data(DataIn::view(&asked), first_missing);
        }
        if let Some(end) = end {
            if let Some(recovery) = &mut self.recovery {
                recovery.order.release(SerialNumber(end.stat_sn));
                self.exp_stat_sn = recovery.order.expected();
            }
            complete(core, tag, end);
        }
        Ok(())
    }

    /// Records how many Data-In PDUs the target sent before the response.
    pub(super) fn note_end_of_data(
        &mut self,
        core: &mut Core,
        tag: u32,
        end_sn: u32,
    ) -> Result<(), ConnectionError> {
        let Some(Command { lun, recovery: Some(recovery), movement, .. }) =
            core.tasks.command(tag, self.cid)
        else {
            return Ok(());
        };
        let DataTransfer::Read { expected, received, .. } = movement else { return Ok(()) };
        let Some(run) = recovery.reception.note_end(end_sn, *expected, received) else {
            return Ok(());
        };
        let lun = *lun;
        self.ask_for_data(lun, tag, run)
    }

    fn note_help(&mut self) {
        if let Some(recovery) = &mut self.recovery {
            recovery.failures = 0;
        }
    }

    /// Requests Data-In PDUs or R2Ts again.
    pub(super) fn ask_for_data(
        &mut self,
        lun: [u8; 8],
        tag: u32,
        run: Run,
    ) -> Result<(), ConnectionError> {
        self.count_failure()?;
        self.push_snack(SNACK_DATA, lun, tag, RESERVED_TAG, run);
        Ok(())
    }

    fn ask_for_status(&mut self, run: Run) -> Result<(), ConnectionError> {
        self.count_failure()?;
        self.push_snack(SNACK_STATUS, [0; 8], RESERVED_TAG, RESERVED_TAG, run);
        Ok(())
    }

    pub(super) fn count_failure(&mut self) -> Result<(), ConnectionError> {
        let Some(recovery) = &mut self.recovery else { return Ok(()) };
        recovery.failures += 1;
        if recovery.failures > FAILURE_LIMIT {
            return Err(ConnectionError::NotRepeated);
        }
        Ok(())
    }

    /// Acknowledges data. LUN and tag are those of the PDU that asked for it (RFC 7143 §11.7.2, §11.16.3).
    fn acknowledge_data(&mut self, asked: &DataIn, next: u32) {
        let transfer_tag = asked.target_transfer_tag.get();
        let run = Run { first: next, count: 0 };
        self.push_snack(SNACK_DATA_ACKNOWLEDGEMENT, asked.lun, RESERVED_TAG, transfer_tag, run);
    }

    fn push_snack(&mut self, kind: u8, lun: [u8; 8], tag: u32, transfer_tag: u32, run: Run) {
        let mut snack = SnackRequest::from(RawHeader::ZERO);
        snack.opcode_byte = Opcode::SnackRequest.0;
        snack.flags = FINAL | kind;
        snack.lun = lun;
        snack.initiator_task_tag = tag.into();
        snack.tag = transfer_tag.into();
        snack.exp_stat_sn = self.exp_stat_sn.0.into();
        snack.beg_run = run.first.into();
        snack.run_length = run.count.into();
        self.output.push(snack, &[]);
    }
}
