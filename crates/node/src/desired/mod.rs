//! The desired state of the server. A `Store` stores it. An [`Edit`] is planned, checked, prepared, stored and then
//! applied, in this order, so that each change is applied as a whole or not at all.

mod cascade;
mod compile;
mod edit;
mod orphans;
mod plan;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use sarsen_io::{threads, time};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as AsyncMutex;
use tracing::{info, warn};
use utoipa::ToSchema;

use self::compile::{Compiler, unmet};
pub use self::edit::Edit;
pub use self::orphans::OrphanError;
pub use self::plan::{Action, FieldChange, Step, plan};
use self::plan::{default_portal, summary};
pub use self::store::StateError;
use self::store::{Contents, History, Store};
use crate::config::{Config, ConfigError};
use crate::engine::{self, Cause, ChangeError, ChangeOutcome, Engine, Force, Managed};
use crate::events::{EventLog, Occurrence};
pub use crate::model::Invalid;
use crate::model::{Key, Object, ObjectKind, Objects, Orphan, Revision, differences, referred};
use crate::private::VOLUMES;

/// Maximum time for a deleted volume to be closed. If it takes longer, its file is not erased.
const CLOSING_LIMIT: Duration = Duration::from_secs(30);

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
    /// The parts of the change that are stored but failed, such as a growth for which the disk is too small. The next
    /// change tries them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Warnings, for example that volumes may need more space than there is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The request was a dry run: the server changed nothing.
    pub dry_run: bool,
}

/// An object that is in use, and that the change would close.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Interruption {
    /// The object: `volume data`.
    pub object: String,
    /// The initiators that use it.
    pub initiators: Vec<String>,
}

impl Interruption {
    fn of(interruption: &engine::Interruption) -> Self {
        let sessions = interruption.sessions.iter();
        let initiators: BTreeSet<_> = sessions.map(|session| session.initiator.clone()).collect();
        Self {
            object: interruption.object.to_string(),
            initiators: initiators.into_iter().collect(),
        }
    }
}

/// The reason why a change was refused. The server applied no part of it.
#[derive(Debug, thiserror::Error)]
pub enum ChangeRefused {
    /// The change is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The named object does not exist.
    #[error("there is no {} {}{}", .0.kind.word(), .0.name, .1)]
    NotFound(Key, String),
    /// An object of this name exists already.
    #[error("there is {} {} already", article(.0.kind), .0.name)]
    Exists(Key),
    /// Remaining objects refer to an object that the change would delete.
    #[error("{} {} is {}: {}", .key.kind.word(), .key.name, .by.join(", "), remedy(.key, *.is_left_out))]
    Referred {
        /// The object that would be deleted.
        key: Key,
        /// The references: `LUN 1 of iqn…`.
        by: Vec<String>,
        /// The reason of the deletion is that a document does not list the object.
        is_left_out: bool,
    },
    /// Another client has changed the state meanwhile.
    #[error(
        "the state is at revision {current}, and this change was made for {expected}: look again, and \
         repeat it if it still fits"
    )]
    Conflict {
        /// The expected revision.
        expected: u64,
        /// The current revision.
        current: u64,
    },
    /// Clients use what it takes away.
    #[error("{}: use --force to log them out first", reported(.0))]
    InUse(Vec<Interruption>),
    /// The volume has no file of its own to erase.
    #[error("volume {volume}: {why}")]
    NotErasable {
        /// The name of the volume.
        volume: String,
        /// The reason and the remedy.
        why: String,
    },
    /// A store, a portal or a secret prevents it.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The change could not be stored.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Returns `a volume`, `an account`.
fn article(kind: ObjectKind) -> String {
    let article = if kind == ObjectKind::Account { "an" } else { "a" };
    format!("{article} {}", kind.word())
}

/// Returns the remedy for an object to which others refer.
fn remedy(key: &Key, is_left_out: bool) -> &'static str {
    match (is_left_out, key.kind) {
        (true, _) => "the document leaves it out: list it, or change that, too",
        (false, ObjectKind::Volume) => "detach it first, or give --cascade",
        // A cascade does not delete the account of a host, nor the last account of a list.
        (false, ObjectKind::Account) => "take it out of there first",
        (false, _) => "take it out of there first, or give --cascade",
    }
}

