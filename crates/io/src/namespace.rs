//! Network namespaces without a name: they end when they are empty and no process holds them, even if this process is
//! killed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::panic::resume_unwind;
use std::thread::{Builder, scope};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace.
#[derive(Debug)]
pub struct NetworkNamespace {
    namespace: File,
}

impl NetworkNamespace {
    /// Creates a namespace with only a loopback interface, which is down. This needs the capability to administer the
    /// system (CAP_SYS_ADMIN); without it the result is PermissionDenied.
    pub fn new() -> io::Result<Self> {
        // The thread that leaves its namespace ends, so that no other work runs in the wrong namespace.
        let namespace = on_thread("namespace", || {
            // SAFETY: only the network is unshared. That changes which addresses the sockets of this thread reach, and
            // nothing that memory safety depends on.
            #[allow(unsafe_code)]
            unsafe {
                rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)?;
            }
            File::open("/proc/thread-self/ns/net")
        })??;
        Ok(Self { namespace })
    }

    /// Returns a path by which other programs find it while this process runs: for `nsenter --net=PATH` and `ip link …
    /// netns PATH`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd())
    }

    /// Runs `work` on a thread in the namespace. Sockets that are created there, and threads that are started there,
    /// belong to it permanently.
    ///
    /// # Panics If no thread can be started, if this process has dropped the capability that created the namespace, or
    /// if `work` panics.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_thread("namespace", || {
            let namespace = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.namespace.as_fd(), namespace)?;
            Ok::<_, io::Error>(work())
        })
        .flatten()
        .unwrap_or_else(|error| panic!("cannot enter a network namespace: {error}"))
    }
}

fn on_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    scope(|scope| {
        let thread = Builder::new().name(name.into()).spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> std::path::PathBuf {
        std::fs::read_link("/proc/thread-self/ns/net").unwrap()
    }

    #[test]
    fn work_within_is_elsewhere_and_only_there() {
        let namespace = match NetworkNamespace::new() {
            Ok(namespace) => namespace,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: namespaces take root");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let before = own();
        let within = namespace.within(own);
        assert_ne!(within, before);
        assert_eq!(namespace.within(own), within);
        assert_eq!(own(), before);
        assert_eq!(std::fs::read_link(namespace.path()).unwrap(), within);
        let interfaces =
            namespace.within(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        assert!(!interfaces.contains("eth"), "{interfaces}");
    }
}
