use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sarsen_block::layers::{Fault, Faults, FaultyStore, Times};
use sarsen_block::{BlockSize, Extent, MemoryStore};
use sarsen_io::threads;

use super::*;
use crate::load::OpenStore;
use crate::record::Scale;
use crate::report::{self, Format, Report};
use crate::study::load_for;

const BYTES: u64 = 1 << 20;

/// A study with reads, and with writes that its plan does not declare.
struct Small;

impl Study for Small {
    fn name(&self) -> &'static str {
        "small"
    }

    fn about(&self) -> &'static str {
        "a study of two cells"
    }

    fn plan(&self, choices: &Choices) -> Plan {
        let mut points = Vec::new();
        for read_percent in [100, 0] {
            for (target_under_test, name) in choices.targets_under_test.iter().enumerate() {
                let access = AccessPattern {
                    block_bytes: 4096,
                    read_percent,
                    random_percent: 0,
                    queue_depth: 1,
                };
                let time = Duration::from_millis(5);
                points.push(Point {
                    labels: Labels::new().with("target", name).with("reads", read_percent),
                    target_under_test,
                    volume: "a".into(),
                    link: "loopback".into(),
                    initiator: Initiator::Physical,
                    writes: false,
                    time,
                    measurement: load_for(access, Duration::ZERO, time),
                });
            }
        }
        let medium = choices.medium.unwrap_or(Medium::Ram);
        let cache = Default::default();
        Plan {
            links: vec![LinkProfile::loopback()],
            volumes: vec![VolumeSpec {
                name: "a".into(),
                medium,
                bytes: BYTES,
                cache,
                striping: None,
            }],
            targets_under_test: choices.targets_under_test.clone(),
            limits: false,
            points,
            guests: None,
            joint_volumes: Vec::new(),
            repetitions: 2,
        }
    }

    fn report(&self, _run: &Run) -> Report {
        Report { title: "Small".into(), summary: Vec::new(), sections: Vec::new() }
    }
}

#[derive(Debug, Default)]
struct Notes {
    begun: Vec<(usize, usize)>,
    measured: usize,
}

impl Watcher for Notes {
    fn begins(&mut self, _run: i64, measurements: usize, made: usize) {
        self.begun.push((measurements, made));
    }

    fn does(&mut self, _what: &str) {}

    fn notices(&mut self, _what: &str) {}

    fn measured(&mut self, _sample: &Sample) {
        self.measured += 1;
    }
}

struct RunnerFixture {
    folder: tempfile::TempDir,
    archive: Archive,
    choices: Choices,
    settings: Settings,
}

impl RunnerFixture {
    fn new(targets_under_test: Vec<TargetUnderTest>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(&folder.path().join("lab.sqlite")).unwrap();
        let choices = Choices {
            scale: Scale::Quick,
            targets_under_test,
            medium: None,
            destroy: false,
            links: false,
            seed: 1,
        };
        let settings = Settings {
            folder: folder.path().to_owned(),
            command: "sarsen lab run small".into(),
            only: Vec::new(),
            resume: false,
            guests: folder.path().join("guests"),
            scst: None,
        };
        Self { folder, archive, choices, settings }
    }

    fn run(&self) -> Result<(Run, Notes), RunError> {
        let mut notes = Notes::default();
        let run = run(&Small, &self.choices, &self.settings, &self.archive, &mut notes)?;
        Ok((run, notes))
    }

    /// Creates an interrupted run with one measured and one failed cell.
    fn broken_off(&self) -> i64 {
        let plan = Small.plan(&self.choices);
        let (run, ..) = begin(&Small, &self.choices, &self.settings, &self.archive, &plan).unwrap();
        let outcomes = [Outcome::Measured(Measures::default()), Outcome::Failed("lost".into())];
        for (point, outcome) in plan.points.iter().zip(outcomes) {
            let labels = point.labels.clone();
            let sample = Sample { labels, repetition: 1, ended_at: now(), outcome };
            self.archive.add(run.id, &sample).unwrap();
        }
        run.id
    }
}

#[test]
fn every_cell_is_measured_once_for_each_repetition_and_nothing_is_left() {
    let fixture = RunnerFixture::new(vec![TargetUnderTest::Direct]);
    let (run, notes) = fixture.run().unwrap();
    assert!(run.ended_at.is_some());
    assert_eq!((run.samples.len(), notes.measured), (4, 4));
    assert_eq!(notes.begun, [(4, 0)]);
    assert!(run.samples.iter().all(|sample| matches!(sample.outcome, Outcome::Measured(_))));
    let names = fs::read_dir(fixture.folder.path()).unwrap().flatten().map(|it| it.file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["lab.sqlite"]);
}

