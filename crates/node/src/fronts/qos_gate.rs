//! Applies the limits and reservations of volumes and of a client's host to the requests of a connection.

use std::sync::Arc;

use sarsen_volume::Operation;
use sarsen_volume::qos::{Account, Admit, Cost, Queue, QueueLimit};

use crate::access::Origin;
use crate::qos::{Peer, Qos};

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

/// The client of a connection, after its login.
pub(super) struct Client {
    /// The initiator name, or the name of a client of another protocol.
    pub(super) name: String,
    /// The authenticated account.
    pub(super) account: Option<String>,
    pub(super) origin: Origin,
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
            self.host = self.client.as_ref().and_then(|Client { name, account, origin }| {
                self.qos.host_of(&Peer {
                    name,
                    address: origin.peer.ip(),
                    account: account.as_deref(),
                    certificate: origin.certificate.as_ref(),
                })
            });
            self.generation = Some(generation);
        }
        self.qos.admit(volume, self.host.as_ref(), cost, &self.queue, room)
    }
}
