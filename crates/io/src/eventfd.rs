//! Event file descriptors that another process has passed (eventfd(2)).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An event that this process signals.
#[derive(Debug)]
pub struct EventSender(OwnedFd);

impl EventSender {
    /// Takes the descriptor of an eventfd.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        check(&descriptor)?;
        Ok(Self(descriptor))
    }

    /// Signals the event. Errors are ignored: the counter may be full, or the other process may have ended.
    pub fn send(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// An event that this process waits for, on the core that created this.
pub struct EventReceiver(AsyncFd<OwnedFd>);

impl EventReceiver {
    /// Takes the descriptor of an eventfd.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        check(&descriptor)?;
        // SAFETY: the watcher owns the descriptor, which is closed only after the registration ends.
        #[allow(unsafe_code)]
        let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        Ok(Self(watched.map_err(|error| io::Error::other(error.to_string()))?))
    }

    /// Waits until the event is signalled, and takes the signal. Cancel-safe.
    pub async fn received(&self) -> io::Result<()> {
        loop {
            let mut guard = self.0.readable().await?;
            match rustix::io::read(guard.get_inner(), &mut [0; 8]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // The next read waits for the next signal: the other process may have made the descriptor blocking again.
                Ok(_) => {
                    guard.clear_ready();
                    return Ok(());
                }
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Refuses a descriptor of another kind. An eventfd may be blocking.
fn check(descriptor: &OwnedFd) -> io::Result<()> {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
    if kind.as_os_str() != "anon_inode:[eventfd]" {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a descriptor is no eventfd"));
    }
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
            let signal = EventSender::new(descriptor.try_clone().unwrap()).unwrap();
            let event = EventReceiver::new(descriptor).unwrap();
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
    fn other_kinds_of_descriptors_are_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(EventReceiver::new(file.into()).is_err());
        let (_reader, writer) = io::pipe().unwrap();
        assert!(EventSender::new(writer.into()).is_err());
    }

    #[test]
    fn a_descriptor_that_was_made_blocking_again_blocks_no_core() {
        block_on(FileEngine::Pool, async {
            let descriptor = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let other = descriptor.try_clone().unwrap();
            let event = EventReceiver::new(descriptor).unwrap();
            rustix::io::ioctl_fionbio(&other, false).unwrap();
            rustix::io::write(&other, &1_u64.to_ne_bytes()).unwrap();
            event.received().await.unwrap();
            assert!(event.received().now_or_never().is_none());
        })
        .unwrap();
    }
}
