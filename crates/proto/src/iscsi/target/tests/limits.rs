//! Tests of the limits of the memory that a peer can use, and of the responses beyond these limits.

use sarsen_wire::iscsi::SnackRequest;

use super::*;

use crate::iscsi::target::session::ORDERED;

const ROOM_LIMIT: usize = 32 << 20;

#[test]
fn the_memory_of_a_session_is_limited() {
    let mut script = Script::established("InitialR2T=Yes\0ImmediateData=No\0");
    let length = ROOM_LIMIT / 2;
    script.world.data_out_length = length;
    // Two writes have memory. The other writes and the read wait. A command that needs no memory does not wait.
    for (tag, flags) in [(1, WRITE), (2, WRITE), (3, WRITE), (4, READ), (5, WRITE)] {
        script.command(tag, flags, length as u32, &[]);
    }
    script.command(6, FINAL, 0, &[]);
    assert_eq!(script.next_command().task.initiator_task_tag, 6);
    for tag in [1, 2] {
        let (header, _) = script.next();
        assert_eq!(R2t::view(&header).initiator_task_tag.get(), tag);
    }
    script.nothing_more();
    // When a waiting command is aborted, the next one moves up. When an admitted command ends, it frees memory.
    script.manage(TaskManagementFunction::AbortTask, 3, 3);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    script.nothing_more();
    script.manage(TaskManagementFunction::AbortTask, 1, 1);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    let read = script.next_command();
    assert_eq!(read.task.initiator_task_tag, 4);
    script.nothing_more();
    script.good(&read, vec![]);
    let tags = [script.next().0, script.next().0].map(|header| header.basic().opcode());
    assert_eq!(tags, [Opcode::ScsiResponse, Opcode::R2t]);
}

#[test]
fn one_task_may_take_more_memory_than_a_session_is_to() {
    let mut script = Script::established("InitialR2T=Yes\0ImmediateData=No\0");
    script.world.data_out_length = 2 * ROOM_LIMIT;
    script.command(1, WRITE, 2 * ROOM_LIMIT as u32, &[]);
    script.command(2, WRITE, 512, &[]);
    script.collect();
    let tags: Vec<u32> = script
        .pdus
        .drain(..)
        .map(|(header, _)| R2t::view(&header).initiator_task_tag.get())
        .collect();
    assert_eq!(tags, [1], "and no other beside it");
}

#[test]
fn session_waits_for_memory_of_others() {
    let settings = Settings { budget: Arc::new(Budget::new(8 << 20)), ..Settings::default() };
    let keys = "InitialR2T=Yes\0ImmediateData=No\0";
    let mut one = Script::established_with(settings.clone(), keys);
    let mut other = Script::established_with(settings.clone(), keys);
    let read = 6 << 20;
    one.command(1, READ, read, &[]);
    let taking = one.next_command();
    other.command(1, READ, read, &[]);
    assert!(other.connection.poll_event().is_none(), "one may go on without room, and is");
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(other.connection.awaits_room());
    assert!(other.connection.poll_room(&mut context).is_pending());
    // Short commands find memory meanwhile.
    other.command(2, FINAL, 0, &[]);
    assert_eq!(other.next_command().task.initiator_task_tag, 2);
    one.good(&taking, vec![]);
    assert!(other.connection.poll_room(&mut context).is_ready());
    other.connection.resume(&mut other.world).expect("the session goes on");
    assert_eq!(other.next_command().task.initiator_task_tag, 1);
    assert!(!other.connection.awaits_room());
    drop((one, other));
    assert_eq!((settings.budget.lent(), settings.budget.charged()), (0, 0));
}

/// Returns settings with a memory budget of `limit` bytes.
fn budget(limit: usize) -> Settings {
    Settings { budget: Arc::new(Budget::new(limit)), ..Settings::default() }
}

const IMMEDIATE_DATA: &str = "InitialR2T=Yes\0ImmediateData=Yes\0FirstBurstLength=262144\0\
                              MaxBurstLength=16776704\0";
const LARGE: usize = 16 << 20;

