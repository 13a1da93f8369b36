//! Chunks that lose a reference: the other one must not overwrite them too early.

use std::sync::Arc;

use sarsen_block::{BlockSize, Buffer, Durability, Extent, Store as _};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, end_all, run};
use super::{label, new_pool, stores, volume};
use crate::{Pool, PoolVolume, VolumeId};

const CHUNK: usize = 64 << 10;

async fn write(store: &PoolVolume, value: u8, durability: Durability) {
    let data = Buffer::copy_of(&[value; CHUNK]);
    let extent = Extent::new(0, (CHUNK / 512) as u64);
    store.write(extent, data.into(), durability).wait().await.expect("written");
}

async fn first_byte(pool: &Pool, id: VolumeId) -> u8 {
    let store = pool.open_volume(id).await.expect("opened");
    let extent = Extent::new(0, (CHUNK / 512) as u64);
    let data = store.read(extent).wait().await.expect("read").into_buffer();
    assert!(data.iter().all(|&byte| byte == data[0]));
    data[0]
}

async fn pool_with_volume(devices: &[Arc<SimulatedDevice>]) -> (Pool, VolumeId) {
    let pool = Pool::create(&new_pool(devices, CHUNK as u32), LocalTasks::shared()).await;
    let pool = pool.expect("a pool");
    let id = pool.create_volume(&volume("v", 1 << 20, BlockSize::B512)).await.expect("created");
    write(&pool.open_volume(id).await.expect("opened"), 1, Durability::Durable).await;
    (pool, id)
}

async fn open(devices: &[Arc<SimulatedDevice>]) -> Pool {
    Pool::open(stores(devices), LocalTasks::shared()).await.expect("opened")
}

#[test]
fn chunk_that_a_clone_has_left_is_not_overwritten_before_that_is_durable() {
    for durability in [Durability::Volatile, Durability::Durable] {
        let devices = [SimulatedDevice::new(32 << 20, 1)];
        let (volume, clone) = run(&devices, async {
            let (pool, volume) = pool_with_volume(&devices).await;
            let snapshot = pool.snapshot(&[(volume, label("s"))], false).await.expect("created")[0];
            let clone = pool.clone_of(snapshot, &label("c")).await.expect("created");
            pool.delete(snapshot).await.expect("deleted");
            pool.maintain_once().await.expect("deleted");
            pool.checkpoint().await.expect("written");
            pool.checkpoint().await.expect("written");
            write(&pool.open_volume(clone).await.expect("opened"), 2, Durability::Volatile).await;
            write(&pool.open_volume(volume).await.expect("opened"), 3, durability).await;
            (volume, clone)
        });
        end_all(());
        // All data survives, and the records only if they were flushed.
        devices[0].crash_with(100);
        run(&devices, async {
            let pool = open(&devices).await;
            let (volume, clone) = (first_byte(&pool, volume).await, first_byte(&pool, clone).await);
            assert!([1, 2].contains(&clone), "the clone has {clone}, which the volume wrote");
            let expected: &[u8] = if durability == Durability::Durable { &[3] } else { &[1, 3] };
            assert!(expected.contains(&volume), "{volume}");
        });
    }
}

#[test]
fn chunk_of_a_deleted_snapshot_is_not_overwritten_before_the_deletion_is_durable() {
    let devices = [SimulatedDevice::new(32 << 20, 1)];
    let (volume, snapshot) = run(&devices, async {
        let (pool, volume) = pool_with_volume(&devices).await;
        let snapshot = pool.snapshot(&[(volume, label("s"))], false).await.expect("created")[0];
        pool.checkpoint().await.expect("written");
        // The deletion, without the frame that makes it durable.
        {
            let mut state = pool.shared.state.write();
            let mut row = state.object(snapshot.0).expect("it is there").row;
            row.flags |= crate::format::DELETING;
            let record = crate::records::Record::Change { row: Box::new(row) };
            state.perform(&record).expect("performed");
        }
        assert!(pool.shared.delete_parts().await.expect("deleted"));
        let store = pool.open_volume(volume).await.expect("opened");
        // Another chunk first: it copies the pages on the way.
        let data = Buffer::copy_of(&[7; 512]);
        let extent = Extent::new(1024, 1);
        store.write(extent, data.into(), Durability::Volatile).wait().await.expect("written");
        write(&store, 3, Durability::Volatile).await;
        (volume, snapshot)
    });
    end_all(());
    devices[0].crash_with(100);
    run(&devices, async {
        let pool = open(&devices).await;
        assert_eq!(first_byte(&pool, snapshot).await, 1, "it was not deleted");
        assert_eq!(first_byte(&pool, volume).await, 1);
    });
}

#[test]
fn ownership_comes_with_a_checkpoint() {
    let devices = [SimulatedDevice::new(32 << 20, 1)];
    run(&devices, async {
        let (pool, volume) = pool_with_volume(&devices).await;
        let snapshot = pool.snapshot(&[(volume, label("s"))], false).await.expect("created")[0];
        pool.delete(snapshot).await.expect("deleted");
        pool.maintain_once().await.expect("deleted");
        let is_owned = || pool.shared.state.read().find(volume.0, 0).expect("found").is_owned;
        assert!(!is_owned());
        pool.checkpoint().await.expect("written");
        pool.space();
        assert!(is_owned());
    });
}

#[test]
fn chunk_stays_owned_when_more_of_it_is_written() {
    let devices = [SimulatedDevice::new(32 << 20, 1)];
    run(&devices, async {
        let (pool, volume) = pool_with_volume(&devices).await;
        let store = pool.open_volume(volume).await.expect("opened");
        for lba in [256, 300, 264] {
            let data = Buffer::copy_of(&[7; 512]);
            let write = store.write(Extent::new(lba, 1), data.into(), Durability::Volatile);
            write.wait().await.expect("written");
            assert!(pool.shared.state.read().find(volume.0, 2).expect("found").is_owned);
        }
    });
}

#[test]
fn request_without_a_caller_keeps_its_volume_in_use() {
    let devices = [SimulatedDevice::new(32 << 20, 1)];
    run(&devices, async {
        let (pool, volume) = pool_with_volume(&devices).await;
        let snapshot = pool.snapshot(&[(volume, label("s"))], false).await.expect("created")[0];
        let store = pool.open_volume(volume).await.expect("opened");
        drop(store.unmap(Extent::new(0, 2048)));
        drop(store);
        let refused = pool.roll_back(volume, snapshot).await;
        assert!(matches!(refused, Err(crate::PoolError::InUse)), "{refused:?}");
        // The request ends, and the volume can be set back.
        while pool.roll_back(volume, snapshot).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(first_byte(&pool, volume).await, 1);
    });
}
