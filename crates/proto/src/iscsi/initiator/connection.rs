//! The connection: what goes out, what comes in.

use std::collections::VecDeque;

use sarsen_block::{Buffer, Data};
use sarsen_wire::iscsi::pdu::{CONTINUE, FINAL, IMMEDIATE};
use sarsen_wire::iscsi::{
    self, AsyncMessage, DataIn, DataOut, LoginResponse, LogoutReason, LogoutRequest,
    LogoutResponsePdu, NopIn, NopOut, Opcode, R2t, RESERVED_TAG, RawHeader, ScsiCommand,
    ScsiResponse, SerialNumber, TaskManagementFunction, TaskManagementResponse,
    TaskManagementResponsePdu, TextRequest, TextResponse,
};

use super::super::keys::DigestKind;
use super::super::output::Payload;
use super::super::{Frame, Framer, Landing, Output, Parameters, Segment};
use super::event::{Completion, ConnectionError, Event, ProtocolError, Residual};
use super::login::{Login, Progress};
use super::options::LoginOptions;
use super::request::{CommandRequest, ReadLanding, TaskManagement, Token, Transfer};
use super::task::{Aborts, Command, Kind, Movement, Task, Tasks};

/// The answer to a text request is gathered up to this many bytes.
const TEXT_LIMIT: usize = 4 * 1024 * 1024;
/// A target that sends more pings than this while no answer can be sent is cut off.
const PING_LIMIT: u32 = 1024;

/// What the connection does.
enum Phase {
    Login(Box<Login>),
    FullFeature,
    /// A logout was answered: only closing is left.
    LoggedOut,
    Failed(ConnectionError),
}

/// See the module.
pub struct Connection {
    phase: Phase,
    framer: Framer,
    output: Output,
    parameters: Parameters,
    tasks: Tasks,
    events: VecDeque<Event>,
    cmd_sn: SerialNumber,
    max_cmd_sn: SerialNumber,
    exp_stat_sn: SerialNumber,
    /// Pings answered since the output was last empty.
    pings_queued: u32,
}

impl Connection {
    /// Begins a login: its first request waits in the output.
    pub fn new(options: LoginOptions) -> Self {
        let mut output = Output::default();
        let cmd_sn = SerialNumber(1);
        let mut login = Box::new(Login::new(options));
        login.begin(&mut output, cmd_sn.0);
        Self {
            phase: Phase::Login(login),
            framer: Framer::default(),
            output,
            parameters: Parameters::default(),
            tasks: Tasks::default(),
            events: VecDeque::new(),
            cmd_sn,
            max_cmd_sn: cmd_sn,
            exp_stat_sn: SerialNumber(0),
            pings_queued: 0,
        }
    }

    /// What was negotiated; the defaults of the standard before that.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Whether the login is over and no logout was answered.
    pub const fn is_full_feature(&self) -> bool {
        matches!(self.phase, Phase::FullFeature)
    }

    /// Whether a logout was answered: the target will close the connection.
    pub const fn is_logged_out(&self) -> bool {
        matches!(self.phase, Phase::LoggedOut)
    }

    /// Bytes to send; the driver reports with [`Output::sent`] what went out.
    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Requests that have no answer yet.
    pub fn open_requests(&self) -> usize {
        self.tasks.open_count()
    }

    /// How many commands the target takes now.
    pub fn window(&self) -> u32 {
        if !self.is_full_feature() || self.max_cmd_sn.is_before(self.cmd_sn) {
            return 0;
        }
        self.max_cmd_sn.since(self.cmd_sn).saturating_add(1)
    }

    /// Memory that the next bytes of the stream may be received into.
    pub fn landing(&mut self) -> Option<&mut [u8]> {
        self.framer.landing()
    }