#[test]
fn immediate_data_takes_memory_of_its_own_size_until_there_is_room_for_the_write() {
    let settings = budget(64 << 20);
    let mut script = Script::established_with(settings.clone(), IMMEDIATE_DATA);
    script.world.data_out_length = LARGE;
    let count = 126;
    for tag in 1..=count {
        script.command(tag, WRITE, LARGE as u32, &[tag as u8; 512]);
    }
    // Two writes are within the connection's limit, which does not apply to immediate data.
    let whole = Buffer::memory_for(LARGE);
    assert_eq!(settings.budget.charged(), 2 * whole + 512 * (count as usize - 2));
    let r2t = *R2t::view(&script.next().0);
    assert_eq!((r2t.initiator_task_tag.get(), r2t.buffer_offset.get()), (1, 512));
    assert_eq!(R2t::view(&script.next().0).initiator_task_tag.get(), 2);
    script.nothing_more();
    let limit = (16 << 20) - 512;
    let rest = vec![9; limit];
    for (sn, part) in rest.chunks(1 << 18).enumerate() {
        let offset = 512 + (sn << 18);
        let last = offset + part.len() == 512 + limit;
        script.data_out(1, r2t.target_transfer_tag.get(), sn as u32, offset as u32, last, part);
    }
    let command = script.next_command();
    let data = command.data_out.as_ref().expect("the data");
    assert_eq!((data.len(), data[511], data[512]), (LARGE, 1, 9), "copied once, in its place");
    script.good(&command, vec![]);
    assert_eq!(settings.budget.charged(), 2 * whole + 512 * (count as usize - 3), "the next one");
    drop(script);
    assert_eq!((settings.budget.lent(), settings.budget.charged()), (0, 0));
}

#[test]
fn ended_connection_is_charged_until_its_commands_end() {
    let settings = budget(64 << 20);
    let mut script = Script::established_with(settings.clone(), IMMEDIATE_DATA);
    script.world.data_out_length = 4096;
    script.command(1, WRITE, 4096, &[7; 4096]);
    let command = script.next_command();
    script.command(2, WRITE, 4096, &[]);
    script.connection.leave();
    assert_eq!(settings.budget.charged(), Buffer::memory_for(4096), "the layer above has it still");
    script.good(&command, vec![]);
    drop(script);
    assert_eq!((settings.budget.lent(), settings.budget.charged()), (0, 0));
}

#[test]
fn a_write_whose_data_comes_with_it_lands_once_in_the_memory_that_the_store_gets() {
    let settings = budget(64 << 20);
    let mut script = Script::established_with(settings.clone(), IMMEDIATE_DATA);
    script.world.data_out_length = 4096;
    script.command(1, WRITE, 4096, &[7; 4096]);
    assert_eq!(settings.budget.charged(), Buffer::memory_for(4096));
    let command = script.next_command();
    let data = command.data_out.as_ref().expect("the data");
    assert_eq!((data.memory(), data[4095]), (Buffer::memory_for(4096), 7));
    script.good(&command, vec![]);
    assert_eq!(settings.budget.charged(), 0);
}

#[test]
fn a_write_of_which_only_a_part_comes_unasked_has_all_its_memory_from_the_start() {
    const PART: u32 = 128 << 10;
    const WHOLE: u32 = 4 * PART;
    let keys = "InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=262144\0";
    let settings = budget(64 << 20);
    let mut script = Script::established_with(settings.clone(), keys);
    script.world.data_out_length = WHOLE as usize;
    let part = vec![1; PART as usize];
    script.command(1, WRITE_MORE, WHOLE, &part);
    let memory = Buffer::memory_for(WHOLE as usize);
    assert_eq!(settings.budget.charged(), memory, "nothing is copied later");
    // A command that may wait for others takes only the memory of what comes unasked.
    script.command(2, WRITE_MORE | ORDERED, WHOLE, &part);
    script.command(3, WRITE_MORE, WHOLE, &part);
    assert_eq!(settings.budget.charged(), memory + 4 * PART as usize);
    for tag in 1..=3 {
        script.data_out(tag, RESERVED_TAG, 0, PART, true, &part);
    }
    let r2t = *R2t::view(&script.next().0);
    assert_eq!((r2t.initiator_task_tag.get(), r2t.buffer_offset.get()), (1, 2 * PART));
    script.nothing_more();
}

