//! Requests other than commands: pings, text, task management and logout. Also PDUs that the target sends without a
//! request.

use sarsen_wire::iscsi::pdu::{CONTINUE, FINAL, IMMEDIATE};
use sarsen_wire::iscsi::{
    self, AsyncMessage, LogoutReason, LogoutRequest, LogoutResponse, LogoutResponsePdu, NopIn,
    NopOut, Opcode, RESERVED_TAG, RawHeader, RejectReason, SerialNumber, TaskManagementFunction,
    TaskManagementRequest, TaskManagementResponse, TaskManagementResponsePdu, TextRequest,
    TextResponse,
};

use super::super::Segment;
use super::core::Core;
use super::event::{ConnectionError, Event, ProtocolError, RecoveryError};
use super::link::{Link, Phase};
use super::request::{Cid, TaskManagement, Token};
use super::status_order::StatSnPosition;
use super::task::{AbortScope, RequestKind, Task};

/// Maximum length of the answer to a text request, in bytes.
const TEXT_LIMIT: usize = 4 * 1024 * 1024;
/// Maximum number of unanswered pings. If a target sends more while the initiator cannot send answers, the connection
/// is closed.
const PING_LIMIT: u32 = 1024;
/// The token of requests that the owner did not make.
const NO_TOKEN: Token = Token(0);

impl Link {
    fn insert(&self, core: &mut Core, token: Token, kind: RequestKind) -> u32 {
        core.tasks.insert(Task { token, allegiance: self.cid, kind })
    }

    pub(super) fn ping(&mut self, core: &mut Core, token: Token) {
        let tag = self.insert(core, token, RequestKind::Ping);
        self.push_nop_out(core, tag, RESERVED_TAG, [0; 8]);
    }

    fn push_nop_out(&mut self, core: &Core, tag: u32, transfer_tag: u32, lun: [u8; 8]) {
        let mut header = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
        header.opcode_byte |= IMMEDIATE;
        header.lun = lun;
        header.initiator_task_tag = tag.into();
        header.target_transfer_tag = transfer_tag.into();
        header.cmd_sn = core.cmd_sn.0.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        self.output.push(header, &[]);
    }

    pub(super) fn handle_nop(
        &mut self,
        core: &mut Core,
        header: &NopIn,
    ) -> Result<(), ConnectionError> {
        let (tag, transfer_tag) =
            (header.initiator_task_tag.get(), header.target_transfer_tag.get());
        if tag == RESERVED_TAG {
            self.note_next_status(header.stat_sn.get())?;
        } else {
            if self.note_status(header.stat_sn.get())? == StatSnPosition::Duplicate {
                return Ok(());
            }
            let Some(task) = core.tasks.remove_if(tag, |kind| matches!(kind, RequestKind::Ping))
            else {
                return Err(ProtocolError::UnknownTask { opcode: Opcode::NopIn, tag }.into());
            };
            core.events.push_back(Event::Pong { token: task.token });
        }
        if transfer_tag == RESERVED_TAG {
            return Ok(());
        }
        self.pings_queued += 1;
        if self.pings_queued > PING_LIMIT {
            return Err(ProtocolError::PingFlood(PING_LIMIT).into());
        }
        self.push_nop_out(core, RESERVED_TAG, transfer_tag, header.lun);
        Ok(())
    }

    pub(super) fn text(&mut self, core: &mut Core, text: &[u8], token: Token) {
        let tag = self.insert(core, token, RequestKind::Text { received: Vec::new() });
        self.push_text(core, tag, RESERVED_TAG, text);
    }

    fn push_text(&mut self, core: &Core, tag: u32, transfer_tag: u32, text: &[u8]) {
        let mut header = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
        header.opcode_byte |= IMMEDIATE;
        header.initiator_task_tag = tag.into();
        header.target_transfer_tag = transfer_tag.into();
        header.cmd_sn = core.cmd_sn.0.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        self.output.push(header, text);
    }

