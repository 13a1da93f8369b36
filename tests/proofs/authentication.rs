//! CHAP of this program and of others. An initiator with the right secret logs in, an initiator with a wrong secret
//! does not. An initiator ends the login if the target cannot authenticate itself.

use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_lab::load::Endpoint;
use sarsen_lab::network::{LinkProfile, Network};
use sarsen_lab::target_under_test::istgt::{self, Account};
use sarsen_lab::target_under_test::{Backing, Image, Running, tgt};
use sarsen_proof::conformance::{self, Verdict};
use sarsen_proof::qemu::{self, HeaderDigest};
use sarsen_proof::serving::Url;
use sarsen_proof::{Accounts, Backing as Store, Serving, Volume, program};

const MIB: u64 = 1 << 20;
const FAILED: i32 = 1;
const USAGE: i32 = 2;

const ACCOUNT: Account<'_> =
    Account { user: ("host", "the host's secret"), target: ("box", "the box's own secret") };

/// Environment variables with the account of the initiator and the expected account of the target.
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

/// Runs a command that must end with `code`; returns its output.
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
    url.with_user(ACCOUNT.user).to_string()
}

/// Checks one-way CHAP, which must work with every target.
fn prove_one_way(url: &Url) -> Result<()> {
    let plain = url.to_string();
    for (url, variables) in [(plain.as_str(), RIGHT), (with_user(url).as_str(), &[])] {
        let output = run(&["disk", "read", url, "-", "--length", "4096"], variables)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && output.stdout.len() == 4096, "{url}: {said}");
    }
    let info = ["disk", "info", &plain];
    let wrong = [(USER, ACCOUNT.user.0), (SECRET, "not the host's secret")];
    let said = ends(FAILED, &info, &wrong)?;
    ensure!(said.contains("has no such account"), "{said}");
    let stranger = [(USER, "stranger"), (SECRET, ACCOUNT.user.1)];
    ends(FAILED, &info, &stranger)?;
    // A login without an account fails, and an initiator without a secret sends nothing.
    ends(FAILED, &info, &[])?;
    let said = ends(USAGE, &info, &[(USER, ACCOUNT.user.0)])?;
    ensure!(said.contains(SECRET), "{said}");
    Ok(())
}

/// Checks mutual CHAP, which must work with every target that authenticates itself.
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
        ensure!(said.contains("is not the configured one"), "{said}");
    }
    let mut same = MUTUAL[..3].to_vec();
    same.push((TARGET_SECRET, ACCOUNT.user.1));
    let said = ends(FAILED, &info, &same)?;
    ensure!(said.contains("same secret"), "{said}");
    Ok(())
}

/// Returns the URL of the volume `disk`.
fn url_of(running: &Running, network: &Network) -> Result<Url> {
    let link = network.links().first().context("loopback")?;
    match running.endpoint("disk", link)? {
        Endpoint::Iscsi(url) => Ok(url.into()),
        other => bail!("not over iSCSI but {other:?}"),
    }
}

#[test]
fn initiator_and_tgt_authenticate_each_other() -> Result<()> {
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
    // A target without authentication knows no accounts.
    let said = ends(FAILED, &["disk", "info", &url.to_string()], RIGHT)?;
    ensure!(said.contains("requires a user"), "{said}");
    account(ACCOUNT.user, &[])?;
    prove_one_way(url)?;
    // The target has no account of its own yet, so the requested mutual authentication fails.
    let said = ends(FAILED, &["disk", "info", &url.to_string()], MUTUAL)?;
    ensure!(!said.contains("cannot connect"), "{said}");
    account(ACCOUNT.target, &["--outgoing"])?;
    prove_mutual(url)
}

#[test]
fn initiator_and_istgt_authenticate_each_other_in_discovery_too() -> Result<()> {
    let network = Network::build(&[LinkProfile::loopback()]);
    let image = Image::new("disk", Backing::Memory, 8 * MIB);
    let istgt = istgt::start(&network, &[image], Some(ACCOUNT))?;
    let url = url_of(&istgt, &network)?;
    prove_one_way(&url)?;
    prove_mutual(&url)?;
    prove_discovery(&url)
}

