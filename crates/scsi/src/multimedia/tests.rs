//! CD and DVD: the data of each MMC-6 command byte by byte, and the rejected requests.

use super::{lba_of, msf_of};
use crate::testing::*;
use crate::{Completion, DeviceType, Status};
use sarsen_block::{BlockSize, Buffer, Durability, Extent, Store};
use sarsen_wire::scsi::multimedia::Msf;
use std::sync::Arc;

/// More blocks than the longest CD has.
const DVD_BLOCKS: u64 = 400_000;

fn cd() -> Fixture {
    let mut store = TestStore::new(BlockSize::B2048);
    store.characteristics.unmap = None;
    let store = Arc::new(store);
    // A block whose content differs from the others.
    let data = Buffer::copy_of(&[5; 2048]);
    block_on(store.write(Extent::new(5, 1), data.into(), Durability::Volatile)).unwrap();
    Fixture::of(store, Arc::default(), |parts| parts.device_type = DeviceType::Cd)
}

fn dvd() -> Fixture {
    let mut fixture = cd();
    resize(&mut fixture, DVD_BLOCKS);
    fixture
}

/// Changes the size of the disc, which the drive reports with the next command.
fn resize(fixture: &mut Fixture, block_count: u64) {
    block_on(fixture.store.resize(block_count)).unwrap();
    assert_eq!(additional(&fixture.run(&[0; 6], &[])), Some(0x2a09));
}

/// Returns the data of a command that succeeds.
fn data(fixture: &mut Fixture, cdb: &[u8]) -> Vec<u8> {
    let completion = fixture.run(cdb, &[]);
    assert_eq!(additional(&completion), None, "{cdb:02x?}");
    assert_eq!(completion.status, Status::Good, "{cdb:02x?}");
    bytes(completion)
}

/// Returns the additional sense of a rejected command, and the field in it.
fn refusal(fixture: &mut Fixture, cdb: &[u8]) -> (u16, Option<(u16, Option<u8>)>) {
    let Completion { sense, .. } = fixture.run(cdb, &[]);
    let sense = sense.unwrap_or_else(|| panic!("{cdb:02x?} succeeded"));
    (sense.additional().0, sense.field().map(|field| (field.byte, field.bit)))
}

fn field(byte: u16) -> (u16, Option<(u16, Option<u8>)>) {
    (0x2400, Some((byte, None)))
}

fn bit(byte: u16, bit: u8) -> (u16, Option<(u16, Option<u8>)>) {
    (0x2400, Some((byte, Some(bit))))
}

#[test]
fn mmc6_6_9_inquiry_names_a_cd_with_a_removable_medium() {
    let mut fixture = cd();
    let inquiry = data(&mut fixture, &[0x12, 0, 0, 0, 96, 0]);
    assert_eq!(inquiry[..8], [0x05, 0x80, 6, 0x32, 91, 0x30, 0, 2]);
    assert_eq!(inquiry[58..66], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xe0, 0x09, 0x60]);
    let pages = data(&mut fixture, &[0x12, 1, 0, 0, 96, 0]);
    assert!(!pages[4..].iter().any(|page| (0xb0..0xc0).contains(page)), "{pages:02x?}");
    assert_eq!((pages[0], pages[4..7].to_vec()), (0x05, vec![0x00, 0x80, 0x83]));
}

#[test]
fn mmc6_6_18_a_cd_is_read_in_blocks_of_2048_bytes_and_never_written() {
    let mut fixture = cd();
    assert_eq!(data(&mut fixture, &[0x25]), [0, 0, 0x0f, 0xff, 0, 0, 8, 0]);
    let long = data(&mut fixture, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32]);
    assert_eq!(long[..16], [0, 0, 0, 0, 0, 0, 0x0f, 0xff, 0, 0, 8, 0, 0, 0, 0, 0]);
    for cdb in [
        &[0x28, 0, 0, 0, 0, 5, 0, 0, 1, 0][..],
        &[0xa8, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0],
        &[0x88, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0],
        &[0xbe, 0, 0, 0, 0, 5, 0, 0, 1, 0x10, 0, 0],
        &[0xbe, 0x08, 0, 0, 0, 5, 0, 0, 1, 0x10, 0, 0],
        &[0xb9, 0, 0, 0, 2, 5, 0, 2, 6, 0x10, 0, 0],
    ] {
        assert_eq!(data(&mut fixture, cdb), [5; 2048], "{cdb:02x?}");
    }
    for cdb in [&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &[0x0a, 0, 0, 0, 1, 0], &[0x41], &[0x42]] {
        let refused = fixture.run(cdb, &[0; 2048]);
        assert_eq!(additional(&refused), Some(0x2000), "{cdb:02x?}");
    }
    assert_eq!(data(&mut fixture, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]), []);
    assert_eq!(data(&mut fixture, &[0x2b, 0, 0, 0, 0x0f, 0xff, 0, 0, 0, 0]), []);
    assert_eq!(refusal(&mut fixture, &[0x2b, 0, 0, 0, 0x10, 0, 0, 0, 0, 0]).0, 0x2100);
}

