//! Silent corruption: requests that report success but are executed wrongly.

use std::sync::Arc;

use super::{Fault, Faults, Planted};
use crate::{
    AllocationRun, BlockError, Buffer, Characteristics, Data, Durability, Extent, Geometry, Io,
    Lba, PROTECTION_BYTES, Payload, Reply, Space, Store, StoreStatus,
};

/// The bit to flip, in the byte in the middle of a block.
const FLIPPED: u8 = 0x10;

impl Faults {
    /// Returns the blocks of an extent with stale reads.
    fn stale_blocks(&self, extent: Extent) -> Vec<Lba> {
        let stale = |planted: &Planted| match planted.fault {
            Fault::StaleRead(lba) if covers(extent, lba) => Some(lba),
            _ => None,
        };
        self.list().iter().filter_map(stale).collect()
    }
}

fn covers(extent: Extent, lba: Lba) -> bool {
    lba.0.checked_sub(extent.lba.0).is_some_and(|index| index < extent.block_count)
}

/// A store with silent corruption.
#[derive(Clone)]
pub(super) struct LyingStore {
    inner: Arc<dyn Store>,
    faults: Faults,
}

/// The form of blocks: with or without protection information.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Protected,
}

impl Form {
    /// Returns the number of bytes of a block in this form.
    fn size(self, store: &dyn Store) -> usize {
        let size = store.geometry().block_size.bytes();
        match self {
            Self::Plain => size,
            Self::Protected => size + PROTECTION_BYTES,
        }
    }

    async fn read(self, store: &dyn Store, extent: Extent) -> Result<Buffer, BlockError> {
        let data = match self {
            Self::Plain => store.read(extent),
            Self::Protected => store.read_protected(extent),
        };
        Ok(data.wait().await?.into_buffer())
    }
}

impl LyingStore {
    pub(super) fn new(inner: Arc<dyn Store>, faults: Faults) -> Self {
        Self { inner, faults }
    }

    /// Returns this store if silent corruption affects a request to these blocks. The store below rejects requests
    /// outside its blocks.
    fn lie_about(&self, extent: Extent, reads: bool) -> Option<Self> {
        let concerns = |fault| match fault {
            Fault::FlippedBit(lba) => reads && covers(extent, lba),
            Fault::FlippedBitStored(lba)
            | Fault::LostWrite(lba)
            | Fault::MisdirectedWrite { lba, .. } => !reads && covers(extent, lba),
            Fault::StaleRead(lba) => covers(extent, lba),
            Fault::Unreadable(_) | Fault::Unwritable(_) | Fault::NoSpace(_) | Fault::FlushFails => {
                false
            }
        };
        let lies = extent.fits(self.inner.geometry().block_count)
            && self.faults.list().iter().any(|planted| concerns(planted.fault));
        lies.then(|| self.clone())
    }

    async fn read_wrongly(self, extent: Extent, form: Form) -> Result<Data, BlockError> {
        let size = form.size(&*self.inner);
        let mut data = form.read(&*self.inner, extent).await?;
        self.faults.each(|planted| match planted.fault {
            Fault::FlippedBit(lba) if covers(extent, lba) => {
                flip(block(&mut data, extent, lba, size));
                true
            }
            Fault::StaleRead(lba) if covers(extent, lba) => match &planted.before {
                Some(before) => {
                    let block = block(&mut data, extent, lba, size);
                    block.copy_from_slice(&before[..size]);
                    true
                }
                None => false,
            },
            _ => false,
        });
        Ok(data.into())
    }

    /// Saves the contents that stale reads return after the blocks have changed.
    async fn remember(&self, extent: Extent) {
        for stale in self.faults.stale_blocks(extent) {
            // A block that cannot be read has no old contents to return.
            let has_tags = self.inner.characteristics().protection;
            let form = if has_tags { Form::Protected } else { Form::Plain };
            let extent = Extent { lba: stale, block_count: 1 };
            let Ok(before) = form.read(&*self.inner, extent).await else { continue };
            self.faults.each(|planted| {
                if planted.fault == Fault::StaleRead(stale) {
                    planted.before = Some(Buffer::copy_of(&before));
                }
                false
            });
        }
    }

