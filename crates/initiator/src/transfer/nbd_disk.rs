//! An export of an NBD server, as a source or a sink of a transfer.
//!
//! If the server offers it, the metadata context `base:allocation` shows what is zero and need not be read. A dirty bitmap
//! of QEMU or, in this project's server, of an older snapshot shows what has changed.

use std::time::Duration;

use sarsen_block::{BlockError, Buffer, Data, Durability, Extent, Store as _};
use sarsen_wire::nbd::{
    BASE_ALLOCATION, QEMU_DIRTY_BITMAP, allocation, dirty_bitmap, transmission,
};

use super::disk::check_room;
use super::runs::{HOLE_LENGTH, runs};
use super::{PIECE_LENGTH, TransferError};
use crate::nbd::{NbdConnection, NbdError, NbdUrl, StatusExtent};
use crate::signature::{self, Occupied, Signature};

/// How long a server may take to accept a connection with its handshake, and to end it.
const CONNECTION_LIMIT: Duration = Duration::from_secs(30);
/// Maximum length of a range whose status is requested at once.
const STATUS_LENGTH: u64 = 1 << 30;

/// An export of an NBD server, over one connection.
pub struct NbdDisk {
    store: NbdConnection,
    place: String,
    block_length: u64,
    /// Length of the data of one request.
    piece: u64,
    allocation: Option<usize>,
    bitmap: Option<usize>,
}

/// A range of a disk with one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) length: u64,
    /// It reads as zeroes.
    pub(super) is_zero: bool,
    /// It may have changed.
    pub(super) has_changed: bool,
}

impl NbdDisk {
    /// Connects to the export. With a `limit`, requests fail when the server leaves them without progress for so long.
    pub async fn open(url: &NbdUrl, limit: Option<Duration>) -> Result<Self, TransferError> {
        Self::connect(url, &[], limit).await
    }

    /// Connects like [`Self::open`]. The export must have a dirty bitmap with the changes since `older`: a snapshot of the same volume,
    /// with or without the name of the volume before it, or the name of a bitmap.
    pub async fn open_with_changes(
        url: &NbdUrl,
        older: &str,
        limit: Option<Duration>,
    ) -> Result<Self, TransferError> {
        // The name of a bitmap can contain any character: the whole name has precedence.
        let names = [Some(older), older.rsplit_once('@').map(|(_, name)| name)];
        let names: Vec<_> =
            names.into_iter().flatten().map(|name| format!("{QEMU_DIRTY_BITMAP}{name}")).collect();
        let disk = Self::connect(url, &names, limit).await?;
        if disk.bitmap.is_none() {
            let (place, older) = (disk.place, older.to_owned());
            return Err(TransferError::NoChanges { place, older });
        }
        Ok(disk)
    }

    async fn connect(
        url: &NbdUrl,
        bitmaps: &[String],
        limit: Option<Duration>,
    ) -> Result<Self, TransferError> {
        let contexts: Vec<_> =
            [BASE_ALLOCATION].into_iter().chain(bitmaps.iter().map(String::as_str)).collect();
        let store = NbdConnection::connect_with_contexts(url, &contexts, CONNECTION_LIMIT).await;
        let store = store.map_err(|error| match error {
            source @ (NbdError::Lost(_) | NbdError::Client(_) | NbdError::Closed) => {
                TransferError::OpenExport { place: url.to_string(), source }
            }
            source => TransferError::Nbd(source),
        })?;
        if let Some(limit) = limit {
            store.limit_waits(limit, url);
        }
        let block_length = store.geometry().block_size.bytes() as u64;
        let limit = u64::from(store.export().maximum_payload).min(PIECE_LENGTH);
        let index = |fits: &dyn Fn(&str) -> bool| store.contexts().iter().position(|of| fits(of));
        Ok(Self {
            allocation: index(&|name| name == BASE_ALLOCATION),
            bitmap: index(&|name| name != BASE_ALLOCATION),
            place: url.to_string(),
            block_length,
            piece: (limit / block_length).max(1) * block_length,
            store,
        })
    }

    /// Returns its URL, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the size in bytes.
    pub fn length(&self) -> u64 {
        self.store.geometry().byte_count()
    }

    /// Returns the bytes of a block.
    pub const fn block_length(&self) -> u64 {
        self.block_length
    }

    /// Returns whether the server reports what is zero or has changed.
    pub(super) const fn has_status(&self) -> bool {
        self.allocation.is_some() || self.bitmap.is_some()
    }

    /// Disconnects.
    pub async fn close(self) {
        self.store.disconnect(CONNECTION_LIMIT).await;
    }

