use std::sync::Arc;

use sarsen_block::SharedMemory;
use sarsen_wire::nbd::{
    DF, FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE, allocation, dirty_bitmap,
};

use super::*;

/// Returns the error in the reply to the request with cookie 7, whatever its format. It must be the only reply.
fn refused(server: &mut Server) -> ErrorCode {
    assert!(server.poll_event().is_none(), "a refused request is not reported");
    let bytes = sent(server);
    let error_at = match bytes[..4] {
        [0x67, 0x44, 0x66, 0x98] => 4,
        [0x66, 0x8e, 0x33, 0xef] => 20,
        [0x6e, 0x8a, 0x27, 0x8c] => 32,
        _ => panic!("no reply: {bytes:?}"),
    };
    let code = u32::from_be_bytes(bytes[error_at..error_at + 4].try_into().unwrap());
    if error_at > 4 {
        assert_eq!(bytes[4..8], [0, 1, 0x80, 1], "NBD_REPLY_TYPE_ERROR, and the last chunk");
        let message = usize::from(bytes[error_at + 5]);
        assert_eq!(bytes.len(), error_at + 6 + message, "one chunk");
    } else {
        assert_eq!(bytes.len(), 16, "one reply");
    }
    assert_eq!(bytes[8..16], 7u64.to_be_bytes());
    ErrorCode(code)
}

/// Sends a flush after the request. Its report shows that the server parsed exactly one request before.
fn assert_in_sync(server: &mut Server, flush: &[u8]) {
    receive(server, flush).unwrap();
    assert!(matches!(next_request(server).1, Operation::Flush));
}

#[test]
fn error_values_are_those_of_the_document() {
    use CommandCode as C;
    let unknown = CommandCode(9);
    let long = BYTES as u32;
    let (invalid, no_space) = (ErrorCode::Invalid, ErrorCode::NoSpace);
    #[rustfmt::skip]
    let cases = [
        // Unknown commands and flags.
        ("disk", unknown, 0, 0, 512, invalid),
        ("disk", C(8), 0, BYTES, 0, invalid),
        ("disk", C::Read, 1 << 15, 0, 512, invalid),
        ("disk", C::Read, NO_HOLE, 0, 512, invalid),
        ("disk", C::Write, NO_HOLE, 0, 512, invalid),
        ("disk", C::Write, DF, 0, 512, invalid),
        ("disk", C::Write, PAYLOAD_LEN, 0, 512, invalid),
        ("disk", C::Flush, REQ_ONE, 0, 0, invalid),
        ("disk", C::Cache, REQ_ONE, 0, 512, invalid),
        ("disk", C::Trim, NO_HOLE, 0, 512, invalid),
        ("plain", C::WriteZeroes, FAST_ZERO, 0, 512, invalid),
        ("disk", C::WriteZeroes, DF, 0, 512, invalid),
        // Requests that the export does not support.
        ("plain", C::Trim, 0, 0, 512, invalid),
        ("plain", C::Cache, 0, 0, 512, invalid),
        ("plain", C::BlockStatus, 0, 0, 512, invalid),
        ("disk", C::BlockStatus, 0, 0, 0, invalid),
        ("disk", C::Flush, 0, 512, 0, invalid),
        ("disk", C::Flush, 0, 0, 512, invalid),
        // Read-only exports.
        ("read-only", C::Write, 0, 0, 512, ErrorCode::NotPermitted),
        ("read-only", C::Write, FUA, 0, 0, ErrorCode::NotPermitted),
        ("read-only", C::WriteZeroes, NO_HOLE, 0, 512, ErrorCode::NotPermitted),
        ("read-only", C::Trim, 0, 0, 512, ErrorCode::NotPermitted),
        // Beyond the end.
        ("disk", C::Read, 0, BYTES, 1, invalid),
        ("disk", C::Read, 0, 1, long, invalid),
        ("disk", C::Read, 0, u64::MAX, 1, invalid),
        ("disk", C::Read, 0, BYTES + 1, 0, invalid),
        ("disk", C::Write, 0, BYTES - 511, 512, no_space),
        ("disk", C::Write, 0, u64::MAX, 512, no_space),
        ("disk", C::WriteZeroes, 0, 1, long, no_space),
        ("disk", C::Trim, 0, 1, long, invalid),
        ("disk", C::Cache, 0, 1, long, invalid),
        ("disk", C::BlockStatus, 0, 1, long, invalid),
        // Unaligned.
        ("blocks", C::Read, 0, 1, 512, invalid),
        ("blocks", C::Read, 0, 512, 511, invalid),
        ("blocks", C::Write, 0, 256, 512, invalid),
        ("blocks", C::WriteZeroes, 0, 0, 1, invalid),
        ("blocks", C::Trim, 0, 1, 1, invalid),
        ("blocks", C::BlockStatus, 0, 0, 1, invalid),
    ];
    for (name, command, flags, offset, length, error) in cases {
        let case = format!("{name} {command:?} {flags:#x} {offset} {length}");
        let flush = request(C::Flush, 0, 8, 0, 0);
        for mut server in [simple(name), structured(name)] {
            let payload = if command == C::Write { length as usize } else { 0 };
            let bytes = [request(command, flags, 7, offset, length), vec![7; payload]].concat();
            receive(&mut server, &bytes).unwrap();
            assert_eq!(refused(&mut server), error, "{case}");
            assert_in_sync(&mut server, &flush);
        }
        if flags & PAYLOAD_LEN != 0 {
            continue;
        }
        let mut server = extended(name);
        let payload = if command == C::Write && length > 0 { PAYLOAD_LEN } else { 0 };
        let head = extended_request(command, flags | payload, 7, offset, length.into());
        let data = vec![7; if payload != 0 { length as usize } else { 0 }];
        receive(&mut server, &[head, data].concat()).unwrap();
        assert_eq!(refused(&mut server), error, "extended {case}");
        assert_in_sync(&mut server, &extended_request(C::Flush, 0, 8, 0, 0));
    }
}

