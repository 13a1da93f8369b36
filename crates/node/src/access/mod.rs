//! Access control: the current [`policy`], and all connections that it permits. When another policy replaces it, the
//! server terminates the sessions that the new one does not permit.

mod losses;
mod policy;
mod suppression;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sarsen_proto::iscsi::chap::{Credentials, Secret};
use sarsen_proto::iscsi::target::{Admission, AuthRequirement, RefusalReason};
use sarsen_scsi::{Lun, LunView};
use sarsen_wire::iscsi::Isid;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

pub use self::losses::Object;
pub(crate) use self::losses::{Losses, SessionKey, TargetLoss};
use self::policy::Applicant;
pub(crate) use self::policy::{Policy, Previous};
pub(crate) use self::suppression::{LogDecision, LogThrottle, source_of};
use crate::events::{EventLog, Occurrence, Subject};
use crate::mailbox::ConnectionRequest;
use crate::metrics::Metrics;
use crate::portal::Portal;
use crate::targets::Targets;
use crate::tls::ClientCertificate;

/// Maximum number of remembered revocations. The oldest is dropped first.
const REVOKED: usize = 1024;

/// The current policy and the permitted connections.
#[derive(Default)]
pub(crate) struct Access {
    state: Mutex<AccessRecords>,
    pub(crate) storm: LogThrottle,
    pub(crate) metrics: Metrics,
    pub(crate) events: Arc<EventLog>,
}

#[derive(Default)]
struct AccessRecords {
    policy: Arc<Policy>,
    last_permitted: u64,
    records: BTreeMap<u64, ConnectionRecord>,
    /// Initiators whose access was revoked, and the targets that they know of.
    revoked: VecDeque<(String, Option<String>)>,
}

/// The origin of a connection, and the certificate that it presented before its login.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) peer: SocketAddr,
    /// The verified certificate.
    pub(crate) certificate: Option<ClientCertificate>,
    pub(crate) portal: Arc<Portal>,
}

/// A permitted connection.
struct ConnectionRecord {
    initiator: String,
    isid: Isid,
    target: Option<String>,
    account: Option<String>,
    certificate: Option<ClientCertificate>,
    peer: SocketAddr,
    portal: Arc<Portal>,
    view: LunView,
    /// The only unit of the target that the client uses, if its protocol selects one at the login.
    only: Option<Lun>,
    /// The session's nexus, once it exists.
    nexus: Option<u64>,
    mailbox: mpsc::UnboundedSender<ConnectionRequest>,
}

/// The registration of a permitted connection, which is notified of changes by its mailbox.
pub(crate) struct AccessGuard {
    access: Arc<Access>,
    number: u64,
}

impl Drop for AccessGuard {
    fn drop(&mut self) {
        self.access.state().records.remove(&self.number);
    }
}

impl AccessGuard {
    /// Sets the session's nexus, which was opened with the view that came with the guard. Returns the current view if
    /// it has changed since.
    pub(crate) fn use_nexus(&self, nexus: u64, opened_with: &LunView) -> Option<LunView> {
        let mut state = self.access.state();
        let record = state.records.get_mut(&self.number)?;
        record.nexus = Some(nexus);
        (record.view != *opened_with).then(|| record.view.clone())
    }
}

impl ConnectionRecord {
    fn applicant(&self) -> Applicant<'_> {
        Applicant {
            initiator: &self.initiator,
            address: self.peer.ip(),
            account: self.account.as_deref(),
            certificate: self.certificate.as_ref(),
        }
    }

    /// Returns the identity of the session (RFC 7143 §4.4.3).
    fn session(&self) -> (&str, Isid, Option<&str>) {
        (&self.initiator, self.isid, self.target.as_deref())
    }

    fn session_key(&self) -> SessionKey {
        (self.initiator.clone(), self.isid, self.target.clone())
    }

    fn subject(&self) -> Subject {
        Subject {
            peer: self.peer,
            initiator: Some(self.initiator.clone()),
            target: self.target.clone(),
            account: self.account.clone(),
            tsih: None,
            cid: None,
        }
    }

    /// Terminates the session, and notifies its initiator.
    fn terminate(&self, why: &str, reason: &str) {
        warn!(
            peer = %self.peer,
            initiator = self.initiator,
            target = self.target.as_deref().unwrap_or("discovery"),
            account = self.account,
            reason,
            "{why}: the session is ended"
        );
        let (ended, _) = oneshot::channel();
        let _ = self.mailbox.send(ConnectionRequest::Terminate { ended });
    }
}

