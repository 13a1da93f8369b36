//! Disk images that QEMU's tools write and read, and `sarsen disk` reads and writes.

use std::fs::{self, File};
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sarsen_proof::qemu::{self, HeaderDigest};
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, process};

use crate::disk_verbs::{FAILED, USAGE, command, fail, succeed, text};

const MIB: u64 = 1 << 20;
const DISK_LENGTH: u64 = 32 * MIB;
/// The data that the disk has before.
const OLD: u8 = 0xee;
const TOOL_LIMIT: Duration = Duration::from_secs(60);

/// Name, format of sarsen, format of QEMU, options of `qemu-img convert`.
const IMAGES: &[(&str, &str, &str, &[&str])] = &[
    ("version-3", "qcow2", "qcow2", &["-o", "compat=1.1"]),
    ("version-2", "qcow2", "qcow2", &["-o", "compat=0.10"]),
    ("compressed", "qcow2", "qcow2", &["-c"]),
    ("smallest-clusters", "qcow2", "qcow2", &["-o", "cluster_size=512"]),
    ("largest-clusters", "qcow2", "qcow2", &["-o", "cluster_size=2M"]),
    ("preallocated", "qcow2", "qcow2", &["-o", "preallocation=metadata"]),
    ("sparse", "vmdk", "vmdk", &["-o", "subformat=monolithicSparse"]),
    ("stream", "vmdk", "vmdk", &["-o", "subformat=streamOptimized"]),
    ("dynamic-vhdx", "vhdx", "vhdx", &["-o", "subformat=dynamic"]),
    ("fixed-vhdx", "vhdx", "vhdx", &["-o", "subformat=fixed"]),
    ("dynamic-vhd", "vhd", "vpc", &["-o", "subformat=dynamic,force_size"]),
    ("fixed-vhd", "vhd", "vpc", &["-o", "subformat=fixed,force_size"]),
    ("vdi", "vdi", "vdi", &[]),
];

fn tool(arguments: &[&str]) -> Result<String> {
    Ok(process::output(Command::new("qemu-img").args(arguments), TOOL_LIMIT)?)
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Returns the content of the disk in all images.
    fn raw(&self) -> Result<String> {
        let raw = self.path("raw");
        if !Path::new(&raw).exists() {
            qemu::make_image(raw.as_ref(), DISK_LENGTH, 0x1a6e)?;
        }
        Ok(raw)
    }

    fn image(&self, name: &str, format: &str, options: &[&str]) -> Result<String> {
        let (raw, image) = (self.raw()?, self.path(name));
        let arguments = [&["convert", "-f", "raw", "-O", format], options, &[&raw, &image]];
        tool(&arguments.concat())?;
        Ok(image)
    }

    fn volume(&self) -> Volume {
        Volume::new("disk", Backing::File(PathBuf::from(self.path("volume"))), DISK_LENGTH)
    }
}

/// Fills the disk with old data.
fn fill(url: &Url, length: u64) -> Result<()> {
    qemu::patterns(url, HeaderDigest::Off, &[&format!("write -P {OLD} 0 {length}")])?;
    Ok(())
}

/// Checks that the disk still has its old data only.
fn check_untouched(url: &Url, length: u64) -> Result<()> {
    qemu::patterns(url, HeaderDigest::Off, &[&format!("read -P {OLD} 0 {length}")])?;
    Ok(())
}

#[test]
fn images_of_all_formats_replace_old_data_and_stay_sparse() -> Result<()> {
    let folder = Folder::new()?;
    let serving = Serving::start(&[folder.volume()])?;
    let url = serving.url("disk");
    let to = url.to_string();
    for (name, format, qemu_format, options) in IMAGES {
        let image = folder.image(name, qemu_format, options)?;
        fill(url, DISK_LENGTH)?;
        succeed(&["disk", "write", &image, &to, "--format", format]).context(*name)?;
        // QEMU's reading of the image decides.
        let (expected, found) = (folder.path("expected"), folder.path("found"));
        tool(&["convert", "-f", qemu_format, "-O", "raw", &image, &expected])?;
        succeed(&["disk", "read", &to, &found])?;
        ensure!(fs::read(&expected)? == fs::read(&found)?, "{name}: the disk has other data");
        // A quarter is data, in pieces of up to 256 KiB at offsets that are no multiple of a cluster.
        let used = fs::metadata(folder.path("volume"))?.blocks() * 512;
        ensure!(used < DISK_LENGTH / 2, "{name}: {used} bytes are allocated");
        let said = succeed(&["disk", "verify", &to, &image, "--format", format])?;
        ensure!(said.contains("equal: 32 MiB"), "{name}: {said}");
        fs::remove_file(image)?;
    }
    serving.stop()
}

