//! A small file that is always replaced whole and durably. After a crash it has the whole content of one call: of the
//! last call that was answered, or of a later one.
//!
//! The call itself starts the work, not the first poll of its answer. The work runs on the calling core's pool. On a
//! thread that is not a core, the call itself blocks and the answer is ready.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sarsen_block::Io;

use crate::file::{blocking, lock_within};
use crate::pool::FileQueue;

/// Suffix of the file with the new content until it is durable, appended to the file's name.
const TEMPORARY_SUFFIX: &str = ".new";
/// Access only for the owner.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// A folder of small files, which is locked against other programs from the moment it exists, until this is dropped.
pub struct LockedFolder {
    path: PathBuf,
    lock: Mutex<Option<fs::File>>,
}

impl LockedFolder {
    /// Locks the folder at this path, if there is one, and waits for another program for `timeout`. ResourceBusy: another
    /// program has it. Blocks the thread.
    pub fn new(path: PathBuf, timeout: Duration) -> io::Result<Self> {
        let folder = Self { path, lock: Mutex::default() };
        match folder.lock(timeout) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            locked => locked?,
        }
        Ok(folder)
    }

    fn lock(&self, timeout: Duration) -> io::Result<()> {
        let mut lock = self.lock.lock();
        if lock.is_none() {
            let folder = fs::File::open(&self.path)?;
            if !lock_within(&folder, true, timeout)? {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            *lock = Some(folder);
        }
        Ok(())
    }
}

/// A small file that is replaced as a whole. A clone is the same file; one value and its clones must be the only writer.
#[derive(Clone)]
pub struct AtomicFile {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    /// The folder, if it is to be locked when this creates it.
    folder: Option<Arc<LockedFolder>>,
    /// Number of calls so far.
    calls: AtomicU64,
    /// Locked while the file is replaced. The value is the call whose content the file has.
    written: Mutex<u64>,
    queue: Arc<FileQueue>,
}

impl AtomicFile {
    /// Names the file at this path. The file may be missing.
    pub fn new(path: PathBuf) -> Self {
        Self::with(path, None)
    }

    /// Names the file with this name in a folder. Nothing is written unless the folder is locked.
    pub fn within(folder: &Arc<LockedFolder>, name: &str) -> Self {
        Self::with(folder.path.join(name), Some(folder.clone()))
    }

    fn with(path: PathBuf, folder: Option<Arc<LockedFolder>>) -> Self {
        let (calls, written) = (AtomicU64::new(0), Mutex::new(0));
        Self { shared: Arc::new(Shared { path, folder, calls, written, queue: Arc::default() }) }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns the path of its next content while that is written. A crash may leave this file.
    pub fn temporary_path(&self) -> PathBuf {
        self.shared.temporary_path()
    }

    /// Returns its content; `None` if the file is missing. A file of more than `limit` bytes is FileTooLarge. Blocks
    /// the thread.
    pub fn read_now(&self, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let file = match fs::File::open(&self.shared.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut content = Vec::new();
        file.take(limit as u64 + 1).read_to_end(&mut content)?;
        if content.len() > limit {
            Err(io::ErrorKind::FileTooLarge.into())
        } else {
            Ok(Some(content))
        }
    }

    /// Replaces the content, or removes the file for `None`; the change is durable when this answers. Creates the
    /// folder if it is missing (its parent must exist). Of two concurrent calls the later one wins. A call whose answer
    /// is dropped is still carried out.
    pub fn replace(&self, content: Option<Vec<u8>>) -> Io<io::Result<()>> {
        let call = self.shared.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let shared = self.shared.clone();
        blocking(&self.shared.queue, move || {
            shared.replace(call, content.as_deref(), ReplacedBytes::Freed)
        })
    }

    /// Replaces the content like [`replace`](Self::replace), and overwrites the old bytes, durably, once the new ones
    /// are durable. The old bytes remain if the file system or the device writes to another place (copy on write,
    /// snapshots, flash disks), or after a crash between the two steps.
    pub fn replace_and_destroy(&self, content: Vec<u8>) -> Io<io::Result<()>> {
        let call = self.shared.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let shared = self.shared.clone();
        blocking(&self.shared.queue, move || {
            shared.replace(call, Some(&content), ReplacedBytes::Destroyed)
        })
    }
}

/// The treatment of the bytes that are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplacedBytes {
    /// The file system may reuse their space.
    Freed,
    /// They are overwritten first.
    Destroyed,
}

/// Overwrites a whole file with zeroes.
fn overwrite(mut file: fs::File) -> io::Result<()> {
    let length = file.metadata()?.len();
    io::copy(&mut io::repeat(0).take(length), &mut file)?;
    file.sync_all()
}

impl Shared {
    fn replace(&self, call: u64, content: Option<&[u8]>, old: ReplacedBytes) -> io::Result<()> {
        let mut written = self.written.lock();
        // The pool's threads may start two calls in either order.
        if *written > call {
            return Ok(());
        }
        let old = match old {
            ReplacedBytes::Freed => None,
            ReplacedBytes::Destroyed => self.open_old()?,
        };
        match content {
            Some(content) => self.write(content)?,
            None => self.remove()?,
        }
        *written = call;
        old.map_or(Ok(()), overwrite)
    }

