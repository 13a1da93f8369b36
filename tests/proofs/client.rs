//! Shared parts of the proofs with the project's own initiator: sessions on the calling thread, and PDUs built by hand
//! that a correct initiator would not send.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sarsen_initiator::{Sense, SessionOptions, Unit};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_proof::Serving;
use sarsen_proof::serving::Url;
use sarsen_proto::iscsi::{Frame, Framer, Landing};
use sarsen_wire::iscsi::pdu::IMMEDIATE;
use sarsen_wire::iscsi::{
    AsyncEvent, AsyncMessage, BasicHeader, DataIn, Isid, LoginRequest, LoginResponse, LoginStatus,
    LogoutRequest, NopOut, Opcode, RawHeader, ScsiCommand, ScsiResponse, TaskManagementFunction,
    TaskManagementRequest, TaskManagementResponse, TaskManagementResponsePdu, U24, ahs,
};

/// Maximum duration of any wait, if everything works.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Maximum data segment that [`Wire`] accepts.
const SEGMENT_LENGTH: u32 = 256 * 1024;

/// Runs sessions on this thread.
pub(crate) fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    block_on(FileEngine::Pool, future)?
}

/// Returns a volume's URL in the initiator's format.
pub(crate) fn url(serving: &Serving, volume: &str) -> Result<sarsen_initiator::Url> {
    Ok(serving.url(volume).to_string().parse()?)
}

/// Opens a session with a volume.
pub(crate) async fn unit(serving: &Serving, volume: &str) -> Result<Unit> {
    let unit = Unit::connect(&url(serving, volume)?, &SessionOptions::default()).await;
    unit.with_context(|| serving.log())
}

/// Sends the server a signal and does not wait.
pub(crate) fn signal(serving: &Serving, signal: Signal) -> Result<()> {
    let pid = i32::try_from(serving.pid()).ok().and_then(Pid::from_raw);
    Ok(kill_process(pid.context("a process id")?, signal)?)
}

/// A PDU from the target.
#[derive(Debug)]
pub(crate) struct Pdu {
    pub(crate) header: RawHeader,
    pub(crate) data: Vec<u8>,
}

impl Pdu {
    pub(crate) fn opcode(&self) -> Opcode {
        self.header.basic().opcode()
    }

    pub(crate) fn tag(&self) -> u32 {
        self.header.basic().initiator_task_tag.get()
    }

    /// Returns the event, if this is an asynchronous message.
    pub(crate) fn asynchronous_event(&self) -> Option<AsyncEvent> {
        (self.opcode() == Opcode::AsyncMessage).then(|| AsyncMessage::view(&self.header).event())
    }

    /// Returns the SCSI status, if this PDU ends a command.
    pub(crate) fn status(&self) -> Option<u8> {
        match self.opcode() {
            Opcode::ScsiResponse => Some(ScsiResponse::view(&self.header).status),
            Opcode::DataIn => {
                let data_in = DataIn::view(&self.header);
                (data_in.flags & DataIn::STATUS != 0).then_some(data_in.status)
            }
            _ => None,
        }
    }

    /// Returns the sense data of a SCSI response.
    pub(crate) fn sense(&self) -> Option<Sense> {
        (self.opcode() == Opcode::ScsiResponse).then(|| Sense::parse(self.data.get(2..)?))?
    }
}

/// A session with hand-made PDUs: no digests, one connection.
pub(crate) struct Wire {
    stream: TcpStream,
    framer: Framer,
    cmd_sn: u32,
    exp_stat_sn: u32,
    next_tag: u32,
    received: VecDeque<Pdu>,
    /// The unit to which commands and functions are sent.
    pub(crate) lun: u8,
}

impl Wire {
    /// Logs in to a volume.
    pub(crate) fn login(url: &Url, initiator_name: &str, isid: [u8; 6]) -> Result<Self> {
        let (wire, status) = Self::try_login(url, initiator_name, isid)?;
        ensure!(status == LoginStatus::Success, "the login ended with {status:?}");
        Ok(wire)
    }

    fn try_login(url: &Url, initiator_name: &str, isid: [u8; 6]) -> Result<(Self, LoginStatus)> {
        let stream = TcpStream::connect(&url.portal)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let mut framer = Framer::default();
        framer.set_max_data_segment_length(SEGMENT_LENGTH);
        let received = VecDeque::new();
        let mut wire =
            Self { stream, framer, cmd_sn: 1, exp_stat_sn: 0, next_tag: 1, received, lun: 0 };
        let keys = format!(
            "InitiatorName={initiator_name}\0TargetName={}\0SessionType=Normal\0\
             MaxRecvDataSegmentLength={SEGMENT_LENGTH}\0InitialR2T=Yes\0ImmediateData=Yes\0",
            url.iqn
        );
        wire.send(login_request(isid), keys.as_bytes())?;
        let answer = wire.next()?.context("the connection was closed during the login")?;
        ensure!(answer.opcode() == Opcode::LoginResponse, "{:?} to a login", answer.opcode());
        Ok((wire, LoginResponse::view(&answer.header).status()))
    }

