//! Encrypted volumes: the place of their key, and the conditions for creating one. The key of a RAM volume is only in
//! memory. The key of a file volume is one of its records, so a program that reads both can decrypt the data.
//!
//! A key is created only if there is no data that needs another key. A volume that has lost its key is not served as
//! random data.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sarsen_block::layers::{EncryptedStore, KEY_BYTES, Key, KeyStore};
use sarsen_block::{Allocation, BlockError, Extent, InvalidRequest, Io, Store};
use sarsen_io::random;
use sarsen_scsi::{MetadataKind, MetadataStore};
use tracing::info;

use super::StoreError;
use super::on_cores::{now, ready};
use crate::config::VolumeConfig;

/// Number of bytes in one read, when a volume without a key is checked for data.
const PIECE_BYTES: u64 = 1 << 20;

/// The key of a volume that is not persistent.
struct InMemory;

impl KeyStore for InMemory {
    fn replace_key(&self) -> Io<io::Result<Key>> {
        Io::Ready(Ok(make_key()))
    }
}

/// A key in the records of a volume. Saving a key destroys the previous one.
struct InRecord(Arc<dyn MetadataStore>);

impl KeyStore for InRecord {
    fn replace_key(&self) -> Io<io::Result<Key>> {
        let key = make_key();
        self.0.save(MetadataKind::Key, key.as_bytes().to_vec()).map(|saved| saved.map(|()| key))
    }
}

fn make_key() -> Key {
    let mut bytes = [0; KEY_BYTES];
    random::fill(&mut bytes);
    Key::new(bytes)
}

/// A new key that is not saved yet. It must be saved before data is written with it.
pub(crate) struct NewKey {
    path: PathBuf,
    key: Vec<u8>,
    metadata_store: Arc<dyn MetadataStore>,
}

impl NewKey {
    /// Saves the key durably. Blocks the thread, which must not be a core.
    pub(crate) fn keep(&self) -> Result<(), StoreError> {
        info!(path = %self.path.display(), "a key is made for the new encrypted volume");
        let saved = now(self.metadata_store.save(MetadataKind::Key, self.key.clone()));
        saved.map_err(StoreError::system(&self.path, "keep its key"))
    }
}

/// The decrypted view of an encrypted volume.
pub(crate) struct Encrypted {
    pub(crate) store: Arc<EncryptedStore>,
    /// The key that was created for the volume, if any.
    pub(crate) new_key: Option<NewKey>,
}

/// Returns the decrypted view of an encrypted volume whose encrypted blocks are in `below`. Blocks the thread, which
/// must not be a core.
pub(crate) fn open(
    volume: &VolumeConfig,
    below: &Arc<dyn Store>,
    metadata_store: Option<&Arc<dyn MetadataStore>>,
) -> Result<Option<Encrypted>, StoreError> {
    let mut new_key = None;
    let (key, key_store): (Key, Arc<dyn KeyStore>) = match (volume.file(), volume.encrypted) {
        (Some(path), false) => {
            refuse_as_plain(path, metadata_store)?;
            return Ok(None);
        }
        (None, false) => return Ok(None),
        (Some(path), true) => {
            let metadata_store = metadata_store.ok_or_else(|| {
                let problem = "has nowhere to keep its key: give the volume state = FOLDER";
                StoreError::unfit(path, problem)
            })?;
            let key = match kept_key(path, &**below, &**metadata_store)? {
                Some(key) => key,
                None => {
                    let key = make_key();
                    let (path, metadata_store) = (path.to_owned(), Arc::clone(metadata_store));
                    new_key = Some(NewKey { path, key: key.as_bytes().to_vec(), metadata_store });
                    key
                }
            };
            (key, Arc::new(InRecord(Arc::clone(metadata_store))))
        }
        (None, true) => (make_key(), Arc::new(InMemory)),
    };
    let store = Arc::new(EncryptedStore::new(Arc::clone(below), key, key_store));
    Ok(Some(Encrypted { store, new_key }))
}

/// Refuses to serve an encrypted file without decryption: an initiator would see it as an empty disk.
fn refuse_as_plain(
    path: &Path,
    metadata_store: Option<&Arc<dyn MetadataStore>>,
) -> Result<(), StoreError> {
    let Some(metadata_store) = metadata_store else { return Ok(()) };
    match metadata_store.load(MetadataKind::Key).map_err(|source| StoreError::State { source })? {
        None => Ok(()),
        Some(_) => Err(StoreError::unfit(
            path,
            "is encrypted: set encrypted = true, or, where its data is to go, remove both it and its state",
        )),
    }
}

