//! Names that one process of this machine can have at a time.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

/// Time between two attempts to take a name.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A name that no other process of this machine (of its network namespace) can have until this is dropped, or until the process ends,
/// however it ends. It is the address of an abstract socket (unix(7)), which needs no folder and leaves no file.
pub struct NameLock(#[expect(dead_code, reason = "it holds the address")] UnixListener);

impl NameLock {
    /// Takes a name, and retries for `timeout`. The error is [`io::ErrorKind::AddrInUse`] if it is taken all the time, by this process
    /// or another one. Blocks the thread.
    pub fn take_within(name: &str, timeout: Duration) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(name)?;
        let deadline = crate::time::now() + timeout;
        loop {
            match UnixListener::bind_addr(&address) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && crate::time::now() < deadline =>
                {
                    crate::time::pause(POLL_INTERVAL);
                }
                taken => return taken.map(Self),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_free_again_when_it_is_dropped() {
        let name = format!("sarsen-test-{:016x}", crate::random::number());
        let taken = NameLock::take_within(&name, Duration::ZERO).expect("free");
        let refused = NameLock::take_within(&name, Duration::ZERO).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::AddrInUse));
        drop(taken);
        assert!(NameLock::take_within(&name, Duration::ZERO).is_ok());
    }
}
