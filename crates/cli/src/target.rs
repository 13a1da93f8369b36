//! `sarsen target`.

mod url;

use std::collections::BTreeMap;

use clap::Subcommand;
use sarsen_node::config::{NamePattern, parse_redirect_address};
use sarsen_node::control::path_segment;
use sarsen_node::model::document::{self, Luns, Rule};
use sarsen_node::model::{Document, Key, ObjectKind};
use sarsen_node::schema::{
    DrainTarget, Drained, Redirect, Target, TargetList, TargetState, Undrained,
};

use crate::control::{ServerOptions, report_drain, table};
use crate::disk::on_a_core;
use crate::exit::{NotFoundError, UsageError};
use crate::output::print_line;
use crate::state::{self, ChangeOptions};

/// Verbs of `sarsen target`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List the targets of a running server.
    List {
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Print commands and settings by which initiators use a target's disks.
    Url(url::Arguments),
    /// Create a target.
    Create {
        /// The target's iSCSI name.
        name: String,
        /// A volume to serve: VOLUME at the next LUN from 0 on, or LUN=VOLUME. Several may be given.
        #[arg(long = "lun", value_name = "[LUN=]VOLUME")]
        luns: Vec<String>,
        /// TargetAlias.
        #[arg(long, value_name = "TEXT")]
        alias: Option<String>,
        /// Require CHAP with this account. Several may be given.
        #[arg(long, value_name = "ACCOUNT")]
        chap: Vec<String>,
        /// The account with which the target authenticates itself (mutual CHAP).
        #[arg(long, value_name = "ACCOUNT")]
        own_account: Option<String>,
        /// Permit only this host. Several may be given.
        #[arg(long = "host", value_name = "HOST")]
        hosts: Vec<String>,
        /// Permit only this initiator. The name may end with *. Several may be given.
        #[arg(long = "initiator", value_name = "IQN")]
        initiators: Vec<NamePattern>,
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Add a volume to a target.
    Attach {
        /// iSCSI name of the target.
        name: String,
        /// Name of the volume.
        volume: String,
        /// The LUN. Default: the lowest free one.
        #[arg(long)]
        lun: Option<u16>,
        #[command(flatten)]
        options: ChangeOptions,
    },
    /// Remove a volume from a target.
    Detach {
        /// iSCSI name of the target.
        name: String,
        /// Name of the volume.
        volume: String,
        #[command(flatten)]
        options: ChangeOptions,
    },
    #[command(flatten)]
    One(state::OneVerb),
    /// Take a target out of service. New logins are refused or redirected. The server asks initiators to log
    /// out, and terminates their sessions after the grace period.
    Drain {
        /// The target's iSCSI name.
        name: String,
        /// Grace period: seconds that initiators have to log out. The server then terminates the remaining sessions.
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        grace: u16,
        /// Redirect initiators to this server. Default: the server asks them to try again later.
        #[arg(long, value_name = "HOST[:PORT]", value_parser = parse_redirect_address)]
        redirect: Option<String>,
        /// Redirect permanently: initiators use the other server without asking this one again.
        #[arg(long, requires = "redirect")]
        permanent: bool,
        #[command(flatten)]
        options: ServerOptions,
    },
    /// Put a target back into service.
    Undrain {
        /// The target's iSCSI name.
        name: String,
        #[command(flatten)]
        options: ServerOptions,
    },
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::List { options } => {
            let client = options.client()?;
            let list: TargetList = on_a_core(async { Ok(client.get("/targets").await?) })?;
            if options.json {
                print_line(&serde_json::to_string(&list)?)
            } else {
                print_line(&render(&list.targets))
            }
        }
        Verb::Url(arguments) => url::run(&arguments),
        Verb::Create { name, luns, alias, chap, own_account, hosts, initiators, options } => {
            let luns = parse_luns(&luns)?;
            let hosts = hosts.into_iter().map(|host| Rule { host: Some(host), ..Rule::default() });
            let initiators = initiators.into_iter();
            let initiators =
                initiators.map(|initiator| Rule { initiator: Some(initiator), ..Rule::default() });
            let allow = hosts.chain(initiators).collect();
            let target = document::Target {
                name,
                alias,
                luns,
                chap,
                own_account,
                allow,
                ..Default::default()
            };
            options.create(Document { target: vec![target], ..Document::default() })
        }
        Verb::Attach { name, volume, lun, options } => {
            let key = Key::new(ObjectKind::Target, &name);
            state::change_derived(&key, options, |document| {
                let luns = luns_of(document, &name)?;
                let served = luns.iter().find(|(_, served)| **served == volume);
                if let Some((served, _)) = served.filter(|_| lun.is_none()) {
                    let message = format!(
                        "{name} serves {volume} as LUN {served}; with --lun, it gets another LUN as well"
                    );
                    return Err(UsageError(message).into());
                }
                let lun = lun.or_else(|| (0..).find(|lun| !luns.contains_key(lun))).unwrap_or(0);
                if let Some(other) = luns.get(&lun) {
                    let message = format!("LUN {lun} of {name} is {other}; give another --lun");
                    return Err(UsageError(message).into());
                }
                Ok(serde_json::json!({ "luns": { lun.to_string(): volume } }))
            })
        }
        Verb::Detach { name, volume, options } => {
            let key = Key::new(ObjectKind::Target, &name);
            state::change_derived(&key, options, |document| {
                let mut luns = luns_of(document, &name)?.iter();
                let lun = luns.find(|(_, served)| **served == volume).map(|(lun, _)| lun);
                let lun = lun.ok_or_else(|| {
                    NotFoundError(format!(
                        "{name} does not serve {volume}: see `sarsen target show {name}`"
                    ))
                })?;
                Ok(serde_json::json!({ "luns": { lun.to_string(): null } }))
            })
        }
        Verb::One(verb) => state::run_one(ObjectKind::Target, verb),
        Verb::Drain { name, grace, redirect, permanent, options } => {
            let client = options.client()?;
            let redirect = redirect.map(|address| Redirect { address, permanent });
            let request = DrainTarget { grace_seconds: Some(grace), redirect };
            let path = format!("/targets/{}/drain", path_segment(&name));
            let drained: Drained = on_a_core(async { Ok(client.post(&path, &request).await?) })?;
            report_drain(&drained, options.json)
        }
        Verb::Undrain { name, options } => {
            let client = options.client()?;
            let path = format!("/targets/{}/undrain", path_segment(&name));
            let undrained: Undrained = on_a_core(async { Ok(client.post(&path, &()).await?) })?;
            if options.json {
                print_line(&serde_json::to_string(&undrained)?)
            } else {
                print_line(&format!("{name} is in service"))
            }
        }
    }
}

