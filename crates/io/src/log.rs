//! Standard error as the log of a server. The server never waits for the reader of the log, and does not end because
//! of it: if a pipe is full, its reader has ended, or a disk has no space.
//!
//! A bounded queue passes lines to a thread. Lines that do not fit, or cannot be written, are dropped and counted. As
//! soon as lines can be written again, a line reports the number of dropped lines.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::warn;

use crate::threads;

/// Maximum of bytes that wait to be written.
const QUEUE_BYTES: usize = 1 << 20;

/// Maximum time that [`flush`] waits for lines to be written.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

thread_local! {
    /// Whether this thread writes the log. Its own log lines do not count against the maximum: there is one for each
    /// line that it has written.
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

static STANDARD_ERROR: OnceLock<Log> = OnceLock::new();

/// Returns the log that a thread writes to standard error. Each write is one line, and no write fails.
pub fn standard_error() -> io::Result<&'static Log> {
    if let Some(log) = STANDARD_ERROR.get() {
        return Ok(log);
    }
    let log = STANDARD_ERROR.get_or_init(Log::default);
    threads::spawn("log", move || log.write_to(io::stderr().as_fd()))?;
    Ok(log)
}

/// Waits until the lines of [`standard_error`] are written, for a maximum of one second.
pub fn flush() {
    if let Some(log) = STANDARD_ERROR.get()
        && !IS_WRITER.get()
    {
        log.flush_within(FLUSH_LIMIT);
    }
}

/// Lines that wait to be written. See the module.
#[derive(Default)]
pub struct Log {
    queue: Mutex<Queue>,
    filled: Condvar,
    written: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    byte_count: usize,
    is_writing: bool,
    dropped: u64,
}

impl Log {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn push(&self, line: &[u8]) {
        let mut queue = self.queue();
        if queue.byte_count + line.len() > QUEUE_BYTES && !IS_WRITER.get() {
            queue.dropped += 1;
            return;
        }
        queue.byte_count += line.len();
        queue.lines.push_back(line.to_vec());
        self.filled.notify_one();
    }

    /// Waits for the next line and returns it.
    fn next(&self) -> Vec<u8> {
        let mut queue = self.queue();
        queue.is_writing = false;
        loop {
            if let Some(line) = queue.lines.pop_front() {
                queue.byte_count -= line.len();
                queue.is_writing = true;
                return line;
            }
            self.written.notify_all();
            self.filled.wait(&mut queue);
        }
    }

    /// Writes lines for ever.
    fn write_to(&self, out: BorrowedFd<'_>) {
        IS_WRITER.set(true);
        loop {
            self.write_line(&self.next(), out);
        }
    }

    fn write_line(&self, line: &[u8], out: BorrowedFd<'_>) {
        if write_whole(line, out).is_err() {
            self.queue().dropped += 1;
            return;
        }
        let dropped = mem::take(&mut self.queue().dropped);
        if dropped > 0 {
            warn!(count = dropped, "log lines were dropped: standard error could not be written");
        }
    }

    fn flush_within(&self, limit: Duration) {
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.lines.is_empty();
        self.written.wait_while_for(&mut self.queue(), is_busy, limit);
    }
}

impl io::Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes all bytes; waits while a non-blocking pipe is full.
fn write_whole(mut bytes: &[u8], out: BorrowedFd<'_>) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(out, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&out, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _, pipe};
    use std::sync::Arc;

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;

    /// The same subscriber as the program's, on the writing thread.
    struct Notices(&'static Log);

    impl tracing::Subscriber for Notices {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            struct Count(u64);
            impl tracing::field::Visit for Count {
                fn record_u64(&mut self, _: &tracing::field::Field, value: u64) {
                    self.0 = value;
                }

                fn record_debug(&mut self, _: &tracing::field::Field, _: &dyn std::fmt::Debug) {}
            }
            let mut count = Count(0);
            event.record(&mut count);
            self.0.push(format!("dropped {}\n", count.0).as_bytes());
        }

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    /// Creates a log on this descriptor. Its thread never ends.
    fn log_on(out: impl AsFd + Send + 'static) -> &'static Log {
        let log: &'static Log = Box::leak(Box::default());
        threads::spawn("log", move || {
            tracing::subscriber::with_default(Notices(log), || log.write_to(out.as_fd()));
        })
        .unwrap();
        log
    }

    #[test]
    fn full_pipe_blocks_no_thread_and_dropped_lines_are_counted() {
        let (reader, writer) = pipe().unwrap();
        let flags = fcntl_getfl(&writer).unwrap();
        // The process at the other end may have made the pipe non-blocking.
        fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
        let log = log_on(writer);
        let line = [&[b'x'; 999][..], b"\n"].concat();
        // The bytes of a pipe's buffer, the queue, and lines that are dropped.
        let given = 3 * QUEUE_BYTES / line.len();
        for _ in 0..given {
            (&mut &*log).write_all(&line).unwrap();
        }
        let dropped = log.queue().dropped;
        assert!(dropped > 0 && log.queue().byte_count <= QUEUE_BYTES, "{dropped} dropped");
        let mut reported = 0;
        let mut written = 0;
        for line in BufReader::new(reader).lines() {
            match line.unwrap().strip_prefix("dropped ") {
                Some(count) => reported += count.parse::<u64>().unwrap(),
                None => written += 1,
            }
            if reported + written == given as u64 && reported >= dropped {
                return;
            }
        }
        panic!("{written} written, {reported} of {dropped} told");
    }

    #[test]
    fn a_reader_that_has_gone_and_a_full_disk_are_survived() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let full = File::options().write(true).open("/dev/full").unwrap();
        for out in [writer.into(), std::os::fd::OwnedFd::from(full)] {
            let log = log_on(out);
            for _ in 0..3 {
                (&mut &*log).write_all(b"a line\n").unwrap();
            }
            log.flush_within(Duration::from_secs(20));
            let queue = log.queue();
            assert_eq!((queue.dropped, queue.lines.len()), (3, 0));
        }
    }

    #[test]
    fn a_flush_waits_until_all_is_written_and_not_for_ever() {
        let (mut reader, writer) = pipe().unwrap();
        let log = log_on(writer);
        let all = Arc::new(vec![b'y'; 4 << 10]);
        (&mut &*log).write_all(&all).unwrap();
        log.flush_within(Duration::from_secs(20));
        let mut read = vec![0; all.len()];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(read, *all);
        (&mut &*log).write_all(&vec![b'z'; 128 << 10]).unwrap();
        log.flush_within(Duration::from_millis(1));
        assert!(log.queue().is_writing, "more than the pipe takes");
    }
}
