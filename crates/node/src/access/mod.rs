//! Access control: the current [`policy`]. When another policy replaces it, the server terminates the sessions that the new
//! one does not permit.

mod losses;
mod policy;
mod suppression;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sarsen_io::time;
use sarsen_proto::iscsi::chap::{Credentials, Secret};
use sarsen_proto::iscsi::target::{AuthRequirement, RefusalReason};
use sarsen_scsi::{Lun, LunView};
use tokio::sync::oneshot;
use tracing::{info, warn};

pub use self::losses::Object;
use self::losses::is_let_out;
pub(crate) use self::losses::{Losses, TargetLoss, Units, shows};
pub(crate) use self::policy::{Policy, Previous, SecretSource};
use self::suppression::LogDecision;
pub(crate) use self::suppression::{LogThrottle, source_of};
use crate::events::{EventLog, Occurrence, Subject};
use crate::mailbox::ConnectionRequest;
use crate::metrics::Metrics;
use crate::sessions::{Client, Login, PermittedConnection, SessionMember, Sessions};
use crate::targets::Targets;
use crate::tls::ClientCertificate;

/// Maximum number of remembered revocations. The oldest is dropped first.
const REVOKED: usize = 1024;

/// The current policy.
#[derive(Default)]
pub(crate) struct Access {
    state: Mutex<AccessState>,
    pub(crate) storm: LogThrottle,
    pub(crate) metrics: Metrics,
    pub(crate) events: Arc<EventLog>,
}

#[derive(Default)]
struct AccessState {
    policy: Arc<Policy>,
    /// Clients whose access was revoked, and the targets that they know of.
    revoked: VecDeque<(String, Option<String>)>,
}

/// Terminates the session of a connection, and notifies its client.
fn terminate(connection: &PermittedConnection<'_>, why: &str, reason: &str) {
    let Login { client, target, .. } = connection.login;
    warn!(
        peer = %client.peer,
        initiator = client.name,
        target = target.as_deref().unwrap_or("discovery"),
        account = client.account,
        reason,
        "{why}: the session is ended"
    );
    let (ended, _) = oneshot::channel();
    let _ = connection.mailbox.send(ConnectionRequest::Terminate { ended });
}

impl Access {
    /// Creates access control by `policy`.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn new(policy: Policy) -> Self {
        let state = AccessState { policy: Arc::new(policy), ..AccessState::default() };
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

