//! The program refuses mistakes with a message that names the object and the key, and with the exit code that
//! `sarsen --help` documents.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;
use sarsen_proof::program;

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;

const TARGET: &str = "iqn.2026-11.proof:data";

/// Returns the error message of a program that must fail with this exit code.
fn fails(command: &mut Command, code: i32) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let stderr = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(code), "{command:?}: {}: {stderr}", output.status);
    Ok(stderr)
}

fn path_of<'a>(folder: &Path, name: &str, path: &'a mut String) -> Result<&'a str> {
    *path = folder.join(name).to_str().context("a path")?.to_owned();
    Ok(path)
}

#[test]
fn referenced_object_cannot_be_deleted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let document = format!(
        "[[volume]]\nname = \"d2\"\nstore = \"ram\"\nsize = \"1MiB\"\n\
         [[volume]]\nname = \"d4\"\nstore = \"ram\"\nsize = \"1MiB\"\n\
         [[account]]\nname = \"vm\"\nsecret = \"twelve bytes\"\n\
         [[account]]\nname = \"of-web\"\nsecret = \"twelve bytes\"\n\
         [[host]]\nname = \"web\"\n[[host]]\nname = \"other\"\naccount = \"of-web\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"d2\", \"d4\"]\nchap = [\"vm\"]\n\
         allow = [{{ host = \"web\" }}]\n"
    );
    server.applied(&document, &[])?;
    for (kind, name, reported) in [
        (
            "volume",
            "d4",
            format!("volume d4 is LUN 1 of {TARGET}: detach it first, or give --cascade"),
        ),
        ("account", "vm", format!("account vm is in chap of {TARGET}: take it out of there first")),
        ("account", "of-web", "account of-web is in account of host other".to_owned()),
        ("host", "web", format!("host web is in allow of {TARGET}")),
    ] {
        let said = server.refused(CONFLICT, &[kind, "delete", name])?;
        ensure!(said.contains(&reported) && !said.contains("did you mean"), "{said}");
    }
    // The same applies if a document omits an object that it refers to.
    let shorter =
        document.replace("[[volume]]\nname = \"d4\"\nstore = \"ram\"\nsize = \"1MiB\"\n", "");
    ensure!(shorter != document, "nothing was left out");
    let pruned = server.apply(&shorter, &["--prune"])?;
    let said = String::from_utf8(pruned.stderr)?;
    ensure!(pruned.status.code() == Some(CONFLICT), "{said}");
    ensure!(
        said.contains("volume d4 is LUN 1") && said.contains("leaves it out: list it"),
        "{said}"
    );
    ensure!(server.json(&["history"])?["revisions"].as_array().map(Vec::len) == Some(1));
    // A new object cannot refer to a missing object either.
    let said = server.refused(USAGE, &["host", "create", "h3", "--account", "nope"])?;
    ensure!(said.contains("host/h3: account: there is no account nope"), "{said}");
    server.run(&["target", "detach", TARGET, "d4"])?;
    server.run(&["volume", "delete", "d4"])?;
    server.stop()
}

