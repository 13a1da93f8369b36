//! The part of the suite that checks protection information.

use super::{Outcome, both, pattern, read, same, submit, write};
use crate::{
    BlockError, Buffer, Durability, Extent, InvalidRequest, PROTECTION_BYTES, Reply, Request, Rng,
    Store,
};

/// The area of the store that is checked as a whole.
const BLOCKS: u64 = 60;
const RANDOM_STEPS: u32 = 300;
const NONE: u8 = 0xff;

/// Checks a store that keeps protection information. The contents are arbitrary before and afterwards.
pub(super) async fn check(store: &dyn Store, seed: u64) {
    let all = Extent::new(0, BLOCKS);
    let zeroed = store.write_zeroes(all, Durability::Volatile).wait().await;
    assert!(zeroed.is_ok(), "{zeroed:?}");
    assert_eq!(read_all(store).await, vec![blank(store); BLOCKS as usize], "zeroed blocks");
    it_stays_with_its_block(store).await;
    plain_writes_take_it_away(store).await;
    borders(store).await;
    overlapping_writes_leave_pairs(store).await;
    random_requests(store, seed).await;
}

/// Checks that a store without protection information rejects requests with it.
pub(super) async fn check_refused(store: &dyn Store) {
    for request in both_kinds(Extent::new(1, 1)) {
        let refused = submit(store, request, Buffer::zeroed(size(store))).wait().await;
        assert!(
            matches!(refused, Err(BlockError::Invalid(InvalidRequest::Unsupported))),
            "{request:?} was not refused: {:?}",
            refused.err()
        );
    }
}

fn both_kinds(extent: Extent) -> [Request; 2] {
    let durability = Durability::Volatile;
    [Request::ReadProtected(extent), Request::WriteProtected { extent, durability }]
}

/// A block with its protection information.
type Pair = Vec<u8>;

fn size(store: &dyn Store) -> usize {
    store.geometry().block_size.bytes() + PROTECTION_BYTES
}

fn blank(store: &dyn Store) -> Pair {
    [vec![0; store.geometry().block_size.bytes()], vec![NONE; PROTECTION_BYTES]].concat()
}

async fn read_pairs(store: &dyn Store, extent: Extent) -> Vec<Pair> {
    let data = store.read_protected(extent).wait().await;
    let data = data.unwrap_or_else(|error| panic!("reading {extent} with protection: {error}"));
    assert_eq!(data.len(), extent.block_count as usize * size(store), "{extent}");
    data.into_buffer().chunks(size(store)).map(<[u8]>::to_vec).collect()
}

async fn read_all(store: &dyn Store) -> Vec<Pair> {
    read_pairs(store, Extent::new(0, BLOCKS)).await
}

/// Returns blocks that identify their position and their write, up to their last byte.
fn pairs(store: &dyn Store, extent: Extent, tag: u64) -> Vec<Pair> {
    let data = pattern(store, extent, tag);
    let blocks = data.chunks(store.geometry().block_size.bytes());
    let with_tags = |(index, block): (u64, &[u8])| {
        let tags = (extent.lba.0 + index + 1).wrapping_mul(0x2545_f491_4f6c_dd1d) ^ tag;
        [block, &tags.to_be_bytes()].concat()
    };
    (0..).zip(blocks).map(with_tags).collect()
}

fn put(store: &dyn Store, extent: Extent, pairs: &[Pair], durability: Durability) -> Reply<()> {
    store.write_protected(extent, Buffer::copy_of(&pairs.concat()).into(), durability)
}

async fn it_stays_with_its_block(store: &dyn Store) {
    let mut model = read_all(store).await;
    let lengths = [1, 2, 3, 4, 5, 8, 9, 31];
    for (tag, block_count) in (1..).zip(lengths) {
        for lba in [0, 1, 3, 7, BLOCKS - block_count] {
            let extent = Extent::new(lba, block_count);
            let written = pairs(store, extent, tag);
            let done = put(store, extent, &written, Durability::Volatile).wait().await;
            assert!(done.is_ok(), "{extent}: {done:?}");
            model[lba as usize..extent.end() as usize].clone_from_slice(&written);
            assert_eq!(read_all(store).await, model, "after a protected write of {extent}");
        }
    }
    let plain = read(store, Extent::new(0, BLOCKS)).await;
    let stripped: Vec<u8> =
        model.iter().flat_map(|pair| &pair[..pair.len() - PROTECTION_BYTES]).copied().collect();
    same(&plain, &stripped, Extent::new(0, BLOCKS), "without protection");
    let extent = Extent::new(2, 3);
    let written = pairs(store, extent, 100);
    assert!(put(store, extent, &written, Durability::Durable).wait().await.is_ok());
    assert!(store.flush().wait().await.is_ok());
    assert_eq!(read_pairs(store, extent).await, written, "after a durable write");
}

