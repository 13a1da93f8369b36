//! The medium of a unit: whether it can be used, who keeps it in, and what happened to it. One state
//! machine for fixed disks, removable disks and CDs (SBC-3 5.25, SPC-4 6.18, MMC-6 6.14 and 6.42).

use crate::logical_unit::NexusId;
use crate::{AdditionalSense, DeviceType, Sense, SenseKey};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether commands can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// They can.
    Ready = 0,
    /// It is there and was stopped.
    Stopped = 1,
    /// It was ejected.
    Absent = 2,
}

/// What PREVENT ALLOW MEDIUM REMOVAL asks for; the numbers are those of its PREVENT field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Allowed = 0,
    Prevented = 1,
    /// MMC's persistent form, which a loss of the nexus does not end.
    PersistentlyAllowed = 2,
    PersistentlyPrevented = 3,
}

/// What happened to a medium that a nexus has yet to be told of: MMC's media event codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Event {
    #[default]
    NoChange = 0,
    New = 2,
    Removed = 3,
}

/// See the module.
pub(crate) struct Medium {
    /// Looked at by every command that needs a medium.
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
    /// A medium that is ready.
    pub(crate) fn new(device_type: DeviceType, is_removable: bool) -> Self {
        let absent = match device_type {
            DeviceType::Disk => AdditionalSense::MEDIUM_NOT_PRESENT,
            // The drive's tray comes out with it.
            DeviceType::Cd => AdditionalSense::MEDIUM_NOT_PRESENT_TRAY_OPEN,
        };
        let state = AtomicU8::new(State::Ready as u8);
        let start_stop_cycles = AtomicU32::new(0);
        Self { state, is_removable, start_stop_cycles, absent, removal: Mutex::default() }
    }

    pub(crate) fn is_removable(&self) -> bool {
        self.is_removable
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Ready,
            1 => State::Stopped,
            _ => State::Absent,
        }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.state() != State::Absent
    }

    /// Why it cannot be used now, if so.
    pub(crate) fn check(&self) -> Result<(), Sense> {
        match self.state() {
            State::Ready => Ok(()),
            State::Stopped => Err(Sense::stopped()),
            State::Absent => Err(Sense::new(SenseKey::NotReady, self.absent)),
        }
    }

    fn removal(&self) -> MutexGuard<'_, Holders> {
        self.removal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often it was stopped and started again.
    pub(crate) fn start_stop_cycles(&self) -> u32 {
        self.start_stop_cycles.load(Ordering::Relaxed)
    }

    fn set(&self, state: State) {
        if self.state() == State::Stopped && state == State::Ready {
            self.start_stop_cycles.fetch_add(1, Ordering::Relaxed);
        }
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// A nexus begins. It learns of the medium that it finds.
    pub(crate) fn attach(&self, nexus: NexusId) {
        if !self.is_removable {
            return;
        }
        let mut removal = self.removal();
        let event = if self.is_present() { Event::New } else { Event::NoChange };
        removal.nexuses.push(Holder { nexus, prevents: false, event });
    }

    /// A nexus is lost: what it prevented is allowed (SPC-4 6.18).
    pub(crate) fn detach(&self, nexus: NexusId) {
        self.removal().nexuses.retain(|holder| holder.nexus != nexus);
    }

    /// A reset: everything is allowed, and what is there is ready. What is out stays out.
    pub(crate) fn reset(&self) {
        let mut removal = self.removal();
        removal.is_persistently_prevented = false;
        for holder in &mut removal.nexuses {
            holder.prevents = false;
        }
        if self.is_present() {
            self.set(State::Ready);
        }
    }

    /// A medium that cannot be removed is always kept in, so nothing changes there.
    pub(crate) fn set_removal(&self, nexus: NexusId, wanted: Removal) {
        let mut removal = self.removal();
        match wanted {
            Removal::PersistentlyAllowed => removal.is_persistently_prevented = false,
            Removal::PersistentlyPrevented => removal.is_persistently_prevented = true,
            Removal::Allowed | Removal::Prevented => {
                if let Some(holder) = removal.of(nexus) {
                    holder.prevents = wanted == Removal::Prevented;
                }
            }
        }
    }

    pub(crate) fn is_prevented(&self) -> bool {
        self.removal().is_prevented()
    }

    pub(crate) fn is_persistently_prevented(&self) -> bool {
        self.removal().is_persistently_prevented
    }

    /// Starts or stops it. One that is out has nothing to start.
    pub(crate) fn set_stopped(&self, stopped: bool) -> Result<(), Sense> {
        let _removal = self.removal();
        if !self.is_present() {
            return self.check();
        }
        self.set(if stopped { State::Stopped } else { State::Ready });
        Ok(())
    }

    /// Takes it out, unless somebody keeps it in. From here on no command begins that needs it.
    pub(crate) fn eject(&self) -> Result<(), Sense> {
        let mut removal = self.removal();
        if removal.is_prevented() {
            return Err(Sense::medium_removal_prevented());
        }
        if self.is_present() {
            self.set(State::Absent);
            removal.tell(Event::Removed);
        }
        Ok(())
    }

    /// Puts it in again; says whether it was out. Prevention keeps a tray where it is, in or out.
    pub(crate) fn load(&self) -> Result<bool, Sense> {
        let mut removal = self.removal();
        if self.is_present() {
            self.set(State::Ready);
            return Ok(false);
        }
        if removal.is_prevented() {
            return Err(Sense::medium_removal_prevented());
        }
        self.set(State::Ready);
        removal.tell(Event::New);
        Ok(true)
    }

    /// What a nexus has yet to be told, which then has been told.
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
    fn spc4_6_18_a_medium_is_kept_in_while_any_nexus_prevents_its_removal() {
        let medium = two_nexuses(DeviceType::Disk);
        medium.set_removal(1, Removal::Prevented);
        medium.set_removal(2, Removal::Prevented);
        medium.set_removal(1, Removal::Allowed);
        assert_eq!(additional(medium.eject()), Some(0x5302));
        medium.detach(2);
        assert_eq!(additional(medium.eject()), None);
        assert_eq!(additional(medium.check()), Some(0x3a00));
        // And out, while any nexus prevents its loading.
        medium.set_removal(1, Removal::Prevented);
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
        medium.set_removal(1, Removal::PersistentlyPrevented);
        medium.detach(1);
        medium.set_removal(2, Removal::Allowed);
        assert!(medium.is_persistently_prevented());
        assert_eq!(additional(medium.eject()), Some(0x5302));
        medium.set_removal(2, Removal::PersistentlyAllowed);
        assert_eq!(medium.eject(), Ok(()));
        assert_eq!(additional(medium.check()), Some(0x3a02));
        assert_eq!(medium.load(), Ok(true));
        medium.set_removal(2, Removal::PersistentlyPrevented);
        medium.reset();
        assert_eq!(medium.eject(), Ok(()));
    }

    #[test]
    fn mmc6_6_7_each_nexus_is_told_once_of_the_last_that_happened() {
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
        assert_eq!(medium.state(), State::Absent);
    }
}
