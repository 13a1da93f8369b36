//! WRITE SAME, UNMAP, GET LBA STATUS.

use crate::testing::*;
use crate::{Lun, Status};
use sarsen_block::{
    AllocationRun, BlockSize, Characteristics, Data, Durability, Extent, Geometry, Io,
    OptimalTransfer, Payload, Reply, Space, Store, StoreStatus,
};
use std::sync::Arc;

fn unmap_list(descriptors: &[(u64, u32)]) -> Vec<u8> {
    let length = 16 * descriptors.len() as u16;
    let mut list = [&(length + 6).to_be_bytes()[..], &length.to_be_bytes(), &[0; 4]].concat();
    for (lba, block_count) in descriptors {
        list.extend(lba.to_be_bytes());
        list.extend(block_count.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

fn unmap(fixture: &mut Fixture, list: &[u8]) -> Option<u16> {
    let [high, low] = (list.len() as u16).to_be_bytes();
    let cdb_bytes = [0x42, 0, 0, 0, 0, 0, 0, high, low, 0];
    assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)), list.len());
    additional(&fixture.run(&cdb_bytes, list))
}

#[test]
fn sbc3_5_28_unmapped_blocks_read_zero_and_are_deallocated() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 8 * 512]);
    assert_eq!(unmap(&mut fixture, &unmap_list(&[(1, 2), (5, 1)])), None);
    let data = fixture.read(0, 8);
    for (block, mapped) in [1, 0, 0, 1, 1, 0, 1, 1].into_iter().enumerate() {
        assert_eq!(data[block * 512..][..512], [mapped; 512]);
    }
    let mut get = [0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 56, 0, 0];
    let status = bytes(fixture.run(&get, &[]));
    assert_eq!(status[..4], [0, 0, 0, 52]);
    let runs: Vec<_> = status[8..].chunks(16).map(|run| (run[7], run[11], run[12])).collect();
    assert_eq!(runs, [(0, 1, 0), (1, 2, 1), (3, 2, 0)]);
    get[2] = 0x80;
    assert_eq!(additional(&fixture.run(&get, &[])), Some(0x2100));
}

#[test]
fn sbc3_5_28_2_an_unmap_list_is_checked_before_anything_is_unmapped() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 512]);
    let limits = *fixture.unit.limits();
    let many = vec![(0, 0); limits.maximum_unmap_descriptors as usize + 1];
    let half = limits.maximum_unmap_blocks / BLOCKS as u32 + 1;
    let large = vec![(0, BLOCKS as u32); half as usize];
    let mut short = unmap_list(&[(0, 1)]);
    short.truncate(23);
    let mut inconsistent = unmap_list(&[(0, 1)]);
    inconsistent[1] = 6;
    for (list, expected) in [
        (unmap_list(&[(0, 1), (BLOCKS, 1)]), 0x2100),
        (unmap_list(&[(0, 1), (u64::MAX, 1)]), 0x2100),
        (unmap_list(&many), 0x2600),
        (unmap_list(&large), 0x2600),
        (short, 0x1a00),
        (vec![0; 7], 0x1a00),
        (inconsistent, 0x2600),
    ] {
        assert_eq!(unmap(&mut fixture, &list), Some(expected), "{} bytes", list.len());
    }
    assert_eq!(fixture.read(0, 1), [1; 512]);
    for harmless in [unmap_list(&[]), unmap_list(&[(BLOCKS, 0)]), Vec::new()] {
        assert_eq!(unmap(&mut fixture, &harmless), None);
    }
}

/// Returns the states of the first blocks, as GET LBA STATUS reports them.
fn states(fixture: &mut Fixture) -> Vec<(u8, u8)> {
    let get = [0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 72, 0, 0];
    let status = bytes(fixture.run(&get, &[]));
    status[8..].chunks(16).map(|run| (run[11], run[12])).collect()
}

#[test]
fn sbc3_4_7_4_4_anchored_blocks_read_as_zero_and_keep_their_room() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 16 * 512]);
    let anchor_two = [0x42, 1, 0, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(additional(&fixture.run(&anchor_two, &unmap_list(&[(2, 2)]))), None);
    // WRITE SAME(16) with ANCHOR and UNMAP, and without UNMAP.
    let mut write_same = [0x93, 0x18, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0];
    assert_eq!(additional(&fixture.run(&write_same, &[0; 512])), None);
    assert_eq!(states(&mut fixture)[..4], [(2, 0), (2, 2), (2, 0), (2, 2)]);
    assert_eq!(fixture.read(2, 2), [0; 1024]);
    write_same[1] = 0x10;
    let refused = fixture.run(&write_same, &[0; 512]).sense.unwrap();
    assert_eq!(refused.field().unwrap().bit, Some(4));
}

