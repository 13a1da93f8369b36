use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sarsen_block::layers::{Fault, Faults, FaultyStore, Times};
use sarsen_block::{Layer, MemoryStore, Reply, Request};

use super::super::{OpenStore, replay, run};
use super::*;
use crate::access::AccessPattern;
use crate::trace::Request as Traced;

const BLOCKS: u64 = 2048;

fn options(endpoint: impl Into<Endpoint>, read_percent: u8) -> LoadOptions {
    let access =
        AccessPattern { block_bytes: 4096, read_percent, random_percent: 100, queue_depth: 8 };
    let mut options = LoadOptions::new(endpoint.into(), access);
    options.warm_up = Duration::from_millis(10);
    options.duration = Duration::from_millis(100);
    options
}

fn memory(store: impl Store + 'static) -> Endpoint {
    Endpoint::Memory(OpenStore::new(Arc::new(store)))
}

fn memory_store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(BlockSize::B512, BLOCKS))
}

/// A store that responds later and in another order, and counts its open requests.
struct Late {
    inner: Arc<dyn Store>,
    open: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
}

impl Late {
    fn new() -> Self {
        let inner = memory_store();
        Self { inner, open: Arc::default(), most: Arc::default() }
    }
}

impl Layer for Late {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn handle<T: 'static>(
        &self,
        _: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        let now = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        let open = self.open.clone();
        let reply = submit(&*self.inner);
        Answer::pending(async move {
            for _ in 0..now {
                tokio::task::yield_now().await;
            }
            open.fetch_sub(1, Ordering::Relaxed);
            reply.wait().await
        })
    }
}

#[test]
fn memory_is_read_and_written_and_all_of_it_is_verified() {
    let mut options = options(Endpoint::Memory(OpenStore::ram(BLOCKS * 512).unwrap()), 50);
    options.verify = true;
    options.sessions = 2;
    let result = run(&options).unwrap();
    assert!(result.ios > 100, "{result:?}");
    assert_eq!((result.errors, result.mismatches), (0, Some(0)));
    assert!(result.verified_blocks.unwrap() > 100);
    let counted: u64 = result.latencies.iter().map(|bucket| bucket.count).sum();
    assert_eq!(counted, result.ios);
    let series = result.series.unwrap();
    assert!(series.values.iter().sum::<f64>() * series.interval_s <= result.ios as f64 + 0.5);
}

#[test]
fn a_queue_is_kept_as_deep_as_it_was_asked_for_and_no_deeper() {
    let store = Late::new();
    let (open, most) = (store.open.clone(), store.most.clone());
    let mut options = options(memory(store), 70);
    options.sessions = 3;
    options.verify = true;
    let result = run(&options).unwrap();
    assert_eq!((result.errors, result.mismatches), (0, Some(0)));
    assert!(result.reads.is_some() && result.writes.is_some());
    assert_eq!(most.load(Ordering::Relaxed), 24);
    assert_eq!(open.load(Ordering::Relaxed), 0, "what is open at the end is waited for");
}

#[test]
fn last_pass_finds_errors_that_no_read_met() {
    let lost = Fault::LostWrite(sarsen_block::Lba(1234));
    for (fault, found) in [(None, vec![]), (Some(lost), vec![1234])] {
        let faults = Faults::default();
        fault.into_iter().for_each(|fault| faults.add(fault, Times::Always));
        let mut options = options(memory(FaultyStore::new(memory_store(), faults)), 0);
        options.access.random_percent = 0;
        options.access.block_bytes = 64 * 1024;
        options.verify = true;
        let result = run(&options).unwrap();
        assert_eq!(result.mismatched.iter().map(|m| m.block).collect::<Vec<_>>(), found);
        assert_eq!((result.read_back_blocks, result.verified_blocks), (Some(BLOCKS), Some(BLOCKS)));
    }
}

#[test]
fn an_open_loop_has_its_arrivals_by_the_clock() {
    let mut options = options(memory(Late::new()), 100);
    options.rate = Some(2000.0);
    options.duration = Duration::from_millis(200);
    let result = run(&options).unwrap();
    let begun = result.ios + result.backlog.unwrap();
    assert!((300..=500).contains(&begun), "{begun} in {} s", result.seconds);
}

