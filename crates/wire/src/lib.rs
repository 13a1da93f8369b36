//! Byte layouts of iSCSI and SCSI: declared, sized at compile time, without `std`.

#![no_std]

pub mod iscsi;
pub mod scsi;
