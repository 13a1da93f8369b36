//! Two connections of one session, with commands on either in any order, and with delayed handling of events. Each
//! CmdSN is carried out once, whichever connection delivered it. ORDERED commands keep their place among those of their
//! unit. When no command is missing any more, no command waits.
#![no_main]

#[path = "../support/scripted.rs"]
mod scripted;

use std::collections::{BTreeMap, BTreeSet};

use libfuzzer_sys::fuzz_target;
use sarsen_block::Data;
use sarsen_proto::iscsi::target::{Completion, Ending, Event, Logout, MemberId, TaskId};
use sarsen_wire::iscsi::pdu::{FINAL, IMMEDIATE};
use sarsen_wire::iscsi::{
    Isid, LoginRequest, LogoutRequest, LogoutResponse, NopIn, NopOut, Opcode, RawHeader,
    ScsiCommand, ScsiResponse, TaskManagementRequest, TaskManagementResponse,
};

use scripted::{LUN, Scripted, TARGET, World, encode};

const TSIH: u16 = 7;
const ORDERED: u8 = 2;
/// Tags of all requests except commands.
const OTHER_TAGS: u32 = 1 << 30;

struct Member {
    target: Scripted,
    id: MemberId,
    running: Vec<TaskId>,
    /// All commands that ever ran: a late look at the events may ask to end a command that has ended already.
    begun: Vec<TaskId>,
    managing: Vec<u32>,
    stat_sn: Option<u32>,
}

/// A command that was carried out.
#[derive(Clone, Copy)]
struct Carried {
    cmd_sn: u32,
    unit: u8,
    attribute: u8,
}

struct Pair {
    members: [Member; 2],
    next_cmd_sn: u32,
    exp_cmd_sn: u32,
    last_tag: u32,
    carried_out: Vec<Carried>,
    cmd_sns: BTreeSet<u32>,
    /// CmdSNs that a request other than a command also used.
    others: BTreeSet<u32>,
    /// The requests that were sent as commands, by CmdSN.
    commands: BTreeMap<u32, u32>,
    /// Tasks or a connection were ended, so not all received commands are carried out.
    ended_early: bool,
    over: bool,
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }
}

fn login(target: &mut Scripted, tsih: u16, cid: u16) {
    let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
    request.opcode_byte |= IMMEDIATE;
    request.flags = 0x87;
    request.isid = Isid([0x80, 0, 0, 0, 0, 1]);
    request.tsih = tsih.into();
    request.cid = cid.into();
    request.reserved = 0.into();
    request.cmd_sn = 1.into();
    let keys =
        format!("InitiatorName=iqn.2026-11.fuzz:host\0TargetName={TARGET}\0MaxConnections=2\0");
    target.input(&encode(request, keys.as_bytes())).expect("a login in order");
    assert!(matches!(target.connection.poll_event(), Some(Event::Establish(_))));
}

impl Pair {
    fn new() -> Self {
        let member = |target, id| Member {
            target,
            id,
            running: Vec::new(),
            begun: Vec::new(),
            managing: Vec::new(),
            stat_sn: None,
        };
        let mut first = Scripted::new();
        login(&mut first, 0, 0);
        let (session, first_id) = first.connection.establish(TSIH).expect("others may join");
        first.output();
        let mut second = Scripted::within(World { session: Some(session), ..World::default() });
        login(&mut second, TSIH, 1);
        let (_, second_id) = second.connection.establish(TSIH).expect("it has joined");
        second.output();
        Self {
            members: [member(first, first_id), member(second, second_id)],
            next_cmd_sn: 1,
            exp_cmd_sn: 1,
            last_tag: 0,
            carried_out: Vec::new(),
            cmd_sns: BTreeSet::new(),
            others: BTreeSet::new(),
            commands: BTreeMap::new(),
            ended_early: false,
            over: false,
        }
    }

    /// Returns mostly the next number, sometimes one before or after.
    fn cmd_sn(&mut self, choice: u8) -> u32 {
        match choice {
            0..160 => {
                self.next_cmd_sn += 1;
                self.next_cmd_sn - 1
            }
            _ => (self.next_cmd_sn + u32::from(choice % 8)).saturating_sub(4).max(1),
        }
    }

    fn send(&mut self, index: usize, header: impl Into<RawHeader>) {
        self.over |= self.members[index].target.input(&encode(header, &[])).is_err();
    }

