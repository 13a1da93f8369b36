//! The lines that `sarsen target url` prints work without changes.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::{Backing, Serving, Volume, process, program};

const LIMIT: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;
const SECRET: &str = "a secret of many words";

/// Writes a secret file without a newline, because QEMU treats a newline at the end as a part of the secret.
fn keep_secret(path: &Path) -> Result<()> {
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    Ok(file.write_all(SECRET.as_bytes())?)
}

#[test]
fn printed_lines_for_qemu_and_libiscsi_log_in_with_chap() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("control.sock");
    let secret = folder.path().join("its secret");
    keep_secret(&secret)?;
    let account = format!("host={}", secret.display());
    let (control, chap) = (socket.display().to_string(), "host");
    let volumes = [Volume::new("data", Backing::Ram, 8 * MIB)];
    let arguments = ["--control", &control, "--account", &account, "--chap", chap];
    let serving = Serving::start_with(&volumes, &arguments)?;
    let target = serving.url("data").iqn.clone();
    let lines = |format: &str, more: &[&str]| -> Result<String> {
        let mut url = Command::new(program::path()?);
        // The only account is used for the lines.
        url.args(["target", "url", &target, "--format", format]).args(more);
        url.arg("--secret-file").arg(&secret).env("SARSEN_CONTROL", &socket);
        let output = url.output()?;
        // Notes about the lines are printed separately.
        let said = String::from_utf8(output.stderr)?;
        ensure!(output.status.success() && said.contains("loopback"), "{said}");
        Ok(String::from_utf8(output.stdout)?)
    };
    let paste = |line: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("LIBISCSI_CHAP_PASSWORD", SECRET);
        process::output(&mut shell, LIMIT).with_context(|| format!("{line}\n{}", serving.log()))
    };

    let qemu = lines("qemu", &[])?;
    ensure!(!qemu.contains(SECRET), "a secret is told: {qemu}");
    let reported = paste(qemu.lines().next().context("a line")?)?;
    ensure!(reported.contains("virtual size: 8 MiB"), "{reported}");
    let reported = paste(&format!("iscsi-inq {}", lines("libiscsi", &[])?.trim()))?;
    ensure!(reported.contains("VOLUME"), "{reported}");
    let json: serde_json::Value = serde_json::from_str(&lines("ipxe", &["--json"])?)?;
    let boot = json[0]["lines"].as_array().and_then(|lines| lines.last()?.as_str());
    let port = serving.url("data").port()?;
    ensure!(boot == Some(&*format!("sanboot iscsi:127.0.0.1:6:{port}:0:{target}")), "{json}");

    fs::remove_file(&secret)?;
    ensure!(paste(qemu.lines().next().context("a line")?).is_err(), "without the secret it fails");
    serving.stop()
}
