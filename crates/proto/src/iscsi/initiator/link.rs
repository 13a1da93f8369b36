//! One connection: its byte stream, its login, and the handling of each PDU.

use sarsen_block::Buffer;
use sarsen_wire::iscsi::{
    self, AsyncMessage, DataIn, LoginResponse, LogoutResponsePdu, NopIn, Opcode, R2t, RawHeader,
    ScsiResponse, SerialNumber, TaskManagementResponsePdu, TextResponse,
};

use super::super::keys::DigestKind;
use super::super::{Frame, Framer, Landing, Output, Parameters, Segment};
use super::core::Core;
use super::event::{ConnectionError, Event, ProtocolError};
use super::login::{Login, Progress};
use super::options::{Join, LoginOptions};
use super::reception::Arrival;
use super::recovery::LinkRecovery;
use super::request::{Cid, ReadLanding};
use super::task::DataTransfer;

/// The phase of a connection.
pub(super) enum Phase {
    Login(Box<Login>),
    FullFeature,
    /// A logout was answered. The connection must only be closed.
    LoggedOut,
    Failed(ConnectionError),
}

/// One connection. See the module.
pub(super) struct Link {
    pub(super) cid: u16,
    pub(super) phase: Phase,
    pub(super) framer: Framer,
    pub(super) output: Output,
    pub(super) parameters: Parameters,
    pub(super) exp_stat_sn: SerialNumber,
    /// Number of pings answered since the output was last empty.
    pub(super) pings_queued: u32,
    /// State for recovery, at ErrorRecoveryLevel 1 and above.
    pub(super) recovery: Option<Box<LinkRecovery>>,
    /// Target session identifying handle (TSIH).
    pub(super) tsih: u16,
    /// TargetPortalGroupTag.
    pub(super) portal_group: Option<u16>,
    /// Whether the login was completed at some time.
    pub(super) was_full_feature: bool,
    /// Whether the connection accepts no further commands. It is logged out when the last command has ended.
    pub(super) is_leaving: bool,
    pub(super) is_reassigning: bool,
}

impl Link {
    /// Begins a login. The negotiated parameters of the session already apply to a connection that joins it.
    pub(super) fn new(
        options: LoginOptions,
        join: Option<Join>,
        session: Parameters,
        core: &Core,
    ) -> Self {
        let of_connection = Parameters::default();
        let parameters = Parameters {
            header_digest: of_connection.header_digest,
            data_digest: of_connection.data_digest,
            local_max_recv_data_segment_length: of_connection.local_max_recv_data_segment_length,
            peer_max_recv_data_segment_length: of_connection.peer_max_recv_data_segment_length,
            ..session
        };
        let mut output = Output::default();
        let mut login = Box::new(Login::new(options, join));
        login.begin(&mut output, core.cmd_sn.0);
        Self {
            cid: join.map_or(0, |join| join.cid),
            phase: Phase::Login(login),
            framer: Framer::default(),
            output,
            parameters,
            exp_stat_sn: SerialNumber(0),
            pings_queued: 0,
            recovery: None,
            tsih: join.map_or(0, |join| join.tsih),
            portal_group: None,
            was_full_feature: false,
            is_leaving: false,
            is_reassigning: false,
        }
    }

    pub(super) const fn takes_commands(&self) -> bool {
        self.is_full_feature() && !self.is_leaving
    }

    pub(super) const fn is_full_feature(&self) -> bool {
        matches!(self.phase, Phase::FullFeature)
    }

    pub(super) const fn is_logged_out(&self) -> bool {
        matches!(self.phase, Phase::LoggedOut)
    }

    /// Handles received bytes that follow those in `landing`. An error is final.
    pub(super) fn handle_input(
        &mut self,
        core: &mut Core,
        input: &[u8],
    ) -> Result<(), ConnectionError> {
        if let Phase::Failed(error) = &self.phase {
            return Err(error.clone());
        }
        if self.output.is_empty() {
            self.pings_queued = 0;
        }
        self.take_input(core, input).inspect_err(|error| self.phase = Phase::Failed(error.clone()))
    }

    fn take_input(&mut self, core: &mut Core, mut input: &[u8]) -> Result<(), ConnectionError> {
        loop {
            match self.framer.advance(&mut input)? {
                Frame::Starved => return Ok(()),
                Frame::Header => {
                    let landing = self.place(core)?;
                    self.framer.place(landing);
                }
                Frame::Segment { segment, digest_valid } => {
                    let header = *self.framer.header();
                    if digest_valid {
                        self.handle(core, &header, segment)?;
                    } else if self.recovery.is_some() {
                        self.handle_damaged(core, &header, segment)?;
                    } else {
                        return Err(ConnectionError::DataDigest(header.basic().opcode()));
                    }
                }
            }
        }
    }

