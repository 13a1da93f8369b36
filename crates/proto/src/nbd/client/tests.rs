mod contexts;

use proptest::prelude::*;
use sarsen_block::Piece;
use sarsen_wire::nbd::{
    BlockSizeInfo, EXPORT_NAME_PADDING, ExportInfo, ExportNameReply, FIXED_NEWSTYLE,
    GREETING_MAGIC, Greeting, InfoCode, NO_ZEROES, OLDSTYLE_MAGIC, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionCode, OptionReply, SIMPLE_REPLY_MAGIC, SimpleReply,
};
use zerocopy::FromBytes;

use super::*;

const BYTES: u64 = 1 << 20;
const FLAGS: u16 = transmission::HAS_FLAGS | transmission::SEND_FLUSH | transmission::SEND_FUA;

fn greeting(flags: u16) -> Vec<u8> {
    let (magic, style) = (GREETING_MAGIC.into(), OPTION_MAGIC.into());
    Greeting { magic, style, flags: flags.into() }.as_bytes().to_vec()
}

fn answer(reply: ReplyCode, data: &[u8]) -> Vec<u8> {
    answer_to(OptionCode::Go, reply, data)
}

fn answer_to(option: OptionCode, reply: ReplyCode, data: &[u8]) -> Vec<u8> {
    let head = OptionReply {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.0.into(),
        reply: reply.0.into(),
        length: (data.len() as u32).into(),
    };
    [head.as_bytes(), data].concat()
}

fn size_answer() -> Vec<u8> {
    let info = InfoCode::Export.0.into();
    let data = ExportInfo { info, bytes: BYTES.into(), flags: FLAGS.into() };
    answer(ReplyCode::Info, data.as_bytes())
}

fn block_size_answer(minimum: u32, preferred: u32, maximum: u32) -> Vec<u8> {
    let data = BlockSizeInfo {
        info: InfoCode::BlockSize.0.into(),
        minimum: minimum.into(),
        preferred: preferred.into(),
        maximum: maximum.into(),
    };
    answer(ReplyCode::Info, data.as_bytes())
}

fn reply(cookie: u64, error: ErrorCode, data: &[u8]) -> Vec<u8> {
    let head = SimpleReply {
        magic: SIMPLE_REPLY_MAGIC.into(),
        error: error.0.into(),
        cookie: cookie.into(),
    };
    [head.as_bytes(), data].concat()
}

/// A result of a request, as tests compare it.
fn plain(result: Result<Answer, RequestError>) -> Result<Vec<u8>, ErrorCode> {
    match result {
        Ok(Answer::Done) => Ok(Vec::new()),
        Ok(Answer::Data(data)) => Ok(data.to_vec()),
        Ok(Answer::Status(status)) => panic!("{status:?}"),
        Err(error) => Err(error.code),
    }
}

fn sent<T>(client: &mut Client<T>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !client.output().is_empty() {
        let mut pieces = Vec::new();
        client.output().pieces(&mut pieces, 2);
        let before = bytes.len();
        for piece in pieces {
            let Piece::Bytes(slice) = piece else { panic!("the test shares no memory") };
            bytes.extend_from_slice(slice);
        }
        let count = bytes.len() - before;
        client.output().sent(count);
    }
    bytes
}

/// Returns a client that has chosen an export and has nothing left to send.
fn ready() -> Client<u32> {
    let mut client = Client::new("").unwrap();
    let hello = [
        greeting(FIXED_NEWSTYLE | NO_ZEROES),
        size_answer(),
        block_size_answer(512, 4096, 1 << 20),
        answer(ReplyCode::Ack, &[]),
    ];
    client.handle_input(&hello.concat()).unwrap();
    assert!(matches!(client.poll_event(), Some(Event::Ready(_))));
    sent(&mut client);
    client
}

/// Returns the cookies of the requests that were sent. None of the requests carries data.
fn cookies(client: &mut Client<u32>) -> Vec<u64> {
    let bytes = sent(client);
    let requests = bytes.chunks_exact(size_of::<nbd::Request>());
    requests.map(|bytes| nbd::Request::read_from_bytes(bytes).unwrap().cookie.get()).collect()
}

