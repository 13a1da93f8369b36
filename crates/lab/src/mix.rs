//! A mix of I/Os: what an access specification with more than one line asks for.

use serde::{Deserialize, Serialize};

use crate::access::Access;

/// One kind of I/O of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// How often this part is chosen, next to the weights of the others.
    pub weight: u32,
    /// Bytes of an I/O.
    pub block_bytes: u32,
    /// Of a hundred I/Os, how many read; the others write.
    pub read_percent: u8,
    /// Of a hundred I/Os, how many go anywhere; the others go on where the last one ended.
    pub random_percent: u8,
}

/// Kinds of I/O with their weights. One part is the plain case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// The parts.
    pub parts: Vec<Part>,
    /// I/Os begin at multiples of so many bytes; with `None`, of their own length.
    pub align_bytes: Option<u32>,
    /// I/Os that each session keeps open.
    pub queue_depth: u32,
}

impl Mix {
    /// The mix as an access specification, if it is no more than one.
    pub fn as_access(&self) -> Option<Access> {
        match self.parts[..] {
            [part] if self.align_bytes.is_none_or(|align| align == part.block_bytes) => {
                Some(Access {
                    block_bytes: part.block_bytes,
                    read_percent: part.read_percent,
                    random_percent: part.random_percent,
                    queue_depth: self.queue_depth,
                })
            }
            _ => None,
        }
    }

    /// The length of the longest I/O.
    pub fn longest(&self) -> u32 {
        self.parts.iter().map(|part| part.block_bytes).max().unwrap_or(0)
    }
}

impl From<Access> for Mix {
    fn from(access: Access) -> Self {
        let Access { block_bytes, read_percent, random_percent, queue_depth } = access;
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
