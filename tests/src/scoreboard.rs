//! The scoreboard: it runs libiscsi's suite against this program and against Debian's tgt and istgt, on the same media,
//! and creates the page with the results.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use sarsen_lab::load::Endpoint;
use sarsen_lab::network::{LinkProfile, Network};
use sarsen_lab::target_under_test::{self, Image, Running, istgt, tgt};

use crate::conformance::{self, Catalogue, Family, Medium, Report, Verdict};
use crate::process;
use crate::serving::{Backing, Serving, Url, Volume};

/// Size of each unit in bytes: the suite writes at both ends and some megabytes in between.
pub const BYTE_COUNT: u64 = 256 << 20;
/// Size of [`Medium::Large`] in bytes.
const LARGE_BYTE_COUNT: u64 = 1 << 30;
/// Maximum duration of a package query.
const QUERY_LIMIT: Duration = Duration::from_secs(20);
/// The suite's package.
const SUITE: &str = "libiscsi-bin";

/// The results of the suite for one target.
pub struct Column {
    /// Name of the target.
    pub name: &'static str,
    /// Version of the target.
    pub version: String,
    /// Results of all tests.
    pub report: Report,
}

/// Returns the volumes of this program for each medium.
pub fn volumes(backing: impl Fn(Medium) -> Backing) -> Vec<Volume> {
    Medium::ALL
        .into_iter()
        .map(|medium| {
            let byte_count = if medium == Medium::Large { LARGE_BYTE_COUNT } else { BYTE_COUNT };
            let volume = Volume::new(medium.name(), backing(medium), byte_count);
            match medium {
                Medium::Disk | Medium::Small | Medium::Large => volume,
                Medium::ReadOnly => volume.option("read-only=true"),
                Medium::Removable => volume.option("removable=true"),
                // 256 pieces of 1 MiB in sequence take half a minute.
                Medium::Slow => volume.option("delay=100ms"),
                Medium::Native => volume.block_size(4096),
                Medium::Encrypted => volume.option("encrypted=true"),
            }
        })
        .collect()
}

/// Runs the suite against each target; calls `done` for every family.
pub fn run(families: &Catalogue, mut done: impl FnMut(&str, &Family)) -> Result<Vec<Column>> {
    let serving = Serving::start_on_two_portals(&volumes(|_| Backing::Ram))?;
    let paths = |medium: Medium| serving.urls(medium.name());
    let report = conformance::run_on_media(paths, families, |family| done("sarsen", family))?;
    serving.stop()?;
    let mut columns =
        vec![Column { name: "sarsen", version: env!("CARGO_PKG_VERSION").into(), report }];

    let network = Network::build(&[LinkProfile::loopback()]);
    columns.push(peer("tgt", &network, &start_tgt, families, &mut done)?);
    columns.push(peer("istgt", &network, &start_istgt, families, &mut done)?);
    Ok(columns)
}

fn images() -> Vec<Image> {
    Medium::ALL
        .map(|medium| Image::new(medium.name(), target_under_test::Backing::Memory, BYTE_COUNT))
        .into()
}

fn start_tgt(network: &Network) -> Result<Running> {
    let running = tgt::start(network, &images())?;
    // Target numbers are those of the images, from 1 on.
    for (number, setting) in [("2", "readonly=1"), ("3", "removable=1")] {
        let unit = ["--op", "update", "--mode", "logicalunit", "--tid", number, "--lun", "1"];
        tgt::administer(&running, &[&unit[..], &["--params", setting]].concat())?;
    }
    Ok(running)
}

fn start_istgt(network: &Network) -> Result<Running> {
    Ok(istgt::start(network, &images(), None)?)
}

/// Starts a peer again for each family, so that the effects of one test, such as a reservation, are not counted
/// repeatedly.
fn peer(
    name: &'static str,
    network: &Network,
    start: &dyn Fn(&Network) -> Result<Running>,
    families: &Catalogue,
    done: &mut impl FnMut(&str, &Family),
) -> Result<Column> {
    let link = network.links().first().context("loopback")?;
    let mut report = Report { families: Vec::new() };
    for family in families {
        let running = start(network)?;
        // With a single portal, two sessions serve as two paths.
        let paths = |medium: Medium| match running.endpoint(medium.name(), link)? {
            Endpoint::Iscsi(url) => Ok(vec![Url::from(url); 2]),
            other => bail!("{name} offers {} as {other:?}", medium.name()),
        };
        let one = vec![family.clone()];
        let found = conformance::run_on_media(paths, &one, |family| done(name, family))?;
        report.families.extend(found.families);
    }
    Ok(Column { name, version: version(name)?, report })
}

