use super::*;
use crate::record::Setting;
use crate::report::{Block, Cell, Section, Table};

/// Returns a run in the layout of bonnie++ 1.03, with a given block rate, creations that were too quick to measure, and
/// no deletions.
fn line(machine: &str, put_block: u32) -> String {
    format!(
        "{machine},2G,45853,95,{put_block},24,30009,7,50453,92,72627,5,546.3,0,16,+++++,+++,+++++,\
         +++,,,3747,98,+++++,+++,,"
    )
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

fn run_of(samples: Vec<Sample>) -> Run {
    Run {
        id: 1,
        study: "lunden".into(),
        scale: Scale::Full,
        command: "sarsen lab run lunden".into(),
        began_at: 0,
        ended_at: Some(1),
        targets_under_test: Vec::new(),
        setting: Setting::default(),
        samples,
    }
}

fn section<'a>(report: &'a Report, heading: &str) -> &'a Section {
    let found = report.sections.iter().find(|section| section.heading == heading);
    found.unwrap_or_else(|| panic!("no section {heading}"))
}

fn row<'a>(table: &'a Table, name: &str) -> &'a [Cell] {
    let found = table.rows.iter().find(|row| row[0] == Cell::Text(name.into()));
    found.unwrap_or_else(|| panic!("no row {name}"))
}

fn number(cell: &Cell) -> f64 {
    match cell {
        Cell::Number { value, .. } | Cell::Published { value, .. } => *value,
        other => panic!("no number: {other:?}"),
    }
}

#[test]
fn plans_have_their_own_cells_and_the_quick_one_is_quick() {
    super::super::soundness::plans(&Lunden);
}

