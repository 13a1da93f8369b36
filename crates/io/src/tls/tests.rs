//! Two ends over the loopback, and errors of the peer.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{AlertDescription, CertificateError, RootCertStore, version};

use super::*;
use crate::cores::{FileEngine, block_on};
use crate::memory::Region;
use crate::net::{Listener, Stream};

struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, name: &str) -> Chain {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        (vec![certificate.der().clone()], key)
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        Arc::new(roots)
    }

    /// Returns a server that requires a certificate from `clients`, if given.
    fn server(&self, clients: Option<&Self>) -> Arc<ServerConfig> {
        let builder = ServerConfig::builder_with_protocol_versions(&[&version::TLS13]);
        let builder = match clients {
            Some(clients) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder(clients.roots()).build().unwrap(),
            ),
            None => builder.with_no_client_auth(),
        };
        let (chain, key) = self.issue("127.0.0.1");
        let mut config = builder.with_single_cert(chain, key).unwrap();
        // Unread tickets at a client's close would turn its end into a reset.
        config.send_tls13_tickets = 0;
        Arc::new(config)
    }

    fn client(&self, chain: Option<Chain>) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_protocol_versions(&[&version::TLS13])
            .with_root_certificates(self.roots());
        Arc::new(match chain {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
            None => builder.with_no_client_auth(),
        })
    }
}

fn name() -> ServerName<'static> {
    "127.0.0.1".try_into().unwrap()
}

async fn sockets() -> (Stream, Stream) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(Stream::connect(address), listener.accept());
    (client.unwrap(), Stream::from_std(accepted.unwrap().0).unwrap())
}

async fn shake_hands(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
) -> (io::Result<Stream>, io::Result<Stream>) {
    let (connecting, accepted) = sockets().await;
    tokio::join!(connecting.connect_tls(client, name()), accepted.accept_tls(server))
}

async fn pair() -> (Stream, Stream) {
    let authority = Authority::new("ours");
    let (client, server) = shake_hands(authority.server(None), authority.client(None)).await;
    (client.unwrap(), server.unwrap())
}

/// Connects a server with a client whose socket belongs to the test.
async fn pair_with_machine() -> (Machine, TcpStream, Stream) {
    let authority = Authority::new("ours");
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let accepted = Stream::from_std(listener.accept().await.unwrap().0).unwrap();
    let config = authority.client(None);
    let client = crate::threads::spawn("client", move || {
        let mut machine = Machine::client(config, name()).unwrap();
        machine.shake_hands(reading(&socket), writing(&socket)).unwrap();
        (machine, socket)
    });
    let server = accepted.accept_tls(authority.server(None)).await.unwrap();
    let (machine, socket) = client.unwrap().join().unwrap();
    (machine, socket, server)
}

fn reading(mut socket: &TcpStream) -> impl FnMut(&mut [u8]) -> io::Result<usize> {
    move |bytes| socket.read(bytes)
}

