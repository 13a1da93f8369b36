//! `sarsen target url`: lines to paste where a disk is to be used.

mod formats;

use std::path::PathBuf;

use clap::ValueEnum;
use sarsen_initiator::Portal;
use sarsen_node::control::schema::{self, Authentication, TargetList};
use serde::Serialize;

use crate::control::Manner;
use crate::disk::{on_a_core, print_line};
use crate::exit::{NotFoundError, UsageError};

/// Flags of `sarsen target url`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A target of the running server, by its iSCSI name; all of them unless given.
    target: Option<String>,
    /// For whom.
    #[arg(long, value_enum, default_value_t = Format::Libiscsi)]
    format: Format,
    /// Whom initiators log in as; USER stands there unless given.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The file that has the secret where the line is to be used: secrets themselves are in no line.
    #[arg(long, value_name = "FILE", default_value = "SECRET-FILE")]
    secret_file: String,
    /// The name or address by which clients reach a portal that listens on all addresses; this
    /// machine's name unless given.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Ask no server: the portal is this one.
    #[arg(long, value_name = "HOST[:PORT]", requires = "name", conflicts_with = "target")]
    portal: Option<Portal>,
    /// Ask no server: the target has this name.
    #[arg(id = "name", long = "target", value_name = "IQN", requires = "portal")]
    explicit: Option<String>,
    /// Ask no server: the disk has this number.
    #[arg(long, default_value_t = 0, requires = "portal",
        value_parser = clap::value_parser!(u16).range(..=16383))]
    lun: u16,
    #[command(flatten)]
    manner: Manner,
}

/// For whom a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// iscsi:// as libiscsi, QEMU and `sarsen disk` take it (iscsis:// for TLS, sarsen alone).
    Libiscsi,
    /// open-iscsi on Linux.
    Iscsiadm,
    /// qemu-img and a virtual machine's disk.
    Qemu,
    /// Booting by iPXE, as RFC 4173 writes it.
    Ipxe,
    /// A shell on VMware ESXi.
    Esxi,
    /// PowerShell on Windows.
    Windows,
}

/// A way to a target's disks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    portal: Portal,
    /// The portal's group, where it is known.
    group: Option<u16>,
    tls: bool,
    target: String,
    luns: Vec<u16>,
    /// Whom the initiator logs in as, if it has to.
    user: Option<String>,
    secret_file: String,
}

/// The stable shape of `--json`.
#[derive(Serialize)]
struct Shown {
    target: String,
    portal: String,
    lines: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let ways = match (&arguments.portal, &arguments.explicit) {
        (Some(portal), Some(target)) => vec![explicit(arguments, portal, target)?],
        _ => {
            let client = arguments.manner.client();
            let list: TargetList = on_a_core(async { Ok(client.get("/targets").await?) })?;
            of_server(arguments, &list.targets)?
        }
    };
    let mut shown = Vec::new();
    for way in &ways {
        let lines = match way.tls && arguments.format != Format::Libiscsi {
            true => {
                eprintln!(
                    "sarsen: {} speaks TLS, which this client does not: put stunnel before it",
                    way.portal
                );
                continue;
            }
            false => formats::lines(arguments.format, way),
        };
        shown.push(Shown { target: way.target.clone(), portal: way.portal.to_string(), lines });
    }
    if arguments.manner.json {
        return print_line(&serde_json::to_string(&shown)?);
    }
    let text: Vec<_> = shown.into_iter().flat_map(|shown| shown.lines).collect();
    if text.is_empty() { Ok(()) } else { print_line(&text.join("\n")) }
}

fn explicit(arguments: &Arguments, portal: &Portal, target: &str) -> anyhow::Result<Way> {
    // Whoever can paste it can read it: what is no name must not become a command.
    let url = format!("iscsi://{portal}/{target}/{}", arguments.lun);
    let url: sarsen_initiator::Url = url.parse().map_err(|error| UsageError(format!("{error}")))?;
    Ok(Way {
        portal: url.portal,
        group: None,
        tls: false,
        target: url.target,
        luns: vec![arguments.lun],
        user: arguments.user.clone(),
        secret_file: arguments.secret_file.clone(),
    })
}