    /// Sends arbitrary bytes.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends as much of `bytes` as the target accepts without a pause of `pause`. Returns the number of accepted bytes.
    pub(crate) fn send_once(&mut self, bytes: &[u8], pause: Duration) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(pause))?;
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sends `bytes` repeatedly until the target stops reading; returns the number of sent bytes.
    pub(crate) fn send_until_stuck(&mut self, bytes: &[u8], pause: Duration) -> io::Result<usize> {
        let mut sent = 0;
        loop {
            let count = self.send_once(bytes, pause)?;
            sent += count;
            if count < bytes.len() {
                return Ok(sent);
            }
        }
    }

    /// Ends the sending direction of the stream.
    pub(crate) fn end_sending(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn send(&mut self, header: impl Into<RawHeader>, data: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(&encode(header, data))?)
    }

    fn tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Sends a command, whose CDB may be long, with its data and returns its tag.
    pub(crate) fn command(
        &mut self,
        cdb: &[u8],
        flags: u8,
        expected: u32,
        data: &[u8],
    ) -> Result<u32> {
        let tag = self.tag();
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.flags |= flags;
        command.lun[1] = self.lun;
        command.initiator_task_tag = tag.into();
        command.expected_data_transfer_length = expected.into();
        command.cmd_sn = self.cmd_sn.into();
        command.exp_stat_sn = self.exp_stat_sn.into();
        let (head, extension) = cdb.split_at(cdb.len().min(16));
        command.cdb[..head.len()].copy_from_slice(head);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.stream.write_all(&encode_long(command, extension, data))?;
        Ok(tag)
    }

    /// Sends WRITE(10) of whole blocks of 512 bytes, all of it immediate data.
    pub(crate) fn write(&mut self, lba: u32, data: &[u8], fua: bool) -> Result<u32> {
        let mut cdb = [0x2a, if fua { 8 } else { 0 }, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&((data.len() / 512) as u16).to_be_bytes());
        self.command(&cdb, ScsiCommand::WRITE, data.len() as u32, data)
    }

    /// Sends READ(10) of blocks of 512 bytes.
    pub(crate) fn read(&mut self, lba: u32, blocks: u16) -> Result<u32> {
        let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        self.command(&cdb, ScsiCommand::READ, u32::from(blocks) * 512, &[])
    }

    /// Sends a task management function and returns its tag.
    pub(crate) fn manage(
        &mut self,
        function: TaskManagementFunction,
        referenced: u32,
    ) -> Result<u32> {
        let tag = self.tag();
        let mut request =
            TaskManagementRequest::from(RawHeader::with_opcode(Opcode::TaskManagementRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags |= function.0;
        request.lun[1] = self.lun;
        request.initiator_task_tag = tag.into();
        request.referenced_task_tag = referenced.into();
        request.cmd_sn = self.cmd_sn.into();
        request.exp_stat_sn = self.exp_stat_sn.into();
        // The CmdSN is older than every open task.
        request.ref_cmd_sn = self.cmd_sn.wrapping_sub(1).into();
        self.send(request, &[])?;
        Ok(tag)
    }

    /// Waits until the target has processed everything sent; keeps the other PDUs for later calls.
    pub(crate) fn ping(&mut self) -> Result<()> {
        let tag = self.tag();
        let mut nop = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
        nop.opcode_byte |= IMMEDIATE;
        nop.initiator_task_tag = tag.into();
        nop.cmd_sn = self.cmd_sn.into();
        nop.exp_stat_sn = self.exp_stat_sn.into();
        self.send(nop, &[])?;
        let mut others = VecDeque::new();
        loop {
            let pdu = self.next()?.context("the connection was closed before the answer")?;
            if pdu.tag() == tag && pdu.opcode() == Opcode::NopIn {
                break;
            }
            others.push_back(pdu);
        }
        others.append(&mut self.received);
        self.received = others;
        Ok(())
    }

    /// Requests to close the session.
    pub(crate) fn logout(&mut self) -> Result<u32> {
        let tag = self.tag();
        let mut request = LogoutRequest::from(RawHeader::with_opcode(Opcode::LogoutRequest));
        request.opcode_byte |= IMMEDIATE;
        request.initiator_task_tag = tag.into();
        request.cmd_sn = self.cmd_sn.into();
        request.exp_stat_sn = self.exp_stat_sn.into();
        self.send(request, &[])?;
        Ok(tag)
    }

    /// Returns the next PDU; `None` when the target has closed the connection.
    pub(crate) fn next(&mut self) -> Result<Option<Pdu>> {
        let mut scratch = [0; 64 * 1024];
        loop {
            if let Some(pdu) = self.received.pop_front() {
                return Ok(Some(pdu));
            }
            let count = match self.stream.read(&mut scratch) {
                Ok(0) => return Ok(None),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error).context("waiting for the target"),
            };
            self.cut(&scratch[..count])?;
        }
    }

    fn cut(&mut self, mut input: &[u8]) -> Result<()> {
        loop {
            match self.framer.advance(&mut input)? {
                Frame::Starved => return Ok(()),
                Frame::Header => self.framer.place(Landing::Collect),
                Frame::Segment { segment, .. } => {
                    let header = *self.framer.header();
                    let pdu = Pdu { header, data: segment.bytes().to_vec() };
                    // PDUs with a status count; Data-In PDUs without one and R2Ts do not (RFC 7143 §4.2.2.2).
                    let counts = match pdu.opcode() {
                        Opcode::DataIn => pdu.status().is_some(),
                        Opcode::R2t => false,
                        _ => true,
                    };
                    if counts {
                        let stat_sn = ScsiResponse::view(&header).stat_sn.get();
                        self.exp_stat_sn = stat_sn.wrapping_add(1);
                    }
                    self.received.push_back(pdu);
                }
            }
        }
    }

    /// Waits for the end of a command without data; drops all other PDUs.
    pub(crate) fn end_of(&mut self, tag: u32) -> Result<Pdu> {
        loop {
            let pdu = self.next()?.context("the connection was closed before the answer")?;
            if pdu.tag() == tag && pdu.status().is_some() {
                return Ok(pdu);
            }
        }
    }

    /// Sends TEST UNIT READY and returns its end.
    pub(crate) fn test_unit_ready(&mut self) -> Result<Pdu> {
        let tag = self.command(&[0; 6], 0, 0, &[])?;
        self.end_of(tag)
    }

    /// Receives the unit attentions of a new session.
    pub(crate) fn settle(&mut self) -> Result<()> {
        for _ in 0..8 {
            if self.test_unit_ready()?.status() == Some(0) {
                return Ok(());
            }
        }
        bail!("one unit attention after the other")
    }

    /// Waits for the response to a task management function; drops all other PDUs.
    pub(crate) fn managed(&mut self, tag: u32) -> Result<TaskManagementResponse> {
        loop {
            let pdu = self.next()?.context("the connection was closed before the answer")?;
            if pdu.tag() == tag && pdu.opcode() == Opcode::TaskManagementResponse {
                return Ok(TaskManagementResponsePdu::view(&pdu.header).response());
            }
        }
    }
}

