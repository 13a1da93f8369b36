//! Tests of whole pools on simulated devices.

mod apart;
mod changes;
mod checksums;
mod crashes;
mod damage;
mod device;
mod failed_requests;
mod filling;
mod full;
mod lost;
mod mirrors;
mod ownership;
mod runner;
mod stream;
mod tiers;
mod usage;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use sarsen_block::{BlockSize, Store, conformance};

use self::device::SimulatedDevice;
use self::runner::{LocalTasks, abandon, end_all, poll_once, run};
use crate::{Checked, Label, NewPool, NewVolume, Pool, PoolError, check};

fn label(name: &str) -> Label {
    let mut identifier = [7; 16];
    identifier.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
    Label { name: name.to_owned(), identifier, created: 1_700_000_000 }
}

fn new_pool(devices: &[Arc<SimulatedDevice>], chunk_size: u32) -> NewPool {
    let with_identifier = |(number, device): (usize, &Arc<SimulatedDevice>)| {
        (device.clone() as Arc<dyn Store>, [number as u8 + 1; 16])
    };
    NewPool {
        has_tiers: false,
        identifier: *b"a pool for tests",
        name: "tank".to_owned(),
        chunk_size,
        devices: devices.iter().enumerate().map(with_identifier).collect(),
    }
}

fn stores(devices: &[Arc<SimulatedDevice>]) -> Vec<Arc<dyn Store>> {
    devices.iter().map(|device| device.clone() as Arc<dyn Store>).collect()
}

fn volume(name: &str, size: u64, block_size: BlockSize) -> NewVolume {
    NewVolume {
        label: label(name),
        size,
        block_size,
        copies: 1,
        stripes: 1,
        has_checksums: false,
        image_size: None,
    }
}

async fn is_clean(devices: &[Arc<SimulatedDevice>]) {
    let checked = check(stores(devices)).await.expect("it can be checked");
    assert_eq!(checked, Checked::default());
}

#[test]
fn volumes_pass_the_conformance_suite() {
    for (seed, block_size, chunk_size) in [
        (1, BlockSize::B512, 64 << 10),
        (2, BlockSize::B4096, 16 << 10),
        (3, BlockSize::B512, 256 << 10),
    ] {
        let devices = [SimulatedDevice::new(96 << 20, seed), SimulatedDevice::new(48 << 20, seed)];
        run(&devices, async {
            let pool = Pool::create(&new_pool(&devices, chunk_size), LocalTasks::shared()).await;
            let pool = pool.expect("a pool");
            let id = pool.create_volume(&volume("v", 8 << 20, block_size)).await.expect("created");
            let store = pool.open_volume(id).await.expect("opened");
            conformance::check(&*store, seed).await;
            pool.checkpoint().await.expect("written");
            is_clean(&devices).await;
            // The same volume, with a snapshot: every write goes to another place now.
            pool.snapshot(&[(id, label("s"))], false).await.expect("created");
            let extent = sarsen_block::Extent::new(0, store.geometry().block_count);
            store.unmap(extent).wait().await.expect("unmapped");
            conformance::check(&*store, seed + 10).await;
            pool.checkpoint().await.expect("written");
            is_clean(&devices).await;
        });
    }
}

