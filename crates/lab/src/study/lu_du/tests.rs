use super::super::soundness;
use super::*;
use crate::published;

#[test]
fn a_target_that_the_lab_does_not_start_needs_one_volume() {
    let target: TargetUnderTest = "iscsi://192.0.2.1/iqn.2026-11.example:a/0".parse().unwrap();
    let choices = Choices { targets_under_test: vec![target], ..Choices::of_study(Scale::Full) };
    let plan = LuDu.plan(&choices);
    assert_eq!(plan.volumes.len(), 1);
    assert!(plan.points.iter().all(|point| point.volume == VOLUME));
}

#[test]
fn the_plans_can_be_carried_out_and_the_quick_one_is_quick() {
    soundness::plans(&LuDu);
    let plan = LuDu.plan(&Choices::of_study(Scale::Full));
    let trace = plan.points.iter().filter(|point| point.labels.value(PART) == Some(TRACE));
    assert_eq!(trace.count(), 3 * 3 + 1, "three over three networks, one over none");
    assert!(plan.volumes[0].bytes > LU_DU_TRACE.last_lba * 512 + u64::from(TRACE_BYTES));
}

#[test]
fn every_published_figure_is_shown_beside_ours() {
    let run = soundness::run(&LuDu, Scale::Quick, &[]);
    let report = soundness::report(&LuDu, &run);
    soundness::shows(&report, published::lu_du().iter().map(|row| row.value));
}

#[test]
fn unmeasured_cells_have_reason() {
    let failures = [
        (Labels::new().with(NETWORK, "WAN"), "no namespaces"),
        (Labels::new().with(TARGET, "tgt").with(PART, TRACE), "tgt has died"),
    ];
    let run = soundness::run(&LuDu, Scale::Full, &failures);
    let report = soundness::report(&LuDu, &run);
    for (_, reason) in failures {
        soundness::says(&report, reason);
    }
}

#[test]
fn a_quick_run_imitates_networks_for_one_target_alone() {
    let choices = Choices {
        targets_under_test: vec![
            TargetUnderTest::Direct,
            TargetUnderTest::Istgt,
            TargetUnderTest::Tgt,
        ],
        ..Choices::of_study(Scale::Quick)
    };
    let plan = LuDu.plan(&choices);
    let far: Vec<_> = plan.points.iter().filter(|point| point.link == "wan").collect();
    assert!(!far.is_empty() && far.iter().all(|point| point.target_under_test == 1), "{far:?}");
    let direct = plan.points.iter().filter(|point| point.target_under_test == 0);
    assert!(direct.clone().all(|point| point.labels.value(NETWORK) == Some(NO_NETWORK)));
    assert!(direct.count() > 0);
}

#[test]
fn a_trace_takes_its_time_on_the_line_or_under_way() {
    let [lan, campus, wan] = ways();
    assert_eq!(trace_time(&lan, 8626), Duration::ZERO);
    let on_the_line = trace_time(&campus, 1000).as_secs_f64();
    assert!((on_the_line - 0.7 * 12.288e6 * 8.0 / 1e8).abs() < 1e-6, "{on_the_line}");
    assert_eq!(trace_time(&wan, 3200), Duration::from_secs(4));
}
