//! Checks whether an open file is still the file that its path names, and whether its length has changed.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags};

use super::File;

/// The unit of st_blocks (stat(2)).
const STAT_BLOCK: u64 = 512;

/// Metadata of an open regular file that the kernel reports without asking a disk or a file server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Number of its names in folders: 0 after it was deleted.
    pub links: u64,
    /// Bytes.
    pub length: u64,
}

/// The numbers of a file's file system and of its inode: no other file has both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// st_dev (stat(2)).
    pub file_system: u64,
    /// st_ino (stat(2)).
    pub inode: u64,
}

impl FileIdentity {
    /// Returns the identity of the file with this metadata.
    pub fn of(found: &std::fs::Metadata) -> Self {
        Self { file_system: found.dev(), inode: found.ino() }
    }

    /// Returns the identity of the file at a path, if there is one. Blocks the thread.
    pub fn of_path(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|found| Self::of(&found))
    }
}

/// The result of comparing a path with an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathComparison {
    /// The open file.
    Same,
    /// Another file.
    Other,
    /// Nothing.
    Nothing,
}

/// The result of a full check of an open file and its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The file that the path names.
    pub named: PathComparison,
    /// Whether the open file has any name left; a device always has.
    pub is_linked: bool,
    /// Bytes of the open file or device.
    pub length: u64,
    /// Bytes that the file system keeps for the file; `None` for a device.
    pub allocated: Option<u64>,
}

impl File {
    /// The number of the descriptor, as /proc/PID/fd has it.
    pub fn descriptor(&self) -> RawFd {
        self.opened.fd.as_raw_fd()
    }

    /// Metadata that the kernel reports at once for a regular file; `None` for a device, and where the kernel reports
    /// none. May be called on a core: a network file system answers from its cache.
    pub fn status_if_known(&self) -> Option<FileStatus> {
        if self.is_block_device() {
            return None;
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::NLINK | StatxFlags::SIZE;
        let found = rustix::fs::statx(&self.opened.fd, "", flags, wanted).ok()?;
        let has_all = found.stx_mask & wanted.bits() == wanted.bits();
        has_all.then(|| FileStatus { links: found.stx_nlink.into(), length: found.stx_size })
    }

    /// Checks the open file and the file that `path` names. Blocks the thread, for ever if a file server or a disk
    /// does not respond: never call it on a core.
    pub fn inspect(&self, path: &Path) -> io::Result<Inspection> {
        let own = std::fs::File::from(self.opened.fd.as_fd().try_clone_to_owned()?).metadata()?;
        let is_device = self.is_block_device();
        let identity = |metadata: &std::fs::Metadata| match is_device {
            // A device is the same device whatever folder contains its node.
            true => (metadata.mode() & FILE_TYPE, metadata.rdev(), 0),
            false => (metadata.mode() & FILE_TYPE, metadata.dev(), metadata.ino()),
        };
        let named = match std::fs::metadata(path) {
            Ok(other) if identity(&other) == identity(&own) => PathComparison::Same,
            Ok(_) => PathComparison::Other,
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => PathComparison::Nothing,
                _ => return Err(error),
            },
        };
        Ok(Inspection {
            named,
            is_linked: is_device || own.nlink() > 0,
            length: self.length()?,
            allocated: (!is_device).then(|| own.blocks() * STAT_BLOCK),
        })
    }

    /// Drops the kernel's cached pages of the file, so that reads return the blocks on disk: after a failed flush the
    /// cache may hold other data than the disk. Pages that have not been written yet are kept. Blocks the thread.
    pub fn forget_cached(&self) -> io::Result<()> {
        Ok(rustix::fs::fadvise(&self.opened.fd, 0, None, rustix::fs::Advice::DontNeed)?)
    }

    /// Returns the identity of the file.
    pub fn identity(&self) -> io::Result<FileIdentity> {
        let found = rustix::fs::fstat(&self.opened.fd)?;
        Ok(FileIdentity { file_system: found.st_dev, inode: found.st_ino })
    }

    /// Bytes that its file system has left; `None` for a device. May block.
    pub fn free_space(&self) -> io::Result<Option<u64>> {
        if self.is_block_device() {
            return Ok(None);
        }
        let system = rustix::fs::fstatvfs(&self.opened.fd)?;
        Ok(Some(system.f_bavail.saturating_mul(system.f_frsize)))
    }
}

/// The bits of a mode that give the type of a file (inode(7)).
const FILE_TYPE: u32 = 0o170_000;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::OpenOptions;
    use super::*;

    #[test]
    fn replaced_file_is_recognised() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, aside) = (folder.path().join("disk"), folder.path().join("aside"));
        let options = OpenOptions { create: true, ..OpenOptions::default() };
        let file = File::open(&path, options).expect("a file");
        file.set_length_now(8192).expect("as long");
        let named = || file.inspect(&path).expect("looked at").named;
        assert_eq!(file.status_if_known(), Some(FileStatus { links: 1, length: 8192 }));
        assert_eq!(named(), PathComparison::Same);
        fs::rename(&path, &aside).expect("moved away");
        assert_eq!(named(), PathComparison::Nothing);
        fs::write(&path, [0; 8192]).expect("another one");
        assert_eq!(named(), PathComparison::Other);
        fs::rename(&aside, &path).expect("moved back");
        assert_eq!(named(), PathComparison::Same);
        fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(512))
            .expect("cut");
        assert_eq!(file.status_if_known(), Some(FileStatus { links: 1, length: 512 }));
        fs::remove_file(&path).expect("deleted");
        let inspection = file.inspect(&path).expect("looked at");
        assert!(!inspection.is_linked && inspection.length == 512, "{inspection:?}");
        assert_eq!(file.status_if_known().map(|standing| standing.links), Some(0));
    }
}
