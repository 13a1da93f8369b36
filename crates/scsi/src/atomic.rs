//! Atomic writes (SBC-4 4.29). Other commands see such a write completely or not at all. On a durable store the same is
//! true after a crash or a power loss.
//!
//! On a durable store the server first saves the data and its address as [`MetadataKind::AtomicWrite`]. Then it writes the
//! data to the medium, and then it removes the record. Each step is durable before the next one begins, and no other
//! write happens meanwhile. A new unit that finds a record writes its data to the medium before anything else. Without
//! a record there is nothing to finish. A record that remained after the response could overwrite a later write.
//! Therefore the unit halts if the record cannot be removed.

use crate::phase::Phase;
use crate::{Host, LogicalUnit, MetadataKind, MetadataStore, Sense};
use parking_lot::Mutex;
use sarsen_block::{BlockError, Buffer, Durability, Extent, Store};
use sarsen_volume::{ExclusiveGuard, Regions};
use std::io;
use std::sync::Arc;
use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const VERSION: u8 = 1;

/// The header before the data in the record. The offset is in bytes, since the block size of the volume may be
/// configured differently later.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordHeader {
    version: u8,
    reserved: [u8; 7],
    offset: U64,
}
const _: () = assert!(size_of::<RecordHeader>() == 16);

/// Returns whether a unit supports atomic writes. A store that is not durable needs no metadata store, since it does not
/// survive a crash anyway. A unit with encrypted blocks does not support them, since the record would contain the data
/// in plain text.
pub(crate) fn has_atomic_writes(unit: &LogicalUnit) -> bool {
    let may_keep = unit.metadata().is_some() && unit.eraser().is_none();
    !unit.characteristics().is_lasting || may_keep
}

/// Writes atomically. After its start it must be polled to its end, even if its command is aborted.
pub(crate) async fn write(unit: &LogicalUnit, extent: Extent, data: Buffer) -> Result<(), Sense> {
    let store = &**unit.store();
    let Some(metadata) = unit.metadata().filter(|_| unit.characteristics().is_lasting) else {
        let _guard = unit.lock_writes_exclusive(extent).await?;
        store.write(extent, data.into(), Durability::Durable).wait().await?;
        return Ok(());
    };
    // There is one record, so there is one such write at a time.
    let _guard = unit.lock_writes_exclusive(Regions::ALL).await?;
    // The content to restore if the write fails midway.
    let old = store.read(extent).wait().await?.into_buffer();
    let header = RecordHeader {
        version: VERSION,
        reserved: [0; 7],
        offset: extent.byte_offset(unit.geometry().block_size).into(),
    };
    let record = [header.as_bytes(), &data].concat();
    if metadata.save(MetadataKind::AtomicWrite, record).wait().await.is_err() {
        // The record may have been saved or not.
        forget(unit, &**metadata).await;
        return Err(Sense::write_error());
    }
    if let Err(error) = store.write(extent, data.into(), Durability::Durable).wait().await {
        match put_back(store, extent, old).await {
            Ok(()) => forget(unit, &**metadata).await,
            Err(_) => unit.medium_phase().set(Phase::Halted),
        }
        return Err(error.into());
    }
    // All data is on the medium, so the command succeeds even if this fails.
    forget(unit, &**metadata).await;
    Ok(())
}

/// Undoes a write that failed midway. If the blocks were not allocated before, there may be no space even for zeroes,
/// but they can be unmapped.
async fn put_back(store: &dyn Store, extent: Extent, old: Buffer) -> Result<(), BlockError> {
    let was_empty = old.iter().all(|&byte| byte == 0);
    if was_empty && store.characteristics().unmap.is_some() {
        store.unmap(extent).wait().await?;
        return store.flush().wait().await;
    }
    store.write(extent, old.into(), Durability::Durable).wait().await
}

async fn forget(unit: &LogicalUnit, metadata: &dyn MetadataStore) {
    if metadata.save(MetadataKind::AtomicWrite, Vec::new()).wait().await.is_err() {
        unit.medium_phase().set(Phase::Halted);
    }
}

/// An atomic write that a crash interrupted. It holds the write gate from the unit's creation.
struct Unfinished {
    extent: Extent,
    data: Buffer,
    _guard: ExclusiveGuard,
}

/// Work that the previous run of the unit left unfinished.
#[derive(Default)]
pub(crate) struct PreviousRun(Mutex<Option<Unfinished>>);

fn refuse(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

impl PreviousRun {
    /// Loads the interrupted write, if any. No other component knows `unit` yet.
    pub(crate) fn load(&self, unit: &LogicalUnit) -> io::Result<()> {
        let Some(metadata) = unit.metadata() else { return Ok(()) };
        let Some(record) = metadata.load(MetadataKind::AtomicWrite)? else { return Ok(()) };
        let (header, data) = RecordHeader::read_from_prefix(&record)
            .map_err(|_| refuse("the record of an atomic write is too short"))?;
        if header.version != VERSION {
            return Err(refuse("the record of an atomic write is of a version not known here"));
        }
        if unit.characteristics().read_only {
            return Err(refuse("an atomic write is to be finished: serve it writable once"));
        }
        let (offset, block_size) = (header.offset.get(), unit.geometry().block_size);
        let block = block_size.bytes() as u64;
        if !offset.is_multiple_of(block) || !(data.len() as u64).is_multiple_of(block) {
            return Err(refuse(
                "an atomic write is to be finished in smaller blocks: set block-size to what it was",
            ));
        }
        let extent = Extent::new(offset / block, data.len() as u64 / block);
        if !extent.fits(unit.geometry().block_count) {
            return Err(refuse("an atomic write is to be finished behind its end: it has shrunk"));
        }
        let Some(guard) = unit.volume().write_gate().try_exclusive(Regions::ALL) else {
            unreachable!("a unit that nobody knows has no writers")
        };
        unit.medium_phase().guard_reads();
        let unfinished = Unfinished { extent, data: Buffer::copy_of(data), _guard: guard };
        *self.0.lock() = Some(unfinished);
        Ok(())
    }
}

/// Finishes the write that the previous run left. Reads and writes wait for it.
pub(crate) fn finish_interrupted(unit: &Arc<LogicalUnit>, host: &dyn Host) {
    let taken = unit.previous_run().0.lock().take();
    let Some(Unfinished { extent, data, _guard: guard }) = taken else { return };
    let unit = Arc::clone(unit);
    host.spawn(Box::new(move || {
        Box::pin(async move {
            let _guard = guard;
            let written = unit.store().write(extent, data.into(), Durability::Durable).wait().await;
            match (written, unit.metadata()) {
                (Ok(()), Some(metadata)) => forget(&unit, &**metadata).await,
                _ => unit.medium_phase().set(Phase::Halted),
            }
        })
    }));
}
