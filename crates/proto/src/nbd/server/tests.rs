//! Tests of the server's end. Each names the heading of the document that it checks.

mod conversation;
mod handshake;
mod transmission;

use sarsen_block::Piece;
use sarsen_wire::nbd::{
    self, BASE_ALLOCATION, CommandCode, EXTENDED_REQUEST_MAGIC, ExtendedRequest, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionCode, OptionReply, OptionRequest, REQUEST_MAGIC, ReplyCode,
};
use zerocopy::{FromBytes, IntoBytes};

use super::*;

const BYTES: u64 = 1 << 20;
/// The client's flags: fixed newstyle, no zeroes.
const CLIENT_FLAGS: [u8; 4] = [0, 0, 0, 3];

/// The exports of the tests: all have [`BYTES`] bytes.
struct Disks;

impl Exports for Disks {
    fn find(&mut self, name: &str) -> Result<Export, Refusal> {
        let export = Export { reports_allocation: true, ..Export::new(name, BYTES) };
        match name {
            "" => Ok(Export { name: "disk".to_owned(), ..export }),
            "disk" => Ok(Export {
                description: "a disk".to_owned(),
                rotational: true,
                can_trim: true,
                can_fast_zero: true,
                can_multi_conn: true,
                can_cache: true,
                ..export
            }),
            "plain" => Ok(Export { reports_allocation: false, ..export }),
            "read-only" => Ok(Export { read_only: true, can_trim: true, ..export }),
            "snapshot" => Ok(Export { read_only: true, dirty_bitmaps: bitmaps(2), ..export }),
            "snapshots" => {
                let dirty_bitmaps = bitmaps(MAXIMUM_CONTEXTS);
                Ok(Export { read_only: true, dirty_bitmaps, ..export })
            }
            "blocks" => Ok(Export { minimum_block: 512, can_trim: true, ..export }),
            "tls-only" => Err(Refusal::TlsRequired),
            "secret" => Err(Refusal::Policy),
            "leaving" => Err(Refusal::Shutdown),
            _ => Err(Refusal::Unknown),
        }
    }

    fn list(&mut self) -> Vec<ListedExport> {
        let export = |name: &str, description: &str| ListedExport {
            name: name.to_owned(),
            description: description.to_owned(),
        };
        vec![export("disk", "a disk"), export("plain", "")]
    }
}

/// Returns the names `s1`, `s2` and so on.
fn bitmaps(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("s{number}")).collect()
}

fn sent(server: &mut Server) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !server.output().is_empty() {
        let mut pieces = Vec::new();
        server.output().pieces(&mut pieces, 3);
        let before = bytes.len();
        for piece in pieces {
            match piece {
                Piece::Bytes(slice) => bytes.extend_from_slice(slice),
                Piece::Shared { memory, offset, length } => {
                    let start = bytes.len();
                    bytes.resize(start + length, 0);
                    memory.copy_out(offset, &mut bytes[start..]);
                }
            }
        }
        let count = bytes.len() - before;
        server.output().sent(count);
    }
    bytes
}

fn option(option: OptionCode, data: &[u8]) -> Vec<u8> {
    let head = OptionRequest {
        magic: OPTION_MAGIC.into(),
        option: option.0.into(),
        length: (data.len() as u32).into(),
    };
    [head.as_bytes(), data].concat()
}

fn string(string: &str) -> Vec<u8> {
    [&(string.len() as u32).to_be_bytes()[..], string.as_bytes()].concat()
}

/// Returns the data of NBD_OPT_INFO and NBD_OPT_GO.
fn info_data(name: &str, requested: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((requested.len() as u16).to_be_bytes());
    requested.iter().for_each(|info| data.extend(info.to_be_bytes()));
    data
}

fn go(name: &str) -> Vec<u8> {
    option(OptionCode::Go, &info_data(name, &[]))
}

/// Returns the data of NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

fn set_context(name: &str) -> Vec<u8> {
    option(OptionCode::SetMetaContext, &context_data(name, &[BASE_ALLOCATION]))
}

/// Returns a server after the exchange of flags, with nothing left to send.
fn greeted(tls: Tls) -> Server {
    let mut server = Server::new(Settings { tls, ..Settings::default() });
    let greeting = sent(&mut server);
    assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
    receive(&mut server, &CLIENT_FLAGS).unwrap();
    server
}

