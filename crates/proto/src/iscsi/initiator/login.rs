//! The login (RFC 7143 §6.3): security, operational negotiation, full feature phase.
//!
//! Every login begins with the security stage, even if the two sides only agree on AuthMethod=None.

use sarsen_wire::iscsi::pdu::{self, CONTINUE, FINAL, current_stage, next_stage};
use sarsen_wire::iscsi::text::{self, IRRELEVANT, NOT_UNDERSTOOD, REJECT};
use sarsen_wire::iscsi::{
    DEFAULT_DATA_SEGMENT_LENGTH, LoginRequest, LoginResponse, LoginStatus, Opcode, RawHeader, Stage,
};

use super::super::keys::{self, DigestKind, Key, KeyKind, Negotiation, Use};
use super::super::{Output, Parameters};
use super::authentication::Chap;
use super::event::{ConnectionError, LoginError, ProtocolError};
use super::options::{DigestOffer, Join, LoginOptions, SessionTarget};

/// Maximum length of the text of one answer, in bytes.
const TEXT_LIMIT: usize = 64 * 1024;
/// Maximum number of answers in a login. A normal login takes two or three exchanges.
const EXCHANGE_LIMIT: u32 = 64;
/// The tag of every login request. Only one request is open at a time.
const TAG: u32 = 0;

/// The state of the login.
#[derive(Debug)]
enum Step {
    /// The names and AuthMethod=None were sent.
    Security,
    /// The names and AuthMethod=CHAP, or later keys of CHAP, were sent.
    Authentication(Chap),
    /// The operational keys were sent.
    Operational,
}

impl Step {
    const fn stage(&self) -> Stage {
        match self {
            Self::Security | Self::Authentication(_) => Stage::Security,
            Self::Operational => Stage::Operational,
        }
    }

    /// Returns the stage that the next request asks for. `None` stays in the current stage.
    const fn next_stage(&self) -> Option<Stage> {
        match self {
            Self::Authentication(chap) if !chap.may_leave() => None,
            Self::Security | Self::Authentication(_) => Some(Stage::Operational),
            Self::Operational => Some(Stage::FullFeature),
        }
    }
}

/// The result of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The login stays in the same stage.
    Same,
    /// The security stage is complete.
    SecurityPassed,
    /// The login is complete.
    Done,
}

/// A login in progress.
pub(super) struct Login {
    options: LoginOptions,
    step: Step,
    /// Text that is still to be sent. One login request carries a part of it.
    to_send: Vec<u8>,
    /// Text of an incomplete answer.
    received: Vec<u8>,
    tsih: u16,
    /// TargetPortalGroupTag.
    portal_group: Option<u16>,
    /// The existing session that the connection joins.
    join: Option<Join>,
    exchanges: u32,
    /// The operational keys that wait for an answer.
    open_keys: Vec<&'static str>,
}

impl Login {
    /// Creates a login into a new session, or into an existing one.
    pub(super) fn new(options: LoginOptions, join: Option<Join>) -> Self {
        Self {
            options,
            step: Step::Security,
            to_send: Vec::new(),
            received: Vec::new(),
            tsih: join.map_or(0, |join| join.tsih),
            portal_group: None,
            join,
            exchanges: 0,
            open_keys: Vec::new(),
        }
    }

    /// Sends the first request.
    pub(super) fn begin(&mut self, output: &mut Output, cmd_sn: u32) {
        let name = self.options.initiator_name.clone();
        self.add("InitiatorName", &name);
        match self.options.target.clone() {
            SessionTarget::Named(target) => {
                if self.join.is_none() {
                    self.add("SessionType", "Normal");
                }
                self.add("TargetName", &target);
            }
            SessionTarget::Discovery => self.add("SessionType", "Discovery"),
        }
        match self.options.authentication.take() {
            None => self.add("AuthMethod", text::NONE),
            // The initiator offers only CHAP: with credentials configured, it must not log in without authentication.
            Some(authentication) => {
                self.add("AuthMethod", "CHAP");
                self.step = Step::Authentication(Chap::new(authentication));
            }
        }
        self.send(output, cmd_sn, self.join.map_or(0, |join| join.exp_stat_sn));
    }

    /// Returns the target session identifying handle (TSIH).
    pub(super) const fn tsih(&self) -> u16 {
        self.tsih
    }

    /// Returns the tag of the portal group that the target declared (RFC 7143 §13.9).
    pub(super) const fn portal_group(&self) -> Option<u16> {
        self.portal_group
    }

    fn add(&mut self, key: &str, value: &str) {
        add(&mut self.to_send, key, value);
    }

