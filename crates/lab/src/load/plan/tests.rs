use sarsen_initiator::Url;

use super::*;
use crate::mix::Part;

const UNIT: Unit = Unit { base: 100, blocks: 1000, block_length: 512 };

fn options() -> LoadOptions {
    let access =
        AccessPattern { block_bytes: 4096, read_percent: 70, random_percent: 50, queue_depth: 8 };
    let url: Url = "iscsi://127.0.0.1/iqn.2026-01.invalid.example:a/0".parse().unwrap();
    LoadOptions::new(url, access)
}

fn mixed(options: &LoadOptions) -> Mixed {
    Mixed::new(options, UNIT, 0, 0, 1)
}

fn part(weight: u32, block_bytes: u32, random_percent: u8) -> Part {
    Part { weight, block_bytes, read_percent: 50, random_percent }
}

#[test]
fn every_io_lies_within_its_part_of_the_unit() {
    let mut options = options();
    options.mix = Some(Mix {
        parts: vec![part(1, 512, 100), part(3, 65536, 50), part(1, 8192, 0)],
        align_bytes: Some(1024),
        queue_depth: 4,
    });
    let mut mixed = mixed(&options);
    let now = sarsen_io::time::now();
    let mut counts = [0; 3];
    for _ in 0..10_000 {
        let io = mixed.next(now, |_| true).unwrap();
        assert!(io.lba >= 100 && io.lba + u64::from(io.blocks) <= 1100);
        assert_eq!((io.lba - 100) % 2, 0, "aligned");
        counts[[1, 128, 16].iter().position(|blocks| *blocks == io.blocks).unwrap()] += 1;
    }
    assert!(counts[1] > 2 * counts[0] && counts[1] > 2 * counts[2], "{counts:?}");
}

#[test]
fn arrivals_keep_their_times_however_late_they_begin() {
    let mut options = options();
    options.rate = Some(1000.0);
    let mut mixed = mixed(&options);
    let begin = sarsen_io::time::now();
    assert_eq!(mixed.next(begin, |_| true).map(|io| io.intended), Some(begin));
    assert!(mixed.next(begin, |_| true).is_none(), "the second one is not due");
    let late = begin + Duration::from_micros(3500);
    assert_eq!(mixed.backlog(late), 3);
    for number in 1..=3 {
        let io = mixed.next(late, |_| true).unwrap();
        assert_eq!(io.intended, begin + Duration::from_millis(number));
    }
    assert!(mixed.next(late, |_| true).is_none());
    assert_eq!((mixed.backlog(late), mixed.due()), (0, Some(begin + Duration::from_millis(4))));
}

#[test]
fn an_arrival_that_may_not_begin_stays_due() {
    let mut options = options();
    options.rate = Some(1000.0);
    let mut mixed = mixed(&options);
    let begin = sarsen_io::time::now();
    assert!(mixed.next(begin, |_| false).is_none());
    let later = begin + Duration::from_micros(10);
    assert_eq!(mixed.next(later, |_| true).map(|io| io.intended), Some(begin));
}

#[test]
fn a_part_of_the_unit_is_chosen_in_bytes_or_percent() {
    let mut options = options();
    options.offset = Amount::Percent(50);
    options.size = Some(Amount::Bytes(100 * 512));
    let unit = Unit::new(&options, 1000, 512);
    assert_eq!((unit.base, unit.blocks), (500, 100));
    options.size = None;
    options.offset = Amount::Bytes(u64::MAX);
    assert_eq!(Unit::new(&options, 1000, 512).blocks, 0);
    assert!(unit.check(512 * 100).is_ok());
    assert!(unit.check(512 * 101).is_err() && unit.check(513).is_err());
}
