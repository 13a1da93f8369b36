//! A real browser opens a report of the lab. Ignored by default: the browser is large. `cargo xtask ci --full` runs it.
//! The reports stay in cargo's folder for tests, for inspection.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use sarsen_lab::access::{self, NamedPattern};
use sarsen_lab::record::{Labels, Measures, Outcome, Run, Sample, Scale, Setting, figure};
use sarsen_lab::report::{
    self, Axis, BarSeries, Bars, Block, Cell, Format, LineSeries, Lines, Report, Section, Table,
};
use sarsen_proof::{process, program};
use serde_json::Value;

/// Maximum duration of a browser's start on a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Maximum duration of a quick study on a loaded machine.
const STUDY_LIMIT: Duration = Duration::from_secs(900);

/// A page that loads the report in frames of two widths, measures its content, and prints the result as text.
const GAUGE: &str = include_str!("report/gauge.html");

/// Blink's numbers for the preferred theme.
const DARK: &str = "0";
const LIGHT: &str = "1";

/// Returns a browser without a window, a network or a history.
fn browser(profile: &Path, theme: &str) -> Command {
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--allow-file-access-from-files",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        "--v=0",
        "--virtual-time-budget=10000",
    ]);
    command.arg(format!("--blink-settings=preferredColorScheme={theme}"));
    command.arg(format!("--user-data-dir={}", profile.display()));
    command
}

