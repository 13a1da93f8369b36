//! The units that a connection uses, by LUN, for the limits and the statistics of its commands.

use std::collections::HashMap;

use sarsen_scsi::{DeviceType, Lun, NexusHandle};

use crate::fronts::observer::{NO_VOLUME, Observer, VolumeIndex};

/// A unit that a LUN addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsedUnit {
    pub(super) volume: VolumeIndex,
    pub(super) device_type: DeviceType,
}

/// A unit that does not exist.
const NO_UNIT: UsedUnit = UsedUnit { volume: NO_VOLUME, device_type: DeviceType::Disk };

/// The units by LUN, for one generation of the list of units.
#[derive(Default)]
pub(super) struct UsedUnits {
    found: HashMap<Lun, UsedUnit>,
    generation: u64,
    /// The last LUN that was looked up.
    latest: Option<(Lun, UsedUnit)>,
}

impl UsedUnits {
    /// Returns the unit of a LUN.
    #[inline]
    pub(super) fn find(
        &mut self,
        nexus: &mut NexusHandle,
        lun: Option<Lun>,
        observer: &mut Observer,
    ) -> UsedUnit {
        let generation = nexus.generation();
        match self.latest(generation, lun) {
            Some(unit) => unit,
            None => self.look_up(generation, lun, |lun| {
                nexus.logical_unit(lun).map_or(NO_UNIT, |unit| UsedUnit {
                    volume: observer.volume_index(&unit.volume().name()),
                    device_type: unit.device_type(),
                })
            }),
        }
    }

    #[inline]
    fn latest(&self, generation: u64, lun: Option<Lun>) -> Option<UsedUnit> {
        match self.latest {
            Some((latest, unit)) if lun == Some(latest) && self.generation == generation => {
                Some(unit)
            }
            _ => None,
        }
    }

    #[cold]
    fn look_up(
        &mut self,
        generation: u64,
        lun: Option<Lun>,
        find: impl FnOnce(Lun) -> UsedUnit,
    ) -> UsedUnit {
        if self.generation != generation {
            *self = Self { generation, ..Self::default() };
        }
        let Some(lun) = lun else { return NO_UNIT };
        let unit = *self.found.entry(lun).or_insert_with(|| find(lun));
        self.latest = Some((lun, unit));
        unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_unit_of_lun_is_forgotten_after_change() {
        let unit = |volume| UsedUnit { volume, ..NO_UNIT };
        let mut units = UsedUnits::default();
        assert_eq!(units.look_up(1, Some(Lun(0)), |_| unit(7)), unit(7));
        assert_eq!(units.latest(1, Some(Lun(0))), Some(unit(7)));
        assert_eq!(units.latest(1, Some(Lun(1))), None);
        // The first command after the change is for no unit.
        assert_eq!(units.look_up(2, None, |_| unit(8)), NO_UNIT);
        assert_eq!(units.latest(2, Some(Lun(0))), None);
        assert_eq!(units.look_up(2, Some(Lun(0)), |_| unit(9)), unit(9));
    }
}
