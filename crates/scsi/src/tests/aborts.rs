//! Long commands that are aborted: the abort waits for the end of a piece, not for the end of the command.

use super::copy::{Second, cscd, list, read, segment};
use crate::testing::*;
use crate::{Command, Lun, NexusHandle, Status};
use sarsen_block::{BlockSize, Io};
use std::sync::atomic::Ordering;

const NAME: u64 = 9;

fn named(cdb_bytes: &[u8], data_out: &[u8]) -> Command {
    Command { name: NAME, ..command(cdb_bytes, data_out) }
}

fn by_name(nexus: &mut NexusHandle) {
    nexus.abort(&[NAME]);
}

#[test]
fn sbc3_4_11_a_sanitize_whose_command_is_aborted_goes_on_without_it() {
    for abort in [by_name, NexusHandle::abort_all] {
        let mut fixture = Fixture::new();
        fixture.write(0, &[7; 512]);
        let pattern = [0x01, 0, 0, 1, 0xaa];
        let sanitize = named(&[0x48, 0x01, 0, 0, 0, 0, 0, 0, 5, 0], &pattern);
        let mut answer = Box::pin(fixture.nexus.execute(Some(Lun(0)), sanitize).wait());
        assert!(poll(&mut answer).is_none());
        fixture.nexus.abort(&[NAME + 1]);
        assert!(poll(&mut answer).is_none(), "another command was aborted");
        abort(&mut fixture.nexus);
        let completion = poll(&mut answer).expect("the command ends at once");
        assert_eq!(completion.status, Status::TaskAborted);
        assert_eq!(additional(&fixture.run(&[0; 6], &[])), Some(0x041b), "it is under way");
        fixture.host.run_work();
        assert_eq!(additional(&fixture.run(&[0; 6], &[])), Some(0x3807), "all room is taken");
        assert_eq!(fixture.read(0, 1), [0xaa; 512]);
    }
}

#[test]
fn sam5_7_2_a_copy_whose_command_is_aborted_ends_before_its_next_piece() {
    let mut fixture = Fixture::new();
    let mut second = Second::beside(&fixture, BlockSize::B512);
    fixture.write(0, &[7; 1024]);
    let units = [cscd(&fixture.unit), cscd(&second.unit)];
    let list = list(0, 3, &units, &[segment(0, 1, 1, 0, 0), segment(0, 1, 1, 1, 1)]);
    let mut cdb_bytes = vec![0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb_bytes.extend((list.len() as u32).to_be_bytes());
    cdb_bytes.extend([0; 2]);
    second.store.delay_polls.store(3, Ordering::Relaxed);
    let copy = fixture.nexus.execute(Some(Lun(0)), named(&cdb_bytes, &list));
    let mut copy = Box::pin(copy.wait());
    assert!(poll(&mut copy).is_none(), "the first piece is being written");
    by_name(&mut fixture.nexus);
    assert_eq!(block_on(Io::Pending(copy)).status, Status::TaskAborted);
    second.store.delay_polls.store(0, Ordering::Relaxed);
    assert_eq!(read(&mut second.nexus, 0, 2), [[7; 512], [0; 512]].concat());
}
