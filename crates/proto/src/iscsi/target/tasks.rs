//! The commands of a session, from the header to the status.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use sarsen_block::Buffer;
use sarsen_wire::iscsi::ScsiCommand;

use super::Cdb;
use crate::command_memory::Grant;

/// Maximum bytes that the layer above reads at once, whatever length an initiator expects. Longer data is charged when
/// it exists.
const LARGEST_READ: usize = 16 << 20;

/// The identifier of a command for the layer above. Unlike the initiator task tag, it is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId {
    pub(super) initiator_task_tag: u32,
    pub(super) sequence: u64,
}

impl TaskId {
    /// Returns a number that no other command of the session has.
    pub const fn number(self) -> u64 {
        self.sequence
    }
}

/// The way in which an aborted task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The initiator receives no response.
    Silent,
    /// The initiator receives status TASK ABORTED, because it did not request the abort (SAM-5 5.6).
    Answered,
}

/// Returns whether two LUNs name one logical unit. Up to 255, the flat space (SAM-5 4.7.7.3) numbers the same units as
/// the peripheral addresses of bus 0 (4.7.7.2).
pub(super) fn is_same_unit(one: [u8; 8], other: [u8; 8]) -> bool {
    canonical_lun(one) == canonical_lun(other)
}

#[inline]
fn canonical_lun(lun: [u8; 8]) -> [u8; 8] {
    match lun {
        [0x40, a, b, c, d, e, f, g] => [0, a, b, c, d, e, f, g],
        lun => lun,
    }
}

/// The progress of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its data is not complete.
    Collecting,
    /// The layer above executes it.
    Running,
    /// The layer above has executed it, but other tasks have to end before its answer.
    Answering,
    /// The layer above still executes it, but it is aborted and ends in this way.
    Aborted(Ending),
}

/// The reason why a task with a valid header is not executed. It determines the additional sense code and qualifier
/// with ABORTED COMMAND (RFC 7143 §11.4.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Unsolicited data arrived that was not negotiated.
    UnexpectedUnsolicitedData,
    /// The offset or the amount of the data is wrong.
    IncorrectAmountOfData,
    /// Data did not match its digest.
    ProtocolServiceCrcError,
    /// Unsolicited data was discarded, because no memory was available.
    NoMemory,
}

impl Fault {
    /// Returns the additional sense code and qualifier, or `None` if the status is sufficient.
    pub(super) fn additional_sense(self) -> Option<[u8; 2]> {
        match self {
            Self::UnexpectedUnsolicitedData => Some([0x0c, 0x0c]),
            Self::IncorrectAmountOfData => Some([0x0c, 0x0d]),
            Self::ProtocolServiceCrcError => Some([0x47, 0x05]),
            Self::NoMemory => None,
        }
    }
}

/// An R2T whose data is not complete.
#[derive(Debug)]
pub(super) struct OpenR2t {
    pub(super) target_transfer_tag: u32,
    pub(super) r2t_sn: u32,
    /// The first byte that it requests.
    pub(super) start: usize,
    /// The byte after the last byte that it requests.
    pub(super) end: usize,
    /// It requests lost data again, out of order.
    pub(super) is_recovery: bool,
}

/// The data that the target receives for a command.
#[derive(Debug, Default)]
pub(super) struct DataOutCollection {
    /// The received data. The buffer has `capacity` bytes.
    pub(super) buffer: Option<Buffer>,
    /// Number of bytes, from the first, for which memory is charged: `wanted`, or only the unsolicited bytes.
    pub(super) capacity: usize,
    /// Number of bytes that the command takes and the initiator has.
    pub(super) wanted: usize,
    /// The next byte of the sequence. DataPDUInOrder and DataSequenceInOrder are always in effect.
    pub(super) position: usize,
    /// DataSN of the next PDU of the sequence.
    pub(super) data_sn: u32,
    /// More unsolicited Data-Out PDUs are expected.
    pub(super) unsolicited: bool,
    /// The first byte that no R2T has requested.
    pub(super) solicited: usize,
    pub(super) r2t_sn: u32,
    pub(super) r2ts: VecDeque<OpenR2t>,
    /// Data that arrived with a wrong digest. The target requests it again.
    pub(super) lost: Vec<Range<usize>>,
}

