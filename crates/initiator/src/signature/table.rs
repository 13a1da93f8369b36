//! The signatures of the on-disk formats, from their own documentation. For a short magic number, other fields are
//! checked, too.

use super::View;

/// The point from which offsets count.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// The first byte.
    Start,
    /// The end of the device.
    End,
    /// The last multiple of this up to the end.
    AlignedEnd(u64),
}

/// The possible start offsets of a structure: `count` places, `step` bytes apart.
#[derive(Clone, Copy)]
pub(super) struct Base {
    pub(super) origin: Origin,
    pub(super) back: u64,
    pub(super) forward: u64,
    pub(super) step: u64,
    pub(super) count: u64,
}

const fn start(forward: u64) -> Base {
    Base { origin: Origin::Start, back: 0, forward, step: 0, count: 1 }
}

const fn end(back: u64) -> Base {
    Base { origin: Origin::End, back, forward: 0, step: 0, count: 1 }
}

const fn aligned_end(align: u64, back: u64) -> Base {
    Base { origin: Origin::AlignedEnd(align), back, forward: 0, step: 0, count: 1 }
}

impl Base {
    const fn every(self, step: u64, count: u64) -> Self {
        Self { step, count, ..self }
    }
}

/// The signature of one format.
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) bases: &'static [Base],
    /// Offset of the magic number from the base.
    pub(super) offset: u64,
    pub(super) magic: &'static [u8],
    /// An additional check.
    pub(super) check: fn(View<'_>) -> bool,
    /// Offset of a label from the base, and its length.
    pub(super) label: Option<(u64, usize)>,
}

const fn row(what: &'static str, bases: &'static [Base], offset: u64, magic: &'static [u8]) -> Row {
    Row { what, bases, offset, magic, check: |_| true, label: None }
}

