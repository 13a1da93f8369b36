//! A running target under test: its processes, folders and endpoints.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sarsen_initiator::nbd::{NbdPlace, NbdUrl};
use sarsen_initiator::{Chap, Portal, TlsOptions, Url};

use super::{Backing, Image, TargetUnderTestError};
use crate::folder::{PrivateFolder, RUN_PREFIX};
use crate::guest::Guest;
use crate::load::Endpoint;
use crate::network::{GuestCards, Link, Network};
use crate::process::{self, Daemon};

/// The file system for files in memory.
const MEMORY_FOLDER: &str = "/dev/shm";
/// Number of attempts: another process can take a free port before the target under test binds it.
const PORT_ATTEMPTS: usize = 5;
/// Maximum time from the start to the first answer.
pub(super) const READY_LIMIT: Duration = Duration::from_secs(20);
/// Maximum duration of an administration command.
pub(super) const ADMIN_LIMIT: Duration = Duration::from_secs(20);
/// Size of the end of a log that an error contains.
const TAIL_BYTES: usize = 2000;

/// A running target under test. When this is dropped, it ends, and its folders are removed.
#[derive(Debug)]
pub struct Running {
    name: String,
    version: Option<String>,
    commands: Vec<String>,
    /// Before the folders in drop order: processes end before their files are removed.
    daemons: Vec<Daemon>,
    guests: Vec<Guest>,
    /// The network cards of the guests.
    cards: Option<GuestCards>,
    folders: Vec<PrivateFolder>,
    units: Vec<(String, VolumeEndpoint)>,
    /// The port for sessions with TLS on the targets' side, and the file with its certificate.
    tls: Option<(u16, PathBuf)>,
    /// Number of bytes that its files have reserved and not allocated: in memory and on the disk.
    promised: [u64; 2],
}

/// The endpoint of a volume.
#[derive(Clone, Debug)]
pub(super) enum VolumeEndpoint {
    /// The portal on this port of the targets' side.
    Iscsi { port: u16, target: String, lun: u16 },
    /// The portal on this port of a guest; on another port of the targets' side over a link where the guest has no address.
    InGuest { port: u16, forwarded: u16, target: String, lun: u16 },
    /// The default export of the NBD server at this port of the targets' side.
    Nbd { port: u16 },
    /// The endpoint of a target that the lab did not start, for any image.
    Elsewhere(Endpoint),
    /// None: this target under test does not support the volume, for this reason.
    Refused(TargetUnderTestError),
}