#[test]
fn sam5_5_3_1_immediate_data_without_memory_is_discarded_and_its_command_refused() {
    // Seven eighths of this budget are not enough for two writes. The status of the second write is TASK SET FULL,
    // because the initiator has another task.
    let settings = budget(512 << 10);
    let mut script = Script::established_with(settings.clone(), IMMEDIATE_DATA);
    let mut other = Script::established_with(settings.clone(), IMMEDIATE_DATA);
    (script.world.data_out_length, other.world.data_out_length) = (256 << 10, 256 << 10);
    let data = vec![1; 256 << 10];
    script.command(1, WRITE, 256 << 10, &data);
    let first = script.next_command();
    script.command(2, WRITE, 256 << 10, &data);
    let (header, sense) = script.next();
    let response = ScsiResponse::view(&header);
    assert_eq!((response.initiator_task_tag.get(), response.status), (2, 0x28), "TASK SET FULL");
    assert!(sense.is_empty());
    // A connection that has no memory may use the rest, but that is not enough either.
    other.command(1, WRITE, 256 << 10, &data);
    let (header, _) = other.next();
    assert_eq!(ScsiResponse::view(&header).status, 0x08, "BUSY");
    assert_eq!(settings.budget.refusals(), 2);
    // It is not an error of the session: the initiator can send the command again.
    script.good(&first, vec![]);
    script.next();
    other.command(2, WRITE, 256 << 10, &data);
    assert_eq!(other.next_command().task.initiator_task_tag, 2);
}

#[test]
fn unsolicited_data_without_memory_is_awaited_and_discarded() {
    let keys = "InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=262144\0";
    let settings = budget(512 << 10);
    let mut script = Script::established_with(settings.clone(), keys);
    script.world.data_out_length = 256 << 10;
    let data = vec![1; 128 << 10];
    script.command(1, WRITE_MORE, 256 << 10, &data);
    script.command(2, WRITE_MORE, 256 << 10, &data);
    let charged = settings.budget.charged();
    script.nothing_more();
    // RFC 7143 §11.4: no status before the data in transit has arrived.
    script.data_out(2, RESERVED_TAG, 0, 128 << 10, true, &data);
    let (header, _) = script.next();
    assert_eq!(ScsiResponse::view(&header).status, 0x28, "TASK SET FULL");
    script.data_out(1, RESERVED_TAG, 0, 128 << 10, true, &data);
    assert_eq!(script.next_command().task.initiator_task_tag, 1);
    assert_eq!(settings.budget.charged(), charged, "what the first one took, it took at once");
}

#[test]
fn immediate_data_above_a_gap_is_charged_and_refused_in_its_turn() {
    let settings = budget(1 << 20);
    let mut script = Script::established_with(settings.clone(), IMMEDIATE_DATA);
    script.world.data_out_length = 128 << 10;
    let data = vec![1; 128 << 10];
    script.cmd_sn = 2;
    for tag in 2..=9 {
        script.command(tag, WRITE, 128 << 10, &data);
    }
    assert!(settings.budget.charged() <= 1 << 20, "{} bytes", settings.budget.charged());
    assert!(settings.budget.charged() >= 4 * (128 << 10));
    script.cmd_sn = 1;
    script.command(1, FINAL, 0, &[]);
    script.collect();
    let refused = script.pdus.len();
    assert!(script.pdus.iter().all(|(header, _)| ScsiResponse::view(header).status == 0x28));
    let mut begun = 0;
    while let Some(Event::Command(command)) = script.connection.poll_event() {
        begun += 1;
        script.good(&command, vec![]);
    }
    assert!(refused > 0 && begun > 1, "{refused} refused, {begun} begun");
    assert_eq!(refused + begun, 9);
    script.collect();
    assert_eq!(settings.budget.charged(), 0);
}