    pub(super) fn handle_text(
        &mut self,
        core: &mut Core,
        header: &TextResponse,
        segment: &Segment,
    ) -> Result<(), ConnectionError> {
        if self.note_status(header.stat_sn.get())? == StatSnPosition::Duplicate {
            return Ok(());
        }
        let tag = header.initiator_task_tag.get();
        let Some(Task { token, kind: RequestKind::Text { received }, .. }) = core.tasks.find(tag)
        else {
            return Err(ProtocolError::UnknownTask { opcode: Opcode::TextResponse, tag }.into());
        };
        if received.len() + segment.bytes().len() > TEXT_LIMIT {
            return Err(ProtocolError::TextTooLong { limit: TEXT_LIMIT }.into());
        }
        received.extend_from_slice(segment.bytes());
        let transfer_tag = header.target_transfer_tag.get();
        let goes_on = header.flags & CONTINUE != 0 || header.flags & FINAL == 0;
        if goes_on && transfer_tag != RESERVED_TAG {
            self.push_text(core, tag, transfer_tag, &[]);
            return Ok(());
        }
        let event = Event::TextDone { token: *token, text: std::mem::take(received) };
        core.tasks.remove(tag);
        core.events.push_back(event);
        Ok(())
    }

    /// Requests a task management function. Returns false and sends nothing if the task that it concerns has already
    /// ended.
    pub(super) fn task_management(
        &mut self,
        core: &mut Core,
        request: TaskManagement,
        token: Token,
    ) -> bool {
        let mut header = TaskManagementRequest::from(RawHeader::ZERO);
        header.referenced_task_tag = RESERVED_TAG.into();
        let (function, aborts) = match request {
            TaskManagement::AbortTask(task) => {
                let Some((tag, _, command)) = core.tasks.command_of(task) else { return false };
                header.lun = command.lun;
                header.referenced_task_tag = tag.into();
                header.ref_cmd_sn = command.cmd_sn.into();
                (TaskManagementFunction::AbortTask, AbortScope::Task(tag))
            }
            TaskManagement::AbortTaskSet(lun) => {
                header.lun = lun;
                (TaskManagementFunction::AbortTaskSet, AbortScope::Unit(lun))
            }
            TaskManagement::ClearTaskSet(lun) => {
                header.lun = lun;
                (TaskManagementFunction::ClearTaskSet, AbortScope::Unit(lun))
            }
            TaskManagement::LogicalUnitReset(lun) => {
                header.lun = lun;
                (TaskManagementFunction::LogicalUnitReset, AbortScope::Unit(lun))
            }
            TaskManagement::TargetWarmReset => {
                (TaskManagementFunction::TargetWarmReset, AbortScope::All)
            }
            TaskManagement::TargetColdReset => {
                (TaskManagementFunction::TargetColdReset, AbortScope::All)
            }
        };
        let tag = self.insert(core, token, RequestKind::TaskManagement { aborts });
        self.push_task_management(core, header, function, tag);
        true
    }

    fn push_task_management(
        &mut self,
        core: &Core,
        mut header: TaskManagementRequest,
        function: TaskManagementFunction,
        tag: u32,
    ) {
        header.opcode_byte = Opcode::TaskManagementRequest.0 | IMMEDIATE;
        header.flags = FINAL | function.0;
        header.initiator_task_tag = tag.into();
        header.cmd_sn = core.cmd_sn.0.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        self.output.push(header, &[]);
    }

    pub(super) fn handle_task_management(
        &mut self,
        core: &mut Core,
        header: &TaskManagementResponsePdu,
    ) -> Result<(), ConnectionError> {
        if self.note_status(header.stat_sn.get())? == StatSnPosition::Duplicate {
            return Ok(());
        }
        let (opcode, tag) = (Opcode::TaskManagementResponse, header.initiator_task_tag.get());
        let response = header.response();
        let task = core.tasks.remove_if(tag, |kind| {
            matches!(kind, RequestKind::TaskManagement { .. } | RequestKind::Reassign { .. })
        });
        let (token, aborts) = match task {
            Some(Task { token, kind: RequestKind::TaskManagement { aborts }, .. }) => {
                (token, aborts)
            }
            Some(Task { kind: RequestKind::Reassign { task }, .. }) => {
                self.note_reassigned(core, task, response);
                return Ok(());
            }
            _ => return Err(ProtocolError::UnknownTask { opcode, tag }.into()),
        };
        let carried_out = match response {
            TaskManagementResponse::FunctionComplete => true,
            // Responses arrive in order: if the task had ended by itself, it would not be open any more.
            TaskManagementResponse::TaskDoesNotExist => matches!(aborts, AbortScope::Task(_)),
            _ => false,
        };
        if carried_out {
            let aborted = core.tasks.abort(aborts);
            core.events.extend(aborted.into_iter().map(|token| Event::Aborted { token }));
        }
        core.events.push_back(Event::TaskManagementDone { token, response });
        Ok(())
    }

