//! The virtio block device (VIRTIO 1.2, 5.2): its features, its configuration and its requests.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The unit of all numbers of sectors, whatever the block size is (5.2.4).
pub const SECTOR_BYTES: u64 = 512;
/// Maximum length of the identifier of a device (5.2.6, VIRTIO_BLK_T_GET_ID).
pub const IDENTIFIER_LENGTH: usize = 20;
/// Flag of a [`DiscardWriteZeroes`]: the device may deallocate it (5.2.6).
pub const UNMAP: u32 = 1;

/// Features of the device (5.2.3) and of its rings (6).
pub mod feature {
    /// [`super::Config::maximum_segments`].
    pub const SEGMENTS: u64 = 1 << 2;
    /// The device is read-only.
    pub const READ_ONLY: u64 = 1 << 5;
    /// [`super::Config::block_bytes`].
    pub const BLOCK_SIZE: u64 = 1 << 6;
    /// The device has a cache, and flushes it on request.
    pub const FLUSH: u64 = 1 << 9;
    /// [`super::Config::physical_block_exponent`] and the fields after it.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// Several queues.
    pub const MULTIQUEUE: u64 = 1 << 12;
    /// The device can deallocate ranges.
    pub const DISCARD: u64 = 1 << 13;
    /// The device can write zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Descriptors may be in tables of their own.
    pub const INDIRECT_DESCRIPTORS: u64 = 1 << 28;
    /// used_event and avail_event limit the notifications (2.7.10).
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The device is one of VIRTIO 1.0 or later.
    pub const VERSION_1: u64 = 1 << 32;
}

open_enum! {
    /// The type of a request (5.2.6).
    RequestType(u32) {
        /// Read.
        Read = 0,
        /// Write.
        Write = 1,
        /// Bring completed writes to stable storage.
        Flush = 4,
        /// Return the identifier.
        GetIdentifier = 8,
        /// Deallocate ranges.
        Discard = 11,
        /// Write zeroes.
        WriteZeroes = 13,
    }
}

open_enum! {
    /// The status of a request (5.2.6), its last byte.
    Status(u8) {
        /// The request was carried out.
        Ok = 0,
        /// It failed.
        IoError = 1,
        /// The device has no such request.
        Unsupported = 2,
    }
}

layout! {
    /// The beginning of each request (5.2.6); the data and the status follow.
    RequestHeader: 16 {
        /// A [`RequestType`].
        code: U32,
        /// Not used.
        reserved: U32,
        /// First sector of a read or a write.
        sector: U64,
    }
}

layout! {
    /// The data of a [`RequestType::Discard`] or a [`RequestType::WriteZeroes`] (5.2.6).
    DiscardWriteZeroes: 16 {
        /// First sector.
        sector: U64,
        /// Number of sectors.
        sectors: U32,
        /// [`UNMAP`].
        flags: U32,
    }
}

layout! {
    /// The configuration of the device (5.2.4).
    Config: 60 {
        /// Its size in sectors.
        sectors: U64,
        /// Maximum length of a segment of a request. Without its feature, there is no limit.
        maximum_segment_bytes: U32,
        /// Maximum number of segments of a request.
        maximum_segments: U32,
        /// Cylinders, heads and sectors of a track. Not used.
        geometry: [u8; 4],
        /// Block size in bytes.
        block_bytes: U32,
        /// Number of blocks of a physical block, as a power of two.
        physical_block_exponent: u8,
        /// Offset of the first aligned block.
        alignment_offset: u8,
        /// Smallest suggested request, in blocks.
        minimum_io: U16,
        /// Best request, in blocks.
        optimal_io: U32,
        /// Mode of the cache. Not used.
        writeback: u8,
        /// Not used.
        reserved: u8,
        /// Number of queues.
        queues: U16,
        /// Maximum number of sectors of a range that is deallocated.
        maximum_discard: U32,
        /// Maximum number of ranges of a request.
        maximum_discard_ranges: U32,
        /// Sectors to which such ranges should be aligned.
        discard_alignment: U32,
        /// Maximum number of sectors of a range of zeroes.
        maximum_zeroes: U32,
        /// Maximum number of ranges of a request.
        maximum_zeroes_ranges: U32,
        /// Whether writing zeroes may deallocate.
        zeroes_may_unmap: u8,
        /// Not used.
        padding: [u8; 3],
    }
}
