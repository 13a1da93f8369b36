//! MODE SENSE and MODE SELECT: the content of each page, the changeable bits, and saving.

use crate::testing::*;
use crate::{Identity, LogicalUnit, Lun, MetadataKind, NexusHandle, Status};
use proptest::prelude::*;
use sarsen_block::BlockSize;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Selects the control page with these flags.
pub(super) fn select_control(fixture: &mut Fixture, flags_2: u8, flags_4: u8) -> crate::Completion {
    let list = [0, 0, 0, 0, 0x0a, 0x0a, flags_2, 0x10, flags_4, 0, 0, 0, 0xff, 0xff, 0, 120];
    fixture.run(&[0x15, 0x10, 0, 0, 16, 0], &list)
}

#[test]
fn spc4_7_5_8_d_sense_and_swp_apply_and_are_reported_to_others() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    assert_eq!(select_control(&mut fixture, 0x04, 0x08).status, Status::Good);
    let completion = fixture.write(0, &[0; 512]);
    assert_eq!(additional(&completion), Some(0x2702));
    assert_eq!(completion.sense.unwrap().to_bytes()[0], 0x72);
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2a01));
    assert_eq!(bytes(fixture.run(&[0x1a, 8, 0x0a, 0, 255, 0], &[]))[2], 0x90, "WP and DPOFUA");
    // Selecting the current values changes nothing.
    assert_eq!(select_control(&mut fixture, 0x04, 0x08).status, Status::Good);
    assert_eq!(run(&mut other, &[0], &[]).status, Status::Good);
}

#[test]
fn spc4_6_9_mode_selects_of_several_initiators_at_once_all_count() {
    let fixture = Fixture::new();
    // Each thread changes a page of its own.
    let changes: [(u8, u8, usize, u8); 2] = [(0x08, 0x12, 2, 0x04), (0x0a, 0x0a, 4, 0x08)];
    std::thread::scope(|scope| {
        for (page_code, page_length, byte, bit) in changes {
            let mut nexus = open(&fixture.device, "other");
            scope.spawn(move || {
                let ask = [0x1a, 8, page_code, 0, 255, 0];
                // Unit attentions report the other thread's changes.
                let sense = |nexus: &mut NexusHandle| loop {
                    let completion = run(nexus, &ask, &[]);
                    if completion.status == Status::Good {
                        break bytes(completion);
                    }
                };
                let mut list = sense(&mut nexus);
                assert_eq!(list[5], page_length);
                list[..4].fill(0);
                for _ in 0..2000 {
                    list[4 + byte] ^= bit;
                    let select = [0x15, 0x10, 0, 0, list.len() as u8, 0];
                    while additional(&run(&mut nexus, &select, &list)) == Some(0x2a01) {}
                    assert_eq!(sense(&mut nexus)[4..], list[4..], "page {page_code:02x}");
                }
            });
        }
    });
}