    fn state(&self) -> MutexGuard<'_, AccessState> {
        self.state.lock()
    }

    /// Returns the current policy.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.state().policy.clone()
    }

    /// Returns the authentication that a login needs, or the reason why its client must not know of the target.
    pub(crate) fn auth_requirement(&self, login: &Login) -> Result<AuthRequirement, RefusalReason> {
        let Login { client, target, .. } = login;
        let state = self.state();
        let requirement =
            state.policy.auth_requirement(target.as_deref(), &client.name, client.peer.ip());
        requirement.cloned().map_err(|reason| state.of_the_past(login, reason))
    }

    /// Returns whether discovery reports a target to a client.
    pub(crate) fn shows(&self, target: &str, client: &Client) -> bool {
        let policy = self.policy();
        policy.auth_requirement(Some(target), &client.name, client.peer.ip()).is_ok()
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
    pub(crate) fn own_credentials(&self, target: Option<&str>) -> Option<Credentials> {
        self.policy().own_credentials(target).cloned()
    }

    /// Logs a refusal, unless its source has reached the maximum number of lines.
    pub(crate) fn log_rate_limited(self: &Arc<Self>, peer: SocketAddr, write: impl FnOnce()) {
        match self.storm.note(peer.ip(), time::now()) {
            LogDecision::Write => write(),
            LogDecision::CloseAt(deadline, source) => {
                let access = self.clone();
                tokio::task::spawn_local(async move {
                    time::sleep_until(deadline).await;
                    let left_out = access.storm.close(source);
                    warn!(%source, left_out, "more logins were refused");
                    access.events.tell(&Occurrence::LoginsSuppressed { source, count: left_out });
                });
            }
            LogDecision::LeaveOut => {}
        }
    }

    /// Returns the units that a client with this identity is shown.
    pub(crate) fn authorize(
        &self,
        sessions: &Sessions,
        login: &Login,
    ) -> Result<LunView, RefusalReason> {
        self.state().permit(sessions, login)
    }

    /// Permits a connection whose login is complete, if the current policy permits it, which may differ from the policy
    /// at the beginning of the login. Returns the units that it is shown.
    pub(crate) fn enter(
        &self,
        member: &SessionMember,
        login: &Login,
    ) -> Result<LunView, RefusalReason> {
        let sessions = member.sessions();
        // Another policy cannot replace this one before the session is registered as permitted.
        let state = self.state();
        let view = state.permit(sessions, login)?;
        let view = narrowed(view, login.only).ok_or(RefusalReason::NoSuchTarget)?;
        if !login.portal.is_open() {
            return Err(RefusalReason::NotInService);
        }
        if !sessions.permit(member, &view) {
            return Err(RefusalReason::CannotIncludeInSession);
        }
        self.metrics.count_login();
        Ok(view)
    }

    /// Replaces the policy. It terminates the sessions that the new policy does not permit, and those that would find
    /// another unit at a LUN. A LUN must denote one disk during a session. It also terminates the sessions that would
    /// lose an object. A leaving session keeps what it has, unless it loses its permission and was not `asked` to leave
    /// for that. Returns the number of terminated sessions.
    pub(crate) fn replace(
        &self,
        policy: Arc<Policy>,
        sessions: &Sessions,
        targets: &Targets,
        losses: &Losses,
        asked: &HashMap<u16, Units>,
    ) -> usize {
        let mut state = self.state();
        let old = std::mem::replace(&mut state.policy, policy);
        let AccessState { policy, revoked } = &mut *state;
        let (mut ended, mut shown) = (HashSet::new(), HashMap::new());
        let mut changed_views = Vec::new();
        sessions.visit_permitted(|connection| {
            if connection.is_leaving
                && (asked.contains_key(&connection.tsih)
                    || is_let_out(&old, &connection)
                    || !is_let_out(policy, &connection))
            {
                return;
            }
            let Login { client, target, only, .. } = connection.login;
            let target = target.as_deref();
            if let Some(object) = losses.of(&connection).filter(|_| !connection.is_leaving) {
                terminate(&connection, "configuration changed", &format!("{object} is taken away"));
                ended.insert(connection.tsih);
                return;
            }
            if policy.is_same_for(&old, target) {
                return;
            }
            let before = &*connection.view;
            let reason = match policy.permit(target, client) {
                Err(reason) => reason.to_string(),
                // This client cannot be shown another view.
                Ok(view)
                    if only.is_some() && narrowed(view.clone(), *only).as_ref() != Some(before) =>
                {
                    "its access to the volume changes".to_owned()
                }
                Ok(_) if only.is_some() => return,
                Ok(view) => match moved(before, &view) {
                    Some(lun) => format!("LUN {lun} changes to another unit"),
                    // All connections of a session must have the same units.
                    None if *shown.entry(connection.tsih).or_insert(view.clone()) != view => {
                        "its connections would have different units".to_owned()
                    }
                    None => {
                        if view != *before {
                            *connection.view = view.clone();
                            changed_views.push((connection.login.clone(), connection.nexus, view));
                        }
                        return;
                    }
                },
            };
            let known = (client.name.clone(), connection.login.target.clone());
            if !revoked.contains(&known) {
                revoked.push_back(known);
            }
            if revoked.len() > REVOKED {
                revoked.pop_front();
            }
            let subject = Subject::of(connection.login);
            self.events.tell(&Occurrence::AccessRevoked { subject, why: reason.clone() });
            terminate(&connection, "access revoked", &reason);
            ended.insert(connection.tsih);
        });
        // A changed view raises unit attentions, which reach the connections through the sessions.
        for (login, nexus, view) in changed_views {
            show(&login, nexus, view, targets);
        }
        self.metrics.revoked(ended.len());
        ended.len()
    }
}

