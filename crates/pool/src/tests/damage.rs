//! Damage that is planted in the metadata of a pool, and that the check must find.

use std::sync::Arc;

use sarsen_block::{BlockSize, Buffer, Durability, Extent, Rng, Store as _};
use zerocopy::FromBytes as _;

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, end_all, run, run_until};
use super::{is_clean, label, new_pool, stores, volume};
use crate::format::{
    BranchPage, CountsPage, FRAME_MAGIC, FrameHeader, LeafPage, PAGE, RowsPage, SUPERBLOCKS,
    Sealed, Superblock, VolumesPage,
};
use crate::opening::{read_superblock, shape_of};
use crate::shape::Layout;
use crate::{AcceptedLosses, Checked, Pool, PoolError, check};

/// Creates a pool with volumes, snapshots and clones that share chunks, and returns its device.
fn pool_with_everything() -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::new(32 << 20, 1);
    let devices = [device.clone()];
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 16 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let size = 40 << 20;
        let id = pool.create_volume(&volume("v", size, BlockSize::B512)).await.expect("created");
        let store = pool.open_volume(id).await.expect("opened");
        let mut rng = Rng::new(2);
        let mut origin = id;
        for round in 0..4 {
            for _ in 0..60 {
                let lba = rng.below((size >> 9) - 200);
                let data = Buffer::copy_of(&vec![round; 512 * (1 + rng.below(200) as usize)]);
                let extent = Extent::new(lba, data.len() as u64 / 512);
                let write = store.write(extent, data.into(), Durability::Volatile);
                write.wait().await.expect("written");
            }
            let name = format!("s{round}");
            origin = pool.snapshot(&[(id, label(&name))], false).await.expect("created")[0];
        }
        pool.clone_of(origin, &label("c")).await.expect("created");
        pool.checkpoint().await.expect("written");
    });
    device
}

/// Returns whether the check finds something.
fn is_found(device: &Arc<SimulatedDevice>) -> bool {
    let found = run(std::slice::from_ref(device), check(stores(std::slice::from_ref(device))));
    found.is_err() || found.is_ok_and(|checked| checked != Checked::default())
}

/// Uses a damaged pool, and ignores all errors: it must not panic.
fn use_damaged(device: &SimulatedDevice) {
    let devices = [device.copy(32 << 20)];
    run(&devices, async {
        let Ok(pool) = Pool::open(stores(&devices), LocalTasks::shared()).await else { return };
        for object in pool.volumes() {
            let Ok(store) = pool.open_volume(object.id).await else { continue };
            let _read = store.read(Extent::new(0, 4096)).wait().await;
            let _unmapped = store.unmap(Extent::new(0, 1000)).wait().await;
            let data = Buffer::zeroed(1 << 20);
            let extent = Extent::new(500, 2048);
            let _written = store.write(extent, data.into(), Durability::Durable).wait().await;
            drop(store);
            let _snapshot = pool.snapshot(&[(object.id, label("another"))], false).await;
            let _deleted = pool.delete(object.id).await;
        }
        let _maintained = pool.maintain_once().await;
        let _written = pool.checkpoint().await;
    });
}

/// Returns the places of all pages that a check reads, without the superblocks.
fn pages_in_use(device: &Arc<SimulatedDevice>) -> Vec<usize> {
    device.take_reads();
    run(std::slice::from_ref(device), is_clean(std::slice::from_ref(device)));
    // A check reads the whole journal at once.
    let reads = device.take_reads().into_iter().filter(|(_, length)| *length == PAGE);
    let offsets = reads.map(|(offset, _)| offset);
    offsets.filter(|&offset| !SUPERBLOCKS.contains(&(offset as u64))).collect()
}

#[test]
fn every_damaged_page_is_found() {
    let device = pool_with_everything();
    let mut rng = Rng::new(3);
    for page in pages_in_use(&device) {
        for _ in 0..3 {
            let offset = page + rng.below(PAGE as u64) as usize;
            device.flip(offset);
            assert!(is_found(&device), "byte {} of the page at {page}", offset - page);
            use_damaged(&device);
            device.flip(offset);
        }
    }
    assert!(!is_found(&device));
}

