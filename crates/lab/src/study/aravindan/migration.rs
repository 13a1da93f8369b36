//! Live migration: a virtual machine moves to another process of the hypervisor while it writes to a volume that both have,
//! and reads again what it has written. The study chose a target in a virtual machine for it, among others, and did not measure it.

use std::time::Duration;

use super::super::{Initiator, Point, layout};
use super::report::LONGEST;
use super::{LOADS, MODES, OPERATIONS, TARGET};
use crate::access::AccessPattern;
use crate::guest::{DiskForm, Migration};
use crate::load::LoadResult;
use crate::network::LinkProfile;
use crate::record::{Labels, Measures, Outcome, Run, figure};
use crate::report::{Block, Section, Table};
use crate::study::Subject;
use crate::target_under_test::TargetUnderTest;

const MIGRATION: &str = "migration";
/// Its value: another process on the same machine.
const LIVE: &str = "live";

/// The form whose disks need no slot of the bus: both processes number those in their own order.
const FORM: DiskForm = DiskForm::VirtioScsi;
/// The mode whose writes both processes have at once.
const MODE: usize = 3;
/// The load: small I/Os, of which 70 % are reads.
const LOAD: (&str, AccessPattern) = LOADS[0];
const READ_PERCENT: u8 = OPERATIONS[2].1;
/// The load before a migration, and from there to its end: a migration takes about a second.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(4);
/// Approximate time of a migration with its load, and the reading of what was written.
const ROUND: Duration = Duration::from_secs(15);

/// Returns the cell of a target.
pub(super) fn point(target_under_test: &TargetUnderTest, rounds: u32) -> Point {
    Point {
        labels: Labels::new().with(TARGET, target_under_test).with(MIGRATION, LIVE),
        target_under_test: 0,
        volume: MODES[MODE].name.into(),
        link: LinkProfile::loopback().name,
        initiator: Initiator::Virtual(FORM),
        writes: true,
        time: ROUND * rounds,
        measurement: Box::new(move |subject| measure(subject, rounds)),
    }
}

fn measure(subject: &Subject<'_>, rounds: u32) -> Outcome {
    let Some((machine, form)) = subject.virtual_initiator else {
        return Outcome::NotMeasured("only a virtual machine migrates".into());
    };
    let access = AccessPattern { read_percent: READ_PERCENT, ..LOAD.1 };
    let mut options = subject.load_options(access);
    (options.warm_up, options.duration) = (Duration::ZERO, BEFORE + AFTER);
    options.verify = true;
    match machine.migrate(&options, form, (BEFORE, rounds)).and_then(|all| measures(&all)) {
        Ok(measures) => Outcome::Measured(measures),
        Err(reason) => Outcome::Failed(reason),
    }
}

