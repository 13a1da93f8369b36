//! The rules of persistent reservations (SPC-4 5.12), without locks and without I/O. An action of a nexus changes one
//! state into another.

use crate::refusal::Refusal;
use crate::{AdditionalSense, Sense, SenseKey, UnitAttention};
use std::sync::Arc;

/// The maximum number of registrations of one unit.
pub(crate) const REGISTRATIONS_LIMIT: usize = 512;

/// The name of an I_T nexus, which outlives its sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NexusName {
    /// The name of the initiator port.
    pub(crate) initiator_port: Arc<str>,
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub(crate) target_port: u16,
}

/// TYPE of a reservation (SPC-4 6.15.3.4). Other values are obsolete or reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Type {
    WriteExclusive = 0x1,
    ExclusiveAccess = 0x3,
    WriteExclusiveRegistrantsOnly = 0x5,
    ExclusiveAccessRegistrantsOnly = 0x6,
    WriteExclusiveAllRegistrants = 0x7,
    ExclusiveAccessAllRegistrants = 0x8,
}

impl Type {
    pub(crate) const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&known| known as u8 == code)
    }

    const fn permission(self) -> Permission {
        match self {
            Self::WriteExclusive
            | Self::WriteExclusiveRegistrantsOnly
            | Self::WriteExclusiveAllRegistrants => Permission::Reads,
            Self::ExclusiveAccess
            | Self::ExclusiveAccessRegistrantsOnly
            | Self::ExclusiveAccessAllRegistrants => Permission::Nothing,
        }
    }

    /// Returns whether every registrant holds the reservation.
    pub(crate) const fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Returns whether every registrant has full access.
    const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }
}

/// The access that a reservation permits to a nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// All commands.
    All,
    /// The commands that are permitted under Write Exclusive.
    Reads,
    /// The commands that are permitted under Exclusive Access.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) nexus: NexusName,
    pub(crate) key: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// The holder; `None` if all registrants hold it.
    pub(crate) holder: Option<NexusName>,
    pub(crate) reservation_type: Type,
}

impl Reservation {
    fn new(nexus: &NexusName, reservation_type: Type) -> Self {
        let holder = (!reservation_type.is_all_registrants()).then(|| nexus.clone());
        Self { holder, reservation_type }
    }
}

/// The registrations and the reservation of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReservationState {
    /// PRGENERATION.
    pub(crate) generation: u32,
    /// The registrations, in the order of their creation.
    pub(crate) registrations: Vec<Registration>,
    pub(crate) reservation: Option<Reservation>,
    /// The last valid APTPL.
    pub(crate) aptpl: bool,
}

/// A service action of PERSISTENT RESERVE OUT.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Register(Register),
    Reserve {
        key: u64,
        /// The type, or the sense data if SCOPE or TYPE is invalid. The key is checked before it.
        reservation_type: Result<Type, Sense>,
    },
    Release {
        key: u64,
        reservation_type: Result<Type, Sense>,
    },
    Clear {
        key: u64,
    },
    /// PREEMPT and PREEMPT AND ABORT.
    Preempt {
        key: u64,
        victim: u64,
        reservation_type: Result<Type, Sense>,
    },
    RegisterAndMove {
        key: u64,
        new_key: u64,
        unregister: bool,
        aptpl: bool,
        to: NexusName,
    },
}

/// REGISTER and REGISTER AND IGNORE EXISTING KEY.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    /// The current key, or 0; `None` ignores it.
    pub(crate) key: Option<u64>,
    /// The new key; 0 unregisters.
    pub(crate) new_key: u64,
    pub(crate) aptpl: bool,
    /// The target ports of the registration: the command's own port, or all with ALL_TG_PT.
    pub(crate) target_ports: Vec<u16>,
    /// The initiator ports in addition to the command's own, from SPEC_I_PT.
    pub(crate) specified: Option<Vec<Arc<str>>>,
}

/// The result of an action.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) state: ReservationState,
    /// The unit attentions, with the nexuses that get them.
    pub(crate) reported: Vec<(NexusName, UnitAttention)>,
    /// The nexuses with tasks that PREEMPT AND ABORT ends.
    pub(crate) preempted: Vec<NexusName>,
}

