//! `sarsen lab run` with errors: a faulty target, invalid arguments, and a URL that contains a secret.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use rustix::net::{AddressFamily, SocketAddrV4, SocketType, bind, getsockname, socket};
use sarsen_proof::laboratory::{Laboratory, samples};
use sarsen_proof::{Backing, Serving, Volume};

const MIB: u64 = 1 << 20;
/// Required size of a volume for a study's quick run.
const VOLUME_BYTES: u64 = 128 * MIB;
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const DEGRADED: i32 = 5;

const READS: &str = "Maximum IOPS";
const WRITES: &str = "Maximum Write Throughput";
const ONLY: [&str; 4] = ["--only", "test=Maximum IOPS", "--only", "test=Maximum Write Throughput"];

/// Returns a port that stays closed as long as the socket exists.
fn closed_port() -> Result<(rustix::fd::OwnedFd, u16)> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    let address = SocketAddrV4::try_from(getsockname(&socket)?)?;
    Ok((socket, address.port()))
}

#[test]
fn failed_cells_are_named_and_others_keep_their_figures() -> Result<()> {
    let lab = Laboratory::new()?;
    let ram = |name: &str, bytes| Volume::new(name, Backing::Ram, bytes);
    let volumes = [
        ram("tiny", MIB),
        ram("fixed", VOLUME_BYTES).option("read-only"),
        // The first block that a read reaches.
        ram("bad", VOLUME_BYTES).option("fault=unreadable@0"),
    ];
    let serving = Serving::start_with(&volumes, &[])?;
    let url = |name: &str| serving.url(name).to_string();
    let unknown = url("tiny").replace("tiny", "unknown");
    let (_socket, port) = closed_port()?;
    let gone = format!("iscsi://127.0.0.1:{port}/iqn.2026-11.proof:gone/0");
    // The target, the cells that fail, and the reason.
    let troubled = [
        (url("tiny"), [true, true], "1048576 bytes; a comparison needs at least 134217728"),
        (url("fixed"), [false, true], "DATA PROTECT"),
        (url("bad"), [true, false], "MEDIUM ERROR"),
        (unknown, [true, true], "the target does not exist at this portal"),
        (gone, [true, true], "Connection refused"),
    ];
    let mut arguments = vec!["run", "trinkle", "-c", "sarsen", "--destroy", "--report", "r.html"];
    troubled.iter().for_each(|(url, _, _)| arguments.extend(["-c", url]));
    arguments.extend(ONLY);
    let said = lab.say(&arguments)?.ended(DEGRADED)?;

    let run = lab.run(1)?;
    let page = lab.read("r.html")?;
    for (url, fails, reason) in &troubled {
        let name = url.split('/').nth(3).unwrap_or_default();
        for (test, fails) in [READS, WRITES].into_iter().zip(fails) {
            let cells = samples(&run, &[("target", name), ("test", test)]);
            assert_eq!(cells.len(), 3, "{name}, {test}");
            for cell in cells {
                let failed = cell["outcome"]["failed"].as_str();
                assert_eq!(failed.is_some(), *fails, "{cell}");
                ensure!(failed.is_none_or(|failed| failed.contains(reason)), "{cell}");
            }
            let reported = format!("target {name}, test {test} failed: ");
            let line = said.error.lines().find(|line| line.contains(&reported));
            assert_eq!(line.is_some_and(|line| line.contains(reason)), *fails, "{reported}{said}");
        }
        ensure!(said.out.contains(reason) && page.contains(reason), "{reason}: {said}");
    }
    for cell in samples(&run, &[("target", "sarsen")]) {
        ensure!(cell["outcome"]["measured"].is_object(), "{cell}");
    }
    // The lab reports volumes that it cannot fill before it measures anything.
    for name in ["tiny", "fixed", "unknown"] {
        ensure!(said.error.contains(&format!("{name}: lun cannot be filled: ")), "{name}: {said}");
    }
    lab.is_clean_after(&run)?;
    serving.stop()
}

#[test]
fn a_run_without_any_figure_has_failed() -> Result<()> {
    let lab = Laboratory::new()?;
    let (_socket, port) = closed_port()?;
    let gone = format!("iscsi://127.0.0.1:{port}/iqn.2026-11.proof:gone/0");
    let only = ["run", "trinkle", "--only", "test=Maximum Write IOPS", "--report", "r.html", "-c"];
    // The lab still measures the limits of the network and the memory.
    let said = lab.say(&[&only[..], &[&gone, "--destroy"]].concat())?.ended(FAILED)?;
    ensure!(
        said.error.contains("nothing was measured: ") && said.error.contains("refused"),
        "{said}"
    );
    // A run without any executed test has failed too.
    let said = lab.say(&[&only[..], &[&gone]].concat())?.ended(FAILED)?;
    ensure!(
        said.error.contains("nothing was measured: ") && said.error.contains("--destroy"),
        "{said}"
    );
    ensure!(lab.read("r.html")?.contains("Limits"), "what was measured is told");
    Ok(())
}

