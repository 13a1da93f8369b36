//! The suite that every store and layer passes: what [`Store`] promises, checked from outside.
//!
//! It panics at the first promise that is broken. The store is overwritten; it should have from a
//! few hundred to a few thousand blocks, all of them unwritten.

use crate::{
    Allocation, BlockError, Buffer, Data, Durability, Extent, Geometry, MemoryStore, Store,
};

/// Random requests that are compared with the model.
const SOAK_REQUESTS: u32 = 400;
/// The longest random extent.
const SOAK_BLOCKS: u64 = 40;

/// Runs the whole suite on a store that can be written; `seed` chooses the random part.
pub async fn check(store: &dyn Store, seed: u64) {
    let Geometry { block_count, .. } = store.geometry();
    assert!((128..=1 << 16).contains(&block_count), "a store of a fitting size");
    unwritten_blocks_read_as_zero(store).await;
    what_was_written_is_read(store).await;
    what_lies_outside_is_refused(store).await;
    nothing_is_done_for_no_blocks(store).await;
    zeroes_and_unmapped_blocks_read_as_zero(store).await;
    concurrent_writes_leave_one_of_them(store).await;
    random_requests_match_the_model(store, seed).await;
    resizing_keeps_what_stays(store).await;
}

/// Runs the part of the suite that holds for a store that refuses writes.
pub async fn check_read_only(store: &dyn Store) {
    assert!(store.characteristics().read_only);
    let one = Extent::new(0, 1);
    let block = Buffer::zeroed(store.geometry().block_size.bytes());
    store.read(one).wait().await.expect("reads work");
    store.flush().wait().await.expect("flushes work");
    let refused = [
        store.write(one, block, Durability::Volatile).wait().await,
        store.write_zeroes(one, Durability::Volatile).wait().await,
        store.unmap(one).wait().await,
        store.resize(1).wait().await,
    ];
    for result in refused {
        assert!(matches!(result, Err(BlockError::ReadOnly)), "{result:?}");
    }
    what_lies_outside_is_refused_to_readers(store).await;
}

/// Bytes that depend on their place and on `mark`, so that a block that went astray shows.
fn pattern(store: &dyn Store, extent: Extent, mark: u8) -> Buffer {
    let size = store.geometry().block_size;
    let mut buffer = Buffer::for_overwrite(extent.byte_count(size) as usize);
    for (lba, block) in (extent.lba.0..).zip(buffer.chunks_exact_mut(size.bytes())) {
        for (at, word) in block.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(lba << 24 | (at as u64) << 8 | u64::from(mark)).to_be_bytes());
        }
    }
    buffer
}

async fn read(store: &dyn Store, extent: Extent) -> Buffer {
    let data = store.read(extent).wait().await.expect("the read succeeds");
    assert_eq!(data.len() as u64, extent.byte_count(store.geometry().block_size));
    data.into_buffer()
}

