//! The program reports invalid input with the error, its location and the remedy, and never starts partially. If the
//! backing of a volume fails while it is served, only the clients of that volume see an error.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use sarsen_block::Buffer;
use sarsen_initiator::{Sense, SenseKey, SessionError, Unit};
use sarsen_proof::{Backing, Serving, Volume, process, program};

use crate::client::{self, LIMIT};

/// Exit code for wrong arguments or configuration.
const USAGE: i32 = 2;
/// Exit code for a named object that does not exist.
const NOT_FOUND: i32 = 3;
/// Exit code for a named object that is in use.
const CONFLICT: i32 = 4;

const MIB: u64 = 1 << 20;

/// Runs `sarsen serve`, which must refuse these arguments with this exit code; returns its output.
fn refused(arguments: &[&str], code: i32) -> Result<String> {
    let mut command = Command::new(program::path()?);
    command.args(["serve", "--json"]).args(arguments);
    let finished = process::finish(&mut command, LIMIT)?;
    let said = finished.output;
    let status = finished.status.with_context(|| format!("{arguments:?} is served:\n{said}"))?;
    ensure!(status.code() == Some(code), "{arguments:?} ended with {status}, not {code}:\n{said}");
    ensure!(!said.contains("\"volumes\""), "{arguments:?} was announced:\n{said}");
    Ok(said)
}

fn says(said: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(said.contains(part), "it does not say {part:?}, but:\n{said}");
    }
    Ok(())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ASCII")
}

/// An unused port, for a server that must not start.
const ANY_PORT: &str = "127.0.0.1:0";

#[test]
fn error_in_file_names_line_key_and_nearest_key() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("sarsen.toml");
    let volume = "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1MiB\"\n";
    for (toml, reported) in [
        (format!("lisen = [\"{ANY_PORT}\"]\n{volume}"), vec![":1", "lisen", "listen?"]),
        (format!("{volume}blok-size = 512\n"), vec![":5", "blok-size", "block-size?"]),
        (volume.replace("ram", "rma"), vec![":3", "rma", "ram?"]),
        (volume.replace("1MiB", "some"), vec![":4", "some", "10GiB"]),
        (format!("{volume}[[target]]\nname = \"disks\"\nluns = [\"a\"]\n"), vec!["disks"]),
        (format!("{volume}size = \"2MiB\"\n"), vec![":5"]),
    ] {
        fs::write(&path, &toml)?;
        let said = refused(&["--config", text(&path)], USAGE)?;
        says(&said, &reported)?;
        if reported[0].starts_with(':') {
            says(&said, &[&format!("sarsen.toml{}", reported[0])])?;
        }
    }
    let missing = folder.path().join("missing.toml");
    says(&refused(&["--config", text(&missing)], NOT_FOUND)?, &["missing.toml", "No such file"])
}

#[test]
fn error_in_flag_names_flag() -> Result<()> {
    for (spec, reported) in [
        ("a=ram:1000", "multiple"),
        ("a=ram:0", "not zero"),
        ("a=ram:lots", "not a size"),
        ("a=ram:1MiB,cach=none", "cache?"),
        ("a=rma:1MiB", "ram?"),
        ("scratch", "NAME=ram:SIZE"),
    ] {
        let said = refused(&["--listen", ANY_PORT, "--volume", spec], USAGE)?;
        says(&said, &[spec, reported])?;
    }
    says(&refused(&["--listen", ANY_PORT], USAGE)?, &["no volume", "--volume"])?;
    says(&refused(&["--listen", "here", "--volume", "a=ram:1MiB"], USAGE)?, &["--listen", "here"])
}

#[test]
fn a_missing_file_is_not_found_and_not_made() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("absent.img");
    let spec = format!("data=file:{}", text(&path));
    let said = refused(&["--listen", ANY_PORT, "--volume", &spec], NOT_FOUND)?;
    says(&said, &["data", "absent.img"])?;
    ensure!(!path.exists(), "it was made, without a size");
    Ok(())
}