#[test]
fn disk_sizes_that_are_no_multiple_of_a_cluster_are_read() -> Result<()> {
    let folder = Folder::new()?;
    let serving = Serving::start(&[folder.volume()])?;
    let to = serving.url("disk").to_string();
    let (image, expected, found) =
        (folder.path("image"), folder.path("expected"), folder.path("found"));
    for size in ["1536", "100k", "5242368"] {
        tool(&["create", "-q", "-f", "qcow2", &image, size])?;
        let mut writes = Command::new("qemu-io");
        writes.args(["-f", "qcow2", "-c", "write -P 7 1024 512", "-c", "write -P 9 0 100"]);
        process::output(writes.arg(&image), TOOL_LIMIT)?;
        tool(&["convert", "-f", "qcow2", "-O", "raw", &image, &expected])?;
        let length = fs::metadata(&expected)?.len().to_string();
        succeed(&["disk", "write", &image, &to, "--format", "qcow2", "--destroy"])?;
        succeed(&["disk", "read", &to, &found, "--length", &length])?;
        ensure!(fs::read(&expected)? == fs::read(&found)?, "{size}");
    }
    serving.stop()
}

#[test]
fn an_image_without_its_format_is_refused_and_nothing_is_written() -> Result<()> {
    let folder = Folder::new()?;
    let serving = Serving::start(&[folder.volume()])?;
    let url = serving.url("disk");
    let to = url.to_string();
    fill(url, DISK_LENGTH)?;
    for (name, format, qemu_format, options) in IMAGES {
        let image = folder.image(name, qemu_format, options)?;
        for arguments in [["disk", "write", &image, &to], ["disk", "verify", &to, &image]] {
            let said = fail(USAGE, &arguments)?;
            let flags = [format!("--format {format} "), "--format raw".into()];
            ensure!(flags.iter().all(|flag| said.contains(flag)), "{name}: {said}");
        }
        if *format != "vhd" || *name != "fixed-vhd" {
            // A stream shows only its beginning.
            let mut piped = command(&["disk", "write", "-", &to])?;
            let piped = piped.stdin(File::open(&image)?).output()?;
            ensure!(piped.status.code() == Some(USAGE), "{name}: {}", text(&piped.stderr));
        }
        fs::remove_file(image)?;
    }
    check_untouched(url, DISK_LENGTH)?;
    // The file itself is written if the user says so.
    let image = folder.image("image", "qcow2", &[])?;
    succeed(&["disk", "write", &image, &to, "--format", "raw"])?;
    succeed(&["disk", "verify", &to, &image, "--format", "raw"])?;
    let other = succeed(&["disk", "write", &image, &to, "--format", "qcow2", "--destroy"])?;
    ensure!(other.contains("32 MiB written"), "{other}");
    let said = fail(FAILED, &["disk", "write", &image, &to, "--format", "vmdk", "--destroy"])?;
    ensure!(said.contains("no valid VMDK image"), "{said}");
    fail(USAGE, &["disk", "write", "-", &to, "--format", "qcow2"])?;
    fail(USAGE, &["disk", "verify", &to, &to, "--format", "qcow2"])?;
    serving.stop()
}

