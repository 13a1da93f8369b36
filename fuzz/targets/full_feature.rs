//! A session after its login, with arbitrary requests in and out of order. No command is carried out twice, and none
//! ends twice. The data of a write is exactly the sent data, and the target's numbers are consecutive (RFC 7143
//! §4.2.2).
#![no_main]

#[path = "../support/scripted.rs"]
mod scripted;

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use sarsen_block::{Buffer, Data};
use sarsen_proto::iscsi::target::{Completion, Ending, Event, TaskId};
use sarsen_wire::iscsi::pdu::{FINAL, IMMEDIATE};
use sarsen_wire::iscsi::{
    DataIn, DataOut, Isid, LoginRequest, LogoutRequest, NopOut, Opcode, RawHeader, ScsiCommand,
    ScsiResponse, SnackRequest, TaskManagementRequest, TaskManagementResponse, TextRequest,
};

use scripted::{LUN, Scripted, TARGET, data_out_length, encode};

/// The negotiated keys, selected by the first byte of the input.
const KEYS: [&str; 4] = [
    "",
    "InitialR2T=No\0",
    "ImmediateData=No\0MaxBurstLength=1024\0MaxOutstandingR2T=2\0",
    "InitialR2T=No\0FirstBurstLength=512\0MaxBurstLength=512\0MaxRecvDataSegmentLength=512\0",
];

struct Session {
    target: Scripted,
    next_cmd_sn: u32,
    /// Every command gets a separate number, in its CDB.
    sent: u32,
    statuses: u32,
    carried_out: HashSet<u32>,
    cmd_sns: HashSet<u32>,
    running: Vec<TaskId>,
    ended: Vec<TaskId>,
    managing: Vec<u32>,
    stat_sn: Option<u32>,
    /// Data that does not follow the rule below was sent.
    arbitrary_data: bool,
    over: bool,
}

/// Returns the data at an offset, which is the same in every write.
fn data(offset: usize, length: usize) -> Vec<u8> {
    (offset..offset + length).map(|at| (at % 251) as u8).collect()
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn tag(&mut self) -> u32 {
        match self.byte() {
            0xff => u32::MAX,
            tag => u32::from(tag % 6),
        }
    }

    fn lun(&mut self) -> [u8; 8] {
        let mut lun = LUN;
        lun[1] = self.byte() / 250;
        lun
    }
}

impl Session {
    fn new(keys: &str) -> Self {
        let mut target = Scripted::new();
        let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags = 0x87;
        request.isid = Isid([0x80, 0, 0, 0, 0, 1]);
        request.cid = 0.into();
        request.reserved = 0.into();
        request.cmd_sn = 1.into();
        let keys = format!("InitiatorName=iqn.2026-11.fuzz:host\0TargetName={TARGET}\0{keys}");
        target.input(&encode(request, keys.as_bytes())).expect("a login in order");
        assert!(matches!(target.connection.poll_event(), Some(Event::Establish(_))));
        target.connection.establish(7);
        assert!(target.connection.is_established());
        assert_eq!(target.output().len(), 1);
        Self {
            target,
            next_cmd_sn: 1,
            sent: 0,
            statuses: 0,
            carried_out: HashSet::new(),
            cmd_sns: HashSet::new(),
            running: Vec::new(),
            ended: Vec::new(),
            managing: Vec::new(),
            stat_sn: None,
            arbitrary_data: false,
            over: false,
        }
    }

    /// Returns mostly the next number, sometimes one before or after.
    fn cmd_sn(&mut self, choice: u8, immediate: bool) -> u32 {
        let next = self.next_cmd_sn;
        match choice {
            0..200 => {
                self.next_cmd_sn += u32::from(!immediate);
                next
            }
            _ => next.wrapping_add(u32::from(choice % 8)).wrapping_sub(4),
        }
    }

    fn send(&mut self, header: impl Into<RawHeader>, data: &[u8]) {
        if self.target.input(&encode(header, data)).is_err() {
            self.over = true;
        }
        self.look();
    }

    fn command(&mut self, input: &mut Input<'_>) {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        let choice = input.byte();
        let immediate = choice % 16 == 15;
        command.opcode_byte |= if immediate { IMMEDIATE } else { 0 };
        command.flags = input.byte();
        command.lun = input.lun();
        command.initiator_task_tag = input.tag().into();
        let expected = u32::from(input.byte() % 16) * 256 + u32::from(input.byte());
        command.expected_data_transfer_length = expected.into();
        let cmd_sn = self.cmd_sn(input.byte(), immediate);
        command.cmd_sn = cmd_sn.into();
        command.cdb[1] = input.byte() % 8;
        command.cdb[2] = input.byte();
        command.cdb[3] = immediate.into();
        self.sent += 1;
        command.cdb[4..8].copy_from_slice(&self.sent.to_be_bytes());
        command.cdb[8..12].copy_from_slice(&cmd_sn.to_be_bytes());
        let length = usize::from(input.byte() % 16) * usize::from(input.byte() % 128);
        self.send(command, &data(0, length));
    }

