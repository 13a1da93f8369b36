//! Runs a study's plan: the network, the targets under test, then each cell. The runner stores each result at once.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use sarsen_node::model::nearest;
use sarsen_node::stores::CacheMode;

use super::guests::Guests;
use super::virtual_initiator::{self, VirtualInitiators};
use super::{Choices, Initiator, NOT_TO_BE_WRITTEN, Plan, Point, Study, Subject};
use crate::access::AccessPattern;
use crate::archive::{Archive, ArchiveError, RunLock};
use crate::disturbances::Disturbances;
use crate::folder::{PrivateFolder, RUN_PREFIX};
use crate::limits::{self, LimitError};
use crate::load::{self, Endpoint, LoadOptions};
use crate::machine;
use crate::network::{Link, LinkProfile, Network};
use crate::record::{Labels, Measures, Outcome, Run, Sample, Scale, Setting};
use crate::target_under_test::{
    Folders, Medium, Running, TargetUnderTest, TargetUnderTestError, VolumeSpec,
};
use crate::trace::Request;

/// Number of bytes of an I/O that fills a volume before the measurements.
const FILL_BYTES: u32 = 1 << 20;

/// The settings of a study's run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The parent of the temporary folder with the files of volumes on disk.
    pub folder: PathBuf,
    /// The command line, for the record.
    pub command: String,
    /// Selects cells: a cell must have one of the given values in each given dimension. If empty, all cells are
    /// selected.
    pub only: Vec<(String, String)>,
    /// Whether to resume the newest unfinished run with these choices, with its own seed.
    pub resume: bool,
    /// The folder that keeps what guests boot from.
    pub guests: PathBuf,
    /// The folder with the sources of SCST.
    pub scst: Option<PathBuf>,
}

/// An observer of a run.
pub trait Watcher {
    /// Reports the total number of measurements and the number of those made earlier.
    fn begins(&mut self, run: i64, measurements: usize, made: usize);
    /// Reports the start of an action that takes a while.
    fn does(&mut self, what: &str);
    /// Reports a problem that does not end the run.
    fn notices(&mut self, what: &str);
    /// Reports a completed and stored measurement.
    fn measured(&mut self, sample: &Sample);
}

/// The reason for which a study cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The archive returned an error.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// No cell has a selected label.
    #[error("no cell of this run has {label}{hint} (known: {known})")]
    NoLabel {
        /// The dimension, or the dimension and the value.
        label: String,
        /// What may have been meant.
        hint: String,
        /// The dimensions, or the values of the dimension.
        known: String,
    },
    /// No cell has all selected labels.
    #[error("no cell of this run has all of these labels: {only}")]
    NoCell {
        /// The selected labels.
        only: String,
    },
    /// Two targets under test have the same name.
    #[error("{name} is given twice; name each target once")]
    Twice {
        /// The name.
        name: String,
    },
    /// There is no run to resume.
    #[error("there is no interrupted run of {study} ({scale}) with these targets")]
    NothingToResume {
        /// The study.
        study: &'static str,
        /// The scale.
        scale: Scale,
    },
    /// The run to resume has another plan.
    #[error(
        "run {id} started with other {what} ({then}; now {now}); resume it with its original \
         options, or start a new run"
    )]
    OtherPlan {
        /// The run.
        id: i64,
        /// The fact that differs.
        what: String,
        /// Its value in the run.
        then: String,
        /// Its present value.
        now: String,
    },
    /// The folder for volumes is unusable.
    #[error("cannot create a folder in {}: {source}", path.display())]
    Folder {
        /// The path of the folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
}

/// Checks the choices and settings of a run, which begins nothing.
pub fn check(study: &dyn Study, choices: &Choices, settings: &Settings) -> Result<(), RunError> {
    plan(study, choices, settings).map(drop)
}

