//! Tests of this crate's initiator with its target, end to end in memory.

use sarsen_wire::iscsi::Isid;

use super::authentication::{ACCOUNT, OWN, demanding};
use super::*;
use crate::iscsi::chap::Challenge;
use crate::iscsi::initiator::{
    self, Authentication, AuthenticationError, ConnectionError, LoginError, LoginOptions,
    SessionTarget, TargetProof,
};

fn credentials((name, secret): (&str, &str)) -> Credentials {
    Credentials { name: name.to_owned(), secret: Secret(secret.to_owned()) }
}

fn options(algorithm: Algorithm, target: Option<(&str, &str)>) -> LoginOptions {
    let isid = Isid([0x80, 1, 2, 3, 4, 5]);
    let named = SessionTarget::Named(TARGET.to_owned());
    let mut options = LoginOptions::new("iqn.2026-11.test:host", named, isid);
    options.authentication = Some(Authentication {
        credentials: credentials(ACCOUNT),
        algorithms: vec![algorithm],
        target: target.map(|target| TargetProof {
            credentials: credentials(target),
            challenge: Challenge { identifier: 9, bytes: b"the initiator's".to_vec() },
        }),
    });
    options
}

/// Removes and returns all bytes of an output.
fn drain(output: &mut Output) -> Vec<u8> {
    let mut stream = Vec::new();
    while !output.is_empty() {
        let mut pieces = Vec::new();
        output.pieces(&mut pieces, 64);
        let start = stream.len();
        for piece in &pieces {
            let Piece::Bytes(bytes) = piece else { unreachable!("no shared memory here") };
            stream.extend_from_slice(bytes);
        }
        drop(pieces);
        output.sent(stream.len() - start);
    }
    stream
}

/// Logs in. Returns the target's admission of the initiator.
fn log_in(script: &mut Script, options: LoginOptions) -> Result<Admission, ConnectionError> {
    let mut initiator = initiator::Connection::new(options);
    let mut met = None;
    while !initiator.is_full_feature() {
        let requests = drain(initiator.output());
        assert!(!requests.is_empty(), "{:?}", script.connection.closing());
        script
            .connection
            .handle_input(&requests, script.now, &mut script.world)
            .expect("the login is well formed");
        if let Some(Event::Establish(admission)) = script.connection.poll_event() {
            met = Some(admission);
            script.connection.establish(1);
        }
        initiator.handle_input(&drain(script.connection.output()))?;
    }
    Ok(met.expect("both agree that the login is done"))
}

fn failure(script: &mut Script, options: LoginOptions) -> LoginError {
    match log_in(script, options) {
        Err(ConnectionError::Login(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rfc7143_12_1_3_our_initiator_logs_in_with_each_algorithm_one_way_and_mutual() {
    for algorithm in Algorithm::ALL {
        for target in [None, Some(OWN)] {
            for discovery in [false, true] {
                let mut options = options(algorithm, target);
                if discovery {
                    options.target = SessionTarget::Discovery;
                }
                let admission = log_in(&mut demanding(&Algorithm::ALL), options);
                let admission = admission.expect("both know each other");
                assert_eq!(admission.account.as_deref(), Some(ACCOUNT.0), "{algorithm:?}");
            }
        }
    }
}

#[test]
fn rfc7143_12_1_3_our_initiator_and_target_refuse_each_other_with_reason() {
    let mut wrong = options(Algorithm::Sha3, None);
    wrong.authentication.as_mut().expect("CHAP").credentials.secret = Secret("guess".to_owned());
    let denied = LoginError::Denied {
        status: LoginStatus::AuthenticationFailure,
        algorithm: Some(Algorithm::Sha3),
    };
    assert_eq!(failure(&mut demanding(&Algorithm::ALL), wrong), denied);
    let weak = options(Algorithm::Md5, None);
    let denied = LoginError::Denied { status: LoginStatus::AuthenticationFailure, algorithm: None };
    assert_eq!(failure(&mut demanding(&[Algorithm::Sha256]), weak), denied);
    let imposter = options(Algorithm::Sha256, Some((OWN.0, "another box's secret")));
    let name = OWN.0.to_owned();
    assert_eq!(
        failure(&mut demanding(&Algorithm::ALL), imposter),
        LoginError::Authentication(AuthenticationError::Target { name })
    );
    let mut nobody = options(Algorithm::Sha256, None);
    nobody.authentication = None;
    assert_eq!(failure(&mut demanding(&Algorithm::ALL), nobody), denied);
}