fn of_server(arguments: &Arguments, targets: &[schema::Target]) -> anyhow::Result<Vec<Way>> {
    let wanted = |target: &&schema::Target| {
        arguments.target.as_ref().is_none_or(|name| *name == target.name)
    };
    let targets: Vec<_> = targets.iter().filter(wanted).collect();
    if let (Some(name), []) = (&arguments.target, &*targets) {
        let advice = "`sarsen target list` has those that there are";
        return Err(NotFoundError(format!("there is no target {name}: {advice}")).into());
    }
    let host = arguments.host.clone().or_else(own_name);
    let mut ways = Vec::new();
    for target in targets {
        let demanded = (target.authentication == Authentication::Chap).then(|| "USER".to_owned());
        for portal in &target.portals {
            ways.push(Way {
                portal: reachable(&portal.address, host.as_deref())?,
                group: Some(portal.group),
                tls: portal.tls,
                target: target.name.clone(),
                luns: target.luns.iter().map(|unit| unit.lun).collect(),
                user: arguments.user.clone().or_else(|| demanded.clone()),
                secret_file: arguments.secret_file.clone(),
            });
        }
    }
    Ok(ways)
}

/// Where a client finds what listens at `address`.
fn reachable(address: &str, host: Option<&str>) -> anyhow::Result<Portal> {
    let mut portal: Portal = address.parse()?;
    let ip: Option<std::net::IpAddr> = portal.host.parse().ok();
    if let (Some(ip), Some(host)) = (ip, host)
        && ip.is_unspecified()
    {
        portal.host = host.trim_matches(['[', ']']).to_owned();
    }
    Ok(portal)
}

/// What this machine is called.
fn own_name() -> Option<String> {
    let path = PathBuf::from("/proc/sys/kernel/hostname");
    let name = std::fs::read_to_string(path).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use sarsen_node::control::schema::{TargetLun, TargetPortal, TargetState};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &str) -> Result<Arguments, clap::Error> {
        let words = ["x"].into_iter().chain(words.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    fn target(name: &str, authentication: Authentication) -> schema::Target {
        let portal = |address: &str, tls| TargetPortal { address: address.into(), group: 3, tls };
        schema::Target {
            name: name.into(),
            alias: None,
            state: TargetState::InService,
            redirect: None,
            portal_groups: None,
            session_count: 0,
            portals: vec![portal("0.0.0.0:3260", false), portal("[2001:db8::1]:3261", true)],
            luns: vec![TargetLun { lun: 0 }, TargetLun { lun: 7 }],
            authentication,
        }
    }

    #[test]
    fn a_target_of_the_server_is_reached_by_each_of_its_portals() {
        let all =
            [target("iqn.x:a", Authentication::None), target("iqn.x:b", Authentication::Chap)];
        let arguments = parse("iqn.x:b --host san.example").expect("valid");
        let ways = of_server(&arguments, &all).expect("two");
        let seen: Vec<_> = ways.iter().map(|way| (way.portal.to_string(), way.tls)).collect();
        let expected = [("san.example:3260".into(), false), ("[2001:db8::1]:3261".into(), true)];
        assert_eq!(seen, expected);
        assert!(ways.iter().all(|way| way.user.as_deref() == Some("USER")), "CHAP is demanded");
        assert!(ways.iter().all(|way| way.luns == [0, 7] && way.group == Some(3)));
        let open = of_server(&parse("iqn.x:a").expect("valid"), &all).expect("two");
        assert!(open.iter().all(|way| way.user.is_none()));
        let absent = of_server(&parse("iqn.x:c").expect("valid"), &all).expect_err("absent");
        assert!(absent.downcast_ref::<NotFoundError>().is_some());
    }

    #[test]
    fn a_target_without_a_server_is_given_whole() {
        let arguments =
            parse("--portal box --target iqn.2026-01.x:a --lun 300 --user host").expect("valid");
        let way = explicit(&arguments, &"box".parse().expect("a portal"), "iqn.2026-01.x:a");
        let way = way.expect("valid");
        assert_eq!((way.portal.to_string(), &*way.luns), ("box:3260".into(), &[300][..]));
        assert!(parse("--portal box").is_err(), "which target?");
        assert!(parse("--target iqn.2026-01.x:a").is_err(), "which portal?");
        assert!(parse("--portal box --target iqn.2026-01.x:a iqn.2026-01.x:b").is_err());
        let portal = "box".parse().expect("a portal");
        assert!(explicit(&arguments, &portal, "$(reboot)").is_err(), "what is no name");
    }

    #[test]
    fn the_json_has_the_shape_that_scripts_read() {
        let shown = [Shown { target: "t".into(), portal: "p".into(), lines: vec!["l".into()] }];
        let text = serde_json::to_string(&shown).expect("JSON");
        assert_eq!(text, r#"[{"target":"t","portal":"p","lines":["l"]}]"#);
    }
}
