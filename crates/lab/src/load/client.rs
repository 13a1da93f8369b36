//! One session of the load.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};
use sarsen_block::{Buffer, Piece};
use sarsen_proto::iscsi::initiator::{
    CommandRequest, Completion, Connection, DigestOffer, Event, LoginOptions, ReadLanding,
    Residual, SessionTarget, TaskAttribute, Token, Transfer,
};
use sarsen_proto::iscsi::output::Payload;
use sarsen_proto::iscsi::{DigestKind, Parameters};
use sarsen_wire::iscsi::Isid;
use sarsen_wire::scsi::cdb::{Block16, ServiceActionIn16};
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::report::Capacity16;
use zerocopy::transmute;

use super::ledger::Ledger;
use super::plan::{Io, Source, Unit};
use super::replay::{Feed, LENGTH_LIMIT};
use super::{LoadError, LoadOptions, Tally, system};

/// Pieces of one vectored send.
const PIECE_LIMIT: usize = 512;
/// The congestion control that costs least over a short path.
const CONGESTION: &str = "cubic";
/// How long a blocking call may take, so that the clock is looked at.
const BLOCKING_LIMIT: Duration = Duration::from_millis(100);
/// How long one answer of the login and its commands may take.
const PREPARATION_LIMIT: Duration = Duration::from_secs(15);
/// Unit attentions that a new session may be told.
const UNIT_ATTENTION_LIMIT: u32 = 16;

struct Slot {
    /// When it began, or should have begun.
    intended: Instant,
    reads: bool,
    bytes: u32,
}

/// What the sessions of one load have in common.
#[derive(Default)]
pub(super) struct Shared {
    /// What every write writes.
    pub(super) pattern: Option<Payload>,
    /// What was written, if it is to be verified.
    pub(super) ledger: Option<Rc<RefCell<Ledger>>>,
    /// The trace, if one is replayed.
    pub(super) feed: Option<Rc<RefCell<Feed>>>,
    /// What the first session negotiated.
    pub(super) parameters: BTreeMap<String, String>,
}

/// A session with its open I/Os.
pub(super) struct Client {
    socket: TcpStream,
    connection: Connection,
    lun: [u8; 8],
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// What every write writes.
    pattern: Payload,
    source: Source,
    ledger: Option<Rc<RefCell<Ledger>>>,
    /// The first block and number of blocks of each slot, where the ledger needs them.
    extents: Vec<(u64, u32)>,
    unit: Unit,
    /// The socket has no room; the rest of the output waits.
    blocked: bool,
    logout_sent: bool,
    logged_out: bool,
    /// Whether the engine waits for room.
    pub(super) watched_for_room: bool,
}

impl Client {
    /// Connects, logs in, takes the unit attentions and asks for the capacity.
    pub(super) fn log_in(
        options: &LoadOptions,
        address: SocketAddr,
        index: u32,
        shared: &mut Shared,
        scratch: &mut [u8],
    ) -> Result<Self, LoadError> {
        let io_error = |source| LoadError::System { what: "connect", source };
        let socket = TcpStream::connect_timeout(&address, PREPARATION_LIMIT).map_err(io_error)?;
        socket.set_nodelay(true).map_err(io_error)?;
        socket.set_read_timeout(Some(PREPARATION_LIMIT)).map_err(io_error)?;
        // A kernel may lack it, or reserve it for root: then it is as it is.
        let _ = sockopt::set_tcp_congestion(&socket, CONGESTION);
        let connection = Connection::new(login_options(options, index));
        let mut link = Preparation { socket, connection, scratch, lun: options.unit().lun_field() };
        link.wait(|event| matches!(event, Event::LoggedIn).then_some(()))?;
        let (blocks, block_length) = link.prepare()?;
        let Preparation { socket, connection, lun, .. } = link;
        socket.set_read_timeout(Some(BLOCKING_LIMIT)).map_err(io_error)?;
        if index == 0 {
            shared.parameters = negotiated(connection.parameters());
        }

        let unit = Unit::new(options, blocks, block_length);
        for block_bytes in options.block_sizes() {
            unit.check(block_bytes)?;
        }
        if options.verify && shared.ledger.is_none() {
            let ledger = Ledger::new(sarsen_io::random::number(), block_length).ok_or(
                LoadError::Options("the unit's blocks cannot hold what verification needs"),
            )?;
            shared.ledger = Some(Rc::new(RefCell::new(ledger)));
        }
        let (source, longest) = match &shared.feed {
            Some(feed) => (Source::Replay(feed.clone()), LENGTH_LIMIT),
            None => (Source::new(options, unit, index), options.longest()),
        };
        let pattern = shared.pattern.get_or_insert_with(|| {
            let mut buffer = Buffer::zeroed(longest as usize);
            buffer.iter_mut().zip(0usize..).for_each(|(byte, at)| *byte = (at * 7) as u8);
            connection.payload(buffer)
        });
        let pattern = pattern.clone();
        let depth = options.queue_depth();
        let now = sarsen_io::time::now();
        Ok(Self {
            socket,
            connection,
            lun,
            slots: (0..depth).map(|_| Slot { intended: now, reads: false, bytes: 0 }).collect(),
            free: (0..depth).rev().collect(),
            pattern,
            source,
            ledger: shared.ledger.clone(),
            extents: vec![(0, 0); depth as usize],
            unit,
            blocked: false,
            logout_sent: false,
            logged_out: false,
            watched_for_room: false,
        })
    }