    /// Returns the signatures of the data on the disk.
    pub async fn signatures(&self) -> Result<Vec<Signature>, TransferError> {
        signature::look_by(self.length(), async |offset, length| self.read(offset, length).await)
            .await
    }

    /// Returns an error if the disk holds data that [`Self::signatures`] knows.
    pub async fn check_vacant(&self) -> Result<(), TransferError> {
        let found = self.signatures().await?;
        Occupied::of(&self.place, found).map_or(Ok(()), |occupied| Err(occupied.into()))
    }

    fn failed(
        &self,
        verb: &'static str,
        offset: u64,
        length: u64,
    ) -> impl Fn(BlockError) -> TransferError + use<> {
        let place = self.place.clone();
        move |source| TransferError::Export { place: place.clone(), verb, offset, length, source }
    }

    fn extent(&self, offset: u64, length: u64) -> Extent {
        Extent::new(offset / self.block_length, length / self.block_length)
    }

    /// Checks that the disk can be copied to the end.
    pub(super) fn check_source(&self) -> Result<(), TransferError> {
        let (size, block_length) = (self.store.export().bytes, self.block_length);
        if size.is_multiple_of(block_length) {
            return Ok(());
        }
        Err(TransferError::PartialBlock { place: self.place.clone(), size, block_length })
    }

    /// Checks that `length` bytes from `offset` can be written.
    pub(super) fn check_sink(&self, offset: u64, length: u64) -> Result<(), TransferError> {
        let block_length = self.block_length;
        if self.store.export().has(transmission::READ_ONLY) {
            return Err(TransferError::ReadOnly { place: self.place.clone() });
        }
        if !offset.is_multiple_of(block_length) {
            return Err(TransferError::Unaligned {
                place: self.place.clone(),
                offset,
                block_length,
            });
        }
        check_room(&self.place, self.length(), offset, length)
    }

    /// Returns the states of consecutive ranges from `offset` on, the beginning of a block: whole blocks, one or more, and
    /// a maximum of `length` bytes, which are whole blocks as well.
    pub(super) async fn states(
        &self,
        offset: u64,
        length: u64,
    ) -> Result<Vec<State>, TransferError> {
        let length = length.min(STATUS_LENGTH);
        let status = self.store.block_status(self.extent(offset, length)).await;
        let status = status.map_err(self.failed("report the status of", offset, length))?;
        let of = |index: Option<usize>| index.map(|index| &status[index][..]);
        let mut states = combined(of(self.allocation), of(self.bitmap));
        let covered: u64 = states.iter().map(|state| state.length).sum();
        // The server must report whole blocks.
        let mut surplus = covered % self.block_length;
        if covered < self.block_length {
            return Ok(vec![State {
                length: self.block_length,
                is_zero: false,
                has_changed: true,
            }]);
        }
        while surplus > 0
            && let Some(last) = states.last_mut()
        {
            let count = surplus.min(last.length);
            last.length -= count;
            surplus -= count;
            if last.length == 0 {
                states.pop();
            }
        }
        Ok(states)
    }

    /// Reads bytes from any offset, by whole blocks.
    pub(super) async fn read(&self, offset: u64, length: usize) -> Result<Buffer, TransferError> {
        check_room(&self.place, self.length(), offset, length as u64)?;
        let failed = self.failed("read", offset, length as u64);
        let block = self.block_length;
        let (mut at, end) =
            (offset / block * block, (offset + length as u64).div_ceil(block) * block);
        if offset == at && end - at <= self.piece {
            let mut data = self.read_blocks(at, end - at).await.map_err(failed)?;
            data.truncate(length);
            return Ok(data);
        }
        let mut whole = Buffer::for_overwrite(length);
        let mut done = 0;
        while at < end {
            let count = self.piece.min(end - at);
            let data = self.read_blocks(at, count).await.map_err(&failed)?;
            let data = &data[offset.saturating_sub(at) as usize..];
            let used = data.len().min(length - done);
            whole[done..done + used].copy_from_slice(&data[..used]);
            done += used;
            at += count;
        }
        Ok(whole)
    }

    async fn read_blocks(&self, offset: u64, length: u64) -> Result<Buffer, BlockError> {
        match self.store.read(self.extent(offset, length)).wait().await? {
            Data::Buffer(buffer) => Ok(buffer),
            data => {
                let mut buffer = Buffer::for_overwrite(data.len());
                data.copy_out(0, &mut buffer);
                Ok(buffer)
            }
        }
    }

