//! The connections of a session after its first one. They join the session. At level 2 the session recovers lost
//! connections while their commands wait (RFC 7143 §7.2.2, §6.3.4).
//!
//! The session removes a lost connection over another connection if it has one, and the commands continue there at
//! once. Otherwise a new connection replaces the lost one. In both cases the session soon has its number of connections
//! again. A connection that cannot be recovered within the target's time to retain tasks ends the session.
//! `session.rs` decides whether another login replaces it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sarsen_io::time;
use sarsen_proto::iscsi::chap::Algorithm;
use sarsen_proto::iscsi::initiator::{Authentication, Cid};

use crate::driver::Link;
use crate::error::SessionError;
use crate::establish::{dial, in_time};
use crate::identity::ChapCredentials;
use crate::instance::{Instance, Loss};
use crate::url::Portal;

/// The pause after a first attempt that failed; each next one is twice as long.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between attempts.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The route of the session's first connection to the target.
pub(crate) struct Route {
    pub(crate) portal: Portal,
    pub(crate) identity: Option<ChapCredentials>,
    /// The algorithms that authenticated the identity.
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) answer_limit: Duration,
    pub(crate) silence_limit: Option<Duration>,
}

/// Opens connections until there are `wanted`, or as many as the target permits. At level 2 it replaces lost connections from then
/// on.
pub(crate) async fn maintain(instance: &Arc<Instance>, way: Route, wanted: u32) {
    let (most, level) = {
        let parameters = instance.parameters();
        (parameters.max_connections, parameters.error_recovery_level)
    };
    let wanted = wanted.min(most) as usize;
    while count(instance) < wanted {
        // The session also works with fewer connections.
        if let Err(error) = join(instance, &way).await {
            tracing::warn!(portal = %way.portal, %error, "cannot open a further connection");
            break;
        }
    }
    if level == 2 {
        let wanted = count(instance);
        let kept = instance.clone();
        instance.spawn(async move { recover_all(&kept, &way, wanted).await });
    }
}

fn count(instance: &Instance) -> usize {
    instance.state().machine.connections().count()
}

async fn recover_all(instance: &Arc<Instance>, way: &Route, wanted: usize) {
    let mut pause = FIRST_PAUSE;
    while instance.ended().is_none() {
        let loss = instance.state().losses.pop_front();
        if let Some(loss) = loss {
            if let Err(error) = recover(instance, way, &loss).await {
                tracing::warn!(cid = loss.connection.0, %error, "no recovery: the session ends");
                instance.end(loss.error);
                return;
            }
            pause = FIRST_PAUSE;
        } else if count(instance) < wanted {
            // It replaces a connection whose commands continue on another one, so there is no hurry.
            if let Err(error) = join(instance, way).await {
                tracing::debug!(%error, "no further connection yet");
                let later = time::sleep_until(time::now() + pause);
                tokio::select! {
                    biased;
                    () = later => {}
                    () = instance.changed.notified() => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        } else {
            pause = FIRST_PAUSE;
            instance.changed.notified().await;
        }
    }
}

/// Lets the target remove a lost connection, and continues its commands.
async fn recover(instance: &Arc<Instance>, way: &Route, loss: &Loss) -> Result<(), SessionError> {
    let seconds = |count: u32| Duration::from_secs(count.into());
    let (wait, retain) = {
        let parameters = instance.parameters();
        (seconds(parameters.default_time2wait), seconds(parameters.default_time2retain))
    };
    // RFC 7143 §13.15, §13.16.
    let (earliest, latest) = (loss.at + wait, loss.at + wait + retain);
    time::sleep_until(earliest).await;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(error) = instance.ended() {
            return Err(error);
        }
        if !instance.state().machine.is_lost(loss.connection) {
            return Ok(());
        }
        let asked = {
            let state = &mut instance.state();
            let asked = state.machine.remove(loss.connection);
            state.wake();
            asked
        };
        if asked {
            let left = left_until(latest).min(way.answer_limit);
            in_time(&way.portal, left, removal(instance, loss.connection)).await?;
            continue;
        }
        let Err(error) = reinstate(instance, way, loss.connection).await else { return Ok(()) };
        if !error.is_transient() || time::now() + pause > latest {
            return Err(error);
        }
        time::sleep_until(time::now() + pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn left_until(latest: Instant) -> Duration {
    latest.saturating_duration_since(time::now())
}

/// Waits until a requested removal has ended, successfully or not.
async fn removal(instance: &Instance, connection: Cid) -> Result<(), SessionError> {
    while instance.state().machine.is_being_removed(connection) {
        if let Some(error) = instance.ended() {
            return Err(error);
        }
        instance.changed.notified().await;
    }
    Ok(())
}

async fn join(instance: &Arc<Instance>, way: &Route) -> Result<(), SessionError> {
    log_in(instance, way, |instance, way| instance.state().machine.join(way.authentication())).await
}

async fn reinstate(instance: &Arc<Instance>, way: &Route, lost: Cid) -> Result<(), SessionError> {
    log_in(instance, way, |instance, way| {
        let begun = instance.state().machine.reinstate(lost, way.authentication());
        begun.then_some(lost)
    })
    .await
}

/// Connects, begins a login and completes it.
async fn log_in(
    instance: &Arc<Instance>,
    way: &Route,
    begin: impl FnOnce(&Instance, &Route) -> Option<Cid>,
) -> Result<(), SessionError> {
    let attempt = async {
        let stream = dial(&way.portal).await?;
        let Some(connection) = begin(instance, way) else { return Err(SessionError::LoggedOut) };
        let mut attempt = Attempt { instance, connection, joined: false };
        let mut link = Link::new(stream, connection, way.silence_limit);
        link.join(instance).await?;
        attempt.joined = true;
        Ok(link)
    };
    let link = in_time(&way.portal, way.answer_limit, attempt).await?;
    let served = instance.clone();
    instance.spawn(async move { link.serve(served).await });
    Ok(())
}

/// A login that the machine forgets unless it is completed.
struct Attempt<'a> {
    instance: &'a Instance,
    connection: Cid,
    joined: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.joined {
            self.instance.state().machine.mark_lost(self.connection);
        }
    }
}

impl Route {
    fn authentication(&self) -> Option<Authentication> {
        self.identity.as_ref().map(|identity| identity.authentication(&self.algorithms))
    }
}
