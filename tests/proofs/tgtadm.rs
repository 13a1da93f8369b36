//! Scripts for tgt control this program without changes: Pacemaker's resource agents, and tgt-admin as OpenStack Cinder
//! calls it.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::{SessionOptions, Unit};
use sarsen_proof::managed::Managed;
use sarsen_proof::process::{self, Finished};
use sarsen_proof::program;

use crate::client::{LIMIT, run};

const AGENTS: &str = "/usr/lib/ocf/resource.d/heartbeat";
const RUNNING: i32 = 0;
const NOT_RUNNING: i32 = 7;
const HIGHLY_AVAILABLE: &str = "iqn.2026-11.proof:ha";
const CINDER: &str = "iqn.2010-10.org.openstack:volume-1";

/// A server, and a folder in which tgtadm is this program.
struct Stage {
    server: Managed,
    folder: tempfile::TempDir,
}

impl Stage {
    fn set() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for name in ["bin", "run"] {
            fs::create_dir(folder.path().join(name))?;
        }
        symlink(program::path()?, folder.path().join("bin/tgtadm"))?;
        File::create(folder.path().join("disk.img"))?.set_len(64 << 20)?;
        Ok(Self { server: Managed::start(folder.path())?, folder })
    }

    fn disk(&self) -> PathBuf {
        self.folder.path().join("disk.img")
    }

    /// Returns a script that finds this tgtadm.
    fn script(&self, program: impl AsRef<Path>) -> Result<Command> {
        let mut command = Command::new(program.as_ref());
        let bin = self.folder.path().join("bin");
        let path = std::env::var("PATH").context("PATH")?;
        command.env("PATH", format!("{}:{path}", bin.display()));
        // The path that `Managed` uses.
        command.env("SARSEN_CONTROL", self.folder.path().join("control.sock"));
        Ok(command)
    }

    fn tgtadm(&self, line: &str) -> Result<Finished> {
        let mut command = self.script(self.folder.path().join("bin/tgtadm"))?;
        Ok(process::finish(command.args(line.split(' ')), LIMIT)?)
    }

    /// Returns the exit code of a resource agent's action.
    fn agent(&self, agent: &str, action: &str, parameters: &[(&str, &str)]) -> Result<i32> {
        let mut command = self.script(Path::new(AGENTS).join(agent))?;
        command.arg(action).env("OCF_ROOT", "/usr/lib/ocf").env("OCF_RESOURCE_INSTANCE", "proof");
        command.env("HA_RSCTMP", self.folder.path().join("run"));
        command.env("OCF_RESKEY_implementation", "tgt");
        for (name, value) in parameters {
            command.env(format!("OCF_RESKEY_{name}"), value);
        }
        let finished = process::finish(&mut command, LIMIT)?;
        let code = finished.status.and_then(|status| status.code());
        code.with_context(|| format!("{agent} {action} does not end: {}", finished.output))
    }

    fn url(&self, user: &str, target: &str) -> Result<String> {
        Ok(format!("iscsi://{user}@{}/{target}/1", self.server.portal()?))
    }
}

#[test]
fn pacemakers_agents_start_watch_and_stop_a_target_that_is_used() -> Result<()> {
    let stage = Stage::set()?;
    let disk = stage.disk();
    let target = [
        ("iqn", HIGHLY_AVAILABLE),
        ("tid", "3"),
        ("incoming_username", "web"),
        ("incoming_password", "secretpass12"),
        ("allowed_initiators", "127.0.0.1"),
    ];
    let unit = [
        ("target_iqn", HIGHLY_AVAILABLE),
        ("lun", "1"),
        ("path", disk.to_str().context("a path")?),
        ("scsi_sn", "SN-4711"),
        ("vendor_id", "ACME"),
    ];
    let acts = |agent: &str, action: &str| match agent {
        "iSCSITarget" => stage.agent(agent, action, &target),
        _ => stage.agent(agent, action, &unit),
    };
    for agent in ["iSCSITarget", "iSCSILogicalUnit"] {
        for (action, code) in
            [("monitor", NOT_RUNNING), ("start", RUNNING), ("monitor", RUNNING), ("start", RUNNING)]
        {
            let answered = acts(agent, action)?;
            ensure!(answered == code, "{agent} {action}: {answered}; {}", stage.server.log());
        }
    }
    let url = stage.url("web%secretpass12", HIGHLY_AVAILABLE)?.parse()?;
    run(async {
        let session = Unit::connect(&url, &SessionOptions::default()).await?;
        let found = session.inquiry().await?;
        ensure!(found.vendor == "ACME" && session.serial().await?.as_deref() == Some("SN-4711"));
        let stranger = stage.url("web%secretpass13", HIGHLY_AVAILABLE)?.parse()?;
        ensure!(Unit::connect(&stranger, &SessionOptions::default()).await.is_err());
        // The agent ends the open session before it deletes the target.
        let code = acts("iSCSITarget", "stop")?;
        ensure!(code == RUNNING, "stop: {code}; {}", stage.server.log());
        Ok(())
    })?;
    for agent in ["iSCSITarget", "iSCSILogicalUnit"] {
        ensure!(acts(agent, "monitor")? == NOT_RUNNING, "{agent} is there still");
        ensure!(acts(agent, "stop")? == RUNNING, "{agent} cannot be stopped twice");
    }
    let left = stage.server.run(&["export"])?;
    ensure!(left.trim().is_empty(), "left behind:\n{left}");
    stage.server.stop()
}

