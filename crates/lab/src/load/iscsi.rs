//! The load over iSCSI: one thread waits for all sockets together.

use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use sarsen_initiator::Url;
use sarsen_io::wake_ups;

use super::client::{Client, SessionPlacement};
use super::process::Meter;
use super::result::{self, LoadResult};
use super::tally::LoadCounters;
use super::work::Shared;
use super::{LEAVE_LIMIT, LoadError, LoadOptions, WAIT_LIMIT, system};

/// Length of the buffer for received bytes.
const SCRATCH_LENGTH: usize = 512 * 1024;
/// Maximum number of sockets that one wait reports.
const READY_LIMIT: usize = 64;
/// Delay of the kernel when it wakes a thread. The engine polls instead of waiting for less than this time.
const WAKE_UP_DELAY: Duration = Duration::from_micros(100);
/// The event data of the alarm. The event data of a socket is the index of its client.
const ALARM: u64 = u64::MAX;

/// See [`super::run`].
pub(super) fn put_on(
    options: &LoadOptions,
    url: &Url,
    mut shared: Shared,
) -> Result<LoadResult, LoadError> {
    let mut clients = log_in(options, url, &mut shared)?;
    let mut tally = LoadCounters::new(sarsen_io::time::now())?;
    let mut engine = Engine::new(&mut clients)?;
    engine.timed = options.rate.is_some() || clients.iter().any(Client::is_timed);
    if shared.feed.is_none() {
        engine.serve_all(&mut clients, &mut tally)?;
        let end = sarsen_io::time::now() + options.warm_up;
        engine.run_until(Some(end), &mut clients, &mut tally, options)?;
    }

    let meter = Meter::start(&options.target_pids)?;
    let begin = meter.begin();
    tally.start_measurement(begin, shared.feed.is_none().then_some(options.duration));
    match &shared.feed {
        None => {
            let end = begin + options.duration;
            engine.run_until(Some(end), &mut clients, &mut tally, options)?;
        }
        Some(feed) => {
            engine.serve_all(&mut clients, &mut tally)?;
            while !(feed.borrow().has_ended() && clients.iter().all(Client::is_idle)) {
                engine.run_until(None, &mut clients, &mut tally, options)?;
            }
        }
    }
    let end = sarsen_io::time::now();
    tally.end_measurement(end);
    let usage = meter.stop(end)?;
    let backlog = clients.iter().map(|client| client.backlog(end)).sum();
    if options.verify {
        read_back(&mut engine, &mut clients, &mut tally, options, &mut shared)?;
    }

    tally.leaving = true;
    leave(&mut engine, &mut clients, &mut tally);
    Ok(result::result(options, &tally, &shared, usage, backlog))
}

/// Waits until no I/O is open, then reads all written blocks again.
fn read_back(
    engine: &mut Engine,
    clients: &mut [Client],
    tally: &mut LoadCounters,
    options: &LoadOptions,
    shared: &mut Shared,
) -> Result<(), LoadError> {
    clients.iter_mut().for_each(|client| client.limit_to_reads_of(shared.left.clone()));
    while !clients.iter().all(Client::is_idle) {
        engine.run_until(None, clients, tally, options)?;
    }
    shared.begin_read_back();
    engine.serve_all(clients, tally)?;
    while !(shared.left.borrow().is_empty() && clients.iter().all(Client::is_idle)) {
        engine.run_until(None, clients, tally, options)?;
    }
    Ok(())
}

fn log_in(options: &LoadOptions, url: &Url, shared: &mut Shared) -> Result<Vec<Client>, LoadError> {
    let portal = url.portal();
    let address = (portal.host.as_str(), portal.port)
        .to_socket_addrs()
        .map_err(|source| LoadError::System { what: "find the host", source })?
        .next()
        .ok_or(LoadError::Options("the host has no address"))?;
    let mut scratch = vec![0; SCRATCH_LENGTH];
    let mut pattern = None;
    let mut clients: Vec<Client> = Vec::new();
    for index in 0..options.sessions {
        let place = SessionPlacement { url, address, index };
        clients.push(Client::log_in(options, place, shared, &mut pattern, &mut scratch)?);
    }
    Ok(clients)
}

/// Completes the open I/Os and logs out. Errors in this phase do not affect the results.
fn leave(engine: &mut Engine, clients: &mut [Client], tally: &mut LoadCounters) {
    let deadline = sarsen_io::time::now() + LEAVE_LIMIT;
    clients.iter_mut().for_each(Client::stop);
    while clients.iter().any(|client| !client.has_left()) && sarsen_io::time::now() < deadline {
        if engine.serve_all(clients, tally).is_err() || engine.turn(clients, tally).is_err() {
            return;
        }
    }
}

