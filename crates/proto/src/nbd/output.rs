//! What is to be sent: heads gathered, payloads by reference, so that one vectored send takes
//! everything that is ready.

use std::collections::VecDeque;

use sarsen_block::{Buffer, Piece};

/// Payloads up to this many bytes are copied: cheaper than a piece of their own.
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

/// A queue of bytes towards the peer.
#[derive(Default)]
pub struct Output {
    runs: VecDeque<Run>,
    /// Bytes of the first run that were sent.
    sent: usize,
}

impl Output {
    /// Whether nothing waits.
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

    /// The first pieces to send, at most `limit` of them.
    pub fn pieces<'a>(&'a self, into: &mut Vec<Piece<'a>>, limit: usize) {
        let mut skipped = self.sent;
        for run in self.runs.iter().take(limit) {
            into.push(Piece::Bytes(&run.bytes()[skipped..]));
            skipped = 0;
        }
    }

    /// `count` bytes of the pieces were sent.
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
