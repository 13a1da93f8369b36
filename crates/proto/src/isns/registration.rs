//! The registered objects: an entity, its portals and targets, and the assignment of portals to targets.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use sarsen_wire::isns::{
    CHANGE_OF_TARGETS, CHANGE_REMOVED, ENTITY_ISCSI, MAX_PAYLOAD_LENGTH, NODE_TARGET, Tag,
};

use super::message::Payload;

/// Approximate maximum payload of one message of a registration. The answer repeats the payload and adds attributes to
/// it.
const PAYLOAD_TARGET: usize = MAX_PAYLOAD_LENGTH / 4;

/// A server with its portals and targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entity {
    /// The entity identifier, unique at the name server.
    pub identifier: String,
    /// Its portals, each with an address that clients can reach.
    pub portals: Vec<Portal>,
    /// Its targets. Minimum: one.
    pub nodes: Vec<Node>,
    /// Registration period in seconds: after this time without a message, the server deletes the registration.
    pub registration_period: u32,
}

/// A portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port.
    pub address: SocketAddr,
    /// Portal group tag.
    pub group: u16,
    /// A TCP port of the same address for inquiries and change notifications of the name server. Without it, the server
    /// sends neither.
    pub notice_port: Option<u16>,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// iSCSI name.
    pub name: String,
    /// Alias.
    pub alias: Option<String>,
    /// The portal groups that permit access to the target. `None` means all.
    pub groups: Option<BTreeSet<u16>>,
}

impl Entity {
    /// Returns the source of messages: one of the registered nodes (RFC 4171 §5.6.1).
    fn source(&self) -> &str {
        self.nodes.first().map_or("", |node| &node.name)
    }

    /// Returns the payloads that register the whole entity, in order. The first one may replace an earlier
    /// registration.
    pub(super) fn registrations(&self, with_notices: bool) -> Vec<Payload> {
        let mut head = Payload::default();
        head.text(Tag::NodeName, self.source());
        head.text(Tag::EntityIdentifier, &self.identifier);
        head.delimiter();
        // RFC 4171 §5.6.5.1: the order is entity, portals, nodes, then portal groups.
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
            if node.groups.as_ref().is_none_or(|groups| groups.contains(&portal.group)) {
                payload.number(Tag::GroupTag, portal.group.into());
            } else {
                // RFC 4171 §3.4: an empty tag means that the portal does not give access to the node.
                payload.value(Tag::GroupTag, &[]);
            }
        }
    }

    /// Returns the payloads that deregister these nodes.
    pub(super) fn removal(names: &[String]) -> Vec<Payload> {
        let mut head = Payload::default();
        head.text(Tag::NodeName, names.first().map_or("", |name| name));
        head.delimiter();
        let mut payloads = Vec::new();
        let mut payload = head.clone();
        // The source of the messages is one of these nodes, and is deregistered last.
        for name in names.iter().rev() {
            if payload.length() > PAYLOAD_TARGET {
                payloads.push(std::mem::replace(&mut payload, head.clone()));
            }
            payload.text(Tag::NodeName, name);
        }
        payloads.push(payload);
        payloads
    }

    /// Returns the payload that deregisters the whole entity.
    pub(super) fn departure(&self) -> Payload {
        let mut payload = Payload::default();
        payload.text(Tag::NodeName, self.source());
        payload.delimiter();
        payload.text(Tag::EntityIdentifier, &self.identifier);
        payload
    }

    /// Returns the payload that subscribes to notifications about the removal of our objects.
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