/// Offsets of fields in the parameter lists.
const SERVICE_ACTION_RESERVATION_KEY: u16 = 8;
const SPEC_I_PT: (u16, u8) = (20, 3);
const TRANSPORT_IDS: u16 = 28;
const MOVE_TRANSPORT_ID: u16 = 24;

impl ReservationState {
    pub(crate) fn key_of(&self, nexus: &NexusName) -> Option<u64> {
        self.registrations.iter().find(|known| known.nexus == *nexus).map(|known| known.key)
    }

    /// Returns whether a nexus is a persistent reservation holder (SPC-4 5.12.10).
    pub(crate) fn is_holder(&self, nexus: &NexusName) -> bool {
        match &self.reservation {
            None => false,
            Some(Reservation { holder: Some(holder), .. }) => holder == nexus,
            Some(Reservation { holder: None, .. }) => self.key_of(nexus).is_some(),
        }
    }

    pub(crate) fn permission(&self, nexus: &NexusName) -> Permission {
        match &self.reservation {
            None => Permission::All,
            Some(_) if self.is_holder(nexus) => Permission::All,
            Some(Reservation { reservation_type, .. })
                if reservation_type.admits_registrants() && self.key_of(nexus).is_some() =>
            {
                Permission::All
            }
            Some(Reservation { reservation_type, .. }) => reservation_type.permission(),
        }
    }

    /// Returns the effect of SPC-2 RESERVE and RELEASE (SPC-4 5.12.3).
    pub(crate) fn spc2_effect(&self, nexus: &NexusName) -> Spc2Effect {
        if self.registrations.is_empty() {
            return Spc2Effect::AsBefore;
        }
        if self.reservation.is_some() && self.permission(nexus) == Permission::All {
            Spc2Effect::WithoutEffect
        } else {
            Spc2Effect::Conflict
        }
    }

    /// Returns the change that `action` makes if `nexus` requests it.
    pub(crate) fn apply(&self, nexus: &NexusName, action: &Action) -> Result<Change, Refusal> {
        let mut change =
            Change { state: self.clone(), reported: Vec::new(), preempted: Vec::new() };
        match action {
            Action::Register(register) => change.register(nexus, register)?,
            Action::Reserve { key, reservation_type } => {
                self.check_key(nexus, *key)?;
                change.reserve(nexus, (*reservation_type)?)?;
            }
            Action::Release { key, reservation_type } => {
                self.check_key(nexus, *key)?;
                change.release(nexus, (*reservation_type)?)?;
            }
            Action::Clear { key } => {
                self.check_key(nexus, *key)?;
                change.clear(nexus);
            }
            Action::Preempt { key, victim, reservation_type } => {
                self.check_key(nexus, *key)?;
                change.preempt(nexus, *victim, *reservation_type)?;
            }
            Action::RegisterAndMove { key, new_key, unregister, aptpl, to } => {
                self.check_key(nexus, *key)?;
                change.register_and_move(nexus, *new_key, to)?;
                change.state.aptpl = *aptpl;
                if *unregister {
                    change.unregister(nexus);
                }
            }
        }
        Ok(change)
    }

    /// Checks the key, before all other fields of the command (SPC-4 6.16.3).
    fn check_key(&self, nexus: &NexusName, key: u64) -> Result<(), Refusal> {
        if self.key_of(nexus) == Some(key) { Ok(()) } else { Err(Refusal::ReservationConflict) }
    }

    fn set_key(&mut self, nexus: &NexusName, key: u64) -> Result<(), Refusal> {
        if let Some(known) = self.registrations.iter_mut().find(|known| known.nexus == *nexus) {
            known.key = key;
            return Ok(());
        }
        if self.registrations.len() >= REGISTRATIONS_LIMIT {
            let additional = AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES;
            return Err(Sense::new(SenseKey::IllegalRequest, additional).into());
        }
        self.registrations.push(Registration { nexus: nexus.clone(), key });
        Ok(())
    }

