use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::pin;
use std::rc::Rc;

use sarsen_block::{MediumProblem, StopCause};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_wire::nbd::{self, CommandCode, SIMPLE_REPLY_MAGIC, SimpleReply};
use zerocopy::{FromZeros, IntoBytes};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const BLOCKS: u64 = 64;

/// Returns a server's complete answer to the choice of an export: its size and these flags.
fn hello(flags: u16) -> Vec<u8> {
    let mut bytes = b"NBDMAGICIHAVEOPT\x00\x03".to_vec();
    let info = nbd::ExportInfo {
        info: nbd::InfoCode::Export.0.into(),
        bytes: (BLOCKS * 512 + 100).into(),
        flags: (flags | transmission::HAS_FLAGS).into(),
    };
    bytes.extend(go_reply(nbd::ReplyCode::Info, info.as_bytes()));
    bytes.extend(go_reply(nbd::ReplyCode::Ack, &[]));
    bytes
}

fn go_reply(reply: nbd::ReplyCode, data: &[u8]) -> Vec<u8> {
    let head = nbd::OptionReply {
        magic: nbd::OPTION_REPLY_MAGIC.into(),
        option: nbd::OptionCode::Go.0.into(),
        reply: reply.0.into(),
        length: (data.len() as u32).into(),
    };
    [head.as_bytes(), data].concat()
}

/// The other end of a connection. It has no thread: it reads the data that has arrived by now.
struct Peer(UnixStream);

