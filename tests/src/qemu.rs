//! QEMU's tools on a logical unit: `qemu-img` copies and measures, `qemu-io` checks patterns.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_block::Rng;

use crate::process;
use crate::serving::Url;

/// Maximum duration of a copy of a gigabyte on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Length of the random pieces of an image, which holes separate.
const PIECE_BYTES: u64 = 256 << 10;

/// Creates an image whose content follows from `seed` alone: about a quarter data, the rest holes.
pub fn make_image(path: &Path, byte_count: u64, seed: u64) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(byte_count)?;
    let mut rng = Rng::new(seed);
    let mut piece = vec![0; PIECE_BYTES as usize];
    for offset in (0..byte_count).step_by(PIECE_BYTES as usize) {
        if rng.chance(25) {
            rng.fill(&mut piece);
            // Pieces are not aligned, so that copies have unaligned edges.
            let cut = rng.below(PIECE_BYTES / 512) as usize * 512;
            file.write_all_at(&piece[cut..], offset + cut as u64)?;
        }
    }
    Ok(())
}

/// Returns the SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> Result<String> {
    let said = process::output(Command::new("sha256sum").arg(path), LIMIT)?;
    let digest = said.split_whitespace().next().context("sha256sum printed nothing")?;
    Ok(digest.to_owned())
}

/// Copies an image file to a logical unit and writes every block.
pub fn copy_to(image: &Path, url: &Url) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(image).arg(url.to_string());
    process::output(&mut command, LIMIT)?;
    Ok(())
}

/// Copies a logical unit to an image file.
pub fn copy_from(url: &Url, image: &Path) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-f", "raw", "-O", "raw"]).arg(url.to_string()).arg(image);
    process::output(&mut command, LIMIT)?;
    Ok(())
}

/// Requests a copy of a logical unit to another by the target. Returns the number of bytes that the target copied. Data
/// that QEMU copies itself after a failed EXTENDED COPY is not included.
pub fn copy_within(from: &Url, to: &Url) -> Result<u64> {
    let mut command = Command::new("qemu-img");
    command.args(["--trace", "iscsi_xcopy", "convert", "-n", "-C", "-f", "raw", "-O", "raw"]);
    let said = process::output(command.args([from.to_string(), to.to_string()]), LIMIT)?;
    let mut copied = 0;
    for line in said.lines().filter(|line| line.contains("iscsi_xcopy")) {
        let words: Vec<_> = line.split_whitespace().collect();
        let after = |name: &str| {
            let mut pairs = words.windows(2);
            pairs.find(|pair| pair[0] == name).map(|pair| pair[1])
        };
        ensure!(after("ret") == Some("0"), "EXTENDED COPY failed: {line}");
        let bytes = after("bytes").with_context(|| format!("no number of bytes: {line}"))?;
        copied += bytes.parse::<u64>().with_context(|| line.to_owned())?;
    }
    Ok(copied)
}

/// Runs `qemu-img bench`: `count` requests of 4 KiB, 32 at once.
pub fn bench(url: &Url, writes: bool, count: u32) -> Result<String> {
    let mut command = Command::new("qemu-img");
    command.args(["bench", "-f", "raw", "-d", "32", "-s", "4096", "-c", &count.to_string()]);
    if writes {
        command.args(["-w", "--pattern=165", "--flush-interval=64"]);
    }
    let said = process::output(command.arg(url.to_string()), LIMIT)?;
    ensure!(said.contains("Run completed"), "qemu-img bench did not complete:\n{said}");
    Ok(said)
}

/// The setting of the header digest (CRC32C over each header).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderDigest {
    /// The initiator requires the digest.
    Crc32c,
    /// The initiator refuses the digest.
    Off,
}

/// Runs `qemu-io` commands on a logical unit, one after another; a pattern that does not match is an error.
pub fn patterns(url: &Url, digest: HeaderDigest, commands: &[&str]) -> Result<String> {
    let digest = match digest {
        HeaderDigest::Crc32c => "crc32c",
        HeaderDigest::Off => "none",
    };
    check_patterns(&[], &format!("{},file.header-digest={digest}", image(url)), commands)
}

/// Runs `qemu-io` commands; discards go to the unit as UNMAP.
pub fn discards(url: &Url, commands: &[&str]) -> Result<String> {
    check_patterns(&[], &format!("{},discard=unmap", image(url)), commands)
}

/// Runs `qemu-io` commands with CHAP; the secret is in a file.
pub fn patterns_by(user: &str, secret_file: &Path, url: &Url, commands: &[&str]) -> Result<String> {
    let secret = format!("secret,id=chap,file={}", secret_file.display());
    let image = format!("{},file.user={user},file.password-secret=chap", image(url));
    check_patterns(&["--object", &secret], &image, commands)
}

fn image(url: &Url) -> String {
    format!(
        "driver=raw,file.driver=iscsi,file.transport=tcp,file.portal={},file.target={},file.lun={}",
        url.portal, url.iqn, url.lun
    )
}

fn check_patterns(objects: &[&str], image: &str, commands: &[&str]) -> Result<String> {
    let mut command = Command::new("qemu-io");
    command.args(objects).arg("--image-opts").arg(image);
    for line in commands {
        command.args(["-c", line]);
    }
    let said = process::output(&mut command, LIMIT)?;
    // Old versions end with status 0 even if a pattern did not match.
    let wrong = ["Pattern verification failed", "failed:", "error"];
    ensure!(!wrong.iter().any(|sign| said.contains(sign)), "qemu-io {commands:?}:\n{said}");
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_follows_from_its_seed_alone_and_is_neither_empty_nor_full() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, seed| {
            let path = folder.path().join(name);
            make_image(&path, 16 << 20, seed).unwrap();
            std::fs::read(path).unwrap()
        };
        let image = make("a", 1);
        assert_eq!(image, make("b", 1));
        assert_ne!(image, make("c", 2));
        let data = image.iter().filter(|byte| **byte != 0).count();
        assert!((1 << 20..8 << 20).contains(&data), "{data} bytes of data");
    }
}
