//! Tests of CHAP with scripted targets.

use super::super::tests::{TO_OPERATIONAL, drain, error_of, login_response, options, sent};
use super::super::{Connection, Event, LoginError, ProtocolError};
use super::*;
use crate::iscsi::chap::{Algorithm, Challenge, Credentials, Secret};
use proptest::prelude::*;
use sarsen_wire::iscsi::{LoginRequest, LoginStatus};

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials { name: name.to_owned(), secret: Secret(secret.to_owned()) }
}

fn ours() -> Challenge {
    Challenge { identifier: 9, bytes: b"what we ask the target".to_vec() }
}

fn theirs() -> Challenge {
    Challenge { identifier: 250, bytes: b"what the target asks".to_vec() }
}

fn authentication(mutual: bool) -> Authentication {
    Authentication {
        credentials: credentials("me", "the initiator's secret"),
        algorithms: Algorithm::ALL.to_vec(),
        target: mutual.then(|| TargetProof {
            credentials: credentials("box", "the target's secret"),
            challenge: ours(),
        }),
    }
}

fn connection(authentication: Authentication) -> Connection {
    let mut options = options();
    options.authentication = Some(authentication);
    Connection::new(options)
}

fn answer(flags: u8, text: &str) -> Vec<u8> {
    login_response(flags, LoginStatus::Success, text)
}

/// Returns the flags and the text of the only request in the output.
fn request(connection: &mut Connection) -> (u8, String) {
    let pdus = sent(connection);
    assert_eq!(pdus.len(), 1);
    let text = String::from_utf8(pdus[0].1.clone()).unwrap();
    (LoginRequest::view(&pdus[0].0).flags, text)
}

fn challenge_text(algorithm: &str) -> String {
    let bytes = chap::encode(&theirs().bytes);
    format!("CHAP_A={algorithm}\0CHAP_I=250\0CHAP_C={bytes}\0")
}

/// Returns a connection that has answered the target's challenge.
fn responded(mutual: bool) -> Connection {
    let mut connection = connection(authentication(mutual));
    connection.handle_input(&answer(0, "AuthMethod=CHAP\0")).unwrap();
    connection.handle_input(&answer(0, &challenge_text("7"))).unwrap();
    drain(&mut connection);
    connection
}

fn proof(name: &str, secret: &str, challenge: &Challenge) -> String {
    let secret = Secret(secret.to_owned());
    let response = chap::encode(&Algorithm::Sha256.response(challenge, &secret));
    format!("CHAP_N={name}\0CHAP_R={response}\0")
}

fn failure(connection: &mut Connection, text: &str) -> AuthenticationError {
    failure_with(connection, TO_OPERATIONAL, text)
}

