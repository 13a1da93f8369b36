//! A server in this process changes while sessions use it. Sessions that a change does not affect continue without
//! interruption. Sessions that would lose access are reported first and asked to log out.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_block::Buffer;
use sarsen_initiator::{Command, SenseKey, SessionError, SessionOptions, TransferRequest, Unit};
use sarsen_io::time;
use sarsen_node::config::{
    Config, NamePattern, RuleConfig, TargetConfig, VolumeConfig, parse_portal, parse_volume,
};
use sarsen_node::model::Limit;
use sarsen_node::{ChangeError, ChangeOutcome, Interruption, Object, Server};

use crate::client::{LIMIT, run};

const A: &str = "iqn.2026-11.proof:a";
const B: &str = "iqn.2026-11.proof:b";
const MIB: u64 = 1 << 20;

fn volume(text: &str) -> Result<VolumeConfig> {
    Ok(parse_volume(text)?)
}

fn target(name: &str, luns: &[(u16, &str)]) -> TargetConfig {
    let luns = luns.iter().map(|&(lun, volume)| (lun, volume.to_owned()));
    let luns = luns.collect::<BTreeMap<_, _>>().into();
    TargetConfig { name: name.into(), luns, ..TargetConfig::default() }
}

/// Returns a configuration of one volume in a target, modified by `change`.
fn config(change: impl FnOnce(&mut Config)) -> Result<Config> {
    let mut config = Config {
        listen: vec![parse_portal("127.0.0.1:0").map_err(anyhow::Error::msg)?],
        cores: NonZeroUsize::new(2),
        volumes: vec![volume("a=ram:1MiB,serial=one")?],
        targets: vec![target(A, &[(0, "a")])],
        ..Config::default()
    };
    change(&mut config);
    Ok(config.finish_managed()?)
}

/// Applies a change that takes no access from any session.
async fn apply(server: &Server, desired: Config) -> Result<()> {
    let prepared = server.prepare(desired)?;
    ensure!(prepared.interrupts().is_empty(), "{:?}", prepared.interrupts());
    let made = prepared.make(None).await?;
    ensure!(made.problems.is_empty(), "{made:?}");
    ensure!(made.needs_restart.is_empty() && made.sessions_ended == 0, "{made:?}");
    Ok(())
}

/// Applies a change while a session may still be logging out.
async fn apply_soon(server: &Server, desired: Config) -> Result<()> {
    let made = server.prepare(desired)?.make(Some(LIMIT)).await?;
    ensure!(made.problems.is_empty(), "{made:?}");
    Ok(())
}

async fn connect(server: &Server, target: &str, lun: u16) -> Result<Unit, SessionError> {
    let portal = server.portals()[0].address();
    let url = format!("iscsi://{portal}/{target}/{lun}").parse().expect("a URL");
    Unit::connect(&url, &SessionOptions::default()).await
}

/// Returns the unit attention that TEST UNIT READY receives, if any.
async fn reported(unit: &Unit) -> Result<Option<(u8, u8)>> {
    let completion = unit.execute(Command::new(&[0; 6], TransferRequest::None)).await?;
    Ok(completion.sense.get(12..14).map(|codes| (codes[0], codes[1])))
}

fn objects(interrupts: &[Interruption]) -> Vec<String> {
    let reported = |one: &Interruption| format!("{} {}", one.object, one.sessions.len());
    interrupts.iter().map(reported).collect()
}

/// Repeats a command after each unit attention, as any initiator does. All sessions of a target are notified of a
/// change.
async fn attentive<T>(
    command: impl AsyncFn() -> Result<T, SessionError>,
) -> Result<T, SessionError> {
    loop {
        match command().await {
            Err(SessionError::CheckCondition(sense)) if sense.key == SenseKey::UnitAttention => {}
            result => return result,
        }
    }
}

