//! A load of small files on a mounted file system: each is created, written, made durable and closed, or opened, read and
//! closed. The time of a file includes all of that, because network file systems pay for it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use sarsen_io::time::now;
use serde::{Deserialize, Serialize};

use crate::record::{Measures, figure};
use crate::statistics::Summary;

/// Maximum size of a file, which is in memory.
pub const LARGEST: u64 = 1 << 30;

/// What is done with each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOperation {
    /// It is created or replaced, written, made durable (fsync) and closed.
    Write,
    /// It is opened, read to its end and closed.
    Read,
}

/// A load of files.
#[derive(Clone, Debug)]
pub struct FileLoad {
    /// The folder of the files.
    pub folder: PathBuf,
    /// Number of bytes of a file.
    pub bytes: u64,
    /// Number of files, which are used one after the other.
    pub count: u32,
    /// What is done with them.
    pub operation: FileOperation,
}

/// The reason for which a load of files failed.
#[derive(Debug, thiserror::Error)]
pub enum FileLoadError {
    /// The load has no files.
    #[error("a load needs at least one file")]
    NoFiles,
    /// The files are too large.
    #[error("a file of {0} bytes is too large; the maximum is {LARGEST}")]
    TooLarge(u64),
    /// A file does not exist.
    #[error("{} does not exist; write the files first, with the same size and count", path.display())]
    Missing {
        /// Its path.
        path: PathBuf,
    },
    /// A file is unusable.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file has another size than that of the load.
    #[error("{} has {found} bytes instead of {expected}; write the files with the same size first", path.display())]
    Size {
        /// Its path.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The size of the load.
        expected: u64,
    },
}

/// The times of the files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileResult {
    /// Number of files.
    pub files: u32,
    /// Number of bytes of a file.
    pub file_bytes: u64,
    /// Mean time of a file.
    pub mean_us: f64,
    /// Shortest time of a file.
    pub min_us: f64,
    /// Median time of a file.
    pub p50_us: f64,
    /// Longest time of a file.
    pub max_us: f64,
    /// Standard deviation of the time of a file; 0 for one file.
    pub deviation_us: f64,
}

impl FileResult {
    /// Returns the result in the form that a record stores.
    pub fn measures(&self) -> Measures {
        let figures = [
            (figure::MEAN_US, self.mean_us),
            (figure::MIN_US, self.min_us),
            (figure::P50_US, self.p50_us),
            (figure::MAX_US, self.max_us),
            (figure::DEVIATION_US, self.deviation_us),
        ];
        let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
        Measures { figures, ..Measures::default() }
    }
}

impl FileLoad {
    /// Runs the load. Blocks the thread.
    pub fn run(&self) -> Result<FileResult, FileLoadError> {
        if self.bytes > LARGEST {
            return Err(FileLoadError::TooLarge(self.bytes));
        }
        let written = if self.operation == FileOperation::Write { self.bytes } else { 0 };
        let data: Vec<u8> = (0..written).map(|at| (at * 31 + at / 509) as u8).collect();
        let mut times = Vec::new();
        for path in self.paths() {
            let begun = now();
            let done = match self.operation {
                FileOperation::Write => write(&path, &data).map(|()| self.bytes),
                FileOperation::Read => read(&path),
            };
            times.push((now() - begun).as_secs_f64() * 1e6);
            let found = match done {
                Ok(found) => found,
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && self.operation == FileOperation::Read =>
                {
                    return Err(FileLoadError::Missing { path });
                }
                Err(source) => return Err(FileLoadError::File { path, source }),
            };
            if found != self.bytes {
                return Err(FileLoadError::Size { path, found, expected: self.bytes });
            }
        }
        let Summary { mean, median, min, max, deviation, .. } =
            Summary::of(&times).ok_or(FileLoadError::NoFiles)?;
        Ok(FileResult {
            files: self.count,
            file_bytes: self.bytes,
            mean_us: mean,
            min_us: min,
            p50_us: median,
            max_us: max,
            deviation_us: deviation.unwrap_or_default(),
        })
    }

    /// Deletes the files.
    pub fn remove(&self) -> Result<(), FileLoadError> {
        for path in self.paths() {
            fs::remove_file(&path).map_err(|source| FileLoadError::File { path, source })?;
        }
        Ok(())
    }

    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.count)
            .map(|number| self.folder.join(format!("sarsen-lab-{}-{number}", self.bytes)))
    }
}

fn write(path: &Path, data: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(data)?;
    file.sync_all()
}

fn read(path: &Path) -> io::Result<u64> {
    let mut data = Vec::new();
    File::open(path)?.read_to_end(&mut data)?;
    Ok(data.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_read_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let load = |operation, bytes| FileLoad {
            folder: folder.path().into(),
            bytes,
            count: 3,
            operation,
        };
        let written = load(FileOperation::Write, 1000).run().unwrap();
        assert_eq!((written.files, written.file_bytes), (3, 1000));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        let reads = load(FileOperation::Read, 1000);
        let result = reads.run().unwrap();
        assert!(result.min_us <= result.p50_us && result.p50_us <= result.max_us, "{result:?}");
        assert_eq!(result.measures().figures[figure::MEAN_US], result.mean_us);
        let absent = load(FileOperation::Read, 2000).run().unwrap_err().to_string();
        assert!(absent.contains("sarsen-lab-2000-0 does not exist; write"), "{absent}");
        fs::write(folder.path().join("sarsen-lab-1000-1"), "short").unwrap();
        let short = reads.run().unwrap_err().to_string();
        assert!(short.contains("has 5 bytes instead of 1000"), "{short}");
        reads.remove().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_load_without_files_is_refused() {
        let load = FileLoad {
            folder: "/nowhere".into(),
            bytes: 1,
            count: 0,
            operation: FileOperation::Read,
        };
        assert!(matches!(load.run(), Err(FileLoadError::NoFiles)));
        let load = FileLoad { bytes: LARGEST + 1, ..load };
        assert!(matches!(load.run(), Err(FileLoadError::TooLarge(_))));
    }
}
