//! NBD as the protocol's own document lays it out (doc/proto.md of the NetworkBlockDevice
//! project): the fixed newstyle handshake and the transmission phase with simple replies. Clauses
//! are named by their headings there.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The port that IANA assigned.
pub const DEFAULT_PORT: u16 = 10809;
/// Longest name of an export ("Values, export names").
pub const MAX_NAME_LENGTH: usize = 4096;
/// The longest payload that a server takes which has not said more ("Block size constraints").
pub const DEFAULT_MAX_PAYLOAD: u32 = 32 << 20;
/// Zeroes behind [`ExportNameReply`], unless both sides have agreed on none.
pub const EXPORT_NAME_PADDING: usize = 124;

/// The first eight bytes of a server: "NBDMAGIC".
pub const GREETING_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Before each option, and after the greeting's magic in the newstyle: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// In the place of [`OPTION_MAGIC`], of a server that cannot negotiate.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Before each answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before each simple reply.
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
    /// What a server says first.
    Greeting: 18 {
        /// [`GREETING_MAGIC`].
        magic: U64,
        /// [`OPTION_MAGIC`].
        style: U64,
        /// [`FIXED_NEWSTYLE`] and [`NO_ZEROES`].
        flags: U16,
    }
}

/// Handshake flag: options that a server does not know are answered.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: [`EXPORT_NAME_PADDING`] may be left out.
pub const NO_ZEROES: u16 = 1 << 1;

layout! {
    /// What a client answers to the greeting: the same flags, of those that the server has.
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
    /// The head of an answer to an option; its data follows.
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
    /// The answer to [`OptionCode::ExportName`], which has no head.
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
        /// Offsets and lengths are multiples of this.
        minimum: U32,
        /// What the server likes best.
        preferred: U32,
        /// The longest payload.
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
        /// Comes back in the reply.
        cookie: U64,
        /// First byte.
        offset: U64,
        /// Number of bytes.
        length: U32,
    }
}

/// Command flag: answered when it is on stable storage.
pub const FUA: u16 = 1 << 0;
/// Command flag of [`CommandCode::WriteZeroes`]: the space stays allocated.
pub const NO_HOLE: u16 = 1 << 1;

layout! {
    /// A simple reply; the data of a read that went well follows.
    SimpleReply: 16 {
        /// [`SIMPLE_REPLY_MAGIC`].
        magic: U32,
        /// An [`ErrorCode`].
        error: U32,
        /// Of the request.
        cookie: U64,
    }
}

/// What an export can do, in its sixteen transmission flags.
pub mod transmission {
    /// The others mean something.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// It is a rotating disk.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Several connections see each other's flushed writes.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

open_enum! {
    /// What a client may ask in the handshake.
    OptionCode(u32) {
        /// Choose an export and go on, or be cut off.
        ExportName = 1,
        /// Take leave.
        Abort = 2,
        /// Name the exports.
        List = 3,
        /// Encrypt.
        StartTls = 5,
        /// Tell of an export.
        Info = 6,
        /// Tell of an export and go on.
        Go = 7,
        /// Replies in pieces.
        StructuredReply = 8,
    }
}

open_enum! {
    /// How a server answers an option. From 2^31 on they are errors.
    ReplyCode(u32) {
        /// Done.
        Ack = 1,
        /// An export, to a list.
        Server = 2,
        /// A piece of what was asked.
        Info = 3,
        /// The server does not know the option.
        Unsupported = 0x8000_0001,
        /// Not allowed.
        Policy = 0x8000_0002,
        /// The request makes no sense.
        Invalid = 0x8000_0003,
        /// Not on this platform.
        Platform = 0x8000_0004,
        /// Only with TLS.
        TlsRequired = 0x8000_0005,
        /// There is no such export.
        Unknown = 0x8000_0006,
        /// The server is about to end.
        Shutdown = 0x8000_0007,
        /// Only for clients that ask for block sizes.
        BlockSizeRequired = 0x8000_0008,
        /// Too long.
        TooBig = 0x8000_0009,
    }
}

impl ReplyCode {
    /// Whether it says that the option failed.
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
        /// Make what was written durable.
        Flush = 3,
        /// Give space back; what is read there afterwards is not said.
        Trim = 4,
        /// Read ahead.
        Cache = 5,
        /// Write zeroes.
        WriteZeroes = 6,
    }
}

open_enum! {
    /// How a request ended ("Error values"): the numbers are Linux's.
    ErrorCode(u32) {
        /// Well.
        None = 0,
        /// Not permitted: the export is read-only.
        NotPermitted = 1,
        /// The medium failed.
        Io = 5,
        /// The server has no memory for it.
        NoMemory = 12,
        /// The request makes no sense.
        Invalid = 22,
        /// No space.
        NoSpace = 28,
        /// A value is too large.
        Overflow = 75,
        /// Not supported.
        NotSupported = 95,
        /// The server is about to end.
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
    fn values_that_are_not_named_stay_what_they_are() {
        assert!(ReplyCode(0x8000_1234).is_error() && !ReplyCode::Info.is_error());
        assert_ne!(ErrorCode(4711), ErrorCode::Io);
    }
}