    fn count(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Checks the invariants of a state. The error names the one that is violated.
    pub(crate) fn check_invariants(&self) -> Result<(), &'static str> {
        if self.registrations.len() > REGISTRATIONS_LIMIT {
            return Err("too many registrations");
        }
        let twice = self.registrations.iter().enumerate().any(|(index, known)| {
            self.registrations[..index].iter().any(|earlier| earlier.nexus == known.nexus)
        });
        if twice {
            return Err("two registrations of one nexus");
        }
        if self.registrations.iter().any(|known| known.key == 0) {
            return Err("a registration without a key");
        }
        match &self.reservation {
            None => Ok(()),
            Some(Reservation { holder, reservation_type })
                if holder.is_none() != reservation_type.is_all_registrants() =>
            {
                Err("a holder that does not fit the type")
            }
            Some(Reservation { holder: None, .. }) if self.registrations.is_empty() => {
                Err("a reservation that nobody holds")
            }
            Some(Reservation { holder: Some(holder), .. }) if self.key_of(holder).is_none() => {
                Err("a holder that is not registered")
            }
            Some(_) => Ok(()),
        }
    }
}

/// The result of [`ReservationState::spc2_effect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spc2Effect {
    /// The command works as in SPC-2.
    AsBefore,
    /// The command returns GOOD without effect.
    WithoutEffect,
    Conflict,
}

impl Change {
    /// Registers or unregisters (SPC-4 5.12.7, tables 67 to 69).
    fn register(&mut self, nexus: &NexusName, register: &Register) -> Result<(), Refusal> {
        let of_port = |initiator_port: &Arc<str>| {
            let initiator_port = initiator_port.clone();
            register.target_ports.iter().map(move |&target_port| NexusName {
                initiator_port: initiator_port.clone(),
                target_port,
            })
        };
        let own: Vec<NexusName> = of_port(&nexus.initiator_port).collect();
        let registered = |nexus: &NexusName| self.state.key_of(nexus);
        if let Some(key) = register.key
            && own.iter().any(|own| registered(own).unwrap_or(0) != key)
        {
            return Err(Refusal::ReservationConflict);
        }
        if register.new_key == 0 && !own.iter().any(|own| registered(own).is_some()) {
            return Ok(());
        }
        if let Some(specified) = &register.specified {
            if registered(nexus).is_some() {
                return Err(Sense::invalid_bit_in_parameter_list(SPEC_I_PT.0, SPEC_I_PT.1).into());
            }
            let others: Vec<NexusName> = specified.iter().flat_map(of_port).collect();
            if others.iter().any(|other| registered(other).is_some()) {
                return Err(Sense::invalid_field_in_parameter_list(TRANSPORT_IDS).into());
            }
            for other in &others {
                self.state.set_key(other, register.new_key)?;
            }
        }
        for own in &own {
            match register.new_key {
                0 => self.unregister(own),
                key => self.state.set_key(own, key)?,
            }
        }
        self.state.aptpl = register.aptpl;
        self.state.count();
        Ok(())
    }

    /// Reserves (SPC-4 5.12.9).
    fn reserve(&mut self, nexus: &NexusName, reservation_type: Type) -> Result<(), Refusal> {
        match &self.state.reservation {
            None => {
                self.state.reservation = Some(Reservation::new(nexus, reservation_type));
                Ok(())
            }
            Some(held)
                if held.reservation_type == reservation_type && self.state.is_holder(nexus) =>
            {
                Ok(())
            }
            Some(_) => Err(Refusal::ReservationConflict),
        }
    }

    /// Releases (SPC-4 5.12.11.2.2).
    fn release(&mut self, nexus: &NexusName, reservation_type: Type) -> Result<(), Refusal> {
        if !self.state.is_holder(nexus) {
            return Ok(());
        }
        if self.state.reservation.as_ref().map(|held| held.reservation_type)
            != Some(reservation_type)
        {
            let additional = AdditionalSense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION;
            return Err(Sense::new(SenseKey::IllegalRequest, additional).into());
        }
        self.state.reservation = None;
        if reservation_type.admits_registrants() {
            self.tell_registrants_except(nexus, UnitAttention::ReservationsReleased);
        }
        Ok(())
    }

    /// Clears (SPC-4 5.12.11.2.7).
    fn clear(&mut self, nexus: &NexusName) {
        self.tell_registrants_except(nexus, UnitAttention::ReservationsPreempted);
        self.state.reservation = None;
        self.state.registrations.clear();
        self.state.count();
    }

    /// Unregisters (SPC-4 5.12.11.2.3), without a change of PRGENERATION.
    fn unregister(&mut self, nexus: &NexusName) {
        let held = self.state.is_holder(nexus);
        self.state.registrations.retain(|known| known.nexus != *nexus);
        let Some(Reservation { holder, reservation_type }) = &self.state.reservation else {
            return;
        };
        let reservation_type = *reservation_type;
        match holder {
            Some(_) if held => {
                self.state.reservation = None;
                if reservation_type.admits_registrants() {
                    self.tell_registrants_except(nexus, UnitAttention::ReservationsReleased);
                }
            }
            None if self.state.registrations.is_empty() => self.state.reservation = None,
            Some(_) | None => {}
        }
    }

