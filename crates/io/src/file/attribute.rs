//! Extended attributes of a file (xattr(7)), for facts about it that its content cannot have.

use std::io;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::File;

/// Maximum length of a value that this module reads.
const VALUE_BYTES_MAX: usize = 256;

impl File {
    /// Returns the value of an attribute. Returns `None` if the file has no such attribute, if the file system supports
    /// none or does not permit this process to read it, or if the value is longer than 256 bytes. Blocks the thread.
    pub fn attribute(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut value = [0; VALUE_BYTES_MAX];
        match rustix::fs::fgetxattr(&self.opened.fd, name, &mut value[..]) {
            Ok(length) => Ok(Some(value[..length].to_vec())),
            Err(
                Errno::NODATA
                | Errno::RANGE
                | Errno::OPNOTSUPP
                | Errno::NOSYS
                | Errno::ACCESS
                | Errno::PERM,
            ) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets an attribute durably. Blocks the thread.
    pub fn set_attribute(&self, name: &str, value: &[u8]) -> io::Result<()> {
        rustix::fs::fsetxattr(&self.opened.fd, name, value, XattrFlags::empty())?;
        Ok(rustix::fs::fsync(&self.opened.fd)?)
    }
}
