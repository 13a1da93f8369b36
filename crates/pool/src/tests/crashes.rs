//! Histories from a seed: several clients write, flush, unmap, take snapshots, clone, delete and set back, while the power
//! fails at any request of a device. A model knows which contents each sector may have.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use sarsen_block::{BlockError, BlockSize, Buffer, Durability, Extent, Io, Rng, Store as _};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, abandon, end_all, poll_once, run, run_until};
use super::{label, new_pool, stores, volume};
use crate::format::{LEFT_OUT, Superblock};
use crate::opening::read_superblock;
use crate::{NewVolume, Pool, PoolError, PoolVolume, VolumeId, VolumeKind, check};

const SECTOR: usize = 512;
/// Sectors of each volume.
const SECTORS: u64 = 2048;

/// The contents that a sector of a volume may have.
#[derive(Clone, Debug)]
struct Sector {
    /// What it may have after a power failure, from the oldest to what the last acknowledged write has. Each value has the
    /// number of its write.
    values: Vec<(u64, u64)>,
    /// What a write has that was not answered.
    writing: Option<u64>,
    /// What writes had that failed since then.
    failed: Vec<u64>,
}

impl Sector {
    fn of(value: u64) -> Self {
        Self { values: vec![(0, value)], writing: None, failed: Vec::new() }
    }

    fn now(&self) -> u64 {
        self.values.last().expect("it has a value").1
    }

    fn number(&self) -> u64 {
        self.values.last().expect("it has a value").0
    }

    fn may_be_now(&self, value: u64) -> bool {
        value == self.now() || Some(value) == self.writing || self.failed.contains(&value)
    }

    fn may_be_after_crash(&self, value: u64) -> bool {
        self.values.iter().any(|&(_, known)| known == value) || self.may_be_now(value)
    }
}

/// What is known of a volume.
#[derive(Clone)]
struct Known {
    id: VolumeId,
    sectors: Vec<Sector>,
    /// Ranges with a request under way.
    busy: Vec<Range<u64>>,
    store: Option<Arc<PoolVolume>>,
    /// It is being deleted or set back.
    is_locked: bool,
    /// It may have this content after a power failure, because it was being set back to it.
    set_back: Option<Rc<Vec<u64>>>,
}

/// What a snapshot may have, until it is complete.
type Allowed = Vec<Vec<u64>>;

#[derive(Clone, Default)]
struct Model {
    volumes: BTreeMap<String, Known>,
    snapshots: BTreeMap<String, (VolumeId, Rc<Vec<u64>>)>,
    /// Snapshots that were not answered: volume and content.
    beginning: BTreeMap<String, (String, Allowed)>,
    /// Clones that were not answered.
    cloning: BTreeMap<String, Rc<Vec<u64>>>,
    /// Objects whose deletion was not answered.
    deleting: Vec<String>,
    /// The last value that was written, and the last number of a name.
    stamp: u64,
    name: u64,
}

type Shared = Rc<RefCell<Model>>;

fn pattern(value: u64, sectors: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(sectors as usize * SECTOR);
    buffer.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    buffer
}

/// Returns the value of each sector, which is torn nowhere.
fn values_of(data: &[u8]) -> Vec<u64> {
    let of = |sector: &[u8]| {
        let value = &sector[..8];
        assert!(sector.chunks_exact(8).all(|word| word == value), "a sector is torn");
        u64::from_le_bytes(value.try_into().expect("8 bytes"))
    };
    data.chunks_exact(SECTOR).map(of).collect()
}

