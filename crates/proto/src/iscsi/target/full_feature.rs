//! The full feature phase: orders requests by CmdSN, parses them, and answers them or passes them to the layer above
//! (RFC 7143 §4.2.2, §11).

mod held;
mod logout;
mod placing;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

use sarsen_wire::iscsi::{
    DataOut, LogoutReason, LogoutRequest, LogoutResponse, NopIn, NopOut, Opcode, RESERVED_TAG,
    RawHeader, RejectReason, ScsiCommand, SerialNumber, TaskManagementResponse, TextRequest,
};

use self::held::Held;
pub(super) use self::logout::push_logout_response;
use self::waiting::admit;
use super::link::Link;
use super::management::{AfterAbort, Barrier, push_response};
use super::tasks::{Ending, Progress, Task, TaskId, Tasks, is_same_unit};
use super::text::Text;
use super::window::CmdSnPosition;
use super::{
    Admission, CloseReason, Command, Completion, Environment, Event, Logout, Settings, data_in,
    data_out,
};
use crate::command_memory::Grant;
use crate::iscsi::Segment;
use crate::iscsi::keys::SessionType;

/// A connection of a session.
pub(super) struct FullFeature {
    pub(super) settings: Arc<Settings>,
    admission: Admission,
    pub(super) tasks: Tasks,
    /// Tasks that wait for memory, in their order.
    waiting: VecDeque<TaskId>,
    /// Tasks that wait until other tasks of the session have reached the layer above.
    held_back: Vec<TaskId>,
    pub(super) barriers: Vec<Barrier>,
    /// Task management functions that the layer above executes.
    pub(super) handed_over: usize,
    text: Text,
    /// The use of the PDU that is being received. Decided when its header is complete.
    incoming: Incoming,
    /// The additional headers of a request that will be held.
    incoming_ahs: Vec<u8>,
    /// The charge for the data segment that is being received, if it belongs to no task.
    incoming_grant: Option<Grant>,
    /// There was no memory for that data segment.
    lacks_memory: bool,
    /// Requests that wait for an earlier CmdSN.
    held: Vec<Held>,
    /// Task management requests that wait for the commands before them.
    pub(super) deferred: Vec<RawHeader>,
    next_transfer_tag: u32,
    ping_tag: u32,
    ping_count: u32,
    /// Bytes of Data-Out PDUs since the last check for a stall.
    pub(super) data_received: usize,
}

/// The state of the connection after a request or a task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum AfterRequest {
    /// The connection stays open.
    StayOpen,
    /// The connection closes, because the initiator has logged out.
    Close,
}

/// The use of a PDU, by its header.
enum Incoming {
    /// A command that became a task.
    Command(TaskId),
    /// A command that became a task. Its CmdSN counts only after its data has arrived with the right digest.
    Unproven(TaskId),
    /// Data for a task.
    Data(TaskId),
    /// Data for a task that does not exist (any more), or a request outside the window.
    Dropped,
    /// A request that has a CmdSN. Its turn is checked when it is complete.
    Numbered,
    /// A request that is handled when it is complete.
    Request,
    /// A PDU that was rejected already.
    Rejected,
}

impl FullFeature {
    pub(super) fn new(admission: Admission, settings: Arc<Settings>) -> Self {
        Self {
            settings,
            admission,
            tasks: Tasks::default(),
            waiting: VecDeque::new(),
            held_back: Vec::new(),
            deferred: Vec::new(),
            barriers: Vec::new(),
            handed_over: 0,
            text: Text::default(),
            incoming: Incoming::Dropped,
            incoming_ahs: Vec::new(),
            incoming_grant: None,
            lacks_memory: false,
            held: Vec::new(),
            next_transfer_tag: 0,
            ping_tag: RESERVED_TAG,
            ping_count: 0,
            data_received: 0,
        }
    }

    pub(super) fn running_tasks(&self) -> usize {
        self.tasks.iter().filter(|task| task.progress != Progress::Collecting).count()
    }

