//! The login phase (RFC 7143 §6.3, §11.12, §11.13).

use std::sync::Arc;

use sarsen_wire::iscsi::pdu::{CONTINUE, FINAL, current_stage, next_stage};
use sarsen_wire::iscsi::text::{self, IRRELEVANT, NOT_UNDERSTOOD, REJECT};
use sarsen_wire::iscsi::{
    DEFAULT_DATA_SEGMENT_LENGTH, Isid, LoginRequest, LoginResponse, LoginStatus, Opcode, RawHeader,
    SerialNumber, Stage,
};

use super::authentication::Authentication;
use super::link::Link;
use super::session::{Session, SharedHold};
use super::{Admission, CloseReason, Environment, Refusal, RefusalReason, Settings};
use crate::iscsi::keys::{self, KeyKind, Negotiation, SessionType, Use};
use crate::iscsi::name;

/// Maximum number of keys of a login.
const MAX_KEYS: usize = 256;
/// Maximum number of requests of a login, so that every negotiation ends.
const MAX_REQUESTS: usize = 64;
/// The key whose value MaxBurstLength limits.
const FIRST_BURST_LENGTH: &str = "FirstBurstLength";
/// The version of the protocol (RFC 7143 §11.12.4).
const VERSION: u8 = 0;

/// The state of a login.
pub(super) struct Login {
    /// Fields of the first request, which later ones must repeat.
    first: Option<First>,
    stage: Stage,
    session_type: SessionType,
    initiator_name: Option<String>,
    target_name: Option<String>,
    admission: Option<Admission>,
    authentication: Authentication,
    /// TargetAlias. Sent after the authentication.
    alias: Option<String>,
    /// Keys that were sent already: no key is negotiated twice (RFC 7143 §6.3).
    seen: Vec<String>,
    /// Text of requests with the C bit, until the last one arrives.
    partial: Vec<u8>,
    /// Answers that wait to be sent.
    answers: Vec<u8>,
    declared_segment_length: bool,
    request_count: usize,
    /// Header of the response that [`Login::finish`] sends.
    pending: Option<LoginResponse>,
    /// The session that the connection joins with that response.
    joined: Option<Arc<Session>>,
}

#[derive(Clone, Copy)]
struct First {
    isid: Isid,
    tsih: u16,
    cid: u16,
    initiator_task_tag: u32,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            first: None,
            stage: Stage::Security,
            session_type: SessionType::Normal,
            initiator_name: None,
            target_name: None,
            admission: None,
            authentication: Authentication::default(),
            alias: None,
            seen: Vec::new(),
            partial: Vec::new(),
            answers: Vec::new(),
            declared_segment_length: false,
            request_count: 0,
            pending: None,
            joined: None,
        }
    }
}

/// The result of a login request.
pub(super) enum LoginStep {
    /// A response was queued, and the target expects the next request.
    Continue,
    /// The negotiation is complete, and the last response waits for the session.
    Establish(Admission),
    /// The refusal was queued.
    Refused(Refusal),
}

impl Login {
    pub(super) fn handle_pdu(
        &mut self,
        header: &RawHeader,
        segment: &[u8],
        settings: &Settings,
        link: &mut Link,
        environment: &mut dyn Environment,
    ) -> Result<LoginStep, CloseReason> {
        if header.basic().opcode() != Opcode::LoginRequest {
            // RFC 7143 §6.3: before a login, anything else is a protocol error.
            return Err(CloseReason::protocol("a request before the login", "§6.3"));
        }
        let request = LoginRequest::view(header);
        if self.first.is_none() {
            let cmd_sn = SerialNumber(request.cmd_sn.get());
            self.first = Some(First {
                isid: request.isid,
                tsih: request.tsih.get(),
                cid: request.cid.get(),
                initiator_task_tag: request.initiator_task_tag.get(),
            });
            self.stage = current_stage(request.flags);
            let stat_sn = SerialNumber(request.exp_stat_sn.get());
            link.begin(cmd_sn, stat_sn, settings.command_window);
        }
        match self.negotiate(request, segment, settings, link, environment) {
            Ok(step) => Ok(step),
            Err(refusal) => {
                self.push_refusal(request.flags & 0x0c, &refusal, link);
                Ok(LoginStep::Refused(refusal))
            }
        }
    }

