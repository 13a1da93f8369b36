//! The medium of a unit: its state, the nexuses that prevent its removal, and its events. One state machine serves
//! fixed disks, removable disks and CDs (SBC-3 5.25, SBC-4 5.15, MMC-6 6.14 and 6.42).

use crate::nexus_id::NexusId;
use crate::{AdditionalSense, DeviceType, Sense, SenseKey};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// The state of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MediumState {
    /// Commands can use it.
    Ready = 0,
    /// It is present and was stopped.
    Stopped = 1,
    /// It was ejected.
    Absent = 2,
}

/// The request of PREVENT ALLOW MEDIUM REMOVAL. The numbers are those of its PREVENT field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalPrevention {
    Allowed = 0,
    Prevented = 1,
    /// MMC's persistent form, which does not end with a loss of the nexus.
    PersistentlyAllowed = 2,
    PersistentlyPrevented = 3,
}

/// An event of the medium that a nexus has not received yet, with MMC's event codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Event {
    #[default]
    NoChange = 0,
    New = 2,
    Removed = 3,
}

/// The medium of one unit.
pub(crate) struct Medium {
    /// Every command that needs a medium reads it.
    state: AtomicU8,
    is_removable: bool,
    start_stop_cycles: AtomicU32,
    /// The additional sense of an empty drive.
    absent: AdditionalSense,
    removal: Mutex<Holders>,
}

#[derive(Default)]
struct Holders {
    nexuses: Vec<Holder>,
    is_persistently_prevented: bool,
}

struct Holder {
    nexus: NexusId,
    prevents: bool,
    event: Event,
}

impl Holders {
    fn is_prevented(&self) -> bool {
        self.is_persistently_prevented || self.nexuses.iter().any(|holder| holder.prevents)
    }

    fn tell(&mut self, event: Event) {
        for holder in &mut self.nexuses {
            holder.event = event;
        }
    }

    fn of(&mut self, nexus: NexusId) -> Option<&mut Holder> {
        self.nexuses.iter_mut().find(|holder| holder.nexus == nexus)
    }
}

impl Medium {
    /// Creates a medium that is ready.
    pub(crate) fn new(device_type: DeviceType, is_removable: bool) -> Self {
        let absent = match device_type {
            DeviceType::Disk => AdditionalSense::MEDIUM_NOT_PRESENT,
            // The tray of the drive opens with the ejection.
            DeviceType::Cd => AdditionalSense::MEDIUM_NOT_PRESENT_TRAY_OPEN,
        };
        let state = AtomicU8::new(MediumState::Ready as u8);
        let start_stop_cycles = AtomicU32::new(0);
        Self { state, is_removable, start_stop_cycles, absent, removal: Mutex::default() }
    }

    pub(crate) fn is_removable(&self) -> bool {
        self.is_removable
    }

    pub(crate) fn state(&self) -> MediumState {
        match self.state.load(Ordering::Relaxed) {
            0 => MediumState::Ready,
            1 => MediumState::Stopped,
            _ => MediumState::Absent,
        }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.state() != MediumState::Absent
    }

    /// Returns an error if the medium cannot be used now.
    pub(crate) fn check(&self) -> Result<(), Sense> {
        match self.state() {
            MediumState::Ready => Ok(()),
            MediumState::Stopped => Err(Sense::stopped()),
            MediumState::Absent => Err(Sense::new(SenseKey::NotReady, self.absent)),
        }
    }

    fn removal(&self) -> MutexGuard<'_, Holders> {
        self.removal.lock()
    }

    /// Returns how often it was stopped and started again.
    pub(crate) fn start_stop_cycles(&self) -> u32 {
        self.start_stop_cycles.load(Ordering::Relaxed)
    }

    fn set(&self, state: MediumState) {
        if self.state() == MediumState::Stopped && state == MediumState::Ready {
            self.start_stop_cycles.fetch_add(1, Ordering::Relaxed);
        }
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Adds a nexus. It receives an event for the medium that is present.
    pub(crate) fn attach(&self, nexus: NexusId) {
        if !self.is_removable {
            return;
        }
        let mut removal = self.removal();
        let event = if self.is_present() { Event::New } else { Event::NoChange };
        removal.nexuses.push(Holder { nexus, prevents: false, event });
    }

    /// Removes a lost nexus. It no longer prevents the removal (SBC-4 5.15).
    pub(crate) fn detach(&self, nexus: NexusId) {
        self.removal().nexuses.retain(|holder| holder.nexus != nexus);
    }

    /// Resets the state: removal is allowed, and a present medium is ready. An ejected medium stays ejected.
    pub(crate) fn reset(&self) {
        let mut removal = self.removal();
        removal.is_persistently_prevented = false;
        for holder in &mut removal.nexuses {
            holder.prevents = false;
        }
        if self.is_present() {
            self.set(MediumState::Ready);
        }
    }

    /// Sets what a nexus prevents. If the medium cannot be removed, nothing changes.
    pub(crate) fn set_removal(&self, nexus: NexusId, wanted: RemovalPrevention) {
        let mut removal = self.removal();
        match wanted {
            RemovalPrevention::PersistentlyAllowed => removal.is_persistently_prevented = false,
            RemovalPrevention::PersistentlyPrevented => removal.is_persistently_prevented = true,
            RemovalPrevention::Allowed | RemovalPrevention::Prevented => {
                if let Some(holder) = removal.of(nexus) {
                    holder.prevents = wanted == RemovalPrevention::Prevented;
                }
            }
        }
    }

    /// Starts or stops the medium. An ejected medium cannot be started.
    pub(crate) fn set_stopped(&self, stopped: bool) -> Result<(), Sense> {
        let _removal = self.removal();
        if !self.is_present() {
            return self.check();
        }
        self.set(if stopped { MediumState::Stopped } else { MediumState::Ready });
        Ok(())
    }

    /// Ejects the medium, unless a nexus prevents it. From now on no command begins that needs a medium.
    pub(crate) fn eject(&self) -> Result<(), Sense> {
        let mut removal = self.removal();
        if removal.is_prevented() {
            return Err(Sense::medium_removal_prevented());
        }
        if self.is_present() {
            self.set(MediumState::Absent);
            removal.tell(Event::Removed);
        }
        Ok(())
    }

    /// Loads the medium. Returns whether it was ejected before. Prevention also stops the loading of the tray.
    pub(crate) fn load(&self) -> Result<bool, Sense> {
        let mut removal = self.removal();
        if self.is_present() {
            self.set(MediumState::Ready);
            return Ok(false);
        }
        if removal.is_prevented() {
            return Err(Sense::medium_removal_prevented());
        }
        self.set(MediumState::Ready);
        removal.tell(Event::New);
        Ok(true)
    }
}

