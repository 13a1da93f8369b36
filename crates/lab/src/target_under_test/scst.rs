//! SCST, a target in modules that Linux does not contain. Debian has no package of it: the lab builds it from its sources
//! for the kernel of the guests, and keeps the result beside what the guests boot from.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::in_guest::Contents;
use super::{Backing, Image, TargetUnderTestError};
use crate::guest::{self, GuestError, Recipe};
use crate::process::{self, ProcessError};
use sarsen_node::stores::CacheMode;

const RECIPE: Recipe =
    Recipe { name: "scst", packages: &["libc6"], modules: &["scsi_mod", "dlm", "libcrc32c"] };

/// What is built: the path below the sources, and in the guest.
const BUILT: [(&str, &str); 4] = [
    ("scst/src/scst.ko", "scst/scst.ko"),
    ("scst/src/dev_handlers/scst_vdisk.ko", "scst/scst_vdisk.ko"),
    ("iscsi-scst/kernel/iscsi-scst.ko", "scst/iscsi-scst.ko"),
    ("iscsi-scst/usr/iscsi-scstd", "scst/iscsi-scstd"),
];
/// The parts of the sources that are built.
const SOURCES: [&str; 4] = ["Makefile", "scripts", "scst", "iscsi-scst"];

/// How the guest starts SCST.
const SCRIPT: &str = include_str!("scst.sh");

const COPY_LIMIT: Duration = Duration::from_secs(60);
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// Returns the folder with the sources of SCST, or the reason why there are none.
pub fn sources(folder: Option<&Path>) -> Result<&Path, String> {
    let Some(folder) = folder else {
        return Err("Debian has no package of SCST: clone https://github.com/SCST-project/scst, and name its folder with --scst".into());
    };
    match SOURCES.iter().find(|part| !folder.join(part).exists()) {
        None => Ok(folder),
        Some(part) => Err(format!(
            "{} has no {part}: these are not the sources of SCST, whose folder --scst names",
            folder.display()
        )),
    }
}

/// Returns a guest with SCST, which is built from its sources in a folder unless that was done before. `cache` is the
/// folder that keeps what guests boot from.
pub(super) fn in_guest(
    images: &[Image],
    folder: Option<&Path>,
    cache: &Path,
) -> Result<Contents, TargetUnderTestError> {
    let sources = sources(folder).map_err(TargetUnderTestError::Unable)?;
    let built = build(sources, cache).map_err(|error| match error {
        GuestError::Process(ProcessError::Start { .. }) => {
            TargetUnderTestError::Unable(format!("SCST cannot be built: {error}"))
        }
        error => error.into(),
    })?;
    let files = BUILT.map(|(_, path)| (path.to_owned(), built.join(path))).to_vec();
    let mut script = format!("{SCRIPT}load_scst\n");
    for (number, image) in (1..).zip(images) {
        let (handler, option) = device(image);
        writeln!(script, "serve_scst {number} {handler} blocksize={} {option}", image.block_bytes)
            .expect("a string has no limit");
    }
    script += "enable_scst\n";
    Ok(Contents { files, ..Contents::new(&RECIPE, images, script) })
}

/// Returns SCST's handler of an image, and its option. What is in memory is served as in the study: through the page
/// cache of the guest, without flushes.
fn device(image: &Image) -> (&'static str, &'static str) {
    match (&image.backing, image.cache) {
        (Backing::Memory, _) | (_, CacheMode::Unsafe) => ("vdisk_fileio", "nv_cache=1"),
        (_, CacheMode::WriteBack) => ("vdisk_fileio", ""),
        (_, CacheMode::WriteThrough) => ("vdisk_fileio", "write_through=1"),
        (_, CacheMode::None) => ("vdisk_blockio", ""),
        (_, CacheMode::DirectSync) => ("vdisk_blockio", "write_through=1"),
    }
}

