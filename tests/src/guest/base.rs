//! The base of every guest: Debian's kernel, and an archive with busybox, open-iscsi, nbd-client, e2fsprogs, fio,
//! xfsprogs, dmsetup, multipath-tools, udev, eject, sg3-utils, bonnie++, rtslib and the necessary modules. apt downloads it into a private state, so that nothing is installed and
//! root is not necessary. The result is kept until the recipe changes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::archive::Archive;
use super::modules::{self, Modules};
use crate::process;

/// Increase this number when this file processes the lists below differently.
const RECIPE_VERSION: u32 = 4;

/// Debian's name for its newest kernel of this release; it depends on the package with the kernel.
const KERNEL: &str = "linux-image-6.12-amd64";

/// Packages that scenarios use; Debian's dependencies add their libraries.
const PACKAGES: &[&str] = &[
    "bonnie++",
    "busybox-static",
    "dmsetup",
    "e2fsprogs",
    "eject",
    "fio",
    "libc-bin",
    "multipath-tools",
    "nbd-client",
    "open-iscsi",
    "python3-rtslib-fb",
    "sg3-utils",
    "thin-provisioning-tools",
    "udev",
    "xfsprogs",
];

/// Dependencies that are never used: package management, perl.
const UNUSED_PACKAGES: &[&str] = &[
    "adduser",
    "debconf",
    "dpkg",
    "init-system-helpers",
    "libfile-find",
    "libgdbm",
    "libnumber",
    "libpam-modules",
    "libperl",
    "libsemanage",
    "libtext-glob",
    "passwd",
    "perl",
    "tar",
    "usrmerge",
];

/// Folders that no program in the guest reads.
const UNUSED_FOLDERS: &[&str] =
    &["etc/init.d", "lib/systemd", "usr/lib/x86_64-linux-gnu/gconv", "usr/share"];

/// Modules that the guest needs; the code determines their dependencies.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "virtio_scsi",
    "virtio_blk",
    "crc32c_generic",
    "sd_mod",
    "sg",
    "sr_mod",
    "scsi_dh_alua",
    "iscsi_tcp",
    "nbd",
    "ublk_drv",
    "iscsi_target_mod",
    "target_core_file",
    "target_core_iblock",
    "ext4",
    "xfs",
    "isofs",
    "dm_log_writes",
    "dm_multipath",
    "dm_service_time",
    "dm_thin_pool",
];

const APT_LIMIT: Duration = Duration::from_secs(600);
const UNPACK_LIMIT: Duration = Duration::from_secs(120);

/// Files from which QEMU boots.
pub(super) struct Base {
    pub(super) kernel: PathBuf,
    pub(super) archive: PathBuf,
}

/// Returns the base in `folder/cache`; builds it if it is missing or the recipe has changed.
pub(super) fn prepare(folder: &Path) -> Result<Base> {
    let cache = folder.join("cache");
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    // Only one process builds the base; the others use its result.
    let lock = File::create(cache.join("lock"))?;
    lock.lock()?;
    let base = Base { kernel: cache.join("vmlinuz"), archive: cache.join("base.cpio") };
    let recipe = format!("{RECIPE_VERSION} {KERNEL} {PACKAGES:?} {MODULES:?} {UNUSED_FOLDERS:?}");
    let stamp = cache.join("recipe");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == recipe) {
        return Ok(base);
    }
    let work = tempfile::Builder::new().prefix("build-").tempdir_in(&cache)?;
    build(work.path(), &base).context("the guest's base")?;
    fs::write(stamp, recipe)?;
    Ok(base)
}

fn build(work: &Path, base: &Base) -> Result<()> {
    let apt = Apt::new(work)?;
    apt.download()?;
    let root = work.join("root");
    let kernel_root = work.join("kernel");
    for package in apt.downloaded()? {
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("linux-image-") {
            unpack(&package, &kernel_root)?;
        } else if !UNUSED_PACKAGES.iter().any(|unused| name.starts_with(unused)) {
            unpack(&package, &root)?;
        }
    }
    let version = only_name(&kernel_root.join("lib/modules"))?;
    fs::copy(kernel_root.join(format!("boot/vmlinuz-{version}")), &base.kernel)?;
    let modules = Modules::below(&kernel_root.join("lib/modules").join(version))?;
    write_archive(&base.archive, &root, &modules.in_load_order(MODULES)?)
}

