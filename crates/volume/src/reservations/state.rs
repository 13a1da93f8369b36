//! The rules of persistent reservations (SPC-4 5.12; NVMe has the same six types), without locks and without I/O. An
//! action of a nexus changes one state into another.

use std::sync::Arc;

/// The maximum number of registrations of one unit.
pub const REGISTRATIONS_LIMIT: usize = 512;

/// The name of an I_T nexus, which outlives its sessions. Reservations identify their holders and registrants by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NexusName {
    /// The name of the initiator port.
    pub initiator_port: Arc<str>,
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub target_port: u16,
}

/// TYPE of a reservation (SPC-4 6.15.3.4). Other values are obsolete or reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Type {
    /// Only the holder writes.
    WriteExclusive = 0x1,
    /// Only the holder has access.
    ExclusiveAccess = 0x3,
    /// Only registrants write.
    WriteExclusiveRegistrantsOnly = 0x5,
    /// Only registrants have access.
    ExclusiveAccessRegistrantsOnly = 0x6,
    /// Only registrants write, and all of them hold the reservation.
    WriteExclusiveAllRegistrants = 0x7,
    /// Only registrants have access, and all of them hold the reservation.
    ExclusiveAccessAllRegistrants = 0x8,
}

impl Type {
    /// All types.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// Returns the type with this code.
    pub fn from_code(code: u8) -> Option<Self> {
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
    pub const fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Returns whether every registrant has full access.
    const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }
}

/// The access that a reservation permits to a nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Permission {
    /// All commands.
    All,
    /// The commands that are permitted under Write Exclusive.
    Reads,
    /// The commands that are permitted under Exclusive Access.
    Nothing,
    /// The commands that are permitted while another client uses the volume alone (SPC-2 5.5.1).
    Held,
}

/// A registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The registrant.
    pub nexus: NexusName,
    /// Its reservation key, which is not 0.
    pub key: u64,
}

/// A persistent reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The holder; `None` if all registrants hold it.
    pub holder: Option<NexusName>,
    /// Its type.
    pub reservation_type: Type,
}

impl Reservation {
    fn new(nexus: &NexusName, reservation_type: Type) -> Self {
        let holder = (!reservation_type.is_all_registrants()).then(|| nexus.clone());
        Self { holder, reservation_type }
    }
}

/// The registrations and the reservation of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationState {
    /// PRGENERATION.
    pub generation: u32,
    /// The registrations, in the order of their creation.
    pub registrations: Vec<Registration>,
    /// The persistent reservation, if there is one.
    pub reservation: Option<Reservation>,
    /// The last valid APTPL.
    pub aptpl: bool,
}

/// SCOPE or TYPE of a reservation is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidType;

/// A change that a nexus requests: a service action of PERSISTENT RESERVE OUT.
#[derive(Clone, Debug)]
pub enum Action {
    /// Registers, or unregisters.
    Register(Register),
    /// Reserves.
    Reserve {
        /// The key of the nexus.
        key: u64,
        /// The type. The key is checked before its validity.
        reservation_type: Result<Type, InvalidType>,
    },
    /// Releases the reservation.
    Release {
        /// The key of the nexus.
        key: u64,
        /// The type of the reservation.
        reservation_type: Result<Type, InvalidType>,
    },
    /// Removes the reservation and all registrations.
    Clear {
        /// The key of the nexus.
        key: u64,
    },
    /// PREEMPT and PREEMPT AND ABORT.
    Preempt {
        /// The key of the nexus.
        key: u64,
        /// The key of the registrations to remove.
        victim: u64,
        /// The type of the new reservation.
        reservation_type: Result<Type, InvalidType>,
    },
    /// Moves the reservation to another nexus.
    RegisterAndMove {
        /// The key of the nexus.
        key: u64,
        /// The key of the other nexus.
        new_key: u64,
        /// Whether the nexus unregisters.
        unregister: bool,
        /// Whether the state outlives the program.
        aptpl: bool,
        /// The other nexus.
        to: NexusName,
    },
}

/// REGISTER and REGISTER AND IGNORE EXISTING KEY.
#[derive(Clone, Debug)]
pub struct Register {
    /// The current key, or 0; `None` ignores it.
    pub key: Option<u64>,
    /// The new key; 0 unregisters.
    pub new_key: u64,
    /// Whether the state outlives the program.
    pub aptpl: bool,
    /// The target ports of the registration: the command's own port, or all with ALL_TG_PT.
    pub target_ports: Vec<u16>,
    /// The initiator ports in addition to the command's own, from SPEC_I_PT.
    pub specified: Option<Vec<Arc<str>>>,
}

