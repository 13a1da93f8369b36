//! A disk on the network, as a source or a sink of a transfer.

use std::cell::Cell;
use std::time::Duration;

use sarsen_block::Buffer;

use super::runs::{HOLE_LENGTH, is_zero, runs};
use super::{PIECE_LENGTH, TransferError};
use crate::error::{SenseKey, SessionError};
use crate::options::SessionOptions;
use crate::path_set::PathSet;
use crate::remote_disk::PathStatus;
use crate::signature::{self, Occupied, Signature};
use crate::unit::{BlockLimits, Provisioning, Unit};
use crate::url::Url;

/// The maximum block length of a disk.
const BLOCK_LENGTH_LIMIT: u32 = 1 << 20;

/// A disk on the network, with the limits of its commands.
pub struct Disk {
    paths: PathSet,
    place: String,
    block_length: u64,
    limits: BlockLimits,
    provisioning: Provisioning,
    /// The unit has not rejected WRITE SAME.
    write_same: Cell<bool>,
}

impl Disk {
    /// Logs in and reads limits and provisioning.
    pub async fn open(url: &Url, options: &SessionOptions) -> Result<Self, TransferError> {
        let place = url.to_string();
        let failed = |source| TransferError::Open { place: place.clone(), source };
        let paths = PathSet::connect(url, options).await.map_err(failed)?;
        let unit = paths.unit();
        let block_length = unit.capacity().block_length;
        if block_length > BLOCK_LENGTH_LIMIT {
            return Err(failed(SessionError::MalformedAnswer { command: "READ CAPACITY" }));
        }
        let limits = unit.block_limits().await.map_err(failed)?;
        let provisioning = unit.provisioning().await.map_err(failed)?;
        Ok(Self {
            paths,
            place,
            block_length: block_length.into(),
            limits,
            provisioning,
            write_same: Cell::new(true),
        })
    }

    /// Returns the unit.
    pub fn unit(&self) -> &Unit {
        self.paths.unit()
    }

    /// Returns the status of each path, after each one has been tried or `limit` has passed.
    pub async fn paths(&self, limit: Duration) -> Vec<PathStatus> {
        self.paths.attempt_all(limit).await;
        self.paths.paths()
    }

    /// Returns its URL without a secret, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the size in bytes.
    pub fn length(&self) -> u64 {
        self.unit().capacity().bytes()
    }

    /// Returns the bytes of a block.
    pub const fn block_length(&self) -> u64 {
        self.block_length
    }

    /// Returns the limits of one command.
    pub const fn limits(&self) -> BlockLimits {
        self.limits
    }

    /// Returns whether and how it deallocates blocks.
    pub const fn provisioning(&self) -> Provisioning {
        self.provisioning
    }

    /// Logs the session out.
    pub async fn close(self) -> Result<(), TransferError> {
        let Self { paths, place, .. } = self;
        paths.logout().await.map_err(|source| TransferError::Close { place, source })
    }

    fn failed(
        &self,
        verb: &'static str,
        offset: u64,
        length: u64,
    ) -> impl Fn(SessionError) -> TransferError + use<> {
        let place = self.place.clone();
        move |source| TransferError::Disk { place: place.clone(), verb, offset, length, source }
    }

    /// Checks that `length` bytes from `offset` exist.
    pub(super) fn check_range(&self, offset: u64, length: u64) -> Result<(), TransferError> {
        check_room(&self.place, self.length(), offset, length)
    }

    /// Returns the number of blocks that one READ or WRITE moves.
    fn piece_blocks(&self) -> u64 {
        let blocks = (PIECE_LENGTH / self.block_length).max(1);
        match self.limits.transfer_blocks {
            0 => blocks,
            limit => blocks.min(limit.into()),
        }
    }

