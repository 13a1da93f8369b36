//! Full pools: what they answer while other volumes change without a pause.

use std::cell::Cell;

use sarsen_block::{BlockError, BlockSize, Buffer, Durability, Extent, Store as _};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, run};
use super::{label, new_pool, volume};
use crate::{NewVolume, Pool, PoolVolume};

const CHUNK: usize = 64 << 10;
const CHUNK_BLOCKS: u64 = (CHUNK / 512) as u64;
const PIECE_BLOCKS: u64 = 8;
/// The number of changes after which the other volume stops, so that a failing test ends.
const CHANGES_MAX: u64 = 20_000;

async fn fill_chunk(store: &PoolVolume, chunk: u64) -> Result<(), BlockError> {
    let extent = Extent::new(chunk * CHUNK_BLOCKS, CHUNK_BLOCKS);
    let data = Buffer::copy_of(&[7; CHUNK]);
    store.write(extent, data.into(), Durability::Volatile).wait().await
}

/// Writes chunks from the first one on until the pool is full, and returns how many.
async fn fill(store: &PoolVolume) -> u64 {
    for chunk in 0..store.geometry().block_count / CHUNK_BLOCKS {
        match fill_chunk(store, chunk).await {
            Ok(()) => {}
            Err(BlockError::NoSpace { .. }) => return chunk,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the pool has space for the whole volume")
}

/// Changes an entry of a chunk again and again, which needs pages, and no chunk.
async fn change_without_pause(store: &PoolVolume, is_over: &Cell<bool>) {
    let extent = Extent::new(PIECE_BLOCKS, PIECE_BLOCKS);
    for change in 0..CHANGES_MAX {
        if is_over.get() {
            return;
        }
        let changed = if change % 2 == 0 {
            store.unmap(extent).wait().await
        } else {
            let data = Buffer::copy_of(&[change as u8; 4096]);
            store.write(extent, data.into(), Durability::Volatile).wait().await
        };
        changed.expect("it needs no chunk");
        tokio::task::yield_now().await;
    }
}

#[test]
fn free_bytes_include_those_next_to_data_with_checksums() {
    let devices = [SimulatedDevice::new(32 << 20, 1)];
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, CHUNK as u32), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let new = NewVolume { has_checksums: true, ..volume("checked", 64 << 20, BlockSize::B512) };
        let id = pool.create_volume(&new).await.expect("created");
        let store = pool.open_volume(id).await.expect("opened");
        let filled = fill(&store).await;
        pool.checkpoint().await.expect("written");
        let full = pool.space();
        assert!(full.is_full, "{full:?}");
        // Some chunks of different slabs, so that none of them is free as a whole.
        for chunk in (0..filled).step_by(32) {
            let extent = Extent::new(chunk * CHUNK_BLOCKS, CHUNK_BLOCKS);
            store.unmap(extent).wait().await.expect("unmapped");
        }
        let freed = filled.div_ceil(32) * CHUNK as u64;
        let space = pool.space();
        assert_eq!(space.free_bytes, full.free_bytes + freed, "{space:?} after {full:?}");
        assert!(!space.is_full, "the only volume can use it");
        // A volume without checksums cannot.
        let plain = pool.create_volume(&volume("plain", 1 << 20, BlockSize::B512)).await;
        let store = pool.open_volume(plain.expect("created")).await.expect("opened");
        let refused = fill_chunk(&store, 0).await;
        assert!(matches!(refused, Err(BlockError::NoSpace { .. })), "{refused:?}");
        assert!(pool.space().is_full);
    });
}

#[test]
fn a_full_pool_says_so_after_two_checkpoints_while_others_write() {
    for seed in 0..8 {
        let devices = [SimulatedDevice::new(32 << 20, seed)];
        run(&devices, async {
            let pool = Pool::create(&new_pool(&devices, CHUNK as u32), LocalTasks::shared()).await;
            let pool = pool.expect("a pool");
            let open = async |name: &str, has_checksums: bool| {
                let new = NewVolume { has_checksums, ..volume(name, 64 << 20, BlockSize::B512) };
                let id = pool.create_volume(&new).await.expect("created");
                (id, pool.open_volume(id).await.expect("opened"))
            };
            let (busy, (id, full), checked) = (
                open("busy", false).await.1,
                open("full", false).await,
                open("checked", true).await,
            );
            fill_chunk(&busy, 0).await.expect("written");
            let filled = fill(&full).await;
            let is_over = Cell::new(false);
            let others = change_without_pause(&busy, &is_over);
            let completed = || pool.shared.state.read().completed;
            let check = async {
                for _ in 0..4 {
                    let before = completed();
                    let refused = fill_chunk(&full, filled).await;
                    assert!(matches!(refused, Err(BlockError::NoSpace { .. })), "{refused:?}");
                    // One that was being written may end first.
                    let written = completed() - before;
                    assert!(written <= 3, "{written} checkpoints, seed {seed}");
                }
                // What was given back before is used, however much is given back meanwhile.
                for chunk in 0..4 {
                    let extent = Extent::new(chunk * CHUNK_BLOCKS, CHUNK_BLOCKS);
                    full.unmap(extent).wait().await.expect("unmapped");
                    fill_chunk(&full, filled + chunk).await.expect("a chunk was given back");
                }
                // So is what a deleted snapshot has.
                pool.snapshot(&[(id, label("s"))], false).await.expect("created");
                let extent = Extent::new(8 * CHUNK_BLOCKS, CHUNK_BLOCKS);
                full.unmap(extent).wait().await.expect("unmapped");
                let refused = fill_chunk(&full, 8).await;
                assert!(matches!(refused, Err(BlockError::NoSpace { .. })), "{refused:?}");
                let snapshot = pool.volumes().into_iter().find(|one| one.label.name == "s");
                pool.delete(snapshot.expect("it is there").id).await.expect("deleted");
                fill_chunk(&full, 8).await.expect("the snapshot was deleted");
                // And whole slabs, for a volume of another kind.
                let all = Extent::new(0, full.geometry().block_count);
                full.unmap(all).wait().await.expect("unmapped");
                fill_chunk(&checked.1, 0).await.expect("slabs were given back");
                is_over.set(true);
            };
            futures_util::future::join(others, check).await;
        });
    }
}
