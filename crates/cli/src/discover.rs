//! `sarsen discover`.

use sarsen_initiator::{DiscoveryUrl, SessionOptions, discover};
use serde::Serialize;

use crate::control::table;
use crate::disk::{on_a_core, variable};
use crate::exit::UsageError;
use crate::output::{note, print_line};

/// Flags of `sarsen discover`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The portal: `host`, `host:port`, `[address]` or `[address]:port`. With an account: `iscsi://USER%SECRET@HOST`,
    /// or the variables of the environment that `sarsen disk` uses.
    portal: String,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The stable format of `--json`.
#[derive(Serialize)]
struct Discovered {
    portal: String,
    targets: Vec<Target>,
}

#[derive(Serialize)]
struct Target {
    name: String,
    portals: Vec<TargetPortal>,
}

#[derive(Serialize)]
struct TargetPortal {
    address: String,
    group: Option<u16>,
}

impl TargetPortal {
    /// Parses `address:port,portal group tag`.
    fn parse(text: &str) -> Self {
        match text.rsplit_once(',') {
            Some((address, group)) => {
                Self { address: address.to_owned(), group: group.parse().ok() }
            }
            None => Self { address: text.to_owned(), group: None },
        }
    }
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut url: DiscoveryUrl =
        arguments.portal.parse().map_err(|error| UsageError(format!("{error}")))?;
    url.chap.complete(variable);
    let identity = url.chap.identity().map_err(|error| UsageError(format!("{error}")))?;
    let (portal, options) = (url.portal, SessionOptions { identity, ..SessionOptions::default() });
    let found = on_a_core(async { Ok(discover(&portal, &options).await?) })?;
    let targets = found.into_iter().map(|target| {
        let mut portals: Vec<_> =
            target.addresses.iter().map(|address| TargetPortal::parse(address)).collect();
        if portals.is_empty() {
            // RFC 7143 appendix C: a target without addresses has the address of the portal that was asked.
            portals.push(TargetPortal { address: portal.to_string(), group: None });
        }
        Target { name: target.name, portals }
    });
    let discovered = Discovered { portal: portal.to_string(), targets: targets.collect() };
    if arguments.json {
        return print_line(&serde_json::to_string(&discovered)?);
    }
    if discovered.targets.is_empty() {
        note(format_args!("sarsen: {portal} has no target for this initiator"));
        return Ok(());
    }
    print_line(&render(&discovered))
}

fn render(discovered: &Discovered) -> String {
    let rows = discovered.targets.iter().flat_map(|target| {
        target.portals.iter().enumerate().map(|(index, portal)| {
            let name = if index == 0 { target.name.as_str() } else { "" };
            let group = portal.group.map_or_else(String::new, |group| format!(" (group {group})"));
            [name.to_owned(), format!("{}{group}", portal.address)]
        })
    });
    table(["TARGET", "PORTAL"], &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_portal_has_a_line_and_a_target_is_named_once() {
        let portals = ["192.0.2.1:3260,1", "[2001:db8::1]:3260,2", "box:3260"];
        let portals = portals.iter().map(|portal| TargetPortal::parse(portal)).collect();
        let target = Target { name: "iqn.2026-01.x:disk".to_owned(), portals };
        let discovered = Discovered { portal: "box:3260".to_owned(), targets: vec![target] };
        let text = render(&discovered);
        let lines: Vec<Vec<_>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["TARGET", "PORTAL"]);
        assert_eq!(lines[1], ["iqn.2026-01.x:disk", "192.0.2.1:3260", "(group", "1)"]);
        assert_eq!(lines[2], ["[2001:db8::1]:3260", "(group", "2)"]);
        assert_eq!(lines[3], ["box:3260"]);
    }

    #[test]
    fn a_name_cannot_pretend_to_be_another_line() {
        let portals = vec![TargetPortal::parse("box:3260,1\n0.0.0.0:1")];
        let target = Target { name: "iqn.x:a\niqn.x:b\u{1b}[A".to_owned(), portals };
        let discovered = Discovered { portal: "box:3260".to_owned(), targets: vec![target] };
        let text = render(&discovered);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(text.contains("iqn.x:a\\u000aiqn.x:b\\u001b[A"), "{text:?}");
    }
}
