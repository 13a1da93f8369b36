//! A connection moves to another core while it is idle: no store carries out one of its commands, and nothing waits to
//! be sent. It takes its machine, its session and its messages with it; only its socket is registered again.

use std::collections::HashSet;

use futures_util::stream::FuturesUnordered;
use sarsen_io::net::Stream;
use tokio::sync::mpsc;
use tracing::debug;

use super::{Driver, serve_to_the_end};
use crate::mailbox::ConnectionRequest;

type Messages = mpsc::UnboundedReceiver<ConnectionRequest>;

impl Driver {
    /// Returns the core to which the connection moves now, if there is one.
    #[inline]
    pub(super) fn destination(&mut self) -> Option<usize> {
        if !self.place.as_mut()?.is_check_due() {
            return None;
        }
        let is_idle = self.is_idle();
        self.place.as_mut()?.check(is_idle)
    }

    /// Returns whether the connection has only state that can move.
    fn is_idle(&mut self) -> bool {
        self.member.is_some()
            && self.pending.is_empty()
            && self.deferred.is_empty()
            && self.stalls.is_empty()
            && self.tokens.is_empty()
            && self.terminated.is_empty()
            && self.loss_waiters.is_empty()
            && self.released.is_empty()
            && self.machine.event_count() == 0
            && self.machine.output().is_empty()
            && self.machine.is_between_pdus()
            && !self.machine.awaits_room()
            && self.machine.closing().is_none()
    }

    /// Continues the connection on another core. Returns it if its socket cannot be registered there.
    pub(super) fn move_to(
        mut self,
        core: usize,
        messages: Messages,
    ) -> Option<(Box<Self>, Messages)> {
        let place = self.place.take()?;
        let socket = match place.register(core, &mut self.stream) {
            Ok(socket) => socket,
            Err(error) => {
                debug!(%error, "a connection is not moved: its socket cannot be registered at the core");
                self.place = Some(place);
                return Some((Box::new(self), messages));
            }
        };
        let Self { front, machine, view, connection_permit, mailbox, member, .. } = self;
        let Self { target_name, subject, next_token, observer, units, qos_gate, .. } = self;
        let Self { queue_limit, tap, .. } = self;
        place.move_to(core, move |place| async move {
            let driver = Self {
                front,
                stream: Stream::from(socket),
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
                released: HashSet::new(),
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
