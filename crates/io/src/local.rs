//! Connections to sockets of this machine (AF_UNIX), used as those of [`crate::net`] are.

use std::io;
use std::path::Path;

use sarsen_block::Piece;
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::net::{self, Watched};

/// A connection on the core that made it.
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

    /// See [`net::Stream::readable`].
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// See [`net::Stream::writable`].
    pub async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// See [`net::Stream::try_receive`].
    pub fn try_receive(&self, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize> {
        net::receive(&self.socket, landing, scratch)
    }

    /// See [`net::Stream::try_send`].
    pub fn try_send(&self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        net::send(&self.socket, pieces)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::cores::{FileEngine, block_on};

    #[test]
    fn bytes_go_both_ways_and_the_end_is_told() {
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
}
