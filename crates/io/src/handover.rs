//! Listening sockets that outlive a program. This process receives them from the service manager or from its
//! predecessor, and passes them to its successor. Connections that arrive in between wait in the backlog.
//!
//! Sockets arrive once in the life of a process: from the service manager in systemd's format (LISTEN_FDS, LISTEN_PID,
//! LISTEN_FDNAMES), from a predecessor by their numbers (SARSEN_SOCKETS). So this module keeps them, and callers
//! need not pass them on.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};
use socket2::SockRef;

/// The environment variable with the process id and the descriptors that a predecessor passes on: `PID:FD,FD`. The format
/// of systemd needs the descriptors from 3 on, which objects of other threads may own: such an object could close a socket
/// before the next program begins.
const SOCKETS_VARIABLE: &str = "SARSEN_SOCKETS";

static STATE: Mutex<HandoverState> =
    Mutex::new(HandoverState { received: None, listening: Vec::new() });

struct HandoverState {
    /// Sockets that this process received and that were not taken yet; `None` until the first look.
    received: Option<Vec<Received>>,
    /// Listening sockets that may be handed over.
    listening: Vec<Weak<TcpListener>>,
}

struct Received {
    name: String,
    address: SocketAddr,
    socket: TcpListener,
}

/// A socket of this process for its successor.
pub struct HandoverSocket {
    /// The address on which it listens.
    pub address: SocketAddr,
    socket: OwnedFd,
}

impl HandoverSocket {
    /// Returns the socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn state() -> MutexGuard<'static, HandoverState> {
    let mut state = STATE.lock();
    state.received.get_or_insert_with(receive);
    state
}

/// Returns the names and addresses of the listening sockets that this process received and that were not taken yet.
pub fn received() -> Vec<(String, SocketAddr)> {
    let state = state();
    let received = state.received.iter().flatten();
    received.map(|received| (received.name.clone(), received.address)).collect()
}

/// Closes the sockets that were not taken: their clients would wait for ever.
pub fn close_the_rest() {
    state().received = Some(Vec::new());
}

/// Returns the socket that listens at `address`, if this process received it.
pub(crate) fn take(address: SocketAddr) -> Option<TcpListener> {
    let mut state = state();
    let received = state.received.as_mut()?;
    let index = received.iter().position(|received| received.address == address)?;
    Some(received.swap_remove(index).socket)
}

/// Remembers a socket for a handover, as long as it exists.
pub(crate) fn remember(socket: &Arc<TcpListener>) {
    let listening = &mut state().listening;
    listening.retain(|socket| socket.strong_count() > 0);
    listening.push(Arc::downgrade(socket));
}

/// Returns the sockets that listen now. They stay open until the result is dropped.
pub fn listening_sockets() -> io::Result<Vec<HandoverSocket>> {
    let living: Vec<_> = state().listening.iter().filter_map(Weak::upgrade).collect();
    living
        .iter()
        .map(|socket| {
            Ok(HandoverSocket { address: socket.local_addr()?, socket: socket.try_clone()?.into() })
        })
        .collect()
}

/// Returns the sockets from the service manager or the predecessor.
fn receive() -> Vec<Received> {
    let mut reported = match sd_notify::listen_fds_with_names() {
        Ok(reported) => reported.collect::<Vec<_>>(),
        Err(error) => {
            tracing::warn!(%error, "the sockets that were handed over cannot be used");
            return Vec::new();
        }
    };
    let passed_on = std::env::var(SOCKETS_VARIABLE).unwrap_or_default();
    reported.extend(passed_on_sockets(&passed_on, std::process::id()));
    let take = |(descriptor, name): (RawFd, String)| {
        // SAFETY: only queries the descriptor, whatever it is. It is open or not, and nothing closes it meanwhile.
        #[allow(unsafe_code)]
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let socket = SockRef::from(&borrowed);
        let listens = socket.is_listener().unwrap_or(false);
        let address = socket.local_addr().ok().and_then(|address| address.as_socket());
        let Some(address) = address.filter(|_| listens) else {
            // It may belong to another object of this process, so it is not closed.
            tracing::warn!(name, "what was handed over is no listening TCP socket");
            return None;
        };
        if let Err(error) = rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC) {
            tracing::warn!(%address, %error, "programs that this one starts inherit a socket");
        }
        // SAFETY: the parent of this process opened the descriptor for it, and confirms that by the process id. The
        // descriptor is taken only here and only once: the caller keeps the result.
        #[allow(unsafe_code)]
        let socket = unsafe { TcpListener::from_raw_fd(descriptor) };
        Some(Received { name, address, socket })
    };
    reported.into_iter().filter_map(take).collect()
}

