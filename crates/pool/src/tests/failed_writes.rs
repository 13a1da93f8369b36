//! Writes that fail on devices which have the only copy of something else, and are not left out: which copy counts from
//! then on, and who learns of the failure.

use std::sync::Arc;

use futures_util::future::{join, join3};
use sarsen_block::{BlockError, Buffer, Durability, Extent, Store as _};

use super::device::SimulatedDevice;
use super::label;
use super::mirrors::{fill, mirrored, open, pool_with, stale};
use super::runner::{end_all, poll_once, run};
use crate::shape::SlabKind;
use crate::{NewVolume, Pool, PoolVolume, VolumeId};

/// Returns a pool with a mirrored volume whose regions are recorded. Its devices have the only copy of other data, so that
/// neither of them can be left out.
fn pool_that_keeps(devices: &[Arc<SimulatedDevice>]) -> (Pool, VolumeId, Arc<PoolVolume>) {
    run(devices, async {
        let (pool, id) = pool_with(devices, &mirrored(2, 1)).await;
        let other = NewVolume { label: label("other"), ..mirrored(1, 2) };
        let other = pool.create_volume(&other).await.expect("created");
        fill(&pool.open_volume(other).await.expect("opened"), 9).await;
        let store = pool.open_volume(id).await.expect("opened");
        fill(&store, 1).await;
        fill(&store, 1).await;
        (pool, id, store)
    })
}

/// Writes to the first chunk. The write fails on these devices, in any part of it.
fn fail_write(store: &PoolVolume, devices: &[Arc<SimulatedDevice>], failing: &[usize]) {
    let data = Buffer::copy_of(&[2; 64 << 10]);
    let written = store.write(Extent::new(0, 128), data.into(), Durability::Volatile);
    let mut written = Box::pin(written.wait());
    assert!(poll_once(&mut written).is_pending());
    for (number, device) in devices.iter().enumerate() {
        device.fail_one_of(u64::from(failing.contains(&number)));
        assert!(device.step());
        device.fail_one_of(0);
    }
    let written = run(devices, written);
    assert!(matches!(written, Err(BlockError::Medium { .. })), "{written:?}");
}

#[test]
fn snapshot_has_one_content_after_a_write_that_failed_in_all_copies() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let (pool, id, store) = pool_that_keeps(&devices);
    fail_write(&store, &devices, &[0, 1]);
    let read = async |pool: &Pool, id| {
        let store = pool.open_volume(id).await.expect("opened");
        store.read(Extent::new(0, 128)).wait().await.expect("read").into_buffer()
    };
    let (snapshot, content) = run(&devices, async {
        let ids = pool.snapshot(&[(id, label("s"))], false).await.expect("created");
        (ids[0], read(&pool, ids[0]).await)
    });
    end_all((pool, store));
    devices.iter().for_each(|device| device.crash_with(0));
    run(&devices, async {
        let pool = open(&devices).await;
        assert!(*read(&pool, snapshot).await == *content);
    });
}

#[test]
fn write_that_fails_in_the_only_complete_copy_spoils_the_completion_of_another_one() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let (pool, _, store) = pool_that_keeps(&devices);
    let slabs = pool.shared.state.read().space.slabs_of(SlabKind::Data);
    let is_mirrored = |slab: &u32| {
        let state = pool.shared.state.read();
        state.space.slab(*slab).is_some_and(|slab| slab.copies.len() == 2)
    };
    let slab = slabs.into_iter().find(is_mirrored).expect("a slab with two copies");
    let (first, regions) = (0, 1);
    {
        let mut state = pool.shared.state.write();
        state.space.lack(slab, regions, first);
        state.space.mirrors.begin_pass(slab, 1 << first);
    }
    // The pass has copied what is written now.
    fail_write(&store, &devices, &[1]);
    {
        let mut state = pool.shared.state.write();
        if state.space.mirrors.is_complete() {
            state.space.complete(slab, 1 << first);
        }
        state.space.mirrors.end_pass();
    }
    run(&devices, async {
        pool.maintain_once().await.expect("copied");
        let scrubbed = pool.scrub(|_, _| {}).await.expect("scrubbed");
        assert_eq!((stale(&pool), scrubbed.differing_bytes), (0, 0));
    });
}

#[test]
fn write_that_copies_reads_no_copy_that_became_stale_while_it_waited() {
    for failing in 0..2 {
        let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
        let (pool, id, store) = pool_that_keeps(&devices);
        // Both are in the first piece.
        let write = |first, value| {
            let data = Buffer::copy_of(&[value; 4 << 9]);
            store.write(Extent::new(first, 4), data.into(), Durability::Volatile).wait()
        };
        let mut before = Box::pin(write(0, 2));
        assert!(poll_once(&mut before).is_pending());
        let labels = [(id, label("s"))];
        let mut snapshot = Box::pin(pool.snapshot(&labels, false));
        assert!(poll_once(&mut snapshot).is_pending());
        // It waits until the first one has ended, and copies what that wrote.
        let mut after = Box::pin(write(4, 3));
        assert!(poll_once(&mut after).is_pending());
        devices[failing].fail_one_of(1);
        for device in &devices {
            assert!(device.step());
        }
        devices[failing].fail_one_of(0);
        run(&devices, async {
            let (before, snapshot, after) = join3(before, snapshot, after).await;
            before.expect("a copy has it");
            after.expect("written");
            let read = async |id| {
                let store = pool.open_volume(id).await.expect("opened");
                let read = store.read(Extent::new(0, 8)).wait().await;
                read.expect("read").into_buffer().chunks(512).map(|one| one[0]).collect::<Vec<_>>()
            };
            assert_eq!(read(id).await, [2, 2, 2, 2, 3, 3, 3, 3], "{failing}");
            let snapshot = snapshot.expect("created")[0];
            assert_eq!(read(snapshot).await, [2, 2, 2, 2, 1, 1, 1, 1], "{failing}");
        });
    }
}

#[test]
fn checkpoint_that_failed_while_another_caller_waited_fails_for_both() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let (pool, _, _store) = pool_that_keeps(&devices);
    let generation = pool.shared.state.read().generation;
    devices.iter().for_each(|device| device.fail_one_of(1));
    let checkpoint = || pool.shared.checkpoint(generation);
    let both = run(&devices, async { join(checkpoint(), checkpoint()).await });
    assert!(both.0.is_err() && both.1.is_err(), "{both:?}");
}
