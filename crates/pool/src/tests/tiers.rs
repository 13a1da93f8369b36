//! Slabs that move between fast and slow devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{Either, select};
use sarsen_block::{BlockSize, Buffer, Durability, Extent, LocalFuture, Store as _};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, end_all, run, run_until};
use super::{is_clean, new_pool, stores, volume};
use crate::{CopyReason, NewVolume, Pool, PoolVolume, Tasks, Tier, TierUse, Tiers, VolumeId};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;
/// The size of a volume that is larger than the fast device.
const LARGE: u64 = 140 * MIB;

/// The first device is slow, the others are fast.
fn tiers(count: u8, new_data: Tier) -> Tiers {
    Tiers { fast: (1..count).collect(), new_data }
}

async fn create(
    devices: &[Arc<SimulatedDevice>],
    tasks: Arc<dyn Tasks>,
    new_data: Tier,
) -> (Pool, Arc<PoolVolume>) {
    let pool = Pool::create(&new_pool(devices, 64 << 10), tasks).await.expect("a pool");
    pool.set_tiers(&tiers(devices.len() as u8, new_data));
    let id = pool.create_volume(&volume("v", LARGE, BlockSize::B512)).await.expect("created");
    let store = pool.open_volume(id).await.expect("opened");
    (pool, store)
}

async fn write(store: &PoolVolume, mebibytes: std::ops::Range<u64>) {
    for mebibyte in mebibytes {
        let data = Buffer::copy_of(&vec![mebibyte as u8 + 1; MIB as usize]);
        let extent = Extent::new(mebibyte << 11, 1 << 11);
        store.write(extent, data.into(), Durability::Volatile).wait().await.expect("written");
    }
}

async fn read(store: &PoolVolume, mebibyte: u64, times: usize) {
    for time in 0..times as u64 {
        let extent = Extent::new((mebibyte << 11) + time % 2048, 1);
        let read = store.read(extent).wait().await.expect("read").into_buffer();
        assert!(read.iter().all(|&byte| byte == mebibyte as u8 + 1), "MiB {mebibyte}");
    }
}

/// Moves what should move.
async fn balance(pool: &Pool) {
    pool.balance_tiers(u64::MAX);
    pool.maintain_once().await.expect("moved");
}

fn used(pool: &Pool, tier: Tier) -> TierUse {
    pool.tier_use(tier).expect("there are two tiers")
}

/// Returns the number of copies of each slab of data.
fn copies(pool: &Pool) -> Vec<usize> {
    let state = pool.shared.state.read();
    let data = state.space.slabs_of(crate::shape::SlabKind::Data).into_iter();
    data.filter_map(|number| Some(state.space.slab(number)?.copies.len())).collect()
}

#[test]
fn what_is_read_most_moves_to_the_fast_device_and_back() {
    let devices = [(1, 32), (2, 12)].map(|(seed, mib)| SimulatedDevice::new(mib << 20, seed));
    run(&devices, async {
        let (pool, store) = create(&devices, LocalTasks::shared(), Tier::Slow).await;
        write(&store, 0..8).await;
        balance(&pool).await;
        // No slab is hot enough, except by the writes.
        pool.decay_heat();
        pool.decay_heat();
        pool.decay_heat();
        let before = used(&pool, Tier::Fast);
        read(&store, 3, 100).await;
        balance(&pool).await;
        let after = used(&pool, Tier::Fast);
        assert!(after.moved_bytes > before.moved_bytes, "{before:?} {after:?}");
        read(&store, 3, 100).await;
        let requests = used(&pool, Tier::Fast).requests - after.requests;
        assert!(requests > 90, "{requests} of 100 reads were of the fast device");
        for mebibyte in 0..8 {
            read(&store, mebibyte, 1).await;
        }
        // Everything is used more than that, and the fast device is too small for it.
        for _ in 0..12 {
            pool.decay_heat();
        }
        for mebibyte in [0, 1, 2, 4, 5, 6, 7] {
            read(&store, mebibyte, 1000).await;
        }
        balance(&pool).await;
        let full = used(&pool, Tier::Fast);
        for _ in 0..12 {
            pool.decay_heat();
        }
        read(&store, 3, 1000).await;
        balance(&pool).await;
        let before = used(&pool, Tier::Fast);
        assert!(before.used_bytes <= before.size_bytes && full.used_bytes > MIB, "{full:?}");
        read(&store, 3, 100).await;
        let requests = used(&pool, Tier::Fast).requests - before.requests;
        assert!(requests > 90, "{requests} of 100 reads were of the fast device");
        for mebibyte in 0..8 {
            read(&store, mebibyte, 1).await;
        }
        assert!(copies(&pool).iter().all(|&copies| copies == 1));
        pool.checkpoint().await.expect("written");
        drop(store);
        is_clean(&devices).await;
    });
}

