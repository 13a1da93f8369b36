//! Runs libiscsi's whole suite against each kind of volume. No test fails, and each skipped test has a known reason
//! (`conformance::why_skipped`).

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::conformance::{self, Medium, Verdict};
use sarsen_proof::{Backing, Serving, Volume, pool_in, scoreboard};

/// Runs the suite against these volumes, one for each medium.
pub(crate) fn conforms(volumes: &[Volume], arguments: &[&str]) -> Result<()> {
    conforms_except(volumes, arguments, |_| false)
}

/// The same. Tests that are skipped for a reason of the backing are accepted, too.
pub(crate) fn conforms_except(
    volumes: &[Volume],
    arguments: &[&str],
    is_of_backing: impl Fn(&str) -> bool,
) -> Result<()> {
    let serving = Serving::start_on_two_portals_with(volumes, arguments)?;
    let families = conformance::catalogue()?;
    let report =
        conformance::run_on_media(|medium| serving.urls(medium.name()), &families, |_| {})?;
    println!("{report}\n{}", report.faults());
    let faults = report.families.iter().flat_map(|family| family.faults()).count();
    ensure!(faults == 0, "{faults} faults; what each test said is above\n{}", serving.log());
    let unexplained: Vec<_> = report
        .ended(Verdict::Skipped)
        .filter(|(family, test)| conformance::why_skipped(family, &test.name).is_none())
        .filter(|(_, test)| !is_of_backing(test.reason()))
        .map(|(family, test)| format!("{family}.{}: {}", test.name, test.reason()))
        .collect();
    ensure!(unexplained.is_empty(), "skipped without a known reason:\n{}", unexplained.join("\n"));
    serving.stop().context("its end")
}

#[test]
fn libiscsi_finds_no_fault_in_ram_volumes() -> Result<()> {
    conforms(&scoreboard::volumes(|_| Backing::Ram), &[])
}

#[test]
fn libiscsi_finds_no_fault_in_file_volumes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // The server does not create the file of a read-only volume, so the proof does.
    let path = |medium: Medium| folder.path().join(format!("{}.img", medium.name()));
    let file = std::fs::File::create(path(Medium::ReadOnly))?;
    file.set_len(scoreboard::BYTE_COUNT)?;
    conforms(&scoreboard::volumes(|medium| Backing::File(path(medium))), &[])
}

#[test]
fn libiscsi_finds_no_fault_in_pool_volumes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let pool = pool_in(folder.path(), 1 << 30)?;
    let volumes = scoreboard::volumes(|medium| match medium {
        // A volume in a pool cannot be encrypted.
        Medium::Encrypted => Backing::Ram,
        _ => Backing::Pool("tank".into()),
    });
    conforms(&with_records(volumes, folder.path()), &["--pool", &pool])
}

/// Returns the volumes with folders for their records, where they can have them: atomic writes need one.
pub(crate) fn with_records(volumes: Vec<Volume>, folder: &Path) -> Vec<Volume> {
    let has_none = |volume: &Volume| {
        matches!(volume.backing, Backing::Ram) || volume.name == Medium::ReadOnly.name()
    };
    let with_records = |volume: Volume| {
        if has_none(&volume) {
            return volume;
        }
        let state = format!("state={}", folder.join(&volume.name).display());
        volume.option(&state)
    };
    volumes.into_iter().map(with_records).collect()
}

#[test]
fn libiscsi_finds_no_fault_in_4_kib_blocks() -> Result<()> {
    let volumes = scoreboard::volumes(|_| Backing::Ram).into_iter();
    let wide = volumes.map(|volume| {
        if volume.name == Medium::Small.name() { volume } else { volume.block_size(4096) }
    });
    conforms(&wide.collect::<Vec<_>>(), &[])
}
