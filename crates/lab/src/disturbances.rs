//! Disturbances of a measurement that neither the target nor the load causes: time that the hypervisor gives to other
//! virtual machines, and changes of the clock.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use sarsen_io::time;

use crate::record::figure;

/// Number of fields of the line `cpu` of `/proc/stat` that together are the time of all processors. The fields after
/// them are parts of these.
const TIMES: usize = 8;
/// Index of the stolen time.
const STEAL: usize = 7;

/// The state at the beginning of a measurement.
pub(crate) struct Disturbances {
    wall: SystemTime,
    monotonic: Instant,
    processors: Option<Ticks>,
}

/// The time of all processors since the start of the system, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Disturbances {
    /// Starts to watch.
    pub(crate) fn watch() -> Self {
        Self { wall: time::wall_clock(), monotonic: time::now(), processors: ticks() }
    }

    /// Returns the disturbances since then as figures.
    pub(crate) fn figures(&self) -> impl Iterator<Item = (String, f64)> {
        let elapsed = time::now() - self.monotonic;
        let steal = self.processors.zip(ticks()).and_then(|(before, now)| now.steal_since(before));
        let step = step_ms(self.wall, elapsed, time::wall_clock());
        let step = (figure::CLOCK_STEP_MS, Some(step));
        let figures = [(figure::STEAL_PERCENT, steal), step].into_iter();
        figures.filter_map(|(name, value)| Some((name.to_owned(), value?)))
    }
}

impl Ticks {
    fn steal_since(self, before: Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|&all| all > 0)?;
        Some(100.0 * self.stolen.saturating_sub(before.stolen) as f64 / all as f64)
    }
}

/// Returns the change of the wall clock from `before` to `now` that the elapsed time does not explain, in milliseconds.
fn step_ms(before: SystemTime, elapsed: Duration, now: SystemTime) -> f64 {
    let expected = before + elapsed;
    match now.duration_since(expected) {
        Ok(ahead) => ahead.as_secs_f64() * 1e3,
        Err(behind) => -behind.duration().as_secs_f64() * 1e3,
    }
}

fn ticks() -> Option<Ticks> {
    ticks_of(&fs::read_to_string("/proc/stat").ok()?)
}

fn ticks_of(stat: &str) -> Option<Ticks> {
    let times = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(TIMES);
    let times: Vec<u64> = times.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    Some(Ticks { all: times.iter().sum(), stolen: *times.get(STEAL)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_processors_time() {
        let before = ticks_of("cpu  10 0 10 60 0 0 0 20 5 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n").unwrap();
        assert_eq!(before, Ticks { all: 100, stolen: 20 });
        let now = Ticks { all: 300, stolen: 50 };
        assert_eq!(now.steal_since(before), Some(15.0));
        assert_eq!(before.steal_since(before), None);
        assert_eq!(before.steal_since(now), None, "a counter never decreases");
        assert_eq!(ticks_of("cpu  1 2 3\n"), None);
        assert_eq!(ticks_of("intr 1\n"), None);
    }

    #[test]
    fn a_clock_that_is_set_in_either_direction_is_a_step() {
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let elapsed = Duration::from_secs(10);
        let steps = [0, 1010, 4610]
            .map(|s| step_ms(before, elapsed, SystemTime::UNIX_EPOCH + Duration::from_secs(s)));
        assert_eq!(steps, [-1_010_000.0, 0.0, 3_600_000.0]);
    }

    #[test]
    fn this_machine_reports_its_clock() {
        let figures: Vec<_> = Disturbances::watch().figures().collect();
        assert!(figures.iter().any(|(name, _)| name == figure::CLOCK_STEP_MS), "{figures:?}");
    }
}
