//! Commands that compare, and WRITE SAME.

use super::*;

const VERIFY: u8 = 0x8f;
const WRITE_AND_VERIFY: u8 = 0x8e;
const WRITE_SAME: u8 = 0x93;
const COMPARE_EACH: u8 = 0x02;
const COMPARE_ONE: u8 = 0x06;

#[test]
fn sbc3_5_29_vrprotect_without_comparison_checks_the_medium() {
    for protection_type in [ProtectionType::Type1, ProtectionType::Type3] {
        let mut fixture = fixture(protection_type, BlockSize::B512);
        let good = blocks(512, 10, 5, 0x1234, 10);
        for code in 0..6 {
            let cdb = cdb_16(VERIFY, code, 0, 10, 5);
            fixture.put_on_medium(10, &good);
            assert_eq!(outcome(&fixture.run_exactly(&cdb, &[])), Ok(()));
            for (field, change) in SPOILT {
                let mut spoilt = good.clone();
                spoil(&mut spoilt[3], change);
                fixture.put_on_medium(10, &spoilt);
                let expected = if is_checked(code, field, protection_type) {
                    Err((field, Some(13)))
                } else {
                    Ok(())
                };
                assert_eq!(outcome(&fixture.run_exactly(&cdb, &[])), expected, "{code}");
            }
        }
        for code in [6, 7] {
            let refused = fixture.run(&cdb_16(VERIFY, code, 0, 10, 5), &[]);
            assert_eq!(additional(&refused), Some(FIELD_IN_CDB));
        }
    }
}

/// Returns whether a field is compared. The application tag and type 3's reference tag are compared only with ATO.
fn is_compared(code: u8, field: u16, protection_type: ProtectionType, owned: bool) -> bool {
    match field {
        GUARD => matches!(code, 1 | 3 | 4 | 5),
        APPLICATION => owned && matches!(code, 1 | 2 | 3 | 5),
        _ => (owned || protection_type == ProtectionType::Type1) && matches!(code, 1 | 2 | 3 | 5),
    }
}

#[test]
fn sbc3_5_29_vrprotect_with_comparison_checks_the_data_out_and_compares() {
    for (protection_type, owned) in [
        (ProtectionType::Type1, false),
        (ProtectionType::Type1, true),
        (ProtectionType::Type3, false),
        (ProtectionType::Type3, true),
    ] {
        let mut fixture = fixture(protection_type, BlockSize::B512);
        select_control(&mut fixture, 0, if owned { 0x80 } else { 0 });
        let good = blocks(512, 10, 5, 0x1234, 10);
        for code in 1..6 {
            let cdb = cdb_16(VERIFY, code, COMPARE_EACH, 10, 5);
            fixture.put_on_medium(10, &good);
            assert_eq!(outcome(&fixture.run_exactly(&cdb, &good.concat())), Ok(()));
            for (field, change) in SPOILT {
                let mut spoilt = good.clone();
                spoil(&mut spoilt[3], change);
                // A wrong field in the Data-Out: it is checked there, or else compared.
                let sent = fixture.run_exactly(&cdb, &spoilt.concat());
                let compared = is_compared(code, field, protection_type, owned);
                let miscompare = (SenseKey::Miscompare, field, Some(3 * 520 + 512));
                let expected = if is_checked(code, field, protection_type) {
                    Some((SenseKey::AbortedCommand, field, Some(13)))
                } else {
                    compared.then_some(miscompare)
                };
                assert_eq!(
                    sense_of(&sent),
                    expected,
                    "{code} {field:x} {protection_type:?} {owned}"
                );
                // A wrong field on the medium: it is only compared.
                fixture.put_on_medium(10, &spoilt);
                let stored = fixture.run_exactly(&cdb, &good.concat());
                assert_eq!(sense_of(&stored), compared.then_some(miscompare), "{code} {field:x}");
                fixture.put_on_medium(10, &good);
            }
            let mut other = good.clone();
            other[1][100] ^= 1;
            let data = other[1][..512].to_vec();
            other[1] = with_tags(&data, Tags { guard: crc(&data), ..tags_of(&other[1]) });
            let sense = fixture.run_exactly(&cdb, &other.concat()).sense.unwrap();
            assert_eq!((sense.key(), sense.additional().0), (SenseKey::Miscompare, 0x1d00));
            assert_eq!(sense.information(), Some(520 + 100));
        }
        // Without protection information in the Data-Out, the medium is checked.
        let plain: Vec<u8> = good.iter().flat_map(|block| &block[..512]).copied().collect();
        let cdb = cdb_16(VERIFY, 0, COMPARE_EACH, 10, 5);
        assert_eq!(fixture.run_exactly(&cdb, &plain).status, Status::Good);
        let mut spoilt = good.clone();
        spoil(&mut spoilt[4], SPOILT[0].1);
        fixture.put_on_medium(10, &spoilt);
        assert_eq!(outcome(&fixture.run_exactly(&cdb, &plain)), Err((GUARD, Some(14))));
    }
}

/// Returns key, additional sense and INFORMATION of a failed command.
fn sense_of(completion: &Completion) -> Option<(SenseKey, u16, Option<u64>)> {
    let sense = completion.sense.as_ref()?;
    Some((sense.key(), sense.additional().0, sense.information()))
}

