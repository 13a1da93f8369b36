//! A cpio archive in the `newc` format, which the kernel unpacks into its first root file system.
//!
//! All its entries belong to root, whichever user writes it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{GuestError, at};

const TRAILER: &str = "TRAILER!!!";
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive in progress.
#[derive(Debug)]
pub(super) struct Archive {
    path: PathBuf,
    file: BufWriter<File>,
    entries: u32,
}

impl Archive {
    /// Creates an archive.
    pub(super) fn create(path: &Path) -> Result<Self, GuestError> {
        let file = File::create(path).map_err(at(path))?;
        Ok(Self { path: path.into(), file: BufWriter::new(file), entries: 0 })
    }

    /// Creates a second archive after a copy of the first: the kernel unpacks both.
    pub(super) fn append_to_copy(first: &Path, path: &Path) -> Result<Self, GuestError> {
        fs::copy(first, path).map_err(at(first))?;
        let mut file = File::options().write(true).open(path).map_err(at(path))?;
        file.seek(SeekFrom::End(0)).map_err(at(path))?;
        Ok(Self { path: path.into(), file: BufWriter::new(file), entries: 0 })
    }

    /// Adds a regular file.
    pub(super) fn file(
        &mut self,
        name: &str,
        permissions: u32,
        content: &[u8],
    ) -> Result<(), GuestError> {
        self.entry(name.as_bytes(), FILE | permissions, (0, 0), content)
    }

    /// Adds a folder.
    pub(super) fn folder(&mut self, name: &str) -> Result<(), GuestError> {
        self.entry(name.as_bytes(), FOLDER | 0o755, (0, 0), &[])
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, name: &str, target: &str) -> Result<(), GuestError> {
        self.entry(name.as_bytes(), LINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device, which only root could create as a file.
    pub(super) fn character_device(
        &mut self,
        name: &str,
        numbers: (u32, u32),
    ) -> Result<(), GuestError> {
        self.entry(name.as_bytes(), CHARACTER_DEVICE | 0o600, numbers, &[])
    }

    /// Adds everything below `folder` except the relative paths that `leave_out` selects.
    pub(super) fn tree(
        &mut self,
        folder: &Path,
        leave_out: &impl Fn(&str) -> bool,
    ) -> Result<(), GuestError> {
        self.subtree(folder, folder, leave_out)
    }

    fn subtree(
        &mut self,
        root: &Path,
        folder: &Path,
        leave_out: &impl Fn(&str) -> bool,
    ) -> Result<(), GuestError> {
        let entries = fs::read_dir(folder).map_err(at(folder))?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
        let mut paths = paths.map_err(at(folder))?;
        paths.sort();
        for path in paths {
            let name = path.strip_prefix(root).unwrap_or(&path);
            if leave_out(&name.to_string_lossy()) {
                continue;
            }
            let name = name.as_os_str().as_bytes();
            let metadata = path.symlink_metadata().map_err(at(&path))?;
            let permissions = metadata.permissions().mode() & 0o777;
            if metadata.is_dir() {
                self.entry(name, FOLDER | permissions, (0, 0), &[])?;
                self.subtree(root, &path, leave_out)?;
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path).map_err(at(&path))?;
                self.entry(name, LINK | 0o777, (0, 0), target.as_os_str().as_bytes())?;
            } else {
                let content = fs::read(&path).map_err(at(&path))?;
                self.entry(name, FILE | permissions, (0, 0), &content)?;
            }
        }
        Ok(())
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> Result<(), GuestError> {
        self.entry(TRAILER.as_bytes(), 0, (0, 0), &[])?;
        self.file.flush().map_err(at(&self.path))
    }

    fn entry(
        &mut self,
        name: &[u8],
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> Result<(), GuestError> {
        self.entries += 1;
        let head = header(self.entries, mode, device, name, content);
        let written = head.and_then(|head| {
            self.file.write_all(&head)?;
            self.file.write_all(content)?;
            self.file.write_all(padding(content.len()))
        });
        written.map_err(at(&self.path))
    }
}

/// Returns the header of an entry and its name.
fn header(
    number: u32,
    mode: u32,
    (major, minor): (u32, u32),
    name: &[u8],
    content: &[u8],
) -> io::Result<Vec<u8>> {
    let too_long = |_| io::Error::from(io::ErrorKind::FileTooLarge);
    let size = u32::try_from(content.len()).map_err(too_long)?;
    let name_length = u32::try_from(name.len() + 1).map_err(too_long)?;
    let (user, group, links, modified, checksum) = (0, 0, 1, 0, 0);
    let fields = [
        number,
        mode,
        user,
        group,
        links,
        modified,
        size,
        0,
        0,
        major,
        minor,
        name_length,
        checksum,
    ];
    let mut header = b"070701".to_vec();
    for field in fields {
        write!(header, "{field:08X}")?;
    }
    header.extend_from_slice(name);
    header.push(0);
    // The header and the name are padded together.
    header.extend_from_slice(padding(header.len()));
    Ok(header)
}

/// Returns the zeroes after a part of this length: each part ends at a multiple of four.
fn padding(length: usize) -> &'static [u8] {
    &[0; 3][..length.next_multiple_of(4) - length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_as_newc_wants_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.cpio");
        let mut archive = Archive::create(&path).unwrap();
        archive.file("ab", 0o644, b"hello").unwrap();
        archive.finish().unwrap();
        let bytes = fs::read(path).unwrap();
        assert!(bytes.starts_with(b"07070100000001000081A4"));
        assert_eq!(&bytes[110..113], b"ab\0");
        assert_eq!(&bytes[116..121], b"hello", "the name ends at a multiple of four");
        assert!(bytes[124..].starts_with(b"070701"), "and so does the content");
        assert_eq!(bytes.len() % 4, 0);
    }
}