/// A client that reads and writes continuously until it is dropped; it fails if an operation fails.
struct Busy {
    unit: Rc<Unit>,
    task: tokio::task::JoinHandle<Result<u64, SessionError>>,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Busy {
    fn begin(unit: Unit) -> Self {
        let unit = Rc::new(unit);
        let (stop, reported) = tokio::sync::watch::channel(false);
        let own = unit.clone();
        let task = tokio::task::spawn_local(async move {
            let mut rounds = 0;
            while !*reported.borrow() {
                let fill = rounds as u8;
                let data = || Buffer::copy_of(&[fill; 4096]);
                attentive(async || own.write(0, data(), false).await).await?;
                let read = attentive(async || own.read(0, 8).await).await?;
                assert!(read.iter().all(|byte| *byte == fill), "another byte than {fill}");
                rounds += 1;
                tokio::task::yield_now().await;
            }
            Ok(rounds)
        });
        Self { unit, task, stop }
    }

    /// Checks that no operation failed, and that at least one succeeded.
    async fn end(self) -> Result<Unit> {
        self.stop.send_replace(true);
        let rounds = self.task.await??;
        ensure!(rounds > 0, "it did nothing");
        Rc::into_inner(self.unit).context("the task has ended")
    }
}

#[test]
fn a_session_goes_on_while_other_volumes_and_targets_come_grow_are_renamed_and_go() -> Result<()> {
    run(async {
        let server = Server::start(config(|_| {})?)?;
        let busy = Busy::begin(connect(&server, A, 0).await?);
        apply(&server, with_target_b("b=ram:2MiB,serial=two,naa=3000000000000002", "b", 3)?)
            .await?;
        let unit = connect(&server, B, 3).await?;
        unit.write(4095, Buffer::copy_of(&[7; 512]), false).await?;

        apply(&server, with_target_b("b=ram:3MiB,serial=two,naa=3000000000000002", "b", 3)?)
            .await?;
        ensure!(reported(&unit).await? == Some((0x2a, 0x09)), "CAPACITY DATA HAS CHANGED");
        ensure!(unit.read_capacity().await?.blocks == 3 * MIB / 512);
        unit.write(3 * MIB / 512 - 1, Buffer::copy_of(&[8; 512]), false).await?;

        // The same disk with another name, extended again.
        apply(&server, with_target_b("c=ram:4MiB,serial=two,naa=3000000000000002", "c", 3)?)
            .await?;
        ensure!(reported(&unit).await? == Some((0x2a, 0x09)));
        ensure!(*unit.read(4095, 1).await? == [7; 512], "another disk");
        ensure!(server.exports()[1].volume == "c" && server.exports()[1].size == 4 * MIB);

        // A session uses the target, so that the server cannot delete it.
        let prepared = server.prepare(config(|_| {})?)?;
        ensure!(objects(prepared.interrupts()) == [format!("target {B} 1")]);
        let refused = prepared.make(None).await.err().context("it was in use")?;
        ensure!(matches!(&refused, ChangeError::InUse(_)), "{refused}");
        ensure!(reported(&unit).await?.is_none(), "it was touched");
        unit.logout().await?;
        apply_soon(&server, config(|_| {})?).await?;
        ensure!(connect(&server, B, 3).await.is_err(), "it is still there");
        ensure!(server.exports().len() == 1);

        let unit = busy.end().await?;
        unit.logout().await?;
        ensure!(server.shutdown(LIMIT).await);
        Ok(())
    })
}

/// Returns a configuration with another volume in target [`B`].
fn with_target_b(volume_text: &str, volume_name: &str, lun: u16) -> Result<Config> {
    config(|config| {
        config.volumes.push(volume(volume_text).expect("a volume"));
        config.targets.push(target(B, &[(lun, volume_name)]));
    })
}

#[test]
fn spc4_6_33_units_that_come_are_announced_and_those_in_use_go_only_by_force() -> Result<()> {
    run(async {
        let server = Server::start(config(|_| {})?)?;
        let first = connect(&server, A, 0).await?;
        apply(&server, config(add_unit_5)?).await?;
        ensure!(reported(&first).await? == Some((0x3f, 0x0e)), "REPORTED LUNS DATA HAS CHANGED");
        ensure!(first.report_luns().await? == [[0; 8], [0, 5, 0, 0, 0, 0, 0, 0]]);
        let second = connect(&server, A, 5).await?;

        let prepared = server.prepare(config(|_| {})?)?;
        ensure!(objects(prepared.interrupts()) == ["volume b 2"], "{:?}", prepared.interrupts());
        // A prepared change that is dropped changes nothing.
        drop(prepared);
        ensure!(reported(&first).await?.is_none() && reported(&second).await?.is_none());
        // The sessions receive a logout request and comply. New sessions do not find the unit.
        apply_soon(&server, config(|_| {})?).await?;
        ensure!(
            reported(&first).await.is_err() && reported(&second).await.is_err(),
            "they are still there"
        );
        ensure!(connect(&server, A, 5).await.is_err(), "it is gone");
        let third = connect(&server, A, 0).await?;
        ensure!(third.report_luns().await? == [[0; 8]]);
        apply(&server, config(add_unit_5)?).await?;
        ensure!(reported(&third).await? == Some((0x3f, 0x0e)));
        ensure!(third.report_luns().await?.len() == 2);
        connect(&server, A, 5).await?.logout().await?;

        let fourth = connect(&server, A, 5).await?;
        let made = server.prepare(config(|_| {})?)?.make(Some(Duration::ZERO)).await?;
        ensure!(made.sessions_ended == 0, "they were ended before");
        ensure!(reported(&third).await.is_err() && reported(&fourth).await.is_err());
        let fifth = connect(&server, A, 0).await?;
        ensure!(fifth.report_luns().await? == [[0; 8]]);
        fifth.logout().await?;
        ensure!(server.shutdown(LIMIT).await);
        Ok(())
    })
}

/// Adds a volume as LUN 5 of target [`A`].
fn add_unit_5(config: &mut Config) {
    config.volumes.push(volume("b=ram:1MiB,serial=two").expect("a volume"));
    config.targets[0].luns.insert(5, "b".into());
}

#[test]
fn a_change_that_cannot_be_opened_leaves_nothing_behind() -> Result<()> {
    run(async {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("new");
        let server = Server::start(config(|_| {})?)?;
        let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = taken.local_addr()?;
        let file_text = format!("b=file:{},size=1MiB,serial=two", file.display());
        let desired = |portal: &str| {
            config(|config| {
                config.listen.push(parse_portal("127.0.0.2:0").expect("a portal"));
                config.listen.push(parse_portal(portal).expect("a portal"));
                config.volumes.push(volume(&file_text).expect("a volume"));
            })
        };
        let error = server.prepare(desired(&address.to_string())?).err().context("it is in use")?;
        ensure!(error.to_string().contains("another program"), "{error}");
        ensure!(!file.exists() && server.portals().len() == 1);
        // A prepared change that is dropped is undone too.
        let prepared = server.prepare(desired("127.0.0.1:0")?)?;
        ensure!(file.exists(), "it was opened");
        drop(prepared);
        ensure!(!file.exists() && server.portals().len() == 1 && server.exports().len() == 1);
        apply(&server, desired("127.0.0.1:0")?).await?;
        ensure!(file.exists() && server.portals().len() == 3);
        // A volume without a target is open: no other server may open it.
        let other = Server::start(config(|config| {
            config.volumes.push(volume(&file_text).expect("a volume"));
        })?);
        ensure!(other.err().is_some_and(|error| error.to_string().contains("in use")));
        ensure!(server.shutdown(LIMIT).await);
        Ok(())
    })
}

/// Returns the first bytes of a file.
fn first_bytes(path: &Path) -> Result<Vec<u8>> {
    Ok(std::fs::read(path)?[..512].to_vec())
}

#[test]
fn change_that_needs_reopen_reopens_volume() -> Result<()> {
    run(async {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("disk");
        let with = |options: &'static str| {
            let text = format!("b=file:{},size=1MiB,serial=two{options}", path.display());
            config(|config| {
                config.volumes.push(volume(&text).expect("a volume"));
                config.targets.push(target(B, &[(0, "b")]));
            })
        };
        let server = Server::start(with("")?)?;
        let busy = Busy::begin(connect(&server, A, 0).await?);
        let unit = connect(&server, B, 0).await?;
        unit.write(0, Buffer::copy_of(&[1; 512]), false).await?;
        let through = || with(",cache=writethrough");
        let prepared = server.prepare(through()?)?;
        ensure!(objects(prepared.interrupts()) == ["volume b 1"]);
        drop(prepared);
        ensure!(*unit.read(0, 1).await? == [1; 512], "it was touched");
        // The written data is present when the volume is opened again.
        apply_soon(&server, through()?).await?;
        ensure!(first_bytes(&path)? == [1; 512]);
        let unit = connect(&server, B, 0).await?;
        unit.write(0, Buffer::copy_of(&[2; 512]), false).await?;
        ensure!(first_bytes(&path)? == [2; 512], "it is not written through");
        // The volume cannot be opened with this error, so the server refuses the change, and no client notices it.
        let failed = server.prepare(with(",fault=lost-write@1000000")?).err();
        ensure!(failed.is_some(), "there is no such block");
        ensure!(*unit.read(0, 1).await? == [2; 512]);
        unit.logout().await?;
        // With another block size the data would be different, so the server refuses at once.
        let error = server.prepare(with(",block-size=4096")?).err().context("refused")?;
        ensure!(error.to_string().contains("leave block-size as it is"), "{error}");
        busy.end().await?.logout().await?;
        ensure!(server.shutdown(LIMIT).await);
        Ok(())
    })
}

