//! The NBD client with arbitrary servers. It reports the same events wherever the bytes are cut, and whether or not
//! data is read directly into its buffers. Each request ends at most once, with exactly the requested data.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sarsen_block::Buffer;
use sarsen_proto::nbd::{Client, Event, Request};

/// Lengths of the reads that the client sends as soon as an export is selected. It also sends one request of each other
/// kind.
const READS: [u32; 4] = [0, 1, 512, 40_000];

/// A valid server's bytes, up to the first reply.
const HELLO: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03\
    \x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x03\x00\x00\x00\x0c\
    \x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x6d\
    \x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x01\x00\x00\x00\x00";

fn requests() -> Vec<Request> {
    let mut requests: Vec<_> =
        READS.iter().map(|&length| Request::Read { offset: 0, length }).collect();
    let data = Buffer::copy_of(&[1; 2000]);
    requests.push(Request::Write { offset: 0, data, durable: true });
    requests.push(Request::Flush);
    requests.push(Request::Trim { offset: 0, length: 512 });
    let (durable, may_punch) = (false, true);
    requests.push(Request::WriteZeroes { offset: 0, length: 512, durable, may_punch });
    requests
}

/// A client's results for a server's bytes.
struct Told {
    ended: Vec<(usize, Result<Vec<u8>, u32>)>,
    export: Option<u64>,
    error: Option<String>,
}

impl Told {
    fn take(&mut self, client: &mut Client<usize>) {
        while let Some(event) = client.poll_event() {
            match event {
                Event::Ready(export) => {
                    assert!(self.export.is_none(), "ready twice");
                    assert!(export.minimum_block.is_power_of_two());
                    self.export = Some(export.bytes);
                    for (token, request) in requests().into_iter().enumerate() {
                        client.request(request, token);
                    }
                }
                Event::Completed { token, result } => {
                    let before = self.ended.iter().any(|(other, _)| *other == token);
                    assert!(!before, "request {token} ended twice");
                    if let Ok(data) = &result {
                        let wanted = READS.get(token).copied().unwrap_or(0);
                        assert_eq!(data.len(), wanted as usize);
                    }
                    let result = result.map(|data| data.to_vec()).map_err(|error| error.0);
                    self.ended.push((token, result));
                }
            }
        }
    }
}

fn play<'a>(pieces: impl Iterator<Item = &'a [u8]>, lands: bool) -> Told {
    let mut client = Client::new("fuzz").expect("a short name");
    let mut reported = Told { ended: Vec::new(), export: None, error: None };
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
    let open = if reported.export.is_some() { requests().len() - reported.ended.len() } else { 0 };
    assert_eq!(client.open_requests(), open);
    reported
}

fuzz_target!(|input: &[u8]| {
    let [choice, bytes @ ..] = input else { return };
    let hello = if choice & 1 == 0 { HELLO } else { &[] };
    let stream = [hello, bytes].concat();
    // A greeting that arrives whole triggers requests only after the bytes that follow it are processed. So all three
    // runs cut the stream after the hello.
    let (head, rest) = stream.split_at(hello.len());
    let step = usize::from(choice >> 1).max(1);
    let whole = play([head, rest].into_iter(), false);
    for lands in [false, true] {
        let cut = play(head.chunks(step).chain(rest.chunks(step)), lands);
        if hello.is_empty() {
            // Requests begin at another moment, so replies may have no request.
            continue;
        }
        assert_eq!((cut.export, &cut.error), (whole.export, &whole.error));
        assert!(cut.ended == whole.ended);
    }
});
