//! Reads and writes that fail on devices which have the only copy of something else, and are not left out: which copy counts
//! from then on, who learns of the failure, and when the copy is written again.

use std::sync::Arc;

use futures_util::future::{join, join3};
use sarsen_block::{BlockError, Buffer, Durability, Extent, Store as _};

use super::device::SimulatedDevice;
use super::label;
use super::mirrors::{fill, has_only, mirrored, open, pool_with, stale};
use super::runner::{end_all, poll_once, run};
use crate::copies::Place;
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

/// Lets each device carry out a request.
fn step(devices: &[Arc<SimulatedDevice>]) {
    devices.iter().for_each(|device| _ = device.step());
}

/// Returns the middle of a slab.
fn middle(pool: &Pool, slab: u32) -> Place {
    let half = 1 << (pool.shared.state.read().shape().slab_shift - 1);
    pool.shared.place_at(slab, half).expect("a slab")
}

/// Returns a slab of this kind with two copies.
fn mirrored_slab(pool: &Pool, kind: SlabKind) -> u32 {
    let state = pool.shared.state.read();
    let is_mirrored =
        |&slab: &u32| state.space.slab(slab).is_some_and(|slab| slab.copies.len() == 2);
    state.space.slabs_of(kind).into_iter().find(is_mirrored).expect("a slab with two copies")
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
    let (slab, first, regions) = (mirrored_slab(&pool, SlabKind::Data), 0, 1);
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

#[test]
fn copy_that_could_not_be_read_does_not_count_after_an_interruption() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let (pool, _, store) = pool_that_keeps(&devices);
    let slab = mirrored_slab(&pool, SlabKind::Data);
    // Its region is recorded as one that is overwritten.
    let counts = |pool: &Pool| {
        let place = middle(pool, slab);
        let counting: Vec<u8> = place.sources().map(|slot| slot.device).collect();
        counting
    };
    let first = counts(&pool)[0];
    devices[usize::from(first)].fail_one_of(1);
    let mut read = Box::pin(pool.shared.read_unchecked(middle(&pool, slab), 4096).wait());
    while poll_once(&mut read).is_pending() {
        step(&devices);
        if devices[usize::from(first)].has_failed() {
            devices[usize::from(first)].fail_one_of(0);
        }
    }
    assert!(!counts(&pool).contains(&first));
    // The power fails when the maintenance begins to copy.
    devices.iter().for_each(|device| drop(device.take_reads()));
    let mut maintenance = Box::pin(pool.maintain_once());
    let has_begun = || devices.iter().any(|device| !device.take_reads().is_empty());
    while !has_begun() {
        assert!(poll_once(&mut maintenance).is_pending());
        step(&devices);
    }
    drop(maintenance);
    end_all((pool, store));
    devices.iter().for_each(|device| device.crash_with(0));
    run(&devices, async {
        let pool = open(&devices).await;
        assert!(!counts(&pool).contains(&first));
        pool.maintain_once().await.expect("copied");
        assert_eq!(stale(&pool), 0);
    });
}

#[test]
fn slab_that_cannot_be_completed_does_not_keep_others_from_it() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    let (pool, _, _store) = pool_that_keeps(&devices);
    run(&devices, pool.checkpoint()).expect("written");
    let slabs = [SlabKind::Pages, SlabKind::Data].map(|kind| mirrored_slab(&pool, kind));
    for slab in slabs {
        pool.shared.state.write().space.lack(slab, 1, 0);
    }
    let is_stale = |slab| {
        let state = pool.shared.state.read();
        state.space.slab(slab).is_some_and(|slab| slab.copies.stale() != 0)
    };
    devices[1].fail_one_of(1);
    let mut maintenance = Box::pin(pool.maintain_once());
    while !devices[1].has_failed() {
        assert!(poll_once(&mut maintenance).is_pending());
        step(&devices);
    }
    devices[1].fail_one_of(0);
    run(&devices, async {
        maintenance.await.expect_err("a slab is not complete");

        assert_eq!(slabs.map(is_stale).iter().filter(|&&is_stale| is_stale).count(), 1);
        pool.maintain_once().await.expect("copied");
        assert_eq!(slabs.map(is_stale), [false; 2]);
    });
}

