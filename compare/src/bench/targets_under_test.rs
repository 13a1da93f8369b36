//! The targets that are measured in a group, and the paths to them.

use std::env::temp_dir;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use sarsen_initiator::Url;
use sarsen_io::wake_ups;
use sarsen_lab::load::Endpoint;
use sarsen_lab::network::{LinkProfile, Network};
use sarsen_lab::process::{Daemon, ProcessError};
use sarsen_lab::target_under_test::{
    Folders, Medium, Running, TargetUnderTest, VolumeSpec, sarsen,
};
use sarsen_node::stores::CacheMode;
use sarsen_proof::process;
use sarsen_proof::program::{self, Profile};
use tempfile::TempDir;

use super::points::Group;
use super::pools::{LoopDevice, Medium as PoolMedium, Preparation};
use super::{Options, files, gateways, nbd, neighbours, pools};

pub(super) const SARSEN: &str = "sarsen";
/// This project's program when it never spins.
pub(super) const SLEEPING: &str = "sarsen, sleeping";
/// This project's program with one thread, as the limit has.
pub(super) const ONE_CORE: &str = "sarsen, sleeping, one core";
pub(super) const TGT: &str = "tgt";
pub(super) const ISTGT: &str = "istgt";
pub(super) const LIMIT: &str = "limit";
pub(super) const LIMIT_SPINNING: &str = "limit, spinning";
/// The limit when it stores written data.
pub(super) const LIMIT_KEEPING: &str = "limit, keeping";
pub(super) const FIO: &str = "fio, io_uring";
pub(super) const LUNS_ONE: &str = "sarsen, 1 unit";
pub(super) const LUNS_MANY: &str = "sarsen, 1,000 units";
pub(super) const IDLE_ONE: &str = "sarsen, 1 idle";
pub(super) const IDLE_MANY: &str = "sarsen, 1,000 idle";

pub(super) const VOLUME: &str = "bench";
const BYTE_COUNT: u64 = 1 << 30;
/// Number of units in a group of many.
const MANY: usize = 1000;
const UNIT_MIB: usize = 16;
/// The limit accepts any target name.
const LIMIT_TARGET: &str = "iqn.2026-11.invalid.example:limit";
const LIMIT_PACKAGE: &str = "sarsen-limit";
/// The feature with which wake-ups can cost more.
const SLOW_WAKE_UPS: &str = "slow-wake-ups";
/// The cost of a wake-up that was measured on virtual machines with busy hosts: 50 to 100 microseconds.
pub(super) const WAKE_UP_COST_US: u32 = 70;
const HELP_LIMIT: Duration = Duration::from_secs(20);
/// Time from the start of the limit to its readiness: it fills its memory first.
const LIMIT_READY: Duration = Duration::from_secs(30);

/// A target under test at all points of a group.
pub(super) struct Participant {
    pub(super) name: String,
    pub(super) way: MeasureMode,
    /// Sessions that log in before each measurement and do nothing.
    pub(super) idle: usize,
    /// Process that is stopped while others are measured, because it never sleeps.
    pub(super) restless: Option<Pid>,
    /// A target of another project: it may fail.
    pub(super) is_peer: bool,
    /// The volume must be filled first, so that reads do not hit holes.
    pub(super) is_empty: bool,
    /// The state in which each run finds the volume.
    pub(super) preparation: Option<Preparation>,
    /// The only point at which it is measured.
    pub(super) only: Option<&'static str>,
    /// A volume that runs at full load meanwhile.
    pub(super) neighbour: Option<Url>,
}

/// How a target under test is measured.
pub(super) enum MeasureMode {
    /// By the load generator; `pids` are the processes whose CPU time counts.
    Load { endpoint: Endpoint, pids: Vec<u32> },
    /// By fio's io_uring engine, bypassing the page cache.
    Fio { path: PathBuf },
}

impl Participant {
    pub(super) fn new(name: impl Into<String>, way: MeasureMode) -> Self {
        let name = name.into();
        Self {
            name,
            way,
            idle: 0,
            restless: None,
            is_peer: false,
            is_empty: false,
            preparation: None,
            only: None,
            neighbour: None,
        }
    }

    /// Creates a target for a volume of a running program.
    pub(super) fn of(name: impl Into<String>, running: &Running, volume: &str) -> Result<Self> {
        let network = loopback();
        let link = network.links().first().context("loopback")?;
        let endpoint = running.endpoint(volume, link)?;
        Ok(Self::new(name, MeasureMode::Load { endpoint, pids: running.pids() }))
    }

    /// Lets it run until the result is dropped.
    pub(super) fn wake(&self) -> Result<Awake> {
        if let Some(pid) = self.restless {
            kill_process(pid, Signal::CONT)?;
        }
        Ok(Awake(self.restless))
    }
}

/// See [`Participant::wake`].
pub(super) struct Awake(Option<Pid>);

impl Drop for Awake {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // The process may have ended; another check reports that.
            let _ = kill_process(pid, Signal::STOP);
        }
    }
}

