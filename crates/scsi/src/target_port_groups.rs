//! Asymmetric logical unit access (SPC-4 5.15): how well the units of a target device are reached
//! through each of its target ports, who may change that, and who is told.
//!
//! Each port is a target port group of its own, and both bear one number; over iSCSI it is the tag
//! of a portal group, and that is all the asymmetry that the transport has. All units of a target
//! device share the states. A state lives as long as the program: what SET TARGET PORT GROUPS set
//! is forgotten with it.

use crate::command_table::Row;
use crate::nexus::NexusId;
use crate::{AdditionalSense, LogicalUnit, Sense, SenseKey, TargetDevice, UnitAttention};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sarsen_wire::scsi::{inquiry, opcode};

/// The most ports of a target device: that many fit in the SCSI Ports page with the longest names.
pub const MAXIMUM_TARGET_PORTS: usize = 128;

/// ASYMMETRIC ACCESS STATE (SPC-4 6.37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessState {
    /// Active/optimized.
    Optimized = 0x0,
    /// Active/non-optimized: everything is done, at a price.
    NonOptimized = 0x1,
    /// Standby: the unit can be looked at and managed; its medium cannot be reached.
    Standby = 0x2,
    /// Unavailable: the unit says who it is and lets its access be changed.
    Unavailable = 0x3,
    /// Offline.
    Offline = 0xe,
    /// On the way from one state to another.
    Transitioning = 0xf,
}

/// How far beyond the active states a command is carried out (SPC-4 5.15.2.4). Each includes those
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// In the active states alone.
    Active,
    /// In standby.
    Standby,
    /// While unavailable or offline.
    Unavailable,
    /// During a transition.
    Transition,
}

impl AccessState {
    /// The state of this code; `None` for codes that are reserved or not supported.
    pub const fn of(code: u8) -> Option<Self> {
        Some(match code {
            0x0 => Self::Optimized,
            0x1 => Self::NonOptimized,
            0x2 => Self::Standby,
            0x3 => Self::Unavailable,
            0xe => Self::Offline,
            0xf => Self::Transitioning,
            _ => return None,
        })
    }

    /// What a command must be allowed to be carried out now.
    const fn wanted(self) -> Access {
        match self {
            Self::Optimized | Self::NonOptimized => Access::Active,
            Self::Standby => Access::Standby,
            Self::Unavailable | Self::Offline => Access::Unavailable,
            Self::Transitioning => Access::Transition,
        }
    }

    /// Why the unit is not ready in this state; `None` in the active ones.
    const fn sense(self) -> Option<Sense> {
        let additional = match self {
            Self::Optimized | Self::NonOptimized => return None,
            Self::Standby => {
                AdditionalSense::LOGICAL_UNIT_NOT_ACCESSIBLE_TARGET_PORT_IN_STANDBY_STATE
            }
            Self::Unavailable => {
                AdditionalSense::LOGICAL_UNIT_NOT_ACCESSIBLE_TARGET_PORT_IN_UNAVAILABLE_STATE
            }
            Self::Offline => AdditionalSense::LOGICAL_UNIT_NOT_READY_OFFLINE,
            Self::Transitioning => {
                AdditionalSense::LOGICAL_UNIT_NOT_ACCESSIBLE_ASYMMETRIC_ACCESS_STATE_TRANSITION
            }
        };
        Some(Sense::new(SenseKey::NotReady, additional))
    }
}

/// Who changes access states: the TPGS field of INQUIRY data (SPC-4 6.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Alua {
    /// The server, and initiators by SET TARGET PORT GROUPS.
    #[default]
    Both = inquiry::TPGS_BOTH,
    /// The server alone: SET TARGET PORT GROUPS is not supported.
    Implicit = inquiry::TPGS_IMPLICIT,
}

