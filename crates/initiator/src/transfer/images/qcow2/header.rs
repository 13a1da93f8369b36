//! The header of a qcow2 image, checked before the library reads it.
//!
//! The names of other files are read here, so that each is opened only if the caller permits it. The library does not
//! check the encryption method.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{ImageError, ImageFormat};

pub(in super::super) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// 512 bytes.
const MINIMUM_CLUSTER_BITS: u32 = 9;
/// 2 MiB.
const MAXIMUM_CLUSTER_BITS: u32 = 21;
/// Maximum length of the name of a backing file (qcow2 specification, "Header").
const MAXIMUM_NAME_LENGTH: u32 = 1023;

/// Incompatible features.
const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA_FILE: u64 = 1 << 2;

/// Types of header extensions.
const END: u32 = 0;
const BACKING_FORMAT: u32 = 0xe279_2aca;
const DATA_FILE_NAME: u32 = 0x4441_5441;

/// The header of version 2, and the part of version 3 that always exists.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Layout {
    magic: [u8; 4],
    version: U32,
    backing_file_offset: U64,
    backing_file_size: U32,
    cluster_bits: U32,
    size: U64,
    crypt_method: U32,
    l1_size: U32,
    l1_table_offset: U64,
    refcount_table_offset: U64,
    refcount_table_clusters: U32,
    nb_snapshots: U32,
    snapshots_offset: U64,
    incompatible_features: U64,
    compatible_features: U64,
    autoclear_features: U64,
    refcount_order: U32,
    header_length: U32,
}

const VERSION_2_LENGTH: usize = 72;
const VERSION_3_LENGTH: usize = 104;
const _: () = assert!(size_of::<Layout>() == VERSION_3_LENGTH);

/// The header of an extension.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Extension {
    kind: U32,
    length: U32,
}

/// The properties of an image that sarsen uses itself.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) cluster_length: u64,
    /// The name of the backing file, and its format if the image records it.
    pub(super) backing: Option<(OsString, Option<Vec<u8>>)>,
    /// The name of the file with the data.
    pub(super) data_file: Option<OsString>,
    /// Bytes of the disk.
    pub(super) size: u64,
    pub(super) l1_offset: u64,
    pub(super) l1_entries: u64,
}

/// Reads the metadata of one file.
pub(super) struct Reading<'a> {
    pub(super) file: &'a File,
    /// The file's name in messages.
    pub(super) place: &'a str,
    pub(super) file_length: u64,
}

impl Header {
    /// Reads and checks the header of an image.
    pub(super) fn read(reading: &Reading<'_>) -> Result<Self, ImageError> {
        let layout = reading.layout()?;
        reading.check(&layout)?;
        let cluster_length = 1_u64 << layout.cluster_bits.get();
        let (backing_format, data_file) = reading.extensions(&layout, cluster_length)?;
        let backing = reading.backing_name(&layout, cluster_length)?;
        let external = layout.incompatible_features.get() & EXTERNAL_DATA_FILE != 0;
        let data_file = match (external, data_file) {
            (true, Some(name)) => Some(OsString::from_vec(name)),
            (true, None) => {
                return Err(
                    reading.unsupported("it has its data in another file, but no name of it")
                );
            }
            (false, _) => None,
        };
        let backing = backing.map(|name| (name, backing_format));
        Ok(Self {
            cluster_length,
            backing,
            data_file,
            size: layout.size.get(),
            l1_offset: layout.l1_table_offset.get(),
            l1_entries: layout.l1_size.get().into(),
        })
    }

    /// Returns the names of the other files that the image needs.
    pub(super) fn references(&self) -> Vec<String> {
        let backing = self.backing.iter().map(|(name, _)| ("backing file", name));
        let data = self.data_file.iter().map(|name| ("data file", name));
        backing.chain(data).map(|(kind, name)| format!("{kind} {}", name.display())).collect()
    }
}

