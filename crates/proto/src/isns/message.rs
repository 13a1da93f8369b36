//! Messages: extraction from the byte stream, parsing and construction.

use std::net::{IpAddr, SocketAddr};

use sarsen_wire::isns::{
    AUTHENTICATED, AttributeHeader, FIRST, Function, Header, LAST, MAX_PAYLOAD_LENGTH,
    MAX_TEXT_LENGTH, Status, Tag, VERSION,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Maximum payload of a message over all of its PDUs, in bytes.
const MESSAGE_LIMIT: usize = 1 << 20;

/// The reason why a byte stream is invalid. The connection cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// An unsupported version.
    #[error("the version {0} of iSNS is not supported")]
    Version(u16),
    /// An invalid length.
    #[error("a PDU has an invalid length of {0} bytes (RFC 4171 §5.1.3)")]
    Length(usize),
    /// The PDUs of one message are not consecutive.
    #[error("the PDUs of a message do not follow each other (RFC 4171 §5.1.4)")]
    Sequence,
    /// A message that exceeds the maximum length.
    #[error("a message has more than {MESSAGE_LIMIT} bytes")]
    TooLong,
    /// The message is signed, which the client does not support.
    #[error("the name server signs its messages, which is not supported")]
    Signed,
    /// Invalid attributes.
    #[error("malformed attributes (RFC 4171 §5.1.7)")]
    Attributes,
}

/// A complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) function: Function,
    pub(super) transaction: u16,
    pub(super) payload: Vec<u8>,
}

/// Cuts messages from the byte stream.
#[derive(Default)]
pub(super) struct Inbox {
    received: Vec<u8>,
    /// The incomplete message, and the sequence number of its next PDU.
    partial: Option<(Message, u16)>,
}

impl Inbox {
    /// Adds bytes from the stream. The caller takes all complete messages out after each call.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// Returns the next complete message.
    pub(super) fn next(&mut self) -> Result<Option<Message>, MessageError> {
        loop {
            let Ok((header, rest)) = Header::ref_from_prefix(&self.received) else {
                return Ok(None);
            };
            let header = *header;
            if header.version.get() != VERSION {
                return Err(MessageError::Version(header.version.get()));
            }
            let length = usize::from(header.length.get());
            if !length.is_multiple_of(4) {
                return Err(MessageError::Length(length));
            }
            let flags = header.flags.get();
            if flags & AUTHENTICATED != 0 {
                return Err(MessageError::Signed);
            }
            let Some(payload) = rest.get(..length) else { return Ok(None) };
            let payload = payload.to_vec();
            self.received.drain(..size_of::<Header>() + length);
            let message = self.join(&header, payload)?;
            if flags & LAST != 0 {
                return Ok(Some(message));
            }
            self.partial = Some((message, header.sequence.get().wrapping_add(1)));
        }
    }

    /// Adds a PDU to the earlier PDUs of its message.
    fn join(&mut self, header: &Header, payload: Vec<u8>) -> Result<Message, MessageError> {
        let function = Function(header.function.get());
        let transaction = header.transaction.get();
        let is_first = header.flags.get() & FIRST != 0;
        match self.partial.take() {
            None if is_first => Ok(Message { function, transaction, payload }),
            Some((mut message, next)) if !is_first => {
                let follows = message.function == function
                    && message.transaction == transaction
                    && header.sequence.get() == next;
                if !follows {
                    return Err(MessageError::Sequence);
                }
                if message.payload.len() + payload.len() > MESSAGE_LIMIT {
                    return Err(MessageError::TooLong);
                }
                message.payload.extend(payload);
                Ok(message)
            }
            None | Some(_) => Err(MessageError::Sequence),
        }
    }
}

/// Returns the status of a response, and the rest of the payload.
pub(super) fn status(payload: &[u8]) -> Result<(Status, &[u8]), MessageError> {
    let (status, rest) = payload.split_first_chunk().ok_or(MessageError::Attributes)?;
    Ok((Status(u32::from_be_bytes(*status)), rest))
}

/// Returns the attributes in their order.
pub(super) fn attributes(
    mut payload: &[u8],
) -> impl Iterator<Item = Result<(Tag, &[u8]), MessageError>> {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        let parsed = attribute(payload);
        payload = parsed.as_ref().map_or(&[], |(_, _, rest)| rest);
        Some(parsed.map(|(tag, value, _)| (tag, value)))
    })
}

fn attribute(payload: &[u8]) -> Result<(Tag, &[u8], &[u8]), MessageError> {
    let (header, rest) =
        AttributeHeader::ref_from_prefix(payload).map_err(|_| MessageError::Attributes)?;
    let length = header.length.get() as usize;
    // RFC 4171 §5.1.7: the length of every value is a multiple of 4.
    if !length.is_multiple_of(4) {
        return Err(MessageError::Attributes);
    }
    let (value, rest) = rest.split_at_checked(length).ok_or(MessageError::Attributes)?;
    Ok((Tag(header.tag.get()), value, rest))
}

/// Parses a value that is a number.
pub(super) fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

/// Parses a value that is a text.
pub(super) fn text(value: &[u8]) -> Option<&str> {
    let end = value.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&value[..end]).ok()
}

/// Builds the payload of a message.
#[derive(Clone, Default)]
pub(super) struct Payload(Vec<u8>);

impl Payload {
    pub(super) fn value(&mut self, tag: Tag, value: &[u8]) {
        let padded = value.len().next_multiple_of(4);
        let header = AttributeHeader {
            tag: tag.0.into(),
            length: u32::try_from(padded).unwrap_or(0).into(),
        };
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len() + padded - value.len(), 0);
    }

    pub(super) fn number(&mut self, tag: Tag, number: u32) {
        self.value(tag, &number.to_be_bytes());
    }

    /// Appends a text, truncated to the maximum length of an attribute and terminated by a NUL (RFC 4171 §6.1).
    pub(super) fn text(&mut self, tag: Tag, text: &str) {
        let end = text.floor_char_boundary(MAX_TEXT_LENGTH - 1);
        self.value(tag, &[&text.as_bytes()[..end], &[0]].concat());
    }

    pub(super) fn address(&mut self, [address, port]: [Tag; 2], at: SocketAddr) {
        let ip = match at.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.value(address, &ip.octets());
        self.number(port, at.port().into());
    }

    pub(super) fn delimiter(&mut self) {
        self.value(Tag::Delimiter, &[]);
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn length(&self) -> usize {
        self.0.len()
    }

    /// Returns the message, which has one PDU.
    pub(super) fn message(self, function: Function, flags: u16, transaction: u16) -> Vec<u8> {
        assert!(self.0.len() <= MAX_PAYLOAD_LENGTH, "payloads are made short enough");
        let header = Header {
            version: VERSION.into(),
            function: function.0.into(),
            length: (self.0.len() as u16).into(),
            flags: (flags | FIRST | LAST).into(),
            transaction: transaction.into(),
            sequence: 0.into(),
        };
        [header.as_bytes(), &self.0].concat()
    }
}
