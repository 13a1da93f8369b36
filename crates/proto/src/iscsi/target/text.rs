//! Text requests in the full feature phase: SendTargets and late declarations
//! (RFC 7143 §11.10, §11.11, appendix C).

use sarsen_wire::iscsi::pdu::{CONTINUE, FINAL};
use sarsen_wire::iscsi::text::{NOT_UNDERSTOOD, REJECT, pairs};
use sarsen_wire::iscsi::{
    Opcode, RESERVED_TAG, RawHeader, RejectReason, TextRequest, TextResponse,
};

use super::link::Link;
use super::{Admission, Environment, Settings};
use crate::iscsi::keys::{self, KeyKind, Negotiation, SessionType, TargetOffer, Use};
use crate::iscsi::name::canonical;

/// The key of discovery.
const SEND_TARGETS: &str = "SendTargets";

/// Maximum number of keys in one negotiation.
const MAX_KEYS: usize = 256;

/// A text negotiation that has not ended.
struct Exchange {
    initiator_task_tag: u32,
    target_transfer_tag: u32,
    /// Text of the requests with the C bit.
    input: Vec<u8>,
    /// Text that did not fit into the last response.
    output: Vec<u8>,
    /// Keys that the initiator has sent: each is permitted once (RFC 7143 §6.4).
    seen: Vec<String>,
    /// The peer's MaxRecvDataSegmentLength after the end of the negotiation.
    declared: Option<u32>,
}

impl Exchange {
    fn new(initiator_task_tag: u32) -> Self {
        Self {
            initiator_task_tag,
            target_transfer_tag: RESERVED_TAG,
            input: Vec::new(),
            output: Vec::new(),
            seen: Vec::new(),
            declared: None,
        }
    }

    /// Returns whether the target may answer the complete text.
    fn takes(&self, input: &[u8], is_last: bool, session_type: SessionType) -> bool {
        let mut names: Vec<&str> = self.seen.iter().map(String::as_str).collect();
        for pair in pairs(input) {
            let Ok((name, _)) = pair else { return false };
            // RFC 7143 §6.4: a key is permitted once.
            if names.contains(&name) || names.len() >= MAX_KEYS {
                return false;
            }
            names.push(name);
            let has_place = match keys::find(name) {
                // RFC 7143 §4.3: a discovery session accepts only this key.
                _ if session_type == SessionType::Discovery => name == SEND_TARGETS,
                // Declarations of the login are not permitted here.
                Some(key) => key.kind != KeyKind::Declaration || key.usage == Use::Always,
                None => true,
            };
            if !has_place {
                return false;
            }
        }
        !(names.is_empty() && is_last && session_type == SessionType::Discovery)
    }
}

/// The text negotiation of a connection; there is one at a time (RFC 7143 §11.10).
#[derive(Default)]
pub(super) struct Text {
    exchange: Option<Exchange>,
    next_tag: u32,
}

impl Text {
    /// Returns the reason to reject a request, or `None` if the request is valid.
    pub(super) fn refusal(
        &self,
        link: &Link,
        request: &TextRequest,
        segment: &[u8],
        admission: &Admission,
        settings: &Settings,
    ) -> Option<RejectReason> {
        let tag = request.initiator_task_tag.get();
        let transfer_tag = request.target_transfer_tag.get();
        let new = Exchange::new(tag);
        let exchange = match &self.exchange {
            _ if transfer_tag == RESERVED_TAG => &new,
            Some(exchange)
                if exchange.initiator_task_tag == tag
                    && exchange.target_transfer_tag == transfer_tag =>
            {
                exchange
            }
            _ => return Some(RejectReason::ProtocolError),
        };
        // RFC 7143 §6.2: a request for the rest of an answer has no text.
        if !exchange.output.is_empty() && !segment.is_empty() {
            return Some(RejectReason::ProtocolError);
        }
        // An answer may be a thousand times as long as its request. The target rejects requests while too much output
        // is unsent.
        if exchange.input.len() + segment.len() > settings.text_limit
            || link.output.len() > settings.output_limit
        {
            return Some(RejectReason::LongOperationReject);
        }
        let is_last = request.flags & FINAL != 0;
        let is_taken = if request.flags & CONTINUE != 0 {
            !is_last
        } else {
            let input = [&exchange.input, segment].concat();
            exchange.takes(&input, is_last, admission.session_type)
        };
        (!is_taken).then_some(RejectReason::ProtocolError)
    }

    /// Ends the negotiation. No part of it takes effect.
    pub(super) fn reset(&mut self) {
        self.exchange = None;
    }