/// Runs a study and returns the stored run. Failed cells are stored as failed, and the others continue.
pub fn run(
    study: &dyn Study,
    choices: &Choices,
    settings: &Settings,
    archive: &Archive,
    watcher: &mut dyn Watcher,
) -> Result<Run, RunError> {
    let mut plan = plan(study, choices, settings)?;
    // A killed run must not leave files behind, either: a run does not start without this folder.
    let folder = PrivateFolder::new(&settings.folder, RUN_PREFIX)
        .map_err(|source| RunError::Folder { path: settings.folder.clone(), source })?;
    let (mut run, made, _hold) = begin(study, choices, settings, archive, &plan)?;
    let choices = &Choices { seed: run.setting.seed, ..choices.clone() };
    if settings.resume {
        plan = self::plan(study, choices, settings)?;
    }
    watcher.begins(run.id, measurements(&plan), made.len());

    watcher.does("making the network");
    let network = Network::build(&plan.links);
    if !plan.links.is_empty() {
        run.setting.network = network.notes().to_vec();
    }
    let folders = Folders {
        volumes: folder.path(),
        guests: &settings.guests,
        scst: settings.scst.as_deref(),
    };
    let mut context = RunContext {
        plan: &plan,
        choices,
        network: &network,
        guests: &settings.guests,
        targets_under_test: Vec::new(),
    };
    for target_under_test in &plan.targets_under_test {
        watcher.does(&format!("starting {target_under_test}"));
        context.targets_under_test.push(target_under_test.start(&network, &plan.volumes, folders));
    }
    context.describe(&mut run.setting);
    archive.set_setting(run.id, &run.setting)?;

    let id = run.id;
    let keep = |watcher: &mut dyn Watcher, labels: &Labels, repetition, outcome| {
        let sample = Sample { labels: labels.clone(), repetition, ended_at: now(), outcome };
        archive.add(id, &sample)?;
        watcher.measured(&sample);
        Ok::<_, RunError>(())
    };
    let limits = if plan.limits { context.limits(folder.path()) } else { Vec::new() };
    let measure_limits = |watcher: &mut dyn Watcher, repetition| {
        for (labels, measure) in &limits {
            if !made.contains(&(labels.clone(), repetition)) {
                watcher.does(&format!("measuring the limit of {labels}"));
                keep(watcher, labels, repetition, measure())?;
            }
        }
        Ok::<_, RunError>(())
    };
    let unfilled = context.fill(watcher);
    if !unfilled.is_empty() {
        run.setting.network.extend(unfilled);
        archive.set_setting(id, &run.setting)?;
    }
    let mut guests =
        plan.guests.as_ref().map(|plan| Guests::new(plan, &settings.guests, folder.path()));
    let mut machines = VirtualInitiators::new(&network, &settings.guests, folder.path());
    // The machine is slower at some times than at others: the best of all measurements of a limit counts.
    for repetition in 1..=plan.repetitions {
        measure_limits(watcher, repetition)?;
        for point in in_turn(&plan.points, repetition) {
            if !made.contains(&(point.labels.clone(), repetition)) {
                watcher.does(&point.labels.to_string());
                // An idle machine would be a load for this cell.
                if point.initiator == Initiator::Physical {
                    machines.end();
                }
                let outcome = context.measure(point, repetition, &mut machines);
                keep(watcher, &point.labels, repetition, outcome)?;
            }
        }
        machines.end();
        if let (Some(guests), Some(plan)) = (&mut guests, &plan.guests)
            && repetition <= plan.repetitions
        {
            for point in &plan.points {
                let is_made = |cell: &Labels| made.contains(&(cell.clone(), repetition));
                if !point.cells.iter().all(is_made) {
                    watcher.does(&point.labels.to_string());
                    for (labels, outcome) in guests.measure(point) {
                        keep(watcher, &labels, repetition, outcome)?;
                    }
                }
            }
        }
        // So would idle guests be for those of the next repetition.
        if let Some(guests) = guests.as_mut().filter(|_| !plan.points.is_empty()) {
            guests.end();
        }
    }
    measure_limits(watcher, plan.repetitions + 1)?;
    archive.end(id, now())?;
    Ok(archive.run(id)?)
}