#[test]
fn change_that_would_lose_data_is_refused() -> Result<()> {
    run(async {
        let server = Server::start(config(|_| {})?)?;
        for (text, reported) in [
            ("a=ram:512KiB,serial=one", "volume a has 1 MiB and cannot become smaller (512 KiB)"),
            (
                "a=ram:1MiB,serial=one,read-only",
                "volume a is in memory, and what it holds would be lost",
            ),
        ] {
            let desired = config(|config| config.volumes = vec![volume(text).expect("a volume")])?;
            let error = server.prepare(desired).err().context("refused")?.to_string();
            ensure!(error.contains(reported), "{error}");
        }
        ensure!(server.shutdown(LIMIT).await);
        Ok(())
    })
}

#[test]
fn portals_come_go_and_change_while_others_are_used() -> Result<()> {
    run(async {
        let server = Server::start(config(|_| {})?)?;
        let busy = Busy::begin(connect(&server, A, 0).await?);
        apply(&server, with_second_portal(2)?).await?;
        let address = server.portals()[1].address();
        let through = async |address: std::net::SocketAddr| {
            let url = format!("iscsi://{address}/{A}/0").parse().expect("a URL");
            Unit::connect(&url, &SessionOptions::default()).await
        };
        let unit = through(address).await?;
        ensure!(server.target_device(A).and_then(|a| a.access_state(2)).is_some(), "a port of it");
        // Another group is another port: sessions through the old port cannot stay.
        let prepared = server.prepare(with_second_portal(3)?)?;
        ensure!(objects(prepared.interrupts()) == [format!("portal {address} 1")]);
        prepared.make(Some(Duration::ZERO)).await?;
        ensure!(reported(&unit).await.is_err(), "it is still there");
        ensure!(server.portals()[1].address() == address, "the socket stays");
        let unit = through(address).await?;
        let prepared = server.prepare(config(|_| {})?)?;
        let object = prepared.interrupts()[0].object.clone();
        ensure!(object == Object::Portal(address), "{object}");
        prepared.make(Some(Duration::ZERO)).await?;
        ensure!(reported(&unit).await.is_err() && through(address).await.is_err());
        ensure!(server.target_device(A).and_then(|a| a.access_state(3)).is_none());
        busy.end().await?.logout().await?;
        ensure!(server.shutdown(LIMIT).await);
        Ok(())
    })
}

