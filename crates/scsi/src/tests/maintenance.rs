//! Logs, defects, buffers, self-tests, the timestamp, security protocols.

use crate::self_test::LOGGED_SELF_TESTS;
use crate::testing::*;
use crate::{Completion, Lun, Status};
use std::sync::atomic::Ordering;

/// Returns the rejected field: its byte, its bit, and whether it is in the CDB.
fn refused(completion: &Completion) -> (u16, Option<u8>, bool) {
    let field = completion.sense.as_ref().and_then(|sense| sense.field()).expect("a pointer");
    (field.byte, field.bit, field.in_cdb)
}

fn log_page(fixture: &mut Fixture, page: u8, subpage: u8) -> Vec<u8> {
    bytes(fixture.run(&[0x4d, 0, 0x40 | page, subpage, 0, 0, 0, 4, 0, 0], &[]))
}

#[test]
fn spc4_7_3_every_listed_log_page_is_there_and_as_long_as_it_says() {
    let mut fixture = Fixture::new();
    let list = log_page(&mut fixture, 0, 0);
    assert_eq!(list, [0, 0, 0, 6, 0x00, 0x0c, 0x0d, 0x0e, 0x10, 0x2f]);
    let pairs = log_page(&mut fixture, 0, 0xff);
    assert_eq!(pairs[..8], [0x40, 0xff, 0, 14, 0, 0, 0, 0xff]);
    for pair in pairs[4..].chunks_exact(2).filter(|pair| pair[0] != 0) {
        let page = log_page(&mut fixture, pair[0], pair[1]);
        assert_eq!(page[..2], [0x80 | pair[0], pair[1]]);
        assert_eq!(page.len(), 4 + usize::from(u16::from_be_bytes([page[2], page[3]])));
        let mut rest = &page[4..];
        let mut last = None;
        while let [high, low, control, length, ..] = *rest {
            let code = u16::from_be_bytes([high, low]);
            assert!(last < Some(code));
            assert_eq!(control, 0x23, "a binary list that is not saved");
            last = Some(code);
            rest = &rest[4 + usize::from(length)..];
        }
        assert!(rest.is_empty() && last.is_some());
    }
}

#[test]
fn spc4_6_8_log_sense_starts_at_parameter_pointer() {
    let mut fixture = Fixture::new();
    let page = bytes(fixture.run(&[0x4d, 0, 0x4d, 0, 0, 0, 1, 4, 0, 0], &[]));
    assert_eq!(page, [0x8d, 0, 0, 6, 0, 1, 0x23, 2, 0, 0xff], "the reference temperature");
    for (cdb, field) in [
        ([0x4d, 1, 0x4d, 0, 0, 0, 0, 4, 0, 0], (1, Some(0), true)),
        ([0x4d, 0, 0x59, 0, 0, 0, 0, 4, 0, 0], (2, Some(5), true)),
        ([0x4d, 0, 0x4d, 1, 0, 0, 0, 4, 0, 0], (3, None, true)),
        ([0x4d, 0, 0x4d, 0, 0, 0, 2, 4, 0, 0], (5, None, true)),
        ([0x4d, 0, 0x40, 0, 0, 0, 1, 4, 0, 0], (5, None, true)),
    ] {
        let completion = fixture.run(&cdb, &[]);
        assert_eq!(additional(&completion), Some(0x2400), "{cdb:02x?}");
        assert_eq!(refused(&completion), field);
    }
}

#[test]
fn spc4_7_3_start_stop_cycles_are_counted() {
    let mut fixture = Fixture::new();
    for action in [1, 0, 0, 1, 1, 0, 1] {
        assert_eq!(fixture.run(&[0x1b, 0, 0, 0, action, 0], &[]).status, Status::Good);
    }
    assert_eq!(log_page(&mut fixture, 0x0e, 0)[4..], [0, 4, 0x23, 4, 0, 0, 0, 2]);
}

