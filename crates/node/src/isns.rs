//! The iSNS client (RFC 4171), which registers the targets with an iSNS server, on its own thread. Problems with the
//! iSNS server never delay or end the service.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use sarsen_block::Piece;
use sarsen_io::net::{Listener, Stream};
use sarsen_io::{random, threads, time};
use sarsen_proto::isns::{self, Answerer, Client, ClientError, Entity, Event, Node, Notice};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use crate::config::{Config, IsnsConfig, Portal, Protocol};
use crate::engine::ResourceError;
use crate::fronts::Front;

/// Maximum time of a connection attempt to the iSNS server.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The first and the longest pause between attempts. Each pause is twice the previous one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Minimum duration of a registration that resets the pause to the first one.
const STANDING: Duration = Duration::from_secs(60);
/// Maximum time that the shutdown waits for the deregistration.
const DEPARTURE_LIMIT: Duration = Duration::from_secs(2);
/// The requested registration period: if the server is silent for this time, the iSNS server may deregister it.
const REGISTRATION_PERIOD_SECONDS: u32 = 600;
/// Maximum number of concurrent connections from iSNS servers, at each address.
const MAX_CALLS: usize = 8;
/// Maximum idle time of a connection from an iSNS server.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of notices that wait for the client.
const MAX_NOTICES: usize = 16;
const SCRATCH_LENGTH: usize = 16 * 1024;

/// A client that has not been started.
pub(crate) struct Prepared {
    config: IsnsConfig,
    /// They listen for connections of the iSNS server.
    notices: Vec<Listener>,
}

/// Listens at the addresses for connections of the iSNS server, if the configuration names one. If only portals of the
/// state have an address, the address may be missing, as these portals may; the server's `own` portals are the others.
pub(crate) fn prepare(config: &Config, own: &[Portal]) -> Result<Option<Prepared>, ResourceError> {
    let Some(isns) = config.isns.clone() else { return Ok(None) };
    let own = notice_addresses(&isns, own);
    let mut notices = Vec::new();
    for address in notice_addresses(&isns, &config.listen) {
        match Listener::bind(address) {
            Ok(listener) => notices.push(listener),
            Err(source) if own.contains(&address) => {
                return Err(ResourceError::Listen { address, source });
            }
            Err(error) => warn!(
                %address,
                %error,
                "the name server cannot connect to this address until the next start"
            ),
        }
    }
    Ok(Some(Prepared { config: isns, notices }))
}

impl Prepared {
    /// Starts a thread that registers the targets and keeps them registered.
    pub(crate) fn start(self, front: Arc<Front>) -> io::Result<Isns> {
        let Self { config, notices } = self;
        let (leaving, left) = watch::channel(false);
        let thread = threads::spawn_runtime("isns", move || run(config, notices, front, left))?;
        Ok(Isns { leaving, thread: Some(thread) })
    }
}