/// The result of an action.
#[derive(Debug)]
pub struct Change {
    /// The new state.
    pub state: ReservationState,
    /// The notices, with the nexuses that get them.
    pub reported: Vec<(NexusName, Notice)>,
    /// The nexuses with tasks that PREEMPT AND ABORT ends.
    pub preempted: Vec<NexusName>,
}

/// The reason why an action is refused. The state does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// The key is wrong, or another nexus holds a reservation (RESERVATION CONFLICT).
    #[error("the key is wrong, or another client holds a reservation")]
    Conflict,
    /// The type or the scope of the reservation is invalid.
    #[error("the type of the reservation is invalid")]
    InvalidType,
    /// The reservation to release has another type.
    #[error("the reservation has another type")]
    WrongTypeOfRelease,
    /// There are [`REGISTRATIONS_LIMIT`] registrations.
    #[error("there are too many registrations")]
    TooManyRegistrations,
    /// A registration for other initiator ports, by a registered nexus.
    #[error("the client is registered already")]
    Registered,
    /// A registration for other initiator ports, of which one is registered.
    #[error("another client is registered already")]
    OtherRegistered,
    /// The key of the nexus to preempt, or the new key of a move, is zero.
    #[error("the key is zero")]
    ZeroKey,
    /// A move without a reservation.
    #[error("there is no reservation")]
    NothingToMove,
    /// A move to the initiator port that requests it.
    #[error("the reservation would stay with its client")]
    MoveToItself,
    /// The change could not be saved.
    #[error("the reservations could not be saved")]
    NotSaved,
}

/// An event that a change reports to other nexuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another nexus preempted or cleared the reservation.
    ReservationsPreempted,
    /// The reservation, which registrants shared, was released.
    ReservationsReleased,
    /// Another nexus removed the registration.
    RegistrationsPreempted,
}

impl ReservationState {
    /// Returns the key of a nexus, if it is registered.
    pub fn key_of(&self, nexus: &NexusName) -> Option<u64> {
        self.registrations.iter().find(|known| known.nexus == *nexus).map(|known| known.key)
    }

    /// Returns whether a nexus is a persistent reservation holder (SPC-4 5.12.10).
    pub fn is_holder(&self, nexus: &NexusName) -> bool {
        match &self.reservation {
            None => false,
            Some(Reservation { holder: Some(holder), .. }) => holder == nexus,
            Some(Reservation { holder: None, .. }) => self.key_of(nexus).is_some(),
        }
    }

    /// Returns the permission of a nexus, or of a client that has no name to register.
    pub fn permission(&self, nexus: Option<&NexusName>) -> Permission {
        let Some(Reservation { reservation_type, .. }) = &self.reservation else {
            return Permission::All;
        };
        let has_access = nexus.is_some_and(|nexus| {
            self.is_holder(nexus)
                || reservation_type.admits_registrants() && self.key_of(nexus).is_some()
        });
        if has_access { Permission::All } else { reservation_type.permission() }
    }

    /// Returns the effect of SPC-2 RESERVE and RELEASE (SPC-4 5.12.3).
    pub fn spc2_effect(&self, nexus: &NexusName) -> Spc2Effect {
        if self.registrations.is_empty() {
            return Spc2Effect::AsBefore;
        }
        if self.reservation.is_some() && self.permission(Some(nexus)) == Permission::All {
            Spc2Effect::WithoutEffect
        } else {
            Spc2Effect::Conflict
        }
    }

