//! Debian's tgt, in user space, with one event loop and a pool of threads.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use sarsen_node::stores::CacheMode;

use super::in_guest::{self, Contents};
use super::running::{ADMIN_LIMIT, Running, VolumeEndpoint, on_free_port};
use super::{Backing, Image, TargetUnderTestError};
use crate::guest::Recipe;
use crate::network::Network;
use crate::process;

/// LUN 0 is tgt's controller.
const LUN: u16 = 1;
/// tgtd's control socket is in its private folder, because all network namespaces share /var/run.
const SOCKET: &str = "control";
const SOCKET_VARIABLE: &str = "TGT_IPC_SOCKET";
/// Number of the only control socket.
const CONTROL: &str = "0";
/// The caching mode page (SBC-4 6.5.5) with WCE = 0, as `tgt-admin` writes it for
/// `write-cache off`: tgtd then syncs the file after each write.
const WRITE_CACHE_OFF: &str =
    "mode_page=8:0:18:0x10:0:0xff:0xff:0:0:0xff:0xff:0xff:0xff:0x80:0x14:0:0:0:0:0:0";

/// Serves each image as LUN 1 of its own target.
pub fn start(network: &Network, images: &[Image]) -> Result<Running, TargetUnderTestError> {
    images.iter().try_for_each(takes)?;
    on_free_port(network, |address| start_on(network, images, address))
}

/// Returns whether tgt supports the image.
pub(super) fn takes(image: &Image) -> Result<(), TargetUnderTestError> {
    image.check_unstriped()?;
    caching(image).map(drop)
}

fn start_on(
    network: &Network,
    images: &[Image],
    address: SocketAddr,
) -> Result<Running, TargetUnderTestError> {
    let mut running = Running::at_home("tgt")?;
    let files = running.backing_files(images)?;
    let socket = running.file(SOCKET);
    running.start(network.target_command_prefix(), Path::new("tgtd"), |command| {
        command.arg("-f").arg("--iscsi").arg(format!("portal={address}"));
        command.args(["-C", CONTROL]).env(SOCKET_VARIABLE, &socket);
    })?;
    running.wait_until_it_listens(address.port(), || {
        let mut show = admin(&running)?;
        let shown = process::finish(show.args(["--op", "show", "--mode", "sys"]), ADMIN_LIMIT)?;
        Ok(shown.status.is_some_and(|status| status.success()))
    })?;
    for ((tid, image), file) in (1..).zip(images).zip(&files) {
        let target = format!("iqn.2026-11.peer.tgt:{}", image.name);
        for step in steps(tid, &target, image, file)? {
            let mut command = admin(&running)?;
            command.args(step);
            running.carry_out(command).map_err(|error| running.explain(error))?;
        }
        let unit = VolumeEndpoint::Iscsi { port: address.port(), target, lun: LUN };
        running.add_unit(&image.name, unit);
    }
    let mut version = process::command("tgtd")?;
    version.arg("--version");
    running.note_version(version, Some("tgt"));
    Ok(running)
}

/// Returns a guest in which each image is LUN 1 of its own target.
pub(super) fn in_guest(images: &[Image]) -> Result<Contents, TargetUnderTestError> {
    const RECIPE: Recipe = Recipe { name: "tgt", packages: &["tgt"], modules: &[] };
    let port = in_guest::PORT;
    let mut script =
        format!("begin tgtd -f --iscsi portal=0.0.0.0:{port}\nuntil_true 60 listens {port}\n");
    for ((tid, number), image) in (1..).zip(1..).zip(images) {
        let steps = steps(tid, &in_guest::target(number), image, &in_guest::device(number))?;
        for step in steps {
            script += &format!("tgtadm --lld iscsi {}\n", step.join(" "));
        }
    }
    script += "tgtd --version\n";
    Ok(Contents { lun: LUN, ..Contents::new(&RECIPE, images, script) })
}

/// Runs `tgtadm` on a tgt that the lab started; the first image's target is `--tid 1`.
pub fn administer(running: &Running, arguments: &[&str]) -> Result<(), TargetUnderTestError> {
    let mut command = admin(running)?;
    process::output(command.args(arguments), ADMIN_LIMIT)?;
    Ok(())
}