    /// Handles a complete PDU.
    pub(super) fn handle_pdu(
        &mut self,
        link: &mut Link,
        header: &RawHeader,
        segment: Segment,
        digest_valid: bool,
        environment: &mut dyn Environment,
    ) -> Result<AfterRequest, CloseReason> {
        let incoming = std::mem::replace(&mut self.incoming, Incoming::Dropped);
        let lacks_memory = std::mem::take(&mut self.lacks_memory);
        if let Some(grant) = self.incoming_grant.take() {
            // The memory is free when this returns, and a copy is charged separately.
            link.room.give_back(grant);
        }
        if link.keeps_sent_pdus() {
            // RFC 7143 §11.14.4: the ExpStatSN of a logout for recovery belongs to the connection that it removes.
            let logout = LogoutRequest::view(header);
            let is_of_another = header.basic().opcode() == Opcode::LogoutRequest
                && logout.reason() == LogoutReason::RemoveForRecovery
                && logout.cid.get() != self.admission.cid;
            if !is_of_another {
                // All requests carry ExpStatSN in the same place.
                link.acknowledge(NopOut::view(header).exp_stat_sn.get());
            }
            if link.kept.is_too_large(self.settings.room_limit) {
                return Err(CloseReason::protocol("answers are not acknowledged", "§4.2.2.2"));
            }
        }
        if !digest_valid && !matches!(incoming, Incoming::Dropped | Incoming::Rejected) {
            link.reject(RejectReason::DataDigestError, header);
        }
        let length = header.basic().data_segment_length.value() as usize;
        match incoming {
            // The initiator sends no data for it.
            Incoming::Command(id)
                if length == 0 && ScsiCommand::view(header).flags & ScsiCommand::WRITE == 0 =>
            {
                self.advance_task(link, id);
            }
            Incoming::Command(id) => self.finish_command(link, id, segment, length),
            Incoming::Unproven(id) => {
                let cmd_sn = SerialNumber(ScsiCommand::view(header).cmd_sn.get());
                let is_immediate = header.basic().is_immediate();
                if digest_valid && (is_immediate || link.take_late_turn(cmd_sn)) {
                    self.finish_command(link, id, segment, length);
                } else {
                    // RFC 7143 §7.3, §7.8: the target discards it, and the initiator sends it again.
                    drop(self.end_task(link, id));
                }
            }
            Incoming::Data(id) => {
                let header = DataOut::view(header);
                self.handle_data_out(link, id, header, segment, digest_valid);
            }
            Incoming::Dropped | Incoming::Rejected => return Ok(AfterRequest::StayOpen),
            Incoming::Numbered if digest_valid && self.refuses_text(link, header, &segment) => {}
            Incoming::Numbered if digest_valid => {
                let bytes = segment.bytes();
                let grant = match bytes.len() {
                    0 => None,
                    length => link.room.take_unasked(length),
                };
                let cmd_sn = SerialNumber(NopOut::view(header).cmd_sn.get());
                let lacks_data = lacks_memory || (!bytes.is_empty() && grant.is_none());
                if lacks_data && header.basic().opcode() != Opcode::ScsiCommand {
                    link.reject(RejectReason::LongOperationReject, header);
                    return self.resume(link, environment);
                }
                let request = Held {
                    cmd_sn,
                    header: *header,
                    additional_headers: std::mem::take(&mut self.incoming_ahs),
                    data: if lacks_data { Vec::new() } else { bytes.to_vec() },
                    grant,
                    lacks_data,
                };
                let member = link.session.member();
                let command = request.command();
                match link.session.with(|state| state.arrive(request.cmd_sn, command, member)) {
                    CmdSnPosition::Next => {
                        if self.handle_held(link, request, environment)? == AfterRequest::Close {
                            return Ok(AfterRequest::Close);
                        }
                    }
                    CmdSnPosition::AboveGap => self.held.push(request),
                    CmdSnPosition::Outside => {
                        self.forget_data_of(link, request);
                        return Ok(AfterRequest::StayOpen);
                    }
                }
            }
            Incoming::Request if lacks_memory => {
                link.reject(RejectReason::LongOperationReject, header);
            }
            Incoming::Request if digest_valid => {
                // The request may affect held commands whose turn has come through another connection.
                let bytes = segment.bytes();
                if self.release_held(link, environment)? == AfterRequest::Close
                    || self.handle_request(link, header, bytes, environment)? == AfterRequest::Close
                {
                    return Ok(AfterRequest::Close);
                }
            }
            // RFC 7143 §7.8: the Reject notifies the initiator, which sends the request again.
            Incoming::Request | Incoming::Numbered
                if link.keeps_sent_pdus() || header.basic().opcode() == Opcode::ScsiCommand => {}
            Incoming::Request | Incoming::Numbered => {
                // At this level, the target cannot request lost text or a lost ping again.
                return Err(CloseReason::protocol("data digest error", "§7.8"));
            }
        }
        self.resume(link, environment)
    }

