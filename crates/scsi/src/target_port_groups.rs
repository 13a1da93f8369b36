//! Asymmetric logical unit access (SPC-4 5.16): the access states of a target device's units through each of its target
//! ports, and their changes.
//!
//! Each port is a target port group of its own, and both have the same number. In iSCSI it is the tag of a portal
//! group, which is the only asymmetry of that transport. All units of a target device share the states. A state is not
//! saved: a restart of the program resets the changes of SET TARGET PORT GROUPS.

use crate::nexus_id::NexusId;
use crate::{AdditionalSense, LogicalUnit, Sense, SenseKey, TargetDevice, UnitAttention};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::{Mutex, MutexGuard};
use sarsen_wire::scsi::inquiry;

/// The maximum number of ports of a target device. This number fits in the SCSI Ports page with the longest names.
pub const MAXIMUM_TARGET_PORTS: usize = 128;

/// ASYMMETRIC ACCESS STATE (SPC-4 6.37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessState {
    /// Active/optimized.
    Optimized = 0x0,
    /// Active/non-optimized: all commands are executed, with lower performance.
    NonOptimized = 0x1,
    /// Standby: the unit can be inspected and managed; its medium cannot be accessed.
    Standby = 0x2,
    /// Unavailable: the unit reports its identity, and its access state can be changed.
    Unavailable = 0x3,
    /// Offline.
    Offline = 0xe,
    /// Transition from one state to another.
    Transitioning = 0xf,
}

/// The access states beyond the active ones in which a command is executed (SPC-4 5.16.2.4). Each variant includes the
/// previous ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AllowedStates {
    /// Only the active states.
    Active,
    /// Also standby.
    Standby,
    /// Also unavailable and offline.
    Unavailable,
    /// Also transitions.
    Transition,
}

impl AccessState {
    /// Returns the state of this code; `None` for reserved or unsupported codes.
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

    /// Returns the access that a command needs to be executed in this state.
    const fn wanted(self) -> AllowedStates {
        match self {
            Self::Optimized | Self::NonOptimized => AllowedStates::Active,
            Self::Standby => AllowedStates::Standby,
            Self::Unavailable | Self::Offline => AllowedStates::Unavailable,
            Self::Transitioning => AllowedStates::Transition,
        }
    }

    /// Returns why the unit is not ready in this state; `None` in the active ones.
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

/// The method by which access states change: the TPGS field of INQUIRY data (SPC-4 6.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Alua {
    /// The server changes them, and initiators do by SET TARGET PORT GROUPS.
    #[default]
    Both = inquiry::TPGS_BOTH,
    /// Only the server changes them: SET TARGET PORT GROUPS is not supported.
    Implicit = inquiry::TPGS_IMPLICIT,
}

/// A target port as its transport names it, and the initial state of its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPort {
    /// RELATIVE TARGET PORT IDENTIFIER, minimum 1, and the number of its target port group.
    pub relative_identifier: u16,
    /// The target port name.
    pub name: String,
    /// The access state of its group.
    pub access_state: AccessState,
    /// True if the group is preferred (PREF).
    pub is_preferred: bool,
}

impl TargetPort {
    /// Returns the port of an iSCSI target for its portal group with this tag (RFC 7143 §4.4.2).
    pub fn of_portal_group(target: &str, tag: u16) -> Self {
        Self {
            relative_identifier: tag,
            name: format!("{target},t,{tag:#06x}"),
            access_state: AccessState::Optimized,
            is_preferred: false,
        }
    }
}

/// STATUS CODE: the cause of a group's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Origin {
    /// The initial state.
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
    /// Written only while [`TargetPortGroups::changing`] is held.
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

    /// Returns STATUS CODE.
    pub(crate) fn status_code(&self) -> u8 {
        self.origin.load(Ordering::Relaxed)
    }

    /// Rejects a command that is not executed in this state. Each command costs one load.
    pub(crate) fn check(&self, access: AllowedStates) -> Result<(), Sense> {
        let state = self.state();
        match state.sense() {
            Some(sense) if access < state.wanted() => Err(sense),
            _ => Ok(()),
        }
    }

    /// Returns the sense data of TEST UNIT READY in this state, if it is not ready.
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        self.state().sense()
    }

    /// Returns whether INQUIRY reports that the unit is not connected through this port (SPC-4 5.16.2.4.5).
    pub(crate) fn is_cut_off(&self) -> bool {
        matches!(self.state(), AccessState::Unavailable | AccessState::Offline)
    }

    fn alter(&self, state: AccessState, origin: Origin) {
        self.state.store(state as u8, Ordering::Relaxed);
        self.origin.store(origin as u8, Ordering::Relaxed);
    }
}

/// The groups of a target device, ordered by number.
pub(crate) struct TargetPortGroups {
    groups: Mutex<Groups>,
    is_explicit: AtomicBool,
    /// Held while states are read together or changed.
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

