//! Pools that go on without a device that has the only copy of some data.

use std::sync::Arc;

use sarsen_block::{
    BlockError, BlockSize, Buffer, Durability, Extent, MediumProblem, Rng, Store as _,
};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, end_all, run, run_until};
use super::{is_clean, label, new_pool, stores, volume};
use crate::{AcceptedLosses, DeviceState, NewVolume, Pool, PoolError, PoolVolume, VolumeId, check};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;
const DEVICES: AcceptedLosses = AcceptedLosses { journal: false, devices: true, newer: false };

/// What a block of a volume should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// This value, everywhere.
    Value(u8),
    /// This value, or it was on the lost device.
    ValueOrLost(u8),
}

fn is_lost<T: std::fmt::Debug>(result: &Result<T, BlockError>) -> bool {
    matches!(
        result,
        Err(BlockError::Medium { problem: MediumProblem::Read(error), .. })
            if error.to_string().contains("recovered without")
    )
}

async fn write(store: &PoolVolume, block: u64, value: u8) -> Result<(), BlockError> {
    let data = Buffer::copy_of(&[value; BLOCK]);
    store.write(Extent::new(block, 1), data.into(), Durability::Durable).wait().await
}

/// Compares a volume with what it should be. Returns the number of blocks that are lost.
async fn compare(pool: &Pool, id: VolumeId, expected: &[Expected]) -> usize {
    let store = pool.open_volume(id).await.expect("opened");
    let mut lost = 0;
    for (block, expected) in (0..).zip(expected) {
        let read = store.read(Extent::new(block, 1)).wait().await;
        match (read.map(|data| data.into_buffer()), *expected) {
            (Ok(read), Expected::Value(value) | Expected::ValueOrLost(value)) => {
                assert!(read.iter().all(|&byte| byte == value), "block {block}: {value}");
            }
            (read, Expected::ValueOrLost(_)) if is_lost(&read) => lost += 1,
            (read, expected) => panic!("block {block}: {read:?} instead of {expected:?}"),
        }
    }
    lost
}

/// Creates a pool with a volume on either device, and a mirrored one. Returns their numbers.
async fn pool_on(devices: &[Arc<SimulatedDevice>], has_checksums: bool) -> (Pool, [VolumeId; 2]) {
    let pool = Pool::create(&new_pool(devices, 16 << 10), LocalTasks::shared()).await;
    let pool = pool.expect("a pool");
    let size = BLOCKS * BLOCK as u64;
    let mut ids = [VolumeId(0); 2];
    for (id, copies) in ids.iter_mut().zip([1, 2]) {
        let new =
            NewVolume { copies, stripes: 2, has_checksums, ..volume("v", size, BlockSize::B4096) };
        *id = pool.create_volume(&new).await.expect("created");
        let store = pool.open_volume(*id).await.expect("opened");
        let data = Buffer::copy_of(&vec![1; BLOCK * BLOCKS as usize]);
        let written = store.write(Extent::new(0, BLOCKS), data.into(), Durability::Durable);
        written.wait().await.expect("written");
    }
    (pool, ids)
}

async fn recover(devices: &[Arc<SimulatedDevice>]) -> Pool {
    let refused = Pool::open(stores(devices), LocalTasks::shared()).await;
    assert!(matches!(refused, Err(PoolError::Unfit { .. })), "it has the only copy of something");
    let pool = Pool::open_accepting(stores(devices), LocalTasks::shared(), DEVICES).await;
    pool.expect("opened")
}