#[test]
fn invalid_arguments_are_refused_before_start() -> Result<()> {
    let lab = Laboratory::new()?;
    let twice = ["-c", "iscsi://a/iqn.2026-11.proof:x/0", "-c", "iscsi://b/iqn.2026-11.proof:x/0"];
    for (arguments, code, reported) in [
        (["run", "nothing"].as_slice(), USAGE, "known: trinkle"),
        (&["run", "trinkle", "-c", "ietd"], USAGE, "(known: sarsen, tgt, "),
        (&["run", "trinkle", "-c", "istgtt"], USAGE, "; did you mean istgt?"),
        (&["run", "trinkle", "-c", "scst"], USAGE, "name its folder with --scst"),
        (&["run", "trinkle", "--report", "r.pdf"], USAGE, "must be one of .html"),
        (&["run", "trinkle", "--report", "no/r.html"], USAGE, "folder no does not exist"),
        (&["run", "trinkle", "--only", "test=No such"], USAGE, "| Maximum IOPS | "),
        (&["run", "trinkle", "--only", "tset=Maximum IOPS"], USAGE, "; did you mean test?"),
        (&["run", "trinkle", "--only", "test"], USAGE, "write LABEL=VALUE"),
        (&["run", "trinkle", "--medium", "tape"], USAGE, "write ram or disk"),
        (&["run", "trinkle", "--full", "--quick"], USAGE, "cannot be used with"),
        (&["run", "trinkle", "-c", "sarsen", "-c", "sarsen"], USAGE, "sarsen is given twice"),
        (&[&["run", "trinkle"], &twice[..]].concat(), USAGE, "iqn.2026-11.proof:x is given twice"),
        (&["run", "trinkle", "--resume"], NOT_FOUND, "no interrupted run"),
    ] {
        let said = lab.say(arguments)?.ended(code)?;
        ensure!(said.error.contains(reported), "{arguments:?}: {said}");
        assert_eq!(said.out, "", "{arguments:?}");
    }
    assert_eq!(lab.say(&["runs"])?.ended(0)?.out, "");
    // A run that fails later has begun.
    let said = lab.say(&["run", "trinkle", "--folder", "nowhere"])?.ended(NOT_FOUND)?;
    ensure!(said.error.contains("nowhere"), "{said}");
    Ok(())
}

#[test]
fn secret_in_url_is_never_printed() -> Result<()> {
    const SECRET: &str = "hush-hush-hush";
    let lab = Laboratory::new()?;
    let (_socket, port) = closed_port()?;
    let place = format!("127.0.0.1:{port}/iqn.2026-11.proof:gone/0");
    let whole = format!("iscsi://me%{SECRET}@{place}?target_user=it&target_password={SECRET}");
    let odd = format!("--target=iscsi://me%a@b?{SECRET}@{place}");
    let reports = ["r.html", "r.json", "r.csv", "r.md", "r.tex"];
    let mut arguments = vec!["run", "trinkle", "--only", "test=Maximum IOPS"];
    reports.iter().for_each(|report| arguments.extend(["--report", report]));
    for target_under_test in [["-c", &whole].as_slice(), &[&odd]] {
        let said = lab.say(&[&arguments[..], target_under_test].concat())?.ended(FAILED)?;
        ensure!(said.error.contains("refused"), "{said}");
        ensure!(!said.to_string().contains(SECRET), "{said}");
        for file in reports {
            ensure!(!lab.read(file)?.contains(SECRET), "{file}");
        }
    }
    ensure!(lab.read("r.json")?.contains("iscsi://me%…@127.0.0.1"), "the command is kept");
    for wrong in [
        format!("iscsi://me%{SECRET}@host"),
        format!("iscsi:/me%{SECRET}@host/iqn.2026-11.proof:gone/0"),
        format!("iscsi://me%a/{SECRET}@{place}"),
        format!("iscsi://me%a/b?{SECRET}@{place}"),
        format!("iscsi://{place}?target_pasword={SECRET}"),
        format!("iscsi://me%{SECRET}@{place}5000000"),
    ] {
        for arguments in [["run", "trinkle", "-c", &wrong].as_slice(), &["run", &wrong]] {
            let said = lab.say(arguments)?.ended(USAGE)?;
            ensure!(!said.to_string().contains(SECRET), "{said}");
        }
    }
    for entry in std::fs::read_dir(lab.folder())? {
        let bytes = std::fs::read(entry?.path())?;
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        ensure!(!found, "it is in the archive");
    }
    Ok(())
}