#[test]
fn the_data_of_a_read_is_charged_until_it_has_been_sent() {
    let settings = budget(64 << 20);
    let mut script = Script::established_with(settings.clone(), "");
    script.command(1, READ, 8 << 20, &[]);
    let read = script.next_command();
    script.good(&read, vec![7; 2 << 20]);
    assert_eq!(settings.budget.charged(), Buffer::memory_for(2 << 20));
    script.collect();
    assert_eq!(settings.budget.charged(), 0);
}

#[test]
fn rfc7143_4_2_2_2_the_data_of_a_read_is_charged_until_it_is_acknowledged() {
    let settings = budget(64 << 20);
    let mut script = Script::established_with(settings.clone(), "ErrorRecoveryLevel=1\0");
    let lengths = [LARGE, LARGE / 4 * 3];
    for (tag, length) in (1..).zip(lengths) {
        script.command(tag, READ, length as u32, &[]);
        let read = script.next_command();
        script.good(&read, vec![7; length]);
        script.collect();
        script.pdus.clear();
    }
    let kept: usize = lengths.into_iter().map(Buffer::memory_for).sum();
    assert_eq!(settings.budget.charged(), kept);
    // The kept answers leave no memory for the next command within the connection's limit, so the target requests an
    // acknowledgement.
    script.command(3, READ, LARGE as u32, &[]);
    let (header, _) = script.next();
    assert_eq!(header.basic().opcode(), Opcode::NopIn);
    let mut answer = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
    answer.opcode_byte |= IMMEDIATE;
    answer.initiator_task_tag = RESERVED_TAG.into();
    answer.target_transfer_tag = NopIn::view(&header).target_transfer_tag;
    answer.cmd_sn = script.cmd_sn.into();
    answer.exp_stat_sn = NopIn::view(&header).stat_sn;
    script.send(answer, &[]).expect("the session goes on");
    assert_eq!(script.next_command().task.initiator_task_tag, 3);
    assert_eq!(settings.budget.charged(), Buffer::memory_for(LARGE));
}

#[test]
fn short_answers_that_are_not_taken_are_charged() {
    let settings = budget(64 << 20);
    let mut script = Script::established_with(settings.clone(), "");
    for tag in 1..=100 {
        script.command(tag, READ, 1024, &[]);
        let read = script.next_command();
        script.good(&read, vec![7; 1024]);
    }
    assert!(settings.budget.charged() > 100 << 10, "{} bytes", settings.budget.charged());
    script.collect();
    assert_eq!(settings.budget.charged(), 0);
}

/// An initiator that sends correct requests, and counts the commands that are left.
struct Initiator {
    script: Script,
    left: u32,
    /// Tags of outstanding commands, with their flags and lengths.
    outstanding: Vec<(u32, u8, usize)>,
    next_tag: u32,
}

impl Initiator {
    fn send(&mut self, flags: u8, length: usize) {
        self.next_tag += 1;
        let tag = self.next_tag;
        self.outstanding.push((tag, flags, length));
        let immediate = if flags == READ { 0 } else { length.min(4096) };
        self.script.world.data_out_length = if flags == READ { 0 } else { length };
        self.script.command(tag, flags, length as u32, &vec![tag as u8; immediate]);
    }

    /// Answers R2Ts, executes commands and receives responses. Returns whether there were any.
    fn step(&mut self) -> bool {
        let waker = std::task::Waker::noop();
        let mut context = Context::from_waker(waker);
        let mut any = false;
        if self.script.connection.poll_room(&mut context).is_ready() {
            self.script.connection.resume(&mut self.script.world).expect("the session goes on");
            any = true;
        }
        while let Some(event) = self.script.connection.poll_event() {
            any = true;
            let Event::Command(command) = event else { panic!("{event:?}") };
            let length = command.expected_data_in_length as usize;
            self.script.good(&command, vec![1; length]);
        }
        self.script.collect();
        while let Some((header, _)) = self.script.pdus.pop_front() {
            any = true;
            match header.basic().opcode() {
                Opcode::R2t => self.answer(R2t::view(&header)),
                Opcode::DataIn if DataIn::view(&header).flags & DataIn::STATUS == 0 => {}
                Opcode::DataIn => self.end(DataIn::view(&header).initiator_task_tag.get(), 0),
                Opcode::ScsiResponse => {
                    let response = *ScsiResponse::view(&header);
                    self.end(response.initiator_task_tag.get(), response.status);
                }
                other => panic!("{other:?}"),
            }
        }
        any
    }

