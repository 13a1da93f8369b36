//! Applies the limits and reservations of volumes and of a client's host to the requests of a connection.

use std::sync::Arc;

use sarsen_volume::Operation;
use sarsen_volume::qos::{Account, Admit, Cost, Queue, QueueLimit};

use crate::qos::Qos;
use crate::sessions::Client;

/// See the module.
pub(super) struct QosGate {
    qos: Arc<Qos>,
    /// Counts the waiting requests of the whole session.
    queue: Arc<Queue>,
    /// Present after the login.
    client: Option<Client>,
    host: Option<Arc<Account>>,
    /// The generation of the hosts when the host was found.
    generation: Option<u64>,
}

impl QosGate {
    pub(super) fn new(qos: Arc<Qos>) -> Self {
        Self { qos, queue: Arc::default(), client: None, host: None, generation: None }
    }

    /// Sets the client and its session's queue.
    pub(super) fn established(&mut self, client: Client, queue: Arc<Queue>) {
        self.client = Some(client);
        self.queue = queue;
        self.generation = None;
    }

    /// Decides about a request to a volume whose requests must be admitted. With `room`, waiting requests may occupy no
    /// more than that.
    #[cold]
    pub(super) fn admit(
        &mut self,
        volume: &Arc<Account>,
        operation: Operation,
        cost: impl FnOnce() -> Cost,
        room: Option<QueueLimit>,
    ) -> Admit {
        if !operation.is_charged {
            return Admit::Now;
        }
        let generation = self.qos.generation();
        if self.generation != Some(generation) {
            self.host = self.client.as_ref().and_then(|client| self.qos.host_of(client));
            self.generation = Some(generation);
        }
        self.qos.admit(volume, self.host.as_ref(), cost, &self.queue, room)
    }
}
