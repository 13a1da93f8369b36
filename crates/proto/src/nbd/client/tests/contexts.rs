//! Metadata contexts, and the structured replies that they need.

use sarsen_wire::nbd::{
    BASE_ALLOCATION, ChunkType, HoleChunk, REPLY_DONE, ReplyChunk, STRUCTURED_REPLY_MAGIC,
};

use super::*;

const BITMAP: &str = "qemu:dirty-bitmap:s1";

fn context(id: u32, name: &str) -> Vec<u8> {
    let data = [&id.to_be_bytes(), name.as_bytes()].concat();
    answer_to(OptionCode::SetMetaContext, ReplyCode::MetaContext, &data)
}

fn structured(reply: ReplyCode) -> Vec<u8> {
    answer_to(OptionCode::StructuredReply, reply, &[])
}

fn contexts_end() -> Vec<u8> {
    answer_to(OptionCode::SetMetaContext, ReplyCode::Ack, &[])
}

/// The server's bytes after which a client with two contexts is ready.
fn hello() -> Vec<u8> {
    [
        greeting(FIXED_NEWSTYLE | NO_ZEROES),
        structured(ReplyCode::Ack),
        // Not in the order in which the client asked for them.
        context(9, BITMAP),
        context(4, BASE_ALLOCATION),
        contexts_end(),
        size_answer(),
        answer(ReplyCode::Ack, &[]),
    ]
    .concat()
}

/// Returns a client with two contexts that has nothing left to send.
fn ready_with_contexts() -> Client<u32> {
    let mut client = Client::with_contexts("", &[BASE_ALLOCATION, BITMAP]).unwrap();
    client.handle_input(&hello()).unwrap();
    assert!(matches!(client.poll_event(), Some(Event::Ready(_))));
    sent(&mut client);
    client
}

fn chunk(cookie: u64, kind: ChunkType, is_last: bool, payload: &[u8]) -> Vec<u8> {
    let head = ReplyChunk {
        magic: STRUCTURED_REPLY_MAGIC.into(),
        flags: if is_last { REPLY_DONE } else { 0 }.into(),
        chunk: kind.0.into(),
        cookie: cookie.into(),
        length: (payload.len() as u32).into(),
    };
    [head.as_bytes(), payload].concat()
}

fn data(cookie: u64, is_last: bool, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let payload = [&offset.to_be_bytes(), bytes].concat();
    chunk(cookie, ChunkType::OffsetData, is_last, &payload)
}

fn hole(cookie: u64, is_last: bool, offset: u64, length: u32) -> Vec<u8> {
    let hole = HoleChunk { offset: offset.into(), length: length.into() };
    chunk(cookie, ChunkType::OffsetHole, is_last, hole.as_bytes())
}

fn status(cookie: u64, is_last: bool, id: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let extents = extents.iter().flat_map(|&(length, flags)| [length, flags]);
    let words: Vec<_> = [id].into_iter().chain(extents).flat_map(u32::to_be_bytes).collect();
    chunk(cookie, ChunkType::BlockStatus, is_last, &words)
}

fn error(cookie: u64, is_last: bool, code: ErrorCode, message: &str) -> Vec<u8> {
    let length = (message.len() as u16).to_be_bytes();
    let payload = [&code.0.to_be_bytes()[..], &length, message.as_bytes()].concat();
    chunk(cookie, ChunkType::Error, is_last, &payload)
}

#[test]
fn contexts_are_selected_before_the_export() {
    let mut client = Client::<u32>::with_contexts("disk", &[BASE_ALLOCATION, BITMAP]).unwrap();
    client.handle_input(&greeting(FIXED_NEWSTYLE | NO_ZEROES)).unwrap();
    assert!(sent(&mut client).ends_with(b"IHAVEOPT\0\0\0\x08\0\0\0\0"));
    client.handle_input(&structured(ReplyCode::Ack)).unwrap();
    let wanted = [
        &b"IHAVEOPT\0\0\0\x0a\0\0\0\x37\0\0\0\x04disk\0\0\0\x02"[..],
        b"\0\0\0\x0fbase:allocation\0\0\0\x14qemu:dirty-bitmap:s1",
    ];
    assert_eq!(sent(&mut client), wanted.concat());
    client.handle_input(&context(7, BITMAP)).unwrap();
    client.handle_input(&contexts_end()).unwrap();
    assert!(sent(&mut client).starts_with(b"IHAVEOPT\0\0\0\x07"));
    client.handle_input(&[size_answer(), answer(ReplyCode::Ack, &[])].concat()).unwrap();
    assert!(matches!(client.poll_event(), Some(Event::Ready(_))));
    assert!(client.contexts().eq([BITMAP]), "the server has selected only this one");
    assert!(ready_with_contexts().contexts().eq([BASE_ALLOCATION, BITMAP]));
}