#[test]
fn store_errors_are_counted_and_lost_writes_found() {
    let faults = Faults::default();
    faults.add(Fault::Unreadable(Extent::new(0, BLOCKS)), Times::Always);
    let result = run(&options(memory(FaultyStore::new(memory_store(), faults)), 100)).unwrap();
    assert!(result.errors > 0);
    assert!(result.first_error.unwrap().contains("Read error at block"));

    let faults = Faults::default();
    faults.add(Fault::LostWrite(sarsen_block::Lba(7)), Times::Always);
    let mut options = options(memory(FaultyStore::new(memory_store(), faults)), 50);
    options.verify = true;
    // In order and in long blocks: a busy machine, too, writes that block within the time.
    options.access.random_percent = 0;
    options.access.block_bytes = 64 * 1024;
    let result = run(&options).unwrap();
    assert!(result.mismatches.unwrap() > 0);
}

#[test]
fn a_store_that_does_not_answer_is_given_up() {
    struct Silent(Arc<dyn Store>);
    impl Layer for Silent {
        fn inner(&self) -> &Arc<dyn Store> {
            &self.0
        }

        fn handle<T: 'static>(
            &self,
            _: Request,
            _: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
        ) -> Reply<T> {
            Answer::pending(std::future::pending())
        }
    }
    let mut options = options(memory(Silent(memory_store())), 100);
    options.duration = Duration::from_secs(60);
    options.stall_limit = Duration::from_millis(50);
    assert!(matches!(run(&options), Err(LoadError::Stalled(_))));
}

#[test]
fn an_io_that_is_open_at_the_end_is_not_left_out() {
    /// Answers this number of I/Os.
    struct Ceasing(Arc<dyn Store>, AtomicU32);
    impl Layer for Ceasing {
        fn inner(&self) -> &Arc<dyn Store> {
            &self.0
        }

        fn handle<T: 'static>(
            &self,
            _: Request,
            next: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
        ) -> Reply<T> {
            let left = self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
            if left.is_ok() { next(&*self.0) } else { Answer::pending(std::future::pending()) }
        }
    }
    for answered in [0, 1000] {
        let mut options = options(memory(Ceasing(memory_store(), AtomicU32::new(answered))), 100);
        (options.warm_up, options.duration) = (Duration::ZERO, Duration::from_millis(200));
        let result = run(&options).unwrap();
        assert_eq!(result.ios > 0, answered > 0, "{}", result.ios);
        assert!(result.max_us > 100_000.0, "{}", result.max_us);
        assert_eq!(result.failure().is_some(), answered == 0, "{:?}", result.failure());
        let disturbances = result.disturbances().join("; ");
        assert!(disturbances.contains("the target did not answer"), "{disturbances}");
    }
}

#[test]
fn load_uses_page_cache_and_reports_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let error = run(&options(Endpoint::path(&path), 100)).unwrap_err().to_string();
    assert!(error.contains("does not exist"), "{error}");
    std::fs::File::create(&path).unwrap().set_len(BLOCKS * 512).unwrap();
    let mut options = options(Endpoint::path(&path), 50);
    options.verify = true;
    let result = run(&options).unwrap();
    assert_eq!((result.errors, result.mismatches), (0, Some(0)));
    assert!(result.verified_blocks.unwrap() > 0);
}

#[test]
fn a_trace_is_replayed_to_its_end() {
    let requests = (0..500u64).map(|number| {
        let (reads, offset) = (number % 3 > 0, number * 4096);
        Ok(Traced { at: Duration::from_micros(number), reads, offset, length: 4096 })
    });
    for speed in [None, Some(1.0)] {
        let (endpoint, feed) = (memory(Late::new()), requests.clone());
        let result = replay(&options(endpoint, 100), Box::new(feed), speed).unwrap();
        assert_eq!((result.ios, result.errors), (500, 0));
        assert_eq!(result.writes.unwrap().ios, 167);
        assert!(result.wrapped.unwrap() > 0);
    }
}
