//! Checks that an image passes before QEMU opens it: the files that it needs, and what QEMU does not check.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use zerocopy::byteorder::{big_endian, little_endian};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ImageError, ImageFormat};

/// The beginnings of VMDK files: a sparse extent, a sparse extent of ESX, a descriptor.
pub(super) const VMDK_SIGNATURES: [&[u8]; 3] = [b"KDMV", b"COWD", b"# Disk DescriptorFile"];

/// Bytes of a descriptor that are searched for names. QEMU reads the parent's name from the first 10 KiB.
const DESCRIPTOR_LENGTH: u64 = 64 * 1024;
/// The place where QEMU expects a descriptor in a sparse extent, whatever its header says.
const EMBEDDED_DESCRIPTOR_OFFSET: u64 = 512;
/// The content identifier of no parent.
const NO_PARENT: &str = "ffffffff";
/// The type of a VHD image that is based on another one.
const DIFFERENCING: u32 = 4;

/// The beginning of a sparse extent (VMware's "Virtual Disk Format 1.1").
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct SparseExtent {
    signature: [u8; 4],
    version: little_endian::U32,
    flags: little_endian::U32,
    capacity: little_endian::U64,
    grain_size: little_endian::U64,
    descriptor_offset: little_endian::U64,
}

/// The part of a VHD footer that is read here (Microsoft's "Virtual Hard Disk Image Format Specification").
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct VhdFooter {
    cookie: [u8; 8],
    unused: [u8; 52],
    disk_type: big_endian::U32,
}

/// The header of a VDI image (VirtualBox's `VDICore.h`), from its signature on.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct VdiHeader {
    signature: [u8; 4],
    unused: [u8; 276],
    data_offset: little_endian::U32,
    unused_too: [u8; 28],
    block_size: little_endian::U32,
    block_extra: little_endian::U32,
    blocks: little_endian::U32,
    allocated_blocks: little_endian::U32,
}

const VDI_HEADER_OFFSET: u64 = 64;
const _: () = assert!(size_of::<VdiHeader>() == 0x188 - VDI_HEADER_OFFSET as usize);

/// Bytes of a whole footer.
const VHD_FOOTER_LENGTH: u64 = 512;

/// Returns the files that an image needs in addition to itself, for messages.
pub(super) fn find(
    file: &File,
    place: &str,
    format: ImageFormat,
) -> Result<Vec<String>, ImageError> {
    let malformed =
        |reason: String| ImageError::Malformed { place: place.to_owned(), format, reason };
    let unsupported = |reason: &str| ImageError::Unsupported {
        place: place.to_owned(),
        reason: reason.to_owned(),
    };
    let unreadable = |error: io::Error| malformed(error.to_string());
    match format {
        ImageFormat::Vmdk => of_vmdk(file, &malformed, &unsupported),
        ImageFormat::Vhd => {
            let length = file.metadata().map_err(unreadable)?.len();
            let mut footer = VhdFooter::new_zeroed();
            let mut is_at = |offset| {
                let read = file.read_exact_at(footer.as_mut_bytes(), offset);
                read.is_ok() && footer.cookie == *b"conectix"
            };
            // A dynamic image has a copy at its beginning, which QEMU reads first.
            if !is_at(0) && !is_at(length.saturating_sub(VHD_FOOTER_LENGTH)) {
                return Err(malformed("it has no footer of a VHD file".into()));
            }
            if footer.disk_type.get() == DIFFERENCING {
                return Err(unsupported("the image is based on another one; merge both first"));
            }
            Ok(Vec::new())
        }
        ImageFormat::Vdi => {
            // QEMU refuses images that are based on others, and reads what a truncated one has lost as zeroes.
            let length = file.metadata().map_err(unreadable)?.len();
            let mut header = VdiHeader::new_zeroed();
            file.read_exact_at(header.as_mut_bytes(), VDI_HEADER_OFFSET).map_err(unreadable)?;
            let blocks = u64::from(header.allocated_blocks.get());
            let data = blocks.saturating_mul(header.block_size.get().into());
            let end = data.saturating_add(header.data_offset.get().into());
            if end > length {
                let reason =
                    format!("it has data up to byte {end}, and the file has {length} bytes");
                return Err(malformed(reason));
            }
            Ok(Vec::new())
        }
        // QEMU refuses VHDX images that are based on others.
        ImageFormat::Raw | ImageFormat::Qcow2 | ImageFormat::Vhdx => Ok(Vec::new()),
    }
}

/// Returns the extents and the parent of a VMDK image.
fn of_vmdk(
    file: &File,
    malformed: &dyn Fn(String) -> ImageError,
    unsupported: &dyn Fn(&str) -> ImageError,
) -> Result<Vec<String>, ImageError> {
    let unreadable = |error: io::Error| malformed(error.to_string());
    let head = bytes_at(file, 0, DESCRIPTOR_LENGTH).map_err(unreadable)?;
    let [sparse, esx, descriptor] = VMDK_SIGNATURES.map(|it| head.starts_with(it));
    if descriptor {
        return Ok(of_descriptor(&head));
    }
    if esx {
        return Err(unsupported("it is a part of an image; name the file with its descriptor"));
    }
    let Some((header, _)) = SparseExtent::ref_from_prefix(&head).ok().filter(|_| sparse) else {
        return Err(malformed("it has no header of a VMDK file".into()));
    };
    let offset = header.descriptor_offset.get();
    if offset == 0 {
        return Err(unsupported("it is a part of an image; name the file with its descriptor"));
    }
    let offset = offset.saturating_mul(512);
    let descriptor = bytes_at(file, offset, DESCRIPTOR_LENGTH).map_err(unreadable)?;
    if header.capacity.get() == 0 {
        return Ok(of_descriptor(&descriptor));
    }
    let other = head.get(EMBEDDED_DESCRIPTOR_OFFSET as usize..).unwrap_or_default();
    Ok(parent(&descriptor).or_else(|| parent(other)).into_iter().collect())
}

/// Returns up to `length` bytes of a file.
fn bytes_at(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // An offset that no file has.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Returns the extents and the parent of a descriptor. All data is in the extents, so there is at least one name.
fn of_descriptor(descriptor: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(descriptor);
    let extent = |line: &str| {
        let access = line.split_whitespace().next()?;
        let named = ["RW", "RDONLY", "NOACCESS"].contains(&access);
        named.then(|| line.split('"').nth(1).map(|name| format!("extent {name}")))?
    };
    let mut names: Vec<String> = text.lines().filter_map(extent).collect();
    names.extend(parent(descriptor));
    if names.is_empty() {
        names.push("extents".into());
    }
    names
}

/// Returns the parent that a descriptor names.
fn parent(descriptor: &[u8]) -> Option<String> {
    const HINT: &str = "parentFileNameHint";
    let text = String::from_utf8_lossy(descriptor);
    if let Some((_, hint)) = text.split_once(HINT) {
        let line = hint.lines().next().unwrap_or_default();
        return Some(format!("parent {}", line.trim_matches([' ', '=', '"'])));
    }
    let (_, parent) = text.split_once("parentCID=")?;
    let has_parent = !parent.trim_start().to_ascii_lowercase().starts_with(NO_PARENT);
    has_parent.then(|| "its parent".into())
}