/// The client. Its drop deregisters the targets, and gives up after a few seconds.
pub(crate) struct Isns {
    leaving: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Isns {
    /// Begins the deregistration.
    pub(crate) fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// Ends the client. Waits for the deregistration, but only a few seconds.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for Isns {
    fn drop(&mut self) {
        self.leave();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}

/// Returns the addresses at which the server accepts connections of the iSNS server: one port for each address of the
/// portals.
fn notice_addresses(config: &IsnsConfig, portals: &[Portal]) -> Vec<SocketAddr> {
    let Some(port) = config.notice_port else { return Vec::new() };
    let portals = portals.iter().filter(|portal| portal.protocol() == Protocol::Iscsi);
    let hosts: BTreeSet<IpAddr> = portals.map(|portal| portal.address().ip()).collect();
    // A portal on all addresses includes the other addresses of its family.
    let is_own = |host: &&IpAddr| {
        host.is_unspecified()
            || !hosts.iter().any(|all| all.is_unspecified() && all.is_ipv4() == host.is_ipv4())
    };
    hosts.iter().filter(is_own).map(|&host| SocketAddr::new(host, port)).collect()
}

async fn run(
    config: IsnsConfig,
    notices: Vec<Listener>,
    front: Arc<Front>,
    mut left: watch::Receiver<bool>,
) {
    let (teller, mut reported) = mpsc::channel(MAX_NOTICES);
    let addresses = notices.iter().filter_map(|notice| notice.local_addr().ok()).collect();
    let mut registrar = Registrar {
        identifier: config.entity.clone().unwrap_or_else(|| default_identifier(&front)),
        server: config.server,
        notices: addresses,
        front,
        last_trouble: String::new(),
    };
    let hear = join_all(notices.iter().map(|listener| hear(listener, &teller)));
    let hear = async {
        hear.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = registrar.stay_registered(&mut reported, &mut left) => {}
        () = hear => {}
    }
}

/// Returns the default entity identifier. It contains the port, because two servers on one host listen on different
/// ports.
fn default_identifier(front: &Front) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let port = front.portals.all().first().map_or(0, |portal| portal.address.port());
    format!("{}:{port}", if host.is_empty() { "sarsen" } else { host })
}

/// The reason why a connection to the iSNS server has ended.
enum Disconnection {
    Left,
    Lost(String),
}

impl From<io::Error> for Disconnection {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}

impl From<ClientError> for Disconnection {
    fn from(error: ClientError) -> Self {
        Self::Lost(error.to_string())
    }
}

struct Registrar {
    identifier: String,
    server: String,
    /// The addresses at which the server accepts connections of the iSNS server.
    notices: Vec<SocketAddr>,
    front: Arc<Front>,
    /// The last logged problem, which is not logged again.
    last_trouble: String,
}

impl Registrar {
    async fn stay_registered(
        &mut self,
        reported: &mut mpsc::Receiver<Notice>,
        left: &mut watch::Receiver<bool>,
    ) {
        let (first, longest) = PAUSES;
        let mut pause = first;
        loop {
            let connected = tokio::select! {
                connected = connect(&self.server) => connected,
                _ = left.wait_for(|left| *left) => return,
            };
            let began = time::now();
            let end = match connected {
                Ok(stream) => self.register(stream, reported, left).await,
                Err(error) => error.into(),
            };
            let Disconnection::Lost(trouble) = end else { return };
            if trouble != self.last_trouble {
                warn!(server = self.server, trouble, "the name server is tried again and again");
                self.last_trouble = trouble;
            } else {
                debug!(server = self.server, trouble, "the name server is tried again");
            }
            if began.elapsed() >= STANDING {
                pause = first;
            }
            // The jitter spreads the connection attempts of many servers that lost the same iSNS server.
            let jitter = random::number() % (pause.as_millis() as u64 / 2 + 1);
            let until = time::now() + pause + Duration::from_millis(jitter);
            pause = (pause * 2).min(longest);
            tokio::select! {
                () = time::sleep_until(until) => {}
                _ = left.wait_for(|left| *left) => return,
            }
        }
    }

    /// Registers the targets over a connection, and keeps them registered until the connection ends.
    async fn register(
        &mut self,
        stream: Stream,
        reported: &mut mpsc::Receiver<Notice>,
        left: &mut watch::Receiver<bool>,
    ) -> Disconnection {
        let local = match stream.local_addr() {
            Ok(local) => local.ip(),
            Err(error) => return error.into(),
        };
        let mut changes = self.front.targets.changes.subscribe();
        changes.mark_unchanged();
        let mut client = Client::new(self.entity(local));
        client.handle_connected(time::now());
        let mut scratch = vec![0; SCRATCH_LENGTH];
        let mut departure_limit: Option<Instant> = None;
        loop {
            if let Err(error) = exchange(&stream, &mut client, &mut scratch) {
                return error;
            }
            while let Some(event) = client.poll_event() {
                match event {
                    Event::Departed => return Disconnection::Left,
                    event => self.tell(&event),
                }
            }
            let sending = !client.output().is_empty();
            let wake = [client.poll_timeout(), departure_limit].into_iter().flatten().min();
            let wake = wake.unwrap_or_else(|| time::now() + CALL_LIMIT);
            let leaving = departure_limit.is_some();
            let lost = tokio::select! {
                ready = stream.readable() => ready.err(),
                ready = stream.writable(), if sending => ready.err(),
                Some(notice) = reported.recv() => {
                    client.handle_notice(&notice, time::now());
                    None
                }
                Ok(()) = changes.changed() => {
                    client.update(self.entity(local), time::now());
                    None
                }
                _ = left.wait_for(|left| *left), if !leaving => {
                    let now = time::now();
                    client.depart(now);
                    departure_limit = Some(now + DEPARTURE_LIMIT);
                    None
                }
                () = time::sleep_until(wake) => None,
            };
            if let Some(error) = lost {
                return error.into();
            }
            let now = time::now();
            if departure_limit.is_some_and(|limit| limit <= now) {
                info!(server = self.server, "the name server does not take the targets away");
                return Disconnection::Left;
            }
            if let Err(error) = client.handle_timeout(now) {
                return error.into();
            }
        }
    }

