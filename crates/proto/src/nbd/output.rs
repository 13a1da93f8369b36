//! The output queue of both ends. Heads are collected, and payloads are kept by reference. One vectored send then takes
//! everything that is ready.

use std::collections::VecDeque;

use sarsen_block::{Data, Payload, Piece};

/// Maximum length of payloads that are copied. A copy is cheaper than a piece for each.
const COPY_LIMIT: usize = 1024;
/// Maximum length of a run of heads. A longer run would keep bytes that were sent in memory.
const HEADS_LIMIT: usize = 16 * 1024;
/// Memory that a payload counts in addition to its data: its entry in the queue.
const PAYLOAD_ENTRY: usize = size_of::<Run>();

enum Run {
    Heads(Vec<u8>),
    /// The data of a reply.
    Data(Data),
    /// The data of a write, which may have other owners.
    Payload(Payload),
}

impl Run {
    fn len(&self) -> usize {
        match self {
            Self::Heads(bytes) => bytes.len(),
            Self::Data(data) => data.len(),
            Self::Payload(payload) => payload.len(),
        }
    }

    /// Returns the bytes of memory that the run is counted with.
    fn memory(&self) -> usize {
        match self {
            Self::Heads(bytes) => bytes.len(),
            Self::Data(data) => data.memory() + PAYLOAD_ENTRY,
            Self::Payload(payload) => payload.memory() + PAYLOAD_ENTRY,
        }
    }
}

/// A queue of bytes to send to the peer.
#[derive(Default)]
pub struct Output {
    runs: VecDeque<Run>,
    /// Number of bytes of the first run that were sent.
    sent: usize,
    /// Sum of the runs' memory.
    memory: usize,
}

impl Output {
    /// Returns whether no bytes wait to be sent.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the bytes of memory that heads and payloads occupy until they are sent. Data in a store counts as 0.
    pub const fn memory(&self) -> usize {
        self.memory
    }

    /// Appends a few bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.heads(bytes.len()).extend_from_slice(bytes);
        }
    }

    /// Appends the data of a write.
    pub fn push_payload(&mut self, payload: Payload) {
        match payload.len() {
            0 => {}
            length if length <= COPY_LIMIT => self.push(&payload),
            _ => self.push_run(Run::Payload(payload)),
        }
    }

    /// Appends the data of a reply to a read.
    pub fn push_data(&mut self, data: impl Into<Data>) {
        let data = data.into();
        match data.len() {
            0 => {}
            length if length <= COPY_LIMIT => {
                let heads = self.heads(length);
                let start = heads.len();
                heads.resize(start + length, 0);
                data.copy_out(0, &mut heads[start..]);
            }
            _ => self.push_run(Run::Data(data)),
        }
    }

    fn push_run(&mut self, run: Run) {
        self.memory += run.memory();
        self.runs.push_back(run);
    }

    /// Returns the run of heads that takes the next `length` bytes, and counts these bytes.
    fn heads(&mut self, length: usize) -> &mut Vec<u8> {
        self.memory += length;
        let fits = matches!(
            self.runs.back(),
            Some(Run::Heads(heads)) if heads.len() + length <= HEADS_LIMIT
        );
        if !fits {
            self.runs.push_back(Run::Heads(Vec::new()));
        }
        match self.runs.back_mut() {
            Some(Run::Heads(heads)) => heads,
            _ => unreachable!("the last run holds headers"),
        }
    }

    /// Collects the first pieces to send, until `into` has `limit` pieces.
    pub fn pieces<'a>(&'a self, into: &mut Vec<Piece<'a>>, limit: usize) {
        let mut at = self.sent;
        for run in &self.runs {
            while at < run.len() && into.len() < limit {
                let piece = match run {
                    Run::Heads(bytes) => Piece::Bytes(&bytes[at..]),
                    Run::Data(data) => data.piece(at, data.len() - at),
                    Run::Payload(payload) => Piece::Bytes(&payload[at..]),
                };
                at += match &piece {
                    Piece::Bytes(bytes) => bytes.len(),
                    Piece::Shared { length, .. } => *length,
                };
                into.push(piece);
            }
            if into.len() >= limit {
                return;
            }
            at = 0;
        }
    }

    /// Notes that `count` bytes of the pieces were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        while let Some(first) = self.runs.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            self.memory -= first.memory();
            self.runs.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use sarsen_block::Buffer;

    use super::*;

    /// Returns the bytes of all pieces. Each send takes a maximum of `step` bytes.
    fn drain(output: &mut Output, step: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        while !output.is_empty() {
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, 2);
            assert!(pieces.len() <= 2);
            let mut count = 0;
            for piece in pieces {
                let Piece::Bytes(bytes) = piece else { unreachable!("not used here") };
                let taken = bytes.len().min(step - count);
                stream.extend_from_slice(&bytes[..taken]);
                count += taken;
            }
            output.sent(count);
        }
        assert_eq!(output.memory(), 0);
        stream
    }

    #[test]
    fn heads_and_payloads_are_sent_in_order_in_any_steps() {
        for step in [1, 7, 1000, 100_000, usize::MAX] {
            let mut output = Output::default();
            output.push(b"head");
            output.push_data(Buffer::copy_of(&[1; 100]));
            output.push_data(Buffer::copy_of(&[2; 5000]));
            output.push_data(Data::Zeroes(150_000));
            output.push_data(Data::empty());
            output.push_payload(Buffer::copy_of(&[3; 100]).into());
            output.push_payload(Buffer::copy_of(&[4; 5000]).into());
            output.push(b"tail");
            let zeroes = vec![0; 150_000];
            let wanted =
                [&b"head"[..], &[1; 100], &[2; 5000], &zeroes, &[3; 100], &[4; 5000], b"tail"];
            assert!(drain(&mut output, step) == wanted.concat(), "{step}");
        }
    }

    #[test]
    fn queue_that_is_never_empty_does_not_grow() {
        let mut output = Output::default();
        output.push(&[0; 16]);
        for _ in 0..10_000 {
            output.push(&[0; 16]);
            output.sent(16);
        }
        assert!(output.memory() <= 2 * HEADS_LIMIT, "{} bytes", output.memory());
    }
}