#[test]
fn devices_that_do_not_fit_are_refused_by_name() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let other = [SimulatedDevice::new(32 << 20, 3)];
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 64 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let new = NewVolume { stripes: 2, ..volume("v", 1 << 20, BlockSize::B512) };
        let id = pool.create_volume(&new).await.expect("created");
        let store = pool.open_volume(id).await.expect("opened");
        let data = sarsen_block::Buffer::copy_of(&[1; 256 << 10]);
        let extent = sarsen_block::Extent::new(0, 512);
        let write = store.write(extent, data.into(), sarsen_block::Durability::Volatile);
        write.wait().await.expect("written to both of them");
        pool.checkpoint().await.expect("written");
    });
    run(&other, async {
        let mut new = new_pool(&other, 64 << 10);
        new.identifier[0] = 0;
        Pool::create(&new, LocalTasks::shared()).await.expect("another pool");
    });
    let all = [devices[0].clone(), devices[1].clone(), other[0].clone()];
    let short = devices[1].copy(24 << 20);
    let copy = devices[0].copy(32 << 20);
    let empty = SimulatedDevice::new(32 << 20, 4);
    let everything = [&all[..], &[short.clone(), copy.clone(), empty.clone()]].concat();
    run(&everything, async {
        let refused = async |devices: &[&Arc<SimulatedDevice>]| {
            let devices: Vec<_> = devices.iter().map(|&device| device.clone()).collect();
            match Pool::open(stores(&devices), LocalTasks::shared()).await {
                Ok(_) => "opened".to_owned(),
                Err(error) => error.to_string(),
            }
        };
        let [first, second] = [&devices[0], &devices[1]];
        let missing = refused(&[first]).await;
        assert!(missing.contains("one of 2 devices of the pool, and 1 were given"), "{missing}");
        let foreign = refused(&[first, second, &other[0]]).await;
        assert!(foreign.contains("device 2: it belongs to another pool"), "{foreign}");
        let twice = refused(&[first, second, &copy]).await;
        assert!(twice.contains("a copy of another device"), "{twice}");
        let truncated = refused(&[first, &short]).await;
        assert!(truncated.contains("bytes of the"), "{truncated}");
        let none = refused(&[first, &empty]).await;
        assert!(none.contains("device 1: it is no device of a pool"), "{none}");
        assert_eq!(refused(&[second, first]).await, "opened", "in any order");
        for offset in [0, 64 << 10] {
            devices[0].flip(offset + 40);
        }
        let damaged = refused(&[first, second]).await;
        assert!(damaged.contains("both of its superblocks are damaged"), "{damaged}");
        devices[0].flip(40);
        assert_eq!(refused(&[first, second]).await, "opened", "one is enough");
        for offset in [0, 64 << 10] {
            devices[1].edit(offset + 4, 1, |version| version[0] = 1);
        }
        let older = refused(&[first, second]).await;
        assert!(older.contains("device 1: its format has version 1"), "{older}");
    });
}

#[test]
fn maps_keep_to_their_memory() {
    const LEAVES: u64 = 200;
    const PAGES: usize = 64;
    /// Blocks of a leaf.
    const DISTANCE: u64 = 1024;
    let devices = [SimulatedDevice::new(48 << 20, 1)];
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 16 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let id = pool.create_volume(&volume("v", 1 << 30, BlockSize::B4096)).await;
        let store = pool.open_volume(id.expect("created")).await.expect("opened");
        let write = async |leaf: u64, byte: u8| {
            let data = sarsen_block::Buffer::copy_of(&[byte; 4096]);
            let extent = sarsen_block::Extent::new(leaf * DISTANCE, 1);
            let write = store.write(extent, data.into(), sarsen_block::Durability::Volatile);
            write.wait().await.expect("written");
        };
        for leaf in 0..LEAVES {
            write(leaf, leaf as u8).await;
        }
        pool.checkpoint().await.expect("written");
        let in_memory = || pool.shared.state.read().pages.len();
        assert!(in_memory() >= LEAVES as usize);
        pool.set_memory(PAGES * 4096);
        for leaf in (0..LEAVES).chain(0..LEAVES) {
            let extent = sarsen_block::Extent::new(leaf * DISTANCE, 1);
            let read = store.read(extent).wait().await.expect("read").into_buffer();
            assert_eq!(read[..], [leaf as u8; 4096]);
            assert!(in_memory() <= PAGES + PAGES / 2, "{}", in_memory());
        }
        let counts = || pool.shared.state.read().space.counts_bytes;
        let before = counts();
        pool.shared.state.write().evict_counts(0);
        let after = counts();
        assert!(after < before, "{after}");
        for leaf in 0..LEAVES {
            write(leaf, 1).await;
        }
        assert!(counts() > after, "overwrites need them");
        pool.checkpoint().await.expect("written");
        is_clean(&devices).await;
    });
}