async fn read_all(store: &PoolVolume) -> Vec<u64> {
    let data = expected(store.read(Extent::new(0, SECTORS)).wait().await).await;
    values_of(&data.into_buffer())
}

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
        let kind = self.rng.below(10);
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
                _ => pool.maintain_once().await,
            };
            match result {
                Err(
                    PoolError::Invalid(_)
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
        let is_clean = checked.findings.is_empty() && others.count() == 0;
        assert!(is_clean, "seed {}: {checked:#?}", self.seed);
    }

    /// Opens the pool, compares everything with the model, and carries out steps of clients.
    async fn live(&mut self, steps: u64, is_last: bool) {
        note(format_args!("the pool is opened"));
        let pool = self.open(is_last).await;
        if self.rng.chance(30) {
            pool.set_memory(0);
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
        let of_rng = self.rng.below(6);
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
        let range = first..first + length;
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
        let state = pool.shared.state.read();
        let data = state.space.slabs_of(crate::shape::SlabKind::Data);
        let used: u32 = data.iter().map(|&slab| state.space.used(slab)).sum();
        assert_eq!(used, 0, "seed {}: chunks are used by nothing", self.seed);
    }
}

impl Known {
    fn new(id: VolumeId, content: &[u64]) -> Self {
        Self {
            id,
            sectors: content.iter().map(|&value| Sector::of(value)).collect(),
            busy: Vec::new(),
            store: None,
            is_locked: false,
            set_back: None,
        }
    }
}

impl Model {
    fn name(&mut self, kind: &str) -> String {
        self.name += 1;
        format!("{kind}{}", self.name)
    }
}

/// Prints an event of a history, if one seed is repeated.
fn note(event: std::fmt::Arguments<'_>) {
    if std::env::var("SARSEN_SEED").is_ok_and(|seeds| !seeds.contains('-')) {
        eprintln!("{event}");
    }
}

thread_local! {
    /// The devices of this history fail now.
    static IS_FAILING: Cell<bool> = const { Cell::new(false) };
}

/// Returns a result. An error is accepted only if devices fail: then the client waits until the power fails.
async fn expected<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => {
            assert!(IS_FAILING.get(), "{error}");
            note(format_args!("a client ends: {error}"));
            std::future::pending().await
        }
    }
}

/// Accepts a lack of space.
async fn tolerate<T>(result: Result<T, PoolError>) -> Option<T> {
    match result {
        Err(PoolError::NoSpace) => None,
        result => Some(expected(result).await),
    }
}

async fn create(model: Shared, pool: Pool, kind: u64) {
    let name = model.borrow_mut().name("v");
    let devices = pool.devices().iter().filter(|device| !device.is_leaving).count() as u8;
    let (copies, stripes) = ((1 + kind as u8 % 3).min(devices), 1 + kind as u8 / 3);
    let size = SECTORS * SECTOR as u64;
    let new = NewVolume { copies, stripes, ..volume(&name, size, BlockSize::B512) };
    let created = match pool.create_volume(&new).await {
        // Devices have left meanwhile.
        Err(PoolError::Invalid(_)) => return,
        created => tolerate(created).await,
    };
    let Some(id) = created else { return };
    let mut known = Known::new(id, &vec![0; SECTORS as usize]);
    known.store = Some(expected(pool.open_volume(id).await).await);
    model.borrow_mut().volumes.insert(name, known);
}

async fn snapshot(model: Shared, pool: Pool, volume: String) {
    let (name, id) = {
        let mut model = model.borrow_mut();
        let name = model.name("s");
        let known = model.volumes.get(&volume).filter(|known| !known.is_locked);
        let Some(known) = known else { return };
        let allowed = known.sectors.iter().map(|sector| {
            let others = sector.writing.iter().chain(&sector.failed).copied();
            std::iter::once(sector.now()).chain(others).collect()
        });
        let (id, allowed) = (known.id, allowed.collect());
        model.beginning.insert(name.clone(), (volume.clone(), allowed));
        (name, id)
    };
    note(format_args!("{volume}: snapshot {name}"));
    let created = tolerate(pool.snapshot(&[(id, label(&name))], false).await).await;
    let Some(id) = created.map(|ids| ids[0]) else {
        model.borrow_mut().beginning.remove(&name);
        return;
    };
    let store = expected(pool.open_volume(id).await).await;
    note(format_args!("{volume}: snapshot {name} is there"));
    let content = read_all(&store).await;
    let mut model = model.borrow_mut();
    let (_, allowed) = model.beginning.remove(&name).expect("it was beginning");
    for (lba, (value, allowed)) in content.iter().zip(&allowed).enumerate() {
        assert!(
            allowed.contains(value),
            "sector {lba} of snapshot {name} of {volume} has {value}, not one of {allowed:?}"
        );
    }
    model.snapshots.insert(name, (id, Rc::new(content)));
}

