//! The targets under test: this program, other targets that are installed here, targets that run elsewhere, and the
//! medium itself without a target.
//!
//! The lab starts a target under test with the volumes of a study in a private folder, on a free port of the targets'
//! side of the [`Network`]. It ends, and its files are deleted, when its [`Running`] is dropped, or when this process
//! ends in any other way. Each type has its own module. Callers can also start [`tgt`], [`istgt`] and [`sarsen`] with
//! their own [`Image`]s.

mod direct;
mod in_guest;
pub mod istgt;
mod nbdkit;
mod running;
pub mod sarsen;
pub mod scst;
pub mod tgt;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sarsen_initiator::Url;
use sarsen_initiator::nbd::NbdUrl;
use sarsen_node::model::nearest;
use sarsen_node::stores::CacheMode;

use crate::folder::PrivateFolder;
use crate::guest::GuestError;
use crate::load::Endpoint;
use crate::network::Network;
use crate::process::ProcessError;
use crate::record::Outcome;
pub use in_guest::GuestTarget;
pub use running::Running;
use running::{VolumeEndpoint, private_folder};

/// A target under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetUnderTest {
    /// This program.
    Sarsen,
    /// Debian's tgt.
    Tgt,
    /// Debian's istgt.
    Istgt,
    /// A target in a guest.
    InGuest(GuestTarget),
    /// nbdkit, which serves NBD.
    Nbdkit,
    /// An iSCSI target that the lab does not start. It serves one volume, with its existing size and cache mode.
    Iscsi(Url),
    /// An NBD export that the lab does not start. It serves one volume in the same way.
    Nbd(NbdUrl),
    /// The medium itself, without a protocol.
    Direct,
    /// This file or block device, without a protocol.
    DirectPath(PathBuf),
}

/// The medium of the blocks of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Memory.
    Ram,
    /// A file in the folder of the run on disk.
    Disk,
}

impl Medium {
    /// Returns its name in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Disk => "disk",
        }
    }
}

/// A volume that a study requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Its name within the study: lower-case letters, digits and hyphens.
    pub name: String,
    /// Its medium.
    pub medium: Medium,
    /// Its size.
    pub bytes: u64,
    /// Its cache mode, if it is on disk.
    pub cache: CacheMode,
    /// The stripes over which its blocks are spread; `None` if one file or one piece of memory has all of them.
    pub striping: Option<Striping>,
}

/// The folders that targets under test use.
#[derive(Clone, Copy, Debug)]
pub struct Folders<'a> {
    /// The parent of the private folders with the files of volumes on disk.
    pub volumes: &'a Path,
    /// The folder that keeps what guests boot from.
    pub guests: &'a Path,
    /// The folder with the sources of SCST.
    pub scst: Option<&'a Path>,
}

/// The stripes of a volume: consecutive chunks are on different devices. Each device is a file on the volume's medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Number of devices.
    pub devices: u8,
    /// Size of a chunk.
    pub chunk_bytes: u32,
}

impl Striping {
    /// Returns the size of a whole stripe: one chunk of each device.
    pub const fn stripe_bytes(self) -> u32 {
        self.devices as u32 * self.chunk_bytes
    }
}

impl fmt::Display for Striping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunks of {} bytes on {} devices", self.chunk_bytes, self.devices)
    }
}

