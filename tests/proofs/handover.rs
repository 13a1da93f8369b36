//! Listening sockets outlive their server: over a restart by systemd, which the proof simulates, and over
//! `sarsen upgrade`. A client that connects in between waits and is then served.

use std::fs;
use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use sarsen_io::time::now;
use sarsen_proof::{process, program};

const LIMIT: Duration = Duration::from_secs(30);
const TARGET: &str = "iqn.2026-11.io.sarsen:data";

/// A process that is killed at the end of the proof.
struct Service(Child);

impl Service {
    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.0.id().try_into()?).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits for the end of the process.
    fn ended(&mut self) -> Result<ExitStatus> {
        let deadline = now() + LIMIT;
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            ensure!(now() < deadline, "it does not end");
            std::thread::yield_now();
        }
    }

    fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let status = self.ended()?;
        ensure!(status.success(), "SIGTERM ended it with {status}");
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A simulated systemd for a service of Type=notify.
struct Manager {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
}

/// A message to the manager, and its optional socket.
type Message = (String, Option<OwnedFd>);

impl Manager {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = UnixDatagram::bind(folder.path().join("notify"))?;
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(Self { folder, socket })
    }

    fn control(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// Starts `sarsen serve` with a RAM volume and this socket, if there is one, under this name.
    fn start(&self, socket: Option<(&str, OwnedFd)>, arguments: &[&str]) -> Result<Service> {
        // The socket becomes descriptor 3, and the shell executes the server.
        let take_over = "exec 3<&0 0</dev/null; export LISTEN_PID=$$; exec \"$@\"";
        let mut command = Command::new("sh");
        match socket {
            Some((name, socket)) => command
                .args(["-c", take_over, "sh"])
                .stdin(socket)
                .env("LISTEN_FDS", "1")
                .env("LISTEN_FDNAMES", name),
            None => command.args(["-c", "exec \"$@\"", "sh"]).stdin(Stdio::null()),
        };
        command.arg(program::path()?).args(["serve", "--volume", "data=ram:8MiB"]);
        command.args(arguments).args(["--logout-grace", "1", "--control"]).arg(self.control());
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify"));
        command.env("WATCHDOG_USEC", "600000000").env_remove("WATCHDOG_PID");
        Ok(Service(command.stdout(Stdio::null()).spawn()?))
    }

    fn message(&self) -> Result<Message> {
        let mut text = [0; 1024];
        let mut room = [std::mem::MaybeUninit::uninit(); 256];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let mut pieces = [IoSliceMut::new(&mut text)];
        let received = recvmsg(&self.socket, &mut pieces, &mut control, flags)?;
        let mut sockets = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let socket = sockets.next().and_then(|mut descriptors| descriptors.next());
        drop(sockets);
        Ok((String::from_utf8_lossy(&text[..received.bytes]).into_owned(), socket))
    }

    /// Returns all messages up to the one with this line.
    fn messages_until(&self, line: &str) -> Result<Vec<Message>> {
        let mut all = Vec::new();
        loop {
            let message = self.message().with_context(|| format!("{line} does not come"))?;
            let last = message.0.lines().any(|other| other == line);
            all.push(message);
            if last {
                return Ok(all);
            }
        }
    }
}

/// Returns a client that logs in, reads and logs out. It fails at once if no server listens.
fn client(address: SocketAddr) -> Result<Command> {
    let mut client = Command::new(program::path()?);
    client.args(["disk", "info", "--json"]).arg(format!("iscsi://{address}/{TARGET}/0"));
    client.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(client)
}

fn is_served(address: SocketAddr) -> Result<()> {
    process::output(&mut client(address)?, LIMIT)?;
    Ok(())
}

/// Returns an address that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

#[test]
fn a_client_that_comes_during_a_restart_waits_and_is_served() -> Result<()> {
    let manager = Manager::new()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    // No option names a portal, so the server listens where the socket does.
    let first = manager.start(Some(("sarsen.socket", listener.try_clone()?.into())), &[])?;
    manager.messages_until("READY=1")?;
    is_served(address)?;
    first.stop()?;
    manager.messages_until("STOPPING=1")?;

    TcpStream::connect(address).context("the socket listens without a server")?;
    let mut waiting = Service(client(address)?.spawn()?);
    let listen = address.to_string();
    let socket = Some(("sarsen.socket", listener.into()));
    let second = manager.start(socket, &["--listen", &listen])?;
    let status = waiting.ended()?;
    ensure!(status.success(), "who came during the restart ended with {status}");
    // Before this, SIGTERM ends the process at once.
    manager.messages_until("READY=1")?;
    second.stop()?;
    // An unread message still holds the socket.
    manager.messages_until("STOPPING=1")?;
    ensure!(!client(address)?.status()?.success(), "nobody has the socket any more");
    Ok(())
}

