//! One session of the load.

use std::io::IoSlice;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};
use sarsen_block::{Buffer, Piece};
use sarsen_proto::iscsi::initiator::{
    CommandRequest, Completion, Connection, DigestOffer, Event, LoginOptions, ReadLanding,
    Residual, SessionTarget, TaskAttribute, Token, Transfer,
};
use sarsen_proto::iscsi::output::Payload;
use sarsen_wire::iscsi::Isid;
use sarsen_wire::scsi::cdb::{Block16, ServiceActionIn16};
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::report::Capacity16;
use zerocopy::transmute;

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
    issued: Instant,
    reads: bool,
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
    plan: Plan,
    /// The socket has no room; the rest of the output waits.
    blocked: bool,
    logout_sent: bool,
    logged_out: bool,
    /// Whether the engine waits for room.
    pub(super) watched_for_room: bool,
}

/// Where I/Os go and what they do.
struct Plan {
    read_percent: u32,
    random_percent: u32,
    block_bytes: u32,
    /// Logical blocks of an I/O.
    blocks: u32,
    /// I/Os that the unit has room for, side by side.
    units: u64,
    next_unit: u64,
    random: u64,
}

impl Plan {
    /// xorshift64: a few cycles, and random enough to spread I/Os.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn chance(&mut self, percent: u32) -> bool {
        match percent {
            0 => false,
            100 => true,
            _ => ((self.random() >> 32) * 100) >> 32 < u64::from(percent),
        }
    }

    /// The next I/O: whether it reads, and its first block.
    fn next(&mut self) -> (bool, u64) {
        let reads = self.chance(self.read_percent);
        let unit = if self.chance(self.random_percent) {
            // The high half of the product: even, without a division.
            ((u128::from(self.random()) * u128::from(self.units)) >> 64) as u64
        } else {
            self.next_unit
        };
        self.next_unit = if unit + 1 == self.units { 0 } else { unit + 1 };
        (reads, unit * u64::from(self.blocks))
    }
}

impl Client {
    /// Connects, logs in, takes the unit attentions and asks for the capacity.
    pub(super) fn log_in(
        options: &LoadOptions,
        address: SocketAddr,
        index: u32,
        pattern: Option<Payload>,
        scratch: &mut [u8],
    ) -> Result<Self, LoadError> {
        let io_error = |source| LoadError::System { what: "connect", source };
        let socket = TcpStream::connect_timeout(&address, PREPARATION_LIMIT).map_err(io_error)?;
        socket.set_nodelay(true).map_err(io_error)?;
        socket.set_read_timeout(Some(PREPARATION_LIMIT)).map_err(io_error)?;
        // A kernel may lack it, or reserve it for root: then it is as it is.
        let _ = sockopt::set_tcp_congestion(&socket, CONGESTION);
        let connection = Connection::new(login_options(options, index));
        let mut link = Preparation { socket, connection, scratch, lun: options.url.lun_field() };
        link.wait(|event| matches!(event, Event::LoggedIn).then_some(()))?;
        let (blocks, block_length) = link.prepare()?;
        let Preparation { socket, connection, lun, .. } = link;
        socket.set_read_timeout(Some(BLOCKING_LIMIT)).map_err(io_error)?;

        let block_bytes = options.access.block_bytes;
        let per_io = u64::from(block_bytes / block_length.max(1));
        let units = blocks.checked_div(per_io).unwrap_or(0);
        if units == 0 || !block_bytes.is_multiple_of(block_length) {
            return Err(LoadError::Unit { block_bytes, blocks, block_length });
        }
        let seed = options.seed.wrapping_add(u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let plan = Plan {
            read_percent: options.access.read_percent.into(),
            random_percent: options.access.random_percent.into(),
            block_bytes,
            blocks: per_io as u32,
            units,
            next_unit: units / u64::from(options.sessions) * u64::from(index),
            random: seed | 1,
        };
        let pattern = pattern.unwrap_or_else(|| {
            let mut buffer = Buffer::zeroed(block_bytes as usize);
            buffer.iter_mut().zip(0usize..).for_each(|(byte, at)| *byte = (at * 7) as u8);
            connection.payload(buffer)
        });
        let depth = options.access.queue_depth;
        let now = sarsen_io::time::now();
        Ok(Self {
            socket,
            connection,
            lun,
            slots: (0..depth).map(|_| Slot { issued: now, reads: false }).collect(),
            free: (0..depth).rev().collect(),
            pattern,
            plan,
            blocked: false,
            logout_sent: false,
            logged_out: false,
            watched_for_room: false,
        })
    }

    /// What every write writes, for the next session to share.
    pub(super) fn pattern(&self) -> Payload {
        self.pattern.clone()
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
        if !completion.is_good() {
            tally.note_error(|| {
                format!(
                    "status {:02X}h, response {:02X}h, sense {:02X?}",
                    completion.status, completion.response, completion.sense
                )
            });
        } else if slot.reads && completion.received != self.plan.block_bytes
            || completion.residual != Residual::None
        {
            tally.note_error(|| {
                format!(
                    "{} of {} bytes came ({:?})",
                    completion.received, self.plan.block_bytes, completion.residual
                )
            });
        }
        tally.note_io(now.duration_since(slot.issued));
    }

    /// Issues as many I/Os as there is room for, and sends.
    pub(super) fn issue_and_send(&mut self, tally: &Tally) -> Result<(), LoadError> {
        if tally.leaving {
            self.log_out_when_idle();
        } else if !self.free.is_empty() {
            self.issue();
        }
        self.send()
    }

    fn issue(&mut self) {
        let now = sarsen_io::time::now();
        while self.connection.window() > 0
            && let Some(index) = self.free.pop()
        {
            let (reads, lba) = self.plan.next();
            let length = self.plan.block_bytes;
            let transfer = if reads {
                Transfer::Read { length, landing: ReadLanding::Discard }
            } else {
                Transfer::Write { payload: self.pattern.clone(), length }
            };
            let cdb: [u8; 16] = transmute!(Block16 {
                operation_code: if reads { opcode::READ_16 } else { opcode::WRITE_16 },
                flags: 0,
                lba: lba.into(),
                block_count: self.plan.blocks.into(),
                group: 0,
                control: 0,
            });
            let attribute = TaskAttribute::Simple;
            let request = CommandRequest { lun: self.lun, cdb, attribute, transfer };
            self.slots[index as usize] = Slot { issued: now, reads };
            if self.connection.command(request, Token(index.into())).is_err() {
                self.free.push(index);
                return;
            }
        }
    }

    fn send(&mut self) -> Result<(), LoadError> {
        self.blocked = !send_output(&self.socket, &mut self.connection, SendFlags::DONTWAIT)?;
        Ok(())
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
        target: SessionTarget::Named(options.url.target.clone()),
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
