//! Debian's istgt, in user space, with one or two threads for each connection and LUN.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use sarsen_node::stores::CacheMode;

use super::in_guest::{self, Contents};
use super::running::{Running, VolumeEndpoint, on_free_port};
use super::{Backing, Image, TargetUnderTestError};
use crate::guest::Recipe;
use crate::network::Network;
use crate::process;

const NODE_BASE: &str = "iqn.2026-11.peer.istgt";

/// The accounts for CHAP.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    /// The initiator's user and secret.
    pub user: (&'a str, &'a str),
    /// The target's user and secret.
    pub target: (&'a str, &'a str),
}

/// Serves each image, in blocks of 512 bytes, as LUN 0 of its own target: to all initiators, or to one account only,
/// also in discovery.
pub fn start(
    network: &Network,
    images: &[Image],
    account: Option<Account<'_>>,
) -> Result<Running, TargetUnderTestError> {
    images.iter().try_for_each(takes)?;
    on_free_port(network, |address| start_on(network, images, account, address))
}

/// Returns whether istgt supports the image.
pub(super) fn takes(image: &Image) -> Result<(), TargetUnderTestError> {
    image.check_unstriped()?;
    if image.block_bytes != 512 {
        return Err(TargetUnderTestError::Unable(
            "the lab starts istgt with 512-byte blocks only".into(),
        ));
    }
    // istgt sets O_SYNC with F_SETFL, which Linux ignores (fcntl(2)), so without a write cache it would acknowledge
    // data that is not durable.
    if image.backing != Backing::Memory && image.cache != CacheMode::WriteBack {
        return Err(TargetUnderTestError::Unable("istgt only writes back on Linux".into()));
    }
    Ok(())
}

fn start_on(
    network: &Network,
    images: &[Image],
    account: Option<Account<'_>>,
    address: SocketAddr,
) -> Result<Running, TargetUnderTestError> {
    let mut running = Running::at_home("istgt")?;
    let files = running.backing_files(images)?;
    let write = |name: &str, text: &str| {
        let path = running.file(name);
        fs::write(&path, text).map_err(|error| TargetUnderTestError::file("write", &path, &error))
    };
    let mut text = global(&running.file(""), address);
    for ((number, image), file) in (1..).zip(images).zip(&files) {
        text += &unit(number, &image.name, file);
    }
    let accounts = account.map(|Account { user, target }| {
        text = text.replace("AuthMethod None", "AuthMethod CHAP");
        text = text.replace("AuthGroup None", "AuthGroup AuthGroup1");
        let [user, target] =
            [user, target].map(|(name, secret)| format!("\"{name}\" \"{secret}\""));
        format!("[AuthGroup1]\n  Auth {user} {target}\n")
    });
    write("auth.conf", &accounts.unwrap_or_default())?;
    write("istgt.conf", &text)?;
    let path = running.file("istgt.conf");
    running.note_command(format!("cat > {} <<'END'\n{text}END", path.display()));
    running.start(network.target_command_prefix(), Path::new("istgt"), |command| {
        command.arg("-D").arg("-c").arg(&path);
    })?;
    // istgt opens its units before it listens.
    running.wait_until_it_listens(address.port(), || Ok(true))?;
    for image in images {
        let target = format!("{NODE_BASE}:{}", image.name);
        running
            .add_unit(&image.name, VolumeEndpoint::Iscsi { port: address.port(), target, lun: 0 });
    }
    let mut version = process::command("istgt")?;
    version.arg("-V");
    running.note_version(version, Some("istgt"));
    Ok(running)
}

/// Returns a guest in which each image is LUN 0 of its own target.
pub(super) fn in_guest(images: &[Image]) -> Contents {
    const RECIPE: Recipe = Recipe { name: "istgt", packages: &["istgt"], modules: &[] };
    let port = in_guest::PORT;
    let mut text = global(Path::new("/run/istgt/"), (Ipv4Addr::UNSPECIFIED, port).into());
    for number in 1..=images.len() {
        text += &unit(number, &in_guest::target(number), &in_guest::device(number));
    }
    let script = format!(
        "mkdir /run/istgt\n\
         touch /run/istgt/auth.conf\n\
         cat >/run/istgt/istgt.conf <<'END'\n\
         {text}END\n\
         begin istgt -D -c /run/istgt/istgt.conf\n\
         until_true 60 listens {port}\n\
         istgt -V | sed 1q\n"
    );
    Contents::new(&RECIPE, images, script)
}

fn global(folder: &Path, address: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        r#"[Global]
  NodeBase "{NODE_BASE}"
  PidFile "{folder}pid"
  AuthFile "{folder}auth.conf"
  MediaDirectory "{folder}"
  LogFacility "local7"
  Timeout 30
  NopInInterval 20
  DiscoveryAuthMethod None
  DiscoveryAuthGroup None
  MaxSessions 64
  MaxConnections 4
  MaxR2T 32
  MaxOutstandingR2T 16
  FirstBurstLength 262144
  MaxBurstLength 1048576
  MaxRecvDataSegmentLength 262144
  InitialR2T Yes
  ImmediateData Yes
  DataPDUInOrder Yes
  DataSequenceInOrder Yes
  ErrorRecoveryLevel 0

[UnitControl]
  AuthMethod None
  AuthGroup None

[PortalGroup1]
  Portal DA1 {address}

[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask ALL
"#
    )
}

fn unit(number: usize, name: &str, image: &Path) -> String {
    let image = image.display();
    format!(
        r#"
[LogicalUnit{number}]
  TargetName "{name}"
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod None
  AuthGroup None
  UseDigest Auto
  UnitType Disk
  QueueDepth 64
  LUN0 Storage "{image}" Auto
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::LinkProfile;

    #[test]
    fn the_configuration_names_the_portal_and_each_unit() {
        let text = global(Path::new("/home/"), "10.0.0.2:3261".parse().unwrap());
        assert!(text.contains("Portal DA1 10.0.0.2:3261\n"), "{text}");
        assert!(text.contains("PidFile \"/home/pid\"\n"), "{text}");
        let unit = unit(2, "b", Path::new("/home/b.img"));
        assert!(unit.starts_with("\n[LogicalUnit2]\n  TargetName \"b\"\n"), "{unit}");
        assert!(unit.contains("LUN0 Storage \"/home/b.img\" Auto"), "{unit}");
    }

    #[test]
    fn unsupported_image_is_reported_before_start() {
        let network = Network::build(&[LinkProfile::loopback()]);
        let disk = || Image::new("a", Backing::File("/nowhere/a".into()), 1 << 20);
        let through = Image { cache: CacheMode::WriteThrough, ..disk() };
        let long = Image { block_bytes: 4096, ..disk() };
        for image in [through, long] {
            let refused = start(&network, &[image], None).unwrap_err();
            assert!(matches!(refused, TargetUnderTestError::Unable(_)), "{refused}");
        }
    }
}
