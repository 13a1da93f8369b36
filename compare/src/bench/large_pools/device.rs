//! A sparse file as the device of a pool that is filled: blocks of zeroes are not written where the file has a hole. So a
//! volume has all of its chunks mapped, and the file has little more than the metadata.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use sarsen_block::{
    Allocation, AllocationRun, BlockError, BlockSize, Buffer, Characteristics, Data, Direction,
    Durability, Extent, Geometry, InvalidRequest, Io, Payload, Reply, Space, Store, StoreStatus,
};

const BLOCK_SIZE: BlockSize = BlockSize::B4096;

/// See the module.
pub(super) struct SparseDevice {
    file: File,
    status: Arc<StoreStatus>,
    /// Blocks that may have other bytes than zeroes.
    written: Mutex<HashSet<u64>>,
}

impl SparseDevice {
    /// Opens a file in which only its first bytes, up to `used`, may have data.
    pub(super) fn open(path: &Path, used: u64) -> io::Result<Arc<Self>> {
        let file = File::options().read(true).write(true).open(path)?;
        let blocks = |bytes: u64| bytes >> BLOCK_SIZE.shift();
        let status = StoreStatus::new(blocks(file.metadata()?.len()));
        let written = Mutex::new((0..blocks(used)).collect());
        Ok(Arc::new(Self { file, status, written }))
    }

    fn checked<T>(
        &self,
        extent: Extent,
        direction: Direction,
        action: impl FnOnce(u64, usize) -> io::Result<T>,
    ) -> Reply<T> {
        let (start, length) = (extent.byte_offset(BLOCK_SIZE), extent.byte_count(BLOCK_SIZE));
        let failed = |source| BlockError::medium(extent.lba, direction, source);
        let checked = extent.check(self.status.block_count());
        Io::Ready(checked.and_then(|()| action(start, length as usize).map_err(failed)))
    }
}

impl Store for SparseDevice {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: BLOCK_SIZE, block_count: self.status.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: true,
            read_only: false,
            unmap: None,
            physical_block_exponent: 0,
            optimal_transfer: None,
            protection: false,
            is_lasting: true,
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.checked(extent, Direction::Read, |start, length| {
            let mut buffer = Buffer::zeroed(length);
            self.file.read_exact_at(&mut buffer, start)?;
            Ok(Data::Buffer(buffer))
        })
    }

    fn write(&self, extent: Extent, data: Payload, _: Durability) -> Reply<()> {
        self.checked(extent, Direction::Write, |start, _| {
            let blocks = extent.lba.0..extent.end();
            let mut written = self.written.lock();
            let is_zero = data.chunks(ZEROES.len()).all(|part| *part == ZEROES[..part.len()]);
            if is_zero && blocks.clone().all(|block| !written.contains(&block)) {
                return Ok(());
            }
            written.extend(blocks);
            self.file.write_all_at(&data, start)
        })
    }

    fn flush(&self) -> Reply<()> {
        Io::Ready(Ok(()))
    }

    fn unmap(&self, _: Extent) -> Reply<()> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }

    fn write_zeroes(&self, _: Extent, _: Durability) -> Reply<()> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        let run = AllocationRun { block_count: extent.block_count, allocation: Allocation::Mapped };
        Io::Ready(Ok(run))
    }

    fn space(&self) -> Reply<Space> {
        Io::Ready(Ok(Space { used_blocks: self.status.block_count(), available_blocks: 0 }))
    }

    fn resize(&self, _: u64) -> Reply<()> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }
}

static ZEROES: [u8; 4096] = [0; 4096];

#[cfg(test)]
mod tests {
    use super::*;

    fn write(device: &SparseDevice, block: u64, byte: u8) {
        let data = Buffer::copy_of(&[byte; 4096]).into();
        match device.write(Extent::new(block, 1), data, Durability::Volatile) {
            Io::Ready(written) => written.unwrap(),
            Io::Pending(_) => panic!("the device has no queue"),
        }
    }

    #[test]
    fn zeroes_are_written_over_data_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[7; 4096], 0).unwrap();
        file.as_file().set_len(8 << 12).unwrap();
        let device = SparseDevice::open(file.path(), 1 << 12).unwrap();
        let read = |block: u64| {
            let mut byte = [9];
            file.as_file().read_exact_at(&mut byte, block << 12).unwrap();
            byte[0]
        };
        write(&device, 2, 0);
        write(&device, 3, 5);
        assert_eq!([0, 2, 3].map(read), [7, 0, 5]);
        write(&device, 3, 0);
        write(&device, 0, 0);
        assert_eq!([0, 2, 3].map(read), [0, 0, 0]);
    }
}
