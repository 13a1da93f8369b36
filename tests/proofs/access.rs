//! Access control as initiators see it. Each refusal has the status of RFC 7143 §11.13.5, one log line and a count. The
//! proofs also show a part of a target to two initiators, and revoke access during its use.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use sarsen_block::Buffer;
use sarsen_initiator::{
    ChapCredentials, ConnectionError, Credentials, LoginError, LoginStatus, Secret, SessionError,
    SessionOptions, Unit,
};
use sarsen_io::time::now;
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, program};
use sarsen_wire::iscsi::AsyncEvent;

use crate::client::{self, LIMIT, Wire, run};

const MIB: u64 = 1 << 20;
const ONE: &str = "iqn.2026-11.proof:one";
const TWO: &str = "iqn.2026-11.proof:two";
const STRANGER: &str = "iqn.2026-11.proof:stranger";
const ELSEWHERE: &str = "iqn.2026-11.proof:elsewhere";

/// Accounts with their secrets.
const ACCOUNTS: [(&str, &str); 3] =
    [("host", "the host's secret"), ("other", "the other's secret"), ("san", "the san's secret")];

/// At LUN 0, each of the two initiators sees a different disk.
const ONE_RULE: &str =
    "[[target.allow]]\ninitiator = \"iqn.2026-11.proof:one\"\nluns = { 0 = \"a\" }\n";
const TWO_RULE: &str =
    "[[target.allow]]\ninitiator = \"iqn.2026-11.proof:two\"\nluns = { 0 = \"b\" }\n";
const FAR_RULE: &str = "[[target.allow]]\ninitiator = \"iqn.2026-11.proof:elsewhere\"\n\
    address = \"192.0.2.0/24\"\n";

/// A server with two targets: one shows each initiator one of two disks, the other requires CHAP.
struct Guarded {
    serving: Serving,
    folder: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for (name, secret) in ACCOUNTS {
            let path = folder.path().join(name);
            fs::write(&path, format!("{secret}\n"))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        }
        let volumes = [("a", 8), ("b", 16), ("c", 8)]
            .map(|(name, mebibytes)| Volume::new(name, Backing::Ram, mebibytes * MIB));
        let file = folder.path().join("sarsen.toml");
        fs::write(&file, configuration(&folder, &[ONE_RULE, TWO_RULE, FAR_RULE].concat()))?;
        let socket = folder.path().join("control.sock");
        let arguments = [("--config", &file), ("--control", &socket)]
            .into_iter()
            .flat_map(|(flag, path)| [flag.to_owned(), path.display().to_string()]);
        let arguments: Vec<_> = arguments.collect();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        Ok(Self { serving: Serving::start_with(&volumes, &arguments)?, folder })
    }

    /// Writes other rules for the first target and applies them.
    fn change(&self, rules: &str) -> Result<()> {
        fs::write(self.folder.path().join("sarsen.toml"), configuration(&self.folder, rules))?;
        client::signal(&self.serving, Signal::HUP)
    }

    fn shared(&self) -> &Url {
        self.serving.url("a")
    }

    fn closed(&self) -> &Url {
        self.serving.url("c")
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// Returns the value of a line of `sarsen metrics`.
    fn metric(&self, name: &str) -> Result<u64> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "60"]).arg(program::path()?);
        let output = command
            .args(["metrics", "--control"])
            .arg(self.socket())
            .stdin(Stdio::null())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && text.ends_with("# EOF\n"), "{output:?}");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.map_or(Ok(0), str::parse)?)
    }

    fn refused(&self, reason: &str) -> Result<u64> {
        self.metric(&format!("sarsen_logins_refused_total{{reason=\"{reason}\"}}"))
    }

    /// Returns the only line of the log that contains all these words; there must be exactly one.
    fn only_line(&self, words: &[&str]) -> Result<String> {
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        until(|| Ok(self.serving.log().lines().any(|line| has_all(&line))))
            .with_context(|| format!("{words:?} in {}", self.serving.log()))?;
        let log = self.serving.log();
        let lines: Vec<_> = log.lines().filter(has_all).collect();
        match lines[..] {
            [line] => Ok(line.to_owned()),
            _ => bail!("{} lines have {words:?}\n{log}", lines.len()),
        }
    }
}