#[test]
fn mmc6_6_19_read_cd_returns_user_data_only() {
    let mut fixture = cd();
    assert_eq!(data(&mut fixture, &read_cd(0, 0, 0)), [], "nothing is selected");
    for sector_type in [1, 3, 4, 5, 6, 7] {
        assert_eq!(refusal(&mut fixture, &read_cd(sector_type, 0x10, 0)), (0x6400, None));
    }
    for selection in [0xf8, 0x80, 0x20, 0x40, 0x18, 0x12, 0x14] {
        assert_eq!(refusal(&mut fixture, &read_cd(2, selection, 0)), bit(9, 7), "{selection:02x}");
    }
    for sub_channel in [1, 2, 4] {
        assert_eq!(refusal(&mut fixture, &read_cd(2, 0x10, sub_channel)), bit(10, 2));
    }
    let last = [0xbe, 0, 0, 0, 0x0f, 0xff, 0, 0, 1, 0x10, 0, 0];
    assert_eq!(data(&mut fixture, &last).len(), 2048);
    let beyond = [0xbe, 0, 0, 0, 0x0f, 0xff, 0, 0, 2, 0x10, 0, 0];
    assert_eq!(refusal(&mut fixture, &beyond).0, 0x2100);
    let end_of_addresses = [0xbe, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0x10, 0, 0];
    assert_eq!(refusal(&mut fixture, &end_of_addresses).0, 0x2100);
    let too_long = [0xbe, 0, 0, 0, 0, 0, 0x00, 0x20, 0x01, 0x10, 0, 0];
    assert_eq!(refusal(&mut fixture, &too_long), field(6));
    for (cdb, refused) in [
        ([0xb9, 0, 0, 0, 1, 74, 0, 2, 1, 0x10, 0, 0], 3),
        ([0xb9, 0, 0, 0, 60, 0, 1, 0, 1, 0x10, 0, 0], 3),
        ([0xb9, 0, 0, 0, 2, 0, 0, 2, 75, 0x10, 0, 0], 6),
        ([0xb9, 0, 0, 0, 2, 2, 0, 2, 1, 0x10, 0, 0], 6),
    ] {
        assert_eq!(refusal(&mut fixture, &cdb), field(refused), "{cdb:02x?}");
    }
    assert_eq!(data(&mut fixture, &[0xb9, 0, 0, 0, 2, 0, 0, 2, 0, 0x10, 0, 0]), []);
}

/// Returns READ CD of block 5.
const fn read_cd(sector_type: u8, selection: u8, sub_channel: u8) -> [u8; 12] {
    [0xbe, sector_type << 2, 0, 0, 0, 5, 0, 0, 1, selection, sub_channel, 0]
}