fn reported(interruptions: &[Interruption]) -> String {
    let sentences = interruptions.iter().map(|Interruption { object, initiators }| {
        format!("{object} is used by {}", initiators.join(", "))
    });
    sentences.collect::<Vec<_>>().join("; ")
}

/// The desired state of a running server.
pub struct Desired {
    folder: PathBuf,
    /// The history of changes.
    kept: History,
    /// The lock that admits one change at a time.
    changing: AsyncMutex<Changing>,
    /// The current state.
    current: Mutex<Current>,
    /// This start created the state.
    is_new: bool,
    /// Repairs at the opening, until they are reported.
    repairs: Vec<Occurrence>,
}

/// The objects that a change uses.
struct Changing {
    store: Store,
    compiler: Compiler,
    engine: Option<Arc<Engine>>,
    /// The stored lengths of files that are to grow and may not have grown yet, by the serial numbers of their volumes.
    length_before_growth: BTreeMap<String, u64>,
}

impl Changing {
    /// Stores which files have grown to their lengths. If that fails, they count as pending once more, which is
    /// harmless.
    fn settle(&mut self) {
        let Some(engine) = &self.engine else { return };
        let length_before_growth = engine.lengths_before_growth();
        if length_before_growth == self.length_before_growth {
            return;
        }
        match self.store.store_pending_lengths(&length_before_growth) {
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
            kept: store.reader(),
            changing: AsyncMutex::new(Changing {
                store,
                compiler,
                engine: None,
                length_before_growth,
            }),
            current: Mutex::new(current),
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
        let length_before_growth = self.changing.get_mut().length_before_growth.clone();
        Managed {
            portals: count(ObjectKind::Portal),
            accounts: count(ObjectKind::Account),
            length_before_growth,
        }
    }

    /// Applies future changes to this engine.
    pub(crate) fn attach_engine(&mut self, engine: Arc<Engine>) {
        let changing = self.changing.get_mut();
        changing.engine = Some(engine);
        changing.settle();
    }

    fn current_mut(&self) -> MutexGuard<'_, Current> {
        self.current.lock()
    }

    /// Returns the current state.
    pub fn current(&self) -> Current {
        self.current_mut().clone()
    }

    /// Returns the folder of the state.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the changes before this revision, the latest first. Blocks the thread for a moment, but does not wait
    /// for a change.
    pub fn history(&self, before: u64, limit: usize) -> Result<Vec<Revision>, StateError> {
        self.kept.history(before, limit)
    }

    /// Waits until no change is in progress. Pending changes are made or refused first.
    pub(crate) async fn settle(&self) {
        drop(self.changing.lock().await);
    }

    /// Applies other settings of the server itself, and reads secrets again, as far as a running server can do that.
    /// Blocks the thread.
    pub(crate) async fn rebase(&self, base: Config) -> Result<ChangeOutcome, ChangeError> {
        let mut changing = self.changing.lock().await;
        let mut compiler = changing.compiler.with_base(base);
        let config = compiler.compile(&self.current().objects).map_err(|invalid| {
            ConfigError::new(invalid.place().unwrap_or_else(|| "the state".into()), invalid.message)
        })?;
        let engine = changing.engine.as_ref().expect("a server that answers has an engine");
        let unmet = unmet(&config);
        let made = engine.prepare(config, Cause::Reload)?.clear_by(Force::Revoked).await?.make();
        compiler.adopt(unmet);
        changing.compiler = compiler;
        changing.settle();
        Ok(made)
    }

    /// Closes a volume and opens it again, without a change of the state. Its sessions have `grace` to log out;
    /// without `grace` the call is refused while the volume has sessions. Blocks the thread.
    pub(crate) async fn reattach(
        &self,
        volume: &str,
        grace: Option<Duration>,
    ) -> Result<ChangeOutcome, ChangeRefused> {
        let mut changing = self.changing.lock().await;
        let Changing { compiler, engine, .. } = &mut *changing;
        let engine = engine.as_ref().expect("a server that answers has an engine");
        let config = compiler.compile(&self.current().objects)?;
        let made = engine.reattach(config, volume, grace).await?;
        changing.settle();
        Ok(made)
    }

