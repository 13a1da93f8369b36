//! Histories from a seed: several clients write, flush, unmap, take snapshots, clone, delete and set back, while the power
//! fails at any request of a device. A model knows which contents each sector may have.

mod clients;
mod model;

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use sarsen_block::Rng;

use self::clients::{
    IS_FAILING, Write, begin_transfer, change, clone, create, delete_snapshot, expected, flush,
    note, read, read_all, replace, share, snapshot, tolerate, transfer,
};
use self::model::{Known, SECTORS, Sector, Shared};
use super::device::SimulatedDevice;
use super::runner::{LocalTasks, abandon, end_all, run, run_until};
use super::{new_pool, stores};
use crate::format::{LEFT_OUT, Superblock};
use crate::opening::read_superblock;
use crate::{ChecksumErrors, Pool, PoolError, Tier, Tiers, VolumeKind, check};

/// Sectors of the largest chunk.
const CHUNK: u64 = 128;

/// The history of one seed.
struct History {
    seed: u64,
    rng: Rng,
    devices: Vec<Arc<SimulatedDevice>>,
    /// The devices with which the pool is created.
    members: usize,
    model: Shared,
}

type Step = LocalBoxFuture<'static, ()>;

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let members = 1 + rng.below(3) as usize;
        // One more may be added later.
        let devices = (0..members as u64 + 1).map(|number| {
            SimulatedDevice::new((12 << 20) + (rng.below(4) << 19) as usize, seed * 8 + number)
        });
        let devices = devices.collect();
        Self { seed, rng, devices, members, model: Shared::default() }
    }

    /// Returns the devices that are a part of the pool, and the numbers of those that have everything.
    async fn parts(&self) -> (Vec<Arc<SimulatedDevice>>, Vec<usize>) {
        let mut found = Vec::new();
        for device in &self.devices {
            if let Ok((superblock, _)) = read_superblock(&**device).await {
                found.push((device.clone(), superblock));
            }
        }
        let newest = found.iter().map(|(_, superblock)| superblock);
        let newest = newest.max_by_key(|superblock| superblock.generation.get()).expect("a pool");
        let has_all = |(_, (_, superblock)): &(usize, &(_, Box<Superblock>))| {
            let number = usize::from(superblock.device.get());
            let row = &newest.devices[number];
            row.flags & LEFT_OUT == 0
                && superblock.devices[number].identifier == row.identifier
                && superblock.generation.get() + 1 >= newest.generation.get()
        };
        let complete = found.iter().enumerate().filter(has_all).map(|(at, _)| at).collect();
        (found.iter().map(|(device, _)| device.clone()).collect(), complete)
    }

    /// Opens the pool. Sometimes a device is missing: then it is opened without it, or refused.
    async fn open(&mut self, is_last: bool) -> Pool {
        let (all, complete) = self.parts().await;
        let missing = self.rng.below(all.len() as u64) as usize;
        let may_miss = complete.iter().any(|&at| at != missing);
        if may_miss && !is_last && self.rng.chance(25) {
            let mut some = all.clone();
            some.remove(missing);
            match Pool::open(stores(&some), LocalTasks::shared()).await {
                Ok(pool) => return pool,
                Err(error) => note(format_args!("not opened without a device: {error}")),
            }
        }
        let pool = Pool::open(stores(&all), LocalTasks::shared()).await;
        pool.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed))
    }

    /// Begins something that concerns the devices of the pool.
    fn tend(&mut self, pool: Pool) -> Step {
        let chosen = self.rng.below(self.devices.len() as u64) as usize;
        let device = self.devices[chosen].clone();
        let kind = self.rng.below(13);
        let (slab, is_up) = (1 + self.rng.below(40) as u32, self.rng.chance(60));
        let identifier = [self.rng.below(200) as u8 + 40; 16];
        let numbers: Vec<u8> = pool.devices().iter().map(|device| device.number).collect();
        let number = numbers[self.rng.below(numbers.len() as u64) as usize];
        let has_superblock = pool.shared.state.read().space.members[usize::from(number)].last > 0;
        Box::pin(async move {
            // Most of this is refused, by right.
            let result = match kind {
                // Before that, it would be missing at the next start.
                0 if has_superblock => {
                    note(format_args!("device {number} is left out"));
                    pool.leave_out_device(number, "for a test").await
                }
                1..3 => pool.return_device(device).await.map(|number| {
                    note(format_args!("device {number} comes back"));
                }),
                3 if read_superblock(&*device).await.is_err() => {
                    note(format_args!("a device is added"));
                    pool.add_device(device, identifier).await.map(drop)
                }
                4 => {
                    note(format_args!("device {number} is removed"));
                    pool.remove_device(number).await
                }
                5 => pool.keep_device(number).await,
                6 => pool.scrub(|_, _| {}).await.map(|scrubbed| {
                    note(format_args!("{scrubbed:?}"));
                    let is_good = scrubbed.repaired_bytes + scrubbed.lost_bytes == 0;
                    assert!(IS_FAILING.get() || is_good, "{scrubbed:?}");
                }),
                7..9 => {
                    let tier = if is_up { Tier::Fast } else { Tier::Slow };
                    let has_begun = {
                        let mut state = pool.shared.state.write();
                        let pages = state.reserve();
                        state.space.begin_move(slab, tier, pages)
                    };
                    if has_begun {
                        note(format_args!("slab {slab} moves to {tier:?}"));
                    }
                    pool.maintain_once().await
                }
                9 => {
                    pool.decay_heat();
                    pool.balance_tiers(2 << 20);
                    pool.maintain_once().await
                }
                10 => {
                    let new_data = if is_up { Tier::Fast } else { Tier::Slow };
                    pool.set_tiers(&Tiers { fast: vec![number], new_data });
                    Ok(())
                }
                11 => {
                    let all = pool.volumes();
                    match all.get(usize::from(identifier[0]) % all.len().max(1)) {
                        // Its client disconnects.
                        Some(one) if identifier[0] % 3 == 0 => {
                            let polls = u64::from(identifier[0]) / 8;
                            abandon(polls, pool.reclaimable_bytes(one.id)).await;
                            Ok(())
                        }
                        Some(one) => pool.reclaimable_bytes(one.id).await.map(|bytes| {
                            note(format_args!("{} holds {bytes} bytes alone", one.label.name));
                        }),
                        None => Ok(()),
                    }
                }
                _ if is_up => pool.settle_regions().await,
                _ => pool.maintain_once().await,
            };
            match result {
                Err(
                    PoolError::Invalid(_)
                    | PoolError::NotFound
                    | PoolError::NoSpace
                    | PoolError::NoDevice
                    | PoolError::Unfit { .. }
                    | PoolError::Device { .. },
                ) => {}
                result => expected(result).await,
            }
        })
    }

    fn run(&mut self) {
        let chunk_size = [16 << 10, 64 << 10][self.rng.below(2) as usize];
        let new = new_pool(&self.devices[..self.members], chunk_size);
        run(&self.devices, async {
            drop(Pool::create(&new, LocalTasks::shared()).await.expect("created"))
        });
        for life in 0..4 {
            let requests = if life == 3 { u64::MAX } else { 1 + self.rng.below(1500) };
            let devices = self.devices.clone();
            let steps = 60 + self.rng.below(120);
            IS_FAILING.set(life < 3 && self.rng.chance(30));
            let ended = {
                let live = self.live(steps, life == 3);
                run_until(&devices, requests, live)
            };
            end_all(());
            IS_FAILING.set(false);
            devices.iter().for_each(|device| device.fail_one_of(0));
            self.model.borrow_mut().volumes.values_mut().for_each(|known| known.store = None);
            if ended.is_none() || self.rng.chance(50) {
                devices.iter().for_each(|device| device.crash());
            }
        }
        let devices = self.devices.clone();
        let (parts, _) = run(&devices, self.parts());
        // The only checkpoint that left out a device can be that of a device that was missing after it. A device that failed
        // while it was added has no superblock.
        let checked = run(&devices, check(stores(&parts))).expect("it can be checked");
        let others = checked.left_out.iter().filter(|(_, reason)| {
            !reason.contains("without the other") && !reason.contains("it is missing")
        });
        let is_clean =
            checked.findings.is_empty() && checked.damaged_copies.is_empty() && others.count() == 0;
        assert!(is_clean, "seed {}: {checked:#?}", self.seed);
    }

    /// Opens the pool, compares everything with the model, and carries out steps of clients.
    async fn live(&mut self, steps: u64, is_last: bool) {
        note(format_args!("the pool is opened"));
        let pool = self.open(is_last).await;
        let is_scarce = self.rng.chance(30);
        if is_scarce {
            pool.set_memory(0);
        }
        let has_tiers = self.rng.chance(50);
        if has_tiers {
            let new_data = if self.rng.chance(50) { Tier::Fast } else { Tier::Slow };
            pool.set_tiers(&Tiers { fast: vec![self.rng.below(3) as u8], new_data });
        }
        self.compare(&pool).await;
        if IS_FAILING.get() {
            self.devices.iter().for_each(|device| device.fail_one_of(300));
        }
        let mut running: FuturesUnordered<Step> = FuturesUnordered::new();
        for _ in 0..steps {
            while running.len() > self.rng.below(8) as usize {
                running.next().await;
            }
            if let Some(step) = self.step(&pool) {
                running.push(step);
            }
            if is_scarce && self.rng.chance(50) {
                pool.shared.state.write().evict_counts(0);
            }
        }
        while running.next().await.is_some() {}
        if is_last {
            self.end(pool).await;
        }
    }

    /// Compares what a pool has after a start with the model, which knows it exactly from then on.
    async fn compare(&mut self, pool: &Pool) {
        let mut found: BTreeMap<_, _> =
            pool.volumes().into_iter().map(|object| (object.label.name.clone(), object)).collect();
        // If the power fails before the end, the model is what it was.
        let mut model = self.model.borrow().clone();
        let seed = self.seed;
        for (name, (volume, allowed)) in std::mem::take(&mut model.beginning) {
            let Some(object) = found.get(&name) else { continue };
            let store = pool.open_volume(object.id).await.expect("it can be opened");
            let content = read_all(&store).await;
            for (lba, (value, allowed)) in content.iter().zip(&allowed).enumerate() {
                assert!(
                    allowed.contains(value),
                    "seed {seed}: sector {lba} of snapshot {name} of {volume} has {value}, not one of {allowed:?}"
                );
            }
            model.snapshots.insert(name, (object.id, Rc::new(content)));
        }
        for (name, content) in std::mem::take(&mut model.cloning) {
            if let Some(object) = found.get(&name) {
                model.volumes.insert(name, Known::new(object.id, &content));
            }
        }
        model.sharing.clear();
        for (name, mut receiving) in std::mem::take(&mut model.receiving) {
            match found.get(&name) {
                None => {}
                Some(object) if object.received.is_none() => {
                    model.snapshots.insert(name, (object.id, receiving.content));
                }
                Some(object) => {
                    let incomplete = pool.open_volume(object.id).await.err();
                    assert!(matches!(incomplete, Some(PoolError::Incomplete)), "{incomplete:?}");
                    found.remove(&name);
                    receiving.is_busy = false;
                    model.receiving.insert(name, receiving);
                }
            }
        }
        for name in std::mem::take(&mut model.deleting) {
            if !found.contains_key(&name) {
                model.volumes.remove(&name);
                model.snapshots.remove(&name);
            }
        }
        for (name, (id, content)) in &model.snapshots {
            let object = found.remove(name);
            let object = object.unwrap_or_else(|| panic!("seed {seed}: snapshot {name} is gone"));
            assert_eq!((object.id, object.kind), (*id, VolumeKind::Snapshot));
            let store = pool.open_volume(*id).await.expect("it can be opened");
            let now = read_all(&store).await;
            let different = now.iter().zip(content.iter()).position(|(now, was)| now != was);
            if let Some(lba) = different {
                let (now, was) = (now[lba], content[lba]);
                panic!("seed {seed}: sector {lba} of snapshot {name} has {now}, and had {was}");
            }
        }
        for (name, known) in &mut model.volumes {
            let object = found.remove(name);
            let object = object.unwrap_or_else(|| panic!("seed {seed}: volume {name} is gone"));
            assert_eq!((object.id, object.kind), (known.id, VolumeKind::Volume));
            let store = pool.open_volume(known.id).await.expect("it can be opened");
            let now = read_all(&store).await;
            for (lba, (value, sector)) in now.into_iter().zip(&mut known.sectors).enumerate() {
                let was = known.set_back.as_ref().map(|content| content[lba]);
                assert!(
                    sector.may_be_after_crash(value) || was == Some(value),
                    "seed {seed}: sector {lba} of volume {name} has {value}, not one of {sector:?} or {was:?}"
                );
                *sector = Sector::of(value);
            }
            (known.store, known.set_back, known.is_locked) = (Some(store), None, false);
            known.busy.clear();
        }
        // A volume whose creation was not answered.
        for (name, object) in found {
            assert_eq!(object.kind, VolumeKind::Volume, "seed {seed}: {name} was deleted");
            let store = pool.open_volume(object.id).await.expect("it can be opened");
            assert!(read_all(&store).await.iter().all(|&value| value == 0));
            let mut known = Known::new(object.id, &vec![0; SECTORS as usize]);
            known.store = Some(store);
            model.volumes.insert(name, known);
        }
        for known in model.volumes.values_mut().filter(|known| known.store.is_none()) {
            known.store = Some(pool.open_volume(known.id).await.expect("it can be opened"));
        }
        *self.model.borrow_mut() = model;
    }

    /// Begins one step of a client.
    fn step(&mut self, pool: &Pool) -> Option<Step> {
        let model = self.model.clone();
        let pool = pool.clone();
        let pick = |rng: &mut Rng, names: Vec<String>| {
            let chosen = rng.below(names.len() as u64) as usize;
            names.into_iter().nth(chosen)
        };
        let idle: Vec<String> = {
            let model = model.borrow();
            let volumes = model.volumes.iter().filter(|(_, known)| !known.is_locked);
            volumes.map(|(name, _)| name.clone()).collect()
        };
        let snapshots: Vec<String> = {
            let model = model.borrow();
            let names = model.snapshots.keys().filter(|name| !model.deleting.contains(name));
            names.cloned().collect()
        };
        if self.rng.chance(6) {
            return Some(self.tend(pool));
        }
        if self.rng.chance(5) {
            let begun: Vec<String> = model.borrow().receiving.keys().cloned().collect();
            let name = match pick(&mut self.rng, begun) {
                Some(name) if self.rng.chance(50) => name,
                _ => {
                    let names = (pick(&mut self.rng, snapshots)?, pick(&mut self.rng, idle)?);
                    let chosen = self.rng.below(4);
                    begin_transfer(&model, &pool, (&names.0, &names.1), chosen)?
                }
            };
            let (parts, size) = (1 + self.rng.below(6), 8 << self.rng.below(8));
            return Some(Box::pin(transfer(model, pool, name, parts, size)));
        }
        if self.rng.chance(6) {
            let (from, to) = (pick(&mut self.rng, idle.clone())?, pick(&mut self.rng, idle)?);
            let chunks = 1 + self.rng.below(6);
            let first = |rng: &mut Rng| rng.below(16 - chunks + 1) * CHUNK;
            let [first, second] = [first(&mut self.rng), first(&mut self.rng)];
            let range = self.hold(second..second + chunks * CHUNK, &to)?;
            return Some(Box::pin(share(model, (from, first), (to, range))));
        }
        let of_rng = self.rng.below(12);
        match self.rng.below(100) {
            0..4 if idle.len() < 4 => Some(Box::pin(create(model, pool, of_rng))),
            _ if idle.is_empty() => Some(Box::pin(create(model, pool, of_rng))),
            4..9 => {
                let name = pick(&mut self.rng, idle)?;
                Some(Box::pin(snapshot(model, pool, name)))
            }
            9..12 if !snapshots.is_empty() && idle.len() < 4 => {
                let name = pick(&mut self.rng, snapshots)?;
                Some(Box::pin(clone(model, pool, name)))
            }
            12..16 if !snapshots.is_empty() => {
                let name = pick(&mut self.rng, snapshots)?;
                Some(Box::pin(delete_snapshot(model, pool, name)))
            }
            16..19 => {
                let name = pick(&mut self.rng, idle)?;
                let content = pick(&mut self.rng, snapshots);
                Some(Box::pin(replace(model, pool, name, content)))
            }
            19 => Some(Box::pin(async move {
                tolerate(pool.maintain_once().await).await;
            })),
            20..22 => Some(Box::pin(async move {
                tolerate(pool.checkpoint().await).await;
            })),
            22 => {
                let polls = self.rng.below(30);
                Some(Box::pin(async move { abandon(polls, pool.checkpoint()).await }))
            }
            // Half of the histories have few flushes, and change ownership often.
            23..31 if self.seed.is_multiple_of(2) => match pick(&mut self.rng, snapshots) {
                Some(name) if self.rng.chance(60) && idle.len() < 4 => {
                    Some(Box::pin(clone(model, pool, name)))
                }
                Some(name) => Some(Box::pin(delete_snapshot(model, pool, name))),
                None => Some(Box::pin(snapshot(model, pool, pick(&mut self.rng, idle)?))),
            },
            31..33 if self.seed.is_multiple_of(2) => Some(Box::pin(async move {
                tolerate(pool.maintain_once().await).await;
            })),
            23..33 => {
                let name = pick(&mut self.rng, idle)?;
                Some(Box::pin(flush(model, name)))
            }
            33..45 => {
                let name = pick(&mut self.rng, idle)?;
                let range = self.range(&name)?;
                Some(Box::pin(read(model, name, range)))
            }
            kind => {
                let name = pick(&mut self.rng, idle)?;
                let range = self.range(&name)?;
                let write = match kind {
                    45..53 => Write::Unmap,
                    53..56 => Write::Zero,
                    56..66 => Write::Durable,
                    _ => Write::Volatile,
                };
                Some(Box::pin(change(model, name, range, write)))
            }
        }
    }

    /// Returns a range that no other request has.
    fn range(&mut self, name: &str) -> Option<Range<u64>> {
        let longest = [1, 8, 40, 300, 1000][self.rng.below(5) as usize];
        let length = 1 + self.rng.below(longest);
        let mut first = self.rng.below(SECTORS - length + 1);
        if self.rng.chance(50) {
            // Often whole pieces, and often the same ones.
            first &= !63;
        }
        self.hold(first..first + length, name)
    }

    /// Returns the range if no other request has a part of it. It has it from now on.
    fn hold(&self, range: Range<u64>, name: &str) -> Option<Range<u64>> {
        let mut model = self.model.borrow_mut();
        let known = model.volumes.get_mut(name)?;
        if known.busy.iter().any(|busy| busy.start < range.end && range.start < busy.end) {
            return None;
        }
        known.busy.push(range.clone());
        Some(range)
    }

    /// Deletes everything: all space comes back.
    async fn end(&mut self, pool: Pool) {
        let volumes = std::mem::take(&mut self.model.borrow_mut().volumes);
        drop(volumes);
        for object in pool.volumes() {
            // A request that lost its caller may still use it.
            while let Err(PoolError::InUse) = pool.delete(object.id).await {
                tokio::task::yield_now().await;
            }
        }
        pool.maintain_once().await.expect("deleted");
        for _ in 0..3 {
            pool.checkpoint().await.expect("written");
            pool.space();
        }
        let space = pool.space();
        assert!(
            !space.is_deleting && !pool.shared.state.read().space.is_returning(),
            "seed {}",
            self.seed
        );
        // All data was what was written, or had no checksum.
        assert_eq!(pool.checksum_errors(), ChecksumErrors::default(), "seed {}", self.seed);
        let state = pool.shared.state.read();
        let data = state.space.slabs_of(crate::shape::SlabKind::Data);
        let used: u32 = data.iter().map(|&slab| state.space.used(slab)).sum();
        assert_eq!(used, 0, "seed {}: chunks are used by nothing", self.seed);
    }
}

