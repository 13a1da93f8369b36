//! The desired state of the server. A `Store` stores it. An [`Edit`] is planned, checked, prepared and stored, in this
//! order, so that each change is stored as a whole or not at all. From then on the engine puts it into force.

mod cascade;
mod compile;
mod edit;
mod erasures;
mod new_files;
mod orphans;
mod plan;
mod refused;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use sarsen_io::{threads, time};
use serde::{Deserialize, Serialize};
use tokio::sync::{RwLock, Semaphore, watch};
use tracing::{info, warn};
use utoipa::ToSchema;

use self::compile::{Compiler, unmet};
pub use self::edit::Edit;
use self::edit::VolumeFolder;
pub use self::orphans::OrphanError;
pub use self::plan::{Action, FieldChange, Step, plan};
use self::plan::{default_portal, summary};
pub use self::refused::{ChangeRefused, Interruption};
pub use self::store::StateError;
use self::store::{Contents, History, StateStore, Store, Writes};
use crate::config::{Config, ConfigError, PoolConfig, PortalRequirement};
use crate::engine::{
    Attempts, Begun, Cause, ChangeError, ChangeOutcome, Engine, Erasure, Force, Managed, Prepared,
};
use crate::events::{EventLog, Occurrence};
pub use crate::model::Invalid;
use crate::model::{Key, Object, ObjectKind, Objects, Orphan, Revision, differences, referred};
use crate::private::VOLUMES;
use crate::stores::OpenPool;

/// Maximum time for a look at a file that a change names.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of changes that are prepared at once. It is larger than the number of disks that may hang, so that
/// these do not hold up other changes.
const PREPARED_AT_ONCE: usize = 256;

/// A requested change.
#[derive(Clone, Debug)]
pub struct Change {
    /// The edits, in this order. They are applied as a whole or not at all.
    pub edits: Vec<Edit>,
    /// The revision that the requester has seen. If the state has another one now, the change is a conflict.
    pub expected: Option<u64>,
    /// The requester, by its own statement.
    pub author: String,
    /// Objects in use may be deleted: the server logs their clients out first.
    pub force: bool,
    /// The time that the clients have to log out.
    pub grace: Duration,
    /// The change is only planned.
    pub dry_run: bool,
    /// The files of deleted volumes are erased.
    pub erase: bool,
}

impl Change {
    /// Returns a change of the devices that a pool has now: others may have changed them meanwhile.
    pub(crate) fn of_pool_devices(
        objects: &Objects,
        pool: &str,
        change: impl FnOnce(&mut PoolConfig),
        author: &str,
    ) -> Self {
        let key = Key::new(ObjectKind::Pool, pool);
        let mut pool = match objects.get(&key).map(|object| &**object) {
            Some(Object::Pool(pool)) => pool.clone(),
            // The change is refused: there is no such pool.
            _ => PoolConfig::default(),
        };
        change(&mut pool);
        let PoolConfig { devices, fast_devices, .. } = pool;
        let devices = serde_json::json!({ "devices": devices, "fast-devices": fast_devices });
        Self {
            edits: vec![Edit::Patch(key, devices)],
            expected: None,
            author: author.to_owned(),
            force: false,
            grace: Duration::ZERO,
            dry_run: false,
            erase: false,
        }
    }
}

/// The result of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// The state's revision now.
    pub revision: u64,
    /// The steps that were done, or that a dry run would do.
    pub steps: Vec<Step>,
    /// The steps that clients notice, because they use the deleted objects.
    pub interrupts: Vec<Interruption>,
    /// Number of sessions that are, or would be, logged out for the steps.
    #[serde(default)]
    pub interrupted_sessions: usize,
    /// The parts of the change that take effect with the next start.
    pub needs_restart: Vec<String>,
    /// Number of sessions that were terminated because they are not permitted any more.
    pub sessions_ended: usize,
    /// The parts of the change that are stored and not in force, such as a growth for which the disk is too small. The
    /// server tries them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Warnings, for example that volumes may need more space than there is, or that a target is open to all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The request was a dry run: the server changed nothing.
    pub dry_run: bool,
}