    fn negotiate(
        &mut self,
        request: &LoginRequest,
        segment: &[u8],
        settings: &Settings,
        link: &mut Link,
        environment: &mut dyn Environment,
    ) -> Result<LoginStep, Refusal> {
        self.check_header(request)?;
        if self.partial.len() + segment.len() > settings.text_limit {
            return Err(RefusalReason::OutOfResources.into());
        }
        self.partial.extend_from_slice(segment);
        if request.flags & CONTINUE != 0 {
            // RFC 7143 §11.12.2: with C, T must be 0; an empty response asks for the rest.
            if request.flags & FINAL != 0 {
                return Err(RefusalReason::Malformed.into());
            }
            self.push_response(request.flags & 0x0c, LoginStatus::Success, 0, &[], link);
            return Ok(LoginStep::Continue);
        }
        let text = std::mem::take(&mut self.partial);
        self.handle_text(&text, settings, link)?;
        if self.admission.is_none() {
            self.admit(request, environment)?;
        }
        self.authenticate(request, environment)?;
        if self.stage == Stage::Operational && !self.declared_segment_length {
            self.declared_segment_length = true;
            let length = settings.offer.max_recv_data_segment_length;
            link.parameters.local_max_recv_data_segment_length = length;
            self.push_answer("MaxRecvDataSegmentLength", &length.to_string());
        }
        self.respond(request, link, environment)
    }

    fn check_header(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
        self.request_count += 1;
        let first = self.first.ok_or(RefusalReason::Malformed)?;
        if request.version_min > VERSION {
            return Err(RefusalReason::UnsupportedVersion.into());
        }
        let repeats = request.isid == first.isid
            && request.tsih.get() == first.tsih
            && request.cid.get() == first.cid
            && request.initiator_task_tag.get() == first.initiator_task_tag;
        let stage = current_stage(request.flags);
        let transit = request.flags & FINAL != 0;
        let next = next_stage(request.flags);
        let stages_valid = matches!(stage, Stage::Security | Stage::Operational)
            && stage == self.stage
            && (!transit || (next.0 > stage.0 && next != Stage(2)));
        if !repeats || !stages_valid || self.request_count > MAX_REQUESTS {
            return Err(RefusalReason::Malformed.into());
        }
        Ok(())
    }

    fn handle_text(
        &mut self,
        text: &[u8],
        settings: &Settings,
        link: &mut Link,
    ) -> Result<(), Refusal> {
        let mut first_burst_length = None;
        for pair in text::pairs(text) {
            let (name, value) = pair.map_err(|_| RefusalReason::Malformed)?;
            if self.seen.iter().any(|seen| seen == name) || self.seen.len() >= MAX_KEYS {
                return Err(RefusalReason::Malformed.into());
            }
            self.seen.push(name.to_owned());
            if name == FIRST_BURST_LENGTH {
                first_burst_length = Some(value);
            } else {
                self.handle_key(name, value, settings, link)?;
            }
        }
        // RFC 7143 §13.14: its value depends on MaxBurstLength, which may follow it in the text.
        match first_burst_length {
            Some(value) => self.handle_key(FIRST_BURST_LENGTH, value, settings, link),
            None => Ok(()),
        }
    }