#[test]
fn foreign_target_is_written_only_with_destroy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    // Content without a signature that the load recognises.
    let before = vec![0x5a; BYTES as usize];
    fs::write(&path, &before).unwrap();
    let mut fixture = RunnerFixture::new(vec![TargetUnderTest::DirectPath(path.clone())]);
    let (run, _) = fixture.run().unwrap();
    assert!(fs::read(&path).unwrap() == before, "it was written to");
    let reported = run.samples.iter().filter(
        |sample| matches!(&sample.outcome, Outcome::NotMeasured(why) if why == NOT_TO_BE_WRITTEN),
    );
    assert_eq!(reported.count(), 2);

    fixture.choices.destroy = true;
    let (run, _) = fixture.run().unwrap();
    assert!(fs::read(&path).unwrap() != before);
    assert!(run.samples.iter().all(|sample| matches!(sample.outcome, Outcome::Measured(_))));
}

#[test]
fn duplicate_target_under_test_is_refused_before_run_is_stored() {
    let fixture = RunnerFixture::new(vec![TargetUnderTest::Direct, TargetUnderTest::Direct]);
    let refused = fixture.run().unwrap_err();
    assert!(matches!(refused, RunError::Twice { .. }), "{refused}");
    assert!(fixture.archive.runs().unwrap().is_empty());
}

#[test]
fn a_run_that_was_broken_off_goes_on_where_it_was() {
    let mut fixture = RunnerFixture::new(vec![TargetUnderTest::Direct]);
    fixture.settings.resume = true;
    assert!(matches!(fixture.run(), Err(RunError::NothingToResume { .. })));
    fixture.settings.resume = false;
    let id = fixture.broken_off();
    fixture.settings.resume = true;
    let (run, notes) = fixture.run().unwrap();
    assert_eq!(run.id, id);
    assert!(run.ended_at.is_some());
    // The runner repeated the failed cell, but not the measured one.
    assert_eq!(notes.begun, [(4, 1)]);
    assert_eq!((run.samples.len(), notes.measured), (4, 3));
    let cells: HashSet<_> = run.samples.iter().map(|it| (&it.labels, it.repetition)).collect();
    assert_eq!(cells.len(), 4);
}

#[test]
fn run_resumes_only_with_its_original_plan() {
    let mut fixture = RunnerFixture::new(vec![TargetUnderTest::Direct]);
    let id = fixture.broken_off();
    fixture.settings.resume = true;
    let kept = fixture.archive.run(id).unwrap();
    let mut refused = |change: fn(&mut RunnerFixture), wanted: &str| {
        let (choices, settings) = (fixture.choices.clone(), fixture.settings.clone());
        change(&mut fixture);
        match fixture.run().unwrap_err() {
            RunError::OtherPlan { what, .. } => assert_eq!(what, wanted),
            error => panic!("{error}"),
        }
        (fixture.choices, fixture.settings) = (choices, settings);
    };
    refused(|fixture| fixture.choices.medium = Some(Medium::Disk), "volumes");
    refused(|fixture| fixture.settings.only = vec![("reads".into(), "0".into())], "cells");
    // The run is unchanged.
    assert_eq!(fixture.archive.run(id).unwrap(), kept);

    let hold = fixture.archive.hold(id).unwrap();
    let held = fixture.run().unwrap_err();
    assert!(matches!(held, RunError::Archive(ArchiveError::Held { .. })), "{held}");
    drop(hold);
    // A resumed run keeps its own seed, regardless of the present choice.
    fixture.choices.seed = 7;
    let (run, _) = fixture.run().unwrap();
    assert_eq!((run.id, run.setting.seed), (id, 1));
}

fn points(targets_under_test: usize, tests: &[&str]) -> Vec<Point> {
    let of =
        |test| (0..targets_under_test).map(move |target_under_test| point(target_under_test, test));
    tests.iter().flat_map(|test| of(*test)).collect()
}