    pub(super) fn handle(
        &mut self,
        link: &mut Link,
        header: &RawHeader,
        segment: &[u8],
        admission: &Admission,
        settings: &Settings,
        environment: &mut dyn Environment,
    ) {
        let request = TextRequest::view(header);
        if let Some(reason) = self.refusal(link, request, segment, admission, settings) {
            self.reset();
            return link.reject(reason, header);
        }
        let tag = request.initiator_task_tag.get();
        // RFC 7143 §11.10.4: the reserved tag starts a new negotiation and drops the current one.
        let is_new = request.target_transfer_tag.get() == RESERVED_TAG;
        let exchange = self.exchange.take().filter(|_| !is_new);
        let mut exchange = exchange.unwrap_or_else(|| Exchange::new(tag));
        exchange.input.extend_from_slice(segment);
        if request.flags & CONTINUE != 0 {
            return self.continue_with(exchange, request.lun, 0, &[], link);
        }
        let input = std::mem::take(&mut exchange.input);
        answer(&input, &mut exchange, link, admission, &settings.offer, environment);
        let limit = link.parameters.peer_max_recv_data_segment_length as usize;
        if exchange.output.len() > limit {
            let rest = exchange.output.split_off(limit);
            let part = std::mem::replace(&mut exchange.output, rest);
            return self.continue_with(exchange, request.lun, CONTINUE, &part, link);
        }
        if request.flags & FINAL == 0 {
            // The initiator has more text to send.
            let output = std::mem::take(&mut exchange.output);
            return self.continue_with(exchange, request.lun, 0, &output, link);
        }
        let Exchange { output, declared, .. } = exchange;
        push(link, request.lun, tag, RESERVED_TAG, FINAL, &output);
        // RFC 7143 §6.4: negotiated values take effect now.
        if let Some(length) = declared {
            link.parameters.peer_max_recv_data_segment_length = length;
        }
    }

    /// Answers with a new transfer tag, with which the exchange continues.
    fn continue_with(
        &mut self,
        mut exchange: Exchange,
        lun: [u8; 8],
        flags: u8,
        text: &[u8],
        link: &mut Link,
    ) {
        self.next_tag = self.next_tag.wrapping_add(1) % RESERVED_TAG;
        exchange.target_transfer_tag = self.next_tag;
        push(link, lun, exchange.initiator_task_tag, self.next_tag, flags, text);
        self.exchange = Some(exchange);
    }
}

fn push(link: &mut Link, lun: [u8; 8], tag: u32, transfer_tag: u32, flags: u8, text: &[u8]) {
    let stamp = link.stamp();
    let mut response = TextResponse::from(RawHeader::with_opcode(Opcode::TextResponse));
    response.flags = flags;
    response.lun = lun;
    response.initiator_task_tag = tag.into();
    response.target_transfer_tag = transfer_tag.into();
    response.stat_sn = stamp.stat_sn.into();
    response.exp_cmd_sn = stamp.exp_cmd_sn.into();
    response.max_cmd_sn = stamp.max_cmd_sn.into();
    link.answer(response, text);
}

/// Appends the answers to a text that [`Exchange::takes`] has accepted.
fn answer(
    input: &[u8],
    exchange: &mut Exchange,
    link: &Link,
    admission: &Admission,
    offer: &TargetOffer,
    environment: &mut dyn Environment,
) {
    let Exchange { output, seen, declared, .. } = exchange;
    let mut say = |name: &str, value: &str| {
        for part in [name, "=", value, "\0"] {
            output.extend_from_slice(part.as_bytes());
        }
    };
    for (name, value) in pairs(input).flatten() {
        seen.push(name.to_owned());
        match keys::find(name) {
            None => say(name, NOT_UNDERSTOOD),
            Some(_) if name == SEND_TARGETS => {
                let only = match (admission.session_type, value) {
                    (SessionType::Discovery, "All") => None,
                    // RFC 7143 appendix C: All is permitted only in a discovery session.
                    (SessionType::Normal, "All") => {
                        say(name, REJECT);
                        continue;
                    }
                    (SessionType::Normal, "") => admission.target_name.as_deref(),
                    (SessionType::Discovery, "") => Some(""),
                    // RFC 7143 appendix C: the value is All, an iSCSI name or nothing.
                    (_, other) if canonical(other).is_none() => {
                        say(name, REJECT);
                        continue;
                    }
                    (_, target) => Some(target),
                };
                let hidden = admission.session_type == SessionType::Normal
                    && only != admission.target_name.as_deref();
                if hidden {
                    continue;
                }
                for target in environment.targets(admission, only) {
                    say("TargetName", &target.name);
                    for address in &target.addresses {
                        say("TargetAddress", address);
                    }
                }
            }
            Some(key) if key.usage == Use::Always => {
                let mut parameters = link.parameters.clone();
                let session_type = admission.session_type;
                let mut negotiation =
                    Negotiation { offer, parameters: &mut parameters, session_type };
                if let Some(answer) = negotiation.answer(key, value) {
                    say(name, &answer);
                } else if matches!(key.kind, KeyKind::DeclaredNumber(..)) {
                    *declared = Some(parameters.peer_max_recv_data_segment_length);
                }
            }
            Some(_) => say(name, REJECT),
        }
    }
}
