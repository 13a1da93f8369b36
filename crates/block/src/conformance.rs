//! The conformance suite that every store and layer must pass.
//!
//! It panics at the first error and reports the request, and the seed of random requests. It needs no runtime of its
//! own: a store with I/O is checked in an environment that supports I/O.

mod errors;
mod protection;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

pub use self::errors::check_errors;
use crate::{
    Allocation, AllocationRun, BlockError, Buffer, Data, Durability, Extent, Geometry,
    InvalidRequest, Io, MemoryStore, Payload, Reply, Request, Rng, StatusListener, Store,
    Usability,
};

/// Minimum number of blocks of a store under test.
pub const BLOCKS_MIN: u64 = 64;
/// Maximum size of the area at the start of the store that the whole-extent and random checks use.
const BYTES_MAX: u64 = 4 << 20;
const RANDOM_STEPS: u32 = 400;

/// Checks a writable store that was never written and has no other users, with a minimum of [`BLOCKS_MIN`] blocks.
/// Afterwards the contents are arbitrary, and the size is unchanged.
pub async fn check(store: &dyn Store, seed: u64) {
    assert!(
        !store.characteristics().read_only,
        "this check writes: use the one for read-only stores"
    );
    shape_and_borders(store).await;
    unwritten_blocks_read_as_zero(store).await;
    // A store that reports unwritten blocks as mapped cannot report deallocation, like many devices.
    let tells = first_run(store, Extent::new(0, 8)).await.allocation == Allocation::Deallocated;
    blocks_keep_what_was_written(store).await;
    shared_data_is_written(store).await;
    whole_extent_at_once(store).await;
    durable_writes_and_flushes(store).await;
    unmapped_blocks_read_as_zero(store, tells).await;
    zeroed_blocks_read_as_zero(store).await;
    overlapping_writes_leave_one_of_them(store).await;
    growing_keeps_and_shrinking_forgets(store).await;
    random_requests(store, seed).await;
    if store.characteristics().protection {
        protection::check(store, seed).await
    } else {
        protection::check_refused(store).await
    }
}

/// Checks a store that rejects writes.
pub async fn check_read_only(store: &dyn Store) {
    assert!(store.characteristics().read_only);
    shape_and_borders(store).await;
    changes_are_refused(store).await;
}

/// Checks a store that keeps no data: its geometry, its limits, and that it accepts writes.
pub async fn check_null(store: &dyn Store) {
    shape_and_borders(store).await;
    let extent = Extent::new(1, 3);
    write(store, extent, pattern(store, extent, 1), Durability::Durable).await;
    let data = store.read(extent).wait().await;
    assert!(matches!(data, Ok(Data::Zeroes(_))), "{data:?}");
}

/// Checks the rules for every store: geometry, rejected requests, lengths.
async fn shape_and_borders(store: &dyn Store) {
    let count = store.geometry().block_count;
    assert_eq!(store.status().usability(), Usability::Usable);
    assert!(count >= BLOCKS_MIN, "{count} blocks are too few to be checked");
    let characteristics = store.characteristics();
    assert!(!matches!(characteristics.unmap, Some(unmap) if unmap.granularity_blocks == 0));
    if let Some(optimal) = characteristics.optimal_transfer {
        assert!(optimal.granularity_blocks > 0 && optimal.length_blocks > 0, "{optimal:?}");
        assert!(optimal.length_blocks.is_multiple_of(optimal.granularity_blocks), "{optimal:?}");
    }
    for extent in [
        Extent::new(count, 1),
        Extent::new(count - 1, 2),
        Extent::new(0, count + 1),
        Extent::new(count + 1, 0),
        Extent::new(u64::MAX, 1),
        Extent::new(1, u64::MAX),
        Extent::new(u64::MAX, u64::MAX),
    ] {
        outside_is_refused(store, extent).await;
    }
    for lba in [0, 1, count - 1, count] {
        nothing_is_done_to_no_blocks(store, Extent::new(lba, 0)).await;
    }
    for extent in [Extent::new(0, 1), Extent::new(count - 3, 3), Extent::new(1, 33)] {
        read(store, extent).await;
    }
    runs(store, Extent::new(0, count)).await;
    let flushed = store.flush().wait().await;
    assert!(flushed.is_ok(), "flush: {flushed:?}");
}