#[test]
fn spc4_6_7_log_select_resets_and_tells_the_others() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    assert_eq!(fixture.run(&[0x1d, 0xa0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(log_page(&mut fixture, 0x10, 0)[8], 0xa0, "code 5, passed");
    // No parameter of this page can be reset, so there is no unit attention.
    assert_eq!(fixture.run(&[0x4c, 2, 0xcd, 0, 0, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(run(&mut other, &[0], &[]).status, Status::Good);
    assert_eq!(fixture.run(&[0x4c, 2, 0xc0, 0, 0, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(log_page(&mut fixture, 0x10, 0)[4..].len(), 20 * LOGGED_SELF_TESTS);
    assert_eq!(log_page(&mut fixture, 0x10, 0)[8..24], [0; 16]);
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2a02));
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
    let select = |flags, page, subpage, length| [0x4c, flags, page, subpage, 0, 0, 0, 0, length, 0];
    for (cdb, list, code, field) in [
        (select(1, 0, 0, 0), &[][..], 0x2400, (1, Some(0), true)),
        (select(2, 0, 0, 4), &[0; 4], 0x2400, (7, None, true)),
        (select(0, 0x0d, 0, 4), &[0; 4], 0x2400, (2, Some(5), true)),
        (select(2, 0x3e, 0, 0), &[], 0x2400, (2, Some(5), true)),
        (select(0, 0, 0, 4), &[0x3e, 0, 0, 0], 0x2600, (0, Some(5), false)),
        (select(0, 0, 0, 4), &[0x0d, 1, 0, 0], 0x2600, (1, None, false)),
        (select(0, 0, 0, 10), &[0x0d, 0, 0, 6, 0, 0, 0x23, 2, 0, 30], 0x2600, (4, None, false)),
    ] {
        let completion = fixture.run(&cdb, list);
        assert_eq!(additional(&completion), Some(code), "{cdb:02x?}");
        assert_eq!(refused(&completion), field);
    }
    for list in [&[0x0d, 0, 0][..], &[0x0d, 0, 0, 6]] {
        let completion = fixture.run(&select(0, 0, 0, list.len() as u8), list);
        assert_eq!(additional(&completion), Some(0x1a00));
    }
    assert_eq!(fixture.run(&select(0, 0, 0, 4), &[0x0d, 0, 0, 0]).status, Status::Good);
}

#[test]
fn sbc3_5_17_defect_lists_are_empty_in_each_format() {
    let mut fixture = Fixture::new();
    for format in 0..6 {
        for lists in [0x00, 0x08, 0x10, 0x18] {
            let flags = lists | format;
            let short = [0x37, 0, flags, 0, 0, 0, 0, 0, 32, 0];
            assert_eq!(bytes(fixture.run(&short, &[])), [0, flags, 0, 0]);
            let long = [0xb7, flags, 0, 0, 0, 9, 0, 0, 0, 32, 0, 0];
            assert_eq!(bytes(fixture.run(&long, &[])), [0, flags, 0, 0, 0, 0, 0, 0]);
        }
    }
    for format in [6, 7] {
        let completion = fixture.run(&[0x37, 0, format, 0, 0, 0, 0, 0, 32, 0], &[]);
        assert_eq!(refused(&completion), (2, Some(2), true));
        let completion = fixture.run(&[0xb7, format, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], &[]);
        assert_eq!(refused(&completion), (1, Some(2), true));
    }
}

#[test]
fn sbc3_5_19_reassigned_blocks_keep_their_data() {
    let mut fixture = Fixture::new();
    fixture.write(7, &[0x5a; 512]);
    let list = [0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0x0f, 0xff];
    assert_eq!(fixture.run(&[0x07, 0, 0, 0, 0, 0], &list).status, Status::Good);
    assert_eq!(fixture.read(7, 1), [0x5a; 512]);
    let long = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7];
    assert_eq!(fixture.run(&[0x07, 3, 0, 0, 0, 0], &long).status, Status::Good);
    // The address is beyond the end, and within it if it were truncated to 32 bits.
    let beyond = fixture.run(&[0x07, 2, 0, 0, 0, 0], &[0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 7]);
    assert_eq!(additional(&beyond), Some(0x2100));
    let sense = beyond.sense.unwrap().in_descriptor_format(true).to_bytes();
    assert_eq!(sense[8..], [1, 0x0a, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7]);
    for (flags, list, code) in [
        (0, &[0, 0, 0, 8, 0, 0, 0, 7][..], 0x1a00),
        (0, &[0, 0, 0], 0x1a00),
        (0, &[0, 0, 0, 5, 0, 0, 0, 7, 0], 0x2600),
        (3, &[0, 0, 0, 4, 0, 0, 0, 7], 0x2600),
        (1, &[0, 1, 0, 4], 0x2600),
    ] {
        let completion = fixture.run(&[0x07, flags, 0, 0, 0, 0], list);
        assert_eq!(additional(&completion), Some(code), "{list:02x?}");
    }
}

#[test]
fn spc4_6_18_shared_buffer_returns_written_data() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    let descriptor = [0x3c, 3, 0, 0, 0, 0, 0, 0, 4, 0];
    assert_eq!(bytes(fixture.run(&descriptor, &[])), [0, 1, 0, 0], "64 KiB, from any byte on");
    assert_eq!(bytes(fixture.run(&[0x3c, 3, 1, 0, 0, 0, 0, 0, 4, 0], &[])), [0; 4]);
    assert_eq!(bytes(fixture.run(&[0x3c, 2, 0, 0xff, 0xff, 0, 0, 0, 4, 0], &[])).len(), 0);
    let write = [0x3b, 2, 0, 0, 0xff, 0xfd, 0, 0, 3, 0];
    assert_eq!(fixture.run(&write, &[1, 2, 3]).status, Status::Good);
    let read = bytes(run(&mut other, &[0x3c, 2, 0, 0, 0xff, 0xfc, 0, 1, 0, 0], &[]));
    assert_eq!(read, [0, 1, 2, 3]);
    for (cdb, field) in [
        ([0x3b, 2, 0, 0, 0xff, 0xfd, 0, 0, 4, 0], (6, None, true)),
        ([0x3b, 2, 0, 1, 0, 1, 0, 0, 0, 0], (3, None, true)),
        ([0x3b, 2, 1, 0, 0, 0, 0, 0, 1, 0], (2, None, true)),
        ([0x3b, 5, 0, 0, 0, 0, 0, 0, 1, 0], (1, Some(4), true)),
        ([0x3b, 0x0a, 0, 0, 0, 0, 0, 0x10, 1, 0], (6, None, true)),
        ([0x3c, 2, 0, 1, 0, 1, 0, 0, 1, 0], (3, None, true)),
        ([0x3c, 2, 1, 0, 0, 0, 0, 0, 1, 0], (2, None, true)),
        ([0x3c, 0x1c, 0, 0, 0, 0, 0, 0, 1, 0], (1, Some(4), true)),
    ] {
        let completion = fixture.run(&cdb, &[0; 8192]);
        assert_eq!(additional(&completion), Some(0x2400), "{cdb:02x?}");
        assert_eq!(refused(&completion), field);
    }
}

#[test]
fn spc4_6_18_8_each_initiator_has_an_echo_of_its_own() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    let descriptor = bytes(fixture.run(&[0x3c, 0x0b, 0, 0, 0, 0, 0, 0, 4, 0], &[]));
    assert_eq!(descriptor, [1, 0, 0x10, 0]);
    let read = [0x3c, 0x0a, 0, 0, 0, 0, 0, 0x10, 0, 0];
    assert_eq!(additional(&fixture.run(&read, &[])), Some(0x2c00));
    fixture.run(&[0x3b, 0x0a, 0, 0, 0, 0, 0, 0, 2, 0], b"me");
    run(&mut other, &[0x3b, 0x0a, 0, 0, 0, 0, 0, 0, 3, 0], b"you");
    assert_eq!(bytes(fixture.run(&read, &[])), b"me");
    assert_eq!(bytes(run(&mut other, &read, &[])), b"you");
    fixture.nexus.logical_unit_reset(Lun(0));
    fixture.run(&[0], &[]);
    assert_eq!(additional(&fixture.run(&read, &[])), Some(0x2c00));
}

/// Runs SEND DIAGNOSTIC with a SELF-TEST CODE.
fn self_test(fixture: &mut Fixture, code: u8) -> Completion {
    fixture.run(&[0x1d, code << 5, 0, 0, 0, 0], &[])
}

/// Returns SELF-TEST CODE and SELF-TEST RESULTS of the latest tests.
fn self_test_log(fixture: &mut Fixture, count: usize) -> Vec<u8> {
    let page = log_page(fixture, 0x10, 0);
    page[4..].chunks_exact(20).map(|parameter| parameter[4]).take(count).collect()
}

#[test]
fn spc4_5_15_self_tests_pass_and_are_logged_with_the_hours() {
    let mut fixture = Fixture::new();
    fixture.host.unix_time_ms.store(3_600_000 * 5, Ordering::Relaxed);
    assert_eq!(fixture.run(&[0x1d, 0x04, 0, 0, 0, 0], &[]).status, Status::Good, "not logged");
    assert_eq!(self_test(&mut fixture, 5).status, Status::Good);
    assert_eq!(self_test(&mut fixture, 6).status, Status::Good);
    assert_eq!(self_test(&mut fixture, 1).status, Status::Good);
    assert_eq!(self_test_log(&mut fixture, 4), [0x2f, 0xc0, 0xa0, 0]);
    assert_eq!(additional(&self_test(&mut fixture, 2)), Some(0x0409), "one at a time");
    fixture.host.run_work();
    assert_eq!(self_test_log(&mut fixture, 4), [0x20, 0xc0, 0xa0, 0]);
    let page = log_page(&mut fixture, 0x10, 0);
    assert_eq!(
        page[4..20],
        [0, 1, 0x23, 16, 0x20, 0, 0, 5, 255, 255, 255, 255, 255, 255, 255, 255]
    );
    for _ in 0..LOGGED_SELF_TESTS {
        self_test(&mut fixture, 5);
    }
    assert_eq!(self_test_log(&mut fixture, LOGGED_SELF_TESTS + 1), [0xa0; LOGGED_SELF_TESTS]);
}

#[test]
fn spc4_5_15_self_tests_find_a_bad_block_and_tell_where() {
    let mut fixture = Fixture::new();
    *fixture.store.bad_block.lock().unwrap() = Some(BLOCKS - 1);
    for cdb in [[0x1d, 0x04, 0, 0, 0, 0], [0x1d, 0xa0, 0, 0, 0, 0]] {
        assert_eq!(additional(&fixture.run(&cdb, &[])), Some(0x3e03));
    }
    assert_eq!(self_test(&mut fixture, 2).status, Status::Good);
    fixture.host.run_work();
    assert_eq!(self_test_log(&mut fixture, 3), [0x47, 0xa7, 0]);
    let page = log_page(&mut fixture, 0x10, 0);
    assert_eq!(page[12..24], [0, 0, 0, 0, 0, 0, 0x0f, 0xff, 3, 0x11, 0, 0]);
}

#[test]
fn spc4_5_15_a_background_self_test_can_be_ended() {
    let mut fixture = Fixture::new();
    let none = self_test(&mut fixture, 4);
    assert_eq!((additional(&none), refused(&none)), (Some(0x2400), (1, Some(7), true)));
    self_test(&mut fixture, 2);
    assert_eq!(self_test(&mut fixture, 4).status, Status::Good);
    assert_eq!(self_test_log(&mut fixture, 2), [0x41, 0]);
    self_test(&mut fixture, 1);
    fixture.nexus.logical_unit_reset(Lun(0));
    fixture.run(&[0], &[]);
    assert_eq!(self_test_log(&mut fixture, 3), [0x22, 0x41, 0]);
    // The work of both tests runs only now, and changes nothing.
    fixture.host.run_work();
    assert_eq!(self_test_log(&mut fixture, 3), [0x22, 0x41, 0]);
    // A foreground test ends with its command.
    fixture.store.delay_polls.store(3, Ordering::Relaxed);
    let command = command(&[0x1d, 0xa0, 0, 0, 0, 0], &[]);
    drop(fixture.nexus.execute(Some(Lun(0)), command));
    fixture.store.delay_polls.store(0, Ordering::Relaxed);
    assert_eq!(self_test_log(&mut fixture, 2), [0xa2, 0x22]);
}

#[test]
fn spc4_7_2_the_only_diagnostic_page_lists_itself() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.run(&[0x1d, 0x10, 0, 0, 4, 0], &[0; 4]).status, Status::Good);
    assert_eq!(fixture.run(&[0x1d, 0x10, 0, 0, 0, 0], &[]).status, Status::Good);
    for flags in [0, 1] {
        let page = bytes(fixture.run(&[0x1c, flags, 0, 0, 255, 0], &[]));
        assert_eq!(page, [0, 0, 0, 1, 0]);
    }
    let receive = fixture.run(&[0x1c, 1, 0x40, 0, 255, 0], &[]);
    assert_eq!(refused(&receive), (2, None, true));
    for (cdb, list, code) in [
        ([0x1d, 0x10, 0, 0, 4, 0], &[0x40, 0, 0, 0][..], 0x2600),
        ([0x1d, 0x10, 0, 0, 4, 0], &[0, 0, 0, 1], 0x2600),
        ([0x1d, 0x10, 0, 0, 3, 0], &[0, 0, 0], 0x1a00),
        ([0x1d, 0x24, 0, 0, 0, 0], &[], 0x2400),
        ([0x1d, 0xe0, 0, 0, 0, 0], &[], 0x2400),
        ([0x1d, 0xa0, 0, 0, 4, 0], &[0; 4], 0x2400),
    ] {
        assert_eq!(additional(&fixture.run(&cdb, list)), Some(code), "{cdb:02x?}");
    }
}

#[test]
fn spc4_5_2_timestamp_counts_from_set_value() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    let report = [0xa3, 0x0f, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];
    fixture.host.unix_time_ms.store(0x0102_0304_0506, Ordering::Relaxed);
    let data = bytes(fixture.run(&report, &[]));
    assert_eq!(data, [0, 10, 3, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
    let set = |length| [0xa4, 0x0f, 0, 0, 0, 0, 0, 0, 0, length, 0, 0];
    let list = [0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0];
    assert_eq!(fixture.run(&set(12), &list).status, Status::Good);
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2a10));
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
    fixture.host.unix_time_ms.fetch_add(7, Ordering::Relaxed);
    let data = bytes(fixture.run(&report, &[]));
    assert_eq!(data, [0, 10, 2, 0, 0, 0, 0, 0, 0, 107, 0, 0]);
    assert_eq!(additional(&fixture.run(&set(11), &list[..11])), Some(0x1a00));
    assert_eq!(fixture.run(&set(0), &[]).status, Status::Good);
    assert_eq!(bytes(fixture.run(&report, &[]))[9], 107);
}