#[test]
fn a_socket_that_the_server_bound_is_kept_by_systemd_over_a_restart_alone() -> Result<()> {
    let manager = Manager::new()?;
    let address = free_address()?;
    let listen = ["--listen", &address.to_string()];
    let first = manager.start(None, &listen)?;
    let reported = manager.messages_until("READY=1")?;
    ensure!(
        reported.iter().all(|(text, _)| !text.contains("FDSTORE")),
        "it is its own: {reported:?}"
    );
    first.stop()?;
    let reported = manager.messages_until("STOPPING=1")?;
    let stored = reported.into_iter().find(|(text, _)| text.contains("FDSTORE=1"));
    let (text, socket) = stored.context("no socket is given to systemd")?;
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
    let name = name.context("it has no name")?.to_owned();
    let socket = socket.context("no socket came with it")?;

    TcpStream::connect(address).context("it listens without a server")?;
    let second = manager.start(Some((&name, socket)), &listen)?;
    let reported = manager.messages_until("READY=1")?;
    let taken_back = format!("FDNAME={name}");
    let removed = |(text, _): &Message| {
        text.contains("FDSTOREREMOVE=1") && text.lines().any(|line| line == taken_back)
    };
    ensure!(reported.iter().any(removed), "systemd still has it: {reported:?}");
    is_served(address)?;
    second.stop()
}

#[test]
fn the_watchdog_is_petted() -> Result<()> {
    let manager = Manager::new()?;
    let server = manager.start(None, &["--listen", "127.0.0.1:0"])?;
    manager.messages_until("WATCHDOG=1")?;
    server.stop()
}

#[test]
fn systemd_starts_server_on_first_connection() -> Result<()> {
    let address = free_address()?;
    let mut activate = Command::new("systemd-socket-activate");
    activate.arg(format!("--listen={address}")).arg(program::path()?);
    activate.args(["serve", "--volume", "data=ram:8MiB"]).stdin(Stdio::null());
    let service = Service(activate.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let deadline = now() + LIMIT;
    // A connection before systemd listens is refused.
    while TcpStream::connect(address).is_err() {
        ensure!(now() < deadline, "systemd-socket-activate does not listen");
        std::thread::yield_now();
    }
    is_served(address)?;
    service.stop()
}

/// Installs a program at a path that a running process may use.
fn install(program: &Path, at: &Path) -> Result<()> {
    let beside = at.with_extension("new");
    // Another process copies the file. Every child process that starts meanwhile inherits the files that this process
    // has open for writing, and such a file cannot be executed (execve(2), ETXTBSY).
    process::output(Command::new("cp").arg(program).arg(&beside), LIMIT)?;
    Ok(fs::rename(beside, at)?)
}

#[test]
fn an_upgrade_keeps_process_and_sockets_and_refuses_a_program_that_does_not_run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (installed, control) = (folder.path().join("sarsen"), folder.path().join("control.sock"));
    install(&program::path()?, &installed)?;
    let log = folder.path().join("log");
    let address = free_address()?;
    let mut serve = Command::new(&installed);
    serve.args(["serve", "--volume", "data=ram:8MiB", "--logout-grace", "1", "--listen"]);
    serve.arg(address.to_string()).arg("--control").arg(&control);
    serve.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
    let mut server = Service(serve.spawn()?);
    let log = || fs::read_to_string(&log).unwrap_or_default();
    let deadline = now() + LIMIT;
    while !control.exists() {
        ensure!(server.0.try_wait()?.is_none() && now() < deadline, "{}", log());
        std::thread::yield_now();
    }
    is_served(address)?;

    fs::write(folder.path().join("bad"), "#!/bin/sh\nexit 7\n")?;
    fs::set_permissions(folder.path().join("bad"), fs::Permissions::from_mode(0o755))?;
    install(&folder.path().join("bad"), &installed)?;
    server.signal(Signal::USR2)?;
    while !log().contains("the server was not replaced") {
        ensure!(server.0.try_wait()?.is_none() && now() < deadline, "{}", log());
        std::thread::yield_now();
    }
    is_served(address)?;

    install(&program::path()?, &installed)?;
    let mut upgrade = Command::new(program::path()?);
    upgrade.args(["upgrade", "--json", "--control"]).arg(&control);
    let mut upgrade = Service(upgrade.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    // During the upgrade a socket always listens. The server serves each client, or asks it to try again.
    let mut came = 0;
    while upgrade.0.try_wait()?.is_none() {
        TcpStream::connect(address).with_context(|| format!("nobody listens; {}", log()))?;
        came += 1;
    }
    ensure!(upgrade.ended()?.success() && came > 0, "{}", log());
    is_served(address)?;
    let runs = fs::metadata(format!("/proc/{}/exe", server.0.id()))?.ino();
    ensure!(runs == fs::metadata(&installed)?.ino(), "the process runs what is installed");
    server.signal(Signal::TERM)?;
    ensure!(server.ended()?.success(), "{}", log());
    Ok(())
}
