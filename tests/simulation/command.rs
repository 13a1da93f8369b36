//! The commands that initiators send, and how their results change the expected content of the disk.

use sarsen_block::Buffer;
use sarsen_block::Rng;
use sarsen_initiator::{Sense, SenseKey};
use sarsen_proto::iscsi::initiator::{
    CommandRequest, Completion, ReadLanding, Session as Machine, TaskAttribute, Transfer,
};
use sarsen_scsi::{Lun, Status};
use sarsen_wire::scsi::cdb::{Block10, Block16, CompareAndWrite, FLAGS_FUA, FLAGS_UNMAP, Unmap};
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::report::{UnmapDescriptor, UnmapHeader};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use crate::fencing::Action;
use crate::model::{Outcome, Violation};
use crate::reservation::Custom;
use crate::stamp;

/// The kind of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    TestUnitReady,
    Read,
    Write,
    /// WRITE SAME of one block to several blocks.
    WriteSame,
    /// WRITE SAME of zeroes with UNMAP, or UNMAP itself.
    Zero {
        by_write_same: bool,
    },
    /// COMPARE AND WRITE of one block, which expects this content.
    Swap {
        expected: u64,
    },
    Flush,
    Reservation {
        action: Action,
        custom: Custom,
    },
}

/// A command before the initiator sends it.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) kind: CommandKind,
    pub(crate) disk: usize,
    pub(crate) lba: u64,
    pub(crate) block_count: u64,
    pub(crate) is_durable: bool,
    pub(crate) attribute: TaskAttribute,
    /// Stamp of the blocks that the command writes.
    pub(crate) stamp: u64,
}

impl Command {
    /// Returns the blocks that the command may change, with their new stamps.
    pub(crate) fn writes(&self) -> Vec<(u64, u64)> {
        let stamp = match self.kind {
            CommandKind::TestUnitReady
            | CommandKind::Read
            | CommandKind::Flush
            | CommandKind::Reservation { .. } => {
                return Vec::new();
            }
            CommandKind::Zero { .. } => stamp::ZERO,
            CommandKind::Write | CommandKind::WriteSame | CommandKind::Swap { .. } => self.stamp,
        };
        (self.lba..self.lba + self.block_count).map(|lba| (lba, stamp)).collect()
    }

    /// Returns the reservation action of the command.
    pub(crate) const fn action(&self) -> Option<Action> {
        match self.kind {
            CommandKind::Reservation { action, .. } => Some(action),
            _ => None,
        }
    }

    /// Returns the request for a session.
    pub(crate) fn request(&self, machine: &Machine) -> CommandRequest {
        let (cdb, data) = self.bytes();
        let transfer = match (self.kind, data) {
            (CommandKind::Read, _) => Transfer::Read {
                length: (self.block_count as usize * stamp::BLOCK) as u32,
                landing: ReadLanding::Buffer,
            },
            (_, None) => Transfer::None,
            (_, Some(data)) => {
                let length = data.len() as u32;
                let payload = machine.payload(Buffer::copy_of(&data));
                Transfer::Write { payload, length }
            }
        };
        let lun = Lun(self.disk as u16).to_wire();
        CommandRequest { lun, cdb, attribute: self.attribute, transfer }
    }