/// Returns one request of each kind that has an extent.
fn every_kind(extent: Extent) -> [Request; 5] {
    let durability = Durability::Volatile;
    [
        Request::Read(extent),
        Request::Write { extent, durability },
        Request::WriteZeroes { extent, durability },
        Request::Unmap(extent),
        Request::Allocation(extent),
    ]
}

/// The result of a request of any kind.
enum Outcome {
    Done,
    Data(Data),
    Run(AllocationRun),
}

/// Submits a request of any kind. `data` is the data of a write.
fn submit(store: &dyn Store, request: Request, data: Buffer) -> Reply<Outcome> {
    let data = Payload::from(data);
    let done = |done: Result<(), BlockError>| done.map(|()| Outcome::Done);
    let read = |data: Result<Data, BlockError>| data.map(Outcome::Data);
    match request {
        Request::Read(extent) => store.read(extent).map(read),
        Request::ReadProtected(extent) => store.read_protected(extent).map(read),
        Request::Write { extent, durability } => store.write(extent, data, durability).map(done),
        Request::WriteProtected { extent, durability } => {
            store.write_protected(extent, data, durability).map(done)
        }
        Request::WriteZeroes { extent, durability } => {
            store.write_zeroes(extent, durability).map(done)
        }
        Request::Unmap(extent) => store.unmap(extent).map(done),
        Request::Share(extent) => {
            let Geometry { block_size, block_count } = store.geometry();
            let source: Arc<dyn Store> = Arc::new(MemoryStore::new(block_size, block_count));
            store.share(&source, extent, extent.lba).map(|shared| shared.map(|_| Outcome::Done))
        }
        Request::Flush => store.flush().map(done),
        Request::Resize { block_count } => store.resize(block_count).map(done),
        Request::Allocation(extent) => store.allocation(extent).map(|run| run.map(Outcome::Run)),
        Request::Space => store.space().map(|space| space.map(|_| Outcome::Done)),
    }
}

async fn outside_is_refused(store: &dyn Store, extent: Extent) {
    let count = store.geometry().block_count;
    let length = extent.block_count.min(2) as usize * store.geometry().block_size.bytes();
    for request in every_kind(extent) {
        match submit(store, request, Buffer::zeroed(length)).wait().await {
            Err(BlockError::Invalid(InvalidRequest::OutOfRange {
                extent: reported,
                block_count,
            })) => {
                assert_eq!((reported, block_count), (extent, count), "{request:?}");
            }
            Err(BlockError::Invalid(InvalidRequest::ReadOnly))
                if store.characteristics().read_only => {}
            Err(BlockError::Invalid(InvalidRequest::Unsupported))
                if request == Request::Unmap(extent) => {}
            Err(error) => panic!("{request:?} lies outside and was answered {error:?}"),
            Ok(_) => panic!("{request:?} lies outside and was executed"),
        }
    }
}

async fn nothing_is_done_to_no_blocks(store: &dyn Store, extent: Extent) {
    for request in every_kind(extent) {
        match submit(store, request, Buffer::zeroed(0)).wait().await {
            Ok(Outcome::Data(data)) => assert!(data.is_empty(), "{request:?}"),
            Ok(Outcome::Run(run)) => assert_eq!(run.block_count, 0, "{request:?}"),
            Ok(Outcome::Done) => {}
            Err(BlockError::Invalid(InvalidRequest::ReadOnly))
                if store.characteristics().read_only => {}
            Err(BlockError::Invalid(InvalidRequest::Unsupported))
                if request == Request::Unmap(extent) => {}
            Err(error) => panic!("{request:?} was answered {error}"),
        }
    }
}