    /// Continues requests and tasks that waited for others of the session or for memory.
    #[inline]
    pub(super) fn resume(
        &mut self,
        link: &mut Link,
        environment: &mut dyn Environment,
    ) -> Result<AfterRequest, CloseReason> {
        let idle = self.held.is_empty() && self.deferred.is_empty() && !self.has_waiting();
        if idle { Ok(AfterRequest::StayOpen) } else { self.resume_waiting(link, environment) }
    }

    fn resume_waiting(
        &mut self,
        link: &mut Link,
        environment: &mut dyn Environment,
    ) -> Result<AfterRequest, CloseReason> {
        let after = self.release_held(link, environment)?;
        for header in std::mem::take(&mut self.deferred) {
            if self.handle_request(link, &header, &[], environment)? == AfterRequest::Close {
                return Ok(AfterRequest::Close);
            }
        }
        self.start_waiting(link);
        Ok(after)
    }

    fn finish_command(&mut self, link: &mut Link, id: TaskId, segment: Segment, length: usize) {
        let Some(task) = self.tasks.by_tag(id.initiator_task_tag) else { return };
        data_out::absorb(task, segment, length, true, link.keeps_sent_pdus());
        if !task.collection.unsolicited {
            data_out::end_unsolicited(task);
        }
        self.advance_task(link, id);
    }

    fn handle_data_out(
        &mut self,
        link: &mut Link,
        id: TaskId,
        header: &DataOut,
        segment: Segment,
        digest_valid: bool,
    ) {
        let first_burst = link.parameters.first_burst_length;
        let Some(task) = self.tasks.by_tag(id.initiator_task_tag) else { return };
        if let Err(fault) = data_out::check(task, header, first_burst) {
            task.fault.get_or_insert(fault);
        }
        let length = header.data_segment_length.value() as usize;
        self.data_received = self.data_received.saturating_add(length);
        data_out::absorb(task, segment, length, digest_valid, link.keeps_sent_pdus());
        data_out::step(task, header, first_burst);
        self.advance_task(link, id);
    }

    /// Requests more data, or starts the command when its data is complete.
    pub(super) fn advance_task(&mut self, link: &mut Link, id: TaskId) {
        let Some(task) = self.tasks.by_tag(id.initiator_task_tag) else { return };
        // A task with a fault is never executed.
        if task.fault.is_none() && link.session.with(|state| state.holds_back(id)) {
            if !self.held_back.contains(&id) {
                self.held_back.push(id);
            }
            return;
        }
        debug_assert_eq!(task.progress, Progress::Collecting);
        // The task may continue before the wake-up reaches this connection. It must not continue twice.
        if !self.held_back.is_empty() {
            self.held_back.retain(|&held_back| held_back != id);
        }
        // Tasks receive memory in their order.
        if task.awaits_room() && !(self.waiting.is_empty() && admit(task, link)) {
            self.waiting.push_back(id);
            self.ping_for_acknowledgement(link);
            return;
        }
        data_out::solicit(task, link, &mut self.next_transfer_tag);
        if !task.collection.is_complete() {
            return;
        }
        if let Some(fault) = task.fault {
            if let Some(mut task) = self.end_task(link, id) {
                let is_only = !self.tasks.iter().any(|other| is_same_unit(other.lun, task.lun));
                data_in::push_fault(&mut task, fault, is_only, link);
            }
            return;
        }
        task.progress = Progress::Running;
        // In a shared session, commands of other connections could overtake it: it counts as delivered only when the
        // layer above has it.
        if !link.session.is_shared() {
            link.session.with(|state| state.remove_undelivered(id));
        }
        link.events.push_back(Event::Command(Command {
            task: id,
            lun: task.lun,
            cdb: task.cdb.clone(),
            attribute: task.attribute(),
            data_out: task.collection.buffer.take(),
            expected_data_out_length: match task.flags & (ScsiCommand::READ | ScsiCommand::WRITE) {
                // RFC 7143 §11.3.1: both flags may be missing if the command moves no data.
                0 if task.expected_data_transfer_length == 0 => Some(0),
                0 | ScsiCommand::READ => None,
                _ => Some(task.expected_data_transfer_length),
            },
            // With both flags, the length of the read is in an AHS, which no supported command needs.
            expected_data_in_length: match task.flags & (ScsiCommand::READ | ScsiCommand::WRITE) {
                ScsiCommand::READ => task.expected_data_transfer_length,
                _ => 0,
            },
        }));
    }