/// Shows other units to the session of a connection.
fn show(login: &Login, nexus: Option<u64>, view: LunView, targets: &Targets) {
    let Login { client, target, .. } = login;
    let target = target.as_deref().and_then(|name| targets.find(name));
    if let (Some(target), Some(nexus)) = (target, nexus) {
        target.device.set_view(nexus, view);
        info!(
            peer = %client.peer,
            initiator = client.name,
            target = target.device.name(),
            "the session is shown other units"
        );
    }
}

impl AccessState {
    fn permit(&self, sessions: &Sessions, login: &Login) -> Result<LunView, RefusalReason> {
        let Login { client, target, .. } = login;
        let view = self.policy.permit(target.as_deref(), client);
        let view = view.map_err(|reason| self.of_the_past(login, reason))?;
        if target.is_none() {
            return Ok(view);
        }
        // A login replaces or joins the session with its names (RFC 7143 §6.3.5). It must not do so if another identity
        // authenticated for that session.
        if !sessions.all_of_twin(login, |twin| twin.account == client.account) {
            return Err(RefusalReason::AccountNotAllowed);
        }
        let is_same = |twin: &Client| {
            ClientCertificate::is_same(twin.certificate.as_ref(), client.certificate.as_ref())
        };
        if !sessions.all_of_twin(login, is_same) {
            return Err(RefusalReason::CertificateNotAllowed);
        }
        Ok(view)
    }

