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

use crate::connections::{self, FIRST_PAUSE, LONGEST_PAUSE, Route};
use crate::error::SessionError;
use crate::establish::{Established, LoginTimes, establish, in_time, spawn};
use crate::options::SessionOptions;
use crate::shared::{LoginGuard, Shared};
use crate::url::{Portal, Url};

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
    logins: Mutex<Logins>,
    /// There is another login, or there will be no more.
    changed: Notify,
    /// The task that logs in again. `None` if the session ends with its first login.
    renewal: Mutex<Option<JoinHandle<()>>>,
}

struct Logins {
    present: LoginGuard,
    /// Number of logins before the present one.
    generation: u64,
    /// The reason why there are no further logins.
    gave_up: Option<SessionError>,
}

/// A login of a session.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) shared: Arc<Shared>,
    /// Number of logins of the session before this one. The target ended all tasks of these logins before it granted this one
    /// (RFC 7143 §6.3.5), so no command of a lower generation can be carried out any more.
    pub(crate) generation: u64,
}

impl Session {
    /// Logs in to the target of a URL, and follows redirections.
    pub async fn log_in(url: &Url, options: &SessionOptions) -> Result<Self, SessionError> {
        Ok(Self::log_in_timed(url, options).await?.0)
    }

    /// Logs in, and returns how long that took.
    pub(crate) async fn log_in_timed(
        url: &Url,
        options: &SessionOptions,
    ) -> Result<(Self, LoginTimes), SessionError> {
        let (present, portal, times) = log_in_once(url, options).await?;
        let logins = Logins { present, generation: 0, gave_up: None };
        let nexus = Arc::new(Nexus {
            portal,
            target: url.target.clone(),
            answer_limit: options.answer_limit,
            logins: Mutex::new(logins),
            changed: Notify::new(),
            renewal: Mutex::default(),
        });
        if let Some(limit) = options.reconnect_limit {
            let renewed = RenewedNexus(Arc::downgrade(&nexus));
            let (url, options) = (url.clone(), options.clone());
            let task = tokio::task::spawn_local(async move {
                renew(&renewed, &url, &options, limit).await;
            });
            *nexus.renewal.lock() = Some(task);
        }
        Ok((Self { nexus }, times))
    }

    /// Returns the portal of the session, after redirections.
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
        self.login().shared.parameters()
    }

    /// Returns the reason why the present login ended, if it has ended. The session may log in again.
    pub fn ended(&self) -> Option<SessionError> {
        self.login().shared.ended()
    }

    /// Returns the present login, which may have ended.
    pub(crate) fn login(&self) -> Login {
        let logins = self.nexus.logins.lock();
        Login { shared: logins.present.shared.clone(), generation: logins.generation }
    }

    /// Returns whether the session logs in again after its connections are lost.
    pub(crate) fn logs_in_again(&self) -> bool {
        self.nexus.renewal.lock().is_some()
    }

    /// Waits for a login after the one of this generation. `lost` is the end of that one, and the error if there will be no
    /// other login.
    pub(crate) async fn next_login(
        &self,
        generation: u64,
        lost: SessionError,
    ) -> Result<(), SessionError> {
        loop {
            let mut changed = pin!(self.nexus.changed.notified());
            changed.as_mut().enable();
            {
                let logins = self.nexus.logins.lock();
                if logins.generation != generation {
                    return Ok(());
                }
                if let Some(error) = &logins.gave_up {
                    return Err(error.clone());
                }
            }
            if !self.logs_in_again() {
                return Err(lost);
            }
            changed.await;
        }
    }

    /// Checks that the target responds.
    pub async fn ping(&self) -> Result<(), SessionError> {
        let shared = self.login().shared;
        let token = shared.token();
        shared.wait_for_event(token, |state| state.machine.ping(token)).await?;
        Ok(())
    }

    /// Logs the session out. Commands that wait end with [`SessionError::LoggedOut`].
    pub async fn logout(self) -> Result<(), SessionError> {
        self.nexus.give_up(SessionError::LoggedOut);
        let shared = self.login().shared;
        in_time(self.portal(), self.answer_limit(), shared.leave()).await
    }
}

impl Nexus {
    /// Sets that the session does not log in again.
    fn give_up(&self, reason: SessionError) {
        self.logins.lock().gave_up.get_or_insert(reason);
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
        let gave_up = nexus.logins.lock().gave_up.is_some();
        (!gave_up).then_some(nexus)
    }
}

impl Drop for RenewedNexus {
    fn drop(&mut self) {
        if let Some(nexus) = self.0.upgrade() {
            nexus.give_up(SessionError::LoggedOut);
        }
    }
}

/// Logs in and opens further connections. Returns the portal after redirections.
async fn log_in_once(
    url: &Url,
    options: &SessionOptions,
) -> Result<(LoginGuard, Portal, LoginTimes), SessionError> {
    let identity = url.chap.identity()?.or_else(|| options.identity.clone());
    let target = SessionTarget::Named(url.target.clone());
    let Established { link, machine, portal, algorithms, times } =
        establish(&url.portal, &target, options, identity.as_ref()).await?;
    let login = spawn(link, machine);
    let (answer_limit, silence_limit) = (options.answer_limit, options.silence_limit);
    let route = Route { portal: portal.clone(), identity, algorithms, answer_limit, silence_limit };
    connections::maintain(&login.shared, route, options.connections).await;
    Ok((login, portal, times))
}

/// Logs in again whenever a login has ended, with the same ISID. It ends when the session is dropped or logged out, when a login
/// failed for a reason that does not pass, or when no login was granted for `limit`.
async fn renew(nexus: &RenewedNexus, url: &Url, options: &SessionOptions, limit: Duration) {
    let present = || Some(nexus.get()?.logins.lock().present.shared.clone());
    while let Some(shared) = present() {
        let lost = shared.wait_for_end().await;
        // RFC 7143 §13.15: for this long a target may still treat the connection as alive. The value may be an hour.
        let first = Duration::from_secs(shared.parameters().default_time2wait.into()).min(limit);
        drop(shared);
        if nexus.get().is_none() {
            return;
        }
        tracing::warn!(portal = %url.portal, %lost, "logging in again");
        let deadline = time::now() + limit;
        let (mut wait, mut pause) = (first, FIRST_PAUSE);
        let login = loop {
            time::sleep_until(time::now() + wait).await;
            if nexus.get().is_none() {
                return;
            }
            match log_in_once(url, options).await {
                Ok((login, ..)) => break login,
                Err(error) if !error.is_transient() || time::now() + pause > deadline => {
                    nexus.get().iter().for_each(|nexus| nexus.give_up(error.clone()));
                    return;
                }
                Err(error) => tracing::debug!(%error, "the login failed; trying again"),
            }
            wait = pause;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        let Some(nexus) = nexus.get() else { return };
        let last = {
            let mut logins = nexus.logins.lock();
            logins.generation += 1;
            std::mem::replace(&mut logins.present, login)
        };
        drop(last);
        tracing::info!(portal = %url.portal, "logged in again");
        nexus.changed.notify_waiters();
    }
}
