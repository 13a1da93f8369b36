//! The sources and sinks of bytes: disks, files, streams.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use sarsen_block::Buffer;
use sarsen_io::file::{File, OpenOptions};

use super::disk::{Disk, check_room};
use super::images::{Image, NewImage};
use super::nbd_disk::NbdDisk;
use super::runs::{HOLE_LENGTH, runs};
use super::stream::Stream;
use super::{ERASE_LENGTH, TransferError};

/// A regular file or a block device.
pub struct DiskFile {
    pub(super) file: File,
    pub(super) place: String,
    pub(super) length: u64,
}

impl DiskFile {
    /// Opens a regular file or a block device that is only read. Meanwhile, no program that respects its lock writes to it.
    pub(super) fn open(path: &Path) -> Result<Self, TransferError> {
        let place = path.display().to_string();
        let failed = file_failed(&place, "open");
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let file = File::open(path, options).map_err(&failed)?;
        if !file.try_lock_shared().map_err(&failed)? {
            return Err(TransferError::InUse { place });
        }
        let length = file.length().map_err(failed)?;
        Ok(Self { file, place, length })
    }

    fn failed(&self, verb: &'static str) -> impl Fn(io::Error) -> TransferError + use<> {
        file_failed(&self.place, verb)
    }
}

pub(super) fn file_failed(
    place: &str,
    verb: &'static str,
) -> impl Fn(io::Error) -> TransferError + use<> {
    let place = place.to_owned();
    move |source| TransferError::File { place: place.clone(), verb, source }
}

/// Returns whether the file supports random access.
pub(super) fn is_disk_file(path: &Path) -> io::Result<bool> {
    let kind = fs::metadata(path)?.file_type();
    Ok(kind.is_file() || kind.is_block_device())
}

/// A source of bytes.
pub enum Source<'a> {
    /// A disk.
    Disk(&'a Disk),
    /// An export of an NBD server.
    Nbd(&'a NbdDisk),
    /// A file.
    File(DiskFile),
    /// A stream.
    Stream(Stream),
    /// The disk in an image.
    Image(Image),
}

impl Source<'_> {
    /// Opens a file of any kind.
    pub fn open(path: &Path) -> Result<Self, TransferError> {
        let place = path.display().to_string();
        let failed = file_failed(&place, "open");
        if !is_disk_file(path).map_err(&failed)? {
            let file = fs::File::open(path).map_err(failed)?;
            return Ok(Self::Stream(Stream::reading(file, &place)?));
        }
        DiskFile::open(path).map(Self::File)
    }

    /// Returns its name in messages.
    pub fn place(&self) -> &str {
        match self {
            Self::Disk(disk) => disk.place(),
            Self::Nbd(disk) => disk.place(),
            Self::File(file) => &file.place,
            Self::Stream(stream) => stream.place(),
            Self::Image(image) => image.place(),
        }
    }

    /// Returns the number of bytes, if it is known before the end.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Disk(disk) => Some(disk.length()),
            Self::Nbd(disk) => Some(disk.length()),
            Self::File(file) => Some(file.length),
            Self::Stream(_) => None,
            Self::Image(image) => Some(image.length()),
        }
    }

    pub(super) const fn block_length(&self) -> u64 {
        match self {
            Self::Disk(disk) => disk.block_length(),
            Self::Nbd(disk) => disk.block_length(),
            Self::File(_) | Self::Stream(_) | Self::Image(_) => 1,
        }
    }

    /// Returns whether reads must be in order.
    pub(super) const fn is_ordered(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Checks that this range exists; for a stream the size is unknown.
    pub fn check_range(&self, offset: u64, length: u64) -> Result<(), TransferError> {
        if let Self::Nbd(disk) = self {
            disk.check_source()?;
        }
        let size = self.length().unwrap_or(u64::MAX);
        check_room(self.place(), size, offset, length)
    }

    /// Reads `length` bytes; fewer only at the end of a stream.
    pub(super) async fn read(&self, offset: u64, length: usize) -> Result<Buffer, TransferError> {
        match self {
            Self::Disk(disk) => disk.read(offset, length).await,
            Self::Nbd(disk) => disk.read(offset, length).await,
            Self::File(file) => {
                file.file.read_at(offset, length).wait().await.map_err(file.failed("read"))
            }
            Self::Stream(stream) => stream.read(length).await,
            Self::Image(image) => image.read(offset, length).await,
        }
    }
}