impl Row {
    const fn if_also(self, check: fn(View<'_>) -> bool) -> Self {
        Self { check, ..self }
    }

    const fn label(self, offset: u64, length: usize) -> Self {
        Self { label: Some((offset, length)), ..self }
    }
}

/// Returns the row for swap space, whose signature is at the end of its first page.
const fn swap(page: u64) -> Row {
    const MAGIC: &[u8] = b"SWAPSPACE2";
    row("swap space", FIRST, page - MAGIC.len() as u64, MAGIC).label(1052, 16)
}

pub(super) const GPT: &str = "a GPT partition table";
pub(super) const MBR: &str = "an MBR partition table";

const FIRST: &[Base] = &[start(0)];
const AT_1K: &[Base] = &[start(1024)];
const AT_4K: &[Base] = &[start(4096)];
const AT_64K: &[Base] = &[start(65536)];
/// The first four sectors.
const SECTORS: &[Base] = &[start(0).every(512, 4)];
/// Uberblocks of the four labels of ZFS, of which two are at the end.
const UBERBLOCKS: &[Base] = &[
    start(128 << 10).every(1024, 128),
    start(384 << 10).every(1024, 128),
    aligned_end(256 << 10, 384 << 10).every(1024, 128),
    aligned_end(256 << 10, 128 << 10).every(1024, 128),
];
const UFS_BASES: &[Base] = &[start(8192), start(65536), start(0), start(262_144)];

/// All signatures.
pub(super) const ROWS: &[Row] = &[
    // Partition tables.
    row(GPT, &[start(512), start(4096), end(512), end(4096)], 0, b"EFI PART"),
    row(MBR, FIRST, 510, &[0x55, 0xaa]).if_also(has_partitions),
    row("an Apple partition map", &[start(512)], 0, b"PM\0\0"),
    row("a BSD disk label", &[start(0), start(64), start(512)], 0, b"\x57\x45\x56\x82")
        .if_also(|view| view.array(132) == *b"\x57\x45\x56\x82"),
    row("a Sun disk label", FIRST, 508, &[0xda, 0xbe]).if_also(sun_sum_is_right),
    row("a Windows dynamic disk", &[start(3072)], 0, b"PRIVHEAD"),
    // File systems.
    row("an ext2 file system", AT_1K, 56, &[0x53, 0xef])
        .if_also(|view| is_ext(view) && !is_ext_4(view) && !has_journal(view))
        .label(120, 16),
    row("an ext3 file system", AT_1K, 56, &[0x53, 0xef])
        .if_also(|view| is_ext(view) && !is_ext_4(view) && has_journal(view))
        .label(120, 16),
    row("an ext4 file system", AT_1K, 56, &[0x53, 0xef])
        .if_also(|view| is_ext(view) && is_ext_4(view))
        .label(120, 16),
    row("an XFS file system", FIRST, 0, b"XFSB").label(108, 12),
    row("a btrfs file system", AT_64K, 0x40, b"_BHRfS_M").label(0x12b, 256),
    row("a bcachefs file system", AT_4K, 24, BCACHEFS).label(72, 32),
    row("an F2FS file system", AT_1K, 0, &[0x10, 0x20, 0xf5, 0xf2]),
    row("a JFS file system", &[start(32768)], 0, b"JFS1").label(152, 16),
    row("a ReiserFS file system", &[start(65536), start(8192)], 52, b"ReIsEr").label(100, 16),
    row("a Reiser4 file system", AT_64K, 0, b"ReIsEr4"),
    row("an NTFS file system", FIRST, 3, b"NTFS    "),
    row("a ReFS file system", FIRST, 3, b"ReFS\0\0\0\0"),
    row("an exFAT file system", FIRST, 3, b"EXFAT   "),
    row("a FAT file system", FIRST, 510, &[0x55, 0xaa])
        .if_also(|view| is_fat(view) && view.le16(22) != 0)
        .label(43, 11),
    row("a FAT32 file system", FIRST, 510, &[0x55, 0xaa])
        .if_also(|view| is_fat(view) && view.le16(22) == 0 && view.le32(36) != 0)
        .label(71, 11),
    row("an HFS+ file system", AT_1K, 0, b"H+").if_also(|view| view.be16(2) == 4),
    row("an HFSX file system", AT_1K, 0, b"HX").if_also(|view| view.be16(2) == 5),
    row("an APFS container", FIRST, 32, b"NXSB"),
    row("an ISO 9660 file system", &[start(32768)], 1, b"CD001").label(40, 32),
    row("a UDF file system", &[start(32768).every(2048, 16)], 1, b"NSR0"),
    row("a UFS1 file system", UFS_BASES, 1372, &[0x54, 0x19, 0x01, 0x00]),
    row("a UFS1 file system", UFS_BASES, 1372, &[0x00, 0x01, 0x19, 0x54]),
    row("a UFS2 file system", UFS_BASES, 1372, &[0x19, 0x01, 0x54, 0x19]),
    row("a UFS2 file system", UFS_BASES, 1372, &[0x19, 0x54, 0x01, 0x19]),
    row("a GFS2 file system", AT_64K, 0, &[0x01, 0x16, 0x19, 0x70]),
    row(
        "an OCFS2 file system",
        &[start(1024), start(2048), start(4096), start(8192)],
        0,
        b"OCFSV2",
    ),
    row("an EROFS file system", AT_1K, 0, &[0xe2, 0xe1, 0xf5, 0xe0]).label(64, 16),
    row("a SquashFS file system", FIRST, 0, b"hsqs"),
    row("a SquashFS file system", FIRST, 0, b"sqsh"),
    row("a cramfs file system", FIRST, 0, &[0x45, 0x3d, 0xcd, 0x28]),
    row("a cramfs file system", FIRST, 0, &[0x28, 0xcd, 0x3d, 0x45]),
    row("a VMFS volume", &[start(1 << 20)], 0, &[0x0d, 0xd0, 0x01, 0xc0]),
    row("a VMFS file system", &[start(2 << 20)], 0, &[0x5e, 0xf1, 0xab, 0x2f]).label(29, 128),
    // Volume managers, pools and caches.
    row("an LVM2 physical volume", SECTORS, 0, b"LABELONE")
        .if_also(|view| view.array(24) == *b"LVM2 001"),
    row("a member of a ZFS pool", UBERBLOCKS, 0, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
    row("a member of a ZFS pool", UBERBLOCKS, 0, &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]),
    row("a bcache device", AT_4K, 24, BCACHE).label(72, 32),
    row("a Stratis block device", &[start(512)], 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
    row("a VDO volume", FIRST, 0, b"dmvdo001"),
    row("a Ceph BlueStore device", FIRST, 0, b"bluestore block device"),
    row("an Oracle ASM disk", FIRST, 32, b"ORCLDISK"),
    row("a disk of a Storage Spaces pool", AT_4K, 0, b"SPACEDB "),
    // Encryption and integrity.
    row("a LUKS1 volume", FIRST, 0, LUKS).if_also(|view| view.be16(6) == 1),
    row("a LUKS2 volume", FIRST, 0, LUKS).if_also(|view| view.be16(6) != 1).label(24, 48),
    // The second header remains when the first was overwritten.
    row("a LUKS2 volume", &[start(0x4000)], 0, b"SKUL\xba\xbe"),
    row("a BitLocker volume", FIRST, 3, b"-FVE-FS-"),
    row("a dm-integrity device", FIRST, 0, b"integrt\0"),
    row("a dm-verity device", FIRST, 0, b"verity\0\0"),
    // RAID and replication. md 0.90 uses the byte order of its machine; the others are little-endian.
    row(
        "a member of an md RAID",
        &[start(0), start(4096), aligned_end(4096, 8192)],
        0,
        &[0xfc, 0x4e, 0x2b, 0xa9],
    )
    .if_also(|view| view.le32(4) == 1)
    .label(32, 32),
    row("a member of an md RAID (0.90)", MD_OLD, 0, &[0xfc, 0x4e, 0x2b, 0xa9])
        .if_also(|view| view.le32(4) == 0),
    row("a member of an md RAID (0.90)", MD_OLD, 0, &[0xa9, 0x2b, 0x4e, 0xfc])
        .if_also(|view| view.le32(4) == 0),
    row("a member of a DDF RAID", &[end(512)], 0, &[0xde, 0x11, 0xde, 0x11]),
    row("a member of an Intel Matrix RAID", &[end(1024)], 0, b"Intel Raid ISM Cfg Sig. "),
    row("a backing device of DRBD", &[end(4096)], 60, &[0x83, 0x74, 0x02])
        .if_also(|view| (0x67..=0x6d).contains(&view.byte(63))),
    // Swap, by page size.
    swap(4 << 10),
    swap(8 << 10),
    swap(16 << 10),
    swap(32 << 10),
    swap(64 << 10),
    row("swap space", FIRST, 4086, b"SWAP-SPACE"),
    row("a hibernated system", FIRST, 4086, b"S1SUSPEND"),
    row("a hibernated system", FIRST, 4086, b"LINHIB0001"),
    // Images of disks.
    row("a qcow2 image", FIRST, 0, b"QFI\xfb"),
    row("a VMDK image", FIRST, 0, b"KDMV"),
    row("a VMDK image", FIRST, 0, b"COWD"),
    row("a VHDX image", FIRST, 0, b"vhdxfile"),
    row("a VHD image", &[start(0), end(512)], 0, b"conectix"),
    row("a VDI image", FIRST, 64, &[0x7f, 0x10, 0xda, 0xbe]),
];

const LUKS: &[u8] = b"LUKS\xba\xbe";
const MD_OLD: &[Base] = &[aligned_end(65536, 65536)];
const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

/// Checks four entries of 16 bytes: a flag that is 0 or 80h, a type, a start and a length. Other formats end their
/// first sector with the same two bytes.
fn has_partitions(view: View<'_>) -> bool {
    let entries = [446, 462, 478, 494];
    let valid = entries.iter().all(|&at| view.byte(at) & 0x7f == 0);
    let used =
        |at: u64| view.byte(at + 4) != 0 && view.le32(at + 8) != 0 && view.le32(at + 12) != 0;
    valid && entries.into_iter().any(used)
}

/// Checks that the XOR of the label's 16-bit words is zero.
fn sun_sum_is_right(view: View<'_>) -> bool {
    let words = (0..512).step_by(2).map(|at| view.be16(at));
    words.fold(0, |sum, word| sum ^ word) == 0
}

/// Checks inodes, blocks, a block size up to 64 KiB and a known revision.
fn is_ext(view: View<'_>) -> bool {
    view.le32(0) != 0 && view.le32(4) != 0 && view.le32(24) <= 6 && view.le32(76) <= 1
}

fn has_journal(view: View<'_>) -> bool {
    const COMPATIBLE_HAS_JOURNAL: u32 = 0x4;
    view.le32(92) & COMPATIBLE_HAS_JOURNAL != 0
}

/// Checks for features that ext3 does not have.
fn is_ext_4(view: View<'_>) -> bool {
    // Recovery, journal device, meta_bg and file types are as old as ext3.
    const INCOMPATIBLE_EXT_3: u32 = 0x2 | 0x4 | 0x8 | 0x10;
    // Sparse superblocks and large files.
    const READ_ONLY_EXT_3: u32 = 0x1 | 0x2 | 0x4;
    let (incompatible, read_only) = (view.le32(96), view.le32(100));
    incompatible & !INCOMPATIBLE_EXT_3 != 0 || read_only & !READ_ONLY_EXT_3 != 0
}

/// Checks that sector and cluster sizes are powers of two, that there are one or two tables, and that the medium is
/// known.
fn is_fat(view: View<'_>) -> bool {
    let sector = view.le16(11);
    (512..=4096).contains(&sector)
        && sector.is_power_of_two()
        && view.byte(13).is_power_of_two()
        && (1..=2).contains(&view.byte(16))
        && view.byte(21) >= 0xf0
}