fn file_volume(path: &Path) -> Volume {
    Volume::new("data", Backing::File(path.into()), MIB)
}

#[test]
fn a_file_that_another_server_has_is_in_use() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("shared.img");
    let first = Serving::start_with(&[file_volume(&path)], &[])?;
    let spec = format!("other=file:{}", text(&path));
    let listen = ["--listen", ANY_PORT];
    let said = refused(&[&listen[..], &["--volume", &spec]].concat(), CONFLICT)?;
    says(&said, &["other", "shared.img"])?;
    // With another name it is the same file.
    let link = folder.path().join("link.img");
    fs::hard_link(&path, &link)?;
    let spec = format!("other=file:{}", text(&link));
    says(&refused(&[&listen[..], &["--volume", &spec]].concat(), CONFLICT)?, &["link.img"])?;
    // One server cannot open the file twice either.
    let both = ["--volume", &spec, "--volume", &spec.replace("other", "again")];
    says(&refused(&[&listen[..], &both].concat(), USAGE)?, &["other", "again", "the same path"])?;
    client::run(async {
        Ok(client::unit(&first, "data").await?.write(0, Buffer::zeroed(512), true).await?)
    })?;
    first.stop()?;
    Serving::start_with(&[file_volume(&path)], &[])?.stop()
}

#[test]
fn port_in_use_is_reported_and_no_volume_stays_locked() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.img");
    Serving::start_with(&[file_volume(&path)], &[])?.stop()?;
    let taken = TcpListener::bind(ANY_PORT)?;
    let portal = taken.local_addr()?.to_string();
    let spec = format!("data=file:{}", text(&path));
    // If one portal is taken, the server does not start with the other one alone.
    let said = refused(&["--listen", ANY_PORT, "--listen", &portal, "--volume", &spec], CONFLICT)?;
    says(&said, &[&portal, "--listen"])?;
    Serving::start_with(&[file_volume(&path)], &[])?.stop()
}

fn sense(outcome: Result<(), SessionError>) -> Result<Option<Sense>> {
    match outcome {
        Ok(()) => Ok(None),
        Err(SessionError::CheckCondition(sense)) => Ok(Some(sense)),
        Err(other) => Err(other.into()),
    }
}

/// Another volume of the same server works.
async fn is_undisturbed(other: &Unit) -> Result<()> {
    other.write(8, Buffer::copy_of(&[0xa5; 4096]), true).await?;
    ensure!(other.read(8, 8).await?[..] == [0xa5; 4096], "another volume lost its data");
    Ok(())
}

/// Commands that run the server with its own file system of 4 MiB.
const SMALL_DISK: [&str; 4] = ["unshare", "--mount", "sh", "-c"];
const MOUNT: &str = "mount -t tmpfs -o size=4m none \"$0\" && exec \"$@\"";