async fn clone(model: Shared, pool: Pool, snapshot: String) {
    let (name, id, content) = {
        let mut model = model.borrow_mut();
        let name = model.name("c");
        let Some((id, content)) = model.snapshots.get(&snapshot).cloned() else { return };
        model.cloning.insert(name.clone(), content.clone());
        (name, id, content)
    };
    note(format_args!("{name} is cloned from {snapshot}"));
    let created = match pool.clone_of(id, &label(&name)).await {
        // Another client has deleted it meanwhile.
        Err(PoolError::NotFound) => None,
        created => tolerate(created).await,
    };
    let mut known = match created {
        Some(id) => Known::new(id, &content),
        None => return drop(model.borrow_mut().cloning.remove(&name)),
    };
    known.store = Some(expected(pool.open_volume(known.id).await).await);
    let mut model = model.borrow_mut();
    model.cloning.remove(&name);
    model.volumes.insert(name, known);
}

async fn delete_snapshot(model: Shared, pool: Pool, name: String) {
    let id = {
        let mut model = model.borrow_mut();
        let Some(&(id, _)) = model.snapshots.get(&name) else { return };
        if model.deleting.contains(&name) {
            return;
        }
        model.deleting.push(name.clone());
        id
    };
    note(format_args!("snapshot {name} is deleted"));
    match pool.delete(id).await {
        // Another client reads it.
        Err(PoolError::InUse | PoolError::Protected | PoolError::Invalid(_)) => {}
        deleted => {
            expected(deleted).await;
            model.borrow_mut().snapshots.remove(&name);
        }
    }
    model.borrow_mut().deleting.retain(|other| *other != name);
}

/// Deletes a volume, or sets it back to a snapshot.
async fn replace(model: Shared, pool: Pool, name: String, snapshot: Option<String>) {
    let (id, to) = {
        let mut model = model.borrow_mut();
        let to = snapshot.and_then(|name| model.snapshots.get(&name).cloned());
        let is_source = model.beginning.values().any(|(volume, _)| *volume == name);
        let Some(known) = model.volumes.get_mut(&name) else { return };
        if !known.busy.is_empty() || is_source || known.is_locked {
            return;
        }
        (known.is_locked, known.store) = (true, None);
        known.set_back = to.as_ref().map(|(_, content)| content.clone());
        let id = known.id;
        if to.is_none() {
            model.deleting.push(name.clone());
        }
        (id, to)
    };
    note(format_args!("{name}: replaced by {:?}", to.as_ref().map(|to| to.0)));
    let result = match &to {
        Some((snapshot, _)) => pool.roll_back(id, *snapshot).await,
        None => pool.delete(id).await,
    };
    note(format_args!("{name}: replaced: {result:?}"));
    let done = match result {
        Ok(()) => true,
        // A flush has it open, the snapshot is gone, or there is no space.
        Err(
            PoolError::InUse
            | PoolError::Protected
            | PoolError::Invalid(_)
            | PoolError::NotFound
            | PoolError::NoSpace,
        ) => false,
        Err(error) => return expected(Err(error)).await,
    };
    if done && to.is_none() {
        let mut model = model.borrow_mut();
        model.volumes.remove(&name);
        model.deleting.retain(|other| *other != name);
        return;
    }
    let store = expected(pool.open_volume(id).await).await;
    let mut model = model.borrow_mut();
    model.deleting.retain(|other| *other != name);
    let known = model.volumes.get_mut(&name).expect("it is there");
    (known.is_locked, known.set_back, known.store) = (false, None, Some(store));
    if let (true, Some((_, content))) = (done, to) {
        known.sectors = content.iter().map(|&value| Sector::of(value)).collect();
    }
}

/// Returns the open store of a volume.
fn store_of(model: &Shared, name: &str) -> Option<Arc<PoolVolume>> {
    model.borrow().volumes.get(name)?.store.clone()
}

