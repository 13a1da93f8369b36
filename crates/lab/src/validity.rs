//! Threats to the validity of a run: circumstances in which a figure does not belong to its target.

use std::fmt;

use crate::record::{Labels, Measures, Outcome, Run, figure};
use crate::report::{Block, Cell, Section, Table};

/// Share of the time from which on a wait for a processor matters to a load generator.
const WAIT_PERCENT: f64 = 25.0;
/// Share of its processor from which on a load generator is the bottleneck.
const BUSY_PERCENT: f64 = 95.0;
/// Share of the processors' time from which on its loss to other virtual machines matters.
const STEAL_PERCENT: f64 = 10.0;
/// Share of the time of a measurement from which on a single I/O matters.
const LONGEST_PERCENT: f64 = 50.0;
/// Change of the wall clock from which on it is not that of a program that keeps the time. Such programs that keep the time change it by less.
const STEP_MS: f64 = 1000.0;
/// Ratio to its limit from which on a figure is above it. I/Os that end in a measurement may have begun before it.
const ABOVE_LIMIT: f64 = 1.02;
/// The directions of a load: their figures, and the figures of links and media that limit them.
const DIRECTIONS: [(&str, &str, [&str; 2]); 2] = [
    (
        "reads",
        figure::READ_MB_PER_S,
        [figure::LINK_FROM_TARGET_MB_PER_S, figure::MEDIUM_READ_MB_PER_S],
    ),
    (
        "writes",
        figure::WRITE_MB_PER_S,
        [figure::LINK_TO_TARGET_MB_PER_S, figure::MEDIUM_WRITE_MB_PER_S],
    ),
];

/// A threat to the validity of a cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Threat {
    /// The load generator waited for a processor, %.
    ClientWaited(f64),
    /// The load generator used its processor completely, %.
    ClientBusy(f64),
    /// The hypervisor gave the processors to others, %.
    Stolen(f64),
    /// An I/O took this share of the measurement, %.
    Unanswered(f64),
    /// The clock was changed, ms.
    ClockStepped(f64),
    /// A figure is above its limit, MB/s.
    AboveLimit { direction: &'static str, value: f64, limit: f64, of: Labels },
}

impl fmt::Display for Threat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientWaited(percent) => write!(
                f,
                "the load generator waited for a processor for {percent:.0} % of the time: the \
                 target can reach more"
            ),
            Self::ClientBusy(percent) => write!(
                f,
                "the load generator used {percent:.0} % of its processor: the target can reach more"
            ),
            Self::Stolen(percent) => write!(
                f,
                "the hypervisor gave {percent:.0} % of the processors' time to other virtual \
                 machines"
            ),
            Self::Unanswered(percent) => write!(
                f,
                "an I/O took {percent:.0} % of the time of the measurement: the target did not answer, or the \
                 measurement was too short"
            ),
            Self::ClockStepped(ms) => write!(
                f,
                "the clock moved by {:.1} s: it was set, or the machine was suspended",
                ms / 1e3
            ),
            Self::AboveLimit { direction, value, limit, of } => {
                let kind = of.value("limit").unwrap_or_default();
                let name = of.value(kind).unwrap_or_default();
                write!(
                    f,
                    "{direction} reached {value:.1} MB/s, above the measured limit of the {kind} {name}, \
                     {limit:.1} MB/s: the limit is too low"
                )
            }
        }
    }
}

impl Threat {
    /// Returns how serious it is, in the unit of its kind.
    fn degree(&self) -> f64 {
        match self {
            Self::ClientWaited(percent)
            | Self::ClientBusy(percent)
            | Self::Stolen(percent)
            | Self::Unanswered(percent) => *percent,
            Self::ClockStepped(ms) => ms.abs(),
            Self::AboveLimit { value, .. } => *value,
        }
    }

    /// Whether it differs from another only in its degree.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::AboveLimit { direction, of, .. },
                Self::AboveLimit { direction: other_direction, of: other_of, .. },
            ) => direction == other_direction && of == other_of,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// Returns the threats from the circumstances of a measurement.
