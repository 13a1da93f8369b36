//! Byte layouts of SCSI: CDBs, sense data, and parameter data of the commands that a block device supports. These are
//! declarations only; `sarsen-scsi` interprets them.

pub mod cdb;
pub mod copy;
pub mod copy_page;
pub mod inquiry;
pub mod log;
pub mod maintenance;
pub mod medium;
pub mod mode;
pub mod multimedia;
pub mod opcode;
pub mod protection;
pub mod report;
pub mod reservation;
pub mod sense;
pub mod target_port_groups;

/// The NACA bit of the CONTROL field in every CDB: it requests auto contingent allegiance (SAM-5 5.2).
pub const CONTROL_NACA: u8 = 0x04;

/// Asserts the size of declared layouts at compile time.
macro_rules! assert_sizes {
    ($($layout:ty = $size:literal),* $(,)?) => {
        $(const _: () = assert!(size_of::<$layout>() == $size);)*
    };
}
pub(crate) use assert_sizes;

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn sbc3_5_15_read_16_fields_lie_where_the_standard_puts_them() {
        let bytes = [0x88, 0x18, 0, 1, 2, 3, 4, 5, 6, 7, 0x10, 0x20, 0x30, 0x40, 0x03, 0x04];
        let cdb = cdb::Block16::read_from_bytes(&bytes).unwrap();
        assert_eq!(cdb.lba.get(), 0x0001_0203_0405_0607);
        assert_eq!(cdb.block_count.get(), 0x1020_3040);
        assert_eq!((cdb.flags, cdb.group, cdb.control), (0x18, 3, 4));
    }

    #[test]
    fn sbc3_5_13_read_6_has_twenty_one_bits_of_address() {
        let cdb = cdb::Block6::read_from_bytes(&[0x08, 0xff, 0x12, 0x34, 0, 0]).unwrap();
        assert_eq!(cdb.lba(), 0x1f_1234);
    }
}
