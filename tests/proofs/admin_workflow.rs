//! Daily administration of a server, and errors that must not occur: changes of secrets, the import of a file, and the
//! search for a change.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;
use sarsen_proof::{process, program};

const LIMIT: Duration = Duration::from_secs(30);
const TARGET: &str = "iqn.2026-11.io.sarsen:data";
const USAGE: i32 = 2;
const FIRST: &str = "the-first-secret";
const SECOND: &str = "the-second-secret";

/// Returns the standard output and standard error of a command that must succeed.
fn said(server: &Managed, arguments: &[&str]) -> Result<(String, String)> {
    let Output { status, stdout, stderr } = server.command(arguments)?.output()?;
    let (stdout, stderr) = (String::from_utf8(stdout)?, String::from_utf8(stderr)?);
    ensure!(status.success(), "{arguments:?}: {status}: {stderr}");
    Ok((stdout, stderr))
}

fn logs_in(server: &Managed, secret: &str) -> Result<bool> {
    let url = format!("iscsi://vm@{}/{TARGET}/0", server.portal()?);
    let mut command = server.command(&["disk", "info", &url])?;
    Ok(command.env("LIBISCSI_CHAP_PASSWORD", secret).output()?.status.success())
}

#[test]
fn a_secret_is_changed_and_is_in_no_command_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let [first, second] = [FIRST, SECOND].map(|secret| folder.path().join(secret));
    fs::write(&first, FIRST)?;
    fs::write(&second, format!("{SECOND}\n"))?;
    let [first, second] = [&first, &second].map(|path| path.to_str().unwrap_or_default());
    let create = ["volume", "create", "data", "8MiB", "--store", "ram", "--export", "--chap", "vm"];
    server.run(&[&create[..], &["--secret-from", first]].concat())?;
    ensure!(logs_in(&server, FIRST)? && !logs_in(&server, SECOND)?);

    let refused = server.refused(USAGE, &["account", "set", "vm", &format!("secret={SECOND}")])?;
    ensure!(refused.contains("sarsen account secret vm") && !refused.contains(SECOND), "{refused}");
    ensure!(logs_in(&server, FIRST)?, "what is refused changes nothing");
    let change = ["account", "secret", "vm", "--secret-from", second];
    let (out, reported) = said(&server, &change)?;
    ensure!(
        out.contains("~ account vm") && !out.contains(SECOND) && reported.is_empty(),
        "{out}{reported}"
    );
    ensure!(logs_in(&server, SECOND)? && !logs_in(&server, FIRST)?);
    // The server generates a secret and prints it once, on stderr.
    let (out, reported) = said(&server, &["account", "secret", "vm"])?;
    let made = reported.trim().rsplit_once(": ").context("a secret")?.1;
    ensure!(
        !out.contains(made) && logs_in(&server, made)? && !logs_in(&server, SECOND)?,
        "{reported}"
    );
    let history = server.run(&["history"])?;
    ensure!(![FIRST, SECOND, made].iter().any(|secret| history.contains(secret)), "{history}");

    let file = folder.path().join("san.toml");
    let path = file.to_str().context("a path")?;
    fs::write(&file, "what anybody could read")?;
    let (out, _) = said(&server, &["export", "--secrets", "--out", path])?;
    let mode = fs::metadata(&file)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600 && out.is_empty(), "{mode:o}: {out}");
    ensure!(fs::read_to_string(&file)?.contains(made), "it has the secrets");
    server.stop()
}

#[test]
fn target_open_to_all_is_reported_as_such() -> Result<()> {
    const WARNING: &str = "! every initiator that reaches a portal is permitted to use ";
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let volume = |name: &'static str| ["volume", "create", name, "1MiB", "--store", "ram"];
    let warns =
        |arguments: &[&str]| Ok::<_, anyhow::Error>(server.run(arguments)?.contains(WARNING));
    ensure!(!warns(&volume("a"))?, "no target serves it");
    let (done, noted) = said(&server, &[&volume("b")[..], &["--export"]].concat())?;
    ensure!(done.contains(WARNING), "{done}");
    ensure!(noted.contains("every portal listens on a loopback"), "{noted}");
    ensure!(!warns(&[&volume("c")[..], &["--export", "--chap", "vm"]].concat())?);
    ensure!(warns(&["target", "create", "iqn.2026-11.proof:a", "--lun", "a"])?);
    let initiator = ["--initiator", "iqn.2026-11.proof:h"];
    ensure!(!warns(&[&["target", "create", "iqn.2026-11.proof:h"][..], &initiator].concat())?);
    // A document that omits the rules, or empties them.
    let opened = |rules: &str| {
        let target = format!("[[target]]\nname = \"iqn.2026-11.proof:h\"\n{rules}");
        Ok::<_, anyhow::Error>(server.applied(&target, &["--dry-run"])?.contains(WARNING))
    };
    ensure!(opened("allow = []\n")? && opened("allow = [{ read-only = true }]\n")?);
    ensure!(!opened("allow = [{ address = \"10.0.0.0/8\" }]\n")?);
    server.stop()
}

