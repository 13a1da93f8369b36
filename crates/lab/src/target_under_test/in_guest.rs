//! Targets in guests: those of the kernel, which this machine's kernel may lack and which need root, and programs that also
//! run outside of guests, so that they can be compared with those of the kernel. They serve the guest's disks, whose cache
//! is that of the hypervisor. In modes with a cache, all but LIO have the page cache of the guest, too.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::running::{Running, VolumeEndpoint, on_free_port, private_folder};
use super::{Backing, Folders, Image, Takes, TargetUnderTestError, istgt, sarsen, scst, tgt};
use crate::guest::{self, Guest, GuestSpec, Recipe};
use crate::network::{GuestSide, Network};

/// Memory of a guest without a page cache for its disks.
const MEMORY_MIB: u32 = 512;
/// The address of the guest in QEMU's user network.
const USER_NETWORK: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// The port of the target in the guest.
pub(super) const PORT: u16 = 3260;
/// Number of virtio disks with a name of one letter.
const DISKS_MAX: usize = 26;
/// Maximum duration of the set-up in the guest. Emulation is slow.
const LIMIT: Duration = Duration::from_secs(120);

/// A target that the lab starts in a guest of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestTarget {
    /// The target of the Linux kernel.
    Lio,
    /// SCST, whose modules the lab builds for the kernel of the guest.
    Scst,
    /// This program.
    Sarsen,
    /// Debian's tgt.
    Tgt,
    /// Debian's istgt.
    Istgt,
}

impl GuestTarget {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Lio, Self::Scst, Self::Sarsen, Self::Tgt, Self::Istgt];

    /// Returns its name, which is also that of the guest.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lio => "lio",
            Self::Scst => "scst",
            Self::Sarsen => "sarsen-in-guest",
            Self::Tgt => "tgt-in-guest",
            Self::Istgt => "istgt-in-guest",
        }
    }

    /// Returns what checks that it supports an image.
    pub(super) fn takes(self) -> Takes {
        match self {
            Self::Lio | Self::Scst | Self::Sarsen => Image::check_unstriped,
            Self::Tgt => tgt::takes,
            Self::Istgt => istgt::takes,
        }
    }

    /// Returns the guest that serves these images; `program` is the path of this program. `work` is the folder for files that
    /// the guest gets.
    fn contents(
        self,
        images: &[Image],
        program: &Path,
        folders: Folders<'_>,
        work: &Path,
    ) -> Result<Contents, TargetUnderTestError> {
        match self {
            Self::Lio => Ok(lio(images)),
            Self::Scst => scst::in_guest(images, folders.scst, folders.guests),
            Self::Sarsen => sarsen::in_guest(images, program, work),
            Self::Tgt => tgt::in_guest(images),
            Self::Istgt => Ok(istgt::in_guest(images)),
        }
    }
}

/// What the guest of a target contains and executes.
#[derive(Debug)]
pub(super) struct Contents {
    /// Its packages and modules.
    pub(super) recipe: &'static Recipe,
    /// Its memory.
    pub(super) memory_mib: u32,
    /// More files, with their paths in the guest.
    pub(super) files: Vec<(String, PathBuf)>,
    /// The LUN of each image in its target.
    pub(super) lun: u16,
    /// The lines of a script that serve disk N, which is [`device`]`(N)`, as a unit of the target [`target`]`(N)`, and
    /// print the target's version.
    pub(super) script: String,
}

impl Contents {
    /// Returns a guest whose target serves disks as LUN 0, with the page cache of the guest.
    pub(super) fn new(recipe: &'static Recipe, images: &[Image], script: String) -> Self {
        // What is in memory is in the page cache of the guest as well.
        let in_memory = images.iter().filter(|image| image.backing == Backing::Memory);
        let cached: u64 = in_memory.map(|image| image.bytes).sum();
        let memory_mib = MEMORY_MIB + u32::try_from(cached >> 20).unwrap_or(u32::MAX / 2);
        Self { recipe, memory_mib, files: Vec::new(), lun: 0, script }
    }
}

fn lio(images: &[Image]) -> Contents {
    const RECIPE: Recipe =
        Recipe { name: "lio", packages: &[], modules: &["iscsi_target_mod", "target_core_iblock"] };
    let script = format!("serve_lio {}\necho \"Linux $(uname -r)\"\n", images.len());
    Contents { memory_mib: MEMORY_MIB, ..Contents::new(&RECIPE, images, script) }
}

