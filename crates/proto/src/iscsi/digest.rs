//! CRC32C digests (RFC 7143 §13.1).

use crc_fast::{CrcAlgorithm, checksum};
use sarsen_wire::iscsi::DIGEST_LENGTH;

/// Returns the digest of `bytes`, in wire order.
pub fn crc32c(bytes: &[u8]) -> [u8; DIGEST_LENGTH] {
    // The CRC has 32 bits. The protocol sends the least significant byte of the reflected CRC first.
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// Returns the digest of several consecutive byte ranges.
pub fn crc32c_of(parts: &[&[u8]]) -> [u8; DIGEST_LENGTH] {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    (digest.finalize() as u32).to_le_bytes()
}

/// Returns whether the fast implementation agrees with a second, independent one. The lengths cover each of its code
/// paths. Called once at start-up: a wrong digest would reject good data or accept bad data.
pub fn self_check() -> bool {
    let bytes: Vec<u8> =
        (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    [0, 1, 3, 16, 48, 63, 64, 127, 128, 255, 256, 1000, 1024, 4096].into_iter().all(|length| {
        let bytes = &bytes[..length];
        let (left, right) = bytes.split_at(length / 3);
        crc32c(bytes) == ::crc32c::crc32c(bytes).to_le_bytes()
            && crc32c_of(&[left, right]) == crc32c(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3720_b_4_examples() {
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), [0x4e, 0x79, 0xdd, 0x46]);
    }

    #[test]
    fn two_implementations_agree() {
        assert!(self_check());
    }
}