/// Repeats the check until it succeeds: the server logs a login after its response.
fn until(mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = now() + LIMIT;
    while !is_so()? {
        ensure!(now() < deadline, "not so within {LIMIT:?}");
        std::thread::yield_now();
    }
    Ok(())
}

fn configuration(folder: &tempfile::TempDir, rules: &str) -> String {
    let account = |(name, _): (&str, &str)| {
        let path = folder.path().join(name);
        format!("[[account]]\nname = \"{name}\"\nsecret-file = {path:?}\n")
    };
    let accounts = ACCOUNTS.map(account).concat();
    format!(
        "{accounts}[[target]]\nname = \"iqn.2026-11.proof:shared\"\nluns = [\"a\", \"b\"]\n{rules}\
         [[target]]\nname = \"iqn.2026-11.proof:closed\"\nluns = [\"c\"]\nchap = [\"host\"]\n\
         own-account = \"san\"\n"
    )
}

fn options(initiator: &str, identity: Option<ChapCredentials>) -> SessionOptions {
    let initiator_name = initiator.to_owned();
    SessionOptions { initiator_name, identity, ..SessionOptions::default() }
}

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials { name: name.to_owned(), secret: Secret(secret.to_owned()) }
}

/// Logs in; returns the status if the server refuses.
fn login(url: &Url, initiator: &str, user: Option<(&str, &str)>) -> Result<Option<LoginStatus>> {
    let mut url: sarsen_initiator::Url = url.to_string().parse()?;
    if let Some((name, secret)) = user {
        url.chap.user = Some(name.to_owned());
        url.chap.secret = Some(Secret(secret.to_owned()));
    }
    run(async {
        match Unit::log_in(&url, &options(initiator, None)).await {
            Ok(unit) => {
                unit.logout().await?;
                Ok(None)
            }
            Err(SessionError::Connection(ConnectionError::Login(
                LoginError::Denied { status, .. }
                | LoginError::NotFound { status }
                | LoginError::Refused { status },
            ))) => Ok(Some(status)),
            Err(error) => Err(error.into()),
        }
    })
}

#[test]
fn rfc7143_11_13_5_each_refusal_has_its_status_a_line_and_a_count() -> Result<()> {
    let server = Guarded::start()?;
    let (shared, closed) = (server.shared(), server.closed());
    let [(host, secret), (other, others_secret), (san, sans_secret)] = ACCOUNTS;
    let failed = LoginStatus::AuthenticationFailure;
    for (url, initiator, user, status, reason, reported) in [
        (closed, ONE, (host, others_secret), failed, "wrong_secret", "wrong secret"),
        (closed, ONE, ("nobody", secret), failed, "unknown_account", "unknown account"),
        // A target's own account does not permit a login.
        (closed, TWO, (san, sans_secret), failed, "unknown_account", "unknown account"),
        (
            closed,
            ONE,
            (other, others_secret),
            LoginStatus::AuthorizationFailure,
            "account_not_allowed",
            "this account is not permitted",
        ),
    ] {
        let before = server.refused(reason)?;
        ensure!(login(url, initiator, Some(user))? == Some(status), "{reason}");
        until(|| Ok(server.refused(reason)? == before + 1)).context(reason)?;
        let code = format!("status={:04x}", status.0);
        let line = server.only_line(&[reported, initiator, &url.iqn, user.0, &code])?;
        ensure!(line.contains("WARN") && line.contains("peer=127.0.0.1:"), "{line}");
    }
    for (url, initiator, status, reason, reported) in [
        (closed, STRANGER, failed, "no_common_method", "no common authentication method"),
        (shared, STRANGER, LoginStatus::NotFound, "initiator_not_allowed", "this initiator name"),
        (shared, ELSEWHERE, LoginStatus::NotFound, "address_not_allowed", "this address"),
    ] {
        ensure!(login(url, initiator, None)? == Some(status), "{reason}");
        until(|| Ok(server.refused(reason)? == 1)).context(reason)?;
        server.only_line(&[reported, initiator, &url.iqn])?;
    }
    let nowhere = Url { iqn: "iqn.2026-11.proof:nowhere".into(), ..shared.clone() };
    ensure!(login(&nowhere, STRANGER, None)? == Some(LoginStatus::NotFound));
    ensure!(server.metric("sarsen_logins_total")? == 0);
    ensure!(login(closed, STRANGER, Some((host, secret)))?.is_none(), "the right secret");
    until(|| Ok(server.metric("sarsen_logins_total")? == 1))?;
    let log = server.serving.log();
    ensure!(!ACCOUNTS.iter().any(|(_, secret)| log.contains(secret)), "a secret is in\n{log}");
    server.serving.stop()
}

