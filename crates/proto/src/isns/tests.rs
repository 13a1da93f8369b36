//! Tests of the client with a scripted name server and a simulated clock.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sarsen_wire::isns::{
    AUTHENTICATED, FIRST, FROM_SERVER, Function, Header, LAST, REPLACE, Status, Tag,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::message::{Inbox, Message, MessageError, Payload, attributes, number, text};
use super::*;

fn node(name: &str, groups: Option<&[u16]>) -> Node {
    let groups = groups.map(|groups| groups.iter().copied().collect::<BTreeSet<u16>>());
    Node { name: name.into(), alias: None, groups }
}

fn entity(nodes: &[&str]) -> Entity {
    Entity {
        identifier: "san1".into(),
        portals: vec![
            Portal {
                address: "192.0.2.1:3260".parse().unwrap(),
                group: 1,
                notice_port: Some(4000),
            },
            Portal { address: "[2001:db8::1]:860".parse().unwrap(), group: 2, notice_port: None },
        ],
        nodes: nodes.iter().map(|name| node(name, None)).collect(),
        registration_period: 90,
    }
}

/// A client, and the server's end of its connection.
struct Harness {
    client: Client,
    now: Instant,
    inbox: Inbox,
}

impl Harness {
    /// Returns a connected client. The server has not answered yet.
    fn new(entity: Entity) -> Self {
        let mut client = Client::new(entity);
        let now = some_instant();
        client.handle_connected(now);
        Self { client, now, inbox: Inbox::default() }
    }

    /// Returns the next message of the client, with its flags.
    fn asked(&mut self) -> Option<(Message, u16)> {
        let bytes = self.client.output().to_vec();
        self.client.sent(bytes.len());
        let flags = Header::ref_from_prefix(&bytes).ok().map(|(header, _)| header.flags.get());
        self.inbox.push(&bytes);
        self.inbox.next().unwrap().map(|message| (message, flags.unwrap_or(0)))
    }

    fn answer(&mut self, request: &Message, status: Status) -> Result<(), ClientError> {
        let mut payload = Payload::default();
        payload.append(&status.0.to_be_bytes());
        if request.function == Function::Register && status == Status::Success {
            payload.number(Tag::RegistrationPeriod, 60);
        }
        let function = request.function.response();
        let bytes = payload.message(function, FROM_SERVER, request.transaction);
        self.client.handle_input(&bytes, self.now)
    }

    /// Answers all requests with success, and returns them.
    fn serve(&mut self) -> Vec<(Message, u16)> {
        let mut asked = Vec::new();
        while let Some((request, flags)) = self.asked() {
            self.answer(&request, Status::Success).unwrap();
            asked.push((request, flags));
        }
        asked
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }
}

#[allow(clippy::disallowed_methods)] // any start time is suitable
fn some_instant() -> Instant {
    Instant::now()
}

fn functions(asked: &[(Message, u16)]) -> Vec<Function> {
    asked.iter().map(|(message, _)| message.function).collect()
}

fn texts(message: &Message, tag: Tag) -> Vec<String> {
    let attributes = attributes(&message.payload).map(Result::unwrap);
    attributes
        .filter(|(found, _)| *found == tag)
        .map(|(_, value)| text(value).unwrap().to_owned())
        .collect()
}

#[test]
fn rfc4171_5_6_5_1_registration_replaces_earlier_one() {
    let mut world = Harness::new(entity(&["iqn.t:a", "iqn.t:b"]));
    let (request, flags) = world.asked().expect("a registration");
    assert_eq!((request.function, flags & REPLACE), (Function::Register, REPLACE));
    assert!(world.asked().is_none(), "one request at a time");
    // The source of the message comes first, then the nodes.
    assert_eq!(texts(&request, Tag::NodeName), ["iqn.t:a", "iqn.t:a", "iqn.t:b"]);
    assert_eq!(texts(&request, Tag::EntityIdentifier), ["san1", "san1"]);
    let tags: Vec<u32> = attributes(&request.payload)
        .map(Result::unwrap)
        .filter(|(tag, _)| *tag == Tag::GroupTag)
        .filter_map(|(_, value)| number(value))
        .collect();
    assert_eq!(tags, [1, 2, 1, 2]);
    assert_eq!(world.events(), []);
    world.answer(&request, Status::Success).unwrap();
    assert_eq!(world.events(), [Event::Registered]);
    assert_eq!(functions(&world.serve()), [Function::RegisterForChanges]);
}

