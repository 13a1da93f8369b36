//! Keeps writes in memory, over a store that stays as it is: for previews.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    Allocation, AllocationRun, Characteristics, Data, Durability, Extent, Geometry, InvalidRequest,
    Io, Payload, Reply, Store, StoreStatus,
};

type Blocks = BTreeMap<u64, Box<[u8]>>;

/// A store that reads what was written to it from memory, and everything else from the store below. The memory has no
/// limit: it is for a few writes.
pub struct OverlayStore {
    inner: Arc<dyn Store>,
    written: Arc<Mutex<Blocks>>,
}

impl OverlayStore {
    /// Creates a store over `inner`, which nothing else may write.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, written: Arc::default() }
    }

    /// Replaces blocks by the content of `data`.
    fn replace(&self, extent: Extent, data: &[u8]) -> Reply<()> {
        if let Err(error) = extent.check(self.geometry().block_count) {
            return Io::Ready(Err(error));
        }
        let blocks = data.chunks_exact(self.geometry().block_size.bytes());
        self.written.lock().extend((extent.lba.0..extent.end()).zip(blocks.map(Box::from)));
        Io::Ready(Ok(()))
    }
}

impl Store for OverlayStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: false,
            read_only: false,
            unmap: None,
            protection: false,
            is_lasting: false,
            ..self.inner.characteristics()
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        self.inner.status()
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        let (written, block_size) = (self.written.clone(), self.geometry().block_size);
        self.inner.read(extent).map(move |data| {
            let data = data?;
            let written = written.lock();
            if written.range(extent.lba.0..extent.end()).next().is_none() {
                return Ok(data);
            }
            let mut buffer = data.into_buffer();
            let blocks = buffer.chunks_exact_mut(block_size.bytes());
            for (lba, block) in (extent.lba.0..).zip(blocks) {
                if let Some(written) = written.get(&lba) {
                    block.copy_from_slice(written);
                }
            }
            Ok(Data::Buffer(buffer))
        })
    }

    fn write(&self, extent: Extent, data: Payload, _: Durability) -> Reply<()> {
        self.replace(extent, &data)
    }

    fn flush(&self) -> Reply<()> {
        Io::Ready(Ok(()))
    }

    fn unmap(&self, _: Extent) -> Reply<()> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }

    fn write_zeroes(&self, extent: Extent, _: Durability) -> Reply<()> {
        if let Err(error) = extent.check(self.geometry().block_count) {
            return Io::Ready(Err(error));
        }
        let bytes = extent.byte_count(self.geometry().block_size);
        self.replace(extent, &vec![0; bytes as usize])
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        let block_count = extent.block_count;
        let run = AllocationRun { block_count, allocation: Allocation::Mapped };
        Io::Ready(extent.check(self.geometry().block_count).map(|()| run))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::{BlockSize, Buffer, MemoryStore, conformance};

    fn run<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("a store in memory made its caller wait"),
        }
    }

    fn now<T>(reply: Reply<T>) -> T {
        run(reply.wait()).expect("it succeeds")
    }

    #[test]
    fn what_is_written_stays_in_memory() {
        let below = Arc::new(MemoryStore::new(BlockSize::B512, 1024));
        let all = |value: u8| Payload::from(Buffer::copy_of(&[value; 4 * 512]));
        now(below.write(Extent::new(8, 4), all(7), Durability::Volatile));
        let over = OverlayStore::new(below.clone());
        now(over.write(Extent::new(10, 4), all(9), Durability::Durable));
        let read = |store: &dyn Store, lba| now(store.read(Extent::new(lba, 1))).into_buffer()[0];
        let found: Vec<u8> = (7..15).map(|lba| read(&over, lba)).collect();
        assert_eq!(found, [0, 7, 7, 9, 9, 9, 9, 0]);
        let found: Vec<u8> = (7..15).map(|lba| read(&*below, lba)).collect();
        assert_eq!(found, [0, 7, 7, 7, 7, 0, 0, 0], "the store below is as it was");
    }

    #[test]
    fn it_passes_the_conformance_suite() {
        let below = Arc::new(MemoryStore::new(BlockSize::B512, 4096));
        run(conformance::check(&OverlayStore::new(below), 5));
    }
}