#[test]
fn an_export_is_chosen_with_its_block_sizes() {
    let mut client = Client::<u32>::new("disk").unwrap();
    client.handle_input(&greeting(FIXED_NEWSTYLE | NO_ZEROES)).unwrap();
    let wanted = [
        &[0, 0, 0, 3][..],
        b"IHAVEOPT",
        &[0, 0, 0, 7, 0, 0, 0, 12, 0, 0, 0, 4],
        b"disk",
        &[0, 1, 0, 3],
    ];
    assert_eq!(sent(&mut client), wanted.concat());
    client.handle_input(&size_answer()).unwrap();
    client.handle_input(&answer(ReplyCode::Info, &[0, 1, b'x'])).unwrap();
    client.handle_input(&block_size_answer(512, 4096, 1 << 16)).unwrap();
    assert!(client.poll_event().is_none());
    client.handle_input(&answer(ReplyCode::Ack, &[])).unwrap();
    let Some(Event::Ready(export)) = client.poll_event() else { panic!("not ready") };
    let expected = Export {
        bytes: BYTES,
        flags: FLAGS,
        minimum_block: 512,
        preferred_block: Some(4096),
        maximum_payload: 1 << 16,
    };
    assert_eq!(export, expected);
    assert!(export.has(transmission::SEND_FUA) && !export.has(transmission::READ_ONLY));
}

#[test]
fn a_server_without_nbd_opt_go_is_asked_by_name_with_and_without_zeroes() {
    let reply = ExportNameReply { bytes: BYTES.into(), flags: FLAGS.into() };
    for (flags, padding) in
        [(FIXED_NEWSTYLE, EXPORT_NAME_PADDING), (FIXED_NEWSTYLE | NO_ZEROES, 0), (0, 124)]
    {
        let mut client = Client::<u32>::new("disk").unwrap();
        client.handle_input(&greeting(flags)).unwrap();
        if flags != 0 {
            sent(&mut client);
            client.handle_input(&answer(ReplyCode::Unsupported, b"what?")).unwrap();
        }
        let asked = sent(&mut client);
        assert!(asked.ends_with(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk"), "{asked:?}");
        client.handle_input(reply.as_bytes()).unwrap();
        assert_eq!(client.poll_event().is_some(), padding == 0);
        client.handle_input(&vec![0; padding]).unwrap();
        // No part of the padding was parsed as a reply.
        client.request(Request::Flush, 1);
        let cookie = cookies(&mut client)[0];
        client.handle_input(&self::reply(cookie, ErrorCode::None, &[])).unwrap();
        assert_eq!(client.open_requests(), 0);
    }
}

#[test]
fn nothing_is_asked_before_tls_and_nothing_is_believed_that_arrived_before_it() {
    let fixed = greeting(FIXED_NEWSTYLE | NO_ZEROES);
    let of_tls = |reply, data: &[u8]| answer_to(OptionCode::StartTls, reply, data);
    let encrypted = || {
        let mut client = Client::<u32>::with_contexts("secret", &["base:allocation"]).unwrap();
        client.require_tls();
        client
    };
    let mut client = encrypted();
    client.handle_input(&fixed).unwrap();
    let asked = sent(&mut client);
    assert!(asked.ends_with(b"IHAVEOPT\0\0\0\x05\0\0\0\0"), "{asked:?}");
    client.handle_input(&of_tls(ReplyCode::Ack, &[])).unwrap();
    assert!(matches!(client.poll_event(), Some(Event::StartTls)));
    let asked = sent(&mut client);
    assert!(asked.ends_with(b"IHAVEOPT\0\0\0\x08\0\0\0\0"), "{asked:?}");

    for (bytes, reported) in [
        (of_tls(ReplyCode::Unsupported, b""), "refuses TLS (Unsupported)"),
        (of_tls(ReplyCode::Policy, b"no certificate"), "no certificate"),
        (of_tls(ReplyCode::Info, b""), "STARTTLS is malformed"),
        ([of_tls(ReplyCode::Ack, &[]), size_answer()].concat(), "before the TLS handshake"),
        (size_answer(), "option 7"),
    ] {
        let mut client = encrypted();
        client.handle_input(&fixed).unwrap();
        let error = client.handle_input(&bytes).unwrap_err().to_string();
        assert!(error.contains(reported), "{error}");
        assert!(!sent(&mut client).windows(6).any(|part| part == b"secret"));
    }
    let error = encrypted().handle_input(&greeting(0)).unwrap_err().to_string();
    assert!(error.contains("no options"), "{error}");
}

#[test]
fn invalid_handshake_of_server_ends_connection() {
    let fixed = greeting(FIXED_NEWSTYLE);
    let refused = answer(ReplyCode::Unknown, b"no such\x1b[31m export");
    let long = OptionReply {
        magic: OPTION_REPLY_MAGIC.into(),
        option: OptionCode::Go.0.into(),
        reply: ReplyCode::Info.0.into(),
        length: u32::MAX.into(),
    };
    let mut other = answer(ReplyCode::Ack, &[]);
    other[11] = OptionCode::List.0 as u8;
    let mut magic = answer(ReplyCode::Ack, &[]);
    magic[0] = 1;
    let oldstyle = [&b"NBDMAGIC"[..], &OLDSTYLE_MAGIC.to_be_bytes(), &[0; 2]].concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "does not speak NBD"),
        (oldstyle, "oldstyle"),
        ([&fixed[..], &refused].concat(), "(Unknown): no such[31m export"),
        ([&fixed[..], long.as_bytes()].concat(), "4294967295 bytes"),
        ([&fixed[..], &other].concat(), "option 3"),
        ([&fixed[..], &magic].concat(), "out of sync"),
        ([&fixed[..], &answer(ReplyCode::Ack, &[])].concat(), "without a size"),
        ([&fixed[..], &answer(ReplyCode::Info, &[0])].concat(), "malformed"),
        ([&fixed[..], &answer(ReplyCode::Info, &[0; 11])].concat(), "size of the export"),
        ([&fixed[..], &answer(ReplyCode::Server, &[])].concat(), "malformed"),
        ([&fixed[..], &block_size_answer(0, 4096, 4096)].concat(), "block size"),
        ([&fixed[..], &block_size_answer(1 << 20, 1 << 20, 1 << 20)].concat(), "block size"),
        ([&fixed[..], &block_size_answer(4096, 512, 4096)].concat(), "block size"),
        ([fixed.clone(), size_answer().repeat(65)].concat(), "more than 64"),
    ];
    for (bytes, reported) in cases {
        let mut client = Client::<u32>::new("").unwrap();
        let error = client.handle_input(&bytes).unwrap_err();
        assert!(error.to_string().contains(reported), "{error}");
        assert_eq!(client.handle_input(&[]), Err(error), "an error is final");
        assert!(client.poll_event().is_none());
    }
    let long = "x".repeat(5000);
    assert!(matches!(Client::<u32>::new(&long), Err(ClientError::NameTooLong { .. })));
}