#[test]
fn invalid_setting_names_object_and_key() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let volume = |rest: &str| format!("[[volume]]\nname = \"x\"\nstore = \"ram\"\n{rest}\n");
    server.applied(&volume("size = \"1MiB\""), &[])?;
    for (document, reported) in [
        (volume("size = \"1 Gigabyte\""), "volume/x.size: \"1 Gigabyte\" is not a size"),
        ("[[account]]\nname = \"a\"\n".into(), "account/a: the account has no secret-file"),
    ] {
        for verb in ["apply", "diff"] {
            let mut path = String::new();
            let file = path_of(folder.path(), "wrong.toml", &mut path)?;
            std::fs::write(file, &document)?;
            let said = server.refused(USAGE, &[verb, "-f", file])?;
            ensure!(said.contains(reported), "{said}");
        }
    }
    let said = server.refused(USAGE, &["volume", "set", "x", "iops=abc"])?;
    ensure!(said.contains("volume/x.iops: \"abc\" is not a number from 1"), "{said}");
    ensure!(!said.contains("column"), "{said}");
    // A text remains a text, even if it looks like a number.
    server.run(&["target", "create", TARGET, "--lun", "x"])?;
    server.run(&["target", "set", TARGET, "alias=2026"])?;
    ensure!(server.json(&["target", "show", TARGET])?["alias"] == "2026");
    server.run(&["volume", "create", "file", "1MiB"])?;
    server.run(&["volume", "set", "file", "serial=12345", "naa=3111111111111111"])?;
    let shown = server.json(&["volume", "show", "file"])?;
    ensure!(shown["serial"] == "12345" && shown["naa"] == "3111111111111111", "{shown}");
    // A key without a value differs from a key with the value `none`.
    let planned = server.run(&["volume", "set", "file", "cache=none", "--dry-run"])?;
    ensure!(planned.contains("cache (unset) -> none"), "{planned}");
    server.run(&["volume", "set", "file", "cache=none"])?;
    let again = server.run(&["volume", "set", "file", "cache=none"])?;
    ensure!(again.starts_with("no changes"), "{again}");
    server.stop()
}

#[test]
fn exit_codes_distinguish_missing_from_existing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let mut path = String::new();
    let nowhere = path_of(folder.path(), "nowhere/x", &mut path)?;
    for arguments in [
        &["apply", "-f", nowhere][..],
        &["diff", "-f", nowhere],
        &["import", "lio", nowhere],
        &["account", "create", "a", "--secret-from", nowhere],
        &["volume", "create", "a", "--path", nowhere],
        &["volume", "create", "a", "1MiB", "--path", nowhere],
        &["volume", "list", "--control", "https://127.0.0.1:1", "--ca", nowhere],
    ] {
        server.refused(NOT_FOUND, arguments)?;
    }
    let said = serve_fails(&["--config", nowhere], NOT_FOUND)?;
    ensure!(said.contains(nowhere), "{said}");
    serve_fails(&["--volume", &format!("a=file:{nowhere},size=1MiB")], NOT_FOUND)?;
    let tls = ["--listen-tls", "127.0.0.1:0", "--tls-certificate", nowhere, "--tls-key", nowhere];
    serve_fails(&[&["--volume", "a=ram:1MiB"], &tls[..]].concat(), NOT_FOUND)?;
    // These files belong to another server.
    let mut path = String::new();
    let state = path_of(folder.path(), "state", &mut path)?;
    let said = serve_fails(&["--state", state, "--control", &format!("{state}/c.sock")], CONFLICT)?;
    ensure!(said.contains("is used by another server"), "{said}");
    let elsewhere = tempfile::tempdir()?;
    let other = Managed::start(elsewhere.path())?;
    other.run(&["volume", "create", "theirs", "1MiB"])?;
    let mut path = String::new();
    let theirs = path_of(elsewhere.path(), "state/volumes/theirs.img", &mut path)?;
    let said = server.refused(CONFLICT, &["volume", "create", "ours", "--path", theirs])?;
    ensure!(said.contains("is in use"), "{said}");
    // An object that exists and cannot be used has yet another exit code.
    let folder = folder.path().to_str().context("a path")?;
    server.refused(FAILED, &["apply", "-f", folder])?;
    other.stop()?;
    server.stop()
}

/// Runs `sarsen serve`, which must end with this exit code, and returns its messages.
fn serve_fails(arguments: &[&str], code: i32) -> Result<String> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(program::path()?);
    fails(command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments), code)
}

#[test]
fn closed_pipe_ends_list_quietly() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    for arguments in [&["event", "list"][..], &["metrics"], &["export"], &["lab", "specs"]] {
        let (read, write) = std::io::pipe()?;
        drop(read);
        let output = server.command(arguments)?.stdout(write).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    }
    server.stop()
}
