//! A cpio archive in the `newc` format, which the kernel unpacks into its first root file system.
//!
//! All its entries belong to root, whichever user writes it.

use std::fs::{self, File};
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

const TRAILER: &str = "TRAILER!!!";
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive in progress.
pub(super) struct Archive {
    file: BufWriter<File>,
    entries: u32,
}

impl Archive {
    /// Creates an archive.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self { file: BufWriter::new(file), entries: 0 })
    }

    /// Creates a second archive after a copy of the first: the kernel unpacks both.
    pub(super) fn append_to_copy(first: &Path, path: &Path) -> Result<Self> {
        fs::copy(first, path).with_context(|| first.display().to_string())?;
        let mut file = File::options().write(true).open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { file: BufWriter::new(file), entries: 0 })
    }

    /// Adds a regular file.
    pub(super) fn file(&mut self, name: &str, permissions: u32, content: &[u8]) -> Result<()> {
        self.entry(name.as_bytes(), FILE | permissions, (0, 0), content)
    }

    /// Adds a folder.
    pub(super) fn folder(&mut self, name: &str) -> Result<()> {
        self.entry(name.as_bytes(), FOLDER | 0o755, (0, 0), &[])
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, name: &str, target: &str) -> Result<()> {
        self.entry(name.as_bytes(), LINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device, which only root could create as a file.
    pub(super) fn character_device(&mut self, name: &str, numbers: (u32, u32)) -> Result<()> {
        self.entry(name.as_bytes(), CHARACTER_DEVICE | 0o600, numbers, &[])
    }

    /// Adds everything below `folder` except the relative paths that `leave_out` selects.
    pub(super) fn tree(&mut self, folder: &Path, leave_out: &impl Fn(&str) -> bool) -> Result<()> {
        self.subtree(folder, folder, leave_out)
    }

    fn subtree(
        &mut self,
        root: &Path,
        folder: &Path,
        leave_out: &impl Fn(&str) -> bool,
    ) -> Result<()> {
        let mut paths =
            fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.sort();
        for path in paths {
            let name = path.strip_prefix(root)?;
            if leave_out(&name.to_string_lossy()) {
                continue;
            }
            let name = name.as_os_str().as_bytes();
            let metadata = path.symlink_metadata()?;
            let permissions = metadata.permissions().mode() & 0o777;
            if metadata.is_dir() {
                self.entry(name, FOLDER | permissions, (0, 0), &[])?;
                self.subtree(root, &path, leave_out)?;
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path)?;
                self.entry(name, LINK | 0o777, (0, 0), target.as_os_str().as_bytes())?;
            } else {
                let content = fs::read(&path).with_context(|| path.display().to_string())?;
                self.entry(name, FILE | permissions, (0, 0), &content)?;
            }
        }
        Ok(())
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> Result<()> {
        self.entry(TRAILER.as_bytes(), 0, (0, 0), &[])?;
        self.file.flush()?;
        Ok(())
    }

    fn entry(&mut self, name: &[u8], mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        self.entries += 1;
        let (major, minor) = device;
        let size = u32::try_from(content.len()).context("a file of 4 GiB")?;
        let name_length = u32::try_from(name.len())? + 1;
        write!(self.file, "070701")?;
        let (user, group, links, modified, checksum) = (0, 0, 1, 0, 0);
        let fields = [
            self.entries,
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
        for field in fields {
            write!(self.file, "{field:08X}")?;
        }
        self.file.write_all(name)?;
        self.file.write_all(&[0])?;
        // The header has 110 bytes; the name and the content are each padded to a multiple of four.
        self.pad(110 + name.len() + 1)?;
        self.file.write_all(content)?;
        self.pad(content.len())
    }

    fn pad(&mut self, length: usize) -> Result<()> {
        let zeroes = [0; 3];
        self.file.write_all(&zeroes[..length.next_multiple_of(4) - length])?;
        Ok(())
    }
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
