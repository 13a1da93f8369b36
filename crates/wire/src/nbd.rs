//! NBD as specified by the protocol document (doc/proto.md of the NetworkBlockDevice project): the fixed newstyle
//! handshake and the transmission phase with simple replies. Comments cite clauses of that document by heading.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The port that IANA assigned.
pub const DEFAULT_PORT: u16 = 10809;
/// Maximum length of an export's name ("Values, export names").
pub const MAX_NAME_LENGTH: usize = 4096;
/// Maximum payload of a server that declares no block size constraints ("Block size constraints").
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
/// The magic number of each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

macro_rules! layout {
    ($(#[$doc:meta])* $name:ident: $length:literal
        { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $length);
    };
}

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
        /// [`FUA`] and [`NO_HOLE`].
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

/// Command flag: the server replies once the data is on stable storage.
pub const FUA: u16 = 1 << 0;
/// Command flag of [`CommandCode::WriteZeroes`]: the space stays allocated.
pub const NO_HOLE: u16 = 1 << 1;

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
    /// Each connection sees the flushed writes of the others.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
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
    fn unnamed_values_are_preserved() {
        assert!(ReplyCode(0x8000_1234).is_error() && !ReplyCode::Info.is_error());
        assert_ne!(ErrorCode(4711), ErrorCode::Io);
    }
}
