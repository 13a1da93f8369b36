//! A SCSI target device: a name and its logical units, seen through I_T nexuses.

use crate::nexus::{InitiatorPort, Nexus, NexusHandle};
use crate::target_port_groups::TargetPortGroups;
use crate::{Array, LogicalUnit, Lun, TargetPort, atomic};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The logical units of a target device.
pub(crate) type Luns = BTreeMap<Lun, Arc<LogicalUnit>>;

/// What of a target one initiator is shown; all of it unless told otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LunView {
    /// Where the initiator finds which of the target's numbers, if not each under its own. What is
    /// not in it is not there for this initiator.
    pub numbers: Option<BTreeMap<Lun, Lun>>,
    /// It may not write.
    pub read_only: bool,
}

impl LunView {
    /// The target's number of what the initiator finds at `lun`, which may be nothing.
    pub fn number(&self, lun: Lun) -> Option<Lun> {
        match &self.numbers {
            Some(numbers) => numbers.get(&lun).copied(),
            None => Some(lun),
        }
    }

    /// The units as the initiator finds them.
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
    state: Mutex<State>,
}

struct State {
    luns: Arc<Luns>,
    nexuses: Vec<Weak<Nexus>>,
}

impl TargetDevice {
    /// A target with these units and one port, portal group 1, as a part of `array`.
    pub fn new(array: &Arc<Array>, name: String, luns: Luns) -> Arc<Self> {
        let port = TargetPort::of_portal_group(&name, 1);
        Self::with_ports(array, name, luns, vec![port])
    }

    /// The same with these ports, which have numbers of their own: one at least,
    /// [`crate::MAXIMUM_TARGET_PORTS`] at most.
    pub fn with_ports(
        array: &Arc<Array>,
        name: String,
        luns: Luns,
        ports: Vec<TargetPort>,
    ) -> Arc<Self> {
        luns.values().for_each(|unit| atomic::settle(unit, array.host()));
        let state = State { luns: Arc::new(luns), nexuses: Vec::new() };
        let device = Arc::new(Self {
            name,
            array: array.clone(),
            target_port_groups: TargetPortGroups::new(ports),
            state: Mutex::new(state),
        });
        array.register(&device);
        device
    }

    /// The array that it is a part of.
    pub fn array(&self) -> &Arc<Array> {
        &self.array
    }

    /// Its SCSI device name: the iSCSI name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn target_port_groups(&self) -> &TargetPortGroups {
        &self.target_port_groups
    }

    /// The nexuses at this moment.
    pub(crate) fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.state().nexuses.iter().filter_map(Weak::upgrade).collect()
    }

    /// The units at this moment.
    pub fn luns(&self) -> Arc<Luns> {
        self.state().luns.clone()
    }

    /// Nexuses that begin from here on are shown these units; what the others have stays until
    /// [`Self::set_luns`].
    pub fn withhold_from_new(&self, luns: Luns) {
        self.state().luns = Arc::new(luns);
    }

    /// Replaces the units. Units that stay keep their reservations; each nexus whose list has changed
    /// with it is told so.
    pub fn set_luns(&self, luns: Luns) {
        luns.values().for_each(|unit| atomic::settle(unit, self.array.host()));
        let mut state = self.state();
        let luns = Arc::new(luns);
        state.luns = luns.clone();
        state.nexuses.retain(|nexus| nexus.strong_count() > 0);
        for nexus in state.nexuses.iter().filter_map(Weak::upgrade) {
            if nexus.set_luns(&luns) {
                nexus.luns_changed();
            }
        }
    }

    /// Begins an I_T nexus to all units, through the port of this number; `None` if there is none. Its
    /// first command on each unit is told of it.
    pub fn open_nexus(
        self: &Arc<Self>,
        initiator_port: InitiatorPort,
        relative_target_port: u16,
    ) -> Option<NexusHandle> {
        self.open_nexus_showing(initiator_port, relative_target_port, LunView::default())
    }

    /// The same to what `view` shows.
    pub fn open_nexus_showing(
        self: &Arc<Self>,
        initiator_port: InitiatorPort,
        relative_target_port: u16,
        view: LunView,
    ) -> Option<NexusHandle> {
        let target_port = self.target_port_groups.find(relative_target_port)?;
        let mut state = self.state();
        let nexus = Arc::new(Nexus::new(self.clone(), initiator_port, target_port, view));
        nexus.set_luns(&state.luns);
        state.nexuses.retain(|nexus| nexus.strong_count() > 0);
        state.nexuses.push(Arc::downgrade(&nexus));
        drop(state);
        Some(NexusHandle::new(nexus))
    }

    /// Changes what a nexus, by its [`NexusHandle::id`], is shown. What it is carrying out on a unit that
    /// it is not shown any more goes on to its end, as what waits there does not; the initiator is told
    /// that the list has changed. Without effect where the nexus has ended.
    pub fn set_view(&self, nexus: u64, view: LunView) {
        let state = self.state();
        if let Some(nexus) =
            state.nexuses.iter().filter_map(Weak::upgrade).find(|other| other.id == nexus)
        {
            nexus.set_view(view, &state.luns);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for TargetDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetDevice").field("name", &self.name).finish_non_exhaustive()
    }
}
