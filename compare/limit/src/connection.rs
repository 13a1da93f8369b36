//! A connection: requests cut out of the received bytes, and answers that wait to be sent.

use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Range;

use sarsen_wire::iscsi::pdu::{FINAL, next_stage};
use sarsen_wire::iscsi::{
    BASIC_HEADER_LENGTH, BasicHeader, DEFAULT_DATA_SEGMENT_LENGTH, DataIn, DataOut, LoginRequest,
    LoginResponse, LogoutResponsePdu, NopIn, Opcode, R2t, RESERVED_TAG, RawHeader, ScsiCommand,
    ScsiResponse, Stage, U24, padding,
};
use sarsen_wire::scsi::cdb::{Block10, Block16};
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::report::Capacity16;
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _, transmute};

use crate::login;

/// Bytes of a logical block.
const BLOCK: u32 = 512;
/// Maximum of open commands of a session.
const WINDOW: u32 = 256;
/// Maximum of slices in one vectored send; the system accepts 1,024.
const SLICE_LIMIT: usize = 512;
/// The target's session identifying handle.
const TSIH: u16 = 1;

/// Consecutive headers (with short data of their own), and the data that follows them.
struct Piece {
    headers: Range<usize>,
    data: Range<usize>,
}

/// A write whose data is not complete yet.
struct Write {
    task: u32,
    /// Its first byte in the unit.
    begin: usize,
    whole: u32,
    missing: u32,
}

/// See the module.
pub(crate) struct Connection {
    socket: TcpStream,
    /// The request that is being received, and the length of its header so far.
    header: RawHeader,
    header_length: usize,
    /// Bytes of its data and padding that are still missing.
    rest: usize,
    /// Whether written data is stored in the unit's memory.
    keeps: bool,
    /// The place of the next byte of data in the unit, if it is stored.
    place: Option<usize>,
    /// The keys of a login.
    keys: Vec<u8>,
    is_new: bool,
    stat_sn: u32,
    exp_cmd_sn: u32,
    /// The initiator's maximum of data in one PDU.
    data_segment_length: usize,
    writes: Vec<Write>,
    headers: Vec<u8>,
    pieces: Vec<Piece>,
    /// Bytes of the pieces, and the number of them that were sent.
    queued: usize,
    sent: usize,
}

impl Connection {
    pub(crate) fn new(socket: TcpStream, keeps: bool) -> Self {
        Self {
            socket,
            header: RawHeader::ZERO,
            header_length: 0,
            rest: 0,
            keeps,
            place: None,
            keys: Vec::new(),
            is_new: true,
            stat_sn: 0,
            exp_cmd_sn: 0,
            data_segment_length: DEFAULT_DATA_SEGMENT_LENGTH as usize,
            writes: Vec::new(),
            headers: Vec::new(),
            pieces: Vec::new(),
            queued: 0,
            sent: 0,
        }
    }

    pub(crate) const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Returns whether answers wait for space in the socket.
    pub(crate) const fn is_blocked(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Does one receive, creates all answers, and does one send. An error ends the connection.
    pub(crate) fn turn(&mut self, scratch: &mut [u8], memory: &mut [u8]) -> io::Result<()> {
        match self.socket.read(scratch) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.take(&scratch[..count], memory)?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        self.send(memory)
    }

    /// Processes received bytes.
    fn take(&mut self, mut bytes: &[u8], memory: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.rest == 0 {
                let missing = BASIC_HEADER_LENGTH - self.header_length;
                let (header, behind) = bytes.split_at(missing.min(bytes.len()));
                let end = self.header_length + header.len();
                self.header.0[self.header_length..end].copy_from_slice(header);
                (self.header_length, bytes) = (end, behind);
                if self.header_length < BASIC_HEADER_LENGTH {
                    return Ok(());
                }
                self.header_length = 0;
                let length = self.header.basic().data_segment_length.value() as usize;
                self.rest = length + padding(length);
                self.place = if self.keeps { self.place(memory.len()) } else { None };
            }
            let (data, behind) = bytes.split_at(self.rest.min(bytes.len()));
            (self.rest, bytes) = (self.rest - data.len(), behind);
            if self.header.basic().opcode() == Opcode::LoginRequest {
                self.keys.extend_from_slice(data);
            }
            if let Some(place) = &mut self.place
                && let Some(kept) = memory.get_mut(*place..*place + data.len())
            {
                kept.copy_from_slice(data);
                *place += data.len();
            }
            if self.rest == 0 {
                self.answer(memory.len())?;
            }
        }
        Ok(())
    }

