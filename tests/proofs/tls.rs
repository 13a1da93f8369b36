//! Portals with TLS. The project's own initiator connects directly, other initiators connect through stunnel. The
//! server rejects initiators without a valid certificate.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use sarsen_block::Buffer;
use sarsen_initiator::{SessionOptions, Unit};
use sarsen_lab::process::Daemon;
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, process, program, qemu};

use crate::certificates::{Authority, NOW, PAST, put};
use crate::client::{LIMIT, run, signal};

const MIB: u64 = 1 << 20;
const NAME: &str = "scratch";
const TARGET: &str = "iqn.2026-11.proof:tls";
const REFUSED: &str = "0202";

/// A server with a plain portal and a TLS portal, and its folder with the certificate authorities.
struct Fixture {
    serving: Serving,
    folder: tempfile::TempDir,
    plain: Url,
    by_tls: Url,
}

impl Fixture {
    /// Starts the server; adds `rules` to the target's table and `flags` to the portal.
    fn start(rules: &str, flags: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path();
        let ours = Authority::new("ours")?;
        put(path, "ours.pem", &ours.pem)?;
        ours.issue(path, "san", NOW)?;
        let theirs = Authority::new("theirs")?;
        put(path, "theirs.pem", &theirs.pem)?;
        theirs.issue(path, "host", NOW)?;
        theirs.issue(path, "other", NOW)?;
        theirs.issue(path, "late", PAST)?;
        put(
            path,
            "sarsen.toml",
            &format!("[[target]]\nname = \"{TARGET}\"\nluns = [\"{NAME}\"]\n{rules}"),
        )?;
        let at = |name: &str| path.join(name).display().to_string();
        let mut arguments = vec!["--listen-tls".to_owned(), "127.0.0.1:0,2".into()];
        for (flag, name) in [
            ("--config", "sarsen.toml"),
            ("--tls-certificate", "san.pem"),
            ("--tls-key", "san.key"),
        ] {
            arguments.extend([flag.to_owned(), at(name)]);
        }
        if !flags.is_empty() {
            arguments.extend(["--tls-client-ca".into(), at("theirs.pem")]);
            arguments.extend(flags.iter().map(|&flag| flag.to_owned()));
        }
        let arguments: Vec<&str> =
            arguments.iter().map(String::as_str).filter(|argument| !argument.is_empty()).collect();
        let serving =
            Serving::start_with(&[Volume::new(NAME, Backing::Ram, 16 * MIB)], &arguments)?;
        let mut urls = serving.urls(NAME)?.into_iter();
        let (plain, by_tls) = (urls.next().context("plain")?, urls.next().context("TLS")?);
        Ok(Self { serving, folder, plain, by_tls })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the TLS URL of a client with this certificate.
    fn url(&self, ca: &str, client: Option<&str>) -> String {
        self.url_at(&self.by_tls.portal, ca, client)
    }

    fn url_at(&self, portal: &str, ca: &str, client: Option<&str>) -> String {
        let at = |name: String| self.path(&name).display().to_string();
        let mut url = format!("iscsis://{portal}/{TARGET}/0?ca={}", at(format!("{ca}.pem")));
        if let Some(name) = client {
            let (certificate, key) = (at(format!("{name}.pem")), at(format!("{name}.key")));
            url += &format!("&certificate={certificate}&key={key}");
        }
        url
    }

    /// Runs `sarsen disk info`; returns its output if it fails.
    fn info(&self, url: &str) -> Result<Result<(), String>> {
        let output = Command::new("timeout")
            .args(["--kill-after=5", "60"])
            .arg(program::path()?)
            .args(["disk", "info", url])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(if output.status.success() { Ok(()) } else { Err(said) })
    }

    fn is_refused(&self, url: &str, why: &str) -> Result<()> {
        let said = self.info(url)?.err().with_context(|| format!("{url} is let in"))?;
        ensure!(said.contains(why), "{url}: no {why:?} in {said}\n{}", self.serving.log());
        Ok(())
    }

    fn is_permitted(&self, url: &str) -> Result<()> {
        let said = self.info(url)?;
        ensure!(said.is_ok(), "{url}: {said:?}\n{}", self.serving.log());
        Ok(())
    }
}

async fn unit(url: &str) -> Result<Unit> {
    Ok(Unit::connect(&url.parse()?, &SessionOptions::default()).await?)
}

fn pattern(seed: u8, length: usize) -> Buffer {
    let bytes: Vec<u8> = (0..length).map(|at| (at / 512) as u8 ^ seed ^ at as u8).collect();
    Buffer::copy_of(&bytes)
}

/// stunnel with one service, which ends when this is dropped.
struct Tunnel {
    _daemon: Daemon,
    port: u16,
}

impl Tunnel {
    fn start(folder: &Path, service: &str) -> Result<Self> {
        let config = folder.join("stunnel.conf");
        let mut last = None;
        // stunnel needs a port number, which another process may have taken meanwhile.
        for _ in 0..10 {
            let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
            let text =
                format!("foreground = yes\npid =\n[proof]\naccept = 127.0.0.1:{port}\n{service}\n");
            fs::write(&config, text)?;
            let log = fs::File::create(folder.join("stunnel.log"))?;
            let daemon = Daemon::start(&[], Path::new("stunnel"), |command| {
                command.arg(&config).stderr(log);
            })?;
            let listens = || anyhow::Ok(process::listens(daemon.pid(), port));
            match daemon.wait_until(LIMIT, listens) {
                Ok(()) => return Ok(Self { _daemon: daemon, port }),
                Err(error) => last = Some(error),
            }
        }
        let log = fs::read_to_string(folder.join("stunnel.log"))?;
        Err(last.context("stunnel was not tried")?).context(log)
    }

