//! Images that a server reads in place, without a copy of all of it. The calls block.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use sarsen_io::file::open_to_read;

use super::super::TransferError;
use super::super::ends::{DiskFile, file_failed, is_disk_file};
use super::{ImageError, ImageFormat, References, qcow2};

/// The disk in an image that stays open. Nothing else writes to the image meanwhile, or reads fail.
pub struct OpenImage {
    /// The file of the image, and how it was when it was opened.
    file: fs::File,
    before: Metadata,
    length: u64,
    content: Content,
    _locked: DiskFile,
}

enum Content {
    Raw,
    Qcow2(qcow2::Reader),
}

impl OpenImage {
    /// Opens a raw or a qcow2 image that names no other files.
    pub fn open(path: &Path, format: ImageFormat) -> Result<Self, TransferError> {
        let place = path.display().to_string();
        let failed = file_failed(&place, "open");
        if !is_disk_file(path).map_err(&failed)? {
            return Err(ImageError::NotAFile { place, format }.into());
        }
        let locked = DiskFile::open(path)?;
        let file = open_to_read(path).map_err(&failed)?;
        let before = file.metadata().map_err(&failed)?;
        let (length, content) = match format {
            ImageFormat::Raw => (locked.length, Content::Raw),
            ImageFormat::Qcow2 => {
                let reader = qcow2::Reader::open(path, &place, References::Deny)?;
                (reader.length(), Content::Qcow2(reader))
            }
            other => {
                let reason = format!("an image of the format {other} cannot be read in place");
                return Err(ImageError::Unsupported { place, reason }.into());
            }
        };
        Ok(Self { file, before, length, content, _locked: locked })
    }

    /// Returns the size of the disk in the image, in bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Fills `into` with the bytes of the disk from `offset` on.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match &self.content {
            Content::Raw => self.file.read_exact_at(into, offset)?,
            Content::Qcow2(reader) => reader.read(offset, into)?,
        }
        self.check_unchanged()
    }

    /// Returns the first byte of the disk from `offset` on that may not be zero, if there is one.
    pub fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let next = match &self.content {
            Content::Raw => (offset < self.length).then_some(offset),
            Content::Qcow2(reader) => reader.next_data(offset)?,
        };
        self.check_unchanged().map(|()| next)
    }

    /// Refuses what was read if the file was changed meanwhile. What a truncated image has lost would read as zeroes.
    fn check_unchanged(&self) -> io::Result<()> {
        let state = |metadata: &Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        if state(&self.file.metadata()?) == state(&self.before) {
            Ok(())
        } else {
            Err(io::Error::other("the file was changed after it was opened"))
        }
    }
}
