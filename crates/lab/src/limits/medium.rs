//! The limits of a medium: of a file that is written and read past the page cache, or of memory.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use sarsen_block::{Buffer, Io, Payload, SharedMemory as _};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_io::file::{File, OpenOptions};
use sarsen_io::memory::Region;
use sarsen_io::{random, time};

use super::{LimitError, MediumPath, StoreLimit, system};
use crate::target_under_test::Medium;
use sarsen_block::Rng;

/// Maximum size of the file.
const EXTENT_BYTES: u64 = 1 << 30;
/// Size of the copied memory, which is larger than a processor's caches.
const MEMORY_BYTES: usize = 256 << 20;
/// Minimum size of the file, even if the measurement is short.
const EXTENT_BYTES_MIN: u64 = 16 << 20;
/// Part of the free space that a file can take: a quarter.
const FREE_PART: u64 = 4;
/// Size of a sequential I/O in bytes.
const LARGE_BYTES: usize = 1 << 20;
/// Size of a random I/O in bytes.
const SMALL_BYTES: usize = 4 << 10;
/// Number of outstanding I/Os of that size, enough that the medium never waits for the next one.
const LARGE_DEPTH: usize = 8;
/// Sequential I/Os: their size and their number. Which of them a disk serves faster depends on the disk.
const SEQUENTIAL: [(usize, usize); 2] = [(LARGE_BYTES, LARGE_DEPTH), (64 << 10, 32)];
/// Outstanding random I/Os.
const SMALL_DEPTH: usize = 32;
/// Number of parts of a period.
const PARTS: u32 = 10;
/// Seed of the positions of random reads.
const SEED: u64 = 1;

/// Measures a medium in four ways, each for this duration. A disk's file is created in `folder`, and its name is
/// removed before the first write.
pub fn medium(medium: Medium, folder: &Path, duration: Duration) -> Result<StoreLimit, LimitError> {
    match medium {
        Medium::Ram => memory(duration),
        Medium::Disk => disk(folder, duration),
    }
}

/// The I/Os of a period, of which the fastest part counts: other programs can only slow a part down.
struct Done {
    ios: u64,
    io_bytes: usize,
    began: Instant,
    part: Duration,
    /// The current part: its beginning and its I/Os.
    current: (Instant, u64),
    /// I/Os a second of the fastest complete part.
    fastest: f64,
}

impl Done {
    /// Begins a period of this duration with I/Os of this size.
    fn begin(io_bytes: usize, duration: Duration) -> Self {
        let began = time::now();
        let part = duration / PARTS;
        Self { ios: 0, io_bytes, began, part, current: (began, 0), fastest: 0.0 }
    }

    /// Counts an I/O that has ended.
    fn note(&mut self) {
        self.ios += 1;
        self.current.1 += 1;
        let now = time::now();
        let (part_began, ios) = self.current;
        let taken = now - part_began;
        if taken >= self.part {
            self.fastest = self.fastest.max(ios as f64 / taken.as_secs_f64());
            self.current = (now, 0);
        }
    }

    /// Ends the period. If it was shorter than a part, all of it counts.
    fn end(mut self) -> Self {
        if self.fastest == 0.0 {
            self.count_all();
        }
        self
    }

    /// Replaces the fastest part by the whole period until now.
    fn count_all(&mut self) {
        self.fastest = self.ios as f64 / (time::now() - self.began).as_secs_f64();
    }

    /// Returns the one of two periods that moved more bytes a second.
    fn faster(self, other: Self) -> Self {
        if other.mb_per_s() > self.mb_per_s() { other } else { self }
    }

    fn mb_per_s(&self) -> f64 {
        self.iops() * self.io_bytes as f64 / 1e6
    }

    fn iops(&self) -> f64 {
        self.fastest
    }
}

