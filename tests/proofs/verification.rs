//! `sarsen lab load --verify` on volumes with faults: it finds and names each injected fault.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::{Backing, Serving, Volume, program};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const FAILED: i32 = 1;
const USAGE: i32 = 2;

/// Runs a load on a volume with these options; returns the exit code, the result, and the messages.
fn load(options: &[&str], flags: &[&str]) -> Result<(Option<i32>, Value, String)> {
    let volume = Volume::new("liar", Backing::Ram, MIB);
    let volume = options.iter().fold(volume, |volume, option| volume.option(option));
    let serving = Serving::start_with(&[volume], &[])?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(program::path()?);
    command.args(["lab", "load", &serving.url("liar").to_string(), "--verify", "--json"]);
    // No check runs before the load, so that a single fault affects the load.
    command.arg("--destroy");
    // Sequential I/Os over the whole volume, which has space for 16 of them.
    command.args(["--random", "0", "--block-size", "64K", "--depth", "4", "--seconds", "1"]);
    let output = command.args(flags).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for option in options {
        let fault = option.strip_prefix("fault=").unwrap_or(option);
        let log = serving.log();
        ensure!(log.contains(fault) && log.contains("on purpose"), "no warning: {log}");
    }
    serving.stop()?;
    let result = serde_json::from_slice(&output.stdout).with_context(|| said.clone())?;
    Ok((output.status.code(), result, said))
}

/// Returns the mismatches as block, kind, and the other named block.
fn found(result: &Value) -> Vec<Value> {
    let listed = result["mismatched"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for mismatch in &listed {
        let other = [&mismatch["holds_block"], &mismatch["found_at"]];
        let other = other.into_iter().find(|other| !other.is_null());
        found.push(json!([mismatch["block"], mismatch["kind"], other]));
    }
    found.sort_by_key(|mismatch| mismatch[0].as_u64());
    found
}

#[test]
fn last_pass_finds_and_names_errors() -> Result<()> {
    for (fault, wanted) in [
        ("flipped-bit@1234", json!([[1234, "corrupt", null]])),
        ("flipped-bit-stored@1234", json!([[1234, "corrupt", null]])),
        ("lost-write@2047", json!([[2047, "foreign", null]])),
        ("stale-read@0", json!([[0, "stale", null]])),
        // Both blocks are in one write, which ends with the overwritten block; otherwise the next write would repair
        // it.
        (
            "misdirected-write@1234>1236",
            json!([[1234, "foreign", 1236], [1236, "misdirected", 1234]]),
        ),
    ] {
        // With writes only, the load itself detects nothing.
        let (code, result, said) = load(&[&format!("fault={fault}")], &["--read", "0"])?;
        ensure!(code == Some(FAILED), "{fault}: {code:?}\n{said}");
        assert_eq!(Value::from(found(&result)), wanted, "{fault}: {result}");
        assert_eq!(result["read_back_blocks"], 2048, "{fault}");
        ensure!(said.contains(&format!("block {}", wanted[0][0])), "{said}");
    }
    Ok(())
}

#[test]
fn single_error_is_found() -> Result<()> {
    let (code, result, said) = load(&["fault=flipped-bit@40:once"], &["--read", "0"])?;
    ensure!(code == Some(FAILED), "{code:?}\n{said}");
    assert_eq!(found(&result), [json!([40, "corrupt", null])]);
    Ok(())
}

#[test]
fn several_liars_are_all_listed() -> Result<()> {
    let faults = ["fault=lost-write@9", "fault=flipped-bit@600", "fault=stale-read@1800"];
    let (code, result, said) = load(&faults, &["--read", "30"])?;
    ensure!(code == Some(FAILED), "{code:?}\n{said}");
    let found = found(&result);
    let blocks: Vec<_> = found.iter().filter_map(|mismatch| mismatch[0].as_u64()).collect();
    for block in [9, 600, 1800] {
        ensure!(blocks.contains(&block), "{block}: {result}");
    }
    ensure!(blocks.iter().all(|block| [9, 600, 1800].contains(block)), "{result}");
    Ok(())
}

#[test]
fn one_unreadable_block_hides_no_other() -> Result<()> {
    let faults = ["fault=unreadable@1000", "fault=lost-write@1001"];
    let (code, result, said) = load(&faults, &["--read", "0"])?;
    ensure!(code == Some(FAILED), "{code:?}\n{said}");
    assert_eq!(found(&result), [json!([1001, "foreign", null])]);
    ensure!(result["errors"].as_u64() > Some(0), "{result}");
    Ok(())
}

/// The control experiment without a fault.
#[test]
fn an_honest_volume_is_found_to_be_one() -> Result<()> {
    for flags in [["--read", "0"], ["--read", "50"]] {
        let (code, result, said) = load(&[], &flags)?;
        ensure!(code == Some(0), "{code:?}\n{said}");
        assert_eq!((&result["mismatches"], &result["errors"]), (&json!(0), &json!(0)));
        assert_eq!(result["read_back_blocks"], 2048);
        assert_eq!(found(&result), [json!(null); 0]);
    }
    Ok(())
}

#[test]
fn a_fault_that_cannot_be_is_refused() -> Result<()> {
    for (fault, reported) in [
        ("lost-write@2048", "the last block of the volume is 2047"),
        ("lost-wirte@1", "did you mean lost-write?"),
        ("misdirected-write@1>4000", "block 4000 does not exist"),
    ] {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "60"]).arg(program::path()?);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        command.args(["--volume", &format!("liar=ram:1MiB,fault={fault}")]);
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(USAGE), "{fault}: {}\n{said}", output.status);
        ensure!(said.contains(reported), "{said}");
    }
    Ok(())
}