    fn handle_key(
        &mut self,
        name: &str,
        value: &str,
        settings: &Settings,
        link: &mut Link,
    ) -> Result<(), Refusal> {
        let Some(key) = keys::find(name) else {
            self.push_answer(name, NOT_UNDERSTOOD);
            return Ok(());
        };
        match name {
            // RFC 7143 §6.3: the first request contains these keys, and later requests cannot change them.
            "InitiatorName" | "TargetName" | "SessionType" if self.admission.is_some() => {
                return Err(RefusalReason::Malformed.into());
            }
            "InitiatorName" => self.initiator_name = Some(valid_name(value)?),
            "TargetName" => self.target_name = Some(valid_name(value)?),
            "SessionType" => {
                self.session_type = match value {
                    "Normal" => SessionType::Normal,
                    "Discovery" => SessionType::Discovery,
                    _ => return Err(RefusalReason::UnknownSessionType.into()),
                }
            }
            _ if key.kind == KeyKind::Authentication => {
                // RFC 7143 §13.1.1: only in the security stage.
                if self.stage != Stage::Security {
                    return Err(RefusalReason::Malformed.into());
                }
                self.authentication.take(name, value)?;
            }
            _ if key.usage == Use::FullFeature => self.push_answer(name, REJECT),
            _ if key.usage == Use::LeadingOnly
                && self.first.is_some_and(|first| first.tsih != 0) =>
            {
                self.push_answer(name, IRRELEVANT);
            }
            _ if key.kind == KeyKind::TargetDeclaration => {
                return Err(RefusalReason::Malformed.into());
            }
            _ => {
                let answer = Negotiation {
                    offer: &settings.offer,
                    parameters: &mut link.parameters,
                    session_type: self.session_type,
                }
                .answer(key, value);
                if let Some(answer) = answer {
                    self.push_answer(name, &answer);
                }
            }
        }
        Ok(())
    }

    /// Checks that the complete first request names the initiator and the target (RFC 7143 §6.3), and that the
    /// environment permits the login.
    fn admit(
        &mut self,
        request: &LoginRequest,
        environment: &mut dyn Environment,
    ) -> Result<(), Refusal> {
        let initiator_name = self.initiator_name.clone().ok_or(RefusalReason::MissingParameter)?;
        if self.session_type == SessionType::Normal && self.target_name.is_none() {
            return Err(RefusalReason::MissingParameter.into());
        }
        let admission = Admission {
            initiator_name,
            isid: request.isid,
            tsih: request.tsih.get(),
            cid: request.cid.get(),
            session_type: self.session_type,
            target_name: self.target_name.clone(),
            account: None,
        };
        let login_context = environment.admit(&admission)?;
        if self.session_type == SessionType::Normal {
            self.push_answer("TargetPortalGroupTag", &login_context.portal_group_tag.to_string());
            self.alias = login_context.alias;
        }
        self.authentication.begin(login_context.requirement, &admission, environment)?;
        self.admission = Some(admission);
        Ok(())
    }

    /// Continues the authentication.
    fn authenticate(
        &mut self,
        request: &LoginRequest,
        environment: &mut dyn Environment,
    ) -> Result<(), Refusal> {
        let admission = self.admission.as_mut().ok_or(RefusalReason::Malformed)?;
        let answers = self.authentication.advance(admission, environment)?;
        if self.authentication.is_over() {
            if let Some(alias) = self.alias.take() {
                self.push_answer("TargetAlias", &alias);
            }
        } else if self.stage != Stage::Security
            || (answers.is_empty() && request.flags & FINAL != 0)
        {
            // RFC 7143 §6.3.2: the login cannot leave the security stage without authentication. If the initiator
            // sets T too early in a correct exchange, the response is without T instead.
            return Err(RefusalReason::ProofMissing.into());
        }
        for (name, value) in answers {
            self.push_answer(name, &value);
        }
        Ok(())
    }

    /// Sends as many answers as one PDU holds, and changes the stage after all answers are sent.
    fn respond(
        &mut self,
        request: &LoginRequest,
        link: &mut Link,
        environment: &mut dyn Environment,
    ) -> Result<LoginStep, Refusal> {
        let limit = DEFAULT_DATA_SEGMENT_LENGTH as usize;
        let stage_bits = request.flags & 0x0c;
        if self.answers.len() > limit {
            let rest = self.answers.split_off(limit);
            let part = std::mem::replace(&mut self.answers, rest);
            self.push_response(stage_bits | CONTINUE, LoginStatus::Success, 0, &part, link);
            return Ok(LoginStep::Continue);
        }
        let answers = std::mem::take(&mut self.answers);
        if request.flags & FINAL == 0 || !self.authentication.is_over() {
            self.push_response(stage_bits, LoginStatus::Success, 0, &answers, link);
            return Ok(LoginStep::Continue);
        }
        let next = next_stage(request.flags);
        let flags = FINAL | stage_bits | next.0;
        if next != Stage::FullFeature {
            self.stage = next;
            self.push_response(flags, LoginStatus::Success, 0, &answers, link);
            return Ok(LoginStep::Continue);
        }
        self.check_integrity(link)?;
        let admission = self.admission.clone().ok_or(RefusalReason::Malformed)?;
        if admission.tsih != 0 {
            // The target reports nothing about the session before its initiator has authenticated.
            self.joined = Some(environment.session(&admission)?);
        }
        self.pending = Some(self.response(flags, LoginStatus::Success, 0));
        self.answers = answers;
        Ok(LoginStep::Establish(admission))
    }

