//! What a study measures, without measuring it: the size of its plans, and the labels of its cells.

use std::time::Duration;

use super::{Choices, Plan, Study};
use crate::record::{Labels, Scale};

/// What a study measures by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// The size of a quick run.
    pub quick: Extent,
    /// The size of a full run.
    pub full: Extent,
    /// The dimensions of their cells, in the order of the plans.
    pub dimensions: Vec<Dimension>,
}

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of cells.
    pub cells: usize,
    /// Number of measurements: several of each cell.
    pub measurements: usize,
    /// The approximate time of all measurements, without preparations and limits.
    pub time: Duration,
}

/// A dimension of cells, with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimension {
    /// Its name.
    pub name: String,
    /// The values of a quick run.
    pub values: Vec<String>,
    /// The further values of a full run.
    pub only_full: Vec<String>,
}

/// Returns the outline of a study with its own targets.
pub fn outline(study: &dyn Study) -> Outline {
    let [quick, full] =
        [Scale::Quick, Scale::Full].map(|scale| study.plan(&Choices::of_study(scale)));
    let mut dimensions: Vec<Dimension> = Vec::new();
    for (plan, is_quick) in [(&quick, true), (&full, false)] {
        for (name, value) in plan.cells().flat_map(Labels::iter) {
            let found = dimensions.iter().position(|dimension| dimension.name == name);
            let index = found.unwrap_or_else(|| {
                let name = name.to_owned();
                dimensions.push(Dimension { name, values: Vec::new(), only_full: Vec::new() });
                dimensions.len() - 1
            });
            let Dimension { values, only_full, .. } = &mut dimensions[index];
            if !values.iter().chain(&*only_full).any(|known| known == value) {
                let list = if is_quick { values } else { only_full };
                list.push(value.to_owned());
            }
        }
    }
    Outline { quick: extent(&quick), full: extent(&full), dimensions }
}

fn extent(plan: &Plan) -> Extent {
    Extent { cells: plan.cells().count(), measurements: plan.measurements(), time: plan.time() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::ALL;

    #[test]
    fn every_study_has_cells_of_either_scale() {
        for study in ALL {
            let Outline { quick, full, dimensions } = outline(*study);
            assert!(quick.cells > 0 && quick.cells <= full.cells, "{quick:?} {full:?}");
            assert!(quick.time < full.time, "{quick:?} {full:?}");
            for Dimension { name, values, only_full } in dimensions {
                assert!(!values.is_empty() || !only_full.is_empty(), "{name}");
            }
        }
    }

    #[test]
    fn what_only_a_full_run_has_is_apart() {
        let study = crate::study::find("aravindan").unwrap();
        let dimensions = outline(study).dimensions;
        let target = dimensions.iter().find(|dimension| dimension.name == "target").unwrap();
        assert!(target.values.contains(&"sarsen".to_owned()), "{target:?}");
        assert!(target.only_full.contains(&"lio".to_owned()), "{target:?}");
        let migration = dimensions.iter().find(|dimension| dimension.name == "migration").unwrap();
        assert!(migration.values.is_empty(), "{migration:?}");
    }
}