    fn bytes(&self) -> ([u8; 16], Option<Vec<u8>>) {
        let Self { lba, block_count, stamp, .. } = *self;
        let fua = if self.is_durable { FLAGS_FUA } else { 0 };
        match self.kind {
            CommandKind::TestUnitReady => ([0; 16], None),
            CommandKind::Read => (block_10(opcode::READ_10, fua, lba, block_count), None),
            CommandKind::Flush => {
                (block_10(opcode::SYNCHRONIZE_CACHE_10, 0, lba, block_count), None)
            }
            CommandKind::Write => {
                let blocks = (lba..lba + block_count).flat_map(|lba| stamp::block(lba, stamp));
                let cdb = match stamp % 2 {
                    0 => block_10(opcode::WRITE_10, fua, lba, block_count),
                    _ => block_16(opcode::WRITE_16, fua, lba, block_count),
                };
                (cdb, Some(blocks.collect()))
            }
            CommandKind::WriteSame => {
                let cdb = block_16(opcode::WRITE_SAME_16, 0, lba, block_count);
                (cdb, Some(stamp::block(lba, stamp)))
            }
            CommandKind::Zero { by_write_same: true } => {
                let cdb = block_16(opcode::WRITE_SAME_16, FLAGS_UNMAP, lba, block_count);
                (cdb, Some(vec![0; stamp::BLOCK]))
            }
            CommandKind::Zero { by_write_same: false } => unmap(lba, block_count),
            CommandKind::Reservation { action, custom } => {
                let (cdb, list) = custom.bytes(action);
                (cdb, Some(list))
            }
            CommandKind::Swap { expected } => {
                let mut cdb = CompareAndWrite::new_zeroed();
                cdb.operation_code = opcode::COMPARE_AND_WRITE;
                cdb.flags = fua;
                cdb.lba = lba.into();
                cdb.block_count = 1;
                (
                    padded(&cdb),
                    Some([stamp::block(lba, expected), stamp::block(lba, stamp)].concat()),
                )
            }
        }
    }

    /// Returns the outcome that the completion reports.
    pub(crate) fn outcome(&self, completion: &Completion) -> Result<Outcome, Violation> {
        if completion.response != 0 {
            let response = completion.response;
            return Err(Violation(format!("{self:?} ended with the iSCSI response {response}")));
        }
        let status = Status::from_byte(completion.status);
        match status {
            Some(Status::Good) => return Ok(Outcome::Done { durable: self.is_durable }),
            Some(Status::ReservationConflict) => return Ok(Outcome::Conflict),
            Some(Status::Busy | Status::TaskSetFull) => return Ok(Outcome::Nothing),
            Some(Status::TaskAborted) => return Ok(Outcome::Unknown),
            _ => {}
        }
        let sense = Sense::parse(&completion.sense);
        let key = sense.map(|sense| sense.key).filter(|_| status == Some(Status::CheckCondition));
        match key {
            Some(SenseKey::UnitAttention) => Ok(Outcome::Nothing),
            // The unit is blocked while the disk has not ended an aborted command.
            Some(SenseKey::NotReady)
                if sense.is_some_and(|sense| (sense.asc, sense.ascq) == (0x04, 0x00)) =>
            {
                Ok(Outcome::Nothing)
            }
            Some(SenseKey::Miscompare) if matches!(self.kind, CommandKind::Swap { .. }) => {
                Ok(Outcome::Nothing)
            }
            Some(SenseKey::MediumError | SenseKey::HardwareError | SenseKey::AbortedCommand) => {
                Ok(Outcome::Unknown)
            }
            _ => Err(Violation(format!("{self:?} ended with {status:?}, {sense:?}"))),
        }
    }
}

/// Returns whether a COMPARE AND WRITE found a different content.
pub(crate) fn is_miscompare(completion: &Completion) -> bool {
    let sense = Sense::parse(&completion.sense);
    sense.is_some_and(|sense| sense.key == SenseKey::Miscompare)
}

pub(crate) fn block_10(operation_code: u8, flags: u8, lba: u64, block_count: u64) -> [u8; 16] {
    let mut cdb = Block10::new_zeroed();
    cdb.operation_code = operation_code;
    cdb.flags = flags;
    cdb.lba = (lba as u32).into();
    cdb.block_count = (block_count as u16).into();
    padded(&cdb)
}

fn block_16(operation_code: u8, flags: u8, lba: u64, block_count: u64) -> [u8; 16] {
    let mut cdb = Block16::new_zeroed();
    cdb.operation_code = operation_code;
    cdb.flags = flags;
    cdb.lba = lba.into();
    cdb.block_count = (block_count as u32).into();
    padded(&cdb)
}

