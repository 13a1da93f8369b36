//! Disks of the kernel's NBD client, and sockets for other NBD clients of this machine.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use sarsen_block::{Io, LocalFuture};
use sarsen_io::local::LocalStream;
use sarsen_io::nbd_device::{Device, DeviceOptions};
use sarsen_io::net::PIECES_MAX;
use sarsen_io::{threads, time};
use sarsen_proto::nbd::server::{
    Event, Export, Exports, ListedExport, Outcome, Refusal, Server, Settings,
};
use sarsen_wire::nbd::ErrorCode;
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::AttachError;
use super::disk::{Access, Ending, MAXIMUM_PAYLOAD, Start, Stop, backend, listen};

const SCRATCH_LENGTH: usize = 64 * 1024;
/// Maximum number of bytes that a turn receives before it answers.
const TURN_RECEIVE_LIMIT: usize = 256 * 1024;
/// Maximum number of clients of a socket at a time. Each may have 64 MiB of requests, and one more.
const CLIENTS: usize = 16;
/// Time between attempts to replace a connection of the kernel.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_LENGTH].into());
}

/// The only export of a connection, whose clients may leave its name out.
struct OnlyExport<'a>(&'a Access);

impl Exports for OnlyExport<'_> {
    fn find(&mut self, name: &str) -> Result<Export, Refusal> {
        let export = self.0.export();
        if name.is_empty() || name == export.name { Ok(export) } else { Err(Refusal::Unknown) }
    }

    fn list(&mut self) -> Vec<ListedExport> {
        let Export { name, description, .. } = self.0.export();
        vec![ListedExport { name, description }]
    }
}

/// Returns whether the kernel has the device, with this backend.
pub(super) fn exists(number: u32, backend: &str) -> bool {
    let found = fs::read_to_string(format!("/sys/block/nbd{number}/backend"));
    found.is_ok_and(|found| found.trim_end_matches(['\n', '\0']) == backend)
}

fn settings() -> Settings {
    Settings { maximum_payload: MAXIMUM_PAYLOAD, ..Settings::default() }
}

/// Creates the device of a record or continues it, and starts its connection.
pub(super) fn start_device(start: Start<'_>) -> Result<(), AttachError> {
    let Start { cores, access, record, folder, stop, report } = start;
    let backend: Arc<str> = backend(record).into();
    let existing =
        record.number.filter(|number| exists(*number, &backend)).map(Device::with_number);
    let (socket, device) = match existing {
        Some(device) => (None, device),
        None => {
            let (own, theirs) =
                UnixStream::pair().map_err(AttachError::system("cannot create sockets"))?;
            record.size_bytes = access.bytes();
            let options = DeviceOptions {
                bytes: record.size_bytes,
                block_bytes: access.block_size().bytes() as u32,
                flags: access.export().transmission_flags(),
                backend: &backend,
            };
            let created = Device::connect(&options, &theirs);
            (Some(own), created.map_err(AttachError::system("cannot create a disk as nbd"))?)
        }
    };
    record.number = Some(device.number());
    if let Err(error) = folder.write(record) {
        if existing.is_none() {
            // Without a record, no later process would find it.
            let _ = device.disconnect();
        }
        return Err(error);
    }
    let (access, stop) = (access.clone(), stop.subscribe());
    cores.spawn_on(0, move || async move {
        let _ = report.send(serve_device(socket, device, &backend, &access, stop).await);
    });
    Ok(())
}

/// Serves the connection of a device. A lost one is replaced.
async fn serve_device(
    mut socket: Option<UnixStream>,
    device: Device,
    backend: &Arc<str>,
    access: &Arc<Access>,
    stop: Stop,
) -> Ending {
    let mut has_warned = false;
    loop {
        if let Some(socket) = socket.take() {
            let stream = match LocalStream::from_std(socket) {
                Ok(stream) => stream,
                Err(error) => return Ending::Failed(error),
            };
            let machine = Server::in_transmission(settings(), access.export());
            match Connection::new(stream, machine, access).serve(stop.clone()).await {
                End::Disconnected => return Ending::Detached,
                End::Stopped => return Ending::Stopped,
                End::Lost(error) => debug!(%error, "a connection of the kernel was lost"),
            }
        }
        if *stop.borrow() {
            return Ending::Stopped;
        }
        if !exists(device.number(), backend) {
            return Ending::Detached;
        }
        match reconnect(device, backend, access.bytes()).await {
            Ok(own) => socket = Some(own),
            Err(_) if has_warned => {}
            Err(error) => {
                warn!(%error, "the connection of the kernel cannot be replaced; trying again");
                has_warned = true;
            }
        }
        time::sleep_until(time::now() + RECONNECT_INTERVAL).await;
    }
}

/// Gives the kernel a socket in the place of a lost one. Returns the other end. If the kernel has lost none yet, it closes the socket.
async fn reconnect(device: Device, backend: &Arc<str>, bytes: u64) -> io::Result<UnixStream> {
    let backend = backend.clone();
    let reconnected = threads::run_detached("reconnect", move || {
        let (own, theirs) = UnixStream::pair()?;
        device.reconnect(&backend, bytes, &theirs)?;
        Ok(own)
    });
    reconnected.await.flatten()
}