    async fn read_blocks(&self, lba: u64, blocks: u64) -> Result<Buffer, SessionError> {
        self.paths.read(lba, blocks as u32).await
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

    /// Reads bytes from any offset, by whole blocks.
    pub(crate) async fn read(&self, offset: u64, length: usize) -> Result<Buffer, TransferError> {
        self.check_range(offset, length as u64)?;
        let failed = self.failed("read", offset, length as u64);
        let (block, piece) = (self.block_length, self.piece_blocks());
        let (first, end) = (offset / block, (offset + length as u64).div_ceil(block));
        let skip = (offset - first * block) as usize;
        if skip == 0 && end - first <= piece {
            let mut data = self.read_blocks(first, end - first).await.map_err(failed)?;
            data.truncate(length);
            return Ok(data);
        }
        let mut whole = Buffer::for_overwrite(length);
        let (mut lba, mut done) = (first, 0);
        while lba < end {
            let blocks = piece.min(end - lba);
            let data = self.read_blocks(lba, blocks).await.map_err(&failed)?;
            let data = if lba == first { &data[skip..] } else { &data[..] };
            let count = data.len().min(length - done);
            whole[done..done + count].copy_from_slice(&data[..count]);
            done += count;
            lba += blocks;
        }
        Ok(whole)
    }

    /// Writes from the beginning of a block on. If the last block is not whole, its rest keeps its data.
    pub(super) async fn write(&self, offset: u64, mut data: Buffer) -> Result<(), TransferError> {
        let length = data.len() as u64;
        self.check_range(offset, length)?;
        self.check_aligned(offset)?;
        let failed = self.failed("write", offset, length);
        let (block, lba) = (self.block_length, offset / self.block_length);
        let tail = (length % block) as usize;
        if tail != 0 {
            let whole = data.len() - tail;
            let mut last = self.read_blocks(lba + length / block, 1).await.map_err(&failed)?;
            last[..tail].copy_from_slice(&data[whole..]);
            self.paths.write(lba + length / block, last, false).await.map_err(&failed)?;
            data.truncate(whole);
        }
        if data.is_empty() || is_zero(&data) {
            return self.zero(lba, data.len() as u64 / block, self.zeroes_by_unmap()).await;
        }
        if !self.zeroes_by_unmap() {
            return self.write_blocks(lba, data).await;
        }
        // Zeroes between the data use no space either.
        let grain = (HOLE_LENGTH / block as usize).max(1) * block as usize;
        match &runs(offset, &data, grain)[..] {
            [_] => self.write_blocks(lba, data).await,
            runs => {
                for run in runs {
                    let lba = lba + run.range.start as u64 / block;
                    if run.zero {
                        self.zero(lba, run.range.len() as u64 / block, true).await?;
                    } else {
                        self.write_blocks(lba, Buffer::copy_of(&data[run.range.clone()])).await?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Writes whole blocks.
    async fn write_blocks(&self, mut lba: u64, data: Buffer) -> Result<(), TransferError> {
        let block = self.block_length;
        let failed = self.failed("write", lba * block, data.len() as u64);
        let piece = self.piece_blocks() * block;
        if data.len() as u64 <= piece {
            return self.paths.write(lba, data, false).await.map_err(failed);
        }
        for piece in data.chunks(piece as usize) {
            self.paths.write(lba, Buffer::copy_of(piece), false).await.map_err(&failed)?;
            lba += piece.len() as u64 / block;
        }
        Ok(())
    }

    /// Returns whether a WRITE SAME of zeroes may deallocate blocks.
    pub(super) const fn zeroes_by_unmap(&self) -> bool {
        self.provisioning.write_same_unmaps && self.provisioning.reads_zero
    }

    /// Makes blocks read as zero: by WRITE SAME, which needs no bandwidth, or by plain writes if the unit does not
    /// support it.
    pub(super) async fn zero(
        &self,
        lba: u64,
        blocks: u64,
        unmap: bool,
    ) -> Result<(), TransferError> {
        let block = self.block_length;
        let failed = self.failed("write", lba * block, blocks * block);
        let at_once = match self.limits.write_same_blocks {
            0 => u64::from(u32::MAX),
            limit => limit.min(u32::MAX.into()),
        };
        let (mut lba, end) = (lba, lba + blocks);
        while self.write_same.get() && lba < end {
            let count = at_once.min(end - lba);
            let zeroes = Buffer::zeroed(block as usize);
            match self.paths.write_same(lba, count as u32, zeroes, unmap).await {
                Ok(()) => lba += count,
                Err(SessionError::CheckCondition(sense))
                    if sense.key == SenseKey::IllegalRequest =>
                {
                    self.write_same.set(false);
                }
                Err(source) => return Err(failed(source)),
            }
        }
        while lba < end {
            let count = self.piece_blocks().min(end - lba);
            let zeroes = Buffer::zeroed((count * block) as usize);
            self.paths.write(lba, zeroes, false).await.map_err(&failed)?;
            lba += count;
        }
        Ok(())
    }

    pub(super) async fn unmap(&self, lba: u64, blocks: u32) -> Result<(), TransferError> {
        let (offset, length) = (lba * self.block_length, u64::from(blocks) * self.block_length);
        let failed = self.failed("unmap", offset, length);
        self.paths.unmap(lba, blocks).await.map_err(failed)
    }

    /// Brings written data to stable storage.
    pub(super) async fn flush(&self) -> Result<(), TransferError> {
        self.paths.flush().await.map_err(self.failed("flush", 0, self.length()))
    }

    pub(super) fn check_aligned(&self, offset: u64) -> Result<(), TransferError> {
        if offset.is_multiple_of(self.block_length) {
            return Ok(());
        }
        let block_length = self.block_length;
        Err(TransferError::Unaligned { place: self.place.clone(), offset, block_length })
    }
}

/// Checks that a place of `size` bytes has `length` bytes from `offset` on.
pub(super) fn check_room(
    place: &str,
    size: u64,
    offset: u64,
    length: u64,
) -> Result<(), TransferError> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(TransferError::BeyondEnd { place: place.to_owned(), size, offset, length }),
    }
}
