//! The parts of a change that follow its commit: clients leave, files grow, headers are written, and volumes are opened
//! that waited for others to be closed. Each object has a task of its own, which puts it into force when it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use sarsen_block::Store;
use sarsen_io::cores::Cores;
use sarsen_io::file::FileIdentity;
use sarsen_io::{threads, time};
use sarsen_pool::VolumeId;
use tokio::sync::mpsc;
use tracing::{error, info};

use super::change::{Cause, ChangeOutcome, Force};
use super::claims::{Claim, flush, holdings};
use super::disk_threads::{Disk, DiskPermits, run_blocking};
use super::missing::not_grown;
use super::portals::Served;
use super::volumes::{Growth, OpenPlan, Opening, Volume, check_not_just_written};
use super::{ChangeError, DeferredGain, Engine, not_in_force, not_opened};
use crate::config::VolumeConfig;
use crate::drain::{send_away, wait_until_ended};
use crate::mailbox::Mailbox;
use crate::stores::{OpenPool, PoolRename};

/// Maximum time that the answer to a change waits for its tasks, after its clients have left.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The problem of a change whose server stops.
const UNFINISHED: &str = "the change is stored, and the server stops before all of it is in force: the next start continues with it";

/// A part of a change that a task carries out after the commit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The sessions that lose something log out.
    Sessions,
    /// Portals with these addresses open when others have released them.
    Portals(String),
    /// A volume is opened, or grows.
    Volume(String),
    /// A removed volume is closed.
    Closing(String),
    /// Volumes get other names in the catalogue of this pool.
    Renames(String),
    /// The data of a deleted volume is erased.
    Erasure { volume: String, what: String },
}

impl Part {
    /// Returns the sentence for a part that has not ended.
    pub(super) fn unfinished(&self) -> String {
        match self {
            Self::Sessions => not_in_force("the change for the sessions that log out"),
            Self::Portals(addresses) => not_in_force(addresses),
            Self::Volume(name) => not_in_force(&format!("volume {name}")),
            Self::Closing(name) => {
                format!("volume {name} is removed, but not closed yet: it waits for its disk")
            }
            Self::Renames(pool) => {
                format!("the new names of volumes are not in the catalogue of pool {pool} yet")
            }
            Self::Erasure { volume, what } => {
                format!("{what}: not erased yet: it is erased when volume {volume} is closed")
            }
        }
    }
}

/// The deletion of a file, or of a volume in a pool, when the volume is closed. Blocks the thread.
pub(crate) struct Erasure {
    /// The file, or the volume in its pool.
    pub(crate) what: String,
    /// The pool of the volume, if it has one.
    pub(crate) pool: Option<String>,
    /// Its file, if it has one, and the folder of its records.
    pub(crate) paths: Vec<PathBuf>,
    /// Gets the identity of the file that the volume had, if it was open.
    pub(crate) erase: Box<dyn FnOnce(Option<FileIdentity>) -> Result<(), String> + Send>,
}

/// A volume that is not in force any more and is to be closed.
pub(super) struct Closing {
    pub(super) volume: Volume,
    pub(super) claim: Claim,
    /// Set if the flush fails. The volume is closed nevertheless.
    pub(super) is_unflushed: Option<Arc<AtomicBool>>,
    /// The deletion of its file.
    pub(super) erasure: Option<Erasure>,
    /// The part of the change, whose end is reported.
    pub(super) part: Part,
    pub(super) reports: mpsc::UnboundedSender<Report>,
}

/// The task of a part.
pub(super) enum Task {
    /// A volume is opened, perhaps after others are closed.
    Open { plan: Box<OpenPlan>, was_missing: bool },
    /// A volume gets its length and its metadata.
    Complete(Box<Opening>),
    /// A volume grows to its desired size in bytes.
    Grow { volume: String, store: Arc<dyn Store>, grown: Grown },
    /// Volumes get other names in the catalogue of their pool.
    Rename { pool: Arc<OpenPool>, names: NewNames },
    /// The file of a volume that was not open is erased.
    Erase { erasure: Erasure, claim: Claim },
    /// The addresses of closed portals become free for others.
    ClosePortals(Vec<Served>),
    /// Sessions that lose something log out, or are terminated.
    Leave { sessions: Vec<Vec<Mailbox>>, grace: Duration },
}

/// The new names of volumes.
type NewNames = Vec<(VolumeId, String)>;