#[test]
fn full_pool_is_emptied_and_filled_again() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 64 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let id = pool.create_volume(&volume("v", 64 << 20, BlockSize::B4096)).await;
        let id = id.expect("created");
        let store = pool.open_volume(id).await.expect("opened");
        let free = pool.space().free_bytes;
        let mut written = Vec::new();
        for round in 0..5_u64 {
            let mut filled = 0;
            for lba in (0..16 << 10).step_by(16) {
                let data = sarsen_block::Buffer::copy_of(&[round as u8 + 1; 64 << 10]);
                let extent = sarsen_block::Extent::new(lba, 16);
                let write = store.write(extent, data.into(), sarsen_block::Durability::Volatile);
                match write.wait().await {
                    Ok(()) => filled += 1,
                    Err(sarsen_block::BlockError::NoSpace { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            written.push(filled);
            // What is there can be overwritten, and a snapshot needs no space.
            let extent = sarsen_block::Extent::new(0, 1);
            let data = sarsen_block::Buffer::copy_of(&[9; 4096]);
            let write = store.write(extent, data.into(), sarsen_block::Durability::Durable);
            write.wait().await.expect("it needs no space");
            let snapshot = pool.snapshot(&[(id, label("s"))], false).await.expect("created")[0];
            let data = sarsen_block::Buffer::copy_of(&[8; 4096]);
            let write = store.write(extent, data.into(), sarsen_block::Durability::Volatile);
            let full = write.wait().await;
            assert!(matches!(full, Err(sarsen_block::BlockError::NoSpace { .. })), "{full:?}");
            let all = sarsen_block::Extent::new(0, 16 << 10);
            store.unmap(all).wait().await.expect("it needs no space");
            pool.delete(snapshot).await.expect("deleted");
            pool.maintain_once().await.expect("deleted");
        }
        assert!(written.iter().all(|&filled| filled == written[0] && filled > 200), "{written:?}");
        drop(store);
        pool.delete(id).await.expect("deleted");
        pool.maintain_once().await.expect("deleted");
        // One gives the chunks back, and the next one the slots of their slabs.
        for _ in 0..3 {
            pool.checkpoint().await.expect("written");
            pool.space();
        }
        is_clean(&devices).await;
        assert!(!pool.space().is_deleting && !pool.shared.state.read().space.is_returning());
        // The few pages in use may be in two slabs now.
        assert!(free - pool.space().free_bytes < 1 << 20);
    });
}

#[test]
fn snapshots_of_a_volume_have_different_names_and_protection() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 64 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let new = volume("v", 1 << 20, BlockSize::B512);
        let id = pool.create_volume(&new).await.expect("created");
        let other = pool.create_volume(&new).await.expect("volumes may have the same name");
        let nameless = volume("", 1 << 20, BlockSize::B512);
        assert!(matches!(pool.create_volume(&nameless).await, Err(PoolError::Invalid(_))));
        let snapshot = pool.snapshot(&[(id, label("s"))], false).await.expect("created")[0];
        let again = pool.snapshot(&[(id, label("s"))], false).await;
        assert!(matches!(again, Err(PoolError::Exists)));
        let twice = pool.snapshot(&[(id, label("t")), (id, label("t"))], false).await;
        assert!(matches!(twice, Err(PoolError::Exists)));
        let same = pool.snapshot(&[(other, label("s"))], false).await.expect("of another volume");
        pool.checkpoint().await.expect("written");
        is_clean(&devices).await;
        for id in [other, same[0]] {
            pool.delete(id).await.expect("deleted");
        }
        let refused = pool.rename(&[(snapshot, "t".into())]).await;
        assert!(matches!(refused, Err(PoolError::Invalid(_))));
        pool.rename(&[(id, "w".into())]).await.expect("renamed");
        pool.protect(snapshot, true).await.expect("protected");
        assert!(matches!(pool.delete(snapshot).await, Err(PoolError::Protected)));
        assert!(matches!(pool.clone_of(id, &label("c")).await, Err(PoolError::Invalid(_))));
        let clone = pool.clone_of(snapshot, &label("c")).await.expect("created");
        let open = pool.open_volume(clone).await.expect("opened");
        assert!(matches!(pool.delete(clone).await, Err(PoolError::InUse)));
        drop(open);
        pool.protect(snapshot, false).await.expect("not protected");
        pool.delete(snapshot).await.expect("deleted, although it has a clone");
        assert!(matches!(pool.open_volume(snapshot).await, Err(PoolError::NotFound)));
        drop(pool);
        let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
        let names: Vec<_> = pool.volumes().into_iter().map(|volume| volume.label.name).collect();
        assert_eq!(names, ["w", "c"]);
        assert_eq!(pool.volumes()[1].origin, Some(snapshot));
    });
}

