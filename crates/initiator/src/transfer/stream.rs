//! A stream, as a source or a sink of a transfer.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::sync::Arc;

use sarsen_block::Buffer;
use tokio::net::unix::pipe;

use super::TransferError;
use super::ends::file_failed;

/// A pipe, a terminal, or another file that supports only sequential access.
pub struct Stream {
    file: Arc<fs::File>,
    /// The reading end of a pipe, which needs no thread to wait: a thread that waits for a silent writer would delay
    /// the end of the program.
    pipe: Option<pipe::Receiver>,
    /// Bytes that were read ahead.
    ahead: Cell<Option<Buffer>>,
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
        Ok(Self { file: Arc::new(file), pipe, ahead: Cell::default(), place: place.to_owned() })
    }

    /// Creates a stream to write; `place` is its name in messages.
    pub fn writing(file: fs::File, place: &str) -> Self {
        Self { file: Arc::new(file), pipe: None, ahead: Cell::default(), place: place.to_owned() }
    }

    /// Returns its name in messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Returns up to `length` bytes that the next read returns as well; fewer at the end of the stream.
    pub(super) async fn peek(&self, length: usize) -> Result<Vec<u8>, TransferError> {
        let ahead = self.read(length).await?;
        let bytes = ahead.to_vec();
        self.ahead.set(Some(ahead));
        Ok(bytes)
    }

    /// Reads until it has `length` bytes or the stream ends.
    pub(super) async fn read(&self, length: usize) -> Result<Buffer, TransferError> {
        let failed = file_failed(&self.place, "read");
        let mut buffer = Buffer::for_overwrite(length);
        let mut done = 0;
        if let Some(ahead) = self.ahead.take() {
            done = ahead.len().min(length);
            buffer[..done].copy_from_slice(&ahead[..done]);
            let rest = &ahead[done..];
            self.ahead.set((!rest.is_empty()).then(|| Buffer::copy_of(rest)));
        }
        let Some(pipe) = &self.pipe else {
            let file = self.file.clone();
            let read = move || fill(buffer, done, |into| (&*file).read(into));
            let read = tokio::task::spawn_blocking(read).await;
            return read.unwrap_or_else(|error| Err(error.into())).map_err(failed);
        };
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
    pub(super) async fn write(&self, data: Buffer) -> Result<(), TransferError> {
        let file = self.file.clone();
        let written = tokio::task::spawn_blocking(move || (&*file).write_all(&data)).await;
        written.unwrap_or_else(|error| Err(error.into())).map_err(file_failed(&self.place, "write"))
    }
}

/// Fills a buffer from byte `done` on, up to its length or the end of the data.
fn fill(
    mut buffer: Buffer,
    mut done: usize,
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> io::Result<Buffer> {
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
