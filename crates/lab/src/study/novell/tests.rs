use super::super::soundness;
use super::*;
use crate::published;
use crate::record::Outcome;

#[test]
fn the_plans_can_be_carried_out_and_the_quick_one_is_quick() {
    soundness::plans(&Novell);
    let plan = Novell.plan(&Choices::of_study(Scale::Full));
    // Eleven sizes of sequential writes and eight of each other access, on two media, for four targets.
    let sweep = (11 + 3 * 8) * 2 * 4;
    // Two operations over eight links, and large writes over one.
    let links = 8 * 2 + 1;
    // Seven offers of parameters, and three sizes by another initiator, for three targets.
    let (offers, initiators) = (7 * 2 * 3, 3 * 2 * 3);
    let stripes = 2 * 2 * 2;
    assert_eq!(plan.points.len(), sweep + links + offers + initiators + stripes);
}

#[test]
fn every_published_figure_is_shown_beside_ours() {
    let run = soundness::run(&Novell, Scale::Quick, &[]);
    let report = soundness::report(&Novell, &run);
    soundness::shows(&report, published::novell().iter().map(|row| row.mb_per_s));
    let headings: Vec<_> = report.sections.iter().map(|section| section.heading.as_str()).collect();
    assert_eq!(headings.len(), 13, "{headings:?}");
    assert!(headings.contains(&"Negotiated values"), "{headings:?}");
}

#[test]
fn unmeasured_cells_have_reason() {
    let failures = [
        (Labels::new().with(TARGET, "istgt").with(MEDIUM, "disk"), "no disk for istgt"),
        (Labels::new().with(LINK, PLAIN), "no namespaces"),
    ];
    let run = soundness::run(&Novell, Scale::Quick, &failures);
    let report = soundness::report(&Novell, &run);
    for (_, reason) in failures {
        soundness::says(&report, reason);
    }
    assert!(run.samples.iter().any(|sample| matches!(sample.outcome, Outcome::Measured(_))));
}

#[test]
fn one_medium_and_one_target_are_enough() {
    let choices = Choices {
        targets_under_test: vec![TargetUnderTest::Tgt],
        medium: Some(Medium::Ram),
        ..Choices::of_study(Scale::Quick)
    };
    let plan = Novell.plan(&choices);
    assert_eq!(plan.targets_under_test, [TargetUnderTest::Tgt, TargetUnderTest::Direct]);
    assert_eq!(plan.volumes.len(), 1);
    let over = |link: &str| plan.points.iter().filter(|point| point.link == link).count();
    assert_eq!(over("10 ms each way"), 2, "the links are measured with the target that is present");
    let run = soundness::run_of(&Novell, &choices, &[]);
    soundness::shows(
        &soundness::report(&Novell, &run),
        published::novell().iter().map(|row| row.mb_per_s),
    );
}

#[test]
fn a_link_bounds_one_open_io() {
    let links = profiles();
    let bound =
        |name: &str| report::at_most(links.iter().find(|profile| profile.name == name).unwrap());
    assert_eq!(bound(PLAIN), None);
    assert!((bound("100 Mbit/s").unwrap() - 12.5).abs() < 1e-9);
    assert!((bound("10 ms each way").unwrap() - 3.2768).abs() < 1e-9);
}