fn point(target_under_test: usize, test: &str) -> Point {
    Point {
        labels: Labels::new().with("target", target_under_test).with("test", test),
        target_under_test,
        volume: "lun".into(),
        link: "loopback".into(),
        initiator: Initiator::Physical,
        writes: false,
        time: Duration::ZERO,
        measurement: Box::new(|_| Outcome::NotMeasured("never".into())),
    }
}

/// Returns the test and the target of a point, such as `a0`.
fn short_name(point: &Point) -> String {
    format!("{}{}", point.labels.value("test").unwrap(), point.target_under_test)
}

#[test]
fn another_target_under_test_begins_each_repetition_and_tests_keep_their_order() {
    let points = points(3, &["a", "b"]);
    let order =
        |repetition| in_turn(&points, repetition).map(short_name).collect::<Vec<_>>().join(" ");
    assert_eq!(order(1), "a0 a1 a2 b0 b1 b2");
    assert_eq!(order(2), "a1 a2 a0 b1 b2 b0");
    assert_eq!(order(4), order(1));
}

#[test]
fn points_that_differ_in_one_label_start_in_turn() {
    let order = |points: &[Point], repetition| {
        in_turn(points, repetition).map(short_name).collect::<Vec<_>>().join(" ")
    };
    let tests = points(1, &["a", "b", "c"]);
    assert_eq!(order(&tests, 2), "b0 c0 a0");
    // The last two points have another dimension.
    let mut mixed = tests;
    for name in ["d", "e"] {
        let mut point = point(0, name);
        point.labels = point.labels.with("size", "4K");
        mixed.push(point);
    }
    assert_eq!(order(&mixed, 1), "a0 b0 c0 d0 e0");
    assert_eq!(order(&mixed, 2), "b0 c0 a0 e0 d0");
    assert_eq!(order(&[], 1), "");
}

#[test]
fn only_volumes_of_selected_cells_are_created() {
    let mut fixture = RunnerFixture::new(vec![TargetUnderTest::Direct]);
    let volumes = |fixture: &RunnerFixture| {
        let plan = plan(&crate::study::trinkle::Trinkle, &fixture.choices, &fixture.settings);
        plan.unwrap().volumes.into_iter().map(|volume| volume.name).collect::<Vec<_>>()
    };
    fixture.choices.targets_under_test = vec![TargetUnderTest::Sarsen];
    assert_eq!(volumes(&fixture).len(), 2);
    fixture.settings.only = vec![("test".into(), "Web Server".into())];
    assert_eq!(volumes(&fixture), ["lun"]);
}

#[test]
fn volumes_that_are_used_together_are_all_created() {
    let mut fixture = RunnerFixture::new(vec![TargetUnderTest::Direct]);
    fixture.choices.targets_under_test = vec![TargetUnderTest::Sarsen];
    fixture.settings.only = vec![("part".into(), "six disks".into())];
    let plan = plan(&crate::study::lu_du::LuDu, &fixture.choices, &fixture.settings).unwrap();
    let names: Vec<_> = plan.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["disk1", "disk2", "disk3", "disk4", "disk5", "disk6"]);
}

#[test]
fn cells_are_chosen_by_any_of_the_values_of_every_dimension() {
    let points = points(2, &["a", "b", "c"]);
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let chosen = |only: &[(&str, &str)]| {
        let only: Vec<_> = only.iter().map(pair).collect();
        points.iter().filter(|point| is_wanted(&point.labels, &only)).count()
    };
    assert_eq!(chosen(&[]), 6);
    assert_eq!(chosen(&[("test", "a"), ("test", "c")]), 4);
    assert_eq!(chosen(&[("test", "a"), ("test", "c"), ("target", "1")]), 2);
    assert_eq!(chosen(&[("test", "a"), ("tset", "a")]), 0);
}

#[test]
fn labels_that_no_cell_has_are_refused_with_those_that_cells_have() {
    let fixture = RunnerFixture::new(vec![TargetUnderTest::Sarsen]);
    let refused = |only: &[(&str, &str)]| {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings =
            Settings { only: only.iter().map(pair).collect(), ..fixture.settings.clone() };
        let choices = Choices { targets_under_test: Vec::new(), ..fixture.choices.clone() };
        plan(&crate::study::trinkle::Trinkle, &choices, &settings).unwrap_err().to_string()
    };
    let dimension = refused(&[("tset", "Maximum IOPS")]);
    assert!(dimension.contains("has tset; did you mean test?"), "{dimension}");
    // The other value does not hide it.
    let value = refused(&[("target", "sarsen"), ("target", "sarsne")]);
    assert!(value.contains("has target=sarsne; did you mean sarsen?"), "{value}");
    let full = refused(&[("target", "lio")]);
    assert!(full.contains("has target=lio; a full run has it (--full)"), "{full}");
    let both = refused(&[("features", "offered"), ("test", "Maximum IOPS")]);
    assert!(
        both.ends_with("has all of these labels: features=offered, test=Maximum IOPS"),
        "{both}"
    );
}

