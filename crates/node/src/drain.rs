//! Draining of targets, and logouts of sessions. New sessions are rejected or redirected. Existing sessions are asked
//! to log out, and are terminated at the end of their grace time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use sarsen_io::time;
use sarsen_proto::iscsi::target::{Refusal, RefusalReason};
use tokio::sync::{oneshot, watch};

use crate::config::Redirect;
use crate::mailbox::{ConnectionRequest, Mailbox};

/// Maximum time to wait for terminated sessions, which end when their store answers.
const ENDING_LIMIT: Duration = Duration::from_secs(30);

/// The targets that accept no sessions now. They are looked up when a session begins.
#[derive(Default)]
pub(crate) struct Drains {
    by_target: Mutex<BTreeMap<String, Drained>>,
    /// The targets that are about to be removed.
    going: Mutex<BTreeSet<String>>,
}

struct Drained {
    redirect: Option<Redirect>,
    /// The drain still waits for sessions.
    is_under_way: bool,
    /// Notified, or dropped, when the target is in service again.
    ended: watch::Sender<bool>,
}

/// The service state of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    In,
    Draining,
    Out,
}

/// The error that a target is being drained already.
#[derive(Debug)]
pub(crate) struct AlreadyDraining;

/// The result of the logouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) asked: usize,
    /// Number of sessions that logged out in time.
    pub(crate) logged_out: usize,
    /// Number of sessions that the server terminated.
    pub(crate) dropped: usize,
    /// Number of terminated sessions that a store still holds.
    pub(crate) ending: usize,
    /// The target was put back into service before the end. Remaining sessions stay.
    pub(crate) is_called_off: bool,
}

/// A drain in progress. The target stays out of service after its end.
pub(crate) struct Draining {
    drains: Arc<Drains>,
    target: String,
    ended: watch::Receiver<bool>,
}

impl Drains {
    fn by_target(&self) -> MutexGuard<'_, BTreeMap<String, Drained>> {
        self.by_target.lock()
    }

    fn going(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.going.lock()
    }

    /// Rejects new sessions of a target that is about to be removed.
    pub(crate) fn reject_sessions(&self, target: &str) {
        self.going().insert(target.to_owned());
    }

    /// Permits sessions of a target that is not removed after all.
    pub(crate) fn release(&self, target: &str) {
        self.going().remove(target);
    }

    /// Forgets a removed target. A new target with its name is in service.
    pub(crate) fn forget(&self, target: &str) {
        self.release(target);
        self.end(target);
    }

    /// Takes a target out of service. New sessions are rejected from then on.
    pub(crate) fn begin(
        self: &Arc<Self>,
        target: &str,
        redirect: Option<Redirect>,
    ) -> Result<Draining, AlreadyDraining> {
        let mut by_target = self.by_target();
        if by_target.get(target).is_some_and(|drained| drained.is_under_way) {
            return Err(AlreadyDraining);
        }
        let (sender, ended) = watch::channel(false);
        by_target
            .insert(target.to_owned(), Drained { redirect, is_under_way: true, ended: sender });
        Ok(Draining { drains: self.clone(), target: target.to_owned(), ended })
    }

    /// Puts a target back into service. Returns false if it was in service.
    pub(crate) fn end(&self, target: &str) -> bool {
        let ended = self.by_target().remove(target);
        ended.map(|drained| drained.ended.send_replace(true)).is_some()
    }

    /// Returns the service state of a target, and the redirection of its initiators.
    pub(crate) fn service(&self, target: &str) -> (Service, Option<Redirect>) {
        match self.by_target().get(target) {
            None => (Service::In, None),
            Some(Drained { redirect, is_under_way: true, .. }) => {
                (Service::Draining, redirect.clone())
            }
            Some(Drained { redirect, .. }) => (Service::Out, redirect.clone()),
        }
    }

    /// Returns the reason to refuse a session with a target, if it is out of service or redirected by `configured`.
    pub(crate) fn refusal(&self, target: &str, configured: Option<&Redirect>) -> Option<Refusal> {
        if self.going().contains(target) {
            return Some(RefusalReason::NotInService.into());
        }
        let by_target = self.by_target();
        let drained = by_target.get(target);
        match drained.and_then(|drained| drained.redirect.as_ref()).or(configured) {
            Some(Redirect { address, permanent }) => Some(Refusal {
                reason: if *permanent {
                    RefusalReason::MovedPermanently
                } else {
                    RefusalReason::MovedTemporarily
                },
                target_address: Some(address.clone()),
            }),
            None => drained.map(|_| RefusalReason::NotInService.into()),
        }
    }
}

impl Draining {
    /// Asks the target's sessions to log out, and terminates the remaining ones.
    pub(crate) async fn run(mut self, sessions: Vec<Vec<Mailbox>>, grace: Duration) -> Outcome {
        let called_off = async {
            let _ = self.ended.wait_for(|ended| *ended).await;
        };
        send_away(&sessions, grace, called_off).await
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        let mut by_target = self.drains.by_target();
        // If the drain was cancelled and begun again since, its sender was dropped.
        if self.ended.has_changed().is_ok()
            && let Some(drained) = by_target.get_mut(&self.target)
        {
            drained.is_under_way = false;
        }
    }
}

