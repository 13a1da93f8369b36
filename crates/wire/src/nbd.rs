//! NBD as specified by the protocol document (doc/proto.md of the NetworkBlockDevice project): the fixed newstyle
//! handshake and the transmission phase with simple, structured and extended replies. Comments cite clauses of that
//! document by heading. Extended headers are specified by its branch `extension-ext-header`.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The port that IANA assigned.
pub const DEFAULT_PORT: u16 = 10809;
/// Maximum length of a string in bytes, such as an export's name or an error message ("Conventions").
pub const MAX_NAME_LENGTH: usize = 4096;
/// Maximum payload of a server that declares no size constraints ("Size constraints").
pub const DEFAULT_MAX_PAYLOAD: u32 = 32 << 20;
/// Number of zero bytes after [`ExportNameReply`], unless both sides negotiated [`NO_ZEROES`].
pub const EXPORT_NAME_PADDING: usize = 124;

/// The first eight bytes that a server sends: "NBDMAGIC".
pub const GREETING_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// The magic number of each option, and of a newstyle greeting: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// The magic number of a server without option negotiation, in place of [`OPTION_MAGIC`].
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// The magic number of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The magic number of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The magic number of each request with extended headers.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// The magic number of each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The magic number of each chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// The magic number of each chunk of an extended reply.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;
/// The largest minimum block size that a server may advertise ("Size constraints").
pub const MAX_MINIMUM_BLOCK: u32 = 64 * 1024;
/// The smallest preferred block size that a server may advertise ("Size constraints").
pub const MIN_PREFERRED_BLOCK: u32 = 512;
/// The name of the metadata context that reports allocation ("`base:allocation` metadata context").
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The names of QEMU's metadata contexts begin with this namespace (QEMU, docs/interop/nbd.txt).
pub const QEMU_NAMESPACE: &str = "qemu:";
/// The beginning of the name of a metadata context that reports changes. The name of the dirty bitmap follows.
pub const QEMU_DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

layout! {
    /// The server's greeting.
    Greeting: 18 {
        /// [`GREETING_MAGIC`].
        magic: U64,
        /// [`OPTION_MAGIC`].
        style: U64,
        /// [`FIXED_NEWSTYLE`] and [`NO_ZEROES`].
        flags: U16,
    }
}

/// Handshake flag: the server also replies to options that it does not know.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: the server may omit [`EXPORT_NAME_PADDING`].
pub const NO_ZEROES: u16 = 1 << 1;

layout! {
    /// The client's response to the greeting: the flags of the server that the client accepts.
    ClientFlags: 4 {
        /// [`FIXED_NEWSTYLE`] and [`NO_ZEROES`].
        flags: U32,
    }
}

layout! {
    /// The head of an option; its data follows.
    OptionRequest: 16 {
        /// [`OPTION_MAGIC`].
        magic: U64,
        /// An [`OptionCode`].
        option: U32,
        /// Length of the data.
        length: U32,
    }
}

layout! {
    /// The head of a reply to an option; its data follows.
    OptionReply: 20 {
        /// [`OPTION_REPLY_MAGIC`].
        magic: U64,
        /// The option.
        option: U32,
        /// A [`ReplyCode`].
        reply: U32,
        /// Length of the data.
        length: U32,
    }
}

layout! {
    /// The reply to [`OptionCode::ExportName`], which has no head.
    ExportNameReply: 10 {
        /// Size of the export in bytes.
        bytes: U64,
        /// [`transmission`] flags.
        flags: U16,
    }
}

layout! {
    /// The data of [`ReplyCode::Info`] for [`InfoCode::Export`].
    ExportInfo: 12 {
        /// [`InfoCode::Export`].
        info: U16,
        /// Size of the export in bytes.
        bytes: U64,
        /// [`transmission`] flags.
        flags: U16,
    }
}

layout! {
    /// The data of [`ReplyCode::Info`] for [`InfoCode::BlockSize`].
    BlockSizeInfo: 14 {
        /// [`InfoCode::BlockSize`].
        info: U16,
        /// Minimum block size: offsets and lengths are multiples of it.
        minimum: U32,
        /// Preferred block size of the server.
        preferred: U32,
        /// Maximum payload.
        maximum: U32,
    }
}