#[test]
fn a_server_without_contexts_serves_the_export() {
    let refused = |reply| answer_to(OptionCode::SetMetaContext, reply, b"no");
    for answers in [
        structured(ReplyCode::Unsupported),
        [structured(ReplyCode::Ack), refused(ReplyCode::Unsupported)].concat(),
        [structured(ReplyCode::Ack), context(1, BITMAP), refused(ReplyCode::Policy)].concat(),
        [structured(ReplyCode::Ack), contexts_end()].concat(),
    ] {
        let mut client = Client::<u32>::with_contexts("", &[BASE_ALLOCATION, BITMAP]).unwrap();
        let bytes = [greeting(FIXED_NEWSTYLE), answers, size_answer(), answer(ReplyCode::Ack, &[])];
        client.handle_input(&bytes.concat()).unwrap();
        assert!(matches!(client.poll_event(), Some(Event::Ready(_))));
        assert_eq!(client.contexts().count(), 0);
    }
}

#[test]
fn contexts_that_were_not_requested_end_the_connection() {
    let begin = [greeting(FIXED_NEWSTYLE), structured(ReplyCode::Ack)].concat();
    let other_option = answer_to(OptionCode::Go, ReplyCode::Ack, &[]);
    for bad in [
        context(1, "base:other"),
        [context(1, BITMAP), context(2, BITMAP)].concat(),
        [context(1, BITMAP), context(1, BASE_ALLOCATION)].concat(),
        answer_to(OptionCode::SetMetaContext, ReplyCode::MetaContext, &[0; 3]),
        answer_to(OptionCode::SetMetaContext, ReplyCode::Info, &[]),
        other_option,
    ] {
        let mut client = Client::<u32>::with_contexts("", &[BASE_ALLOCATION, BITMAP]).unwrap();
        let error = client.handle_input(&[&begin[..], &bad].concat()).unwrap_err();
        let expected =
            matches!(error, ClientError::Malformed(_) | ClientError::UnexpectedOption(_));
        assert!(expected, "{error}");
    }
    let long = "x".repeat(5000);
    let error = Client::<u32>::with_contexts("", &[&long]).err().unwrap();
    assert!(error.to_string().contains("metadata context"), "{error}");
}

#[test]
fn data_arrives_in_chunks_of_any_order_between_other_replies() {
    let mut client = ready_with_contexts();
    client.request(Request::Read { offset: 1000, length: 10 }, 1);
    client.request(Request::Read { offset: 0, length: 4 }, 2);
    client.request(Request::Flush, 3);
    client.request(Request::Read { offset: 5, length: 0 }, 4);
    client.request(Request::Status { offset: 0, length: 8192 }, 5);
    client.request(Request::Flush, 6);
    let [first, second, flush, empty, status_cookie, last] = cookies(&mut client)[..] else {
        panic!("six requests")
    };
    let replies = [
        data(first, false, 1006, b"ghij"),
        data(second, true, 0, b"wxyz"),
        status(status_cookie, false, 9, &[(4096, 1), (9000, 0)]),
        hole(first, false, 1003, 2),
        data(first, false, 1000, b"abc"),
        chunk(flush, ChunkType::None, true, &[]),
        reply(last, ErrorCode::None, &[]),
        data(first, true, 1005, b"f"),
        chunk(empty, ChunkType::None, true, &[]),
        status(status_cookie, true, 4, &[(100, 3)]),
    ];
    client.handle_input(&replies.concat()).unwrap();
    let mut answers = Vec::new();
    while let Some(Event::Completed { token, result }) = client.poll_event() {
        match result.unwrap() {
            Answer::Status(status) => {
                // The order is that of the request, and no extent is longer than the request.
                let extent = |length, flags| StatusExtent { length, flags };
                assert_eq!(token, 5);
                assert_eq!(status[0], [extent(100, 3)]);
                assert_eq!(status[1], [extent(4096, 1), extent(4096, 0)]);
            }
            answer => answers.push((token, plain(Ok(answer)).unwrap())),
        }
    }
    let wanted: [(u32, &[u8]); 5] =
        [(2, b"wxyz"), (3, b""), (6, b""), (1, b"abc\0\0fghij"), (4, b"")];
    assert_eq!(answers, wanted.map(|(token, data)| (token, data.to_vec())));
    assert_eq!(client.open_requests(), 0);
}

