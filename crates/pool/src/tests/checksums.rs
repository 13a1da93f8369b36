//! Data that has changed on its device: volumes with checksums notice it.

use std::sync::Arc;

use sarsen_block::{
    BlockError, BlockSize, Buffer, Durability, Extent, MediumProblem, Payload, Store as _,
};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, end_all, run, run_until};
use super::{is_clean, label, new_pool, stores, volume};
use crate::{ChecksumErrors, NewVolume, Pool, PoolVolume, VolumeId};

const BLOCK: usize = 4096;
const BLOCKS: usize = 200;

/// Returns the contents of a block.
fn block(number: usize, version: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (number * 7 + at * 3) as u8 ^ version ^ (at >> 8) as u8).collect()
}

async fn pool_with(devices: &[Arc<SimulatedDevice>], copies: u8) -> (Pool, VolumeId) {
    let pool = Pool::create(&new_pool(devices, 64 << 10), LocalTasks::shared()).await;
    let pool = pool.expect("a pool");
    let size = (BLOCKS * BLOCK) as u64;
    let new = NewVolume { copies, has_checksums: true, ..volume("v", size, BlockSize::B512) };
    let id = pool.create_volume(&new).await.expect("created");
    let store = pool.open_volume(id).await.expect("opened");
    for number in 0..BLOCKS {
        write(&store, number * BLOCK, &block(number, 1)).await.expect("written");
    }
    store.flush().wait().await.expect("flushed");
    pool.checkpoint().await.expect("written");
    (pool, id)
}

async fn write(store: &PoolVolume, at: usize, data: &[u8]) -> Result<(), BlockError> {
    let extent = Extent::new(at as u64 >> 9, (data.len() >> 9) as u64);
    let data = Payload::from(Buffer::copy_of(data));
    store.write(extent, data, Durability::Volatile).wait().await
}

async fn read(store: &PoolVolume, at: usize, length: usize) -> Result<Vec<u8>, BlockError> {
    let extent = Extent::new(at as u64 >> 9, (length >> 9) as u64);
    let data = store.read(extent).wait().await?;
    Ok(data.into_buffer().to_vec())
}

/// Returns where a device has a block.
fn place_of(device: &SimulatedDevice, number: usize, version: u8) -> usize {
    let (wanted, mut found) = (block(number, version), None);
    device.edit(0, device.length(), |image| {
        found = image.chunks(BLOCK).position(|block| block == wanted);
    });
    found.expect("the device has the block") * BLOCK
}

async fn has_all(store: &PoolVolume, version: u8) {
    for number in 0..BLOCKS {
        let read = read(store, number * BLOCK, BLOCK).await.expect("read");
        assert_eq!(read, block(number, version), "block {number}");
    }
}

fn is_mismatch<T>(result: &Result<T, BlockError>) -> bool {
    matches!(
        result,
        Err(BlockError::Medium { problem: MediumProblem::Read(error), .. })
            if error.to_string().contains("does not have its checksum")
    )
}

#[test]
fn block_that_has_changed_is_not_read_until_it_is_written() {
    let devices = [SimulatedDevice::new(32 << 20, 1)];
    run(&devices, async {
        let (pool, id) = pool_with(&devices, 1).await;
        let store = pool.open_volume(id).await.expect("opened");
        devices[0].flip(place_of(&devices[0], 9, 1) + 1000);
        assert!(is_mismatch(&read(&store, 9 * BLOCK, BLOCK).await));
        assert!(is_mismatch(&read(&store, 9 * BLOCK + 3584, 512).await), "a part of it");
        assert!(is_mismatch(&read(&store, 0, BLOCKS * BLOCK).await), "with others");
        assert_eq!(read(&store, 10 * BLOCK, BLOCK).await.expect("read"), block(10, 1));
        assert!(pool.checksum_errors().lost >= 3 && pool.checksum_errors().repaired == 0);
        let scrubbed = pool.scrub(|_, _| {}).await.expect("scrubbed");
        assert_eq!((scrubbed.lost_bytes, scrubbed.repaired_bytes), (BLOCK as u64, 0));
        // The rest of the block is not known, so a part of it cannot be written.
        assert!(is_mismatch(&write(&store, 9 * BLOCK + 512, &[1; 512]).await));
        write(&store, 9 * BLOCK, &block(9, 2)).await.expect("all of it");
        assert_eq!(read(&store, 9 * BLOCK, BLOCK).await.expect("read"), block(9, 2));
        write(&store, 9 * BLOCK + 512, &[1; 512]).await.expect("a part of it");
        let mut expected = block(9, 2);
        expected[512..1024].fill(1);
        assert_eq!(read(&store, 9 * BLOCK, BLOCK).await.expect("read"), expected);
        // A snapshot has the checksums, too.
        let snapshot = pool.snapshot(&[(id, label("s"))], false).await.expect("created")[0];
        write(&store, 20 * BLOCK, &block(20, 2)).await.expect("written");
        devices[0].flip(place_of(&devices[0], 20, 1));
        let older = pool.open_volume(snapshot).await.expect("opened");
        assert!(is_mismatch(&read(&older, 20 * BLOCK, BLOCK).await));
        assert_eq!(read(&store, 20 * BLOCK, BLOCK).await.expect("read"), block(20, 2));
        // What is not what was written is not copied to another place.
        devices[0].flip(place_of(&devices[0], 21, 1));
        assert!(is_mismatch(&write(&store, 21 * BLOCK, &[1; 512]).await));
        is_clean(&devices).await;
    });
}

