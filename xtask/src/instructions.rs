//! `cargo xtask instructions`: counts the instructions of an I/O through the whole engine with valgrind, and compares
//! them with `xtask/instructions.toml`. The count is the same on a busy machine, so the gate can fail because of it. It
//! never fails because of a measured time.
//!
//! The measured program is `tests/simulation/instructions.rs`: the whole path from the bytes that a socket delivers to
//! the pieces that it accepts, with a disk in memory. Two runs have different lengths; their difference excludes the
//! start and the login.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::shell;

/// The accepted numbers, by architecture and I/O.
const FILE: &str = "xtask/instructions.toml";
/// The kinds of I/O: the harness's name, and the name in the file.
const KINDS: [(&str, &str); 6] = [
    ("read", "read-4k"),
    ("write", "write-4k"),
    ("device-read", "read-4k-without-pool"),
    ("device-write", "write-4k-without-pool"),
    ("pool-read", "read-4k-with-pool"),
    ("pool-write", "write-4k-with-pool"),
];
/// Number of I/Os in each of the two runs.
const COUNTS: [u64; 2] = [4096, 12_288];
/// A count that exceeds the accepted number by more than this fraction fails; a lower count deserves a new number.
const TOLERANCE: f64 = 0.05;
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// Makes copies use vectors, whose instructions are the same on most processors. An instruction that repeats itself for
/// each byte would count once per byte.
const COPIES: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824",
);
/// The text before the numbers in the file.
const HEAD: &str = "\
# Instructions for each I/O through the whole engine, as `cargo xtask instructions` counts them; a rise
# of more than 5 % fails the full gate. `cargo xtask instructions --accept` writes new figures: say in
# the commit why they rose.
";

type Accepted = BTreeMap<String, BTreeMap<String, u64>>;

#[derive(Args, Default)]
pub(crate) struct Options {
    /// Write the current counts into the file.
    #[arg(long)]
    accept: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let Some(counted) = count()? else {
        println!("not counted: `sudo apt-get install valgrind` brings the tool");
        return Ok(());
    };
    let text = std::fs::read_to_string(FILE).context(FILE)?;
    let mut accepted: Accepted = toml::from_str(&text).context(FILE)?;
    if options.accept {
        accepted.insert(ARCH.to_owned(), counted);
        return std::fs::write(FILE, render(&accepted)).context(FILE);
    }
    let none = BTreeMap::new();
    let findings = compare(accepted.get(ARCH).unwrap_or(&none), &counted);
    for finding in &findings {
        println!("{}", finding.line);
    }
    ensure!(
        findings.iter().all(|finding| finding.is_fine),
        "an I/O takes more instructions than was accepted: make it lighter, or let \
         `cargo xtask instructions --accept` write the new figures, and say why"
    );
    Ok(())
}

/// Returns the instructions of each kind of I/O; `None` without valgrind.
fn count() -> Result<Option<BTreeMap<String, u64>>> {
    if !shell::succeeds(Command::new("valgrind").arg("--version")) {
        return Ok(None);
    }
    let program = build()?;
    let mut counted = BTreeMap::new();
    for (kind, name) in KINDS {
        let [few, many] = COUNTS.map(|count| instructions(&program, kind, count));
        let (few, many) = (few?, many?);
        ensure!(many > few, "{kind}: {many} instructions of {COUNTS:?} are not above {few}");
        let [low, high] = COUNTS;
        counted.insert(name.to_owned(), (many - few) / (high - low));
    }
    Ok(Some(counted))
}

fn build() -> Result<PathBuf> {
    let mut command = shell::cargo();
    command.args(["bench", "--quiet", "--no-run", "--profile", "dist"]);
    command.args(["--package", "sarsen-simulation"]);
    shell::executable(command.args(["--bench", "instructions"]), "instructions")
}

/// Returns all instructions of a run of the harness.
fn instructions(program: &Path, kind: &str, count: u64) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    command.arg(program).arg(kind).arg(count.to_string()).env(COPIES.0, COPIES.1);
    let said = shell::finish(&command, RUN_LIMIT)?.success()?;
    references(&said).with_context(|| format!("valgrind said {said}"))
}

/// Parses the line `==1== I refs: 1,234`.
fn references(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| {
        let (name, number) = line.split_once("refs:")?;
        name.trim_end().ends_with(" I").then_some(number)
    })?;
    line.trim().replace(',', "").parse().ok()
}

struct Finding {
    line: String,
    is_fine: bool,
}

fn compare(accepted: &BTreeMap<String, u64>, counted: &BTreeMap<String, u64>) -> Vec<Finding> {
    let finding = |(name, &now): (&String, &u64)| {
        let Some(&before) = accepted.get(name) else {
            let line = format!("{name}: {now} instructions; none were accepted on {ARCH}");
            return Finding { line, is_fine: true };
        };
        let change = (now as f64 - before as f64) / before as f64;
        let is_fine = change <= TOLERANCE;
        let percent = change * 100.0;
        let mut line = format!("{name}: {now} instructions, {before} accepted ({percent:+.1} %)");
        if change < -TOLERANCE {
            line += ": `cargo xtask instructions --accept` keeps it so";
        }
        Finding { line, is_fine }
    };
    counted.iter().map(finding).collect()
}

fn render(accepted: &Accepted) -> String {
    let mut text = HEAD.to_owned();
    for (architecture, figures) in accepted {
        let _ = write!(text, "\n[{architecture}]\n");
        for (name, count) in figures {
            let _ = writeln!(text, "{name} = {count}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(read: u64, write: u64) -> BTreeMap<String, u64> {
        BTreeMap::from([("read-4k".into(), read), ("write-4k".into(), write)])
    }

    fn are_fine(accepted: BTreeMap<String, u64>, counted: BTreeMap<String, u64>) -> Vec<bool> {
        compare(&accepted, &counted).iter().map(|finding| finding.is_fine).collect()
    }

    #[test]
    fn instruction_count_is_parsed_from_valgrind() {
        let old = "==7== \n==7== I   refs:      24,318,902\n";
        let new = "==7== I refs:        123,456\n==7== D refs: 5\n";
        assert_eq!((references(old), references(new)), (Some(24_318_902), Some(123_456)));
        assert_eq!(references("==7== D refs: 5"), None);
    }

    #[test]
    fn a_rise_of_more_than_five_per_cent_fails() {
        assert_eq!(are_fine(figures(1000, 2000), figures(1050, 1500)), [true, true]);
        assert_eq!(are_fine(figures(1000, 2000), figures(1051, 2000)), [false, true]);
        assert_eq!(are_fine(BTreeMap::new(), figures(1, 1)), [true, true]);
    }

    #[test]
    fn written_counts_are_read_back() {
        let accepted = Accepted::from([(ARCH.to_owned(), figures(3, 4))]);
        let text = render(&accepted);
        assert!(text.starts_with("# Instructions"), "{text}");
        assert_eq!(toml::from_str::<Accepted>(&text).unwrap(), accepted);
    }
}
