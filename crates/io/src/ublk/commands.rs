//! The control commands, and their layouts (linux/ublk_cmd.h).
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// struct ublksrv_ctrl_dev_info.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DeviceInformation {
    pub(super) queues: u16,
    pub(super) queue_depth: u16,
    pub(super) state: u16,
    padding: u16,
    pub(super) maximum_request_bytes: u32,
    pub(super) number: u32,
    process: i32,
    padding_2: u32,
    pub(super) flags: u64,
    /// Not used by the kernel (`ublksrv_flags`).
    pub(super) tag: u64,
    owner: [u32; 2],
    reserved: [u64; 2],
}

const _: () = assert!(size_of::<DeviceInformation>() == 64);

impl DeviceInformation {
    /// Returns the properties of a new device, whose number the kernel chooses.
    pub(super) fn wanted(
        (queues, queue_depth): (u16, u16),
        maximum_request_bytes: u32,
        flags: u64,
        tag: u64,
    ) -> Self {
        let number = NO_DEVICE;
        Self { queues, queue_depth, maximum_request_bytes, number, flags, tag, ..Self::default() }
    }
}

/// struct ublk_param_basic.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Basic {
    pub(super) attributes: u32,
    pub(super) logical_block_shift: u8,
    pub(super) physical_block_shift: u8,
    pub(super) optimal_shift: u8,
    pub(super) minimum_shift: u8,
    pub(super) maximum_sectors: u32,
    pub(super) chunk_sectors: u32,
    pub(super) sectors: u64,
    pub(super) virtual_boundary_mask: u64,
}

/// struct ublk_param_discard, with the padding behind it.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Discard {
    pub(super) alignment: u32,
    pub(super) granularity: u32,
    pub(super) maximum_sectors: u32,
    pub(super) maximum_zero_sectors: u32,
    pub(super) maximum_segments: u16,
    pub(super) reserved: [u16; 3],
}

/// The beginning of struct ublk_params: the kernel accepts every length.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Parameters {
    length: u32,
    types: u32,
    basic: Basic,
    discard: Discard,
}

const _: () = assert!(size_of::<Parameters>() == 64);

impl Parameters {
    pub(super) fn new(basic: Basic, discard: Discard) -> Self {
        /// UBLK_PARAM_TYPE_BASIC and UBLK_PARAM_TYPE_DISCARD.
        const TYPES: u32 = 1 << 0 | 1 << 1;
        Self { length: size_of::<Self>() as u32, types: TYPES, basic, discard }
    }
}

/// struct ublksrv_ctrl_cmd.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct ControlCommand {
    device: u32,
    queue: u16,
    length: u16,
    address: u64,
    data: u64,
    path_length: u16,
    padding: u16,
    reserved: u32,
}

const _: () = assert!(size_of::<ControlCommand>() == 32);

const NO_DEVICE: u32 = u32::MAX;
const NO_QUEUE: u16 = u16::MAX;

/// Returns the code of a command as ioctl(2) has it.
pub(super) const fn encoded(is_written: bool, number: u8, argument: usize) -> u32 {
    let direction = if is_written { 3 } else { 2 };
    direction << 30 | (argument as u32) << 16 | (b'u' as u32) << 8 | number as u32
}

const fn control(is_written: bool, number: u8) -> u32 {
    encoded(is_written, number, size_of::<ControlCommand>())
}

/// The driver's control device.
pub(super) struct Control {
    device: File,
}

impl Control {
    pub(super) fn open() -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/ublk-control")?;
        Ok(Self { device })
    }

    pub(super) fn features(&self) -> io::Result<u64> {
        let mut features = 0_u64;
        self.run(control(false, 0x13), NO_DEVICE, 0, features.as_mut_bytes())?;
        Ok(features)
    }

    pub(super) fn information(&self, number: u32) -> io::Result<DeviceInformation> {
        let mut information = DeviceInformation::default();
        self.run(control(false, 0x02), number, 0, information.as_mut_bytes())?;
        Ok(information)
    }

    /// Adds a device, and returns its properties.
    pub(super) fn add(&self, mut information: DeviceInformation) -> io::Result<DeviceInformation> {
        self.run(control(true, 0x04), NO_DEVICE, 0, information.as_mut_bytes())?;
        Ok(information)
    }

    pub(super) fn set_parameters(&self, number: u32, parameters: &Parameters) -> io::Result<()> {
        let mut bytes = [0; size_of::<Parameters>()];
        bytes.copy_from_slice(parameters.as_bytes());
        self.run(control(true, 0x08), number, 0, &mut bytes)
    }

    pub(super) fn start(&self, number: u32) -> io::Result<()> {
        self.run(control(true, 0x06), number, std::process::id().into(), &mut [])
    }

    pub(super) fn stop(&self, number: u32) -> io::Result<()> {
        self.run(control(true, 0x07), number, 0, &mut [])
    }

    pub(super) fn delete(&self, number: u32) -> io::Result<()> {
        self.run(control(true, 0x05), number, 0, &mut [])
    }

    pub(super) fn start_recovery(&self, number: u32) -> io::Result<()> {
        self.run(control(true, 0x10), number, 0, &mut [])
    }

    pub(super) fn end_recovery(&self, number: u32) -> io::Result<()> {
        self.run(control(true, 0x11), number, std::process::id().into(), &mut [])
    }

    pub(super) fn update_size(&self, number: u32, sectors: u64) -> io::Result<()> {
        self.run(control(true, 0x15), number, sectors, &mut [])
    }

    /// Carries out a command. Blocks the thread until the kernel has answered.
    fn run(&self, code: u32, device: u32, data: u64, buffer: &mut [u8]) -> io::Result<()> {
        let command = ControlCommand {
            device,
            queue: NO_QUEUE,
            length: buffer.len() as u16,
            address: buffer.as_mut_ptr() as u64,
            data,
            path_length: 0,
            padding: 0,
            reserved: 0,
        };
        let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(1)?;
        let entry = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), code);
        let entry = entry.cmd(in_entry(command.as_bytes())).build();
        // SAFETY: the buffer stays borrowed until the completion has been taken, and the descriptor is open.
        let pushed = unsafe { ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the submission queue was empty");
        loop {
            match ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                submitted => {
                    submitted?;
                }
            }
            if let Some(completion) = ring.completion().next() {
                return match completion.result() {
                    result @ ..0 => Err(io::Error::from_raw_os_error(-result)),
                    _ => Ok(()),
                };
            }
        }
    }
}

/// Returns the field of an entry that has a command.
pub(super) fn in_entry(command: &[u8]) -> [u8; 80] {
    let mut field = [0; 80];
    field[..command.len()].copy_from_slice(command);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_codes_of_the_kernels_header() {
        // UBLK_U_CMD_ADD_DEV, UBLK_U_CMD_GET_DEV_INFO, UBLK_U_IO_FETCH_REQ.
        assert_eq!(control(true, 0x04), 0xc020_7504);
        assert_eq!(control(false, 0x02), 0x8020_7502);
        assert_eq!(encoded(true, 0x20, 16), 0xc010_7520);
    }
}
