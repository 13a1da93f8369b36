//! libiscsi's suite (`iscsi-test-cu`), with one process for each family. If a test hangs or aborts, only that test is
//! lost: the other tests of the family then run one by one.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::process::{self, Finished};
use crate::serving::Url;

/// The suite's program, unless [`PROGRAM_VARIABLE`] names another.
const PROGRAM: &str = "iscsi-test-cu";
/// Environment variable with the path of another build of the suite's program, such as a build of its newest source.
const PROGRAM_VARIABLE: &str = "ISCSI_TEST_CU";
/// A family takes seconds; the slowest tests wait for replies that must not arrive.
const FAMILY_LIMIT: Duration = Duration::from_secs(60);
/// `Sanitize.Reset` checks once a minute whether the operation has ended.
const SLOW_LIMIT: Duration = Duration::from_secs(300);
/// Maximum duration of a single test.
const TEST_LIMIT: Duration = Duration::from_secs(20);
/// Number of hanging tests after which the target is considered dead.
const STUCK_LIMIT: usize = 5;
/// Families that use several paths. All other families get only the first path. They would use a second path for their
/// second initiator, which would then have the name of the first.
const MULTIPATH: [&str; 1] = ["MultipathIO"];
/// Names of the suite's two initiators.
const INITIATORS: [&str; 2] = ["iqn.2026-11.proof:a", "iqn.2026-11.proof:b"];

/// The result of one test of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The test ran without an error.
    Passed,
    /// The test reported that the target lacks all or part of the tested function.
    Skipped,
    /// The test reported an error.
    Failed,
    /// The test hung and was killed.
    Stuck,
    /// The suite's process ended during the test.
    Aborted,
}

/// One test of the suite.
#[derive(Clone, Debug)]
pub struct Test {
    /// Its name within the family.
    pub name: String,
    /// Result of the test.
    pub verdict: Verdict,
    /// The output of the test.
    pub said: String,
}

/// One family of tests.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name of the family, for example `Read10`.
    pub name: String,
    /// Tests of the family, in the suite's order.
    pub tests: Vec<Test>,
}

impl Test {
    /// Returns the reason for a skipped test, in the suite's words.
    pub fn reason(&self) -> &str {
        let reported = self.said.lines().find_map(|line| line.split_once("[SKIPPED]"));
        reported.map_or("", |(_, reason)| reason.trim())
    }
}

impl Family {
    /// Returns the number of tests with this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.tests.iter().filter(|test| test.verdict == verdict).count()
    }

    /// Returns the tests that show a fault.
    pub fn faults(&self) -> impl Iterator<Item = &Test> {
        self.tests.iter().filter(|test| !matches!(test.verdict, Verdict::Passed | Verdict::Skipped))
    }
}

/// The results of the suite.
#[derive(Clone, Debug)]
pub struct Report {
    /// Every family that ran.
    pub families: Vec<Family>,
}

impl Report {
    /// Returns a family by its name.
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// Returns the number of tests with this verdict, in all families.
    pub fn total(&self, verdict: Verdict) -> usize {
        self.families.iter().map(|family| family.count(verdict)).sum()
    }

    /// Returns the number of tests.
    pub fn test_count(&self) -> usize {
        self.families.iter().map(|family| family.tests.len()).sum()
    }

    /// Returns the tests with this verdict, each with the name of its family.
    pub fn ended(&self, verdict: Verdict) -> impl Iterator<Item = (&str, &Test)> {
        self.families
            .iter()
            .flat_map(|family| family.tests.iter().map(|test| (family.name.as_str(), test)))
            .filter(move |(_, test)| test.verdict == verdict)
    }

    /// Returns every fault with the output of its test.
    pub fn faults(&self) -> String {
        let mut text = String::new();
        for family in &self.families {
            for test in family.faults() {
                text += &format!("{}.{}: {:?}\n", family.name, test.name, test.verdict);
                for line in test.said.lines().filter(|line| !line.trim().is_empty()) {
                    text += &format!("    {}\n", line.trim());
                }
            }
        }
        text
    }
}

