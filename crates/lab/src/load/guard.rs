//! Checks the content of an endpoint before a load writes to it.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;
use std::sync::Arc;

use sarsen_block::{BlockError, Extent, Store};
use sarsen_initiator::nbd::{NbdConnection, NbdUrl};
use sarsen_initiator::signature::{self, Occupied, Signature};
use sarsen_initiator::transfer::{Disk, TransferError};
use sarsen_initiator::{SessionOptions, Url};
use sarsen_io::cores::{self, FileEngine};
use sarsen_node::stores::StoreError;

use super::client::session_options;
use super::stores::CONNECTION_LIMIT;
use super::{Endpoint, LEAVE_LIMIT, LoadError, LoadOptions};

/// Returns the content of the endpoint that writes would destroy: file systems, partition tables, volume managers,
/// RAID, swap, disk images. Blocks the calling thread, which must not be a core of this program.
pub fn look(options: &LoadOptions) -> Result<Option<Occupied>, LoadError> {
    let found = match &options.endpoint {
        Endpoint::Iscsi(url) => on_a_core(of_disk(url, &session_options(options)))??,
        Endpoint::Nbd(url) => on_a_core(of_export(url))??,
        Endpoint::Memory(store) => on_a_core(of_store(store.store()))?.map_err(unreadable)?,
        Endpoint::File { path, .. } => of_file(path).map_err(|source| {
            let path = path.clone();
            StoreError::System { path, what: "check its content", source }
        })?,
    };
    Ok(Occupied::of(&options.endpoint.to_string(), found))
}

fn on_a_core<T>(future: impl Future<Output = T>) -> Result<T, LoadError> {
    cores::block_on(FileEngine::Pool, future)
        .map_err(|source| LoadError::System { what: "start the runtime", source })
}

async fn of_disk(url: &Url, options: &SessionOptions) -> Result<Vec<Signature>, TransferError> {
    let disk = Disk::open(url, options).await?;
    let found = disk.signatures().await?;
    disk.close().await?;
    Ok(found)
}

async fn of_export(url: &NbdUrl) -> Result<Vec<Signature>, LoadError> {
    let store = Arc::new(NbdConnection::connect(url, CONNECTION_LIMIT).await?);
    let found = of_store(store.clone()).await.map_err(unreadable);
    store.disconnect(LEAVE_LIMIT).await;
    found
}

fn unreadable(error: BlockError) -> LoadError {
    LoadError::System { what: "check the content of the target", source: io::Error::other(error) }
}

async fn of_store(store: Arc<dyn Store>) -> Result<Vec<Signature>, BlockError> {
    let geometry = store.geometry();
    let size = geometry.block_size.bytes() as u64;
    signature::look_by(geometry.byte_count(), async |offset, length| {
        let extent = Extent::new(offset / size, length as u64 / size);
        Ok(store.read(extent).wait().await?.into_buffer())
    })
    .await
}

fn of_file(path: &Path) -> io::Result<Vec<Signature>> {
    // A missing file, or another type of file, has no content to check. The later open for writing returns an error
    // with advice. A pipe would block here.
    match fs::metadata(path).map(|metadata| metadata.file_type()) {
        Ok(kind) if kind.is_file() || kind.is_block_device() => {}
        Ok(_) => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let mut file = File::open(path)?;
    let length = file.seek(SeekFrom::End(0))?;
    signature::find(length, |offset, into| file.read_exact_at(into, offset))
}

#[cfg(test)]
mod tests {
    use sarsen_block::{Buffer, Durability};

    use super::super::{LoadResult, OpenStore, replay, run};
    use super::*;
    use crate::access::AccessPattern;
    use crate::trace::Request;

    const MIB: usize = 1 << 20;

    fn options(endpoint: Endpoint, read_percent: u8) -> LoadOptions {
        let access =
            AccessPattern { block_bytes: 4096, read_percent, random_percent: 100, queue_depth: 4 };
        let mut options = LoadOptions::new(endpoint, access);
        options.warm_up = std::time::Duration::ZERO;
        options.duration = std::time::Duration::from_millis(10);
        options
    }

    /// Returns memory and a file in a folder, both with a swap signature.
    fn swaps() -> (Vec<Endpoint>, tempfile::TempDir) {
        let mut image = vec![0; 4 * MIB];
        image[4086..4096].copy_from_slice(b"SWAPSPACE2");
        let memory = OpenStore::ram(image.len() as u64).unwrap();
        let store = memory.store();
        let extent = Extent::new(0, (image.len() / 512) as u64);
        let written = store.write(extent, Buffer::copy_of(&image).into(), Durability::Volatile);
        assert!(matches!(written, sarsen_block::Io::Ready(Ok(()))));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, &image).unwrap();
        (vec![Endpoint::Memory(memory), Endpoint::path(path)], folder)
    }

    #[test]
    fn disk_with_data_is_written_only_with_destroy() {
        let (endpoints, _folder) = swaps();
        for endpoint in endpoints {
            assert!(run(&options(endpoint.clone(), 100)).is_ok(), "reads need no leave");
            let Err(LoadError::Occupied(occupied)) = run(&options(endpoint.clone(), 99)) else {
                panic!("{endpoint} is written to");
            };
            assert_eq!(occupied.to_string(), format!("{endpoint} holds swap space"));
            let mut destroying = options(endpoint, 0);
            destroying.destroy = true;
            assert!(run(&destroying).is_ok());
        }
    }

    #[test]
    fn a_pipe_is_no_place_for_a_load() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        let refused = run(&options(Endpoint::path(&path), 0)).unwrap_err().to_string();
        assert!(refused.contains("neither a regular file nor a block device"), "{refused}");
    }

    #[test]
    fn a_trace_is_refused_at_its_first_write() {
        let (endpoints, _folder) = swaps();
        for endpoint in endpoints {
            let mut options = options(endpoint, 100);
            assert!(replay_of(&[true, true], &options).is_ok());
            let refused = replay_of(&[true, false], &options);
            assert!(matches!(refused, Err(LoadError::Occupied(_))), "{refused:?}");
            options.destroy = true;
            assert!(replay_of(&[true, false], &options).is_ok());
        }
    }

    /// Replays a trace of reads (`true`) and writes.
    fn replay_of(reads: &[bool], options: &LoadOptions) -> Result<LoadResult, LoadError> {
        let at = std::time::Duration::ZERO;
        let request = |&reads: &bool| Ok(Request { at, reads, offset: 0, length: 4096 });
        let requests: Vec<_> = reads.iter().map(request).collect();
        replay(options, Box::new(requests.into_iter()), None)
    }
}
