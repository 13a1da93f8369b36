//! The device types of logical units.

/// PERIPHERAL DEVICE TYPE (SPC-4 6.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceType {
    /// Direct access block device.
    #[default]
    Disk = 0x00,
    /// CD/DVD device.
    Cd = 0x05,
}