#[test]
fn sbc3_5_29_one_block_is_compared_with_each_and_its_reference_tag_counts() {
    let mut fixture = fixture(ProtectionType::Type1, BlockSize::B512);
    let data = [9; 512];
    let block = |index: u32| {
        with_tags(&data, Tags { guard: crc(&data), application: 0, reference: 10 + index })
    };
    let all: Vec<_> = (0..4).map(block).collect();
    fixture.put_on_medium(10, &all);
    let cdb = cdb_16(VERIFY, 1, COMPARE_ONE, 10, 4);
    assert_eq!(outcome(&fixture.run_exactly(&cdb, &block(0))), Ok(()));
    fixture.put_on_medium(12, &[block(9)]);
    let sense = fixture.run_exactly(&cdb, &block(0)).sense.unwrap();
    assert_eq!((sense.key(), sense.additional().0), (SenseKey::Miscompare, REFERENCE));
}

#[test]
fn sbc3_5_38_write_and_verify_stores_verified_data() {
    for flags in [0, COMPARE_EACH] {
        let mut fixture = fixture(ProtectionType::Type1, BlockSize::B4096);
        let good = blocks(4096, 10, 3, 0x77, 10);
        let cdb = cdb_16(WRITE_AND_VERIFY, 1, flags, 10, 3);
        assert_eq!(outcome(&fixture.run_exactly(&cdb, &good.concat())), Ok(()));
        assert_eq!(fixture.medium(10, 3), good);
        let mut spoilt = good.clone();
        spoil(&mut spoilt[2], SPOILT[2].1);
        let refused = fixture.run_exactly(&cdb, &spoilt.concat());
        assert_eq!(outcome(&refused), Err((REFERENCE, Some(12))));
        assert_eq!(fixture.medium(10, 3), good);
        let plain = cdb_16(WRITE_AND_VERIFY, 0, flags, 20, 1);
        assert_eq!(outcome(&fixture.run_exactly(&plain, &[4; 4096])), Ok(()));
    }
}

#[test]
fn sbc3_5_2_compare_and_write_with_protection_information_on_both_sides() {
    let mut fixture = fixture(ProtectionType::Type1, BlockSize::B512);
    let (old, new) = (blocks(512, 10, 2, 1, 10), blocks(512, 60, 2, 2, 10));
    let mut cdb = cdb_16(0x89, 1, 0, 10, 0);
    cdb[13] = 2;
    fixture.put_on_medium(10, &old);
    let mut spoilt = new.clone();
    spoil(&mut spoilt[1], SPOILT[0].1);
    let refused = fixture.run_exactly(&cdb, &[old.concat(), spoilt.concat()].concat());
    assert_eq!(outcome(&refused), Err((GUARD, Some(11))));
    assert_eq!(fixture.medium(10, 2), old);
    let differs = fixture.run_exactly(&cdb, &[new.concat(), new.concat()].concat());
    assert_eq!(differs.sense.unwrap().key(), SenseKey::Miscompare);
    assert_eq!(fixture.medium(10, 2), old);
    let both = [old.concat(), new.concat()].concat();
    assert_eq!(outcome(&fixture.run_exactly(&cdb, &both)), Ok(()));
    assert_eq!(fixture.medium(10, 2), new);
    // Without protection information in the Data-Out: the server generates it for the new blocks.
    let mut plain = cdb_16(0x89, 0, 0, 10, 0);
    plain[13] = 1;
    let both = [&new[0][..512], &[6; 512]].concat();
    assert_eq!(outcome(&fixture.run_exactly(&plain, &both)), Ok(()));
    let tags = Tags { guard: crc(&[6; 512]), application: 0, reference: 10 };
    assert_eq!(tags_of(&fixture.medium(10, 1)[0]), tags);
}

#[test]
fn sbc3_5_41_write_same_counts_the_reference_tag_on() {
    for (protection_type, references) in
        [(ProtectionType::Type1, [10, 11, 12, 13]), (ProtectionType::Type3, [10, 10, 10, 10])]
    {
        let mut fixture = fixture(protection_type, BlockSize::B512);
        let block = &blocks(512, 10, 1, 0x1234, 10)[0];
        let cdb = cdb_16(WRITE_SAME, 1, 0, 10, 4);
        assert_eq!(outcome(&fixture.run_exactly(&cdb, block)), Ok(()));
        for (stored, reference) in fixture.medium(10, 4).iter().zip(references) {
            assert_eq!(tags_of(stored), Tags { reference, ..tags_of(block) });
            assert_eq!(stored[..512], block[..512]);
        }
        let mut spoilt = block.clone();
        spoil(&mut spoilt, SPOILT[0].1);
        assert_eq!(outcome(&fixture.run_exactly(&cdb, &spoilt)), Err((GUARD, Some(10))));
        // More blocks than fit in one piece. They are read back with every check.
        let mut fixture = super::large_fixture(protection_type, BlockSize::B512, 5000);
        let block = &blocks(512, 0, 1, 0, 0)[0];
        let all = cdb_16(WRITE_SAME, 1, 0, 0, 4999);
        assert_eq!(outcome(&fixture.run_exactly(&all, block)), Ok(()));
        assert_eq!(outcome(&fixture.run(&cdb_16(READ, 1, 0, 0, 4999), &[])), Ok(()));
        assert_eq!(outcome(&fixture.run_exactly(&cdb_16(VERIFY, 1, 0, 0, 4999), &[])), Ok(()));
        let plain = cdb_16(WRITE_SAME, 0, 0, 0, 4999);
        assert_eq!(outcome(&fixture.run_exactly(&plain, &[8; 512])), Ok(()));
        assert_eq!(outcome(&fixture.run(&cdb_16(READ, 1, 0, 0, 4999), &[])), Ok(()));
    }
}