/// A sink for bytes.
pub enum Sink<'a> {
    /// A disk.
    Disk(&'a Disk),
    /// An export of an NBD server.
    Nbd(&'a NbdDisk),
    /// A file, empty unless it is a device.
    File(DiskFile),
    /// A stream.
    Stream(Stream),
    /// A new image.
    Image(NewImage),
}

impl Sink<'_> {
    /// Opens a file of any kind; a regular file is created if it is missing, and truncated.
    pub fn create(path: &Path) -> Result<Self, TransferError> {
        let place = path.display().to_string();
        let failed = file_failed(&place, "open");
        let disk_file = match is_disk_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            result => result.map_err(&failed)?,
        };
        if !disk_file {
            let file = fs::OpenOptions::new().write(true).open(path).map_err(failed)?;
            return Ok(Self::Stream(Stream::writing(file, &place)));
        }
        let options = OpenOptions { create: true, ..OpenOptions::default() };
        let file = match File::open(path, options) {
            // A mounted device, or a device that another process opened exclusively.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(TransferError::InUse { place });
            }
            result => result.map_err(&failed)?,
        };
        if !file.try_lock_exclusive().map_err(&failed)? {
            return Err(TransferError::InUse { place });
        }
        let length = if file.is_block_device() {
            file.length().map_err(failed)?
        } else {
            file.set_length_now(0).map_err(failed)?;
            u64::MAX
        };
        Ok(Self::File(DiskFile { file, place, length }))
    }

    /// Returns its name in messages.
    pub fn place(&self) -> &str {
        match self {
            Self::Disk(disk) => disk.place(),
            Self::Nbd(disk) => disk.place(),
            Self::File(file) => &file.place,
            Self::Stream(stream) => stream.place(),
            Self::Image(image) => image.place(),
        }
    }

    pub(super) const fn block_length(&self) -> u64 {
        match self {
            Self::Disk(disk) => disk.block_length(),
            Self::Nbd(disk) => disk.block_length(),
            Self::File(_) | Self::Stream(_) | Self::Image(_) => 1,
        }
    }

    /// Returns whether writes must be in order.
    pub(super) const fn is_ordered(&self) -> bool {
        // Clusters of an image are allocated in the order of the disk.
        matches!(self, Self::Stream(_) | Self::Image(_))
    }

    /// Checks that this range can be written.
    pub(super) fn check_range(&self, offset: u64, length: u64) -> Result<(), TransferError> {
        match self {
            Self::Disk(disk) => {
                disk.check_aligned(offset)?;
                disk.check_range(offset, length)
            }
            Self::Nbd(disk) => disk.check_sink(offset, length),
            Self::File(file) => check_room(&file.place, file.length, offset, length),
            Self::Image(image) => check_room(image.place(), image.length(), offset, length),
            Self::Stream(_) => Ok(()),
        }
    }

    pub(super) async fn write(&self, offset: u64, data: Buffer) -> Result<(), TransferError> {
        match self {
            Self::Disk(disk) => disk.write(offset, data).await,
            Self::Nbd(disk) => disk.write(offset, data).await,
            Self::File(file) => write_sparsely(file, offset, data).await,
            Self::Stream(stream) => stream.write(data).await,
            Self::Image(image) => image.write(offset, data).await,
        }
    }

    /// Returns the maximum length of [`Self::zero`], if zeroes need no bandwidth.
    pub(super) const fn zero_limit(&self) -> Option<u64> {
        match self {
            Self::Disk(_) | Self::Nbd(_) | Self::File(_) => Some(ERASE_LENGTH),
            Self::Stream(_) | Self::Image(_) => None,
        }
    }

    /// Makes a range read as zeroes. It begins at the beginning of a block.
    pub(super) async fn zero(&self, offset: u64, length: u64) -> Result<(), TransferError> {
        let tail = length % self.block_length();
        let whole = length - tail;
        match self {
            Self::Disk(disk) => {
                let (lba, blocks) = (offset / disk.block_length(), whole / disk.block_length());
                disk.zero(lba, blocks, disk.zeroes_by_unmap()).await?;
            }
            Self::Nbd(disk) if whole > 0 => disk.zero(offset, whole).await?,
            Self::Nbd(_) => {}
            Self::File(file) if file.file.is_block_device() => {
                let zeroed = file.file.zero_range(offset, whole).wait().await;
                zeroed.map_err(file.failed("write"))?;
            }
            // A regular file was empty before.
            Self::File(_) => {}
            Self::Stream(_) | Self::Image(_) => {
                return self.write(offset, Buffer::zeroed(length as usize)).await;
            }
        }
        if tail == 0 {
            return Ok(());
        }
        self.write(offset + whole, Buffer::zeroed(tail as usize)).await
    }

    /// Completes the transfer after the last write; `end` is the end of the data.
    pub(super) async fn finish(&self, end: u64) -> Result<(), TransferError> {
        match self {
            Self::Disk(disk) => disk.flush().await,
            Self::Nbd(disk) => disk.flush().await,
            Self::File(file) => {
                if !file.file.is_block_device() {
                    file.file.set_length(end).wait().await.map_err(file.failed("write"))?;
                }
                file.file.sync_data().wait().await.map_err(file.failed("flush"))
            }
            Self::Image(image) => image.finish().await,
            Self::Stream(_) => Ok(()),
        }
    }
}

/// Writes data, and leaves holes in a new file for long runs of zeroes; a device gets the zeroes.
async fn write_sparsely(file: &DiskFile, offset: u64, data: Buffer) -> Result<(), TransferError> {
    let failed = file.failed("write");
    let device = file.file.is_block_device();
    let runs = runs(offset, &data, HOLE_LENGTH);
    if let [run] = &runs[..]
        && !run.zero
    {
        return file.file.write_at(offset, data.into(), false).wait().await.map_err(failed);
    }
    for run in runs {
        let (place, length) = (offset + run.range.start as u64, run.range.len() as u64);
        if !run.zero {
            let run = Buffer::copy_of(&data[run.range]);
            file.file.write_at(place, run.into(), false).wait().await.map_err(&failed)?;
        } else if device {
            file.file.zero_range(place, length).wait().await.map_err(&failed)?;
        }
    }
    Ok(())
}
