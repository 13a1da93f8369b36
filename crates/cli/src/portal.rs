//! `sarsen portal`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;
use sarsen_node::config::Protocol;
use sarsen_node::control::Client;
use sarsen_node::model::document::{Portal, PortalAddress, Tls};
use sarsen_node::model::{Document, GroupTag, ObjectKind};
use sarsen_node::schema::{PortalList, ServedPortal};

use crate::disk::on_a_core;
use crate::exit::UsageError;
use crate::output::{note, print_line};
use crate::state::{self, ChangeOptions};

/// Verbs of `sarsen portal`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Create a portal: the server listens on this address as well.
    Create {
        /// Address, such as `0.0.0.0:3260` or `[::]:3260`.
        address: PortalAddress,
        /// The protocol that it serves: iscsi or nbd.
        #[arg(long, default_value_t)]
        protocol: Protocol,
        /// The portal group tag. Default: 1.
        #[arg(long, value_name = "TAG")]
        group: Option<GroupTag>,
        /// Accept only TLS 1.3. The server authenticates with this certificate and its chain: a PEM file on the server's
        /// machine.
        #[arg(long, value_name = "FILE", requires = "tls_key")]
        tls_certificate: Option<PathBuf>,
        /// The private key of that certificate: a PEM file on the server's machine. Users other than its owner and group
        /// must have no access to it.
        #[arg(long, value_name = "FILE", requires = "tls_certificate")]
        tls_key: Option<PathBuf>,
        /// The certificate authority of initiators: a PEM file on the server's machine. Initiators must then present a
        /// certificate.
        #[arg(long, value_name = "FILE", requires = "tls_certificate")]
        tls_client_ca: Option<PathBuf>,
        #[command(flatten)]
        options: ChangeOptions,
    },
    #[command(flatten)]
    Common(state::Verb),
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Create {
            address,
            protocol,
            group,
            tls_certificate,
            tls_key,
            tls_client_ca,
            options,
        } => {
            let protocol = Some(protocol).filter(|protocol| *protocol != Protocol::default());
            let tls = tls_certificate.zip(tls_key).map(|(certificate, key)| Tls {
                certificate,
                key,
                client_ca: tls_client_ca,
                require_client_certificate: None,
            });
            let portal = Portal { address, protocol, group, tls };
            options.create(Document { portal: vec![portal], ..Document::default() })
        }
        Verb::Common(state::Verb::List { options }) => {
            state::list(ObjectKind::Portal, &options)?;
            if options.json {
                return Ok(());
            }
            let client = options.client()?;
            let document = state::state(&client)?.document;
            let names: Vec<_> =
                document.portal.iter().map(|portal| portal.address.as_str()).collect();
            let PortalList { portals } = listening(&client)?;
            let portals = portals.iter().filter(|portal| !names.contains(&portal.address.as_str()));
            let lines: Vec<_> = portals.map(unnamed).collect();
            if lines.is_empty() { Ok(()) } else { print_line(&lines.join("\n")) }
        }
        Verb::Common(verb) => {
            if let state::Verb::One(one) = &verb {
                refuse_others(one)?;
            }
            state::run(ObjectKind::Portal, verb)
        }
    }
}

/// Refuses a change of a portal that is not an object of the state.
fn refuse_others(verb: &state::OneVerb) -> anyhow::Result<()> {
    let (name, client) = verb.object()?;
    let is_it = |portal: &&ServedPortal| !portal.is_object && portal.address == name;
    if listening(&client)?.portals.iter().any(|portal| is_it(&portal)) {
        let remedy = "change those, and restart the server";
        let message = format!(
            "portal {name}: opened by the server's flags, configuration file or default; {remedy}"
        );
        return Err(UsageError(message).into());
    }
    Ok(())
}

/// Describes an open portal whose address is not the name of an object.
fn unnamed(portal: &ServedPortal) -> String {
    let ServedPortal { address, protocol, group, tls, is_object } = portal;
    let tls = if *tls { ", TLS" } else { "" };
    let reason = if *is_object {
        "the free port that a portal with port 0 selected"
    } else {
        "opened by the server's flags, configuration file or default"
    };
    format!("* {address}: {protocol}, group {group}{tls}, {reason}")
}

fn listening(client: &Client) -> anyhow::Result<PortalList> {
    on_a_core(async { Ok(client.get("/portals").await?) })
}

/// Warns if other machines can reach no portal.
pub(crate) fn note_loopback(client: &Client) -> anyhow::Result<()> {
    if is_local(&listening(client)?) {
        note(
            "every portal listens on a loopback address, so only this machine can log in; `sarsen portal create \
             ADDRESS:3260` with an address of this machine adds another one",
        );
    }
    Ok(())
}

fn is_local(list: &PortalList) -> bool {
    list.portals.iter().all(|portal| {
        portal.address.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_only_server_is_recognised() {
        assert!(is_local(&portals_at(&["127.0.0.1:3260", "[::1]:3260"])));
        assert!(!is_local(&portals_at(&["127.0.0.1:3260", "0.0.0.0:3261"])));
        assert!(!is_local(&portals_at(&["192.0.2.1:3260"])));
    }

    fn portals_at(addresses: &[&str]) -> PortalList {
        let portals = addresses.iter().map(|&address| ServedPortal {
            address: address.to_owned(),
            protocol: Protocol::Iscsi,
            group: 1,
            tls: false,
            is_object: false,
        });
        PortalList { portals: portals.collect() }
    }
}