#[test]
fn rfc4171_3_4_a_portal_that_does_not_lead_to_a_node_has_no_tag() {
    let nodes = vec![node("iqn.t:a", Some(&[2]))];
    let mut world = Harness::new(Entity { nodes, ..entity(&[]) });
    let (request, _) = world.asked().expect("a registration");
    let tags: Vec<usize> = attributes(&request.payload)
        .map(Result::unwrap)
        .filter(|(tag, _)| *tag == Tag::GroupTag)
        .map(|(_, value)| value.len())
        .collect();
    assert_eq!(tags, [0, 4]);
}

/// The server sets the period to 60 seconds, regardless of the request. The client refreshes after a third of that.
#[test]
fn rfc4171_6_2_6_a_registration_is_looked_after_within_its_period() {
    let mut world = Harness::new(entity(&["iqn.t:a"]));
    world.serve();
    let refresh = world.client.poll_timeout().expect("a refresh");
    assert_eq!(refresh, world.now + Duration::from_secs(20));
    world.client.handle_timeout(refresh - Duration::from_millis(1)).unwrap();
    assert!(world.asked().is_none(), "not before its time");
    world.now = refresh;
    world.client.handle_timeout(refresh).unwrap();
    let asked = world.serve();
    assert_eq!(functions(&asked), [Function::Register, Function::RegisterForChanges]);
    assert_eq!(asked[0].1 & REPLACE, 0, "nothing is taken away meanwhile");
    assert_eq!(world.client.poll_timeout(), Some(refresh + Duration::from_secs(20)));
    assert_eq!(world.events(), [Event::Registered]);
}

#[test]
fn rfc4171_5_6_5_4_removed_objects_are_deregistered() {
    let mut world = Harness::new(entity(&["iqn.t:a", "iqn.t:b", "iqn.t:c"]));
    world.serve();
    world.client.update(entity(&["iqn.t:c", "iqn.t:d"]), world.now);
    let asked = world.serve();
    let [removal, registration, ..] = asked.as_slice() else { panic!("{:?}", functions(&asked)) };
    assert_eq!(removal.0.function, Function::Deregister);
    assert_eq!(texts(&removal.0, Tag::NodeName), ["iqn.t:a", "iqn.t:b", "iqn.t:a"]);
    assert_eq!((registration.0.function, registration.1 & REPLACE), (Function::Register, 0));
    assert_eq!(texts(&registration.0, Tag::NodeName), ["iqn.t:c", "iqn.t:c", "iqn.t:d"]);
    let unchanged = entity(&["iqn.t:c", "iqn.t:d"]);
    world.client.update(unchanged, world.now);
    assert!(world.asked().is_none(), "nothing to tell");
    world.client.depart(world.now);
    let asked = world.serve();
    assert_eq!(functions(&asked), [Function::Deregister]);
    assert_eq!(texts(&asked[0].0, Tag::EntityIdentifier), ["san1"]);
    assert_eq!(world.events().last(), Some(&Event::Departed));
    assert_eq!(world.client.poll_timeout(), None);
}

