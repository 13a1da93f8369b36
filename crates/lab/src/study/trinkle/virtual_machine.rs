//! The access specifications from a virtual machine. Half of the thesis's runs were: its virtual machine had its disk from
//! the hypervisor, whose initiator reached the target.

use std::time::Duration;

use super::super::virtual_initiator::ABOUT;
use super::super::{Initiator, Point, layout, load_for};
use super::{AS_IT_IS, MTU, MTUS, NOISE, SPECIFICATION, TARGET, TEST, THEIRS, frames, metric};
use crate::access::{self, NamedPattern};
use crate::guest::DiskForm;
use crate::network::LinkProfile;
use crate::published;
use crate::record::{Labels, Run, Scale};
use crate::report::{Block, Cell, Section, Table};
use crate::statistics::{Difference, Summary};
use crate::target_under_test::TargetUnderTest;

/// Value of [`TEST`] of all cells here.
const NAME: &str = "Virtual initiator";

/// Approximate time of an attachment.
const ATTACHMENT: Duration = Duration::from_secs(8);
/// The only specification of a quick run, for the first target and with standard frames: an attachment takes longer than its
/// measurement.
const QUICK: &str = "Maximum IOPS";

fn labels(target: &str, mtu: &str, specification: &str) -> Labels {
    Labels::new()
        .with(TARGET, target)
        .with(TEST, NAME)
        .with(MTU, mtu)
        .with(SPECIFICATION, specification)
}

/// Returns the cells of all targets over these links, which are given with their labels.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    links: &[(String, LinkProfile)],
    volume: &str,
    scale: Scale,
    [warm_up, duration]: [Duration; 2],
) -> Vec<Point> {
    let is_measured = |mtu: &str, specification: &str, target: usize| match scale {
        Scale::Full => true,
        Scale::Quick => mtu != MTUS[1].to_string() && specification == QUICK && target == 0,
    };
    let mut points = Vec::new();
    for (mtu, link) in links {
        for &NamedPattern { name, access } in &access::NAMED {
            for (index, target_under_test) in targets_under_test.iter().enumerate() {
                if is_measured(mtu, name, index) {
                    points.push(Point {
                        labels: labels(&target_under_test.to_string(), mtu, name),
                        target_under_test: index,
                        volume: volume.into(),
                        link: link.name.clone(),
                        initiator: Initiator::Virtual(DiskForm::VirtioScsi),
                        writes: access.read_percent < 100,
                        time: ATTACHMENT + warm_up + duration,
                        measurement: load_for(access, warm_up, duration),
                    });
                }
            }
        }
    }
    points
}

/// Returns the target of the thesis that a target of ours corresponds to. Its IET had the configuration of tgt.
fn theirs(target: &str) -> Option<&'static str> {
    match target.strip_suffix("-in-guest").unwrap_or(target) {
        "tgt" => Some(THEIRS[0]),
        "scst" => Some(THEIRS[1]),
        "lio" => Some(THEIRS[2]),
        "istgt" => Some(THEIRS[3]),
        _ => None,
    }
}

fn published(target: &str, initiator: &str, mtu: &str, specification: &str) -> Option<f64> {
    let mtu = mtu.parse().unwrap_or(MTUS[0]);
    published::trinkle_mean(theirs(target)?, initiator, mtu, specification)
}

/// Returns the section about the virtual initiator.
pub(super) fn section(run: &Run) -> Option<Section> {
    run.cells(&Labels::new().with(TEST, NAME)).next()?;
    let mut blocks = vec![Block::Text(format!(
        "The virtual initiator is {}. The load runs in it. It differs from the physical one in the emulation of its processor, in its \
         initiator and in its kernel: a difference between the two is not an overhead of virtualization. The IET of the thesis had the \
         configuration of tgt, so it is beside tgt.",
        ABOUT
    ))];
    blocks.extend(run.values(TARGET).into_iter().filter_map(|target| of_target(run, target)));
    blocks.push(between_targets(run));
    blocks.extend(overhead(run).map(Block::Text));
    Some(Section { heading: "Virtual and physical initiator".into(), blocks })
}

