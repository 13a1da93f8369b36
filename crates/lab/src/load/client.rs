//! One session of the load.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use sarsen_block::Buffer;
use sarsen_initiator::{Sense, SenseKey, SessionOptions, Url};
use sarsen_proto::iscsi::chap::Algorithm;
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

use super::plan::{Io, ReadBack};
use super::socket::{SendProgress, Socket};
use super::tally::LoadCounters;
use super::work::{Shared, Work, fill_pattern};
use super::{LoadError, LoadOptions};

/// Maximum duration of a blocking call, after which the engine reads the clock.
const BLOCKING_LIMIT: Duration = Duration::from_millis(100);
/// Maximum time to wait for one response of the login or of the preparing commands.
const PREPARATION_LIMIT: Duration = Duration::from_secs(15);
/// CHAP algorithms without the numbers that targets interpret differently: tgt uses 7, SHA-256, for SHA1.
const ALGORITHMS: &[Algorithm] = &[Algorithm::Sha3, Algorithm::Md5];
/// Maximum number of unit attentions that a session receives before one of its commands ends with GOOD.
const UNIT_ATTENTION_LIMIT: u32 = 16;
/// The additional sense code of "not ready to ready change, medium may have changed" (SPC-4 annex D).
const MEDIUM_MAY_HAVE_CHANGED: u8 = 0x28;

/// The destination of a session and its index.
pub(super) struct SessionPlacement<'a> {
    pub(super) url: &'a Url,
    pub(super) address: SocketAddr,
    pub(super) index: u32,
}

/// An iSCSI session with its open I/Os.
pub(super) struct Client {
    socket: Socket,
    connection: Connection,
    lun: [u8; 8],
    slots: Vec<Io>,
    free: Vec<u32>,
    /// Slots of I/Os that ended with a unit attention and that are sent again.
    again: Vec<u32>,
    /// Number of unit attentions since the last successful I/O.
    attentions: u32,
    /// The data of every write that is not verified.
    pattern: Payload,
    work: Work,
    /// Whether the send buffer of the socket is full and output is pending.
    blocked: bool,
    logout_sent: bool,
    logged_out: bool,
    /// Whether the engine waits until the socket is writable.
    pub(super) watched_for_room: bool,
}

impl Client {
    /// Connects, logs in, consumes the pending unit attentions and reads the capacity. The first session creates the
    /// pattern for all sessions.
    pub(super) fn log_in(
        options: &LoadOptions,
        place: SessionPlacement<'_>,
        shared: &mut Shared,
        pattern: &mut Option<Payload>,
        scratch: &mut [u8],
    ) -> Result<Self, LoadError> {
        let SessionPlacement { url, address, index } = place;
        let socket = Socket::connect(url.portal(), address, PREPARATION_LIMIT)?;
        let connection = Connection::new(login_options(options, url, index)?);
        let mut link = Preparation { socket, connection, scratch, lun: url.lun_field() };
        link.wait(|event| matches!(event, Event::LoggedIn).then_some(()))?;
        let capacity = link.prepare()?;
        let Preparation { socket, connection, lun, .. } = link;
        socket.set_read_timeout(BLOCKING_LIMIT)?;
        if index == 0 {
            shared.parameters = negotiated(connection.parameters());
        }

        let work = Work::new(options, capacity, index, shared)?;
        let pattern = pattern.get_or_insert_with(|| {
            let mut buffer = Buffer::zeroed(shared.longest(options) as usize);
            fill_pattern(&mut buffer);
            connection.payload(buffer)
        });
        let pattern = pattern.clone();
        let depth = options.queue_depth();
        let intended = sarsen_io::time::now();
        let none = Io { reads: false, lba: 0, blocks: 0, bytes: 0, intended };
        Ok(Self {
            socket,
            connection,
            lun,
            slots: vec![none; depth as usize],
            free: (0..depth).rev().collect(),
            again: Vec::new(),
            attentions: 0,
            pattern,
            work,
            blocked: false,
            logout_sent: false,
            logged_out: false,
            watched_for_room: false,
        })
    }

    /// Whether an I/O may start at another time than the end of the previous one.
    pub(super) fn is_timed(&self) -> bool {
        self.work.is_timed()
    }

