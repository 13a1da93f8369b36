//! Measures how long each step of a session takes: of a discovery session, and of a session that examines a unit as a
//! system does when it attaches the unit.
//!
//! Both functions must run on a core. On a plain thread `sarsen_io::cores::block_on` provides one:
//! `block_on(FileEngine::Pool, phases::normal(&url, &options))`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sarsen_io::time;
use sarsen_proto::iscsi::Parameters;
use sarsen_proto::iscsi::initiator::SessionTarget;

use crate::discovery::{DiscoveredTarget, send_targets};
use crate::error::SessionError;
use crate::establish::{Established, LoginTimes, establish, in_time, spawn};
use crate::options::SessionOptions;
use crate::session::Session;
use crate::unit::Unit;
use crate::url::{Portal, Url};

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// `connect` (TCP), `security` and `operational` (the stages of the login), the name of a
    /// command or of SendTargets, and `logout`.
    pub name: &'static str,
    /// Time from the end of the previous step to the end of this step.
    pub duration: Duration,
}

/// The steps of a session from its beginning to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phases {
    /// The steps, in order.
    pub steps: Vec<Phase>,
    /// The operational parameters by the names of their keys (RFC 7143 §13).
    pub negotiated: BTreeMap<String, String>,
    /// The targets that a discovery session found; empty for a normal session.
    pub targets: Vec<DiscoveredTarget>,
}

impl Phases {
    /// Returns how long a step took; `None` if there is no such step.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        self.steps.iter().find(|step| step.name == name).map(|step| step.duration)
    }

    /// Returns the duration of all steps together.
    pub fn total(&self) -> Duration {
        self.steps.iter().map(|step| step.duration).sum()
    }
}

/// Reads the clock at the end of each step.
struct Watch {
    steps: Vec<Phase>,
    last: Instant,
}

impl Watch {
    /// Creates a watch. Its first steps are those of a login that is complete.
    fn new(times: LoginTimes) -> Self {
        let steps = [
            ("connect", times.connect),
            ("security", times.security),
            ("operational", times.operational),
        ];
        let steps = steps.map(|(name, duration)| Phase { name, duration }).to_vec();
        Self { steps, last: time::now() }
    }

    fn step(&mut self, name: &'static str) {
        let now = time::now();
        self.steps.push(Phase { name, duration: now - self.last });
        self.last = now;
    }

    fn finish(self, parameters: &Parameters, targets: Vec<DiscoveredTarget>) -> Phases {
        let negotiated = parameters.texts().into_iter();
        let negotiated = negotiated.map(|(key, value)| (key.to_owned(), value)).collect();
        Phases { steps: self.steps, negotiated, targets }
    }
}

/// Times a discovery session: login, SendTargets, logout.
pub async fn discovery(portal: &Portal, options: &SessionOptions) -> Result<Phases, SessionError> {
    let (identity, limit) = (options.identity.as_ref(), options.answer_limit);
    let portals = std::slice::from_ref(portal);
    let Established { link, machine, portal, times, .. } =
        establish(portals, &SessionTarget::Discovery, options, identity).await?;
    let live = spawn(link, machine, portal.clone(), 0);
    let instance = &live.instance;
    let mut watch = Watch::new(times);
    let steps = async {
        let targets = in_time(&portal, limit, send_targets(instance)).await?;
        watch.step("SendTargets");
        in_time(&portal, limit, instance.leave()).await?;
        watch.step("logout");
        Ok(targets)
    };
    let targets: Result<_, SessionError> = steps.await;
    let targets = targets?;
    let parameters = instance.parameters();
    Ok(watch.finish(&parameters, targets))
}

/// Times a session with a unit: login, REPORT LUNS, INQUIRY, TEST UNIT READY (until the unit has reported its unit
/// attentions), READ CAPACITY, READ of the first block (the boot record), logout.
pub async fn normal(url: &Url, options: &SessionOptions) -> Result<Phases, SessionError> {
    let (session, times) = Session::log_in_timed(url, options).await?;
    let unit = Unit::new(&session, url.lun_field());
    let mut watch = Watch::new(times);
    let steps = async {
        unit.report_luns().await?;
        watch.step("REPORT LUNS");
        unit.inquiry().await?;
        watch.step("INQUIRY");
        unit.clear_unit_attentions().await?;
        watch.step("TEST UNIT READY");
        unit.read_capacity().await?;
        watch.step("READ CAPACITY");
        unit.read(0, 1).await?;
        watch.step("READ");
        Ok(())
    };
    in_time(session.portal(), options.answer_limit, steps).await?;
    let parameters = session.parameters();
    session.logout().await?;
    watch.step("logout");
    Ok(watch.finish(&parameters, Vec::new()))
}