/// Asks sessions to log out (RFC 7143 §11.9.1), each by the mailboxes of its connections. Waits until they have logged
/// out or the grace time is over, and terminates the remaining ones, unless `called_off` resolves first.
pub(crate) async fn send_away(
    sessions: &[Vec<Mailbox>],
    grace: Duration,
    called_off: impl Future<Output = ()>,
) -> Outcome {
    let seconds = u16::try_from(grace.as_secs()).unwrap_or(u16::MAX);
    let deadline = time::now() + grace;
    for mailbox in sessions.iter().flatten() {
        // A closed connection has closed its mailbox.
        let _ = mailbox.send(ConnectionRequest::RequestLogout { seconds });
    }
    let is_called_off = tokio::select! {
        () = wait_until_ended(sessions) => false,
        () = time::sleep_until(deadline) => false,
        () = called_off => true,
    };
    let asked = sessions.len();
    let left = count_left(sessions);
    let logged_out = asked - left;
    if is_called_off {
        return Outcome { asked, logged_out, is_called_off, ..Outcome::default() };
    }
    for mailbox in sessions.iter().flatten() {
        let (ended, _) = oneshot::channel();
        let _ = mailbox.send(ConnectionRequest::Terminate { ended });
    }
    tokio::select! {
        () = wait_until_ended(sessions) => {}
        () = time::sleep_until(time::now() + ENDING_LIMIT) => {}
    }
    let ending = count_left(sessions);
    Outcome { asked, logged_out, dropped: left, ending, is_called_off }
}

/// Waits until these sessions have ended.
pub(crate) async fn wait_until_ended(sessions: &[Vec<Mailbox>]) {
    join_all(sessions.iter().flatten().map(|mailbox| mailbox.closed())).await;
}

fn count_left(sessions: &[Vec<Mailbox>]) -> usize {
    let is_left = |session: &&Vec<Mailbox>| session.iter().any(|mailbox| !mailbox.is_closed());
    sessions.iter().filter(is_left).count()
}

#[cfg(test)]
mod tests {
    use sarsen_io::cores::{FileEngine, block_on};
    use tokio::sync::mpsc;

    use super::*;

    const TARGET: &str = "iqn.2026-11.test:t";

    fn elsewhere(permanent: bool) -> Redirect {
        Redirect { address: "192.0.2.7:3260".into(), permanent }
    }

    #[test]
    fn rfc7143_11_13_5_a_drained_target_is_out_of_service_or_elsewhere() {
        let drains: Arc<Drains> = Arc::default();
        let reason = |configured: Option<&Redirect>| {
            drains
                .refusal(TARGET, configured)
                .map(|refusal| (refusal.reason, refusal.target_address))
        };
        let address = || Some(elsewhere(false).address);
        assert_eq!(reason(None), None);
        let moved = reason(Some(&elsewhere(true)));
        assert_eq!(moved, Some((RefusalReason::MovedPermanently, address())));
        let draining = drains.begin(TARGET, None).expect("the first");
        assert_eq!(reason(None), Some((RefusalReason::NotInService, None)));
        assert_eq!(reason(Some(&elsewhere(true))), moved, "it is still to be found there");
        assert_eq!(drains.service(TARGET), (Service::Draining, None));
        assert!(drains.begin(TARGET, None).is_err(), "one at a time");
        drop(draining);
        assert_eq!(drains.service(TARGET), (Service::Out, None));
        let again = drains.begin(TARGET, Some(elsewhere(false))).expect("after the first");
        let moved = reason(Some(&elsewhere(true)));
        assert_eq!(moved, Some((RefusalReason::MovedTemporarily, address())));
        assert!(drains.end(TARGET));
        assert!(!drains.end(TARGET));
        let newer = drains.begin(TARGET, None).expect("the one before was called off");
        drop(again);
        assert_eq!(drains.service(TARGET).0, Service::Draining, "the newer one goes on");
        drop(newer);
        assert_eq!(drains.service(TARGET).0, Service::Out);
    }

    /// One session ends after the request to log out, the other one after its termination.
    #[test]
    fn rfc7143_11_9_1_sessions_are_asked_first_and_dropped_when_their_time_is_over() {
        let (polite, mut polite_messages) = mpsc::unbounded_channel();
        let (deaf, mut deaf_messages) = mpsc::unbounded_channel();
        let outcome = block_on(FileEngine::Pool, async {
            tokio::task::spawn_local(async move {
                let letter = polite_messages.recv().await;
                assert!(matches!(letter, Some(ConnectionRequest::RequestLogout { seconds: 60 })));
            });
            tokio::task::spawn_local(async move {
                assert!(matches!(
                    deaf_messages.recv().await,
                    Some(ConnectionRequest::RequestLogout { .. })
                ));
                assert!(matches!(
                    deaf_messages.recv().await,
                    Some(ConnectionRequest::Terminate { .. })
                ));
            });
            let (minute, never) = (Duration::from_secs(60), std::future::pending);
            let first = send_away(&[vec![polite]], minute, never()).await;
            (first, send_away(&[vec![deaf]], Duration::ZERO, never()).await)
        });
        let (first, second) = outcome.expect("a runtime");
        assert_eq!(first, Outcome { asked: 1, logged_out: 1, ..Outcome::default() });
        assert_eq!(second, Outcome { asked: 1, dropped: 1, ..Outcome::default() });
    }

    #[test]
    fn remaining_sessions_stay_after_cancelled_drain() {
        let drains: Arc<Drains> = Arc::default();
        let (mailbox, mut messages) = mpsc::unbounded_channel();
        let outcome = block_on(FileEngine::Pool, async {
            let draining = drains.begin(TARGET, None).expect("the first");
            let drain = draining.run(vec![vec![mailbox]], Duration::from_secs(600));
            let call_off = async {
                assert!(matches!(
                    messages.recv().await,
                    Some(ConnectionRequest::RequestLogout { seconds: 600 })
                ));
                assert!(drains.end(TARGET));
            };
            tokio::join!(drain, call_off).0
        });
        let outcome = outcome.expect("a runtime");
        assert!(outcome.is_called_off && outcome.asked == 1 && outcome.dropped == 0);
        assert!(messages.try_recv().is_err(), "it was told nothing more");
    }
}
