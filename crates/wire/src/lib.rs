//! Byte layouts of iSCSI, iSNS, SCSI and NBD: declared, sized at compile time, without `std`.

#![no_std]

#[macro_use]
mod open_enum;

pub mod iscsi;
pub mod isns;
pub mod nbd;
pub mod scsi;
