//! The memory of WRITE BUFFER and READ BUFFER (SPC-4 6.18, 6.49): one buffer that all initiators share, and one echo
//! buffer for each nexus.

use parking_lot::{Mutex, MutexGuard};

use crate::nexus_id::NexusId;

/// Size of the shared buffer in bytes.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// Maximum size of an echo buffer in bytes (SPC-4 6.18.8).
pub(crate) const ECHO_BYTES: usize = 4096;

/// The buffers of a logical unit. They use no memory until an initiator writes them.
#[derive(Default)]
pub(crate) struct ReadWriteBuffers {
    state: Mutex<BufferPoolState>,
}

#[derive(Default)]
struct BufferPoolState {
    shared: Vec<u8>,
    echoes: Vec<(NexusId, Vec<u8>)>,
}

impl ReadWriteBuffers {
    fn state(&self) -> MutexGuard<'_, BufferPoolState> {
        self.state.lock()
    }

    /// Writes to the shared buffer.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= BUFFER_BYTES);
        let shared = &mut self.state().shared;
        shared.resize(BUFFER_BYTES, 0);
        shared[offset..offset + data.len()].copy_from_slice(data);
    }

    /// Returns the content of the shared buffer from `offset`; zeroes if nothing was written.
    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let state = self.state();
        let end = (offset + length).min(BUFFER_BYTES);
        state.shared.get(offset..end).map_or_else(|| vec![0; end - offset], <[u8]>::to_vec)
    }

    /// Replaces the echo buffer of `nexus`.
    pub(crate) fn write_echo(&self, nexus: NexusId, data: &[u8]) {
        assert!(data.len() <= ECHO_BYTES);
        let mut state = self.state();
        state.echoes.retain(|(id, _)| *id != nexus);
        state.echoes.push((nexus, data.to_vec()));
    }

    /// Returns the echo buffer of `nexus`.
    pub(crate) fn read_echo(&self, nexus: NexusId) -> Option<Vec<u8>> {
        let state = self.state();
        state.echoes.iter().find(|(id, _)| *id == nexus).map(|(_, data)| data.clone())
    }

    /// Deletes the echo buffer of a nexus that was lost.
    pub(crate) fn forget(&self, nexus: NexusId) {
        self.state().echoes.retain(|(id, _)| *id != nexus);
    }

    /// Deletes all echo buffers, after a reset.
    pub(crate) fn forget_all(&self) {
        self.state().echoes.clear();
    }
}
