//! What the project's own initiator makes of a session: its steps, and what becomes of it when
//! the connection is lost.

mod client;

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::{Portal, SessionOptions, phases};
use sarsen_proof::{Backing, Serving, Volume};

use client::{run, url};

const MIB: u64 = 1 << 20;

#[test]
fn the_steps_of_setting_up_are_told_with_what_was_negotiated() -> Result<()> {
    let serving = Serving::start(&[Volume::new("disk", Backing::Ram, 8 * MIB)])?;
    let url = url(&serving, "disk")?;
    let options = SessionOptions::default();
    let normal = run(async { Ok(phases::normal(&url, &options).await?) })?;
    let portal: Portal = serving.url("disk").portal.parse()?;
    let discovery = run(async { Ok(phases::discovery(&portal, &options).await?) })?;
    let login = ["connect", "security", "operational"];
    let names = |phases: &phases::Phases| -> Vec<&str> {
        phases.steps.iter().map(|step| step.name).collect()
    };
    let found_out = ["REPORT LUNS", "INQUIRY", "TEST UNIT READY", "READ CAPACITY", "logout"];
    assert_eq!(names(&normal), [&login[..], &found_out].concat());
    assert_eq!(names(&discovery), [&login[..], &["SendTargets", "logout"]].concat());
    for phases in [&normal, &discovery] {
        // Each has gone to the target and back, which takes some time on any machine.
        ensure!(phases.steps.iter().all(|step| !step.duration.is_zero()), "{phases:?}");
        assert_eq!(phases.negotiated["HeaderDigest"], "None");
        phases.negotiated["MaxRecvDataSegmentLength (the peer's)"].parse::<u32>()?;
    }
    let targets = discovery.targets.iter();
    targets.map(|target| &target.name).find(|name| **name == url.target).context("the target")?;
    serving.stop()
}