async fn unwritten_blocks_read_as_zero(store: &dyn Store) {
    let count = store.geometry().block_count;
    for extent in [Extent::new(0, 8), Extent::new(count - 9, 9), Extent::new(count / 2, 17)] {
        let data = read(store, extent).await;
        assert!(data.iter().all(|&byte| byte == 0), "{extent} was never written");
    }
}

async fn changes_are_refused(store: &dyn Store) {
    let resize = Request::Resize { block_count: store.geometry().block_count };
    let requests = every_kind(Extent::new(1, 1)).into_iter().chain([resize]);
    for request in requests.filter(|request| request.is_change()) {
        let data = Buffer::zeroed(store.geometry().block_size.bytes());
        let refused = submit(store, request, data).wait().await;
        assert!(
            matches!(refused, Err(BlockError::Invalid(InvalidRequest::ReadOnly))),
            "{request:?} was not refused by a read-only store: {:?}",
            refused.err()
        );
    }
}

async fn blocks_keep_what_was_written(store: &dyn Store) {
    let count = store.geometry().block_count;
    for (tag, block_count) in (1..).zip([1, 2, 3, 7, 8, 9, 16, 31, 33]) {
        for lba in [0, 1, 5, 8, count / 2, count - block_count] {
            let extent = Extent::new(lba, block_count);
            if !extent.fits(count) {
                continue;
            }
            // Neighbouring blocks must not change.
            let around = Extent::new(lba.saturating_sub(1), block_count + 2);
            let around =
                Extent { block_count: around.block_count.min(count - around.lba.0), ..around };
            let mut expected = read(store, around).await;
            let data = pattern(store, extent, tag);
            let size = store.geometry().block_size.bytes();
            let from = (lba - around.lba.0) as usize * size;
            expected[from..from + data.len()].copy_from_slice(&data);
            write(store, extent, data, Durability::Volatile).await;
            same(&read(store, around).await, &expected, around, "after a write");
            mapped(store, extent).await;
        }
    }
}

/// A payload may have another owner.
async fn shared_data_is_written(store: &dyn Store) {
    let extent = Extent::new(3, 6);
    let data = pattern(store, extent, 50);
    let mut payload = Payload::from(Buffer::copy_of(&data));
    let _shared = payload.share();
    assert!(store.write(extent, payload, Durability::Volatile).wait().await.is_ok());
    same(&read(store, extent).await, &data, extent, "after a write of shared data");
}

async fn whole_extent_at_once(store: &dyn Store) {
    let extent = arena(store);
    let data = pattern(store, extent, 77);
    write(store, extent, Buffer::copy_of(&data), Durability::Volatile).await;
    same(&read(store, extent).await, &data, extent, "after one large write");
}

async fn durable_writes_and_flushes(store: &dyn Store) {
    for tag in 0..4 {
        let extent = Extent::new(tag * 3 + 1, 3);
        let data = pattern(store, extent, 100 + tag);
        write(store, extent, Buffer::copy_of(&data), Durability::Durable).await;
        same(&read(store, extent).await, &data, extent, "after a durable write");
        assert!(store.flush().wait().await.is_ok(), "flush");
        same(&read(store, extent).await, &data, extent, "after a flush");
    }
    let extent = Extent::new(2, 5);
    assert!(store.write_zeroes(extent, Durability::Durable).wait().await.is_ok());
    assert!(read(store, extent).await.iter().all(|&byte| byte == 0));
}