fn version(package: &str) -> Result<String> {
    let mut query = Command::new("dpkg-query");
    process::output(query.args(["-W", "-f", "${Version}", package]), QUERY_LIMIT)
        .with_context(|| format!("the version of {package}"))
}

/// Returns the page.
pub fn page(columns: &[Column]) -> Result<String> {
    let Some(own) = columns.first() else { bail!("nobody was tested") };
    let mut page = format!(
        "# Conformance\n\n\
         libiscsi's suite (`iscsi-test-cu`, Debian's libiscsi-bin {}): every test it has, against this\n\
         program and its peers. `cargo xtask scoreboard` writes this page anew. Each family runs on a unit\n\
         that it can test: most on a disk of 256 MiB with blocks of 512 bytes, `ReadOnly` on one that cannot\n\
         be written, `NoMedia`, `PreventAllow` and `StartStopUnit` on one whose medium can be removed,\n\
         `GetLBAStatus` on one whose physical blocks are its logical ones, `Sanitize` on one that encrypts, its `Reset` on a slow one.\n\
         Where a peer has no such unit, its ordinary disk takes the place. `MultipathIO` has two paths: two\n\
         portal groups of this program, two sessions of the others. The peers are started anew for each\n\
         family, so that a reservation which one test leaves does not fail all that follow.\n\n",
        version(SUITE)?
    );
    page += "| | passed | failed | skipped | stuck or aborted | of |\n|---|--:|--:|--:|--:|--:|\n";
    for Column { name, version, report } in columns {
        let broken = report.total(Verdict::Stuck) + report.total(Verdict::Aborted);
        let [passed, failed, skipped] =
            [Verdict::Passed, Verdict::Failed, Verdict::Skipped].map(|v| report.total(v));
        let all = report.test_count();
        writeln!(
            page,
            "| {name} {version} | {passed} | {failed} | {skipped} | {broken} | {all} |"
        )?;
    }
    page += "\n## Tests that this program skips\n\n";
    if own.report.total(Verdict::Skipped) == 0 {
        page += "None.\n";
    }
    for (family, test) in own.report.ended(Verdict::Skipped) {
        let why = conformance::why_skipped(family, &test.name).unwrap_or("UNEXPLAINED");
        writeln!(page, "- `{family}.{}`: {why}", test.name)?;
    }
    page +=
        "\n## Families\n\nPassed of all; what failed, was skipped or did not end behind it.\n\n|";
    let heading: Vec<_> = columns.iter().map(|column| format!(" {} |", column.name)).collect();
    writeln!(page, " family |{}\n|---|{}", heading.concat(), "---|".repeat(columns.len()))?;
    for Family { name, .. } in &own.report.families {
        write!(page, "| {name} |")?;
        for column in columns {
            write!(page, " {} |", column.report.family(name).map_or_else(String::new, cell))?;
        }
        page.push('\n');
    }
    for Column { name, report, .. } in columns {
        writeln!(page, "\n## What fails in {name}\n")?;
        let mut none = true;
        for verdict in [Verdict::Failed, Verdict::Stuck, Verdict::Aborted] {
            for (family, test) in report.ended(verdict) {
                none = false;
                writeln!(page, "- `{family}.{}`: {verdict:?}", test.name)?;
            }
        }
        if none {
            page += "Nothing.\n";
        }
    }
    Ok(page)
}

fn cell(family: &Family) -> String {
    let mut cell = format!("{} of {}", family.count(Verdict::Passed), family.tests.len());
    let others = [
        (Verdict::Failed, "failed"),
        (Verdict::Skipped, "skipped"),
        (Verdict::Stuck, "stuck"),
        (Verdict::Aborted, "aborted"),
    ];
    for (verdict, name) in others {
        match family.count(verdict) {
            0 => {}
            count => cell += &format!(", {count} {name}"),
        }
    }
    cell
}
