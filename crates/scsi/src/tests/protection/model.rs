//! Runs random commands, with and without protection information, and compares the medium with a model of the rules.

use super::*;
use proptest::prelude::*;

const LBAS: u64 = 24;

/// One command.
#[derive(Clone, Debug)]
enum Step {
    Write {
        lba: u64,
        count: u64,
        fill: u8,
    },
    WriteProtected {
        lba: u64,
        count: u64,
        fill: u8,
        code: u8,
        spoilt: Option<(u64, usize)>,
    },
    WriteSame {
        lba: u64,
        count: u64,
        fill: u8,
        protect: bool,
    },
    Unmap {
        lba: u64,
        count: u64,
    },
    Read {
        lba: u64,
        count: u64,
        code: u8,
    },
    /// The medium corrupts a block.
    Decay {
        lba: u64,
        field: usize,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    let place = (0..LBAS, 1..=8_u64).prop_map(|(lba, count)| (lba, count.min(LBAS - lba)));
    let spoilt = proptest::option::weighted(0.3, (0..8_u64, 0..3_usize));
    prop_oneof![
        3 => (place.clone(), any::<u8>())
            .prop_map(|((lba, count), fill)| Step::Write { lba, count, fill }),
        4 => (place.clone(), any::<u8>(), 1..=5_u8, spoilt).prop_map(
            |((lba, count), fill, code, spoilt)| {
                let spoilt = spoilt.map(|(at, field)| (at % count, field));
                Step::WriteProtected { lba, count, fill, code, spoilt }
            }
        ),
        1 => (place.clone(), any::<u8>(), any::<bool>())
            .prop_map(|((lba, count), fill, protect)| Step::WriteSame { lba, count, fill, protect }),
        1 => place.clone().prop_map(|(lba, count)| Step::Unmap { lba, count }),
        6 => (place, 0..=5_u8).prop_map(|((lba, count), code)| Step::Read { lba, count, code }),
        1 => (0..LBAS, 0..3_usize).prop_map(|(lba, field)| Step::Decay { lba, field }),
    ]
}

/// The expected content of the medium.
struct Model {
    protection_type: ProtectionType,
    size: usize,
    blocks: Vec<Vec<u8>>,
}

impl Model {
    fn new(protection_type: ProtectionType, size: usize) -> Self {
        let blank = [vec![0; size], vec![0xff; 8]].concat();
        Self { protection_type, size, blocks: vec![blank; LBAS as usize] }
    }

    fn generated(&self, lba: u64, data: &[u8]) -> Vec<u8> {
        let reference = match self.protection_type {
            ProtectionType::Type1 => lba as u32,
            _ => u32::MAX,
        };
        with_tags(data, Tags { guard: crc(data), application: 0, reference })
    }

    /// Returns the first wrong field of the blocks.
    fn fault(&self, lba: u64, code: u8, blocks: &[Vec<u8>], read: bool) -> Option<(u16, u64)> {
        (lba..).zip(blocks).find_map(|(lba, block)| {
            let tags = tags_of(block);
            let escaped = tags.application == 0xffff
                && (self.protection_type == ProtectionType::Type1 || tags.reference == u32::MAX);
            let wrong = [
                (GUARD, tags.guard != crc(&block[..self.size])),
                (REFERENCE, tags.reference != lba as u32),
            ];
            let checked = |field| is_checked(code, field, self.protection_type);
            let found = wrong.into_iter().find(|&(field, wrong)| wrong && checked(field));
            found.filter(|_| !(read && escaped)).map(|(field, _)| (field, lba))
        })
    }

    fn put(&mut self, lba: u64, blocks: &[Vec<u8>]) {
        self.blocks[lba as usize..lba as usize + blocks.len()].clone_from_slice(blocks);
    }