#[test]
fn tgt_admin_makes_shows_and_deletes_targets_as_cinder_asks() -> Result<()> {
    let stage = Stage::set()?;
    let volumes = stage.folder.path().join("volumes");
    fs::create_dir(&volumes)?;
    let configuration = stage.folder.path().join("targets.conf");
    fs::write(&configuration, format!("include {}/*\n", volumes.display()))?;
    fs::write(
        volumes.join("volume-1"),
        format!(
            "\n    <target {CINDER}>\n        backing-store {}\n        driver iscsi\n        \
             incominguser cinderuser cindersecret12\n        write-cache off\n    </target>\n",
            stage.disk().display()
        ),
    )?;
    let admin = |arguments: &[&str]| {
        let mut command = stage.script("tgt-admin")?;
        command.arg("--conf").arg(&configuration).args(arguments);
        Ok::<_, anyhow::Error>(process::output(&mut command, LIMIT)?)
    };
    let shown = stage.tgtadm("--lld iscsi --op show --mode target")?.success()?;
    ensure!(shown.is_empty(), "{shown}");
    // The second update replaces the existing target.
    for _ in 0..2 {
        admin(&["--update", CINDER])?;
        let shown = admin(&["--show"])?;
        // Cinder reads the number from this line and searches for that one.
        ensure!(shown.contains(&format!("Target 1: {CINDER}\n")), "{shown}");
        ensure!(shown.lines().any(|line| line == "        LUN: 1"), "{shown}");
    }
    let cache = stage.server.run(&["export"])?;
    ensure!(cache.contains("cache = \"writethrough\""), "{cache}");
    let url = stage.url("cinderuser%cindersecret12", CINDER)?.parse()?;
    run(async {
        let session = Unit::connect(&url, &SessionOptions::default()).await?;
        // The values that tgtd would report.
        let naa = session.naa().await?.context("a name of the unit")?;
        ensure!(session.serial().await?.as_deref() == Some("beaf11"), "another serial number");
        let busy = stage.tgtadm("--lld iscsi --op delete --mode target --tid 1")?;
        ensure!(busy.output.contains("this target is still active"), "{}", busy.output);
        ensure!(busy.status.and_then(|status| status.code()) == Some(22));
        let kept = admin(&["--delete", CINDER])?;
        ensure!(admin(&["--show"])?.contains(CINDER), "it went while it was used: {kept}");
        admin(&["--force", "--delete", CINDER])?;
        ensure!(!naa.is_empty());
        Ok(())
    })?;
    ensure!(admin(&["--show"])?.trim().is_empty(), "it is there still");
    for (line, reported) in [
        ("--lld iscsi --op delete --mode target --tid 1", "can't find the target"),
        ("--lld iscsi --op unbind --mode target --tid 1 -I ALL", "can't find the target"),
        ("--lld iser --op show --mode target", "can't find the driver"),
    ] {
        let finished = stage.tgtadm(line)?;
        ensure!(finished.output.contains(reported), "{line}: {}", finished.output);
        ensure!(finished.status.and_then(|status| status.code()) == Some(22), "{line}");
    }
    stage.server.stop()
}