#[test]
fn files_that_an_image_names_are_opened_only_with_permission() -> Result<()> {
    let folder = Folder::new()?;
    let serving = Serving::start(&[folder.volume()])?;
    let url = serving.url("disk");
    let to = url.to_string();
    let path = |name: &str| folder.path(name);
    let raw = folder.raw()?;
    folder.image("base.qcow2", "qcow2", &[])?;
    folder.image("base.vmdk", "vmdk", &[])?;
    for (format, base, base_format) in [
        ("qcow2", "raw", "raw"),
        ("qcow2", "base.qcow2", "qcow2"),
        ("qcow2", "over.qcow2", "qcow2"),
        ("vmdk", "base.vmdk", "vmdk"),
    ] {
        let image = if base == "over.qcow2" {
            path("twice.qcow2")
        } else {
            path(&format!("over.{format}"))
        };
        tool(&["create", "-q", "-f", format, "-b", base, "-F", base_format, &image])?;
        let mut writes = Command::new("qemu-io");
        writes.args(["-f", format, "-c", "write -P 1 5M 70000", "-c", "write -z 9M 1M"]);
        process::output(writes.arg(&image), TOOL_LIMIT)?;
        check_permission(&folder, url, &image, format, base)?;
    }
    let data = format!("data_file={}", path("data"));
    let image = folder.image("external.qcow2", "qcow2", &["-o", &data])?;
    check_permission(&folder, url, &image, "qcow2", "data")?;
    let image = folder.image("flat.vmdk", "vmdk", &["-o", "subformat=monolithicFlat"])?;
    check_permission(&folder, url, &image, "vmdk", "flat-flat.vmdk")?;
    let image = folder.image("two.vmdk", "vmdk", &["-o", "subformat=twoGbMaxExtentSparse"])?;
    check_permission(&folder, url, &image, "vmdk", "two-s001.vmdk")?;

    // The format of a backing file is not guessed: its user could make it look like an image.
    let image = path("unknown.qcow2");
    tool(&["create", "-q", "-f", "qcow2", "-b", &raw, "-F", "raw", &image])?;
    tool(&["rebase", "-u", "-b", "", &image])?;
    tool(&["amend", "-o", "compat=0.10", &image])?;
    let mut bytes = fs::read(&image)?;
    let name = raw.as_bytes();
    bytes[8..16].copy_from_slice(&1024_u64.to_be_bytes());
    bytes[16..20].copy_from_slice(&(name.len() as u32).to_be_bytes());
    bytes[1024..1024 + name.len()].copy_from_slice(name);
    bytes[72..80].fill(0);
    fs::write(&image, bytes)?;
    let arguments = ["disk", "write", &image, &to, "--format", "qcow2", "--permit-references"];
    let said = fail(FAILED, &[&arguments[..], &["--destroy"]].concat())?;
    ensure!(said.contains("does not record the format"), "{said}");
    serving.stop()
}

/// Checks that an image is refused without the permission, and written with it.
fn check_permission(
    folder: &Folder,
    url: &Url,
    image: &str,
    format: &str,
    named: &str,
) -> Result<()> {
    let to = url.to_string();
    fill(url, DISK_LENGTH)?;
    let arguments = ["disk", "write", image, &to, "--format", format];
    let said = fail(USAGE, &arguments)?;
    ensure!(said.contains(named) && said.contains("--permit-references"), "{image}: {said}");
    check_untouched(url, DISK_LENGTH)?;
    succeed(&[&arguments[..], &["--permit-references"]].concat())?;
    let (expected, found) = (folder.path("expected"), folder.path("found"));
    tool(&["convert", "-f", format, "-O", "raw", image, &expected])?;
    succeed(&["disk", "read", &to, &found])?;
    ensure!(fs::read(&expected)? == fs::read(&found)?, "{image}: the disk has other data");
    Ok(())
}

#[test]
fn a_smaller_disk_and_a_truncated_image_are_refused_before_a_write() -> Result<()> {
    let folder = Folder::new()?;
    let small = DISK_LENGTH - MIB;
    let serving = Serving::start(&[folder.volume(), Volume::new("small", Backing::Ram, small)])?;
    let (url, smaller) = (serving.url("disk"), serving.url("small"));
    fill(url, DISK_LENGTH)?;
    fill(smaller, small)?;
    for (name, format, qemu_format, options) in IMAGES {
        let image = folder.image(name, qemu_format, options)?;
        let said =
            fail(FAILED, &["disk", "write", &image, &smaller.to_string(), "--format", format])?;
        ensure!(said.contains("do not fit"), "{name}: {said}");
        let length = fs::metadata(&image)?.len();
        for kept in [length * 3 / 4, length / 2, 4096, 100, 0] {
            File::options().write(true).open(&image)?.set_len(kept)?;
            let arguments = ["disk", "write", &image, &url.to_string(), "--format", format];
            let said = fail(FAILED, &arguments).with_context(|| format!("{name}, {kept} bytes"))?;
            ensure!(!said.contains("panicked"), "{name}: {said}");
        }
        fs::remove_file(image)?;
    }
    check_untouched(smaller, small)?;
    check_untouched(url, DISK_LENGTH)?;
    serving.stop()
}