async fn unmapped_blocks_read_as_zero(store: &dyn Store, tells: bool) {
    let all = arena(store);
    let Some(unmap) = store.characteristics().unmap else {
        let answer = store.unmap(Extent::new(0, 1)).wait().await;
        assert!(
            matches!(answer, Err(BlockError::Invalid(InvalidRequest::Unsupported))),
            "{answer:?}"
        );
        return;
    };
    let unit = u64::from(unmap.granularity_blocks);
    let odd = [Extent::new(3, 1), Extent::new(1, 30), Extent::new(all.end() - 5, 5)];
    let even = [unit * 2, unit].map(|lba| Extent::new(lba, unit)).into_iter();
    let even = even.filter(|extent| extent.fits(all.end())).collect::<Vec<_>>();
    for (tag, extent) in (1..).zip(odd.into_iter().chain(even.iter().copied())) {
        let mut expected = pattern(store, all, tag);
        write(store, all, Buffer::copy_of(&expected), Durability::Volatile).await;
        let unmapped = store.unmap(extent).wait().await;
        unmapped.unwrap_or_else(|error| panic!("unmapping {extent}: {error}"));
        zero(store, &mut expected, extent);
        same(&read(store, all).await, &expected, all, "after an unmap");
        runs(store, all).await;
        if tells && even.contains(&extent) {
            let run = first_run(store, extent).await;
            let whole = AllocationRun { block_count: unit, allocation: Allocation::Deallocated };
            assert_eq!(run, whole, "{extent} was unmapped");
        }
    }
    // Deallocated blocks can be written again.
    let extent = Extent::new(2, 3);
    let data = pattern(store, extent, 9);
    write(store, extent, Buffer::copy_of(&data), Durability::Volatile).await;
    same(&read(store, extent).await, &data, extent, "written after an unmap");
    mapped(store, extent).await;
}

async fn zeroed_blocks_read_as_zero(store: &dyn Store) {
    let all = arena(store);
    let mut expected = pattern(store, all, 5);
    write(store, all, Buffer::copy_of(&expected), Durability::Volatile).await;
    for extent in [Extent::new(0, 1), Extent::new(7, 20), Extent::new(all.end() - 1, 1)] {
        let zeroed = store.write_zeroes(extent, Durability::Volatile).wait().await;
        zeroed.unwrap_or_else(|error| panic!("zeroing {extent}: {error}"));
        zero(store, &mut expected, extent);
        same(&read(store, all).await, &expected, all, "after zeroes were written");
    }
    assert!(store.write_zeroes(all, Durability::Volatile).wait().await.is_ok());
    assert!(read(store, all).await.iter().all(|&byte| byte == 0));
    runs(store, all).await;
    if store.characteristics().unmap.is_some_and(|unmap| unmap.anchors) {
        let run = first_run(store, all).await;
        assert_ne!(run.allocation, Allocation::Deallocated, "zeroed blocks lost their room");
    }
    let space = store.space().wait().await;
    assert!(
        matches!(space, Ok(_) | Err(BlockError::Invalid(InvalidRequest::Unsupported))),
        "{space:?}"
    );
}

async fn overlapping_writes_leave_one_of_them(store: &dyn Store) {
    let size = store.geometry().block_size.bytes();
    for round in 0..8_u8 {
        let (one, other) = (Extent::new(0, 24), Extent::new(8, 24));
        let filled = |extent: Extent, byte| {
            let mut data = Buffer::zeroed(extent.byte_count(store.geometry().block_size) as usize);
            data.fill(byte);
            store.write(extent, data.into(), Durability::Volatile)
        };
        let (low, high) = (round * 2 + 1, round * 2 + 2);
        let (first, second) = both(filled(one, low), filled(other, high)).await;
        assert!(first.is_ok() && second.is_ok());
        let data = read(store, Extent::new(0, 32)).await;
        for (lba, block) in data.chunks(size).enumerate() {
            let fits = |byte| block.iter().all(|&found| found == byte);
            let fine = match lba {
                0..8 => fits(low),
                8..24 => fits(low) || fits(high),
                _ => fits(high),
            };
            assert!(fine, "block {lba} after overlapping writes, round {round}");
        }
    }
}

/// Counts the changes of a status.
#[derive(Default)]
struct ChangeCounter(AtomicUsize);