/// A table by family, with totals.
impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const COLUMNS: [(Verdict, &str); 5] = [
            (Verdict::Passed, "passed"),
            (Verdict::Failed, "failed"),
            (Verdict::Skipped, "skipped"),
            (Verdict::Stuck, "stuck"),
            (Verdict::Aborted, "aborted"),
        ];
        write!(f, "{:<24}", "family")?;
        COLUMNS.iter().try_for_each(|(_, title)| write!(f, "{title:>9}"))?;
        writeln!(f)?;
        for family in &self.families {
            write!(f, "{:<24}", family.name)?;
            for (verdict, _) in COLUMNS {
                match family.count(verdict) {
                    0 => write!(f, "{:>9}", ".")?,
                    count => write!(f, "{count:>9}")?,
                }
            }
            writeln!(f)?;
        }
        write!(f, "{:<24}", "total")?;
        COLUMNS.iter().try_for_each(|(verdict, _)| write!(f, "{:>9}", self.total(*verdict)))?;
        let all = self.test_count();
        writeln!(f, "\n{all} tests in {} families", self.families.len())
    }
}

/// Families and the names of their tests.
pub type Catalogue = Vec<(String, Vec<String>)>;

fn program() -> Command {
    Command::new(std::env::var_os(PROGRAM_VARIABLE).unwrap_or_else(|| PROGRAM.into()))
}

/// Returns all families of the suite.
pub fn catalogue() -> Result<Catalogue> {
    let listed = process::output(program().arg("--list"), TEST_LIMIT)?;
    let families = parse_list(&listed);
    ensure!(!families.is_empty(), "{PROGRAM} --list names no family:\n{listed}");
    Ok(families)
}

/// The kind of unit that a family of the suite needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A writable disk that is not removable.
    Disk,
    /// A read-only disk.
    ReadOnly,
    /// A removable disk.
    Removable,
    /// A disk so slow that a test can observe an operation on the whole disk in progress.
    Slow,
    /// A disk whose physical blocks are as large as its logical blocks.
    Native,
    /// An encrypted disk, which thus has a key to destroy.
    Encrypted,
    /// A disk with blocks of 512 bytes, whatever the others have.
    Small,
    /// A disk with space for two copies of the longest EXTENDED COPY segment.
    Large,
}

impl Medium {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Disk,
        Self::ReadOnly,
        Self::Removable,
        Self::Slow,
        Self::Native,
        Self::Encrypted,
        Self::Small,
        Self::Large,
    ];

    /// Returns the kind that a test needs.
    fn of(family: &str, test: &str) -> Self {
        match family {
            // This test needs a SANITIZE that is still in progress after several seconds.
            "Sanitize" if test == "Reset" => Self::Slow,
            "Sanitize" => Self::Encrypted,
            // This test writes 512 bytes as one block.
            "ProutReserve" => Self::Small,
            // This test copies one segment of the maximum length to the blocks that follow it.
            "ExtendedCopy" if test == "Large" => Self::Large,
            "ReadOnly" => Self::ReadOnly,
            "NoMedia" | "PreventAllow" | "StartStopUnit" => Self::Removable,
            // With larger physical blocks, this test expects answers that begin after the requested block.
            "GetLBAStatus" => Self::Native,
            _ => Self::Disk,
        }
    }

    /// Returns the name of the volume.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::ReadOnly => "read-only",
            Self::Removable => "removable",
            Self::Slow => "slow",
            Self::Native => "native",
            Self::Encrypted => "encrypted",
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// Tests that a disk, or this medium, cannot pass, with the reason. A `*` at the end of a name matches all names with
/// this prefix.
const SKIPPED: &[(&str, &str, &str)] = &[
    ("CompareAndWrite", "InvalidDataOutSize", SMALL_PHYSICAL_BLOCKS),
    ("WriteSame10", "InvalidDataOutSize", SMALL_PHYSICAL_BLOCKS),
    ("WriteSame10", "UnmapUnaligned", SMALL_PHYSICAL_BLOCKS),
    ("WriteSame16", "InvalidDataOutSize", SMALL_PHYSICAL_BLOCKS),
    ("WriteSame16", "UnmapUnaligned", SMALL_PHYSICAL_BLOCKS),
];
/// Applies to disks of 4 KiB blocks only.
const SMALL_PHYSICAL_BLOCKS: &str = "physical blocks are larger than logical ones on other disks";

/// Returns the reason for which a test may be skipped.
pub fn why_skipped(family: &str, test: &str) -> Option<&'static str> {
    let is_meant = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => test.starts_with(prefix),
        None => test == pattern,
    };
    let found = SKIPPED.iter().find(|(other, pattern, _)| *other == family && is_meant(pattern));
    found.map(|(_, _, reason)| *reason)
}

