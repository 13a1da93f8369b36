//! A pool below a Linux kernel's file systems, on a device that logs each write (dm-log-writes). The log is repeated up to
//! each point at which something became durable, as if the power had failed there: the pool is sound, the file systems
//! recover, files have what their last fsync made durable, and snapshots do not change.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use sarsen_proof::guest::{self, Guest, ScenarioReport};
use sarsen_proof::write_log::{Entry, WriteLog};
use sarsen_proof::{Backing, Serving, Volume, process, program, qemu};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const POOL_BYTES: u64 = 256 * MIB;
/// The log has each write once more; its file has only what was written.
const LOG_BYTES: u64 = 4096 * MIB;
const BLOCK: usize = 4096;
/// Files that each file system gets.
const FILES: &str = "10";
/// Name of the volume, type of its file system, and MiB. xfs is not created on less.
const FILE_SYSTEMS: [(&str, &str, u64); 2] = [("e", "ext4", 64), ("x", "xfs", 304)];
/// Fewer durable points than this would mean that the guest did not do its work.
const POINTS_MIN: usize = 100;

/// Blocks of a volume that are not zero, by their number.
type Image = BTreeMap<u64, Vec<u8>>;

/// What a file must have at a point; `None`: it must not exist.
type Expected = BTreeMap<String, Option<String>>;

/// A moment at which the power could have failed.
struct Point {
    /// Number of the log's entry that became durable.
    entry: usize,
    /// The image of each file system that existed, and what was promised of its files.
    images: Vec<(usize, Expected)>,
}

/// The marks of the guest so far.
#[derive(Default)]
struct Marks {
    is_created: bool,
    has_snapshots: bool,
    /// By volume. A file that is being changed is not in it.
    files: BTreeMap<String, Expected>,
}

impl Marks {
    fn add(&mut self, mark: &str) -> Result<()> {
        match *mark.split(':').collect::<Vec<_>>() {
            ["created"] => self.is_created = true,
            ["snapshot", _] => self.has_snapshots = true,
            [volume, "made"] => drop(self.files.insert(volume.into(), Expected::new())),
            [volume, state, file] => {
                let files = self.files.get_mut(volume).context("a file system")?;
                match state {
                    "open" => files.remove(file),
                    "gone" => files.insert(file.into(), None),
                    digest => files.insert(file.into(), Some(digest.into())),
                };
            }
            _ => {}
        }
        Ok(())
    }
}

fn new_file(path: &Path, byte_count: u64) -> Result<File> {
    let file = File::create_new(path)?;
    file.set_len(byte_count)?;
    Ok(file)
}

/// Returns the arguments for a disk of a guest.
fn drive(path: &Path) -> String {
    format!("file={},if=virtio,format=raw,cache=unsafe,discard=unmap", path.display())
}

fn check(devices: &Path) -> Result<()> {
    let said = process::output(
        Command::new(program::path()?).args(["pool", "check"]).arg(devices),
        LIMIT,
    )?;
    ensure!(said == "no inconsistencies\n", "{said}");
    Ok(())
}

/// Reads the blocks of a file that are not zero.
fn image(path: &Path) -> Result<Image> {
    let file = File::open(path)?;
    let mut image = Image::new();
    let mut offset = 0;
    loop {
        offset = match seek(&file, SeekFrom::Data(offset)) {
            Ok(data) => data / BLOCK as u64 * BLOCK as u64,
            Err(Errno::NXIO) => return Ok(image),
            Err(error) => return Err(error.into()),
        };
        let hole = seek(&file, SeekFrom::Hole(offset))?;
        while offset < hole {
            let mut block = vec![0; BLOCK];
            match file.read_exact_at(&mut block, offset) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(image),
                read => read?,
            }
            if block.iter().any(|byte| *byte != 0) {
                image.insert(offset / BLOCK as u64, block);
            }
            offset += BLOCK as u64;
        }
    }
}

/// The images of all file systems, one behind the other in a file for the guest that mounts them.
struct Images {
    file: File,
    /// Lines of the guest's table.
    table: String,
    count: usize,
    end: u64,
    /// The last one of each volume.
    last: BTreeMap<&'static str, (usize, Image)>,
}