#[test]
fn new_data_goes_to_the_fast_device_and_leaves_room_there() {
    let devices = [(1, 32), (2, 128)].map(|(seed, mib)| SimulatedDevice::new(mib << 20, seed));
    run(&devices, async {
        let (pool, store) = create(&devices, LocalTasks::shared(), Tier::Fast).await;
        write(&store, 0..90).await;
        assert_eq!(used(&pool, Tier::Slow).requests, 0);
        assert!(used(&pool, Tier::Fast).requests > 0);
        write(&store, 90..114).await;
        // There was no more room.
        assert!(used(&pool, Tier::Slow).requests > 0);
        balance(&pool).await;
        let (slow, fast) = (used(&pool, Tier::Slow), used(&pool, Tier::Fast));
        assert!(fast.size_bytes - fast.used_bytes >= fast.size_bytes / 9, "{fast:?}");
        assert!(slow.moved_bytes > 0, "{slow:?}");
        for mebibyte in 0..114 {
            read(&store, mebibyte, 1).await;
        }
    });
}

#[test]
fn interrupted_move_leaves_no_copy_behind() {
    for requests in 0..60 {
        let devices = [(1, 32), (2, 12)].map(|(seed, mib)| SimulatedDevice::new(mib << 20, seed));
        let (pool, store) = run(&devices, async {
            let (pool, store) = create(&devices, LocalTasks::shared(), Tier::Slow).await;
            write(&store, 0..8).await;
            pool.checkpoint().await.expect("written");
            read(&store, 1, 100).await;
            (pool, store)
        });
        let moved = run_until(&devices, 1 + requests, balance(&pool));
        end_all((pool, store));
        devices.iter().for_each(|device| device.crash());
        run(&devices, async {
            let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
            pool.maintain_once().await.expect("ended");
            assert!(
                copies(&pool).iter().all(|&copies| copies == 1),
                "after {requests} requests, of all: {}: {:?}",
                moved.is_some(),
                copies(&pool)
            );
            let id = pool.volumes()[0].id;
            let store = pool.open_volume(id).await.expect("opened");
            for mebibyte in 0..8 {
                read(&store, mebibyte, 1).await;
            }
            pool.checkpoint().await.expect("written");
            is_clean(&devices).await;
        });
    }
}

#[test]
fn mirrors_move_only_with_all_of_their_copies() {
    for fast in 1..=2 {
        let devices = [1, 2, 3, 4].map(|seed| SimulatedDevice::new(24 << 20, seed));
        let devices = &devices[..2 + fast];
        run(devices, async {
            let pool = Pool::create(&new_pool(devices, 64 << 10), LocalTasks::shared()).await;
            let pool = pool.expect("a pool");
            let numbers: Vec<u8> = (2..2 + fast as u8).collect();
            let new = NewVolume { copies: 2, ..volume("v", SIZE, BlockSize::B512) };
            let id = pool.create_volume(&new).await.expect("created");
            let store = pool.open_volume(id).await.expect("opened");
            pool.set_tiers(&Tiers { fast: numbers, new_data: Tier::Slow });
            write(&store, 0..8).await;
            for mebibyte in 0..8 {
                read(&store, mebibyte, 100).await;
            }
            balance(&pool).await;
            assert_eq!(used(&pool, Tier::Fast).moved_bytes > 0, fast == 2);
            assert!(copies(&pool).iter().all(|&copies| copies == 2), "{:?}", copies(&pool));
            for mebibyte in 0..8 {
                read(&store, mebibyte, 1).await;
            }
        });
    }
}

#[test]
fn moves_leave_room_for_mirrors() {
    let devices = [(1, 64), (2, 16)].map(|(seed, mib)| SimulatedDevice::new(mib << 20, seed));
    run(&devices, async {
        let (pool, store) = create(&devices, LocalTasks::shared(), Tier::Slow).await;
        let new = NewVolume { copies: 2, ..volume("m", SIZE, BlockSize::B512) };
        let mirrored: VolumeId = pool.create_volume(&new).await.expect("created");
        let mirrored = pool.open_volume(mirrored).await.expect("opened");
        write(&mirrored, 0..1).await;
        write(&store, 0..8).await;
        for mebibyte in 0..8 {
            read(&store, mebibyte, 100).await;
        }
        balance(&pool).await;
        // Only the fast device limits what mirrors can have.
        assert_eq!(used(&pool, Tier::Fast).moved_bytes, 0);
        write(&mirrored, 1..6).await;
    });
}

