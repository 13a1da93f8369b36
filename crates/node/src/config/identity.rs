//! The identity of a volume. Multipath maps, udev's links and VMFS depend on it. A volume from another server keeps the
//! identity that it had there.
//!
//! ```toml
//! [[volume]]
//! name = "data"
//! store = "file"
//! path = "/srv/data.img"
//! serial = "beaf11"
//! naa = "6001405a1b2c3d4e5f60718293a4b5c6"
//! vendor = "IET"
//! product = "VIRTUAL-DISK"
//! revision = "0001"
//! # What the Device Identification page says of the volume, where that is not what follows from the above:
//! # naa, eui, t10 (vendor ID based) and name (SCSI name string).
//! designators = ["t10:IET     00010001", "naa:60000000000000000e00000000010001"]
//! ```

use std::collections::HashMap;
use std::path::Path;

use sarsen_scsi::{Designator, Naa};

use super::{Invalid, StoreConfig, VolumeConfig};
use crate::model::{Key, ObjectKind};

/// The configured parts of a volume's identity. The other parts are derived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityConfig {
    /// PRODUCT SERIAL NUMBER. The identity of a volume without `naa` is derived from it.
    pub serial: Option<String>,
    /// NAA identifier.
    pub naa: Option<Naa>,
    /// The designators of the Device Identification page, in place of the derived ones.
    pub designators: Option<Vec<Designator>>,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: Option<String>,
    /// PRODUCT IDENTIFICATION.
    pub product: Option<String>,
    /// PRODUCT REVISION LEVEL.
    pub revision: Option<String>,
}

impl IdentityConfig {
    /// Sets the value of one of its keys.
    pub(super) fn take(&mut self, key: &str, value: String) -> Result<(), String> {
        let (field, longest) = match key {
            "naa" => {
                let naa = Naa::parse(&value).ok_or_else(|| {
                    format!(
                        "naa = {value:?}: 16 hexadecimal digits that begin with 2, 3 or 5, or 32 that \
                         begin with 6"
                    )
                })?;
                self.naa = Some(naa);
                return Ok(());
            }
            "designators" => {
                let designator = Designator::parse(&value).ok_or_else(|| {
                    format!(
                        "designators = {value:?}: write naa:HEX, eui:HEX with 16, 24 or 32 digits, \
                         t10:TEXT with the vendor in eight characters first, or name:TEXT"
                    )
                })?;
                self.designators.get_or_insert_default().push(designator);
                return Ok(());
            }
            "serial" => {
                // SPC-4 7.8.18: ASCII. Multipath and udev expect it without spaces.
                let valid = (1..=36).contains(&value.len())
                    && value.bytes().all(|byte| byte.is_ascii_graphic());
                if !valid {
                    return Err(format!("serial = {value:?}: 1 to 36 visible ASCII characters"));
                }
                self.serial = Some(value);
                return Ok(());
            }
            "vendor" => (&mut self.vendor, 8),
            "product" => (&mut self.product, 16),
            _ => (&mut self.revision, 4),
        };
        // SPC-4 6.6.2: left-aligned ASCII, filled with spaces.
        let is_printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        let valid = (1..=longest).contains(&value.len())
            && value.bytes().all(is_printable)
            && value.trim() == value;
        if !valid {
            return Err(format!("{key} = {value:?}: 1 to {longest} printable ASCII characters"));
        }
        *field = Some(value);
        Ok(())
    }
}

/// An identifying property that two volumes must not share.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Mark<'a> {
    Serial(&'a str),
    Naa(Naa),
    Designator(&'a Designator),
    Path(&'a Path),
}

impl Mark<'_> {
    const fn key(self) -> &'static str {
        match self {
            Self::Serial(_) => "serial",
            Self::Naa(_) => "naa",
            Self::Designator(_) => "designator",
            Self::Path(_) => "path",
        }
    }
}

/// Checks that no two volumes have the same identity or file. Multipath drivers confuse disks with the same identity,
/// and two volumes with one file overwrite each other.
pub(super) fn check_unique(volumes: &[VolumeConfig]) -> Result<(), Invalid> {
    let mut known = HashMap::new();
    for volume in volumes {
        let VolumeConfig { name, identity, store, read_only, .. } = volume;
        let path = match store {
            StoreConfig::File { path, .. } if !read_only => Some(Mark::Path(path)),
            _ => None,
        };
        let given = identity.designators.iter().flatten().map(Mark::Designator);
        // By default, the identifier is derived from the serial number.
        let own = identity.naa.map(Mark::Naa).or(identity.serial.as_deref().map(Mark::Serial));
        let own = own.filter(|_| identity.designators.is_none());
        for mark in given.chain(own).chain(path) {
            if let Some(other) = known.insert(mark, name) {
                let key = mark.key();
                let message =
                    format!("volumes {other} and {name} have the same {key}; change one of them");
                let field = if key == "designator" { "designators" } else { key };
                return Err(Invalid::new(Key::new(ObjectKind::Volume, name), field, message));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spc4_6_6_2_identity_that_fits_its_field_is_accepted() {
        let mut identity = IdentityConfig::default();
        for (key, value) in [
            ("serial", "beaf11"),
            ("naa", "3000000000000001"),
            ("vendor", "LIO-ORG"),
            ("product", "disk 1"),
            ("revision", "4.0"),
        ] {
            identity.take(key, value.to_owned()).expect(key);
        }
        assert_eq!(identity.product.as_deref(), Some("disk 1"));
        for value in ["t10:IET     00010001", "naa:3000000000000001"] {
            identity.take("designators", value.to_owned()).expect(value);
        }
        assert_eq!(identity.designators.as_ref().map(Vec::len), Some(2));
        for (key, value) in [
            ("serial", "a b"),
            ("naa", "1000000000000001"),
            ("designators", "IET     00010001"),
            ("vendor", "nine char"),
            ("product", ""),
            ("revision", " 4"),
            ("revision", "é"),
        ] {
            let message = identity.take(key, value.to_owned()).expect_err(value);
            assert!(message.starts_with(&format!("{key} = {value:?}: ")), "{message}");
        }
    }

    fn check_both(first: &str, second: &str) -> Result<(), String> {
        let volumes = [first, second].map(|text| super::super::parse_volume(text).expect(text));
        check_unique(&volumes).map_err(|invalid| invalid.message)
    }

    #[test]
    fn no_two_volumes_are_one_or_lie_over_one_another() {
        for (first, second, key) in [
            ("a=ram:1MiB,serial=s", "b=ram:1MiB,serial=s", "serial"),
            ("a=ram:1MiB,naa=3000000000000001", "b=ram:1MiB,naa=3000000000000001", "naa"),
            ("a=ram:1MiB,designators=name:x", "b=ram:1MiB,designators=name:x", "designator"),
            ("a=file:/d:1MiB", "b=file:/d:1MiB", "path"),
        ] {
            let reported = check_both(first, second).expect_err(key);
            assert_eq!(
                reported,
                format!("volumes a and b have the same {key}; change one of them")
            );
        }
        check_both("a=ram:1MiB,serial=s,naa=3000000000000001", "b=ram:1MiB,serial=s")
            .expect("two disks");
        check_both("a=file:/d,read-only", "b=file:/d,read-only").expect("nobody writes");
    }
}