    /// Opens the current file. It stays the same file when its name is given to another one.
    fn open_old(&self) -> io::Result<Option<fs::File>> {
        match OpenOptions::new().write(true).open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            old => old.map(Some),
        }
    }

    fn write(&self, content: &[u8]) -> io::Result<()> {
        let folder = self.folder();
        match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
            Ok(()) => sync_folder(parent(folder))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        if let Some(locked) = &self.folder {
            locked.lock(Duration::ZERO)?;
        }
        let temporary = &*self.temporary_path();
        // A file that a crash left there, or a link to another file: neither is written to.
        remove_if_there(temporary)?;
        let replaced = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(temporary)
            .and_then(|mut file| {
                file.write_all(content)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(temporary, &self.path));
        if let Err(error) = replaced {
            // The file may occupy space that is needed elsewhere.
            let _ = remove_if_there(temporary);
            return Err(error);
        }
        sync_folder(folder)
    }

    fn temporary_path(&self) -> PathBuf {
        let mut path = OsString::from(self.path.as_os_str());
        path.push(TEMPORARY_SUFFIX);
        path.into()
    }

    fn remove(&self) -> io::Result<()> {
        // A call that failed may have left a removal that is not durable yet.
        remove_if_there(&self.path)?;
        match sync_folder(self.folder()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn folder(&self) -> &Path {
        parent(&self.path)
    }
}

/// Returns the folder of a path.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes the names in a folder durable; fsync(2) of a file does not include its name.
fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::{self, FileEngine};

    const LIMIT: usize = 1000;

    fn wait(answer: Io<io::Result<()>>) -> io::Result<()> {
        match answer {
            Io::Ready(result) => result,
            Io::Pending(_) => panic!("a thread that is no core does not wait"),
        }
    }

    #[test]
    fn the_content_is_replaced_and_removed_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = AtomicFile::new(folder.path().join("state").join("record"));
        assert_eq!(file.read_now(LIMIT).expect("reads"), None);
        wait(file.replace(None)).expect("what is not there is removed");
        assert!(!folder.path().join("state").exists(), "a removal makes nothing");
        for content in [vec![1; 700], vec![2; 3], Vec::new()] {
            // The file that a crash leaves.
            let _ = fs::write(folder.path().join("state").join("record.new"), "half");
            wait(file.replace(Some(content.clone()))).expect("replaces");
            assert_eq!(file.read_now(LIMIT).expect("reads"), Some(content));
            let names = fs::read_dir(folder.path().join("state")).expect("a folder");
            assert_eq!(names.count(), 1);
        }
        wait(file.replace(Some(vec![0; LIMIT + 1]))).expect("replaces");
        let error = file.read_now(LIMIT).expect_err("is too large");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        wait(file.replace(None)).expect("removes");
        assert_eq!(file.read_now(LIMIT).expect("reads"), None);
    }

    #[test]
    fn a_folder_is_locked_before_its_first_file_is_written() {
        let parent = tempfile::tempdir().expect("a folder");
        let open = || LockedFolder::new(parent.path().join("state"), Duration::ZERO).map(Arc::new);
        let [one, other] = [open(), open()].map(|folder| folder.expect("there is none yet"));
        let write = |folder: &Arc<LockedFolder>| {
            wait(AtomicFile::within(folder, "record").replace(Some(vec![7])))
        };
        write(&one).expect("creates the folder");
        for refused in [write(&other), write(&other), open().map(drop)] {
            assert_eq!(refused.expect_err("is locked").kind(), io::ErrorKind::ResourceBusy);
        }
        drop(one);
        write(&other).expect("it is unlocked");
    }

    #[test]
    fn a_link_in_the_temporarys_place_is_not_written_through() {
        let folder = tempfile::tempdir().expect("a folder");
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").expect("writes");
        std::os::unix::fs::symlink(&victim, folder.path().join("record.new")).expect("links");
        let file = AtomicFile::new(folder.path().join("record"));
        wait(file.replace(Some(vec![7]))).expect("replaces");
        assert_eq!(fs::read(victim).expect("reads"), b"precious");
        assert_eq!(file.read_now(LIMIT).expect("reads"), Some(vec![7]));
    }

    #[test]
    fn the_later_of_two_calls_wins_whichever_runs_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = AtomicFile::new(folder.path().join("record"));
        let shared = &file.shared;
        shared.replace(2, Some(b"second"), ReplacedBytes::Freed).expect("replaces");
        shared.replace(1, Some(b"first"), ReplacedBytes::Freed).expect("is superseded");
        assert_eq!(file.read_now(LIMIT).expect("reads"), Some(b"second".to_vec()));
        shared.replace(3, None, ReplacedBytes::Freed).expect("removes");
        shared.replace(2, Some(b"second"), ReplacedBytes::Freed).expect("is superseded");
        assert_eq!(file.read_now(LIMIT).expect("reads"), None);
    }

