//! The memory that WRITE BUFFER fills and READ BUFFER reads (SPC-4 6.18, 6.49): one buffer that all
//! initiators share, and one for the echo of each.

use crate::logical_unit::NexusId;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of the shared buffer.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// Bytes of an echo at most (SPC-4 6.18.8).
pub(crate) const ECHO_BYTES: usize = 4096;

/// The buffers of a logical unit. They take no memory until they are written.
#[derive(Default)]
pub(crate) struct Buffers {
    state: Mutex<BufferPoolState>,
}

#[derive(Default)]
struct BufferPoolState {
    shared: Vec<u8>,
    echoes: Vec<(NexusId, Vec<u8>)>,
}

impl Buffers {
    fn state(&self) -> MutexGuard<'_, BufferPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes within the shared buffer.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= BUFFER_BYTES);
        let shared = &mut self.state().shared;
        shared.resize(BUFFER_BYTES, 0);
        shared[offset..offset + data.len()].copy_from_slice(data);
    }

    /// What the shared buffer holds from `offset`; zeroes where nothing was written.
    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let state = self.state();
        let end = (offset + length).min(BUFFER_BYTES);
        state.shared.get(offset..end).map_or_else(|| vec![0; end - offset], <[u8]>::to_vec)
    }

    /// Keeps what `nexus` will read back.
    pub(crate) fn write_echo(&self, nexus: NexusId, data: &[u8]) {
        assert!(data.len() <= ECHO_BYTES);
        let mut state = self.state();
        state.echoes.retain(|(id, _)| *id != nexus);
        state.echoes.push((nexus, data.to_vec()));
    }

    /// What `nexus` wrote last.
    pub(crate) fn read_echo(&self, nexus: NexusId) -> Option<Vec<u8>> {
        let state = self.state();
        state.echoes.iter().find(|(id, _)| *id == nexus).map(|(_, data)| data.clone())
    }

    /// A nexus is gone.
    pub(crate) fn forget(&self, nexus: NexusId) {
        self.state().echoes.retain(|(id, _)| *id != nexus);
    }

    /// A reset: there are no echoes any more.
    pub(crate) fn forget_all(&self) {
        self.state().echoes.clear();
    }
}