    /// Returns the files in the folder of volumes that belong to no volume. Blocks the thread.
    pub(crate) fn orphans(&self) -> Result<Vec<Orphan>, OrphanError> {
        orphans::find(&self.folder.join(VOLUMES), &self.current().objects)
    }

    /// Removes one orphan. Blocks the thread.
    pub(crate) async fn remove_orphan(&self, name: &str) -> Result<Orphan, OrphanError> {
        // No change can use the file for a volume meanwhile.
        let _changing = self.changing.lock().await;
        let removed = orphans::remove(&self.folder.join(VOLUMES), &self.current().objects, name)?;
        info!(path = removed.path, "a file that no volume had is removed");
        Ok(removed)
    }

    /// Tries missing objects again. Blocks the thread.
    pub(crate) async fn retry(&self) {
        let mut changing = self.changing.lock().await;
        let Changing { compiler, engine, .. } = &mut *changing;
        let Some(engine) = engine.as_ref().filter(|engine| engine.is_lacking()) else {
            return;
        };
        let Ok(config) = compiler.compile(&self.current().objects) else { return };
        let prepared = engine.prepare(config, Cause::Edit);
        let Some(prepared) = prepared.ok().filter(|prepared| !prepared.is_idle()) else { return };
        if let Ok(ready) = prepared.clear_by(Force::Nobody).await {
            ready.make();
            changing.settle();
        }
    }

    /// Makes a change as a whole, or not at all. When this returns, the change is stored and in force. `make`
    /// computes the change from the state at its turn.
    pub async fn change<E: From<ChangeRefused>>(
        &self,
        make: impl FnOnce(&Objects) -> Result<Change, E>,
    ) -> Result<Changed, E> {
        let mut changing = self.changing.lock().await;
        let change = make(&self.current().objects)?;
        let changed = self.carry_out(&mut changing, change).await;
        if !changed.as_ref().is_ok_and(|changed| !changed.dry_run) {
            // Memory of a failed change is released.
            changing.compiler.forget_all_but(&self.current().objects);
        }
        Ok(changed?)
    }

