//! What objects hold alone: the prediction is compared with what their deletion gives back.

use std::collections::BTreeMap;
use std::sync::Arc;

use sarsen_block::{BlockSize, Buffer, Durability, Extent, Lba, Rng, Store};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, run};
use super::{label, new_pool, volume};
use crate::shape::SlabKind;
use crate::{NewVolume, Pool, PoolError, PoolVolume, VolumeId, VolumeKind};

const SECTOR: u64 = 512;

/// Returns the bytes of all chunks that are in use, when everything is free that was given back.
async fn used_bytes(pool: &Pool) -> u64 {
    pool.maintain_once().await.expect("deleted");
    loop {
        pool.checkpoint().await.expect("written");
        pool.space();
        let state = pool.shared.state.read();
        if !state.space.is_returning() {
            let slabs = [SlabKind::Data, SlabKind::Checked].map(|kind| state.space.slabs_of(kind));
            let slabs: std::collections::BTreeSet<u32> = slabs.into_iter().flatten().collect();
            let used: u64 = slabs.iter().map(|&slab| u64::from(state.space.used(slab))).sum();
            return used << state.shape().chunk_shift;
        }
    }
}

async fn write(store: &PoolVolume, extent: Extent, byte: u8) {
    let length = extent.block_count as usize * SECTOR as usize;
    let data = Buffer::copy_of(&vec![byte; length]);
    store.write(extent, data.into(), Durability::Volatile).wait().await.expect("written");
}

/// A pool with volumes that clients change.
struct History {
    rng: Rng,
    pool: Pool,
    /// Sectors of a chunk.
    chunk: u64,
    stores: BTreeMap<VolumeId, Arc<PoolVolume>>,
    names: u32,
}

impl History {
    fn name(&mut self, prefix: &str) -> crate::Label {
        self.names += 1;
        label(&format!("{prefix}{}", self.names))
    }

    fn pick(&mut self, kind: VolumeKind) -> Option<VolumeId> {
        let mut ids: Vec<VolumeId> =
            self.pool.volumes().iter().filter(|one| one.kind == kind).map(|one| one.id).collect();
        if ids.is_empty() {
            return None;
        }
        Some(ids.swap_remove(self.rng.below(ids.len() as u64) as usize))
    }

    /// Returns a range of a volume. Half of the ranges have whole chunks, and most are in few leaves.
    fn extent(&mut self, sectors: u64) -> Extent {
        let chunk = self.chunk;
        let longest = [1, chunk, 20 * chunk][self.rng.below(3) as usize];
        let count = (1 + self.rng.below(longest)).min(sectors);
        let within = [40 * chunk, 40 * chunk, 600 * chunk, sectors][self.rng.below(4) as usize];
        let within = within.min(sectors);
        let first = self.rng.below(within - count.min(within) + 1).min(sectors - count);
        if self.rng.chance(50) && sectors > chunk {
            let first = first / chunk * chunk;
            return Extent::new(
                first,
                count.next_multiple_of(chunk).min((sectors - first) / chunk * chunk),
            );
        }
        Extent::new(first, count)
    }

    async fn step(&mut self) {
        let Some(id) = self.pick(VolumeKind::Volume) else { return };
        let store = self.stores[&id].clone();
        let sectors = store.geometry().block_count;
        let kind = self.rng.below(100);
        match kind {
            0..50 => {
                let (extent, byte) = (self.extent(sectors), self.rng.below(255) as u8 + 1);
                write(&store, extent, byte).await;
            }
            50..60 => {
                let extent = self.extent(sectors);
                store.unmap(extent).wait().await.expect("unmapped");
            }
            60..74 => {
                // A copy within the volume, or from another one.
                let from = self.pick(VolumeKind::Volume).expect("there is one");
                let source: Arc<dyn Store> = self.stores[&from].clone();
                let most = source.geometry().block_count.min(sectors) / self.chunk;
                let count = 1 + self.rng.below(most.min(6));
                let near = (most - count + 1).min([40, 700][self.rng.below(2) as usize]);
                let [first, second] = [0; 2].map(|_| self.rng.below(near) * self.chunk);
                let extent = Extent::new(first, count * self.chunk);
                store.share(&source, extent, Lba(second)).wait().await.expect("shared");
            }
            74..81 => {
                let name = self.name("s");
                self.pool.snapshot(&[(id, name)], false).await.expect("created");
            }
            81..85 => {
                let (Some(snapshot), name) = (self.pick(VolumeKind::Snapshot), self.name("c"))
                else {
                    return;
                };
                let clone = self.pool.clone_of(snapshot, &name).await.expect("created");
                self.stores.insert(clone, self.pool.open_volume(clone).await.expect("opened"));
            }
            85..88 => {
                store
                    .resize(sectors + self.rng.below(2000) * self.chunk)
                    .wait()
                    .await
                    .expect("larger");
            }
            88..92 => {
                let Some(snapshot) = self.pick(VolumeKind::Snapshot) else { return };
                drop(store);
                self.stores.remove(&id);
                self.pool.roll_back(id, snapshot).await.expect("set back");
                self.stores.insert(id, self.pool.open_volume(id).await.expect("opened"));
            }
            92..96 => self.pool.checkpoint().await.expect("written"),
            _ => self.pool.shared.state.write().evict_counts(0),
        }
    }