#[test]
fn full_disk_is_reported_and_session_stays() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let small = folder.path().join("small");
    fs::create_dir(&small)?;
    let wrapper = [&SMALL_DISK[..], &[MOUNT, text(&small)]].concat();
    let mut probe = Command::new(wrapper[0]);
    probe.args(&wrapper[1..]).arg("true");
    if let Err(error) = process::output(&mut probe, LIMIT) {
        println!("left out, for this user may not mount a file system: {error:#}");
        return Ok(());
    }
    for engine in ["auto", "pool"] {
        let thick = Volume::new("thin", Backing::File(small.join("thin.img")), 64 * MIB);
        let volumes = [thick, Volume::new("other", Backing::Ram, 16 * MIB)];
        let serving = Serving::start_under(&wrapper, &volumes, &["--io-engine", engine])?;
        client::run(async {
            let unit = client::unit(&serving, "thin").await?;
            let other = client::unit(&serving, "other").await?;
            let piece = |fill: u8| Buffer::copy_of(&[fill; 64 * 1024]);
            let mut stored = 0;
            let reported = loop {
                ensure!(stored < 1024, "64 MiB fit on a disk of 4 MiB");
                let lba = stored * 128;
                match sense(unit.write(lba, piece(stored as u8), false).await)? {
                    None => stored += 1,
                    // Before the disk is full the server reports a threshold, and the client repeats the write.
                    Some(sense) if sense.key == SenseKey::UnitAttention => {}
                    Some(sense) => break sense,
                }
            };
            let full =
                (reported.key, reported.asc, reported.ascq) == (SenseKey::DataProtect, 0x27, 0x07);
            let write_error = (reported.key, reported.asc) == (SenseKey::MediumError, 0x0c);
            ensure!(full || write_error, "a full disk was told as {reported}");
            ensure!(stored > 32, "only {stored} pieces of 64 KiB fit on 4 MiB");
            println!("{engine}: full after {stored} pieces of 64 KiB: {reported}");
            for index in 0..stored {
                let read = unit.read(index * 128, 128).await?;
                ensure!(read[..] == piece(index as u8)[..], "piece {index} changed");
            }
            let again = sense(unit.write(60 << 11, piece(1), false).await)?;
            ensure!(again.is_some(), "the disk is full no more");
            is_undisturbed(&other).await?;
            // Freed space can be used again.
            unit.unmap(&[(0, 16 * 128)]).await?;
            unit.write(60 << 11, piece(7), false).await?;
            unit.flush().await?;
            ensure!(unit.read(60 << 11, 128).await?[..] == piece(7)[..], "what was written last");
            is_undisturbed(&other).await
        })
        .with_context(|| serving.log())?;
        serving.stop()?;
    }
    Ok(())
}

#[test]
fn a_file_cut_short_is_a_medium_error_with_its_block() -> Result<()> {
    const CUT: u64 = 4 * MIB;
    const CUT_LBA: u64 = CUT / 512;
    let folder = tempfile::tempdir()?;
    let cases = [
        ("beyond the end", CUT_LBA + 80, 8, CUT_LBA + 80),
        ("the last block", 16 * MIB / 512 - 1, 1, 16 * MIB / 512 - 1),
        ("across the end", CUT_LBA - 8, 16, CUT_LBA),
    ];
    let kinds = [("writeback", "auto"), ("writeback", "pool"), ("none", "auto"), ("none", "pool")];
    for ((cache, engine), (what, lba, blocks, bad)) in
        kinds.into_iter().flat_map(|kind| cases.map(|case| (kind, case)))
    {
        let path = folder.path().join(format!("{cache}-{engine}-{lba}.img"));
        let data = Volume::new("data", Backing::File(path.clone()), 16 * MIB);
        let volumes =
            [data.option(&format!("cache={cache}")), Volume::new("other", Backing::Ram, 16 * MIB)];
        let serving = Serving::start_with(&volumes, &["--io-engine", engine])?;
        client::run(async {
            let unit = client::unit(&serving, "data").await?;
            let other = client::unit(&serving, "other").await?;
            unit.write(CUT_LBA - 8, Buffer::copy_of(&[0x3c; 16 * 512]), true).await?;
            fs::OpenOptions::new().write(true).open(&path)?.set_len(CUT)?;

            let read = unit.read(lba, blocks).await.map(drop);
            let reported = sense(read)?
                .with_context(|| format!("{cache}, {engine}: a read {what} was GOOD"))?;
            ensure!(
                (reported.key, reported.information) == (SenseKey::MediumError, Some(bad)),
                "{cache}, {engine}: a read {what} was told as {reported}, not with block {bad}"
            );
            // From now on the volume is out of service, because the file is no longer a complete disk.
            let write = unit.write(0, Buffer::copy_of(&[0x11; 4096]), true).await;
            let reported = sense(write)?
                .with_context(|| format!("{cache}, {engine}: a write after it was GOOD"))?;
            ensure!(
                reported.key == SenseKey::NotReady,
                "{cache}, {engine}: a write after it: {reported}"
            );
            is_undisturbed(&other).await
        })
        .with_context(|| serving.log())?;
        // The server cannot persist data beyond the new end.
        ensure!(serving.stop().is_err(), "{cache}, {engine}: the server ended as if all was well");
    }
    Ok(())
}
