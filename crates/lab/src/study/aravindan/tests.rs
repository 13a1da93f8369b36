use super::super::soundness;
use super::*;
use crate::published::aravindan::{FAILOVER_BY_FORMULA, FAILOVER_MEASURED};
use crate::report::Block;

#[test]
fn the_plans_can_be_carried_out_and_the_quick_one_is_quick() {
    soundness::plans(&Aravindan);
    let plan = Aravindan.plan(&Choices::of_study(Scale::Full));
    let in_a_machine = 4 * 3 * 2 + 2;
    let targets = 9;
    // The features of all but the bare medium, and six forms of a session with three faults each.
    let (features, recovery) = (targets - 1, 6 * 3);
    let parallel_jobs = LOADS.len() * targets;
    let (attachments, migration, power_failures) = (4 * 3 * 2, 1, 5 * 2);
    let others = PATHS.len()
        + TIMERS.len()
        + Fault::ALL.len()
        + parallel_jobs
        + features
        + recovery
        + attachments
        + migration
        + power_failures;
    assert_eq!(plan.points.len(), 5 * 3 * 2 * targets + in_a_machine + others);
    let modes: Vec<_> = plan.volumes.iter().map(|volume| volume.cache).collect();
    assert_eq!(modes, MODES.map(|mode| mode.cache));
}

#[test]
fn the_published_failover_and_order_stand_beside_ours() {
    let run = soundness::run(&Aravindan, Scale::Quick, &[]);
    let report = soundness::report(&Aravindan, &run);
    let published = [FAILOVER_BY_FORMULA, FAILOVER_MEASURED].map(|time| time.as_secs_f64());
    soundness::shows(&report, published.into_iter());
    let says = |words: &str| {
        let mut blocks = report.sections.iter().flat_map(|section| &section.blocks);
        blocks.any(|block| matches!(block, Block::Text(text) if text.contains(words)))
    };
    assert!(says("LIO, SCST, STGT"));
    assert!(says("recommends it"));
}

#[test]
fn unmeasured_cells_have_reason() {
    let failures = [
        (Labels::new().with(TARGET, "istgt").with(CACHE, "directsync"), "istgt only writes back"),
        (Labels::new().with(FAILOVER, Fault::Cut.name()), "namespaces"),
    ];
    let run = soundness::run(&Aravindan, Scale::Quick, &failures);
    let report = soundness::report(&Aravindan, &run);
    for (_, reason) in failures {
        soundness::says(&report, reason);
    }
}
