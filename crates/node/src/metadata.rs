//! Persistent records of a volume: a folder with one file for each record. Each file has a header that reveals damage
//! and files of other programs.

use std::fs::{self, DirBuilder};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sarsen_block::Io;
use sarsen_io::file::lock_within;
use sarsen_io::record::{AtomicFile, LockedFolder};
use sarsen_proto::iscsi::digest::crc32c_of;
use sarsen_scsi::{MetadataKind, MetadataStore};
use tracing::info;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::config::{StoreKind, VolumeConfig};
use crate::model::metadata_folder;
use crate::stores::{LOCK_TIMEOUT, OpenMode, StoreError};

const FOLDER_MODE: u32 = 0o700;
/// Maximum length of a record's content.
const CONTENT_LIMIT: usize = 64 << 20;

const MAGIC: [u8; 8] = *b"sarsen\x1ar";
const VERSION: u32 = 1;

/// The header of each file.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    /// Length of the content in bytes. Nothing follows the content.
    length: U32,
    /// The record's name, padded with zeroes.
    name: [u8; 24],
    /// CRC32C of all previous fields and of the content.
    checksum: [u8; 4],
}

const HEADER_LENGTH: usize = size_of::<Header>();
const CHECKSUM_OFFSET: usize = HEADER_LENGTH - 4;
const _: () = assert!(HEADER_LENGTH == 44);

/// The records of one volume.
pub(crate) struct Records {
    /// They keep their folder locked.
    files: [(MetadataKind, AtomicFile); MetadataKind::ALL.len()],
}

/// Opens the records of a volume, if it has any. All of them are read once, so that a damaged one is an error already
/// here.
pub(crate) fn open(
    volume: &VolumeConfig,
    open_mode: OpenMode,
) -> Result<Option<Arc<dyn MetadataStore>>, StoreError> {
    let path = volume.file();
    let is_remote = volume.store == StoreKind::Remote;
    // Several servers may serve a read-only file at once.
    let has_none = volume.is_read_only() && !is_remote;
    if has_none || (path.is_none() && !is_remote && volume.store != StoreKind::Pool) {
        return Ok(None);
    }
    let is_beside =
        |path: &&Path| !fs::metadata(path).is_ok_and(|file| file.file_type().is_block_device());
    let folder = match (&volume.state, path.filter(is_beside)) {
        (Some(folder), _) => {
            match open_mode {
                // Missing reservations and keys mean that their file system is unavailable, not that they were deleted.
                OpenMode::Existing { has_state: true, .. } if !folder.exists() => {
                    return Err(StoreError::Gone { path: folder.clone() });
                }
                _ => make(folder)?,
            }
            folder.clone()
        }
        (None, Some(path)) => metadata_folder(path),
        (None, None) => {
            info!(
                volume = volume.name,
                "reservations and saved pages{} end with the server: give the volume state = FOLDER to keep them",
                if is_remote { ", and which unit it is," } else { "" }
            );
            return Ok(None);
        }
    };
    Ok(Some(Arc::new(Records::open(&folder)?)))
}

/// Creates a state folder, if it is missing.
pub(crate) fn make(folder: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Err(source) if source.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made.map_err(StoreError::system(folder, "make the folder for the state"))?,
    }
    // The folder's name must be durable, too, not only its content (fsync(2)).
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = fs::File::open(parent.unwrap_or(Path::new(".")));
    let synced = parent.and_then(|parent| parent.sync_all());
    synced.map_err(StoreError::system(folder, "make its name durable"))
}

/// Deletes the records in a folder, and the folder if it has no other files, when no volume uses the folder any more.
/// Returns whether the folder is gone. Blocks the thread.
pub(crate) fn erase(folder: &Path, timeout: Duration) -> io::Result<bool> {
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    // Locked until the end, against volumes that reach the folder by another path.
    let opened = match fs::File::open(folder) {
        Err(error) if is_missing(&error) => return Ok(true),
        opened => opened?,
    };
    if !lock_within(&opened, true, timeout)? {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "a volume uses this folder"));
    }
    for record in MetadataKind::ALL {
        let file = AtomicFile::new(folder.join(record.name()));
        // Files of other programs have no such header.
        let mut magic = [0; MAGIC.len()];
        let read = fs::File::open(file.path()).and_then(|mut file| file.read_exact(&mut magic));
        let is_record = read.is_ok() && magic == MAGIC;
        // A crash leaves a part of a record under the other name.
        let erased = [is_record.then(|| file.path().to_owned()), Some(file.temporary_path())];
        for path in erased.into_iter().flatten() {
            match fs::remove_file(path) {
                Err(error)
                    if !is_missing(&error) && error.kind() != io::ErrorKind::NotADirectory =>
                {
                    return Err(error);
                }
                _ => {}
            }
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if is_missing(&error) => Ok(true),
        // A link stays, with the folder behind it: another program may use that.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(false)
        }
        removed => removed.map(|()| true),
    }
}