/// The desired state of a running server.
pub struct Desired {
    folder: PathBuf,
    /// The history of changes.
    kept: Box<dyn History>,
    /// The revision of the stored state.
    revisions: watch::Receiver<u64>,
    /// This lock is held while a change is derived, and while it is stored and put into force.
    document: Mutex<Document>,
    /// The current state.
    current: Mutex<Current>,
    /// The changes in progress share it.
    in_progress: RwLock<()>,
    turns: Semaphore,
    deriving: Mutex<()>,
    /// This start created the state.
    is_new: bool,
    /// Repairs at the opening, until they are reported.
    repairs: Vec<Occurrence>,
}

/// The objects that a change uses.
struct Document {
    store: Box<dyn StateStore>,
    compiler: Compiler,
    /// Number of reloads of the server's own settings. What was compiled before another reload is outdated.
    reloads: u64,
    engine: Option<Arc<Engine>>,
    /// The stored lengths of files that are to grow and may not have grown yet, by the serial numbers of their volumes.
    length_before_growth: BTreeMap<String, u64>,
}

impl Document {
    fn engine(&self) -> Arc<Engine> {
        self.engine.clone().expect("a server that answers has an engine")
    }

    /// Stores which files have grown to their lengths. If that fails, they count as pending once more, which is
    /// harmless.
    fn store_lengths(&mut self, current: &Current) {
        let Some(engine) = &self.engine else { return };
        let length_before_growth = engine.lengths_before_growth();
        if length_before_growth == self.length_before_growth {
            return;
        }
        let writes = Writes {
            revision: None,
            objects: Vec::new(),
            all: &current.objects,
            length_before_growth: &length_before_growth,
        };
        match self.store.commit(current.revision, &writes) {
            Ok(copy) => {
                self.length_before_growth = length_before_growth;
                copy.iter().for_each(|copy| engine.front.access.events.tell(copy));
            }
            Err(error) => warn!(%error, "which files are whole is not kept"),
        }
    }
}

/// The current state.
#[derive(Clone, Debug, Default)]
pub struct Current {
    /// Its revision.
    pub revision: u64,
    /// Its objects.
    pub objects: Arc<Objects>,
}

/// A change of the document that is not stored yet.
struct Plan {
    before: Current,
    /// See [`Document::reloads`].
    reloads: u64,
    objects: Objects,
    /// The change, without its edits.
    change: Change,
    /// The change lists all objects.
    replaces_all: bool,
    steps: Vec<Step>,
    config: Config,
    /// The needs of targets that no portal meets.
    unmet: BTreeSet<PortalRequirement>,
}

impl Desired {
    /// Opens the state in `folder`. Returns it with its configuration for a server with these settings of its own.
    pub fn open(folder: &Path, base: Config) -> Result<(Self, Config), OpenError> {
        // Stored paths under the folder must stay valid if the server is started in another directory.
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let (store, contents) = Store::open(folder)?;
        let Contents { revision, objects, length_before_growth, is_new, repairs } = contents;
        let mut compiler = Compiler::new(base);
        let config = compiler.compile_to_start(&objects)?;
        let current = Current { revision, objects: Arc::new(objects) };
        let desired = Self {
            folder: folder.to_owned(),
            kept: store.history(),
            revisions: store.watch(),
            document: Mutex::new(Document {
                store: Box::new(store),
                compiler,
                reloads: 0,
                engine: None,
                length_before_growth,
            }),
            current: Mutex::new(current),
            in_progress: RwLock::default(),
            turns: Semaphore::new(PREPARED_AT_ONCE),
            deriving: Mutex::default(),
            is_new,
            repairs,
        };
        Ok((desired, config))
    }