    /// Whether I/Os may begin at another time than when one has ended.
    pub(super) fn is_timed(&self) -> bool {
        self.ledger.is_some() || matches!(self.source, Source::Replay(_)) || self.due().is_some()
    }

    /// When the next I/O is to begin, if there is room for it; `None` is not by time.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.source {
            _ if self.free.is_empty() => None,
            Source::Plain(_) => None,
            Source::Mixed(mixed) => mixed.due(),
            Source::Replay(feed) => feed.borrow().due(),
        }
    }

    /// I/Os that should have begun and have not.
    pub(super) fn backlog(&self, now: Instant) -> u64 {
        match &self.source {
            Source::Mixed(mixed) => mixed.backlog(now),
            Source::Plain(_) | Source::Replay(_) => 0,
        }
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    pub(super) const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// No more I/Os: the open ones end, then comes the logout.
    pub(super) fn stop(&mut self) {
        self.log_out_when_idle();
    }

    pub(super) const fn has_left(&self) -> bool {
        self.logged_out
    }

    fn log_out_when_idle(&mut self) {
        if !self.logout_sent && self.free.len() == self.slots.len() {
            self.logout_sent = true;
            self.connection.logout();
        }
    }

    /// Receives once, with or without waiting for something, and takes what came. Gives the time
    /// at which it came.
    pub(super) fn receive(
        &mut self,
        scratch: &mut [u8],
        wait: bool,
        tally: &mut Tally,
    ) -> Result<Instant, LoadError> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let result = recv(&self.socket, &mut *scratch, flags);
        let now = sarsen_io::time::now();
        tally.tick(now);
        match result {
            Ok((0, _)) if self.logout_sent => {
                self.logged_out = true;
                return Ok(now);
            }
            Ok((0, _)) => return Err(LoadError::Closed),
            Ok((count, _)) => self.connection.handle_input(&scratch[..count])?,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(now),
            Err(error) => return Err(system("receive")(error)),
        }
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Completed(completion) => self.note(&completion, now, tally),
                Event::LoggedOut { .. } => self.logged_out = true,
                Event::Rejected { reason, .. } => {
                    return Err(LoadError::Rejected(format!("{reason:?}")));
                }
                Event::AsyncMessage { .. } => {}
                other => tally.note_error(|| format!("unexpected: {other:?}")),
            }
        }
        Ok(now)
    }

    fn note(&mut self, completion: &Completion, now: Instant, tally: &mut Tally) {
        let index = completion.token.0 as u32;
        self.free.push(index);
        tally.last_answer = now;
        let slot = &self.slots[index as usize];
        if let Some(ledger) = &self.ledger {
            let extent = self.extents[index as usize];
            verify(&mut ledger.borrow_mut(), slot, extent, completion);
        }
        if !completion.is_good() {
            tally.note_error(|| {
                format!(
                    "status {:02X}h, response {:02X}h, sense {:02X?}",
                    completion.status, completion.response, completion.sense
                )
            });
        } else if slot.reads && completion.received != slot.bytes
            || completion.residual != Residual::None
        {
            tally.note_error(|| {
                format!(
                    "{} of {} bytes came ({:?})",
                    completion.received, slot.bytes, completion.residual
                )
            });
        }
        tally.note_io(now.saturating_duration_since(slot.intended), slot.reads, slot.bytes);
    }

    /// Issues as many I/Os as there is room for, and sends.
    pub(super) fn issue_and_send(&mut self, tally: &Tally) -> Result<(), LoadError> {
        if tally.leaving {
            self.log_out_when_idle();
        } else if !self.free.is_empty() {
            self.issue()?;
        }
        self.send()
    }

    fn issue(&mut self) -> Result<(), LoadError> {
        let now = sarsen_io::time::now();
        while self.connection.window() > 0
            && let Some(index) = self.free.pop()
        {
            let io = if let Source::Plain(plan) = &mut self.source {
                plan.next(now)
            } else if let Some(io) = self.next(now)? {
                self.extents[index as usize] = (io.lba, io.blocks);
                io
            } else {
                self.free.push(index);
                return Ok(());
            };
            let Io { reads, lba, blocks, bytes: length, intended } = io;
            let transfer = if reads {
                let verifies = self.ledger.is_some();
                let landing = if verifies { ReadLanding::Buffer } else { ReadLanding::Discard };
                Transfer::Read { length, landing }
            } else {
                Transfer::Write { payload: self.payload(lba, length), length }
            };
            let cdb: [u8; 16] = transmute!(Block16 {
                operation_code: if reads { opcode::READ_16 } else { opcode::WRITE_16 },
                flags: 0,
                lba: lba.into(),
                block_count: blocks.into(),
                group: 0,
                control: 0,
            });
            let attribute = TaskAttribute::Simple;
            let request = CommandRequest { lun: self.lun, cdb, attribute, transfer };
            self.slots[index as usize] = Slot { intended, reads, bytes: length };
            let sent = self.connection.command(request, Token(index.into())).is_ok();
            assert!(sent, "the window was open");
        }
        Ok(())
    }

    #[inline(never)]
    fn next(&mut self, now: Instant) -> Result<Option<Io>, LoadError> {
        match (&mut self.source, &self.ledger) {
            (Source::Plain(plan), _) => Ok(Some(plan.next(now))),
            (Source::Mixed(mixed), None) => Ok(mixed.next(now, |_| true)),
            (Source::Mixed(mixed), Some(ledger)) => {
                Ok(mixed.next(now, |io| ledger.borrow_mut().admit(io.lba, io.blocks, io.reads)))
            }
            (Source::Replay(feed), _) => feed.borrow_mut().next(now, self.unit),
        }
    }

    /// The data of a write.
    fn payload(&self, lba: u64, length: u32) -> Payload {
        match &self.ledger {
            None => self.pattern.clone(),
            Some(ledger) => {
                let mut buffer = Buffer::for_overwrite(length as usize);
                ledger.borrow().fill(lba, &mut buffer);
                self.connection.payload(buffer)
            }
        }
    }

    fn send(&mut self) -> Result<(), LoadError> {
        self.blocked = !send_output(&self.socket, &mut self.connection, SendFlags::DONTWAIT)?;
        Ok(())
    }
}

