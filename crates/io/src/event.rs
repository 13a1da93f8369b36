//! Events that another process made and passed here (eventfd(2)).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An event that this process signals.
#[derive(Debug)]
pub struct Signal(OwnedFd);

impl Signal {
    /// Takes the descriptor of an event.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        keep_from_blocking(&descriptor)?;
        Ok(Self(descriptor))
    }

    /// Signals the event. One that was signalled very often, or whose owner has ended, stays as it is.
    pub fn send(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// An event that this process waits for, on the core that created this.
pub struct Event(AsyncFd<OwnedFd>);

impl Event {
    /// Waits for the event of a descriptor. Files and other things without events are errors.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        keep_from_blocking(&descriptor)?;
        // SAFETY: the watcher owns the descriptor, which is closed only after the registration ends.
        #[allow(unsafe_code)]
        let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        Ok(Self(watched.map_err(|error| io::Error::other(error.to_string()))?))
    }

    /// Waits until the event is signalled, and takes the signal. Dropping the future loses none.
    pub async fn received(&self) -> io::Result<()> {
        loop {
            let mut guard = self.0.readable().await?;
            match rustix::io::read(guard.get_inner(), &mut [0; 8]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The other process may have left it as one that blocks, or it may be something else than an event.
fn keep_from_blocking(descriptor: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(descriptor, true)?)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::cores::{FileEngine, block_on};

    #[test]
    fn a_signal_is_received_once() {
        block_on(FileEngine::Pool, async {
            let descriptor = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let signal = Signal::new(descriptor.try_clone().unwrap()).unwrap();
            let event = Event::new(descriptor).unwrap();
            signal.send();
            signal.send();
            event.received().await.unwrap();
            assert!(event.received().now_or_never().is_none(), "both signals were taken at once");
            signal.send();
            event.received().await.unwrap();
        })
        .unwrap();
    }

    #[test]
    fn a_file_is_no_event_and_a_full_pipe_does_not_block() {
        block_on(FileEngine::Pool, async {
            let file = tempfile::tempfile().unwrap();
            assert!(Event::new(file.into()).is_err());
            let (_reader, writer) = io::pipe().unwrap();
            let signal = Signal::new(writer.into()).unwrap();
            for _ in 0..100_000 {
                signal.send();
            }
        })
        .unwrap();
    }
}
