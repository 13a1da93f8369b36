//! Studies: the targets under test, the measurements, their repetitions and links, and the report.
//!
//! A study describes its measurements as a [`Plan`]; it does not start anything and does not wait. The runner creates
//! the network, starts the targets under test, measures the cells interleaved, and stores each sample at once, so that
//! an interrupted run can resume. The study creates a [`Report`] from the finished [`Run`].

pub mod aravindan;
#[cfg(test)]
mod coverage;
mod features;
mod guests;
mod layout;
pub mod lu_du;
pub mod lunden;
pub mod novell;
mod outline;
mod recovery;
mod runner;
#[cfg(test)]
mod soundness;
pub mod trinkle;
mod virtual_initiator;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

pub use guests::{GuestMeasurement, GuestPlan, GuestPoint};
pub use outline::{Dimension, Extent, Outline, outline};
pub use runner::{RunError, Settings, Watcher, check, now, record, run};
pub use virtual_initiator::VirtualInitiator;

use crate::access::AccessPattern;
use crate::fio::Amount;
use crate::guest::DiskForm;
use crate::load::{self, Endpoint, LoadError, LoadOptions, LoadResult};
use crate::network::{Link, LinkProfile};
use crate::record::{Labels, Outcome, Run, Scale};
use crate::report::Report;
use crate::target_under_test::{Medium, Running, TargetUnderTest, VolumeSpec};
use crate::validity;

/// The user's choices for a study.
#[derive(Clone, Debug)]
pub struct Choices {
    /// The scale.
    pub scale: Scale,
    /// The targets under test; the study's default if empty.
    pub targets_under_test: Vec<TargetUnderTest>,
    /// The medium of the volumes; the study's default if absent.
    pub medium: Option<Medium>,
    /// Whether the lab may write to targets under test that it did not start.
    pub destroy: bool,
    /// Whether to create the links of the study; otherwise the loads use the existing network.
    pub links: bool,
    /// The seed of the pseudorandom numbers.
    pub seed: u64,
}

impl Choices {
    /// Returns the choices of a study for its targets, media and links.
    pub fn of_study(scale: Scale) -> Self {
        Self {
            scale,
            targets_under_test: Vec::new(),
            medium: None,
            destroy: false,
            links: true,
            seed: 1,
        }
    }
}

/// A study.
pub trait Study: Sync {
    /// Returns its name on the command line.
    fn name(&self) -> &'static str;

    /// Returns one sentence about its measurements and its authors.
    fn about(&self) -> &'static str;

    /// Returns the planned measurements.
    fn plan(&self, choices: &Choices) -> Plan;

    /// Returns the report in the layout of the study, with the published figures next to the results.
    fn report(&self, run: &Run) -> Report;
}

/// The planned measurements of a study.
#[derive(Debug, Default)]
pub struct Plan {
    /// The links.
    pub links: Vec<LinkProfile>,
    /// The volumes of each target under test.
    pub volumes: Vec<VolumeSpec>,
    /// The targets under test.
    pub targets_under_test: Vec<TargetUnderTest>,
    /// Whether to measure the limits of the links and of the media first.
    pub limits: bool,
    /// The cells, in the order of their measurement within a repetition.
    pub points: Vec<Point>,
    /// The measurements in guests, after the cells of a repetition.
    pub guests: Option<GuestPlan>,
    /// The names of volumes that cells use together.
    pub joint_volumes: Vec<String>,
    /// Number of measurements of each cell.
    pub repetitions: u32,
}

impl Plan {
    /// Returns the approximate time of all measurements, without preparations and limits.
    pub fn time(&self) -> Duration {
        let cells = self.points.iter().map(|point| point.time).sum::<Duration>();
        cells * self.repetitions + self.time_in_guests()
    }

    /// Returns the approximate time of the measurements in guests.
    fn time_in_guests(&self) -> Duration {
        self.guests.as_ref().map_or(Duration::ZERO, |guests| {
            guests.points.iter().map(|point| point.time).sum::<Duration>() * guests.repetitions
        })
    }

    /// Returns whether a cell needs a volume.
    fn uses(&self, volume: &str) -> bool {
        let is_joint = |name: &str| self.joint_volumes.iter().any(|other| other == name);
        self.points
            .iter()
            .any(|point| point.volume == volume || is_joint(&point.volume) && is_joint(volume))
    }

    /// Returns the number of planned measurements of cells.
    fn measurements(&self) -> usize {
        let in_guests = self
            .guests
            .as_ref()
            .map_or(0, |guests| guests.cell_count() * guests.repetitions as usize);
        self.points.len() * self.repetitions as usize + in_guests
    }

    /// Removes the targets under test that no cell has.
    fn remove_unused_targets(&mut self) {
        let used: BTreeSet<_> = self.points.iter().map(|point| point.target_under_test).collect();
        let mut index = 0..;
        self.targets_under_test.retain(|_| index.next().is_some_and(|index| used.contains(&index)));
        for point in &mut self.points {
            point.target_under_test = used.range(..point.target_under_test).count();
        }
    }

    /// Returns the labels of all cells.
    fn cells(&self) -> impl Iterator<Item = &Labels> {
        let in_guests = self.guest_points().iter().flat_map(|point| &point.cells);
        self.points.iter().map(|point| &point.labels).chain(in_guests)
    }