    /// Compares the keys when all are known, before any takes effect (RFC 7143 §6.2).
    fn check_integrity(&self, link: &Link) -> Result<(), RefusalReason> {
        let is_negotiated = self.seen.iter().any(|seen| seen == FIRST_BURST_LENGTH);
        let parameters = &link.parameters;
        if is_negotiated && parameters.first_burst_length > parameters.max_burst_length {
            Err(RefusalReason::Malformed)
        } else {
            Ok(())
        }
    }

    /// Sends the last response for the established session. Returns the admission.
    pub(super) fn finish(mut self, tsih: u16, link: &mut Link) -> Admission {
        if let Some(session) = self.joined.take() {
            // From now on, the CmdSNs of the session and the parameters of its leading login apply.
            link.session = SharedHold::join(&session);
            link.parameters.adopt_session_wide(session.parameters());
        }
        let mut response = self.pending.take().expect("a login that waits has its answer ready");
        response.tsih = tsih.into();
        let answers = std::mem::take(&mut self.answers);
        send(response, &answers, link);
        self.admission.take().expect("a login that waits knows who it is")
    }

    /// Sends a refusal instead of the last response.
    pub(super) fn refuse(&mut self, refusal: &Refusal, link: &mut Link) {
        self.push_refusal(self.stage.0 << 2, refusal, link);
    }

    /// Sends a refusal. A redirection contains TargetAddress (RFC 7143 §11.13.5).
    fn push_refusal(&self, stage_bits: u8, refusal: &Refusal, link: &mut Link) {
        let text = match &refusal.target_address {
            Some(address) => format!("TargetAddress={address}\0"),
            None => String::new(),
        };
        self.push_response(stage_bits, refusal.reason.status(), 0, text.as_bytes(), link);
    }

    fn push_answer(&mut self, name: &str, value: &str) {
        for part in [name, "=", value, "\0"] {
            self.answers.extend_from_slice(part.as_bytes());
        }
    }

    fn response(&self, flags: u8, status: LoginStatus, tsih: u16) -> LoginResponse {
        let mut response = LoginResponse::from(RawHeader::with_opcode(Opcode::LoginResponse));
        response.flags = flags;
        response.version_max = VERSION;
        response.version_active = VERSION;
        if let Some(first) = self.first {
            response.isid = first.isid;
            response.initiator_task_tag = first.initiator_task_tag.into();
            response.tsih = if tsih == 0 { first.tsih } else { tsih }.into();
        }
        response.reserved = 0.into();
        response.status = status.0.into();
        response
    }

    fn push_response(
        &self,
        flags: u8,
        status: LoginStatus,
        tsih: u16,
        text: &[u8],
        link: &mut Link,
    ) {
        send(self.response(flags, status, tsih), text, link);
    }
}

fn send(mut response: LoginResponse, text: &[u8], link: &mut Link) {
    // RFC 7143 §11.13.4: StatSN also advances during login.
    let stamp = link.stamp();
    response.stat_sn = stamp.stat_sn.into();
    response.exp_cmd_sn = stamp.exp_cmd_sn.into();
    response.max_cmd_sn = stamp.max_cmd_sn.into();
    link.output.push(response, text);
}

fn valid_name(value: &str) -> Result<String, RefusalReason> {
    name::canonical(value).ok_or(RefusalReason::InvalidName)
}