/// Passes bytes to the server, all of which it must consume.
fn receive(server: &mut Server, bytes: &[u8]) -> Result<(), ServerError> {
    let count = server.handle_input(bytes, &mut Disks)?;
    assert_eq!(count, bytes.len(), "not all bytes were consumed");
    Ok(())
}

/// Sends an option and returns the replies.
fn negotiate(server: &mut Server, bytes: &[u8]) -> Vec<(ReplyCode, Vec<u8>)> {
    receive(server, bytes).unwrap();
    parse_replies(&sent(server))
}

fn parse_replies(mut bytes: &[u8]) -> Vec<(ReplyCode, Vec<u8>)> {
    let mut replies = Vec::new();
    while let Ok((head, rest)) = OptionReply::read_from_prefix(bytes) {
        assert_eq!(head.magic.get(), OPTION_REPLY_MAGIC);
        let (data, rest) = rest.split_at(head.length.get() as usize);
        replies.push((ReplyCode(head.reply.get()), data.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "bytes after the replies: {bytes:?}");
    replies
}

fn codes(replies: &[(ReplyCode, Vec<u8>)]) -> Vec<ReplyCode> {
    replies.iter().map(|(code, _)| *code).collect()
}

/// Returns a server with an export, after these options, with nothing left to send.
fn selected(name: &str, options: &[Vec<u8>], settings: Settings) -> Server {
    let mut server = Server::new(settings);
    receive(&mut server, &CLIENT_FLAGS).unwrap();
    for bytes in options {
        receive(&mut server, bytes).unwrap();
    }
    receive(&mut server, &go(name)).unwrap();
    assert!(matches!(server.poll_event(), Some(Event::Selected(_))));
    sent(&mut server);
    server
}

fn simple(name: &str) -> Server {
    selected(name, &[], Settings::default())
}

fn structured(name: &str) -> Server {
    let options = [option(OptionCode::StructuredReply, &[]), set_context(name)];
    selected(name, &options, Settings::default())
}

fn extended(name: &str) -> Server {
    let options = [option(OptionCode::ExtendedHeaders, &[]), set_context(name)];
    selected(name, &options, Settings::default())
}

fn request(command: CommandCode, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let request = nbd::Request {
        magic: REQUEST_MAGIC.into(),
        flags: flags.into(),
        command: command.0.into(),
        cookie: cookie.into(),
        offset: offset.into(),
        length: length.into(),
    };
    request.as_bytes().to_vec()
}

fn extended_request(
    command: CommandCode,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u64,
) -> Vec<u8> {
    let request = ExtendedRequest {
        magic: EXTENDED_REQUEST_MAGIC.into(),
        flags: flags.into(),
        command: command.0.into(),
        cookie: cookie.into(),
        offset: offset.into(),
        length: length.into(),
    };
    request.as_bytes().to_vec()
}

/// Returns the next event, which is a request.
fn next_request(server: &mut Server) -> (u64, Operation) {
    match server.poll_event() {
        Some(Event::Request { task, operation }) => (task, operation),
        other => panic!("no request: {other:?}"),
    }
}

/// Returns the bytes of a simple reply.
fn simple_reply(cookie: u64, error: ErrorCode) -> Vec<u8> {
    let parts = [0x6744_6698_u32.to_be_bytes(), error.0.to_be_bytes()].concat();
    [&parts[..], &cookie.to_be_bytes()].concat()
}

/// Returns a chunk, in either format, as one that is not the last of its reply.
fn not_last(mut chunk: Vec<u8>) -> Vec<u8> {
    chunk[5] = 0;
    chunk
}

/// Returns the bytes of a structured chunk that is the last of its reply.
fn chunk(cookie: u64, kind: u16, payload: &[&[u8]]) -> Vec<u8> {
    let payload = payload.concat();
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef, 0, 1];
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    [bytes, payload].concat()
}

/// Returns the bytes of an extended chunk that is the last of its reply.
fn extended_chunk(cookie: u64, kind: u16, offset: u64, payload: &[&[u8]]) -> Vec<u8> {
    let payload = payload.concat();
    let mut bytes = vec![0x6e, 0x8a, 0x27, 0x8c, 0, 1];
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend((payload.len() as u64).to_be_bytes());
    [bytes, payload].concat()
}
