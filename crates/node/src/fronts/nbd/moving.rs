//! A connection moves to another core while it has no open request. It takes its machine, its session and its messages
//! with it; only its socket is registered again.

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
        if !self.place.is_due() {
            return None;
        }
        let is_at_rest = self.is_at_rest();
        self.place.destination(is_at_rest)
    }

    /// Returns whether nothing of the connection is in progress.
    fn is_at_rest(&mut self) -> bool {
        self.session.is_some()
            && self.pending.is_empty()
            && self.held.is_empty()
            && self.machine.output().is_empty()
            && self.machine.open_requests() == 0
            && self.machine.payload_missing().is_none()
            && !self.machine.waits_for_memory()
            && !self.is_leaving
    }

    /// Continues the connection on another core. Returns it if its socket cannot leave this core.
    pub(super) fn move_to(
        mut self,
        core: usize,
        messages: Messages,
    ) -> Option<(Box<Self>, Messages)> {
        let detached = match self.stream.as_mut()?.detach() {
            Ok(detached) => detached,
            Err(error) => {
                debug!(%error, "a connection cannot leave its core, and stays there for now");
                return Some((Box::new(self), messages));
            }
        };
        let Self { front, machine, exports, connection_permit, mailbox, session, used, .. } = self;
        let (stall_deadline, last_sent) = (self.stall_deadline, self.last_sent);
        self.place.move_to(core, move |place| async move {
            let stream = match Stream::attach(detached) {
                Ok(stream) => stream,
                // The client connects again.
                Err(error) => return info!(%error, "connection lost when it moved to a core"),
            };
            let driver = Self {
                front,
                stream: Some(stream),
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