/// Returns the figures of migrations with their loads. An error of an I/O, or a block with another content, is a failure.
fn measures(all: &[(Migration, LoadResult)]) -> Result<Measures, String> {
    let compared = all.iter().map(|(_, load)| load.verified()).sum::<Result<u64, _>>()?;
    let of = |figure: &dyn Fn(&(Migration, LoadResult)) -> Option<f64>| {
        let mut values: Vec<f64> = all.iter().filter_map(figure).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let downtimes = of(&|(migration, _)| Some(ms(migration.downtime)));
    let totals = of(&|(migration, _)| Some(ms(migration.total)));
    let slowdowns = of(&|(migration, load)| slowdown(*migration, load));
    let median = |values: &[f64]| values.get(values.len() / 2).copied();
    let figures = [
        (figure::DOWNTIME_MS, median(&downtimes)),
        (figure::LONGEST_DOWNTIME_MS, downtimes.last().copied()),
        (figure::MIGRATION_MS, median(&totals)),
        (figure::LONGEST_MIGRATION_MS, totals.last().copied()),
        (figure::SLOWDOWN_PERCENT, median(&slowdowns)),
    ];
    let figures = figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let list = downtimes.iter().map(|time| format!("{time:.0}")).collect::<Vec<_>>().join(" ");
    let texts = [
        ("downtimes (ms)".to_owned(), list),
        ("compared blocks".into(), compared.to_string()),
        ("migrations".into(), all.len().to_string()),
    ];
    Ok(Measures { figures: figures.collect(), texts: texts.into(), ..Measures::default() })
}

/// Returns by how much slower the load was while the machine moved and ran. The clock of the machine stops during the downtime.
fn slowdown(migration: Migration, load: &LoadResult) -> Option<f64> {
    let series = load.series.as_ref()?;
    let moved = BEFORE + migration.total.saturating_sub(migration.downtime);
    let mean = |from: Duration, to: Duration| {
        let at = |time: Duration| (time.as_secs_f64() / series.interval_s) as usize;
        let values = series.values.get(at(from)..at(to).min(series.values.len()))?;
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    // The first half of the load before it may be slower: nothing is in a cache yet.
    let before = mean(BEFORE / 2, BEFORE)?;
    Some((1.0 - mean(BEFORE, moved)? / before) * 100.0)
}

/// Returns the section about migrations.
pub(super) fn section(run: &Run) -> Section {
    let labels = Labels::new().with(MIGRATION, LIVE);
    let mut blocks = Vec::new();
    if run.cells(&labels).next().is_some() {
        let cell = |figure| layout::cell(run, &labels, figure, 0);
        let longest = |figure| layout::picked(run, &labels, figure, LONGEST, 1.0, 0);
        let rows = [
            ("downtime, median, ms", cell(figure::DOWNTIME_MS)),
            ("downtime, longest, ms", longest(figure::LONGEST_DOWNTIME_MS)),
            ("migration, median, ms", cell(figure::MIGRATION_MS)),
            ("migration, longest, ms", longest(figure::LONGEST_MIGRATION_MS)),
            ("I/Os fewer per second during it, %", cell(figure::SLOWDOWN_PERCENT)),
        ];
        let rows = rows.map(|(name, value)| vec![layout::text(name), value]);
        let texts = |name: &str| {
            let measures = run.cells(&labels).filter_map(|sample| match &sample.outcome {
                Outcome::Measured(measures) => measures.texts.get(name)?.parse::<u64>().ok(),
                _ => None,
            });
            measures.sum::<u64>()
        };
        let migrations = texts("migrations");
        let note = format!(
            "The machine moved {migrations} times to another process on this machine while it read and wrote a volume in the mode \
             {}. Each block that it had written was read again, {} in all, and had its content. The study did not measure it.",
            MODES[MODE].name,
            texts("compared blocks")
        );
        blocks.push(Block::Table(Table {
            caption: format!("Live migration of a virtual machine, {}", LOAD.0),
            columns: ["Figure", "Value"].map(Into::into).to_vec(),
            rows: rows.to_vec(),
            notes: if migrations > 0 { vec![note] } else { Vec::new() },
            ..Table::default()
        }));
    }
    Section { heading: "Live migration".into(), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Series;

    fn load(values: Vec<f64>) -> LoadResult {
        let json = serde_json::json!({
            "iops": 1.0, "mb_per_s": 1.0, "mean_us": 1.0, "min_us": 1.0, "p50_us": 1.0, "p99_us": 1.0, "p999_us": 1.0,
            "max_us": 1.0, "deviation_us": 1.0, "target_cpu_us_per_io": null, "client_cpu_us_per_io": 1.0, "errors": 0,
            "ios": 1, "seconds": 1.0, "steady": true, "latencies": [], "mismatches": 0, "verified_blocks": 7,
        });
        let load: LoadResult = serde_json::from_value(json).unwrap();
        LoadResult { series: Some(Series { interval_s: 0.5, values }), ..load }
    }

    const MOVED: Migration =
        Migration { downtime: Duration::from_millis(500), total: Duration::from_millis(1500) };

    #[test]
    fn the_load_is_slower_while_the_machine_moves_and_runs() {
        // Two seconds before, of which the second one counts; one second in which the machine moves; and what follows.
        let series = vec![9.0, 9.0, 100.0, 100.0, 50.0, 100.0, 100.0, 100.0];
        let measures = measures(&[(MOVED, load(series))]).unwrap();
        assert_eq!(measures.figures[figure::SLOWDOWN_PERCENT], 25.0);
        assert_eq!(measures.figures[figure::DOWNTIME_MS], 500.0);
        assert_eq!(measures.texts["compared blocks"], "7");
    }

    #[test]
    fn a_block_with_another_content_is_a_failure() {
        let other = LoadResult { mismatches: Some(1), ..load(Vec::new()) };
        assert!(measures(&[(MOVED, other)]).unwrap_err().contains("differed"));
        let failed = LoadResult { errors: 2, ..load(Vec::new()) };
        assert!(measures(&[(MOVED, failed)]).unwrap_err().contains("2 I/Os failed"));
        let unverified = LoadResult { mismatches: None, ..load(Vec::new()) };
        assert!(measures(&[(MOVED, unverified)]).is_err());
    }
}