    /// Sends as much text as one request may carry. The request with the last part asks for the next stage.
    fn send(&mut self, output: &mut Output, cmd_sn: u32, exp_stat_sn: u32) {
        let length = self.to_send.len().min(DEFAULT_DATA_SEGMENT_LENGTH as usize);
        let last = length == self.to_send.len();
        let bits = match self.step.next_stage() {
            _ if !last => CONTINUE,
            Some(next) => FINAL | next.0,
            None => 0,
        };
        output.push(self.request(bits, cmd_sn, exp_stat_sn), &self.to_send[..length]);
        self.to_send.drain(..length);
    }

    fn request(&self, bits: u8, cmd_sn: u32, exp_stat_sn: u32) -> LoginRequest {
        let mut header = LoginRequest::from(RawHeader::ZERO);
        header.opcode_byte = Opcode::LoginRequest.0 | pdu::IMMEDIATE;
        header.flags = self.step.stage().0 << 2 | bits;
        header.isid = self.options.isid;
        header.tsih = self.tsih.into();
        header.cid = self.join.map_or(0, |join| join.cid).into();
        header.initiator_task_tag = TAG.into();
        header.cmd_sn = cmd_sn.into();
        header.exp_stat_sn = exp_stat_sn.into();
        header
    }

    /// Handles an answer.
    pub(super) fn handle(
        &mut self,
        response: &LoginResponse,
        segment: &[u8],
        parameters: &mut Parameters,
        output: &mut Output,
        cmd_sn: u32,
    ) -> Result<Progress, ConnectionError> {
        self.exchanges += 1;
        if self.exchanges > EXCHANGE_LIMIT {
            return Err(ProtocolError::LoginTooLong(EXCHANGE_LIMIT).into());
        }
        if response.initiator_task_tag.get() != TAG {
            let tag = response.initiator_task_tag.get();
            let opcode = Opcode::LoginResponse;
            return Err(ProtocolError::UnknownTask { opcode, tag }.into());
        }
        if self.received.len() + segment.len() > TEXT_LIMIT {
            return Err(ProtocolError::TextTooLong { limit: TEXT_LIMIT }.into());
        }
        self.received.extend_from_slice(segment);
        if response.status() != LoginStatus::Success {
            return Err(self.failure(response.status())?.into());
        }
        self.tsih = response.tsih.get();
        let exp_stat_sn = response.stat_sn.get().wrapping_add(1);
        if response.flags & CONTINUE != 0 {
            // RFC 7143 §6.2: the initiator requests the rest of an incomplete answer with an empty request.
            output.push(self.request(0, cmd_sn, exp_stat_sn), &[]);
            return Ok(Progress::Same);
        }
        let text = std::mem::take(&mut self.received);
        self.note_portal_group(&text)?;
        match &mut self.step {
            Step::Security => check_security(&text)?,
            // The target has received only a part of the text that it must answer.
            Step::Authentication(_) if !self.to_send.is_empty() => {}
            Step::Authentication(chap) => {
                for (key, value) in chap.handle(&text)? {
                    add(&mut self.to_send, key, &value);
                }
            }
            Step::Operational => self.apply(&text, parameters)?,
        }
        if response.flags & FINAL == 0 {
            self.send(output, cmd_sn, exp_stat_sn);
            return Ok(Progress::Same);
        }
        self.transit(response.flags, output, cmd_sn, exp_stat_sn, parameters)
    }

    /// A target may declare the tag in any stage.
    fn note_portal_group(&mut self, text: &[u8]) -> Result<(), ConnectionError> {
        for pair in text::pairs(text) {
            if let ("TargetPortalGroupTag", tag) = pair? {
                self.portal_group = tag.parse().ok();
            }
        }
        Ok(())
    }

    fn transit(
        &mut self,
        flags: u8,
        output: &mut Output,
        cmd_sn: u32,
        exp_stat_sn: u32,
        parameters: &mut Parameters,
    ) -> Result<Progress, ConnectionError> {
        // The initiator does not trust a target that moves to the next stage before it has authenticated.
        if matches!(&self.step, Step::Authentication(chap) if !chap.is_over()) {
            return Err(ProtocolError::LoginStage.into());
        }
        match (self.step.stage(), current_stage(flags), next_stage(flags)) {
            (Stage::Security, Stage::Security, Stage::Operational) => {
                self.step = Step::Operational;
                parameters.local_max_recv_data_segment_length =
                    self.options.max_recv_data_segment_length;
                self.to_send.clear();
                let keys = match self.join {
                    None => self.options.operational(),
                    Some(_) => self.options.operational_of_connection(),
                };
                for (key, value) in keys {
                    self.add(key, &value);
                    self.open_keys.push(key);
                }
                self.send(output, cmd_sn, exp_stat_sn);
                Ok(Progress::SecurityPassed)
            }
            (Stage::Operational, Stage::Operational, Stage::FullFeature) => {
                self.check_digests(parameters)?;
                parameters.first_burst_length =
                    parameters.first_burst_length.min(parameters.max_burst_length);
                Ok(Progress::Done)
            }
            _ => Err(ProtocolError::LoginStage.into()),
        }
    }