    /// Reassigns the next command of a lost connection to this one. Only one request is open at a time, because a
    /// target need not accept more immediate management requests (RFC 7143 §4.2.2.1, §7.2.2).
    pub(super) fn reassign_next(&mut self, core: &mut Core) {
        self.is_reassigning = false;
        while let Some(task) =
            self.recovery.as_mut().and_then(|recovery| recovery.to_reassign.pop_front())
        {
            let Some(open) = core.tasks.find(task) else { continue };
            let RequestKind::Command(command) = &mut open.kind else { continue };
            open.allegiance = self.cid;
            let mut header = TaskManagementRequest::from(RawHeader::ZERO);
            header.lun = command.lun;
            header.referenced_task_tag = task.into();
            header.exp_data_sn = command.resume_from().into();
            let tag = self.insert(core, NO_TOKEN, RequestKind::Reassign { task });
            let function = TaskManagementFunction::TaskReassign;
            self.push_task_management(core, header, function, tag);
            self.is_reassigning = true;
            return;
        }
    }

    fn note_reassigned(&mut self, core: &mut Core, task: u32, response: TaskManagementResponse) {
        // A failure does not matter if the task was aborted meanwhile.
        if response != TaskManagementResponse::FunctionComplete && core.tasks.find(task).is_some() {
            let error = RecoveryError::Reassignment { response };
            core.failed.get_or_insert(error.into());
        }
        self.reassign_next(core);
    }

    /// Requests to end the session. The answer is [`Event::LoggedOut`].
    pub(super) fn logout(&mut self, core: &mut Core, token: Token) {
        let tag = self.insert(core, token, RequestKind::Logout);
        let (own, exp_stat_sn) = (self.cid, self.exp_stat_sn.0);
        self.push_logout(core, LogoutReason::CloseSession, own, exp_stat_sn, tag);
    }

    /// Requests to close only this connection when it has no open requests (RFC 7143 §11.14.1).
    pub(super) fn leave_when_idle(&mut self, core: &mut Core) {
        if !self.is_leaving || !self.is_full_feature() {
            return;
        }
        let (commands, others) = core.tasks.of_connection(self.cid);
        if !commands.is_empty() || !others.is_empty() {
            return;
        }
        let tag = self.insert(core, NO_TOKEN, RequestKind::Leave);
        let (own, exp_stat_sn) = (self.cid, self.exp_stat_sn.0);
        self.push_logout(core, LogoutReason::CloseConnection, own, exp_stat_sn, tag);
    }

    /// Requests to remove a lost connection. Its commands then move to this connection. ExpStatSN is that of the lost
    /// connection (RFC 7143 §11.14.4).
    pub(super) fn remove_other(&mut self, core: &mut Core, cid: u16, exp_stat_sn: u32) {
        let tag = self.insert(core, NO_TOKEN, RequestKind::Removal { cid });
        self.push_logout(core, LogoutReason::RemoveForRecovery, cid, exp_stat_sn, tag);
    }

    fn push_logout(
        &mut self,
        core: &Core,
        reason: LogoutReason,
        cid: u16,
        exp_stat_sn: u32,
        tag: u32,
    ) {
        let mut header = LogoutRequest::from(RawHeader::ZERO);
        header.opcode_byte = Opcode::LogoutRequest.0 | IMMEDIATE;
        header.flags = FINAL | reason.0;
        header.initiator_task_tag = tag.into();
        header.cid = cid.into();
        header.cmd_sn = core.cmd_sn.0.into();
        header.exp_stat_sn = exp_stat_sn.into();
        self.output.push(header, &[]);
    }

