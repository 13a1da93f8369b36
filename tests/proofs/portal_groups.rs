//! Two portal groups for one unit: two ports of its target, each with its own access state.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command as Process;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_block::{Buffer, Extent, Store as _};
use sarsen_initiator::{
    Command, IscsiStore, Sense, SenseKey, SessionOptions, TransferRequest, Unit,
};
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, process};
use sarsen_wire::iscsi::{BasicHeader, LoginResponse, LoginStatus, RawHeader};

use crate::client::{self, LIMIT, encode, login_request, run};

const MIB: u64 = 1 << 20;
const NAME: &str = "scratch";
const OPTIMIZED: u8 = 0;
const STANDBY: u8 = 2;

/// Starts a server; returns both paths to the volume.
fn serve() -> Result<(Serving, [Url; 2])> {
    let serving = Serving::start_on_two_portals(&[Volume::new(NAME, Backing::Ram, 8 * MIB)])?;
    let paths = serving.paths(NAME)?;
    let groups: Vec<u16> = paths.iter().map(|(group, _)| *group).collect();
    ensure!(groups == [1, 2], "discovery tells of the groups {groups:?}");
    let urls: Vec<Url> = paths.into_iter().map(|(_, url)| url).collect();
    Ok((serving, urls.try_into().expect("two")))
}

async fn unit(url: &Url) -> Result<Unit> {
    Ok(Unit::connect(&url.to_string().parse()?, &SessionOptions::default()).await?)
}

/// Returns the sense data of a command that is not GOOD.
async fn sense(unit: &Unit, cdb: &[u8], transfer: TransferRequest) -> Result<Option<Sense>> {
    let completion = unit.execute(Command::new(cdb, transfer)).await?;
    match completion.status {
        0 => Ok(None),
        status => Ok(Some(Sense::parse(&completion.sense).with_context(|| format!("{status}"))?)),
    }
}

async fn test_unit_ready(unit: &Unit) -> Result<Option<(SenseKey, u8, u8)>> {
    let sense = sense(unit, &[0; 6], TransferRequest::None).await?;
    Ok(sense.map(|sense| (sense.key, sense.asc, sense.ascq)))
}

async fn set_target_port_group(unit: &Unit, group: u8, state: u8) -> Result<()> {
    let list = Buffer::copy_of(&[0, 0, 0, 0, state, 0, 0, group]);
    let cdb = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
    let refused = sense(unit, &cdb, TransferRequest::Write(list)).await?;
    ensure!(refused.is_none(), "SET TARGET PORT GROUPS: {refused:?}");
    Ok(())
}

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// Returns the text keys at the end of a login.
fn login_text(url: &Url) -> Result<String> {
    let mut stream = TcpStream::connect(&url.portal)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let keys =
        format!("InitiatorName=iqn.2026-11.proof:x\0TargetName={}\0SessionType=Normal\0", url.iqn);
    stream.write_all(&encode(login_request([0x80, 0, 0, 0, 0, 1]), keys.as_bytes()))?;
    let mut header = RawHeader::ZERO;
    stream.read_exact(&mut header.0)?;
    ensure!(LoginResponse::view(&header).status() == LoginStatus::Success);
    let length = BasicHeader::from(header).data_segment_length.value() as usize;
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    Ok(String::from_utf8(text)?)
}

#[test]
fn rfc7143_4_4_1_each_portal_group_is_a_port_of_its_own_to_one_unit() -> Result<()> {
    let (serving, urls) = serve()?;
    let mut names = Vec::new();
    for (number, url) in [1, 2].into_iter().zip(&urls) {
        let text = login_text(url)?;
        let tag = format!("TargetPortalGroupTag={number}");
        ensure!(text.split('\0').any(|pair| pair == tag), "{text:?}");

        let mut standard = Process::new("iscsi-inq");
        let standard = process::output(standard.arg(url.to_string()), LIMIT)?;
        for line in ["TPGS:3", "MultiP:1"] {
            ensure!(standard.lines().any(|said| said == line), "no {line} in\n{standard}");
        }
        let mut page = Process::new("iscsi-inq");
        page.args(["--evpd", "1", "--pagecode", "131"]).arg(url.to_string());
        let page = process::output(&mut page, LIMIT)?;
        let port = format!("{},t,0x000{number}", url.iqn);
        ensure!(page.contains(&port), "no port {port} in\n{page}");

        let (name, data) = run(async {
            let unit = unit(url).await?;
            let name = unit.naa().await?.context("a name of the unit")?;
            let data = unit.inquiry_data(Some(0x83)).await?;
            unit.logout().await?;
            Ok((name, data))
        })?;
        names.push(name);
        // The relative target port and the target port group.
        for kind in [0x94, 0x95] {
            let designator = [0x51, kind, 0, 4, 0, 0, 0, number];
            ensure!(data.windows(8).any(|bytes| bytes == designator), "{:02x?}", &data[..]);
        }
    }
    ensure!(names[0] == names[1], "two names: {names:?}");
    serving.stop()
}

