//! Logout (RFC 7143 §11.14, §11.15).

use sarsen_wire::iscsi::{
    LogoutReason, LogoutRequest, LogoutResponse, LogoutResponsePdu, Opcode, RawHeader, RejectReason,
};

use super::super::link::Link;
use super::super::{Event, Logout};
use super::{AfterRequest, FullFeature};
use crate::iscsi::Parameters;

impl FullFeature {
    /// Handles a logout (RFC 7143 §11.14).
    pub(super) fn handle_logout(&mut self, link: &mut Link, header: &RawHeader) -> AfterRequest {
        let request = LogoutRequest::view(header);
        let tag = request.initiator_task_tag.get();
        let cid = request.cid.get();
        let is_own = cid == self.admission.cid;
        let beyond = |for_recovery| {
            Event::Logout(Logout { initiator_task_tag: tag, cid: Some(cid), for_recovery })
        };
        match request.reason() {
            LogoutReason::CloseSession => {
                return self.abort_for_logout(link, tag, true);
            }
            LogoutReason::CloseConnection if is_own => {
                return self.abort_for_logout(link, tag, false);
            }
            LogoutReason::CloseConnection if link.session.is_shared() => {
                link.events.push_back(beyond(false));
            }
            LogoutReason::CloseConnection => {
                push_logout_response(link, tag, LogoutResponse::CidNotFound, false);
            }
            LogoutReason::RemoveForRecovery if link.parameters.error_recovery_level < 2 => {
                push_logout_response(link, tag, LogoutResponse::RecoveryNotSupported, false);
            }
            LogoutReason::RemoveForRecovery if is_own => {
                push_logout_response(link, tag, LogoutResponse::Closed, true);
                link.detach_for_recovery();
            }
            LogoutReason::RemoveForRecovery => link.events.push_back(beyond(true)),
            _ => link.reject(RejectReason::InvalidPduField, header),
        }
        AfterRequest::StayOpen
    }
}

pub(in crate::iscsi::target) fn push_logout_response(
    link: &mut Link,
    tag: u32,
    response: LogoutResponse,
    for_recovery: bool,
) {
    let stamp = link.stamp();
    let mut pdu = LogoutResponsePdu::from(RawHeader::with_opcode(Opcode::LogoutResponse));
    pdu.response = response.0;
    pdu.initiator_task_tag = tag.into();
    pdu.reserved_tag = 0.into();
    pdu.stat_sn = stamp.stat_sn.into();
    pdu.exp_cmd_sn = stamp.exp_cmd_sn.into();
    pdu.max_cmd_sn = stamp.max_cmd_sn.into();
    // Tasks that wait for another connection can be reassigned at once. After any other logout, no tasks are left.
    let Parameters { default_time2wait, default_time2retain, .. } = link.parameters;
    let times = if for_recovery { (0, default_time2retain) } else { (default_time2wait, 0) };
    pdu.time2wait = (times.0 as u16).into();
    pdu.time2retain = (times.1 as u16).into();
    link.answer(pdu, &[]);
}