#[test]
fn sbc3_6_6_5_a_store_that_cannot_keep_room_refuses_anchors() {
    let mut store = TestStore::new(BlockSize::B512);
    let unmap =
        sarsen_block::UnmapSupport { granularity_blocks: 1, anchors: false, tells_space: false };
    store.characteristics.unmap = Some(unmap);
    let mut fixture = Fixture::over(store);
    assert_eq!(additional(&fixture.run(&[0x42, 1, 0, 0, 0, 0, 0, 0, 8, 0], &[])), Some(0x2400));
    let write_same = [0x93, 0x18, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0];
    assert_eq!(additional(&fixture.run(&write_same, &[0; 512])), Some(0x2400));
    let page = bytes(fixture.run(&[0x12, 1, 0xb2, 0, 64, 0], &[]));
    assert_eq!(page[5] & 0x02, 0, "ANC_SUP");
}

#[test]
fn a_store_that_cannot_deallocate_has_no_unmap() {
    let mut store = TestStore::new(BlockSize::B512);
    store.characteristics.unmap = None;
    let mut fixture = Fixture::over(store);
    assert_eq!(additional(&fixture.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[])), Some(0x2000));
    let write_same_unmap = [0x41, 0x08, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(additional(&fixture.run(&write_same_unmap, &[0; 512])), Some(0x2400));
    let capacity = bytes(fixture.run(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32], &[]));
    assert_eq!(capacity[14], 0);
    let one = bytes(fixture.run(&[0xa3, 0x0c, 1, 0x42, 0, 0, 0, 0, 1, 0, 0, 0], &[]));
    assert_eq!(one, [0, 1, 0, 0]);
    let limits = bytes(fixture.run(&[0x12, 1, 0xb0, 0, 64, 0], &[]));
    assert_eq!(limits[20..32], [0; 12]);
}

#[test]
fn sbc3_6_6_4_unmap_granularity_is_reported_for_512_byte_blocks_alone() {
    for (size, granularity, alignment) in [(BlockSize::B512, 1, 0x80), (BlockSize::B4096, 0, 0)] {
        let mut fixture = Fixture::over(TestStore::new(size));
        let limits = bytes(fixture.run(&[0x12, 1, 0xb0, 0, 64, 0], &[]));
        assert_ne!(limits[20..28], [0; 8], "{size:?}: UNMAP has limits");
        assert_eq!(limits[28..32], u32::to_be_bytes(granularity), "{size:?}");
        assert_eq!(limits[32..36], [alignment, 0, 0, 0], "{size:?}: UGAVALID");
    }
}

#[test]
fn sbc3_6_6_4_optimal_transfers_are_those_of_the_store_within_the_limits() {
    let of_store = |granularity_blocks, length_blocks| {
        Some(OptimalTransfer { granularity_blocks, length_blocks })
    };
    for (optimal_transfer, granularity, length) in [
        // The physical block and 1 MiB.
        (None, 8, 2048),
        (of_store(128, 128), 128, 2048),
        (of_store(4096, 4096), 4096, 4096),
        (of_store(128, 3 * 128), 128, 3 * 128),
        // MAXIMUM TRANSFER LENGTH is 32768 blocks.
        (of_store(2048, 16 * 2048), 2048, 32768),
        (of_store(3000, 6 * 3000), 3000, 6 * 3000),
        (of_store(3000, 12 * 3000), 3000, 10 * 3000),
        // A granularity that the page cannot report.
        (of_store(40000, 40000), 8, 2048),
        (of_store(65536, 65536), 8, 2048),
    ] {
        let mut store = TestStore::new(BlockSize::B512);
        store.characteristics.physical_block_exponent = 3;
        store.characteristics.optimal_transfer = optimal_transfer;
        let limits = bytes(Fixture::over(store).run(&[0x12, 1, 0xb0, 0, 64, 0], &[]));
        assert_eq!(limits[6..8], u16::to_be_bytes(granularity), "{optimal_transfer:?}");
        assert_eq!(limits[8..12], u32::to_be_bytes(32768));
        assert_eq!(limits[12..16], u32::to_be_bytes(length), "{optimal_transfer:?}");
    }
}