#[test]
fn mmc6_6_26_read_toc_tells_one_track_and_the_lead_out() {
    let mut fixture = cd();
    let toc = |msf: u8, format, from, control| [0x43, msf, format, 0, 0, 0, from, 1, 0, control];
    let track = [0, 0x14, 1, 0, 0, 0, 0, 0];
    let lead_out = [0, 0x14, 0xaa, 0, 0, 0, 0x10, 0];
    let blocks = [&[0, 18, 1, 1][..], &track, &lead_out].concat();
    for from in [0, 1] {
        assert_eq!(data(&mut fixture, &toc(0, 0, from, 0)), blocks);
    }
    let only_lead_out = [&[0, 10, 1, 1][..], &lead_out].concat();
    assert_eq!(data(&mut fixture, &toc(0, 0, 0xaa, 0)), only_lead_out);
    // 4096 frames and the 150 frames of the pregap are 56 seconds and 46 frames.
    let minutes = [0, 18, 1, 1, 0, 0x14, 1, 0, 0, 0, 2, 0, 0, 0x14, 0xaa, 0, 0, 0, 56, 46];
    assert_eq!(data(&mut fixture, &toc(2, 0, 0, 0)), minutes);
    let session = [0, 10, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0];
    assert_eq!(data(&mut fixture, &toc(0, 1, 0, 0)), session);
    assert_eq!(data(&mut fixture, &toc(0, 0, 0, 0x40)), session, "FORMAT as in SFF-8020");
    let raw = [
        &[0, 46, 1, 1][..],
        &[1, 0x14, 0, 0xa0, 0, 0, 0, 0, 1, 0, 0],
        &[1, 0x14, 0, 0xa1, 0, 0, 0, 0, 1, 0, 0],
        &[1, 0x14, 0, 0xa2, 0, 0, 0, 0, 0, 56, 46],
        &[1, 0x14, 0, 1, 0, 0, 0, 0, 0, 2, 0],
    ]
    .concat();
    assert_eq!(data(&mut fixture, &toc(2, 2, 1, 0)), raw);
    assert_eq!(data(&mut fixture, &toc(2, 0, 1, 0x80)), raw);
    for (cdb, refused) in [
        (toc(0, 0, 2, 0), field(6)),
        (toc(0, 0, 0xab, 0), field(6)),
        (toc(2, 2, 2, 0), field(6)),
        (toc(0, 3, 0, 0), bit(2, 3)),
        (toc(2, 5, 0, 0), bit(2, 3)),
        (toc(0, 0, 0, 0xc0), bit(2, 3)),
    ] {
        assert_eq!(refusal(&mut fixture, &cdb), refused, "{cdb:02x?}");
    }
    resize(&mut fixture, 1 << 33);
    assert_eq!(data(&mut fixture, &toc(0, 0, 0xaa, 0))[8..], [0xff; 4]);
    assert_eq!(data(&mut fixture, &toc(2, 0, 0xaa, 0))[8..], [0, 0xff, 59, 74]);
}