#[test]
fn copy_that_cannot_be_written_holds_up_no_other_one() {
    let devices = [1, 2, 3].map(|seed| SimulatedDevice::new(32 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, &mirrored(3, 1)).await;
        let other = NewVolume { label: label("other"), ..mirrored(1, 3) };
        let other = pool.create_volume(&other).await.expect("created");
        fill(&pool.open_volume(other).await.expect("opened"), 9).await;
        fill(&pool.open_volume(id).await.expect("opened"), 1).await;
        pool.checkpoint().await.expect("written");
        let slabs = pool.shared.state.read().space.slabs_of(SlabKind::Data);
        let has_three = |&slab: &u32| {
            let state = pool.shared.state.read();
            state.space.slab(slab).is_some_and(|slab| slab.copies.len() == 3)
        };
        let slab = slabs.into_iter().find(has_three).expect("a slab with three copies");
        let place = middle(&pool, slab);
        let [good, bad, other] = [0, 1, 2].map(|at| place.sources().nth(at).expect("a copy"));
        {
            let mut state = pool.shared.state.write();
            let regions = state.shape().all_regions();
            state.space.lack(slab, regions, bad.device);
            state.space.lack(slab, regions, other.device);
        }
        let at = pool.shared.devices.at(bad, place.offset).offset as usize;
        devices[usize::from(bad.device)].fail_writes(at..at + 1);
        pool.maintain_once().await.expect_err("a copy is not complete");
        let complete: Vec<u8> = middle(&pool, slab).sources().map(|slot| slot.device).collect();
        assert!(complete.contains(&good.device) && complete.contains(&other.device));
        assert!(!complete.contains(&bad.device));
    });
}

#[test]
fn scrub_goes_on_behind_a_copy_that_it_cannot_write_again_and_reports_it() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(32 << 20, seed));
    for has_checksums in [false, true] {
        let (pool, id) = run(&devices, async {
            let new = NewVolume { has_checksums, ..mirrored(2, 1) };
            let (pool, id) = pool_with(&devices, &new).await;
            let other = NewVolume { label: label("other"), ..mirrored(1, 2) };
            let other = pool.create_volume(&other).await.expect("created");
            fill(&pool.open_volume(other).await.expect("opened"), 9).await;
            fill(&pool.open_volume(id).await.expect("opened"), 1).await;
            pool.checkpoint().await.expect("written");
            (pool, id)
        });
        let slab = mirrored_slab(&pool, SlabKind::Data);
        let place = middle(&pool, slab);
        let last = place.sources().last().expect("a copy");
        let device = &devices[usize::from(last.device)];
        let at = pool.shared.devices.at(last, place.offset);
        device.flip(at.offset as usize);
        device.fail_writes(at.offset as usize..at.offset as usize + 1);
        run(&devices, async {
            let mut parts = Vec::new();
            let ended = pool.scrub(|done, all| parts.push((done, all))).await;
            ended.expect_err("a copy is not written");
            assert!(parts.last().is_some_and(|&(done, all)| done + 1 == all), "{parts:?}");
            // Without checksums, either content could be read.
            assert_eq!(stale(&pool) > 0, !has_checksums);
            has_only(&pool, id, 1).await;
            device.fail_writes(0..0);
            pool.scrub(|_, _| {}).await.expect("written");
            pool.maintain_once().await.expect("copied");
            assert_eq!(stale(&pool), 0);
            let again = pool.scrub(|_, _| {}).await.expect("read");
            assert_eq!((again.repaired_bytes, again.differing_bytes), (0, 0));
        });
        end_all(pool);
    }
}