/// The targets under test of a group, which run until this is dropped.
#[derive(Default)]
pub(super) struct Field {
    pub(super) entrants: Vec<Participant>,
    pub(super) running: Vec<Running>,
    limits: Vec<Limit>,
    pub(super) daemons: Vec<Daemon>,
    // Before the folders: their files are in use until then.
    pub(super) loops: Vec<LoopDevice>,
    pub(super) folders: Vec<TempDir>,
    /// The client whose wake-ups cost more.
    pub(super) slow_client: Option<PathBuf>,
}

struct Limit {
    // Before the folder: it ends before its files are deleted.
    _daemon: Daemon,
    _folder: TempDir,
}

pub(super) fn loopback() -> Network {
    Network::build(&[LinkProfile::loopback()])
}

/// Starts `sarsen serve` on loopback.
pub(super) fn serve(program: &Path, arguments: &[String]) -> Result<Running> {
    Ok(sarsen::serve(program, &[], Ipv4Addr::LOCALHOST.into(), arguments)?)
}

/// Returns the flags with which the program never spins. A version without spinning has no flag for it, and never
/// spins.
fn sleeping(program: &Path) -> Result<Vec<String>> {
    let help = process::output(Command::new(program).args(["serve", "--help"]), HELP_LIMIT)?;
    let can_spin = help.contains("--spin ");
    Ok(if can_spin { vec!["--spin".into(), "never".into()] } else { Vec::new() })
}

/// Starts the targets under test of a group.
pub(super) fn start(group: Group, program: &Path, options: &Options) -> Result<Field> {
    match group {
        Group::Specs | Group::Small => {
            let mut field = beside_peers(program, options)?;
            for (name, cores) in [(SLEEPING, None), (ONE_CORE, Some("1"))] {
                if options.takes(name) {
                    field.add_sleeping(program, name, cores)?;
                }
            }
            let limit = program::build_package(LIMIT_PACKAGE, Profile::Dist, &[])?;
            for (name, flag) in
                [(LIMIT, None), (LIMIT_SPINNING, Some("--spin")), (LIMIT_KEEPING, Some("--keep"))]
            {
                if options.takes(name) {
                    field.add_limit(&limit, name, flag)?;
                }
            }
            Ok(field)
        }
        Group::Digests => beside_peers(program, options),
        Group::Files => files::start(program, options),
        Group::Luns => units(program),
        Group::Idle => crowd(program),
        Group::Neighbours => neighbours::start(program),
        Group::Nbd => nbd::start(program, options),
        Group::Gateways => gateways::start(program, options),
        Group::Pools => pools::start(program, PoolMedium::Memory, options),
        Group::PoolsOnDisk => pools::start(program, PoolMedium::Disk, options),
        Group::PoolsOnLoop => pools::start(program, PoolMedium::Loop, options),
        Group::LargePools | Group::StartUp => Ok(Field::default()),
        Group::SlowWakeUps => slow_wake_ups(options),
    }
}

/// Starts the program and the limit with wake-ups that cost more; the client has the same.
fn slow_wake_ups(options: &Options) -> Result<Field> {
    let build = |package| program::build_package(package, Profile::Dist, &[SLOW_WAKE_UPS]);
    let (program, limit) = (build("sarsen")?, build(LIMIT_PACKAGE)?);
    let mut field = Field { slow_client: Some(program.clone()), ..Field::default() };
    for (name, spin) in [(SARSEN, "auto"), (SLEEPING, "never")] {
        if options.takes(name) {
            field.add_ram(&program, name, &["--spin".into(), spin.into()])?;
        }
    }
    for (name, flag) in [(LIMIT, None), (LIMIT_SPINNING, Some("--spin"))] {
        if options.takes(name) {
            field.add_limit(&limit, name, flag)?;
        }
    }
    Ok(field)
}

/// Starts this project's program, and the other targets that are installed.
pub(super) fn beside_peers(program: &Path, options: &Options) -> Result<Field> {
    let volume = VolumeSpec {
        name: VOLUME.into(),
        medium: Medium::Ram,
        bytes: BYTE_COUNT,
        cache: CacheMode::WriteBack,
        striping: None,
    };
    let mut field = Field::default();
    // None of these boots a guest.
    let folder = temp_dir();
    let folders = Folders { volumes: &folder, guests: &folder, scst: None };
    for (target_under_test, name, peer) in [
        (TargetUnderTest::Sarsen, SARSEN, None),
        (TargetUnderTest::Tgt, TGT, Some("tgtd")),
        (TargetUnderTest::Istgt, ISTGT, Some("istgt")),
    ] {
        if !options.takes(name) {
            continue;
        }
        if let Some(peer) = peer
            && process::find(Path::new(peer)).is_none()
        {
            eprintln!("{peer} is not installed, and left out");
            continue;
        }
        let volumes = slice::from_ref(&volume);
        let running = target_under_test.start_beside(program, &loopback(), volumes, folders)?;
        let entrant = Participant::of(name, &running, VOLUME)?;
        field.entrants.push(Participant { is_peer: peer.is_some(), is_empty: true, ..entrant });
        field.running.push(running);
    }
    Ok(field)
}