#[test]
fn slabs_move_up_from_a_slow_device_that_is_full() {
    let devices = [(1, 24), (2, 64)].map(|(seed, mib)| SimulatedDevice::new(mib << 20, seed));
    run(&devices, async {
        let (pool, store) = create(&devices, LocalTasks::shared(), Tier::Slow).await;
        write(&store, 0..40).await;
        for _ in 0..12 {
            pool.decay_heat();
        }
        read(&store, 2, 200).await;
        // Even if maps need more slots than there are: a move up takes none of the slow device.
        let next = pool.shared.state.read().space.next_move(u64::MAX);
        assert!(matches!(next, Some((_, Tier::Fast))), "{next:?}");
        balance(&pool).await;
        let before = used(&pool, Tier::Fast);
        assert!(before.moved_bytes > 0, "{before:?}");
        read(&store, 2, 100).await;
        assert!(used(&pool, Tier::Fast).requests >= before.requests + 90);
        for mebibyte in 0..40 {
            read(&store, mebibyte, 1).await;
        }
    });
}

/// Counts what is copied.
#[derive(Default)]
struct Counter {
    moved: AtomicU64,
    repaired: AtomicU64,
}

impl Tasks for Counter {
    fn finish(&self, future: LocalFuture<()>) {
        LocalTasks.finish(future);
    }

    fn pause(&self, reason: CopyReason, bytes: u64) -> LocalFuture<()> {
        let count = match reason {
            CopyReason::Move => &self.moved,
            CopyReason::Repair => &self.repaired,
        };
        count.fetch_add(bytes, Ordering::Relaxed);
        Box::pin(async {})
    }
}

#[test]
fn moves_and_repairs_pause_for_what_they_copy() {
    let devices = [(1, 32), (2, 12)].map(|(seed, mib)| SimulatedDevice::new(mib << 20, seed));
    run(&devices, async {
        let counter = Arc::new(Counter::default());
        let (pool, store) = create(&devices, counter.clone(), Tier::Slow).await;
        write(&store, 0..8).await;
        pool.maintain_once().await.expect("nothing to do");
        let count = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        assert_eq!((count(&counter.moved), count(&counter.repaired)), (0, 0));
        read(&store, 1, 100).await;
        balance(&pool).await;
        let moved = count(&counter.moved);
        let bound = used(&pool, Tier::Fast).moved_bytes + used(&pool, Tier::Slow).moved_bytes;
        assert!((1..=bound).contains(&moved), "{moved} of {bound}");
        assert_eq!(count(&counter.repaired), 0);
        // Without tiers, what is on the device must go elsewhere.
        pool.set_tiers(&tiers(0, Tier::Slow));
        pool.remove_device(1).await.expect("there is room");
        pool.maintain_once().await.expect("moved");
        assert!(count(&counter.repaired) > 0);
        assert_eq!((count(&counter.moved), pool.devices().len()), (0, 1));
    });
}

/// Pauses for ever.
struct Endless;

impl Tasks for Endless {
    fn finish(&self, future: LocalFuture<()>) {
        LocalTasks.finish(future);
    }

    fn pause(&self, _reason: CopyReason, _bytes: u64) -> LocalFuture<()> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn change_of_devices_does_not_wait_for_the_pace_of_moves() {
    let devices = [1, 2, 3].map(|seed| SimulatedDevice::new(32 << 20, seed));
    run(&devices, async {
        let (pool, store) = create(&devices[..2], Arc::new(Endless), Tier::Slow).await;
        write(&store, 0..8).await;
        read(&store, 1, 100).await;
        pool.balance_tiers(1);
        let moving = Box::pin(pool.maintain_once());
        let adding = Box::pin(pool.add_device(devices[2].clone(), [9; 16]));
        let Either::Right((added, moving)) = select(moving, adding).await else {
            panic!("the move pauses")
        };
        added.expect("added");
        drop(moving);
        let before = used(&pool, Tier::Fast).moved_bytes;
        assert_eq!(before, 0, "the move is not complete");
        for mebibyte in 0..8 {
            read(&store, mebibyte, 1).await;
        }
    });
}

#[test]
fn moves_leave_room_for_the_maps_of_everything_that_is_free() {
    let devices = [(1, 64), (2, 32)].map(|(seed, mib)| SimulatedDevice::new(mib << 20, seed));
    run(&devices, async {
        let (pool, store) = create(&devices, LocalTasks::shared(), Tier::Slow).await;
        let mut written = 0;
        loop {
            // All of it is hot.
            for mebibyte in 0..written {
                read(&store, mebibyte, 40).await;
            }
            balance(&pool).await;
            let data = Buffer::copy_of(&vec![written as u8 + 1; MIB as usize]);
            let extent = Extent::new(written << 11, 1 << 11);
            match store.write(extent, data.into(), Durability::Volatile).wait().await {
                Ok(()) => written += 1,
                Err(error) => {
                    assert!(matches!(error, sarsen_block::BlockError::NoSpace { .. }), "{error}");
                    break;
                }
            }
        }
        assert!(used(&pool, Tier::Fast).moved_bytes > 8 * MIB);
        let free = pool.space().free_bytes;
        assert!(free < 2 * MIB, "{free} bytes are free, and cannot be used");
        for mebibyte in 0..written {
            read(&store, mebibyte, 1).await;
        }
    });
}