/// The reason why a target under test is not measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetUnderTestError {
    /// It does not support the volume or the link. This is not a failure: the cell is not measured.
    #[error("{0}")]
    Unable(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

impl TargetUnderTestError {
    fn file(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::Failed(format!("cannot {what} {}: {error}", path.display()))
    }
}

impl From<TargetUnderTestError> for Outcome {
    fn from(error: TargetUnderTestError) -> Self {
        match error {
            TargetUnderTestError::Unable(reason) => Self::NotMeasured(reason),
            TargetUnderTestError::Failed(reason) => Self::Failed(reason),
        }
    }
}

impl From<GuestError> for TargetUnderTestError {
    fn from(error: GuestError) -> Self {
        match &error {
            // What is missing here is not a failure.
            GuestError::Process(ProcessError::Start { .. }) | GuestError::NoKernel => {
                Self::Unable(format!("guests cannot be booted: {error}"))
            }
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<ProcessError> for TargetUnderTestError {
    fn from(error: ProcessError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A volume in the form that the program of a target receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its name, which is a part of the name of the target.
    pub name: String,
    /// The location of its blocks.
    pub backing: Backing,
    /// Its size.
    pub bytes: u64,
    /// The size of its logical blocks.
    pub block_bytes: u32,
    /// The cache mode of a file.
    pub cache: CacheMode,
    /// The stripes over which its blocks are spread.
    pub striping: Option<Striping>,
}

/// The location of the blocks of an [`Image`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// In memory.
    Memory,
    /// In this file, which is created or extended if necessary.
    File(PathBuf),
}

impl Image {
    /// Creates an image with 512-byte blocks and cache mode write-back, without stripes.
    pub fn new(name: &str, backing: Backing, bytes: u64) -> Self {
        Self {
            name: name.into(),
            backing,
            bytes,
            block_bytes: 512,
            cache: CacheMode::WriteBack,
            striping: None,
        }
    }

    /// Returns the name of its cache mode, which is QEMU's and sarsen's.
    const fn cache_name(&self) -> &'static str {
        match self.cache {
            CacheMode::WriteBack => "writeback",
            CacheMode::WriteThrough => "writethrough",
            CacheMode::None => "none",
            CacheMode::DirectSync => "directsync",
            CacheMode::Unsafe => "unsafe",
        }
    }

    /// Checks that the image has no stripes, for a target that has none.
    fn check_unstriped(&self) -> Result<(), TargetUnderTestError> {
        match self.striping {
            None => Ok(()),
            Some(_) => Err(without_stripes()),
        }
    }
}

/// Checks that a target under test supports an image.
type Takes = fn(&Image) -> Result<(), TargetUnderTestError>;
/// Starts a target under test with its images.
type Start<'a> = &'a dyn Fn(&[Image]) -> Result<Running, TargetUnderTestError>;

const fn all(_: &Image) -> Result<(), TargetUnderTestError> {
    Ok(())
}

/// Returns the reason why other targets than sarsen do not serve a striped volume.
fn without_stripes() -> TargetUnderTestError {
    TargetUnderTestError::Unable("the lab creates stripes in pools of sarsen only".into())
}

impl TargetUnderTest {
    /// Whether the lab starts it, so that it serves only volumes of the lab.
    pub fn is_started_here(&self) -> bool {
        match self {
            Self::Sarsen
            | Self::Tgt
            | Self::Istgt
            | Self::InGuest(_)
            | Self::Nbdkit
            | Self::Direct => true,
            Self::Iscsi(_) | Self::Nbd(_) | Self::DirectPath(_) => false,
        }
    }

    /// Whether the lab can start it with volumes that have [`Striping`].
    pub fn has_stripes(&self) -> bool {
        *self == Self::Sarsen
    }

    /// Whether it is the medium itself, without a protocol.
    pub const fn is_direct(&self) -> bool {
        matches!(self, Self::Direct | Self::DirectPath(_))
    }

    /// Whether a target with this name runs in a guest with an emulated processor, so that it is comparable only with
    /// others in guests.
    pub fn is_emulated(name: &str) -> bool {
        GuestTarget::ALL.iter().any(|target| target.as_str() == name)
    }

    /// Returns the targets outside of guests, and those in guests: only those of one group are comparable.
    pub fn comparable(names: Vec<&str>) -> [Vec<&str>; 2] {
        let (emulated, others) = names.into_iter().partition(|name| Self::is_emulated(name));
        [others, emulated]
    }

    /// Whether initiators reach it only over the machine's own network.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self, Self::Iscsi(_) | Self::Nbd(_))
    }

    /// Starts it with these volumes. It ends with the calling thread at the
    /// latest. It omits volumes that it does not support, and [`Running::endpoint`] returns the reason. If it supports
    /// none of the volumes, this is an error.
    pub fn start(
        &self,
        network: &Network,
        volumes: &[VolumeSpec],
        folders: Folders<'_>,
    ) -> Result<Running, TargetUnderTestError> {
        self.start_beside(&sarsen::own_program()?, network, volumes, folders)
    }

    /// Does the same for a caller that is another program; `program` is the path of this program.
    pub fn start_beside(
        &self,
        program: &Path,
        network: &Network,
        volumes: &[VolumeSpec],
        folders: Folders<'_>,
    ) -> Result<Running, TargetUnderTestError> {
        check(volumes)?;
        let with_images = |takes: Takes, start: Start<'_>| {
            let on_disk = volumes.iter().any(|volume| volume.medium == Medium::Disk);
            let disk = if on_disk { Some(private_folder(folders.volumes)?) } else { None };
            let mut images: Vec<_> = volumes.iter().map(|volume| volume.image(&disk)).collect();
            let mut refused = Vec::new();
            images.retain(|image| match takes(image) {
                Ok(()) => true,
                Err(error) => {
                    refused.push((image.name.clone(), error));
                    false
                }
            });
            if let (true, Some((_, error))) = (images.is_empty(), refused.first()) {
                return Err(error.clone());
            }
            let mut running = start(&images)?;
            for (name, error) in refused {
                running.add_unit(&name, VolumeEndpoint::Refused(error));
            }
            disk.into_iter().for_each(|disk| running.remove_on_drop(disk));
            Ok(running)
        };
        match self {
            Self::Sarsen => with_images(all, &|images| sarsen::start(program, network, images)),
            Self::Tgt => with_images(tgt::takes, &|images| tgt::start(network, images)),
            Self::Istgt => with_images(istgt::takes, &|images| istgt::start(network, images, None)),
            Self::InGuest(target) => with_images(target.takes(), &|images| {
                in_guest::start(*target, network, images, program, folders)
            }),
            Self::Nbdkit => with_images(nbdkit::takes, &|images| nbdkit::start(network, images)),
            Self::Direct => with_images(direct::takes, &direct::start),
            Self::Iscsi(url) => self.elsewhere(volumes, |_| Endpoint::Iscsi(url.clone())),
            Self::Nbd(url) => self.elsewhere(volumes, |_| Endpoint::Nbd(url.clone())),
            Self::DirectPath(path) => {
                self.elsewhere(volumes, |volume| direct::endpoint_of(path, volume))
            }
        }
    }

    /// Returns a target under test that the lab does not start.
    fn elsewhere(
        &self,
        volumes: &[VolumeSpec],
        endpoint: impl FnOnce(&VolumeSpec) -> Endpoint,
    ) -> Result<Running, TargetUnderTestError> {
        let (whole, striped): (Vec<_>, Vec<_>) =
            volumes.iter().partition(|volume| volume.striping.is_none());
        let [volume] = whole[..] else {
            let what = format!("{self} has one volume, and the study needs {}", whole.len());
            return Err(TargetUnderTestError::Unable(what));
        };
        let mut running = Running::new(self.to_string());
        running.add_unit(&volume.name, VolumeEndpoint::Elsewhere(endpoint(volume)));
        for volume in striped {
            running.add_unit(&volume.name, VolumeEndpoint::Refused(without_stripes()));
        }
        Ok(running)
    }
}

impl VolumeSpec {
    /// Returns its image; `disk` is the folder for images on disk.
    fn image(&self, disk: &Option<PrivateFolder>) -> Image {
        let backing = match (self.medium, disk) {
            (Medium::Disk, Some(disk)) => {
                Backing::File(disk.path().join(format!("{}.img", self.name)))
            }
            (Medium::Disk, None) | (Medium::Ram, _) => Backing::Memory,
        };
        let (cache, striping) = (self.cache, self.striping);
        Image { cache, striping, ..Image::new(&self.name, backing, self.bytes) }
    }
}

/// Checks that every target under test supports these names and sizes.
fn check(volumes: &[VolumeSpec]) -> Result<(), TargetUnderTestError> {
    for (index, VolumeSpec { name, bytes, .. }) in volumes.iter().enumerate() {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let problem = if name.is_empty() || !name.chars().all(plain) {
            "its name must consist of lower-case letters, digits and hyphens"
        } else if volumes[..index].iter().any(|other| other.name == *name) {
            "another volume has the same name"
        } else if *bytes == 0 || !bytes.is_multiple_of(512) {
            "its size must be a multiple of 512 bytes, and not 0"
        } else {
            continue;
        };
        return Err(TargetUnderTestError::Failed(format!("volume {name:?}: {problem}")));
    }
    Ok(())
}

impl fmt::Display for TargetUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sarsen => f.write_str("sarsen"),
            Self::Tgt => f.write_str("tgt"),
            Self::Istgt => f.write_str("istgt"),
            Self::InGuest(target) => f.write_str(target.as_str()),
            Self::Nbdkit => f.write_str("nbdkit"),
            Self::Iscsi(url) => write!(f, "{}", url.target),
            Self::Nbd(url) => url.fmt(f),
            Self::Direct => f.write_str("direct"),
            Self::DirectPath(path) => write!(f, "direct:{}", path.display()),
        }
    }
}

