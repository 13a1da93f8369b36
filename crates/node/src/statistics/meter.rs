//! The counters of one connection for one volume. Only the connection's core writes them; any thread reads them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use sarsen_scsi::{AdditionalSense, Cdb, Completion, SenseKey, Status};
use sarsen_wire::scsi::opcode;

use super::histogram::{Counts, Histogram, raise};

/// The kind of a command, as statistics distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Operation {
    Read,
    Write,
    Flush,
    Unmap,
    Other,
}

impl Operation {
    pub(crate) const ALL: [Self; 5] =
        [Self::Read, Self::Write, Self::Flush, Self::Unmap, Self::Other];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Unmap => "unmap",
            Self::Other => "other",
        }
    }

    /// Returns the kind of the command with this CDB.
    #[inline]
    pub(crate) fn of(cdb: &Cdb) -> Self {
        let fixed = cdb.as_bytes();
        match fixed[0] {
            opcode::VARIABLE_LENGTH => Self::of_variable_length(fixed),
            code => BY_OPERATION_CODE[code as usize],
        }
    }

    #[cold]
    fn of_variable_length(cdb: &[u8]) -> Self {
        match (cdb[8], cdb[9]) {
            (0, opcode::SA_READ_32) => Self::Read,
            (
                0,
                opcode::SA_WRITE_32 | opcode::SA_WRITE_AND_VERIFY_32 | opcode::SA_WRITE_SAME_32,
            ) => Self::Write,
            _ => Self::Other,
        }
    }
}

static BY_OPERATION_CODE: [Operation; 256] = {
    use opcode::*;
    let mut table = [Operation::Other; 256];
    let of = [
        (Operation::Read, [READ_6, READ_10, READ_12, READ_16, READ_CD, READ_CD_MSF].as_slice()),
        (
            Operation::Write,
            &[
                WRITE_6,
                WRITE_10,
                WRITE_12,
                WRITE_16,
                WRITE_AND_VERIFY_10,
                WRITE_AND_VERIFY_12,
                WRITE_AND_VERIFY_16,
                WRITE_SAME_10,
                WRITE_SAME_16,
                WRITE_ATOMIC_16,
                ORWRITE_16,
                COMPARE_AND_WRITE,
            ],
        ),
        (Operation::Flush, &[SYNCHRONIZE_CACHE_10, SYNCHRONIZE_CACHE_16]),
        (Operation::Unmap, &[UNMAP]),
    ];
    let mut row = 0;
    while row < of.len() {
        let (operation, codes) = of[row];
        let mut index = 0;
        while index < codes.len() {
            table[codes[index] as usize] = operation;
            index += 1;
        }
        row += 1;
    }
    table
};

/// The kind of a failure, or the abort of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Failure {
    NotReady,
    MediumError,
    HardwareError,
    IllegalRequest,
    UnitAttention,
    /// The lower layer is full.
    NoSpace,
    DataProtect,
    CopyAborted,
    AbortedCommand,
    Miscompare,
    OtherSense,
    Busy,
    ReservationConflict,
    TaskSetFull,
    AcaActive,
    Aborted,
}

