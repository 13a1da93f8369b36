//! Volumes of a pool that are filled from images while they are used.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sarsen_block::{Buffer, Data, Io, Store};
use sarsen_initiator::transfer::{ImageError, OpenImage, TransferError};
use sarsen_io::{threads, time};
use sarsen_pool::{FillError, FillingVolume, Image, PoolError, VolumeInfo};
use sarsen_volume::{Aspect, Health, VolumeHealth};
use tokio::sync::Semaphore;
use tracing::info;

use super::{OpenPool, StoreCores};
use crate::config::{VolumeConfig, render_size};
use crate::events::{EventLog, Occurrence};
use crate::model::ByteSize;
use crate::stores::StoreError;

/// The time until a filling that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Maximum number of threads that read an image at the same time. If its disk hangs, no more of them hang.
const THREADS_MAX: usize = 8;

/// The file of an image. Threads that may wait read it.
struct ImageFile {
    image: Arc<OpenImage>,
    threads: Arc<Semaphore>,
}

impl ImageFile {
    fn on_a_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OpenImage) -> std::io::Result<T> + Send + 'static,
    ) -> Io<std::io::Result<T>> {
        let (image, threads) = (self.image.clone(), self.threads.clone());
        Io::pending(async move {
            let permit = threads.acquire_owned().await.map_err(std::io::Error::other)?;
            let work = move || {
                let _permit = permit;
                work(&image)
            };
            threads::run_detached("image", work).await?
        })
    }
}

impl Image for ImageFile {
    fn size(&self) -> u64 {
        self.image.length()
    }

    fn read(&self, offset: u64, length: usize) -> Io<std::io::Result<Data>> {
        self.on_a_thread(move |image| {
            let mut buffer = Buffer::for_overwrite(length);
            image.read(offset, &mut buffer).map(|()| buffer.into())
        })
    }

    fn next_data(&self, offset: u64) -> Io<std::io::Result<Option<u64>>> {
        self.on_a_thread(move |image| image.next_data(offset))
    }
}

/// Returns the error of an image that cannot be opened, with a remedy.
fn not_opened(path: &Path, error: TransferError) -> StoreError {
    let path = path.to_owned();
    match error {
        TransferError::File { source, .. } if source.kind() == ErrorKind::NotFound => {
            StoreError::NoImage { path }
        }
        TransferError::InUse { .. } => StoreError::InUse { path },
        error @ TransferError::Image(ImageError::References { .. }) => {
            let problem = format!(
                "{error}, which an image of a volume cannot have: convert it with qemu-img convert -O qcow2, or import it \
                 into a volume without an image: sarsen disk write --format qcow2 --permit-references"
            );
            StoreError::Image { problem }
        }
        error => StoreError::Image { problem: error.to_string() },
    }
}

impl OpenPool {
    /// Opens the image that a volume needs, if it is new or not filled yet. Blocks the thread, which must not be a core.
    pub(super) fn image_for(
        &self,
        config: &VolumeConfig,
    ) -> Result<Option<Arc<dyn Image>>, StoreError> {
        if config.snapshot.is_some() {
            return Ok(None);
        }
        let found = self.find_volume(&config.name, config.serial.as_deref());
        let is_filled = found.as_ref().is_some_and(|found| found.image_size.is_none());
        match &config.image {
            Some(path) if !is_filled => {
                let image = OpenImage::open(path, config.image_format());
                let image = Arc::new(image.map_err(|error| not_opened(path, error))?);
                let threads = Arc::new(Semaphore::new(THREADS_MAX));
                Ok(Some(Arc::new(ImageFile { image, threads })))
            }
            None if found.is_some() && !is_filled => Err(self.error(format!(
                "volume {} is still being filled from an image: set image to the path of that",
                config.name
            ))),
            Some(_) | None => Ok(None),
        }
    }

    /// Returns the size of a new volume, if it has one of its own.
    pub(super) fn size_of_new(
        &self,
        config: &VolumeConfig,
        image_size: Option<u64>,
    ) -> Result<Option<u64>, StoreError> {
        let size = config.size.map(ByteSize::get);
        let Some(image_size) = image_size else { return Ok(size) };
        if size.is_some_and(|size| size < image_size) {
            return Err(self.error(format!(
                "volume {} is smaller than the disk in its image, which has {}: give it at least that, or leave out size",
                config.name,
                render_size(image_size)
            )));
        }
        if image_size == 0 {
            return Err(
                self.error(format!("the disk in the image of volume {} is empty", config.name))
            );
        }
        let block_size = config.block_size().bytes() as u64;
        Ok(size.or(Some(image_size.next_multiple_of(block_size))))
    }

