//! Volumes with protection information: the layer above their store, and the header that identifies their files. Their
//! blocks have another layout than those of a plain volume, so a file is never served as the wrong kind.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use sarsen_block::layers::{HEADER_BYTES, ProtectedStore};
use sarsen_block::{BlockSize, Store};
use sarsen_io::file::open_to_read;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FileOptions, FileStore, OpenMode, RamStore, StoreError};

const MAGIC: [u8; 8] = *b"sarsen\x1ap";
const VERSION: u8 = 1;

/// The header at the beginning of the file.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u8,
    /// log2 of the block size without protection information.
    block_size_shift: u8,
    reserved: [u8; 6],
}

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

impl Header {
    const fn of(block_size: BlockSize) -> Self {
        let block_size_shift = block_size.shift() as u8;
        Self { magic: MAGIC, version: VERSION, block_size_shift, reserved: [0; 6] }
    }
}

/// The part of a file or device that must be empty before it becomes a protected volume.
const FIRST_BYTES: usize = 4096;

/// The content of a path.
enum Found {
    /// No data yet.
    Empty,
    /// A volume with protection information.
    Protected(Header),
    /// Other data.
    Other,
}

fn look_at(path: &Path) -> io::Result<Found> {
    let file = match open_to_read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Empty),
        file => file?,
    };
    let metadata = file.metadata()?;
    let mut first = [0; FIRST_BYTES];
    let mut length = 0;
    while length < FIRST_BYTES {
        match file.read_at(&mut first[length..], length as u64)? {
            0 => break,
            count => length += count,
        }
    }
    let zeroes = first.iter().all(|&byte| byte == 0);
    Ok(match Header::read_from_prefix(&first) {
        Ok((header, _)) if header.magic == MAGIC => Found::Protected(header),
        // A file that was created and whose header was not written has no allocated blocks.
        _ if zeroes && (metadata.blocks() == 0 || metadata.file_type().is_block_device()) => {
            Found::Empty
        }
        _ => Found::Other,
    })
}

fn look(path: &Path) -> Result<Found, StoreError> {
    look_at(path).map_err(StoreError::system(path, "find out what it holds"))
}

/// Refuses to serve a file with protection information as a plain volume.
pub(super) fn refuse_as_plain(path: &Path) -> Result<(), StoreError> {
    match look(path)? {
        Found::Protected(_) => Err(StoreError::unfit(
            path,
            "is a volume with protection information: set protection to 1, 2 or 3",
        )),
        Found::Empty | Found::Other => Ok(()),
    }
}