fn failure_with(connection: &mut Connection, flags: u8, text: &str) -> AuthenticationError {
    match error_of(connection, &answer(flags, text)) {
        ConnectionError::Login(LoginError::Authentication(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rfc7143_12_1_3_one_way_the_keys_come_in_their_order() {
    let mut connection = connection(authentication(false));
    let (flags, text) = request(&mut connection);
    assert_eq!(flags, 0, "the security stage, and no leaving it");
    assert!(text.ends_with("AuthMethod=CHAP\0"), "{text:?}");
    connection.handle_input(&answer(0, "AuthMethod=CHAP\0TargetPortalGroupTag=1\0")).unwrap();
    assert_eq!(request(&mut connection), (0, "CHAP_A=8,7,6,5\0".to_owned()));
    connection.handle_input(&answer(0, &challenge_text("7"))).unwrap();
    let wanted = proof("me", "the initiator's secret", &theirs());
    assert_eq!(request(&mut connection), (0x81, wanted));
    connection.handle_input(&answer(TO_OPERATIONAL, "")).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::SecurityPassed)));
    assert!(request(&mut connection).1.contains("MaxBurstLength="));
}

#[test]
fn rfc7143_12_1_3_mutual_the_target_proves_itself_too() {
    for stays in [false, true] {
        let mut connection = connection(authentication(true));
        connection.handle_input(&answer(0, "AuthMethod=CHAP\0")).unwrap();
        drain(&mut connection);
        connection.handle_input(&answer(0, &challenge_text("7"))).unwrap();
        let bytes = chap::encode(&ours().bytes);
        let wanted = proof("me", "the initiator's secret", &theirs());
        let wanted = format!("{wanted}CHAP_I=9\0CHAP_C={bytes}\0");
        assert_eq!(request(&mut connection), (0x81, wanted));
        let proof = proof("box", "the target's secret", &ours());
        if stays {
            // A target may answer first and stay in the stage. The initiator then asks again to move on.
            connection.handle_input(&answer(0, &proof)).unwrap();
            assert_eq!(request(&mut connection), (0x81, String::new()));
            connection.handle_input(&answer(TO_OPERATIONAL, "")).unwrap();
        } else {
            connection.handle_input(&answer(TO_OPERATIONAL, &proof)).unwrap();
        }
        assert!(matches!(connection.poll_event(), Some(Event::SecurityPassed)));
    }
}

#[test]
fn a_target_that_cannot_prove_itself_is_left() {
    let silent = failure(&mut responded(true), "");
    assert_eq!(silent, AuthenticationError::TargetSilent);
    let only_a_name = failure(&mut responded(true), "CHAP_N=box\0");
    assert_eq!(only_a_name, AuthenticationError::TargetSilent);
    for proof in [
        proof("box", "another secret", &ours()),
        proof("other", "the target's secret", &ours()),
        proof("box", "the target's secret", &theirs()),
        // The initiator's secret with the target's challenge.
        proof("box", "the initiator's secret", &theirs()),
        "CHAP_N=box\0CHAP_R=0x00\0".to_owned(),
    ] {
        let error = failure(&mut responded(true), &proof);
        assert!(matches!(error, AuthenticationError::Target { .. }), "{error:?}");
    }
    let malformed = failure(&mut responded(true), "CHAP_N=box\0CHAP_R=nothing\0");
    assert_eq!(malformed, AuthenticationError::Malformed { key: "CHAP_R" });
}

#[test]
fn target_that_skips_chap_is_refused() {
    for text in ["AuthMethod=None\0", "AuthMethod=Reject\0", "AuthMethod=KRB5\0", ""] {
        for flags in [0, TO_OPERATIONAL] {
            let mut connection = connection(authentication(false));
            let error = error_of(&mut connection, &answer(flags, text));
            let ConnectionError::Login(LoginError::Authentication(error)) = error else {
                panic!("{error:?}")
            };
            assert!(matches!(error, AuthenticationError::Method { .. }), "{error:?}");
        }
    }
    // The target tries to skip the rest of the authentication.
    let wanted = ConnectionError::Protocol(ProtocolError::LoginStage);
    let mut connection = connection(authentication(true));
    assert_eq!(error_of(&mut connection, &answer(TO_OPERATIONAL, "AuthMethod=CHAP\0")), wanted);
    let mut connection = self::connection(authentication(true));
    connection.handle_input(&answer(0, "AuthMethod=CHAP\0")).unwrap();
    assert_eq!(error_of(&mut connection, &answer(TO_OPERATIONAL, &challenge_text("7"))), wanted);
}

#[test]
fn a_challenge_that_is_none_is_refused() {
    let malformed = |key| AuthenticationError::Malformed { key };
    let missing = |key| AuthenticationError::Missing { key };
    let algorithm = |answered: &str| AuthenticationError::Algorithm { answered: answered.into() };
    let long = chap::encode(&[1; 1025]);
    for (text, wanted) in [
        ("CHAP_A=9\0CHAP_I=1\0CHAP_C=0x11\0".to_owned(), algorithm("9")),
        ("CHAP_A=Reject\0".to_owned(), algorithm("Reject")),
        ("CHAP_I=1\0CHAP_C=0x11\0".to_owned(), missing("CHAP_A")),
        ("CHAP_A=5\0CHAP_C=0x11\0".to_owned(), missing("CHAP_I")),
        ("CHAP_A=5\0CHAP_I=1\0".to_owned(), missing("CHAP_C")),
        ("CHAP_A=5\0CHAP_I=256\0CHAP_C=0x11\0".to_owned(), malformed("CHAP_I")),
        ("CHAP_A=5\0CHAP_I=1\0CHAP_I=2\0CHAP_C=0x11\0".to_owned(), malformed("CHAP_I")),
        ("CHAP_A=5\0CHAP_I=1\0CHAP_C=17\0".to_owned(), malformed("CHAP_C")),
        (format!("CHAP_A=5\0CHAP_I=1\0CHAP_C={long}\0"), malformed("CHAP_C")),
        (
            format!("CHAP_A=5\0CHAP_I=1\0CHAP_C={}\0", chap::encode(&ours().bytes)),
            AuthenticationError::Reflection,
        ),
    ] {
        let mut connection = connection(authentication(true));
        connection.handle_input(&answer(0, "AuthMethod=CHAP\0")).unwrap();
        assert_eq!(failure_with(&mut connection, 0, &text), wanted, "{text:?}");
    }
}

#[test]
fn rfc7143_12_1_3_one_secret_does_not_serve_both_sides() {
    let mut both = authentication(true);
    both.credentials.secret = Secret("the target's secret".to_owned());
    let mut connection = connection(both);
    connection.handle_input(&answer(0, "AuthMethod=CHAP\0")).unwrap();
    assert_eq!(failure(&mut connection, &challenge_text("5")), AuthenticationError::SameSecret);
}

#[test]
fn refusal_names_algorithm() {
    let refusal = login_response(0, LoginStatus::AuthenticationFailure, "");
    let error = |connection: &mut Connection| error_of(connection, &refusal);
    assert_eq!(error(&mut responded(false)), denied(Some(Algorithm::Sha256)));
    assert_eq!(error(&mut connection(authentication(false))), denied(None));
}

fn denied(algorithm: Option<Algorithm>) -> ConnectionError {
    let status = LoginStatus::AuthenticationFailure;
    ConnectionError::Login(LoginError::Denied { status, algorithm })
}

#[test]
fn an_algorithm_that_was_left_out_is_not_taken() {
    let mut only = authentication(false);
    only.algorithms = vec![Algorithm::Sha1, Algorithm::Md5];
    let mut connection = connection(only);
    connection.handle_input(&answer(0, "AuthMethod=CHAP\0")).unwrap();
    assert!(sent(&mut connection).iter().any(|pdu| pdu.1 == b"CHAP_A=6,5\0"));
    let error = failure(&mut connection, &challenge_text("7"));
    assert_eq!(error, AuthenticationError::Algorithm { answered: "7".to_owned() });
}

#[test]
fn debug_output_contains_no_secret() {
    let mut options = options();
    options.authentication = Some(authentication(true));
    assert!(!format!("{options:?}").contains("secret\""));
    assert!(!format!("{:?}", Chap::new(authentication(true))).contains("'s secret"));
}

proptest! {
    #[test]
    fn arbitrary_answers_never_cause_a_panic(
        answers in prop::collection::vec(
            (any::<u8>(), "((AuthMethod|CHAP_[AICNR])=(CHAP|5|7|250|0x[0-9a-f]{0,8}|0b[A-Z=]{0,6})\0){0,5}"),
            0..5,
        ),
        mutual: bool,
    ) {
        let mut connection = connection(authentication(mutual));
        for (flags, text) in answers {
            let _ = connection.handle_input(&answer(flags & 0xc7, &text));
        }
        drain(&mut connection);
    }
}