/// Checks discovery with every target that requires authentication for it, and authenticates itself.
fn prove_discovery(url: &Url) -> Result<()> {
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

/// Creates accounts, and starts the program so that targets and discovery require them.
fn serve(volumes: &[Volume], tables: &str) -> Result<(Accounts, Serving)> {
    let accounts = Accounts::new(&[ACCOUNT.user, ACCOUNT.target])?;
    let configuration = accounts.configuration(tables)?;
    let serving = Serving::start_with(volumes, &["--config", &configuration])?;
    Ok((accounts, serving))
}

fn ram(name: &str) -> Volume {
    Volume::new(name, Store::Ram, 8 * MIB)
}

#[test]
fn initiator_and_sarsen_authenticate_each_other_in_discovery_too() -> Result<()> {
    let tables = "[discovery]\nchap = [\"host\"]\nown-account = \"box\"\n\
                  [[target]]\nname = \"iqn.2026-11.proof:disk\"\nluns = [\"disk\"]\n\
                  chap = [\"host\"]\nown-account = \"box\"\n";
    let (_accounts, serving) = serve(&[ram("disk")], tables)?;
    let url = serving.url("disk");
    prove_one_way(url)?;
    prove_mutual(url)?;
    prove_discovery(url)?;
    serving.log_tells(|log| log.contains("wrong secret") && log.contains("unknown account"))?;
    let log = serving.log();
    for secret in [ACCOUNT.user.1, ACCOUNT.target.1] {
        ensure!(!log.contains(secret), "the log shows a secret:\n{log}");
    }
    serving.stop()
}

#[test]
fn sarsen_and_its_initiator_agree_on_each_algorithm_both_ways() -> Result<()> {
    let algorithms = ["sha3-256", "sha-256", "sha1", "md5"];
    let volumes = algorithms.map(ram);
    let (_accounts, serving) = serve(&volumes, &algorithms.map(target_with_algorithm).concat())?;
    for algorithm in algorithms {
        let url = serving.url(algorithm).to_string();
        ends(0, &["disk", "info", &url], RIGHT)?;
        ends(0, &["disk", "info", &url], MUTUAL)?;
        let wrong = [(USER, ACCOUNT.user.0), (SECRET, "not the host's secret")];
        ends(FAILED, &["disk", "info", &url], &wrong)?;
    }
    serving.stop()
}

/// Returns the table of a target that accepts one algorithm only.
fn target_with_algorithm(algorithm: &str) -> String {
    format!(
        "[[target]]\nname = \"iqn.2026-11.proof:{algorithm}\"\nluns = [\"{algorithm}\"]\n\
         chap = [\"host\"]\nown-account = \"box\"\nalgorithms = [\"{algorithm}\"]\n"
    )
}

/// A target without its own credentials does not answer an initiator's request for them.
#[test]
fn sarsen_does_not_pretend_to_prove_itself() -> Result<()> {
    let tables = "[[target]]\nname = \"iqn.2026-11.proof:disk\"\nluns = [\"disk\"]\n\
                  chap = [\"host\"]\n";
    let (_accounts, serving) = serve(&[ram("disk"), ram("open")], tables)?;
    prove_one_way(serving.url("disk"))?;
    ends(FAILED, &["disk", "info", &serving.url("disk").to_string()], MUTUAL)?;
    // A target without authentication reports this to an initiator that offers an account.
    let open = serving.url("open").to_string();
    ends(0, &["disk", "info", &open], &[])?;
    let said = ends(FAILED, &["disk", "info", &open], RIGHT)?;
    ensure!(said.contains("requires a user"), "{said}");
    serving.stop()
}

#[test]
fn qemu_logs_in_with_a_secret_object_or_a_url_and_not_with_another_secret() -> Result<()> {
    const USER: (&str, &str) = ("qemu", "QemusOwnSecret42");
    let accounts = Accounts::new(&[USER, ("other", "SomebodyElses99")])?;
    let configuration = accounts.configuration(
        "[[target]]\nname = \"iqn.2026-11.proof:disk\"\nluns = [\"disk\"]\nchap = [\"qemu\"]\n\
         [[target]]\nname = \"iqn.2026-11.proof:strong\"\nluns = [\"strong\"]\nchap = [\"qemu\"]\n\
         algorithms = [\"sha3-256\", \"sha-256\"]\n",
    )?;
    let volumes = [ram("disk"), ram("strong")];
    let serving = Serving::start_with(&volumes, &["--config", &configuration])?;
    let url = serving.url("disk");
    let patterns = ["write -P 0x5a 0 1M", "read -P 0x5a 0 1M"];
    let secret = accounts.secret_file(USER.0);
    qemu::patterns_by(USER.0, &secret, url, &patterns).with_context(|| serving.log())?;
    let folder = tempfile::tempdir()?;
    qemu::copy_from(&url.with_user(USER), &folder.path().join("copy"))?;
    let copied = std::fs::read(folder.path().join("copy"))?;
    ensure!(copied[..MIB as usize].iter().all(|byte| *byte == 0x5a), "another pattern");

    let others = accounts.secret_file("other");
    // libiscsi supports only MD5.
    let refused = [
        qemu::patterns_by(USER.0, &others, url, &patterns),
        qemu::patterns_by("other", &others, url, &patterns),
        qemu::patterns(url, HeaderDigest::Off, &patterns),
        qemu::patterns_by(USER.0, &secret, serving.url("strong"), &patterns),
    ];
    for said in refused {
        let error = format!("{:#}", said.err().context("a stranger is let in")?);
        ensure!(error.contains("Failed to log in"), "{error}");
    }
    serving.stop()
}

/// Runs libiscsi's families for iSCSI itself with an account.
#[test]
fn libiscsi_finds_no_fault_behind_chap() -> Result<()> {
    const USER: (&str, &str) = ("libiscsi", "LibiscsisSecret7");
    let accounts = Accounts::new(&[USER])?;
    let account = format!("{}={}", USER.0, accounts.secret_file(USER.0).display());
    let volume = Volume::new("disk", Store::Ram, 256 * MIB);
    let serving = Serving::start_with(&[volume], &["--account", &account, "--chap", USER.0])?;
    let mut families = conformance::catalogue()?;
    families.retain(|(family, _)| family.starts_with("iSCSI"));
    ensure!(!families.is_empty(), "there are no such families");
    let urls = [serving.url("disk").with_user(USER)];
    let report = conformance::run(&urls, &families, |_| {})?;
    println!("{report}\n{}", report.faults());
    let faults = report.families.iter().flat_map(|family| family.faults()).count();
    // Later suites contain tests of accounts with other names than this one.
    let mut skipped = report.ended(Verdict::Skipped);
    let expected = faults == 0 && skipped.all(|(family, _)| family == "iSCSICHAP");
    ensure!(expected && report.total(Verdict::Passed) > 0, "{}", serving.log());
    // With a wrong secret, the suite cannot access the disk.
    let stranger = [serving.url("disk").with_user((USER.0, "SomebodyElses99"))];
    let report = conformance::run(&stranger, &families[..1].to_vec(), |_| {})?;
    ensure!(report.total(Verdict::Passed) == 0, "{report}");
    serving.stop()
}
