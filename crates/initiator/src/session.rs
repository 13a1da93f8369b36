//! A session with a target: one I_T nexus, with all units of the target.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use sarsen_io::time;
use sarsen_proto::iscsi::Parameters;
use sarsen_proto::iscsi::initiator::SessionTarget;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::connections::{self, LONGEST_PAUSE, Route};
use crate::error::SessionError;
use crate::establish::{Established, LoginTimes, establish, in_time, spawn};
use crate::instance::{Instance, InstanceGuard};
use crate::options::SessionOptions;
use crate::url::{Portal, Url};

/// The shortest pause between logins that failed.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// A pause is this part of the outage: logging in again takes little longer than the outage.
const PAUSE_PART: u32 = 32;
/// The time limit of the first login after a loss. Later limits grow with the outage.
const FIRST_ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// A session with a target. All its clones are the same session; its connections are closed when the last one is dropped.
/// [`Session::logout`] logs out first.
///
/// The core that logged in drives the connections: it is on a current-thread runtime (a `LocalRuntime` or `LocalSet`).
/// Every core can send commands.
#[derive(Clone)]
pub struct Session {
    nexus: Arc<Nexus>,
}

struct Nexus {
    portal: Portal,
    target: String,
    /// Time limit of requests that no disk delays.
    answer_limit: Duration,
    /// The portals through which the session may log in; its own is the first.
    portals: Mutex<Vec<Portal>>,
    present: Mutex<Present>,
    /// There is another instance, or there will be no more.
    changed: Notify,
    /// The task that logs in again. `None` if the session ends with its first instance.
    renewal: Mutex<Option<JoinHandle<()>>>,
}

struct Present {
    guard: InstanceGuard,
    /// The reason why there are no further instances.
    gave_up: Option<SessionError>,
    /// Why the last login failed that followed the loss of the present instance.
    failure: Option<SessionError>,
}

impl Session {
    /// Logs in to the target of a URL, through the first of its portals that answers, and follows redirections.
    pub async fn log_in(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        Ok(Self::log_in_timed(url, options).await?.0)
    }

    /// Logs in, and returns how long that took.
    pub(crate) async fn log_in_timed(
        url: &Url,
        options: &SessionOptions,
    ) -> Result<(Self, LoginTimes), SessionError> {
        let (guard, portal, times) = log_in_once(&url.portals, url, options, 0).await?;
        let nexus = Arc::new(Nexus {
            portal,
            target: url.target.clone(),
            answer_limit: options.answer_limit,
            portals: Mutex::new(url.portals.clone()),
            present: Mutex::new(Present { guard, gave_up: None, failure: None }),
            changed: Notify::new(),
            renewal: Mutex::default(),
        });
        if options.reconnect_limit.is_some() {
            let renewed = RenewedNexus(Arc::downgrade(&nexus));
            let (url, options) = (url.clone(), options.clone());
            let task = tokio::task::spawn_local(async move {
                renew(&renewed, &url, &options).await;
            });
            *nexus.renewal.lock() = Some(task);
        }
        Ok((Self { nexus }, times))
    }

    /// Returns the portal of the first login, after redirections.
    pub fn portal(&self) -> &Portal {
        &self.nexus.portal
    }

    /// Returns the target's name.
    pub fn target(&self) -> &str {
        &self.nexus.target
    }

    /// Returns the time limit of requests that no disk delays.
    pub(crate) fn answer_limit(&self) -> Duration {
        self.nexus.answer_limit
    }

    /// Returns the parameters that the present login negotiated.
    pub fn parameters(&self) -> Parameters {
        self.instance().parameters()
    }

    /// Returns the reason why the present login ended, if it has ended. The session may log in again.
    pub fn ended(&self) -> Option<SessionError> {
        self.instance().ended()
    }

    /// Returns why the last attempt to log in again failed, if the session is not logged in since.
    pub(crate) fn last_failure(&self) -> Option<SessionError> {
        self.nexus.present.lock().failure.clone()
    }

    /// Returns the present instance, which may have ended.
    pub(crate) fn instance(&self) -> Arc<Instance> {
        self.nexus.present.lock().guard.instance.clone()
    }

    /// Returns whether the session logs in again after its connections are lost.
    pub(crate) fn logs_in_again(&self) -> bool {
        self.nexus.renewal.lock().is_some()
    }

    /// Permits the session to log in again through another portal, which is in the same portal group.
    pub(crate) fn add_portal(&self, portal: &Portal) {
        let mut portals = self.nexus.portals.lock();
        if !portals.contains(portal) {
            portals.push(portal.clone());
        }
    }

    /// Waits for an instance after `last`. The error says why there will be none.
    pub(crate) async fn next_instance(
        &self,
        last: &Instance,
    ) -> Result<Arc<Instance>, SessionError> {
        loop {
            let mut changed = pin!(self.nexus.changed.notified());
            changed.as_mut().enable();
            {
                let present = self.nexus.present.lock();
                if present.guard.instance.generation != last.generation {
                    return Ok(present.guard.instance.clone());
                }
                if let Some(error) = &present.gave_up {
                    return Err(error.clone());
                }
            }
            if !self.logs_in_again() {
                return Err(last.ended().unwrap_or(SessionError::LoggedOut));
            }
            changed.await;
        }
    }

    /// Checks that the target responds.
    pub async fn ping(&self) -> Result<(), SessionError> {
        self.instance().ping().await
    }