    /// Notes that the layer above has begun a command.
    #[inline]
    pub(super) fn begun(&mut self, link: &mut Link, id: TaskId) {
        if link.session.is_shared() {
            link.session.with(|state| state.remove_undelivered(id));
        }
    }

    /// Removes a task and returns its memory to the budget. The caller continues the tasks that wait for this memory or
    /// for this task.
    #[inline]
    pub(super) fn end_task(&mut self, link: &mut Link, id: TaskId) -> Option<Task> {
        let mut task = self.take_task(link, id)?;
        if let Some(grant) = task.grant.take() {
            link.room.give_back(grant);
        }
        Some(task)
    }

    /// Removes a task, which still has its memory.
    #[inline]
    fn take_task(&mut self, link: &mut Link, id: TaskId) -> Option<Task> {
        let task = self.tasks.remove(id)?;
        link.session.with(|state| {
            if !task.immediate {
                state.window.end();
            }
            if task.progress == Progress::Collecting {
                state.remove_undelivered(id);
            }
        });
        if !task.has_room {
            self.waiting.retain(|&waiting| waiting != id);
        }
        Some(task)
    }

    /// Drops the state that only the lost connection had.
    pub(super) fn forget_connection(&mut self, link: &Link, exp_cmd_sn: SerialNumber) {
        for held in self.held.extract_if(.., |held| !held.cmd_sn.is_before(exp_cmd_sn)) {
            if let Some(grant) = held.grant {
                link.room.give_back(grant);
            }
        }
        if let Some(grant) = self.incoming_grant.take() {
            link.room.give_back(grant);
        }
        self.deferred.clear();
        self.text = Text::default();
        self.ping_tag = RESERVED_TAG;
    }

    /// Takes the command that was being received, if it does not count as received yet.
    pub(super) fn take_unproven(&mut self) -> Option<TaskId> {
        match self.incoming {
            Incoming::Unproven(id) => {
                self.incoming = Incoming::Dropped;
                Some(id)
            }
            _ => None,
        }
    }

    /// Takes the task whose data was being received.
    pub(super) fn take_incoming_task(&mut self) -> Option<TaskId> {
        match std::mem::replace(&mut self.incoming, Incoming::Dropped) {
            Incoming::Command(id) | Incoming::Data(id) => Some(id),
            _ => None,
        }
    }

    /// Removes a task that moves to another connection.
    pub(super) fn give_away(&mut self, link: &Link, id: TaskId) -> Option<Task> {
        let mut task = self.tasks.remove(id)?;
        if let Some(grant) = task.grant.take() {
            link.room.give_back(grant);
        }
        self.waiting.retain(|&waiting| waiting != id);
        self.held_back.retain(|&waiting| waiting != id);
        Some(task)
    }

