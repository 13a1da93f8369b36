//! The log of dm-log-writes: every write, flush and mark of a device, in the order in which they became durable.
//!
//! A block of the log is a sector of the logged device. Block 0 describes the log. Each entry is one block, followed by
//! its data; the text of a mark is within the entry's own block. All numbers are little-endian.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Bytes of an entry before the text of a mark.
const HEADER_BYTES: usize = 32;

/// A log, read entry by entry.
#[derive(Debug)]
pub struct WriteLog {
    file: File,
    block_bytes: u64,
    entries_left: u64,
    next_block: u64,
}

/// An entry of a log.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// The user's own text.
    Mark(String),
    /// A request to the device.
    Request {
        /// The first byte.
        offset: u64,
        /// What happened to the device.
        effect: Effect,
        /// All requests so far are durable: it was a flush, or a write with FUA.
        is_durable: bool,
    },
}

/// What a request did to a device.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// It wrote this; a flush writes nothing.
    Write(Vec<u8>),
    /// It discarded so many bytes.
    Discard(u64),
}

impl WriteLog {
    /// Opens a log whose device was removed.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let mut head = [0; 28];
        file.read_exact_at(&mut head, 0)?;
        ensure!(number(&head, 0) == MAGIC, "{} is no log of dm-log-writes", path.display());
        let version = number(&head, 8);
        ensure!(version == VERSION, "a log of version {version}");
        let block_bytes = number(&head, 24);
        ensure!(matches!(block_bytes, 512 | 4096), "blocks of {block_bytes} bytes");
        Ok(Self { file, block_bytes, entries_left: number(&head, 16), next_block: 1 })
    }

    fn next_entry(&mut self) -> Result<Entry> {
        let mut block = vec![0; self.block_bytes as usize];
        self.file.read_exact_at(&mut block, self.next_block * self.block_bytes)?;
        let [sector, sectors, flags, data_bytes] = [0, 8, 16, 24].map(|at| number(&block, at));
        self.next_block += 1;
        if flags & MARK != 0 {
            let text = block.get(HEADER_BYTES..HEADER_BYTES + data_bytes as usize);
            let text = text.context("a mark that is too long")?;
            return Ok(Entry::Mark(String::from_utf8_lossy(text).trim_end_matches('\0').into()));
        }
        let length = sectors * self.block_bytes;
        let effect = if flags & DISCARD != 0 {
            Effect::Discard(length)
        } else {
            let mut data = vec![0; usize::try_from(length)?];
            self.file.read_exact_at(&mut data, self.next_block * self.block_bytes)?;
            self.next_block += sectors;
            Effect::Write(data)
        };
        let is_durable = flags & (FLUSH | FUA) != 0;
        Ok(Entry::Request { offset: sector * self.block_bytes, effect, is_durable })
    }
}

impl Iterator for WriteLog {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.entries_left = self.entries_left.checked_sub(1)?;
        Some(self.next_entry())
    }
}

impl Effect {
    /// Repeats the request on a file that is as long as the device.
    pub fn apply(&self, offset: u64, device: &File) -> Result<()> {
        match self {
            Self::Write(data) => device.write_all_at(data, offset)?,
            Self::Discard(length) => {
                use rustix::fs::{FallocateFlags, fallocate};
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(device, flags, offset, *length)?;
            }
        }
        Ok(())
    }
}

/// Returns the number of 8 bytes at this offset; a shorter rest counts as if zeroes followed.
fn number(bytes: &[u8], offset: usize) -> u64 {
    let mut number = [0; 8];
    let end = bytes.len().min(offset + 8);
    number[..end - offset].copy_from_slice(&bytes[offset..end]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(numbers: [u64; 4], text: &str) -> Vec<u8> {
        let mut block = numbers.map(u64::to_le_bytes).concat();
        block.extend_from_slice(text.as_bytes());
        block.resize(512, 0);
        block
    }

    #[test]
    fn entries_are_read_in_order_and_repeated_on_another_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let head = [MAGIC, VERSION, 5, 512].map(u64::to_le_bytes).concat();
        let mut log = head;
        log.resize(512, 0);
        log.extend(entry([2, 1, 0, 0], ""));
        log.extend([7; 512]);
        log.extend(entry([3, 1, FUA, 0], ""));
        log.extend([8; 512]);
        log.extend(entry([0, 0, MARK, 5], "e:one"));
        log.extend(entry([2, 1, DISCARD, 0], ""));
        log.extend(entry([0, 0, FLUSH, 0], ""));
        std::fs::write(&path, log).unwrap();
        let entries: Vec<_> = WriteLog::open(&path).unwrap().map(Result::unwrap).collect();
        let request = |offset, effect, is_durable| Entry::Request { offset, effect, is_durable };
        let write = |byte| Effect::Write(vec![byte; 512]);
        let expected = [
            request(1024, write(7), false),
            request(1536, write(8), true),
            Entry::Mark("e:one".into()),
            request(1024, Effect::Discard(512), false),
            request(0, Effect::Write(Vec::new()), true),
        ];
        assert_eq!(entries, expected);
        let device = tempfile::tempfile().unwrap();
        device.set_len(4096).unwrap();
        for entry in entries {
            if let Entry::Request { offset, effect, .. } = entry {
                effect.apply(offset, &device).unwrap();
            }
        }
        let mut bytes = [1; 1024];
        device.read_exact_at(&mut bytes, 1024).unwrap();
        assert!(bytes[..512] == [0; 512] && bytes[512..] == [8; 512]);
    }

    #[test]
    fn another_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, [1; 512]).unwrap();
        assert!(WriteLog::open(&path).is_err());
    }
}