/// A target port as its transport names it, and how its group begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPort {
    /// RELATIVE TARGET PORT IDENTIFIER, from 1 on, and the number of its target port group.
    pub relative_identifier: u16,
    /// The target port name.
    pub name: String,
    /// The access state of its group.
    pub access_state: AccessState,
    /// Its group is preferred (PREF).
    pub is_preferred: bool,
}

impl TargetPort {
    /// The port of an iSCSI target that is its portal group of this tag (RFC 7143 §4.4.2).
    pub fn of_portal_group(target: &str, tag: u16) -> Self {
        Self {
            relative_identifier: tag,
            name: format!("{target},t,{tag:#06x}"),
            access_state: AccessState::Optimized,
            is_preferred: false,
        }
    }
}

/// STATUS CODE: why a group is in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Origin {
    /// It always was.
    Beginning = 0,
    /// Altered by SET TARGET PORT GROUPS.
    Explicit = 1,
    /// Altered by implicit asymmetrical logical unit access behaviour.
    Implicit = 2,
}

/// A target port and its group.
pub(crate) struct TargetPortGroup {
    pub(crate) number: u16,
    pub(crate) port_name: String,
    is_preferred: AtomicBool,
    /// Written behind [`TargetPortGroups::changing`] alone.
    state: AtomicU8,
    origin: AtomicU8,
}

impl TargetPortGroup {
    fn new(port: TargetPort) -> Self {
        let TargetPort { relative_identifier, name, access_state, is_preferred } = port;
        Self {
            number: relative_identifier,
            port_name: name,
            is_preferred: AtomicBool::new(is_preferred),
            state: AtomicU8::new(access_state as u8),
            origin: AtomicU8::new(Origin::Beginning as u8),
        }
    }

    pub(crate) fn state(&self) -> AccessState {
        match AccessState::of(self.state.load(Ordering::Relaxed)) {
            Some(state) => state,
            None => unreachable!("a state is stored as its code"),
        }
    }

    pub(crate) fn is_preferred(&self) -> bool {
        self.is_preferred.load(Ordering::Relaxed)
    }

    /// STATUS CODE.
    pub(crate) fn status_code(&self) -> u8 {
        self.origin.load(Ordering::Relaxed)
    }

    /// Refuses a command that is not carried out in this state: one load on the way of each.
    pub(crate) fn check(&self, access: Access) -> Result<(), Sense> {
        let state = self.state();
        match state.sense() {
            Some(sense) if access < state.wanted() => Err(sense),
            _ => Ok(()),
        }
    }

    /// What TEST UNIT READY would be told here.
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        self.state().sense()
    }

    /// SPC-4 5.15.2.4.5: then INQUIRY says that the unit is not connected here.
    pub(crate) fn is_cut_off(&self) -> bool {
        matches!(self.state(), AccessState::Unavailable | AccessState::Offline)
    }

    fn alter(&self, state: AccessState, origin: Origin) {
        self.state.store(state as u8, Ordering::Relaxed);
        self.origin.store(origin as u8, Ordering::Relaxed);
    }
}

/// The groups of a target device, by number.
pub(crate) struct TargetPortGroups {
    groups: Mutex<Groups>,
    is_explicit: AtomicBool,
    /// Held while states are looked at together or changed.
    changing: Mutex<()>,
}

type Groups = Arc<[Arc<TargetPortGroup>]>;

impl TargetPortGroups {
    pub(crate) fn new(ports: Vec<TargetPort>) -> Self {
        let groups = Self::ordered(ports).into_iter().map(TargetPortGroup::new).map(Arc::new);
        Self {
            groups: Mutex::new(groups.collect()),
            is_explicit: AtomicBool::new(true),
            changing: Mutex::default(),
        }
    }

    /// By number; each has one of its own.
    fn ordered(mut ports: Vec<TargetPort>) -> Vec<TargetPort> {
        ports.sort_by_key(|port| port.relative_identifier);
        assert!(
            ports.windows(2).all(|two| two[0].relative_identifier < two[1].relative_identifier),
            "each port of a target device has a number of its own"
        );
        assert!((1..=MAXIMUM_TARGET_PORTS).contains(&ports.len()), "some ports, and not too many");
        ports
    }