    /// Writes data or zeroes, except for blocks with lost or misdirected writes. Then writes the misdirected blocks.
    async fn write_wrongly(
        self,
        extent: Extent,
        data: Option<(Payload, Form)>,
        durability: Durability,
    ) -> Result<(), BlockError> {
        self.remember(extent).await;
        let mut data = data.map(|(data, form)| (data.into_buffer(), form));
        let form = data.as_ref().map_or(Form::Plain, |(_, form)| *form);
        let size = form.size(&*self.inner);
        let mut diverted: Vec<(Lba, Option<Lba>)> = Vec::new();
        self.faults.each(|planted| {
            let (lba, to) = match planted.fault {
                Fault::FlippedBitStored(lba) if covers(extent, lba) => {
                    let Some((data, _)) = &mut data else { return false };
                    flip(block(data, extent, lba, size));
                    return true;
                }
                Fault::LostWrite(lba) => (lba, None),
                Fault::MisdirectedWrite { lba, to } => (lba, Some(to)),
                _ => return false,
            };
            let meets = covers(extent, lba) && diverted.iter().all(|&(other, _)| other != lba);
            if meets {
                diverted.push((lba, to));
            }
            meets
        });
        // Writes a part of the extent to `lba`.
        let part = |from: u64, block_count: u64, lba: Lba| {
            let there = Extent { lba, block_count };
            let Some((data, form)) = &data else {
                return self.inner.write_zeroes(there, durability);
            };
            let start = (from - extent.lba.0) as usize * size;
            let data = Buffer::copy_of(&data[start..start + block_count as usize * size]).into();
            match form {
                Form::Plain => self.inner.write(there, data, durability),
                Form::Protected => self.inner.write_protected(there, data, durability),
            }
        };
        diverted.sort_unstable();
        let mut from = extent.lba.0;
        for next in diverted.iter().map(|(lba, _)| lba.0).chain([extent.end()]) {
            if next > from {
                part(from, next - from, Lba(from)).wait().await?;
            }
            from = next + 1;
        }
        for (lba, to) in diverted {
            if let Some(to) = to {
                part(lba.0, 1, to).wait().await?;
            }
        }
        Ok(())
    }
}

impl Store for LyingStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        self.inner.characteristics()
    }

    fn status(&self) -> &Arc<StoreStatus> {
        self.inner.status()
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        match self.lie_about(extent, true) {
            Some(lying) => Io::pending(lying.read_wrongly(extent, Form::Plain)),
            None => self.inner.read(extent),
        }
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        match self.lie_about(extent, false) {
            Some(lying) => {
                Io::pending(lying.write_wrongly(extent, Some((data, Form::Plain)), durability))
            }
            None => self.inner.write(extent, data, durability),
        }
    }

    fn read_protected(&self, extent: Extent) -> Reply<Data> {
        match self.lie_about(extent, true) {
            Some(lying) => Io::pending(lying.read_wrongly(extent, Form::Protected)),
            None => self.inner.read_protected(extent),
        }
    }

    fn write_protected(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        match self.lie_about(extent, false) {
            Some(lying) => {
                Io::pending(lying.write_wrongly(extent, Some((data, Form::Protected)), durability))
            }
            None => self.inner.write_protected(extent, data, durability),
        }
    }

    fn flush(&self) -> Reply<()> {
        self.inner.flush()
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        match self.lie_about(extent, false) {
            Some(lying) => Io::pending(async move {
                lying.remember(extent).await;
                lying.inner.unmap(extent).wait().await
            }),
            None => self.inner.unmap(extent),
        }
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        match self.lie_about(extent, false) {
            Some(lying) => Io::pending(lying.write_wrongly(extent, None, durability)),
            None => self.inner.write_zeroes(extent, durability),
        }
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        self.inner.allocation(extent)
    }

    fn space(&self) -> Reply<Space> {
        self.inner.space()
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        self.inner.resize(block_count)
    }
}

/// Returns the bytes of a block of the extent.
fn block(data: &mut [u8], extent: Extent, lba: Lba, size: usize) -> &mut [u8] {
    let start = (lba.0 - extent.lba.0) as usize * size;
    &mut data[start..start + size]
}

