//! Sets up sessions one after the other and measures the time of each phase.

use std::time::Duration;

use sarsen_initiator::phases::{self, Phases};
use sarsen_initiator::{SessionError, SessionOptions, Url};
use sarsen_io::cores::{FileEngine, block_on};

use super::super::Measurement;
use super::{SESSION, SET_UP};
use crate::load::Endpoint;
use crate::record::{Labels, Measures, Outcome};
use crate::statistics::Summary;

/// Minimum number of round trips of a session, from its connection to its logout.
pub(super) const TURNS: u32 = 9;

/// A phase as the study defines it.
#[derive(Debug)]
pub(super) struct Step {
    /// Its name in the study.
    pub(super) name: &'static str,
    /// The prefix of its figures.
    key: &'static str,
    /// The phases of this program that it consists of.
    parts: &'static [&'static str],
}

/// A type of session whose phases are timed.
#[derive(Debug)]
pub(super) struct TimedSession {
    /// Its name in the study.
    pub(super) name: &'static str,
    /// Its phases. The study ends with the phase for which the session exists, so that no phase includes the logout.
    pub(super) steps: &'static [Step],
}

const CONNECTION: Step = Step { name: "TCP connection", key: "connection", parts: &["connect"] };
const LOGIN: Step = Step { name: "login", key: "login", parts: &["security"] };
const NEGOTIATION: Step =
    Step { name: "operational negotiation", key: "negotiation", parts: &["operational"] };

pub(super) static TIMED_SESSIONS: [TimedSession; 2] = [
    TimedSession {
        name: "discovery session",
        steps: &[
            CONNECTION,
            LOGIN,
            NEGOTIATION,
            Step { name: "SendTargets=All", key: "send_targets", parts: &["SendTargets"] },
            Step {
                name: "whole",
                key: "whole",
                parts: &["connect", "security", "operational", "SendTargets"],
            },
        ],
    },
    TimedSession {
        name: "normal session",
        steps: &[
            CONNECTION,
            LOGIN,
            NEGOTIATION,
            Step {
                name: "full feature phase device discovery",
                key: "device_discovery",
                parts: &["REPORT LUNS", "INQUIRY", "TEST UNIT READY", "READ CAPACITY", "READ"],
            },
            Step {
                name: "whole",
                key: "whole",
                parts: &[
                    "connect",
                    "security",
                    "operational",
                    "REPORT LUNS",
                    "INQUIRY",
                    "TEST UNIT READY",
                    "READ CAPACITY",
                    "READ",
                ],
            },
        ],
    },
];

impl Step {
    /// Returns the name of its figure.
    pub(super) fn figure(&self, statistic: &str) -> String {
        format!("{}_{statistic}_ms", self.key)
    }

    fn duration(&self, phases: &Phases) -> Duration {
        let parts = phases.steps.iter().filter(|phase| self.parts.contains(&phase.name));
        parts.map(|phase| phase.duration).sum()
    }
}

impl TimedSession {
    /// Returns the labels of a subject's cell.
    pub(super) fn labels(&self, subject: Labels) -> Labels {
        subject.with(super::PART, SET_UP).with(SESSION, self.name)
    }

    /// Returns the measurement of `count` sessions of this type, one after the other.
    pub(super) fn measurement(&'static self, count: u32) -> Measurement {
        Box::new(move |subject| match &subject.endpoint {
            // No files are used: any file engine is suitable.
            Endpoint::Iscsi(url) => {
                let options = url
                    .chap
                    .identity()
                    .map(|identity| SessionOptions { identity, ..SessionOptions::default() });
                let options = options.map_err(|error| error.to_string());
                self.outcome(options.and_then(|options| self.times(url, &options, count)))
            }
            Endpoint::Nbd(_) | Endpoint::Memory(_) | Endpoint::File { .. } => {
                Outcome::NotMeasured("there is no session without iSCSI".into())
            }
        })
    }

    pub(super) fn is_discovery(&self) -> bool {
        self.name == TIMED_SESSIONS[0].name
    }

    /// Sets up `count` sessions of this type, one after the other. Blocks the thread.
    pub(super) fn times(
        &self,
        url: &Url,
        options: &SessionOptions,
        count: u32,
    ) -> Result<Vec<Phases>, String> {
        let sessions = async {
            let mut sessions = Vec::new();
            for _ in 0..count {
                sessions.push(if self.is_discovery() {
                    phases::discovery(url.portal(), options).await?
                } else {
                    phases::normal(url, options).await?
                });
            }
            Ok::<_, SessionError>(sessions)
        };
        // No files are used: any file engine is suitable.
        let sessions = block_on(FileEngine::Pool, sessions)
            .map_err(|error| format!("cannot start a core: {error}"))?;
        sessions.map_err(|error| error.to_string())
    }

    /// Returns the outcome of a cell from its sessions.
    pub(super) fn outcome(&self, sessions: Result<Vec<Phases>, String>) -> Outcome {
        match sessions {
            Ok(sessions) => Outcome::Measured(self.measures(&sessions)),
            Err(reason) => Outcome::Failed(reason),
        }
    }

    fn measures(&self, sessions: &[Phases]) -> Measures {
        let mut measures = Measures::default();
        for step in self.steps {
            let ms = |phases: &Phases| step.duration(phases).as_secs_f64() * 1e3;
            let times: Vec<_> = sessions.iter().map(ms).collect();
            let Some(Summary { mean, min, max, .. }) = Summary::of(&times) else { continue };
            let figures = [("mean", mean), ("min", min), ("max", max)];
            measures.figures.extend(figures.map(|(name, value)| (step.figure(name), value)));
        }
        if let Some(last) = sessions.last() {
            measures.texts = last.negotiated.clone();
        }
        measures
    }
}

#[cfg(test)]
mod tests {
    use sarsen_initiator::phases::Phase;

    use super::*;

    fn session(names: &[&'static str], ms: u64) -> Phases {
        let phase = |name: &&'static str| Phase { name, duration: Duration::from_millis(ms) };
        let steps = names.iter().map(phase).collect();
        Phases { steps, negotiated: Default::default(), targets: Vec::new() }
    }

    #[test]
    fn phases_are_cut_as_the_study_cut_them() {
        let names = ["connect", "security", "operational", "SendTargets", "logout"];
        let measures = TIMED_SESSIONS[0].measures(&[session(&names, 2), session(&names, 4)]);
        let figure = |name: &str| measures.figures[name];
        assert_eq!((figure("login_min_ms"), figure("login_max_ms")), (2.0, 4.0));
        assert_eq!(figure("connection_mean_ms"), 3.0);
        assert_eq!(figure("whole_mean_ms"), 12.0, "without the logout");
        assert_eq!(measures.figures.len(), 5 * 3);
    }

    #[test]
    fn finding_a_device_is_all_commands_together() {
        let names =
            ["operational", "REPORT LUNS", "INQUIRY", "TEST UNIT READY", "READ CAPACITY", "READ"];
        let measures = TIMED_SESSIONS[1].measures(&[session(&names, 5)]);
        assert_eq!(measures.figures["device_discovery_mean_ms"], 25.0);
        assert_eq!(measures.figures["whole_max_ms"], 30.0);
    }
}
