//! libiscsi's suite (`iscsi-test-cu`), one process a family, so that a test that hangs or aborts
//! costs itself alone: the family's other tests are then run one by one.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::process::{self, Finished};
use crate::serving::Url;

/// The suite's program, unless [`PROGRAM_VARIABLE`] names another.
const PROGRAM: &str = "iscsi-test-cu";
/// Names another build of the suite's program instead of the installed one, such as a build of its newest source.
const PROGRAM_VARIABLE: &str = "ISCSI_TEST_CU";
/// A family takes seconds; the slowest tests wait for replies that must not come.
const FAMILY_LIMIT: Duration = Duration::from_secs(60);
/// `Sanitize.Reset` looks once a minute whether the operation has ended.
const SLOW_LIMIT: Duration = Duration::from_secs(300);
/// One test, when it is run alone.
const TEST_LIMIT: Duration = Duration::from_secs(20);
/// So many tests that hang, and the target is taken for dead.
const STUCK_LIMIT: usize = 5;
/// Families that want several paths. To the others the first one alone is given: they would take a
/// second one for their second initiator, which then had the first one's name.
const MULTIPATH: [&str; 1] = ["MultipathIO"];
/// Names of the suite's two initiators.
const INITIATORS: [&str; 2] = ["iqn.2026-11.proof:a", "iqn.2026-11.proof:b"];

/// How one test of the suite ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ran and nothing was wrong.
    Passed,
    /// It said that the target lacks what it tests, in whole or in part.
    Skipped,
    /// Something was wrong.
    Failed,
    /// It had to be killed.
    Stuck,
    /// The suite's process ended in the middle of it.
    Aborted,
}

/// One test of the suite.
#[derive(Clone, Debug)]
pub struct Test {
    /// Its name within the family.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
    /// What it said.
    pub said: String,
}

/// One family of tests.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its name, `Read10` for instance.
    pub name: String,
    /// Its tests, in the suite's order.
    pub tests: Vec<Test>,
}

impl Test {
    /// Why it was skipped, in the suite's own words.
    pub fn reason(&self) -> &str {
        let reported = self.said.lines().find_map(|line| line.split_once("[SKIPPED]"));
        reported.map_or("", |(_, reason)| reason.trim())
    }
}

impl Family {
    /// How many tests ended so.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.tests.iter().filter(|test| test.verdict == verdict).count()
    }

    /// The tests that show a fault.
    pub fn faults(&self) -> impl Iterator<Item = &Test> {
        self.tests.iter().filter(|test| !matches!(test.verdict, Verdict::Passed | Verdict::Skipped))
    }
}

/// What the suite found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Every family that was run.
    pub families: Vec<Family>,
}

impl Report {
    /// A family by its name.
    pub fn family(&self, name: &str) -> Option<&Family> {
        self.families.iter().find(|family| family.name == name)
    }

    /// Tests that ended so, in all families.
    pub fn total(&self, verdict: Verdict) -> usize {
        self.families.iter().map(|family| family.count(verdict)).sum()
    }

    /// How many tests there were.
    pub fn test_count(&self) -> usize {
        self.families.iter().map(|family| family.tests.len()).sum()
    }

    /// Tests that ended so, each with its family's name.
    pub fn ended(&self, verdict: Verdict) -> impl Iterator<Item = (&str, &Test)> {
        self.families
            .iter()
            .flat_map(|family| family.tests.iter().map(|test| (family.name.as_str(), test)))
            .filter(move |(_, test)| test.verdict == verdict)
    }