#[test]
fn an_error_in_any_chunk_fails_the_request_with_its_message() {
    let mut client = ready_with_contexts();
    client.request(Request::Read { offset: 0, length: 8 }, 1);
    client.request(Request::Status { offset: 0, length: 8 }, 2);
    client.request(Request::Flush, 3);
    client.request(Request::Read { offset: 0, length: 8 }, 4);
    let cookies = cookies(&mut client);
    let offset = [&5_u32.to_be_bytes()[..], &[0, 2], b"no", &[0; 8]].concat();
    let replies = [
        chunk(cookies[0], ChunkType::ErrorOffset, false, &offset),
        data(cookies[0], false, 0, b"abcd"),
        error(cookies[0], true, ErrorCode::Invalid, "a later error"),
        error(cookies[1], true, ErrorCode::Invalid, "the snapshot\x1b is gone"),
        reply(cookies[2], ErrorCode::NoSpace, &[]),
        // An error that this client does not know.
        chunk(cookies[3], ChunkType(0x8765), true, &[&[0, 0, 0, 9][..], &[0; 7]].concat()),
    ];
    client.handle_input(&replies.concat()).unwrap();
    let errors: Vec<_> = std::iter::from_fn(|| client.poll_event())
        .map(|event| match event {
            Event::Completed { result: Err(error), .. } => (error.code, error.message),
            event => panic!("{event:?}"),
        })
        .collect();
    let wanted = [
        (ErrorCode::Io, "no"),
        (ErrorCode::Invalid, "the snapshot is gone"),
        (ErrorCode::NoSpace, ""),
        (ErrorCode(9), ""),
    ];
    assert_eq!(errors, wanted.map(|(code, message)| (code, message.to_owned())));
}

#[test]
fn impossible_chunks_end_the_connection() {
    let read = |offset, length| move || Request::Read { offset, length };
    let status_of = |length| move || Request::Status { offset: 0, length };
    type Case<'a> = (&'a dyn Fn() -> Request, &'a dyn Fn(u64) -> Vec<u8>);
    let cases: &[Case<'_>] = &[
        // Data outside the range, twice, too little, or of another kind.
        (&read(512, 512), &|c| data(c, true, 511, &[1; 2])),
        (&read(512, 512), &|c| data(c, true, 1023, &[1; 2])),
        (&read(512, 512), &|c| data(c, true, u64::MAX, &[1; 2])),
        (&read(0, 512), &|c| data(c, true, 0, &[1; 513])),
        (&read(0, 512), &|c| data(c, true, 0, &[1; 511])),
        (&read(0, 512), &|c| data(c, true, 0, &[])),
        (&read(0, 512), &|c| [data(c, false, 0, &[1; 9]), data(c, true, 8, &[1; 504])].concat()),
        (&read(0, 512), &|c| [data(c, false, 9, &[1; 9]), data(c, true, 0, &[1; 10])].concat()),
        (&read(0, 512), &|c| [data(c, false, 0, &[1; 9]), hole(c, true, 0, 512)].concat()),
        (&read(0, 512), &|c| hole(c, true, 0, 0)),
        (&read(0, 512), &|c| hole(c, true, 1, 512)),
        (&read(0, 512), &|c| chunk(c, ChunkType::OffsetHole, true, &[0; 13])),
        (&read(0, 512), &|c| chunk(c, ChunkType::None, true, &[])),
        (&read(0, 512), &|c| status(c, true, 4, &[(512, 0)])),
        (&read(0, 512), &|c| reply(c, ErrorCode::None, &[0; 512])),
        (&read(0, 0), &|c| data(c, true, 0, &[1])),
        (&|| Request::Flush, &|c| data(c, true, 0, &[1])),
        (&|| Request::Flush, &|c| chunk(c, ChunkType::None, false, &[])),
        (&|| Request::Flush, &|c| chunk(c, ChunkType::None, true, &[1])),
        (&|| Request::Flush, &|c| chunk(c, ChunkType(77), true, &[])),
        (&|| Request::Flush, &|c| chunk(c, ChunkType::Error, true, &[0, 0, 0, 5, 0])),
        (&|| Request::Flush, &|c| chunk(c, ChunkType::Error, true, &[0, 0, 0, 5, 0, 1])),
        (&|| Request::Flush, &|c| chunk(c, ChunkType::Error, true, &[0; 6])),
        (&|| Request::Flush, &|c| chunk(c, ChunkType::Error, true, &[0; 5000])),
        // Status of no context, of one twice or only one, and without extents.
        (&status_of(512), &|c| status(c, false, 5, &[(512, 0)])),
        (&status_of(512), &|c| status(c, true, 4, &[(512, 0)])),
        (&status_of(512), &|c| status(c, false, 4, &[(512, 0)]).repeat(2)),
        (&status_of(512), &|c| status(c, false, 4, &[])),
        (&status_of(512), &|c| status(c, false, 4, &[(0, 0)])),
        (&status_of(512), &|c| chunk(c, ChunkType::BlockStatus, false, &[0; 13])),
        (&status_of(512), &|c| reply(c, ErrorCode::None, &[])),
        (&status_of(512), &|c| chunk(c, ChunkType::None, true, &[])),
        (&status_of(512), &|c| data(c, true, 0, &[1; 512])),
        // A reply after its end.
        (&|| Request::Flush, &|c| chunk(c, ChunkType::None, true, &[]).repeat(2)),
    ];
    for (index, (request, replies)) in cases.iter().enumerate() {
        let mut client = ready_with_contexts();
        client.request(request(), 1);
        let cookie = cookies(&mut client)[0];
        let error = client.handle_input(&replies(cookie)).expect_err(&index.to_string());
        let expected = matches!(error, ClientError::Malformed(_) | ClientError::UnknownCookie(_));
        assert!(expected, "{index}: {error}");
    }
    // The head of a long chunk is refused before its payload is awaited.
    let mut client = ready_with_contexts();
    client.request(Request::Status { offset: 0, length: 512 }, 1);
    let cookie = cookies(&mut client)[0];
    let mut head = chunk(cookie, ChunkType::BlockStatus, true, &[]);
    head[16..].copy_from_slice(&(4 + 8 * (1_u32 << 20) + 8).to_be_bytes());
    assert_eq!(client.handle_input(&head), Err(ClientError::Malformed("chunk")));
    // A client without contexts has no structured replies.
    let mut client = ready();
    client.request(Request::Flush, 1);
    let cookie = cookies(&mut client)[0];
    let error = client.handle_input(&chunk(cookie, ChunkType::None, true, &[])).unwrap_err();
    assert!(matches!(error, ClientError::Magic { .. }), "{error}");
}