    /// Reports the repairs at the opening of the state.
    pub(crate) fn tell_repairs(&mut self, events: &EventLog) {
        self.repairs.drain(..).for_each(|repair| events.tell(&repair));
        if !self.is_new {
            events.tell_if_missing();
        }
    }

    /// Returns the part of the configuration that the state manages.
    pub(crate) fn managed(&mut self) -> Managed {
        let objects = self.current().objects;
        let count = |kind| objects.keys().filter(|key| key.kind == kind).count();
        let length_before_growth = self.document.get_mut().length_before_growth.clone();
        Managed {
            portals: count(ObjectKind::Portal),
            accounts: count(ObjectKind::Account),
            length_before_growth,
        }
    }

    /// Applies future changes to this engine.
    pub(crate) fn attach_engine(&mut self, engine: Arc<Engine>) {
        let current = self.current();
        let document = self.document.get_mut();
        document.engine = Some(engine);
        document.store_lengths(&current);
    }

    /// Returns the current state.
    pub fn current(&self) -> Current {
        self.current.lock().clone()
    }

    /// Returns the changes before this revision, the latest first. Blocks the thread for a moment, but does not wait
    /// for a change.
    pub fn history(&self, before: u64, limit: usize) -> Result<Vec<Revision>, StateError> {
        self.kept.before(before, limit)
    }

    /// Waits until no change is in progress.
    pub(crate) async fn settle(&self) {
        drop(self.in_progress.write().await);
    }

    /// Applies other settings of the server itself, and reads secrets again, as far as a running server can do that.
    /// Blocks the thread.
    pub(crate) async fn rebase(&self, base: Config) -> Result<ChangeOutcome, ChangeError> {
        let _in_progress = self.in_progress.read().await;
        let mut attempts = Attempts::default();
        let begun = loop {
            match self.begin_rebase(base.clone()).await {
                Err(error) if attempts.is_outdated(&error) => {}
                begun => break begun?,
            }
        };
        let made = begun.finish().await;
        self.store_lengths();
        Ok(made)
    }

    async fn begin_rebase(&self, base: Config) -> Result<Begun, ChangeError> {
        let (mut compiler, config, before, reloads, engine) = {
            let document = self.document.lock();
            let compiler = document.compiler.with_base(base);
            let before = self.current();
            let config = compiler.compile(&before.objects).map_err(|invalid| {
                let place = invalid.place().unwrap_or_else(|| "the state".into());
                ConfigError::new(place, invalid.message)
            })?;
            (compiler, config, before, document.reloads, document.engine())
        };
        let unmet = unmet(&config);
        let mut prepared = engine.prepare(config, Cause::Reload)?;
        prepared.flush_replaced().await?;
        let mut document = self.document.lock();
        if self.current().revision != before.revision || document.reloads != reloads {
            return Err(ChangeError::UnderWay);
        }
        let begun: Result<_, ChangeError> =
            prepared.commit(None, Force::Revoked, BTreeMap::new(), |_| Ok(()));
        let begun = begun?;
        compiler.adopt(unmet);
        document.compiler = compiler;
        document.reloads += 1;
        Ok(begun)
    }

    /// Checks a change as far as that is possible without opening its files.
    pub(crate) async fn check(&self, change: Change) -> Result<(), ChangeRefused> {
        let plan = {
            let _deriving = self.deriving.lock();
            self.plan(self.current(), change, &BTreeSet::new())?
        };
        self.look_at_files(&plan).await.map(drop)
    }