    /// Returns the change that `action` makes if `nexus` requests it.
    pub fn apply(&self, nexus: &NexusName, action: &Action) -> Result<Change, ReservationError> {
        let mut change =
            Change { state: self.clone(), reported: Vec::new(), preempted: Vec::new() };
        match action {
            Action::Register(register) => change.register(nexus, register)?,
            Action::Reserve { key, reservation_type } => {
                self.check_key(nexus, *key)?;
                change.reserve(
                    nexus,
                    (*reservation_type).map_err(|InvalidType| ReservationError::InvalidType)?,
                )?;
            }
            Action::Release { key, reservation_type } => {
                self.check_key(nexus, *key)?;
                change.release(
                    nexus,
                    (*reservation_type).map_err(|InvalidType| ReservationError::InvalidType)?,
                )?;
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
    fn check_key(&self, nexus: &NexusName, key: u64) -> Result<(), ReservationError> {
        if self.key_of(nexus) == Some(key) { Ok(()) } else { Err(ReservationError::Conflict) }
    }

    fn set_key(&mut self, nexus: &NexusName, key: u64) -> Result<(), ReservationError> {
        if let Some(known) = self.registrations.iter_mut().find(|known| known.nexus == *nexus) {
            known.key = key;
            return Ok(());
        }
        if self.registrations.len() >= REGISTRATIONS_LIMIT {
            return Err(ReservationError::TooManyRegistrations);
        }
        self.registrations.push(Registration { nexus: nexus.clone(), key });
        Ok(())
    }

    fn count(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Checks the invariants of a state. The error names the one that is violated.
    pub fn check_invariants(&self) -> Result<(), &'static str> {
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
pub enum Spc2Effect {
    /// The command works as in SPC-2.
    AsBefore,
    /// The command returns GOOD without effect.
    WithoutEffect,
    Conflict,
}

impl Change {
    /// Registers or unregisters (SPC-4 5.12.7, tables 67 to 69).
    fn register(&mut self, nexus: &NexusName, register: &Register) -> Result<(), ReservationError> {
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
            return Err(ReservationError::Conflict);
        }
        if register.new_key == 0 && !own.iter().any(|own| registered(own).is_some()) {
            return Ok(());
        }
        if let Some(specified) = &register.specified {
            if registered(nexus).is_some() {
                return Err(ReservationError::Registered);
            }
            let others: Vec<NexusName> = specified.iter().flat_map(of_port).collect();
            if others.iter().any(|other| registered(other).is_some()) {
                return Err(ReservationError::OtherRegistered);
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
    fn reserve(
        &mut self,
        nexus: &NexusName,
        reservation_type: Type,
    ) -> Result<(), ReservationError> {
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
            Some(_) => Err(ReservationError::Conflict),
        }
    }

    /// Releases (SPC-4 5.12.11.2.2).
    fn release(
        &mut self,
        nexus: &NexusName,
        reservation_type: Type,
    ) -> Result<(), ReservationError> {
        if !self.state.is_holder(nexus) {
            return Ok(());
        }
        if self.state.reservation.as_ref().map(|held| held.reservation_type)
            != Some(reservation_type)
        {
            return Err(ReservationError::WrongTypeOfRelease);
        }
        self.state.reservation = None;
        if reservation_type.admits_registrants() {
            self.notify_registrants_except(nexus, Notice::ReservationsReleased);
        }
        Ok(())
    }

    /// Clears (SPC-4 5.12.11.2.7).
    fn clear(&mut self, nexus: &NexusName) {
        self.notify_registrants_except(nexus, Notice::ReservationsPreempted);
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
                    self.notify_registrants_except(nexus, Notice::ReservationsReleased);
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
        reservation_type: Result<Type, InvalidType>,
    ) -> Result<(), ReservationError> {
        let holder_is_victim = match &self.state.reservation {
            None => false,
            Some(Reservation { holder: None, .. }) => victim == 0,
            Some(Reservation { holder: Some(_), .. }) if victim == 0 => {
                return Err(ReservationError::ZeroKey);
            }
            Some(Reservation { holder: Some(holder), .. }) => {
                self.state.key_of(holder) == Some(victim)
            }
        };
        if holder_is_victim {
            let reservation_type =
                reservation_type.map_err(|InvalidType| ReservationError::InvalidType)?;
            self.preempt_reservation(nexus, victim, reservation_type);
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
            self.notify_registrants_except(nexus, Notice::ReservationsReleased);
        }
    }

    /// Removes registrations (SPC-4 5.12.11.2.5). The nexus's own registration is removed too, if it has that key.
    fn remove_registrations(
        &mut self,
        nexus: &NexusName,
        victim: u64,
    ) -> Result<(), ReservationError> {
        let (removed, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.state.registrations)
            .into_iter()
            .partition(|known| known.key == victim);
        if removed.is_empty() {
            return Err(ReservationError::Conflict);
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
                self.reported.push((nexus.clone(), Notice::RegistrationsPreempted));
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
    ) -> Result<(), ReservationError> {
        let Some(held) = &self.state.reservation else {
            return Err(ReservationError::NothingToMove);
        };
        if held.holder.as_ref() != Some(nexus) {
            return Err(ReservationError::Conflict);
        }
        if new_key == 0 {
            return Err(ReservationError::ZeroKey);
        }
        if to.initiator_port == nexus.initiator_port {
            return Err(ReservationError::MoveToItself);
        }
        let reservation_type = held.reservation_type;
        self.state.set_key(to, new_key)?;
        self.state.reservation = Some(Reservation::new(to, reservation_type));
        self.state.count();
        Ok(())
    }

    fn notify_registrants_except(&mut self, spared: &NexusName, notice: Notice) {
        let others = self.state.registrations.iter().filter(|known| known.nexus != *spared);
        self.reported.extend(others.map(|known| (known.nexus.clone(), notice)));
    }
}