/// Returns the plan of a study with the selected cells, and only with the volumes that they need.
fn plan(study: &dyn Study, choices: &Choices, settings: &Settings) -> Result<Plan, RunError> {
    let mut plan = study.plan(choices);
    let mut names = HashSet::new();
    for target_under_test in &plan.targets_under_test {
        let name = target_under_test.to_string();
        if !names.insert(name.clone()) {
            return Err(RunError::Twice { name });
        }
    }
    if let Some(label) = settings.only.iter().find(|label| !has(&plan, label)) {
        let full = study.plan(&Choices { scale: Scale::Full, ..choices.clone() });
        return Err(no_label(&plan, &full, label));
    }
    if !plan.cells().any(|labels| is_wanted(labels, &settings.only)) {
        let only = settings.only.iter().map(|(dimension, value)| format!("{dimension}={value}"));
        return Err(RunError::NoCell { only: only.collect::<Vec<_>>().join(", ") });
    }
    plan.points.retain(|point| is_wanted(&point.labels, &settings.only));
    if let Some(guests) = &mut plan.guests {
        // A measurement has all of its cells at once.
        guests
            .points
            .retain(|point| point.cells.iter().any(|cell| is_wanted(cell, &settings.only)));
    }
    let volumes = std::mem::take(&mut plan.volumes);
    plan.volumes = volumes.into_iter().filter(|volume| plan.uses(&volume.name)).collect();
    plan.remove_unused_targets();
    Ok(plan)
}

/// Whether a cell has one of the given values in each given dimension.
fn is_wanted(labels: &Labels, only: &[(String, String)]) -> bool {
    only.iter().all(|(dimension, _)| {
        let mut values = only.iter().filter(|(other, _)| other == dimension);
        values.any(|(_, value)| labels.value(dimension) == Some(value))
    })
}

/// Whether a cell of a plan has a label.
fn has(plan: &Plan, (dimension, value): &(String, String)) -> bool {
    plan.cells().any(|labels| labels.value(dimension) == Some(value))
}

/// Returns the error for a label that no cell of a plan has.
fn no_label(plan: &Plan, full: &Plan, label: &(String, String)) -> RunError {
    let (dimension, value) = label;
    let values: BTreeSet<_> = plan.cells().filter_map(|cell| cell.value(dimension)).collect();
    let (name, word, known) = if values.is_empty() {
        let dimensions = plan.cells().flat_map(Labels::iter).map(|(dimension, _)| dimension);
        (dimension.clone(), dimension, dimensions.collect())
    } else {
        (format!("{dimension}={value}"), value, values)
    };
    let hint = if has(full, label) {
        "; a full run has it (--full)".into()
    } else {
        nearest(word, known.iter().copied())
    };
    let known = known.into_iter().collect::<Vec<_>>().join(" | ");
    RunError::NoLabel { label: name, hint, known }
}

/// Returns the number of planned measurements, including the limits.
fn measurements(plan: &Plan) -> usize {
    let media = [Medium::Ram, Medium::Disk];
    let used = media.iter().filter(|medium| plan.volumes.iter().any(|v| v.medium == **medium));
    let limits = if plan.limits { plan.links.len() + used.count() } else { 0 };
    limits * (plan.repetitions as usize + 1) + plan.measurements()
}

/// The cells that were measured earlier, with their repetitions.
type MeasuredCells = HashSet<(Labels, u32)>;

fn begin(
    study: &dyn Study,
    choices: &Choices,
    settings: &Settings,
    archive: &Archive,
    plan: &Plan,
) -> Result<(Run, MeasuredCells, RunLock), RunError> {
    let targets_under_test: Vec<_> =
        plan.targets_under_test.iter().map(TargetUnderTest::to_string).collect();
    let facts = facts(plan, settings);
    if settings.resume {
        let nothing = RunError::NothingToResume { study: study.name(), scale: choices.scale };
        let id =
            archive.unfinished(study.name(), choices.scale, &targets_under_test)?.ok_or(nothing)?;
        let hold = archive.hold(id)?;
        same_plan(id, &archive.run(id)?.setting.plan, &facts)?;
        archive.forget_failures(id)?;
        let run = archive.run(id)?;
        let cell = |sample: &Sample| (sample.labels.clone(), sample.repetition);
        let made = run.samples.iter().map(cell).collect();
        return Ok((run, made, hold));
    }
    let mut run = record(study.name(), choices.scale, settings.command.clone());
    run.targets_under_test = targets_under_test;
    run.setting.seed = choices.seed;
    run.setting.plan = facts;
    run.id = archive.begin(&run)?;
    let hold = archive.hold(run.id)?;
    Ok((run, MeasuredCells::new(), hold))
}

