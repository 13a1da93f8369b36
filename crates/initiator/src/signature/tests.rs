use std::convert::Infallible;

use super::*;

/// Golden bytes: offsets and contents.
type Bytes<'a> = &'a [(u64, &'a [u8])];

const MIB: u64 = 1 << 20;

/// Returns the signatures on a device of `length` zeroes except for these bytes.
fn found(length: u64, bytes: Bytes<'_>) -> Vec<String> {
    let read = |offset: u64, into: &mut [u8]| {
        for (byte, at) in into.iter_mut().zip(offset..) {
            let part = bytes
                .iter()
                .rev()
                .find_map(|(start, part)| part.get(usize::try_from(at.checked_sub(*start)?).ok()?));
            *byte = part.copied().unwrap_or(0);
        }
        Ok::<(), Infallible>(())
    };
    let Ok(found) = find(length, read);
    found.iter().map(Signature::to_string).collect()
}

/// The fields of an ext superblock: inodes, blocks, revision, magic, features, label.
const EXT_2: Bytes<'static> = &[
    (1024, &[0x00, 0x10, 0, 0, 0x00, 0x40, 0, 0]),
    (1080, &[0x53, 0xef]),
    (1100, &[1, 0, 0, 0]),
    (1116, &[0x38, 0, 0, 0, 0x02, 0, 0, 0, 0x03, 0, 0, 0]),
];
const EXT_4: Bytes<'static> = &[
    (1024, &[0x00, 0x10, 0, 0, 0x00, 0x40, 0, 0]),
    (1080, &[0x53, 0xef]),
    (1100, &[1, 0, 0, 0]),
    (1116, &[0x3c, 0, 0, 0, 0xc2, 0x02, 0, 0, 0x6b, 0x04, 0, 0]),
    (1144, b"data\0\0\0\0\0\0\0\0\0\0\0\0"),
];
/// One Linux partition from sector 2048 on.
const MBR: Bytes<'static> = &[
    (446, &[0x00, 0, 0, 0, 0x83, 0, 0, 0, 0x00, 0x08, 0, 0, 0x00, 0x78, 0, 0]),
    (510, &[0x55, 0xaa]),
];
const FAT_32: Bytes<'static> = &[
    (0, b"\xeb\x58\x90mkfs.fat\x00\x02\x01\x20\x00\x02\x00\x00\x00\x00\xf8\x00\x00"),
    (36, &[0xe1, 0x03, 0, 0]),
    (71, b"DATA       FAT32   "),
    (510, &[0x55, 0xaa]),
];

#[test]
fn known_signatures_are_found_at_their_offsets() {
    let at_end = |back: u64| 64 * MIB - back;
    let cases: &[(&str, Bytes<'_>)] = &[
        ("an ext2 file system", EXT_2),
        ("an ext4 file system (label \"data\")", EXT_4),
        ("an XFS file system (label \"pool\")", &[(0, b"XFSB"), (108, b"pool")]),
        ("a btrfs file system", &[(0x10040, b"_BHRfS_M")]),
        ("an NTFS file system", &[(0, b"\xeb\x52\x90NTFS    "), (510, &[0x55, 0xaa])]),
        ("an exFAT file system", &[(3, b"EXFAT   "), (510, &[0x55, 0xaa])]),
        ("a FAT32 file system (label \"DATA\")", FAT_32),
        (
            "an ISO 9660 file system (label \"DEBIAN\")",
            &[(0x8000, b"\x01CD001\x01"), (0x8028, b"DEBIAN                          ")],
        ),
        ("a UFS2 file system", &[(65536 + 1372, &[0x19, 0x01, 0x54, 0x19])]),
        ("a UFS1 file system", &[(8192 + 1372, &[0x00, 0x01, 0x19, 0x54])]),
        ("an APFS container", &[(32, b"NXSB")]),
        ("a VMFS volume", &[(MIB, &[0x0d, 0xd0, 0x01, 0xc0])]),
        (
            "a VMFS file system (label \"datastore1\")",
            &[(2 * MIB, &[0x5e, 0xf1, 0xab, 0x2f]), (2 * MIB + 29, b"datastore1")],
        ),
        ("an MBR partition table", MBR),
        ("a GPT partition table", &[(512, b"EFI PART\0\0\x01\0")]),
        ("a GPT partition table", &[(4096, b"EFI PART\0\0\x01\0")]),
        ("a GPT partition table", &[(at_end(512), b"EFI PART\0\0\x01\0")]),
        ("an LVM2 physical volume", &[(512, b"LABELONE"), (536, b"LVM2 001")]),
        // The 45th uberblock of the first label; the last uberblock of the last label, from a big-endian machine.
        ("a member of a ZFS pool", &[(131_072 + 1024 * 44, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0])]),
        ("a member of a ZFS pool", &[(at_end(1024), &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c])]),
        (
            "a bcache device",
            &[(4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")],
        ),
        ("a LUKS1 volume", &[(0, b"LUKS\xba\xbe\x00\x01")]),
        ("a LUKS2 volume (label \"secret\")", &[(0, b"LUKS\xba\xbe\x00\x02"), (24, b"secret")]),
        (
            "a member of an md RAID (label \"host:0\")",
            &[(4096, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]), (4128, b"host:0")],
        ),
        ("a member of an md RAID", &[(at_end(8192), &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0])]),
        ("a member of an md RAID (0.90)", &[(at_end(65536), &[0xa9, 0x2b, 0x4e, 0xfc])]),
        ("a member of an Intel Matrix RAID", &[(at_end(1024), b"Intel Raid ISM Cfg Sig. ")]),
        ("a backing device of DRBD", &[(at_end(4096 - 60), &[0x83, 0x74, 0x02, 0x6d])]),
        ("swap space (label \"old\")", &[(1052, b"old"), (4086, b"SWAPSPACE2")]),
        ("swap space", &[(65526, b"SWAPSPACE2")]),
        ("a qcow2 image", &[(0, b"QFI\xfb\0\0\0\x03")]),
        ("a VMDK image", &[(0, b"KDMV\x01\0\0\0")]),
        ("a VHD image", &[(at_end(512), b"conectix")]),
    ];
    for (what, bytes) in cases {
        assert_eq!(found(64 * MIB, bytes), [*what]);
    }
}