/// Parses `VOLUME` or `LUN=VOLUME`.
fn parse_luns(texts: &[String]) -> Result<Luns, UsageError> {
    let mut luns = BTreeMap::new();
    for text in texts {
        let (lun, volume) = match text.split_once('=') {
            None => (None, text),
            Some((lun, volume)) => {
                let lun = lun.parse().map_err(|_| {
                    UsageError(format!("--lun {text}: write VOLUME or LUN=VOLUME, such as 3=data"))
                })?;
                (Some(lun), &volume.to_owned())
            }
        };
        let lun = lun.or_else(|| (0..).find(|lun| !luns.contains_key(lun))).unwrap_or(0);
        if luns.insert(lun, volume.clone()).is_some() {
            return Err(UsageError(format!("--lun {text}: LUN {lun} is given twice")));
        }
    }
    Ok(Luns(luns))
}

/// Returns the volumes of a target.
fn luns_of<'a>(document: &'a Document, name: &str) -> anyhow::Result<&'a BTreeMap<u16, String>> {
    let target = document.target.iter().find(|target| target.name == name);
    let target = target.ok_or_else(|| NotFoundError(format!("there is no target {name}")))?;
    Ok(&target.luns.0)
}

fn render(targets: &[Target]) -> String {
    let rows: Vec<_> = targets.iter().map(row).collect();
    table(["TARGET", "STATE", "SESSIONS", "REDIRECT"], &rows)
}

fn row(target: &Target) -> [String; 4] {
    let state = match target.state {
        TargetState::InService => "in service",
        TargetState::Draining => "draining",
        TargetState::Drained => "drained",
        TargetState::Unknown => "unknown",
    };
    let redirect = target.redirect.as_ref().map_or("-".to_owned(), |redirect| {
        let for_good = if redirect.permanent { " (for good)" } else { "" };
        format!("{}{for_good}", redirect.address)
    });
    [target.name.clone(), state.to_owned(), target.session_count.to_string(), redirect]
}

#[cfg(test)]
mod tests {
    use sarsen_node::schema::Authentication;

    use super::*;

    #[test]
    fn a_target_is_one_line() {
        let redirect = Some(Redirect { address: "san2.example:3260".into(), permanent: true });
        let target = Target {
            name: "iqn.2026-01.x:disk".into(),
            alias: None,
            state: TargetState::Drained,
            redirect,
            portal_groups: None,
            session_count: 2,
            portals: Vec::new(),
            luns: Vec::new(),
            authentication: Authentication::None,
            account: None,
        };
        let text = render(&[target]);
        let words: Vec<_> = text.lines().last().unwrap_or_default().split("  ").collect();
        assert_eq!(words[..2], ["iqn.2026-01.x:disk", "drained"]);
        assert!(text.ends_with("2         san2.example:3260 (for good)"), "{text}");
    }
}