#[test]
fn sbc3_5_41_write_same_repeats_its_block() {
    let mut fixture = Fixture::new();
    let block: Vec<u8> = (0..512).map(|byte| byte as u8).collect();
    // More blocks than fit in one piece.
    let cdb_bytes = [0x41, 0, 0, 0, 0, 2, 0, 0x0f, 0, 0];
    assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)), 512);
    assert_eq!(fixture.run(&cdb_bytes, &block).status, Status::Good);
    assert_eq!(fixture.read(1, 3), [&[0; 512][..], &block, &block].concat());
    let end = [0x28, 0, 0, 0, 0x0f, 0x01, 0, 0, 2, 0];
    assert_eq!(bytes(fixture.run(&end, &[])), [&block[..], &[0; 512]].concat());
}

#[test]
fn sbc3_5_41_write_same_without_a_number_goes_to_the_end() {
    let mut fixture = Fixture::new();
    let [.., high, low] = (BLOCKS - 3).to_be_bytes();
    assert_eq!(
        fixture.run(&[0x41, 0, 0, 0, high, low, 0, 0, 0, 0], &[7; 512]).status,
        Status::Good
    );
    let last = [0x28, 0, 0, 0, high, low - 1, 0, 0, 4, 0];
    assert_eq!(bytes(fixture.run(&last, &[])), [&[0; 512][..], &[7; 1536]].concat());
    let [.., high, low] = (BLOCKS + 1).to_be_bytes();
    let beyond = fixture.run(&[0x41, 0, 0, 0, high, low, 0, 0, 0, 0], &[7; 512]);
    assert_eq!(additional(&beyond), Some(0x2100));
}

#[test]
fn sbc3_5_42_write_same_16_unmaps_and_needs_no_data_with_ndob() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 2048]);
    let ndob = [0x93, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0];
    assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&ndob)), 0);
    assert_eq!(fixture.run(&ndob, &[]).status, Status::Good);
    assert_eq!(fixture.read(0, 4), [[0; 1024], [1; 1024]].concat());
    for (flags, expected) in [(0x10, 0x2400), (0x02, 0x2400), (0x04, 0x2400)] {
        let cdb = [0x93, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0];
        assert_eq!(additional(&fixture.run(&cdb, &[0; 512])), Some(expected), "{flags:02x}");
    }
    let too_long = [0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0, 0, 0, 0, 0];
    assert_eq!(additional(&fixture.run(&too_long, &[0; 512])), Some(0x2400));
}

/// Executes MODE SELECT(10) of the logical block provisioning page: SITUA, and both thresholds.
fn select_thresholds(
    fixture: &mut Fixture,
    situa: bool,
    available: (bool, u32),
    used: (bool, u32),
) {
    let mut list = vec![0; 8];
    list.extend([0x5c, 0x02, 0x00, 0x1c, u8::from(situa)]);
    list.extend([0; 11]);
    for (index, (enabled, count)) in [available, used].into_iter().enumerate() {
        let arming = index as u8;
        list.extend([u8::from(enabled) << 7 | arming, arming + 1, 0, 0]);
        list.extend(u32::to_be_bytes(count));
    }
    let selected = fixture.run(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list);
    assert_eq!(selected.status, Status::Good);
}

/// Writes by the first nexus, and runs the work that this starts. Returns the responses of TEST UNIT READY to two
/// nexuses.
fn reported(fixture: &mut Fixture, other: &mut crate::NexusHandle, lba: u8) -> [Option<u16>; 2] {
    assert_eq!(fixture.write(lba, &[1; 512]).status, Status::Good);
    fixture.host.run_work();
    [additional(&fixture.run(&[0; 6], &[])), additional(&run(other, &[0; 6], &[]))]
}

#[test]
fn sbc3_4_7_3_8_passed_threshold_is_reported_once() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0; 6], &[]);
    // Half of the medium is one threshold set.
    assert_eq!(bytes(fixture.run(&[0x12, 1, 0xb2, 0, 64, 0], &[]))[4], 11);
    select_thresholds(&mut fixture, false, (true, 1), (false, 0));
    assert_eq!(additional(&run(&mut other, &[0; 6], &[])), Some(0x2a01));
    assert_eq!(reported(&mut fixture, &mut other, 0), [Some(0x3807); 2], "4095 blocks are one set");
    assert_eq!(reported(&mut fixture, &mut other, 1), [None; 2]);
    select_thresholds(&mut fixture, true, (true, 1), (false, 0));
    run(&mut other, &[0; 6], &[]);
    assert_eq!(reported(&mut fixture, &mut other, 2), [Some(0x3807), None]);
    select_thresholds(&mut fixture, false, (true, 0), (true, 1));
    run(&mut other, &[0; 6], &[]);
    assert_eq!(reported(&mut fixture, &mut other, 3), [None; 2]);
    // WRITE SAME of half the medium. The zeroed blocks stay allocated.
    let half = [0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0];
    assert_eq!(fixture.run(&half, &[0; 512]).status, Status::Good);
    select_thresholds(&mut fixture, false, (true, 0), (true, 1));
    assert_eq!(reported(&mut fixture, &mut other, 4), [Some(0x3807); 2], "one set is used");
}