    #[test]
    fn a_call_whose_answer_is_dropped_still_happens_and_does_not_undo_a_later_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = AtomicFile::new(folder.path().join("record"));
        for _ in 0..50 {
            let content = cores::block_on(FileEngine::Pool, async {
                for number in 0..10 {
                    drop(file.replace(Some(vec![number; 100])));
                }
                file.replace(Some(vec![10; 100])).wait().await?;
                file.read_now(LIMIT)
            });
            let content = content.expect("a core").expect("works");
            assert_eq!(content, Some(vec![10; 100]));
        }
        cores::block_on(FileEngine::Pool, async { drop(file.replace(None)) }).expect("a core");
        // The pool's threads end when they have done their jobs.
        assert_eq!(file.read_now(LIMIT).expect("reads"), None);
    }

    #[test]
    fn destroyed_record_is_overwritten_in_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("record");
        let file = AtomicFile::new(path.clone());
        wait(file.replace_and_destroy(vec![1; 700])).expect("there is nothing to destroy");
        // Another name for the same bytes.
        let old = folder.path().join("old");
        fs::hard_link(&path, &old).expect("links");
        wait(file.replace_and_destroy(vec![2; 3])).expect("replaces");
        assert_eq!(file.read_now(LIMIT).expect("reads"), Some(vec![2; 3]));
        assert_eq!(fs::read(&old).expect("reads"), [0; 700]);

        // A call that came too late destroys nothing.
        file.shared.replace(1, Some(&[9]), ReplacedBytes::Destroyed).expect("is superseded");
        assert_eq!(file.read_now(LIMIT).expect("reads"), Some(vec![2; 3]));

        // Content that cannot be replaced is not destroyed.
        fs::create_dir(folder.path().join("record.new")).expect("makes");
        assert!(wait(file.replace_and_destroy(vec![3])).is_err());
        assert_eq!(file.read_now(LIMIT).expect("reads"), Some(vec![2; 3]));
    }

    #[test]
    fn failed_save_is_reported_and_keeps_old_record() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = AtomicFile::new(folder.path().join("a").join("b").join("record"));
        assert!(wait(file.replace(Some(vec![1]))).is_err(), "two folders are missing");

        let file = AtomicFile::new(folder.path().join("record"));
        wait(file.replace(Some(vec![1]))).expect("replaces");
        // A folder cannot be removed as a file.
        fs::create_dir(folder.path().join("record.new")).expect("makes");
        assert!(wait(file.replace(Some(vec![2]))).is_err());
        assert_eq!(file.read_now(LIMIT).expect("reads"), Some(vec![1]));
    }
}
