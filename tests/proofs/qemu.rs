//! QEMU's own iSCSI client on each kind of volume.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use sarsen_proof::qemu::{self, HeaderDigest};
use sarsen_proof::{Backing, Serving, Volume};

const GIB: u64 = 1 << 30;

/// Copies a gigabyte to the volume and back; both must be equal. The volume has other content before, so that zeroes
/// that were not written are detected.
fn survives_a_round_trip(volume: Volume) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
    qemu::make_image(&image, volume.byte_count, 0x5a25e1)?;
    let expected = qemu::sha256(&image)?;

    let name = volume.name.clone();
    let serving = Serving::start(&[volume])?;
    let url = serving.url(&name);
    qemu::patterns(url, HeaderDigest::Off, &["write -P 0xee 0 8M", "write -P 0xee 1016M 8M"])?;
    qemu::copy_to(&image, url).with_context(|| serving.log())?;
    fs::remove_file(&image)?;
    qemu::copy_from(url, &copy).with_context(|| serving.log())?;
    assert_eq!(qemu::sha256(&copy)?, expected, "SHA-256 of what came back");
    serving.stop()
}

#[test]
fn a_gigabyte_on_a_ram_volume_comes_back_equal() -> Result<()> {
    survives_a_round_trip(Volume::new("scratch", Backing::Ram, GIB))
}

#[test]
fn a_gigabyte_on_a_file_volume_comes_back_equal() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let backing = Backing::File(folder.path().join("data.img"));
    survives_a_round_trip(Volume::new("data", backing, GIB))
}

/// Writes of all alignments, read back with other boundaries; zeroes and discards between them.
const PATTERNS: &[&str] = &[
    "write -P 0x5a 0 64k",
    "read -P 0x5a 0 64k",
    "write -P 0xa5 4k 4k",
    "read -P 0x5a 0 4k",
    "read -P 0xa5 4k 4k",
    "read -P 0x5a 8k 56k",
    // A write across a page, with a length that is not a multiple of the block size: read, changed, written.
    "write -P 0x3c 61440 12k",
    "read -P 0x3c 61440 12k",
    "write -P 0x77 1000001 777",
    "read -P 0x77 1000001 777",
    // Larger than any burst.
    "write -P 0x11 16M 4M",
    "read -P 0x11 16M 4M",
    "writev -P 0x22 32M 512k 4k 8k",
    "read -P 0x22 32M 524k",
    "write -f -P 0x33 40M 64k",
    "read -P 0x33 40M 64k",
    "write -z 16M 1M",
    "read -P 0 16M 1M",
    "read -P 0x11 17M 3M",
    "discard 32M 64k",
    "flush",
    // The last bytes of the volume.
    "write -P 0x44 67043328 64k",
    "read -P 0x44 67043328 64k",
];

/// Returns volumes in memory and in files, with both block sizes.
fn volumes(folder: &Path) -> [Volume; 4] {
    let file = |name: &str| Backing::File(folder.join(name));
    [
        Volume::new("ram-512", Backing::Ram, 64 << 20),
        Volume::new("ram-4k", Backing::Ram, 64 << 20).block_size(4096),
        Volume::new("file-512", file("512"), 64 << 20),
        Volume::new("file-4k", file("4k"), 64 << 20).block_size(4096),
    ]
}

#[test]
fn patterns_hold_at_512_byte_and_4_kib_blocks_with_header_digests_on_and_off() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let volumes = volumes(folder.path());
    let serving = Serving::start(&volumes)?;
    for volume in &volumes {
        for digest in [HeaderDigest::Off, HeaderDigest::Crc32c] {
            qemu::patterns(serving.url(&volume.name), digest, PATTERNS)
                .with_context(|| format!("{} with digests {digest:?}", volume.name))
                .with_context(|| serving.log())?;
        }
    }
    serving.stop()
}

/// Discards of whole clusters, then reads that are large enough for QEMU to check its map of allocated clusters first.
/// With a granularity reported for 4 KiB blocks, QEMU aborts there.
const DISCARDS: &[&str] = &[
    "write -P 0x5a 16M 16M",
    "discard 24M 4M",
    "read -P 0 24M 1M",
    "read -P 0x5a 20M 4M",
    "read -P 0x5a 28M 4M",
    "discard 17M 12k",
    "read -P 0 17M 12k",
    "write -P 0x3c 24M 64k",
    "read -P 0x3c 24M 64k",
    "read 0 64M",
];

#[test]
fn discarded_clusters_read_as_zeroes_at_512_byte_and_4_kib_blocks() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let volumes = volumes(folder.path());
    let serving = Serving::start(&volumes)?;
    for volume in &volumes {
        qemu::discards(serving.url(&volume.name), DISCARDS)
            .with_context(|| volume.name.clone())
            .with_context(|| serving.log())?;
    }
    serving.stop()
}

#[test]
fn qemu_img_bench_reads_and_writes_to_the_end() -> Result<()> {
    let serving = Serving::start(&[Volume::new("scratch", Backing::Ram, 256 << 20)])?;
    for writes in [false, true] {
        println!("{}", qemu::bench(serving.url("scratch"), writes, 20_000)?);
    }
    serving.stop()
}