/// A scrub makes copies equal and sets a checksum, and the power fails after so many requests. Returns whether it was complete.
fn scrub_is_interrupted(seed: u64, requests: u64) -> bool {
    let devices = [1, 2].map(|device| SimulatedDevice::new(32 << 20, 2 * seed + device));
    end_all(run(&devices, pool_with(&devices, 2)));
    // The volume has not written the end of its last chunk, and the copies differ there.
    let unwritten = place_of(&devices[1], BLOCKS - 1, 1) + BLOCK;
    devices[1].edit(unwritten, BLOCK, |block| block.fill(5));
    let ended = run_until(&devices, requests, async {
        let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
        let scrubbed = pool.scrub(|_, _| {}).await.expect("scrubbed");
        assert_eq!(scrubbed.differing_bytes, BLOCK as u64);
        pool.checkpoint().await.expect("written");
    });
    end_all(());
    devices.iter().for_each(|device| device.crash_with(50));
    run(&devices, async {
        let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
        let scrubbed = pool.scrub(|_, _| {}).await.expect("scrubbed");
        assert_eq!(scrubbed.repaired_bytes, 0, "seed {seed}, {requests} requests: {scrubbed:?}");
    });
    end_all(());
    ended.is_some()
}

/// A checkpoint writes checksums to their only place, before it flushes.
#[test]
fn checksum_of_a_block_is_not_durable_before_all_copies_of_the_block() {
    for seed in 0..6 {
        let _complete = (1..).step_by(2).find(|&requests| scrub_is_interrupted(seed, requests));
    }
}

#[test]
fn block_that_has_changed_is_read_from_another_copy_and_repaired() {
    let devices = [1, 2, 3].map(|seed| SimulatedDevice::new(32 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices[..2], 2).await;
        let store = pool.open_volume(id).await.expect("opened");
        // Each copy lost another block.
        for (device, number) in [(0, 3), (1, 4), (0, 150), (1, 151)] {
            devices[device].flip(place_of(&devices[device], number, 1) + 17);
        }
        has_all(&store, 1).await;
        let scrubbed = pool.scrub(|_, _| {}).await.expect("scrubbed");
        assert_eq!(scrubbed.lost_bytes, 0);
        assert_eq!(pool.checksum_errors(), ChecksumErrors { repaired: 4, lost: 0 });
        let of_devices = pool.devices().into_iter().map(|device| device.checksum_errors);
        assert_eq!(of_devices.collect::<Vec<_>>(), [2, 2]);
        // Now each copy alone has everything.
        for device in &devices[..2] {
            for number in [3, 4, 150, 151] {
                place_of(device, number, 1);
            }
        }
        // A device that replaces another one gets what is intact.
        devices[0].flip(place_of(&devices[0], 5, 1));
        devices[1].flip(place_of(&devices[1], 6, 1));
        pool.add_device(devices[2].clone(), [9; 16]).await.expect("added");
        pool.remove_device(0).await.expect("removed");
        while pool.devices().len() > 2 {
            pool.maintain_once().await.expect("moved");
        }
        has_all(&store, 1).await;
        for number in 0..BLOCKS {
            place_of(&devices[2], number, 1);
        }
        is_clean(&devices[1..]).await;
    });
}

