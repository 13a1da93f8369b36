//! An I_T nexus: the units that one initiator sees, and its access to them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use sarsen_volume::reservations::{NexusName, PermissionCell};

use super::{LunView, Luns, TargetDevice};
use crate::attention::{Attentions, Listener};
use crate::flags::Flags;
use crate::nexus_id::NexusId;
use crate::refusal::Refusal;
use crate::reservations::needed;
use crate::target_port_groups::TargetPortGroup;
use crate::task_set::NexusTasks;
use crate::{AllowedStates, LogicalUnit, Lun, Sense, UnitAttention, phase};

/// The initiator side of a nexus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InitiatorPort {
    /// The initiator port name, such as `iqn.1993-08.org.debian:01:abc,i,0x00023d000001`.
    pub name: String,
    /// The authenticated identity of the initiator, as the transport names it. The name alone is not authenticated.
    pub proven: Option<String>,
}

impl InitiatorPort {
    /// Creates the port of an initiator without authentication.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), proven: None }
    }
}

/// An initiator, without the identifiers of its sessions. Two nexuses belong to the same initiator if both its name and
/// its authenticated identity are the same in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InitiatorDevice {
    name: String,
    proven: Option<String>,
}

/// A logical unit as one nexus sees it.
#[derive(Clone)]
pub(crate) struct AttachedUnit {
    pub(crate) unit: Arc<LogicalUnit>,
    pub(crate) attentions: Arc<Attentions>,
    /// The access that reservations permit to this initiator.
    pub(crate) permission: Arc<PermissionCell>,
    pub(crate) tally: Arc<NexusTasks>,
    /// True if this initiator may not write, even if other initiators may.
    pub(crate) read_only: bool,
}

impl AttachedUnit {
    /// Checks whether this initiator may execute commands with these flags.
    pub(crate) fn check_writable(&self, flags: Flags) -> Result<(), Sense> {
        if self.read_only && flags.contains(Flags::WRITES) {
            Err(Sense::write_protected())
        } else {
            Ok(())
        }
    }
}

pub(crate) type Attachments = BTreeMap<Lun, AttachedUnit>;

/// The state that all handles of one nexus share. The nexus ends with its last handle.
pub(crate) struct Nexus {
    pub(crate) id: NexusId,
    pub(crate) device: Arc<TargetDevice>,
    /// The name by which reservations identify it.
    pub(crate) name: NexusName,
    pub(crate) relative_target_port: u16,
    pub(crate) target_port: Arc<TargetPortGroup>,
    pub(crate) initiator_port: InitiatorPort,
    /// Counts the replacements of `attachments`.
    generation: AtomicU64,
    attachments: Mutex<Arc<Attachments>>,
    /// Changes only together with `attachments`.
    view: Mutex<LunView>,
    listener: OnceLock<Listener>,
}

impl Nexus {
    pub(crate) fn new(
        device: Arc<TargetDevice>,
        initiator_port: InitiatorPort,
        target_port: Arc<TargetPortGroup>,
        view: LunView,
    ) -> Self {
        let initiator = initiator_port.name.as_str().into();
        Self {
            id: sarsen_volume::new_client(),
            device,
            name: NexusName { initiator_port: initiator, target_port: target_port.number },
            relative_target_port: target_port.number,
            target_port,
            initiator_port,
            generation: AtomicU64::new(0),
            attachments: Mutex::default(),
            view: Mutex::new(view),
            listener: OnceLock::new(),
        }
    }

    /// Returns the initiator of the nexus.
    pub(crate) fn initiator(&self) -> InitiatorDevice {
        let InitiatorPort { name, proven } = &self.initiator_port;
        let name = name.rsplit_once(",i,").map_or(name.as_str(), |(initiator, _)| initiator);
        InitiatorDevice { name: name.into(), proven: proven.clone() }
    }

    /// Returns whether this initiator sees the whole target and may write it.
    pub(crate) fn has_whole_target(&self) -> bool {
        *self.view() == LunView::default()
    }