/// Returns the key of a file volume. Returns `None` if a key must be created, because there is no data that needs
/// another key.
fn kept_key(
    path: &Path,
    below: &dyn Store,
    metadata_store: &dyn MetadataStore,
) -> Result<Option<Key>, StoreError> {
    if let Some(kept) =
        metadata_store.load(MetadataKind::Key).map_err(|source| StoreError::State { source })?
    {
        return match <[u8; KEY_BYTES]>::try_from(kept) {
            Ok(bytes) => Ok(Some(Key::new(bytes))),
            Err(_) => Err(StoreError::unfit(
                path,
                "has a key of another length: it was made by a later version of this program: use that",
            )),
        };
    }
    let holds_data = holds_data(below).map_err(|error| io::Error::other(error.to_string()));
    if holds_data.map_err(StoreError::system(path, "find out what it holds"))? {
        return Err(StoreError::unfit(
            path,
            "holds data and its state has no key for it: restore its state (the folder PATH.state, or the one that \
             state names) if it was encrypted, or copy the data to a new volume; to start without the data, remove \
             the file, or erase the device",
        ));
    }
    Ok(None)
}

/// Returns whether any block contains other data than zeroes.
fn holds_data(store: &dyn Store) -> Result<bool, BlockError> {
    let geometry = store.geometry();
    let piece_blocks = PIECE_BYTES >> geometry.block_size.shift();
    let mut lba = 0;
    while lba < geometry.block_count {
        let rest = geometry.block_count - lba;
        let run = now_or_failed(store.allocation(Extent::new(lba, rest)))?;
        let run_blocks = run.block_count.clamp(1, rest);
        if run.allocation != Allocation::Mapped {
            lba += run_blocks;
            continue;
        }
        let piece = Extent::new(lba, run_blocks.min(piece_blocks));
        let data = now_or_failed(store.read(piece))?.into_buffer();
        if data.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
        lba += piece.block_count;
    }
    Ok(false)
}

