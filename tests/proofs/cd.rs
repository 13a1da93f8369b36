//! A CD: a PC boots from it over iSCSI, and a Linux kernel mounts it, ejects it and loads it again. Ignored by default
//! like all proofs that boot a kernel under emulation; `cargo xtask ci --full` runs it.

use std::path::Path;

use anyhow::{Context as _, Result};
use sarsen_proof::guest::{Guest, HOST, ScenarioReport};
use sarsen_proof::{Serving, Volume, qemu};

const PAYLOAD_BYTES: u64 = 24 << 20;

/// Checks the results that every path to the disc must have.
fn check(played: &ScenarioReport, payload: &Path) -> Result<()> {
    println!("{}", played.console);
    let expected = qemu::sha256(payload)?;
    assert_eq!(played.result("model")?.trim(), "SARSEN DVD-ROM");
    assert_eq!(played.result("read")?, expected);
    assert_eq!(played.result("read_again")?, expected, "after it was ejected and loaded");
    assert_eq!(played.result("drive")?, "4", "what /proc/sys/dev/cdrom/info says");
    for (name, expected) in [
        ("ejected_in_use", "no"),
        ("configuration", "yes"),
        ("inquiry", "yes"),
        ("pages", "yes"),
        ("modes", "yes"),
        ("capacity", "yes"),
        ("opcodes", "yes"),
        ("ready", "yes"),
        ("toc", "yes"),
        ("disc", "yes"),
        ("track", "yes"),
        ("events", "yes"),
        ("ejected", "yes"),
        ("ready_when_open", "no"),
        ("closed_by_reading", "yes"),
        ("ejected_again", "yes"),
        ("loaded", "yes"),
    ] {
        assert_eq!(played.result(name)?, expected, "{name}");
    }
    assert_eq!(played.result("complaints")?, "0");
    Ok(())
}

/// The firmware, the loader and the kernel read with commands that reach the server unchanged: `scsi-block` forwards
/// each CDB.
#[test]
#[ignore = "boots a kernel under emulation"]
fn a_pc_boots_from_a_cd_and_its_kernel_mounts_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (payload, image) = (folder.path().join("payload"), folder.path().join("boot.iso"));
    qemu::make_image(&payload, PAYLOAD_BYTES, 0xcd)?;
    let guest = Guest::new("cd", &[])?;
    guest.write_disc(&image, &payload)?;
    let serving = Serving::start(&[Volume::cd("boot", &image)])?;
    let drive = format!("file={},format=raw,if=none,id=cd,readonly=on", serving.url("boot"));
    let guest = guest.devices(&[
        "-device",
        "virtio-scsi-pci",
        "-drive",
        &drive,
        "-device",
        "scsi-block,drive=cd,bootindex=0",
    ]);
    let played = guest.run_from_disc().with_context(|| serving.log())?;
    check(&played, &payload)?;
    assert_eq!(played.result("bytes")?, image.metadata()?.len().to_string());
    serving.stop()
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn the_kernels_initiator_mounts_ejects_and_loads_a_cd() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (payload, image) = (folder.path().join("payload"), folder.path().join("disc.iso"));
    qemu::make_image(&payload, PAYLOAD_BYTES, 0xdc)?;
    // The CD is also bootable, which this proof does not use.
    Guest::new("cd", &[])?.write_disc(&image, &payload)?;
    let serving = Serving::start(&[Volume::cd("disc", &image)])?;
    let url = serving.url("disc");
    let portal = format!("{HOST}:{}", url.port()?);
    let guest = Guest::new("cd", &[("PORTAL", &portal), ("IQN", &url.iqn)])?;
    let played = guest.run().with_context(|| serving.log())?;
    check(&played, &payload)?;
    assert_eq!(played.result("bytes")?, image.metadata()?.len().to_string());
    serving.stop()
}
