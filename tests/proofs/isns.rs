//! Registration with a name server: Debian's isnsd lists the targets while the server runs. The server continues
//! whatever happens to isnsd.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use sarsen_proof::process::{self, Daemon};
use sarsen_proof::{Backing, Serving, Volume};

use crate::client;

const LIMIT: Duration = Duration::from_secs(20);
const SERVER: &str = "/usr/sbin/isnsd";
const MIB: u64 = 1 << 20;

/// isnsd on its own port, with all its files in its own folder.
struct NameServer {
    folder: tempfile::TempDir,
    address: SocketAddr,
    daemon: Option<Daemon>,
}

/// Returns an address that only this test uses: other processes soon take a port on a shared address.
fn own_host() -> Ipv4Addr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 1 + high % 250, low, COUNT.fetch_add(1, Ordering::Relaxed))
}

impl NameServer {
    /// Returns a name server that does not run yet.
    fn new() -> Result<Self> {
        // The port was free a moment ago; isnsd cannot choose one, and no other process uses this address.
        let address = TcpListener::bind((own_host(), 0))?.local_addr()?;
        let folder = tempfile::tempdir()?;
        let server = Self { folder, address, daemon: None };
        let (home, address) = (server.folder.path().display(), server.address());
        fs::write(
            server.file("isnsd.conf"),
            format!(
                "SourceName = iqn.2026-11.proof:isnsd\nDatabase = {home}/database\n\
                 DefaultDiscoveryDomain = 1\nRegistrationPeriod = 10m\nSLPRegister = 0\n\
                 Security = 0\nBindAddress = {address}\nPIDFile = {home}/pid\n\
                 ControlSocket = {home}/control\n\
                 ESIMinInterval = 1s\nESIMaxInterval = 1s\nESIRetries = 3\n"
            ),
        )?;
        fs::write(
            server.file("isnsadm.conf"),
            format!(
                "SourceName = iqn.2026-11.proof:asker\nServerAddress = {address}\nSecurity = 0\n"
            ),
        )?;
        Ok(server)
    }

