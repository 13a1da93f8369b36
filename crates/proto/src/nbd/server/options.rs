//! The data of options that have some.

use sarsen_wire::nbd::{InfoCode, MAX_NAME_LENGTH};
use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U16, U32};

/// The data of NBD_OPT_INFO and NBD_OPT_GO.
pub(super) struct InfoRequest<'a> {
    /// Name of the export.
    pub(super) name: &'a str,
    /// The requested information.
    requested: &'a [U16],
}

impl<'a> InfoRequest<'a> {
    /// Parses the data of an option. Returns nothing if it is invalid.
    pub(super) fn parse(data: &'a [u8]) -> Option<Self> {
        let (name, rest) = parse_string(data)?;
        let (count, rest) = U16::ref_from_prefix(rest).ok()?;
        let requested = <[U16]>::ref_from_bytes(rest).ok()?;
        (requested.len() == usize::from(count.get())).then_some(Self { name, requested })
    }

    /// Returns whether the client requests this information.
    pub(super) fn requests(&self, info: InfoCode) -> bool {
        self.requested.iter().any(|requested| requested.get() == info.0)
    }
}

/// The data of NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
pub(super) struct ContextRequest<'a> {
    /// Name of the export.
    pub(super) name: &'a str,
    /// The queries, each with a namespace and a colon.
    pub(super) queries: Vec<&'a str>,
}

impl<'a> ContextRequest<'a> {
    /// Parses the data of an option. Returns nothing if it is invalid.
    pub(super) fn parse(data: &'a [u8]) -> Option<Self> {
        let (name, rest) = parse_string(data)?;
        let (count, mut rest) = U32::ref_from_prefix(rest).ok()?;
        let mut queries = Vec::new();
        // Each query has at least the four bytes of its length. So the data bounds the number of queries.
        while !rest.is_empty() {
            let (query, after) = parse_string(rest)?;
            query.split_once(':').filter(|(namespace, _)| !namespace.is_empty())?;
            queries.push(query);
            rest = after;
        }
        (u32::try_from(queries.len()) == Ok(count.get())).then_some(Self { name, queries })
    }
}

/// Parses a string after its length (32 bits). Returns it and the rest of the data.
fn parse_string(data: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = U32::ref_from_prefix(data).ok()?;
    let (string, rest) = rest.split_at_checked(usize::try_from(length.get()).ok()?)?;
    Some((valid_string(string)?, rest))
}

/// Returns the bytes as a string, if the document permits it ("Conventions").
pub(super) fn valid_string(bytes: &[u8]) -> Option<&str> {
    let string = str::from_utf8(bytes).ok()?;
    (string.len() <= MAX_NAME_LENGTH && !string.contains('\0')).then_some(string)
}
