//! qcow2 images by the library `imago`. Its calls block, so they run on threads that may wait.

mod header;
mod tables;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use imago::file::File;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{
    DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder as _, FormatDriverBuilder as _,
    Mapping, Storage as _, StorageOpenOptions,
};
use sarsen_io::file::open_to_read;

use super::super::TransferError;
use super::super::ends::file_failed;
use super::super::runs::runs;
use super::{ImageError, ImageFormat, References};
use header::{Header, Reading};

pub(super) use header::MAGIC;

/// Maximum of images that one disk is read from. Each keeps a file open.
const MAXIMUM_CHAIN: usize = 64;
/// Bytes of a cluster of new images, which is QEMU's default too.
const CLUSTER_LENGTH: usize = 64 * 1024;
/// The size of a disk in a qcow2 image is a multiple of this.
const SECTOR_LENGTH: u64 = 512;

/// An image that is read.
pub(super) struct Reader(FormatAccess<File>);

impl Reader {
    /// Opens an image and, if that is permitted, the files that it names.
    pub(super) fn open(
        path: &Path,
        place: &str,
        references: References,
    ) -> Result<Self, TransferError> {
        Chain { references, files: Vec::new() }.open(path, place).map(Self)
    }

    pub(super) fn length(&self) -> u64 {
        self.0.size()
    }

    /// Fills `into` with the bytes of the disk from `offset` on.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(into, offset)
    }

    /// Returns the first byte of the disk from `offset` on that the image does not only record as zero.
    pub(super) fn next_data(&self, mut offset: u64) -> io::Result<Option<u64>> {
        while offset < self.length() {
            match self.0.get_mapping(offset, self.length() - offset)? {
                (Mapping::Zero { .. }, length) if length > 0 => offset += length,
                (Mapping::Zero { .. } | Mapping::Eof { .. }, _) => return Ok(None),
                _ => return Ok(Some(offset)),
            }
        }
        Ok(None)
    }
}

/// The files that are open for one image.
struct Chain {
    references: References,
    /// Device and inode of each image, so that a loop ends.
    files: Vec<(u64, u64)>,
}

impl Chain {
    fn open(&mut self, path: &Path, place: &str) -> Result<FormatAccess<File>, TransferError> {
        let failed = file_failed(place, "open");
        let file = open_to_read(path).map_err(&failed)?;
        let metadata = file.metadata().map_err(&failed)?;
        let malformed = |reason: String| ImageError::Malformed {
            place: place.to_owned(),
            format: ImageFormat::Qcow2,
            reason,
        };
        let identity = (metadata.dev(), metadata.ino());
        if self.files.contains(&identity) {
            return Err(malformed("it is its own backing file".into()).into());
        }
        if self.files.len() == MAXIMUM_CHAIN {
            let reason = format!("more than {MAXIMUM_CHAIN} images are based on each other");
            return Err(malformed(reason).into());
        }
        self.files.push(identity);
        let reading = Reading { file: &file, place, file_length: metadata.len() };
        let header = Header::read(&reading)?;
        let names = header.references();
        if !names.is_empty() && self.references == References::Deny {
            return Err(ImageError::References { place: place.to_owned(), names }.into());
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let backing = match &header.backing {
            Some((name, format)) => {
                Some(self.open_backing(place, &folder.join(name), format.as_deref())?)
            }
            None => None,
        };
        let data_file = match &header.data_file {
            Some(name) => Some(open_plain(&folder.join(name))?),
            None => None,
        };
        let data_length = match &data_file {
            Some(file) => file.size().map_err(&failed)?,
            None => metadata.len(),
        };
        tables::check(&reading, &header, data_length)?;
        let file = File::from_open_file(file, StorageOpenOptions::new()).map_err(&failed)?;
        let builder = Qcow2::<File>::builder(file).backing(backing).data_file(data_file);
        let image = builder.open(DenyImplicitOpenGate::default());
        Ok(FormatAccess::new(image.map_err(|error| malformed(error.to_string()))?))
    }

    fn open_backing(
        &mut self,
        place: &str,
        path: &Path,
        format: Option<&[u8]>,
    ) -> Result<FormatAccess<File>, TransferError> {
        let backing = path.display().to_string();
        let unsupported = |reason| ImageError::Unsupported { place: place.to_owned(), reason };
        match format {
            Some(b"qcow2") => self.open(path, &backing),
            Some(b"raw") => {
                let raw = Raw::builder(open_plain(path)?).open(DenyImplicitOpenGate::default());
                Ok(FormatAccess::new(raw.map_err(file_failed(&backing, "open"))?))
            }
            Some(other) => Err(unsupported(format!(
                "the format {} of the backing file {backing} is not supported; convert the image first: qemu-img \
                 convert -O qcow2",
                String::from_utf8_lossy(other)
            ))
            .into()),
            // The user of a raw disk could make it look like an image.
            None => Err(unsupported(format!(
                "the image does not record the format of its backing file {backing}; record it: qemu-img rebase -u \
                 -F FORMAT -b FILE"
            ))
            .into()),
        }
    }
}

/// Opens a file whose bytes are the disk's.
fn open_plain(path: &Path) -> Result<File, TransferError> {
    let place = path.display().to_string();
    let file = open_to_read(path)
        .and_then(|file| File::from_open_file(file, StorageOpenOptions::new().filename(path)));
    file.map_err(file_failed(&place, "open"))
}

/// Checks the size of a new image.
pub(super) fn check_new_length(place: &str, length: u64) -> Result<(), ImageError> {
    if length.is_multiple_of(SECTOR_LENGTH) {
        return Ok(());
    }
    let reason = format!(
        "the disk of a qcow2 image has a multiple of {SECTOR_LENGTH} bytes, not {length}; choose another length, or \
         the raw format"
    );
    Err(ImageError::Unsupported { place: place.to_owned(), reason })
}

/// Creates an image in an empty file.
pub(super) fn create(path: &Path, length: u64) -> io::Result<Writer> {
    let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    let file = File::from_open_file(file, StorageOpenOptions::new().write(true).filename(path))?;
    let builder = Qcow2::<File>::create_builder(file).size(length).cluster_size(CLUSTER_LENGTH);
    let image = builder.create_open(DenyImplicitOpenGate::default(), |file| {
        Ok(Qcow2::builder(file).backing(None).write(true))
    })?;
    Ok(Writer { image: FormatAccess::new(image), finished: AtomicBool::new(false) })
}

/// A new image.
pub(super) struct Writer {
    image: FormatAccess<File>,
    finished: AtomicBool,
}

impl Writer {
    /// Writes data to a part that is still zero.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        for run in runs(offset, data, CLUSTER_LENGTH).into_iter().filter(|run| !run.zero) {
            self.image.write(&data[run.range.clone()], offset + run.range.start as u64)?;
        }
        Ok(())
    }

    /// Brings all data and tables to stable storage.
    pub(super) fn finish(&self) -> io::Result<()> {
        self.image.flush()?;
        self.image.sync()?;
        self.finished.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }
}
