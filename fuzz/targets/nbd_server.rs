//! The NBD server with arbitrary clients. It reports the same events wherever the bytes are cut, and whether or not
//! data is received directly into its buffers. Each request has exactly one reply, and the memory stays within the
//! documented bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sarsen_block::{Buffer, Data, Piece};
use sarsen_proto::nbd::server::{
    Event, Export, Exports, ListedExport, Operation, Outcome, Refusal, Server, Settings,
    StatusExtent, Tls,
};
use sarsen_wire::nbd::ErrorCode;

const BYTES: u64 = 1 << 20;
const SETTINGS: Settings = Settings {
    tls: Tls::Optional,
    maximum_payload: 64 * 1024,
    maximum_requests: 3,
    maximum_memory: 100_000,
};
/// The longest payload that the server skips without extended headers.
const SKIPPED: u64 = 32 << 20;
/// The byte of all data that reads return, unless it is zero. No reply begins with it.
const FILLER: u8 = 0xaa;

/// The client's flags, and an option that selects the default export, after others.
const SIMPLE: &[u8] = b"\0\0\0\x03\
    IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
const STRUCTURED: &[u8] = b"\0\0\0\x03\
    IHAVEOPT\0\0\0\x08\0\0\0\0\
    IHAVEOPT\0\0\0\x0a\0\0\0\x32\0\0\0\0\0\0\0\x02\0\0\0\x0fbase:allocation\
    \0\0\0\x13qemu:dirty-bitmap:a\
    IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
const EXTENDED: &[u8] = b"\0\0\0\x03\
    IHAVEOPT\0\0\0\x0b\0\0\0\0\
    IHAVEOPT\0\0\0\x0a\0\0\0\x1b\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation\
    IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";

struct Disks;

impl Exports for Disks {
    fn find(&mut self, name: &str) -> Result<Export, Refusal> {
        let export =
            Export { reports_allocation: true, can_trim: true, ..Export::new(name, BYTES) };
        match name {
            "" => {
                let dirty_bitmaps = vec!["a".to_owned(), "b".to_owned()];
                Ok(Export { can_cache: true, can_fast_zero: true, dirty_bitmaps, ..export })
            }
            "r" => Ok(Export { read_only: true, ..export }),
            "b" => Ok(Export { minimum_block: 512, ..export }),
            "t" => Err(Refusal::TlsRequired),
            "p" => Err(Refusal::Policy),
            _ => Err(Refusal::Unknown),
        }
    }

    fn list(&mut self) -> Vec<ListedExport> {
        vec![ListedExport { name: "r".to_owned(), description: "read-only".to_owned() }]
    }
}

/// A server's results for a client's bytes.
#[derive(PartialEq, Eq)]
struct Reported {
    events: Vec<String>,
    error: Option<String>,
    /// Number of replies after the handshake.
    replies: usize,
}

/// A server, and the driver's part of the connection.
struct Driver {
    server: Server,
    reported: Reported,
    open: Vec<(u64, Operation)>,
    is_selected: bool,
}

impl Driver {
    fn new() -> Self {
        let reported = Reported { events: Vec::new(), error: None, replies: 0 };
        let server = Server::new(SETTINGS);
        Self { server, reported, open: Vec::new(), is_selected: false }
    }

    /// Passes bytes on. Completes requests and sends output whenever the server takes no more input.
    fn receive(&mut self, mut bytes: &[u8], lands: bool) {
        loop {
            if lands && let Some(landing) = self.server.landing() {
                let count = landing.len().min(bytes.len());
                landing[..count].copy_from_slice(&bytes[..count]);
                self.server.landed(count);
                bytes = &bytes[count..];
            }
            let result = self.server.handle_input(bytes, &mut Disks);
            self.take_events();
            match result {
                Ok(count) => {
                    self.check_memory();
                    bytes = &bytes[count..];
                }
                Err(error) => {
                    self.reported.error = Some(error.to_string());
                    return;
                }
            }
            if bytes.is_empty() {
                return;
            }
            assert!(!self.server.wants_input(), "input was ignored");
            self.complete_all();
            if !self.server.wants_input() {
                return;
            }
        }
    }