pub(crate) fn disturbances(measures: &Measures) -> impl Iterator<Item = Threat> {
    let value = |name: &str| measures.figures.get(name).copied();
    let from = |minimum: f64| move |value: &f64| value.abs() >= minimum;
    let threats = [
        value(figure::CLIENT_WAIT_PERCENT).filter(from(WAIT_PERCENT)).map(Threat::ClientWaited),
        value(figure::CLIENT_BUSY_PERCENT).filter(from(BUSY_PERCENT)).map(Threat::ClientBusy),
        value(figure::STEAL_PERCENT).filter(from(STEAL_PERCENT)).map(Threat::Stolen),
        value(figure::LONGEST_PERCENT).filter(from(LONGEST_PERCENT)).map(Threat::Unanswered),
        value(figure::CLOCK_STEP_MS).filter(from(STEP_MS)).map(Threat::ClockStepped),
    ];
    threats.into_iter().flatten()
}

/// Returns the figures of a measurement that are above their limits.
fn above_limits(run: &Run, measures: &Measures) -> Vec<Threat> {
    let mut threats = Vec::new();
    for of in &measures.limits {
        for (direction, name, limited_by) in DIRECTIONS {
            let Some(&value) = measures.figures.get(name) else { continue };
            let limit = limited_by.iter().find_map(|limit| run.limit(of, limit));
            if let Some(limit) = limit.filter(|&limit| value > limit * ABOVE_LIMIT) {
                threats.push(Threat::AboveLimit { direction, value, limit, of: of.clone() });
            }
        }
    }
    threats
}

/// A threat to one or more repetitions of a cell, in its most serious degree.
struct Finding<'a> {
    labels: &'a Labels,
    repetitions: Vec<u32>,
    threat: Threat,
}

/// Returns a sentence for the summary of a report, and the section with the threats; `None` if there are none.
pub(crate) fn section(run: &Run) -> Option<(String, Section)> {
    let mut found: Vec<Finding<'_>> = Vec::new();
    let mut threatened = 0;
    for sample in &run.samples {
        let Outcome::Measured(measures) = &sample.outcome else { continue };
        let threats: Vec<_> = disturbances(measures).chain(above_limits(run, measures)).collect();
        threatened += usize::from(!threats.is_empty());
        for threat in threats {
            let known = found.iter_mut().find(|finding| {
                *finding.labels == sample.labels && finding.threat.is_like(&threat)
            });
            match known {
                Some(finding) => {
                    finding.repetitions.push(sample.repetition);
                    if threat.degree() > finding.threat.degree() {
                        finding.threat = threat;
                    }
                }
                None => found.push(Finding {
                    labels: &sample.labels,
                    repetitions: vec![sample.repetition],
                    threat,
                }),
            }
        }
    }
    if found.is_empty() {
        return None;
    }
    let rows = found.into_iter().map(|Finding { labels, repetitions, threat }| {
        let repetitions: Vec<_> = repetitions.iter().map(u32::to_string).collect();
        let texts = [labels.to_string(), repetitions.join(", "), threat.to_string()];
        texts.into_iter().map(Cell::Text).collect()
    });
    let table = Table {
        caption: "Measurements whose figures may not be those of their target".into(),
        columns: ["Cell", "Repetitions", "Threat, where it was greatest"].map(Into::into).to_vec(),
        rows: rows.collect(),
        ..Table::default()
    };
    let sentence = format!(
        "{threatened} of {} measurements may be invalid: see {HEADING}.",
        run.samples.len()
    );
    Some((sentence, Section { heading: HEADING.into(), blocks: vec![Block::Table(table)] }))
}

