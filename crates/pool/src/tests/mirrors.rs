//! Copies on several devices: devices that fail, come back, are added, replaced and removed, and what a scrub repairs.

use std::sync::Arc;
use std::task::Poll;

use sarsen_block::{
    BlockError, BlockSize, Buffer, Durability, Extent, OptimalTransfer, Store as _,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, end_all, poll_once, run, run_until};
use super::{is_clean, label, new_pool, stores, volume};
use crate::copies::{Copies, Slot, Standing};
use crate::format::{CountsPage, PAGE, PageKind, SUPERBLOCKS, Sealed as _};
use crate::shape::SlabKind;
use crate::space::{Class, SlabPart};
use crate::{Checked, DeviceState, NewVolume, Pool, PoolError, PoolVolume, VolumeId, check};

const SIZE: u64 = 4 << 20;

pub(super) fn mirrored(copies: u8, stripes: u8) -> NewVolume {
    NewVolume { copies, stripes, ..volume("v", SIZE, BlockSize::B512) }
}

pub(super) async fn pool_with(
    devices: &[Arc<SimulatedDevice>],
    new: &NewVolume,
) -> (Pool, VolumeId) {
    let pool = Pool::create(&new_pool(devices, 64 << 10), LocalTasks::shared()).await;
    let pool = pool.expect("a pool");
    let id = pool.create_volume(new).await.expect("created");
    (pool, id)
}

pub(super) async fn open(devices: &[Arc<SimulatedDevice>]) -> Pool {
    Pool::open(stores(devices), LocalTasks::shared()).await.expect("opened")
}

pub(super) async fn write(
    store: &PoolVolume,
    at: u64,
    length: usize,
    value: u8,
    durability: Durability,
) {
    let data = Buffer::copy_of(&vec![value; length]);
    let extent = Extent::new(at >> 9, (length >> 9) as u64);
    store.write(extent, data.into(), durability).wait().await.expect("written");
}

pub(super) async fn fill(store: &PoolVolume, value: u8) {
    write(store, 0, SIZE as usize, value, Durability::Durable).await;
}

/// Reads everything, and compares it with one value.
pub(super) async fn has_only(pool: &Pool, id: VolumeId, value: u8) {
    let store = pool.open_volume(id).await.expect("opened");
    let read = store.read(Extent::new(0, SIZE >> 9)).wait().await.expect("read").into_buffer();
    assert!(read.iter().all(|&byte| byte == value));
}

pub(super) fn states(pool: &Pool) -> Vec<bool> {
    pool.devices().iter().map(|device| device.state == DeviceState::Online).collect()
}

pub(super) fn stale(pool: &Pool) -> u64 {
    pool.devices().iter().map(|device| device.stale_bytes).sum()
}

#[test]
fn device_that_fails_is_left_out_and_gets_what_it_lacks_when_it_is_back() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        let store = pool.open_volume(id).await.expect("opened");
        fill(&store, 1).await;
        devices[0].fail_one_of(1);
        write(&store, 0, 512, 1, Durability::Durable).await;
        assert_eq!(states(&pool), [false, true]);
        let devices_now = pool.devices();
        let DeviceState::LeftOut { reason } = &devices_now[0].state else { panic!("left out") };
        assert!(reason.contains("the device failed"), "{reason}");
        fill(&store, 2).await;
        // Without the other one, nothing is left.
        let refused = pool.leave_out_device(1, "for a test").await;
        assert!(matches!(refused, Err(PoolError::Device { .. })), "{refused:?}");
        devices[0].fail_one_of(0);
        pool.return_device(devices[0].clone()).await.expect("it is back");
        pool.maintain_once().await.expect("copied");
        assert_eq!((states(&pool), stale(&pool)), (vec![true, true], 0));
        // Now the other one fails.
        devices[1].fail_one_of(1);
        write(&store, 0, 512, 2, Durability::Durable).await;
        assert_eq!(states(&pool), [true, false]);
        has_only(&pool, id, 2).await;
    });
}

