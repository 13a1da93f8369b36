//! The output queue. Heads are collected, and payloads are kept by reference. One vectored send then takes everything
//! that is ready.

use std::collections::VecDeque;

use sarsen_block::{Buffer, Piece};

/// Maximum length of payloads that are copied. A copy is cheaper than a piece for each.
const COPY_LIMIT: usize = 1024;

enum Run {
    Heads(Vec<u8>),
    Payload(Buffer),
}

impl Run {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heads(bytes) => bytes,
            Self::Payload(buffer) => buffer,
        }
    }
}

/// A queue of bytes to send to the peer.
#[derive(Default)]
pub struct Output {
    runs: VecDeque<Run>,
    /// Number of bytes of the first run that were sent.
    sent: usize,
}

impl Output {
    /// Returns whether no bytes wait to be sent.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Appends a few bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        match self.runs.back_mut() {
            Some(Run::Heads(heads)) => heads.extend_from_slice(bytes),
            _ if bytes.is_empty() => {}
            _ => self.runs.push_back(Run::Heads(bytes.to_vec())),
        }
    }

    /// Appends the data of a write.
    pub fn push_payload(&mut self, data: Buffer) {
        if data.len() <= COPY_LIMIT {
            self.push(&data);
        } else {
            self.runs.push_back(Run::Payload(data));
        }
    }

    /// Collects the first pieces to send, with a maximum of `limit`.
    pub fn pieces<'a>(&'a self, into: &mut Vec<Piece<'a>>, limit: usize) {
        let mut skipped = self.sent;
        for run in self.runs.iter().take(limit) {
            into.push(Piece::Bytes(&run.bytes()[skipped..]));
            skipped = 0;
        }
    }

    /// Notes that `count` bytes of the pieces were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        while let Some(first) = self.runs.front()
            && self.sent >= first.bytes().len()
        {
            self.sent -= first.bytes().len();
            self.runs.pop_front();
        }
    }
}