impl Task {
    /// Returns one task for each pool.
    pub(super) fn renames(renames: Vec<PoolRename>) -> Vec<(Part, Self)> {
        let mut by_pool: BTreeMap<String, (Arc<OpenPool>, NewNames)> = BTreeMap::new();
        for PoolRename { pool, id, name } in renames {
            if pool.pool.find(|one| one.id == id).is_none_or(|one| one.label.name == name) {
                continue;
            }
            let of_pool = by_pool.entry(pool.config().name).or_insert_with(|| (pool, Vec::new()));
            of_pool.1.push((id, name));
        }
        let task = |(name, (pool, names))| (Part::Renames(name), Self::Rename { pool, names });
        by_pool.into_iter().map(task).collect()
    }
}

/// The end of a growth.
type Grown = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// The end of a part.
pub(super) type Report = (Part, Result<(), ChangeError>);

/// A change that is stored, and in force except for its tasks.
pub(crate) struct Begun {
    pub(super) engine: Arc<Engine>,
    /// The parts that have not ended.
    pub(super) pending: BTreeSet<Part>,
    pub(super) reports: mpsc::UnboundedReceiver<Report>,
    pub(super) is_unflushed: Arc<AtomicBool>,
    /// Sentences for gains that the change asked for, and that waited for leaving sessions at its commit.
    pub(super) deferred: BTreeSet<DeferredGain>,
    pub(super) outcome: ChangeOutcome,
    /// The first error of a task.
    pub(super) failure: Option<ChangeError>,
}

impl Begun {
    /// Waits until the clients that lose something have left, and all tasks have ended. Tasks that take too long are
    /// reported and continue.
    pub(crate) async fn finish(mut self) -> ChangeOutcome {
        self.wait().await;
        self.outcome
    }

    /// The same, for a change that consists of one task.
    pub(crate) async fn finish_one(mut self) -> Result<ChangeOutcome, ChangeError> {
        self.wait().await;
        let pending = self.pending.first().map(|part| ChangeError::Pending(part.unfinished()));
        self.failure.or(pending).map_or(Ok(self.outcome), Err)
    }