    /// Opens a volume, with its image if it is not filled yet.
    pub(super) async fn open_found(
        &self,
        config: &VolumeConfig,
        found: &VolumeInfo,
        image: Option<Arc<dyn Image>>,
    ) -> Result<(Arc<dyn Store>, Option<Arc<VolumeFilling>>), StoreError> {
        let failed = |error| self.failed(error);
        let (Some(image), Some(path), Some(known)) = (image, &config.image, found.image_size)
        else {
            return Ok((self.pool.open_volume(found.id).await.map_err(failed)?, None));
        };
        if image.size() != known {
            return Err(StoreError::Image {
                problem: format!(
                    "{}: its disk has {}, and had {} when the filling of volume {} began: restore the image as it was",
                    path.display(),
                    render_size(image.size()),
                    render_size(known),
                    config.name
                ),
            });
        }
        let opened = self.pool.open_filling(found.id, image).await.map_err(failed)?;
        let store = Arc::new(opened);
        let filling = VolumeFilling {
            store: store.clone(),
            path: path.to_path_buf(),
            cores: self.access.cores.clone(),
            is_running: AtomicBool::new(false),
            retry_at: Mutex::default(),
        };
        Ok((store, Some(Arc::new(filling))))
    }
}

/// The filling of an open volume from its image.
pub(crate) struct VolumeFilling {
    store: Arc<FillingVolume>,
    path: PathBuf,
    cores: StoreCores,
    is_running: AtomicBool,
    /// When it is tried again after a failure.
    retry_at: Mutex<Option<Instant>>,
}

impl VolumeFilling {
    /// Returns the path of the image, the bytes of it that the filling has passed, and all of its bytes, until the volume is
    /// filled.
    pub(crate) fn progress(&self) -> Option<(&Path, u64, u64)> {
        let (done, all) = self.store.progress()?;
        Some((&self.path, done, all))
    }

    /// Begins to fill the volume, unless this has begun, has ended or has failed a moment ago. It ends when the volume is
    /// closed.
    pub(crate) fn begin(
        self: &Arc<Self>,
        volume: &str,
        health: &Arc<Health>,
        events: &Arc<EventLog>,
    ) {
        let has_failed = self.retry_at.lock().is_some_and(|at| time::now() < at);
        if has_failed
            || self.store.progress().is_none()
            || self.is_running.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let (weak, volume) = (Arc::downgrade(self), volume.to_owned());
        let (health, events) = (health.clone(), events.clone());
        drop(self.cores.begin(move || async move {
            while let Some(filling) = weak.upgrade() {
                let filled = filling.store.fill_some().await;
                health.report(
                    Aspect::Filling,
                    match &filled {
                        Ok(_) => VolumeHealth::Online,
                        Err(error) => VolumeHealth::Degraded { reason: filling.stopped(error) },
                    },
                );
                match filled {
                    Ok(true) => {}
                    Ok(false) => {
                        let image = filling.path.display().to_string();
                        info!(volume, image, "the volume is filled from its image");
                        events.tell(&Occurrence::VolumeFilled { volume, image });
                        return;
                    }
                    Err(_) => {
                        *filling.retry_at.lock() = Some(time::now() + RETRY_AFTER);
                        filling.is_running.store(false, Ordering::Release);
                        return;
                    }
                }
            }
        }));
    }

    /// Returns the problem of a filling that has stopped, as the end of a sentence.
    fn stopped(&self, error: &FillError) -> String {
        let remedy = match error {
            FillError::Image(_) => {
                "Blocks that are not filled yet cannot be read. Restore the image as it was, and run `sarsen volume reattach`"
            }
            FillError::Pool(PoolError::NoSpace) => {
                "Delete snapshots, erase volumes, or add a device with `sarsen pool add`: then it goes on by itself"
            }
            FillError::Pool(_) => "See the problem of the pool with `sarsen pool status`",
        };
        let path = self.path.display();
        format!("is not filled from {path} any further: {error}. {remedy}")
    }
}