#[test]
fn pool_starts_without_a_device_and_says_so() {
    let devices = [1, 2, 3].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        pool.checkpoint().await.expect("written");
        id
    });
    for missing in 0..3 {
        let mut some = devices.to_vec();
        let back = some.remove(missing);
        run(&devices, async {
            let pool = open(&some).await;
            let reason = pool.devices()[missing].state.clone();
            assert_eq!(reason, DeviceState::LeftOut { reason: "it is missing".into() });
            has_only(&pool, id, 1 + missing as u8).await;
            let store = pool.open_volume(id).await.expect("opened");
            fill(&store, 2 + missing as u8).await;
            pool.return_device(back).await.expect("it is back");
            pool.maintain_once().await.expect("copied");
            assert_eq!((states(&pool), stale(&pool)), (vec![true; 3], 0));
            has_only(&pool, id, 2 + missing as u8).await;
            drop(store);
            pool.checkpoint().await.expect("written");
            is_clean(&devices).await;
        });
    }
    // Two of them are too many.
    run(&devices, async {
        let refused = Pool::open(stores(&devices[..1]), LocalTasks::shared()).await;
        let error = refused.map(drop).expect_err("refused").to_string();
        assert!(error.contains("one of 3 devices of the pool, and 1 were given"), "{error}");
    });
}

#[test]
fn interruption_leaves_only_what_was_overwritten_to_be_copied() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(64 << 20, seed));
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        let store = pool.open_volume(id).await.expect("opened");
        fill(&store, 1).await;
        pool.checkpoint().await.expect("written");
        write(&store, 1 << 20, 4096, 2, Durability::Volatile).await;
        write(&store, 3 << 20, 4096, 2, Durability::Volatile).await;
        id
    });
    end_all(());
    // One device has them, and the other one has not.
    devices[0].crash_with(0);
    devices[1].crash_with(100);
    run(&devices, async {
        let pool = open(&devices).await;
        let region = 1_u64 << pool.shared.state.read().shape().region_shift();
        assert!(stale(&pool) > 0 && stale(&pool) <= 4 * region, "{} of {region}", stale(&pool));
        let store = pool.open_volume(id).await.expect("opened");
        let first = async |at: u64| {
            let read = store.read(Extent::new(at >> 9, 1)).wait().await.expect("read");
            read.into_buffer()[0]
        };
        let before = [first(1 << 20).await, first(3 << 20).await];
        pool.maintain_once().await.expect("copied");
        assert_eq!(stale(&pool), 0);
        pool.leave_out_device(0, "for a test").await.expect("left out");
        assert_eq!([first(1 << 20).await, first(3 << 20).await], before, "both have the same");
    });
}

#[test]
fn copy_is_stale_whose_device_was_left_out_at_any_time_before_it_was_complete() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(20 << 20, seed));
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        pool.checkpoint().await.expect("written");
        id
    });
    run(&devices, async {
        let pool = open(&devices[1..]).await;
        fill(&pool.open_volume(id).await.expect("opened"), 2).await;
        pool.checkpoint().await.expect("written");
    });
    let mut polls = 0;
    loop {
        let devices = devices.each_ref().map(|device| device.copy(20 << 20));
        let is_complete = run(&devices, async {
            // Nothing of the slabs is in memory.
            let pool = open(&devices).await;
            let mut tending = Box::pin(pool.maintain_once());
            let mut is_complete = false;
            for _ in 0..polls {
                is_complete = poll_once(&mut tending).is_ready();
                if is_complete {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let failure = BlockError::Unreachable(std::io::Error::other("for a test"));
            pool.shared.exclude(0, failure).expect("left out");
            if !is_complete {
                tending.await.expect("the other one is there");
            }
            pool.checkpoint().await.expect("written");
            pool.return_device(devices[0].clone()).await.expect("it is back");
            pool.maintain_once().await.expect("copied");
            assert_eq!((states(&pool), stale(&pool)), (vec![true, true], 0));
            is_clean(&devices).await;
            pool.leave_out_device(1, "for a test").await.expect("left out");
            has_only(&pool, id, 2).await;
            is_complete
        });
        if is_complete {
            assert!(polls > 10, "it was complete after {polls} polls");
            break;
        }
        polls += 1;
    }
}

#[test]
fn journal_that_names_a_region_behind_a_slab_damages_nothing() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        let slabs = pool.shared.state.read().space.slabs_of(crate::shape::SlabKind::Data);
        for slab in slabs {
            pool.shared.state.write().space.suspect(slab, 63);
        }
        pool.checkpoint().await.expect("written");
        is_clean(&devices).await;
    });
}