impl Images {
    /// Adds an image, unless it is as the last one of the volume. Returns its number.
    fn add(&mut self, volume: &'static str, kind: &str, mib: u64, image: Image) -> Result<usize> {
        if let Some((number, last)) = self.last.get(volume)
            && *last == image
        {
            return Ok(*number);
        }
        for (block, data) in &image {
            self.file.write_all_at(data, self.end + block * BLOCK as u64)?;
        }
        let number = self.count;
        self.table += &format!("{number} {kind} {} {}\n", self.end / 512, mib * MIB / 512);
        self.end += mib * MIB;
        self.count += 1;
        self.last.insert(volume, (number, image));
        Ok(number)
    }
}

/// Serves a copy of the device, and reads what its volumes have; then checks it again.
fn contents(
    device: &Path,
    folder: &Path,
    has_snapshots: bool,
) -> Result<BTreeMap<&'static str, Image>> {
    let copy = folder.join("copy");
    process::output(Command::new("cp").arg("--sparse=always").arg(device).arg(&copy), LIMIT)?;
    let pooled = |name: &str, mib: u64| Volume::new(name, Backing::Pool("tank".into()), mib * MIB);
    let mut volumes: Vec<_> = FILE_SYSTEMS.map(|(name, _, mib)| pooled(name, mib)).into();
    let mut names = vec!["e", "x"];
    if has_snapshots {
        for (served, snapshot) in [("e-half", "e@half"), ("x-half", "x@half")] {
            names.push(served);
            volumes.push(pooled(served, 0).option(&format!("snapshot={snapshot}")));
        }
    }
    let serving = Serving::start_with(&volumes, &["--pool", &format!("tank={}", copy.display())])?;
    let mut images = BTreeMap::new();
    for name in names {
        let path = folder.join("image");
        qemu::copy_from(serving.url(name), &path)?;
        images.insert(name, image(&path)?);
        fs::remove_file(path)?;
    }
    serving.stop()?;
    check(&copy)?;
    fs::remove_file(copy)?;
    Ok(images)
}

/// Repeats the log on a new device. Checks the pool at each durable point, and collects the images there.
fn repeat(log: &Path, folder: &Path, images: &mut Images) -> Result<Vec<Point>> {
    let path = folder.join("repeated");
    let device = new_file(&path, POOL_BYTES)?;
    let (mut marks, mut points) = (Marks::default(), Vec::new());
    let mut snapshots: Option<[Image; 2]> = None;
    for (entry, next) in WriteLog::open(log)?.enumerate() {
        let (offset, effect, is_durable) = match next? {
            Entry::Mark(mark) => {
                marks.add(&mark)?;
                continue;
            }
            Entry::Request { offset, effect, is_durable } => (offset, effect, is_durable),
        };
        effect.apply(offset, &device)?;
        if !is_durable || !marks.is_created {
            continue;
        }
        let point = || format!("at entry {entry} of the log, after {:?}", marks.files);
        check(&path).with_context(point)?;
        let mut found = contents(&path, folder, marks.has_snapshots).with_context(point)?;
        if let Some(halves) = found.remove("e-half").zip(found.remove("x-half")) {
            let halves = <[Image; 2]>::from(halves);
            let first = snapshots.get_or_insert_with(|| halves.clone());
            ensure!(*first == halves, "a snapshot changed {}", point());
        }
        let mut at = Vec::new();
        for (volume, kind, mib) in FILE_SYSTEMS {
            let Some(expected) = marks.files.get(volume) else { continue };
            let image = found.remove(volume).context("a volume")?;
            at.push((images.add(volume, kind, mib, image)?, expected.clone()));
        }
        points.push(Point { entry, images: at });
    }
    ensure!(snapshots.is_some(), "no point had the snapshots");
    Ok(points)
}

