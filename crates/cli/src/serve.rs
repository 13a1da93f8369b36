//! `sarsen serve`.

pub(crate) mod service_manager;

use std::convert::Infallible;
use std::fs::File;
use std::io::{Read as _, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sarsen_io::cores::FileEngine;
use sarsen_io::handover::{self, HandoverSocket};
use sarsen_io::process;
use sarsen_io::spin::Spin;
use sarsen_io::{threads, time};
use sarsen_node::config::{
    self, ApiConfig, Config, DEFAULT_GROUP, IsnsConfig, Portal, Protocol, TlsConfig, VolumeConfig,
    render_size,
};
use sarsen_node::model::Textual as _;
use sarsen_node::{ChangeOutcome, ConfigError, Server};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use crate::control::default_socket;
use crate::exit;
use crate::lab::Results;

/// Maximum size of a configuration file, so that a device in its place does not fill the memory.
const CONFIGURATION_MAX: u64 = 256 << 20;

/// Flags of `sarsen serve`. They add to the configuration file.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The configuration file: `man sarsen.toml`. SIGHUP applies its changes without a restart, unless an initiator
    /// uses an object that would be removed.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A volume: NAME=ram:SIZE, NAME=file:PATH, NAME=iso:PATH (a CD), NAME=sg:PATH (a real SCSI device, such as
    /// /dev/sg0), NAME=pool:POOL, NAME=remote:URL or NAME=null:SIZE. Keys of `[[volume]]` may follow, such as ,size=10GiB ,cache=none ,block-size=4096
    /// ,read-only ,encrypted ,iops=5000.
    #[arg(short, long = "volume", value_name = "SPEC")]
    volumes: Vec<String>,
    /// A pool, which `sarsen pool create` has created: NAME=DEVICE. ,devices=DEVICE adds one, and keys of `[[pool]]` may
    /// follow, such as ,cache=none. Several may be given. Volumes use it as NAME=pool:POOL.
    #[arg(long = "pool", value_name = "SPEC")]
    pools: Vec<String>,
    /// A portal: the address to listen on, such as `0.0.0.0:3260` or `[::]:3260`. Port 0 takes a free one. A number
    /// after a comma is its portal group, such as `10.0.1.1:3260,2`. Default: 1.
    #[arg(short, long, value_name = "ADDRESS[,TAG]", value_parser = config::parse_portal)]
    listen: Vec<Portal>,
    /// A portal that serves the volumes by NBD, such as `127.0.0.1:10809`. The export of a volume has its name and the
    /// access rules of its target.
    #[arg(long, value_name = "ADDRESS[,TAG]", value_parser = config::parse_nbd_portal)]
    listen_nbd: Vec<Portal>,
    #[command(flatten)]
    tls: TlsArguments,
    /// An account: NAME=FILE, with the file of its secret. Group and other users must have no access to the file.
    #[arg(long = "account", value_name = "NAME=FILE")]
    accounts: Vec<String>,
    /// Require CHAP with this account before initiators see or use any target. Several may be given.
    #[arg(long, value_name = "NAME")]
    chap: Vec<String>,
    /// Number of threads that serve. Default: one for each processor.
    #[arg(long)]
    cores: Option<NonZeroUsize>,
    /// How to read and write files: uring (io_uring), pool (threads), or auto (io_uring if the kernel permits it).
    #[arg(long, value_name = "ENGINE", value_parser = FileEngine::parse)]
    io_engine: Option<FileEngine>,
    /// Whether a core polls for the next request before it sleeps: never, or auto (while requests arrive quickly).
    #[arg(long, value_name = "WHEN", value_parser = Spin::parse)]
    spin: Option<Spin>,
    /// The Unix socket for the other verbs. Only its owner can use it. Default: with --state, the socket that the
    /// other verbs use; under systemd, control.sock in the RuntimeDirectory; otherwise none.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// The folder of the server's state. With it, objects are created while the server runs, by `sarsen volume`,
    /// `sarsen apply` and the console. It is created if it is missing. Default under systemd: the StateDirectory.
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// The address of the HTTP API and the console, such as 127.0.0.1:3280. On the loopback they are open to every
    /// user of this machine. Elsewhere they require TLS and the token.
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_api)]
    api: Option<ApiConfig>,
    /// The name server (iSNS) at which the server registers its targets.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = config::parse_isns)]
    isns: Option<IsnsConfig>,
    /// Grace period: seconds that initiators have to log out when the server ends. The server then terminates the
    /// remaining sessions.
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    logout_grace: u64,
    /// Format of the log on standard error.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: crate::LogFormat,
    /// Print the served volumes as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Flags about portals with TLS.