/// Tells the ledger what has ended.
fn verify(ledger: &mut Ledger, slot: &Slot, (lba, blocks): (u64, u32), completion: &Completion) {
    let good = completion.is_good();
    if slot.reads {
        let whole = good && completion.received == slot.bytes;
        let data = completion.data.as_deref().filter(|_| whole);
        ledger.end_read(lba, blocks, data);
    } else {
        ledger.end_write(lba, blocks, good);
    }
}

/// Sends what is ready. False if the socket took less.
fn send_output(
    socket: &TcpStream,
    connection: &mut Connection,
    flags: SendFlags,
) -> Result<bool, LoadError> {
    let output = connection.output();
    while !output.is_empty() {
        let mut pieces = Vec::new();
        output.pieces(&mut pieces, PIECE_LIMIT);
        let slices: Vec<IoSlice<'_>> = pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Bytes(bytes) => Some(IoSlice::new(bytes)),
                // Nothing that is written here is a store's memory.
                Piece::Shared { .. } => None,
            })
            .collect();
        let mut control = SendAncillaryBuffer::default();
        let flags = flags | SendFlags::NOSIGNAL;
        let result = sendmsg(socket, &slices, &mut control, flags);
        drop((slices, pieces));
        match result {
            Ok(count) => output.sent(count),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(system("send")(error)),
        }
    }
    Ok(true)
}

fn login_options(options: &LoadOptions, index: u32) -> LoginOptions {
    let mut isid = [0; 6];
    sarsen_io::random::fill(&mut isid);
    isid[0] = 0x80;
    let digest = |wanted| if wanted { DigestOffer::Require } else { DigestOffer::None };
    LoginOptions {
        initiator_name: format!("iqn.2026-01.invalid.example:sarsen.load.{index}"),
        target: SessionTarget::Named(options.unit().target.clone()),
        isid: Isid(isid),
        header_digest: digest(options.header_digest),
        data_digest: digest(options.data_digest),
        initial_r2t: options.initial_r2t,
        immediate_data: options.immediate_data,
        max_burst_length: options.max_burst_length,
        first_burst_length: options.first_burst_length,
        max_recv_data_segment_length: options.max_recv_data_segment_length,
        max_outstanding_r2t: 1,
    }
}