impl FromStr for TargetUnderTest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "sarsen" => Self::Sarsen,
            "tgt" => Self::Tgt,
            "istgt" => Self::Istgt,
            "nbdkit" => Self::Nbdkit,
            "direct" => Self::Direct,
            _ => {
                let is_named = |target: &GuestTarget| target.as_str() == text;
                if let Some(target) = GuestTarget::ALL.into_iter().find(is_named) {
                    Self::InGuest(target)
                } else if let Some(path) = text.strip_prefix("direct:") {
                    Self::DirectPath(path.into())
                } else if text.starts_with("nbd://") || text.starts_with("nbd+unix://") {
                    Self::Nbd(text.parse().map_err(|error| no_target_under_test(text, &error))?)
                } else {
                    Self::Iscsi(text.parse().map_err(|error| no_target_under_test(text, &error))?)
                }
            }
        })
    }
}

fn no_target_under_test(text: &str, error: &dyn fmt::Display) -> String {
    let names = ["sarsen", "tgt", "istgt", "nbdkit", "direct"].into_iter();
    let names: Vec<_> = names.chain(GuestTarget::ALL.map(GuestTarget::as_str)).collect();
    format!(
        "this is not a target under test: {error}{} (known: {}, direct:PATH, iscsi://…, nbd://…, nbd+unix://…)",
        nearest(text, names.iter().copied()),
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::LinkProfile;

    fn volume(name: &str, bytes: u64) -> VolumeSpec {
        let (medium, cache) = (Medium::Ram, CacheMode::WriteBack);
        VolumeSpec { name: name.into(), medium, bytes, cache, striping: None }
    }

    fn striped(name: &str) -> VolumeSpec {
        let striping = Some(Striping { devices: 4, chunk_bytes: 64 << 10 });
        VolumeSpec { striping, ..volume(name, 1 << 20) }
    }

    fn nowhere(volumes: &Path) -> Folders<'_> {
        Folders { volumes, guests: Path::new("/nowhere"), scst: None }
    }

    fn start(
        target_under_test: &str,
        volumes: &[VolumeSpec],
    ) -> Result<Running, TargetUnderTestError> {
        let network = Network::build(&[LinkProfile::loopback()]);
        target_under_test.parse::<TargetUnderTest>().unwrap().start(
            &network,
            volumes,
            nowhere(Path::new("/nowhere")),
        )
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let url = "iscsi://host/iqn.2026-11.x:a/0";
        let named = ["sarsen", "tgt", "istgt", "nbdkit", "direct", "direct:/dev/vdb"];
        for name in named.into_iter().chain(GuestTarget::ALL.map(GuestTarget::as_str)) {
            assert_eq!(name.parse::<TargetUnderTest>().unwrap().to_string(), name);
        }
        for name in ["nbd://h:10809/e", "nbd+unix:///e?socket=/run/nbd.sock"] {
            assert_eq!(name.parse::<TargetUnderTest>().unwrap().to_string(), name);
        }
        assert_eq!(url.parse(), Ok(TargetUnderTest::Iscsi(url.parse().unwrap())));
        let error = "ietd".parse::<TargetUnderTest>().unwrap_err();
        assert!(error.contains("known: sarsen, tgt"), "{error}");
        let error = "nbd://h:0/e".parse::<TargetUnderTest>().unwrap_err();
        assert!(error.contains("\"h:0\"") && error.contains("known: sarsen, tgt"), "{error}");
    }

    #[test]
    fn foreign_target_has_one_volume() {
        let url = "iscsi://host/iqn.2026-11.x:a/0";
        let running = start(url, &[volume("a", 512)]).unwrap();
        assert_eq!((running.pids(), running.ended()), (Vec::new(), None));
        let link = Network::build(&[LinkProfile::loopback()]).links()[0].clone();
        assert!(matches!(running.endpoint("a", &link), Ok(Endpoint::Iscsi(_))));
        let export = start("nbd://host/a", &[volume("a", 512)]).unwrap();
        let Ok(Endpoint::Nbd(there)) = export.endpoint("a", &link) else {
            panic!("another protocol");
        };
        assert_eq!(there.to_string(), "nbd://host:10809/a");
        for url in [url, "nbd://host/a"] {
            let several = start(url, &[volume("a", 512), volume("b", 512)]).unwrap_err();
            assert!(matches!(several, TargetUnderTestError::Unable(_)), "{several}");
        }
    }

    #[test]
    fn only_targets_with_stripes_get_striped_volumes() {
        let link = Network::build(&[LinkProfile::loopback()]).links()[0].clone();
        let guests = GuestTarget::ALL.map(GuestTarget::as_str);
        for other in ["tgt", "istgt", "nbdkit", "direct"].into_iter().chain(guests) {
            assert!(!other.parse::<TargetUnderTest>().unwrap().has_stripes(), "{other}");
            assert_eq!(start(other, &[striped("a")]).unwrap_err(), without_stripes(), "{other}");
        }
        for other in ["direct", "nbd://host/a", "direct:/dev/vdb"] {
            assert!(!other.parse::<TargetUnderTest>().unwrap().has_stripes(), "{other}");
            let running = start(other, &[striped("a"), volume("b", 512)]).unwrap();
            assert_eq!(running.endpoint("a", &link).unwrap_err(), without_stripes(), "{other}");
            assert!(running.endpoint("b", &link).is_ok(), "{other}");
        }
    }

    #[test]
    fn target_without_servable_volume_is_not_started() {
        let disk = |cache| VolumeSpec { medium: Medium::Disk, cache, ..volume("a", 512) };
        let network = Network::build(&[LinkProfile::loopback()]);
        let folder = tempfile::tempdir().unwrap();
        let refused = |target_under_test: TargetUnderTest, cache| {
            let program = Path::new("/nowhere/sarsen");
            target_under_test
                .start_beside(program, &network, &[disk(cache)], nowhere(folder.path()))
                .unwrap_err()
        };
        let unable = |what: &str| TargetUnderTestError::Unable(what.into());
        let istgt = refused(TargetUnderTest::Istgt, CacheMode::None);
        assert_eq!(istgt, unable("istgt only writes back on Linux"));
        let tgt = refused(TargetUnderTest::Tgt, CacheMode::Unsafe);
        assert_eq!(tgt, unable("tgt cannot ignore flushes"));
        let nbdkit = refused(TargetUnderTest::Nbdkit, CacheMode::DirectSync);
        assert_eq!(nbdkit, unable("nbdkit's file plugin cannot go past the page cache"));
    }

    #[test]
    fn volumes_that_make_no_sense_are_refused() {
        let refused = |volumes: &[VolumeSpec]| start("tgt", volumes).unwrap_err().to_string();
        assert!(refused(&[volume("a b", 512)]).contains("\"a b\": its name"));
        assert!(refused(&[volume("a", 512), volume("a", 512)]).contains("another volume"));
        assert!(refused(&[volume("a", 100)]).contains("multiple of 512 bytes"));
    }
}