#[test]
fn error_chunks_have_a_message() {
    let mut server = structured("read-only");
    receive(&mut server, &request(CommandCode::Trim, 0, 7, 0, 512)).unwrap();
    let message = b"the export is read-only";
    let wanted = chunk(7, 0x8001, &[&[0, 0, 0, 1, 0, message.len() as u8], message]);
    assert_eq!(sent(&mut server), wanted);
    let mut server = extended("read-only");
    receive(&mut server, &extended_request(CommandCode::Trim, 0, 7, 512, 512)).unwrap();
    let wanted = extended_chunk(7, 0x8001, 512, &[&[0, 0, 0, 1, 0, message.len() as u8], message]);
    assert_eq!(sent(&mut server), wanted);
}

#[test]
fn requests_without_length_succeed_without_effect() {
    use CommandCode as C;
    for command in [C::Read, C::Write, C::Trim, C::Cache, C::WriteZeroes] {
        let mut server = simple("disk");
        receive(&mut server, &request(command, FUA, 7, BYTES, 0)).unwrap();
        assert!(server.poll_event().is_none());
        assert_eq!(sent(&mut server), simple_reply(7, ErrorCode::None));

        // A read must not have a simple reply.
        let mut server = structured("disk");
        receive(&mut server, &request(command, FUA, 7, 0, 0)).unwrap();
        let is_read = command == C::Read;
        let wanted = if is_read { chunk(7, 0, &[]) } else { simple_reply(7, ErrorCode::None) };
        assert_eq!(sent(&mut server), wanted);
    }
    // Branch extension-ext-header: no reply is simple.
    let mut server = extended("disk");
    receive(&mut server, &extended_request(C::Trim, FUA, 7, 512, 0)).unwrap();
    assert_eq!(sent(&mut server), extended_chunk(7, 0, 512, &[]));
}

