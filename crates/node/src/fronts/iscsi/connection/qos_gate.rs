//! Applies the limits and reservations of a volume and of an initiator's host to the commands of a connection.

use std::sync::Arc;

use sarsen_proto::iscsi::target::{Admission, Settings};
use sarsen_scsi::{Cdb, Command, Lun, NexusHandle};
use sarsen_wire::scsi::opcode;

use crate::access::Origin;
use crate::qos::{Account, Admit, Cost, Peer, Qos, Queue, QueueLimit};
use crate::statistics::Operation;

/// See the module.
pub(super) struct QosGate {
    qos: Arc<Qos>,
    room: QueueLimit,
    queue: Arc<Queue>,
    /// The initiator's name, its authenticated account, and its origin.
    peer: Option<(String, Option<String>, Origin)>,
    host: Option<Arc<Account>>,
    /// The generation of the hosts when the host was found.
    generation: Option<u64>,
}

impl QosGate {
    pub(super) fn new(qos: Arc<Qos>, settings: &Settings) -> Self {
        let room =
            QueueLimit::three_quarters_of(settings.command_window as usize, settings.room_limit);
        let queue = Arc::default();
        Self { qos, room, queue, peer: None, host: None, generation: None }
    }

    /// Sets the peer after the login, and the queue that counts the waiting commands of the whole session.
    pub(super) fn established(
        &mut self,
        admission: &Admission,
        origin: &Origin,
        queue: Arc<Queue>,
    ) {
        let (name, account) = (admission.initiator_name.clone(), admission.account.clone());
        self.peer = Some((name, account, origin.clone()));
        self.queue = queue;
        self.generation = None;
    }

    /// Decides about a command to a volume whose commands must be admitted.
    #[cold]
    pub(super) fn admit(
        &mut self,
        volume: &Arc<Account>,
        nexus: &mut NexusHandle,
        lun: Option<Lun>,
        operation: Operation,
        command: &Command,
    ) -> Admit {
        if !is_charged(operation, &command.cdb) {
            return Admit::Now;
        }
        let generation = self.qos.generation();
        if self.generation != Some(generation) {
            self.host = self.peer.as_ref().and_then(|(initiator, account, origin)| {
                self.qos.host(&Peer {
                    initiator,
                    address: origin.peer.ip(),
                    account: account.as_deref(),
                    certificate: origin.certificate.as_ref(),
                })
            });
            self.generation = Some(generation);
        }
        // If the session has only one unit, its waiting commands may fill the whole command window.
        let room = (nexus.unit_count() > 1).then_some(self.room);
        let cost = || Cost { bytes: nexus.moved_bytes(lun, command) };
        self.qos.admit(volume, self.host.as_ref(), cost, &self.queue, room)
    }
}

/// Returns whether a command uses the medium. Commands that only query a unit never wait.
fn is_charged(operation: Operation, cdb: &Cdb) -> bool {
    use opcode::*;
    operation != Operation::Other
        || matches!(
            cdb.operation_code(),
            VERIFY_10
                | VERIFY_12
                | VERIFY_16
                | PRE_FETCH_10
                | PRE_FETCH_16
                | THIRD_PARTY_COPY_OUT
                | VARIABLE_LENGTH
        )
}
