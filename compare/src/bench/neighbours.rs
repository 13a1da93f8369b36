//! The latency of a lightly loaded volume while clients of another volume run at full load, with a limit for that
//! volume and without.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use sarsen_initiator::Url;
use sarsen_lab::load::Endpoint;
use sarsen_proof::process;

use super::targets_under_test::{Field, MeasureMode, Participant, loopback, serve};
use super::{GRACE, said};

pub(super) const ALONE: &str = "alone";
pub(super) const BESIDE_LIMITED: &str = "beside a limited neighbour";
pub(super) const BESIDE_UNLIMITED: &str = "beside a neighbour without limits";

/// Time from the start of the noisy neighbour until the measurement begins; it runs at full load meanwhile.
pub(super) const AHEAD: Duration = Duration::from_secs(1);
/// Time that the neighbour continues after the measurement.
const BEHIND: Duration = Duration::from_millis(500);
const TARGET: &str = "iqn.2026-11.invalid.example:neighbours";
const VOLUMES: [(&str, &str); 3] =
    [("steady", ""), ("limited", "iops = 1000\n"), ("unlimited", "")];

/// Starts one server for all three volumes.
pub(super) fn start(program: &Path) -> Result<Field> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("neighbours.toml");
    let target =
        format!("[[target]]\nname = \"{TARGET}\"\nluns = {:?}\n", VOLUMES.map(|(name, _)| name));
    fs::write(&path, VOLUMES.map(volume_entry).concat() + &target)?;
    let running = serve(program, &["--config".into(), path.display().to_string()])?;
    let network = loopback();
    let link = network.links().first().context("loopback")?;
    let url = |volume| match running.endpoint(volume, link)? {
        Endpoint::Iscsi(url) => Ok(url),
        _ => bail!("{} does not speak iSCSI", running.name()),
    };
    let mut field = Field::default();
    for (name, neighbour) in
        [(ALONE, None), (BESIDE_LIMITED, Some("limited")), (BESIDE_UNLIMITED, Some("unlimited"))]
    {
        let way =
            MeasureMode::Load { endpoint: Endpoint::Iscsi(url("steady")?), pids: running.pids() };
        let neighbour = neighbour.map(url).transpose()?;
        let is_empty = neighbour.is_none();
        field.entrants.push(Participant { neighbour, is_empty, ..Participant::new(name, way) });
    }
    field.running.push(running);
    field.folders.push(folder);
    Ok(field)
}

/// Returns the entry of a volume in the configuration file.
fn volume_entry((name, limits): (&str, &str)) -> String {
    format!("[[volume]]\nname = \"{name}\"\nstore = \"ram\"\nsize = \"256MiB\"\n{limits}")
}

/// A client at full load.
pub(super) struct NoisyNeighbour(JoinHandle<Result<String>>);

impl NoisyNeighbour {
    /// Starts it for a measurement that takes this number of seconds.
    pub(super) fn start(client: &Path, url: &Url, seconds: f64) -> Self {
        let seconds = seconds + (AHEAD + BEHIND).as_secs_f64();
        let mut command = Command::new(client);
        command.args(["lab", "load", "--json", "--destroy"]).arg(url.to_string());
        command
            .args("--block-size 64KiB --read 50 --random 100 --depth 32 --sessions 2".split(' '));
        command.args(["--warm-up", "0", "--seconds"]).arg(seconds.to_string());
        let limit = Duration::from_secs_f64(seconds) + GRACE;
        Self(thread::spawn(move || Ok(process::output(&mut command, limit)?)))
    }

    /// Waits until it has ended. It is an error if it had no I/O: the measurement then had no neighbour.
    pub(super) fn end(self) -> Result<()> {
        let output = self.0.join().map_err(|_| anyhow!("the neighbour's thread panicked"))??;
        let figures = said(&output).context("the neighbour")?;
        eprintln!("the neighbour had {:.0} I/Os a second", figures.iops);
        Ok(())
    }
}