#[test]
fn scrub_repairs_what_cannot_be_read_from_the_other_copy() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        pool.checkpoint().await.expect("written");
        let scrubbed = pool.scrub(|_, _| {}).await.expect("read");
        assert_eq!((scrubbed.repaired_bytes, scrubbed.lost_bytes), (0, 0));
        assert!(scrubbed.read_bytes > 2 * SIZE);
        // Every page and every chunk of one device is damaged.
        let slabs = pool.shared.devices.get(0).expect("it is there").layout.slabs as usize;
        for offset in (slabs..32 << 20).step_by(4096) {
            devices[0].flip(offset + 17);
        }
        let mut parts = Vec::new();
        let scrubbed = pool.scrub(|done, all| parts.push((done, all))).await.expect("read");
        assert!(scrubbed.repaired_bytes > 0 && scrubbed.lost_bytes == 0, "{scrubbed:?}");
        assert!(parts.is_sorted() && parts.len() > 2);
        let again = pool.scrub(|_, _| {}).await.expect("read");
        assert_eq!((again.repaired_bytes, again.differing_bytes), (0, 0));
        is_clean(&devices).await;
        // Metadata has a checksum. Without one, the first copy of data counts.
        pool.leave_out_device(1, "for a test").await.expect("left out");
        pool.open_volume(id).await.expect("opened");
    });
}

#[test]
fn damaged_page_is_read_from_another_copy() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        pool.checkpoint().await.expect("written");
        id
    });
    devices[0].take_reads();
    run(&devices, async { has_only(&open(&devices).await, id, 1).await });
    let pages = devices[0].take_reads().into_iter().filter(|&(_, length)| length == 4096);
    for (offset, _) in pages.filter(|&(offset, _)| offset > 64 << 10) {
        devices[0].flip(offset + 99);
    }
    run(&devices, async {
        let pool = open(&devices).await;
        has_only(&pool, id, 1).await;
        pool.maintain_once().await.expect("written again");
        pool.checkpoint().await.expect("written");
        is_clean(&devices).await;
    });
}

#[test]
fn check_tells_damaged_copies_from_inconsistencies() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        pool.checkpoint().await.expect("written");
    });
    let checked = || run(&devices, check(stores(&devices))).expect("checked");
    devices[0].take_reads();
    assert_eq!(checked(), Checked::default());
    let slabs = run(&devices, open(&devices)).shared.devices.get(0).expect("it").layout.slabs;
    let pages: Vec<_> = devices[0].take_reads().into_iter().map(|(offset, _)| offset).collect();
    let pages = pages.into_iter().filter(|&offset| offset >= slabs as usize);
    let pages: Vec<_> = pages.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    // Another one has them.
    pages.iter().for_each(|offset| devices[1].flip(offset + 99));
    let found = checked();
    assert!(found.findings.is_empty() && found.damaged_copies[&1] > 3, "{found:?}");
    // None has them.
    pages.iter().for_each(|offset| devices[0].flip(offset + 98));
    assert!(!checked().findings.is_empty());
    pages.iter().for_each(|offset| devices[0].flip(offset + 98));
    pages.iter().for_each(|offset| devices[1].flip(offset + 99));
    assert_eq!(checked(), Checked::default());
    // Both have an intact one, and they differ.
    let mut is_changed = false;
    for offset in pages {
        devices[1].edit(offset, PAGE, |bytes| {
            if !is_changed && bytes[4] == PageKind::Counts as u8 {
                let mut page = CountsPage::read_from_bytes(bytes).expect("a page");
                page.counts[100] = 7.into();
                page.seal();
                bytes.copy_from_slice(page.as_bytes());
                is_changed = true;
            }
        });
    }
    let found = checked();
    assert!(is_changed && found.findings[0].0.contains("and differ"), "{found:?}");
}