    /// Returns the place in the unit for the data of the current request.
    fn place(&self, unit_length: usize) -> Option<usize> {
        match self.header.basic().opcode() {
            Opcode::ScsiCommand => begin(ScsiCommand::view(&self.header), unit_length),
            Opcode::DataOut => {
                let data = DataOut::view(&self.header);
                let task = data.initiator_task_tag.get();
                let write = self.writes.iter().find(|write| write.task == task)?;
                Some(write.begin + data.buffer_offset.get() as usize)
            }
            _ => None,
        }
    }

    fn answer(&mut self, unit_length: usize) -> io::Result<()> {
        let header = self.header;
        match header.basic().opcode() {
            Opcode::ScsiCommand => self.command(ScsiCommand::view(&header), unit_length),
            Opcode::DataOut => {
                self.data_out(header.basic());
                Ok(())
            }
            Opcode::LoginRequest => {
                self.log_in(LoginRequest::view(&header));
                Ok(())
            }
            Opcode::LogoutRequest => {
                let mut response = LogoutResponsePdu::from(self.response(Opcode::LogoutResponse));
                response.stat_sn = self.next_stat_sn().into();
                self.push(&RawHeader::from(response).0);
                Ok(())
            }
            Opcode::NopOut => {
                if header.basic().initiator_task_tag.get() != RESERVED_TAG {
                    let mut answer = NopIn::from(self.response(Opcode::NopIn));
                    answer.stat_sn = self.next_stat_sn().into();
                    self.push(&RawHeader::from(answer).0);
                }
                Ok(())
            }
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    fn command(&mut self, command: &ScsiCommand, unit_length: usize) -> io::Result<()> {
        self.exp_cmd_sn = command.cmd_sn.get().wrapping_add(1);
        let length = command.expected_data_transfer_length.get();
        match command.cdb[0] {
            opcode::READ_16 | opcode::READ_10 => {
                let begin = begin(command, unit_length).ok_or(ErrorKind::InvalidInput)?;
                self.data_in(begin, length as usize);
            }
            opcode::WRITE_16 | opcode::WRITE_10 => {
                let begin = begin(command, unit_length).ok_or(ErrorKind::InvalidInput)?;
                self.write(command, begin, length);
            }
            opcode::SERVICE_ACTION_IN_16 => {
                let mut capacity = Capacity16::new_zeroed();
                capacity.last_lba = (unit_length as u64 / u64::from(BLOCK) - 1).into();
                capacity.block_length = BLOCK.into();
                self.data_in_of(&capacity.as_bytes()[..length.min(32) as usize]);
            }
            opcode::TEST_UNIT_READY => self.good(command.initiator_task_tag.get()),
            _ => return Err(ErrorKind::Unsupported.into()),
        }
        Ok(())
    }

    fn write(&mut self, command: &ScsiCommand, begin: usize, whole: u32) {
        let task = command.initiator_task_tag.get();
        let missing = whole.saturating_sub(command.data_segment_length.value());
        if missing == 0 {
            return self.good(task);
        }
        self.writes.push(Write { task, begin, whole, missing });
        if command.flags & FINAL != 0 {
            self.ask_for_the_rest(whole - missing, missing);
        }
    }

    fn data_out(&mut self, header: &BasicHeader) {
        let task = header.initiator_task_tag.get();
        let Some(index) = self.writes.iter().position(|write| write.task == task) else { return };
        let write = &mut self.writes[index];
        write.missing = write.missing.saturating_sub(header.data_segment_length.value());
        let (done, missing) = (write.whole - write.missing, write.missing);
        if missing == 0 {
            self.writes.swap_remove(index);
            self.good(task);
        } else if header.is_final() {
            self.ask_for_the_rest(done, missing);
        }
    }

    /// Asks for the rest of a write. The bench does not use writes longer than a burst.
    fn ask_for_the_rest(&mut self, offset: u32, length: u32) {
        let mut r2t = R2t::from(self.response(Opcode::R2t));
        r2t.target_transfer_tag = r2t.initiator_task_tag;
        r2t.stat_sn = self.stat_sn.into();
        r2t.buffer_offset = offset.into();
        r2t.desired_data_transfer_length = length.into();
        self.push(&RawHeader::from(r2t).0);
    }

    fn good(&mut self, task: u32) {
        let mut response = ScsiResponse::from(self.response(Opcode::ScsiResponse));
        response.initiator_task_tag = task.into();
        response.stat_sn = self.next_stat_sn().into();
        self.push(&RawHeader::from(response).0);
    }

    /// Sends data of the unit, with the status in the last PDU.
    fn data_in(&mut self, begin: usize, length: usize) {
        let mut offset = 0;
        let mut number: u32 = 0;
        while offset < length {
            let share = (length - offset).min(self.data_segment_length);
            let is_last = offset + share == length;
            self.push_data_in_header(share, offset, number, is_last);
            let data = begin + offset..begin + offset + share;
            if let Some(piece) = self.pieces.last_mut() {
                piece.data = data;
                self.queued += share;
            }
            number += 1;
            offset += share;
        }
    }

    /// Sends short data that is not data of the unit.
    fn data_in_of(&mut self, data: &[u8]) {
        self.push_data_in_header(data.len(), 0, 0, true);
        self.push(data);
    }

    fn push_data_in_header(&mut self, length: usize, offset: usize, number: u32, is_last: bool) {
        let mut header = DataIn::from(self.response(Opcode::DataIn));
        header.data_segment_length = U24::new(length as u32);
        header.data_sn = number.into();
        header.buffer_offset = (offset as u32).into();
        if is_last {
            header.flags |= DataIn::STATUS;
            header.stat_sn = self.next_stat_sn().into();
        } else {
            header.flags = 0;
        }
        self.push(&RawHeader::from(header).0);
    }

    fn log_in(&mut self, request: &LoginRequest) {
        if self.is_new {
            self.stat_sn = request.exp_stat_sn.get();
            self.exp_cmd_sn = request.cmd_sn.get();
        }
        let keys = std::mem::take(&mut self.keys);
        let answer = login::answer(&keys, std::mem::take(&mut self.is_new));
        if let Some(length) = answer.data_segment_length {
            self.data_segment_length = length;
        }
        let mut response = LoginResponse::from(self.response(Opcode::LoginResponse));
        response.flags = request.flags;
        response.isid = request.isid;
        response.reserved = 0.into();
        if request.flags & FINAL != 0 && next_stage(request.flags) == Stage::FullFeature {
            response.tsih = TSIH.into();
        }
        response.stat_sn = self.next_stat_sn().into();
        response.data_segment_length = U24::new(answer.text.len() as u32);
        self.push(&RawHeader::from(response).0);
        self.push(answer.text.as_bytes());
        self.push(&[0; 3][..padding(answer.text.len())]);
    }

    fn next_stat_sn(&mut self) -> u32 {
        let next = self.stat_sn;
        self.stat_sn = next.wrapping_add(1);
        next
    }

    /// Creates the header of an answer to the last received request.
    fn response(&self, opcode: Opcode) -> RawHeader {
        let mut header = ScsiResponse::from(RawHeader::with_opcode(opcode));
        if opcode == Opcode::ScsiResponse || opcode == Opcode::LogoutResponse {
            header.snack_tag = 0.into();
        }
        header.initiator_task_tag = self.header.basic().initiator_task_tag;
        header.exp_cmd_sn = self.exp_cmd_sn.into();
        header.max_cmd_sn = self.exp_cmd_sn.wrapping_add(WINDOW - 1).into();
        header.into()
    }

    /// Appends bytes to the output. They join the previous headers if no data is between them.
    fn push(&mut self, bytes: &[u8]) {
        let begin = self.headers.len();
        self.headers.extend_from_slice(bytes);
        let end = self.headers.len();
        self.queued += bytes.len();
        match self.pieces.last_mut() {
            Some(piece) if piece.data.is_empty() => piece.headers.end = end,
            _ => self.pieces.push(Piece { headers: begin..end, data: 0..0 }),
        }
    }

    fn send(&mut self, memory: &[u8]) -> io::Result<()> {
        while self.sent < self.queued {
            let slices = slices(&self.pieces, &self.headers, memory, self.sent);
            match self.socket.write_vectored(&slices) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.pieces.clear();
        self.headers.clear();
        (self.queued, self.sent) = (0, 0);
        Ok(())
    }
}

/// Returns the first byte of the blocks of a READ or WRITE, if all of them are in the unit.
fn begin(command: &ScsiCommand, unit_length: usize) -> Option<usize> {
    let cdb = command.cdb;
    let lba = match (cdb[0], Block10::ref_from_prefix(&cdb)) {
        (opcode::READ_10 | opcode::WRITE_10, Ok((block, _))) => block.lba.get().into(),
        _ => {
            let block: Block16 = transmute!(cdb);
            block.lba.get()
        }
    };
    let begin = usize::try_from(lba).ok()?.checked_mul(BLOCK as usize)?;
    let end = begin.checked_add(command.expected_data_transfer_length.get() as usize)?;
    (end <= unit_length).then_some(begin)
}

/// Returns the output after the first `sent` bytes, as much as one call accepts.
fn slices<'a>(
    pieces: &[Piece],
    headers: &'a [u8],
    memory: &'a [u8],
    mut sent: usize,
) -> Vec<IoSlice<'a>> {
    let mut slices = Vec::with_capacity(SLICE_LIMIT.min(2 * pieces.len()));
    for piece in pieces {
        for bytes in [&headers[piece.headers.clone()], &memory[piece.data.clone()]] {
            let gone = sent.min(bytes.len());
            sent -= gone;
            if gone < bytes.len() {
                slices.push(IoSlice::new(&bytes[gone..]));
            }
        }
        if slices.len() + 2 > SLICE_LIMIT {
            break;
        }
    }
    slices
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use sarsen_wire::iscsi::pdu::IMMEDIATE;

    use super::*;

    const UNIT: usize = 1 << 16;

    /// Returns the client's end and a connection without a login.
    fn pair() -> (TcpStream, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, Connection::new(listener.accept().unwrap().0, true))
    }