fn admin(running: &Running) -> Result<Command, TargetUnderTestError> {
    let mut command = process::command("tgtadm")?;
    command.args(["-C", CONTROL, "--lld", "iscsi"]).env(SOCKET_VARIABLE, running.file(SOCKET));
    Ok(command)
}

/// Returns the flags for opening the file, and whether the unit has a write cache.
fn caching(image: &Image) -> Result<(Option<&'static str>, bool), TargetUnderTestError> {
    if image.backing == Backing::Memory {
        return Ok((None, true));
    }
    Ok(match image.cache {
        CacheMode::WriteBack => (None, true),
        CacheMode::WriteThrough => (None, false),
        CacheMode::None => (Some("direct"), true),
        CacheMode::DirectSync => (Some("direct"), false),
        CacheMode::Unsafe => {
            return Err(TargetUnderTestError::Unable("tgt cannot ignore flushes".into()));
        }
    })
}

/// Returns the arguments of `tgtadm` for an image, one list for each command.
fn steps(
    tid: u32,
    name: &str,
    image: &Image,
    file: &Path,
) -> Result<Vec<Vec<String>>, TargetUnderTestError> {
    let (flags, write_cache) = caching(image)?;
    let target = format!("--mode target --tid {tid}");
    let unit = format!("--mode logicalunit --tid {tid} --lun {LUN}");
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut new_unit = words(format!("--op new {unit} --bstype rdwr"));
    new_unit.extend(["--backing-store".into(), file.display().to_string()]);
    new_unit.extend(["--blocksize".into(), image.block_bytes.to_string()]);
    new_unit.extend(flags.into_iter().flat_map(|flags| ["--bsoflags".into(), flags.into()]));
    let mut steps = vec![
        words(format!("--op new {target} --targetname {name}")),
        new_unit,
        words(format!("--op update {unit} --params thin_provisioning=1")),
    ];
    if !write_cache {
        steps.push(words(format!("--op update {unit} --params {WRITE_CACHE_OFF}")));
    }
    for digest in ["HeaderDigest", "DataDigest"] {
        // The initiator selects.
        steps.push(words(format!("--op update {target} --name {digest} --value CRC32C,None")));
    }
    steps.push(words(format!("--op bind {target} --initiator-address ALL")));
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(cache: CacheMode) -> Vec<String> {
        let image = Image { cache, ..Image::new("a", Backing::File("/x y/a.img".into()), 1 << 20) };
        let steps = steps(3, "iqn.x:a", &image, Path::new("/x y/a.img")).unwrap();
        steps.into_iter().map(|step| step.join(" ")).collect()
    }

    #[test]
    fn a_unit_is_set_up_with_its_file_and_its_cache() {
        let plain = lines(CacheMode::WriteBack);
        assert_eq!(plain[0], "--op new --mode target --tid 3 --targetname iqn.x:a");
        assert_eq!(
            plain[1],
            "--op new --mode logicalunit --tid 3 --lun 1 --bstype rdwr --backing-store /x y/a.img \
             --blocksize 512"
        );
        assert!(plain.iter().all(|line| !line.contains("mode_page")));
        let direct = lines(CacheMode::DirectSync);
        assert!(direct[1].ends_with("--blocksize 512 --bsoflags direct"), "{}", direct[1]);
        assert!(direct[3].contains("mode_page=8:"), "{}", direct[3]);
        assert!(lines(CacheMode::None)[1].ends_with("direct"));
        assert_eq!(lines(CacheMode::WriteThrough).len(), plain.len() + 1);
    }

    #[test]
    fn memory_image_has_no_cache_and_flushes_are_obeyed() {
        let mut image = Image::new("a", Backing::Memory, 1 << 20);
        image.cache = CacheMode::Unsafe;
        assert_eq!(caching(&image).unwrap(), (None, true));
        image.backing = Backing::File("/a".into());
        assert!(matches!(caching(&image), Err(TargetUnderTestError::Unable(_))));
    }
}
