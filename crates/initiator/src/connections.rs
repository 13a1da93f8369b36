//! The connections of a session beside its first one: they join, and at level 2 those that are lost
//! are recovered while their commands wait (RFC 7143 §7.2.2, §6.3.4).
//!
//! A lost connection is removed over another one where there is one, and its commands go on there
//! at once; else a new connection takes its place. Either way the session has as many connections
//! again soon after. What cannot be recovered in the time that the target keeps tasks for ends the
//! session, and whether another one takes its place is `reconnect.rs`'s to say.

use std::rc::Rc;
use std::time::{Duration, Instant};

use sarsen_io::time;
use sarsen_proto::iscsi::chap::Algorithm;
use sarsen_proto::iscsi::initiator::{Authentication, Cid};

use crate::driver::Link;
use crate::error::SessionError;
use crate::establish::{dial, in_time};
use crate::identity::Identity;
use crate::reconnect::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::shared::{Loss, Shared};
use crate::url::Portal;

/// The way to the target that the session's first connection went.
pub(crate) struct Route {
    pub(crate) portal: Portal,
    pub(crate) identity: Option<Identity>,
    /// With which the identity was proved.
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) answer_limit: Duration,
}

/// Opens connections until there are `wanted`, or as many as the target takes, and from then on
/// replaces those that are lost.
pub(crate) async fn keep(shared: &Rc<Shared>, way: Route, wanted: u32) {
    let (most, level) = {
        let machine = shared.machine.borrow();
        let parameters = machine.parameters();
        (parameters.max_connections, parameters.error_recovery_level)
    };
    let wanted = wanted.min(most) as usize;
    while count(shared) < wanted {
        // With fewer the session serves as well.
        if let Err(error) = join(shared, &way).await {
            tracing::warn!(portal = %way.portal, %error, "the target takes no further connection");
            break;
        }
    }
    if level == 2 {
        let wanted = count(shared);
        let kept = shared.clone();
        shared.spawn(async move { recover_all(&kept, &way, wanted).await });
    }
}

fn count(shared: &Shared) -> usize {
    shared.machine.borrow().connections().count()
}

async fn recover_all(shared: &Rc<Shared>, way: &Route, wanted: usize) {
    let mut pause = FIRST_PAUSE;
    while shared.ended().is_none() {
        let loss = shared.losses.borrow_mut().pop_front();
        if let Some(loss) = loss {
            if let Err(error) = recover(shared, way, &loss).await {
                tracing::warn!(cid = loss.connection.0, %error, "no recovery: the session ends");
                shared.end(loss.error);
                return;
            }
            pause = FIRST_PAUSE;
        } else if count(shared) < wanted {
            // It replaces one whose commands have gone on elsewhere: there is time.
            if let Err(error) = join(shared, way).await {
                tracing::debug!(%error, "no further connection yet");
                let later = time::sleep_until(time::now() + pause);
                tokio::select! {
                    () = later => {}
                    () = shared.changed.notified() => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        } else {
            pause = FIRST_PAUSE;
            shared.changed.notified().await;
        }
    }
}

/// Has the target let a lost connection go, and its commands go on.
async fn recover(shared: &Rc<Shared>, way: &Route, loss: &Loss) -> Result<(), SessionError> {
    let seconds = |count: u32| Duration::from_secs(count.into());
    let (wait, retain) = {
        let machine = shared.machine.borrow();
        let parameters = machine.parameters();
        (seconds(parameters.default_time2wait), seconds(parameters.default_time2retain))
    };
    // RFC 7143 §13.15, §13.16.
    let (earliest, latest) = (loss.at + wait, loss.at + wait + retain);
    time::sleep_until(earliest).await;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(error) = shared.ended() {
            return Err(error);
        }
        if !shared.machine.borrow().is_lost(loss.connection) {
            return Ok(());
        }
        let asked = shared.machine.borrow_mut().remove(loss.connection);
        if asked {
            shared.wake(None);
            let left = left_until(latest).min(way.answer_limit);
            in_time(&way.portal, left, removal(shared, loss.connection)).await?;
            continue;
        }
        let Err(error) = reinstate(shared, way, loss.connection).await else { return Ok(()) };
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

/// Until a removal that was asked for has ended, well or not.
async fn removal(shared: &Shared, connection: Cid) -> Result<(), SessionError> {
    while shared.machine.borrow().is_being_removed(connection) {
        if let Some(error) = shared.ended() {
            return Err(error);
        }
        shared.changed.notified().await;
    }
    Ok(())
}

async fn join(shared: &Rc<Shared>, way: &Route) -> Result<(), SessionError> {
    log_in(shared, way, |shared, way| shared.machine.borrow_mut().join(way.authentication())).await
}

async fn reinstate(shared: &Rc<Shared>, way: &Route, lost: Cid) -> Result<(), SessionError> {
    log_in(shared, way, |shared, way| {
        let begun = shared.machine.borrow_mut().reinstate(lost, way.authentication());
        begun.then_some(lost)
    })
    .await
}

/// Connects, then begins a login and brings it to its end.
async fn log_in(
    shared: &Rc<Shared>,
    way: &Route,
    begin: impl FnOnce(&Shared, &Route) -> Option<Cid>,
) -> Result<(), SessionError> {
    let attempt = async {
        let stream = dial(&way.portal).await?;
        let Some(connection) = begin(shared, way) else { return Err(SessionError::LoggedOut) };
        let mut attempt = Attempt { shared, connection, joined: false };
        let mut link = Link::new(stream, connection);
        link.join(shared).await?;
        attempt.joined = true;
        Ok(link)
    };
    let link = in_time(&way.portal, way.answer_limit, attempt).await?;
    let served = shared.clone();
    shared.spawn(async move { link.serve(served).await });
    Ok(())
}

/// A login that the machine forgets unless it came to its end.
struct Attempt<'a> {
    shared: &'a Shared,
    connection: Cid,
    joined: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.joined {
            self.shared.machine.borrow_mut().lose(self.connection);
        }
    }
}

impl Route {
    fn authentication(&self) -> Option<Authentication> {
        self.identity.as_ref().map(|identity| identity.authentication(&self.algorithms))
    }
}