#[derive(clap::Args)]
struct TlsArguments {
    /// A portal that accepts only TLS 1.3.
    #[arg(long, value_name = "ADDRESS[,TAG]", value_parser = config::parse_portal)]
    #[arg(requires_all = ["certificate", "key"])]
    listen_tls: Vec<Portal>,
    /// The server's certificate at these portals, with its chain: a PEM file. The server reads it, the key and
    /// --tls-client-ca again when they change.
    #[arg(
        id = "certificate",
        long = "tls-certificate",
        value_name = "FILE",
        requires = "listen_tls"
    )]
    certificate: Option<PathBuf>,
    /// The private key of the certificate: a PEM file. Users other than its owner and group must have no access to it.
    #[arg(id = "key", long = "tls-key", value_name = "FILE", requires = "listen_tls")]
    key: Option<PathBuf>,
    /// The certificate authority of initiators: a PEM file. Initiators must then present a certificate.
    #[arg(long = "tls-client-ca", value_name = "FILE", requires = "listen_tls")]
    client_ca: Option<PathBuf>,
    /// With --tls-client-ca: accept initiators without a certificate as well. Access rules can distinguish them.
    #[arg(long = "tls-client-optional", requires = "client_ca")]
    client_optional: bool,
}

impl TlsArguments {
    fn portals(&self) -> Vec<Portal> {
        // clap has rejected one of these flags without the others.
        let Some((certificate, key)) = self.certificate.clone().zip(self.key.clone()) else {
            return Vec::new();
        };
        let tls = TlsConfig {
            certificate,
            key,
            client_ca: self.client_ca.clone(),
            require_client_certificate: self.client_ca.as_ref().map(|_| !self.client_optional),
        };
        let portal = |portal: &Portal| Portal { tls: Some(tls.clone()), ..portal.clone() };
        self.listen_tls.iter().map(portal).collect()
    }
}

impl Arguments {
    /// Returns the configuration from the flags and the file. If neither has an address to listen on, the server
    /// listens on the sockets `received` from the service manager.
    fn config(&self, received: &[SocketAddr]) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            None => Config::default(),
            Some(path) => config::parse_file(path, &read_configuration(path)?)?,
        };
        for spec in &self.pools {
            config.pools.push(config::parse_pool(spec)?);
        }
        for spec in &self.volumes {
            config.volumes.push(config::parse_volume(spec)?);
        }
        for account in &self.accounts {
            config.accounts.push(config::parse_account(account)?);
        }
        config.chap.extend(self.chap.iter().cloned());
        config.listen.extend(self.listen.iter().cloned().chain(self.tls.portals()));
        config.listen.extend(self.listen_nbd.iter().cloned());
        if config.listen.is_empty() {
            let portal = |&address| Portal::at(address, Protocol::Iscsi, DEFAULT_GROUP, None);
            config.listen = received.iter().map(portal).collect();
        }
        config.cores = self.cores.or(config.cores);
        config.io_engine = self.io_engine.unwrap_or(config.io_engine);
        config.spin = self.spin.unwrap_or(config.spin);
        let control = self.control.clone().or(config.control);
        let state = self.state.clone().or(config.state);
        config.state = state.or_else(|| folder_of_the_service("STATE_DIRECTORY"));
        config.api = self.api.clone().or(config.api);
        let control = control.or_else(socket_of_the_service);
        config.control = control.or_else(|| config.state.as_ref().map(|_| own_socket()));
        config.isns = self.isns.clone().or(config.isns);
        Ok(config.finish()?)
    }
}

/// Returns the socket in the folder that systemd created only for this service (RuntimeDirectory=).
fn socket_of_the_service() -> Option<PathBuf> {
    Some(folder_of_the_service("RUNTIME_DIRECTORY")?.join("control.sock"))
}

/// Returns a folder that systemd created for this service, from its environment variable.
fn folder_of_the_service(variable: &str) -> Option<PathBuf> {
    let folders = std::env::var_os(variable)?;
    // Colons separate several folders.
    let folder = std::env::split_paths(&folders).next()?;
    folder.is_dir().then_some(folder)
}

/// Returns the socket path where the other verbs look for it. Creates the folder if it is missing.
fn own_socket() -> PathBuf {
    let socket = default_socket();
    if let Some(folder) = socket.parent() {
        // If the folder cannot be created, creating the socket fails too, and that error is reported.
        let _ = std::fs::create_dir_all(folder);
    }
    socket
}

/// Time that the server, when it ends, waits for a change in progress.
const CHANGE_LIMIT: Duration = Duration::from_secs(1);