    /// Writes from the beginning of a block on. If the last block is not whole, its rest keeps its data.
    pub(super) async fn write(&self, offset: u64, mut data: Buffer) -> Result<(), TransferError> {
        self.check_sink(offset, data.len() as u64)?;
        let block = self.block_length as usize;
        let tail = data.len() % block;
        if tail != 0 {
            let at = offset + (data.len() - tail) as u64;
            let mut last = self.read(at, block).await?;
            last[..tail].copy_from_slice(&data[data.len() - tail..]);
            self.write_blocks(at, last).await?;
            data.truncate(data.len() - tail);
        }
        if !self.store.export().has(transmission::SEND_WRITE_ZEROES) {
            return self.write_blocks(offset, data).await;
        }
        // Zeroes between the data use no space either.
        let grain = HOLE_LENGTH.max(block);
        match &runs(offset, &data, grain)[..] {
            [run] if !run.zero => self.write_blocks(offset, data).await,
            runs => {
                for run in runs {
                    let at = offset + run.range.start as u64;
                    if run.zero {
                        self.zero(at, run.range.len() as u64).await?;
                    } else {
                        let part = Buffer::copy_of(&data[run.range.clone()]);
                        self.write_blocks(at, part).await?;
                    }
                }
                Ok(())
            }
        }
    }

    async fn write_blocks(&self, mut offset: u64, data: Buffer) -> Result<(), TransferError> {
        let failed = self.failed("write", offset, data.len() as u64);
        let write = async |offset, data: Buffer| {
            let extent = self.extent(offset, data.len() as u64);
            self.store.write(extent, data.into(), Durability::Volatile).wait().await
        };
        if data.len() as u64 <= self.piece {
            return write(offset, data).await.map_err(failed);
        }
        for piece in data.chunks(self.piece as usize) {
            write(offset, Buffer::copy_of(piece)).await.map_err(&failed)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Makes whole blocks read as zeroes. The server may deallocate them.
    pub(super) async fn zero(&self, offset: u64, length: u64) -> Result<(), TransferError> {
        let extent = self.extent(offset, length);
        let zeroed = if self.store.characteristics().unmap.is_some() {
            self.store.unmap(extent).wait().await
        } else {
            self.store.write_zeroes(extent, Durability::Volatile).wait().await
        };
        zeroed.map_err(self.failed("write", offset, length))
    }

    /// Brings written data to stable storage.
    pub(super) async fn flush(&self) -> Result<(), TransferError> {
        let flushed = self.store.flush().wait().await;
        flushed.map_err(self.failed("flush", 0, self.length()))
    }
}

/// Combines the status in both contexts. Without a context, all is data, and all has changed.
fn combined(allocation: Option<&[StatusExtent]>, bitmap: Option<&[StatusExtent]>) -> Vec<State> {
    let mut states: Vec<State> = Vec::new();
    let none = [StatusExtent { length: u32::MAX, flags: 0 }];
    let all = [StatusExtent { length: u32::MAX, flags: dirty_bitmap::DIRTY }];
    let mut sides = [allocation.unwrap_or(&none), bitmap.unwrap_or(&all)].map(|side| {
        let mut extents = side.iter().copied();
        (extents.next(), extents)
    });
    while let [(Some(space), _), (Some(change), _)] = &mut sides {
        let length = space.length.min(change.length);
        let state = State {
            length: length.into(),
            is_zero: space.flags & allocation::ZERO != 0,
            has_changed: change.flags & dirty_bitmap::DIRTY != 0,
        };
        match states.last_mut() {
            Some(last)
                if (last.is_zero, last.has_changed) == (state.is_zero, state.has_changed) =>
            {
                last.length += state.length;
            }
            _ => states.push(state),
        }
        for (extent, rest) in &mut sides {
            if let Some(current) = extent {
                current.length -= length;
                if current.length == 0 {
                    *extent = rest.next();
                }
            }
        }
    }
    states
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_contexts_are_combined_as_far_as_both_report() {
        let extents = |list: &[(u32, u32)]| -> Vec<_> {
            list.iter().map(|&(length, flags)| StatusExtent { length, flags }).collect()
        };
        let of = |allocation: &[(u32, u32)], bitmap: &[(u32, u32)]| -> Vec<_> {
            let states = combined(Some(&extents(allocation)), Some(&extents(bitmap)));
            states.iter().map(|state| (state.length, state.is_zero, state.has_changed)).collect()
        };
        assert_eq!(
            of(&[(10, 3), (20, 0)], &[(5, 1), (20, 0), (100, 1)]),
            [(5, true, true), (5, true, false), (15, false, false), (5, false, true)]
        );
        assert_eq!(of(&[(10, 0), (10, 1)], &[(50, 1)]), [(20, false, true)], "a hole is no zero");
        let whole = combined(None, None);
        assert!(matches!(whole[..], [State { is_zero: false, has_changed: true, .. }]));
    }
}
