//! The load on stores, which need no protocol or use one that offers a store.
//!
//! One task keeps the I/Os of all sessions open. If a store responds at once, the task submits the next I/O at once.
//! The task waits for all other stores together. If a store only lends its memory (to send it without a copy), the task
//! copies the data: otherwise a read would not move any data.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use sarsen_block::io::LocalFuture;
use sarsen_block::{BlockError, BlockSize, Buffer, Data, Durability, Extent, Io as Answer, Store};
use sarsen_initiator::nbd::NbdConnection;
use sarsen_initiator::{IscsiStore, PathStatus, RemoteDisk as _, SessionOptions};
use sarsen_io::cores::{self, FileEngine};
use sarsen_node::stores::{CacheMode, FileOptions, FileStore, StoreError};
use sarsen_wire::nbd::transmission;

use super::client::session_options;
use super::plan::Io;
use super::process::Meter;
use super::result::{self, LoadResult};
use super::tally::LoadCounters;
use super::work::{Shared, Work, fill_pattern};
use super::{Endpoint, LEAVE_LIMIT, LoadError, LoadOptions, WAIT_LIMIT};

/// Maximum time in which an NBD server provides an export.
pub(super) const CONNECTION_LIMIT: Duration = Duration::from_secs(15);
/// Resolution of the runtime's timers. For shorter waits, the engine yields to the event loop instead.
const TIMER_STEP: Duration = Duration::from_millis(2);

/// The result of an I/O, with the data of a read.
type Answered = Result<Option<Data>, BlockError>;

/// See [`super::run`].
pub(super) fn put_on(options: &LoadOptions, shared: Shared) -> Result<LoadResult, LoadError> {
    let measured = async {
        let mut engine = Engine::open(options, shared).await?;
        let result = engine.measure().await;
        engine.leave().await;
        result
    };
    cores::block_on(FileEngine::Auto, measured)
        .map_err(|source| LoadError::System { what: "start the runtime", source })?
}

/// Opens the stores of the sessions: one store for all, or one connection for each.
async fn open(options: &LoadOptions, replays: bool) -> Result<Vec<Session>, LoadError> {
    let sessions = options.sessions as usize;
    match &options.endpoint {
        Endpoint::Memory(store) => {
            let session = Session { store: store.store(), connection: None };
            Ok(vec![session; sessions])
        }
        Endpoint::File { path, cache } => {
            let store = open_file(path, *cache, options.only_reads() && !replays)?;
            Ok(vec![Session { store: Arc::new(store), connection: None }; sessions])
        }
        Endpoint::Nbd(url) => {
            let mut connections = Vec::new();
            for _ in 0..sessions {
                let store = Arc::new(NbdConnection::connect(url, CONNECTION_LIMIT).await?);
                let connection = Some(Connection::Nbd(store.clone()));
                connections.push(Session { store, connection });
            }
            Ok(connections)
        }
        Endpoint::Iscsi(url) => {
            // One for all sessions: after a loss, a store writes its own writes again, over those of any other store.
            let store = Arc::new(IscsiStore::connect(url, &multipath_options(options)).await?);
            store.attempt_paths(CONNECTION_LIMIT).await;
            let session = Session { store: store.clone(), connection: None };
            let mut all = vec![session; sessions];
            if let Some(first) = all.first_mut() {
                first.connection = Some(Connection::Iscsi(store));
            }
            Ok(all)
        }
    }
}

/// Returns the options of sessions over several paths. Requests wait for a path as long as the load waits for an answer.
fn multipath_options(options: &LoadOptions) -> SessionOptions {
    SessionOptions { reconnect_limit: Some(options.stall_limit), ..session_options(options) }
}

fn open_file(path: &Path, cache: CacheMode, read_only: bool) -> Result<FileStore, StoreError> {
    let block_size = BlockSize::B512;
    let mut file = FileOptions {
        path: path.to_owned(),
        size: None,
        block_size,
        cache,
        read_only,
        serial: None,
    };
    FileStore::open(&file).or_else(|error| {
        // The minimum block size of some devices, and of direct I/O on some file systems, is 4096 bytes.
        file.block_size = BlockSize::B4096;
        match error {
            StoreError::Unfit { .. } => FileStore::open(&file).map_err(|_| error),
            error => Err(error),
        }
    })
}

