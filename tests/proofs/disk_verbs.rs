//! `sarsen discover` and `sarsen disk`, as a user types them, against served volumes.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::{Backing, Serving, Volume, program};
use serde_json::Value;

const MIB: usize = 1 << 20;
/// Not a multiple of the piece size, of 512, or of 4096 bytes.
const SAMPLE_LENGTH: usize = 20 * MIB + 1234;
pub(crate) const FAILED: i32 = 1;
pub(crate) const USAGE: i32 = 2;
pub(crate) const NOT_FOUND: i32 = 3;
pub(crate) const CONFLICT: i32 = 4;
pub(crate) const UNREACHABLE: i32 = 6;

pub(crate) fn command(arguments: &[&str]) -> Result<Command> {
    // `timeout` ends a command that hangs.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(program::path()?).args(arguments);
    command.stdin(Stdio::null());
    Ok(command)
}

pub(crate) fn run(arguments: &[&str]) -> Result<Output> {
    Ok(command(arguments)?.output()?)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn succeed(arguments: &[&str]) -> Result<String> {
    let output = run(arguments)?;
    ensure!(output.status.success(), "{arguments:?}: {}\n{}", output.status, text(&output.stderr));
    Ok(text(&output.stdout))
}

fn succeed_json(arguments: &[&str]) -> Result<Value> {
    let said = succeed(&[arguments, &["--json"]].concat())?;
    serde_json::from_str(&said).with_context(|| said)
}

/// Runs a command that must end with `code`; returns its error message.
pub(crate) fn fail(code: i32, arguments: &[&str]) -> Result<String> {
    let output = run(arguments)?;
    let said = text(&output.stderr);
    ensure!(output.status.code() == Some(code), "{arguments:?}: {}\n{said}", output.status);
    Ok(said)
}

fn sample() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..SAMPLE_LENGTH).map(|at| (at * 31 + at / 509) as u8 | 1).collect();
    // Holes, one of them across the border of two pieces.
    bytes[3 * MIB - 100_000..4 * MIB].fill(0);
    bytes[10 * MIB..12 * MIB].fill(0);
    bytes
}

fn volume(name: &str) -> Volume {
    Volume::new(name, Backing::Ram, 32 * MIB as u64)
}

#[test]
fn rfc7143_6_3_5_two_sessions_with_one_target_do_not_take_each_others_place() -> Result<()> {
    let serving = Serving::start(&[volume("disk")])?;
    let url = serving.url("disk").to_string();
    let output = run(&["disk", "verify", &url, &url])?;
    let said = text(&output.stderr);
    ensure!(output.status.success() && !said.contains("logging in again"), "{said}");
    serving.stop()
}

#[test]
fn discover_lists_every_target_with_its_portals() -> Result<()> {
    let serving = Serving::start(&[volume("one"), volume("two")])?;
    let portal = &serving.url("one").portal;
    let table = succeed(&["discover", portal])?;
    let found = succeed_json(&["discover", portal])?;
    for name in ["one", "two"] {
        let iqn = &serving.url(name).iqn;
        ensure!(table.lines().any(|line| line.contains(iqn) && line.contains(portal)), "{table}");
        let target = found["targets"].as_array().context("`targets`")?;
        let target = target.iter().find(|target| target["name"] == **iqn).context("a target")?;
        assert_eq!(target["portals"][0]["address"], **portal);
        assert_eq!(target["portals"][0]["group"], 1);
    }
    serving.stop()
}

#[test]
fn info_shows_disk_and_negotiated_parameters() -> Result<()> {
    let disk = volume("disk").block_size(4096).option("serial=0815");
    // The serial number is an option of this program only.
    let serving = Serving::start_with(&[disk], &[])?;
    let url = serving.url("disk").to_string();
    let info = succeed_json(&["disk", "info", &url, "--data-digest"])?;
    assert_eq!(info["size_bytes"], 32 * MIB);
    assert_eq!(info["block_bytes"], 4096);
    assert_eq!(info["serial"], "0815");
    assert_eq!(info["provisioning"]["unmap"], true);
    assert_eq!(info["negotiated"]["data_digest"], "CRC32C");
    assert_eq!(info["negotiated"]["header_digest"], "None");
    assert!(info["write_cache"].is_boolean());
    let said = succeed(&["disk", "info", &url])?;
    for part in ["0815", "32 MiB", "8192 blocks of 4096", "Write cache", "MaxBurstLength"] {
        ensure!(said.contains(part), "{part} is missing:\n{said}");
    }
    serving.stop()
}