    /// Returns the start time of the next I/O if a slot is free. `None` means that its start does not depend on time.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.free.is_empty() { None } else { self.work.due() }
    }

    /// Returns the number of I/Os that are due and have not started.
    pub(super) fn backlog(&self, now: Instant) -> u64 {
        self.work.backlog(now)
    }

    /// Limits the session to reads of these blocks from now on.
    pub(super) fn limit_to_reads_of(&mut self, left: ReadBack) {
        self.work.limit_to_reads_of(left);
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    pub(super) const fn socket(&self) -> &TcpStream {
        self.socket.tcp()
    }

    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Logs out when no I/O is open.
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

    /// Receives once, waiting for data if `wait` is set, and processes the data. Returns the time of receipt.
    pub(super) fn receive(
        &mut self,
        scratch: &mut [u8],
        wait: bool,
        tally: &mut LoadCounters,
    ) -> Result<Instant, LoadError> {
        let mut now = self.receive_once(scratch, wait, tally)?;
        while self.socket.keeps_more() && !self.logged_out {
            now = self.receive_once(scratch, false, tally)?;
        }
        Ok(now)
    }

    fn receive_once(
        &mut self,
        scratch: &mut [u8],
        wait: bool,
        tally: &mut LoadCounters,
    ) -> Result<Instant, LoadError> {
        let result = self.socket.receive(scratch, wait);
        let now = sarsen_io::time::now();
        tally.tick(now);
        match result? {
            Some(0) if self.logout_sent => {
                self.logged_out = true;
                return Ok(now);
            }
            Some(0) => return Err(LoadError::Closed),
            Some(count) => self.connection.handle_input(&scratch[..count])?,
            None => return Ok(now),
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

    fn note(&mut self, completion: &Completion, now: Instant, tally: &mut LoadCounters) {
        let index = completion.token.0 as u32;
        tally.last_answer = now;
        if !completion.is_good() && self.sends_again(completion, tally) {
            self.again.push(index);
            return;
        }
        self.free.push(index);
        let slot = &self.slots[index as usize];
        if self.work.verifies() {
            let whole = !slot.reads || completion.received == slot.bytes;
            let data = completion.data.as_deref();
            self.work.end(slot, completion.is_good() && whole, data);
        }
        if !completion.is_good() {
            tally.note_error(|| match Sense::parse(&completion.sense) {
                Some(sense) => sense.to_string(),
                None => {
                    let Completion { status, response, .. } = completion;
                    format!("status {status:02X}h, response {response:02X}h and no sense data")
                }
            });
        } else if slot.reads && completion.received != slot.bytes
            || completion.residual != Residual::None
        {
            tally.note_error(|| {
                format!(
                    "received {} of {} bytes ({:?})",
                    completion.received, slot.bytes, completion.residual
                )
            });
        } else {
            self.attentions = 0;
            tally.note_io(now.saturating_duration_since(slot.intended), slot.reads, slot.bytes);
        }
    }

    /// Whether the response is only a unit attention, which the unit reports before it executes commands (SAM-5 5.14).
    #[cold]
    fn sends_again(&mut self, completion: &Completion, tally: &LoadCounters) -> bool {
        let attention = Sense::of(completion).filter(|sense| sense.key == SenseKey::UnitAttention);
        self.attentions += u32::from(attention.is_some());
        !tally.leaving
            && self.attentions <= UNIT_ATTENTION_LIMIT * self.slots.len() as u32
            && attention.is_some_and(|sense| sense.asc != MEDIUM_MAY_HAVE_CHANGED)
    }

    /// Issues as many I/Os as the free slots and the command window permit, and sends them.
    pub(super) fn issue_and_send(&mut self, tally: &LoadCounters) -> Result<(), LoadError> {
        if tally.leaving {
            self.free.append(&mut self.again);
            self.log_out_when_idle();
        } else if !(self.free.is_empty() && self.again.is_empty()) {
            self.issue()?;
        }
        self.send()
    }

    fn issue(&mut self) -> Result<(), LoadError> {
        let now = sarsen_io::time::now();
        while self.connection.window() > 0
            && let Some(index) = self.again.pop()
        {
            self.begin(index);
        }
        while self.connection.window() > 0
            && let Some(index) = self.free.pop()
        {
            let Some(io) = self.work.next(now)? else {
                self.free.push(index);
                return Ok(());
            };
            self.slots[index as usize] = io;
            self.begin(index);
        }
        Ok(())
    }

    /// Sends a slot's I/O.
    fn begin(&mut self, index: u32) {
        let io = self.slots[index as usize];
        let length = io.bytes;
        let transfer = if io.reads {
            let verifies = self.work.verifies();
            let landing = if verifies { ReadLanding::Buffer } else { ReadLanding::Discard };
            Transfer::Read { length, landing }
        } else {
            Transfer::Write { payload: self.payload(&io), length }
        };
        let cdb: [u8; 16] = transmute!(Block16 {
            operation_code: if io.reads { opcode::READ_16 } else { opcode::WRITE_16 },
            flags: 0,
            lba: io.lba.into(),
            block_count: io.blocks.into(),
            group: 0,
            control: 0,
        });
        let attribute = TaskAttribute::Simple;
        let request = CommandRequest { lun: self.lun, cdb, attribute, transfer };
        let sent = self.connection.command(request, Token(index.into())).is_ok();
        assert!(sent, "the window was open");
    }

    /// Returns the data of a write.
    fn payload(&self, io: &Io) -> Payload {
        if !self.work.verifies() {
            return self.pattern.clone();
        }
        let mut buffer = Buffer::for_overwrite(io.bytes as usize);
        self.work.fill(io.lba, &mut buffer);
        self.connection.payload(buffer)
    }

    fn send(&mut self) -> Result<(), LoadError> {
        let sent = self.socket.send(&mut self.connection, SendFlags::DONTWAIT)?;
        self.blocked = sent == SendProgress::Partial;
        Ok(())
    }
}

fn login_options(options: &LoadOptions, url: &Url, index: u32) -> Result<LoginOptions, LoadError> {
    let identity = url.chap.identity()?;
    let mut isid = [0; 6];
    sarsen_io::random::fill(&mut isid);
    isid[0] = 0x80;
    Ok(LoginOptions {
        initiator_name: format!("iqn.2026-01.invalid.example:sarsen.load.{index}"),
        target: SessionTarget::Named(url.target.clone()),
        isid: Isid(isid),
        authentication: identity.map(|identity| identity.authentication(ALGORITHMS)),
        header_digest: digest_offer(options.header_digest),
        data_digest: digest_offer(options.data_digest),
        initial_r2t: options.initial_r2t,
        immediate_data: options.immediate_data,
        max_burst_length: options.max_burst_length,
        first_burst_length: options.first_burst_length,
        max_recv_data_segment_length: options.max_recv_data_segment_length,
        max_outstanding_r2t: 1,
        max_connections: 1,
        error_recovery_level: 0,
    })
}

/// Returns the options of sessions of the initiator, with the digests of the load.
pub(super) fn session_options(options: &LoadOptions) -> SessionOptions {
    SessionOptions {
        header_digest: digest_offer(options.header_digest),
        data_digest: digest_offer(options.data_digest),
        ..SessionOptions::default()
    }
}

const fn digest_offer(is_required: bool) -> DigestOffer {
    if is_required { DigestOffer::Require } else { DigestOffer::None }
}

/// Returns the negotiated values by the names of their keys (RFC 7143 §13).
fn negotiated(parameters: &Parameters) -> BTreeMap<String, String> {
    let boolean = |yes: bool| if yes { "Yes" } else { "No" }.to_owned();
    let number = |number: u32| number.to_string();
    let Parameters {
        local_max_recv_data_segment_length: ours,
        peer_max_recv_data_segment_length: theirs,
        ..
    } = *parameters;
    let keys = [
        ("HeaderDigest", digest_value(parameters.header_digest)),
        ("DataDigest", digest_value(parameters.data_digest)),
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

/// Returns the value of the keys `HeaderDigest` and `DataDigest` (RFC 7143 §13.1).
fn digest_value(kind: DigestKind) -> String {
    match kind {
        DigestKind::None => "None".to_owned(),
        DigestKind::Crc32c => "CRC32C".to_owned(),
    }
}

/// A session before the load starts; it has a maximum of one open exchange.
struct Preparation<'a> {
    socket: Socket,
    connection: Connection,
    scratch: &'a mut [u8],
    lun: [u8; 8],
}

impl Preparation<'_> {
    /// Sends and receives until `wanted` returns a value for an event.
    fn wait<T>(&mut self, mut wanted: impl FnMut(Event) -> Option<T>) -> Result<T, LoadError> {
        loop {
            self.socket.send(&mut self.connection, SendFlags::empty())?;
            match self.socket.receive(self.scratch, true)? {
                Some(0) => return Err(LoadError::Closed),
                Some(count) => self.connection.handle_input(&self.scratch[..count])?,
                None => return Err(LoadError::Stalled(PREPARATION_LIMIT)),
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

    /// Returns the unit's number of blocks and the block length.
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
