//! What guests boot from: Debian's kernel, and an archive with the packages and the kernel modules of a [`Recipe`]. apt
//! downloads them into a private state, so that nothing is installed and root is not necessary. The result is kept until
//! the recipe changes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::archive::Archive;
use super::modules::{self, Modules};
use super::{GuestError, at};
use crate::process;

/// Increase this number when this file processes recipes differently.
const VERSION: u32 = 5;

/// Debian's name for its newest kernel of this release; it depends on the package with the kernel.
const KERNEL: &str = "linux-image-6.12-amd64";

/// What the guests of one kind contain.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Its name, which is that of its folder in the cache.
    pub name: &'static str,
    /// Debian's packages; their dependencies are added.
    pub packages: &'static [&'static str],
    /// Kernel modules; their dependencies are added.
    pub modules: &'static [&'static str],
}

/// Packages of every guest.
const PACKAGES: &[&str] = &["busybox-static", "libc-bin"];

/// Modules of every guest.
const MODULES: &[&str] =
    &["virtio_pci", "virtio_net", "virtio_blk", "virtio_console", "crc32c_generic"];

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

/// Folders that no program in a guest reads.
const UNUSED_FOLDERS: &[&str] =
    &["etc/init.d", "lib/systemd", "usr/lib/x86_64-linux-gnu/gconv", "usr/share"];

const APT_LIMIT: Duration = Duration::from_secs(600);
const UNPACK_LIMIT: Duration = Duration::from_secs(120);

/// Files from which QEMU boots.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) kernel: PathBuf,
    pub(super) archive: PathBuf,
    /// Contains the release of the kernel.
    release: PathBuf,
}

/// Returns the base of a recipe in the folder `cache`; builds it if it is missing or the recipe has changed.
pub(super) fn prepare(recipe: &Recipe, cache: &Path) -> Result<Base, GuestError> {
    let folder = cache.join(recipe.name);
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    // Only one process builds the base; the others use its result.
    let path = folder.join("lock");
    let lock = File::create(&path).map_err(at(&path))?;
    lock.lock().map_err(at(&path))?;
    let [kernel, archive, release] =
        ["vmlinuz", "base.cpio", "release"].map(|name| folder.join(name));
    let base = Base { kernel, archive, release };
    let contents =
        format!("{VERSION} {KERNEL} {PACKAGES:?} {MODULES:?} {UNUSED_FOLDERS:?} {recipe:?}");
    let stamp = folder.join("recipe");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == contents) {
        return Ok(base);
    }
    // An interrupted build must not leave a new archive with an old recipe.
    match fs::remove_file(&stamp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&stamp)(error)),
        _ => {}
    }
    let work = tempfile::Builder::new().prefix("build-").tempdir_in(&folder);
    build(recipe, work.map_err(at(&folder))?.path(), &base)?;
    fs::write(&stamp, contents).map_err(at(&stamp))?;
    Ok(base)
}

/// Returns the release of the kernel of a recipe's guests, which `uname -r` prints there.
pub(crate) fn kernel_release(recipe: &Recipe, cache: &Path) -> Result<String, GuestError> {
    let base = prepare(recipe, cache)?;
    fs::read_to_string(&base.release).map_err(at(&base.release))
}

