//! A real client lets the target copy: QEMU sends EXTENDED COPY from one target to another.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::qemu;
use sarsen_proof::{Backing, Serving, Volume};

use crate::pools::{self, qemu_io};

const BYTE_COUNT: u64 = 64 << 20;

/// `qemu-img convert -C` must report that EXTENDED COPY copied all data of the image. Its number excludes data that
/// QEMU copies itself after a refusal.
#[test]
fn qemu_img_has_a_volume_copied_to_another_by_the_target() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
    qemu::make_image(&image, BYTE_COUNT, 0xc0_93)?;
    let expected = qemu::sha256(&image)?;
    let data_bytes = data_bytes(&fs::read(&image)?);
    let file = |name: &str| Backing::File(folder.path().join(name));
    for block_size in [512, 4096] {
        let volumes = [
            Volume::new("first", Backing::Ram, BYTE_COUNT).block_size(block_size),
            Volume::new("second", file(&block_size.to_string()), BYTE_COUNT).block_size(block_size),
            Volume::new("third", Backing::Ram, BYTE_COUNT).block_size(block_size),
        ];
        let serving = Serving::start(&volumes)?;
        qemu::copy_to(&image, serving.url("first"))?;
        for (from, to) in [("first", "second"), ("second", "third")] {
            let copied = qemu::copy_within(serving.url(from), serving.url(to))
                .with_context(|| serving.log())?;
            assert!(copied >= data_bytes, "the target copied {copied} of {data_bytes} bytes");
        }
        qemu::copy_from(serving.url("third"), &copy)?;
        assert_eq!(qemu::sha256(&copy)?, expected, "SHA-256 of what came back");
        fs::remove_file(&copy)?;
        serving.stop()?;
    }
    Ok(())
}

/// Volumes of one pool share what the target copies between them. Later writes of one do not change the other.
#[test]
fn copies_within_a_pool_take_no_space() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = pools::start(folder.path())?;
    for (verb, name) in [("create", "a"), ("add", "b")] {
        let device = format!("{},size=192MiB", folder.path().join(name).display());
        let flag: &[&str] = if verb == "create" { &["--device"] } else { &[] };
        server.run(&[&["pool", verb, "tank"], flag, &[&device]].concat())?;
    }
    for (name, copies) in [("first", "1"), ("second", "1"), ("mirrored", "2")] {
        let size = ["volume", "create", name, "64MiB", "--pool", "tank", "--export"];
        server.run(&[&size[..], &["--mirror", copies]].concat())?;
    }
    let used = || -> Result<u64> {
        server.json(&["pool", "list"])?["pools"][0]["used_bytes"].as_u64().context("used bytes")
    };
    let url = |volume: &str| -> Result<sarsen_initiator::Url> {
        let portal = server.portal()?;
        Ok(format!("iscsi://{portal}/iqn.2026-11.io.sarsen:{volume}/0").parse()?)
    };
    qemu_io(&server, "first", &["write -P 0x11 0 24M", "write -P 0x22 40M 5000k", "flush"])?;
    let before = used()?;
    qemu::copy_within(&url("first")?.into(), &url("second")?.into())?;
    let after = used()?;
    assert!(after - before < 2 << 20, "the copy takes {} bytes", after - before);
    qemu_io(&server, "first", &["write -P 0x33 1M 100k", "write -P 0x44 40M 512", "flush"])?;
    qemu_io(&server, "second", &["write -P 0x55 3M 100k", "discard 8M 1M", "flush"])?;
    let (first, second) = (
        ["read -P 0x33 1M 100k", "read -P 0x11 3M 21M", "read -P 0x44 40M 512"],
        ["read -P 0x11 0 3M", "read -P 0x55 3M 100k", "read -P 0x22 40M 5000k"],
    );
    qemu_io(&server, "first", &first)?;
    qemu_io(&server, "second", &second)?;
    qemu_io(&server, "second", &["read -P 0 8M 1M", "read -P 0x11 9M 15M", "read -P 0 24M 16M"])?;
    // A volume with two copies gets two: nothing is shared with one that has one.
    let before = used()?;
    qemu::copy_within(&url("second")?.into(), &url("mirrored")?.into())?;
    let after = used()?;
    assert!(after - before > 48 << 20, "the copy takes {} bytes", after - before);
    qemu_io(&server, "mirrored", &second)?;
    server.stop()?;
    let devices = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
    let check = ["pool", "check", &devices[0], &devices[1]];
    let checked = sarsen_proof::managed::command(folder.path(), &check)?.output()?;
    ensure!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    Ok(())
}

/// Returns the number of bytes in sectors that are not all zero.
fn data_bytes(image: &[u8]) -> u64 {
    let sectors = image.chunks(512).filter(|sector| sector.iter().any(|&byte| byte != 0));
    sectors.map(|sector| sector.len() as u64).sum()
}
