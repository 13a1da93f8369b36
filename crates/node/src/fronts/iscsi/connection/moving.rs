//! A connection moves to another core while it has nothing in progress. It takes its machine, its session and its
//! messages with it; only its socket is registered again.

use std::collections::HashMap;

use futures_util::stream::FuturesUnordered;
use sarsen_io::net::Stream;
use tokio::sync::mpsc;
use tracing::{debug, info};

use super::{Driver, serve_to_the_end};
use crate::mailbox::ConnectionRequest;

type Messages = mpsc::UnboundedReceiver<ConnectionRequest>;

impl Driver {
    /// Returns the core to which the connection moves now, if there is one.
    #[inline]
    pub(super) fn destination(&mut self) -> Option<usize> {
        if !self.place.as_mut()?.is_due() {
            return None;
        }
        let is_at_rest = self.is_at_rest();
        self.place.as_mut()?.destination(is_at_rest)
    }

    /// Returns whether nothing of the connection is in progress.
    fn is_at_rest(&mut self) -> bool {
        self.member.is_some()
            && self.pending.is_empty()
            && self.deferred.is_empty()
            && self.stalls.is_empty()
            && self.tokens.is_empty()
            && self.terminated.is_empty()
            && self.loss_waiters.is_empty()
            && self.forwards.is_empty()
            && self.machine.event_count() == 0
            && self.machine.output().is_empty()
            && self.machine.is_between_pdus()
            && !self.machine.awaits_room()
            && self.machine.closing().is_none()
    }

    /// Continues the connection on another core. Returns it if its socket cannot leave this core.
    pub(super) fn move_to(
        mut self,
        core: usize,
        messages: Messages,
    ) -> Option<(Box<Self>, Messages)> {
        let detached = match self.stream.detach() {
            Ok(detached) => detached,
            Err(error) => {
                debug!(%error, "a connection cannot leave its core, and stays there for now");
                return Some((Box::new(self), messages));
            }
        };
        let Self { front, machine, view, connection_permit, mailbox, member, .. } = self;
        let Self { target_name, subject, next_token, observer, units, qos_gate, .. } = self;
        let Self { queue_limit, tap, .. } = self;
        self.place?.move_to(core, move |place| async move {
            let stream = match Stream::attach(detached) {
                Ok(stream) => stream,
                // The initiator connects again.
                Err(error) => return info!(%error, "connection lost when it moved to a core"),
            };
            let driver = Self {
                front,
                stream,
                machine,
                view,
                connection_permit,
                pending: FuturesUnordered::new(),
                deferred: FuturesUnordered::new(),
                stalls: Vec::new(),
                must_look: false,
                mailbox,
                member,
                target_name,
                subject,
                tokens: Vec::new(),
                next_token,
                terminated: Vec::new(),
                loss_waiters: Vec::new(),
                forwards: HashMap::new(),
                observer,
                units,
                qos_gate,
                queue_limit,
                tap,
                is_sent_whole: true,
                place: Some(place),
            };
            serve_to_the_end(driver, messages).await;
        });
        None
    }
}