impl Failure {
    pub(crate) const ALL: [Self; 16] = [
        Self::NotReady,
        Self::MediumError,
        Self::HardwareError,
        Self::IllegalRequest,
        Self::UnitAttention,
        Self::NoSpace,
        Self::DataProtect,
        Self::CopyAborted,
        Self::AbortedCommand,
        Self::Miscompare,
        Self::OtherSense,
        Self::Busy,
        Self::ReservationConflict,
        Self::TaskSetFull,
        Self::AcaActive,
        Self::Aborted,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NotReady => "not_ready",
            Self::MediumError => "medium_error",
            Self::HardwareError => "hardware_error",
            Self::IllegalRequest => "illegal_request",
            Self::UnitAttention => "unit_attention",
            Self::NoSpace => "no_space",
            Self::DataProtect => "data_protect",
            Self::CopyAborted => "copy_aborted",
            Self::AbortedCommand => "aborted_command",
            Self::Miscompare => "miscompare",
            Self::OtherSense => "other_sense",
            Self::Busy => "busy",
            Self::ReservationConflict => "reservation_conflict",
            Self::TaskSetFull => "task_set_full",
            Self::AcaActive => "aca_active",
            Self::Aborted => "aborted",
        }
    }

    /// Returns the failure that a completion reports.
    #[inline]
    pub(crate) fn of(completion: &Completion) -> Option<Self> {
        match completion.status {
            Status::Good | Status::ConditionMet => None,
            _ => Some(Self::of_failed(completion)),
        }
    }

    #[cold]
    fn of_failed(completion: &Completion) -> Self {
        match completion.status {
            Status::Busy => Self::Busy,
            Status::ReservationConflict => Self::ReservationConflict,
            Status::TaskSetFull => Self::TaskSetFull,
            Status::AcaActive => Self::AcaActive,
            Status::TaskAborted => Self::Aborted,
            Status::CheckCondition | Status::Good | Status::ConditionMet => {
                completion.sense.as_ref().map_or(Self::OtherSense, |sense| match sense.key() {
                    SenseKey::NotReady => Self::NotReady,
                    SenseKey::MediumError => Self::MediumError,
                    SenseKey::HardwareError => Self::HardwareError,
                    SenseKey::IllegalRequest => Self::IllegalRequest,
                    SenseKey::UnitAttention => Self::UnitAttention,
                    SenseKey::DataProtect => match sense.additional() {
                        AdditionalSense::SPACE_ALLOCATION_FAILED_WRITE_PROTECT => Self::NoSpace,
                        _ => Self::DataProtect,
                    },
                    SenseKey::CopyAborted => Self::CopyAborted,
                    SenseKey::AbortedCommand => Self::AbortedCommand,
                    SenseKey::Miscompare => Self::Miscompare,
                    SenseKey::NoSense | SenseKey::RecoveredError => Self::OtherSense,
                })
            }
        }
    }
}

/// The counters of one operation, created with its first command.
#[derive(Default)]
struct Row {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
    counts: Counts,
}

/// See the module.
pub(crate) struct Meter {
    pub(crate) tsih: u16,
    begun: AtomicU64,
    ended: AtomicU64,
    limited: AtomicU64,
    rows: [OnceLock<Box<Row>>; Operation::ALL.len()],
    failures: [AtomicU64; Failure::ALL.len()],
}

impl Meter {
    pub(super) fn new(tsih: u16) -> Self {
        Self {
            tsih,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            rows: Default::default(),
            failures: Default::default(),
        }
    }

    #[inline]
    pub(crate) fn begin(&self) {
        raise(&self.begun, 1);
    }

    /// Counts `count` commands that have taken `nanoseconds` each, with `bytes` in total.
    pub(crate) fn end(&self, operation: Operation, nanoseconds: u64, count: u64, bytes: u64) {
        let row = self.rows[operation as usize].get_or_init(Box::default);
        row.counts.add(nanoseconds, count);
        raise(&row.bytes, bytes);
        raise(&row.nanoseconds, nanoseconds * count);
        raise(&self.ended, count);
    }

    /// Counts a command that waits for a limit or for other commands.
    pub(crate) fn limited(&self) {
        raise(&self.limited, 1);
    }

    #[cold]
    pub(crate) fn fail(&self, failure: Failure) {
        raise(&self.failures[failure as usize], 1);
    }

    /// Returns a number that changes with each command that begins or ends.
    pub(super) fn progress(&self) -> u64 {
        self.begun.load(Ordering::Relaxed).wrapping_add(self.ended.load(Ordering::Relaxed))
    }

    pub(super) fn in_flight(&self) -> u64 {
        let ended = self.ended.load(Ordering::Relaxed);
        self.begun.load(Ordering::Relaxed).saturating_sub(ended)
    }

    pub(super) fn add_to(&self, totals: &mut Totals) {
        for (row, sum) in self.rows.iter().zip(&mut totals.operations) {
            let Some(row) = row.get() else { continue };
            let sum = sum.get_or_insert_default();
            row.counts.add_to(&mut sum.latency);
            sum.bytes += row.bytes.load(Ordering::Relaxed);
            sum.nanoseconds += row.nanoseconds.load(Ordering::Relaxed);
        }
        for (own, sum) in self.failures.iter().zip(&mut totals.failures) {
            *sum += own.load(Ordering::Relaxed);
        }
        totals.in_flight += self.in_flight();
        totals.limited += self.limited.load(Ordering::Relaxed);
    }
}

