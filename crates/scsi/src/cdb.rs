//! What arrives: a command descriptor block and its data.

use crate::Sense;
use sarsen_block::Buffer;
use sarsen_wire::scsi::opcode;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// A command descriptor block: sixteen bytes in line, longer ones beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cdb {
    fixed: [u8; 16],
    whole: Option<Box<[u8]>>,
}

impl Cdb {
    /// A block of up to sixteen bytes, padded with zeroes.
    pub const fn new(fixed: &[u8; 16]) -> Self {
        Self { fixed: *fixed, whole: None }
    }

    /// A block of sixteen bytes and those of its extension (RFC 7143 §11.2.2.3). The transport
    /// has held the length of the extension against its own limit.
    pub fn with_extension(fixed: &[u8; 16], extension: &[u8]) -> Self {
        let whole = (!extension.is_empty()).then(|| [fixed, extension].concat().into());
        Self { fixed: *fixed, whole }
    }

    /// All bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.whole.as_deref().unwrap_or(&self.fixed)
    }

    /// OPERATION CODE.
    pub const fn operation_code(&self) -> u8 {
        self.fixed[0]
    }

    /// SERVICE ACTION, of commands that have one: the low five bits of byte 1, or bytes 8 and 9 of
    /// commands of variable length.
    pub(crate) const fn service_action(&self) -> u16 {
        match self.fixed[0] {
            opcode::VARIABLE_LENGTH => u16::from_be_bytes([self.fixed[8], self.fixed[9]]),
            _ => (self.fixed[1] & 0x1f) as u16,
        }
    }

    /// The byte at `offset`, below sixteen.
    pub(crate) const fn byte(&self, offset: usize) -> u8 {
        self.fixed[offset]
    }

    /// The block as one of the declared layouts, none of which is longer than sixteen bytes.
    pub(crate) fn view<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> &T {
        const { assert!(size_of::<T>() <= 16) };
        match T::ref_from_prefix(&self.fixed) {
            Ok((layout, _)) => layout,
            Err(_) => unreachable!("a CDB layout of at most sixteen bytes, without alignment"),
        }
    }
}

impl Cdb {
    /// A block of variable length as a declared layout; refused where it is not as long as that
    /// (SPC-4 4.2.5.2).
    pub(crate) fn view_long<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
    ) -> Result<&T, Sense> {
        let refused = || Sense::invalid_field_in_cdb(7);
        let (layout, _) = T::ref_from_prefix(self.as_bytes()).map_err(|_| refused())?;
        match usize::from(self.fixed[7]) + 8 == size_of::<T>() {
            true => Ok(layout),
            false => Err(refused()),
        }
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
    /// SIMPLE: in any order with others of its kind.
    #[default]
    Simple,
    /// ORDERED: after all that came before it, before all that came after it.
    Ordered,
    /// HEAD OF QUEUE: before all that has not begun.
    HeadOfQueue,
    /// ACA: while an auto contingent allegiance lasts.
    Aca,
}

/// A command as the transport has it when all its data has arrived.
#[derive(Debug)]
pub struct Command {
    /// The command descriptor block.
    pub cdb: Cdb,
    /// What the transport calls it, to end it while it waits ([`crate::NexusHandle::abort`]):
    /// never used twice in a nexus.
    pub name: u64,
    /// Its place among the others.
    pub attribute: TaskAttribute,
    /// What arrived of the bytes that [`crate::NexusHandle::data_out_length`] asked for. Fewer
    /// bytes than the command needs end it without effect, unless `expected_data_out_length`
    /// explains them. More are ignored.
    pub data_out: Option<Buffer>,
    /// How many bytes the initiator said that it would send (iSCSI's Expected Data Transfer
    /// Length of a write, 0 for a command that is no write), where the transport knows. With it a
    /// WRITE of fewer blocks than its CDB says is done as far as it goes; COMPARE AND WRITE and
    /// WRITE SAME are refused when more is coming than their CDB asks for.
    pub expected_data_out_length: Option<u64>,
    /// How many bytes the initiator accepts (iSCSI's Expected Data Transfer Length of a read), 0 for a command that
    /// is not a read. Known whenever `expected_data_out_length` is known. Then a READ of more blocks reads only the
    /// blocks within this length.
    pub expected_data_in_length: u64,
}

impl Command {
    /// A command without Data-Out.
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

    /// A command with the Data-Out that arrived.
    pub fn with_data_out(cdb: Cdb, data_out: Buffer) -> Self {
        Self { data_out: Some(data_out), ..Self::new(cdb) }
    }
}
