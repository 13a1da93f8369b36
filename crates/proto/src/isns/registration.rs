//! What is registered: an entity, its portals and targets, and which portal leads to which target.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use sarsen_wire::isns::{
    CHANGE_OF_TARGETS, CHANGE_REMOVED, ENTITY_ISCSI, MAX_PAYLOAD_LENGTH, NODE_TARGET, Tag,
};

use super::message::Payload;

/// A registration is cut into messages of about this length: the answer repeats it all, and adds to
/// it.
const PAYLOAD_TARGET: usize = MAX_PAYLOAD_LENGTH / 4;

/// A server with its portals and targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entity {
    /// Its name, unique at the name server.
    pub identifier: String,
    /// Where it listens, each with an address that leads there.
    pub portals: Vec<Portal>,
    /// Its targets, at least one.
    pub nodes: Vec<Node>,
    /// Seconds of silence after which it is to be forgotten.
    pub registration_period: u32,
}

/// A portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port.
    pub address: SocketAddr,
    /// The tag of its portal group.
    pub group: u16,
    /// A TCP port of the same address, at which the name server asks whether it lives and tells of
    /// changes; without one, it does neither.
    pub notice_port: Option<u16>,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// iSCSI name.
    pub name: String,
    /// Alias.
    pub alias: Option<String>,
    /// The portal groups that lead to it; all if none are named.
    pub groups: Option<BTreeSet<u16>>,
}

impl Entity {
    /// Who speaks: one of those that are registered (RFC 4171 §5.6.1).
    fn source(&self) -> &str {
        self.nodes.first().map_or("", |node| &node.name)
    }

    /// The payloads that register all of it, in order. The first one may replace what was there.
    pub(super) fn registrations(&self, with_notices: bool) -> Vec<Payload> {
        let mut head = Payload::default();
        head.text(Tag::NodeName, self.source());
        head.text(Tag::EntityIdentifier, &self.identifier);
        head.delimiter();
        // RFC 4171 §5.6.5.1: entity, portals, nodes, then what joins them.
        let mut first = head.clone();
        first.text(Tag::EntityIdentifier, &self.identifier);
        first.number(Tag::EntityProtocol, ENTITY_ISCSI);
        first.number(Tag::RegistrationPeriod, self.registration_period);
        for portal in &self.portals {
            first.address([Tag::PortalAddress, Tag::PortalPort], portal.address);
            if let Some(port) = portal.notice_port.filter(|_| with_notices) {
                first.number(Tag::InquiryPort, port.into());
                first.number(Tag::ChangePort, port.into());
            }
        }
        let mut payloads = Vec::new();
        let mut payload = first;
        for node in &self.nodes {
            if payload.length() > PAYLOAD_TARGET {
                payloads.push(std::mem::replace(&mut payload, head.clone()));
            }
            self.register_node(node, &mut payload);
        }
        payloads.push(payload);
        payloads
    }

    fn register_node(&self, node: &Node, payload: &mut Payload) {
        payload.text(Tag::NodeName, &node.name);
        payload.number(Tag::NodeType, NODE_TARGET);
        if let Some(alias) = &node.alias {
            payload.text(Tag::NodeAlias, alias);
        }
        for portal in &self.portals {
            payload.text(Tag::GroupNode, &node.name);
            payload.address([Tag::GroupAddress, Tag::GroupPort], portal.address);
            match node.groups.as_ref().is_none_or(|groups| groups.contains(&portal.group)) {
                true => payload.number(Tag::GroupTag, portal.group.into()),
                // RFC 4171 §3.4: no tag says that the portal does not lead there.
                false => payload.value(Tag::GroupTag, &[]),
            }
        }
    }

    /// The payload that takes these nodes away, which were registered.
    pub(super) fn removal(names: &[String]) -> Vec<Payload> {
        let mut head = Payload::default();
        head.text(Tag::NodeName, names.first().map_or("", |name| name));
        head.delimiter();
        let mut payloads = Vec::new();
        let mut payload = head.clone();
        // The last one to go speaks for all of them.
        for name in names.iter().rev() {
            if payload.length() > PAYLOAD_TARGET {
                payloads.push(std::mem::replace(&mut payload, head.clone()));
            }
            payload.text(Tag::NodeName, name);
        }
        payloads.push(payload);
        payloads
    }

    /// The payload that takes all of it away.
    pub(super) fn departure(&self) -> Payload {
        let mut payload = Payload::default();
        payload.text(Tag::NodeName, self.source());
        payload.delimiter();
        payload.text(Tag::EntityIdentifier, &self.identifier);
        payload
    }

    /// The payload that asks to be told when something of ours is taken away.
    pub(super) fn subscription(&self) -> Payload {
        let mut payload = Payload::default();
        payload.text(Tag::NodeName, self.source());
        payload.text(Tag::NodeName, self.source());
        payload.delimiter();
        payload.number(Tag::ChangeBitmap, CHANGE_OF_TARGETS | CHANGE_REMOVED);
        payload
    }

    pub(super) fn names(&self) -> BTreeSet<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }
}
