//! The limits of a portal, and its answers to initiators beyond them.

use super::*;
use crate::model::Limit;

impl Portal {
    /// Opens a connection that sends nothing.
    fn silent(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        stream
    }
}

/// Returns whether the server has closed the connection without an answer.
fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn rfc7143_11_13_5_a_session_beyond_the_limit_is_refused_for_lack_of_resources() {
    for limits in [
        Limits { sessions: Limit::unchecked(2), ..Limits::default() },
        Limits { sessions_per_target: Limit::unchecked(2), ..Limits::default() },
    ] {
        let portal = Portal::open_with(limits);
        let (mut first, _) = portal.login(1);
        let (_second, status) = portal.login(2);
        assert_eq!(status, LoginStatus::Success);
        let (_third, status) = portal.login(3);
        assert_eq!(status, LoginStatus::OutOfResources);
        let (_again, status) = portal.login(2);
        assert_eq!(status, LoginStatus::Success, "who reinstates a session takes its place");
        first.log_out();
        let (_third, status) = portal.login(3);
        assert_eq!(status, LoginStatus::Success, "who has logged out makes room");
    }
}

#[test]
fn rfc7143_11_13_5_a_connection_beyond_max_connections_is_refused() {
    let portal = Portal::open_with(Limits {
        connections_per_session: Limit::unchecked(2),
        ..Limits::default()
    });
    let (first, _) = portal.login(1);
    let (_second, status) = portal.connect(1, first.tsih, 1);
    assert_eq!(status, LoginStatus::Success);
    let (_third, status) = portal.connect(1, first.tsih, 2);
    assert_eq!(status, LoginStatus::TooManyConnections);
}

#[test]
fn rfc7143_11_13_5_a_session_of_one_connection_takes_no_other() {
    let portal = Portal::open_with(Limits {
        connections_per_session: Limit::unchecked(1),
        ..Limits::default()
    });
    let (first, _) = portal.login(1);
    for cid in [0, 1] {
        let (_second, status) = portal.connect(1, first.tsih, cid);
        assert_eq!(status, LoginStatus::TooManyConnections);
    }
    let (_other, status) = portal.connect(2, first.tsih, 1);
    assert_eq!(status, LoginStatus::SessionDoesNotExist, "of another initiator port");
}

#[test]
fn connections_beyond_the_limits_are_closed_as_they_come() {
    for limits in [
        Limits { connections: Limit::unchecked(2), ..Limits::default() },
        Limits { connections_per_source: Limit::unchecked(2), ..Limits::default() },
    ] {
        let portal = Portal::open_with(limits);
        let ((first, _), (mut second, _)) = (portal.login(1), portal.login(2));
        assert!(is_closed(&portal.silent()));
        assert_eq!(portal.front.sources.rejected(), 1);
        second.command(&[0; 16], 0, &[]);
        assert_eq!(second.receive().basic().opcode(), Opcode::ScsiResponse, "others are served");
        drop(first);
        while portal.front.sources.connections() > 1 {
            std::thread::yield_now();
        }
        let (_third, status) = portal.login(3);
        assert_eq!(status, LoginStatus::Success);
    }
}

#[test]
fn a_storm_of_connections_leaves_those_with_a_session_alone() {
    let portal =
        Portal::open_with(Limits { logins_per_source: Limit::unchecked(2), ..Limits::default() });
    let (mut peer, _) = portal.login(1);
    let storm: Vec<TcpStream> = (0..100).map(|_| portal.silent()).collect();
    peer.command(&[0; 16], 0, &[]);
    assert_eq!(peer.receive().basic().opcode(), Opcode::ScsiResponse);
    assert!(storm[2..].iter().all(is_closed), "there are two logins under way");
    assert_eq!(portal.front.sources.rejected(), 98);
}

#[test]
fn a_login_that_takes_too_long_is_closed() {
    let login_timeout = Limit::unchecked(100);
    let portal = Portal::open_with(Limits { login_timeout, ..Limits::default() });
    assert!(is_closed(&portal.silent()));
    assert_eq!(portal.front.sources.rejected(), 0, "it was not turned away as it came");
}

#[test]
fn rfc7143_11_19_an_initiator_that_leaves_a_ping_unanswered_is_given_up() {
    let portal = Portal::open_with(Limits {
        ping_interval: Limit::unchecked(50),
        ping_timeout: Limit::unchecked(50),
        ..Limits::default()
    });
    let (mut peer, _) = portal.login(1);
    assert_eq!(peer.receive().basic().opcode(), Opcode::NopIn);
    assert!(is_closed(&peer.stream));
}
