//! Records of the journal: changes of maps and of the catalogue, as they are carried out again after an interruption.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::copies::{Copies, MIRROR_MAX, Slot};
use crate::format::VolumeRow;
use crate::pages::Mapping;
use crate::shape::SlabKind;
use crate::space::{Assigned, Class};

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A slab has got slots.
    Assign(Assigned),
    /// A region of a slab with several copies may be overwritten from now on.
    Dirty { slab: u32, region: u8 },
    /// Entries of consecutive chunks, all in one leaf. All pieces are valid, and the chunks follow each other on the device.
    Run { volume: u32, first: u64, count: u32, own: u64 },
    /// One entry.
    Entry { volume: u32, chunk: u64, mapping: Mapping },
    /// Consecutive chunks without an entry from now on, all in one leaf.
    Clear { volume: u32, first: u64, count: u32 },
    /// A volume or a snapshot, whose map is that of `source`. 0: its map is empty.
    Create { source: u32, row: Box<VolumeRow> },
    /// Properties of a volume or a snapshot other than its map: its name, its size, its flags.
    Change { row: Box<VolumeRow> },
    /// A volume gets the map of another object.
    Replace { volume: u32, source: u32 },
}

/// The beginning of every record.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    small: u8,
    other: U16,
    /// A volume, or a slab.
    object: U32,
    /// A chunk, a slot or a source.
    place: U64,
}

const ASSIGN: u8 = 1;
const RUN: u8 = 2;
const ENTRY: u8 = 3;
const CLEAR: u8 = 4;
const CREATE: u8 = 5;
const CHANGE: u8 = 6;
const REPLACE: u8 = 7;
const DIRTY: u8 = 8;

impl Record {
    /// Appends the record in its form on the device.
    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        let mut put =
            |kind: u8, (small, other): (u8, u16), object: u32, place: u64, rest: &[u8]| {
                let head = Head {
                    kind,
                    small,
                    other: other.into(),
                    object: object.into(),
                    place: place.into(),
                };
                into.extend_from_slice(head.as_bytes());
                into.extend_from_slice(rest);
            };
        let none = (0, 0);
        match self {
            Self::Assign(Assigned { slab, class, copies }) => {
                let wanted = class.copies().unwrap_or(1);
                let slots = copies.iter().map(|(slot, _)| {
                    U64::from(u64::from(slot.device) << 32 | u64::from(slot.number))
                });
                let slots: Vec<_> = slots.collect();
                let small = (class.kind() as u8, wanted.into());
                put(ASSIGN, small, *slab, slots.len() as u64, slots.as_bytes());
            }
            Self::Dirty { slab, region } => put(DIRTY, (*region, 0), *slab, 0, &[]),
            Self::Run { volume, first, count, own } => {
                let rest = [U64::from(*own), U64::from(u64::from(*count))];
                put(RUN, none, *volume, *first, rest.as_bytes());
            }
            Self::Entry { volume, chunk, mapping } => {
                let (entry, base) = mapping.to_numbers();
                let rest = [U64::from(entry), U64::from(base)];
                put(ENTRY, none, *volume, *chunk, rest.as_bytes());
            }
            Self::Clear { volume, first, count } => {
                put(CLEAR, none, *volume, *first, U64::from(u64::from(*count)).as_bytes());
            }
            Self::Create { source, row } => {
                put(CREATE, none, row.id.get(), (*source).into(), row.as_bytes());
            }
            Self::Change { row } => put(CHANGE, none, row.id.get(), 0, row.as_bytes()),
            Self::Replace { volume, source } => {
                put(REPLACE, none, *volume, (*source).into(), &[]);
            }
        }
    }

    /// Reads the first record of `bytes`, and returns it with the rest.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = Head::read_from_prefix(bytes).ok()?;
        let (object, place) = (head.object.get(), head.place.get());
        Some(match head.kind {
            ASSIGN => {
                let kind = SlabKind::of(head.small)?;
                let wanted = u8::try_from(head.other.get()).ok()?;
                let class = Class::of(kind, wanted);
                let mut copies = Copies::default();
                let mut rest = rest;
                for _ in 0..place {
                    let slot;
                    (slot, rest) = U64::read_from_prefix(rest).ok()?;
                    let device = u8::try_from(slot.get() >> 32).ok()?;
                    if copies.has(device) || copies.len() == usize::from(MIRROR_MAX) {
                        return None;
                    }
                    copies.push(Slot { device, number: slot.get() as u32 }, false);
                }
                let is_possible = (1..=MIRROR_MAX).contains(&wanted) && copies.len() > 0;
                is_possible
                    .then_some((Self::Assign(Assigned { slab: object, class, copies }), rest))?
            }
            DIRTY if head.small < 64 => (Self::Dirty { slab: object, region: head.small }, rest),
            RUN => {
                let ([own, count], rest) = <[U64; 2]>::read_from_prefix(rest).ok()?;
                let (own, count) = (own.get(), u32::try_from(count.get()).ok()?);
                (Self::Run { volume: object, first: place, count, own }, rest)
            }
            ENTRY => {
                let ([entry, base], rest) = <[U64; 2]>::read_from_prefix(rest).ok()?;
                let mapping = Mapping::of_numbers(entry.get(), base.get());
                (Self::Entry { volume: object, chunk: place, mapping }, rest)
            }
            CLEAR => {
                let (count, rest) = U64::read_from_prefix(rest).ok()?;
                let count = u32::try_from(count.get()).ok()?;
                (Self::Clear { volume: object, first: place, count }, rest)
            }
            CREATE | CHANGE => {
                let (row, rest) = VolumeRow::read_from_prefix(rest).ok()?;
                let row = Box::new(row);
                let source = u32::try_from(place).ok()?;
                let is_new = head.kind == CREATE;
                (if is_new { Self::Create { source, row } } else { Self::Change { row } }, rest)
            }
            REPLACE => (Self::Replace { volume: object, source: u32::try_from(place).ok()? }, rest),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    #[test]
    fn every_record_is_read_as_it_was_written() {
        let mut row = VolumeRow::new_zeroed();
        (row.id, row.name[3]) = (9.into(), 7);
        let mapping = Mapping { own: (1 << 40) - 1, valid: 0x8001, base: 77, base_pieces: 0x7ffe };
        let mut copies = Copies::default();
        copies.push(Slot { device: 31, number: 1 << 20 }, false);
        copies.push(Slot { device: 0, number: 3 }, false);
        let assigned = Assigned { slab: 5, class: Class::Checked(2), copies };
        let records = [
            Record::Assign(assigned),
            Record::Dirty { slab: 9, region: 63 },
            Record::Run { volume: 1, first: 1 << 40, count: 256, own: 3 },
            Record::Entry { volume: 2, chunk: 8, mapping },
            Record::Clear { volume: 3, first: 4, count: 5 },
            Record::Create { source: 6, row: Box::new(row) },
            Record::Change { row: Box::new(row) },
            Record::Replace { volume: 7, source: 8 },
        ];
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.write(&mut bytes));
        let mut rest = &bytes[..];
        for record in &records {
            let read;
            (read, rest) = Record::read(rest).expect("a record");
            assert_eq!(read, *record);
            assert!(rest.is_empty() || Record::read(&rest[..15]).is_none(), "half a record");
        }
        assert!(rest.is_empty() && Record::read(rest).is_none());
    }
}