/// Runs `families`, each against a unit of the kind that it needs: `paths` returns its URLs, one for each path to it.
pub fn run_on_media(
    paths: impl Fn(Medium) -> Result<Vec<Url>>,
    families: &Catalogue,
    mut done: impl FnMut(&Family),
) -> Result<Report> {
    let mut report = Report { families: Vec::new() };
    for (family, tests) in families {
        let mut wanted: Vec<_> = tests.iter().map(|test| Medium::of(family, test)).collect();
        wanted.dedup();
        let found = match *wanted {
            [medium] => run_family(&paths_of(family, paths(medium)?), family, tests)?,
            _ => {
                let alone = |test| {
                    let medium = Medium::of(family, test);
                    let limit = if medium == Medium::Slow { SLOW_LIMIT } else { TEST_LIMIT };
                    run_alone(&paths(medium)?, family, test, limit)
                };
                let tests = tests.iter().map(|test| alone(test)).collect::<Result<_>>()?;
                Family { name: family.clone(), tests }
            }
        };
        done(&found);
        report.families.push(found);
        ensure!(report.total(Verdict::Stuck) < STUCK_LIMIT, "the target is dead\n{report}");
    }
    Ok(report)
}

/// Runs `families` against the logical unit at `urls`, one URL for each path, and destroys its data.
pub fn run(urls: &[Url], families: &Catalogue, mut done: impl FnMut(&Family)) -> Result<Report> {
    ensure!(!urls.is_empty(), "the suite wants a URL");
    let mut report = Report { families: Vec::new() };
    for (name, tests) in families {
        let family = run_family(&paths_of(name, urls.to_vec()), name, tests)?;
        done(&family);
        report.families.push(family);
        let stuck = report.total(Verdict::Stuck);
        ensure!(stuck < STUCK_LIMIT, "{stuck} tests hang: the target is dead\n{report}");
    }
    Ok(report)
}

/// Returns only the paths that a family uses.
fn paths_of(family: &str, mut urls: Vec<Url>) -> Vec<Url> {
    if !MULTIPATH.contains(&family) {
        urls.truncate(1);
    }
    urls
}

/// Runs one test in its own process.
fn run_alone(urls: &[Url], family: &str, test: &str, limit: Duration) -> Result<Test> {
    let alone = parse_run(&suite(&urls[..1], &format!("{family}.{test}"), limit)?);
    Ok(alone.into_iter().find(|found| found.name == test).unwrap_or_else(|| Test {
        name: test.into(),
        verdict: Verdict::Aborted,
        said: "the suite ended before this test began".into(),
    }))
}

fn run_family(urls: &[Url], name: &str, names: &[String]) -> Result<Family> {
    let mut tests = parse_run(&suite(urls, name, FAMILY_LIMIT)?);
    let ran: BTreeSet<_> = tests.iter().map(|test| test.name.clone()).collect();
    for missing in names.iter().filter(|name| !ran.contains(*name)) {
        if tests.iter().filter(|test| test.verdict == Verdict::Stuck).count() >= STUCK_LIMIT {
            break;
        }
        tests.push(run_alone(urls, name, missing, TEST_LIMIT)?);
    }
    Ok(Family { name: name.into(), tests })
}

fn suite(urls: &[Url], tests: &str, limit: Duration) -> Result<Finished> {
    let mut command = program();
    command.args(["--dataloss", "--allow-sanitize", "--verbose"]);
    command.args(["--initiator-name", INITIATORS[0], "--initiator-name-2", INITIATORS[1]]);
    command.arg(format!("--test=ALL.{tests}")).args(urls.iter().map(Url::to_string));
    process::finish(&mut command, limit).with_context(|| format!("the suite's {tests}"))
}

/// Parses the lines `ALL.family.test` of `--list`.
fn parse_list(listed: &str) -> Catalogue {
    let mut families = Catalogue::new();
    for line in listed.lines() {
        let mut parts = line.trim().split('.');
        if parts.next() != Some("ALL") {
            continue;
        }
        match (parts.next(), parts.next()) {
            (Some(family), None) => families.push((family.into(), Vec::new())),
            (Some(family), Some(test)) => {
                if let Some((name, tests)) = families.last_mut() {
                    assert_eq!(name, family, "a test follows its family");
                    tests.push(test.into());
                }
            }
            (None, _) => {}
        }
    }
    families
}