#[test]
fn scrub_compares_each_block_of_copies_without_checksums() {
    let devices = [1, 2, 3].map(|seed| SimulatedDevice::new(32 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(3, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        pool.checkpoint().await.expect("written");
        // Each device has another wrong block, in data that is read together.
        let slabs = pool.shared.devices.get(0).expect("it is there").layout.slabs as usize;
        let first = |device: &SimulatedDevice| {
            device.find(slabs, &[1; PAGE]).expect("data of the volume").next_multiple_of(64 << 10)
        };
        for (number, device) in devices.iter().enumerate() {
            device.edit(first(device) + number * PAGE, PAGE, |block| block.fill(9));
        }
        let scrubbed = pool.scrub(|_, _| {}).await.expect("read");
        assert_eq!(scrubbed.differing_bytes, 3 * PAGE as u64, "{scrubbed:?}");
        has_only(&pool, id, 1).await;
        for leaving in [0, 1] {
            pool.leave_out_device(leaving, "for a test").await.expect("left out");
            has_only(&pool, id, 1).await;
        }
    });
}

#[test]
fn the_only_device_is_not_left_out_while_another_one_is_added() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(24 << 20, seed));
    run(&devices, async {
        let new = new_pool(&devices[..1], 64 << 10);
        let pool = Pool::create(&new, LocalTasks::shared()).await.expect("created");
        let is_being_added = std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            if pool.devices().len() < 2 { Poll::Pending } else { Poll::Ready(()) }
        });
        let leave_out = async {
            is_being_added.await;
            pool.leave_out_device(0, "for a test").await
        };
        let adding = pool.add_device(devices[1].clone(), [9; 16]);
        let (added, left_out) = futures_util::future::join(adding, leave_out).await;
        assert!(left_out.is_err(), "nothing else has space for metadata");
        assert_eq!(added.expect("added"), 1);
        pool.checkpoint().await.expect("the pool goes on");
    });
}

#[test]
fn devices_are_added_and_removed_while_the_volume_is_written() {
    for copies in 1..=2 {
        let devices = [1, 2, 3, 4].map(|seed| SimulatedDevice::new(24 << 20, seed));
        run(&devices, async {
            let (pool, id) = pool_with(&devices[..2], &mirrored(copies, 2)).await;
            let store = pool.open_volume(id).await.expect("opened");
            fill(&store, 1).await;
            let before = pool.space().size_bytes;
            for (number, device) in (2..).zip(&devices[2..]) {
                let added = pool.add_device(device.clone(), [number + 9; 16]).await;
                assert_eq!(added.expect("added"), number);
            }
            assert_eq!(pool.space().size_bytes, 2 * before);
            for number in 0..2 {
                pool.remove_device(number).await.expect("there is room");
            }
            let writes = async {
                for round in 0..40 {
                    write(&store, (round * 7 % 64) << 16, 64 << 10, 1, Durability::Volatile).await;
                }
            };
            let (moved, ()) = futures_util::future::join(pool.maintain_once(), writes).await;
            moved.expect("moved");
            pool.maintain_once().await.expect("removed");
            assert_eq!(pool.devices().len(), 2, "{:?}", pool.devices());
            has_only(&pool, id, 1).await;
            pool.checkpoint().await.expect("written");
            is_clean(&devices[2..]).await;
            // The old devices are no devices of a pool any more.
            for device in &devices[..2] {
                let error = crate::identify(device.clone()).await.expect_err("it is empty");
                assert!(error.to_string().contains("no device of a pool"), "{error}");
            }
            let refused = pool.remove_device(2).await;
            if copies == 2 {
                assert!(matches!(refused, Err(PoolError::NoSpace)), "{refused:?}");
            }
        });
    }
}

#[test]
fn consecutive_chunks_are_on_different_devices() {
    let devices = [1, 2, 3].map(|seed| SimulatedDevice::new(24 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(1, 3)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        let state = pool.shared.state.read();
        let device_of = |chunk| {
            let mapping = state.find(id.0, chunk).expect("found").mapping;
            let place = state.place_of(mapping.own, 0).expect("a place");
            place.targets().next().expect("a copy").device
        };
        for chunk in 0..SIZE >> 16 {
            assert_eq!(device_of(chunk), device_of(chunk % 3), "chunk {chunk}");
        }
        let first: std::collections::BTreeSet<_> = (0..3).map(device_of).collect();
        assert_eq!(first.len(), 3);
    });
}

