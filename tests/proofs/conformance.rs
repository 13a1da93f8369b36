//! libiscsi's suite against each kind of volume: no fault in the families that are served today,
//! and none of them passed by by skipping.

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::conformance::{self, Report, Verdict};
use sarsen_proof::{Backing, Serving, Volume};

/// What is not there yet; these run and are reported, and may fail.
const LATER: &[&str] = &[
    "ExtendedCopy",
    "OrWrite",
    "PrinReadKeys",
    "PrinReportCapabilities",
    "PrinServiceactionRange",
    "ProutClear",
    "ProutPreempt",
    "ProutRegister",
    "ProutReserve",
    "ReadDefectData10",
    "ReadDefectData12",
    "ReceiveCopyResults",
    "Sanitize",
    "WriteAtomic16",
];

/// For removable or write-protected media, which these volumes are not: skipped throughout.
const NOT_OURS: &[&str] = &["NoMedia", "PreventAllow", "ReadOnly"];

/// The suite writes at both ends and some megabytes in between.
const BYTE_COUNT: u64 = 256 << 20;

fn check(report: &Report) -> Result<()> {
    println!("{report}\n{}", report.faults());
    let families: Vec<_> =
        report.families.iter().filter(|family| !LATER.contains(&family.name.as_str())).collect();
    let faulty: Vec<_> =
        families.iter().filter(|f| f.faults().next().is_some()).map(|f| &f.name).collect();
    ensure!(faulty.is_empty(), "faults in {faulty:?}; what each test said is above");
    let skipped: Vec<_> = families
        .iter()
        .filter(|family| !NOT_OURS.contains(&family.name.as_str()))
        .filter(|family| family.count(Verdict::Passed) == 0)
        .map(|family| &family.name)
        .collect();
    ensure!(skipped.is_empty(), "not one test passed in {skipped:?}: all were skipped");
    Ok(())
}

fn conforms(volume: Volume) -> Result<()> {
    let name = volume.name.clone();
    let serving = Serving::start_on_two_portals(&[volume])?;
    let families = conformance::catalogue()?;
    let urls: Vec<_> = serving.paths(&name)?.into_iter().map(|(_, url)| url).collect();
    let report = conformance::run(&urls, &families, |_| {})?;
    check(&report).with_context(|| serving.log())?;
    serving.stop()
}

#[test]
fn libiscsi_finds_no_fault_in_a_ram_volume() -> Result<()> {
    conforms(Volume::new("scratch", Backing::Ram, BYTE_COUNT))
}

#[test]
fn libiscsi_finds_no_fault_in_a_file_volume() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let backing = Backing::File(folder.path().join("data.img"));
    conforms(Volume::new("data", backing, BYTE_COUNT))
}

#[test]
fn libiscsi_finds_no_fault_in_4_kib_blocks() -> Result<()> {
    conforms(Volume::new("wide", Backing::Ram, BYTE_COUNT).block_size(4096))
}
