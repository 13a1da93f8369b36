//! Whole conversations, among them with the project's own client.

use proptest::prelude::*;

use super::super::super::client::{self, Client};
use super::*;

/// A disk in memory that carries out operations.
struct Disk(Vec<u8>);

impl Disk {
    fn range(offset: u64, length: u64) -> std::ops::Range<usize> {
        offset as usize..(offset + length) as usize
    }

    fn execute(&mut self, operation: Operation) -> Result<Outcome, ErrorCode> {
        match operation {
            Operation::Read { offset, length } => {
                let bytes = &self.0[Self::range(offset, length)];
                let is_zero = bytes.iter().all(|&byte| byte == 0);
                let data =
                    if is_zero { Data::Zeroes(bytes.len()) } else { Buffer::copy_of(bytes).into() };
                return Ok(Outcome::Data(data));
            }
            Operation::Write { offset, data, .. } => {
                self.0[Self::range(offset, data.len() as u64)].copy_from_slice(&data);
            }
            Operation::WriteZeroes { fast: true, .. } => return Err(ErrorCode::NotSupported),
            Operation::WriteZeroes { offset, length, .. }
            | Operation::Trim { offset, length, .. } => {
                self.0[Self::range(offset, length)].fill(0);
            }
            Operation::BlockStatus { length, .. } => {
                return Ok(Outcome::Status(vec![vec![StatusExtent { length, flags: 0 }]]));
            }
            Operation::Flush | Operation::Cache { .. } => {}
        }
        Ok(Outcome::Done)
    }
}

/// Passes bytes to the server as a driver does: into the landing if there is one. Returns the events.
fn deliver(server: &mut Server, mut bytes: &[u8]) -> Result<Vec<Event>, ServerError> {
    if let Some(landing) = server.landing() {
        let count = landing.len().min(bytes.len());
        landing[..count].copy_from_slice(&bytes[..count]);
        server.landed(count);
        bytes = &bytes[count..];
    }
    let count = server.handle_input(bytes, &mut Disks)?;
    assert!(count == bytes.len() || !server.wants_input(), "input was ignored");
    Ok(std::iter::from_fn(|| server.poll_event()).collect())
}

/// Exchanges all output of both ends in steps of this length. Returns the client's events.
fn exchange(
    client: &mut Client<u32>,
    server: &mut Server,
    disk: &mut Disk,
    step: usize,
) -> Vec<client::Event<u32>> {
    let mut events = Vec::new();
    loop {
        let mut bytes = Vec::new();
        while !client.output().is_empty() {
            let mut pieces = Vec::new();
            client.output().pieces(&mut pieces, 1);
            let [Piece::Bytes(piece)] = pieces[..] else { panic!("clients share no memory") };
            bytes.extend_from_slice(piece);
            let count = piece.len();
            client.output().sent(count);
        }
        for part in bytes.chunks(step) {
            for event in deliver(server, part).unwrap() {
                if let Event::Request { task, operation } = event {
                    let result = disk.execute(operation);
                    server.complete(task, result);
                }
            }
        }
        let replies = sent(server);
        for part in replies.chunks(step) {
            client.handle_input(part).unwrap();
        }
        events.extend(std::iter::from_fn(|| client.poll_event()));
        if bytes.is_empty() && replies.is_empty() {
            return events;
        }
    }
}

#[test]
fn own_client_executes_all_requests() {
    use client::{Answer, Event, Request};
    let steps = [1, 7, 4096, usize::MAX];
    let contexts: [&[&str]; 2] = [&[], &["qemu:dirty-bitmap:none", BASE_ALLOCATION]];
    for (step, contexts) in steps.into_iter().flat_map(|step| contexts.map(|of| (step, of))) {
        let mut disk = Disk(vec![1; BYTES as usize]);
        let mut client = Client::with_contexts("disk", contexts).unwrap();
        let mut server = Server::new(Settings::default());
        let events = exchange(&mut client, &mut server, &mut disk, step);
        let [Event::Ready(export)] = &events[..] else { panic!("not ready: {events:?}") };
        assert_eq!((export.bytes, export.preferred_block), (BYTES, Some(4096)));
        assert!(export.has(flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES));

        let data = Buffer::copy_of(&[7; 50_000]);
        let (durable, may_punch) = (true, true);
        let requests = [
            Request::Write { offset: 1000, data: data.into(), durable },
            Request::Read { offset: 999, length: 50_002 },
            Request::Flush,
            Request::WriteZeroes { offset: 0, length: 600_000, durable, may_punch },
            Request::Trim { offset: 600_000, length: 1000 },
            Request::Read { offset: 0, length: 601_001 },
            Request::Read { offset: BYTES - 1, length: 2 },
        ];
        for (token, request) in (0..).zip(requests) {
            client.request(request, token);
        }
        let mut results = Vec::new();
        for event in exchange(&mut client, &mut server, &mut disk, step) {
            let Event::Completed { token, result } = event else { panic!("ready twice") };
            let result = result.map(|answer| match answer {
                Answer::Done => Vec::new(),
                Answer::Data(data) => data.to_vec(),
                Answer::Status(status) => panic!("{status:?}"),
            });
            results.push((token, result.map_err(|error| error.code)));
        }
        let written = [&[1][..], &[7; 50_000], &[1]].concat();
        let zeroes = [vec![0; 601_000], vec![1]].concat();
        let wanted = [
            (0, Ok(vec![])),
            (1, Ok(written)),
            (2, Ok(vec![])),
            (3, Ok(vec![])),
            (4, Ok(vec![])),
            (5, Ok(zeroes)),
            (6, Err(ErrorCode::Invalid)),
        ];
        // The server refuses a request when it parses it, perhaps before the replies to earlier requests.
        results.sort_by_key(|(token, _)| *token);
        assert!(results == wanted, "step {step}");
        if !contexts.is_empty() {
            assert!(client.contexts().eq([BASE_ALLOCATION]), "the server has only this one");
            client.request(Request::Status { offset: 0, length: 4096 }, 7);
            let events = exchange(&mut client, &mut server, &mut disk, step);
            let [Event::Completed { token: 7, result: Ok(Answer::Status(status)) }] = &events[..]
            else {
                panic!("{events:?}")
            };
            assert_eq!(status[..], [[client::StatusExtent { length: 4096, flags: 0 }]]);
        }
        client.disconnect();
        exchange(&mut client, &mut server, &mut disk, step);
        assert!(matches!(server.phase, Phase::Closed));
    }
}

