//! Disk images as files of the verbs.

use std::path::Path;

use clap::ValueEnum as _;
use sarsen_initiator::transfer::{
    self, ImageError, ImageFormat, References, Source, TransferError,
};

use crate::exit::UsageError;

/// The format of a file that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// The bytes of the disk.
    Raw,
    /// QEMU's format, versions 2 and 3.
    Qcow2,
    /// VMware's format; needs QEMU's tools.
    Vmdk,
    /// Hyper-V's format; needs QEMU's tools.
    Vhdx,
    /// Hyper-V's older format; needs QEMU's tools.
    Vhd,
    /// VirtualBox's format; needs QEMU's tools.
    Vdi,
}

impl From<Format> for ImageFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Raw => Self::Raw,
            Format::Qcow2 => Self::Qcow2,
            Format::Vmdk => Self::Vmdk,
            Format::Vhdx => Self::Vhdx,
            Format::Vhd => Self::Vhd,
            Format::Vdi => Self::Vdi,
        }
    }
}

/// The format of a file that is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum NewFormat {
    /// The bytes of the disk.
    Raw,
    /// QEMU's format, version 3.
    Qcow2,
}

/// The format of a file that is read, and its trustworthiness.
#[derive(clap::Args)]
pub(super) struct ImageOptions {
    /// Format of the file. Default: raw, but a file that looks like an image is refused.
    #[arg(long)]
    format: Option<Format>,
    /// Open the files that the image names, such as a backing file or extents. An image from an untrusted source could
    /// name any file that you can read.
    #[arg(long, requires = "format")]
    permit_references: bool,
}

impl ImageOptions {
    fn format(&self) -> Option<ImageFormat> {
        self.format.map(ImageFormat::from)
    }

    /// Opens a file.
    pub(super) async fn open(&self, path: &Path) -> anyhow::Result<Source<'static>> {
        transfer::open_image(path, self.format(), self.references()).await.map_err(explain)
    }

    /// Checks a source that is already open.
    pub(super) async fn check(&self, source: &Source<'_>) -> anyhow::Result<()> {
        transfer::check_format(source, self.format()).await.map_err(explain)
    }

    /// Checks that no format was given where there is no file.
    pub(super) fn check_unused(&self) -> Result<(), UsageError> {
        match self.format {
            None => Ok(()),
            Some(_) => Err(UsageError("--format is for a file, not for a URL".into())),
        }
    }

    const fn references(&self) -> References {
        if self.permit_references { References::Permit } else { References::Deny }
    }
}

/// Adds the flags that are missing to an error.
fn explain(error: TransferError) -> anyhow::Error {
    match error {
        TransferError::Image(ImageError::Recognised { format, .. }) => {
            let formats = Format::value_variants().iter();
            let found = formats.copied().find(|&of| ImageFormat::from(of) == format);
            let value = found.and_then(|format| format.to_possible_value());
            let name = value.as_ref().map_or("FORMAT", |value| value.get_name());
            UsageError(format!(
                "{error}: add --format {name} for the disk in the image, or --format raw for the file itself"
            ))
            .into()
        }
        TransferError::Image(ImageError::References { .. }) => UsageError(format!(
            "{error}: add --permit-references if you trust the source of the image"
        ))
        .into(),
        error => error.into(),
    }
}
