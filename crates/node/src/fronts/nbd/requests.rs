//! The requests of a session: their limits, their execution on the volume, and their statistics.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use sarsen_block::{BlockSize, Io, LocalFuture};
use sarsen_proto::nbd::server::{Operation, Outcome};
use sarsen_volume::qos::{Admit, Cost, Queue};
use sarsen_volume::{self as volume, Attachment, OperationKind};
use sarsen_wire::nbd::ErrorCode;
use tokio::sync::watch;

use super::execution::{RequestError, execute, failed};
use super::exports::TargetPath;
use crate::fronts::Front;
use crate::fronts::observer::{BegunRequest, Observer, VolumeIndex};
use crate::fronts::qos_gate::QosGate;
use crate::sessions::Client;

/// The result of a request for the machine.
pub(super) type Answer = Result<Outcome, ErrorCode>;

/// A request that has ended, with the values that its statistics need.
pub(super) struct Completed {
    begun: BegunRequest,
    result: Result<Outcome, RequestError>,
}

/// A request that was started.
pub(super) enum Started {
    Ended(Answer),
    Pending(PendingRequest),
}

/// A pending request.
pub(super) struct PendingRequest {
    task: u64,
    begun: BegunRequest,
    answer: LocalFuture<Result<Outcome, RequestError>>,
}

impl Future for PendingRequest {
    type Output = (u64, Completed);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (task, begun) = (self.task, self.begun);
        self.answer.as_mut().poll(context).map(|result| (task, Completed { begun, result }))
    }
}

/// See the module.
pub(super) struct Requests {
    volume: Arc<Attachment>,
    path: TargetPath,
    block_size: BlockSize,
    index: VolumeIndex,
    observer: Observer,
    qos_gate: QosGate,
    /// Whether the session has ended. No request, and no further piece of a request, is started then.
    is_cancelled: bool,
    /// The same, for open requests.
    cancelled: watch::Sender<bool>,
}

impl Requests {
    pub(super) fn new(
        front: &Front,
        (volume, path): (Arc<Attachment>, TargetPath),
        volume_name: &str,
        client: Client,
        (session, queue): (u16, Arc<Queue>),
    ) -> Self {
        let (mut observer, mut qos_gate) = (Observer::new(front), QosGate::new(front.qos.clone()));
        observer.established(&client.name, session);
        qos_gate.established(client, queue);
        Self {
            block_size: volume.volume().geometry().block_size,
            volume,
            path,
            index: observer.volume_index(volume_name),
            observer,
            qos_gate,
            is_cancelled: false,
            cancelled: watch::Sender::new(false),
        }
    }

    /// Ends requests that wait for their turn, and those that have more pieces. So a later client never finds that a
    /// write of this session begins after one of its own.
    pub(super) fn cancel(&mut self) {
        self.is_cancelled = true;
        self.cancelled.send_replace(true);
    }

    /// Returns the volume.
    pub(super) fn volume(&self) -> &Arc<volume::Volume> {
        self.volume.volume()
    }

    /// Sets the arrival time of requests.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.observer.arrived(now);
    }

    /// Starts a request.
    pub(super) fn start(&mut self, task: u64, operation: Operation) -> Started {
        let (counted, bytes) = counted(&operation);
        let begun = self.observer.begin(self.index, counted, bytes);
        if let Err(error) = self.check() {
            return Started::Ended(self.end(Completed { begun, result: Err(error) }));
        }
        if let Some(account) = self.observer.governed(begun) {
            let cost = || Cost { bytes: bytes as u64 };
            let admit = self.qos_gate.admit(account, counted, cost, None);
            if let Admit::After(wait) = admit {
                self.observer.limited(begun);
                let (volume, block_size) = (self.volume.clone(), self.block_size);
                let (mut cancelled, path) = (self.cancelled.subscribe(), self.path.clone());
                let answer = Box::pin(async move {
                    let slot = tokio::select! {
                        biased;
                        _ = cancelled.wait_for(|cancelled| *cancelled) => {
                            return Err(RequestError::Cancelled);
                        }
                        slot = wait.wait_until_runnable() => slot,
                    };
                    check_active(&path)?;
                    let result = execute(&volume, block_size, operation, || cancelled).wait().await;
                    drop(slot);
                    result
                });
                return Started::Pending(PendingRequest { task, begun, answer });
            }
        }
        match execute(&self.volume, self.block_size, operation, || self.cancelled.subscribe()) {
            Io::Ready(result) => Started::Ended(self.end(Completed { begun, result })),
            Io::Pending(answer) => Started::Pending(PendingRequest { task, begun, answer }),
        }
    }

    /// Returns why no request may start now.
    fn check(&self) -> Result<(), RequestError> {
        if self.is_cancelled { Err(RequestError::Cancelled) } else { check_active(&self.path) }
    }

    /// Counts a completed request in the statistics, and returns its result for the protocol machine.
    pub(super) fn end(&mut self, completed: Completed) -> Answer {
        let Completed { begun, result } = completed;
        let result = result.map_err(|error| failed(&error));
        self.observer.end(begun, result.as_ref().err().map(|(failure, _)| *failure), 0);
        result.map_err(|(_, code)| code)
    }

    /// Counts the requests whose replies are about to be sent.
    pub(super) fn count_sent(&mut self) {
        self.observer.count_sent();
    }
}

/// Returns a request as limits and statistics see it, and the number of bytes that a success transfers.
fn counted(operation: &Operation) -> (volume::Operation, usize) {
    use volume::Operation as Counted;
    match operation {
        Operation::Read { length, .. } => (Counted::of(OperationKind::Read), *length as usize),
        Operation::Write { data, .. } => (Counted::of(OperationKind::Write), data.len()),
        Operation::Flush => (Counted::of(OperationKind::Flush), 0),
        Operation::Trim { .. } => (Counted::of(OperationKind::Unmap), 0),
        Operation::WriteZeroes { .. } => (Counted::of(OperationKind::Write), 0),
        Operation::Cache { .. } | Operation::BlockStatus { .. } => {
            (Counted::of(OperationKind::Other), 0)
        }
    }
}

/// Returns an error if the target port group is not active, as iSCSI does for its commands.
fn check_active(path: &TargetPath) -> Result<(), RequestError> {
    if path.is_active() { Ok(()) } else { Err(RequestError::Inactive) }
}
