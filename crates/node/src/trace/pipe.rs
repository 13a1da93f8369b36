//! From the connections that are traced to who reads that, who may be slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Bytes that wait for their reader; what comes beyond is left out.
const UNREAD: usize = 16 << 20;

/// The end into which connections write.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    chunks: mpsc::UnboundedSender<Vec<u8>>,
    unread: Arc<AtomicUsize>,
}

/// The end of a trace that somebody reads.
pub(crate) struct Reader {
    chunks: mpsc::UnboundedReceiver<Vec<u8>>,
    unread: Arc<AtomicUsize>,
    /// One trace of those that there may be.
    _place: OwnedSemaphorePermit,
}

pub(super) fn pipe(place: OwnedSemaphorePermit) -> (Writer, Reader) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let unread = Arc::<AtomicUsize>::default();
    let reader = Reader { chunks: receiver, unread: unread.clone(), _place: place };
    (Writer { chunks: sender, unread }, reader)
}

impl Writer {
    /// Nobody reads it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.chunks.is_closed()
    }

    pub(super) fn has_room(&self) -> bool {
        self.unread.load(Ordering::Relaxed) < UNREAD
    }

    /// Whoever writes much asks for room before.
    pub(super) fn write(&self, chunk: Vec<u8>) {
        self.unread.fetch_add(chunk.len(), Ordering::Relaxed);
        // The reader may have gone.
        let _ = self.chunks.send(chunk);
    }
}

impl Reader {
    /// What comes next, until there is nobody left who writes.
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
    fn what_nobody_reads_is_bounded_in_bytes_and_a_place_is_free_when_the_reader_goes() {
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
