//! Portals of both address families for the same disk, on one address and on all of them, and targets that only some
//! portals serve.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, process};
use sarsen_wire::iscsi::LoginStatus;

use crate::client;

const LIMIT: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// Returns the result of discovery through a portal, unit by unit.
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

/// Returns the portals of a target from the result of discovery, as `address:port,group`.
fn portals_of(listed: &str, target: &str) -> Vec<String> {
    let of_target = |line: &str| {
        let rest = line.strip_prefix("Target:")?.strip_prefix(target)?;
        rest.strip_prefix(" Portal:").map(str::to_owned)
    };
    listed.lines().filter_map(of_target).collect()
}

/// Discovery reports a portal on all addresses with the address that the initiator used, in its own family.
#[test]
fn rfc7143_13_8_wildcard_portal_is_announced_by_reachable_address() -> Result<()> {
    let volume = Volume::new("scratch", Backing::Ram, 8 * MIB);
    let everywhere = ["--listen", "0.0.0.0:0,2", "--listen", "[::]:0,3", "--listen", "[::1]:0,4"];
    let serving = Serving::start_with(&[volume], &everywhere)?;
    let url = serving.url("scratch");
    let through_ipv4 = portals_of(&listed(&url.portal)?, &url.iqn);
    port_at(&through_ipv4, "127.0.0.1:", 1)?;
    let on_all = port_at(&through_ipv4, "127.0.0.1:", 2)?;
    let ipv6 = port_at(&through_ipv4, "[::1]:", 4)?;
    ensure!(through_ipv4.len() == 3, "[::] has no address of this family: {through_ipv4:?}");
    // Through another address of the machine, discovery reports that address for the portal on all addresses.
    let elsewhere = portals_of(&listed(&format!("127.0.0.2:{on_all}"))?, &url.iqn);
    ensure!(port_at(&elsewhere, "127.0.0.2:", 2)? == on_all, "{elsewhere:?}");
    port_at(&elsewhere, "127.0.0.1:", 1)?;
    let through_ipv6 = portals_of(&listed(&format!("[::1]:{ipv6}"))?, &url.iqn);
    port_at(&through_ipv6, "[::1]:", 3)?;
    port_at(&through_ipv6, "[::1]:", 4)?;
    port_at(&through_ipv6, "127.0.0.1:", 1)?;
    ensure!(through_ipv6.len() == 3, "0.0.0.0 has no address of this family: {through_ipv6:?}");
    serving.stop()
}

/// Returns the port of the portal of a group at an address, which ends with a colon.
fn port_at(portals: &[String], address: &str, group: u16) -> Result<u16> {
    let found = portals.iter().find_map(|portal| {
        portal.strip_prefix(address)?.strip_suffix(&format!(",{group}"))?.parse().ok()
    });
    found.with_context(|| format!("{address} in group {group} is missing: {portals:?}"))
}

#[test]
fn target_is_visible_only_through_its_portal_groups() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("sarsen.toml");
    let target = "iqn.2026-11.proof:own";
    fs::write(&file, format!("[[target]]\nname = \"{target}\"\nluns = [\"own\"]\ngroups = [2]\n"))?;
    let volumes = ["own", "free"].map(|name| Volume::new(name, Backing::Ram, 8 * MIB));
    let config = file.display().to_string();
    let serving =
        Serving::start_with(&volumes, &["--config", &config, "--listen", "127.0.0.1:0,2"])?;
    let (own, free) = (serving.url("own"), serving.url("free"));
    ensure!(own.portal != free.portal, "the first portal is in group 1");
    for portal in [&own.portal, &free.portal] {
        let listed = listed(portal)?;
        ensure!(portals_of(&listed, target) == [format!("{},2", own.portal)], "{listed}");
        ensure!(portals_of(&listed, &free.iqn).len() == 2, "{listed}");
    }
    let login =
        |url: &Url| client::login_status(url, "iqn.2026-11.proof:host", [0x80, 0, 0, 0, 0, 1]);
    ensure!(login(own)? == LoginStatus::Success, "through its own group");
    let astray = Url { portal: free.portal.clone(), ..own.clone() };
    let status = login(&astray)?;
    ensure!(status == LoginStatus::NotFound, "through another group: {status:?}");
    serving.stop()
}