#[test]
fn requests_are_reported_with_their_parameters() {
    use CommandCode as C;
    let mut server = simple("disk");
    let bytes = [
        request(C::Read, FUA, 1, 4096, 512),
        request(C::Write, FUA, 2, 1, 3),
        b"abc".to_vec(),
        request(C::Flush, FUA, 3, 0, 0),
        request(C::Trim, FUA, 4, 512, 1024),
        request(C::WriteZeroes, NO_HOLE | FAST_ZERO, 5, 0, 9),
        request(C::WriteZeroes, FUA, 6, 0, BYTES as u32),
        request(C::Cache, 0, 7, 0, 512),
    ];
    receive(&mut server, &bytes.concat()).unwrap();
    let mut reported = Vec::new();
    while let Some(Event::Request { operation, .. }) = server.poll_event() {
        reported.push(format!("{operation:?}"));
    }
    let wanted = [
        "Read { offset: 4096, length: 512 }",
        "Write { offset: 1, data: Buffer(3 bytes), durable: true }",
        "Flush",
        "Trim { offset: 512, length: 1024, durable: true }",
        "WriteZeroes { offset: 0, length: 9, durable: false, may_punch: false, fast: true }",
        "WriteZeroes { offset: 0, length: 1048576, durable: true, may_punch: true, fast: false }",
        "Cache { offset: 0, length: 512 }",
    ];
    assert_eq!(reported, wanted);
}

#[test]
fn replies_are_sent_in_the_order_of_completion() {
    let mut server = simple("disk");
    for cookie in 1..=3 {
        receive(&mut server, &request(CommandCode::Read, 0, cookie, 0, 3)).unwrap();
    }
    let tasks: Vec<u64> = (0..3).map(|_| next_request(&mut server).0).collect();
    assert_eq!(server.open_requests(), 3);
    server.complete(tasks[1], Err(ErrorCode::Io));
    server.complete(tasks[2], Ok(Outcome::Data(Buffer::copy_of(b"abc").into())));
    server.complete(tasks[0], Ok(Outcome::Data(Data::Zeroes(3))));
    let wanted = [
        simple_reply(2, ErrorCode::Io),
        simple_reply(3, ErrorCode::None),
        b"abc".to_vec(),
        simple_reply(1, ErrorCode::None),
        vec![0; 3],
    ];
    assert_eq!(sent(&mut server), wanted.concat());
    assert_eq!((server.open_requests(), server.memory()), (0, 0));
}

#[test]
fn structured_reads_have_one_content_chunk() {
    for flags in [0, DF] {
        let mut server = structured("disk");
        receive(&mut server, &request(CommandCode::Read, flags, 7, 512, 4)).unwrap();
        receive(&mut server, &request(CommandCode::Read, flags, 8, 1024, 4)).unwrap();
        let (first, second) = (next_request(&mut server).0, next_request(&mut server).0);
        server.complete(first, Ok(Outcome::Data(Buffer::copy_of(b"data").into())));
        server.complete(second, Ok(Outcome::Data(Data::Zeroes(4))));
        let wanted = [
            chunk(7, 1, &[&512u64.to_be_bytes(), b"data"]),
            chunk(8, 2, &[&1024u64.to_be_bytes(), &4u32.to_be_bytes()]),
        ];
        assert_eq!(sent(&mut server), wanted.concat());
    }
    let mut server = extended("disk");
    receive(&mut server, &extended_request(CommandCode::Read, DF, 7, 512, 4)).unwrap();
    let task = next_request(&mut server).0;
    server.complete(task, Ok(Outcome::Data(Buffer::copy_of(b"data").into())));
    let wanted = extended_chunk(7, 1, 512, &[&512u64.to_be_bytes(), b"data"]);
    assert_eq!(sent(&mut server), wanted);
}

