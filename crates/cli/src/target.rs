//! `sarsen target`.

mod url;

use clap::Subcommand;
use sarsen_node::config::parse_redirect_address;
use sarsen_node::control::path_segment;
use sarsen_node::control::schema::{
    DrainTarget, Drained, Redirect, Target, TargetList, TargetState, Undrained,
};

use crate::control::{Manner, report_drain, table};
use crate::disk::{on_a_core, print_line};

/// Verbs of `sarsen target`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List the targets of a running server.
    List {
        #[command(flatten)]
        manner: Manner,
    },
    /// Print lines to paste where a target's disks are to be used.
    Url(url::Arguments),
    /// Take a target out of service: new sessions are turned away or sent on, those that are there
    /// are asked to log out, and dropped if they do not in time.
    Drain {
        /// Its iSCSI name.
        name: String,
        /// Seconds that initiators have to log out.
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        grace: u16,
        /// Where initiators are sent when they log in again; else they are told to try later.
        #[arg(long, value_name = "HOST[:PORT]", value_parser = parse_redirect_address)]
        redirect: Option<String>,
        /// The redirection is for good: initiators need not ask here again.
        #[arg(long, requires = "redirect")]
        permanent: bool,
        #[command(flatten)]
        manner: Manner,
    },
    /// Take a target back into service.
    Undrain {
        /// Its iSCSI name.
        name: String,
        #[command(flatten)]
        manner: Manner,
    },
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::List { manner } => {
            let client = manner.client();
            let list: TargetList = on_a_core(async { Ok(client.get("/targets").await?) })?;
            match manner.json {
                true => print_line(&serde_json::to_string(&list)?),
                false => print_line(&render(&list.targets)),
            }
        }
        Verb::Url(arguments) => url::run(&arguments),
        Verb::Drain { name, grace, redirect, permanent, manner } => {
            let client = manner.client();
            let redirect = redirect.map(|address| Redirect { address, permanent });
            let request = DrainTarget { grace_seconds: Some(grace), redirect };
            let path = format!("/targets/{}/drain", path_segment(&name));
            let drained: Drained = on_a_core(async { Ok(client.post(&path, &request).await?) })?;
            report_drain(&drained, manner.json)
        }
        Verb::Undrain { name, manner } => {
            let client = manner.client();
            let path = format!("/targets/{}/undrain", path_segment(&name));
            let undrained: Undrained = on_a_core(async { Ok(client.post(&path, &()).await?) })?;
            match manner.json {
                true => print_line(&serde_json::to_string(&undrained)?),
                false => print_line(&format!("{name} is in service")),
            }
        }
    }
}

fn render(targets: &[Target]) -> String {
    let row = |target: &Target| {
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
    };
    let rows: Vec<_> = targets.iter().map(row).collect();
    table(["TARGET", "STATE", "SESSIONS", "REDIRECT"], &rows)
}

#[cfg(test)]
mod tests {
    use sarsen_node::control::schema::Authentication;

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
        };
        let text = render(&[target]);
        let words: Vec<_> = text.lines().last().unwrap_or_default().split("  ").collect();
        assert_eq!(words[..2], ["iqn.2026-01.x:disk", "drained"]);
        assert!(text.ends_with("2         san2.example:3260 (for good)"), "{text}");
    }
}
