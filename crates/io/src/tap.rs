//! TAP devices: network interfaces whose other end is a file descriptor of this process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

/// A TAP device. A read takes one Ethernet frame that the kernel sends; a write passes one frame to the kernel. Neither
/// blocks. Dropping it removes the device.
#[derive(Debug)]
pub struct Tap {
    device: File,
}

impl Tap {
    /// Creates a device in the network namespace of the calling thread. No interface may have this name yet. This needs
    /// the capability to administer that network (CAP_NET_ADMIN).
    pub fn new(name: &str) -> io::Result<Self> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['%', '\0']) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} is not a name of a network interface"),
            ));
        }
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
        let mut request = libc::ifreq {
            ifr_name: [0; libc::IFNAMSIZ],
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags as libc::c_short },
        };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: the request is the structure that this ioctl reads and writes. Its name ends with a zero, because it
        // is shorter than the field. The descriptor is open.
        #[allow(unsafe_code)]
        let result = unsafe {
            libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, std::ptr::from_mut(&mut request))
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { device }) }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::NetworkNamespace;

    #[test]
    fn is_an_interface_of_its_namespace_until_it_is_dropped() {
        let Ok(namespace) = NetworkNamespace::new() else {
            eprintln!("skipped: namespaces take root");
            return;
        };
        let tap = match namespace.within(|| Tap::new("tap-of-test")) {
            Ok(tap) => tap,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                eprintln!("skipped: there is no /dev/net/tun");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let interfaces = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        assert!(namespace.within(interfaces).contains("tap-of-test:"));
        assert!(!interfaces().contains("tap-of-test:"));
        let again = namespace.within(|| Tap::new("tap-of-test")).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::EBUSY));
        let nothing = rustix::io::read(&tap, &mut [0; 64]).unwrap_err();
        assert!(matches!(nothing, rustix::io::Errno::AGAIN | rustix::io::Errno::IO), "{nothing}");
        drop(tap);
        assert!(!namespace.within(interfaces).contains("tap-of-test:"));
    }

    #[test]
    fn a_name_that_the_kernel_would_cut_is_refused() {
        for name in ["", "sixteen-letters-", "many%d"] {
            let Err(error) = Tap::new(name) else { panic!("{name:?} was taken") };
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}: {error}");
        }
    }
}
