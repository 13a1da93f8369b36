//! A real client lets the target copy: QEMU sends EXTENDED COPY from one target to another.

use std::fs;

use anyhow::{Context as _, Result};
use sarsen_proof::qemu;
use sarsen_proof::{Backing, Serving, Volume};

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

/// Returns the number of bytes in sectors that are not all zero.
fn data_bytes(image: &[u8]) -> u64 {
    let sectors = image.chunks(512).filter(|sector| sector.iter().any(|&byte| byte != 0));
    sectors.map(|sector| sector.len() as u64).sum()
}
