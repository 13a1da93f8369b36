//! Disk images as sources and sinks.
//!
//! A library reads and writes qcow2 ([`qcow2`]). QEMU's `qemu-nbd` reads the other formats and serves them over a local
//! socket ([`qemu`]). An image may name other files, such as a backing file. An image from an untrusted source could
//! name any file of this machine, so they are only opened if the caller permits it.

mod opened;
mod qcow2;
mod qemu;
mod references;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sarsen_block::Buffer;

pub use self::opened::OpenImage;
use super::TransferError;
use super::disk::check_room;
use super::ends::{DiskFile, Sink, Source, file_failed};

/// Bytes at the beginning and at the end of a file that show its format.
const SIGNATURE_LENGTH: u64 = 512;

/// The format of a file with the content of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// The bytes of the disk.
    Raw,
    /// QEMU's format, versions 2 and 3.
    Qcow2,
    /// VMware's format.
    Vmdk,
    /// Hyper-V's format.
    Vhdx,
    /// Hyper-V's older format, also of Virtual PC and Azure.
    Vhd,
    /// VirtualBox's format.
    Vdi,
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "VMDK",
            Self::Vhdx => "VHDX",
            Self::Vhd => "VHD",
            Self::Vdi => "VDI",
        })
    }
}

/// Whether the files that an image names are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum References {
    /// An image that needs other files is refused.
    Deny,
    /// They are opened: the image is from a trusted source.
    Permit,
}

/// The reason why a disk image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// No format was given, and the file looks like an image.
    #[error("{place} looks like a {format} image")]
    Recognised {
        /// The file.
        place: String,
        /// The format that it looks like.
        format: ImageFormat,
    },
    /// The image needs other files, which the caller did not permit.
    #[error("{place} needs other files: {}", .names.join(", "))]
    References {
        /// The file.
        place: String,
        /// The names in the image.
        names: Vec<String>,
    },
    /// The image is damaged, or has another format.
    #[error("{place} is no valid {format} image: {reason}")]
    Malformed {
        /// The file.
        place: String,
        /// The format that was expected.
        format: ImageFormat,
        /// The reason.
        reason: String,
    },
    /// The image has a property that is not supported.
    #[error("{place}: {reason}")]
    Unsupported {
        /// The file.
        place: String,
        /// The property, and a remedy.
        reason: String,
    },
    /// An image was expected from a stream or a device that cannot have one.
    #[error("{place} is no regular file; a {format} image needs one")]
    NotAFile {
        /// The stream or the device.
        place: String,
        /// The format.
        format: ImageFormat,
    },
    /// QEMU's tools are missing.
    #[error(
        "{program} is missing; install the package qemu-utils (or qemu-img) for {format} images"
    )]
    NoTool {
        /// The program.
        program: &'static str,
        /// The format.
        format: ImageFormat,
    },
    /// QEMU's tools refused the image.
    #[error("{place} cannot be read as a {format} image: {message}")]
    Tool {
        /// The file.
        place: String,
        /// The format.
        format: ImageFormat,
        /// The output of the tool.
        message: String,
    },
}

/// Returns the format that the first and the last bytes of a file show; `None` if it is raw or unknown. The bytes of a
/// raw disk are under the control of its user, so this is a reason to ask, and not to read the file as an image.
fn recognise(head: &[u8], tail: &[u8]) -> Option<ImageFormat> {
    // Offsets and bytes are those of the formats' specifications.
    const VDI_SIGNATURE_OFFSET: usize = 64;
    const VDI_SIGNATURE: [u8; 4] = 0xbeda_107f_u32.to_le_bytes();
    const VHD_COOKIE: &[u8] = b"conectix";
    let vdi = head.get(VDI_SIGNATURE_OFFSET..).is_some_and(|at| at.starts_with(&VDI_SIGNATURE));
    if head.starts_with(&qcow2::MAGIC) {
        Some(ImageFormat::Qcow2)
    } else if references::VMDK_SIGNATURES.iter().any(|signature| head.starts_with(signature)) {
        Some(ImageFormat::Vmdk)
    } else if head.starts_with(b"vhdxfile") {
        Some(ImageFormat::Vhdx)
    } else if head.starts_with(VHD_COOKIE) || tail.starts_with(VHD_COOKIE) {
        Some(ImageFormat::Vhd)
    } else {
        vdi.then_some(ImageFormat::Vdi)
    }
}

/// Opens a file as a source with the content of a disk. Without a `format` the file is raw, and one that looks like an
/// image is refused. The image is checked as far as this is possible without reading all of it.
pub async fn open_image(
    path: &Path,
    format: Option<ImageFormat>,
    references: References,
) -> Result<Source<'static>, TransferError> {
    let source = Source::open(path)?;
    match (source, format) {
        (Source::File(file), Some(format)) if format != ImageFormat::Raw => {
            Ok(Source::Image(open(path, file, format, references).await?))
        }
        (source, format) => {
            check_format(&source, format).await?;
            Ok(source)
        }
    }
}

