//! The exports that one client sees: the volumes of the targets whose rules permit it.

use std::sync::Arc;

use sarsen_block::Characteristics;
use sarsen_proto::iscsi::target::RefusalReason;
use sarsen_proto::nbd::server::{Export, Exports, ListedExport, Refusal};
use sarsen_scsi::{AccessState, LogicalUnit, Lun, LunView, TargetDevice};
use sarsen_volume::Volume;
use tracing::warn;

use crate::events::{Occurrence, Subject};
use crate::fronts::Front;
use crate::fronts::nbd::memory::maximum_payload;
use crate::sessions::{Login, Origin};
use crate::targets::Target;

/// Number of characters of an unknown export's name that a report shows.
const NAME_SHOWN: usize = 64;

/// See the module.
pub(super) struct VisibleExports {
    front: Arc<Front>,
    pub(super) origin: Origin,
}

/// A target as a client of a portal group reaches it.
#[derive(Clone)]
pub(super) struct TargetPath {
    device: Arc<TargetDevice>,
    group: u16,
}

impl TargetPath {
    /// Returns the name of the target.
    pub(super) fn target(&self) -> &str {
        self.device.name()
    }

    /// Returns whether the target port group is active (SPC-4 5.15.2.4). The medium is accessible only then.
    pub(super) fn is_active(&self) -> bool {
        let state = self.device.access_state(self.group);
        matches!(state, Some(AccessState::Optimized | AccessState::NonOptimized))
    }
}

/// An export that the client may use.
pub(super) struct ChosenExport {
    pub(super) path: TargetPath,
    /// The unit's LUN within the target.
    pub(super) lun: Lun,
    pub(super) volume: Arc<Volume>,
    pub(super) view: LunView,
}

impl VisibleExports {
    pub(super) fn new(front: Arc<Front>, origin: Origin) -> Self {
        Self { front, origin }
    }

    /// Returns the login of the client. It has no name of its own: its address stands for it.
    pub(super) fn login(&self, target: Option<String>) -> Login {
        self.origin.login(format!("nbd:{}", self.origin.peer.ip()), target)
    }

    /// Returns the export with this name, if the client may use it. An empty name selects the only export that
    /// the client may use; if there are several, none.
    pub(super) fn choose(&self, name: &str) -> Option<ChosenExport> {
        if name.is_empty() {
            let mut exports = self.those(|_| true);
            let only = exports.next()?;
            return exports.next().is_none().then_some(only);
        }
        self.those(|volume| *volume.name() == *name).next()
    }

    /// Returns why the client may not use an export, and the target that has it. Without such a target, the name of the
    /// export stands for it.
    pub(super) fn refusal_of(&self, export: &str) -> (RefusalReason, String) {
        let group = self.origin.portal.group;
        let refused = self.front.targets.all().into_iter().find_map(|target| {
            let has_export = target.is_reached_through(group)
                && target.device.luns().values().any(|unit| *unit.volume().name() == *export);
            let name = has_export.then(|| target.device.name().to_owned())?;
            let login = self.login(Some(name.clone()));
            let reason = match self.front.access.authorize(&self.front.sessions, &login) {
                // The rules show other units, or the unit passes commands through to a device.
                Ok(_) => RefusalReason::NoSuchExport,
                // NBD has no accounts.
                Err(RefusalReason::AccountNotAllowed) => RefusalReason::ProofMissing,
                Err(reason) => reason,
            };
            Some((reason, name))
        });
        let unknown = || match export {
            "" => "the default export".to_owned(),
            name => name.chars().take(NAME_SHOWN).collect(),
        };
        refused.unwrap_or_else(|| (RefusalReason::NoSuchExport, unknown()))
    }

    /// Counts a refusal, and reports it unless the client has caused too many reports.
    pub(super) fn report_refusal(&self, target: String, reason: RefusalReason) {
        let peer = self.origin.peer;
        self.front.access.metrics.refused(reason);
        self.front.access.log_rate_limited(peer, || {
            warn!(%peer, target, "NBD session refused: {reason}");
            let subject = Subject::of(&self.login(Some(target)));
            self.front.access.events.tell(&Occurrence::LoginRefused { subject, reason });
        });
    }

    /// Returns the exports of these units.
    fn those(&self, is_meant: impl Fn(&Volume) -> bool) -> impl Iterator<Item = ChosenExport> {
        let group = self.origin.portal.group;
        let targets = self.front.targets.all().into_iter();
        let reached = targets.filter(move |target| target.is_reached_through(group));
        reached.flat_map(move |target| self.of_target(&target, &is_meant))
    }