#[test]
fn a_read_in_very_many_fragments_ends_the_connection() {
    let mut client = ready_with_contexts();
    client.request(Request::Read { offset: 0, length: 10_000 }, 1);
    let cookie = cookies(&mut client)[0];
    let fragments: Vec<u8> =
        (0..2000).flat_map(|index| data(cookie, false, index * 2, &[1])).collect();
    assert_eq!(client.handle_input(&fragments), Err(ClientError::Malformed("reply to a read")));
}

proptest! {
    /// The parts of some reads arrive in any order and cut anywhere, with and without landing.
    #[test]
    fn reads_are_complete_however_their_chunks_arrive(
        parts in prop::collection::vec((0usize..3, 1usize..40_000, any::<bool>()), 1..20),
        order in any::<prop::sample::Index>(),
        step in 1usize..50_000,
        lands: bool,
    ) {
        let mut client = ready_with_contexts();
        let length = |read: usize| {
            parts.iter().filter(|part| part.0 == read).map(|part| part.1).sum::<usize>()
        };
        let content = |at: usize| (at % 251) as u8 | 1;
        let mut wanted: Vec<Vec<u8>> = (0..3).map(|read| vec![0; length(read)]).collect();
        for read in 0..3 {
            client.request(Request::Read { offset: 77, length: length(read) as u32 }, read as u32);
        }
        let cookies = cookies(&mut client);
        let mut ends = [0; 3];
        let mut chunks = Vec::new();
        for &(read, length, is_hole) in &parts {
            let start = ends[read];
            ends[read] += length;
            let offset = 77 + start as u64;
            if is_hole {
                chunks.push(hole(cookies[read], false, offset, length as u32));
            } else {
                let bytes: Vec<u8> = (start..start + length).map(content).collect();
                wanted[read][start..start + length].copy_from_slice(&bytes);
                chunks.push(data(cookies[read], false, offset, &bytes));
            }
        }
        let rotation = order.index(chunks.len());
        chunks.rotate_left(rotation);
        chunks.extend(cookies.iter().map(|&cookie| chunk(cookie, ChunkType::None, true, &[])));
        for mut piece in chunks.concat().chunks(step) {
            if lands && let Some(landing) = client.landing() {
                let count = landing.len().min(piece.len());
                landing[..count].copy_from_slice(&piece[..count]);
                client.landed(count);
                piece = &piece[count..];
            }
            client.handle_input(piece).unwrap();
        }
        for read in 0..3 {
            let Some(Event::Completed { token, result }) = client.poll_event() else {
                panic!("read {read} is not complete")
            };
            prop_assert_eq!(token, read);
            prop_assert!(plain(result).unwrap() == wanted[read as usize]);
        }
    }
}