    fn portal(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

#[test]
fn data_written_over_tls_is_read_over_tls_and_tcp() -> Result<()> {
    let fixture = Fixture::start("", &[])?;
    let url = fixture.url("ours", None);
    run(async {
        let (by_tls, plain) = (unit(&url).await?, unit(&fixture.plain.to_string()).await?);
        for round in 0..8 {
            let data = pattern(round, MIB as usize);
            by_tls.write(u64::from(round) * 2048, Buffer::copy_of(&data), false).await?;
            ensure!(by_tls.read(u64::from(round) * 2048, 2048).await?[..] == data[..]);
            ensure!(plain.read(u64::from(round) * 2048, 2048).await?[..] == data[..]);
        }
        by_tls.logout().await?;
        Ok(plain.logout().await?)
    })
    .with_context(|| fixture.serving.log())?;

    let portal = url.replace(&format!("/{TARGET}/0"), "/");
    let list = process::output(Command::new(program::path()?).args(["discover", &portal]), LIMIT)?;
    ensure!(list.contains(TARGET), "{list}");
    let mut load = Command::new(program::path()?);
    load.args(["lab", "load", &url, "--read", "50", "--random", "100", "--sessions", "2"]);
    load.args(["--depth", "8", "--block-size", "64KiB", "--seconds", "1", "--verify"]);
    process::output(&mut load, Duration::from_secs(60))?;
    fixture.serving.stop()
}

#[test]
fn wrong_certificates_are_refused_with_reason() -> Result<()> {
    let fixture = Fixture::start("", &[])?;
    let right = fixture.url("ours", None);
    fixture.is_permitted(&right)?;
    fixture.is_permitted(&format!("{right}&server-name=localhost"))?;
    fixture.is_refused(&fixture.url("theirs", None), "signed the portal's certificate")?;
    let named = format!("{right}&server-name=elsewhere.example");
    fixture.is_refused(&named, "not for elsewhere.example")?;
    // The two ports do not understand each other's protocol.
    fixture
        .is_refused(&fixture.url_at(&fixture.plain.portal, "ours", None), "cannot use TLS with")?;
    ensure!(fixture.info(&fixture.by_tls.to_string())?.is_err());

    // The program's own server does not start with such a certificate.
    Authority::new("ours")?.issue(fixture.folder.path(), "old", PAST)?;
    let old = |ending| fixture.path("old").with_extension(ending).display().to_string();
    let output = Command::new(program::path()?)
        .args(["serve", "--volume", "a=ram:1MiB", "--listen-tls", "127.0.0.1:0"])
        .args(["--tls-certificate", &old("pem"), "--tls-key", &old("key")])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        !output.status.success() && said.contains("old.pem: the certificate expired"),
        "{said}"
    );
    let service =
        format!("cert = {}\nkey = {}\nconnect = {}", old("pem"), old("key"), fixture.plain.portal);
    let tunnel = Tunnel::start(fixture.folder.path(), &service)?;
    fixture.is_refused(&fixture.url_at(&tunnel.portal(), "ours", None), "has expired")?;
    fixture.serving.stop()
}

#[test]
fn where_certificates_are_demanded_only_one_that_holds_opens_the_portal() -> Result<()> {
    let fixture = Fixture::start("", &[""])?;
    fixture.is_permitted(&fixture.url("ours", Some("host")))?;
    fixture.is_refused(&fixture.url("ours", None), "the portal requires a certificate")?;
    fixture.is_refused(&fixture.url("ours", Some("late")), "which has expired")?;
    fixture
        .is_refused(&fixture.url("ours", Some("san")), "that signed the initiator's certificate")?;
    for reported in ["the client showed no certificate", "certificate expired", "UnknownIssuer"] {
        fixture.serving.log_tells(|log| log.contains(reported)).context(reported)?;
    }
    fixture.serving.stop()
}

#[test]
fn rfc7143_11_13_5_a_certificate_that_no_rule_names_ends_the_login_with_0202() -> Result<()> {
    let rule = "[[target.allow]]\ncertificate = \"host\"\n";
    let fixture = Fixture::start(rule, &["--tls-client-optional"])?;
    fixture.is_permitted(&fixture.url("ours", Some("host")))?;
    for client in [None, Some("other"), Some("late")] {
        fixture.is_refused(&fixture.url("ours", client), "access rules")?;
    }
    fixture.is_refused(&fixture.plain.to_string(), "access rules")?;
    let refused = format!("status={REFUSED}");
    fixture.serving.log_tells(|log| log.matches(&refused).count() == 4)?;
    // No rule can match this certificate.
    fixture
        .is_refused(&fixture.url("ours", Some("san")), "that signed the initiator's certificate")?;
    fixture.serving.stop()
}

#[test]
fn certificates_are_renewed_under_sessions_that_run() -> Result<()> {
    let fixture = Fixture::start("", &[])?;
    let folder = fixture.folder.path();
    let first = fixture.url("ours", None);
    let next = Authority::new("next")?;
    put(folder, "next.pem", &next.pem)?;
    run(async {
        let running = unit(&first).await?;
        next.issue(folder, "san", NOW)?;
        signal(&fixture.serving, Signal::HUP)?;
        let begun = sarsen_io::time::now();
        while let Err(error) = unit(&fixture.url("next", None)).await {
            ensure!(begun.elapsed() < LIMIT, "{error:#}\n{}", fixture.serving.log());
        }
        ensure!(unit(&first).await.is_err(), "the old certificate is still shown");

        // An invalid certificate changes nothing.
        put(folder, "san.pem", "nothing")?;
        signal(&fixture.serving, Signal::HUP)?;
        let begun = sarsen_io::time::now();
        while !fixture.serving.log().contains("the old certificates stay in use") {
            ensure!(begun.elapsed() < LIMIT, "{}", fixture.serving.log());
            unit(&fixture.url("next", None)).await?;
        }
        unit(&fixture.url("next", None)).await?;

        let data = pattern(1, MIB as usize);
        running.write(0, Buffer::copy_of(&data), true).await?;
        ensure!(running.read(0, 2048).await?[..] == data[..], "the session lost its way");
        Ok(running.logout().await?)
    })
    .with_context(|| fixture.serving.log())?;
    fixture.serving.stop()
}

#[test]
fn an_initiator_without_tls_comes_through_a_tunnel() -> Result<()> {
    let fixture = Fixture::start("", &[""])?;
    let folder = fixture.folder.path();
    let at = |name: &str| fixture.path(name).display().to_string();
    let tunnel = Tunnel::start(
        folder,
        &format!(
            "client = yes\nconnect = {}\nCAfile = {}\nverifyChain = yes\ncheckIP = 127.0.0.1\n\
             cert = {}\nkey = {}",
            fixture.by_tls.portal,
            at("ours.pem"),
            at("host.pem"),
            at("host.key")
        ),
    )?;
    let through = Url { portal: tunnel.portal(), ..fixture.by_tls.clone() };
    let inquiry = process::output(Command::new("iscsi-inq").arg(through.to_string()), LIMIT)?;
    ensure!(inquiry.contains("SARSEN"), "{inquiry}");
    let image = fixture.path("image");
    qemu::make_image(&image, 16 * MIB, 7)?;
    qemu::copy_to(&image, &through)?;
    let found = fixture.path("found");
    let mut read = Command::new(program::path()?);
    read.args(["disk", "read", &fixture.url("ours", Some("host"))]).arg(&found);
    process::output(&mut read, LIMIT)?;
    ensure!(qemu::sha256(&image)? == qemu::sha256(&found)?, "the copy differs");
    fixture.serving.stop()
}