/// Checks that a source can be used as it is: that its format is raw, or that it does not look like an image.
pub async fn check_format(
    source: &Source<'_>,
    format: Option<ImageFormat>,
) -> Result<(), TransferError> {
    let place = || source.place().to_owned();
    match format {
        Some(ImageFormat::Raw) => return Ok(()),
        Some(format) => return Err(ImageError::NotAFile { place: place(), format }.into()),
        None => {}
    }
    let (head, tail) = match source {
        Source::Stream(stream) => (stream.peek(SIGNATURE_LENGTH as usize).await?, Vec::new()),
        source => {
            let length = source.length().unwrap_or(0);
            let part = length.min(SIGNATURE_LENGTH);
            let head = source.read(0, part as usize).await?;
            (head.to_vec(), source.read(length - part, part as usize).await?.to_vec())
        }
    };
    recognise(&head, &tail)
        .map_or(Ok(()), |format| Err(ImageError::Recognised { place: place(), format }.into()))
}

async fn open(
    path: &Path,
    file: DiskFile,
    format: ImageFormat,
    references: References,
) -> Result<Image, TransferError> {
    let place = file.place.clone();
    if format == ImageFormat::Qcow2 {
        let (path, of_place) = (path.to_owned(), place.clone());
        let opened = move || qcow2::Reader::open(&path, &of_place, references);
        let reader = Arc::new(blocking(&place, "open", opened).await??);
        let length = reader.length();
        return Ok(Image { place, length, content: Content::Qcow2 { reader, _locked: file } });
    }
    // QEMU locks the file itself; on NFS both locks are of the same kind, and would exclude each other.
    drop(file);
    let server = qemu::Server::start(path, &place, format, references).await?;
    Ok(Image { place, length: server.length(), content: Content::Served(server) })
}

/// The disk in an image.
pub struct Image {
    place: String,
    length: u64,
    content: Content,
}

enum Content {
    Qcow2 { reader: Arc<qcow2::Reader>, _locked: DiskFile },
    Served(qemu::Server),
}

impl Image {
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Returns the size of the disk in the image, in bytes.
    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    pub(super) async fn read(&self, offset: u64, length: usize) -> Result<Buffer, TransferError> {
        check_room(&self.place, self.length, offset, length as u64)?;
        let read = match &self.content {
            Content::Qcow2 { reader, .. } => {
                let reader = reader.clone();
                let read = move || {
                    let mut buffer = Buffer::for_overwrite(length);
                    reader.read(offset, &mut buffer).map(|()| buffer)
                };
                blocking(&self.place, "read", read).await?
            }
            Content::Served(server) => server.read(offset, length).await,
        };
        read.map_err(file_failed(&self.place, "read"))
    }
}

/// Creates a file with a qcow2 image of a disk of `length` bytes, all zero. An existing file is overwritten.
pub async fn create_qcow2(path: &Path, length: u64) -> Result<Sink<'static>, TransferError> {
    let place = path.display().to_string();
    qcow2::check_new_length(&place, length)?;
    let file = match Sink::create(path)? {
        Sink::File(file) if !file.file.is_block_device() => file,
        _ => return Err(ImageError::NotAFile { place, format: ImageFormat::Qcow2 }.into()),
    };
    let path = path.to_owned();
    let created = blocking(&place, "create", move || qcow2::create(&path, length)).await?;
    let writer = created.map_err(file_failed(&place, "create"))?;
    Ok(Sink::Image(NewImage { writer: Some(Arc::new(writer)), file, place, length }))
}

/// A qcow2 image that is being written. If it is dropped before its end, its file is empty: an incomplete image looks
/// like a complete one.
pub struct NewImage {
    /// `None` only while it is dropped.
    writer: Option<Arc<qcow2::Writer>>,
    file: DiskFile,
    place: String,
    length: u64,
}

impl NewImage {
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    fn writer(&self) -> Arc<qcow2::Writer> {
        self.writer.clone().expect("it is only taken when this is dropped")
    }

    pub(super) async fn write(&self, offset: u64, data: Buffer) -> Result<(), TransferError> {
        let writer = self.writer();
        let written = blocking(&self.place, "write", move || writer.write(offset, &data)).await?;
        written.map_err(file_failed(&self.place, "write"))
    }

    pub(super) async fn finish(&self) -> Result<(), TransferError> {
        let writer = self.writer();
        let finished = blocking(&self.place, "flush", move || writer.finish()).await?;
        finished.map_err(file_failed(&self.place, "flush"))
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        let finished = self.writer.take().is_some_and(|writer| writer.is_finished());
        if !finished {
            // The transfer has failed already.
            let _ = self.file.file.set_length_now(0);
        }
    }
}

/// Runs what waits for the file on a thread that may wait.
async fn blocking<T: Send + 'static>(
    place: &str,
    verb: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TransferError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| file_failed(place, verb)(error.into()))
}

#[cfg(test)]
mod tests;
