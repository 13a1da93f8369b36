//! The desired state of the server. A `Store` stores it. An [`Edit`] is planned, checked, prepared, stored and then
//! applied, in this order, so that each change is applied as a whole or not at all. [`document`] is its file format.

mod cascade;
mod compile;
pub mod document;
mod edit;
mod object;
mod orphans;
mod plan;
mod references;
mod store;
mod typed_json;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use sarsen_io::time;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as AsyncMutex;
use tracing::{info, warn};
use utoipa::ToSchema;

pub use self::compile::Invalid;
use self::compile::{Compiler, unmet};
pub use self::document::Document;
pub use self::edit::Edit;
use self::object::differences;
pub use self::object::{Key, Object, ObjectKind, Objects};
pub use self::orphans::{Orphan, OrphanError};
pub use self::plan::{Action, FieldChange, Step, plan};
use self::plan::{default_portal, summary};
use self::references::referred;
pub(crate) use self::store::VOLUMES;
use self::store::{Contents, History, Store};
pub use self::store::{Revision, StateError};
pub use self::typed_json::{JsonMismatch, from_json};
use crate::config::{Config, ConfigError};
use crate::engine::{self, Cause, ChangeError, ChangeOutcome, Engine, Force, Managed};
use crate::events::{EventLog, Occurrence};

/// Time for a deleted volume to be closed. If it takes longer, its file is not erased.
const CLOSING_LIMIT: Duration = Duration::from_secs(30);

/// A change that somebody wants.
#[derive(Clone, Debug)]
pub struct Change {
    /// What is to be done, in this order; all of it or nothing.
    pub edits: Vec<Edit>,
    /// The revision that who wants it has seen; another one by now is a conflict.
    pub expected: Option<u64>,
    /// Who wants it, as he says.
    pub author: String,
    /// What is in use may be taken away: its clients are logged out first.
    pub force: bool,
    /// How long they have for that.
    pub grace: Duration,
    /// Only the plan is wanted.
    pub dry_run: bool,
    /// The files of volumes that are deleted are erased.
    pub erase: bool,
}

/// What became of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// The state's revision now.
    pub revision: u64,
    /// What was done, or, of a dry run, would be done.
    pub steps: Vec<Step>,
    /// What of it clients notice: they use what is taken away.
    pub interrupts: Vec<Interruption>,
    /// How many sessions are, or would be, logged out for that.
    #[serde(default)]
    pub interrupted_sessions: usize,
    /// What of it takes effect with the next start.
    pub needs_restart: Vec<String>,
    /// Sessions that were ended since they are not let in any more.
    pub sessions_ended: usize,
    /// What of it is kept and has not come about, such as a growth that the disk did not allow: the next change
    /// tries it again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Warnings, for example that volumes may need more space than there is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Nothing was done, as it was asked.
    pub dry_run: bool,
}

/// Something that is used, and would be taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Interruption {
    /// What: `volume data`.
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

/// Why a change was not made. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum ChangeRefused {
    /// It makes no sense.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// What it names does not exist.
    #[error("there is no {} {}{}", .0.kind.word(), .0.name, .1)]
    NotFound(Key, String),
    /// The name is taken.
    #[error("there is {} {} already", article(.0.kind), .0.name)]
    Exists(Key),
    /// Others, which stay, speak of what it takes away.
    #[error("{} {} is {}: {}", .key.kind.word(), .key.name, .by.join(", "), remedy(.key, *.is_left_out))]
    Referred {
        /// What would go.
        key: Key,
        /// How others speak of it: `LUN 1 of iqn…`.
        by: Vec<String>,
        /// It would go since a document does not list it.
        is_left_out: bool,
    },
    /// Somebody else has changed the state meanwhile.
    #[error(
        "the state is at revision {current}, and this change was made for {expected}: look again, and \
         repeat it if it still fits"
    )]
    Conflict {
        /// What the change was made for.
        expected: u64,
        /// What is there.
        current: u64,
    },
    /// Clients use what it takes away.
    #[error("{}: use --force to log them out first", reported(.0))]
    InUse(Vec<Interruption>),
    /// The volume has no file of its own to erase.
    #[error("volume {volume}: {why}")]
    NotErasable {
        /// Its name.
        volume: String,
        /// The reason and the remedy.
        why: String,
    },
    /// A store, a portal or a secret does not allow it.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// It could not be kept.
    #[error(transparent)]
    State(#[from] StateError),
}

/// `a volume`, `an account`.
fn article(kind: ObjectKind) -> String {
    let article = if kind == ObjectKind::Account { "an" } else { "a" };
    format!("{article} {}", kind.word())
}

/// What to do about a thing that others speak of.
fn remedy(key: &Key, is_left_out: bool) -> &'static str {
    match (is_left_out, key.kind) {
        (true, _) => "the document leaves it out: list it, or change that, too",
        (false, ObjectKind::Volume) => "detach it first, or give --cascade",
        // Of a host, and where it is the last, it is not taken out by itself.
        (false, ObjectKind::Account) => "take it out of there first",
        (false, _) => "take it out of there first, or give --cascade",
    }
}

