//! The examples of Debian's tgt: the program imports a part of each, and reports the rest.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::{process, program};
use serde_json::Value;

use crate::client::LIMIT;

const FOLDER: &str = "/usr/share/doc/tgt/examples";

/// Imports an example; returns the document, and each loss as `LINE: what`.
fn import(name: &str) -> Result<(Value, Vec<String>)> {
    const DEGRADED: i32 = 5;
    let file = Path::new(FOLDER).join(name);
    let mut command = Command::new(program::path()?);
    command.args(["import", "tgt", "--json"]).arg(&file);
    let finished = process::finish(&mut command, LIMIT)?;
    let code = finished.status.and_then(|status| status.code());
    ensure!(code == Some(DEGRADED), "{code:?}: {}", finished.output);
    let line = finished.output.lines().next().context("an answer")?;
    let answer: Value = serde_json::from_str(line)?;
    let reported = answer["not_carried"].as_array().context("what was not carried")?;
    let lost = reported.iter().filter(|one| one["weight"] == "loss").map(|one| {
        let [place, what] = ["place", "what"].map(|key| one[key].as_str().unwrap_or_default());
        let place = place.rsplit(':').next().unwrap_or_default();
        format!("{place}: {what}")
    });
    Ok((answer["document"].clone(), lost.collect()))
}

#[test]
fn tgt_example_is_imported_and_lost_fields_are_reported() -> Result<()> {
    let (document, lost) = import("targets.conf.example")?;
    let mut expected = vec![
        device_key_loss(44, "vendor_id", "/dev/sdd"),
        device_key_loss(66, "product_id", "/dev/sdb"),
        device_key_loss(67, "product_id", "/dev/sdc"),
        device_key_loss(68, "product_id", "/dev/sdd"),
        device_key_loss(100, "product_id", "/dev/sdd"),
        device_key_loss(107, "product_id", "/dev/sda"),
        second_target_loss(67, "sdc", 4, 4),
        second_target_loss(68, "sdd", 5, 4),
        second_target_loss(100, "sdd", 1, 5),
        second_target_loss(191, "somedevice", 10, 6),
        second_target_loss(200, "somedevice", 1, 7),
        second_target_loss(205, "somedevice", 1, 8),
        second_target_loss(209, "somedevice2", 2, 8),
        second_target_loss(221, "somedevice", 1, 9),
        "182: the account userA".to_owned(),
    ];
    let mut lost = lost;
    lost.sort();
    expected.sort();
    ensure!(lost == expected, "{lost:#?}");
    let targets = document["target"].as_array().context("targets")?;
    ensure!(targets.len() == 9, "{targets:#?}");
    ensure!(targets[2]["luns"]["3"] == "somedevice3", "{targets:#?}");
    ensure!(targets[4]["chap"] == serde_json::json!(["user1", "user2"]), "{targets:#?}");
    ensure!(targets[4]["allow"][1]["address"] == "192.168.200.5", "{targets:#?}");
    let volumes = document["volume"].as_array().context("volumes")?;
    let volume = |name: &str| volumes.iter().find(|volume| volume["name"] == name);
    let third = volume("somedevice3").context("a volume")?;
    ensure!(third["cache"] == "writethrough" && third["vendor"] == "MyCompan", "{third}");
    ensure!(volume("sdb1").context("a volume")?["serial"] == "SERIAL", "{volumes:#?}");
    Ok(())
}

/// Returns the loss of a device's further target: tgt serves a device through every target that names it, and after the
/// import only the first of them has the volume.
fn second_target_loss(line: u16, volume: &str, lun: u16, target: u16) -> String {
    const TARGET: &str = "iqn.2008-09.com.example:server.target";
    format!("{line}: volume {volume} as LUN {lun} of {TARGET}{target}, too")
}

/// Returns the loss of a key whose value tgt-admin gets from the device.
fn device_key_loss(line: u16, key: &str, device: &str) -> String {
    format!("{line}: {key} of {device}, which tgt-admin read from the device")
}

#[test]
fn tgt_tape_libraries_are_reported_as_lost() -> Result<()> {
    let tape = |line, path: &str| device_type_loss(line, &format!("/root/tapes/{path}"), "tape");
    let changer = |line| device_type_loss(line, "/root/smc", "changer");
    let l700 = vec![changer(57), tape(27, "notape1"), tape(37, "notape2"), tape(47, "notape3")];
    let msl2024 = vec![changer(38), tape(24, "notape")];
    for (name, expected) in [("targets.conf.vtl.L700", l700), ("targets.conf.vtl.MSL2024", msl2024)]
    {
        let (document, lost) = import(name)?;
        ensure!(lost == expected, "{name}: {lost:#?}");
        ensure!(document.get("volume").is_none(), "{name}: {document}");
    }
    Ok(())
}

fn device_type_loss(line: u16, path: &str, device_type: &str) -> String {
    format!("{line}: {path} as device-type {device_type}, bs-type rdwr")
}
