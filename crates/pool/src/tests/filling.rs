//! Volumes that are filled from an image, with the power failing in the middle: after each start, the volume has what the
//! image has, and what its clients wrote.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use sarsen_block::{
    Allocation, BlockError, BlockSize, Buffer, Data, Durability, Extent, Io, Rng, Store,
};

use super::device::SimulatedDevice;
use super::runner::{LocalTasks, end_all, poll_once, run, run_until};
use super::{is_clean, label, new_pool, stores, volume};
use crate::format::{VERSION, VERSION_WHOLE};
use crate::opening::read_superblock;
use crate::{FillError, FillingVolume, Image, Pool, PoolError, VolumeId};

const SECTOR: usize = 512;

/// An image in memory, which answers after some time.
struct MemoryImage {
    bytes: Vec<u8>,
    is_failing: AtomicBool,
    /// Reads wait as long as this is set.
    is_slow: Arc<AtomicBool>,
}

impl MemoryImage {
    fn new(values: &[u64]) -> Arc<Self> {
        let bytes = values.iter().flat_map(|&value| pattern(value)).collect();
        Arc::new(Self { bytes, is_failing: AtomicBool::new(false), is_slow: Arc::default() })
    }

    fn answer<T: 'static>(&self, value: T) -> Io<io::Result<T>> {
        let fails = self.is_failing.load(Ordering::Relaxed);
        Io::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            if fails { Err(io::Error::other("the image cannot be read")) } else { Ok(value) }
        }))
    }
}

impl Image for MemoryImage {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, offset: u64, length: usize) -> Io<io::Result<Data>> {
        let bytes = &self.bytes[offset as usize..offset as usize + length];
        let (answer, is_slow) = (self.answer(Buffer::copy_of(bytes).into()), self.is_slow.clone());
        Io::Pending(Box::pin(async move {
            while is_slow.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            answer.wait().await
        }))
    }

    fn next_data(&self, offset: u64) -> Io<io::Result<Option<u64>>> {
        let rest = self.bytes[offset as usize..].iter().position(|&byte| byte != 0);
        // Clusters of 4 KiB.
        let start = |at: usize| offset.max((offset + at as u64) & !4095);
        self.answer(rest.map(start))
    }
}

fn pattern(value: u64) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector.chunks_mut(8).for_each(|part| part.copy_from_slice(&value.to_le_bytes()));
    sector
}

fn values_of(data: &[u8]) -> Vec<u64> {
    let value = |sector: &[u8]| {
        let value = u64::from_le_bytes(*sector.first_chunk().expect("a sector"));
        assert!(sector == pattern(value), "a sector has parts of two writes");
        value
    };
    data.chunks(SECTOR).map(value).collect()
}

/// The contents that a sector may have.
#[derive(Clone, Debug)]
struct Sector {
    /// After a power failure: what the last flush made durable, and what was acknowledged since then, with numbers.
    values: Vec<(u64, u64)>,
    /// What a request has that was not answered, or failed.
    maybe: Vec<u64>,
}

impl Sector {
    fn of(value: u64) -> Self {
        Self { values: vec![(0, value)], maybe: Vec::new() }
    }

    fn may_be(&self, value: u64) -> bool {
        self.values.last().is_some_and(|last| last.1 == value) || self.maybe.contains(&value)
    }

    fn may_be_after_crash(&self, value: u64) -> bool {
        self.values.iter().any(|known| known.1 == value) || self.maybe.contains(&value)
    }
}

#[derive(Default)]
struct Model {
    sectors: Vec<Sector>,
    busy: Vec<Range<usize>>,
    stamp: u64,
}

type Shared = Rc<RefCell<Model>>;

