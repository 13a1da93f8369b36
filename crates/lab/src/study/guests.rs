//! Measurements in guests: a storage server and its clients, which have what the lab cannot use or create on this machine.
//!
//! Server and clients are guests of the same kind with equal disks. Their figures can be compared with each other, and not
//! with those of programs that run on this machine itself.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::disturbances::Disturbances;
use crate::guest::{self, Group, GuestError, GuestSpec, Recipe, SERVER};
use crate::record::{Labels, Outcome};
use crate::target_under_test::{TargetUnderTestError, sarsen};

/// What servers and clients contain.
const RECIPE: Recipe = Recipe {
    name: "studies",
    packages: &[
        "bonnie++",
        "drbd-utils",
        "e2fsprogs",
        "nfs-kernel-server",
        "open-iscsi",
        "tgt",
        "vblade",
    ],
    modules: &[
        "aoe",
        "bridge",
        "drbd",
        "ext4",
        "iscsi_target_mod",
        "iscsi_tcp",
        "nfsd",
        "nfsv4",
        "sd_mod",
        "target_core_iblock",
    ],
};
/// The files of a guest are in its memory, and may use half of it.
const MEMORY_MIB: u32 = 768;

/// The measurements in guests of a study.
#[derive(Debug)]
pub struct GuestPlan {
    /// Size of each disk of a guest.
    pub disk_bytes: u64,
    /// The commands that the measurements execute in guests, for the record of a run.
    pub commands: Vec<String>,
    /// The measurements, in their order within a repetition.
    pub points: Vec<GuestPoint>,
}

impl GuestPlan {
    /// Returns the number of clients that the measurements need.
    fn clients(&self) -> usize {
        self.points.iter().map(|point| point.clients).max().unwrap_or_default()
    }
}

/// A measurement in guests, whose result is a sample of each of several cells.
pub struct GuestPoint {
    /// The labels that select it, which all its cells have.
    pub labels: Labels,
    /// The labels of its cells.
    pub cells: Vec<Labels>,
    /// Number of clients.
    pub clients: usize,
    /// Approximate time of one measurement.
    pub time: Duration,
    /// The measurement.
    pub measurement: GuestMeasurement,
}

/// Returns the outcomes of the cells. It blocks the calling thread until it ends.
pub type GuestMeasurement =
    Box<dyn Fn(&Group) -> Result<Vec<(Labels, Outcome)>, GuestError> + Send + Sync>;

/// The guests of a run.
#[derive(Debug)]
pub(super) struct Guests<'a> {
    plan: &'a GuestPlan,
    /// The folder that keeps what guests boot from.
    cache: &'a Path,
    /// The folder for their disks.
    folder: &'a Path,
    booted: Option<Group>,
    /// Why none can be booted.
    refused: Option<TargetUnderTestError>,
}

impl<'a> Guests<'a> {
    pub(super) fn new(plan: &'a GuestPlan, cache: &'a Path, folder: &'a Path) -> Self {
        Self { plan, cache, folder, booted: None, refused: None }
    }

    /// Measures a point. The guests are booted at the first one, and again after a failure, whose remains could affect the
    /// next one.
    pub(super) fn measure(&mut self, point: &GuestPoint) -> Vec<(Labels, Outcome)> {
        let of_all = |outcome: Outcome| vec![(point.labels.clone(), outcome)];
        if let Some(reason) = &self.refused {
            return of_all(reason.clone().into());
        }
        let group = match self.booted.take().map_or_else(|| self.boot(), Ok) {
            Ok(group) => group,
            Err(reason) => {
                self.refused = Some(reason.clone());
                return of_all(reason.into());
            }
        };
        let disturbances = Disturbances::watch();
        match (point.measurement)(&group) {
            Ok(mut outcomes) => {
                self.booted = Some(group);
                for (_, outcome) in &mut outcomes {
                    if let Outcome::Measured(measures) = outcome {
                        measures.figures.extend(disturbances.figures());
                    }
                }
                outcomes
            }
            Err(error) => of_all(Outcome::Failed(error.to_string())),
        }
    }

    fn boot(&self) -> Result<Group, TargetUnderTestError> {
        let program = sarsen::own_program()?;
        let start = || {
            let small = guest::small_program(&program, self.folder)?;
            let client = GuestSpec::new(&RECIPE, self.cache, MEMORY_MIB).storage(SERVER);
            let server = client.clone().file("sarsen", &small);
            Group::start(&server, &client, self.plan.clients(), self.plan.disk_bytes, self.folder)
        };
        Ok(start()?)
    }
}

impl fmt::Display for GuestPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a server and {} clients: virtual machines with one emulated processor, {MEMORY_MIB} MiB of memory and four \
             disks of {} bytes each; bridge of the server, MTU 1500",
            self.clients(),
            self.disk_bytes
        )
    }
}

impl fmt::Debug for GuestPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestPoint").field("labels", &self.labels).finish_non_exhaustive()
    }
}