fn now_or_failed<T>(answer: Io<Result<T, BlockError>>) -> Result<T, BlockError> {
    ready(answer).unwrap_or(Err(BlockError::Invalid(InvalidRequest::Unsupported)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sarsen_block::layers::ForgetKey;
    use sarsen_block::{Buffer, Durability, conformance};
    use sarsen_io::cores::{self, FileEngine};

    use super::*;
    use crate::config::parse_volume;
    use crate::metadata;
    use crate::stores::{Foundation, OpenMode};

    type Opened = Result<Option<Arc<EncryptedStore>>, StoreError>;

    fn settled(volume: &VolumeConfig) -> Result<Arc<dyn Store>, StoreError> {
        let opened = super::super::open(volume, OpenMode::OpenOrCreate, &Foundation::Nothing)?;
        opened.file.map_or(Ok(()), |file| file.settle())?;
        Ok(opened.store)
    }

    /// Opens a volume as a server does.
    fn opened(text: &str) -> Opened {
        let volume = parse_volume(text).expect("valid");
        let below = settled(&volume)?;
        let metadata_store = metadata::open(&volume, OpenMode::OpenOrCreate)?;
        let opened = open(&volume, &below, metadata_store.as_ref())?;
        let kept = opened.map(|Encrypted { store, new_key }| match new_key {
            Some(key) => key.keep().map(|()| store),
            None => Ok(store),
        });
        kept.transpose()
    }

    fn store(text: &str) -> Arc<EncryptedStore> {
        opened(text).unwrap_or_else(|error| panic!("{error}")).expect("it is encrypted")
    }

    fn refusal(text: &str) -> String {
        opened(text).err().expect("is refused").to_string()
    }

    fn write(store: &Arc<EncryptedStore>, lba: u64, data: &[u8]) {
        let extent = Extent::new(lba, data.len() as u64 / 512);
        let store: Arc<dyn Store> = store.clone();
        now_or_failed(store.write(extent, Buffer::copy_of(data).into(), Durability::Durable))
            .expect("writes");
    }

    fn read(store: &Arc<EncryptedStore>, lba: u64, block_count: u64) -> Vec<u8> {
        let store: Arc<dyn Store> = store.clone();
        let data = now_or_failed(store.read(Extent::new(lba, block_count))).expect("reads");
        data.into_buffer().to_vec()
    }

    fn contains(content: &[u8], part: &[u8]) -> bool {
        content.windows(part.len()).any(|window| window == part)
    }

    const PLAIN: &[u8; 32] = b"nobody below this may read these";

    #[test]
    fn they_pass_as_stores_in_memory_and_in_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        for text in [
            "a=ram:8MiB,encrypted".into(),
            format!("a=file:{},size=8MiB,encrypted", path.display()),
        ] {
            let store = store(&text);
            cores::block_on(FileEngine::Pool, conformance::check(&*store, 3)).expect("a core");
        }
    }

    #[test]
    fn encrypted_data_survives_reopening_and_is_lost_with_its_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let text = format!("a=file:{},size=1MiB,encrypted", path.display());
        let data = PLAIN.repeat(32);
        write(&store(&text), 5, &data);
        let raw = fs::read(&path).expect("reads");
        assert!(raw.iter().any(|&byte| byte != 0) && !contains(&raw, PLAIN));
        let first = store(&text);
        assert_eq!(read(&first, 5, 2), data);
        let key_path = folder.path().join("disk.state").join("key");
        let old_key = fs::read(&key_path).expect("reads");
        let old_name = folder.path().join("old");
        fs::hard_link(&key_path, &old_name).expect("links");

        now_or_failed(first.forget_key()).expect("forgets");
        assert_eq!(fs::read(&path).expect("reads"), raw, "no block was touched");
        assert!(!contains(&read(&first, 5, 2), &PLAIN[..16]));
        assert!(fs::read(&old_name).expect("reads").iter().all(|&byte| byte == 0));
        assert_ne!(fs::read(&key_path).expect("reads"), old_key);
        write(&first, 5, &data);
        drop(first);
        let second = store(&text);
        assert_eq!(read(&second, 5, 2), data);
        assert_ne!(fs::read(&path).expect("reads"), raw);
    }

    #[test]
    fn a_volume_with_data_and_without_its_key_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let text = format!("a=file:{},size=1MiB,encrypted", path.display());
        let state = folder.path().join("disk.state");
        write(&store(&text), 5, &[7; 512]);
        let key = fs::read(state.join("key")).expect("reads");
        let raw = fs::read(&path).expect("reads");
        fs::remove_file(state.join("key")).expect("removes");
        let message = refusal(&text);
        assert!(message.contains("restore its state"), "{message}");
        assert!(!state.join("key").exists(), "no key was made");
        assert_eq!(fs::read(&path).expect("reads"), raw);
        fs::write(state.join("key"), &key).expect("writes");
        assert_eq!(read(&store(&text), 5, 1), [7; 512]);

        // A damaged key is not replaced either.
        fs::write(state.join("key"), &key[..key.len() - 1]).expect("writes");
        let message = refusal(&text);
        assert!(message.contains("/key is damaged"), "{message}");

        // Zeroes are not data.
        fs::write(&path, vec![0; 1 << 20]).expect("writes");
        fs::remove_file(state.join("key")).expect("removes");
        assert_eq!(read(&store(&text), 5, 1), [0; 512]);
    }

    #[test]
    fn encrypted_and_plain_files_are_not_confused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let plain = format!("a=file:{},size=1MiB", path.display());
        assert!(opened(&plain).expect("opens").is_none());
        store(&format!("{plain},encrypted"));
        let message = refusal(&plain);
        assert!(message.contains("set encrypted = true"), "{message}");

        let other = folder.path().join("other");
        fs::write(&other, vec![1; 1 << 20]).expect("writes");
        let message = refusal(&format!("b=file:{},encrypted", other.display()));
        assert!(message.contains("holds data"), "{message}");
        assert!(!folder.path().join("other.state").exists());
    }

    #[test]
    fn a_volume_in_memory_has_another_key_each_time() {
        let text = "a=ram:1MiB,encrypted";
        let store = store(text);
        write(&store, 5, &[7; 512]);
        now_or_failed(store.forget_key()).expect("forgets");
        assert_ne!(read(&store, 5, 1), [7; 512]);
        assert!(opened("a=ram:1MiB").expect("opens").is_none());
    }

    #[test]
    fn without_a_place_for_its_key_a_volume_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let text = format!("a=file:{},size=1MiB,encrypted", path.display());
        let volume = parse_volume(&text).expect("valid");
        let below = settled(&volume).expect("opens");
        let message = open(&volume, &below, None).err().expect("is refused").to_string();
        assert!(message.contains("state = FOLDER"), "{message}");
    }
}