    /// Executes a step on both. The outcomes must be the same.
    fn step(&mut self, fixture: &mut Fixture, step: &Step) -> Result<(), TestCaseError> {
        let size = self.size;
        let data = |lba: u64, fill: u8| -> Vec<u8> {
            (0..size).map(|at| fill.wrapping_add((at / 8) as u8) ^ lba as u8).collect()
        };
        match *step {
            Step::Write { lba, count, fill } => {
                let new: Vec<_> = (lba..lba + count).map(|lba| data(lba, fill)).collect();
                let cdb = cdb_16(WRITE, 0, 0, lba, count as u32);
                prop_assert_eq!(outcome(&fixture.run_exactly(&cdb, &new.concat())), Ok(()));
                let new: Vec<_> =
                    (lba..).zip(new).map(|(lba, data)| self.generated(lba, &data)).collect();
                self.put(lba, &new);
            }
            Step::WriteProtected { lba, count, fill, code, spoilt } => {
                let block = |lba: u64| {
                    let (data, reference) = (data(lba, fill), lba as u32);
                    let application = u16::from(fill);
                    with_tags(&data, Tags { guard: crc(&data), application, reference })
                };
                let mut new: Vec<_> = (lba..lba + count).map(block).collect();
                if let Some((at, field)) = spoilt {
                    spoil(&mut new[at as usize], SPOILT[field].1);
                }
                let cdb = cdb_16(WRITE, code, 0, lba, count as u32);
                let expected = match self.fault(lba, code, &new, false) {
                    Some((field, lba)) => Err((field, Some(lba))),
                    None => Ok(()),
                };
                prop_assert_eq!(outcome(&fixture.run_exactly(&cdb, &new.concat())), expected);
                if expected.is_ok() {
                    self.put(lba, &new);
                }
            }
            Step::WriteSame { lba, count, fill, protect } => {
                let data = data(lba, fill);
                let first = Tags { guard: crc(&data), application: 5, reference: lba as u32 };
                let sent = if protect { with_tags(&data, first) } else { data.clone() };
                let cdb = cdb_16(0x93, u8::from(protect), 0, lba, count as u32);
                prop_assert_eq!(outcome(&fixture.run_exactly(&cdb, &sent)), Ok(()));
                let counts = u32::from(self.protection_type == ProtectionType::Type1);
                let stored = |lba: u64, index: u32| {
                    if protect {
                        let reference = first.reference + index * counts;
                        with_tags(&data, Tags { reference, ..first })
                    } else {
                        self.generated(lba, &data)
                    }
                };
                let new: Vec<_> =
                    (lba..lba + count).zip(0..).map(|(lba, index)| stored(lba, index)).collect();
                self.put(lba, &new);
            }
            Step::Unmap { lba, count } => {
                let cdb = cdb_16(0x93, 0, 0x09, lba, count as u32);
                prop_assert_eq!(outcome(&fixture.run_exactly(&cdb, &[])), Ok(()));
                let blank = [vec![0; size], vec![0xff; 8]].concat();
                self.put(lba, &vec![blank; count as usize]);
            }
            Step::Read { lba, count, code } => {
                let stored = &self.blocks[lba as usize..(lba + count) as usize];
                let completion = fixture.run(&cdb_16(READ, code, 0, lba, count as u32), &[]);
                let expected = match self.fault(lba, code, stored, true) {
                    Some((field, lba)) => Err((field, Some(lba))),
                    None => Ok(()),
                };
                prop_assert_eq!(outcome(&completion), expected);
                if expected.is_ok() {
                    let length = if code == 0 { size } else { size + 8 };
                    let wanted: Vec<u8> =
                        stored.iter().flat_map(|block| &block[..length]).copied().collect();
                    prop_assert_eq!(bytes(completion), wanted);
                }
            }
            Step::Decay { lba, field } => {
                spoil(&mut self.blocks[lba as usize], SPOILT[field].1);
                fixture.put_on_medium(lba, &self.blocks[lba as usize..=lba as usize]);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_commands_leave_the_medium_as_the_model_has_it(
        steps in prop::collection::vec(any_step(), 1..24),
        is_type_1: bool,
        large_blocks: bool,
        delay_polls in 0..2_usize,
    ) {
        let protection_type = if is_type_1 { ProtectionType::Type1 } else { ProtectionType::Type3 };
        let block_size = if large_blocks { BlockSize::B4096 } else { BlockSize::B512 };
        let mut fixture = fixture(protection_type, block_size);
        fixture.store.delay_polls.store(delay_polls, std::sync::atomic::Ordering::Relaxed);
        let mut model = Model::new(protection_type, block_size.bytes());
        for step in &steps {
            model.step(&mut fixture, step)?;
            prop_assert_eq!(&fixture.medium(0, LBAS), &model.blocks);
        }
    }
}