/// The store of a session.
#[derive(Clone)]
struct Session {
    store: Arc<dyn Store>,
    /// The same store, if the engine must disconnect it cleanly.
    connection: Option<Connection>,
}

#[derive(Clone)]
enum Connection {
    Nbd(Arc<NbdConnection>),
    Iscsi(Arc<IscsiStore>),
}

impl Connection {
    /// Returns the properties of an export that the server reported, or the paths to a unit.
    fn parameters(&self) -> BTreeMap<String, String> {
        match self {
            Self::Nbd(store) => {
                let export = store.export();
                let can = |flag| if export.has(flag) { "yes" } else { "no" }.to_owned();
                let facts = [
                    ("NBD minimum block", export.minimum_block.to_string()),
                    ("NBD maximum payload", export.maximum_payload.to_string()),
                    ("NBD flush", can(transmission::SEND_FLUSH)),
                    ("NBD FUA", can(transmission::SEND_FUA)),
                    ("NBD several connections", can(transmission::CAN_MULTI_CONN)),
                ];
                facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }
            Self::Iscsi(store) => {
                let (active, others): (Vec<_>, Vec<_>) =
                    store.paths().into_iter().partition(|path| path.is_active);
                let portals = |paths: Vec<PathStatus>| {
                    let all: Vec<_> = paths.into_iter().map(|path| path.portal).collect();
                    all.join(" ")
                };
                let facts = [("active paths", portals(active)), ("other paths", portals(others))];
                let facts = facts.into_iter().filter(|(_, portals)| !portals.is_empty());
                facts.map(|(name, portals)| (name.to_owned(), portals)).collect()
            }
        }
    }

    /// Disconnects, and waits for that up to `limit`.
    async fn leave(&self, limit: Duration) {
        match self {
            Self::Nbd(store) => store.disconnect(limit).await,
            Self::Iscsi(store) => {
                let _ = tokio::time::timeout(limit, store.logout()).await;
            }
        }
    }
}

/// A session with its work.
struct SessionLoad {
    session: Session,
    size: BlockSize,
    work: Work,
    open: u32,
}

/// An I/O that a store is executing.
struct Open {
    load: usize,
    io: Option<Io>,
    answer: PendingAnswer,
}

impl Future for Open {
    type Output = (usize, Io, Answered);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(answered) = self.answer.poll(context) else {
            return Poll::Pending;
        };
        let io = self.io.take();
        Poll::Ready((self.load, io.expect("an answer comes once"), answered))
    }
}

/// The result of starting I/Os.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IssueOutcome {
    /// At least one store responded at once: its session can start the next I/O without waiting.
    SomeCompleted,
    NoneCompleted,
}

/// A timer and its expiration time.
struct Alarm {
    at: Instant,
    timer: LocalFuture<()>,
}

impl Alarm {
    fn new(at: Instant) -> Self {
        Self { at, timer: Box::pin(sarsen_io::time::sleep_until(at)) }
    }
}

struct Engine<'a> {
    options: &'a LoadOptions,
    shared: Shared,
    loads: Vec<SessionLoad>,
    open: FuturesUnordered<Open>,
    tally: LoadCounters,
    /// The data of every write that is not verified.
    pattern: Buffer,
    /// Buffer for data that a store only lends.
    scratch: Buffer,
    alarm: Alarm,
}

impl<'a> Engine<'a> {
    async fn open(options: &'a LoadOptions, mut shared: Shared) -> Result<Self, LoadError> {
        let longest = shared.longest(options) as usize;
        let mut loads = Vec::new();
        for (session, index) in open(options, shared.feed.is_some()).await?.into_iter().zip(0..) {
            if let (Some(connection), 0) = (&session.connection, index) {
                shared.parameters = connection.parameters();
            }
            let geometry = session.store.geometry();
            let size = geometry.block_size;
            let capacity = (geometry.block_count, size.bytes() as u32);
            let work = Work::new(options, capacity, index, &mut shared)?;
            loads.push(SessionLoad { session, size, work, open: 0 });
        }
        let mut pattern = Buffer::for_overwrite(longest);
        fill_pattern(&mut pattern);
        let now = sarsen_io::time::now();
        Ok(Self {
            options,
            shared,
            loads,
            open: FuturesUnordered::new(),
            tally: LoadCounters::new(now)?,
            pattern,
            scratch: Buffer::for_overwrite(longest),
            alarm: Alarm::new(now + WAIT_LIMIT),
        })
    }