    async fn carry_out(
        &self,
        changing: &mut Changing,
        change: Change,
    ) -> Result<Changed, ChangeRefused> {
        let before = self.current();
        if let Some(expected) = change.expected.filter(|expected| *expected != before.revision) {
            return Err(ChangeRefused::Conflict { expected, current: before.revision });
        }
        let mut objects = (*before.objects).clone();
        let is_left_out = change.edits.iter().any(|edit| matches!(edit, Edit::Replace(_)));
        for edit in change.edits {
            edit.carry_out(&mut objects, &self.folder)?;
        }
        let mut steps = plan(&before.objects, &objects);
        if changing.compiler.listens_by_default() {
            steps.extend(default_portal(&before.objects, &objects));
        }
        let gone = steps.iter().filter(|step| step.action == Action::Remove);
        let gone: BTreeSet<Key> = gone.map(|step| Key::new(step.kind, &step.name)).collect();
        if let Some((key, by)) = referred(&objects, &gone) {
            return Err(ChangeRefused::Referred { key, by, is_left_out });
        }
        let erased =
            if change.erase { to_be_erased(&before.objects, &objects, &gone)? } else { Vec::new() };
        let mut changed = Changed {
            revision: before.revision,
            steps,
            dry_run: change.dry_run,
            ..Changed::default()
        };
        let config = changing.compiler.compile(&objects)?;
        if changed.steps.is_empty() {
            return Ok(changed);
        }
        let unmet = unmet(&config);
        let Changing { store, compiler, engine, length_before_growth } = &mut *changing;
        let engine = engine.as_ref().expect("a server that answers has an engine");
        let prepared = engine.prepare(config, Cause::Edit)?;
        changed.interrupts = prepared.interrupts().iter().map(Interruption::of).collect();
        changed.warnings = prepared.warnings();
        let interrupts = prepared.interrupts();
        let sessions = interrupts.iter().flat_map(|interruption| &interruption.sessions);
        changed.interrupted_sessions =
            sessions.map(|session| session.tsih).collect::<BTreeSet<_>>().len();
        if change.dry_run {
            return Ok(changed);
        }
        if !changed.interrupts.is_empty() && !change.force {
            return Err(ChangeRefused::InUse(changed.interrupts));
        }
        let ready = prepared.log_out_sessions(change.force.then_some(change.grace)).await?;
        let revision = Revision {
            revision: before.revision + 1,
            at_unix_seconds: unix_seconds(),
            author: change.author,
            summary: summary(&changed.steps),
        };
        let different = differences(&*before.objects, &objects);
        let writes: Vec<store::Write<'_>> =
            different.map(|one| (one.key, one.after.map(|object| &**object))).collect();
        let short: BTreeMap<String, u64> =
            length_before_growth.clone().into_iter().chain(ready.lengths_before_growth()).collect();
        let copy = store.commit(&revision, &writes, &objects, &short)?;
        copy.iter().for_each(|copy| engine.front.access.events.tell(copy));
        *length_before_growth = short;
        let made = ready.make();
        compiler.adopt(unmet);
        changed.needs_restart = made.needs_restart.into_iter().map(str::to_owned).collect();
        changed.sessions_ended = made.sessions_ended;
        changed.problems = made.problems;
        changed.revision = revision.revision;
        info!(
            revision = revision.revision,
            author = revision.author,
            steps = changed.steps.len(),
            "the state was changed"
        );
        engine.front.access.events.tell(&Occurrence::ConfigurationChanged {
            revision: Some(revision.revision),
            author: revision.author,
            what: revision.summary.join("; "),
            names: names(&changed.steps),
        });
        *self.current_mut() = Current { revision: revision.revision, objects: Arc::new(objects) };
        changing.settle();
        // If the server is killed before this, the remaining file is listed as an orphan.
        for path in erased {
            match orphans::erase(&path, CLOSING_LIMIT) {
                Ok(()) => info!(path = %path.display(), "the file of a deleted volume is erased"),
                Err(error) => changed.problems.push(format!("not erased: {error}")),
            }
        }
        Ok(changed)
    }
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

/// Returns the files of deleted volumes: regular files that no other volume uses.
fn to_be_erased(
    before: &Objects,
    after: &Objects,
    gone: &BTreeSet<Key>,
) -> Result<Vec<PathBuf>, ChangeRefused> {
    let mut paths = Vec::new();
    for (key, object) in gone.iter().filter_map(|key| Some((key, before.get(key)?))) {
        let Object::Volume(volume) = &**object else { continue };
        let refuse = |why: &str| {
            let (volume, why) = (key.name.clone(), why.to_owned());
            Err(ChangeRefused::NotErasable { volume, why })
        };
        let Some((path, _)) = orphans::places(object).filter(|_| volume.store == "file") else {
            return refuse("it has no file of its own to erase: delete it without --erase");
        };
        match std::fs::symlink_metadata(&path) {
            Ok(found) if !found.is_file() => {
                return refuse(
                    "its blocks are on a device, or behind a link: erase it with `sarsen disk erase`, and delete it \
                     without --erase",
                );
            }
            _ => {}
        }
        let is_shared =
            |other: &Arc<Object>| orphans::places(other).is_some_and(|(one, _)| one == path);
        if volume.read_only || after.values().any(is_shared) {
            return refuse(
                "its file is read-only or another volume's, too: delete it without --erase",
            );
        }
        paths.push(path);
    }
    Ok(paths)
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
            None => {
                let config = engine.config_with_absent();
                Ok(engine.reattach(config, &volume, grace).await?)
            }
        }
    });
    reattaching.await.unwrap_or_else(|_| Err(ChangeError::BrokeOff.into()))
}
