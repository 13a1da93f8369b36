//! Real SCSI devices: commands through the kernel's SG_IO, on the pool's threads.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use sarsen_block::{Buffer, Io};

use crate::file::blocking;
use crate::pool::FileQueue;

/// The ioctls of `<scsi/sg.h>`.
const SG_GET_VERSION_NUM: libc::Ioctl = 0x2282;
const SG_IO: libc::Ioctl = 0x2285;
/// The first version of the driver that has SG_IO.
const VERSION_WITH_SG_IO: libc::c_int = 30_000;
/// `interface_id` of version 3.
const INTERFACE: libc::c_int = b'S' as libc::c_int;
/// `dxfer_direction`.
const NO_DATA: libc::c_int = -1;
const TO_DEVICE: libc::c_int = -2;
const FROM_DEVICE: libc::c_int = -3;
/// The maximum length of sense data (SPC-4 4.5.1).
const SENSE_LENGTH_MAX: u8 = 252;
/// `host_status`, of the kernel's SCSI drivers.
const DID_NO_CONNECT: u16 = 1;
const DID_BUS_BUSY: u16 = 2;
const DID_TIME_OUT: u16 = 3;

/// `struct sg_io_hdr`.
#[repr(C)]
struct Header {
    interface_id: libc::c_int,
    dxfer_direction: libc::c_int,
    cmd_len: u8,
    mx_sb_len: u8,
    iovec_count: u16,
    dxfer_len: u32,
    dxferp: *mut u8,
    cmdp: *const u8,
    sbp: *mut u8,
    timeout: u32,
    flags: u32,
    pack_id: libc::c_int,
    usr_ptr: *mut libc::c_void,
    status: u8,
    masked_status: u8,
    msg_status: u8,
    sb_len_wr: u8,
    host_status: u16,
    driver_status: u16,
    resid: libc::c_int,
    duration: u32,
    info: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Header>() == 88);

/// The data transfer of a command.
#[derive(Debug)]
pub enum Transfer {
    /// No data.
    None,
    /// Up to this number of bytes from the device.
    In(usize),
    /// These bytes to the device.
    Out(Buffer),
}

/// The device's completion of a command.
#[derive(Debug)]
pub struct CommandResult {
    /// SCSI status.
    pub status: u8,
    /// Data from the device.
    pub data_in: Buffer,
    /// Sense data, unparsed.
    pub sense: Vec<u8>,
}

/// A SCSI device that is open exclusively.
#[derive(Clone, Debug)]
pub struct Device {
    file: Arc<File>,
    queue: Arc<FileQueue>,
}

impl Device {
    /// Opens `/dev/sg0` or a similar device. An error of the kind `ResourceBusy` means that another program has the
    /// device open; `InvalidInput` means that it is not a SCSI device.
    pub fn open(path: &Path) -> io::Result<Self> {
        // With NONBLOCK, EXCL does not wait for the other program.
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let mut version: libc::c_int = 0;
        // SAFETY: the call writes one integer, into `version`; the descriptor is open.
        let reported =
            unsafe { libc::ioctl(file.as_raw_fd(), SG_GET_VERSION_NUM, &raw mut version) };
        if reported != 0 || version < VERSION_WITH_SG_IO {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it takes no SCSI commands"));
        }
        Ok(Self { file: Arc::new(file), queue: Arc::default() })
    }

    /// Lets the device carry out a command. Errors are those of the transport, not of the device: `TimedOut`,
    /// `NotConnected`, `ResourceBusy`, or `InvalidInput` for a command that the transport does not support. Dropping
    /// the answer does not undo the command.
    pub fn execute(
        &self,
        cdb: Vec<u8>,
        transfer: Transfer,
        timeout: Duration,
    ) -> Io<io::Result<CommandResult>> {
        let file = self.file.clone();
        blocking(&self.queue, move || perform(&file, &cdb, transfer, timeout))
    }
}

fn perform(
    file: &File,
    cdb: &[u8],
    transfer: Transfer,
    timeout: Duration,
) -> io::Result<CommandResult> {
    let (direction, mut data) = match transfer {
        Transfer::None | Transfer::In(0) => (NO_DATA, Buffer::zeroed(0)),
        // Zeroed: bytes that the device does not fill must not expose this process's memory.
        Transfer::In(length) => (FROM_DEVICE, Buffer::zeroed(length)),
        Transfer::Out(data) if data.is_empty() => (NO_DATA, data),
        Transfer::Out(data) => (TO_DEVICE, data),
    };
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let cmd_len = u8::try_from(cdb.len()).map_err(too_long)?;
    let dxfer_len = u32::try_from(data.len()).map_err(too_long)?;
    let mut sense = vec![0; SENSE_LENGTH_MAX.into()];
    let mut header = Header {
        interface_id: INTERFACE,
        dxfer_direction: direction,
        cmd_len,
        mx_sb_len: SENSE_LENGTH_MAX,
        iovec_count: 0,
        dxfer_len,
        dxferp: data.as_mut_ptr(),
        cmdp: cdb.as_ptr(),
        sbp: sense.as_mut_ptr(),
        timeout: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
        flags: 0,
        pack_id: 0,
        usr_ptr: ptr::null_mut(),
        status: 0,
        masked_status: 0,
        msg_status: 0,
        sb_len_wr: 0,
        host_status: 0,
        driver_status: 0,
        resid: 0,
        duration: 0,
        info: 0,
    };
    // SAFETY: the header has the kernel's layout. It points to `cdb`, `sense` and `data`, which have the declared
    // lengths and outlive the call. The call waits until the command has ended.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), SG_IO, &raw mut header) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let way = match header.host_status {
        0 => None,
        DID_NO_CONNECT => Some(io::ErrorKind::NotConnected),
        DID_BUS_BUSY => Some(io::ErrorKind::ResourceBusy),
        DID_TIME_OUT => Some(io::ErrorKind::TimedOut),
        _ => Some(io::ErrorKind::Other),
    };
    if let Some(kind) = way {
        let status = header.host_status;
        return Err(io::Error::new(
            kind,
            format!("the kernel's driver returned host status {status}"),
        ));
    }
    let left = usize::try_from(header.resid).unwrap_or(0);
    data.truncate(match direction {
        FROM_DEVICE => data.len().saturating_sub(left),
        _ => 0,
    });
    sense.truncate(header.sb_len_wr.into());
    Ok(CommandResult { status: header.status, data_in: data, sense })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_without_scsi_commands_is_refused() {
        let error = Device::open(Path::new("/dev/null")).expect_err("no SCSI device");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = Device::open(Path::new("/dev/there-is-no-such")).expect_err("nothing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
