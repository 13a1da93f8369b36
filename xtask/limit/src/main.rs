//! The limit: what the bench holds targets against. It answers a login with whatever is good for
//! speed, and each READ and WRITE from memory, with nothing between two system calls that the bytes
//! on the wire do not ask for: no window, no order, no unit, no rules. One receive takes all requests
//! that have come, one vectored send all their answers. No target can be faster with the same
//! system calls, and none that has rules can be as fast.
//!
//! It is for one client that does nothing unusual; anything else ends the connection.

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

/// Connections of which one wait tells.
const READY_LIMIT: usize = 64;
/// Of one receive.
const SCRATCH_LENGTH: usize = 512 << 10;
/// What the unit is full of.
const PATTERN: u8 = 0x5a;
/// Names the listener among what is waited for.
const LISTENER: u64 = u64::MAX;
/// The congestion control that costs least over a short path, as targets have it.
const CONGESTION: &str = "cubic";

/// Answers iSCSI from memory, as fast as one thread and the system's calls allow.
#[derive(Parser)]
#[command(name = "sarsen-limit")]
struct Arguments {
    /// Ask again at once whether something has come, instead of sleeping until it has.
    #[arg(long)]
    spin: bool,
    /// Keep what is written, as a target has to: a copy more.
    #[arg(long)]
    keep: bool,
    /// Bytes of the unit.
    #[arg(long, default_value_t = 1 << 30)]
    bytes: usize,
    /// Where to listen; port 0 takes a free one.
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
            let ready = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
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
        // Who has left again already is of no interest.
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
            // Its socket leaves the epoll as it closes.
            self.connections[index] = None;
        } else if connection.is_blocked() != was_blocked {
            let room = if was_blocked { EventFlags::empty() } else { EventFlags::OUT };
            let data = EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, connection.socket(), data, EventFlags::IN | room)?;
        }
        Ok(())
    }
}
