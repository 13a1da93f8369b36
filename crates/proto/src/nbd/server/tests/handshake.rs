use sarsen_wire::nbd::{EXPORT_NAME_PADDING, InfoCode};

use super::*;

const HAS_FLAGS: u16 = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA;

fn export_info(flags: u16) -> (ReplyCode, Vec<u8>) {
    let data = [&[0, 0][..], &BYTES.to_be_bytes(), &flags.to_be_bytes()].concat();
    (ReplyCode::Info, data)
}

#[test]
fn client_flags_that_were_not_offered_close_the_connection() {
    for flags in [4u32, 1 << 31, u32::MAX] {
        let mut server = Server::new(Settings::default());
        let error = receive(&mut server, &flags.to_be_bytes()).unwrap_err();
        assert_eq!(error, ServerError::ClientFlags(flags));
        assert_eq!(receive(&mut server, &[]), Err(error), "an error is final");
        assert!(!server.wants_input());
    }
}

#[test]
fn newstyle_client_without_the_fixed_flag_can_only_select_by_name() {
    for (flags, padding) in [(0u32, EXPORT_NAME_PADDING), (2, 0)] {
        let mut server = Server::new(Settings::default());
        sent(&mut server);
        receive(&mut server, &flags.to_be_bytes()).unwrap();
        receive(&mut server, &option(OptionCode::ExportName, b"plain")).unwrap();
        let reply = sent(&mut server);
        assert_eq!(reply[..8], BYTES.to_be_bytes());
        let flags = HAS_FLAGS | flag::SEND_WRITE_ZEROES;
        assert_eq!(reply[8..10], flags.to_be_bytes());
        assert_eq!(reply[10..], vec![0; padding]);
        assert!(
            matches!(server.poll_event(), Some(Event::Selected(export)) if export.name == "plain")
        );

        let mut server = Server::new(Settings::default());
        receive(&mut server, &[0, 0, 0, 2]).unwrap();
        let error = receive(&mut server, &go("plain")).unwrap_err();
        assert_eq!(error, ServerError::NotFixedNewstyle(7));
    }
}

#[test]
fn opt_export_name_that_fails_closes_the_connection() {
    let long = "x".repeat(4097);
    for name in ["unknown", "secret", "tls-only", "leaving", "nul\0", &long] {
        let mut server = greeted(Tls::Optional);
        let error = receive(&mut server, &option(OptionCode::ExportName, name.as_bytes()));
        assert!(matches!(error, Err(ServerError::ExportName(_))), "{name}");
        assert!(server.output().is_empty() && server.poll_event().is_none());
    }
    let mut server = greeted(Tls::Unavailable);
    let error = receive(&mut server, &option(OptionCode::ExportName, &[0xff]));
    assert_eq!(error, Err(ServerError::ExportName("the name is not UTF-8")));
    // Branch extension-ext-header, "Option types": not after extended headers.
    let mut server = greeted(Tls::Unavailable);
    negotiate(&mut server, &option(OptionCode::ExtendedHeaders, &[]));
    assert!(receive(&mut server, &option(OptionCode::ExportName, b"disk")).is_err());
    let mut server = greeted(Tls::Required);
    let error = receive(&mut server, &option(OptionCode::ExportName, b"disk"));
    assert_eq!(error, Err(ServerError::ExportName("TLS is required")));
}

#[test]
fn opt_go_reports_the_export_and_starts_transmission() {
    let mut server = greeted(Tls::Unavailable);
    let all = info_data("disk", &[1, 2, 3, 4711]);
    let replies = negotiate(&mut server, &option(OptionCode::Info, &all));
    let flags = HAS_FLAGS
        | flag::ROTATIONAL
        | flag::SEND_TRIM
        | flag::SEND_WRITE_ZEROES
        | flag::CAN_MULTI_CONN
        | flag::SEND_CACHE
        | flag::SEND_FAST_ZERO;
    let wanted = [
        export_info(flags),
        (ReplyCode::Info, b"\0\x01disk".to_vec()),
        (ReplyCode::Info, b"\0\x02a disk".to_vec()),
        (ReplyCode::Info, vec![0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]),
        (ReplyCode::Ack, vec![]),
    ];
    assert_eq!(replies, wanted);
    assert!(server.poll_event().is_none(), "NBD_OPT_INFO selects nothing");
    assert_eq!(negotiate(&mut server, &option(OptionCode::Go, &all)), wanted);
    assert!(matches!(server.poll_event(), Some(Event::Selected(export)) if export.name == "disk"));
}

