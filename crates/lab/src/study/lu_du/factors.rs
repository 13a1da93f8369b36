//! What the study supposed to lengthen the set-up of a session and did not measure: authentication, more targets. Digests and TLS
//! are additions. Each measurement starts its own server of this project.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use sarsen_initiator::phases::{Phase, Phases};
use sarsen_initiator::{Chap, SessionOptions, Url};
use sarsen_proto::iscsi::initiator::DigestOffer;

use super::super::{Initiator, Measurement, Point, layout};
use super::setup::{TIMED_SESSIONS, TimedSession};
use super::{NETWORK, PART, SESSION, TARGET, VOLUME};
use crate::folder::{PrivateFolder, RUN_PREFIX};
use crate::load::Endpoint;
use crate::network::{Link, LinkProfile, Network};
use crate::record::{Labels, Run};
use crate::report::{Block, Section, Table};
use crate::statistics::Summary;
use crate::target_under_test::{Running, sarsen};

/// The value of [`PART`] of all cells here.
const NAME: &str = "set-up factors";
const FACTOR: &str = "factor";

/// Approximate time of a session.
const SESSION_TIME: Duration = Duration::from_millis(3);

const USER: &str = "ada";
const SECRET: &str = "twelve-or-more";
/// Number of targets of [`Factor::Targets`]: a portal of a large array.
const TARGETS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Factor {
    Nothing,
    Chap,
    Digests,
    Tls,
    Targets,
}

impl Factor {
    const ALL: [Self; 5] = [Self::Nothing, Self::Chap, Self::Digests, Self::Tls, Self::Targets];

    fn name(self) -> String {
        match self {
            Self::Nothing => "none".into(),
            Self::Chap => "CHAP".into(),
            Self::Digests => "digests".into(),
            Self::Tls => "TLS".into(),
            Self::Targets => format!("{TARGETS} targets"),
        }
    }

    const fn targets(self) -> usize {
        match self {
            Self::Targets => TARGETS,
            Self::Nothing | Self::Chap | Self::Digests | Self::Tls => 1,
        }
    }

    /// Returns the options of a server; `folder` is for the file of a secret.
    fn arguments(self, folder: &PrivateFolder) -> Result<Vec<String>, String> {
        let volumes = (1..=self.targets()).map(|number| format!("disk{number}=ram:,size=1MiB"));
        let mut arguments: Vec<_> =
            volumes.flat_map(|volume| ["--volume".to_owned(), volume]).collect();
        if self == Self::Chap {
            let path = folder.path().join("secret");
            let written = fs::write(&path, SECRET)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)));
            written.map_err(|error| format!("{}: {error}", path.display()))?;
            let account = format!("{USER}={}", path.display());
            arguments.extend(["--account".into(), account, "--chap".into(), USER.into()]);
        }
        Ok(arguments)
    }

    /// Returns the options of a session.
    fn options(self) -> Result<SessionOptions, String> {
        let mut options = SessionOptions::default();
        match self {
            Self::Nothing | Self::Tls | Self::Targets => {}
            Self::Chap => {
                let chap = Chap {
                    user: Some(USER.into()),
                    secret: Some(SECRET.to_owned().into()),
                    ..Chap::default()
                };
                options.identity = chap.identity().map_err(|error| error.to_string())?;
            }
            Self::Digests => {
                options.header_digest = DigestOffer::Require;
                options.data_digest = DigestOffer::Require;
            }
        }
        Ok(options)
    }

    /// Sets up sessions of a type on a new server, one after the other: for each of `count`, a session with each target.
    fn sessions(self, session: &TimedSession, count: u32) -> Result<Vec<Phases>, String> {
        let folder = PrivateFolder::new(&std::env::temp_dir(), RUN_PREFIX);
        let folder = folder.map_err(|error| error.to_string())?;
        let program = sarsen::own_program().map_err(|error| error.to_string())?;
        let address = Ipv4Addr::LOCALHOST.into();
        let arguments = self.arguments(&folder)?;
        let running = match self {
            Self::Tls => sarsen::serve_with_tls(&program, address, &arguments),
            _ => sarsen::serve(&program, &[], address, &arguments),
        };
        let running = running.map_err(|error| error.to_string())?;
        let mut link = Network::build(&[LinkProfile::loopback()]).links()[0].clone();
        link.profile.has_tls = self == Self::Tls;
        let options = self.options()?;
        // A discovery session is with the portal.
        let targets = if session.is_discovery() { 1 } else { self.targets() };
        let urls: Vec<_> =
            (1..=targets).map(|number| url(&running, &link, number)).collect::<Result<_, _>>()?;
        let sums = (0..count).map(|_| {
            let phases = urls.iter().map(|url| session.times(url, &options, 1));
            let phases: Vec<_> = phases.collect::<Result<Vec<_>, _>>()?.concat();
            Ok(sum(&phases))
        });
        sums.collect()
    }
}

