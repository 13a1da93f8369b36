//! The allocation of a file: which parts of it have data, reserved space or nothing, and how much space there is.

use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::ioctl::{self, Updater, opcode};
use sarsen_block::Io;

use super::{File, blocking};

/// A part of a file with one allocation state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes from the requested offset.
    pub length: u64,
    /// The allocation state.
    pub state: RunState,
}

/// The allocation state of a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The part has data.
    Data,
    /// The part has space but no data; it reads as zero.
    Reserved,
    /// The part has no space; it reads as zero.
    Hole,
}

/// The space that a file uses, and the space that is available to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that the file system has allocated to the file.
    pub used: u64,
    /// Bytes that are free in the file system, for this file and for others.
    pub available: u64,
}

impl File {
    /// Returns the longest run from `offset` with one allocation state, up to `length` bytes.
    pub fn allocation(&self, offset: u64, length: u64) -> Io<io::Result<Run>> {
        if self.block_device || length == 0 {
            return Io::Ready(Ok(Run { length, state: RunState::Data }));
        }
        let file = self.clone();
        blocking(&self.opened.queue, move || {
            let fd = &file.opened.fd;
            let hole_length = match rustix::fs::seek(fd, SeekFrom::Data(offset)) {
                Ok(start) if start > offset => (start - offset).min(length),
                Ok(_) => {
                    let end = rustix::fs::seek(fd, SeekFrom::Hole(offset))?;
                    return Ok(Run { length: (end - offset).min(length), state: RunState::Data });
                }
                Err(Errno::NXIO) => length,
                Err(Errno::INVAL) => return Ok(Run { length, state: RunState::Data }),
                Err(error) => return Err(error.into()),
            };
            // A part without data may have space. The extent map alone is not enough: it reports data in the page cache
            // that was not written yet as space without data.
            Ok(match file.first_extent(offset, hole_length) {
                Ok(Some((start, length))) if start <= offset => {
                    let length = (start + length).saturating_sub(offset).clamp(1, hole_length);
                    Run { length, state: RunState::Reserved }
                }
                Ok(Some((start, _))) => {
                    Run { length: (start - offset).min(hole_length), state: RunState::Hole }
                }
                Ok(None) | Err(_) => Run { length: hole_length, state: RunState::Hole },
            })
        })
    }

    /// Returns whether the file system distinguishes reserved space from holes.
    pub fn tells_reserved_room(&self) -> bool {
        !self.block_device && self.first_extent(0, 1).is_ok()
    }

    /// Returns the space that a regular file uses and that is available to it; `None` for a device.
    pub fn space(&self) -> Io<io::Result<Option<Space>>> {
        /// The unit of st_blocks (stat(2)).
        const STAT_BLOCK: u64 = 512;
        if self.block_device {
            return Io::Ready(Ok(None));
        }
        let file = self.clone();
        blocking(&self.opened.queue, move || {
            let fd = &file.opened.fd;
            let system = rustix::fs::fstatvfs(fd)?;
            let metadata = std::fs::File::from(fd.try_clone()?).metadata()?;
            Ok(Some(Space {
                used: metadata.blocks() * STAT_BLOCK,
                available: system.f_bavail.saturating_mul(system.f_frsize),
            }))
        })
    }

    /// Returns the first byte and the length of the first extent with space in a range.
    fn first_extent(&self, offset: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
        let mut map = Fiemap { start: offset, length, extent_count: 1, ..Fiemap::default() };
        #[allow(unsafe_code)]
        // SAFETY: the request is FS_IOC_FIEMAP. Its argument is the header, followed by space for the number of extents
        // that the header declares: one.
        let reported =
            unsafe { ioctl::ioctl(&self.opened.fd, Updater::<FS_IOC_FIEMAP, _>::new(&mut map)) };
        reported?;
        Ok((map.mapped_extents > 0).then_some((map.extent.logical, map.extent.length)))
    }
}

/// The length in the request's number is that of the header only (linux/fiemap.h).
const FS_IOC_FIEMAP: ioctl::Opcode = opcode::from_components(
    ioctl::Direction::ReadWrite,
    b'f',
    11,
    size_of::<Fiemap>() - size_of::<FiemapExtent>(),
);

/// struct fiemap with one extent.
#[derive(Default)]
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extent: FiemapExtent,
}

/// struct fiemap_extent.
#[derive(Default)]
#[repr(C)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

const _: () = assert!(size_of::<Fiemap>() == 32 + 56);

#[cfg(test)]
mod tests {
    use super::super::OpenOptions;
    use super::*;
    use crate::cores::{FileEngine, block_on};
    use sarsen_block::Buffer;

    const PIECE: u64 = 1 << 20;

    #[test]
    fn unwritten_extents_are_distinct_from_data_and_holes() {
        // Not on a file system in memory, which does not reserve space.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let options = OpenOptions { create: true, ..OpenOptions::default() };
        let file = File::open(&folder.path().join("data"), options).unwrap();
        file.set_length_now(4 * PIECE).unwrap();
        if !file.tells_reserved_room() {
            return;
        }
        block_on(FileEngine::Pool, async {
            let state = async |piece: u64| {
                file.allocation(piece * PIECE, PIECE).wait().await.unwrap().state
            };
            file.write_at(PIECE, Buffer::zeroed(PIECE as usize).into(), false)
                .wait()
                .await
                .unwrap();
            file.zero_range(2 * PIECE, PIECE).wait().await.unwrap();
            let states = [state(0).await, state(1).await, state(2).await, state(3).await];
            assert_eq!(
                states,
                [RunState::Hole, RunState::Data, RunState::Reserved, RunState::Hole]
            );
            let run = file.allocation(0, 4 * PIECE).wait().await.unwrap();
            assert_eq!(run, Run { length: PIECE, state: RunState::Hole });
            let run = file.allocation(2 * PIECE + 4096, 2 * PIECE).wait().await.unwrap();
            assert_eq!(run, Run { length: PIECE - 4096, state: RunState::Reserved });
            // Data that is only in the page cache is data.
            file.write_at(2 * PIECE, Buffer::zeroed(4096).into(), false).wait().await.unwrap();
            assert_eq!(state(2).await, RunState::Data);
            let space = file.space().wait().await.unwrap().unwrap();
            assert!(space.used >= 2 * PIECE && space.available > 0, "{space:?}");
        })
        .unwrap();
    }
}
