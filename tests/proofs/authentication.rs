//! CHAP against others' targets: who has the right secret is let in, who has another one is not,
//! and a target that cannot prove itself is left.

use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_lab::contestant::istgt::{self, Account};
use sarsen_lab::contestant::{Backing, Image, Running, tgt};
use sarsen_lab::load::Endpoint;
use sarsen_lab::network::{LinkProfile, Network};
use sarsen_proof::program;
use sarsen_proof::serving::Url;

const MIB: u64 = 1 << 20;
const FAILED: i32 = 1;
const USAGE: i32 = 2;

const ACCOUNT: Account<'_> =
    Account { user: ("host", "the host's secret"), target: ("box", "the box's own secret") };

/// The variables that say who logs in, and whom he wants to meet.
type Variables<'a> = &'a [(&'a str, &'a str)];

const USER: &str = "LIBISCSI_CHAP_USERNAME";
const SECRET: &str = "LIBISCSI_CHAP_PASSWORD";
const TARGET_USER: &str = "LIBISCSI_CHAP_TARGET_USERNAME";
const TARGET_SECRET: &str = "LIBISCSI_CHAP_TARGET_PASSWORD";

const RIGHT: Variables<'_> = &[(USER, ACCOUNT.user.0), (SECRET, ACCOUNT.user.1)];
const MUTUAL: Variables<'_> = &[
    (USER, ACCOUNT.user.0),
    (SECRET, ACCOUNT.user.1),
    (TARGET_USER, ACCOUNT.target.0),
    (TARGET_SECRET, ACCOUNT.target.1),
];

fn run(arguments: &[&str], variables: Variables<'_>) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(program::path()?).args(arguments);
    for name in [USER, SECRET, TARGET_USER, TARGET_SECRET] {
        command.env_remove(name);
    }
    Ok(command.envs(variables.iter().copied()).stdin(Stdio::null()).output()?)
}

/// Runs what must end with `code`; gives what it says.
fn ends(code: i32, arguments: &[&str], variables: Variables<'_>) -> Result<String> {
    let output = run(arguments, variables)?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.code() == Some(code), "{arguments:?}: {}\n{said}", output.status);
    for secret in [ACCOUNT.user.1, ACCOUNT.target.1] {
        ensure!(!said.contains(secret), "it shows a secret:\n{said}");
    }
    Ok(said)
}

fn with_user(url: &Url) -> String {
    let (user, secret) = ACCOUNT.user;
    url.to_string().replacen("iscsi://", &format!("iscsi://{user}%{secret}@"), 1)
}

/// What holds at every target, one way.
fn prove_one_way(url: &Url) -> Result<()> {
    let plain = url.to_string();
    let read = |url: &str| -> Vec<String> {
        ["disk", "read", url, "-", "--length", "4096"].map(str::to_owned).to_vec()
    };
    for (url, variables) in [(plain.as_str(), RIGHT), (with_user(url).as_str(), &[])] {
        let arguments = read(url);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let output = run(&arguments, variables)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && output.stdout.len() == 4096, "{url}: {said}");
    }
    let info = ["disk", "info", &plain];
    let wrong = [(USER, ACCOUNT.user.0), (SECRET, "not the host's secret")];
    let said = ends(FAILED, &info, &wrong)?;
    ensure!(said.contains("does not know this user"), "{said}");
    let stranger = [(USER, "stranger"), (SECRET, ACCOUNT.user.1)];
    ends(FAILED, &info, &stranger)?;
    // Nobody is not let in, and nothing is sent by a user without a secret.
    ends(FAILED, &info, &[])?;
    let said = ends(USAGE, &info, &[(USER, ACCOUNT.user.0)])?;
    ensure!(said.contains(SECRET), "{said}");
    Ok(())
}

/// What holds at every target that proves itself.
fn prove_mutual(url: &Url) -> Result<()> {
    let plain = url.to_string();
    let info = ["disk", "info", &plain];
    ends(0, &info, MUTUAL)?;
    let (user, secret) = ACCOUNT.target;
    let query = format!("{}?target_user={user}&target_password={secret}", with_user(url));
    ends(0, &["disk", "info", &query], &[])?;
    for (name, value) in [(TARGET_SECRET, "of another box entirely"), (TARGET_USER, "imposter")] {
        let mut other = MUTUAL.to_vec();
        other.retain(|variable| variable.0 != name);
        other.push((name, value));
        let said = ends(FAILED, &info, &other)?;
        ensure!(said.contains("is not the one"), "{said}");
    }
    let mut same = MUTUAL[..3].to_vec();
    same.push((TARGET_SECRET, ACCOUNT.user.1));
    let said = ends(FAILED, &info, &same)?;
    ensure!(said.contains("same secret"), "{said}");
    Ok(())
}

/// The URL of the volume `disk`.
fn url_of(running: &Running, network: &Network) -> Result<Url> {
    let link = network.links().first().context("loopback")?;
    match running.endpoint("disk", link)? {
        Endpoint::Iscsi(url) => Ok(url.into()),
        other => bail!("not over iSCSI but {other:?}"),
    }
}

#[test]
fn tgt_lets_in_whom_it_knows_and_proves_itself() -> Result<()> {
    let network = Network::build(&[LinkProfile::loopback()]);
    let tgt = tgt::start(&network, &[Image::new("disk", Backing::Memory, 8 * MIB)])?;
    let url = &url_of(&tgt, &network)?;
    let account = |(user, secret): (&str, &str), outgoing: &[&str]| {
        let account = ["--mode", "account", "--user", user];
        tgt::administer(&tgt, &[&["--op", "new"], &account[..], &["--password", secret]].concat())?;
        tgt::administer(
            &tgt,
            &[&["--op", "bind"], &account[..], &["--tid", "1"], outgoing].concat(),
        )
    };
    // A target that asks nobody knows nobody either.
    let said = ends(FAILED, &["disk", "info", &url.to_string()], RIGHT)?;
    ensure!(said.contains("a user") && said.contains("or none"), "{said}");
    account(ACCOUNT.user, &[])?;
    prove_one_way(url)?;
    // It has no name of its own yet: what was demanded does not happen.
    let said = ends(FAILED, &["disk", "info", &url.to_string()], MUTUAL)?;
    ensure!(!said.contains("cannot connect"), "{said}");
    account(ACCOUNT.target, &["--outgoing"])?;
    prove_mutual(url)
}

#[test]
fn istgt_lets_in_whom_it_knows_and_proves_itself_in_discovery_too() -> Result<()> {
    let network = Network::build(&[LinkProfile::loopback()]);
    let image = Image::new("disk", Backing::Memory, 8 * MIB);
    let istgt = istgt::start(&network, &[image], Some(ACCOUNT))?;
    let url = url_of(&istgt, &network)?;
    prove_one_way(&url)?;
    prove_mutual(&url)?;
    let discover = ["discover", &url.portal];
    for variables in [RIGHT, MUTUAL] {
        let said = ends(0, &discover, variables)?;
        ensure!(said.contains(&url.iqn), "{said}");
    }
    let (user, secret) = ACCOUNT.user;
    ends(0, &["discover", &format!("iscsi://{user}%{secret}@{}", url.portal)], &[])?;
    ends(FAILED, &discover, &[(USER, user), (SECRET, "not the host's secret")])?;
    ends(FAILED, &discover, &[])?;
    let mut other = MUTUAL[..3].to_vec();
    other.push((TARGET_SECRET, "of another box entirely"));
    ends(FAILED, &discover, &other)?;
    Ok(())
}