/// Every response is the same for any allocation length, down to zero, except that it is truncated.
#[test]
fn mmc6_4_1_allocation_lengths_cut_and_change_nothing() {
    let mut fixture = dvd();
    // A CDB, the last byte of its allocation length, and the full length of its data.
    for (cdb, low_byte, whole) in [
        (&[0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], 8, 20),
        (&[0x43, 2, 2, 0, 0, 0, 0, 0, 0, 0], 8, 48),
        (&[0x46, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, 112),
        (&[0x4a, 1, 0, 0, 0x02, 0, 0, 0, 0, 0], 8, 8),
        (&[0x51, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, 34),
        (&[0x52, 1, 0, 0, 0, 1, 0, 0, 0, 0], 8, 36),
        (&[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 0, 0], 8, 74),
        (&[0x1a, 0, 0x3f, 0, 0, 0], 4, 70),
        (&[0xad, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], 9, 8),
        (&[0xad, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0], 9, 16),
        (&[0xbd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 9, 8),
    ] {
        let mut cdb = cdb.to_vec();
        cdb[low_byte] = 255;
        let all = data(&mut fixture, &cdb);
        assert_eq!(all.len(), whole, "{cdb:02x?}");
        for length in 0..=whole as u8 + 1 {
            cdb[low_byte] = length;
            let cut = data(&mut fixture, &cdb);
            assert_eq!(cut, all[..whole.min(length.into())], "{cdb:02x?}");
        }
    }
    let physical = data(&mut fixture, &[0xad, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
    assert_eq!(physical.len(), 2052);
}

/// Returns the features of GET CONFIGURATION: code and flags of each.
fn features(configuration: &[u8]) -> Vec<(u16, u8)> {
    let length = u32::from_be_bytes(configuration[..4].try_into().unwrap());
    assert_eq!(configuration.len(), 4 + length as usize);
    let mut rest = &configuration[8..];
    let mut features = Vec::new();
    while let [high, low, flags, length, ..] = *rest {
        assert_eq!(length % 4, 0);
        features.push((u16::from_be_bytes([high, low]), flags));
        rest = &rest[4 + usize::from(length)..];
    }
    assert!(rest.is_empty());
    features
}

#[test]
fn mmc6_6_6_get_configuration_follows_the_disc() {
    let ask =
        |request_type, [high, low]: [u8; 2]| [0x46, request_type, high, low, 0, 0, 0, 1, 0, 0];
    let (mut cd, mut dvd) = (cd(), dvd());
    let of_cd = data(&mut cd, &ask(0, [0, 0]));
    assert_eq!(of_cd[..8], [0, 0, 0, 108, 0, 0, 0, 0x08]);
    assert_eq!(of_cd[8..20], [0, 0, 3, 8, 0, 0x10, 0, 0, 0, 0x08, 1, 0]);
    assert_eq!(of_cd[20..32], [0, 1, 0x0b, 8, 0, 0, 0, 1, 1, 0, 0, 0]);
    assert_eq!(of_cd[32..40], [0, 2, 0x07, 4, 2, 0, 0, 0]);
    assert_eq!(of_cd[40..48], [0, 3, 0x07, 4, 0x39, 0, 0, 0]);
    assert_eq!(of_cd[48..60], [0, 0x10, 0x01, 8, 0, 0, 8, 0, 0, 1, 1, 0]);
    let persistent = [(0, 3), (1, 0x0b), (2, 7), (3, 7)];
    let management = [(0x100, 3), (0x105, 7), (0x108, 3)];
    let all = |read: [(u16, u8); 4]| [&persistent[..], &read, &management].concat();
    assert_eq!(features(&of_cd), all([(0x10, 1), (0x1d, 1), (0x1e, 0x09), (0x1f, 0x04)]));
    let of_dvd = data(&mut dvd, &ask(0, [0, 0]));
    assert_eq!(of_dvd[6..20], [0, 0x10, 0, 0, 3, 8, 0, 0x10, 1, 0, 0, 0x08, 0, 0]);
    assert_eq!(features(&of_dvd), all([(0x10, 1), (0x1d, 0), (0x1e, 0x08), (0x1f, 0x05)]));
    assert_eq!(data(&mut dvd, &ask(2, [0, 0x10]))[16..18], [0, 16]);

    let current = features(&data(&mut cd, &ask(1, [0, 0x10])));
    assert_eq!(current, [&[(0x10, 1), (0x1d, 1), (0x1e, 9)][..], &management].concat());
    assert_eq!(features(&data(&mut cd, &ask(2, [0, 0x1f]))), [(0x1f, 4)]);
    assert_eq!(features(&data(&mut cd, &ask(0, [0x01, 0x05]))), [(0x105, 7), (0x108, 3)]);
    for nothing in [ask(2, [0, 0x04]), ask(0, [0xff, 0xff]), ask(1, [0x01, 0x09])] {
        assert_eq!(data(&mut cd, &nothing), [0, 0, 0, 4, 0, 0, 0, 8]);
    }
    assert_eq!(refusal(&mut cd, &ask(3, [0, 0])), bit(1, 1));

    cd.run(&[0x1b, 0, 0, 0, 2, 0], &[]);
    let empty = data(&mut cd, &ask(1, [0, 0]));
    assert_eq!(empty[4..8], [0; 4], "no profile is current");
    assert_eq!(features(&empty), [&persistent[..], &management].concat());
}

#[test]
fn mmc6_6_6_configuration_and_events_come_before_unit_attentions() {
    let mut fixture = cd();
    let mut other = open(&fixture.device, "two");
    assert_eq!(run(&mut other, &[0x46, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[]).status, Status::Good);
    assert_eq!(run(&mut other, &[0x4a, 1, 0, 0, 0x10, 0, 0, 0, 8, 0], &[]).status, Status::Good);
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2900));
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
}

#[test]
fn mmc6_6_7_each_nexus_gets_medium_event_once() {
    let ask = |classes, length| [0x4a, 1, 0, 0, classes, 0, 0, 0, length, 0];
    let mut fixture = cd();
    let mut other = open(&fixture.device, "two");
    for nexus in [&mut fixture.nexus, &mut other] {
        assert_eq!(bytes(run(nexus, &ask(0x10, 8), &[])), [0, 6, 4, 0x56, 2, 2, 0, 0]);
        assert_eq!(bytes(run(nexus, &ask(0x10, 8), &[])), [0, 6, 4, 0x56, 0, 2, 0, 0]);
    }
    fixture.run(&[0x1b, 0, 0, 0, 2, 0], &[]);
    // The event of the medium is reported before classes without events. A header alone does not clear it.
    assert_eq!(data(&mut fixture, &ask(0x56, 4)), [0, 6, 1, 0x56]);
    assert_eq!(data(&mut fixture, &ask(0x56, 8)), [0, 6, 4, 0x56, 3, 1, 0, 0]);
    assert_eq!(data(&mut fixture, &ask(0x56, 8)), [0, 6, 1, 0x56, 0, 0, 0, 0]);
    fixture.run(&[0x1b, 0, 0, 0, 3, 0], &[]);
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2900));
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2800));
    for nexus in [&mut fixture.nexus, &mut other] {
        assert_eq!(bytes(run(nexus, &ask(0x10, 8), &[])), [0, 6, 4, 0x56, 2, 2, 0, 0]);
    }
    assert_eq!(data(&mut fixture, &ask(0x04, 8)), [0, 6, 2, 0x56, 0, 1, 0, 0]);
    assert_eq!(data(&mut fixture, &ask(0x40, 8)), [0, 6, 6, 0x56, 0, 0, 0, 0]);
    for unknown in [0, 0x08, 0x20, 0xa9] {
        assert_eq!(data(&mut fixture, &ask(unknown, 8)), [0, 2, 0x80, 0x56]);
    }
    assert_eq!(refusal(&mut fixture, &[0x4a, 0, 0, 0, 0x10, 0, 0, 0, 8, 0]), bit(1, 0));
}