#[test]
fn shared_memory_is_sent_without_a_copy() {
    struct Memory;
    impl SharedMemory for Memory {
        fn length(&self) -> usize {
            1 << 20
        }
        fn copy_out(&self, _: usize, into: &mut [u8]) {
            into.fill(9);
        }
    }
    let mut server = structured("disk");
    receive(&mut server, &request(CommandCode::Read, 0, 7, 0, 8192)).unwrap();
    let task = next_request(&mut server).0;
    let data = Data::Shared { memory: Arc::new(Memory), offset: 4096, length: 8192 };
    server.complete(task, Ok(Outcome::Data(data)));
    let mut pieces = Vec::new();
    server.output().pieces(&mut pieces, 8);
    assert!(matches!(
        pieces[..],
        [Piece::Bytes(_), Piece::Shared { offset: 4096, length: 8192, .. },]
    ));
    server.output().sent(28 + 1000);
    let mut pieces = Vec::new();
    server.output().pieces(&mut pieces, 8);
    assert!(matches!(pieces[..], [Piece::Shared { offset: 5096, length: 7192, .. }]));
}

/// Returns the reply to a request for the status of `length` bytes from 512.
fn status(is_extended: bool, flags: u16, length: u32, extents: &[(u64, u32)]) -> Vec<u8> {
    let command = CommandCode::BlockStatus;
    let (mut server, bytes) = if is_extended {
        (extended("disk"), extended_request(command, flags, 7, 512, length.into()))
    } else {
        (structured("disk"), request(command, flags, 7, 512, length))
    };
    receive(&mut server, &bytes).unwrap();
    let (task, operation) = next_request(&mut server);
    let is_one = flags & REQ_ONE != 0;
    let Operation::BlockStatus { offset: 512, contexts, maximum_extents, .. } = operation else {
        panic!("{operation:?}")
    };
    assert_eq!(*contexts, [StatusContext::Allocation]);
    assert_eq!(maximum_extents, if is_one { 1 } else { MAXIMUM_EXTENTS });
    server.complete(task, Ok(Outcome::Status(vec![status_extents(extents)])));
    assert_eq!(server.open_requests(), 0);
    sent(&mut server)
}

fn status_extents(extents: &[(u64, u32)]) -> Vec<StatusExtent> {
    extents.iter().map(|&(length, flags)| StatusExtent { length, flags }).collect()
}

#[test]
fn block_status_has_one_chunk_for_each_selected_context() {
    let queries = ["base:allocation", "qemu:dirty-bitmap:s1", "qemu:dirty-bitmap:s2"];
    let set = option(OptionCode::SetMetaContext, &context_data("snapshot", &queries));
    let (hole, dirty) = (allocation::HOLE | allocation::ZERO, dirty_bitmap::DIRTY);
    for (is_extended, is_one) in [(false, false), (false, true), (true, false), (true, true)] {
        let (command, flags) = (CommandCode::BlockStatus, if is_one { REQ_ONE } else { 0 });
        let (headers, head) = if is_extended {
            (OptionCode::ExtendedHeaders, extended_request(command, flags, 7, 512, 2048))
        } else {
            (OptionCode::StructuredReply, request(command, flags, 7, 512, 2048))
        };
        let options = [option(headers, &[]), set.clone()];
        let mut server = selected("snapshot", &options, Settings::default());
        receive(&mut server, &head).unwrap();
        let (task, operation) = next_request(&mut server);
        let Operation::BlockStatus { contexts, maximum_extents, .. } = operation else { panic!() };
        let bitmap = |name: &str| StatusContext::DirtyBitmap(name.to_owned());
        assert_eq!(*contexts, [StatusContext::Allocation, bitmap("s1"), bitmap("s2")]);
        assert_eq!(maximum_extents, if is_one { 1 } else { MAXIMUM_EXTENTS / 3 });
        // Nothing is known of the changes since `s2`.
        let status = [&[(4096, hole)][..], &[(512, 0), (512, dirty), (512, dirty), (512, 0)], &[]];
        let status = status.map(status_extents).to_vec();
        server.complete(task, Ok(Outcome::Status(status)));
        let payload = |id: u32, extents: &[(u32, u32)]| {
            let mut payload = id.to_be_bytes().to_vec();
            if is_extended {
                payload.extend((extents.len() as u32).to_be_bytes());
            }
            for &(length, flags) in extents {
                if is_extended {
                    payload.extend(u64::from(length).to_be_bytes());
                    payload.extend(u64::from(flags).to_be_bytes());
                } else {
                    payload.extend([length.to_be_bytes(), flags.to_be_bytes()].concat());
                }
            }
            if is_extended {
                extended_chunk(7, 6, 512, &[&payload])
            } else {
                chunk(7, 5, &[&payload])
            }
        };
        let changes = [(512, 0), (1024, dirty), (512, 0)];
        let changes = if is_one { &changes[..1] } else { &changes };
        let wanted = [
            not_last(payload(1, &[(2048, hole)])),
            not_last(payload(2, changes)),
            payload(3, &[(2048, dirty)]),
        ];
        assert_eq!(sent(&mut server), wanted.concat(), "{is_extended} {is_one}");
        // The error of one context is that of the request, not of the connection.
        receive(&mut server, &head).unwrap();
        let task = next_request(&mut server).0;
        server.complete(task, Err(ErrorCode::Invalid));
        assert_eq!(refused(&mut server), ErrorCode::Invalid);
    }
}