impl Access {
    /// Creates access control by `policy`.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn new(policy: Policy) -> Self {
        let state = AccessRecords { policy: Arc::new(policy), ..AccessRecords::default() };
        Self { state: Mutex::new(state), ..Self::default() }
    }

    /// Replaces the policy, without a check of the sessions that the previous one permitted.
    #[cfg(feature = "simulation")]
    pub(crate) fn put_in_force(&self, policy: Policy) {
        self.state().policy = Arc::new(policy);
    }

    /// Reports events to this log.
    pub(crate) fn with_event_log(self, events: EventLog) -> Self {
        Self { events: Arc::new(events), ..self }
    }

    fn state(&self) -> MutexGuard<'_, AccessRecords> {
        self.state.lock()
    }

    /// Returns the current policy.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.state().policy.clone()
    }

    /// Returns the authentication that an initiator needs at a target, or the reason why it must not know of the
    /// target.
    pub(crate) fn auth_requirement(
        &self,
        admission: &Admission,
        peer: SocketAddr,
    ) -> Result<AuthRequirement, RefusalReason> {
        let target = admission.target_name.as_deref();
        let state = self.state();
        let requirement =
            state.policy.auth_requirement(target, &admission.initiator_name, peer.ip());
        requirement.cloned().map_err(|reason| state.of_the_past(admission, reason))
    }

    /// Returns whether discovery reports a target to an initiator.
    pub(crate) fn shows(&self, target: &str, initiator: &str, peer: SocketAddr) -> bool {
        self.policy().auth_requirement(Some(target), initiator, peer.ip()).is_ok()
    }

    /// Returns whether initiators must authenticate at a target.
    pub(crate) fn requires_authentication(&self, target: &str) -> bool {
        self.policy().requires_authentication(target)
    }

    /// See [`Policy::only_account`].
    pub(crate) fn only_account(&self, target: &str) -> Option<String> {
        self.policy().only_account(target).map(str::to_owned)
    }

    /// See [`Policy::secret_of`].
    pub(crate) fn secret_of(&self, account: &str) -> Option<Secret> {
        self.policy().secret_of(account).cloned()
    }

    /// See [`Policy::own_credentials`].
    pub(crate) fn own_credentials(&self, admission: &Admission) -> Option<Credentials> {
        self.policy().own_credentials(admission.target_name.as_deref()).cloned()
    }

    /// Checks whether an initiator that authenticated as `account` is permitted.
    pub(crate) fn authorize(
        &self,
        admission: &Admission,
        account: Option<&str>,
        origin: &Origin,
    ) -> Result<(), RefusalReason> {
        self.state().permit(admission, account, origin).map(drop)
    }

    /// Returns the units that a client without an account is shown.
    pub(crate) fn view(
        &self,
        admission: &Admission,
        origin: &Origin,
    ) -> Result<LunView, RefusalReason> {
        self.state().permit(admission, None, origin)
    }

    /// Registers a connection whose login is complete, if the current policy permits it, which may differ from the
    /// policy at the beginning of the login. With `only`, the client uses one unit of the target. Returns the units that
    /// it is shown.
    pub(crate) fn enter(
        self: &Arc<Self>,
        admission: &Admission,
        only: Option<Lun>,
        origin: &Origin,
        mailbox: &mpsc::UnboundedSender<ConnectionRequest>,
    ) -> Result<(AccessGuard, LunView), RefusalReason> {
        let mut state = self.state();
        let view = state.permit(admission, admission.account.as_deref(), origin)?;
        let view = narrowed(view, only).ok_or(RefusalReason::NoSuchTarget)?;
        if !origin.portal.is_open() {
            return Err(RefusalReason::NotInService);
        }
        let session =
            (&*admission.initiator_name, admission.isid, admission.target_name.as_deref());
        // All connections of a session must have the same units.
        let is_shown_otherwise =
            |record: &ConnectionRecord| record.session() == session && record.view != view;
        if admission.tsih != 0 && state.records.values().any(is_shown_otherwise) {
            return Err(RefusalReason::CannotIncludeInSession);
        }
        state.last_permitted += 1;
        let number = state.last_permitted;
        let record = ConnectionRecord {
            initiator: admission.initiator_name.clone(),
            isid: admission.isid,
            target: admission.target_name.clone(),
            account: admission.account.clone(),
            certificate: origin.certificate.clone(),
            peer: origin.peer,
            portal: origin.portal.clone(),
            view: view.clone(),
            only,
            nexus: None,
            mailbox: mailbox.clone(),
        };
        state.records.insert(number, record);
        self.metrics.count_login();
        Ok((AccessGuard { access: self.clone(), number }, view))
    }

    /// Replaces the policy. It terminates the sessions that the new policy does not permit, and those that would find
    /// another unit at a LUN. A LUN must denote one disk during a session. It also terminates the sessions that would
    /// lose an object. Returns the number of terminated sessions.
    pub(crate) fn replace(&self, policy: Arc<Policy>, targets: &Targets, losses: &Losses) -> usize {
        let mut state = self.state();
        let old = std::mem::replace(&mut state.policy, policy);
        let AccessRecords { policy, records, revoked, .. } = &mut *state;
        let (mut ended, mut shown) = (HashSet::new(), HashMap::new());
        for (&number, record) in records {
            let target = record.target.as_deref();
            if let Some(object) = losses.of(number, record) {
                record.terminate("configuration changed", &format!("{object} is taken away"));
                ended.insert(record.session_key());
                continue;
            }
            if policy.is_same_for(&old, target) {
                continue;
            }
            let reason = match policy.permit(target, &record.applicant()) {
                Err(reason) => reason.to_string(),
                // This client cannot be shown another view.
                Ok(view)
                    if record.only.is_some()
                        && narrowed(view.clone(), record.only).as_ref() != Some(&record.view) =>
                {
                    "its access to the volume changes".to_owned()
                }
                Ok(_) if record.only.is_some() => continue,
                Ok(view) => match moved(&record.view, &view) {
                    Some(lun) => format!("LUN {lun} changes to another unit"),
                    // All connections of a session must have the same units.
                    None if *shown.entry(record.session_key()).or_insert(view.clone()) != view => {
                        "its connections would have different units".to_owned()
                    }
                    None => {
                        record.show(view, targets);
                        continue;
                    }
                },
            };
            let known = (record.initiator.clone(), record.target.clone());
            if !revoked.contains(&known) {
                revoked.push_back(known);
            }
            if revoked.len() > REVOKED {
                revoked.pop_front();
            }
            let subject = record.subject();
            self.events.tell(&Occurrence::AccessRevoked { subject, why: reason.clone() });
            record.terminate("access revoked", &reason);
            ended.insert(record.session_key());
        }
        self.metrics.revoked(ended.len());
        ended.len()
    }
}