    /// Returns the destination of the data segment of the last header.
    fn place(&mut self, core: &mut Core) -> Result<Landing, ConnectionError> {
        let header = self.framer.header();
        let opcode = header.basic().opcode();
        if opcode != Opcode::DataIn {
            return Ok(Landing::Collect);
        }
        let data_in = DataIn::view(header);
        let (tag, offset) = (data_in.initiator_task_tag.get(), data_in.buffer_offset.get());
        let length = data_in.data_segment_length.value();
        let unknown = ProtocolError::UnknownTask { opcode, tag };
        let Some(command) = core.tasks.command(tag, self.cid) else {
            return if core.tolerant { Ok(Landing::Discard) } else { Err(unknown.into()) };
        };
        let DataTransfer::Read { expected, received, landing, buffer } = &mut command.movement
        else {
            return Err(unknown.into());
        };
        let (at, total) = (*received, *expected);
        let misplaced = ProtocolError::DataInPlace { offset, length, expected: at, total };
        match &command.recovery {
            None => {
                // DataPDUInOrder and DataSequenceInOrder are always negotiated to Yes. The offset of a PDU without data
                // has no meaning.
                if length > total - at || (length > 0 && offset != at) {
                    return Err(misplaced.into());
                }
                *received += length;
            }
            Some(recovery) => {
                let arrival = Arrival { data_sn: data_in.data_sn.get(), offset, length };
                if recovery.reception.is_duplicate(arrival.data_sn) {
                    return Ok(Landing::Discard);
                }
                recovery.reception.check(arrival, at, total).map_err(|_| misplaced)?;
            }
        }
        Ok(match landing {
            _ if length == 0 => Landing::Discard,
            ReadLanding::Discard => Landing::Discard,
            ReadLanding::Buffer => Landing::Into {
                buffer: buffer.take().unwrap_or_else(|| Buffer::for_overwrite(total as usize)),
                offset: offset as usize,
            },
        })
    }

    fn handle(
        &mut self,
        core: &mut Core,
        header: &RawHeader,
        segment: Segment,
    ) -> Result<(), ConnectionError> {
        let opcode = header.basic().opcode();
        if let Phase::Login(_) = &self.phase {
            if opcode != Opcode::LoginResponse {
                return Err(ProtocolError::UnexpectedOpcode(opcode).into());
            }
            return self.handle_login(core, LoginResponse::view(header), &segment);
        }
        note_window_of(core, header);
        match opcode {
            Opcode::DataIn => self.handle_data_in(core, header, segment),
            Opcode::ScsiResponse => {
                self.handle_response(core, ScsiResponse::view(header), &segment)
            }
            Opcode::R2t => self.handle_r2t(core, R2t::view(header)),
            Opcode::NopIn => self.handle_nop(core, NopIn::view(header)),
            Opcode::TextResponse => self.handle_text(core, TextResponse::view(header), &segment),
            Opcode::TaskManagementResponse => {
                self.handle_task_management(core, TaskManagementResponsePdu::view(header))
            }
            Opcode::LogoutResponse => self.handle_logout(core, LogoutResponsePdu::view(header)),
            Opcode::AsyncMessage => self.handle_async(core, AsyncMessage::view(header), &segment),
            Opcode::Reject => self.handle_reject(core, iscsi::Reject::view(header), &segment),
            other => Err(ProtocolError::UnexpectedOpcode(other).into()),
        }
    }

    fn handle_login(
        &mut self,
        core: &mut Core,
        response: &LoginResponse,
        segment: &Segment,
    ) -> Result<(), ConnectionError> {
        // Whether this is the first login of the session.
        let leads = self.tsih == 0;
        let Phase::Login(login) = &mut self.phase else { unreachable!("the phase was looked at") };
        self.exp_stat_sn = SerialNumber(response.stat_sn.get()).next();
        let progress = login.handle(
            response,
            segment.bytes(),
            &mut self.parameters,
            &mut self.output,
            core.cmd_sn.0,
        )?;
        match progress {
            Progress::Same => {}
            Progress::SecurityPassed if leads => {
                core.events.push_back(Event::SecurityPassed);
            }
            Progress::SecurityPassed => {}
            Progress::Done => {
                let (tsih, portal_group) = (login.tsih(), login.portal_group());
                if leads {
                    // The window may be closed at first.
                    core.max_cmd_sn = SerialNumber(response.max_cmd_sn.get());
                    core.events.push_back(Event::LoggedIn);
                } else {
                    note_window(core, response.exp_cmd_sn.get(), response.max_cmd_sn.get());
                    core.events.push_back(Event::Joined { connection: Cid(self.cid) });
                }
                (self.tsih, self.portal_group) = (tsih, portal_group);
                self.enter_full_feature();
            }
        }
        Ok(())
    }

    fn enter_full_feature(&mut self) {
        let header_digest = self.parameters.header_digest == DigestKind::Crc32c;
        let data_digest = self.parameters.data_digest == DigestKind::Crc32c;
        self.framer.set_digests(header_digest, data_digest);
        self.framer.set_max_data_segment_length(self.parameters.local_max_recv_data_segment_length);
        self.output.set_digests(header_digest, data_digest);
        if self.parameters.error_recovery_level > 0 {
            self.recovery = Some(Box::new(LinkRecovery::new(self.exp_stat_sn)));
        }
        self.was_full_feature = true;
        self.phase = Phase::FullFeature;
    }
}

/// Updates the window. ExpCmdSN and MaxCmdSN are at the same offsets in every PDU of a target.
pub(super) fn note_window_of(core: &mut Core, header: &RawHeader) {
    let header = NopIn::view(header);
    note_window(core, header.exp_cmd_sn.get(), header.max_cmd_sn.get());
}

/// Updates the window (RFC 7143 §4.2.2.1). Over another connection, an older value may arrive later.
fn note_window(core: &mut Core, exp_cmd_sn: u32, max_cmd_sn: u32) {
    let (exp_cmd_sn, max_cmd_sn) = (SerialNumber(exp_cmd_sn), SerialNumber(max_cmd_sn));
    if max_cmd_sn.next().is_before(exp_cmd_sn) {
        return;
    }
    if max_cmd_sn.is_after(core.max_cmd_sn) {
        core.max_cmd_sn = max_cmd_sn;
    }
    if exp_cmd_sn.is_after(core.exp_cmd_sn) && !exp_cmd_sn.is_after(core.cmd_sn) {
        core.exp_cmd_sn = exp_cmd_sn;
    }
}