    fn of_target(&self, target: &Target, is_meant: impl Fn(&Volume) -> bool) -> Vec<ChosenExport> {
        let name = target.device.name();
        let luns = target.device.luns();
        if !luns.values().any(|unit| is_meant(unit.volume())) {
            return Vec::new();
        }
        let login = self.login(Some(name.to_owned()));
        let authorized = self.front.access.authorize(&self.front.sessions, &login);
        let Ok(view) = authorized else { return Vec::new() };
        let is_shown = |lun: &Lun| {
            view.numbers.as_ref().is_none_or(|numbers| numbers.values().any(|own| own == lun))
        };
        // The commands of a pass-through unit go to a device, not to a store.
        let shown = luns.iter().filter(|(lun, unit)| {
            is_meant(unit.volume()) && is_shown(lun) && !unit.is_pass_through()
        });
        let export = |(&lun, unit): (&Lun, &Arc<LogicalUnit>)| ChosenExport {
            path: TargetPath { device: target.device.clone(), group: self.origin.portal.group },
            lun,
            volume: unit.volume().clone(),
            view: view.clone(),
        };
        shown.map(export).collect()
    }
}

/// Returns the preferred block size in bytes: the granularity of the store's optimal transfers if NBD can report it
/// ("Size constraints"), or else the physical block.
fn preferred_block(block: u32, characteristics: &Characteristics, maximum_payload: u32) -> u32 {
    let optimal = characteristics.optimal_transfer;
    let granularity = optimal.and_then(|optimal| block.checked_mul(optimal.granularity_blocks));
    let reported = granularity.filter(|bytes| bytes.is_power_of_two() && *bytes <= maximum_payload);
    reported.unwrap_or(block << characteristics.physical_block_exponent.min(8))
}

/// Returns the export of a volume, without a description and without dirty bitmaps.
pub(crate) fn export_of(volume: &Volume, read_only: bool, maximum_payload: u32) -> Export {
    let store = volume.store();
    let (geometry, characteristics) = (store.geometry(), store.characteristics());
    let block = geometry.block_size.bytes() as u32;
    Export {
        read_only: read_only || characteristics.read_only,
        minimum_block: block,
        preferred_block: preferred_block(block, &characteristics, maximum_payload),
        can_trim: characteristics.unmap.is_some(),
        can_fast_zero: characteristics.unmap.is_some(),
        // A flush covers the writes of all clients.
        can_multi_conn: true,
        can_cache: true,
        reports_allocation: characteristics.unmap.is_some(),
        ..Export::new(&volume.name(), geometry.byte_count())
    }
}

impl Exports for VisibleExports {
    fn find(&mut self, name: &str) -> Result<Export, Refusal> {
        let Some(ChosenExport { path, volume, view, .. }) = self.choose(name) else {
            let (reason, target) = self.refusal_of(name);
            self.report_refusal(target, reason);
            return Err(Refusal::Unknown);
        };
        let rejected = self.front.rejects(path.target()).map(|refusal| refusal.reason);
        let inactive = || (!path.is_active()).then_some(RefusalReason::NotInService);
        if let Some(reason) = rejected.or_else(inactive) {
            self.report_refusal(path.target().to_owned(), reason);
            return Err(Refusal::Shutdown);
        }
        let maximum = maximum_payload(&self.front.settings().budget);
        Ok(Export {
            description: path.target().to_owned(),
            dirty_bitmaps: volume.history().map_or_else(Vec::new, |history| history.states()),
            ..export_of(&volume, view.read_only, maximum)
        })
    }

    fn list(&mut self) -> Vec<ListedExport> {
        let listed = |ChosenExport { path, volume, .. }: ChosenExport| ListedExport {
            name: volume.name().to_string(),
            description: path.target().to_owned(),
        };
        self.those(|_| true).map(listed).collect()
    }
}

#[cfg(test)]
mod tests {
    use sarsen_block::{BlockSize, MemoryStore, OptimalTransfer, Store as _};

    use super::*;

    #[test]
    fn preferred_block_is_the_granularity_if_nbd_can_report_it() {
        for (granularity, preferred) in [
            (None, 4096),
            (Some(128), 64 << 10),
            (Some(2048), 1 << 20),
            (Some(4096), 4096),
            (Some(129), 4096),
            (Some(1 << 23), 4096),
        ] {
            let with = |granularity_blocks| OptimalTransfer {
                granularity_blocks,
                length_blocks: granularity_blocks,
            };
            let characteristics = Characteristics {
                physical_block_exponent: 3,
                optimal_transfer: granularity.map(with),
                ..MemoryStore::new(BlockSize::B512, 8).characteristics()
            };
            let found = preferred_block(512, &characteristics, 1 << 20);
            assert_eq!(found, preferred, "{granularity:?}");
        }
    }
}