    fn view(&self) -> MutexGuard<'_, LunView> {
        self.view.lock()
    }

    /// Changes the shown units of `luns`. If the list changes, the initiator gets a unit attention.
    pub(crate) fn set_view(&self, view: LunView, luns: &Luns) {
        let is_changed = std::mem::replace(&mut *self.view(), view.clone()) != view;
        if is_changed {
            self.set_luns(luns);
            self.luns_changed();
        }
    }

    /// Notifies the initiator of a changed list of units.
    pub(crate) fn luns_changed(&self) {
        let attention = UnitAttention::ReportedLunsDataHasChanged;
        self.raise(attention);
        if let Some(listener) = self.listener.get() {
            // SPC-4 7.8: the condition concerns the target, which LUN 0 represents.
            listener(Lun(0), attention);
        }
    }

    pub(crate) fn listen(&self, listener: Listener) {
        let listener = self.listener.get_or_init(|| listener);
        for (&lun, AttachedUnit { attentions, .. }) in self.attachments().iter() {
            attentions.listen(lun, listener);
        }
    }

    /// Returns a number that changes with the attached units.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the units that are attached now.
    pub(crate) fn attached(&self) -> Arc<Attachments> {
        self.attachments().clone()
    }

    fn attachments(&self) -> MutexGuard<'_, Arc<Attachments>> {
        self.attachments.lock()
    }

    /// Attaches to the units of the target's `luns` that are new in this initiator's view, and detaches from removed
    /// ones. Returns whether any LUN now has a different unit.
    pub(crate) fn set_luns(&self, luns: &Luns) -> bool {
        let view = self.view();
        let luns = view.of(luns);
        let read_only = view.read_only;
        let mut attachments = self.attachments();
        let old = std::mem::take(&mut *attachments);
        let kept = |unit: &Arc<LogicalUnit>| {
            let old = old.values().find(|attachment| Arc::ptr_eq(&attachment.unit, unit))?;
            Some(AttachedUnit { read_only, ..old.clone() })
        };
        let attach = |unit: &Arc<LogicalUnit>| {
            let (attentions, permission) = unit.attach(self.id, &self.name);
            let tally = unit.tasks().join(self.id);
            AttachedUnit { unit: unit.clone(), attentions, permission, tally, read_only }
        };
        *attachments = Arc::new(
            luns.iter()
                .map(|(&lun, unit)| (lun, kept(unit).unwrap_or_else(|| attach(unit))))
                .collect(),
        );
        if let Some(listener) = self.listener.get() {
            for (&lun, AttachedUnit { attentions, .. }) in attachments.iter() {
                attentions.listen(lun, listener);
            }
        }
        for AttachedUnit { unit, .. } in old.values() {
            if !luns.values().any(|other| Arc::ptr_eq(unit, other)) {
                unit.detach(self.id);
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
        let stays = |(lun, unit): (&Lun, &Arc<LogicalUnit>)| {
            old.get(lun).is_some_and(|attachment| Arc::ptr_eq(&attachment.unit, unit))
        };
        old.len() != luns.len() || !luns.iter().all(stays)
    }

    /// Returns each shown unit once.
    pub(crate) fn units(&self) -> Vec<Arc<LogicalUnit>> {
        let mut units: Vec<Arc<LogicalUnit>> = Vec::new();
        for AttachedUnit { unit, .. } in self.attached().values() {
            if !units.iter().any(|other| Arc::ptr_eq(other, unit)) {
                units.push(unit.clone());
            }
        }
        units
    }

    pub(crate) fn raise(&self, attention: UnitAttention) {
        self.raise_where(attention, |_| true);
    }

    /// Raises the condition on the units for which `is_reported` returns true.
    pub(crate) fn raise_where(
        &self,
        attention: UnitAttention,
        is_reported: impl Fn(&Arc<LogicalUnit>) -> bool,
    ) {
        for AttachedUnit { unit, attentions, .. } in self.attachments().values() {
            if is_reported(unit) {
                attentions.raise(attention);
            }
        }
    }

    pub(crate) fn clear(&self, attention: UnitAttention) {
        for attachment in self.attachments().values() {
            attachment.attentions.clear(attention);
        }
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        for attachment in self.attachments().values() {
            attachment.unit.detach(self.id);
        }
    }
}

/// Checks whether a nexus may access a unit now, with any command. Copies call it for each unit that they read or
/// write.
pub(crate) fn admit_access(
    flags: Flags,
    access: AllowedStates,
    attachment: &AttachedUnit,
    nexus: &Nexus,
) -> Result<(), Refusal> {
    let unit = &attachment.unit;
    if !flags.contains(needed(unit.volume().permission_of(nexus.id))) {
        return Err(Refusal::ReservationConflict);
    }
    nexus.target_port.check(access)?;
    attachment.check_writable(flags)?;
    admit_state(flags, unit)
}

pub(crate) fn admit_state(flags: Flags, unit: &LogicalUnit) -> Result<(), Refusal> {
    phase::check(unit.medium_phase(), flags)?;
    if flags.contains(Flags::NEEDS_MEDIUM) {
        unit.medium().check()?;
        unit.check_store()?;
        unit.tasks().unfinished().check()?;
    }
    if flags.contains(Flags::WRITES) {
        unit.check_writable()?;
    }
    Ok(())
}