    /// Returns the ports ordered by number. Each number must be unique.
    fn ordered(mut ports: Vec<TargetPort>) -> Vec<TargetPort> {
        ports.sort_by_key(|port| port.relative_identifier);
        assert!(
            ports.windows(2).all(|two| two[0].relative_identifier < two[1].relative_identifier),
            "each port of a target device has a number of its own"
        );
        assert!((1..=MAXIMUM_TARGET_PORTS).contains(&ports.len()), "some ports, and not too many");
        ports
    }

    /// Replaces the groups. Existing groups keep their states. Returns whether any was added or removed, and whether
    /// the preference changed.
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
        *self.groups.lock() = groups;
        (!is_same, is_preferred_changed)
    }

    /// Returns the current groups, ordered by number.
    pub(crate) fn all(&self) -> Groups {
        self.groups.lock().clone()
    }

    pub(crate) fn find(&self, number: u16) -> Option<Arc<TargetPortGroup>> {
        self.all().iter().find(|group| group.number == number).cloned()
    }

    /// Returns the method by which the states change.
    pub(crate) fn alua(&self) -> Alua {
        if self.is_explicit.load(Ordering::Relaxed) { Alua::Both } else { Alua::Implicit }
    }

    /// Prevents changes until the guard is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }
}

/// The reason why an access state was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// There is no such group.
    #[error("target {target} has no target port group {group}")]
    NoGroup {
        /// The target device.
        target: String,
        /// The requested number.
        group: u16,
    },
    /// The group is in transition to another state.
    #[error("target port group {group} of {target} is in transition; try again after its end")]
    InTransition {
        /// The target device.
        target: String,
        /// The group.
        group: u16,
    },
    /// Transitioning cannot be set as a state.
    #[error("transitioning cannot be set; set the state that the transition ends with")]
    Transitioning,
}

/// An implicit transition in progress. Dropping it makes it fail.
#[must_use]
pub struct Transition {
    device: Arc<TargetDevice>,
    group: Arc<TargetPortGroup>,
    from: (AccessState, u8),
    is_over: bool,
}

impl Transition {
    /// Ends the transition in this state. Every initiator gets a unit attention.
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

    /// Restores the previous state. Every initiator gets a unit attention for the failure (SPC-4 5.16.2.7).
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
    /// Changes the state of a group implicitly. If it changes, every initiator gets a unit attention. Admitted commands
    /// run to their end.
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

    /// Sets the ports of the target device. Existing ports keep their access states. Every initiator gets a unit
    /// attention for the changes.
    pub fn set_ports(&self, ports: Vec<TargetPort>) {
        let held = self.target_port_groups().hold();
        let (are_others, is_preferred_changed) = self.target_port_groups().replace(ports);
        drop(held);
        if are_others {
            // SPC-4 7.8.14: the SCSI Ports page lists the ports.
            self.tell_access(UnitAttention::InquiryDataHasChanged, None);
        }
        if are_others || is_preferred_changed {
            self.tell_access(UnitAttention::AsymmetricAccessStateChanged, None);
        }
    }

    /// Sets the method by which the access states change. If it changes, every initiator gets a unit attention.
    pub fn set_alua(&self, alua: Alua) {
        let is_explicit = alua == Alua::Both;
        let was = self.target_port_groups().is_explicit.swap(is_explicit, Ordering::Relaxed);
        if was != is_explicit {
            self.tell_access(UnitAttention::InquiryDataHasChanged, None);
        }
    }

    /// Begins an implicit transition of a group. Until its end, only few commands are executed through its port.
    pub fn begin_transition(self: &Arc<Self>, group: u16) -> Result<Transition, AccessError> {
        let _held = self.target_port_groups().hold();
        let group = self.settled(group)?;
        let from = (group.state(), group.status_code());
        group.alter(AccessState::Transitioning, Origin::Implicit);
        Ok(Transition { device: self.clone(), group, from, is_over: false })
    }

    /// Returns the state of a group, if it exists.
    pub fn access_state(&self, group: u16) -> Option<AccessState> {
        self.target_port_groups().find(group).map(|group| group.state())
    }

    /// Returns a group, unless it is in transition.
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

    /// Executes SET TARGET PORT GROUPS by `nexus` on `unit`. The caller has checked all states. All groups change, or
    /// none. The other nexuses get a unit attention (SPC-4 5.16.2.8). `nexus` gets it on its other units.
    pub(crate) fn set_explicitly(
        &self,
        states: &[(Arc<TargetPortGroup>, AccessState)],
        nexus: NexusId,
        unit: &Arc<LogicalUnit>,
    ) -> Result<(), Sense> {
        let held = self.target_port_groups().hold();
        for (group, _) in states {
            if group.state() == AccessState::Transitioning {
                group.check(AllowedStates::Active)?;
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
