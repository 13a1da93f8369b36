use sarsen_node::stores::CacheMode;

use super::super::soundness;
use super::*;
use crate::record::{Measures, Outcome};
use crate::report::Cell;

#[test]
fn the_plans_can_be_carried_out_and_the_quick_one_is_quick() {
    soundness::plans(&Trinkle);
    let plan = Trinkle.plan(&Choices::of_study(Scale::Full));
    let [physical, virtual_] = [10 * 8 * 2; 2];
    // Three levels with three faults for each target, and its features.
    let (recovery, features, suspension) = (3 * 3 * 8, 8, 1);
    let (clones, others) = (2 * 8, 2 * 3 * 8 + 3 * 8 * 2 + 12);
    assert_eq!(
        plan.points.len(),
        physical + virtual_ + clones + others + recovery + features + suspension
    );
    // The thesis ran five minutes three times.
    assert!(plan.time() > Duration::from_secs(60 * 3 * 300), "{:?}", plan.time());
}

#[test]
fn every_published_figure_is_shown_in_its_table() {
    let run = soundness::run(&Trinkle, Scale::Quick, &[]);
    let report = soundness::report(&Trinkle, &run);
    let figures =
        |row: &'static published::TrinkleRow| row.runs.into_iter().chain([row.mean, row.std]);
    soundness::shows(&report, published::trinkle().iter().flat_map(figures));
}

#[test]
fn a_target_that_failed_says_why_and_the_others_are_ranked() {
    let failures = [(Labels::new().with(TARGET, "istgt"), "istgt is not installed")];
    let run = soundness::run(&Trinkle, Scale::Quick, &failures);
    let report = soundness::report(&Trinkle, &run);
    soundness::says(&report, "istgt is not installed");
    let leaders = leaders(&run, &run.values(TARGET));
    assert_eq!(leaders.len(), 20);
    assert!(leaders.iter().all(|leader| leader.target != "istgt"));
}

#[test]
fn without_links_the_figures_stand_beside_those_with_standard_frames() {
    let choices = Choices { links: false, ..Choices::of_study(Scale::Quick) };
    let run = soundness::run_of(&Trinkle, &choices, &[]);
    let report = soundness::report(&Trinkle, &run);
    assert!(between_frames(&run).is_none());
    assert_eq!(published_mean("IET", AS_IT_IS, "Maximum IOPS"), Some(49157.36));
    assert!(report.summary[0].contains("the network as it is"), "{:?}", report.summary);
}

/// Returns a run of the alignment's cells only, whose throughputs depend on the start of the I/Os.
fn alignment_run(mb_per_s: impl Fn(&str) -> f64) -> Run {
    let mut run = soundness::run(&Trinkle, Scale::Quick, &[]);
    run.samples.retain(|sample| sample.labels.value("start").is_some());
    for sample in &mut run.samples {
        let value = mb_per_s(sample.labels.value("start").unwrap()) + f64::from(sample.repetition);
        let figures = [(figure::MB_PER_S.to_owned(), value)].into();
        sample.outcome = Outcome::Measured(Measures { figures, ..Measures::default() });
    }
    run
}

