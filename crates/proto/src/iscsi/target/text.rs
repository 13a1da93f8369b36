//! Text requests in the full feature phase: SendTargets and late declarations
//! (RFC 7143 §11.10, §11.11, appendix C).

use sarsen_wire::iscsi::pdu::{CONTINUE, FINAL};
use sarsen_wire::iscsi::text::{NOT_UNDERSTOOD, REJECT, pairs};
use sarsen_wire::iscsi::{
    Opcode, RESERVED_TAG, RawHeader, RejectReason, TextRequest, TextResponse,
};

use super::link::Link;
use super::{Admission, Environment, Settings};
use crate::iscsi::keys::{self, Kind, Negotiation, SessionType, TargetOffer, Use};

/// A text negotiation that has not ended.
pub(super) struct Exchange {
    initiator_task_tag: u32,
    target_transfer_tag: u32,
    /// What came with the C bit.
    input: Vec<u8>,
    /// What did not fit the last response.
    output: Vec<u8>,
}

/// The text negotiation of a connection; there is one at a time (RFC 7143 §11.10).
#[derive(Default)]
pub(super) struct Text {
    exchange: Option<Exchange>,
    next_tag: u32,
}

impl Text {
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
        let tag = request.initiator_task_tag.get();
        let transfer_tag = request.target_transfer_tag.get();
        let mut exchange = match self.exchange.take() {
            // RFC 7143 §11.10.4: the reserved tag begins anew and forgets what was under way.
            _ if transfer_tag == RESERVED_TAG => Exchange {
                initiator_task_tag: tag,
                target_transfer_tag: RESERVED_TAG,
                input: Vec::new(),
                output: Vec::new(),
            },
            Some(exchange)
                if exchange.initiator_task_tag == tag
                    && exchange.target_transfer_tag == transfer_tag =>
            {
                exchange
            }
            _ => return link.reject(RejectReason::ProtocolError, header),
        };
        // RFC 7143 §6.2: what asks for the rest of an answer says nothing itself.
        if !exchange.output.is_empty() && !segment.is_empty() {
            return link.reject(RejectReason::ProtocolError, header);
        }
        // An answer may be a thousand times as long as what asks for it: nobody is given many who
        // does not take them.
        if exchange.input.len() + segment.len() > settings.text_limit
            || link.output.len() > settings.output_limit
        {
            return link.reject(RejectReason::LongOperationReject, header);
        }
        exchange.input.extend_from_slice(segment);
        if request.flags & CONTINUE != 0 {
            if request.flags & FINAL != 0 {
                return link.reject(RejectReason::ProtocolError, header);
            }
            return self.continue_with(exchange, request.lun, 0, &[], link);
        }
        let input = std::mem::take(&mut exchange.input);
        let offer = &settings.offer;
        if !answer(&input, &mut exchange.output, link, admission, offer, environment) {
            return link.reject(RejectReason::ProtocolError, header);
        }
        let limit = link.parameters.peer_max_recv_data_segment_length as usize;
        if exchange.output.len() > limit {
            let rest = exchange.output.split_off(limit);
            let part = std::mem::replace(&mut exchange.output, rest);
            return self.continue_with(exchange, request.lun, CONTINUE, &part, link);
        }
        if request.flags & FINAL == 0 {
            // The initiator has more to say.
            let output = std::mem::take(&mut exchange.output);
            return self.continue_with(exchange, request.lun, 0, &output, link);
        }
        let output = exchange.output;
        push(link, request.lun, tag, RESERVED_TAG, FINAL, &output);
    }

    /// Answers with a tag under which the exchange goes on.
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

/// Appends the answers to `output`; false if the text is malformed.
fn answer(
    input: &[u8],
    output: &mut Vec<u8>,
    link: &mut Link,
    admission: &Admission,
    offer: &TargetOffer,
    environment: &mut dyn Environment,
) -> bool {
    let mut say = |name: &str, value: &str| {
        for part in [name, "=", value, "\0"] {
            output.extend_from_slice(part.as_bytes());
        }
    };
    let mut targets_sent = false;
    for pair in pairs(input) {
        let Ok((name, value)) = pair else { return false };
        match keys::find(name) {
            None => say(name, NOT_UNDERSTOOD),
            Some(_) if name == "SendTargets" => {
                // RFC 7143 §6.2: a key comes once. This one's answer is longer than itself.
                if std::mem::replace(&mut targets_sent, true) {
                    return false;
                }
                let only = match (admission.session_type, value) {
                    (SessionType::Discovery, "All") => None,
                    // Appendix C: in a normal session, only the target that is logged in to.
                    (SessionType::Normal, "All") => {
                        say(name, REJECT);
                        continue;
                    }
                    (SessionType::Normal, "") => admission.target_name.as_deref(),
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
            Some(key) if matches!(key.usage, Use::Always) => {
                let answer = Negotiation {
                    offer,
                    parameters: &mut link.parameters,
                    session_type: admission.session_type,
                }
                .answer(key, value);
                if let Some(answer) = answer {
                    say(name, &answer);
                }
            }
            // Keys of the login have no place here.
            Some(key) if key.kind == Kind::Declaration => return false,
            Some(_) => say(name, REJECT),
        }
    }
    true
}