#[test]
fn optimal_transfers_are_chunks_on_each_device_that_a_volume_uses() {
    let devices = [1, 2, 3].map(|seed| SimulatedDevice::new(24 << 20, seed));
    run(&devices, async {
        let (pool, _) = pool_with(&devices, &mirrored(1, 1)).await;
        for (stripes, block_size, chunk, width) in [
            (1, BlockSize::B512, 128, 1),
            (3, BlockSize::B512, 128, 3),
            (16, BlockSize::B512, 128, 3),
            (3, BlockSize::B4096, 16, 3),
        ] {
            let new = NewVolume { stripes, ..volume("w", SIZE, block_size) };
            let id = pool.create_volume(&new).await.expect("created");
            let store = pool.open_volume(id).await.expect("opened");
            let optimal =
                OptimalTransfer { granularity_blocks: chunk, length_blocks: chunk * width };
            assert_eq!(store.characteristics().optimal_transfer, Some(optimal), "{stripes}");
        }
    });
}

#[test]
fn volume_needs_as_many_devices_as_copies() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(24 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        for new in [mirrored(3, 1), mirrored(0, 1), mirrored(4, 1), mirrored(1, 0), mirrored(1, 17)]
        {
            assert!(matches!(pool.create_volume(&new).await, Err(PoolError::Invalid(_))));
        }
        let snapshot = pool.snapshot(&[(id, label("s"))], false).await.expect("created")[0];
        let clone = pool.clone_of(snapshot, &label("c")).await.expect("created");
        let info = pool.find(|one| one.id == clone).expect("it is there");
        assert_eq!((info.copies, info.stripes), (2, 1));
    });
}

#[test]
fn pool_uses_what_its_devices_have_grown_by() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(1, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        assert!(!pool.grow().await.expect("nothing has changed"));
        pool.checkpoint().await.expect("written");
        id
    });
    let grown = [devices[0].copy(48 << 20)];
    run(&grown, async {
        let pool = open(&grown).await;
        let before = pool.space();
        assert!(pool.grow().await.expect("grown"));
        let after = pool.space();
        assert!(after.size_bytes > 2 * before.size_bytes && after.free_bytes > before.size_bytes);
        // All of it can be written.
        let new = volume("w", before.size_bytes, BlockSize::B512);
        let large = pool.create_volume(&new).await.expect("created");
        let store = pool.open_volume(large).await.expect("opened");
        for at in (0..new.size >> 20 << 20).step_by(1 << 20) {
            write(&store, at, 1 << 20, 2, Durability::Volatile).await;
        }
        has_only(&pool, id, 1).await;
        pool.checkpoint().await.expect("written");
        is_clean(&grown).await;
    });
    // The device cannot become smaller again.
    let small = [grown[0].copy(24 << 20)];
    let refused = run(&small, Pool::open(stores(&small), LocalTasks::shared()));
    assert!(refused.is_err_and(|error| error.to_string().contains("bytes of the")));
}

#[test]
fn several_devices_leave_at_once() {
    let devices = [1, 2, 3, 4, 5, 6].map(|seed| SimulatedDevice::new(24 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices[..3], &mirrored(3, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        for (number, device) in (3..).zip(&devices[3..]) {
            let added = pool.add_device(device.clone(), [number + 9; 16]).await;
            assert_eq!(added.expect("added"), number);
        }
        for number in 0..3 {
            pool.remove_device(number).await.expect("there is room");
        }
        pool.maintain_once().await.expect("moved");
        let left: Vec<_> = pool.devices().iter().map(|one| one.number).collect();
        assert_eq!((left, stale(&pool)), (vec![3, 4, 5], 0));
        has_only(&pool, id, 1).await;
        pool.checkpoint().await.expect("written");
        is_clean(&devices[3..]).await;
    });
}

#[test]
fn checkpoint_that_only_a_missing_device_has_does_not_replace_what_came_after_it() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        write(&pool.open_volume(id).await.expect("opened"), 0, 1 << 20, 1, Durability::Durable)
            .await;
        pool.checkpoint().await.expect("written");
        id
    });
    let both = run(&devices, async {
        let pool = open(&devices).await;
        let store = pool.open_volume(id).await.expect("opened");
        let first = devices[0].copy(32 << 20);
        write(&store, 2 << 20, 1 << 20, 3, Durability::Volatile).await;
        // The power fails when the second device has the next checkpoint, and the first one does not.
        pool.checkpoint().await.expect("written");
        [first, devices[1].copy(32 << 20)]
    });
    run(&both, async {
        let pool = open(&both[..1]).await;
        let store = pool.open_volume(id).await.expect("opened");
        write(&store, 3 << 20, 1 << 20, 2, Durability::Durable).await;
    });
    run(&both, async {
        let pool = open(&both).await;
        let store = pool.open_volume(id).await.expect("opened");
        for (at, value) in [(0, 1), (2 << 20, 0), (3 << 20, 2)] {
            let read = store.read(Extent::new(at >> 9, 2048)).wait().await.expect("read");
            assert!(read.into_buffer().iter().all(|&byte| byte == value), "{at}");
        }
        pool.maintain_once().await.expect("it is back");
        assert_eq!((states(&pool), stale(&pool)), (vec![true, true], 0));
    });
    run(&both, async { is_clean(&both).await });
}