/// What only the commands of CDs report.
#[cfg_attr(not(feature = "multimedia"), allow(dead_code))]
impl Medium {
    pub(crate) fn is_prevented(&self) -> bool {
        self.removal().is_prevented()
    }

    pub(crate) fn is_persistently_prevented(&self) -> bool {
        self.removal().is_persistently_prevented
    }

    /// Returns the next event of a nexus and clears it.
    pub(crate) fn take_event(&self, nexus: NexusId) -> Event {
        self.removal().of(nexus).map_or(Event::NoChange, |holder| std::mem::take(&mut holder.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn additional(result: Result<(), Sense>) -> Option<u16> {
        result.err().map(|sense| sense.additional().0)
    }

    fn two_nexuses(device_type: DeviceType) -> Medium {
        let medium = Medium::new(device_type, true);
        medium.attach(1);
        medium.attach(2);
        medium
    }

    #[test]
    fn sbc4_5_15_a_medium_is_kept_in_while_any_nexus_prevents_its_removal() {
        let medium = two_nexuses(DeviceType::Disk);
        medium.set_removal(1, RemovalPrevention::Prevented);
        medium.set_removal(2, RemovalPrevention::Prevented);
        medium.set_removal(1, RemovalPrevention::Allowed);
        assert_eq!(additional(medium.eject()), Some(0x5302));
        medium.detach(2);
        assert_eq!(additional(medium.eject()), None);
        assert_eq!(additional(medium.check()), Some(0x3a00));
        // A nexus that prevents removal also prevents loading.
        medium.set_removal(1, RemovalPrevention::Prevented);
        assert_eq!(additional(medium.load().map(drop)), Some(0x5302));
        medium.reset();
        assert_eq!(additional(medium.check()), Some(0x3a00), "a reset loads nothing");
        assert_eq!(medium.load(), Ok(true));
        assert_eq!(medium.load(), Ok(false));
        assert_eq!(medium.check(), Ok(()));
    }

    #[test]
    fn mmc6_6_14_persistent_prevention_outlives_its_nexus_and_ends_with_a_reset() {
        let medium = two_nexuses(DeviceType::Cd);
        medium.set_removal(1, RemovalPrevention::PersistentlyPrevented);
        medium.detach(1);
        medium.set_removal(2, RemovalPrevention::Allowed);
        assert!(medium.is_persistently_prevented());
        assert_eq!(additional(medium.eject()), Some(0x5302));
        medium.set_removal(2, RemovalPrevention::PersistentlyAllowed);
        assert_eq!(medium.eject(), Ok(()));
        assert_eq!(additional(medium.check()), Some(0x3a02));
        assert_eq!(medium.load(), Ok(true));
        medium.set_removal(2, RemovalPrevention::PersistentlyPrevented);
        medium.reset();
        assert_eq!(medium.eject(), Ok(()));
    }

    #[test]
    fn mmc6_6_7_each_nexus_gets_last_medium_event_once() {
        let medium = two_nexuses(DeviceType::Cd);
        assert_eq!(medium.take_event(1), Event::New);
        assert_eq!(medium.take_event(1), Event::NoChange);
        medium.eject().unwrap();
        medium.eject().unwrap();
        assert_eq!(medium.take_event(1), Event::Removed);
        assert_eq!(medium.take_event(1), Event::NoChange);
        medium.load().unwrap();
        assert_eq!((medium.take_event(1), medium.take_event(2)), (Event::New, Event::New));
        medium.eject().unwrap();
        medium.attach(3);
        assert_eq!(medium.take_event(3), Event::NoChange, "there is nothing to be told of");
        assert_eq!(medium.take_event(9), Event::NoChange);
    }

    #[test]
    fn sbc3_5_25_a_medium_that_is_out_is_neither_started_nor_stopped() {
        let medium = two_nexuses(DeviceType::Disk);
        medium.set_stopped(true).unwrap();
        assert_eq!(additional(medium.check()), Some(0x0402));
        medium.reset();
        assert_eq!(medium.check(), Ok(()));
        medium.set_stopped(true).unwrap();
        assert_eq!(medium.load(), Ok(false));
        assert_eq!(medium.check(), Ok(()), "loading starts it");
        medium.eject().unwrap();
        for stopped in [true, false] {
            assert_eq!(additional(medium.set_stopped(stopped)), Some(0x3a00));
        }
        assert_eq!(medium.state(), MediumState::Absent);
    }
}