impl Reading<'_> {
    pub(super) fn malformed(&self, reason: impl Into<String>) -> ImageError {
        let (place, reason) = (self.place.to_owned(), reason.into());
        ImageError::Malformed { place, format: ImageFormat::Qcow2, reason }
    }

    fn unsupported(&self, reason: &str) -> ImageError {
        ImageError::Unsupported { place: self.place.to_owned(), reason: reason.to_owned() }
    }

    /// Fills `into` from a part of the file that messages call `what`.
    pub(super) fn bytes(&self, offset: u64, into: &mut [u8], what: &str) -> Result<(), ImageError> {
        self.file.read_exact_at(into, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.malformed(format!("it ends within its {what}")),
            _ => self.malformed(format!("its {what} cannot be read: {error}")),
        })
    }

    fn layout(&self) -> Result<Layout, ImageError> {
        let mut layout = Layout::new_zeroed();
        let (version_2, version_3) = layout.as_mut_bytes().split_at_mut(VERSION_2_LENGTH);
        self.bytes(0, version_2, "header")?;
        if version_2[..4] != MAGIC {
            return Err(self.malformed("it does not begin with QFI"));
        }
        if version_2[4..8] == 3_u32.to_be_bytes() {
            self.bytes(VERSION_2_LENGTH as u64, version_3, "header")?;
        } else {
            layout.header_length = (VERSION_2_LENGTH as u32).into();
        }
        Ok(layout)
    }

    fn check(&self, layout: &Layout) -> Result<(), ImageError> {
        let version = layout.version.get();
        if !(2..=3).contains(&version) {
            return Err(self.unsupported(&format!("version {version} of qcow2 is not supported")));
        }
        let cluster_bits = layout.cluster_bits.get();
        if !(MINIMUM_CLUSTER_BITS..=MAXIMUM_CLUSTER_BITS).contains(&cluster_bits) {
            return Err(self.malformed(format!("clusters of 2^{cluster_bits} bytes do not exist")));
        }
        let header_length = layout.header_length.get();
        let minimum = if version == 3 { VERSION_3_LENGTH } else { VERSION_2_LENGTH } as u32;
        if header_length < minimum || header_length > 1 << cluster_bits {
            return Err(self.malformed(format!("its header has {header_length} bytes")));
        }
        if layout.crypt_method.get() != 0 {
            return Err(
                self.unsupported("the image is encrypted; decrypt it first with qemu-img convert")
            );
        }
        let features = layout.incompatible_features.get();
        if features & (DIRTY | CORRUPT) != 0 {
            return Err(self.unsupported(
                "the image was not closed or is damaged; repair it first: qemu-img check -r all",
            ));
        }
        if features & !EXTERNAL_DATA_FILE != 0 {
            return Err(self.unsupported(
                "the image uses a feature that is not supported, such as zstd or extended L2 entries; convert it \
                 first: qemu-img convert -O qcow2",
            ));
        }
        if layout.size.get() > i64::MAX as u64 {
            return Err(self.malformed(format!("its disk has {} bytes", layout.size)));
        }
        Ok(())
    }

    /// Returns the backing file's format and the data file's name.
    #[expect(clippy::type_complexity, reason = "both are used in one place")]
    fn extensions(
        &self,
        layout: &Layout,
        cluster_length: u64,
    ) -> Result<(Option<Vec<u8>>, Option<Vec<u8>>), ImageError> {
        let (mut backing_format, mut data_file) = (None, None);
        let mut offset = u64::from(layout.header_length.get());
        // The name of the backing file follows the extensions.
        let end = match layout.backing_file_offset.get() {
            0 => cluster_length,
            name => name.min(cluster_length),
        };
        while offset + size_of::<Extension>() as u64 <= end {
            let mut extension = Extension::new_zeroed();
            self.bytes(offset, extension.as_mut_bytes(), "header extensions")?;
            offset += size_of::<Extension>() as u64;
            let length = u64::from(extension.length.get());
            if extension.kind.get() == END {
                break;
            }
            if length > end.saturating_sub(offset) {
                return Err(self.malformed("a header extension is too long"));
            }
            let kept = match extension.kind.get() {
                BACKING_FORMAT => Some(&mut backing_format),
                DATA_FILE_NAME => Some(&mut data_file),
                _ => None,
            };
            if let Some(kept) = kept {
                let mut bytes = vec![0; length as usize];
                self.bytes(offset, &mut bytes, "header extensions")?;
                *kept = Some(bytes);
            }
            offset += length.next_multiple_of(8);
        }
        Ok((backing_format, data_file))
    }

    fn backing_name(
        &self,
        layout: &Layout,
        cluster_length: u64,
    ) -> Result<Option<OsString>, ImageError> {
        let (offset, length) = (layout.backing_file_offset.get(), layout.backing_file_size.get());
        if offset == 0 {
            return Ok(None);
        }
        let end = offset.checked_add(length.into());
        if length > MAXIMUM_NAME_LENGTH || end.is_none_or(|end| end > cluster_length) {
            return Err(self.malformed("the name of its backing file is not in its header"));
        }
        let mut name = vec![0; length as usize];
        self.bytes(offset, &mut name, "backing file's name")?;
        Ok(Some(OsString::from_vec(name)))
    }
}