impl ConnectionRecord {
    /// Changes the view of its target, if it differs.
    fn show(&mut self, view: LunView, targets: &Targets) {
        if view == self.view {
            return;
        }
        self.view = view;
        let target = self.target.as_deref().and_then(|name| targets.find(name));
        if let (Some(target), Some(nexus)) = (target, self.nexus) {
            target.device.set_view(nexus, self.view.clone());
            info!(
                peer = %self.peer,
                initiator = self.initiator,
                target = target.device.name(),
                "the session is shown other units"
            );
        }
    }
}

impl AccessRecords {
    fn permit(
        &self,
        admission: &Admission,
        account: Option<&str>,
        origin: &Origin,
    ) -> Result<LunView, RefusalReason> {
        let target = admission.target_name.as_deref();
        let initiator = admission.initiator_name.as_str();
        let certificate = origin.certificate.as_ref();
        let applicant = Applicant { initiator, address: origin.peer.ip(), account, certificate };
        let view = self.policy.permit(target, &applicant);
        let view = view.map_err(|reason| self.of_the_past(admission, reason))?;
        // A login replaces or joins the session with its names (RFC 7143 §6.3.5). It must not do so if another identity
        // authenticated for that session.
        let session = (initiator, admission.isid, target);
        let mut others = self.records.values().filter(|record| record.session() == session);
        let is_other = |record: &ConnectionRecord| {
            if record.account.as_deref() != account {
                Some(RefusalReason::AccountNotAllowed)
            } else if !ClientCertificate::is_same(record.certificate.as_ref(), certificate) {
                Some(RefusalReason::CertificateNotAllowed)
            } else {
                None
            }
        };
        match others.find_map(is_other).filter(|_| target.is_some()) {
            Some(reason) => Err(reason),
            None => Ok(view),
        }
    }

    /// Returns the reason for an initiator whose access was revoked.
    fn of_the_past(&self, admission: &Admission, reason: RefusalReason) -> RefusalReason {
        let was_in = |(initiator, target): &(String, Option<String>)| {
            *initiator == admission.initiator_name && *target == admission.target_name
        };
        if self.revoked.iter().any(was_in) { RefusalReason::AccessRevoked } else { reason }
    }
}

/// Returns the part of a view that shows the unit `only`, or `None` if the view does not show it.
fn narrowed(view: LunView, only: Option<Lun>) -> Option<LunView> {
    let Some(only) = only else { return Some(view) };
    let shows =
        view.numbers.as_ref().is_none_or(|numbers| numbers.values().any(|own| *own == only));
    shows.then(|| LunView { numbers: Some(BTreeMap::from([(only, only)])), ..view })
}

