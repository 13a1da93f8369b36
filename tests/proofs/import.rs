//! Moving in: what clients know of disks that tgtd or istgt serve, and who gets in there, is the same when the program
//! serves what it made of their configuration.

mod client;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_initiator::{Session, SessionOptions};
use sarsen_proof::process::{self, Daemon};
use sarsen_proof::program;

use client::{LIMIT, run};

const DESIGNATOR_HEADER: usize = 4;
const ANYBODY: &str = "iqn.2026-11.proof:anybody";
const SATURN: &str = "iqn.2026-11.proof:saturn";

/// Where a server listens, and what keeps it alive.
struct Peer {
    port: u16,
    _daemon: Daemon,
}

/// What a client finds at a LUN.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    /// Vendor, product and revision, as libiscsi shows them.
    standard: Vec<String>,
    serial: String,
    /// CODE SET, DESIGNATOR TYPE and DESIGNATOR of each that is about the unit.
    designators: Vec<(u8, u8, Vec<u8>)>,
}

/// A login that is tried.
struct Attempt {
    target: &'static str,
    lun: u16,
    /// User and secret, and those of the target.
    user: Option<(&'static str, &'static str)>,
    own: Option<(&'static str, &'static str)>,
    initiator: &'static str,
}

impl Attempt {
    fn new(target: &'static str, lun: u16) -> Self {
        Self { target, lun, user: None, own: None, initiator: ANYBODY }
    }

    fn by(self, user: &'static str, secret: &'static str) -> Self {
        Self { user: Some((user, secret)), ..self }
    }

    fn of(self, user: &'static str, secret: &'static str) -> Self {
        Self { own: Some((user, secret)), ..self }
    }

    fn from(self, initiator: &'static str) -> Self {
        Self { initiator, ..self }
    }

    fn url(&self, port: u16) -> String {
        let user = self.user.map_or(String::new(), |(user, secret)| format!("{user}%{secret}@"));
        let own = self.own.map_or(String::new(), |(user, secret)| {
            format!("?target_user={user}&target_password={secret}")
        });
        format!("iscsi://{user}127.0.0.1:{port}/{}/{}{own}", self.target, self.lun)
    }

    fn told(&self) -> String {
        format!("{} from {}", self.url(0), self.initiator)
    }

    /// What is found there, or nothing where nobody gets in.
    fn carry_out(&self, port: u16) -> Result<Option<Known>> {
        let url = self.url(port);
        let inquiry = |page: &[&str]| {
            let mut command = Command::new("iscsi-inq");
            command.args(["-i", self.initiator]).args(page).arg(&url);
            process::finish(&mut command, LIMIT)
        };
        let standard = inquiry(&[])?;
        let is_in = standard.status.is_some_and(|status| status.success());
        let parsed: sarsen_initiator::Url = url.parse()?;
        let options = SessionOptions {
            initiator_name: self.initiator.to_owned(),
            ..SessionOptions::default()
        };
        let page = run(async {
            let Ok(session) = Session::connect(&parsed, &options).await else { return Ok(None) };
            let page = session.inquiry_data(Some(0x83)).await?.to_vec();
            session.logout().await?;
            Ok(Some(page))
        })?;
        ensure!(
            is_in == page.is_some(),
            "libiscsi says {is_in} and our initiator does not at {}",
            self.told()
        );
        let Some(page) = page else { return Ok(None) };
        let serial = inquiry(&["--evpd", "1", "--pagecode", "128"])?.success()?;
        let (_, serial) = serial.split_once("Unit Serial Number:[").context("a serial number")?;
        let is_name = |line: &&str| {
            ["Vendor:", "Product:", "Revision:"].iter().any(|key| line.starts_with(key))
        };
        let standard = standard.success()?;
        let standard = standard.lines().filter(is_name);
        Ok(Some(Known {
            standard: standard.map(|line| line.trim_end().to_owned()).collect(),
            serial: serial.split(']').next().unwrap_or_default().trim().to_owned(),
            designators: designators(&page),
        }))
    }
}