fn writing(mut socket: &TcpStream) -> impl FnMut(&[IoSlice<'_>]) -> io::Result<usize> {
    move |slices| socket.write_vectored(slices)
}

async fn receive(stream: &Stream, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_receive(landing, scratch) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

fn pattern(position: usize) -> u8 {
    (position * 7 + position / 4096) as u8
}

fn on_a_core(test: impl Future<Output = ()>) {
    block_on(FileEngine::Pool, test).unwrap();
}

const TOTAL: usize = 4 << 20;

/// Sends the pattern in pieces of all kinds and odd lengths.
async fn send_all(stream: &Stream) {
    let region = Region::new(TOTAL).unwrap();
    let data: Vec<u8> = (0..TOTAL).map(pattern).collect();
    region.write(0, &data);
    let region: Arc<dyn sarsen_block::SharedMemory> = region;
    let mut sent = 0;
    while sent < TOTAL {
        stream.writable().await.unwrap();
        let mut pieces = Vec::new();
        let mut at = sent;
        for length in [1, 48, 0, 777, 65_537, 16_384, 300_001] {
            let length = length.min(TOTAL - at);
            pieces.push(match at % 2 {
                0 => Piece::Bytes(&data[at..at + length]),
                _ => Piece::Shared { memory: &region, offset: at, length },
            });
            at += length;
        }
        match stream.try_send(&pieces) {
            Ok(count) => sent += count,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    // Sends the rest that still waits, too.
    stream.writable().await.unwrap();
}

/// Receives to the end into buffers of these lengths, in turn.
async fn receive_all(stream: &Stream, rooms: &[(usize, usize)]) -> usize {
    let (mut landing, mut scratch) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut position = 0;
    for (first, second) in rooms.iter().cycle() {
        let (first, second) = (&mut landing[..*first], &mut scratch[..*second]);
        let count = receive(stream, first, second).await.unwrap();
        for byte in first.iter().chain(&*second).take(count) {
            assert_eq!(*byte, pattern(position));
            position += 1;
        }
        if count == 0 || position == TOTAL {
            break;
        }
    }
    position
}

#[test]
fn bytes_in_odd_pieces_arrive_whole_both_ways_at_once() {
    on_a_core(async {
        let (client, server) = pair().await;
        assert!(client.is_encrypted() && server.is_encrypted());
        let rooms = [(333, 65_536), (0, 16_384), (1 << 20, 0), (5, 4000), (70_000, 65_536)];
        let (.., up, down) = tokio::join!(
            send_all(&client),
            send_all(&server),
            receive_all(&server, &rooms),
            receive_all(&client, &rooms)
        );
        assert_eq!((up, down), (TOTAL, TOTAL));
    });
}

#[test]
fn rfc8446_6_1_close_notify_differs_from_cut_connection() {
    on_a_core(async {
        let mut scratch = [0; 64];
        let (client, server) = pair().await;
        assert_eq!(client.try_send(&[Piece::Bytes(b"last")]).unwrap(), 4);
        drop(client);
        assert_eq!(receive(&server, &mut [], &mut scratch).await.unwrap(), 4);
        assert_eq!(receive(&server, &mut [], &mut scratch).await.unwrap(), 0);

        let (client, server) = pair().await;
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(receive(&server, &mut [], &mut scratch).await.unwrap(), 0);
        server.try_send(&[Piece::Bytes(b"still")]).unwrap();
        assert_eq!(receive(&client, &mut [], &mut scratch).await.unwrap(), 5);

        let (mut machine, socket, server) = pair_with_machine().await;
        machine.send(&[Piece::Bytes(b"last")], writing(&socket)).unwrap();
        drop(socket);
        assert_eq!(receive(&server, &mut [], &mut scratch).await.unwrap(), 4);
        for _ in 0..2 {
            let error = receive(&server, &mut [], &mut scratch).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    });
}

#[test]
fn decrypted_data_is_readable_at_once() {
    on_a_core(async {
        let (mut machine, socket, server) = pair_with_machine().await;
        machine.send(&[Piece::Bytes(b"abc")], writing(&socket)).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        for expected in *b"abc" {
            let mut byte = [0];
            assert_eq!(receive(&server, &mut byte, &mut []).await.unwrap(), 1);
            assert_eq!(byte, [expected]);
            let is_ready = pin!(server.readable()).poll(&mut context).is_ready();
            // The socket is empty, so only the machine has the data.
            assert!(is_ready || expected == b'c');
        }
        let mut scratch = [0; 8];
        let error = server.try_receive(&mut [], &mut scratch).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(matches!(pin!(server.readable()).poll(&mut context), Poll::Pending));
    });
}

#[test]
fn slow_reader_is_awaited_while_accepted_data_is_sent() {
    on_a_core(async {
        let (client, server) = pair().await;
        let data = vec![7; 1 << 20];
        let mut taken = 0;
        while let Ok(count) = server.try_send(&[Piece::Bytes(&data)]) {
            assert!(count <= SEND_LIMIT);
            taken += count;
        }
        for _ in 0..100 {
            let error = server.try_send(&[Piece::Bytes(&data)]).expect_err("it keeps ever more");
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
        // From here on the server waits only for requests.
        let collect = async {
            let (mut scratch, mut received) = (vec![0; 65_536], 0);
            while received < taken {
                received += receive(&client, &mut [], &mut scratch).await.unwrap();
            }
            client.try_send(&[Piece::Bytes(b"thanks")]).unwrap();
        };
        let mut scratch = [0; 64];
        let (received, ()) = tokio::join!(receive(&server, &mut [], &mut scratch), collect);
        assert_eq!(received.unwrap(), 6);
    });
}

#[test]
fn last_accepted_data_is_sent_before_close() {
    on_a_core(async {
        let (client, server) = pair().await;
        let data = vec![7; 1 << 20];
        let mut taken = 0;
        while let Ok(count) = server.try_send(&[Piece::Bytes(&data)]) {
            taken += count;
        }
        let close = async {
            server.close().await;
            drop(server);
        };
        let collect = async {
            let (mut scratch, mut received) = (vec![0; 65_536], 0);
            loop {
                match receive(&client, &mut [], &mut scratch).await.unwrap() {
                    0 => break received,
                    count => received += count,
                }
            }
        };
        assert_eq!(tokio::join!(close, collect).1, taken);
    });
}

#[test]
fn rfc8446_4_6_3_new_keys_are_followed() {
    on_a_core(async {
        let (mut machine, socket, server) = pair_with_machine().await;
        let mut scratch = [0; 64];
        for round in 0..3 {
            machine.connection.refresh_traffic_keys().unwrap();
            machine.send(&[Piece::Bytes(&[round; 5])], writing(&socket)).unwrap();
            assert_eq!(receive(&server, &mut [], &mut scratch).await.unwrap(), 5);
            assert_eq!(scratch[..5], [round; 5]);
            server.try_send(&[Piece::Bytes(&[round; 9])]).unwrap();
            let mut own = [0; 64];
            // Before the answer there are only messages of the handshake, without data.
            let count = loop {
                match machine.receive(&mut own, &mut [], reading(&socket)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    other => break other.unwrap(),
                }
            };
            assert_eq!(own[..count], [round; 9]);
        }
    });
}

#[test]
fn plain_bytes_are_refused_with_alert() {
    on_a_core(async {
        let authority = Authority::new("ours");
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x43; 48], &[0x16, 3, 1, 0xff, 0xff, 1]] {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            socket.write_all(garbage).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
            let accepted = Stream::from_std(listener.accept().await.unwrap().0).unwrap();
            let error = accepted.accept_tls(authority.server(None)).await.err().unwrap();
            assert!(cause(&error).is_some(), "{error}");
            let mut reported = Vec::new();
            socket.read_to_end(&mut reported).unwrap();
            // RFC 8446 §6: a fatal alert.
            assert_eq!((reported[0], reported[5]), (21, 2), "{reported:02x?}");
        }
        let (connecting, accepted) = sockets().await;
        drop(connecting);
        let error = accepted.accept_tls(authority.server(None)).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn bytes_that_were_changed_on_the_way_end_the_stream() {
    on_a_core(async {
        let (mut machine, mut socket, server) = pair_with_machine().await;
        let mut wire = Vec::new();
        machine
            .send(&[Piece::Bytes(b"secret")], |slices| {
                slices.iter().for_each(|slice| wire.extend_from_slice(slice));
                Ok(slices.iter().map(|slice| slice.len()).sum())
            })
            .unwrap();
        assert!(!wire.windows(6).any(|bytes| bytes == b"secret"));
        wire[7] ^= 1;
        socket.write_all(&wire).unwrap();
        let error = receive(&server, &mut [], &mut [0; 64]).await.unwrap_err();
        assert_eq!(cause(&error), Some(&rustls::Error::DecryptError));
    });
}

#[test]
fn both_ends_report_reason_of_refusal() {
    on_a_core(async {
        let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
        let (client, server) = shake_hands(ours.server(None), theirs.client(None)).await;
        let client = client.err().unwrap();
        assert_eq!(cause(&client), Some(&CertificateError::UnknownIssuer.into()));
        let reported = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
        assert_eq!(cause(&server.err().unwrap()), Some(&reported));

        let server = || ours.server(Some(&ours));
        for (chain, expected) in [
            (None, AlertDescription::CertificateRequired),
            (Some(theirs.issue("client")), AlertDescription::UnknownCA),
        ] {
            // The client completes its part before the server has checked it.
            let refused = async |client: Stream| {
                client.try_send(&[Piece::Bytes(&[0; 48])]).unwrap();
                receive(&client, &mut [], &mut [0; 64]).await.unwrap_err()
            };
            let (connecting, accepted) = sockets().await;
            let config = ours.client(chain);
            let client =
                async { refused(connecting.connect_tls(config, name()).await.unwrap()).await };
            let (client, server) = tokio::join!(client, accepted.accept_tls(server()));
            assert!(cause(&server.err().unwrap()).is_some());
            assert_eq!(cause(&client), Some(&rustls::Error::AlertReceived(expected)));
        }

        let chain = ours.issue("client");
        let certificate = chain.0[0].clone();
        let (client, server) = shake_hands(server(), ours.client(Some(chain))).await;
        assert_eq!(server.unwrap().peer_certificates(), [certificate]);
        assert_eq!(client.unwrap().peer_certificates().len(), 1);
    });
}
