//! A ring of requests, which one core serves.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt as _, StreamExt as _};
use sarsen_block::{Io, LocalFuture};
use sarsen_io::event::{Event, Signal};
use tokio::sync::watch;
use tracing::warn;
use virtio_queue::{Queue, QueueOwnedT as _, QueueT as _};
use vm_memory::GuestMemoryMmap;

use super::super::disk::Access;
use super::device::{Answer, Chain, Request, write_answer};

/// Maximum number of bytes in the requests of a ring that are carried out at a time.
const BYTES_LIMIT: usize = 16 << 20;

/// A ring.
pub(super) struct Ring {
    pub(super) queue: Queue,
    pub(super) memory: Arc<GuestMemoryMmap>,
    pub(super) call: Option<Signal>,
    pub(super) access: Arc<Access>,
    /// Whether the virtual machine knows that writes need a flush.
    pub(super) is_cached: bool,
}

/// A request that is complete.
struct Completed {
    chain: Chain,
    answer: Answer,
    bytes: usize,
}

impl Ring {
    /// Serves the ring until it is stopped. Returns the number of its next entry: all before it are complete.
    pub(super) async fn serve(mut self, kick: OwnedFd, mut stop: watch::Receiver<bool>) -> u16 {
        let mut pending = FuturesOrdered::new();
        let served = match Event::new(kick) {
            Ok(kick) => self.run(&kick, &mut stop, &mut pending).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            warn!(%error, "a ring of the virtual machine cannot be served further");
            while pending.next().await.is_some() {}
            // A sender that is gone has stopped the ring, too.
            let _ = stop.wait_for(|is_stopped| *is_stopped).await;
        }
        self.queue.next_avail()
    }

    async fn run(
        &mut self,
        kick: &Event,
        stop: &mut watch::Receiver<bool>,
        pending: &mut FuturesOrdered<LocalFuture<Completed>>,
    ) -> io::Result<()> {
        let mut bytes = 0;
        // An earlier process may have ended between the completion of a request and this signal.
        self.signal();
        loop {
            let is_stopping = *stop.borrow();
            if is_stopping && pending.is_empty() {
                return Ok(());
            }
            while !is_stopping && bytes < BYTES_LIMIT {
                let Some(chain) = self.take()? else { break };
                let request = Request::read(&self.access, &chain, self.is_cached);
                let request_bytes = request.as_ref().map_or(0, Request::bytes);
                bytes += request_bytes;
                let answer = match request {
                    Ok(request) => request.start(&self.access),
                    Err(status) => Io::Ready(Err(status)),
                };
                pending.push_back(Box::pin(async move {
                    Completed { chain, answer: answer.wait().await, bytes: request_bytes }
                }));
            }
            tokio::select! {
                biased;
                Some(completed) = pending.next(), if !pending.is_empty() => {
                    bytes -= self.complete(completed)?;
                    while let Some(Some(completed)) = pending.next().now_or_never() {
                        bytes -= self.complete(completed)?;
                    }
                    if self.queue.needs_notification(&*self.memory).map_err(broken)? {
                        self.signal();
                    }
                }
                kicked = kick.received(), if !is_stopping && bytes < BYTES_LIMIT => kicked?,
                _ = stop.changed(), if !is_stopping => {}
            }
        }
    }

    /// Returns the next request. If there is none, the virtual machine will signal the next one.
    fn take(&mut self) -> io::Result<Option<Chain>> {
        loop {
            let next = self.queue.iter(self.memory.clone()).map_err(broken)?.next();
            if next.is_some() {
                return Ok(next);
            }
            if !self.queue.enable_notification(&*self.memory).map_err(broken)? {
                return Ok(None);
            }
        }
    }

    /// Gives a request back to the virtual machine. Returns the number of its bytes.
    fn complete(&mut self, completed: Completed) -> io::Result<usize> {
        let Completed { chain, answer, bytes } = completed;
        let written = write_answer(&chain, answer);
        self.queue.add_used(&*self.memory, chain.head_index(), written).map_err(broken)?;
        Ok(bytes)
    }

    fn signal(&self) {
        if let Some(call) = &self.call {
            call.send();
        }
    }
}

fn broken(error: virtio_queue::Error) -> io::Error {
    io::Error::other(error.to_string())
}