    fn data_out(&mut self, input: &mut Input<'_>) {
        let mut header = DataOut::from(RawHeader::with_opcode(Opcode::DataOut));
        header.flags = input.byte() & FINAL;
        header.initiator_task_tag = input.tag().into();
        header.target_transfer_tag = match input.byte() {
            0x80.. => u32::MAX,
            tag => u32::from(tag % 16),
        }
        .into();
        header.data_sn = u32::from(input.byte() % 4).into();
        let offset = usize::from(input.byte() % 16) * 256 + usize::from(input.byte());
        header.buffer_offset = (offset as u32).into();
        let length = usize::from(input.byte() % 8) * 256 + usize::from(input.byte());
        self.send(header, &data(offset, length));
    }

    fn management(&mut self, input: &mut Input<'_>) {
        let mut request =
            TaskManagementRequest::from(RawHeader::with_opcode(Opcode::TaskManagementRequest));
        let immediate = input.byte() < 200;
        request.opcode_byte |= if immediate { IMMEDIATE } else { 0 };
        request.flags = FINAL | (input.byte() % 16);
        request.lun = input.lun();
        request.initiator_task_tag = (100 + input.tag() % 6).into();
        request.referenced_task_tag = input.tag().into();
        request.cmd_sn = self.cmd_sn(input.byte(), immediate).into();
        let back = u32::from(input.byte() % 8);
        request.ref_cmd_sn = self.next_cmd_sn.wrapping_add(2).wrapping_sub(back).into();
        self.send(request, &[]);
    }

    fn other(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        let immediate = input.byte() < 200;
        let cmd_sn = self.cmd_sn(input.byte(), immediate);
        let flag = if immediate { IMMEDIATE } else { 0 };
        let (tag, flags) = (input.tag(), input.byte());
        match kind % 8 {
            0..4 => {
                let mut nop = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
                nop.opcode_byte |= flag;
                nop.initiator_task_tag = tag.into();
                nop.cmd_sn = cmd_sn.into();
                let ping = data(0, flags.into());
                self.send(nop, &ping);
            }
            4 | 5 => {
                let mut request = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
                request.opcode_byte |= flag;
                request.flags = flags;
                request.initiator_task_tag = tag.into();
                if kind >= 0x80 {
                    request.target_transfer_tag = u32::from(kind % 4).into();
                }
                request.cmd_sn = cmd_sn.into();
                let text: &[u8] = match flags % 4 {
                    0 => b"SendTargets=All\0",
                    1 => b"SendTargets=\0",
                    2 => b"MaxRecvDataSegmentLength=512\0",
                    _ => b"",
                };
                self.send(request, text);
            }
            6 => {
                let header = SnackRequest::from(RawHeader::with_opcode(Opcode::SnackRequest));
                self.send(header, &[]);
            }
            _ => {
                let mut logout = LogoutRequest::from(RawHeader::with_opcode(Opcode::LogoutRequest));
                logout.opcode_byte |= flag;
                logout.flags = FINAL | (flags % 4);
                logout.initiator_task_tag = tag.into();
                logout.cmd_sn = cmd_sn.into();
                self.send(logout, &[]);
            }
        }
    }

    /// Sends arbitrary bytes from the input, beyond the requests that the other functions build.
    fn arbitrary(&mut self, input: &mut Input<'_>) {
        let mut header = RawHeader::ZERO;
        header.0.iter_mut().for_each(|byte| *byte = input.byte());
        // A known opcode, but no command that is not counted.
        header.0[0] &= 0x4f;
        if header.basic().opcode() == Opcode::ScsiCommand {
            return self.command(input);
        }
        header.0[4] = 0;
        self.arbitrary_data = true;
        let length = usize::from(input.byte());
        self.send(header, &data(0, length));
    }