#[test]
fn requests_are_laid_out_and_replies_come_in_any_order() {
    let mut client = ready();
    client.request(Request::Read { offset: 4096, length: 3 }, 1);
    let data = Buffer::copy_of(&[7; 2000]);
    client.request(Request::Write { offset: 512, data: data.into(), durable: true }, 2);
    let zeroes = Request::WriteZeroes { offset: 0, length: 9, durable: false, may_punch: false };
    client.request(zeroes, 3);
    let bytes = sent(&mut client);
    let (head, payload) = (28, 2000);
    assert_eq!(bytes.len(), 3 * head + payload);
    assert_eq!(bytes[2 * head..2 * head + payload], [7; 2000]);
    let heads = [&bytes[..head], &bytes[head..2 * head], &bytes[2 * head + payload..]];
    let heads = heads.map(|bytes| nbd::Request::read_from_bytes(bytes).unwrap());
    let [read, write, zero] = heads;
    assert_eq!((read.command.get(), read.offset.get(), read.length.get()), (0, 4096, 3));
    assert_eq!((write.command.get(), write.flags.get(), write.length.get()), (1, FUA, 2000));
    assert_eq!((zero.command.get(), zero.flags.get()), (6, NO_HOLE));

    let replies = [
        reply(zero.cookie.get(), ErrorCode::NoSpace, &[]),
        reply(read.cookie.get(), ErrorCode::None, b"abc"),
        reply(write.cookie.get(), ErrorCode::None, &[]),
    ];
    client.handle_input(&replies.concat()).unwrap();
    let mut ended = Vec::new();
    while let Some(Event::Completed { token, result }) = client.poll_event() {
        ended.push((token, plain(result)));
    }
    assert_eq!(ended, [(3, Err(ErrorCode::NoSpace)), (1, Ok(b"abc".to_vec())), (2, Ok(vec![]))]);
    assert_eq!(client.open_requests(), 0);
}

#[test]
fn a_read_that_failed_brings_no_data() {
    let mut client = ready();
    client.request(Request::Read { offset: 0, length: 512 }, 1);
    client.request(Request::Flush, 2);
    let cookies = cookies(&mut client);
    let replies = [reply(cookies[0], ErrorCode::Io, &[]), reply(cookies[1], ErrorCode::None, &[])];
    client.handle_input(&replies.concat()).unwrap();
    let failed = matches!(
        client.poll_event(),
        Some(Event::Completed { token: 1, result: Err(error) }) if error.code == ErrorCode::Io
    );
    assert!(failed);
    assert!(matches!(client.poll_event(), Some(Event::Completed { token: 2, result: Ok(_) })));
}

