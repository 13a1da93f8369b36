//! The output of `tgtadm --op show`. Every space is significant, since scripts parse it with sed, grep and regular
//! expressions.

use std::borrow::Cow;
use std::fmt::Write as _;

use sarsen_node::model::document::{Rule, Target, Volume};
use sarsen_node::model::{CacheMode, StoreKind};
use sarsen_node::schema::{Connection, Session};
use sarsen_scsi::Designator;

use super::change::is_deny_all;
use super::{Failure, ServerView, number};

/// The output of `--mode sys`.
pub(super) const SYSTEM: &str = "System:
    State: ready
    debug: off
LLDs:
    iscsi: ready
Backing stores:
    sg
    null
    rdwr (bsoflags sync:direct)
    aio
Device types:
    disk
    cd/dvd
    passthrough
iSNS:
    iSNS=Off
    iSNSServerIP=
    iSNSServerPort=3205
    iSNSAccessControl=Off";

/// `--mode target`: all targets, or one.
pub(super) fn targets(world: &ServerView, tid: Option<u32>) -> Result<String, Failure> {
    let mut targets: Vec<&Target> = match tid {
        Some(_) => vec![world.target(tid)?],
        None => world.document.target.iter().collect(),
    };
    targets.sort_by_key(|target| number(target));
    Ok(targets.into_iter().map(|one| target(world, one)).collect())
}

fn target(world: &ServerView, target: &Target) -> String {
    let tid = number(target);
    let mut text = format!(
        "Target {tid}: {}\n    System information:\n        Driver: iscsi\n        State: ready\n    \
         I_T nexus information:\n",
        target.name
    );
    for session in sessions(world, target) {
        let _ = writeln!(text, "        I_T nexus: {}", session.tsih);
        let _ = writeln!(text, "            Initiator: {} alias: none", plain(&session.initiator));
        for connection in &session.connections {
            let _ = writeln!(text, "            Connection: {}", connection.cid);
            let _ = writeln!(text, "                IP Address: {}", address(connection));
        }
    }
    text += "    LUN information:\n";
    text += &unit(&Unit::controller(tid));
    for (lun, name) in target.luns.iter() {
        let volume = world.document.volume.iter().find(|volume| volume.name == *name);
        let served = world.volumes.iter().find(|volume| volume.name == *name);
        // The output omits LUN 0 of other tools' targets, since scripts expect the controller there.
        if let Some(volume) = volume.filter(|_| *lun != 0) {
            let size = served.map_or(0, |served| served.size_bytes);
            text += &unit(&Unit::of(*lun, volume, size));
        }
    }
    text += "    Account information:\n";
    for account in &target.chap {
        let _ = writeln!(text, "        {account}");
    }
    if let Some(own) = &target.own_account {
        let _ = writeln!(text, "        {own} (outgoing)");
    }
    text += "    ACL information:\n";
    if target.allow.is_empty() {
        text += "        ALL\n";
    }
    for rule in target.allow.iter().filter(|rule| !is_deny_all(rule)) {
        let _ = writeln!(text, "        {}", acl_entry(rule));
    }
    text
}

/// Formats the initiators of a rule in tgtadm's words.
pub(super) fn acl_entry(rule: &Rule) -> String {
    let address = rule.address.map(|address| address.to_string());
    let named = address.or_else(|| Some(rule.initiator.as_ref()?.to_string()));
    named.or_else(|| rule.host.clone()).unwrap_or_else(|| "ALL".to_owned())
}

fn sessions<'a>(world: &'a ServerView, target: &'a Target) -> impl Iterator<Item = &'a Session> {
    world.sessions.iter().filter(|session| session.target.as_deref() == Some(&target.name))
}

fn address(connection: &Connection) -> &str {
    let host = connection.peer.rsplit_once(':').map_or(connection.peer.as_str(), |(host, _)| host);
    host.trim_matches(['[', ']'])
}

struct Unit<'a> {
    lun: u16,
    kind: &'static str,
    scsi_id: String,
    serial: String,
    size: u64,
    block_size: usize,
    removable: bool,
    read_only: bool,
    store: &'static str,
    path: Cow<'a, str>,
    flags: &'static str,
}

impl<'a> Unit<'a> {
    fn controller(tid: u32) -> Self {
        Self {
            lun: 0,
            kind: "controller",
            scsi_id: format!("IET     {tid:04x}0000"),
            serial: format!("beaf{tid}0"),
            size: 0,
            block_size: 1,
            removable: false,
            read_only: false,
            store: "null",
            path: "None".into(),
            flags: "",
        }
    }