impl Running {
    /// Returns a target under test without processes.
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: None,
            commands: Vec::new(),
            daemons: Vec::new(),
            guests: Vec::new(),
            cards: None,
            folders: Vec::new(),
            units: Vec::new(),
            tls: None,
            promised: [0, 0],
        }
    }

    /// Returns the same with a private folder in memory, for logs and other files.
    pub(super) fn at_home(name: &str) -> Result<Self, TargetUnderTestError> {
        let mut running = Self::new(name);
        running.remove_on_drop(private_folder(Path::new(MEMORY_FOLDER))?);
        Ok(running)
    }

    /// Its name in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version that it reports, if it reports one.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The commands that started and configured it, in a shell's syntax.
    pub fn commands(&self) -> &[String] {
        &self.commands
    }

    /// Its processes on this machine, among them those of guests.
    pub fn pids(&self) -> Vec<u32> {
        self.processes().map(Daemon::pid).collect()
    }

    fn processes(&self) -> impl Iterator<Item = &Daemon> {
        self.daemons.iter().chain(self.guests.iter().map(Guest::process))
    }

    /// Its folders, which are removed with it.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(PrivateFolder::path)
    }

    /// Returns `None` while all programs run; otherwise the name of one that ended, its exit status and the end of its
    /// log.
    pub fn ended(&self) -> Option<String> {
        self.processes().find_map(|daemon| match daemon.ended() {
            Ok(None) => None,
            Ok(Some(status)) => {
                Some(format!("{} ended with {status}{}", daemon.name(), self.last_words()))
            }
            Err(error) => Some(error.to_string()),
        })
    }

    /// Returns the output of its programs.
    pub fn log(&self) -> String {
        let bytes = self.home().map(|home| fs::read(home.join("log")).unwrap_or_default());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    /// Sets the port of its sessions with TLS, and the file with its certificate.
    pub(super) fn set_tls(&mut self, port: u16, certificate: PathBuf) {
        self.tls = Some((port, certificate));
    }

    /// Returns the endpoint of a volume over a link.
    pub fn endpoint(&self, volume: &str, link: &Link) -> Result<Endpoint, TargetUnderTestError> {
        let endpoint = self.plain_endpoint(volume, link)?;
        if !link.profile.has_tls {
            return Ok(endpoint);
        }
        match (endpoint, &self.tls) {
            (Endpoint::Iscsi(mut url), Some((port, certificate))) => {
                let ca = certificate.clone();
                let tls = Arc::new(TlsOptions { ca, identity: None, server_name: None });
                for portal in &mut url.portals {
                    (portal.port, portal.tls) = (*port, Some(tls.clone()));
                }
                Ok(Endpoint::Iscsi(url))
            }
            _ => {
                Err(TargetUnderTestError::Unable(format!("the lab uses no TLS with {}", self.name)))
            }
        }
    }

    fn plain_endpoint(&self, volume: &str, link: &Link) -> Result<Endpoint, TargetUnderTestError> {
        let found = self.units.iter().find(|(name, _)| name == volume).map(|(_, unit)| unit);
        let unit = found.ok_or_else(|| {
            TargetUnderTestError::Failed(format!("{} has no volume {volume:?}", self.name))
        })?;
        let name = &link.profile.name;
        let unable = |what: &str, reason| {
            TargetUnderTestError::Unable(format!("no {what} {name}: {reason}"))
        };
        let at = |address: IpAddr, port| Portal { host: address.to_string(), port, tls: None };
        let portal = |port| match &link.address {
            Ok(address) => Ok(at(*address, port)),
            Err(reason) => Err(unable("link", reason.as_str())),
        };
        let iscsi = |portal, target: &str, lun| {
            let (portals, target) = (vec![portal], target.to_owned());
            Endpoint::Iscsi(Url { portals, target, lun, chap: Chap::default() })
        };
        Ok(match unit {
            VolumeEndpoint::Iscsi { port, target, lun } => iscsi(portal(*port)?, target, *lun),
            VolumeEndpoint::InGuest { port, forwarded, target, lun } => {
                if let Some(reason) = self.cards.as_ref().and_then(|cards| cards.refusal(name)) {
                    return Err(unable("network card for", reason));
                }
                let forwarded = portal(*forwarded)?;
                let own = self.cards.as_ref().and_then(|cards| cards.address(name));
                let own = own.map(|address| at(address.into(), *port));
                iscsi(own.unwrap_or(forwarded), target, *lun)
            }
            VolumeEndpoint::Nbd { port } => Endpoint::Nbd(NbdUrl {
                place: NbdPlace::Host(portal(*port)?),
                export: String::new(),
            }),
            VolumeEndpoint::Elsewhere(endpoint) => endpoint.clone(),
            VolumeEndpoint::Refused(error) => return Err(error.clone()),
        })
    }

    /// Sends SIGTERM to each of its programs and waits; returns their exit statuses.
    pub fn terminate(&mut self, limit: Duration) -> Result<Vec<ExitStatus>, TargetUnderTestError> {
        let daemons = std::mem::take(&mut self.daemons);
        daemons.into_iter().map(|daemon| Ok(daemon.terminate(limit)?)).collect()
    }

    /// Waits for the end of each of its programs; returns their exit statuses.
    pub fn wait(&mut self, limit: Duration) -> Result<Vec<ExitStatus>, TargetUnderTestError> {
        let daemons = std::mem::take(&mut self.daemons);
        daemons.into_iter().map(|daemon| Ok(daemon.wait(limit)?)).collect()
    }

    pub(super) fn home(&self) -> Option<&Path> {
        self.folders.first().map(PrivateFolder::path)
    }

    /// Returns a path in its own folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.home().unwrap_or(Path::new(MEMORY_FOLDER)).join(name)
    }

    /// The folder is removed with this.
    pub(super) fn remove_on_drop(&mut self, folder: PrivateFolder) {
        self.folders.push(folder);
    }

    pub(super) fn add_unit(&mut self, volume: &str, unit: VolumeEndpoint) {
        self.units.push((volume.to_owned(), unit));
    }

    /// Adds a guest in which it runs, with its network cards.
    pub(super) fn add_guest(&mut self, guest: Guest, cards: GuestCards) {
        self.note_command(guest.process().command().to_owned());
        self.guests.push(guest);
        self.cards = Some(cards);
    }

    pub(super) fn set_version(&mut self, version: String) {
        self.version = Some(version);
    }

    pub(super) fn note_command(&mut self, command: String) {
        self.commands.push(command);
    }

    /// Returns the versions from `version` (a command whose first line ends with the version) and from Debian's
    /// package.
    pub(super) fn note_version(&mut self, mut version: Command, package: Option<&str>) {
        let said = |command: &mut Command| process::output(command, ADMIN_LIMIT).ok();
        let own = said(&mut version).and_then(|text| {
            Some(text.lines().next()?.split_ascii_whitespace().last()?.to_owned())
        });
        let packaged = package.and_then(|package| {
            let mut query = Command::new("dpkg-query");
            said(query.args(["--show", "--showformat=${Package} ${Version}", package]))
        });
        self.version = match (own, packaged) {
            (Some(own), Some(packaged)) => Some(format!("{own} ({packaged})")),
            (own, packaged) => own.or(packaged),
        };
    }

    /// Starts one of its programs, with both outputs in the log unless `configure` sets others.
    pub(super) fn start(
        &mut self,
        prefix: &[String],
        program: &Path,
        configure: impl FnOnce(&mut Command),
    ) -> Result<&Daemon, TargetUnderTestError> {
        let path = self.file("log");
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(|error| TargetUnderTestError::file("open", &path, &error))?;
        let daemon = Daemon::start(prefix, program, |command| {
            command.stdout(log.try_clone().map_or(Stdio::null(), Into::into)).stderr(log);
            configure(command);
        })?;
        self.commands.push(daemon.command().to_owned());
        Ok(self.daemons.push_mut(daemon))
    }

    /// Ends the last started program and forgets it.
    pub(super) fn withdraw(&mut self) {
        if self.daemons.pop().is_some() {
            self.commands.pop();
        }
    }

    /// Runs a command that configures one of its programs.
    pub(super) fn carry_out(&mut self, mut command: Command) -> Result<(), TargetUnderTestError> {
        self.commands.push(process::command_line(&command));
        process::output(&mut command, ADMIN_LIMIT)?;
        Ok(())
    }

    /// Waits until the last started program listens on `port` and `ready` returns true.
    pub(super) fn wait_until_it_listens(
        &self,
        port: u16,
        mut ready: impl FnMut() -> Result<bool, TargetUnderTestError>,
    ) -> Result<(), TargetUnderTestError> {
        let Some(daemon) = self.daemons.last() else { return Ok(()) };
        let listens = || Ok(process::listens(daemon.pid(), port) && ready()?);
        daemon.wait_until(READY_LIMIT, listens).map_err(|error| self.explain(error))
    }

    /// Adds the end of the programs' log to an error.
    pub(super) fn explain(&self, error: TargetUnderTestError) -> TargetUnderTestError {
        match error {
            TargetUnderTestError::Failed(what) => {
                TargetUnderTestError::Failed(format!("{what}{}", self.last_words()))
            }
            unable @ TargetUnderTestError::Unable(_) => unable,
        }
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let from = log.ceil_char_boundary(log.len().saturating_sub(TAIL_BYTES));
        match log[from..].trim() {
            "" => String::new(),
            tail => format!("; its log ends:\n{tail}"),
        }
    }

    /// Opens the files of the images; creates those in memory in its own folder.
    pub(super) fn backing_files(
        &mut self,
        images: &[Image],
    ) -> Result<Vec<PathBuf>, TargetUnderTestError> {
        let files = images.iter().map(|image| {
            let (path, place) = match &image.backing {
                Backing::Memory => (self.file(&format!("{}.img", image.name)), 0),
                Backing::File(path) => (path.clone(), 1),
            };
            let promised = &mut self.promised[place];
            // Each program treats different characters as the end of a path; these paths contain none of them.
            let foreign = |c: char| c.is_control() || "\",'\\".contains(c);
            if path.to_str().is_none_or(|text| text.contains(foreign)) {
                return Err(TargetUnderTestError::Failed(format!(
                    "{path:?}: some programs do not accept this path; choose a folder whose path \
                     has no quotation marks, commas or backslashes"
                )));
            }
            *promised += make(&path, image.bytes, *promised)
                .map_err(|error| TargetUnderTestError::file("make", &path, &error))?;
            Ok(path)
        });
        files.collect()
    }
}