/// Changes one field of a page, and corrects its checksum. Returns whether the page has a field of the kind that is wanted.
fn change(page: &mut [u8], rng: &mut Rng) -> bool {
    fn with<P: Sealed>(page: &mut [u8], change: impl FnOnce(&mut P) -> bool) -> bool {
        let mut parsed = P::read_from_bytes(page).expect("a page");
        let changed = change(&mut parsed);
        parsed.seal();
        page.copy_from_slice(parsed.as_bytes());
        changed
    }
    let chosen = rng.bits() as usize;
    let pick = |used: Vec<usize>| used.get(chosen % used.len().max(1)).copied();
    match page[4] {
        1 => with::<BranchPage>(page, |page| {
            let used = (0..256).filter(|&at| page.children[at].get() != 0).collect();
            let Some(at) = pick(used) else { return false };
            page.children[at] = if chosen & 1 == 0 { 0.into() } else { (1_u64 << 19).into() };
            true
        }),
        2 => with::<LeafPage>(page, |page| {
            let used = (0..256).filter(|&at| page.entries[at].get() != 0).collect();
            let Some(at) = pick(used) else { return false };
            // Another chunk, no chunk, or a base that it does not have.
            let entry = page.entries[at].get();
            let wrong = [entry ^ 1, 0, entry & !(0xffff << 40), entry ^ 0xfe << 56];
            page.entries[at] = wrong[chosen % 4].into();
            true
        }),
        3 => with::<VolumesPage>(page, |page| {
            let used = (0..15).filter(|&at| page.rows[at].id.get() != 0).collect();
            let Some(at) = pick(used) else { return false };
            let row = &mut page.rows[at];
            match chosen % 5 {
                0 => row.root = 0.into(),
                1 => row.id = 1_000_000.into(),
                2 => row.kind = 3,
                3 => row.height += 1,
                _ => row.id = 0.into(),
            }
            true
        }),
        4 => with::<CountsPage>(page, |page| {
            // The first slab of 64 units is not longer than this.
            let at = chosen % 64;
            page.counts[at] = (page.counts[at].get() + 1).into();
            true
        }),
        5 => with::<RowsPage>(page, |page| {
            let used = (0..63).filter(|&at| page.rows[at].kind != 0).collect();
            let Some(at) = pick(used) else { return false };
            let row = &mut page.rows[at];
            match chosen % 7 {
                0 => row.kind = 0,
                1 => row.kind ^= 3,
                2 => row.slots[0].number = (row.slots[0].number.get() + 1).into(),
                3 => row.slots[0].device = 1,
                4 => row.copies = 2,
                5 => row.stale = 1,
                _ => row.places[0] ^= 1,
            }
            true
        }),
        kind => panic!("a page of kind {kind}"),
    }
}

#[test]
fn every_contradiction_between_intact_pages_is_found() {
    let device = pool_with_everything();
    let mut rng = Rng::new(4);
    let mut planted = [0; 6];
    for page in pages_in_use(&device) {
        for _ in 0..6 {
            let mut before = Vec::new();
            let mut changed = false;
            device.edit(page, PAGE, |bytes| {
                before = bytes.to_vec();
                changed = change(bytes, &mut rng);
                planted[usize::from(before[4])] += usize::from(changed);
            });
            let description = format!("in the page of kind {} at {page}", before[4]);
            assert!(!changed || is_found(&device), "{description}");
            if rng.chance(25) {
                use_damaged(&device);
            }
            device.edit(page, PAGE, |bytes| bytes.copy_from_slice(&before));
        }
    }
    assert!(planted[1..].iter().all(|&count| count > 0), "{planted:?}");
    assert!(!is_found(&device));
}

const BLOCK: usize = 4096;
/// Blocks that are written and flushed one after the other, and those after which there is a checkpoint.
const WRITES: u64 = 30;
const CHECKPOINTS: [u64; 2] = [9, 14];