fn flip(block: &mut [u8]) {
    let middle = block.len() / 2;
    block[middle] ^= FLIPPED;
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::super::{FaultyStore, Times};
    use super::*;
    use crate::{BlockSize, MemoryStore, conformance};

    const SIZE: usize = 512;

    fn run<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("a store in memory made its caller wait"),
        }
    }

    /// A store of 64 blocks with one fault.
    struct Bench {
        faulty: FaultyStore,
        inner: Arc<MemoryStore>,
    }

    impl Bench {
        fn with(fault: Fault, times: Times) -> Self {
            let inner = Arc::new(MemoryStore::new(BlockSize::B512, 64));
            let faults = Faults::default();
            faults.add(fault, times);
            Self { faulty: FaultyStore::new(inner.clone(), faults), inner }
        }

        /// Writes `byte` over the blocks 8 to 15.
        fn write(&self, byte: u8) {
            let data = Buffer::copy_of(&[byte; 8 * SIZE]).into();
            run(self.faulty.write(Extent::new(8, 8), data, Durability::Volatile).wait()).unwrap();
        }

        /// Returns the unexpected blocks of the first sixteen, with their first and middle byte. Expected are `byte` in
        /// blocks 8 to 15 and 0 in blocks 0 to 7.
        fn odd(store: &dyn Store, byte: u8) -> Vec<(usize, u8, u8)> {
            let data = run(store.read(Extent::new(0, 16)).wait()).unwrap().into_buffer();
            let blocks = data.chunks(SIZE).enumerate();
            blocks
                .filter(|(lba, block)| {
                    let wanted = if *lba < 8 { 0 } else { byte };
                    block.iter().any(|&byte| byte != wanted)
                })
                .map(|(lba, block)| (lba, block[0], block[SIZE / 2]))
                .collect()
        }

        fn seen(&self, byte: u8) -> Vec<(usize, u8, u8)> {
            Self::odd(&self.faulty, byte)
        }

        fn stored(&self, byte: u8) -> Vec<(usize, u8, u8)> {
            Self::odd(&*self.inner, byte)
        }
    }

    #[test]
    fn read_fault_flips_bit_in_read_data() {
        let bench = Bench::with(Fault::FlippedBit(Lba(10)), Times::Always);
        bench.write(1);
        assert_eq!(bench.seen(1), [(10, 1, 0x11)]);
        assert_eq!(bench.seen(1), [(10, 1, 0x11)]);
        assert_eq!(bench.stored(1), []);
        let bench = Bench::with(Fault::FlippedBit(Lba(10)), Times::Once);
        bench.write(1);
        assert_eq!((bench.seen(1), bench.seen(1)), (vec![(10, 1, 0x11)], vec![]));
    }

    #[test]
    fn write_fault_flips_bit_in_stored_data() {
        let bench = Bench::with(Fault::FlippedBitStored(Lba(10)), Times::Once);
        bench.write(1);
        assert_eq!(bench.stored(1), [(10, 1, 0x11)]);
        bench.write(2);
        assert_eq!(bench.stored(2), []);
    }

    #[test]
    fn a_write_is_lost_and_its_neighbours_are_not() {
        for lba in [8, 10, 15] {
            let bench = Bench::with(Fault::LostWrite(Lba(lba as u64)), Times::Always);
            bench.write(1);
            bench.write(2);
            assert_eq!(bench.stored(2), [(lba, 0, 0)]);
            let bench = Bench::with(Fault::LostWrite(Lba(lba as u64)), Times::Once);
            bench.write(1);
            assert_eq!(bench.stored(1), [(lba, 0, 0)]);
            bench.write(2);
            assert_eq!(bench.stored(2), []);
        }
    }

    #[test]
    fn a_read_is_one_write_behind() {
        let bench = Bench::with(Fault::StaleRead(Lba(10)), Times::Always);
        bench.write(1);
        assert_eq!(bench.seen(1), [(10, 0, 0)]);
        bench.write(2);
        assert_eq!(bench.seen(2), [(10, 1, 1)]);
        assert_eq!(bench.stored(2), []);
        run(bench.faulty.unmap(Extent::new(8, 8)).wait()).unwrap();
        assert_eq!(bench.seen(0), [(10, 2, 2)]);
        // A read before the first write does not use the fault up.
        let bench = Bench::with(Fault::StaleRead(Lba(10)), Times::Once);
        assert_eq!(bench.seen(0), []);
        bench.write(1);
        assert_eq!((bench.seen(1), bench.seen(1)), (vec![(10, 0, 0)], vec![]));
    }

    #[test]
    fn a_write_lands_elsewhere() {
        let astray = |to| Fault::MisdirectedWrite { lba: Lba(10), to: Lba(to) };
        let bench = Bench::with(astray(3), Times::Once);
        bench.write(1);
        assert_eq!(bench.stored(1), [(3, 1, 1), (10, 0, 0)]);
        bench.write(2);
        assert_eq!(bench.stored(2), [(3, 1, 1)]);
        // Zeroes are misdirected, too.
        let bench = Bench::with(astray(12), Times::Always);
        let data = Buffer::copy_of(&[7; 8 * SIZE]).into();
        run(bench.inner.write(Extent::new(8, 8), data, Durability::Volatile).wait()).unwrap();
        run(bench.faulty.write_zeroes(Extent::new(10, 1), Durability::Durable).wait()).unwrap();
        assert_eq!(bench.stored(7), [(12, 0, 0)]);
    }

    /// A misdirected write to its own block changes nothing, but it uses the code path of misdirected writes.
    #[test]
    fn blocks_around_fault_are_unchanged() {
        let inner = Arc::new(MemoryStore::new(BlockSize::B512, 1000));
        let faults = Faults::default();
        for lba in [0, 5, 9, 33, 500, 999].map(Lba) {
            faults.add(Fault::MisdirectedWrite { lba, to: lba }, Times::Always);
        }
        run(conformance::check(&FaultyStore::new(inner, faults), 6));
    }
}