#[test]
fn all_contexts_together_have_a_maximum_of_extents() {
    let names = bitmaps(MAXIMUM_CONTEXTS);
    let queries: Vec<_> = names.iter().map(|name| format!("qemu:dirty-bitmap:{name}")).collect();
    let queries: Vec<_> = queries.iter().map(String::as_str).collect();
    let set = option(OptionCode::SetMetaContext, &context_data("snapshots", &queries));
    let options = [option(OptionCode::ExtendedHeaders, &[]), set];
    let mut server = selected("snapshots", &options, Settings::default());
    receive(&mut server, &extended_request(CommandCode::BlockStatus, 0, 7, 0, BYTES)).unwrap();
    let before = server.memory();
    let task = next_request(&mut server).0;
    let extents: Vec<_> = (0..10_000).map(|index| (1, index % 2)).collect();
    let status = vec![status_extents(&extents); MAXIMUM_CONTEXTS];
    server.complete(task, Ok(Outcome::Status(status)));
    let reply = sent(&mut server);
    assert_eq!(reply.len(), 40 * MAXIMUM_CONTEXTS + 16 * MAXIMUM_EXTENTS);
    assert!(before >= reply.len(), "{before} bytes");
}

#[test]
fn block_status_has_one_chunk_with_consecutive_extents() {
    let hole = allocation::HOLE | allocation::ZERO;
    let extents = [(512, hole), (0, 0), (512, hole), (512, 0), (1 << 40, hole)];
    let descriptor = |length: u32, flags: u32| [length.to_be_bytes(), flags.to_be_bytes()].concat();
    let id = 1u32.to_be_bytes();
    // Equal neighbours are merged; nothing exceeds the request.
    let wanted =
        chunk(7, 5, &[&id, &descriptor(1024, 3), &descriptor(512, 0), &descriptor(464, 3)]);
    assert_eq!(status(false, 0, 2000, &extents), wanted);
    // NBD_CMD_FLAG_REQ_ONE: one extent, not longer than the request.
    let wanted = chunk(7, 5, &[&id, &descriptor(1024, 3)]);
    assert_eq!(status(false, REQ_ONE, 2000, &extents), wanted);
    let wanted = chunk(7, 5, &[&id, &descriptor(600, 3)]);
    assert_eq!(status(false, REQ_ONE, 600, &extents), wanted);
    // A store that knows nothing.
    let wanted = chunk(7, 5, &[&id, &descriptor(600, 0)]);
    assert_eq!(status(false, REQ_ONE, 600, &[]), wanted);
    // Branch extension-ext-header: NBD_REPLY_TYPE_BLOCK_STATUS_EXT.
    let descriptor = |length: u64, flags: u64| [length.to_be_bytes(), flags.to_be_bytes()].concat();
    let parts = [&id[..], &2u32.to_be_bytes(), &descriptor(1024, 3), &descriptor(1, 0)];
    let wanted = extended_chunk(7, 6, 512, &parts);
    assert_eq!(status(true, 0, 1025, &extents), wanted);
}