#[test]
fn similar_data_is_not_taken_for_signature() {
    let cases: &[Bytes<'_>] = &[
        &[],
        // A boot sector without partitions; entries without a length; a wrong flag.
        &[(510, &[0x55, 0xaa])],
        &[(450, &[0x83, 0, 0, 0, 1]), (510, &[0x55, 0xaa])],
        &[(446, &[0x33]), MBR[0], MBR[1], (462, &[0x33])],
        // The two bytes of ext alone, an LVM2 label of another kind, an incomplete LUKS header.
        &[EXT_2[1]],
        &[(0, b"LABELONE"), (24, b"LVM9 001")],
        &[(0, b"LUKS\0\0")],
        &[(4096, &[0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0])],
    ];
    for bytes in cases {
        assert_eq!(found(64 * MIB, bytes), [""; 0], "{bytes:?}");
    }
}

#[test]
fn all_signatures_are_reported_without_protective_mbr() {
    let both = [EXT_4, &[(4086, b"SWAPSPACE2")]].concat();
    let words = ["an ext4 file system (label \"data\")", "swap space"];
    assert_eq!(found(MIB, &both), words);
    let gpt = [MBR, &[(512, b"EFI PART")]].concat();
    assert_eq!(found(MIB, &gpt), ["a GPT partition table"]);
    let holding = |what| Signature { what, label: None };
    let occupied = Occupied::of("disk", vec![holding("a"), holding("b"), holding("c")]);
    assert_eq!(occupied.map(|it| it.to_string()), Some("disk holds a, b and c".into()));
    assert_eq!(Occupied::of("disk", Vec::new()), None);
}

/// Every place of every row is within the bytes that are read, on a large device and on a small one.
#[test]
fn all_signature_offsets_are_read() {
    for length in [8 * MIB, 10 * MIB + 512, 1 << 40, (1 << 40) + 3 * 4096] {
        let parts = parts(length);
        for row in table::ROWS {
            for base in row.bases.iter().flat_map(|base| base.places(length)) {
                let end = base + row.offset + row.magic.len() as u64;
                let read =
                    |(from, count): &(u64, usize)| *from <= base && end <= from + *count as u64;
                assert!(parts.iter().any(read), "{} at {base} of {length}", row.what);
            }
        }
    }
}

#[test]
fn no_size_and_no_content_is_too_odd() {
    for length in [0, 1, 510, 511, 512, 1079, 4095, 4096, 65535, 262_144, MIB - 1, 3 * MIB + 4097] {
        for fill in [0u8, 0x55, 0xff] {
            let Ok(found) = find(length, |_, into| {
                into.fill(fill);
                Ok::<(), Infallible>(())
            });
            assert_eq!(found, [], "{length} bytes of {fill:02X}h");
        }
    }
    let Err(error) = find(MIB, |_, _| Err("unreadable")) else { panic!("an error is passed on") };
    assert_eq!(error, "unreadable");
}
