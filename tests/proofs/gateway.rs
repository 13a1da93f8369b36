//! Gateways: volumes that are logical units of other servers. The server behind them is this project's, tgt, istgt or the kernel's.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use futures_util::FutureExt as _;
use rustix::process::Signal;
use sarsen_block::Buffer;
use sarsen_initiator::Unit;
use sarsen_lab::network::{LinkProfile, Network};
use sarsen_lab::target_under_test::{self, Folders, Running, TargetUnderTest, VolumeSpec};
use sarsen_node::stores::CacheMode;
use sarsen_proof::conformance::Medium;
use sarsen_proof::guest::{self, Guest};
use sarsen_proof::managed::Managed;
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, process, program, scoreboard};
use serde_json::{Value, json};

use crate::client::{self, run};
use crate::conformance::{conforms_except, with_records};
use crate::import::servers::free_port;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 512;
pub(crate) const BLOCKS: u64 = 64;
/// The exit codes of an object that cannot be as requested, and of one that others use.
const INVALID: i32 = 2;
const IN_USE: i32 = 4;
const ISCSI_PORT: u16 = 3260;
const KERNELS_TARGET: &str = "iqn.2003-01.org.linux-iscsi.proof:disks";

/// Runs libiscsi's suite against volumes over the units of another server.
fn conforms_before(
    far: impl Fn(Medium) -> Option<Url>,
    is_of_far: impl Fn(&str) -> bool,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let volumes = scoreboard::volumes(|medium| match far(medium) {
        Some(url) => Backing::Remote(url.to_string()),
        None => Backing::Ram,
    });
    conforms_except(&with_records(volumes, folder.path()), &[], is_of_far)
}

#[test]
#[ignore = "a minute"]
fn libiscsi_finds_no_fault_in_volumes_on_another_sarsen() -> Result<()> {
    // The gateway has the delay, the read-only access and the removable medium.
    let plain = |volume: Volume| Volume { options: Vec::new(), ..volume };
    let volumes: Vec<_> = scoreboard::volumes(|_| Backing::Ram).into_iter().map(plain).collect();
    let far = Serving::start(&volumes)?;
    // A remote volume cannot be encrypted.
    let is_remote = |medium: &Medium| *medium != Medium::Encrypted;
    let remote = |medium: Medium| is_remote(&medium).then(|| far.url(medium.name()).clone());
    conforms_before(remote, |_| false)
}

/// Starts another target with one volume in memory for each of the media, and returns their URLs.
fn start_peer(
    peer: &TargetUnderTest,
    folder: &Path,
    media: &[Medium],
) -> Result<(Running, Vec<Url>)> {
    let network = Network::build(&[LinkProfile::loopback()]);
    let volumes: Vec<_> = media
        .iter()
        .map(|medium| VolumeSpec {
            name: medium.name().into(),
            medium: target_under_test::Medium::Ram,
            bytes: scoreboard::BYTE_COUNT,
            cache: CacheMode::WriteBack,
            striping: None,
        })
        .collect();
    let guests = guest::cache();
    let folders = Folders { volumes: folder, guests: &guests, scst: None };
    let running = peer.start_beside(&program::path()?, &network, &volumes, folders)?;
    let link = network.links().first().context("loopback")?;
    let url = |volume: &VolumeSpec| match running.endpoint(&volume.name, link)? {
        sarsen_lab::load::Endpoint::Iscsi(url) => Ok(Url::from(url)),
        other => anyhow::bail!("{other:?} is no unit"),
    };
    let urls = volumes.iter().map(url).collect::<Result<_>>()?;
    Ok((running, urls))
}

