//! A real browser uses the console of a real server, and the proof checks the results on the server. Ignored by
//! default: the browser is large. `cargo xtask ci --full` runs it. Screenshots stay in cargo's folder for tests.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::{SessionOptions, Unit};
use sarsen_io::threads;
use sarsen_io::time::{now, sleep_until};
use sarsen_lab::archive::Archive;
use sarsen_lab::record::{Labels, Measures, Outcome, Run, Sample, Scale, Setting};
use sarsen_proof::managed::Managed;
use sarsen_proof::{process, program};
use serde_json::Value;

use crate::client::run;

/// Maximum duration of a script in the browser on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Maximum duration of npm's download of a few packages.
const PACKAGES_LIMIT: Duration = Duration::from_secs(300);
/// Pause between attempts to log in again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../console");
const INITIATOR: &str = "iqn.2026-11.proof:client";
const TARGET: &str = "iqn.2026-11.proof:data";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Runs a script of `console/tests` in the browser, and returns its output.
fn follow(script: &str, console: &str, environment: &[(&str, &str)]) -> Result<Value> {
    let source = Path::new(SOURCE);
    if !source.join("node_modules/playwright-core").exists() {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund", "--prefix", SOURCE]);
        process::output(&mut npm, PACKAGES_LIMIT).context("what drives the browser is missing")?;
    }
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("console");
    fs::create_dir_all(&pictures)?;
    let mut node = Command::new("node");
    node.arg(source.join("tests").join(script)).env("SARSEN_CONSOLE", console);
    node.env("SARSEN_PICTURES", pictures).envs(environment.iter().copied());
    let said = process::output(&mut node, LIMIT)?;
    let last = said.lines().last().with_context(|| format!("{script} said nothing"))?;
    serde_json::from_str(last).with_context(|| said.clone())
}

/// Returns the URL of a server's console.
fn console(server: &Managed) -> Result<String> {
    let url = server.announced()["api"].as_str().context("the URL of its API")?;
    Ok(url.trim_end_matches('/').to_owned())
}

fn start(folder: &Path) -> Result<(Managed, String)> {
    let mut command = Command::new(program::path()?);
    command.env("XDG_STATE_HOME", folder);
    command.arg("serve").args(["--listen", "127.0.0.1:0", "--logout-grace", "1", "--json"]);
    let server = Managed::start_command(command, folder, &["--api", "127.0.0.1:0"])?;
    let console = console(&server)?;
    Ok((server, console))
}

#[test]
#[ignore = "starts a browser"]
fn one_form_by_keyboard_alone_makes_a_volume_that_qemu_uses_with_the_secret_it_shows() -> Result<()>
{
    let folder = tempfile::tempdir()?;
    let (server, console) = start(folder.path())?;
    let made = follow("create.mjs", &console, &[])?;
    let pasted = made["lines"]["qemu"].as_str().context("lines for QEMU")?;
    // The virtual machine is not started: the image's properties are enough.
    let pasted: Vec<_> = pasted.lines().filter(|line| !line.starts_with("qemu-system")).collect();
    ensure!(pasted.len() == 2, "the secret's file, and qemu-img: {pasted:?}");
    let said = run_pasted(&pasted.join("\n"))?;
    ensure!(said.contains("virtual size: 64 MiB"), "{said}");
    let secret = made["secret"].as_str().context("a secret")?;
    let wrong = pasted.join("\n").replace(secret, "not the secret..");
    ensure!(run_pasted(&wrong).is_err(), "another secret lets in, too");
    // The program's own verbs also work with the same secret.
    let url = format!("iscsi://vm@{}/iqn.2026-11.io.sarsen:data/0", server.portal()?);
    let mut info = server.command(&["disk", "info", &url])?;
    process::output(info.env("LIBISCSI_CHAP_PASSWORD", secret), LIMIT)?;
    let history = server.run(&["history"])?;
    ensure!(!history.contains(secret), "{history}");
    server.stop()
}

/// Runs the lines of a shell in an empty folder, and returns their output.
fn run_pasted(lines: &str) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let mut shell = Command::new("bash");
    shell.args(["-e", "-c", lines]).current_dir(folder.path());
    Ok(process::output(&mut shell, LIMIT)?)
}

