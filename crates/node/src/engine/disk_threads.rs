//! Threads for work that may hang, such as opening a file on a disk that does not respond. Each disk has a limited number
//! of them, so that a hung disk does not take the threads of other disks. Work waits until a thread is free.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sarsen_io::threads;
use tokio::sync::Notify;
use tracing::error;

use super::ChangeError;
use super::diff::data_place;
use crate::config::VolumeConfig;
use crate::model::{Key, ObjectKind};

/// Maximum number of concurrent jobs in the whole server.
const TOTAL: usize = 128;
/// Maximum number of concurrent jobs on one disk.
const FOR_EACH_DISK: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// The disk of a volume, as far as that can be known without asking it: the mount point above the file, or the device. A
/// pool is a disk of its own, and so is a target of another server. Volumes in memory have none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Disk(Option<PathBuf>);

impl Disk {
    /// Returns the disk of a volume.
    pub(super) fn of(config: &VolumeConfig) -> Self {
        match &config.pool {
            Some(pool) => Self::of_pool(pool),
            None => match &config.remote {
                Some(remote) => Self(Some(Path::new("remote").join(remote.as_str()))),
                None => data_place(config).map_or(Self(None), Self::of_path),
            },
        }
    }

    /// Returns the disk of all volumes of a pool.
    pub(super) fn of_pool(name: &str) -> Self {
        Self(Some(Path::new("pool").join(name)))
    }

    /// Returns whether the work may hang.
    pub(super) fn exists(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the disk of a file.
    pub(super) fn of_path(path: &Path) -> Self {
        if path.starts_with("/dev") {
            return Self(Some(path.to_owned()));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self(Some(mount_point(path, &mounts)))
    }
}

/// Returns the mount point above a path, according to the text of /proc/self/mountinfo (proc(5)).
fn mount_point(path: &Path, mounts: &str) -> PathBuf {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped);
    let above = points.filter(|point| path.starts_with(point));
    above.max_by_key(|point| point.components().count()).unwrap_or_else(|| "/".into())
}

/// Returns a path of mountinfo without the escapes of spaces, tabs, line feeds and backslashes.
fn unescaped(point: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    let text = escapes.iter().fold(point.to_owned(), |text, (from, to)| text.replace(from, to));
    text.into()
}

/// The permits of all work that may hang.
#[derive(Default)]
pub(super) struct DiskPermits {
    busy: Mutex<HashMap<Disk, usize>>,
    /// A permit was returned: for threads, and for tasks.
    returned: Condvar,
    returned_to_task: Notify,
}

/// The permit of a piece of work, until this is dropped.
struct Permit {
    permits: Arc<DiskPermits>,
    disk: Disk,
}

impl DiskPermits {
    fn is_free(busy: &HashMap<Disk, usize>, disk: &Disk) -> bool {
        busy.get(disk).is_none_or(|count| *count < FOR_EACH_DISK)
            && busy.values().sum::<usize>() < TOTAL
    }

    fn take(self: &Arc<Self>, busy: &mut HashMap<Disk, usize>, disk: &Disk) -> Permit {
        *busy.entry(disk.clone()).or_default() += 1;
        Permit { permits: self.clone(), disk: disk.clone() }
    }

    /// Waits for a permit, but no longer than `limit`. Blocks the thread.
    fn wait_for(self: &Arc<Self>, disk: &Disk, limit: Duration) -> Option<Permit> {
        let mut busy = self.busy.lock();
        let waits = |busy: &mut HashMap<Disk, usize>| !Self::is_free(busy, disk);
        let waited = self.returned.wait_while_for(&mut busy, waits, limit);
        (!waited.timed_out()).then(|| self.take(&mut busy, disk))
    }

    /// Waits for a permit.
    async fn wait(self: &Arc<Self>, disk: &Disk) -> Permit {
        loop {
            let returned = self.returned_to_task.notified();
            {
                let mut busy = self.busy.lock();
                if Self::is_free(&busy, disk) {
                    return self.take(&mut busy, disk);
                }
            }
            returned.await;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut busy = self.permits.busy.lock();
        if let Some(count) = busy.get_mut(&self.disk) {
            *count -= 1;
            if *count == 0 {
                busy.remove(&self.disk);
            }
        }
        self.permits.returned.notify_all();
        self.permits.returned_to_task.notify_waiters();
    }
}

/// A thread that runs jobs one after the other.
pub(super) struct DiskThread {
    jobs: Option<Sender<Job>>,
    permits: Arc<DiskPermits>,
}

impl DiskThread {
    /// Creates it without a thread.
    pub(super) fn new(permits: &Arc<DiskPermits>) -> Self {
        Self { jobs: None, permits: permits.clone() }
    }