/// Runs the suite against volumes on another target. Its units have 512-byte blocks.
fn conforms_before_peer(
    peer: &TargetUnderTest,
    name: &str,
    is_of_peer: impl Fn(&str) -> bool,
) -> Result<()> {
    if process::find(Path::new(name)).is_none() {
        println!("left out, for {name} is not installed");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let media = [Medium::Disk, Medium::ReadOnly, Medium::Removable, Medium::Slow];
    let (_running, urls) = start_peer(peer, folder.path(), &media)?;
    let remote = |medium| {
        let place = media.iter().position(|one| *one == medium)?;
        urls.get(place).cloned()
    };
    conforms_before(remote, is_of_peer)
}

#[test]
fn libiscsi_finds_no_fault_in_volumes_on_tgt() -> Result<()> {
    conforms_before_peer(&TargetUnderTest::Tgt, "tgtd", |_| false)
}

#[test]
#[ignore = "a minute"]
fn libiscsi_finds_no_fault_in_volumes_on_istgt() -> Result<()> {
    let lacks_unmap = |reason: &str| {
        ["UNMAP is not implemented", "fully provisioned"].iter().any(|part| reason.contains(part))
    };
    conforms_before_peer(&TargetUnderTest::Istgt, "istgt", lacks_unmap)
}

/// Returns the configuration of the kernel's target: a unit in memory for each of the media, which every initiator may write.
fn kernels_target(media: &[Medium]) -> Value {
    let stores = media.iter().map(|medium| {
        json!({
            "plugin": "fileio", "name": medium.name(), "dev": format!("/run/{}.img", medium.name()),
            "size": scoreboard::BYTE_COUNT, "write_back": true, "aio": false,
            "wwn": format!("{}-{}", medium.name(), std::process::id()),
            "attributes": {"emulate_tpu": 1, "emulate_tpws": 1, "unmap_zeroes_data": 1}
        })
    });
    let luns = (0..).zip(media).map(|(index, medium): (u64, _)| {
        json!({"index": index, "storage_object": format!("/backstores/fileio/{}", medium.name())})
    });
    json!({
        "fabric_modules": [],
        "storage_objects": stores.collect::<Vec<_>>(),
        "targets": [{"fabric": "iscsi", "wwn": KERNELS_TARGET, "tpgs": [{
            "tag": 1, "enable": true,
            "attributes": {
                "authentication": 0, "generate_node_acls": 1, "demo_mode_write_protect": 0,
                "cache_dynamic_acls": 1
            },
            "portals": [{"ip_address": "0.0.0.0", "port": ISCSI_PORT}],
            "luns": luns.collect::<Vec<_>>(),
            "node_acls": []
        }]}]
    })
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn libiscsi_finds_no_fault_in_volumes_on_the_kernels_target() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let media = [Medium::Disk, Medium::ReadOnly, Medium::Removable, Medium::Slow];
    let saved = folder.path().join("saved.json");
    std::fs::write(&saved, kernels_target(&media).to_string())?;
    let port = free_port()?;
    let guest = Guest::new("lio", &[])?.file("saved.json", &saved).forward(port, ISCSI_PORT);
    let guest = guest.start()?;
    guest.result("ready")?;
    let url = |medium: Medium| {
        let lun = media.iter().position(|one| *one == medium)?;
        let (portal, iqn) = (format!("127.0.0.1:{port}"), KERNELS_TARGET.to_owned());
        Some(Url { portal, iqn, lun: lun as u32, user: None })
    };
    let volumes = scoreboard::volumes(|medium| match url(medium) {
        Some(url) => Backing::Remote(url.to_string()),
        None => Backing::Ram,
    });
    // The target reports an address that exists in the guest only.
    let volumes = volumes.into_iter().map(|volume| match volume.backing {
        Backing::Remote(_) => volume.option("only-these-portals"),
        _ => volume,
    });
    let volumes = with_records(volumes.collect(), folder.path());
    conforms_except(&volumes, &[], |_| false).with_context(|| guest.console().unwrap_or_default())
}

pub(crate) async fn write(unit: &Unit, lba: u64, round: u8) -> Result<()> {
    Ok(unit.write(lba, Buffer::copy_of(&[round ^ lba as u8; BLOCK]), false).await?)
}

pub(crate) async fn check(unit: &Unit, round: u8) -> Result<()> {
    for lba in 0..BLOCKS {
        let read = unit.read(lba, 1).await?;
        ensure!(
            read.iter().all(|byte| *byte == round ^ lba as u8),
            "block {lba}: {:x?}",
            &read[..8]
        );
    }
    Ok(())
}

/// The server behind the gateway is killed between writes, and started again later. The initiator at the gateway notices nothing.
#[test]
fn a_server_that_dies_and_returns_is_waited_for() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // No other proof has a volume of this name: servers without a state give volumes of one name one identifier.
    let path = folder.path().join("mortal.img");
    let far = || [Volume::new("mortal", Backing::File(path.clone()), MIB)];
    let mut serving = Serving::start(&far())?;
    let url = serving.url("mortal").clone();
    let remote = Volume::new("near", Backing::Remote(url.to_string()), MIB);
    let gateway = Serving::start(&[remote])?;
    for round in 1..8 {
        run(async {
            let unit = client::unit(&gateway, "near").await?;
            for lba in 0..BLOCKS {
                if lba == BLOCKS / 2 {
                    client::signal(&serving, Signal::KILL)?;
                    // The write is sent while there is no server.
                    let writing = write(&unit, lba, round);
                    let mut writing = std::pin::pin!(writing);
                    ensure!(writing.as_mut().now_or_never().is_none(), "written to a dead server");
                    serving = Serving::start_with(&far(), &["--listen", &url.portal])?;
                    writing.await?;
                    continue;
                }
                write(&unit, lba, round).await?;
            }
            unit.flush().await?;
            check(&unit, round).await?;
            Ok(unit.logout().await?)
        })
        .with_context(|| format!("round {round}; {}", gateway.log()))?;
    }
    gateway.stop()?;
    run(async { check(&client::unit(&serving, "mortal").await?, 7).await })
}

