//! The sources and sinks of bytes: disks, files, streams.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use sarsen_block::Buffer;
use sarsen_io::file::{File, OpenOptions};
use tokio::net::unix::pipe;

use super::{PIECE_LENGTH, TransferError};
use crate::error::{SenseKey, SessionError};
use crate::info::{BlockLimits, Provisioning};
use crate::options::SessionOptions;
use crate::session::Session;
use crate::signature::{self, Occupied, Signature};
use crate::url::Url;

/// The maximum block length of a disk.
const BLOCK_LENGTH_LIMIT: u32 = 1 << 20;
/// A run of zeroes of this length becomes a hole in a file.
const HOLE_LENGTH: usize = 64 * 1024;

/// A disk on the network, with the limits of its commands.
pub struct Disk {
    session: Session,
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
        let session = Session::connect(url, options).await.map_err(failed)?;
        let block_length = session.capacity().block_length;
        if block_length > BLOCK_LENGTH_LIMIT {
            return Err(failed(SessionError::MalformedAnswer { command: "READ CAPACITY" }));
        }
        let limits = session.block_limits().await.map_err(failed)?;
        let provisioning = session.provisioning().await.map_err(failed)?;
        Ok(Self {
            session,
            place,
            block_length: block_length.into(),
            limits,
            provisioning,
            write_same: Cell::new(true),
        })
    }

    /// Returns the session.
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Returns its URL without a secret, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the size in bytes.
    pub fn length(&self) -> u64 {
        self.session.capacity().bytes()
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
        let Self { session, place, .. } = self;
        session.logout().await.map_err(|source| TransferError::Close { place, source })
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
        self.session.read(lba, blocks as u32).await
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
    async fn write(&self, offset: u64, mut data: Buffer) -> Result<(), TransferError> {
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
            self.session.write(lba + length / block, last, false).await.map_err(&failed)?;
            data.truncate(whole);
        }
        let blocks = data.len() as u64 / block;
        if blocks == 0 {
            return Ok(());
        }
        if is_zero(&data) {
            return self.zero(lba, blocks, self.zeroes_by_unmap()).await;
        }
        if blocks <= self.piece_blocks() {
            return self.session.write(lba, data, false).await.map_err(failed);
        }
        let mut lba = lba;
        for piece in data.chunks((self.piece_blocks() * block) as usize) {
            self.session.write(lba, Buffer::copy_of(piece), false).await.map_err(&failed)?;
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
            match self.session.write_same(lba, count as u32, zeroes, unmap).await {
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
            self.session.write(lba, zeroes, false).await.map_err(&failed)?;
            lba += count;
        }
        Ok(())
    }

    pub(super) async fn unmap(&self, lba: u64, blocks: u32) -> Result<(), TransferError> {
        let (offset, length) = (lba * self.block_length, u64::from(blocks) * self.block_length);
        let failed = self.failed("unmap", offset, length);
        self.session.unmap(&[(lba, blocks)]).await.map_err(failed)
    }

    /// Brings written data to stable storage.
    pub(super) async fn flush(&self) -> Result<(), TransferError> {
        match self.session.flush().await {
            // A unit without the command has no cache to flush.
            Err(SessionError::CheckCondition(sense)) if sense.key == SenseKey::IllegalRequest => {
                Ok(())
            }
            result => result.map_err(self.failed("flush", 0, self.length())),
        }
    }

    pub(super) fn check_aligned(&self, offset: u64) -> Result<(), TransferError> {
        if offset.is_multiple_of(self.block_length) {
            return Ok(());
        }
        let block_length = self.block_length;
        Err(TransferError::Unaligned { place: self.place.clone(), offset, block_length })
    }
}

fn check_room(place: &str, size: u64, offset: u64, length: u64) -> Result<(), TransferError> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(TransferError::BeyondEnd { place: place.to_owned(), size, offset, length }),
    }
}

/// Returns whether all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // The compiler vectorises these pieces.
    bytes.chunks(256).all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
}

/// A regular file or a block device.
pub struct DiskFile {
    file: File,
    place: String,
    length: u64,
}

impl DiskFile {
    fn failed(&self, verb: &'static str) -> impl Fn(io::Error) -> TransferError + use<> {
        file_failed(&self.place, verb)
    }
}

fn file_failed(place: &str, verb: &'static str) -> impl Fn(io::Error) -> TransferError + use<> {
    let place = place.to_owned();
    move |source| TransferError::File { place: place.clone(), verb, source }
}