/// Returns the measurements of the report in a folder, by the width of its window.
fn gauged(folder: &Path, theme: &str) -> Result<Value> {
    fs::write(folder.join("gauge.html"), GAUGE)?;
    let profile = tempfile::tempdir()?;
    let mut command = browser(profile.path(), theme);
    command.arg("--dump-dom").arg(format!("file://{}", folder.join("gauge.html").display()));
    let output = process::output(&mut command, LIMIT)?;
    let complaints = output.lines().filter(|line| line.contains("CONSOLE"));
    assert_eq!(complaints.collect::<Vec<_>>(), [""; 0], "the console is quiet");
    let said =
        output.split_once("<pre id=\"said\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (said, _) = said.with_context(|| format!("the gauge said nothing:\n{output}"))?;
    Ok(serde_json::from_str(said)?)
}

/// Returns the folder for reports that can be inspected later.
fn folder(name: &str) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn count(facts: &Value, name: &str) -> u64 {
    facts[name].as_u64().unwrap_or_else(|| panic!("{name} of {facts}"))
}

#[test]
#[ignore = "starts a browser"]
fn a_browser_draws_every_chart_in_both_themes_on_wide_and_narrow_screens() -> Result<()> {
    let folder = folder("report")?;
    let (report, run) = sample();
    for format in Format::ALL {
        let path = folder.join("report").with_extension(format.extension());
        report::write(format, &report, &run, &mut File::create(path)?)?;
    }
    for (theme, dark) in [(LIGHT, false), (DARK, true)] {
        let pages = gauged(&folder, theme)?;
        let pages = pages.as_array().context("a page for each width")?;
        assert_eq!(pages.len(), 2);
        for page in pages {
            assert_eq!(page["dark"], dark);
            for name in ["overflow", "fetched", "sources", "foreign", "broken", "faint"] {
                assert_eq!(count(page, name), 0, "{name}: {page}");
            }
            // The report's own tables, and those about the method of measurement, including the plan.
            assert_eq!(count(page, "tables"), 7);
            let charts = page["charts"].as_array().context("charts")?;
            assert_eq!(charts.len(), 4);
            for chart in charts {
                assert_eq!(chart["named"], true);
                assert_eq!(chart["sticksOut"], false, "{chart}");
                assert!(chart["height"].as_f64() > Some(150.0), "{chart}");
                assert!(chart["filled"].as_f64() > Some(0.8), "{chart}");
                assert!(count(chart, "texts") > 6 && count(chart, "rows") > 1, "{chart}");
            }
            // Three targets and four accesses, of which one was not measured.
            assert_eq!(count(&charts[0], "bars"), 11);
            assert_eq!(count(&charts[1], "bars"), 8);
            for (chart, series) in [(&charts[2], 3), (&charts[3], 2)] {
                assert!(count(chart, "lines") >= series, "{chart}");
                assert!(count(chart, "marks") >= 4 * series, "{chart}");
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "starts a browser"]
fn a_browser_takes_hostile_names_for_names() -> Result<()> {
    const NAME: &str = "</title></style><script>document.title='taken'</script>\
                        <img src=http://example.invalid/ onerror=\"document.title='taken'\">";
    let folder = folder("hostile-report")?;
    let (mut report, mut run) = sample();
    report.title = NAME.into();
    for block in report.sections.iter_mut().flat_map(|section| &mut section.blocks) {
        match block {
            Block::Text(text) => *text = NAME.into(),
            Block::List(texts) | Block::Commands(texts) => texts.fill(NAME.into()),
            Block::Table(table) => {
                table.caption = NAME.into();
                table.columns.fill(NAME.into());
                table.rows[0].fill(Cell::Failed(NAME.into()));
            }
            Block::Bars(bars) => {
                bars.groups.fill(NAME.into());
                bars.series[0].name = NAME.into();
            }
            Block::Lines(lines) => lines.x.label = NAME.into(),
        }
    }
    run.command = NAME.into();
    run.study = NAME.into();
    report::write(Format::Html, &report, &run, &mut File::create(folder.join("report.html"))?)?;
    let pages = gauged(&folder, LIGHT)?;
    for page in pages.as_array().context("a page for each width")? {
        for name in ["overflow", "fetched", "sources", "foreign", "broken"] {
            assert_eq!(count(page, name), 0, "{name}: {page}");
        }
        assert_eq!(page["charts"].as_array().map(Vec::len), Some(4));
    }
    let profile = tempfile::tempdir()?;
    let mut command = browser(profile.path(), LIGHT);
    command.arg("--dump-dom").arg(format!("file://{}", folder.join("report.html").display()));
    let document = process::output(&mut command, LIMIT)?;
    assert!(!document.contains("<title>taken</title>"), "{document}");
    assert!(!document.contains("<script") && !document.contains("<img"), "{document}");
    Ok(())
}

const ACCESSES: [&str; 4] =
    ["Maximum Throughput", "Maximum IOPS", "Maximum Write Throughput", "Maximum Write IOPS"];

/// Runs a quick study like a user; returns its output and writes its report to `folder`.
fn studied(study: &str, arguments: &[&str], folder: &Path) -> Result<String> {
    let archive = tempfile::tempdir()?;
    let mut command = Command::new(program::path()?);
    command.args(["lab", "run", study]).args(arguments).arg("--folder").arg(archive.path());
    command.arg("--archive").arg(archive.path().join("lab.sqlite"));
    command.arg("--report").arg(folder.join("report.html"));
    process::output(&mut command, STUDY_LIMIT).map_err(Into::into)
}

/// Checks that every chart of a report is drawn, on wide and narrow screens; returns the number of charts.
fn drawn(folder: &Path) -> Result<usize> {
    let pages = gauged(folder, LIGHT)?;
    let pages = pages.as_array().context("a page for each width")?;
    let mut count_of_charts = 0;
    for page in pages {
        for name in ["overflow", "fetched", "sources", "foreign", "broken", "faint"] {
            assert_eq!(count(page, name), 0, "{name}: {page}");
        }
        let charts = page["charts"].as_array().context("charts")?;
        count_of_charts = charts.len();
        for chart in charts {
            assert_eq!(chart["named"], true);
            assert_eq!(chart["sticksOut"], false, "{chart}");
            assert!(chart["height"].as_f64() > Some(150.0), "{chart}");
            assert!(count(chart, "bars") + count(chart, "lines") > 0, "{chart}");
        }
    }
    Ok(count_of_charts)
}

#[test]
#[ignore = "starts a browser, and takes as long as the study"]
fn trinkles_quick_study_ends_with_its_tables_and_a_report_that_a_browser_draws() -> Result<()> {
    let folder = folder("trinkle")?;
    let said = studied("trinkle", &["--quick"], &folder)?;
    for name in ["sarsen", "tgt", "istgt", "IET (2013)", "SCST (2013)", "LIO (2013)"] {
        assert!(said.contains(name), "{name}:\n{said}");
    }
    for NamedPattern { name, .. } in &access::NAMED {
        assert!(said.contains(name), "{name}:\n{said}");
    }
    // Bars of IOPS and MB/s, and for three accesses the latencies and the values over time.
    assert!(drawn(&folder)? >= 8);
    Ok(())
}

#[test]
#[ignore = "starts a browser, and takes as long as the studies"]
fn every_other_quick_study_ends_with_a_report_that_a_browser_draws() -> Result<()> {
    for study in ["novell", "lu-du", "aravindan"] {
        let folder = folder(study)?;
        studied(study, &["--quick"], &folder).with_context(|| study.to_owned())?;
        assert!(drawn(&folder)? > 0, "{study}");
    }
    Ok(())
}

fn sample() -> (Report, Run) {
    let figures = Section {
        heading: "I/Os a second".into(),
        blocks: vec![
            Block::Text("Each access is measured five times, the targets in turn.".into()),
            Block::Bars(iops()),
            Block::Table(iops_table()),
            Block::Bars(cpu()),
        ],
    };
    let latency = Section {
        heading: "Latency and depth".into(),
        blocks: vec![
            Block::Lines(depth()),
            Block::Lines(percentiles()),
            Block::List(vec!["sarsen: one core".into(), "tgt: one core, 16 threads".into()]),
            Block::Table(heat()),
        ],
    };
    let report = Report {
        title: "Sample: three targets, four accesses".into(),
        summary: vec![
            "Made-up figures of every kind that a report can hold, drawn as those of a study \
             would be. They say nothing about any target."
                .into(),
        ],
        sections: vec![figures, latency],
    };
    (report, run())
}

/// The reason of a cell without a figure.
const FAILURE: &str = "tgt closed the connection after 31 s: Reject, reason 04h";

fn iops() -> Bars {
    let measured = |values: [f64; 4]| values.map(Some);
    Bars {
        caption: "I/Os a second by access".into(),
        unit: "IOPS".into(),
        groups: ACCESSES.map(Into::into).to_vec(),
        series: vec![
            iops_of(
                "sarsen",
                false,
                measured([4_112.4, 88_291.2, 3_981.0, 79_433.8]),
                [80.0, 2455.3, 95.1, 3120.0],
            ),
            iops_of(
                "tgt",
                false,
                [Some(3_012.0), Some(41_230.0), None, Some(39_872.1)],
                [61.0, 1803.0, 0.0, 992.5],
            ),
            iops_of(
                "IET, 2013",
                true,
                measured([2_301.0, 45_291.26, 2_114.0, 45_382.79]),
                [0.0; 4],
            ),
        ],
        notes: vec![
            "Error bars are 95\u{a0}% confidence intervals. tgt did not complete 512 KiB writes."
                .into(),
        ],
    }
}

fn iops_of(
    name: &str,
    published: bool,
    values: [Option<f64>; 4],
    half_widths: [f64; 4],
) -> BarSeries {
    BarSeries {
        name: name.into(),
        published,
        values: values.to_vec(),
        half_widths: half_widths.map(|half| (half > 0.0).then_some(half)).to_vec(),
    }
}

fn iops_table() -> Table {
    let interval =
        |mean, half_width| Cell::Interval { mean, half_width: Some(half_width), decimals: 1 };
    let number = |mean| Cell::Interval { mean, half_width: None, decimals: 1 };
    let published = |value| Cell::Published { value, decimals: 2 };
    let change = |percent| Cell::Change { percent, decimals: 1 };
    Table {
        caption: "I/Os a second by access and target".into(),
        columns: ["Access", "sarsen", "tgt", "IET, 2013", "sarsen to tgt"].map(Into::into).to_vec(),
        rows: vec![
            row_of_access(
                0,
                [
                    interval(4_112.4, 80.0),
                    interval(3_012.0, 61.0),
                    published(2_301.0),
                    change(36.5),
                ],
            ),
            row_of_access(
                1,
                [
                    interval(88_291.2, 2_455.3),
                    interval(41_230.0, 1_803.0),
                    published(45_291.26),
                    change(114.1),
                ],
            ),
            row_of_access(
                2,
                [
                    interval(3_981.0, 95.1),
                    Cell::Failed(FAILURE.into()),
                    published(2_114.0),
                    Cell::Empty,
                ],
            ),
            row_of_access(
                3,
                [
                    number(79_433.8),
                    Cell::NotMeasured(
                        "the link could not be made: no permission for network namespaces".into(),
                    ),
                    published(45_382.79),
                    change(-2.25),
                ],
            ),
        ],
        notes: vec!["IET, 2013: virtual machines over 1 Gbit/s Ethernet, MTU 1500.".into()],
        heat: false,
    }
}

/// Returns a row that begins with the name of its access.
fn row_of_access(access: usize, cells: [Cell; 4]) -> Vec<Cell> {
    [Cell::Text(ACCESSES[access].into())].into_iter().chain(cells).collect()
}

fn cpu() -> Bars {
    let groups = ["RTT 0 ms", "RTT 1 ms", "RTT 5 ms", "RTT 20 ms"].map(Into::into).to_vec();
    Bars {
        caption: "CPU time of the target for an I/O".into(),
        unit: "µs".into(),
        groups,
        series: vec![
            cpu_time_of("sarsen", [4.1, 4.3, 4.9, 6.2]),
            cpu_time_of("tgt", [9.8, 10.1, 11.7, 13.0]),
        ],
        notes: Vec::new(),
    }
}

fn cpu_time_of(name: &str, values: [f64; 4]) -> BarSeries {
    BarSeries {
        name: name.into(),
        values: values.map(Some).to_vec(),
        half_widths: values.map(|value| Some(value * 0.06)).to_vec(),
        ..BarSeries::default()
    }
}

fn depth() -> Lines {
    let depths = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
    let series = |name: &str, most: f64, half: f64, published| LineSeries {
        name: name.into(),
        published,
        points: depths.map(|depth| (depth, most * depth / (depth + half))).to_vec(),
        half_widths: if published {
            Vec::new()
        } else {
            depths.map(|depth| Some(depth * 28.0)).to_vec()
        },
    };
    Lines {
        caption: "I/Os a second by depth".into(),
        x: Axis { label: "I/Os kept open".into(), logarithmic: true },
        y: Axis { label: "IOPS".into(), logarithmic: false },
        series: vec![
            series("sarsen", 96_000.0, 5.0, false),
            series("tgt", 47_000.0, 3.0, false),
            series("IET, 2013", 52_000.0, 9.0, true),
        ],
        notes: Vec::new(),
    }
}

fn percentiles() -> Lines {
    Lines {
        caption: "Latencies of random 4 KiB reads".into(),
        x: Axis { label: "latency, µs".into(), logarithmic: true },
        y: Axis { label: "I/Os that took no longer, %".into(), logarithmic: false },
        series: vec![latencies_of("sarsen", 61.0, 0.3), latencies_of("tgt", 118.0, 0.45)],
        notes: Vec::new(),
    }
}

fn latencies_of(name: &str, base: f64, spread: f64) -> LineSeries {
    let points = (0..200).map(|step| {
        let share = f64::from(step) / 200.0;
        (base * (1.0 + spread * (1.0 / (1.0 - share)).ln()).powi(2), share * 100.0)
    });
    LineSeries { name: name.into(), points: points.collect(), ..LineSeries::default() }
}

fn heat() -> Table {
    let bursts = [64_u32, 256, 1024];
    let rows = [0_u32, 1, 5, 20].map(|rtt| {
        let cell =
            |burst| Cell::Number { value: f64::from(burst) / (1.0 + f64::from(rtt)), decimals: 1 };
        [Cell::Text(format!("{rtt} ms"))].into_iter().chain(bursts.map(cell)).collect()
    });
    Table {
        caption: "Writes by round trip and FirstBurstLength (MB/s)".into(),
        columns: ["RTT", "64 KiB", "256 KiB", "1 MiB"].map(Into::into).to_vec(),
        rows: rows.to_vec(),
        heat: true,
        ..Table::default()
    }
}

fn run() -> Run {
    let failed = || Outcome::Failed(FAILURE.into());
    Run {
        id: 12,
        study: "sample".into(),
        scale: Scale::Full,
        command: "sarsen lab study sample --full --seed 1".into(),
        targets_under_test: vec!["sarsen".into(), "tgt".into()],
        began_at: 1_763_732_400,
        ended_at: Some(1_763_739_777),
        setting: Setting {
            plan: facts(&[("volumes", "lun: 1073741824 bytes, Ram, WriteBack")]),
            machine: facts(&[
                ("processor", "a processor of a well-known make at 2.60 GHz"),
                ("cores", "2"),
                ("memory", "7.8 GiB"),
                ("kernel", "Linux 6.1.0"),
            ]),
            versions: facts(&[("sarsen", "0.1.0"), ("tgt", "1.0.85")]),
            commands: vec!["tgtd -f --iscsi portal=127.0.0.1:0".into()],
            network: vec!["Two network namespaces and a veth pair; delays by netem.".into()],
            seed: 1,
        },
        samples: vec![
            sample_of("sarsen", ACCESSES[0], 1, measured(4_112.4)),
            sample_of("tgt", ACCESSES[2], 1, failed()),
            sample_of("tgt", ACCESSES[2], 2, failed()),
        ],
    }
}

fn sample_of(target: &str, access: &str, repetition: u32, outcome: Outcome) -> Sample {
    Sample {
        labels: Labels::new().with("target", target).with("access", access),
        repetition,
        ended_at: 1_763_736_000 + u64::from(repetition),
        outcome,
    }
}

fn measured(iops: f64) -> Outcome {
    let figures = [(figure::IOPS.into(), iops), (figure::P99_US.into(), 212.5)].into();
    Outcome::Measured(Measures { figures, ..Measures::default() })
}

fn facts(facts: &[(&str, &str)]) -> BTreeMap<String, String> {
    facts.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}