#[test]
fn a_file_goes_to_a_disk_and_comes_back_equal() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (there, back) = (path("there"), path("back"));
    let bytes = sample();
    fs::write(&there, &bytes)?;
    let serving = Serving::start(&[volume("small"), volume("large").block_size(4096)])?;
    for (name, flags) in
        [("small", [].as_slice()), ("large", &["--header-digest", "--data-digest"])]
    {
        let url = serving.url(name).to_string();
        // These bytes must stay unchanged: the rest of the last block, and of the disk.
        succeed(&["disk", "erase", &url, "--destroy"])?;
        let marks = vec![0xee; 64 * 1024];
        let last = SAMPLE_LENGTH / (64 * 1024) * (64 * 1024);
        let mark = path("mark");
        fs::write(&mark, &marks)?;
        succeed(&["disk", "write", &mark, &url, "--offset", &last.to_string()])?;

        let written = succeed_json(&[&["disk", "write", &there, &url], flags].concat())?;
        let length = SAMPLE_LENGTH.to_string();
        let part = ["disk", "read", &url, &back, "--length", &length];
        let read = succeed_json(&[&part, flags].concat())?;
        assert_eq!(written["bytes"], SAMPLE_LENGTH);
        assert_eq!(written["sha256"], read["sha256"]);
        assert!(fs::read(&back)? == bytes, "{name}");
        // At least two mebibytes of zeroes use no disk space.
        assert!(fs::metadata(&back)?.blocks() * 512 < (SAMPLE_LENGTH - 2 * MIB) as u64);

        let whole = path("whole");
        succeed(&["disk", "read", &url, &whole])?;
        let whole = fs::read(&whole)?;
        assert_eq!(whole.len(), 32 * MIB);
        assert!(whole[..SAMPLE_LENGTH] == bytes);
        assert!(whole[SAMPLE_LENGTH..last + marks.len()].iter().all(|&byte| byte == 0xee));
        assert!(whole[last + marks.len()..].iter().all(|&byte| byte == 0));
        // Any offset and length in bytes.
        succeed(&["disk", "read", &url, &back, "--offset", "1000001", "--length", "3000003"])?;
        assert!(fs::read(&back)? == bytes[1_000_001..4_000_004]);
    }
    serving.stop()
}

#[test]
fn standard_input_and_output_are_files_too() -> Result<()> {
    let serving = Serving::start(&[volume("disk")])?;
    let url = serving.url("disk").to_string();
    let bytes = sample();
    let mut writer = command(&["disk", "write", "-", &url])?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    writer.stdin.take().context("its standard input")?.write_all(&bytes)?;
    let written = writer.wait_with_output()?;
    assert!(written.status.success());
    let read = run(&["disk", "read", &url, "-", "--length", &SAMPLE_LENGTH.to_string()])?;
    assert!(read.status.success() && read.stdout == bytes);
    let sum = text(&written.stdout);
    let sum = sum.lines().find(|line| line.starts_with("SHA-256")).context("a checksum")?;
    ensure!(text(&read.stderr).contains(sum), "not the same checksum");
    fail(USAGE, &["disk", "read", &url, "-", "--json"])?;
    // The input is larger than the disk.
    let output = command(&["disk", "write", "/dev/zero", &url])?.output()?;
    assert_eq!(output.status.code(), Some(FAILED), "{}", text(&output.stderr));
    ensure!(text(&output.stderr).contains("do not fit"), "{}", text(&output.stderr));
    serving.stop()
}