    fn failure(&self, status: LoginStatus) -> Result<LoginError, ConnectionError> {
        let class = status.0 >> 8;
        let algorithm = match &self.step {
            Step::Authentication(chap) => chap.responded_with(),
            Step::Security | Step::Operational => None,
        };
        Ok(match status {
            LoginStatus::TargetMovedTemporarily | LoginStatus::TargetMovedPermanently => {
                let mut address = String::new();
                for pair in text::pairs(&self.received) {
                    if let ("TargetAddress", value) = pair? {
                        value.clone_into(&mut address);
                    }
                }
                LoginError::Redirected {
                    address,
                    permanent: status == LoginStatus::TargetMovedPermanently,
                }
            }
            LoginStatus::AuthenticationFailure | LoginStatus::AuthorizationFailure => {
                LoginError::Denied { status, algorithm }
            }
            // tgt reports this status if the CHAP response has another length than its own.
            LoginStatus::InitiatorError if algorithm.is_some() => {
                LoginError::Denied { status, algorithm }
            }
            LoginStatus::NotFound | LoginStatus::TargetRemoved => LoginError::NotFound { status },
            _ if class == 3 => LoginError::Unavailable { status },
            _ => LoginError::Refused { status },
        })
    }

    /// Handles answers to our keys and declarations, and answers keys that the target offers.
    fn apply(&mut self, text: &[u8], parameters: &mut Parameters) -> Result<(), ConnectionError> {
        let offer = self.options.as_offer();
        let session_type = self.options.target.session_type();
        for pair in text::pairs(text) {
            let (name, value) = pair?;
            let Some(key) = keys::find(name) else {
                if !matches!(value, NOT_UNDERSTOOD | REJECT | IRRELEVANT) {
                    self.add(name, NOT_UNDERSTOOD);
                }
                continue;
            };
            // RFC 7143 §13: these keys apply to the session. Its first login negotiated them.
            if self.join.is_some() && key.usage == Use::LeadingOnly {
                continue;
            }
            let open = self.open_keys.iter().position(|open| *open == name);
            let declared = matches!(key.kind, KeyKind::DeclaredNumber(..));
            if matches!(value, NOT_UNDERSTOOD | REJECT | IRRELEVANT) {
                // The default remains in use (RFC 7143 §6.2).
                if let Some(open) = open {
                    self.open_keys.swap_remove(open);
                }
                continue;
            }
            // Our offer decides whether an answer is admissible. If the answer is handled as an offer to us, the result
            // must be the answer itself.
            let mut negotiation = Negotiation { offer: &offer, parameters, session_type };
            let result = negotiation.answer(key, value);
            match (open, result) {
                (Some(open), Some(result)) if result == value || is_minimum(key, &result) => {
                    self.open_keys.swap_remove(open);
                }
                (Some(_), None) if declared => {}
                (Some(_), _) => return Err(no_agreement(name, value)),
                (None, Some(result)) => self.add(name, &result),
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn check_digests(&self, parameters: &Parameters) -> Result<(), ConnectionError> {
        for (key, offer, result) in [
            ("HeaderDigest", self.options.header_digest, parameters.header_digest),
            ("DataDigest", self.options.data_digest, parameters.data_digest),
        ] {
            if offer == DigestOffer::Require && result != DigestKind::Crc32c {
                return Err(no_agreement(key, text::NONE));
            }
        }
        Ok(())
    }
}

fn add(to_send: &mut Vec<u8>, key: &str, value: &str) {
    for part in [key, "=", value, "\0"] {
        to_send.extend_from_slice(part.as_bytes());
    }
}

/// Checks AuthMethod. The initiator offered only None, so the target must answer None.
fn check_security(text: &[u8]) -> Result<(), ConnectionError> {
    for pair in text::pairs(text) {
        let (key, value) = pair?;
        if key == "AuthMethod" && value != text::NONE {
            return Err(no_agreement(key, value));
        }
    }
    Ok(())
}

/// Returns whether the key uses the minimum function. A target may answer such a key with its own number although ours
/// is smaller. Our number then applies, and it does not exceed the target's number.
fn is_minimum(key: &Key, result: &str) -> bool {
    matches!(key.kind, KeyKind::Minimum(..)) && result != REJECT
}

fn no_agreement(key: &str, value: &str) -> ConnectionError {
    LoginError::NoAgreement { key: key.to_owned(), value: value.to_owned() }.into()
}