fn reported(interruptions: &[Interruption]) -> String {
    let one = |interruption: &Interruption| {
        format!("{} is used by {}", interruption.object, interruption.initiators.join(", "))
    };
    interruptions.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The state of a server that runs.
pub struct Desired {
    folder: PathBuf,
    /// What changes left.
    kept: History,
    /// One change at a time.
    changing: AsyncMutex<Changing>,
    /// What holds now.
    current: Mutex<Current>,
    /// This start created the state.
    is_new: bool,
    /// Repairs at the opening, until they are reported.
    repairs: Vec<Occurrence>,
}

/// What a change works with.
struct Changing {
    store: Store,
    compiler: Compiler,
    engine: Option<Arc<Engine>>,
    /// How long files are that are to become longer and may not have yet, by the serial numbers of their volumes, as it
    /// is kept.
    pending_size: BTreeMap<String, u64>,
}

impl Changing {
    /// Keeps what files are short of no more. Where that is not possible they may be short once more, which is no loss.
    fn settle(&mut self) {
        let Some(engine) = &self.engine else { return };
        let pending_size = engine.pending_size();
        if pending_size == self.pending_size {
            return;
        }
        match self.store.keep_owed(&pending_size) {
            Ok(copy) => {
                self.pending_size = pending_size;
                copy.iter().for_each(|copy| engine.front.access.events.tell(copy));
            }
            Err(error) => warn!(%error, "which files are whole is not kept"),
        }
    }
}

/// What holds.
#[derive(Clone, Debug, Default)]
pub struct Current {
    /// Its number.
    pub revision: u64,
    /// What there is.
    pub objects: Arc<Objects>,
}

impl Desired {
    /// The state in `folder`, and the configuration that it comes to for a server with these settings of
    /// its own.
    pub fn open(folder: &Path, base: Config) -> Result<(Self, Config), OpenError> {
        // Paths under it are kept, and hold wherever the server is started the next time.
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let (store, contents) = Store::open(folder)?;
        let Contents { revision, objects, pending_size, is_new, repairs } = contents;
        let mut compiler = Compiler::new(base);
        let config = compiler.compile_to_start(&objects)?;
        let current = Current { revision, objects: Arc::new(objects) };
        let desired = Self {
            folder: folder.to_owned(),
            kept: store.reader(),
            changing: AsyncMutex::new(Changing { store, compiler, engine: None, pending_size }),
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

    /// How much of the configuration that it comes to is of the state.
    pub(crate) fn managed(&mut self) -> Managed {
        let objects = self.current().objects;
        let count = |kind| objects.keys().filter(|key| key.kind == kind).count();
        let pending_size = self.changing.get_mut().pending_size.clone();
        Managed {
            portals: count(ObjectKind::Portal),
            accounts: count(ObjectKind::Account),
            pending_size,
        }
    }

    /// From now on, changes are made to what this engine runs.
    pub(crate) fn drive(&mut self, engine: Arc<Engine>) {
        let changing = self.changing.get_mut();
        changing.engine = Some(engine);
        changing.settle();
    }

    fn current_mut(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What holds now.
    pub fn current(&self) -> Current {
        self.current_mut().clone()
    }

    /// Where it is kept.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The changes before the one of that number, the last of them first.
    /// Blocks the thread for a moment, but waits for no change.
    pub fn history(&self, before: u64, limit: usize) -> Result<Vec<Revision>, StateError> {
        self.kept.history(before, limit)
    }

    /// Ends when no change is under way. Those that wait are made, or refused, first.
    pub(crate) async fn settle(&self) {
        drop(self.changing.lock().await);
    }

    /// Takes over other settings of the server's own, and reads secrets again, as far as it can be done while
    /// it runs. Blocks the thread.
    pub(crate) async fn rebase(&self, base: Config) -> Result<ChangeOutcome, ChangeError> {
        let mut changing = self.changing.lock().await;
        let mut compiler = changing.compiler.with_base(base);
        let config = compiler.compile(&self.current().objects).map_err(|invalid| {
            ConfigError::new(invalid.field.unwrap_or_else(|| "the state".into()), invalid.message)
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

    /// Files in the folder of volumes that belong to no volume. Blocks the thread.
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
            // Memory of a change that was not made is released.
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
        let erased = match change.erase {
            true => to_be_erased(&before.objects, &objects, &gone)?,
            false => Vec::new(),
        };
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
        let Changing { store, compiler, engine, pending_size } = &mut *changing;
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
        let ready = prepared.clear(change.force.then_some(change.grace)).await?;
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
            pending_size.clone().into_iter().chain(ready.owes()).collect();
        let copy = store.commit(&revision, &writes, &objects, &short)?;
        copy.iter().for_each(|copy| engine.front.access.events.tell(copy));
        *pending_size = short;
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

/// Why a state could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file.
    #[error(transparent)]
    State(#[from] StateError),
    /// What it says does not go with the server's own settings.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// The files of deleted volumes: regular files that no other volume uses.
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

/// What is not the same, by its names before and after.
fn names(steps: &[Step]) -> Vec<String> {
    let names = steps.iter().flat_map(|step| [Some(&step.name), step.new_name.as_ref()]);
    names.flatten().filter(|name| !name.is_empty()).cloned().collect()
}

fn unix_seconds() -> u64 {
    time::wall_clock().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