fn run_seeds(seeds: Range<u64>) {
    for seed in seeds {
        let ended = std::panic::catch_unwind(|| History::new(seed).run());
        if let Err(panic) = ended {
            end_all(());
            eprintln!("SARSEN_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn a_seed_has_the_same_history_each_time() {
    let images = |seed| {
        let mut history = History::new(seed);
        history.run();
        let image = |device: &Arc<SimulatedDevice>| {
            let mut image = Vec::new();
            device.edit(0, device.length(), |bytes| image.extend_from_slice(bytes));
            image
        };
        history.devices.iter().map(image).collect::<Vec<_>>()
    };
    for seed in 0..8 {
        assert!(images(seed) == images(seed), "seed {seed}");
    }
}

#[test]
fn a_seed_loses_nothing_that_was_acknowledged() {
    let seeds = match std::env::var("SARSEN_SEED") {
        Ok(seeds) => {
            let (first, last) = seeds.split_once('-').unwrap_or((&seeds, &seeds));
            first.parse().expect("a number")..last.parse::<u64>().expect("a number") + 1
        }
        Err(_) => 0..60,
    };
    run_seeds(seeds);
}

#[test]
#[ignore = "takes minutes"]
fn ten_thousand_seeds_lose_nothing_that_was_acknowledged() {
    run_seeds(0..10_000);
}
