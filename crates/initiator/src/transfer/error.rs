//! Errors of transfers.

use std::io;

use sarsen_block::BlockError;

use super::images::ImageError;
use crate::error::SessionError;
use crate::nbd::NbdError;
use crate::signature::Occupied;

/// The reason why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The session with a disk could not be opened.
    #[error("cannot open {place}: {source}")]
    Open {
        /// The disk's URL.
        place: String,
        /// The session's error.
        #[source]
        source: SessionError,
    },
    /// The logout failed; the data that was moved is safe.
    #[error("cannot log out of {place}: {source}")]
    Close {
        /// The disk's URL.
        place: String,
        /// The session's error.
        #[source]
        source: SessionError,
    },
    /// A command failed.
    #[error("cannot {verb} {length} bytes at byte {offset} of {place}: {source}")]
    Disk {
        /// The disk's URL.
        place: String,
        /// The operation.
        verb: &'static str,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The session's error.
        #[source]
        source: SessionError,
    },
    /// An NBD server cannot be reached, or its export is no disk.
    #[error(transparent)]
    Nbd(NbdError),
    /// An NBD server refuses its export, or violates the protocol.
    #[error("cannot open {place}: {source}")]
    OpenExport {
        /// The export's URL.
        place: String,
        /// The connection's error.
        #[source]
        source: NbdError,
    },
    /// A request to an NBD server failed.
    #[error("cannot {verb} {length} bytes at byte {offset} of {place}: {source}")]
    Export {
        /// The export's URL.
        place: String,
        /// The operation.
        verb: &'static str,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The error.
        #[source]
        source: BlockError,
    },
    /// The export is read-only.
    #[error("{place} is read-only")]
    ReadOnly {
        /// The export's URL.
        place: String,
    },
    /// The end of the export is not the end of a block.
    #[error("{place} has {size} bytes, which are not whole blocks of {block_length} bytes")]
    PartialBlock {
        /// The export's URL.
        place: String,
        /// Its size in bytes.
        size: u64,
        /// Bytes of a block.
        block_length: u64,
    },
    /// The export has no dirty bitmap of this name.
    #[error(
        "{place} does not report what has changed since {older:?}: it has no such dirty bitmap"
    )]
    NoChanges {
        /// The export's URL.
        place: String,
        /// The name of the older snapshot or of the bitmap.
        older: String,
    },
    /// The sink does not have the contents of the older snapshot.
    #[error(
        "{place} is no copy of the older snapshot: it differs from {source_place} at byte {offset}, which has not \
         changed since; nothing was written"
    )]
    NoOlderCopy {
        /// The sink.
        place: String,
        /// The source.
        source_place: String,
        /// The first byte that was found to differ.
        offset: u64,
    },
    /// A file or a stream failed.
    #[error("cannot {verb} {place}: {source}")]
    File {
        /// Its name.
        place: String,
        /// The operation.
        verb: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another process uses the file.
    #[error("{place} is in use by another process; end that process first")]
    InUse {
        /// Its name.
        place: String,
    },
    /// The range is beyond the end of the source or of the sink.
    #[error("{length} bytes from byte {offset} on do not fit {place}, which has {size} bytes")]
    BeyondEnd {
        /// The disk or file that is too small.
        place: String,
        /// Its size in bytes.
        size: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// A write does not begin at the start of a block.
    #[error(
        "byte {offset} of {place} is not where a block begins: its blocks have {block_length} bytes, \
         take a multiple"
    )]
    Unaligned {
        /// The disk's URL.
        place: String,
        /// The byte.
        offset: u64,
        /// Bytes of a block.
        block_length: u64,
    },
    /// No piece has whole blocks of both disks.
    #[error(
        "the blocks of {source_place} ({source_length} bytes) and {sink_place} ({sink_length} \
         bytes) do not fit together: copy by way of a file"
    )]
    BlockLengths {
        /// The source.
        source_place: String,
        /// Bytes of its blocks.
        source_length: u64,
        /// The sink.
        sink_place: String,
        /// Bytes of its blocks.
        sink_length: u64,
    },
    /// The disk does not support UNMAP.
    #[error("{place} does not support UNMAP; write zeroes instead")]
    UnmapUnsupported {
        /// The disk's URL.
        place: String,
    },
    /// The disk holds data, and the caller did not permit overwriting it.
    #[error(transparent)]
    Occupied(#[from] Occupied),
    /// A disk image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
}