#[test]
fn spc4_5_15_2_8_a_session_brings_the_other_path_into_standby_and_back() -> Result<()> {
    let (serving, [one, two]) = serve()?;
    run(async {
        let (one, two) = (unit(&one).await?, unit(&two).await?);
        let block = || TransferRequest::Write(Buffer::copy_of(&[7; 512]));
        ensure!(sense(&two, &WRITE, block()).await?.is_none());

        set_target_port_group(&one, 2, STANDBY).await?;
        let changed = Some((SenseKey::UnitAttention, 0x2a, 0x06));
        ensure!(test_unit_ready(&two).await? == changed, "the other session was not told");
        ensure!(test_unit_ready(&one).await?.is_none(), "who asked was told");
        let commands = [(&READ, TransferRequest::Read(512)), (&WRITE, block()), (&WRITE, block())];
        for (cdb, transfer) in commands {
            let reported = sense(&two, cdb, transfer).await?.context("I/O on a path in standby")?;
            let in_standby = (SenseKey::NotReady, 0x04, 0x0b);
            ensure!((reported.key, reported.asc, reported.ascq) == in_standby, "{reported}");
        }
        ensure!(sense(&one, &WRITE, block()).await?.is_none(), "the path that is left");
        ensure!(one.read(0, 1).await?[..] == [7; 512]);

        // The command uses the path in standby itself.
        set_target_port_group(&two, 2, OPTIMIZED).await?;
        ensure!(test_unit_ready(&one).await? == changed);
        ensure!(two.read(0, 1).await?[..] == [7; 512]);
        one.logout().await?;
        Ok(two.logout().await?)
    })
    .with_context(|| serving.log())?;
    serving.stop()
}

/// Where initiators may change the states, a store makes a group active that it needs. Where they may not, it waits in vain.
#[test]
fn spc4_5_15_2_7_a_store_without_an_active_path_makes_one_active() -> Result<()> {
    for (alua, is_read) in [("", true), ("alua = \"implicit\"\n", false)] {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("sarsen.toml");
        let target = "iqn.2026-11.proof:standby";
        fs::write(
            &path,
            format!(
                "listen = [\"127.0.0.1:0,7\"]\n[[target]]\nname = \"{target}\"\nluns = [\"{NAME}\"]\n\
                 access = {{ 1 = \"standby\", 7 = \"unavailable\" }}\n{alua}"
            ),
        )?;
        let serial = format!("serial=standby-{}", std::process::id());
        let volume = Volume::new(NAME, Backing::Ram, 8 * MIB).option(&serial);
        let configuration = path.to_str().context("a path of text")?;
        let serving = Serving::start_with(&[volume], &["--config", configuration])?;
        let read = run(async {
            let reconnect_limit = Some(if is_read { LIMIT } else { 3 * Duration::from_secs(1) });
            let options = SessionOptions { reconnect_limit, ..SessionOptions::default() };
            let connected = IscsiStore::connect(&client::url(&serving, NAME)?, &options).await;
            let Ok(store) = connected else { return Ok(false) };
            let read = store.read(Extent::new(0, 1)).wait().await.is_ok();
            store.logout().await?;
            Ok(read)
        })?;
        ensure!(read == is_read, "{alua}{}", serving.log());
        serving.stop()?;
    }
    Ok(())
}

#[test]
fn a_target_begins_in_the_states_of_its_configuration() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("sarsen.toml");
    let target = "iqn.2026-11.proof:disks";
    fs::write(
        &path,
        format!(
            "listen = [\"127.0.0.1:0,7\"]\n[[target]]\nname = \"{target}\"\nluns = [\"{NAME}\"]\n\
             access = {{ 7 = \"non-optimized\", 1 = \"optimized\" }}\npreferred = 1\nalua = \"implicit\"\n"
        ),
    )?;
    let volume = Volume::new(NAME, Backing::Ram, 8 * MIB);
    let configuration = path.to_str().context("a path of text")?;
    let serving = Serving::start_with(&[volume], &["--config", configuration])?;
    let groups: Vec<u16> = serving.paths(NAME)?.iter().map(|(group, _)| *group).collect();
    ensure!(groups == [1, 7], "{groups:?}");
    ensure!(serving.url(NAME).iqn == target);
    let (standard, report) = run(async {
        let unit = client::unit(&serving, NAME).await?;
        let cdb = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        let answer = unit.command(Command::new(&cdb, TransferRequest::Read(256))).await?;
        let standard = unit.inquiry_data(None).await?;
        unit.logout().await?;
        Ok((standard, answer.data.context("parameter data")?))
    })?;
    let states = |at: usize| (report[at], u16::from_be_bytes([report[at + 2], report[at + 3]]));
    ensure!(report[..4] == [0, 0, 0, 24], "{:02x?}", &report[..]);
    // TPGS: implicit only.
    ensure!(standard[5] & 0x30 == 0x10, "{:02x?}", &standard[..]);
    ensure!((states(4), states(16)) == ((0x80, 1), (0x01, 7)), "{:02x?}", &report[..]);
    serving.stop()
}