const HEADING: &str = "Threats to validity";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Sample, Scale};

    fn labels(test: &str) -> Labels {
        Labels::new().with("test", test)
    }

    fn link() -> Labels {
        Labels::new().with("limit", "link").with("link", "jumbo")
    }

    /// Returns a run with two measurements of a limit and one of a cell, which has these figures.
    fn run_with(figures: &[(&str, f64)]) -> Run {
        let mut run = crate::study::record("study", Scale::Quick, String::new());
        let mut add = |labels, repetition, figures: &[(&str, f64)], limits| {
            let figures = figures.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
            let outcome = Outcome::Measured(Measures { figures, limits, ..Measures::default() });
            run.samples.push(Sample { labels, repetition, ended_at: 0, outcome });
        };
        let limit = |from_target| {
            [
                (figure::LINK_FROM_TARGET_MB_PER_S, from_target),
                (figure::LINK_TO_TARGET_MB_PER_S, 300.0),
            ]
        };
        add(link(), 1, &limit(510.0), Vec::new());
        add(labels("reads"), 1, figures, vec![link()]);
        add(link(), 2, &limit(900.0), Vec::new());
        run
    }

    /// Returns the only threat to a run with these figures.
    fn threat(figures: &[(&str, f64)]) -> Option<String> {
        let (_, section) = section(&run_with(figures))?;
        let [row] = &section.tables()[0].rows[..] else { panic!("one threat: {section:?}") };
        match &row[2] {
            Cell::Text(text) => Some(text.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn figures_above_the_highest_measurement_of_their_limit_are_reported() {
        assert_eq!(threat(&[(figure::READ_MB_PER_S, 899.0)]), None);
        let found = threat(&[(figure::READ_MB_PER_S, 1464.0)]).unwrap();
        assert!(found.contains("1464.0 MB/s, above the measured limit of the link jumbo, 900.0"));
        // Each direction has a limit of its own.
        assert!(threat(&[(figure::WRITE_MB_PER_S, 310.0)]).unwrap().starts_with("writes"));
        assert_eq!(
            threat(&[(figure::READ_MB_PER_S, 899.0), (figure::WRITE_MB_PER_S, 299.0)]),
            None
        );
    }

    #[test]
    fn a_load_generator_without_enough_processor_time_is_reported() {
        assert_eq!(threat(&[(figure::CLIENT_WAIT_PERCENT, 10.0)]), None);
        assert!(threat(&[(figure::CLIENT_WAIT_PERCENT, 43.2)]).unwrap().contains("for 43 %"));
        assert_eq!(threat(&[(figure::CLIENT_BUSY_PERCENT, 90.0)]), None);
        assert!(threat(&[(figure::CLIENT_BUSY_PERCENT, 99.0)]).unwrap().contains("used 99 %"));
        assert_eq!(threat(&[(figure::STEAL_PERCENT, 1.0)]), None);
        assert!(threat(&[(figure::STEAL_PERCENT, 30.0)]).unwrap().contains("gave 30 %"));
    }

    #[test]
    fn a_clock_that_jumps_is_reported() {
        assert_eq!(threat(&[(figure::CLOCK_STEP_MS, -900.0)]), None);
        for (step, words) in [(3.6e6, "moved by 3600.0 s"), (-5000.0, "moved by -5.0 s")] {
            assert!(threat(&[(figure::CLOCK_STEP_MS, step)]).unwrap().contains(words));
        }
    }

    #[test]
    fn repetitions_of_a_threat_share_a_row_with_its_greatest_degree() {
        let mut run = run_with(&[(figure::STEAL_PERCENT, 30.0)]);
        let mut again = run.samples[1].clone();
        again.repetition = 2;
        if let Outcome::Measured(measures) = &mut again.outcome {
            measures.figures.insert(figure::STEAL_PERCENT.into(), 50.0);
        }
        run.samples.push(again);
        let (sentence, section) = section(&run).unwrap();
        assert!(sentence.starts_with("2 of 4 measurements"), "{sentence}");
        let row = &section.tables()[0].rows[0];
        assert_eq!(row[..2], [Cell::Text("test reads".into()), Cell::Text("1, 2".into())]);
        assert!(matches!(&row[2], Cell::Text(text) if text.contains("50 %")), "{row:?}");
    }
}
