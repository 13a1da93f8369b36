//! CRC32C digests (RFC 7143 §13.1).

use crc_fast::{CrcAlgorithm, checksum};
use sarsen_wire::iscsi::DIGEST_LENGTH;

/// The digest of `bytes`, as it stands on the wire.
pub fn crc32c(bytes: &[u8]) -> [u8; DIGEST_LENGTH] {
    // The CRC fits 32 bits; the reflected CRC goes out least significant byte first.
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// The digest of several runs of bytes that follow one another.
pub fn crc32c_of(parts: &[&[u8]]) -> [u8; DIGEST_LENGTH] {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    (digest.finalize() as u32).to_le_bytes()
}

/// Whether the fast implementation agrees with a second, independent one on lengths that take
/// each of its paths. Called once at start-up: a wrong digest would refuse good data, or worse.
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