    fn complete(&mut self, input: &mut Input<'_>) {
        let choice = usize::from(input.byte());
        let again = choice >= 240 && !self.ended.is_empty();
        let task = if again {
            self.ended[choice % self.ended.len()]
        } else if self.running.is_empty() {
            return;
        } else {
            self.running.remove(choice % self.running.len())
        };
        let length = usize::from(input.byte() % 16) * 256 + usize::from(input.byte());
        let good = input.byte() < 200;
        let completion = Completion {
            status: if good { 0 } else { 2 },
            data_in: if good { Data::Buffer(Buffer::zeroed(length)) } else { Data::empty() },
            unread_length: 0,
            sense: if good { &[] } else { &[0x70, 0, 5, 0, 0, 0, 0, 10] },
        };
        let before = self.statuses;
        self.target.connection.complete(task, completion);
        self.look();
        let ended = self.statuses - before;
        assert!(ended <= u32::from(!again), "{ended} ends of one command");
        self.ended.push(task);
    }

    fn instruct(&mut self, input: &mut Input<'_>) {
        let connection = &mut self.target.connection;
        match input.byte() % 8 {
            0..4 => {
                if let Some(tag) = self.managing.pop() {
                    connection.respond(tag, TaskManagementResponse::FunctionComplete);
                }
            }
            4 => drop(connection.abort_tasks(1, |_, _| Some(Ending::Silent))),
            5 => {
                let running = &self.running;
                let odd = |task: &TaskId| task.number() % 2 == 1;
                connection.abort_tasks(2, |task, lun| {
                    (lun == LUN && !(odd(&task) && running.contains(&task)))
                        .then_some(Ending::Answered)
                });
                if let Some(&task) = self.running.first() {
                    connection.withhold(task);
                }
            }
            6 => connection.request_logout(3),
            _ if input.byte() == 0 => connection.drop_session(),
            _ => {}
        }
        self.look();
    }

    /// Handles events and output.
    fn look(&mut self) {
        while let Some(event) = self.target.connection.poll_event() {
            match event {
                Event::Command(command) => {
                    let cdb = &command.cdb.head;
                    let word = |at: usize| {
                        u32::from_be_bytes([cdb[at], cdb[at + 1], cdb[at + 2], cdb[at + 3]])
                    };
                    assert!(self.carried_out.insert(word(4)), "a command was carried out twice");
                    if cdb[3] == 0 {
                        assert!(self.cmd_sns.insert(word(8)), "a CmdSN was carried out twice");
                    }
                    assert!(!self.running.contains(&command.task));
                    assert!(!self.ended.contains(&command.task));
                    if let Some(buffer) = command.data_out {
                        let expected = command.expected_data_out_length.unwrap_or(0) as usize;
                        assert!(buffer.len() <= data_out_length(cdb).min(expected));
                        if !self.arbitrary_data {
                            assert_eq!(buffer[..], data(0, buffer.len()));
                        }
                    }
                    self.running.push(command.task);
                }
                Event::Management(management) => {
                    self.managing.push(management.initiator_task_tag);
                }
                Event::Aborted(tasks) => {
                    assert!(tasks.iter().all(|task| self.running.contains(task)));
                }
                Event::TasksEnded(_) => {}
                Event::Wake(_) | Event::Logout(_) | Event::Adopt(_) => {
                    panic!("there is one connection")
                }
                Event::Establish(_) => panic!("established twice"),
            }
        }
        for (header, _) in self.target.output() {
            let status = match header.basic().opcode() {
                Opcode::R2t => continue,
                Opcode::DataIn if DataIn::view(&header).flags & DataIn::STATUS == 0 => continue,
                Opcode::DataIn | Opcode::ScsiResponse => true,
                _ => false,
            };
            self.statuses += u32::from(status);
            let stat_sn = ScsiResponse::view(&header).stat_sn.get();
            if let Some(before) = self.stat_sn {
                assert_eq!(stat_sn, before.wrapping_add(1), "StatSN of {header:?}");
            }
            self.stat_sn = Some(stat_sn);
        }
        assert!(self.statuses <= self.sent, "more ends than commands");
        self.over |= self.target.connection.closing().is_some();
    }
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let mut session = Session::new(KEYS[usize::from(input.byte()) % KEYS.len()]);
    while !input.0.is_empty() && !session.over {
        match input.byte() % 16 {
            0..5 => session.command(&mut input),
            5..9 => session.data_out(&mut input),
            9..12 => session.complete(&mut input),
            12 => session.management(&mut input),
            13 => session.other(&mut input),
            14 => session.instruct(&mut input),
            _ => session.arbitrary(&mut input),
        }
    }
    // Even if the connection has ended, running commands may still end and make space for others.
    while !session.running.is_empty() {
        for task in std::mem::take(&mut session.running) {
            let data_in = Data::empty();
            let completion = Completion { status: 0, data_in, unread_length: 0, sense: &[] };
            session.target.connection.complete(task, completion);
        }
        session.look();
    }
    if session.target.connection.is_established() {
        assert_eq!(session.target.connection.running_tasks(), 0);
    }
    session.look();
});