impl Peer {
    /// Returns the next request; `None` at the end.
    async fn request(&mut self) -> Option<nbd::Request> {
        let mut request = nbd::Request::new_zeroed();
        let bytes = request.as_mut_bytes();
        let mut filled = 0;
        while filled < bytes.len() {
            match self.0.read(&mut bytes[filled..]) {
                Ok(0) => return None,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        Some(request)
    }

    fn reply(&mut self, request: &nbd::Request, error: ErrorCode, data: &[u8]) {
        let head = SimpleReply {
            magic: SIMPLE_REPLY_MAGIC.into(),
            error: error.0.into(),
            cookie: request.cookie,
        };
        self.0.write_all(&[head.as_bytes(), data].concat()).unwrap();
    }
}

/// Connects a store, and passes it to `then` with the server's end.
fn connected<F: Future<Output = ()>>(flags: u16, then: impl FnOnce(Rc<NbdConnection>, Peer) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let url = NbdUrl { place: NbdPlace::Socket(path), export: "x".into() };
    block_on(FileEngine::Pool, async {
        let serve = async {
            // The connection is in the backlog before any task waits.
            let mut socket = loop {
                listener.set_nonblocking(true).unwrap();
                match listener.accept() {
                    Ok((socket, _)) => break socket,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            socket.set_nonblocking(true).unwrap();
            socket.write_all(&hello(flags)).unwrap();
            let mut asked = Vec::new();
            while asked.len() < 4 + 16 + 9 {
                let mut bytes = [0; 64];
                match socket.read(&mut bytes) {
                    Ok(count) => asked.extend_from_slice(&bytes[..count]),
                    Err(_) => tokio::task::yield_now().await,
                }
            }
            socket
        };
        let (store, socket) = tokio::join!(NbdConnection::connect(&url, LIMIT), serve);
        then(Rc::new(store.unwrap()), Peer(socket)).await;
    })
    .unwrap();
}

fn write(store: &NbdConnection, durability: Durability) -> Reply<()> {
    store.write(Extent::new(0, 1), Buffer::zeroed(512).into(), durability)
}

#[test]
fn store_emulates_missing_export_functions() {
    connected(transmission::SEND_FLUSH, |store, mut peer| async move {
        assert_eq!(store.geometry(), Geometry { block_size: BlockSize::B512, block_count: BLOCKS });
        assert!(store.characteristics().volatile_cache);
        assert_eq!(store.characteristics().unmap, None);
        let unmap = store.unmap(Extent::new(0, 1)).wait().await;
        assert!(
            matches!(unmap, Err(BlockError::Invalid(InvalidRequest::Unsupported))),
            "{unmap:?}"
        );

        // Without FUA a durable write is followed by a flush; so are zeroes, which are data here.
        for writes_zeroes in [false, true] {
            let written = if writes_zeroes {
                store.write_zeroes(Extent::new(0, 1), Durability::Durable)
            } else {
                write(&store, Durability::Durable)
            };
            let mut written = pin!(written.wait());
            let serve = async {
                let request = peer.request().await.unwrap();
                assert_eq!(request.command.get(), CommandCode::Write.0);
                assert_eq!(request.flags.get(), 0);
                peer.0.set_nonblocking(false).unwrap();
                peer.0.read_exact(&mut [0; 512]).unwrap();
                peer.0.set_nonblocking(true).unwrap();
                peer.reply(&request, ErrorCode::None, &[]);
                let request = peer.request().await.unwrap();
                assert_eq!(request.command.get(), CommandCode::Flush.0);
                peer.reply(&request, ErrorCode::None, &[]);
            };
            tokio::select! {
                biased;
                early = &mut written => panic!("before the flush: {early:?}"),
                () = serve => {}
            }
            assert!(matches!(written.await, Ok(())));
        }
    });
}

#[test]
fn after_a_failed_flush_nothing_more_is_acknowledged() {
    connected(transmission::SEND_FLUSH, |store, mut peer| async move {
        let flushed = store.flush().wait();
        let serve = async {
            let request = peer.request().await.unwrap();
            peer.reply(&request, ErrorCode::Io, &[]);
        };
        let (flushed, ()) = tokio::join!(flushed, serve);
        assert!(matches!(flushed, Err(BlockError::Medium { .. })), "{flushed:?}");
        let later = write(&store, Durability::Volatile).wait().await;
        assert!(matches!(later, Err(BlockError::Stopped(StopCause::FlushFailed))), "{later:?}");
    });
}

#[test]
fn an_error_of_the_server_says_what_to_do_next() {
    connected(0, |store, mut peer| async move {
        let mut answer = async |code| {
            let read = store.read(Extent::new(5, 1)).wait();
            let serve = async {
                let request = peer.request().await.unwrap();
                peer.reply(&request, code, &[]);
            };
            tokio::join!(read, serve).0.expect_err("refused")
        };
        let class = answer(ErrorCode::Io).await;
        assert!(
            matches!(class, BlockError::Medium { lba: Lba(5), problem: MediumProblem::Read(_) }),
            "{class}"
        );
        let class = answer(ErrorCode::NoMemory).await;
        assert!(matches!(class, BlockError::Transient(_)), "{class}");
        let class = answer(ErrorCode::Shutdown).await;
        assert!(matches!(class, BlockError::Unreachable(_)), "{class}");
        let class = answer(ErrorCode::NotPermitted).await;
        assert!(matches!(class, BlockError::Fenced), "{class}");
        for code in [ErrorCode::Invalid, ErrorCode::Overflow, ErrorCode(1000)] {
            let class = answer(code).await;
            assert!(matches!(class, BlockError::Invalid(InvalidRequest::Rejected(_))), "{class}");
        }
    });
}

#[test]
fn borders_and_flags_are_kept_without_asking_the_server() {
    connected(transmission::READ_ONLY, |store, _peer| async move {
        let beyond = store.read(Extent::new(BLOCKS - 1, 2)).wait().await;
        assert!(
            matches!(beyond, Err(BlockError::Invalid(InvalidRequest::OutOfRange { .. }))),
            "{beyond:?}"
        );
        let refused = write(&store, Durability::Volatile).wait().await;
        assert!(
            matches!(refused, Err(BlockError::Invalid(InvalidRequest::ReadOnly))),
            "{refused:?}"
        );
    });
}

#[test]
fn lost_connection_fails_open_and_later_requests() {
    connected(0, |store, mut peer| async move {
        let read = store.read(Extent::new(0, 1)).wait();
        let serve = async {
            peer.request().await.unwrap();
            drop(peer);
        };
        let (read, ()) = tokio::join!(read, serve);
        let read = read.unwrap_err();
        assert!(read.to_string().contains("connection was lost"));
        assert!(matches!(read, BlockError::Unreachable(_)));
        let later = store.read(Extent::new(0, 1)).wait().await;
        assert!(later.unwrap_err().to_string().contains("connection was lost"));
    });
}

#[test]
fn requests_of_a_silent_server_fail_after_the_limit() {
    let limit = Duration::from_millis(20);
    let silent = async |store: &NbdConnection, peer: &mut Peer, reply: Reply<()>, limit: &str| {
        // Half of an answer is progress, and no answer.
        let serve = async {
            let request = peer.request().await.unwrap();
            let head = SimpleReply {
                magic: SIMPLE_REPLY_MAGIC.into(),
                error: ErrorCode::None.0.into(),
                cookie: request.cookie,
            };
            peer.0.write_all(&head.as_bytes()[..8]).unwrap();
        };
        let (ended, ()) = tokio::join!(reply.wait(), serve);
        let error = ended.unwrap_err();
        assert!(matches!(error, BlockError::Unreachable(_)), "{error}");
        assert!(error.to_string().contains(&format!("no answer within {limit}")), "{error}");
        let later = store.read(Extent::new(0, 1)).wait().await.unwrap_err();
        assert!(later.to_string().contains("no answer within"), "{later}");
    };
    let place = || NbdUrl { place: NbdPlace::Socket("/silent".into()), export: "x".into() };
    connected(0, |store, mut peer| async move {
        store.limit_waits(limit, &place());
        let zeroed = store.write_zeroes(Extent::new(0, 1), Durability::Volatile);
        silent(&store, &mut peer, zeroed, "20ms").await;
    });
    // A flush writes everything that the cache of the server holds.
    connected(transmission::SEND_FLUSH, |store, mut peer| async move {
        store.limit_waits(limit, &place());
        silent(&store, &mut peer, store.flush(), "200ms").await;
    });
}

#[test]
fn disconnect_is_sent_after_open_requests_end() {
    connected(0, |store, mut peer| async move {
        let ended = Cell::new(false);
        let read = async {
            let read = store.read(Extent::new(0, 1)).wait().await;
            ended.set(true);
            assert!(matches!(read, Ok(data) if data.len() == 512));
        };
        let leave = store.disconnect(LIMIT);
        let serve = async {
            let request = peer.request().await.unwrap();
            peer.reply(&request, ErrorCode::None, &[7; 512]);
            let request = peer.request().await.unwrap();
            assert_eq!(request.command.get(), CommandCode::Disconnect.0);
            assert!(peer.request().await.is_none());
        };
        tokio::join!(read, leave, serve);
        assert!(ended.get());
        let later = store.flush().wait().await;
        assert!(matches!(later, Ok(())), "nothing to be flushed: {later:?}");
    });
}
