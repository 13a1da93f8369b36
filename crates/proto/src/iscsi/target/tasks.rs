//! The commands of a session from their header to their status.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use sarsen_block::Buffer;
use sarsen_wire::iscsi::ScsiCommand;

use super::Cdb;
use crate::iscsi::command_memory::Grant;

/// Whatever length an initiator expects, the layer above reads at most this much at once. Longer data is charged when
/// it exists.
const LARGEST_READ: usize = 16 << 20;

/// Names a command for the layer above. Unlike the initiator's tag, it is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId {
    pub(super) initiator_task_tag: u32,
    pub(super) sequence: u64,
}

impl TaskId {
    /// A number that no other command of the session has.
    pub const fn number(self) -> u64 {
        self.sequence
    }
}

/// How a task ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Without a word to the initiator.
    Silent,
    /// With status TASK ABORTED, since the initiator did not ask for it (SAM-5 5.6).
    Answered,
}

/// Whether two LUNs name one logical unit: up to 255, the flat space (SAM-5 4.7.7.3) numbers the
/// same units as the peripheral addresses of bus 0 (4.7.7.2).
pub(super) fn is_same_unit(one: [u8; 8], other: [u8; 8]) -> bool {
    let canonical = |lun: [u8; 8]| match lun {
        [0x40, rest @ ..] => (0, rest),
        [first, rest @ ..] => (first, rest),
    };
    canonical(one) == canonical(other)
}

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its data is not complete.
    Collecting,
    /// The layer above carries it out.
    Running,
    /// The layer above has done so, but others have to end before it is answered.
    Answering,
    /// It is carried out still, but ends like this.
    Aborted(Ending),
}

/// Why a task is not carried out although its header was good: the additional sense code and
/// qualifier with ABORTED COMMAND (RFC 7143 §11.4.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Unsolicited data came that was not agreed on.
    UnexpectedUnsolicitedData,
    /// Data came in the wrong place or amount.
    IncorrectAmountOfData,
    /// Data did not match its digest.
    ProtocolServiceCrcError,
    /// There was no memory for unsolicited data, and it was discarded.
    NoMemory,
}

impl Fault {
    /// None if the status is sufficient.
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
    /// The first byte that it asks for.
    pub(super) start: usize,
    /// One past the last byte that it asks for.
    pub(super) end: usize,
    /// It asks for what was lost, out of turn.
    pub(super) is_recovery: bool,
}

/// Data on its way to us.
#[derive(Debug, Default)]
pub(super) struct Collection {
    /// `capacity` bytes long after data has arrived.
    pub(super) buffer: Option<Buffer>,
    /// Bytes, from the first one on, for which memory is charged: the unsolicited ones, or `wanted`.
    pub(super) capacity: usize,
    /// Bytes that the command takes and the initiator has.
    pub(super) wanted: usize,
    /// The next byte of the sequence: DataPDUInOrder and DataSequenceInOrder hold.
    pub(super) position: usize,
    /// DataSN of the next PDU of the sequence.
    pub(super) data_sn: u32,
    /// Unsolicited Data-Out PDUs are still to come.
    pub(super) unsolicited: bool,
    /// First byte that no R2T has asked for.
    pub(super) solicited: usize,
    pub(super) r2t_sn: u32,
    pub(super) r2ts: VecDeque<OpenR2t>,
    /// What came with a wrong digest, to be asked for again.
    pub(super) lost: Vec<Range<usize>>,
}

impl Collection {
    /// Memory for `capacity` bytes. Memory for a part has exactly its size, and is copied once.
    pub(super) fn take_buffer(&mut self) -> Buffer {
        self.buffer.take().unwrap_or_else(|| match self.capacity == self.wanted {
            true => Buffer::for_overwrite(self.wanted),
            false => Buffer::compact(self.capacity),
        })
    }

    /// There is memory for all wanted data.
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
    /// R, W and the attribute.
    pub(super) flags: u8,
    pub(super) immediate: bool,
    pub(super) expected_data_transfer_length: u32,
    /// Bytes of Data-Out that the CDB asks for, whatever the initiator announced.
    pub(super) data_out_length: usize,
    /// The memory that is charged until the task ends.
    pub(super) grant: Option<Grant>,
    /// There is memory for all data that the task moves.
    pub(super) has_room: bool,
    pub(super) collection: Collection,
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

    /// Bytes of memory that it takes: its data on the way in, or on the way out.
    pub(super) fn room(&self) -> usize {
        let expected = (self.expected_data_transfer_length as usize).min(LARGEST_READ);
        Buffer::memory_for(match self.flags & ScsiCommand::READ {
            0 => self.collection.wanted,
            _ => self.collection.wanted.max(expected),
        })
    }

    /// Bytes of memory that the task has, or may take without a further request.
    pub(super) fn memory(&self) -> usize {
        match self.has_room {
            true => self.room(),
            false => self.collection.capacity,
        }
    }

    /// Whether there must be room before it goes on: to ask for data, or to read. Data that comes
    /// unasked is limited by FirstBurstLength.
    pub(super) fn awaits_room(&self) -> bool {
        let Collection { unsolicited, solicited, wanted, .. } = self.collection;
        let reads = self.flags & ScsiCommand::READ != 0;
        let asks = solicited < wanted || !self.collection.lost.is_empty();
        !self.has_room && self.fault.is_none() && !unsolicited && (reads || asks)
    }
}

/// Tags come from the peer; the table is bounded by the command window, so that a simple mix
/// is enough.
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
        // The golden ratio spreads tags that count up over the high bits that the table uses.
        self.0 = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

/// The tasks of a session by the initiator's tag.
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

    /// Removes the task if it still stands under its tag.
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