#[test]
fn spc4_6_11_mode_sense_tells_current_changeable_and_default_pages() {
    let mut fixture = Fixture::new();
    let data = bytes(fixture.run(&[0x1a, 0, 0x3f, 0, 255, 0], &[]));
    let pages: [(u8, usize); 6] =
        [(0x81, 12), (0x07, 12), (0x88, 20), (0x8a, 12), (0x1a, 40), (0x1c, 12)];
    assert_eq!(data.len(), 4 + 8 + 108);
    assert_eq!(data[..4], [119, 0, 0x10, 8]);
    assert_eq!(data[4..12], [0, 0, 0x10, 0, 0, 0, 2, 0]);
    let mut rest = &data[12..];
    for (code, length) in pages {
        assert_eq!(rest[..2], [code, length as u8 - 2]);
        rest = &rest[length..];
    }
    assert!(rest.is_empty());
    let changeable = bytes(fixture.run(&[0x1a, 8, 0x48, 0, 255, 0], &[]));
    assert_eq!(changeable[4..7], [0x88, 0x12, 0x04]);
    assert_eq!(changeable[7..], [0; 17]);
    let default = bytes(fixture.run(&[0x1a, 8, 0x88, 0, 255, 0], &[]));
    assert_eq!(default[4..8], [0x88, 0x12, 0x04, 0]);
    let long = bytes(fixture.run(&[0x5a, 0x10, 0x3f, 0xff, 0, 0, 0, 1, 0, 0], &[]));
    assert_eq!(long.len(), 8 + 16 + 172);
    assert_eq!(long[..8], [0, 194, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(long[8 + 16 + 56..][..6], [0x4a, 0x01, 0x00, 0x1c, 0x06, 0x00]);
    for (cdb, expected, byte) in [
        ([0x1a, 0, 0x05, 0, 255, 0], 0x2400, 2),
        ([0x1a, 0, 0x08, 1, 255, 0], 0x2400, 3),
        ([0x1a, 0, 0x3f, 1, 255, 0], 0x2400, 3),
    ] {
        let completion = fixture.run(&cdb, &[]);
        assert_eq!(additional(&completion), Some(expected));
        assert_eq!(completion.sense.unwrap().field().unwrap().byte, byte);
    }
    for (subpage, length) in [(0x00, 12), (0x01, 32), (0xff, 44)] {
        let data = bytes(fixture.run(&[0x1a, 8, 0x0a, subpage, 255, 0], &[]));
        assert_eq!(data.len(), 4 + length);
    }
}

#[test]
fn spc4_6_9_refused_mode_select_changes_nothing() {
    let mut fixture = Fixture::new();
    let good = caching_list(0, 0);
    let mut wrong_length = good.clone();
    wrong_length[5] = 0x11;
    let mut wrong_block = vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0x10, 0];
    wrong_block.extend(&good[4..]);
    let cut = good[..20].to_vec();
    for (list, expected) in [
        (caching_list(1, 0), 0x2600),
        (caching_list(0, 1), 0x2600),
        (wrong_length, 0x2600),
        (wrong_block, 0x2600),
        (cut, 0x1a00),
        (vec![0, 0, 0], 0x1a00),
        (vec![0, 0, 0, 8, 0], 0x1a00),
        ([&good[..], &[0x3f, 0]].concat(), 0x2600),
    ] {
        let completion = fixture.run(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list);
        assert_eq!(additional(&completion), Some(expected), "{list:02x?}");
    }
    assert_eq!(bytes(fixture.run(&[0x1a, 8, 0x08, 0, 255, 0], &[]))[6], 0x04);
    assert_eq!(fixture.run(&[0x15, 0x10, 0, 0, 0, 0], &[]).status, Status::Good);
}

/// Returns the parameter list of MODE SELECT(6) with the caching page, whose first two fields are these.
fn caching_list(wce: u8, retention: u8) -> Vec<u8> {
    let mut list = vec![0, 0, 0, 0, 0x08, 0x12, wce, retention];
    list.resize(24, 0);
    list
}

/// Returns the data of MODE SENSE(10) for all pages, without the header.
fn all_pages(fixture: &mut Fixture, page_control: u8) -> Vec<u8> {
    let cdb = [0x5a, 8, 0x3f | page_control << 6, 0xff, 0, 0, 0, 0xff, 0xff, 0];
    bytes(fixture.run(&cdb, &[])).split_off(8)
}

const CURRENT: u8 = 0;
const CHANGEABLE: u8 = 1;
const DEFAULT: u8 = 2;
const SAVED: u8 = 3;

#[test]
fn spc4_7_5_1_saved_pages_outlive_a_reset_and_the_program() {
    let mut fixture = Fixture::new();
    let list = [0, 0, 0, 0, 0x0a, 0x0a, 0x04, 0x10, 0x08, 0, 0, 0, 0xff, 0xff, 0, 120];
    assert_eq!(fixture.run(&[0x15, 0x11, 0, 0, 16, 0], &list).status, Status::Good);
    let saved = all_pages(&mut fixture, SAVED);
    assert_eq!(saved, all_pages(&mut fixture, CURRENT));
    assert_ne!(saved, all_pages(&mut fixture, DEFAULT));
    // Parameters that are selected without SP apply until the reset.
    assert_eq!(select_control(&mut fixture, 0, 0).status, Status::Good);
    assert_eq!(all_pages(&mut fixture, SAVED), saved);
    assert_ne!(all_pages(&mut fixture, CURRENT), saved);
    fixture.nexus.logical_unit_reset(Lun(0));
    fixture.run(&[0], &[]);
    assert_eq!(all_pages(&mut fixture, CURRENT), saved);
    let mut later = Fixture::of(fixture.store.clone(), fixture.metadata.clone(), |_| {});
    assert_eq!(all_pages(&mut later, CURRENT), saved);
    assert_eq!(additional(&later.write(0, &[0; 512])), Some(0x2702), "SWP");
}

#[test]
fn spc4_6_9_nothing_changes_where_saving_fails_or_is_not_possible() {
    let mut fixture = Fixture::new();
    let list = [0, 0, 0, 0, 0x0a, 0x0a, 0x04, 0x10, 0x08, 0, 0, 0, 0xff, 0xff, 0, 120];
    let before = all_pages(&mut fixture, CURRENT);
    fixture.metadata.is_broken.store(true, Ordering::Relaxed);
    assert_eq!(additional(&fixture.run(&[0x15, 0x11, 0, 0, 16, 0], &list)), Some(0x4400));
    assert_eq!(all_pages(&mut fixture, CURRENT), before);
    assert_eq!(all_pages(&mut fixture, SAVED), before);

    let store = Arc::new(TestStore::new(BlockSize::B512));
    let mut fixture = Fixture::of(store, Arc::default(), |parts| parts.metadata = None);
    let completion = fixture.run(&[0x15, 0x11, 0, 0, 16, 0], &list);
    assert_eq!(additional(&completion), Some(0x2400));
    assert_eq!(completion.sense.unwrap().to_bytes()[15..], [0xc8, 0, 1]);
    assert_eq!(additional(&fixture.run(&[0x1a, 0, 0xc8, 0, 255, 0], &[])), Some(0x3900));
    assert_eq!(bytes(fixture.run(&[0x1a, 8, 0x08, 0, 255, 0], &[]))[4], 0x08, "PS");
}

#[test]
fn spc5_6_14_rtd_restores_the_default_pages() {
    let mut fixture = Fixture::new();
    let default = all_pages(&mut fixture, CURRENT);
    let list = [0, 0, 0, 0, 0x0a, 0x0a, 0x04, 0x10, 0x08, 0, 0, 0, 0xff, 0xff, 0, 120];
    fixture.run(&[0x15, 0x11, 0, 0, 16, 0], &list);
    let refused = fixture.run(&[0x15, 0x12, 0, 0, 16, 0], &list);
    let refused = refused.sense.unwrap().in_descriptor_format(false);
    assert_eq!(refused.to_bytes()[15..], [0xc0, 0, 4]);
    assert_eq!(fixture.run(&[0x15, 0x02, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(all_pages(&mut fixture, CURRENT), default);
    assert_ne!(all_pages(&mut fixture, SAVED), default);
    assert_eq!(fixture.run(&[0x55, 0x03, 0, 0, 0, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(all_pages(&mut fixture, SAVED), default);
}

#[test]
fn a_damaged_record_of_mode_pages_keeps_the_unit_from_starting() {
    for damaged in [&[][..], &[2], &[1, 0x0a], &[1, 0x0a, 0x0a, 0], &[1, 0x4a, 1, 0]] {
        assert_eq!(
            unit_with_saved_mode_pages(damaged).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
    // Unknown pages, and pages with an unexpected length, are ignored.
    assert!(unit_with_saved_mode_pages(&[1, 0x3e, 1, 7, 0x0a, 1, 7]).is_ok());
}

fn unit_with_saved_mode_pages(record: &[u8]) -> io::Result<Arc<LogicalUnit>> {
    let metadata = TestMetadataStore::default();
    metadata.records.lock().unwrap().insert(MetadataKind::ModePages, record.to_vec());
    let store = Arc::new(TestStore::new(BlockSize::B512));
    let parts = TestParts::disk(Identity::new("data", "scope"), store);
    TestParts { metadata: Some(Arc::new(metadata)), ..parts }.unit()
}

fn field_of(completion: &crate::Completion) -> usize {
    let field = completion.sense.as_ref().and_then(|sense| sense.field()).unwrap();
    assert!(!field.in_cdb);
    field.byte.into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Either a list is rejected with a pointer to the wrong field and nothing changes, or MODE SENSE returns exactly
    /// the selected values.
    #[test]
    fn spc4_6_9_a_list_is_refused_or_holds(
        chosen in prop::collection::vec(0..7usize, 1..4),
        flips in prop::collection::vec((0..60usize, 0..8u8, any::<bool>()), 0..4),
        saves: bool,
    ) {
        let mut fixture = Fixture::new();
        let before = all_pages(&mut fixture, CURRENT);
        let mask = all_pages(&mut fixture, CHANGEABLE);
        let (pages, masks) = (split(&before), split(&mask));
        let mut list = vec![0; 8];
        let mut permitted = vec![0; 8];
        for &index in &chosen {
            list.extend_from_slice(pages[index]);
            list[8 + permitted.len() - 8] &= 0x7f;
            permitted.extend_from_slice(masks[index]);
        }
        for (position, bit, only_permitted) in flips {
            let byte = 8 + position % (list.len() - 8);
            if !only_permitted || permitted[byte] & (1 << bit) != 0 {
                list[byte] ^= 1 << bit;
            }
        }
        let length = list.len() as u8;
        let cdb = [0x55, 0x10 | u8::from(saves), 0, 0, 0, 0, 0, 0, length, 0];
        let completion = fixture.run(&cdb, &list);
        let after = all_pages(&mut fixture, CURRENT);
        if completion.status == Status::Good {
            let now = split(&after);
            // If the list contains a page twice, the later one applies.
            let mut end = list.len();
            let mut reported = Vec::new();
            for &index in chosen.iter().rev() {
                let begin = end - pages[index].len();
                if !reported.contains(&index) {
                    prop_assert_eq!(&now[index][1..], &list[begin + 1..end]);
                    reported.push(index);
                }
                end = begin;
            }
            let saved = all_pages(&mut fixture, SAVED);
            prop_assert_eq!(saved, if saves { after } else { before });
        } else {
            prop_assert_eq!(&after, &before);
            if additional(&completion) == Some(0x2600) {
                prop_assert!((8..list.len()).contains(&field_of(&completion)));
            } else {
                prop_assert_eq!(additional(&completion), Some(0x1a00));
            }
        }
    }
}

/// Returns the pages of a list.
fn split(mut pages: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !pages.is_empty() {
        let length = match pages[0] & 0x40 {
            0 => 2 + usize::from(pages[1]),
            _ => 4 + usize::from(u16::from_be_bytes([pages[2], pages[3]])),
        };
        let (page, rest) = pages.split_at(length);
        found.push(page);
        pages = rest;
    }
    found
}