/// A pipe, a terminal, or another file that supports only sequential access.
pub struct Stream {
    file: Arc<fs::File>,
    /// The reading end of a pipe, which needs no thread to wait: a thread that waits for a silent writer would delay
    /// the end of the program.
    pipe: Option<pipe::Receiver>,
    place: String,
}

impl Stream {
    /// Creates a stream to read; `place` is its name in messages. A pipe becomes non-blocking.
    pub fn reading(file: fs::File, place: &str) -> Result<Self, TransferError> {
        let failed = file_failed(place, "read");
        let is_pipe = file.metadata().map_err(&failed)?.file_type().is_fifo();
        let pipe = if is_pipe {
            let file = file.try_clone().map_err(&failed)?;
            Some(pipe::Receiver::from_file(file).map_err(failed)?)
        } else {
            None
        };
        Ok(Self { file: Arc::new(file), pipe, place: place.to_owned() })
    }

    /// Creates a stream to write; `place` is its name in messages.
    pub fn writing(file: fs::File, place: &str) -> Self {
        Self { file: Arc::new(file), pipe: None, place: place.to_owned() }
    }

    /// Reads until it has `length` bytes or the stream ends.
    async fn read(&self, length: usize) -> Result<Buffer, TransferError> {
        let failed = file_failed(&self.place, "read");
        let mut buffer = Buffer::for_overwrite(length);
        let Some(pipe) = &self.pipe else {
            let file = self.file.clone();
            let read = move || fill(buffer, |into| (&*file).read(into));
            let read = tokio::task::spawn_blocking(read).await;
            return read.unwrap_or_else(|error| Err(error.into())).map_err(failed);
        };
        let mut done = 0;
        while done < length {
            pipe.readable().await.map_err(&failed)?;
            match pipe.try_read(&mut buffer[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
        }
        buffer.truncate(done);
        Ok(buffer)
    }

    /// Writes all bytes, on a thread that may wait for the reader.
    async fn write(&self, data: Buffer) -> Result<(), TransferError> {
        let file = self.file.clone();
        let written = tokio::task::spawn_blocking(move || (&*file).write_all(&data)).await;
        written.unwrap_or_else(|error| Err(error.into())).map_err(file_failed(&self.place, "write"))
    }
}

/// Fills a buffer up to its length or the end of the data.
fn fill(
    mut buffer: Buffer,
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> io::Result<Buffer> {
    let mut done = 0;
    while done < buffer.len() {
        match read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(done);
    Ok(buffer)
}

/// Returns whether the file supports random access.
fn is_disk_file(path: &Path) -> io::Result<bool> {
    let kind = fs::metadata(path)?.file_type();
    Ok(kind.is_file() || kind.is_block_device())
}

/// A source of bytes.
pub enum Source<'a> {
    /// A disk.
    Disk(&'a Disk),
    /// A file.
    File(DiskFile),
    /// A stream.
    Stream(Stream),
}

impl Source<'_> {
    /// Opens a file of any kind.
    pub fn open(path: &Path) -> Result<Self, TransferError> {
        let place = path.display().to_string();
        let failed = file_failed(&place, "open");
        if !is_disk_file(path).map_err(&failed)? {
            let file = fs::File::open(path).map_err(failed)?;
            return Ok(Self::Stream(Stream::reading(file, &place)?));
        }
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let file = File::open(path, options).map_err(&failed)?;
        if !file.try_lock_shared().map_err(&failed)? {
            return Err(TransferError::InUse { place });
        }
        let length = file.length().map_err(failed)?;
        Ok(Self::File(DiskFile { file, place, length }))
    }

    /// Returns its name in messages.
    pub fn place(&self) -> &str {
        match self {
            Self::Disk(disk) => &disk.place,
            Self::File(file) => &file.place,
            Self::Stream(stream) => &stream.place,
        }
    }

    /// Returns the number of bytes, if it is known before the end.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Disk(disk) => Some(disk.length()),
            Self::File(file) => Some(file.length),
            Self::Stream(_) => None,
        }
    }

    pub(super) const fn block_length(&self) -> u64 {
        match self {
            Self::Disk(disk) => disk.block_length,
            Self::File(_) | Self::Stream(_) => 1,
        }
    }

    /// Returns whether reads must be in order.
    pub(super) const fn is_ordered(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Checks that this range exists; for a stream the size is unknown.
    pub fn check_range(&self, offset: u64, length: u64) -> Result<(), TransferError> {
        let size = self.length().unwrap_or(u64::MAX);
        check_room(self.place(), size, offset, length)
    }

    /// Reads `length` bytes; fewer only at the end of a stream.
    pub(super) async fn read(&self, offset: u64, length: usize) -> Result<Buffer, TransferError> {
        match self {
            Self::Disk(disk) => disk.read(offset, length).await,
            Self::File(file) => {
                file.file.read_at(offset, length).wait().await.map_err(file.failed("read"))
            }
            Self::Stream(stream) => stream.read(length).await,
        }
    }
}

/// A sink for bytes.
pub enum Sink<'a> {
    /// A disk.
    Disk(&'a Disk),
    /// A file, empty unless it is a device.
    File(DiskFile),
    /// A stream.
    Stream(Stream),
}

impl Sink<'_> {
    /// Opens a file of any kind; a regular file is created if it is missing, and truncated.
    pub fn create(path: &Path) -> Result<Self, TransferError> {
        let place = path.display().to_string();
        let failed = file_failed(&place, "open");
        let disk_file = match is_disk_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            result => result.map_err(&failed)?,
        };
        if !disk_file {
            let file = fs::OpenOptions::new().write(true).open(path).map_err(failed)?;
            return Ok(Self::Stream(Stream::writing(file, &place)));
        }
        let options = OpenOptions { create: true, ..OpenOptions::default() };
        let file = match File::open(path, options) {
            // A mounted device, or a device that another process opened exclusively.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(TransferError::InUse { place });
            }
            result => result.map_err(&failed)?,
        };
        if !file.try_lock_exclusive().map_err(&failed)? {
            return Err(TransferError::InUse { place });
        }
        let length = if file.is_block_device() {
            file.length().map_err(failed)?
        } else {
            file.set_length_now(0).map_err(failed)?;
            u64::MAX
        };
        Ok(Self::File(DiskFile { file, place, length }))
    }

    /// Returns its name in messages.
    pub fn place(&self) -> &str {
        match self {
            Self::Disk(disk) => &disk.place,
            Self::File(file) => &file.place,
            Self::Stream(stream) => &stream.place,
        }
    }

    pub(super) const fn block_length(&self) -> u64 {
        match self {
            Self::Disk(disk) => disk.block_length,
            Self::File(_) | Self::Stream(_) => 1,
        }
    }

    /// Returns whether writes must be in order.
    pub(super) const fn is_ordered(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Checks that this range can be written.
    pub(super) fn check_range(&self, offset: u64, length: u64) -> Result<(), TransferError> {
        match self {
            Self::Disk(disk) => {
                disk.check_aligned(offset)?;
                disk.check_range(offset, length)
            }
            Self::File(file) => check_room(&file.place, file.length, offset, length),
            Self::Stream(_) => Ok(()),
        }
    }

    pub(super) async fn write(&self, offset: u64, data: Buffer) -> Result<(), TransferError> {
        match self {
            Self::Disk(disk) => disk.write(offset, data).await,
            Self::File(file) => write_sparsely(file, offset, data).await,
            Self::Stream(stream) => stream.write(data).await,
        }
    }

    /// Completes the transfer after the last write; `end` is the end of the data.
    pub(super) async fn finish(&self, end: u64) -> Result<(), TransferError> {
        match self {
            Self::Disk(disk) => disk.flush().await,
            Self::File(file) => {
                if !file.file.is_block_device() {
                    file.file.set_length(end).wait().await.map_err(file.failed("write"))?;
                }
                file.file.sync_data().wait().await.map_err(file.failed("flush"))
            }
            Self::Stream(_) => Ok(()),
        }
    }
}

/// Writes data, and leaves holes in a new file for long runs of zeroes; a device gets the zeroes.
async fn write_sparsely(file: &DiskFile, offset: u64, data: Buffer) -> Result<(), TransferError> {
    let failed = file.failed("write");
    let device = file.file.is_block_device();
    if data.chunks(HOLE_LENGTH).all(|piece| !is_zero(piece)) {
        return file.file.write_at(offset, data.into(), false).wait().await.map_err(failed);
    }
    let mut place = offset;
    for run in data.chunks(HOLE_LENGTH) {
        let length = run.len() as u64;
        if !is_zero(run) {
            let run = Buffer::copy_of(run);
            file.file.write_at(place, run.into(), false).wait().await.map_err(&failed)?;
        } else if device {
            file.file.zero_range(place, length).wait().await.map_err(&failed)?;
        }
        place += length;
    }
    Ok(())
}
