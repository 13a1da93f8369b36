use futures_util::stream::{FuturesUnordered, StreamExt};

use super::*;
use crate::cores::{FileEngine, block_on};

const ENGINES: [FileEngine; 2] = [FileEngine::Auto, FileEngine::Pool];

/// Returns a folder outside /tmp, which may be in memory and may not support direct I/O.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn file(folder: &tempfile::TempDir, direct: bool) -> File {
    let options = OpenOptions { create: true, direct, ..OpenOptions::default() };
    File::open(&folder.path().join("file"), options).unwrap()
}

fn block(mark: usize) -> Buffer {
    let mut block = Buffer::zeroed(4096);
    for word in block.chunks_exact_mut(8) {
        word.copy_from_slice(&(mark as u64 + 1).to_le_bytes());
    }
    block
}

#[test]
fn more_operations_than_the_ring_holds_all_end() {
    const COUNT: usize = 3000;
    for engine in ENGINES {
        for direct in [false, true] {
            let folder = folder();
            block_on(engine, async {
                let file = file(&folder, direct);
                let writes: FuturesUnordered<_> = (0..COUNT)
                    .map(|at| file.write_at(at as u64 * 4096, block(at).into(), false).wait())
                    .collect();
                writes.for_each(async |written| written.unwrap()).await;
                let reads: FuturesUnordered<_> = (0..COUNT)
                    .map(|at| {
                        let read = file.read_at(at as u64 * 4096, 4096);
                        async move { (at, read.wait().await.unwrap()) }
                    })
                    .collect();
                reads.for_each(async |(at, read)| assert_eq!(read[..], block(at)[..])).await;
            })
            .unwrap();
        }
    }
}

#[test]
fn a_file_in_memory_answers_at_once() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = file(&folder, false);
    for (at, durable) in [(0, false), (1, true)] {
        let written = file.write_at(at as u64 * 4096, block(at).into(), durable);
        assert!(matches!(written, Io::Ready(Ok(()))));
    }
    let Io::Ready(Ok(read)) = file.read_at(2048, 4096) else { panic!("it has to be waited for") };
    assert_eq!(read[..2048], block(0)[2048..]);
    assert_eq!(read[2048..], block(1)[..2048]);
    let Io::Ready(Err(error)) = file.read_at(6144, 4096) else { panic!("beyond the end") };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn abandoned_answer_is_dropped() {
    for engine in ENGINES {
        let folder = folder();
        block_on(engine, async {
            let file = file(&folder, true);
            // An operation whose caller has stopped waiting may be skipped.
            file.write_at(0, block(0).into(), false).wait().await.unwrap();
            for round in 0..100 {
                // Half of the operations are polled once, so that the kernel has them.
                let mut write = Box::pin(file.write_at(0, block(round).into(), false).wait());
                let mut read = Box::pin(file.read_at(0, 4096).wait());
                if round % 2 == 0 {
                    std::future::poll_fn(|context| {
                        let _ = write.as_mut().poll(context);
                        let _ = read.as_mut().poll(context);
                        std::task::Poll::Ready(())
                    })
                    .await;
                }
                drop((read, write));
                // Recycled memory would show data that the kernel still writes into it.
                let probe = Buffer::zeroed(4096);
                file.sync_data().wait().await.unwrap();
                assert!(probe.iter().all(|&byte| byte == 0), "round {round}");
            }
            let last = file.read_at(0, 4096).wait().await.unwrap();
            assert!((0..100).any(|round| last[..] == block(round)[..]));
        })
        .unwrap();
    }
}

#[test]
fn the_end_of_a_file_is_an_error_and_never_old_memory() {
    for engine in ENGINES {
        for direct in [false, true] {
            let folder = folder();
            block_on(engine, async {
                let file = file(&folder, direct);
                file.write_at(0, block(1).into(), true).wait().await.unwrap();
                for (offset, length) in [(0, 8192), (4096, 512), (1 << 40, 4096)] {
                    let read = file.read_at(offset, length).wait().await;
                    assert_eq!(read.err().unwrap().kind(), io::ErrorKind::UnexpectedEof);
                }
                assert!(file.read_at(1 << 40, 0).wait().await.unwrap().is_empty());
            })
            .unwrap();
        }
    }
}

