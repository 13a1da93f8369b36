//! Volumes that would be one: those with the same identity, or with the same file or folder of records.

use std::collections::HashMap;
use std::path::Path;

use sarsen_scsi::{Designator, Naa};

use super::{Invalid, VolumeConfig};
use crate::model::{Key, ObjectKind};

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

/// Checks that no two volumes have the same identity, file or folder of records. Multipath drivers confuse disks with the
/// same identity, two volumes with one file overwrite each other, and two with one folder each other's keys.
pub(super) fn check_unique(volumes: &[VolumeConfig]) -> Result<(), Invalid> {
    let mut known = HashMap::new();
    for volume in volumes {
        let VolumeConfig { name, serial, naa, designators, .. } = volume;
        let path = volume.file().filter(|_| !volume.is_read_only()).map(Mark::Path);
        let given = designators.iter().map(Mark::Designator);
        // By default, the identifier is derived from the serial number.
        let own = naa.map(Mark::Naa).or(serial.as_deref().map(Mark::Serial));
        let own = own.filter(|_| designators.is_empty());
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
    check_records(volumes, &known)
}

/// Checks that the folder of a volume's records is no other volume's, and contains no volume.
fn check_records(
    volumes: &[VolumeConfig],
    known: &HashMap<Mark<'_>, &String>,
) -> Result<(), Invalid> {
    let mut folders = HashMap::new();
    for volume in volumes.iter().filter(|volume| !volume.is_read_only()) {
        let Some(folder) = volume.records_folder() else { continue };
        let file = known.get(&Mark::Path(&folder)).copied();
        if let Some(other) = file.or_else(|| folders.insert(folder, &volume.name)) {
            let message = format!(
                "volumes {other} and {} have the same folder for their state; change one of them",
                volume.name
            );
            return Err(Invalid::new(Key::new(ObjectKind::Volume, &volume.name), "state", message));
        }
    }
    for volume in volumes {
        let parent = volume.path.as_deref().and_then(Path::parent);
        if let Some(other) = parent.and_then(|parent| folders.get(parent)) {
            let message = format!(
                "this is in the folder of the state of volume {other}; choose another path"
            );
            return Err(Invalid::new(Key::new(ObjectKind::Volume, &volume.name), "path", message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("a=file:/d", "b=file:/e,state=/d.state", "folder for their state"),
            ("a=file:/d,state=/s", "b=file:/e,state=/s", "folder for their state"),
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
        let reported = check_both("a=file:/d", "b=file:/d.state/e").expect_err("inside");
        assert!(reported.contains("the state of volume a"), "{reported}");
    }
}