    fn command(operation_code: u8, task: u32, blocks: u32, data: &[u8]) -> Vec<u8> {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.initiator_task_tag = task.into();
        command.expected_data_transfer_length = (blocks * BLOCK).into();
        command.data_segment_length = U24::new(data.len() as u32);
        let lba = u64::from(task).into();
        let block_count = blocks.into();
        command.cdb = transmute!(Block16 {
            operation_code,
            flags: 0,
            lba,
            block_count,
            group: 0,
            control: 0
        });
        [&RawHeader::from(command).0, data].concat()
    }

    /// Processes the client's requests in turns. Returns the answers, and the unit's data afterwards.
    fn exchange(requests: &[u8], length: usize) -> (Vec<u8>, Vec<u8>) {
        let (mut client, mut connection) = pair();
        client.write_all(requests).unwrap();
        let mut memory: Vec<u8> = (0..UNIT).map(|at| (at / BLOCK as usize) as u8).collect();
        let mut scratch = vec![0; 100];
        let mut answers = vec![0; length];
        // The scratch memory is smaller than the requests: the turns cut them anywhere.
        for _ in 0..requests.len().div_ceil(scratch.len()) {
            connection.turn(&mut scratch, &mut memory).unwrap();
        }
        client.read_exact(&mut answers).unwrap();
        assert!(!connection.is_blocked());
        (answers, memory)
    }

