//! Targets in the Linux kernel, in a guest: this machine's kernel may lack them, and they need root. They serve the guest's
//! disks, whose cache is that of the hypervisor. SCST has the page cache of the guest, too, in modes with a cache.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::running::{Running, VolumeEndpoint, on_free_port};
use super::{Backing, Image, TargetUnderTestError};
use crate::guest::{self, Guest, GuestSpec, Recipe};
use crate::network::{GuestSide, Network};

/// Memory of a guest without a page cache for its disks.
pub(super) const MEMORY_MIB: u32 = 512;
/// The address of the guest in QEMU's user network.
const USER_NETWORK: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const PORT: u16 = 3260;
const LUN: u16 = 0;
/// Number of virtio disks with a name of one letter.
const DISKS_MAX: usize = 26;
/// Maximum duration of the set-up in the guest. Emulation is slow.
const LIMIT: Duration = Duration::from_secs(120);

/// A target of the kernel.
#[derive(Debug)]
pub(super) struct KernelTarget {
    /// Its name, which is also that of the guest.
    pub(super) name: &'static str,
    /// What the guest contains.
    pub(super) recipe: &'static Recipe,
    /// Memory of the guest.
    pub(super) memory_mib: u32,
    /// More files of the guest, with their paths there.
    pub(super) files: Vec<(String, PathBuf)>,
    /// The lines of a script that serve disk N as LUN 0 of the target [`target`]`(N)`, and print the target's version.
    pub(super) script: String,
}

/// LIO, which is a part of the kernel.
pub(super) fn lio(images: &[Image]) -> KernelTarget {
    const RECIPE: Recipe =
        Recipe { name: "lio", packages: &[], modules: &["iscsi_target_mod", "target_core_iblock"] };
    let script = format!("serve_lio {}\necho \"Linux $(uname -r)\"\n", images.len());
    KernelTarget { name: "lio", recipe: &RECIPE, memory_mib: MEMORY_MIB, files: Vec::new(), script }
}

/// Returns the name of the target that serves the disk with this number, which begins with 1.
fn target(number: usize) -> String {
    format!("iqn.2026-11.io.sarsen:disk{number}")
}

/// Starts a guest that serves each image as LUN 0 of its own target. `cache` is the folder that keeps what guests boot
/// from.
pub(super) fn start(
    network: &Network,
    images: &[Image],
    cache: &Path,
    kernel_target: &KernelTarget,
) -> Result<Running, TargetUnderTestError> {
    if images.len() > DISKS_MAX {
        let reason = format!(
            "{} volumes are too many for {}: use at most {DISKS_MAX}",
            images.len(),
            kernel_target.name
        );
        return Err(TargetUnderTestError::Unable(reason));
    }
    on_free_port(network, |address| start_on(network, images, cache, kernel_target, address))
}

/// Returns whether targets of the kernel support the image.
pub(super) fn takes(image: &Image) -> Result<(), TargetUnderTestError> {
    image.check_unstriped()
}

fn start_on(
    network: &Network,
    images: &[Image],
    cache: &Path,
    kernel_target: &KernelTarget,
    address: SocketAddr,
) -> Result<Running, TargetUnderTestError> {
    let KernelTarget { name, recipe, memory_mib, files: own_files, script } = kernel_target;
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
            VolumeEndpoint::InGuest { port: PORT, forwarded, target: target(number), lun: LUN };
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
