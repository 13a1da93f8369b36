//! The phase of the whole medium: usual, an operation on all of it, the failure of such an operation, or an atomic
//! write that is not on the medium.
//!
//! A usual request reads only one atomic. A request that waited for the write gate checks the phase again, since it may
//! have changed meanwhile.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

use crate::{MetadataKind, MetadataStore};

/// The phase of the whole medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// No operation and no failure.
    Usual = 0,
    /// FORMAT UNIT is in progress.
    Formatting = 1,
    /// SANITIZE is in progress.
    Sanitizing = 2,
    /// FORMAT UNIT failed. Another FORMAT UNIT or SANITIZE ends this phase.
    FormatFailed = 3,
    /// SANITIZE failed. Another SANITIZE ends this phase.
    SanitizeFailed = 4,
    /// SANITIZE with AUSE failed. EXIT FAILURE MODE also ends this phase.
    SanitizeFailedMayExit = 5,
    /// An atomic write is neither on the medium nor removed from the record. The volume rejects all writes, since its
    /// next run would overwrite them when it finishes the atomic write.
    Halted = 6,
}

impl Phase {
    const ALL: [Self; 7] = [
        Self::Usual,
        Self::Formatting,
        Self::Sanitizing,
        Self::FormatFailed,
        Self::SanitizeFailed,
        Self::SanitizeFailedMayExit,
        Self::Halted,
    ];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| *phase as u8 == number)
    }

    /// Returns whether this is the failure of an operation.
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::FormatFailed | Self::SanitizeFailed | Self::SanitizeFailedMayExit)
    }

    /// Returns the content of [`MetadataKind::Operation`]: empty, unless an operation failed or is in progress. During an
    /// operation it is the state that a failure would leave.
    pub fn record(self) -> Vec<u8> {
        if self.is_failure() { vec![RECORD_VERSION, self as u8] } else { Vec::new() }
    }

    fn of_record(record: &[u8]) -> io::Result<Self> {
        let phase = match record {
            [RECORD_VERSION, number] => Self::of(*number).filter(|phase| phase.is_failure()),
            _ => None,
        };
        phase.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no operation of ours"))
    }
}

const RECORD_VERSION: u8 = 1;

/// The phase of a volume's medium, with its progress.
pub struct MediumPhase {
    phase: AtomicU8,
    /// The progress of the current operation in 65536ths.
    progress: AtomicU16,
    /// True if reads pass the write gate too, since there is or was an atomic write.
    guards_reads: AtomicBool,
}

impl MediumPhase {
    /// Loads the phase that the previous run of the volume left.
    pub fn load(metadata: Option<&dyn MetadataStore>) -> io::Result<Self> {
        let record = match metadata {
            Some(metadata) => metadata.load(MetadataKind::Operation)?,
            None => None,
        };
        let phase = match record {
            Some(record) => Phase::of_record(&record)?,
            None => Phase::Usual,
        };
        Ok(Self {
            phase: AtomicU8::new(phase as u8),
            progress: AtomicU16::new(0),
            guards_reads: AtomicBool::new(false),
        })
    }

    /// Returns the current phase.
    #[inline]
    pub fn current(&self) -> Phase {
        match Phase::of(self.phase.load(Ordering::Acquire)) {
            Some(phase) => phase,
            None => unreachable!("only phases are stored"),
        }
    }

    /// Changes the phase.
    pub fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Changes the phase, if the current one is `from`.
    pub fn change(&self, from: Phase, to: Phase) -> bool {
        let (from, to) = (from as u8, to as u8);
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sets the progress of the current operation.
    pub fn set_progress(&self, done: u64, total: u64) {
        let parts = (u128::from(done) << 16) / u128::from(total.max(1));
        self.progress.store(u16::try_from(parts).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    /// Returns the progress of the current operation in 65536ths.
    pub fn progress(&self) -> u16 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Returns whether reads pass the write gate.
    pub fn guards_reads(&self) -> bool {
        self.guards_reads.load(Ordering::Acquire)
    }

    /// Makes reads see an atomic write completely or not at all, from now on. Reads of a volume without atomic writes
    /// avoid this cost.
    pub fn guard_reads(&self) {
        self.guards_reads.store(true, Ordering::Release);
    }
}
