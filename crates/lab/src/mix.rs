//! A mix of I/Os: the load of an access specification with more than one line.

use serde::{Deserialize, Serialize};

use crate::access::AccessPattern;

/// One kind of I/O in a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Relative frequency of this part.
    pub weight: u32,
    /// Size of an I/O in bytes.
    pub block_bytes: u32,
    /// Percentage of reads; the others are writes.
    pub read_percent: u8,
    /// Percentage of I/Os at random positions; the others begin where the last one ended.
    pub random_percent: u8,
}

/// Kinds of I/O with their weights; usually there is one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// The parts.
    pub parts: Vec<Part>,
    /// Alignment of I/Os in bytes; `None` is their own length.
    pub align_bytes: Option<u32>,
    /// Outstanding I/Os of each session.
    pub queue_depth: u32,
}

impl Mix {
    /// Returns the mix as an access specification, if it has one part only.
    pub fn as_access(&self) -> Option<AccessPattern> {
        match self.parts[..] {
            [part] if self.align_bytes.is_none_or(|align| align == part.block_bytes) => {
                Some(AccessPattern {
                    block_bytes: part.block_bytes,
                    read_percent: part.read_percent,
                    random_percent: part.random_percent,
                    queue_depth: self.queue_depth,
                })
            }
            _ => None,
        }
    }

    /// Returns the length of the longest I/O.
    pub fn longest(&self) -> u32 {
        self.parts.iter().map(|part| part.block_bytes).max().unwrap_or(0)
    }
}

impl From<AccessPattern> for Mix {
    fn from(access: AccessPattern) -> Self {
        let AccessPattern { block_bytes, read_percent, random_percent, queue_depth } = access;
        let part = Part { weight: 1, block_bytes, read_percent, random_percent };
        Self { parts: vec![part], align_bytes: None, queue_depth }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access;

    #[test]
    fn an_access_specification_is_a_mix_of_one() {
        for named in &access::NAMED {
            assert_eq!(Mix::from(named.access).as_access(), Some(named.access));
        }
    }

    #[test]
    fn more_than_one_part_or_another_alignment_is_no_access_specification() {
        let mut mix = Mix::from(access::NAMED[4].access);
        mix.align_bytes = Some(512);
        assert_eq!(mix.as_access(), None);
        mix.align_bytes = Some(4096);
        assert!(mix.as_access().is_some());
        mix.parts.push(Part { block_bytes: 65536, ..mix.parts[0] });
        assert_eq!((mix.as_access(), mix.longest()), (None, 65536));
    }
}