    /// Groups that stay keep their states. Says whether any came or went, and whether another one is
    /// preferred.
    fn replace(&self, ports: Vec<TargetPort>) -> (bool, bool) {
        let old = self.all();
        let mut is_preferred_changed = false;
        let mut group = |port: TargetPort| {
            let stays = old.iter().find(|group| group.number == port.relative_identifier);
            let Some(group) = stays else { return Arc::new(TargetPortGroup::new(port)) };
            let was = group.is_preferred.swap(port.is_preferred, Ordering::Relaxed);
            is_preferred_changed |= was != port.is_preferred;
            group.clone()
        };
        let groups: Groups = Self::ordered(ports).into_iter().map(&mut group).collect();
        let is_same = groups.len() == old.len()
            && groups.iter().zip(old.iter()).all(|(new, old)| Arc::ptr_eq(new, old));
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = groups;
        (!is_same, is_preferred_changed)
    }

    /// At this moment, by number.
    pub(crate) fn all(&self) -> Groups {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn find(&self, number: u16) -> Option<Arc<TargetPortGroup>> {
        self.all().iter().find(|group| group.number == number).cloned()
    }

    /// Who changes the states.
    pub(crate) fn alua(&self) -> Alua {
        match self.is_explicit.load(Ordering::Relaxed) {
            true => Alua::Both,
            false => Alua::Implicit,
        }
    }

    /// Whether units of the target device support the command of `row` as far as ALUA goes.
    pub(crate) fn support(&self, row: &Row) -> bool {
        let sets_groups = (row.operation_code, row.service_action)
            == (opcode::MAINTENANCE_OUT, Some(opcode::SA_SET_TARGET_PORT_GROUPS.into()));
        !sets_groups || self.alua() == Alua::Both
    }

    /// Nothing changes until the guard goes.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why an access state was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// There is no such group.
    #[error("target {target} has no target port group {group}")]
    NoGroup {
        /// The target device.
        target: String,
        /// The number that was given.
        group: u16,
    },
    /// It is on its way to another state.
    #[error("target port group {group} of {target} is in transition: wait for its end")]
    InTransition {
        /// The target device.
        target: String,
        /// The group.
        group: u16,
    },
    /// Transitioning is no state to stay in.
    #[error("a target port group is brought into transition with the beginning of one")]
    Transitioning,
}

/// An implicit transition that is under way. To drop it is to fail it.
#[must_use]
pub struct Transition {
    device: Arc<TargetDevice>,
    group: Arc<TargetPortGroup>,
    from: (AccessState, u8),
    is_over: bool,
}

impl Transition {
    /// Ends it in this state; every initiator is told.
    pub fn complete(mut self, state: AccessState) -> Result<(), AccessError> {
        if state == AccessState::Transitioning {
            return Err(AccessError::Transitioning);
        }
        self.is_over = true;
        let held = self.device.target_port_groups().hold();
        self.group.alter(state, Origin::Implicit);
        drop(held);
        self.device.tell_access(UnitAttention::AsymmetricAccessStateChanged, None);
        Ok(())
    }

    /// Ends it where it began; every initiator is told that it failed (SPC-4 5.15.2.7).
    pub fn fail(self) {}
}

impl Drop for Transition {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let held = self.device.target_port_groups().hold();
        self.group.state.store(self.from.0 as u8, Ordering::Relaxed);
        self.group.origin.store(self.from.1, Ordering::Relaxed);
        drop(held);
        self.device.tell_access(UnitAttention::ImplicitTransitionFailed, None);
    }
}

