use super::super::soundness;
use super::*;

#[test]
fn the_plans_can_be_carried_out_and_the_quick_one_is_quick() {
    soundness::plans(&Trinkle);
    let plan = Trinkle.plan(&soundness::choices(Scale::Full)).unwrap();
    assert_eq!(plan.points.len(), 10 * 3 * 2);
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
    let leaders = leaders(&run);
    assert_eq!(leaders.len(), 20);
    assert!(leaders.iter().all(|leader| leader.target != "istgt"));
}

#[test]
fn without_links_the_figures_stand_beside_those_with_standard_frames() {
    let choices = Choices { links: false, ..soundness::choices(Scale::Quick) };
    let run = soundness::run_of(&Trinkle, &choices, &[]);
    let report = soundness::report(&Trinkle, &run);
    assert!(between_frames(&run).is_none());
    assert_eq!(published_mean("IET", AS_IT_IS, "Maximum IOPS"), Some(49157.36));
    assert!(report.summary[0].contains("the network as it is"), "{:?}", report.summary);
}
