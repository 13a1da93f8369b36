//! Block devices that this process serves (the kernel's ublk driver; linux/ublk_cmd.h has the interface).
//!
//! A [`Device`] is created, started, recovered and deleted by control commands, which block their thread. Its requests arrive in its
//! [`Queue`]s: each belongs to one core, and has a ring of its own there. Data is copied by pread and pwrite, so the kernel gets no
//! address of this process.

mod commands;
mod queue;

use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use self::commands::{Basic, Control, DeviceInformation, Discard, Parameters};
pub use self::queue::{OperationCode, Queue, Request};

/// The features that devices here need (UBLK_F_…). Linux 6.5 has all of them.
const FEATURES: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE | CMD_IOCTL_ENCODE | USER_COPY;
const USER_RECOVERY: u64 = 1 << 3;
const USER_RECOVERY_REISSUE: u64 = 1 << 4;
const CMD_IOCTL_ENCODE: u64 = 1 << 6;
const USER_COPY: u64 = 1 << 7;
/// The kernel can change the size of a device (Linux 6.16).
const UPDATE_SIZE: u64 = 1 << 10;
/// The state of a device whose process has ended (UBLK_S_DEV_QUIESCED).
const QUIESCED: u16 = 2;
/// Maximum number of requests of a queue.
const DEPTH: u16 = 128;
/// Maximum length of the data of a request.
const REQUEST_BYTES: u32 = 1 << 20;
/// The kernel notices the end of a process soon, but not at once.
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);
const RECOVERY_INTERVAL: Duration = Duration::from_millis(20);
const SECTOR_SHIFT: u32 = 9;

/// The properties of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Number of queues, each on another core.
    pub queues: u16,
    /// The size in bytes.
    pub bytes: u64,
    /// log2 of the size of a block.
    pub block_shift: u8,
    /// log2 of the size of a physical block, not less.
    pub physical_block_shift: u8,
    /// Whether the device rejects writes.
    pub read_only: bool,
    /// Whether writes are durable only after a flush.
    pub volatile_cache: bool,
    /// The granularity of discards in bytes, if discards deallocate space.
    pub discard_granularity: Option<u32>,
    /// Maximum length of a discard, and of a range of zeroes, in bytes.
    pub discard_bytes: u32,
}

/// A block device of the ublk driver. Dropping this changes nothing: the kernel keeps the device.
#[derive(Clone, Debug)]
pub struct Device {
    number: u32,
    queues: u16,
    depth: u16,
    /// The connection with the kernel of the process that serves the device.
    channel: Option<Arc<File>>,
}