/// Returns devices of a mirror, of which the last one alone has the newest checkpoint: the power failed before the others had
/// its superblock. It was added by this checkpoint, or it was there before.
fn interrupted_checkpoint(is_added: bool) -> (Vec<Arc<SimulatedDevice>>, VolumeId) {
    let devices = [1, 2, 3].map(|seed| SimulatedDevice::new(16 << 20, seed));
    let members = if is_added { 2 } else { 3 };
    let (id, newest) = run(&devices, async {
        let (pool, id) = pool_with(&devices[..members], &mirrored(2, 1)).await;
        let store = pool.open_volume(id).await.expect("opened");
        write(&store, 0, 1 << 20, 1, Durability::Durable).await;
        pool.snapshot(&[(id, label("s"))], false).await.expect("created");
        pool.checkpoint().await.expect("written");
        write(&store, 2 << 20, 1 << 20, 3, Durability::Volatile).await;
        if is_added {
            pool.add_device(devices[2].clone(), [9; 16]).await.expect("added");
        } else {
            pool.checkpoint().await.expect("written");
        }
        (id, pool.shared.state.read().completed)
    });
    end_all(());
    for device in &devices[..2] {
        let place = SUPERBLOCKS[(newest & 1) as usize] as usize;
        device.edit(place, PAGE, |superblock| superblock.fill(0));
    }
    (devices.into(), id)
}

#[test]
fn opening_without_the_device_that_has_the_newest_checkpoint_can_be_interrupted() {
    for is_added in [false, true] {
        let (before, id) = interrupted_checkpoint(is_added);
        let mut requests = 1;
        loop {
            let devices: Vec<_> = before.iter().map(|device| device.copy(16 << 20)).collect();
            let is_written = run_until(&devices[..2], requests, async {
                let store = open(&devices[..2]).await.open_volume(id).await.expect("opened");
                write(&store, 3 << 20, 1 << 20, 2, Durability::Durable).await;
            });
            end_all(());
            let percent = [0, 50, 100][requests as usize % 3];
            devices.iter().for_each(|device| device.crash_with(percent));
            run(&devices, async {
                let pool = open(&devices).await;
                let store = pool.open_volume(id).await.expect("opened");
                let last: &[u8] = if is_written.is_some() { &[2] } else { &[0, 2] };
                for (at, allowed) in [(0, &[1][..]), (2 << 20, &[0, 3]), (3 << 20, last)] {
                    let read = store.read(Extent::new(at >> 9, 2048)).wait().await.expect("read");
                    let is_allowed = |byte: &u8| allowed.contains(byte);
                    assert!(
                        read.into_buffer().iter().all(is_allowed),
                        "added: {is_added}, after {requests} requests, at {at}"
                    );
                }
                drop(store);
                pool.maintain_once().await.expect("it is back");
                pool.checkpoint().await.expect("written");
            });
            run(&devices, async {
                let members = if is_written.is_some() && is_added { 2 } else { 3 };
                let checked = check(stores(&devices[..members])).await.expect("it can be checked");
                let what = format!("added: {is_added}, after {requests} requests: {checked:#?}");
                assert!(checked.findings.is_empty(), "{what}");
            });
            if is_written.is_some() {
                assert!(requests > 20, "opened after {requests} requests");
                break;
            }
            requests += 1;
        }
    }
}