/// Carries out one request at a place where no other one is under way.
async fn request(model: Shared, store: Arc<dyn Store>, place: Range<usize>, kind: u64) {
    let extent = Extent::new(place.start as u64, place.len() as u64);
    if kind < 40 {
        let run = store.allocation(extent).wait().await;
        let read = store.read(extent).wait().await;
        let model = model.borrow();
        let sectors = &model.sectors[place.clone()];
        if let Ok(read) = read {
            let values = values_of(&read.into_buffer());
            for (at, (value, sector)) in values.into_iter().zip(sectors).enumerate() {
                assert!(sector.may_be(value), "sector {}: {value}, {sector:?}", place.start + at);
            }
        }
        if let Ok(run) = run
            && run.allocation == Allocation::Deallocated
        {
            let is_zero = |sector: &Sector| sector.may_be(0);
            assert!(sectors[..run.block_count as usize].iter().all(is_zero), "{place:?}: {run:?}");
        }
        return;
    }
    let is_write = kind < 75;
    let value = if is_write {
        model.borrow_mut().stamp += 1;
        model.borrow().stamp
    } else {
        0
    };
    model.borrow_mut().sectors[place.clone()].iter_mut().for_each(|one| one.maybe.push(value));
    let durability =
        if kind.is_multiple_of(5) { Durability::Durable } else { Durability::Volatile };
    let done = if is_write {
        let data: Vec<u8> = place.clone().flat_map(|_| pattern(value)).collect();
        store.write(extent, Buffer::copy_of(&data).into(), durability).wait().await
    } else if kind.is_multiple_of(2) {
        store.unmap(extent).wait().await
    } else {
        store.write_zeroes(extent, durability).wait().await
    };
    match done {
        Ok(()) => {
            let mut model = model.borrow_mut();
            model.stamp += 1;
            let number = model.stamp;
            let is_durable = durability == Durability::Durable && (is_write || kind % 2 == 1);
            for sector in &mut model.sectors[place] {
                sector.maybe.clear();
                if is_durable {
                    sector.values.clear();
                }
                sector.values.push((number, value));
            }
        }
        // Some of it may have been written: then it is possible from now on.
        Err(BlockError::Medium { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

async fn flush(model: Shared, store: Arc<dyn Store>) {
    let before = model.borrow().stamp;
    store.flush().wait().await.expect("flushed");
    for sector in &mut model.borrow_mut().sectors {
        let last = sector.values.iter().rposition(|known| known.0 <= before);
        sector.values.drain(..last.unwrap_or(0));
    }
}

async fn fill(filling: &FillingVolume) -> Result<(), FillError> {
    while filling.fill_some().await? {}
    Ok(())
}

/// One client: requests at random places.
async fn client(model: Shared, store: Arc<dyn Store>, mut rng: Rng, steps: u64) {
    for _ in 0..steps {
        if rng.chance(10) {
            flush(model.clone(), store.clone()).await;
            continue;
        }
        let all = model.borrow().sectors.len();
        let start = rng.below(all as u64) as usize;
        let longest = [8, 64, 600][rng.below(3) as usize];
        let place = start..all.min(start + 1 + rng.below(longest) as usize);
        let is_free = |other: &Range<usize>| other.end <= place.start || place.end <= other.start;
        if !model.borrow().busy.iter().all(is_free) {
            tokio::task::yield_now().await;
            continue;
        }
        model.borrow_mut().busy.push(place.clone());
        request(model.clone(), store.clone(), place.clone(), rng.below(100)).await;
        model.borrow_mut().busy.retain(|other| *other != place);
    }
}

/// Opens the volume as it is, compares it with the model, and runs clients, with the filling beside them.
async fn live(
    devices: Vec<Arc<SimulatedDevice>>,
    image: Arc<MemoryImage>,
    model: Shared,
    mut rng: Rng,
    is_last: bool,
) -> Pool {
    let pool = Pool::open(stores(&devices), LocalTasks::shared()).await.expect("opened");
    let info = pool.volumes().remove(0);
    let filling = match info.image_size {
        Some(_) => {
            let opened = pool.open_filling(info.id, image.clone()).await;
            Some(Arc::new(opened.expect("opened")))
        }
        None => None,
    };
    let store: Arc<dyn Store> = match &filling {
        Some(filling) => filling.clone(),
        None => pool.open_volume(info.id).await.expect("opened"),
    };
    {
        let size = store.geometry().block_count as usize;
        model.borrow_mut().sectors.resize(size, Sector::of(0));
        let all = store.read(Extent::new(0, size as u64)).wait().await.expect("read");
        let mut model = model.borrow_mut();
        model.busy.clear();
        for (at, value) in values_of(&all.into_buffer()).into_iter().enumerate() {
            let sector = &model.sectors[at];
            assert!(sector.may_be_after_crash(value), "sector {at} has {value}: {sector:?}");
            model.sectors[at] = Sector::of(value);
        }
    }
    let is_filling = Cell::new(filling.is_some());
    let mut tasks: FuturesUnordered<LocalBoxFuture<'_, ()>> = FuturesUnordered::new();
    if rng.chance(30) {
        let (polls, size) = (rng.below(300), store.geometry().block_count + 1 + rng.below(200));
        let (store, model) = (store.clone(), model.clone());
        tasks.push(Box::pin(async move {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            store.resize(size).wait().await.expect("grown");
            model.borrow_mut().sectors.resize(size as usize, Sector::of(0));
        }));
    }
    for _ in 0..3 {
        let steps = rng.below(150);
        let own = Rng::new(rng.below(u64::MAX));
        tasks.push(Box::pin(client(model.clone(), store.clone(), own, steps)));
    }
    if let Some(filling) = &filling {
        let failures = rng.below(4);
        let is_filling = &is_filling;
        let image = image.clone();
        tasks.push(Box::pin(async move {
            for failure in 0..=failures {
                image.is_failing.store(failure < failures, Ordering::Relaxed);
                match fill(filling).await {
                    Ok(()) => break,
                    Err(FillError::Image(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(filling.progress().is_none(), "it is filled");
            is_filling.set(false);
        }));
    }
    while tasks.next().await.is_some() {}
    drop(tasks);
    assert!(!is_filling.get());
    if is_last {
        drop((store, filling));
        assert_eq!(pool.volumes()[0].image_size, None);
    }
    pool
}

fn history(seed: u64) {
    let mut rng = Rng::new(seed);
    let devices = [0, 1].map(|number| SimulatedDevice::new(16 << 20, seed * 2 + number));
    let chunk_size: u32 = [16 << 10, 64 << 10][rng.below(2) as usize];
    // Runs of zeroes and of data.
    let mut values: Vec<u64> = Vec::new();
    let image_sectors = 1000 + rng.below(2500);
    while (values.len() as u64) < image_sectors {
        let (length, is_zero) = (1 + rng.below(300), rng.chance(40));
        let value = |at| if is_zero { 0 } else { 1_000_000 + at };
        let first = values.len() as u64;
        values.extend((first..first + length).map(value));
    }
    values.truncate(image_sectors as usize);
    let image = MemoryImage::new(&values);
    let model = Shared::default();
    let size = image_sectors + [0, 1 + rng.below(500)][rng.below(2) as usize];
    values.resize(size as usize, 0);
    model.borrow_mut().sectors = values.into_iter().map(Sector::of).collect();
    run(&devices, async {
        let pool = Pool::create(&new_pool(&devices, chunk_size), LocalTasks::shared()).await;
        let mut new = volume("v", size * SECTOR as u64, BlockSize::B512);
        new.image_size = Some(image.size());
        (new.has_checksums, new.stripes) = (rng.chance(50), 1 + rng.below(2) as u8);
        pool.expect("a pool").create_volume(&new).await.expect("created");
    });
    for life in 0..5 {
        let requests = if life == 4 { u64::MAX } else { 1 + rng.below(600) };
        image.is_failing.store(false, Ordering::Relaxed);
        let own = Rng::new(rng.below(u64::MAX));
        let lived = live(devices.to_vec(), image.clone(), model.clone(), own, life == 4);
        let ended = run_until(&devices, requests, lived);
        if life < 4 {
            end_all(ended);
            devices.iter().for_each(|device| device.crash());
            continue;
        }
        let pool = ended.expect("it ends");
        run(&devices, async {
            pool.checkpoint().await.expect("written");
            is_clean(&devices).await;
            // It is a volume like any other: its image is not needed any more.
            let id = pool.volumes()[0].id;
            let snapshot = pool.snapshot(&[(id, label("s"))], false).await.expect("created")[0];
            pool.clone_of(snapshot, &label("c")).await.expect("cloned");
            let store = pool.open_volume(id).await.expect("opened");
            let all = Extent::new(0, store.geometry().block_count);
            let read = store.read(all).wait().await.expect("read").into_buffer();
            let model = model.borrow();
            for (at, value) in values_of(&read).into_iter().enumerate() {
                assert!(model.sectors[at].may_be(value), "sector {at} has {value}");
            }
        });
    }
}

#[test]
fn filling_keeps_the_image_and_all_writes_across_power_failures() {
    let seeds = match std::env::var("SARSEN_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..60,
    };
    for seed in seeds {
        println!("SARSEN_SEED={seed}");
        history(seed);
    }
}

/// Creates a volume that is larger than its image by so many bytes.
async fn filling_volume(
    devices: &[Arc<SimulatedDevice>],
    image: &MemoryImage,
    more: u64,
) -> (Pool, VolumeId) {
    let pool = Pool::create(&new_pool(devices, 64 << 10), LocalTasks::shared()).await;
    let pool = pool.expect("a pool");
    let new = crate::NewVolume {
        image_size: Some(image.size()),
        ..volume("v", image.size() + more, BlockSize::B512)
    };
    let id = pool.create_volume(&new).await.expect("created");
    (pool, id)
}

#[test]
fn volume_that_is_being_filled_is_used_in_no_other_way() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    let image = MemoryImage::new(&(1..2049).collect::<Vec<_>>());
    run(&devices, async {
        let (pool, id) = filling_volume(&devices, &image, 1 << 20).await;
        let version = async || read_superblock(&*devices[0]).await.expect("read").0.version.get();
        assert_eq!(version().await, VERSION, "older programs do not open the pool");
        is_clean(&devices).await;
        let new =
            crate::NewVolume { image_size: Some(1 << 20), ..volume("w", 1 << 19, BlockSize::B512) };
        let too_small = pool.create_volume(&new).await;
        assert!(matches!(too_small, Err(PoolError::Invalid(_))), "{too_small:?}");
        assert!(matches!(pool.open_volume(id).await, Err(PoolError::Filling)));
        let other = pool.create_volume(&volume("w", 1 << 20, BlockSize::B512)).await;
        let of_other = pool.snapshot(&[(other.expect("created"), label("s"))], false).await;
        let of_other = of_other.expect("created")[0];
        let snapshot = pool.snapshot(&[(id, label("s"))], false).await;
        assert!(matches!(snapshot, Err(PoolError::Filling)), "{snapshot:?}");
        let set_back = pool.roll_back(id, of_other).await;
        assert!(matches!(set_back, Err(PoolError::Filling)), "{set_back:?}");
        let changed = pool.open_filling(id, MemoryImage::new(&[1; 100])).await;
        assert!(matches!(changed, Err(PoolError::Invalid(_))), "it is another image");
        let filling = pool.open_filling(id, image.clone()).await.expect("opened");
        let shrunk = filling.resize(2048).wait().await.expect_err("refused").to_string();
        assert!(shrunk.contains("still being filled"), "{shrunk}");
        let store: Arc<dyn Store> = Arc::new(filling);
        assert!(store.shareable().is_none());
        drop(store);
        // Its deletion needs no image, and ends the need of the newer format.
        pool.delete(id).await.expect("deleted");
        pool.maintain_once().await.expect("deleted");
        pool.checkpoint().await.expect("written");
        assert_eq!(version().await, VERSION_WHOLE);
        is_clean(&devices).await;
    });
}

#[test]
fn image_that_cannot_be_read_stops_the_filling_and_only_reads_that_need_it() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    let image = MemoryImage::new(&(1..2049).collect::<Vec<_>>());
    run(&devices, async {
        let (pool, id) = filling_volume(&devices, &image, 1 << 20).await;
        let filling = pool.open_filling(id, image.clone()).await.expect("opened");
        image.is_failing.store(true, Ordering::Relaxed);
        let chunk = Extent::new(128, 128);
        let data = Buffer::copy_of(&[9; 64 << 10]);
        let whole = filling.write(chunk, data.into(), Durability::Durable).wait().await;
        whole.expect("it needs nothing of the image");
        filling.read(chunk).wait().await.expect("it is in the pool");
        let both = filling.read(Extent::new(128, 256)).wait().await.expect_err("not readable");
        let BlockError::Medium { lba, .. } = both else { panic!("{both}") };
        assert_eq!(lba.0, 256, "the first block that needs the image");
        filling.read(Extent::new(2048, 2048)).wait().await.expect("it lies behind the image");
        let stopped = fill(&filling).await;
        assert!(matches!(stopped, Err(FillError::Image(_))), "{stopped:?}");
        image.is_failing.store(false, Ordering::Relaxed);
        assert!(filling.progress().is_some());
        fill(&filling).await.expect("filled");
        assert_eq!(filling.progress(), None);
        image.is_failing.store(true, Ordering::Relaxed);
        let read = filling.read(Extent::new(0, 256)).wait().await.expect("read").into_buffer();
        let expected: Vec<u64> = (1..129).collect();
        assert_eq!(values_of(&read[..64 << 10]), expected);
        assert_eq!(read[64 << 10..], [9; 64 << 10]);
    });
}

#[test]
fn filling_ends_after_the_changes_that_need_the_image() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    // Its second chunk is zero: only a change copies it.
    let values: Vec<u64> = (0..256).map(|at| if at < 128 { at + 1 } else { 0 }).collect();
    let image = MemoryImage::new(&values);
    run(&devices, async {
        let (pool, id) = filling_volume(&devices, &image, 1 << 20).await;
        let filling = pool.open_filling(id, image.clone()).await.expect("opened");
        assert!(filling.fill_some().await.expect("filled"), "it has not ended");
        let write = |lba: u64, byte: u8| {
            let data = Buffer::copy_of(&[byte; SECTOR]);
            filling.write(Extent::new(lba, 1), data.into(), Durability::Volatile).wait()
        };
        image.is_slow.store(true, Ordering::Relaxed);
        let mut first = Box::pin(write(130, 1));
        assert!(poll_once(&mut first).is_pending(), "it waits for the image");
        let mut end = Box::pin(filling.fill_some());
        for _ in 0..100 {
            assert!(poll_once(&mut first).is_pending());
            assert!(poll_once(&mut end).is_pending(), "it waits for the change");
            tokio::task::yield_now().await;
        }
        // Otherwise the first one would overwrite it with what the image has.
        let mut second = Box::pin(write(131, 2));
        for _ in 0..100 {
            assert!(poll_once(&mut second).is_pending());
            tokio::task::yield_now().await;
        }
        image.is_slow.store(false, Ordering::Relaxed);
        let (first, second, end) = futures_util::future::join3(first, second, end).await;
        first.expect("written");
        second.expect("written");
        assert!(!end.expect("filled"));
        let read = filling.read(Extent::new(130, 2)).wait().await.expect("read").into_buffer();
        assert_eq!(read[..], [[1; SECTOR], [2; SECTOR]].concat());
    });
}

#[test]
fn filling_ends_after_the_reads_that_need_the_image() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    // Its first chunk is zero, and stays in the image.
    let values: Vec<u64> = (0..256).map(|at| if at < 128 { 0 } else { at }).collect();
    let image = MemoryImage::new(&values);
    run(&devices, async {
        let (pool, id) = filling_volume(&devices, &image, 1 << 20).await;
        let filling = pool.open_filling(id, image.clone()).await.expect("opened");
        assert!(filling.fill_some().await.expect("filled"), "it has not ended");
        image.is_slow.store(true, Ordering::Relaxed);
        let mut read = Box::pin(filling.read(Extent::new(0, 256)).wait());
        assert!(poll_once(&mut read).is_pending(), "it waits for the image");
        let mut end = Box::pin(filling.fill_some());
        for _ in 0..100 {
            assert!(poll_once(&mut read).is_pending());
            // Otherwise what is removed from the second chunk meanwhile would be read from the image.
            assert!(poll_once(&mut end).is_pending(), "it waits for the read");
            tokio::task::yield_now().await;
        }
        image.is_slow.store(false, Ordering::Relaxed);
        let (read, end) = futures_util::future::join(read, end).await;
        assert_eq!(values_of(&read.expect("read").into_buffer()), values);
        assert!(!end.expect("filled"));
    });
}

#[test]
fn volume_that_was_opened_before_the_end_of_its_filling_uses_the_image_no_more() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    let values: Vec<u64> = (1..257).collect();
    let image = MemoryImage::new(&values);
    run(&devices, async {
        let (pool, id) = filling_volume(&devices, &image, 1 << 20).await;
        let before = pool.open_filling(id, image.clone()).await.expect("opened");
        let mut late = Box::pin(before.fill_some());
        assert!(poll_once(&mut late).is_pending(), "it looks for data in the image");
        let again = pool.open_filling(id, image.clone()).await.expect("opened");
        fill(&again).await.expect("filled");
        again.unmap(Extent::new(0, 256)).wait().await.expect("unmapped");
        late.await.expect("nothing is left to do");
        let data = Buffer::copy_of(&pattern(7));
        before
            .write(Extent::new(130, 1), data.into(), Durability::Volatile)
            .wait()
            .await
            .expect("written");
        for store in [&before, &again] {
            let read = store.read(Extent::new(0, 256)).wait().await.expect("read").into_buffer();
            let expected: Vec<u64> = (0..256).map(|at| if at == 130 { 7 } else { 0 }).collect();
            assert_eq!(values_of(&read), expected);
        }
        assert_eq!((before.progress(), again.progress()), (None, None));
        assert!(!before.fill_some().await.expect("it is filled"));
        assert_eq!(Arc::strong_count(&image), 1, "both have closed it");
    });
}

#[test]
fn volume_may_grow_while_its_last_chunk_is_filled() {
    let devices = [SimulatedDevice::new(24 << 20, 1)];
    let values: Vec<u64> = (1..201).collect();
    let image = MemoryImage::new(&values);
    run(&devices, async {
        let (pool, id) = filling_volume(&devices, &image, 0).await;
        let filling = pool.open_filling(id, image.clone()).await.expect("opened");
        image.is_slow.store(true, Ordering::Relaxed);
        let mut filled = Box::pin(fill(&filling));
        for _ in 0..100 {
            assert!(poll_once(&mut filled).is_pending(), "it reads the image");
            tokio::task::yield_now().await;
        }
        filling.resize(256).wait().await.expect("grown");
        image.is_slow.store(false, Ordering::Relaxed);
        filled.await.expect("filled");
        let read = filling.read(Extent::new(0, 256)).wait().await.expect("read").into_buffer();
        assert_eq!(values_of(&read), [values, vec![0; 56]].concat());
    });
}

#[test]
fn full_pool_stops_the_filling_until_there_is_space() {
    let devices = [SimulatedDevice::new(16 << 20, 1)];
    let values: Vec<u64> = (1..4097).collect();
    let image = MemoryImage::new(&values);
    run(&devices, async {
        let (pool, id) = filling_volume(&devices, &image, 1 << 20).await;
        let filling = pool.open_filling(id, image.clone()).await.expect("opened");
        assert!(filling.fill_some().await.expect("filled"), "it has not ended");
        let other = pool.create_volume(&volume("w", 16 << 20, BlockSize::B512)).await;
        let other = other.expect("created");
        let store = pool.open_volume(other).await.expect("opened");
        let write = |store: &dyn Store, lba: u64, byte: u8| {
            let data = Buffer::copy_of(&[byte; 64 << 10]);
            store.write(Extent::new(lba, 128), data.into(), Durability::Volatile).wait()
        };
        let mut lba = 0;
        while write(&*store, lba, 7).await.is_ok() {
            lba += 128;
        }
        let full = fill(&filling).await;
        assert!(matches!(full, Err(FillError::Pool(PoolError::NoSpace))), "{full:?}");
        // The last one is not filled. A part of it is not there without the rest.
        for (lba, is_there) in [(0, true), (4096 - 64, false)] {
            let written = write(&filling, lba, 8).await;
            assert_eq!(written.is_ok(), is_there, "{lba}: {written:?}");
        }
        let is_right = async || {
            let read = filling.read(Extent::new(128, 4096 - 128)).wait().await.expect("read");
            assert_eq!(values_of(&read.into_buffer()), values[128..]);
        };
        is_right().await;
        drop(store);
        pool.delete(other).await.expect("deleted");
        pool.maintain_once().await.expect("deleted");
        fill(&filling).await.expect("filled");
        assert_eq!(filling.progress(), None);
        is_right().await;
        pool.checkpoint().await.expect("written");
    });
    run(&devices, is_clean(&devices));
}