    /// Carries out work on the disk of a volume.
    pub(super) fn run<T: Send + 'static>(
        &mut self,
        volume: &VolumeConfig,
        limit: Duration,
        work: impl FnOnce() -> Result<T, ChangeError> + Send + 'static,
    ) -> Result<T, ChangeError> {
        let hangs = || ChangeError::Hangs(Key::new(ObjectKind::Volume, &volume.name));
        self.run_on(&Disk::of(volume), limit, hangs, work)
    }

    /// Carries out work on a disk. It may wait for its turn for `limit`. If it takes longer than `limit`,
    /// its thread is left to itself, and the result is dropped there.
    pub(super) fn run_on<T: Send + 'static>(
        &mut self,
        disk: &Disk,
        limit: Duration,
        hangs: impl Fn() -> ChangeError,
        work: impl FnOnce() -> Result<T, ChangeError> + Send + 'static,
    ) -> Result<T, ChangeError> {
        let permit = self.permits.wait_for(disk, limit).ok_or_else(&hangs)?;
        let (done, answer) = channel();
        let job: Job = Box::new(move || {
            // If the caller does not wait any more, the result is dropped here.
            let _ = done.send(work());
            drop(permit);
        });
        if self.jobs.is_none() {
            let (jobs, queue) = channel::<Job>();
            let thread = threads::spawn("opening", move || queue.into_iter().for_each(|job| job()));
            if let Err(error) = thread {
                error!(%error, "no thread could be started to open a volume");
                return Err(ChangeError::BrokeOff);
            }
            self.jobs = Some(jobs);
        }
        if self.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
            return Err(ChangeError::BrokeOff);
        }
        answer.recv_timeout(limit).unwrap_or_else(|error| {
            self.jobs = None;
            Err(match error {
                RecvTimeoutError::Timeout => hangs(),
                // The work has panicked.
                RecvTimeoutError::Disconnected => ChangeError::BrokeOff,
            })
        })
    }
}

/// Runs work that may block on a separate thread. The caller awaits the result.
pub(super) async fn run_blocking<T: Send + 'static>(
    permits: &Arc<DiskPermits>,
    disk: &Disk,
    work: impl FnOnce() -> Result<T, ChangeError> + Send + 'static,
) -> Result<T, ChangeError> {
    let permit = permits.wait(disk).await;
    let work = move || {
        let _permit = permit;
        work()
    };
    threads::run_detached("opening", work).await.unwrap_or_else(|error| {
        error!(%error, "work on a disk was not carried out");
        Err(ChangeError::BrokeOff)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_volume;

    #[test]
    fn the_disk_of_a_file_is_the_last_mount_point_above_it() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      40 22 8:2 / /srv rw - ext4 /dev/sdb rw\n\
                      41 40 0:5 / /srv/a\\040b rw - nfs x:/y rw\n";
        for (path, point) in [
            ("/var/d.img", "/"),
            ("/srv/d.img", "/srv"),
            ("/srv2/d.img", "/"),
            ("/srv/a b/d.img", "/srv/a b"),
        ] {
            assert_eq!(mount_point(Path::new(path), mounts), Path::new(point), "{path}");
        }
        assert_eq!(mount_point(Path::new("/srv"), ""), Path::new("/"));
    }

    #[test]
    fn a_hung_disk_takes_only_its_maximum_of_threads() {
        let permits: Arc<DiskPermits> = Arc::default();
        let hung = parse_volume("a=file:/dev/hung").expect("valid");
        let mut held = Vec::new();
        let (release, released) = channel::<()>();
        let released = Arc::new(Mutex::new(released));
        for _ in 0..FOR_EACH_DISK {
            let released = released.clone();
            let mut thread = DiskThread::new(&permits);
            let hangs = move || {
                let _ = released.lock().recv();
                Ok(())
            };
            let result = thread.run(&hung, Duration::ZERO, hangs);
            assert!(matches!(result, Err(ChangeError::Hangs(_))), "{result:?}");
            held.push(thread);
        }
        let mut thread = DiskThread::new(&permits);
        let next = thread.run(&hung, Duration::ZERO, || Ok(()));
        assert!(
            matches!(next, Err(ChangeError::Hangs(_))),
            "the disk has its maximum of threads: {next:?}"
        );
        let other = parse_volume("b=file:/dev/other").expect("valid");
        thread.run(&other, Duration::from_secs(3600), || Ok(())).expect("another disk");
        drop(release);
        thread.run(&hung, Duration::from_secs(3600), || Ok(())).expect("the disk responds again");
    }
}
