//! Properties of the machine: the state of its clock, the space on a disk, the path to a peer.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

/// The state of the system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The kernel considers the clock correct: a service (NTP, PTP) synchronises it.
    pub synchronised: bool,
    /// The maximum error of the clock, as that service reports it.
    pub maximum_error: Duration,
}

/// Asks the kernel for the state of its clock (adjtimex(2)); changes nothing.
pub fn clock() -> io::Result<Clock> {
    // SAFETY: all zeroes is a valid timex: it has only numbers, and no mode that changes anything.
    #[allow(unsafe_code)]
    let mut reported: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads and writes one timex, which belongs to this function during the call.
    #[allow(unsafe_code)]
    let state = unsafe { libc::adjtimex(&mut reported) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Clock {
        synchronised: state != libc::TIME_ERROR && reported.status & libc::STA_UNSYNC == 0,
        maximum_error: Duration::from_micros(u64::try_from(reported.maxerror).unwrap_or(0)),
    })
}

/// Returns the number of the user whose rights this program has.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Bytes of a file system: available to this process, and in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Available to this process.
    pub free: u64,
    /// In total.
    pub size: u64,
}

/// Returns the space of the file system that contains `path`.
pub fn space(path: &Path) -> io::Result<Space> {
    let reported = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(reported.f_frsize);
    Ok(Space { free: bytes(reported.f_bavail), size: bytes(reported.f_blocks) })
}

/// Returns the maximum packet length to `peer` without fragmentation, as far as the kernel knows. Sends nothing.
pub fn path_mtu(peer: SocketAddr) -> io::Result<u32> {
    match peer {
        SocketAddr::V4(_) => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(peer)?;
            Ok(rustix::net::sockopt::ip_mtu(&socket)?)
        }
        SocketAddr::V6(_) => {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            socket.connect(peer)?;
            Ok(rustix::net::sockopt::ipv6_mtu(&socket)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_each_question() {
        clock().expect("a clock");
        let folder = tempfile::tempdir().expect("a folder");
        let space = space(folder.path()).expect("a file system");
        assert!(space.size > 0 && space.free <= space.size, "{space:?}");
        assert!(super::space(&folder.path().join("absent")).is_err());
        let mtu = path_mtu((Ipv4Addr::LOCALHOST, 3260).into()).expect("the loopback has one");
        assert!(mtu >= 1280, "{mtu}");
    }
}