    /// Forbids the session to log in again through a portal, unless it is the only one.
    pub(crate) fn remove_portal(&self, portal: &Portal) {
        let mut portals = self.nexus.portals.lock();
        if portals.len() > 1 {
            portals.retain(|other| other != portal);
        }
    }

    /// Logs out if that is possible, and closes the connections. The session does not log in again.
    pub(crate) async fn close(&self, reason: SessionError) {
        self.nexus.give_up(reason);
        let instance = self.instance();
        if instance.ended().is_none()
            && in_time(self.portal(), self.answer_limit(), instance.leave()).await.is_ok()
        {
            // The target has ended all commands (RFC 7143 §11.14).
            instance.end(SessionError::LoggedOut);
            instance.end_holds();
        }
        instance.end(SessionError::LoggedOut);
    }

    /// Logs the session out. Commands that wait end with [`SessionError::LoggedOut`].
    pub async fn logout(self) -> Result<(), SessionError> {
        self.nexus.give_up(SessionError::LoggedOut);
        in_time(self.portal(), self.answer_limit(), self.instance().leave()).await
    }
}

impl Nexus {
    /// Sets that the session does not log in again.
    fn give_up(&self, reason: SessionError) {
        self.present.lock().gave_up.get_or_insert(reason);
        self.changed.notify_waiters();
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.get_mut() {
            renewal.abort();
        }
    }
}

/// A nexus whose session logs in again until this is dropped.
struct RenewedNexus(Weak<Nexus>);

impl RenewedNexus {
    /// Returns the nexus, unless the session has been dropped or does not log in again.
    fn get(&self) -> Option<Arc<Nexus>> {
        let nexus = self.0.upgrade()?;
        let gave_up = nexus.present.lock().gave_up.is_some();
        (!gave_up).then_some(nexus)
    }

    fn instance(&self) -> Option<Arc<Instance>> {
        Some(self.get()?.present.lock().guard.instance.clone())
    }
}

impl Drop for RenewedNexus {
    fn drop(&mut self) {
        if let Some(nexus) = self.0.upgrade() {
            nexus.give_up(SessionError::LoggedOut);
        }
    }
}

/// Logs in through the first of the portals that answers, and opens further connections. Returns the portal after redirections.
async fn log_in_once(
    portals: &[Portal],
    url: &Url,
    options: &SessionOptions,
    generation: u64,
) -> Result<(InstanceGuard, Portal, LoginTimes), SessionError> {
    let identity = url.chap.identity()?.or_else(|| options.identity.clone());
    let target = SessionTarget::Named(url.target.clone());
    let Established { link, machine, entry, portal, algorithms, times } =
        establish(portals, &target, options, identity.as_ref()).await?;
    let guard = spawn(link, machine, entry, generation);
    let (answer_limit, silence_limit) = (options.answer_limit, options.silence_limit);
    let route = Route { portal: portal.clone(), identity, algorithms, answer_limit, silence_limit };
    connections::maintain(&guard.instance, route, options.connections).await;
    Ok((guard, portal, times))
}

/// Logs in again whenever an instance has ended, with the same ISID. It ends when the session is dropped or logged out, or when a
/// login failed for a reason that does not pass.
async fn renew(nexus: &RenewedNexus, url: &Url, options: &SessionOptions) {
    while let Some(last) = nexus.instance() {
        let lost = last.wait_for_end().await;
        let lost_at = time::now();
        // RFC 7143 §13.15: for this long a target may still treat the connection as alive. The value may be an hour.
        let mut pause = Duration::from_secs(last.parameters().default_time2wait.into())
            .min(options.reconnect_limit.unwrap_or_default());
        if nexus.get().is_none() {
            return;
        }
        tracing::warn!(portal = %last.entry, %lost, "logging in again");
        let mut first = 0;
        let guard = loop {
            time::sleep_until(time::now() + pause).await;
            let Some(mut portals) = nexus.get().map(|nexus| nexus.portals.lock().clone()) else {
                return;
            };
            let outage = time::now() - lost_at;
            let count = portals.len();
            portals.rotate_left(first % count);
            let answer_limit = outage.max(FIRST_ANSWER_LIMIT).min(options.answer_limit);
            let options = SessionOptions { answer_limit, ..options.clone() };
            match log_in_once(&portals, url, &options, last.generation + 1).await {
                // Only a login in the same portal group ends the tasks of the last one.
                Ok((guard, ..)) if guard.instance.portal_group() == last.portal_group() => {
                    break guard;
                }
                Ok((guard, ..)) => {
                    tracing::warn!(portal = %guard.instance.entry, "this is another portal group");
                }
                Err(error) if error.is_permanent() => {
                    nexus.get().iter().for_each(|nexus| nexus.give_up(error.clone()));
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "the login failed; trying again");
                    nexus.get().iter().for_each(|nexus| {
                        nexus.present.lock().failure = Some(error.clone());
                    });
                }
            }
            // A portal that accepts connections may be unable to log in.
            first += 1;
            pause = (outage / PAUSE_PART).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        };
        let Some(nexus) = nexus.get() else { return };
        guard.instance.begin_with_round_trip(last.round_trip());
        tracing::info!(portal = %guard.instance.entry, "logged in again");
        let ended = {
            let mut present = nexus.present.lock();
            present.failure = None;
            std::mem::replace(&mut present.guard, guard)
        };
        ended.instance.end_holds();
        drop(ended);
        nexus.changed.notify_waiters();
    }
}