/// A client that reads continuously, and logs in again when the server ends its session. Dropping it ends the client.
struct Reader {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Reader {
    fn start(url: &str) -> Result<Self> {
        let url: sarsen_initiator::Url = url.parse()?;
        let done = Arc::new(AtomicBool::new(false));
        let reported = done.clone();
        let options =
            SessionOptions { initiator_name: INITIATOR.to_owned(), ..SessionOptions::default() };
        let thread = threads::spawn("reader", move || {
            run(async move {
                while !reported.load(Ordering::Relaxed) {
                    let Ok(session) = Unit::connect(&url, &options).await else {
                        sleep_until(now() + RETRY_PAUSE).await;
                        continue;
                    };
                    while !reported.load(Ordering::Relaxed) && session.read(0, 8).await.is_ok() {}
                }
                Ok(())
            })
        })?;
        let thread = Some(thread);
        Ok(Self { done, thread })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const DOCUMENT: &str = r#"
[[account]]
name = "vm"
secret = "a-secret-of-proofs"

[[volume]]
name = "data"
store = "ram"
size = "64MiB"

[[volume]]
name = "idle"
store = "ram"
size = "1MiB"

[[target]]
name = "iqn.2026-11.proof:data"
luns = ["data"]
chap = ["vm"]

[[target]]
name = "iqn.2026-11.proof:idle"
luns = ["idle"]
"#;

/// Creates a run of the lab in the user state folder that the server reads.
fn measured(folder: &Path) -> Result<()> {
    let archive = Archive::open(&folder.join("sarsen/lab.sqlite"))?;
    let id = archive.begin(&Run {
        id: 0,
        study: "lunden".to_owned(),
        scale: Scale::Quick,
        command: "sarsen lab run lunden --quick".to_owned(),
        targets_under_test: vec!["sarsen".to_owned()],
        began_at: 1_790_000_000,
        ended_at: None,
        setting: Setting::default(),
        samples: Vec::new(),
    })?;
    let figures = [("kib_per_s".to_owned(), 20_000.0)].into();
    let labels = Labels::new().with("setup", "iscsi-3-vms").with("operation", "put_block");
    let outcome = Outcome::Measured(Measures { figures, ..Measures::default() });
    archive.add(id, &Sample { labels, repetition: 1, ended_at: 1_790_000_050, outcome })?;
    Ok(archive.end(id, 1_790_000_060)?)
}

#[test]
#[ignore = "starts a browser"]
fn every_screen_works_while_client_uses_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    measured(folder.path())?;
    let (server, console) = start(folder.path())?;
    server.applied(DOCUMENT, &[])?;
    server.run(&["volume", "create", "left", "1MiB"])?;
    server.run(&["volume", "delete", "left"])?;
    let url = |secret: &str| {
        Ok::<_, anyhow::Error>(format!("iscsi://vm%{secret}@{}/{TARGET}/0", server.portal()?))
    };
    let wrong: sarsen_initiator::Url = url("not-the-secret-at-all")?.parse()?;
    let refused =
        run(async { Ok(Unit::connect(&wrong, &SessionOptions::default()).await.is_err()) })?;
    ensure!(refused, "another secret lets in, too");
    let reader = Reader::start(&url("a-secret-of-proofs")?)?;
    follow("screens.mjs", &console, &[("SARSEN_INITIATOR", INITIATOR), ("SARSEN_TARGET", TARGET)])?;
    drop(reader);
    server.stop()
}

#[test]
#[ignore = "starts a browser"]
fn thousands_of_volumes_fit_on_a_phone_by_day_and_by_night() -> Result<()> {
    let folder = tempfile::tempdir()?;
    measured(folder.path())?;
    let (server, console) = start(folder.path())?;
    let document: String = (0..5000)
        .map(|number| {
            format!(
                "[[volume]]\nname = \"v{number}\"\nstore = \"null\"\nsize = \"1MiB\"\n\
                 [[target]]\nname = \"iqn.2026-11.proof.a-name-that-is-rather-long:v{number}\"\n\
                 luns = [\"v{number}\"]\n"
            )
        })
        .collect();
    server.applied(&document, &[])?;
    follow("phone.mjs", &console, &[])?;
    server.stop()
}

/// Starts a server whose console requires a token. The loopback address stands for a network address: both require the
/// token if the configuration names one.
fn with_token(folder: &Path) -> Result<Managed> {
    let file = |name: &str, content: &str| -> Result<PathBuf> {
        let path = folder.join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(path)
    };
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let certificate = file("api.pem", &made.cert.pem())?;
    let key = file("api.key", &made.signing_key.serialize_pem())?;
    let token = file("token", TOKEN)?;
    let configuration = format!(
        "[api]\nlisten = \"127.0.0.1:0\"\ncertificate = \"{}\"\nkey = \"{}\"\ntoken-file = \"{}\"\n",
        certificate.display(),
        key.display(),
        token.display()
    );
    let configuration = file("sarsen.toml", &configuration)?;
    let configuration = configuration.to_str().context("a path")?;
    Managed::start_with(folder, &["--config", configuration])
}

#[test]
#[ignore = "starts a browser"]
fn where_a_token_is_wanted_nothing_is_shown_without_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = with_token(folder.path())?;
    server.applied(DOCUMENT, &[])?;
    server.run(&["volume", "create", "left", "1MiB"])?;
    server.run(&["volume", "delete", "left"])?;
    follow("token.mjs", &console(&server)?, &[("SARSEN_TOKEN", TOKEN)])?;
    server.stop()
}

/// Follows a script that needs a folder for the devices of pools, and the program for volumes.
fn follow_with_devices(script: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = with_token(folder.path())?;
    let devices = tempfile::tempdir()?;
    let (devices, program) = (devices.path().display().to_string(), program::path()?);
    let program = program.display().to_string();
    let environment =
        [("SARSEN_TOKEN", TOKEN), ("SARSEN_FOLDER", &devices), ("SARSEN_PROGRAM", &program)];
    follow(script, &console(&server)?, &environment)?;
    server.stop()
}

#[test]
#[ignore = "starts a browser"]
fn pools_snapshots_and_clones_are_created_and_deleted_in_the_console() -> Result<()> {
    follow_with_devices("pools.mjs")
}

#[test]
#[ignore = "starts a browser"]
fn devices_of_pools_are_added_replaced_removed_and_scrubbed_in_the_console() -> Result<()> {
    follow_with_devices("devices.mjs")
}