    fn answer(&mut self, r2t: &R2t) {
        let (start, length) = (r2t.buffer_offset.get(), r2t.desired_data_transfer_length.get());
        let data = vec![3; length as usize];
        let tags = (r2t.initiator_task_tag.get(), r2t.target_transfer_tag.get());
        for (sn, part) in data.chunks(1 << 18).enumerate() {
            let offset = start + ((sn as u32) << 18);
            let last = offset + part.len() as u32 == start + length;
            self.script.data_out(tags.0, tags.1, sn as u32, offset, last, part);
        }
    }

    fn end(&mut self, tag: u32, status: u8) {
        let index = self.outstanding.iter().position(|one| one.0 == tag).expect("outstanding");
        let (_, flags, length) = self.outstanding.swap_remove(index);
        match status {
            0 => self.left -= 1,
            // Initiators send the command again, but after a delay.
            0x08 | 0x28 => self.send(flags, length),
            other => panic!("status {other:#x}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Many connections send commands of any size, with little memory. All commands end, and memory use never exceeds
    /// the budget plus the one command outside it.
    #[test]
    fn every_command_ends_within_the_budget(
        limit in 1usize..9,
        commands in prop::collection::vec((0usize..6, any::<bool>(), 1usize..6000), 1..60),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
    ) {
        let limit = limit << 20;
        let settings = budget(limit);
        let mut initiators: Vec<Initiator> = (0..6)
            .map(|_| Initiator {
                script: Script::established_with(settings.clone(), IMMEDIATE_DATA),
                left: 0,
                outstanding: Vec::new(),
                next_tag: 0,
            })
            .collect();
        let largest = commands.iter().map(|command| command.2 * 512).max().unwrap_or(0);
        for (who, reads, blocks) in commands {
            initiators[who].left += 1;
            initiators[who].send(if reads { READ } else { WRITE }, blocks * 512);
            let most = limit + Buffer::memory_for(largest);
            prop_assert!(settings.budget.charged() <= most);
        }
        let mut order = order.iter().cycle();
        let mut idle = 0;
        while initiators.iter().any(|initiator| initiator.left > 0) {
            let who = order.next().expect("endless").index(6);
            idle = if initiators[who].step() { 0 } else { idle + 1 };
            if idle > 200 {
                idle = if initiators.iter_mut().any(Initiator::step) { 0 } else { idle };
                prop_assert!(idle == 0, "nothing goes on any more");
            }
            prop_assert!(settings.budget.charged() <= limit + Buffer::memory_for(largest));
        }
        drop(initiators);
        prop_assert_eq!((settings.budget.lent(), settings.budget.charged()), (0, 0));
    }
}

#[test]
fn rfc7143_11_17_1_text_is_rejected_if_answers_are_not_read() {
    let mut script = discovery(400);
    for _ in 0..1000 {
        send_text_request(&mut script, RESERVED_TAG, b"SendTargets=All\0");
    }
    let limit = Settings::default().output_limit;
    let waiting = script.connection.output().len();
    assert!(waiting < limit + 1000 * 200, "{waiting} bytes wait to be sent");
    script.collect();
    let (last, _) = script.pdus.pop_back().expect("an answer");
    assert_eq!(Reject::view(&last).reason(), RejectReason::LongOperationReject);
    script.pdus.clear();
    send_text_request(&mut script, RESERVED_TAG, b"SendTargets=All\0");
    assert_eq!(script.next().0.basic().opcode(), Opcode::TextResponse, "once it took them");
}

#[test]
fn rfc7143_11_17_1_a_text_request_beyond_its_limit_is_rejected() {
    let settings = Settings { text_limit: 100, ..Settings::default() };
    let mut script = Script::established_with(settings, "");
    let (header, _) = text_request(&mut script, RESERVED_TAG, &[b'x'; 101]);
    assert_eq!(Reject::view(&header).reason(), RejectReason::LongOperationReject);
}

#[test]
fn rfc7143_11_13_5_a_login_with_too_much_text_is_refused() {
    let mut script = Script::with(Settings { text_limit: 100, ..Settings::default() });
    script.login(0x04 | CONTINUE, &"x".repeat(60));
    script.next();
    script.login(0x04 | CONTINUE, &"x".repeat(60));
    let (header, _) = script.next();
    assert_eq!(LoginResponse::view(&header).status(), LoginStatus::OutOfResources);
}

#[test]
fn rfc7143_4_2_2_1_the_window_is_as_large_as_was_set() {
    let settings = Settings { command_window: 3, immediate_limit: 1, ..Settings::default() };
    let mut script = Script::established_with(settings, "");
    for tag in 1..=4 {
        script.command(tag, READ, 512, &[]);
    }
    for tag in 1..=3 {
        assert_eq!(script.next_command().task.initiator_task_tag, tag);
    }
    script.nothing_more();
    for (tag, is_taken) in [(5, true), (6, false)] {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.opcode_byte |= IMMEDIATE;
        command.flags = FINAL;
        command.initiator_task_tag = tag.into();
        command.cmd_sn = 4.into();
        script.send(command, &[]).expect("the session goes on");
        if is_taken {
            assert_eq!(script.next_command().task.initiator_task_tag, tag);
        } else {
            let (header, _) = script.next();
            assert_eq!(Reject::view(&header).reason(), RejectReason::ImmediateCommandReject);
        }
    }
}

#[test]
fn rfc7143_4_2_2_2_unacknowledged_echoes_close_connection() {
    let keys = "ErrorRecoveryLevel=1\0MaxRecvDataSegmentLength=262144\0";
    let mut script = Script::established(keys);
    let echo = vec![0x55; 256 << 10];
    let ended = (0..1000).find(|_| {
        let mut nop = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
        nop.opcode_byte |= IMMEDIATE;
        nop.initiator_task_tag = 9.into();
        nop.cmd_sn = script.cmd_sn.into();
        let taken = script.send(nop, &echo);
        script.collect();
        script.pdus.clear();
        taken.is_err()
    });
    assert_eq!(ended, Some(ROOM_LIMIT / echo.len() + 1));
}

#[test]
fn rfc7143_11_16_snack_is_rejected_if_answers_are_not_read() {
    let mut script = Script::established("ErrorRecoveryLevel=1\0");
    script.command(1, READ, 8 << 20, &[]);
    let read = script.next_command();
    script.good(&read, vec![7; 8 << 20]);
    script.collect();
    script.pdus.clear();
    for _ in 0..100 {
        let mut snack = SnackRequest::from(RawHeader::with_opcode(Opcode::SnackRequest));
        snack.flags = FINAL;
        snack.lun = LUN;
        snack.initiator_task_tag = 1.into();
        snack.tag = RESERVED_TAG.into();
        script.send(snack, &[]).expect("the session goes on");
    }
    let waiting = script.connection.output().len();
    assert!(waiting < ROOM_LIMIT + (12 << 20), "{waiting} bytes wait to be sent");
    script.collect();
    let (last, _) = script.pdus.pop_back().expect("an answer");
    assert_eq!(Reject::view(&last).reason(), RejectReason::SnackReject);
}

#[test]
fn rfc7143_11_4_5_unread_bytes_count_in_residual() {
    let mut script = Script::established("");
    script.command(1, READ, 512, &[]);
    let read = script.next_command();
    let data_in = Data::Buffer(Buffer::zeroed(512));
    let completion = Completion { status: 0, data_in, unread_length: 7 * 512, sense: &[] };
    script.connection.complete(read.task, completion);
    let (header, _) = script.next();
    let answer = *DataIn::view(&header);
    assert_eq!(answer.residual_count.get(), 7 * 512);
    assert!(answer.flags & ScsiResponse::OVERFLOW != 0);
}

#[test]
fn a_stalled_write_closes_its_connection_while_memory_is_short() {
    const LENGTH: usize = 128 << 10;
    let budget = Arc::new(Budget::new(4 * LENGTH));
    let settings = Settings { budget: budget.clone(), ..Settings::default() };
    let keys = "InitialR2T=Yes\0ImmediateData=No\0";
    let mut one = Script::established_with(settings.clone(), keys);
    one.world.data_out_length = LENGTH;
    one.command(1, WRITE, LENGTH as u32, &[]);
    let request = *R2t::view(&one.next().0);
    let (start, late) = (one.now, one.now + Duration::from_secs(30));
    let before = late - Duration::from_secs(1);
    assert_eq!(one.connection.check_stalled(start), Ok(()));
    assert_eq!(one.connection.check_stalled(late), Ok(()), "no command waits");
    let mut other = Script::established_with(settings, keys);
    other.world.data_out_length = LENGTH;
    for tag in 1..=6 {
        other.command(tag, WRITE, LENGTH as u32, &[]);
    }
    assert!(budget.has_demand());
    assert_eq!(one.connection.check_stalled(before), Ok(()));
    assert_eq!(one.connection.check_stalled(late), Err(CloseReason::Stalled));
    one.data_out(1, request.target_transfer_tag.get(), 0, 0, true, &[7; LENGTH]);
    assert_eq!(one.connection.check_stalled(late), Ok(()), "its data is there");
}

#[test]
fn output_that_is_not_received_closes_its_connection_while_memory_is_short() {
    const LENGTH: usize = 8 << 20;
    const RATE: usize = 64 << 10;
    let budget = Arc::new(Budget::new(4 * LENGTH));
    let mut script =
        Script::established_with(Settings { budget: budget.clone(), ..Settings::default() }, "");
    for tag in 1..=3 {
        script.command(tag, READ, LENGTH as u32, &[]);
    }
    let read = script.next_command();
    script.good(&read, vec![7; LENGTH]);
    assert!(budget.has_demand());
    let start = script.now;
    let after = |seconds| start + Duration::from_secs(seconds);
    for step in 0..4 {
        assert_eq!(script.connection.check_stalled(after(20 * step)), Ok(()), "64 KiB/s");
        script.connection.sent(20 * RATE);
    }
    assert_eq!(script.connection.check_stalled(after(80)), Ok(()));
    script.connection.sent(1);
    assert_eq!(script.connection.check_stalled(after(109)), Ok(()));
    script.connection.sent(1);
    assert_eq!(script.connection.check_stalled(after(111)), Err(CloseReason::Stalled));
}

#[test]
fn a_slow_initiator_with_many_writes_has_the_time_for_all_of_them() {
    const LENGTH: usize = 256 << 10;
    let budget = Arc::new(Budget::new(16 * LENGTH));
    let settings = Settings { budget: budget.clone(), ..Settings::default() };
    let mut script = Script::established_with(settings, "InitialR2T=Yes\0ImmediateData=No\0");
    script.world.data_out_length = LENGTH;
    for tag in 1..=16 {
        script.command(tag, WRITE, LENGTH as u32, &[]);
    }
    assert!(budget.has_demand());
    let requests = std::iter::from_fn(|| {
        script.pdus.pop_front().or_else(|| {
            script.collect();
            script.pdus.pop_front()
        })
    });
    let requests: Vec<R2t> = requests.map(|(header, _)| *R2t::view(&header)).collect();
    // 4 seconds for each write are 64 KiB/s.
    for (request, step) in requests.iter().zip(0..) {
        let now = script.now + Duration::from_secs(4 * step);
        assert_eq!(script.connection.check_stalled(now), Ok(()));
        let tag = request.initiator_task_tag.get();
        script.data_out(tag, request.target_transfer_tag.get(), 0, 0, true, &[7; LENGTH]);
    }
    assert!(requests.len() > 5);
}