/// The totals of one operation at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationTotals {
    pub(crate) bytes: u64,
    pub(crate) nanoseconds: u64,
    pub(crate) latency: Histogram,
}

/// The totals of several meters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Indexed by [`Operation`]. An operation that never occurred is `None`.
    pub(crate) operations: [Option<OperationTotals>; Operation::ALL.len()],
    /// Indexed by [`Failure`].
    pub(crate) failures: [u64; Failure::ALL.len()],
    pub(crate) in_flight: u64,
    /// Number of commands that had to wait before they were carried out.
    pub(crate) limited: u64,
}

impl Totals {
    pub(crate) fn merge(&mut self, other: &Self) {
        for (own, other) in self.operations.iter_mut().zip(&other.operations) {
            let Some(other) = other else { continue };
            let own = own.get_or_insert_default();
            own.bytes += other.bytes;
            own.nanoseconds += other.nanoseconds;
            own.latency.merge(&other.latency);
        }
        for (own, other) in self.failures.iter_mut().zip(&other.failures) {
            *own += other;
        }
        self.in_flight += other.in_flight;
        self.limited += other.limited;
    }

    /// Returns the operations that occurred.
    pub(crate) fn operations(&self) -> impl Iterator<Item = (Operation, &OperationTotals)> {
        let all = Operation::ALL.into_iter().zip(&self.operations);
        all.filter_map(|(operation, totals)| Some((operation, totals.as_ref()?)))
    }

    /// Returns the failures that occurred.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (Failure, u64)> {
        Failure::ALL.into_iter().zip(self.failures).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation_of(bytes: &[u8]) -> Operation {
        let mut fixed = [0; 16];
        fixed[..bytes.len()].copy_from_slice(bytes);
        Operation::of(&Cdb::new(&fixed))
    }

    #[test]
    fn commands_are_classified_by_operation() {
        assert_eq!(operation_of(&[0x28]), Operation::Read);
        assert_eq!(operation_of(&[0x8a]), Operation::Write);
        assert_eq!(operation_of(&[0x91]), Operation::Flush);
        assert_eq!(operation_of(&[0x42]), Operation::Unmap);
        assert_eq!(operation_of(&[0x12]), Operation::Other);
        assert_eq!(operation_of(&[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x09]), Operation::Read);
        assert_eq!(operation_of(&[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x0b]), Operation::Write);
        assert_eq!(operation_of(&[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 1, 0x0b]), Operation::Other);
    }

    #[test]
    fn every_failure_and_operation_has_a_place_and_a_name_of_its_own() {
        let mut names: Vec<_> = Failure::ALL.iter().map(|failure| failure.name()).collect();
        assert!(Failure::ALL.iter().enumerate().all(|(place, one)| *one as usize == place));
        assert!(Operation::ALL.iter().enumerate().all(|(place, one)| *one as usize == place));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Failure::ALL.len());
    }

    #[test]
    fn a_completion_says_how_a_command_failed() {
        let busy = Completion::with_status(Status::Busy);
        assert_eq!(Failure::of(&busy), Some(Failure::Busy));
        assert_eq!(Failure::of(&Completion::good()), None);
        let sense = sarsen_scsi::Sense::new(SenseKey::MediumError, AdditionalSense::NONE);
        let failed = Completion::check_condition(sense);
        assert_eq!(Failure::of(&failed), Some(Failure::MediumError));
        for (additional, failure) in [
            (AdditionalSense::WRITE_PROTECTED, Failure::DataProtect),
            (AdditionalSense::SPACE_ALLOCATION_FAILED_WRITE_PROTECT, Failure::NoSpace),
        ] {
            let sense = sarsen_scsi::Sense::new(SenseKey::DataProtect, additional);
            assert_eq!(Failure::of(&Completion::check_condition(sense)), Some(failure));
        }
    }
}