fn url(running: &Running, link: &Link, number: usize) -> Result<Url, String> {
    let endpoint = running.endpoint(&format!("disk{number}"), link);
    match endpoint.map_err(|error| error.to_string())? {
        Endpoint::Iscsi(url) => Ok(url),
        other => Err(format!("the unit is at {other:?}")),
    }
}

/// Adds up the steps of sessions.
fn sum(sessions: &[Phases]) -> Phases {
    let mut total =
        Phases { steps: Vec::new(), negotiated: Default::default(), targets: Vec::new() };
    for session in sessions {
        for step in &session.steps {
            match total.steps.iter_mut().find(|known| known.name == step.name) {
                Some(known) => known.duration += step.duration,
                None => total.steps.push(Phase { ..*step }),
            }
        }
        total.negotiated.clone_from(&session.negotiated);
    }
    total
}

fn labels(session: &TimedSession, factor: Factor) -> Labels {
    Labels::new()
        .with(PART, NAME)
        .with(SESSION, session.name)
        .with(FACTOR, factor.name())
        .with(TARGET, "sarsen")
        .with(NETWORK, "loopback")
}

/// Returns the cells. The subject of a point, which has to be one of the plan, is not used.
pub(super) fn points(target_under_test: usize, count: u32) -> Vec<Point> {
    let cells =
        TIMED_SESSIONS.iter().flat_map(|session| Factor::ALL.map(|factor| (session, factor)));
    cells
        .map(|(session, factor)| {
            let measurement: Measurement =
                Box::new(move |_| session.outcome(factor.sessions(session, count)));
            Point {
                labels: labels(session, factor),
                target_under_test,
                volume: VOLUME.into(),
                link: LinkProfile::loopback().name,
                initiator: Initiator::Physical,
                writes: false,
                time: SESSION_TIME * count * factor.targets() as u32,
                measurement,
            }
        })
        .collect()
}

/// Returns the section about the factors.
pub(super) fn section(run: &Run) -> Section {
    let mut blocks = Vec::new();
    for session in &TIMED_SESSIONS {
        if run.cells(&labels(session, Factor::Nothing)).next().is_none() {
            continue;
        }
        let mut columns = vec!["Factor".to_owned()];
        columns.extend(session.steps.iter().map(|step| format!("{}, ms", step.name)));
        columns.push("whole, for each session, ms".into());
        columns.push("whole, change from no factor".into());
        let rows =
            Factor::ALL.map(|factor| {
                let labels = |factor| labels(session, factor);
                let mut row = vec![layout::text(factor.name())];
                row.extend(session.steps.iter().map(|step| {
                    layout::scaled(run, &labels(factor), &step.figure("mean"), 1.0, 3)
                }));
                let whole = |factor| {
                    let figure = session.steps.last().map(|step| step.figure("mean"));
                    figure.map_or_else(Vec::new, |figure| run.figures(&labels(factor), &figure))
                };
                let sessions = if session.is_discovery() { 1 } else { factor.targets() };
                let for_each = Summary::of(&whole(factor)).map(|s| s.mean / sessions as f64);
                row.push(layout::number(for_each, 3));
                row.push(match factor {
                    Factor::Nothing => layout::text("the base"),
                    _ => layout::change(&whole(Factor::Nothing), &whole(factor)),
                });
                row
            });
        blocks.push(Block::Table(Table {
            caption: format!("A {} with one factor each, means", session.name),
            columns,
            rows: rows.to_vec(),
            ..Table::default()
        }));
    }
    if !blocks.is_empty() {
        blocks.insert(
            0,
            Block::Text(format!(
                "The study supposed that authentication and more targets lengthen the set-up, and did not measure them. \
                 Digests are header and data digests; the handshake of TLS is a part of the connection. The server is on the loopback, without the links of the other cells. \
                 The row of {TARGETS} targets adds up a normal session with each of them, one after the other."
            )),
        );
    }
    Section { heading: "Factors of the set-up".into(), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_with_several_targets_add_up() {
        let phases = |ms| {
            let step = |name| Phase { name, duration: Duration::from_millis(ms) };
            let steps = ["connect", "security"].map(step).to_vec();
            Phases { steps, negotiated: Default::default(), targets: Vec::new() }
        };
        let total = sum(&[phases(2), phases(3)]);
        assert_eq!(total.duration("security"), Some(Duration::from_millis(5)));
        assert_eq!(total.total(), Duration::from_millis(10));
    }
}