#[test]
fn what_an_interruption_left_without_checksums_gets_them_again() {
    let devices = [SimulatedDevice::new(32 << 20, 1)];
    let id = run(&devices, async {
        let (pool, id) = pool_with(&devices, 1).await;
        let store = pool.open_volume(id).await.expect("opened");
        for number in 0..BLOCKS / 2 {
            write(&store, number * BLOCK, &block(number, 2)).await.expect("written");
        }
        store.flush().wait().await.expect("flushed");
        id
    });
    devices[0].crash_with(50);
    let open = async || {
        let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
        let store = pool.open_volume(id).await.expect("opened");
        (pool, store)
    };
    let version = |number| if number < BLOCKS / 2 { 2 } else { 1 };
    run(&devices, async {
        let (pool, store) = open().await;
        for number in 0..BLOCKS {
            let data = read(&store, number * BLOCK, BLOCK).await.expect("read");
            assert_eq!(data, block(number, version(number)));
        }
        // Until the maintenance has calculated them, a change is not noticed.
        let place = place_of(&devices[0], 7, 2);
        devices[0].flip(place);
        assert_ne!(read(&store, 7 * BLOCK, BLOCK).await.expect("read"), block(7, 2));
        devices[0].flip(place);
        pool.maintain_once().await.expect("calculated");
        devices[0].flip(place);
        assert!(is_mismatch(&read(&store, 7 * BLOCK, BLOCK).await));
        devices[0].flip(place);
        pool.checkpoint().await.expect("written");
    });
    // A page of checksums that is damaged has none.
    devices[0].edit(0, devices[0].length(), |image| {
        let is_page = |page: &&mut [u8]| page[4] == 6 && page[8..16] == *b"a pool f";
        image.chunks_mut(BLOCK).filter(is_page).for_each(|page| page[100] ^= 1);
    });
    run(&devices, async {
        let (pool, store) = open().await;
        let data = read(&store, 7 * BLOCK, BLOCK).await.expect("read");
        assert_eq!(data, block(7, 2));
        let scrubbed = pool.scrub(|_, _| {}).await.expect("scrubbed");
        assert!(scrubbed.summed_bytes >= (BLOCKS * BLOCK) as u64, "{scrubbed:?}");
        assert_eq!((scrubbed.lost_bytes, scrubbed.repaired_bytes), (0, 0));
        devices[0].flip(place_of(&devices[0], 7, 2));
        assert!(is_mismatch(&read(&store, 7 * BLOCK, BLOCK).await));
        assert_eq!(pool.checksum_errors(), ChecksumErrors { repaired: 0, lost: 1 });
    });
}

#[test]
fn checksums_are_kept_when_memory_is_short() {
    let devices = [SimulatedDevice::new(64 << 20, 1)];
    run(&devices, async {
        let (pool, id) = pool_with(&devices, 1).await;
        pool.set_memory(0);
        let store = pool.open_volume(id).await.expect("opened");
        for version in 2..6 {
            for number in 0..BLOCKS {
                write(&store, number * BLOCK, &block(number, version)).await.expect("written");
            }
            pool.checkpoint().await.expect("written");
            has_all(&store, version).await;
        }
        assert_eq!(pool.checksum_errors(), ChecksumErrors::default());
    });
}

#[test]
fn device_that_comes_back_has_what_the_other_one_lost() {
    let devices = [1, 2].map(|seed| SimulatedDevice::new(16 << 20, seed));
    run(&devices, async {
        let (pool, id) = pool_with(&devices, 2).await;
        let store = pool.open_volume(id).await.expect("opened");
        pool.leave_out_device(0, "for a test").await.expect("left out");
        write(&store, 6 * BLOCK, &block(6, 2)).await.expect("written");
        // Of the same chunk, it is copied, too.
        devices[1].flip(place_of(&devices[1], 5, 1) + 9);
        assert!(is_mismatch(&read(&store, 5 * BLOCK, BLOCK).await));
        pool.return_device(devices[0].clone()).await.expect("it is back");
        pool.maintain_once().await.expect("copied");
        write(&store, 6 * BLOCK, &block(6, 1)).await.expect("written");
        has_all(&store, 1).await;
        for device in &devices {
            place_of(device, 5, 1);
        }
        pool.checkpoint().await.expect("written");
        drop(store);
        is_clean(&devices).await;
    });
}

/// Damages all pages of checksums of a device.
fn damage_checksums(device: &SimulatedDevice) {
    let mut pages = Vec::new();
    device.edit(0, device.length(), |image| {
        let starts = (0..image.len()).step_by(BLOCK);
        // The kind of a page is behind its checksum.
        pages = starts.filter(|&at| image[at + 4..at + 8] == [6, 0, 0, 0]).collect();
    });
    assert!(!pages.is_empty());
    pages.iter().for_each(|page| device.flip(page + 99));
}

#[test]
fn scrub_writes_damaged_checksums_again() {
    for (first, second) in [(0, 1), (1, 0)] {
        let devices = [1, 2].map(|seed| SimulatedDevice::new(16 << 20, seed));
        let open = async || {
            let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
            let id = pool.volumes()[0].id;
            let store = pool.open_volume(id).await.expect("opened");
            (pool, store)
        };
        run(&devices, async {
            let (pool, _) = pool_with(&devices, 2).await;
            // What no volume has written gets checksums, too: the next scrub has nothing to add.
            pool.scrub(|_, _| {}).await.expect("compared");
            pool.checkpoint().await.expect("written");
            drop(pool);
            damage_checksums(&devices[first]);
            let (pool, store) = open().await;
            pool.scrub(|_, _| {}).await.expect("compared");
            pool.maintain_once().await.expect("copied");
            pool.checkpoint().await.expect("written");
            drop((pool, store));
            // Now the other device fails.
            damage_checksums(&devices[second]);
            devices[second].flip(place_of(&devices[second], 5, 1) + 9);
            let (pool, store) = open().await;
            has_all(&store, 1).await;
            pool.checkpoint().await.expect("written");
            drop(store);
            is_clean(&devices).await;
        });
    }
}
