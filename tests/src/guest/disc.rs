//! An ISO 9660 image that a PC's firmware boots: isolinux, a kernel and its archive.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::process;

/// Files from Debian's packages isolinux and syslinux-common.
const LOADER: [&str; 2] =
    ["/usr/lib/ISOLINUX/isolinux.bin", "/usr/lib/syslinux/modules/bios/ldlinux.c32"];
const LIMIT: Duration = Duration::from_secs(120);

/// Writes the image.
pub(super) fn write(
    image: &Path,
    kernel: &Path,
    initrd: &Path,
    payload: &Path,
    arguments: &str,
) -> Result<()> {
    let work = tempfile::tempdir()?;
    let folder = work.path();
    let copy = |source: &Path, name: &str| {
        fs::copy(source, folder.join(name)).with_context(|| source.display().to_string())
    };
    for source in LOADER.map(Path::new) {
        copy(source, &source.file_name().unwrap_or_default().to_string_lossy())?;
    }
    copy(kernel, "vmlinuz")?;
    copy(initrd, "initrd")?;
    copy(payload, "payload")?;
    let menu = format!(
        "serial 0\ndefault guest\nlabel guest\n  kernel vmlinuz\n  initrd initrd\n  append {arguments}\n"
    );
    fs::write(folder.join("isolinux.cfg"), menu)?;
    let mut command = Command::new("genisoimage");
    command
        .args(["-quiet", "-R", "-V", "PROOF", "-b", "isolinux.bin", "-c", "boot.cat"])
        .args(["-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", "-o"])
        .arg(image)
        .arg(folder);
    process::output(&mut command, LIMIT)?;
    Ok(())
}
