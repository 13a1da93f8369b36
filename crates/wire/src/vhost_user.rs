//! vhost-user: how the process of a virtual machine (the front-end) gives the rings of a virtio device to another process (the back-end).
//! Both are on one machine, so numbers have its byte order. Comments cite clauses of QEMU's docs/interop/vhost-user.rst by heading.

use zerocopy::byteorder::native_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum length of a payload that a session accepts: none of its messages has a longer one.
pub const MAX_PAYLOAD_LENGTH: usize = 4096;
/// Maximum number of the regions of a [`Request::SetMemoryTable`], and of the descriptors that a message carries.
pub const MAX_REGIONS: usize = 8;
/// Maximum length of the configuration of a device ("Virtio device config space").
pub const MAX_CONFIG_LENGTH: usize = 256;

/// The version of the protocol, in [`Header::flags`].
pub const VERSION: u32 = 1;
/// The bits of the version, in [`Header::flags`].
pub const VERSION_MASK: u32 = 3;
/// Flag of a header: the message is a reply.
pub const REPLY: u32 = 1 << 2;
/// Flag of a header: the sender wants a reply with a status ("REPLY_ACK").
pub const NEEDS_REPLY: u32 = 1 << 3;

/// VHOST_USER_F_PROTOCOL_FEATURES, one of the features of the device: those of the protocol can be negotiated.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Features of the protocol ("Protocol features").
pub mod protocol_feature {
    /// Several queues.
    pub const MULTIQUEUE: u64 = 1 << 0;
    /// Each message may ask for a status.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The back-end sends messages, too.
    pub const BACKEND_REQUESTS: u64 = 1 << 5;
    /// The configuration of the device is read by messages.
    pub const CONFIG: u64 = 1 << 9;
}

/// The message that the configuration of the device has changed ("Back-end message types").
pub const CONFIG_CHANGED: u32 = 2;

/// The mask of the index of a queue in the number of [`Request::SetRingKick`] and similar messages.
pub const RING_INDEX_MASK: u64 = 0xff;
/// Flag of such a number: the message has no descriptor.
pub const NO_DESCRIPTOR: u64 = 1 << 8;

open_enum! {
    /// Messages of the front-end ("Front-end message types").
    Request(u32) {
        /// Return the features of the device.
        GetFeatures = 1,
        /// Use these features.
        SetFeatures = 2,
        /// The sender owns the session.
        SetOwner = 3,
        /// Not used any more.
        ResetOwner = 4,
        /// Map these regions of memory, whose descriptors the message carries.
        SetMemoryTable = 5,
        /// Number of the entries of a ring.
        SetRingSize = 8,
        /// Where a ring is.
        SetRingAddresses = 9,
        /// The next entry of a ring that the device takes.
        SetRingBase = 10,
        /// Stop a ring, and return its next entry.
        GetRingBase = 11,
        /// The event that the driver signals.
        SetRingKick = 12,
        /// The event that the device signals.
        SetRingCall = 13,
        /// The event for errors of the device.
        SetRingError = 14,
        /// Return the features of the protocol.
        GetProtocolFeatures = 15,
        /// Use these features of the protocol.
        SetProtocolFeatures = 16,
        /// Return the maximum number of queues.
        GetQueueCount = 17,
        /// Enable or disable a ring.
        SetRingEnable = 18,
        /// The socket for messages of the back-end.
        SetBackendChannel = 21,
        /// Return a part of the configuration of the device.
        GetConfig = 24,
        /// Change a part of the configuration of the device.
        SetConfig = 25,
    }
}

layout! {
    /// The head of each message ("Header"); its payload follows.
    Header: 12 {
        /// A [`Request`].
        request: U32,
        /// [`VERSION`], [`REPLY`] and [`NEEDS_REPLY`].
        flags: U32,
        /// Length of the payload.
        length: U32,
    }
}

layout! {
    /// The beginning of a [`Request::SetMemoryTable`] ("Memory regions description").
    MemoryTable: 8 {
        /// Number of the regions that follow.
        count: U32,
        /// Not used.
        padding: U32,
    }
}

layout! {
    /// A region of the memory of the virtual machine.
    MemoryRegion: 32 {
        /// Its address in the virtual machine.
        guest_address: U64,
        /// Its length.
        length: U64,
        /// Its address in the front-end.
        user_address: U64,
        /// Where it begins in its file.
        file_offset: U64,
    }
}

layout! {
    /// A number of a ring ("A vring state description").
    RingState: 8 {
        /// Index of the queue.
        index: U32,
        /// The number.
        number: U32,
    }
}

layout! {
    /// Where a ring is, as addresses in the front-end ("A vring address description").
    RingAddresses: 40 {
        /// Index of the queue.
        index: U32,
        /// Not used: changes of the ring's memory are not logged.
        flags: U32,
        /// The table of descriptors.
        descriptors: U64,
        /// The ring of the entries that the device has used.
        used: U64,
        /// The ring of the entries that the device may take.
        available: U64,
        /// Not used.
        log: U64,
    }
}

layout! {
    /// The beginning of messages about a part of the configuration ("Virtio device config space"); its bytes follow.
    ConfigRange: 12 {
        /// First byte.
        offset: U32,
        /// Number of bytes.
        length: U32,
        /// Not used.
        flags: U32,
    }
}
