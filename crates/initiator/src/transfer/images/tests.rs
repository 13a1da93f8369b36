use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use sarsen_block::Rng;
use sarsen_io::cores::{FileEngine, block_on};

use super::super::{Stream, compare, copy};
use super::*;

const MIB: usize = 1 << 20;

fn run<T>(future: impl Future<Output = T>) -> T {
    block_on(FileEngine::Pool, future).unwrap()
}

/// Data in some clusters of a disk, and zeroes in the others.
fn disk() -> Vec<u8> {
    let mut bytes = vec![0; 3 * MIB + 1536];
    for (index, byte) in bytes.iter_mut().enumerate() {
        if index / 300_000 % 3 == 0 {
            *byte = (index * 7 + index / 251) as u8 | 1;
        }
    }
    bytes
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// Writes an image of [`disk`].
    fn image(&self, name: &str) -> PathBuf {
        let (from, to) = (self.file("disk", &disk()), self.path(name));
        run(async {
            let source = Source::open(&from).unwrap();
            let sink = create_qcow2(&to, source.length().unwrap()).await.unwrap();
            copy(&source, 0, None, &sink, 0, &|_| {}).await.unwrap();
        });
        to
    }
}

/// Reads all of an image, in pieces that are not whole clusters.
fn read_all(path: &Path) -> Result<Vec<u8>, TransferError> {
    run(async {
        let source = open_image(path, Some(ImageFormat::Qcow2), References::Deny).await?;
        let length = source.length().unwrap();
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < length.min(64 << 20) {
            let piece = (length - bytes.len() as u64).min(99_991);
            bytes.extend_from_slice(&source.read(bytes.len() as u64, piece as usize).await?);
        }
        Ok(bytes)
    })
}

fn patch(path: &Path, offset: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// Returns the message of the error that an image causes.
fn refused(path: &Path) -> String {
    read_all(path).unwrap_err().to_string()
}

#[test]
fn formats_are_recognised_by_their_signatures() {
    let at = |offset: usize, signature: &[u8]| {
        let mut bytes = vec![0; 512];
        bytes[offset..offset + signature.len()].copy_from_slice(signature);
        bytes
    };
    let of = |head: &[u8]| recognise(head, &[0; 512]);
    assert_eq!(of(&at(0, b"QFI\xfb")), Some(ImageFormat::Qcow2));
    assert_eq!(of(&at(0, b"KDMV")), Some(ImageFormat::Vmdk));
    assert_eq!(of(b"# Disk DescriptorFile\nversion=1\n"), Some(ImageFormat::Vmdk));
    assert_eq!(of(&at(0, b"vhdxfile")), Some(ImageFormat::Vhdx));
    assert_eq!(of(&at(0, b"conectix")), Some(ImageFormat::Vhd));
    assert_eq!(of(&at(64, &[0x7f, 0x10, 0xda, 0xbe])), Some(ImageFormat::Vdi));
    assert_eq!(recognise(&[0; 512], &at(0, b"conectix")), Some(ImageFormat::Vhd));
    for raw in [&[][..], b"QF", &[0; 512], &at(1, b"QFI\xfb")] {
        assert_eq!(of(raw), None);
    }
}

#[test]
fn a_file_that_looks_like_an_image_needs_a_format() {
    let folder = Folder::new();
    let image = folder.image("image");
    run(async {
        let refused = open_image(&image, None, References::Deny).await.err().unwrap();
        let format = ImageFormat::Qcow2;
        assert!(matches!(refused,
            TransferError::Image(ImageError::Recognised { format: found, .. }) if found == format));
        let raw = open_image(&image, Some(ImageFormat::Raw), References::Deny).await.unwrap();
        assert_eq!(raw.length(), Some(fs::metadata(&image).unwrap().len()));
        for short in [&b""[..], b"QFI"] {
            let short = folder.file("short", short);
            assert!(open_image(&short, None, References::Deny).await.is_ok());
        }
    });
}

#[test]
fn a_stream_keeps_the_bytes_that_were_looked_at() {
    let folder = Folder::new();
    let (bytes, to) = (disk(), folder.path("to"));
    let from = folder.file("from", &bytes);
    run(async {
        let stream = |path| Stream::reading(File::open(path).unwrap(), "in").unwrap();
        let source = Source::Stream(stream(&from));
        check_format(&source, None).await.unwrap();
        let sink = Sink::create(&to).unwrap();
        copy(&source, 0, None, &sink, 0, &|_| {}).await.unwrap();
        let image = folder.file("image", b"QFI\xfb and more");
        let source = Source::Stream(stream(&image));
        assert!(check_format(&source, None).await.is_err());
        let other = check_format(&source, Some(ImageFormat::Vhdx)).await.unwrap_err();
        assert!(matches!(other, TransferError::Image(ImageError::NotAFile { .. })));
    });
    assert!(fs::read(&to).unwrap() == bytes);
}

#[test]
fn a_new_image_has_the_disk_without_its_zeroes() {
    let folder = Folder::new();
    let image = folder.image("image");
    assert!(read_all(&image).unwrap() == disk());
    // Two thirds of the disk are zeroes.
    assert!(fs::metadata(&image).unwrap().len() < 2 * MIB as u64);
    run(async {
        let from = Source::open(&folder.path("disk")).unwrap();
        let image = open_image(&image, Some(ImageFormat::Qcow2), References::Deny).await.unwrap();
        let compared = compare(&from, &image, disk().len() as u64, &|_| {}).await.unwrap();
        assert_eq!(compared.first_difference, None);
    });
}

#[test]
fn an_incomplete_export_is_no_image() {
    let folder = Folder::new();
    let to = folder.file("to", &disk());
    run(async {
        let refused = create_qcow2(&to, 1000).await.err().unwrap();
        assert!(matches!(refused, TransferError::Image(ImageError::Unsupported { .. })));
        assert!(
            fs::metadata(&to).unwrap().len() > MIB as u64,
            "it is refused before it is emptied"
        );
        let sink = create_qcow2(&to, MIB as u64).await.unwrap();
        sink.write(0, Buffer::copy_of(&[1; 65536])).await.unwrap();
        drop(sink);
    });
    assert!(!fs::read(&to).unwrap().starts_with(b"QFI"));
}

#[test]
fn a_truncated_image_is_an_error_and_no_other_data() {
    let folder = Folder::new();
    let image = folder.image("image");
    let whole = fs::read(&image).unwrap();
    for length in (0..whole.len()).step_by(4093) {
        fs::write(&image, &whole[..length]).unwrap();
        if let Ok(bytes) = read_all(&image) {
            assert!(bytes == disk(), "truncated to {length} bytes");
        }
    }
    fs::write(&image, &whole[..whole.len() - 512]).unwrap();
    assert!(refused(&image).contains("truncated"), "{}", refused(&image));
}

#[test]
fn absurd_headers_are_refused_before_anything_is_read() {
    let folder = Folder::new();
    let image = folder.image("image");
    let whole = fs::read(&image).unwrap();
    let with = |offset: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[offset..offset + bytes.len()].copy_from_slice(bytes);
        refused(&folder.file("changed", &changed))
    };
    let long = u64::MAX.to_be_bytes();
    for (offset, bytes, reason) in [
        (0, &b"QFI\0"[..], "does not begin"),
        (4, &[0, 0, 0, 9], "version 9"),
        (8, &[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 9], "backing file"),
        (20, &[0, 0, 0, 8], "2^8"),
        (20, &[0, 0, 0, 63], "2^63"),
        (24, &long, "its disk has"),
        (24, &[0x10, 0, 0, 0, 0, 0, 0, 0], "its disk needs"),
        (32, &[0, 0, 0, 1], "encrypted"),
        (36, &[0xff; 4], "L1 table has"),
        (36, &[0; 4], "its disk needs"),
        (40, &long, "L1 table"),
        (40, &[0x7f, 0, 0, 0, 0, 0, 0, 0], "L1 table"),
        (79, &[1], "repair it"),
        (79, &[4], "no name"),
        (79, &[8], "not supported"),
        (100, &[0xff; 4], "its header has"),
        (104, &[0xe2, 0x79, 0x2a, 0xca, 0xff, 0xff, 0xff, 0xff], "extension is too long"),
    ] {
        let said = with(offset, bytes);
        assert!(said.contains(reason), "{offset} {bytes:?}: {said}");
    }
}

