//! The medium itself, without a protocol: the reference for all others.

use std::path::Path;

use super::running::{Running, VolumeEndpoint};
use super::{Backing, Image, TargetUnderTestError, VolumeSpec};
use crate::load::{Endpoint, OpenStore};

/// Returns whether a medium can be the image.
pub(super) fn takes(image: &Image) -> Result<(), TargetUnderTestError> {
    image.check_unstriped()
}

/// Opens each image in this process.
pub(super) fn start(images: &[Image]) -> Result<Running, TargetUnderTestError> {
    let mut running = Running::new("direct");
    let in_memory = |image: &&Image| image.backing == Backing::Memory;
    let on_disk: Vec<_> = images.iter().filter(|image| !in_memory(image)).cloned().collect();
    running.backing_files(&on_disk)?;
    for image in images {
        let endpoint = match &image.backing {
            Backing::Memory => Endpoint::Memory(OpenStore::ram(image.bytes).map_err(|error| {
                TargetUnderTestError::Failed(format!(
                    "no memory for volume {}: {error}",
                    image.name
                ))
            })?),
            Backing::File(path) => Endpoint::File { path: path.clone(), cache: image.cache },
        };
        running.add_unit(&image.name, VolumeEndpoint::Elsewhere(endpoint));
    }
    Ok(running)
}

/// Returns the endpoint of a file or device, with the cache mode of the volume.
pub(super) fn endpoint_of(path: &Path, volume: &VolumeSpec) -> Endpoint {
    Endpoint::File { path: path.to_owned(), cache: volume.cache }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{LinkProfile, Network};

    #[test]
    fn memory_and_files_are_offered_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.img");
        let images = [
            Image::new("a", Backing::Memory, 4096),
            Image::new("b", Backing::File(path.clone()), 8192),
        ];
        let running = start(&images).unwrap();
        let link = &Network::build(&[LinkProfile::loopback()]).links()[0].clone();
        assert!(matches!(running.endpoint("a", link), Ok(Endpoint::Memory(_))));
        let Ok(Endpoint::File { path: offered, .. }) = running.endpoint("b", link) else {
            panic!("no file");
        };
        assert_eq!(offered, path);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192);
    }
}