    /// Closes a volume and opens it again, without a change of the state. Its sessions have `grace` to log out;
    /// without `grace` the call is refused while the volume has sessions. Blocks the thread.
    pub(crate) async fn reattach(
        &self,
        volume: &str,
        grace: Option<Duration>,
    ) -> Result<ChangeOutcome, ChangeRefused> {
        let engine = self.document.lock().engine();
        let made = {
            let _in_progress = self.in_progress.read().await;
            engine.reattach(volume, grace).await
        };
        let made = match made {
            // Others make changes faster than a disk is flushed. They wait now.
            Err(ChangeError::UnderWay) => {
                let _alone = self.in_progress.write().await;
                engine.reattach(volume, grace).await?
            }
            made => made?,
        };
        self.store_lengths();
        Ok(made)
    }

    /// Returns the files in the folder of volumes, and the volumes in pools, that belong to no volume. Blocks the thread.
    pub(crate) fn orphans(&self) -> Result<Vec<Orphan>, OrphanError> {
        let engine = self.document.lock().engine();
        let objects = self.current().objects;
        let folder = self.folder.join(VOLUMES);
        let mut found = orphans::find(&folder, &objects)?;
        for pool in engine.pools.open_pools() {
            for one in orphans::in_pool(&pool, &folder, &objects) {
                // Its records are deleted with it.
                found.retain(|file| one.records.as_deref() != Some(Path::new(&file.path)));
                found.push(one.orphan);
            }
        }
        Ok(found)
    }

    /// Removes one orphan. Blocks the thread.
    pub(crate) async fn remove_orphan(&self, name: &str) -> Result<Orphan, OrphanError> {
        let folder = self.folder.join(VOLUMES);
        let engine = self.document.lock().engine();
        if let Some((pool, volume)) = name.split_once('/') {
            let not_found = || OrphanError::NotFound(name.to_owned());
            let pool = engine.pools.get(pool).ok_or_else(not_found)?;
            let objects = self.current().objects;
            return orphans::remove_in_pool(&pool, volume, &folder, &objects).await;
        }
        let removed = engine.with_file(&folder.join(name), || {
            // A change that was stored before has put its objects here under the same lock.
            let objects = {
                let _document = self.document.lock();
                self.current().objects
            };
            orphans::remove(&folder, &objects, name)
        });
        let removed = removed.unwrap_or_else(|| Err(OrphanError::InUse(name.to_owned())))?;
        info!(path = removed.path, "a file that no volume had is removed");
        Ok(removed)
    }

    /// Tries missing objects again.
    pub(crate) fn retry(&self) {
        let engine = self.document.lock().engine();
        engine.retry();
        self.store_lengths();
    }

    /// Removes the paths of devices that pools do not have any more, and those of devices that they never had: the server was
    /// interrupted before it added them, or after it removed them.
    pub(crate) async fn forget_removed_devices(&self) {
        let engine = self.document.lock().engine();
        for open in engine.pools.open_pools() {
            if !open.removed_devices().is_empty() {
                // The pool knows that the device is removed before its superblocks do. Until they do, its path stays.
                if let Err(error) = open.checkpoint().await {
                    warn!(%error, "a device that was removed from its pool is still in the state");
                    continue;
                }
                let author = "the server: a device was removed from the pool";
                self.forget_paths(&open, author, OpenPool::removed_devices).await;
            }
            if !open.leftover_paths().is_empty() {
                let author = "the server: the path is no device of the pool";
                self.forget_paths(&open, author, OpenPool::leftover_paths).await;
            }
        }
    }

    /// Removes paths of a pool, which are determined with the change: a device may be added there meanwhile.
    async fn forget_paths(
        &self,
        open: &OpenPool,
        author: &str,
        paths: impl Fn(&OpenPool) -> Vec<PathBuf>,
    ) {
        let pool = open.config().name;
        let change = |objects: &Objects| {
            let paths = paths(open);
            warn!(pool, ?paths, author, "paths are removed from the devices of a pool");
            let forget = |pool: &mut PoolConfig| pool.remove_devices(&paths);
            Ok::<_, ChangeRefused>(Change::of_pool_devices(objects, &pool, forget, author))
        };
        if let Err(error) = self.change(change).await {
            warn!(pool, %error, "a path that is no device of its pool is still in the state");
        }
    }