async fn plain_writes_take_it_away(store: &dyn Store) {
    let all = Extent::new(0, BLOCKS);
    for kind in 0..3 {
        let mut model = pairs(store, all, 7 + kind);
        assert!(put(store, all, &model, Durability::Volatile).wait().await.is_ok());
        let extent = Extent::new(5, 9);
        match kind {
            0 => write(store, extent, pattern(store, extent, 8), Durability::Volatile).await,
            1 => {
                let done = store.write_zeroes(extent, Durability::Volatile).wait().await;
                assert!(done.is_ok(), "{done:?}");
            }
            _ if store.characteristics().unmap.is_some() => {
                let done = store.unmap(extent).wait().await;
                assert!(done.is_ok(), "{done:?}");
            }
            _ => return,
        }
        for (index, pair) in model[5..14].iter_mut().enumerate() {
            *pair = blank(store);
            if kind == 0 {
                let block = pattern(store, Extent::new(5 + index as u64, 1), 8);
                pair[..block.len()].copy_from_slice(&block);
            }
        }
        assert_eq!(read_all(store).await, model, "after a change of kind {kind}");
    }
}

async fn borders(store: &dyn Store) {
    let count = store.geometry().block_count;
    let durability = Durability::Volatile;
    for extent in [
        Extent::new(count, 1),
        Extent::new(count - 1, 2),
        Extent::new(u64::MAX, 1),
        Extent::new(1, u64::MAX),
    ] {
        let length = extent.block_count.min(2) as usize * size(store);
        for request in both_kinds(extent) {
            match submit(store, request, Buffer::zeroed(length)).wait().await {
                Err(BlockError::Invalid(InvalidRequest::OutOfRange {
                    extent: reported,
                    block_count,
                })) => {
                    assert_eq!((reported, block_count), (extent, count), "{request:?}");
                }
                Err(error) => panic!("{request:?} lies outside and was answered {error:?}"),
                Ok(_) => panic!("{request:?} lies outside and was executed"),
            }
        }
    }
    let last = Extent::new(count - 2, 2);
    let written = pairs(store, last, 9);
    assert!(put(store, last, &written, durability).wait().await.is_ok());
    assert_eq!(read_pairs(store, last).await, written);
    assert!(read_pairs(store, Extent::new(count, 0)).await.is_empty());
}

async fn overlapping_writes_leave_pairs(store: &dyn Store) {
    for round in 0..8_u64 {
        let (low, high) = (Extent::new(0, 24), Extent::new(8, 24));
        let (first, second) = (pairs(store, low, 2 * round), pairs(store, high, 2 * round + 1));
        let durability = Durability::Volatile;
        let (one, other) =
            both(put(store, low, &first, durability), put(store, high, &second, durability)).await;
        assert!(one.is_ok() && other.is_ok());
        for (lba, pair) in read_pairs(store, Extent::new(0, 32)).await.into_iter().enumerate() {
            let is_one = first.get(lba) == Some(&pair);
            let is_other = lba.checked_sub(8).is_some_and(|lba| second.get(lba) == Some(&pair));
            assert!(is_one || is_other, "block {lba} is of two writes, round {round}");
        }
    }
}

/// Submits requests of all kinds, and compares the results with a model.
async fn random_requests(store: &dyn Store, seed: u64) {
    let mut model = read_all(store).await;
    let mut rng = Rng::new(seed);
    let block_bytes = store.geometry().block_size.bytes();
    for step in 0..RANDOM_STEPS {
        let at = format!("step {step} of seed {seed}");
        let lba = rng.below(BLOCKS);
        let extent = Extent::new(lba, 1 + rng.below((BLOCKS - lba).min(20)));
        let range = lba as usize..extent.end() as usize;
        let durability = Durability::Volatile;
        let mut data = Buffer::zeroed(0);
        let request = match rng.below(7) {
            0 | 1 => {
                let written = pairs(store, extent, rng.below(u64::MAX));
                data = Buffer::copy_of(&written.concat());
                model[range].clone_from_slice(&written);
                Request::WriteProtected { extent, durability }
            }
            2 => {
                data = pattern(store, extent, rng.below(u64::MAX));
                for (pair, block) in model[range].iter_mut().zip(data.chunks(block_bytes)) {
                    pair[..block_bytes].copy_from_slice(block);
                    pair[block_bytes..].fill(NONE);
                }
                Request::Write { extent, durability }
            }
            kind @ (3 | 4) => {
                model[range].fill(blank(store));
                if kind == 3 && store.characteristics().unmap.is_some() {
                    Request::Unmap(extent)
                } else {
                    Request::WriteZeroes { extent, durability }
                }
            }
            _ => Request::ReadProtected(extent),
        };
        let outcome = submit(store, request, data).wait().await;
        let outcome = outcome.unwrap_or_else(|error| panic!("{extent}, {at}: {error}"));
        if let Outcome::Data(data) = outcome {
            let expected = model[lba as usize..extent.end() as usize].concat();
            same(&data.into_buffer(), &expected, extent, &at);
        }
    }
    assert_eq!(read_all(store).await, model, "after all steps of seed {seed}");
}
