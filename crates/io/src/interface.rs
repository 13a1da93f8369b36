//! Network interfaces: what no socket option sets.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

/// Has the kernel cut what TCP sends by this interface into packets before the interface sees them
/// (ETHTOOL_STSO, 0), as it is in the network namespace of the calling thread. It takes the right
/// to administer that network.
pub fn switch_off_segmentation(name: &str) -> io::Result<()> {
    /// `struct ethtool_value` of the kernel's interface.
    #[repr(C)]
    struct EthtoolValue {
        command: u32,
        data: u32,
    }
    /// ETHTOOL_STSO: set TCP segmentation offload.
    const SET_TCP_SEGMENTATION: u32 = 0x1f;

    // Any socket of the namespace does.
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let mut value = EthtoolValue { command: SET_TCP_SEGMENTATION, data: 0 };
    let data = libc::__c_anonymous_ifr_ifru { ifru_data: std::ptr::from_mut(&mut value).cast() };
    let mut request = request(name, data)?;
    // SAFETY: the request is the structure that this ioctl reads, its name ends with a zero, and
    // what its pointer shows is the structure that this command reads; all outlive the call.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, std::ptr::from_mut(&mut request))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A request about an interface. Its name is shorter than the field, which thus ends with a zero.
pub(crate) fn request(name: &str, data: libc::__c_anonymous_ifr_ifru) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['%', '\0']) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is no name for an interface"),
        ));
    }
    let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: data };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::NetworkNamespace;

    #[test]
    fn segmentation_is_switched_off_where_there_is_such_an_interface() {
        let Ok(namespace) = NetworkNamespace::new() else {
            eprintln!("skipped: namespaces take root");
            return;
        };
        namespace.within(|| {
            let missing = switch_off_segmentation("none").unwrap_err();
            assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
            switch_off_segmentation("lo").unwrap();
        });
    }
}