/// Describes the planned measurements in texts that differ if the plans differ.
fn facts(plan: &Plan, settings: &Settings) -> BTreeMap<String, String> {
    let volumes = plan.volumes.iter().map(|volume| {
        let VolumeSpec { name, medium, bytes, cache, striping } = volume;
        let stripes = striping.map_or_else(String::new, |striping| format!(", {striping}"));
        format!("{name}: {bytes} bytes, {medium:?}, {cache:?}{stripes}")
    });
    let links: Vec<_> = plan.links.iter().map(|link| link.name.as_str()).collect();
    let cells = format!("{} of {} repetitions each", plan.points.len(), plan.repetitions);
    let mut facts = BTreeMap::from([
        ("volumes", volumes.collect::<Vec<_>>().join("; ")),
        ("links", links.join(", ")),
    ]);
    if !plan.points.is_empty() {
        facts.insert("cells", cells);
    }
    if let Some(guests) = &plan.guests {
        facts.insert("guests", guests.to_string());
    }
    if plan.points.iter().any(|point| matches!(point.initiator, Initiator::Virtual(_))) {
        facts.insert("virtual initiator", virtual_initiator::ABOUT.into());
    }
    // The names of these targets do not contain their full address.
    let places =
        plan.targets_under_test.iter().filter_map(|target_under_test| match target_under_test {
            TargetUnderTest::Iscsi(url) => Some(url.to_string()),
            _ => None,
        });
    let places: Vec<_> = places.collect();
    if !places.is_empty() {
        facts.insert("targets elsewhere", places.join(", "));
    }
    if !settings.only.is_empty() {
        let only = settings.only.iter().map(|(dimension, value)| format!("{dimension} {value}"));
        facts.insert("choice of cells", only.collect::<Vec<_>>().join(", "));
    }
    facts.into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect()
}

/// Rejects the resumption of a run with another plan.
fn same_plan(
    id: i64,
    then: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Result<(), RunError> {
    for what in then.keys().chain(now.keys()) {
        let (then, now) = (fact_or_none(then, what), fact_or_none(now, what));
        if then != now {
            return Err(RunError::OtherPlan { id, what: what.clone(), then, now });
        }
    }
    Ok(())
}

fn fact_or_none(facts: &BTreeMap<String, String>, name: &str) -> String {
    facts.get(name).cloned().unwrap_or_else(|| "none".into())
}

/// Returns a run that starts now on this machine.
pub fn record(study: &str, scale: Scale, command: String) -> Run {
    Run {
        id: 0,
        study: study.into(),
        scale,
        command,
        targets_under_test: Vec::new(),
        began_at: now(),
        ended_at: None,
        setting: Setting { machine: machine::facts(), ..Setting::default() },
        samples: Vec::new(),
    }
}

/// A limit, which is measured before the cells: its labels and its measurement.
type Limit<'a> = (Labels, Box<dyn Fn() -> Outcome + 'a>);

/// The resources of a run that exist while cells are measured.
struct RunContext<'a> {
    plan: &'a Plan,
    choices: &'a Choices,
    network: &'a Network,
    /// The folder that keeps what guests boot from.
    guests: &'a Path,
    targets_under_test: Vec<Result<Running, TargetUnderTestError>>,
}