impl Records {
    /// Opens the records in a folder, and checks the existing ones. The folder may be missing.
    fn open(folder: &Path) -> Result<Self, StoreError> {
        let locked = match LockedFolder::new(folder.to_owned(), LOCK_TIMEOUT) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(StoreError::InUse { path: folder.to_owned() });
            }
            locked => locked.map_err(StoreError::system(folder, "lock the folder of the state"))?,
        };
        let locked = Arc::new(locked);
        let file = |record: MetadataKind| (record, AtomicFile::within(&locked, record.name()));
        let records = Self { files: MetadataKind::ALL.map(file) };
        for record in MetadataKind::ALL {
            records.load(record).map_err(|source| StoreError::State { source })?;
        }
        Ok(records)
    }

    fn file(&self, record: MetadataKind) -> &AtomicFile {
        match self.files.iter().find(|(kept, _)| *kept == record) {
            Some((_, file)) => file,
            None => unreachable!("there is a file for every record"),
        }
    }
}

impl MetadataStore for Records {
    fn load(&self, record: MetadataKind) -> io::Result<Option<Vec<u8>>> {
        let file = self.file(record);
        let path = file.path().display();
        let bytes = match file.read_now(HEADER_LENGTH + CONTENT_LIMIT) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(error) => {
                return Err(io::Error::new(
                    error.kind(),
                    format!("{path}: cannot read it: {error}"),
                ));
            }
        };
        decode(record, bytes).map(Some).map_err(|problem| {
            let remedy = match record {
                // Without the key, the encrypted data is lost.
                MetadataKind::Key => "restore it from a copy".into(),
                _ => format!(
                    "restore it from a copy, or remove it to start without the {} that it kept",
                    record.name()
                ),
            };
            io::Error::new(io::ErrorKind::InvalidData, format!("{path} {problem}: {remedy}"))
        })
    }

    fn save(&self, record: MetadataKind, content: Vec<u8>) -> Io<io::Result<()>> {
        let file = self.file(record);
        if content.len() > CONTENT_LIMIT {
            return Io::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        }
        match record {
            MetadataKind::Key if !content.is_empty() => {
                file.replace_and_destroy(encode(record, &content))
            }
            _ => file.replace((!content.is_empty()).then(|| encode(record, &content))),
        }
    }
}

fn name_field(record: MetadataKind) -> [u8; 24] {
    let mut field = [0; 24];
    let name = record.name().as_bytes();
    field[..name.len()].copy_from_slice(name);
    field
}

fn encode(record: MetadataKind, content: &[u8]) -> Vec<u8> {
    let mut header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        length: (content.len() as u32).into(),
        name: name_field(record),
        checksum: [0; 4],
    };
    header.checksum = crc32c_of(&[&header.as_bytes()[..CHECKSUM_OFFSET], content]);
    [header.as_bytes(), content].concat()
}