layout! {
    /// A request; the data of a write follows.
    Request: 28 {
        /// [`REQUEST_MAGIC`].
        magic: U32,
        /// Command flags: [`FUA`] and the others below it.
        flags: U16,
        /// A [`CommandCode`].
        command: U16,
        /// Identifier that the server returns in the reply.
        cookie: U64,
        /// First byte.
        offset: U64,
        /// Number of bytes.
        length: U32,
    }
}

layout! {
    /// A request with extended headers; its payload follows if [`PAYLOAD_LEN`] is set.
    ExtendedRequest: 32 {
        /// [`EXTENDED_REQUEST_MAGIC`].
        magic: U32,
        /// Command flags: [`FUA`] and the others below it.
        flags: U16,
        /// A [`CommandCode`].
        command: U16,
        /// Identifier that the server returns in the reply.
        cookie: U64,
        /// First byte.
        offset: U64,
        /// Number of bytes: of the payload if [`PAYLOAD_LEN`] is set, otherwise of the export.
        length: U64,
    }
}

/// Command flag: the server replies once the data is on stable storage.
pub const FUA: u16 = 1 << 0;
/// Command flag of [`CommandCode::WriteZeroes`]: the space stays allocated.
pub const NO_HOLE: u16 = 1 << 1;
/// Command flag of [`CommandCode::Read`]: the reply has one content chunk.
pub const DF: u16 = 1 << 2;
/// Command flag of [`CommandCode::BlockStatus`]: the reply has one extent for each context.
pub const REQ_ONE: u16 = 1 << 3;
/// Command flag of [`CommandCode::WriteZeroes`]: the request fails if it is not faster than a write.
pub const FAST_ZERO: u16 = 1 << 4;
/// Command flag of [`ExtendedRequest`]: a payload of [`ExtendedRequest::length`] bytes follows.
pub const PAYLOAD_LEN: u16 = 1 << 5;

layout! {
    /// A simple reply; the data of a successful read follows.
    SimpleReply: 16 {
        /// [`SIMPLE_REPLY_MAGIC`].
        magic: U32,
        /// An [`ErrorCode`].
        error: U32,
        /// The cookie of the request.
        cookie: U64,
    }
}

layout! {
    /// The head of a chunk of a structured reply; its payload follows.
    ReplyChunk: 20 {
        /// [`STRUCTURED_REPLY_MAGIC`].
        magic: U32,
        /// [`REPLY_DONE`].
        flags: U16,
        /// A [`ChunkType`].
        chunk: U16,
        /// The cookie of the request.
        cookie: U64,
        /// Length of the payload.
        length: U32,
    }
}

layout! {
    /// The head of a chunk of an extended reply; its payload follows.
    ExtendedReplyChunk: 32 {
        /// [`EXTENDED_REPLY_MAGIC`].
        magic: U32,
        /// [`REPLY_DONE`].
        flags: U16,
        /// A [`ChunkType`].
        chunk: U16,
        /// The cookie of the request.
        cookie: U64,
        /// The offset of the request.
        offset: U64,
        /// Length of the payload.
        length: U64,
    }
}

/// Flag of a chunk: it is the last of its reply.
pub const REPLY_DONE: u16 = 1 << 0;

layout! {
    /// The payload of [`ChunkType::OffsetHole`].
    HoleChunk: 12 {
        /// First byte.
        offset: U64,
        /// Number of zero bytes, not 0.
        length: U32,
    }
}

layout! {
    /// The beginning of the payload of [`ChunkType::Error`]; the message follows.
    ErrorChunk: 6 {
        /// An [`ErrorCode`], not [`ErrorCode::None`].
        error: U32,
        /// Length of the message, with a maximum of [`MAX_NAME_LENGTH`].
        message_length: U16,
    }
}

layout! {
    /// An extent in the payload of [`ChunkType::BlockStatus`], after the identifier of the context (32 bits).
    StatusDescriptor: 8 {
        /// Number of bytes, not 0.
        length: U32,
        /// The status that the context defines.
        flags: U32,
    }
}

layout! {
    /// The beginning of the payload of [`ChunkType::BlockStatusExt`]; the extents follow.
    ExtendedStatus: 8 {
        /// The identifier of the context.
        context: U32,
        /// Number of extents, not 0.
        count: U32,
    }
}

layout! {
    /// An extent in the payload of [`ChunkType::BlockStatusExt`].
    ExtendedStatusDescriptor: 16 {
        /// Number of bytes, not 0.
        length: U64,
        /// The status that the context defines.
        flags: U64,
    }
}

