//! The limit: the upper bound with which the bench compares targets. It accepts at login all settings that help speed,
//! and answers each READ and WRITE from memory. Between two system calls it does only the work that the bytes on the
//! wire need: no window, no order, no unit, no rules. One receive takes all requests that have arrived; one vectored
//! send sends all their answers. No target can be faster with the same system calls, and no target with rules can be as
//! fast.
//!
//! It is for one client with ordinary requests; any other request ends the connection.

mod connection;
mod login;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};

use anyhow::{Context as _, Result};
use clap::Parser;
use connection::Connection;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::net::sockopt;
use sarsen_io::wake_ups;

/// Maximum of ready connections that one wait reports.
const READY_LIMIT: usize = 64;
/// Bytes of one receive.
const SCRATCH_LENGTH: usize = 512 << 10;
/// The byte that fills the unit.
const PATTERN: u8 = 0x5a;
/// Identifies the listener in the epoll.
const LISTENER: u64 = u64::MAX;
/// The congestion control with the least cost over a short path, the same as for the targets.
const CONGESTION: &str = "cubic";

/// Answers iSCSI from memory, as fast as one thread and the system's calls allow.
#[derive(Parser)]
#[command(name = "sarsen-limit")]
struct Arguments {
    /// Poll for data without sleeping.
    #[arg(long)]
    spin: bool,
    /// Store written data, as a target must: this costs one more copy.
    #[arg(long)]
    keep: bool,
    /// Bytes of the unit.
    #[arg(long, default_value_t = 1 << 30)]
    bytes: usize,
    /// The address to listen on; port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let listener = TcpListener::bind(arguments.listen)
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    let _ = sockopt::set_tcp_congestion(&listener, CONGESTION);
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let memory = vec![PATTERN; arguments.bytes];
    let mut responder = Responder::new(listener, memory, arguments.keep)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{address}")?;
    out.flush()?;
    drop(out);
    responder.run(arguments.spin)
}

struct Responder {
    epoll: OwnedFd,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    memory: Vec<u8>,
    scratch: Vec<u8>,
    keeps: bool,
}

impl Responder {
    fn new(listener: TcpListener, memory: Vec<u8>, keeps: bool) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let scratch = vec![0; SCRATCH_LENGTH];
        Ok(Self { epoll, listener, connections: Vec::new(), memory, scratch, keeps })
    }

    fn run(&mut self, spin: bool) -> Result<()> {
        let timeout = spin.then(Timespec::default);
        let none = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [none; READY_LIMIT];
        loop {
            let wait = || epoll::wait(&self.epoll, &mut events[..], timeout.as_ref());
            let ready = match wake_ups::wait(wait) {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in &events[..ready] {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    index => self.serve(index as usize)?,
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        // A client that has closed its connection already does not matter.
        let Ok((socket, _)) = self.listener.accept() else { return Ok(()) };
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let free = self.connections.iter().position(Option::is_none);
        let index = free.unwrap_or(self.connections.len());
        epoll::add(&self.epoll, &socket, EventData::new_u64(index as u64), EventFlags::IN)?;
        let connection = Some(Connection::new(socket, self.keeps));
        match free {
            Some(index) => self.connections[index] = connection,
            None => self.connections.push(connection),
        }
        Ok(())
    }

    fn serve(&mut self, index: usize) -> Result<()> {
        let Some(connection) = &mut self.connections[index] else { return Ok(()) };
        let was_blocked = connection.is_blocked();
        let turn = connection.turn(&mut self.scratch, &mut self.memory);
        if turn.is_err() {
            // Closing the socket removes it from the epoll.
            self.connections[index] = None;
        } else if connection.is_blocked() != was_blocked {
            let room = if was_blocked { EventFlags::empty() } else { EventFlags::OUT };
            let data = EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, connection.socket(), data, EventFlags::IN | room)?;
        }
        Ok(())
    }
}