    /// Removes the tasks and requests of a connection that ends, and its part of the session's state.
    pub(super) fn leave(&mut self, link: &mut Link) {
        let ids: Vec<_> = self.tasks.iter().map(|task| (task.id, task.progress)).collect();
        for (id, progress) in ids {
            match progress {
                Progress::Collecting => drop(self.end_task(link, id)),
                // The layer above uses this memory until it has finished, and keeps the connection until then. The
                // charge ends with the connection.
                _ => drop(self.take_task(link, id)),
            }
            // The layer above may not have received the command yet.
            link.session.with(|state| state.remove_undelivered(id));
        }
        for held in std::mem::take(&mut self.held) {
            link.session.with(|state| state.give_up_place(held.cmd_sn));
            self.forget_data_of(link, held);
        }
        let member = link.session.member();
        link.session.with(|state| state.forget(member));
    }

    /// Continues tasks after sent data has released memory.
    pub(super) fn sent(&mut self, link: &mut Link) {
        link.charge_arena();
        if !self.waiting.is_empty() {
            self.start_waiting(link);
        }
    }

    pub(super) fn withhold(&mut self, id: TaskId) -> Option<[u8; 8]> {
        let task = self.tasks.by_tag(id.initiator_task_tag).filter(|task| task.id == id)?;
        match task.progress {
            Progress::Running => {
                task.progress = Progress::Answering;
                Some(task.lun)
            }
            Progress::Collecting | Progress::Answering | Progress::Aborted(_) => None,
        }
    }

    /// Answers and removes a task that the layer above has completed.
    pub(super) fn complete(
        &mut self,
        link: &mut Link,
        id: TaskId,
        completion: Completion<'_>,
    ) -> AfterRequest {
        let Some(mut task) = self.take_task(link, id) else { return AfterRequest::StayOpen };
        let is_aborted = task.is_aborted();
        match task.progress {
            Progress::Collecting | Progress::Running | Progress::Answering => {
                data_in::push(&mut task, completion, link);
            }
            Progress::Aborted(Ending::Answered) => data_in::push_task_aborted(&mut task, link),
            Progress::Aborted(Ending::Silent) => {}
        }
        if let Some(grant) = task.grant.take() {
            link.room.give_back(grant);
        }
        self.start_waiting(link);
        if !is_aborted {
            link.charge_arena();
            if (link.kept.is_large() || link.kept.bytes() > self.settings.room_limit)
                && self.ping_tag == RESERVED_TAG
            {
                // The reply acknowledges the answers that the initiator has received.
                self.ping(link);
            }
            return AfterRequest::StayOpen;
        }
        let mut after = AfterRequest::StayOpen;
        while let Some(index) = self.barriers.iter_mut().position(|barrier| barrier.passes(id)) {
            let barrier = self.barriers.remove(index);
            if self.pass(link, barrier) == AfterRequest::Close {
                after = AfterRequest::Close;
            }
        }
        after
    }

    /// Continues a request after the tasks that it waited for have ended.
    fn pass(&mut self, link: &mut Link, barrier: Barrier) -> AfterRequest {
        match barrier.into_afterwards() {
            AfterAbort::Answer { initiator_task_tag } => {
                let complete = TaskManagementResponse::FunctionComplete;
                push_response(link, initiator_task_tag, complete);
            }
            AfterAbort::HandOver(management) => {
                self.handed_over += 1;
                link.events.push_back(Event::Management(management));
            }
            AfterAbort::Tell { token } => link.events.push_back(Event::TasksEnded(token)),
            AfterAbort::Logout { initiator_task_tag, whole_session: true }
                if link.session.is_shared() =>
            {
                let logout = Logout { initiator_task_tag, cid: None, for_recovery: false };
                link.events.push_back(Event::Logout(logout));
            }
            AfterAbort::Logout { initiator_task_tag, .. } => {
                push_logout_response(link, initiator_task_tag, LogoutResponse::Closed, false);
                return AfterRequest::Close;
            }
        }
        AfterRequest::StayOpen
    }

    /// Continues a request now, or when the tasks have ended that it waits for.
    pub(super) fn wait_or_pass(&mut self, link: &mut Link, barrier: Barrier) -> AfterRequest {
        if barrier.is_passed() {
            return self.pass(link, barrier);
        }
        self.barriers.push(barrier);
        AfterRequest::StayOpen
    }

