//! Detaches disks, and finds the programs that use them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use sarsen_io::process::OPEN_EXCLUSIVELY;
use sarsen_io::time;

use super::disk::Disk;
use super::record::{AttachmentFolder, Listed, folder};
use super::{AttachError, LOCK_LIMIT, link};

/// How long the process of a disk may take to end after its disk was removed: it makes its last writes durable and logs out.
const PROCESS_LIMIT: Duration = Duration::from_secs(75);
/// How long the process may take to close the connection of a client that has ended.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
const CLOSE_INTERVAL: Duration = Duration::from_millis(20);

/// Detaches a disk: writes the page cache back, removes the disk, and waits for the end of its process. A disk in use is only removed
/// with `force`.
pub fn detach(listed: &Listed, force: bool) -> Result<(), AttachError> {
    let Listed { record, is_served } = listed;
    let disk = Disk::of(record);
    let path = disk.path();
    let is_device = !record.kind.is_socket();
    if !force {
        if is_device {
            refuse_used(&path)?;
        } else {
            refuse_connected(&path)?;
        }
    }
    if is_device && *is_served && !force {
        let synced = File::open(&path).and_then(|device| device.sync_all());
        match synced {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            synced => synced.map_err(AttachError::system(format!(
                "{}: the last writes failed; --force detaches it anyway",
                path.display()
            )))?,
        }
    }
    match disk.remove_device() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => {
            removed.map_err(AttachError::system(format!("{} cannot be removed", path.display())))?
        }
    }
    if !is_device && *is_served {
        let ended = sarsen_io::process::terminate(record.process);
        ended
            .map_err(AttachError::system(format!("process {} cannot be ended", record.process)))?;
    }
    let name = &record.config.name;
    let place = folder().join(name);
    let limit = if *is_served { PROCESS_LIMIT } else { LOCK_LIMIT };
    // A process whose device was removed removes the folder itself, unless its last writes were lost.
    match AttachmentFolder::lock(name, place.clone(), limit) {
        Ok(locked) if place.exists() => {
            if !is_device {
                // A killed process left its socket there.
                drop(sarsen_io::local::LocalListener::bind(&path));
            }
            let lost = locked.read().ok().flatten().and_then(|record| record.lost_writes);
            link::remove(record);
            locked.remove();
            if let Some(reason) = lost {
                let reason = format!("{reason}. The disk is detached");
                return Err(AttachError::LostWrites { name: name.clone(), reason });
            }
        }
        Ok(_) => {}
        Err(AttachError::Attached { .. }) => {
            return Err(AttachError::System {
                what: format!("the disk is detached, but process {} does not end", record.process),
                source: io::ErrorKind::TimedOut.into(),
            });
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Refuses a socket to which a client is connected (proc_net_unix, in proc(5)).
fn refuse_connected(path: &Path) -> Result<(), AttachError> {
    let limit = time::now() + CLOSE_LIMIT;
    while is_connected(path) {
        if time::now() > limit {
            let (device, user) = (path.display().to_string(), "a client is connected".to_owned());
            return Err(AttachError::InUse { device, user });
        }
        time::pause(CLOSE_INTERVAL);
    }
    Ok(())
}

fn is_connected(path: &Path) -> bool {
    /// SS_CONNECTED.
    const CONNECTED: &str = "03";
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    sockets.lines().any(|line| {
        let mut fields = line.split_whitespace();
        fields.nth(5) == Some(CONNECTED) && fields.nth(1).map(Path::new) == Some(path)
    })
}

/// Refuses a device that is mounted, part of another device, or open in a program.
fn refuse_used(path: &Path) -> Result<(), AttachError> {
    let device = path.display().to_string();
    let in_use = |user: String| AttachError::InUse { device: device.clone(), user };
    if let Some(program) = program_with(path) {
        return Err(in_use(program));
    }
    let exclusive = OpenOptions::new().read(true).custom_flags(OPEN_EXCLUSIVELY).open(path);
    match exclusive {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            Err(in_use("it is mounted, or part of another device".to_owned()))
        }
        // A disk that the kernel has lost already has no users.
        _ => Ok(()),
    }
}

/// Returns a program that has a file open.
fn program_with(path: &Path) -> Option<String> {
    let processes = fs::read_dir("/proc").ok()?;
    for process in processes.flatten() {
        let Some(number) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        let mut targets =
            descriptors.flatten().filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        if targets.any(|target| target == path) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("process {number} ({}) has it open", name.trim()));
        }
    }
    None
}
