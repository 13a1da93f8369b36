//! Connections that move between cores.

use super::*;

/// Returns the CDB of READ(10) or WRITE(10) of one block.
fn one_block(operation_code: u8, lba: u8) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[5], cdb[8]) = (operation_code, lba, 1);
    cdb
}

impl Peer {
    /// Sends a command, again if the answer is a unit attention: the full store reports that it is full.
    fn answer(&mut self, send: impl Fn(&mut Self)) -> (RawHeader, Vec<u8>) {
        loop {
            send(self);
            let (header, data) = self.receive_all();
            let is_response = header.basic().opcode() == Opcode::ScsiResponse;
            if !(is_response && data.get(4) == Some(&0x06)) {
                return (header, data);
            }
        }
    }

    /// Writes a block, reads it again and compares.
    fn write_and_read(&mut self, lba: u8, byte: u8) {
        let write = one_block(0x2a, lba);
        let (header, sense) =
            self.answer(|peer| peer.command(&write, ScsiCommand::WRITE, &[byte; 512]));
        assert_eq!(header.basic().opcode(), Opcode::ScsiResponse);
        assert_eq!(ScsiResponse::view(&header).status, 0, "block {lba}: {sense:02x?}");
        let (header, data) = self.answer(|peer| {
            let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
            command.flags |= ScsiCommand::READ;
            command.initiator_task_tag = peer.cmd_sn.into();
            command.expected_data_transfer_length = 512.into();
            command.cmd_sn = peer.cmd_sn.into();
            command.cdb = one_block(0x28, lba);
            peer.cmd_sn += 1;
            peer.send(command, &[]);
        });
        assert_eq!(header.basic().opcode(), Opcode::DataIn, "block {lba}: {data:02x?}");
        assert_eq!(data, [byte; 512]);
    }
}

#[test]
fn a_session_goes_on_whatever_core_serves_its_connections() {
    let cores = Cores::start(NonZeroUsize::new(2), FileEngine::Pool, Spin::Auto);
    let (gate, is_open) = watch::channel(true);
    let mut loads = None;
    let always_moving = |front, cores: &Arc<Cores>| {
        let acceptor = Acceptor::always_moving(front, cores);
        loads = Some(acceptor.loads());
        acceptor
    };
    let portal = Portal::on(cores.expect("cores"), always_moving, Limits::default(), Some(is_open));
    let loads = loads.expect("it was created");
    let (mut first, status) = portal.login(1);
    assert_eq!(status, LoginStatus::Success);
    let (mut second, status) = portal.connect(1, first.tsih, 1);
    assert_eq!(status, LoginStatus::Success);
    first.command(&[0; 16], 0, &[]);
    first.receive();
    for round in 0..200u8 {
        // The connections of a session share its command numbers.
        first.write_and_read(round % 32, round);
        second.cmd_sn = first.cmd_sn;
        second.write_and_read(32 + round % 32, !round);
        first.cmd_sn = second.cmd_sn;
    }
    assert!(loads.moves() > 200, "{} moves", loads.moves());
    // A message reaches a connection on the core to which it has moved.
    let (mut other, _) = portal.login(2);
    other.reset_unit();
    assert_eq!(other.management_response(), TaskManagementResponse::FunctionComplete);
    first.log_out();
    other.log_out();
    assert_eq!(portal.front.sessions.count(), 0);
    drop(gate);
}
