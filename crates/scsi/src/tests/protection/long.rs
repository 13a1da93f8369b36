//! Type 2 and its commands of 32 bytes.

use super::*;

const READ_32: u8 = 0x09;
const VERIFY_32: u8 = 0x0a;
const WRITE_32: u8 = 0x0b;
const WRITE_AND_VERIFY_32: u8 = 0x0c;
const WRITE_SAME_32: u8 = 0x0d;

/// The expected tags of a CDB of 32 bytes.
#[derive(Clone, Copy)]
struct Expect {
    reference: u32,
    application: u16,
    mask: u16,
}

const ANY: Expect = Expect { reference: 500, application: 0, mask: 0 };

fn cdb_32(action: u8, protect: u8, flags: u8, lba: u64, count: u32, expect: Expect) -> Vec<u8> {
    [
        &[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, action, protect << 5 | flags, 0][..],
        &lba.to_be_bytes(),
        &expect.reference.to_be_bytes(),
        &expect.application.to_be_bytes(),
        &expect.mask.to_be_bytes(),
        &count.to_be_bytes(),
    ]
    .concat()
}

#[test]
fn sbc3_4_22_2_4_type_2_refuses_protection_information_in_shorter_commands() {
    let mut fixture = fixture(ProtectionType::Type2, BlockSize::B512);
    for operation_code in [READ, WRITE, 0x8e, 0x8f, 0x93, 0x89] {
        let mut cdb = cdb_16(operation_code, 1, 0, 0, 1);
        cdb[13] = 1;
        assert_eq!(additional(&fixture.run(&cdb, &[0; 1040])), Some(0x2000));
    }
    for operation_code in [0x28, 0x2a, 0x2e, 0x2f, 0x41] {
        let cdb = [operation_code, 0x20, 0, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(additional(&fixture.run(&cdb, &[0; 520])), Some(0x2000));
    }
    assert_eq!(fixture.run_exactly(&cdb_16(WRITE, 0, 0, 0, 1), &[1; 512]).status, Status::Good);
    assert_eq!(bytes(fixture.run(&cdb_16(READ, 0, 0, 0, 1), &[])), [1; 512]);
}

#[test]
fn sbc3_5_11_commands_of_32_bytes_are_for_type_2_alone() {
    let actions = [READ_32, VERIFY_32, WRITE_32, WRITE_AND_VERIFY_32, WRITE_SAME_32];
    for protection_type in [ProtectionType::Type1, ProtectionType::Type3] {
        let mut fixture = fixture(protection_type, BlockSize::B512);
        for action in actions {
            let completion = fixture.run(&cdb_32(action, 0, 0, 0, 1, ANY), &[0; 512]);
            assert_eq!(additional(&completion), Some(0x2000));
            let one = [0xa3, 0x0c, 2, 0x7f, 0, action, 0, 0, 1, 0, 0, 0];
            assert_eq!(bytes(fixture.run(&one, &[])), [0, 1, 0, 0]);
        }
    }
    let mut fixture = fixture(ProtectionType::Type2, BlockSize::B512);
    for action in actions {
        let one = [0xa3, 0x0c, 2, 0x7f, 0, action, 0, 0, 1, 0, 0, 0];
        let usage = bytes(fixture.run(&one, &[]));
        assert_eq!(usage[..4], [0, 3, 0, 32]);
        assert_eq!((usage[4], usage[12], usage[13]), (0x7f, 0, action));
        assert_eq!(usage.len(), 36);
    }
    // SPC-4 4.2.5.2.
    for (at, byte, refused) in [(7, 0x10, 7), (7, 0x19, 7), (9, 0x0e, 8)] {
        let mut cdb = cdb_32(READ_32, 1, 0, 0, 1, ANY);
        cdb[at] = byte;
        let field = fixture.run(&cdb, &[]).sense.unwrap().field().unwrap();
        assert_eq!(field.byte, refused);
    }
    let short = &cdb_32(READ_32, 1, 0, 0, 1, ANY)[..16];
    assert_eq!(fixture.run(short, &[]).sense.unwrap().field().unwrap().byte, 7);
    let field = fixture.run(&cdb_32(READ_32, 6, 0, 0, 1, ANY), &[]).sense.unwrap().field();
    assert_eq!((field.unwrap().byte, field.unwrap().bit), (10, Some(7)));
    let long = fixture.run(&cdb_32(READ_32, 0, 0, 0, u32::MAX, ANY), &[]).sense.unwrap().field();
    assert_eq!(long.unwrap().byte, 28);
    let beyond = fixture.run(&cdb_32(READ_32, 0, 0, u64::MAX, 2, ANY), &[]);
    assert_eq!(additional(&beyond), Some(0x2100));
    // SAM-5 5.2: CONTROL is the second byte of these commands.
    let mut naca = cdb_32(READ_32, 0, 0, u64::MAX, 2, ANY);
    naca[1] = 4;
    assert_eq!(additional(&fixture.run(&naca, &[])), Some(0x2100));
    assert_eq!(fixture.run(&[0; 6], &[]).status, Status::AcaActive);
}

/// With or without ATO, every corrupted field is detected if its code checks it.
#[test]
fn sbc3_5_11_and_5_35_expected_tags_are_checked_as_the_tables_say() {
    let expect = Expect { reference: 500, application: 0x1200, mask: 0xff00 };
    for (owned, code) in (0..6).flat_map(|code| [(false, code), (true, code)]) {
        let mut fixture = fixture(ProtectionType::Type2, BlockSize::B512);
        select_control(&mut fixture, 0, if owned { 0x80 } else { 0 });
        let good = blocks(512, 7, 3, 0x1234, 500);
        let read = cdb_32(READ_32, code, 0, 7, 3, expect);
        let write = cdb_32(WRITE_32, code, 0, 7, 3, expect);
        fixture.put_on_medium(7, &good);
        assert_eq!(outcome(&fixture.run(&read, &[])), Ok(()));
        for (field, change) in
            [SPOILT[0], (APPLICATION, |tags: &mut Tags| tags.application ^= 0x0100), SPOILT[2]]
        {
            let checked = match field {
                GUARD => matches!(code, 0 | 1 | 4 | 5),
                REFERENCE => matches!(code, 0 | 1 | 2 | 5),
                _ => owned && matches!(code, 0 | 1 | 2 | 5),
            };
            let expected = if checked { Err((field, Some(8))) } else { Ok(()) };
            let mut spoilt = good.clone();
            spoil(&mut spoilt[1], change);
            fixture.put_on_medium(7, &spoilt);
            let found = fixture.run(&read, &[]);
            assert_eq!(outcome(&found), expected, "read {code} {owned} {field:x}");
            let verify = cdb_32(VERIFY_32, code, 0, 7, 3, expect);
            assert_eq!(outcome(&fixture.run_exactly(&verify, &[])), expected);
            if code > 0 {
                fixture.put_on_medium(7, &good);
                let written = fixture.run_exactly(&write, &spoilt.concat());
                assert_eq!(outcome(&written), expected, "write {code} {owned} {field:x}");
                let stored = if checked { &good } else { &spoilt };
                assert_eq!(&fixture.medium(7, 3), stored);
            }
        }
        // Bits outside the mask are ignored.
        let mut other = good.clone();
        spoil(&mut other[2], |tags| tags.application ^= 0x00ff);
        fixture.put_on_medium(7, &other);
        assert_eq!(outcome(&fixture.run(&read, &[])), Ok(()));
    }
}

#[test]
fn sbc3_5_11_reference_tags_count_past_their_greatest_value() {
    let mut fixture = fixture(ProtectionType::Type2, BlockSize::B4096);
    let expect = Expect { reference: u32::MAX - 1, ..ANY };
    let good = blocks(4096, 7, 4, 0, u32::MAX - 1);
    let write = cdb_32(WRITE_32, 1, 0, 7, 4, expect);
    assert_eq!(fixture.run_exactly(&write, &good.concat()).status, Status::Good);
    let read = fixture.run(&cdb_32(READ_32, 1, 0, 7, 4, expect), &[]);
    assert_eq!(bytes(read), good.concat());
    // From the third block on, another tag is expected.
    let expect = Expect { reference: 0, ..ANY };
    assert_eq!(fixture.run(&cdb_32(READ_32, 1, 0, 9, 2, expect), &[]).status, Status::Good);
    let read = fixture.run(&cdb_32(READ_32, 1, 0, 8, 2, expect), &[]);
    assert_eq!(outcome(&read), Err((REFERENCE, Some(8))));
    let plain = fixture.run(&cdb_32(READ_32, 0, 0, 9, 2, expect), &[]);
    assert_eq!(bytes(plain).len(), 2 * 4096);
}

#[test]
fn sbc3_5_40_and_5_43_write_and_verify_and_write_same_of_32_bytes() {
    let mut fixture = fixture(ProtectionType::Type2, BlockSize::B512);
    let good = blocks(512, 7, 3, 0, 500);
    let verified = cdb_32(WRITE_AND_VERIFY_32, 1, 0x02, 7, 3, ANY);
    assert_eq!(fixture.run_exactly(&verified, &good.concat()).status, Status::Good);
    assert_eq!(fixture.medium(7, 3), good);
    let compared = cdb_32(VERIFY_32, 1, 0x02, 7, 3, ANY);
    assert_eq!(fixture.run_exactly(&compared, &good.concat()).status, Status::Good);
    let same = cdb_32(WRITE_SAME_32, 1, 0, 20, 4, ANY);
    assert_eq!(fixture.run_exactly(&same, &good[0]).status, Status::Good);
    let references: Vec<_> =
        fixture.medium(20, 4).iter().map(|block| tags_of(block).reference).collect();
    assert_eq!(references, [500, 501, 502, 503]);
    let wrong = Expect { reference: 501, ..ANY };
    let refused = fixture.run_exactly(&cdb_32(WRITE_SAME_32, 1, 0, 20, 4, wrong), &good[0]);
    assert_eq!(outcome(&refused), Err((REFERENCE, Some(20))));
    let plain = cdb_32(WRITE_SAME_32, 0, 0, 30, 2, ANY);
    assert_eq!(fixture.run_exactly(&plain, &[3; 512]).status, Status::Good);
    assert_eq!(bytes(fixture.run(&cdb_32(READ_32, 1, 0, 30, 2, ANY), &[])).len(), 1040);
}
