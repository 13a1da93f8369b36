//! The target's login with arbitrary requests and text. Every request has at most one answer, and the answers follow
//! the protocol. The negotiated values are within the RFC's limits (RFC 7143 §6.3, §13), wherever the bytes are cut. If
//! CHAP is required, no initiator logs in without the correct response (§12.1.3).
#![no_main]

#[path = "../support/scripted.rs"]
mod scripted;

use libfuzzer_sys::fuzz_target;
use sarsen_proto::iscsi::chap::{self, Algorithm, CHALLENGE_LENGTH, Challenge, Secret};
use sarsen_proto::iscsi::target::Event;
use sarsen_wire::iscsi::pdu::{CONTINUE, IMMEDIATE};
use sarsen_wire::iscsi::{Isid, LoginRequest, LoginResponse, LoginStatus, Opcode, RawHeader, text};

use scripted::{ACCOUNT, RANDOM, Scripted, World, encode};

/// The result of a login.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    answers: Vec<(RawHeader, Vec<u8>)>,
    established: bool,
    closed: bool,
}

/// A request as it is sent.
struct Request {
    bytes: Vec<u8>,
    /// Its text, with a terminator if no other request continues it.
    text: Vec<u8>,
}

/// Parses requests: flags, a byte of variations, the length of the text in two bytes, the text.
fn requests(mut input: &[u8]) -> Vec<Request> {
    let mut requests = Vec::new();
    while let [flags, odd, high, low, rest @ ..] = input {
        let length = (usize::from(*high) % 34 * 256 + usize::from(*low)).min(rest.len());
        let (text, rest) = rest.split_at(length);
        input = rest;
        let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags = *flags;
        request.isid = Isid([0x80, 0, 0, 0, 0, 1]);
        request.initiator_task_tag = u32::from(odd & 1).into();
        request.cid = u16::from(odd >> 1 & 1).into();
        request.tsih = u16::from(odd >> 2 & 1).into();
        request.version_min = odd >> 3 & 1;
        request.reserved = 0.into();
        request.cmd_sn = u32::from(*odd >> 4).into();
        let bytes = encode(request, text);
        let end: &[u8] = if flags & CONTINUE != 0 { &[] } else { &[0] };
        requests.push(Request { bytes, text: [text, end].concat() });
    }
    requests
}

/// Returns whether the requests name the account and contain a correct response to the challenge, which is always the
/// same.
fn prove_who_it_is(requests: &[Request]) -> bool {
    let challenge = Challenge::new([RANDOM; 1 + CHALLENGE_LENGTH]);
    let secret = Secret(ACCOUNT.1.into());
    let responses = Algorithm::ALL.map(|algorithm| algorithm.response(&challenge, &secret));
    let text: Vec<u8> = requests.iter().flat_map(|request| &request.text).copied().collect();
    let pairs: Vec<_> = text::pairs(&text).flatten().collect();
    let responds = |(key, value): &(&str, &str)| {
        *key == "CHAP_R" && chap::decode(value).is_some_and(|value| responses.contains(&value))
    };
    pairs.contains(&("CHAP_N", ACCOUNT.0)) && pairs.iter().any(responds)
}

fn log_in(requests: &[Request], world: &World, cut: usize) -> Outcome {
    let mut target = Scripted::within(world.clone());
    let mut outcome = Outcome::default();
    for (index, request) in requests.iter().enumerate() {
        for piece in request.bytes.chunks(cut) {
            if target.input(piece).is_err() {
                outcome.closed = true;
                return outcome;
            }
        }
        while let Some(event) = target.connection.poll_event() {
            match event {
                Event::Establish(admission) => {
                    assert!(!admission.initiator_name.is_empty());
                    let account = world.demanding.then_some(ACCOUNT.0);
                    assert_eq!(admission.account.as_deref(), account);
                    assert!(!world.demanding || prove_who_it_is(&requests[..=index]));
                    target.connection.establish(7);
                    outcome.established = true;
                }
                other => panic!("{other:?} in a login"),
            }
        }
        let answers = target.output();
        assert!(answers.len() <= 1, "{} answers to one request", answers.len());
        outcome.answers.extend(answers);
        if outcome.established {
            let agreed = target.connection.parameters();
            assert!((512..=0xff_ffff).contains(&agreed.max_burst_length));
            assert!((512..=0xff_ffff).contains(&agreed.first_burst_length));
            assert!((512..=0xff_ffff).contains(&agreed.local_max_recv_data_segment_length));
            assert!((1..=65535).contains(&agreed.max_outstanding_r2t));
            return outcome;
        }
        if target.connection.closing().is_some() {
            outcome.closed = true;
            return outcome;
        }
    }
    outcome
}

fuzz_target!(|input: &[u8]| {
    let Some((&cut, input)) = input.split_first() else { return };
    let requests = requests(input);
    // A bit that is otherwise part of the first CmdSN.
    let demanding = input.get(1).is_some_and(|odd| odd & 0x80 != 0);
    let world = World { demanding, ..World::default() };
    let outcome = log_in(&requests, &world, usize::MAX);
    for (header, data) in &outcome.answers {
        assert_eq!(header.basic().opcode(), Opcode::LoginResponse);
        let answer = LoginResponse::view(header);
        if answer.status() == LoginStatus::Success {
            assert!(text::pairs(data).all(|pair| pair.is_ok()), "{data:?}");
        } else {
            assert!(outcome.closed, "refused, and the connection goes on");
        }
    }
    assert_eq!(outcome, log_in(&requests, &world, usize::from(cut) + 1));
});