/// Parses CUnit's verbose output: `Test: NAME ...`, the output of the test, then `passed` or `FAILED`.
fn parse_run(finished: &Finished) -> Vec<Test> {
    let mut tests = Vec::new();
    // The text after the run summary belongs to no test.
    let body = finished.output.split("Run Summary:").next().unwrap_or_default();
    for section in body.split("  Test: ").skip(1) {
        let Some((name, said)) = section.split_once(" ...") else { continue };
        let (name, said) = (name.trim().to_owned(), said.to_owned());
        let ended = said.lines().map(str::trim).find_map(|line| match line {
            "FAILED" => Some(Verdict::Failed),
            // The output of a test's clean-up follows the verdict on the same line.
            _ if line.starts_with("passed") => Some(Verdict::Passed),
            _ if line.ends_with("FAILED") => Some(Verdict::Failed),
            _ => None,
        });
        let mut own = said.lines().take_while(|line| !line.trim().starts_with("passed"));
        let skipped = own.any(|line| line.contains("[SKIPPED]"));
        let verdict = match ended {
            Some(Verdict::Passed) if skipped => Verdict::Skipped,
            Some(verdict) => verdict,
            None if finished.status.is_none() => Verdict::Stuck,
            None => Verdict::Aborted,
        };
        tests.push(Test { name, verdict, said });
    }
    tests
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    const RUN: &str = "
Suite: Reserve6
  Test: Simple ...passed
  Test: 2Initiators ...    Take out a RESERVE6 from the first initiator
    [FAILED] MODESENSE6 successful but should have failed
FAILED
    1. test_reserve6_2initiators.c:70  - CU_ASSERT_EQUAL(_r,0)
  Test: TargetColdReset ...    [SKIPPED] Task Management is not implemented

passed
  Test: LUNReset ...passed    [FAILED] PRIN command: failed with sense.
    [SKIPPED] PERSISTENT RESERVE IN is not implemented.

Run Summary:    Type  Total    Ran Passed Failed Inactive
               tests      4      4      3      1        0
";

    fn verdicts(output: &str, status: Option<i32>) -> Vec<(String, Verdict)> {
        let status = status.map(ExitStatus::from_raw);
        parse_run(&Finished { status, output: output.into() })
            .into_iter()
            .map(|test| (test.name, test.verdict))
            .collect()
    }

    #[test]
    fn each_test_gets_its_own_verdict() {
        let expected = [
            ("Simple", Verdict::Passed),
            ("2Initiators", Verdict::Failed),
            ("TargetColdReset", Verdict::Skipped),
            ("LUNReset", Verdict::Passed),
        ];
        assert_eq!(verdicts(RUN, Some(0)), expected.map(|(name, v)| (name.to_owned(), v)));
    }

    #[test]
    fn a_test_without_a_verdict_is_stuck_when_killed_and_aborted_otherwise() {
        let cut = &RUN[..RUN.find("FAILED\n").unwrap()];
        assert_eq!(verdicts(cut, None)[1], ("2Initiators".into(), Verdict::Stuck));
        assert_eq!(verdicts(cut, Some(6))[1], ("2Initiators".into(), Verdict::Aborted));
        assert_eq!(verdicts("iscsi_connect failed", Some(10)), []);
    }

    #[test]
    fn the_list_is_read_by_family_and_other_suites_are_left_out() {
        let listed = "ALL\nALL.Read6\nALL.Read6.Simple\nALL.Unmap\nALL.Unmap.VPD\nSCSI\nSCSI.Read6";
        let expected = [("Read6", "Simple"), ("Unmap", "VPD")]
            .map(|(family, test)| (family.to_owned(), vec![test.to_owned()]));
        assert_eq!(parse_list(listed), expected);
    }

    #[test]
    fn the_table_sums_its_columns() {
        let test = |verdict| Test { name: "T".into(), verdict, said: "why".into() };
        let family = |name: &str, verdicts: &[Verdict]| Family {
            name: name.into(),
            tests: verdicts.iter().copied().map(test).collect(),
        };
        let report = Report {
            families: vec![
                family("A", &[Verdict::Passed, Verdict::Failed]),
                family("B", &[Verdict::Passed, Verdict::Stuck]),
            ],
        };
        let table = report.to_string();
        let total = table.lines().find(|line| line.starts_with("total")).unwrap();
        assert_eq!(total.split_whitespace().collect::<Vec<_>>()[1..], ["2", "1", "0", "1", "0"]);
        assert_eq!(report.faults(), "A.T: Failed\n    why\nB.T: Stuck\n    why\n");
    }
}