fn write_archive(path: &Path, root: &Path, modules: &[PathBuf]) -> Result<()> {
    let mut archive = Archive::create(path)?;
    archive.tree(root, &|name: &str| UNUSED_FOLDERS.contains(&name))?;
    for folder in ["dev", "mnt", "modules", "proc", "root", "run", "sys", "tmp"] {
        archive.folder(folder)?;
    }
    // Devices for the output of the first program before any mount.
    archive.character_device("dev/console", (5, 1))?;
    archive.link("bin/sh", "busybox")?;
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    let mut order = String::new();
    for (index, module) in modules.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        // The numbers make the shell's order of names equal to the load order.
        let name = format!("modules/{index:03}-{}", name.trim_end_matches(".xz"));
        archive.file(&name, 0o644, &modules::image(module)?)?;
        order += &format!("/{name}\n");
    }
    archive.file("modules/order", 0o644, order.as_bytes())?;
    archive.finish()
}

/// apt with a separate state, in which no package is installed.
struct Apt<'a> {
    work: &'a Path,
    own_lists: bool,
}

impl<'a> Apt<'a> {
    fn new(work: &'a Path) -> Result<Self> {
        fs::create_dir_all(work.join("archives/partial"))?;
        fs::create_dir_all(work.join("lists/partial"))?;
        fs::write(work.join("status"), "")?;
        let mut apt = Self { work, own_lists: false };
        // A new machine, or a container image, has no package lists yet.
        apt.own_lists = apt.kernel_package().is_err();
        if apt.own_lists {
            process::output(apt.command("apt-get").args(["-q", "update"]), APT_LIMIT)?;
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let work = self.work.display();
        let mut options = vec![
            format!("Dir::State::status={work}/status"),
            format!("Dir::Cache::archives={work}/archives"),
            format!("Dir::Cache::pkgcache={work}/pkgcache.bin"),
            format!("Dir::Cache::srcpkgcache={work}/srcpkgcache.bin"),
            "APT::Install-Recommends=0".into(),
            "APT::Sandbox::User=".into(),
            "Debug::NoLocking=1".into(),
        ];
        if self.own_lists {
            options.push(format!("Dir::State::lists={work}/lists"));
        }
        let mut command = Command::new(program);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        for option in options {
            command.args(["-o", &option]);
        }
        command
    }

    /// Returns the package that contains the kernel itself.
    fn kernel_package(&self) -> Result<String> {
        let mut command = self.command("apt-cache");
        let said = process::output(command.args(["depends", KERNEL]), APT_LIMIT)?;
        said.lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with("linux-image-"))
            .map(Into::into)
            .with_context(|| format!("apt knows no kernel behind {KERNEL}"))
    }

    fn download(&self) -> Result<()> {
        let mut closure = self.command("apt-get");
        closure.args(["-q", "-y", "--download-only", "install"]).args(PACKAGES);
        process::output(&mut closure, APT_LIMIT)?;
        // Downloads the kernel alone, because its dependencies only build an initramfs, which this code does itself.
        let mut kernel = self.command("apt-get");
        kernel.args(["-q", "download", &self.kernel_package()?]);
        kernel.current_dir(self.work.join("archives"));
        process::output(&mut kernel, APT_LIMIT)?;
        Ok(())
    }

    fn downloaded(&self) -> Result<Vec<PathBuf>> {
        let mut packages = Vec::new();
        for entry in fs::read_dir(self.work.join("archives"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                packages.push(path);
            }
        }
        packages.sort();
        Ok(packages)
    }
}

fn unpack(package: &Path, into: &Path) -> Result<()> {
    let mut command = Command::new("dpkg-deb");
    command.arg("--extract").arg(package).arg(into);
    process::output(&mut command, UNPACK_LIMIT)?;
    Ok(())
}

fn only_name(folder: &Path) -> Result<String> {
    let entry = fs::read_dir(folder)?.next().with_context(|| folder.display().to_string())??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}