/// Opens or creates a file with protection information. `options` describe the volume as initiators see it. A new file
/// must be [imprinted](FileStore::imprint) before it is used.
pub(super) fn open_file(
    options: &FileOptions,
    open_mode: OpenMode,
) -> Result<(Arc<dyn Store>, Arc<FileStore>), StoreError> {
    let path = &options.path;
    let unfit = |problem: String| StoreError::unfit(path, problem);
    let header = Header::of(options.block_size);
    let is_new = match look(path)? {
        Found::Empty => true,
        Found::Protected(found) if found == header => false,
        Found::Protected(Header { version: VERSION, block_size_shift, .. }) => {
            let bytes = 1_u64.checked_shl(block_size_shift.into()).unwrap_or(0);
            return Err(unfit(format!("has blocks of {bytes} bytes: set block-size = {bytes}")));
        }
        Found::Protected(_) => {
            return Err(unfit("was made by a later version of this program: use that".into()));
        }
        Found::Other => {
            return Err(unfit(
                "holds something without protection information: give the volume a new file, \
                 or an empty one, and copy what is to be kept"
                    .into(),
            ));
        }
    };
    if is_new && options.read_only && fs::exists(path).unwrap_or(false) {
        return Err(unfit("is empty: serve it once without read-only".into()));
    }
    let file = Arc::new(FileStore::prepare(&options_below(options)?, open_mode)?);
    if is_new {
        let mut first = vec![0; HEADER_BYTES];
        first[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        file.begin_with(first);
    }
    Ok((Arc::new(protect(file.clone(), options.block_size)), file))
}

/// Returns the options of the file of a volume with protection information.
pub(super) fn options_below(options: &FileOptions) -> Result<FileOptions, StoreError> {
    let below = |size| {
        let block_count = size >> options.block_size.shift();
        ProtectedStore::required_inner_bytes(options.block_size, block_count).ok_or_else(|| {
            let problem = format!("cannot have {size} bytes: choose another size");
            StoreError::unfit(&options.path, problem)
        })
    };
    let size = options.size.map(below).transpose()?;
    Ok(FileOptions { size, block_size: BlockSize::B512, ..options.clone() })
}

/// Creates a RAM volume with protection information. Data and protection information together use a maximum of `limit`
/// bytes.
pub(super) fn in_memory(
    block_size: BlockSize,
    size: u64,
    limit: Option<u64>,
) -> io::Result<Arc<dyn Store>> {
    let below = ProtectedStore::required_inner_bytes(block_size, size >> block_size.shift());
    let below = below.ok_or(ErrorKind::OutOfMemory)?;
    let store = RamStore::with_limit(BlockSize::B512, below >> BlockSize::B512.shift(), limit)?;
    Ok(Arc::new(protect(Arc::new(store), block_size)))
}

fn protect(store: Arc<dyn Store>, block_size: BlockSize) -> ProtectedStore {
    match ProtectedStore::new(store, block_size) {
        Some(store) => store,
        None => unreachable!("a configuration protects blocks of 512 and 4,096 bytes"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use sarsen_block::conformance;
    use sarsen_io::cores::{self, FileEngine};

    use super::super::CacheMode;
    use super::*;

    fn opened_file(options: &FileOptions) -> Result<Arc<dyn Store>, StoreError> {
        let (store, file) = open_file(options, OpenMode::OpenOrCreate)?;
        file.settle()?;
        file.imprint()?;
        Ok(store)
    }

    const SIZE: u64 = 2 << 20;

    fn options(path: PathBuf, cache: CacheMode, block_size: BlockSize) -> FileOptions {
        FileOptions { path, size: Some(SIZE), block_size, cache, read_only: false, serial: None }
    }

    #[test]
    fn every_cache_mode_and_engine_passes_the_conformance_suite() {
        use CacheMode::*;
        for cache in [WriteBack, WriteThrough, None, DirectSync, Unsafe] {
            for engine in [FileEngine::Auto, FileEngine::Pool] {
                for block_size in [BlockSize::B512, BlockSize::B4096] {
                    let folder = tempfile::tempdir().expect("a folder");
                    let path = folder.path().join("disk");
                    let store = match opened_file(&options(path, cache, block_size)) {
                        // A file system of 4 KiB sectors has no direct I/O for smaller blocks.
                        Err(StoreError::Unfit { problem, .. }) if cache.is_direct() => {
                            assert!(problem.contains("direct I/O"), "{problem}");
                            continue;
                        }
                        store => store.expect("opens"),
                    };
                    assert_eq!(store.geometry().byte_count(), SIZE);
                    cores::block_on(engine, conformance::check(&*store, 7)).expect("a core");
                }
            }
        }
    }

    #[test]
    fn memory_passes_the_conformance_suite() {
        for block_size in [BlockSize::B512, BlockSize::B4096] {
            let store = in_memory(block_size, SIZE, None).expect("memory");
            assert_eq!(store.geometry().byte_count(), SIZE);
            cores::block_on(FileEngine::Pool, conformance::check(&*store, 3)).expect("a core");
        }
    }

    #[test]
    fn file_is_served_only_with_its_own_layout() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let opened = options(path.clone(), CacheMode::WriteBack, BlockSize::B512);
        drop(opened_file(&opened).expect("is made"));
        drop(opened_file(&opened).expect("is known again"));
        let error = |result: Result<(), StoreError>| result.expect_err("is refused").to_string();
        let plain = error(refuse_as_plain(&path));
        assert!(plain.contains("set protection"), "{plain}");
        let large = FileOptions { block_size: BlockSize::B4096, ..opened.clone() };
        let reported = error(opened_file(&large).map(drop));
        assert!(reported.contains("set block-size = 512"), "{reported}");

        let image = folder.path().join("image");
        fs::write(&image, [1; 4096]).expect("writes");
        let reported =
            error(opened_file(&FileOptions { path: image.clone(), ..opened.clone() }).map(drop));
        assert!(reported.contains("without protection"), "{reported}");
        assert_eq!(fs::metadata(&image).expect("is there").len(), 4096, "it did not grow");
        refuse_as_plain(&image).expect("is plain");
        refuse_as_plain(&folder.path().join("absent")).expect("is nothing");
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
        assert!(made.success());
        // Opening a pipe would wait forever for a writer.
        let reported = error(refuse_as_plain(&pipe));
        assert!(reported.contains("neither a regular file"), "{reported}");

        // The server was killed after creating the file and before writing its header.
        let made = folder.path().join("made");
        fs::File::create(&made).and_then(|file| file.set_len(8192)).expect("makes");
        drop(opened_file(&FileOptions { path: made, ..opened }).expect("is finished"));
    }
}