/// Returns a device whose pool was interrupted after durable writes and so many requests of a checkpoint.
fn interrupted(requests: u64) -> Arc<SimulatedDevice> {
    let devices = [SimulatedDevice::new(32 << 20, 5)];
    let pool = run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 16 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let new = volume("v", 16 << 20, BlockSize::B4096);
        let id = pool.create_volume(&new).await.expect("created");
        let store = pool.open_volume(id).await.expect("opened");
        for number in 0..WRITES {
            let data = Buffer::copy_of(&[1 + number as u8; BLOCK]).into();
            // Each is in another leaf of the map in turn.
            let extent = Extent::new(place_of(number), 1);
            store.write(extent, data, Durability::Durable).wait().await.expect("written");
            if CHECKPOINTS.contains(&number) {
                pool.checkpoint().await.expect("written");
            }
        }
        pool
    });
    run_until(&devices, requests, pool.checkpoint());
    end_all(pool);
    let [device] = devices;
    device
}

const fn place_of(number: u64) -> u64 {
    number % 3 * 1024 + number
}

/// Returns how many of the writes an opened pool has. Those that it has are the first ones.
async fn writes_of(pool: &Pool) -> u64 {
    let store = pool.open_volume(pool.volumes()[0].id).await.expect("opened");
    let mut has = Vec::new();
    for number in 0..WRITES {
        let read = store.read(Extent::new(place_of(number), 1)).wait().await.expect("read");
        let read = read.into_buffer();
        let is_written = read[..] == [1 + number as u8; BLOCK];
        assert!(is_written || read[..] == [0; BLOCK], "block {number} has something else");
        has.push(is_written);
    }
    assert!(has.is_sorted_by(|before, after| before >= after), "{has:?}");
    has.into_iter().filter(|&is_written| is_written).count() as u64
}

/// Returns the newest superblock of a device.
fn newest(device: &Arc<SimulatedDevice>) -> Superblock {
    let read = run(std::slice::from_ref(device), read_superblock(&**device));
    *read.expect("a superblock").0
}

#[test]
fn a_damaged_frame_does_not_hide_later_ones() {
    let device = interrupted(0);
    let superblock = newest(&device);
    let shape = shape_of(&superblock).expect("sizes");
    let start = Layout::of_slots(&shape, 0).journal as usize;
    let mut frames = Vec::new();
    device.edit(start, superblock.journal.get() as usize, |journal| {
        for (page, bytes) in journal.chunks(PAGE).enumerate() {
            let header = FrameHeader::read_from_prefix(bytes).expect("a page has a header").0;
            if header.magic == FRAME_MAGIC && header.number >= superblock.frame {
                frames.push(start + page * PAGE);
            }
        }
    });
    assert_eq!(frames.len() as u64, WRITES - 1 - CHECKPOINTS[1]);
    let last = frames.pop().expect("a frame");
    let mut rng = Rng::new(6);
    for (number, frame) in (CHECKPOINTS[1] + 1..).zip(frames) {
        let damaged = [device.copy(32 << 20)];
        damaged[0].flip(frame + rng.below(60) as usize);
        assert!(is_found(&damaged[0]), "write {number}");
        run(&damaged, async {
            let opened = Pool::open(stores(&damaged), LocalTasks::shared()).await;
            assert!(matches!(opened, Err(PoolError::DamagedJournal { .. })), "write {number}");
            let losses = AcceptedLosses { journal: true, ..AcceptedLosses::default() };
            let tasks = LocalTasks::shared();
            let pool = Pool::open_accepting(stores(&damaged), tasks, losses).await;
            assert_eq!(writes_of(&pool.expect("opened")).await, number);
        });
        run(&damaged, is_clean(&damaged));
    }
    // A power failure can leave the last frame incomplete. Nothing in it was acknowledged then.
    device.flip(last);
    let devices = [device];
    run(&devices, async {
        let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
        assert_eq!(writes_of(&pool).await, WRITES - 1);
    });
}

#[test]
fn a_damaged_superblock_loses_nothing_silently() {
    let mut refused = 0;
    for requests in 0..24 {
        let devices = [interrupted(requests)];
        let generation = newest(&devices[0]).generation.get();
        devices[0].flip(SUPERBLOCKS[(generation & 1) as usize] as usize + 100);
        run(&devices, async {
            match Pool::open(stores(&devices), LocalTasks::shared()).await {
                Ok(pool) => assert_eq!(writes_of(&pool).await, WRITES, "after {requests}"),
                Err(error) => {
                    assert!(matches!(error, PoolError::Damaged { .. }), "{error}");
                    refused += 1;
                }
            }
        });
    }
    assert!((1..24).contains(&refused), "{refused} were refused");
}