#[test]
fn an_export_is_a_sparse_image_without_errors() -> Result<()> {
    let folder = Folder::new()?;
    let large = Volume::new("large", Backing::Ram, DISK_LENGTH).block_size(4096);
    let serving = Serving::start(&[folder.volume(), large])?;
    let (raw, image) = (folder.raw()?, folder.path("image"));
    // What was there before is overwritten.
    fs::copy(&raw, &image)?;
    for name in ["disk", "large"] {
        let url = serving.url(name).to_string();
        succeed(&["disk", "write", &raw, &url])?;
        succeed(&["disk", "read", &url, &image, "--format", "qcow2"])?;
        tool(&["check", "-f", "qcow2", &image])?;
        tool(&["compare", "-f", "qcow2", "-F", "raw", &image, &raw])?;
        let used = fs::metadata(&image)?.len();
        ensure!(used < DISK_LENGTH / 2, "{name}: the image has {used} bytes");
        let map = tool(&["map", "--output=json", "-f", "qcow2", &image])?;
        ensure!(map.contains("\"present\": false"), "nothing is unallocated:\n{map}");
        succeed(&["disk", "verify", &url, &image, "--format", "qcow2"])?;

        // A part, whose size is no multiple of a cluster.
        let part = ["--offset", "1049088", "--length", "5242368", "--format", "qcow2"];
        succeed(&[&["disk", "read", &url, &image], &part[..]].concat())?;
        let expected = folder.path("expected");
        fs::write(&expected, &fs::read(&raw)?[1_049_088..][..5_242_368])?;
        tool(&["check", "-f", "qcow2", &image])?;
        tool(&["compare", "-f", "qcow2", "-F", "raw", &image, &expected])?;
        let info = tool(&["info", "--output=json", "-f", "qcow2", &image])?;
        ensure!(info.contains("\"virtual-size\": 5242368"), "{info}");

        let said =
            fail(FAILED, &["disk", "read", &url, &image, "--format", "qcow2", "--length", "1000"])?;
        ensure!(said.contains("multiple of 512"), "{said}");
        fail(USAGE, &["disk", "read", &url, "-", "--format", "qcow2"])?;
    }
    serving.stop()
}

/// Returns the processes that have `argument` in their command lines.
fn processes_with(argument: &str) -> Result<Vec<Pid>> {
    let named = |pid: Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        text(&line).contains(argument)
    };
    let names = fs::read_dir("/proc")?.flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?));
    Ok(pids.filter(|&pid| named(pid)).collect())
}

#[test]
fn missing_tools_are_named_with_their_package() -> Result<()> {
    let folder = Folder::new()?;
    let image = folder.image("image", "vhdx", &[])?;
    let output = Command::new(sarsen_proof::program::path()?)
        .args(["disk", "write", &image, "iscsi://127.0.0.1:1/iqn.2026-11.proof:none/0"])
        .args(["--format", "vhdx"])
        .env("PATH", folder.path("without-programs"))
        .output()?;
    let said = text(&output.stderr);
    ensure!(output.status.code() == Some(FAILED), "{}: {said}", output.status);
    ensure!(said.contains("qemu-img is missing") && said.contains("qemu-utils"), "{said}");
    Ok(())
}

#[test]
fn a_killed_program_leaves_neither_a_process_nor_a_folder() -> Result<()> {
    let folder = Folder::new()?;
    let image = folder.image("image", "vmdk", &[])?;
    let temporary = tempfile::tempdir()?;
    // The target accepts the connection and does not answer: the image is open by then.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("iscsi://{}/iqn.2026-11.proof:silent/0", silent.local_addr()?);
    let mut child = Command::new(sarsen_proof::program::path()?)
        .args(["disk", "write", &image, &url, "--format", "vmdk"])
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let (mut login, _) = silent.accept()?;
    login.read_exact(&mut [0; 48])?;
    let served = format!("\"{image}\"");
    let servers = processes_with(&served)?;
    ensure!(!servers.is_empty(), "no process has the image open");
    let open = |&pid: &Pid| pidfd_open(pid, PidfdFlags::empty());
    let servers = servers.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    child.kill()?;
    child.wait()?;
    for server in &servers {
        let mut ended = [PollFd::new(server, PollFlags::IN)];
        let limit = Timespec { tv_sec: TOOL_LIMIT.as_secs() as i64, tv_nsec: 0 };
        ensure!(poll(&mut ended, Some(&limit))? == 1, "qemu-nbd still runs");
    }
    ensure!(fs::read_dir(temporary.path())?.next().is_none(), "a folder is left");
    Ok(())
}
