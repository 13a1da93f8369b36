//! Reassignment of tasks between connections (RFC 7143 §7.2, level 2). The driver of a lost connection keeps its tasks
//! until other connections have taken them over, or until the time for that is over.

use std::future::poll_fn;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use sarsen_io::time;
use sarsen_proto::iscsi::target::{Adoption, ReassignReply};
use tokio::sync::{mpsc, oneshot};
use tracing::info;

use super::turn::TurnShare;
use super::{Driver, LogContext};
use crate::fronts::Front;
use crate::mailbox::ConnectionRequest;

impl Driver {
    /// Keeps the tasks of a lost connection for other connections. Returns whether the session supports that.
    pub(super) async fn keep_tasks(
        &mut self,
        front: &Arc<Front>,
        messages: &mut mpsc::UnboundedReceiver<ConnectionRequest>,
    ) -> bool {
        let Some(member) = &self.member else { return false };
        if !self.machine.mark_lost(&mut self.view) {
            return false;
        }
        member.mark_lost();
        let _ = self.stream.shutdown(Shutdown::Both);
        let parameters = self.machine.parameters();
        let seconds = parameters.default_time2wait + parameters.default_time2retain;
        let LogContext { tsih, cid, initiator, target } = self.whose();
        info!(tsih, cid, initiator, target, peer = %self.stream.peer_addr(), seconds, "connection lost: its tasks wait");
        let deadline = time::now() + Duration::from_secs(seconds.into());
        let mut timer = Box::pin(time::sleep_until(time::now()));
        loop {
            // The connections that asked to treat this one as lost may continue.
            self.loss_waiters.clear();
            loop {
                self.carry_out(front, TurnShare::All).await;
                // Commands that waited for this memory continue.
                self.machine.discard_output();
                if self.machine.event_count() == 0 {
                    break;
                }
            }
            self.observer.count_sent();
            if self.machine.closing().is_some() {
                return true;
            }
            let awaiting_room = self.machine.awaits_room();
            if std::mem::take(&mut self.must_look) {
                timer.set(time::sleep_until(self.look()));
            }
            tokio::select! {
                biased;
                Some(message) = messages.recv() => {
                    if self.open(message).is_err() {
                        return true;
                    }
                }
                Some((task, begun, completion)) = self.pending.next(), if !self.pending.is_empty() => {
                    self.end(task, begun, completion);
                }
                Some((task, begun, completion)) = self.deferred.next(), if !self.deferred.is_empty() => {
                    self.end(task, begun, completion);
                }
                () = poll_fn(|context| self.machine.poll_room(context)), if awaiting_room => {
                    if self.machine.resume(&mut self.view).is_err() {
                        return true;
                    }
                }
                () = &mut timer => timer.set(time::sleep_until(self.look())),
                () = time::sleep_until(deadline) => return true,
            }
        }
    }

    /// Answers another connection of the session that claims a task.
    pub(super) fn release(&mut self, tag: u32, answer: oneshot::Sender<ReassignReply>) {
        let claim = self.machine.release(tag);
        if let ReassignReply::Released(released) = &claim
            && let Some(running) = released.running()
        {
            self.released.insert(running.number());
        }
        // If the other connection is closed, the claimed task is dropped with it.
        let _ = answer.send(claim);
    }

    /// Claims a task from the other connections of the session.
    pub(super) fn claim(&mut self, adoption: Adoption) {
        let Some(member) = &self.member else { return };
        let own = self.mailbox.clone();
        let claim = member.claim(adoption.referenced_task_tag(), own.clone());
        tokio::task::spawn_local(async move {
            let (claim, turn) = claim.await;
            let _ = own.send(ConnectionRequest::Adopted { adoption, claim, turn });
        });
    }
}