/// Returns a configuration with another portal in this portal group.
fn with_second_portal(group: u16) -> Result<Config> {
    config(|config| {
        let text = format!("127.0.0.2:0,{group}");
        config.listen.push(parse_portal(&text).expect("a portal"));
    })
}

#[test]
fn an_address_changes_hands_between_portals() -> Result<()> {
    run(async {
        // Another program may use the port at another address of this machine. Then another port is taken.
        for _ in 0..20 {
            if an_address_has_changed_hands().await? {
                return Ok(());
            }
        }
        bail!("no port is free at all addresses")
    })
}

/// Lets a portal for all addresses take the port of one, and gives it back. Returns whether nothing else had the port.
async fn an_address_has_changed_hands() -> Result<bool> {
    let server = Server::start(config(|_| {})?)?;
    let port = server.portals()[0].address().port();
    let on = |host: &str| {
        let text = format!("{host}:{port}");
        config(|config| config.listen = vec![parse_portal(&text).expect("a portal")])
    };
    let mut is_free = true;
    for host in ["0.0.0.0", "127.0.0.1"] {
        // A prepared change that is dropped has closed nothing.
        drop(server.prepare(on(host)?)?);
        connect(&server, A, 0).await?.logout().await?;
        let made = server.prepare(on(host)?)?.make(Some(LIMIT)).await?;
        is_free = made.problems.is_empty();
        if !is_free {
            ensure!(format!("{made:?}").contains("uses it"), "{made:?}");
            break;
        }
        ensure!(server.portals()[0].address().ip().is_unspecified() == (host == "0.0.0.0"));
        connect(&server, A, 0).await?.logout().await?;
    }
    ensure!(server.shutdown(LIMIT).await);
    Ok(is_free)
}