/// What a login led to, by the names of the keys (RFC 7143 §13).
fn negotiated(parameters: &Parameters) -> BTreeMap<String, String> {
    let digest = |kind| match kind {
        DigestKind::None => "None".to_owned(),
        DigestKind::Crc32c => "CRC32C".to_owned(),
    };
    let boolean = |yes: bool| if yes { "Yes" } else { "No" }.to_owned();
    let number = |number: u32| number.to_string();
    let Parameters {
        local_max_recv_data_segment_length: ours,
        peer_max_recv_data_segment_length: theirs,
        ..
    } = *parameters;
    let keys = [
        ("HeaderDigest", digest(parameters.header_digest)),
        ("DataDigest", digest(parameters.data_digest)),
        ("MaxRecvDataSegmentLength of the initiator", number(ours)),
        ("MaxRecvDataSegmentLength of the target", number(theirs)),
        ("MaxBurstLength", number(parameters.max_burst_length)),
        ("FirstBurstLength", number(parameters.first_burst_length)),
        ("InitialR2T", boolean(parameters.initial_r2t)),
        ("ImmediateData", boolean(parameters.immediate_data)),
        ("MaxOutstandingR2T", number(parameters.max_outstanding_r2t)),
        ("ErrorRecoveryLevel", number(parameters.error_recovery_level)),
    ];
    keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A session before the load, one exchange at a time.
struct Preparation<'a> {
    socket: TcpStream,
    connection: Connection,
    scratch: &'a mut [u8],
    lun: [u8; 8],
}

impl Preparation<'_> {
    /// Sends and receives until `wanted` takes an event.
    fn wait<T>(&mut self, mut wanted: impl FnMut(Event) -> Option<T>) -> Result<T, LoadError> {
        loop {
            send_output(&self.socket, &mut self.connection, SendFlags::empty())?;
            match recv(&self.socket, &mut *self.scratch, RecvFlags::empty()) {
                Ok((0, _)) => return Err(LoadError::Closed),
                Ok((count, _)) => self.connection.handle_input(&self.scratch[..count])?,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(LoadError::Stalled(PREPARATION_LIMIT)),
                Err(error) => return Err(system("receive")(error)),
            }
            while let Some(event) = self.connection.poll_event() {
                if let Some(found) = wanted(event) {
                    return Ok(found);
                }
            }
        }
    }

    fn command(&mut self, cdb: [u8; 16], length: u32) -> Result<Completion, LoadError> {
        let transfer = match length {
            0 => Transfer::None,
            length => Transfer::Read { length, landing: ReadLanding::Buffer },
        };
        let request =
            CommandRequest { lun: self.lun, cdb, attribute: TaskAttribute::Simple, transfer };
        if self.connection.command(request, Token(0)).is_err() {
            return Err(LoadError::Options("the target opens no command window"));
        }
        self.wait(|event| match event {
            Event::Completed(completion) => Some(completion),
            _ => None,
        })
    }

    /// The unit's number of blocks and their length.
    fn prepare(&mut self) -> Result<(u64, u32), LoadError> {
        for _ in 0..UNIT_ATTENTION_LIMIT {
            if self.command([opcode::TEST_UNIT_READY; 16], 0)?.is_good() {
                break;
            }
        }
        let length = size_of::<Capacity16>() as u32;
        let cdb = transmute!(ServiceActionIn16 {
            operation_code: opcode::SERVICE_ACTION_IN_16,
            service_action: opcode::SA_READ_CAPACITY_16,
            lba: 0.into(),
            allocation_length: length.into(),
            flags: 0,
            control: 0,
        });
        let completion = self.command(cdb, length)?;
        let mut capacity = [0; size_of::<Capacity16>()];
        if let (true, Some(data)) = (completion.is_good(), &completion.data)
            && data.len() >= 12
        {
            let length = data.len().min(capacity.len());
            capacity[..length].copy_from_slice(&data[..length]);
        } else {
            let status = completion.status;
            return Err(LoadError::Preparation { command: "READ CAPACITY(16)", status });
        }
        let capacity: Capacity16 = transmute!(capacity);
        Ok((capacity.last_lba.get().saturating_add(1), capacity.block_length.get()))
    }
}
