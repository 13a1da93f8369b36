//! A connection moves to another core while it is idle: it has no open request, and nothing waits to be sent. It takes its
//! machine, its session and its messages with it; only its socket is registered again.

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
        if !self.place.is_check_due() {
            return None;
        }
        let is_idle = self.is_idle();
        self.place.check(is_idle)
    }

    /// Returns whether the connection has only state that can move.
    fn is_idle(&mut self) -> bool {
        self.session.is_some()
            && self.pending.is_empty()
            && self.held.is_empty()
            && self.machine.output().is_empty()
            && self.machine.open_requests() == 0
            && self.machine.payload_missing().is_none()
            && !self.machine.waits_for_memory()
            && !self.is_leaving
    }

    /// Continues the connection on another core. Returns it if its socket cannot be registered there.
    pub(super) fn move_to(
        mut self,
        core: usize,
        messages: Messages,
    ) -> Option<(Box<Self>, Messages)> {
        let socket = match self.place.register(core, self.stream.as_mut()?) {
            Ok(socket) => socket,
            Err(error) => {
                debug!(%error, "a connection is not moved: its socket cannot be registered at the core");
                return Some((Box::new(self), messages));
            }
        };
        let Self { front, machine, exports, connection_permit, mailbox, session, used, .. } = self;
        let (stall_deadline, last_sent) = (self.stall_deadline, self.last_sent);
        self.place.move_to(core, move |place| async move {
            let driver = Self {
                front,
                stream: Some(Stream::from(socket)),
                machine,
                exports,
                connection_permit,
                mailbox,
                session,
                pending: FuturesUnordered::new(),
                held: Vec::new(),
                used,
                stall_deadline,
                last_sent,
                is_leaving: false,
                ending_deadline: None,
                terminated: Vec::new(),
                place,
            };
            serve_to_the_end(driver, messages).await;
        });
        None
    }
}