#[test]
fn what_has_another_copy_goes_on_without_a_lost_device() {
    for (seed, has_checksums, has_checkpoint) in
        [(1, false, true), (2, true, true), (3, false, false), (4, true, false)]
    {
        let mut rng = Rng::new(seed);
        let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
        let (ids, snapshot) = run(&devices, async {
            let (pool, ids) = pool_on(&devices, has_checksums).await;
            // Without them, only the journal has the slabs.
            let mut snapshot = None;
            if has_checkpoint {
                let created = pool.snapshot(&[(ids[0], label("s"))], false).await;
                snapshot = Some(created.expect("created")[0]);
                pool.checkpoint().await.expect("written");
            }
            (ids, snapshot)
        });
        end_all(());
        let all = vec![Expected::ValueOrLost(1); BLOCKS as usize];
        let mut now = all.clone();
        let rest = [devices[1].clone()];
        run(&rest, async {
            let pool = recover(&rest).await;
            let lost = compare(&pool, ids[0], &now).await;
            assert!(lost > 100 && lost < 400, "about half of {BLOCKS} blocks: {lost}");
            if let Some(snapshot) = snapshot {
                assert_eq!(compare(&pool, snapshot, &all).await, lost);
                assert_eq!(pool.lost_bytes(snapshot).await.expect("read"), (lost * BLOCK) as u64);
            }
            assert_eq!(pool.lost_bytes(ids[1]).await.expect("read"), 0);
            assert!(pool.space().lost_bytes >= (lost * BLOCK) as u64);
            let whole = vec![Expected::Value(1); BLOCKS as usize];
            assert_eq!(compare(&pool, ids[1], &whole).await, 0);
            // Whole blocks can be written and given back, and are there again.
            let store = pool.open_volume(ids[0]).await.expect("opened");
            for _ in 0..200 {
                let block = rng.below(BLOCKS);
                if rng.chance(50) {
                    write(&store, block, 3).await.expect("written");
                    now[block as usize] = Expected::Value(3);
                } else {
                    store.unmap(Extent::new(block, 1)).wait().await.expect("unmapped");
                    now[block as usize] = Expected::Value(0);
                }
            }
            store.flush().wait().await.expect("flushed");
            assert!(compare(&pool, ids[0], &now).await < lost);
            pool.scrub(|_, _| {}).await.expect("scrubbed");
            if let Some(snapshot) = snapshot {
                assert_eq!(compare(&pool, snapshot, &all).await, lost);
                assert_eq!(pool.lost_bytes(snapshot).await.expect("read"), (lost * BLOCK) as u64);
            }
        });
        end_all(());
        run(&devices, async {
            let checked = check(stores(&rest)).await.expect("checked");
            assert_eq!(checked.findings, []);
            // It is opened as it is from now on.
            let pool = Pool::open(stores(&rest), LocalTasks::shared()).await.expect("opened");
            compare(&pool, ids[0], &now).await;
            // The device is back, as one without this data.
            pool.return_device(devices[0].clone()).await.expect("it is back");
        });
        run(&devices, async {
            let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
            pool.maintain_once().await.expect("copied");
            let is_online = |pool: &Pool| {
                pool.devices().iter().all(|device| device.state == DeviceState::Online)
            };
            assert!(is_online(&pool));
            let lost = compare(&pool, ids[0], &now).await;
            if let Some(snapshot) = snapshot {
                assert!(compare(&pool, snapshot, &all).await > lost);
                pool.delete(snapshot).await.expect("deleted");
            }
            pool.delete(ids[0]).await.expect("deleted");
            pool.maintain_once().await.expect("deleted");
            pool.checkpoint().await.expect("written");
            is_clean(&devices).await;
            assert!(pool.space().lost_bytes > 0);
            pool.scrub(|_, _| {}).await.expect("scrubbed");
            assert_eq!(pool.space().lost_bytes, 0);
            pool.checkpoint().await.expect("written");
            is_clean(&devices).await;
            let whole = vec![Expected::Value(1); BLOCKS as usize];
            compare(&pool, ids[1], &whole).await;
        });
    }
}

#[test]
fn device_is_used_again_if_the_recovery_without_it_was_interrupted() {
    let all = vec![Expected::ValueOrLost(1); BLOCKS as usize];
    for requests in 1.. {
        let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
        let ids = run(&devices, async {
            let (pool, ids) = pool_on(&devices, true).await;
            pool.checkpoint().await.expect("written");
            // The journal names the regions that are overwritten.
            let store = pool.open_volume(ids[0]).await.expect("opened");
            for block in 0..16 {
                write(&store, block, 1).await.expect("written");
            }
            ids
        });
        end_all(());
        let rest = [devices[1].clone()];
        let recovered = Pool::open_accepting(stores(&rest), LocalTasks::shared(), DEVICES);
        let is_recovered = run_until(&rest, requests, async { recovered.await.is_ok() });
        end_all(());
        rest[0].crash_with([0, 50, 100][requests as usize % 3]);
        run(&devices, async {
            let pool = Pool::open(stores(&devices), LocalTasks::shared()).await;
            let pool = pool.unwrap_or_else(|error| panic!("after {requests} requests: {error}"));
            compare(&pool, ids[0], &all).await;
        });
        end_all(());
        if is_recovered == Some(true) {
            assert!(requests > 12, "recovered after {requests} requests");
            return;
        }
    }
}