impl StatusListener for ChangeCounter {
    fn status_changed(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

async fn growing_keeps_and_shrinking_forgets(store: &dyn Store) {
    let old = store.geometry().block_count;
    let new = old + 40;
    let listener = Arc::<ChangeCounter>::default();
    store.status().subscribe(Arc::downgrade(&listener) as _);
    let changes = || (store.status().generation(), listener.0.load(Ordering::Relaxed));
    let (generation, _) = changes();
    match store.resize(new).wait().await {
        Err(BlockError::Invalid(InvalidRequest::Unsupported)) => {
            assert_eq!(changes(), (generation, 0), "nothing has changed");
            return;
        }
        grown => grown.unwrap_or_else(|error| panic!("growing to {new} blocks: {error}")),
    }
    assert_eq!(store.geometry().block_count, new);
    assert_eq!(changes(), (generation + 1, 1), "the growth is reported once");
    let (kept, added) = (Extent::new(old - 3, 3), Extent::new(old, 40));
    let data = pattern(store, kept, 3);
    write(store, kept, Buffer::copy_of(&data), Durability::Volatile).await;
    assert!(read(store, added).await.iter().all(|&byte| byte == 0), "new blocks are zero");
    for _ in 0..2 {
        write(store, added, pattern(store, added, 4), Durability::Volatile).await;
        let shrunk = store.resize(old).wait().await;
        shrunk.unwrap_or_else(|error| panic!("shrinking to {old} blocks: {error}"));
        assert_eq!(store.geometry().block_count, old);
        let (generation, count) = changes();
        outside_is_refused(store, added).await;
        same(&read(store, kept).await, &data, kept, "after shrinking");
        assert!(store.resize(new).wait().await.is_ok());
        assert_eq!(changes(), (generation + 1, count + 1));
        same(&read(store, kept).await, &data, kept, "after growing again");
        assert!(read(store, added).await.iter().all(|&byte| byte == 0), "blocks came back");
    }
    assert!(store.resize(old).wait().await.is_ok());
}

/// Submits requests of all kinds, two at a time on separate blocks, and compares the results with a model.
async fn random_requests(store: &dyn Store, seed: u64) {
    let all = arena(store);
    let size = store.geometry().block_size.bytes();
    let mut model = read(store, all).await;
    let mut rng = Rng::new(seed);
    for step in 0..RANDOM_STEPS {
        let at = format!("step {step} of seed {seed}");
        // One request uses each half of the area.
        let half = all.block_count / 2;
        let pick = |rng: &mut Rng, from: u64| {
            let lba = from + rng.below(half);
            Extent::new(lba, 1 + rng.below((from + half - lba).min(64)))
        };
        let extents = [pick(&mut rng, 0), pick(&mut rng, half)];
        let kinds = [rng.below(8), rng.below(8)];
        let mut start = |slot: usize| {
            let extent = extents[slot];
            let durability =
                if rng.below(8) == 0 { Durability::Durable } else { Durability::Volatile };
            let from = extent.lba.0 as usize * size;
            let range = from..from + extent.block_count as usize * size;
            let mut data = Buffer::zeroed(0);
            let request = match kinds[slot] {
                0..3 => {
                    data = pattern(store, extent, rng.below(u64::MAX));
                    model[range].copy_from_slice(&data);
                    Request::Write { extent, durability }
                }
                3 if store.characteristics().unmap.is_some() => {
                    model[range].fill(0);
                    Request::Unmap(extent)
                }
                4 => {
                    model[range].fill(0);
                    Request::WriteZeroes { extent, durability }
                }
                5 if rng.below(4) == 0 => Request::Flush,
                6 => Request::Allocation(extent),
                _ => Request::Read(extent),
            };
            submit(store, request, data)
        };
        let (first, second) = (start(0), start(1));
        let (first, second) = both(first, second).await;
        for (extent, outcome) in extents.into_iter().zip([first, second]) {
            let from = extent.lba.0 as usize * size;
            let expected = &model[from..from + extent.block_count as usize * size];
            match outcome.unwrap_or_else(|error| panic!("{extent}, {at}: {error}")) {
                Outcome::Data(data) => same(&data.into_buffer(), expected, extent, &at),
                Outcome::Done => {}
                Outcome::Run(run) => {
                    assert!((1..=extent.block_count).contains(&run.block_count), "{at}: {run:?}");
                    let reported = &expected[..run.block_count as usize * size];
                    let holds = run.allocation == Allocation::Mapped
                        || reported.iter().all(|&byte| byte == 0);
                    assert!(holds, "{extent} has data and is told deallocated, {at}");
                }
            }
        }
    }
    same(&read(store, all).await, &model, all, &format!("after all steps of seed {seed}"));
}

/// Returns the area of the store that is compared as a whole.
fn arena(store: &dyn Store) -> Extent {
    let geometry = store.geometry();
    Extent::new(0, geometry.block_count.min(BYTES_MAX >> geometry.block_size.shift()))
}

/// Returns bytes that identify their block and their write.
fn pattern(store: &dyn Store, extent: Extent, tag: u64) -> Buffer {
    let block_size = store.geometry().block_size;
    let mut data = Buffer::for_overwrite(extent.byte_count(block_size) as usize);
    for (position, word) in
        (extent.byte_offset(block_size)..).step_by(8).zip(data.chunks_exact_mut(8))
    {
        let mixed = (position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ tag.rotate_left(32);
        word.copy_from_slice(&mixed.to_le_bytes());
    }
    data
}

fn zero(store: &dyn Store, data: &mut [u8], extent: Extent) {
    let size = store.geometry().block_size.bytes();
    data[extent.lba.0 as usize * size..extent.end() as usize * size].fill(0);
}

async fn read(store: &dyn Store, extent: Extent) -> Buffer {
    let data = store.read(extent).wait().await;
    let data = data.unwrap_or_else(|error| panic!("reading {extent}: {error}"));
    assert_eq!(data.len() as u64, extent.byte_count(store.geometry().block_size), "{extent}");
    data.into_buffer()
}

async fn write(store: &dyn Store, extent: Extent, data: Buffer, durability: Durability) {
    let written = store.write(extent, data.into(), durability).wait().await;
    written.unwrap_or_else(|error| panic!("writing {extent}, {durability:?}: {error}"));
}

fn same(found: &[u8], expected: &[u8], extent: Extent, when: &str) {
    assert_eq!(found.len(), expected.len(), "{extent} {when}");
    if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
        panic!(
            "{extent} {when}: byte {at} is {:#04x} and should be {:#04x}",
            found[at], expected[at]
        );
    }
}

async fn first_run(store: &dyn Store, extent: Extent) -> AllocationRun {
    let run = store.allocation(extent).wait().await;
    let run = run.unwrap_or_else(|error| panic!("allocation of {extent}: {error}"));
    assert!((1..=extent.block_count).contains(&run.block_count), "{extent}: {run:?}");
    run
}

/// Walks the runs of an extent and checks that deallocated ones read as zero.
async fn runs(store: &dyn Store, extent: Extent) {
    let mut rest = extent;
    while rest.block_count > 0 {
        let run = first_run(store, rest).await;
        let reported = Extent { block_count: run.block_count, ..rest };
        if run.allocation != Allocation::Mapped {
            let sample = Extent { block_count: reported.block_count.min(256), ..reported };
            let zeroes = read(store, sample).await.iter().all(|&byte| byte == 0);
            assert!(zeroes, "{reported} is told {:?} and does not read as zero", run.allocation);
        }
        rest = Extent::new(reported.end(), rest.block_count - reported.block_count);
    }
}

async fn mapped(store: &dyn Store, extent: Extent) {
    let whole = AllocationRun { block_count: extent.block_count, allocation: Allocation::Mapped };
    assert_eq!(first_run(store, extent).await, whole, "{extent} was just written");
}

/// Waits for two replies at the same time.
async fn both<A: 'static, B: 'static>(first: Io<A>, second: Io<B>) -> (A, B) {
    let (mut first, mut second) = (pin!(first.wait()), pin!(second.wait()));
    let (mut one, mut other) = (None, None);
    poll_fn(|context| {
        if one.is_none()
            && let Poll::Ready(value) = first.as_mut().poll(context)
        {
            one = Some(value);
        }
        if other.is_none()
            && let Poll::Ready(value) = second.as_mut().poll(context)
        {
            other = Some(value);
        }
        match (one.is_some(), other.is_some()) {
            (true, true) => Poll::Ready(one.take().zip(other.take())),
            _ => Poll::Pending,
        }
    })
    .await
    .unwrap_or_else(|| unreachable!("both are there"))
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::layers::{
        EncryptedStore, Faults, FaultyStore, KEY_BYTES, Key, KeyStore, ProtectedStore, ReadOnly,
    };
    use crate::{
        BlockSize, Characteristics, Geometry, Layer, MemoryStore, OptimalTransfer, StoreStatus,
    };

    fn run<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("a store in memory made its caller wait"),
        }
    }