    fn started() -> Result<Self> {
        let mut server = Self::new()?;
        server.start()?;
        Ok(server)
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Starts isnsd with an empty database.
    fn start(&mut self) -> Result<()> {
        let database = self.file("database");
        if database.exists() {
            fs::remove_dir_all(&database)?;
        }
        fs::create_dir(&database)?;
        let log = fs::File::create(self.file("log"))?;
        let configuration = self.file("isnsd.conf");
        let daemon = Daemon::start(&[], Path::new(SERVER), |command| {
            command.args(["-f", "-d", "message", "-c"]).arg(configuration);
            command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
        })?;
        let waited = daemon
            .wait_until(LIMIT, || anyhow::Ok(process::listens(daemon.pid(), self.address.port())));
        waited.with_context(|| format!("isnsd's log:\n{}", self.log()))?;
        self.daemon = Some(daemon);
        Ok(())
    }

    fn kill(&mut self) {
        self.daemon = None;
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// Returns the registered objects of a kind: `nodes`, `portals`, `portal-groups` or `entities`.
    fn list(&self, kind: &str) -> Result<String> {
        let mut command = Command::new("isnsadm");
        command.arg("-c").arg(self.file("isnsadm.conf")).args(["--list", kind]);
        Ok(process::output(&mut command, LIMIT)?)
    }

    /// Waits until an object is registered, or no longer registered.
    fn wait_for(&self, kind: &str, what: &str, is_there: bool) -> Result<String> {
        let daemon = self.daemon.as_ref().context("it runs")?;
        let mut listed = String::new();
        let waited = daemon.wait_until(LIMIT, || {
            listed = self.list(kind)?;
            anyhow::Ok(listed.contains(what) == is_there)
        });
        waited.with_context(|| format!("{what} among {kind}:\n{listed}\n{}", self.log()))?;
        Ok(listed)
    }
}

fn volumes() -> [Volume; 2] {
    ["a", "b"].map(|name| Volume::new(name, Backing::Ram, MIB))
}

#[test]
fn rfc4171_5_6_5_targets_are_registered_while_they_are_served() -> Result<()> {
    let name_server = NameServer::started()?;
    let file = name_server.file("sarsen.toml");
    fs::write(
        &file,
        "[[target]]\nname = \"iqn.2026-11.proof:a\"\nalias = \"first disk\"\nluns = [\"a\"]\n\
         groups = [7]\n",
    )?;
    let (file, address) = (file.display().to_string(), name_server.address());
    let arguments = ["--config", &file, "--listen", "127.0.0.2:0,7", "--isns", &address];
    let serving = Serving::start_with(&volumes(), &arguments)?;
    let nodes = name_server.wait_for("nodes", "iqn.2026-11.proof:a", true)?;
    ensure!(nodes.contains(&serving.url("b").iqn), "{nodes}");
    ensure!(nodes.matches("iSCSI node type = Target").count() == 2, "{nodes}");
    ensure!(nodes.contains("iSCSI alias = \"first disk\""), "{nodes}");
    let portals = name_server.list("portals")?;
    let (first, second) = (serving.url("b").port()?, serving.url("a").port()?);
    for (host, port) in [("127.0.0.1", first), ("127.0.0.2", second)] {
        ensure!(portals.contains(&format!("Portal IP address = {host}")), "{portals}");
        ensure!(portals.contains(&format!("Portal TCP/UDP port = {port}/tcp")), "{portals}");
    }
    let groups = name_server.list("portal-groups")?;
    let joined = |node: &str, port: u16, tag: u16| {
        groups.split("Object ").any(|group| {
            group.contains(&format!("\"{node}\""))
                && group.contains(&format!("port = {port}/tcp"))
                && group.contains(&format!("tag = {tag}\n"))
        })
    };
    let everywhere = serving.url("b").iqn.clone();
    ensure!(joined(&everywhere, first, 1) && joined(&everywhere, second, 7), "{groups}");
    ensure!(joined("iqn.2026-11.proof:a", second, 7), "{groups}");
    ensure!(!joined("iqn.2026-11.proof:a", first, 1), "{groups}");
    serving.stop()?;
    let entities = name_server.list("entities")?;
    ensure!(!entities.contains("Entity identifier"), "it stays registered:\n{entities}");
    Ok(())
}

#[test]
fn late_or_restarted_name_server_gets_full_registration() -> Result<()> {
    let mut name_server = NameServer::new()?;
    let arguments = ["--isns", &name_server.address()];
    let serving = Serving::start_with(&volumes(), &arguments)?;
    // The server does not wait for the name server.
    let url = serving.url("a").to_string();
    process::output(Command::new("iscsi-inq").arg(&url), LIMIT)?;
    for _ in 0..2 {
        name_server.start()?;
        name_server.wait_for("nodes", &serving.url("b").iqn, true)?;
        name_server.kill();
        process::output(Command::new("iscsi-inq").arg(&url), LIMIT)?;
    }
    // isnsd has ended, and the server does not wait for it at its end either.
    serving.stop()
}

#[test]
fn a_server_that_was_killed_takes_its_place_again() -> Result<()> {
    let name_server = NameServer::started()?;
    let file = name_server.file("sarsen.toml");
    let address = name_server.address();
    fs::write(&file, format!("isns = {{ server = \"{address}\", entity = \"san1\" }}\n"))?;
    let arguments = ["--config", &file.display().to_string()];
    let serving = Serving::start_with(&volumes(), &arguments)?;
    let gone = serving.url("b").iqn.clone();
    name_server.wait_for("nodes", &gone, true)?;
    client::signal(&serving, Signal::KILL)?;
    drop(serving);
    ensure!(name_server.list("nodes")?.contains(&gone), "nobody said that it is gone");
    let serving = Serving::start_with(&volumes()[..1], &arguments)?;
    let nodes = name_server.wait_for("nodes", &gone, false)?;
    ensure!(nodes.contains(&serving.url("a").iqn), "{nodes}");
    let entities = name_server.list("entities")?;
    ensure!(entities.matches("Entity identifier = \"san1\"").count() == 1, "{entities}");
    serving.stop()
}

#[test]
fn rfc4171_5_6_5_13_entity_status_inquiry_is_answered() -> Result<()> {
    let name_server = NameServer::started()?;
    let file = name_server.file("sarsen.toml");
    let address = name_server.address();
    fs::write(&file, format!("[isns]\nserver = \"{address}\"\nnotice-port = 0\n"))?;
    let arguments = ["--config", &file.display().to_string()];
    let serving = Serving::start_with(&volumes()[..1], &arguments)?;
    let name = serving.url("a").iqn.clone();
    name_server.wait_for("nodes", &name, true)?;
    let portals = name_server.list("portals")?;
    ensure!(portals.contains("ESI port") && portals.contains("SCN port"), "{portals}");
    let daemon = name_server.daemon.as_ref().context("it runs")?;
    let answers = || name_server.log().matches("---ESIRsp---").count();
    daemon.wait_until(LIMIT, || anyhow::Ok(answers() >= 3))?;
    ensure!(name_server.list("nodes")?.contains(&name), "it was forgotten all the same");
    // isnsd detects a killed server by its silence.
    client::signal(&serving, Signal::KILL)?;
    drop(serving);
    name_server.wait_for("nodes", &name, false)?;
    Ok(())
}