    pub(super) fn handle_logout(
        &mut self,
        core: &mut Core,
        header: &LogoutResponsePdu,
    ) -> Result<(), ConnectionError> {
        if self.note_status(header.stat_sn.get())? == StatSnPosition::Duplicate {
            return Ok(());
        }
        let tag = header.initiator_task_tag.get();
        let response = header.response();
        let task = core.tasks.remove_if(tag, |kind| {
            matches!(kind, RequestKind::Logout | RequestKind::Leave | RequestKind::Removal { .. })
        });
        match task.map(|task| task.kind) {
            Some(RequestKind::Leave) => {
                self.phase = Phase::LoggedOut;
                core.events.push_back(Event::Left { connection: Cid(self.cid) });
            }
            Some(RequestKind::Logout) => {
                self.phase = Phase::LoggedOut;
                core.logged_out = true;
                core.events.push_back(Event::LoggedOut { response });
            }
            // A target that does not know the connection any more may still know its tasks.
            Some(RequestKind::Removal { cid })
                if matches!(response, LogoutResponse::Closed | LogoutResponse::CidNotFound) =>
            {
                core.removed.push((Cid(cid), Cid(self.cid)));
            }
            Some(RequestKind::Removal { .. }) => {
                let error = RecoveryError::Removal { response };
                core.failed.get_or_insert(error.into());
            }
            _ => {
                let opcode = Opcode::LogoutResponse;
                return Err(ProtocolError::UnknownTask { opcode, tag }.into());
            }
        }
        Ok(())
    }

    pub(super) fn handle_async(
        &mut self,
        core: &mut Core,
        header: &AsyncMessage,
        segment: &Segment,
    ) -> Result<(), ConnectionError> {
        if self.note_status(header.stat_sn.get())? == StatSnPosition::Duplicate {
            return Ok(());
        }
        let parameters = [header.parameter1, header.parameter2, header.parameter3];
        core.events.push_back(Event::AsyncMessage {
            event: header.event(),
            lun: header.lun,
            parameters: parameters.map(|parameter| parameter.get()),
            data: segment.bytes().to_vec(),
        });
        Ok(())
    }

    pub(super) fn handle_reject(
        &mut self,
        core: &mut Core,
        header: &iscsi::Reject,
        segment: &Segment,
    ) -> Result<(), ConnectionError> {
        if self.note_status(header.stat_sn.get())? == StatSnPosition::Duplicate {
            return Ok(());
        }
        let reason = header.reason();
        let rejected = segment.bytes().first_chunk().map(|bytes| RawHeader(*bytes));
        if let Some(rejected) = &rejected
            && rejected.basic().opcode() == Opcode::ScsiCommand
            && reason == RejectReason::DataDigestError
        {
            let command = iscsi::ScsiCommand::view(rejected);
            let expected = SerialNumber(header.exp_cmd_sn.get());
            if SerialNumber(command.cmd_sn.get()).is_before(expected) {
                // The target has the command, and requests its data by an R2T.
                return Ok(());
            }
            // RFC 7143 §7.3: the target discards the command, and the initiator has to close the gap.
            if self.recovery.is_none() {
                return Err(ConnectionError::DataDigest(Opcode::ScsiCommand));
            }
            self.count_failure()?;
            self.retry(core, command.initiator_task_tag.get());
            return Ok(());
        }
        if self.recovery.is_some()
            && let Some(rejected) = &rejected
        {
            match (reason, rejected.basic().opcode()) {
                // RFC 7143 §7.8: the target requests the data by an R2T.
                (RejectReason::DataDigestError, Opcode::DataOut) => return Ok(()),
                // The target has already freed the data that the PDU acknowledges.
                (RejectReason::InvalidDataAck, Opcode::SnackRequest) => return Ok(()),
                (_, Opcode::SnackRequest) => return Err(ConnectionError::NotRepeated),
                _ => {}
            }
        }
        let tag = rejected.map(|rejected| rejected.basic().initiator_task_tag.get());
        let task = tag.and_then(|tag| core.tasks.find(tag));
        if let Some(Task {
            kind: RequestKind::Reassign { .. } | RequestKind::Removal { .. }, ..
        }) = task
        {
            core.failed.get_or_insert(RecoveryError::Rejected { reason }.into());
            return Ok(());
        }
        let token = task.map(|task| task.token);
        core.events.push_back(Event::Rejected { reason, token });
        Ok(())
    }
}
