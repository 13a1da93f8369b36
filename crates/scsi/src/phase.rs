//! What the medium as a whole is going through: nothing, an operation that goes over all of it,
//! what such an operation leaves behind when it fails, or an atomic write that is not in its place.
//!
//! One atomic is all that a usual command looks at. Who waited for the write gate asks again
//! behind it, since the medium may have become another one meanwhile.

use crate::command_table::Flags;
use crate::{AdditionalSense, Keeper, LogicalUnit, Record, Sense, SenseKey};
use async_lock::{RwLockReadGuardArc, RwLockWriteGuardArc};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// All is as usual.
    Usual = 0,
    /// FORMAT UNIT is under way.
    Formatting = 1,
    /// SANITIZE is under way.
    Sanitizing = 2,
    /// FORMAT UNIT failed: another one ends it, or SANITIZE.
    FormatFailed = 3,
    /// SANITIZE failed: another one ends it.
    SanitizeFailed = 4,
    /// SANITIZE failed with AUSE: EXIT FAILURE MODE ends it too.
    SanitizeFailedMayExit = 5,
    /// An atomic write is neither in its place nor forgotten. Whatever was written now would be
    /// overwritten when the unit is made again and finishes it, so nothing is.
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

    /// Left behind by an operation that failed.
    pub(crate) const fn is_failure(self) -> bool {
        matches!(self, Self::FormatFailed | Self::SanitizeFailed | Self::SanitizeFailedMayExit)
    }

    /// What is kept as [`Record::Operation`]: nothing, unless an operation failed. While one is
    /// under way, what its failure would leave is kept.
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

/// See the module.
pub(crate) struct MediumPhase {
    phase: AtomicU8,
    /// Of the operation under way, in 65536ths.
    progress: AtomicU16,
    /// Reads pass the write gate too: an atomic write is there, or was.
    guards_reads: AtomicBool,
}

impl MediumPhase {
    /// As the unit's last life left it.
    pub(crate) fn load(keeper: Option<&dyn Keeper>) -> io::Result<Self> {
        let record = match keeper {
            Some(keeper) => keeper.load(Record::Operation)?,
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

    /// Goes from one phase to another, unless it is a third one by now.
    pub(crate) fn change(&self, from: Phase, to: Phase) -> bool {
        let (from, to) = (from as u8, to as u8);
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn set_progress(&self, done: u64, total: u64) {
        let parts = (u128::from(done) << 16) / u128::from(total.max(1));
        self.progress.store(u16::try_from(parts).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    /// What there is to tell, if anything.
    pub(crate) fn sense(&self) -> Option<Sense> {
        self.current().sense(self.progress.load(Ordering::Relaxed))
    }

    /// Why a command with these flags is refused now, if it is (SBC-3 4.11.3, 5.3.1).
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

    /// From now on reads see an atomic write whole or not at all. Reads of units that never saw
    /// one stay as light as they are.
    pub(crate) fn guard_reads(&self) {
        self.guards_reads.store(true, Ordering::Release);
    }
}

impl LogicalUnit {
    /// Waits until a write may happen beside others.
    pub(crate) async fn write_beside_others(&self) -> Result<RwLockReadGuardArc<()>, Sense> {
        let gate = self.write_gate();
        let guard = match gate.try_read_arc() {
            Some(guard) => guard,
            None => {
                // One at a time: several that wait while one who writes alone follows another would
                // wake each other without end.
                let _turn = self.gate_turn().lock().await;
                gate.read_arc().await
            }
        };
        self.medium_phase().check(Flags::NEEDS_MEDIUM)?;
        Ok(guard)
    }

    /// Waits until no other write happens.
    pub(crate) async fn write_alone(&self) -> Result<RwLockWriteGuardArc<()>, Sense> {
        let guard = self.write_gate().write_arc().await;
        self.medium_phase().check(Flags::NEEDS_MEDIUM)?;
        Ok(guard)
    }

    /// Waits until no atomic write happens, where that matters; none begins while what this gives
    /// is held. Not to be asked for by who holds the write gate.
    pub(crate) async fn guard_read(&self) -> Result<Option<RwLockReadGuardArc<()>>, Sense> {
        match self.medium_phase().guards_reads() {
            true => self.write_beside_others().await.map(Some),
            false => Ok(None),
        }
    }
}
