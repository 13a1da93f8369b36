//! The phase of the whole medium: usual, an operation on all of it, the failure of such an operation, or an atomic
//! write that is not on the medium.
//!
//! A usual command reads only one atomic. A command that waited for the write gate checks the phase again, since it may
//! have changed meanwhile.

use crate::flags::Flags;
use crate::{AdditionalSense, LogicalUnit, MetadataKind, MetadataStore, Sense, SenseKey};
use async_lock::{RwLockReadGuardArc, RwLockWriteGuardArc};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

/// The phase of the whole medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
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
    /// An atomic write is neither on the medium nor removed from the record. The unit rejects all writes, since the
    /// next run of the unit would overwrite them when it finishes the atomic write.
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
    pub(crate) const fn is_failure(self) -> bool {
        matches!(self, Self::FormatFailed | Self::SanitizeFailed | Self::SanitizeFailedMayExit)
    }

    /// Returns the content of [`MetadataKind::Operation`]: empty, unless an operation failed or is in progress. During an
    /// operation it is the state that a failure would leave.
    pub(crate) fn record(self) -> Vec<u8> {
        if self.is_failure() { vec![RECORD_VERSION, self as u8] } else { Vec::new() }
    }

    fn of_record(record: &[u8]) -> io::Result<Self> {
        let phase = match record {
            [RECORD_VERSION, number] => Self::of(*number).filter(|phase| phase.is_failure()),
            _ => None,
        };
        phase.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no operation of ours"))
    }

    fn sense(self, progress: u16) -> Option<Sense> {
        let not_ready =
            |additional| Some(Sense::new(SenseKey::NotReady, additional).with_progress(progress));
        let medium_error = |additional| Some(Sense::new(SenseKey::MediumError, additional));
        match self {
            Self::Usual => None,
            Self::Formatting => {
                not_ready(AdditionalSense::LOGICAL_UNIT_NOT_READY_FORMAT_IN_PROGRESS)
            }
            Self::Sanitizing => {
                not_ready(AdditionalSense::LOGICAL_UNIT_NOT_READY_SANITIZE_IN_PROGRESS)
            }
            Self::FormatFailed => medium_error(AdditionalSense::FORMAT_COMMAND_FAILED),
            Self::SanitizeFailed | Self::SanitizeFailedMayExit => {
                medium_error(AdditionalSense::SANITIZE_COMMAND_FAILED)
            }
            Self::Halted => medium_error(AdditionalSense::WRITE_ERROR),
        }
    }
}

const RECORD_VERSION: u8 = 1;

/// The phase of a unit's medium, with its progress.
pub(crate) struct MediumPhase {
    phase: AtomicU8,
    /// The progress of the current operation in 65536ths.
    progress: AtomicU16,
    /// True if reads pass the write gate too, since there is or was an atomic write.
    guards_reads: AtomicBool,
}

impl MediumPhase {
    /// Loads the phase that the previous run of the unit left.
    pub(crate) fn load(metadata: Option<&dyn MetadataStore>) -> io::Result<Self> {
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

    pub(crate) fn current(&self) -> Phase {
        match Phase::of(self.phase.load(Ordering::Acquire)) {
            Some(phase) => phase,
            None => unreachable!("only phases are stored"),
        }
    }

    pub(crate) fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Changes the phase, if the current one is `from`.
    pub(crate) fn change(&self, from: Phase, to: Phase) -> bool {
        let (from, to) = (from as u8, to as u8);
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn set_progress(&self, done: u64, total: u64) {
        let parts = (u128::from(done) << 16) / u128::from(total.max(1));
        self.progress.store(u16::try_from(parts).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    /// Returns the sense data of the phase, if it has any.
    pub(crate) fn sense(&self) -> Option<Sense> {
        self.current().sense(self.progress.load(Ordering::Relaxed))
    }

    /// Rejects a command with these flags if the phase requires it (SBC-3 4.11.3, 5.3.1).
    #[inline]
    pub(crate) fn check(&self, flags: Flags) -> Result<(), Sense> {
        match self.current() {
            Phase::Usual => Ok(()),
            phase => self.check_in(phase, flags),
        }
    }

    fn check_in(&self, phase: Phase, flags: Flags) -> Result<(), Sense> {
        let passes = match phase {
            Phase::Usual => true,
            Phase::Formatting | Phase::Sanitizing => {
                flags.contains(Flags::ALLOWED_DURING_OPERATION)
            }
            Phase::FormatFailed
            | Phase::SanitizeFailed
            | Phase::SanitizeFailedMayExit
            | Phase::Halted => {
                !flags.contains(Flags::NEEDS_MEDIUM) || flags.contains(Flags::ALLOWED_AFTER_FAILURE)
            }
        };
        if passes { Ok(()) } else { self.sense().map_or(Ok(()), Err) }
    }

    pub(crate) fn guards_reads(&self) -> bool {
        self.guards_reads.load(Ordering::Acquire)
    }

    /// Makes reads see an atomic write completely or not at all, from now on. Reads of a unit without atomic writes
    /// avoid this cost.
    pub(crate) fn guard_reads(&self) {
        self.guards_reads.store(true, Ordering::Release);
    }
}

impl LogicalUnit {
    /// Waits for shared access to the write gate.
    pub(crate) async fn lock_writes_shared(&self) -> Result<RwLockReadGuardArc<()>, Sense> {
        let gate = self.write_gate();
        let guard = match gate.try_read_arc() {
            Some(guard) => guard,
            None => {
                // Only one task waits at a time. Several waiting tasks would wake each other endlessly while exclusive
                // writers follow each other.
                let _turn = self.gate_turn().lock().await;
                gate.read_arc().await
            }
        };
        self.medium_phase().check(Flags::NEEDS_MEDIUM)?;
        Ok(guard)
    }

    /// Waits for exclusive access to the write gate.
    pub(crate) async fn lock_writes_exclusive(&self) -> Result<RwLockWriteGuardArc<()>, Sense> {
        let guard = self.write_gate().write_arc().await;
        self.medium_phase().check(Flags::NEEDS_MEDIUM)?;
        Ok(guard)
    }

    /// Waits until no atomic write happens, if that matters. None begins while the caller holds the guard. The caller
    /// must not hold the write gate.
    pub(crate) async fn guard_read(&self) -> Result<Option<RwLockReadGuardArc<()>>, Sense> {
        if self.medium_phase().guards_reads() {
            self.lock_writes_shared().await.map(Some)
        } else {
            Ok(None)
        }
    }
}
