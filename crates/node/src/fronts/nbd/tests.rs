//! Connections of real sockets.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;

use sarsen_block::{BlockSize, MemoryStore};
use sarsen_io::cores::{Cores, FileEngine};
use sarsen_io::net::Listener;
use sarsen_io::spin::Spin;
use sarsen_scsi::{Array, Identity, LogicalUnit, Lun, Parts, TargetDevice};
use sarsen_volume::{self as volume, Volume};

use crate::config::Limits;
use crate::fronts::Front;
use crate::fronts::acceptor::Acceptor;
use crate::host::ServerHost;
use crate::portal::Portal;
use crate::protocol::Protocol;

const BLOCK: usize = 512;
const READ: u16 = 0;
const WRITE: u16 = 1;

/// A client of the only export, without structured replies.
struct Client {
    socket: TcpStream,
    cookie: u64,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let mut client =
            Self { socket: TcpStream::connect(address).expect("a connection"), cookie: 0 };
        client.receive(18);
        // Fixed newstyle, and no zeroes.
        client.send(&[&3u32.to_be_bytes()]);
        // NBD_OPT_GO without a name and information requests.
        client.send(&[b"IHAVEOPT", &7u32.to_be_bytes(), &6u32.to_be_bytes(), &[0; 6]]);
        loop {
            let header = client.receive(20);
            let reply = u32::from_be_bytes(header[12..16].try_into().expect("four bytes"));
            let length = u32::from_be_bytes(header[16..].try_into().expect("four bytes"));
            client.receive(length as usize);
            match reply {
                1 => return client,
                3 => {}
                error => panic!("the server refuses: {error:#x}"),
            }
        }
    }

    fn send(&mut self, parts: &[&[u8]]) {
        self.socket.write_all(&parts.concat()).expect("sent");
    }

    fn receive(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.socket.read_exact(&mut bytes).expect("received");
        bytes
    }

    /// Sends a request for one block. Returns the data of the reply.
    fn request(&mut self, kind: u16, block: usize, data: &[u8]) -> Vec<u8> {
        self.cookie += 1;
        let (cookie, offset) = (self.cookie.to_be_bytes(), (block * BLOCK) as u64);
        self.send(&[
            &0x2560_9513_u32.to_be_bytes(),
            &0u16.to_be_bytes(),
            &kind.to_be_bytes(),
            &cookie,
            &offset.to_be_bytes(),
            &(BLOCK as u32).to_be_bytes(),
            data,
        ]);
        let reply = self.receive(16);
        assert_eq!(reply, [&0x6744_6698_u32.to_be_bytes()[..], &[0; 4], &cookie].concat());
        self.receive(if kind == READ { BLOCK } else { 0 })
    }
}

#[test]
fn a_session_goes_on_whatever_core_serves_its_connection() {
    let memory = Arc::new(MemoryStore::new(BlockSize::B512, 64));
    let volume = Volume::open(volume::Parts::new("v", memory)).expect("no records");
    let unit = LogicalUnit::of_parts(Parts::disk(Identity::new("v", "test"), volume));
    let cores = Cores::start(NonZeroUsize::new(2), FileEngine::Pool, Spin::Auto).expect("cores");
    let cores = Arc::new(cores);
    let array = Array::new(Arc::new(ServerHost::new(&cores)));
    let units = BTreeMap::from([(Lun(0), unit.expect("no records"))]);
    let device = TargetDevice::new(&array, "iqn.2026-11.test:v".into(), units);
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = listener.local_addr().expect("bound");
    let limits = Limits::default();
    let front = Front::of_target(device, address, limits.settings(), &limits);
    let acceptor = Acceptor::always_moving(front.clone(), &cores);
    let portal = Portal::new(address, Protocol::Nbd, 1, None);
    let accepting = acceptor.open(portal, Arc::new(listener));
    let mut clients = [Client::connect(address), Client::connect(address)];
    for round in 0..400 {
        let block = round % 64;
        let data = [(round * 7) as u8; BLOCK];
        clients[round % 2].request(WRITE, block, &data);
        assert_eq!(clients[(round + 1) % 2].request(READ, block, &[]), data);
    }
    assert!(acceptor.loads().moves() > 50, "{} moves", acceptor.loads().moves());
    // A message reaches a connection on the core to which it has moved.
    drop(accepting);
    let ending = async { front.end_sessions(std::time::Duration::ZERO).await };
    sarsen_io::cores::block_on(FileEngine::Pool, ending).expect("a runtime");
    assert_eq!(front.sessions.count(), 0);
    for mut client in clients {
        assert_eq!(client.socket.read(&mut [0; 16]).expect("the end of the stream"), 0);
    }
}
