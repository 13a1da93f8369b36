//! Whether a store still has the file that it opened, all of it. A file may be deleted, replaced or truncated
//! under a server; what is acknowledged then is lost, and a truncated file would grow back with zeroes.

use std::path::Path;
use std::process;
use std::sync::atomic::Ordering;

use sarsen_block::BlockError;
use sarsen_io::file::{File, Inspection, Named};
use tracing::error;

use super::{FileStore, State};
use crate::health::{Aspect, VolumeHealth};

/// What is wrong with a file that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// It has no name left.
    Deleted,
    /// Its path names another file.
    Replaced,
    /// Its path names nothing.
    Moved,
    /// It has fewer bytes than it had.
    Truncated { length: u64 },
}

/// The room of a volume's backing, when it was looked at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes that are kept for the volume.
    pub(crate) allocated: u64,
    /// Bytes that it and others on the same file system may still take.
    pub(crate) free: Option<u64>,
}

impl State {
    /// Refuses what would change a file that is deleted or truncated. Asks only what the kernel knows without
    /// waiting, so that it can be asked before each write.
    pub(super) fn check_backing(&self, file: &File) -> Result<(), BlockError> {
        if self.whole.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let loss = match file.standing() {
            Some(standing) if standing.links == 0 => Loss::Deleted,
            // What is to be shorter needs fewer bytes before it is cut: this is looked at after its length.
            Some(standing) if standing.length < self.whole.load(Ordering::Acquire) => {
                Loss::Truncated { length: standing.length }
            }
            Some(_) | None => return Ok(()),
        };
        self.report(file, loss);
        Err(BlockError::OutOfService)
    }

    fn report(&self, file: &File, loss: Loss) {
        if matches!(loss, Loss::Truncated { .. }) {
            self.is_truncated.store(true, Ordering::Release);
        } else if self.is_truncated.load(Ordering::Acquire) {
            return;
        }
        let reason = loss.reason(&self.path, file.descriptor(), self.whole.load(Ordering::Acquire));
        let health = VolumeHealth::OutOfService { reason };
        if self.health.report(Aspect::Backing, health) {
            error!(path = %self.path.display(), ?loss, "a volume is out of service");
        }
    }
}

impl FileStore {
    /// Looks at the file and at its path, and reports what is wrong; also that it is well again. Blocks the thread,
    /// for ever where the file system hangs.
    pub(crate) fn inspect(&self) {
        let state = &self.state;
        let is_settled = state.whole.load(Ordering::Acquire) != 0;
        // What cannot be found out is reported by the requests that fail.
        let Ok(inspection) = self.file.inspect(&state.path) else { return };
        let Inspection { named, is_linked, length, allocated } = inspection;
        if let Some(allocated) = allocated {
            state.allocated.store(allocated, Ordering::Relaxed);
        }
        if let Ok(Some(free)) = self.file.free_space() {
            state.free.store(free, Ordering::Relaxed);
        }
        if !is_settled {
            return;
        }
        let loss = match named {
            _ if length < state.whole.load(Ordering::Acquire) => Some(Loss::Truncated { length }),
            Named::Other => Some(Loss::Replaced),
            _ if !is_linked => Some(Loss::Deleted),
            Named::Nothing => Some(Loss::Moved),
            Named::Same => None,
        };
        match loss {
            Some(loss) => state.report(&self.file, loss),
            // It was moved away and is back: it was open all the time, and nobody else has written to it. What was
            // truncated has lost data, however long it is now: an administrator says that they are restored.
            None if !state.is_truncated.load(Ordering::Acquire) => {
                state.health.report(Aspect::Backing, VolumeHealth::Online);
            }
            None => {}
        }
    }

    /// The room, as it was when it was looked at last. A device has all of its own.
    pub(crate) fn room(&self) -> Room {
        let state = &self.state;
        match self.file.is_block_device() {
            true => Room { allocated: state.whole.load(Ordering::Relaxed), free: None },
            false => Room {
                allocated: state.allocated.load(Ordering::Relaxed),
                free: Some(state.free.load(Ordering::Relaxed)),
            },
        }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.state.path
    }

    /// The number of the file system that has the file, or its node.
    pub(crate) fn file_system(&self) -> u64 {
        self.state.file_system
    }
}

impl Loss {
    fn reason(self, path: &Path, descriptor: i32, whole: u64) -> String {
        let path = path.display();
        let open_file = format!("/proc/{}/fd/{descriptor}", process::id());
        match self {
            Self::Deleted => format!(
                "is out of service: {path} was deleted while it was served. Its data are still in {open_file}, until \
                 the volume is re-attached or the server ends: copy them (cp --sparse=always {open_file} {path}), \
                 then run `sarsen volume reattach` for it"
            ),
            Self::Replaced => format!(
                "is out of service: {path} is another file than the one that was opened. The data of that one are \
                 still in {open_file}, until the volume is re-attached or the server ends: copy what is needed of \
                 them, then run `sarsen volume reattach` for it to serve the file that is there now"
            ),
            Self::Moved => format!(
                "is out of service: there is no {path} any more: its file was moved, or its file system was \
                 unmounted. It is served again as soon as the file is back"
            ),
            Self::Truncated { length } => format!(
                "is out of service: {path} was truncated while it was served: it had {length} bytes of {whole}. \
                 Restore its data, then run `sarsen volume reattach` for it"
            ),
        }
    }
}
