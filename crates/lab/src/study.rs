//! Studies: what is measured of whom, how often, over which links, and how it is reported.
//!
//! A study says what it wants as a [`Plan`]; it starts nothing and waits for nothing. The runner
//! makes the network, starts the contestants, measures the cells interleaved, and writes every
//! sample down at once, so that a run that was broken off goes on where it was. Of the finished
//! [`Run`] the study makes a [`Report`].

pub mod lunden;

use std::fmt;

use crate::contestant::{Contestant, Running, VolumeSpec};
use crate::load::Endpoint;
use crate::network::{Link, LinkProfile};
use crate::record::{Labels, Outcome, Run, Scale};
use crate::report::Report;

/// What whoever runs a study chose.
#[derive(Clone, Debug)]
pub struct Choices {
    /// How thoroughly.
    pub scale: Scale,
    /// Who takes part; the study's own choice if empty.
    pub contestants: Vec<Contestant>,
    /// What the pseudo-random choices begin from.
    pub seed: u64,
}

/// A study.
pub trait Study: Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// One sentence: what it measures, after whom.
    fn about(&self) -> &'static str;

    /// What is to be measured.
    fn plan(&self, choices: &Choices) -> Plan;

    /// What came out, in the study's own layout, with the published figures beside.
    fn report(&self, run: &Run) -> Report;
}

/// What a study wants measured.
#[derive(Debug, Default)]
pub struct Plan {
    /// The links.
    pub links: Vec<LinkProfile>,
    /// The volumes of each contestant.
    pub volumes: Vec<VolumeSpec>,
    /// Who takes part.
    pub contestants: Vec<Contestant>,
    /// The limits of the links and of the media are measured first.
    pub limits: bool,
    /// The cells, in the order in which they are measured within a repetition.
    pub points: Vec<Point>,
    /// How often each cell is measured.
    pub repetitions: u32,
}

/// A cell: one contestant's volume over one link.
pub struct Point {
    /// What makes it differ from the others. The runner adds nothing: name the contestant, the
    /// link and the volume here where the report asks for them.
    pub labels: Labels,
    /// Which of the plan's contestants, by its index.
    pub contestant: usize,
    /// Which of its volumes.
    pub volume: String,
    /// Over which link.
    pub link: String,
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
    /// The contestant.
    pub running: &'a Running,
    /// The link between.
    pub link: &'a Link,
    /// The volume.
    pub volume: &'a VolumeSpec,
    /// What the pseudo-random choices begin from; another one for each repetition.
    pub seed: u64,
}

impl fmt::Debug for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Point")
            .field("labels", &self.labels)
            .field("contestant", &self.contestant)
            .field("volume", &self.volume)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
