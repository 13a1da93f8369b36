//! The image of a CD or DVD: a read-only file of blocks of 2,048 bytes.

use std::path::Path;

use sarsen_block::BlockSize;

use super::{CacheMode, FileOptions, FileStore, StoreError};

/// Opens an image. An image that ends within a block is incomplete, and the data that a drive would return for that
/// block is unknown.
pub(super) fn open(path: &Path) -> Result<FileStore, StoreError> {
    let block = BlockSize::B2048.bytes() as u64;
    let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if !length.is_multiple_of(block) {
        let problem = format!(
            "has {length} bytes, which are no whole blocks of a CD, of {block} each: it was not copied to its end; \
             copy it again, or fill its last block with zeroes (truncate --size %{block})"
        );
        return Err(StoreError::unfit(path, problem));
    }
    FileStore::open(&FileOptions {
        path: path.to_owned(),
        size: None,
        block_size: BlockSize::B2048,
        cache: CacheMode::default(),
        read_only: true,
        serial: None,
    })
}

#[cfg(test)]
mod tests {
    use sarsen_block::Store as _;

    #[test]
    fn an_image_is_whole_blocks_of_a_cd_or_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.iso");
        let open_with = |length: u64| {
            std::fs::File::create(&path).and_then(|file| file.set_len(length)).expect("a file");
            super::open(&path)
        };
        for length in [2047, 2049, 4096 + 512] {
            let message = open_with(length).err().expect("refused").to_string();
            assert!(message.contains(&format!("has {length} bytes")), "{message}");
            assert!(message.contains("truncate --size %2048"), "{message}");
        }
        let store = open_with(4096).expect("two blocks");
        assert_eq!(store.geometry().block_count, 2);
        assert!(store.characteristics().read_only);
        assert!(open_with(0).is_err());
        std::fs::remove_file(&path).expect("removed");
        assert!(super::open(&path).err().is_some_and(|error| error.is_not_found()));
    }
}
