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

/// Before each PDU (RFC 4171 §5.1).
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
    /// [`FROM_CLIENT`] and its neighbours.
    pub flags: U16,
    /// Joins a response to its request.
    pub transaction: U16,
    /// Counts the PDUs of a message from 0.
    pub sequence: U16,
}
const _: () = assert!(size_of::<Header>() == 12);

/// Flag: a client sent it (RFC 4171 §5.1.4).
pub const FROM_CLIENT: u16 = 0x8000;
/// Flag: a server sent it.
pub const FROM_SERVER: u16 = 0x4000;
/// Flag: an authentication block follows.
pub const AUTHENTICATED: u16 = 0x2000;
/// Flag of a registration: what was registered before is replaced.
pub const REPLACE: u16 = 0x1000;
/// Flag: the last PDU of a message.
pub const LAST: u16 = 0x0800;
/// Flag: the first PDU of a message.
pub const FIRST: u16 = 0x0400;

open_enum! {
    /// What a message is (RFC 4171 §4.1.1).
    Function(u16) {
        /// Register or update an entity, its portals and nodes.
        Register = 0x0001,
        /// Ask for attributes.
        Query = 0x0002,
        /// Deregister.
        Deregister = 0x0004,
        /// Ask to be told of changes.
        RegisterForChanges = 0x0005,
        /// A server tells of a change.
        StateChange = 0x0008,
        /// A server asks whether an entity lives.
        StatusInquiry = 0x000d,
    }
}

impl Function {
    const RESPONSE: u16 = 0x8000;

    /// The response to this request.
    pub const fn response(self) -> Self {
        Self(self.0 | Self::RESPONSE)
    }

    /// Whether this is a response.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0
    }
}

/// Before each attribute (RFC 4171 §5.1.7); its value follows, padded to four bytes.
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
    /// What an attribute tells (RFC 4171 §6.1).
    Tag(u32) {
        /// Between the message key and the operating attributes.
        Delimiter = 0,
        /// The name of an entity.
        EntityIdentifier = 1,
        /// [`ENTITY_ISCSI`].
        EntityProtocol = 2,
        /// Seconds after which an entity that is silent is forgotten.
        RegistrationPeriod = 6,
        /// A portal's address, of IPv6 or mapped to it.
        PortalAddress = 16,
        /// A portal's port.
        PortalPort = 17,
        /// Seconds between inquiries.
        InquiryInterval = 19,
        /// Where a portal is asked whether it lives.
        InquiryPort = 20,
        /// Where a portal is told of changes.
        ChangePort = 23,
        /// A node's name.
        NodeName = 32,
        /// [`NODE_TARGET`].
        NodeType = 33,
        /// A node's alias.
        NodeAlias = 34,
        /// [`CHANGE_REMOVED`] and its neighbours.
        ChangeBitmap = 35,
        /// The node of a portal group.
        GroupNode = 48,
        /// The portal's address of a portal group.
        GroupAddress = 49,
        /// The portal's port of a portal group.
        GroupPort = 50,
        /// The tag of a portal group; empty where the node is not reached through the portal.
        GroupTag = 51,
    }
}

/// Of [`Tag::EntityProtocol`].
pub const ENTITY_ISCSI: u32 = 2;
/// Bit of [`Tag::NodeType`].
pub const NODE_TARGET: u32 = 1;
/// Bit of [`Tag::ChangeBitmap`] (RFC 4171 §6.4.4): changes of targets, and of the node itself.
pub const CHANGE_OF_TARGETS: u32 = 1 << 6;
/// Bit of [`Tag::ChangeBitmap`]: an object was removed.
pub const CHANGE_REMOVED: u32 = 1 << 4;

open_enum! {
    /// The first word of a response (RFC 4171 §5.4).
    Status(u32) {
        /// Done.
        Success = 0,
        /// For a reason of no other number.
        Unknown = 1,
        /// The message is malformed.
        Format = 2,
        /// The registration breaks a rule.
        InvalidRegistration = 3,
        /// The source is not registered.
        SourceUnknown = 6,
        /// The message has no source.
        SourceAbsent = 7,
        /// The source may not do that.
        SourceUnauthorized = 8,
        /// What is named is not there.
        NoSuchEntry = 9,
        /// Another version is spoken.
        Version = 10,
        /// The server's own fault.
        Internal = 11,
        /// Later, perhaps.
        Busy = 12,
        /// An update breaks a rule.
        InvalidUpdate = 14,
        /// The function is not known.
        NotSupported = 15,
        /// Nobody is told of changes.
        ChangesRejected = 17,
        /// Nobody is asked whether he lives, or not so often.
        InquiryNotAvailable = 21,
        /// The deregistration breaks a rule.
        InvalidDeregistration = 22,
    }
}