    /// Returns the measurements in guests.
    fn guest_points(&self) -> &[GuestPoint] {
        self.guests.as_ref().map_or(&[], |guests| &guests.points)
    }
}

/// A cell: one volume of one target under test over one link.
pub struct Point {
    /// The labels that distinguish it from the others. The runner adds no labels: include the target under test, the
    /// link and the volume if the report needs them.
    pub labels: Labels,
    /// Index of the target under test in the plan.
    pub target_under_test: usize,
    /// Name of the volume.
    pub volume: String,
    /// Name of the link.
    pub link: String,
    /// What uses the volume.
    pub initiator: Initiator,
    /// Whether it writes.
    pub writes: bool,
    /// Approximate time of one measurement.
    pub time: Duration,
    /// The measurement.
    pub measurement: Measurement,
}

/// What uses the volume of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// This program.
    Physical,
    /// A virtual machine, whose hypervisor attaches the volume as a disk of this form.
    Virtual(DiskForm),
}

/// The measurement of a cell's subject. It blocks the calling thread until it ends, and uses the sockets of the
/// initiator's side.
pub type Measurement = Box<dyn Fn(&Subject<'_>) -> Outcome + Send + Sync>;

/// The subject of a measurement.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The endpoint of the volume.
    pub endpoint: Endpoint,
    /// The target under test.
    pub running: &'a Running,
    /// The link to the target under test.
    pub link: &'a Link,
    /// The volume.
    pub volume: &'a VolumeSpec,
    /// The seed of the pseudorandom numbers; it differs for each repetition.
    pub seed: u64,
    /// Whether writes are permitted: the lab started the target or the user permitted them.
    pub may_write: bool,
    /// The folder that keeps what guests boot from.
    pub guests: &'a Path,
    /// The virtual machine that uses the volume, and the form of its disk; `None` if this program does.
    pub virtual_initiator: Option<(&'a VirtualInitiator, DiskForm)>,
}

impl Subject<'_> {
    /// Returns the options of a load on the subject, with the default duration.
    pub fn load_options(&self, access: AccessPattern) -> LoadOptions {
        let mut options = LoadOptions::new(self.endpoint.clone(), access);
        options.size = Some(Amount::Bytes(self.volume.bytes));
        // More of a smaller unit would be in a cache: its figures would not be comparable.
        options.least = self.volume.bytes;
        options.target_pids = self.running.pids();
        options.seed = self.seed;
        options.destroy = self.may_write;
        options
    }

    /// Runs a load and returns its outcome.
    pub fn put_on(&self, options: &LoadOptions) -> Outcome {
        // This applies even if the load finds no content to destroy, and regardless of [`Point::writes`].
        if !self.may_write && !options.only_reads() {
            return Outcome::NotMeasured(NOT_TO_BE_WRITTEN.into());
        }
        match self.virtual_initiator {
            Some((machine, form)) => machine.put(options, form),
            None => outcome(load::run(options)),
        }
    }
}

/// The reason for which a cell that would write to a target that the lab did not start is not measured.
const NOT_TO_BE_WRITTEN: &str = "it was not started by the lab, and writing needs --destroy";

/// Returns the outcome of a load. A load with failed I/Os is a failure, regardless of its other results.
pub fn outcome(ended: Result<LoadResult, LoadError>) -> Outcome {
    match ended {
        Err(error) => Outcome::Failed(error.to_string()),
        Ok(result) => match result.failure() {
            Some(failure) => Outcome::Failed(failure),
            None => Outcome::Measured(result.measures()),
        },
    }
}

/// Returns the measurement of most cells: a load with a fixed duration.
pub fn load_for(access: AccessPattern, warm_up: Duration, duration: Duration) -> Measurement {
    load_with(access, warm_up, duration, |_| {})
}

/// Returns the same with other options.
fn load_with(
    access: AccessPattern,
    warm_up: Duration,
    duration: Duration,
    change: impl Fn(&mut LoadOptions) + Send + Sync + 'static,
) -> Measurement {
    Box::new(move |subject| {
        let mut options = subject.load_options(access);
        options.warm_up = warm_up;
        options.duration = duration;
        change(&mut options);
        subject.put_on(&options)
    })
}

/// Returns the report of a study with the threats to the validity of the run.
pub fn report(study: &dyn Study, run: &Run) -> Report {
    let mut report = study.report(run);
    report.remove_empty_parts();
    if run.ended_at.is_none() {
        report.summary.insert(0, "The run was interrupted or is in progress.".into());
    }
    let names = run.targets_under_test.iter().map(String::as_str).collect();
    let [_, emulated] = TargetUnderTest::comparable(names);
    if !emulated.is_empty() {
        report.summary.push(format!(
            "{}: in guests with emulated processors, so that figures and CPU time are comparable only among targets in guests.",
            emulated.join(", ")
        ));
    }
    if let Some((sentence, section)) = validity::section(run) {
        report.summary.push(sentence);
        report.sections.push(section);
    }
    report
}

/// All studies.
pub static ALL: &[&dyn Study] =
    &[&trinkle::Trinkle, &novell::Novell, &lu_du::LuDu, &lunden::Lunden, &aravindan::Aravindan];

/// Returns the study with this name.
pub fn find(name: &str) -> Option<&'static dyn Study> {
    ALL.iter().copied().find(|study| study.name() == name)
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Point")
            .field("labels", &self.labels)
            .field("target_under_test", &self.target_under_test)
            .field("volume", &self.volume)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