    /// Deletes an object, and compares the space that becomes free with what was predicted. Returns that.
    async fn delete(&mut self, id: VolumeId) -> u64 {
        self.stores.remove(&id);
        let before = used_bytes(&self.pool).await;
        if self.rng.chance(50) {
            self.pool.shared.state.write().evict_counts(0);
        }
        let predicted = self.pool.reclaimable_bytes(id).await.expect("counted");
        let info = self.pool.find(|one| one.id == id).expect("it is there");
        assert!(predicted <= info.referenced_bytes, "{info:?}: {predicted}");
        while let Err(PoolError::InUse) = self.pool.delete(id).await {
            tokio::task::yield_now().await;
        }
        let freed = before - used_bytes(&self.pool).await;
        assert_eq!(freed, predicted, "{info:?}");
        predicted
    }
}

#[test]
fn deletion_gives_back_what_was_predicted() {
    let (mut exclusive, mut nothing) = (0, 0);
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let devices = [SimulatedDevice::new(160 << 20, seed)];
        run(&devices, async {
            let chunk_size = [16 << 10, 64 << 10][rng.below(2) as usize];
            let pool = Pool::create(&new_pool(&devices, chunk_size), LocalTasks::shared()).await;
            let pool = pool.expect("a pool");
            if rng.chance(50) {
                pool.set_memory(0);
            }
            let chunk = u64::from(chunk_size) / SECTOR;
            let mut history = History { rng, pool, chunk, stores: BTreeMap::new(), names: 0 };
            for _ in 0..2 {
                let name = history.name("v").name;
                // With one, two or three levels.
                let chunks = [200, 5000, 90_000][history.rng.below(3) as usize];
                let has_checksums = history.rng.chance(20);
                let new = NewVolume {
                    has_checksums,
                    ..volume(&name, chunks * u64::from(chunk_size), BlockSize::B512)
                };
                let id = history.pool.create_volume(&new).await.expect("created");
                history.stores.insert(id, history.pool.open_volume(id).await.expect("opened"));
            }
            for _ in 0..6 {
                for _ in 0..history.rng.below(40) {
                    history.step().await;
                }
                if let Some(snapshot) = history.pick(VolumeKind::Snapshot) {
                    match history.delete(snapshot).await {
                        0 => nothing += 1,
                        _ => exclusive += 1,
                    }
                }
            }
            let mut rest: Vec<VolumeId> = history.pool.volumes().iter().map(|one| one.id).collect();
            while !rest.is_empty() {
                let chosen = history.rng.below(rest.len() as u64) as usize;
                history.delete(rest.swap_remove(chosen)).await;
            }
            assert_eq!(used_bytes(&history.pool).await, 0);
        });
    }
    assert!(exclusive > 10 && nothing > 10, "{exclusive} {nothing}");
}

#[test]
fn only_pages_of_the_object_alone_are_read() {
    const LEAVES: u64 = 200;
    const CHUNK: u64 = 32;
    let devices = [SimulatedDevice::new(96 << 20, 1)];
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 16 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let id = pool.create_volume(&volume("v", 2 << 30, BlockSize::B512)).await.expect("created");
        let store = pool.open_volume(id).await.expect("opened");
        for leaf in 0..LEAVES {
            write(&store, Extent::new(leaf * 256 * CHUNK, CHUNK), 1).await;
        }
        let snapshot = pool.snapshot(&[(id, label("s"))], false).await.expect("created")[0];
        assert_eq!(pool.reclaimable_bytes(snapshot).await.expect("counted"), 0);
        assert_eq!(pool.reclaimable_bytes(id).await.expect("counted"), 0);
        for leaf in [3, 120] {
            write(&store, Extent::new(leaf * 256 * CHUNK, CHUNK), 2).await;
        }
        pool.checkpoint().await.expect("written");
        let drop_leaves = || {
            let mut state = pool.shared.state.write();
            state.pages.retain(|_, cached| matches!(cached.page, crate::pages::Page::Branch(_)));
            state.pages.len()
        };
        for id in [snapshot, id] {
            let before = drop_leaves();
            assert_eq!(pool.reclaimable_bytes(id).await.expect("counted"), 2 * (16 << 10));
            assert_eq!(pool.shared.state.read().pages.len(), before + 2, "two leaves were read");
        }
    });
}

#[test]
fn chunks_of_an_object_that_is_being_deleted_count_for_the_others() {
    let devices = [SimulatedDevice::new(32 << 20, 1)];
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, 64 << 10), LocalTasks::shared()).await;
        let pool = pool.expect("a pool");
        let id = pool.create_volume(&volume("v", 8 << 20, BlockSize::B512)).await.expect("created");
        let store = pool.open_volume(id).await.expect("opened");
        write(&store, Extent::new(0, 1024), 1).await;
        let [first, second] = [label("a"), label("b")].map(|name| {
            let pool = pool.clone();
            async move { pool.snapshot(&[(id, name)], false).await.expect("created")[0] }
        });
        let (first, second) = (first.await, second.await);
        store.unmap(Extent::new(0, 1024)).wait().await.expect("unmapped");
        for snapshot in [first, second] {
            assert_eq!(pool.reclaimable_bytes(snapshot).await.expect("counted"), 0);
        }
        pool.delete(first).await.expect("deleted");
        assert!(pool.space().is_deleting);
        assert_eq!(pool.reclaimable_bytes(second).await.expect("counted"), 512 << 10);
        let deleted = pool.reclaimable_bytes(first).await;
        assert!(matches!(deleted, Err(PoolError::NotFound)), "{deleted:?}");
    });
}