/// How a server ends.
enum Ending {
    /// The server ends and does not start again by itself.
    Stopped,
    /// The program now installed at the path replaces this one in the same process and gets its sockets.
    Replaced { program: PathBuf, sockets: Vec<HandoverSocket> },
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    sarsen_io::heap::set_up();
    // This must precede all secrets in memory and all new files.
    process::keep_files_private();
    if let Err(error) = process::keep_memory_private() {
        warn!(%error, "a core dump of this server would hold secrets");
    }
    // The path of this program. At the time of a replacement, another program may be installed there.
    let program = std::env::current_exe();
    // The main thread only waits; the cores have their own threads.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ending = runtime.block_on(serve(arguments, program.as_deref().ok()));
    let (program, sockets) = match ending {
        Ok(Ending::Replaced { program, sockets }) => (program, sockets),
        ended => {
            // A thread of the runtime may wait for a disk that never responds.
            runtime.shutdown_background();
            return ended.map(drop);
        }
    };
    // This waits for all threads. A thread that ended later could close descriptors that already belong to the next
    // program.
    drop(runtime);
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1));
    sarsen_io::log::flush();
    let error = handover::become_program(command, sockets);
    Err(error).with_context(|| format!("{} cannot take over", program.display()))
}

/// Reads a configuration file. It may be a pipe, but not a device without an end.
pub(crate) fn read_configuration(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(CONFIGURATION_MAX + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read the configuration {}", path.display()))?;
    let wrong = |message: &str| ConfigError {
        place: path.display().to_string(),
        message: message.to_owned(),
    };
    if bytes.len() as u64 > CONFIGURATION_MAX {
        return Err(wrong("is larger than 256 MiB; give a configuration file").into());
    }
    Ok(String::from_utf8(bytes)
        .map_err(|_| wrong("is not UTF-8 text; give a configuration file"))?)
}

/// Serves until a signal ends the server. `program` is the path of this program, if known.
async fn serve(arguments: &Arguments, program: Option<&Path>) -> anyhow::Result<Ending> {
    // At the limit of a file's size (`ulimit -f`), the write fails, and the server continues.
    let _file_limit = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;
    // These would end the process by default, also during the start.
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut replace = signal(SignalKind::user_defined2())?;
    let received: Vec<_> = handover::received().into_iter().map(|(_, address)| address).collect();
    let kept_names = service_manager::kept_names();
    let config = arguments.config(&received)?;
    let volumes = config.volumes.clone();
    let server = Server::start(config)?;
    // Until here these end the process at once: the start may wait for a file. No signal is lost after the announcement.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    server.set_lab_results(Arc::new(Results::usual()));
    announce(announcement(&server, &volumes, arguments.json)?);
    service_manager::ready(&kept_names);
    let mut reloading: Option<Pin<Box<dyn Future<Output = ()> + '_>>> = None;
    let asked = async {
        loop {
            tokio::select! {
                _ = terminate.recv() => {
                    info!("SIGTERM: ending");
                    return None;
                }
                _ = interrupt.recv() => {
                    info!("SIGINT: ending");
                    return None;
                }
                _ = replace.recv() => match successor(&server, program) {
                    Ok(program) => return Some(program),
                    Err(error) => error!("SIGUSR2: the server was not replaced: {error:#}"),
                },
                // A SIGHUP during a reload takes effect after it.
                _ = hang_up.recv(), if reloading.is_none() => {
                    reloading = Some(Box::pin(reload(&server, arguments, &received)));
                }
                () = end_of(&mut reloading) => reloading = None,
            }
        }
    };
    let successor = tokio::select! {
        successor = asked => successor,
        () = service_manager::ping_watchdog(&server) => unreachable!("it does not end"),
        () = server.run_maintenance() => unreachable!("it does not end"),
    };
    let mut again = pin!(end_at_signal(&mut terminate, &mut interrupt));
    let changes = async {
        tokio::join!(server.end_changes(), async {
            if let Some(reload) = reloading {
                reload.await;
            }
        })
    };
    tokio::select! {
        _ = changes => {}
        never = &mut again => match never {},
        // A thread that waits for a disk may not end.
        () = time::sleep_until(time::now() + CHANGE_LIMIT) => {}
        () = service_manager::ping_watchdog_stopping() => unreachable!("it does not end"),
    }
    // Clients that connect after this wait for the next server, if there is one.
    let sockets = handover::listening_sockets()
        .context("cannot keep the listening sockets for the next server")?;
    let ending = match successor {
        Some(program) => Ending::Replaced { program, sockets },
        None => {
            service_manager::stopping(&sockets);
            Ending::Stopped
        }
    };
    let clean = tokio::select! {
        clean = server.shutdown(Duration::from_secs(arguments.logout_grace)) => clean,
        never = again => match never {},
        () = service_manager::ping_watchdog_stopping() => unreachable!("it does not end"),
    };
    match (clean, &ending) {
        (true, _) => {}
        (false, Ending::Stopped) => {
            anyhow::bail!(
                "the server did not end cleanly, and some data may not be flushed; see the log"
            )
        }
        (false, Ending::Replaced { .. }) => error!("some data could not be flushed"),
    }
    Ok(ending)
}

/// Ends the process at the next signal, so that a second signal during the shutdown takes effect at once.
async fn end_at_signal(terminate: &mut Signal, interrupt: &mut Signal) -> Infallible {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    error!("second signal: stopping at once; volumes may not have been flushed");
    sarsen_io::log::flush();
    // Dropping the runtime would wait for its threads.
    std::process::exit(exit::FAILED.into())
}

/// Waits for the end of `work`. Without work, waits forever.
async fn end_of(work: &mut Option<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// Returns the program for the replacement, after a check that it runs.
fn successor(server: &Server, program: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(volume) = server.silent_volume() {
        // This process cannot execute another program before its disk responds.
        anyhow::bail!("volume {volume} does not respond; check its disk, then try again");
    }
    let program =
        program.context("the path of this program is unknown; restart the server instead")?;
    let shown = program.display();
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{shown} does not start"))?;
    anyhow::ensure!(output.status.success(), "{shown} --version ends with {}", output.status);
    let version = String::from_utf8_lossy(&output.stdout);
    info!(version = version.trim(), "SIGUSR2: replacing this server by the installed version");
    Ok(program.to_owned())
}

/// Applies a changed configuration, all of it or nothing, and logs the result.
async fn reload(server: &Server, arguments: &Arguments, received: &[SocketAddr]) {
    server.reload_certificates();
    let reloaded = match arguments.config(received) {
        Ok(config) => server.reload(config).await.map_err(anyhow::Error::from),
        Err(error) => Err(error),
    };
    match reloaded {
        Ok(ChangeOutcome { needs_restart, sessions_ended, problems, .. }) => {
            for problem in problems {
                error!("SIGHUP: {problem}");
            }
            for key in needs_restart {
                warn!("SIGHUP: the change of {key} takes effect at the next start");
            }
            info!(sessions_ended, "SIGHUP: the configuration was applied");
        }
        Err(error) => error!("SIGHUP: nothing was changed: {}", exit::message(&error)),
    }
}

#[derive(Serialize)]
struct Announcement {
    portals: Vec<SocketAddr>,
    /// URL of the console, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    api: Option<String>,
    volumes: Vec<AnnouncedVolume>,
}

#[derive(Serialize)]
struct AnnouncedVolume {
    name: String,
    target: String,
    lun: u16,
    size_bytes: u64,
    url: String,
    urls: Vec<String>,
}

/// Prints the served targets on a separate thread. Standard output may have no reader, or its reader may have ended,
/// for example after a replacement of the program.
fn announce(text: String) {
    let print = move || {
        let mut out = std::io::stdout().lock();
        if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            warn!(%error, "the list of targets cannot be written to standard output");
        }
    };
    if let Err(error) = threads::spawn("announcement", print) {
        warn!(%error, "the list of targets is not printed: its thread cannot start");
    }
}

/// Returns the list of served targets with their URLs.
fn announcement(
    server: &Server,
    volumes: &[VolumeConfig],
    json: bool,
) -> serde_json::Result<String> {
    if json {
        let volumes = server.exports().into_iter().map(|export| AnnouncedVolume {
            name: export.volume.clone(),
            target: export.target.clone(),
            lun: export.lun,
            size_bytes: export.size,
            url: export.urls.first().cloned().unwrap_or_default(),
            urls: export.urls.clone(),
        });
        let portals = server.portals().iter().map(Portal::address).collect();
        let api = server.api_url();
        let announcement = Announcement { portals, api, volumes: volumes.collect() };
        return Ok(serde_json::to_string(&announcement)? + "\n");
    }
    let width = volumes.iter().map(|volume| volume.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for export in server.exports() {
        let size = render_size(export.size);
        if export.urls.is_empty() {
            text += &format!(
                "{:width$}  {size:>10}  no URL: no portal serves target {} (NBD portals serve no targets with CHAP)\n",
                export.volume, export.target
            );
        }
        for url in &export.urls {
            text += &format!("{:width$}  {size:>10}  {url}\n", export.volume);
        }
    }
    Ok(text)
}
