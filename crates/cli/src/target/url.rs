//! `sarsen target url`: command lines that connect a client to a disk.

use clap::ValueEnum;
use sarsen_initiator::Portal;
use sarsen_node::config::Protocol;
use sarsen_node::initiator_lines::{self, AccessPath, Client, PortalAddress, access_paths};
use sarsen_node::schema::{self, TargetList};
use serde::Serialize;

use crate::control::ServerOptions;
use crate::disk::on_a_core;
use crate::exit::{NotFoundError, UsageError};
use crate::output::{note, print_line};

/// Flags of `sarsen target url`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A target of the running server, by its iSCSI name. Default: all.
    target: Option<String>,
    /// The format: the initiator that uses the lines.
    #[arg(long, value_enum, default_value_t = Format::Libiscsi)]
    format: Format,
    /// The account of the initiators. Default: the target's only account, or USER if it has several.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The file with the secret on the initiator's machine. Lines never contain secrets.
    #[arg(long, value_name = "FILE", default_value = "SECRET-FILE")]
    secret_file: String,
    /// The server's name or address, for portals that listen on all addresses. Default: this machine's name.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Print lines for this portal without asking a server.
    #[arg(long, value_name = "HOST[:PORT]", requires = "name", conflicts_with = "target")]
    portal: Option<Portal>,
    /// Print lines for this target without asking a server.
    #[arg(id = "name", long = "target", value_name = "IQN", requires = "portal")]
    explicit: Option<String>,
    /// Print lines for this LUN without asking a server.
    #[arg(long, default_value_t = 0, requires = "portal",
        value_parser = clap::value_parser!(u16).range(..=16383))]
    lun: u16,
    #[command(flatten)]
    options: ServerOptions,
}

/// The initiator that uses a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// iscsi:// URL for libiscsi, QEMU and `sarsen disk` (iscsis:// for TLS: sarsen only).
    Libiscsi,
    /// iscsiadm commands for open-iscsi on Linux.
    Iscsiadm,
    /// qemu-img, and a disk of a virtual machine.
    Qemu,
    /// Boot by iPXE (RFC 4173).
    Ipxe,
    /// esxcli commands that add the target to VMware ESXi.
    Esxi,
    /// PowerShell commands for the initiator of Windows.
    Windows,
    /// nbd:// URL for clients of NBD such as libnbd and QEMU (nbds:// for TLS).
    Nbd,
}

impl From<Format> for initiator_lines::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Libiscsi => Self::Libiscsi,
            Format::Iscsiadm => Self::Iscsiadm,
            Format::Qemu => Self::Qemu,
            Format::Ipxe => Self::Ipxe,
            Format::Esxi => Self::Esxi,
            Format::Windows => Self::Windows,
            Format::Nbd => Self::Nbd,
        }
    }
}

/// The stable format of `--json`.
#[derive(Serialize)]
struct Shown {
    target: String,
    portal: String,
    lines: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let paths = match (&arguments.portal, &arguments.explicit) {
        (Some(portal), Some(target)) => vec![explicit(arguments, portal, target)?],
        _ => {
            let client = arguments.options.client()?;
            let list: TargetList = on_a_core(async { Ok(client.get("/targets").await?) })?;
            of_server(arguments, &list.targets)?
        }
    };
    let mut shown = Vec::new();
    let format = arguments.format.into();
    for way in paths.iter().filter(|way| way.is_for(format)) {
        let Some(lines) = way.lines(format) else {
            let why = match arguments.format {
                Format::Nbd => {
                    "an account, and NBD has none: use access rules by address or certificate"
                }
                _ => "TLS, which this client does not support; put stunnel in front of it",
            };
            note(format_args!("sarsen: {} requires {why}", way.portal));
            continue;
        };
        shown.push(Shown { target: way.target.clone(), portal: way.portal.to_string(), lines });
    }
    if arguments.options.json {
        return print_line(&serde_json::to_string(&shown)?);
    }
    let text: Vec<_> = shown.into_iter().flat_map(|shown| shown.lines).collect();
    if text.is_empty() { Ok(()) } else { print_line(&text.join("\n")) }
}

fn explicit(arguments: &Arguments, portal: &Portal, target: &str) -> anyhow::Result<AccessPath> {
    // Clients paste the lines into a shell: an invalid name must not become a command.
    let url = format!("iscsi://{portal}/{target}/{}", arguments.lun);
    let url: sarsen_initiator::Url = url.parse().map_err(|error| UsageError(format!("{error}")))?;
    Ok(AccessPath {
        portal: PortalAddress { host: url.portal().host.clone(), port: url.portal().port },
        protocol: Protocol::Iscsi,
        group: None,
        tls: false,
        target: url.target,
        luns: vec![arguments.lun],
        volumes: Vec::new(),
        user: arguments.user.clone(),
        secret_file: arguments.secret_file.clone(),
    })
}

fn of_server(arguments: &Arguments, targets: &[schema::Target]) -> anyhow::Result<Vec<AccessPath>> {
    let wanted = |target: &&schema::Target| {
        arguments.target.as_ref().is_none_or(|name| *name == target.name)
    };
    let targets: Vec<_> = targets.iter().filter(wanted).collect();
    if let (Some(name), []) = (&arguments.target, &*targets) {
        let advice = "see `sarsen target list`";
        return Err(NotFoundError(format!("there is no target {name}: {advice}")).into());
    }
    let host = arguments.host.clone().or_else(initiator_lines::own_name);
    let client = Client {
        host: host.as_deref(),
        user: arguments.user.as_deref(),
        secret_file: &arguments.secret_file,
    };
    for target in
        targets.iter().filter(|target| target.portals.iter().all(initiator_lines::is_local))
    {
        note(format_args!(
            "sarsen: {}: its portals listen on loopback addresses, so only this machine can use it; `sarsen \
             portal create {}` with an address of this machine adds another one",
            target.name,
            if arguments.format == Format::Nbd {
                "ADDRESS:10809 --protocol nbd"
            } else {
                "ADDRESS:3260"
            }
        ));
    }
    Ok(targets.into_iter().flat_map(|target| access_paths(target, client)).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use sarsen_node::schema::{Authentication, TargetLun, TargetPortal, TargetState};

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

    #[test]
    fn targets_of_the_server_are_those_that_are_named() {
        let target = |name: &str| schema::Target {
            name: name.into(),
            alias: None,
            state: TargetState::InService,
            redirect: None,
            portal_groups: None,
            session_count: 0,
            portals: vec![TargetPortal {
                address: "0.0.0.0:3260".into(),
                protocol: Protocol::Iscsi,
                group: 1,
                tls: false,
            }],
            luns: vec![TargetLun { lun: 0, volume: "a".into() }],
            authentication: Authentication::None,
            account: None,
        };
        let all = [target("iqn.x:a"), target("iqn.x:b")];
        let arguments = parse("iqn.x:b --host san.example").expect("valid");
        let paths = of_server(&arguments, &all).expect("one");
        let seen: Vec<_> =
            paths.iter().map(|way| (way.target.as_str(), way.portal.to_string())).collect();
        assert_eq!(seen, [("iqn.x:b", "san.example:3260".to_owned())]);
        assert_eq!(of_server(&parse("").expect("valid"), &all).expect("two").len(), 2);
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