    fn tell(&mut self, event: &Event) {
        let server = self.server.as_str();
        match event {
            Event::Registered => {
                self.last_trouble.clear();
                info!(server, entity = self.identifier, "registered with the name server");
            }
            Event::WithoutInquiries => {
                info!(
                    server,
                    "the name server sends no status inquiries; the registration is renewed periodically"
                );
            }
            Event::WithoutChanges(status) => {
                info!(server, ?status, "the name server sends no notifications of changes");
            }
            Event::Restored => {
                info!(
                    server,
                    "the name server has forgotten the targets: they are registered again"
                );
            }
            Event::Departed => {}
        }
    }

    /// Returns the registered entity. For a portal on all addresses, it has the `local` address that reaches the iSNS
    /// server.
    fn entity(&self, local: IpAddr) -> Entity {
        let portal = |portal: &Portal| {
            if portal.protocol() != Protocol::Iscsi {
                return None;
            }
            let host = match portal.address().ip() {
                host if !host.is_unspecified() => host,
                host if host.is_ipv4() == local.is_ipv4() => local,
                _ => return None,
            };
            let is_heard = |notice: &&SocketAddr| {
                notice.ip() == host
                    || notice.ip().is_unspecified() && notice.is_ipv4() == host.is_ipv4()
            };
            Some(isns::Portal {
                address: SocketAddr::new(host, portal.address().port()),
                group: portal.group(),
                notice_port: self.notices.iter().find(is_heard).map(SocketAddr::port),
            })
        };
        let nodes = self.front.targets.all().into_iter().map(|target| Node {
            name: target.device.name().to_owned(),
            alias: target.alias,
            groups: target.groups,
        });
        Entity {
            identifier: self.identifier.clone(),
            portals: self.front.portals.configs().iter().filter_map(portal).collect(),
            nodes: nodes.collect(),
            registration_period: REGISTRATION_PERIOD_SECONDS,
        }
    }
}

async fn connect(server: &str) -> io::Result<Stream> {
    let connect = async {
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for address in tokio::net::lookup_host(server).await? {
            match Stream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    tokio::select! {
        connected = connect => connected,
        () = time::sleep_until(time::now() + CONNECT_LIMIT) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Receives and sends as much as possible without waiting.
fn exchange(stream: &Stream, client: &mut Client, scratch: &mut [u8]) -> Result<(), Disconnection> {
    loop {
        match stream.try_receive(&mut [], scratch) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => client.handle_input(&scratch[..count], time::now())?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    while !client.output().is_empty() {
        match stream.try_send(&[Piece::Bytes(client.output())]) {
            Ok(count) => client.sent(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Answers requests of the iSNS server.
async fn hear(listener: &Listener, teller: &mpsc::Sender<Notice>) {
    let mut calls = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if calls.len() < MAX_CALLS => match accepted {
                Ok((socket, peer)) => calls.push(async move {
                    if let Err(error) = answer_call(socket, teller).await {
                        debug!(%peer, %error, "a name server's call ended");
                    }
                }),
                Err(error) => return warn!(%error, "name servers cannot call any more"),
            },
            Some(()) = calls.next(), if !calls.is_empty() => {}
        }
    }
}

async fn answer_call(socket: TcpStream, teller: &mpsc::Sender<Notice>) -> io::Result<()> {
    let stream = Stream::from_std(socket)?;
    let mut answerer = Answerer::default();
    let mut scratch = vec![0; SCRATCH_LENGTH];
    let mut output = Vec::new();
    loop {
        let limit = time::sleep_until(time::now() + CALL_LIMIT);
        tokio::select! {
            ready = stream.readable(), if output.is_empty() => ready?,
            ready = stream.writable(), if !output.is_empty() => ready?,
            () = limit => return Err(io::ErrorKind::TimedOut.into()),
        }
        if output.is_empty() {
            match stream.try_receive(&mut [], &mut scratch) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    let heard = answerer.handle_input(&scratch[..count]);
                    let (answers, notices) = heard.map_err(io::Error::other)?;
                    output = answers;
                    // If the queue is full, a further notice has no new information.
                    notices.into_iter().for_each(|notice| drop(teller.try_send(notice)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if !output.is_empty() {
            match stream.try_send(&[Piece::Bytes(&output)]) {
                Ok(count) => drop(output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}
