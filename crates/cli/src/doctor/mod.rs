//! `sarsen doctor`: checks this machine for problems as a storage server, and prints remedies.
//!
//! Each check reads values and passes them to a pure function that evaluates them; tests cover these functions.
//! [`kernel`] checks limits, the kernel and the confinement of this process; [`network`] checks interfaces, names and
//! ports; [`disk`] checks the folders for volumes; [`configuration`] checks the file and the server.

mod configuration;
mod disk;
mod kernel;
mod network;

use std::path::PathBuf;

use serde::Serialize;

use crate::control::ServerOptions;
use crate::exit::PartialError;
use crate::output::print_line;

/// Flags of `sarsen doctor`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The configuration to check: its portals, volumes, secrets and limits.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An initiator or another server: ping checks the path MTU to it.
    #[arg(long = "peer", value_name = "HOST")]
    peers: Vec<String>,
    /// Folders, files or devices for volumes.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    options: ServerOptions,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// No problem.
    Ok,
    /// The server works, but slower or less safely than possible.
    Warning,
    /// The server will fail.
    Problem,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// The result of a check. The stable format of `--json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    finding: String,
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, finding: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, finding: finding.into(), remedy: None }
    }

    fn warning(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (finding, remedy) = (finding.into(), Some(remedy.into()));
        Self { check, level: Level::Warning, finding, remedy }
    }

    fn problem(check: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Problem, ..Self::warning(check, finding, remedy) }
    }

    /// Checks that were not possible. This is no problem by itself.
    fn unknown(check: &'static str, what: &str, error: &dyn std::fmt::Display) -> Self {
        Self::ok(check, format!("{what} could not be checked: {error}"))
    }
}

/// All results. The stable format of `--json`.
#[derive(Serialize)]
struct Report {
    problems: usize,
    warnings: usize,
    findings: Vec<Finding>,
}

impl Report {
    fn new(findings: Vec<Finding>) -> Self {
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        Self { problems: count(Level::Problem), warnings: count(Level::Warning), findings }
    }

    /// Returns an error for problems, and a degraded result for warnings.
    fn verdict(&self) -> anyhow::Result<()> {
        let (problems, warnings) =
            (counted(self.problems, "problem"), counted(self.warnings, "warning"));
        match (self.problems, self.warnings) {
            (0, 0) => Ok(()),
            (0, _) => Err(PartialError(warnings).into()),
            (_, 0) => anyhow::bail!("{problems}"),
            _ => anyhow::bail!("{problems} and {warnings}"),
        }
    }
}

fn counted(count: usize, word: &str) -> String {
    match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let (config, mut findings) = configuration::read(arguments.config.as_deref());
    let server = configuration::server(&arguments.options, config.as_ref());
    findings.extend(kernel::findings(config.as_ref()));
    findings.extend(network::findings(config.as_ref(), server.running, &arguments.peers));
    findings.extend(disk::findings(config.as_ref(), &arguments.paths));
    if let Some(config) = &config {
        findings.extend(configuration::findings(config));
    }
    findings.extend(server.findings);
    let report = Report::new(findings);
    if arguments.options.json {
        print_line(&serde_json::to_string(&report)?)?
    } else {
        print_line(&render(&report.findings))?
    }
    report.verdict()
}

/// Formats a line for each result, with the remedy below.
fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for Finding { check, level, finding, remedy } in findings {
        lines.push(format!("{:7}  {check:width$}  {finding}", level.word()));
        if let Some(remedy) = remedy {
            lines.push(format!("{:7}  {:width$}  → {remedy}", "", ""));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;

    #[test]
    fn each_finding_is_a_line_with_its_remedy_below() {
        let findings =
            [Finding::ok("clock", "right"), Finding::problem("io-uring", "forbidden", "allow it")];
        assert_eq!(
            render(&findings),
            "ok       clock     right\n\
             problem  io-uring  forbidden\n                   → allow it"
        );
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst_finding() {
        let (ok, warning, problem) = (
            Finding::ok("a", "x"),
            Finding::warning("b", "x", "y"),
            Finding::problem("c", "x", "y"),
        );
        assert_eq!(exit_code(&[&ok, &ok]), 0);
        assert_eq!(exit_code(&[&ok, &warning]), 5);
        assert_eq!(exit_code(&[&problem, &warning, &ok]), 1);
    }

    fn exit_code(findings: &[&Finding]) -> u8 {
        let findings = findings.iter().map(|finding| (*finding).clone()).collect();
        exit::number(&Report::new(findings).verdict())
    }

    #[test]
    fn the_json_has_the_shape_that_scripts_read() {
        let report = Report::new(vec![Finding::warning("clock", "wrong", "run chrony")]);
        let text = serde_json::to_string(&report).expect("JSON");
        let expected = r#"{"problems":0,"warnings":1,"findings":[{"check":"clock","level":"warning","finding":"wrong","remedy":"run chrony"}]}"#;
        assert_eq!(text, expected);
    }
}