impl RunContext<'_> {
    fn describe(&self, setting: &mut Setting) {
        setting.commands.clear();
        if let Some(guests) = &self.plan.guests {
            setting.commands.extend_from_slice(&guests.commands);
        }
        for running in self.targets_under_test.iter().flatten() {
            setting.commands.extend_from_slice(running.commands());
            if let Some(version) = running.version() {
                let version = match setting.versions.get(running.name()) {
                    // The version changed during the interruption of the run.
                    Some(before) if !before.ends_with(version) => {
                        format!("{before}, then {version}")
                    }
                    Some(before) => before.clone(),
                    None => version.to_owned(),
                };
                setting.versions.insert(running.name().into(), version);
            }
        }
    }

    fn limits<'a>(&'a self, folder: &'a Path) -> Vec<Limit<'a>> {
        let duration = match self.choices.scale {
            Scale::Quick => Duration::from_millis(500),
            Scale::Full => Duration::from_secs(10),
        };
        let mut limits: Vec<Limit<'a>> = Vec::new();
        for link in self.network.links() {
            let measure = move || match &link.address {
                Ok(_) => {
                    let limit = limits::network(self.network, link, duration);
                    measured(limit.map(|limit| limit.measures()))
                }
                Err(reason) => Outcome::NotMeasured(reason.clone()),
            };
            limits.push((limit("link", &link.profile.name), Box::new(measure)));
        }
        for medium in [Medium::Ram, Medium::Disk] {
            let measure = move || {
                let limit = limits::medium(medium, folder, duration);
                measured(limit.map(|limit| limit.measures()))
            };
            if self.plan.volumes.iter().any(|volume| volume.medium == medium) {
                limits.push((limit("medium", medium.as_str()), Box::new(measure)));
            }
        }
        limits
    }

    fn measure(
        &self,
        point: &Point,
        repetition: u32,
        machines: &mut VirtualInitiators<'_>,
    ) -> Outcome {
        self.try_to_measure(point, repetition, machines).unwrap_or_else(Outcome::from)
    }

    fn try_to_measure(
        &self,
        point: &Point,
        repetition: u32,
        machines: &mut VirtualInitiators<'_>,
    ) -> Result<Outcome, TargetUnderTestError> {
        if point.writes && !self.may_write(point.target_under_test) {
            return Err(TargetUnderTestError::Unable(NOT_TO_BE_WRITTEN.into()));
        }
        let running =
            self.targets_under_test[point.target_under_test].as_ref().map_err(Clone::clone)?;
        let (volume, link) = (self.volume(point), self.link(point));
        link.address.as_ref().map_err(|reason| TargetUnderTestError::Unable(reason.clone()))?;
        // The machine's own network leads to external targets. The loopback profile, which has no set-up, represents
        // it.
        let elsewhere = self.plan.targets_under_test[point.target_under_test].is_elsewhere();
        if elsewhere && link.profile != LinkProfile::loopback() {
            let reason = "the lab cannot change the network path to it";
            return Err(TargetUnderTestError::Unable(reason.into()));
        }
        let endpoint = running.endpoint(&volume.name, link)?;
        let seed = self.choices.seed.wrapping_add(repetition.into());
        let may_write = self.may_write(point.target_under_test);
        let virtual_initiator = match point.initiator {
            Initiator::Physical => None,
            Initiator::Virtual(form) => Some((machines.booted(&endpoint, form)?, form)),
        };
        let guests = self.guests;
        let subject =
            Subject { endpoint, running, link, volume, seed, may_write, guests, virtual_initiator };
        let disturbances = Disturbances::watch();
        let mut outcome = if elsewhere {
            (point.measurement)(&subject)
        } else {
            self.network.on_initiator_side(|| (point.measurement)(&subject))
        };
        if let Outcome::Measured(measures) = &mut outcome {
            measures.figures.extend(disturbances.figures());
            measures.limits = self.limits_of(point, &subject);
        }
        if matches!((&outcome, point.initiator), (Outcome::Failed(_), Initiator::Virtual(_))) {
            machines.end();
        }
        // The exit of a target explains more than the client's error does.
        Ok(match (outcome, running.ended()) {
            (Outcome::Failed(reason), Some(end)) => Outcome::Failed(format!("{reason}; {end}")),
            (outcome, _) => outcome,
        })
    }

    /// Returns the labels of the limits of a cell. Through a cache, a medium has none. Volumes that the lab has not created are
    /// on other media.
    fn limits_of(&self, point: &Point, subject: &Subject<'_>) -> Vec<Labels> {
        let target_under_test = &self.plan.targets_under_test[point.target_under_test];
        if !self.plan.limits || !target_under_test.is_started_here() {
            return Vec::new();
        }
        let volume = subject.volume;
        let past_caches = match volume.medium {
            Medium::Ram => true,
            Medium::Disk => matches!(volume.cache, CacheMode::None | CacheMode::DirectSync),
        };
        let medium = past_caches.then(|| limit("medium", volume.medium.as_str()));
        let link = subject.endpoint.has_protocol();
        let link = link.then(|| limit("link", &subject.link.profile.name));
        link.into_iter().chain(medium).collect()
    }

    fn may_write(&self, target_under_test: usize) -> bool {
        self.choices.destroy || self.plan.targets_under_test[target_under_test].is_started_here()
    }

    fn volume(&self, point: &Point) -> &VolumeSpec {
        let found = self.plan.volumes.iter().find(|volume| volume.name == point.volume);
        found.unwrap_or_else(|| panic!("the plan has no volume {}", point.volume))
    }

    fn link(&self, point: &Point) -> &Link {
        let found = self.network.links().iter().find(|link| link.profile.name == point.link);
        found.unwrap_or_else(|| panic!("the plan has no link {}", point.link))
    }

    /// Writes all volumes once, so that no load reads holes. Returns notes about volumes for which this failed: the
    /// readers of the run need them.
    fn fill(&self, watcher: &mut dyn Watcher) -> Vec<String> {
        let mut unfilled = Vec::new();
        // Large packets have the lowest cost.
        let usable = |link: &&Link| link.address.is_ok() && is_plain(&link.profile);
        let links = self.network.links().iter().filter(usable);
        let Some(link) = links.max_by_key(|link| link.profile.mtu) else { return unfilled };
        for (index, running) in self.targets_under_test.iter().enumerate() {
            let Ok(running) = running else { continue };
            let elsewhere = self.plan.targets_under_test[index].is_elsewhere();
            for volume in self.plan.volumes.iter().filter(|_| self.may_write(index)) {
                let Ok(endpoint) = running.endpoint(&volume.name, link) else { continue };
                watcher.does(&format!("filling {} of {}", volume.name, running.name()));
                let filled = if elsewhere {
                    fill(endpoint, volume.bytes)
                } else {
                    self.network.on_initiator_side(|| fill(endpoint, volume.bytes))
                };
                if let Err(error) = filled {
                    let name = running.name();
                    let notice = format!("{name}: {} cannot be filled: {error}", volume.name);
                    watcher.notices(&notice);
                    unfilled
                        .push(format!("{notice}: reads may find blocks that were never written"));
                }
            }
        }
        unfilled
    }
}

