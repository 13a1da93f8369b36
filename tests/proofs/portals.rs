//! Portals of both address families in front of the same disk.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::{Backing, Serving, Volume, process};

const LIMIT: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// What discovery through a portal tells, unit by unit.
fn listed(portal: &str) -> Result<String> {
    let mut list = Command::new("iscsi-ls");
    Ok(process::output(list.arg("--show-luns").arg(format!("iscsi://{portal}")), LIMIT)?)
}

#[test]
fn discovery_through_either_portal_tells_of_both_and_both_lead_to_the_disk() -> Result<()> {
    let volume = Volume::new("scratch", Backing::Ram, 8 * MIB);
    let serving = Serving::start_with(&[volume], &["--listen", "[::1]:0"])?;
    let through_ipv4 = listed(&serving.url("scratch").portal)?;
    let ipv6 = through_ipv4
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("Portal:")?.strip_suffix(",1"))
        .find(|portal| portal.starts_with("[::1]:"))
        .with_context(|| format!("no IPv6 portal in:\n{through_ipv4}"))?;
    let through_ipv6 = listed(ipv6)?;
    for list in [&through_ipv4, &through_ipv6] {
        ensure!(list.matches("Portal:").count() == 2, "not both portals:\n{list}");
        ensure!(list.matches("Type:DIRECT_ACCESS").count() == 2, "not both units:\n{list}");
    }
    serving.stop()
}