#[test]
fn maintenance_tries_again_after_a_failed_read() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    let ids = run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 64 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let mut ids = Vec::new();
        for _ in 0..2 {
            let new = volume("v", 1 << 20, BlockSize::B512);
            let id = pool.create_volume(&new).await.expect("created");
            let store = pool.open_volume(id).await.expect("opened");
            let data = sarsen_block::Buffer::copy_of(&[7; 512]);
            let extent = sarsen_block::Extent::new(0, 1);
            let write = store.write(extent, data.into(), sarsen_block::Durability::Durable);
            write.wait().await.expect("written");
            ids.push(id);
        }
        pool.checkpoint().await.expect("written");
        ids
    });
    run(&devices, async {
        let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
        let errors = Rc::new(Cell::new(0));
        let counted = errors.clone();
        let mut maintenance = Box::pin(pool.maintain(move |_| counted.set(counted.get() + 1)));
        let mut maintain_until = async |is_done: &dyn Fn() -> bool| {
            loop {
                assert!(poll_once(&mut maintenance).is_pending(), "it goes on");
                if is_done() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        pool.delete(ids[0]).await.expect("deleted");
        devices[0].fail_one_of(1);
        maintain_until(&|| errors.get() > 0).await;
        devices[0].fail_one_of(0);
        pool.delete(ids[1]).await.expect("deleted");
        maintain_until(&|| !pool.space().is_deleting).await;
        assert_eq!(errors.get(), 1);
    });
}

#[test]
fn operation_that_is_dropped_is_completed() {
    for polls in 0..12 {
        let devices = [SimulatedDevice::new(24 << 20, polls)];
        let id = run(&devices, async {
            let pool = Pool::create(&new_pool(&devices, 64 << 10), LocalTasks::shared()).await;
            let pool = pool.expect("a pool");
            let new = volume("v", 1 << 20, BlockSize::B512);
            let id = pool.create_volume(&new).await.expect("created");
            let store = pool.open_volume(id).await.expect("opened");
            let write = async |lba, durability| {
                let data = sarsen_block::Buffer::copy_of(&[lba as u8 + 1; 512]);
                let extent = sarsen_block::Extent::new(lba, 1);
                store.write(extent, data.into(), durability).wait().await.expect("written");
            };
            write(0, sarsen_block::Durability::Volatile).await;
            abandon(polls, pool.checkpoint()).await;
            write(128, sarsen_block::Durability::Durable).await;
            store.flush().wait().await.expect("flushed");
            id
        });
        end_all(());
        devices[0].crash_with(0);
        run(&devices, async {
            let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
            let store = pool.open_volume(id).await.expect("opened");
            for lba in [0, 128] {
                let read = store.read(sarsen_block::Extent::new(lba, 1)).wait().await;
                let read = read.expect("read").into_buffer();
                assert_eq!(read[0], lba as u8 + 1, "after {polls} polls");
            }
        });
    }
}

#[test]
fn changes_without_flush_take_limited_memory() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 64 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let id = pool.create_volume(&volume("v", 1 << 20, BlockSize::B512)).await;
        let store = pool.open_volume(id.expect("created")).await.expect("opened");
        let limit = pool.shared.state.read().shape().journal as usize / 4;
        for round in 0..3000 {
            // The chunk stays: only one of its pieces comes and goes.
            let extent = sarsen_block::Extent::new(if round == 0 { 8 } else { 0 }, 8);
            let data = sarsen_block::Buffer::copy_of(&[1; 4096]);
            let write = store.write(extent, data.into(), sarsen_block::Durability::Volatile);
            write.wait().await.expect("written");
            if round > 0 {
                store.unmap(extent).wait().await.expect("unmapped");
            }
            assert!(pool.shared.state.read().records.len() <= limit);
        }
    });
}