/// A gateway with a state, before a server with one.
struct Chain {
    folder: tempfile::TempDir,
    far: Managed,
    gateway: Managed,
}

impl Chain {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [far, near] = ["far", "near"].map(|name| folder.path().join(name));
        std::fs::create_dir(&far)?;
        std::fs::create_dir(&near)?;
        let (far, gateway) = (Managed::start(&far)?, Managed::start(&near)?);
        Ok(Self { folder, far, gateway })
    }

    fn remote(&self, user: &str) -> Result<String> {
        Ok(format!("iscsi://{user}{}/iqn.2026-11.io.sarsen:disk/0", self.far.portal()?))
    }

    fn wait_until(&self, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let deadline = sarsen_io::time::now() + client::LIMIT;
        while !is_so()? {
            ensure!(sarsen_io::time::now() < deadline, "{}", self.gateway.log());
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Returns the number of sessions at the far server.
    fn sessions(&self) -> Result<usize> {
        let listed = self.far.json(&["session", "list"])?;
        let listed = listed.as_array().or_else(|| listed["sessions"].as_array());
        Ok(listed.context("a list")?.len())
    }

    fn size_seen(&self) -> Result<u64> {
        let url = format!("iscsi://{}/iqn.2026-11.io.sarsen:gw/0", self.gateway.portal()?);
        run(async {
            let unit = Unit::connect(&url.parse()?, &Default::default()).await?;
            // If the far server sends no message, the gateway learns the size with the next command.
            let _ = unit.read(0, 1).await;
            let capacity = unit.read_capacity().await?;
            Ok(capacity.blocks * u64::from(capacity.block_length))
        })
    }
}

#[test]
fn a_changed_size_is_passed_on() -> Result<()> {
    let chain = Chain::new()?;
    chain.far.run(&["volume", "create", "disk", "16MiB", "--export"])?;
    chain.gateway.run(&["volume", "create", "gw", "--export", "--remote", &chain.remote("")?])?;
    ensure!(chain.size_seen()? == 16 * MIB);
    chain.far.run(&["volume", "resize", "disk", "32MiB"])?;
    chain.wait_until(|| Ok(chain.size_seen()? == 32 * MIB))?;
    let refused = chain.gateway.refused(INVALID, &["volume", "resize", "gw", "64MiB"])?;
    ensure!(refused.contains("size of the unit"), "{refused}");
    Ok(())
}

#[test]
fn a_gateway_logs_in_with_an_account_and_shows_no_secret() -> Result<()> {
    const SECRET: &str = "correct-horse-battery";
    let chain = Chain::new()?;
    let secret = chain.folder.path().join("secret");
    std::fs::write(&secret, SECRET)?;
    let secret = secret.to_str().context("a path")?;
    let create = ["volume", "create", "disk", "16MiB", "--export", "--chap", "gate"];
    chain.far.run(&[&create[..], &["--secret-from", secret]].concat())?;
    let remote = chain.remote("gate@")?;
    let create = ["volume", "create", "gw", "--export", "--remote", &remote];
    let refused = chain.gateway.refused(INVALID, &create)?;
    ensure!(refused.contains("there is no account gate"), "{refused}");
    chain.gateway.run(&["account", "create", "gate", "--secret-from", secret])?;
    chain.gateway.run(&create)?;
    ensure!(chain.size_seen()? == 16 * MIB);
    let refused = chain.gateway.refused(IN_USE, &["account", "delete", "gate"])?;
    ensure!(refused.contains("gw"), "{refused}");
    let shown = chain.gateway.run(&["volume", "show", "gw"])?;
    ensure!(shown.contains("gate@") && !shown.contains(SECRET), "{shown}");
    ensure!(!chain.gateway.log().contains(SECRET), "the log has the secret");
    let with_secret = remote.replace("gate@", &format!("gate%{SECRET}@"));
    let mut create =
        chain.gateway.command(&["volume", "create", "other", "--remote", &with_secret])?;
    let said = create.output()?;
    let stderr = String::from_utf8(said.stderr)?;
    ensure!(!said.status.success() && stderr.contains("has no secret"), "{stderr}");
    Ok(())
}

/// Another unit at the same URL, as after an array was configured anew, is not served as the old one.
#[test]
fn another_unit_is_served_only_after_a_confirmation() -> Result<()> {
    let mut chain = Chain::new()?;
    chain.far.run(&["volume", "create", "disk", "16MiB", "--export"])?;
    chain.gateway.run(&["volume", "create", "gw", "--export", "--remote", &chain.remote("")?])?;
    chain.far.run(&["volume", "delete", "disk", "--cascade", "--force"])?;
    chain.far.run(&["volume", "create", "disk", "24MiB", "--export"])?;
    let near = chain.folder.path().join("near");
    chain.gateway.kill()?;
    chain.gateway = Managed::start(&near)?;
    let listed = chain.gateway.run(&["volume", "list"])?;
    ensure!(listed.contains("is another unit"), "{listed}");
    ensure!(chain.size_seen().is_err(), "it is served");
    chain.gateway.run(&["volume", "reattach", "gw"])?;
    ensure!(chain.size_seen()? == 24 * MIB);
    chain.gateway.kill()?;
    chain.gateway = Managed::start(&near)?;
    ensure!(chain.size_seen()? == 24 * MIB, "the confirmation was forgotten");
    Ok(())
}

/// The far server closes the unit and opens it again: for a moment, logins find no such LUN.
#[test]
fn a_unit_that_is_gone_for_a_moment_is_waited_for() -> Result<()> {
    let chain = Chain::new()?;
    chain.far.run(&["volume", "create", "disk", "16MiB", "--export"])?;
    chain.gateway.run(&["volume", "create", "gw", "--export", "--remote", &chain.remote("")?])?;
    for _ in 0..3 {
        chain.far.run(&["volume", "reattach", "disk", "--force", "--grace", "1"])?;
        chain.wait_until(|| Ok(chain.size_seen().is_ok_and(|size| size == 16 * MIB)))?;
    }
    Ok(())
}

/// A volume that is refused or closed leaves no session that logs in again.
#[test]
fn no_session_outlives_its_volume() -> Result<()> {
    let chain = Chain::new()?;
    chain.far.run(&["volume", "create", "disk", "16MiB", "--export"])?;
    chain.far.run(&["volume", "set", "disk", "read-only=true", "--force"])?;
    let create = ["volume", "create", "gw", "--export", "--remote", &chain.remote("")?];
    let refused = chain.gateway.command(&create)?.output()?;
    ensure!(!refused.status.success(), "a read-only unit is served as a writable one");
    chain.wait_until(|| Ok(chain.sessions()? == 0))?;
    chain.far.run(&["volume", "set", "disk", "read-only=false", "--force"])?;
    chain.gateway.run(&create)?;
    chain.wait_until(|| Ok(chain.sessions()? == 1))?;
    chain.gateway.run(&["volume", "delete", "gw", "--cascade"])?;
    chain.wait_until(|| Ok(chain.sessions()? == 0))
}

/// No other program of this machine can have a unit that is in use.
#[test]
fn commands_without_a_server_leave_a_pool_in_use_alone() -> Result<()> {
    let chain = Chain::new()?;
    chain.far.run(&["volume", "create", "disk", "256MiB", "--export"])?;
    let remote = chain.remote("")?;
    chain.gateway.run(&["pool", "create", "tank", "--device", &remote])?;
    for command in [
        &["pool", "check", &remote][..],
        &["pool", "create", "other", "--offline", "--force", "--device", &remote],
    ] {
        let said = chain.gateway.command(command)?.output()?;
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        ensure!(said.contains("is in use by another"), "{command:?}: {said}");
    }
    chain.gateway.run(&["volume", "create", "v", "16MiB", "--pool", "tank"]).map(drop)
}

#[test]
fn one_unit_is_one_volume() -> Result<()> {
    let chain = Chain::new()?;
    chain.far.run(&["volume", "create", "disk", "16MiB", "--export"])?;
    let remote = chain.remote("")?;
    chain.gateway.run(&["volume", "create", "gw", "--remote", &remote])?;
    let refused =
        chain.gateway.refused(INVALID, &["volume", "create", "again", "--remote", &remote])?;
    ensure!(refused.contains("both have iscsi://"), "{refused}");
    Ok(())
}

/// A server whose only volume is a device of a pool of another server.
struct Leg {
    serving: Option<Serving>,
    volume: Volume,
    url: Url,
}

impl Leg {
    fn start(folder: &Path, name: &str) -> Result<Self> {
        let file = Backing::File(folder.join(format!("{name}.img")));
        let volume = Volume::new(name, file, 128 * MIB);
        let serving = Serving::start(std::slice::from_ref(&volume))?;
        let url = serving.url(name).clone();
        Ok(Self { serving: Some(serving), volume, url })
    }

    fn kill(&mut self) -> Result<()> {
        let serving = self.serving.take().context("it runs")?;
        client::signal(&serving, Signal::KILL)
    }

    fn restart(&mut self) -> Result<()> {
        let arguments = ["--listen", &self.url.portal];
        self.serving = Some(Serving::start_with(std::slice::from_ref(&self.volume), &arguments)?);
        Ok(())
    }
}

/// Waits until the only pool has no problem, or has one.
fn pool_has_problem(gateway: &Managed, has_problem: bool) -> Result<()> {
    let deadline = sarsen_io::time::now() + 3 * client::LIMIT;
    loop {
        let status = gateway.json(&["pool", "status", "tank"])?;
        if status["pool"]["problem"].is_string() == has_problem {
            return Ok(());
        }
        ensure!(sarsen_io::time::now() < deadline, "{status}\n{}", gateway.log());
        std::thread::yield_now();
    }
}

/// A mirror over two servers: each of them is killed in turn while its volume is written, and comes back.
#[test]
fn a_mirror_over_servers_survives_each_of_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut legs = [Leg::start(folder.path(), "one")?, Leg::start(folder.path(), "two")?];
    let near = folder.path().join("near");
    std::fs::create_dir(&near)?;
    let gateway = Managed::start(&near)?;
    let urls = legs.each_ref().map(|leg| leg.url.to_string());
    gateway.run(&["pool", "create", "tank", "--device", &urls[0], "--device", &urls[1]])?;
    gateway.run(&[
        "volume", "create", "safe", "16MiB", "--pool", "tank", "--mirror", "2", "--export",
    ])?;
    let url = format!("iscsi://{}/iqn.2026-11.io.sarsen:safe/0", gateway.portal()?);
    for round in 1..5 {
        let leg = usize::from(round) % legs.len();
        run(async {
            let unit = Unit::connect(&url.parse()?, &Default::default()).await?;
            for lba in 0..BLOCKS {
                if lba == BLOCKS / 2 {
                    legs[leg].kill()?;
                }
                write(&unit, lba, round).await?;
            }
            unit.flush().await?;
            check(&unit, round).await?;
            Ok(unit.logout().await?)
        })
        .with_context(|| format!("round {round}; {}", gateway.log()))?;
        pool_has_problem(&gateway, true)?;
        legs[leg].restart()?;
        pool_has_problem(&gateway, false)?;
    }
    gateway.run(&["snapshot", "create", "safe@last"])?;
    gateway.stop()
}
