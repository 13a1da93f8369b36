//! Import from other target programs. The disks' properties and the access rules stay the same for clients when this
//! program serves the imported configuration.

mod attempt;
mod documented;
mod examples;
mod kernel;
pub(crate) mod servers;

use std::fs;

use anyhow::{Result, ensure};
use sarsen_proof::process;

use crate::client::LIMIT;
use attempt::{ANYBODY, Attempt, SATURN};
use servers::{applied, carry_out, compare, images, moved, peer};

#[test]
fn tgtd_import_keeps_identities_and_access() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let files = images(folder, &["z", "a", "named", "near", "far"])?;
    let file = folder.join("targets.conf");
    fs::write(
        &file,
        format!(
            "<target iqn.2026-11.proof:plain>\nbacking-store {z}\nbacking-store {a}\n\
             write-cache off\n</target>\n\
             <target iqn.2026-11.proof:named>\ncontroller_tid 9\n<backing-store {named}>\nlun 3\n\
             scsi_sn SN-0815\nscsi_id \"ACME    0815abcd\"\nvendor_id ACME\n\
             product_id Fast_Disk\nproduct_rev 2.1\n</backing-store>\n\
             incominguser web secretpass12\noutgoinguser san secretpass34\n</target>\n\
             <target iqn.2026-11.proof:near>\nbacking-store {near}\n\
             initiator-address 127.0.0.0/8\n</target>\n\
             <target iqn.2026-11.proof:far>\nbacking-store {far}\n\
             initiator-address 192.0.2.0/24\ninitiator-name {SATURN}\n</target>\n",
            z = files["z"].display(),
            a = files["a"].display(),
            named = files["named"].display(),
            near = files["near"].display(),
            far = files["far"].display(),
        ),
    )?;
    let socket = folder.join("socket");
    let tgtd = peer("tgtd", &folder.join("tgtd.log"), |command, port| {
        command.args(["-f", "-C", "0", "--iscsi", &format!("portal=127.0.0.1:{port}")]);
        command.env("TGT_IPC_SOCKET", &socket);
        Ok(())
    })?;
    let mut admin = process::command("tgt-admin")?;
    admin.args(["-C", "0", "--execute", "--conf"]).arg(&file).env("TGT_IPC_SOCKET", &socket);
    process::output(&mut admin, LIMIT)?;

    let plain = |lun| Attempt::new("iqn.2026-11.proof:plain", lun);
    let named = || Attempt::new("iqn.2026-11.proof:named", 3);
    let attempts = [
        plain(1),
        plain(2),
        named(),
        named().by("web", "secretpass12"),
        named().by("web", "secretpass13"),
        named().by("else", "secretpass12"),
        named().by("web", "secretpass12").of("san", "secretpass34"),
        named().by("web", "secretpass12").of("san", "secretpass12"),
        Attempt::new("iqn.2026-11.proof:near", 1),
        Attempt::new("iqn.2026-11.proof:far", 1),
        Attempt::new("iqn.2026-11.proof:far", 1).from(SATURN),
        Attempt::new("iqn.2026-11.proof:none", 1),
    ];
    let mut before = carry_out(&attempts, &[tgtd.port])?;
    // LUN 0 is tgt's controller.
    before.iter_mut().flatten().for_each(|known| known.luns.retain(|lun| *lun != 0));
    drop(tgtd);
    let sarsen = moved(folder, "tgt", &file)?;
    let count = compare(&before, &attempts, &[sarsen.port])?;
    drop(sarsen);
    let text = fs::read_to_string(&file)?;
    let sarsen = applied(folder, "tgt", "targets.conf", 0, |_| text.clone())?;
    compare(&before, &attempts, &sarsen.ports)?;
    ensure!(count == 6, "{count} got in: {before:#?}");
    Ok(())
}

#[test]
fn istgt_import_keeps_identities_and_access() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let files = images(folder, &["one", "two", "three"])?;
    let file = folder.join("istgt.conf");
    let account = "[AuthGroup1]\n  Auth \"web\" \"secretpass12\" \"san\" \"secretpass34\"\n";
    fs::write(folder.join("auth.conf"), account)?;
    let istgt = peer("istgt", &folder.join("istgt.log"), |command, port| {
        let here = folder.display();
        let text = format!(
            "[Global]\nNodeBase \"iqn.2026-11.proof\"\nPidFile \"{here}/pid\"\n\
             AuthFile \"{here}/auth.conf\"\nMediaDirectory \"{here}\"\nLogFacility \"local7\"\n\
             DiscoveryAuthMethod None\nMaxSessions 16\nMaxConnections 4\n\
             [UnitControl]\nAuthMethod None\nAuthGroup None\n\
             [PortalGroup1]\nPortal DA1 127.0.0.1:{port}\n\
             [InitiatorGroup1]\nInitiatorName \"ALL\"\nNetmask ALL\n\
             [InitiatorGroup2]\nInitiatorName \"{SATURN}\"\nNetmask 127.0.0.0/8\n\
             [LogicalUnit1]\nTargetName one\nMapping PortalGroup1 InitiatorGroup1\n\
             AuthMethod None\nUnitType Disk\nUnitInquiry \"ACME\" \"Disk\" \"0123\" \"4711\"\n\
             LUN0 Storage {one} Auto\nLUN1 Storage {two} Auto\n\
             [LogicalUnit7]\nTargetName seven\nMapping PortalGroup1 InitiatorGroup2\n\
             AuthMethod CHAP\nAuthGroup AuthGroup1\nUnitType Disk\nLUN0 Storage {three} Auto\n",
            one = files["one"].display(),
            two = files["two"].display(),
            three = files["three"].display(),
        );
        fs::write(&file, text)?;
        command.arg("-D").arg("-c").arg(&file);
        Ok(())
    })?;
    let seven = || Attempt::new("iqn.2026-11.proof:seven", 0).from(SATURN);
    let attempts = [
        Attempt::new("iqn.2026-11.proof:one", 0),
        Attempt::new("iqn.2026-11.proof:one", 1),
        seven(),
        seven().by("web", "secretpass12"),
        seven().by("web", "secretpass12").from(ANYBODY),
        seven().by("web", "secretpass13"),
        seven().by("web", "secretpass12").of("san", "secretpass34"),
        seven().by("web", "secretpass12").of("san", "secretpass35"),
    ];
    let before = carry_out(&attempts, &[istgt.port])?;
    let listened = format!("127.0.0.1:{}", istgt.port);
    drop(istgt);
    let sarsen = moved(folder, "istgt", &file)?;
    let count = compare(&before, &attempts, &[sarsen.port])?;
    drop(sarsen);
    let text = fs::read_to_string(&file)?;
    let sarsen = applied(folder, "istgt", "istgt.conf", 1, |ports| {
        // The paths of its account files are absolute.
        text.replace(&listened, &format!("127.0.0.1:{}", ports[0]))
    })?;
    compare(&before, &attempts, &sarsen.ports)?;
    ensure!(count == 4, "{count} got in: {before:#?}");
    Ok(())
}