    /// Handles a request other than a SCSI command.
    fn handle_request(
        &mut self,
        link: &mut Link,
        header: &RawHeader,
        segment: &[u8],
        environment: &mut dyn Environment,
    ) -> Result<AfterRequest, CloseReason> {
        let discovery = self.admission.session_type == SessionType::Discovery;
        match header.basic().opcode() {
            Opcode::NopOut => self.handle_nop_out(link, header, segment),
            Opcode::TextRequest => {
                let settings = &self.settings;
                self.text.handle(link, header, segment, &self.admission, settings, environment);
            }
            Opcode::LogoutRequest => return Ok(self.handle_logout(link, header)),
            // RFC 7143 §4.3: a discovery session accepts only text and a logout.
            _ if discovery => link.reject(RejectReason::ProtocolError, header),
            // Each request is kept until the tasks that it waits for end, here and in other sessions.
            Opcode::TaskManagementRequest
                if self.barriers.len() + self.handed_over + self.deferred.len()
                    >= self.settings.immediate_limit =>
            {
                link.reject(RejectReason::ImmediateCommandReject, header);
            }
            Opcode::TaskManagementRequest => {
                return Ok(self.handle_task_management(link, header, environment));
            }
            Opcode::SnackRequest => self.handle_snack(link, header),
            Opcode::LoginRequest => {
                link.reject(RejectReason::ProtocolError, header);
                return Err(CloseReason::protocol("a login in the full feature phase", "§6.3"));
            }
            _ => link.reject(RejectReason::CommandNotSupported, header),
        }
        Ok(AfterRequest::StayOpen)
    }

    /// Rejects a text request whose turn it is, if it is invalid: its CmdSN does not count then (RFC 7143 §7.3).
    fn refuses_text(&mut self, link: &mut Link, header: &RawHeader, segment: &Segment) -> bool {
        let request = TextRequest::view(header);
        if header.basic().opcode() != Opcode::TextRequest
            || !link.is_next(SerialNumber(request.cmd_sn.get()))
        {
            return false;
        }
        let bytes = segment.bytes();
        let refusal = self.text.refusal(link, request, bytes, &self.admission, &self.settings);
        if let Some(reason) = refusal {
            self.text.reset();
            link.reject(reason, header);
        }
        refusal.is_some()
    }

    /// Answers a ping, or notes the answer to the target's own ping (RFC 7143 §11.18).
    fn handle_nop_out(&mut self, link: &mut Link, header: &RawHeader, segment: &[u8]) {
        let ping = NopOut::view(header);
        let tag = ping.initiator_task_tag.get();
        if tag == RESERVED_TAG {
            if ping.target_transfer_tag.get() == self.ping_tag {
                self.ping_tag = RESERVED_TAG;
            }
            return;
        }
        let limit = link.parameters.peer_max_recv_data_segment_length as usize;
        let stamp = link.stamp();
        let mut answer = NopIn::from(RawHeader::with_opcode(Opcode::NopIn));
        answer.lun = ping.lun;
        answer.initiator_task_tag = tag.into();
        answer.stat_sn = stamp.stat_sn.into();
        answer.exp_cmd_sn = stamp.exp_cmd_sn.into();
        answer.max_cmd_sn = stamp.max_cmd_sn.into();
        link.answer(answer, &segment[..segment.len().min(limit)]);
    }

    /// Pings the initiator (RFC 7143 §11.19).
    pub(super) fn ping(&mut self, link: &mut Link) {
        self.ping_count = self.ping_count.wrapping_add(1) % RESERVED_TAG;
        self.ping_tag = self.ping_count;
        let stamp = link.peek();
        let mut ping = NopIn::from(RawHeader::with_opcode(Opcode::NopIn));
        ping.initiator_task_tag = RESERVED_TAG.into();
        ping.target_transfer_tag = self.ping_tag.into();
        ping.stat_sn = stamp.stat_sn.into();
        ping.exp_cmd_sn = stamp.exp_cmd_sn.into();
        ping.max_cmd_sn = stamp.max_cmd_sn.into();
        link.output.push(ping, &[]);
    }
}