/// The nodes are registered in several messages. Each has room for the answer.
#[test]
fn a_large_registration_is_several_messages() {
    let names: Vec<String> = (0..2000).map(|number| format!("iqn.t:disk-{number:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = Harness::new(entity(&names));
    let asked = world.serve();
    assert!(asked.len() > 10 && asked.iter().all(|(message, _)| message.payload.len() < 1 << 15));
    let replacing = asked.iter().filter(|(_, flags)| flags & REPLACE != 0).count();
    assert_eq!(replacing, 1, "the others add to the first");
    // The first name of each message is its source.
    let reported = asked[..asked.len() - 1].iter();
    let reported: Vec<_> =
        reported.flat_map(|(message, _)| texts(message, Tag::NodeName).split_off(1)).collect();
    assert_eq!(reported, names);
    assert_eq!(world.events(), [Event::Registered]);
}

#[test]
fn rfc4171_5_4_a_refusal_ends_it_and_without_inquiries_it_goes_on() {
    let mut world = Harness::new(entity(&["iqn.t:a"]));
    let (request, _) = world.asked().expect("a registration");
    assert!(has_inquiry_port(&request));
    world.answer(&request, Status::InquiryNotAvailable).unwrap();
    let (request, flags) = world.asked().expect("another");
    assert!(!has_inquiry_port(&request) && flags & REPLACE != 0);
    let refused = world.answer(&request, Status::SourceUnauthorized);
    assert_eq!(refused, Err(ClientError::Refused(Status::SourceUnauthorized)));
    assert_eq!(world.events(), [Event::WithoutInquiries]);
}

fn has_inquiry_port(request: &Message) -> bool {
    attributes(&request.payload).any(|one| one.unwrap().0 == Tag::InquiryPort)
}

#[test]
fn forgotten_registration_is_repeated_once() {
    let mut world = Harness::new(entity(&["iqn.t:a"]));
    world.serve();
    world.now = world.client.poll_timeout().unwrap();
    world.client.handle_timeout(world.now).unwrap();
    let (request, _) = world.asked().expect("a refresh");
    world.answer(&request, Status::SourceUnknown).unwrap();
    let (request, flags) = world.asked().expect("all of it");
    assert_ne!(flags & REPLACE, 0);
    let refused = world.answer(&request, Status::SourceUnknown);
    assert_eq!(refused, Err(ClientError::Refused(Status::SourceUnknown)));
    assert_eq!(world.events(), [Event::Registered, Event::Restored]);
}

#[test]
fn silent_name_server_is_given_up() {
    let mut world = Harness::new(entity(&["iqn.t:a"]));
    let limit = world.client.poll_timeout().expect("a limit");
    assert_eq!(world.client.handle_timeout(limit), Err(ClientError::Silent));
    world.client.handle_disconnected();
    world.client.update(entity(&["iqn.t:b"]), limit);
    assert_eq!((world.client.output(), world.client.poll_timeout()), (&[][..], None));
    world.client.handle_connected(limit);
    world.inbox = Inbox::default();
    let (request, _) = world.asked().expect("a registration");
    assert_eq!(texts(&request, Tag::NodeName)[1..], ["iqn.t:b"]);
    world.client.handle_disconnected();
    world.client.depart(limit);
    assert_eq!(world.events(), [Event::Departed], "there is nobody to tell");
}

fn request(function: Function, payload: Payload) -> Vec<u8> {
    payload.message(function, FROM_SERVER, 77)
}

fn change(names: &[&str]) -> Vec<u8> {
    let mut payload = Payload::default();
    names.iter().for_each(|name| payload.text(Tag::NodeName, name));
    request(Function::StateChange, payload)
}

fn answered(bytes: &[u8]) -> (Message, Vec<Notice>) {
    let (answers, notices) = Answerer::default().handle_input(bytes).unwrap();
    let mut inbox = Inbox::default();
    inbox.push(&answers);
    (inbox.next().unwrap().expect("an answer"), notices)
}

#[test]
fn rfc4171_5_6_5_13_entity_status_inquiry_is_echoed() {
    let mut payload = Payload::default();
    payload.text(Tag::EntityIdentifier, "san1");
    let sent = payload.clone().message(Function::StatusInquiry, 0, 0)[12..].to_vec();
    let (answer, notices) = answered(&request(Function::StatusInquiry, payload));
    assert_eq!((answer.function.0, answer.transaction), (0x800d, 77));
    assert_eq!(answer.payload, [&[0; 4][..], &sent].concat());
    assert_eq!(notices, [Notice::Inquiry]);
    let (answer, notices) = answered(&request(Function(9), Payload::default()));
    assert_eq!(answer.payload, Status::NotSupported.0.to_be_bytes());
    assert_eq!(notices, []);
}

#[test]
fn rfc4171_5_6_5_8_when_something_of_ours_went_the_registration_is_looked_after() {
    let (answer, notices) = answered(&change(&["iqn.t:a", "iqn.t:b"]));
    assert_eq!(
        texts(&Message { payload: answer.payload[4..].to_vec(), ..answer }, Tag::NodeName),
        ["iqn.t:a"]
    );
    assert_eq!(notices, [Notice::Change(vec!["iqn.t:b".into()])]);
    let mut world = Harness::new(entity(&["iqn.t:a", "iqn.t:b"]));
    world.serve();
    let before = world.client.poll_timeout();
    world.client.handle_notice(&Notice::Change(vec!["iqn.t:stranger".into()]), world.now);
    assert_eq!(world.client.poll_timeout(), before, "another's change");
    world.client.handle_notice(&notices[0], world.now);
    let soon = world.client.poll_timeout().expect("a refresh");
    assert!(Some(soon) < before);
    world.client.handle_timeout(soon).unwrap();
    assert_eq!(world.asked().expect("a registration").0.function, Function::Register);
    // The server sends the same notification over the client's own connection.
    let bytes = change(&["iqn.t:a"]);
    world.client.handle_input(&bytes, world.now).unwrap();
    let (answer, _) = world.asked().expect("an answer");
    assert_eq!(answer.function, Function::StateChange.response());
}

#[test]
fn rfc4171_5_1_malformed_messages_have_distinct_errors() {
    let both = FIRST | LAST;
    for (bytes, error) in [
        (zeros(0, both, 2, 0), MessageError::Version(2)),
        (zeros(5, both, 1, 0), MessageError::Length(5)),
        (zeros(0, both | AUTHENTICATED, 1, 0), MessageError::Signed),
        (zeros(0, LAST, 1, 1), MessageError::Sequence),
        ([zeros(0, FIRST, 1, 0), zeros(0, both, 1, 0)].concat(), MessageError::Sequence),
        ([zeros(0, FIRST, 1, 0), zeros(0, LAST, 1, 2)].concat(), MessageError::Sequence),
    ] {
        let reported = Answerer::default().handle_input(&bytes).expect_err("nonsense");
        assert_eq!(reported, error);
    }
    let endless =
        (0..=20).map(|number| zeros(65_532, if number == 0 { FIRST } else { 0 }, 1, number));
    let reported = Answerer::default().handle_input(&endless.collect::<Vec<_>>().concat());
    assert_eq!(reported, Err(MessageError::TooLong));
    let in_parts = [zeros(4, FIRST, 1, 0), zeros(8, LAST, 1, 1)].concat();
    let (answer, _) = answered(&in_parts);
    assert_eq!(answer.payload.len(), 4 + 12);
}

/// Returns a message of `length` zero bytes.
fn zeros(length: u16, flags: u16, version: u16, sequence: u16) -> Vec<u8> {
    let header = Header {
        version: version.into(),
        function: Function::StatusInquiry.0.into(),
        length: length.into(),
        flags: flags.into(),
        transaction: 1.into(),
        sequence: sequence.into(),
    };
    [header.as_bytes(), &vec![0; length.into()]].concat()
}

/// Returns a message of the server that has a number for each tag.
fn numbers_message((function, words): &(u16, Vec<u32>)) -> Vec<u8> {
    let mut payload = Payload::default();
    words.iter().for_each(|word| payload.number(Tag(*word), *word));
    payload.message(Function(*function), FROM_SERVER, *function)
}

proptest! {
    #[test]
    fn any_cut_of_the_stream_gives_the_same_messages(
        payloads in prop::collection::vec((0_u16..16, prop::collection::vec(any::<u32>(), 0..8)), 1..6),
        cuts in prop::collection::vec(1_usize..40, 1..30),
    ) {
        let stream: Vec<u8> = payloads.iter().flat_map(numbers_message).collect();
        let (mut inbox, mut rest, mut cut) = (Inbox::default(), stream.as_slice(), cuts.iter().cycle());
        let mut cut_out = Vec::new();
        while !rest.is_empty() {
            let (head, tail) = rest.split_at((*cut.next().unwrap()).min(rest.len()));
            rest = tail;
            inbox.push(head);
            while let Some(message) = inbox.next().unwrap() {
                let words: Vec<u32> = attributes(&message.payload)
                    .map(|attribute| number(attribute.unwrap().1).unwrap())
                    .collect();
                cut_out.push((message.function.0, words));
            }
        }
        prop_assert_eq!(cut_out, payloads);
    }
}