    fn of(lun: u16, volume: &'a Volume, size: u64) -> Self {
        let t10 = volume.designators.iter().find_map(|designator| match designator {
            Designator::T10(text) => Some(text.clone()),
            Designator::Naa(_) | Designator::Eui(_) | Designator::Name(_) => None,
        });
        let (kind, store) = match volume.store {
            StoreKind::Iso => ("cd/dvd", "rdwr"),
            StoreKind::Sg => ("passthrough", "sg"),
            StoreKind::File | StoreKind::Pool | StoreKind::Remote => ("disk", "rdwr"),
            StoreKind::Ram | StoreKind::Null => ("disk", "null"),
        };
        let flags = match volume.cache {
            Some(CacheMode::None) => "direct",
            Some(CacheMode::DirectSync) => "sync direct",
            _ => "",
        };
        let serial = volume.serial.clone().unwrap_or_default();
        Self {
            lun,
            kind,
            scsi_id: t10.unwrap_or_else(|| serial.clone()),
            serial,
            size,
            block_size: volume.block_size.unwrap_or_default().bytes(),
            removable: volume.removable,
            read_only: volume.read_only,
            store,
            path: volume.path.as_ref().map_or("None".into(), |path| path.to_string_lossy()),
            flags,
        }
    }
}

fn unit(unit: &Unit<'_>) -> String {
    let yes = |is: bool| if is { "Yes" } else { "No" };
    format!(
        "        LUN: {}\n            Type: {}\n            SCSI ID: {}\n            SCSI SN: {}\n            \
         Size: {} MB, Block size: {}\n            Online: Yes\n            Removable media: {}\n            \
         Prevent removal: No\n            Readonly: {}\n            SWP: No\n            \
         Thin-provisioning: No\n            Backing store type: {}\n            Backing store path: {}\n            \
         Backing store flags: {}\n",
        unit.lun,
        unit.kind,
        unit.scsi_id,
        unit.serial,
        unit.size / 1_000_000,
        unit.block_size,
        yes(unit.removable),
        yes(unit.read_only),
        unit.store,
        unit.path,
        unit.flags,
    )
}

/// Returns the output of `--mode account`.
pub(super) fn accounts(world: &ServerView) -> String {
    let names = world.document.account.iter().map(|account| format!("    {}\n", account.name));
    format!("Account list:\n{}", names.collect::<String>())
}

/// Returns the output of `--mode conn`.
pub(super) fn connections(world: &ServerView, tid: Option<u32>) -> Result<String, Failure> {
    let target = world.target(tid)?;
    let mut text = String::new();
    for session in sessions(world, target) {
        let _ = writeln!(text, "Session: {}", session.tsih);
        for connection in &session.connections {
            let _ = writeln!(text, "    Connection: {}", connection.cid);
            let _ = writeln!(text, "        Initiator: {}", plain(&session.initiator));
            let _ = writeln!(text, "        IP Address: {}", address(connection));
        }
    }
    Ok(text)
}

/// Returns the output of `--mode portal`.
pub(super) fn portals(world: &ServerView) -> String {
    world
        .document
        .portal
        .iter()
        .map(|portal| format!("Portal: {},{}\n", portal.address, portal.group()))
        .collect()
}

/// Returns a name that does not break its line.
fn plain(name: &str) -> String {
    name.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use sarsen_node::model::Document;
    use sarsen_node::model::document::Luns;

    use super::*;

    #[test]
    fn a_target_is_shown_as_scripts_expect_it() {
        let volume = Volume {
            name: "tgt-7-1".into(),
            store: StoreKind::File,
            path: Some("/dev/vg/x".into()),
            serial: Some("beaf71".into()),
            designators: vec![Designator::T10("IET     00070001".into())],
            cache: Some(CacheMode::DirectSync),
            ..Volume::default()
        };
        let target = Target {
            name: "iqn.2026-11.x:a".into(),
            tid: Some(7),
            luns: Luns([(1, "tgt-7-1".to_owned())].into()),
            chap: vec!["web".into()],
            own_account: Some("san".into()),
            allow: vec![
                Rule { address: Some("10.0.0.1".parse().expect("an address")), ..Rule::default() },
                Rule::default(),
            ],
            ..Target::default()
        };
        let document =
            Document { target: vec![target], volume: vec![volume], ..Document::default() };
        let world = ServerView { revision: 1, document, volumes: Vec::new(), sessions: Vec::new() };
        let text = targets(&world, Some(7)).expect("it is there");
        for line in [
            "Target 7: iqn.2026-11.x:a",
            "        State: ready",
            "        LUN: 0",
            "            SCSI ID: IET     00070000",
            "        LUN: 1",
            "            Type: disk",
            "            SCSI ID: IET     00070001",
            "            SCSI SN: beaf71",
            "            Backing store path: /dev/vg/x",
            "            Backing store flags: sync direct",
            "        web",
            "        san (outgoing)",
            "        10.0.0.1",
            "        ALL",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
        }
        assert!(matches!(targets(&world, Some(8)), Err(Failure::NoTarget)));
    }
}
