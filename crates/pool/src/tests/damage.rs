//! Damage that is planted in the metadata of a pool, and that the check must find.

use std::sync::Arc;

use sarsen_block::{BlockSize, Buffer, Durability, Extent, Rng, Store as _};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, run};
use super::{is_clean, label, new_pool, stores, volume};
use crate::format::{
    BranchPage, CountsPage, LeafPage, PAGE, RowsPage, SUPERBLOCKS, Sealed, VolumesPage,
};
use crate::{Pool, check};

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
    found.is_err() || found.is_ok_and(|checked| !checked.findings.is_empty())
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
    let reads = device.take_reads().into_iter().map(|(offset, _)| offset);
    reads.filter(|&offset| !SUPERBLOCKS.contains(&(offset as u64))).collect()
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