#[test]
fn rfc7143_12_1_3_target_authenticates_on_request() -> Result<()> {
    let server = Guarded::start()?;
    let [(host, secret), _, (san, sans_secret)] = ACCOUNTS;
    let user = credentials(host, secret);
    for (target, expected) in [
        (credentials(san, sans_secret), true),
        (credentials(san, "of another san entirely"), false),
    ] {
        let mut url: sarsen_initiator::Url = server.closed().to_string().parse()?;
        url.chap.user = Some(user.name.clone());
        url.chap.secret = Some(user.secret.clone());
        url.chap.target_user = Some(target.name);
        url.chap.target_secret = Some(target.secret);
        let proven = run(async { Ok(Unit::connect(&url, &options(ONE, None)).await.is_ok()) })?;
        ensure!(proven == expected, "expected {expected}");
    }
    Ok(())
}

#[test]
fn discovery_hides_targets_without_permission() -> Result<()> {
    let server = Guarded::start()?;
    let portal = server.shared().portal.parse()?;
    for (initiator, expected) in [(ONE, true), (STRANGER, false), (ELSEWHERE, false)] {
        let targets = run(async {
            Ok(sarsen_initiator::discover(&portal, &options(initiator, None)).await?)
        })?;
        let knows = |url: &Url| targets.iter().any(|target| target.name == url.iqn);
        ensure!(knows(server.shared()) == expected, "{initiator}: {targets:?}");
        ensure!(knows(server.closed()), "{initiator}: who has a name may have an account");
    }
    Ok(())
}

#[test]
fn sam5_4_7_two_initiators_find_disks_of_their_own_at_lun_0() -> Result<()> {
    let server = Guarded::start()?;
    let url: sarsen_initiator::Url = server.shared().to_string().parse()?;
    let other_lun = sarsen_initiator::Url { lun: 1, ..url.clone() };
    run(async {
        let one = Unit::connect(&url, &options(ONE, None)).await?;
        let two = Unit::connect(&url, &options(TWO, None)).await?;
        let sizes = [one.capacity(), two.capacity()].map(|capacity| capacity.blocks * 512);
        ensure!(sizes == [8 * MIB, 16 * MIB], "{sizes:?}");
        one.write(0, Buffer::copy_of(&[1; 512]), false).await?;
        two.write(0, Buffer::copy_of(&[2; 512]), false).await?;
        ensure!(*one.read(0, 1).await? == [1; 512] && *two.read(0, 1).await? == [2; 512]);
        for unit in [&one, &two] {
            ensure!(unit.report_luns().await? == [[0; 8]]);
        }
        for initiator in [ONE, TWO] {
            let unit = Unit::connect(&other_lun, &options(initiator, None)).await;
            ensure!(unit.is_err(), "{initiator} has reached what it is not shown");
        }
        Ok(())
    })
}

