//! The NBD client with arbitrary servers. It reports the same events wherever the bytes are cut, and whether or not
//! data is read directly into its buffers. Each request ends at most once, with exactly the requested data.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sarsen_block::Buffer;
use sarsen_proto::nbd::client::Answer;
use sarsen_proto::nbd::{Client, Event, Request};

/// Lengths of the reads that the client sends as soon as an export is selected. It also sends one request of each other
/// kind.
const READS: [u32; 4] = [0, 1, 512, 40_000];

/// The metadata contexts that the client asks for in every second run.
const CONTEXTS: [&str; 2] = ["base:allocation", "qemu:dirty-bitmap:s1"];
/// Length of the range whose status is requested.
const STATUS_LENGTH: u32 = 8192;

/// A valid server's bytes between its greeting and [`HELLO`]: it selects both contexts.
const SELECTED: &[u8] = b"\
    \x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x00\
    \x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x0a\x00\x00\x00\x04\x00\x00\x00\x13\
    \x00\x00\x00\x01base:allocation\
    \x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x0a\x00\x00\x00\x04\x00\x00\x00\x18\
    \x00\x00\x00\x02qemu:dirty-bitmap:s1\
    \x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x0a\x00\x00\x00\x01\x00\x00\x00\x00";

/// A valid server's greeting.
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";

/// A valid server's bytes after its greeting, up to the first reply.
const HELLO: &[u8] = b"\
    \x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x03\x00\x00\x00\x0c\
    \x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x6d\
    \x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x01\x00\x00\x00\x00";

fn requests(client: &Client<usize>) -> Vec<Request> {
    let mut requests: Vec<_> =
        READS.iter().map(|&length| Request::Read { offset: 0, length }).collect();
    let data = Buffer::copy_of(&[1; 2000]);
    requests.push(Request::Write { offset: 0, data: data.into(), durable: true });
    requests.push(Request::Flush);
    requests.push(Request::Trim { offset: 0, length: 512 });
    let (durable, may_punch) = (false, true);
    requests.push(Request::WriteZeroes { offset: 0, length: 512, durable, may_punch });
    if client.contexts().count() > 0 {
        requests.push(Request::Status { offset: 0, length: STATUS_LENGTH });
    }
    requests
}

/// A client's results for a server's bytes.
struct Told {
    ended: Vec<(usize, Result<Vec<u8>, u32>)>,
    requests: usize,
    export: Option<u64>,
    error: Option<String>,
}

impl Told {
    fn take(&mut self, client: &mut Client<usize>) {
        while let Some(event) = client.poll_event() {
            match event {
                // The target asks for no TLS.
                Event::StartTls => unreachable!("no TLS was required"),
                Event::Ready(export) => {
                    assert!(self.export.is_none(), "ready twice");
                    assert!(export.minimum_block.is_power_of_two());
                    self.export = Some(export.bytes);
                    let requests = requests(client);
                    self.requests = requests.len();
                    for (token, request) in requests.into_iter().enumerate() {
                        client.request(request, token);
                    }
                }
                Event::Completed { token, result } => {
                    let before = self.ended.iter().any(|(other, _)| *other == token);
                    assert!(!before, "request {token} ended twice");
                    let contexts = client.contexts().count();
                    let result = result.map(|answer| content(token, answer, contexts));
                    self.ended.push((token, result.map_err(|error| error.code.0)));
                }
            }
        }
    }
}

/// Checks an answer, and returns its content.
fn content(token: usize, answer: Answer, contexts: usize) -> Vec<u8> {
    let wanted = READS.get(token).map(|&length| length as usize);
    match answer {
        Answer::Done => {
            assert!(wanted.is_none());
            Vec::new()
        }
        Answer::Data(data) => {
            assert_eq!(Some(data.len()), wanted);
            data.to_vec()
        }
        Answer::Status(status) => {
            assert!(wanted.is_none() && status.len() == contexts);
            for extents in &status {
                let length: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
                assert!(extents.iter().all(|extent| extent.length > 0));
                assert!((1..=u64::from(STATUS_LENGTH)).contains(&length));
            }
            format!("{status:?}").into_bytes()
        }
    }
}

fn play<'a>(contexts: &[&str], pieces: impl Iterator<Item = &'a [u8]>, lands: bool) -> Told {
    let mut client = Client::with_contexts("fuzz", contexts).expect("short names");
    let mut reported = Told { ended: Vec::new(), requests: 0, export: None, error: None };
    for mut piece in pieces {
        if lands && let Some(landing) = client.landing() {
            let count = landing.len().min(piece.len());
            landing[..count].copy_from_slice(&piece[..count]);
            client.landed(count);
            piece = &piece[count..];
        }
        let result = client.handle_input(piece);
        reported.take(&mut client);
        if let Err(error) = result {
            reported.error = Some(error.to_string());
            break;
        }
    }
    assert_eq!(client.open_requests(), reported.requests - reported.ended.len());
    reported
}

fuzz_target!(|input: &[u8]| {
    let [choice, bytes @ ..] = input else { return };
    let contexts = if choice & 2 == 0 { &[][..] } else { &CONTEXTS };
    let hello = match choice & 3 {
        0 => [GREETING, HELLO].concat(),
        2 => [GREETING, SELECTED, HELLO].concat(),
        _ => Vec::new(),
    };
    let stream = [&hello[..], bytes].concat();
    // A greeting that arrives whole triggers requests only after the bytes that follow it are processed. So all three
    // runs cut the stream after the hello.
    let (head, rest) = stream.split_at(hello.len());
    let step = usize::from(choice >> 2).max(1);
    let whole = play(contexts, [head, rest].into_iter(), false);
    for lands in [false, true] {
        let cut = play(contexts, head.chunks(step).chain(rest.chunks(step)), lands);
        if hello.is_empty() {
            // Requests begin at another moment, so replies may have no request.
            continue;
        }
        assert_eq!((cut.export, &cut.error), (whole.export, &whole.error));
        assert!(cut.ended == whole.ended);
    }
});
