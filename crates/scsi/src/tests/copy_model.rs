//! Runs random copies against a model of bytes. After every step, both units have the content of the model.

use super::copy::{Second, copy, cscd, list, offset_segment, segment};
use crate::testing::*;
use crate::{LogicalUnit, NexusHandle, Status};
use proptest::prelude::*;
use sarsen_block::BlockSize;

/// The maximum number of compared bytes. The copies do not touch later blocks.
const MODEL_BYTES: usize = 64 * 4096;

#[derive(Clone, Debug)]
enum Step {
    /// WRITE of some blocks with one value.
    Write { second: bool, lba: u8, count: u8, value: u8 },
    /// WRITE SAME with UNMAP.
    Unmap { second: bool, lba: u8, count: u8 },
    /// Block to block, with padding at the destination.
    Blocks { swapped: bool, counts_destination: bool, same: bool, count: u16, from: u8, to: u8 },
    /// Block to block with offsets.
    Bytes { swapped: bool, same: bool, bytes: u16, from: (u8, u16), to: (u8, u16) },
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<bool>(), 0..24u8, 1..24u8, 1..255u8)
            .prop_map(|(second, lba, count, value)| Step::Write { second, lba, count, value }),
        (any::<bool>(), 0..24u8, 1..24u8).prop_map(|(second, lba, count)| Step::Unmap {
            second,
            lba,
            count
        }),
        (any::<[bool; 3]>(), 0..24u16, 0..24u8, 0..24u8).prop_map(
            |([swapped, counts_destination, same], count, from, to)| Step::Blocks {
                swapped,
                counts_destination,
                same,
                count,
                from,
                to,
            }
        ),
        (any::<[bool; 2]>(), 0..60000u16, (0..12u8, 0..4096u16), (0..12u8, 0..4096u16)).prop_map(
            |([swapped, same], bytes, from, to)| Step::Bytes { swapped, same, bytes, from, to }
        ),
    ]
}

/// One unit, and its expected content.
struct Side {
    nexus: NexusHandle,
    cscd: Vec<u8>,
    block: usize,
    model: Vec<u8>,
}

impl Side {
    fn new(nexus: NexusHandle, unit: &LogicalUnit) -> Self {
        Self {
            nexus,
            cscd: cscd(unit),
            block: unit.store().geometry().block_size.bytes(),
            model: vec![0; MODEL_BYTES],
        }
    }

    fn write(&mut self, lba: u8, count: u8, value: u8) {
        let cdb = [0x2a, 0, 0, 0, 0, lba, 0, 0, count, 0];
        let (start, length) = (usize::from(lba) * self.block, usize::from(count) * self.block);
        assert_eq!(run(&mut self.nexus, &cdb, &vec![value; length]).status, Status::Good);
        self.model[start..start + length].fill(value);
    }

    fn unmap(&mut self, lba: u8, count: u8) {
        let cdb = [0x93, 0x09, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, count, 0, 0];
        assert_eq!(run(&mut self.nexus, &cdb, &[]).status, Status::Good);
        let (start, length) = (usize::from(lba) * self.block, usize::from(count) * self.block);
        self.model[start..start + length].fill(0);
    }

    fn check(&mut self) {
        let blocks = (MODEL_BYTES / self.block) as u16;
        let [high, low] = blocks.to_be_bytes();
        let held = bytes(run(&mut self.nexus, &[0x28, 0, 0, 0, 0, 0, 0, high, low, 0], &[]));
        assert!(held == self.model, "a byte is not what was copied to it");
    }
}

/// Returns source and destination of a step, which are equal for a copy within a unit.
fn sides(swapped: bool, same: bool) -> (usize, usize) {
    let source = usize::from(swapped);
    (source, if same { source } else { 1 - source })
}

fn carry_out(sides_of: &mut [Side; 2], step: &Step) {
    match *step {
        Step::Write { second, lba, count, value } => {
            sides_of[usize::from(second)].write(lba, count, value);
        }
        Step::Unmap { second, lba, count } => sides_of[usize::from(second)].unmap(lba, count),
        Step::Blocks { swapped, counts_destination, same, count, from, to } => {
            let (source, destination) = sides(swapped, same);
            let (from_block, to_block) = (sides_of[source].block, sides_of[destination].block);
            let mut cscds = [sides_of[source].cscd.clone(), sides_of[destination].cscd.clone()];
            cscds[1][28] = 4;
            let flags = if counts_destination { 2 } else { 0 };
            let segment = segment(flags, 1, count, from.into(), to.into());
            let list = list(0, 3, &cscds, &[segment]);
            assert_eq!(copy(&mut sides_of[0].nexus, &list).status, Status::Good);
            let counted = if counts_destination { to_block } else { from_block };
            let length = usize::from(count) * counted;
            let (from, to) = (usize::from(from) * from_block, usize::from(to) * to_block);
            let moved = sides_of[source].model[from..from + length].to_vec();
            let model = &mut sides_of[destination].model;
            model[to..to + length.next_multiple_of(to_block)].fill(0);
            model[to..to + length].copy_from_slice(&moved);
        }
        Step::Bytes { swapped, same, bytes, from, to } => {
            let (source, destination) = sides(swapped, same);
            let (from_block, to_block) = (sides_of[source].block, sides_of[destination].block);
            let cscds = [sides_of[source].cscd.clone(), sides_of[destination].cscd.clone()];
            let from_offset = usize::from(from.1) % from_block;
            let to_offset = usize::from(to.1) % to_block;
            let segment = offset_segment(
                bytes.into(),
                (from.0.into(), from_offset as u16),
                (to.0.into(), to_offset as u16),
            );
            let list = list(0, 3, &cscds, &[segment]);
            assert_eq!(copy(&mut sides_of[1].nexus, &list).status, Status::Good);
            let from = usize::from(from.0) * from_block + from_offset;
            let to = usize::from(to.0) * to_block + to_offset;
            let length = usize::from(bytes);
            let moved = sides_of[source].model[from..from + length].to_vec();
            sides_of[destination].model[to..to + length].copy_from_slice(&moved);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_is_where_the_copies_put_it(
        steps in prop::collection::vec(any_step(), 1..12),
        large_blocks: [bool; 2],
    ) {
        let size = |large| if large { BlockSize::B4096 } else { BlockSize::B512 };
        let fixture = Fixture::over(TestStore::new(size(large_blocks[0])));
        let second = Second::beside(&fixture, size(large_blocks[1]));
        let mut sides = [
            Side::new(fixture.nexus.clone(), &fixture.unit),
            Side::new(second.nexus.clone(), &second.unit),
        ];
        for step in &steps {
            carry_out(&mut sides, step);
            sides[0].check();
            sides[1].check();
        }
    }
}