#[test]
fn rfc7143_11_9_1_revoked_access_ends_the_session_and_stays_revoked() -> Result<()> {
    let server = Guarded::start()?;
    let mut one = Wire::login(server.shared(), ONE, [0x80, 0, 0, 0, 0, 1])?;
    let mut two = Wire::login(server.shared(), TWO, [0x80, 0, 0, 0, 0, 2])?;
    one.settle()?;
    two.settle()?;
    let more = TWO_RULE.replace("{ 0 = \"b\" }", "{ 0 = \"b\", 4 = \"a\" }");
    server.change(&more)?;
    let reported = one.next()?.context("closed without a word")?;
    ensure!(reported.asynchronous_event() == Some(AsyncEvent::SessionDrop), "{reported:?}");
    ensure!(one.next()?.is_none(), "the connection stays");
    until(|| Ok(server.metric("sarsen_access_revoked_total")? == 1))?;
    server.only_line(&["access revoked", ONE, "this initiator name is not permitted"])?;
    // The other session stays open, and the server reports that its units have changed.
    let mut changed = None;
    until(|| {
        changed = two.test_unit_ready()?.sense();
        Ok(changed.is_some())
    })?;
    let changed = changed.map(|sense| (sense.asc, sense.ascq));
    ensure!(changed == Some((0x3f, 0x0e)), "{changed:?}");
    let again = client::login_status(server.shared(), ONE, [0x80, 0, 0, 0, 0, 1])?;
    ensure!(again == LoginStatus::AuthorizationFailure, "{again:?}");
    let stranger = client::login_status(server.shared(), STRANGER, [0x80, 0, 0, 0, 0, 3])?;
    ensure!(stranger == LoginStatus::NotFound, "{stranger:?}");
    // If a LUN is assigned to another disk, the session ends too.
    server.change(&TWO_RULE.replace("\"b\"", "\"a\""))?;
    let reported = two.next()?.context("closed without a word")?;
    ensure!(reported.asynchronous_event() == Some(AsyncEvent::SessionDrop), "{reported:?}");
    server.only_line(&["access revoked", TWO, "LUN 0 changes to another unit"])?;
    Wire::login(server.shared(), TWO, [0x80, 0, 0, 0, 0, 2])?.settle()?;
    until(|| Ok(server.metric("sarsen_access_revoked_total")? == 2))?;
    server.serving.stop()
}

#[test]
fn rules_with_a_mistake_change_nothing() -> Result<()> {
    let server = Guarded::start()?;
    let mut one = Wire::login(server.shared(), ONE, [0x80, 0, 0, 0, 0, 1])?;
    one.settle()?;
    server.change("[[target.allow]]\ninitiator = \"nonsense\"\n")?;
    let line = server.only_line(&["SIGHUP: nothing was changed: "])?;
    ensure!(
        line.contains(
            "sarsen.toml:14: allow[0].initiator: \"nonsense\" is not an initiator's name; write"
        ),
        "{line}"
    );
    let before = client::login_status(server.shared(), TWO, [0x80, 0, 0, 0, 0, 2])?;
    ensure!(before == LoginStatus::Success, "{before:?}");
    server.change(&["alias = \"x\"\n", ONE_RULE].concat())?;
    server.only_line(&["SIGHUP: the configuration was applied"])?;
    let after = client::login_status(server.shared(), TWO, [0x80, 0, 0, 0, 0, 3])?;
    ensure!(after != LoginStatus::Success, "{after:?}");
    ensure!(one.test_unit_ready()?.status() == Some(0), "{}", server.serving.log());
    server.change(&["alias = \"x\"\n", ONE_RULE, "[limits]\nsessions = 9\n"].concat())?;
    ensure!(one.test_unit_ready()?.status() == Some(0), "{}", server.serving.log());
    Ok(())
}

#[test]
fn a_storm_of_refused_logins_does_not_fill_the_log() -> Result<()> {
    let server = Guarded::start()?;
    for number in 0..40 {
        let status = client::login_status(server.shared(), STRANGER, [0x80, 0, 0, 0, 0, number])?;
        ensure!(status == LoginStatus::NotFound, "{status:?}");
    }
    until(|| Ok(server.refused("initiator_not_allowed")? == 40))?;
    let lines = server.serving.log().matches("login refused").count();
    ensure!(lines < 40, "{lines} lines");
    Ok(())
}