    /// A key store that always has the same key.
    struct Same;

    impl KeyStore for Same {
        fn replace_key(&self) -> Io<std::io::Result<Key>> {
            Io::Ready(Ok(Key::new([7; KEY_BYTES])))
        }
    }

    #[test]
    fn the_layers_pass() {
        let memory = || Arc::new(MemoryStore::new(BlockSize::B512, 1000));
        for block_size in [BlockSize::B512, BlockSize::B4096] {
            run(check(&protected_memory(block_size), 5));
            let faulty =
                FaultyStore::new(Arc::new(protected_memory(block_size)), Faults::default());
            run(check(&faulty, 6));
            run(check_read_only(&ReadOnly::new(Arc::new(protected_memory(block_size)))));
        }
        run(check(&FaultyStore::new(memory(), Faults::default()), 4));
        for (block_size, seed) in [(BlockSize::B512, 7), (BlockSize::B4096, 8)] {
            let below = Arc::new(MemoryStore::new(block_size, 1000));
            run(check(&EncryptedStore::new(below, Key::new([7; KEY_BYTES]), Arc::new(Same)), seed));
        }
        run(check_read_only(&ReadOnly::new(memory())));
    }

    /// A layer with optimal transfers: a granularity of 4 blocks, and this length.
    struct Aligned(Arc<dyn Store>, u32);