async fn write(store: &dyn Store, extent: Extent, mark: u8, durability: Durability) {
    let data = pattern(store, extent, mark);
    store.write(extent, data, durability).wait().await.expect("the write succeeds");
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

async fn unwritten_blocks_read_as_zero(store: &dyn Store) {
    let whole = Extent::new(0, store.geometry().block_count);
    assert!(is_zero(&read(store, whole).await));
    let run = store.allocation(whole).wait().await.expect("it is told");
    assert!((1..=whole.block_count).contains(&run.block_count), "{run:?}");
}

async fn what_was_written_is_read(store: &dyn Store) {
    let last = store.geometry().block_count - 1;
    let extents = [(0, 1), (last, 1), (1, 7), (13, 100), (last - 9, 10), (0, last + 1)];
    for (mark, (lba, block_count)) in (1..).zip(extents) {
        let extent = Extent::new(lba, block_count);
        let durability = if mark % 2 == 0 { Durability::Durable } else { Durability::Volatile };
        write(store, extent, mark, durability).await;
        assert_eq!(read(store, extent).await[..], pattern(store, extent, mark)[..], "{extent}");
        let run = store.allocation(extent).wait().await.expect("it is told");
        assert_eq!((run.block_count, run.allocation), (block_count, Allocation::Mapped));
    }
    store.flush().wait().await.expect("the flush succeeds");
    let mut part = store.read(Extent::new(5, 2)).wait().await.expect("read");
    part.truncate(10);
    assert_eq!(part.into_buffer()[..], pattern(store, Extent::new(5, 1), 6)[..10]);
}

async fn what_lies_outside_is_refused(store: &dyn Store) {
    what_lies_outside_is_refused_to_readers(store).await;
    for extent in outside(store) {
        // A buffer as long as these extents cannot be made; a store must refuse before it looks.
        if extent.block_count <= 2 {
            let size = store.geometry().block_size;
            let data = Buffer::zeroed(extent.byte_count(size) as usize);
            let written = store.write(extent, data, Durability::Volatile).wait().await;
            assert!(matches!(written, Err(BlockError::OutOfRange { .. })), "{extent}: {written:?}");
        }
        let zeroed = store.write_zeroes(extent, Durability::Volatile).wait().await;
        assert!(matches!(zeroed, Err(BlockError::OutOfRange { .. })), "{extent}: {zeroed:?}");
        if store.characteristics().unmap.is_some() {
            let unmapped = store.unmap(extent).wait().await;
            assert!(matches!(unmapped, Err(BlockError::OutOfRange { .. })), "{unmapped:?}");
        }
    }
}

fn outside(store: &dyn Store) -> [Extent; 5] {
    let block_count = store.geometry().block_count;
    [
        Extent::new(block_count, 1),
        Extent::new(block_count - 1, 2),
        Extent::new(0, block_count + 1),
        Extent::new(u64::MAX, 2),
        Extent::new(1, u64::MAX),
    ]
}

async fn what_lies_outside_is_refused_to_readers(store: &dyn Store) {
    for extent in outside(store) {
        let read = store.read(extent).wait().await;
        assert!(matches!(read, Err(BlockError::OutOfRange { .. })), "{extent}: {read:?}");
        let told = store.allocation(extent).wait().await;
        assert!(matches!(told, Err(BlockError::OutOfRange { .. })), "{extent}: {told:?}");
    }
}

async fn nothing_is_done_for_no_blocks(store: &dyn Store) {
    for lba in [0, 3, store.geometry().block_count] {
        let none = Extent::new(lba, 0);
        assert!(read(store, none).await.is_empty());
        let empty = Buffer::zeroed(0);
        store.write(none, empty, Durability::Durable).wait().await.expect("nothing to write");
        store.write_zeroes(none, Durability::Volatile).wait().await.expect("nothing to zero");
        if store.characteristics().unmap.is_some() {
            store.unmap(none).wait().await.expect("nothing to unmap");
        }
    }
}

async fn zeroes_and_unmapped_blocks_read_as_zero(store: &dyn Store) {
    let whole = Extent::new(0, store.geometry().block_count);
    write(store, whole, 20, Durability::Volatile).await;
    let zeroed = Extent::new(3, 50);
    store.write_zeroes(zeroed, Durability::Durable).wait().await.expect("zeroes are written");
    assert!(is_zero(&read(store, zeroed).await));
    let mut around = vec![Extent::new(0, 3), Extent::new(53, 1)];
    let Some(unmap) = store.characteristics().unmap else {
        let refused = store.unmap(zeroed).wait().await;
        assert!(matches!(refused, Err(BlockError::Unsupported)), "{refused:?}");
        return;
    };
    // Not aligned to anything: the edges are zeroed, the middle is given back.
    let unmapped = Extent::new(61, 60);
    store.unmap(unmapped).wait().await.expect("unmapped");
    assert!(is_zero(&read(store, unmapped).await));
    around.extend([Extent::new(60, 1), Extent::new(121, 1)]);
    for extent in around {
        assert_eq!(read(store, extent).await[..], pattern(store, extent, 20)[..], "{extent}");
    }
    let granularity = u64::from(unmap.granularity_blocks);
    let first = unmapped.lba.0.next_multiple_of(granularity);
    let end = unmapped.end() / granularity * granularity;
    if first < end {
        let run = store.allocation(Extent::new(first, end - first)).wait().await.expect("told");
        assert_eq!((run.block_count, run.allocation), (end - first, Allocation::Deallocated));
    }
    write(store, unmapped, 21, Durability::Volatile).await;
    assert_eq!(read(store, unmapped).await[..], pattern(store, unmapped, 21)[..]);
}

/// Both are in flight; each block ends as one of the two has it.
async fn concurrent_writes_leave_one_of_them(store: &dyn Store) {
    let (left, right) = (Extent::new(8, 16), Extent::new(16, 16));
    let first = store.write(left, pattern(store, left, 31), Durability::Volatile);
    let second = store.write(right, pattern(store, right, 32), Durability::Volatile);
    second.wait().await.expect("written");
    first.wait().await.expect("written");
    for lba in 8..32 {
        let one = Extent::new(lba, 1);
        let found = read(store, one).await;
        let may_be = [(8..24, 31), (16..32, 32)];
        let known = may_be.into_iter().any(|(blocks, mark)| {
            blocks.contains(&lba) && found[..] == pattern(store, one, mark)[..]
        });
        assert!(known, "block {lba} is neither");
    }
}

/// splitmix64: small, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

async fn random_requests_match_the_model(store: &dyn Store, seed: u64) {
    let Geometry { block_size, block_count } = store.geometry();
    let model = MemoryStore::new(block_size, block_count);
    let model: &dyn Store = &model;
    let whole = Extent::new(0, block_count);
    store.write_zeroes(whole, Durability::Volatile).wait().await.expect("zeroed");
    let mut dice = Dice(seed);
    for step in 0..SOAK_REQUESTS {
        let lba = dice.below(block_count);
        let extent = Extent::new(lba, dice.below((block_count - lba).min(SOAK_BLOCKS)) + 1);
        let durability = match dice.below(4) {
            0 => Durability::Durable,
            _ => Durability::Volatile,
        };
        match dice.below(10) {
            0..4 => {
                let mark = dice.below(256) as u8;
                write(store, extent, mark, durability).await;
                write(model, extent, mark, durability).await;
            }
            4 => {
                store.write_zeroes(extent, durability).wait().await.expect("zeroed");
                model.write_zeroes(extent, durability).wait().await.expect("zeroed");
            }
            5 if store.characteristics().unmap.is_some() => {
                store.unmap(extent).wait().await.expect("unmapped");
                model.unmap(extent).wait().await.expect("unmapped");
            }
            6 => store.flush().wait().await.expect("flushed"),
            _ => {
                let (found, known) = (read(store, extent).await, read(model, extent).await);
                assert_eq!(found[..], known[..], "seed {seed}, step {step}, {extent}");
            }
        }
    }
    assert_eq!(read(store, whole).await[..], read(model, whole).await[..], "seed {seed}");
}

async fn resizing_keeps_what_stays(store: &dyn Store) {
    let Geometry { block_count, .. } = store.geometry();
    let whole = Extent::new(0, block_count);
    write(store, whole, 40, Durability::Volatile).await;
    match store.resize(block_count + 64).wait().await {
        Ok(()) => {}
        Err(BlockError::Unsupported) => return,
        Err(error) => panic!("{error}"),
    }
    assert_eq!(store.geometry().block_count, block_count + 64);
    assert_eq!(read(store, whole).await[..], pattern(store, whole, 40)[..]);
    assert!(is_zero(&read(store, Extent::new(block_count, 64)).await), "new blocks are zero");
    write(store, Extent::new(block_count + 60, 4), 41, Durability::Volatile).await;
    // Back again, where the store can: what was cut off does not come back.
    if store.resize(block_count).wait().await.is_ok() {
        store.resize(block_count + 64).wait().await.expect("it could before");
        assert!(is_zero(&read(store, Extent::new(block_count, 64)).await), "cut off is gone");
    }
}

/// What a store that keeps nothing is held to: sizes and borders.
pub async fn check_null(store: &dyn Store) {
    what_lies_outside_is_refused(store).await;
    nothing_is_done_for_no_blocks(store).await;
    let one = Extent::new(1, 1);
    write(store, one, 1, Durability::Durable).await;
    let data = store.read(one).wait().await.expect("read");
    assert!(matches!(data, Data::Zeroes(_)));
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::layers::{Faults, FaultyStore, ReadOnly};
    use crate::{BlockSize, Characteristics, Io, Reply, Request};

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("a store in memory answers at once"),
        }
    }

    #[test]
    fn the_model_and_the_layers_pass() {
        for block_size in [BlockSize::B512, BlockSize::B4096] {
            let memory = || Arc::new(MemoryStore::new(block_size, 512));
            block_on(check(&*memory(), 3));
            block_on(check(&FaultyStore::new(memory(), Faults::default()), 4));
            block_on(check_read_only(&ReadOnly::new(memory())));
        }
    }

    /// A store that loses every fifth write.
    struct Forgetful(MemoryStore, std::sync::atomic::AtomicU32);

    impl Store for Forgetful {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }
        fn characteristics(&self) -> Characteristics {
            self.0.characteristics()
        }
        fn submit(&self, request: Request) -> Io<Result<Reply, BlockError>> {
            let count = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            match request {
                Request::Write { .. } if count % 5 == 4 => Io::Ready(Ok(Reply::Done)),
                request => self.0.submit(request),
            }
        }
    }

    #[test]
    #[should_panic(expected = "blocks")]
    fn a_store_that_forgets_is_found_out() {
        let forgetful = Forgetful(MemoryStore::new(BlockSize::B512, 512), 0.into());
        block_on(check(&forgetful, 5));
    }
}
