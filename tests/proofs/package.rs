//! The Debian package that `cargo xtask package` builds: dpkg installs, upgrades and purges it below a separate folder,
//! and systemd checks its units.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::process;

/// Environment variable with the path of a package to test; without it, the proof builds one.
const VARIABLE: &str = "SARSEN_DEB";
/// Maximum duration of the build, which includes a cold release build on two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
const LIMIT: Duration = Duration::from_secs(120);
/// Maximum of systemd's security exposure level, which is from 0 to 100; systemd calls 20 OK.
const EXPOSURE_LIMIT: &str = "20";

fn package() -> Result<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| make().map_err(|error| format!("{error:#}")));
    made.clone().map_err(anyhow::Error::msg)
}

fn make() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Ok(path.into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the repository")?;
    let mut xtask = Command::new(cargo);
    xtask.args(["xtask", "package"]).current_dir(root);
    let said = process::output(&mut xtask, BUILD_LIMIT)?;
    Ok(root.join(said.lines().last().context("the package's path")?))
}

/// A machine's files, below a folder.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for path in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
            fs::create_dir_all(folder.path().join(path))?;
        }
        fs::write(folder.path().join("var/lib/dpkg/status"), "")?;
        Ok(Self(folder))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn dpkg(&self, arguments: &[&str]) -> Result<String> {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.0.path().display()));
        // This machine has no other packages. Its scripts run on the host and get the path of the machine.
        dpkg.args(["--force-depends", "--force-script-chrootless", "--force-not-root"]);
        Ok(process::output(dpkg.args(arguments), LIMIT)?)
    }

    fn with_package() -> Result<Self> {
        let machine = Self::new()?;
        machine.dpkg(&["--install", &package()?.display().to_string()])?;
        Ok(machine)
    }
}

/// Builds the same package with a higher version.
fn next_version(folder: &Path) -> Result<PathBuf> {
    let (root, next) = (folder.join("root"), folder.join("next.deb"));
    let mut unpack = Command::new("dpkg-deb");
    process::output(unpack.arg("--raw-extract").arg(package()?).arg(&root), LIMIT)?;
    let control = root.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    let version = text.lines().find(|line| line.starts_with("Version: ")).context("a version")?;
    fs::write(&control, text.replace(version, &format!("{version}.1")))?;
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Znone", "--build"]).arg(&root).arg(&next);
    process::output(&mut pack, LIMIT)?;
    Ok(next)
}

#[test]
#[ignore = "makes a release build and a package"]
fn an_upgrade_keeps_an_edited_configuration_and_a_purge_keeps_disks() -> Result<()> {
    let machine = Machine::with_package()?;
    let (config, secrets) = (machine.path("etc/sarsen/sarsen.toml"), "etc/sarsen/secrets");
    let mode = fs::metadata(machine.path(secrets))?.permissions().mode();
    ensure!(mode & 0o777 == 0o700, "secrets are in a folder of mode {mode:o}");
    let enabled = "etc/systemd/system/multi-user.target.wants/sarsen.service";
    ensure!(machine.path(enabled).is_symlink(), "the service is enabled");
    let socket = "etc/systemd/system/sockets.target.wants/sarsen.socket";
    ensure!(!machine.path(socket).is_symlink(), "the socket is not, unless somebody wants it");

    let edited = fs::read_to_string(&config)? + "\nlisten = [\"127.0.0.1:3261\"]\n";
    fs::write(&config, &edited)?;
    let folder = tempfile::tempdir()?;
    machine.dpkg(&["--install", &next_version(folder.path())?.display().to_string()])?;
    ensure!(fs::read_to_string(&config)? == edited, "the upgrade has changed the configuration");

    machine.dpkg(&["--remove", "sarsen"])?;
    ensure!(config.is_file() && !machine.path("usr/bin/sarsen").exists(), "after the removal");
    let disk = machine.path("var/lib/sarsen/data.img");
    fs::create_dir_all(disk.parent().context("a folder")?)?;
    fs::write(&disk, "a disk")?;
    machine.dpkg(&["--purge", "sarsen"])?;
    ensure!(!config.exists() && !machine.path(enabled).is_symlink(), "after the purge");
    ensure!(disk.is_file(), "somebody's disk is gone");
    Ok(())
}