/// Asks a server to become the program that is installed now, with its sockets (SIGUSR2).
pub fn request_handover(process: u32) -> io::Result<()> {
    Ok(rustix::process::kill_process(pid(process)?, Signal::USR2)?)
}

/// Returns whether a process exists.
pub fn is_alive(process: u32) -> bool {
    pid(process).is_ok_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

fn pid(process: u32) -> io::Result<Pid> {
    let number = i32::try_from(process).ok().and_then(Pid::from_raw);
    number.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Replaces this process by another program with these sockets, under the same process id. Returns only if that fails.
/// The caller must have stopped all work that the replacement would interrupt.
pub fn become_program(mut command: Command, kept: Vec<HandoverSocket>) -> io::Error {
    // Copies without FD_CLOEXEC, at numbers that nothing else in this process has.
    let copies = kept.iter().map(|kept| rustix::io::dup(&kept.socket));
    let copies = match copies.collect::<Result<Vec<_>, _>>() {
        Ok(copies) => copies,
        Err(error) => return error.into(),
    };
    let numbers: Vec<_> = copies.iter().map(|copy| copy.as_raw_fd().to_string()).collect();
    let passed_on = format!("{}:{}", std::process::id(), numbers.join(","));
    for used in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        command.env_remove(used);
    }
    command.env(SOCKETS_VARIABLE, passed_on).exec()
}

/// Returns the descriptors that the predecessor of process `id` passed on, with their names.
fn passed_on_sockets(text: &str, id: u32) -> Vec<(RawFd, String)> {
    let numbers = text.split_once(':').filter(|(process, _)| process.parse() == Ok(id));
    let numbers = numbers.map_or("", |(_, numbers)| numbers).split(',');
    // The first three are the standard streams.
    let numbers = numbers.filter_map(|number| number.parse().ok()).filter(|&number| number > 2);
    numbers.map(|number| (number, "portal".to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::net::Listener;

    #[test]
    fn handover_keeps_sockets_while_they_listen() {
        let listener = Listener::inherit_or_bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        let address = listener.local_addr().expect("bound");
        let kept = listening_sockets().expect("copies");
        let own = kept.into_iter().find(|kept| kept.address == address).expect("it is kept");
        drop(listener);
        std::net::TcpStream::connect(address).expect("it is open still");
        let all = listening_sockets().expect("copies");
        assert!(all.iter().all(|kept| kept.address != address), "it is not listened on");
        drop(own);
        assert!(std::net::TcpStream::connect(address).is_err(), "nobody has it");
    }

    #[test]
    fn a_predecessor_passes_on_descriptors_to_its_own_process() {
        let of = |text| passed_on_sockets(text, 7).into_iter().map(|one| one.0).collect::<Vec<_>>();
        assert_eq!(of("7:9,12"), [9, 12]);
        for other in ["8:9,12", "7:", "", "9,12", "7:x", "7:-1", "7:2"] {
            assert_eq!(of(other), [0; 0], "{other}");
        }
    }

    #[test]
    fn without_a_service_manager_there_is_nothing() {
        assert!(received().is_empty());
        assert!(take((Ipv4Addr::LOCALHOST, 3260).into()).is_none());
    }
}