    fn store_lengths(&self) {
        let mut document = self.document.lock();
        let current = self.current();
        document.store_lengths(&current);
    }

    /// Returns a receiver of the revision, which is notified of each new one.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.revisions.clone()
    }

    /// Makes a change as a whole, or not at all. When this returns, the change is stored, and it is in force except for
    /// its `problems`. `make` computes the change from the current state, again if others have changed it meanwhile.
    pub async fn change<E: From<ChangeRefused>>(
        &self,
        make: impl Fn(&Objects) -> Result<Change, E>,
    ) -> Result<Changed, E> {
        let _in_progress = self.in_progress.read().await;
        // This drops `make`, and what it holds, before clients leave.
        let (begun, mut changed) = self.begin(make).await?;
        if let Some(begun) = begun {
            let made = begun.finish().await;
            changed.needs_restart = made.needs_restart.into_iter().map(str::to_owned).collect();
            changed.sessions_ended = made.sessions_ended;
            changed.problems = made.problems;
            self.store_lengths();
        }
        Ok(changed)
    }

    /// Plans, prepares and stores a change. A dry run begins nothing.
    async fn begin<E: From<ChangeRefused>>(
        &self,
        make: impl Fn(&Objects) -> Result<Change, E>,
    ) -> Result<(Option<Begun>, Changed), E> {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let mut attempts = Attempts::default();
        let mut taken = BTreeSet::new();
        loop {
            let plan = {
                // One change at a time takes the memory of its derivation.
                let _deriving = self.deriving.lock();
                let before = self.current();
                let change = make(&before.objects)?;
                self.plan(before, change, &taken)?
            };
            let mut found = self.look_at_files(&plan).await?;
            found.retain(|path| !taken.contains(path));
            if !found.is_empty() {
                taken.extend(found);
                continue;
            }
            let revision = plan.before.revision;
            match self.begin_plan(plan).await {
                Err(ChangeRefused::Change(mut error)) => {
                    // What is in force may be newer than the plan.
                    if matches!(error, ChangeError::Impossible { .. })
                        && self.has_changed_since(revision)
                    {
                        error = ChangeError::UnderWay;
                    }
                    if !attempts.is_outdated(&error) {
                        return Err(ChangeRefused::Change(error).into());
                    }
                }
                begun => return Ok(begun?),
            }
        }
    }

    /// Returns whether there is a later revision, or one is being put into force.
    fn has_changed_since(&self, revision: u64) -> bool {
        let _document = self.document.lock();
        self.current().revision != revision
    }

    /// Refuses files of the server itself. Returns the files of new volumes that exist in the state folder.
    async fn look_at_files(&self, plan: &Plan) -> Result<BTreeSet<PathBuf>, ChangeRefused> {
        let files = new_files::between(&plan.before.objects, &plan.objects);
        let engine = self.document.lock().engine();
        let mut found = BTreeSet::new();
        for file in files {
            let deadline = time::now() + LOOK_LIMIT;
            let (path, object) = (file.path.clone(), file.object.clone());
            let folder = self.folder.clone();
            let look = move || new_files::look_at(&file, &folder);
            let looked = tokio::select! {
                looked = engine.run_on_disk(&path, look) => looked,
                () = time::sleep_until(deadline) => Err(ChangeError::Hangs(object)),
            };
            if looked?? {
                found.insert(path);
            }
        }
        Ok(found)
    }

    /// Derives the new document and its configuration. New volumes do not get the files that are `taken`.
    fn plan(
        &self,
        before: Current,
        mut change: Change,
        taken: &BTreeSet<PathBuf>,
    ) -> Result<Plan, ChangeRefused> {
        if let Some(expected) = change.expected.filter(|expected| *expected != before.revision) {
            return Err(ChangeRefused::Conflict { expected, current: before.revision });
        }
        let mut objects = (*before.objects).clone();
        let replaces_all = change.edits.iter().any(|edit| matches!(edit, Edit::Replace(_)));
        let folder = self.folder.join(VOLUMES);
        let folder = VolumeFolder::new(&folder, taken, &before.objects);
        for edit in std::mem::take(&mut change.edits) {
            edit.carry_out(&mut objects, &folder)?;
        }
        self.document.lock().plan(before, objects, change, replaces_all)
    }

    async fn begin_plan(&self, plan: Plan) -> Result<(Option<Begun>, Changed), ChangeRefused> {
        let Change { force, dry_run, erase, .. } = plan.change;
        let engine = self.document.lock().engine();
        let erasures = if erase { plan.erasures(&engine.pools)? } else { BTreeMap::new() };
        let mut changed = Changed {
            revision: plan.before.revision,
            steps: plan.steps.clone(),
            dry_run,
            ..Changed::default()
        };
        if changed.steps.is_empty() {
            return Ok((None, changed));
        }
        let mut prepared = engine.prepare(plan.config.clone(), Cause::Edit)?;
        let interrupts = prepared.interrupts();
        if !interrupts.is_empty() && self.has_changed_since(plan.before.revision) {
            // What is in force may be newer than the plan, which does not remove that.
            return Err(ChangeError::UnderWay.into());
        }
        changed.interrupts = interrupts.iter().map(Interruption::of).collect();
        let sessions = interrupts.iter().flat_map(|interruption| &interruption.sessions);
        changed.interrupted_sessions =
            sessions.map(|session| session.tsih).collect::<BTreeSet<_>>().len();
        changed.warnings = prepared.warnings();
        let (before, after) = (&plan.before.objects, &plan.objects);
        changed.warnings.extend(plan::open_targets(before, after));
        let is_erased = |volume: &str| erasures.contains_key(volume);
        changed.warnings.extend(plan::remaining_files(before, after, is_erased));
        if dry_run {
            return Ok((None, changed));
        }
        if !changed.interrupts.is_empty() && !force {
            return Err(ChangeRefused::InUse(changed.interrupts));
        }
        prepared.flush_replaced().await?;
        let (begun, revision) = self.commit(plan, &mut prepared, erasures)?;
        info!(
            revision = revision.revision,
            author = revision.author,
            steps = changed.steps.len(),
            "the state was changed"
        );
        changed.revision = revision.revision;
        engine.front.access.events.tell(&Occurrence::ConfigurationChanged {
            revision: Some(revision.revision),
            author: revision.author,
            what: revision.summary.join("; "),
            names: names(&changed.steps),
        });
        Ok((Some(begun), changed))
    }

    /// Stores a change and puts it into force. If others have changed the document meanwhile, the change is applied to
    /// the document that they left.
    fn commit(
        &self,
        mut plan: Plan,
        prepared: &mut Prepared,
        erasures: BTreeMap<String, Erasure>,
    ) -> Result<(Begun, Revision), ChangeRefused> {
        let mut document = self.document.lock();
        let now = self.current();
        if document.reloads != plan.reloads {
            return Err(ChangeError::UnderWay.into());
        }
        let is_rebased = now.revision != plan.before.revision;
        if is_rebased {
            plan = document.rebase(plan, now)?;
        }
        let revision = Revision {
            revision: plan.before.revision + 1,
            at_unix_seconds: unix_seconds(),
            author: plan.change.author.clone(),
            summary: summary(&plan.steps),
        };
        let Document { store, compiler, engine, length_before_growth, .. } = &mut *document;
        let different = differences(&*plan.before.objects, &plan.objects);
        let written = different.map(|one| (one.key, one.after.map(|object| &**object)));
        let written: Vec<store::Write<'_>> = written.collect();
        let Change { force, grace, .. } = plan.change;
        let force = if force { Force::Everybody(grace) } else { Force::Nobody };
        let desired = is_rebased.then(|| plan.config.clone());
        let begun = prepared.commit(desired, force, erasures, |lengths| {
            let mut short = length_before_growth.clone();
            short.extend(lengths.clone());
            let writes = Writes {
                revision: Some(&revision),
                objects: written,
                all: &plan.objects,
                length_before_growth: &short,
            };
            let copy = store.commit(plan.before.revision, &writes)?;
            let events = engine.as_ref().map(|engine| &engine.front.access.events);
            copy.iter().zip(events).for_each(|(copy, events)| events.tell(copy));
            *length_before_growth = short;
            Ok::<_, ChangeRefused>(())
        })?;
        compiler.adopt(plan.unmet);
        *self.current.lock() =
            Current { revision: revision.revision, objects: Arc::new(plan.objects) };
        Ok((begun, revision))
    }
}