#[test]
fn history_is_searchable_and_authors_cannot_be_forged() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start_with(folder.path(), &["--api", "127.0.0.1:0"])?;
    server.run(&["volume", "create", "zzz", "1MiB", "--store", "ram"])?;
    server.run(&["volume", "create", "other", "1MiB", "--store", "ram"])?;
    server.run(&["volume", "rename", "zzz", "yyy"])?;
    let find = |subject: &str| -> Result<usize> {
        let found = server.json(&["event", "list", "--subject", subject])?;
        let events = found["events"].as_array().context("events")?;
        ensure!(events.iter().all(|event| event["kind"] == "configuration_changed"), "{found}");
        Ok(events.len())
    };
    ensure!((find("zzz")?, find("yyy")?, find("other")?, find("none")?) == (2, 1, 1, 0));
    let refused = server.refused(USAGE, &["event", "list", "--kind", "nonsense"])?;
    ensure!(refused.contains("nonsense") && refused.contains("login_refused"), "{refused}");

    let api = server.announced()["api"].as_str().context("the API")?.to_owned();
    let by = |change: &mut Command, user: Option<&str>| -> Result<String> {
        for name in ["SUDO_USER", "USER", "LOGNAME"] {
            change.env_remove(name);
        }
        change.envs(user.map(|user| ("USER", user)));
        process::output(change, LIMIT)?;
        let history = server.json(&["history", "--limit", "1"])?;
        Ok(history["revisions"][0]["author"].as_str().unwrap_or_default().to_owned())
    };
    let author = by(&mut server.command(&["host", "create", "a"])?, Some("ada"))?;
    ensure!(author.starts_with("ada@"), "{author}");
    let author = by(&mut server.command(&["host", "create", "b"])?, None)?;
    ensure!(author.starts_with("uid ") && author.contains('@'), "{author}");
    let mut change = Command::new(program::path()?);
    change.args(["host", "create", "c", "--control", &api]);
    let author = by(&mut change, Some("root"))?;
    ensure!(author.starts_with("api on the loopback: root@"), "{author}");
    server.stop()
}

#[test]
fn an_imported_file_opens_nothing_that_it_does_not_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let before = server.json(&["portal", "list"])?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (image, file, out) = (path("a.img"), path("targets.conf"), path("san.toml"));
    fs::write(&image, [0; 4096])?;
    let text = format!(
        "<target iqn.2026-11.proof:t>\nbacking-store {image}\nincominguser vm {FIRST}\n</target>\n"
    );
    fs::write(&file, text)?;
    server.run(&["import", "tgt", &file, "--out", &out])?;
    server.run(&["apply", "-f", &out])?;
    ensure!(server.json(&["portal", "list"])? == before, "a portal was opened");
    ensure!(server.json(&["target", "list"])?["targets"][0]["account"] == "vm");

    // A file of another program is rejected, and its secrets are not printed.
    let json = path("saveconfig.json");
    let kernel = format!("{{\n  \"targets\": [],\n  \"chap_password\": \"{FIRST}\"\n}}\n");
    fs::write(&json, kernel)?;
    for program in ["lio", "tgt", "scst", "ctld", "istgt"] {
        let refused = server.refused(USAGE, &["import", program, &json])?;
        ensure!(!refused.contains(FIRST), "{program}: {refused}");
    }
    let refused = server.refused(USAGE, &["import", "tgt", &json])?;
    ensure!(refused.contains("check that it is a targets.conf"), "{refused}");
    server.stop()
}