impl Field {
    /// Returns the command that sets the cost of wake-ups for the command after it.
    fn prefix(&self) -> &'static [String] {
        static PREFIX: LazyLock<[String; 2]> =
            LazyLock::new(|| ["env".into(), format!("{}={WAKE_UP_COST_US}", wake_ups::VARIABLE)]);
        if self.slow_client.is_some() { &*PREFIX } else { &[] }
    }

    fn add_sleeping(&mut self, program: &Path, name: &str, cores: Option<&str>) -> Result<()> {
        let mut arguments = sleeping(program)?;
        if let Some(cores) = cores {
            arguments.extend(["--cores".into(), cores.into()]);
        }
        self.add_ram(program, name, &arguments)
    }

    /// Adds this project's program with a volume in memory.
    fn add_ram(&mut self, program: &Path, name: &str, arguments: &[String]) -> Result<()> {
        let volume = ["--volume".into(), format!("{VOLUME}=ram:{BYTE_COUNT}")];
        let arguments = [arguments, &volume].concat();
        let running =
            sarsen::serve(program, self.prefix(), Ipv4Addr::LOCALHOST.into(), &arguments)?;
        let entrant = Participant::of(name, &running, VOLUME)?;
        self.entrants.push(Participant { is_empty: true, ..entrant });
        self.running.push(running);
        Ok(())
    }

    fn add_limit(&mut self, program: &Path, name: &str, flag: Option<&str>) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("address");
        let out = File::create(&path)?;
        let daemon = Daemon::start(self.prefix(), program, |command| {
            command.args(flag).args(["--bytes", &BYTE_COUNT.to_string()]);
            command.stdout(out);
        })?;
        let mut said = String::new();
        daemon.wait_until(LIMIT_READY, || {
            said = fs::read_to_string(&path).unwrap_or_default();
            Ok::<_, ProcessError>(said.ends_with('\n'))
        })?;
        let url: Url = format!("iscsi://{}/{LIMIT_TARGET}/0", said.trim()).parse()?;
        let pid = Pid::from_raw(daemon.pid().cast_signed()).context("a process id")?;
        let endpoint = Endpoint::Iscsi(url);
        let way = MeasureMode::Load { endpoint, pids: vec![daemon.pid()] };
        let restless = (name == LIMIT_SPINNING).then_some(pid);
        let entrant = Participant { restless, ..Participant::new(name, way) };
        drop(Awake(restless));
        self.entrants.push(entrant);
        self.limits.push(Limit { _daemon: daemon, _folder: folder });
        Ok(())
    }
}

/// Starts one target with one unit, and one with many.
fn units(program: &Path) -> Result<Field> {
    let mut field = Field::default();
    for (name, count) in [(LUNS_ONE, 1), (LUNS_MANY, MANY)] {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("units.toml");
        fs::write(&path, configuration(count, UNIT_MIB))?;
        let mut arguments = sleeping(program)?;
        arguments.extend(["--config".into(), path.display().to_string()]);
        let running = serve(program, &arguments)?;
        // A unit in the middle.
        let entrant = Participant::of(name, &running, &unit(count / 2))?;
        field.entrants.push(Participant { is_empty: true, ..entrant });
        field.running.push(running);
        field.folders.push(folder);
    }
    Ok(field)
}

fn unit(number: usize) -> String {
    format!("unit{number}")
}

/// Returns a configuration of one target with this number of units in memory.
pub(super) fn configuration(count: usize, mebibytes: usize) -> String {
    let volume = |number| {
        let name = unit(number);
        format!("[[volume]]\nname = \"{name}\"\nstore = \"ram\"\nsize = \"{mebibytes}MiB\"\n\n")
    };
    let mut text: String = (0..count).map(volume).collect();
    let luns: Vec<_> = (0..count).map(|number| format!("\"{}\"", unit(number))).collect();
    text += "[[target]]\nname = \"iqn.2026-11.invalid.example:many\"\n";
    text += &format!("luns = [{}]\n", luns.join(", "));
    text
}

/// Starts the same target with few and with many idle sessions.
fn crowd(program: &Path) -> Result<Field> {
    let mut arguments = sleeping(program)?;
    arguments.extend(["--volume".into(), format!("{VOLUME}=ram:{BYTE_COUNT}")]);
    let running = serve(program, &arguments)?;
    let mut field = Field::default();
    for (name, idle) in [(IDLE_ONE, 1), (IDLE_MANY, MANY)] {
        let entrant = Participant::of(name, &running, VOLUME)?;
        // Both use one volume, which is filled once.
        let is_empty = idle == 1;
        field.entrants.push(Participant { idle, is_empty, ..entrant });
    }
    field.running.push(running);
    Ok(field)
}