    async fn measure(&mut self) -> Result<LoadResult, LoadError> {
        let replays = self.shared.feed.is_some();
        if !replays {
            let end = sarsen_io::time::now() + self.options.warm_up;
            self.run_until(Some(end)).await?;
        }
        let meter = Meter::start(&self.options.target_pids)?;
        let begin = meter.begin();
        let duration = (!replays).then_some(self.options.duration);
        self.tally.start_measurement(begin, duration);
        self.run_until(duration.map(|duration| begin + duration)).await?;
        let end = sarsen_io::time::now();
        self.tally.end_measurement(end);
        let usage = meter.stop(end)?;
        let backlog = self.loads.iter().map(|load| load.work.backlog(end)).sum();
        if self.options.verify {
            self.read_back().await?;
        }
        Ok(result::result(self.options, &self.tally, &self.shared, usage, backlog))
    }

    /// Waits until no I/O is open, then reads all written blocks again.
    async fn read_back(&mut self) -> Result<(), LoadError> {
        for load in &mut self.loads {
            load.work.limit_to_reads_of(self.shared.left.clone());
        }
        self.run_until(None).await?;
        self.shared.begin_read_back();
        self.run_until(None).await
    }

    /// Runs the engine until `end`. Without `end`, it runs until the trace or the read-back has ended.
    async fn run_until(&mut self, end: Option<Instant>) -> Result<(), LoadError> {
        loop {
            let outcome = self.issue(end)?;
            let now = sarsen_io::time::now();
            self.tally.tick(now);
            let feed = self.shared.feed.as_ref();
            let is_over = match end {
                Some(end) => now >= end,
                None => {
                    let all_drawn = feed.is_none_or(|feed| feed.borrow().has_ended());
                    all_drawn && self.shared.left.borrow().is_empty() && self.open.is_empty()
                }
            };
            if self.open.is_empty() {
                // No response is pending.
                self.tally.last_answer = now;
            }
            if now.saturating_duration_since(self.tally.last_answer) > self.options.stall_limit {
                return Err(LoadError::Stalled(self.options.stall_limit));
            }
            if is_over {
                return Ok(());
            }
            if outcome == IssueOutcome::SomeCompleted && self.open.is_empty() {
                continue;
            }
            let limit = end.map_or(now + WAIT_LIMIT, |end| end.min(now + WAIT_LIMIT));
            let waits_until = match self.due().map(|due| due.min(limit)) {
                _ if outcome == IssueOutcome::SomeCompleted => None,
                Some(due) if due < now + TIMER_STEP => None,
                Some(due) => Some(due - TIMER_STEP / 2),
                None => Some(limit),
            };
            match waits_until {
                Some(until) => self.wait(now, until).await,
                None => {
                    tokio::task::yield_now().await;
                    poll_fn(|context| Poll::Ready(self.take_answers(context))).await;
                }
            }
        }
    }

    /// Returns the due time of the next I/O of all sessions with a free slot. `None` means that no start depends on
    /// time.
    fn due(&self) -> Option<Instant> {
        let depth = self.options.queue_depth();
        let free = self.loads.iter().filter(|load| load.open < depth);
        free.filter_map(|load| load.work.due()).min()
    }

    /// Starts as many I/Os as the queue depth permits. For a store that responds at once, the number per call is the
    /// queue depth.
    fn issue(&mut self, end: Option<Instant>) -> Result<IssueOutcome, LoadError> {
        let depth = self.options.queue_depth();
        let mut outcome = IssueOutcome::NoneCompleted;
        for index in 0..self.loads.len() {
            for _ in self.loads[index].open..depth {
                let now = sarsen_io::time::now();
                if end.is_some_and(|end| now >= end) {
                    return Ok(outcome);
                }
                let load = &mut self.loads[index];
                let Some(io) = load.work.next(now)? else { break };
                load.open += 1;
                match start(load, &io, &self.pattern) {
                    Started::Ended(answered) => {
                        outcome = IssueOutcome::SomeCompleted;
                        self.end(index, &io, answered, None);
                    }
                    Started::Pending(answer) => {
                        self.open.push(Open { load: index, io: Some(io), answer });
                    }
                }
            }
        }
        Ok(outcome)
    }