fn disk(folder: &Path, duration: Duration) -> Result<StoreLimit, LimitError> {
    let room = rustix::fs::statvfs(folder)
        .map_err(|error| system("look for room in the folder")(error.into()))?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let extent = EXTENT_BYTES.min(free / FREE_PART) / LARGE_BYTES as u64 * LARGE_BYTES as u64;
    if extent < EXTENT_BYTES_MIN {
        let folder = folder.display().to_string();
        return Err(LimitError::NoRoom { folder, free, needed: EXTENT_BYTES_MIN * FREE_PART });
    }
    let (file, path) = open(folder).map_err(system("create a file in the folder"))?;
    let measured = block_on(FileEngine::Auto, measure(file, path, extent, duration))
        .map_err(system("start a ring or a pool for files"))?;
    let [write, read, random, random_32] =
        measured.map_err(system("write and read a file in the folder"))?;
    Ok(StoreLimit {
        sequential_read_mb_per_s: read.mb_per_s(),
        sequential_write_mb_per_s: write.mb_per_s(),
        random_read_iops: random.iops(),
        random_read_iops_32: Some(random_32.iops()),
        path,
    })
}

/// Creates a file without a name, which ends with its descriptor.
fn open(folder: &Path) -> io::Result<(File, MediumPath)> {
    let named = tempfile::NamedTempFile::new_in(folder)?;
    let open = |direct| -> io::Result<File> {
        let file = File::open(named.path(), OpenOptions { direct, ..OpenOptions::default() })?;
        if direct && file.direct_alignment()? as usize > SMALL_BYTES {
            Err(io::ErrorKind::InvalidInput.into())
        } else {
            Ok(file)
        }
    };
    match open(true) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Ok((open(false)?, MediumPath::Buffered))
        }
        direct => Ok((direct?, MediumPath::Direct)),
    }
}

/// Measures writes, sequential reads, and random reads with one and with many outstanding.
async fn measure(
    file: File,
    path: MediumPath,
    extent: u64,
    duration: Duration,
) -> io::Result<[Done; 4]> {
    // The first write to a block also allocates it. Volumes have been written completely before a study measures them.
    let mut content = Content::new();
    let mut written = 0;
    let end = time::now() + duration;
    keep(LARGE_DEPTH, Done::begin(LARGE_BYTES, duration), |_| {
        let more = written < EXTENT_BYTES_MIN || (written < extent && time::now() < end);
        more.then(|| {
            written += LARGE_BYTES as u64;
            file.write_at(written - LARGE_BYTES as u64, content.next(LARGE_BYTES), false)
        })
    })
    .await?;
    file.sync_data().wait().await?;

    let mut write = Done::begin(LARGE_BYTES, duration);
    let mut read = Done::begin(LARGE_BYTES, duration);
    for (bytes, depth) in SEQUENTIAL {
        let offset = |ios: u64| ios * bytes as u64 % written;
        let end = time::now() + duration;
        let mut done = keep(depth, Done::begin(bytes, duration), |ios| {
            (ios == 0 || time::now() < end)
                .then(|| file.write_at(offset(ios), content.next(bytes), false))
        })
        .await?;
        if path == MediumPath::Buffered {
            file.sync_data().wait().await?;
            done.count_all();
        }
        write = write.faster(done);
        let end = time::now() + duration;
        let done = keep(depth, Done::begin(bytes, duration), |ios| {
            (ios == 0 || time::now() < end).then(|| pass_over(&file, offset(ios), bytes))
        })
        .await?;
        read = read.faster(done);
    }

    let mut rng = Rng::new(SEED);
    let mut random = async |depth| {
        let end = time::now() + duration;
        keep(depth, Done::begin(SMALL_BYTES, duration), |ios| {
            let offset = rng.below(written / SMALL_BYTES as u64) * SMALL_BYTES as u64;
            (ios == 0 || time::now() < end).then(|| pass_over(&file, offset, SMALL_BYTES))
        })
        .await
    };
    Ok([write, read, random(1).await?, random(SMALL_DEPTH).await?])
}

/// Data of which each piece differs: some media store repeated data in less space.
struct Content {
    bytes: Vec<u8>,
    number: u64,
}

impl Content {
    fn new() -> Self {
        let mut bytes = vec![0; LARGE_BYTES];
        random::fill(&mut bytes);
        Self { bytes, number: 0 }
    }

    /// Returns the next piece, of a maximum of [`LARGE_BYTES`].
    fn next(&mut self, bytes: usize) -> Payload {
        self.number += 1;
        self.bytes[..8].copy_from_slice(&self.number.to_ne_bytes());
        Buffer::copy_of(&self.bytes[..bytes]).into()
    }
}

fn pass_over(file: &File, offset: u64, length: usize) -> Io<io::Result<()>> {
    file.read_at(offset, length).map(|read| read.map(drop))
}

