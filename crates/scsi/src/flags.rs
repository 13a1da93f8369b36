//! The conditions of execution of commands.

/// The conditions of execution of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The command is executed while a unit attention is pending (SAM-5 5.14).
    pub const IGNORES_UNIT_ATTENTION: Self = Self(1);
    /// The command is executed while another nexus holds a reservation (SPC-2 5.5.1).
    pub const ALLOWED_WHEN_RESERVED: Self = Self(2);
    /// The command changes the medium.
    pub const WRITES: Self = Self(4);
    /// The command needs a unit that is not stopped.
    pub const NEEDS_MEDIUM: Self = Self(8);
    /// The command is executed during the auto contingent allegiance of another nexus (SAM-5 5.9.4).
    pub const PASSES_ACA: Self = Self(256);

    /// The command is executed for other nexuses while a nexus holds a Write Exclusive persistent reservation: commands
    /// that only read (SPC-4 table 65, SBC-3 table 13). Without this flag and the next one a command conflicts, which
    /// is the safe answer.
    pub const ALLOWED_UNDER_WRITE_EXCLUSIVE: Self = Self(16);
    /// The command is executed for other nexuses while a nexus holds an Exclusive Access persistent reservation:
    /// commands that disclose no data. Nearly all rows with this flag have the previous one too.
    pub const ALLOWED_UNDER_EXCLUSIVE_ACCESS: Self = Self(32);
    /// The command is executed during SANITIZE or FORMAT UNIT (SBC-3 4.11.3, 5.3.1).
    pub const ALLOWED_DURING_OPERATION: Self = Self(64);
    /// The command is executed after such an operation failed, although it needs the medium.
    pub const ALLOWED_AFTER_FAILURE: Self = Self(128);

    /// The flags of a command that reads the medium.
    pub(crate) const READ_COMMAND: Self =
        Self::NEEDS_MEDIUM.and(Self::ALLOWED_UNDER_WRITE_EXCLUSIVE);
    /// The flags of a command that writes the medium.
    pub(crate) const WRITE_COMMAND: Self = Self::NEEDS_MEDIUM.and(Self::WRITES);

    /// Returns the union of both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether the set includes all of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Checks that no two flags share a bit.
const _: () = {
    let all = [
        Flags::IGNORES_UNIT_ATTENTION,
        Flags::ALLOWED_WHEN_RESERVED,
        Flags::WRITES,
        Flags::NEEDS_MEDIUM,
        Flags::PASSES_ACA,
        Flags::ALLOWED_UNDER_WRITE_EXCLUSIVE,
        Flags::ALLOWED_UNDER_EXCLUSIVE_ACCESS,
        Flags::ALLOWED_DURING_OPERATION,
        Flags::ALLOWED_AFTER_FAILURE,
    ];
    let (mut index, mut seen) = (0, Flags::NONE);
    while index < all.len() {
        assert!(all[index].0.count_ones() == 1 && seen.0 & all[index].0 == 0);
        seen = seen.and(all[index]);
        index += 1;
    }
};