#[test]
fn block_status_has_a_maximum_of_extents() {
    let extents: Vec<_> = (0..100_000).map(|index| (1, index % 2)).collect();
    let reply = status(false, 0, 100_000, &extents);
    assert_eq!(reply.len(), 20 + 4 + 8 * MAXIMUM_EXTENTS);
}

#[test]
fn lengths_of_64_bits_are_accepted_with_extended_headers() {
    let mut server = extended("disk");
    server.set_bytes(1 << 50);
    let head = extended_request(CommandCode::Trim, 0, 7, 1 << 40, 1 << 41);
    receive(&mut server, &head).unwrap();
    let (_, operation) = next_request(&mut server);
    assert!(matches!(operation, Operation::Trim { offset, length, .. }
        if (offset, length) == (1 << 40, 1 << 41)));
    let head = extended_request(CommandCode::Read, 0, 7, 0, 1 << 41);
    receive(&mut server, &head).unwrap();
    assert_eq!(refused(&mut server), ErrorCode::Overflow);
}

#[test]
fn payload_above_the_maximum_is_refused_or_closes_the_connection() {
    let settings = Settings { maximum_payload: 1 << 16, ..Settings::default() };
    let mut server = selected("disk", &[], settings);
    receive(&mut server, &request(CommandCode::Read, 0, 7, 0, (1 << 16) + 1)).unwrap();
    assert_eq!(refused(&mut server), ErrorCode::Overflow);
    // "Size constraints": up to the default maximum, the payload is skipped.
    let length = (1 << 16) + 1;
    receive(&mut server, &request(CommandCode::Write, 0, 7, 0, length)).unwrap();
    receive(&mut server, &vec![7; length as usize]).unwrap();
    assert_eq!(refused(&mut server), ErrorCode::Invalid);
    assert_in_sync(&mut server, &request(CommandCode::Flush, 0, 8, 0, 0));
    let length = (32 << 20) + 1;
    let error = receive(&mut server, &request(CommandCode::Write, 0, 7, 0, length)).unwrap_err();
    let (length, limit) = (length.into(), 32 << 20);
    assert_eq!(error, ServerError::PayloadTooLong { length, limit });

    // Branch extension-ext-header, "Request message".
    let mut server = selected("disk", &[option(OptionCode::ExtendedHeaders, &[])], settings);
    let head = extended_request(CommandCode::Cache, PAYLOAD_LEN, 7, 0, (1 << 16) + 1);
    assert!(matches!(receive(&mut server, &head), Err(ServerError::PayloadTooLong { .. })));
}

#[test]
fn payload_of_an_extended_request_is_consumed() {
    let flush = extended_request(CommandCode::Flush, 0, 8, 0, 0);
    for command in [CommandCode::BlockStatus, CommandCode::Read, CommandCode(4711)] {
        let mut server = extended("disk");
        let head = extended_request(command, PAYLOAD_LEN, 7, 0, 1000);
        receive(&mut server, &[head, vec![7; 1000]].concat()).unwrap();
        assert_eq!(refused(&mut server), ErrorCode::Invalid);
        assert_in_sync(&mut server, &flush);
    }
    // A write needs the flag.
    let mut server = extended("disk");
    receive(&mut server, &extended_request(CommandCode::Write, 0, 7, 0, 1000)).unwrap();
    assert_eq!(refused(&mut server), ErrorCode::Invalid);
    assert_in_sync(&mut server, &flush);
}