#[test]
fn other_files_are_opened_only_with_permission_and_loops_end() {
    let folder = Folder::new();
    let image = folder.image("image");
    // The header has room for a name, and the first extension records the format.
    let name = b"image";
    patch(&image, 8, &1000_u64.to_be_bytes());
    patch(&image, 16, &(name.len() as u32).to_be_bytes());
    patch(&image, 104, &[0; 8]);
    patch(&image, 1000, name);
    let said = refused(&image);
    assert!(said.contains("needs other files: backing file image"), "{said}");
    let permitted = || {
        let opened = run(open_image(&image, Some(ImageFormat::Qcow2), References::Permit));
        opened.err().unwrap().to_string()
    };
    assert!(permitted().contains("does not record the format"), "{}", permitted());
    patch(&image, 104, &[0xe2, 0x79, 0x2a, 0xca, 0, 0, 0, 5]);
    patch(&image, 112, b"qcow2\0\0\0\0\0\0\0\0\0\0\0");
    assert!(permitted().contains("its own backing file"), "{}", permitted());
    patch(&image, 1000, b"/none");
    assert!(permitted().contains("cannot open /none"), "{}", permitted());
}

#[test]
fn damaged_images_cause_errors_and_no_panics() {
    let folder = Folder::new();
    let whole = fs::read(folder.image("image")).unwrap();
    let mut rng = Rng::new(7);
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..rng.below(6) + 1 {
            // Header, refcounts, L1 and L2 tables are in the first clusters, mostly at their beginnings.
            let at = rng.below(6) as usize * 65536 + rng.below(200) as usize;
            bytes[at] = if rng.chance(50) { rng.below(256) as u8 } else { 1 << rng.below(8) };
        }
        if rng.chance(20) {
            bytes.truncate(rng.below(bytes.len() as u64) as usize);
        }
        let _ = read_all(&folder.file("damaged", &bytes));
    }
}