    #[test]
    fn each_read_is_answered_with_a_header_and_its_blocks() {
        let requests: Vec<u8> =
            [3, 5].iter().flat_map(|&task| command(opcode::READ_16, task, 1, &[])).collect();
        let (answers, _) = exchange(&requests, 2 * (48 + 512));
        for (answer, task) in answers.chunks(48 + 512).zip([3, 5]) {
            let header = RawHeader(*answer.first_chunk().unwrap());
            let data_in = DataIn::view(&header);
            assert_eq!(data_in.flags, FINAL | DataIn::STATUS);
            assert_eq!(data_in.initiator_task_tag.get(), u32::from(task));
            assert!(answer[48..].iter().all(|&byte| byte == task));
        }
    }

    #[test]
    fn a_write_is_answered_when_its_data_is_there_and_asked_for_the_rest() {
        let whole = command(opcode::WRITE_16, 1, 1, &[7; 512]);
        let part = command(opcode::WRITE_16, 2, 2, &[7; 512]);
        let mut data = BasicHeader::from(RawHeader::with_opcode(Opcode::DataOut));
        data.initiator_task_tag = 2.into();
        data.data_segment_length = U24::new(512);
        let mut data = DataOut::from(RawHeader::from(data));
        data.buffer_offset = 512.into();
        let rest = [&RawHeader::from(data).0[..], &[8; 512]].concat();
        let (answers, memory) = exchange(&[whole, part, rest].concat(), 3 * 48);
        let opcodes: Vec<u8> = answers.chunks(48).map(|header| header[0]).collect();
        let [response, r2t] = [Opcode::ScsiResponse.0, Opcode::R2t.0];
        assert_eq!(opcodes, [response, r2t, response]);
        let asked = R2t::from(RawHeader(*answers[48..].first_chunk().unwrap()));
        assert_eq!(
            (asked.buffer_offset.get(), asked.desired_data_transfer_length.get()),
            (512, 512)
        );
        for (block, kept) in [7, 7, 8, 4].into_iter().enumerate() {
            let at = (block + 1) * BLOCK as usize;
            assert!(memory[at..at + BLOCK as usize].iter().all(|&byte| byte == kept), "{block}");
        }
    }

    #[test]
    fn unsupported_command_ends_connection() {
        for request in [command(opcode::INQUIRY, 1, 1, &[]), command(opcode::READ_16, 127, 2, &[])]
        {
            let (mut client, mut connection) = pair();
            client.write_all(&request).unwrap();
            assert!(connection.turn(&mut [0; 512], &mut [0; UNIT]).is_err());
        }
        let text = RawHeader::with_opcode(Opcode(Opcode::TextRequest.0 | IMMEDIATE));
        let (mut client, mut connection) = pair();
        client.write_all(&text.0).unwrap();
        assert!(connection.turn(&mut [0; 512], &mut [0; UNIT]).is_err());
    }
}