#[test]
fn mmc6_6_14_persistent_prevention_is_reported_and_locks_tray() {
    let mut fixture = cd();
    let locked = [0x5a, 0, 0x2a, 0, 0, 0, 0, 0, 255, 0];
    assert_eq!(data(&mut fixture, &locked)[14], 0x29);
    fixture.run(&[0x1e, 0, 0, 0, 3, 0], &[]);
    assert_eq!(data(&mut fixture, &locked)[14], 0x2b);
    let operational = [0x4a, 1, 0, 0, 0x02, 0, 0, 0, 8, 0];
    assert_eq!(data(&mut fixture, &operational), [0, 6, 1, 0x56, 0, 0x80, 0, 0]);
    assert_eq!(refusal(&mut fixture, &[0x1b, 0, 0, 0, 2, 0]).0, 0x5302);
    fixture.run(&[0x1e, 0, 0, 0, 2, 0], &[]);
    assert_eq!(data(&mut fixture, &[0x1b, 0, 0, 0, 2, 0]), []);
}

#[test]
fn mmc6_6_42_open_tray_answers_inquiry_but_no_read() {
    let mut fixture = dvd();
    let mechanism = [0xbd, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    assert_eq!(data(&mut fixture, &mechanism), [0; 8]);
    fixture.run(&[0x1b, 0, 0, 0, 2, 0], &[]);
    assert_eq!(data(&mut fixture, &mechanism), [0, 0x10, 0, 0, 0, 0, 0, 0]);
    for operation_code in
        [0x00, 0x25, 0x28, 0x2b, 0x35, 0x43, 0x51, 0x52, 0xa8, 0xac, 0xad, 0xb9, 0xbe]
    {
        let refused = fixture.run(&[operation_code], &[]);
        assert_eq!(additional(&refused), Some(0x3a02), "{operation_code:02x}");
    }
    for cdb in [
        &[0x12, 0, 0, 0, 96, 0][..],
        &[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 255, 0],
        &[0x46, 0, 0, 0, 0, 0, 0, 0, 255, 0],
    ] {
        assert!(!data(&mut fixture, cdb).is_empty(), "{cdb:02x?}");
    }
    assert_eq!(data(&mut fixture, &[0x1b, 0, 0, 0, 3, 0]), []);
    assert_eq!(data(&mut fixture, &[0]), []);
}

#[test]
fn mmc6_6_21_disc_information_is_that_of_a_complete_disc() {
    let mut fixture = cd();
    let information = data(&mut fixture, &[0x51, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(information[..12], [0, 32, 0x0e, 1, 1, 1, 1, 0x20, 0, 0, 0, 0]);
    assert_eq!(information[12..24], [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    assert_eq!(information[24..], [0; 10]);
    for data_type in 1..8 {
        let cdb = [0x51, data_type, 0, 0, 0, 0, 0, 0, 255, 0];
        assert_eq!(refusal(&mut fixture, &cdb), bit(1, 2));
    }
}

#[test]
fn mmc6_6_27_track_information_by_block_by_track_and_by_session() {
    let mut fixture = cd();
    let information = data(&mut fixture, &read_track_information(1, 1));
    assert_eq!(information[..8], [0, 34, 1, 1, 0, 4, 1, 0]);
    assert_eq!(information[8..24], [0; 16]);
    assert_eq!(information[24..28], [0, 0, 0x10, 0]);
    for same in [
        read_track_information(0, 0),
        read_track_information(0, 4095),
        read_track_information(2, 1),
    ] {
        assert_eq!(data(&mut fixture, &same), information, "{same:02x?}");
    }
    for address in [4096, u32::MAX] {
        assert_eq!(refusal(&mut fixture, &read_track_information(0, address)).0, 0x2100);
    }
    for wrong in [
        read_track_information(1, 0),
        read_track_information(1, 2),
        read_track_information(1, 0xff),
        read_track_information(2, 0),
        read_track_information(2, 2),
    ] {
        assert_eq!(refusal(&mut fixture, &wrong), field(2), "{wrong:02x?}");
    }
    assert_eq!(refusal(&mut fixture, &read_track_information(3, 0)), bit(1, 1));
}

const fn read_track_information(address_type: u8, address: u32) -> [u8; 10] {
    let [a, b, c, d] = address.to_be_bytes();
    [0x52, address_type, a, b, c, d, 0, 0, 255, 0]
}

#[test]
fn mmc6_6_22_disc_structures_are_those_of_a_dvd() {
    let ask = |media, layer, format| [0xad, media, 0, 0, 0, 0, layer, format, 8, 4, 0, 0];
    let mut fixture = dvd();
    let physical = data(&mut fixture, &ask(0, 0, 0));
    assert_eq!(physical[..4], [0x08, 0x02, 0, 0]);
    // 400,000 sectors from 30000h on.
    assert_eq!(physical[4..16], [0x01, 0x0f, 0x01, 0, 0, 3, 0, 0, 0, 0x09, 0x1a, 0x7f]);
    assert_eq!(physical[16..], [0; 2036]);
    assert_eq!(data(&mut fixture, &ask(0, 0, 1)), [0, 6, 0, 0, 0, 0, 0, 0]);
    assert_eq!(data(&mut fixture, &ask(0, 0, 4)).len(), 2052);
    let list = data(&mut fixture, &ask(0, 0, 0xff));
    assert_eq!(list[..8], [0, 14, 0, 0, 0, 0x40, 0x08, 0x04]);
    for (cdb, refused) in [
        (ask(1, 0, 0), bit(1, 3)),
        (ask(0, 1, 0), field(6)),
        (ask(0, 0, 2), field(7)),
        (ask(0, 0, 0x30), field(7)),
    ] {
        assert_eq!(refusal(&mut fixture, &cdb), refused, "{cdb:02x?}");
    }
    assert_eq!(refusal(&mut cd(), &ask(0, 0, 0)), (0x3002, None), "a CD has none");
}

#[test]
fn mmc6_6_8_performance_is_nominal_and_never_that_of_writing() {
    let mut fixture = cd();
    let ask = |data_type, maximum, kind| [0xac, data_type, 0, 0, 0, 1, 0, 0, 0, maximum, kind, 0];
    let nominal =
        [0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0x1b, 0x90, 0, 0, 0x0f, 0xff, 0, 0, 0x1b, 0x90];
    assert_eq!(data(&mut fixture, &ask(0x10, 9, 0)), nominal);
    assert_eq!(data(&mut fixture, &ask(0x10, 0, 0)), nominal[..8]);
    for none in [ask(0x14, 9, 0), ask(0x12, 9, 0), ask(0, 9, 3)] {
        assert_eq!(data(&mut fixture, &none), [0, 0, 0, 4, 0, 0, 0, 0]);
    }
    assert_eq!(refusal(&mut fixture, &ask(0, 9, 1)), field(10));
    let beyond = [0xac, 0x10, 0, 0, 0x10, 0, 0, 0, 0, 1, 0, 0];
    assert_eq!(refusal(&mut fixture, &beyond).0, 0x2100);
    assert_eq!(data(&mut fixture, &[0xbb, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]), []);
}

#[test]
fn mmc6_7_mode_pages_are_reported_and_unchangeable() {
    let mut fixture = cd();
    let all = data(&mut fixture, &[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(all[..8], [0, 72, 0, 0, 0, 0, 0, 0]);
    let codes = [all[8], all[20], all[32], all[42]];
    assert_eq!(codes, [0x01, 0x1a, 0x1d, 0x2a]);
    assert_eq!(
        all[42..60],
        [0x2a, 0x1e, 0x0b, 0, 0, 0, 0x29, 0, 0x1b, 0x90, 0, 0, 0, 0, 0x1b, 0x90, 0, 0]
    );
    let short = data(&mut fixture, &[0x1a, 0, 0x3f, 0, 255, 0]);
    assert_eq!(short[..4], [69, 0, 0, 0]);
    assert_eq!(short[4..], all[8..]);
    let changeable = data(&mut fixture, &[0x1a, 0, 0x6a, 0, 255, 0]);
    assert_eq!(changeable[4..6], [0x2a, 0x1e]);
    assert_eq!(changeable[6..], [0; 30]);
    assert_eq!(data(&mut fixture, &[0x1a, 0, 0xbf, 0, 255, 0]), short, "the defaults");
    assert_eq!(refusal(&mut fixture, &[0x1a, 0, 0xc1, 0, 255, 0]).0, 0x3900);
    assert_eq!(refusal(&mut fixture, &[0x1a, 0, 0x08, 0, 255, 0]), bit(2, 5));
    assert_eq!(refusal(&mut fixture, &[0x1a, 0, 0x2a, 1, 255, 0]), field(3));

    let mut select = |list: &[u8]| {
        let length = list.len() as u8;
        let completion = fixture.run(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, length, 0], list);
        completion.sense.map(|sense| (sense.additional().0, sense.field().map(|field| field.byte)))
    };
    let mut list = all.clone();
    list[..2].fill(0);
    assert_eq!(select(&list), None);
    assert_eq!(select(&[]), None);
    assert_eq!(select(&list[..8]), None);
    assert_eq!(select(&list[..7]), Some((0x1a00, None)));
    assert_eq!(select(&list[..19]), Some((0x1a00, None)));
    assert_eq!(select(&list[..9]), Some((0x1a00, None)));
    for (index, byte) in [(7, 8), (8, 0x08), (8, 0x41), (9, 9), (11, 1), (48, 0x2b)] {
        let mut wrong = list.clone();
        wrong[index] = byte;
        let pointed = if index == 7 { 6 } else { index as u16 };
        assert_eq!(select(&wrong), Some((0x2600, Some(pointed))), "byte {index}");
    }
    let short_list = [&[0; 4][..], &all[8..20]].concat();
    assert_eq!(fixture.run(&[0x15, 0x10, 0, 0, 16, 0], &short_list).status, Status::Good);
    assert_eq!(refusal(&mut fixture, &[0x15, 0x00, 0, 0, 16, 0]), bit(1, 4));
    assert_eq!(refusal(&mut fixture, &[0x15, 0x11, 0, 0, 16, 0]), bit(1, 0));
}

#[test]
fn a_disk_has_none_of_a_cds_commands() {
    let mut fixture = Fixture::new();
    for operation_code in [0x2b, 0x43, 0x46, 0x4a, 0x51, 0x52, 0xac, 0xad, 0xb9, 0xbb, 0xbd, 0xbe] {
        assert_eq!(additional(&fixture.run(&[operation_code], &[])), Some(0x2000));
    }
}

#[test]
fn mmc6_4_2_3_minutes_and_blocks_tell_the_same_place() {
    let msf = |minute, second, frame| Msf { minute, second, frame };
    for (lba, place) in
        [(0, msf(0, 2, 0)), (1, msf(0, 2, 1)), (4350, msf(1, 0, 0)), (449_849, msf(99, 59, 74))]
    {
        assert_eq!(msf_of(lba), place);
        assert_eq!(lba_of(place), Some(lba));
    }
    for lba in [449_850, u32::MAX] {
        assert_eq!(msf_of(lba), msf(0xff, 59, 74));
    }
    for nowhere in [msf(0, 1, 74), msf(0, 60, 0), msf(3, 0, 75)] {
        assert_eq!(lba_of(nowhere), None);
    }
}
