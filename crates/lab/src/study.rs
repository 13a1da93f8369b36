//! Studies: what is measured of whom, how often, over which links, and how it is reported.
//!
//! A study says what it wants as a [`Plan`]; it starts nothing and waits for nothing. The runner
//! makes the network, starts the targets under test, measures the cells interleaved, and writes every
//! sample down at once, so that a run that was broken off goes on where it was. Of the finished
//! [`Run`] the study makes a [`Report`].

pub mod aravindan;
mod layout;
pub mod lu_du;
pub mod lunden;
pub mod novell;
mod runner;
#[cfg(test)]
mod soundness;
pub mod trinkle;

use std::fmt;
use std::time::Duration;

pub(crate) use layout::split_unit;
pub use runner::{RunError, Settings, Watcher, now, record, run};

use crate::access::Access;
use crate::fio::Amount;
use crate::load::{self, Endpoint, LoadError, LoadOptions, LoadResult};
use crate::network::{Link, LinkProfile};
use crate::record::{Labels, Outcome, Run, Scale};
use crate::report::Report;
use crate::target_under_test::{Medium, Running, TargetUnderTest, VolumeSpec};

/// What whoever runs a study chose.
#[derive(Clone, Debug)]
pub struct Choices {
    /// How thoroughly.
    pub scale: Scale,
    /// Who takes part; the study's own choice if empty.
    pub targets_under_test: Vec<TargetUnderTest>,
    /// What volumes are on; the study's own choice if absent.
    pub medium: Option<Medium>,
    /// Targets under test that the lab has not started may be written to.
    pub destroy: bool,
    /// Links are made where a study wants them; else everything goes over what is there.
    pub links: bool,
    /// What the pseudo-random choices begin from.
    pub seed: u64,
}

/// A study.
pub trait Study: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// One sentence: what it measures, after whom.
    fn about(&self) -> &'static str;

    /// What is to be measured; absent if the study takes its figures from elsewhere.
    fn plan(&self, choices: &Choices) -> Option<Plan>;

    /// What came out, in the study's own layout, with the published figures beside.
    fn report(&self, run: &Run) -> Report;
}

/// What a study wants measured.
#[derive(Debug, Default)]
pub struct Plan {
    /// The links.
    pub links: Vec<LinkProfile>,
    /// The volumes of each target under test.
    pub volumes: Vec<VolumeSpec>,
    /// Who takes part.
    pub targets_under_test: Vec<TargetUnderTest>,
    /// The limits of the links and of the media are measured first.
    pub limits: bool,
    /// The cells, in the order in which they are measured within a repetition.
    pub points: Vec<Point>,
    /// How often each cell is measured.
    pub repetitions: u32,
}

impl Plan {
    /// How long all measurements take, about; preparations and limits come on top.
    pub fn time(&self) -> Duration {
        self.points.iter().map(|point| point.time).sum::<Duration>() * self.repetitions
    }
}

/// A cell: one target under test's volume over one link.
pub struct Point {
    /// What makes it differ from the others. The runner adds nothing: name the target under test, the
    /// link and the volume here where the report asks for them.
    pub labels: Labels,
    /// Which of the plan's targets under test, by its index.
    pub target_under_test: usize,
    /// Which of its volumes.
    pub volume: String,
    /// Over which link.
    pub link: String,
    /// Whether it writes.
    pub writes: bool,
    /// How long it takes once, about.
    pub time: Duration,
    /// What is done.
    pub measurement: Measurement,
}

/// What is done with the subject of a cell. It takes the thread until it is done, and runs with the
/// sockets of the initiator's side.
pub type Measurement = Box<dyn Fn(&Subject<'_>) -> Outcome + Send + Sync>;

/// What a measurement is done with.
#[derive(Debug)]
pub struct Subject<'a> {
    /// Where the volume answers.
    pub endpoint: Endpoint,
    /// The target under test.
    pub running: &'a Running,
    /// The link between.
    pub link: &'a Link,
    /// The volume.
    pub volume: &'a VolumeSpec,
    /// What the pseudo-random choices begin from; another one for each repetition.
    pub seed: u64,
    /// It is the lab's own, or may be written to.
    pub may_write: bool,
}

impl Subject<'_> {
    /// This load of the subject, for as long as nobody says otherwise.
    pub fn load_options(&self, access: Access) -> LoadOptions {
        let mut options = LoadOptions::new(self.endpoint.clone(), access);
        options.size = Some(Amount::Bytes(self.volume.bytes));
        // Where less is touched, more is cached: its figures could not stand beside the others'.
        options.least = self.volume.bytes;
        options.target_pids = self.running.pids();
        options.seed = self.seed;
        options.destroy = self.may_write;
        options
    }

    /// Puts a load on and says how it ended.
    pub fn put_on(&self, options: &LoadOptions) -> Outcome {
        // Even where nothing is found that writing would destroy, and whatever the point said.
        if !self.may_write && !options.only_reads() {
            return Outcome::NotMeasured(NOT_TO_BE_WRITTEN.into());
        }
        outcome(load::run(options))
    }
}

/// Why a cell is not measured that would write to what is not the lab's.
const NOT_TO_BE_WRITTEN: &str = "it was not started by the lab, and writing needs --destroy";

/// How a load ended: I/Os that failed make it a failure, whatever it showed besides.
pub fn outcome(ended: Result<LoadResult, LoadError>) -> Outcome {
    match ended {
        Err(error) => Outcome::Failed(error.to_string()),
        Ok(LoadResult { errors: errors @ 1.., first_error, .. }) => {
            let first = first_error.unwrap_or_default();
            Outcome::Failed(format!("{errors} I/Os failed, the first one with {first}"))
        }
        Ok(result) => Outcome::Measured(result.measures()),
    }
}

/// The measurement that most cells are: a load for a while.
pub fn load_for(access: Access, warm_up: Duration, duration: Duration) -> Measurement {
    Box::new(move |subject| {
        let mut options = subject.load_options(access);
        options.warm_up = warm_up;
        options.duration = duration;
        subject.put_on(&options)
    })
}

/// All studies.
pub static ALL: &[&dyn Study] =
    &[&trinkle::Trinkle, &novell::Novell, &lu_du::LuDu, &lunden::Lunden, &aravindan::Aravindan];

/// The study of this name.
pub fn find(name: &str) -> Option<&'static dyn Study> {
    ALL.iter().copied().find(|study| study.name() == name)
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Point")
            .field("labels", &self.labels)
            .field("target_under_test", &self.target_under_test)
            .field("volume", &self.volume)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