/// Keeps `depth` I/Os outstanding until `begin` starts no more, and waits for the last one. `begin` gets the number of
/// started I/Os.
async fn keep(
    depth: usize,
    mut done: Done,
    mut begin: impl FnMut(u64) -> Option<Io<io::Result<()>>>,
) -> io::Result<Done> {
    let mut under_way = FuturesUnordered::new();
    let mut started = 0;
    let mut more = true;
    loop {
        while more && under_way.len() < depth {
            match begin(started) {
                Some(io) => {
                    started += 1;
                    under_way.push(io.wait());
                }
                None => more = false,
            }
        }
        match under_way.next().await {
            Some(result) => result?,
            None => break,
        }
        done.note();
    }
    Ok(done.end())
}

fn memory(duration: Duration) -> Result<StoreLimit, LimitError> {
    let region = Region::new(MEMORY_BYTES).map_err(system("reserve memory"))?;
    let mut piece = vec![0; LARGE_BYTES];
    random::fill(&mut piece);
    // Memory that was never written has no pages.
    for offset in (0..MEMORY_BYTES).step_by(LARGE_BYTES) {
        region.write(offset, &piece);
    }
    let in_order = |ios: u64| (ios as usize * LARGE_BYTES) % MEMORY_BYTES;
    let write = copy(LARGE_BYTES, duration, |ios| region.write(in_order(ios), &piece));
    let read = copy_out(&region, LARGE_BYTES, duration, in_order);
    let mut rng = Rng::new(SEED);
    let places = (MEMORY_BYTES / SMALL_BYTES) as u64;
    let random =
        copy_out(&region, SMALL_BYTES, duration, |_| rng.below(places) as usize * SMALL_BYTES);
    Ok(StoreLimit {
        sequential_read_mb_per_s: read.mb_per_s(),
        sequential_write_mb_per_s: write.mb_per_s(),
        random_read_iops: random.iops(),
        random_read_iops_32: None,
        path: MediumPath::Memory,
    })
}

fn copy_out(
    region: &Arc<Region>,
    bytes: usize,
    duration: Duration,
    mut offset: impl FnMut(u64) -> usize,
) -> Done {
    let mut into = vec![0; bytes];
    copy(bytes, duration, |ios| region.copy_out(offset(ios), &mut into))
}

fn copy(bytes: usize, duration: Duration, mut copy: impl FnMut(u64)) -> Done {
    let mut done = Done::begin(bytes, duration);
    let end = done.began + duration;
    loop {
        copy(done.ios);
        done.note();
        if time::now() >= end {
            return done.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn all_positive(limit: &StoreLimit) -> bool {
        let figures = limit.measures().figures;
        figures.values().all(|&figure| figure > 0.0 && figure.is_finite())
    }

    #[test]
    fn a_folder_has_limits_and_nothing_in_it_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let limit = medium(Medium::Disk, folder.path(), SHORT).unwrap();
        assert!(all_positive(&limit), "{limit:?}");
        assert!(limit.random_read_iops_32.is_some());
        assert_ne!(limit.path, MediumPath::Memory);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn memory_has_limits() {
        let limit = medium(Medium::Ram, Path::new("/nowhere"), SHORT).unwrap();
        assert!(all_positive(&limit), "{limit:?}");
        assert_eq!(limit.path, MediumPath::Memory);
    }

    #[test]
    fn a_folder_that_is_missing_is_an_error() {
        let error = medium(Medium::Disk, Path::new("/nowhere"), SHORT).unwrap_err();
        assert!(error.to_string().contains("folder"), "{error}");
    }

    #[test]
    fn as_many_as_asked_for_are_under_way() {
        use std::cell::Cell;
        use std::rc::Rc;
        let under_way = Rc::new(Cell::new((0_usize, 0_usize)));
        let done = block_on(FileEngine::Pool, async {
            keep(3, Done::begin(10, SHORT), |ios| {
                let (now, most) = under_way.get();
                under_way.set((now + 1, most.max(now + 1)));
                let ended = under_way.clone();
                let io = Io::pending(async move {
                    let (now, most) = ended.get();
                    ended.set((now - 1, most));
                    Ok(())
                });
                (ios < 10).then_some(io)
            })
            .await
        });
        let done = done.unwrap().unwrap();
        assert_eq!((done.ios, under_way.get().1), (10, 3));
        assert!(done.mb_per_s() > 0.0);
    }
}