impl Document {
    /// Checks a new document, and compiles its configuration.
    fn plan(
        &mut self,
        before: Current,
        objects: Objects,
        change: Change,
        replaces_all: bool,
    ) -> Result<Plan, ChangeRefused> {
        let mut steps = plan(&before.objects, &objects);
        if self.compiler.listens_by_default() {
            steps.extend(default_portal(&before.objects, &objects));
        }
        if let Some((key, by)) = referred(&objects, &deleted(&steps)) {
            return Err(ChangeRefused::Referred { key, by, is_left_out: replaces_all });
        }
        let config = self.compiler.compile(&objects)?;
        let unmet = unmet(&config);
        let reloads = self.reloads;
        Ok(Plan { before, reloads, objects, change, replaces_all, steps, config, unmet })
    }

    /// Applies a planned change to the document as it is now. If another change has touched the same objects, the plan
    /// is outdated.
    fn rebase(&mut self, plan: Plan, now: Current) -> Result<Plan, ChangeRefused> {
        if let Some(expected) = plan.change.expected {
            return Err(ChangeRefused::Conflict { expected, current: now.revision });
        }
        let mut objects = (*now.objects).clone();
        let is_same = |key: &Key| match (now.objects.get(key), plan.before.objects.get(key)) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        for one in differences(&*plan.before.objects, &plan.objects) {
            if plan.replaces_all || !is_same(one.key) {
                return Err(ChangeError::UnderWay.into());
            }
            match one.after {
                Some(object) => drop(objects.insert(one.key.clone(), object.clone())),
                None => drop(objects.remove(one.key)),
            }
        }
        self.plan(now, objects, plan.change, plan.replaces_all)
    }
}