/// Downloads what is necessary to build modules for a kernel, and returns the folder for `make -C`. It is in the folder
/// `work`.
pub(crate) fn kernel_headers(release: &str, work: &Path) -> Result<PathBuf, GuestError> {
    let apt_folder = work.join("headers-packages");
    fs::create_dir(&apt_folder).map_err(at(&apt_folder))?;
    let apt = Apt::new(&apt_folder)?;
    let (common, flavour) = release.rsplit_once('-').unwrap_or((release, ""));
    let mut download = apt.command("apt-get");
    download.args(["-q", "download"]);
    download.args([
        format!("linux-headers-{common}-{flavour}"),
        format!("linux-headers-{common}-common"),
        format!("linux-kbuild-{common}"),
    ]);
    download.current_dir(apt_folder.join("archives"));
    process::output(&mut download, APT_LIMIT)?;
    let root = work.join("headers");
    for package in apt.downloaded()? {
        unpack(&package, &root)?;
    }
    let sources = root.join("usr/src");
    let headers = sources.join(format!("linux-headers-{release}"));
    // It names the place where the package is installed.
    let makefile = headers.join("Makefile");
    let included = sources.join(format!("linux-headers-{common}-common/Makefile"));
    fs::write(&makefile, format!("include {}\n", included.display())).map_err(at(&makefile))?;
    // Without it, no type information is built, which needs another program.
    let kernel = headers.join("vmlinux");
    match fs::remove_file(&kernel) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&kernel)(error)),
        _ => {}
    }
    Ok(headers)
}

fn build(recipe: &Recipe, work: &Path, base: &Base) -> Result<(), GuestError> {
    let apt = Apt::new(work)?;
    apt.download(recipe)?;
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
    fs::write(&base.release, &version).map_err(at(&base.release))?;
    let kernel = kernel_root.join(format!("boot/vmlinuz-{version}"));
    fs::copy(&kernel, &base.kernel).map_err(at(&kernel))?;
    let modules = Modules::below(&kernel_root.join("lib/modules").join(version))?;
    let names = [MODULES, recipe.modules].concat();
    write_archive(&base.archive, &root, &modules.in_load_order(&names)?)
}

fn write_archive(path: &Path, root: &Path, modules: &[PathBuf]) -> Result<(), GuestError> {
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
    fn new(work: &'a Path) -> Result<Self, GuestError> {
        for folder in ["archives/partial", "lists/partial"].map(|name| work.join(name)) {
            fs::create_dir_all(&folder).map_err(at(&folder))?;
        }
        let status = work.join("status");
        fs::write(&status, "").map_err(at(&status))?;
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
    fn kernel_package(&self) -> Result<String, GuestError> {
        let mut command = self.command("apt-cache");
        let said = process::output(command.args(["depends", KERNEL]), APT_LIMIT)?;
        said.lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with("linux-image-"))
            .map(Into::into)
            .ok_or(GuestError::NoKernel)
    }

    fn download(&self, recipe: &Recipe) -> Result<(), GuestError> {
        let mut closure = self.command("apt-get");
        closure.args(["-q", "-y", "--download-only", "install"]);
        closure.args(PACKAGES).args(recipe.packages);
        process::output(&mut closure, APT_LIMIT)?;
        // Downloads the kernel alone, because its dependencies only build an initramfs, which this code does itself.
        let mut kernel = self.command("apt-get");
        kernel.args(["-q", "download", &self.kernel_package()?]);
        kernel.current_dir(self.work.join("archives"));
        process::output(&mut kernel, APT_LIMIT)?;
        Ok(())
    }

    fn downloaded(&self) -> Result<Vec<PathBuf>, GuestError> {
        let folder = self.work.join("archives");
        let mut packages = Vec::new();
        for entry in fs::read_dir(&folder).map_err(at(&folder))? {
            let path = entry.map_err(at(&folder))?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                packages.push(path);
            }
        }
        packages.sort();
        Ok(packages)
    }
}

fn unpack(package: &Path, into: &Path) -> Result<(), GuestError> {
    let mut command = Command::new("dpkg-deb");
    command.arg("--extract").arg(package).arg(into);
    process::output(&mut command, UNPACK_LIMIT)?;
    Ok(())
}

fn only_name(folder: &Path) -> Result<String, GuestError> {
    let entry = fs::read_dir(folder).map_err(at(folder))?.next().transpose().map_err(at(folder))?;
    let entry = entry.ok_or(GuestError::NoKernel)?;
    Ok(entry.file_name().to_string_lossy().into_owned())
}