/// Those of the unit. What fills a text up is no part of it.
fn designators(page: &[u8]) -> Vec<(u8, u8, Vec<u8>)> {
    const OF_UNIT: u8 = 0;
    const BINARY: u8 = 1;
    const ASCII: u8 = 2;
    let mut rest = page.get(4..).unwrap_or_default();
    let mut found = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(DESIGNATOR_HEADER) {
        let length = usize::from(header[3]).min(after.len());
        let (value, next) = after.split_at(length);
        rest = next;
        if header[1] & 0x30 != OF_UNIT {
            continue;
        }
        let is_text = header[0] & 0x0f != BINARY;
        let end = value.iter().rposition(|byte| !is_text || !b"\0 ".contains(byte));
        let value = value[..end.map_or(0, |end| end + 1)].to_vec();
        // istgt says UTF-8 of what is ASCII.
        found.push((if is_text { ASCII } else { BINARY }, header[1] & 0x0f, value));
    }
    found
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts another server. Where somebody took the port meanwhile, that is tried again.
fn peer(
    program: &str,
    log: &Path,
    configure: impl Fn(&mut Command, u16) -> Result<()>,
) -> Result<Peer> {
    for _ in 0..5 {
        let port = free_port()?;
        let (out, errors) = (File::create(log)?, File::options().append(true).open(log)?);
        let mut prepared = Ok(());
        let daemon = Daemon::start(&[], Path::new(program), |command| {
            prepared = configure(command.stdout(out).stderr(errors), port);
        })?;
        prepared?;
        let pid = daemon.pid();
        let ready = daemon
            .wait_until(LIMIT, || Ok::<_, process::ProcessError>(process::listens(pid, port)));
        if ready.is_ok() {
            return Ok(Peer { port, _daemon: daemon });
        }
    }
    bail!("{program} does not listen: {}", fs::read_to_string(log)?)
}

/// Makes a document of a configuration and serves it, on another port.
fn moved(folder: &Path, from: &str, file: &Path) -> Result<Peer> {
    let out = folder.join("imported.toml");
    let mut import = Command::new(program::path()?);
    process::output(import.args(["import", from]).arg(file).arg("--out").arg(&out), LIMIT)?;
    let mode = fs::metadata(&out)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "secrets are in a file of mode {mode:o}");
    let path = folder.join("sarsen.toml");
    fs::write(&path, as_configuration(folder, &fs::read_to_string(&out)?)?)?;
    let (announced, log) = (folder.join("announced"), folder.join("sarsen.log"));
    let (stdout, errors) = (File::create(&announced)?, File::create(&log)?);
    let daemon = Daemon::start(&[], &program::path()?, |command| {
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]).arg(&path);
        command.stdout(stdout).stderr(errors);
    })?;
    let mut said = String::new();
    let ready = daemon.wait_until(LIMIT, || -> Result<bool> {
        said = fs::read_to_string(&announced)?;
        Ok(said.ends_with('\n'))
    });
    ready.with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
    let announcement: serde_json::Value = serde_json::from_str(&said)?;
    let portal = announcement["portals"][0].as_str().context("a portal")?;
    let port = portal.rsplit_once(':').context("its port")?.1.parse()?;
    Ok(Peer { port, _daemon: daemon })
}

/// A document as a configuration file: secrets are in files of their own, and its portals are left out.
fn as_configuration(folder: &Path, document: &str) -> Result<String> {
    let mut text = String::new();
    let mut in_portal = false;
    for (number, line) in document.lines().enumerate() {
        in_portal = line == "[[portal]]" || in_portal && !line.starts_with('[');
        if in_portal {
            continue;
        }
        let Some(secret) = line.strip_prefix("secret = \"") else {
            text += &format!("{line}\n");
            continue;
        };
        let path = folder.join(format!("secret-{number}"));
        fs::write(&path, secret.trim_end_matches('"'))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        text += &format!("secret-file = \"{}\"\n", path.display());
    }
    Ok(text)
}

fn images(folder: &Path, names: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let image = |name: &&str| {
        let path = folder.join(format!("{name}.img"));
        File::create(&path)?.set_len(8 << 20)?;
        Ok(((*name).to_owned(), path))
    };
    names.iter().map(image).collect()
}

/// Tries each again; gives how many got in.
fn compare(before: &[Option<Known>], attempts: &[Attempt], port: u16) -> Result<usize> {
    for (attempt, before) in attempts.iter().zip(before) {
        let after = attempt.carry_out(port)?;
        ensure!(*before == after, "{}: {before:#?} before, {after:#?} now", attempt.told());
    }
    Ok(before.iter().flatten().count())
}