#[test]
fn wrong_magic_number_closes_the_connection() {
    let mut server = simple("disk");
    let error = receive(&mut server, &[0x66; 28]).unwrap_err();
    assert_eq!(error, ServerError::Magic { what: "a request", found: 0x6666_6666 });
    assert_eq!(receive(&mut server, &[]), Err(error));
    // The formats are exclusive.
    let flush = extended_request(CommandCode::Flush, 0, 1, 0, 0);
    assert!(receive(&mut simple("disk"), &flush).is_err());
    let flush = [request(CommandCode::Flush, 0, 1, 0, 0), vec![0; 4]].concat();
    assert!(receive(&mut extended("disk"), &flush).is_err());
}

#[test]
fn cmd_disc_waits_for_open_requests() {
    let mut server = simple("disk");
    let flush = request(CommandCode::Flush, 0, 1, 0, 0);
    // Flags and lengths of NBD_CMD_DISC have no meaning.
    let disconnect = request(CommandCode::Disconnect, 0xff, 2, 3, 4);
    receive(&mut server, &[flush, disconnect].concat()).unwrap();
    let task = next_request(&mut server).0;
    assert!(server.poll_event().is_none() && !server.wants_input());
    assert_eq!(server.handle_input(b"more", &mut Disks), Ok(0));
    server.complete(task, Ok(Outcome::Done));
    assert!(matches!(server.poll_event(), Some(Event::Disconnected)));
    assert!(server.poll_event().is_none());
    assert_eq!(sent(&mut server), simple_reply(1, ErrorCode::None));
    receive(&mut server, b"more").unwrap();

    let mut server = simple("disk");
    receive(&mut server, &request(CommandCode::Disconnect, 0, 2, 0, 0)).unwrap();
    assert!(matches!(server.poll_event(), Some(Event::Disconnected)));
    assert!(server.output().is_empty());
}

#[test]
fn server_that_shuts_down_refuses_requests_and_completes_open_ones() {
    let mut server = structured("disk");
    receive(&mut server, &request(CommandCode::Flush, 0, 1, 0, 0)).unwrap();
    let task = next_request(&mut server).0;
    server.shutdown();
    let write = request(CommandCode::Write, 0, 7, 0, 512);
    receive(&mut server, &[write, vec![7; 512]].concat()).unwrap();
    assert_eq!(refused(&mut server), ErrorCode::Shutdown);
    server.complete(task, Ok(Outcome::Done));
    assert_eq!(sent(&mut server), simple_reply(1, ErrorCode::None));
}

#[test]
fn changed_size_applies_to_the_next_request() {
    let mut server = simple("disk");
    server.set_bytes(2 * BYTES);
    receive(&mut server, &request(CommandCode::Read, 0, 7, BYTES, 512)).unwrap();
    next_request(&mut server);
    server.set_bytes(BYTES);
    receive(&mut server, &request(CommandCode::Read, 0, 7, BYTES, 512)).unwrap();
    assert_eq!(refused(&mut server), ErrorCode::Invalid);
}

#[test]
fn enotsup_is_reported_for_fast_zeroes_only() {
    for (flags, error) in [(FAST_ZERO, ErrorCode::NotSupported), (0, ErrorCode::Invalid)] {
        let mut server = simple("disk");
        receive(&mut server, &request(CommandCode::WriteZeroes, flags, 7, 0, 512)).unwrap();
        let task = next_request(&mut server).0;
        server.complete(task, Err(ErrorCode::NotSupported));
        assert_eq!(refused(&mut server), error);
    }
    let mut server = structured("disk");
    receive(&mut server, &request(CommandCode::Flush, 0, 7, 0, 0)).unwrap();
    let task = next_request(&mut server).0;
    server.complete(task, Err(ErrorCode::None));
    assert_eq!(refused(&mut server), ErrorCode::Io, "an error chunk has an error");
}