#[test]
fn a_disk_is_copied_to_another_servers_and_one_changed_byte_is_found() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, other) = (path("file"), path("other"));
    fs::write(&file, sample())?;
    let first = Serving::start(&[volume("from")])?;
    let larger = Volume::new("to", Backing::Ram, 40 * MIB as u64).block_size(4096);
    let second = Serving::start(&[larger])?;
    let (from, to) = (first.url("from").to_string(), second.url("to").to_string());
    succeed(&["disk", "write", &file, &from])?;
    succeed(&["disk", "copy", &from, &to])?;
    let equal = succeed_json(&["disk", "verify", &from, &to])?;
    assert_eq!((&equal["equal"], &equal["compared_bytes"]), (&true.into(), &(32 * MIB).into()));
    succeed(&["disk", "verify", &to, &file])?;

    // Exactly one byte of the disk differs.
    let offset = 17 * MIB + 4321;
    let block = offset / 4096 * 4096;
    let (begin, length) = (block.to_string(), "4096");
    succeed(&["disk", "read", &to, &other, "--offset", &begin, "--length", length])?;
    let mut bytes = fs::read(&other)?;
    bytes[offset - block] ^= 0x10;
    fs::write(&other, &bytes)?;
    succeed(&["disk", "write", &other, &to, "--offset", &begin])?;
    for with in [&from, &file] {
        let said = fail(FAILED, &["disk", "verify", &to, with]);
        ensure!(said?.contains(&format!("first at byte {offset}")), "{with}");
    }
    let output = run(&["disk", "verify", &from, &to, "--json"])?;
    assert_eq!(output.status.code(), Some(FAILED));
    let found: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!((&found["equal"], &found["first_difference"]), (&false.into(), &offset.into()));

    // A disk that is too small, and one with the same content.
    ensure!(fail(FAILED, &["disk", "copy", &to, &from])?.contains("do not fit"));
    ensure!(fail(FAILED, &["disk", "verify", &to, &from])?.contains("first at byte"));
    fail(USAGE, &["disk", "copy", &from, &from])?;
    first.stop()?;
    second.stop()
}

#[test]
fn erase_leaves_zeroes_and_asks_before() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, back, image) = (path("file"), path("back"), path("image"));
    fs::write(&file, sample())?;
    let on_file = Volume::new("file", Backing::File(image.clone().into()), 32 * MIB as u64);
    let serving = Serving::start(&[volume("ram").block_size(4096), on_file])?;
    for name in ["ram", "file"] {
        let url = serving.url(name).to_string();
        for how in [[].as_slice(), &["--zero"], &["--unmap"]] {
            succeed(&["disk", "write", &file, &url])?;
            ensure!(fail(USAGE, &["disk", "erase", &url])?.contains("--destroy"));
            succeed(&["disk", "verify", &url, &file])?;
            let erased = succeed_json(&[&["disk", "erase", &url, "--destroy"], how].concat())?;
            assert_eq!(erased["bytes"], 32 * MIB);
            succeed(&["disk", "read", &url, &back])?;
            let zero = fs::read(&back)?.iter().all(|&byte| byte == 0);
            ensure!(zero, "{name} {how:?} left something");
        }
    }
    fail(USAGE, &["disk", "erase", &serving.url("ram").to_string(), "--zero", "--unmap"])?;
    serving.stop()
}

#[test]
fn missing_targets_and_luns_have_own_exit_codes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("image").display().to_string();
    let disk = Volume::new("disk", Backing::File(image.clone().into()), MIB as u64);
    // Only this program locks its files.
    let serving = Serving::start_with(&[disk], &[])?;
    let url = serving.url("disk").clone();
    let at = |iqn: &str, lun: u32| format!("iscsi://{}/{iqn}/{lun}", url.portal);

    let said = fail(NOT_FOUND, &["disk", "info", &at("iqn.2026-11.proof:nobody", 0)])?;
    ensure!(said.contains("nobody") && said.contains("sarsen discover"), "{said}");
    fail(NOT_FOUND, &["disk", "info", &at(&url.iqn, 7)])?;
    fail(NOT_FOUND, &["disk", "write", "/nowhere/at/all", &url.to_string()])?;
    // The server has its file locked.
    fail(CONFLICT, &["disk", "write", &image, &url.to_string()])?;
    fail(CONFLICT, &["disk", "read", &url.to_string(), &image])?;
    fail(FAILED, &["disk", "read", &url.to_string(), "/dev/null", "--length", "2MiB"])?;
    fail(USAGE, &["disk", "write", "/dev/null", &url.to_string(), "--offset", "100"])?;
    let said = fail(USAGE, &["disk", "info", "iscsi://me%hidden@box"])?;
    ensure!(!said.contains("hidden"), "{said}");
    serving.stop()?;

    // A port without a listener: the client end of a closed connection.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let nobody = client.local_addr()?;
    let said = fail(UNREACHABLE, &["discover", &nobody.to_string()])?;
    ensure!(said.contains(&nobody.to_string()) && said.contains("target runs"), "{said}");
    fail(UNREACHABLE, &["disk", "info", &format!("iscsi://{nobody}/iqn.2026-11.proof:x/0")])?;
    drop(client);
    Ok(())
}