#[test]
fn spc4_7_7_the_only_security_protocol_is_the_list_of_them() {
    let mut fixture = Fixture::new();
    let list = bytes(fixture.run(&security_protocol_in(0, 0, 0, 255), &[]));
    assert_eq!(list, [0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(bytes(fixture.run(&security_protocol_in(0, 1, 0, 255), &[])), [0; 4]);
    let padded = bytes(fixture.run(&security_protocol_in(0, 0, 0x80, 1), &[]));
    assert_eq!((padded.len(), &padded[..9]), (512, &list[..]));
    assert_eq!(refused(&fixture.run(&security_protocol_in(0xef, 0, 0, 255), &[])), (1, None, true));
    assert_eq!(refused(&fixture.run(&security_protocol_in(0, 2, 0, 255), &[])), (2, None, true));
}

const fn security_protocol_in(protocol: u8, specific: u8, inc_512: u8, length: u8) -> [u8; 12] {
    [0xa2, protocol, 0, specific, inc_512, 0, 0, 0, 0, length, 0, 0]
}

#[test]
fn spc4_5_7_identifying_information_is_stored_and_reported_to_others() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    let set = |kind: u8, length| [0xa4, 6, 0, 0, 0, 0, 0, 0, 0, length, kind << 1, 0];
    let report = |kind: u8| [0xa3, 5, 0, 0, 0, 0, 0, 0, 1, 0, kind << 1, 0];
    assert_eq!(bytes(fixture.run(&report(0), &[])), [0; 4]);
    let supported = bytes(fixture.run(&report(0x7f), &[]));
    assert_eq!(supported, [0, 0, 0, 8, 0, 0, 2, 0, 4, 0, 1, 0]);
    assert_eq!(fixture.run(&set(0, 3), &[7, 0, 9]).status, Status::Good);
    assert_eq!(fixture.run(&set(2, 5), b"rack\0").status, Status::Good);
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x3f05));
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
    fixture.metadata.is_broken.store(true, Ordering::Relaxed);
    assert_eq!(additional(&fixture.run(&set(0, 1), &[1])), Some(0x4400));
    fixture.metadata.is_broken.store(false, Ordering::Relaxed);
    let mut later = Fixture::of(fixture.store.clone(), fixture.metadata.clone(), |_| {});
    assert_eq!(bytes(later.run(&report(0), &[])), [0, 0, 0, 3, 7, 0, 9]);
    assert_eq!(bytes(later.run(&report(2), &[])), *b"\0\0\0\x05rack\0");
    assert_eq!(later.run(&set(0, 0), &[]).status, Status::Good);
    assert_eq!(bytes(later.run(&report(0), &[])), [0; 4]);
    for (cdb, list, field) in [
        (set(1, 1), &[0][..], (10, Some(7), true)),
        ([0xa4, 6, 0, 0, 0, 0, 0, 0, 1, 1, 4, 0], &[0; 257], (6, None, true)),
        (set(2, 4), b"rack", (3, None, false)),
        (set(2, 5), b"ra\0k\0", (2, None, false)),
        (set(2, 5), b"ra\xffk\0", (2, None, false)),
    ] {
        assert_eq!(refused(&later.run(&cdb, list)), field, "{cdb:02x?}");
    }
    assert_eq!(refused(&later.run(&report(1), &[])), (10, Some(7), true));
    let mut kept_nowhere = Fixture::of(later.store, later.metadata, |parts| parts.metadata = None);
    assert_eq!(kept_nowhere.run(&report(0), &[]).status, Status::CheckCondition);
}