/// Returns the first LUN at which a changed view shows another unit than before.
fn moved(before: &LunView, after: &LunView) -> Option<Lun> {
    let shown = [before, after].into_iter().filter_map(|view| view.numbers.as_ref());
    let mut luns = shown.flat_map(BTreeMap::keys);
    luns.find(|lun| match (before.number(**lun), after.number(**lun)) {
        (Some(before), Some(after)) => before != after,
        _ => false,
    })
    .copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap as Map;

    use sarsen_proto::iscsi::keys::SessionType;

    use super::*;
    use crate::protocol::Protocol;

    fn view<const N: usize>(numbers: [(u16, u16); N]) -> LunView {
        let numbers = numbers.map(|(shown, own)| (Lun(shown), Lun(own)));
        LunView { numbers: Some(Map::from(numbers)), read_only: false }
    }

    fn admission(account: Option<&str>, tsih: u16) -> Admission {
        Admission {
            initiator_name: "iqn.2026-11.x:host".into(),
            isid: Isid([0x80, 0, 0, 0, 0, 1]),
            tsih,
            cid: 0,
            session_type: SessionType::Normal,
            target_name: Some("iqn.2026-11.x:t".into()),
            account: account.map(str::to_owned),
        }
    }

    #[test]
    fn a_number_that_comes_to_mean_another_unit_is_found() {
        for (before, after, found) in [
            (LunView::default(), LunView::default(), None),
            (LunView::default(), view([(0, 0), (7, 7)]), None),
            (LunView::default(), view([(1, 0)]), Some(1)),
            (view([(0, 0)]), LunView::default(), None),
            (view([(0, 3)]), LunView::default(), Some(0)),
            (view([(0, 0)]), view([(0, 0), (1, 2)]), None),
            (view([(0, 0), (1, 2)]), view([(1, 2)]), None),
            (view([(0, 0), (1, 2)]), view([(0, 0), (1, 3)]), Some(1)),
        ] {
            assert_eq!(moved(&before, &after), found.map(Lun), "{before:?} {after:?}");
        }
    }

    #[test]
    fn rfc7143_6_3_5_session_of_another_account_is_not_reinstated() {
        let access = Arc::new(Access::new(Policy::of_everybody(["iqn.2026-11.x:t"])));
        let (mailbox, _messages) = mpsc::unbounded_channel();
        let peer: SocketAddr = "10.0.0.1:5000".parse().expect("an address");
        let portal = Portal::new(peer, Protocol::Iscsi, 1, None);
        let origin = Origin { peer, certificate: None, portal };
        let (pass, _) =
            access.enter(&admission(Some("host"), 0), None, &origin, &mailbox).expect("permitted");
        let other = admission(Some("thief"), 0);
        let refused = access.authorize(&other, Some("thief"), &origin);
        assert_eq!(refused, Err(RefusalReason::AccountNotAllowed));
        assert_eq!(access.authorize(&other, Some("host"), &origin), Ok(()));
        drop(pass);
        assert_eq!(access.authorize(&other, Some("thief"), &origin), Ok(()));
    }

    #[test]
    fn session_without_permission_ends_and_next_login_is_refused() {
        let access = Arc::new(Access::new(Policy::of_everybody(["iqn.2026-11.x:t"])));
        let (mailbox, mut messages) = mpsc::unbounded_channel();
        let peer: SocketAddr = "10.0.0.1:5000".parse().expect("an address");
        let portal = Portal::new(peer, Protocol::Iscsi, 1, None);
        let origin = Origin { peer, certificate: None, portal };
        let admission = admission(None, 0);
        let (_pass, _) = access.enter(&admission, None, &origin, &mailbox).expect("permitted");
        let (targets, nothing) = (Targets::default(), Losses::default());
        let replace = |policy| access.replace(Arc::new(policy), &targets, &nothing);
        assert_eq!(replace(Policy::of_everybody(["iqn.2026-11.x:t"])), 0);
        assert!(messages.try_recv().is_err(), "it was ended without a reason");
        assert_eq!(replace(Policy::of_everybody([])), 1);
        assert!(matches!(messages.try_recv(), Ok(ConnectionRequest::Terminate { .. })));
        let again = access.auth_requirement(&admission, peer);
        assert_eq!(again, Err(RefusalReason::AccessRevoked));
        let stranger = Admission { initiator_name: "iqn.2026-11.x:z".into(), ..admission };
        assert_eq!(access.auth_requirement(&stranger, peer), Err(RefusalReason::NoSuchTarget));
        let text = access.metrics.render(crate::metrics::MetricsSnapshot::default());
        assert!(text.contains("sarsen_access_revoked_total 1\n"), "{text}");
        assert!(text.contains("sarsen_logins_total 1\n"), "{text}");
    }
}