/// Returns the server's counters of the volume `thin`.
fn counted(control: &str) -> Result<(Value, u64, u64)> {
    let client = sarsen_node::control::Client::new(std::path::Path::new(control));
    let statistics = sarsen_io::cores::block_on(sarsen_io::cores::FileEngine::Pool, async {
        client.get::<Value>("/statistics").await
    })??;
    let volumes = statistics["volumes"].as_array().context("volumes")?;
    let thin = volumes.iter().find(|volume| volume["volume"] == "thin").context("thin")?;
    let operations = thin["operations"].as_array().context("operations")?;
    let writes = operations.iter().find(|of| of["operation"] == "write").context("writes")?;
    let number = |key: &str| writes[key].as_u64().context("a number");
    Ok((thin["errors"].clone(), number("count")?, number("bytes")?))
}

/// Starts a server with a thin volume of 64 MiB with this limit; returns the address of its control socket too.
fn thin(folder: &std::path::Path, room_mib: usize) -> Result<(Serving, String)> {
    let control = folder.join("control").to_str().context("a path")?.to_owned();
    let volume = Volume::new("thin", Backing::Ram, 64 * MIB as u64);
    let volume = volume.option(&format!("limit={room_mib}MiB"));
    Ok((Serving::start_with(&[volume], &["--control", &control])?, control))
}

#[test]
fn sbc3_4_7_3_8_a_threshold_that_is_passed_does_not_break_off_a_copy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (serving, control) = thin(folder.path(), 40)?;
    let url = serving.url("thin").to_string();
    let file = folder.path().join("file");
    let bytes: Vec<u8> = (0..38 * MIB).map(|at| (at * 31 + at / 509) as u8 | 1).collect();
    fs::write(&file, &bytes)?;
    let file = file.to_str().context("a path")?;
    succeed(&["disk", "write", file, &url])?;
    succeed(&["disk", "verify", &url, file])?;
    let (errors, _, written) = counted(&control)?;
    // The login causes the first one.
    ensure!(errors["unit_attention"].as_u64() > Some(1), "no threshold was passed: {errors}");
    ensure!(written == 38 * MIB as u64, "{written} bytes: what was not written counts as well");
    serving.stop()
}

#[test]
fn a_full_disk_is_called_full_and_failed_writes_are_no_performance() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (serving, control) = thin(folder.path(), 4)?;
    let url = serving.url("thin").to_string();
    let output = run(&[
        "lab",
        "load",
        &url,
        "--read",
        "0",
        "--random",
        "100",
        "--block-size",
        "4096",
        "--depth",
        "8",
        "--seconds",
        "2",
        "--json",
    ])?;
    let said = text(&output.stderr);
    ensure!(output.status.code() == Some(FAILED), "{}: {said}", output.status);
    ensure!(said.contains("I/Os failed"), "{said}");
    let result: Value = serde_json::from_slice(&output.stdout)?;
    let (errors, count, bytes) = counted(&control)?;
    let failed = errors["no_space"].as_u64().context("no write failed")?;
    let attentions = errors["unit_attention"].as_u64().unwrap_or_default();
    ensure!(bytes <= (count - failed) * 4096, "{bytes} bytes of {count}, {failed} of which failed");
    ensure!(bytes >= (count - failed - attentions) * 4096, "{bytes} bytes of {count}: {errors}");
    let ios = result["ios"].as_u64().context("ios")?;
    ensure!(ios <= count - failed, "{ios} I/Os, though of {count} writes {failed} failed");
    ensure!(result["errors"].as_u64() > Some(0), "{result}");
    let file = folder.path().join("file");
    fs::write(&file, vec![7; 16 * MIB])?;
    let said = fail(FAILED, &["disk", "write", file.to_str().context("a path")?, &url])?;
    ensure!(said.contains("full") && !said.contains("protected"), "{said}");
    serving.stop()
}