#[test]
fn own_client_reports_why_it_is_refused() {
    let mut client = Client::<u32>::new("unknown").unwrap();
    let mut server = Server::new(Settings::default());
    client.handle_input(&sent(&mut server)).unwrap();
    let mut pieces = Vec::new();
    client.output().pieces(&mut pieces, 8);
    for piece in pieces {
        let Piece::Bytes(bytes) = piece else { panic!("clients share no memory") };
        receive(&mut server, bytes).unwrap();
    }
    let error = client.handle_input(&sent(&mut server)).unwrap_err();
    assert!(error.to_string().contains("the server has no export of this name"), "{error}");
}

/// Returns a valid conversation of a client with these headers.
fn conversation(is_extended: bool) -> Vec<u8> {
    use CommandCode as C;
    let headers =
        if is_extended { OptionCode::ExtendedHeaders } else { OptionCode::StructuredReply };
    let write = |cookie, offset, data: &[u8]| {
        let length = data.len();
        let head = if is_extended {
            extended_request(C::Write, nbd::PAYLOAD_LEN, cookie, offset, length as u64)
        } else {
            request(C::Write, 0, cookie, offset, length as u32)
        };
        [&head, data].concat()
    };
    let head = |command, cookie, offset, length: u32| {
        if is_extended {
            extended_request(command, 0, cookie, offset, length.into())
        } else {
            request(command, 0, cookie, offset, length)
        }
    };
    [
        CLIENT_FLAGS.to_vec(),
        option(OptionCode::List, &[]),
        option(OptionCode(4711), b"unknown"),
        option(headers, &[]),
        set_context("disk"),
        option(OptionCode::Info, &info_data("disk", &[1, 2, 3])),
        go("disk"),
        head(C::Read, 1, 0, 512),
        write(2, 0, &[7; 1000]),
        write(3, BYTES, &[7; 10]),
        write(4, 512, &[8; 20_000]),
        head(C::BlockStatus, 5, 0, 4096),
        head(C::Trim, 6, 0, 512),
        head(C::WriteZeroes, 7, 0, 512),
        head(C::Cache, 8, 0, 512),
        head(C::Flush, 9, 0, 0),
        head(CommandCode(77), 10, 0, 0),
        head(C::Read, 11, 400, 20_000),
        head(C::Disconnect, 12, 0, 0),
    ]
    .concat()
}

/// Returns events and output of a server that receives these parts and completes the requests at the end.
fn play<'a>(parts: impl Iterator<Item = &'a [u8]>) -> (Vec<String>, Vec<u8>) {
    let mut server = Server::new(Settings::default());
    let mut disk = Disk(vec![0; BYTES as usize]);
    let (mut reported, mut requests) = (Vec::new(), Vec::new());
    let mut output = sent(&mut server);
    for part in parts {
        let result = deliver(&mut server, part);
        output.extend(sent(&mut server));
        match result {
            Ok(events) => {
                for event in events {
                    reported.push(format!("{event:?}"));
                    if let Event::Request { task, operation } = event {
                        requests.push((task, operation));
                    }
                }
            }
            Err(error) => {
                reported.extend(
                    std::iter::from_fn(|| server.poll_event()).map(|event| format!("{event:?}")),
                );
                reported.push(error.to_string());
                break;
            }
        }
    }
    for (task, operation) in requests {
        server.complete(task, disk.execute(operation));
    }
    reported.extend(std::iter::from_fn(|| server.poll_event()).map(|event| format!("{event:?}")));
    output.extend(sent(&mut server));
    (reported, output)
}

#[test]
fn conversation_ends_in_order_at_every_truncation() {
    for is_extended in [false, true] {
        let bytes = conversation(is_extended);
        let (events, output) = play([&bytes[..]].into_iter());
        assert_eq!(events.last().map(String::as_str), Some("Disconnected"));
        let step = |at: usize| if at < 2000 || bytes.len() - at < 1000 { 1 } else { 97 };
        let mut at = 0;
        while at < bytes.len() {
            let (part, _) = play([&bytes[..at]].into_iter());
            assert!(events.starts_with(&part), "at {at}");
            at += step(at);
        }
        assert_eq!(play(bytes.chunks(1)), (events, output));
    }
}

proptest! {
    #[test]
    fn any_split_of_the_input_has_the_same_effect(
        is_extended: bool,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut bytes = conversation(is_extended);
        if let Some((at, byte)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let parts = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
        prop_assert_eq!(play(parts), play([&bytes[..]].into_iter()));
    }
}