/// A checkpoint is written while the second device gets what it lacks, and the first one fails. If `returns`, the second one was
/// left out and lacks nothing.
fn last_copy_changes_during_a_checkpoint(returns: bool) {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        pool.checkpoint().await.expect("written");
        id
    });
    let mut polls = 0;
    loop {
        let devices = devices.each_ref().map(|device| device.copy(32 << 20));
        let was_complete = run_until(&devices, u64::MAX, async {
            let pool = open(&devices).await;
            let slab = pool.shared.state.read().space.slabs_of(SlabKind::Data)[0];
            if returns {
                pool.leave_out_device(1, "for a test").await.expect("left out");
                pool.return_device(devices[1].clone()).await.expect("it is back");
            } else {
                pool.shared.state.write().space.lack(slab, 1, 1);
            }
            pool.checkpoint().await.expect("written");
            let is_behind = || {
                let state = pool.shared.state.read();
                let is_stale = |slab: &SlabPart| slab.copies.stale() != 0;
                !state.space.is_online(1) || state.space.slab(slab).is_some_and(is_stale)
            };
            let mut tending = Box::pin(pool.maintain_once());
            for _ in 0..polls {
                let _ended = poll_once(&mut tending);
                tokio::task::yield_now().await;
            }
            let was_complete = !is_behind();
            let mut written = Box::pin(pool.checkpoint());
            let mut is_written = false;
            while !is_written && (was_complete || is_behind()) {
                is_written = poll_once(&mut written).is_ready();
                let _ended = poll_once(&mut tending);
                tokio::task::yield_now().await;
            }
            let failure = BlockError::Unreachable(std::io::Error::other("for a test"));
            let stays = is_behind();
            assert_eq!(pool.shared.exclude(0, failure).is_err(), stays);
            // The power fails when the checkpoint is complete.
            if !is_written {
                drop(written.await);
            }
            end_all((tending, pool.clone()));
            was_complete
        });
        end_all(());
        devices.iter().for_each(|device| device.crash_with(100));
        run(&devices, async { has_only(&open(&devices).await, id, 1).await });
        if was_complete == Some(true) {
            assert!(polls > 0, "it was complete after {polls} polls");
            break;
        }
        polls += 1;
    }
}

#[test]
fn copy_that_is_completed_during_a_checkpoint_is_not_the_only_one_after_it() {
    last_copy_changes_during_a_checkpoint(false);
}

#[test]
fn device_that_is_back_during_a_checkpoint_is_not_the_only_one_after_it() {
    last_copy_changes_during_a_checkpoint(true);
}

#[test]
fn new_data_goes_to_no_slab_that_only_returning_devices_have() {
    let devices = [1, 2, 3].map(|seed| SimulatedDevice::new(16 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
        {
            // Two devices were left out when the slab was not in use yet, and are back.
            let space = &mut pool.shared.state.write().space;
            let mut copies = Copies::default();
            for device in [1, 2] {
                let member = &mut space.members[usize::from(device)];
                member.standing = Standing::Returning;
                let number = member.free_slots.pop_last().expect("a free slot");
                copies.push(Slot { device, number }, false);
            }
            let number = space.slabs.len() as u32;
            space.insert_slab(number, Class::Data(2), copies);
        }
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        has_only(&pool, id, 1).await;
    });
}

#[test]
fn no_frame_names_data_that_a_failed_device_lacks() {
    for requests in 1..40 {
        let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
        let (pool, id, store) = run(&devices, async {
            let (pool, id) = pool_with(&devices, &mirrored(2, 1)).await;
            let store = pool.open_volume(id).await.expect("opened");
            fill(&store, 1).await;
            pool.snapshot(&[(id, label("s"))], false).await.expect("created");
            pool.checkpoint().await.expect("written");
            write(&store, 0, 64 << 10, 2, Durability::Volatile).await;
            (pool, id, store)
        });
        // It fails before it makes the data durable that the next frame names.
        devices[0].fail_one_of(1);
        let flushed = run_until(&devices, requests, store.flush().wait());
        end_all((pool, store));
        devices[0].fail_one_of(0);
        devices.iter().for_each(|device| device.crash_with(0));
        run(&devices, async {
            let pool = open(&devices).await;
            let store = pool.open_volume(id).await.expect("opened");
            let read = store.read(Extent::new(0, 128)).wait().await.expect("read").into_buffer();
            let is_flushed = matches!(flushed, Some(Ok(())));
            let is_allowed = |value: u8| value == 2 || value == 1 && !is_flushed;
            let first = read[0];
            assert!(
                is_allowed(first) && read.iter().all(|&byte| byte == first),
                "after {requests} requests, and {flushed:?}: {first}"
            );
        });
    }
}