/// Builds SCST for the kernel of its guests, and returns the folder with the result.
fn build(sources: &Path, cache: &Path) -> Result<PathBuf, GuestError> {
    let release = guest::kernel_release(&RECIPE, cache)?;
    let folder = cache.join(RECIPE.name);
    let built = folder.join("built");
    // Only one process builds it; the others use its result.
    let path = folder.join("build-lock");
    let lock = File::create(&path).map_err(guest::at(&path))?;
    lock.lock().map_err(guest::at(&path))?;
    let mut contents = format!("{release} {BUILT:?} {}\n", sources.display());
    for part in SOURCES {
        describe(&sources.join(part), &mut contents)?;
    }
    let stamp = built.join("sources");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == contents) {
        return Ok(built);
    }
    let work = tempfile::Builder::new().prefix("build-").tempdir_in(&folder);
    let work = work.map_err(guest::at(&folder))?;
    let copy = work.path().join("sources");
    fs::create_dir(&copy).map_err(guest::at(&copy))?;
    let mut cp = process::command("cp")?;
    cp.arg("--recursive").args(SOURCES.map(|part| sources.join(part))).arg(&copy);
    process::output(&mut cp, COPY_LIMIT)?;
    let headers = guest::kernel_headers(&release, work.path())?;
    // The compilers of the kernel's modules and of the program: a missing one is a reason, not a failure.
    for compiler in ["gcc-12", "cc"] {
        process::command(compiler)?;
    }
    // Without the checks and messages for SCST's developers; then the target.
    for goals in [&["2perf"][..], &["scst", "iscsi"]] {
        let mut make = process::command("make")?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        make.arg("--silent").arg(format!("--jobs={jobs}")).arg("--directory").arg(&copy);
        make.arg(format!("KDIR={}", headers.display())).arg(format!("KVER={release}")).args(goals);
        process::output(&mut make, BUILD_LIMIT)?;
    }
    remove(&built)?;
    for (source, path) in BUILT {
        let path = built.join(path);
        let parent = path.parent().unwrap_or(&built);
        fs::create_dir_all(parent).map_err(guest::at(parent))?;
        let mut strip = process::command("strip")?;
        strip.arg("--strip-debug").arg("-o").arg(&path).arg(copy.join(source));
        process::output(&mut strip, COPY_LIMIT)?;
    }
    fs::write(&stamp, contents).map_err(guest::at(&stamp))?;
    Ok(built)
}

fn remove(folder: &Path) -> Result<(), GuestError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(guest::at(folder)(error)),
        _ => Ok(()),
    }
}

/// Adds a line for each file of a tree, which changes with its content.
fn describe(path: &Path, lines: &mut String) -> Result<(), GuestError> {
    let about = fs::symlink_metadata(path).map_err(guest::at(path))?;
    if !about.is_dir() {
        writeln!(
            lines,
            "{} {} {}.{}",
            path.display(),
            about.len(),
            about.mtime(),
            about.mtime_nsec()
        )
        .expect("a string has no limit");
        return Ok(());
    }
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut paths: Vec<_> =
        entries.map_err(guest::at(path))?.iter().map(fs::DirEntry::path).collect();
    paths.sort();
    paths.iter().try_for_each(|path| describe(path, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_necessary() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |sources| in_guest(&[], sources, folder.path()).unwrap_err();
        assert!(
            matches!(refused(None), TargetUnderTestError::Unable(why) if why.contains("--scst"))
        );
        let other = refused(Some(folder.path())).to_string();
        assert!(other.contains("has no Makefile: these are not the sources of SCST"), "{other}");
    }

    #[test]
    fn changed_sources_are_another_build() {
        let folder = tempfile::tempdir().unwrap();
        let all = || {
            let mut lines = String::new();
            describe(folder.path(), &mut lines).unwrap();
            lines
        };
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("b/c.c"), "1").unwrap();
        let before = all();
        assert_eq!(before, all());
        fs::write(folder.path().join("b/c.c"), "11").unwrap();
        assert_ne!(before, all());
    }

    #[test]
    fn a_device_keeps_the_promise_of_its_volume() {
        let image = |backing, cache| Image { cache, ..Image::new("a", backing, 1 << 20) };
        let file = |cache| device(&image(Backing::File("/a".into()), cache));
        assert_eq!(file(CacheMode::WriteThrough), ("vdisk_fileio", "write_through=1"));
        assert_eq!(file(CacheMode::None), ("vdisk_blockio", ""));
        assert_eq!(file(CacheMode::Unsafe), ("vdisk_fileio", "nv_cache=1"));
        let memory = device(&image(Backing::Memory, CacheMode::WriteBack));
        assert_eq!(memory, ("vdisk_fileio", "nv_cache=1"));
    }
}
