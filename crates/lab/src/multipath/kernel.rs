//! The failover of the kernel's initiator (open-iscsi) with dm-multipath, in a guest.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use super::{MTU, Target, measures};
use crate::folder::{PrivateFolder, RUN_PREFIX};
use crate::guest::{self, Guest, GuestError, GuestSpec, Recipe};
use crate::load::LoadResult;
use crate::network::{GuestCards, GuestSide, LinkProfile, Network};
use crate::record::Outcome;
use crate::target_under_test::{TargetUnderTestError, sarsen};

const RECIPE: Recipe = Recipe {
    name: "multipath",
    packages: &["multipath-tools", "open-iscsi", "udev"],
    modules: &["dm_multipath", "dm_round_robin", "iscsi_tcp", "scsi_dh_alua", "sd_mod"],
};
const MEMORY_MIB: u32 = 768;
/// Number of paths.
const LINKS: usize = 2;
/// How long the load lasts after the failover, by the formula of the timers.
const AFTER: Duration = Duration::from_secs(15);
/// Emulation is slow, and slower under other load.
const LIMIT: Duration = Duration::from_secs(240);

/// The timers of a path, each in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// The time between two NOP-Outs.
    pub interval: u64,
    /// The time that the answer may take.
    pub timeout: u64,
    /// The time from the loss of a session to the failure of its commands.
    pub replacement: u64,
}

impl Timers {
    /// Those of the study.
    pub const STUDY: Self = Self { interval: 1, timeout: 1, replacement: 1 };
    /// The default intervals of open-iscsi, and `fast_io_fail_tmo` of multipath-tools, which replaces its replacement timeout (120 s).
    pub const DEFAULT: Self = Self { interval: 5, timeout: 5, replacement: 5 };

    /// The time of a failover by the formula of the study.
    pub const fn sum(self) -> Duration {
        Duration::from_secs(self.interval + self.timeout + self.replacement)
    }

    /// Returns the approximate time of a round.
    pub const fn round_time(self) -> Duration {
        // The lost path logs in again.
        self.sum().saturating_add(AFTER).saturating_add(Duration::from_secs(10))
    }
}

/// Measures the longest request when one of two links is cut, `rounds` times. It starts a server of this project, links and a
/// guest of its own; `cache` is the folder that keeps what guests boot from. Blocks the thread.
pub fn failover(timers: Timers, rounds: u32, cache: &Path) -> Outcome {
    let profiles: Vec<_> =
        (0..LINKS).map(|link| LinkProfile::plain(&format!("path {link}"), MTU)).collect();
    let network = Network::build(&profiles);
    if !network.is_apart() {
        return Outcome::NotMeasured(network.notes().join("; "));
    }
    match interruptions(&network, timers, rounds, cache) {
        Ok(gaps) => measures(gaps),
        Err(error) => error.into(),
    }
}

fn interruptions(
    network: &Network,
    timers: Timers,
    rounds: u32,
    cache: &Path,
) -> Result<Vec<Duration>, TargetUnderTestError> {
    let failed = TargetUnderTestError::Failed;
    let program = sarsen::own_program()?;
    let target = Target::start(network, &program, false).map_err(failed)?;
    let urls: Result<Vec<_>, _> = (0..LINKS).map(|link| target.url(link)).collect();
    let urls = urls.map_err(failed)?;
    let portals: Vec<_> = urls.iter().map(|url| url.portal().to_string()).collect();
    let cards = network.guest_cards(GuestSide::Initiator).map_err(TargetUnderTestError::Unable)?;
    if let Some(reason) = missing_card(&cards, network) {
        return Err(TargetUnderTestError::Unable(reason));
    }
    let folder = PrivateFolder::new(&std::env::temp_dir(), RUN_PREFIX);
    let folder = folder.map_err(|error| failed(error.to_string()))?;
    let client = Client::boot(&cards, cache, &program, folder.path())?;
    let Timers { interval, timeout, replacement } = timers;
    let settings = format!(
        "TARGET={} PORTALS='{}' INTERVAL={interval} TIMEOUT={timeout} REPLACEMENT={replacement}\n\
         . /multipath\n",
        urls[0].target,
        portals.join(" ")
    );
    client.run(&format!("{settings}{}set_up\n", cards.script()))?;
    let load = timers.sum() + AFTER;
    let mut gaps = Vec::new();
    for round in 0..rounds {
        client.run(&format!("{settings}begin_load {}\n", load.as_secs()))?;
        let link = round as usize % LINKS;
        network.set_link(link, false).map_err(failed)?;
        let said = client.run(&format!("{settings}end_load {}\n", (load + LIMIT / 2).as_secs()))?;
        network.set_link(link, true).map_err(failed)?;
        gaps.push(longest(&said).map_err(failed)?);
    }
    Ok(gaps)
}

/// Returns why a link has no network card of the guest.
fn missing_card(cards: &GuestCards, network: &Network) -> Option<String> {
    let mut names = network.links().iter().map(|link| &link.profile.name);
    let found = names.find_map(|name| Some((name, cards.refusal(name)?)));
    found.map(|(name, reason)| format!("no network card for {name}: {reason}"))
}

/// Returns the longest request of a load. A failed one is an error.
fn longest(said: &str) -> Result<Duration, String> {
    // Errors follow the result.
    let line = said.lines().next().unwrap_or_default();
    let load: LoadResult =
        serde_json::from_str(line).map_err(|_| format!("the load failed: {}", said.trim_end()))?;
    if let Some(failure) = load.failure() {
        return Err(failure);
    }
    // A request that is still open at the end has no latency.
    let last = load.series.as_ref().and_then(|series| series.values.last());
    if last.is_none_or(|&rate| rate == 0.0) {
        return Err("the load ended before its requests went on over the other link".into());
    }
    Ok(Duration::from_secs_f64(load.max_us / 1e6))
}

/// The guest.
struct Client(Guest);

impl Client {
    fn boot(
        cards: &GuestCards,
        cache: &Path,
        program: &Path,
        folder: &Path,
    ) -> Result<Self, GuestError> {
        let arguments = cards.arguments();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let spec = GuestSpec::new(&RECIPE, cache, MEMORY_MIB)
            .in_namespace(&cards.command_prefix())
            .storage(Ipv4Addr::UNSPECIFIED)
            .content("multipath", include_str!("kernel.sh"))
            .file("sarsen", &guest::small_program(program, folder)?)
            .arguments(&arguments);
        let mut guest = Guest::start("client", &spec)?;
        guest.wait_for_boot()?;
        Ok(Self(guest))
    }

    fn run(&self, script: &str) -> Result<String, GuestError> {
        self.0.run(script, LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_of_the_study_is_the_sum_of_its_timers() {
        use crate::published::aravindan::{FAILOVER_BY_FORMULA, TIMEOUT};
        assert_eq!(Timers::STUDY.sum(), FAILOVER_BY_FORMULA);
        assert_eq!(Duration::from_secs(Timers::STUDY.interval), TIMEOUT);
    }

    #[test]
    fn a_failed_request_is_no_failover() {
        assert!(longest("no such device").unwrap_err().contains("no such device"));
    }
}