    async fn wait(&mut self) {
        let engine = self.engine.clone();
        let mut deadline = None;
        loop {
            // The sessions have a grace time of their own.
            if deadline.is_none() && !self.pending.contains(&Part::Sessions) {
                deadline = Some(time::now() + ANSWER_LIMIT);
            }
            let over = async {
                match deadline {
                    Some(deadline) => time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let report = tokio::select! {
                report = self.reports.recv() => report,
                () = over => break,
                () = engine.ending() => break,
            };
            let Some((part, result)) = report else { break };
            self.pending.remove(&part);
            if let Err(error) = result {
                self.outcome.problems.push(error.to_string());
                if !matches!(error, ChangeError::SessionsStay(_)) {
                    self.failure.get_or_insert(error);
                }
            }
        }
        self.outcome.is_unflushed |= self.is_unflushed.load(Ordering::Acquire);
        if engine.is_ending() && !self.pending.is_empty() {
            let erasures = self.pending.iter().filter_map(|part| match part {
                Part::Erasure { what, .. } => Some(what),
                _ => None,
            });
            let not_erased = erasures
                .map(|what| format!("{what}: not erased, and the next start does not do it"));
            return self
                .outcome
                .problems
                .extend(iter::once(UNFINISHED.to_owned()).chain(not_erased));
        }
        if !self.pending.is_empty() {
            self.outcome.problems.extend(engine.report_pending(&self.pending));
        }
        let deferred = &engine.running().deferred;
        self.outcome
            .problems
            .extend(self.deferred.intersection(deferred).map(|(_, why)| why.clone()));
    }
}

impl Engine {
    /// Starts the tasks of a change. Each one reports its end.
    pub(super) fn begin_tasks(
        self: &Arc<Self>,
        tasks: Vec<(Part, Task)>,
        reports: mpsc::UnboundedSender<Report>,
    ) {
        if tasks.is_empty() {
            return;
        }
        let engine = self.clone();
        let thread = threads::spawn_detached("converging", move || async move {
            let carry_out = async |(part, task): (Part, Task)| {
                let result = engine.carry_out(task, &reports).await;
                // The caller may have answered already.
                let _ = reports.send((part, result));
            };
            tokio::select! {
                _ = join_all(tasks.into_iter().map(carry_out)) => {}
                () = engine.ending() => {}
            }
        });
        if let Err(error) = thread {
            error!(%error, "a part of a change is in force with the next start");
        }
    }

    async fn carry_out(
        self: &Arc<Self>,
        task: Task,
        reports: &mpsc::UnboundedSender<Report>,
    ) -> Result<(), ChangeError> {
        match task {
            Task::Leave { sessions, grace } => {
                info!(
                    sessions = sessions.len(),
                    "sessions are asked to log out, because a change removes what they use"
                );
                let left = send_away(&sessions, grace, std::future::pending()).await;
                if left.ending > 0 {
                    let stay = ChangeError::SessionsStay(left.ending);
                    let _ = reports.send((Part::Sessions, Err(stay)));
                    wait_until_ended(&sessions).await;
                }
                // Others may gain what these sessions had.
                self.converge(None)
            }
            Task::Open { plan, was_missing } => self.open_pending(*plan, was_missing).await,
            Task::Complete(opening) => {
                let config = opening.volume.config.clone();
                let completed = self.complete(*opening).await;
                self.end_task(&config, completed)
            }
            Task::Grow { volume, store, grown } => {
                let result = grown.await;
                let growth = match &result {
                    Ok(()) => Growth::None,
                    Err(why) => Growth::Failed(why.clone()),
                };
                {
                    let mut running = self.running();
                    // It may have another name now.
                    let mut volumes = running.volumes.values_mut();
                    if let Some(volume) = volumes.find(|one| Arc::ptr_eq(&one.store, &store)) {
                        volume.growth = growth;
                    }
                    self.show(&running);
                }
                match result {
                    Ok(()) => self.converge(None),
                    Err(why) => Err(ChangeError::NotGrown(not_grown(&volume, &why))),
                }
            }
            Task::Rename { pool, names } => {
                let renamed = pool.rename(names).await;
                renamed.map_err(|error| ChangeError::Pending(error.to_string()))
            }
            Task::Erase { erasure, claim } => {
                let is_exclusive = self.claims.wait_until_exclusive(&claim).await;
                is_exclusive.map_err(ChangeError::NotErased)?;
                erase(&self.disk_permits, erasure, None, claim).await
            }
            Task::ClosePortals(portals) => {
                join_all(portals.into_iter().map(Served::close)).await;
                self.converge(None)
            }
        }
    }

    /// Waits until other volumes have released the file and the identity of a volume, and opens it.
    async fn open_pending(
        self: &Arc<Self>,
        plan: OpenPlan,
        was_missing: bool,
    ) -> Result<(), ChangeError> {
        let config = plan.config.clone();
        let claim = self.claims.claim(&config.name, holdings(&config)).await;
        let opened = match claim {
            Err(why) => Err(ChangeError::Stuck { volume: config.name.clone(), why }),
            // The desired configuration has changed meanwhile.
            Ok(_) if !self.running().absent.knows(&config) => return Ok(()),
            Ok(claim) => {
                let engine = self.clone();
                let open = move || {
                    if was_missing {
                        check_not_just_written(&plan.config)
                            .map_err(not_opened(&plan.config.name))?;
                    }
                    Ok(Opening::open(&engine, &plan, claim)?)
                };
                match run_blocking(&self.disk_permits, &Disk::of(&config), open).await {
                    Ok(opening) => self.complete(opening).await,
                    Err(error) => Err(error),
                }
            }
        };
        self.end_task(&config, opened)
    }

    async fn complete(&self, mut opening: Opening) -> Result<Opening, ChangeError> {
        let is_desired = self.running().absent.knows(&opening.volume.config);
        if !is_desired || opening.is_complete() {
            opening.new_files.keep();
            return Ok(opening);
        }
        let disk = Disk::of(&opening.volume.config);
        run_blocking(&self.disk_permits, &disk, move || {
            opening.complete()?;
            Ok(opening)
        })
        .await
    }

    /// Puts a volume into force, or reports why it is missing.
    fn end_task(
        self: &Arc<Self>,
        config: &VolumeConfig,
        opened: Result<Opening, ChangeError>,
    ) -> Result<(), ChangeError> {
        let error = match opened {
            Ok(opening) => {
                let failed = match &opening.volume.growth {
                    Growth::Failed(why) => Err(ChangeError::NotGrown(not_grown(&config.name, why))),
                    Growth::None | Growth::UnderWay(_) => Ok(()),
                };
                match self.converge(Some(opening)) {
                    Ok(()) => {
                        if let Some(missing) = self.running().absent.volume_mut(config) {
                            // Its target has changed, from which its identity is derived: it is opened again.
                            missing.has_task = false;
                        }
                        return failed;
                    }
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        let mut running = self.running();
        if let Some(missing) = running.absent.volume_mut(config) {
            missing.why = Some(error.to_string());
            missing.has_task = false;
            missing.open_mode = missing.open_mode.after_failure();
        }
        self.show(&running);
        Err(error)
    }

    /// Puts ready objects into force, if they are still desired.
    pub(super) fn converge(self: &Arc<Self>, opened: Option<Opening>) -> Result<(), ChangeError> {
        let mut opened = opened;
        loop {
            let mut prepared = self.prepare_again(Cause::Converge)?;
            prepared.bring(opened.take());
            match prepared.commit(None, Force::Nobody, BTreeMap::new(), |_| Ok(())) {
                Err(ChangeError::UnderWay) => opened = prepared.take_back(),
                converged => return converged.map(drop),
            }
        }
    }

    /// Tries to bring missing objects into force.
    pub(crate) fn retry(self: &Arc<Self>) {
        let (reports, _) = mpsc::unbounded_channel();
        let plans = self.plans_of_missing();
        let task = |plan: OpenPlan| {
            (
                Part::Volume(plan.config.name.clone()),
                Task::Open { plan: plan.into(), was_missing: true },
            )
        };
        self.begin_tasks(plans.into_iter().map(task).collect(), reports);
        let desired = self.desired();
        self.pools.apply(&desired.pools, &self.remote_access(&desired.accounts));
        let is_pending = {
            let running = self.running();
            let waits = |(_, why): &(_, Option<String>)| why.is_none();
            !running.deferred.is_empty() || running.absent.portals.iter().any(waits)
        };
        if !is_pending && !self.is_lacking() {
            return;
        }
        let prepared = self.prepare_again(Cause::Retry);
        let Ok(mut prepared) = prepared else { return };
        if !prepared.is_idle() {
            // If it does not fit any more, there is a next time.
            let committed = prepared.commit(None, Force::Nobody, BTreeMap::new(), |_| Ok(()));
            let _: Result<_, ChangeError> = committed;
        }
    }
}

/// Closes volumes when their last commands have ended: flushes them, closes and perhaps erases their files, and ends
/// their claims. This runs on its own thread, because the release of a large memory takes time.
pub(super) fn close(closings: Vec<Closing>, cores: Weak<Cores>, permits: Arc<DiskPermits>) {
    if closings.is_empty() {
        return;
    }
    // If no thread starts, they stay as they are: they may still be in use.
    let closings = ManuallyDrop::new(closings);
    let thread = threads::spawn_detached("closing", move || async move {
        let closings = ManuallyDrop::into_inner(closings);
        let close = async |closing: Closing| {
            let Closing { volume, claim, is_unflushed, erasure, part, reports } = closing;
            let Volume { config, unit, store, backing, ended, .. } = volume;
            let identity = backing.file.as_ref().map(|file| file.identity());
            let remote = backing.remote.clone();
            drop((unit, backing));
            // The unit's end drops the sender.
            let _ = ended.await;
            let name = config.name;
            // Until the end, requests may have written.
            let is_flushed = if remote.is_some_and(|remote| remote.has_nothing_to_flush()) {
                drop(store);
                true
            } else {
                flush(&cores, vec![(name.clone(), store)], None).await
            };
            match is_unflushed {
                Some(failed) if !is_flushed => failed.store(true, Ordering::Release),
                // A volume that takes the file later would read what the disk has, and the lost writes would be
                // forgotten. The claim and the open store stay until the server ends.
                None if !is_flushed && erasure.is_none() => {
                    let unflushed = ChangeError::Unflushed(name);
                    claim.hold_until_exit(unflushed.to_string());
                    let _ = reports.send((part, Err(unflushed)));
                    return;
                }
                Some(_) | None => {}
            }
            drop(claim.take_store());
            info!(volume = name, "the volume is closed");
            let ended = match erasure {
                Some(erasure) => erase(&permits, erasure, identity, claim).await,
                None => {
                    drop(claim);
                    Ok(())
                }
            };
            // The caller may have answered already.
            let _ = reports.send((part, ended));
        };
        join_all(closings.into_iter().map(close)).await;
    });
    if let Err(error) = thread {
        error!(%error, "removed volumes stay open until the server ends");
    }
}

/// Erases a file, and then ends its claim.
async fn erase(
    permits: &Arc<DiskPermits>,
    erasure: Erasure,
    identity: Option<FileIdentity>,
    claim: Claim,
) -> Result<(), ChangeError> {
    let what = erasure.what;
    let disk = match (&erasure.pool, erasure.paths.first()) {
        (Some(pool), _) => Disk::of_pool(pool),
        (None, path) => Disk::of_path(path.map_or(Path::new("/"), PathBuf::as_path)),
    };
    let erased = run_blocking(permits, &disk, move || {
        let erased = (erasure.erase)(identity);
        drop(claim);
        erased.map_err(ChangeError::NotErased)
    })
    .await;
    match &erased {
        Ok(()) => info!(what, "the data of a deleted volume is erased"),
        // The change may have been answered already.
        Err(error) => error!(what, %error, "the data of a deleted volume is not erased"),
    }
    erased
}
