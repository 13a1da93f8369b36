//! The format of a part of a stream: its header, its ranges and their data.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{NAME_MAX, checksum_of, unpadded};
use crate::shape::SIZE_MAX;

/// Maximum bytes of data in a part.
pub(crate) const DATA_MAX: u64 = 1 << 20;
/// Maximum number of ranges in a part.
pub(crate) const RANGES_MAX: usize = 1024;

const MAGIC: [u8; 8] = *b"sarsen\x1as";
const VERSION: u32 = 1;
/// The part is the last one of its snapshot.
pub(crate) const LAST: u8 = 1;
/// Maximum time of a creation: the year 9999.
const CREATED_MAX: u64 = 253_402_300_799;
/// The identifier of no snapshot.
pub(crate) const NONE: [u8; 16] = [0; 16];

/// The beginning of a part. Its ranges follow, and then their data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PartHeader {
    /// CRC32C of the part, in which these four bytes count as zero.
    pub(crate) checksum: U32,
    pub(crate) version: U32,
    pub(crate) magic: [u8; 8],
    /// Bytes of the part.
    pub(crate) length: U32,
    /// Number of its ranges.
    pub(crate) ranges: U32,
    /// The identifier of the snapshot.
    pub(crate) snapshot: [u8; 16],
    /// That of the snapshot that it was compared with. Zeroes: an empty volume.
    pub(crate) base: [u8; 16],
    /// Size of the snapshot in bytes.
    pub(crate) size: U64,
    /// The part has all that differs from this byte on ...
    pub(crate) from: U64,
    /// ... up to this one.
    pub(crate) until: U64,
    /// Seconds since 1970.
    pub(crate) created: U64,
    pub(crate) block_shift: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: [u8; 6],
    /// The snapshot's own name, UTF-8, padded with zeroes.
    pub(crate) name: [u8; NAME_MAX + 1],
}

/// A range that differs.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Range {
    pub(crate) offset: U64,
    pub(crate) length: U64,
    /// 1: it reads as zeroes, and the part has no data of it.
    pub(crate) is_hole: u8,
    pub(crate) reserved: [u8; 7],
}

const _: () = {
    assert!(size_of::<PartHeader>() == 224);
    assert!(size_of::<Range>() == 24);
};

/// Bytes at the beginning of a part from which [`PartInfo::read`] reads.
pub const PART_HEADER_BYTES: usize = size_of::<PartHeader>();
/// Maximum bytes of a part.
pub const PART_BYTES_MAX: usize =
    PART_HEADER_BYTES + RANGES_MAX * size_of::<Range>() + DATA_MAX as usize;

/// What the beginning of a part says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartInfo {
    /// Bytes of the part.
    pub length: usize,
    /// The snapshot's own name, on the pool that sent it.
    pub name: String,
    /// Size of the snapshot in bytes.
    pub size: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// The part has all that differs from this byte on.
    pub from: u64,
    /// The byte up to which it has that.
    pub until: u64,
    /// Nothing follows.
    pub is_last: bool,
}

/// The reason why a part is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamProblem {
    /// It does not begin like a part.
    #[error("this is no stream of a snapshot; use the output of `sarsen snapshot send`")]
    NoPart,
    /// The format has another version.
    #[error(
        "version {0} of the stream's format is not supported, but {VERSION}; use the same version of sarsen on both servers"
    )]
    Version(u32),
    /// The checksum is wrong, or the part contradicts itself.
    #[error(
        "the stream is damaged; send it again from the byte that `sarsen snapshot list` shows on"
    )]
    Damaged,
    /// A part before it was not received.
    #[error(
        "what comes before this part was not received; send it from byte {0} on (--offset {0}), and receive it under the same \
         name"
    )]
    Gap(u64),
    /// The volume has no snapshot with which the sent one was compared.
    #[error(
        "the volume does not have the older snapshot (--since) of this stream; send that one first, or send without --since"
    )]
    NoBase,
    /// The name belongs to another snapshot.
    #[error("the volume has another snapshot of this name; receive it as VOLUME@OTHERNAME")]
    NameInUse,
    /// The snapshot is being received from another stream.
    #[error(
        "another stream of this snapshot was received in part; resume with the same --since, or delete the incomplete \
         snapshot first"
    )]
    OtherStream,
    /// The volume has blocks of another size.
    #[error(
        "the volume has blocks of another size; receive the snapshot into a volume with the same block size"
    )]
    BlockSize,
}