impl Device {
    /// Returns whether the kernel has the driver, with all features that are needed here. The error says what is missing.
    pub fn probe() -> io::Result<()> {
        let offered = Control::open()?.features()?;
        if offered & FEATURES != FEATURES {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's ublk driver is too old: Linux 6.5 or later is needed",
            ));
        }
        Ok(())
    }

    /// Creates a device, which does not exist for others before [`Self::start`]. `tag` recognises it later.
    pub fn create(options: &DeviceOptions, tag: u64) -> io::Result<Self> {
        let control = Control::open()?;
        let can_resize = control.features()? & UPDATE_SIZE;
        let flags = FEATURES | can_resize;
        let wanted = DeviceInformation::wanted((options.queues, DEPTH), REQUEST_BYTES, flags, tag);
        let information = control.add(wanted)?;
        let mut device = Self::of(&information);
        let created = control
            .set_parameters(device.number, &options.parameters())
            .and_then(|()| device.open_channel());
        if let Err(error) = created {
            // The device is of no use, and the first error says why.
            let _ = control.delete(device.number);
            return Err(error);
        }
        Ok(device)
    }

    /// Takes over the device of a process that has ended. Its requests wait until [`Self::start`]. [`io::ErrorKind::NotFound`]: there
    /// is no device with this number, or another one.
    pub fn recover(number: u32, tag: u64) -> io::Result<Self> {
        let control = Control::open()?;
        let deadline = crate::time::now() + RECOVERY_LIMIT;
        let information = loop {
            let information = information(&control, number, tag)?;
            if information.state == QUIESCED {
                break information;
            }
            if crate::time::now() >= deadline {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            crate::time::pause(RECOVERY_INTERVAL);
        };
        control.start_recovery(number)?;
        let mut device = Self::of(&information);
        device.open_channel()?;
        Ok(device)
    }

    /// Returns a device, to delete or to resize it: see [`Self::recover`].
    pub fn existing(number: u32, tag: u64) -> io::Result<Self> {
        Ok(Self::of(&information(&Control::open()?, number, tag)?))
    }

    fn of(information: &DeviceInformation) -> Self {
        let DeviceInformation { number, queues, queue_depth, .. } = *information;
        Self { number, queues, depth: queue_depth, channel: None }
    }

    fn open_channel(&mut self) -> io::Result<()> {
        let path = format!("/dev/ublkc{}", self.number);
        let deadline = crate::time::now() + RECOVERY_LIMIT;
        let channel = loop {
            match OpenOptions::new().read(true).write(true).open(&path) {
                // udev may create the file in a moment, and an earlier process may hold it for one.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy
                    ) && crate::time::now() < deadline =>
                {
                    crate::time::pause(RECOVERY_INTERVAL);
                }
                channel => break channel?,
            }
        };
        self.channel = Some(Arc::new(channel));
        Ok(())
    }

    /// Returns its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the number of its queues.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Opens a queue on the calling core, which serves it from then on.
    pub fn open_queue(&self, index: u16) -> io::Result<Queue> {
        let channel = self.channel.clone().ok_or(io::ErrorKind::NotConnected)?;
        Queue::open(channel, index, self.depth)
    }

    /// Makes the device appear, or ends its recovery. Blocks the thread until all queues are open and the kernel has read the
    /// partition table, so this must not be a core that serves one of them.
    pub fn start(&self, is_recovery: bool) -> io::Result<()> {
        let control = Control::open()?;
        if is_recovery { control.end_recovery(self.number) } else { control.start(self.number) }
    }

    /// Changes the size of the device. Kernels before 6.16 cannot: [`io::ErrorKind::Unsupported`].
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        let control = Control::open()?;
        if control.features()? & UPDATE_SIZE == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        control.update_size(self.number, bytes >> SECTOR_SHIFT)
    }

    /// Removes the device. Requests that its process does not serve any more fail. Blocks until the process has closed its queues.
    pub fn delete(&self) -> io::Result<()> {
        let control = Control::open()?;
        control.stop(self.number)?;
        control.delete(self.number)
    }
}

/// Returns the path of the block device with this number.
pub fn path(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

fn information(control: &Control, number: u32, tag: u64) -> io::Result<DeviceInformation> {
    match control.information(number) {
        Ok(information) if information.tag == tag => Ok(information),
        Ok(_) => Err(io::ErrorKind::NotFound.into()),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
            Err(io::ErrorKind::NotFound.into())
        }
        Err(error) => Err(error),
    }
}

impl DeviceOptions {
    fn parameters(&self) -> Parameters {
        /// UBLK_ATTR_…
        const READ_ONLY: u32 = 1 << 0;
        const VOLATILE_CACHE: u32 = 1 << 2;
        const FUA: u32 = 1 << 3;
        let attributes = [
            (self.read_only, READ_ONLY),
            // The kernel uses FUA only where there is a cache.
            (self.volatile_cache, VOLATILE_CACHE | FUA),
        ];
        let attributes = attributes.into_iter().filter(|(applies, _)| *applies);
        let basic = Basic {
            attributes: attributes.fold(0, |all, (_, attribute)| all | attribute),
            logical_block_shift: self.block_shift,
            physical_block_shift: self.physical_block_shift,
            optimal_shift: self.physical_block_shift,
            minimum_shift: self.physical_block_shift,
            maximum_sectors: REQUEST_BYTES >> SECTOR_SHIFT,
            chunk_sectors: 0,
            sectors: self.bytes >> SECTOR_SHIFT,
            virtual_boundary_mask: 0,
        };
        let sectors = self.discard_bytes >> SECTOR_SHIFT;
        let writable_sectors = if self.read_only { 0 } else { sectors };
        let discard = Discard {
            alignment: 0,
            granularity: self.discard_granularity.unwrap_or(1 << self.block_shift),
            maximum_sectors: self.discard_granularity.map_or(0, |_| writable_sectors),
            maximum_zero_sectors: writable_sectors,
            maximum_segments: u16::from(self.discard_granularity.is_some() && !self.read_only),
            reserved: [0; 3],
        };
        Parameters::new(basic, discard)
    }
}
