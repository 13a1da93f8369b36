//! Pass-through of a real SCSI device, in a guest. QEMU's disk behind virtio-scsi is its `/dev/sg0`. The program under
//! test serves the device inside the guest, and the guest's own initiator finds the disk again. Ignored by default;
//! `cargo xtask ci --full` runs it.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use sarsen_lab::process;
use sarsen_proof::guest::Guest;
use sarsen_proof::program;

const BYTE_COUNT: u64 = 64 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the shared libraries of the program, and the loader, from the machine that built it: the guest's may be
/// older.
fn libraries(program: &str) -> Result<Vec<PathBuf>> {
    let said = process::output(Command::new("ldd").arg(program), LIMIT)?;
    let paths = said.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(PathBuf::from).collect())
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn a_disk_of_the_guest_is_served_as_it_is() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("disk");
    File::create(&image)?.set_len(BYTE_COUNT)?;
    let program = program::path()?;
    let mut loader = None;
    let iqn = "iqn.2026-11.io.sarsen:real";
    let mut files = vec![("served/sarsen".to_owned(), program.clone())];
    for path in libraries(&program.to_string_lossy())? {
        let name = path.file_name().context("a library's name")?.to_string_lossy().into_owned();
        if name.starts_with("ld-linux") {
            loader = Some(name.clone());
        }
        files.push((format!("served/{name}"), path));
    }
    let loader = loader.context("ldd names no loader")?;
    let server = format!(
        "exec /served/{loader} --library-path /served /served/sarsen serve \
         --volume real=sg:/dev/sg0 --listen 127.0.0.1:3260 --cores 1"
    );
    let environment = [("IQN", iqn), ("PORTAL", "127.0.0.1:3260"), ("SERVER", server.as_str())];
    let drive = format!("file={},format=raw,if=none,id=disk", image.display());
    let mut guest = Guest::new("sg", &environment)?.devices(&[
        "-device",
        "virtio-scsi-pci",
        "-drive",
        &drive,
        "-device",
        "scsi-hd,drive=disk,serial=a-real-one",
    ]);
    for (name, source) in &files {
        guest = guest.file(name, source);
    }
    let played = guest.run()?;
    println!("{}", played.console);
    let served = played.result("served")?;
    for name in ["vendor", "model", "bytes", "serial"] {
        let own = played.result(&format!("sda_{name}"))?;
        assert_eq!(played.result(&format!("{served}_{name}"))?, own, "{name}");
    }
    assert_eq!(played.result("sda_vendor")?, "QEMU");
    assert_eq!(played.result("sda_bytes")?, BYTE_COUNT.to_string());
    let written = played.result("written")?;
    assert_eq!(written.len(), 64, "a SHA-256 in hexadecimal");
    for way in ["read", "read_by_the_same_way", "read_back"] {
        assert_eq!(played.result(way)?, written, "{way}");
    }
    assert_eq!(played.result("sense")?, "1");
    assert_eq!(played.result("sense_alike")?, "yes");
    assert_eq!(played.result("complaints")?, "0");
    Ok(())
}
