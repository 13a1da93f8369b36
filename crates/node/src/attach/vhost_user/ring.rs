//! A ring of requests, which one core serves.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt as _, StreamExt as _};
use sarsen_block::{Io, LocalFuture};
use sarsen_io::eventfd::{EventReceiver, EventSender};
use tokio::sync::watch;
use virtio_queue::{Queue, QueueOwnedT as _, QueueT as _};
use vm_memory::GuestMemoryMmap;

use super::super::disk::Access;
use super::device::{Answer, Chain, Request, SEGMENTS, write_answer};

/// Maximum number of bytes in the requests of all rings that are carried out at a time. A ring without such a request may always begin one.
const BYTES_LIMIT: usize = 64 << 20;
/// Maximum number of the descriptors of a request: its segments, its header and its status. Longer ones would take a core's time.
const DESCRIPTORS_LIMIT: usize = SEGMENTS as usize + 2;

/// A ring.
pub(super) struct Ring {
    pub(super) queue: Queue,
    pub(super) memory: Arc<GuestMemoryMmap>,
    pub(super) call: Option<EventSender>,
    pub(super) access: Arc<Access>,
    /// Whether the driver sends flushes. Otherwise each write is durable.
    pub(super) flush_negotiated: bool,
    /// Number of bytes in the requests of all rings.
    pub(super) bytes: Arc<AtomicUsize>,
}

/// A request that is complete.
struct Completed {
    chain: Chain,
    answer: Answer,
    bytes: usize,
}

impl Ring {
    /// Serves the ring until it is stopped. Returns the number of its first entry that is not complete.
    pub(super) async fn serve(mut self, kick: OwnedFd, mut stop: watch::Receiver<bool>) -> u16 {
        // The used index is only where completions are written. It need not be that of the first entry.
        let distance = self.queue.next_avail().wrapping_sub(self.queue.next_used());
        let mut pending = FuturesOrdered::new();
        let served = match EventReceiver::new(kick) {
            Ok(kick) => self.run(&kick, &mut stop, &mut pending).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            self.access.note_failure(&format_args!(
                "a ring is not served further, the virtual machine must reset the device: {error}"
            ));
            while let Some(completed) = pending.next().await {
                // The ring itself may be unusable.
                let _ = self.complete(completed);
            }
            self.signal();
            // A dropped sender also means stop.
            let _ = stop.wait_for(|is_stopped| *is_stopped).await;
        }
        self.queue.next_used().wrapping_add(distance)
    }

    async fn run(
        &mut self,
        kick: &EventReceiver,
        stop: &mut watch::Receiver<bool>,
        pending: &mut FuturesOrdered<LocalFuture<Completed>>,
    ) -> io::Result<()> {
        // An earlier process may have ended between the completion of a request and this signal.
        self.signal();
        loop {
            let is_stopping = *stop.borrow();
            if is_stopping && pending.is_empty() {
                return Ok(());
            }
            while !is_stopping && self.has_room(pending.len()) {
                let Some(chain) = self.take()? else { break };
                let request = Request::read(&self.access, &chain, self.flush_negotiated);
                let request_bytes = request.as_ref().map_or(0, Request::bytes);
                self.bytes.fetch_add(request_bytes, Ordering::Relaxed);
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
                    self.complete(completed)?;
                    while let Some(Some(completed)) = pending.next().now_or_never() {
                        self.complete(completed)?;
                    }
                    if self.queue.needs_notification(&*self.memory).map_err(broken)? {
                        self.signal();
                    }
                }
                kicked = kick.received(), if !is_stopping && self.has_room(pending.len()) => kicked?,
                _ = stop.changed(), if !is_stopping => {}
            }
        }
    }

    fn has_room(&self, pending: usize) -> bool {
        let is_below_limit = self.bytes.load(Ordering::Relaxed) < BYTES_LIMIT;
        pending == 0 || (pending < usize::from(self.queue.size()) && is_below_limit)
    }

    /// Returns the next request. If there is none, the driver will signal the next one.
    fn take(&mut self) -> io::Result<Option<Chain>> {
        loop {
            let next = self.queue.iter(self.memory.clone()).map_err(broken)?.next();
            if let Some(chain) = next {
                let count = chain.clone().take(DESCRIPTORS_LIMIT + 1).count();
                if count > DESCRIPTORS_LIMIT {
                    return Err(io::Error::other("a request has too many descriptors"));
                }
                // It could not be marked as used, but those after it could.
                if chain.head_index() >= self.queue.size() {
                    return Err(io::Error::other("a request is not in the ring's table"));
                }
                return Ok(Some(chain));
            }
            if !self.queue.enable_notification(&*self.memory).map_err(broken)? {
                return Ok(None);
            }
        }
    }

    /// Gives a request back to the virtual machine.
    fn complete(&mut self, completed: Completed) -> io::Result<()> {
        let Completed { chain, answer, bytes } = completed;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let written = write_answer(&chain, answer);
        self.queue.add_used(&*self.memory, chain.head_index(), written).map_err(broken)
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