/// The status flags of the context [`BASE_ALLOCATION`].
pub mod allocation {
    /// The extent is not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// The extent reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// The status flags of the contexts whose names begin with [`QEMU_DIRTY_BITMAP`].
pub mod dirty_bitmap {
    /// The extent has changed.
    pub const DIRTY: u32 = 1 << 0;
}

/// The properties of an export: its sixteen transmission flags.
pub mod transmission {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// The export rejects writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The export is a rotating disk.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag is supported.
    pub const SEND_DF: u16 = 1 << 7;
    /// Each connection sees the flushed writes of the others.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// RESIZE is supported (branch `extension-resize`).
    pub const SEND_RESIZE: u16 = 1 << 9;
    /// CACHE is supported.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// BLOCK_STATUS accepts a payload that selects contexts (branch `extension-ext-header`).
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

open_enum! {
    /// The options that a client may send in the handshake.
    OptionCode(u32) {
        /// Select an export and start transmission; on an error the server closes the connection.
        ExportName = 1,
        /// End the negotiation.
        Abort = 2,
        /// List the exports.
        List = 3,
        /// Start TLS.
        StartTls = 5,
        /// Return information about an export.
        Info = 6,
        /// Return information about an export and start transmission.
        Go = 7,
        /// Negotiate structured replies.
        StructuredReply = 8,
        /// List the metadata contexts of an export.
        ListMetaContext = 9,
        /// Select metadata contexts of an export.
        SetMetaContext = 10,
        /// Negotiate extended headers.
        ExtendedHeaders = 11,
    }
}

open_enum! {
    /// The type of a reply to an option. Values from 2^31 on are errors.
    ReplyCode(u32) {
        /// The server accepts the option, or ends the list of replies.
        Ack = 1,
        /// An export, in reply to [`OptionCode::List`].
        Server = 2,
        /// One item of the requested information.
        Info = 3,
        /// A metadata context: its identifier (32 bits) and its name.
        MetaContext = 4,
        /// The server does not know the option.
        Unsupported = 0x8000_0001,
        /// The server's policy forbids the option.
        Policy = 0x8000_0002,
        /// The request is invalid.
        Invalid = 0x8000_0003,
        /// The server's platform does not support the option.
        Platform = 0x8000_0004,
        /// The option requires TLS.
        TlsRequired = 0x8000_0005,
        /// There is no such export.
        Unknown = 0x8000_0006,
        /// The server shuts down.
        Shutdown = 0x8000_0007,
        /// The export requires clients that request block sizes.
        BlockSizeRequired = 0x8000_0008,
        /// The request is too long.
        TooBig = 0x8000_0009,
        /// The option requires extended headers, or extended headers take its place.
        ExtendedHeadersRequired = 0x8000_000a,
    }
}

impl ReplyCode {
    /// Returns whether the reply is an error.
    pub const fn is_error(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

open_enum! {
    /// Kinds of information about an export.
    InfoCode(u16) {
        /// [`ExportInfo`].
        Export = 0,
        /// Its canonical name.
        Name = 1,
        /// Its description.
        Description = 2,
        /// [`BlockSizeInfo`].
        BlockSize = 3,
    }
}

open_enum! {
    /// Requests.
    CommandCode(u16) {
        /// Read.
        Read = 0,
        /// Write.
        Write = 1,
        /// End the connection; there is no reply.
        Disconnect = 2,
        /// Make written data durable.
        Flush = 3,
        /// Deallocate blocks; the content of later reads is undefined.
        Trim = 4,
        /// Read ahead.
        Cache = 5,
        /// Write zeroes.
        WriteZeroes = 6,
        /// Return the status of a range in the selected metadata contexts.
        BlockStatus = 7,
    }
}

open_enum! {
    /// The type of a chunk. Values from 2^15 on are errors ("Structured reply types").
    ChunkType(u16) {
        /// The reply ends without more content.
        None = 0,
        /// An offset (64 bits) and the data from there.
        OffsetData = 1,
        /// [`HoleChunk`].
        OffsetHole = 2,
        /// The identifier of a context (32 bits) and extents ([`StatusDescriptor`]).
        BlockStatus = 5,
        /// [`ExtendedStatus`] and extents ([`ExtendedStatusDescriptor`]).
        BlockStatusExt = 6,
        /// [`ErrorChunk`] and a message.
        Error = 0x8001,
        /// [`ErrorChunk`], a message and the offset of the error (64 bits).
        ErrorOffset = 0x8002,
    }
}

impl ChunkType {
    /// Returns whether the chunk reports an error.
    pub const fn is_error(self) -> bool {
        self.0 & 0x8000 != 0
    }
}

open_enum! {
    /// The result of a request ("Error values"); the numbers are those of Linux.
    ErrorCode(u32) {
        /// The request succeeded.
        None = 0,
        /// Not permitted: the export is read-only.
        NotPermitted = 1,
        /// The medium failed.
        Io = 5,
        /// The server has too little memory for the request.
        NoMemory = 12,
        /// The request is invalid.
        Invalid = 22,
        /// No space.
        NoSpace = 28,
        /// A value is too large.
        Overflow = 75,
        /// Not supported.
        NotSupported = 95,
        /// The server shuts down.
        Shutdown = 108,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_document() {
        let request = Request {
            magic: REQUEST_MAGIC.into(),
            flags: FUA.into(),
            command: CommandCode::Write.0.into(),
            cookie: 0x0102_0304_0506_0708.into(),
            offset: 0x1000.into(),
            length: 0x200.into(),
        };
        let bytes = [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0,
            0, 0, 2, 0,
        ];
        assert_eq!(request.as_bytes(), bytes);
        assert_eq!(Request::read_from_bytes(&bytes), Ok(request));
        let greeting = b"NBDMAGICIHAVEOPT\x00\x03";
        let greeting = Greeting::read_from_bytes(greeting).expect("18 bytes");
        assert_eq!(greeting.magic.get(), GREETING_MAGIC);
        assert_eq!(greeting.style.get(), OPTION_MAGIC);
        assert_eq!(greeting.flags.get(), FIXED_NEWSTYLE | NO_ZEROES);
    }

    #[test]
    fn extended_layouts_are_those_of_the_branch() {
        let request = ExtendedRequest {
            magic: EXTENDED_REQUEST_MAGIC.into(),
            flags: (FUA | PAYLOAD_LEN).into(),
            command: CommandCode::Write.0.into(),
            cookie: 0x0102_0304_0506_0708.into(),
            offset: 0x1000.into(),
            length: 0x200.into(),
        };
        let bytes = [
            0x21, 0xe4, 0x1c, 0x71, 0, 0x21, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10,
            0, 0, 0, 0, 0, 0, 0, 2, 0,
        ];
        assert_eq!(request.as_bytes(), bytes);
        let head = ExtendedReplyChunk {
            magic: EXTENDED_REPLY_MAGIC.into(),
            flags: REPLY_DONE.into(),
            chunk: ChunkType::BlockStatusExt.0.into(),
            cookie: 1.into(),
            offset: 2.into(),
            length: 24.into(),
        };
        let status = ExtendedStatus { context: 3.into(), count: 1.into() };
        let extent = ExtendedStatusDescriptor { length: (1 << 40).into(), flags: 3.into() };
        let bytes = [
            &[0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 1][..],
            &[0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 24],
            &[0, 0, 0, 3, 0, 0, 0, 1],
            &[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3],
        ];
        let parts = [head.as_bytes(), status.as_bytes(), extent.as_bytes()];
        assert!(parts.iter().copied().flatten().eq(bytes.iter().copied().flatten()));
    }

    #[test]
    fn chunks_are_those_of_the_document() {
        let head = ReplyChunk {
            magic: STRUCTURED_REPLY_MAGIC.into(),
            flags: REPLY_DONE.into(),
            chunk: ChunkType::Error.0.into(),
            cookie: 5.into(),
            length: 6.into(),
        };
        let error = ErrorChunk { error: ErrorCode::Invalid.0.into(), message_length: 0.into() };
        let bytes = [
            0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 22,
            0, 0,
        ];
        assert!([head.as_bytes(), error.as_bytes()].iter().copied().flatten().eq(&bytes));
        let hole = HoleChunk { offset: 0x1000.into(), length: 0x200.into() };
        assert_eq!(hole.as_bytes(), [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0]);
        let extent = StatusDescriptor { length: 512.into(), flags: allocation::ZERO.into() };
        assert_eq!(extent.as_bytes(), [0, 0, 2, 0, 0, 0, 0, 2]);
        assert!(ChunkType::ErrorOffset.is_error() && !ChunkType::BlockStatus.is_error());
    }

    #[test]
    fn unnamed_values_are_preserved() {
        assert!(ReplyCode(0x8000_1234).is_error() && !ReplyCode::Info.is_error());
        assert_ne!(ErrorCode(4711), ErrorCode::Io);
    }
}