#[test]
fn full_disk_at_writeback_differs_from_full_disk_at_write() {
    for full in [libc::ENOSPC, libc::EDQUOT] {
        let error = io::Error::from_raw_os_error(full);
        assert!(is_full(&error));
        let error = of_cached_data(error);
        assert!(!is_full(&error) && error.to_string().contains("no room"), "{error}");
    }
    let error = of_cached_data(io::Error::from_raw_os_error(libc::EIO));
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
}

#[test]
fn a_thread_that_is_no_core_does_it_itself() {
    let folder = folder();
    let file = file(&folder, false);
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let mut at_once = |io: Io<io::Result<()>>| match Box::pin(io.wait()).as_mut().poll(context) {
        std::task::Poll::Ready(result) => result.unwrap(),
        std::task::Poll::Pending => panic!("it waits for nobody"),
    };
    at_once(file.write_at(4096, block(7).into(), true));
    at_once(file.zero_range(4096, 512));
    at_once(file.set_length(16384));
    let Io::Ready(Ok(run)) = file.allocation(8192, 8192) else { panic!("it waits for nobody") };
    assert_eq!(run, Run { length: 8192, state: RunState::Hole });
}

#[test]
fn only_files_and_block_devices_are_opened() {
    for path in ["/", "/dev/null", "/proc/self/fd"] {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let error = File::open(Path::new(path), options).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
    }
}

#[test]
fn locks_exclude_each_other() {
    let folder = folder();
    let (one, two) = (file(&folder, false), file(&folder, false));
    assert!(one.try_lock_shared().unwrap() && two.try_lock_shared().unwrap());
    assert!(!two.try_lock_exclusive().unwrap());
    drop(one);
    assert!(two.try_lock_exclusive().unwrap());
    assert!(!file(&folder, false).try_lock_shared().unwrap());
}

#[test]
fn a_lock_that_is_let_go_in_time_is_taken() {
    let folder = folder();
    let (one, two) = (file(&folder, false), file(&folder, false));
    assert!(one.try_lock_exclusive().unwrap());
    assert!(!two.lock_within(true, Duration::ZERO).unwrap());
    assert!(!two.lock_within(false, Duration::from_millis(5)).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            crate::time::pause(Duration::from_millis(20));
            drop(one);
        });
        assert!(two.lock_within(true, Duration::from_secs(30)).unwrap());
    });
}

/// /dev, the folder of the device files, is a tmpfs.
#[test]
fn a_device_is_not_memory_though_its_file_lies_in_memory() {
    let device = fs::File::open("/dev/zero").unwrap();
    let opened = Opened::new(device.into(), true);
    assert!(
        !opened.in_memory,
        "its durable writes would not be durable, and would hold up the core"
    );
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    assert!(file(&folder, false).opened.in_memory);
}

/// The maximum of buffered reads in rings also counts reads whose callers have stopped waiting. Reads beyond it are
/// carried out all the same.
#[test]
fn buffered_reads_beyond_the_rings_share_go_through_the_lane() {
    const COUNT: usize = 4 * RING_READS_MAX as usize;
    let folder = folder();
    block_on(FileEngine::Auto, async {
        let file = file(&folder, false);
        let all =
            Buffer::copy_of(&(0..COUNT).flat_map(|at| block(at).to_vec()).collect::<Vec<_>>());
        file.write_at(0, all.into(), true).wait().await.unwrap();
        rustix::fs::fadvise(&file.opened.fd, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        rustix::fs::fadvise(&file.opened.fd, 0, None, rustix::fs::Advice::Random).unwrap();
        let read = |at: usize| (at, file.read_at(at as u64 * 4096, 4096));
        let mut reads: Vec<_> = (0..COUNT).map(read).collect();
        assert!(file.opened.ring_reads.load(Ordering::Relaxed) <= RING_READS_MAX);
        let awaited = reads.split_off(COUNT / 2);
        drop(reads);
        for (at, read) in awaited {
            assert_eq!(read.wait().await.unwrap()[..], block(at)[..]);
        }
        while file.opened.ring_reads.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .unwrap();
}
