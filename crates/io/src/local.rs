//! Sockets of this machine (AF_UNIX): connections with the interface of those of [`crate::net`], and a listener that
//! only its owner can reach.

use std::fs::{self, Permissions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use sarsen_block::Piece;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::vectored::{self, Watched};

/// Maximum of connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Maximum number of descriptors that come with bytes.
const DESCRIPTORS: usize = 8;
/// The permissions to connect: the owner, and root.
const OWNER_ALONE: u32 = 0o600;

/// A connection as an ordinary byte stream, on the runtime that created it.
pub type LocalSocket = UnixStream;

/// Connects to the socket at `path`.
pub async fn connect(path: &Path) -> io::Result<LocalSocket> {
    UnixStream::connect(path).await
}

/// A connection on the core that created it.
pub struct LocalStream {
    socket: UnixStream,
}

impl Watched for UnixStream {
    fn try_io(
        &self,
        interest: Interest,
        io: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.try_io(interest, io)
    }
}

impl LocalStream {
    /// Connects to the socket at `path`.
    pub async fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self { socket: UnixStream::connect(path).await? })
    }

    /// Returns a connection of the standard library, on the calling core.
    pub fn from_std(socket: std::os::unix::net::UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UnixStream::from_std(socket)? })
    }

    /// Returns the process that listens at the other end, if the kernel reports it.
    pub fn peer_process(&self) -> Option<u32> {
        u32::try_from(self.socket.peer_cred().ok()?.pid()?).ok()
    }

    /// Waits until the other end has closed.
    pub async fn closed(&self) -> io::Result<()> {
        loop {
            self.readable().await?;
            match self.try_receive(&mut [], &mut [0; 64]) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// See [`crate::net::Stream::readable`].
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// See [`crate::net::Stream::writable`].
    pub async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// See [`crate::net::Stream::try_receive`].
    pub fn try_receive(&self, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize> {
        vectored::receive(&self.socket, landing, scratch)
    }

    /// Fills `bytes`, and adds the descriptors that came with them. Dropping the future loses what it has received.
    pub async fn receive_with_descriptors(
        &self,
        mut bytes: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            self.readable().await?;
            let received = self.socket.try_io(Interest::READABLE, || {
                let mut space =
                    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [IoSliceMut::new(bytes)];
                let flags = RecvFlags::CMSG_CLOEXEC;
                let message = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags)?;
                for item in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = item {
                        descriptors.extend(received);
                    }
                }
                if descriptors.len() > DESCRIPTORS {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Ok(message.bytes)
            });
            match received {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends all bytes.
    pub async fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.writable().await?;
            match self.try_send(&[Piece::Bytes(bytes)]) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// See [`crate::net::Stream::try_send`].
    pub fn try_send(&self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        vectored::send(&self.socket, pieces)
    }
}

/// Listens at a path, which is removed when this is dropped.
pub struct LocalListener {
    socket: std::os::unix::net::UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's file: a file of another process that replaced it stays.
    identity: (u64, u64),
}

impl LocalListener {
    /// Listens at `path`, for the owner of this process only.
    ///
    /// The file of a server that has ended is replaced. If a server still listens at the path, the result is
    /// [`io::ErrorKind::AddrInUse`]; if the file is not a socket, it is [`io::ErrorKind::AlreadyExists`].
    pub fn bind(path: &Path) -> io::Result<Self> {
        let address = SockAddr::unix(path)?;
        remove_stale(path, &address)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address)?;
        // No process can connect before the socket listens, whatever permissions the umask left until here.
        fs::set_permissions(path, Permissions::from_mode(OWNER_ALONE))?;
        socket.listen(BACKLOG)?;
        let file = fs::symlink_metadata(path)?;
        let identity = (file.dev(), file.ino());
        Ok(Self { socket: socket.into(), path: path.to_owned(), identity })
    }

    /// Returns the incoming connections, on the calling runtime.
    pub fn connections(&self) -> io::Result<LocalConnections> {
        let socket = tokio::net::UnixListener::from_std(self.socket.try_clone()?)?;
        Ok(LocalConnections { socket })
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|file| (file.dev(), file.ino()) == self.identity);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// See [`LocalListener::connections`].
pub struct LocalConnections {
    socket: tokio::net::UnixListener,
}

impl LocalConnections {
    /// Returns the next connection, as a socket of the calling runtime.
    pub async fn accept(&self) -> io::Result<LocalSocket> {
        Ok(self.socket.accept().await?.0)
    }
}

/// Removes a socket file without a listener.
fn remove_stale(path: &Path, address: &SockAddr) -> io::Result<()> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is no socket is there",
        ));
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A running server may have a full backlog, too, and the probe must not wait for it.
    probe.set_nonblocking(true)?;
    match probe.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        Ok(()) | Err(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::cores::{FileEngine, block_on};

    #[test]
    fn local_socket_carries_bytes_both_ways_and_reports_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        block_on(FileEngine::Pool, async {
            let stream = LocalStream::connect(&path).await.unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            assert_eq!(stream.try_send(&[Piece::Bytes(b"a"), Piece::Bytes(b"bc")]).unwrap(), 3);
            let mut found = [0; 3];
            peer.read_exact(&mut found).unwrap();
            assert_eq!(&found, b"abc");
            peer.write_all(b"defg").unwrap();
            drop(peer);
            let (mut landing, mut scratch) = ([0; 2], [0; 8]);
            stream.readable().await.unwrap();
            assert_eq!(stream.try_receive(&mut landing, &mut scratch).unwrap(), 4);
            assert_eq!((&landing, &scratch[..2]), (b"de", &b"fg"[..]));
            loop {
                stream.readable().await.unwrap();
                match stream.try_receive(&mut [], &mut scratch) {
                    Ok(count) => break assert_eq!(count, 0),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            let nobody = LocalStream::connect(&folder.path().join("nobody")).await;
            assert_eq!(nobody.err().unwrap().kind(), io::ErrorKind::NotFound);
        })
        .unwrap();
    }

    #[test]
    fn descriptors_arrive_with_their_bytes() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let (own, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        block_on(FileEngine::Pool, async {
            let stream = LocalStream::from_std(own).unwrap();
            let files = [std::os::fd::AsFd::as_fd(&file)];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
            let parts = [io::IoSlice::new(b"abc")];
            rustix::net::sendmsg(&theirs, &parts, &mut control, SendFlags::empty()).unwrap();
            (&theirs).write_all(b"defg").unwrap();
            let (mut bytes, mut descriptors) = ([0; 6], Vec::new());
            stream.receive_with_descriptors(&mut bytes, &mut descriptors).await.unwrap();
            assert_eq!(&bytes, b"abcdef");
            let [received] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
            (&fs::File::from(received)).write_all(b"shared").unwrap();
            assert_eq!(file.metadata().unwrap().len(), 6);
            drop(theirs);
            let ended = stream.receive_with_descriptors(&mut bytes, &mut Vec::new()).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        })
        .unwrap();
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_a_living_ones_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        // The standard library's listener leaves its file behind, as a killed server does.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = LocalListener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, OWNER_ALONE);
        let kind = LocalListener::bind(&path).err().unwrap().kind();
        assert_eq!(kind, io::ErrorKind::AddrInUse);
        block_on(FileEngine::Pool, async {
            let connections = listener.connections().unwrap();
            let _client = LocalStream::connect(&path).await.unwrap();
            connections.accept().await.unwrap();
        })
        .unwrap();
        drop(listener);
        assert!(!path.exists(), "the file goes with its listener");
    }

    #[test]
    fn only_a_socket_is_replaced_and_only_ones_own_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        fs::write(&path, "precious").unwrap();
        let kind = LocalListener::bind(&path).err().unwrap().kind();
        assert_eq!(kind, io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        let listener = LocalListener::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let another = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists(), "another's socket has taken the place");
        drop(another);
        let too_long = folder.path().join("x".repeat(200));
        assert!(LocalListener::bind(&too_long).is_err());
    }
}