/// Returns the labels of the samples of a limit.
fn limit(kind: &str, of: &str) -> Labels {
    Labels::new().with("limit", kind).with(kind, of)
}

fn measured(limit: Result<Measures, LimitError>) -> Outcome {
    limit.map_or_else(|error| Outcome::Failed(error.to_string()), Outcome::Measured)
}

fn fill(endpoint: Endpoint, bytes: u64) -> Result<(), String> {
    let access = AccessPattern {
        block_bytes: FILL_BYTES,
        read_percent: 0,
        random_percent: 0,
        queue_depth: 8,
    };
    let writes = (0..bytes / u64::from(FILL_BYTES)).map(|index| {
        let offset = index * u64::from(FILL_BYTES);
        Ok(Request { at: Duration::ZERO, reads: false, offset, length: FILL_BYTES })
    });
    // The caller fills only volumes that the lab may write to.
    let options = LoadOptions { destroy: true, least: bytes, ..LoadOptions::new(endpoint, access) };
    match super::outcome(load::replay(&options, Box::new(writes), None)) {
        Outcome::Failed(reason) => Err(reason),
        Outcome::Measured(_) | Outcome::NotMeasured(_) => Ok(()),
    }
}

/// Returns the points in the order of the plan. Within each group of points that are compared with each other, each
/// repetition starts with another one.
fn in_turn(points: &[Point], repetition: u32) -> impl Iterator<Item = &Point> {
    let mut left = points;
    let groups = std::iter::from_fn(move || {
        let group;
        (group, left) = left.split_at(compared_count(left));
        (!group.is_empty()).then_some(group)
    });
    groups.flat_map(move |group| {
        let first = (repetition as usize - 1) % group.len();
        group[first..].iter().chain(&group[..first])
    })
}

/// Returns the number of points at the start that differ in one label only, the same one for all of them.
fn compared_count(points: &[Point]) -> usize {
    let difference = |index: usize| {
        let (first, other) = (points.first()?, points.get(index)?);
        first.labels.only_difference(&other.labels)
    };
    let Some(dimension) = difference(1) else { return points.len().min(1) };
    (1..points.len()).find(|&index| difference(index) != Some(dimension)).unwrap_or(points.len())
}

/// Whether a link has no rate limit, delay or loss.
fn is_plain(profile: &LinkProfile) -> bool {
    profile.rate_mbit.is_none() && profile.delay.is_zero() && profile.loss_percent == 0.0
}

/// Returns the current time in seconds since the Unix epoch.
pub fn now() -> u64 {
    sarsen_io::time::wall_clock().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