impl PartHeader {
    fn read(bytes: &[u8]) -> Result<Self, StreamProblem> {
        let (header, _) = Self::read_from_prefix(bytes).map_err(|_| StreamProblem::NoPart)?;
        if header.magic != MAGIC {
            return Err(StreamProblem::NoPart);
        }
        if header.version.get() != VERSION {
            return Err(StreamProblem::Version(header.version.get()));
        }
        let length = header.length.get() as usize;
        let ranges = header.ranges.get() as usize;
        let size = header.size.get();
        let is_possible = (PART_HEADER_BYTES..=PART_BYTES_MAX).contains(&length)
            && ranges <= RANGES_MAX
            && matches!(header.block_shift, 9 | 11 | 12)
            && (1..=SIZE_MAX).contains(&size)
            && size.trailing_zeros() >= header.block_shift.into()
            && header.created.get() <= CREATED_MAX
            && header.has_possible_range()
            && header.flags & !LAST == 0
            && header.reserved == [0; 6]
            && header.snapshot != NONE
            && header.has_possible_name();
        if is_possible { Ok(header) } else { Err(StreamProblem::Damaged) }
    }

    fn has_possible_name(&self) -> bool {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        let (name, rest) = self.name.split_at(end);
        !name.is_empty()
            && str::from_utf8(name).is_ok()
            && !rest.is_empty()
            && rest.iter().all(|&byte| byte == 0)
    }

    /// Returns whether it covers whole blocks of the snapshot, and reaches its end if it is the last part.
    fn has_possible_range(&self) -> bool {
        let (from, until) = (self.from.get(), self.until.get());
        let is_last = self.flags & LAST != 0;
        (from | until) & ((1 << self.block_shift) - 1) == 0
            && until <= self.size.get()
            && if is_last { from <= until && until == self.size.get() } else { from < until }
    }
}

/// Puts a part together, of a header in which lengths and checksum are missing, ranges, and their data.
pub(crate) fn encode(header: &PartHeader, ranges: &[Range], data: &[u8]) -> Vec<u8> {
    let length = PART_HEADER_BYTES + size_of_val(ranges) + data.len();
    let header = PartHeader {
        version: VERSION.into(),
        magic: MAGIC,
        length: (length as u32).into(),
        ranges: (ranges.len() as u32).into(),
        ..*header
    };
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(ranges.as_bytes());
    bytes.extend_from_slice(data);
    let checksum = checksum_of(&bytes);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

impl PartInfo {
    /// Reads the beginning of a part, of at least [`PART_HEADER_BYTES`]. The checksum is verified later.
    pub fn read(bytes: &[u8]) -> Result<Self, StreamProblem> {
        let header = PartHeader::read(bytes)?;
        Ok(Self {
            length: header.length.get() as usize,
            name: unpadded(&header.name),
            size: header.size.get(),
            block_bytes: 1 << header.block_shift,
            from: header.from.get(),
            until: header.until.get(),
            is_last: header.flags & LAST != 0,
        })
    }
}

/// A part whose checksum is correct.
pub(crate) struct Part<'a> {
    pub(crate) header: PartHeader,
    pub(crate) ranges: &'a [Range],
    pub(crate) data: &'a [u8],
}

impl<'a> Part<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, StreamProblem> {
        let header = PartHeader::read(bytes)?;
        if header.length.get() as usize != bytes.len()
            || header.checksum.get() != checksum_of(bytes)
        {
            return Err(StreamProblem::Damaged);
        }
        let rest = &bytes[PART_HEADER_BYTES..];
        let count = header.ranges.get() as usize;
        let (ranges, data) = <[Range]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| StreamProblem::Damaged)?;
        let part = Self { header, ranges, data };
        if part.is_consistent() { Ok(part) } else { Err(StreamProblem::Damaged) }
    }

    /// Returns whether the ranges are in order, made of whole blocks and within the part's range, and all their data is there.
    fn is_consistent(&self) -> bool {
        let mask = (1_u64 << self.header.block_shift) - 1;
        let (mut last, mut data) = (self.header.from.get(), 0);
        for range in self.ranges {
            let (offset, length) = (range.offset.get(), range.length.get());
            let Some(end) = offset.checked_add(length) else { return false };
            let is_aligned = (offset | length) & mask == 0;
            let is_within = offset >= last && length > 0 && end <= self.header.until.get();
            if !is_aligned || !is_within || range.is_hole > 1 {
                return false;
            }
            last = end;
            data += if range.is_hole == 0 { length } else { 0 };
        }
        data == self.data.len() as u64
    }
}