/// Returns the disk with this number, which begins with 1.
pub(super) fn device(number: usize) -> PathBuf {
    let letter = (b'a'..=b'z').nth(number - 1).expect("the disks have been counted");
    format!("/dev/vd{}", char::from(letter)).into()
}

/// Returns the name of the target that serves the disk with this number, which begins with 1.
pub(super) fn target(number: usize) -> String {
    format!("iqn.2026-11.io.sarsen:disk{number}")
}

/// Starts a guest that serves each image by its own target; `program` is the path of this program.
pub(super) fn start(
    target: GuestTarget,
    network: &Network,
    images: &[Image],
    program: &Path,
    folders: Folders<'_>,
) -> Result<Running, TargetUnderTestError> {
    if images.len() > DISKS_MAX {
        let (count, name) = (images.len(), target.as_str());
        let reason = format!("{count} volumes are too many for {name}: use at most {DISKS_MAX}");
        return Err(TargetUnderTestError::Unable(reason));
    }
    let work = private_folder(folders.volumes)?;
    let contents = target.contents(images, program, folders, work.path())?;
    on_free_port(network, |address| {
        start_on(target.as_str(), network, images, folders.guests, &contents, address)
    })
}

fn start_on(
    name: &str,
    network: &Network,
    images: &[Image],
    cache: &Path,
    contents: &Contents,
    address: SocketAddr,
) -> Result<Running, TargetUnderTestError> {
    let Contents { recipe, memory_mib, files: own_files, lun, script, .. } = contents;
    let mut running = Running::at_home(name)?;
    let files = running.backing_files(images)?;
    let cards = network.guest_cards(GuestSide::Targets).map_err(TargetUnderTestError::Unable)?;
    let forward = format!("user,id=user,hostfwd=tcp:{address}-{USER_NETWORK}:{PORT}");
    let user_card = "virtio-net-pci,netdev=user,romfile=";
    let arguments = cards.arguments();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut spec = GuestSpec::new(recipe, cache, *memory_mib)
        .in_namespace(&cards.command_prefix())
        .storage(Ipv4Addr::UNSPECIFIED)
        .arguments(&["-netdev", &forward, "-device", user_card])
        .arguments(&arguments);
    for (path, source) in own_files {
        spec = spec.file(path, source);
    }
    for (number, (image, file)) in images.iter().zip(&files).enumerate() {
        let [drive, device] = disk(number, image, file);
        spec = spec.arguments(&["-drive", &drive, "-device", &device]);
    }
    let mut guest = Guest::start(name, &spec)?;
    guest.wait_for_boot()?;
    let script = format!(
        ". /storage\n\
         ip address add {USER_NETWORK}/24 dev eth0\n\
         ip link set eth0 up\n\
         ip route add default via 10.0.2.2\n\
         {}\
         {script}",
        cards.script()
    );
    let version = guest.run(&script, LIMIT)?;
    // Messages of the kernel's tools may be before it.
    running.set_version(version.lines().last().unwrap_or_default().trim().to_owned());
    for (image, number) in images.iter().zip(1..) {
        let forwarded = address.port();
        let unit =
            VolumeEndpoint::InGuest { port: PORT, forwarded, target: target(number), lun: *lun };
        running.add_unit(&image.name, unit);
    }
    running.add_guest(guest, cards);
    Ok(running)
}

/// Returns QEMU's drive and device of an image. A file in memory uses the page cache: tmpfs has no O_DIRECT.
fn disk(number: usize, image: &Image, file: &Path) -> [String; 2] {
    let cache = match image.backing {
        Backing::Memory => "writeback",
        Backing::File(_) => image.cache_name(),
    };
    let block = image.block_bytes;
    let file = guest::option_value(file);
    [
        format!("if=none,id=image{number},format=raw,cache={cache},file={file}"),
        format!(
            "virtio-blk-pci,drive=image{number},logical_block_size={block},physical_block_size={block}"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use sarsen_node::stores::CacheMode;

    use super::*;

    #[test]
    fn a_disk_has_the_cache_of_its_volume() {
        let file = Backing::File("/a,b.img".into());
        let mut image = Image { cache: CacheMode::DirectSync, ..Image::new("a", file, 1 << 20) };
        let [drive, device] = disk(2, &image, Path::new("/a,b.img"));
        assert_eq!(drive, "if=none,id=image2,format=raw,cache=directsync,file=/a,,b.img");
        assert!(device.starts_with("virtio-blk-pci,drive=image2,logical_block_size=512"));
        image.backing = Backing::Memory;
        assert!(disk(2, &image, Path::new("/a"))[0].contains("cache=writeback"));
    }
}