async fn flush(model: Shared, name: String) {
    let Some(store) = store_of(&model, &name) else { return };
    let before: Vec<u64> = {
        let mut model = model.borrow_mut();
        let known = model.volumes.get_mut(&name).expect("it is there");
        known.busy.push(0..0);
        known.sectors.iter().map(Sector::number).collect()
    };
    note(format_args!("{name}: flush"));
    expected(store.flush().wait().await).await;
    note(format_args!("{name}: flushed"));
    drop(store);
    let mut model = model.borrow_mut();
    let known = model.volumes.get_mut(&name).expect("it is there");
    for (sector, before) in known.sectors.iter_mut().zip(before) {
        // What is older than the last value before the flush is gone.
        sector.values.retain(|&(number, _)| number >= before);
    }
    release(known, &(0..0));
}

fn release(known: &mut Known, range: &Range<u64>) {
    if let Some(at) = known.busy.iter().position(|busy| busy == range) {
        known.busy.swap_remove(at);
    }
}

async fn read(model: Shared, name: String, range: Range<u64>) {
    let Some(store) = store_of(&model, &name) else { return };
    let extent = Extent::new(range.start, range.end - range.start);
    let data = expected(store.read(extent).wait().await).await;
    let mut model = model.borrow_mut();
    let known = model.volumes.get_mut(&name).expect("it is there");
    for (lba, value) in range.clone().zip(values_of(&data.into_buffer())) {
        let sector = &mut known.sectors[lba as usize];
        assert!(sector.may_be_now(value), "sector {lba} of {name} has {value}, not {sector:?}");
    }
    release(known, &range);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Volatile,
    Durable,
    Unmap,
    Zero,
}

async fn change(model: Shared, name: String, range: Range<u64>, write: Write) {
    let Some(store) = store_of(&model, &name) else { return };
    let is_data = matches!(write, Write::Volatile | Write::Durable);
    let (number, value) = {
        let model = &mut *model.borrow_mut();
        model.stamp += 1;
        // A request that is dropped is always one with data.
        if !is_data && model.stamp.is_multiple_of(40) {
            model.stamp += 1;
        }
        let number = model.stamp;
        let value = if is_data { number } else { 0 };
        let known = model.volumes.get_mut(&name).expect("it is there");
        for sector in &mut known.sectors[range.start as usize..range.end as usize] {
            sector.writing = Some(value);
        }
        // A snapshot that is being created may have it or not.
        for (volume, allowed) in model.beginning.values_mut() {
            if *volume == name {
                let allowed = &mut allowed[range.start as usize..range.end as usize];
                allowed.iter_mut().for_each(|allowed| allowed.push(value));
            }
        }
        (number, value)
    };
    note(format_args!("{name}: {range:?} = {value} by {write:?}"));
    let extent = Extent::new(range.start, range.end - range.start);
    let data = pattern(value, extent.block_count);
    if number.is_multiple_of(40) {
        // A client that loses its connection drops a request that a device carries out. It has its range until the end.
        let durability = Durability::Volatile;
        if let Io::Pending(mut request) = store.write(extent, data.into(), durability) {
            let _pending = poll_once(&mut request);
        }
        return;
    }
    let result = match write {
        Write::Volatile => store.write(extent, data.into(), Durability::Volatile).wait().await,
        Write::Durable => store.write(extent, data.into(), Durability::Durable).wait().await,
        Write::Unmap => store.unmap(extent).wait().await,
        Write::Zero => store.write_zeroes(extent, Durability::Durable).wait().await,
    };
    drop(store);
    note(format_args!("{name}: {range:?} = {value}: {result:?}"));
    let result = match result {
        Err(BlockError::NoSpace { .. }) => Err(()),
        result => {
            expected(result).await;
            Ok(())
        }
    };
    let mut model = model.borrow_mut();
    let known = model.volumes.get_mut(&name).expect("it is there");
    for sector in &mut known.sectors[range.start as usize..range.end as usize] {
        sector.writing = None;
        match &result {
            Ok(()) => {
                // A power failure may bring the part of a failed write that was in place.
                let failed = sector.failed.drain(..).map(|value| (number, value));
                sector.values.extend(failed);
                sector.values.push((number, value));
                if matches!(write, Write::Durable | Write::Zero) {
                    sector.values = vec![(number, value)];
                }
            }
            // Zeroes in a part of a shared piece need space, too.
            Err(()) => sector.failed.push(value),
        }
    }
    release(known, &range);
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