/// Listens at the socket of a record.
pub(super) fn start_socket(start: Start<'_>) -> Result<(), AttachError> {
    let Start { cores, access, record, folder, stop, report } = start;
    let listener = listen(access, record, folder)?;
    let (access, weak) = (access.clone(), Arc::downgrade(cores));
    let mut stop = stop.subscribe();
    let clients = Arc::new(Semaphore::new(CLIENTS));
    cores.spawn_on(0, move || async move {
        let connections = match listener.connections() {
            Ok(connections) => connections,
            Err(error) => return drop(report.send(Ending::Failed(error))),
        };
        let mut next = 0_usize;
        loop {
            let accepting = async {
                // The semaphore is never closed. Further clients wait in the backlog.
                let permit = clients.clone().acquire_owned().await;
                let accepted = connections.accept().await;
                (permit, accepted.and_then(|socket| socket.into_std()))
            };
            let (permit, accepted) = tokio::select! {
                accepted = accepting => accepted,
                _ = stop.changed() => break,
            };
            let (Some(cores), Ok(socket)) = (weak.upgrade(), accepted) else {
                // A moment later there may be a descriptor again.
                time::sleep_until(time::now() + RECONNECT_INTERVAL).await;
                continue;
            };
            next += 1;
            let (access, stop, report) = (access.clone(), stop.clone(), report.clone());
            cores.spawn_on(next % cores.len(), move || async move {
                // The end of all reports is that of all connections.
                let (_report, _permit) = (report, permit);
                let Ok(stream) = LocalStream::from_std(socket) else { return };
                let connection = Connection::new(stream, Server::new(settings()), &access);
                if let End::Lost(error) = connection.serve(stop).await {
                    debug!(%error, "a client of the socket was lost");
                }
            });
        }
        drop(listener);
        let _ = report.send(Ending::Stopped);
    });
    Ok(())
}

/// How a connection ended.
enum End {
    /// The client disconnected.
    Disconnected,
    /// The process ends.
    Stopped,
    Lost(io::Error),
}

/// A connection of a client of this machine.
struct Connection<'a> {
    stream: LocalStream,
    machine: Server,
    access: &'a Arc<Access>,
    pending: FuturesUnordered<LocalFuture<(u64, Result<Outcome, ErrorCode>)>>,
    /// Received bytes that the machine could not handle yet.
    held: Vec<u8>,
    known_generation: u64,
}

impl<'a> Connection<'a> {
    fn new(stream: LocalStream, machine: Server, access: &'a Arc<Access>) -> Self {
        let known_generation = access.volume().store().status().generation();
        let (pending, held) = (FuturesUnordered::new(), Vec::new());
        Self { stream, machine, access, pending, held, known_generation }
    }

    /// Serves the connection until it ends.
    async fn serve(mut self, stop: Stop) -> End {
        match self.run(stop).await {
            Ok(end) => end,
            Err(error) => {
                // The requests end before others hear of the loss.
                while self.pending.next().await.is_some() {}
                End::Lost(error)
            }
        }
    }

    async fn run(&mut self, mut stop: Stop) -> io::Result<End> {
        let mut end = None;
        loop {
            let is_busy = end.is_none() && self.receive()?;
            while let Some(event) = self.machine.poll_event() {
                match event {
                    Event::Request { task, operation } => match self.access.execute(operation) {
                        Io::Ready(answer) => self.machine.complete(task, answer),
                        Io::Pending(answer) => {
                            self.pending.push(Box::pin(async move { (task, answer.await) }));
                        }
                    },
                    Event::Disconnected => end = Some(End::Disconnected),
                    // The socket offers no TLS.
                    Event::Selected(_) | Event::StartTls => {}
                }
            }
            self.send()?;
            let is_sending = !self.machine.output().is_empty();
            if self.pending.is_empty()
                && !is_sending
                && let Some(end) = end.take()
            {
                return Ok(end);
            }
            if is_busy {
                tokio::task::yield_now().await;
            }
            let is_receiving = end.is_none() && self.held.is_empty() && self.machine.wants_input();
            tokio::select! {
                biased;
                Some((task, answer)) = self.pending.next(), if !self.pending.is_empty() => {
                    self.machine.complete(task, answer);
                }
                ready = self.stream.writable(), if is_sending => ready?,
                ready = self.stream.readable(), if is_receiving => ready?,
                _ = stop.changed(), if end.is_none() => end = Some(End::Stopped),
                () = std::future::ready(()), if is_busy => {}
            }
        }
    }

    /// Passes received bytes to the machine, as long as it can handle more. Returns whether there may be more to receive.
    fn receive(&mut self) -> io::Result<bool> {
        let generation = self.access.volume().store().status().generation();
        if self.known_generation != generation {
            self.known_generation = generation;
            self.machine.set_bytes(self.access.bytes());
        }
        if !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            let consumed = self.handle(&held)?;
            self.held = held[consumed..].to_vec();
            if !self.held.is_empty() {
                return Ok(false);
            }
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut received = 0;
            while received < TURN_RECEIVE_LIMIT && self.machine.wants_input() {
                let landing = self.machine.landing().unwrap_or_default();
                let landing_length = landing.len();
                let offered = landing_length + scratch.len();
                let count = match self.stream.try_receive(landing, scratch) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                };
                received += count;
                let landed = count.min(landing_length);
                self.machine.landed(landed);
                let rest = &scratch[..count - landed];
                let consumed = self.handle(rest)?;
                self.held.extend_from_slice(&rest[consumed..]);
                if count < offered {
                    return Ok(false);
                }
            }
            Ok(self.machine.wants_input())
        })
    }

    fn handle(&mut self, input: &[u8]) -> io::Result<usize> {
        let handled = self.machine.handle_input(input, &mut OnlyExport(self.access));
        handled.map_err(io::Error::other)
    }

    /// Sends the ready output, as far as the socket accepts it.
    fn send(&mut self) -> io::Result<()> {
        while !self.machine.output().is_empty() {
            let mut pieces = Vec::with_capacity(16);
            self.machine.output().pieces(&mut pieces, PIECES_MAX);
            match self.stream.try_send(&pieces) {
                Ok(count) => {
                    drop(pieces);
                    self.machine.output().sent(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