#[test]
fn number_of_open_requests_is_bounded() {
    let settings = Settings { maximum_requests: 2, ..Settings::default() };
    let mut server = selected("disk", &[], settings);
    let flush = request(CommandCode::Flush, 0, 1, 0, 0);
    let bytes = flush.repeat(3);
    assert_eq!(server.handle_input(&bytes, &mut Disks), Ok(2 * 28));
    assert!(!server.wants_input());
    let task = next_request(&mut server).0;
    server.complete(task, Ok(Outcome::Done));
    assert!(server.wants_input());
    receive(&mut server, &bytes[2 * 28..]).unwrap();
    assert_eq!(server.open_requests(), 2);
}

#[test]
fn memory_of_requests_and_unsent_replies_is_bounded() {
    let settings = Settings { maximum_memory: 100_000, ..Settings::default() };
    let mut server = selected("disk", &[], settings);
    let read = request(CommandCode::Read, 0, 1, 0, 32 * 1024);
    let bytes = read.repeat(10);
    let consumed = server.handle_input(&bytes, &mut Disks).unwrap();
    assert_eq!(consumed, 3 * 28, "reads count when they are accepted");
    for _ in 0..3 {
        let task = next_request(&mut server).0;
        let data = Buffer::zeroed(32 * 1024);
        server.complete(task, Ok(Outcome::Data(data.into())));
        assert!(!server.wants_input(), "the replies are not sent");
    }
    sent(&mut server);
    assert!(server.wants_input() && server.memory() == 0);
    // A client that sends invalid requests and reads no replies.
    let bytes = request(CommandCode(4711), 0, 1, 0, 0).repeat(10_000);
    let consumed = server.handle_input(&bytes, &mut Disks).unwrap();
    assert!(consumed < bytes.len() && server.memory() < 101_000);
}

#[test]
fn a_request_beyond_the_allowance_waits_with_those_behind_it() {
    let mut server = simple("disk");
    server.set_allowance(40_000);
    let read = |length| request(CommandCode::Read, 0, 1, 0, length);
    let bytes = [request(CommandCode::Flush, 0, 1, 0, 0), read(32 * 1024), read(512)].concat();
    assert_eq!(server.handle_input(&bytes, &mut Disks).unwrap(), 3 * 28);
    assert!(!server.wants_input() && server.waits_for_memory(), "the last read waits");
    assert_eq!(server.open_requests(), 2);
    let (flush, _) = next_request(&mut server);
    server.complete(flush, Ok(Outcome::Done));
    assert!(!server.wants_input(), "a flush has no memory to return");
    server.set_allowance(80_000);
    assert!(server.wants_input(), "without further bytes");
    assert_eq!(server.handle_input(&[], &mut Disks).unwrap(), 0);
    assert!(!server.waits_for_memory());
    assert_eq!(server.open_requests(), 2);
}

#[test]
fn data_of_long_writes_lands_in_its_buffer() {
    let mut server = simple("disk");
    let length = 3 * 16 * 1024;
    let data: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
    assert!(server.landing().is_none(), "not before the head of the request");
    let head = request(CommandCode::Write, 0, 1, 512, length);
    receive(&mut server, &[&head, &data[..100]].concat()).unwrap();
    let mut at = 100;
    while let Some(landing) = server.landing() {
        let count = landing.len().min(10_000);
        landing[..count].copy_from_slice(&data[at..at + count]);
        server.landed(count);
        at += count;
    }
    receive(&mut server, &data[at..]).unwrap();
    let (_, Operation::Write { offset: 512, data: found, .. }) = next_request(&mut server) else {
        panic!("no write")
    };
    assert!(found[..] == data[..]);
}

#[test]
fn completions_after_an_error_have_no_effect() {
    let mut server = simple("disk");
    receive(&mut server, &request(CommandCode::Flush, 0, 1, 0, 0)).unwrap();
    let task = next_request(&mut server).0;
    assert!(receive(&mut server, &[0; 28]).is_err());
    server.complete(task, Ok(Outcome::Done));
    assert!(server.output().is_empty());
}