#[test]
#[ignore = "makes a release build and a package"]
fn systemd_understands_the_units_and_finds_the_service_well_confined() -> Result<()> {
    let machine = Machine::with_package()?;
    // A command from another package, which every machine has.
    let kill = machine.path("bin/kill");
    fs::create_dir_all(machine.path("bin"))?;
    fs::write(&kill, "")?;
    fs::set_permissions(&kill, fs::Permissions::from_mode(0o755))?;
    let analyze = |arguments: &[&str]| {
        let mut analyze = Command::new("systemd-analyze");
        analyze.arg(format!("--root={}", machine.0.path().display())).args(arguments);
        process::finish(&mut analyze, LIMIT)
    };
    let verified = analyze(&["verify", "--man=no", "sarsen.service", "sarsen.socket"])?;
    // This machine has no other units.
    let ours = verified.output.lines().filter(|line| line.contains("sarsen.s"));
    let ours: Vec<_> = ours.filter(|line| !line.contains("not found")).collect();
    ensure!(ours.is_empty(), "{ours:#?}");
    let threshold = format!("--threshold={EXPOSURE_LIMIT}");
    let judged = analyze(&["security", "--offline=true", &threshold, "sarsen.service"])?;
    judged.success()?;

    let unit = fs::read_to_string(machine.path("usr/lib/systemd/system/sarsen.service"))?;
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/sarsen "));
    let start = start.context("the unit starts sarsen")?;
    let mut help = Command::new(machine.path("usr/bin/sarsen"));
    let help = process::output(help.args(["serve", "--help"]), LIMIT)?;
    for flag in start.split(' ').filter(|word| word.starts_with("--")) {
        ensure!(help.contains(flag), "the program does not know {flag}");
    }
    Ok(())
}

/// Runs the package's service under a systemd that is the first process in separate namespaces.
fn play_service() -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    fs::copy(package()?, folder.path().join("sarsen.deb"))?;
    fs::write(folder.path().join("scenario.sh"), include_str!("../service/scenario.sh"))?;
    let machine = folder.path().join("machine.sh");
    fs::write(&machine, include_str!("../service/machine.sh"))?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--net", "--cgroup", "--uts"]);
    unshare.args(["--ipc", "bash"]).arg(&machine).arg(folder.path());
    let console = process::finish(&mut unshare, LIMIT)?.output;
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let (reported, log) = (read("scenario.log"), read("sarsen.log"));
    let results = reported.lines().filter_map(|line| line.strip_prefix("RESULT "));
    let results: Vec<_> = results.map(str::to_owned).collect();
    println!("{console}\n{reported}\n{log}");
    Ok(results)
}

#[test]
#[ignore = "makes a release build and a package"]
fn no_connection_is_refused_during_service_restart_or_upgrade() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        println!("not seen: a systemd of one's own needs root");
        return Ok(());
    }
    let results = play_service()?;
    let expected = [
        "started active",
        "served yes",
        "credential sarsen:400",
        "capabilities 0000000000000000",
        "filtered 2",
        "user nobody",
        "upgraded 0",
        "process same",
        "refused 0",
        "connected yes",
        "served_after yes",
        "closed yes",
        "waiting inactive",
        "activated yes",
    ];
    assert_eq!(results, expected);
    Ok(())
}

#[test]
#[ignore = "makes a release build and a package"]
fn the_example_in_the_configuration_can_be_served() -> Result<()> {
    let machine = Machine::with_package()?;
    let shipped = fs::read_to_string(machine.path("etc/sarsen/sarsen.toml"))?;
    let example = shipped.lines().filter_map(|line| line.strip_prefix("# "));
    let example = example.filter(|line| line.starts_with('[') || line.contains(" = "));
    let example = shipped.lines().filter(|line| line.contains(" = ")).chain(example);
    let config = machine.path("example.toml");
    fs::write(&config, example.collect::<Vec<_>>().join("\n"))?;
    let mut doctor = Command::new(machine.path("usr/bin/sarsen"));
    doctor.args(["doctor", "--json", "--config"]).arg(&config);
    let reported = process::finish(&mut doctor, LIMIT)?.output;
    let line = reported.lines().find(|line| line.starts_with('{')).context("a report")?;
    let report: serde_json::Value = serde_json::from_str(line)?;
    let findings = report["findings"].as_array().context("findings")?;
    let mut of_configuration =
        findings.iter().filter(|finding| finding["check"] == "configuration");
    ensure!(of_configuration.any(|finding| finding["level"] == "ok"), "{reported}");
    Ok(())
}

#[test]
#[ignore = "makes a release build and a package"]
fn lintian_finds_no_error_in_the_package() -> Result<()> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error", "--no-tag-display-limit", "--allow-root"]).arg(package()?);
    process::output(&mut lintian, LIMIT)?;
    Ok(())
}

#[test]
#[ignore = "makes a release build and a package"]
fn completions_and_manual_pages_are_carried() -> Result<()> {
    let machine = Machine::with_package()?;
    let mut man = Command::new("man");
    man.arg("--local-file").arg(machine.path("usr/share/man/man1/sarsen-target-url.1.gz"));
    let page = process::output(man.env("MANPAGER", "cat").env("LC_ALL", "C.UTF-8"), LIMIT)?;
    ensure!(page.contains("EXIT STATUS") && page.contains("--format"), "{page}");
    // Completes `sarsen tar` as a shell does when the user presses tab.
    let script = machine.path("usr/share/bash-completion/completions/sarsen");
    let complete = "source \"$1\"; COMP_WORDS=(sarsen tar); COMP_CWORD=1; _sarsen sarsen tar sarsen; \
                    echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let completed = process::output(bash.args(["-c", complete, "bash"]).arg(script), LIMIT)?;
    ensure!(completed.trim() == "target", "{completed:?}");
    Ok(())
}
