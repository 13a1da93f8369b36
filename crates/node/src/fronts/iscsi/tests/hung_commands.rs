//! A store whose writes do not end until the test releases them.

use super::*;

/// Returns the status and sense data of TEST UNIT READY.
fn readiness(peer: &mut Peer) -> (u8, Vec<u8>) {
    peer.command(&[0; 16], 0, &[]);
    let (header, data) = peer.receive_all();
    assert_eq!(header.basic().opcode(), Opcode::ScsiResponse);
    // The data begins with the length of the sense data.
    (ScsiResponse::view(&header).status, data.get(2..).unwrap_or_default().to_vec())
}

/// Returns whether the unit reports LOGICAL UNIT NOT READY, CAUSE NOT REPORTABLE, after pending unit attentions.
fn is_not_ready(peer: &mut Peer) -> bool {
    (0..4).any(|_| {
        let (status, sense) = readiness(peer);
        status == 2 && (sense[2], sense[12], sense[13]) == (0x02, 0x04, 0x00)
    })
}

fn is_ready_again(peer: &mut Peer) -> bool {
    let limit = time::now() + Duration::from_secs(20);
    while time::now() < limit {
        if readiness(peer).0 == 0 {
            return true;
        }
    }
    false
}

#[test]
fn rfc7143_11_5_1_a_reset_does_not_wait_for_a_store_that_hangs_and_nothing_overtakes_it() {
    let (portal, gate) = Portal::open_hung();
    let (mut peer, _) = portal.login(1);
    peer.write(&portal);
    peer.reset_unit();
    assert_eq!(peer.management_response(), TaskManagementResponse::FunctionComplete);
    assert!(!portal.write_has_ended());
    let (mut other, _) = portal.login(2);
    for peer in [&mut peer, &mut other] {
        assert!(is_not_ready(peer), "a write would be acknowledged that the late one undoes");
    }
    gate.send(true).expect("the store lives");
    assert!(is_ready_again(&mut other) && is_ready_again(&mut peer));
    assert!(portal.write_has_ended(), "the fence was down before it ended");
}

#[test]
fn rfc7143_6_3_5_reinstatement_does_not_wait_for_a_store_that_hangs() {
    let (portal, gate) = Portal::open_hung();
    portal.cut_under_a_write();
    let (mut peer, status) = portal.login(1);
    assert_eq!(status, LoginStatus::Success);
    assert!(!portal.write_has_ended());
    assert!(is_not_ready(&mut peer), "the old session's write could overwrite the new one's");
    gate.send(true).expect("the store lives");
    assert!(is_ready_again(&mut peer));
    assert!(portal.write_has_ended());
}