#[test]
fn transmission_flags_are_those_of_the_export() {
    let mut server = greeted(Tls::Unavailable);
    negotiate(&mut server, &option(OptionCode::StructuredReply, &[]));
    let replies = negotiate(&mut server, &go("read-only"));
    assert_eq!(replies[0], export_info(HAS_FLAGS | flag::READ_ONLY | flag::SEND_DF));
}

#[test]
fn size_constraints_are_reported_to_a_client_that_does_not_request_them() {
    let mut server = greeted(Tls::Unavailable);
    let replies = negotiate(&mut server, &option(OptionCode::Info, &info_data("blocks", &[])));
    assert_eq!(replies[1].1, [0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    assert_eq!(codes(&replies), [ReplyCode::Info, ReplyCode::Info, ReplyCode::Ack]);
}

#[test]
fn preferred_block_size_is_one_that_the_document_permits() {
    struct Preferring(u32);
    impl Exports for Preferring {
        fn find(&mut self, name: &str) -> Result<Export, Refusal> {
            Ok(Export { preferred_block: self.0, minimum_block: 1024, ..Export::new(name, BYTES) })
        }
        fn list(&mut self) -> Vec<ListedExport> {
            Vec::new()
        }
    }
    for (preferred, reported) in [(0, 1024), (3000, 4096), (1 << 26, 1 << 25), (u32::MAX, 1 << 25)]
    {
        let mut server = greeted(Tls::Unavailable);
        server.handle_input(&go("x"), &mut Preferring(preferred)).unwrap();
        let replies = parse_replies(&sent(&mut server));
        assert_eq!(replies[1].1[6..10], u32::to_be_bytes(reported), "{preferred}");
    }
}

#[test]
fn refused_exports_have_their_error_and_negotiation_continues() {
    let mut server = greeted(Tls::Unavailable);
    for (name, code) in [
        ("unknown", ReplyCode::Unknown),
        ("secret", ReplyCode::Policy),
        ("leaving", ReplyCode::Shutdown),
        ("tls-only", ReplyCode::Unknown),
    ] {
        for kind in [OptionCode::Info, OptionCode::Go] {
            let replies = negotiate(&mut server, &option(kind, &info_data(name, &[])));
            assert_eq!(codes(&replies), [code]);
        }
    }
    assert_eq!(codes(&negotiate(&mut server, &go("disk"))).last(), Some(&ReplyCode::Ack));
}

#[test]
fn options_with_invalid_data_are_refused() {
    let no_data = [OptionCode::List, OptionCode::StructuredReply, OptionCode::ExtendedHeaders];
    let mut cases: Vec<(OptionCode, Vec<u8>)> =
        no_data.into_iter().map(|option| (option, vec![0])).collect();
    for kind in [OptionCode::Info, OptionCode::Go] {
        for data in [
            vec![],
            vec![0, 0, 0],
            vec![0; 5],
            b"\0\0\0\x05disk\0\0".to_vec(),
            [string("disk"), vec![0, 1]].concat(),
            [string("disk"), vec![0, 0, 0]].concat(),
            [string("disk"), vec![0, 0, 0, 0]].concat(),
            info_data("nul\0", &[]),
            info_data(&"x".repeat(4097), &[]),
            b"\0\0\0\x01\xff\0\0".to_vec(),
            [&[0xff; 4][..], b"disk\0\0"].concat(),
        ] {
            cases.push((kind, data));
        }
    }
    for kind in [OptionCode::ListMetaContext, OptionCode::SetMetaContext] {
        for data in [
            vec![],
            string("disk"),
            context_data("disk", &["no colon"]),
            context_data("disk", &[":leaf"]),
            context_data("disk", &["base:\0"]),
            [string("disk"), vec![0, 0, 0, 1]].concat(),
            [string("disk"), vec![0xff; 4]].concat(),
            [string("disk"), vec![0, 0, 0, 1, 0, 0, 0, 9], b"base:".to_vec()].concat(),
            [context_data("disk", &["base:"]), vec![0]].concat(),
        ] {
            cases.push((kind, data));
        }
    }
    let mut server = greeted(Tls::Unavailable);
    negotiate(&mut server, &option(OptionCode::StructuredReply, &[]));
    for (kind, data) in cases {
        let replies = negotiate(&mut server, &option(kind, &data));
        assert_eq!(codes(&replies), [ReplyCode::Invalid], "{kind:?} {data:?}");
    }
}

#[test]
fn unknown_options_are_skipped_and_unsupported() {
    let mut server = greeted(Tls::Unavailable);
    for code in [0, 4, 12, u32::MAX] {
        let replies = negotiate(&mut server, &option(OptionCode(code), &[7; 100_000]));
        assert_eq!(codes(&replies), [ReplyCode::Unsupported]);
        assert!(server.memory() < 4096);
    }
}

#[test]
fn too_long_options_are_skipped_without_being_stored() {
    let mut server = greeted(Tls::Unavailable);
    negotiate(&mut server, &option(OptionCode::StructuredReply, &[]));
    for kind in
        [OptionCode::Info, OptionCode::Go, OptionCode::ListMetaContext, OptionCode::SetMetaContext]
    {
        let bytes = option(kind, &[0; 16 * 1024 + 1]);
        for byte in &bytes[..bytes.len() - 1] {
            receive(&mut server, &[*byte]).unwrap();
            assert!(server.memory() < 4096);
        }
        assert_eq!(codes(&negotiate(&mut server, &[0])), [ReplyCode::TooBig]);
    }
    // The longest option is stored, and its memory is freed.
    let bytes = option(OptionCode::Go, &[0; 16 * 1024]);
    for byte in &bytes[..bytes.len() - 1] {
        receive(&mut server, &[*byte]).unwrap();
        assert!(server.memory() <= 16 * 1024);
    }
    assert_eq!(codes(&negotiate(&mut server, &[0])), [ReplyCode::Invalid]);
    assert!(server.memory() < 4096);
}

#[test]
fn number_of_options_is_bounded() {
    let mut server = greeted(Tls::Unavailable);
    let list = option(OptionCode::List, &[]);
    for _ in 0..16 * 1024 {
        negotiate(&mut server, &list);
    }
    assert!(matches!(receive(&mut server, &list), Err(ServerError::TooManyOptions(_))));
}

#[test]
fn client_that_reads_no_replies_must_wait() {
    let mut server = greeted(Tls::Unavailable);
    let many = option(OptionCode::List, &[]).repeat(10_000);
    let consumed = server.handle_input(&many, &mut Disks).unwrap();
    assert!(consumed < many.len() && !server.wants_input());
    assert!(server.memory() < 8192, "{} bytes", server.memory());
    sent(&mut server);
    assert!(server.wants_input());
}

#[test]
fn opt_list_returns_the_exports() {
    let mut server = greeted(Tls::Unavailable);
    let replies = negotiate(&mut server, &option(OptionCode::List, &[]));
    let disk = [string("disk"), b"a disk".to_vec()].concat();
    let wanted =
        [(ReplyCode::Server, disk), (ReplyCode::Server, string("plain")), (ReplyCode::Ack, vec![])];
    assert_eq!(replies, wanted);
}

#[test]
fn opt_abort_is_acknowledged_and_ends_the_session() {
    for data in [&b""[..], b"ignored"] {
        let mut server = greeted(Tls::Required);
        let replies = negotiate(&mut server, &option(OptionCode::Abort, data));
        assert_eq!(codes(&replies), [ReplyCode::Ack]);
        assert!(matches!(server.poll_event(), Some(Event::Disconnected)));
        receive(&mut server, b"discarded").unwrap();
        assert!(!server.wants_input() && server.output().is_empty());
    }
}

#[test]
fn wrong_magic_number_closes_the_connection() {
    let mut server = greeted(Tls::Unavailable);
    let error = receive(&mut server, b"IHAVEOPX\0\0\0\x03\0\0\0\0").unwrap_err();
    let found = u64::from_be_bytes(*b"IHAVEOPX");
    assert_eq!(error, ServerError::Magic { what: "an option", found });
}

#[test]
fn notls_mode_refuses_starttls() {
    let mut server = greeted(Tls::Unavailable);
    let replies = negotiate(&mut server, &option(OptionCode::StartTls, &[]));
    assert_eq!(codes(&replies), [ReplyCode::Policy]);
    assert!(server.poll_event().is_none());
}

#[test]
fn forcedtls_mode_refuses_all_options_without_tls() {
    let mut server = greeted(Tls::Required);
    for kind in [3, 6, 7, 8, 9, 10, 11, 4, 4711].map(OptionCode) {
        let replies = negotiate(&mut server, &option(kind, b"data"));
        assert_eq!(codes(&replies), [ReplyCode::TlsRequired], "{kind:?}");
    }
    let replies = negotiate(&mut server, &option(OptionCode::StartTls, b"data"));
    assert_eq!(codes(&replies), [ReplyCode::Invalid]);
    start_tls(&mut server);
    let replies = negotiate(&mut server, &option(OptionCode::StartTls, &[]));
    assert_eq!(codes(&replies), [ReplyCode::Invalid], "TLS is in use");
    assert_eq!(codes(&negotiate(&mut server, &go("disk"))), [ReplyCode::Info, ReplyCode::Ack]);
}

fn start_tls(server: &mut Server) {
    let replies = negotiate(server, &option(OptionCode::StartTls, &[]));
    assert_eq!(codes(&replies), [ReplyCode::Ack]);
    assert!(matches!(server.poll_event(), Some(Event::StartTls)));
    assert!(!server.wants_input(), "the next bytes belong to TLS");
    server.tls_started();
    assert!(server.wants_input());
}

#[test]
fn selectivetls_mode_refuses_exports_without_tls() {
    let mut server = greeted(Tls::Optional);
    for kind in [OptionCode::Info, OptionCode::Go] {
        let replies = negotiate(&mut server, &option(kind, &info_data("tls-only", &[])));
        assert_eq!(codes(&replies), [ReplyCode::TlsRequired]);
    }
    // The document permits the error only for NBD_OPT_INFO, NBD_OPT_GO and NBD_OPT_EXPORT_NAME.
    negotiate(&mut server, &option(OptionCode::StructuredReply, &[]));
    assert_eq!(codes(&negotiate(&mut server, &set_context("tls-only"))), [ReplyCode::Unknown]);
    start_tls(&mut server);
    assert_eq!(codes(&negotiate(&mut server, &go("tls-only"))), [ReplyCode::Unknown]);
}

#[test]
fn opt_starttls_forgets_what_was_negotiated_before() {
    let mut server = greeted(Tls::Optional);
    negotiate(&mut server, &option(OptionCode::StructuredReply, &[]));
    negotiate(&mut server, &set_context("disk"));
    start_tls(&mut server);
    assert_eq!(codes(&negotiate(&mut server, &set_context("disk"))), [ReplyCode::Invalid]);
    negotiate(&mut server, &go("disk"));
    assert!(matches!(server.poll_event(), Some(Event::Selected(_))));
    receive(&mut server, &request(CommandCode::BlockStatus, 0, 1, 0, 512)).unwrap();
    assert_eq!(sent(&mut server), simple_reply(1, ErrorCode::Invalid));
}

#[test]
fn bytes_between_starttls_and_tls_are_an_error() {
    // In the same segment as the option.
    let mut server = greeted(Tls::Optional);
    let bytes = [option(OptionCode::StartTls, &[]), option(OptionCode::List, &[])].concat();
    assert_eq!(receive(&mut server, &bytes), Err(ServerError::BytesBeforeTls));
    // In a later one.
    let mut server = greeted(Tls::Optional);
    receive(&mut server, &option(OptionCode::StartTls, &[])).unwrap();
    assert_eq!(receive(&mut server, &[1]), Err(ServerError::BytesBeforeTls));
    sent(&mut server);
    server.tls_started();
    assert_eq!(receive(&mut server, &[1]), Err(ServerError::BytesBeforeTls), "an error is final");
}

#[test]
fn metadata_contexts_are_listed() {
    let mut server = greeted(Tls::Unavailable);
    let list = |name: &str, queries: &[&str]| {
        option(OptionCode::ListMetaContext, &context_data(name, queries))
    };
    assert_eq!(codes(&negotiate(&mut server, &list("disk", &[]))), [ReplyCode::Invalid]);
    negotiate(&mut server, &option(OptionCode::StructuredReply, &[]));
    let found =
        [(ReplyCode::MetaContext, b"\0\0\0\0base:allocation".to_vec()), (ReplyCode::Ack, vec![])];
    for queries in [&[][..], &["base:"], &["x-other:", "base:allocation", "base:allocation"]] {
        assert_eq!(negotiate(&mut server, &list("disk", queries)), found, "{queries:?}");
    }
    for queries in [&["qemu:dirty-bitmap:x"][..], &["base:depth"], &["base:Allocation"]] {
        assert_eq!(codes(&negotiate(&mut server, &list("disk", queries))), [ReplyCode::Ack]);
    }
    assert_eq!(codes(&negotiate(&mut server, &list("plain", &[]))), [ReplyCode::Ack]);
    assert_eq!(codes(&negotiate(&mut server, &list("unknown", &[]))), [ReplyCode::Unknown]);
}

/// Returns the names and identifiers of the contexts in the replies to an option, which succeeds.
fn contexts(replies: &[(ReplyCode, Vec<u8>)]) -> Vec<(u32, String)> {
    let ((code, _), found) = replies.split_last().unwrap();
    assert_eq!(*code, ReplyCode::Ack);
    let context = |(code, data): &(ReplyCode, Vec<u8>)| {
        assert_eq!(*code, ReplyCode::MetaContext);
        let (id, name) = data.split_first_chunk().unwrap();
        (u32::from_be_bytes(*id), String::from_utf8(name.to_vec()).unwrap())
    };
    found.iter().map(context).collect()
}

#[test]
fn dirty_bitmaps_are_listed() {
    let mut server = greeted(Tls::Unavailable);
    negotiate(&mut server, &option(OptionCode::StructuredReply, &[]));
    let base = "base:allocation";
    let [first, second] = ["qemu:dirty-bitmap:s1", "qemu:dirty-bitmap:s2"];
    let cases: [(&[&str], &[&str]); 9] = [
        (&[], &[base, first, second]),
        (&["qemu:"], &[first, second]),
        (&["qemu:dirty-bitmap:"], &[first, second]),
        (&["qemu:", "base:", first], &[base, first, second]),
        (&[second, second], &[second]),
        (&[second, base, first], &[base, first, second]),
        (&["qemu:dirty-bitmap", "qemu:dirty-bitmap:s"], &[]),
        (&["qemu:allocation-depth", "qemu:dirty-bitmap:S1", "QEMU:"], &[]),
        (&["base:"], &[base]),
    ];
    for (queries, wanted) in cases {
        let data = context_data("snapshot", queries);
        let replies = negotiate(&mut server, &option(OptionCode::ListMetaContext, &data));
        let wanted: Vec<_> = wanted.iter().map(|&name| (0, name.to_owned())).collect();
        assert_eq!(contexts(&replies), wanted, "{queries:?}");
    }
}

#[test]
fn several_metadata_contexts_are_selected_with_identifiers_of_their_own() {
    let mut server = greeted(Tls::Unavailable);
    negotiate(&mut server, &option(OptionCode::StructuredReply, &[]));
    let mut set = |name: &str, queries: &[&str]| {
        let data = context_data(name, queries);
        negotiate(&mut server, &option(OptionCode::SetMetaContext, &data))
    };
    let queries = ["qemu:dirty-bitmap:s2", "base:allocation", "qemu:dirty-bitmap:none"];
    let wanted = [(1, "base:allocation".to_owned()), (2, "qemu:dirty-bitmap:s2".to_owned())];
    assert_eq!(contexts(&set("snapshot", &queries)), wanted);
    // Only a list has wildcards.
    assert_eq!(contexts(&set("snapshot", &["qemu:", "qemu:dirty-bitmap:"])), []);
    let names: Vec<_> =
        bitmaps(MAXIMUM_CONTEXTS).iter().map(|name| format!("qemu:dirty-bitmap:{name}")).collect();
    let mut queries: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(contexts(&set("snapshots", &queries)).len(), MAXIMUM_CONTEXTS);
    queries.push("base:allocation");
    assert_eq!(codes(&set("snapshots", &queries)), [ReplyCode::TooBig]);
    let list = option(OptionCode::ListMetaContext, &context_data("snapshots", &queries));
    assert_eq!(contexts(&negotiate(&mut server, &list)).len(), MAXIMUM_CONTEXTS + 1);
}

#[test]
fn metadata_context_belongs_to_the_export_and_to_the_last_request() {
    let set = |name: &str, queries: &[&str]| {
        option(OptionCode::SetMetaContext, &context_data(name, queries))
    };
    let base = &["x-other:leaf", "base:allocation"][..];
    let too_long = option(OptionCode::SetMetaContext, &[0; 20_000]);
    let cases = [
        (vec![set("disk", base)], true),
        (vec![set("disk", &["base:"])], false),
        (vec![set("disk", &[])], false),
        (vec![set("", base)], false),
        (vec![set("plain", base), set("disk", base)], true),
        (vec![set("disk", base), set("plain", base)], false),
        (vec![set("disk", base), set("unknown", base)], false),
        (vec![set("disk", base), option(OptionCode::SetMetaContext, &[])], false),
        (vec![set("disk", base), too_long], false),
        (vec![set("disk", base), option(OptionCode::List, &[])], true),
    ];
    for (index, (options, is_selected)) in cases.into_iter().enumerate() {
        let all = [vec![option(OptionCode::StructuredReply, &[])], options].concat();
        let mut server = selected("disk", &all, Settings::default());
        receive(&mut server, &request(CommandCode::BlockStatus, 0, 1, 0, 512)).unwrap();
        assert_eq!(server.poll_event().is_some(), is_selected, "case {index}");
        assert_eq!(sent(&mut server).is_empty(), is_selected, "case {index}");
    }
    let mut server = greeted(Tls::Unavailable);
    negotiate(&mut server, &option(OptionCode::ExtendedHeaders, &[]));
    let replies = negotiate(&mut server, &set("disk", base));
    assert_eq!(replies[0], (ReplyCode::MetaContext, b"\0\0\0\x01base:allocation".to_vec()));
}

#[test]
fn extended_headers_take_the_place_of_structured_replies() {
    let mut server = greeted(Tls::Unavailable);
    let headers = option(OptionCode::ExtendedHeaders, &[]);
    let replies = option(OptionCode::StructuredReply, &[]);
    assert_eq!(codes(&negotiate(&mut server, &replies)), [ReplyCode::Ack]);
    assert_eq!(codes(&negotiate(&mut server, &replies)), [ReplyCode::Ack]);
    assert_eq!(codes(&negotiate(&mut server, &headers)), [ReplyCode::Ack]);
    let refused = negotiate(&mut server, &replies);
    assert_eq!(codes(&refused), [ReplyCode::ExtendedHeadersRequired]);
}

#[test]
fn server_that_shuts_down_refuses_options_except_abort() {
    let mut server = greeted(Tls::Unavailable);
    server.shutdown();
    for kind in [OptionCode::List, OptionCode::Go, OptionCode(4711)] {
        let replies = negotiate(&mut server, &option(kind, b"data"));
        assert_eq!(codes(&replies), [ReplyCode::Shutdown]);
    }
    let replies = negotiate(&mut server, &option(OptionCode::Abort, &[]));
    assert_eq!(codes(&replies), [ReplyCode::Ack]);
    let mut server = greeted(Tls::Unavailable);
    server.shutdown();
    assert!(receive(&mut server, &option(OptionCode::ExportName, b"disk")).is_err());
}

#[test]
fn default_export_has_the_empty_name() {
    let mut server = greeted(Tls::Unavailable);
    let data = info_data("", &[InfoCode::Name.0]);
    let replies = negotiate(&mut server, &option(OptionCode::Go, &data));
    assert_eq!(replies[1].1, b"\0\x01disk");
}
