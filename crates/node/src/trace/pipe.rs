//! The pipe from traced connections to the reader of the trace, which may be slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Maximum number of bytes that wait for their reader. Further bytes are omitted.
const UNREAD: usize = 16 << 20;

/// The writing end, which connections use.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    chunks: mpsc::UnboundedSender<Vec<u8>>,
    unread: Arc<AtomicUsize>,
}

/// The reading end of a trace.
pub(crate) struct Reader {
    chunks: mpsc::UnboundedReceiver<Vec<u8>>,
    unread: Arc<AtomicUsize>,
    /// The permit for this trace.
    _place: OwnedSemaphorePermit,
}

pub(super) fn pipe(place: OwnedSemaphorePermit) -> (Writer, Reader) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let unread = Arc::<AtomicUsize>::default();
    let reader = Reader { chunks: receiver, unread: unread.clone(), _place: place };
    (Writer { chunks: sender, unread }, reader)
}

impl Writer {
    /// Returns whether the reader is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.chunks.is_closed()
    }

    pub(super) fn has_room(&self) -> bool {
        self.unread.load(Ordering::Relaxed) < UNREAD
    }

    /// Writes a chunk without a check. Callers that write much call `has_room` first.
    pub(super) fn write(&self, chunk: Vec<u8>) {
        self.unread.fetch_add(chunk.len(), Ordering::Relaxed);
        // The reader may be closed.
        let _ = self.chunks.send(chunk);
    }
}

impl Reader {
    /// Returns the next chunk, or `None` when all writers are closed.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        let chunk = self.chunks.recv().await?;
        self.unread.fetch_sub(chunk.len(), Ordering::Relaxed);
        Some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn unread_trace_is_bounded_and_slot_is_freed_with_its_reader() {
        let places = Arc::new(Semaphore::new(1));
        let (writer, mut reader) = pipe(places.clone().try_acquire_owned().expect("free"));
        assert!(places.clone().try_acquire_owned().is_err());
        writer.write(vec![0; UNREAD - 1]);
        assert!(writer.has_room());
        writer.write(vec![0; 1]);
        assert!(!writer.has_room());
        let read = sarsen_io::cores::block_on(sarsen_io::cores::FileEngine::Auto, async {
            reader.next().await.map_or(0, |chunk| chunk.len())
        });
        assert_eq!(read.expect("a core"), UNREAD - 1);
        assert!(writer.has_room());
        drop(reader);
        assert!(writer.is_closed() && places.try_acquire_owned().is_ok());
    }
}
