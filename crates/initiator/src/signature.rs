//! Detects the data that a device holds already: file systems, partition tables, volume managers, RAID, swap, disk
//! images. Callers check a device ([`look_by`], [`find`]) before they overwrite it, so that a mistyped name does not
//! destroy data.
//!
//! Each of these formats has a signature at a known place, near the beginning or the end. The table in
//! `signature/table.rs` has a row for each. Nothing else is checked, so a device without a known signature may still
//! hold data.

mod table;

use std::fmt;

use sarsen_block::Buffer;
use serde::Serialize;

use table::{Base, Origin, Row};

/// Bytes that are read from the beginning; the last signature there is that of a VMFS at 2 MiB, …
const HEAD_LENGTH: u64 = (2 << 20) + 4096;
/// … and bytes that are read before the end; the first signature there is a label of ZFS.
const TAIL_LENGTH: u64 = 1 << 20;

/// Data that a device holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// The format with its article, such as `an ext4 file system`.
    pub what: &'static str,
    /// The label of the file system or volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) => write!(f, "{} (label {label:?})", self.what),
            None => f.write_str(self.what),
        }
    }
}

/// A device holds data, and the caller did not permit overwriting it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place} holds {}", list(found))]
pub struct Occupied {
    /// The device: its URL or its path.
    pub place: String,
    /// The signatures that were found, one or more.
    pub found: Vec<Signature>,
}

impl Occupied {
    /// Returns an error if `found` is not empty.
    pub fn of(place: &str, found: Vec<Signature>) -> Option<Self> {
        (!found.is_empty()).then(|| Self { place: place.to_owned(), found })
    }
}

fn list(found: &[Signature]) -> String {
    let words: Vec<String> = found.iter().map(Signature::to_string).collect();
    match words.split_last() {
        Some((last, rest @ [_, ..])) => format!("{} and {last}", rest.join(", ")),
        Some((last, [])) => last.clone(),
        None => "nothing".into(),
    }
}

/// Detects the data on a device of `length` bytes. `read` fills its buffer with the bytes from an offset on. Offsets
/// and lengths are whole blocks of 512 or 4096 bytes if `length` is.
pub fn find<E>(
    length: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Vec<Signature>, E> {
    let mut sample = Sample { length, parts: Vec::new() };
    for (offset, length) in parts(length) {
        let mut bytes = vec![0; length];
        read(offset, &mut bytes)?;
        sample.parts.push((offset, bytes));
    }
    Ok(sample.holdings())
}

/// Does the same with an asynchronous `read`, which returns exactly the number of bytes that was asked for.
pub async fn look_by<E>(
    length: u64,
    mut read: impl AsyncFnMut(u64, usize) -> Result<Buffer, E>,
) -> Result<Vec<Signature>, E> {
    let mut sample = Sample { length, parts: Vec::new() };
    for (offset, length) in parts(length) {
        sample.parts.push((offset, read(offset, length).await?.to_vec()));
    }
    Ok(sample.holdings())
}

/// Returns the offsets and lengths that are read from a device.
fn parts(length: u64) -> Vec<(u64, usize)> {
    if length <= HEAD_LENGTH + TAIL_LENGTH {
        return vec![(0, length as usize)];
    }
    vec![(0, HEAD_LENGTH as usize), (length - TAIL_LENGTH, TAIL_LENGTH as usize)]
}

/// The parts of a device that were read.
struct Sample {
    length: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

impl Sample {
    /// Returns bytes, if they exist and were read.
    fn at(&self, offset: u64, length: usize) -> Option<&[u8]> {
        self.parts.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(length)?)
        })
    }

    fn holdings(&self) -> Vec<Signature> {
        let mut found: Vec<Signature> = Vec::new();
        for row in table::ROWS {
            let holding = row
                .bases
                .iter()
                .flat_map(|base| base.places(self.length))
                .find_map(|base| row.holds(View { sample: self, base }));
            if let Some(holding) = holding
                && !found.contains(&holding)
            {
                found.push(holding);
            }
        }
        // A GPT includes a protective MBR, so that tools that do not support GPT see a full disk.
        if found.iter().any(|holding| holding.what == table::GPT) {
            found.retain(|holding| holding.what != table::MBR);
        }
        found
    }
}

/// A sample from the start of a structure. Bytes that were not read are zero.
#[derive(Clone, Copy)]
struct View<'a> {
    sample: &'a Sample,
    base: u64,
}

impl<'a> View<'a> {
    fn bytes(self, offset: u64, length: usize) -> Option<&'a [u8]> {
        self.sample.at(self.base.checked_add(offset)?, length)
    }

    fn array<const N: usize>(self, offset: u64) -> [u8; N] {
        self.bytes(offset, N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    fn byte(self, offset: u64) -> u8 {
        u8::from_le_bytes(self.array(offset))
    }

    fn le16(self, offset: u64) -> u16 {
        u16::from_le_bytes(self.array(offset))
    }

    fn be16(self, offset: u64) -> u16 {
        u16::from_be_bytes(self.array(offset))
    }

    fn le32(self, offset: u64) -> u32 {
        u32::from_le_bytes(self.array(offset))
    }

    /// Returns a text that ends with a zero, or with spaces.
    fn text(self, offset: u64, length: usize) -> Option<String> {
        let bytes = self.bytes(offset, length)?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text).trim_end().to_owned();
        (!text.is_empty()).then_some(text)
    }
}

impl Base {
    /// Returns the possible start offsets of the structure on a device of `length` bytes.
    fn places(&self, length: u64) -> impl Iterator<Item = u64> {
        let origin = match self.origin {
            Origin::Start => Some(0),
            Origin::End => Some(length),
            Origin::AlignedEnd(align) => Some(length / align * align),
        };
        let Self { back, forward, step, count, .. } = *self;
        let first = origin.and_then(|origin| (origin + forward).checked_sub(back));
        first.into_iter().flat_map(move |first| (0..count).map(move |index| first + index * step))
    }
}

impl Row {
    fn holds(&self, view: View<'_>) -> Option<Signature> {
        let there = view.bytes(self.offset, self.magic.len())? == self.magic && (self.check)(view);
        let label = self.label.and_then(|(offset, length)| view.text(offset, length));
        // mkfs.fat writes this when there is no label.
        let label = label.filter(|label| label != "NO NAME");
        there.then_some(Signature { what: self.what, label })
    }
}

#[cfg(test)]
mod tests;