/// Returns the table of a target in the form of the thesis's figures 4.1 to 4.16: both initiators with both frames.
fn of_target(run: &Run, target: &str) -> Option<Block> {
    let of = |mtu: &str| Labels::new().with(TARGET, target).with(TEST, NAME).with(MTU, mtu);
    let is_measured = |mtu: &&str| run.cells(&of(mtu)).next().is_some();
    let mtus: Vec<_> = run.values(MTU).into_iter().filter(is_measured).collect();
    if mtus.is_empty() {
        return None;
    }
    let mut columns = vec!["Test".to_owned(), "Unit".into()];
    for mtu in &mtus {
        let mtu = if *mtu == AS_IT_IS { "" } else { mtu };
        columns
            .extend(["physical", "virtual"].map(|name| format!("{name} {mtu}").trim().to_owned()));
        columns.push(format!("virtual against physical {mtu}").trim().to_owned());
        if let Some(theirs) = theirs(target) {
            columns.push(
                format!("{theirs} {mtu}, virtual against physical (2013)").replace(" ,", ","),
            );
        }
    }
    let jumbo = <[&str; 2]>::try_from(&mtus[..]).ok();
    if jumbo.is_some() {
        columns.push("virtual: jumbo against standard".into());
        columns.extend(
            theirs(target)
                .map(|theirs| format!("{theirs}, virtual: jumbo against standard (2013)")),
        );
    }
    let mut rows = Vec::new();
    for test in super::tests() {
        if run.cells(&Labels::new().with(TEST, NAME).with(SPECIFICATION, test)).next().is_none() {
            continue;
        }
        let (figure, unit, decimals) = metric(test);
        let physical = |mtu: &str| super::labels(target, mtu, test);
        let virtual_ = |mtu: &str| labels(target, mtu, test);
        let mut row = vec![layout::text(test), layout::text(unit)];
        for mtu in &mtus {
            row.push(layout::cell(run, &physical(mtu), figure, decimals));
            row.push(layout::cell(run, &virtual_(mtu), figure, decimals));
            let values = |labels: &Labels| run.figures(labels, figure);
            row.push(layout::change(&values(&physical(mtu)), &values(&virtual_(mtu))));
            if theirs(target).is_some() {
                let mean = |initiator| published(target, initiator, mtu, test);
                row.push(pair_change(mean("physical"), mean("virtual")));
            }
        }
        if let Some([standard, jumbo]) = jumbo {
            let values = |mtu| run.figures(&virtual_(mtu), figure);
            row.push(layout::change(&values(standard), &values(jumbo)));
            if theirs(target).is_some() {
                let mean = |mtu| published(target, "virtual", mtu, test);
                row.push(pair_change(mean(standard), mean(jumbo)));
            }
        }
        rows.push(row);
    }
    Some(Block::Table(Table {
        caption: format!("{target}: both initiators, means"),
        columns,
        rows,
        notes: vec![NOISE.into()],
        ..Table::default()
    }))
}

fn pair_change(before: Option<f64>, after: Option<f64>) -> Cell {
    before.zip(after).map_or(Cell::Empty, |(before, after)| layout::published_change(before, after))
}

/// Returns the table in the form of the thesis's figures 4.17 and 4.18: the targets from the virtual initiator, with standard
/// frames.
fn between_targets(run: &Run) -> Block {
    let mtu = run.values(MTU).first().copied().unwrap_or_default();
    let has = |dimension: &str, value: &str| {
        run.cells(&Labels::new().with(TEST, NAME).with(dimension, value)).next().is_some()
    };
    let targets: Vec<_> =
        run.values(TARGET).into_iter().filter(|target| has(TARGET, target)).collect();
    let table = super::means(
        run,
        &targets,
        super::tests().filter(|test| has(SPECIFICATION, test)),
        |target, test| labels(target, mtu, test),
        |target, test| {
            let mtu = mtu.parse().unwrap_or(MTUS[0]);
            published::trinkle_mean(target, "virtual", mtu, test)
        },
    );
    let caption = format!("The targets from the virtual initiator with {}, means", frames(mtu));
    Block::Table(Table { caption, ..table })
}

/// Returns in how many cells each initiator is ahead, which the thesis found to be mixed.
fn overhead(run: &Run) -> Option<String> {
    let (mut virtual_ahead, mut physical_ahead, mut noise) = (0, 0, 0);
    let mut ratios = Vec::new();
    for target in run.values(TARGET) {
        for mtu in run.values(MTU) {
            for test in super::tests() {
                let figure = metric(test).0;
                let physical = run.figures(&super::labels(target, mtu, test), figure);
                let virtual_ = run.figures(&labels(target, mtu, test), figure);
                let Some(difference) = Difference::between(&physical, &virtual_) else { continue };
                ratios.push(1.0 + difference.relative);
                if !difference.is_real() {
                    noise += 1;
                } else if difference.relative > 0.0 {
                    virtual_ahead += 1;
                } else {
                    physical_ahead += 1;
                }
            }
        }
    }
    let median = Summary::of(&ratios)?.median;
    Some(format!(
        "The physical initiator is ahead in {physical_ahead} cells, the virtual one in {virtual_ahead}, and {noise} differences are \
         noise; the median of the ratio of virtual to physical is {:.0} %, most of which is the emulation. The thesis found neither ahead \
         throughout (4.7), and no measurable overhead of virtualization beyond 1 or 2 MB/s in most cases (5.1).",
        100.0 * median
    ))
}