    /// Every fault, with what the test said.
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

/// All families of the suite.
pub fn catalogue() -> Result<Catalogue> {
    let listed = process::output(program().arg("--list"), TEST_LIMIT)?;
    let families = parse_list(&listed);
    ensure!(!families.is_empty(), "{PROGRAM} --list names no family:\n{listed}");
    Ok(families)
}

/// What a family of the suite wants of a unit to test anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// One that can be written and cannot be removed.
    Disk,
    /// One that cannot be written.
    ReadOnly,
    /// One that can be removed.
    Removable,
    /// One that is slow enough to be met in the middle of an operation on all of it.
    Slow,
    /// One whose physical blocks are its logical ones.
    Native,
    /// One that encrypts, so that it has a key to lose.
    Encrypted,
    /// One with blocks of 512 bytes, whatever the others have.
    Small,
    /// One with room for two copies of the longest EXTENDED COPY segment.
    Large,
}

impl Medium {
    /// All of them.
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

    /// What a test wants.
    fn of(family: &str, test: &str) -> Self {
        match family {
            // It wants to meet SANITIZE under way, seconds after it began.
            "Sanitize" if test == "Reset" => Self::Slow,
            "Sanitize" => Self::Encrypted,
            // It writes 512 bytes as one block.
            "ProutReserve" => Self::Small,
            // It copies one segment of the maximum length to the blocks that follow it.
            "ExtendedCopy" if test == "Large" => Self::Large,
            "ReadOnly" => Self::ReadOnly,
            "NoMedia" | "PreventAllow" | "StartStopUnit" => Self::Removable,
            // Where physical blocks are larger it wants answers that begin behind what it asked for.
            "GetLBAStatus" => Self::Native,
            _ => Self::Disk,
        }
    }

    /// Its name as a volume's.
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

/// Tests that a disk, or this medium, cannot have, with the reason. A name ends with `*` where all that begin
/// so are meant.
const SKIPPED: &[(&str, &str, &str)] = &[
    ("CompareAndWrite", "InvalidDataOutSize", SMALL_PHYSICAL_BLOCKS),
    ("WriteSame10", "InvalidDataOutSize", SMALL_PHYSICAL_BLOCKS),
    ("WriteSame10", "UnmapUnaligned", SMALL_PHYSICAL_BLOCKS),
    ("WriteSame16", "InvalidDataOutSize", SMALL_PHYSICAL_BLOCKS),
    ("WriteSame16", "UnmapUnaligned", SMALL_PHYSICAL_BLOCKS),
];
/// Met on disks of 4 KiB blocks alone.
const SMALL_PHYSICAL_BLOCKS: &str = "physical blocks are larger than logical ones on other disks";

/// Why a test may be skipped.
pub fn why_skipped(family: &str, test: &str) -> Option<&'static str> {
    let is_meant = |pattern: &str| match pattern.strip_suffix('*') {
        Some(prefix) => test.starts_with(prefix),
        None => test == pattern,
    };
    let found = SKIPPED.iter().find(|(other, pattern, _)| *other == family && is_meant(pattern));
    found.map(|(_, _, reason)| *reason)
}

/// Runs `families`, each against the unit of the medium that it wants: `paths` gives its URLs, one for
/// each path to it.
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

/// Runs `families` against the logical unit at `urls`, whose data it destroys: one URL for each path
/// to it.
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

/// As many of the paths as a family looks at.
fn paths_of(family: &str, mut urls: Vec<Url>) -> Vec<Url> {
    if !MULTIPATH.contains(&family) {
        urls.truncate(1);
    }
    urls
}

/// One test in a process of its own.
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

/// The lines `ALL.family.test` of `--list`.
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

/// CUnit's verbose output: `Test: NAME ...`, what the test says, then `passed` or `FAILED`.
fn parse_run(finished: &Finished) -> Vec<Test> {
    let mut tests = Vec::new();
    // What follows the run summary belongs to no test.
    let body = finished.output.split("Run Summary:").next().unwrap_or_default();
    for section in body.split("  Test: ").skip(1) {
        let Some((name, said)) = section.split_once(" ...") else { continue };
        let (name, said) = (name.trim().to_owned(), said.to_owned());
        let ended = said.lines().map(str::trim).find_map(|line| match line {
            "FAILED" => Some(Verdict::Failed),
            // What a test's clean-up says comes behind its verdict, on the same line.
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