#[test]
fn what_tgtd_served_is_known_by_the_same_names_and_lets_in_the_same_initiators() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let files = images(folder, &["z", "a", "named", "near", "far"])?;
    let file = folder.join("targets.conf");
    fs::write(
        &file,
        format!(
            "<target iqn.2026-11.proof:plain>\nbacking-store {z}\nbacking-store {a}\n\
             write-cache off\n</target>\n\
             <target iqn.2026-11.proof:named>\ncontroller_tid 9\n<backing-store {named}>\nlun 3\n\
             scsi_sn SN-0815\nscsi_id \"ACME    0815abcd\"\nvendor_id ACME\n\
             product_id Fast_Disk\nproduct_rev 2.1\n</backing-store>\n\
             incominguser web secretpass12\noutgoinguser san secretpass34\n</target>\n\
             <target iqn.2026-11.proof:near>\nbacking-store {near}\n\
             initiator-address 127.0.0.0/8\n</target>\n\
             <target iqn.2026-11.proof:far>\nbacking-store {far}\n\
             initiator-address 192.0.2.0/24\ninitiator-name {SATURN}\n</target>\n",
            z = files["z"].display(),
            a = files["a"].display(),
            named = files["named"].display(),
            near = files["near"].display(),
            far = files["far"].display(),
        ),
    )?;
    let socket = folder.join("socket");
    let tgtd = peer("tgtd", &folder.join("tgtd.log"), |command, port| {
        command.args(["-f", "-C", "0", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        command.env("TGT_IPC_SOCKET", &socket);
        Ok(())
    })?;
    let mut admin = Command::new("tgt-admin");
    admin.args(["-C", "0", "--execute", "--conf"]).arg(&file).env("TGT_IPC_SOCKET", &socket);
    process::output(&mut admin, LIMIT)?;

    let plain = |lun| Attempt::new("iqn.2026-11.proof:plain", lun);
    let named = || Attempt::new("iqn.2026-11.proof:named", 3);
    let attempts = [
        plain(1),
        plain(2),
        named(),
        named().by("web", "secretpass12"),
        named().by("web", "secretpass13"),
        named().by("else", "secretpass12"),
        named().by("web", "secretpass12").of("san", "secretpass34"),
        named().by("web", "secretpass12").of("san", "secretpass12"),
        Attempt::new("iqn.2026-11.proof:near", 1),
        Attempt::new("iqn.2026-11.proof:far", 1),
        Attempt::new("iqn.2026-11.proof:far", 1).from(SATURN),
        Attempt::new("iqn.2026-11.proof:none", 1),
    ];
    let before = attempts.iter().map(|attempt| attempt.carry_out(tgtd.port));
    let before: Vec<_> = before.collect::<Result<_>>()?;
    drop(tgtd);
    let sarsen = moved(folder, "tgt", &file)?;
    let count = compare(&before, &attempts, sarsen.port)?;
    ensure!(count == 6, "{count} got in: {before:#?}");
    Ok(())
}

#[test]
fn what_istgt_served_is_known_by_the_same_names_and_lets_in_the_same_initiators() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let files = images(folder, &["one", "two", "three"])?;
    let file = folder.join("istgt.conf");
    let account = "[AuthGroup1]\n  Auth \"web\" \"secretpass12\" \"san\" \"secretpass34\"\n";
    fs::write(folder.join("auth.conf"), account)?;
    let istgt = peer("istgt", &folder.join("istgt.log"), |command, port| {
        let here = folder.display();
        let text = format!(
            "[Global]\nNodeBase \"iqn.2026-11.proof\"\nPidFile \"{here}/pid\"\n\
             AuthFile \"{here}/auth.conf\"\nMediaDirectory \"{here}\"\nLogFacility \"local7\"\n\
             DiscoveryAuthMethod None\nMaxSessions 16\nMaxConnections 4\n\
             [UnitControl]\nAuthMethod None\nAuthGroup None\n\
             [PortalGroup1]\nPortal DA1 127.0.0.1:{port}\n\
             [InitiatorGroup1]\nInitiatorName \"ALL\"\nNetmask ALL\n\
             [InitiatorGroup2]\nInitiatorName \"{SATURN}\"\nNetmask 127.0.0.0/8\n\
             [LogicalUnit1]\nTargetName one\nMapping PortalGroup1 InitiatorGroup1\n\
             AuthMethod None\nUnitType Disk\nUnitInquiry \"ACME\" \"Disk\" \"0123\" \"4711\"\n\
             LUN0 Storage {one} Auto\nLUN1 Storage {two} Auto\n\
             [LogicalUnit7]\nTargetName seven\nMapping PortalGroup1 InitiatorGroup2\n\
             AuthMethod CHAP\nAuthGroup AuthGroup1\nUnitType Disk\nLUN0 Storage {three} Auto\n",
            one = files["one"].display(),
            two = files["two"].display(),
            three = files["three"].display(),
        );
        fs::write(&file, text)?;
        command.arg("-D").arg("-c").arg(&file);
        Ok(())
    })?;
    let seven = || Attempt::new("iqn.2026-11.proof:seven", 0).from(SATURN);
    let attempts = [
        Attempt::new("iqn.2026-11.proof:one", 0),
        Attempt::new("iqn.2026-11.proof:one", 1),
        seven(),
        seven().by("web", "secretpass12"),
        seven().by("web", "secretpass12").from(ANYBODY),
        seven().by("web", "secretpass13"),
        seven().by("web", "secretpass12").of("san", "secretpass34"),
        seven().by("web", "secretpass12").of("san", "secretpass35"),
    ];
    let before = attempts.iter().map(|attempt| attempt.carry_out(istgt.port));
    let before: Vec<_> = before.collect::<Result<_>>()?;
    drop(istgt);
    let sarsen = moved(folder, "istgt", &file)?;
    let count = compare(&before, &attempts, sarsen.port)?;
    ensure!(count == 4, "{count} got in: {before:#?}");
    Ok(())
}