/// Waits for the sockets. A single session waits in the receive call itself.
struct Engine {
    epoll: rustix::fd::OwnedFd,
    /// Timer that expires when the next I/O is due: the timeout of a wait has whole milliseconds (epoll_wait(2)).
    alarm: rustix::fd::OwnedFd,
    events: Vec<epoll::Event>,
    scratch: Vec<u8>,
    /// Whether I/Os also start at given times, not only when other I/Os end.
    timed: bool,
}

impl Engine {
    fn new(clients: &mut [Client]) -> Result<Self, LoadError> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("create an epoll"))?;
        for (client, index) in clients.iter_mut().zip(0..) {
            epoll::add(
                &epoll,
                client.socket(),
                epoll::EventData::new_u64(index),
                epoll::EventFlags::IN,
            )
            .map_err(system("watch a socket"))?;
        }
        let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC);
        let alarm = alarm.map_err(system("create a timer"))?;
        let data = epoll::EventData::new_u64(ALARM);
        epoll::add(&epoll, &alarm, data, epoll::EventFlags::IN).map_err(system("watch a timer"))?;
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let (events, scratch) = (vec![none; READY_LIMIT], vec![0; SCRATCH_LENGTH]);
        Ok(Self { epoll, alarm, events, scratch, timed: false })
    }

    /// Runs turns until `end`, or one turn without `end`.
    fn run_until(
        &mut self,
        end: Option<Instant>,
        clients: &mut [Client],
        tally: &mut LoadCounters,
        options: &LoadOptions,
    ) -> Result<(), LoadError> {
        loop {
            let now = self.turn(clients, tally)?;
            if now.saturating_duration_since(tally.last_answer) > options.stall_limit {
                return Err(LoadError::Stalled(options.stall_limit));
            }
            if end.is_none_or(|end| now >= end) {
                return Ok(());
            }
        }
    }

    /// Issues and sends I/Os on every session.
    fn serve_all(
        &mut self,
        clients: &mut [Client],
        tally: &mut LoadCounters,
    ) -> Result<(), LoadError> {
        for (client, index) in clients.iter_mut().zip(0..) {
            client.issue_and_send(tally)?;
            self.watch(client, index)?;
        }
        Ok(())
    }

    /// Waits once and processes the events. Returns the time after that.
    fn turn(
        &mut self,
        clients: &mut [Client],
        tally: &mut LoadCounters,
    ) -> Result<Instant, LoadError> {
        if let [client] = clients
            && !client.is_blocked()
            && !self.timed
        {
            let now = client.receive(&mut self.scratch, true, tally)?;
            client.issue_and_send(tally)?;
            self.watch(client, 0)?;
            return Ok(now);
        }
        let mut wait = WAIT_LIMIT;
        if self.timed {
            match wait_of(clients) {
                Duration::ZERO => wait = Duration::ZERO,
                due => self.set_alarm(due)?,
            }
        }
        let timeout = timespec(wait);
        let wait = || epoll::wait(&self.epoll, &mut self.events[..], Some(&timeout));
        let ready = match wake_ups::wait(wait) {
            Ok(ready) => ready,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(system("wait for sockets")(error)),
        };
        for place in 0..ready {
            let event = self.events[place];
            let index = event.data.u64();
            if index == ALARM {
                continue;
            }
            let client = &mut clients[index as usize];
            let flags = event.flags;
            if flags.intersects(!epoll::EventFlags::OUT) {
                client.receive(&mut self.scratch, false, tally)?;
            }
            client.issue_and_send(tally)?;
            self.watch(client, index)?;
        }
        let now = sarsen_io::time::now();
        if self.timed {
            if clients.iter().all(Client::is_idle) {
                // No response is pending.
                tally.last_answer = now;
            }
            self.serve_all(clients, tally)?;
        }
        Ok(now)
    }

    /// Sets the alarm and clears its previous expiration.
    fn set_alarm(&self, wait: Duration) -> Result<(), LoadError> {
        let time = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(wait) };
        let set = timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &time);
        set.map(drop).map_err(system("set a timer"))
    }

    /// Waits for writability only while the send buffer of the socket is full.
    fn watch(&self, client: &mut Client, index: u64) -> Result<(), LoadError> {
        if client.is_blocked() == client.watched_for_room {
            return Ok(());
        }
        client.watched_for_room = client.is_blocked();
        let flags = if client.watched_for_room {
            epoll::EventFlags::IN | epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::IN
        };
        epoll::modify(&self.epoll, client.socket(), epoll::EventData::new_u64(index), flags)
            .map_err(system("watch a socket"))
    }
}

/// Converts a duration of less than one second.
fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() }
}

/// Returns the time until the next I/O is due, minus the wake-up delay.
fn wait_of(clients: &[Client]) -> Duration {
    let Some(due) = clients.iter().filter_map(Client::due).min() else { return WAIT_LIMIT };
    let left = due.saturating_duration_since(sarsen_io::time::now());
    left.saturating_sub(WAKE_UP_DELAY).min(WAIT_LIMIT)
}
