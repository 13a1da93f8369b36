//! The client of a name server with arbitrary servers: wherever the bytes are cut, it reports the same events. It never
//! waits for more than one answer, and it sends only whole messages.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use sarsen_proto::isns::{Answerer, Client, Entity, Event, Node, Portal};

fn entity(nodes: usize) -> Entity {
    let node = |number| Node { name: format!("iqn.t:{number}"), alias: None, groups: None };
    Entity {
        identifier: "san1".into(),
        portals: vec![Portal {
            address: ([192, 0, 2, 1], 3260).into(),
            group: 1,
            notice_port: Some(4000),
        }],
        nodes: (0..nodes).map(node).collect(),
        registration_period: 60,
    }
}

/// Returns a client's events and output, and whether it closed the connection.
fn play(input: &[u8], piece: usize, origin: Instant) -> (Vec<Event>, Vec<u8>, bool) {
    let mut client = Client::new(entity(2));
    client.handle_connected(origin);
    let (mut events, mut sent) = (Vec::new(), Vec::new());
    for bytes in input.chunks(piece) {
        let result = client.handle_input(bytes, origin);
        sent.extend_from_slice(client.output());
        client.sent(client.output().len());
        while let Some(event) = client.poll_event() {
            events.push(event);
        }
        if result.is_err() {
            return (events, sent, true);
        }
    }
    client.update(entity(3), origin);
    let _ = client.handle_timeout(origin + Duration::from_secs(3600));
    client.depart(origin);
    sent.extend_from_slice(client.output());
    (events, sent, false)
}

fuzz_target!(|input: &[u8]| {
    let origin = sarsen_io::time::now();
    let whole = play(input, input.len().max(1), origin);
    for piece in [1, 7] {
        assert_eq!(play(input, piece, origin), whole);
    }
    let mut rest = whole.1.as_slice();
    while !rest.is_empty() {
        let length = usize::from(u16::from_be_bytes([rest[4], rest[5]]));
        assert_eq!(rest[..2], [0, 1], "a header");
        rest = &rest[12 + length..];
    }
    let _ = Answerer::default().handle_input(input);
});
