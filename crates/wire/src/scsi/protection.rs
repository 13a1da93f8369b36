//! Protection information (SBC-3 4.22.3).

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The protection information after the user data of a block.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ProtectionInformation {
    /// LOGICAL BLOCK GUARD.
    pub guard: U16,
    /// LOGICAL BLOCK APPLICATION TAG.
    pub application_tag: U16,
    /// LOGICAL BLOCK REFERENCE TAG.
    pub reference_tag: U32,
}

assert_sizes!(ProtectionInformation = 8);