fn unmap(lba: u64, block_count: u64) -> ([u8; 16], Option<Vec<u8>>) {
    let mut header = UnmapHeader::new_zeroed();
    let mut descriptor = UnmapDescriptor::new_zeroed();
    descriptor.lba = lba.into();
    descriptor.block_count = (block_count as u32).into();
    header.block_descriptor_data_length = (size_of::<UnmapDescriptor>() as u16).into();
    header.data_length = (size_of::<UnmapDescriptor>() as u16 + 6).into();
    let list = [header.as_bytes(), descriptor.as_bytes()].concat();
    let mut cdb = Unmap::new_zeroed();
    cdb.operation_code = opcode::UNMAP;
    cdb.parameter_list_length = (list.len() as u16).into();
    (padded(&cdb), Some(list))
}

pub(crate) fn padded(cdb: &(impl IntoBytes + Immutable)) -> [u8; 16] {
    let mut bytes = [0; 16];
    let cdb = cdb.as_bytes();
    bytes[..cdb.len()].copy_from_slice(cdb);
    bytes
}

/// The mix of commands of an initiator, in percent.
#[derive(Clone, Debug)]
pub(crate) struct CommandMix {
    pub(crate) reads: u64,
    pub(crate) swaps: u64,
    pub(crate) zeroes: u64,
    pub(crate) flushes: u64,
    pub(crate) durable_percent: u32,
    pub(crate) special_percent: u32,
    pub(crate) block_count_max: u64,
    /// Number of blocks at the start of the disk that this initiator uses, and that other initiators use too.
    pub(crate) span: u64,
}

impl CommandMix {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self {
            reads: 20 + rng.below(40),
            swaps: rng.below(20),
            zeroes: rng.below(10),
            flushes: rng.below(10),
            durable_percent: rng.below(60) as u32,
            special_percent: if rng.chance(50) { 0 } else { rng.below(50) as u32 },
            block_count_max: if rng.chance(70) { 1 + rng.below(8) } else { 400 },
            span: if rng.chance(50) { 4 } else { u64::MAX },
        }
    }

    /// Draws a command for a disk with this number of blocks. `held` returns the possible stamps of a block.
    pub(crate) fn command(
        &self,
        rng: &mut Rng,
        disk: usize,
        block_count: u64,
        stamp: u64,
        held: impl Fn(u64) -> Vec<u64>,
    ) -> Command {
        let lba = rng.below(block_count.min(self.span));
        let count = 1 + rng.below(self.block_count_max.min(block_count - lba));
        let is_durable = rng.chance(self.durable_percent);
        let attribute = match rng.chance(self.special_percent) {
            true if rng.chance(60) => TaskAttribute::Ordered,
            true => TaskAttribute::HeadOfQueue,
            false if rng.chance(20) => TaskAttribute::Untagged,
            false => TaskAttribute::Simple,
        };
        let any = Command {
            kind: CommandKind::Read,
            disk,
            lba,
            block_count: count,
            is_durable,
            attribute,
            stamp,
        };
        let mut roll = rng.below(100);
        let mut is = |parts: u64| {
            let is_it = roll < parts;
            roll = roll.saturating_sub(parts);
            is_it
        };
        if is(self.reads) {
            return Command { is_durable: false, ..any };
        }
        if is(self.swaps) {
            let stamps = held(lba);
            let expected = stamps.get(rng.below(stamps.len() as u64) as usize).copied();
            let kind = CommandKind::Swap { expected: expected.unwrap_or(stamp::ZERO) };
            return Command { kind, block_count: 1, ..any };
        }
        if is(self.zeroes) {
            let kind = CommandKind::Zero { by_write_same: rng.chance(50) };
            return Command { kind, is_durable: false, ..any };
        }
        if is(self.flushes) {
            let (lba, block_count) = if rng.chance(70) { (0, 0) } else { (lba, count) };
            return Command {
                kind: CommandKind::Flush,
                lba,
                block_count,
                is_durable: false,
                ..any
            };
        }
        if is(2) {
            return Command { kind: CommandKind::TestUnitReady, is_durable: false, ..any };
        }
        if rng.chance(10) {
            let stamp = stamp::SAME | stamp;
            Command { kind: CommandKind::WriteSame, is_durable: false, stamp, ..any }
        } else {
            Command { kind: CommandKind::Write, ..any }
        }
    }
}