    /// Preempts (SPC-4 5.12.11.2.4, table 72).
    fn preempt(
        &mut self,
        nexus: &NexusName,
        victim: u64,
        reservation_type: Result<Type, Sense>,
    ) -> Result<(), Refusal> {
        let holder_is_victim = match &self.state.reservation {
            None => false,
            Some(Reservation { holder: None, .. }) => victim == 0,
            Some(Reservation { holder: Some(_), .. }) if victim == 0 => {
                let field = SERVICE_ACTION_RESERVATION_KEY;
                return Err(Sense::invalid_field_in_parameter_list(field).into());
            }
            Some(Reservation { holder: Some(holder), .. }) => {
                self.state.key_of(holder) == Some(victim)
            }
        };
        if holder_is_victim {
            self.preempt_reservation(nexus, victim, reservation_type?);
        } else {
            self.remove_registrations(nexus, victim)?;
        }
        self.state.count();
        Ok(())
    }

    /// Preempts the reservation (SPC-4 5.12.11.2.4.3).
    fn preempt_reservation(&mut self, nexus: &NexusName, victim: u64, reservation_type: Type) {
        let all = self.state.reservation.as_ref().is_some_and(|held| held.holder.is_none());
        let before = self.state.reservation.as_ref().map(|held| held.reservation_type);
        let (removed, kept) = std::mem::take(&mut self.state.registrations)
            .into_iter()
            .partition(|known| known.nexus != *nexus && (all || known.key == victim));
        self.state.registrations = kept;
        self.preempted(nexus, removed);
        self.state.reservation = Some(Reservation::new(nexus, reservation_type));
        if before != Some(reservation_type) {
            self.tell_registrants_except(nexus, UnitAttention::ReservationsReleased);
        }
    }

    /// Removes registrations (SPC-4 5.12.11.2.5). The nexus's own registration is removed too, if it has that key.
    fn remove_registrations(&mut self, nexus: &NexusName, victim: u64) -> Result<(), Refusal> {
        let (removed, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.state.registrations)
            .into_iter()
            .partition(|known| known.key == victim);
        if removed.is_empty() {
            return Err(Refusal::ReservationConflict);
        }
        self.state.registrations = kept;
        if self.state.registrations.is_empty() {
            self.state.reservation = None;
        }
        self.preempted(nexus, removed);
        Ok(())
    }

    fn preempted(&mut self, by: &NexusName, removed: Vec<Registration>) {
        for Registration { nexus, .. } in removed {
            if nexus != *by {
                self.reported.push((nexus.clone(), UnitAttention::RegistrationsPreempted));
            }
            self.preempted.push(nexus);
        }
    }

    /// Registers and moves (SPC-4 5.12.8, table 70), without APTPL and UNREG.
    fn register_and_move(
        &mut self,
        nexus: &NexusName,
        new_key: u64,
        to: &NexusName,
    ) -> Result<(), Refusal> {
        let Some(held) = &self.state.reservation else {
            // There is no reservation to move.
            return Err(Sense::invalid_bit_in_cdb(1, 4).into());
        };
        if held.holder.as_ref() != Some(nexus) {
            return Err(Refusal::ReservationConflict);
        }
        if new_key == 0 {
            let field = SERVICE_ACTION_RESERVATION_KEY;
            return Err(Sense::invalid_field_in_parameter_list(field).into());
        }
        if to.initiator_port == nexus.initiator_port {
            return Err(Sense::invalid_field_in_parameter_list(MOVE_TRANSPORT_ID).into());
        }
        let reservation_type = held.reservation_type;
        self.state.set_key(to, new_key)?;
        self.state.reservation = Some(Reservation::new(to, reservation_type));
        self.state.count();
        Ok(())
    }

    fn tell_registrants_except(&mut self, spared: &NexusName, attention: UnitAttention) {
        let others = self.state.registrations.iter().filter(|known| known.nexus != *spared);
        self.reported.extend(others.map(|known| (known.nexus.clone(), attention)));
    }
}