    /// `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, count: usize) {
        self.framer.landed(count);
    }

    /// Prepares data for [`Transfer::Write`]; clones of it may serve many commands.
    pub fn payload(&self, data: impl Into<Data>) -> Payload {
        self.output.payload(data.into())
    }

    /// Takes bytes that were received, after those that landed. An error is final.
    pub fn handle_input(&mut self, input: &[u8]) -> Result<(), ConnectionError> {
        if let Phase::Failed(error) = &self.phase {
            return Err(error.clone());
        }
        if self.output.is_empty() {
            self.pings_queued = 0;
        }
        self.take_input(input).inspect_err(|error| self.phase = Phase::Failed(error.clone()))
    }

    fn take_input(&mut self, mut input: &[u8]) -> Result<(), ConnectionError> {
        loop {
            match self.framer.advance(&mut input)? {
                Frame::Starved => return Ok(()),
                Frame::Header => {
                    let landing = self.place()?;
                    self.framer.place(landing);
                }
                Frame::Segment { segment, digest_valid } => {
                    let header = *self.framer.header();
                    if !digest_valid {
                        return Err(ConnectionError::DataDigest(header.basic().opcode()));
                    }
                    self.handle(&header, segment)?;
                }
            }
        }
    }

    /// Where the data segment of the header that just came belongs.
    fn place(&mut self) -> Result<Landing, ConnectionError> {
        let header = self.framer.header();
        let opcode = header.basic().opcode();
        if opcode != Opcode::DataIn {
            return Ok(Landing::Collect);
        }
        let data_in = DataIn::view(header);
        let (tag, offset) = (data_in.initiator_task_tag.get(), data_in.buffer_offset.get());
        let length = data_in.data_segment_length.value();
        let Some(Task { kind: Kind::Command(Command { movement, .. }), .. }) = self.tasks.find(tag)
        else {
            return Err(ProtocolError::UnknownTask { opcode, tag }.into());
        };
        let Movement::Read { expected, received, landing, buffer } = movement else {
            return Err(ProtocolError::UnknownTask { opcode, tag }.into());
        };
        // DataPDUInOrder and DataSequenceInOrder are always negotiated to Yes. A PDU without
        // data says nothing by its offset.
        if length > *expected - *received || (length > 0 && offset != *received) {
            let (expected, total) = (*received, *expected);
            return Err(ProtocolError::DataInPlace { offset, length, expected, total }.into());
        }
        *received += length;
        Ok(match landing {
            _ if length == 0 => Landing::Discard,
            ReadLanding::Discard => Landing::Discard,
            ReadLanding::Buffer => Landing::Into {
                buffer: buffer.take().unwrap_or_else(|| Buffer::for_overwrite(*expected as usize)),
                offset: offset as usize,
            },
        })
    }

    fn handle(&mut self, header: &RawHeader, segment: Segment) -> Result<(), ConnectionError> {
        let opcode = header.basic().opcode();
        if let Phase::Login(login) = &mut self.phase {
            if opcode != Opcode::LoginResponse {
                return Err(ProtocolError::UnexpectedOpcode(opcode).into());
            }
            let response = LoginResponse::view(header);
            self.exp_stat_sn = SerialNumber(response.stat_sn.get()).next();
            let progress = login.handle(
                response,
                segment.bytes(),
                &mut self.parameters,
                &mut self.output,
                self.cmd_sn.0,
            )?;
            match progress {
                Progress::Same => {}
                Progress::SecurityPassed => self.events.push_back(Event::SecurityPassed),
                Progress::Done => {
                    self.max_cmd_sn = SerialNumber(response.max_cmd_sn.get());
                    self.enter_full_feature();
                }
            }
            return Ok(());
        }
        self.note_window(header);
        match opcode {
            Opcode::DataIn => self.handle_data_in(DataIn::view(header), segment),
            Opcode::ScsiResponse => self.handle_response(ScsiResponse::view(header), &segment),
            Opcode::R2t => self.handle_r2t(R2t::view(header)),
            Opcode::NopIn => self.handle_nop(NopIn::view(header)),
            Opcode::TextResponse => self.handle_text(TextResponse::view(header), &segment),
            Opcode::TaskManagementResponse => {
                self.handle_task_management(TaskManagementResponsePdu::view(header))
            }
            Opcode::LogoutResponse => self.handle_logout(LogoutResponsePdu::view(header)),
            Opcode::AsyncMessage => {
                self.handle_async(AsyncMessage::view(header), &segment);
                Ok(())
            }
            Opcode::Reject => {
                self.handle_reject(iscsi::Reject::view(header), &segment);
                Ok(())
            }
            other => Err(ProtocolError::UnexpectedOpcode(other).into()),
        }
    }

    fn enter_full_feature(&mut self) {
        let header_digest = self.parameters.header_digest == DigestKind::Crc32c;
        let data_digest = self.parameters.data_digest == DigestKind::Crc32c;
        self.framer.set_digests(header_digest, data_digest);
        self.framer.set_max_data_segment_length(self.parameters.local_max_recv_data_segment_length);
        self.output.set_digests(header_digest, data_digest);
        self.phase = Phase::FullFeature;
        self.events.push_back(Event::LoggedIn);
    }

    /// MaxCmdSN stands at the same place in everything that a target sends (RFC 7143 §4.2.2.1).
    fn note_window(&mut self, header: &RawHeader) {
        let header = NopIn::view(header);
        let max_cmd_sn = SerialNumber(header.max_cmd_sn.get());
        let exp_cmd_sn = SerialNumber(header.exp_cmd_sn.get());
        if max_cmd_sn.is_after(self.max_cmd_sn) && !max_cmd_sn.next().is_before(exp_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    const fn note_status(&mut self, stat_sn: u32) {
        self.exp_stat_sn = SerialNumber(stat_sn).next();
    }

    /// Sends a command, or gives it back when the window is full or there is no full feature
    /// phase. Returns its tag.
    pub fn command(
        &mut self,
        request: CommandRequest,
        token: Token,
    ) -> Result<u32, CommandRequest> {
        if self.window() == 0 {
            return Err(request);
        }
        let CommandRequest { lun, cdb, attribute, transfer } = request;
        let cmd_sn = self.cmd_sn.take().0;
        let mut header = ScsiCommand::from(RawHeader::ZERO);
        header.opcode_byte = Opcode::ScsiCommand.0;
        header.flags = FINAL | attribute.bits();
        header.lun = lun;
        header.cmd_sn = cmd_sn.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        header.cdb = cdb;
        let (movement, payload) = match transfer {
            Transfer::None => (Movement::None, None),
            Transfer::Read { length, landing } => {
                header.flags |= ScsiCommand::READ;
                header.expected_data_transfer_length = length.into();
                (Movement::Read { expected: length, received: 0, landing, buffer: None }, None)
            }
            Transfer::Write { payload, length } => {
                header.flags |= ScsiCommand::WRITE;
                header.expected_data_transfer_length = length.into();
                let solicited = self.unsolicited(length);
                (Movement::Write { payload: payload.clone(), length, solicited }, Some(payload))
            }
        };
        let kind = Kind::Command(Command { lun, cmd_sn, movement });
        let tag = self.tasks.insert(Task { token, kind });
        header.initiator_task_tag = tag.into();
        match payload {
            None => self.output.push(header, &[]),
            Some(payload) => self.push_write(header, &payload),
        }
        Ok(tag)
    }

    fn immediate(&self, length: u32) -> u32 {
        let parameters = &self.parameters;
        if !parameters.immediate_data {
            return 0;
        }
        length.min(parameters.first_burst_length).min(parameters.peer_max_recv_data_segment_length)
    }

    /// Bytes of a write of `length` that go without being asked for.
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

    /// One sequence of Data-Out: the bytes of `payload` from `offset` to `end`.
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

    fn handle_r2t(&mut self, r2t: &R2t) -> Result<(), ConnectionError> {
        let tag = r2t.initiator_task_tag.get();
        let (offset, wanted) = (r2t.buffer_offset.get(), r2t.desired_data_transfer_length.get());
        let max_burst_length = self.parameters.max_burst_length;
        let Some(Task { kind: Kind::Command(command), .. }) = self.tasks.find(tag) else {
            return Err(ProtocolError::UnknownTask { opcode: Opcode::R2t, tag }.into());
        };
        let Movement::Write { payload, length, solicited } = &mut command.movement else {
            return Err(ProtocolError::UnknownTask { opcode: Opcode::R2t, tag }.into());
        };
        // In order, so that no byte is asked for twice; offset is not above length after this.
        if offset < *solicited
            || wanted == 0
            || wanted > max_burst_length
            || offset > *length
            || wanted > *length - offset
        {
            let total = *length;
            return Err(ProtocolError::R2tRange { offset, length: wanted, total }.into());
        }
        *solicited = offset + wanted;
        let (lun, payload) = (command.lun, payload.clone());
        let transfer_tag = r2t.target_transfer_tag.get();
        self.push_data_out(lun, tag, transfer_tag, &payload, offset, offset + wanted);
        Ok(())
    }

    fn handle_data_in(&mut self, header: &DataIn, segment: Segment) -> Result<(), ConnectionError> {
        let (opcode, tag) = (Opcode::DataIn, header.initiator_task_tag.get());
        // `place` has found the task a moment ago.
        let Some(Task { kind: Kind::Command(command), .. }) = self.tasks.find(tag) else {
            return Err(ProtocolError::UnknownTask { opcode, tag }.into());
        };
        if let (
            Segment::Placed { buffer: landed, .. },
            Movement::Read { landing: ReadLanding::Buffer, buffer, .. },
        ) = (segment, &mut command.movement)
        {
            *buffer = Some(landed);
        }
        if header.flags & DataIn::STATUS == 0 {
            return Ok(());
        }
        self.note_status(header.stat_sn.get());
        let residual = residual(header.flags, header.residual_count.get());
        self.complete(opcode, tag, 0, header.status, residual, Vec::new())
    }

    fn handle_response(
        &mut self,
        header: &ScsiResponse,
        segment: &Segment,
    ) -> Result<(), ConnectionError> {
        self.note_status(header.stat_sn.get());
        // RFC 7143 §11.4.7: sense data follows its length; one that lies about it is cut.
        let sense = match segment.bytes() {
            [high, low, rest @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest[..length.min(rest.len())].to_vec()
            }
            _ => Vec::new(),
        };
        let residual = residual(header.flags, header.residual_count.get());
        let tag = header.initiator_task_tag.get();
        self.complete(Opcode::ScsiResponse, tag, header.response, header.status, residual, sense)
    }

    fn complete(
        &mut self,
        opcode: Opcode,
        tag: u32,
        response: u8,
        status: u8,
        residual: Residual,
        sense: Vec<u8>,
    ) -> Result<(), ConnectionError> {
        let Some(Task { token, kind: Kind::Command(command) }) =
            self.remove_if(tag, |kind| matches!(kind, Kind::Command(_)))
        else {
            return Err(ProtocolError::UnknownTask { opcode, tag }.into());
        };
        let (received, data) = match command.movement {
            Movement::None | Movement::Write { .. } => (0, None),
            Movement::Read { received, landing: ReadLanding::Discard, .. } => (received, None),
            Movement::Read { received, landing: ReadLanding::Buffer, buffer, .. } => {
                let mut data = buffer.unwrap_or_else(|| Buffer::for_overwrite(0));
                data.truncate(received as usize);
                (received, Some(data))
            }
        };
        self.events.push_back(Event::Completed(Completion {
            token,
            response,
            status,
            received,
            residual,
            data,
            sense,
        }));
        Ok(())
    }

    fn remove_if(&mut self, tag: u32, wanted: impl FnOnce(&Kind) -> bool) -> Option<Task> {
        if !wanted(&self.tasks.find(tag)?.kind) {
            return None;
        }
        self.tasks.remove(tag)
    }

    /// Asks whether the target is there; [`Event::Pong`] is the answer.
    pub fn ping(&mut self, token: Token) {
        let tag = self.tasks.insert(Task { token, kind: Kind::Ping });
        self.push_nop_out(tag, RESERVED_TAG, [0; 8]);
    }

    fn push_nop_out(&mut self, tag: u32, transfer_tag: u32, lun: [u8; 8]) {
        let mut header = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
        header.opcode_byte |= IMMEDIATE;
        header.lun = lun;
        header.initiator_task_tag = tag.into();
        header.target_transfer_tag = transfer_tag.into();
        header.cmd_sn = self.cmd_sn.0.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        self.output.push(header, &[]);
    }

    fn handle_nop(&mut self, header: &NopIn) -> Result<(), ConnectionError> {
        let (tag, transfer_tag) =
            (header.initiator_task_tag.get(), header.target_transfer_tag.get());
        if tag != RESERVED_TAG {
            self.note_status(header.stat_sn.get());
            let Some(task) = self.remove_if(tag, |kind| matches!(kind, Kind::Ping)) else {
                return Err(ProtocolError::UnknownTask { opcode: Opcode::NopIn, tag }.into());
            };
            self.events.push_back(Event::Pong { token: task.token });
        }
        if transfer_tag == RESERVED_TAG {
            return Ok(());
        }
        self.pings_queued += 1;
        if self.pings_queued > PING_LIMIT {
            return Err(ProtocolError::PingFlood(PING_LIMIT).into());
        }
        self.push_nop_out(RESERVED_TAG, transfer_tag, header.lun);
        Ok(())
    }

    /// Sends text: pairs of keys and values, each ended by a zero byte, of 8 KiB at most.
    pub fn text(&mut self, text: &[u8], token: Token) {
        let tag = self.tasks.insert(Task { token, kind: Kind::Text { received: Vec::new() } });
        self.push_text(tag, RESERVED_TAG, text);
    }

    fn push_text(&mut self, tag: u32, transfer_tag: u32, text: &[u8]) {
        let mut header = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
        header.opcode_byte |= IMMEDIATE;
        header.initiator_task_tag = tag.into();
        header.target_transfer_tag = transfer_tag.into();
        header.cmd_sn = self.cmd_sn.0.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        self.output.push(header, text);
    }

    fn handle_text(
        &mut self,
        header: &TextResponse,
        segment: &Segment,
    ) -> Result<(), ConnectionError> {
        self.note_status(header.stat_sn.get());
        let tag = header.initiator_task_tag.get();
        let Some(Task { token, kind: Kind::Text { received } }) = self.tasks.find(tag) else {
            return Err(ProtocolError::UnknownTask { opcode: Opcode::TextResponse, tag }.into());
        };
        if received.len() + segment.bytes().len() > TEXT_LIMIT {
            return Err(ProtocolError::TextTooLong { limit: TEXT_LIMIT }.into());
        }
        received.extend_from_slice(segment.bytes());
        let transfer_tag = header.target_transfer_tag.get();
        let goes_on = header.flags & CONTINUE != 0 || header.flags & FINAL == 0;
        if goes_on && transfer_tag != RESERVED_TAG {
            self.push_text(tag, transfer_tag, &[]);
            return Ok(());
        }
        let event = Event::TextDone { token: *token, text: std::mem::take(received) };
        self.tasks.remove(tag);
        self.events.push_back(event);
        Ok(())
    }

    /// Asks for a task management function. False, and nothing is sent, if the task that it is
    /// about is over already.
    pub fn task_management(&mut self, request: TaskManagement, token: Token) -> bool {
        let mut header = iscsi::TaskManagementRequest::from(RawHeader::ZERO);
        header.referenced_task_tag = RESERVED_TAG.into();
        let (function, aborts) = match request {
            TaskManagement::AbortTask(task) => {
                let Some((tag, command)) = self.tasks.command_of(task) else { return false };
                header.lun = command.lun;
                header.referenced_task_tag = tag.into();
                header.ref_cmd_sn = command.cmd_sn.into();
                (TaskManagementFunction::AbortTask, Aborts::Task(tag))
            }
            TaskManagement::AbortTaskSet(lun) => {
                header.lun = lun;
                (TaskManagementFunction::AbortTaskSet, Aborts::Unit(lun))
            }
            TaskManagement::ClearTaskSet(lun) => {
                header.lun = lun;
                (TaskManagementFunction::ClearTaskSet, Aborts::Unit(lun))
            }
            TaskManagement::LogicalUnitReset(lun) => {
                header.lun = lun;
                (TaskManagementFunction::LogicalUnitReset, Aborts::Unit(lun))
            }
            TaskManagement::TargetWarmReset => {
                (TaskManagementFunction::TargetWarmReset, Aborts::All)
            }
            TaskManagement::TargetColdReset => {
                (TaskManagementFunction::TargetColdReset, Aborts::All)
            }
        };
        header.opcode_byte = Opcode::TaskManagementRequest.0 | IMMEDIATE;
        header.flags = FINAL | function.0;
        let tag = self.tasks.insert(Task { token, kind: Kind::TaskManagement { aborts } });
        header.initiator_task_tag = tag.into();
        header.cmd_sn = self.cmd_sn.0.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        self.output.push(header, &[]);
        true
    }

    fn handle_task_management(
        &mut self,
        header: &TaskManagementResponsePdu,
    ) -> Result<(), ConnectionError> {
        self.note_status(header.stat_sn.get());
        let (opcode, tag) = (Opcode::TaskManagementResponse, header.initiator_task_tag.get());
        let Some(Task { token, kind: Kind::TaskManagement { aborts } }) =
            self.remove_if(tag, |kind| matches!(kind, Kind::TaskManagement { .. }))
        else {
            return Err(ProtocolError::UnknownTask { opcode, tag }.into());
        };
        let response = header.response();
        let carried_out = match response {
            TaskManagementResponse::FunctionComplete => true,
            // Responses come in order: had it ended by itself, it would not be open any more.
            TaskManagementResponse::TaskDoesNotExist => matches!(aborts, Aborts::Task(_)),
            _ => false,
        };
        if carried_out {
            let aborted = self.tasks.abort(aborts);
            self.events.extend(aborted.into_iter().map(|token| Event::Aborted { token }));
        }
        self.events.push_back(Event::TaskManagementDone { token, response });
        Ok(())
    }

    /// Asks to end the session; [`Event::LoggedOut`] is the answer.
    pub fn logout(&mut self) {
        let tag = self.tasks.insert(Task { token: Token(0), kind: Kind::Logout });
        let mut header = LogoutRequest::from(RawHeader::ZERO);
        header.opcode_byte = Opcode::LogoutRequest.0 | IMMEDIATE;
        header.flags = FINAL | LogoutReason::CloseSession.0;
        header.initiator_task_tag = tag.into();
        header.cmd_sn = self.cmd_sn.0.into();
        header.exp_stat_sn = self.exp_stat_sn.0.into();
        self.output.push(header, &[]);
    }

    fn handle_logout(&mut self, header: &LogoutResponsePdu) -> Result<(), ConnectionError> {
        self.note_status(header.stat_sn.get());
        let tag = header.initiator_task_tag.get();
        if self.remove_if(tag, |kind| matches!(kind, Kind::Logout)).is_none() {
            return Err(ProtocolError::UnknownTask { opcode: Opcode::LogoutResponse, tag }.into());
        }
        self.phase = Phase::LoggedOut;
        self.events.push_back(Event::LoggedOut { response: header.response() });
        Ok(())
    }

    fn handle_async(&mut self, header: &AsyncMessage, segment: &Segment) {
        self.note_status(header.stat_sn.get());
        let parameters = [header.parameter1, header.parameter2, header.parameter3];
        self.events.push_back(Event::AsyncMessage {
            event: header.event(),
            lun: header.lun,
            parameters: parameters.map(|parameter| parameter.get()),
            data: segment.bytes().to_vec(),
        });
    }

    fn handle_reject(&mut self, header: &iscsi::Reject, segment: &Segment) {
        self.note_status(header.stat_sn.get());
        let token = segment
            .bytes()
            .first_chunk()
            .map(|bytes| RawHeader(*bytes).basic().initiator_task_tag.get())
            .and_then(|tag| self.tasks.find(tag).map(|task| task.token));
        self.events.push_back(Event::Rejected { reason: header.reason(), token });
    }
}

fn residual(flags: u8, count: u32) -> Residual {
    if flags & ScsiResponse::UNDERFLOW != 0 {
        Residual::Underflow(count)
    } else if flags & ScsiResponse::OVERFLOW != 0 {
        Residual::Overflow(count)
    } else {
        Residual::None
    }
}