/// Creates or extends a file to this length with a hole, and returns the size of the hole; fails if the free space is
/// less than that and the reserved sizes.
fn make(path: &Path, bytes: u64, promised: u64) -> io::Result<u64> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    let missing = bytes.saturating_sub(file.metadata()?.len());
    let system = rustix::fs::fstatvfs(&file)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize).saturating_sub(promised);
    if missing > free {
        let what = format!("{missing} bytes are needed and {free} are free");
        return Err(io::Error::new(io::ErrorKind::StorageFull, what));
    }
    if missing > 0 {
        file.set_len(bytes)?;
    }
    Ok(missing)
}

/// Creates a folder in `parent` that is removed when this process ends, even if it is killed.
pub(super) fn private_folder(parent: &Path) -> Result<PrivateFolder, TargetUnderTestError> {
    PrivateFolder::new(parent, RUN_PREFIX)
        .map_err(|error| TargetUnderTestError::file("create a folder in", parent, &error))
}

/// Starts a program on a free port of the targets' side; if another process takes that port meanwhile, on another one.
/// For programs that do not support port 0.
pub(super) fn on_free_port<T>(
    network: &Network,
    mut start: impl FnMut(SocketAddr) -> Result<T, TargetUnderTestError>,
) -> Result<T, TargetUnderTestError> {
    let bind = |port| {
        let address = SocketAddr::new(network.listen_address(), port);
        network.on_target_side(|| std::net::TcpListener::bind(address)?.local_addr())
    };
    let mut attempt = 1;
    loop {
        let address = bind(0).map_err(|error| {
            TargetUnderTestError::Failed(format!(
                "no port is free on {}: {error}",
                network.listen_address()
            ))
        })?;
        match start(address) {
            Err(TargetUnderTestError::Failed(_))
                if attempt < PORT_ATTEMPTS && bind(address.port()).is_err() =>
            {
                attempt += 1;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::LinkProfile;

    fn link() -> Link {
        Network::build(&[LinkProfile::loopback()]).links()[0].clone()
    }

    #[test]
    fn a_volume_answers_where_the_link_leads() {
        let mut running = Running::new("peer");
        let unit =
            VolumeEndpoint::Iscsi { port: 3261, target: "iqn.2026-11.peer:a".into(), lun: 1 };
        running.add_unit("a", unit);
        let Endpoint::Iscsi(url) = running.endpoint("a", &link()).unwrap() else {
            panic!("another protocol");
        };
        assert_eq!(url.to_string(), "iscsi://127.0.0.1:3261/iqn.2026-11.peer:a/1");
        let absent = Link { address: Err("no namespaces".into()), ..link() };
        let unable = running.endpoint("a", &absent).unwrap_err();
        assert_eq!(unable, TargetUnderTestError::Unable("no link loopback: no namespaces".into()));
        assert!(matches!(running.endpoint("b", &link()), Err(TargetUnderTestError::Failed(_))));
        let refusal = TargetUnderTestError::Unable("it has no such cache".into());
        running.add_unit("c", VolumeEndpoint::Refused(refusal.clone()));
        assert_eq!(running.endpoint("c", &link()).unwrap_err(), refusal);
    }

    #[test]
    fn a_server_of_nbd_answers_where_the_link_leads() {
        let mut running = Running::new("peer");
        running.add_unit("a", VolumeEndpoint::Nbd { port: 10810 });
        let endpoint = running.endpoint("a", &link()).unwrap();
        assert_eq!(endpoint.to_string(), "nbd://127.0.0.1:10810/");
        let absent = Link { address: Err("no namespaces".into()), ..link() };
        assert!(matches!(running.endpoint("a", &absent), Err(TargetUnderTestError::Unable(_))));
    }

    #[test]
    fn dead_target_reports_exit_status_and_log() {
        let mut running = Running::at_home("peer").unwrap();
        let home = running.home().unwrap().to_owned();
        let arguments = ["-c", "echo no memory >&2; read -r nothing <&0; exit 7"];
        let arguments = |command: &mut Command| {
            command.args(arguments);
        };
        running.start(&[], Path::new("sh"), arguments).unwrap();
        let daemon = &running.daemons[0];
        let ended = || Ok::<_, TargetUnderTestError>(daemon.ended()?.is_some());
        daemon.wait_until(READY_LIMIT, ended).unwrap();
        let said = running.ended().unwrap();
        assert!(said.starts_with("sh ended with exit status: 7"), "{said}");
        assert!(said.ends_with("its log ends:\nno memory"), "{said}");
        assert!(running.commands()[0].contains("pdeathsig"));
        running.withdraw();
        assert_eq!((running.ended(), running.commands()), (None, &[][..]));
        drop(running);
        assert!(!home.exists());
    }

    #[test]
    fn files_for_images_need_room_and_a_path_that_all_can_take() {
        let mut running = Running::at_home("peer").unwrap();
        let image = |name: &str, bytes| Image::new(name, Backing::Memory, bytes);
        let files = running.backing_files(&[image("a", 4096), image("b", 512)]).unwrap();
        let lengths = files.iter().map(|path| fs::metadata(path).unwrap().len());
        assert_eq!(lengths.collect::<Vec<_>>(), [4096, 512]);
        let huge = [image("c", u64::MAX / 2)];
        let full = running.backing_files(&huge).unwrap_err().to_string();
        assert!(full.contains("bytes are needed and"), "{full}");
        let comma = Image::new("a", Backing::File(running.file("a,b")), 4096);
        let foreign = running.backing_files(&[comma]).unwrap_err().to_string();
        assert!(foreign.contains("choose a folder"), "{foreign}");
        assert!(!running.file("a,b").exists());
    }

    #[test]
    fn reserved_space_is_not_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(make(&path, 4096, 0).unwrap(), 4096);
        assert_eq!(make(&path, 4096, u64::MAX).unwrap(), 0, "nothing is missing");
        assert!(make(&path, 8192, u64::MAX).is_err());
    }

    #[test]
    fn only_a_port_that_was_taken_is_worth_another_attempt() {
        let network = Network::build(&[LinkProfile::loopback()]);
        let failed = || TargetUnderTestError::Failed("no".into());
        let mut attempts = 0;
        let answer: Result<(), _> = on_free_port(&network, |_| {
            attempts += 1;
            Err(failed())
        });
        assert_eq!((answer, attempts), (Err(failed()), 1));
        let mut others = Vec::new();
        let second = on_free_port(&network, |address| {
            if others.is_empty() {
                others.push(std::net::TcpListener::bind(address).unwrap());
                return Err(failed());
            }
            Ok(address)
        });
        assert_ne!(second.unwrap(), others[0].local_addr().unwrap());
    }
}