/// Returns the content of a record's file, or the problem of the file.
fn decode(record: MetadataKind, mut bytes: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    let Ok((header, content)) = Header::ref_from_prefix(&bytes) else {
        return Err("is damaged (it is too short)");
    };
    if header.magic != MAGIC {
        return Err("is no record of sarsen's");
    }
    if header.version.get() != VERSION {
        return Err("has a version that this program does not know");
    }
    if header.length.get() as usize != content.len() {
        return Err("is damaged (its length is wrong)");
    }
    if header.checksum != crc32c_of(&[&bytes[..CHECKSUM_OFFSET], content]) {
        return Err("is damaged (its checksum is wrong)");
    }
    if header.name != name_field(record) {
        return Err("is another record under this name");
    }
    Ok(bytes.split_off(HEADER_LENGTH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_volume;

    fn save(metadata: &dyn MetadataStore, record: MetadataKind, content: &[u8]) -> io::Result<()> {
        match metadata.save(record, content.to_vec()) {
            Io::Ready(result) => result,
            Io::Pending(_) => panic!("a thread that is no core does not wait"),
        }
    }

    fn opened(text: &str) -> Result<Option<Arc<dyn MetadataStore>>, String> {
        open(&parse_volume(text).expect("valid"), OpenMode::OpenOrCreate)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn only_records_are_erased_wherever_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        fs::write(place("disk"), "").expect("writes");
        let volume = format!("a=file:{},state={}", place("disk").display(), place("own").display());
        let metadata = opened(&volume).expect("opens").expect("a file keeps");
        for record in MetadataKind::ALL {
            save(&*metadata, record, b"content").expect("saves");
        }
        fs::write(place("own").join("key.new"), "half").expect("writes");
        let erase = |name: &str| erase(&place(name), Duration::ZERO);
        let in_use = erase("own").expect_err("the volume is open");
        assert_eq!(in_use.kind(), io::ErrorKind::ResourceBusy);
        drop(metadata);
        fs::write(place("own").join("key.old"), "no record").expect("writes");
        std::os::unix::fs::symlink(place("own"), place("link")).expect("links");
        assert!(!erase("link").expect("erases"), "the folder has another file");
        let left: Vec<_> = fs::read_dir(place("own")).expect("a folder").flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        fs::remove_file(left[0].path()).expect("removes");
        assert!(erase("own").expect("erases") && !place("own").exists());
        assert!(erase("own").expect("erases"), "it is gone");
    }

    #[test]
    fn records_are_kept_apart_replaced_and_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        fs::write(&path, "").expect("writes");
        let volume = format!("a=file:{}", path.display());
        let metadata = opened(&volume).expect("opens").expect("a file keeps");
        assert!(!folder.path().join("disk.state").exists(), "made with the first record");
        for record in MetadataKind::ALL {
            assert_eq!(metadata.load(record).expect("loads"), None);
            save(&*metadata, record, record.name().as_bytes()).expect("saves");
        }
        save(&*metadata, MetadataKind::ModePages, b"other").expect("saves");
        save(&*metadata, MetadataKind::Operation, b"").expect("removes");
        drop(metadata);

        let metadata = opened(&volume).expect("opens").expect("a file keeps");
        let load = |record| metadata.load(record).expect("loads");
        assert_eq!(load(MetadataKind::Reservations), Some(b"reservations".to_vec()));
        assert_eq!(load(MetadataKind::ModePages), Some(b"other".to_vec()));
        assert_eq!(load(MetadataKind::Operation), None);
    }

    #[test]
    fn each_truncation_and_flipped_bit_is_detected() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = Records::open(folder.path()).expect("opens");
        save(&records, MetadataKind::Reservations, b"some keys").expect("saves");
        drop(records);
        let path = folder.path().join("reservations");
        let whole = fs::read(&path).expect("reads");
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("writes");
            let error = Records::open(folder.path()).err().expect("is refused").to_string();
            assert!(error.contains("/reservations "), "{error}");
            assert!(error.contains("remove it"), "{error}");
        };
        for length in 0..whole.len() {
            refused(&whole[..length]);
        }
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            refused(&bytes);
        }
        refused(&[&whole[..], b"more"].concat());
        fs::write(&path, &whole).expect("writes");
        fs::copy(&path, folder.path().join("mode-pages")).expect("copies");
        let error = Records::open(folder.path()).err().expect("is refused").to_string();
        assert!(error.contains("mode-pages is another record"), "{error}");
        fs::remove_file(folder.path().join("mode-pages")).expect("removes");
        Records::open(folder.path()).expect("is whole again");
    }

    #[test]
    fn record_location_depends_on_store() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        fs::write(&path, "").expect("writes");
        assert!(opened("a=ram:1MiB").expect("opens").is_none());
        let read_only = format!("a=file:{},read-only", path.display());
        assert!(opened(&read_only).expect("opens").is_none());

        let state = folder.path().join("kept");
        let volume = format!("a=file:{},state={}", path.display(), state.display());
        let metadata = opened(&volume).expect("opens").expect("keeps");
        save(&*metadata, MetadataKind::ModePages, b"x").expect("saves");
        assert!(state.join("mode-pages").exists());
        let error = opened(&volume).err().expect("is locked");
        assert!(error.contains("in use"), "{error}");
        drop(metadata);
        opened(&volume).expect("is free again");

        let nowhere = format!("a=file:{},state=/nonexistent/kept", path.display());
        let error = opened(&nowhere).err().expect("cannot be made");
        assert!(error.contains("/nonexistent/kept: cannot make"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_fails_the_save_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = Records::open(&folder.path().join("a").join("b")).expect("opens");
        assert!(save(&records, MetadataKind::Reservations, b"x").is_err());
        assert_eq!(records.load(MetadataKind::Reservations).expect("loads"), None);
    }
}