    /// Returns the reason for a client whose access was revoked.
    fn of_the_past(&self, login: &Login, reason: RefusalReason) -> RefusalReason {
        let was_in = |(name, target): &(String, Option<String>)| {
            *name == login.client.name && *target == login.target
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

/// Returns the part of a view that shows no unit, and permits nothing, that a view `before` did not.
fn without_gains(view: LunView, before: &LunView) -> LunView {
    let numbers = match (view.numbers, &before.numbers) {
        (numbers, None) => numbers,
        (None, Some(before)) => Some(before.values().map(|own| (*own, *own)).collect()),
        (Some(mut numbers), Some(before)) => {
            numbers.retain(|_, own| before.values().any(|before| before == own));
            Some(numbers)
        }
    };
    LunView { numbers, read_only: view.read_only || before.read_only }
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

    use tokio::sync::mpsc;

    use super::*;
    use crate::config::Limits;

    fn view<const N: usize>(numbers: [(u16, u16); N]) -> LunView {
        let numbers = numbers.map(|(shown, own)| (Lun(shown), Lun(own)));
        LunView { numbers: Some(Map::from(numbers)), read_only: false }
    }

    fn login(account: Option<&str>) -> Login {
        let mut login = Login::of_anonymous("iqn.2026-11.x:host", "iqn.2026-11.x:t");
        login.client.account = account.map(str::to_owned);
        login
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

    #[tokio::test]
    async fn rfc7143_6_3_5_session_of_another_account_is_not_reinstated() {
        let access = Access::new(Policy::of_everybody(["iqn.2026-11.x:t"]));
        let sessions = Arc::new(Sessions::new(&Limits::default()));
        let (mailbox, _messages) = mpsc::unbounded_channel();
        let host = login(Some("host"));
        let member = sessions.begin(&host, &mailbox).await.expect("there is room");
        access.enter(&member, &host).expect("permitted");
        let authorize = |account| access.authorize(&sessions, &login(Some(account))).map(drop);
        assert_eq!(authorize("thief"), Err(RefusalReason::AccountNotAllowed));
        assert_eq!(authorize("host"), Ok(()));
        drop(member);
        assert_eq!(authorize("thief"), Ok(()));
    }

    #[tokio::test]
    async fn connections_of_a_session_are_shown_the_same_units() {
        let access = Access::new(Policy::of_everybody(["iqn.2026-11.x:t"]));
        let sessions = Arc::new(Sessions::new(&Limits::default()));
        let (mailbox, _messages) = mpsc::unbounded_channel();
        let login = login(None);
        let member = sessions.begin(&login, &mailbox).await.expect("there is room");
        access.enter(&member, &login).expect("permitted");
        assert!(!sessions.permit(&member, &view([(0, 1)])));
    }

    #[tokio::test]
    async fn a_leaving_session_keeps_its_units_until_it_loses_its_permission() {
        const HOST: &str = "iqn.2026-11.x:host";
        let access = Access::new(Policy::of_everybody(["iqn.2026-11.x:t"]));
        let sessions = Arc::new(Sessions::new(&Limits::default()));
        let (mailbox, mut messages) = mpsc::unbounded_channel();
        // A session of one unit, which needs no nexus.
        let login = Login { only: Some(Lun(0)), ..Login::of_anonymous(HOST, "iqn.2026-11.x:t") };
        let member = sessions.begin(&login, &mailbox).await.expect("there is room");
        access.enter(&member, &login).expect("permitted");
        let asked = HashMap::from([(member.tsih, Units::new())]);
        access.begin_leaving(&sessions, &asked);
        assert!(
            !sessions.permit(&member, &view([(0, 0)])),
            "no connection joins a leaving session"
        );
        let lost = || TargetLoss::All;
        let losses =
            Losses { targets: [("iqn.2026-11.x:t".into(), lost())].into(), ..Losses::default() };
        let affected = |policy: &Policy, again| {
            access.affected_sessions(&sessions, &losses, policy, again).len()
        };
        let policy = Policy::of_everybody(["iqn.2026-11.x:t"]);
        assert_eq!((affected(&policy, false), affected(&policy, true)), (0, 1));
        let targets = Targets::default();
        let replace = |policy, asked: &HashMap<_, _>| {
            access.replace(Arc::new(policy), &sessions, &targets, &losses, asked)
        };
        assert_eq!(replace(policy, &HashMap::new()), 0, "an earlier change asked it to log out");
        let without_targets = || Policy::of_everybody([]);
        assert_eq!(affected(&without_targets(), false), 1, "the loss of the permission counts");
        assert_eq!(replace(without_targets(), &asked), 0, "this change asks it to log out");
        assert!(messages.try_recv().is_err());
        assert_eq!(affected(&without_targets(), false), 0, "it has lost its permission already");
        replace(Policy::of_everybody(["iqn.2026-11.x:t"]), &HashMap::new());
        assert_eq!(replace(without_targets(), &HashMap::new()), 1, "revoked");
        assert!(matches!(messages.try_recv(), Ok(ConnectionRequest::Terminate { .. })));
    }

    #[tokio::test]
    async fn session_without_permission_ends_and_next_login_is_refused() {
        let access = Access::new(Policy::of_everybody(["iqn.2026-11.x:t"]));
        let sessions = Arc::new(Sessions::new(&Limits::default()));
        let (mailbox, mut messages) = mpsc::unbounded_channel();
        let login = login(None);
        let member = sessions.begin(&login, &mailbox).await.expect("there is room");
        access.enter(&member, &login).expect("permitted");
        let (targets, nothing) = (Targets::default(), Losses::default());
        let replace = |policy| {
            access.replace(Arc::new(policy), &sessions, &targets, &nothing, &HashMap::new())
        };
        assert_eq!(replace(Policy::of_everybody(["iqn.2026-11.x:t"])), 0);
        assert!(messages.try_recv().is_err(), "it was ended without a reason");
        assert_eq!(replace(Policy::of_everybody([])), 1);
        assert!(matches!(messages.try_recv(), Ok(ConnectionRequest::Terminate { .. })));
        assert_eq!(access.auth_requirement(&login), Err(RefusalReason::AccessRevoked));
        let stranger = Login::of_anonymous("iqn.2026-11.x:z", "iqn.2026-11.x:t");
        assert_eq!(access.auth_requirement(&stranger), Err(RefusalReason::NoSuchTarget));
        let text = access.metrics.render(crate::metrics::MetricsSnapshot::default());
        assert!(text.contains("sarsen_access_revoked_total 1\n"), "{text}");
        assert!(text.contains("sarsen_logins_total 1\n"), "{text}");
    }
}