#[test]
fn targets_without_cells_are_not_started() {
    let mut fixture = RunnerFixture::new(Vec::new());
    fixture.choices.targets_under_test.clear();
    fixture.settings.only = vec![("target".into(), "istgt".into())];
    let plan = plan(&crate::study::trinkle::Trinkle, &fixture.choices, &fixture.settings).unwrap();
    assert_eq!(plan.targets_under_test, [TargetUnderTest::Istgt]);
    assert!(plan.points.iter().all(|point| point.target_under_test == 0));
}

/// A study of one cell with this measurement.
struct OneCell(fn(&Subject<'_>) -> Outcome);

impl Study for OneCell {
    fn name(&self) -> &'static str {
        "one-cell"
    }

    fn about(&self) -> &'static str {
        "a study of one cell"
    }

    fn plan(&self, choices: &Choices) -> Plan {
        let mut plan = Small.plan(choices);
        plan.points.truncate(1);
        for point in &mut plan.points {
            point.measurement = Box::new(self.0);
        }
        plan
    }

    fn report(&self, run: &Run) -> Report {
        Small.report(run)
    }
}

impl OneCell {
    /// Returns a report in Markdown of a run with this measurement.
    fn report_of(measurement: fn(&Subject<'_>) -> Outcome) -> String {
        let fixture = RunnerFixture::new(vec![TargetUnderTest::Direct]);
        let (choices, settings) = (&fixture.choices, &fixture.settings);
        let study = Self(measurement);
        let run = run(&study, choices, settings, &fixture.archive, &mut Notes::default()).unwrap();
        let report = crate::study::report(&study, &run);
        let mut text = Vec::new();
        report::write(Format::Markdown, &report, &run, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }
}

/// Runs `work` on one processor that three other threads keep busy.
fn starved<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let ended = AtomicBool::new(false);
    let spin = || {
        while !ended.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    let pinned = || {
        let here = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| here.is_set(cpu)).unwrap();
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &one).unwrap();
        let work = || {
            let result = work();
            ended.store(true, Ordering::Relaxed);
            result
        };
        let with_one = || threads::beside("spin", spin, work).unwrap().1;
        let with_two = || threads::beside("spin", spin, with_one).unwrap().1;
        threads::beside("spin", spin, with_two).unwrap().1
    };
    // The affinity ends with this thread.
    threads::beside("pinned", pinned, || ()).unwrap().0
}

#[test]
fn a_starved_load_generator_is_called_out_by_the_report() {
    let reads = |subject: &Subject<'_>| {
        let access = AccessPattern {
            block_bytes: 4096,
            read_percent: 100,
            random_percent: 0,
            queue_depth: 1,
        };
        load_for(access, Duration::ZERO, Duration::from_millis(50))(subject)
    };
    let report = starved(|| OneCell::report_of(reads));
    assert!(report.contains("2 of 2 measurements may be invalid"), "{report}");
    assert!(report.contains("the load generator waited for a processor"), "{report}");
}

#[test]
fn a_cell_that_fails_halfway_has_no_figures() {
    let report = OneCell::report_of(|subject| {
        let blocks = BYTES / 512;
        let faults = Faults::default();
        faults.add(Fault::Unreadable(Extent::new(blocks / 2, blocks / 2)), Times::Always);
        let inner = Arc::new(MemoryStore::new(BlockSize::B512, blocks));
        let store = OpenStore::new(Arc::new(FaultyStore::new(inner, faults)));
        let access = AccessPattern {
            block_bytes: 4096,
            read_percent: 100,
            random_percent: 0,
            queue_depth: 1,
        };
        let mut options = subject.load_options(access);
        options.endpoint = Endpoint::Memory(store);
        options.duration = Duration::from_millis(50);
        subject.put_on(&options)
    });
    assert!(report.contains("I/Os failed, the first one with"), "{report}");
    assert!(report.contains("0 of 2"), "{report}");
}
