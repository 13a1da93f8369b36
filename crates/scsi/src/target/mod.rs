//! A SCSI target device: a name and its logical units, which initiators access through I_T nexuses.

mod nexus;

pub use self::nexus::InitiatorPort;
pub(crate) use self::nexus::{
    AttachedUnit, Attachments, InitiatorDevice, Nexus, admit_access, admit_state,
};
use crate::target_port_groups::TargetPortGroups;
use crate::{Array, LogicalUnit, Lun, TargetPort, atomic};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

/// The logical units of a target device.
pub(crate) type Luns = BTreeMap<Lun, Arc<LogicalUnit>>;

/// The view that one initiator has of a target. The default is the whole target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LunView {
    /// The target's LUN for each of the initiator's LUNs; `None` means that they are equal. Other units do not exist
    /// for this initiator.
    pub numbers: Option<BTreeMap<Lun, Lun>>,
    /// True if the initiator may not write.
    pub read_only: bool,
}

impl LunView {
    /// Returns the target's LUN for the initiator's `lun`. The target may have no unit there.
    pub fn number(&self, lun: Lun) -> Option<Lun> {
        match &self.numbers {
            Some(numbers) => numbers.get(&lun).copied(),
            None => Some(lun),
        }
    }

    /// Returns the units at the initiator's LUNs.
    pub(crate) fn of(&self, luns: &Luns) -> Luns {
        let Some(numbers) = &self.numbers else { return luns.clone() };
        let unit = |(&shown, own): (&Lun, &Lun)| Some((shown, luns.get(own)?.clone()));
        numbers.iter().filter_map(unit).collect()
    }
}

/// A target device (SAM-5 4.5.18).
pub struct TargetDevice {
    name: String,
    array: Arc<Array>,
    target_port_groups: TargetPortGroups,
    state: Mutex<TargetDeviceState>,
}

struct TargetDeviceState {
    luns: Arc<Luns>,
    nexuses: Vec<Weak<Nexus>>,
}

impl TargetDevice {
    /// Creates a target in `array` with these units and one port, portal group 1.
    pub fn new(array: &Arc<Array>, name: String, luns: Luns) -> Arc<Self> {
        let port = TargetPort::of_portal_group(&name, 1);
        Self::with_ports(array, name, luns, vec![port])
    }

    /// Creates a target with these ports, whose numbers must be unique. The minimum is one port, the maximum
    /// [`crate::MAXIMUM_TARGET_PORTS`].
    pub fn with_ports(
        array: &Arc<Array>,
        name: String,
        luns: Luns,
        ports: Vec<TargetPort>,
    ) -> Arc<Self> {
        luns.values().for_each(|unit| atomic::finish_interrupted(unit, array.host()));
        let state = TargetDeviceState { luns: Arc::new(luns), nexuses: Vec::new() };
        let device = Arc::new(Self {
            name,
            array: array.clone(),
            target_port_groups: TargetPortGroups::new(ports),
            state: Mutex::new(state),
        });
        array.register(&device);
        device
    }

    /// Returns the array of the target.
    pub fn array(&self) -> &Arc<Array> {
        &self.array
    }

    /// Returns the SCSI device name, which is the iSCSI name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn target_port_groups(&self) -> &TargetPortGroups {
        &self.target_port_groups
    }

    /// Returns the current nexuses.
    pub(crate) fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.state().nexuses.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the current units.
    pub fn luns(&self) -> Arc<Luns> {
        self.state().luns.clone()
    }

    /// Shows these units to new nexuses. Existing nexuses keep their units until [`Self::set_luns`].
    pub fn set_luns_for_new(&self, luns: Luns) {
        self.state().luns = Arc::new(luns);
    }

    /// Replaces the units. Units that stay keep their reservations. Each nexus whose list changes gets a unit
    /// attention.
    pub fn set_luns(&self, luns: Luns) {
        self.set_luns_except(luns, |_| false);
    }

    /// Replaces the units as [`Self::set_luns`] does, except for nexuses that keep theirs, by
    /// [`crate::NexusHandle::id`].
    pub fn set_luns_except(&self, luns: Luns, keeps: impl Fn(u64) -> bool) {
        luns.values().for_each(|unit| atomic::finish_interrupted(unit, self.array.host()));
        let mut state = self.state();
        let luns = Arc::new(luns);
        state.luns = luns.clone();
        state.nexuses.retain(|nexus| nexus.strong_count() > 0);
        for nexus in state.nexuses.iter().filter_map(Weak::upgrade) {
            if !keeps(nexus.id) && nexus.set_luns(&luns) {
                nexus.luns_changed();
            }
        }
    }

    /// Adds a nexus through the port with this number; `None` if there is none.
    pub(crate) fn add_nexus(
        self: &Arc<Self>,
        initiator_port: InitiatorPort,
        relative_target_port: u16,
        view: LunView,
    ) -> Option<Arc<Nexus>> {
        let target_port = self.target_port_groups.find(relative_target_port)?;
        let mut state = self.state();
        let nexus = Arc::new(Nexus::new(self.clone(), initiator_port, target_port, view));
        nexus.set_luns(&state.luns);
        state.nexuses.retain(|nexus| nexus.strong_count() > 0);
        state.nexuses.push(Arc::downgrade(&nexus));
        Some(nexus)
    }

    /// Changes the view of a nexus, by its [`crate::NexusHandle::id`]. On units that are no longer shown, executing commands
    /// run to their end, but queued ones do not begin. The initiator gets a unit attention if its list changes. The
    /// call has no effect if the nexus has ended.
    pub fn set_view(&self, nexus: u64, view: LunView) {
        let state = self.state();
        if let Some(nexus) =
            state.nexuses.iter().filter_map(Weak::upgrade).find(|other| other.id == nexus)
        {
            nexus.set_view(view, &state.luns);
        }
    }

    fn state(&self) -> MutexGuard<'_, TargetDeviceState> {
        self.state.lock()
    }
}

impl std::fmt::Debug for TargetDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetDevice").field("name", &self.name).finish_non_exhaustive()
    }
}
