//! The input of the device server: a command descriptor block and its data.

use crate::Sense;
use sarsen_block::Buffer;
use sarsen_wire::scsi::opcode;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// A command descriptor block. Up to sixteen bytes are stored inline, longer blocks on the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cdb {
    fixed: [u8; 16],
    whole: Option<Box<[u8]>>,
}

impl Cdb {
    /// Creates a block of up to sixteen bytes, padded with zeroes.
    pub const fn new(fixed: &[u8; 16]) -> Self {
        Self { fixed: *fixed, whole: None }
    }

    /// Creates a block of sixteen bytes and its extension (RFC 7143 §11.2.2.3). The transport has checked the length of
    /// the extension against its own limit.
    pub fn with_extension(fixed: &[u8; 16], extension: &[u8]) -> Self {
        let whole = (!extension.is_empty()).then(|| [fixed, extension].concat().into());
        Self { fixed: *fixed, whole }
    }

    /// Returns all bytes of the block.
    pub fn as_bytes(&self) -> &[u8] {
        self.whole.as_deref().unwrap_or(&self.fixed)
    }

    /// Returns OPERATION CODE.
    pub const fn operation_code(&self) -> u8 {
        self.fixed[0]
    }

    /// Returns SERVICE ACTION, for commands that have one: the low five bits of byte 1, or bytes 8 and 9 of variable
    /// length commands.
    pub(crate) const fn service_action(&self) -> u16 {
        match self.fixed[0] {
            opcode::VARIABLE_LENGTH => u16::from_be_bytes([self.fixed[8], self.fixed[9]]),
            _ => (self.fixed[1] & 0x1f) as u16,
        }
    }

    /// Returns the byte at `offset`, which must be less than sixteen.
    pub(crate) const fn byte(&self, offset: usize) -> u8 {
        self.fixed[offset]
    }

    /// Returns the block as one of the declared layouts. None of them is longer than sixteen bytes.
    pub(crate) fn view<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> &T {
        const { assert!(size_of::<T>() <= 16) };
        match T::ref_from_prefix(&self.fixed) {
            Ok((layout, _)) => layout,
            Err(_) => unreachable!("a CDB layout of at most sixteen bytes, without alignment"),
        }
    }
}

impl Cdb {
    /// Returns a variable length block as a declared layout. Rejects a block of another length (SPC-4 4.2.5.2).
    pub(crate) fn view_long<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
    ) -> Result<&T, Sense> {
        let refused = || Sense::invalid_field_in_cdb(7);
        let (layout, _) = T::ref_from_prefix(self.as_bytes()).map_err(|_| refused())?;
        if usize::from(self.fixed[7]) + 8 == size_of::<T>() { Ok(layout) } else { Err(refused()) }
    }
}

impl From<[u8; 16]> for Cdb {
    fn from(fixed: [u8; 16]) -> Self {
        Self::new(&fixed)
    }
}

/// TASK ATTRIBUTE (SAM-5 8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskAttribute {
    /// SIMPLE: in any order relative to other SIMPLE tasks.
    #[default]
    Simple,
    /// ORDERED: after all earlier tasks and before all later tasks.
    Ordered,
    /// HEAD OF QUEUE: before all tasks that have not begun.
    HeadOfQueue,
    /// ACA: during an auto contingent allegiance.
    Aca,
}

/// A command as the transport delivers it, after all its data has arrived.
#[derive(Debug)]
pub struct Command {
    /// The command descriptor block.
    pub cdb: Cdb,
    /// The transport's identifier of the command, used to abort it ([`crate::NexusHandle::abort`]). It is unique in a
    /// nexus.
    pub name: u64,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// The received part of the bytes that [`crate::NexusHandle::data_out_length`] requested. If there are fewer bytes
    /// than the command needs, the command ends without effect, unless `expected_data_out_length` explains the
    /// difference. Additional bytes are ignored.
    pub data_out: Option<Buffer>,
    /// Number of bytes that the initiator announced, if the transport knows it: iSCSI's Expected Data Transfer Length
    /// of a write, 0 for a command that is not a write. If it covers fewer blocks than the CDB of a WRITE, only those
    /// blocks are written. COMPARE AND WRITE and WRITE SAME are rejected if it exceeds the length in their CDB.
    pub expected_data_out_length: Option<u64>,
    /// Number of bytes that the initiator accepts (iSCSI's Expected Data Transfer Length of a read), 0 for a command
    /// that is not a read. Known whenever `expected_data_out_length` is known. A longer READ reads only the blocks
    /// within this length.
    pub expected_data_in_length: u64,
}

impl Command {
    /// Creates a command without Data-Out.
    pub const fn new(cdb: Cdb) -> Self {
        Self {
            cdb,
            name: 0,
            attribute: TaskAttribute::Simple,
            data_out: None,
            expected_data_out_length: None,
            expected_data_in_length: 0,
        }
    }

    /// Creates a command with the received Data-Out.
    pub fn with_data_out(cdb: Cdb, data_out: Buffer) -> Self {
        Self { data_out: Some(data_out), ..Self::new(cdb) }
    }
}