    fn check_memory(&self) {
        let bound = if self.is_selected {
            SETTINGS.maximum_memory + Buffer::memory_for(SETTINGS.maximum_payload as usize) + 4096
        } else {
            // An option, contexts with the name of their export, and replies.
            (16 + 16 + 8) * 1024
        };
        assert!(self.server.memory() <= bound, "{} bytes", self.server.memory());
        let open = self.open.iter().map(|(_, operation)| match operation {
            Operation::Write { data, .. } => data.memory(),
            Operation::Read { length, .. } => Buffer::memory_for(*length as usize),
            _ => 0,
        });
        assert!(open.sum::<usize>() <= self.server.memory(), "open requests do not count");
    }

    fn take_events(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Request { task, operation } => {
                    let data = match &operation {
                        Operation::Write { data, .. } => format!("{:?}", &data[..]),
                        _ => String::new(),
                    };
                    self.reported.events.push(format!("{operation:?} {data}"));
                    self.open.push((task, operation));
                }
                event => {
                    if matches!(event, Event::Selected(_)) {
                        self.is_selected = true;
                    }
                    self.reported.events.push(format!("{event:?}"));
                }
            }
        }
        assert!(self.open.len() <= SETTINGS.maximum_requests);
    }

    /// Sends all output, and completes the open requests. Each of them has one reply.
    fn complete_all(&mut self) {
        self.reported.replies += self.send();
        for (task, operation) in std::mem::take(&mut self.open) {
            self.server.complete(task, execute(operation));
            if self.reported.error.is_none() {
                assert_eq!(self.send(), 1, "a request has one reply");
                self.reported.replies += 1;
            }
        }
        self.take_events();
    }

    /// Sends all output. Returns the number of replies in it, if an export is selected.
    fn send(&mut self) -> usize {
        let mut bytes = Vec::new();
        while !self.server.output().is_empty() {
            let mut pieces = Vec::new();
            self.server.output().pieces(&mut pieces, 3);
            let before = bytes.len();
            for piece in pieces {
                let Piece::Bytes(piece) = piece else { panic!("no memory is shared") };
                bytes.extend_from_slice(piece);
            }
            let count = bytes.len() - before;
            self.server.output().sent(count);
        }
        if self.is_selected { count_replies(&bytes) } else { 0 }
    }
}

/// Returns a result. It depends on the operation only.
fn execute(operation: Operation) -> Result<Outcome, ErrorCode> {
    match operation {
        Operation::Read { offset, length } if offset % 3 == 0 => {
            Ok(Outcome::Data(Data::Zeroes(length as usize)))
        }
        Operation::Read { length, .. } => {
            let mut data = Buffer::for_overwrite(length as usize);
            data.fill(FILLER);
            Ok(Outcome::Data(data.into()))
        }
        Operation::BlockStatus { length, contexts, maximum_extents, .. } => {
            let extents = (0..length.min(2 * maximum_extents as u64))
                .map(|index| StatusExtent { length: 1 + index % 5, flags: index as u32 % 3 });
            Ok(Outcome::Status(vec![extents.collect(); contexts.len()]))
        }
        Operation::WriteZeroes { fast: true, .. } => Err(ErrorCode::NotSupported),
        Operation::Trim { .. } => Err(ErrorCode::Io),
        _ => Ok(Outcome::Done),
    }
}

