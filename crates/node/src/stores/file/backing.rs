//! Checks whether a store still has the complete file that it opened. A file may be deleted, replaced or truncated
//! under a server. Writes acknowledged after that are lost, and a truncated file would grow again with zeroes.

use std::path::Path;
use std::process;
use std::sync::atomic::Ordering;

use sarsen_block::{BlockError, StopCause};
use sarsen_io::file::{File, FileIdentity, Inspection, PathComparison};
use sarsen_volume::{Aspect, VolumeHealth};
use tracing::error;

use super::{FileState, FileStore};

/// A problem of a file that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackingProblem {
    /// The file has no name left.
    Deleted,
    /// Its path names another file.
    Replaced,
    /// Its path names nothing.
    Moved,
    /// The file has fewer bytes than before.
    Truncated { length: u64 },
}

/// The space of a volume's backing, at the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackingSpace {
    /// Bytes that are allocated to the volume.
    pub(crate) allocated: u64,
    /// Bytes that the volume and others on the same file system may still allocate.
    pub(crate) free: Option<u64>,
}

impl FileState {
    /// Refuses a change to a file that is deleted or truncated. The kernel answers these questions without waiting,
    /// so that this can run before each write.
    pub(super) fn check_backing(&self, file: &File) -> Result<(), BlockError> {
        if self.whole.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let loss = match file.status_if_known() {
            Some(standing) if standing.links == 0 => BackingProblem::Deleted,
            // A volume that shrinks lowers this value before it truncates the file: read it after the file's length.
            Some(standing) if standing.length < self.whole.load(Ordering::Acquire) => {
                BackingProblem::Truncated { length: standing.length }
            }
            Some(_) | None => return Ok(()),
        };
        self.report(file, loss);
        Err(BlockError::Stopped(StopCause::OutOfService))
    }

    fn report(&self, file: &File, loss: BackingProblem) {
        if matches!(loss, BackingProblem::Truncated { .. }) {
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
    /// Checks the file and its path, and reports a problem or its end. Blocks the thread, forever if the file system
    /// hangs.
    pub(crate) fn inspect(&self) {
        let state = &self.state;
        let is_settled = state.whole.load(Ordering::Acquire) != 0;
        // If the check itself fails, the failing requests report the problem.
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
            _ if length < state.whole.load(Ordering::Acquire) => {
                Some(BackingProblem::Truncated { length })
            }
            PathComparison::Other => Some(BackingProblem::Replaced),
            _ if !is_linked => Some(BackingProblem::Deleted),
            PathComparison::Nothing => Some(BackingProblem::Moved),
            PathComparison::Same => None,
        };
        match loss {
            Some(loss) => state.report(&self.file, loss),
            // The file was moved away and is back. It was open all the time, and no other program has written to it. A
            // truncated file has lost data, whatever its length is now: an administrator must confirm that the data is
            // restored.
            None if !state.is_truncated.load(Ordering::Acquire) => {
                state.health.report(Aspect::Backing, VolumeHealth::Online);
            }
            None => {}
        }
    }

    /// Returns the space at the last check. A device has all of its space.
    pub(crate) fn room(&self) -> BackingSpace {
        let state = &self.state;
        if self.file.is_block_device() {
            BackingSpace { allocated: state.whole.load(Ordering::Relaxed), free: None }
        } else {
            BackingSpace {
                allocated: state.allocated.load(Ordering::Relaxed),
                free: Some(state.free.load(Ordering::Relaxed)),
            }
        }
    }

    /// Returns whether the file has no name left, so that only this store has its data.
    pub(crate) fn is_deleted(&self) -> bool {
        self.file.status_if_known().is_some_and(|status| status.links == 0)
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.state.path
    }

    /// Returns the identity of the file, or of its device node.
    pub(crate) fn identity(&self) -> FileIdentity {
        self.state.identity
    }
}

impl BackingProblem {
    fn reason(self, path: &Path, descriptor: i32, whole: u64) -> String {
        let path = path.display();
        let open_file = format!("/proc/{}/fd/{descriptor}", process::id());
        match self {
            Self::Deleted => format!(
                "is out of service: {path} was deleted while it was served. Its data is still in {open_file}, until \
                 the volume is re-attached or the server ends: copy it (cp --sparse=always {open_file} {path}), \
                 then run `sarsen volume reattach` for each volume that uses it, or restart the server"
            ),
            Self::Replaced => format!(
                "is out of service: {path} is another file than the one that was opened. The data of the opened \
                 file is still in {open_file}, until the volume is re-attached or the server ends: copy the data \
                 that you need, then run `sarsen volume reattach` for each volume that uses it to serve the new file, or restart the server"
            ),
            Self::Moved => format!(
                "is out of service: there is no {path} any more: its file was moved, or its file system was \
                 unmounted. It is served again as soon as the file is back"
            ),
            Self::Truncated { length } => format!(
                "is out of service: {path} was truncated while it was served: it had {length} bytes of {whole}. \
                 Restore its data, then run `sarsen volume reattach` for each volume that uses it, or restart the server"
            ),
        }
    }
}