#[test]
fn alignment_is_measured_on_equal_volumes_of_targets_with_stripes() {
    let plan = Trinkle.plan(&Choices::of_study(Scale::Quick));
    let [whole, striped] = ["lun", "raid"]
        .map(|name| plan.volumes.iter().find(|volume| volume.name == name).unwrap().clone());
    assert_eq!(striped.striping.map(|striping| striping.stripe_bytes()), Some(256 << 10));
    assert_eq!(VolumeSpec { name: "lun".into(), striping: None, ..striped }, whole);
    let cells = plan.points.iter().filter(|point| point.volume == "raid");
    let cells: Vec<_> = cells.map(|point| (point.target_under_test, point.link.as_str())).collect();
    // Two sizes, two operations, three starts.
    assert_eq!(cells, [(0, "mtu-9000"); 12]);
    assert_eq!(plan.targets_under_test[0], TargetUnderTest::Sarsen);

    let disk = Choices { medium: Some(Medium::Disk), ..Choices::of_study(Scale::Quick) };
    let plan = Trinkle.plan(&disk);
    let striped = plan.volumes.iter().find(|volume| volume.name == "raid").unwrap();
    assert_eq!((striped.medium, striped.cache), (Medium::Disk, CacheMode::None));

    let others = Choices {
        targets_under_test: vec![TargetUnderTest::Tgt],
        ..Choices::of_study(Scale::Quick)
    };
    assert_eq!(Trinkle.plan(&others).volumes, [whole]);
    let run = soundness::run_of(&Trinkle, &others, &[]);
    assert_eq!((alignment::section(&run), alignment::summary(&run)), (None, Vec::new()));
}

#[test]
fn gain_of_alignment_stands_beside_the_published_one() {
    let throughput = |start: &str| match start {
        "border of a stripe" => 198.0,
        "sector 63" => 98.0,
        _ => 197.5,
    };
    let run = alignment_run(throughput);
    let report = soundness::report(&Trinkle, &run);
    soundness::shows(&report, [20.0, 20.0, 15.0, 20.0].into_iter());
    let section = alignment::section(&run).unwrap();
    assert!(report.sections.contains(&section));
    let tables = section.tables();
    let gains = tables.last().unwrap();
    let wanted = |row: &&Vec<Cell>| {
        row[..3] == [layout::text("256K"), layout::text("write"), layout::text("sector 63")]
    };
    let row = gains.rows.iter().find(wanted).unwrap();
    assert_eq!(row[3], Cell::Number { value: 2.0, decimals: 3 });
    assert_eq!(row[4], Cell::Change { percent: 100.0, decimals: 1 });
    assert_eq!(row[5], Cell::Number { value: 100.0, decimals: 1 });
    assert_eq!(row[6], Cell::Published { value: 15.0, decimals: 0 });
    // No gain of I/Os of one chunk was published.
    let small: Vec<_> = gains.rows.iter().filter(|row| row[0] == layout::text("64K")).collect();
    assert_eq!(small.len(), 4);
    assert!(small.iter().all(|row| row[6] == Cell::Empty && row[7] == Cell::Empty));
    let [summary] = &alignment::summary(&run)[..] else { panic!("one target") };
    assert!(summary.contains("write against half a chunk 1.00, which is noise"), "{summary}");
    assert!(summary.contains("read against sector 63 2.00;"), "{summary}");
}

#[test]
fn a_run_of_the_alignment_only_has_no_empty_sections() {
    let report = soundness::report(&Trinkle, &alignment_run(|_| 100.0));
    let headings: Vec<_> = report.sections.iter().map(|section| &section.heading).collect();
    let wanted = ["Alignment with the stripes of a RAID", "The thesis's tables (G.1 to G.16)"];
    assert_eq!(headings, wanted);
    assert!(report.summary[0].starts_with("Sequential I/Os"), "{:?}", report.summary);
}

#[test]
fn misaligned_cells_that_failed_say_why() {
    let failed = Labels::new().with("start", "sector 63");
    let run = soundness::run(&Trinkle, Scale::Quick, &[(failed, "no space for the pool")]);
    let report = soundness::report(&Trinkle, &run);
    soundness::says(&report, "no space for the pool");
    let section = alignment::section(&run).unwrap();
    let tables = section.tables();
    let gains = tables.last().unwrap();
    let (failed, others): (Vec<_>, Vec<_>) =
        gains.rows.iter().partition(|row| row[2] == layout::text("sector 63"));
    assert!(failed.iter().all(|row| row[3..6] == [Cell::Empty, Cell::Empty, Cell::Empty]));
    assert!(others.iter().all(|row| row[3] != Cell::Empty));
}
