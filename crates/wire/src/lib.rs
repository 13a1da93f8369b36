//! Byte layouts of iSCSI, iSNS, SCSI, NBD, vhost-user and virtio: declared, sized at compile time, without `std`.

#![no_std]

#[macro_use]
mod layout;
#[macro_use]
mod open_enum;

pub mod iscsi;
pub mod isns;
pub mod nbd;
pub mod scsi;
pub mod vhost_user;
pub mod virtio_blk;