    fn command(&mut self, index: usize, cmd_sn: u32, input: &mut Input<'_>) {
        let choice = input.byte();
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        let attribute = choice % 4;
        command.flags = FINAL | attribute;
        // Sometimes the second unit.
        command.lun = LUN;
        command.lun[1] = choice >> 7;
        self.last_tag += 1;
        command.initiator_task_tag = self.last_tag.into();
        command.cmd_sn = cmd_sn.into();
        command.cdb[3] = attribute;
        command.cdb[8..12].copy_from_slice(&cmd_sn.to_be_bytes());
        self.commands.insert(cmd_sn, self.last_tag);
        self.send(index, command);
    }

    fn nop(&mut self, index: usize, cmd_sn: u32) {
        let mut nop = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
        nop.initiator_task_tag = OTHER_TAGS.into();
        nop.cmd_sn = cmd_sn.into();
        self.others.insert(cmd_sn);
        self.send(index, nop);
    }

    fn management(&mut self, index: usize, input: &mut Input<'_>) {
        let mut request =
            TaskManagementRequest::from(RawHeader::with_opcode(Opcode::TaskManagementRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags = FINAL | (input.byte() % 16);
        request.lun[1] = input.byte() >> 7;
        request.initiator_task_tag = (OTHER_TAGS + 1).into();
        let referenced = self.next_cmd_sn.saturating_sub(u32::from(input.byte() % 8));
        request.referenced_task_tag = self.commands.get(&referenced).copied().unwrap_or(0).into();
        request.ref_cmd_sn = referenced.into();
        request.cmd_sn = self.next_cmd_sn.into();
        self.ended_early = true;
        self.send(index, request);
    }

    fn logout(&mut self, index: usize, input: &mut Input<'_>) {
        let mut request = LogoutRequest::from(RawHeader::with_opcode(Opcode::LogoutRequest));
        request.opcode_byte |= IMMEDIATE;
        let choice = input.byte();
        request.flags = FINAL | (choice % 2);
        request.cid = u16::from(choice / 2 % 3).into();
        request.initiator_task_tag = (OTHER_TAGS + 2).into();
        request.cmd_sn = self.next_cmd_sn.into();
        self.ended_early = true;
        self.send(index, request);
    }

    fn complete(&mut self, index: usize, choice: u8) {
        let member = &mut self.members[index];
        if member.running.is_empty() {
            return;
        }
        let task = member.running.remove(usize::from(choice) % member.running.len());
        let completion =
            Completion { status: 0, data_in: Data::empty(), unread_length: 0, sense: &[] };
        member.target.connection.complete(task, completion);
    }

    /// Aborts tasks, as another session's reset does.
    fn abort(&mut self, index: usize) {
        self.ended_early = true;
        self.members[index].target.connection.abort_tasks(1, |_, _| Some(Ending::Silent));
    }

    /// Handles a connection's events, up to `limit`.
    fn look(&mut self, index: usize, limit: usize) {
        for _ in 0..limit {
            let Some(event) = self.members[index].target.connection.poll_event() else { break };
            match event {
                Event::Command(command) => {
                    let cdb = &command.cdb.head;
                    let cmd_sn = u32::from_be_bytes([cdb[8], cdb[9], cdb[10], cdb[11]]);
                    let (unit, attribute) = (command.lun[1], cdb[3]);
                    self.carry_out(Carried { cmd_sn, unit, attribute });
                    let member = &mut self.members[index];
                    member.target.connection.begun(command.task);
                    member.running.push(command.task);
                    member.begun.push(command.task);
                }
                Event::Wake(id) => {
                    let woken = self.members.iter().position(|member| member.id == id);
                    let woken = woken.expect("a connection of the session");
                    assert_ne!(woken, index, "it knows of itself");
                    self.over |= self.members[woken].target.resume().is_err();
                }
                Event::Management(management) => {
                    self.members[index].managing.push(management.initiator_task_tag);
                }
                Event::Aborted(tasks) => {
                    let begun = &self.members[index].begun;
                    assert!(tasks.iter().all(|task| begun.contains(task)), "it never began");
                }
                Event::Logout(logout) => self.log_out(index, logout),
                Event::TasksEnded(_) => {}
                // This level has no recovery.
                other @ (Event::Adopt(_) | Event::Establish(_)) => panic!("{other:?}"),
            }
        }
    }

    /// Checks the order in which commands reach the layer above (RFC 7143 §4.2.2.1, §11.3.1).
    fn carry_out(&mut self, now: Carried) {
        assert!(self.cmd_sns.insert(now.cmd_sn), "a CmdSN was carried out twice");
        let overtaken = |before: &Carried| {
            before.cmd_sn > now.cmd_sn
                && before.unit == now.unit
                && before.attribute < 3
                && now.attribute < 3
                && (before.attribute == ORDERED || now.attribute == ORDERED)
        };
        assert!(
            !self.carried_out.iter().any(overtaken),
            "an ORDERED command, or one before it, was overtaken"
        );
        self.carried_out.push(now);
    }

    /// Ends the other connections' commands and closes those connections.
    fn log_out(&mut self, index: usize, logout: Logout) {
        let other = 1 - index;
        if logout.cid.is_none_or(|cid| usize::from(cid) == other) {
            while !self.members[other].running.is_empty() {
                self.complete(other, 0);
            }
            self.members[other].target.connection.close();
            let connection = &mut self.members[index].target.connection;
            connection.log_out(logout, LogoutResponse::Closed);
        } else {
            let connection = &mut self.members[index].target.connection;
            connection.log_out(logout, LogoutResponse::CidNotFound);
        }
    }

    /// Checks a connection's output: its StatSN are consecutive, and the window moves forward.
    fn receive(&mut self, index: usize) {
        let member = &mut self.members[index];
        for (header, _) in member.target.output() {
            let stat_sn = ScsiResponse::view(&header).stat_sn.get();
            let is_ping = header.basic().opcode() == Opcode::NopIn
                && NopIn::view(&header).initiator_task_tag.get() == u32::MAX;
            if let Some(before) = member.stat_sn.filter(|_| !is_ping) {
                assert_eq!(stat_sn, before.wrapping_add(1), "StatSN of {header:?}");
            }
            member.stat_sn = Some(stat_sn);
            let exp_cmd_sn = ScsiResponse::view(&header).exp_cmd_sn.get();
            let max_cmd_sn = ScsiResponse::view(&header).max_cmd_sn.get();
            assert!(max_cmd_sn + 1 >= exp_cmd_sn, "the window of {header:?}");
            self.exp_cmd_sn = self.exp_cmd_sn.max(exp_cmd_sn);
        }
        self.over |= self.members[index].target.connection.closing().is_some();
    }

    /// Repeats until no command moves any more.
    fn settle(&mut self) {
        loop {
            let before =
                (self.carried_out.len(), self.members.iter().map(|m| m.running.len()).sum());
            for index in 0..2 {
                self.look(index, usize::MAX);
                for tag in std::mem::take(&mut self.members[index].managing) {
                    let connection = &mut self.members[index].target.connection;
                    connection.respond(tag, TaskManagementResponse::FunctionComplete);
                }
                while !self.members[index].running.is_empty() {
                    self.complete(index, 0);
                }
                self.receive(index);
            }
            let idle = self.members.iter_mut().all(|m| m.target.connection.event_count() == 0);
            let after: (usize, usize) = (self.carried_out.len(), 0);
            if before == after && idle {
                return;
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let mut pair = Pair::new();
    while !input.0.is_empty() && !pair.over {
        let choice = input.byte();
        let index = usize::from(choice >> 7);
        match choice % 16 {
            0..7 => {
                let cmd_sn = pair.cmd_sn(input.byte());
                pair.command(index, cmd_sn, &mut input);
            }
            7 => {
                let cmd_sn = pair.cmd_sn(input.byte());
                pair.nop(index, cmd_sn);
            }
            8..11 => pair.look(index, usize::from(input.byte() % 4)),
            11 | 12 => {
                let choice = input.byte();
                pair.complete(index, choice);
            }
            13 => pair.receive(index),
            14 => pair.settle(),
            _ => match input.byte() {
                0..128 => pair.management(index, &mut input),
                128..224 => pair.abort(index),
                _ => pair.logout(index, &mut input),
            },
        }
    }
    if pair.over {
        return;
    }
    pair.settle();
    if pair.over || pair.ended_early {
        return;
    }
    // The answer to a ping reports the session's progress.
    for index in 0..2 {
        let mut ping = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
        ping.opcode_byte |= IMMEDIATE;
        ping.initiator_task_tag = (OTHER_TAGS + 3).into();
        ping.cmd_sn = pair.next_cmd_sn.into();
        pair.send(index, ping);
        pair.receive(index);
    }
    for cmd_sn in 1..pair.exp_cmd_sn {
        let done = pair.cmd_sns.contains(&cmd_sn) || pair.others.contains(&cmd_sn);
        assert!(done, "CmdSN {cmd_sn} counts as received, and was not carried out");
    }
});