    /// Waits for a response, until `until` at the latest.
    async fn wait(&mut self, now: Instant, until: Instant) {
        if self.alarm.at <= now || self.alarm.at > until {
            self.alarm = Alarm::new(until);
        }
        poll_fn(|context| {
            if self.take_answers(context) || self.alarm.timer.as_mut().poll(context).is_ready() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Processes the responses that are available. Returns whether there were any.
    fn take_answers(&mut self, context: &mut Context<'_>) -> bool {
        let mut now = None;
        while let Poll::Ready(Some((load, io, answered))) = self.open.poll_next_unpin(context) {
            let now = *now.get_or_insert_with(sarsen_io::time::now);
            self.end(load, &io, answered, Some(now));
        }
        now.is_some()
    }

    /// Records the end of an I/O at the time `by`, or now.
    fn end(&mut self, load: usize, io: &Io, answered: Answered, by: Option<Instant>) {
        let load = &mut self.loads[load];
        load.open -= 1;
        let data = match answered {
            Ok(Some(data)) => {
                let whole = data.len() == io.bytes as usize;
                let data = if load.work.verifies() {
                    Some(data.into_buffer())
                } else {
                    if let Data::Shared { length, .. } = data {
                        data.copy_out(0, &mut self.scratch[..length.min(io.bytes as usize)]);
                    }
                    None
                };
                Ok((whole, data))
            }
            Ok(None) => Ok((true, None)),
            Err(error) => Err(error),
        };
        let now = by.unwrap_or_else(sarsen_io::time::now);
        self.tally.tick(now);
        self.tally.last_answer = now;
        let good = matches!(data, Ok((true, _)));
        match &data {
            Ok((true, _)) => {}
            Ok((false, _)) => self.tally.note_error(|| "an answer of another length".into()),
            Err(error) => self.tally.note_error(|| error.to_string()),
        }
        load.work.end(io, good, data.ok().and_then(|(_, data)| data).as_deref());
        if good {
            self.tally.note_io(now.saturating_duration_since(io.intended), io.reads, io.bytes);
        }
    }

    /// Completes the open I/Os and disconnects. Errors in this phase do not affect the results.
    async fn leave(&mut self) {
        let now = sarsen_io::time::now();
        let deadline = now + LEAVE_LIMIT;
        let mut now = now;
        while !self.open.is_empty() && now < deadline {
            self.wait(now, deadline).await;
            now = sarsen_io::time::now();
        }
        for load in &self.loads {
            if let Some(connection) = &load.session.connection {
                let left = deadline.saturating_duration_since(sarsen_io::time::now());
                connection.leave(left).await;
            }
        }
    }
}

/// The start of an I/O.
enum Started {
    Ended(Answered),
    Pending(PendingAnswer),
}

/// The pending reply to a read or a write.
enum PendingAnswer {
    Read(LocalFuture<Result<Data, BlockError>>),
    Write(LocalFuture<Result<(), BlockError>>),
}

impl PendingAnswer {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answered> {
        match self {
            Self::Read(read) => read.as_mut().poll(context).map(|data| data.map(Some)),
            Self::Write(written) => written.as_mut().poll(context).map(|done| done.map(|()| None)),
        }
    }
}

fn start(load: &SessionLoad, io: &Io, pattern: &Buffer) -> Started {
    let (store, extent) = (&load.session.store, Extent::new(io.lba, io.blocks.into()));
    debug_assert_eq!(extent.byte_count(load.size), u64::from(io.bytes));
    if io.reads {
        return match store.read(extent) {
            Answer::Ready(data) => Started::Ended(data.map(Some)),
            Answer::Pending(data) => Started::Pending(PendingAnswer::Read(data)),
        };
    }
    let mut data = Buffer::for_overwrite(io.bytes as usize);
    if load.work.verifies() {
        load.work.fill(io.lba, &mut data);
    } else {
        data.copy_from_slice(&pattern[..io.bytes as usize]);
    }
    match store.write(extent, data.into(), Durability::Volatile) {
        Answer::Ready(done) => Started::Ended(done.map(|()| None)),
        Answer::Pending(done) => Started::Pending(PendingAnswer::Write(done)),
    }
}

#[cfg(test)]
mod tests;