/// Returns the status of a login to a volume.
pub(crate) fn login_status(url: &Url, initiator_name: &str, isid: [u8; 6]) -> Result<LoginStatus> {
    Ok(Wire::try_login(url, initiator_name, isid)?.1)
}

/// Returns the only login request that is necessary without authentication.
pub(crate) fn login_request(isid: [u8; 6]) -> LoginRequest {
    let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
    request.opcode_byte |= IMMEDIATE;
    // From the operational stage to the full feature phase.
    request.flags = 0x87;
    request.isid = Isid(isid);
    request.initiator_task_tag = 1.into();
    request.cid = 0.into();
    request.reserved = 0.into();
    request.cmd_sn = 1.into();
    request
}

/// Encodes a PDU for the wire.
pub(crate) fn encode(header: impl Into<RawHeader>, data: &[u8]) -> Vec<u8> {
    encode_long(header, &[], data)
}

/// Encodes a PDU with the rest of a CDB that is too long for the header (RFC 7143 §11.2.2.3).
fn encode_long(header: impl Into<RawHeader>, extension: &[u8], data: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    if !extension.is_empty() {
        segment.extend((extension.len() as u16 + 1).to_be_bytes());
        segment.extend([ahs::EXTENDED_CDB, 0]);
        segment.extend_from_slice(extension);
        segment.resize(segment.len().next_multiple_of(4), 0);
    }
    let mut basic = BasicHeader::from(header.into());
    basic.total_ahs_length = (segment.len() / 4) as u8;
    basic.data_segment_length = U24::new(data.len() as u32);
    let mut bytes = [&RawHeader::from(basic).0[..], &segment, data].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