impl TargetDevice {
    /// Implicitly brings a group into a state; every initiator is told if it was in another one.
    /// Commands that were admitted before run to their end.
    pub fn set_access_state(&self, group: u16, state: AccessState) -> Result<(), AccessError> {
        if state == AccessState::Transitioning {
            return Err(AccessError::Transitioning);
        }
        let held = self.target_port_groups().hold();
        let group = self.settled(group)?;
        if group.state() == state {
            return Ok(());
        }
        group.alter(state, Origin::Implicit);
        drop(held);
        self.tell_access(UnitAttention::AsymmetricAccessStateChanged, None);
        Ok(())
    }

    /// Gives the target device these ports. Those that it has keep the access states that they are in;
    /// every initiator is told of what has changed.
    pub fn set_ports(&self, ports: Vec<TargetPort>) {
        let held = self.target_port_groups().hold();
        let (are_others, is_preferred_changed) = self.target_port_groups().replace(ports);
        drop(held);
        if are_others {
            // SPC-4 7.8.14: the SCSI Ports page lists them.
            self.tell_access(UnitAttention::InquiryDataHasChanged, None);
        }
        if are_others || is_preferred_changed {
            self.tell_access(UnitAttention::AsymmetricAccessStateChanged, None);
        }
    }

    /// Says who changes the access states. Every initiator is told if it was another way.
    pub fn set_alua(&self, alua: Alua) {
        let is_explicit = alua == Alua::Both;
        let was = self.target_port_groups().is_explicit.swap(is_explicit, Ordering::Relaxed);
        if was != is_explicit {
            self.tell_access(UnitAttention::InquiryDataHasChanged, None);
        }
    }

    /// Begins an implicit transition of a group: until its end, hardly a command is carried out
    /// through its port.
    pub fn begin_transition(self: &Arc<Self>, group: u16) -> Result<Transition, AccessError> {
        let _held = self.target_port_groups().hold();
        let group = self.settled(group)?;
        let from = (group.state(), group.status_code());
        group.alter(AccessState::Transitioning, Origin::Implicit);
        Ok(Transition { device: self.clone(), group, from, is_over: false })
    }

    /// The state of a group, if there is such a one.
    pub fn access_state(&self, group: u16) -> Option<AccessState> {
        self.target_port_groups().find(group).map(|group| group.state())
    }

    /// A group that is not in transition.
    fn settled(&self, number: u16) -> Result<Arc<TargetPortGroup>, AccessError> {
        let target = || self.name().to_owned();
        match self.target_port_groups().find(number) {
            None => Err(AccessError::NoGroup { target: target(), group: number }),
            Some(group) if group.state() == AccessState::Transitioning => {
                Err(AccessError::InTransition { target: target(), group: number })
            }
            Some(group) => Ok(group),
        }
    }

    /// SET TARGET PORT GROUPS by `nexus` on `unit`, every state of which was checked: all groups
    /// change or none. The others are told (SPC-4 5.15.2.8), and `nexus` as well on the units that
    /// it did not ask for.
    pub(crate) fn set_explicitly(
        &self,
        states: &[(Arc<TargetPortGroup>, AccessState)],
        nexus: NexusId,
        unit: &Arc<LogicalUnit>,
    ) -> Result<(), Sense> {
        let held = self.target_port_groups().hold();
        for (group, _) in states {
            if group.state() == AccessState::Transitioning {
                group.check(Access::Active)?;
            }
        }
        let mut is_changed = false;
        for (group, state) in states.iter().filter(|(group, state)| group.state() != *state) {
            group.alter(*state, Origin::Explicit);
            is_changed = true;
        }
        drop(held);
        if is_changed {
            let spared = Some((nexus, unit));
            self.tell_access(UnitAttention::AsymmetricAccessStateChanged, spared);
        }
        Ok(())
    }

    fn tell_access(&self, attention: UnitAttention, spared: Option<(NexusId, &Arc<LogicalUnit>)>) {
        for nexus in self.nexuses() {
            nexus.raise_where(attention, |unit| {
                !spared.is_some_and(|(id, spared)| id == nexus.id && Arc::ptr_eq(spared, unit))
            });
        }
    }
}