#[test]
fn the_table_has_the_studys_statistics_and_its_own_beside() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (1..=9).map(|run| line("keeper", run * run * 1000) + "\n").collect();
    let path = write(folder.path(), "iscsi-3-vms.csv", &lines);
    let report = Lunden.report(&run_of(run_from_files(&[path]).unwrap()));
    let section = section(&report, "iscsi-3-vms");
    let tables = section.tables();
    let [own, published] = tables[..] else { panic!("two tables") };
    let put_block: Vec<f64> = row(own, "put_block")[2..10].iter().map(number).collect();
    // 1, 4, 9, … 81 thousand: mean 285/9, variance (15333/9 - mean²), in millions.
    let mean = 285_000.0 / 9.0;
    let expected = [mean, 25_000.0, mean - 25_000.0];
    assert!(put_block.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-6));
    let variance = 15_333e6 / 9.0 - mean * mean;
    assert!((put_block[3] / variance - 1.0).abs() < 1e-12, "{put_block:?}");
    assert_eq!(put_block[4..], [1000.0, 81_000.0, 80_000.0, 9.0]);
    // Nine equal figures: no gap, and a variance of 0, where the study prints nan.
    let rewrite_cpu: Vec<f64> = row(own, "rewrite_cpu")[2..10].iter().map(number).collect();
    assert_eq!(rewrite_cpu, [7.0, 7.0, 0.0, 0.0, 7.0, 7.0, 0.0, 9.0]);
    // Operations that were too quick do not count as 0, and omitted operations have no row.
    assert!(matches!(row(own, "seq_create")[2], Cell::NotMeasured(_)));
    assert_eq!(number(&row(own, "seq_create")[10]), 9.0);
    assert!(own.rows.iter().all(|row| row[0] != Cell::Text("ran_del".into())));
    assert_eq!(number(&row(published, "put_block")[2]), 15246.657);
    for table in &tables {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
    }
    let histograms: Vec<_> = section
        .blocks
        .iter()
        .filter_map(|block| match block {
            Block::Bars(bars) => Some(bars.series[0].name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(histograms, ["put_block"]);
}

/// Returns the set-ups of a run that consists of these files.
fn setups(files: &[PathBuf]) -> Vec<String> {
    let run = run_of(run_from_files(files).unwrap());
    run.values(SETUP).into_iter().map(ToOwned::to_owned).collect()
}

#[test]
fn set_ups_are_files_or_machines() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (line("one", 1) + "\n", line("other", 2) + "\n");
    let mixed = write(folder.path(), "mixed.csv", &format!("{one}{other}{one}"));
    let plain = write(folder.path(), "plain.csv", &one);
    fs::create_dir(folder.path().join("b")).unwrap();
    let same = write(folder.path(), "b/plain.csv", &one);
    assert_eq!(setups(std::slice::from_ref(&mixed)), ["one", "other"]);
    assert_eq!(setups(&[mixed.clone(), plain.clone()]), ["mixed one", "mixed other", "plain"]);
    let paths = [plain, same].map(|path| path.display().to_string());
    assert_eq!(setups(&paths.clone().map(PathBuf::from)), paths);

    let run = run_of(run_from_files(&[mixed]).unwrap());
    let labels = Labels::new().with(SETUP, "one").with(OPERATION, "putc");
    let repetitions: Vec<_> = run.cells(&labels).map(|sample| sample.repetition).collect();
    assert_eq!(repetitions, [1, 2]);
    let report = Lunden.report(&run);
    let means = section(&report, "Comparison of the set-ups").tables();
    assert_eq!(means[0].columns, ["Figure", "Unit", "one", "other", "iscsi base (Lunden)"]);
}

#[test]
fn other_lines_are_samples_without_an_operation() {
    let folder = tempfile::tempdir().unwrap();
    let cut = &line("keeper", 1)[..40];
    let text = format!("Writing a byte at a time...done\n{}\n{cut}", line("keeper", 1));
    let path = write(folder.path(), "a.csv", &text);
    let run = run_of(run_from_files(&[path]).unwrap());
    let others: Vec<_> =
        run.samples.iter().filter(|sample| sample.labels.value(OPERATION).is_none()).collect();
    let [words, cut] = others[..] else { panic!("{others:?}") };
    assert!(matches!(&words.outcome, Outcome::NotMeasured(what) if what.contains("a.csv:1: ")));
    assert!(matches!(&cut.outcome, Outcome::Failed(what) if what.contains("a.csv:3: ")));
    let report = Lunden.report(&run);
    let Block::List(shown) = &section(&report, "Lines that are not runs").blocks[1] else {
        panic!("a list")
    };
    assert_eq!(shown.len(), 2);
}

#[test]
fn files_without_runs_are_refused_with_their_content() {
    let folder = tempfile::tempdir().unwrap();
    let empty = write(folder.path(), "empty.csv", "");
    let error = run_from_files(&[empty]).unwrap_err().to_string();
    assert!(error.contains("empty.csv: it has no result of bonnie++; use the output"), "{error}");
    let other = write(folder.path(), "other.csv", "a,b\n");
    let error = run_from_files(&[other]).unwrap_err().to_string();
    assert!(error.contains("other.csv:1: 2 fields"), "{error}");
    let absent = folder.path().join("absent.csv");
    let error = run_from_files(&[absent]).unwrap_err().to_string();
    assert!(error.contains("absent.csv: No such file"), "{error}");
}

#[test]
fn runs_of_different_sizes_are_not_taken_together_silently() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{}\n{}\n", line("a", 1), line("a", 2).replace(",2G,", ",4G,"));
    let path = write(folder.path(), "a.csv", &text);
    let report = Lunden.report(&run_of(run_from_files(&[path]).unwrap()));
    let Block::Text(conditions) = &section(&report, "a").blocks[0] else { panic!("a text") };
    assert!(conditions.contains("file: 2G, 4G") && conditions.contains("differ"), "{conditions}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let error = run_once(Path::new("/proc/self"), &[], 1).unwrap_err().to_string();
    assert!(error.starts_with("/proc/self: cannot create a folder in it: "), "{error}");
}

#[test]
fn a_report_of_nothing_is_a_report() {
    let report = Lunden.report(&run_of(Vec::new()));
    assert!(report.sections.is_empty());
}
