//! A Linux kernel's own initiator. Ignored by default: emulation is slow, and Debian's kernel is downloaded once.
//! `cargo xtask ci --full` runs it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use sarsen_lab::record::{Labels, Outcome};
use sarsen_lab::study::lunden::{self, OPERATION, SETUP};
use sarsen_proof::guest::{self, Guest, HOST};
use sarsen_proof::{Accounts, Backing, Serving, Volume};

use crate::client;
use crate::paths::Link;

const BYTE_COUNT: u64 = 256 << 20;

fn ext4_lives(volume: Volume, digest: &str) -> Result<()> {
    let name = volume.name.clone();
    let serving = Serving::start(&[volume])?;
    let url = serving.url(&name);
    let environment = [
        ("PORTAL", format!("{HOST}:{}", url.port()?)),
        ("IQN", url.iqn.clone()),
        ("HEADER_DIGEST", digest.to_owned()),
        ("DATA_DIGEST", digest.to_owned()),
    ];
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let played = guest::run("ext4", &environment).with_context(|| serving.log())?;
    println!("{}", played.console);
    assert_eq!(played.result("bytes")?, BYTE_COUNT.to_string());
    let in_use = if digest == "CRC32C" { "1" } else { "0" };
    assert_eq!(played.result("header_digest")?, in_use);
    assert_eq!(played.result("data_digest")?, in_use);
    let written = played.result("written")?;
    assert_eq!(written.len(), 64, "a SHA-256 in hexadecimal");
    assert_eq!(played.result("read")?, written);
    assert_eq!(played.result("read_after_trim")?, written);
    assert_eq!(played.result("trim")?, "done");
    assert_eq!(played.result("complaints")?, "0", "{}", played.console);
    serving.stop()
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn ext4_on_a_ram_volume_is_clean_and_equal_after_a_remount() -> Result<()> {
    ext4_lives(Volume::new("scratch", Backing::Ram, BYTE_COUNT), "None")
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn ext4_on_a_file_volume_is_clean_and_equal_with_both_digests() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let backing = Backing::File(folder.path().join("data.img"));
    ext4_lives(Volume::new("data", backing, BYTE_COUNT), "CRC32C")
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn alua_initiator_sees_state_changes_of_both_portal_groups() -> Result<()> {
    const IQN: &str = "iqn.2026-11.proof:paths";
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("sarsen.toml");
    fs::write(
        &path,
        format!(
            "listen = [\"127.0.0.1:0,2\"]\n[[target]]\nname = \"{IQN}\"\nluns = [\"scratch\"]\n\
             access = {{ 1 = \"optimized\", 2 = \"non-optimized\" }}\npreferred = 1\n"
        ),
    )?;
    let volume = Volume::new("scratch", Backing::Ram, BYTE_COUNT);
    let configuration = path.to_str().context("a path of text")?;
    let serving = Serving::start_with(&[volume], &["--config", configuration])?;
    let paths = serving.paths("scratch")?;
    let portals: Result<Vec<String>> =
        paths.iter().map(|(group, url)| Ok(format!("{HOST}:{},{group}", url.port()?))).collect();
    let portals = portals?;
    let environment = [("PORTAL", &*portals[0]), ("PORTAL_2", &*portals[1]), ("IQN", IQN)];
    let played = guest::run("alua", &environment).with_context(|| serving.log())?;
    println!("{}", played.console);
    assert_eq!(played.result("handlers")?, "alua");
    assert_eq!(played.result("preferred")?, "1 0");
    assert_eq!(played.result("groups")?, "port group 1 rel port 1;port group 2 rel port 2;");
    assert_eq!(played.result("write")?, "done");
    assert_eq!(played.result("standby")?, "seen");
    assert_eq!(played.result("standby_ready")?, "no");
    assert_eq!(played.result("offline")?, "seen");
    assert_eq!(played.result("read")?, "done");
    assert_eq!(played.result("read_again")?, "done");
    serving.stop()
}

/// Prints how long the longest request of the kernel's own initiator takes when one of two paths is cut or silent.
fn dm_multipath_replaces_a_lost_path(drop_in: &str, replacement_timeout: &str) -> Result<()> {
    let cases = ["cut", "silent"].repeat(5);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("sarsen.conf");
    fs::write(&path, drop_in)?;
    let volume = Volume::new("disk", Backing::Ram, BYTE_COUNT);
    let serving = Serving::start_with(&[volume], &["--listen", "127.0.0.1:0"])?;
    let urls = serving.urls("disk")?;
    let iqn = serving.url("disk").iqn.clone();
    let failovers = client::run(async {
        let links = [Link::new(&urls[0].portal).await?, Link::new(&urls[1].portal).await?];
        let portal = |link: &Link| format!("{HOST}:{}", link.own.port());
        let (first, second) = (portal(&links[0]), portal(&links[1]));
        let environment = [
            ("PORTAL", &*first),
            ("PORTAL_2", &*second),
            ("IQN", &*iqn),
            ("CASES", &*cases.join(" ")),
            ("REPLACEMENT_TIMEOUT", replacement_timeout),
        ];
        let guest = Guest::new("multipath", &environment)?;
        let guest = Arc::new(guest.file("etc/multipath/conf.d/sarsen.conf", &path).start()?);
        // The links live on this thread.
        let result = async |name: String| {
            let guest = guest.clone();
            tokio::task::spawn_blocking(move || guest.result(&name)).await?
        };
        let mut failovers = Vec::new();
        for (index, case) in (1..).zip(cases.iter().copied()) {
            result(format!("started{index}")).await?;
            match case {
                "cut" => links[0].cut().await,
                _ => drop(links[0].moves.send_replace(false)),
            }
            let longest: u64 = result(format!("failover{index}")).await?.parse()?;
            match case {
                "cut" => links[0].mend().await?,
                _ => drop(links[0].moves.send_replace(true)),
            }
            failovers.push((case, longest));
        }
        let guest = guest.clone();
        let played = tokio::task::spawn_blocking(move || guest.report()).await??;
        println!("{}", played.console);
        for index in 1..=cases.len() {
            assert_eq!(played.result(&format!("fio{index}"))?, "done");
        }
        assert_eq!(played.result("complaints")?, "0");
        Ok(failovers)
    })?;
    for case in ["cut", "silent"] {
        let of_case = failovers.iter().filter(|(of, _)| *of == case);
        let mut of_case: Vec<u64> = of_case.map(|(_, longest)| *longest).collect();
        of_case.sort_unstable();
        println!("{case}: longest request in ms: {of_case:?}");
    }
    serving.stop()
}

fn packaged_drop_in() -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/multipath/sarsen.conf");
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn dm_multipath_with_the_packaged_drop_in_replaces_a_lost_path() -> Result<()> {
    // The drop-in replaces open-iscsi's default.
    dm_multipath_replaces_a_lost_path(&packaged_drop_in()?, "120")
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn dm_multipath_without_a_delay_of_its_own_replaces_a_lost_path() -> Result<()> {
    let drop_in =
        packaged_drop_in()?.replace("fast_io_fail_tmo       1", "fast_io_fail_tmo       off");
    assert!(drop_in.contains("fast_io_fail_tmo       off"));
    dm_multipath_replaces_a_lost_path(&drop_in, "0")
}

/// QEMU's own iSCSI driver provides a guest's disk, and forwards its discards. The guest boots from the disk.
#[test]
#[ignore = "boots a kernel under emulation"]
fn a_guest_boots_from_a_disk_of_4_kib_blocks_and_discards() -> Result<()> {
    let volume = Volume::new("root", Backing::Ram, 512 << 20).block_size(4096);
    let serving = Serving::start(&[volume])?;
    let drive = format!("if=none,id=root,format=raw,discard=unmap,file={}", serving.url("root"));
    let device = "scsi-hd,drive=root,logical_block_size=4096,physical_block_size=4096";
    let devices = ["-device", "virtio-scsi-pci", "-drive", &drive, "-device", device];
    let play = |scenario: &str, environment: &[(&str, &str)]| {
        let guest = Guest::new(scenario, environment)?.devices(&devices);
        guest.run().with_context(|| serving.log())
    };
    let installed = play("install", &[("DISK", "/dev/sda")])?;
    assert_eq!(installed.result("block_bytes")?, "4096");
    assert_ne!(installed.result("discard_bytes")?, "0");
    assert_eq!(installed.result("installed")?, "done");
    let booted = play("install", &[("ROOT", "/dev/sda")])?;
    println!("{}", booted.console);
    assert_eq!(booted.result("root")?, "1");
    let written = booted.result("written")?;
    assert_eq!(written.len(), 64, "a SHA-256 in hexadecimal");
    assert_eq!(booted.result("read")?, written);
    assert_eq!(booted.result("copied")?, written);
    assert_eq!(booted.result("trim")?, "done");
    assert_eq!(booted.result("complaints")?, "0", "{}", booted.console);
    serving.stop()
}

/// A small version of the study: a file system on the LUN, bonnie++ on it, and its lines converted to samples.
#[test]
#[ignore = "boots a kernel under emulation"]
fn bonnie_on_a_lun_becomes_the_samples_of_the_study() -> Result<()> {
    const RUNS: usize = 2;
    let serving = Serving::start(&[Volume::new("scratch", Backing::Ram, BYTE_COUNT)])?;
    let url = serving.url("scratch");
    let (portal, runs) = (format!("{HOST}:{}", url.port()?), RUNS.to_string());
    let environment =
        [("PORTAL", portal.as_str()), ("IQN", url.iqn.as_str()), ("RUNS", runs.as_str())];
    let played = guest::run("bonnie", &environment).with_context(|| serving.log())?;
    println!("{}", played.console);
    assert_eq!(played.result("complaints")?, "0", "{}", played.console);
    // One heading, which has too few fields, and one line for each run.
    assert_eq!(played.result("lines")?, (RUNS + 1).to_string());
    let lines: Result<Vec<_>> =
        (0..=RUNS).map(|line| played.result(&format!("line_{line}"))).collect();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("iscsi-base.csv");
    fs::write(&path, lines?.join("\n"))?;
    let samples = lunden::run_from_files(&[path])?;
    assert_eq!(samples.len(), RUNS * 12, "{samples:?}");
    let setup = Labels::new().with(SETUP, "iscsi-base");
    assert!(samples.iter().all(|sample| sample.labels.include(&setup)), "{samples:?}");
    // An operation that is too fast for a rate has a latency: every operation was measured.
    let unmeasured = samples.iter().find(|sample| !matches!(sample.outcome, Outcome::Measured(_)));
    assert_eq!(unmeasured, None);
    let putc = setup.with(OPERATION, "putc");
    let rates = samples.iter().filter(|sample| sample.labels.include(&putc)).map(|sample| {
        match &sample.outcome {
            Outcome::Measured(measures) => measures.figures.get(lunden::figures::KIB_PER_S),
            other => panic!("{other:?}"),
        }
    });
    // In a guest, a MiB byte by byte is never too fast for a rate.
    assert!(rates.clone().all(|rate| rate.is_some_and(|rate| *rate > 0.0)), "{samples:?}");
    assert_eq!(rates.count(), RUNS);
    serving.stop()
}

/// Runs every tool of sg3-utils that applies to a disk, on the kernel's own devices.
#[test]
#[ignore = "boots a kernel under emulation"]
fn sg3_utils_have_no_complaint() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str| Backing::File(folder.path().join(name));
    let volumes = ["one", "two"].map(|name| Volume::new(name, file(name), 64 << 20));
    let serving = Serving::start(&volumes)?;
    let (one, two) = (serving.url("one"), serving.url("two"));
    let portal = format!("{HOST}:{}", one.port()?);
    let environment =
        [("PORTAL", portal.as_str()), ("IQN", one.iqn.as_str()), ("IQN_OTHER", two.iqn.as_str())];
    let played = guest::run("sg3", &environment).with_context(|| serving.log())?;
    println!("{}", played.console);
    assert_eq!(played.result("failed")?, "none");
    assert_eq!(played.result("complaints")?, "0");
    serving.stop()
}

/// Checks how sg3-utils displays pages, logs, buffers and self-tests, and which settings it changes and saves.
#[test]
#[ignore = "boots a kernel under emulation"]
fn sg3_utils_accept_pages_logs_buffers_self_tests_and_modes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let backing = Backing::File(folder.path().join("data.img"));
    let serving = Serving::start(&[Volume::new("data", backing, 64 << 20)])?;
    let url = serving.url("data");
    let portal = format!("{HOST}:{}", url.port()?);
    let environment = [("PORTAL", portal.as_str()), ("IQN", url.iqn.as_str())];
    let played = guest::run("maintenance", &environment).with_context(|| serving.log())?;
    println!("{}", played.console);
    for check in [
        "all_vpd",
        "opcodes",
        "task_management",
        "all_modes",
        "all_logs",
        "default_test",
        "short_test",
        "diagnostics",
        "logs_reset",
        "defects",
        "reassigned",
        "shared_buffer",
        "echo_written",
        "clock_set",
        "identified",
        "protected",
        "reverted",
        "written",
    ] {
        assert_eq!(played.result(check)?, "passed", "{check}: {}", played.console);
    }
    assert_eq!(played.result("write")?, "refused");
    for (name, part) in [
        ("extended", "SIMPSUP=1"),
        ("policy", "3f"),
        ("logs", "0x2f"),
        ("temperature", "not available"),
        ("cycles", "= 0"),
        ("tested", "completed without error"),
        ("echo_descriptor", "01 00 10 00"),
        ("echo", "an echo!"),
        ("security", "01 00"),
        ("clock", "86400"),
        ("identity", "rack 7"),
        ("swp", "8a 0a 00 10 08"),
    ] {
        let found = played.result(name)?;
        assert!(found.contains(part), "{name}: {found:?}\n{}", played.console);
    }
    serving.stop()
}

/// open-iscsi and the program authenticate each other with an algorithm other than MD5, and use both digests.
#[test]
#[ignore = "boots a kernel under emulation"]
fn open_iscsi_uses_mutual_chap_and_both_digests() -> Result<()> {
    const IQN: &str = "iqn.2026-11.proof:guarded";
    const HOST_ACCOUNT: (&str, &str) = ("host", "what the host knows");
    const OWN_ACCOUNT: (&str, &str) = ("box", "what the box knows");
    let accounts = Accounts::new(&[HOST_ACCOUNT, OWN_ACCOUNT])?;
    let configuration = accounts.configuration(&format!(
        "[[target]]\nname = \"{IQN}\"\nluns = [\"disk\"]\nchap = [\"host\"]\nown-account = \"box\"\n\
         algorithms = [\"sha3-256\", \"sha-256\"]\n"
    ))?;
    let volume = Volume::new("disk", Backing::Ram, 64 << 20);
    let serving = Serving::start_with(&[volume], &["--config", &configuration])?;
    let portal = format!("{HOST}:{}", serving.url("disk").port()?);
    let environment = [
        ("PORTAL", portal.as_str()),
        ("IQN", IQN),
        ("USER", HOST_ACCOUNT.0),
        ("SECRET", HOST_ACCOUNT.1),
        ("TARGET_USER", OWN_ACCOUNT.0),
        ("TARGET_SECRET", OWN_ACCOUNT.1),
    ];
    let played = guest::run("chap", &environment).with_context(|| serving.log())?;
    println!("{}", played.console);
    for digest in ["header_digest", "data_digest"] {
        assert_eq!(played.result(digest)?, "1");
    }
    assert_eq!(played.result("username")?, HOST_ACCOUNT.0);
    assert_eq!(played.result("username_in")?, OWN_ACCOUNT.0);
    assert_eq!(played.result("read")?, played.result("written")?);
    // 24 is open-iscsi's code for a failed authentication.
    assert_eq!(played.result("wrong_secret")?, "refused with 24");
    assert_eq!(played.result("nobody")?, "refused with 24");
    assert!(played.result("wrong_target")?.starts_with("refused"), "{}", played.console);
    assert_eq!(played.result("right_again")?, "in");
    assert_eq!(played.result("complaints")?, "0", "{}", played.console);
    serving.stop()
}