/// Compares the files that the guest found with what was promised at each point. Returns how many it compared.
fn compare(points: &[Point], played: &ScenarioReport) -> Result<usize> {
    let mut compared = 0;
    for Point { entry, images } in points {
        for (image, expected) in images {
            played.result(&format!("{image}/checked"))?;
            for (file, digest) in expected {
                let found = played.result(&format!("{image}/{file}")).ok();
                ensure!(
                    found == digest.as_deref(),
                    "at entry {entry}, {file} of image {image} is {found:?} instead of {digest:?}"
                );
                compared += 1;
            }
        }
    }
    Ok(compared)
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn ext4_and_xfs_recover_at_each_durable_point_of_a_pool() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let [pool, log, disks] = ["pool", "log", "images"].map(|name| folder.join(name));
    new_file(&pool, POOL_BYTES)?;
    new_file(&log, LOG_BYTES)?;
    let (size_e, size_x) = (FILE_SYSTEMS[0].2.to_string(), FILE_SYSTEMS[1].2.to_string());
    let environment = [
        ("FILES", FILES),
        ("SIZE_E", &size_e),
        ("SIZE_X", &size_x),
        ("PORTAL", "127.0.0.1:3260"),
        ("IQN", "iqn.2026-11.io.sarsen:x"),
    ];
    let guest =
        Guest::new("pool_log", &environment)?.file("sarsen", &guest::small_program(folder)?);
    let played = guest.devices(&["-drive", &drive(&pool), "-drive", &drive(&log)]).run()?;
    ensure!(played.result("complaints")? == "0", "{}", played.console);

    let mut images = Images {
        file: new_file(&disks, 0)?,
        table: String::new(),
        count: 0,
        end: 0,
        last: BTreeMap::new(),
    };
    let points = repeat(&log, folder, &mut images)?;
    ensure!(points.len() >= POINTS_MIN, "only {} points", points.len());
    images.file.set_len(images.end)?;
    let table = folder.join("table");
    fs::write(&table, &images.table)?;
    let guest = Guest::new("pool_points", &[])?.file("images", &table);
    let played = guest.devices(&["-drive", &drive(&disks)]).run()?;
    if let Ok(number) = played.result("unsound") {
        bail!("image {number} is not sound:\n{}", played.console);
    }
    let compared = compare(&points, &played)?;
    ensure!(played.result("complaints")? == "0", "{}", played.console);
    ensure!(compared > points.len(), "only {compared} files were compared");
    println!(
        "{} durable points, {} different images of file systems recovered, {compared} files compared",
        points.len(),
        images.count
    );
    Ok(())
}

/// Prints a table. Emulation says nothing about speeds, but something about how they relate.
#[test]
#[ignore = "boots a kernel under emulation"]
fn first_writes_and_those_after_a_snapshot_beside_overwrites_of_a_pool_and_of_lvm_thin()
-> Result<()> {
    const ROUNDS: u32 = 4;
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let mut drives = Vec::new();
    for (name, mib) in [("pool", 3072), ("data", 3072), ("metadata", 64)] {
        let path = folder.join(name);
        new_file(&path, mib * MIB)?;
        drives.extend(["-drive".to_owned(), drive(&path)]);
    }
    let drives: Vec<_> = drives.iter().map(String::as_str).collect();
    let rounds = ROUNDS.to_string();
    let environment = [("NEW", "2048"), ("OLD", "256"), ("ROUNDS", &*rounds)];
    let guest = Guest::new("pool_ratio", &environment)?;
    let guest = guest.file("sarsen", &guest::small_program(folder)?).devices(&drives);
    let played = guest.run()?;
    ensure!(played.result("thin_check")? == "clean", "{}", played.console);
    ensure!(played.result("complaints")? == "0", "{}", played.console);
    check(&folder.join("pool"))?;
    let rate = |name: &str| -> Result<f64> {
        let rounds = (1..=ROUNDS).map(|round| {
            let rate: f64 = played.result(&format!("{name}/{round}"))?.parse()?;
            ensure!(rate > 0.0, "{}", played.console);
            Ok(rate)
        });
        Ok(rounds.sum::<Result<f64>>()? / f64::from(ROUNDS))
    };
    println!("| 4 KiB random writes, depth 8, emulated | pool | LVM-thin | pool to LVM-thin |");
    println!("| --- | --- | --- | --- |");
    let overwrites = [rate("pool/overwrite")?, rate("thin/overwrite")?];
    for (what, name) in [
        ("overwrites", "overwrite"),
        ("first writes", "first"),
        ("right after a snapshot", "after"),
    ] {
        let [pool, thin] = [rate(&format!("pool/{name}"))?, rate(&format!("thin/{name}"))?];
        println!(
            "| {what} | {pool:.0} a second, {:.0} % of overwrites | {thin:.0} a second, {:.0} % of overwrites | {:.2} |",
            pool / overwrites[0] * 100.0,
            thin / overwrites[1] * 100.0,
            pool / thin
        );
    }
    Ok(())
}