#[test]
fn reload_applies_unless_removed_objects_are_in_use() -> Result<()> {
    run(async {
        let server = Server::start(config(add_target_b)?)?;
        let unit = connect(&server, B, 0).await?;
        let refused = server.reload(config(|_| {})?).await.err().context("it is in use")?;
        let words = format!("target {B} (1 session) is in use: log its initiators out first");
        ensure!(refused.to_string().contains(&words), "{refused}");
        ensure!(reported(&unit).await?.is_none(), "it was touched");

        // Sessions that the rules no longer permit end, even if they are active. The other settings need a restart,
        // which is reported.
        let rule = RuleConfig {
            initiator: Some(NamePattern::Exactly("iqn.2026-11.proof:another".into())),
            ..RuleConfig::default()
        };
        let desired = |config: &mut Config| {
            add_target_b(config);
            config.cores = NonZeroUsize::new(1);
            config.limits.sessions = Limit::new(1).expect("in its range");
            config.targets[1].allow = vec![rule.clone()];
        };
        let made = server.reload(config(desired)?).await?;
        let expected = ChangeOutcome {
            needs_restart: vec!["cores"],
            sessions_ended: 1,
            ..ChangeOutcome::default()
        };
        ensure!(made == expected, "{made:?}");
        ensure!(reported(&unit).await.is_err() && connect(&server, B, 0).await.is_err());
        let only = connect(&server, A, 0).await?;
        ensure!(connect(&server, A, 0).await.is_err(), "limits.sessions is 1");
        only.logout().await?;
        // A second reload reports again that the setting needs a restart.
        ensure!(server.reload(config(desired)?).await?.needs_restart == ["cores"]);
        ensure!(server.shutdown(LIMIT).await);
        Ok(())
    })
}

/// Adds a volume in target [`B`].
fn add_target_b(config: &mut Config) {
    config.volumes.push(volume("b=ram:1MiB,serial=two").expect("a volume"));
    config.targets.push(target(B, &[(0, "b")]));
}

#[test]
fn ten_thousand_volumes_come_in_one_change_and_one_more_comes_at_once() -> Result<()> {
    run(async {
        let server = Server::start(config(|_| {})?)?;
        let changes = [10_000, 10_001, 10_000, 0].map(with_volumes);
        for desired in changes {
            let (desired, begun) = (desired?, time::now());
            let volumes = desired.volumes.len() - 1;
            let prepared = server.prepare(desired)?;
            let prepared_in = begun.elapsed();
            prepared.make(None).await?;
            let made_in = begun.elapsed();
            println!("{volumes} volumes: prepared in {prepared_in:?}, made in {made_in:?}");
            ensure!(server.exports().len() == volumes + 1);
        }
        ensure!(server.shutdown(LIMIT).await);
        Ok(())
    })
}

/// Returns a configuration with `count` more volumes, each in its own target.
fn with_volumes(count: usize) -> Result<Config> {
    config(|config| {
        for number in 0..count {
            let name = format!("v{number}");
            let text = format!("{name}=ram:1MiB,serial=s{number}");
            config.volumes.push(volume(&text).expect("a volume"));
            let iqn = format!("iqn.2026-11.proof:{name}");
            config.targets.push(target(&iqn, &[(0, &name)]));
        }
    })
}
