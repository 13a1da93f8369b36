//! Who a logical unit is: the names that initiators remember it by.

/// The names of a logical unit. They must not change while the volume lives: initiators, their
/// multipath maps and their file systems know it by them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// T10 VENDOR IDENTIFICATION, up to eight printable ASCII characters.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION, up to sixteen.
    pub product: String,
    /// PRODUCT REVISION LEVEL, up to four.
    pub revision: String,
    /// PRODUCT SERIAL NUMBER, printable ASCII.
    pub serial: String,
    /// NAA 3 (locally assigned) identifier.
    pub naa: u64,
    /// The volume's name in the configuration; it is not sent.
    pub volume: String,
}

/// NAA field 3h: locally assigned.
const NAA_LOCALLY_ASSIGNED: u64 = 0x3 << 60;

impl Identity {
    /// The identity that follows from a volume's name and a `scope` within which that name is
    /// unique (the target's name, or something that one installation keeps for life). The same
    /// two strings give the same identity in every version of this program.
    pub fn new(volume: &str, scope: &str) -> Self {
        let hash = stable_hash(&[scope.as_bytes(), volume.as_bytes()]);
        Self {
            vendor: "SARSEN".into(),
            product: "VOLUME".into(),
            revision: "0001".into(),
            serial: format!("{hash:016x}"),
            naa: NAA_LOCALLY_ASSIGNED | (hash >> 4),
            volume: volume.into(),
        }
    }
}

/// FNV-1a over each part and a byte that no UTF-8 text has after it, then the finalizer of
/// splitmix64 so that every bit of the input reaches every bit of the result. Fixed for ever.
fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        for &byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_never_changes() {
        let identity = Identity::new("data", "iqn.2026-01.example:sarsen");
        assert_eq!(identity.serial, "68f0c0c3b969125c");
        assert_eq!(identity.naa >> 60, 3);
    }

    #[test]
    fn the_border_between_scope_and_volume_counts() {
        assert_ne!(Identity::new("ab", "c").naa, Identity::new("b", "ca").naa);
    }
}