    impl Layer for Aligned {
        fn inner(&self) -> &Arc<dyn Store> {
            &self.0
        }

        fn adapt(&self, inner: Characteristics) -> Characteristics {
            let optimal = OptimalTransfer { granularity_blocks: 4, length_blocks: self.1 };
            Characteristics { optimal_transfer: Some(optimal), ..inner }
        }

        fn handle<T: 'static>(
            &self,
            _: Request,
            submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
        ) -> Reply<T> {
            submit(&*self.0)
        }
    }

    fn aligned(length_blocks: u32) -> Arc<Aligned> {
        let below = Arc::new(MemoryStore::new(BlockSize::B512, 1000));
        Arc::new(Aligned(below, length_blocks))
    }

    #[test]
    fn the_layers_keep_optimal_transfers_where_their_blocks_are_aligned() {
        let below = aligned(12);
        let optimal = below.characteristics().optimal_transfer;
        run(check(&*below, 9));
        let kept: [Arc<dyn Store>; 3] = [
            Arc::new(FaultyStore::new(below.clone(), Faults::default())),
            Arc::new(EncryptedStore::new(below.clone(), Key::new([7; KEY_BYTES]), Arc::new(Same))),
            Arc::new(ReadOnly::new(below.clone())),
        ];
        for store in kept {
            assert_eq!(store.characteristics().optimal_transfer, optimal);
        }
        let protected = ProtectedStore::new(below, BlockSize::B4096).expect("it can be protected");
        assert_eq!(protected.characteristics().optimal_transfer, None);
    }

    #[test]
    #[should_panic(expected = "length_blocks: 6")]
    fn a_store_with_an_optimal_length_between_its_granularity_fails() {
        run(check(&*aligned(6), 1));
    }

    #[test]
    fn the_layers_pass_on_errors() {
        let faulty = |below| Arc::new(FaultyStore::new(below, Faults::default())) as _;
        let encrypted = |below| {
            Arc::new(EncryptedStore::new(below, Key::new([7; KEY_BYTES]), Arc::new(Same))) as _
        };
        run(check_errors(faulty));
        run(check_errors(encrypted));
        run(check_errors(|below| Arc::new(ReadOnly::new(below))));
        for block_size in [BlockSize::B512, BlockSize::B4096] {
            run(check_errors(|below| {
                Arc::new(ProtectedStore::new(below, block_size).expect("it can be protected"))
            }));
        }
    }

    fn protected_memory(block_size: BlockSize) -> ProtectedStore {
        let below = Arc::new(MemoryStore::new(BlockSize::B512, 20_000));
        ProtectedStore::new(below, block_size).expect("it can be protected")
    }

    #[test]
    fn the_memory_store_passes() {
        for block_size in [BlockSize::B512, BlockSize::B4096] {
            for seed in 0..4 {
                run(check(&MemoryStore::new(block_size, 1000), seed));
            }
        }
        run(check(&MemoryStore::new(BlockSize::B512, BLOCKS_MIN), 5));
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Defect {
        WritesTooFew,
        ForgetsToUnmap,
        Clips,
        HasLeftovers,
        DropsSharedData,
    }

    /// A memory store with one defect.
    struct Wrong(MemoryStore, Defect);

    impl Store for Wrong {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn characteristics(&self) -> Characteristics {
            self.0.characteristics()
        }

        fn status(&self) -> &Arc<StoreStatus> {
            self.0.status()
        }

        fn read(&self, extent: Extent) -> Reply<Data> {
            let leftover = self.1 == Defect::HasLeftovers && extent.block_count == 9;
            if self.1 == Defect::Clips && extent == Extent::new(999, 2) {
                return Io::Ready(Ok(Data::Zeroes(1024)));
            }
            self.0.read(extent).map(move |data| {
                let mut buffer = data?.into_buffer();
                if leftover {
                    buffer[100] = 1;
                }
                Ok(buffer.into())
            })
        }

        fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
            match (self.1, data) {
                (Defect::WritesTooFew, data) if (9..100).contains(&extent.block_count) => {
                    let extent = Extent { block_count: extent.block_count - 1, ..extent };
                    let mut data = data.into_buffer();
                    data.truncate(extent.byte_count(BlockSize::B512) as usize);
                    self.0.write(extent, data.into(), durability)
                }
                (Defect::DropsSharedData, Payload::Shared(_)) => {
                    let zeroes = extent.byte_count(BlockSize::B512) as usize;
                    self.0.write(extent, Buffer::zeroed(zeroes).into(), durability)
                }
                (_, data) => self.0.write(extent, data, durability),
            }
        }

        fn flush(&self) -> Reply<()> {
            self.0.flush()
        }

        fn unmap(&self, extent: Extent) -> Reply<()> {
            match self.1 {
                Defect::ForgetsToUnmap if extent.fits(1000) => Io::Ready(Ok(())),
                _ => self.0.unmap(extent),
            }
        }

        fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
            self.0.write_zeroes(extent, durability)
        }

        fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
            self.0.allocation(extent)
        }
    }

    fn check_wrong(defect: Defect) {
        run(check(&Wrong(MemoryStore::new(BlockSize::B512, 1000), defect), 1));
    }

    #[test]
    #[should_panic(expected = "after a write")]
    fn a_store_that_writes_one_block_too_few_fails() {
        check_wrong(Defect::WritesTooFew);
    }

    #[test]
    #[should_panic(expected = "after an unmap")]
    fn a_store_that_forgets_to_unmap_fails() {
        check_wrong(Defect::ForgetsToUnmap);
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn a_store_that_clips_fails() {
        check_wrong(Defect::Clips);
    }

    #[test]
    #[should_panic(expected = "was never written")]
    fn a_store_with_leftovers_fails() {
        check_wrong(Defect::HasLeftovers);
    }

    #[test]
    #[should_panic(expected = "after a write of shared data")]
    fn a_store_that_drops_shared_data_fails() {
        check_wrong(Defect::DropsSharedData);
    }
}
