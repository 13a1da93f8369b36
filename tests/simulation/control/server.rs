//! The server from its starts to its ends. Its configuration is a state in a folder, a file and secrets in a folder, or
//! flags.

use std::cell::{Cell, RefCell};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use sarsen_block::Rng;
use sarsen_io::net::Stream;
use sarsen_node::config::{VolumeConfig, parse_account, parse_file, parse_portal, parse_volume};
use sarsen_node::model::Document;
use sarsen_node::model::document::{Account, Luns, Target, Volume};
use sarsen_node::{ChangeError, ChangeOutcome, Config, SimulatedServer};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::document::PORTALS;
use crate::network::{self, Fate, NetworkTraits, Side};

/// The configuration source of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartMode {
    /// A state, which changes while the server runs.
    State,
    /// A file, which SIGHUP reads again.
    File,
    /// Flags that name files of secrets.
    Flags,
}

/// One run of the server, from a start to its end.
struct ServerRun {
    server: Rc<SimulatedServer>,
    tasks: Rc<LocalSet>,
    fates: RefCell<Vec<Fate>>,
    _over: EndGuard,
}

/// Ends the task that drives the tasks of a run.
struct EndGuard(Rc<Notify>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// The simulated server (see the module).
pub(super) struct Server {
    pub(super) way: StartMode,
    folder: TempDir,
    life: RefCell<Option<ServerRun>>,
    lives: Cell<u64>,
    rng: RefCell<Rng>,
    weather: NetworkTraits,
    next_port: Cell<u16>,
}

impl Server {
    pub(super) fn new(way: StartMode, rng: &mut Rng) -> Self {
        // Uses a file system in memory if there is one, because each commit waits for its disk.
        let shared = Path::new("/dev/shm");
        let folder =
            if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
        const ROOMS: [usize; 3] = [200, 3_000, 1 << 20];
        let weather = NetworkTraits {
            latency_max_ms: rng.below(15),
            room: ROOMS[rng.below(3) as usize],
            piece_max: ROOMS[rng.below(3) as usize] as u64,
            ..NetworkTraits::fair()
        };
        Self {
            way,
            folder: folder.expect("a folder"),
            life: RefCell::default(),
            lives: Cell::new(0),
            rng: RefCell::new(Rng::new(rng.bits())),
            weather,
            next_port: Cell::new(1024),
        }
    }

    /// Returns the part of a document that this configuration source supports.
    pub(super) fn possible(&self, mut document: Document) -> Document {
        if self.way == StartMode::State {
            return document;
        }
        // A volume without a target would get its own target.
        let luns = document.target.iter().flat_map(|target| target.luns.0.values());
        let used: Vec<String> = luns.cloned().collect();
        document.volume.retain(|volume| used.contains(&volume.name));
        if self.way == StartMode::Flags {
            let chap: Vec<String> =
                document.discovery.iter().flat_map(|one| one.chap.clone()).collect();
            if let Some(discovery) = &mut document.discovery {
                discovery.own_account = None;
            }
            let target = |volume: &Volume| Target {
                name: format!("{}{}", sarsen_node::config::DEFAULT_TARGET_PREFIX, volume.name),
                luns: Luns([(0, volume.name.clone())].into()),
                chap: chap.clone(),
                ..Target::default()
            };
            document.target = document.volume.iter().map(target).collect();
            (document.host, document.limits) = (Vec::new(), None);
        }
        document
    }

    /// Returns the configuration for a document, as far as flags and files can express it.
    pub(super) fn configuration(&self, document: &Document) -> Config {
        match self.way {
            StartMode::State => Config::default(),
            StartMode::File => {
                let account = |account: &Account| Account {
                    secret: None,
                    secret_file: Some(self.write_secret(account).into()),
                    ..account.clone()
                };
                let account = document.account.iter().map(account).collect();
                let written = Document { account, ..document.clone() };
                let text = toml::to_string(&written).expect("a document is TOML");
                let path = self.folder.path().join("sarsen.toml");
                parse_file(&path, &text).and_then(Config::finish).expect("a valid file was drawn")
            }
            StartMode::Flags => self.flags(document),
        }
    }

    fn flags(&self, document: &Document) -> Config {
        let portal = |(address, group): (&str, u16)| parse_portal(&format!("{address},{group}"));
        let account = |account: &Account| {
            parse_account(&format!("{}={}", account.name, self.write_secret(account)))
        };
        let chap = document.discovery.iter().flat_map(|discovery| &discovery.chap).cloned();
        let config = Config {
            listen: PORTALS.into_iter().map(portal).collect::<Result<_, _>>().expect("portals"),
            volumes: document.volume.iter().map(volume_of_flags).collect(),
            accounts: document
                .account
                .iter()
                .map(account)
                .collect::<Result<_, _>>()
                .expect("accounts"),
            chap: chap.collect(),
            ..Config::default()
        };
        config.finish().expect("valid flags were drawn")
    }

    /// Writes an account's secret to a file, and returns the path.
    fn write_secret(&self, account: &Account) -> String {
        let path = self.folder.path().join(&account.name);
        let secret = account.secret.as_ref().expect("each account has one");
        fs::write(&path, &secret.0).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
        path.display().to_string()
    }

    /// Starts the server.
    pub(super) fn start(&self, document: &Document) {
        self.lives.set(self.lives.get() + 1);
        let state = self.folder.path().join("state");
        let state = (self.way == StartMode::State).then_some(state.as_path());
        let started = SimulatedServer::start(self.configuration(document), state);
        let (server, core) = started.unwrap_or_else(|error| panic!("it does not start: {error}"));
        let tasks = Rc::new(LocalSet::new());
        tasks.spawn_local(core);
        let over = Rc::new(Notify::new());
        let (running, until) = (tasks.clone(), over.clone());
        tokio::task::spawn_local(async move { running.run_until(until.notified()).await });
        let (server, fates) = (Rc::new(server), RefCell::default());
        *self.life.borrow_mut() = Some(ServerRun { server, tasks, fates, _over: EndGuard(over) });
    }

    /// Returns the number of the current run.
    pub(super) fn life(&self) -> u64 {
        self.lives.get()
    }

    /// Returns the control plane of the running server.
    pub(super) fn control(&self) -> Rc<SimulatedServer> {
        self.life.borrow().as_ref().expect("it runs").server.clone()
    }

    /// Reads the file and the secrets again.
    pub(super) async fn reload(&self, document: &Document) -> Result<ChangeOutcome, ChangeError> {
        self.control().reload(self.configuration(document)).await
    }

    /// Ends the server as SIGKILL does.
    pub(super) fn kill(&self) {
        let Some(life) = self.life.borrow_mut().take() else { return };
        let is_noticed = self.rng.borrow_mut().chance(60);
        life.fates.borrow().iter().for_each(|fate| fate.strike(is_noticed));
    }

    /// Ends the server gracefully.
    pub(super) async fn end(&self, grace: Duration) {
        self.control().end_sessions(grace).await;
        drop(self.life.borrow_mut().take());
    }

    /// Opens a connection to a portal; `None` if the server does not run.
    pub(super) fn connect(&self, address: std::net::IpAddr, portal: usize) -> Option<Side> {
        let life = self.life.borrow();
        let life = life.as_ref()?;
        let port = self.next_port.get();
        self.next_port.set(port.checked_add(1).unwrap_or(1024));
        let portal = PORTALS[portal].0.parse().expect("an address");
        let addresses = [SocketAddr::new(address, port), portal];
        let rng = &mut *self.rng.borrow_mut();
        let (side, accepted) = network::connection(rng, &self.weather, addresses, false);
        life.fates.borrow_mut().push(side.fate());
        let serving = life.server.serve(Stream::simulated(accepted)).expect("it has this portal");
        life.tasks.spawn_local(serving);
        Some(side)
    }
}

/// Parses a drawn volume from its flag.
fn volume_of_flags(volume: &Volume) -> VolumeConfig {
    let Volume { name, size, serial, naa, read_only, .. } = volume;
    let (size, serial, naa) = (size.as_ref(), serial.as_ref(), naa.as_ref());
    let (size, serial, naa) = (size.expect("drawn"), serial.expect("drawn"), naa.expect("drawn"));
    let read_only = if *read_only { ",read-only" } else { "" };
    let text = format!("{name}=ram:{size},serial={serial},naa={naa}{read_only}");
    parse_volume(&text).expect("a valid volume was drawn")
}