#[test]
fn sbc3_6_5_7_without_lbpere_no_threshold_is_reported() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0; 6], &[]);
    select_thresholds(&mut fixture, false, (true, 1), (false, 0));
    let mut list = bytes(fixture.run(&[0x1a, 8, 0x01, 0, 64, 0], &[]));
    list[0] = 0;
    list[2] = 0;
    list[4] = 0x01;
    assert_eq!(list[4 + 7] & 0x80, 0x80, "LBPERE by default");
    list[4 + 7] = 0;
    let select = [0x15, 0x10, 0, 0, list.len() as u8, 0];
    assert_eq!(fixture.run(&select, &list).status, Status::Good);
    run(&mut other, &[0; 6], &[]);
    assert_eq!(reported(&mut fixture, &mut other, 0), [None; 2]);
}

#[test]
fn sbc3_6_4_5_log_page_has_used_and_available_resources() {
    let mut fixture = Fixture::new();
    let half = [0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0];
    assert_eq!(fixture.run(&half, &[0; 512]).status, Status::Good);
    let page = bytes(fixture.run(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 64, 0], &[]));
    assert_eq!(page[..4], [0x8c, 0, 0, 24]);
    assert_eq!(page[4..16], [0, 1, 0x23, 8, 0, 0, 0, 1, 2, 0, 0, 0], "half is available");
    assert_eq!(page[16..], [0, 2, 0x23, 8, 0, 0, 0, 1, 1, 0, 0, 0], "half is used");
}

/// 1 TiB of size over this many blocks of space.
struct Promise {
    status: Arc<StoreStatus>,
    used_blocks: u64,
    available_blocks: u64,
}

impl Store for Promise {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: BlockSize::B512, block_count: self.status.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        TestStore::new(BlockSize::B512).characteristics
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    fn read(&self, _: Extent) -> Reply<Data> {
        panic!("not read by the test")
    }

    fn write(&self, _: Extent, _: Payload, _: Durability) -> Reply<()> {
        Io::Ready(Ok(()))
    }

    fn flush(&self) -> Reply<()> {
        Io::Ready(Ok(()))
    }

    fn unmap(&self, _: Extent) -> Reply<()> {
        panic!("not unmapped by the test")
    }

    fn write_zeroes(&self, _: Extent, _: Durability) -> Reply<()> {
        panic!("not zeroed by the test")
    }

    fn allocation(&self, _: Extent) -> Reply<AllocationRun> {
        panic!("not requested by the test")
    }

    fn space(&self) -> Reply<Space> {
        let &Self { used_blocks, available_blocks, .. } = self;
        Io::Ready(Ok(Space { used_blocks, available_blocks }))
    }
}

/// Returns the response to the first write to such a unit.
fn first_write(used_blocks: u64, available_blocks: u64) -> Option<u16> {
    let store = Promise { status: StoreStatus::new(1 << 31), used_blocks, available_blocks };
    let characteristics = store.characteristics();
    let mut fixture = Fixture::over(TestStore::around(Arc::new(store), characteristics));
    assert_eq!(fixture.write(0, &[1; 512]).status, Status::Good);
    fixture.host.run_work();
    additional(&fixture.run(&[0; 6], &[]))
}

#[test]
fn sbc3_4_7_3_8_the_default_threshold_is_a_part_of_the_room_and_not_of_the_promise() {
    const GIB: u64 = 1 << 21;
    assert_eq!(first_write(0, 8 * GIB), None, "a volume of 1 TiB that may take 8 GiB is empty");
    assert_eq!(first_write(6 * GIB, 2 * GIB), None, "a quarter of its room is left");
    assert_eq!(first_write(7 * GIB, GIB), Some(0x3807), "an eighth of its room is left");
}