impl DataOutCollection {
    /// Returns the buffer for `capacity` bytes. A buffer for a part has exactly its size, and is copied once.
    pub(super) fn take_buffer(&mut self) -> Buffer {
        self.buffer.take().unwrap_or_else(|| {
            if self.capacity == self.wanted {
                Buffer::for_overwrite(self.wanted)
            } else {
                Buffer::zeroed_exact(self.capacity)
            }
        })
    }

    /// Enlarges the buffer to `wanted` bytes, after their memory was charged.
    pub(super) fn enlarge(&mut self) {
        self.capacity = self.wanted;
        if let Some(part) = self.buffer.take_if(|buffer| buffer.len() < self.wanted) {
            let mut whole = Buffer::for_overwrite(self.wanted);
            whole[..part.len()].copy_from_slice(&part);
            self.buffer = Some(whole);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        !self.unsolicited
            && self.r2ts.is_empty()
            && self.lost.is_empty()
            && self.solicited >= self.wanted
    }
}

/// A command.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) lun: [u8; 8],
    pub(super) cdb: Cdb,
    /// The flags R and W, and the task attribute.
    pub(super) flags: u8,
    pub(super) immediate: bool,
    pub(super) expected_data_transfer_length: u32,
    /// Number of Data-Out bytes that the CDB requires, whatever the initiator announced.
    pub(super) data_out_length: usize,
    /// The memory that is charged until the task ends.
    pub(super) grant: Option<Grant>,
    /// Memory is charged for all data that the task moves.
    pub(super) has_room: bool,
    pub(super) collection: DataOutCollection,
    pub(super) progress: Progress,
    pub(super) fault: Option<Fault>,
}

impl Task {
    pub(super) fn is_aborted(&self) -> bool {
        matches!(self.progress, Progress::Aborted(_))
    }

    pub(super) fn attribute(&self) -> u8 {
        self.flags & ScsiCommand::ATTRIBUTE
    }

    /// Returns the bytes of memory that the task needs for its Data-Out or Data-In.
    pub(super) fn needed_memory(&self) -> usize {
        let expected = (self.expected_data_transfer_length as usize).min(LARGEST_READ);
        Buffer::memory_for(match self.flags & ScsiCommand::READ {
            0 => self.collection.wanted,
            _ => self.collection.wanted.max(expected),
        })
    }

    /// Returns the bytes of memory that the task has, or may take without a further request.
    pub(super) fn memory(&self) -> usize {
        if self.has_room { self.needed_memory() } else { self.collection.capacity }
    }

    /// Returns whether the task needs memory before it continues, to request data or to read. FirstBurstLength limits
    /// unsolicited data.
    pub(super) fn awaits_room(&self) -> bool {
        let DataOutCollection { unsolicited, solicited, wanted, .. } = self.collection;
        let reads = self.flags & ScsiCommand::READ != 0;
        let asks = solicited < wanted || !self.collection.lost.is_empty();
        !self.has_room && self.fault.is_none() && !unsolicited && (reads || asks)
    }
}

/// The hash of a tag. The peer chooses the tags, but the command window limits the table, so a simple hash is
/// sufficient.
#[derive(Default)]
pub(super) struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(self.0 as u32 ^ u32::from(byte)));
    }

    fn write_u32(&mut self, tag: u32) {
        // The golden ratio distributes consecutive tags over the high bits that the table uses.
        self.0 = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

/// The tasks of a session by their initiator task tag.
#[derive(Default)]
pub(super) struct Tasks {
    by_tag: HashMap<u32, Task, BuildHasherDefault<TagHasher>>,
}

impl Tasks {
    pub(super) fn contains(&self, tag: u32) -> bool {
        self.by_tag.contains_key(&tag)
    }

    pub(super) fn by_tag(&mut self, tag: u32) -> Option<&mut Task> {
        self.by_tag.get_mut(&tag)
    }

    #[inline]
    pub(super) fn insert(&mut self, task: Task) {
        self.by_tag.entry(task.id.initiator_task_tag).insert_entry(task);
    }

    /// Removes the task if its tag still belongs to it.
    #[inline]
    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        match self.by_tag.entry(id.initiator_task_tag) {
            Entry::Occupied(entry) if entry.get().id == id => Some(entry.remove()),
            Entry::Occupied(_) | Entry::Vacant(_) => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Task> {
        self.by_tag.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.by_tag.values_mut()
    }

    pub(super) fn immediate_count(&self) -> usize {
        self.by_tag.values().filter(|task| task.immediate).count()
    }
}