/// Returns the objects that the steps delete.
fn deleted(steps: &[Step]) -> BTreeSet<Key> {
    let deleted = steps.iter().filter(|step| step.action == Action::Remove);
    deleted.map(|step| Key::new(step.kind, &step.name)).collect()
}

/// The reason why a state could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The files cannot be opened.
    #[error(transparent)]
    State(#[from] StateError),
    /// The state contradicts the server's own settings.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Returns the names of all changed objects, before and after the change.
fn names(steps: &[Step]) -> Vec<String> {
    let names = steps.iter().flat_map(|step| [Some(&step.name), step.new_name.as_ref()]);
    names.flatten().filter(|name| !name.is_empty()).cloned().collect()
}

fn unix_seconds() -> u64 {
    time::wall_clock().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Closes a volume and opens it again, with the state of the server if it has one.
pub(crate) async fn reattach(
    engine: Arc<Engine>,
    desired: Option<Arc<Desired>>,
    volume: String,
    grace: Option<Duration>,
) -> Result<ChangeOutcome, ChangeRefused> {
    let reattaching = threads::aside(async move {
        match desired {
            Some(desired) => desired.reattach(&volume, grace).await,
            None => Ok(engine.reattach(&volume, grace).await?),
        }
    });
    reattaching.await.unwrap_or_else(|_| Err(ChangeError::BrokeOff.into()))
}
