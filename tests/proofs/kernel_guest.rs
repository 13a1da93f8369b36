//! A Linux kernel's own initiator. Ignored by default: emulation takes its time, and Debian's
//! kernel is downloaded once. `cargo xtask ci --full` runs them.

use anyhow::{Context as _, Result};
use sarsen_proof::guest::{self, HOST};
use sarsen_proof::{Backing, Serving, Volume};

const BYTE_COUNT: u64 = 256 << 20;

fn ext4_lives(volume: Volume, digest: &str) -> Result<()> {
    let name = volume.name.clone();
    let serving = Serving::start(&[volume])?;
    let url = serving.url(&name);
    let environment = [
        ("PORTAL", format!("{HOST}:{}", url.port()?)),
        ("IQN", url.iqn.clone()),
        ("HEADER_DIGEST", digest.to_owned()),
        ("DATA_DIGEST", digest.to_owned()),
    ];
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let played = guest::run("ext4", &environment).with_context(|| serving.log())?;
    println!("{}", played.console);
    assert_eq!(played.result("bytes")?, BYTE_COUNT.to_string());
    let in_use = if digest == "CRC32C" { "1" } else { "0" };
    assert_eq!(played.result("header_digest")?, in_use);
    assert_eq!(played.result("data_digest")?, in_use);
    let written = played.result("written")?;
    assert_eq!(written.len(), 64, "a SHA-256 in hexadecimal");
    assert_eq!(played.result("read")?, written);
    assert_eq!(played.result("read_after_trim")?, written);
    assert_eq!(played.result("trim")?, "done");
    assert_eq!(played.result("complaints")?, "0", "{}", played.console);
    serving.stop()
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn ext4_on_a_ram_volume_is_clean_and_equal_after_a_remount() -> Result<()> {
    ext4_lives(Volume::new("scratch", Backing::Ram, BYTE_COUNT), "None")
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn ext4_on_a_file_volume_is_clean_and_equal_with_both_digests() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let backing = Backing::File(folder.path().join("data.img"));
    ext4_lives(Volume::new("data", backing, BYTE_COUNT), "CRC32C")
}