#[test]
fn replies_to_nothing_and_out_of_step_end_the_connection() {
    let mut twice = ready();
    twice.request(Request::Flush, 1);
    let cookie = cookies(&mut twice)[0];
    let answer = reply(cookie, ErrorCode::None, &[]);
    twice.handle_input(&answer).unwrap();
    twice.request(Request::Flush, 2);
    assert_eq!(twice.handle_input(&answer), Err(ClientError::UnknownCookie(cookie)));
    // A request over a failed connection gets no answer, and does no harm.
    twice.request(Request::Flush, 3);

    let mut unknown = ready();
    let answer = reply(5, ErrorCode::None, &[]);
    assert_eq!(unknown.handle_input(&answer), Err(ClientError::UnknownCookie(5)));

    let mut magic = ready();
    let error = magic.handle_input(&[0x66; 16]).unwrap_err();
    assert_eq!(error, ClientError::Magic { what: "a reply", found: 0x6666_6666 });
}

#[test]
fn long_data_lands_where_it_belongs() {
    let mut client = ready();
    let length = 3 * 16 * 1024;
    client.request(Request::Read { offset: 0, length: length as u32 }, 9);
    let cookie = cookies(&mut client)[0];
    let data: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
    assert!(client.landing().is_none(), "not before the head of the reply");
    client.handle_input(&reply(cookie, ErrorCode::None, &data[..100])).unwrap();
    let mut at = 100;
    while let Some(landing) = client.landing() {
        let count = landing.len().min(10_000);
        landing[..count].copy_from_slice(&data[at..at + count]);
        client.landed(count);
        at += count;
    }
    client.handle_input(&data[at..]).unwrap();
    let Some(Event::Completed { token: 9, result }) = client.poll_event() else {
        panic!("not complete")
    };
    assert!(plain(result).is_ok_and(|found| found == data));
}

#[test]
fn leave_is_taken_with_nbd_cmd_disc() {
    let mut client = ready();
    client.disconnect();
    let bytes = sent(&mut client);
    let request = nbd::Request::read_from_bytes(&bytes[..]).unwrap();
    assert_eq!(request.command.get(), CommandCode::Disconnect.0);
    assert_eq!(client.open_requests(), 0);
}

/// Returns all events of a client that receives these bytes.
fn reported(steps: &[&[u8]], reads: &[u32]) -> Vec<String> {
    let mut client = Client::<usize>::new("").unwrap();
    let mut reported = Vec::new();
    for step in steps {
        let result = client.handle_input(step);
        while let Some(event) = client.poll_event() {
            if matches!(event, Event::Ready(_)) {
                for (token, &length) in reads.iter().enumerate() {
                    client.request(Request::Read { offset: 0, length }, token);
                }
            }
            reported.push(match event {
                Event::Completed { token, result: Ok(Answer::Data(data)) } => {
                    format!("{token} {data:?} {:?}", &data[..])
                }
                other => format!("{other:?}"),
            });
        }
        if let Err(error) = result {
            reported.push(error.to_string());
            break;
        }
    }
    reported
}

proptest! {
    #[test]
    fn any_split_of_the_input_tells_the_same(
        lengths in prop::collection::vec(0u32..5000, 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let hello = [
            greeting(FIXED_NEWSTYLE),
            size_answer(),
            answer(ReplyCode::Ack, &[]),
        ]
        .concat();
        let mut replies = Vec::new();
        for (index, &length) in lengths.iter().enumerate() {
            // Cookies are assigned in order. Each slot is in its first generation.
            let cookie = 1 << 32 | index as u64;
            let error = if length % 7 == 0 { ErrorCode::Io } else { ErrorCode::None };
            let data = vec![index as u8; if length % 7 == 0 { 0 } else { length as usize }];
            replies.extend(reply(cookie, error, &data));
        }
        if let Some((at, byte)) = damage {
            let at = at.index(replies.len());
            replies[at] = byte;
        }
        let whole = reported(&[&hello, &replies], &lengths);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(replies.len() + 1)).collect();
        cuts.sort_unstable();
        let mut steps: Vec<&[u8]> = hello.chunks(5).collect();
        let mut at = 0;
        for cut in cuts {
            steps.push(&replies[at..cut]);
            at = cut;
        }
        steps.push(&replies[at..]);
        prop_assert_eq!(reported(&steps, &lengths), whole);
    }
}
