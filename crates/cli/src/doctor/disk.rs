//! Checks of the places for volumes: free space, O_DIRECT, the file system, the backing device.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use indicatif::BinaryBytes;
use sarsen_io::file::{File, OpenOptions};
use sarsen_io::machine::{self, Space};
use sarsen_node::Config;

use super::Finding;

const CHECK: &str = "disk";
/// Free space below this is a warning.
const LITTLE_ROOM_PERCENT: u64 = 5;
/// File systems in memory.
const FORGETFUL: &[&str] = &["tmpfs", "ramfs", "overlay"];
/// Network file systems, whose durability depends on the other machine.
const REMOTE: &[&str] = &["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "virtiofs", "fuse.sshfs"];

/// A line of /proc/self/mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    device: String,
    point: PathBuf,
    kind: String,
    options: Vec<String>,
}

/// Properties of the block device. Empty if it reports none.
#[derive(Default)]
struct Queue {
    write_cache: Option<String>,
    discard_max_bytes: Option<u64>,
}

pub(super) fn findings(config: Option<&Config>, paths: &[PathBuf]) -> Vec<Finding> {
    let mut places: BTreeSet<PathBuf> = paths.iter().cloned().collect();
    for volume in config.into_iter().flat_map(|config| &config.volumes) {
        // If the file does not exist yet, its folder is checked.
        if let Some(path) = volume.file() {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            places.insert(if path.exists() {
                path.to_owned()
            } else {
                folder.unwrap_or(Path::new(".")).to_owned()
            });
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    places.iter().flat_map(|place| of_place(place, &mounts)).collect()
}

fn of_place(place: &Path, mounts: &str) -> Vec<Finding> {
    let shown = place.display();
    let absolute = match fs::canonicalize(place) {
        Ok(absolute) => absolute,
        Err(error) => {
            let remedy = "create it, or correct the path";
            return vec![Finding::problem(CHECK, format!("{shown}: {error}"), remedy)];
        }
    };
    let mut findings = Vec::new();
    if absolute.is_dir() || absolute.is_file() {
        findings.push(match machine::space(&absolute) {
            Ok(space) => room(place, space),
            Err(error) => Finding::unknown(CHECK, &format!("{shown}: its room"), &error),
        });
        if let Some(mount) = mount_of(mounts, &absolute) {
            findings.extend(file_system(place, &mount));
            findings.extend(device(place, &Queue::of(&mount.device)));
        } else {
            // A root that chroot(2) has set need not be a mount point.
            let what = format!("{shown}: its file system");
            findings.push(Finding::unknown(CHECK, &what, &"no visible mount contains it"));
        }
    }
    findings.push(direct(place, direct_alignment(&absolute)));
    findings
}

fn room(place: &Path, Space { free, size }: Space) -> Finding {
    let place = place.display();
    let finding = format!("{place}: {} of {} are free", BinaryBytes(free), BinaryBytes(size));
    if free < size / 100 * LITTLE_ROOM_PERCENT {
        let remedy = "free space; writes to a thin volume fail when its disk is full";
        return Finding::warning(CHECK, finding, remedy);
    }
    Finding::ok(CHECK, finding)
}

/// Returns the mount of a path: the longest prefix, and the last of equals.
fn mount_of(mounts: &str, path: &Path) -> Option<Mount> {
    let all = mounts.lines().filter_map(parse_mount);
    all.filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

/// Parses a line of /proc/self/mountinfo (proc(5)).
fn parse_mount(line: &str) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let front: Vec<_> = front.split(' ').collect();
    let back: Vec<_> = back.split(' ').collect();
    let options = [front.get(5)?, back.get(2)?];
    Some(Mount {
        device: (*front.get(2)?).to_owned(),
        point: PathBuf::from(front.get(4)?.replace("\\040", " ")),
        kind: (*back.first()?).to_owned(),
        options: options.iter().flat_map(|words| words.split(',')).map(str::to_owned).collect(),
    })
}

fn file_system(place: &Path, mount: &Mount) -> Vec<Finding> {
    let (place, kind) = (place.display(), mount.kind.as_str());
    let has = |option: &str| mount.options.iter().any(|other| other == option);
    let mut findings = Vec::new();
    if has("ro") {
        findings.push(Finding::problem(
            CHECK,
            format!("{place}: its file system ({kind}) is mounted read-only"),
            format!("mount -o remount,rw {}, and find the cause (dmesg)", mount.point.display()),
        ));
    }
    if has("nobarrier") || has("barrier=0") {
        findings.push(Finding::warning(
            CHECK,
            format!(
                "{place}: {kind} is mounted without barriers: a power cut can lose flushed data"
            ),
            "mount it with barriers, unless its write cache survives a power cut",
        ));
    }
    findings.push(match kind {
        _ if FORGETFUL.contains(&kind) => Finding::warning(
            CHECK,
            format!(
                "{place} is on {kind}: volumes there are lost with the machine or the container"
            ),
            "put volumes on ext4 or xfs, or on a device",
        ),
        _ if REMOTE.contains(&kind) => Finding::warning(
            CHECK,
            format!("{place} is on {kind}: durability depends on another machine"),
            "put volumes on a disk of this machine",
        ),
        "btrfs" | "zfs" => Finding::warning(
            CHECK,
            format!("{place} is on {kind}: each overwrite is a copy, and files become fragmented"),
            "chattr +C on an empty folder (btrfs), a volblocksize that fits (zfs), or ext4 or xfs",
        ),
        _ => Finding::ok(CHECK, format!("{place} is on {kind}")),
    });
    findings
}

impl Queue {
    /// Reads the properties of a device by its numbers; a partition has those of its disk.
    fn of(device: &str) -> Self {
        let read = |name: &str| {
            ["queue", "../queue"].iter().find_map(|queue| {
                let path = format!("/sys/dev/block/{device}/{queue}/{name}");
                Some(fs::read_to_string(path).ok()?.trim().to_owned())
            })
        };
        Self {
            write_cache: read("write_cache"),
            discard_max_bytes: read("discard_max_bytes").and_then(|text| text.parse().ok()),
        }
    }
}

fn device(place: &Path, queue: &Queue) -> Vec<Finding> {
    let place = place.display();
    let cache = match queue.write_cache.as_deref() {
        Some("write back") => Some(Finding::ok(
            CHECK,
            format!("{place}: its device has a write cache, which is flushed when initiators ask"),
        )),
        Some(mode) => Some(Finding::ok(
            CHECK,
            format!("{place}: its device has no write cache that needs flushing ({mode})"),
        )),
        None => None,
    };
    let discard = match queue.discard_max_bytes {
        Some(0) => Some(Finding::ok(
            CHECK,
            format!(
                "{place}: its device does not support discard: freed space is not returned to it"
            ),
        )),
        _ => None,
    };
    cache.into_iter().chain(discard).collect()
}

/// Returns the alignment that O_DIRECT requires at a path.
fn direct_alignment(path: &Path) -> io::Result<u32> {
    let options = OpenOptions { read_only: true, direct: true, ..OpenOptions::default() };
    if path.is_dir() {
        let file = tempfile::NamedTempFile::new_in(path)?;
        return File::open(file.path(), options)?.direct_alignment();
    }
    File::open(path, options)?.direct_alignment()
}

fn direct(place: &Path, alignment: io::Result<u32>) -> Finding {
    let place = place.display();
    match alignment {
        Ok(alignment @ ..=4096) => Finding::ok(
            CHECK,
            format!("{place}: cache=none works (O_DIRECT, aligned to {alignment} bytes)"),
        ),
        Ok(alignment) => Finding::warning(
            CHECK,
            format!(
                "{place}: O_DIRECT needs blocks of {alignment} bytes, more than initiators use"
            ),
            "use cache=writeback there",
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Finding::problem(
            CHECK,
            format!("{place}: {error}"),
            "let the user that the server runs as read and write there",
        ),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Finding::warning(
            CHECK,
            format!("{place}: cache=none and cache=directsync do not work there: {error}"),
            "use cache=writeback or cache=writethrough, or another file system",
        ),
        Err(error) => Finding::warning(
            CHECK,
            format!("{place}: O_DIRECT could not be tried: {error}"),
            "check that the folder is writable",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    const MOUNTS: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
28 27 0:25 / /srv ro,relatime - xfs /dev/sdb rw\n\
29 27 8:17 / /srv/my\\040disks rw - ext4 /dev/sdb1 rw,nobarrier\n";

    fn mount(path: &str) -> Mount {
        mount_of(MOUNTS, Path::new(path)).expect("a mount")
    }

    #[test]
    fn the_mount_of_a_path_is_the_nearest() {
        assert_eq!(mount("/srvother").point, Path::new("/"));
        assert_eq!(mount("/srv/a").kind, "xfs");
        assert_eq!(mount("/srv/my disks/a").device, "8:17");
    }

    fn worst(findings: &[Finding]) -> Level {
        findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    #[test]
    fn file_systems_that_lose_data_are_reported() {
        let level = |path: &str| worst(&file_system(Path::new(path), &mount(path)));
        assert_eq!(level("/a"), Level::Ok);
        assert_eq!(level("/srv/a"), Level::Problem, "read-only");
        assert_eq!(level("/srv/my disks"), Level::Warning, "no barriers");
        for kind in ["tmpfs", "nfs4", "btrfs"] {
            let mount = Mount { kind: kind.into(), ..mount("/a") };
            assert_eq!(worst(&file_system(Path::new("/a"), &mount)), Level::Warning, "{kind}");
        }
    }

    #[test]
    fn full_disk_is_reported() {
        let level = |free| room(Path::new("/a"), Space { free, size: 100 << 30 }).level;
        assert_eq!(level(4 << 30), Level::Warning);
        assert_eq!(level(6 << 30), Level::Ok);
        let text = room(Path::new("/a"), Space { free: (6 << 30) + 12_345, size: 100 << 30 });
        assert_eq!(text.finding, "/a: 6.00 GiB of 100.00 GiB are free");
    }

    #[test]
    fn requirements_of_direct_io_are_reported() {
        let place = Path::new("/a");
        assert_eq!(direct(place, Ok(512)).level, Level::Ok);
        assert_eq!(direct(place, Ok(65_536)).level, Level::Warning);
        let of = |kind: io::ErrorKind| direct(place, Err(kind.into())).level;
        assert_eq!(of(io::ErrorKind::InvalidInput), Level::Warning);
        assert_eq!(of(io::ErrorKind::PermissionDenied), Level::Problem);
    }

    #[test]
    fn a_device_tells_of_its_cache_and_of_discards() {
        let queue = Queue { write_cache: Some("write back".into()), discard_max_bytes: Some(0) };
        assert_eq!(device(Path::new("/a"), &queue).len(), 2);
        assert!(device(Path::new("/a"), &Queue::default()).is_empty());
    }

    #[test]
    fn folder_without_visible_mount_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let findings = of_place(folder.path(), "");
        let unknown = |finding: &Finding| finding.finding.contains("no visible mount");
        assert!(findings.iter().any(unknown), "{findings:?}");
        assert_eq!(worst(&findings), Level::Ok);
    }

    #[test]
    fn real_folder_is_examined_and_unchanged() {
        let folder = tempfile::tempdir().expect("a folder");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let findings = of_place(folder.path(), &mounts);
        assert!(findings.len() >= 3, "{findings:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("it").count(), 0);
        let absent = of_place(&folder.path().join("absent"), &mounts);
        assert_eq!(worst(&absent), Level::Problem);
    }
}
