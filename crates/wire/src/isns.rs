//! iSNS (RFC 4171): headers, and the numbers of functions, attributes and statuses.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The port that IANA assigned (RFC 4171 §2.9).
pub const DEFAULT_PORT: u16 = 3205;
/// The version of the protocol (RFC 4171 §5.1.1).
pub const VERSION: u16 = 1;
/// The longest payload of a PDU (RFC 4171 §5.1.3), a multiple of four.
pub const MAX_PAYLOAD_LENGTH: usize = 65_532;
/// The longest text of an attribute, with the NUL that ends it (RFC 4171 §6.1).
pub const MAX_TEXT_LENGTH: usize = 256;

/// The header of each PDU (RFC 4171 §5.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// [`VERSION`].
    pub version: U16,
    /// [`Function`].
    pub function: U16,
    /// Bytes that follow, padding included.
    pub length: U16,
    /// [`FROM_CLIENT`] and the other flags.
    pub flags: U16,
    /// Identifier that a response shares with its request.
    pub transaction: U16,
    /// Number of the PDU in its message, from 0.
    pub sequence: U16,
}
const _: () = assert!(size_of::<Header>() == 12);

/// Flag: the sender is a client (RFC 4171 §5.1.4).
pub const FROM_CLIENT: u16 = 0x8000;
/// Flag: the sender is a server.
pub const FROM_SERVER: u16 = 0x4000;
/// Flag: an authentication block follows.
pub const AUTHENTICATED: u16 = 0x2000;
/// Flag of a registration: it replaces the earlier registration.
pub const REPLACE: u16 = 0x1000;
/// Flag: the last PDU of a message.
pub const LAST: u16 = 0x0800;
/// Flag: the first PDU of a message.
pub const FIRST: u16 = 0x0400;

open_enum! {
    /// The function of a message (RFC 4171 §4.1.1).
    Function(u16) {
        /// Register or update an entity, its portals and nodes.
        Register = 0x0001,
        /// Query attributes.
        Query = 0x0002,
        /// Deregister.
        Deregister = 0x0004,
        /// Register for notifications of changes.
        RegisterForChanges = 0x0005,
        /// A notification of a change, from the server.
        StateChange = 0x0008,
        /// A server's inquiry whether an entity is still alive.
        StatusInquiry = 0x000d,
    }
}

impl Function {
    const RESPONSE: u16 = 0x8000;

    /// Returns the response to this request.
    pub const fn response(self) -> Self {
        Self(self.0 | Self::RESPONSE)
    }

    /// Returns whether this is a response.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0
    }
}

/// The header of each attribute (RFC 4171 §5.1.7). The value follows, padded to four bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AttributeHeader {
    /// [`Tag`].
    pub tag: U32,
    /// Bytes of the value.
    pub length: U32,
}
const _: () = assert!(size_of::<AttributeHeader>() == 8);

open_enum! {
    /// The tag of an attribute (RFC 4171 §6.1).
    Tag(u32) {
        /// The delimiter between the message key and the operating attributes.
        Delimiter = 0,
        /// The name of an entity.
        EntityIdentifier = 1,
        /// [`ENTITY_ISCSI`].
        EntityProtocol = 2,
        /// Seconds of silence after which the server removes an entity.
        RegistrationPeriod = 6,
        /// A portal's address: an IPv6 address, or an IPv4 address mapped to IPv6.
        PortalAddress = 16,
        /// A portal's port.
        PortalPort = 17,
        /// Seconds between status inquiries.
        InquiryInterval = 19,
        /// A portal's port for status inquiries.
        InquiryPort = 20,
        /// A portal's port for notifications of changes.
        ChangePort = 23,
        /// A node's name.
        NodeName = 32,
        /// [`NODE_TARGET`].
        NodeType = 33,
        /// A node's alias.
        NodeAlias = 34,
        /// [`CHANGE_REMOVED`] and the other bits of changes.
        ChangeBitmap = 35,
        /// The node name of a portal group.
        GroupNode = 48,
        /// The portal address of a portal group.
        GroupAddress = 49,
        /// The portal port of a portal group.
        GroupPort = 50,
        /// The tag of a portal group; empty where the portal gives no access to the node.
        GroupTag = 51,
    }
}

/// Value of [`Tag::EntityProtocol`]: iSCSI.
pub const ENTITY_ISCSI: u32 = 2;
/// Bit of [`Tag::NodeType`]: a target.
pub const NODE_TARGET: u32 = 1;
/// Bit of [`Tag::ChangeBitmap`] (RFC 4171 §6.4.4): changes of targets, and of the node itself.
pub const CHANGE_OF_TARGETS: u32 = 1 << 6;
/// Bit of [`Tag::ChangeBitmap`]: an object was removed.
pub const CHANGE_REMOVED: u32 = 1 << 4;

open_enum! {
    /// The first word of a response (RFC 4171 §5.4).
    Status(u32) {
        /// The server did what the request asked.
        Success = 0,
        /// An error without a code of its own.
        Unknown = 1,
        /// The message is malformed.
        Format = 2,
        /// The registration breaks a rule.
        InvalidRegistration = 3,
        /// The source is not registered.
        SourceUnknown = 6,
        /// The message has no source.
        SourceAbsent = 7,
        /// The source has no permission for the request.
        SourceUnauthorized = 8,
        /// The object does not exist.
        NoSuchEntry = 9,
        /// The server does not support this version.
        Version = 10,
        /// The server has an internal error.
        Internal = 11,
        /// The server is busy; the client can try again later.
        Busy = 12,
        /// The update breaks a rule.
        InvalidUpdate = 14,
        /// The server does not support the function.
        NotSupported = 15,
        /// The server rejects the registration for notifications of changes.
        ChangesRejected = 17,
        /// The server sends no status inquiries, or not as often as requested.
        InquiryNotAvailable = 21,
        /// The deregistration breaks a rule.
        InvalidDeregistration = 22,
    }
}