/// Returns the number of replies. Only those with the status of several contexts have several chunks. Replies to
/// options may precede them.
fn count_replies(mut bytes: &[u8]) -> usize {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
    let mut count = 0;
    while let Some(magic) = bytes.first_chunk::<4>() {
        let length = match magic {
            // The greeting, and replies to options.
            b"NBDM" => 18,
            [0, 3, 0xe8, 0x89] => 20 + number(&bytes[16..20]),
            [0x67, 0x44, 0x66, 0x98] => {
                count += 1;
                let data = bytes[16..].iter().take_while(|byte| [0, FILLER].contains(*byte));
                16 + data.count()
            }
            [0x66, 0x8e, 0x33, 0xef] => {
                count += last_chunk(bytes);
                20 + number(&bytes[16..20])
            }
            [0x6e, 0x8a, 0x27, 0x8c] => {
                count += last_chunk(bytes);
                32 + number(&bytes[24..32])
            }
            // The reply to NBD_OPT_EXPORT_NAME has no head; no request precedes it.
            _ if count == 0 => return count_replies(&bytes[1..]),
            _ => panic!("no reply: {bytes:?}"),
        };
        bytes = &bytes[length..];
    }
    assert!(bytes.is_empty() || count == 0, "bytes after the replies");
    count
}

/// Returns 1 for the last chunk of a reply, and 0 for another one, which has the status of a context.
fn last_chunk(bytes: &[u8]) -> usize {
    match (&bytes[4..6], &bytes[6..8]) {
        ([0, 1], _) => 1,
        ([0, 0], [0, 5 | 6]) => 0,
        _ => panic!("neither the last chunk nor a status: {:?}", &bytes[..8]),
    }
}

/// The requests in a stream.
struct Requests {
    /// Number of requests whose head is complete.
    count: usize,
    /// Whether the payload of the last one is incomplete.
    is_incomplete: bool,
    /// Whether the server accepts the stream up to its end, or up to NBD_CMD_DISC.
    is_valid: bool,
}

fn count_requests(mut bytes: &[u8], is_extended: bool) -> Requests {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let (magic, head): (&[u8], _) =
        if is_extended { (b"\x21\xe4\x1c\x71", 32) } else { (b"\x25\x60\x95\x13", 28) };
    let mut requests = Requests { count: 0, is_incomplete: false, is_valid: true };
    while bytes.len() >= head {
        if !bytes.starts_with(magic) {
            return Requests { is_valid: false, ..requests };
        }
        if bytes[6..8] == [0, 2] {
            break;
        }
        let has_payload = if is_extended { bytes[5] & 0x20 != 0 } else { bytes[6..8] == [0, 1] };
        let payload = if has_payload { number(&bytes[24..head]) } else { 0 };
        let limit = if is_extended { SETTINGS.maximum_payload.into() } else { SKIPPED };
        if payload > limit {
            return Requests { is_valid: false, ..requests };
        }
        requests.count += 1;
        bytes = &bytes[head..];
        match bytes.split_at_checked(payload as usize) {
            Some((_, rest)) => bytes = rest,
            None => return Requests { is_incomplete: true, ..requests },
        }
    }
    requests
}

fn play<'a>(pieces: impl Iterator<Item = &'a [u8]>, lands: bool) -> Reported {
    let mut driver = Driver::new();
    for piece in pieces {
        driver.receive(piece, lands);
        if driver.reported.error.is_some() {
            break;
        }
    }
    let is_over = driver.reported.error.is_some();
    driver.complete_all();
    assert!(is_over || driver.server.open_requests() <= 1, "an incomplete write may be open");
    driver.reported
}

fuzz_target!(|input: &[u8]| {
    let [choice, bytes @ ..] = input else { return };
    let hello = [SIMPLE, STRUCTURED, EXTENDED, &[]][usize::from(choice & 3)];
    let stream = [hello, bytes].concat();
    let step = usize::from(choice >> 2) + 1;
    let whole = play([&stream[..]].into_iter(), false);
    for lands in [false, true] {
        let cut = play(stream.chunks(step), lands);
        assert!(cut.events == whole.events);
        assert_eq!(cut.error, whole.error);
    }
    if !hello.is_empty() {
        let Requests { count, is_incomplete, is_valid } = count_requests(bytes, hello == EXTENDED);
        assert_eq!(whole.error.is_none(), is_valid, "{:?}", whole.error);
        let replies = whole.replies;
        let is_right = replies == count || (is_incomplete && replies + 1 == count);
        assert!(!is_valid || is_right, "{replies} replies to {count} requests");
    }
});
