//! A store that checks and generates the protection information of plain blocks.

use super::{Checks, Expected, Inspection, ProtectionGenerator, ProtectionType, protected_bytes};
use sarsen_block::{
    AllocationRun, BlockError, Buffer, Characteristics, Data, Durability, Extent, Geometry, Io,
    PROTECTION_BYTES, Payload, Reply, Space, Store, StoreStatus,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The maximum number of reads of a block before an error is reported. A concurrent write may have been incomplete
/// during the first read.
const READS: usize = 4;

/// The layer of a volume's store that checks and generates protection information, and the type of its format.
pub struct Protected {
    below: Arc<dyn Store>,
    /// The number of the type; 0 for none.
    protection_type: AtomicU8,
    /// ATO (SPC-4 7.5.8).
    application_tag_owned: AtomicBool,
    /// DPICZ (SPC-4 7.5.8).
    unchecked_when_zero: AtomicBool,
}

impl Protected {
    /// Returns the layer over a store, if the store supports protection information, and its type.
    pub fn over(
        below: &Arc<dyn Store>,
        protection_type: Option<ProtectionType>,
    ) -> Option<Arc<Self>> {
        if !below.characteristics().protection {
            return None;
        }
        let store = Self {
            below: below.clone(),
            protection_type: AtomicU8::new(0),
            application_tag_owned: AtomicBool::new(false),
            unchecked_when_zero: AtomicBool::new(false),
        };
        store.set_protection_type(protection_type);
        Some(Arc::new(store))
    }

    /// Returns the type of the medium's format.
    pub(crate) fn protection_type(&self) -> Option<ProtectionType> {
        match self.protection_type.load(Ordering::Relaxed) {
            1 => Some(ProtectionType::Type1),
            2 => Some(ProtectionType::Type2),
            3 => Some(ProtectionType::Type3),
            _ => None,
        }
    }

    /// Changes the type of the medium's format.
    pub(crate) fn set_protection_type(&self, protection_type: Option<ProtectionType>) {
        let number = protection_type.map_or(0, |protection_type| protection_type.p_type() + 1);
        self.protection_type.store(number, Ordering::Relaxed);
    }

    /// Sets ATO and DPICZ, from the control mode page.
    pub(crate) fn set_policy(&self, application_tag_owned: bool, unchecked_when_zero: bool) {
        self.application_tag_owned.store(application_tag_owned, Ordering::Relaxed);
        self.unchecked_when_zero.store(unchecked_when_zero, Ordering::Relaxed);
    }

    /// Returns ATO.
    pub(crate) fn is_application_tag_owned(&self) -> bool {
        self.application_tag_owned.load(Ordering::Relaxed)
    }

    /// Returns DPICZ: blocks are not checked if the PROTECT field is zero.
    pub(crate) fn is_unchecked_when_zero(&self) -> bool {
        self.unchecked_when_zero.load(Ordering::Relaxed)
    }

    /// Returns the inspection of blocks that were read, or that the initiator sent.
    pub(crate) fn inspection(
        &self,
        protection_type: ProtectionType,
        extent: Extent,
        checks: Checks,
        expected: Expected,
        from_medium: bool,
    ) -> Inspection {
        let block_size = self.below.geometry().block_size;
        Inspection { protection_type, block_size, extent, checks, expected, from_medium }
    }

    fn read_plain(&self, protection_type: ProtectionType, extent: Extent) -> Reply<Data> {
        let block_count = self.below.geometry().block_count;
        if let Err(error) = extent.check(block_count) {
            return Io::Ready(Err(error));
        }
        let expected = Expected::of_address(protection_type, extent.lba);
        let inspection = self.inspection(protection_type, extent, Checks::ALL, expected, true);
        let size = self.below.geometry().block_size.bytes();
        read_inspected(&self.below, inspection)
            .map(move |blocks| Ok(Data::Buffer(without_tags(blocks?, size))))
    }

    fn write_plain(
        &self,
        protection_type: ProtectionType,
        extent: Extent,
        data: &[u8],
        durability: Durability,
    ) -> Reply<()> {
        let geometry = self.below.geometry();
        let block_count = geometry.block_count;
        if let Err(error) = extent.check(block_count) {
            return Io::Ready(Err(error));
        }
        let application_tag_owned = self.is_application_tag_owned();
        let generation = ProtectionGenerator { protection_type, application_tag_owned };
        let (size, step) = (geometry.block_size.bytes(), protected_bytes(geometry.block_size));
        let mut blocks = Buffer::for_overwrite(extent.block_count as usize * step);
        let each = blocks.chunks_exact_mut(step).zip(data.chunks_exact(size));
        for (lba, (block, data)) in (extent.lba.0..).zip(each) {
            block[..size].copy_from_slice(data);
            generation.put(sarsen_block::Lba(lba), block);
        }
        self.below.write_protected(extent, blocks.into(), durability)
    }
}

/// Reads blocks with their protection information from a store, and applies `inspection`.
pub(crate) fn read_inspected(store: &Arc<dyn Store>, inspection: Inspection) -> Reply<Buffer> {
    let store = store.clone();
    match store.read_protected(inspection.extent) {
        Io::Ready(Ok(data)) => {
            let blocks = data.into_buffer();
            match inspection.inspect(&blocks) {
                Ok(()) => Io::Ready(Ok(blocks)),
                Err(_) => Io::pending(read_again(store, inspection)),
            }
        }
        Io::Ready(Err(error)) => Io::Ready(Err(error)),
        Io::Pending(future) => Io::pending(async move {
            let blocks = future.await?.into_buffer();
            match inspection.inspect(&blocks) {
                Ok(()) => Ok(blocks),
                Err(_) => read_again(store, inspection).await,
            }
        }),
    }
}

/// Reads blocks again after a failed inspection.
async fn read_again(store: Arc<dyn Store>, inspection: Inspection) -> Result<Buffer, BlockError> {
    let mut read = 1;
    loop {
        let blocks = store.read_protected(inspection.extent).wait().await?.into_buffer();
        read += 1;
        match inspection.inspect(&blocks) {
            Ok(()) => return Ok(blocks),
            Err(error) if read == READS => return Err(error),
            Err(_) => {}
        }
    }
}

/// Returns only the data of blocks of `size` bytes, compacted in place.
pub(crate) fn without_tags(mut blocks: Buffer, size: usize) -> Buffer {
    let step = size + PROTECTION_BYTES;
    let block_count = blocks.len() / step;
    for index in 1..block_count {
        blocks.copy_within(index * step..index * step + size, index * size);
    }
    blocks.truncate(block_count * size);
    blocks
}

impl Store for Protected {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        self.below.characteristics()
    }

    fn status(&self) -> &Arc<StoreStatus> {
        self.below.status()
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        match self.protection_type() {
            Some(protection_type) if !self.is_unchecked_when_zero() => {
                self.read_plain(protection_type, extent)
            }
            _ => self.below.read(extent),
        }
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        match self.protection_type() {
            Some(protection_type) => self.write_plain(protection_type, extent, &data, durability),
            None => self.below.write(extent, data, durability),
        }
    }

    fn read_protected(&self, extent: Extent) -> Reply<Data> {
        self.below.read_protected(extent)
    }

    fn write_protected(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        self.below.write_protected(extent, data, durability)
    }

    fn flush(&self) -> Reply<()> {
        self.below.flush()
    }

    // Unmapped, zeroed and never written blocks have FFh as their protection information, which is not checked.
    fn unmap(&self, extent: Extent) -> Reply<()> {
        self.below.unmap(extent)
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        self.below.write_zeroes(extent, durability)
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        self.below.allocation(extent)
    }

    fn space(&self) -> Reply<Space> {
        self.below.space()
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        self.below.resize(block_count)
    }
}
