//! The counters of one connection for one volume. Only the connection's core writes them; any thread reads them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::histogram::{Counts, Histogram, raise};
use crate::OperationKind;

/// The kind of a failure, or the abort of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Failure {
    /// The medium is not usable now.
    NotReady,
    /// Blocks cannot be read or written.
    MediumError,
    /// The device failed.
    HardwareError,
    /// The request is invalid.
    IllegalRequest,
    /// A unit attention was reported instead.
    UnitAttention,
    /// The lower layer is full.
    NoSpace,
    /// The volume is write-protected.
    DataProtect,
    /// A copy stopped before its end.
    CopyAborted,
    /// The device server aborted the command.
    AbortedCommand,
    /// The data differs from the data of a comparison.
    Miscompare,
    /// Sense data with another key.
    OtherSense,
    /// BUSY.
    Busy,
    /// A reservation forbids the request.
    ReservationConflict,
    /// TASK SET FULL.
    TaskSetFull,
    /// ACA ACTIVE.
    AcaActive,
    /// The request was aborted.
    Aborted,
}

impl Failure {
    /// All failures, in their order.
    pub const ALL: [Self; 16] = [
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

    /// Returns the name, as metrics and JSON have it.
    pub const fn name(self) -> &'static str {
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
}

/// The counters of one operation, created with its first command.
#[derive(Default)]
struct Row {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
    counts: Counts,
}

/// See the module.
pub struct Meter {
    /// The number of the session.
    pub session: u16,
    begun: AtomicU64,
    ended: AtomicU64,
    limited: AtomicU64,
    rows: [OnceLock<Box<Row>>; OperationKind::ALL.len()],
    failures: [AtomicU64; Failure::ALL.len()],
}

impl Meter {
    pub(super) fn new(session: u16) -> Self {
        Self {
            session,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            rows: Default::default(),
            failures: Default::default(),
        }
    }

    /// Counts a request that begins.
    #[inline]
    pub fn begin(&self) {
        raise(&self.begun, 1);
    }

    /// Counts `count` commands that have taken `nanoseconds` each, with `bytes` in total.
    pub fn end(&self, operation: OperationKind, nanoseconds: u64, count: u64, bytes: u64) {
        let row = self.rows[operation as usize].get_or_init(Box::default);
        row.counts.add(nanoseconds, count);
        raise(&row.bytes, bytes);
        raise(&row.nanoseconds, nanoseconds * count);
        raise(&self.ended, count);
    }

    /// Counts a command that waits for a limit or for other commands.
    pub fn limited(&self) {
        raise(&self.limited, 1);
    }

    /// Counts a failure.
    #[cold]
    pub fn fail(&self, failure: Failure) {
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
pub struct OperationTotals {
    /// Number of bytes.
    pub bytes: u64,
    /// The sum of the latencies.
    pub nanoseconds: u64,
    /// The distribution of the latencies.
    pub latency: Histogram,
}

/// The totals of several meters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Indexed by [`OperationKind`]. An operation that never occurred is `None`.
    pub operations: [Option<OperationTotals>; OperationKind::ALL.len()],
    /// Indexed by [`Failure`].
    pub failures: [u64; Failure::ALL.len()],
    /// Number of requests that have begun and not ended.
    pub in_flight: u64,
    /// Number of commands that had to wait before they were carried out.
    pub limited: u64,
}

impl Totals {
    /// Adds other totals.
    pub fn merge(&mut self, other: &Self) {
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
    pub fn operations(&self) -> impl Iterator<Item = (OperationKind, &OperationTotals)> {
        let all = OperationKind::ALL.into_iter().zip(&self.operations);
        all.filter_map(|(operation, totals)| Some((operation, totals.as_ref()?)))
    }

    /// Returns the failures that occurred.
    pub fn failures(&self) -> impl Iterator<Item = (Failure, u64)> {
        Failure::ALL.into_iter().zip(self.failures).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_and_operation_has_a_place_and_a_name_of_its_own() {
        let mut names: Vec<_> = Failure::ALL.iter().map(|failure| failure.name()).collect();
        assert!(Failure::ALL.iter().enumerate().all(|(place, one)| *one as usize == place));
        assert!(OperationKind::ALL.iter().enumerate().all(|(place, one)| *one as usize == place));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Failure::ALL.len());
    }
}
